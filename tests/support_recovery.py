"""Records that a test can take away, and workers that share a ledger and records, stepped by hand: what a server has can be lost."""

import asyncio
import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sluicegate.core import counters as counting
from sluicegate.core.claims import Admission, Announcement, RefSet, Settlement
from sluicegate.core.limits import parse
from sluicegate.core.record import Spent
from sluicegate.core.tenants import Counter, Scope
from sluicegate.journal import Journal
from sluicegate.ledger.contract import LedgerRecovering, LedgerUnavailable
from sluicegate.ledger.memory import MemoryLedger
from sluicegate.outbox import Outbox
from sluicegate.records.requests import Line
from sluicegate.records.rows import RecordsBehind, RecordsUnavailable, UsageRow
from sluicegate.records.store import Records
from sluicegate.recovery import Recovery
from support_ledgers import Clock
from support_sockets import settle


class FakeRecords:
    """Batches as they came; away when the test says so, before or after it has taken what it was given."""

    def __init__(self) -> None:
        self.rows: list[UsageRow] = []
        self.uptos: dict[str, int] = {}
        self.seeded: dict[str, int] = {}  # how far each writer was at the last seeding
        self.batches: list[tuple[str, int, list[UsageRow]]] = []
        self.lines: list[Line] = []
        self.away = self.after = False
        self.session = 1

    def lose(self) -> None:
        """They are other ones from now on, and new."""
        self.rows, self.lines, self.uptos, self.seeded = [], [], {}, {}

    async def add(self, writer: str, upto: int, rows: list[UsageRow], after: int = 0, lines: Sequence[Line] = ()) -> None:
        self.batches.append((writer, upto, rows))
        if self.uptos.get(writer, 0) < after:
            self.session += 1
            raise RecordsBehind("lost")
        if (not self.away or self.after) and self.uptos.get(writer, 0) < upto:
            self.uptos[writer] = upto
            self.rows += rows
            self.lines += lines
        await self.check()

    async def check(self) -> None:
        away = self.away
        await asyncio.sleep(0)
        if away:
            raise RecordsUnavailable("away")

    async def written(self, writer: str) -> int:
        await self.check()
        return self.uptos.get(writer, 0)

    async def included(self, tree: str, writer: str, seq: int) -> bool:
        await self.check()
        return self.seeded.get(writer, 0) >= seq

    async def forget(self, writer: str) -> None:
        await self.check()
        self.uptos.pop(writer, None)

    def total(self) -> int:
        return sum(row.input_tokens + row.output_tokens for row in self.rows)


# -- workers --------------------------------------------------------------------------------------------------------------------------------

LIMITS = ["1000 tokens/day", "100 requests/minute", "3 concurrent"]


def counter(text: str, tree: str = "t") -> Counter:
    scope = Scope(tree, "organization", tree)
    (found,) = counting.group(tree, scope, [parse(text)])
    return found


class Held:
    """A hold of a worker, as a request keeps it."""

    def __init__(self, hold_id: str, refs: RefSet, epoch: str, g: int) -> None:
        self.hold_id = hold_id
        self.refs = refs
        self.epoch = epoch
        self.g = g


class Trip:
    """All requests of a worker."""

    def __init__(self) -> None:
        self.held: dict[str, Held] = {}

    def announcements(self, tree: str, epoch: str) -> Iterator[tuple[Held, Announcement]]:
        for held in self.held.values():
            if held.refs.tree == tree and held.epoch != epoch:
                yield held, Announcement(held.hold_id, held.refs, amounts(held.refs), held.g, 0, 30_000, "tag")


def amounts(refs: RefSet) -> tuple[int, ...]:
    return tuple(n for ref in refs.refs for n in ((0, 1000) if ref.kind == "w" else (1, 0)))


class Net:
    """What the workers share."""

    def __init__(self, directory: Path, records: Records) -> None:
        self.directory = directory
        self.records = records
        self.clock = Clock()
        self.first = MemoryLedger(self.clock)
        self.incarnation = "run-1"
        self.owner = ("", 0)  # which records have the ledger, until when
        self.workers: list[Worker] = []

    def worker(self, name: str, *limits: str, trees: tuple[str, ...] = ("t",)) -> "Worker":
        made = Worker(self, name, {tree: tuple(counter(text, tree) for text in limits or LIMITS) for tree in trees})
        self.workers.append(made)
        return made

    def flush(self) -> None:
        """The server forgets everything and goes on."""
        self.first._book.__init__("expired_held")  # type: ignore[misc]

    def snapshot(self) -> Any:
        return copy.deepcopy(self.first._book.__dict__)

    def restart(self, snapshot: Any, incarnation: str) -> None:
        """The server is another one, with the data of then; every worker has seen its connection end."""
        self.first._book.__dict__.update(copy.deepcopy(snapshot))
        self.incarnation = incarnation
        for worker in self.workers:
            for tree in list(worker.ledger.trees):
                worker.ledger.doubt(tree, worker.ledger.trees[tree].epoch, "its server was restarted")

    async def used(self) -> tuple[int, int]:
        """(used, held) of the day's tokens."""
        return (await self.first.peek(RefSet("t", [counting.ref(counter(LIMITS[0]), self.clock.now_ms)]))).states[0]


