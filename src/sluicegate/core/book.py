"""What the rules of the ledger work on: holds, counters, the book that keeps them, and how each kind of counter moves.

Counter states, by kind:
    w  [used, held], then, once a mark was told, a bit for each mark that was
    o  [0, held]
    b  [deficit, remainder, time_ms, full_ms]   x = elapsed * gain + remainder, gained = x div per_ms, remainder = x mod per_ms; above the
                                                capacity: debt; full_ms: when the bucket was last full
    s  {slice number: amount}                   a slice counts whole while any part of it is inside the last 60

A counter that is not there stands at zero. For a window that is right only if it is new, so each tree has an index of its windows; one that the
index knows and that is gone was lost (`Lost`), never unused. A bucket, a sliding window or concurrency that is gone cannot be told from an idle one.
"""

from typing import Literal, Protocol

import msgspec

from sluicegate.core.claims import Kind, Ref, Swept

SLICES = 60
COUNTER_GRACE_MS = 3_600_000  # a counter outlives its window by an hour

HoldState = Literal["open", "expired_held", "expired_seen", "forced", "cancelled"]
MARKERS = ("forced", "cancelled")  # states of records that hold nothing: they only remember how an id ended
Counter = list[int] | dict[int, int]


class HoldClaim(msgspec.Struct, array_like=True, gc=False):
    """What one hold took from one counter. slot: for a sliding window the slice that admitted it, for a bucket the time when it did."""

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


class Lost(Exception):
    """The state of a tree is lost or rolled back. swept: what was charged before that was noticed."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.swept: tuple[Swept, ...] = ()


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

    def sequence(self, tree: str, epoch: str) -> int:
        """0: there is no such epoch."""
        ...

    def put_sequence(self, tree: str, epoch: str, seq: int) -> None:
        """0: the epoch ends."""
        ...

    def index(self, tree: str, key: str, expires_ms: int) -> None:
        """Notes a window that is made. expires_ms as of its counter."""
        ...

    def expected(self, tree: str, key: str) -> bool:
        """Whether a window that is not there should be: the index knows it, or was lost itself."""
        ...

    def trim(self, tree: str) -> None:
        """Takes windows that have expired out of the index."""
        ...

    def holds_lost(self, tree: str) -> bool:
        """Whether a record that is not there may have been lost with all others."""
        ...

    def clear(self, tree: str) -> None:
        """Wipes everything of a tree and begins a new index and new records; no epoch is left."""
        ...


# -- holds --------------------------------------------------------------------------------------------------------------------------------


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


class Back(msgspec.Struct, gc=False):
    """What ending a hold at nothing used gives back to one counter: from `used` (or deficit, or a slice), from `held`. slot: as the claim's."""

    used: int
    held: int
    slot: int


NOTHING = Back(0, 0, 0)


def given_back(hold: Hold) -> dict[str, Back]:
    back = {}
    for claim in hold.claims:
        taken = held(hold, claim)
        if claim.kind in ("b", "s"):
            back[claim.key] = Back(taken, 0, claim.slot)
        elif hold.state == "open":
            back[claim.key] = Back(0, taken, 0)
        else:
            back[claim.key] = Back(charged(hold, claim), 0, 0)
    return back


# -- reading counters ---------------------------------------------------------------------------------------------------------------------


def state_of(book: Book, ref: Ref) -> tuple[int, int]:
    """See Reply.states."""
    if ref.kind == "b":
        return _refilled(book, ref)[0], 0
    if ref.kind == "s":
        slices = _slices(book, ref)
        return sum(slices.values()), (min(slices) + SLICES + 1) * ref.per_ms - book.now_ms if slices else 0
    counter = book.counter(ref.key)
    return (counter[0], counter[1]) if counter else (0, 0)


def found(book: Book, tree: str, ref: Ref) -> tuple[int, int]:
    """The state of a counter that decides: raises Lost rather than take a window that is gone for a new one."""
    if ref.kind != "w":
        return state_of(book, ref)
    counter = book.counter(ref.key)
    if counter is None and book.expected(tree, ref.key):
        raise Lost("a counter is missing, or the index of counters")
    return (counter[0], counter[1]) if counter else (0, 0)


