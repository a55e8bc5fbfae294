"""`/admin/v1/limits`: which limits there are, how they stand, and corrections of what was used of one; how a key or tenant stands as a whole.

A limit's id is whose it is and what it counts in: `acme/team-a:usd:month`, `deployment:openai/gpt-4o-mini:requests:bucket-minute`. Its amount is not
part of it. Lists are by whose they are, and then by id.

An adjustment is recorded first (records/adjustments.py) and then told to the ledger, in the epoch that it was recorded in. It has an id: whoever got
no answer sends it again with the same one, and it counts once. Whoever takes away is checked against what was used and what others take meanwhile;
where one of these has come first, it is looked at again.
"""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import groupby
from typing import Annotated, Any
from urllib.parse import unquote

import msgspec
from fastapi import APIRouter, Query, Request
from pydantic import Field
from sqlalchemy import Connection

from sluicegate.admin import showing
from sluicegate.admin.access import Admin, Caller, Viewer
from sluicegate.admin.bodies import Answer, Asked, Plain, amount_of
from sluicegate.admin.errors import Error, invalid, not_found
from sluicegate.admin.health import LimitState
from sluicegate.admin.paging import Listing, Page, listing
from sluicegate.admin.paths import checked
from sluicegate.admin.services import Services
from sluicegate.auditing import new_event_id
from sluicegate.core import counters as counting
from sluicegate.core.claims import RefSet, Settlement
from sluicegate.core.plan import Template
from sluicegate.core.refusals import iso
from sluicegate.core.tenants import Counter
from sluicegate.counted import counted
from sluicegate.events import figure
from sluicegate.ledger.contract import LedgerUnavailable
from sluicegate.records import adjustments
from sluicegate.records.adjustments import Adjustment, Moved
from sluicegate.records.audit import Entry
from sluicegate.records.rows import RecordsUnavailable
from sluicegate.reject import Reject

CONFLICT: dict[int | str, dict[str, Any]] = {
    409: {"model": Error, "description": "below_zero; adjustment_exists, adjustment_too_old: of an adjustment with that id."}
}
router = APIRouter(prefix="/admin/v1", tags=["limits"])

IN_FLIGHT_MAX = 5_000  # holds that are counted
HOLDS_AT_ONCE = 1_000
RESENT_MS = 6 * 86_400_000  # the ledger knows for seven days that it has been told
TRIES = 10  # of an adjustment while others are made of the same counter


class LimitStatus(LimitState):
    """id: what it is known by; its amount is not part of it."""

    id: str


class Status(Answer):
    """limits: its own and all above it. in_flight: requests that hold something now, on all replicas; counted up to 5,000."""

    id: str
    limits: list[LimitStatus]
    in_flight: int


class LimitsAsked(Page):
    tenant: Plain = Field(default="", description="Of this tenant, and above it.")
    key: Plain = Field(default="", description="Of this key, and above it.")
    deployment: Plain = Field(default="", description="Of this deployment.")


class AdjustmentRequest(Asked):
    """What is to be added to what was used; negative: taken from it. Dollars are dollars."""

    amount: float = Field(ge=-4_500_000_000_000_000, le=4_500_000_000_000_000, allow_inf_nan=False, examples=[-2.5])
    reason: Annotated[str, Field(min_length=1, max_length=500, pattern=r"^[^\x00-\x1f\x7f]+$", examples=["provider credited an outage"])]
    id: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._-]{1,64}$", description="Sent again with the same one it counts once.")


class AdjustmentState(Answer):
    """One that was made. applied: false where the ledger has not confirmed it: send it again with its id."""

    id: str
    limit: str
    amount: float
    at: str
    actor: str
    reason: str
    applied: bool


class Adjusted(AdjustmentState):
    """limit_status: as it stands now."""

    limit_status: LimitStatus


Place = tuple[str, Counter]  # its tree


def known(services: Services) -> Iterator[Place]:
    """Limits that need no look-up."""
    current = showing.current(services)
    for above in current.tenants.at.values():
        yield from ((above.tree, counter) for counter in above.counters)
    for key in current.by_id.values():
        yield from ((key.tree, counter) for counter in key.counters)
    for model in services.gateway.policy.models.values():
        for one in model.deployments:
            yield from ((counting.deployment_tree(one.id), counter) for counter in one.counters)


async def of_key(services: Services, key_id: str, field: str = "id") -> list[Place]:
    """Its own and those above. field: that names it. Raises Reject."""
    key = await services.directory.look_up(key_id)
    if key is None:
        raise not_found("There is no such key.", field, "key_not_found")
    return [(key.tree, counter) for counter in key.counters]


def of_tenant(services: Services, tenant_id: str, field: str = "id") -> list[Place]:
    """The same of a tenant."""
    above = showing.current(services).tenants.at.get(tenant_id)
    if above is None:
        raise not_found("There is no such tenant.", field, "tenant_not_found")
    return [(above.tree, counter) for counter in above.counters]


