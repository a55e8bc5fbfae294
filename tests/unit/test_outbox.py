"""What was used, on its way to ledger and records: nothing is lost, nothing is charged twice."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog

from sluicegate import journal as journaling
from sluicegate.core.claims import Admission, Ref, RefSet, Seed, Settled, Settlement, Swept
from sluicegate.core.record import Record, Spent
from sluicegate.journal import Journal
from sluicegate.ledger.contract import LedgerUnavailable
from sluicegate.ledger.memory import MemoryLedger
from sluicegate.outbox import RETRY_AT_ONCE, Outbox
from sluicegate.records.rows import RecordsUnavailable, UsageRow
from support_ledgers import Clock, use, use_at_once
from support_recovery import FakeRecords
from support_sockets import settle

REFS = RefSet("t", [Ref("sg1:{t}:c:t:tokens:day:x", "w", 1000, marks=(900,))])


class FlakyLedger(MemoryLedger):
    """A memory ledger that is away when the test says so, before or after it has done what it was asked."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
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
        use_at_once(self.ledger, "t")
        self.directory = str(directory)
        self.states: list[Any] = []
        self.records = FakeRecords()
        self.marks: list[Any] = []
        self.late: list[tuple[str, int, str]] = []
        self.journal = Journal.open(self.directory, "w1", asyncio.get_running_loop(), self.states.append)
        self.outbox = self.beside(self.journal)

    def beside(self, journal: Journal) -> Outbox:
        """An outbox of another worker of the same machine."""
        return Outbox(self.ledger, journal, self.records, self.directory, {"t"}, lambda refs, marks: self.marks.append(marks), self.on_late)  # type: ignore[arg-type]

    def on_late(self, tree: str, spent: Spent, swept: Swept) -> None:
        self.late.append((tree, spent.input_tokens, swept.tag))

    async def hold(self, *hold_ids: str) -> None:
        for hold_id in hold_ids:
            await self.ledger.admit(Admission(hold_id, REFS, (5, 1000), 10, 10, 10, 60_000, "tag"))

    def settle(self, hold_id: str, used: int, record: Record | None = None, epoch: str = "first") -> None:
        self.outbox.settle(Settlement(hold_id, REFS, (used,), epoch=epoch), record, spent(used))

    async def lose(self, epoch: str, used: int = 0) -> None:
        """The state is lost and made anew."""
        del self.ledger.trees["t"]
        await use(self.ledger, "t", epoch=epoch, seeds=[Seed(REFS.refs[0], used)])


def spent(used: int, *, key_id: str = "t/@k", at_ms: int = 1_000) -> Spent:
    return Spent(key_id, "chat", "up/m", at_ms, 1, 1, used, 0, used * 7)


@pytest.fixture
async def stage(tmp_path: Path) -> Any:
    stage = Stage(tmp_path)
    yield stage
    stage.journal.close()


async def retry(stage: "Stage") -> None:
    with contextlib.suppress(LedgerUnavailable):
        await stage.outbox.retry()
    await settle()


async def until(check: Callable[[], bool]) -> None:
    """Lets every task go on until it is so."""
    async with asyncio.timeout(30):
        while not check():
            await settle()


async def test_a_settlement_is_taken_and_acknowledged(stage: Stage) -> None:
    """Journal first, then the ledger; when the ledger has it, nothing is owed."""
    await stage.hold("h")
    stage.settle("h", 7)
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


async def test_a_tree_whose_server_is_away_does_not_keep_others_from_being_settled(stage: Stage) -> None:
    """However much is owed to it, and however old that is."""
    use_at_once(stage.ledger, "u")
    await stage.hold(*(f"h{i}" for i in range(RETRY_AT_ONCE + 1)))
    stage.ledger.fails = {*(f"h{i}" for i in range(RETRY_AT_ONCE + 1)), "other"}
    other = Settlement("other", RefSet("u", [Ref("u", "w", 100)]), (3,), "force", epoch="first")
    for i in range(RETRY_AT_ONCE + 1):
        stage.settle(f"h{i}", 1)
    stage.outbox.settle(other, None, spent(3))
    await settle()
    stage.ledger.fails.discard("other")
    with pytest.raises(LedgerUnavailable):
        await stage.outbox.retry()
    await settle()
    assert (await stage.ledger.peek(other.refs)).states == ((3, 0),)
    assert stage.outbox.backlog == RETRY_AT_ONCE + 1


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


