"""Lost or rolled-back state of a tree is never read as zero (ledger.md 7): this decides, with the other workers, from which state to go on.

A tree is used while it is in `ledger.trees` and open there. It leaves when there is doubt: at a worker's start, when a script says `lost`, when its
server was restarted or replaced, when another worker has declared it lost. Then, together through the records:

    open      verified: the epoch is there, its sequence not behind what any worker has seen, in a server that all workers know of -> used again
    lost      every worker stops there, brings its usage into the records, confirms the round; one takes the lead and seeds the ledger from the sums
    seeding   every worker takes the new epoch, announces its open holds, charges what the sums did not have, confirms; the leader opens the tree

recovery_steps.py decides, purely, from what is known; `Recovery` does it, once a second, every 100 ms while a tree is not open. Each step can be
repeated and nobody's death stops it: a lead ends with its lease, nobody waits for a worker whose beat is 5 s old, and a worker that was left out
finds that its lines were not in the sums, and charges them.

Fails, and is tried again, when the ledger or the records are away: nothing is opened without both. Nor is anything done while the ledger is in use
with other records (`Ledger.claim`): replicas with records of their own would each seed it from what they alone know.
"""

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import structlog

from sluicegate import seeding
from sluicegate.beginnings import Beginnings, no_keys, nothing_first
from sluicegate.core.claims import Announcement
from sluicegate.core.tenants import Counter
from sluicegate.ledger.contract import Ledger, LedgerUnavailable, TreeState
from sluicegate.observe.log import StateLog
from sluicegate.outbox import Outbox
from sluicegate.records.rows import NotLeading, RecordsUnavailable, TreeRow, WorkerRow
from sluicegate.records.store import Records
from sluicegate.recovery_steps import PATIENCE_MS, Step, View, confirmable, next_step
from sluicegate.trip import Held, Trip

BEAT_S = 1.0
HURRY_S = 0.1  # between rounds while a tree is not open
LIVE_MS = 5_000  # a worker whose last beat is older is not waited for
LEASE_MS = 5_000
CLAIM_MS = 3_000  # a ledger that nobody has claimed for so long is free for other records
ANNOUNCED_AT_ONCE = 256
LOOK_S = 0.02

log = structlog.get_logger("recovery")


class OtherRecords(Exception):
    """The ledger is in use with other records than these."""


