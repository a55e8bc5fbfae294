"""What `sluicegate check FILE` prints: what a configuration means, in tables, and what about it deserves a warning.

Returns renderables and lines; prints nothing. Secrets are never part of it.
"""

import pathlib
from collections.abc import Iterator, Sequence
from datetime import datetime
from zoneinfo import ZoneInfo

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from sluicegate.config import check_rules, schema
from sluicegate.config.fields import Path, show_path
from sluicegate.config.load import Loaded
from sluicegate.core.counters import name, scope_name
from sluicegate.core.limits import Limit, Unit, show_amount, show_period, show_share, show_window
from sluicegate.core.prices import Origin
from sluicegate.core.tenants import Counter, Deployment, Key, Model, Policy, Scope, Tier
from sluicegate.core.windows import Bucket, Calendar, Fixed, Lifetime, Open, Sliding, span
from sluicegate.providers import TRANSLATED_TO

_MONTH_MS = 28 * 86_400_000  # the shortest
_LENGTHS_MS = {"hour": 3_600_000, "day": 86_400_000, "week": 604_800_000, "month": _MONTH_MS}


def report(loaded: Loaded, now_ms: int) -> list[RenderableType]:
    """Tables of tenants and keys, limits, content rules, models and deployments, of the cache and logs, then the warnings, one line each."""
    policy, ruled = loaded.policy, check_rules.rules(loaded.config)
    tables: list[RenderableType] = [_keys(policy), _limits(policy, now_ms), *([_rows("Content rules", ruled, "of", "rules")] if ruled else [])]
    tables += [_models(policy), _deployments(policy), _rows("Cache, logs and traces", check_rules.kept(loaded.config), "of", "setting")]
    return tables + [f"[yellow]warning[/] {escape(line)}" for line in warnings(loaded)]


def warnings(loaded: Loaded) -> list[str]:
    """What is allowed but hardly meant. Also logged when the gateway starts."""
    config, policy = loaded.config, loaded.policy
    of_config = [*_plain_keys(config), *_admin(config), *_untranslatable(config), *_own_records(config), *_long_waits(config), *_log(config)]
    return [*of_config, *_unpriced(policy), *oversubscribed(policy), *_shadows(policy)]


# -- tables -------------------------------------------------------------------------------------------------------------------------------


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", header_style="dim")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _rows(title: str, rows: Sequence[tuple[str, str]], *columns: str) -> Table:
    table = _table(title, *columns)
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    return table


def _keys(policy: Policy) -> Table:
    table = _table("Tenants and keys", "tenant", "key", "models", "limits that bind it")
    for key in policy.keys.values():
        tenant = " > ".join(scope.name for scope in key.path[:-1] if scope.kind != "global")
        models = "all" if key.models is None else ", ".join(sorted(key.models)) or "none"
        limits = "\n".join(name(counter) + ("" if counter.enforced else " (shadow)") for counter in key.counters)
        named = key.name + (f"\n(priority {key.priority})" if key.priority else "")
        table.add_row(*(escape(cell) for cell in (tenant, named, models, limits or "none: nothing is held or refused")))
    return table


def _limits(policy: Policy, now_ms: int) -> Table:
    table = _table("Limits", "of", "limit", "models", "window", "resets next")
    for counter in _counters(policy):
        for limit in counter.limits:
            models = "all" if counter.models is None else ", ".join(sorted(counter.models))
            row = (scope_name(counter.scope), _limit_text(limit), models, _window(counter), _next_reset(counter, now_ms))
            table.add_row(*(escape(cell) for cell in row))
    return table


def _limit_text(limit: Limit) -> str:
    """A limit as written, with what else it says."""
    more = ["shadow: counts and reports only"] if limit.shadow else []
    more += [f"{show_share(share)} kept from {priority}" for priority in ("normal", "low") if (share := limit.reserve.of(priority))]
    return f"{limit.text}\n({', '.join(more)})" if more else limit.text


