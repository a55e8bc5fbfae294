"""`/admin/v1/health` and `/admin/v1/breakers`: how the gateway and its deployments are, as one worker sees them; and that one is well again."""

import asyncio
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request

from sluicegate import __version__
from sluicegate.admin.access import Operator, require
from sluicegate.admin.bodies import Answer
from sluicegate.admin.errors import not_found
from sluicegate.admin.faults import FaultState, fault_state
from sluicegate.admin.paging import Listing, Paged, of_ids
from sluicegate.admin.services import Services
from sluicegate.config.check import oversubscribed
from sluicegate.core.counters import deployment_tree
from sluicegate.core.plan import Template
from sluicegate.core.tenants import Deployment, Policy
from sluicegate.counted import counted
from sluicegate.ledger.contract import LedgerUnavailable

router = APIRouter(prefix="/admin/v1", tags=["health"], dependencies=[require("viewer")])


class Cooldown(Answer):
    """It is left alone. limited: for a limit, and not since it is broken or our account there no good."""

    for_s: float
    limited: bool


class Breaker(Answer):
    """Of one worker. failures: requests in a row that it failed."""

    deployment: str
    state: Literal["closed", "open", "probing"]
    failures: int
    cooldown: Cooldown | None


class LimitState(Answer):
    """Amounts are in the limit's unit; dollars are dollars. remaining: null where the limit only counts (`shadow`)."""

    name: str
    scope: str
    unit: str
    window: str
    models: list[str] | None
    mode: Literal["enforce", "shadow"]
    limit: float
    used: float
    held: float
    remaining: float | None
    resets_at: str | None


class DeploymentHealth(Answer):
    """latency_ms: of its probes. limits: its own, with what is used of them; null while the ledger does not answer."""

    id: str
    provider: str
    models: list[str]
    health: Literal["unknown", "healthy", "degraded", "down"]
    latency_ms: float | None
    breaker: Breaker
    limits: list[LimitState] | None
    chaos: FaultState | None


class Trees(Answer):
    """Trees of tenants and deployments: closed ones take no requests, since what was used of them is being recovered."""

    open: int
    closed: int


class HealthAnswer(Answer):
    """worker: who answers; breakers are each worker's own. why_not_ready: empty if it is. states: of the parts it stands on, `up` or what else.
    oversubscribed: where keys may ask for more than a deployment's own limits let through."""

    object: Literal["health"] = "health"
    version: str
    worker: str
    ready: bool
    why_not_ready: str
    in_flight: int
    states: dict[str, str]
    trees: Trees
    deployments: list[DeploymentHealth]
    oversubscribed: list[str]


class Oversubscription:
    """Where a policy is oversubscribed: worked out once for each, beside the loop, since it looks at every key."""

    def __init__(self) -> None:
        self._of: Policy | None = None
        self._found: list[str] = []

    async def of(self, policy: Policy) -> list[str]:
        if policy is not self._of:
            self._found = await asyncio.to_thread(lambda: list(oversubscribed(policy)))
            self._of = policy
        return self._found


async def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


Serving = Annotated[Services, Depends(_services)]


@router.get("/health", summary="How the gateway and its deployments are")
async def health(request: Request, services: Serving) -> HealthAnswer:
    policy, closed, why_not = services.gateway.policy, services.recovery.closed, services.why_not_ready()
    models = services.deployments()
    deployments = {one.id: one for model in policy.models.values() for one in model.deployments}
    limits = await asyncio.gather(*(_limits(services, one) for one in deployments.values()))
    return HealthAnswer(
        version=__version__,
        worker=services.worker,
        ready=not why_not,
        why_not_ready=why_not,
        in_flight=len(services.gateway.trips),
        states=services.states(),
        trees=Trees(open=services.recovery.known - closed, closed=closed),
        deployments=[_deployment(services, one, models[one.id], own) for one, own in zip(deployments.values(), limits, strict=True)],
        oversubscribed=await request.app.state.oversubscription.of(policy),
    )


@router.get("/breakers", summary="The breaker and cooldown of each deployment")
async def breakers(services: Serving, page: Paged) -> Listing[Breaker]:
    return of_ids(list(services.deployments()), page, lambda each: _breaker(services, each))


@router.post("/breakers/{deployment:path}/reset", summary="Let a deployment be called again")
async def reset(request: Request, services: Serving, caller: Operator, deployment: str) -> Breaker:
    """At once, at all workers: its breaker is closed and its cooldown over. If it still fails, both come again. What probes find of it stays."""
    if deployment not in services.deployments():
        raise not_found("There is no such deployment.", "deployment", "deployment_not_found")
    before = _breaker(services, deployment)
    services.reset(deployment, f"reset by {caller.name}")
    after = _breaker(services, deployment)
    services.audit.note(caller, "breaker.reset", deployment, before.model_dump(), after.model_dump(), request)
    return after


async def _limits(services: Services, deployment: Deployment) -> list[dict[str, Any]] | None:
    if not deployment.counters:
        return []
    try:
        return await counted(services.ledger, Template(deployment_tree(deployment.id), deployment.counters, None))
    except LedgerUnavailable:
        return None


def _deployment(services: Services, one: Deployment, models: list[str], limits: list[dict[str, Any]] | None) -> DeploymentHealth:
    fault = services.chaos.faults.get(one.id) if services.chaos is not None else None
    return DeploymentHealth(
        id=one.id,
        provider=one.provider.name,
        models=models,
        health=services.probes.state(one.id),
        latency_ms=services.probes.latency_ms(one.id),
        breaker=_breaker(services, one.id),
        limits=[LimitState(**each) for each in limits] if limits is not None else None,
        chaos=fault_state(one.id, fault) if fault is not None else None,
    )


def _breaker(services: Services, deployment: str) -> Breaker:
    standing, now = services.gateway.standings.of(deployment), services.clock()
    left_s = standing.cool_until_s - now
    cooldown = Cooldown(for_s=round(left_s, 3), limited=standing.limited) if left_s > 0 else None
    return Breaker(deployment=deployment, state=standing.state, failures=standing.failures, cooldown=cooldown)
