"""`/admin/v1/keys`: keys of tenants and below keys, of the file and of the directory (directory_changes.py).

A key's id is the path of its owner and its name: `acme/team-a/@laptop`. It goes into a URL as it is, `/` and `@` included.
"""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import Field

from sluicegate.admin import showing
from sluicegate.admin.access import Admin, Caller, Operator, Viewer
from sluicegate.admin.bodies import Asked, Id, Length, LimitText, Plain, When, length_ms, when_ms
from sluicegate.admin.errors import Error, missing, not_found
from sluicegate.admin.paging import Listing, Page, listing
from sluicegate.admin.paths import checked
from sluicegate.admin.services import Services
from sluicegate.admin.showing import Deleted, KeyMade, KeyState
from sluicegate.core.happening import Action
from sluicegate.directory_changes import OVERRIDE_FIELDS, Change, Fields, FromFile
from sluicegate.records.directory_rows import Missing

CONFLICT: dict[int | str, dict[str, Any]] = {
    409: {"model": Error, "description": "key_exists; defined_in_file: what the configuration file says cannot be changed so."}
}
router = APIRouter(prefix="/admin/v1/keys", tags=["keys"], responses=CONFLICT)

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Priority = Literal["high", "normal", "low"]
Limits = Annotated[list[LimitText], Field(max_length=50)]
Models = Annotated[list[Plain], Field(max_length=1000)]
Networks = Annotated[list[Plain], Field(max_length=64, description="Where it may be used from.", examples=[["10.0.0.0/8"]])]
Metadata = Annotated[dict[Plain, Plain], Field(max_length=16, description="Of your own; it decides nothing.")]


class KeyRequest(Asked):
    """A key to be made. What is left out, or null, binds nothing; limits and models above it bind all the same."""

    owner: Id = Field(description="A tenant's id, or a key's: then it is a sub-key, which that key's limits bind too.", examples=["acme/team-a"])
    name: Name
    limits: Limits | None = None
    models: Models | None = None
    expires: When | None = None
    cidr: Networks | None = None
    priority: Priority | None = None
    metadata: Metadata | None = None
    may_create_sub_keys: bool = False


class KeyChanges(Asked):
    """What is to be changed; what is left out stays as it is. null: none, of `expires` never, of a key of the file what the file says."""

    limits: Limits | None = None
    models: Models | None = None
    expires: When | None = None
    cidr: Networks | None = None
    priority: Priority | None = None
    metadata: Metadata | None = None
    may_create_sub_keys: bool = False
    blocked: bool = False


class LimitsRequest(Asked):
    """All limits that there are to be; null on what the file defines: what the file says."""

    limits: Limits | None


class Rotation(Asked):
    grace: Length = Field(default="0s", description="The secrets that there are do for so long.")


class KeysAsked(Page):
    owner: Plain = Field(default="", description="Below this tenant or key.")
    blocked: bool | None = Field(default=None, description="Only those that are, or are not.")


def fields_of(asked: Asked, now_ms: int) -> Fields:
    """What was given, as the directory has it."""
    empty: Fields = {"limits": [], "cidr": [], "priority": "", "metadata": {}}
    given: Fields = {name: getattr(asked, name) for name in asked.model_fields_set}
    if "expires" in given:
        expires = given.pop("expires")
        given["expires_ms"] = when_ms(expires, now_ms) if expires is not None else 0
    return {name: empty.get(name) if value is None else value for name, value in given.items()}


async def override(services: Services, caller: Caller, request: Request, id: str, given: Fields) -> Change:
    """Changes what is put over a key or tenant of the file. Raises FromFile for what cannot be."""
    if any(name not in OVERRIDE_FIELDS for name in given):
        raise FromFile(id)
    changes = {name: None if value is False else value for name, value in given.items()}
    return await services.changes.override(id, **changes, witness=services.audit.witness(caller, "override.set", id, request))


@router.post("", summary="Make a key", status_code=201)
async def make(request: Request, caller: Admin, asked: KeyRequest) -> KeyMade:
    """Its secret is in this answer and nowhere else."""
    services: Services = request.app.state.services
    return await made(services, request, caller, asked)


async def made(services: Services, request: Request, caller: Caller, asked: KeyRequest, most: int = 0) -> KeyMade:
    """A key that the caller may make. most: that there may be below its owner; 0: any number. Raises Full."""
    given = fields_of(asked, services.time_ms())
    owner, name = given.pop("owner"), given.pop("name")
    witness = services.audit.witness(caller, "key.created", f"{owner}/@{name}", request)
    try:
        change = await services.changes.create_key(owner, name, **given, most=most, witness=witness)
    except Missing:
        raise missing(owner, "owner") from None
    assert change.after is not None
    return KeyMade(**showing.of_directory(services, change.after).model_dump(), secret=change.secret)


@router.get("", summary="All keys")
async def show_all(request: Request, _caller: Viewer, page: Annotated[KeysAsked, Query()]) -> Listing[KeyState]:
    """By id."""
    services: Services = request.app.state.services
    return await listed(services, page, page.owner.removesuffix("/"), page.blocked)


