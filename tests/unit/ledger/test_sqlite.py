"""What is particular to the ledger in a file: transactions, locks, the write-ahead log, and files that are not as they should be."""

import asyncio
import os
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from sluicegate.core.claims import Admission, Settlement
from sluicegate.ledger import sqlite, sqlite_rows
from sluicegate.ledger.contract import LedgerRecovering, LedgerUnavailable, TreeState
from sluicegate.ledger.sqlite import SqliteLedger
from support_ledgers import Clock, Desk, use


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def ledger(tmp_path: Path, clock: Clock) -> AsyncIterator[SqliteLedger]:
    ledger = SqliteLedger(str(tmp_path / "ledger.db"), timeout_ms=60, clock_ms=clock)
    await ledger.open()
    await use(ledger, "t")
    yield ledger
    await ledger.close()


@pytest.fixture
def desk(ledger: SqliteLedger) -> Desk:
    return Desk(ledger)


def rows(path: Path, table: str) -> list[Any]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()
    finally:
        connection.close()


class Lock:
    """Another process that holds the write lock."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.connection.execute("BEGIN IMMEDIATE")

    def release(self) -> None:
        self.connection.execute("ROLLBACK")
        self.connection.close()


# -- files --------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["{}", "sqlite:///{}"])
async def test_the_file_is_made_with_its_folder(tmp_path: Path, form: str) -> None:
    """From a path or a URL; what is in it is there when it is opened again."""
    path = tmp_path / "a" / "b" / "ledger.db"
    for status in ("forced", "already"):
        ledger = SqliteLedger(form.format(path))
        await ledger.open()
        await use(ledger, "t")
        desk = Desk(ledger)
        assert await desk.settle(desk.refs(desk.window(100)), 7, mode="force") == status
        assert await desk.states(desk.refs(desk.window(100))) == [(7, 0)]
        await ledger.close()
        assert [entry.name for entry in path.parent.iterdir()] == ["ledger.db"]  # the log is copied into it


async def test_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three slashes and a name are below the working directory."""
    monkeypatch.chdir(tmp_path)
    ledger = SqliteLedger("sqlite:///data/ledger.db")
    await ledger.open()
    await ledger.close()
    assert (tmp_path / "data" / "ledger.db").exists()


def a_file(path: Path) -> None:
    path.parent.write_text("")


def a_folder(path: Path) -> None:
    path.mkdir(parents=True)


def garbage(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"this is no database, whatever its name says" * 100)


def newer(path: Path) -> None:
    path.parent.mkdir()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [(a_file, "exists|Not a directory"), (a_folder, "unable to open"), (garbage, "not a database"), (newer, "version 99")],
)
async def test_a_file_that_cannot_be_used(tmp_path: Path, spoil: Callable[[Path], None], message: str) -> None:
    """Every call fails, at once and with the reason and the path in its message."""
    path = tmp_path / "data" / "ledger.db"
    spoil(path)
    ledger = SqliteLedger(str(path))
    with pytest.raises(LedgerUnavailable, match=message) as caught:
        await ledger.open()
    assert str(path) in str(caught.value)
    ledger.trees["t"] = TreeState("first", 1, open=True)
    desk = Desk(ledger)
    with pytest.raises(LedgerUnavailable, match=message):
        await desk.admit(desk.refs(desk.window(1)), 1, 0)
    with pytest.raises(LedgerUnavailable, match=message):
        await ledger.show()
    await ledger.close()


async def test_a_ledger_that_could_not_be_opened_goes_on_trying(tmp_path: Path) -> None:
    """As soon as the file can be used, calls pass."""
    path = tmp_path / "data" / "ledger.db"
    garbage(path)
    ledger = SqliteLedger(str(path))
    with pytest.raises(LedgerUnavailable):
        await ledger.open()
    path.unlink()
    await ledger.ping()
    await ledger.close()


