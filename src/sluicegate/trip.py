"""What is known of one logical request while it is under way: the state that `gateway.serve` carries from step to step.

A `Trip` is one request of a client, an `Attempt` one physical call with holds of its own, a `Held` one hold.
"""

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping
from math import inf
from typing import Any, Literal, Protocol

import msgspec
from msgspec.structs import force_setattr

from sluicegate.core import deadlines, expired, labels
from sluicegate.core.claims import Announcement, RefSet, Reply
from sluicegate.core.classify import Billed
from sluicegate.core.counters import name
from sluicegate.core.estimate import Figures
from sluicegate.core.meter import Meter
from sluicegate.core.once import Kept
from sluicegate.core.plan import Plan, Template
from sluicegate.core.prices import Price
from sluicegate.core.record import Attempt as AttemptRecord
from sluicegate.core.record import Record
from sluicegate.core.tenants import Counter, Deployment, Key, Policy, Timeouts
from sluicegate.core.usage import NOTHING, Charge, Ended, Usage, is_whole, reported, settle_figures
from sluicegate.dialects.form import Answer, Event, Request, Target
from sluicegate.http.exchange import Exchange
from sluicegate.http.upstream import Call
from sluicegate.lasting import Taken
from sluicegate.lookup import Lookup
from sluicegate.observe.tracing import Trace
from sluicegate.reject import Reject
from sluicegate.relay import Reader, Relay

NONE: list[str] = []
UNUSED = Usage()
NO_WORDS: frozenset[str] = frozenset()
NOBODY: set[str] = set()  # never added to
READ_ON_S = 30.0  # after the client left, for the usage of an upstream that does not stop on close


_CLIENT_ID = re.compile(rb"[A-Za-z0-9._:/@+=~-]{1,128}")


def client_id(presented: bytes) -> str:
    """A client's own name for its request: kept apart from ours, since nothing makes it unique, and left out if it is no plain id."""
    return presented.decode() if presented and _CLIENT_ID.fullmatch(presented) else ""


class Via(Protocol):
    """How one attempt is made and its answer read: the client's dialect, where the provider speaks it too, else what is between the two."""

    def write_request(self, request: Request, target: Target) -> bytes: ...
    def read_answer(self, body: bytes) -> Answer: ...
    def streamed(self, body: bytes) -> bytes: ...
    def StreamReader(self) -> Reader: ...
    def write_event(self, event: Event, hide_usage: bool) -> bytes: ...
    def write_truncation(self, head: Any, after: Any, choices: Iterable[int], reason: str, usage: Usage | None) -> bytes: ...


class Dialect(Via, Protocol):
    """A module in dialects/ that clients speak (see dialects/form.py)."""

    @property
    def NAME(self) -> str: ...
    @property
    def STATUS(self) -> Mapping[str, int]: ...
    def read_request(self, body: bytes) -> Request: ...
    def write_error(self, status: int, message: str, type: str, param: str | None, code: str | None, extra: dict[str, Any] | None) -> bytes: ...
    def write_stream_error(self, message: str, type: str, code: str | None, extra: dict[str, Any] | None) -> bytes: ...


class Held:
    """One hold: its counters in the windows that admitted it. `refset` is None where there is nothing to end."""

    __slots__ = ("admitted_ms", "epoch", "hold_id", "mode", "refset", "spared", "template")

    def __init__(self, hold_id: str, template: Template) -> None:
        self.hold_id = hold_id
        self.template = template
        self.refset: RefSet | None = None
        self.mode: Literal["settle", "force"] = "settle"  # force: served without a hold, charged afterwards
        self.epoch = ""  # of the tree's state that the hold is in
        self.admitted_ms = 0  # ledger time
        self.spared: tuple[int, ...] = ()  # shadow buckets that would have refused: in the end they give back what it took


