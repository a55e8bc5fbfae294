"""Webhooks: events are sent to whoever the configuration names, over HTTP, signed, and again until they are taken.

    POST /path
    x-sluicegate-signature: t=1764514790,v1=<HMAC-SHA256 of "1764514790.<body>" with the secret, in hex>

What is to be sent is in a table of the records (records/audit.py), written with what it tells of. Whoever takes a row has it for LEASE_MS: no other
worker sends it meanwhile, and one that dies leaves it to the others. So each event is sent by one worker, at least once: a receiver that has taken
one and whose answer was lost gets it again, under the same `x-sluicegate-event-id`.

Invariants: nobody waits for any of it. An event is tried TRIES_MAX times, with pauses that double, for an hour; then it is given up, which
is logged and counted. Neither the path nor the query of a URL is logged: they may be secrets.
"""

import asyncio
import contextlib
import hashlib
import hmac
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import structlog

from sluicegate import __version__
from sluicegate.core.happening import wanted
from sluicegate.core.tenants import Timeouts, Webhook
from sluicegate.events import Event
from sluicegate.http.upstream import Pool, UpstreamError
from sluicegate.observe.log import StateLog
from sluicegate.records import audit
from sluicegate.records.audit import Audit, Queued
from sluicegate.records.rows import RecordsUnavailable

POLL_S = 5.0  # for what is due again, or was left by others
AT_ONCE = 20
OTHERS = ""
LEASE_MS = 60_000
TRIES_MAX = 16
PAUSE_MS = (1_000, 600_000)  # before it is tried again: at first, at most; times 0.5 to 1
TIMEOUTS = Timeouts(connect_ms=5_000, first_byte_ms=10_000, idle_ms=5_000, total_ms=20_000)

log = structlog.get_logger("webhooks")


