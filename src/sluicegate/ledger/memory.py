"""A ledger in this process's memory: the specification at work, for tests and for trying things out with one worker.

Calls take effect at once, one after another, so every future is resolved when it is returned. Nothing outlives the process. It never fails:
`LedgerUnavailable` is not raised.
"""

import asyncio
import heapq
from collections import Counter
from collections.abc import Callable
from typing import Literal, TypeVar

from sluicegate.core import rules
from sluicegate.core.claims import Admission, CounterView, Extension, HoldView, Kind, RefSet, Reply, Settled, Settlement, Swept
from sluicegate.ledger.contract import GENERATION_MS
from sluicegate.ledger.views import counter_view, hold_view

T = TypeVar("T")


class MemoryBook:
    """Counters and holds in dicts."""

    def __init__(self, expired_state: Literal["expired_held", "expired_seen"]) -> None:
        self.now_ms = 0
        self.expired_state = expired_state
        self.counters: dict[str, tuple[Kind, rules.Counter, int]] = {}  # kind, state, expiry (0: never)
        self.holds: dict[str, dict[str, tuple[rules.Hold, int]]] = {}  # by tree, then id: record, expiry
        self._expiries: dict[str, list[tuple[int, str]]] = {}  # by tree: a heap; an entry that its hold no longer agrees with is stale

    def counter(self, key: str) -> rules.Counter | None:
        entry = self.counters.get(key)
        if entry is None or 0 < entry[2] <= self.now_ms:
            return None
        return entry[1]

    def put_counter(self, key: str, kind: Kind, counter: rules.Counter, expires_ms: int | None) -> None:
        self.counters[key] = (kind, counter, self.counters[key][2] if expires_ms is None else expires_ms)

    def hold(self, tree: str, hold_id: str) -> rules.Hold | None:
        entry = self.holds.get(tree, {}).get(hold_id)
        return entry[0] if entry else None

    def put_hold(self, tree: str, hold_id: str, hold: rules.Hold, expires_ms: int) -> None:
        self.holds.setdefault(tree, {})[hold_id] = (hold, expires_ms)
        heapq.heappush(self._expiries.setdefault(tree, []), (expires_ms, hold_id))

    def drop_hold(self, tree: str, hold_id: str) -> None:
        self.holds[tree].pop(hold_id, None)

    def due(self, tree: str, limit: int) -> list[str]:
        heap, holds = self._expiries.get(tree, []), self.holds.get(tree, {})
        found: list[str] = []
        while heap and heap[0][0] <= self.now_ms and len(found) < limit:
            expires_ms, hold_id = heapq.heappop(heap)
            if hold_id in holds and holds[hold_id][1] == expires_ms and hold_id not in found:
                found.append(hold_id)
        for hold_id in found:  # they stay due until the caller puts or drops them
            heapq.heappush(heap, (holds[hold_id][1], hold_id))
        return found

    def forget(self) -> None:
        """Frees what has expired, and heap entries that no hold agrees with."""
        self.counters = {key: entry for key, entry in self.counters.items() if not 0 < entry[2] <= self.now_ms}
        self.holds = {tree: holds for tree, holds in self.holds.items() if holds}
        self._expiries = {tree: sorted((expires_ms, hold_id) for hold_id, (_, expires_ms) in holds.items()) for tree, holds in self.holds.items()}


class MemoryLedger:
    """See ledger/contract.py."""

    def __init__(self, clock_ms: Callable[[], int], expired_hold: Literal["charge_held", "charge_seen"] = "charge_held") -> None:
        self._clock_ms = clock_ms
        self._book = MemoryBook("expired_held" if expired_hold == "charge_held" else "expired_seen")
        self._tables: dict[tuple[str, int], Counter[str]] = {}  # by name and generation

    def now_ms(self) -> int:
        return self._clock_ms()

    async def open(self) -> None:
        """Nothing to connect."""

    async def close(self) -> None:
        """Nothing to close."""

    async def ping(self) -> None:
        """It is always there."""

    def admit(self, admission: Admission) -> asyncio.Future[Reply]:
        return _resolved(rules.admit(self._now(), admission))

    def extend(self, extension: Extension) -> asyncio.Future[Reply]:
        return _resolved(rules.extend(self._now(), extension))

    def settle(self, settlement: Settlement) -> asyncio.Future[Settled]:
        return _resolved(rules.settle(self._now(), settlement))

    def peek(self, refs: RefSet) -> asyncio.Future[Reply]:
        return _resolved(rules.peek(self._now(), refs))

    async def renew(self, tree: str, hold_ids: list[str], ttl_ms: int) -> None:
        rules.renew(self._now(), tree, hold_ids, ttl_ms)

    async def sweep(self, limit: int) -> list[Swept]:
        book = self._now()
        swept = [hold for tree in list(book.holds) for hold in rules.sweep(book, tree, limit)]
        book.forget()
        return swept

    async def learned(self, increments: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
        generation = self._clock_ms() // GENERATION_MS
        self._tables = {key: table for key, table in self._tables.items() if key[1] >= generation - 1}
        sums: dict[str, dict[str, int]] = {}
        for name, increment in increments.items():
            if increment:
                self._tables.setdefault((name, generation), Counter()).update(increment)
            total = Counter(self._tables.get((name, generation - 1), {}))
            total.update(self._tables.get((name, generation), {}))
            sums[name] = dict(total)
        return sums

    async def show(self) -> tuple[list[CounterView], list[HoldView]]:
        book = self._now()
        counters = [counter_view(key, kind, state) for key, (kind, state, _) in book.counters.items() if book.counter(key) is not None]
        holds = [
            hold_view(hold_id, hold, expires_ms) for tree in book.holds.values() for hold_id, (hold, expires_ms) in tree.items()
        ]
        return counters, holds

    def _now(self) -> MemoryBook:
        self._book.now_ms = self._clock_ms()
        return self._book


def _resolved(value: T) -> asyncio.Future[T]:
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    future.set_result(value)
    return future
