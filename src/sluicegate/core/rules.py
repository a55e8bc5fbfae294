"""The rules of the ledger, pure and sync: what admit, extend, settle, renew, sweep and the verbs of recovery do to a `Book` of counters and holds.

They are the specification. memory and sqlite run them as they are; the Lua scripts in ledger/lua repeat them step by step, in the same order.
Each verb is a ladder: read all, check all (a named answer on each failed check), then write all. How counters move: core/book.py.

Invariants: `held >= 0`; the sum of open holds of a counter is its `held`; a hold ends exactly once (settled, or charged at its expiry and
perhaps corrected by a late settle); nothing changes on refusal. A settle is never refused.
A verb that writes runs `guarded`: it raises the sequence of its tree's epoch first. Where the state turns out to be lost, the epoch ends for
everybody; what the verb has written by then does not matter, since the seeding wipes it.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from sluicegate.core.book import (
    MARKERS,
    NOTHING,
    Book,
    Hold,
    HoldClaim,
    Lost,
    amount,
    charged,
    found,
    given_back,
    held,
    less,
    make,
    reach,
    replace,
    replace_unknown,
    room_on,
    shift,
    state_of,
    take,
)
from sluicegate.core.claims import Admission, Announcement, Extension, Ref, RefSet, Reply, Seed, Settled, Settlement, Swept

SWEEP_IN_ADMIT = 4
PLENTY = 8  # all of `want` is granted at once when the room is at least this many times it
EXPIRED_KEPT_MS = FORCED_KEPT_MS = 7 * 86_400_000
CANCELLED_KEPT_MS = 60_000

Argument = TypeVar("Argument")
Answer = TypeVar("Answer")


# -- epochs -------------------------------------------------------------------------------------------------------------------------------


def advance(book: Book, tree: str, epoch: str, known: int) -> int:
    """Raises the sequence of an epoch and returns it. 0: the state is lost or rolled back, for the epoch is not there or not above `known`."""
    seq = book.sequence(tree, epoch) + 1
    if seq == 1 or seq <= known:
        book.put_sequence(tree, epoch, 0)
        return 0
    book.put_sequence(tree, epoch, seq)
    return seq


def guarded(book: Book, tree: str, epoch: str, known: int, verb: Callable[[Book, Argument], Answer], argument: Argument) -> tuple[int, Answer | Lost]:
    """Runs a verb that writes, within an epoch. Returns the epoch's sequence and the answer; 0 and why if the state is lost."""
    seq = advance(book, tree, epoch, known)
    if not seq:
        return 0, Lost("the epoch is gone, or behind what was seen of it")
    try:
        return seq, verb(book, argument)
    except Lost as lost:
        book.put_sequence(tree, epoch, 0)
        return 0, lost


def seed(book: Book, tree: str, epoch: str, seeds: Sequence[Seed]) -> int:
    """Begins a new epoch of a tree with these counters and nothing else; returns its sequence."""
    book.clear(tree)
    fill(book, tree, seeds)
    book.put_sequence(tree, epoch, 1)
    return 1


def fill(book: Book, tree: str, seeds: Sequence[Seed]) -> None:
    """Makes those of the counters that are missing. Windows that are there and have used less are raised to it."""
    for one in seeds:
        make(book, tree, one.ref, one.used, one.slices)


def announce(book: Book, a: Announcement) -> None:
    """Takes up an open hold, whatever the ceilings say, unless its id is known. Windows that are over are left out."""
    tree, refs, now_ms = a.refs.tree, a.refs.refs, book.now_ms
    if book.hold(tree, a.hold_id) is not None:
        return
    for ref in refs:
        found(book, tree, ref)
    claims = []
    for i, ref in enumerate(refs):
        if ref.kind == "w" and 0 < ref.end_ms <= now_ms:
            continue
        fixed, rate = a.amounts[2 * i], a.amounts[2 * i + 1]
        take(book, tree, ref, amount(fixed, rate, a.g))
        claims.append(_claim(ref, fixed, rate, now_ms))
    book.put_hold(tree, a.hold_id, Hold(1, "open", a.g, a.seen, a.tag, claims), now_ms + a.ttl_ms)


# -- verbs --------------------------------------------------------------------------------------------------------------------------------


def admit(book: Book, a: Admission) -> Reply:
    """Grants `want`, `aim` of it where room is scarce, or all the room where that is less; refuses where it is below `need`, and changes nothing."""
    swept = _charge_due(book, a.refs.tree, SWEEP_IN_ADMIT)
    try:
        return _admit(book, a, swept)
    except Lost as lost:
        lost.swept = swept
        raise


