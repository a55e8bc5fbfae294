"""A ledger in this process's memory: the specification at work, for tests and for trying things out with one worker.

Calls take effect at once, one after another, so every future is resolved when it is returned. Nothing outlives the process. It never fails:
`LedgerUnavailable` is not raised.
"""

import asyncio
import contextlib
import secrets
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from sluicegate.core import rules
from sluicegate.core.book import Book, Lost
from sluicegate.core.claims import (
    Admission,
    Announcement,
    CounterView,
    Extension,
    HoldView,
    RefSet,
    Reply,
    Seed,
    Settled,
    Settlement,
    Swept,
)
from sluicegate.ledger.contract import GENERATION_MS, LedgerRecovering
from sluicegate.ledger.memory_book import MemoryBook
from sluicegate.ledger.trees import Trees, failed, recovering
from sluicegate.ledger.views import counter_view, hold_view

T = TypeVar("T")


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