async def find(services: Services, limit_id: str) -> Place:
    """By its id, as it is or as it comes out of a URL. Raises Reject."""
    wanted = unquote(checked(limit_id))
    scope = wanted.partition(":")[0]
    places = await of_key(services, scope) if "/@" in scope else known(services)
    found = next((place for place in places if unquote(counting.identity(place[1])) == wanted), None)
    if found is None:
        raise not_found("There is no such limit; GET /admin/v1/limits names them.", "id", "limit_not_found")
    return found


async def statuses(services: Services, places: Iterable[Place]) -> list[LimitStatus]:
    """How they stand. Raises LedgerUnavailable."""
    found: list[LimitStatus] = []
    for tree, some in groupby(places, key=lambda place: place[0]):
        counters = [counter for _, counter in some]
        states = await counted(services.ledger, Template(tree, counters, None))
        found += [LimitStatus(id=counting.identity(counter), **state) for counter, state in zip(counters, states, strict=True)]
    return found


@router.get("/limits", summary="All limits, and how they stand")
async def show_all(request: Request, _caller: Viewer, page: Annotated[LimitsAsked, Query()]) -> Listing[LimitStatus]:
    """By whose they are, and then by id."""
    services: Services = request.app.state.services
    after = _order(page.after.partition("\x00")[0])  # no id has one, and PostgreSQL takes none
    if page.key:
        places = await of_key(services, checked(page.key), "key")
    elif page.tenant:
        places = of_tenant(services, checked(page.tenant), "tenant")
    elif page.deployment:
        places = [place for place in known(services) if place[1].scope.kind == "deployment" and place[1].scope.id == page.deployment]
    else:  # of as many more keys as could all be on the page, beside the one that `after` is of
        places = [*known(services), *await services.directory.limited(after[0], page.limit + 2)]
    by_id = {counting.identity(counter): (tree, counter) for tree, counter in places}
    behind = sorted((id for id in by_id if _order(id) > after), key=_order)
    shown = await statuses(services, [by_id[id] for id in behind[: page.limit]])
    return listing(shown, shown[-1].id if len(behind) > page.limit else None)


def _order(limit_id: str) -> tuple[str, str]:
    return limit_id.partition(":")[0], limit_id


@router.get("/tenants/{id:path}/status", summary="How a tenant stands")
async def tenant_status(request: Request, _caller: Viewer, id: str) -> Status:
    services, id = request.app.state.services, checked(id)
    return await _status(services, id, of_tenant(services, id))


@router.get("/keys/{id:path}/status", summary="How a key stands")
async def key_status(request: Request, _caller: Viewer, id: str) -> Status:
    services, id = request.app.state.services, checked(id)
    return await _status(services, id, await of_key(services, id))


async def _status(services: Services, id: str, places: list[Place]) -> Status:
    return Status(id=id, limits=await statuses(services, places), in_flight=await in_flight(services, id))


async def in_flight(services: Services, id: str) -> int:
    """Open holds of keys that are a key or below a key or tenant."""
    tree, after, found, seen = services.directory.tree_of(id), (0, ""), 0, 0
    while seen < IN_FLIGHT_MAX and (holds := await services.ledger.holds(tree, after, HOLDS_AT_ONCE)):
        seen, after = seen + len(holds), (holds[-1].expires_ms, holds[-1].hold_id)
        keys = [hold.tag.split(" ")[1:2] for hold in holds if hold.state == "open"]
        found += sum(1 for key in keys if key and (key[0] == id or key[0].startswith(id + "/")))
    return found


# -- adjustments --------------------------------------------------------------------------------------------------------------------------


@router.post("/limits/{id:path}/adjust", summary="Correct what was used of a limit", responses=CONFLICT)
async def adjust(request: Request, caller: Admin, id: str, asked: AdjustmentRequest) -> Adjusted:
    """Of this limit alone, in its present window, at once; usage in the records stays what it was, and has this beside it."""
    services: Services = request.app.state.services
    lock: asyncio.Lock = request.app.state.adjusting
    async with lock:  # one after another here: then only other workers come in between
        tree, counter = await find(services, id)
        made = await _make(services, request, caller, tree, counter, asked)
        await _apply(services, counter, made)
    (status,) = await statuses(services, [(tree, counter)])
    return Adjusted(**_shown(msgspec.structs.replace(made, applied=1), counter).model_dump(), limit_status=status)


@router.get("/limits/{id:path}/adjustments", summary="Corrections of a limit")
async def show_adjustments(request: Request, _caller: Viewer, id: str, page: Annotated[Page, Query()]) -> Listing[AdjustmentState]:
    """The newest first."""
    services: Services = request.app.state.services
    _, counter = await find(services, id)
    work = partial(adjustments.of_counter, counter=counting.identity(counter), after=checked(page.after), limit=page.limit + 1)
    rows = await services.directory.store.call(work, reading=True)
    shown = [_shown(row, counter) for row in rows[: page.limit]]
    return listing(shown, shown[-1].id if len(rows) > page.limit else None)


@router.get("/limits/{id:entry}", summary="One limit, and how it stands")
async def show(request: Request, _caller: Viewer, id: str) -> LimitStatus:
    services: Services = request.app.state.services
    (status,) = await statuses(services, [await find(services, id)])
    return status


