"""The one contract of all ledgers (memory, sqlite, Redis). Semantics: core/rules.py; suite: tests/contract.

Every call is bounded in time by the ledger's own timeout and raises `LedgerUnavailable` when its outcome is unknown or the ledger is away.
A late `Granted` of an admit that timed out is cancelled by the ledger itself, as soon as its answer comes.
Calls of one worker for one hold id take effect in the order in which they were made.
"""

import asyncio
from typing import Protocol

from sluicegate.core.claims import Admission, CounterView, Extension, HoldView, RefSet, Reply, Settled, Settlement, Swept

GENERATION_MS = 600_000  # learned tables live in two generations of this length


class LedgerUnavailable(Exception):
    """The ledger did not answer in time, or cannot be reached. The outcome of the call is unknown."""


class Ledger(Protocol):
    """Admit, extend, settle and what keeps holds alive. Verbs that return a Future have been written out (or queued) when they return."""

    def now_ms(self) -> int:
        """The ledger's time, from the last reply's offset. Monotonic enough for labels; the ledger itself is the authority."""
        ...

    async def open(self) -> None:
        """Connects. Raises LedgerUnavailable if the ledger cannot be reached in time; later calls go on trying."""
        ...

    async def close(self) -> None: ...

    async def ping(self) -> None:
        """Raises LedgerUnavailable unless the ledger answers."""
        ...

    def admit(self, admission: Admission) -> "asyncio.Future[Reply]": ...

    def extend(self, extension: Extension) -> "asyncio.Future[Reply]": ...

    def settle(self, settlement: Settlement) -> "asyncio.Future[Settled]": ...

    def peek(self, refs: RefSet) -> "asyncio.Future[Reply]":
        """The states of counters, changing nothing. Status granted."""
        ...

    async def renew(self, tree: str, hold_ids: list[str], ttl_ms: int) -> None:
        """Puts off the expiry of open holds, reopens expired ones, ignores unknown ones. At most 256 ids a call."""
        ...

    async def sweep(self, limit: int) -> list[Swept]:
        """Charges at most `limit` holds per tree whose expiry has passed, and forgets markers that are too old."""
        ...

    async def learned(self, increments: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
        """Adds to shared integer tables (estimators, ratios) named by the keys and returns the sums over all workers of those named.

        Tables live in two generations of ten minutes each; a sum covers both. An empty increment reads only.
        """
        ...

    async def show(self) -> tuple[list[CounterView], list[HoldView]]: ...
