"""`/admin/v1/holds`: what requests hold of limits, and the end of a hold that nobody ends.

To settle a hold is to let it expire now: it is charged what it held, as any hold that nobody settles is in the end, and told to the records by
whoever sweeps it. If its request lives after all, it takes the hold up again at its next renewal, and what it really used counts: nothing is lost by
settling too early. With `output_tokens` the charge is then corrected as the request itself would have done, and the hold is gone; that is refused
while a worker renews it.
"""

import asyncio
from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Query, Request
from pydantic import Field

from sluicegate.admin.access import Operator, Viewer
from sluicegate.admin.bodies import Answer, Asked, Plain, Whole
from sluicegate.admin.errors import Error, invalid, not_found
from sluicegate.admin.limits import known
from sluicegate.admin.paging import Listing, Page, listing
from sluicegate.admin.paths import checked
from sluicegate.admin.services import Services
from sluicegate.core import counters as counting
from sluicegate.core import expired
from sluicegate.core.book import amount
from sluicegate.core.claims import HoldView, Kind, Ref, RefSet, Settlement, Swept
from sluicegate.core.limits import Unit
from sluicegate.core.record import Spent
from sluicegate.core.refusals import iso
from sluicegate.core.rules import EXPIRED_KEPT_MS
from sluicegate.core.tenants import Counter
from sluicegate.events import figure
from sluicegate.ledger.contract import LedgerUnavailable
from sluicegate.reject import Reject

router = APIRouter(prefix="/admin/v1/holds", tags=["holds"])

AT_ONCE = 1_000
ROUNDS_MAX = 20  # of reading, where most of what is read is not shown; and of sweeping
POLL_S = 0.02
POLLS_MAX = 100


class Held(Answer):
    """What it holds, or was charged, of one counter; dollars are dollars."""

    counter: str
    unit: str
    amount: float


class HoldState(Answer):
    """A hold. Beside that of its key a request has another one where its deployment has limits of its own, which names neither key nor model.

    granted: output tokens that it covers; seen: that were read at the last extension. expires_at: unless it is renewed, which a worker that lives
    does; expired_at: then it was charged. age_s: since its request came.
    """

    id: str
    state: Literal["open", "expired"]
    request_id: str
    key_id: str | None
    deployment: str
    model: str | None
    age_s: float | None
    granted: int
    seen: int
    input_tokens: int | None
    expires_at: str | None
    expired_at: str | None
    amounts: list[Held]


class HoldsAsked(Page):
    after: str = Field(default="", pattern=r"^([^ \x00-\x1f]{1,400} [0-9]{1,15} [!-~]{1,200})?$", description="The `next` of the page before.")
    tree: Plain = Field(default="", description="Of this organization; of a deployment's own limits `d/provider/model`.")


class Settling(Asked):
    output_tokens: Annotated[int, Field(ge=0, le=2**31), Whole] | None = Field(
        default=None, description="What it produced; all that it held if not given."
    )


class Settled(Answer):
    """hold: as it was when it was asked for. charged: what it was charged in the end."""

    object: Literal["hold.settled"] = "hold.settled"
    hold: HoldState
    charged: list[Held]


@router.get("", summary="Open and expired holds")
async def show_all(request: Request, _caller: Viewer, page: Annotated[HoldsAsked, Query()]) -> Listing[HoldState]:
    """By tree, and in the order in which they expire. Expired ones stay for a week, in which a late settlement corrects them."""
    services: Services = request.app.state.services
    trees = sorted(tree for tree in services.ledger.trees if page.tree in ("", tree))
    first, after = _place(page.after)
    found: list[tuple[str, HoldView]] = []
    for tree in (tree for tree in trees if tree >= first):
        place = after if tree == first else (0, "")
        for _ in range(ROUNDS_MAX):
            some = await services.ledger.holds(tree, place, AT_ONCE)
            found += [(tree, hold) for hold in some if hold.state in ("open", "expired_held", "expired_seen")]
            if not some or len(found) > page.limit:
                break
            place = some[-1].expires_ms, some[-1].hold_id
        if len(found) > page.limit:
            break
    shown = found[: page.limit]
    following = f"{shown[-1][0]} {shown[-1][1].expires_ms} {shown[-1][1].hold_id}" if len(found) > page.limit else None
    return listing([_shown(services, tree, hold) for tree, hold in shown], following)


