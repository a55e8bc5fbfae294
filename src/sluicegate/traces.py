"""The traces of one worker's requests: where one begins, and what of a request is told at its end.

A trace goes on where a client says so in a valid `traceparent`, and is kept if the client keeps it; one that begins here is kept by chance
(`sample`). What is not kept is passed on all the same, so that whoever comes after us decides alike. Requests without a key have no spans, as they
have no rows in the records: anybody could fill them.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from sluicegate.core import trace_context
from sluicegate.core.record import Attempt as AttemptRecord
from sluicegate.core.record import Record
from sluicegate.core.usage import Usage
from sluicegate.http.exchange import Exchange
from sluicegate.observe.tracing import PROMPT_READ, Called, Finished, Outgoing, Trace
from sluicegate.trip import Attempt, Trip

BODY_BYTES_MAX = 1 << 20  # of an answer that is looked into for who made it
WORD_MAX = 200  # characters of what an upstream calls something
CONTEXT = (trace_context.PARENT, trace_context.STATE)


class _Named(msgspec.Struct, gc=False):
    id: Any = ""
    model: Any = ""


_answer = msgspec.json.Decoder(_Named).decode


class Traces:
    """Begins traces, and hands them on when they have ended."""

    def __init__(
        self,
        share: float,
        heeds_parent: bool,
        prompts: bool,
        send: Callable[[Finished], None],
        clock: Callable[[], float],
        time_ns: Callable[[], int],
        bits: Callable[[int], int],
    ) -> None:
        """share: of the traces that begin here. heeds_parent: a client's decision counts. prompts: they are told. clock: that of exchanges and steps;
        bits: so many random ones."""
        self._share = share
        self._heeds_parent = heeds_parent
        self._prompts = prompts
        self._send = send
        self._clock = clock
        self._time_ns = time_ns
        self._bits = bits

    def begin(self, exchange: Exchange) -> Trace:
        """The trace of a request that has come."""
        headers = exchange.headers
        parent = trace_context.read(headers) if trace_context.PARENT in headers else None
        trace_id = parent.trace_id if parent is not None else self._bits(128) or 1
        kept = parent.sampled if parent is not None and self._heeds_parent else trace_context.sampled(trace_id, self._share)
        if not headers.keys().isdisjoint(CONTEXT):
            headers = {name: value for name, value in headers.items() if name not in CONTEXT}
        trace = Trace(parent, kept, trace_id, headers, self._bits)
        trace.end = self._end
        return trace

    def _end(self, trip: Trip, record: Record, now: float) -> None:
        trace = trip.trace
        if trace is None or not trace.sampled or trip.key is None:
            return
        for step in trace.steps:
            if step.name == "cache" and trip.lookup is not None:
                step.notes.setdefault("outcome", trip.lookup.told)
        ended_s = next((step.since_s for step in reversed(trace.steps) if step.name == "settle"), now)
        calls = [_called(trip, call, attempt, ended_s) for call, attempt in zip(trace.calls, record.attempts, strict=False)]
        self._send(
            Finished(
                trace.trace_id,
                trace.span_id,
                trace.parent_id,
                trace.state.decode(),
                self._time_ns() - int(self._clock() * 1e9),
                trip.exchange.arrived,
                now,
                trip.exchange.path,
                trip.key.path[-2].id if len(trip.key.path) > 1 else "",
                trip.fallback_used,
                record,
                trace.steps[:],  # an extension may be answered later
                calls,
                _beginning(trip.request.texts) if self._prompts and trip.request is not None else "",
            )
        )


def _called(trip: Trip, call: Outgoing, told: AttemptRecord, ended_s: float) -> Called:
    """ended_s: of the answer that the client gets."""
    attempt: Attempt = call.attempt
    request = trip.request
    usage = attempt.usage or Usage()
    response_id, response_model = _made_by(attempt) if attempt is trip.answered else ("", "")
    finishes = attempt.relay.finishes.items() if attempt.relay is not None else attempt.answer.finishes if attempt.answer is not None else ()
    return Called(
        call.span_id,
        call.since_s,
        call.answered_s,
        ended_s if attempt is trip.answered and attempt.relay is not None else call.answered_s,
        told,
        attempt.deployment.provider.name,
        attempt.deployment.model,
        trip.dialect.NAME,
        request is not None and request.stream,
        attempt.call.status if attempt.call is not None else 0,
        attempt.cap,
        attempt.granted,
        response_id,
        response_model,
        [reason for _, reason in sorted(finishes)],
        usage.cached_tokens,
        usage.cache_write_tokens,
        usage.reasoning_tokens,
    )


def _made_by(attempt: Attempt) -> tuple[str, str]:
    """The id of an answer and the model that it names, as far as it does."""
    found: Any = None
    if attempt.relay is not None:
        head = getattr(attempt.relay.reader, "head", None)
        found = getattr(head, "response", head)
    elif len(attempt.body) <= BODY_BYTES_MAX:
        with contextlib.suppress(msgspec.DecodeError, RecursionError):
            found = _answer(attempt.body)
    named = [found.get(name) if isinstance(found, dict) else getattr(found, name, "") for name in ("id", "model")]
    return _short(named[0]), _short(named[1])


def _beginning(texts: Sequence[str]) -> str:
    """Of a prompt, without joining all of it."""
    some, left = [], PROMPT_READ
    for text in texts:
        some.append(text[:left])
        left -= len(some[-1]) + 1
        if left < 0:
            break
    return "\n".join(some)[:PROMPT_READ]


def _short(value: object) -> str:
    return value[:WORD_MAX] if isinstance(value, str) else ""
