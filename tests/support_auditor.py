"""An auditor for simulations: it keeps its own books from what was asked and answered, shares no code with core/rules.py, and checks the ledger.

For each window it knows what each hold holds and what each ended hold was charged; for each bucket it keeps an exact level as a fraction; for each
sliding window every event. A difference, a broken bound, a hold that ends twice or a mark told twice is an AssertionError.
"""

from collections import defaultdict
from fractions import Fraction
from math import ceil

from sluicegate.core.claims import Admission, Announcement, Extension, Ref, RefSet, Reply, Seed, Settled, Settlement, Swept

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

    def restart(self, ref: Ref, now_ms: int) -> None:
        """Seeded with a whole number."""
        self.refill(ref, now_ms)
        self._set(Fraction(ceil(self.deficit)), now_ms)
        self.full_ms = now_ms

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
        self.told: dict[str, set[int]] = defaultdict(set)  # marks

    # -- what happened --------------------------------------------------------------------------------------------------------------------

    def admitted(self, a: Admission, reply: Reply) -> None:
        self.swept(reply.swept)
        for ref in a.refs.refs:
            self.ceilings[ref.key] = max(self.ceilings[ref.key], ref.ceiling)
            self.levels[ref.key].capacity = max(self.levels[ref.key].capacity, ref.ceiling)
        if reply.status != "granted":
            return
        assert min(a.need, a.aim) <= reply.g <= a.want
        if a.replacing and self.entries[a.replacing].state != "ended":
            self._end(a.replacing, dict.fromkeys(self.entries[a.replacing].refs, 0), reply.now_ms, "replaced")
        entry = self.entries[a.hold_id] = Entry(a, reply.g, reply.now_ms)
        for (key, ref), state in zip(entry.refs.items(), reply.states, strict=True):
            self._take(entry, key, reply.now_ms)
            taken = {"b": self.levels[key].deficit, "s": self._sum(ref, reply.now_ms)}.get(ref.kind, sum(state))
            assert not entry.at(key, entry.g) or taken <= ref.ceiling - ref.reserved, f"{key} admitted beyond what it may"

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

    def settled(self, s: Settlement, reply: Settled) -> None:
        status, now_ms = reply.status, reply.now_ms
        entry = self.entries.get(s.hold_id)
        actual = {ref.key: 0 if s.mode == "cancel" else n for ref, n in zip(s.refs.refs, s.actual, strict=True)}
        if entry is None and s.mode == "force":
            assert status == "forced"
            entry = self.entries[s.hold_id] = Entry(Admission(s.hold_id, s.refs, (0, 0) * len(actual), 0, 0, 0, 0, ""), 0, now_ms)
        elif entry is None or entry.state == "ended":
            assert (status, reply.marks) == ("already", ())
            return
        else:
            assert status == ("late" if entry.state == "expired" else "cancelled" if s.mode == "cancel" else "settled")
        for key in actual.keys() - entry.refs.keys():  # windows that were over when the hold was announced
            self.used[key] += actual[key]
            self.overruns[key] += actual[key]
        self._end(s.hold_id, {key: actual[key] for key in entry.refs}, now_ms, status)
        self.warned(s.refs, reply.marks, now_ms)

    def warned(self, refs: RefSet, marks: tuple[tuple[int, int], ...], now_ms: int) -> None:
        """Those that were reached, each once, and none left out."""
        for i, mark in marks:
            ref = refs.refs[i]
            assert self.used[ref.key] >= ref.marks[mark], f"{ref.key} has not reached {ref.marks[mark]}"
            assert mark not in self.told[ref.key], f"{ref.key} told {ref.marks[mark]} twice"
            self.told[ref.key].add(mark)
        for ref in refs.refs:
            if ref.kind == "w" and not 0 < ref.end_ms + GRACE_MS * bool(ref.end_ms) <= now_ms:
                reached = {mark for mark, at in enumerate(ref.marks) if self.used[ref.key] >= at}
                assert reached <= self.told[ref.key], f"{ref.key} did not tell that it reached {reached - self.told[ref.key]}"

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

    def seeds(self, refs: list[Ref], alive: set[str], now_ms: int) -> list[Seed]:
        """The state of the tree is lost: what the records know of these counters. Holds whose worker is not alive are lost with it."""
        for hold_id, entry in self.entries.items():
            if hold_id in alive:
                self._reopen(entry)
            elif entry.state != "ended":
                entry.state = "ended"
                self.ends[hold_id].append("lost")
        self.told.clear()
        found = []
        for ref in refs:
            level, slices = self.levels[ref.key], self.slices[ref.key]
            if ref.kind == "b":
                level.restart(ref, now_ms)
            used = int(level.deficit) if ref.kind == "b" else self.used[ref.key]
            found.append(Seed(ref, used, {slot: n for slot, n in slices.items() if n > 0} if ref.kind == "s" else {}))
        return found

    def announced(self, a: Announcement, now_ms: int) -> None:
        entry = self.entries[a.hold_id]
        entry.admitted_ms = now_ms
        for key, ref in list(entry.refs.items()):
            if ref.kind == "w" and 0 < ref.end_ms <= now_ms:
                del entry.refs[key]
                continue
            self._take(entry, key, now_ms)
            self.levels[key].debts += entry.at(key, entry.g)

    def seeded(self, refs: list[Ref]) -> None:
        """All holds have been announced: what stands above the ceilings now is an overrun."""
        for ref in refs:
            self.overruns[ref.key] = max(0, self.used[ref.key] + self._held(ref.key) - self.ceilings[ref.key])

    # -- what must hold -------------------------------------------------------------------------------------------------------------------

    def check(self, ref: Ref, state: tuple[int, int], now_ms: int) -> None:
        """A counter as the ledger shows it, against the books and the bounds."""
        if ref.kind in ("w", "o"):
            held = self._held(ref.key)
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

    def _held(self, key: str) -> int:
        return sum(entry.at(key, entry.g) for entry in self.entries.values() if entry.state == "open" and key in entry.refs)

    def _take(self, entry: Entry, key: str, now_ms: int) -> None:
        ref, taken = entry.refs[key], entry.at(key, entry.g)
        if ref.kind == "b":
            self.levels[key].move(ref, now_ms, taken)
        elif ref.kind == "s":
            self.slices[key][now_ms // ref.per_ms] += taken

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
