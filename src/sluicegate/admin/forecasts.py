"""`/admin/v1/{keys,tenants,providers,models}/{id}/usage/forecast`: when limits on dollars and tokens will be used up, if days go on as they do.

For a key or tenant each limit of its own that ends or lasts for ever, with what it and all below it have used; for a provider or model the limits of
its deployments. A unit, dollars or tokens, that nothing limits is told without a limit, for the calendar month in UTC.

What is used now is the ledger's word; days before are the records', and those of UTC. The end of a window is exact, in whatever zone it is.
"""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal, overload
from zoneinfo import ZoneInfo

import msgspec
from fastapi import APIRouter, Query, Request
from pydantic import Field

from sluicegate.admin.access import require
from sluicegate.admin.bodies import Answer, Asked
from sluicegate.admin.errors import not_found
from sluicegate.admin.services import Services
from sluicegate.core.counters import deployment_tree, name
from sluicegate.core.limits import NANO, Unit, show_window
from sluicegate.core.plan import Template
from sluicegate.core.refusals import iso
from sluicegate.core.tenants import Counter, Deployment
from sluicegate.core.windows import Calendar, Fixed, Lifetime, span
from sluicegate.counted import counted
from sluicegate.forecast import CONFIDENCE, HORIZON_DAYS, SAMPLE_DAYS, Method, Outlook, Reached, course, outlook, reached, used_by

router = APIRouter(prefix="/admin/v1", tags=["forecast"], dependencies=[require("viewer")])

DAY_MS = 86_400_000
UNITS = (Unit.USD, Unit.TOKENS, Unit.INPUT_TOKENS, Unit.OUTPUT_TOKENS)
MONTH = Calendar("month")

Kind = Literal["key", "tenant", "provider", "model"]


class ForecastAsked(Asked, strict=False):
    days: int = Field(default=30, ge=1, le=HORIZON_DAYS, description="How many days `series` has.")


class Series(Answer):
    """Day by day (UTC), the present one first and as a whole. Bounds hold each day by itself, with `confidence_level`."""

    dates: list[str]
    point: list[float]
    lower: list[float]
    upper: list[float]
    confidence_level: float
    used_seasonal_decomposition: bool


class LimitForecast(Answer):
    """Of one limit; dollars are dollars. limit, utilization_percent: null where nothing limits it. The present day is not in the sample, nor are days
    before the first that used anything.

    days_until_exhaustion: null if not before the window ends, or not within a year; lower is the earliest, upper the latest.
    projected_exhaustion_date: in the window's zone. projected_window_spend: at the end of the window; null if that is never, or beyond a year.
    """

    name: str
    scope: str
    unit: str
    window: str
    models: list[str] | None
    limit: float | None
    current_spend: float
    utilization_percent: float | None
    resets_at: str | None
    method: Method
    avg_daily: float
    std_dev_daily: float | None
    sample_days: int
    days_until_exhaustion: float | None
    days_until_exhaustion_lower: float | None
    days_until_exhaustion_upper: float | None
    projected_exhaustion_date: str | None
    projected_window_spend: float | None
    series: Series


class ForecastAnswer(Answer):
    """Of each limit on dollars and tokens."""

    object: Literal["forecast"] = "forecast"
    kind: Kind
    id: str
    limits: list[LimitForecast]


class Source(msgspec.Struct, frozen=True):
    """Counters, and what in the records counts in them."""

    tree: str
    counters: tuple[Counter, ...]
    filters: dict[str, list[str]]


class Subject(msgspec.Struct, frozen=True):
    """What is forecast, in its unit; dollars are dollars."""

    name: str
    scope: str
    unit: Unit
    window: Calendar | Fixed | Lifetime
    models: frozenset[str] | None
    filters: dict[str, list[str]]
    limit: float | None = None  # None: there is none, and what is used is in the records
    used: float = 0.0

    def series(self) -> tuple[str, ...]:
        """Equal ones have used the same."""
        return (self.unit, *(f"{name}={value}" for name in sorted(self.filters) for value in self.filters[name]))