class SharedLedger(MemoryLedger):
    """A ledger of one worker on what all share; away when the test says so."""

    def __init__(self, net: Net) -> None:
        super().__init__(net.clock)
        self._book = net.first._book
        self._net = net
        self.away = False
        self.fails: set[str] = set()  # verbs
        self.gone: set[str] = set()  # trees whose server is away

    async def claim(self, records: str, before: str, ttl_ms: int) -> str:
        self.check("claim")
        (owner, until_ms), now_ms = self._net.owner, self._net.clock.now_ms
        if owner not in ("", records, before) and now_ms < until_ms:
            return owner
        self._net.owner = records, now_ms + ttl_ms
        return records

    def incarnation(self, tree: str) -> str:
        return self._net.incarnation

    async def ping(self) -> None:
        self.check("ping")

    async def seq(self, tree: str, epoch: str) -> int:
        self.check("seq", tree)
        return await super().seq(tree, epoch)

    async def seed(self, tree: str, epoch: str, counters: Any) -> int:
        self.check("seed", tree)
        return await super().seed(tree, epoch, counters)

    async def announce(self, announcement: Announcement) -> None:
        self.check("announce", announcement.refs.tree)
        await super().announce(announcement)

    def check(self, verb: str, tree: str = "") -> None:
        if self.away or verb in self.fails or tree in self.gone:
            raise LedgerUnavailable("away")


class Worker:
    """Ledger, journal, outbox and recovery of one worker, with the holds of its requests."""

    def __init__(self, net: Net, name: str, counters: dict[str, tuple[Counter, ...]]) -> None:
        self.net = net
        self.name = name
        self.counters = counters
        self.ledger = SharedLedger(net)
        self.journal = Journal.open(net.directory / "journal", name)
        self.outbox = Outbox(self.ledger, self.journal, net.records, str(net.directory / "journal"), counters, lambda *_: None, lambda *_: None)
        self.trip = Trip()
        self.epochs = iter(f"{name}-{n}" for n in range(1000))
        self.recovery = Recovery(
            self.ledger,
            net.records,
            self.outbox,
            lambda: [self.trip],  # type: ignore[list-item]
            counters,
            name,
            lambda: next(self.epochs),
            lambda: net.clock.now_ms / 1000,
        )

    def refs(self, tree: str = "t") -> RefSet:
        return counting.refs(tree, self.counters[tree], self.net.clock.now_ms)

    async def admit(self, hold_id: str, g: int, tree: str = "t") -> str:
        refs = self.refs(tree)
        state = self.ledger.trees.get(tree)
        try:
            reply = await self.ledger.admit(Admission(hold_id, refs, amounts(refs), g, g, g, 30_000, "tag"))
        except LedgerRecovering:
            return "recovering"
        if reply.status == "granted" and state is not None:
            self.trip.held[hold_id] = Held(hold_id, refs, state.epoch, g)
        return reply.status

    def end(self, hold_id: str, used: int) -> None:
        held = self.trip.held.pop(hold_id)
        spent = Spent("t/@k", "chat", "up/m", self.net.clock.now_ms, 1, 1, used, 0, 0)
        actual = tuple({"w": used, "b": 1, "o": 0}[ref.kind] for ref in held.refs.refs)
        self.outbox.settle(Settlement(hold_id, held.refs, actual, epoch=held.epoch), None, spent)

    async def spend(self, hold_id: str, used: int) -> None:
        assert await self.admit(hold_id, used) == "granted"
        self.end(hold_id, used)
        await settle()

    @property
    def open(self) -> bool:
        state = self.ledger.trees.get("t")
        return state is not None and state.open


async def recovered(*workers: Worker, rounds: int = 20) -> int:
    """Steps the workers in turn until there is nothing more to do; how many rounds that took."""
    for number in range(rounds):
        went_on = [await worker.recovery.step() for worker in workers]
        await settle()
        if not any(went_on):
            return number
    raise AssertionError("it does not come to an end")
