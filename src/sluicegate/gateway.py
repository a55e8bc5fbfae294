"""`Gateway.serve`: the path of a request, from top to bottom (design.md 4). The only place that branches on outcomes, and the only one that settles.

    identify the key -> read the request -> plan -> for each deployment of the route: hold, call, classify -> relay -> settle -> last byte

Tasks are not cancelled when a client leaves: `Exchange.on_gone` tells the attempt, which closes its upstream or reads on for the usage, and the
path ends as always. Every hold that is granted ends, whatever happened: journal line first, then the ledger (holding.py), then the last bytes.
"""

import asyncio
import types
from collections.abc import Awaitable, Callable, Generator, Sequence
from random import random

import structlog

from sluicegate import answers, idempotency, reject, ruling, telling
from sluicegate.auth import Credentials
from sluicegate.caching import Caching
from sluicegate.calling import Calls
from sluicegate.core import route
from sluicegate.core.claims import Swept
from sluicegate.core.estimate import Learned
from sluicegate.core.plan import CachePlan, Plan, Plans
from sluicegate.core.record import Record
from sluicegate.core.route import STAY_FIELD, STAY_HEADER, told_to_stay
from sluicegate.core.standing import Permit, Standing
from sluicegate.core.tenants import Deployment, Key, Policy
from sluicegate.core.waits import LIMITS_TOLD, spent_ms
from sluicegate.dialects.content import Inexpressible
from sluicegate.dialects.form import BadRequest, Request
from sluicegate.holding import Holding
from sluicegate.http.exchange import BodyTooLarge, ClientGone, Exchange
from sluicegate.http.pools import Pools
from sluicegate.idempotency import Idempotency
from sluicegate.ledger.contract import Ledger, LedgerRecovering, LedgerUnavailable
from sluicegate.observe.notices import Notices
from sluicegate.outbox import Outbox
from sluicegate.records.rows import RecordsUnavailable
from sluicegate.reject import Reject
from sluicegate.relay import Relay
from sluicegate.standings import Standings
from sluicegate.traces import Traces
from sluicegate.trip import Attempt, Dialect, Trip

NOTHING: frozenset[str] = frozenset()
UPSTREAM_REST_S = 1.0  # for the end of an answer that is complete, so that its connection can be reused

log = structlog.get_logger("gateway")