class Attempt:
    """One physical call to a deployment."""

    __slots__ = (
        *("answer", "asked", "at_deployment", "billed", "body", "call", "cap", "charge", "closed", "deployment", "duration_us", "error", "extends"),
        *("figures", "granted", "held", "held_price", "left_out", "meter", "model", "need", "outcome", "price", "relay", "usage", "via", "visible"),
        "wait_us",
    )

    def __init__(self, hold_id: str, model: str, deployment: Deployment, figures: Figures, template: Template) -> None:
        self.model = model  # whose route it is on: that of the request, or the one that takes what is too long for it
        self.deployment = deployment
        self.figures = figures
        self.price: Price | None = None  # what this request costs there
        self.held_price: Price | None = None  # whose dearest rates are held
        self.held = Held(hold_id, template)
        self.via: Via  # from the call on
        self.left_out: list[str] = NONE  # fields of the request that this provider would refuse
        self.at_deployment: Held | None = None
        self.asked = 0  # times that the deployment's own limits were asked
        self.visible = False  # every token that is billed can be seen in a stream
        self.extends = False
        self.need = figures.need  # output tokens; with less room it is not sent
        self.granted = figures.want  # output tokens covered
        self.cap: int | None = None  # per choice, sent upstream
        self.call: Call | None = None
        self.closed = False  # by us, since the client left or the answer was over
        self.meter: Meter | None = None
        self.relay: Relay | None = None
        self.usage: Usage | None = None
        self.answer: Answer | None = None
        self.body = b""
        self.billed: Billed = "no"
        self.charge: Charge | None = None
        self.outcome = ""  # once it has one, with the three below
        self.error = ""  # what the client is told if nobody else answers
        self.duration_us = 0
        self.wait_us = 0  # before it

    @property
    def most(self) -> int:
        """Output tokens that the upstream may produce, by the cap that it was sent."""
        return self.cap * self.figures.choices + self.figures.beyond_cap if self.cap is not None else 0

    def written(self) -> bool:
        """The upstream has been sent bytes of this attempt."""
        return self.call is not None and self.call.written

    def ended(self) -> Ended:
        """How the upstream's answer ended, for the bill."""
        if self.relay is None:
            if self.answer is not None or self.billed == "yes":
                return "complete"
            return "closed" if self.closed else "broken"
        if self.relay.ended == "complete":
            return "complete"
        closed_by_us = self.relay.ended == "truncated" or (self.relay.error is not None and self.relay.error.reason == "closed")
        return "closed" if closed_by_us else "broken"

    def finish(self) -> str:
        """The finish reason of the first choice that has one."""
        if self.relay is not None:
            return next(iter(self.relay.finishes.values()), "")
        return self.answer.finishes[0][1] if self.answer is not None and self.answer.finishes else ""

    def cut_short(self) -> bool:
        """A cap ended one of the choices."""
        if self.relay is not None:
            return "length" in self.relay.finishes.values()
        return self.answer is not None and "length" in [reason for _, reason in self.answer.finishes]

    def record(self) -> AttemptRecord:
        """As it is known by now; what it is charged is known once its hold has ended."""
        charge, relay, error = self.charge or NOTHING, self.relay, self.error
        if relay is not None and relay.ended == "died" and not error:
            error = relay.error.reason if relay.error is not None else "error_event" if relay.failure is not None else "incomplete"
        return AttemptRecord(  # by position, as below
            self.deployment.id,
            self.outcome,
            self.duration_us,
            self.billed,
            self.wait_us,
            error,
            charge.cost_nano_usd,
            charge.input_tokens,
            charge.output_tokens,
        )

    def reported_whole(self, policy: Policy) -> bool:
        """What the upstream says that it used is all that counts, if its answer is complete."""
        return self.usage is not None and is_whole(self.usage) and policy.cost_source != "provider_only"

    def settled_at(self, policy: Policy) -> Charge:
        """What this attempt is charged."""
        if self.billed == "no" or not self.written():
            return NOTHING
        deployment, meter, usage = self.deployment, self.meter, self.usage
        outdated = self.relay is not None and self.relay.outdated
        if usage is not None and not (self.figures.grows or outdated) and self.reported_whole(policy) and self.ended() == "complete":
            return reported(usage, self.price)
        return settle_figures(
            usage,
            ended=self.ended(),
            seen=meter.seen if meter is not None else 0,
            least=meter.certain(self.most) if meter is not None else 0,
            margin=self.relay.margin() if self.relay is not None and self.relay.ended != "complete" else 0,
            cap=self.most,
            input_bound=self.figures.input_bound,
            visible=self.visible and self.relay is not None,
            stops_on_close=deployment.provider.stops_on_close,
            price=self.price,
            unknown_outcome=policy.budget.unknown_outcome,
            cost_source=policy.cost_source,
            marks=self.figures.marks,
            fees_nano_usd=self.figures.fees_nano_usd,
            grows=self.figures.grows,
            outdated=outdated,
        )

    def client_left(self) -> None:
        """The client is gone: stop the upstream where that stops the bill, else read on for the usage."""
        if self.relay is not None:
            self.relay.client_left()
        if self.deployment.provider.stops_on_close or not self.written():
            self.close()
        else:
            asyncio.get_running_loop().call_later(READ_ON_S, self.close)

    def close(self) -> None:
        """Ends the call, whatever it still had to say."""
        self.closed = True
        if self.call is not None:
            self.call.close()


