"""Windows: over which time a limit counts, and the spans of those that end.

Two families. Windows that *refill* (Bucket, Sliding) give room back with time. Windows that do not (Calendar, Fixed, Lifetime) only end.
Open is concurrency: room comes back at settle. All times are integer milliseconds since the epoch, in the ledger's time.

Invariants of `span`: the spans of a window follow each other without gap or overlap, contain the time they were asked for, and have labels of their
own. A label is made from the start of its span alone, so that everyone inside one span names it alike, whatever their clocks say.
"""

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from typing import Literal
from zoneinfo import ZoneInfo

import msgspec

Every = Literal["hour", "day", "week", "month"]
WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


class Bucket(msgspec.Struct, frozen=True, tag="bucket"):
    """A token bucket: refills `amount` every `period_ms`, continuously."""

    period_ms: int


class Sliding(msgspec.Struct, frozen=True, tag="sliding"):
    """60 slices of `period_ms`; a slice counts whole while any part of it is inside, so no span of that length admits more than the amount."""

    period_ms: int


class Calendar(msgspec.Struct, frozen=True, tag="calendar"):
    """Hour, day, week or month in an IANA zone, optionally anchored: `:30`, `09:00`, `mon 09:00`, `15 09:00` (`anchor` gives the one spelling)."""

    every: Every
    tz: str = "UTC"
    at: str = ""


class Fixed(msgspec.Struct, frozen=True, tag="fixed"):
    """`period_ms` long, aligned to the epoch."""

    period_ms: int


class Lifetime(msgspec.Struct, frozen=True, tag="lifetime"):
    """Never resets."""


class Open(msgspec.Struct, frozen=True, tag="open"):
    """Concurrency: counts what is in flight."""


Window = Bucket | Sliding | Calendar | Fixed | Lifetime | Open


class Span(msgspec.Struct, frozen=True):
    """One instance of a window that ends: `[start_ms, end_ms)` and a readable label in local time. `end_ms` 0 means for ever (then no label)."""

    start_ms: int
    end_ms: int
    label: str


def span(window: Calendar | Fixed | Lifetime, now_ms: int) -> Span:
    """The instance of a window that contains `now_ms`."""
    if isinstance(window, Lifetime):
        return Span(0, 0, "")
    if isinstance(window, Fixed):
        start_ms = now_ms - now_ms % window.period_ms
        return Span(start_ms, start_ms + window.period_ms, _fixed_label(start_ms))
    zone, (day, minute) = ZoneInfo(window.tz), _parts(window.every, window.at)
    if window.every == "hour":
        return _hour(zone, minute, now_ms)
    return _days(window.every, zone, day, minute, now_ms)


# -- anchors ------------------------------------------------------------------------------------------------------------------------------

_ANCHORS = {
    "hour": (re.compile(r"()():([0-5][0-9])"), "':30'"),
    "day": (re.compile(r"()([01][0-9]|2[0-3]):([0-5][0-9])"), "'09:00'"),
    "week": (re.compile(r"(mon|tue|wed|thu|fri|sat|sun)(?: ([01][0-9]|2[0-3]):([0-5][0-9]))?"), "'mon' or 'mon 09:00'"),
    "month": (
        re.compile(r"(0?[1-9]|[12][0-9]|3[01])(?: ([01][0-9]|2[0-3]):([0-5][0-9]))?"),
        "'15', '15 09:00' or '31' (a shorter month: its last day)",
    ),
}


def anchor(every: Every, at: str) -> str:
    """The one spelling of an anchor; "" where it says what goes without saying. Raises ValueError that lists the accepted forms."""
    day, minute = _parts(every, at.strip().lower())
    clock = f"{minute // 60:02}:{minute % 60:02}"
    if every == "hour":
        return f":{minute:02}" if minute else ""
    if every == "day":
        return clock if minute else ""
    name = WEEKDAYS[day] if every == "week" else str(day + 1)
    return f"{name} {clock}" if minute else name if day else ""


@lru_cache(maxsize=1024)
def _parts(every: Every, at: str) -> tuple[int, int]:
    """(day of the week or month from 0, minute of the day or hour)."""
    if not at:
        return 0, 0
    pattern, forms = _ANCHORS[every]
    match = pattern.fullmatch(at)
    if match is None:
        raise ValueError(f"{at!r} is no time in a {every}; write {forms}")
    day, hours, minutes = match.groups()
    index = WEEKDAYS.index(day) if every == "week" else int(day) - 1 if day else 0
    return index, int(hours or 0) * 60 + int(minutes or 0)


