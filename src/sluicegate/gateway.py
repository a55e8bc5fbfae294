"""`Gateway.serve`: the path of a request, from top to bottom (design.md 4). The only place that branches on outcomes, and the only one that settles.

    identify the key -> read the request -> plan -> for each deployment of the route: hold, call, classify -> relay -> settle -> last byte

Tasks are not cancelled when a client leaves: `Exchange.on_gone` tells the attempt, which closes its upstream or reads on for the usage, and the
path ends as always. Every hold that is granted ends, whatever happened: journal line first, then the ledger (holding.py), then the last bytes.
"""

import asyncio
import types
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from random import random

import structlog

from sluicegate import answers, reject
from sluicegate.auth import Credentials
from sluicegate.core import classify
from sluicegate.core.claims import Extension, Reply, Swept
from sluicegate.core.classify import Outcome
from sluicegate.core.estimate import Learned
from sluicegate.core.meter import EchoMeter, EventMeter, Meter, sends_each_token
from sluicegate.core.plan import Plan, Plans
from sluicegate.core.record import Record
from sluicegate.core.standing import Permit, Standing
from sluicegate.core.tenants import Deployment, Key, Policy
from sluicegate.core.waits import LIMITS_TOLD, spent_ms
from sluicegate.dialects.content import Inexpressible
from sluicegate.dialects.form import BadRequest, Request, Target
from sluicegate.dialects.registry import between
from sluicegate.growth import Growth, Pace
from sluicegate.holding import Holding
from sluicegate.http.exchange import BodyTooLarge, ClientGone, Exchange
from sluicegate.http.upstream import Pool, UpstreamError, read_all
from sluicegate.ledger.contract import Ledger, LedgerRecovering, LedgerUnavailable
from sluicegate.observe.notices import Notices
from sluicegate.outbox import Outbox
from sluicegate.providers import forwarded
from sluicegate.reject import Reject
from sluicegate.relay import Relay
from sluicegate.standings import Standings
from sluicegate.trip import Attempt, Dialect, Trip

ERROR_BODY_MAX = 1 << 20
ANSWER_MAX = 64 << 20
STREAMS = (b"text/event-stream", b"application/x-ndjson")  # content types
UPSTREAM_REST_S = 1.0  # for the end of an answer that is complete, so that its connection can be reused

log = structlog.get_logger("gateway")