class Trip:
    """One logical request of a client."""

    __slots__ = (
        *("answered", "attempts", "client_gone", "cost_nano_usd", "counted", "dialect", "exchange", "first_byte_s", "idle_s", "input_tokens", "key"),
        *("output_tokens", "order", "plan", "policy", "rejected", "refset", "reply", "request", "request_id", "shadowed", "source"),
        *("cost_source", "include", "replay", "standing", "status", "taken", "trace", "lookup", "acted", "changed"),
        *("ends_at", "hurried", "time_ms", "timeouts", "tries", "upstream_s", "waited_s", "written"),
    )

    def __init__(self, request_id: str, exchange: Exchange, dialect: Dialect, policy: Policy, time_ms: int) -> None:
        self.request_id = request_id
        self.exchange = exchange
        self.dialect = dialect
        self.policy = policy
        self.time_ms = time_ms
        self.timeouts: Timeouts  # from the plan on, with the two below
        self.ends_at: float  # by the clock
        self.hurried: bool  # that is the client's choice
        self.key: Key | None = None
        self.request: Request | None = None
        self.plan: Plan | None = None
        self.refset: RefSet | None = None  # of `reply`
        self.reply: Reply | None = None  # the last that a ledger gave for the key's limits
        self.attempts: list[Attempt] = []  # that were made, in their order
        self.tries = 0  # attempts that were begun
        self.order: tuple[Deployment, ...] = ()  # in which they are made, where that is not the model's own
        self.standing: Attempt | None = None  # whose holds have not ended
        self.answered: Attempt | None = None  # that the client gets
        self.input_tokens = self.output_tokens = self.cost_nano_usd = 0  # charged so far, over all attempts
        self.source = ""  # of the last charge
        self.cost_source = ""  # likewise
        self.written = False  # an upstream has been sent bytes
        self.counted = False  # `requests` has been charged
        self.client_gone = False
        self.rejected: Reject | None = None
        self.status = 0  # what the client was told
        self.shadowed: tuple[Counter, ...] = ()  # whose shadow limits would have refused it
        self.upstream_s = 0.0  # spent waiting for upstreams before the first byte of the answer, and for limits
        self.idle_s = 0.0  # of this, since the last attempt
        self.waited_s = 0.0  # for limits
        self.first_byte_s = 0.0
        self.include = NO_WORDS  # what the client wants to be told in the answer (telling.py)
        self.taken: Taken | None = None  # its idempotency key
        self.replay: Kept | None = None  # what the first request with that key was answered
        self.lookup: Lookup | None = None  # in the cache; None: there is none
        self.trace: Trace | None = None  # None: it is not traced
        self.acted: set[str] = NOBODY  # names of the content rules that did something
        self.changed: list[str] = NONE  # parameters that content rules have set

    def limit(self, timeouts: Timeouts) -> None:
        """How long it may take, from its headers on: what its model allows, or less if the client says so."""
        self.timeouts = timeouts
        total_s = timeouts.total_ms / 1000
        said = self.exchange.headers.get(b"timeout")
        asked_s = deadlines.asked_s(said) if said is not None else inf
        self.hurried = asked_s < total_s
        self.ends_at = self.exchange.arrived + (asked_s if self.hurried else total_s)

    def open_holds(self) -> Iterator[tuple[str, str]]:
        """(tree, hold id) of every hold that must not expire."""
        for held, refset in self._open():
            yield refset.tree, held.hold_id

    def announcements(self, tree: str, epoch: str) -> Iterator[tuple[Held, Announcement]]:
        """Its open holds in a tree that are not in this epoch yet, as they are told to it."""
        attempt = self.standing
        for held, refset in self._open():
            if attempt is None or refset.tree != tree or held.epoch == epoch:
                continue
            own = held is attempt.at_deployment  # the deployment's own limits
            amounts = held.template.amounts(attempt.figures, attempt.held_price, 1 if own or not self.counted else 0)
            g = attempt.figures.want if own else attempt.granted if attempt.relay is None else attempt.relay.granted(attempt.granted)
            seen = attempt.meter.seen if attempt.meter is not None and not own else 0
            yield held, Announcement(held.hold_id, refset, amounts, g, seen, self.policy.budget.hold_ttl_ms, self.tag(attempt, own))

    def tag(self, attempt: Attempt, own: bool) -> str:
        """What a hold of an attempt is to be known by. own: of the deployment's own limits."""
        if own and attempt.held.template.counters:
            return expired.tag_beside(self.request_id, attempt.deployment.id)
        assert self.plan is not None
        plan = self.plan
        return expired.tag(self.request_id, plan.key.id, attempt.deployment.id, attempt.model, attempt.figures.input_bound, self.time_ms)

    def _open(self) -> Iterator[tuple[Held, RefSet]]:
        if self.standing is not None:
            for held in (self.standing.held, self.standing.at_deployment):
                if held is not None and held.refset is not None and held.mode == "settle":
                    yield held, held.refset

    def called(self, attempt: Attempt, outcome: str, started: float, now: float) -> None:
        """Notes one physical call that has an answer, or none."""
        call = attempt.call
        self.written = self.written or (call is not None and call.written)
        self.upstream_s += now - started
        attempt.outcome = outcome
        attempt.duration_us = int((now - started) * 1e6)
        if self.idle_s:
            attempt.wait_us, self.idle_s = int(self.idle_s * 1e6), 0.0
        self.attempts.append(attempt)
        if self.trace is not None:
            self.trace.called(started, now)

    def waited(self, pause_s: float) -> None:
        """Notes time in which no upstream was asked: no overhead of ours."""
        self.upstream_s += pause_s
        self.idle_s += pause_s

    @property
    def fallback_used(self) -> bool:
        """The answer is not from where the route would have gone first."""
        answered, plan, request = self.answered, self.plan, self.request
        if answered is None or plan is None or request is None:
            return False
        return answered.deployment is not (self.order or plan.model.deployments)[0] or answered.model != request.model

    def overhead_ms(self, now: float) -> float:
        """Time of ours between the request and `now`, the beginning of its answer."""
        ours_s = now - self.exchange.arrived - self.upstream_s
        return ours_s * 1000 if ours_s > 0 else 0.0

    def charged(self, charge: Charge) -> None:
        """Adds what one attempt is charged."""
        self.input_tokens += charge.input_tokens
        self.output_tokens += charge.output_tokens
        self.cost_nano_usd += charge.cost_nano_usd
        self.source, self.cost_source = charge.source, charge.cost_source

    def _told(self, attempt: Attempt | None) -> tuple[int, str, str]:
        """Status, finish reason and error code."""
        if self.rejected is not None:
            return self.rejected.status, attempt.finish() if attempt is not None else "", self.rejected.code
        if attempt is None:
            if self.lookup is not None and self.lookup.entry is not None:
                return 200, self.lookup.entry.finish, ""
            return 499 if self.replay is None else self.replay.status, "", ""
        relay = attempt.relay
        if relay is None:
            return 200, attempt.finish(), ""
        error = "" if attempt.ended() != "broken" else "upstream_timeout" if relay.late else "upstream_error"
        return 200, "length" if relay.truncated else attempt.finish(), error

    def record(self, now: float) -> Record:
        """The record of this request, as of now."""
        request, attempt, rejected, exchange = self.request, self.answered, self.rejected, self.exchange
        relay, usage, granted = (None, UNUSED, 0) if attempt is None else (attempt.relay, attempt.usage or UNUSED, attempt.granted)
        status, finish, error = self._told(attempt)
        deployment = self.attempts[-1].deployment.id if self.attempts else ""
        cache, saved = "replay" if self.replay is not None else "", 0
        if self.lookup is not None:
            deployment, cache, saved = self.lookup.recorded(deployment)
        latency_s = now - exchange.arrived
        theirs = exchange.headers.get(b"x-request-id")
        tags = exchange.headers.get(b"x-sluicegate-tags")
        tried = self.attempts
        # By position: on the path of every request, and names cost as much as all values together; so do more than 30 of them in one call.
        record = Record(
            self.request_id,
            self.time_ms,
            self.key.id if self.key is not None else "",
            self.plan.model.name if self.plan is not None else request.model if request is not None else "",
            deployment,
            (tried[0].record(),) if len(tried) == 1 else tuple([attempt.record() for attempt in tried]),
            self.dialect.NAME,
            request is not None and request.stream,
            status,
            finish,
            rejected.reason if rejected is not None else "",
            relay.truncated if relay is not None else "",
            error,
            self.input_tokens,
            self.output_tokens,
            usage.cached_tokens,
            usage.reasoning_tokens,
            self.cost_nano_usd,
            self.source,
            self.cost_source,
            granted,
            int(latency_s * 1e6),
            int(self.first_byte_s * 1e6),
            int((latency_s - self.upstream_s) * 1e6) if relay is None and latency_s > self.upstream_s else 0,
            self.client_gone or exchange.gone,
            client_id(theirs) if theirs is not None else "",
            labels.user(request.fields) if request is not None else "",
            self.trace.id if self.trace is not None else "",
        )
        if cache:  # as all have where there is a cache: nobody else knows this record yet, and a copy costs ten times as much
            force_setattr(record, "cache", cache)
            force_setattr(record, "saved_nano_usd", saved)
        if self.shadowed or self.waited_s or usage.cache_write_tokens or tags or self.acted:
            return self._in_full(record, tags)
        return record

    def _in_full(self, record: Record, tags: bytes | None) -> Record:
        """With what most requests do not have."""
        return msgspec.structs.replace(
            record,
            shadow=", ".join([name(counter) for counter in self.shadowed]),
            waited_us=int(self.waited_s * 1e6),
            cache_write_tokens=self.answered.usage.cache_write_tokens if self.answered is not None and self.answered.usage is not None else 0,
            tags=labels.tags(tags) if tags is not None else "",
            rules=", ".join(sorted(self.acted)),
        )
