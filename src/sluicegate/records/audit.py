"""The audit log: who changed what, and which budgets were warned about or used up; and what is still to be sent to webhooks.

    audit.write(connection, entry)      # in the transaction of the change that it tells of: neither is there without the other

Invariants: entries are only added; the database itself refuses to change or delete one. An entry with `once` is written by the first who comes, and
`write` says so: that is how all workers together tell of something once. How often it has happened since is kept beside it.
No entry has a secret: what is called like one, or looks like one, is left out as it is written.

How it fails: as the caller's transaction does.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from sqlalchemy import ColumnElement, Connection, Row, Select, and_, delete, func, select, update

from sluicegate.core.masks import mask
from sluicegate.records.database import Database
from sluicegate.records.schema import audit_counts, audit_log, insert, webhook_queue

TIMEOUT_S = 3.0
HIDDEN = "***"
_SECRET_NAMES = re.compile(r"(?i)(^|_)(secret|digest|sha256|password|passwd|token|api_?key|authorization|credential|cookie)$")

T = TypeVar("T")


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """What has happened. before, after: of what was changed, None for nothing. Amounts are in the unit of the limit, dollars in nano-USD."""

    event_id: str  # nobody else's
    time_ms: int
    action: str  # key.created, tenant.updated, budget.exceeded: also the type of the event
    actor: str = ""  # "": nobody, it came about
    address: str = ""
    subject: str = ""  # the id of what it is about
    before: Any = None
    after: Any = None
    tenant: str = ""  # the path of whose it is
    key_id: str = ""
    limit: str = ""  # its name
    unit: str = ""
    window: str = ""
    amount: int = 0
    percent: int = 0  # 100: used up
    used: int = 0
    held: int = 0
    requested: int = 0
    resets_ms: int = 0  # 0: never
    reason: str = ""
    request_id: str = ""
    path: str = ""  # of the request that did it
    once: str = ""  # of what is told once, what and in which window; "": each is told


class Written(msgspec.Struct, frozen=True):
    """An entry as it is in the log. count: how often that has happened, where it is told once."""

    id: int
    entry: Entry
    count: int


class Queued(msgspec.Struct, frozen=True):
    """An event that is to be sent to a webhook."""

    webhook: str
    event_id: str
    event: str  # JSON
    made_ms: int
    id: int = 0
    tries: int = 0


class Filter(msgspec.Struct, frozen=True):
    """Which entries are asked for; "" and 0 stand for any. action: one, or the beginning of several (`key.`). until_ms: is not included."""

    action: str = ""
    actor: str = ""
    subject: str = ""
    tenant: str = ""  # with all below it
    since_ms: int = 0
    until_ms: int = 0


class Audit:
    """The log, for one process."""

    def __init__(self, url: str, timeout_s: float = TIMEOUT_S) -> None:
        self._database = Database(url, timeout_s)

    async def call(self, work: Callable[[Connection], T], *, reading: bool = False) -> T:
        """Runs functions of this module in a transaction. Raises RecordsUnavailable."""
        return await self._database.call(work, reading=reading)

    async def close(self) -> None:
        await self._database.close()


def write(connection: Connection, entry: Entry) -> bool:
    """Adds an entry. False: it is told once, and another one has been told. The same one again is no other: nothing comes of it."""
    once = entry.once or entry.event_id
    values = {column: without_secrets(getattr(entry, name)) for name, column in _COLUMNS.items()}
    values |= {"before": _json(entry.before), "after": _json(entry.after), "once": once}
    adding = insert(connection, audit_log).values(values).on_conflict_do_nothing(index_elements=[audit_log.c.once])
    if connection.execute(adding.returning(audit_log.c.id)).first() is not None:
        return True
    return connection.execute(select(audit_log.c.event_id).where(audit_log.c.once == once)).scalar() == entry.event_id


def count(connection: Connection, counts: Mapping[str, int]) -> None:
    """That has happened so many times more. Always in the same order, so that two workers never wait for each other."""
    for once in sorted(counts):
        adding = insert(connection, audit_counts).values(once=once, count=counts[once])
        more = audit_counts.c.count + adding.excluded.count
        connection.execute(adding.on_conflict_do_update(index_elements=[audit_counts.c.once], set_={"count": more}))


def read(connection: Connection, wanted: Filter, limit: int, before_id: int = 0) -> list[Written]:
    """Entries that fit, the newest first. before_id: those that are older than this one; 0: from the newest."""
    some = _rows().order_by(audit_log.c.id.desc()).limit(limit)
    if before_id:
        some = some.where(audit_log.c.id < before_id)
    if wanted.action:
        action = audit_log.c.action
        some = some.where(action.startswith(wanted.action, autoescape=True) if wanted.action.endswith(".") else action == wanted.action)
    for name in ("actor", "subject"):
        if getattr(wanted, name):
            some = some.where(audit_log.c[name] == getattr(wanted, name))
    if wanted.tenant:
        of = audit_log.c.tenant
        some = some.where((of == wanted.tenant) | of.startswith(wanted.tenant + "/", autoescape=True))
    if wanted.since_ms:
        some = some.where(audit_log.c.time_ms >= wanted.since_ms)
    if wanted.until_ms:
        some = some.where(audit_log.c.time_ms < wanted.until_ms)
    return [_written(row) for row in connection.execute(some)]


def windows(connection: Connection, since_ms: int, limit: int) -> list[Entry]:
    """Of budgets: what was told of windows that end after that moment, the first to end first."""
    some = _rows().where(audit_log.c.resets_ms > since_ms, audit_log.c.action.in_(("budget.warning", "budget.exceeded")))
    return [_written(row).entry for row in connection.execute(some.order_by(audit_log.c.resets_ms).limit(limit))]


# -- webhooks -------------------------------------------------------------------------------------------------------------------------------


def queue(connection: Connection, rows: Sequence[Queued]) -> None:
    """To be sent as soon as possible."""
    for row in rows:
        values = {"webhook": row.webhook, "event_id": row.event_id, "event": row.event, "made_ms": row.made_ms, "tries": 0, "due_ms": row.made_ms}
        connection.execute(webhook_queue.insert().values(values))


def any_due(connection: Connection, now_ms: int, webhooks: Sequence[str], others: bool = False) -> bool:
    """Whether `take` would find something."""
    return connection.execute(select(webhook_queue.c.id).where(_due(now_ms, webhooks, others)).limit(1)).first() is not None


def take(connection: Connection, now_ms: int, lease_ms: int, limit: int, webhooks: Sequence[str], others: bool = False) -> list[Queued]:
    """Those for some webhooks (others: for all but these) that are due, the oldest first: they are the caller's for so long, and then due again,
    unless `done` or put off."""
    due = select(webhook_queue).where(_due(now_ms, webhooks, others)).order_by(webhook_queue.c.due_ms, webhook_queue.c.id).limit(limit)
    rows = connection.execute(due.with_for_update(skip_locked=True)).all()
    taken = update(webhook_queue).where(webhook_queue.c.id.in_([row.id for row in rows]))
    connection.execute(taken.values(due_ms=now_ms + lease_ms, tries=webhook_queue.c.tries + 1))
    return [Queued(row.webhook, row.event_id, row.event, row.made_ms, row.id, row.tries + 1) for row in rows]


def _due(now_ms: int, webhooks: Sequence[str], others: bool) -> ColumnElement[bool]:
    of = webhook_queue.c.webhook
    return and_(webhook_queue.c.due_ms <= now_ms, of.not_in(list(webhooks)) if others else of.in_(list(webhooks)))


def put_off(connection: Connection, id: int, due_ms: int) -> None:
    """It is tried again then."""
    connection.execute(update(webhook_queue).where(webhook_queue.c.id == id).values(due_ms=due_ms))


def done(connection: Connection, id: int) -> None:
    """It was delivered, or is given up."""
    connection.execute(delete(webhook_queue).where(webhook_queue.c.id == id))


# -- steps ----------------------------------------------------------------------------------------------------------------------------------


def without_secrets(value: Any) -> Any:
    """What may be kept of a value: nothing that is called like a secret, or looks like one."""
    if isinstance(value, Mapping):
        return {name: HIDDEN if _SECRET_NAMES.search(str(name)) and one else without_secrets(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(one) for one in value]
    return mask(value) if isinstance(value, str) else value


_JSON = ("before", "after")
_COLUMNS = {
    name: {"limit": "limit_name", "window": "window_name"}.get(name, name) for name in Entry.__struct_fields__ if name not in (*_JSON, "once")
}


def _json(value: Any) -> str:
    return "" if value is None else msgspec.json.encode(without_secrets(value)).decode()


def _rows() -> Select[Any]:
    counted = func.coalesce(audit_counts.c.count, 1).label("count")
    return select(audit_log, counted).select_from(audit_log.outerjoin(audit_counts, audit_log.c.once == audit_counts.c.once))


def _written(row: Row[Any]) -> Written:
    values = {name: row._mapping[column] for name, column in _COLUMNS.items()}
    values |= {name: msgspec.json.decode(row._mapping[name]) if row._mapping[name] else None for name in _JSON}
    return Written(row.id, Entry(**values, once=row.once), row._mapping["count"])
