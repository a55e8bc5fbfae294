"""Keys and tenants that were made at run time, overrides of those of the file, temporary increases, and prices: in the records' database.

Every change is one transaction, which also raises `version`: whoever has seen one version asks for what has changed since. A key's row keeps the
version that changed it; everything else is read as a whole when `tree_version` has risen. Of secrets there are only SHA-256 digests.

The tables are made by whoever needs them first. A thread and a connection of their own: no look-up waits behind a batch of usage.

How it fails: RecordsUnavailable after some seconds at most; Missing, Taken for what is not there, or there already, and then nothing was changed.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec
from sqlalchemy import BigInteger, Column, Connection, Index, Integer, MetaData, Table, Text, delete, or_, select, text, update

from sluicegate.records.database import Database
from sluicegate.records.directory_rows import (
    NEVER,
    Found,
    Full,
    IncreaseRow,
    KeyRow,
    Missing,
    OverrideRow,
    PriceRow,
    SecretRow,
    Taken,
    TenantRow,
    Tree,
    Version,
)
from sluicegate.records.schema import CREATION_LOCK, insert

TIMEOUT_S = 3.0
CHAIN_MAX = 8  # keys above a key

T = TypeVar("T")


metadata = MetaData()
_TEXT = Text().with_variant(Text(collation="C"), "postgresql")  # in the order of its bytes, as everywhere else
_JSON = frozenset(("limits", "models", "cidr", "metadata", "price"))


def _table(name: str, row: type[msgspec.Struct], *more: Any, key: str = "id", nullable: frozenset[str] = frozenset()) -> Table:
    columns = []
    for field in msgspec.structs.fields(row):
        kind = BigInteger if field.type in (int, bool, bool | None) else _TEXT
        columns.append(Column(field.name, kind, primary_key=field.name == key, nullable=field.name in nullable, autoincrement=False))
    return Table(name, metadata, *columns, *more)


_MODELS = frozenset(("models",))
state = Table(
    "directory",
    metadata,
    Column("one", Integer, primary_key=True, autoincrement=False),
    Column("version", BigInteger, nullable=False),
    Column("tree_version", BigInteger, nullable=False),
)
tenants = _table("directory_tenants", TenantRow, Index("directory_tenants_below", "parent"), nullable=_MODELS)
keys = _table(
    "directory_keys",
    KeyRow,
    Column("organization", Text, nullable=False),
    Column("version", BigInteger, nullable=False),
    Index("directory_keys_of_organization", "organization"),
    Index("directory_keys_of_owner", "owner"),
    Index("directory_keys_changed", "version"),
    nullable=_MODELS,
)
secrets = _table("directory_secrets", SecretRow, Index("directory_secrets_of_key", "key_id"), key="digest")
overrides = _table("directory_overrides", OverrideRow, nullable=frozenset(("limits", "models", "blocked")))
increases = _table("directory_increases", IncreaseRow)
prices = _table("directory_prices", PriceRow)


def _values(row: msgspec.Struct) -> dict[str, Any]:
    """As the database has it."""
    found = {}
    for name in row.__struct_fields__:
        value = getattr(row, name)
        if name in _JSON:
            value = None if value is None else msgspec.json.encode(value).decode()
        found[name] = int(value) if isinstance(value, bool) else value
    return found


def _row(kind: type[T], found: Any) -> T:
    """As it was written."""
    values = {name: found._mapping[name] for name in kind.__struct_fields__}  # type: ignore[attr-defined]
    for name in _JSON & values.keys():
        if values[name] is not None:
            values[name] = msgspec.json.decode(values[name])
    return msgspec.convert(values, kind, strict=False)


class Directory:
    """The tables, for one process."""

    def __init__(self, url: str, timeout_s: float = TIMEOUT_S) -> None:
        self._database = Database(url, timeout_s)
        self._made = -1  # in which session the tables were looked at

    async def close(self) -> None:
        await self._database.close()

    async def call(self, work: Callable[[Connection], T], *, reading: bool = False) -> T:
        """Runs a function of this module in a transaction."""
        if self._made != self._database.session:
            await self._database.call(_prepare)
            self._made = self._database.session
        return await self._database.call(work, reading=reading)


def _prepare(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": CREATION_LOCK})
    metadata.create_all(connection)
    connection.execute(insert(connection, state).values(one=1, version=0, tree_version=0).on_conflict_do_nothing())


# -- reading --------------------------------------------------------------------------------------------------------------------------------


def version(connection: Connection) -> Version:
    """How far changes have come."""
    found = connection.execute(select(state.c.version, state.c.tree_version)).one()
    return Version(*found)


def tree(connection: Connection) -> Tree:
    """All but the keys."""
    return Tree(
        [_row(TenantRow, row) for row in connection.execute(select(tenants).order_by(tenants.c.id))],
        [_row(OverrideRow, row) for row in connection.execute(select(overrides))],
        [_row(IncreaseRow, row) for row in connection.execute(select(increases))],
        list_prices(connection),
        list(connection.execute(select(keys.c.organization).where(keys.c.limits != "[]", keys.c.deleted_ms == NEVER).distinct()).scalars()),
        connection.execute(select(secrets.c.digest).limit(1)).first() is not None,
    )


def list_prices(connection: Connection) -> list[PriceRow]:
    """All of them, by their ids."""
    return [_row(PriceRow, row) for row in connection.execute(select(prices).order_by(prices.c.id))]


def changed(connection: Connection, since: int) -> list[str]:
    """Ids of keys that have changed after a version."""
    return list(connection.execute(select(keys.c.id).where(keys.c.version > since)).scalars())


def find(connection: Connection, digest: str) -> Found | None:
    """Whose a secret is."""
    secret = connection.execute(select(secrets).where(secrets.c.digest == digest)).first()
    if secret is None:
        return None
    found = _row(SecretRow, secret)
    return Found(found, chain(connection, found.key_id))


def chain(connection: Connection, key_id: str) -> list[KeyRow]:
    """A key and those above it, itself first; empty if it is not here."""
    rows: list[KeyRow] = []
    while len(rows) < CHAIN_MAX and (found := connection.execute(select(keys).where(keys.c.id == key_id)).first()) is not None:
        rows.append(_row(KeyRow, found))
        key_id = rows[-1].owner
        if "/@" not in key_id:
            break
    return rows


def limited(connection: Connection, organization: str, after: str, limit: int, *, included: bool = False) -> list[KeyRow]:
    """Keys with limits of their own, by id. organization: "*" for those of all. included: `after` is one of them."""
    behind = keys.c.id >= after if included else keys.c.id > after
    some = select(keys).where(keys.c.limits != "[]", keys.c.deleted_ms == NEVER, behind).order_by(keys.c.id).limit(limit)
    if organization != "*":
        some = some.where(keys.c.organization == organization)
    return [_row(KeyRow, row) for row in connection.execute(some)]


def list_keys(
    connection: Connection, below: str, after: str, limit: int, deleted: bool, blocked: bool | None = None
) -> list[tuple[KeyRow, list[SecretRow]]]:
    """Keys by id, with their secrets. below: of a tenant (or key) and all under it; "": of all. blocked: only those that are, or are not."""
    some = select(keys).where(keys.c.id > after).order_by(keys.c.id).limit(limit)
    if below:  # all that begins with `below/`: "0" is what follows on the slash
        some = some.where(keys.c.id > below + "/", keys.c.id < below + "0")
    if not deleted:
        some = some.where(keys.c.deleted_ms == NEVER)
    if blocked is not None:
        some = some.where(keys.c.blocked == int(blocked))
    rows = [_row(KeyRow, row) for row in connection.execute(some)]
    of: dict[str, list[SecretRow]] = {row.id: [] for row in rows}
    for found in connection.execute(select(secrets).where(secrets.c.key_id.in_(list(of))).order_by(secrets.c.created_ms)):
        of[found.key_id].append(_row(SecretRow, found))
    return [(row, of[row.id]) for row in rows]


def keys_below(connection: Connection, key_id: str, limit: int) -> list[str]:
    """Ids of a key's sub-keys, also of those that were deleted: what they used is still its use."""
    below = keys.c.id > key_id + "/@", keys.c.id < key_id + "/A"  # "A" is what follows on the at sign
    return list(connection.execute(select(keys.c.id).where(*below).order_by(keys.c.id).limit(limit)).scalars())


