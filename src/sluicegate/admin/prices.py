"""`/admin/v1/prices`: what each deployment costs and who says so, and prices that are put over the file's (config/price_entries.py).

A deployment's id is `provider/model`, and goes into a URL as it is. What is put over the file outlives reloads and restarts, reaches every replica
within a second and can be taken back; requests under way keep the price that they began with.
"""

from datetime import date
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BeforeValidator, Field, WithJsonSchema

from sluicegate.admin.access import Admin, Viewer
from sluicegate.admin.bodies import Answer, Asked, Plain, Whole
from sluicegate.admin.errors import not_found
from sluicegate.admin.paging import Listing, Page, of_ids
from sluicegate.admin.services import Services
from sluicegate.admin.showing import Deleted
from sluicegate.config.compile_prices import DAY_MIN, plausible
from sluicegate.core.prices import Origin, Price
from sluicegate.core.refusals import iso
from sluicegate.core.tenants import Deployment

router = APIRouter(prefix="/admin/v1/prices", tags=["prices"])

RATES = ("input", "output", "cached_input", "cache_write", "cache_write_1h", "reasoning", "audio_input", "audio_output")
_USD_MAX = 1_000_000


def _day(text: object) -> str:
    if isinstance(text, str) and len(text) == 10:
        day = date.fromisoformat(text).isoformat()
        if not plausible(day):
            raise ValueError(f"Input should be a day from {DAY_MIN} to today")
        return day
    raise ValueError("Input should be a day such as 2026-11-01")


Day = Annotated[str, BeforeValidator(_day), WithJsonSchema({"type": "string", "format": "date"})]
Rate = Annotated[float, Field(ge=0, le=_USD_MAX, description="USD per 1M tokens, with at most six decimal places.")]
Fee = Annotated[float, Field(ge=0, le=1_000, description="USD per call, with at most nine decimal places.")]
Tool = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_.-]{0,63}$")]
Fees = Annotated[
    dict[Tool, Rate], Field(max_length=50, description="USD per 1,000 calls of tools that the provider runs.", examples=[{"web_search": 10}])
]
Field_ = Annotated[str, Field(min_length=1, max_length=40)]
When = Annotated[dict[Field_, Field_], Field(min_length=1, description="What a client asks for.", examples=[{"service_tier": "priority"}])]


class Rates(Asked):
    """USD per 1M tokens. What is left out, or null, costs what docs/prices.md says."""

    input: Rate
    output: Rate
    cached_input: Rate | None = None
    cache_write: Rate | None = None
    cache_write_1h: Rate | None = None
    reasoning: Rate | None = None
    audio_input: Rate | None = None
    audio_output: Rate | None = None


class Tier(Rates):
    above: Annotated[int, Whole, Field(ge=1, le=10**9, description="Tokens of input.")]


class Variant(Rates):
    when: When
    request_fee: Fee = 0
    tiers: list[Tier] = Field(default=[], max_length=20)


class PriceRequest(Rates):
    """A price, as in the configuration."""

    date: Day = Field(description="On which it was looked up.", examples=["2026-11-01"])
    source: Annotated[Plain, Field(min_length=1, description="Where.", examples=["contract 17"])]
    request_fee: Fee = 0
    tools: Fees = Field(default={})
    tiers: list[Tier] = Field(default=[], max_length=20)
    variants: list[Variant] = Field(default=[], max_length=20)


class PricesAsked(Page):
    origin: Literal["deployment", "override", "catalogue", "unpriced", "api", "none"] | None = Field(default=None, description="Who says so.")


class ShownRates(Answer):
    input: float
    output: float
    cached_input: float | None
    cache_write: float | None
    cache_write_1h: float | None
    reasoning: float | None
    audio_input: float | None
    audio_output: float | None


class ShownTier(ShownRates):
    above: int


class ShownVariant(ShownRates):
    when: dict[str, str]
    request_fee: float
    tiers: list[ShownTier]


class ShownPrice(ShownRates):
    """USD per 1M tokens, per call (`request_fee`), per 1,000 calls (`tools`)."""

    request_fee: float
    tools: dict[str, float]
    tiers: list[ShownTier]
    variants: list[ShownVariant]


class ShownOrigin(Answer):
    """Who says so (`none`: nobody): the price at the deployment, `prices.overrides`, the catalogue, `prices.unpriced`, or this API."""

    origin: Literal["deployment", "override", "catalogue", "unpriced", "api", "none"]
    date: str
    source: str
    entry: str
    note: str


