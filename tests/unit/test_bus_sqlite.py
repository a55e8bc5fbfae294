"""The bus in an SQLite file: a file that is locked, deleted or replaced."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from sluicegate import bus as bus_module
from sluicegate import bus_sqlite as module
from sluicegate.bus import Bus
from sluicegate.bus_sqlite import SqliteChannel
from sluicegate.ledger.sqlite import SqliteLedger


@pytest.fixture(autouse=True)
def times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.002)
    monkeypatch.setattr(module, "LOCKED_S", 0.1)
    monkeypatch.setattr(module, "RETRY_S", (0.001, 0.001))
    monkeypatch.setattr(bus_module, "PAUSE_S", (0.002, 0.004))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
async def channel(path: Path) -> AsyncIterator[SqliteChannel]:
    channel = SqliteChannel(f"sqlite:///{path}")
    await channel.open()
    yield channel
    await channel.close()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """By another process's write."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


async def test_a_locked_file_is_tried_again_without_blocking_the_loop(path: Path, channel: SqliteChannel) -> None:
    """Others have their turn meanwhile; what was to be written is written once it is free."""
    with locked(path):
        writing = asyncio.create_task(channel.append([b"{}"]))
        for _ in range(5):
            await asyncio.sleep(0.001)
        assert not writing.done()
    await writing
    assert [body for _, body in await channel.read("", 10, wait=False)] == [b"{}"]


async def test_a_file_that_stays_locked_is_away(path: Path, channel: SqliteChannel) -> None:
    """After a while; nothing was written. It can be read all the time."""
    with locked(path):
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            await channel.append([b"{}"])
        assert await channel.read("", 10, wait=False) == []


async def test_a_replaced_file_is_gone_over_to(path: Path, logged: list[Any]) -> None:
    """Noticed at the next look, or before the next message: both workers meet in the new file."""
    one, two = Bus(SqliteChannel(str(path)), "w1", lambda: 0), Bus(SqliteChannel(str(path)), "w2", lambda: 0)
    heard: list[int] = []
    two.subscribe("a", lambda message: heard.append(message.data["n"]))
    tasks = [asyncio.create_task(bus.run()) for bus in (one, two)]
    async with asyncio.timeout(30):
        while one._begun is None or two._begun is None:  # noqa: ASYNC110  (nothing to wait for)
            await asyncio.sleep(0.001)
        one.publish("a", {"n": 1})
        while heard != [1]:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        path.unlink()  # noqa: ASYNC240
        while [line["to"] for line in logged if line["event"] == "bus state"].count("up") < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        one.publish("a", {"n": 2})
        while heard != [1, 2]:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await one.close()
    await two.close()


async def test_it_lives_beside_the_ledger_in_its_file(path: Path, channel: SqliteChannel) -> None:
    """Neither minds the other's tables, whichever comes first."""
    ledger = SqliteLedger(str(path))
    await ledger.open()
    await channel.append([b"{}"])
    assert await ledger.seed("t", "first", []) == 1
    assert len(await channel.read("", 10, wait=False)) == 1
    await ledger.close()