def _models(policy: Policy) -> Table:
    table = _table("Models", "model", "deployments, in order", "output cap when the client sends none")
    for model in policy.models.values():
        table.add_row(escape(model.name), escape("\n".join(_route(model))), f"{model.max_output} tokens")
    return table


def _route(model: Model) -> Iterator[str]:
    """The deployments of a model, those of a tier together, with what else decides who is asked."""
    above = {one.id: share for share, one in model.preferred}
    balance = f"sticky by {model.sticky_header.decode() or 'key'}" if model.balance == "sticky" else model.balance.replace("_", " ")
    for tier in model.tiers or [Tier((one,), (1,)) for one in model.deployments]:
        several = len(tier.deployments) > 1
        if several:
            yield f"{balance}:"
        for one, weight in zip(tier.deployments, tier.weights, strict=True):
            more = [f"weight {weight}"] if several and weight != 1 else []
            more += [f"first above {show_share(above[one.id])} of a budget"] if one.id in above else []
            yield ("- " if several else "") + one.id + (f" ({', '.join(more)})" if more else "")
    if model.leaves_for is not None:
        yield f"the next one only after: {', '.join(sorted(model.leaves_for - {''})) or 'nothing'}"
    if model.context_fallback:
        yield f"too long for it: {model.context_fallback}"
    if (cache := model.cache) is not None:
        whose = {"key": "each key's own", "global": "shared by all"}.get(cache.scope, f"shared in each {cache.scope}")
        yield f"cache: {cache.mode}, {whose}, for {cache.ttl_ms / 1000:g} s"


def _deployments(policy: Policy) -> Table:
    table = _table("Deployments", "deployment", "at", "USD per 1M tokens", "output is", "input is counted by", "own limits")
    for one in _all_deployments(policy):
        price = f"{_usd(one.price.input)} in, {_usd(one.price.output)} out" if one.price else "unknown"
        if origin := show_origin(one.price_origin):
            price += f"\n({origin})"
        held = "extended while it streams" if one.extend else f"capped by {one.cap_field}"
        limits = "\n".join(_limit_text(limit) for counter in one.counters for limit in counter.limits) or "none"
        at = one.provider.base_url + (f"\nthrough proxy {one.provider.proxy.name}" if one.provider.proxy else "")
        row = (one.id, at, price, held, one.tokenizer or "characters, learning", limits)
        table.add_row(*(escape(cell) for cell in row))
    return table


def show_origin(origin: Origin | None) -> str:
    """`catalogue of 2026-11-30`; "" where a price is written at the deployment, and no day."""
    if origin is None or (origin.rule == "deployment" and not origin.date):
        return ""
    return f"{origin.rule} of {origin.date}" if origin.date else origin.rule


def _usd(pico_usd: int) -> str:
    return f"{pico_usd / 1_000_000:.6f}".rstrip("0").rstrip(".")


def _window(counter: Counter) -> str:
    match counter.window:
        case Bucket(period_ms=period_ms):
            size = min(limit.size for limit in counter.limits)
            more = f", holds {show_amount(counter.unit, size)}" if size != counter.amount else ""
            return f"refills over {show_period(period_ms)}{more}"
        case Sliding(period_ms=period_ms):
            return f"sliding over {show_period(period_ms)}"
        case Fixed(period_ms=period_ms):
            return f"fixed, every {show_period(period_ms)}"
        case Calendar():
            return f"calendar {show_window(counter.window)}"
        case Lifetime():
            return "lifetime"
        case Open():
            return "in flight"


def _next_reset(counter: Counter, now_ms: int) -> str:
    window = counter.window
    if isinstance(window, Calendar | Fixed):
        zone = ZoneInfo(window.tz if isinstance(window, Calendar) else "UTC")
        return f"{datetime.fromtimestamp(span(window, now_ms).end_ms // 1000, zone):%Y-%m-%d %H:%M:%S %Z}"
    if isinstance(window, Lifetime):
        return "never"
    return "when a request ends" if isinstance(window, Open) else "continuously"