def _admit(book: Book, a: Admission, swept: tuple[Swept, ...]) -> Reply:
    tree, refs, now_ms = a.refs.tree, a.refs.refs, book.now_ms
    existing = book.hold(tree, a.hold_id)
    if existing is not None and existing.state != "open":
        return Reply("cancelled", now_ms, swept=swept)
    if existing is not None:
        states = [found(book, tree, ref) for ref in refs]
        return Reply("granted", now_ms, existing.g, max(existing.g, a.want), tuple(states), swept)
    for ref in refs:
        if ref.kind == "w" and (now_ms < ref.start_ms or 0 < ref.end_ms <= now_ms):
            return Reply("stale_window", now_ms, swept=swept)

    old = book.hold(tree, a.replacing) if a.replacing else None
    if old is not None and old.state in MARKERS:
        old = None
    states = [found(book, tree, ref) for ref in refs]
    if old is not None:
        back = given_back(old)
        states = [less(book, ref, state, back.get(ref.key)) for ref, state in zip(refs, states, strict=True)]
    room, plenty = a.want, True
    for i, ref in enumerate(refs):
        fixed, rate = a.amounts[2 * i], a.amounts[2 * i + 1]
        free = max(0, room_on(ref, states[i]) - ref.reserved)
        full = amount(fixed, rate, a.want)
        if full > free:
            room = min(room, (free - fixed) * 1000 // rate if rate and free >= fixed else -1)
        plenty = plenty and fixed + PLENTY * (full - fixed) <= free
    if room < a.need:
        return Reply("refused", now_ms, 0, max(room, 0), tuple(states), swept)

    # From here on the admission succeeds.
    g = room if room < a.want else a.want if plenty else a.aim
    if old is not None:
        _end(book, a.refs, a.replacing, old, {})
    claims = []
    for i, ref in enumerate(refs):
        fixed, rate = a.amounts[2 * i], a.amounts[2 * i + 1]
        states[i] = take(book, tree, ref, amount(fixed, rate, g))
        claims.append(_claim(ref, fixed, rate, now_ms))
    book.put_hold(tree, a.hold_id, Hold(1, "open", g, 0, a.tag, claims), now_ms + a.ttl_ms)
    return Reply("granted", now_ms, g, room, tuple(states), swept)


def extend(book: Book, e: Extension) -> Reply:
    """Raises an open hold's grant to at most `want` and at least `need` (totals), or refuses and leaves the grant as it is.

    A window that the hold was announced without, since it was over by then, is not known any more: no more is granted in it.
    """
    tree, refs = e.refs.tree, e.refs.refs
    hold = _record(book, tree, e.hold_id)
    if hold is None or hold.state in MARKERS:
        return Reply("gone", book.now_ms)
    states = {ref.key: (ref, found(book, tree, ref)) for ref in refs}
    if hold.state != "open":
        _reopen(book, hold)
        states = {ref.key: (ref, state_of(book, ref)) for ref in refs}
    hold.seen = max(hold.seen, e.seen)
    room, claimed = e.want, 0
    for claim in hold.claims:
        if claim.key not in states:
            continue
        claimed += 1
        if claim.kind != "w" or not claim.rate:
            continue
        free = room_on(*states[claim.key]) + held(hold, claim)
        if amount(claim.fixed, claim.rate, e.want) > free:
            room = min(room, (free - claim.fixed) * 1000 // claim.rate if free >= claim.fixed else -1)
    if claimed < len(refs) and _left_out(book, hold, e.refs):
        room = min(room, hold.g)
    granted = hold.g >= e.need or room >= e.need
    if room > hold.g and granted:
        for claim in hold.claims:
            more = amount(claim.fixed, claim.rate, room) - held(hold, claim)
            if claim.kind == "w" and more:
                shift(book, claim, 0, more)
        hold.g = room
    book.put_hold(tree, e.hold_id, hold, book.now_ms + e.ttl_ms)
    after = tuple(state_of(book, ref) for ref in refs)
    return Reply("granted" if granted else "refused", book.now_ms, hold.g, max(room, hold.g), after)


def peek(book: Book, refs: RefSet) -> Reply:
    """The states of counters, changing nothing: what `GET /v1/usage` shows."""
    return Reply("granted", book.now_ms, states=tuple(state_of(book, ref) for ref in refs.refs))


def settle(book: Book, s: Settlement) -> Settled:
    """Replaces a hold by what was used. Never refused; may exceed the hold: debt on refilling counters, an overrun on others."""
    tree, now_ms = s.refs.tree, book.now_ms
    actual = {} if s.mode == "cancel" else {ref.key: used for ref, used in zip(s.refs.refs, s.actual, strict=True)}
    hold = _record(book, tree, s.hold_id)
    if hold is None and s.mode == "cancel":
        book.put_hold(tree, s.hold_id, Hold(1, "cancelled", 0, 0, "", []), now_ms + CANCELLED_KEPT_MS)
        return Settled("cancelled", now_ms)
    if s.mode == "force" and (hold is None or hold.state == "cancelled"):  # cancelled: its admit timed out, then it was served all the same
        _end(book, s.refs, "", Hold(1, "open", 0, 0, "", []), actual)
        book.put_hold(tree, s.hold_id, Hold(1, "forced", 0, 0, "", []), now_ms + FORCED_KEPT_MS)
        return Settled("forced", now_ms, warn(book, s.refs))
    if hold is None or hold.state in MARKERS:
        return Settled("already", now_ms)
    expired = _swept(s.hold_id, hold) if hold.state != "open" else None
    _end(book, s.refs, s.hold_id, hold, actual)
    if s.mode == "force":  # sent again, it would charge an id that is unknown by then
        book.put_hold(tree, s.hold_id, Hold(1, "forced", 0, 0, "", []), now_ms + FORCED_KEPT_MS)
    return Settled("late" if expired else "cancelled" if s.mode == "cancel" else "settled", now_ms, warn(book, s.refs), expired)


def warn(book: Book, refs: RefSet) -> tuple[tuple[int, int], ...]:
    """(ref index, mark index) of the marks that were reached and that nobody was told of: each mark of a window is told once."""
    told: list[tuple[int, int]] = []
    for i, ref in enumerate(refs.refs):
        if ref.marks:
            told += ((i, mark) for mark in reach(book, ref))
    return tuple(told)


def renew(book: Book, tree: str, hold_ids: list[str], ttl_ms: int) -> None:
    """Puts off the expiry of open holds and reopens expired ones; ignores others."""
    for hold_id in hold_ids:
        hold = book.hold(tree, hold_id)
        if hold is None or hold.state in MARKERS:
            continue
        if hold.state != "open":
            _reopen(book, hold)
        book.put_hold(tree, hold_id, hold, book.now_ms + ttl_ms)


def sweep(book: Book, tree: str, limit: int) -> tuple[Swept, ...]:
    """Charges holds whose expiry has passed (`concurrent` is released, refilling counters keep what they took); forgets old records."""
    book.trim(tree)
    return _charge_due(book, tree, limit)


# -- steps --------------------------------------------------------------------------------------------------------------------------------


def _claim(ref: Ref, fixed: int, rate: int, now_ms: int) -> HoldClaim:
    return HoldClaim(ref.key, ref.kind, fixed, rate, now_ms // ref.per_ms if ref.kind == "s" else now_ms if ref.kind == "b" else 0)


def _record(book: Book, tree: str, hold_id: str) -> Hold | None:
    """Missing means settled, unless all records are missing."""
    hold = book.hold(tree, hold_id)
    if hold is None and book.holds_lost(tree):
        raise Lost("the records of holds are missing")
    return hold


def _charge_due(book: Book, tree: str, limit: int) -> tuple[Swept, ...]:
    swept = []
    for hold_id, hold in _due(book, tree, limit):
        if hold.state != "open":
            book.drop_hold(tree, hold_id)
            continue
        hold.state = book.expired_state
        for claim in hold.claims:
            if claim.kind in ("w", "o"):
                shift(book, claim, charged(hold, claim), -held(hold, claim))
        book.put_hold(tree, hold_id, hold, book.now_ms + EXPIRED_KEPT_MS)
        swept.append(_swept(hold_id, hold))
    return tuple(swept)


def _due(book: Book, tree: str, limit: int) -> list[tuple[str, Hold]]:
    """Holds whose expiry has passed. One that has an expiry and no record was lost."""
    holds = []
    for hold_id in book.due(tree, limit):
        hold = book.hold(tree, hold_id)
        if hold is None:
            raise Lost("the record of a hold is missing")
        holds.append((hold_id, hold))
    return holds


def _swept(hold_id: str, hold: Hold) -> Swept:
    """What is told of a hold that has expired."""
    return Swept(hold_id, hold.tag, hold.g, hold.seen, tuple((claim.key, charged(hold, claim)) for claim in hold.claims))


def _reopen(book: Book, hold: Hold) -> None:
    """An expired hold whose worker lives after all: what was charged is held again, whatever the ceiling says."""
    for claim in hold.claims:
        if claim.kind in ("w", "o"):
            shift(book, claim, -charged(hold, claim), held(hold, claim))
    hold.state = "open"


def _left_out(book: Book, hold: Hold, refs: RefSet) -> bool:
    """Whether a window that is over is named and not claimed."""
    claimed = {claim.key for claim in hold.claims}
    return any(ref.kind == "w" and 0 < ref.end_ms <= book.now_ms and ref.key not in claimed for ref in refs.refs)


def _end(book: Book, refs: RefSet, hold_id: str, hold: Hold, actual: dict[str, int]) -> None:
    """Ends a hold at `actual` per counter (0 where not named): gives back what it held or was charged, adds what was used."""
    back = given_back(hold)
    known = {ref.key for ref in refs.refs}
    for ref in refs.refs:
        replace(book, refs.tree, ref, back.get(ref.key) or NOTHING, actual.get(ref.key, 0))
    for claim in hold.claims:
        if claim.key not in known:
            replace_unknown(book, claim, back[claim.key])
    if hold_id:
        book.drop_hold(refs.tree, hold_id)
