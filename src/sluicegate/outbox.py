"""What was used, on its way to the ledger and to the records: the journal first, then each of them, again until it has taken it.

To the ledger goes each settlement by itself. Settles are idempotent by hold id, so one whose outcome is unknown is simply sent again. A settlement
of another epoch than the tree's present one (the state has been seeded anew since its hold was admitted) is charged unless the records had it
when the tree was seeded: its usage is then in the sums.
To the records goes usage in batches, once a second: sums per second of admission, key, model and deployment, and what each line tells of its request.
A batch is sent as it is until it is taken; the records take it once (writer, upto). Records that are away stop nothing: the journal keeps the lines,
and beyond LINES_MAX memory does not; they are read back when the records are there again. Records that turn out to be others than before, or an
older copy, get what they lack out of the journal, as far as its files are still there (journal.py).

Nothing used is lost: what either side has not taken stays in the journal's file, and is replayed by whoever finds that file unlocked.
"""

import asyncio
import contextlib
import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Container, Iterable, Sequence
from pathlib import Path

import structlog

from sluicegate import journal as journaling
from sluicegate import leftovers
from sluicegate.batch import sums, told
from sluicegate.core.claims import RefSet, Settled, Settlement, Swept
from sluicegate.core.record import Record, Spent
from sluicegate.journal import Entry, Journal
from sluicegate.ledger.contract import Ledger, LedgerRecovering, LedgerUnavailable
from sluicegate.observe.log import StateLog
from sluicegate.records.requests import Line as Told
from sluicegate.records.rows import RecordsBehind, RecordsUnavailable
from sluicegate.records.store import Records

RETRY_S = 1.0
RETRY_AT_ONCE = 256
FINISH_EVERY_S = 0.02
LINES_MAX = 20_000  # for the records in memory: some seconds of a worker's work
REPLAY_EVERY = 10  # rounds: workers beside this one may have died

Marks = tuple[tuple[int, int], ...]
Line = tuple[int, Settlement, Spent | None]  # number in its writer's journal

log = structlog.get_logger("outbox")


