"""The bus of the workers of one machine: a table `events` in the ledger's SQLite file, looked at four times a second.

On a connection of its own. The loop is never blocked on a lock: a busy file is tried again after some milliseconds, for a second at most. A look that
finds nothing costs some microseconds, so nothing else tells of news. A file that is deleted or replaced is noticed at the next look.
"""

import asyncio
import random
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from sluicegate import sqlite_file
from sluicegate.bus import KEPT, Entry
from sluicegate.ledger import sqlite_rows

LOOK_S = 0.25
RETRY_S = (0.002, 0.01)  # pause before a busy file is tried again
LOCKED_S = 1.0  # then it counts as away

SCHEMA = "CREATE TABLE IF NOT EXISTS events (id INTEGER PRIMARY KEY AUTOINCREMENT, body TEXT NOT NULL)"

T = TypeVar("T")


class SqliteChannel:
    """See bus.Channel."""

    def __init__(self, path: str) -> None:
        """path: as the ledger's."""
        self._path = Path(path.removeprefix("sqlite:///"))
        self._opened: sqlite3.Connection | None = None
        self._file: sqlite_file.Which | None = None  # that is open

    async def open(self) -> str:
        await self.close()
        self._file = sqlite_file.make(self._path)
        self._opened = await self._when_free(lambda: sqlite_rows.connect(self._path, "NORMAL", busy_timeout_ms=0))
        await self._when_free(lambda: self._connection.execute(SCHEMA))
        last = await self._when_free(lambda: self._connection.execute("SELECT max(id) FROM events").fetchone()[0])
        return _id(last) if last else ""

    async def append(self, bodies: Sequence[bytes]) -> None:
        self._look()

        def insert() -> None:
            with sqlite_rows.transaction(self._connection):
                self._connection.executemany("INSERT INTO events (body) VALUES (CAST(? AS TEXT))", [(body,) for body in bodies])
                self._connection.execute("DELETE FROM events WHERE id <= (SELECT max(id) FROM events) - ?", (KEPT,))

        await self._when_free(insert)

    async def read(self, after: str, limit: int, *, wait: bool) -> Sequence[Entry]:
        def select() -> list[Entry]:
            query = "SELECT id, CAST(body AS BLOB) FROM events WHERE id > ? ORDER BY id LIMIT ?"
            return [(_id(number), body) for number, body in self._connection.execute(query, (int(after or 0), limit)).fetchall()]

        found = await self._when_free(select)
        if found or not wait:
            await asyncio.sleep(0)  # others' turn, between two of many batches
            return found
        await asyncio.sleep(LOOK_S)
        self._look()
        return await self._when_free(select)

    async def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    @property
    def _connection(self) -> sqlite3.Connection:
        if self._opened is None:
            raise ConnectionError(f"{self._path} is not open")
        return self._opened

    def _look(self) -> None:
        if sqlite_file.which(self._path) != self._file:
            raise ConnectionError(f"{self._path} was deleted or replaced")

    async def _when_free(self, work: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + LOCKED_S
        while True:
            try:
                return work()
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or loop.time() >= deadline:
                    raise
            await asyncio.sleep(random.uniform(*RETRY_S))


def _id(number: int) -> str:
    return f"{number:016d}"
