"""The records in an SQLite file, which all workers of one machine share.

Write-ahead log; `synchronous = FULL`, so that a commit survives a power cut; every transaction that may write takes the lock at its beginning.
A file that is deleted or replaced while it is open is noticed at the next call.
"""

import contextlib
import sqlite3
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.pool import QueuePool

from sluicegate import sqlite_file

BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


class Sqlite:
    """A backend of database.py."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self.path = Path(url.removeprefix("sqlite:///"))
        self.place = str(self.path)
        self._patience_s = timeout_s / 2
        self._connection: sqlite3.Connection | None = None
        self._file: sqlite_file.Which | None = None  # that is open

    def engine(self) -> Engine:
        engine = create_engine("sqlite://", creator=self._connect, poolclass=QueuePool, pool_size=1, max_overflow=0)
        event.listen(engine, "begin", _begin)
        return engine

    def _connect(self) -> sqlite3.Connection:
        self._file = sqlite_file.make(self.path)
        connection = sqlite3.connect(self.path, timeout=self._patience_s, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def replaced(self) -> bool:
        if self._file is None or self._file == sqlite_file.which(self.path):
            return False
        self._file = None
        return True

    def options(self, snapshot: bool, reading: bool) -> dict[str, object]:
        """A transaction sees one moment anyway."""
        return {"reading": reading}

    def begun(self, connection: Connection) -> None:
        """Nothing more to say to it."""

    def cut(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):  # it is closed
                self._connection.interrupt()

    def is_passing(self, error: BaseException) -> bool:
        return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF in BUSY

    def plain(self, text: str) -> str:
        return text


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN" if connection.get_execution_options()["reading"] else "BEGIN IMMEDIATE")
