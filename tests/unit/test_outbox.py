"""Settlements on their way to the ledger: nothing used is lost, nothing is charged twice."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sluicegate import journal as journaling
from sluicegate.core.claims import Admission, Ref, RefSet, Settled, Settlement
from sluicegate.core.record import Record
from sluicegate.journal import Journal
from sluicegate.ledger.contract import LedgerUnavailable
from sluicegate.ledger.memory import MemoryLedger
from sluicegate.outbox import RETRY_AT_ONCE, Outbox, replay
from support_ledgers import Clock, use_at_once
from support_sockets import settle

REFS = RefSet("t", [Ref("sg1:{t}:c:t:tokens:day:x", "w", 1000)])


class FlakyLedger(MemoryLedger):
    """A memory ledger that is away when the test says so, before or after it has done what it was asked."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        use_at_once(self, "t")
        self.fails: set[str] = set()  # hold ids
        self.after = False
        self.tried: list[str] = []

    def settle(self, settlement: Settlement) -> "asyncio.Future[Settled]":
        self.tried.append(settlement.hold_id)
        if settlement.hold_id not in self.fails:
            return super().settle(settlement)
        if self.after:
            super().settle(settlement)
        future: asyncio.Future[Settled] = asyncio.get_running_loop().create_future()
        future.set_exception(LedgerUnavailable("away"))
        return future

    async def used(self) -> int:
        return (await self.peek(REFS)).states[0][0]


def files(directory: Path) -> list[Path]:
    """The journals there."""
    return list(directory.glob("*.journal"))


class Stage:
    """An outbox over a real journal."""

    def __init__(self, directory: Path) -> None:
        self.clock = Clock()
        self.ledger = FlakyLedger(self.clock)
        self.directory = str(directory)
        self.states: list[Any] = []
        self.journal = Journal.open(self.directory, asyncio.get_running_loop(), self.states.append)
        self.outbox = Outbox(self.ledger, self.journal, self.clock)

    async def hold(self, *hold_ids: str) -> None:
        for hold_id in hold_ids:
            await self.ledger.admit(Admission(hold_id, REFS, (5, 1000), 10, 10, 10, 60_000, "tag"))

    def settle(self, hold_id: str, used: int, record: Record | None = None) -> "asyncio.Future[Settled]":
        return self.outbox.settle(Settlement(hold_id, REFS, (used,)), record)


@pytest.fixture
async def stage(tmp_path: Path) -> Any:
    stage = Stage(tmp_path)
    yield stage
    stage.journal.close()


async def retry(stage: "Stage") -> None:
    await stage.outbox.retry()
    await settle()


async def test_a_settlement_is_taken_and_acknowledged(stage: Stage) -> None:
    """Journal first, then the ledger; when the ledger has it, nothing is owed."""
    await stage.hold("h")
    assert (await stage.settle("h", 7)).status == "settled"
    await settle()
    assert (stage.outbox.backlog, await stage.ledger.used()) == (0, 7)


async def test_the_line_is_written_before_the_ledger_is_asked(stage: Stage) -> None:
    """Whatever happens to the worker afterwards, what was used is known."""
    order: list[str] = []
    append = stage.journal.append
    stage.journal.append = lambda line: order.append("line") or append(line)  # type: ignore[func-returns-value, method-assign]
    stage.ledger.settle = lambda _: order.append("ledger") or asyncio.get_running_loop().create_future()  # type: ignore[func-returns-value, method-assign]
    stage.settle("h", 1)
    assert order == ["line", "ledger"]


@pytest.mark.parametrize("done", [False, True], ids=["nothing was done", "it was done"])
async def test_case_15_what_failed_is_sent_again_until_it_is_taken(stage: Stage, done: bool) -> None:
    """Whether or not the ledger had done it, it is charged once."""
    await stage.hold("h")
    stage.ledger.fails, stage.ledger.after = {"h"}, done
    stage.settle("h", 7)
    await settle()
    for _ in range(3):
        assert stage.outbox.backlog == 1
        await retry(stage)
    stage.ledger.fails = set()
    await retry(stage)
    await retry(stage)
    assert (stage.outbox.backlog, await stage.ledger.used(), stage.ledger.tried.count("h")) == (0, 7, 5)


async def test_what_is_on_its_way_is_not_sent_twice(stage: Stage) -> None:
    """A slow ledger is not asked again for what it has not answered yet."""
    answers: list[asyncio.Future[Settled]] = []

    def slow(settlement: Settlement) -> "asyncio.Future[Settled]":
        answers.append(asyncio.get_running_loop().create_future())
        return answers[-1]

    stage.ledger.settle = slow  # type: ignore[method-assign]
    stage.settle("h", 7)
    await retry(stage)
    assert (len(answers), stage.outbox.backlog) == (1, 1)
    answers[0].set_exception(LedgerUnavailable("too late"))
    await settle()
    again = asyncio.get_running_loop().create_task(retry(stage))
    await settle()
    answers[1].set_result(Settled("already", 0))
    await again
    assert (len(answers), stage.outbox.backlog) == (2, 0)