async def listed(services: Services, page: Page, below: str = "", blocked: bool | None = None) -> Listing[KeyState]:
    """A page of the keys below a tenant or key."""
    after = page.after.partition("\x00")[0]  # no id has one, and PostgreSQL takes none
    ids = [id for id in showing.current(services).by_id if id > after and (not below or id.startswith(below + "/"))]
    of_file = [showing.of_file(services, id) for id in sorted(ids)[: page.limit + 1 if blocked is None else None]]
    rows = await services.changes.list_keys(below, after, page.limit + 1, blocked=blocked)
    here = [one for one in of_file if blocked is None or one.blocked == blocked]
    made = {row["id"]: showing.of_directory(services, row) for row in rows}
    found = sorted((made | {one.id: one for one in here}).values(), key=lambda one: one.id)  # one that both define is the file's
    shown = found[: page.limit]
    return listing(shown, shown[-1].id if len(here) + len(rows) > page.limit else None)


@router.post("/{id:path}/rotate", summary="Give a key another secret")
async def rotate(request: Request, caller: Admin, id: str, asked: Rotation | None = None) -> KeyMade:
    """The new one is in this answer and nowhere else."""
    services, id = request.app.state.services, checked(id)
    grace_ms = length_ms((asked or Rotation()).grace)
    witness = services.audit.witness(caller, "key.rotated", id, request)
    change = await services.changes.rotate_key(id, grace_ms, witness=witness)
    shown = await showing.key(services, id)
    return KeyMade(**shown.model_dump(), secret=change.secret)


@router.post("/{id:path}/block", summary="Refuse a key's requests")
async def block(request: Request, caller: Operator, id: str) -> KeyState:
    """From now on, and within a second on every replica; requests under way go on. Blocking it again changes nothing."""
    return await _block(request, caller, id, True)


@router.post("/{id:path}/unblock", summary="Serve a key again")
async def unblock(request: Request, caller: Operator, id: str) -> KeyState:
    return await _block(request, caller, id, False)


async def _block(request: Request, caller: Caller, id: str, blocked: bool) -> KeyState:
    services, id = request.app.state.services, checked(id)
    witness = services.audit.witness(caller, "key.blocked" if blocked else "key.unblocked", id, request)
    if services.changes.in_file(id):
        await services.changes.override(id, blocked=blocked or None, witness=witness)
    else:
        await services.changes.block_key(id, blocked, witness=witness)
    return await showing.key(services, id)


@router.patch("/{id:path}/limits", summary="Give a key other limits")
async def limits(request: Request, caller: Admin, id: str, asked: LimitsRequest) -> KeyState:
    """They bind at once, and keep what was counted; one that is new begins with what was used before in its window."""
    return await _change(request, caller, id, asked)


@router.delete("/{id:path}/override", summary="Let the file's word count again")
async def uncover(request: Request, caller: Admin, id: str) -> Deleted:
    return await removed_override(request, caller, id)


async def removed_override(request: Request, caller: Caller, id: str) -> Deleted:
    """Of a key or tenant. Raises Reject where there is none."""
    services, id = request.app.state.services, checked(id)
    if showing.override_of(services, id) is None:
        raise not_found("Nothing is put over that.", "id", "override_not_found")
    await services.changes.remove_override(id, witness=services.audit.witness(caller, "override.removed", id, request))
    return Deleted(object="override.deleted", id=id)


@router.get("/{id:entry}", summary="One key")
async def show(request: Request, _caller: Viewer, id: str) -> KeyState:
    return await showing.key(request.app.state.services, checked(id))


@router.patch("/{id:entry}", summary="Change a key")
async def change(request: Request, caller: Admin, id: str, asked: KeyChanges) -> KeyState:
    """At once, and within a second on every replica. Of a key of the file: `limits`, `models` and `blocked`."""
    return await _change(request, caller, id, asked)


async def _change(request: Request, caller: Caller, id: str, asked: Asked) -> KeyState:
    services: Services = request.app.state.services
    return await showing.key(services, await changed(request, caller, id, asked, "key.updated", services.changes.update_key))


async def changed(request: Request, caller: Caller, id: str, asked: Asked, action: Action, update: Callable[..., Awaitable[Change]]) -> str:
    """Changes a key or tenant: one of the file by what is put over it, any other by `update`. Its id, as it is known."""
    services, id = request.app.state.services, checked(id)
    if services.changes.in_file(id):
        await override(services, caller, request, id, {name: getattr(asked, name) for name in asked.model_fields_set})
    else:
        await update(id, **fields_of(asked, services.time_ms()), witness=services.audit.witness(caller, action, id, request))
    return id


@router.delete("/{id:entry}", summary="Delete a key")
async def delete(request: Request, caller: Admin, id: str) -> Deleted:
    """With its sub-keys. What it used stays counted and recorded, and counts on should it be made again."""
    services, id = request.app.state.services, checked(id)
    await services.changes.delete_key(id, witness=services.audit.witness(caller, "key.deleted", id, request))
    return Deleted(object="key.deleted", id=id)