class Gateway:
    """Serves requests of one worker under one policy; `policy` and `plans` are swapped together on a reload."""

    def __init__(
        self,
        policy: Policy,
        ledger: Ledger,
        outbox: Outbox,
        pools: Mapping[str, Pool],
        learned: Learned,
        observers: Sequence[Callable[[Record], None]],
        on_swept: Callable[[Swept], None],
        notices: Notices,
        new_id: Callable[[], str],
        clock: Callable[[], float],
        time_ms: Callable[[], int],
        max_body_bytes: int,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        random: Callable[[], float] = random,
    ) -> None:
        self.policy = policy
        self.trips: set[Trip] = set()  # in flight; their holds are renewed
        self.plans = Plans()
        self.holding = Holding(ledger, outbox, self.plans, learned, on_swept, notices, clock)
        self._notices = notices
        self.identify = Credentials(policy.keys).identify
        self._ledger = ledger
        self._pools = pools
        self._learned = learned
        self._observers = observers
        self._new_id = new_id
        self._clock = clock
        self._time_ms = time_ms
        self._max_body_bytes = max_body_bytes
        self._sleep = sleep
        self.standings = Standings(policy, clock, random)

    # -- the itinerary --------------------------------------------------------------------------------------------------------------------

    async def serve(self, exchange: Exchange, dialect: Dialect) -> None:
        """One request of a client, from its headers to the last byte of the answer."""
        trip = Trip(self._new_id(), exchange, dialect, self.policy, self._time_ms())
        self.trips.add(trip)
        try:
            trip.key = self.identify(exchange.headers)
            body = exchange.take_body(self._max_body_bytes) or await exchange.read_body(self._max_body_bytes)
            trip.request = dialect.read_request(body)
            trip.plan = self._plan(trip.key, trip.request)
            await self._route(trip, trip.plan, trip.request)
        except Reject as rejected:
            trip.rejected = rejected
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
            record = self.holding.settle(trip, trip.standing)
            await _next_turn()  # the journal and the ledger's link write at the end of this turn; the last byte goes out in the next
        now = self._clock()
        answers.finish(trip, now)
        answered = trip.answered
        if answered is not None:
            if answered.relay is not None and answered.meter is not None and answered.deployment.extend:
                self._learned.saw_delta(answered.deployment, answered.meter.largest)
            if answered.ended != "complete":
                answered.close()
            else:
                self._learn(trip, answered)
                if answered.call is not None and not answered.call.complete:
                    asyncio.get_running_loop().call_later(UPSTREAM_REST_S, answered.call.close)
        record = record or trip.record(now)
        for observe in self._observers:
            observe(record)

    def _plan(self, key: Key, request: Request) -> Plan:
        model = self.policy.models.get(request.model)
        if model is None or (key.models is not None and model.name not in key.models):
            raise reject.model_not_found(request.model)
        return self.plans.of(key, model)

    async def _route(self, trip: Trip, plan: Plan, request: Request) -> None:
        """Tries the deployments in order until one answers. Raises Reject when none does."""
        rejected: Reject | None = None
        for deployment in plan.model.deployments:
            standing = self.standings.of(deployment.id)
            permit = standing.permit(self._clock())
            if permit is None:
                continue
            try:
                told = await self._at(trip, plan, request, standing, permit, deployment)
            except BaseException:
                standing.report(permit, "void", self._clock())
                raise
            if told is None:
                return
            if not told.here_only:
                raise told
            if rejected is None or not told.unasked:
                rejected = told
        raise self.standings.nowhere(plan.model, rejected)

    async def _at(self, trip: Trip, plan: Plan, request: Request, standing: Standing, permit: Permit, deployment: Deployment) -> Reject | None:
        """All tries at one deployment: None if it has answered, else what the client is told if no other one does."""
        tries = 0
        while True:
            trip.tries += 1
            try:
                attempt = await self.holding.take(trip, trip.tries, deployment, plan, request)
                outcome = await self._call(trip, attempt, request)
            except Reject as refused:
                standing.report(permit, "void", self._clock())
                return refused
            except Inexpressible as error:  # nothing was sent
                standing.report(permit, "void", self._clock())
                return reject.inexpressible(error)
            if outcome is None:
                await self._answer(trip, attempt, standing, permit)
                return None
            if attempt.billed != "no":
                self.holding.settle(trip, attempt)
            if trip.exchange.gone:
                raise ClientGone
            pause_s = self.standings.pause_s(outcome, tries)
            if pause_s is None:
                self.standings.note(standing, permit, outcome)
                return reject.upstream(outcome)
            self.holding.leave_deployment(trip, attempt)
            tries += 1
            trip.upstream_s += pause_s
            await self._sleep(pause_s)
            if trip.exchange.gone:
                raise ClientGone

    async def _answer(self, trip: Trip, attempt: Attempt, standing: Standing, permit: Permit) -> None:
        """Delivers an answer that has begun. A probe has succeeded with that; of any other call it is known at its end."""
        trip.answered = attempt
        attempt.billed = "yes"
        call = attempt.call
        assert call is not None
        if not LIMITS_TOLD.isdisjoint(call.headers):
            spent = spent_ms(call.headers, self._time_ms())
            if spent is not None:
                standing.cool(spent / 1000, self._clock(), "its limit is spent")
        relay = attempt.relay
        if relay is None or permit.probe:
            standing.report(permit, "ok", self._clock())
        if relay is not None:
            await self._deliver(trip, attempt, relay)
            died = relay.ended == "died"
            standing.report(permit, "void" if died and attempt.closed else "failed" if died else "ok", self._clock())

    async def count(self, exchange: Exchange, read_request: Callable[[bytes], Request]) -> int:
        """Input tokens of a request that is not to be served, at the first deployment of its model: estimated, or where that cannot be, what would be
        held. Raises Reject, ClientGone."""
        key = self.identify(exchange.headers)
        try:
            request = read_request(await exchange.read_body(self._max_body_bytes))
            model = self._plan(key, request).model
            figures = self._learned.figures(request, model, model.deployments[0], key, self.policy.budget)
        except BadRequest as error:
            raise reject.bad_request(error) from None
        except BodyTooLarge:
            raise reject.body_too_large(self._max_body_bytes) from None
        return figures.input_bound if request.unbounded else figures.input_estimate

    # -- call -----------------------------------------------------------------------------------------------------------------------------

    async def _call(self, trip: Trip, attempt: Attempt, request: Request) -> Outcome | None:
        """Sends the request and reads until there is an answer to deliver (None), or it is clear that there will be none."""
        deployment, provider = attempt.deployment, attempt.deployment.provider
        covered = attempt.figures.want if attempt.extends else attempt.granted
        attempt.cap = attempt.figures.cap(covered) if covered else None
        attempt.via, path = trip.dialect, deployment.path(trip.dialect.NAME)
        if path is None:
            attempt.via = between(trip.dialect.NAME, provider.dialect, request, trip.request_id, trip.time_ms // 1000)
            path = deployment.path(provider.dialect)
            assert path is not None
        body = attempt.via.write_request(request, _target(trip, attempt))
        headers = forwarded(provider, trip.exchange.headers)
        call = attempt.call = self._pools[provider.name].begin(b"POST", path, headers, body, trip.timeouts)
        attempt.billed = "unknown"  # until something is known, however this ends
        trip.exchange.on_gone = attempt.client_left
        started = self._clock()
        try:
            await call.start()
            if request.stream and call.status == 200 and call.headers.get(b"content-type", b"").lower().startswith(STREAMS):
                outcome = await self._first_output(trip, attempt, request)
            else:
                outcome = await self._whole_answer(trip, attempt, request)
        except UpstreamError as error:
            outcome = classify.broken(error.reason, error.written)
        except BaseException:
            call.close()
            raise
        trip.called(attempt, "200" if outcome is None else outcome.name, started, self._clock())
        if outcome is not None:
            call.close()
            attempt.billed = outcome.billed
        return outcome

    async def _first_output(self, trip: Trip, attempt: Attempt, request: Request, *, whole: bool = False) -> Outcome | None:
        """Reads a stream up to its first output. whole: it is made of an answer that has come and is billed."""
        call, deployment = attempt.call, attempt.deployment
        assert call is not None
        attempt.meter = self._text_meter(attempt, request) if whole else self._stream_meter(attempt, request)
        pace = Pace(trip.policy.budget.stop_lag_ms, self._learned.delta(deployment))
        relay = attempt.relay = Relay(
            trip.exchange,
            call,
            attempt.via.StreamReader(),
            attempt.via.write_event,
            attempt.meter,
            hide_usage=not request.include_usage,
            choices=request.choices,
            cap=attempt.most,
            pace=pace,
            visible=attempt.visible,
            growth=self._growth(trip, attempt, pace) if attempt.extends and not whole and attempt.held.template.counters else None,
            write_timeout_s=trip.timeouts.write_ms / 1000,
            clock=self._clock,
        )
        await relay.first()
        if relay.has_output or relay.ended in ("complete", "truncated"):
            return None
        attempt.usage = relay.usage
        if relay.failure is not None:
            billed = relay.usage is not None or attempt.meter.seen > 0  # events that could not be read may have been output
            return classify.failed(call.status, call.headers, relay.failure, billed, deployment.provider.headers, self._time_ms())
        return classify.broken(relay.error.reason if relay.error is not None else "incomplete", True)

    async def _whole_answer(self, trip: Trip, attempt: Attempt, request: Request) -> Outcome | None:
        call, deployment = attempt.call, attempt.deployment
        assert call is not None
        ok = 200 <= call.status < 300
        body = call.take() if call.complete else await read_all(call, ANSWER_MAX if ok else ERROR_BODY_MAX)
        answer = attempt.via.read_answer(body)
        attempt.usage = answer.usage
        if ok and answer.readable and answer.failure is None:
            if request.stream:
                call.put_back(attempt.via.streamed(body))
                return await self._first_output(trip, attempt, request, whole=True)
            attempt.body, attempt.answer = answer.body or body, answer
            attempt.meter = self._text_meter(attempt, request)
            for delta in answer.deltas:
                attempt.meter.add(delta)
            return None
        if not answer.readable:
            log.warning(
                "upstream body is not readable",
                request_id=trip.request_id,
                deployment=deployment.id,
                status=call.status,
                body=classify.snippet(body, deployment.provider.headers),
            )
        return classify.failed(call.status, call.headers, answer.failure, answer.usage is not None, deployment.provider.headers, self._time_ms())

    def _stream_meter(self, attempt: Attempt, request: Request) -> Meter:
        deployment = attempt.deployment
        if not deployment.provider.token_per_event or request.echoed:
            return self._text_meter(attempt, request)
        each = sends_each_token(request)
        return EventMeter(deployment.tokenizer, self._learned.factor_milli(deployment, by_event=each), attempt.most, each)

    def _text_meter(self, attempt: Attempt, request: Request) -> Meter:
        tokenizer, factor_milli = attempt.deployment.tokenizer, self._learned.factor_milli(attempt.deployment)
        return EchoMeter(tokenizer, factor_milli, request.echoed) if request.echoed else Meter(tokenizer, factor_milli)

    def _growth(self, trip: Trip, attempt: Attempt, pace: Pace) -> Growth:
        held, budget = attempt.held, trip.policy.budget
        run_on = {why for why, on in (("budget", budget.on_exhausted == "allow"), ("ledger", trip.policy.on_ledger_failure == "allow")) if on}

        def extend(need: int, want: int, seen: int) -> "asyncio.Future[Reply]":
            assert held.refset is not None
            return self._ledger.extend(Extension(held.hold_id, held.refset, need, want, seen, budget.hold_ttl_ms))

        return Growth(extend, attempt.granted, attempt.figures.want, pace, run_on, self._clock)

    # -- deliver --------------------------------------------------------------------------------------------------------------------------

    async def _deliver(self, trip: Trip, attempt: Attempt, relay: Relay) -> None:
        """Relays a stream to its end but for the last bytes. (A unary answer is whole already.)"""
        now = self._clock()
        trip.first_byte_s = now - trip.exchange.arrived
        answers.start_stream(trip, attempt, now)
        await relay.rest()
        if relay.bad_events:
            deployment = attempt.deployment.id
            log.warning("upstream events are not readable", request_id=trip.request_id, deployment=deployment, events=relay.bad_events)
        attempt.granted = relay.granted(attempt.granted)
        attempt.usage = relay.usage

    def _learn(self, trip: Trip, attempt: Attempt) -> None:
        """Takes the figures of a complete answer, for estimates and bounds to come."""
        usage, meter, plan, request = attempt.usage, attempt.meter, trip.plan, trip.request
        if usage is None or meter is None or plan is None or request is None or not request.shown:
            return
        if not attempt.deployment.visible:
            self._learned.observe_later(attempt.figures, usage, meter, plan.model, attempt.deployment, plan.key, attempt.cut_short)
            return
        if self._learned.observe(
            attempt.figures, usage, meter, model=plan.model, deployment=attempt.deployment, key=plan.key, truncated=attempt.cut_short
        ):
            self._notices.overrun(attempt.deployment.id)


def _target(trip: Trip, attempt: Attempt) -> Target:
    deployment, provider = attempt.deployment, attempt.deployment.provider
    foreign = trip.plan is not None and trip.plan.model.deployments[0].model != deployment.model  # the one that probably has written what came before
    quirks = (provider.stream_usage, provider.rejects, provider.renames, provider.thoughts)
    return Target(deployment.model, attempt.cap, deployment.cap_field, *quirks, foreign)


@types.coroutine
def _next_turn() -> Generator[None, None, None]:
    """As asyncio.sleep(0), with nothing around it."""
    yield