async def _make(services: Services, request: Request, caller: Caller, tree: str, counter: Counter, asked: AdjustmentRequest) -> Adjustment:
    """The record of it, and the audit log's; or the one that there is. Raises Reject."""
    amount, identity = amount_of(asked.amount, counter.unit), counting.identity(counter)
    if not counter.limits[0].spends:
        raise invalid("What was used of this limit comes back by itself; only limits that do not refill are adjusted.", "id", "not_adjustable")
    if not amount:
        raise invalid("It must be a whole number, not 0; of dollars with nine decimal places at most.", "amount")
    there = await services.directory.store.call(partial(adjustments.one, id=asked.id), reading=True) if asked.id else None
    if there is not None:
        return _asked_for(there, identity, amount)
    id = asked.id or f"adj_{new_event_id()[4:]}"
    for _ in range(TRIES):
        state = services.ledger.trees.get(tree)
        if state is None or not state.open:
            raise LedgerUnavailable("the state of this limit is being recovered")
        row = Adjustment(id, identity, amount, 0, tree, state.epoch, caller.name, asked.reason)
        with suppress(Moved):
            return _asked_for(await _record(services, request, caller, counter, row), identity, amount)
    raise RecordsUnavailable("others adjust the same limit, again and again")


def _asked_for(there: Adjustment, identity: str, amount: int) -> Adjustment:
    """The one with an id, also where another worker has just made it. Raises Reject where it is of another limit or amount."""
    if (there.counter, there.amount) != (identity, amount):
        raise Reject(409, "invalid_request_error", "adjustment_exists", "There is another adjustment with that id.", "id")
    return there


async def _record(services: Services, request: Request, caller: Caller, counter: Counter, row: Adjustment) -> Adjustment:
    """Raises Reject where that takes away more than there is; Moved."""
    ref, call = counting.ref(counter, services.ledger.now_ms()), services.directory.store.call
    before = await call(partial(adjustments.standing, counter=row.counter, epoch=row.epoch, start_ms=ref.start_ms), reading=True)
    reply = await services.ledger.peek(RefSet(row.tree, [ref]))
    used, held = reply.states[0]
    if ref.end_ms and not ref.start_ms <= reply.now_ms < ref.end_ms:
        raise Moved
    if row.amount < 0 and used + before.taking + row.amount < 0:
        message = f"No more than {figure(counter.unit, max(0, used + before.taking)):g} was used of it in this window."
        raise Reject(409, "invalid_request_error", "below_zero", message, "amount")
    row = msgspec.structs.replace(row, at_ms=reply.now_ms)
    entry = _entry(services, request, caller, counter, row, (used, held))

    def work(connection: Connection) -> tuple[Adjustment, bool]:
        made, new = adjustments.make(connection, row, before)
        if new:
            services.audit.write(connection, entry)
        return made, new

    made, new = await call(work)
    if new:
        services.audit.tell(entry)
    return made


async def _apply(services: Services, counter: Counter, made: Adjustment) -> None:
    """Tells the ledger, if it is the one that lacks it. Raises Reject where it does not answer."""
    state, ledger = services.ledger.trees.get(made.tree), services.ledger
    again = f"It is recorded as {made.id!r}: send it again with this id until it is confirmed."
    if made.applied:
        return
    if state is None:
        raise Reject(503, "server_error", "ledger_unavailable", again, headers=((b"retry-after", b"1"),))
    if state.epoch == made.epoch:
        if ledger.now_ms() - made.at_ms > RESENT_MS:
            raise Reject(409, "invalid_request_error", "adjustment_too_old", "It is too old to be sent again; make another one.", "id")
        refs = RefSet(made.tree, [counting.ref(counter, made.at_ms)])
        try:
            settled = await ledger.settle(Settlement(f"adjustment.{made.id}", refs, (made.amount,), "force", made.epoch))
        except LedgerUnavailable:
            raise Reject(503, "server_error", "ledger_unavailable", again, headers=((b"retry-after", b"1"),)) from None
        if settled.marks:
            services.on_marks(refs, settled.marks)
    await services.directory.store.call(partial(adjustments.done, id=made.id))


def _entry(services: Services, request: Request, caller: Caller, counter: Counter, row: Adjustment, state: tuple[int, int]) -> Entry:
    used, held = state
    after = {"limit": row.counter, "used": used + row.amount, "adjustment": row.id, "amount": row.amount}
    entry = services.audit.entry(caller, "limit.adjusted", counter.scope.id, {"used": used}, after, request, reason=row.reason)
    return msgspec.structs.replace(
        entry,
        tenant=entry.tenant if counter.scope.kind != "deployment" else "",
        limit=counting.name(counter),
        unit=counter.unit.value,
        amount=counter.amount,
        used=used + row.amount,
        held=held,
    )


def _shown(row: Adjustment, counter: Counter) -> AdjustmentState:
    return AdjustmentState(
        id=row.id,
        limit=row.counter,
        amount=figure(counter.unit, row.amount),
        at=iso(row.at_ms),
        actor=row.actor,
        reason=row.reason,
        applied=bool(row.applied),
    )