def less(book: Book, ref: Ref, before: tuple[int, int], back: Back | None) -> tuple[int, int]:
    """A counter's state as if `back` had been given back."""
    if back is None:
        return before
    if ref.kind == "b":
        return (max(0, before[0] - back.used), 0) if _refilled(book, ref)[3] <= back.slot else before
    if ref.kind == "s":
        return (max(0, before[0] - back.used), before[1]) if back.slot >= book.now_ms // ref.per_ms - SLICES else before
    return max(0, before[0] - back.used), max(0, before[1] - back.held)


def room_on(ref: Ref, state: tuple[int, int]) -> int:
    """Room on a counter; negative while an overrun is not repaid."""
    return ref.ceiling - state[0] - (state[1] if ref.kind in ("w", "o") else 0)


def refilled(ref: Ref, deficit: int, remainder: int, elapsed_ms: int) -> tuple[int, int]:
    """Deficit and remainder of a bucket after so long."""
    x = elapsed_ms * ref.gain + remainder
    deficit -= x // ref.per_ms
    return (deficit, x % ref.per_ms) if deficit > 0 else (0, 0)


def _refilled(book: Book, ref: Ref) -> list[int]:
    """A bucket now. Time never runs backwards; a full bucket keeps no remainder."""
    counter = book.counter(ref.key)
    if not counter:
        return [0, 0, book.now_ms, book.now_ms]
    before_ms, full_ms = counter[2], counter[3]
    time_ms = max(book.now_ms, before_ms)
    deficit, remainder = refilled(ref, counter[0], counter[1], time_ms - before_ms)
    return [deficit, remainder, time_ms, full_ms if deficit else time_ms]


def _slices(book: Book, ref: Ref) -> dict[int, int]:
    counter = book.counter(ref.key) or {}
    oldest = book.now_ms // ref.per_ms - SLICES
    return {slot: n for slot, n in counter.items() if slot >= oldest and n > 0}  # type: ignore[union-attr]


# -- moving counters ----------------------------------------------------------------------------------------------------------------------


