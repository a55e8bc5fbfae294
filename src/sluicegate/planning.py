"""What would happen to a request now, without sending it or taking anything from a limit: behind `sluicegate plan` and `POST /admin/v1/plan`.

The same steps as gateway.serve takes, against a copy of the counters: the states are read from the ledger and the rules are run on them here. What
only a running worker knows (breakers, cooldowns, health, what is in its cache) is told where there is one, and `unknown` where there is not.

Invariant: nothing is called, held, learned or changed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec

from sluicegate import reject, ruling
from sluicegate.config.check import show_origin
from sluicegate.core import cache_key, refusals, rules
from sluicegate.core.book import SLICES, Counter, amount
from sluicegate.core.cache import Entry
from sluicegate.core.claims import Admission, Ref, RefSet, Reply
from sluicegate.core.content_rules import Rules
from sluicegate.core.counters import name
from sluicegate.core.estimate import Figures, Learned
from sluicegate.core.limits import Unit
from sluicegate.core.plan import CachePlan, Plan, Plans, Template, fit, held_price
from sluicegate.core.prices import Price, input_cost_nano_usd
from sluicegate.core.redact import How, logged_prompt, rules_of
from sluicegate.core.refusals import Refusal
from sluicegate.core.tenants import Deployment, Key, Policy
from sluicegate.dialects import anthropic_messages, openai_chat, openai_completions, openai_embeddings, openai_responses
from sluicegate.dialects.form import BadRequest, Request
from sluicegate.ledger.contract import Ledger
from sluicegate.ledger.memory_book import MemoryBook
from sluicegate.pricing import price_of
from sluicegate.reject import Reject
from sluicegate.standings import Standings
from sluicegate.trip import Dialect

DIALECTS: dict[str, Dialect] = {  # that clients speak, by the last words of their paths
    "chat": openai_chat,
    "completions": openai_completions,
    "embeddings": openai_embeddings,
    "messages": anthropic_messages,
    "responses": openai_responses,
}
UNKNOWN = "unknown"
WHY_NOT_CACHED = {
    "no-store": "the client says that it is not to be kept",
    "no-cache": "the client asks for a new answer",
    "choices": "it asks for more than one answer",
    "sampling": "its answer is drawn by chance (no temperature of 0), which this mode leaves out",
    "unbounded": "the provider reads or runs what is not in the request",
    "body": "its body cannot be written canonically",
}


class Claim(msgspec.Struct):
    """What the request would take from one limit. Dollars are nano-USD."""

    limit: str
    unit: Unit
    takes: int
    used: int
    held: int
    of: int


class Place(msgspec.Struct):
    """A deployment of the route, as a worker sees it. cooldown_s: for which it is left alone; full: its own limit that has no room."""

    id: str
    breaker: str = UNKNOWN
    cooldown_s: float | None = None
    health: str = UNKNOWN
    full: str = ""


class Report(msgspec.Struct):
    """What would happen, in the order in which it is told."""

    key: str
    path: list[str]
    allowed: bool
    status: int = 200
    code: str = ""
    message: str = ""
    retry_after_s: int | None = None
    limited_by: str = ""
    rules: list[str] = []  # content rules that bind it, in words
    acted: list[str] = []  # names of banned phrases that it has
    changed: list[str] = []  # parameters that rules set otherwise
    request: str = ""  # as rules make it, masked; empty if they leave it as it is
    cache: str = "off"  # hit, miss, skip; look up: it would be, in a cache that is a running gateway's
    cache_why: str = ""
    deployments: list[Place] = []
    deployment: str = ""  # that would be asked first, or refused last
    input_tokens: int = 0
    output_tokens: int = 0
    claims: list[Claim] = []
    grant: int = 0
    cost_at_most_nano_usd: int | None = None  # None: no price, or refused
    price: str = ""  # where the price is from, and of when
    affordable_output_tokens: int = 0
    prompt: str = ""  # as the request log would have it


class Logged(msgspec.Struct):
    """How a log has prompts (`log:`)."""

    how: How
    patterns: tuple[tuple[str, str], ...]


class Running(msgspec.Struct):
    """What a running worker knows beside its configuration and its ledger. cached: the answer that its cache has under a key."""

    standings: Standings
    health: Callable[[str], str]
    cached: Callable[[bytes], Awaitable[Entry | None]]
    clock: Callable[[], float]


class Planner:
    """Of one policy and the ledger that counts for it."""

    def __init__(
        self,
        policy: Policy,
        ledger: Ledger,
        learned: Learned,
        plans: Plans,
        logged: Logged,
        learn: Callable[[], Awaitable[None]],
        running: Running | None = None,
    ) -> None:
        """learn: takes up what others have learned, of what was asked for (core/learned.py)."""
        self._policy = policy
        self._ledger = ledger
        self._learned = learned
        self._plans = plans
        self._logged = logged
        self._learn = learn
        self._running = running

    async def report(self, key: Key, dialect: Dialect, request: Request, size: int, headers: Mapping[bytes, bytes]) -> Report:
        """What would happen to this request of this key. size: of its body. Raises LedgerUnavailable."""
        report, policy = Report(key.id, [scope.name for scope in key.path], False), self._policy
        model = policy.models.get(request.model)
        if model is None or (key.models is not None and model.name not in key.models):
            report.status, report.code = 404, "model_not_found"
            report.message = f"The model {request.model!r} does not exist or this key may not use it."
            return report
        plan = self._plans.of(key, model)
        report.deployments = [self._place(one) for one in model.deployments]
        try:
            request = await self._ruled(report, plan, dialect, request, size)
            if not await self._from_cache(report, plan, dialect.NAME, request, headers):
                await self._route(report, plan, request)
        except BadRequest as error:  # well formed, but nothing that could be held for it
            report.status, report.code, report.message = 400, error.code or "invalid_request", error.message
        except Reject as rejected:
            _rejected(report, rejected)
        await asyncio.to_thread(self._mask, report, request)  # takes a while where it is long
        return report

    # -- content rules and logs -----------------------------------------------------------------------------------------------------------

    async def _ruled(self, report: Report, plan: Plan, dialect: Dialect, request: Request, size: int) -> Request:
        """The request as content rules make it. Raises Reject, BadRequest."""
        rules = plan.rules
        if rules is None:
            return request
        report.rules = [line for each in rules.chain for line in said(each)]
        trip: Any = SimpleNamespace(dialect=dialect, policy=self._policy, include=frozenset(), acted=set(), changed=[])
        try:
            ruled = await ruling.ask(trip, plan, rules, request, size, self._learned)
        finally:
            report.acted, report.changed = sorted(trip.acted), list(trip.changed)
        if ruled is not request:
            report.request = msgspec.json.encode(ruled.fields).decode()
        return ruled

    def _mask(self, report: Report, request: Request) -> None:
        """What is told of texts, without what must not be."""
        rules = rules_of(self._logged.patterns)
        told = logged_prompt(request.texts, self._logged.how, rules)
        report.prompt = str(told["text"]) if "text" in told else f"sha256 {told['sha256']}, {told['characters']} characters"
        if report.request:
            report.request = str(logged_prompt([report.request], "redacted", rules)["text"])

    # -- the cache ------------------------------------------------------------------------------------------------------------------------

    async def _from_cache(self, report: Report, plan: Plan, dialect: str, request: Request, headers: Mapping[bytes, bytes]) -> bool:
        """Whether it has the answer: then that counts as a request, and nothing else."""
        cached = plan.cache
        if cached is None:
            report.cache_why = "the model has no cache"
            return False
        why, body = cache_key.decide(cached.caching, dialect, request, headers.get(b"cache-control", b""))
        if why:
            report.cache, report.cache_why = "skip", f"{why}: {WHY_NOT_CACHED[why]}"
            return False
        scope = f"mode {cached.caching.mode}, shared by {cached.caching.scope}"
        if self._running is None:
            report.cache, report.cache_why = "look up", f"{scope}; what is kept a running gateway knows"
            return False
        entry = await self._running.cached(cache_key.digest(cached.prefix, dialect, headers, cached.shaping, body))
        report.cache, report.cache_why = "hit" if entry is not None else "miss", scope
        if entry is not None:
            await self._hit(report, cached, request)
        return entry is not None

    async def _hit(self, report: Report, cached: CachePlan, request: Request) -> None:
        nothing = msgspec.structs.replace(request, cap=0, texts=[], messages=0, images=0, prediction="", tokens=0, stream=False)
        await self._attempt(report, cached.plan, cached.deployment, nothing)

    # -- the route ------------------------------------------------------------------------------------------------------------------------

    def _place(self, deployment: Deployment) -> Place:
        if self._running is None:
            return Place(deployment.id)
        standing, left_s = self._running.standings.of(deployment.id), self._left_alone_s(deployment)
        return Place(deployment.id, standing.state, round(left_s, 3) if left_s else None, self._running.health(deployment.id))

    def _left_alone_s(self, deployment: Deployment) -> float:
        running = self._running
        return running.standings.of(deployment.id).ready_in_s(running.clock()) if running is not None else 0.0

    async def _route(self, report: Report, plan: Plan, request: Request) -> None:
        """Tries the deployments in order as the gateway would, until one is allowed or the refusal holds everywhere."""
        order: Sequence[Deployment] = plan.model.deployments
        if self._running is not None:
            order = self._running.standings.healthy_first(order)
        asked = [one for one in order if not self._left_alone_s(one)]
        if not asked and self._running is not None:
            _rejected(report, self._running.standings.nowhere(order, None))
        for deployment in asked:
            self._learned.figures(request, plan.model, deployment, plan.key, self._policy.budget)  # names the shared tables that it needs
            await self._learn()
            refusal = await self._attempt(report, plan, deployment, request)
            if report.allowed or (refusal is not None and refusal.counter.unit is not Unit.USD and refusal.counter.models is None):
                return

    async def _attempt(self, report: Report, plan: Plan, deployment: Deployment, request: Request) -> Refusal | None:
        """Asks for one call at one deployment. The limit of the key that refuses it, if one does."""
        policy, template = self._policy, plan.template
        figures = self._learned.figures(request, plan.model, deployment, plan.key, policy.budget)
        report.deployment = deployment.id
        report.price = show_origin(deployment.price_origin)
        report.input_tokens, report.output_tokens = figures.input_estimate, figures.aim
        try:
            price = deployment.price
            if price is None or request.tariff or request.hosted or not price.plain:
                price = price_of(policy, deployment, plan, request)
        except Reject as rejected:
            _rejected(report, rejected)
            return None
        price = held_price(price, figures)
        if not await self._has_room(report, deployment, plan, figures, price):
            return None
        refset = template.refset(self._ledger.now_ms())
        states = await self._ledger.peek(refset)
        misfit = fit(template, figures, price, request.cap is not None)
        amounts = template.amounts(figures, price, 1)
        if misfit is not None:
            report.claims = _claims(template, refset, states, amounts, figures.need)
            show = policy.budget.show_figures
            return _refused(report, refusals.too_large(misfit.counter, misfit.requested, misfit.fits_output_tokens, misfit.reserved, show))
        aim = figures.aim if request.stream and deployment.extend else figures.want
        reply = _admit(refset, states, Admission("plan", refset, amounts, figures.need, aim, figures.want, policy.budget.hold_ttl_ms, "plan"))
        rate = price.dearest_output if price is not None else 0
        report.affordable_output_tokens = refusals.affordable_output_tokens(
            template.counters, refset, amounts, figures.want, states.states, aim=figures.aim, usd_rate=rate
        )
        report.grant = reply.g
        report.claims = _claims(template, refset, states, amounts, reply.g or figures.need)
        if reply.status != "granted":
            told: Any = {"aim": figures.aim, "usd_rate": rate, "show_figures": policy.budget.show_figures}
            return _refused(report, refusals.explain(template.counters, refset, amounts, figures.need, figures.want, reply, **told))
        report.allowed, report.status, report.code, report.message = True, 200, "", ""
        report.retry_after_s, report.limited_by = None, ""
        if price is not None:
            report.cost_at_most_nano_usd = input_cost_nano_usd(price, figures.input_bound) + amount(0, rate, reply.g)
        return None

    async def _has_room(self, report: Report, deployment: Deployment, plan: Plan, figures: Figures, price: Price | None) -> bool:
        """Whether the deployment's own limits let it through. Where they do not, the next one is asked."""
        if not deployment.counters:
            return True
        template, want = self._plans.of_deployment(deployment, plan.key.priority), figures.want
        refset, amounts = template.refset(self._ledger.now_ms()), template.amounts(figures, price, 1)
        states = await self._ledger.peek(refset)
        reply = _admit(refset, states, Admission("plan", refset, amounts, want, want, want, self._policy.budget.hold_ttl_ms, "plan"))
        if reply.status == "granted":
            return True
        refusal = refusals.explain(template.counters, refset, amounts, want, want, reply)
        next(place for place in report.deployments if place.id == deployment.id).full = refusal.name
        _rejected(report, reject.deployment_full(refusal))
        return False


