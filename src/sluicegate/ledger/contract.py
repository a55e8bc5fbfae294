"""The one contract of all ledgers (memory, sqlite, Redis). Semantics: core/rules.py; values: core/claims.py; suite: tests/contract.

Every call is bounded in time by the ledger's own timeout and raises `LedgerUnavailable` when its outcome is unknown or the ledger is away.
A late `Granted` of an admit that timed out is cancelled by the ledger itself, as soon as its answer comes.
Calls of one worker for one hold id take effect in the order in which they were made.

Lost or rolled-back state is never read as zero. The state of each tree carries an epoch, made when it was seeded, and a sequence number that every
verb which writes raises. `trees` says which epochs this worker trusts; who puts a tree there has verified or seeded it. A verb that finds its epoch
gone, or its sequence at or behind the highest that this worker has seen, or a part of the state missing, voids the epoch for everybody, takes the
tree out of `trees`, tells `on_doubt` and raises `LedgerRecovering`, as does every verb on a tree that is not there.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from sluicegate.core.claims import Admission, Announcement, CounterView, Extension, HoldView, RefSet, Reply, Seed, Settled, Settlement, Swept

GENERATION_MS = 600_000  # learned tables live in two generations of this length


class LedgerUnavailable(Exception):
    """The ledger did not answer in time, or cannot be reached. The outcome of the call is unknown."""


class LedgerRecovering(LedgerUnavailable):
    """The tree's state is lost or in doubt: nothing is admitted until it has been verified or seeded anew. The call has done nothing."""


class TreeState(msgspec.Struct):
    """What a worker knows of the state of one tree."""

    epoch: str
    seq: int  # the highest that this worker has seen
    open: bool  # False: seeded, holds are being announced; nothing is admitted yet


class Ledger(Protocol):
    """Admit, extend, settle and what keeps holds alive. Verbs that return a Future have been written out (or queued) when they return."""

    trees: dict[str, TreeState]  # what is not there is not used: no verb that writes, no sweep; not open: no admit
    on_doubt: Callable[[str, str], None]  # told of a tree (and why) that the ledger has taken out of `trees`

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
        """The states of counters, changing nothing, whatever the state of their tree. Status granted."""
        ...

    async def renew(self, tree: str, hold_ids: list[str], ttl_ms: int) -> None:
        """Puts off the expiry of open holds, reopens expired ones, ignores unknown ones. At most 256 ids a call."""
        ...

    async def sweep(self, limit: int) -> list[Swept]:
        """Charges at most `limit` holds per tree of `trees` whose expiry has passed, and forgets markers that are too old."""
        ...

    async def warn(self, refs: RefSet) -> tuple[tuple[int, int], ...]:
        """(ref index, mark index) of marks reached that nobody was told of yet: what a settle returns, for counters that a sweep has charged."""
        ...

    async def learned(self, increments: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
        """Adds to shared integer tables (estimators, ratios) named by the keys and returns the sums over all workers of those named.

        Tables live in two generations of ten minutes each; a sum covers both. An empty increment reads only.
        """
        ...

    async def show(self) -> tuple[list[CounterView], list[HoldView]]: ...

    async def holds(self, tree: str, after: tuple[int, str], limit: int) -> list[HoldView]:
        """The records of a tree's holds by expiry and id, behind one of these; expired ones and markers too. None: there are no more.

        A renewal moves a hold behind all others: it may be met twice on the way through, and is never missed.
        """
        ...

    async def hold(self, tree: str, hold_id: str) -> HoldView | None:
        """One of them; None: it has ended, or never was."""
        ...

    # -- recovery --

    async def claim(self, records: str, before: str, ttl_ms: int) -> str:
        """Says that the ledger is used with these records, for so long. Returns theirs, or the identity of others whose claim still holds.

        before: that of the records that this worker claimed it for until now. A ledger that one machine alone can use is claimed by nobody else.
        """
        ...

    def incarnation(self, tree: str) -> str:
        """Which run of a server keeps this tree: while it stays the same, nothing can have been lost unnoticed. "": not known yet."""
        ...

    async def seq(self, tree: str, epoch: str) -> int:
        """Where the sequence of an epoch stands; 0: there is no such epoch."""
        ...

    async def seed(self, tree: str, epoch: str, counters: Sequence[Seed]) -> int:
        """Wipes everything of a tree, writes these counters and, last, the new epoch; returns its sequence. Interrupted, it leaves no epoch."""
        ...

    async def fill(self, tree: str, counters: Sequence[Seed]) -> None:
        """Makes those of the counters that are missing. Windows that have used less are raised to it; the others are left as they are."""
        ...

    async def announce(self, announcement: Announcement) -> None:
        """Takes up an open hold of this worker, whatever the ceilings say, unless its id is known. Windows that are over are left out."""
        ...
