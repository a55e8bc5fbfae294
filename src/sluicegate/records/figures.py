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
    *("cached_tokens", "cache_write_tokens", "reasoning_tokens"),
)
BOUNDS_US = tuple(int(1_000 * 1.5**i) for i in range(32))  # 1 ms to 290 s: a latency counts in the first that it does not exceed
LATENCIES = (*(f"latency_{i}" for i in range(len(BOUNDS_US))), "latency_more")
EXPIRED = "expired"  # error of a request whose worker died: whoever charged its hold has written the record

TOO_MANY = 429


def counts(record: Record) -> list[int]:
    """What one request adds to COUNTS and LATENCIES."""
    found = [0] * (len(COUNTS) + len(LATENCIES))
    count(record, found)
    return found


def count(record: Record, into: list[int]) -> None:
    """Adds one request to sums by COUNTS and LATENCIES."""
    into[0] += 1
    status = record.status
    if record.refusal:
        into[1] += 1
    elif record.error:
        into[3] += 1
    if status == TOO_MANY:
        into[2] += 1
    elif status == 200:
        into[6] += 1
        into[len(COUNTS) + bisect_left(BOUNDS_US, record.latency_us)] += 1
        if len(record.attempts) > 1 and fell_back(record):
            into[4] += 1
        if record.cache == "hit":
            into[5] += 1
    into[7] += record.cached_tokens
    into[8] += record.cache_write_tokens
    into[9] += record.reasoning_tokens


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
