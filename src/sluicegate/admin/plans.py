"""`/admin/v1/plan`: what would happen to a request now, at this worker. Nothing is called, held or changed, whatever is asked."""

from typing import Any, Literal

import msgspec
from fastapi import APIRouter, Request
from pydantic import Field

from sluicegate.admin.access import Operator
from sluicegate.admin.bodies import Answer, Asked, Id
from sluicegate.admin.errors import invalid, not_found
from sluicegate.admin.services import Services
from sluicegate.core.limits import Unit
from sluicegate.dialects.form import BadRequest
from sluicegate.ledger.contract import LedgerUnavailable
from sluicegate.planning import DIALECTS, Logged, Planner, Running
from sluicegate.reject import ledger_unavailable

router = APIRouter(prefix="/admin/v1", tags=["plan"])


class Planning(Asked):
    key: Id = Field(description="The id of a key.", examples=["acme/team-a/@laptop"])
    dialect: Literal["chat", "completions", "embeddings", "messages", "responses"] = "chat"
    request: dict[str, Any] = Field(description="The body of a request, as a client would send it.")


class Claim(Answer):
    """What it would take from one limit; dollars are nano-USD."""

    limit: str
    unit: Unit
    takes: int
    used: int
    held: int
    of: int


class Place(Answer):
    """A deployment of the route. cooldown_s: for which it is left alone; full: its own limit that has no room."""

    id: str
    breaker: Literal["closed", "open", "probing"]
    cooldown_s: float | None
    health: Literal["unknown", "healthy", "degraded", "down"]
    full: str


class PlanAnswer(Answer):
    """status, code, message: what the client would be told. rules: content rules that bind it; acted: names of banned phrases that it has; changed:
    parameters that rules set otherwise; request: as they make it, masked, empty if they leave it as it is. cache: what the cache does, and why.
    deployment: that would be asked first, or refused last; `cache` for a hit. grant: output tokens that would be held. affordable_output_tokens: for
    which there is room. prompt: as the request log has it."""

    object: Literal["plan"] = "plan"
    key: str
    path: list[str]
    allowed: bool
    status: int
    code: str
    message: str
    retry_after_s: int | None
    limited_by: str
    rules: list[str]
    acted: list[str]
    changed: list[str]
    request: str
    cache: Literal["off", "hit", "miss", "skip"]
    cache_why: str
    deployments: list[Place]
    deployment: str
    input_tokens: int
    output_tokens: int
    claims: list[Claim]
    grant: int
    cost_at_most_nano_usd: int | None
    price: str
    affordable_output_tokens: int
    prompt: str


@router.post("/plan", summary="What would happen to a request now")
async def plan(request: Request, caller: Operator, asked: Planning) -> PlanAnswer:
    """As this worker sees it: breakers are its own, and so is a cache in memory."""
    services: Services = request.app.state.services
    gateway, dialect = services.gateway, DIALECTS[asked.dialect]
    key = await services.directory.look_up(asked.key)
    if key is None:
        raise not_found("There is no such key.", "key", "key_not_found")
    body = msgspec.json.encode(asked.request)
    try:
        read = dialect.read_request(body)
    except BadRequest as error:
        raise invalid(error.message, f"request.{error.param}" if error.param else "request", error.code or "invalid_value") from None
    running = Running(gateway.standings, services.probes.state, gateway.caching.store.get, services.clock)
    log = services.loaded().config.log
    planner = Planner(gateway.policy, services.ledger, gateway.learned, gateway.plans, Logged(log.prompts, log.patterns), _nothing, running)
    try:
        report = await planner.report(key, dialect, read, len(body), {})
    except LedgerUnavailable:
        raise ledger_unavailable() from None
    return PlanAnswer(**msgspec.to_builtins(report))


async def _nothing() -> None:
    """This worker learns by itself."""
