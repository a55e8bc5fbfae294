"""`/admin/v1/{keys,tenants}/{id}/increases`: a limit has more for a time, and then what it had, by itself. What was used stays used."""

from fastapi import APIRouter, Request
from pydantic import Field

from sluicegate.admin import showing
from sluicegate.admin.access import Admin, Caller, Viewer
from sluicegate.admin.bodies import Asked, Id, Plain, When, amount_of, when_ms
from sluicegate.admin.errors import invalid, not_found
from sluicegate.admin.limits import find
from sluicegate.admin.paging import Listing, Page, Paged, of_ids
from sluicegate.admin.paths import checked
from sluicegate.admin.services import Services
from sluicegate.admin.showing import Deleted, Increase
from sluicegate.core.counters import identity
from sluicegate.records.directory_rows import IncreaseRow, Missing
from sluicegate.reject import Reject

router = APIRouter(prefix="/admin/v1", tags=["increases"])


class IncreaseRequest(Asked):
    """How much more, of which of its own limits, and until when. Dollars are dollars."""

    limit: Id = Field(description="Its id, with or without whose it is.", examples=["usd:month"])
    by: float = Field(gt=0, le=4_500_000_000_000_000, allow_inf_nan=False, examples=[50])
    until: When
    reason: Plain = ""


@router.post("/tenants/{id:path}/increases", summary="Give a tenant's limit more for a time", status_code=201)
async def of_tenant(request: Request, caller: Admin, id: str, asked: IncreaseRequest) -> Increase:
    return await _make(request, caller, id, asked)


@router.post("/keys/{id:path}/increases", summary="Give a key's limit more for a time", status_code=201)
async def of_key(request: Request, caller: Admin, id: str, asked: IncreaseRequest) -> Increase:
    return await _make(request, caller, id, asked)


async def _make(request: Request, caller: Caller, id: str, asked: IncreaseRequest) -> Increase:
    services, id = request.app.state.services, checked(id)
    wanted = asked.limit if asked.limit.startswith(f"{id}:") else f"{id}:{asked.limit}"
    try:
        _, counter = await find(services, wanted)
    except Reject as rejected:
        if rejected.code == "limit_not_found":
            await _there(services, id)
            raise invalid("It is none of its own limits.", "limit") from None
        raise
    amount = amount_of(asked.by, counter.unit)
    if amount is None:
        raise invalid("It must be a whole number; of dollars with nine decimal places at most.", "by")
    limit, until_ms = identity(counter).removeprefix(f"{id}:"), when_ms(asked.until, services.time_ms())
    witness = services.audit.witness(caller, "limit.increased", id, request, reason=asked.reason)
    change = await services.changes.increase(id, limit, amount, until_ms, asked.reason, witness=witness)
    assert change.after is not None
    return showing.increase(IncreaseRow(**change.after))


@router.get("/tenants/{id:path}/increases", summary="What a tenant's limits have more for a time")
async def show_of_tenant(request: Request, _caller: Viewer, id: str, page: Paged) -> Listing[Increase]:
    return await _listed(request, id, page)


@router.get("/keys/{id:path}/increases", summary="What a key's limits have more for a time")
async def show_of_key(request: Request, _caller: Viewer, id: str, page: Paged) -> Listing[Increase]:
    return await _listed(request, id, page)


async def _listed(request: Request, id: str, page: Page) -> Listing[Increase]:
    services, id = request.app.state.services, checked(id)
    await _there(services, id)
    by_id = {one.id: one for one in showing.increases(services, id)}
    return of_ids(list(by_id), page, lambda each: by_id[each])


async def _there(services: Services, id: str) -> None:
    """Raises Missing, Reject."""
    if "/@" in id:
        await showing.key(services, id)
    else:
        showing.tenant(services, id)


@router.delete("/tenants/{id:path}/increases/{increase}", summary="End it now")
async def end_of_tenant(request: Request, caller: Admin, id: str, increase: str) -> Deleted:
    return await _end(request, caller, id, increase)


@router.delete("/keys/{id:path}/increases/{increase}", summary="End it now")
async def end_of_key(request: Request, caller: Admin, id: str, increase: str) -> Deleted:
    return await _end(request, caller, id, increase)


async def _end(request: Request, caller: Caller, id: str, increase: str) -> Deleted:
    services, id, increase = request.app.state.services, checked(id), checked(increase)
    witness = services.audit.witness(caller, "limit.increase_ended", id, request)
    try:
        await services.changes.remove_increase(increase, id, witness=witness)
    except Missing:
        raise not_found("It has no such increase.", "increase", "increase_not_found") from None
    return Deleted(object="increase.deleted", id=increase)