def said(rules: Rules) -> Iterator[str]:
    """What one scope's content rules say, in words; texts by their length alone."""
    whose = "everybody" if rules.scope == "*" else rules.scope
    for what, text in (("system prompt", rules.system_prompt), ("disclaimer", rules.disclaimer)):
        if text:
            yield f"{whose}: a {what} of {len(text)} characters"
    for phrase in rules.banned:
        where = " and ".join(side for side, on in (("requests", phrase.input), ("answers", phrase.output)) if on)
        yield f"{whose}: {phrase.name} in {where}: {phrase.action}"
    for what, most in (("tokens", rules.max_input_tokens), ("bytes", rules.max_input_bytes)):
        if most:
            yield f"{whose}: at most {most} {what} of input"
    for what, values in (("is", rules.force), ("is at most", rules.ceilings)):
        yield from (f"{whose}: {name} {what} {msgspec.json.encode(value).decode()}" for name, value in values)


def _rejected(report: Report, rejected: Reject) -> None:
    report.status, report.code, report.message = rejected.status, rejected.code, rejected.message
    report.retry_after_s, report.limited_by = rejected.retry_after_s, ""


def _refused(report: Report, refusal: Refusal) -> Refusal:
    report.status, report.code, report.message = refusal.status, refusal.code, refusal.message
    report.retry_after_s, report.limited_by = refusal.retry_after_s, refusal.name
    report.affordable_output_tokens = refusal.affordable_output_tokens
    return refusal


