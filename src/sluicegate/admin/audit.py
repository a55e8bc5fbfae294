"""`/admin/v1/audit-logs`: who changed what, and which budgets were warned about or used up. It is only added to, by what it tells of."""

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import Field

from sluicegate.admin.access import require
from sluicegate.admin.bodies import Answer
from sluicegate.admin.paging import Listing, Page, listing
from sluicegate.admin.questions import Moment
from sluicegate.admin.services import Services
from sluicegate.core.limits import Unit
from sluicegate.core.refusals import iso
from sluicegate.events import figure, path, time
from sluicegate.records.audit import Filter, Written

router = APIRouter(prefix="/admin/v1/audit-logs", tags=["audit"])

TEXT_MAX = 500


class AuditPage(Page):
    """Which entries; all that are given must fit."""

    action: str = Field(default="", max_length=TEXT_MAX, description="Such as `key.created`; or a group: `budget.*`.")
    actor: str = Field(default="", max_length=TEXT_MAX, description="Who did it.")
    subject: str = Field(default="", max_length=TEXT_MAX, description="The id of what it is about.")
    tenant: str = Field(default="", max_length=TEXT_MAX, description="Whose it is: a tenant's path, with all below it.")
    after: str = Field(default="", pattern=r"^([1-9][0-9]{0,17})?$", description="Those behind this one: the `next` of the page before.")
    since: Moment | None = Field(default=None, description="From then on; without an offset in UTC.", examples=["2026-11-30T00:00:00Z"])
    until: Moment | None = Field(default=None, description="Before then.")


class AuditEntry(Answer):
    """What has happened. actor: empty where nobody did it. before, after: of what was changed. count: how often, of what is told once in a window.
    Amounts are in the unit of the limit, dollars in dollars."""

    id: str
    event_id: str
    time: str
    action: str
    actor: str
    address: str
    subject: str
    tenant: list[str]
    key_id: str
    before: Any
    after: Any
    limit: str
    unit: str
    window: str
    percent: int | None
    amount: float | None
    used: float | None
    held: float | None
    requested: float | None
    resets_at: str | None
    reason: str
    count: int
    request_id: str
    path: str


@router.get("", summary="Who changed what, and which budgets were used up", dependencies=[require("viewer")])
async def logs(request: Request, page: Annotated[AuditPage, Query()]) -> Listing[AuditEntry]:
    """The newest first."""
    services: Services = request.app.state.services
    action = page.action.removesuffix("*")
    wanted = Filter(action, page.actor, page.subject, page.tenant, _ms(page.since), _ms(page.until))
    found = await services.audit.read(wanted, page.limit + 1, int(page.after or 0))
    shown = [_entry(one) for one in found[: page.limit]]
    return listing(shown, shown[-1].id if len(found) > page.limit else None)


def _ms(moment: datetime | None) -> int:
    return max(1, int((moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp() * 1000)) if moment is not None else 0


def _entry(written: Written) -> AuditEntry:
    entry = written.entry
    unit = Unit(entry.unit) if entry.limit else None
    figures = {name: figure(unit, getattr(entry, name)) if unit is not None else None for name in ("amount", "used", "held", "requested")}
    return AuditEntry(
        id=str(written.id),
        event_id=entry.event_id,
        time=time(entry.time_ms),
        action=entry.action,
        actor=entry.actor,
        address=entry.address,
        subject=entry.subject,
        tenant=list(path(entry.tenant)),
        key_id=entry.key_id,
        before=entry.before,
        after=entry.after,
        limit=entry.limit,
        unit=entry.unit,
        window=entry.window,
        percent=entry.percent or None,
        resets_at=iso(entry.resets_ms) if entry.resets_ms else None,
        reason=entry.reason,
        count=written.count,
        request_id=entry.request_id,
        path=entry.path,
        **figures,
    )
