"""What a worker finds that somebody should be told of, as entries of the audit log and as events: budgets that are nearly or all used, and begin
anew; requests that limits refuse; what content rules find; deployments that are left alone; configurations that are applied or refused.

Of a budget's window each mark is told once by all workers together, and that it is used up, be it by its last mark or by the first request that it
refuses. When such a window has ended, that is told too: by the worker that has told of it, or by one that has started since.

Invariants: nothing here is on the path of a request that is served. Refusals are told of once a second for each limit, however many there are; of
more than LIMITS_MAX limits in one second only the counts are told, together.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import msgspec
import structlog

from sluicegate import events
from sluicegate.auditing import Auditing, new_event_id
from sluicegate.core.claims import Ref
from sluicegate.core.counters import Mark, name
from sluicegate.core.happening import Found
from sluicegate.core.limits import WHOLE, show_window
from sluicegate.core.refusals import Refusal, iso
from sluicegate.core.tenants import Counter
from sluicegate.events import EXCEEDED, Event
from sluicegate.records import audit
from sluicegate.records.audit import Audit, Entry
from sluicegate.records.rows import RecordsUnavailable
from sluicegate.trip import Trip

TOGETHER_S = 1.0  # refusals of one limit
LIMITS_MAX = 100
LOOK_S = 1.0  # for windows that have ended
LATE_MS = 3_600_000  # what ended longer ago is not told of any more
WINDOWS_MAX = 10_000
PROBLEMS_MAX = 1_000  # characters
MINUTE_MS = 60_000

log = structlog.get_logger("alarms")

Later = Callable[[float, Callable[[], None]], object]


class _Refused(msgspec.Struct):
    """Refusals by one limit, for one reason. Figures are the last one's."""

    refusal: Refusal
    key_id: str
    count: int = 0