def _admit(refset: RefSet, states: Reply, admission: Admission) -> Reply:
    """Runs the rules on a book that holds nothing but the given states."""
    book = MemoryBook("expired_held")
    book.now_ms = states.now_ms
    for ref, (first, second) in zip(refset.refs, states.states, strict=True):
        book.put_counter(ref.key, ref.kind, _counter(ref, first, second, states.now_ms), 0)
    return rules.admit(book, admission)


def _counter(ref: Ref, first: int, second: int, now_ms: int) -> Counter:
    """A counter that has the given state (Reply.states)."""
    if ref.kind == "b":
        return [first, 0, now_ms, 0]
    if ref.kind == "s":
        return {(now_ms + second) // ref.per_ms - SLICES - 1: first} if first else {}
    return [first, second]


def _claims(template: Template, refset: RefSet, states: Reply, amounts: tuple[int, ...], g: int) -> list[Claim]:
    rooms = dict(template.shadows)
    return [
        Claim(
            name(counter) + ("" if counter.enforced else " (shadow)"),
            counter.unit,
            amount(amounts[2 * i], amounts[2 * i + 1], g),
            states.states[i][0],
            states.states[i][1] if ref.kind in ("w", "o") else 0,
            ref.ceiling - ref.reserved if counter.enforced else rooms[i],
        )
        for i, (counter, ref) in enumerate(zip(template.counters, refset.refs, strict=True))
    ]