async def test_marks_that_a_settlement_reached_are_told(stage: Stage) -> None:
    """Once, to whoever warns."""
    await stage.hold("h", "i")
    stage.settle("h", 899)
    stage.settle("i", 20)
    await settle()
    assert stage.marks == [((0, 0),)]


async def test_a_settlement_that_came_late_is_told(stage: Stage, tmp_path: Path) -> None:
    """With what it spent and what the sweep told: at once, after a failure, and from what a dead worker left."""
    await stage.hold("a", "b", "c", "d")
    stage.clock.now_ms += 61_000
    assert len(await stage.ledger.sweep(64)) == 4
    stage.settle("a", 7)
    stage.ledger.fails = {"b"}
    stage.settle("b", 8)
    stage.outbox.settle(Settlement("d", REFS, (9,), epoch="first"), None)  # the usage of which another line tells
    await settle()
    stage.ledger.fails = set()
    await retry(stage)
    line = journaling.encode(Settlement("c", REFS, (9,), epoch="first"), None, spent(9), "w0", 1)
    (tmp_path / "w0-1-1.journal").write_bytes(line)
    await stage.outbox.replay()
    assert stage.late == [("t", 7, "tag"), ("t", 8, "tag"), ("t", 9, "tag")]


# -- the records --------------------------------------------------------------------------------------------------------------------------


async def test_usage_is_added_up_and_sent_once(stage: Stage) -> None:
    """By second of admission, key, model and deployment; the batch says up to which line."""
    await stage.hold("a", "b", "c", "d")
    for hold_id, used, at_ms, key_id in [("a", 5, 1_000, "t/@k"), ("b", 6, 1_999, "t/@k"), ("c", 7, 2_000, "t/@k"), ("d", 8, 2_000, "t/@j")]:
        stage.outbox.settle(Settlement(hold_id, REFS, (used,), epoch="first"), None, spent(used, at_ms=at_ms, key_id=key_id))
    await stage.outbox.flush()
    await stage.outbox.flush()
    assert stage.records.batches == [
        (
            "w1",
            4,
            [
                UsageRow("t", 1, "t/@k", "chat", "up/m", 2, 2, 11, 0, 77),
                UsageRow("t", 2, "t/@k", "chat", "up/m", 1, 1, 7, 0, 49),
                UsageRow("t", 2, "t/@j", "chat", "up/m", 1, 1, 8, 0, 56),
            ],
        )
    ]


@pytest.mark.parametrize("done", [False, True], ids=["nothing was done", "it was done"])
async def test_a_batch_of_unknown_outcome_is_sent_again_as_it_was(stage: Stage, done: bool) -> None:
    """Before anything else: were it sent with more, what had been taken would count twice."""
    await stage.hold("a", "b")
    stage.settle("a", 5)
    stage.records.away, stage.records.after = True, done
    with pytest.raises(RecordsUnavailable):
        await stage.outbox.flush()
    stage.settle("b", 6)
    with pytest.raises(RecordsUnavailable):
        await stage.outbox.flush()
    stage.records.away = False
    await stage.outbox.flush()
    assert [(upto, len(rows)) for _, upto, rows in stage.records.batches] == [(1, 1), (1, 1), (1, 1), (2, 1)]
    assert stage.records.total() == 11


async def test_what_the_ledger_need_not_be_told_waits_for_the_records_alone(stage: Stage, tmp_path: Path) -> None:
    """It is in the journal until they have it, and owed to nobody else."""
    stage.outbox.spend("t", "h", spent(9))
    await settle()
    assert (stage.outbox.backlog, stage.ledger.tried, len(files(tmp_path)), stage.journal.backlog) == (0, [], 1, 1)
    await stage.outbox.flush()
    assert (stage.records.total(), stage.journal.backlog) == (9, 0)
    stage.journal.close()
    assert files(tmp_path) == []


async def test_the_journal_keeps_what_the_records_lack(stage: Stage, tmp_path: Path) -> None:
    """The ledger has it; the file stays until the records have it too, and a line of each kind is enough for both."""
    await stage.hold("h")
    stage.settle("h", 7)
    await settle()
    stage.records.away = True
    with pytest.raises(RecordsUnavailable):
        await stage.outbox.flush()
    stage.journal.close()
    assert len(files(tmp_path)) == 1