class Alarms:
    """Of one worker."""

    def __init__(self, auditing: Auditing, store: Audit, worker: str, now_ms: Callable[[], int], later: Later) -> None:
        """store: where windows are found that were told of before. now_ms: the ledger's clock. later: calls something after so many seconds."""
        self._auditing = auditing
        self._store = store
        self._worker = worker
        self._now_ms = now_ms
        self._later = later
        self._refused: dict[tuple[str, str], _Refused] = {}
        self._unnamed = 0  # refusals of more limits than are told of
        self._ruled: dict[tuple[str, str], int] = {}  # requests, by content rule and key
        self._waiting = False
        self._exceeded: dict[str, None] = {}  # windows that this worker knows to be used up; the oldest first
        self._windows: dict[str, Entry] = {}  # that were told of and have not ended, by what their end is told as; likewise
        auditing.on_told = self._remember

    # -- budgets --------------------------------------------------------------------------------------------------------------------------

    def marked(self, counter: Counter, ref: Ref, mark: Mark, used: int, held: int) -> None:
        """What is used of a limit has reached a mark."""
        percent = mark.share * 100 // WHOLE
        action: Found = "budget.exceeded" if percent >= EXCEEDED else "budget.warning"
        once = f"{action} {ref.key} {mark.limit.amount}" + (f" {mark.share}" if percent < EXCEEDED else "")
        entry = self._of_budget(action, counter, ref, mark.limit.amount, once, percent=percent, used=used, held=held)
        self._auditing.note(msgspec.structs.replace(entry, reason="shadow" if mark.limit.shadow else ""))

    def refused(self, refusal: Refusal, trip: Trip) -> None:
        """A limit has refused a request, and the client is told so."""
        known = self._refused.get(of := (refusal.counter.key_prefix, refusal.reason))
        if known is None:
            if len(self._refused) >= LIMITS_MAX:
                self._unnamed += 1
                return
            known = self._refused[of] = _Refused(refusal, "")
        known.refusal, known.count = refusal, known.count + 1
        known.key_id = trip.key.id if trip.key is not None else ""
        if refusal.reason == "exhausted":
            self._exhausted(refusal, trip)
        self._tell_later()

    def ruled(self, rules: Iterable[str], key_id: str) -> None:
        """Content rules have found something in a request or its answer."""
        for rule in rules:
            if (rule, key_id) in self._ruled or len(self._ruled) < LIMITS_MAX:
                self._ruled[rule, key_id] = self._ruled.get((rule, key_id), 0) + 1
        self._tell_later()

    def _tell_later(self) -> None:
        if not self._waiting:
            self._waiting = True
            self._later(TOGETHER_S, self._tell_refused)

    def _exhausted(self, refusal: Refusal, trip: Trip) -> None:
        counter, refs = refusal.counter, trip.refset.refs if trip.refset is not None else ()
        ref = next((ref for ref in refs if ref.key == counter.key_prefix or ref.key.startswith(counter.key_prefix + ":")), None)
        if ref is None:
            return
        once = f"budget.exceeded {ref.key} {counter.amount}"
        self._auditing.count(once, 1)
        if once in self._exceeded:
            return
        _keep(self._exceeded, once, None)
        figures: dict[str, Any] = {"used": refusal.used, "held": refusal.held, "requested": refusal.requested, "percent": EXCEEDED}
        entry = self._of_budget("budget.exceeded", counter, ref, counter.amount, once, **figures)
        self._auditing.note(
            msgspec.structs.replace(
                entry,
                key_id=entry.key_id or (trip.key.id if trip.key is not None else ""),
                request_id=trip.request_id,
                path=f"{trip.exchange.method} {trip.exchange.path}",
            )
        )

    def _of_budget(self, action: Found, counter: Counter, ref: Ref, amount: int, once: str, **figures: Any) -> Entry:
        return Entry(
            event_id=new_event_id(),
            time_ms=self._now_ms(),
            action=action,
            **_whose(counter),
            limit=name(counter),
            unit=counter.unit,
            window=show_window(counter.window),
            amount=amount,
            resets_ms=ref.end_ms,
            once=once,
            **figures,
        )

    def _tell_refused(self) -> None:
        """What limits have refused, and content rules have found, within a second."""
        self._waiting = False
        refused, self._refused = self._refused, {}
        for one in refused.values():
            counter, unit = one.refusal.counter, one.refusal.counter.unit
            whose = _whose(counter)
            self._send(
                "request.refused",
                subject=whose["subject"],
                tenant=events.path(whose["tenant"]),
                key_id=whose["key_id"] or one.key_id,
                limit=one.refusal.name,
                unit=unit,
                window=show_window(counter.window),
                amount=events.figure(unit, one.refusal.limit),
                used=events.figure(unit, one.refusal.used) if one.refusal.asked else None,
                held=events.figure(unit, one.refusal.held) if one.refusal.asked else None,
                requested=events.figure(unit, one.refusal.requested),
                resets_at=iso(one.refusal.resets_at_ms) if one.refusal.resets_at_ms else None,
                reason=one.refusal.reason,
                count=one.count,
            )
        ruled, self._ruled = self._ruled, {}
        for (rule, key_id), count in ruled.items():
            tenant = events.path(key_id.partition("/@")[0])
            self._send("content.matched", subject=rule, tenant=tenant, key_id=key_id, count=count)
        unnamed, self._unnamed = self._unnamed, 0
        if unnamed:
            self._send("request.refused", reason="other limits", count=unnamed)

    # -- windows that end -----------------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Tells of windows that have ended, until cancelled."""
        known = False
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                if not known:
                    known = await self._recall()
                self.look()
            except Exception:
                log.exception("background work failed", work="alarms")

    def look(self) -> None:
        """Tells of those of the windows that have ended by now."""
        now_ms = self._now_ms()
        for once, entry in [(once, entry) for once, entry in self._windows.items() if entry.resets_ms <= now_ms]:
            del self._windows[once]
            over = {"used": 0, "held": 0, "requested": 0, "percent": 0, "request_id": "", "path": "", "reason": entry.reason}
            ended: dict[str, Any] = {"event_id": new_event_id(), "time_ms": now_ms, "action": "budget.reset", "once": once, **over}
            self._auditing.note(msgspec.structs.replace(entry, **ended))

    def _remember(self, entry: Entry) -> None:
        """This worker was the first to tell of it."""
        if entry.action in ("budget.warning", "budget.exceeded") and entry.resets_ms:
            _keep(self._windows, "budget.reset " + entry.once.split(" ")[1], entry)

    async def _recall(self) -> bool:
        """The windows that were told of before this worker has started."""
        try:
            found = await self._store.call(partial(audit.windows, since_ms=self._now_ms() - LATE_MS, limit=WINDOWS_MAX), reading=True)
        except RecordsUnavailable:
            return False
        for entry in found:
            self._remember(entry)
        return True

    # -- deployments and configurations ---------------------------------------------------------------------------------------------------

    def standing(self, deployment: str, what: str, before: str, after: str, reason: str) -> None:
        """A breaker has changed. Each worker has its own."""
        if what == "breaker":
            self._send("breaker.changed", subject=deployment, before=before, after=after, reason=reason)

    def cooled(self, deployment: str, for_s: float, reason: str) -> None:
        """This worker has found that a deployment is to be left alone; the others hear of it."""
        until = iso(self._now_ms() + int(for_s * 1000))
        self._send("cooldown.changed", subject=deployment, after="cooling", reason=reason, until=until)

    def health(self, deployment: str, before: str, after: str, reason: str) -> None:
        """By a probe of this worker."""
        self._send("health.changed", subject=deployment, before=before, after=after, reason=reason)

    def configuration(self, file: str, before: str, after: str, problems: Sequence[str]) -> None:
        """Another one came: it is in use, or it was refused for these problems. Told once, though every worker finds it."""
        now_ms, action = self._now_ms(), "config.refused" if problems else "config.reloaded"
        told: dict[str, Any] = {"version": after} | ({"problems": list(problems)} if problems else {})
        self._auditing.note(
            Entry(
                event_id=new_event_id(),
                time_ms=now_ms,
                action=action,
                subject=file,
                before={"version": before},
                after=told,
                reason=" ".join(problems)[:PROBLEMS_MAX],
                once=f"{action} {before} {after} {now_ms // MINUTE_MS}",
            )
        )

    def _send(self, type_: Found, **fields: Any) -> None:
        worker = self._worker if type_ == "breaker.changed" else ""
        self._auditing.send(Event(event_id=new_event_id(), type=type_, time=events.time(self._now_ms()), worker=worker, **fields))


def _whose(counter: Counter) -> dict[str, Any]:
    """Of which tenant and key a limit is."""
    scope = counter.scope
    tenant = scope.id.partition("/@")[0] if scope.kind not in ("global", "deployment") else ""
    return {"subject": scope.id, "tenant": tenant, "key_id": scope.id if scope.kind == "key" else ""}


def _keep(known: dict[str, Any], key: str, value: Any) -> None:
    """A bounded memory: the oldest makes room."""
    if key not in known and len(known) >= WINDOWS_MAX:
        del known[next(iter(known))]
    known[key] = value
