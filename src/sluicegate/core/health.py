"""How healthy a deployment is, from the results of its last probes. Pure.

down      so many probes in a row have failed
degraded  one of the last few has failed, or they take long, on the average
healthy   neither
unknown   none has been made
"""

from collections import deque
from typing import Literal

State = Literal["unknown", "healthy", "degraded", "down"]

RECENT = 5  # probes, one of which may not have failed
WEIGHT = 0.3  # of the last probe in the average of their times


class Condition:
    """Of one deployment."""

    __slots__ = ("_failures", "_recent", "latency_ms", "reason", "state")

    def __init__(self) -> None:
        self.state: State = "unknown"
        self.reason = ""
        self.latency_ms: float | None = None  # of those that were answered, on the average
        self._recent: deque[bool] = deque(maxlen=RECENT)  # whether they failed
        self._failures = 0  # in a row

    def note(self, failure: str, latency_ms: float, slow_ms: int, failures_max: int) -> None:
        """One probe's result. failure: why it failed; "" if it did not."""
        self._recent.append(bool(failure))
        if failure:
            self._failures += 1
        else:
            self._failures = 0
            self.latency_ms = latency_ms if self.latency_ms is None else self.latency_ms + WEIGHT * (latency_ms - self.latency_ms)
        self.state, self.reason = self._judged(failure, slow_ms, failures_max)

    def _judged(self, failure: str, slow_ms: int, failures_max: int) -> tuple[State, str]:
        if self._failures >= failures_max:
            return "down", f"{self._failures} probes in a row failed: {failure}"
        if failure:
            return "degraded", f"a probe failed: {failure}"
        if any(self._recent):
            return "degraded", f"{sum(self._recent)} of the last {len(self._recent)} probes failed"
        slow = (self.latency_ms or 0.0) > slow_ms
        return "degraded" if slow else "healthy", f"probes are answered in {self.latency_ms:.0f} ms"