class Webhooks:
    """Sends what is queued, for one worker."""

    def __init__(
        self,
        store: Audit,
        now_ms: Callable[[], int],
        on_sent: Callable[[str], None],
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """now_ms: the ledger's clock. on_sent: told what came of each try: delivered, failed, given_up."""
        self._store = store
        self._now_ms = now_ms
        self._on_sent = on_sent
        self._jitter = jitter
        self._of: dict[str, Webhook] = {}
        self._pools: dict[str, Pool] = {}  # by the webhook's id
        self._states: dict[str, StateLog] = {}
        self._wanted: dict[str, tuple[str, ...]] = {}  # by type
        self._wake = asyncio.Event()

    def apply(self, webhooks: Sequence[Webhook]) -> None:
        """These are the webhooks from now on."""
        before, self._of = self._of, {one.id: one for one in webhooks}
        self._wanted = {}
        for id_ in before.keys() - self._of.keys():
            self._pools.pop(id_).drain()
            del self._states[id_]
        for id_, one in self._of.items():
            if id_ not in self._pools or one.proxy != before[id_].proxy:
                self._pools[id_] = Pool(one.origin, proxy=one.proxy, max_idle=1)
                self._states.setdefault(id_, StateLog(f"webhook {one.origin}", "up", good=frozenset({"up"})))
        self._wake.set()

    def of(self, type_: str) -> tuple[str, ...]:
        """The ids of those that want events of a type."""
        found = self._wanted.get(type_)
        if found is None:
            found = self._wanted[type_] = tuple(id_ for id_, one in self._of.items() if wanted(type_, one.types))
        return found

    def soon(self) -> None:
        """There may be something to send."""
        self._wake.set()

    async def run(self) -> None:
        """Sends what is due, until cancelled. Each webhook has a task of its own: one that does not answer keeps no other waiting."""
        tasks: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                self._wake.clear()
                for id_ in (*self._of, OTHERS) if self._of else ():
                    if id_ not in tasks or tasks[id_].done():
                        tasks[id_] = asyncio.create_task(self._drain(id_))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(POLL_S if self._of else None):
                        await self._wake.wait()
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)

    async def _drain(self, webhook: str) -> None:
        """Until nothing is due for it."""
        try:
            while await self.send_due(webhook):
                pass
        except RecordsUnavailable:
            pass  # the audit log says so
        except Exception:
            log.exception("background work failed", work="webhooks")

    async def send_due(self, webhook: str) -> bool:
        """Sends some of what is due for one; whether there was anything. OTHERS: what is due for those that are not known here."""
        others = webhook == OTHERS
        which: Any = {"now_ms": self._now_ms(), "webhooks": tuple(self._of) if others else (webhook,), "others": others}
        if not await self._store.call(partial(audit.any_due, **which), reading=True):
            return False
        rows = await self._store.call(partial(audit.take, **which, lease_ms=LEASE_MS, limit=AT_ONCE))
        await asyncio.gather(*(self._send(row) for row in rows))
        return bool(rows)

    async def close(self) -> None:
        """Ends what is under way: others take it up."""
        await asyncio.gather(*(pool.close() for pool in self._pools.values()))

    # -- steps ----------------------------------------------------------------------------------------------------------------------------

    async def _send(self, row: Queued) -> None:
        webhook = self._of.get(row.webhook)  # None: another worker's configuration has it, or it was left out
        failure = await self._post(webhook, row) if webhook is not None else "there is no such webhook any more"
        if not failure:
            self._on_sent("delivered")
            await self._store.call(partial(audit.done, id=row.id))
            self._say(row.webhook, "up", "")
            return
        given_up = row.tries >= TRIES_MAX
        self._on_sent("given_up" if given_up else "failed")
        self._say(row.webhook, "away", failure)
        if given_up:
            log.error("event was not taken by a webhook", event_id=row.event_id, origin=webhook.origin if webhook else "", reason=failure)
            await self._store.call(partial(audit.done, id=row.id))
            return
        pause_ms = min(PAUSE_MS[0] * 2 ** (row.tries - 1), PAUSE_MS[1]) * (1 + self._jitter()) / 2
        await self._store.call(partial(audit.put_off, id=row.id, due_ms=self._now_ms() + int(pause_ms)))
        if pause_ms < POLL_S * 1000:
            asyncio.get_running_loop().call_later(pause_ms / 1000, self._wake.set)

    async def _post(self, webhook: Webhook, row: Queued) -> str:
        """Why it was not taken; "" if it was."""
        event = msgspec.json.decode(row.event, type=Event)
        body = row.event.encode() if webhook.format == "json" else msgspec.json.encode({"text": in_words(event)})
        try:
            call = self._pools[webhook.id].begin(b"POST", webhook.target, self._headers(webhook, event, body), body, TIMEOUTS)
        except ValueError as error:
            return str(error)
        try:
            await call.start()
            while call.status < 300 and await call.read():  # so that the connection can be used again
                pass
        except UpstreamError as error:
            return error.reason
        finally:
            call.close()
        return "" if 200 <= call.status < 300 else f"it answered {call.status}"

    def _headers(self, webhook: Webhook, event: Event, body: bytes) -> list[tuple[bytes, bytes]]:
        headers = [
            (b"content-type", b"application/json"),
            (b"user-agent", f"sluicegate/{__version__}".encode()),
            (b"x-sluicegate-event-id", event.event_id.encode()),
            (b"x-sluicegate-event", event.type.encode()),
        ]
        if webhook.secret:
            headers.append((b"x-sluicegate-signature", signature(webhook.secret, self._now_ms() // 1000, body)))
        ours = {name for name, _ in headers}
        return headers + [(name, value) for name, value in webhook.headers if name not in ours]

    def _say(self, webhook: str, state: str, reason: str) -> None:
        say = self._states.get(webhook)
        if say is not None:
            say(state, **({"reason": reason} if reason else {}))


def signature(secret: bytes, time_s: int, body: bytes) -> bytes:
    """`t=<seconds>,v1=<HMAC-SHA256 of "<seconds>.<body>">`: who has the secret can tell that it is ours, and that it is not an old one sent again."""
    digest = hmac.new(secret, b"%d." % time_s + body, hashlib.sha256).hexdigest()
    return f"t={time_s},v1={digest}".encode()


_LEADS = {
    "budget.warning": ":warning: Budget warning",
    "budget.exceeded": ":no_entry: Budget exceeded",
    "budget.reset": ":white_check_mark: Budget reset",
}


def in_words(event: Event) -> str:
    """An event for people, as Slack takes it."""
    parts = [f"{_LEADS.get(event.type, event.type)}:"]
    if event.limit:
        parts.append(event.limit)
        if event.threshold_percent is not None:
            parts.append(f"is at {event.threshold_percent}%")
        if event.amount is not None and event.type != "budget.reset":
            dollars = "$" if event.unit == "usd" else ""
            parts.append(f"({dollars}{event.used or 0:g} of {dollars}{event.amount:g} used)")
        if event.resets_at and event.type != "budget.reset":
            parts.append(f"until {event.resets_at}")
    elif event.subject:
        parts.append(event.subject)
    if event.after:
        parts.append(f"{event.before} -> {event.after}" if event.before else event.after)
    if event.count is not None:
        parts.append(f"{event.count} times")
    if event.reason:
        parts.append(f"({event.reason})")
    if event.actor:
        parts.append(f"by {event.actor}")
    return " ".join(parts).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
