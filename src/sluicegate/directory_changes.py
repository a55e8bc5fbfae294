"""What an administrator changes of keys and tenants: each call is checked, is one transaction, is known to this worker when it returns and to all
others within a second. It returns what was and what is, for the audit log; a secret is returned once and kept nowhere.

What the file defines cannot be changed, but for what an override puts over it: limits, models, and whether it is blocked.

How it fails: ConfigError names each field that is wrong; Missing, Taken, Full, FromFile; RecordsUnavailable, where it is not known whether it has
happened.
"""

import hashlib
import secrets
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Protocol

import msgspec
from sqlalchemy import Connection

from sluicegate.config import entries
from sluicegate.config.fields import ConfigError, Problem
from sluicegate.config.load import Loaded
from sluicegate.config.price_entries import read_price
from sluicegate.core.limits import AMOUNT_MAX
from sluicegate.directory import Directory
from sluicegate.records import directory as tables
from sluicegate.records.directory_rows import IncreaseRow, KeyRow, Missing, PriceRow, SecretRow, Taken, TenantRow

KEY_FIELDS = ("limits", "models", "cidr", "priority", "metadata", "expires_ms", "blocked", "may_create_sub_keys")
TENANT_FIELDS = ("limits", "models", "priority", "metadata", "blocked")
OVERRIDE_FIELDS = ("limits", "models", "blocked")
DEPTH_MAX = 4  # of tenants
PAGE_MAX = 1_000

Fields = dict[str, Any]


class FromFile(Exception):
    """The configuration file defines it, so that it is changed there; its text is the id."""


class Change(msgspec.Struct, frozen=True):
    """What was, and what is; None: nothing. secret: of a key that was made or rotated; it is shown now or never."""

    before: Fields | None
    after: Fields | None
    secret: str = ""


class Witness(Protocol):
    """Who writes down what is changed."""

    def write(self, connection: Connection, change: Change) -> None:
        """In the transaction of the change, in the thread of the tables."""
        ...

    def tell(self) -> None:
        """It has happened."""
        ...


