"""A call is answered in time whatever the database does, what passes by itself is tried again, and no error tells a secret."""

import asyncio
import contextlib
import itertools
import os
import signal
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, text

from sluicegate.records.database import Database
from sluicegate.records.rows import RecordsTooNew, RecordsUnavailable
from sluicegate.records.schema import SCHEMA_VERSION
from sluicegate.records.sqlite import Sqlite
from sluicegate.records.store import Records
from support_gateway import free_port
from support_postgres import PASSWORD, fresh
from support_records import asked, opened, used

PATIENCE_S = 1.0
WRITTEN_PASSWORD = "pa%3Ass%2Fw%40rd"


@contextlib.asynccontextmanager
async def database(url: str, timeout_s: float = PATIENCE_S) -> AsyncIterator[Database]:
    one = Database(url, timeout_s)
    try:
        yield one
    finally:
        await one.close()


@contextlib.contextmanager
def locked(url: str) -> Iterator[None]:
    """Somebody else has the SQLite file."""
    with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/made/records.db"


# -- SQLite -------------------------------------------------------------------------------------------------------------------------------


async def test_a_locked_file_is_told_in_time(sqlite_url: str) -> None:
    """The call fails, says why, and the event loop goes on meanwhile; when the file is free, the next call works."""
    async with database(sqlite_url) as one:
        await one.call(lambda connection: None)
        with locked(sqlite_url):
            waiting = asyncio.create_task(one.call(lambda connection: None))
            turns = 0
            while not waiting.done():
                await asyncio.sleep(0.01)
                turns += 1
            assert turns > 5
            with pytest.raises(RecordsUnavailable, match=r"made/records\.db: (database is locked|no answer within 1 s)"):
                await waiting
        assert await one.call(lambda connection: 7) == 7


async def test_a_file_locked_for_a_moment_is_waited_for(sqlite_url: str) -> None:
    """Another process holds the lock during a part of the timeout: the call succeeds."""
    async with database(sqlite_url, 20.0) as one:
        await one.call(lambda connection: None)
        with locked(sqlite_url):
            waiting = asyncio.create_task(one.call(lambda connection: 7))
            await asyncio.sleep(0.1)
            assert not waiting.done()
        assert await waiting == 7


async def test_reading_does_not_wait_for_writers(sqlite_url: str) -> None:
    """A sum is answered while somebody else writes."""
    async with opened(sqlite_url) as records:
        await records.add("w", 1, [used()])
        with locked(sqlite_url):
            assert await records.sums([asked()]) == [1]


async def test_commits_survive_a_power_cut(sqlite_url: str) -> None:
    """The file is in write-ahead mode, and each commit is synced to the disk."""
    async with database(sqlite_url) as one:
        pragmas = [f"PRAGMA {name}" for name in ("journal_mode", "synchronous")]
        assert await one.call(lambda connection: [connection.exec_driver_sql(pragma).scalar() for pragma in pragmas]) == ["wal", 2]


async def test_a_statement_that_does_not_end_is_cut(sqlite_url: str) -> None:
    """The caller is told within the timeout, and the thread is free for what comes next."""
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    async with database(sqlite_url, 2.0) as one:
        with pytest.raises(RecordsUnavailable, match=r"no answer within 2 s"):
            await one.call(lambda connection: connection.exec_driver_sql(endless).scalar())
        assert await one.call(lambda connection: connection.exec_driver_sql("SELECT 7").scalar()) == 7


async def test_calls_behind_one_that_hangs_are_told_too(sqlite_url: str) -> None:
    """What waited for the thread until its time was over fails and is not run afterwards."""
    ran = []
    async with database(sqlite_url, 2.0) as one:
        await one.call(lambda connection: None)
        hangs = threading.Event()
        slow = asyncio.create_task(one.call(lambda connection: hangs.wait()))
        await asyncio.sleep(0)
        with pytest.raises(RecordsUnavailable, match="no answer within"):
            await one.call(lambda connection: ran.append(1))
        with pytest.raises(RecordsUnavailable, match="no answer within"):
            await slow
        hangs.set()
        assert await one.call(lambda connection: ran.append(2)) is None
    assert ran == [2]


