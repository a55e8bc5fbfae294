"""Tenants and keys as the admin API gives them: read by the same schema as those of the file, and put together with these.

    read_tenant(fields), read_key(fields)   values, or ConfigError with the path of each field that is wrong
    merged(config, tree)                    the file's configuration with the tenants of the database, overrides and increases

What the database has was checked when it came. It may not fit any more, as the file changes: a tenant of the file goes before one of the database
with the same id, and what hangs below a tenant that is gone is left out until it is back.
"""

import ipaddress
from collections import defaultdict
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Protocol, TypeVar

import msgspec
from pydantic import ValidationError

from sluicegate.config import schema
from sluicegate.config.compile_tenants import TenantTree
from sluicegate.config.compiling import NAME
from sluicegate.config.fields import ConfigError, Problem
from sluicegate.config.load import schema_problems
from sluicegate.config.schema import Config, Tenant
from sluicegate.config.section import Section
from sluicegate.core import counters as counting
from sluicegate.core.limits import Limit
from sluicegate.core.tenants import Scope

METADATA_MAX = 16  # entries; names and values of 512 characters at most
TEXT_MAX = 512
CIDRS_MAX = 64
NO_DIGEST = "0" * 64  # of a key whose secrets are elsewhere

S = TypeVar("S", bound=Section)

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class TenantEntry(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def parent(self) -> str: ...
    @property
    def limits(self) -> list[Any]: ...
    @property
    def models(self) -> list[str] | None: ...
    @property
    def priority(self) -> str: ...
    @property
    def kind(self) -> str: ...


class OverrideEntry(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def limits(self) -> list[Any] | None: ...
    @property
    def models(self) -> list[str] | None: ...


class IncreaseEntry(Protocol):
    @property
    def scope_id(self) -> str: ...
    @property
    def limit(self) -> str: ...
    @property
    def amount(self) -> int: ...
    @property
    def until_ms(self) -> int: ...


class TreeEntries(Protocol):
    """What the database has beside keys."""

    @property
    def tenants(self) -> Sequence[TenantEntry]: ...
    @property
    def overrides(self) -> Sequence[OverrideEntry]: ...
    @property
    def increases(self) -> Sequence[IncreaseEntry]: ...


# -- reading --------------------------------------------------------------------------------------------------------------------------------


def read_tenant(limits: Any, models: Any, priority: str = "", kind: str = "") -> Tenant:
    """Raises ConfigError."""
    return read(Tenant, {"limits": limits, "models": models, "priority": priority or None, "kind": kind or None})


def read_key(name: str, limits: Any, models: Any, priority: str = "", may_create_sub_keys: bool = False) -> schema.Key:
    """Without a secret. Raises ConfigError."""
    more = {"priority": priority or None, "may_create_sub_keys": may_create_sub_keys}
    return read(schema.Key, {"name": name, "sha256": NO_DIGEST, "limits": limits, "models": models, **more})


def read(kind: type[S], fields: Mapping[str, Any]) -> S:
    """Fields as a section of the file. Raises ConfigError."""
    try:
        return kind.model_validate(_exact(fields), context={"environ": {}})
    except ValidationError as error:
        raise ConfigError("request", list(schema_problems(error, [], kind))) from None


def _exact(value: Any) -> Any:
    """Fractions as decimals, which is how a file is read."""
    if isinstance(value, Mapping):
        return {name: _exact(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_exact(one) for one in value]
    return Decimal(repr(value)) if isinstance(value, float) else value


def check_name(name: str) -> None:
    """Raises ConfigError."""
    if not NAME.fullmatch(name):
        raise ConfigError(
            "request", [Problem(("name",), "must have letters, digits, '.', '_' and '-', 64 at most, and begin with a letter or digit")]
        )


def check_metadata(metadata: Mapping[str, str]) -> None:
    """Raises ConfigError."""
    if len(metadata) > METADATA_MAX or any(len(text) > TEXT_MAX for pair in metadata.items() for text in pair):
        raise ConfigError("request", [Problem(("metadata",), f"must have at most {METADATA_MAX} entries of at most {TEXT_MAX} characters")])


def read_cidr(written: Sequence[str]) -> tuple[Network, ...]:
    """Raises ConfigError."""
    found: list[Network] = []
    for i, text in enumerate(written):
        try:
            found.append(ipaddress.ip_network(text))
        except ValueError:
            raise ConfigError("request", [Problem(("cidr", i), f"{text!r:.60} is no network, such as 10.0.0.0/8 or 2001:db8::/32")]) from None
    if len(found) > CIDRS_MAX:
        raise ConfigError("request", [Problem(("cidr",), f"must have at most {CIDRS_MAX} networks")])
    return tuple(found)


def contains(networks: Sequence[Network], address: str) -> bool:
    """Whether one of the networks has an address. IPv4 inside IPv6 is the IPv4 address that it stands for."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return any(found in network for network in networks)


def in_file(config: Config, id: str) -> Tenant | schema.Key | None:
    """What a configuration says of a tenant or key, by its id."""
    path, _, name = id.partition("/@")
    first, *rest = path.split("/")
    found = config.tenants.organizations.get(first)
    for part in rest:
        found = found.children.get(part) if found is not None else None
    if found is None or not name:
        return found
    return next((one for one in found.keys if one.name == name), None)


def limit_id(limit: Limit) -> str:
    """What a limit is known by in its scope: what it counts in, never its amount. `usd:month`, `tokens:bucket-minute:chat`."""
    (counter,) = counting.group("", Scope("s", "key", ""), [limit])
    return counter.key_prefix.removeprefix("sg1:{}:c:s:")


# -- putting together -----------------------------------------------------------------------------------------------------------------------


def merged(config: Config, tree: TreeEntries, now_ms: int) -> tuple[Config, list[str]]:
    """The configuration with all that the database has beside keys; and the ids of tenants that have no place in it."""
    merging = _Merging(tree, now_ms)
    organizations = {name: merging.tenant(written, name) for name, written in config.tenants.organizations.items()}
    for row in merging.below[""]:
        organizations.setdefault(row.id, merging.tenant(merging.read(row), row.id))
    placeless = [row.id for row in tree.tenants if row.id not in merging.placed]
    return config.model_copy(update={"tenants": config.tenants.model_copy(update=organizations)}), placeless


class _Merging:
    def __init__(self, tree: TreeEntries, now_ms: int) -> None:
        self.below: defaultdict[str, list[TenantEntry]] = defaultdict(list)
        for row in tree.tenants:
            self.below[row.parent].append(row)
        self.overrides = {row.id: row for row in tree.overrides}
        self.increases: defaultdict[str, list[IncreaseEntry]] = defaultdict(list)
        for increase in tree.increases:
            if increase.until_ms > now_ms:
                self.increases[increase.scope_id].append(increase)
        self.placed: set[str] = set()

    def read(self, row: TenantEntry) -> Tenant:
        return read_tenant(row.limits, row.models, row.priority, row.kind)

    def tenant(self, written: Tenant, id: str) -> Tenant:
        self.placed.add(id)
        children = {name: self.tenant(child, f"{id}/{name}") for name, child in written.children.items()}
        for row in self.below[id]:
            name = row.id.removeprefix(id + "/")
            if name not in children:
                children[name] = self.tenant(self.read(row), row.id)
        keys = [key.model_copy(update=self.changes(key, f"{id}/@{key.name}")) for key in written.keys]
        return written.model_copy(update={**self.changes(written, id), "children": children, "keys": keys})

    def changes(self, written: Tenant | schema.Key, id: str) -> dict[str, Any]:
        """What overrides and increases make of it."""
        found: dict[str, Any] = {}
        override = self.overrides.get(id)
        if override is not None and override.limits is not None:
            found["limits"] = read_tenant(override.limits, None).limits
        if override is not None and override.models is not None:
            found["models"] = override.models
        if id in self.increases:
            found["limits"] = increased(found.get("limits", written.limits), self.increases[id])
        return found


def increased(limits: Sequence[Limit | None], increases: Sequence[IncreaseEntry]) -> list[Limit | None]:
    """Limits with what they have more for a time."""
    more: defaultdict[str, int] = defaultdict(int)
    for one in increases:
        more[one.limit] += one.amount
    return [limit if limit is None else _larger(limit, more.get(limit_id(limit), 0)) for limit in limits]


def _larger(limit: Limit, more: int) -> Limit:
    if not more:
        return limit
    return msgspec.structs.replace(limit, amount=limit.amount + more, burst=limit.burst + more if limit.burst else 0, text=f"{limit.text} (+{more})")


def check(config: Config, entry: Tenant | schema.Key) -> None:
    """Whether models that a tenant or key names are there. Raises ConfigError."""
    problems: list[Problem] = []
    compiler = TenantTree(config, {}, problems)
    compiler.check_models_of(entry.limits, ("limits",))
    compiler.allowed(None, entry.models, ("models",))
    if problems:
        raise ConfigError("request", problems)
