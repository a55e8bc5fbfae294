"""Events: what has happened that somebody may want to know, told to live clients and to webhooks (docs/events.md has the types and their fields).

Pure. An event goes over the bus as `Event`, whose fields that say nothing are left out. `event_id` is its own, wherever and however often it is told.
Amounts are in the unit of the limit, dollars in dollars.
"""

from datetime import UTC, datetime
from typing import Any

import msgspec

from sluicegate.core.limits import Unit
from sluicegate.core.refusals import iso
from sluicegate.records.audit import Entry

KIND = "event"  # of the bus's messages
EXCEEDED = 100  # percent


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event. Which fields there are depends on the type."""

    event_id: str
    type: str
    time: str
    subject: str = ""  # the id of what it is about: a tenant, a key, a deployment
    actor: str = ""  # who did it
    tenant: tuple[str, ...] = ()  # the path of whose it is: acme, acme/team-a
    key_id: str = ""
    limit: str = ""
    unit: str = ""
    window: str = ""
    threshold_percent: int | None = None
    amount: float | None = None
    used: float | None = None
    held: float | None = None
    requested: float | None = None
    resets_at: str | None = None
    reason: str = ""
    count: int | None = None  # of those that it stands for
    before: str = ""
    after: str = ""
    until: str | None = None
    worker: str = ""  # whose breaker it is


def of_entry(entry: Entry) -> Event:
    """What is told of an entry of the audit log: of what was before a change, and is after it, nothing but the version of a configuration."""
    return Event(
        event_id=entry.event_id,
        type=entry.action,
        time=time(entry.time_ms),
        subject=entry.subject,
        actor=entry.actor,
        tenant=path(entry.tenant),
        key_id=entry.key_id,
        reason=entry.reason,
        before=_version(entry, entry.before),
        after=_version(entry, entry.after),
        **(_figures(entry) if entry.limit else {}),
    )


def _version(entry: Entry, value: Any) -> str:
    """Of a configuration."""
    return str(value["version"]) if entry.action in ("config.reloaded", "config.refused") else ""


def _figures(entry: Entry) -> dict[str, Any]:
    unit = Unit(entry.unit)
    return {
        "limit": entry.limit,
        "unit": entry.unit,
        "window": entry.window,
        "threshold_percent": entry.percent or None,
        **{name: figure(unit, getattr(entry, name)) for name in ("amount", "used", "held")},
        "requested": figure(unit, entry.requested) if entry.requested else None,
        "resets_at": iso(entry.resets_ms) if entry.resets_ms else None,
    }


def figure(unit: Unit, amount: int) -> float:
    """An amount as it is told: dollars as dollars, everything else as it counts."""
    return amount / 1e9 if unit is Unit.USD else amount


def path(tenant: str) -> tuple[str, ...]:
    """`acme/team-a`: acme, acme/team-a."""
    parts = tenant.split("/") if tenant else []
    return tuple("/".join(parts[: i + 1]) for i in range(len(parts)))


def time(time_ms: int) -> str:
    """RFC 3339 in UTC, to the millisecond."""
    return f"{datetime.fromtimestamp(time_ms // 1000, UTC):%Y-%m-%dT%H:%M:%S}.{time_ms % 1000:03}Z"