class Outbox:
    """One per worker. `backlog` counts settlements that the ledger has not taken yet."""

    def __init__(
        self,
        ledger: Ledger,
        journal: Journal,
        records: Records,
        directory: str,
        trees: Container[str],
        on_marks: Callable[[RefSet, Marks], object],
        on_late: Callable[[str, Spent, Swept], object],
    ) -> None:
        """directory: of the journals of all workers of this machine. trees: of the present configuration; others have no state to settle in.

        on_marks: told of warning marks that a settlement reached. on_late: of one (tree, what it spent) whose hold had been swept.
        """
        self._ledger = ledger
        self._journal = journal
        self._records = records
        self._directory = directory
        self._known = trees
        self._on_marks = on_marks
        self._on_late = on_late
        self._owed: dict[int, Settlement] = {}
        self._failed: dict[int, Line] = {}  # those of them that are not on their way
        self._sent: deque[tuple[asyncio.Future[Settled], Line]] = deque()  # the others
        self._lines: list[Told] = []
        self._too_many = False  # lines to keep: those are in the journal alone
        self._batch: tuple[int, list[Told]] | None = None  # sent to the records, outcome unknown
        self._upto = 0  # the records have the usage of all lines up to this one
        self._session = 0  # of the records, in which that was last made sure of
        self._usage_lines: list[int] = []  # that the ledger need not be told of
        self._flushing = asyncio.Lock()
        self._replay_due = True
        self._state = StateLog("records", "up", good=frozenset({"up"}))

    @property
    def state(self) -> str:
        """Of the records: up or away."""
        return self._state.state

    @property
    def backlog(self) -> int:
        return len(self._owed)

    @property
    def last_seq(self) -> int:
        """Of the line that was appended last."""
        return self._journal.next_seq - 1

    # -- taking -----------------------------------------------------------------------------------------------------------------------------

    def settle(self, settlement: Settlement, record: Record | None, spent: Spent | None = None) -> None:
        """Writes the journal's line and the ledger's call, in that order. What fails is sent again later."""
        journal, tree = self._journal, settlement.refs.tree
        seq = journal.append(journaling.encode(settlement, record, spent, journal.writer, journal.next_seq))
        if spent is not None or record is not None:
            self._keep(tree, settlement.hold_id, record, spent)
        state = self._ledger.trees.get(tree)
        if state is not None and state.epoch == settlement.epoch:
            self._send(seq, settlement, spent)
        else:
            self._owed[seq] = settlement
            self._failed[seq] = seq, settlement, spent

    def spend(self, tree: str, hold_id: str, spent: Spent | None, record: Record | None = None) -> None:
        """What the ledger need not be told: usage that it has charged, or that no limit counts; how a request ended that has used nothing.

        hold_id: or the request's own id.
        """
        journal = self._journal
        self._usage_lines.append(journal.append(journaling.encode_usage(tree, hold_id, record, spent, journal.writer, journal.next_seq)))
        self._keep(tree, hold_id, record, spent)

    def _keep(self, tree: str, hold_id: str, record: Record | None, spent: Spent | None) -> None:
        """For the next batch."""
        if len(self._lines) < LINES_MAX:
            self._lines.append((tree, hold_id, record, spent))
        else:
            self._too_many = True

    def _send(self, seq: int, settlement: Settlement, spent: Spent | None) -> "asyncio.Future[Settled]":
        self._owed[seq] = settlement
        future = self._ledger.settle(settlement)
        self._sent.append((future, (seq, settlement, spent)))
        if len(self._sent) == 1:
            future.add_done_callback(self._look)
        return future

    def _look(self, _: object) -> None:
        """Takes the answers that have come. The first that has not calls this again: answers come many at a time, and a callback for each is dear."""
        sent, taken = self._sent, []
        while sent and sent[0][0].done():
            future, line = sent.popleft()
            try:
                settled = future.result()
            except (Exception, asyncio.CancelledError):
                self._failed[line[0]] = line
                continue
            taken.append(line[0])
            if settled.marks or settled.expired is not None:
                self._tell(line[1], line[2], settled)
        if sent:
            sent[0][0].add_done_callback(self._look)
        self._taken(taken)

    def _tell(self, settlement: Settlement, spent: Spent | None, settled: Settled) -> None:
        if settled.marks:
            self._on_marks(settlement.refs, settled.marks)
        if settled.expired is not None and spent is not None:
            self._on_late(settlement.refs.tree, spent, settled.expired)

    def _taken(self, seqs: Sequence[int]) -> None:
        for seq in seqs:
            self._owed.pop(seq, None)
            if self._failed:
                self._failed.pop(seq, None)
        self._journal.acknowledge(seqs)

    # -- to the records ---------------------------------------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Brings all usage so far into the records. Raises RecordsUnavailable; it is then sent with the next."""
        async with self._flushing:
            if self._records.session != self._session:
                await self._make_sure()
            if self._batch is not None:
                await self._add(*self._batch)
            if self._too_many:
                await self._read_back()
            elif self.last_seq > self._upto:
                self._batch = self.last_seq, self._lines
                self._lines = []
                await self._add(*self._batch)

    async def _read_back(self) -> None:
        """Sends what is in the journal only: a file after the other, in the end what the disk has not taken."""
        upto, writer = self.last_seq, self._journal.writer
        self._lines = []
        self._journal.flush()
        unwritten = leftovers.File(Path(), self._journal.unwritten())
        files = leftovers.read_own(self._directory, writer)
        while (file := await asyncio.to_thread(next, files, None)) is not None:
            await self._add_entries(file.entries, upto)
        await self._add_entries(unwritten.entries, upto)
        self._too_many = len(self._lines) >= LINES_MAX  # what has come meanwhile

    async def _add_entries(self, entries: Sequence[Entry], upto: int) -> None:
        some = [entry for entry in entries if self._upto < entry.seq <= upto]
        if some:
            self._batch = some[-1].seq, told(some)
            await self._add(*self._batch)

    async def _add(self, upto: int, lines: list[Told]) -> None:
        rows = await asyncio.to_thread(sums, lines)
        try:
            await self._records.add(self._journal.writer, upto, rows, self._upto, lines)
        except RecordsBehind:
            await self._make_sure()
            await self._records.add(self._journal.writer, upto, rows, self._upto, lines)
        self._batch = None
        self._upto = upto
        done = [seq for seq in self._usage_lines if seq <= upto]
        self._usage_lines = self._usage_lines[len(done) :]
        self._journal.acknowledge(done)
        self._journal.recorded(upto)

    async def _make_sure(self) -> None:
        """The records may be others than before: what they lack of what they had is added again, as far as the journal still has it."""
        session, writer, upto = self._records.session, self._journal.writer, self._upto
        known = await self._records.written(writer) if upto else 0
        if known < upto:
            had = known
            self._journal.flush()
            found = 0
            files = leftovers.read_own(self._directory, writer)
            while (file := await asyncio.to_thread(next, files, None)) is not None:
                lost = [entry for entry in file.entries if known < entry.seq <= upto]
                if lost:
                    found += len(lost)
                    lines = told(lost)
                    await self._records.add(writer, lost[-1].seq, sums(lines), known, lines)
                    known = lost[-1].seq
            await self._records.add(writer, upto, [], known)
            log.warning("records had lost usage", added_lines=found, lost_lines=upto - had - found)
        self._session = session

    # -- to the ledger, again ---------------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Once a second: flushes, sends again what the ledger did not take. Runs until cancelled."""
        for rounds in itertools.count(1):
            await asyncio.sleep(RETRY_S)
            self._replay_due = self._replay_due or not rounds % REPLAY_EVERY
            try:
                await self._round()
            except Exception:
                log.exception("background work failed", work="outbox")

    async def finish(self, within_s: float) -> None:
        """At the end of a worker: tries to bring everything to both, for so long; the rest stays in the journal."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self._owed or self._upto < self.last_seq:
                    with contextlib.suppress(LedgerUnavailable, RecordsUnavailable):
                        await self.flush()
                        await self.retry()
                    await asyncio.sleep(FINISH_EVERY_S)
                with contextlib.suppress(RecordsUnavailable):
                    await self._records.forget(self._journal.writer)

    async def _round(self) -> None:
        try:
            await self.flush()
            self._state("up")
        except RecordsUnavailable as error:
            self._state("away", reason=str(error))
        try:
            await self.retry()
            if self._replay_due:
                await self.replay()
        except (LedgerUnavailable, RecordsUnavailable):
            return  # whoever is away is logged elsewhere; the next round tries again

    async def retry(self) -> None:
        """One round: at most 256 settlements of a tree, oldest first. A tree that is recovering is passed over.

        All trees at once, as a server that is away keeps no other tree waiting. Raises LedgerUnavailable, RecordsUnavailable if a settlement failed.
        """
        waiting = _by_tree(line for line in self._failed.values() if line[1].refs.tree in self._ledger.trees)
        calls = [self._bring(tree, self._journal.writer, lines[:RETRY_AT_ONCE], self._send, self._taken) for tree, lines in waiting.items()]
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, LedgerRecovering):
                raise outcome

    async def catch_up(self, tree: str, mark: int) -> None:
        """Charges to a state that has been seeded what its sums did not have: what is owed, and what an earlier state took too late for them.

        mark: the last line that can have been sent to an earlier state. Raises LedgerUnavailable, RecordsUnavailable.
        """
        writer = self._journal.writer
        await self.flush()
        lines = {seq: line for seq, line in self._failed.items() if line[1].refs.tree == tree}
        if mark and not await self._records.included(tree, writer, mark):  # the others seeded without us
            self._journal.flush()
            files = await asyncio.to_thread(list, leftovers.read_own(self._directory, writer))
            for entry in (entry for file in files for entry in file.entries if entry.tree == tree):
                if entry.settlement is not None and entry.seq <= mark:
                    lines.setdefault(entry.seq, (entry.seq, entry.settlement, entry.spent))
        await self._bring(tree, writer, [lines[seq] for seq in sorted(lines)], self._send, self._taken)

    async def _bring(
        self,
        tree: str,
        writer: str,
        lines: list[Line],
        send: Callable[[int, Settlement, Spent | None], "asyncio.Future[Settled]"],
        taken: Callable[[Sequence[int]], object],
    ) -> int:
        """Settles lines of one tree and writer, in order, in the tree's present epoch; answers how many the ledger had not seen.

        Those of another epoch are charged where the last seeding did not have them. Raises LedgerUnavailable, RecordsUnavailable.
        """
        epoch = self._epoch(tree)
        others = [line for line in lines if line[1].epoch != epoch]
        charged = {seq for seq, _, _ in await self._not_in_sums(tree, writer, others)} if others else set()
        count = 0
        for seq, settlement, spent in lines:
            if self._epoch(tree) != epoch:
                raise LedgerRecovering(f"the state of tree {tree} was lost meanwhile")
            if settlement.epoch != epoch:
                if seq not in charged:
                    taken([seq])
                    continue
                settlement.mode, settlement.epoch = "force", epoch
            count += (await send(seq, settlement, spent)).status != "already"
        return count

    def _epoch(self, tree: str) -> str:
        state = self._ledger.trees.get(tree)
        if state is None:
            raise LedgerRecovering(f"the state of tree {tree} is not known")
        return state.epoch

    async def _not_in_sums(self, tree: str, writer: str, lines: list[Line]) -> list[Line]:
        """Of lines in order, those that used something and were not in the sums of the tree's last seeding. What it had is their beginning."""
        if writer == self._journal.writer and lines[-1][0] > self._upto:
            await self.flush()  # from now on the sums of any later seeding have them
        low, high = 0, len(lines)
        while low < high:
            middle = (low + high) // 2
            if await self._records.included(tree, writer, lines[middle][0]):
                low = middle + 1
            else:
                high = middle
        return [line for line in lines[low:] if line[1].mode != "cancel"]

    # -- what others left -------------------------------------------------------------------------------------------------------------------

    async def replay(self) -> int:
        """Takes over what workers that are gone left: first to the records, then to the ledger. Answers how many lines the ledger had not seen.

        What cannot be taken over is found again. Raises LedgerUnavailable in the end, where a server was away; RecordsUnavailable at once.
        """
        count, away = 0, None
        for leftover in leftovers.leftovers(self._directory):
            brought, failure = await self._take_over(leftover)
            count, away = count + brought, failure or away
        if count:
            log.info("journal replayed", settlements=count)
        if away is not None:
            raise away
        self._replay_due = False
        return count

    async def _take_over(self, leftover: leftovers.Leftover) -> tuple[int, LedgerUnavailable | None]:
        """How many of its lines the ledger had not seen, and what failed. A tree whose server is away keeps no other one's lines waiting."""
        count = 0
        writers: set[str] = set()
        away: dict[str, LedgerUnavailable] = {}  # by tree
        for path in leftover.paths:
            file = await asyncio.to_thread(leftover.read, path)
            await self._record(file)
            found = ((entry.seq, entry.settlement, entry.spent) for entry in file.entries if entry.settlement is not None)
            for tree, lines in _by_tree(found).items():
                if tree in self._known and tree not in away:
                    try:
                        count += await self._bring(tree, file.entries[0].writer, lines, self._settle_left, lambda _: None)
                    except LedgerUnavailable as error:
                        away[tree] = error
            writers.update(entry.writer for entry in file.entries)
            if file.corrupt or file.torn:
                log.warning("journal lines not readable", file=path.name, lines=len(file.corrupt), torn=bool(file.torn))
        if away:
            return count, next(iter(away.values()))
        leftover.remove()
        for writer in writers:
            await self._records.forget(writer)
        return count, None

    def _settle_left(self, _seq: int, settlement: Settlement, spent: Spent | None) -> "asyncio.Future[Settled]":
        def tell(done: "asyncio.Future[Settled]") -> None:
            if not done.cancelled() and done.exception() is None:
                self._tell(settlement, spent, done.result())

        future = self._ledger.settle(settlement)
        future.add_done_callback(tell)
        return future

    async def record_leftovers(self) -> None:
        """Brings the usage of workers that are gone into the records, so that sums have it. Raises RecordsUnavailable."""
        for leftover in leftovers.leftovers(self._directory):
            for path in leftover.paths:
                await self._record(await asyncio.to_thread(leftover.read, path))

    async def _record(self, file: leftovers.File) -> None:
        if not file.entries:
            return
        writer, upto = file.entries[0].writer, file.entries[-1].seq
        written = await self._records.written(writer)
        if written >= upto:
            return
        lines = told(entry for entry in file.entries if entry.seq > written)
        await self._records.add(writer, upto, sums(lines), 0, lines)


def _by_tree(lines: Iterable[Line]) -> dict[str, list[Line]]:
    """Lines in order, by tree."""
    found: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        found[line[1].refs.tree].append(line)
    return found