class PriceState(ShownOrigin):
    """What a deployment costs. price: null where it is not known. over: what the file says, where this API has put a price over it; null: nothing is.
    in_use: false where a price is for a deployment that the file has not, or not any more."""

    object: Literal["price"] = "price"
    deployment: str
    models: list[str]
    price: ShownPrice | None
    over: ShownOrigin | None
    set_at: str | None
    in_use: bool


@router.get("", summary="What each deployment costs, and who says so")
async def show_all(request: Request, _caller: Viewer, page: Annotated[PricesAsked, Query()]) -> Listing[PriceState]:
    """By the deployments' ids."""
    services: Services = request.app.state.services
    states = {one.deployment: one for one in _states(services)}
    ids = [id for id, one in states.items() if page.origin in (None, one.origin)]
    return of_ids(ids, page, states.__getitem__)


@router.get("/{deployment:path}", summary="What one deployment costs")
async def show(request: Request, _caller: Viewer, deployment: str) -> PriceState:
    return _state(request.app.state.services, deployment)


@router.put("/{deployment:path}", summary="Say what a deployment costs")
async def put(request: Request, caller: Admin, deployment: str, asked: PriceRequest) -> PriceState:
    """Whatever the file says, from the next request on; within a second on every replica."""
    services: Services = request.app.state.services
    if deployment not in services.deployments():
        raise _unknown()
    witness = services.audit.witness(caller, "price.set", deployment, request)
    await services.changes.set_price(deployment, asked.model_dump(exclude_none=True, exclude_defaults=True), witness=witness)
    return _state(services, deployment)


@router.delete("/{deployment:path}", summary="Let the file's word count again")
async def remove(request: Request, caller: Admin, deployment: str) -> Deleted:
    services: Services = request.app.state.services
    if not any(row.id == deployment for row in services.directory.tree.prices):
        raise not_found("Nothing is put over the price of that.", "deployment", "price_not_found")
    await services.changes.remove_price(deployment, witness=services.audit.witness(caller, "price.removed", deployment, request))
    return Deleted(object="price.deleted", id=deployment)


def _unknown() -> Exception:
    return not_found("There is no such deployment in a route; GET /admin/v1/prices names them.", "deployment", "deployment_not_found")


def _state(services: Services, deployment: str) -> PriceState:
    found = next((one for one in _states(services) if one.deployment == deployment), None)
    if found is None:
        raise _unknown()
    return found


def _states(services: Services) -> list[PriceState]:
    """Of all deployments, and of prices that are for none."""
    routes = services.deployments()
    in_use = _by_id(services.gateway.policy.models.values())
    of_file = _by_id(services.loaded().policy.models.values())
    set_ms = {row.id: row.set_ms for row in services.directory.tree.prices}
    found = []
    for id in {*in_use, *set_ms}:
        one, below = in_use.get(id), of_file.get(id)
        found.append(
            PriceState(
                deployment=id,
                models=routes.get(id, []),
                price=shown(one.price) if one is not None and one.price is not None else None,
                **_origin(one.price_origin if one is not None else None),
                over=ShownOrigin(**_origin(below.price_origin)) if below is not None and id in set_ms else None,
                set_at=iso(set_ms[id]) if id in set_ms else None,
                in_use=one is not None,
            )
        )
    return found


def _by_id(models: Any) -> dict[str, Deployment]:
    return {one.id: one for model in models for one in model.deployments}


def _origin(origin: Origin | None) -> dict[str, Any]:
    if origin is None:
        return {"origin": "none", "date": "", "source": "", "entry": "", "note": ""}
    return {"origin": origin.rule, "date": origin.date, "source": origin.source, "entry": origin.entry, "note": origin.note}


def shown(price: Price) -> ShownPrice:
    """In the units of the configuration."""
    variants = [ShownVariant(when=_when(tariff), **_fee(one), **_rates(one), tiers=_tiers(one)) for tariff, one in price.variants]
    tools = {name: fee / 1e6 for name, fee in price.tools}
    return ShownPrice(**_rates(price), **_fee(price), tools=tools, tiers=_tiers(price), variants=variants)


def _tiers(price: Price) -> list[ShownTier]:
    return [ShownTier(above=tier.above, **_rates(tier.price)) for tier in price.tiers]


def _fee(price: Price) -> dict[str, Any]:
    return {"request_fee": price.request_fee / 1e9}


def _rates(price: Price) -> dict[str, Any]:
    rates = {name: getattr(price, name) for name in RATES}
    return {name: None if rate is None else rate / 1e6 for name, rate in rates.items()}


def _when(tariff: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in tariff.split(","))