async def test_a_full_disk_fails_calls_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the transaction takes effect; when there is space again the ledger works again."""
    connect = sqlite_rows.connect
    pages_max = 9

    def small(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection = connect(*args, **kwargs)
        connection.execute(f"PRAGMA max_page_count = {pages_max}")
        return connection

    monkeypatch.setattr(sqlite_rows, "connect", small)
    ledger = SqliteLedger(str(tmp_path / "ledger.db"))
    await ledger.open()
    await use(ledger, "t")
    desk = Desk(ledger)
    refs = desk.refs(desk.window(10**6))
    calls = [desk.admit(refs, 1, 0, hold_id=f"h{i}") for i in range(sqlite.BATCH_CALLS)]
    for call in calls:
        with pytest.raises(LedgerUnavailable, match="full"):
            await call
    assert await desk.states(refs) == [(0, 0)]
    pages_max = 10_000
    ledger._disconnect()
    assert (await desk.admit(refs, 1, 0)).status == "granted"
    assert await desk.states(refs) == [(0, 1)]
    await ledger.close()


async def test_a_row_that_is_not_ours_fails_its_call_alone(desk: Desk, ledger: SqliteLedger) -> None:
    """Someone wrote into the file by hand: the calls that meet that row say so, others pass."""
    refs = desk.refs(desk.window(100))
    await desk.admit(refs, 1, 0, hold_id="bad")
    connection = sqlite3.connect(ledger.path)
    connection.execute("UPDATE holds SET record = '{\"hello\": 1}'")
    connection.commit()
    connection.close()
    bad, good = desk.ledger.settle(Settlement("bad", refs, (1,))), desk.admit(refs, 1, 0, hold_id="good")
    with pytest.raises(LedgerUnavailable, match=r"ledger\.db"):
        await bad
    assert (await good).status == "granted"


async def test_a_file_of_the_version_before_is_brought_up_to_date(tmp_path: Path) -> None:
    """Its counters and holds are those of no epoch: what they were worth is for the seeding to say. Other workers may open it at the same time."""
    path = tmp_path / "ledger.db"
    connection = sqlite3.connect(path)
    for statement in sqlite_rows.SCHEMA[: sqlite_rows.AS_OF_VERSION_2]:
        connection.execute(statement)
    connection.execute("INSERT INTO counters VALUES (?, 'b', '[5,0,1]', 0)", (Desk.key(Desk(None), "b"),))  # type: ignore[arg-type]
    connection.execute("PRAGMA user_version = 1")
    connection.commit()
    connection.close()
    ledgers = [SqliteLedger(str(path)) for _ in range(2)]
    for ledger in ledgers:
        await ledger.open()
        assert await ledger.seq("t", "first") == 0
    await use(ledgers[0], "t")
    desk = Desk(ledgers[0])
    assert (await desk.admit(desk.refs(desk.bucket(100)), 100, 0)).status == "granted"
    assert await ledgers[1].seq("t", "first") == 2
    for ledger in ledgers:
        await ledger.close()
    assert sqlite_rows.SCHEMA_VERSION == 2


async def test_the_run_of_the_machine_is_the_incarnation_of_a_file(tmp_path: Path) -> None:
    """With "normal" the last commits may be lost with the machine's power, so that another boot is a reason to look; with "full" nothing is."""
    """With "normal" the last commits may be lost with the machine's power, so that another boot is a reason to look; with "full" nothing is."""
    runs = {}
    for durability in ("normal", "full"):
        for boot in ("one", "two"):
            ledger = SqliteLedger(str(tmp_path / "ledger.db"), durability=durability, boot=lambda boot=boot: boot)  # type: ignore[arg-type, misc]
            assert ledger.incarnation("t") == ""
            await ledger.open()
            runs[durability, boot] = ledger.incarnation("t")
            await ledger.close()
    file = (tmp_path / "ledger.db").stat().st_ino
    assert [runs["normal", boot] for boot in ("one", "two")] == [f"one-{file}", f"two-{file}"]
    assert runs["full", "one"] == runs["full", "two"]


@pytest.mark.parametrize("how", ["deleted", "replaced"])
async def test_a_file_that_is_not_there_any_more_is_left(ledger: SqliteLedger, desk: Desk, tmp_path: Path, how: str) -> None:
    """Within a second nothing more is written to it, and every tree is in doubt: the name stands for another file, in another incarnation."""
    file, doubts = tmp_path / "ledger.db", []
    await desk.admit(desk.refs(desk.window(100)), 7, 0)
    ledger.on_doubt = lambda tree, why: doubts.append((tree, why))
    was, state = ledger.incarnation("t"), ledger.trees["t"]
    if how == "replaced":
        shutil.copy(file, tmp_path / "copy")
        os.rename(tmp_path / "copy", file)
    else:
        file.unlink()
    ledger._look()
    with pytest.raises(LedgerRecovering):
        await desk.admit(desk.refs(desk.window(100)), 7, 0)
    assert doubts == [("t", "the ledger's file was deleted or replaced")]
    assert await ledger.seq("t", state.epoch) == 0 or how == "replaced"
    assert ledger.incarnation("t") != was
    await use(ledger, "t", epoch="again")
    assert (await desk.admit(desk.refs(desk.window(100)), 7, 0)).status == "granted"
    assert len(doubts) == 1