# -- across epochs ------------------------------------------------------------------------------------------------------------------------


async def test_a_settlement_of_another_epoch_is_not_sent_as_it_is(stage: Stage) -> None:
    """Its hold is unknown there, which would mean that it was settled."""
    await stage.hold("h")
    await stage.lose("second")
    stage.settle("h", 7)
    await settle()
    assert (stage.ledger.tried, stage.outbox.backlog) == ([], 1)


async def test_what_the_sums_of_a_seeding_had_is_done(stage: Stage) -> None:
    """It was recorded before the tree was seeded: the seeded counter has it."""
    await stage.hold("h")
    del stage.ledger.trees["t"]
    stage.settle("h", 7)
    await stage.outbox.flush()
    stage.records.seeded = dict(stage.records.uptos)
    await use(stage.ledger, "t", epoch="second", seeds=[Seed(REFS.refs[0], stage.records.total())])
    await retry(stage)
    assert (stage.outbox.backlog, await stage.ledger.used(), stage.ledger.tried) == (0, 7, [])


async def test_what_they_did_not_have_is_charged_and_recorded_before(stage: Stage) -> None:
    """So that the next seeding has it; once, though sent again."""
    await stage.hold("h", "i")
    await stage.lose("second")
    stage.settle("h", 7)
    stage.ledger.fails, stage.ledger.after = {"h"}, True
    await retry(stage)
    assert stage.records.uptos == {"w1": 1}
    stage.ledger.fails = set()
    await retry(stage)
    assert (stage.outbox.backlog, await stage.ledger.used()) == (0, 7)


async def test_it_is_not_charged_while_the_records_are_away(stage: Stage) -> None:
    """Nobody could tell whether they had it."""
    await stage.lose("second")
    stage.settle("h", 7)
    stage.records.away = True
    with pytest.raises(RecordsUnavailable):
        await stage.outbox.retry()
    assert (stage.outbox.backlog, await stage.ledger.used()) == (1, 0)


async def test_nothing_used_in_another_epoch_is_nothing_owed(stage: Stage) -> None:
    """A hold that is given back went with its epoch."""
    await stage.lose("second")
    stage.outbox.settle(Settlement("h", REFS, (0,), "cancel", "first"), None)
    await retry(stage)
    assert (stage.outbox.backlog, stage.ledger.tried) == (0, [])


async def test_a_tree_that_is_recovering_holds_up_no_other(stage: Stage) -> None:
    """Its settlements wait; those of others are sent."""
    other = RefSet("u", [Ref("sg1:{u}:c:u:tokens:day:x", "w", 1000)])
    del stage.ledger.trees["t"]
    stage.settle("h", 7)
    stage.ledger.fails = {"i"}
    await use(stage.ledger, "u")
    stage.outbox.settle(Settlement("i", other, (5,), "force", "first"), None)
    await settle()
    stage.ledger.fails = set()
    await retry(stage)
    assert (stage.outbox.backlog, (await stage.ledger.peek(other)).states) == (1, ((5, 0),))


async def test_lost_again_meanwhile(stage: Stage) -> None:
    """The epoch goes while the records are asked: nothing is charged to the wrong one."""
    await stage.lose("second")
    stage.settle("h", 7)
    ask = stage.records.included

    async def included(tree: str, writer: str, seq: int) -> bool:
        found = await ask(tree, writer, seq)
        await stage.lose("third", used=7)
        stage.records.seeded = {"w1": 1}
        return found

    stage.records.included = included  # type: ignore[method-assign]
    await retry(stage)
    assert (stage.ledger.tried, stage.outbox.backlog) == ([], 1)
    stage.records.included = ask  # type: ignore[method-assign]
    await retry(stage)
    assert (stage.outbox.backlog, await stage.ledger.used()) == (0, 7)


