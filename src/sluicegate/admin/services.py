"""What the routers of the admin API may use of a worker. They reach nothing else."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from sqlalchemy import Connection

from sluicegate.admin.access import Access, Caller
from sluicegate.auditing import Auditing, new_event_id
from sluicegate.bus import Bus
from sluicegate.chaos import Chaos
from sluicegate.config.load import Loaded
from sluicegate.core.claims import RefSet
from sluicegate.core.happening import Action
from sluicegate.directory import Directory
from sluicegate.directory_changes import Change, Changes
from sluicegate.gateway import Gateway
from sluicegate.ledger.contract import Ledger
from sluicegate.outbox import Marks, Outbox
from sluicegate.probes import Probes
from sluicegate.records.audit import Entry, Filter, Written
from sluicegate.records.store import Records
from sluicegate.recovery import Recovery
from sluicegate.reloading import Reloading

SAID_MAX = 200  # characters of what a client calls itself


@dataclass(frozen=True, slots=True)
class Audits:
    """Records what administrators do. Every change is recorded, and told as an event, by `note`; or, where it is one of the records' database, so
    that neither is without the other:

        entry = audit.entry(caller, "key.blocked", key_id, before, after, request)
        await ...call(lambda connection: (change(connection), audit.write(connection, entry)))
        audit.tell(entry)
    """

    _auditing: Auditing
    _time_ms: Callable[[], int]

    def entry(self, caller: Caller, action: Action, subject: str, before: Any, after: Any, request: Request, *, reason: str = "") -> Entry:
        """What is to be written. before, after: what JSON has, None for nothing; what is called like a secret is left out."""
        tenant, _, key = subject.partition("/@")
        return Entry(
            event_id=new_event_id(),
            time_ms=self._time_ms(),
            action=action,
            actor=caller.name,
            address=caller.address,
            subject=subject,
            before=before,
            after=after,
            tenant=tenant if action.partition(".")[0] not in ("breaker", "chaos", "config", "hold", "price") else "",
            key_id=subject if key else "",
            reason=reason,
            request_id=request.headers.get("x-request-id", "")[:SAID_MAX],
            path=f"{request.method} {request.url.path}",
        )

    def witness(self, caller: Caller, action: Action, subject: str, request: Request, *, reason: str = "") -> "Witness":
        """Writes a change of the directory down in its own transaction, and tells of it."""
        return Witness(self, lambda before, after: self.entry(caller, action, subject, before, after, request, reason=reason))

    def note(self, caller: Caller, action: Action, subject: str, before: Any, after: Any, request: Request, *, reason: str = "") -> None:
        """Writes it soon, whatever becomes of the answer."""
        self._auditing.note(self.entry(caller, action, subject, before, after, request, reason=reason))

    def write(self, connection: Connection, entry: Entry) -> None:
        """In the transaction of the change. From the database's thread."""
        self._auditing.write(connection, entry)

    def tell(self, entry: Entry) -> None:
        """Of one that was written."""
        self._auditing.tell(entry)

    async def read(self, wanted: Filter, limit: int, before_id: int = 0) -> list[Written]:
        """Entries that fit, the newest first. before_id: those that are older; 0: from the newest. Raises RecordsUnavailable."""
        return await self._auditing.read(wanted, limit, before_id)


class Witness:
    """Of one change; see directory_changes.Witness."""

    def __init__(self, audits: Audits, entry: Callable[[Any, Any], Entry]) -> None:
        self._audits = audits
        self._entry = entry
        self._written: Entry | None = None

    def write(self, connection: Connection, change: Change) -> None:
        """In its transaction, which may be made again."""
        self._written = self._entry(change.before, change.after)
        self._audits.write(connection, self._written)

    def tell(self) -> None:
        """It has been committed."""
        if self._written is not None:
            self._audits.tell(self._written)


@dataclass(frozen=True, slots=True)
class Services:
    """Of one worker. What changes by itself (the configuration in force, states) is asked for."""

    access: Access
    worker: str  # its id
    gateway: Gateway
    ledger: Ledger
    recovery: Recovery
    chaos: Chaos | None  # None: `admin.chaos` is off
    probes: Probes
    reset: Callable[[str, str], None]  # ends what keeps requests from a deployment, at all workers; why
    loaded: Callable[[], Loaded]
    reloading: Reloading
    records: Records  # to ask, beside what writes them
    directory: Directory
    changes: Changes
    outbox: Outbox
    sweep: Callable[[], Awaitable[bool]]  # holds that have expired are charged, and told
    on_marks: Callable[[RefSet, Marks], object]  # told of warning marks that a settlement reached
    audit: Audits
    bus: Bus
    states: Callable[[], dict[str, str]]  # of the ledger, the records, the bus, ...: "up", or what else
    why_not_ready: Callable[[], str]  # "": it is
    clock: Callable[[], float]
    time_ms: Callable[[], int]

    def deployments(self) -> dict[str, list[str]]:
        """The models that lead to each deployment, by its id."""
        found: dict[str, list[str]] = {}
        for model in self.gateway.policy.models.values():
            for one in model.deployments:
                found.setdefault(one.id, []).append(model.name)
        return found
