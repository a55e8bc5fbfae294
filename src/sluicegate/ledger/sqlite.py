"""A ledger in an SQLite file: the embedded default, for one or several workers of one machine on a local disk.

The pure rules of core/rules.py run on a book of rows. All calls that one turn of the event loop has made share one immediate transaction,
so under load the price of a commit is divided among many. The loop is never blocked on a lock: a busy file is tried again by a timer until the
calls' time is up, and they fail with nothing done. Checkpoints, and with durability "full" the commits too, run in a thread.

Invariants: futures are resolved after the commit; a transaction takes effect whole or not at all; calls run in the order in which they were made.
A file that is deleted or replaced while it is open is noticed within a second: every tree is in doubt then.
Fails with `LedgerUnavailable` that says why: the file stays locked, cannot be opened or written, is full, corrupt, or of a newer version.
"""

import asyncio
import contextlib
import random
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from sluicegate import sqlite_file
from sluicegate.core import rules
from sluicegate.core.book import Book
from sluicegate.core.claims import Admission, Announcement, CounterView, Extension, HoldView, RefSet, Reply, Seed, Settled, Settlement, Swept
from sluicegate.ledger import sqlite_rows
from sluicegate.ledger.contract import GENERATION_MS, LedgerRecovering, LedgerUnavailable, TreeState
from sluicegate.ledger.sqlite_rows import Rows
from sluicegate.ledger.trees import Trees, failed, recovering

BATCH_CALLS = 128  # in one transaction; the rest waits for the next turn, so that other workers come in between
RETRY_MS = (0.1, 0.6)  # pause before a busy file is tried again
UPKEEP_EVERY_S = 1.0
UPKEEP_PATIENCE_MS = 100  # in its thread it may wait for the lock
WAL_BYTES = 32 * 2**20  # a write-ahead log of this length is copied into the file and cut; calls wait some 20 ms for that
FORGET_EVERY_MS = 60_000
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

T = TypeVar("T")


class Call(NamedTuple):
    """A verb that waits for its transaction."""

    verb: Callable[[Any, Any], Any]
    argument: Any
    future: "asyncio.Future[Any]"
    deadline: float  # in the event loop's time
    tree: str = ""  # of a verb that writes: it runs guarded, within the epoch of `state`
    state: TreeState | None = None


class Locked(Exception):
    """Our own upkeep needs the file for a moment; to be tried again as if another process held the lock."""


class CallFailed(Exception):
    """One call of a batch raised; nothing of the batch took effect."""

    def __init__(self, index: int, error: Exception) -> None:
        super().__init__(str(error))
        self.index = index
        self.error = error