class Gateway:
    """Serves the requests of one worker, each under the policy that it came under (`apply` swaps it)."""

    def __init__(
        self,
        policy: Policy,
        ledger: Ledger,
        outbox: Outbox,
        pools: Pools,
        learned: Learned,
        observers: Sequence[Callable[[Record], None]],
        on_swept: Callable[[Swept], None],
        notices: Notices,
        new_id: Callable[[int], str],
        clock: Callable[[], float],
        time_ms: Callable[[], int],
        max_body_bytes: int,
        idempotency: Idempotency,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        random: Callable[[], float] = random,
    ) -> None:
        self.policy = policy
        self.trips: set[Trip] = set()  # in flight; their holds are renewed
        self.plans = Plans()
        self.holding = Holding(ledger, outbox, self.plans, learned, on_swept, notices, clock)
        self._notices = notices
        self.credentials = Credentials(policy.keys)
        self._ledger = ledger
        self.calls = Calls(pools, ledger, learned, clock, time_ms)
        self.learned = learned
        self._observers = observers
        self._new_id = new_id
        self._clock = clock
        self._time_ms = time_ms
        self._max_body_bytes = max_body_bytes
        self._idempotency = idempotency
        self._sleep = sleep
        self._random = random
        self.standings = Standings(policy, clock, random)
        self.caching: Caching  # where a model has a cache
        self.traces: Traces | None = None  # None: requests are not traced
        self.request_log: Callable[[Trip, Record], None] | None = None  # None: there is none

    # -- the itinerary --------------------------------------------------------------------------------------------------------------------

    async def serve(self, exchange: Exchange, dialect: Dialect) -> None:
        """One request of a client, from its headers to the last byte of the answer."""
        time_ms = self._time_ms()
        trip = Trip(self._new_id(time_ms), exchange, dialect, self.policy, time_ms)
        self.trips.add(trip)
        trip.trace = self.traces.begin(exchange) if self.traces is not None else None
        try:
            trip.key = self.credentials.known(exchange.headers) or await self.who(exchange)
            body = exchange.take_body(self._max_body_bytes) or await exchange.read_body(self._max_body_bytes)
            trip.request = dialect.read_request(body)
            if telling.HEADER in exchange.headers:
                trip.include = telling.asked(exchange.headers[telling.HEADER])
                telling.prepare(trip.request, dialect.NAME, trip.include)
            trip.plan = self._plan(trip.policy, trip.key, trip.request)
            trip.limit(trip.plan.model.timeouts)
            rules = trip.plan.rules
            trip.request = trip.request if rules is None else await ruling.ask(trip, trip.plan, rules, trip.request, len(body), self.learned)
            if idempotency.HEADER not in exchange.headers or await self._idempotency.begin(trip, body):
                cached = trip.plan.cache
                if cached is None or not await self._cached(trip, trip.plan, cached, trip.request):
                    await self._route(trip, trip.plan, trip.request)
        except Reject as rejected:
            trip.rejected = rejected
            if rejected.refusal is not None:
                self._notices.refused(rejected.refusal, trip)
        except BadRequest as error:
            trip.rejected = reject.bad_request(error)
        except BodyTooLarge:
            trip.rejected = reject.body_too_large(self._max_body_bytes)
        except LedgerRecovering:
            trip.rejected = reject.ledger_recovering()
        except LedgerUnavailable:
            trip.rejected = reject.ledger_unavailable()
        except ClientGone:
            trip.client_gone = True
        except Exception:
            log.exception("request failed", request_id=trip.request_id)
            trip.rejected = reject.internal()
        finally:
            await self._end_trip(trip)

    async def _end_trip(self, trip: Trip) -> None:
        """Settles what stands, then writes the last bytes, then tells the observers."""
        self.trips.discard(trip)
        trip.exchange.on_gone = None
        record = None
        if trip.standing is not None:
            record = self.holding.settle(trip, trip.standing, last=True)
            await _next_turn()  # the journal and the ledger's link write at the end of this turn; the last byte goes out in the next
        now = self._clock()
        answers.finish(trip, now)
        if trip.taken is not None:
            await self._idempotency.end(trip, trip.taken)
        answered = trip.answered
        if answered is not None:
            if trip.lookup is not None:
                self.caching.keep(trip, trip.lookup, answered)
            if answered.relay is not None and answered.meter is not None and answered.deployment.extend:
                self.learned.saw_delta(answered.deployment, answered.meter.largest)
            if answered.ended() != "complete":
                answered.close()
            else:
                self._learn(trip, answered)
        if record is None:
            record = trip.record(now)
            self.holding.note(trip, record)
        for observe in self._observers:
            observe(record)
        if trip.acted:
            self._notices.ruled(trip.acted, record.key_id)
        if self.request_log is not None:
            self.request_log(trip, record)
        if trip.trace is not None:
            trip.trace.end(trip, record, self._clock())

    async def who(self, exchange: Exchange) -> Key:
        """Who asks. Raises Reject."""
        try:
            return self.credentials.known(exchange.headers) or await self.credentials.find(exchange.headers, exchange.peer)
        except RecordsUnavailable:
            raise reject.keys_unavailable() from None

    def apply(self, policy: Policy, credentials: Credentials, observers: Sequence[Callable[[Record], None]] | None, max_body_bytes: int) -> None:
        """Serves what comes from now on under this policy. observers: None, for those that there are."""
        self.policy = policy
        if observers is not None:
            self._observers = observers
        self.credentials = credentials
        self.standings.apply(policy)
        self._max_body_bytes = max_body_bytes

    def _cached(self, trip: Trip, plan: Plan, cached: CachePlan, request: Request) -> Awaitable[bool]:
        """Whether the cache has the answer."""
        looking = self.caching.answer(trip, plan, cached, request)
        return looking if trip.trace is None else trip.trace.through("cache", looking, self._clock)

    def _plan(self, policy: Policy, key: Key, request: Request) -> Plan:
        model = policy.models.get(request.model)
        if model is None or (key.models is not None and model.name not in key.models):
            raise reject.model_not_found(request.model)
        return self.plans.of(key, model)

    async def _route(self, trip: Trip, plan: Plan, request: Request) -> None:
        """Tries the deployments in order until one answers. Raises Reject when none does."""
        model, standings = plan.model, self.standings
        order, leaves_for = model.deployments, model.leaves_for
        stays = (STAY_HEADER in trip.exchange.headers or STAY_FIELD in request.fields) and told_to_stay(trip.exchange.headers, request.fields)
        if model.tiers or stays or standings.unwell or trip.attempts:
            order, leaves_for = self._order(trip, plan, stays), NOTHING if stays else leaves_for
        rejected: Reject | None = None
        for deployment in order:
            standing = standings.of(deployment.id)
            permit = standing.permit(self._clock())
            if permit is None:
                if leaves_for and leaves_for.isdisjoint(standings.left_alone_for(standing)):
                    order = (deployment,)
                    break
                continue
            standing.in_flight += 1
            try:
                told = await self._at(trip, plan, request, standing, permit, deployment)
            finally:
                standing.in_flight -= 1
                if permit.probe:  # whose place is free again, if nothing has been learned
                    standing.report(permit, "void", self._clock())
            if told is None:
                return
            if told.kind == "context" and not stays and (larger := self._larger(trip, plan)) is not None:
                await self._route(trip, larger, request)
                return
            if not told.here_only:
                raise told
            if rejected is None or not told.unasked:
                rejected = told
            if leaves_for is not None and told.kind not in leaves_for:
                order = (deployment,)
                break
        raise standings.nowhere(order, rejected)

    def _order(self, trip: Trip, plan: Plan, stays: bool) -> tuple[Deployment, ...]:
        """The deployments in the order for this request, where that is not always the same: none twice, on however many routes it is. stays: only
        those that are as good as the first."""
        model, standings = plan.model, self.standings
        order = model.deployments
        if model.tiers:
            used = route.budget_used(plan.template, self._ledger.now_ms()) if model.preferred else 0
            who = trip.exchange.headers.get(model.sticky_header) or plan.key.id.encode()
            order = route.ordered(model, who, used, standings.in_flight, self._random)
        if stays:
            order = route.alike(model, order)
        if trip.attempts:
            order = _untried(trip, order)
        if standings.unwell:
            order = standings.healthy_first(order)
        trip.order = order
        return order

    def _larger(self, trip: Trip, plan: Plan) -> Plan | None:
        """The plan at the model that takes what is too long for this one, if there is one, the key may use it, and it is anything new. What was told
        of the limits until now was told for another plan."""
        key, name = plan.key, plan.model.context_fallback
        if not name or (key.models is not None and name not in key.models) or not _untried(trip, trip.policy.models[name].deployments):
            return None
        larger = trip.plan = self.plans.of(key, trip.policy.models[name])
        trip.reply = trip.refset = None
        trip.order = ()
        trip.limit(larger.model.timeouts)
        return larger

    async def _at(self, trip: Trip, plan: Plan, request: Request, standing: Standing, permit: Permit, deployment: Deployment) -> Reject | None:
        """All tries at one deployment: None if it has answered, else what the client is told if no other one does."""
        tries = 0
        while True:
            trip.tries += 1
            try:
                taking = self.holding.take(trip, trip.tries, deployment, plan, request)
                attempt = await (taking if trip.trace is None else trip.trace.through("admit", taking, self._clock, deployment=deployment.id))
                outcome = await self.calls.call(trip, attempt, request)
            except Reject as refused:
                return refused
            except Inexpressible as error:  # nothing was sent
                return reject.inexpressible(error)
            if outcome is None:
                self._begins(trip, attempt, standing, permit)
                if attempt.relay is not None:
                    await self._deliver(trip, attempt, attempt.relay, standing, permit)
                if trip.acted:
                    ruling.refuse(attempt)
                return None
            if attempt.billed != "no":
                self.holding.settle(trip, attempt)
            if trip.exchange.gone:
                raise ClientGone
            pause_s = self.standings.pause_s(outcome, tries)
            if pause_s is None or self._clock() + pause_s >= trip.ends_at:
                self.standings.note(standing, permit, outcome)
                return reject.upstream(outcome)
            self.holding.leave_deployment(trip, attempt)
            tries += 1
            trip.waited(pause_s)
            await self._sleep(pause_s)
            if trip.exchange.gone:
                raise ClientGone

    def _begins(self, trip: Trip, attempt: Attempt, standing: Standing, permit: Permit) -> None:
        """An answer has begun; a unary one is whole. A probe has succeeded with that; of any other call it is known at its end. A success is reported
        only where one was missed."""
        trip.answered = attempt
        attempt.billed = "yes"
        call = attempt.call
        assert call is not None
        if not LIMITS_TOLD.isdisjoint(call.headers):
            spent = spent_ms(call.headers, self._time_ms())
            if spent is not None:
                self.standings.found(standing, spent, "its limit is spent", True)
        if permit.probe or (attempt.relay is None and standing.failures):
            standing.report(permit, "ok", self._clock())

    async def count(self, exchange: Exchange, read_request: Callable[[bytes], Request]) -> int:
        """Input tokens of a request that is not to be served, at the first deployment of its model: estimated, or where that cannot be, what would be
        held. Raises Reject, ClientGone."""
        policy, key = self.policy, await self.who(exchange)
        try:
            request = read_request(await exchange.read_body(self._max_body_bytes))
            plan = self._plan(policy, key, request)
            model, request = plan.model, request if plan.rules is None else ruling.counted(plan.rules, request, read_request)
            figures = self.learned.figures(request, model, model.deployments[0], key, policy.budget)
        except BadRequest as error:
            raise reject.bad_request(error) from None
        except BodyTooLarge:
            raise reject.body_too_large(self._max_body_bytes) from None
        return figures.input_bound if request.unbounded else figures.input_estimate

    # -- deliver --------------------------------------------------------------------------------------------------------------------------

    async def _deliver(self, trip: Trip, attempt: Attempt, relay: Relay, standing: Standing, permit: Permit) -> None:
        """Relays a stream to its end but for the last bytes. (A unary answer is whole already.)"""
        now = self._clock()
        trip.first_byte_s = now - trip.exchange.arrived
        answers.start_stream(trip, attempt, now)
        await relay.rest()
        if relay.bad_events:
            deployment = attempt.deployment.id
            log.warning("upstream events are not readable", request_id=trip.request_id, deployment=deployment, events=relay.bad_events)
        ruling.end(attempt, relay)
        attempt.granted = relay.granted(attempt.granted)
        attempt.usage = relay.usage
        if relay.ended != "died":
            if standing.failures:
                standing.report(permit, "ok", self._clock())
        elif not attempt.closed and (relay.error is None or relay.error.reason != "deadline"):  # else the client has left, or its time was over
            standing.report(permit, "failed", self._clock())

    def _learn(self, trip: Trip, attempt: Attempt) -> None:
        """Takes the figures of a complete answer, for estimates and bounds to come, and leaves its connection to end by itself."""
        usage, meter, plan, request = attempt.usage, attempt.meter, trip.plan, trip.request
        if attempt.call is not None and not attempt.call.complete:
            asyncio.get_running_loop().call_later(UPSTREAM_REST_S, attempt.call.close)
        if usage is None or plan is None or request is None or not request.shown:
            return
        if not attempt.deployment.visible:
            self.learned.observe_later(attempt.figures, usage, plan.model, attempt.deployment, plan.key, attempt.cut_short())
        elif meter is not None and self.learned.observe(
            attempt.figures, usage, meter, model=plan.model, deployment=attempt.deployment, key=plan.key, truncated=attempt.cut_short()
        ):
            self._notices.overrun(attempt.deployment.id)


def _untried(trip: Trip, order: tuple[Deployment, ...]) -> tuple[Deployment, ...]:
    """Those that have not been called for this request."""
    called = {attempt.deployment.id for attempt in trip.attempts}
    return tuple([one for one in order if one.id not in called])


@types.coroutine
def _next_turn() -> Generator[None, None, None]:
    """As asyncio.sleep(0), with nothing around it."""
    yield