class Recovery:
    """Of one worker. It alone puts trees into `ledger.trees`."""

    def __init__(
        self,
        ledger: Ledger,
        records: Records,
        outbox: Outbox,
        trips: Callable[[], Iterable[Trip]],
        counters: dict[str, tuple[Counter, ...]],
        worker: str,
        new_epoch: Callable[[], str],
        clock: Callable[[], float],
    ) -> None:
        """counters: of every tree of the configuration; changed by `take_up`. worker: an id that nobody else has had."""
        self._ledger, self._records, self._outbox = ledger, records, outbox
        self._trips = trips
        self._counters = counters
        self._wanted = set(counters)  # trees of the present configuration; those of earlier ones are kept for the holds that end there
        self._beginnings = Beginnings(ledger, records, clock)
        self._worker = worker
        self._new_epoch = new_epoch
        self._clock = clock
        self._states: dict[str, TreeState] = {}  # the last in which each tree was used
        self._published: dict[str, tuple[str, int]] = {}
        self._told: dict[str, str] = {}  # epochs of trees in use that know what this worker holds and owes
        self._left: dict[str, tuple[str, int]] = {}  # of trees that are not: the epoch before, and the journal's last line in it
        self._first_seen: dict[str, tuple[str, int, int]] = {}  # status and round of a tree, and since when (ledger time)
        self._status: dict[str, StateLog] = {}
        self._closed_at: dict[str, float] = {}
        self._confirmed = 0
        self._session = records.session
        self._identity, self._disputed_at = "", math.inf  # of the records for which this worker last had the ledger; since when others have it
        self._refused = False  # they live
        self._beaten_at = 0.0
        self._awake = asyncio.Event()
        self._decided = asyncio.Event()  # all trees are open, or will not be
        self._away = False
        self.first: Callable[[], Awaitable[None]] = nothing_first  # before each round, which is put off while it fails
        self.of_keys: Callable[[str], Awaitable[Sequence[Counter]]] = no_keys  # counters of a tree that no configuration has
        ledger.on_doubt = self._doubt

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            self._awake.clear()
            if await self._round():
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HURRY_S if self._closed() else BEAT_S):
                    await self._awake.wait()

    async def until_open(self, timeout_s: float) -> None:
        """Waits for all trees to be open, so long at most. Raises OtherRecords."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._decided.wait()
        if self._refused:
            raise OtherRecords("the ledger is in use with other records: replicas that share a ledger must share their records")

    @property
    def known(self) -> int:
        """How many trees there are."""
        return len(self._counters)

    @property
    def closed(self) -> int:
        """How many trees are not open."""
        return sum(not self._is_open(tree) for tree in self._counters)

    def closed_s(self) -> float:
        """For how long no tree at all has been open; endless if none ever was."""
        since = (self._clock() if self._is_open(tree) else self._closed_at.get(tree, -math.inf) for tree in self._counters)
        return self._clock() - max(since, default=self._clock())

    async def leave(self) -> None:
        """At the end: what this worker has seen is published, and nobody has to wait for it any more."""
        await self._beat()
        await self._records.leave(self._worker)

    async def take_up(self, counters: Mapping[str, tuple[Counter, ...]], within_s: float) -> None:
        """Before a configuration with these counters is used: new trees are opened, and new limits begin with what was used before there were any.

        What cannot be done in that time is done later; until then nothing is admitted there.
        """
        known = {tree: self._counters[tree] if tree in self._wanted else () for tree in counters if tree in self._counters}
        new = {tree: some for tree, before in known.items() if (some := seeding.new_windows(counters[tree], before))}
        fresh = [tree for tree in counters if tree not in self._counters]
        self._counters |= counters
        self._wanted = set(counters)
        self._awake.set()
        until = self._clock() + within_s
        if new:
            begun = asyncio.ensure_future(self.begin(new))
            await asyncio.wait([begun], timeout=within_s)
            for tree in new.keys() - (begun.result() if begun.done() else set()):
                if tree in self._ledger.trees:
                    self._leave(tree)
                    self._change(tree, "doubt", "a limit is new, and what was used before is not known yet")
        if new or fresh:
            self._beginnings.follow(new | {tree: counters[tree] for tree in fresh})
            self._awake.set()
        while any(not self._is_open(tree) for tree in fresh) and self._clock() < until:  # noqa: ASYNC110  (it may never come)
            await asyncio.sleep(LOOK_S)

    async def begin(self, new: Mapping[str, Sequence[Counter]]) -> set[str]:
        """Counts on these limits what was used before; the trees where it could."""
        try:
            await self._outbox.flush()
            return await self._beginnings.fill(new, missing_only=False)
        except RecordsUnavailable:
            return set()

    async def _round(self) -> bool:
        try:
            went_on = await self.step()
            self._away = False
            await self._beginnings.again()
            return went_on
        except (LedgerUnavailable, RecordsUnavailable) as error:
            if self._closed() and not self._away:
                log.warning("recovery waits", reason=str(error))
                self._away = True
        except Exception:
            log.exception("background work failed", work="recovery")
        return False

    async def step(self) -> bool:
        """One round: beats, and brings each tree that is not open a step further. Whether there may be more to do at once."""
        await self.first()
        rows = await self._beat()
        for row in rows:
            self._hear(row)
        if not await self._has_ledger():
            return False
        brought_in = any(row.status == "lost" and row.round > self._confirmed for row in rows)
        if brought_in:
            await self._bring_in()
        went_on = await self._confirm(rows, brought_in)
        closed = self._closed()
        if not closed:
            self._decided.set()
            return went_on
        try:
            went_on = await self._advance(closed) or went_on
        finally:
            went_on = await self._confirm(rows, brought_in) or went_on
        return went_on

    async def _has_ledger(self) -> bool:
        """Claims the ledger for these records. Other ones are named once they have kept their claim for longer than one whose workers are gone."""
        identity = self._records.identity
        try:
            owner = await self._ledger.claim(identity, self._identity, CLAIM_MS)
        except LedgerUnavailable:
            return True  # a server that is away keeps no tree of another one waiting
        if owner == identity:
            self._identity, self._disputed_at, self._refused = identity, math.inf, False
            return True
        self._disputed_at = min(self._disputed_at, self._clock())
        if not self._refused and self._clock() - self._disputed_at > CLAIM_MS / 1000:
            self._refused = True
            log.error("ledger in use with other records", records=identity, others=owner)
            self._decided.set()
        return False

    def _hear(self, row: TreeRow) -> None:
        """Stops using a tree that others have given up, or have gone on with."""
        if row.tree in self._counters:
            self._note_seen(row.tree, row)
        if row.status == "lost" and row.tree in self._counters:
            self._leave(row.tree)
            self._change(row.tree, "lost" if row.epoch else "new", "another worker has found it so")
        elif self._is_behind(row):
            self._leave(row.tree)
            self._change(row.tree, "doubt", "the other workers have gone on")

    async def _confirm(self, rows: Iterable[TreeRow], brought_in: bool) -> bool:
        upto = confirmable((row for row in rows if row.status != "open"), lambda row: self._has_done(row, brought_in))
        if upto <= self._confirmed:
            return False
        self._confirmed = upto
        await self._beat()
        return True

    async def _beat(self) -> list[TreeRow]:
        """Publishes what this worker has seen and confirmed. Returns the trees that are not open, or not in the epoch that this worker knows."""
        seqs = {tree: (state.epoch, state.seq) for tree, state in self._states.items() if self._published.get(tree) != (state.epoch, state.seq)}
        incarnations = " ".join(sorted({self._ledger.incarnation(tree) for tree in self._counters} - {""}))
        self._beaten_at = self._clock()
        rows = await self._records.beat(self._worker, self._ledger.now_ms(), self._confirmed, incarnations, seqs)
        self._published |= seqs
        if self._records.session != self._session:  # perhaps other records, to which nothing of this was told
            self._session, self._confirmed = self._records.session, 0
            self._published.clear()
            return await self._beat()
        return rows

    async def _stay_alive(self) -> None:
        """For work that may take long."""
        if self._clock() - self._beaten_at >= BEAT_S:
            await self._beat()

    async def _bring_in(self) -> None:
        """No answer of the ledger is outstanding, and the records have all that was used here, and by dead workers of this machine."""
        with contextlib.suppress(LedgerUnavailable):  # whoever was asked earlier has given up earlier
            await self._ledger.ping()
        await self._outbox.record_leftovers()
        await self._outbox.flush()

    def _has_done(self, row: TreeRow, brought_in: bool) -> bool:
        """A seeding of which this worker could not tell in time is passed over: nobody waits for it any more, but others would for later rounds."""
        if row.status == "lost":
            return brought_in or row.round <= self._confirmed
        return row.tree not in self._counters or self._told.get(row.tree) == row.epoch or self._waited_ms(row.tree) >= PATIENCE_MS

    # -- steps --

    async def _advance(self, trees: Sequence[str]) -> bool:
        """A step for each of these trees. Whether any was made. Raises LedgerUnavailable in the end if the servers of some are away."""
        rows = await self._records.trees(trees)
        now_ms = self._ledger.now_ms()
        live = [worker for worker in await self._records.workers() if worker.beat_ms > now_ms - LIVE_MS]
        for tree in trees:
            self._note_seen(tree, rows.get(tree))
        epochs = [rows[tree].epoch if tree in rows else "" for tree in trees]
        runs = [self._ledger.incarnation(tree) for tree in trees]
        seqs = await asyncio.gather(*map(self._ledger.seq, trees, epochs), return_exceptions=True)
        to_adopt: list[tuple[TreeRow, int, str]] = []
        went_on, away = False, None
        for tree, run, seq in zip(trees, runs, seqs, strict=True):
            await self._stay_alive()
            try:
                if isinstance(seq, BaseException):
                    raise seq
                row = rows.get(tree)
                step, why = next_step(self._view(tree, row, seq, live))
                if row is not None and step == "adopt":
                    to_adopt.append((row, seq, run))
                went_on = step == "adopt" or await self._take(step, why, tree, row) or went_on
            except LedgerUnavailable as error:
                away = error
        await self._adopt(to_adopt)
        if away is not None:
            raise away
        return went_on

    async def _take(self, step: Step, why: str, tree: str, row: TreeRow | None) -> bool:
        """Takes a step other than to adopt. Whether there was one to take."""
        if step == "declare_lost":
            await self._records.declare_lost(tree, row.epoch if row is not None else "")
            self._change(tree, "lost" if row is not None else "new", why)
        elif row is None or step in ("none", "wait"):
            return False
        elif step == "seed":
            return await self._seed(row)
        elif step == "complete":
            await self._records.opened(tree, row.epoch, self._states[tree].seq, self._ledger.incarnation(tree))
        else:
            self._open(tree, row.epoch, why)
        return True

    def _view(self, tree: str, row: TreeRow | None, seq: int, live: Sequence[WorkerRow]) -> View:
        may_lead = row is not None and (row.leader in ("", self._worker) or row.lease_ms <= self._ledger.now_ms())
        told = row is not None and self._told.get(tree) == row.epoch
        return View(row, self._is_open(tree), told, seq, self._ledger.incarnation(tree), live, may_lead, self._waited_ms(tree))

    def _note_seen(self, tree: str, row: TreeRow | None) -> None:
        seen = (row.status, row.round) if row is not None else ("", 0)
        if tree not in self._first_seen or self._first_seen[tree][:2] != seen:
            self._first_seen[tree] = *seen, self._ledger.now_ms()

    def _waited_ms(self, tree: str) -> int:
        """Since this worker first saw the tree's row as it is."""
        return self._ledger.now_ms() - self._first_seen[tree][2]

    async def _seed(self, row: TreeRow) -> bool:
        """Seeds the ledger from the records, if this worker can have the lead."""
        tree, began_ms = row.tree, self._ledger.now_ms()
        if not await self._records.lead(tree, self._worker, began_ms, LEASE_MS):
            return False
        asked = seeding.questions([*self._counters[tree], *await self.of_keys(tree)], began_ms)
        present = await self._ledger.peek(seeding.refset(tree, asked))
        epoch = self._new_epoch()
        try:
            answers = await self._records.seed(tree, self._worker, epoch, [question.sum for question in asked])
        except NotLeading:
            return False
        seeds = seeding.seeds(asked, answers, present, held_too=not row.epoch)
        if self._ledger.now_ms() - began_ms < LEASE_MS:  # else another worker may have begun
            await self._ledger.seed(tree, epoch, seeds)
        return True

    async def _adopt(self, found: Sequence[tuple[TreeRow, int, str]]) -> None:
        """Goes on in the epochs of these trees: they are told what this worker holds and owes, and begin to count what they do not yet.

        found: rows, where the sequence stood, and in which run of the server. A change of that is told to nobody as long as a tree is not used.
        """
        adopted = []
        for row, seq, run in found:
            await self._stay_alive()
            if self._ledger.incarnation(row.tree) != run:
                continue
            if row.status == "seeding":
                self._change(row.tree, "seeding", f"its state is made anew, {len(self._counters[row.tree])} counters")
            self._states[row.tree] = self._ledger.trees[row.tree] = TreeState(row.epoch, seq, open=False)
            with contextlib.suppress(LedgerUnavailable):  # lost again, or its server is away
                await self._announce(row.tree, row.epoch)
                before, mark = self._left.get(row.tree, (row.epoch, 0))
                await self._outbox.catch_up(row.tree, mark if before != row.epoch else 0)
                adopted.append(row)
        filled = await self._beginnings.fill({row.tree: self._counters[row.tree] for row in adopted}, missing_only=True)
        for row in adopted:
            if row.tree not in self._ledger.trees or row.tree not in filled:
                continue
            self._told[row.tree] = row.epoch
            self._left.pop(row.tree, None)
            incarnation = self._ledger.incarnation(row.tree)
            if row.status == "open":
                if row.incarnation != incarnation:
                    await self._records.verified(row.tree, row.epoch, incarnation)
                self._open(row.tree, row.epoch, "verified")

    async def _announce(self, tree: str, epoch: str) -> None:
        async def tell(held: Held, announcement: Announcement) -> None:
            await self._ledger.announce(announcement)
            held.epoch = epoch  # from now on; if it ends before, its settlement is charged as one of the old epoch

        holds = [one for trip in list(self._trips()) for one in trip.announcements(tree, epoch)]
        for start in range(0, len(holds), ANNOUNCED_AT_ONCE):
            some = holds[start : start + ANNOUNCED_AT_ONCE]
            for error in await asyncio.gather(*(tell(held, announcement) for held, announcement in some), return_exceptions=True):
                if error is not None:
                    raise error

    # -- what is in use --

    def _is_open(self, tree: str) -> bool:
        state = self._ledger.trees.get(tree)
        return state is not None and state.open

    def _is_behind(self, row: TreeRow) -> bool:
        """The tree has gone on without this worker."""
        state = self._ledger.trees.get(row.tree)
        return state is not None and state.epoch != row.epoch

    def _closed(self) -> list[str]:
        return [tree for tree in sorted(self._counters) if not self._is_open(tree)]

    def _open(self, tree: str, epoch: str, why: str) -> None:
        state = self._ledger.trees.get(tree)
        if state is not None and state.epoch == epoch:
            state.open = True
            self._closed_at.pop(tree, None)
            self._change(tree, "open", why)

    def _leave(self, tree: str) -> None:
        """Stops using a tree."""
        if self._ledger.trees.pop(tree, None) is not None:
            self._note_left(tree)

    def _doubt(self, tree: str, why: str) -> None:
        """The ledger has taken a tree out."""
        self._note_left(tree)
        self._change(tree, "doubt", why)
        self._awake.set()

    def _note_left(self, tree: str) -> None:
        epoch = self._left[tree][0] if tree in self._left else self._states[tree].epoch
        self._left[tree] = epoch, self._outbox.last_seq
        self._told.pop(tree, None)
        self._closed_at.setdefault(tree, self._clock())

    def _change(self, tree: str, to: str, why: str) -> None:
        """One line per change of a tree's state, as this worker sees it."""
        if tree not in self._status:
            self._status[tree] = StateLog("tree", "unknown", good=frozenset({"new", "seeding", "open"}))
        self._status[tree](to, tree=tree, reason=why)