def list_tenants(connection: Connection, after: str, limit: int) -> list[TenantRow]:
    """Tenants by id."""
    return [_row(TenantRow, row) for row in connection.execute(select(tenants).where(tenants.c.id > after).order_by(tenants.c.id).limit(limit))]


def get_key(connection: Connection, key_id: str) -> tuple[KeyRow, list[SecretRow]]:
    """A key that was not deleted, with its secrets. Raises Missing."""
    found = connection.execute(select(keys).where(keys.c.id == key_id, keys.c.deleted_ms == NEVER)).first()
    if found is None:
        raise Missing(key_id)
    of = connection.execute(select(secrets).where(secrets.c.key_id == key_id).order_by(secrets.c.created_ms))
    return _row(KeyRow, found), [_row(SecretRow, row) for row in of]


def get_tenant(connection: Connection, tenant_id: str) -> TenantRow:
    """Raises Missing."""
    found = connection.execute(select(tenants).where(tenants.c.id == tenant_id)).first()
    if found is None:
        raise Missing(tenant_id)
    return _row(TenantRow, found)


# -- changing -------------------------------------------------------------------------------------------------------------------------------


def _raised(connection: Connection, of_tree: bool = False) -> int:
    """The version of this change. First of all: whoever comes meanwhile waits to the end of the transaction, so nobody changes what somebody else has
    read, and versions become visible in order."""
    raised: dict[str, Any] = {"version": state.c.version + 1}
    if of_tree:
        raised["tree_version"] = state.c.version + 1
    return int(connection.execute(update(state).values(raised).returning(state.c.version)).scalar_one())