# -- what there is ------------------------------------------------------------------------------------------------------------------------


def _counters(policy: Policy) -> list[Counter]:
    """Each counter of tenants and keys once, from the top down."""
    return list({counter.key_prefix: counter for key in policy.keys.values() for counter in key.counters}.values())


def _all_deployments(policy: Policy) -> list[Deployment]:
    """Each deployment once for each way in which a route uses it."""
    return list(dict.fromkeys(one for model in policy.models.values() for one in model.deployments))


def _reaching(policy: Policy, deployment_id: str) -> tuple[frozenset[str], list[Key]]:
    """The models whose routes have a deployment, and the keys that may use one of them."""
    models = frozenset(model.name for model in policy.models.values() if any(one.id == deployment_id for one in model.deployments))
    return models, [key for key in policy.keys.values() if key.models is None or key.models & models]


# -- warnings -----------------------------------------------------------------------------------------------------------------------------


def _plain_keys(config: schema.Config) -> Iterator[str]:
    def below(tenant: schema.Tenant, path: Path) -> Iterator[str]:
        yield from (show_path((*path, "keys", i)) for i, key in enumerate(tenant.keys) if key.is_plain)
        for child, one in tenant.children.items():
            yield from below(one, (*path, "children", child))

    plain = [where for name, tenant in config.tenants.organizations.items() for where in below(tenant, ("tenants", name))]
    if plain:
        what = "the key itself is in the file" if len(plain) == 1 else f"{len(plain)} keys themselves are in the file"
        yield f"{_some(plain)}: {what}; better give the hash as sha256 (printf %s KEY | sha256sum)"


def _untranslatable(config: schema.Config) -> Iterator[str]:
    """A provider that gets requests in its own dialects alone. One of embeddings is meant to."""
    for provider, one in config.providers.items():
        if one.speaks and not set(TRANSLATED_TO).intersection(one.speaks) and one.speaks != ["openai_embeddings"]:
            which = f"nothing is translated to {' or '.join(one.speaks)}; requests in other dialects are refused there, unless it speaks"
            yield f"providers.{provider}.speaks: {which} one of {', '.join(TRANSLATED_TO)} as well"


def _admin(config: schema.Config) -> Iterator[str]:
    if config.admin.key is not None:
        yield "admin.key: the key itself is in the file; better name the variable that has it as key_env"
    if config.admin.chaos:
        yield "admin.chaos: is on; who has the admin key can make deployments fail for a time"
    where, address = ("server", config.server.address) if config.admin.address is None else ("admin", config.admin.address)
    if not address.on_loopback and config.admin.metrics_key is None:
        yield f"{where}.listen: others than this machine can connect, so /metrics answers nobody; give admin.metrics_key_env to open it"


def _own_records(config: schema.Config) -> Iterator[str]:
    if config.ledger.startswith("redis") and config.records.startswith("sqlite:"):
        yield "records: a file of this machine beside a ledger that others may share; a replica with other records is refused at its start"


def _long_waits(config: schema.Config) -> Iterator[str]:
    """A wait that a stopping server cuts."""
    if config.budget.queue.max_wait_ms > config.server.drain_ms:
        yield "budget.queue.max_wait: is longer than server.drain, so that a stopping server ends waits early"


def _log(config: schema.Config) -> Iterator[str]:
    """A file that can never be written to, whatever the disk does."""
    if config.log.requests is None or config.log.requests.to == "stdout":
        return
    file = pathlib.Path(config.log.requests.to)
    if file.is_dir():
        yield f"log.requests.to: {file} is a directory, so that no request is logged; give the path of a file"
    for above in file.parents:
        if above.exists():
            if not above.is_dir():
                yield f"log.requests.to: {above} is no directory, so that no request is logged"
            return