def system_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def system_boot() -> str:
    """Which run of this machine it is; the same for ever where the system does not tell."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return "unknown"


class SqliteLedger(Trees):
    """See ledger/contract.py."""

    def __init__(
        self,
        path: str,
        timeout_ms: int = 1_000,
        durability: Literal["normal", "full"] = "normal",
        clock_ms: Callable[[], int] = system_clock_ms,
        expired_hold: Literal["charge_held", "charge_seen"] = "charge_held",
        boot: Callable[[], str] = system_boot,
    ) -> None:
        """path: of the file, or `sqlite:///relative/path`, `sqlite:////absolute/path`. The file is made with its folder if it is missing."""
        super().__init__()
        self.path = Path(path.removeprefix("sqlite:///"))
        self._timeout_s = timeout_ms / 1000
        self._synchronous = durability
        self._clock_ms = clock_ms
        # What "normal" has committed outlives every process, but the end of a file may be lost with the machine's power.
        self._incarnation = boot() if durability == "normal" else "durable"
        self._expired_state: Literal["expired_held", "expired_seen"] = "expired_held" if expired_hold == "charge_held" else "expired_seen"
        self._opened: tuple[Rows, sqlite3.Connection] | None = None
        self._file: sqlite_file.Which | None = None  # that is open
        self._replaced = False  # the next turn is to leave it
        self._queue: deque[Call] = deque()
        self._scheduled = False  # a turn is to come, or in flight
        self._commits = ThreadPoolExecutor(1, "ledger-commit") if durability == "full" else None  # an fsync takes milliseconds
        self._upkeep = ThreadPoolExecutor(1, "ledger-upkeep")
        self._upkeep_task: asyncio.Task[None] | None = None
        self._forgotten_ms = 0
        self._cutting = False  # the upkeep thread cuts the log: calls wait, or it would find no gap under load

    def now_ms(self) -> int:
        return self._clock_ms()

    async def open(self) -> None:
        self._upkeep_task = asyncio.create_task(self._keep_up())
        await self.ping()

    async def close(self) -> None:
        """What was called before is done; nothing may be called after."""
        if self._upkeep_task is not None:
            self._upkeep_task.cancel()
            await asyncio.gather(self._upkeep_task, return_exceptions=True)
        if self._queue or self._scheduled:
            with contextlib.suppress(LedgerUnavailable):
                await self.ping()
        await asyncio.get_running_loop().run_in_executor(self._upkeep, self._disconnect)  # the last connection to close copies the log
        self._upkeep.shutdown(wait=False)
        if self._commits is not None:
            self._commits.shutdown(wait=False)

    async def ping(self) -> None:
        """Takes the write lock, so that a file that can only be read does not pass."""
        await self._call(_nothing, None)

    def admit(self, admission: Admission) -> "asyncio.Future[Reply]":
        state = self.trees.get(admission.refs.tree)
        if state is not None and not state.open:
            return failed(recovering(admission.refs.tree))
        return self._guarded(admission.refs.tree, rules.admit, admission)

    def extend(self, extension: Extension) -> "asyncio.Future[Reply]":
        return self._guarded(extension.refs.tree, rules.extend, extension)

    def settle(self, settlement: Settlement) -> "asyncio.Future[Settled]":
        return self._guarded(settlement.refs.tree, rules.settle, settlement)

    def peek(self, refs: RefSet) -> "asyncio.Future[Reply]":
        return self._call(rules.peek, refs)

    async def renew(self, tree: str, hold_ids: list[str], ttl_ms: int) -> None:
        await self._guarded(tree, lambda rows, ids: rules.renew(rows, tree, ids, ttl_ms), hold_ids)

    async def sweep(self, limit: int) -> list[Swept]:
        def sweep(rows: Book, tree: str) -> tuple[Swept, ...]:
            return rules.sweep(rows, tree, limit)

        failure: LedgerUnavailable | None = None
        due: set[str] = await self._call(Rows.due_trees, None)
        for call in [self._guarded(tree, sweep, tree) for tree in self.trees if tree in due]:
            try:
                self.found += await call
            except LedgerRecovering:
                continue
            except LedgerUnavailable as error:
                failure = error
        if failure is not None:
            raise failure
        return self.take_found()

    async def warn(self, refs: RefSet) -> tuple[tuple[int, int], ...]:
        return await self._guarded(refs.tree, rules.warn, refs)  # type: ignore[no-any-return]

    async def learned(self, increments: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
        return await self._call(lambda rows, _: rows.learned(increments, rows.now_ms // GENERATION_MS), None)  # type: ignore[no-any-return]

    async def show(self) -> tuple[list[CounterView], list[HoldView]]:
        """Read beside the writers."""
        await self.ping()
        return await self._beside(lambda connection: sqlite_rows.show(connection, self._clock_ms()))

    async def holds(self, tree: str, after: tuple[int, str], limit: int) -> list[HoldView]:
        await self.ping()
        return await self._beside(lambda connection: sqlite_rows.holds(connection, tree, after, limit))

    async def hold(self, tree: str, hold_id: str) -> HoldView | None:
        await self.ping()
        return await self._beside(lambda connection: sqlite_rows.hold(connection, tree, hold_id))

    def incarnation(self, tree: str) -> str:
        return f"{self._incarnation}-{self._file[1]}" if self._file is not None else ""

    async def seq(self, tree: str, epoch: str) -> int:
        self._look()
        return await self._call(lambda rows, epoch: rows.sequence(tree, epoch), epoch)  # type: ignore[no-any-return]

    async def seed(self, tree: str, epoch: str, counters: Sequence[Seed]) -> int:
        return await self._call(lambda rows, seeds: rules.seed(rows, tree, epoch, seeds), counters)  # type: ignore[no-any-return]

    async def fill(self, tree: str, counters: Sequence[Seed]) -> None:
        await self._guarded(tree, lambda rows, seeds: rules.fill(rows, tree, seeds), counters)

    async def announce(self, announcement: Announcement) -> None:
        await self._guarded(announcement.refs.tree, rules.announce, announcement)

    async def tidy(self) -> None:
        """Done once a second while the ledger is open: forgets counters that have expired, cuts the write-ahead log when it is long."""
        now_ms = self._clock_ms()
        if now_ms - self._forgotten_ms >= FORGET_EVERY_MS:
            self._forgotten_ms = now_ms
            await self._beside(lambda connection: sqlite_rows.forget(connection, now_ms))
        log = self.path.with_name(self.path.name + "-wal")
        if log.exists() and log.stat().st_size >= WAL_BYTES:
            await self._beside(sqlite_rows.checkpoint)
            self._cutting = True
            try:
                await self._beside(sqlite_rows.cut_log)
            finally:
                self._cutting = False

    # -- one transaction per turn of the loop ---------------------------------------------------------------------------------------------

    def _guarded(self, tree: str, verb: Callable[[Book, Any], Any], argument: Any) -> "asyncio.Future[Any]":
        state = self.trees.get(tree)
        return failed(recovering(tree)) if state is None else self._call(verb, argument, tree, state)

    def _call(self, verb: Callable[[Any, Any], Any], argument: Any, tree: str = "", state: TreeState | None = None) -> "asyncio.Future[Any]":
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._queue.append(Call(verb, argument, future, loop.time() + self._timeout_s, tree, state))
        if not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._turn, loop)
        return future

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Runs what is queued, or as much as goes into one transaction."""
        if self._replaced:
            self._leave_file()
        batch = [self._queue.popleft() for _ in range(min(len(self._queue), BATCH_CALLS))]
        if self._commits is not None:
            running = loop.run_in_executor(self._commits, self._run, batch)
            running.add_done_callback(lambda done: self._finish(loop, batch, done.exception() or done.result()))
            return
        try:
            results = self._run(batch)
        except Exception as error:
            self._finish(loop, batch, error)
        else:
            self._finish(loop, batch, results)

    def _run(self, batch: list[Call]) -> list[Any]:
        """One immediate transaction. Raises with nothing done."""
        if self._cutting:
            raise Locked
        rows, connection = self._opened or self._connect()
        try:
            with sqlite_rows.transaction(connection):
                rows.begin(self._clock_ms())
                results = [_answer(call, index, rows) for index, call in enumerate(batch)]
                rows.flush()
        except BaseException:
            rows.reset()
            raise
        return results

    def _finish(self, loop: asyncio.AbstractEventLoop, batch: list[Call], outcome: list[Any] | BaseException) -> None:
        """Hands out results, or decides who fails and who is tried again, and when."""
        pause_s = 0.0
        if isinstance(outcome, list):
            self._hand_out(batch, outcome)
        elif isinstance(outcome, CallFailed):  # the others did nothing wrong
            self._fail(batch.pop(outcome.index), outcome.error)
            self._queue.extendleft(reversed(batch))
        elif _is_locked(outcome):
            now = loop.time()
            late = [call for call in batch if call.deadline <= now]
            for call in late:
                self._fail(call, LedgerUnavailable(f"{self.path} could not be locked within {self._timeout_s:g} s"))
            self._queue.extendleft(reversed(batch[len(late) :]))
            pause_s = random.uniform(*RETRY_MS) / 1000
        else:
            self._disconnect()
            for call in batch:
                self._fail(call, outcome)
        if not self._queue:
            self._scheduled = False
        elif pause_s:
            loop.call_later(pause_s, self._turn, loop)
        else:
            loop.call_soon(self._turn, loop)

    def _hand_out(self, batch: list[Call], results: list[Any]) -> None:
        for call, result in zip(batch, results, strict=True):
            state, answer = call.state, result
            if state is not None:
                seq, answer = result
                if not seq:
                    self.found += answer.swept
                    self._fail(call, self.doubt(call.tree, state.epoch, str(answer)))
                    continue
                state.seq = seq  # calls were done in the order in which they were made
            if not call.future.done():
                call.future.set_result(answer)

    def _fail(self, call: Call, error: BaseException) -> None:
        if isinstance(error, sqlite3.Error | OSError | msgspec.MsgspecError):  # the last: a row that is not ours
            error = LedgerUnavailable(f"{self.path}: {error}")
        if not call.future.done():
            call.future.set_exception(error)
            call.future.exception()  # a caller that does not look makes no noise

    # -- connections ----------------------------------------------------------------------------------------------------------------------

    def _connect(self) -> tuple[Rows, sqlite3.Connection]:
        self._file = sqlite_file.make(self.path)
        connection = sqlite_rows.connect(self.path, self._synchronous, busy_timeout_ms=0)
        self._opened = Rows(connection, self._expired_state), connection
        return self._opened

    def _disconnect(self) -> None:
        """The next turn opens the file anew."""
        if self._opened is not None:
            opened, self._opened = self._opened, None
            _close(*opened)

    def _look(self) -> None:
        self._replaced = self._opened is not None and sqlite_file.which(self.path) != self._file

    def _leave_file(self) -> None:
        """Nothing more is written to what has not its name any more. It is let go of last: a new file is then not taken for it by its number."""
        self._replaced = False
        old, self._opened = self._opened, None
        with contextlib.suppress(sqlite3.Error, OSError):  # tried again by whoever is next in the queue
            self._connect()
        if old is not None:
            _close(*old)
        for tree, state in list(self.trees.items()):
            self.doubt(tree, state.epoch, "the ledger's file was deleted or replaced")
        for call in [call for call in self._queue if call.state is not None]:
            self._queue.remove(call)
            self._fail(call, recovering(call.tree))

    async def _keep_up(self) -> None:
        while True:
            await asyncio.sleep(UPKEEP_EVERY_S)
            self._look()
            with contextlib.suppress(LedgerUnavailable):  # what is wrong with the file shows in the calls; the next round tries again
                if self._replaced:
                    await self.ping()
                await self.tidy()

    async def _beside(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Runs `work` in the upkeep thread on its own connection, which may wait for the lock."""

        def run() -> T:
            connection = sqlite_rows.connect(self.path, self._synchronous, UPKEEP_PATIENCE_MS)
            try:
                return work(connection)
            finally:
                connection.close()

        try:
            return await asyncio.get_running_loop().run_in_executor(self._upkeep, run)
        except (sqlite3.Error, OSError, msgspec.MsgspecError) as error:
            raise LedgerUnavailable(f"{self.path}: {error}") from error


def _answer(call: Call, index: int, rows: Rows) -> Any:
    try:
        if call.state is None:
            return call.verb(rows, call.argument)
        return rules.guarded(rows, call.tree, call.state.epoch, call.state.seq, call.verb, call.argument)
    except sqlite3.Error:
        raise
    except Exception as error:
        raise CallFailed(index, error) from error


def _close(rows: Rows, connection: sqlite3.Connection) -> None:
    rows.close()
    connection.close()


def _nothing(rows: Rows, argument: None) -> None:
    """What a ping does."""


def _is_locked(error: BaseException) -> bool:
    return isinstance(error, Locked) or (isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY)
