"""What is learned from complete usages: small summaries of bounded size that forget by themselves.

They are read on the path of every request, so reading is cheap, and there is an answer where nothing has been learned yet. Nothing here fails.
"""

import itertools
import math
from collections import deque
from functools import lru_cache

_STEPS = 8  # buckets per doubling: 9 % wide
_AGAIN = 20  # a percentile is worked out again when this part of the samples is new: 1 in 20


class Largest:
    """The largest of the last `last` values, and how many there have been."""

    __slots__ = ("_last", "_peaks", "count", "value")

    def __init__(self, last: int) -> None:
        self.count = 0
        self.value = 0  # the largest; 0 before there is any
        self._last = last
        self._peaks: deque[tuple[int, int]] = deque()  # (number, value), values falling: each the largest of all from it on

    def add(self, value: int, of: int = 1) -> None:
        """One more value. of: it is the largest of so many, which are forgotten together, with the last of them."""
        peaks = self._peaks
        while peaks and peaks[-1][1] <= value:
            peaks.pop()
        self.count += of
        peaks.append((self.count - 1, value))
        if peaks[0][0] < self.count - self._last:
            peaks.popleft()
        self.value = peaks[0][1]


class Mean:
    """A weighted mean of ratios (sum of parts over sum of wholes), in thousandths, of about the last `last` pairs."""

    __slots__ = ("_last", "_pairs", "_parts", "_wholes", "count", "milli")

    def __init__(self, last: int) -> None:
        self.count = 0
        self.milli = 0  # the mean, rounded up; 0 before there is any
        self._last = last
        self._pairs = self._parts = self._wholes = 0

    def add(self, part: int, whole: int, pairs: int = 1) -> None:
        """One more pair, or the sums of several. Old pairs fade: at twice `last` all sums are halved."""
        self.count += pairs
        self._pairs += pairs
        self._parts += part
        self._wholes += whole
        if self._pairs >= 2 * self._last:
            self._pairs //= 2
            self._parts //= 2
            self._wholes //= 2
        self.milli = -(-self._parts * 1000 // self._wholes) if self._wholes else 0


@lru_cache(4096)
def bucket_of(value: int) -> int:
    """The bucket of a histogram that a value falls into."""
    return int(math.log2(value) * _STEPS) if value > 1 else 0


class Histogram:
    """Counts per log-scaled bucket, shared between workers: `shared` is the sum that a ledger last told, `sent` and `fresh` what is not in it yet."""

    __slots__ = ("_new", "_p95", "fresh", "samples", "sent", "shared", "wanted")

    def __init__(self) -> None:
        self.shared: dict[int, int] = {}
        self.sent: dict[int, int] = {}
        self.fresh: dict[int, int] = {}
        self.samples = 0
        self.wanted = True  # somebody has read or fed it since the last exchange
        self._new = 0
        self._p95: int | None = None

    def add(self, bucket: int, samples: int = 1) -> None:
        """One more sample, or several, by their bucket."""
        self.fresh[bucket] = self.fresh.get(bucket, 0) + samples
        self.samples += samples
        self._new += samples
        self.wanted = True
        if self._new * _AGAIN >= self.samples:
            self._p95 = None

    def take(self) -> dict[str, int]:
        """What is new since the last exchange; it counts as sent."""
        taken, self.fresh = self.fresh, {}
        self.wanted = False
        for bucket, n in taken.items():
            self.sent[bucket] = self.sent.get(bucket, 0) + n
        return {str(bucket): n for bucket, n in taken.items()}

    def keep(self) -> None:
        """What was sent has not arrived."""
        for bucket, n in self.sent.items():
            self.fresh[bucket] = self.fresh.get(bucket, 0) + n
        self.sent = {}
        self.wanted = True

    def absorb(self, sums: dict[str, int]) -> None:
        """The sum over all workers, with what was sent in it."""
        self.shared = {int(bucket): n for bucket, n in sums.items()}
        self.sent = {}
        self.samples = sum(self.shared.values()) + sum(self.fresh.values())
        self._p95 = None

    def p95(self) -> int:
        """A value that at most 5 % of the samples exceed. There must be samples."""
        self.wanted = True
        if self._p95 is None:
            self._new = 0
            self._p95 = self._percentile(95)
        return self._p95

    def _percentile(self, percent: int) -> int:
        enough = -(-self.samples * percent // 100)
        buckets = sorted({*self.shared, *self.sent, *self.fresh})
        below = itertools.accumulate(self.shared.get(bucket, 0) + self.sent.get(bucket, 0) + self.fresh.get(bucket, 0) for bucket in buckets)
        bucket = next((bucket for bucket, samples in zip(buckets, below, strict=True) if samples >= enough), buckets[-1])
        return int(2 ** ((bucket + 1) / _STEPS))
