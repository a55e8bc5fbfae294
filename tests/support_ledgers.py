"""Ledgers to test: one way to make each backend, so that one list of behaviours runs on all of them.

memory and sqlite take a clock that the tests move. Redis takes its own time, so a behaviour that depends on time moves it by little.
"""

import asyncio
import contextlib
import itertools
import sqlite3
from collections.abc import AsyncIterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import redis as redis_client

from sluicegate.core.claims import Admission, Announcement, CounterView, Extension, HoldView, Ref, RefSet, Reply, Seed, Settlement
from sluicegate.ledger.contract import Ledger, TreeState
from sluicegate.ledger.memory import MemoryLedger
from sluicegate.ledger.redis import RedisLedger
from sluicegate.ledger.sqlite import SqliteLedger

BACKENDS = ("memory", "sqlite", "redis")
ExpiredHold = Literal["charge_held", "charge_seen"]


class Clock:
    """A clock that the test moves."""

    def __init__(self, now_ms: int = 1_800_000_000_000) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


async def use(ledger: Ledger, *trees: str, epoch: str = "first", seeds: Sequence[Seed] = ()) -> None:
    """Takes trees into use: adopts an epoch that is there, or seeds it."""
    for tree in trees:
        seq = await ledger.seq(tree, epoch) or await ledger.seed(tree, epoch, seeds)
        ledger.trees[tree] = TreeState(epoch, seq, open=True)


def use_at_once(ledger: MemoryLedger, *trees: str) -> None:
    """The same where nothing can be awaited: a memory ledger does not wait."""
    coroutine = use(ledger, *trees)
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise AssertionError("a memory ledger waited")


class Backend:
    """Where ledgers of one kind keep their counters; several ledgers of one backend share them, except in memory."""

    def __init__(self, kind: str, place: str, clock: Clock | None) -> None:
        self.kind = kind
        self.place = place  # a file or a URL
        self.clock = clock
        self.shared = kind != "memory"

    def ledger(self, expired_hold: ExpiredHold = "charge_held", timeout_ms: int = 5_000) -> Ledger:
        if self.kind == "redis":
            return RedisLedger(self.place, timeout_ms, expired_hold)
        assert self.clock is not None
        if self.kind == "sqlite":
            return SqliteLedger(self.place, timeout_ms, clock_ms=self.clock, expired_hold=expired_hold)
        return MemoryLedger(self.clock, expired_hold)

    @contextlib.asynccontextmanager
    async def running(self, expired_hold: ExpiredHold = "charge_held") -> AsyncIterator[Ledger]:
        """In use: tree t."""
        ledger = self.ledger(expired_hold)
        await ledger.open()
        await use(ledger, "t")
        try:
            yield ledger
        finally:
            await ledger.close()
            await asyncio.sleep(0)  # transports of this event loop close in its next turn

    async def wait(self, ms: int) -> None:
        """Lets so much of the ledger's time go by."""
        if self.clock is None:
            await asyncio.sleep(ms / 1000)
        else:
            self.clock.now_ms += ms


