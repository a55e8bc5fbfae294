"""What is counted of requests beside what they used, and how latencies are summed up so that sums of sums still know their median.

Pure. A latency counts in one of LATENCIES, whose bounds rise by half each: a quantile read from them is off by less than a fifth, however many
rows, hours and workers it was added up from.

Invariant: each request counts once, when it has ended.
"""

from bisect import bisect_left
from collections.abc import Sequence

from sluicegate.core.record import Record

# records: all requests, also those that were refused; the rest are some of them, but for the tokens. `requests` among the amounts has those alone
# that reached an upstream: what limits count.
COUNTS = (
    *("records", "refused", "throttled", "errors", "fallbacks", "cache_hits", "answers"),
    *("cached_tokens", "cache_write_tokens", "reasoning_tokens", "saved_nano_usd"),
)
BOUNDS_US = tuple(int(1_000 * 1.5**i) for i in range(32))  # 1 ms to 290 s: a latency counts in the first that it does not exceed
LATENCIES = (*(f"latency_{i}" for i in range(len(BOUNDS_US))), "latency_more")
EXPIRED = "expired"  # error of a request whose worker died: whoever charged its hold has written the record

TOO_MANY = 429


def counts(record: Record) -> list[int]:
    """What one request adds to COUNTS and LATENCIES."""
    found = [0] * (len(COUNTS) + len(LATENCIES))
    count(record, [record.latency_us], found)
    found[7:11] = record.cached_tokens, record.cache_write_tokens, record.reasoning_tokens, record.saved_nano_usd
    return found


def count(like: Record, latencies_us: Sequence[int], into: list[int]) -> None:
    """Adds what became of requests that ended like one of them, each after so long, to sums by COUNTS and LATENCIES: all but amounts."""
    number = len(latencies_us)
    into[0] += number
    if like.refusal:
        into[1] += number
    elif like.error:
        into[3] += number
    if like.status == TOO_MANY:
        into[2] += number
    elif like.status == 200:
        into[6] += number
        for latency_us in latencies_us:
            into[len(COUNTS) + bisect_left(BOUNDS_US, latency_us)] += 1
        if fell_back(like):
            into[4] += number
        if like.cache == "hit":
            into[5] += number


def fell_back(record: Record) -> bool:
    """Whether another deployment answered than the first that was asked."""
    attempts = record.attempts
    return len(attempts) > 1 and record.status == 200 and attempts[-1].deployment != attempts[0].deployment


def quantile_us(latencies: Sequence[int], share: float) -> int | None:
    """The latency that this share of requests does not exceed, from counts by LATENCIES; None of none."""
    rank = share * sum(latencies)
    if not rank:
        return None
    below = 0
    for i, number in enumerate(latencies):
        if below + number >= rank:
            low, high = (BOUNDS_US[i - 1] if i else 0), BOUNDS_US[min(i, len(BOUNDS_US) - 1)]
            return round(low + (high - low) * (rank - below) / number) if high > low else low
        below += number
    raise AssertionError("more were counted than there are")