async def test_it_looks_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when nobody asks anything."""
    monkeypatch.setattr(sqlite, "UPKEEP_EVERY_S", 0.01)
    ledger, doubted = SqliteLedger(str(tmp_path / "ledger.db")), asyncio.Event()
    ledger.on_doubt = lambda *_: doubted.set()
    await ledger.open()
    await use(ledger, "t")
    (tmp_path / "ledger.db").unlink()
    async with asyncio.timeout(30):
        await doubted.wait()
    await ledger.close()


def test_where_a_system_tells_no_boot_it_is_always_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Workers of one machine must agree."""
    assert sqlite.system_boot() == sqlite.system_boot() != ""
    monkeypatch.setattr(sqlite, "BOOT_ID", tmp_path / "missing")
    assert sqlite.system_boot() == "unknown"


async def test_an_epoch_that_is_lost_is_not_undone(desk: Desk, ledger: SqliteLedger) -> None:
    """It ends in the same transaction in which calls of other trees do their work."""
    await use(ledger, "other")
    other = Desk(ledger, "other")
    connection = sqlite3.connect(ledger.path)
    connection.execute("UPDATE epochs SET seq = 0 WHERE tree = 't'")
    connection.commit()
    connection.close()
    lost, works = desk.admit(desk.refs(desk.window(100)), 1, 0), other.admit(other.refs(other.window(100)), 1, 0)
    with pytest.raises(LedgerRecovering):
        await lost
    assert (await works).status == "granted"
    assert rows(ledger.path, "epochs") == [("other", "first", 2)]


async def test_an_expired_window_leaves_the_index_with_its_counter(desk: Desk, ledger: SqliteLedger, clock: Clock) -> None:
    """A clock that is put back must not find it expected and missing."""
    now = clock.now_ms
    refs = desk.refs(desk.window(100, "w", now, now + 1000))
    await desk.admit(refs, 1, 0)
    clock.now_ms += 2 * 3_600_000
    await ledger.tidy()
    assert [row[1] for row in rows(ledger.path, "windows")] == [""]
    assert rows(ledger.path, "counters") == []
    clock.now_ms = now
    assert (await desk.admit(refs, 1, 0, hold_id="new")).status == "granted"


# -- transactions -------------------------------------------------------------------------------------------------------------------------


async def test_calls_of_one_turn_share_a_transaction(desk: Desk, ledger: SqliteLedger) -> None:
    """More than one transaction holds go into the next one; all are answered, in order."""
    refs = desk.refs(desk.window(10**6))
    await ledger.ping()
    assert ledger._opened is not None
    statements: list[str] = []
    ledger._opened[1].set_trace_callback(statements.append)
    calls = [desk.admit(refs, 1, 0, hold_id=f"h{i}") for i in range(sqlite.BATCH_CALLS + 10)]
    replies = await asyncio.gather(*calls)
    assert [reply.states[0][1] for reply in replies] == list(range(1, sqlite.BATCH_CALLS + 11))
    assert statements.count("COMMIT") == 2


async def test_a_call_that_raises_takes_no_other_with_it(desk: Desk, ledger: SqliteLedger) -> None:
    """A settlement with a figure too few among good calls of the same turn."""
    refs = desk.refs(desk.window(100), desk.window(100, "w2"))
    before = desk.admit(refs, 1, 0, 1, 0, hold_id="before")
    bad = ledger.settle(Settlement("before", refs, (1,)))
    worse = ledger.admit(Admission("worse", refs, (1,), 1, 1, 1, 1000, ""))
    after = desk.admit(refs, 1, 0, 1, 0, hold_id="after")
    assert (await before).states == ((0, 1), (0, 1))
    with pytest.raises(ValueError, match="zip"):
        await bad
    with pytest.raises(IndexError):
        await worse
    assert (await after).states == ((0, 2), (0, 2))
    assert set(await desk.holds()) == {"before", "after"}


async def test_close_does_what_was_asked_before(tmp_path: Path) -> None:
    """A settlement that is still queued when the worker ends is not lost."""
    ledger = SqliteLedger(str(tmp_path / "ledger.db"))
    await ledger.open()
    await use(ledger, "t")
    desk = Desk(ledger)
    forced = ledger.settle(Settlement("h", desk.refs(desk.window(100)), (7,), "force"))
    await ledger.close()
    assert (await forced).status == "forced"
    assert [row[2] for row in rows(ledger.path, "counters")] == ["[7,0]"]


