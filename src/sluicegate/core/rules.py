"""The rules of the ledger, pure and sync: admit, extend, settle, renew, sweep over a `Book` of counters and holds.

They are the specification. memory and sqlite run them as they are; the Lua scripts in ledger/lua repeat them step by step, in the same order.
Each verb is a ladder: read all, check all (a named answer on each failed check), then write all.

Invariants: `held >= 0`; the sum of open holds of a counter is its `held`; a hold ends exactly once (settled, or charged at its expiry and
perhaps corrected by a late settle); nothing changes on refusal. A settle is never refused.

Counter states, by kind:
    w  [used, held]                      o  [0, held]
    b  [deficit, remainder, time_ms]     x = elapsed * gain + remainder, gained = x div per_ms, remainder = x mod per_ms; above the capacity: debt
    s  {slice number: amount}            a slice counts whole while any part of it is inside the last 60
"""

from typing import Literal, Protocol

import msgspec

from sluicegate.core.claims import Admission, Extension, Kind, Ref, RefSet, Reply, Settled, Settlement, Swept

SLICES = 60
SWEEP_IN_ADMIT = 4
PLENTY = 8  # all of `want` is granted at once when the room is at least this many times it
COUNTER_GRACE_MS = 3_600_000  # a counter outlives its window by an hour
EXPIRED_KEPT_MS = FORCED_KEPT_MS = 7 * 86_400_000
CANCELLED_KEPT_MS = 60_000

HoldState = Literal["open", "expired_held", "expired_seen", "forced", "cancelled"]
MARKERS = ("forced", "cancelled")  # states of records that hold nothing: they only remember how an id ended
Counter = list[int] | dict[int, int]


class HoldClaim(msgspec.Struct, array_like=True, gc=False):
    """What one hold took from one counter. slot: for a sliding window, the slice that admitted it."""

    key: str
    kind: Kind
    fixed: int
    rate: int
    slot: int = 0


class Hold(msgspec.Struct, array_like=True, gc=False):
    """A hold record. Held and charged amounts are derived from it, never stored."""

    version: int
    state: HoldState
    g: int
    seen: int
    tag: str
    claims: list[HoldClaim]


class Book(Protocol):
    """Where counters and holds are kept. One verb runs on it at a time; writes take effect together."""

    now_ms: int
    expired_state: Literal["expired_held", "expired_seen"]

    def counter(self, key: str) -> Counter | None: ...
    def put_counter(self, key: str, kind: Kind, counter: Counter, expires_ms: int | None) -> None:
        """expires_ms 0: never; None: stays as it is (the counter exists). Once it has expired it is not there."""
        ...

    def hold(self, tree: str, hold_id: str) -> Hold | None: ...
    def put_hold(self, tree: str, hold_id: str, hold: Hold, expires_ms: int) -> None: ...
    def drop_hold(self, tree: str, hold_id: str) -> None: ...
    def due(self, tree: str, limit: int) -> list[str]:
        """Ids whose expiry is at or before now, oldest first, then by id."""
        ...