Queried = Annotated[ForecastAsked, Query()]
Days = list[tuple[str, float]]


@router.get("/keys/{id:path}/usage/forecast", summary="When a key's limits will be used up")
async def of_key(request: Request, id: str, asked: Queried) -> ForecastAnswer:
    services: Services = request.app.state.services
    key = await services.directory.look_up(id) if id.isprintable() else None
    if key is None:
        raise not_found("There is no such key.", "id", "key_not_found")
    own = tuple(counter for counter in key.counters if counter.scope.id == id)
    return await _forecast(request, "key", id, [Source(key.tree, own, {"scope": [id]})], {"scope": [id]}, asked)


@router.get("/tenants/{id:path}/usage/forecast", summary="When a tenant's limits will be used up")
async def of_tenant(request: Request, id: str, asked: Queried) -> ForecastAnswer:
    services: Services = request.app.state.services
    current = services.directory.current
    tenant = current.tenants.at.get(id) if current is not None else None
    if tenant is None:
        raise not_found("There is no such tenant.", "id", "tenant_not_found")
    own = tuple(counter for counter in tenant.counters if counter.scope.id == id)
    return await _forecast(request, "tenant", id, [Source(tenant.tree, own, {"scope": [id]})], {"scope": [id]}, asked)


@router.get("/providers/{id:path}/usage/forecast", summary="When the limits of a provider's deployments will be used up")
async def of_provider(request: Request, id: str, asked: Queried) -> ForecastAnswer:
    services: Services = request.app.state.services
    found = {one.id: one for model in services.gateway.policy.models.values() for one in model.deployments if one.provider.name == id}
    if not found:
        raise not_found("There is no such provider in a route.", "id", "provider_not_found")
    return await _forecast(request, "provider", id, _of_deployments(found.values()), {"provider": [id]}, asked)


@router.get("/models/{id:path}/usage/forecast", summary="When the limits of a model's deployments will be used up")
async def of_model(request: Request, id: str, asked: Queried) -> ForecastAnswer:
    services: Services = request.app.state.services
    model = services.gateway.policy.models.get(id)
    if model is None:
        raise not_found("There is no such model.", "id", "model_not_found")
    return await _forecast(request, "model", id, _of_deployments(model.deployments), {"model": [id]}, asked)


def _of_deployments(deployments: Iterable[Deployment]) -> list[Source]:
    return [Source(deployment_tree(one.id), one.counters, {"deployment": [one.id]}) for one in deployments]


async def _forecast(
    request: Request, kind: Kind, id: str, sources: Sequence[Source], filters: dict[str, list[str]], asked: ForecastAsked
) -> ForecastAnswer:
    services: Services = request.app.state.services
    now_ms = services.ledger.now_ms()
    subjects = [subject for source in sources for subject in await _limits(services, source)]
    units = {subject.unit for subject in subjects}
    free = [unit for unit in UNITS[:2] if not units & ({unit} if unit is Unit.USD else set(UNITS[1:]))]
    subjects += [Subject(f"{kind} {id} {unit}/month", id, unit, MONTH, None, filters) for unit in free]
    days: dict[tuple[str, ...], Days] = {}
    for subject in subjects:
        if subject.series() not in days:
            found = await services.records.daily(subject.filters, subject.unit, SAMPLE_DAYS + 1, now_ms)
            days[subject.series()] = [(day, _figure(subject.unit, amount)) for day, amount in found]
    async with request.app.state.forecasting:  # one at a time: it takes a processor
        limits = await asyncio.to_thread(_work_out, subjects, days, now_ms, asked.days)
    return ForecastAnswer(kind=kind, id=id, limits=limits)