async def test_close_without_open(tmp_path: Path) -> None:
    """What was called all the same is done."""
    ledger = SqliteLedger(str(tmp_path / "ledger.db"))
    asked = ledger.peek(Desk(ledger).refs(Desk(ledger).window(100)))
    await ledger.close()
    assert (await asked).states == ((0, 0),)
    await SqliteLedger(str(tmp_path / "other.db")).close()
    assert not (tmp_path / "other.db").exists()


async def test_a_caller_that_has_left_changes_nothing(desk: Desk, ledger: SqliteLedger) -> None:
    """What it asked for is done, or fails, without it."""
    refs = desk.refs(desk.window(100))
    left = [desk.admit(refs, 5, 0), ledger.peek(None)]  # type: ignore[arg-type]
    tasks = [asyncio.ensure_future(call) for call in left]
    await asyncio.sleep(0)
    for call in list(ledger._queue):
        call.future.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert await desk.states(refs) == [(0, 5)]


async def test_a_hold_that_cannot_be_read_fails_the_sweep(desk: Desk, ledger: SqliteLedger, clock: Clock) -> None:
    """It says so, and what other trees had to sweep is not lost."""
    await use(ledger, "other")
    for one in (desk, Desk(ledger, "other")):
        await one.admit(one.refs(one.window(100)), 1, 0, hold_id="due", ttl_ms=10)
    connection = sqlite3.connect(ledger.path)
    connection.execute("UPDATE holds SET record = '7' WHERE tree = 't' AND hold_id = 'due'")
    connection.commit()
    connection.close()
    clock.now_ms += 20
    with pytest.raises(LedgerUnavailable, match=r"ledger\.db"):
        await ledger.sweep(9)
    del ledger.trees["t"]
    assert [swept.hold_id for swept in await ledger.sweep(9)] == ["due"]
    with pytest.raises(LedgerUnavailable, match=r"ledger\.db"):
        await ledger.show()


async def test_a_file_without_its_tables_fails_all(desk: Desk, ledger: SqliteLedger) -> None:
    """Nothing of the turn is done."""
    connection = sqlite3.connect(ledger.path)
    connection.execute("DROP TABLE counters")
    connection.commit()
    connection.close()
    with pytest.raises(LedgerUnavailable, match="no such table"):
        await desk.admit(desk.refs(desk.window(100)), 1, 0)


async def test_full_durability_commits_in_a_thread(tmp_path: Path) -> None:
    """Every commit is on the disk before it is answered; calls made meanwhile go together."""
    ledger = SqliteLedger(str(tmp_path / "ledger.db"), durability="full")
    await ledger.open()
    await use(ledger, "t")
    desk = Desk(ledger)
    refs = desk.refs(desk.window(1000))
    await desk.admit(refs, 1, 0, hold_id="first")
    assert ledger._opened is not None
    assert ledger._opened[1].execute("PRAGMA synchronous").fetchone() == (2,)
    replies = await asyncio.gather(*(desk.admit(refs, 10, 0, hold_id=f"h{i}") for i in range(120)))
    assert [reply.status for reply in replies].count("granted") == 99
    with pytest.raises(ValueError, match="zip"):
        await ledger.settle(Settlement("first", refs, ()))
    await ledger.close()


# -- locks --------------------------------------------------------------------------------------------------------------------------------


async def test_a_file_that_stays_locked(desk: Desk, ledger: SqliteLedger) -> None:
    """After the ledger's timeout every call fails with nothing done; the event loop goes on all the while."""
    refs = desk.refs(desk.window(100))
    await desk.admit(refs, 10, 0, hold_id="before")
    lock = Lock(ledger.path)
    calls = [desk.admit(refs, 1, 0, hold_id=f"h{i}") for i in range(5)]
    turns = 0
    while not all(call.done() for call in calls):
        await asyncio.sleep(0)
        turns += 1
    for call in calls:
        with pytest.raises(LedgerUnavailable, match=r"could not be locked within 0\.06 s"):
            await call
    with pytest.raises(LedgerUnavailable, match="locked"):
        await ledger.ping()
    lock.release()
    assert turns > 100
    assert await desk.states(refs) == [(0, 10)]
    assert set(await desk.holds()) == {"before"}


