"""An auditor for simulations: it keeps its own books from what was asked and answered, shares no code with core/rules.py, and checks the ledger.

For each window it knows what each hold holds and what each ended hold was charged; for each bucket it keeps an exact level as a fraction; for each
sliding window every event. A difference, a broken bound or a hold that ends twice is an AssertionError.
"""

from collections import defaultdict
from fractions import Fraction
from math import ceil

from sluicegate.core.claims import Admission, Extension, Ref, Reply, Settlement, Swept

GRACE_MS = 3_600_000


class Entry:
    """One hold as the auditor knows it: open, expired, or ended."""

    def __init__(self, admission: Admission, g: int, now_ms: int) -> None:
        self.refs = {ref.key: ref for ref in admission.refs.refs}
        self.claims = {ref.key: admission.amounts[2 * i : 2 * i + 2] for i, ref in enumerate(admission.refs.refs)}
        self.g = g
        self.seen = 0
        self.state = "open"
        self.admitted_ms = now_ms

    def at(self, key: str, g: int) -> int:
        fixed, rate = self.claims[key]
        return fixed + ceil(Fraction(rate * g, 1000))

    def charge(self, key: str, charge_seen: bool) -> int:
        return self.at(key, self.seen if charge_seen and self.refs[key].kind == "w" else self.g)


class Level:
    """A bucket as an exact fraction."""

    def __init__(self) -> None:
        self.deficit = Fraction(0)
        self.at_ms = 0
        self.full_ms = 0  # when it was last seen full
        self.capacity = 0  # largest so far
        self.debts = 0

    def move(self, ref: Ref, now_ms: int, more: int) -> None:
        self.refill(ref, now_ms)
        self._set(self.deficit + more, now_ms)

    def refill(self, ref: Ref, now_ms: int) -> None:
        self._set(self.deficit - Fraction((now_ms - self.at_ms) * ref.gain, ref.per_ms), now_ms)
        self.at_ms = now_ms

    def _set(self, deficit: Fraction, now_ms: int) -> None:
        self.deficit = max(Fraction(0), deficit)
        if deficit <= 0:
            self.full_ms = now_ms