def _unpriced(policy: Policy) -> Iterator[str]:
    """A model without a price under a dollar limit."""
    for deployment_id in dict.fromkeys(one.id for one in _all_deployments(policy) if one.price is None):
        _, keys = _reaching(policy, deployment_id)
        bound = [key.id for key in keys if any(counter.unit is Unit.USD and counter.enforced for counter in key.counters)]
        if bound:
            then = "are refused" if policy.unpriced == "refuse" else "count as free"
            yield f"{deployment_id} has no price, but {_some(bound)} {_have(bound)} a dollar limit: their requests there {then} (prices.unpriced)"


def oversubscribed(policy: Policy) -> Iterator[str]:
    """The deployments whose own limits are less than what the keys that can reach them may ask of them together."""
    for deployment in {one.id: one for one in _all_deployments(policy)}.values():
        models, keys = _reaching(policy, deployment.id)
        for counter in deployment.counters:
            if not counter.enforced:
                continue
            unit, text = counter.unit.replace("_", " "), next(limit.text for limit in counter.limits if not limit.shadow)
            most = _together(keys, 0, counter, models)
            if most is None:
                unbound = [key.id for key in keys if all(_let_through(key, scope, counter, models) is None for scope in key.path)]
                yield f"{deployment.id} has {text}, but {_some(unbound)} {_have(unbound)} no limit on {unit}"
            elif most > counter.amount:
                per = "" if isinstance(counter.window, Open) else f"/{show_window(counter.window)}"
                asked = show_amount(counter.unit, most) + ("" if counter.unit is Unit.USD else f" {unit}") + per
                yield f"{deployment.id} has {text}, but the keys that can reach it may ask for {asked} together"


def _together(keys: Sequence[Key], depth: int, counter: Counter, models: frozenset[str]) -> int | None:
    """The most that keys may take within one window of `counter`, each scope being bound by its own limits too. None: any amount."""
    scopes: dict[Scope, list[Key]] = {}
    for key in keys:
        scopes.setdefault(key.path[depth], []).append(key)
    total = 0
    for scope, below in scopes.items():
        own = _let_through(below[0], scope, counter, models)
        inner = None if scope.kind == "key" else _together(below, depth + 1, counter, models)
        if own is None and inner is None:
            return None
        total += min(one for one in (own, inner) if one is not None)
    return total


def _let_through(key: Key, scope: Scope, counter: Counter, models: frozenset[str]) -> int | None:
    """What the limits of one scope on a key's path let through within one window of `counter`. None: any amount."""
    length_ms = _length_ms(counter)
    own = (one for one in key.counters if one.scope == scope and one.unit is counter.unit and one.enforced)
    same = (one for one in own if one.models is None or models <= one.models)
    return min((_within(one, length_ms) for one in same), default=None)


def _within(counter: Counter, length_ms: int | None) -> int:
    """The most that one counter lets through within a length of time, a bucket's burst left aside. A longer window may be used up at once."""
    own_ms = _length_ms(counter)
    if length_ms is not None and own_ms is not None and (own_ms < length_ms or isinstance(counter.window, Bucket)):
        return counter.amount * length_ms // own_ms
    return counter.amount


def _length_ms(counter: Counter) -> int | None:
    """None: has no length (a lifetime, what is in flight)."""
    match counter.window:
        case Bucket(period_ms=period_ms) | Sliding(period_ms=period_ms) | Fixed(period_ms=period_ms):
            return period_ms
        case Calendar(every=every):
            return _LENGTHS_MS[every]
    return None


def _shadows(policy: Policy) -> Iterator[str]:
    """Limits that protect nothing."""
    own = (counter for deployment in _all_deployments(policy) for counter in deployment.counters)
    for counter in {counter.key_prefix: counter for counter in (*_counters(policy), *own)}.values():
        for limit in counter.limits:
            if limit.shadow:
                yield f"{scope_name(counter.scope)}: {limit.text} is in mode shadow: it counts and reports, and does not protect"


def _some(ids: Sequence[str]) -> str:
    return ", ".join(ids[:3]) + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")


def _have(ids: Sequence[str]) -> str:
    return "has" if len(ids) == 1 else "have"