async def test_a_file_that_is_locked_for_a_moment(desk: Desk, ledger: SqliteLedger) -> None:
    """Calls wait, those that come meanwhile too, and keep their order."""
    refs = desk.refs(desk.window(100))
    lock = Lock(ledger.path)
    first = desk.admit(refs, 1, 0, hold_id="first")
    await asyncio.sleep(0.005)
    assert not first.done()
    second = desk.admit(refs, 1, 0, hold_id="second")
    lock.release()
    assert [(await call).states for call in (first, second)] == [((0, 1),), ((0, 2),)]


# -- what must not grow -------------------------------------------------------------------------------------------------------------------


async def test_nothing_is_left_of_settled_requests(desk: Desk, ledger: SqliteLedger, clock: Clock) -> None:
    """Holds go at settle, markers and expired records with a sweep, counters an hour after their window, buckets when they are full."""
    now = clock.now_ms
    refs = desk.refs(
        desk.window(10**6, "hour", now, now + 3_600_000), desk.window(10**6), desk.bucket(10**6, per_ms=1), desk.sliding(10**6), desk.concurrent(99)
    )
    for i in range(100):
        await desk.admit(refs, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, hold_id=f"h{i}")
        await desk.settle(refs, 1, 1, 1, 1, 1, hold_id=f"h{i}")
    assert [row[1] for row in rows(ledger.path, "holds")] == [""]
    assert len(rows(ledger.path, "counters")) == 5
    await desk.settle(refs, 1, 1, 1, 1, 1, hold_id="forced", mode="force")
    await desk.settle(refs, 1, 1, 1, 1, 1, hold_id="cancelled", mode="cancel")
    await desk.admit(refs, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, hold_id="expired", ttl_ms=10)
    await ledger.learned({"table": {"a": 1}})
    clock.now_ms += 2 * 3_600_000
    assert [swept.hold_id for swept in await ledger.sweep(64)] == ["expired"]
    await ledger.tidy()
    assert [row[0] for row in rows(ledger.path, "counters")] == [desk.key("s"), desk.key("w")]
    clock.now_ms += 8 * 86_400_000
    assert await ledger.sweep(64) == []
    await ledger.tidy()
    await ledger.learned({"other": {"a": 1}})
    assert [row[1] for row in rows(ledger.path, "holds")] == [""]
    assert [row[0] for row in rows(ledger.path, "counters")] == [desk.key("w")]
    assert [row[0] for row in rows(ledger.path, "learned")] == ["other"]


async def test_a_counter_that_was_used_again_is_not_forgotten(
    desk: Desk, ledger: SqliteLedger, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look for what has expired and the deletion a call may come."""
    refs = desk.refs(desk.bucket(100, per_ms=1))
    await desk.admit(refs, 50, 0)
    clock.now_ms += 1000
    transaction = sqlite_rows.transaction

    def late(connection: sqlite3.Connection) -> Any:
        other = sqlite_rows.connect(ledger.path, "normal", 1000)
        other.execute("UPDATE counters SET expires_ms = ?", (clock.now_ms + 1,))
        other.close()
        return transaction(connection)

    monkeypatch.setattr(sqlite_rows, "transaction", late)
    connection = sqlite_rows.connect(ledger.path, "normal", 1000)
    sqlite_rows.forget(connection, clock.now_ms)
    connection.close()
    assert len(rows(ledger.path, "counters")) == 1


async def test_a_long_log_is_cut(desk: Desk, ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copied into the file by the upkeep, while calls go on."""
    monkeypatch.setattr(sqlite, "WAL_BYTES", 100_000)
    log = ledger.path.with_name("ledger.db-wal")
    refs = desk.refs(desk.window(10**6))

    async def work(name: str) -> None:
        for i in range(30):
            assert (await desk.admit(refs, 1, 0, hold_id=f"{name}{i}")).status == "granted"

    await work("a")
    assert log.stat().st_size > 100_000
    await asyncio.gather(ledger.tidy(), work("b"))
    await ledger.tidy()
    assert log.stat().st_size < 100_000
    assert await desk.states(refs) == [(0, 60)]
    assert len(await desk.holds()) == 60


async def test_rows_can_be_read_with_any_tool(desk: Desk, ledger: SqliteLedger) -> None:
    """States and records are JSON text."""
    refs = desk.refs(desk.window(100))
    await desk.admit(refs, 10, 1000, output=(1, 5, 5))
    assert rows(ledger.path, "counters") == [(desk.key("w"), "w", "[0,15]", 0)]
    _, (tree, hold_id, record, _) = rows(ledger.path, "holds")
    assert (tree, hold_id, record) == ("t", "h", f'[1,"open",5,0,"tag-h",[["{desk.key("w")}","w",10,1000,0]]]')