class Changes:
    """Of one worker."""

    def __init__(
        self,
        directory: Directory,
        loaded: Callable[[], Loaded],
        apply: Callable[[], Awaitable[object]],
        publish: Callable[[str, Fields], None],
        time_ms: Callable[[], int],
        new_secret: Callable[[], str] = lambda: "sk-" + secrets.token_urlsafe(32),
        new_id: Callable[[], str] = lambda: "inc_" + secrets.token_hex(8),
    ) -> None:
        """loaded: the configuration in force. apply: it, anew. publish: to the other workers."""
        self._directory = directory
        self._loaded = loaded
        self._apply = apply
        self._publish = publish
        self._time_ms = time_ms
        self._new_secret = new_secret
        self._new_id = new_id

    @property
    def directory(self) -> Directory:
        """As this worker knows it."""
        return self._directory

    # -- keys -----------------------------------------------------------------------------------------------------------------------------

    async def create_key(
        self,
        owner: str,
        name: str,
        *,
        limits: list[Any] | None = None,
        models: list[str] | None = None,
        cidr: list[str] | None = None,
        priority: str = "",
        metadata: Mapping[str, str] | None = None,
        expires_ms: int = 0,
        may_create_sub_keys: bool = False,
        most: int = 0,
        witness: Witness | None = None,
    ) -> Change:
        """A key of a tenant, or a sub-key: then `owner` is a key's id, whose limits bind it too. most: keys below the owner; 0: any number."""
        await self._check_owner(owner)
        now_ms = self._time_ms()
        row = KeyRow(
            f"{owner}/@{name}",
            owner,
            name,
            limits or [],
            models,
            cidr or [],
            priority,
            dict(metadata or {}),
            expires_ms=expires_ms,
            created_ms=now_ms,
            may_create_sub_keys=may_create_sub_keys,
        )
        self._check_key(row)
        if 0 < expires_ms <= now_ms:
            raise _wrong("expires", "must be in the future")
        current = self._directory.current
        if current is not None and row.id in current.by_id:
            raise Taken(row.id)
        secret = self._new_secret()
        digest = _secret_row(secret, row.id, now_ms)
        made = Change(None, shown(row, [digest]), secret)
        return await self._change(partial(tables.create_key, row=row, secret=digest, most=most), lambda _: made, witness)

    async def update_key(self, key_id: str, *, witness: Witness | None = None, **changes: Any) -> Change:
        """changes: of KEY_FIELDS. A changed amount keeps the count; a limit that is new begins with what was used before."""
        _only(changes, KEY_FIELDS)
        before, _ = await self._key(key_id)
        after = msgspec.structs.replace(before, **changes)
        self._check_key(after)
        if _identities(after) - _identities(before):
            changes = {**changes, "late": True}
        return await self._change(
            partial(tables.change_key, key_id=key_id, changes=changes), lambda pair: Change(shown(pair[0]), shown(pair[1])), witness
        )

    async def block_key(self, key_id: str, blocked: bool = True, *, witness: Witness | None = None) -> Change:
        """Its requests are refused from now on, or no more."""
        return await self.update_key(key_id, blocked=blocked, witness=witness)

    async def rotate_key(self, key_id: str, grace_ms: int, *, witness: Witness | None = None) -> Change:
        """A new secret; the old ones do for so long."""
        if grace_ms < 0:
            raise _wrong("grace", "must not be negative")
        _, before = await self._key(key_id)
        secret, now_ms = self._new_secret(), self._time_ms()
        work = partial(tables.add_secret, secret=_secret_row(secret, key_id, now_ms), others_end_ms=now_ms + max(1, grace_ms))

        def changed(after: list[SecretRow]) -> Change:
            return Change({"id": key_id, "secrets": _told(before)}, {"id": key_id, "secrets": _told(after)}, secret)

        return await self._change(work, changed, witness)

    async def delete_key(self, key_id: str, *, witness: Witness | None = None) -> Change:
        """With its sub-keys. What it used stays counted and recorded."""
        await self._key(key_id)
        work = partial(tables.delete_key, key_id=key_id, now_ms=self._time_ms())
        return await self._change(work, lambda row: Change(shown(row), None), witness)

    async def get_key(self, key_id: str) -> Fields:
        """Raises Missing."""
        return shown(*await self._key(key_id))

    async def list_keys(self, below: str = "", after: str = "", limit: int = 100, deleted: bool = False, blocked: bool | None = None) -> list[Fields]:
        """Those of the directory, by id, behind one. below: of a tenant or key, with all under it. blocked: only those that are, or are not."""
        work = partial(tables.list_keys, below=below, after=after, limit=min(limit, PAGE_MAX), deleted=deleted, blocked=blocked)
        return [shown(row, secret) for row, secret in await self._directory.store.call(work, reading=True)]

    # -- tenants --------------------------------------------------------------------------------------------------------------------------

    async def create_tenant(
        self,
        tenant_id: str,
        *,
        limits: list[Any] | None = None,
        models: list[str] | None = None,
        priority: str = "",
        metadata: Mapping[str, str] | None = None,
        kind: str = "",
        witness: Witness | None = None,
    ) -> Change:
        """tenant_id: its path. kind: `service_account`, or by its depth."""
        parent, _, name = tenant_id.rpartition("/")
        entries.check_name(name)
        current = self._directory.current
        if parent and (current is None or parent not in current.tenants.at):
            raise Missing(parent)
        if tenant_id.count("/") >= DEPTH_MAX:
            raise _wrong("id", f"is too deep; there are {DEPTH_MAX} levels")
        if current is not None and tenant_id in current.tenants.at:
            raise Taken(tenant_id)
        if kind and not parent:
            raise _wrong("kind", "cannot be that of an organization")
        row = TenantRow(tenant_id, parent, limits or [], models, priority, dict(metadata or {}), created_ms=self._time_ms(), kind=kind)
        self._check_tenant(row)
        return await self._change(partial(tables.create_tenant, row=row), lambda _: Change(None, msgspec.structs.asdict(row)), witness)

    async def update_tenant(self, tenant_id: str, *, witness: Witness | None = None, **changes: Any) -> Change:
        """changes: of TENANT_FIELDS."""
        _only(changes, TENANT_FIELDS)
        before = await self._tenant(tenant_id)
        self._check_tenant(msgspec.structs.replace(before, **changes))
        return await self._change(partial(tables.change_tenant, tenant_id=tenant_id, changes=changes), _changed, witness)

    async def delete_tenant(self, tenant_id: str, *, witness: Witness | None = None) -> Change:
        """Raises Taken while there is something below it. Of one that the file defines too, what was made here goes."""
        hidden = self.in_file(tenant_id) and any(row.id == tenant_id for row in self._directory.tree.tenants)
        if not hidden:
            await self._tenant(tenant_id)
        return await self._change(partial(tables.delete_tenant, tenant_id=tenant_id, hidden=hidden), _removed, witness)

    async def get_tenant(self, tenant_id: str) -> Fields:
        """Raises Missing."""
        return msgspec.structs.asdict(await self._tenant(tenant_id))

    async def list_tenants(self, after: str = "", limit: int = 100) -> list[Fields]:
        """Those of the directory, by id, behind one."""
        work = partial(tables.list_tenants, after=after, limit=min(limit, PAGE_MAX))
        return [msgspec.structs.asdict(row) for row in await self._directory.store.call(work, reading=True)]

    # -- over the file --------------------------------------------------------------------------------------------------------------------

    async def override(self, id: str, *, witness: Witness | None = None, **changes: Any) -> Change:
        """Puts something over a tenant or key of the file. changes: of OVERRIDE_FIELDS; None: what the file says."""
        _only(changes, OVERRIDE_FIELDS)
        if not self.in_file(id):
            raise Missing(id)
        self._check(entries.read_tenant(changes.get("limits") or [], changes.get("models")))
        return await self._change(partial(tables.change_override, id=id, changes=changes, now_ms=self._time_ms()), _changed, witness)

    async def remove_override(self, id: str, *, witness: Witness | None = None) -> Change:
        """What the file says counts again. Raises Missing."""
        return await self._change(partial(tables.remove_override, id=id), _removed, witness)

    async def increase(self, scope_id: str, limit: str, amount: int, until_ms: int, reason: str = "", *, witness: Witness | None = None) -> Change:
        """A limit of a tenant or key has so much more (tokens, requests, nano-USD) until then. limit: its identity (config/entries.limit_id)."""
        if not 0 < amount <= AMOUNT_MAX:
            raise _wrong("amount", f"must be from 1 to {AMOUNT_MAX}")
        if until_ms <= self._time_ms():
            raise _wrong("until", "must be in the future")
        known = await self._limits_of(scope_id)
        if limit not in known:
            raise _wrong("limit", f"{limit!r} is none of its limits: {', '.join(sorted(known)) or 'it has none'}")
        row = IncreaseRow(self._new_id(), scope_id, limit, amount, until_ms, reason)
        work = partial(tables.add_increase, row=row, now_ms=self._time_ms())
        return await self._change(work, lambda _: Change(None, msgspec.structs.asdict(row)), witness)

    async def remove_increase(self, id: str, scope_id: str, *, witness: Witness | None = None) -> Change:
        """It is over now. Raises Missing."""
        return await self._change(partial(tables.remove_increase, id=id, scope_id=scope_id), _removed, witness)

    async def set_price(self, deployment_id: str, price: Fields, *, witness: Witness | None = None) -> Change:
        """What a deployment costs from now on, whatever the file says. Requests under way keep the price that they began with."""
        read_price(price)
        row = PriceRow(deployment_id, price, self._time_ms())
        return await self._change(partial(tables.set_price, row=row), _changed, witness)

    async def remove_price(self, deployment_id: str, *, witness: Witness | None = None) -> Change:
        """What the file says counts again. Raises Missing."""
        return await self._change(partial(tables.remove_price, id=deployment_id), _removed, witness)

    # -- steps ----------------------------------------------------------------------------------------------------------------------------

    async def _change(self, work: Callable[[Connection], Any], changed: Callable[[Any], Change], witness: Witness | None) -> Change:
        """A transaction; this worker knows of it afterwards, and the others are told. changed: what `work` has made of it."""

        def whole(connection: Connection) -> Change:
            change = changed(work(connection))
            if witness is not None:
                witness.write(connection, change)
            return change

        change = await self._directory.store.call(whole)
        if witness is not None:
            witness.tell()
        self._publish("config", {"directory": True})
        await self._directory.follow(self._apply)
        return change

    def in_file(self, id: str) -> bool:
        """Whether the file defines this tenant or key."""
        return entries.in_file(self._loaded().config, id) is not None

    async def _check_owner(self, owner: str) -> None:
        current = self._directory.current
        if current is not None and (owner in current.tenants.at or owner in current.by_id):
            return
        if "/@" not in owner:
            raise Missing(owner)
        if len(await self._directory.store.call(partial(tables.chain, key_id=owner), reading=True)) >= tables.CHAIN_MAX:
            raise _wrong("owner", f"is too deep; there are {tables.CHAIN_MAX} keys above a key at most")
        await self._key(owner)

    async def _key(self, key_id: str) -> tuple[KeyRow, list[SecretRow]]:
        """Raises Missing; FromFile."""
        current = self._directory.current
        if current is not None and key_id in current.by_id:
            raise FromFile(key_id)
        found: tuple[KeyRow, list[SecretRow]] = await self._directory.store.call(partial(tables.get_key, key_id=key_id), reading=True)
        return found

    async def _tenant(self, tenant_id: str) -> TenantRow:
        """Raises Missing; FromFile."""
        if self.in_file(tenant_id):
            raise FromFile(tenant_id)
        return await self._directory.store.call(partial(tables.get_tenant, tenant_id=tenant_id), reading=True)

    async def _limits_of(self, scope_id: str) -> set[str]:
        current = self._directory.current
        if current is not None and (scope_id in current.by_id or scope_id in current.tenants.at):
            of = current.by_id[scope_id].counters if scope_id in current.by_id else current.tenants.at[scope_id].counters
            return {entries.limit_id(counter.limits[0]) for counter in of if counter.scope.id == scope_id}
        return _identities((await self._key(scope_id))[0])

    def _check_key(self, row: KeyRow) -> None:
        entries.check_name(row.name)
        entries.check_metadata(row.metadata)
        entries.read_cidr(row.cidr)
        if row.expires_ms < 0:
            raise _wrong("expires", "must be a time")
        self._check(entries.read_key(row.name, row.limits, row.models, row.priority))

    def _check_tenant(self, row: TenantRow) -> None:
        entries.check_metadata(row.metadata)
        self._check(entries.read_tenant(row.limits, row.models, row.priority, row.kind))

    def _check(self, entry: Any) -> None:
        entries.check(self._loaded().config, entry)


