"""A ledger in this process's memory: the specification at work, for tests and for trying things out with one worker.

Calls take effect at once, one after another, so every future is resolved when it is returned. Nothing outlives the process. It never fails:
`LedgerUnavailable` is not raised.
"""

import asyncio
import contextlib
import heapq
import secrets
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from sluicegate.core import rules
from sluicegate.core.book import Book, Hold, Lost
from sluicegate.core.book import Counter as State
from sluicegate.core.claims import (
    Admission,
    Announcement,
    CounterView,
    Extension,
    HoldView,
    Kind,
    RefSet,
    Reply,
    Seed,
    Settled,
    Settlement,
    Swept,
)
from sluicegate.ledger.contract import GENERATION_MS, LedgerRecovering
from sluicegate.ledger.trees import Trees, failed, prefix, recovering
from sluicegate.ledger.views import counter_view, hold_view

T = TypeVar("T")


class MemoryBook:
    """Counters and holds in dicts."""

    def __init__(self, expired_state: Literal["expired_held", "expired_seen"]) -> None:
        self.now_ms = 0
        self.expired_state = expired_state
        self.counters: dict[str, tuple[Kind, State, int]] = {}  # kind, state, expiry (0: never)
        self.holds: dict[str, dict[str, tuple[Hold, int]]] = {}  # by tree, then id: record, expiry
        self.whole: set[str] = set()  # trees whose records are all there
        self.indexes: dict[str, dict[str, int]] = {}  # by tree: windows by key, with their expiry; "" is always in one that is whole
        self.epochs: dict[str, dict[str, int]] = {}  # by tree, then epoch: sequence
        self._expiries: dict[str, list[tuple[int, str]]] = {}  # by tree: a heap; an entry that its hold no longer agrees with is stale

    def counter(self, key: str) -> State | None:
        entry = self.counters.get(key)
        if entry is None or 0 < entry[2] <= self.now_ms:
            return None
        return entry[1]

    def put_counter(self, key: str, kind: Kind, counter: State, expires_ms: int | None) -> None:
        self.counters[key] = (kind, counter, self.counters[key][2] if expires_ms is None else expires_ms)

    def hold(self, tree: str, hold_id: str) -> Hold | None:
        entry = self.holds.get(tree, {}).get(hold_id)
        return entry[0] if entry else None

    def put_hold(self, tree: str, hold_id: str, hold: Hold, expires_ms: int) -> None:
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

    def sequence(self, tree: str, epoch: str) -> int:
        epochs = self.epochs.get(tree)
        return epochs.get(epoch, 0) if epochs else 0

    def put_sequence(self, tree: str, epoch: str, seq: int) -> None:
        if seq:
            self.epochs.setdefault(tree, {})[epoch] = seq
        else:
            self.epochs.get(tree, {}).pop(epoch, None)

    def index(self, tree: str, key: str, expires_ms: int) -> None:
        self.indexes.setdefault(tree, {})[key] = expires_ms

    def expected(self, tree: str, key: str) -> bool:
        """A tree that no epoch was ever begun for keeps no index: rules may run on a book filled by hand."""
        if tree not in self.epochs:
            return False
        index = self.indexes.get(tree, {})
        return "" not in index or (key in index and not 0 < index[key] <= self.now_ms)

    def trim(self, tree: str) -> None:
        if tree in self.indexes:
            self.indexes[tree] = {key: expires_ms for key, expires_ms in self.indexes[tree].items() if not 0 < expires_ms <= self.now_ms}

    def holds_lost(self, tree: str) -> bool:
        return tree in self.epochs and tree not in self.whole

    def clear(self, tree: str) -> None:
        self.counters = {key: entry for key, entry in self.counters.items() if not key.startswith(prefix(tree))}
        self.holds[tree], self._expiries[tree], self.indexes[tree], self.epochs[tree] = {}, [], {"": 0}, {}
        self.whole.add(tree)

    def forget(self) -> None:
        """Frees what has expired, and heap entries that no hold agrees with."""
        self.counters = {key: entry for key, entry in self.counters.items() if not 0 < entry[2] <= self.now_ms}
        self._expiries = {tree: sorted((expires_ms, hold_id) for hold_id, (_, expires_ms) in holds.items()) for tree, holds in self.holds.items()}


