"""Two ledgers driven by the same random operations: memory, which is the specification, beside sqlite, and beside a real Redis.

After every step replies, counters and holds are compared. sqlite shares the clock of memory. Redis has its own time: it is asked first, and the
clock of memory is set to the time that its reply tells. Holds there expire at once or never, so that nothing happens between two calls; what tells no
time (seeding, filling, announcing) leaves its bucket alone. Parts of both are destroyed now and then; a tree that is lost is seeded anew.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import hypothesis.strategies as st
import pytest
import redis as redis_client
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from sluicegate.core.claims import Admission, Announcement, Extension, HoldView, Ref, RefSet, Reply, Seed, Settled, Settlement
from sluicegate.ledger import sqlite, sqlite_rows
from sluicegate.ledger.contract import Ledger, LedgerRecovering
from sluicegate.ledger.memory import MemoryLedger
from sluicegate.ledger.sqlite import SqliteLedger
from support_ledgers import Backend, Clock, ExpiredHold, Vandal, backend_of, use

SETTINGS = settings(max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))
LONG_MS = 40 * 86_400_000
HUGE = 2**52 - 1
KEYS = {name: f"sg1:{{t}}:c:t/{name}" for name in ("small", "large", "ending", "bucket", "sliding", "concurrent")}

hold_ids = st.sampled_from(["a", "b", "c", "d", "e", "f", "g"])
names = st.lists(st.sampled_from(list(KEYS)), unique=True, max_size=5)
timeless = st.lists(st.sampled_from([name for name in KEYS if name != "bucket"]), unique=True)
small_amounts = st.integers(0, 120)
outputs = st.one_of(st.just((0, 0, 0)), st.lists(st.integers(1, 300), min_size=3, max_size=3).map(sorted).map(tuple))


class Twins(RuleBasedStateMachine):
    """Memory and a twin. `same_clock`: the twin takes the injected clock, too."""

    def __init__(
        self, runner: asyncio.Runner, make: Callable[[Clock, ExpiredHold], tuple[Ledger, Backend]], same_clock: bool, empty: Callable[[], object]
    ) -> None:
        super().__init__()
        self.runner = runner
        self.make = make
        self.same_clock = same_clock
        self.empty = empty
        self.clock = Clock()
        self.twin: Ledger | None = None
        self.vandals: list[Vandal] = []
        self.epochs = 0

    @initialize(expired_hold=st.sampled_from(["charge_held", "charge_seen"]))
    def begin(self, expired_hold: ExpiredHold) -> None:
        self.empty()
        self.memory = MemoryLedger(self.clock, expired_hold)
        self.twin, backend = self.make(self.clock, expired_hold)
        self.runner.run(self.twin.open())
        self.seed(())
        self.vandals = [Vandal(Backend("memory", "", None), self.memory), Vandal(backend, self.twin)]
        self.step(lambda ledger: ledger.peek(self.refs(list(KEYS))))

    def teardown(self) -> None:
        for vandal in self.vandals:
            vandal.close()
        if self.twin is not None:
            self.runner.run(self.twin.close())

    # -- both ledgers ---------------------------------------------------------------------------------------------------------------------

    def step(self, call: Callable[[Ledger], Any]) -> None:
        """Asks both and compares. The twin first: memory then answers at the twin's time."""

        async def ask(ledger: Ledger) -> Any:
            try:
                return await call(ledger)
            except LedgerRecovering as error:
                return str(error)

        assert self.twin is not None
        answer = self.runner.run(ask(self.twin))
        if isinstance(answer, Reply | Settled) and not self.same_clock:
            self.clock.now_ms = answer.now_ms
        assert self.runner.run(ask(self.memory)) == answer
        assert self.memory.trees == self.twin.trees

    def seed(self, seeds: Sequence[Seed]) -> None:
        self.epochs += 1
        for ledger in (self.twin, self.memory):
            assert ledger is not None
            self.runner.run(use(ledger, "t", epoch=f"e{self.epochs}", seeds=seeds))

    def refs(self, chosen: Sequence[str], ceiling: int = 1000, reserved: int = 0) -> RefSet:
        start_ms = self.clock.now_ms // LONG_MS * LONG_MS
        known = {
            "small": Ref(KEYS["small"], "w", ceiling, reserved=reserved, marks=(200, 300, 700)),
            "large": Ref(KEYS["large"], "w", HUGE, marks=(2**50,)),
            "ending": Ref(KEYS["ending"], "w", 3 * ceiling, start_ms, start_ms + LONG_MS, marks=(500, 1000)),
            "bucket": Ref(KEYS["bucket"], "b", ceiling, gain=7, per_ms=3, reserved=reserved),
            "sliding": Ref(KEYS["sliding"], "s", ceiling, per_ms=3_600_000, reserved=reserved),
            "concurrent": Ref(KEYS["concurrent"], "o", ceiling // 250),
        }
        return RefSet("t", [known[name] for name in chosen])

    # -- the verbs ------------------------------------------------------------------------------------------------------------------------

    @rule(
        hold_id=hold_ids,
        chosen=names,
        ceiling=st.sampled_from([0, 400, 1000]),
        reserved=st.sampled_from([0, 0, 150]),
        fixed=st.lists(small_amounts, min_size=5, max_size=5),
        rates=st.lists(st.sampled_from([0, 1, 700, 1000, 1337]), min_size=5, max_size=5),
        large=st.tuples(st.integers(0, 2**51), st.integers(0, 2**44)),
        output=outputs,
        ttl_ms=st.sampled_from([0, LONG_MS, LONG_MS]),
        replacing=st.sampled_from(["", "", "a", "b"]),
    )
    def admit(self, **drawn: Any) -> None:
        refs = self.refs(drawn["chosen"], drawn["ceiling"], drawn["reserved"])
        amounts: list[int] = []
        for i, ref in enumerate(refs.refs):
            if ref.key == KEYS["large"]:
                amounts += drawn["large"]
            elif ref.kind == "o":
                amounts += (1, 0)
            else:
                amounts += (drawn["fixed"][i], drawn["rates"][i] if ref.kind == "w" else 0)
        replacing = drawn["replacing"] if drawn["replacing"] != drawn["hold_id"] else ""
        admission = Admission(drawn["hold_id"], refs, tuple(amounts), *drawn["output"], drawn["ttl_ms"], "tag", replacing)
        self.step(lambda ledger: ledger.admit(admission))

    @rule(hold_id=hold_ids, chosen=names, late=st.booleans())
    def admit_in_a_window_that_is_not_running(self, hold_id: str, chosen: list[str], late: bool) -> None:
        shift_ms = -LONG_MS if late else LONG_MS
        ref = Ref(KEYS["ending"] + "-other", "w", 100, self.clock.now_ms - 1000 + shift_ms, self.clock.now_ms + shift_ms)
        refs = RefSet("t", [*self.refs([name for name in chosen if name != "large"]).refs, ref])
        self.step(lambda ledger: ledger.admit(Admission(hold_id, refs, (1, 0) * len(refs.refs), 1, 1, 1, LONG_MS, "tag")))

    @rule(hold_id=hold_ids, chosen=names, ceiling=st.sampled_from([400, 1000]), grant=st.tuples(st.integers(1, 400), st.integers(0, 300)))
    def extend(self, hold_id: str, chosen: list[str], ceiling: int, grant: tuple[int, int]) -> None:
        need, more = grant
        extension = Extension(hold_id, self.refs(chosen, ceiling), need, need + more, seen=min(need, more), ttl_ms=LONG_MS)
        self.step(lambda ledger: ledger.extend(extension))

    @rule(
        hold_id=hold_ids,
        chosen=names,
        actual=st.lists(st.integers(0, 400), min_size=6, max_size=6),
        mode=st.sampled_from(["settle", "settle", "force", "cancel"]),
    )
    def settle(self, hold_id: str, chosen: list[str], actual: list[int], mode: Literal["settle", "force", "cancel"]) -> None:
        settlement = Settlement(hold_id, self.refs(chosen), tuple(actual[: len(chosen)]), mode)
        self.step(lambda ledger: ledger.settle(settlement))

    @rule(chosen=st.lists(hold_ids, unique=True))
    def renew(self, chosen: list[str]) -> None:
        self.step(lambda ledger: ledger.renew("t", chosen, LONG_MS))

    @rule(limit=st.integers(1, 3))
    def sweep(self, limit: int) -> None:
        """sqlite does not look into a tree that has nothing due."""
        if not self.same_clock or self.memory._now().due("t", 1):
            self.step(lambda ledger: ledger.sweep(limit))

    @rule(chosen=names)
    def warn(self, chosen: list[str]) -> None:
        self.step(lambda ledger: ledger.warn(self.refs(chosen)))

    # -- recovery -------------------------------------------------------------------------------------------------------------------------

    @rule(hold_id=hold_ids, chosen=timeless, fixed=small_amounts, rate=st.sampled_from([0, 1000]), g=st.integers(0, 300), over=st.booleans())
    def announce(self, hold_id: str, chosen: list[str], fixed: int, rate: int, g: int, over: bool) -> None:
        refs = self.refs(chosen)
        if over:
            end_ms = self.clock.now_ms - 60_000
            refs = RefSet("t", [*refs.refs, Ref(KEYS["ending"] + "-over", "w", 100, end_ms - 1000, end_ms)])
        amounts = [part for ref in refs.refs for part in (1 if ref.kind == "o" else fixed, rate if ref.kind == "w" else 0)]
        announcement = Announcement(hold_id, refs, tuple(amounts), g, g // 2, LONG_MS, "tag")
        self.step(lambda ledger: ledger.announce(announcement))

    def seeds(self, chosen: list[str], used: int) -> list[Seed]:
        slot = self.clock.now_ms // 3_600_000
        slices = {slot - i: used // i for i in (1, 2, 30, 90)}
        return [Seed(ref, used, slices if ref.kind == "s" else {}) for ref in self.refs(chosen).refs]

    @rule(chosen=timeless.filter(len), used=st.integers(0, 1200))
    def fill(self, chosen: list[str], used: int) -> None:
        seeds = self.seeds(chosen, used)
        self.step(lambda ledger: ledger.fill("t", seeds))

    @precondition(lambda self: self.twin is not None and "t" not in self.twin.trees)
    @rule(chosen=timeless, used=st.integers(0, 1200))
    def recover(self, chosen: list[str], used: int) -> None:
        self.seed(self.seeds(chosen, used))

    @rule(chosen=timeless, used=st.integers(0, 1200))
    def seed_unasked(self, chosen: list[str], used: int) -> None:
        self.seed(self.seeds(chosen, used))

    @rule(name=st.sampled_from(list(KEYS)), what=st.sampled_from(["everything", "counter", "counter", "index", "holds", "rewind"]))
    def destroy(self, name: str, what: str) -> None:
        for vandal in self.vandals:
            match what:
                case "counter":
                    vandal.counter(KEYS[name])
                case "rewind":
                    vandal.rewind(1, epoch=f"e{self.epochs}")
                case _:
                    getattr(vandal, what)()

    @rule(name=st.sampled_from(["x", "y"]), field=st.sampled_from(["1", "2"]), n=st.integers(0, 10**9))
    def learn(self, name: str, field: str, n: int) -> None:
        self.step(lambda ledger: ledger.learned({name: {field: n}, "y": {}}))

    # -- what is kept ---------------------------------------------------------------------------------------------------------------------

    @invariant()
    def the_same_is_kept(self) -> None:
        """What is left of a tree that is lost does not matter: it will be wiped."""
        if self.twin is None or "t" not in self.twin.trees:
            return
        self.step(lambda ledger: ledger.peek(self.refs(list(KEYS))))
        (counters, holds), (twin_counters, twin_holds) = (self.runner.run(ledger.show()) for ledger in (self.memory, self.twin))
        assert _by_id(holds, self.same_clock) == _by_id(twin_holds, self.same_clock)
        kept, twin_kept = ({view.key: (view.kind, view.used, view.held) for view in views if view.kind != "b"} for views in (counters, twin_counters))
        assert kept == twin_kept


class TwinsInTime(Twins):
    """With the clock as one more thing that happens."""

    @rule(ms=st.sampled_from([1, 10, 150, 3_600_000, 10 * 3_600_000, LONG_MS, 8 * 86_400_000, -5000]))
    def wait(self, ms: int) -> None:
        """A clock that is put back does not bring back what has expired: both forget it first, which each does at times of its own."""
        assert isinstance(self.twin, SqliteLedger)
        if ms < 0:
            self.memory._now().forget()
            now_ms = self.clock.now_ms
            self.runner.run(self.twin._beside(lambda connection: sqlite_rows.forget(connection, now_ms)))
        self.clock.now_ms += ms


def _by_id(holds: list[HoldView], with_expiry: bool) -> dict[str, HoldView]:
    """Renewals do not tell the ledger's time, so expiries of Redis are known to the millisecond only."""
    for hold in holds:
        if not with_expiry:
            hold.expires_ms = 0
    return {hold.hold_id: hold for hold in holds}


def test_sqlite_does_what_memory_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same random operations at the same times: the same replies, counters and holds."""
    monkeypatch.setattr(sqlite, "UPKEEP_EVERY_S", 1e6)  # what it forgets is up to the test
    count = 0

    def make(clock: Clock, expired_hold: ExpiredHold) -> tuple[Ledger, Backend]:
        nonlocal count
        count += 1
        backend = Backend("sqlite", str(tmp_path / f"{count}.db"), clock)
        return backend.ledger(expired_hold), backend

    with asyncio.Runner() as runner:
        run_state_machine_as_test(lambda: TwinsInTime(runner, make, True, lambda: None), settings=SETTINGS)


def test_redis_does_what_memory_does(redis_url: str, tmp_path: Path) -> None:
    """The same random operations: the same replies, counters and holds."""
    backend: Backend = backend_of("redis", tmp_path, redis_url)

    def make(clock: Clock, expired_hold: ExpiredHold) -> tuple[Ledger, Backend]:
        return backend.ledger(expired_hold), backend

    with redis_client.Redis.from_url(backend.place) as client, asyncio.Runner() as runner:
        run_state_machine_as_test(lambda: Twins(runner, make, False, client.flushdb), settings=SETTINGS)
