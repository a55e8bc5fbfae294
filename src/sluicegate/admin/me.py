"""`/admin/v1/me`: what an ordinary key may see and do of itself: how its limits stand, what it has used, and keys below it.

Invariant: nothing here changes what is enforced on the key that asks. What may be said is what the bodies below name; every other field is a 403,
whatever it is. Keys below it have its limits, models, networks and end too, so whatever is said of them binds them further.
"""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict

from sluicegate.admin import showing, usage
from sluicegate.admin.access import Caller, Itself
from sluicegate.admin.bodies import Answer, When, length_ms
from sluicegate.admin.errors import not_found
from sluicegate.admin.keys import CONFLICT, KeyRequest, Limits, Metadata, Models, Name, Networks, Rotation, listed, made
from sluicegate.admin.limits import LimitStatus, in_flight, of_key, statuses
from sluicegate.admin.paging import Listing, Page, Paged
from sluicegate.admin.paths import checked
from sluicegate.admin.services import Services
from sluicegate.admin.showing import Deleted, KeyMade, KeyState
from sluicegate.core.tenants import Key
from sluicegate.records.directory_rows import Full
from sluicegate.reject import Reject

router = APIRouter(prefix="/admin/v1/me", tags=["me"], responses=CONFLICT)

SUB_KEYS_MAX = 100  # of one key, that it has made itself or that were made for it
KEYS_SHOWN = 100


class OfItself(BaseModel):
    """Fields that are not named here are refused as not allowed, not as unknown."""

    model_config = ConfigDict(extra="allow", strict=True)

    def check(self) -> None:
        """Raises Reject."""
        for name in self.model_extra or ():
            message = f"A key may not say {name[:100]!r}; of itself it may say {', '.join(type(self).model_fields)}. Ask an administrator."
            raise Reject(403, "permission_error", "not_allowed", message, name[:100])


class SubKeyRequest(OfItself):
    """A key below the one that asks."""

    name: Name
    limits: Limits | None = None
    models: Models | None = None
    expires: When | None = None
    cidr: Networks | None = None
    metadata: Metadata | None = None


class OwnChanges(OfItself):
    """What decides nothing."""

    metadata: Metadata | None = None


class Myself(Answer):
    """limits: all that bind it. keys: the first hundred of its sub-keys; GET .../me/keys has all. in_flight: on all replicas."""

    object: Literal["me"] = "me"
    key: KeyState
    limits: list[LimitStatus]
    in_flight: int
    keys: list[KeyState]
    has_more_keys: bool


@router.get("", summary="Who I am, and how my limits stand")
async def show(request: Request, me: Itself) -> Myself:
    return await _shown(request.app.state.services, me[0])


async def _shown(services: Services, key: Key) -> Myself:
    keys = await listed(services, Page(limit=KEYS_SHOWN), key.id)
    return Myself(
        key=await showing.key(services, key.id),
        limits=await statuses(services, await of_key(services, key.id)),
        in_flight=await in_flight(services, key.id),
        keys=keys.data,
        has_more_keys=keys.has_more,
    )


@router.patch("", summary="Change what decides nothing")
async def change(request: Request, me: Itself, asked: OwnChanges) -> Myself:
    """Everything else is an administrator's: 403."""
    asked.check()
    services: Services = request.app.state.services
    key, caller = me
    witness = services.audit.witness(caller, "key.updated", key.id, request)
    await services.changes.update_key(key.id, metadata=asked.metadata or {}, witness=witness)
    return await _shown(services, key)


@router.get("/usage", summary="What I and my sub-keys have used", response_model=usage.UsageList, responses=usage.CSV)
async def used(request: Request, me: Itself, asked: Annotated[usage.UsageAsked, Query()]) -> Any:
    return await usage.told(request, asked, me[0].id)


@router.get("/keys", summary="My sub-keys")
async def keys(request: Request, me: Itself, page: Paged) -> Listing[KeyState]:
    return await listed(request.app.state.services, page, me[0].id)


@router.post("/keys", summary="Make a sub-key", status_code=201)
async def make(request: Request, me: Itself, asked: SubKeyRequest) -> KeyMade:
    """It has what this key has together with it: its limits bind both. For keys with `may_create_sub_keys`."""
    asked.check()
    services: Services = request.app.state.services
    key, caller = _may(me)
    given = asked.model_dump(exclude_unset=True)
    try:
        return await made(services, request, caller, KeyRequest(owner=key.id, **given), SUB_KEYS_MAX)
    except Full:
        raise Reject(409, "invalid_request_error", "too_many_keys", f"There are {SUB_KEYS_MAX} keys below it already.") from None


@router.post("/keys/{id:path}/rotate", summary="Give a sub-key another secret")
async def rotate(request: Request, me: Itself, id: str, asked: Rotation | None = None) -> KeyMade:
    services: Services = request.app.state.services
    key, caller = _may(me)
    id = _below(key, id)
    witness = services.audit.witness(caller, "key.rotated", id, request)
    changed = await services.changes.rotate_key(id, length_ms((asked or Rotation()).grace), witness=witness)
    return KeyMade(**(await showing.key(services, id)).model_dump(), secret=changed.secret)


@router.delete("/keys/{id:entry}", summary="Delete a sub-key")
async def delete(request: Request, me: Itself, id: str) -> Deleted:
    services: Services = request.app.state.services
    key, caller = _may(me)
    id = _below(key, id)
    await services.changes.delete_key(id, witness=services.audit.witness(caller, "key.deleted", id, request))
    return Deleted(object="key.deleted", id=id)


def _may(me: tuple[Key, Caller]) -> tuple[Key, Caller]:
    if not me[0].may_create_sub_keys:
        raise Reject(403, "permission_error", "not_allowed", "This key may not make keys. An administrator can set its `may_create_sub_keys`.")
    return me


def _below(key: Key, id: str) -> str:
    """Of any other key it is not told whether there is one."""
    id = checked(id)
    if not id.startswith(f"{key.id}/@"):
        raise not_found("There is no such key below this one.", "id", "key_not_found")
    return id
