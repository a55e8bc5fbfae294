"""What a worker does beside serving, with a ledger that is there or not."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from sluicegate.core.claims import Ref, RefSet, Swept
from sluicegate.core.estimate import Learned
from sluicegate.ledger.contract import LedgerRecovering, LedgerUnavailable
from sluicegate.upkeep import RENEW_AT_ONCE, SWEEP_AT_ONCE, Upkeep
from support_sockets import settle

REFS = RefSet("t", [Ref("c", "w", 1)])


class FakeTrip:
    def __init__(self, *holds: tuple[str, str]) -> None:
        self.holds = holds

    def open_holds(self) -> Iterator[tuple[str, str]]:
        return iter(self.holds)


class FakeGateway:
    def __init__(self) -> None:
        self.trips: set[FakeTrip] = set()


class FakeLedger:
    """Writes down what it is asked."""

    def __init__(self) -> None:
        self.trees: dict[str, Any] = {tree: None for tree in ("acme", "d/p", "t", "t0", "t1", "t2")}
        self.reached: dict[str, tuple[tuple[int, int], ...]] = {}  # by tree
        self.warned: list[str] = []
        self.away = False
        self.away_for: set[str] = set()  # trees
        self.away_by = LedgerUnavailable("away")
        self.renewed: list[tuple[str, list[str], int]] = []
        self.limits: list[int] = []
        self.swept: list[Swept] = []
        self.tables: list[dict[str, dict[str, int]]] = []
        self.sums: dict[str, dict[str, int]] = {}
        self.on_renew: Any = None

    def _check(self) -> None:
        if self.away:
            raise self.away_by

    async def renew(self, tree: str, hold_ids: list[str], ttl_ms: int) -> None:
        self._check()
        if tree in self.away_for:
            raise self.away_by
        self.renewed.append((tree, hold_ids, ttl_ms))
        if self.on_renew is not None:
            self.on_renew()
        await asyncio.sleep(0)

    async def sweep(self, limit: int) -> list[Swept]:
        self._check()
        self.limits.append(limit)
        return self.swept

    async def warn(self, refs: RefSet) -> tuple[tuple[int, int], ...]:
        self.warned.append(refs.tree)
        self._check()
        return self.reached.get(refs.tree, ())

    async def learned(self, increments: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
        self.tables.append(increments)
        self._check()
        return self.sums


class Stage:
    def __init__(self) -> None:
        self.gateway = FakeGateway()
        self.ledger = FakeLedger()
        self.learned = Learned()
        self.told: list[Swept] = []
        self.marks: list[Any] = []
        self.now = 50.0
        self.answers: list[tuple[str, int]] = []
        self.lags: list[int] = []
        self.upkeep = Upkeep(
            self.gateway,  # type: ignore[arg-type]
            self.ledger,  # type: ignore[arg-type]
            self.learned,
            30_000,
            self.told.append,
            lambda refs, marks: self.marks.append((refs.tree, marks)),
            lambda asked, took_us: self.answers.append((asked, took_us)),
            self.lags.append,
            lambda: self.now,
        )


@pytest.fixture
def stage() -> Stage:
    return Stage()


async def test_open_holds_are_renewed_by_tree(stage: Stage) -> None:
    """Those of the key's tree and of deployments, with the configured ttl, at most 256 a call."""
    many = [("acme", f"h{i}") for i in range(RENEW_AT_ONCE + 5)]
    stage.gateway.trips = {FakeTrip(*many), FakeTrip(("d/p", "x.d")), FakeTrip()}
    await stage.upkeep.renew()
    sizes = sorted((tree, len(ids), ttl_ms) for tree, ids, ttl_ms in stage.ledger.renewed)
    assert sizes == [("acme", 5, 30_000), ("acme", RENEW_AT_ONCE, 30_000), ("d/p", 1, 30_000)]


async def test_requests_may_come_and_go_during_a_renewal(stage: Stage) -> None:
    """The set of requests changes while the ledger is asked."""
    stage.gateway.trips = {FakeTrip((f"t{i}", f"h{i}")) for i in range(3)}
    stage.ledger.on_renew = lambda: stage.gateway.trips.add(FakeTrip(("late", "late")))
    await stage.upkeep.renew()
    assert len(stage.ledger.renewed) == 3


async def test_a_tree_whose_server_is_away_does_not_keep_others_from_being_renewed(stage: Stage) -> None:
    """Their holds would expire under a live worker."""
    stage.gateway.trips = {FakeTrip((f"t{i}", f"h{i}")) for i in range(3)}
    for tree in ("t0", "t1", "t2"):
        stage.ledger.renewed.clear()
        stage.ledger.away_for = {tree}
        with pytest.raises(LedgerUnavailable):
            await stage.upkeep.renew()
        assert len(stage.ledger.renewed) == 2


async def test_a_tree_that_is_recovering_is_not_renewed(stage: Stage) -> None:
    """Its holds are announced to its new state; the ledger was not asked, so nothing is known of it."""
    stage.gateway.trips = {FakeTrip(("lost", "h"))}
    assert not await stage.upkeep.renew()
    assert stage.ledger.renewed == []
    stage.ledger.trees = {}
    assert not await stage.upkeep.sweep()