class Auditor:
    """Books of one tree."""

    def __init__(self, charge_seen: bool) -> None:
        self.charge_seen = charge_seen
        self.entries: dict[str, Entry] = {}
        self.used: dict[str, int] = defaultdict(int)  # windows
        self.ceilings: dict[str, int] = defaultdict(int)  # largest enforced since the window began
        self.overruns: dict[str, int] = defaultdict(int)
        self.levels: dict[str, Level] = defaultdict(Level)
        self.slices: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        self.ends: dict[str, list[str]] = defaultdict(list)

    # -- what happened --------------------------------------------------------------------------------------------------------------------

    def admitted(self, a: Admission, reply: Reply) -> None:
        self.swept(reply.swept)
        for ref in a.refs.refs:
            self.ceilings[ref.key] = max(self.ceilings[ref.key], ref.ceiling)
            self.levels[ref.key].capacity = max(self.levels[ref.key].capacity, ref.ceiling)
        if reply.status != "granted":
            return
        assert a.need <= reply.g <= a.want
        if a.replacing and self.entries[a.replacing].state != "ended":
            self._end(a.replacing, dict.fromkeys(self.entries[a.replacing].refs, 0), reply.now_ms, "replaced")
        entry = self.entries[a.hold_id] = Entry(a, reply.g, reply.now_ms)
        for key, ref in entry.refs.items():
            if ref.kind == "b":
                self.levels[key].move(ref, reply.now_ms, entry.at(key, entry.g))
                assert self.levels[key].deficit <= ref.ceiling, f"{key} admitted beyond its capacity"
            elif ref.kind == "s":
                self.slices[key][reply.now_ms // ref.per_ms] += entry.at(key, entry.g)
                assert self._sum(ref, reply.now_ms) <= ref.ceiling, f"{key} admitted beyond its amount"

    def extended(self, e: Extension, reply: Reply) -> None:
        entry = self.entries.get(e.hold_id)
        assert (reply.status == "gone") == (entry is None or entry.state == "ended")
        if entry is None or entry.state == "ended":
            return
        for ref in e.refs.refs:
            self.ceilings[ref.key] = max(self.ceilings[ref.key], ref.ceiling)
        self._reopen(entry)
        entry.seen = max(entry.seen, e.seen)
        assert entry.g <= reply.g <= max(entry.g, e.want)
        entry.g = reply.g

    def renewed(self, hold_ids: list[str]) -> None:
        for hold_id in hold_ids:
            if self.entries[hold_id].state == "expired":
                self._reopen(self.entries[hold_id])

    def settled(self, s: Settlement, status: str, now_ms: int) -> None:
        entry = self.entries.get(s.hold_id)
        actual = {ref.key: 0 if s.mode == "cancel" else n for ref, n in zip(s.refs.refs, s.actual, strict=True)}
        if entry is None and s.mode == "force":
            assert status == "forced"
            entry = self.entries[s.hold_id] = Entry(Admission(s.hold_id, s.refs, (0, 0) * len(actual), 0, 0, 0, 0, ""), 0, now_ms)
        elif entry is None or entry.state == "ended":
            assert status == "already"
            return
        else:
            assert status == ("late" if entry.state == "expired" else "cancelled" if s.mode == "cancel" else "settled")
        self._end(s.hold_id, actual, now_ms, status)

    def swept(self, swept: tuple[Swept, ...] | list[Swept]) -> None:
        for found in swept:
            entry = self.entries[found.hold_id]
            assert entry.state == "open", f"{found.hold_id} was swept while {entry.state}"
            assert (found.g, found.seen) == (entry.g, entry.seen)
            entry.state = "expired"
            for key, charged in found.charged:
                assert charged == (0 if entry.refs[key].kind == "o" else entry.charge(key, self.charge_seen))
                if entry.refs[key].kind == "w":
                    self.used[key] += charged
                    self.overruns[key] += max(0, charged - entry.at(key, entry.g))

    # -- what must hold -------------------------------------------------------------------------------------------------------------------

    def check(self, ref: Ref, state: tuple[int, int], now_ms: int) -> None:
        """A counter as the ledger shows it, against the books and the bounds."""
        if ref.kind in ("w", "o"):
            held = sum(entry.at(ref.key, entry.g) for entry in self.entries.values() if entry.state == "open" and ref.key in entry.refs)
            assert state == (self.used[ref.key], held), f"{ref.key}: ledger {state}, books {(self.used[ref.key], held)}"
            assert min(state) >= 0
            assert sum(state) <= self.ceilings[ref.key] + self.overruns[ref.key], f"{ref.key} is overspent: {state}"
        elif ref.kind == "b":
            level = self.levels[ref.key]
            level.refill(ref, now_ms)
            assert level.deficit <= state[0] < level.deficit + 1, f"{ref.key}: ledger {state[0]}, books {float(level.deficit)}"
            assert state[0] <= level.capacity + level.debts
        else:
            assert state[0] == self._sum(ref, now_ms), f"{ref.key}: ledger {state[0]}, books {self._sum(ref, now_ms)}"

    def check_ends(self) -> None:
        """Every hold has ended exactly once."""
        assert {hold_id: ends for hold_id, ends in self.ends.items() if len(ends) != 1} == {}
        assert {hold_id for hold_id, entry in self.entries.items() if entry.state != "ended"} == set()

    # -- books ----------------------------------------------------------------------------------------------------------------------------

    def _reopen(self, entry: Entry) -> None:
        if entry.state != "expired":
            return
        entry.state = "open"
        for key, ref in entry.refs.items():
            if ref.kind == "w":
                charged = entry.charge(key, self.charge_seen)
                self.used[key] -= charged
                self.overruns[key] += max(0, entry.at(key, entry.g) - charged)
            elif ref.kind == "o":
                self.overruns[key] += 1

    def _end(self, hold_id: str, actual: dict[str, int], now_ms: int, how: str) -> None:
        entry = self.entries[hold_id]
        assert actual.keys() == entry.refs.keys()
        for key, ref in entry.refs.items():
            taken = entry.at(key, entry.g)
            if ref.kind == "w":
                before = entry.charge(key, self.charge_seen) if entry.state == "expired" else 0
                self.used[key] += actual[key] - before
                self.overruns[key] += max(0, actual[key] - (before if entry.state == "expired" else taken))
            elif ref.kind == "b":
                level = self.levels[key]
                level.refill(ref, now_ms)
                if actual[key] > taken or level.full_ms <= entry.admitted_ms:  # else what the claim took has refilled long ago
                    level.move(ref, now_ms, actual[key] - taken)
                level.debts += max(0, actual[key] - taken)
            elif ref.kind == "s" and actual[key] < taken:
                self.slices[key][entry.admitted_ms // ref.per_ms] -= taken - actual[key]
            elif ref.kind == "s":
                self.slices[key][now_ms // ref.per_ms] += actual[key] - taken
        entry.state = "ended"
        self.ends[hold_id].append(how)

    def _sum(self, ref: Ref, now_ms: int) -> int:
        return sum(n for slot, n in self.slices[ref.key].items() if (slot + 1) * ref.per_ms > now_ms - 60 * ref.per_ms)
