"""Settlements on their way to the ledger: the journal first, then the ledger, again until it has taken each one.

Settles are idempotent by hold id, so one whose outcome is unknown is simply sent again. Nothing used is lost: what the ledger has not
acknowledged stays in the journal's file and is replayed by whoever finds that file unlocked.
"""

import asyncio
from collections.abc import Callable

import structlog

from sluicegate import journal as journaling
from sluicegate.core.claims import Settled, Settlement
from sluicegate.core.record import Record
from sluicegate.journal import Journal
from sluicegate.ledger.contract import Ledger, LedgerUnavailable

RETRY_S = 1.0
RETRY_AT_ONCE = 256

log = structlog.get_logger("outbox")


class Outbox:
    """One per worker. `backlog` counts settlements that the ledger has not taken yet."""

    def __init__(self, ledger: Ledger, journal: Journal, time_ms: Callable[[], int]) -> None:
        self._ledger = ledger
        self._journal = journal
        self._time_ms = time_ms
        self._owed: dict[int, Settlement] = {}
        self._failed: dict[int, Settlement] = {}  # those of them that are not on their way

    @property
    def backlog(self) -> int:
        return len(self._owed)

    def settle(self, settlement: Settlement, record: Record | None) -> "asyncio.Future[Settled]":
        """Writes the journal's line and the ledger's call, in that order. The future may fail; the settlement is then sent again later."""
        line = self._journal.append(journaling.encode(settlement, record, self._time_ms()))
        return self._send(line, settlement)

    async def run(self) -> None:
        """Sends again what the ledger did not take. Runs until cancelled."""
        while True:
            await asyncio.sleep(RETRY_S)
            await self.retry()

    async def retry(self) -> None:
        """One round: at most 256 settlements, oldest first; stops at the first that fails."""
        for line, settlement in list(self._failed.items())[:RETRY_AT_ONCE]:
            try:
                await self._send(line, settlement)
            except LedgerUnavailable:
                return

    def _send(self, line: int, settlement: Settlement) -> "asyncio.Future[Settled]":
        self._owed[line] = settlement
        future = self._ledger.settle(settlement)
        future.add_done_callback(lambda done: self._answered(line, settlement, done))
        return future

    def _answered(self, line: int, settlement: Settlement, done: "asyncio.Future[Settled]") -> None:
        if not done.cancelled() and done.exception() is None:
            self._owed.pop(line, None)
            self._failed.pop(line, None)
            self._journal.acknowledge(line)
        else:
            self._failed[line] = settlement


async def replay(directory: str, ledger: Ledger) -> int:
    """Settles what the journals of dead workers hold; answers how many lines the ledger had not seen. Raises LedgerUnavailable half way."""
    taken = 0
    for leftover in journaling.leftover(directory):
        for entry in leftover.entries:
            settled = await ledger.settle(entry.settlement)
            taken += settled.status != "already"
        if leftover.corrupt or leftover.torn:
            log.warning("journal lines not readable", file=leftover.path.name, lines=len(leftover.corrupt), torn=bool(leftover.torn))
        leftover.remove()
    if taken:
        log.info("journal replayed", settlements=taken)
    return taken
