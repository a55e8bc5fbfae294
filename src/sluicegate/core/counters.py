"""Counters: what limits of equal identity count in, and where each is kept at a given time.

A counter is identified by scope, unit, model filter and window (kind, length, zone, anchor), never by the amount: changing an amount keeps the count.
Its storage key is `sg1:{<tree>}:c:<scope>:<unit>:<window>[:<models>][:<label>]`. No part contains a colon or a brace (`quote`), so two counters
never share a key; the key's text is the counter's identity: reordering its parts would reset every counter.

Enforced and shadow limits of equal identity share their counter, except buckets: a bucket is counted by its refill, which is a limit's own.
"""

import string
from collections.abc import Iterable, Mapping, Sequence
from math import gcd

import msgspec

from sluicegate.core.book import SLICES
from sluicegate.core.claims import Ref, RefSet
from sluicegate.core.limits import WHOLE, Limit, Unit, show_period, show_window
from sluicegate.core.tenants import NO_CEILING, Counter, Scope
from sluicegate.core.windows import Bucket, Calendar, Fixed, Lifetime, Open, Sliding, Window, span

NEVER_MS = 2**62
_PLAIN = frozenset(string.ascii_letters + string.digits + "._-@/+*=~")


def quote(name: str) -> str:
    """A name as a part of a storage key: other characters than letters, digits and `._-@/+*=~` percent-encoded."""
    if _PLAIN.issuperset(name):
        return name
    return "".join(char if char in _PLAIN else "".join(f"%{byte:02X}" for byte in char.encode()) for char in name)


def deployment_tree(deployment_id: str) -> str:
    """The tree of a deployment's own limits: their holds are apart from any tenant's (no organization's name contains a slash)."""
    return f"d/{quote(deployment_id)}"


# -- identity -----------------------------------------------------------------------------------------------------------------------------


def group(tree: str, scope: Scope, limits: Iterable[Limit]) -> tuple[Counter, ...]:
    """The counters of one scope, in the order in which its limits first name them.

    Several limits on one counter bind together: the smallest ceiling, and for a bucket also the smallest refill.
    """
    groups: dict[str, list[Limit]] = {}
    for limit in limits:
        groups.setdefault(_key_prefix(tree, scope, limit), []).append(limit)
    return tuple(_counter(scope, same, key_prefix) for key_prefix, same in groups.items())


def _counter(scope: Scope, same: list[Limit], key_prefix: str) -> Counter:
    enforced = [limit for limit in same if not limit.shadow]
    return Counter(
        scope=scope,
        unit=same[0].unit,
        window=same[0].window,
        models=same[0].models,
        ceiling=min((limit.size for limit in enforced), default=NO_CEILING),
        amount=min(limit.amount for limit in enforced or same),
        limits=tuple(same),
        key_prefix=key_prefix,
    )


def _key_prefix(tree: str, scope: Scope, limit: Limit) -> str:
    models = "" if limit.models is None else ":" + ",".join(sorted(quote(name) for name in limit.models))
    return f"sg1:{{{tree}}}:c:{quote(scope.id)}:{limit.unit}:{_window_part(limit.window, limit.shadow)}{models}"


def _window_part(window: Window, shadow: bool) -> str:
    match window:
        case Bucket(period_ms=period_ms):
            return f"{'shadow-' if shadow else ''}bucket-{show_period(period_ms)}"
        case Sliding(period_ms=period_ms):
            return f"sliding-{show_period(period_ms)}"
        case Fixed(period_ms=period_ms):
            return f"fixed-{show_period(period_ms)}"
        case Calendar(every=every, tz=tz, at=at):
            zone = f"@{quote(tz)}" if tz != "UTC" else ""
            return every + zone + (f",{at.replace(':', '.').replace(' ', '_')}" if at else "")
        case Lifetime():
            return "lifetime"
        case Open():
            return "open"


def identity(counter: Counter) -> str:
    """What a counter is known by wherever it is kept: `acme/team-a:usd:month`, `deployment:openai/gpt-4o-mini:requests:bucket-minute`."""
    known_by = counter.key_prefix.partition("}:c:")[2]
    return f"deployment:{known_by}" if counter.scope.kind == "deployment" else known_by


# -- at a time ----------------------------------------------------------------------------------------------------------------------------


