"""One attempt at one deployment: what is sent, and what has come back as far as it decides what happens next.

`Calls.call` sends a request and reads until there is an answer to deliver, or it is clear that there will be none (an Outcome: core/classify.py).
Nothing reaches the client from here.
"""

import asyncio
from collections.abc import Callable

import msgspec
import structlog

from sluicegate import ruling
from sluicegate.core import classify
from sluicegate.core.claims import Extension, Reply
from sluicegate.core.classify import Outcome
from sluicegate.core.estimate import Learned
from sluicegate.core.meter import EchoMeter, EventMeter, Meter, sends_each_token
from sluicegate.dialects.form import Request, Target
from sluicegate.dialects.registry import between
from sluicegate.dialects.ruled import Ruled
from sluicegate.growth import Growth, Pace
from sluicegate.http.pools import Pools
from sluicegate.http.upstream import Call, UpstreamError
from sluicegate.ledger.contract import Ledger
from sluicegate.providers import forwarded
from sluicegate.relay import Relay
from sluicegate.trip import Attempt, Trip

ERROR_BODY_MAX = 1 << 20
ANSWER_MAX = 64 << 20
CODE_MAX = 64  # characters of an error's code, in records
STREAMS = (b"text/event-stream", b"application/x-ndjson")  # content types

log = structlog.get_logger("gateway")


class Calls:
    """Makes the attempts of one worker."""

    def __init__(
        self,
        pools: Pools,
        ledger: Ledger,
        learned: Learned,
        clock: Callable[[], float],
        time_ms: Callable[[], int],
    ) -> None:
        self._pools = pools
        self._ledger = ledger
        self._learned = learned
        self._clock = clock
        self._time_ms = time_ms
        self.disturb: Callable[[Call, str], Call] | None = None  # what chaos.py does to the calls of a deployment, by its id; None: nothing

    async def call(self, trip: Trip, attempt: Attempt, request: Request) -> Outcome | None:
        """Sends the request and reads until there is an answer to deliver (None), or it is clear that there will be none."""
        deployment, provider = attempt.deployment, attempt.deployment.provider
        covered = attempt.figures.want if attempt.extends else attempt.granted
        attempt.cap = attempt.figures.cap(covered) if covered else None
        attempt.via, path = trip.dialect, deployment.path(trip.dialect.NAME)
        if path is None:
            attempt.via = between(trip.dialect.NAME, provider.dialect, request, trip.request_id, trip.time_ms // 1000)
            path = deployment.path(provider.dialect)
            assert path is not None
        rules = trip.plan.rules if trip.plan is not None else None
        if rules is not None and rules.shapes_answers:
            attempt.via = ruling.over(trip, rules, attempt.via, request)
        target = _target(trip, attempt)
        body = attempt.via.write_request(request, target)
        attempt.left_out = target.left_out
        pool, theirs, trace = self._pools.of(provider), trip.exchange.headers, trip.trace
        if trace is None:
            call = pool.begin(b"POST", path, forwarded(provider, theirs), body, trip.timeouts, trip.ends_at)
        else:
            lines = trace.outgoing(attempt)
            call = pool.begin(b"POST", path, forwarded(provider, trace.headers), body, trip.timeouts, trip.ends_at, lines)
        call.unspoken = request.stream
        if self.disturb is not None:
            call = self.disturb(call, deployment.id)
        attempt.call = call
        attempt.billed = "unknown"  # until something is known, however this ends
        trip.exchange.on_gone = attempt.client_left
        started = self._clock()
        try:
            if started >= trip.ends_at:
                raise UpstreamError("deadline", False, "nothing was sent")
            await call.start()
            if request.stream and call.status == 200 and call.headers.get(b"content-type", b"").lower().startswith(STREAMS):
                outcome = await self._first_output(trip, attempt, request)
            else:
                call.unspoken = False
                outcome = await self._whole_answer(trip, attempt, request)
        except UpstreamError as error:
            outcome = classify.broken(error.reason, error.written)
        except BaseException:
            call.close()
            trip.called(attempt, "aborted", started, self._clock())
            raise
        trip.called(attempt, "200" if outcome is None else outcome.name, started, self._clock())
        if outcome is not None:
            call.close()
            outcome = _for(trip, outcome)
            attempt.billed, attempt.error = outcome.billed, outcome.code[:CODE_MAX]
        return outcome

    async def _first_output(self, trip: Trip, attempt: Attempt, request: Request, *, whole: bool = False) -> Outcome | None:
        """Reads a stream up to its first output. whole: it is made of an answer that has come and is billed."""
        call, deployment = attempt.call, attempt.deployment
        assert call is not None
        attempt.meter = self._text_meter(attempt, request) if whole else self._stream_meter(attempt, request)
        pace = Pace(trip.policy.budget.stop_lag_ms, self._learned.delta(deployment))
        reader = attempt.via.StreamReader()
        if trip.lookup is not None:
            reader = trip.lookup.copy(trip.dialect.NAME, reader)
        relay = attempt.relay = Relay(
            trip.exchange,
            call,
            reader,
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
        call.unspoken = False
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
        if isinstance(attempt.via, Ruled) and attempt.via.steps is not None:
            await ruling.take_steps(attempt.via, attempt.via.steps)
        attempt.usage = answer.usage
        if ok and answer.readable and answer.failure is None:
            if request.stream:
                call.put_back(attempt.via.streamed(body))
                return await self._first_output(trip, attempt, request, whole=True)
            attempt.body, attempt.answer = answer.body or body, answer
            if deployment.visible or not attempt.reported_whole(trip.policy):  # else nobody asks how much was seen of it
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
            asked = self._ledger.extend(Extension(held.hold_id, held.refset, need, want, seen, budget.hold_ttl_ms))
            if trip.trace is not None:
                trip.trace.extending(asked, want, self._clock)
            return asked

        return Growth(extend, attempt.granted, attempt.figures.want, pace, run_on, self._clock)


async def read_all(call: Call, max_bytes: int) -> bytes:
    """The whole body of an answer; one that is larger is an answer that cannot be read."""
    parts, size = [], 0
    while size <= max_bytes and (data := await call.read()):
        parts.append(data)
        size += len(data)
    if size > max_bytes:
        call.close()
        raise UpstreamError("protocol", True, f"the answer is larger than {max_bytes} bytes")
    return b"".join(parts)


def _for(trip: Trip, outcome: Outcome) -> Outcome:
    """What an outcome means for this request: what may have been done is not asked for again if the operator does not want that, and a deadline that
    the client has chosen is no fault of the upstream's."""
    elsewhere = outcome.elsewhere and (outcome.billed != "unknown" or trip.policy.resilience.resend_elsewhere)
    fails = outcome.fails and not (trip.hurried and outcome.name == "deadline")
    return msgspec.structs.replace(outcome, elsewhere=elsewhere, fails=fails)


def _target(trip: Trip, attempt: Attempt) -> Target:
    deployment, provider = attempt.deployment, attempt.deployment.provider
    assert trip.request is not None
    usual = trip.policy.models[trip.request.model].deployments[0]  # that probably has written what came before
    return Target(
        deployment.model,
        attempt.cap,
        deployment.cap_field,
        provider.stream_usage,
        provider.rejects,
        provider.renames,
        provider.thoughts,
        usual.model != deployment.model,
        deployment.tool_calls,
    )