class Log:
    """The events that a ledger logged; `away` and `fails` lines are changes of state."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, event: str, **fields: object) -> None:
        if not str(fields.get("link", "")).endswith("-back"):
            self.lines.append(event)

    warning = info


class Vandal:
    """Destroys parts of what ledgers of one backend keep, past them."""

    def __init__(self, backend: Backend, ledger: Ledger) -> None:
        self._ledger = ledger
        self._memory = ledger._book if isinstance(ledger, MemoryLedger) else None
        self._sqlite = sqlite3.connect(backend.place, isolation_level=None) if backend.kind == "sqlite" else None
        self._redis: Any = None
        if backend.kind == "redis":
            client = redis_client.RedisCluster if "cluster" in backend.place else redis_client.Redis
            self._redis = client.from_url(backend.place.replace("+cluster", "").split(",")[0])

    def close(self) -> None:
        if self._sqlite is not None:
            self._sqlite.close()
        if self._redis is not None:
            self._redis.close()

    def everything(self) -> None:
        if isinstance(self._ledger, MemoryLedger) and self._memory is not None:
            self._ledger._tables.clear()
            self._memory.epochs = {tree: {} for tree in self._memory.epochs}
            for kept in (self._memory.counters, self._memory.holds, self._memory.whole, self._memory.indexes):
                kept.clear()  # type: ignore[attr-defined]
        if self._sqlite is not None:
            for table in ("counters", "holds", "windows", "epochs", "learned"):
                self._sqlite.execute(f"DELETE FROM {table}")
        if self._redis is not None:
            self._redis.flushdb()

    def counter(self, key: str) -> None:
        if self._memory is not None:
            self._memory.counters.pop(key, None)
        if self._sqlite is not None:
            self._sqlite.execute("DELETE FROM counters WHERE key = ?", (key,))
        if self._redis is not None:
            self._redis.delete(key)

    def field(self, key: str, field: str, value: str | None = None) -> None:
        """Of a counter in Redis, where it is a hash: deleted, or put to a value."""
        if value is None:
            self._redis.hdel(key, field)
        else:
            self._redis.hset(key, field, value)

    def record(self, hold_id: str, tree: str = "t") -> None:
        """Of one hold in Redis, where its expiry stands apart from it."""
        self._redis.hdel(f"sg1:{{{tree}}}:holds", hold_id)

    def index(self, tree: str = "t") -> None:
        if self._memory is not None:
            self._memory.indexes.pop(tree, None)
        if self._sqlite is not None:
            self._sqlite.execute("DELETE FROM windows WHERE tree = ?", (tree,))
        if self._redis is not None:
            self._redis.delete(f"sg1:{{{tree}}}:counters")

    def holds(self, tree: str = "t") -> None:
        if self._memory is not None:
            self._memory.holds.pop(tree, None)
            self._memory.whole.discard(tree)
        if self._sqlite is not None:
            self._sqlite.execute("DELETE FROM holds WHERE tree = ?", (tree,))
        if self._redis is not None:
            self._redis.delete(f"sg1:{{{tree}}}:holds", f"sg1:{{{tree}}}:expiry")

    def rewind(self, seq: int, tree: str = "t", epoch: str = "first") -> None:
        """As if an older state had been restored, if there is one."""
        if self._memory is not None and epoch in self._memory.epochs.get(tree, {}):
            self._memory.epochs[tree][epoch] = seq
        if self._sqlite is not None:
            self._sqlite.execute("UPDATE epochs SET seq = ? WHERE tree = ? AND epoch = ?", (seq, tree, epoch))
        if self._redis is not None:
            self._redis.set(f"sg1:{{{tree}}}:e:{epoch}", seq, xx=True)


def race(work: tuple[str, str, str, int]) -> int:
    """For a process of its own: admits `attempts` requests of 10 on a limit of 1,000, eight at a time; returns how many were granted."""
    kind, place, name, attempts = work

    async def run() -> int:
        ledger = RedisLedger(place, 20_000) if kind == "redis" else SqliteLedger(place, 20_000)
        await ledger.open()
        await use(ledger, "t")
        desk = Desk(ledger)
        refs = desk.refs(desk.window(1_000), desk.bucket(10**6), desk.concurrent(10**6))
        granted = 0
        for start in range(0, attempts, 8):
            calls = [desk.admit(refs, 10, 0, 10, 0, 1, 0, hold_id=f"{name}{start + i}") for i in range(8)]
            granted += [reply.status for reply in await asyncio.gather(*calls)].count("granted")
        await ledger.close()
        await asyncio.sleep(0)
        return granted

    return asyncio.run(run())


def admit_for_ever(kind: str, place: str, told: Connection) -> None:
    """For a process of its own, until it is killed: admits four requests at a time, settles half of them, tells what was answered."""

    async def run() -> None:
        ledger = RedisLedger(place, 20_000) if kind == "redis" else SqliteLedger(place, 20_000)
        await ledger.open()
        await use(ledger, "t")
        desk = Desk(ledger)
        refs = desk.refs(desk.window(10**9), desk.concurrent(10**6))

        async def request(hold_id: str, settled: bool) -> None:
            assert (await desk.admit(refs, 10, 0, 1, 0, hold_id=hold_id)).status == "granted"
            if settled:
                assert await desk.settle(refs, 7, 1, hold_id=hold_id) == "settled"
            told.send((hold_id, settled))

        for start in itertools.count(0, 4):
            await asyncio.gather(*(request(f"h{start + i}", bool(i % 2)) for i in range(4)))

    asyncio.run(run())


def backend_of(kind: str, directory: Path, redis_url: str) -> Backend:
    """An empty one. These tests have a database of their own in that Redis."""
    if kind == "redis":
        url = redis_url.removesuffix("/0") + "/9"
        with redis_client.Redis.from_url(url) as client:
            client.flushdb()
        return Backend(kind, url, None)
    return Backend(kind, str(directory / "new" / "ledger.db") if kind == "sqlite" else "", Clock())


class Desk:
    """Short ways to ask a ledger about one tree."""

    def __init__(self, ledger: Ledger, tree: str = "t") -> None:
        self.ledger = ledger
        self.tree = tree

    def refs(self, *refs: Ref) -> RefSet:
        return RefSet(self.tree, refs)

    def window(self, ceiling: int, name: str = "w", start_ms: int = 0, end_ms: int = 0, reserved: int = 0, marks: tuple[int, ...] = ()) -> Ref:
        return Ref(self.key(name), "w", ceiling, start_ms, end_ms, reserved=reserved, marks=marks)

    def bucket(self, ceiling: int, name: str = "b", gain: int = 1, per_ms: int = 3_600_000) -> Ref:
        """By default one that gains a unit an hour: in effect, none."""
        return Ref(self.key(name), "b", ceiling, gain=gain, per_ms=per_ms)

    def sliding(self, ceiling: int, name: str = "s", slice_ms: int = 3_600_000) -> Ref:
        return Ref(self.key(name), "s", ceiling, per_ms=slice_ms)

    def concurrent(self, ceiling: int, name: str = "o") -> Ref:
        return Ref(self.key(name), "o", ceiling)

    def key(self, name: str) -> str:
        return f"sg1:{{{self.tree}}}:c:{self.tree}/{name}:tokens:any"

    def admit(
        self, refs: RefSet, *amounts: int, hold_id: str = "h", output: tuple[int, int, int] = (1, 1, 1), ttl_ms: int = 60_000, replacing: str = ""
    ) -> "asyncio.Future[Reply]":
        return self.ledger.admit(Admission(hold_id, refs, amounts, *output, ttl_ms, f"tag-{hold_id}", replacing))

    def extend(self, refs: RefSet, need: int, want: int, *, seen: int = 0, hold_id: str = "h", ttl_ms: int = 60_000) -> "asyncio.Future[Reply]":
        return self.ledger.extend(Extension(hold_id, refs, need, want, seen, ttl_ms))

    async def settle(self, refs: RefSet, *actual: int, hold_id: str = "h", mode: Literal["settle", "force", "cancel"] = "settle") -> str:
        return (await self.ledger.settle(Settlement(hold_id, refs, actual, mode))).status

    async def announce(self, refs: RefSet, *amounts: int, hold_id: str = "h", g: int = 1, seen: int = 0, ttl_ms: int = 60_000) -> None:
        await self.ledger.announce(Announcement(hold_id, refs, amounts, g, seen, ttl_ms, f"tag-{hold_id}"))

    async def states(self, refs: RefSet) -> list[tuple[int, int]]:
        return list((await self.ledger.peek(refs)).states)

    async def counters(self) -> dict[str, CounterView]:
        """By name."""
        return {counter.key.split("/")[1].split(":")[0]: counter for counter in (await self.ledger.show())[0]}

    async def holds(self) -> dict[str, HoldView]:
        return {hold.hold_id: hold for hold in (await self.ledger.show())[1]}