def refs(tree: str, counters: Sequence[Counter], now_ms: int, priority: str | None = None) -> RefSet:
    """The counters in their windows of `now_ms` (ledger time), in the given order, as they are for a claimant of this priority.

    Good until `valid_until_ms`.
    """
    return RefSet(tree, [ref(counter, now_ms, priority) for counter in counters], counters)


def ref(counter: Counter, now_ms: int, priority: str | None = None) -> Ref:
    """One counter in its window of `now_ms`."""
    window, ceiling = counter.window, counter.ceiling
    reserved = ceiling - room(counter, priority)
    if isinstance(window, Bucket):
        # A ceiling of 0 admits nothing; its refill then only keeps the arithmetic defined.
        common = gcd(counter.amount, window.period_ms) if counter.amount else window.period_ms
        gain, per_ms = counter.amount // common or 1, window.period_ms // common
        return Ref(counter.key_prefix, "b", ceiling, gain=gain, per_ms=per_ms, reserved=reserved)
    if isinstance(window, Sliding):
        return Ref(counter.key_prefix, "s", ceiling, per_ms=-(-window.period_ms // SLICES), reserved=reserved)
    if isinstance(window, Open):
        return Ref(counter.key_prefix, "o", ceiling, reserved=reserved)
    now = span(window, now_ms)
    key = f"{counter.key_prefix}:{now.label}" if now.label else counter.key_prefix
    return Ref(key, "w", ceiling, now.start_ms, now.end_ms, reserved=reserved, marks=tuple(sorted({mark.amount for mark in marks(counter)})))


def room(counter: Counter, priority: str | None) -> int:
    """What a claimant of this priority may use of a counter: every enforced limit of it, less its reserve. NO_CEILING: any amount."""
    return min((limit.room(priority) for limit in counter.limits if not limit.shadow), default=NO_CEILING)


def shadow_room(counter: Counter, priority: str | None) -> int:
    """What a claimant of this priority might use if the shadow limits of a counter were enforced. NO_CEILING: there are none."""
    return min((limit.room(priority) for limit in counter.limits if limit.shadow), default=NO_CEILING)


class Mark(msgspec.Struct, frozen=True):
    """An amount of `used` that is worth a warning, once per window."""

    amount: int
    share: int  # of the limit's amount, in millionths
    limit: Limit


def marks(counter: Counter) -> list[Mark]:
    """All marks of a counter's limits. Of marks that small amounts let fall together the highest stands. A limit of 0 has none."""
    found: list[Mark] = []
    for limit in counter.limits:
        shares = {-(-limit.amount * share // WHOLE): share for share in limit.warn_at or () if limit.amount}
        found += [Mark(amount, share, limit) for amount, share in shares.items()]
    return found


def lowest_mark(counter: Counter) -> int:
    """From which amount on a limit of a counter that binds is warned about; 0: none is."""
    return min((mark.amount for mark in marks(counter) if not mark.limit.shadow), default=0)


def valid_until_ms(counters: Sequence[Counter], now_ms: int) -> int:
    """When the first of their windows ends; NEVER_MS if none does."""
    spans = (span(counter.window, now_ms) for counter in counters if isinstance(counter.window, Calendar | Fixed))
    return min((one.end_ms for one in spans), default=NEVER_MS)


def of_key(key: str, known: Mapping[str, Counter]) -> Counter | None:
    """Of counters by their key_prefix, the one that a storage key belongs to."""
    return known.get(key) or known.get(key.rpartition(":")[0])


# -- in words -----------------------------------------------------------------------------------------------------------------------------


def scope_name(scope: Scope) -> str:
    """`key tight`, `organization acme`; limits on everyone together are `global`."""
    return "global" if scope.kind == "global" else f"{scope.kind.replace('_', ' ')} {scope.name}"


def label(counter: Counter) -> str:
    """A counter without its owner's name, for metrics: `key tokens/minute`."""
    return f"{counter.scope.kind} {_what(counter)}"


def name(counter: Counter) -> str:
    """A counter in words, for messages and `x-sluicegate-limited-by`: `key tight tokens/minute`, `team ml usd/month [chat]`."""
    models = "" if counter.models is None else f" [{', '.join(sorted(counter.models))}]"
    return f"{scope_name(counter.scope)} {_what(counter)}{models}"


def _what(counter: Counter) -> str:
    return counter.unit + ("" if counter.unit is Unit.CONCURRENT else f"/{show_window(counter.window)}")