class MemoryLedger(Trees):
    """See ledger/contract.py."""

    def __init__(self, clock_ms: Callable[[], int], expired_hold: Literal["charge_held", "charge_seen"] = "charge_held") -> None:
        super().__init__()
        self._clock_ms = clock_ms
        self._book = MemoryBook("expired_held" if expired_hold == "charge_held" else "expired_seen")
        self._tables: dict[tuple[str, int], Counter[str]] = {}  # by name and generation
        self._incarnation = secrets.token_hex(8)

    def now_ms(self) -> int:
        return self._clock_ms()

    async def open(self) -> None:
        """Nothing to connect."""

    async def close(self) -> None:
        """Nothing to close."""

    async def ping(self) -> None:
        """It is always there."""

    def admit(self, admission: Admission) -> asyncio.Future[Reply]:
        tree = admission.refs.tree
        state = self.trees.get(tree)
        if state is not None and not state.open:
            return failed(recovering(tree))
        return self._call(tree, rules.admit, admission)

    def extend(self, extension: Extension) -> asyncio.Future[Reply]:
        return self._call(extension.refs.tree, rules.extend, extension)

    def settle(self, settlement: Settlement) -> asyncio.Future[Settled]:
        return self._call(settlement.refs.tree, rules.settle, settlement)

    def peek(self, refs: RefSet) -> asyncio.Future[Reply]:
        return _resolved(rules.peek(self._now(), refs))

    async def renew(self, tree: str, hold_ids: list[str], ttl_ms: int) -> None:
        await self._call(tree, lambda book, ids: rules.renew(book, tree, ids, ttl_ms), hold_ids)

    async def sweep(self, limit: int) -> list[Swept]:
        for tree in list(self.trees):
            with contextlib.suppress(LedgerRecovering):
                self.found += await self._call(tree, lambda book, tree: rules.sweep(book, tree, limit), tree)
        self._now().forget()
        return self.take_found()

    async def warn(self, refs: RefSet) -> tuple[tuple[int, int], ...]:
        return await self._call(refs.tree, rules.warn, refs)  # type: ignore[no-any-return]

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
        holds = [hold_view(hold_id, hold, expires_ms) for tree in book.holds.values() for hold_id, (hold, expires_ms) in tree.items()]
        return counters, holds

    async def holds(self, tree: str, after: tuple[int, str], limit: int) -> list[HoldView]:
        holds = self._now().holds.get(tree, {})
        places = sorted((expires_ms, hold_id) for hold_id, (_, expires_ms) in holds.items())
        return [hold_view(hold_id, holds[hold_id][0], expires_ms) for expires_ms, hold_id in places[bisect_right(places, after) :][:limit]]

    async def hold(self, tree: str, hold_id: str) -> HoldView | None:
        found = self._now().holds.get(tree, {}).get(hold_id)
        return hold_view(hold_id, *found) if found is not None else None

    def incarnation(self, tree: str) -> str:
        return self._incarnation

    async def seq(self, tree: str, epoch: str) -> int:
        return self._book.sequence(tree, epoch)

    async def seed(self, tree: str, epoch: str, counters: Sequence[Seed]) -> int:
        return rules.seed(self._now(), tree, epoch, counters)

    async def fill(self, tree: str, counters: Sequence[Seed]) -> None:
        await self._call(tree, lambda book, seeds: rules.fill(book, tree, seeds), counters)

    async def announce(self, announcement: Announcement) -> None:
        await self._call(announcement.refs.tree, rules.announce, announcement)

    def _call(self, tree: str, verb: Callable[[Book, Any], Any], argument: Any) -> "asyncio.Future[Any]":
        state = self.trees.get(tree)
        if state is None:
            return failed(recovering(tree))
        seq, answer = rules.guarded(self._now(), tree, state.epoch, state.seq, verb, argument)
        if isinstance(answer, Lost):
            self.found += answer.swept
            return failed(self.doubt(tree, state.epoch, str(answer)))
        state.seq = seq
        return _resolved(answer)

    def _now(self) -> MemoryBook:
        self._book.now_ms = self._clock_ms()
        return self._book


def _resolved(value: T) -> asyncio.Future[T]:
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    future.set_result(value)
    return future
