"""The tree of tenants and their keys, from the configuration: scopes, counters, what each may use."""

from collections.abc import Mapping, Sequence

import msgspec

from sluicegate.config import compile_rules, schema
from sluicegate.config.compiling import NAME, Compiling, did_you_mean
from sluicegate.config.fields import Path, Problem, show_path
from sluicegate.config.schema import Config
from sluicegate.core.content_rules import ContentRules
from sluicegate.core.counters import group
from sluicegate.core.limits import Limit, Priority
from sluicegate.core.tenants import Counter, Key, Scope, ScopeKind

GLOBAL = "*"
_KINDS: tuple[ScopeKind, ...] = ("organization", "team", "project", "user")  # by depth


class Above(msgspec.Struct, frozen=True):
    """What a tenant inherits."""

    tree: str
    path: tuple[Scope, ...]
    counters: tuple[Counter, ...]
    allowed: frozenset[str] | None  # models; None: every one
    priority: Priority | None
    depth: int  # 0: nothing but the global limits is above
    rules: ContentRules | None = None
    cached: bool = True


def below_key(key: Key) -> Above:
    """What a key's own keys inherit: its limits bind them too."""
    return Above(key.tree, key.path, key.counters, key.models, key.priority, len(_KINDS), key.rules, key.cached)


class TenantTree(Compiling):
    """Reads `tenants:`."""

    def __init__(self, config: Config, environ: Mapping[str, str], problems: list[Problem]) -> None:
        super().__init__(config, environ, problems)
        self.global_limits = self.limits(config.tenants.limits)
        self.read: dict[bytes, Key] = {}  # by the digest of the secret
        self.at: dict[str, Above] = {}  # what is inherited below each tenant, by its id
        self.digest_paths: dict[bytes, Path] = {}
        self.rules = compile_rules.compiled(None, config.rules, GLOBAL, ("rules",), self.problem)

    def keys(self) -> dict[bytes, Key]:
        """All keys, as far as what is written of them can be used."""
        self.check_models_of(self.global_limits, ("tenants", "limits"))
        for name, tenant in self.config.tenants.organizations.items():
            self.organization(name, tenant)
        return self.read

    def organization(self, name: str, tenant: schema.Tenant) -> None:
        if not self.global_limits:
            self.tenant(name, tenant, ("tenants", name), Above(name, (), (), None, None, 0, self.rules))
            return
        everyone = Scope(GLOBAL, "global", GLOBAL)
        above = Above(GLOBAL, (everyone,), group(GLOBAL, everyone, self.global_limits), None, None, 0, self.rules)
        self.tenant(name, tenant, ("tenants", name), above)

    def tenant(self, name: str, tenant: schema.Tenant, where: Path, above: Above) -> None:
        self.check_name(name, NAME, where)
        if above.depth >= len(_KINDS):
            self.problem(where, f"is too deep; the levels are {' > '.join(_KINDS)}")
            return
        parent = above.path[-1].id + "/" if above.depth else ""
        scope = Scope(parent + name, tenant.kind or _KINDS[above.depth], name)
        if tenant.kind and not above.depth:
            self.problem((*where, "kind"), "cannot be that of an organization")
        here = Above(
            above.tree,
            (*above.path, scope),
            above.counters + self.counters(above.tree, scope, tenant.limits, (*where, "limits")),
            self.allowed(above.allowed, tenant.models, (*where, "models")),
            tenant.priority or above.priority,
            above.depth + 1,
            compile_rules.compiled(above.rules, tenant.rules, scope.id, (*where, "rules"), self.problem),
            self.cached(above.cached, tenant, (*where, "cache")),
        )
        self.at[scope.id] = here
        names: set[str] = set()
        for i, key in enumerate(tenant.keys):
            self.key(key, (*where, "keys", i), here)
            if key.name in names:
                self.problem((*where, "keys", i, "name"), f"{key.name!r} is already the name of another key of {scope.id}")
            names.add(key.name)
        for child, below in tenant.children.items():
            self.tenant(child, below, (*where, "children", child), here)

    def key(self, key: schema.Key, where: Path, above: Above) -> None:
        self.check_name(key.name, NAME, (*where, "name"))
        if not key.digest:
            self.problem(where, "needs key or sha256 (the SHA-256 of the key, in hex)")
            return
        if key.is_plain and key.sha256 is not None:
            self.problem((*where, "sha256"), "and key are two secrets; give one")
        if key.digest in self.digest_paths:
            self.problem(where, f"has the same secret as {show_path(self.digest_paths[key.digest])}")
        self.digest_paths[key.digest] = where
        self.read[key.digest] = self.key_below(key, where, above)

    def key_below(self, key: schema.Key, where: Path, above: Above) -> Key:
        """A key of a tenant, or of another key."""
        scope = Scope(f"{above.path[-1].id}/@{key.name}", "key", key.name)
        return Key(
            id=scope.id,
            name=key.name,
            tree=above.tree,
            path=(*above.path, scope),
            models=self.allowed(above.allowed, key.models, (*where, "models")),
            counters=above.counters + self.counters(above.tree, scope, key.limits, (*where, "limits")),
            priority=key.priority or above.priority,
            may_create_sub_keys=key.may_create_sub_keys,
            rules=compile_rules.compiled(above.rules, key.rules, scope.id, (*where, "rules"), self.problem),
            cached=self.cached(above.cached, key, (*where, "cache")),
        )

    def cached(self, above: bool, written: schema.Tenant | schema.Key, path: Path) -> bool:
        """Whether requests from here may meet a cache."""
        if written.cache and not above and "cache" in written.model_fields_set:
            self.problem(path, "is off at the tenant above, and so off here")
        return above and written.cache

    def counters(self, tree: str, scope: Scope, written: Sequence[Limit | None], path: Path) -> tuple[Counter, ...]:
        self.check_models_of(written, path)
        return group(tree, scope, self.limits(written))

    def allowed(self, above: frozenset[str] | None, written: list[str] | None, path: Path) -> frozenset[str] | None:
        """What may be used here: what is written, as far as it may be used above. None: every model."""
        if written is None:
            return above
        for i, name in enumerate(written):
            if name not in self.config.models:
                self.problem((*path, i), f"there is no model {name!r}; {did_you_mean(name, self.config.models)}")
            elif above is not None and name not in above:
                self.problem((*path, i), f"{name!r} is not among the models of the tenant above")
        return frozenset(written) if above is None else above & frozenset(written)