async def test_what_is_no_database_is_told(tmp_path: Path) -> None:
    """A file of something else, or a place where no file can be, is an error of the call, every time."""
    (tmp_path / "text").write_text("not a database " * 100)
    for place in ("text", "text/records.db"):
        async with database(f"sqlite:///{tmp_path}/{place}") as one:
            for _ in range(2):
                with pytest.raises(RecordsUnavailable, match=f"{place}: "):
                    await one.call(lambda connection: None)


async def test_a_call_whose_caller_has_left_does_its_work(sqlite_url: str) -> None:
    """Cancelling the wait does not undo what was asked for, and nothing is said about it in the end."""
    async with opened(sqlite_url) as records:
        leaving = asyncio.create_task(records.add("w", 1, [used()]))
        await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        assert await records.sums([asked()]) == [1]


async def test_a_call_whose_caller_has_left_is_cut_all_the_same(sqlite_url: str) -> None:
    """Nobody waits for it, but the thread must be free for the next."""
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    async with database(sqlite_url, 1.0) as one:
        await one.call(lambda connection: None)
        leaving = asyncio.create_task(one.call(lambda connection: connection.exec_driver_sql(endless).scalar()))
        await asyncio.sleep(0.05)
        leaving.cancel()
        await asyncio.wait([leaving])
        await asyncio.sleep(1.0)
        assert await one.call(lambda connection: 7) == 7


def test_nothing_is_cut_before_there_is_a_connection(sqlite_url: str) -> None:
    """A call may be given up while it connects."""
    Sqlite(sqlite_url, 1.0).cut()
    assert not Path(sqlite_url.removeprefix("sqlite:///")).exists()


@pytest.mark.parametrize("left", [(), ("-wal", "-shm")], ids=["all of it", "not what is beside it"])
async def test_a_file_that_is_deleted_is_noticed(sqlite_url: str, logged: list[Any], left: tuple[str, ...]) -> None:
    """The next call of each worker finds a new file, with tables, and says so once; what one writes the other reads."""
    file = Path(sqlite_url.removeprefix("sqlite:///"))
    async with opened(sqlite_url) as one, opened(sqlite_url) as two:
        await one.add("w", 3, [used()])
        was = (one.identity, one.session)
        for name in {"", "-wal", "-shm"} - set(left):
            file.with_name(file.name + name).unlink()
        await two.add("v", 1, [used(requests=5)])
        assert await one.sums([asked()]) == [5] == await two.sums([asked()])
        await one.add("w", 4, [used(requests=10)])
        assert await two.sums([asked()]) == [15]
        assert one.identity == two.identity != was[0] and one.session == was[1] + 1
    assert [line["event"] for line in logged] == ["records replaced"] * 2
    assert sqlite3.connect(file).execute("PRAGMA integrity_check").fetchone() == ("ok",)


async def test_a_file_that_is_replaced_is_noticed(sqlite_url: str, tmp_path: Path) -> None:
    """By an older copy of itself: it is that database, in another session."""
    file = Path(sqlite_url.removeprefix("sqlite:///"))
    async with opened(sqlite_url) as one:
        await one.add("w", 3, [used()])
        with contextlib.closing(sqlite3.connect(file)) as source, contextlib.closing(sqlite3.connect(tmp_path / "copy")) as copy:
            source.backup(copy)
        await one.add("w", 4, [used(requests=10)])
        was = (one.identity, one.session)
        for name in ("-wal", "-shm"):
            file.with_name(file.name + name).unlink()
        (tmp_path / "copy").rename(file)
        assert (await one.sums([asked()]), one.identity, one.session) == ([1], was[0], was[1] + 1)


