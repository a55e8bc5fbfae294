"""Keys and tenants as the admin API shows them, of the file and of the directory alike: what was written of them, what is put over it, and what their
limits have more for a time. No secret is among it.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import ConfigDict

from sluicegate.admin.bodies import Answer
from sluicegate.admin.errors import not_found
from sluicegate.admin.services import Services
from sluicegate.config import schema
from sluicegate.config.compile_tenants import Above
from sluicegate.config.entries import in_file
from sluicegate.core.limits import Unit
from sluicegate.core.refusals import iso
from sluicegate.directory import Compiled
from sluicegate.directory_changes import Fields
from sluicegate.events import figure
from sluicegate.records.directory_rows import IncreaseRow, OverrideRow

Limits = list[str | dict[str, Any]]
Source = Literal["file", "api"]


class Override(Answer):
    """What is put over a key or tenant of the file; null: what the file says."""

    limits: Limits | None
    models: list[str] | None
    blocked: bool | None
    set_at: str


class Increase(Answer):
    """What a limit has more until then; dollars are dollars."""

    id: str
    limit: str
    by: float
    until: str
    reason: str


class Secret(Answer):
    """One that does for a key. ends_at: of one that was replaced."""

    last4: str
    created_at: str
    ends_at: str | None


class Entry(Answer):
    """limits, models: as written, here or in the file, and binding; those above bind too. models: null for all that the tenant above may use."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    id: str
    name: str
    source: Source
    limits: Limits
    models: list[str] | None
    priority: str | None
    metadata: dict[str, str]
    blocked: bool
    created_at: str | None
    override: Override | None
    increases: list[Increase]


class KeyState(Entry):
    """A key. secrets: none is told of a key of the file."""

    object: Literal["key"] = "key"
    owner: str
    cidr: list[str]
    expires_at: str | None
    may_create_sub_keys: bool
    secrets: list[Secret]


class KeyMade(KeyState):
    """secret: it is shown now and never again."""

    secret: str


class TenantState(Entry):
    """A tenant. parent: null for an organization. in_use: false where what it hangs under is gone from the file. made_too: the file defines it, and
    one of that id was made here too, of which nothing counts; to delete it is to take that away."""

    object: Literal["tenant"] = "tenant"
    parent: str | None
    kind: str
    in_use: bool
    made_too: bool


class Deleted(Answer):
    """It is gone."""

    object: Literal["key.deleted", "tenant.deleted", "override.deleted", "increase.deleted", "price.deleted"]
    id: str


def current(services: Services) -> Compiled:
    """File and directory together, as they are in use."""
    found = services.directory.current
    assert found is not None  # it is compiled before anything is served
    return found


def of_directory(services: Services, fields: Fields, before: KeyState | None = None) -> KeyState:
    """A key as `Changes` tells of it. before: has what a change does not tell."""
    secrets = fields.get("secrets")
    return KeyState(
        id=fields["id"],
        name=fields["name"],
        owner=fields["owner"],
        source="api",
        limits=fields["limits"],
        models=fields["models"],
        priority=fields["priority"] or None,
        metadata=fields["metadata"],
        blocked=fields["blocked"],
        cidr=fields["cidr"],
        expires_at=_time(fields["expires_ms"]),
        may_create_sub_keys=fields["may_create_sub_keys"],
        created_at=_time(fields["created_ms"]),
        secrets=_secrets(secrets) if secrets is not None else before.secrets if before is not None else [],
        override=None,
        increases=increases(services, fields["id"]),
    )


def of_file(services: Services, key_id: str) -> KeyState:
    """A key of the file."""
    written = in_file(services.loaded().config, key_id)
    assert isinstance(written, schema.Key)
    more = _covered(services, key_id, written)
    of_api: dict[str, Any] = {"metadata": {}, "cidr": [], "expires_at": None, "secrets": [], "created_at": None}
    owner = key_id.rpartition("/@")[0]
    return KeyState(id=key_id, name=written.name, owner=owner, source="file", may_create_sub_keys=written.may_create_sub_keys, **of_api, **more)


async def key(services: Services, key_id: str) -> KeyState:
    """Raises Missing."""
    if key_id in current(services).by_id:
        return of_file(services, key_id)
    return of_directory(services, await services.changes.get_key(key_id))


def tenant(services: Services, tenant_id: str) -> TenantState:
    """Raises Reject."""
    above = current(services).tenants.at.get(tenant_id)
    row = next((row for row in services.directory.tree.tenants if row.id == tenant_id), None)
    parent, _, name = tenant_id.rpartition("/")
    place: dict[str, Any] = {"id": tenant_id, "name": name, "parent": parent or None, "in_use": above is not None}
    written = in_file(services.loaded().config, tenant_id)
    if above is not None and isinstance(written, schema.Tenant):
        of_file: dict[str, Any] = {"kind": _kind(above), "source": "file", "metadata": {}, "created_at": None, "made_too": row is not None}
        return TenantState(**place, **of_file, **_covered(services, tenant_id, written))
    if row is None:
        raise not_found("There is no such tenant.", "id", "tenant_not_found")
    return TenantState(
        **place,
        kind=_kind(above) if above is not None else row.kind,
        source="api",
        limits=row.limits,
        models=row.models,
        priority=row.priority or None,
        metadata=row.metadata,
        blocked=row.blocked,
        created_at=_time(row.created_ms),
        made_too=False,
        override=None,
        increases=increases(services, tenant_id),
    )


def override_of(services: Services, id: str) -> OverrideRow | None:
    """What is put over it."""
    return next((row for row in services.directory.tree.overrides if row.id == id), None)


def increases(services: Services, id: str) -> list[Increase]:
    """Those of its limits that run now."""
    now_ms = services.time_ms()
    return [increase(row) for row in services.directory.tree.increases if row.scope_id == id and row.until_ms > now_ms]


def increase(row: IncreaseRow) -> Increase:
    """As it is shown."""
    unit = Unit(row.limit.partition(":")[0])
    return Increase(id=row.id, limit=f"{row.scope_id}:{row.limit}", by=figure(unit, row.amount), until=iso(row.until_ms), reason=row.reason)


def _covered(services: Services, id: str, written: schema.Tenant | schema.Key) -> dict[str, Any]:
    """What the file and an override make together."""
    row = override_of(services, id)
    limits: Limits = [limit.text for limit in written.limits if limit is not None]
    override = Override(limits=row.limits, models=row.models, blocked=row.blocked, set_at=iso(row.set_ms)) if row is not None else None
    return {
        "limits": limits if row is None or row.limits is None else row.limits,
        "models": written.models if row is None or row.models is None else row.models,
        "priority": written.priority,
        "blocked": row is not None and bool(row.blocked),
        "override": override,
        "increases": increases(services, id),
    }


def _kind(above: Above) -> str:
    return above.path[-1].kind


def _time(ms: int) -> str | None:
    return iso(ms) if ms else None


def _secrets(rows: Iterable[Mapping[str, Any]]) -> list[Secret]:
    return [Secret(last4=row["last4"], created_at=iso(row["created_ms"]), ends_at=_time(row["ends_ms"])) for row in rows]
