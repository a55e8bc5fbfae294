"""What a client is told of its request inside the answer, if it asks with the header `x-sluicegate-include` (docs/told.md).

    block    `sluicegate`: who answered, who was asked before, what all of it cost; in a whole answer, or in the last event of a stream
    cost     `cost_usd` in the usage at the end of a stream

Without the header the bytes of an answer pass untouched, and nothing here is called. The figures are those of all attempts, known once the last one
has been settled, so what is told comes with the last bytes.
"""

from typing import Any

from msgspec import Raw

from sluicegate.core.cache import Entry
from sluicegate.core.usage import NOTHING, Usage, merge
from sluicegate.dialects import openai_chat, openai_completions, telling
from sluicegate.dialects.form import BadRequest, Request
from sluicegate.dialects.telling import Told
from sluicegate.trip import Attempt, Trip

HEADER = b"x-sluicegate-include"
WORDS = frozenset(("block", "cost"))


def asked(presented: bytes) -> frozenset[str]:
    """The words of the header. Raises BadRequest for one that is not known."""
    words = frozenset(word.strip() for word in presented.decode("latin-1").split(",")) - {""}
    if not words <= WORDS:
        raise BadRequest(f"Unknown in {HEADER.decode()}: {min(words - WORDS)[:40]!r}. Known: block, cost.", HEADER.decode())
    return words


def prepare(request: Request, dialect: str, words: frozenset[str]) -> None:
    """The usage with the cost is written at the end: of the upstream's own, which comes before the cost is known, the client would see two."""
    if "cost" in words and dialect in (openai_chat.NAME, openai_completions.NAME):
        request.include_usage = False


def in_body(trip: Trip, attempt: Attempt, now: float) -> bytes:
    """A whole answer."""
    return telling.in_body(attempt.body, block(trip, attempt, now)) if "block" in trip.include else attempt.body


def in_stream(trip: Trip, attempt: Attempt, tail: bytes) -> bytes:
    """The last bytes of a stream."""
    relay, charge = attempt.relay, attempt.charge or NOTHING
    assert relay is not None
    told_block = block(trip, attempt, trip.exchange.arrived + trip.first_byte_s) if "block" in trip.include else None
    cost_usd = usd(trip.cost_nano_usd) if "cost" in trip.include else None
    usage = merge(Usage(charge.input_tokens, charge.output_tokens), attempt.usage or Usage())
    return telling.in_stream(trip.dialect.NAME, relay.reader.head, tail, Told(told_block, cost_usd, usage))


def in_cached_body(trip: Trip, entry: Entry, now: float) -> bytes:
    """A whole answer from the cache."""
    return telling.in_body(entry.body, _block_of_cached(trip, entry, now)) if "block" in trip.include else entry.body


def in_cached_stream(trip: Trip, entry: Entry, head: Any, tail: bytes, usage: Usage, now: float) -> bytes:
    """The last bytes of a stream from the cache. head: what the dialect repeats in all chunks."""
    told_block = _block_of_cached(trip, entry, now) if "block" in trip.include else None
    return telling.in_stream(trip.dialect.NAME, head, tail, Told(told_block, usd(0) if "cost" in trip.include else None, usage))


def _block_of_cached(trip: Trip, entry: Entry, now: float) -> dict[str, Any]:
    assert trip.request is not None
    return _block(trip, trip.request.model, entry.deployment, now)


def block(trip: Trip, attempt: Attempt, now: float) -> dict[str, Any]:
    """now: when the answer was begun."""
    return _block(trip, attempt.model, attempt.deployment.id, now)


def _block(trip: Trip, model: str, deployment: str, now: float) -> dict[str, Any]:
    return {
        "model": model,
        "deployment": deployment,
        "fallback_used": trip.fallback_used,
        "attempts": [_told_of(each) for each in trip.attempts],
        "cost_usd": usd(trip.cost_nano_usd),
        "overhead_ms": round(trip.overhead_ms(now), 2),
        "cache": trip.lookup.told if trip.lookup is not None else "off",
        "request_id": trip.request_id,
    }


def _told_of(attempt: Attempt) -> dict[str, Any]:
    known = attempt.record()
    told: dict[str, Any] = {"deployment": known.deployment, "outcome": known.outcome, "duration_ms": known.duration_us / 1000}
    if known.wait_us:
        told["wait_ms"] = known.wait_us / 1000
    if known.error:
        told["error"] = known.error
    return told | {"cost_usd": usd(known.cost_nano_usd)}


def usd(nano_usd: int) -> Raw:
    """Dollars as a JSON number, exact."""
    return Raw(b"%d.%09d" % divmod(nano_usd, 1_000_000_000))
