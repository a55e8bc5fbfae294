"""`/admin/v1/chaos`: makes a deployment fail on purpose for a time, in all workers (chaos.py)."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from pydantic import ConfigDict, Field

from sluicegate.admin.access import Caller, require
from sluicegate.admin.bodies import Answer, Asked, Span, Whole, span_ms
from sluicegate.admin.errors import not_found
from sluicegate.admin.paging import Listing, Paged, of_ids
from sluicegate.admin.services import Services
from sluicegate.chaos import Chaos, Fault
from sluicegate.core.refusals import iso
from sluicegate.reject import Reject

router = APIRouter(prefix="/admin/v1/chaos", tags=["chaos"])

STATUS = 503  # of a failure of which nothing else is said


CutAfter = Annotated[
    str,
    Field(
        pattern=r"^(0|[1-9][0-9]{0,9}) (bytes|events)$",
        description="Bytes of an answer's body, or events of a stream (other answers are then not cut).",
        examples=["3 events"],
    ),
]


class ChaosRequest(Asked):
    """What is to happen. Without any of `latency`, `status` and `cut_after` all calls are answered 503."""

    model_config = ConfigDict(json_schema_extra={"not": {"required": ["status", "cut_after"]}})

    deployment: str = Field(max_length=400, description="Its id: `provider/model`.", examples=["mock/mock-small"])
    latency: Span | None = Field(default=None, description="Passes before the first byte of each answer.")
    failure_rate: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False, description="The share of calls that fail; 1 if not given.")
    status: Annotated[int, Field(ge=400, le=599), Whole] | None = Field(
        default=None, description="What a call that fails is answered; nothing is sent upstream."
    )
    cut_after: CutAfter | None = Field(default=None, description="Behind what the answer to a call that fails breaks off: `3 events`, `200 bytes`.")
    for_: Span = Field(default="60s", alias="for", description="It is over by itself after so long.")


class FaultState(Answer):
    """A fault in force."""

    deployment: str
    latency_ms: int
    failure_rate: float
    status: int | None
    cut_after: str | None
    ends_at: str


class Cleared(Answer):
    """The deployments whose faults were ended."""

    object: str = "chaos.cleared"
    deployments: list[str]


def fault_state(deployment: str, fault: Fault) -> FaultState:
    """A fault as it is shown."""
    return FaultState(
        deployment=deployment,
        latency_ms=fault.latency_ms,
        failure_rate=fault.failure_rate,
        status=fault.status or None,
        cut_after=fault.cut_after or None,
        ends_at=iso(fault.until_ms),
    )


def _fault(asked: ChaosRequest, now_ms: int) -> Fault:
    if asked.status is not None and asked.cut_after is not None:
        raise Reject(400, "invalid_request_error", "invalid_value", "A call that fails is answered 'status' or cut, not both.", "cut_after")
    count, _, of = (asked.cut_after or "").partition(" ")
    fails = asked.status is not None or of != "" or asked.failure_rate is not None or asked.latency is None
    rate = (1.0 if asked.failure_rate is None else asked.failure_rate) if fails else 0.0
    return Fault(
        now_ms + span_ms(asked.for_),
        span_ms(asked.latency) if asked.latency is not None else 0,
        rate,
        0 if of or not fails else asked.status or STATUS,
        int(count) if of == "bytes" else None,
        int(count) if of == "events" else None,
    )


async def _services(request: Request) -> tuple[Services, Chaos]:
    services: Services = request.app.state.services
    if services.chaos is None:
        raise Reject(403, "permission_error", "chaos_off", "Chaos is switched off. Set `admin: {chaos: on}` in the configuration, and restart.")
    return services, services.chaos


Chaotic = Annotated[tuple[Services, Chaos], Depends(_services)]
Operator = Annotated[Caller, require("operator")]


@router.get("", summary="The faults in force", dependencies=[require("viewer")])
async def show(chaotic: Chaotic, page: Paged) -> Listing[FaultState]:
    _, chaos = chaotic
    return of_ids(list(chaos.faults), page, lambda each: fault_state(each, chaos.faults[each]))


@router.post("", summary="Make a deployment fail for a time", status_code=201)
async def make(request: Request, caller: Operator, chaotic: Chaotic, asked: ChaosRequest) -> FaultState:
    services, chaos = chaotic
    if asked.deployment not in services.deployments():
        raise not_found("There is no such deployment in a route; GET /admin/v1/health names them.", "deployment", "deployment_not_found")
    fault = _fault(asked, services.ledger.now_ms())
    before = _shown(chaos, asked.deployment)
    chaos.set(asked.deployment, fault, f"set by {caller.name}")
    services.audit.note(caller, "chaos.set", asked.deployment, before, _shown(chaos, asked.deployment), request)
    return fault_state(asked.deployment, fault)


@router.delete("", summary="End all faults")
async def end_all(request: Request, caller: Operator, chaotic: Chaotic) -> Cleared:
    services, chaos = chaotic
    return _cleared(services, chaos, None, caller, request)


@router.delete("/{deployment:path}", summary="End the fault of one deployment")
async def end(request: Request, caller: Operator, chaotic: Chaotic, deployment: str) -> Cleared:
    services, chaos = chaotic
    if deployment not in services.deployments():
        raise not_found("There is no such deployment in a route; GET /admin/v1/health names them.", "deployment", "deployment_not_found")
    return _cleared(services, chaos, deployment, caller, request)


def _cleared(services: Services, chaos: Chaos, deployment: str | None, caller: Caller, request: Request) -> Cleared:
    before = {each: _shown(chaos, each) for each in chaos.faults}
    cleared = chaos.clear(deployment, f"ended by {caller.name}")
    for each in cleared:
        services.audit.note(caller, "chaos.cleared", each, before[each], None, request)
    return Cleared(deployments=cleared)


def _shown(chaos: Chaos, deployment: str) -> dict[str, Any] | None:
    fault = chaos.faults.get(deployment)
    return fault_state(deployment, fault).model_dump() if fault is not None else None