async def test_counters_that_a_sweep_charged_are_looked_at_for_marks(stage: Stage) -> None:
    """Each once; what could not be asked is asked the next time, what is recovering will be told by whoever charges it again."""
    stage.upkeep.charged = {whose: RefSet(tree, []) for whose, tree in [("acme/@k", "acme"), ("gone/@k", "gone"), ("p/m", "d/p")]}
    stage.ledger.reached = {"acme": ((0, 1),)}
    stage.ledger.warn = _away_once(stage.ledger.warn)  # type: ignore[method-assign]
    with pytest.raises(LedgerUnavailable):
        await stage.upkeep.sweep()
    await stage.upkeep.sweep()
    await stage.upkeep.sweep()
    assert (stage.ledger.warned, stage.marks, stage.upkeep.charged) == (["acme", "d/p"], [("acme", ((0, 1),))], {})


def _away_once(ask: Any) -> Any:
    asked: list[RefSet] = []

    async def warn(refs: RefSet) -> Any:
        asked.append(refs)
        if len(asked) == 1:
            raise LedgerUnavailable("away")
        return await ask(refs)

    return warn


async def test_swept_holds_are_told(stage: Stage) -> None:
    """Each one, so that its request gets a record."""
    stage.ledger.swept = [Swept("h", "req_1 key dep", 10, 5, ()), Swept("i", "req_2 key dep", 1, 0, ())]
    await stage.upkeep.sweep()
    assert (stage.told, stage.ledger.limits) == (stage.ledger.swept, [SWEEP_AT_ONCE])


async def test_case_106_what_one_worker_learned_binds_all(stage: Stage) -> None:
    """A deployment that billed more than it showed anywhere is capped here too."""
    deployment: Any = type("D", (), {"id": "p/m"})
    assert not stage.learned.exceeded(deployment)
    stage.ledger.sums = {"exceeded": {"p/m": 1}}
    await stage.upkeep.learn()
    assert stage.learned.exceeded(deployment)
    await stage.upkeep.learn()
    assert stage.ledger.tables[-1]["exceeded"] == {"p/m": 1}


async def test_what_did_not_arrive_is_kept(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exchange that fails is told to the figures, which send the increments again."""
    kept: list[Any] = []
    monkeypatch.setattr(stage.learned, "keep", kept.append)
    stage.ledger.away = True
    with pytest.raises(LedgerUnavailable):
        await stage.upkeep.learn()
    assert kept == stage.ledger.tables


async def test_every_loop_survives_and_a_change_is_logged_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Away, still away, back: one line per change of state, whichever of the loops saw it; what raises anything else is logged and goes on."""
    for name in ("SWEEP_S", "LEARN_S"):
        monkeypatch.setattr(f"sluicegate.upkeep.{name}", 0.0)
    stage.upkeep._hold_ttl_ms = 0
    with structlog.testing.capture_logs() as logs:
        running = asyncio.get_running_loop().create_task(stage.upkeep.run())
        await settle()
        stage.now = 60.0
        await settle()
        assert (stage.upkeep.seen_at, logs) == (60.0, [])
        assert {asked for asked, _ in stage.answers} >= {"sweep", "learn"}
        assert max(took_us for _, took_us in stage.answers) <= 10_000_000
        stage.ledger.away = True
        await settle()
        stage.now = 70.0
        await settle()
        assert stage.upkeep.seen_at == 60.0
        stage.ledger.away = False
        await settle()
        assert stage.upkeep.seen_at == 70.0
        stage.ledger.away_by = LedgerRecovering("lost")
        stage.ledger.away = True
        await settle()
        stage.ledger.away = False
        stage.ledger.swept = None  # type: ignore[assignment]
        await settle()
        stage.ledger.swept = []
        count = len(stage.ledger.limits)
        await settle()
        assert len(stage.ledger.limits) > count
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    states = [(line["from"], line["to"]) for line in logs if line["event"] == "ledger state"]
    assert states == [("up", "away"), ("away", "up")]
    assert {line["event"] for line in logs} == {"ledger state", "background work failed"}


async def test_a_late_timer_is_told(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """By how much, in microseconds; never below zero, though clocks are read apart."""
    monkeypatch.setattr("sluicegate.upkeep.LAG_S", 0.0)
    running = asyncio.get_running_loop().create_task(stage.upkeep.run())
    await settle()
    stage.now += 0.25
    await settle()
    stage.now -= 0.1
    await settle()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert set(stage.lags) == {0, 250_000}


async def test_another_time_for_holds_counts_at_once() -> None:
    """Holds that were granted for longer are renewed for the new time, and from then on as often as it needs."""
    stage = Stage()
    stage.gateway.trips = {FakeTrip(("t", "a"))}
    running = asyncio.create_task(stage.upkeep.run())
    await settle()
    stage.upkeep.hold_for(30_000)
    await settle()
    assert stage.ledger.renewed == []
    stage.upkeep.hold_for(30)
    async with asyncio.timeout(30):
        while len(stage.ledger.renewed) < 2:  # noqa: ASYNC110  (nothing to wait for)
            await asyncio.sleep(0.001)
    assert stage.ledger.renewed[:2] == [("t", ["a"], 30)] * 2
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