def shown(row: KeyRow, secret: list[SecretRow] | None = None) -> Fields:
    """A key as it is told: of its secrets the last four characters, and their ends."""
    fields = msgspec.structs.asdict(row)
    del fields["late"]
    return fields | ({"secrets": _told(secret)} if secret is not None else {})


def _changed(pair: tuple[msgspec.Struct | None, msgspec.Struct | None]) -> Change:
    before, after = (msgspec.structs.asdict(row) if row is not None else None for row in pair)
    return Change(before, after)


def _removed(row: msgspec.Struct) -> Change:
    return Change(msgspec.structs.asdict(row), None)


def _told(rows: list[SecretRow]) -> list[Fields]:
    return [{"last4": row.last4, "created_ms": row.created_ms, "ends_ms": row.ends_ms} for row in rows]


def _secret_row(secret: str, key_id: str, now_ms: int) -> SecretRow:
    return SecretRow(hashlib.sha256(secret.encode()).hexdigest(), key_id, secret[-4:], now_ms)


def _identities(row: KeyRow) -> set[str]:
    return {entries.limit_id(limit) for limit in entries.read_key(row.name, row.limits, None).limits if limit is not None}


def _only(changes: Mapping[str, Any], allowed: tuple[str, ...]) -> None:
    for name in changes:
        if name not in allowed:
            raise _wrong(name, f"cannot be changed; {', '.join(allowed)} can")


def _wrong(field: str, message: str) -> ConfigError:
    return ConfigError("request", [Problem((field,), message)])