async def test_a_round_stops_at_the_first_failure(stage: Stage) -> None:
    """A ledger that is away is asked once a round, oldest first; new settlements are tried at once all the same."""
    await stage.hold("a", "b", "c")
    stage.ledger.fails = {"a", "b", "c"}
    for hold_id in "abc":
        stage.settle(hold_id, 1)
    await settle()
    stage.ledger.tried.clear()
    await retry(stage)
    assert stage.ledger.tried == ["a"]
    stage.ledger.fails = {"b"}
    await retry(stage)
    assert (stage.ledger.tried, stage.outbox.backlog) == (["a", "a", "b"], 2)


async def test_a_round_is_bounded(stage: Stage) -> None:
    """A long backlog is worked off in parts, in order."""
    ids = [f"h{i}" for i in range(RETRY_AT_ONCE + 10)]
    stage.ledger.fails = set(ids)
    for hold_id in ids:
        stage.settle(hold_id, 1)
    await settle()
    stage.ledger.fails = set()
    stage.ledger.tried.clear()
    await retry(stage)
    assert (stage.ledger.tried, stage.outbox.backlog) == (ids[:RETRY_AT_ONCE], 10)
    await retry(stage)
    assert stage.outbox.backlog == 0


async def test_a_worker_that_dies_leaves_what_is_owed(tmp_path: Path) -> None:
    """Its successor settles it, with the actual figures and the mode, once, and the file is gone."""
    stage = Stage(tmp_path)
    await stage.hold("settled", "owed", "done", "never")
    stage.ledger.fails = {"owed", "done", "forced", "never"}
    await stage.settle("settled", 3)
    stage.settle("owed", 4, Record("req_1", 1))
    stage.outbox.settle(Settlement("forced", REFS, (5,), "force"), None)
    stage.outbox.settle(Settlement("never", REFS, (0,), "cancel"), None)
    stage.ledger.after = True
    stage.settle("done", 6)
    await settle()
    stage.journal.flush()
    lines = b"".join(path.read_bytes() for path in files(tmp_path))
    stage.journal.close()
    for path in files(tmp_path):
        path.unlink()
    (tmp_path / "left.journal").write_bytes(lines)
    stage.ledger.fails = set()
    taken = await replay(str(tmp_path), stage.ledger)
    assert (taken, await stage.ledger.used()) == (3, 3 + 4 + 5 + 6)
    assert (await stage.ledger.show())[0][0].held == 0
    assert await replay(str(tmp_path), stage.ledger) == 0
    assert files(tmp_path) == []


async def test_a_replay_that_fails_half_way_is_done_again(tmp_path: Path) -> None:
    """The file stays until the ledger has all of it; what was taken already is not charged again."""
    ledger = FlakyLedger(Clock())
    lines = b"".join(journaling.encode(Settlement(f"h{i}", REFS, (10,), "force"), None, 1) for i in range(3))
    (tmp_path / "left.journal").write_bytes(lines)
    ledger.fails = {"h1"}
    with pytest.raises(LedgerUnavailable):
        await replay(str(tmp_path), ledger)
    ledger.fails = set()
    await replay(str(tmp_path), ledger)
    assert (await ledger.used(), files(tmp_path)) == (30, [])


async def test_a_replay_passes_over_what_cannot_be_read(tmp_path: Path) -> None:
    """A torn last line and a spoilt one cost nobody the others."""
    ledger = FlakyLedger(Clock())
    good = [journaling.encode(Settlement(f"h{i}", REFS, (10,), "force"), None, 1) for i in range(2)]
    (tmp_path / "left.journal").write_bytes(good[0] + b"{spoilt\n" + good[1] + good[0][:20])
    assert await replay(str(tmp_path), ledger) == 2
    assert await ledger.used() == 20


async def test_the_loop_goes_on_by_itself(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a period, as long as the worker lives."""
    monkeypatch.setattr("sluicegate.outbox.RETRY_S", 0)
    await stage.hold("h")
    stage.ledger.fails = {"h"}
    stage.settle("h", 2)
    running = asyncio.get_running_loop().create_task(stage.outbox.run())
    await settle()
    assert stage.outbox.backlog == 1
    stage.ledger.fails = set()
    await settle()
    assert stage.outbox.backlog == 0
    running.cancel()