async def test_a_seeding_without_this_worker_is_caught_up_with(stage: Stage) -> None:
    """What the old state took and the sums do not have is charged again, from this worker's own journal."""
    await stage.hold("a", "b", "c", "d")
    stage.settle("a", 3)
    await stage.outbox.flush()
    stage.records.seeded = dict(stage.records.uptos)
    for hold_id, used in [("b", 4), ("c", 5)]:
        stage.settle(hold_id, used)
    stage.outbox.settle(Settlement("d", REFS, (0,), "cancel", "first"), None)
    await settle()
    mark = stage.outbox.last_seq
    await stage.lose("second", used=3)
    await stage.outbox.catch_up("t", mark)
    await stage.outbox.catch_up("t", mark)
    await settle()
    assert (await stage.ledger.used(), stage.outbox.backlog) == (12, 0)


async def test_a_seeding_with_this_worker_needs_no_look_at_the_journal(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that the old state took was recorded before; only what is still owed is charged."""
    monkeypatch.setattr("sluicegate.leftovers.read_own", None)
    await stage.hold("a", "b")
    stage.settle("a", 3)
    await settle()
    mark = stage.outbox.last_seq
    await stage.outbox.flush()
    stage.records.seeded = dict(stage.records.uptos)
    del stage.ledger.trees["t"]
    stage.settle("b", 4)
    await use(stage.ledger, "t", epoch="second", seeds=[Seed(REFS.refs[0], 3)])
    await stage.outbox.catch_up("t", mark)
    await settle()
    assert (await stage.ledger.used(), stage.outbox.backlog) == (7, 0)


# -- replay -------------------------------------------------------------------------------------------------------------------------------


def entry(number: int, used: int, *, writer: str = "w0", epoch: str = "first", mode: Any = "settle", refs: RefSet = REFS) -> bytes:
    return journaling.encode(Settlement(f"h{number}", refs, (used,), mode, epoch), None, spent(used), writer, number)


async def test_a_worker_that_dies_leaves_what_is_owed(tmp_path: Path) -> None:
    """Its successor settles and records it, with the actual figures and the mode, once, and the file is gone."""
    stage = Stage(tmp_path)
    await stage.hold("settled", "owed", "done", "never")
    stage.ledger.fails = {"owed", "done", "forced", "never"}
    stage.settle("settled", 3)
    await stage.outbox.flush()
    stage.settle("owed", 4, Record("req_1", 1))
    stage.outbox.settle(Settlement("forced", REFS, (5,), "force", "first"), None, spent(5))
    stage.outbox.settle(Settlement("never", REFS, (0,), "cancel", "first"), None)
    stage.outbox.spend("t", "swept", spent(100))
    stage.ledger.after = True
    stage.settle("done", 6)
    await settle()
    stage.journal.close()
    stage.ledger.fails = set()
    successor = stage.beside(Journal.open(tmp_path, "w2"))
    assert await successor.replay() == 3
    assert (await stage.ledger.used(), stage.records.total()) == (3 + 4 + 5 + 6, 3 + 4 + 5 + 6 + 100)
    assert (await stage.ledger.show())[0][0].held == 0
    assert await successor.replay() == 0
    assert (files(tmp_path), stage.records.uptos) == ([], {})


@pytest.mark.parametrize("away", ["ledger", "records"])
async def test_a_replay_that_fails_half_way_is_done_again(tmp_path: Path, away: str) -> None:
    """The file stays until both have all of it; what was taken already is not taken again."""
    stage = Stage(tmp_path)
    (tmp_path / "w0-1-1.journal").write_bytes(b"".join(entry(i, 10, mode="force") for i in range(1, 4)))
    stage.ledger.fails = {"h2"} if away == "ledger" else set()
    stage.records.away = stage.records.after = away == "records"
    with pytest.raises((LedgerUnavailable, RecordsUnavailable)):
        await stage.outbox.replay()
    stage.ledger.fails, stage.records.away = set(), False
    await stage.outbox.replay()
    assert (await stage.ledger.used(), stage.records.total(), files(tmp_path)) == (30, 30, [])


async def test_a_server_that_is_away_keeps_nobody_elses_leftovers_waiting(tmp_path: Path) -> None:
    """Its lines stay to be found again; those of other trees, in the same files and in others, are taken over."""
    stage = Stage(tmp_path)
    stage.journal.close()
    use_at_once(stage.ledger, "u")
    other = RefSet("u", [Ref("sg1:{u}:c:u:tokens:day:x", "w", 1000)])
    lines = [
        journaling.encode(Settlement(hold_id, refs, (10,), "force", epoch="first"), None, spent(10), writer, seq)
        for writer, seq, hold_id, refs in [("a", 1, "away", REFS), ("a", 2, "here", other), ("b", 1, "too", other), ("b", 2, "late", REFS)]
    ]
    (tmp_path / "a-1-1.journal").write_bytes(lines[0] + lines[1])
    (tmp_path / "a-2-1.journal").write_bytes(journaling.encode(Settlement("more", REFS, (10,), "force", epoch="first"), None, spent(10), "a", 3))
    (tmp_path / "b-3-1.journal").write_bytes(lines[2] + lines[3])
    stage.ledger.fails = {"away"}
    outbox = Outbox(stage.ledger, Journal.open(tmp_path, "w2"), stage.records, str(tmp_path), {"t", "u"}, lambda *_: None, stage.on_late)  # type: ignore[arg-type]
    with pytest.raises(LedgerUnavailable):
        await outbox.replay()
    assert (await stage.ledger.peek(other)).states[0] == (20, 0)
    assert (await stage.ledger.used(), stage.records.total(), stage.ledger.tried.count("more")) == (10, 50, 0)
    assert sorted(path.name for path in files(tmp_path)) == ["a-1-1.journal", "a-2-1.journal"]
    stage.ledger.fails = set()
    assert await outbox.replay() == 2
    assert (await stage.ledger.used(), stage.records.total(), files(tmp_path)) == (30, 50, [])


async def test_a_replay_passes_over_what_cannot_be_read(tmp_path: Path) -> None:
    """A torn last line and a spoilt one cost nobody the others."""
    stage = Stage(tmp_path)
    (tmp_path / "w0-1-1.journal").write_bytes(entry(1, 10, mode="force") + b"{spoilt\n" + entry(2, 10, mode="force") + entry(3, 1)[:20])
    with structlog.testing.capture_logs() as logs:
        assert await stage.outbox.replay() == 2
    assert await stage.ledger.used() == 20
    assert [(line["lines"], line["torn"]) for line in logs if "lines" in line] == [(1, True)]


async def test_a_replay_across_a_seeding_counts_once(tmp_path: Path) -> None:
    """Lines that the sums had are done; those that they had not are charged, now and after one more death."""
    stage = Stage(tmp_path)
    stage.records.uptos, stage.records.seeded = {"w0": 2}, {"w0": 2}
    stage.records.rows = [UsageRow("t", 1, "t/@k", "chat", "up/m", 2, 2, 20, 0, 0)]
    await stage.lose("second", used=20)
    (tmp_path / "w0-1-1.journal").write_bytes(b"".join(entry(i, 10) for i in range(1, 5)) + entry(5, 0, mode="cancel"))
    stage.ledger.fails = {"h4"}
    with pytest.raises(LedgerUnavailable):
        await stage.outbox.replay()
    stage.ledger.fails = set()
    await stage.outbox.replay()
    assert (await stage.ledger.used(), stage.records.total()) == (40, 40)


async def test_a_replay_knows_the_format_before(tmp_path: Path) -> None:
    """Its lines belong to no epoch: they are charged once, whatever the ledger knows of their holds."""
    stage = Stage(tmp_path)
    record = b'{"request_id":"r","time_ms":1,"key_id":"t/@k","input_tokens":7}'
    old = b'[1,1000,"h","settle","t",[["sg1:{t}:c:t:tokens:day:x","w",1000,0,0,0,0]],[7],%b]\n' % record
    (tmp_path / "77-1-1.journal").write_bytes(old)
    await stage.hold("h")
    await stage.outbox.replay()
    assert (await stage.ledger.used(), stage.records.total(), files(tmp_path)) == (7, 7, [])


async def test_a_tree_that_is_no_longer_configured_is_recorded_only(tmp_path: Path) -> None:
    """It has no state to settle in; its file does not stay for ever."""
    stage = Stage(tmp_path)
    (tmp_path / "w0-1-1.journal").write_bytes(entry(1, 10, refs=RefSet("gone", REFS.refs)))
    await stage.outbox.replay()
    assert (stage.records.total(), stage.ledger.tried, files(tmp_path)) == (10, [], [])


async def test_the_usage_of_the_dead_comes_before_a_seeding(tmp_path: Path) -> None:
    """It is recorded while the file stays, for the ledger's sake; a replay later does not record it again."""
    stage = Stage(tmp_path)
    (tmp_path / "w0-1-1.journal").write_bytes(entry(1, 10))
    await stage.outbox.record_leftovers()
    assert (stage.records.total(), len(files(tmp_path))) == (10, 1)
    await stage.outbox.replay()
    assert (stage.records.total(), files(tmp_path)) == (10, [])


# -- by itself ----------------------------------------------------------------------------------------------------------------------------


async def test_the_loop_goes_on_by_itself(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a period, as long as the worker lives: what is owed, what is to be recorded, what others leave; a change of the records is logged once."""
    monkeypatch.setattr("sluicegate.outbox.RETRY_S", 0)
    await stage.hold("h")
    stage.ledger.fails = {"h"}
    stage.settle("h", 2)
    stage.records.away = True
    with structlog.testing.capture_logs() as logs:
        running = asyncio.get_running_loop().create_task(stage.outbox.run())
        await until(lambda: len(stage.records.batches) > 2)
        assert stage.outbox.backlog == 1
        stage.ledger.fails = set()
        await until(lambda: not stage.outbox.backlog)
        assert stage.records.total() == 0
        stage.records.away = False
        await until(lambda: stage.records.total() == 2)
        (tmp_path / "w0-1-1.journal").write_bytes(entry(1, 10, mode="force"))
        await until(lambda: stage.records.total() == 12 and len(files(tmp_path)) == 1)
        stage.ledger.settle = None  # type: ignore[assignment, method-assign]
        (tmp_path / "w0-1-1.journal").write_bytes(entry(2, 10, mode="force"))
        await until(lambda: any(line["event"] == "background work failed" for line in logs))
        assert not running.done()
        running.cancel()
    assert await stage.ledger.used() == 12
    assert [(line["from"], line["to"]) for line in logs if line["event"] == "records state"] == [("up", "away"), ("away", "up")]


async def test_the_end_waits_for_both_for_a_while(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ledger and records have taken leaves no trace; what they have not stays in the journal."""
    monkeypatch.setattr("sluicegate.outbox.FINISH_EVERY_S", 0)
    await stage.hold("h", "i")
    stage.settle("h", 2)
    await stage.outbox.finish(5)
    assert (stage.records.total(), stage.records.uptos) == (2, {})
    stage.ledger.fails = {"i"}
    stage.settle("i", 3)
    await stage.outbox.finish(0.1)
    stage.journal.close()
    assert (stage.records.uptos, len(files(tmp_path))) == ({"w1": 2}, 1)


@pytest.mark.parametrize("idle", [False, True], ids=["with the next usage", "when nothing is used"])
async def test_records_that_were_lost_get_again_what_the_journal_has(stage: Stage, logged: list[Any], idle: bool) -> None:
    """Other records than before, and new: usage that they had is in its file still, and is added once more; one line tells."""
    await stage.hold("a", "b", "c")
    stage.settle("a", 7)
    stage.settle("b", 20)
    await stage.outbox.flush()
    stage.records.lose()
    if idle:
        stage.records.session += 1
    else:
        stage.settle("c", 100)
    for _ in range(2):
        await stage.outbox.flush()
    assert (stage.records.total(), stage.records.uptos) == ((27, {"w1": 2}) if idle else (127, {"w1": 3}))
    assert [(line["event"], line["added_lines"], line["lost_lines"]) for line in logged] == [("records had lost usage", 2, 0)]


async def test_an_older_copy_of_the_records_gets_what_it_lacks(stage: Stage) -> None:
    """And nothing that it has."""
    await stage.hold("a", "b")
    stage.settle("a", 7)
    await stage.outbox.flush()
    stage.settle("b", 20)
    await stage.outbox.flush()
    stage.records.rows, stage.records.uptos = stage.records.rows[:1], {"w1": 1}
    stage.records.session += 1
    await stage.outbox.flush()
    assert (stage.records.total(), stage.records.uptos) == (27, {"w1": 2})


async def test_what_neither_records_nor_journal_have_is_counted(tmp_path: Path, logged: list[Any]) -> None:
    """A file of the journal is deleted once ledger and records have its lines: those are gone with the records."""
    stage = Stage(tmp_path)
    stage.journal._segment_bytes = 1
    await stage.hold("a", "b")
    stage.settle("a", 7)
    await settle()
    await stage.outbox.flush()
    stage.journal._segment_bytes = 2**20
    stage.settle("b", 20)
    await settle()
    await stage.outbox.flush()
    stage.records.lose()
    stage.records.session += 1
    await stage.outbox.flush()
    assert stage.records.total() == 20
    assert [(line["added_lines"], line["lost_lines"]) for line in logged] == [(1, 1)]
    stage.journal.close()


async def test_records_that_are_away_when_they_are_looked_at_are_asked_again(stage: Stage) -> None:
    """Nothing is taken for done."""
    await stage.hold("a")
    stage.settle("a", 7)
    await stage.outbox.flush()
    stage.records.lose()
    stage.records.session += 1
    stage.records.away = True
    with pytest.raises(RecordsUnavailable):
        await stage.outbox.flush()
    stage.records.away = False
    await stage.outbox.flush()
    assert stage.records.total() == 7


# -- requests in the records ----------------------------------------------------------------------------------------------------------------


def ended(request_id: str) -> Record:
    return Record(request_id, 1_000, "t/@k", "chat", "up/m", status=200)


async def test_each_line_that_tells_something_is_sent_once(stage: Stage) -> None:
    """What an attempt was charged, how a request ended, both, or the end of one that has used nothing; a line of neither is not."""
    await stage.hold("a.1", "b.1", "c.1")
    for hold_id, record, charged in [("a.1", None, spent(5)), ("b.1", ended("b"), spent(6)), ("c.1", None, None)]:
        stage.outbox.settle(Settlement(hold_id, REFS, (5,), epoch="first"), record, charged)
    stage.outbox.spend("t", "d", None, ended("d"))
    for _ in range(2):
        await stage.outbox.flush()
    told = [(hold_id, record is not None, charged is not None) for _, hold_id, record, charged in stage.records.lines]
    assert told == [("a.1", False, True), ("b.1", True, True), ("d", True, False)]
    assert (stage.records.uptos, stage.records.total()) == ({"w1": 4}, 11)


async def test_the_end_of_a_request_survives_its_worker(stage: Stage, tmp_path: Path) -> None:
    """One that has used nothing too: it is in the journal until the records have it, and replayed once."""
    stage.outbox.spend("t", "d", None, ended("d"))
    stage.journal.close()
    later = stage.beside(Journal.open(tmp_path, "w2", asyncio.get_running_loop()))
    for _ in range(2):
        await later.replay()
    assert [(hold_id, record) for _, hold_id, record, _ in stage.records.lines] == [("d", ended("d"))]
    assert files(tmp_path) == []


@pytest.mark.parametrize("unwritable", [False, True], ids=["all is written", "the disk takes nothing any more"])
async def test_memory_is_bounded_while_the_records_are_away(stage: Stage, monkeypatch: pytest.MonkeyPatch, unwritable: bool) -> None:
    """Beyond that the journal alone keeps the lines: they are read back, each once and in order, with what comes meanwhile behind them."""
    monkeypatch.setattr("sluicegate.outbox.LINES_MAX", 5)
    stage.journal._segment_bytes = 400
    names = [f"r{number}" for number in range(24)]
    stage.records.away = True
    for name in names[:20]:
        stage.outbox.spend("t", name, spent(1), ended(name))
        if name in ("r3", "r12"):
            with pytest.raises(RecordsUnavailable):
                await stage.outbox.flush()
        await settle()
    assert len(stage.outbox._lines) == 5
    if unwritable:

        def refuse() -> None:
            raise OSError("no space")

        monkeypatch.setattr(stage.journal, "_write", refuse)
    for name in names[20:22]:
        stage.outbox.spend("t", name, spent(1), ended(name))
    with pytest.raises(RecordsUnavailable):
        await stage.outbox.flush()
    stage.records.away = False
    flushing = asyncio.create_task(stage.outbox.flush())
    await asyncio.sleep(0)
    for name in names[22:]:
        stage.outbox.spend("t", name, spent(1), ended(name))
    await flushing
    await stage.outbox.flush()
    assert [hold_id for _, hold_id, _, _ in stage.records.lines] == names
    assert (stage.records.total(), stage.records.uptos, stage.outbox._lines) == (24, {"w1": 24}, [])