def _of_tree_too(connection: Connection) -> None:
    connection.execute(update(state).values(tree_version=state.c.version))


def create_key(connection: Connection, row: KeyRow, secret: SecretRow, most: int = 0) -> None:
    """A key with its first secret. One that was deleted may come back, and goes on counting. most: keys below its owner; 0: any number.
    Raises Taken, Full."""
    number = _raised(connection)
    if _first(connection, row):
        _of_tree_too(connection)
    before = connection.execute(select(keys.c.deleted_ms).where(keys.c.id == row.id)).scalar()
    if before == NEVER:
        raise Taken(row.id)
    if most and len(list_keys(connection, row.owner, "", most, False)) >= most:
        raise Full(row.owner)
    connection.execute(delete(keys).where(keys.c.id == row.id))
    late = row.late or (before is not None and bool(row.limits))
    connection.execute(keys.insert().values(**(_values(row) | {"late": int(late)}), organization=row.organization, version=number))
    connection.execute(secrets.insert().values(_values(secret)))


def _first(connection: Connection, row: KeyRow) -> bool:
    """The first key of all, or an organization's first with limits: all workers must know that there are any."""
    if connection.execute(select(secrets.c.digest).limit(1)).first() is None:
        return True
    same = select(keys.c.id).where(keys.c.organization == row.organization, keys.c.limits != "[]", keys.c.deleted_ms == NEVER)
    return bool(row.limits) and connection.execute(same.limit(1)).first() is None


def change_key(connection: Connection, key_id: str, changes: Mapping[str, Any]) -> tuple[KeyRow, KeyRow]:
    """Other values for fields of a key; as it was, and is. Raises Missing."""
    number = _raised(connection)
    before, _ = get_key(connection, key_id)
    after = msgspec.structs.replace(before, **changes)
    if after.limits and _first(connection, after):
        _of_tree_too(connection)
    connection.execute(update(keys).where(keys.c.id == key_id).values(**_values(after), version=number))
    return before, after


def add_secret(connection: Connection, secret: SecretRow, others_end_ms: int) -> list[SecretRow]:
    """One more secret of a key, whose others end then, unless sooner; these, as they now are. Raises Missing."""
    number = _raised(connection)
    get_key(connection, secret.key_id)
    later = or_(secrets.c.ends_ms == NEVER, secrets.c.ends_ms > others_end_ms)
    connection.execute(update(secrets).where(secrets.c.key_id == secret.key_id, later).values(ends_ms=others_end_ms))
    connection.execute(secrets.insert().values(_values(secret)))
    connection.execute(update(keys).where(keys.c.id == secret.key_id).values(version=number))
    return get_key(connection, secret.key_id)[1]


def delete_key(connection: Connection, key_id: str, now_ms: int) -> KeyRow:
    """Its id stays known, so that it counts on should it come back; its secrets are gone, and so are keys below it. Raises Missing."""
    number = _raised(connection)
    before, _ = get_key(connection, key_id)
    below = or_(keys.c.id == key_id, keys.c.id.startswith(key_id + "/@", autoescape=True))
    ids = list(connection.execute(select(keys.c.id).where(below)).scalars())
    connection.execute(delete(secrets).where(secrets.c.key_id.in_(ids)))
    connection.execute(update(keys).where(keys.c.id.in_(ids), keys.c.deleted_ms == NEVER).values(deleted_ms=now_ms, version=number))
    return before