def amount(fixed: int, rate: int, g: int) -> int:
    """What a grant of g output tokens takes from a counter."""
    return fixed + -(-rate * g // 1000)


def held(hold: Hold, claim: HoldClaim) -> int:
    """What an open hold holds, or on refilling counters took, of one counter."""
    return amount(claim.fixed, claim.rate, hold.g)


def charged(hold: Hold, claim: HoldClaim) -> int:
    """What the expiry of a hold charges, or has charged, to one counter. Refilling counters keep what they took."""
    if claim.kind == "o":
        return 0
    return amount(claim.fixed, claim.rate, hold.seen if hold.state == "expired_seen" and claim.kind == "w" else hold.g)


# -- verbs --------------------------------------------------------------------------------------------------------------------------------


def admit(book: Book, a: Admission) -> Reply:
    """Grants the largest g in [need, want] for which every counter has room, or refuses and changes nothing."""
    swept = sweep(book, a.refs.tree, SWEEP_IN_ADMIT)
    refs, now_ms = a.refs.refs, book.now_ms
    existing = book.hold(a.refs.tree, a.hold_id)
    if existing is not None and existing.state != "open":
        return Reply("cancelled", now_ms, swept=swept)
    if existing is not None:
        return Reply("granted", now_ms, existing.g, max(existing.g, a.want), tuple(_state(book, ref) for ref in refs), swept)
    for ref in refs:
        if ref.kind == "w" and (now_ms < ref.start_ms or 0 < ref.end_ms <= now_ms):
            return Reply("stale_window", now_ms, swept=swept)

    old = book.hold(a.refs.tree, a.replacing) if a.replacing else None
    if old is not None and old.state in MARKERS:
        old = None
    back = _given_back(old) if old is not None else {}
    states: list[tuple[int, int]] = []
    room, plenty = a.want, True
    for i, ref in enumerate(refs):
        fixed, rate = a.amounts[2 * i], a.amounts[2 * i + 1]
        state = _less(ref, _state(book, ref), back.get(ref.key), now_ms) if back else _state(book, ref)
        states.append(state)
        free = max(0, _free(ref, state))
        full = amount(fixed, rate, a.want)
        if full > free:
            room = min(room, (free - fixed) * 1000 // rate if rate and free >= fixed else -1)
        plenty = plenty and fixed + PLENTY * (full - fixed) <= free
    if room < a.need:
        return Reply("refused", now_ms, 0, max(room, 0), tuple(states), swept)

    # From here on the admission succeeds.
    g = room if room < a.want else a.want if plenty else max(a.need, a.aim)
    if old is not None:
        _end(book, a.refs, a.replacing, old, {})
    claims = []
    for i, ref in enumerate(refs):
        fixed, rate = a.amounts[2 * i], a.amounts[2 * i + 1]
        states[i] = _take(book, ref, amount(fixed, rate, g))
        claims.append(HoldClaim(ref.key, ref.kind, fixed, rate, now_ms // ref.per_ms if ref.kind == "s" else 0))
    book.put_hold(a.refs.tree, a.hold_id, Hold(1, "open", g, 0, a.tag, claims), now_ms + a.ttl_ms)
    return Reply("granted", now_ms, g, room, tuple(states), swept)


def extend(book: Book, e: Extension) -> Reply:
    """Raises an open hold's grant to at most `want` and at least `need` (totals), or refuses and leaves the grant as it is."""
    hold = book.hold(e.refs.tree, e.hold_id)
    if hold is None or hold.state in MARKERS:
        return Reply("gone", book.now_ms)
    if hold.state != "open":
        _reopen(book, hold)
    hold.seen = max(hold.seen, e.seen)
    ceilings = {ref.key: ref for ref in e.refs.refs}
    room = e.want
    for claim in hold.claims:
        ref = ceilings.get(claim.key)
        if claim.kind != "w" or not claim.rate or ref is None:
            continue
        free = _free(ref, _state(book, ref)) + amount(claim.fixed, claim.rate, hold.g)
        if amount(claim.fixed, claim.rate, e.want) > free:
            room = min(room, (free - claim.fixed) * 1000 // claim.rate if free >= claim.fixed else -1)
    granted = hold.g >= e.need or room >= e.need
    if room > hold.g and granted:
        for claim in hold.claims:
            more = amount(claim.fixed, claim.rate, room) - amount(claim.fixed, claim.rate, hold.g)
            if claim.kind == "w" and more:
                _shift(book, claim, 0, more)
        hold.g = room
    book.put_hold(e.refs.tree, e.hold_id, hold, book.now_ms + e.ttl_ms)
    states = tuple(_state(book, ref) for ref in e.refs.refs)
    return Reply("granted" if granted else "refused", book.now_ms, hold.g, max(room, hold.g), states)


def peek(book: Book, refs: RefSet) -> Reply:
    """The states of counters, changing nothing: what `GET /v1/usage` shows."""
    return Reply("granted", book.now_ms, states=tuple(_state(book, ref) for ref in refs.refs))


def settle(book: Book, s: Settlement) -> Settled:
    """Replaces a hold by what was used. Never refused; may exceed the hold: debt on refilling counters, an overrun on others."""
    tree, now_ms = s.refs.tree, book.now_ms
    actual = {} if s.mode == "cancel" else {ref.key: used for ref, used in zip(s.refs.refs, s.actual, strict=True)}
    hold = book.hold(tree, s.hold_id)
    if hold is None and s.mode == "cancel":
        book.put_hold(tree, s.hold_id, Hold(1, "cancelled", 0, 0, "", []), now_ms + CANCELLED_KEPT_MS)
        return Settled("cancelled", now_ms)
    if s.mode == "force" and (hold is None or hold.state == "cancelled"):  # cancelled: its admit timed out, then it was served all the same
        _end(book, s.refs, "", Hold(1, "open", 0, 0, "", []), actual)
        book.put_hold(tree, s.hold_id, Hold(1, "forced", 0, 0, "", []), now_ms + FORCED_KEPT_MS)
        return Settled("forced", now_ms)
    if hold is None or hold.state in MARKERS:
        return Settled("already", now_ms)
    late = hold.state != "open"
    _end(book, s.refs, s.hold_id, hold, actual)
    if s.mode == "force":  # sent again, it would charge an id that is unknown by then
        book.put_hold(tree, s.hold_id, Hold(1, "forced", 0, 0, "", []), now_ms + FORCED_KEPT_MS)
    return Settled("late" if late else "cancelled" if s.mode == "cancel" else "settled", now_ms)


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
    swept = []
    for hold_id in book.due(tree, limit):
        hold = book.hold(tree, hold_id)
        if hold is None or hold.state != "open":
            book.drop_hold(tree, hold_id)
            continue
        hold.state = book.expired_state
        charges = []
        for claim in hold.claims:
            charge = charged(hold, claim)
            if claim.kind in ("w", "o"):
                _shift(book, claim, charge, -held(hold, claim))
            charges.append((claim.key, charge))
        book.put_hold(tree, hold_id, hold, book.now_ms + EXPIRED_KEPT_MS)
        swept.append(Swept(hold_id, hold.tag, hold.g, hold.seen, tuple(charges)))
    return tuple(swept)


# -- steps --------------------------------------------------------------------------------------------------------------------------------


class _Back(msgspec.Struct, gc=False):
    """What ending a hold at nothing used gives back to one counter: from `used` (or deficit, or a slice), from `held`."""

    used: int
    held: int
    slot: int


def _given_back(hold: Hold) -> dict[str, _Back]:
    back = {}
    for claim in hold.claims:
        taken = held(hold, claim)
        if claim.kind in ("b", "s"):
            back[claim.key] = _Back(taken, 0, claim.slot)
        elif hold.state == "open":
            back[claim.key] = _Back(0, taken, 0)
        else:
            back[claim.key] = _Back(charged(hold, claim), 0, 0)
    return back


def _less(ref: Ref, state: tuple[int, int], back: _Back | None, now_ms: int) -> tuple[int, int]:
    """A counter's state as if `back` had been given back."""
    if back is None or (ref.kind == "s" and back.slot < now_ms // ref.per_ms - SLICES):
        return state
    if ref.kind in ("b", "s"):
        return max(0, state[0] - back.used), state[1]
    return max(0, state[0] - back.used), max(0, state[1] - back.held)


def _free(ref: Ref, state: tuple[int, int]) -> int:
    """Room on a counter; negative while an overrun is not repaid."""
    return ref.ceiling - state[0] - (state[1] if ref.kind in ("w", "o") else 0)


def _pair(book: Book, key: str) -> tuple[int, int]:
    counter = book.counter(key)
    return (counter[0], counter[1]) if counter else (0, 0)


def _refilled(book: Book, ref: Ref) -> list[int]:
    """A bucket now: [deficit, remainder, time_ms]. Time never runs backwards; a full bucket keeps no remainder."""
    counter = book.counter(ref.key)
    if not counter:
        return [0, 0, book.now_ms]
    deficit, remainder, time_ms = counter[0], counter[1], counter[2]
    x = max(0, book.now_ms - time_ms) * ref.gain + remainder
    deficit -= x // ref.per_ms
    return [deficit, x % ref.per_ms, max(book.now_ms, time_ms)] if deficit > 0 else [0, 0, max(book.now_ms, time_ms)]


def _slices(book: Book, ref: Ref) -> dict[int, int]:
    counter = book.counter(ref.key) or {}
    oldest = book.now_ms // ref.per_ms - SLICES
    return {slot: n for slot, n in counter.items() if slot >= oldest and n > 0}  # type: ignore[union-attr]


def _state(book: Book, ref: Ref) -> tuple[int, int]:
    """See Reply.states."""
    if ref.kind == "b":
        return _refilled(book, ref)[0], 0
    if ref.kind == "s":
        slices = _slices(book, ref)
        return sum(slices.values()), (min(slices) + SLICES + 1) * ref.per_ms - book.now_ms if slices else 0
    return _pair(book, ref.key)


def _take(book: Book, ref: Ref, n: int) -> tuple[int, int]:
    """Takes n from a counter; returns its state after that."""
    if ref.kind in ("w", "o"):
        used, held = _pair(book, ref.key)
        _put_pair(book, ref.key, ref.kind, (used, held + n), _expiry(ref))
        return used, held + n
    if ref.kind == "b":
        return _put_bucket(book, ref, n), 0
    _put_slice(book, ref, book.now_ms // ref.per_ms, n)
    return _state(book, ref)


def _shift(book: Book, claim: HoldClaim, used: int, held: int) -> None:
    """Moves a "w" or "o" counter by its claim alone. A window that is forgotten stays so: made anew without its end it would never expire."""
    if claim.kind == "o" or book.counter(claim.key):
        before = _pair(book, claim.key)
        _put_pair(book, claim.key, claim.kind, (max(0, before[0] + used), max(0, before[1] + held)), None)


def _put_pair(book: Book, key: str, kind: Kind, pair: tuple[int, int], expires_ms: int | None) -> None:
    """Concurrency is forgotten while there is none."""
    if kind == "o":
        expires_ms = 0 if pair[1] else book.now_ms
    book.put_counter(key, kind, [*pair], expires_ms)


def _expiry(ref: Ref) -> int:
    """When a window's counter may be forgotten; 0 = never."""
    return ref.end_ms + COUNTER_GRACE_MS if ref.end_ms else 0


def _put_bucket(book: Book, ref: Ref, more: int) -> int:
    """Takes from (or gives back to) a bucket at its present level; returns its deficit. It is forgotten when it would be full."""
    deficit, remainder, time_ms = _refilled(book, ref)
    deficit += more
    if deficit > 0:
        book.put_counter(ref.key, "b", [deficit, remainder, time_ms], time_ms + -(-deficit * ref.per_ms // ref.gain) + 1)
    else:
        book.put_counter(ref.key, "b", [0, 0, time_ms], book.now_ms)
    return max(0, deficit)


def _put_slice(book: Book, ref: Ref, slot: int, more: int) -> None:
    slices = _slices(book, ref)
    slices[slot] = max(0, slices.get(slot, 0) + more)
    book.put_counter(ref.key, "s", slices, (book.now_ms // ref.per_ms + SLICES + 1) * ref.per_ms)


def _reopen(book: Book, hold: Hold) -> None:
    """An expired hold whose worker lives after all: what was charged is held again, whatever the ceiling says."""
    for claim in hold.claims:
        if claim.kind in ("w", "o"):
            _shift(book, claim, -charged(hold, claim), held(hold, claim))
    hold.state = "open"


def _end(book: Book, refs: RefSet, hold_id: str, hold: Hold, actual: dict[str, int]) -> None:
    """Ends a hold at `actual` per counter (0 where not named): gives back what it held or was charged, adds what was used."""
    back = _given_back(hold)
    known = {ref.key: ref for ref in refs.refs}
    for ref in refs.refs:
        _replace(book, ref, back.get(ref.key) or _Back(0, 0, 0), actual.get(ref.key, 0))
    for claim in hold.claims:
        if claim.key not in known:
            _replace_unknown(book, claim, back[claim.key])
    if hold_id:
        book.drop_hold(refs.tree, hold_id)


def _replace(book: Book, ref: Ref, back: _Back, actual: int) -> None:
    if ref.kind == "b":
        if actual != back.used:
            _put_bucket(book, ref, actual - back.used)
    elif ref.kind == "s":
        more = actual - back.used
        if more < 0 and back.slot >= book.now_ms // ref.per_ms - SLICES:
            _put_slice(book, ref, back.slot, more)
        elif more > 0:  # an overrun counts from now, so that it is repaid in full
            _put_slice(book, ref, book.now_ms // ref.per_ms, more)
    elif ref.end_ms and book.now_ms >= _expiry(ref):
        return  # the window is long over and its counter forgotten
    else:
        used, held = _pair(book, ref.key)
        if ref.kind == "o":
            actual = 0
        _put_pair(book, ref.key, ref.kind, (max(0, used - back.used) + actual, max(0, held - back.held)), _expiry(ref))


def _replace_unknown(book: Book, claim: HoldClaim, back: _Back) -> None:
    """Gives back to a counter that the caller no longer names; its refill figures are not known, its state is."""
    counter = book.counter(claim.key)
    if isinstance(counter, dict):
        if claim.slot in counter:
            book.put_counter(claim.key, "s", {**counter, claim.slot: max(0, counter[claim.slot] - back.used)}, None)
    elif claim.kind == "b":
        if counter:
            book.put_counter(claim.key, "b", [max(0, counter[0] - back.used), *counter[1:]], None)
    else:
        _shift(book, claim, -back.used, -back.held)
