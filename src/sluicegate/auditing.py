"""What one worker writes into the audit log, and the events that come of it.

    auditing.note(entry)                   # soon: of what is no change of the records' database
    auditing.write(connection, entry)      # in the transaction of a change; and behind it:
    auditing.tell(entry)
    auditing.send(event)                   # of what is in no audit log: at once

An event goes to the bus, for live clients, and into the queue of every webhook that wants it: with its entry in one transaction, where it has one.

Invariants: nobody waits for any of it. Of what is told once in a window, all workers together tell once: whoever's entry is the first. The rest is
counted. How it fails: while the records are away, up to WAITING_MAX of each kind wait; then the oldest are left out, which is logged. What waits when
a worker is killed is lost; what a transaction has written is not.
"""

import asyncio
import random
import secrets
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import structlog
from sqlalchemy import Connection

from sluicegate import events
from sluicegate.events import Event
from sluicegate.observe.log import StateLog
from sluicegate.records import audit
from sluicegate.records.audit import Audit, Entry, Queued
from sluicegate.records.rows import RecordsUnavailable

WAITING_MAX = 10_000
AT_ONCE = 500  # in one transaction
GATHER_S = 0.05  # what comes together is written together
RETRY_S = (0.5, 5.0)

log = structlog.get_logger("audit")


def new_event_id() -> str:
    """Nobody else's."""
    return "evt_" + secrets.token_hex(10)


class Auditing:
    """Of one worker."""

    def __init__(
        self,
        store: Audit,
        publish: Callable[[str, dict[str, Any]], None],
        on_event: Callable[[str], None],
        webhooks_of: Callable[[str], Sequence[str]],
        now_ms: Callable[[], int],
    ) -> None:
        """publish: on the bus. on_event: told of each event's type. webhooks_of: those that want a type. now_ms: the ledger's clock."""
        self.on_told: Callable[[Entry], None] = lambda entry: None  # of entries that this worker was the first to write
        self.on_queued: Callable[[], None] = lambda: None  # there may be something for webhooks
        self._store = store
        self._publish = publish
        self._on_event = on_event
        self._webhooks_of = webhooks_of
        self._now_ms = now_ms
        self._entries: deque[Entry] = deque(maxlen=WAITING_MAX)
        self._queued: deque[Queued] = deque(maxlen=WAITING_MAX)
        self._counts: Counter[str] = Counter()
        self._left_out = 0
        self._wake = asyncio.Event()
        self._state = StateLog("audit log", "up", good=frozenset({"up"}))

    def note(self, entry: Entry) -> None:
        """Writes it, and then tells of it if it is the first of its kind."""
        self._left_out += len(self._entries) == WAITING_MAX
        self._entries.append(entry)
        self._wake.set()

    def count(self, once: str, times: int) -> None:
        """What is told once has happened so many times more."""
        if once in self._counts or len(self._counts) < WAITING_MAX:
            self._counts[once] += times
            self._wake.set()

    def write(self, connection: Connection, entry: Entry) -> bool:
        """Writes it, and what webhooks are to get, in a transaction of the caller's. See audit.write."""
        if not audit.write(connection, entry):
            return False
        audit.queue(connection, self._for_webhooks(events.of_entry(entry), entry.time_ms))
        return True

    def tell(self, entry: Entry) -> None:
        """Tells of one that was written."""
        self._tell(events.of_entry(entry))
        self.on_told(entry)

    def send(self, event: Event) -> None:
        """Tells of what is in no audit log."""
        rows = self._for_webhooks(event, self._now_ms())
        if rows:
            self._left_out += max(0, len(self._queued) + len(rows) - WAITING_MAX)
            self._queued.extend(rows)
            self._wake.set()
        self._tell(event)

    async def read(self, wanted: audit.Filter, limit: int, before_id: int) -> list[audit.Written]:
        """See audit.read. Raises RecordsUnavailable."""
        return await self._store.call(partial(audit.read, wanted=wanted, limit=limit, before_id=before_id), reading=True)

    async def run(self) -> None:
        """Writes what is noted, until cancelled."""
        pause_s = RETRY_S[0]
        while True:
            await self._wake.wait()
            await asyncio.sleep(GATHER_S)
            try:
                await self.flush()
                pause_s = RETRY_S[0]
                self._state("up", left_out=self._left_out)
                self._left_out = 0
            except RecordsUnavailable as error:
                self._state("away", reason=str(error))
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))
                pause_s = min(2 * pause_s, RETRY_S[1])
            except Exception:
                log.exception("background work failed", work="audit")
                await asyncio.sleep(pause_s)

    async def close(self, timeout_s: float) -> None:
        """After `run` was cancelled: what is noted is written, if that can be done in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.flush()
        except (RecordsUnavailable, TimeoutError) as error:
            self._state("away", reason=str(error), lost=len(self._entries))
        await self._store.close()

    async def flush(self) -> None:
        """Writes what is noted. Raises RecordsUnavailable; then all of it is noted still."""
        while self._entries or self._queued or self._counts:
            self._wake.clear()
            entries = [self._entries.popleft() for _ in range(min(AT_ONCE, len(self._entries)))]
            queued = [self._queued.popleft() for _ in range(min(AT_ONCE, len(self._queued)))]
            counts, self._counts = self._counts, Counter()
            try:
                first = await self._store.call(partial(self._write, entries=entries, counts=counts, queued=queued))
            except BaseException:
                self._entries.extendleft(reversed(entries))
                self._queued.extendleft(reversed(queued))
                self._counts.update(counts)
                self._wake.set()
                raise
            for entry in first:
                self.tell(entry)
            if queued:
                self.on_queued()

    # -- steps ----------------------------------------------------------------------------------------------------------------------------

    def _write(self, connection: Connection, entries: Sequence[Entry], counts: Counter[str], queued: Sequence[Queued]) -> list[Entry]:
        """In the thread. Those entries that were the first of their kind."""
        first = [entry for entry in entries if self.write(connection, entry)]
        audit.count(connection, counts)
        audit.queue(connection, queued)
        return first

    def _for_webhooks(self, event: Event, made_ms: int) -> list[Queued]:
        hooks = self._webhooks_of(event.type)
        body = msgspec.json.encode(event).decode() if hooks else ""
        return [Queued(hook, event.event_id, body, made_ms) for hook in hooks]

    def _tell(self, event: Event) -> None:
        self._on_event(event.type)
        self._publish(events.KIND, msgspec.to_builtins(event))
        if self._webhooks_of(event.type):
            self.on_queued()