def create_tenant(connection: Connection, row: TenantRow) -> None:
    """Raises Taken."""
    _raised(connection, of_tree=True)
    if connection.execute(select(tenants.c.id).where(tenants.c.id == row.id)).first() is not None:
        raise Taken(row.id)
    connection.execute(tenants.insert().values(_values(row)))


def change_tenant(connection: Connection, tenant_id: str, changes: Mapping[str, Any]) -> tuple[TenantRow, TenantRow]:
    """Other values for fields of a tenant; as it was, and is. Raises Missing."""
    _raised(connection, of_tree=True)
    before = get_tenant(connection, tenant_id)
    after = msgspec.structs.replace(before, **changes)
    connection.execute(update(tenants).where(tenants.c.id == tenant_id).values(_values(after)))
    return before, after


def delete_tenant(connection: Connection, tenant_id: str, hidden: bool = False) -> TenantRow:
    """hidden: the file has one of that id too, under which hangs what is below it. Raises Missing; Taken while there is anything, and names it."""
    _raised(connection, of_tree=True)
    before = get_tenant(connection, tenant_id)
    child = connection.execute(select(tenants.c.id).where(tenants.c.parent == tenant_id).limit(1)).scalar()
    child = child or connection.execute(select(keys.c.id).where(keys.c.owner == tenant_id, keys.c.deleted_ms == NEVER).limit(1)).scalar()
    if child is not None and not hidden:
        raise Taken(child)
    connection.execute(delete(tenants).where(tenants.c.id == tenant_id))
    return before


def change_override(connection: Connection, id: str, changes: Mapping[str, Any], now_ms: int) -> tuple[OverrideRow | None, OverrideRow | None]:
    """Other values for what is put over a tenant or key; as it was, and is. One that says nothing any more is none."""
    _raised(connection, of_tree=True)
    before = _there(connection, overrides, OverrideRow, id)
    after = msgspec.structs.replace(before or OverrideRow(id), **changes, set_ms=now_ms)
    connection.execute(delete(overrides).where(overrides.c.id == id))
    if after.limits is None and after.models is None and after.blocked is None:
        return before, None
    connection.execute(overrides.insert().values(_values(after)))
    return before, after


def remove_override(connection: Connection, id: str) -> OverrideRow:
    """Raises Missing."""
    return _taken_away(connection, overrides, OverrideRow, id)


def set_price(connection: Connection, row: PriceRow) -> tuple[PriceRow | None, PriceRow]:
    """In the place of the one that there was; as it was, and is."""
    _raised(connection, of_tree=True)
    before = _there(connection, prices, PriceRow, row.id)
    connection.execute(delete(prices).where(prices.c.id == row.id))
    connection.execute(prices.insert().values(_values(row)))
    return before, row


def remove_price(connection: Connection, id: str) -> PriceRow:
    """Raises Missing."""
    return _taken_away(connection, prices, PriceRow, id)


def _there(connection: Connection, table: Table, kind: type[T], id: str) -> T | None:
    found = connection.execute(select(table).where(table.c.id == id)).first()
    return _row(kind, found) if found is not None else None


def _taken_away(connection: Connection, table: Table, kind: type[T], id: str) -> T:
    """As it was. Raises Missing."""
    _raised(connection, of_tree=True)
    before = _there(connection, table, kind, id)
    if before is None:
        raise Missing(id)
    connection.execute(delete(table).where(table.c.id == id))
    return before


def add_increase(connection: Connection, row: IncreaseRow, now_ms: int) -> None:
    """Those that are over are forgotten."""
    _raised(connection, of_tree=True)
    connection.execute(delete(increases).where(increases.c.until_ms <= now_ms))
    connection.execute(increases.insert().values(_values(row)))


def remove_increase(connection: Connection, id: str, scope_id: str) -> IncreaseRow:
    """Raises Missing."""
    _raised(connection, of_tree=True)
    found = connection.execute(select(increases).where(increases.c.id == id, increases.c.scope_id == scope_id)).first()
    if found is None:
        raise Missing(id)
    connection.execute(delete(increases).where(increases.c.id == id))
    return _row(IncreaseRow, found)
