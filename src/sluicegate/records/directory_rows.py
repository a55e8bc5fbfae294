"""What the directory's tables have, and what can be wrong with a change of them."""

from typing import Any

import msgspec

NEVER = 0  # of a time


class Missing(Exception):
    """There is no such thing; its text is the id."""


class Taken(Exception):
    """There is one already; its text is the id."""


class Full(Exception):
    """There are as many below it as there may be; its text is its id."""


class TenantRow(msgspec.Struct, frozen=True):
    """A tenant. Lists are as they were written, None: left out."""

    id: str  # its path: acme/team-a
    parent: str  # "": none
    limits: list[Any] = []
    models: list[str] | None = None
    priority: str = ""
    metadata: dict[str, str] = {}
    blocked: bool = False
    created_ms: int = 0
    kind: str = ""  # "": by its depth


class KeyRow(msgspec.Struct, frozen=True):
    """A key. late: it has got limits after it was made, which begin with what was used before."""

    id: str  # acme/team-a/@laptop
    owner: str  # a tenant's id; of a sub-key, its key's
    name: str
    limits: list[Any] = []
    models: list[str] | None = None
    cidr: list[str] = []
    priority: str = ""
    metadata: dict[str, str] = {}
    expires_ms: int = NEVER
    blocked: bool = False
    late: bool = False
    created_ms: int = 0
    deleted_ms: int = NEVER
    may_create_sub_keys: bool = False  # whoever has it, by themselves

    @property
    def organization(self) -> str:
        return self.id.partition("/")[0]


class SecretRow(msgspec.Struct, frozen=True):
    """One secret of a key, by its digest in hex. ends_ms: of the grace period, once it has been replaced."""

    digest: str
    key_id: str
    last4: str
    created_ms: int
    ends_ms: int = NEVER


class OverrideRow(msgspec.Struct, frozen=True):
    """What is put over a tenant or key of the file; None: what the file says."""

    id: str
    limits: list[Any] | None = None
    models: list[str] | None = None
    blocked: bool | None = None
    set_ms: int = 0


class IncreaseRow(msgspec.Struct, frozen=True):
    """An amount that a limit has more, for a time. limit: its identity in its scope, such as `usd:month`."""

    id: str
    scope_id: str
    limit: str
    amount: int
    until_ms: int
    reason: str = ""


class PriceRow(msgspec.Struct, frozen=True):
    """What a deployment costs, whatever the file says. price: as it was written, with its date and source."""

    id: str
    price: dict[str, Any] = {}
    set_ms: int = 0


class Tree(msgspec.Struct, frozen=True):
    """All but the keys."""

    tenants: list[TenantRow] = []
    overrides: list[OverrideRow] = []
    increases: list[IncreaseRow] = []
    prices: list[PriceRow] = []
    organizations: list[str] = []  # that have keys with limits of their own
    any_keys: bool = False


class Found(msgspec.Struct, frozen=True):
    """A secret, its key, and the keys above that, as far as they are here."""

    secret: SecretRow
    chain: list[KeyRow]


class Version(msgspec.Struct, frozen=True):
    """How far changes have come; `tree`: the last that was of more than a key."""

    all: int
    tree: int
