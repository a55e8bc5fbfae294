"""What one request asks of the counters: plain values that pass between the plan and a ledger.

For a grant of `g` output tokens a request takes `amount(g) = fixed + ceil(rate * g / 1000)` from a counter (ledger.md 2).
A ledger knows nothing of tenants, models or prices: only counters (`Ref`), claims on them, and holds.
"""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

Kind = Literal["b", "s", "w", "o"]  # bucket, sliding, window that does not refill, open (concurrency)


class Ref(msgspec.Struct, frozen=True, gc=False):
    """One counter at one moment. Amounts are integers in the unit of the limit: requests, tokens or nano-USD."""

    key: str  # storage key, window label included; identity of the counter, never its amount
    kind: Kind
    ceiling: int  # the tightest enforced amount; for a bucket its capacity
    start_ms: int = 0  # "w": ledger time must be inside [start_ms, end_ms), else `stale_window`; end_ms 0 = for ever
    end_ms: int = 0
    gain: int = 0  # "b": refills `gain` units every `per_ms`, in lowest terms
    per_ms: int = 0  # "s": length of one of the 60 slices
    reserved: int = 0  # of the ceiling, kept from this claimant's priority: no admission reaches into it, extensions may
    marks: tuple[int, ...] = ()  # "w": amounts of `used` that are worth a warning, ascending


class RefSet:
    """The counters of one (key, model) in their present windows: built once per window, shared by many requests.

    `packed` belongs to the ledger in use: it may keep its encoded form of the static part there.
    """

    __slots__ = ("of", "packed", "refs", "tree")

    def __init__(self, tree: str, refs: Sequence[Ref], of: Sequence[Any] = ()) -> None:
        self.tree = tree  # hash tag: everything that one atomic step touches shares it
        self.refs = tuple(refs)
        self.of = of  # the counters that they refer to, for whoever made it; empty where it was read from a journal
        self.packed: object = None


class Admission(msgspec.Struct, gc=False):
    """A request for a hold. `amounts` is flat: fixed, rate (thousandths of a unit per output token) for each ref in order.

    need: the output there must be room for. want: the most that is granted; aim: what is granted of it while there is room for all, but not plenty.
    1 <= need <= want and 1 <= aim <= want, or all 0 (embeddings). Capped holds pass aim = want.
    """

    hold_id: str
    refs: RefSet
    amounts: tuple[int, ...]
    need: int
    aim: int
    want: int
    ttl_ms: int
    tag: str  # request id, key id, deployment; returned by a sweep
    replacing: str = ""  # an unbilled earlier attempt's hold, given back in the same step; stands if this is refused


class Extension(msgspec.Struct, gc=False):
    """More output for an open hold. `want` and `need` are totals since the start, so a repeat changes nothing.

    `seen` is the output read from the upstream so far, forwarded or not. Renews the expiry, reopens an expired hold.
    """

    hold_id: str
    refs: RefSet
    need: int
    want: int
    seen: int
    ttl_ms: int


class Settlement(msgspec.Struct, gc=False):
    """What was really used, per ref in order (matched by key). Never refused. `concurrent` counters settle to 0.

    mode "settle": an unknown id means already settled. "force": an unknown id is charged (work served without a hold) and a marker stays
    for 7 days. "cancel": nothing was used; an unknown id leaves a marker for 60 s that refuses a late admit.
    epoch: the one that admitted the hold, for those who keep settlements; a ledger settles in the present one.
    """

    hold_id: str
    refs: RefSet
    actual: tuple[int, ...]
    mode: Literal["settle", "force", "cancel"] = "settle"
    epoch: str = ""


class Announcement(msgspec.Struct, gc=False):
    """An open hold, told to a state that was seeded anew: taken up with `g` whatever the ceilings say. Amounts, tag and ttl as in an Admission."""

    hold_id: str
    refs: RefSet
    amounts: tuple[int, ...]
    g: int
    seen: int
    ttl_ms: int
    tag: str


class Seed(msgspec.Struct, gc=False):
    """What one counter begins with. `ref` gives kind, refill and end."""

    ref: Ref
    used: int = 0  # "w": used; "b": deficit
    slices: dict[int, int] = {}  # "s": slice number -> amount


class Reply(msgspec.Struct, gc=False):
    """A ledger's answer to admit and extend.

    status: granted, refused, stale_window (recompute refs at now_ms and ask again), cancelled (a marker refused it), gone (extend: settled).
    g: output tokens the hold covers (total). room: min(want, what would fit); room < want says a limit is nearly used up.
    states, per ref: "w" (used, held), "b" (deficit after refill, 0), "s" (sum, ms until a slice with something in it leaves), "o" (0, held).
    On grant they are the states after it (this hold included), on refusal what stood in the way (this hold, and `replacing`, not included).
    """

    status: Literal["granted", "refused", "stale_window", "cancelled", "gone"]
    now_ms: int
    g: int = 0
    room: int = 0
    states: tuple[tuple[int, int], ...] = ()
    swept: "tuple[Swept, ...]" = ()  # holds whose expiry this admit found and charged


class Settled(msgspec.Struct, gc=False):
    """A ledger's answer to settle. late: the hold had expired, the charge was corrected; `expired` is what its sweep told of it.

    marks: (ref index, mark index) newly reached.
    """

    status: Literal["settled", "already", "late", "forced", "cancelled"]
    now_ms: int
    marks: tuple[tuple[int, int], ...] = ()
    expired: "Swept | None" = None


class Swept(msgspec.Struct, gc=False):
    """One hold that nobody settled and that was charged at its expiry. charged: (counter key, amount) pairs."""

    hold_id: str
    tag: str
    g: int
    seen: int
    charged: tuple[tuple[str, int], ...]


class HoldView(msgspec.Struct):
    """A hold as `ledger show` prints it."""

    hold_id: str
    tag: str
    state: Literal["open", "expired_held", "expired_seen", "forced", "cancelled"]
    g: int
    seen: int
    expires_ms: int
    amounts: tuple[tuple[str, int], ...]  # counter key, held or charged
    claims: tuple[tuple[str, Kind, int, int], ...] = ()  # counter key, kind, fixed, rate: what any other grant would take


class CounterView(msgspec.Struct):
    """A counter as `ledger show` prints it: "w" used and held; "b" deficit; "s" sum; "o" held."""

    key: str
    kind: Kind
    used: int
    held: int
