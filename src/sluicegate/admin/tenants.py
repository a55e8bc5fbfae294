"""`/admin/v1/tenants`: the tree of organizations, teams, projects, users and service accounts, of the file and of the directory.

A tenant's id is its path, `acme/team-a`, and goes into a URL as it is. Where its last part is called like something that can be asked of a tenant
(`status`, `limits`, ...), a slash behind it says that the tenant is meant: `/admin/v1/tenants/acme/status/`.
"""

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from pydantic import Field

from sluicegate.admin import showing
from sluicegate.admin.access import Admin, Caller, Operator, Viewer
from sluicegate.admin.bodies import Asked, Plain
from sluicegate.admin.keys import (
    CONFLICT,
    Limits,
    LimitsRequest,
    Metadata,
    Models,
    Priority,
    changed,
    fields_of,
    removed_override,
)
from sluicegate.admin.paging import Listing, Page, of_ids
from sluicegate.admin.paths import checked
from sluicegate.admin.services import Services
from sluicegate.admin.showing import Deleted, TenantState
from sluicegate.records.directory_rows import Taken
from sluicegate.reject import Reject

router = APIRouter(prefix="/admin/v1/tenants", tags=["tenants"], responses=CONFLICT)


_NAME = "[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
Path = Annotated[
    str, Field(pattern=rf"^{_NAME}(/{_NAME})*$", max_length=300, description="That of the tenant above it, and its name.", examples=["acme/team-a"])
]


class TenantRequest(Asked):
    """A tenant to be made. What is left out, or null, binds nothing."""

    id: Path
    limits: Limits | None = None
    models: Models | None = None
    priority: Priority | None = None
    metadata: Metadata | None = None
    kind: Literal["service_account"] | None = Field(default=None, description="By default what its depth says: organization, team, project, user.")


class TenantChanges(Asked):
    """What is to be changed; what is left out stays as it is. null: none, of a tenant of the file what the file says."""

    limits: Limits | None = None
    models: Models | None = None
    priority: Priority | None = None
    metadata: Metadata | None = None
    blocked: bool = False


class TenantsAsked(Page):
    below: Plain = Field(default="", description="Below this tenant.")


@router.post("", summary="Make a tenant", status_code=201)
async def make(request: Request, caller: Admin, asked: TenantRequest) -> TenantState:
    services: Services = request.app.state.services
    given = fields_of(asked, services.time_ms())
    id = given.pop("id")
    witness = services.audit.witness(caller, "tenant.created", id, request)
    await services.changes.create_tenant(id, **given | {"kind": asked.kind or ""}, witness=witness)
    return showing.tenant(services, id)


@router.get("", summary="All tenants")
async def show_all(request: Request, _caller: Viewer, page: Annotated[TenantsAsked, Query()]) -> Listing[TenantState]:
    """By id; `parent` says what each is below."""
    services: Services = request.app.state.services
    below = page.below.removesuffix("/")
    ids = {*showing.current(services).tenants.at, *(row.id for row in services.directory.tree.tenants)}
    some = [id for id in ids if not below or id.startswith(below + "/")]
    return of_ids(some, page, lambda id: showing.tenant(services, id))


@router.post("/{id:path}/block", summary="Refuse the requests of all keys below a tenant")
async def block(request: Request, caller: Operator, id: str) -> TenantState:
    return await _change(request, caller, id, TenantChanges(blocked=True))


@router.post("/{id:path}/unblock", summary="Serve them again")
async def unblock(request: Request, caller: Operator, id: str) -> TenantState:
    return await _change(request, caller, id, TenantChanges(blocked=False))


@router.patch("/{id:path}/limits", summary="Give a tenant other limits")
async def limits(request: Request, caller: Admin, id: str, asked: LimitsRequest) -> TenantState:
    """They bind at once, and keep what was counted; one that is new begins with what was used before in its window."""
    return await _change(request, caller, id, asked)


@router.delete("/{id:path}/override", summary="Let the file's word count again")
async def uncover(request: Request, caller: Admin, id: str) -> Deleted:
    return await removed_override(request, caller, id)


@router.get("/{id:entry}", summary="One tenant")
async def show(request: Request, _caller: Viewer, id: str) -> TenantState:
    return showing.tenant(request.app.state.services, checked(id))


@router.patch("/{id:entry}", summary="Change a tenant")
async def change(request: Request, caller: Admin, id: str, asked: TenantChanges) -> TenantState:
    """At once, and within a second on every replica. Of a tenant of the file: `limits`, `models` and `blocked`."""
    return await _change(request, caller, id, asked)


async def _change(request: Request, caller: Caller, id: str, asked: Asked) -> TenantState:
    services: Services = request.app.state.services
    return showing.tenant(services, await changed(request, caller, id, asked, "tenant.updated", services.changes.update_tenant))


@router.delete("/{id:entry}", summary="Delete a tenant")
async def delete(request: Request, caller: Admin, id: str) -> Deleted:
    """One with nothing below it. What was used there stays recorded. One that the file defines too is the file's from then on, as it was."""
    services, id = request.app.state.services, checked(id)
    try:
        await services.changes.delete_tenant(id, witness=services.audit.witness(caller, "tenant.deleted", id, request))
    except Taken as below:
        message = f"There is something below it: {str(below)[:200]!r}. Delete that first."
        raise Reject(409, "invalid_request_error", "tenant_not_empty", message, "id") from None
    return Deleted(object="tenant.deleted", id=id)