def _place(after: str) -> tuple[str, tuple[int, str]]:
    tree, expires_ms, hold_id = after.split(" ") if after else ("", "0", "")
    return tree, (int(expires_ms), hold_id)


@router.post("/{id:path}/settle", summary="End a hold", responses={409: {"model": Error, "description": "hold_alive: a worker renews it."}})
async def settle(request: Request, caller: Operator, id: str, asked: Settling | None = None) -> Settled:
    """It is charged all that it held, or what is said here. Doing it again changes nothing."""
    services: Services = request.app.state.services
    tree, _, hold_id = checked(id).rpartition(":")
    hold = await services.ledger.hold(tree, hold_id) if tree in services.ledger.trees else None
    if hold is None or not hold.claims:
        raise not_found("There is no such hold: it has ended, or never was.", "id", "hold_not_found")
    output = asked.output_tokens if asked is not None else None
    if output is not None:
        _check(services, hold, output)
    before = _shown(services, tree, hold)
    swept = await _expire(services, tree, hold)
    charged = swept.amounts if output is None else await _correct(services, tree, swept, output)
    result = [_held(key, taken) for key, taken in charged]
    after = {"charged": {held.counter: held.amount for held in result}, "output_tokens": output}
    services.audit.note(caller, "hold.settled", hold_id, before.model_dump(), after, request)
    return Settled(hold=before, charged=result)


