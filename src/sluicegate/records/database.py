"""How calls reach the records' database: one thread, one connection, one transaction per call, and an answer in time.

A call that is not answered within the timeout fails with RecordsUnavailable, whatever the database does: a server that is stopped, a network that
swallows packets, a file that another process keeps locked. What runs then is cut (the socket shut down, the SQLite statement interrupted), so
that the thread is free for the next call. What passes by itself (a locked file, a conflict of two transactions) is tried again while time is left.

What is behind the URL may become another database (a file that was deleted, a copy that was restored): that takes a new connection, on which the
tables are made anew if need be, and which `session` counts.

Invariant: neither credentials nor the values of statements get into an error's text.
"""

import asyncio
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

import structlog
from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from sluicegate.records import schema
from sluicegate.records.rows import RecordsUnavailable
from sluicegate.records.sqlite import Sqlite

RETRY_S = (0.002, 0.03)

T = TypeVar("T")

log = structlog.get_logger("records")


class Backend(Protocol):
    """What differs between SQLite and PostgreSQL below SQL."""

    place: str  # for errors and logs

    def engine(self) -> Engine: ...

    def replaced(self) -> bool:
        """Whether there is another database now than the one that is connected to, or none; told once. From the thread."""
        ...

    def options(self, snapshot: bool, reading: bool) -> dict[str, object]:
        """Execution options of a transaction. See Database.call."""
        ...

    def begun(self, connection: Connection) -> None:
        """The transaction's own settings."""
        ...

    def cut(self) -> None:
        """Makes what waits on the one connection fail at once. From any thread."""
        ...

    def is_passing(self, error: BaseException) -> bool:
        """Whether the same transaction may succeed a moment later."""
        ...

    def plain(self, text: str) -> str:
        """A driver's text without secrets."""
        ...


class _Call:
    """One call in the thread."""

    def __init__(self, deadline_s: float) -> None:
        self.deadline_s = deadline_s  # monotonic
        self.given_up = False


class Database:
    """Runs functions of a Connection in its thread. A url that cannot be read raises ValueError."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self._backend = _backend(url, timeout_s)
        self._engine = self._backend.engine()
        self._timeout_s = timeout_s
        self.identity = ""  # of the database, made with its tables; "": not known yet
        self.session = 0  # raised by every connection: this may be another database than before, or an older copy of it
        self._prepared = -1  # in which session the tables were looked at
        event.listen(self._engine, "connect", self._connected)
        self._thread = ThreadPoolExecutor(1, "records")
        self._lock = threading.Lock()
        self._running: _Call | None = None

    async def call(self, work: Callable[[Connection], T], *, snapshot: bool = False, reading: bool = False) -> T:
        """Runs `work` in one transaction. It may run more than once, so it changes nothing but the database.

        snapshot: all is seen as of one moment (in SQLite it always is). reading: nothing is written and nobody is kept from writing.
        """
        loop = asyncio.get_running_loop()
        call = _Call(time.monotonic() + self._timeout_s)
        answer: asyncio.Future[T] = loop.create_future()
        timer = loop.call_later(self._timeout_s, self._give_up, call, answer)

        def finish(done: "asyncio.Future[T]") -> None:
            timer.cancel()
            error = done.exception()
            if answer.done():
                return
            if error is None:
                answer.set_result(done.result())
            else:
                answer.set_exception(error)

        loop.run_in_executor(self._thread, self._run, call, work, snapshot, reading).add_done_callback(finish)
        return await answer

    async def close(self) -> None:
        """What was called before is done or given up; nothing may be called after."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._engine.dispose)
        self._thread.shutdown(wait=False)

    def _give_up(self, call: _Call, answer: "asyncio.Future[T]") -> None:
        if not answer.done():
            answer.set_exception(RecordsUnavailable(f"{self._backend.place}: no answer within {self._timeout_s:g} s"))
        with self._lock:
            call.given_up = True
            if self._running is call:
                self._backend.cut()

    # -- in the thread --------------------------------------------------------------------------------------------------------------------

    def _run(self, call: _Call, work: Callable[[Connection], T], snapshot: bool, reading: bool) -> T:
        with self._lock:
            self._running = call
        try:
            return self._repeat(call, work, snapshot, reading)
        finally:
            with self._lock:
                self._running = None

    def _repeat(self, call: _Call, work: Callable[[Connection], T], snapshot: bool, reading: bool) -> T:
        while True:
            try:
                if call.given_up:
                    raise RecordsUnavailable("given up before it began")
                if self._backend.replaced():
                    log.warning("records replaced", place=self._backend.place, reason="the file was deleted, or another one has its name")
                    self._engine.dispose()
                    self._prepared = -1
                if self._prepared != self.session:
                    self.identity = self._transact(schema.prepare, False, False)
                    self._prepared = self.session
                return self._transact(work, snapshot, reading)
            except RecordsUnavailable as error:
                raise type(error)(f"{self._backend.place}: {error}") from None
            except (SQLAlchemyError, OSError) as error:
                cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
                pause_s = random.uniform(*RETRY_S)
                if not self._backend.is_passing(cause) or time.monotonic() + pause_s >= call.deadline_s:
                    said = self._backend.plain(str(cause).strip() or type(cause).__name__)
                    raise RecordsUnavailable(f"{self._backend.place}: {said.splitlines()[0]}") from None
            time.sleep(pause_s)

    def _connected(self, *_: object) -> None:
        self.session += 1

    def _transact(self, work: Callable[[Connection], T], snapshot: bool, reading: bool) -> T:
        with self._engine.connect() as connection, connection.execution_options(**self._backend.options(snapshot, reading)).begin():
            self._backend.begun(connection)
            return work(connection)


def _backend(url: str, timeout_s: float) -> Backend:
    if url.startswith("sqlite:///"):
        return Sqlite(url, timeout_s)
    from sluicegate.records.postgresql import Postgresql  # noqa: PLC0415  (its driver takes a while to import)

    return Postgresql(url, timeout_s)