def take(book: Book, tree: str, ref: Ref, n: int) -> tuple[int, int]:
    """Takes n from a counter; returns its state after that."""
    if ref.kind == "b":
        return _put_bucket(book, ref, n), 0
    if ref.kind == "s":
        _put_slice(book, ref, book.now_ms // ref.per_ms, n)
        return state_of(book, ref)
    counter = book.counter(ref.key)
    used, held = (counter[0], counter[1] + n) if counter else (0, n)
    if ref.kind == "o":
        _put_open(book, ref.key, held)
    else:
        _put_window(book, tree, ref, counter, used, held)
    return used, held


def shift(book: Book, claim: HoldClaim, used: int, held: int) -> None:
    """Moves a "w" or "o" counter by its claim alone. A window that is forgotten stays so: made anew without its end it would never expire."""
    counter = book.counter(claim.key)
    if claim.kind == "o":
        _put_open(book, claim.key, max(0, (counter[1] if counter else 0) + held))
    elif counter:
        book.put_counter(claim.key, "w", _window(counter, max(0, counter[0] + used), max(0, counter[1] + held)), None)


def replace(book: Book, tree: str, ref: Ref, back: Back, actual: int) -> None:
    """Gives a counter back what a hold took, and adds what was used."""
    if ref.kind == "b":
        more = actual - back.used
        # One that has been full meanwhile has forgotten that claim: giving it back would be giving it twice.
        if more > 0 or (more < 0 and _refilled(book, ref)[3] <= back.slot):
            _put_bucket(book, ref, more)
    elif ref.kind == "s":
        more = actual - back.used
        if more < 0 and back.slot >= book.now_ms // ref.per_ms - SLICES:
            _put_slice(book, ref, back.slot, more)
        elif more > 0:  # an overrun counts from now, so that it is repaid in full
            _put_slice(book, ref, book.now_ms // ref.per_ms, more)
    elif ref.end_ms and book.now_ms >= expiry_ms(ref):
        return  # the window is long over and its counter forgotten
    else:
        used, held = found(book, tree, ref)
        held = max(0, held - back.held)
        if ref.kind == "o":
            _put_open(book, ref.key, held)
        else:
            _put_window(book, tree, ref, book.counter(ref.key), max(0, max(0, used - back.used) + actual), held)


def replace_unknown(book: Book, claim: HoldClaim, back: Back) -> None:
    """Gives back to a counter that the caller no longer names; its refill figures are not known, its state is."""
    counter = book.counter(claim.key)
    if isinstance(counter, dict):
        if claim.slot in counter:
            book.put_counter(claim.key, "s", {**counter, claim.slot: max(0, counter[claim.slot] - back.used)}, None)
    elif claim.kind == "b":
        if counter and counter[3] <= claim.slot:
            book.put_counter(claim.key, "b", [max(0, counter[0] - back.used), *counter[1:]], None)
    else:
        shift(book, claim, -back.used, -back.held)


def reach(book: Book, ref: Ref) -> list[int]:
    """Marks of a window that `used` has reached and that nobody was told of; now somebody is."""
    counter = book.counter(ref.key)
    if not counter or ref.kind != "w" or counter[0] < ref.marks[0]:
        return []
    told = counter[2] if len(counter) > 2 else 0
    new = [mark for mark, at in enumerate(ref.marks) if counter[0] >= at and not told >> mark & 1]
    if new:
        book.put_counter(ref.key, "w", [counter[0], counter[1], told | sum(1 << mark for mark in new)], None)
    return new


def make(book: Book, tree: str, ref: Ref, used: int, slices: dict[int, int]) -> None:
    """Makes a counter that is not there, as it would be had it counted this. A window that is there has used at least this from now on; any other
    counter that is there, or is expected to be, stays as it is."""
    there = book.counter(ref.key)
    if there is not None:
        if ref.kind == "w" and there[0] < used:
            _put_window(book, tree, ref, there, used, there[1])
        return
    if ref.kind == "b" and used > 0:
        _put_bucket(book, ref, used)
    elif ref.kind == "s" and slices:
        book.put_counter(ref.key, "s", {**slices}, _slices_expiry_ms(book, ref))
    elif ref.kind == "w" and not (ref.end_ms and book.now_ms >= expiry_ms(ref)) and not book.expected(tree, ref.key):
        _put_window(book, tree, ref, None, used, 0)


def expiry_ms(ref: Ref) -> int:
    """When a window's counter may be forgotten; 0 = never."""
    return ref.end_ms + COUNTER_GRACE_MS if ref.end_ms else 0


def _put_window(book: Book, tree: str, ref: Ref, before: Counter | None, used: int, held: int) -> None:
    """before: the counter as it is; None: it is new."""
    if before is None:
        book.index(tree, ref.key, expiry_ms(ref))
        book.put_counter(ref.key, "w", [used, held], expiry_ms(ref))
    else:
        book.put_counter(ref.key, "w", _window(before, used, held), None)


def _window(before: Counter, used: int, held: int) -> list[int]:
    """Marks that were told stay told."""
    return [used, held] if len(before) == 2 else [used, held, before[2]]


def _put_open(book: Book, key: str, held: int) -> None:
    """Concurrency is forgotten while there is none."""
    book.put_counter(key, "o", [0, held], 0 if held else book.now_ms)


def _put_bucket(book: Book, ref: Ref, more: int) -> int:
    """Takes from (or gives back to) a bucket at its present level; returns its deficit. It is forgotten when it would be full."""
    deficit, remainder, time_ms, full_ms = _refilled(book, ref)
    deficit += more
    if deficit > 0:
        book.put_counter(ref.key, "b", [deficit, remainder, time_ms, full_ms], time_ms + -(-deficit * ref.per_ms // ref.gain) + 1)
    else:
        book.put_counter(ref.key, "b", [0, 0, time_ms, time_ms], book.now_ms)
    return max(0, deficit)


def _put_slice(book: Book, ref: Ref, slot: int, more: int) -> None:
    slices = _slices(book, ref)
    slices[slot] = max(0, slices.get(slot, 0) + more)
    book.put_counter(ref.key, "s", slices, _slices_expiry_ms(book, ref))


def _slices_expiry_ms(book: Book, ref: Ref) -> int:
    return (book.now_ms // ref.per_ms + SLICES + 1) * ref.per_ms
