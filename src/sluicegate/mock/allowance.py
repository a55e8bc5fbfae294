"""How many requests a credential may make, as providers with such a limit count and tell it: a bucket that refills continuously.

Pure: time comes in. The headers are those of OpenAI (remaining, and the span until all of it is there again) or of Anthropic (the same as a time).
A refusal also says when the next request may be made, as both do.
"""

from datetime import UTC, datetime
from math import ceil
from typing import Literal, NamedTuple

Style = Literal["openai", "anthropic", "none"]
MINUTE_S = 60.0


class Taken(NamedTuple):
    """What was found for one request. granted: it may be made, and counts."""

    granted: bool
    remaining: int
    full_in_s: float
    next_in_s: float


class Allowance:
    """Of one credential."""

    def __init__(self, per_minute: int, now_s: float) -> None:
        self._per_minute = per_minute
        self._left = float(per_minute)
        self._at_s = now_s

    def take(self, now_s: float) -> Taken:
        """One request."""
        rate = self._per_minute / MINUTE_S
        self._left = min(self._per_minute, self._left + max(0.0, now_s - self._at_s) * rate)
        self._at_s = now_s
        granted = self._left >= 1
        if granted:
            self._left -= 1
        return Taken(granted, int(self._left), (self._per_minute - self._left) / rate, max(0.0, 1 - self._left) / rate)


def headers(style: Style, per_minute: int, taken: Taken, now_s: float) -> dict[str, str]:
    """As the answer has them."""
    if style == "none":
        return {}
    told = {} if taken.granted else {"retry-after": str(ceil(taken.next_in_s))}
    if style == "anthropic":
        full = datetime.fromtimestamp(ceil(now_s + taken.full_in_s), UTC).isoformat().replace("+00:00", "Z")
        name = "anthropic-ratelimit-requests-"
        return {**told, f"{name}limit": str(per_minute), f"{name}remaining": str(taken.remaining), f"{name}reset": full}
    if not taken.granted:
        told["retry-after-ms"] = str(ceil(taken.next_in_s * 1000))
    name = "x-ratelimit-"
    full_ms = ceil(taken.full_in_s * 1000)
    return {
        **told,
        f"{name}limit-requests": str(per_minute),
        f"{name}remaining-requests": str(taken.remaining),
        f"{name}reset-requests": f"{full_ms // 1000}s" if full_ms >= 1000 else f"{full_ms}ms",
    }
