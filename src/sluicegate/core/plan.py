"""The plan of one request: which counters bind it and what it claims of each, at the price of one deployment (ledger.md 2 and 8).

Everything that does not depend on the request is worked out once per (key, model) and kept in a `Template`; a request then costs a few
integer sums and one `itemgetter`. Pure and sync.
"""

from collections.abc import Callable, Sequence
from operator import itemgetter

import msgspec

from sluicegate.core import cache_key
from sluicegate.core import counters as counting
from sluicegate.core.claims import RefSet
from sluicegate.core.estimate import Figures
from sluicegate.core.limits import Priority, Unit
from sluicegate.core.prices import Price, input_cost_nano_usd
from sluicegate.core.tenants import NO_CEILING, Caching, Counter, Deployment, Key, Model
from sluicegate.core.usage import Charge

PLANS_MAX = 20_000
CACHE = "cache"  # what answers from the cache have in the place of a deployment; no deployment is called so

_FREE = Price(0, 0)


def held_price(price: Price | None, figures: Figures) -> Price | None:
    """The price whose dearest rates hold whatever a request of these figures can cost."""
    if price is None or (price.plain and not figures.priced):
        return price
    most = price.marked(figures.marks).within(max(figures.input_bound, figures.input_estimate))
    return msgspec.structs.replace(most, request_fee=most.request_fee + figures.fees_nano_usd) if figures.fees_nano_usd else most


# Where each figure stands in the row that `amounts` picks from.
_ZERO, _REQUESTS, _ONE, _ESTIMATE, _BOUND, _AIM, _MILLI, _ESTIMATE_AND_AIM, _USD_WITH_AIM, _USD_FIXED, _USD_RATE = range(11)
_CLAIM = {  # unit -> (fixed, rate) on windows that refill, (fixed, rate) on all others
    Unit.REQUESTS: ((_REQUESTS, _ZERO), (_REQUESTS, _ZERO)),
    Unit.CONCURRENT: ((_ONE, _ZERO), (_ONE, _ZERO)),
    Unit.INPUT_TOKENS: ((_ESTIMATE, _ZERO), (_BOUND, _ZERO)),
    Unit.OUTPUT_TOKENS: ((_AIM, _ZERO), (_ZERO, _MILLI)),
    Unit.TOKENS: ((_ESTIMATE_AND_AIM, _ZERO), (_BOUND, _MILLI)),
    Unit.USD: ((_USD_WITH_AIM, _ZERO), (_USD_FIXED, _USD_RATE)),
}
_TOKENS = (Unit.TOKENS, Unit.INPUT_TOKENS, Unit.OUTPUT_TOKENS)
_USED = {Unit.REQUESTS: 1, Unit.CONCURRENT: 0, Unit.INPUT_TOKENS: 2, Unit.OUTPUT_TOKENS: 3, Unit.TOKENS: 4, Unit.USD: 5}


def refills(counter: Counter) -> bool:
    """Whether room comes back with time."""
    return counter.limits[0].refills


def _picker(indices: Sequence[int]) -> Callable[[tuple[int, ...]], tuple[int, ...]]:
    """`itemgetter` that always answers a tuple."""
    if not indices:
        return lambda _row: ()
    if len(indices) == 1:
        only = indices[0]
        return lambda row: (row[only],)
    return itemgetter(*indices)


