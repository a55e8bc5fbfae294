"""How long an upstream says to wait, from the headers of its answer.

In this order, the first that is there: `retry-after-ms`; `retry-after` in seconds or as an HTTP date (RFC 9110); `x-ratelimit-reset-*` of what has
nothing remaining, as a span (`6m0s`, `20ms`: OpenAI's documentation of rate limits); `anthropic-ratelimit-*-reset` of what has nothing remaining,
as a time (RFC 3339: Anthropic's). Of several that are spent the longest counts; a limit with something left says nothing about why a call was
refused. What is not a time, or beyond any sense, is as if it were not there.

Pure: headers and the time in, milliseconds out. Never raises.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

WAIT_MAX_MS = 3_600_000  # a provider that says more is asked again after an hour: that is one call
_SPAN = re.compile(r"(?:(\d{1,4})d)?(?:(\d{1,4})h)?(?:(\d{1,5})m(?!s))?(?:(\d{1,7}(?:\.\d{1,9})?)s)?(?:(\d{1,9}(?:\.\d{1,9})?)ms)?")
_UNITS_MS = (86_400_000, 3_600_000, 60_000, 1_000, 1)
_NUMBER = re.compile(r"\d{1,9}(?:\.\d{1,9})?")
_OPENAI = (b"requests", b"tokens")
_ANTHROPIC = (b"requests", b"tokens", b"input-tokens", b"output-tokens")
LIMITS_TOLD = frozenset((b"x-ratelimit-remaining-requests", b"x-ratelimit-remaining-tokens", b"anthropic-ratelimit-requests-remaining"))


def wait_ms(headers: Mapping[bytes, bytes], now_ms: int) -> int | None:
    """What an answer that refuses says. None: nothing. headers: lower-case names; now_ms: Unix time."""
    stated = (_number(headers.get(b"retry-after-ms"), 1), _retry_after(headers.get(b"retry-after"), now_ms))
    for wait in (*stated, _longest(_spans(headers)), _longest(_times(headers, now_ms))):
        if wait is not None:
            return min(wait, WAIT_MAX_MS)
    return None


def spent_ms(headers: Mapping[bytes, bytes], now_ms: int) -> int | None:
    """For how long a limit is spent that an answer, even a good one, tells of. None: none is."""
    wait = _longest((*_spans(headers), *_times(headers, now_ms)))
    return None if wait is None else min(wait, WAIT_MAX_MS)


def _spans(headers: Mapping[bytes, bytes]) -> Iterator[int | None]:
    for name in _OPENAI:
        if headers.get(b"x-ratelimit-remaining-" + name) == b"0":
            yield _span(headers.get(b"x-ratelimit-reset-" + name))


def _times(headers: Mapping[bytes, bytes], now_ms: int) -> Iterator[int | None]:
    for name in _ANTHROPIC:
        if headers.get(b"anthropic-ratelimit-" + name + b"-remaining") == b"0":
            yield _until(headers.get(b"anthropic-ratelimit-" + name + b"-reset"), now_ms)


def _longest(waits: "Iterator[int | None] | tuple[int | None, ...]") -> int | None:
    return max((wait for wait in waits if wait is not None), default=None)


def _number(value: bytes | None, unit_ms: int) -> int | None:
    text = value.decode("latin-1").strip() if value is not None else ""
    return round(float(text) * unit_ms) if _NUMBER.fullmatch(text) else None


def _retry_after(value: bytes | None, now_ms: int) -> int | None:
    seconds = _number(value, 1000)
    if seconds is not None or value is None:
        return seconds
    try:
        date = parsedate_to_datetime(value.decode("latin-1"))
    except ValueError:
        return None
    return _left(date, now_ms)


def _span(value: bytes | None) -> int | None:
    text = value.decode("latin-1").strip() if value is not None else ""
    found = _SPAN.fullmatch(text)
    if not text or found is None:
        return _number(value, 1000)
    return round(sum(float(part) * unit for part, unit in zip(found.groups(), _UNITS_MS, strict=True) if part))


def _until(value: bytes | None, now_ms: int) -> int | None:
    try:
        date = datetime.fromisoformat(value.decode("latin-1").strip()) if value is not None else None
    except ValueError:
        return None
    return None if date is None else _left(date, now_ms)


def _left(date: datetime, now_ms: int) -> int | None:
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    try:
        return max(0, round(date.timestamp() * 1000) - now_ms)
    except (OverflowError, ValueError):
        return None
