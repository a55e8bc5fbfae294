"""What the client reads: response headers, the start of a stream, and the last bytes of every answer. Sync; nothing here can block."""

from functools import lru_cache
from typing import cast

from sluicegate import telling
from sluicegate.core import refusals
from sluicegate.core.cache import Entry
from sluicegate.core.classify import readable
from sluicegate.core.once import Kept
from sluicegate.core.usage import Usage, merge
from sluicegate.dialects.between import Between
from sluicegate.dialects.between import Reader as TranslatedReader
from sluicegate.dialects.form import Request
from sluicegate.dialects.ruled import Ruled
from sluicegate.reject import Reject
from sluicegate.relay import Relay
from sluicegate.trip import Attempt, Trip

# Header lines of our own making: ids, numbers, and names that the configuration has checked. None can hold a control character.
_ID = "x-request-id"
_ID_OF = {"anthropic_messages": "request-id"}  # by the client's dialect: https://docs.anthropic.com/en/api/errors#request-id
_SERVED_BY = b"\r\nx-sluicegate-model: %b\r\nx-sluicegate-deployment: %b"
_MAX_TOKENS = b"\r\nx-sluicegate-max-tokens: %d"
_UNARY = b"\r\nx-sluicegate-cost-usd: %d.%09d\r\ncontent-type: application/json"
_STREAM = b"\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\nx-accel-buffering: no"
_CHANGED = b"\r\nx-sluicegate-changed: %b"
_LEFT_OUT = b"\r\nx-sluicegate-left-out: %b"
_REPLAYED = b"\r\nx-sluicegate-idempotent: replayed\r\nx-sluicegate-replay-of: %b\r\ncontent-type: %b"
_CACHE = b"\r\nx-sluicegate-cache: %b"
_AGE = b"\r\nage: %d\r\nx-sluicegate-cost-usd: 0.000000000"
_JSON = b"\r\ncontent-type: application/json"

_HUNDREDTHS = [f".{n:02d}" for n in range(100)]  # to format a float takes three times as long

# Before the first event: a comment, with one line feed, as an empty line behind it is an event to some readers; and what Anthropic's clients know.
_COMMENT = b": keep-alive\n"
_SIGNS_OF_LIFE = {"anthropic_messages": b'event: ping\ndata: {"type": "ping"}\n\n'}


def start_stream(trip: Trip, attempt: Attempt, now: float) -> None:
    """Commits the 200 of a stream, unless a sign of life has."""
    if trip.status:
        return
    trip.status = 200
    trip.exchange.start(200, (), None, b"".join((_common(trip, now), _served_by(trip, attempt), _STREAM)))


def keep_alive(trip: Trip) -> None:
    """A sign of life between the request and the first output of a stream. The first one commits the 200: what is not known by then is in no header:
    who answers, what was tried, the overhead."""
    if not trip.status:
        trip.status = 200
        trip.exchange.start(200, (), None, _ids(trip).encode() + _warning(trip) + _STREAM)
    trip.exchange.write(_SIGNS_OF_LIFE.get(trip.dialect.NAME, _COMMENT))


def finish(trip: Trip, now: float) -> None:
    """Writes what is left of the answer. Called once, after the settle has been written out."""
    attempt, exchange = trip.answered, trip.exchange
    if trip.rejected is not None:
        _reject(trip, trip.rejected, now)
    elif trip.replay is not None:
        _replay(trip, trip.replay, now)
    elif trip.lookup is not None and trip.lookup.entry is not None:
        _from_cache(trip, trip.lookup.entry, now)
    elif attempt is None:
        trip.status = trip.status or 499  # the client left before there was an answer
        exchange.abort()
    elif attempt.relay is None:
        _unary(trip, attempt, now)
    elif attempt.relay.ended == "complete":
        tail = attempt.relay.tail = attempt.relay.tail or _last(attempt, attempt.relay)
        exchange.finish(telling.in_stream(trip, attempt, tail) if trip.include else tail)
    elif attempt.relay.ended == "truncated":
        tail = _truncation(trip, attempt)
        exchange.finish(telling.in_stream(trip, attempt, tail) if trip.include else tail)
    else:
        _died(trip, attempt, attempt.relay)


def _unary(trip: Trip, attempt: Attempt, now: float) -> None:
    trip.status = 200
    cost = _UNARY % divmod(trip.cost_nano_usd, 1_000_000_000)
    body = telling.in_body(trip, attempt, now) if trip.include else attempt.body
    trip.exchange.answer(200, body, b"".join((_common(trip, now), _served_by(trip, attempt), cost)))


def _died(trip: Trip, attempt: Attempt, relay: Relay) -> None:
    """A stream that has ended in its middle."""
    if relay.error is not None and relay.late:
        over = relay.error.reason == "deadline"
        message = "The time of the request was over before its answer was whole." if over else "The upstream said nothing more in time."
        _break(trip, message, "upstream_error", "upstream_timeout")
        return
    told = readable(relay.failure.message, attempt.deployment.provider.headers) if relay.failure is not None else ""
    _break(trip, told or "The upstream ended its answer early.", "upstream_error", "upstream_error")


def _replay(trip: Trip, kept: Kept, now: float) -> None:
    """What the first request with this idempotency key was answered, byte for byte."""
    trip.status = kept.status
    body = kept.body or b""
    replayed = _REPLAYED % (kept.request_id.encode(), kept.content_type.encode("latin-1"))
    trip.exchange.start(kept.status, (), len(body), _common(trip, now) + replayed)
    trip.exchange.finish(body)