class Template:
    """The counters that bind one key (or one deployment) for one model, with what a request claims of each.

    `sizes`, `shadows`, `shown` and `marked` say what is looked at where: in `fit`, in a grant, in the headers on remaining room and on budgets that
    are nearly used.
    """

    __slots__ = (
        *("_claims", "has_usd", "_priority", "_refset", "_used", "_valid_until_ms"),
        *("counters", "heads", "least_tokens", "least_usd", "marked", "needs_price", "shadows", "shown", "sizes", "told", "tree"),
    )

    def __init__(self, tree: str, counters: Sequence[Counter], model: str | None, priority: Priority | None = None) -> None:
        """model None: the counters of every model. priority: the claimant's."""
        self.tree = tree
        self.counters = tuple(c for c in counters if c.models is None or model is None or model in c.models)
        self.has_usd = any(c.unit is Unit.USD for c in self.counters)
        self.needs_price = any(c.unit is Unit.USD and c.enforced for c in self.counters)
        enforced = [(i, c, counting.room(c, priority)) for i, c in enumerate(self.counters) if c.enforced]
        self.sizes = tuple((c, _SIZES[c.unit][0 if refills(c) else 1], refills(c), room) for _, c, room in enforced)
        # Of an empty window or bucket. A limit that counts requests has room for one, unless it has none.
        self.least_usd = min((room for _, c, room in enforced if c.unit is Unit.USD), default=NO_CEILING)
        self.least_tokens = min((room for _, c, room in enforced if c.unit in _TOKENS or (room < 1 and c.unit is not Unit.USD)), default=NO_CEILING)
        shown = [(unit, tuple((i, room, c.limits[0].spends) for i, c, room in enforced if c.unit is unit)) for unit in (Unit.REQUESTS, Unit.TOKENS)]
        self.shown = tuple((n, limits) for n, (_, limits) in enumerate(shown) if limits)
        shadows = [(i, counting.shadow_room(c, priority)) for i, c in enumerate(self.counters)]
        self.shadows = tuple((i, room) for i, room in shadows if room < NO_CEILING)
        lowest = [(i, counting.lowest_mark(c)) for i, c, _ in enforced]
        self.heads: dict[int, bytes] = {}  # of headers that warn, by index
        self.marked = tuple((i, mark, self.counters[i].amount) for i, mark in lowest if mark)  # those that warn: from where on, and their amounts
        self._claims = _picker([i for c in self.counters for i in _CLAIM[c.unit][0 if refills(c) else 1]])
        self._used = _picker([_USED[c.unit] for c in self.counters])
        self._priority = priority
        self._refset: RefSet | None = None
        self._valid_until_ms = 0
        self.told: tuple[tuple[int, int], ...] = ()  # how a ledger last said that the counters stand; () if it has not, in their present windows

    def refset(self, now_ms: int) -> RefSet:
        """The counters in the windows of `now_ms` (ledger time); one object for as long as no window ends."""
        if self._refset is None or now_ms >= self._valid_until_ms:
            self._refset, self.told = counting.refs(self.tree, self.counters, now_ms, self._priority), ()
            self._valid_until_ms = counting.valid_until_ms(self.counters, now_ms)
        return self._refset

    def recompute(self) -> None:
        """The ledger said that a window is stale: the next `refset` is built anew."""
        self._refset = None

    def amounts(self, figures: Figures, price: Price | None, requests: int) -> tuple[int, ...]:
        """Flat (fixed, rate) per counter. requests: 0 for an attempt after one that was charged, else 1."""
        if not self.has_usd:
            usd_with_aim = usd_fixed = usd_rate = 0
        else:
            price = price or _FREE
            usd_rate = price.dearest_output
            usd_fixed = input_cost_nano_usd(price, figures.input_bound)
            usd_with_aim = input_cost_nano_usd(price, figures.input_estimate) - (-usd_rate * figures.aim // 1000)
        estimate, bound, aim = figures.input_estimate, figures.input_bound, figures.aim
        return self._claims((0, requests, 1, estimate, bound, aim, 1000, estimate + aim, usd_with_aim, usd_fixed, usd_rate))

    def usd_rate(self, price: Price | None) -> int:
        """Thousandths of a nano-USD per output token, where a dollar limit applies."""
        return price.dearest_output if self.has_usd and price is not None else 0

    def used(self, charge: Charge, requests: int) -> tuple[int, ...]:
        """What `charge` is on each counter."""
        total = charge.input_tokens + charge.output_tokens
        return self._used((0, requests, charge.input_tokens, charge.output_tokens, total, charge.cost_nano_usd))


class TooLarge(msgspec.Struct):
    """No window of this counter, even empty, holds what the request needs."""

    counter: Counter
    requested: int
    fits_output_tokens: int  # per request; negative when not even the input fits
    reserved: int  # of the counter, kept from this claimant


def fit(template: Template, figures: Figures, price: Price | None, client_cap: bool) -> TooLarge | None:
    """Checks a request against the sizes of its limits, before any ledger is asked.

    A client that named its own cap is told when a refilling limit can never hold the claim with that cap. For one that named none, `want` and
    `aim` are lowered in place to what the smallest refilling limit can hold.
    """
    most = want = figures.want
    tokens = want + figures.input_bound + figures.input_estimate  # more than either claims
    cost = 0 if price is None else tokens * (price.dearest_input + price.dearest_output) // 1000 + price.request_fee
    if tokens < template.least_tokens and cost < template.least_usd:
        return None  # the usual case: the whole request is nothing to any limit
    for counter, pick, refilling, room in template.sizes:
        fixed, rate = pick(figures, price)
        floor = want if client_cap and refilling else figures.need
        if fixed - (-rate * floor // 1000) > room:
            fits = (room - fixed) * 1000 // rate if rate and fixed <= room else -1
            return TooLarge(counter, fixed - (-rate * floor // 1000), fits, counter.ceiling - room)
        if refilling and fixed - (-rate * most // 1000) > room:
            most = (room - fixed) * 1000 // rate
    if most < want:
        figures.want = most
        figures.aim = min(figures.aim, most)
    return None


# What a request takes from a counter before its output is decided: (fixed, rate). Refilling counters count the estimate, others the bound.

Size = Callable[[Figures, Price | None], tuple[int, int]]


def _one(_figures: Figures, _price: Price | None) -> tuple[int, int]:
    return 1, 0


def _output(_figures: Figures, _price: Price | None) -> tuple[int, int]:
    return 0, 1000


def _usd(price: Price | None, input_tokens: int) -> tuple[int, int]:
    price = price or _FREE
    return input_cost_nano_usd(price, input_tokens), price.dearest_output


_SIZES: dict[Unit, tuple[Size, Size]] = {  # on windows that refill, on all others
    Unit.REQUESTS: (_one, _one),
    Unit.CONCURRENT: (_one, _one),
    Unit.INPUT_TOKENS: (lambda figures, _: (figures.input_estimate, 0), lambda figures, _: (figures.input_bound, 0)),
    Unit.OUTPUT_TOKENS: (_output, _output),
    Unit.TOKENS: (lambda figures, _: (figures.input_estimate, 1000), lambda figures, _: (figures.input_bound, 1000)),
    Unit.USD: (lambda figures, price: _usd(price, figures.input_estimate), lambda figures, price: _usd(price, figures.input_bound)),
}


class Plan:
    """What is known of a request before any attempt: who asks, for what, under which counters."""

    __slots__ = ("cache", "key", "model", "rules", "template")

    def __init__(self, key: Key, model: Model, template: Template, cache: "CachePlan | None" = None) -> None:
        self.key = key
        self.model = model
        self.template = template
        self.cache = cache  # None: off
        self.rules = key.rules  # None: there are none


class CachePlan:
    """What the cache needs to know of one key and one model: how keys of answers begin, and what an answer from the cache counts against.

    plan: of its hold, which is that of a call at `deployment`, for nothing, with limits on requests alone. places: of its counters among all those of
    the key. all_told: they are all that clients are told of.
    """

    __slots__ = ("all_told", "caching", "deployment", "places", "plan", "prefix", "shaping")

    def __init__(self, key: Key, model: Model, caching: Caching, template: Template, rules: bytes) -> None:
        self.caching = caching
        self.prefix = cache_key.prefix(key, model, caching, rules)
        self.shaping = cache_key.shaping_headers(model)
        self.deployment = msgspec.structs.replace(model.deployments[0], id=CACHE, counters=(), price=_FREE, extend=False, visible=False)
        requests = Template(key.tree, [one for one in key.counters if one.unit is Unit.REQUESTS], model.name, key.priority)
        self.plan = Plan(key, model, requests)
        self.places = tuple(template.counters.index(one) for one in requests.counters)
        self.all_told = requests.counters == template.counters or not (template.shown or template.marked)


class Plans:
    """Templates, built when first needed. What is kept is of this very key, model or deployment: a request that began under an earlier policy gets
    the limits of that one, and no later request does."""

    def __init__(self) -> None:
        self._of_key: dict[tuple[str, str], Plan] = {}
        self._of_deployment: dict[tuple[str, Priority | None], tuple[tuple[Counter, ...], Template]] = {}

    def of(self, key: Key, model: Model) -> Plan:
        """The plan of a key for a model."""
        plan = self._of_key.get((key.id, model.name))
        if plan is None or plan.key is not key or plan.model is not model:
            if len(self._of_key) >= PLANS_MAX:
                self._of_key.clear()
            template = Template(key.tree, key.counters, model.name, key.priority)
            digest = key.rules.digest if key.rules is not None else b""
            cache = CachePlan(key, model, model.cache, template, digest) if model.cache is not None and key.cached else None
            plan = self._of_key[key.id, model.name] = Plan(key, model, template, cache)
        return plan

    def of_deployment(self, deployment: Deployment, priority: Priority | None) -> Template:
        """The template of a deployment's own limits, for callers of one priority."""
        of, template = self._of_deployment.get((deployment.id, priority), (None, None))
        if template is None or of is not deployment.counters:
            template = Template(counting.deployment_tree(deployment.id), deployment.counters, None, priority)
            self._of_deployment[deployment.id, priority] = deployment.counters, template
        return template
