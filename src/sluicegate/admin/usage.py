"""`/admin/v1/usage` and `/admin/v1/requests`: who has used what, in sums and request by request, from the records.

Sums are those that limits are seeded from, so their totals are the ledger's. What was told in the last second may not be there yet.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query, Request, Response
from pydantic import BeforeValidator, Field, StringConstraints

from sluicegate.admin.access import require
from sluicegate.admin.bodies import Answer
from sluicegate.admin.errors import not_found
from sluicegate.admin.paging import Listing
from sluicegate.admin.questions import Filters, Names
from sluicegate.admin.services import Services
from sluicegate.chargeback import as_csv
from sluicegate.core.labels import read_tags
from sluicegate.core.refusals import iso
from sluicegate.records.queries import Figures, Question

router = APIRouter(prefix="/admin/v1", tags=["usage"], dependencies=[require("viewer")])


def _by_commas(value: object) -> object:
    """`a,b` is `a` and `b`."""
    return [part for each in value for part in str(each).split(",")] if isinstance(value, list) else value


By = Annotated[str, StringConstraints(pattern=r"^(tenant|key|model|deployment|provider|day|hour|label|tag:[^,=\x00]{1,64})$")]


class UsageAsked(Filters, strict=False):
    """What to add up."""

    group_by: Annotated[list[By], BeforeValidator(_by_commas)] = Field(default=[], max_length=9, description="Also by commas: `tenant,model`.")
    format: Literal["json", "csv"] | None = Field(default=None, description="Goes before what `accept` says.")
    after: str = Field(default="", pattern=r"^[0-9]{0,9}$", description="The `next` of the page before.")


class Sums(Answer):
    """requests: all that came with a key. counted: those that limits count. refused: by a limit. throttled: answered 429, whoever's limit it was.
    errors: failed otherwise. Latencies are of answers."""

    requests: int
    counted: int
    attempts: int
    answers: int
    refused: int
    throttled: int
    errors: int
    fallbacks: int
    cache_hits: int
    input_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    output_tokens: int
    reasoning_tokens: int
    cost_usd: float
    saved_usd: float
    p50_ms: float | None
    p95_ms: float | None


class UsageGroup(Sums):
    """group: by what was grouped; empty where a request has none."""

    group: dict[str, str]


class UsageList(Listing[UsageGroup]):
    """total: of all pages."""

    total: Sums


def _figures(figures: Figures) -> dict[str, Any]:
    named = {name: getattr(figures, name) for name in Figures.__struct_fields__ if name in Sums.model_fields}
    money = {"cost_usd": figures.cost_nano_usd / 1e9, "saved_usd": figures.saved_nano_usd / 1e9}
    return {**named, **money, "p50_ms": _thousandth(figures.p50_us), "p95_ms": _thousandth(figures.p95_us)}


def _thousandth(amount: int | None) -> float | None:
    return None if amount is None else amount / 1000


CSV: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/csv": {"schema": {"type": "string"}}}, "description": "A page; as CSV its `next` is in the header `link`."}
}


@router.get("/usage", summary="Who has used what", response_model=UsageList, responses=CSV)
async def usage(request: Request, asked: Annotated[UsageAsked, Query()]) -> Any:
    """As JSON, or as CSV with the columns of `sluicegate report`."""
    return await told(request, asked)


async def told(request: Request, asked: UsageAsked, scope: str = "") -> Any:
    """scope: a key that may see what it and all below it have used, and nothing else."""
    services: Services = request.app.state.services
    names = tuple(dict.fromkeys(asked.group_by))
    question = asked.question(names)
    if scope:
        question = msgspec.structs.replace(question, filters={**question.filters, "scope": [scope]})
    found = await services.records.usage(question, asked.limit, asked.after)
    accept = request.headers.get("accept", "")
    if asked.format == "csv" or (asked.format is None and "text/csv" in accept and "application/json" not in accept):
        following = request.url.include_query_params(after=found.next)
        link = {"link": f'<{following.path}?{following.query}>; rel="next"'} if found.next else None
        return Response(as_csv(names, found.groups), headers=link, media_type="text/csv")
    groups = [UsageGroup(group=one.group, **_figures(one.figures)) for one in found.groups]
    return UsageList(data=groups, has_more=bool(found.next), next=found.next or None, total=Sums(**_figures(found.total)))


# -- request by request -------------------------------------------------------------------------------------------------------------------


class RequestsAsked(Filters, strict=False):
    """Which requests."""

    refusal: Names = Field(default=[], description="Reason of a refusal by a limit: `exhausted`, `rate`, ...")
    error: Names = Field(default=[], description="`error.code` that the client was told.")
    after: str = Field(default="", pattern=r"^([0-9]{1,15}:[!-~]{1,200})?$", description="The `next` of the page before.")

    def question(self, group_by: tuple[str, ...] = ()) -> Question:
        asked = super().question(group_by)
        more = {name: values for name in ("refusal", "error") if (values := getattr(self, name))}
        return Question(asked.group_by, {**asked.filters, **more}, asked.start_ms, asked.end_ms, asked.zone)


class RequestRow(Answer):
    """One request, as docs/records.md has it. tries: calls to deployments. ended: false as long as it is not known how."""

    id: str
    time: str
    tenant: str
    key: str
    model: str
    deployment: str
    provider: str
    dialect: str
    stream: bool
    status: int
    finish: str
    refusal: str
    truncated: str
    error: str
    tries: int
    fell_back: bool
    input_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    output_tokens: int
    reasoning_tokens: int
    source: str
    cost_usd: float
    cost_source: str
    cache: str
    saved_usd: float
    held: int
    latency_ms: float
    first_byte_ms: float
    overhead_ms: float
    waited_ms: float
    client_gone: bool
    user: str
    tags: dict[str, str]
    client_id: str
    shadow: str
    rules: str
    trace_id: str
    ended: bool


class Tried(Answer):
    """One call to a deployment. outcome: its status, or connect, timeout, reset, ...; billed: no, yes, unknown. waited_ms: before it."""

    deployment: str
    outcome: str
    error: str
    billed: str
    duration_ms: float
    waited_ms: float
    input_tokens: int
    output_tokens: int
    cost_usd: float


class RequestAnswer(RequestRow):
    """attempts: in order."""

    attempts: list[Tried]


@router.get("/requests", summary="Requests, the newest first")
async def requests(request: Request, asked: Annotated[RequestsAsked, Query()]) -> Listing[RequestRow]:
    services: Services = request.app.state.services
    found = await services.records.requests(asked.question(), asked.limit, asked.after)
    return Listing[RequestRow](data=[RequestRow(**_row(row)) for row in found.rows], has_more=bool(found.next), next=found.next or None)


@router.get("/requests/{id}", summary="One request with its attempts")
async def one_request(request: Request, id: str) -> RequestAnswer:
    services: Services = request.app.state.services
    row = await services.records.request(id) if "\x00" not in id else None
    if row is None:
        raise not_found("There is no request of that id in the records, or none any more.", "id", "request_not_found")
    return RequestAnswer(**_row(row), attempts=[_tried(each) for each in json.loads(row["attempts"])])


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    told = {name: row[name] for name in RequestRow.model_fields if name in row}
    told |= {name: bool(row[name]) for name in ("stream", "fell_back", "client_gone", "ended")}
    told |= {f"{name}_ms": row[f"{name}_us"] / 1000 for name in ("latency", "first_byte", "overhead", "waited")}
    told |= {"id": row["request_id"], "time": iso(row["time_ms"]), "key": row["key_id"], "user": row["client_user"]}
    return told | {"tags": read_tags(row["tags"]), "cost_usd": row["cost_nano_usd"] / 1e9, "saved_usd": row["saved_nano_usd"] / 1e9}


def _tried(attempt: Mapping[str, Any]) -> Tried:
    """Fields that are nothing are not written."""
    return Tried(
        deployment=attempt["deployment"],
        outcome=attempt["outcome"],
        error=attempt.get("error", ""),
        billed=attempt.get("billed", "no"),
        duration_ms=attempt.get("duration_us", 0) / 1000,
        waited_ms=attempt.get("wait_us", 0) / 1000,
        input_tokens=attempt.get("input_tokens", 0),
        output_tokens=attempt.get("output_tokens", 0),
        cost_usd=attempt.get("cost_nano_usd", 0) / 1e9,
    )