async def test_a_place_that_is_gone_is_told_once_and_tried_again(sqlite_url: str, logged: list[Any]) -> None:
    """The folder cannot be made while something else has its name: calls fail, and work as soon as it can."""
    folder = Path(sqlite_url.removeprefix("sqlite:///")).parent
    async with opened(sqlite_url) as one:
        folder.rename(folder.with_name("moved"))
        folder.write_text("in the way")
        for _ in range(2):
            with pytest.raises(RecordsUnavailable, match="made"):
                await one.sums([asked()])
        folder.unlink()
        assert await one.sums([asked()]) == [0]
    assert [line["event"] for line in logged] == ["records replaced"]


async def test_rounds_of_a_new_database_begin_above_old_ones(sqlite_url: str) -> None:
    """Whatever a worker has confirmed in one that is gone, it has not confirmed here."""
    async with opened(sqlite_url) as one:
        first = (await one.declare_lost("t", "")).round
        os.unlink(sqlite_url.removeprefix("sqlite:///"))
        await asyncio.sleep(0.005)
        assert (await one.declare_lost("t", "")).round > first


# -- PostgreSQL ---------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def postgresql_url(postgres_url: str) -> str:
    return fresh(postgres_url)


def backend_pid(connection: Connection) -> int:
    return int(connection.execute(text("SELECT pg_backend_pid()")).scalar_one())


async def test_a_server_that_has_stopped_is_given_up(postgresql_url: str) -> None:
    """It neither answers nor closes: each call fails in time, and calls work again once it goes on."""
    async with database(postgresql_url) as one:
        pid = await one.call(backend_pid)
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(RecordsUnavailable, match="no answer within 1 s"):
                await one.call(lambda connection: None)
            assert await one.call(backend_pid) != pid
        finally:
            os.kill(pid, signal.SIGCONT)