# -- calendar -----------------------------------------------------------------------------------------------------------------------------


def _days(every: Every, zone: ZoneInfo, day: int, minute: int, now_ms: int) -> Span:
    """The day, week or month around now: the last boundary that is not later, up to the next one."""
    today = _local(now_ms, zone).date()
    clock = time(minute // 60, minute % 60)
    end_ms = 0
    for first in _boundaries(every, day, today):
        start_ms = _instant_ms(datetime.combine(first, clock), zone)
        if start_ms <= now_ms:
            return Span(start_ms, end_ms, _label(every, first))
        end_ms = start_ms
    raise AssertionError("boundaries go back without end")


def _boundaries(every: Every, day: int, today: date) -> Iterator[date]:
    """Dates on which windows begin, backwards from one that is later than now."""
    if every == "month":
        month = today.year * 12 + today.month  # the next one, counted from 0
        while True:
            yield _date_in_month(month, day)
            month -= 1
    step = timedelta(days=7 if every == "week" else 1)
    first = today + (step if every == "day" else timedelta(days=7 + (day - today.weekday()) % 7))
    while True:
        yield first
        first -= step


def _date_in_month(month: int, day: int) -> date:
    """The day (from 0) of a month (counted from year 0), or the month's last day if it is shorter."""
    first = date(month // 12, month % 12 + 1, 1)
    next_first = date((month + 1) // 12, (month + 1) % 12 + 1, 1)
    return min(first + timedelta(days=day), next_first - timedelta(days=1))


def _label(every: Every, first: date) -> str:
    if every == "day":
        return first.isoformat()
    if every == "month":
        return f"{first:%Y-%m}"
    year, week, _ = first.isocalendar()
    return f"{year}-W{week:02}"


def _hour(zone: ZoneInfo, minute: int, now_ms: int) -> Span:
    """The hour around now. Both of two repeated hours are hours of their own; the second carries its offset in the label."""
    near = _local(now_ms, zone).replace(minute=minute, second=0, microsecond=0, tzinfo=None, fold=0)
    marks: set[int] = set()
    for hours in range(-3, 4):
        naive = near + timedelta(hours=hours)
        marks.add(_instant_ms(naive, zone))
        if _is_real(naive, zone):
            marks.add(round(naive.replace(tzinfo=zone, fold=1).timestamp()) * 1000)
    start_ms = max(mark for mark in marks if mark <= now_ms)
    end_ms = min(mark for mark in marks if mark > now_ms)
    start = _local(start_ms, zone)
    label = f"{start:%Y-%m-%dT%H}" + (f".{start:%M}" if start.minute else "") + (f"{start:%z}" if start.fold else "")
    return Span(start_ms, end_ms, label)


def _fixed_label(start_ms: int) -> str:
    start = _local(start_ms, UTC)
    return f"{start:%Y-%m-%dT%H.%M.%S}" + (f".{start_ms % 1000:03}" if start_ms % 1000 else "")


def _local(now_ms: int, zone: tzinfo) -> datetime:
    return datetime.fromtimestamp(now_ms // 1000, zone)


def _is_real(naive: datetime, zone: ZoneInfo) -> bool:
    """Whether clocks in the zone ever showed this time."""
    there = naive.replace(tzinfo=zone)
    return there.astimezone(UTC).astimezone(zone).replace(tzinfo=None, fold=0) == naive


def _instant_ms(naive: datetime, zone: ZoneInfo) -> int:
    """When clocks in the zone first show a local time; if they never do (skipped), the first instant after it."""
    there = naive.replace(tzinfo=zone)
    seconds = round(there.timestamp())
    if _is_real(naive, zone):
        return seconds * 1000
    before, after = round(there.replace(fold=1).timestamp()), seconds  # a skipped time lies between these two readings of it
    offset = datetime.fromtimestamp(before, zone).utcoffset()
    while after - before > 1:
        middle = (before + after) // 2
        if datetime.fromtimestamp(middle, zone).utcoffset() == offset:
            before = middle
        else:
            after = middle
    return after * 1000