def _from_cache(trip: Trip, entry: Entry, now: float) -> None:
    """What an equal request was answered, framed as this client has asked for it."""
    request = trip.request
    assert request is not None
    age_s = max(0, trip.time_ms - entry.stored_ms) // 1000
    lines = _common(trip, now) + _names(request.model, entry.deployment) + _AGE % age_s
    begun, trip.status = trip.status, 200
    if not request.stream:
        trip.exchange.answer(200, telling.in_cached_body(trip, entry, now) if trip.include else entry.body, lines + _JSON)
        return
    trip.first_byte_s = now - trip.exchange.arrived
    if not begun:  # else a sign of life has done it
        trip.exchange.start(200, (), None, lines + _STREAM)
    trip.exchange.finish(_as_stream(trip, entry, request, now))


def _as_stream(trip: Trip, entry: Entry, request: Request, now: float) -> bytes:
    """An answer that was kept in one piece, all events of it. Usage is only for who has asked for it."""
    dialect = trip.dialect
    reader, hide_usage, out, tail, usage = dialect.StreamReader(), not request.include_usage, [], b"", Usage()
    for event in (*reader.feed(dialect.streamed(entry.body)), *reader.end()):
        usage = merge(usage, event.usage) if event.usage is not None else usage
        if event.kind == "done":
            tail = event.raw
        else:
            out.append(dialect.write_event(event, True) if hide_usage and event.kind == "chunk" else event.raw)
    out.append(telling.in_cached_stream(trip, entry, reader.head, tail, usage, now) if trip.include else tail)
    return b"".join(out)


def _last(attempt: Attempt, relay: Relay) -> bytes:
    """The last bytes of a stream that the client reads in another dialect than it came in: written when the usage is known."""
    charge = attempt.charge
    assert charge is not None
    return cast(TranslatedReader, relay.reader).last(Usage(charge.input_tokens, charge.output_tokens))


def _truncation(trip: Trip, attempt: Attempt) -> bytes:
    relay, request = attempt.relay, trip.request
    assert relay is not None and request is not None and attempt.charge is not None
    charge = attempt.charge
    usage = Usage(charge.input_tokens, charge.output_tokens) if request.include_usage else None
    unfinished = [choice for choice in range(request.choices) if choice not in relay.finishes]
    return attempt.via.write_truncation(relay.reader.head, relay.after, unfinished, relay.truncated, usage)


def _reject(trip: Trip, rejected: Reject, now: float) -> None:
    extra: dict[str, object] = {"request_id": trip.request_id}
    if rejected.detail is not None:
        extra["sluicegate"] = rejected.detail
    if trip.status:  # the answer has been started, its headers are out
        for name, value in rejected.headers:
            if name == b"retry-after":
                extra["retry_after"] = int(value) if value.isdigit() else value.decode("latin-1")
        _break(trip, rejected.message, rejected.type, rejected.code, extra)
        return
    trip.status = trip.dialect.STATUS.get(rejected.code, rejected.status)
    body = trip.dialect.write_error(trip.status, rejected.message, rejected.type, rejected.param, rejected.code, extra)
    trip.exchange.start(trip.status, rejected.headers, len(body), _common(trip, now) + _JSON)
    trip.exchange.finish(body)


def _break(trip: Trip, message: str, type_: str, code: str, extra: dict[str, object] | None = None) -> None:
    """An error event, no `[DONE]`, and a connection that does not close as clean."""
    trip.exchange.break_off(trip.dialect.write_stream_error(message, type_, code, extra or {"request_id": trip.request_id}))


def _ids(trip: Trip) -> str:
    request_id = trip.request_id
    return f"\r\n{_ID_OF.get(trip.dialect.NAME, _ID)}: {request_id}\r\nx-sluicegate-request-id: {request_id}"


def _common(trip: Trip, now: float) -> bytes:
    tried, hundredths = trip.attempts, int(trip.overhead_ms(now) * 100)
    text = f"{_ids(trip)}\r\nx-sluicegate-overhead-ms: {hundredths // 100}{_HUNDREDTHS[hundredths % 100]}"
    if tried:
        text += f"\r\nx-sluicegate-attempts: {tried[0].deployment.id}:{tried[0].outcome}"
        for attempt in tried[1:]:
            text += f",{attempt.deployment.id}:{attempt.outcome}"
    lines = text.encode()
    if trip.lookup is not None:
        lines += _CACHE % trip.lookup.told.encode()
    if trip.plan is not None and trip.reply is not None and trip.refset is not None:
        template, states = trip.plan.template, trip.reply.states
        lines += refusals.ratelimit_lines(template.shown, trip.refset, trip.reply)
        if states:
            for i, least, _ in template.marked:
                if states[i][0] >= least:
                    return lines + _warning(trip)
    return lines


def _warning(trip: Trip) -> bytes:
    """Of the limit of which most is used, if that is worth one. In a refusal too."""
    if trip.plan is None or trip.reply is None or trip.refset is None:
        return b""
    template = trip.plan.template
    return refusals.budget_warning(template.marked, template.heads, template.counters, trip.refset, trip.reply, trip.policy.budget.show_figures)


@lru_cache(1024)
def _names(model: str, deployment: str) -> bytes:
    return _SERVED_BY % (model.encode(), deployment.encode())


def _served_by(trip: Trip, attempt: Attempt) -> bytes:
    assert trip.request is not None
    lines = _names(attempt.model, attempt.deployment.id)
    if attempt.cap is not None and attempt.cap != trip.request.cap:  # lowered, or set where the client set none
        lines += _MAX_TOKENS % attempt.cap
    if trip.changed:
        lines += _CHANGED % ",".join(trip.changed).encode()
    left_out = attempt.left_out
    if attempt.via is not trip.dialect and isinstance(attempt.via, Between | Ruled):
        left_out = [*attempt.via.left_out, *left_out]
    if left_out:
        lines += _LEFT_OUT % ",".join(left_out).encode()
    return lines