async def test_a_connection_that_was_closed_is_replaced(postgres_url: str, postgresql_url: str) -> None:
    """After a restart of the server, or an administrator's kick, the next call does not fail."""
    async with database(postgresql_url) as one:
        pid = await one.call(backend_pid)
        with psycopg.connect(postgres_url, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
        assert await one.call(backend_pid) != pid


async def test_the_server_ends_what_takes_too_long(postgresql_url: str) -> None:
    """Statements, and waits for a lock that somebody else keeps."""
    async with database(postgresql_url, 60.0) as other, database(postgresql_url, 4.0) as one:
        await other.call(lambda connection: None)  # the tables are there
        with pytest.raises(RecordsUnavailable, match="statement timeout"):
            await one.call(lambda connection: connection.execute(text("SELECT pg_sleep(10)")))
        lock, taken, free = text("LOCK TABLE meta"), threading.Event(), threading.Event()
        keeping = asyncio.create_task(other.call(lambda connection: (connection.execute(lock), taken.set(), free.wait(60))))
        await asyncio.to_thread(taken.wait, 60)
        with pytest.raises(RecordsUnavailable, match="lock timeout"):
            await one.call(lambda connection: connection.execute(lock))
        free.set()
        await keeping


async def test_what_the_server_asks_to_repeat_is_repeated(postgresql_url: str) -> None:
    """A snapshot that another transaction has overtaken is taken anew."""
    async with database(postgresql_url, 20.0) as one, database(postgresql_url, 20.0) as other:
        before = await one.call(lambda connection: connection.execute(text("SELECT round FROM meta")).scalar_one())
        loop = asyncio.get_running_loop()
        tries = itertools.count(1)

        def raise_round(connection: Connection) -> int:
            connection.execute(text("UPDATE meta SET round = round + 1"))
            return 0

        def work(connection: Connection) -> int:
            connection.execute(text("SELECT round FROM meta"))
            if (number := next(tries)) == 1:
                asyncio.run_coroutine_threadsafe(other.call(raise_round), loop).result()
            raise_round(connection)
            return number

        assert await one.call(work, snapshot=True) == 2
        assert await one.call(lambda connection: connection.execute(text("SELECT round FROM meta")).scalar()) == before + 2


async def test_a_peer_that_is_no_postgresql_is_given_up() -> None:
    """It takes the connection and says nothing."""
    met = asyncio.Event()

    async def silent(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        met.set()
        with contextlib.closing(writer):
            await _reader.read(-1)

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        async with database(f"postgresql://u:{WRITTEN_PASSWORD}@127.0.0.1:{port}/records", 0.5) as one:
            with pytest.raises(RecordsUnavailable, match=r"^postgresql://127\.0\.0\.1/records: no answer within 0\.5 s$"):
                await one.call(lambda connection: None)
        assert met.is_set()


async def test_no_error_has_the_password(postgresql_url: str) -> None:
    """A server that is away, one that refuses the user, one without the database, and a statement that fails: each says why, no more."""
    wrong = postgresql_url.replace(WRITTEN_PASSWORD, WRITTEN_PASSWORD + "x")
    away = f"postgresql://gate:{WRITTEN_PASSWORD}@127.0.0.1:{free_port()}/records"
    for url, said in {
        wrong: "password authentication failed",
        postgresql_url.replace("/postgres?", "/nowhere?"): 'database "nowhere" does not exist',
        away: "refused",
    }.items():
        async with database(url, 20.0) as one:
            with pytest.raises(RecordsUnavailable, match=said) as told:
                await one.call(lambda connection: None)
        assert PASSWORD not in str(told.value)
        assert WRITTEN_PASSWORD not in str(told.value)
        assert told.value.__cause__ is None
    async with database(postgresql_url, 20.0) as one:
        with pytest.raises(RecordsUnavailable) as told:
            await one.call(lambda connection: connection.execute(text("SELECT CAST(:word AS integer)"), {"word": f"{PASSWORD} at it"}))
        assert PASSWORD not in str(told.value)
        assert "SELECT" not in str(told.value)


@pytest.mark.parametrize("url", [f"postgresql://u:{PASSWORD} x@h/d", "postgresql://u:%zz@h/d", "mysql://u:p@h/d", "postgresql://h/d?unknown=1", ""])
def test_a_url_that_cannot_be_read(url: str) -> None:
    """It is refused when the records are made, without being repeated."""
    with pytest.raises(ValueError, match=r"^the URL of the records cannot be read$"):
        Records(url)


@pytest.mark.parametrize("scheme", ["postgres", "postgresql"])
async def test_urls_as_users_write_them(postgresql_url: str, scheme: str) -> None:
    """Both schemes, options after a question mark, and several hosts of which the first is away."""
    rest = postgresql_url.partition("://")[2].replace("@", f"@127.0.0.1:{free_port()},")
    async with database(f"{scheme}://{rest}&connect_timeout=60", 5.0) as one:
        assert await one.call(lambda connection: connection.execute(text("SHOW application_name")).scalar()) == "sluicegate"


# -- both ---------------------------------------------------------------------------------------------------------------------------------


async def test_tables_of_a_newer_program_are_refused(records_url: str) -> None:
    """With both versions, at every call, and nothing in them is changed; what an equal program made is taken."""
    async with opened(records_url) as records:
        await records.add("w", 1, [used()])
    async with database(records_url, 20.0) as one:
        await one.call(lambda connection: connection.execute(text(f"UPDATE meta SET version = {SCHEMA_VERSION + 1}")))
    async with database(records_url, 20.0) as one:
        for _ in range(2):
            known = f"its tables have version {SCHEMA_VERSION + 1}, this program knows versions up to {SCHEMA_VERSION}"
            with pytest.raises(RecordsTooNew, match=known):
                await one.call(lambda connection: None)


async def test_an_error_of_the_work_undoes_it(records_url: str) -> None:
    """And reaches the caller as it is, once; the next call finds nothing of it."""
    async with database(records_url, 20.0) as one:

        def work(connection: Connection) -> None:
            connection.execute(text("UPDATE meta SET round = 5"))
            raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            await one.call(work)
        assert await one.call(lambda connection: connection.execute(text("SELECT round FROM meta")).scalar()) != 5


async def test_closing_without_having_opened(records_url: str) -> None:
    """Nothing is reached, nothing is left behind."""
    await Records(records_url).close()