def _check(services: Services, hold: HoldView, output: int) -> None:
    if output > hold.g:
        raise invalid(f"It held {hold.g} output tokens, and no more can have been produced.", "output_tokens")
    ttl_ms, left_ms = services.gateway.policy.budget.hold_ttl_ms, hold.expires_ms - services.ledger.now_ms()
    # Of one that has expired, by hand perhaps: within a ttl a worker that lives takes it up again.
    waits_ms = left_ms - ttl_ms // 2 if hold.state == "open" else ttl_ms + left_ms - EXPIRED_KEPT_MS
    if waits_ms > 0:
        message = "A worker may renew it: then its request is running, and says itself what it has used. Try again if nobody does any more."
        raise Reject(409, "invalid_request_error", "hold_alive", message, "id", ((b"retry-after", str(waits_ms // 1000 + 1).encode()),))


async def _expire(services: Services, tree: str, hold: HoldView) -> HoldView:
    """The hold, charged. Raises LedgerUnavailable."""
    if hold.state == "open":
        await services.ledger.renew(tree, [hold.hold_id], 0)
    for _ in range(ROUNDS_MAX):
        now = await services.ledger.hold(tree, hold.hold_id) if hold.state == "open" else hold
        if now is None:  # its request has ended it
            raise not_found("It has just been settled by its own request.", "id", "hold_not_found")
        if now.state != "open":
            return now
        await services.sweep()
    raise LedgerUnavailable("the hold is not swept")


async def _correct(services: Services, tree: str, hold: HoldView, output: int) -> list[tuple[str, int]]:
    """As a late settlement of the request itself would. What it was charged in the end, by counter."""
    charge_seen, swept_ms = services.gateway.policy.budget.expired_hold == "charge_seen", hold.expires_ms - EXPIRED_KEPT_MS
    told = expired.read(_swept(hold), charge_seen, swept_ms).spent  # None: another hold of the same attempt has told it
    counters = await _counters(services, tree, told.key_id if told is not None else "")
    refs = [ref for key, *_ in hold.claims if (ref := _ref(counters, key, services.ledger.now_ms())) is not None]
    by_key = {key: _actual(key, kind, fixed, rate, output, told.input_tokens if told is not None else 0) for key, kind, fixed, rate in hold.claims}
    actual = tuple(by_key[ref.key] for ref in refs)
    spent = None
    if told is not None:
        usd = max((by_key[ref.key] for ref in refs if _unit(ref.key) is Unit.USD), default=0)
        spent = msgspec.structs.replace(told, output_tokens=output, cost_nano_usd=usd)
    recorded = told is not None and await _is_recorded(services, hold, told)
    state = services.ledger.trees.get(tree)
    if state is None:
        raise LedgerUnavailable("the state of its limits is being recovered")
    services.outbox.settle(Settlement(hold.hold_id, RefSet(tree, refs), actual, "settle", state.epoch), None, None if recorded else spent)
    if recorded and told is not None and spent is not None:
        services.outbox.spend(tree, hold.hold_id, _less(spent, told))
    for _ in range(POLLS_MAX):
        if await services.ledger.hold(tree, hold.hold_id) is None:
            return list(zip((ref.key for ref in refs), actual, strict=True))
        await asyncio.sleep(POLL_S)
    raise LedgerUnavailable("it is in the journal, and the ledger has not taken it yet")


async def _is_recorded(services: Services, hold: HoldView, told: Spent) -> bool:
    """Whether the records have what the sweep told: then the difference can be taken back, and otherwise only as much as the hold really used."""
    await services.outbox.flush()
    row = await services.records.request(hold.tag.partition(" ")[0])
    return row is not None and row["output_tokens"] >= told.output_tokens and row["input_tokens"] >= told.input_tokens


def _less(spent: Spent, told: Spent) -> Spent:
    """What is to be added so that the one stands in place of the other, in the windows of the other."""
    amounts = ("requests", "attempts", "input_tokens", "output_tokens", "cost_nano_usd")
    return msgspec.structs.replace(told, **{name: getattr(spent, name) - getattr(told, name) for name in amounts})


async def _counters(services: Services, tree: str, key_id: str) -> dict[str, Counter]:
    """Those of a tree, and of one key, by what their storage keys begin with."""
    found = {counter.key_prefix: counter for its, counter in known(services) if its == tree}
    key = await services.directory.look_up(key_id) if key_id else None
    return found | {counter.key_prefix: counter for counter in (key.counters if key is not None else ())}


def _ref(counters: dict[str, Counter], key: str, now_ms: int) -> Ref | None:
    """A counter in the present window, or in the one before; None: it is in neither, so that nobody asks what is used of it any more."""
    counter = counting.of_key(key, counters)
    if counter is None:
        return None
    ref = counting.ref(counter, now_ms)
    if ref.key != key and ref.start_ms:
        ref = counting.ref(counter, ref.start_ms - 1)
    return ref if ref.key == key else None


def _actual(key: str, kind: Kind, fixed: int, rate: int, output: int, input_tokens: int) -> int:
    """What so much output takes of a counter. Of what refills a claim has all that was aimed at in one figure."""
    unit = _unit(key)
    if unit is Unit.CONCURRENT:
        return 0
    if kind == "w" or unit not in (Unit.TOKENS, Unit.OUTPUT_TOKENS):
        return amount(fixed, rate, output)
    return output + (input_tokens if unit is Unit.TOKENS else 0)


def _unit(key: str) -> Unit:
    return Unit(key.split(":")[4])


def _swept(hold: HoldView) -> Swept:
    return Swept(hold.hold_id, hold.tag, hold.g, hold.seen, hold.amounts)


def _held(key: str, taken: int) -> Held:
    return Held(counter=key.partition("}:c:")[2], unit=_unit(key).value, amount=figure(_unit(key), taken))


def _shown(services: Services, tree: str, hold: HoldView) -> HoldState:
    found, words = expired.read(_swept(hold), False, 0), hold.tag.split(" ")
    spent, is_open = found.spent, hold.state == "open"
    return HoldState(
        id=f"{tree}:{hold.hold_id}",
        state="open" if is_open else "expired",
        request_id=found.request_id,
        key_id=found.key_id or None,
        deployment=found.deployment,
        model=spent.model if spent is not None else None,
        age_s=round(max(0, services.time_ms() - int(words[5])) / 1000, 3) if len(words) > 5 else None,
        granted=hold.g,
        seen=hold.seen,
        input_tokens=spent.input_tokens if spent is not None else None,
        expires_at=iso(hold.expires_ms) if is_open else None,
        expired_at=iso(hold.expires_ms - EXPIRED_KEPT_MS) if not is_open else None,
        amounts=[_held(key, taken) for key, taken in hold.amounts],
    )