async def _limits(services: Services, source: Source) -> list[Subject]:
    """Those of a source that can be used up, with what is used of them. Raises LedgerUnavailable."""
    of = [counter for counter in source.counters if counter.unit in UNITS and counter.limits[0].spends]
    if not of:
        return []
    found = []
    for counter, told in zip(of, await counted(services.ledger, Template(source.tree, of, None)), strict=True):
        filters = source.filters | ({"model": sorted(counter.models)} if counter.models is not None else {})
        assert isinstance(counter.window, Calendar | Fixed | Lifetime)
        found.append(
            Subject(name(counter), counter.scope.id, counter.unit, counter.window, counter.models, filters, float(told["limit"]), float(told["used"]))
        )
    return found


def _figure(unit: Unit, amount: int) -> float:
    return amount / NANO if unit is Unit.USD else float(amount)


# -- in a thread --------------------------------------------------------------------------------------------------------------------------


def _work_out(subjects: Sequence[Subject], days: dict[tuple[str, ...], Days], now_ms: int, shown: int) -> list[LimitForecast]:
    outlooks = {series: outlook([amount for _, amount in of[:-1]], of[-1][1]) for series, of in days.items()}
    return [_limit(subject, days[subject.series()], outlooks[subject.series()], now_ms, shown) for subject in subjects]


def _limit(subject: Subject, days: Days, expected: Outlook, now_ms: int, shown: int) -> LimitForecast:
    window = span(subject.window, now_ms)
    ends_in = (window.end_ms - now_ms) / DAY_MS if window.end_ms else None
    ahead = course(expected, 1 - now_ms % DAY_MS / DAY_MS)
    limit, used = subject.limit, subject.used
    if limit is None:
        used = sum(amount for day, amount in days if day >= f"{window.label}-01")
    at = reached(ahead, limit - used, ends_in) if limit is not None else Reached(None, None, None)
    to_come = used_by(ahead, ends_in) if ends_in is not None else None
    return LimitForecast(
        name=subject.name,
        scope=subject.scope,
        unit=subject.unit,
        window=show_window(subject.window),
        models=sorted(subject.models) if subject.models is not None else None,
        limit=limit,
        current_spend=_rounded(used),
        utilization_percent=None if limit is None else round(100 * used / limit, 2) if limit else 100.0,
        resets_at=iso(window.end_ms) if window.end_ms else None,
        method=expected.fit.method,
        avg_daily=_rounded(expected.avg_daily),
        std_dev_daily=_rounded(expected.std_dev_daily),
        sample_days=expected.sample_days,
        days_until_exhaustion=_rounded(at.point),
        days_until_exhaustion_lower=_rounded(at.lower),
        days_until_exhaustion_upper=_rounded(at.upper),
        projected_exhaustion_date=_date(subject.window, now_ms, at.point) if at.point is not None else None,
        projected_window_spend=_rounded(used + to_come) if to_come is not None else None,
        series=_series(expected, now_ms, shown),
    )


def _series(expected: Outlook, now_ms: int, shown: int) -> Series:
    today = datetime.fromtimestamp(now_ms / 1000, UTC).date()
    return Series(
        dates=[(today + timedelta(days=i)).isoformat() for i in range(shown)],
        point=[_rounded(each) for each in expected.fit.point[:shown]],
        lower=[_rounded(each) for each in expected.lower[:shown]],
        upper=[_rounded(each) for each in expected.upper[:shown]],
        confidence_level=CONFIDENCE,
        used_seasonal_decomposition=expected.fit.method == "mstl_ets",
    )


def _date(window: Calendar | Fixed | Lifetime, now_ms: int, days: float) -> str:
    zone = ZoneInfo(window.tz) if isinstance(window, Calendar) else UTC
    return datetime.fromtimestamp(now_ms / 1000 + days * 86_400, zone).date().isoformat()


@overload
def _rounded(amount: float) -> float: ...
@overload
def _rounded(amount: float | None) -> float | None: ...
def _rounded(amount: float | None) -> float | None:
    """To a billionth, as money is."""
    return None if amount is None else round(amount, 9)
