"""Spans of windows: anchors, zones, days of 23 and 25 hours, labels."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.core.windows import WEEKDAYS, Calendar, Fixed, Lifetime, Span, anchor, span

HOUR_MS = 3_600_000
ZONES = [
    "UTC",
    "Europe/Berlin",
    "Europe/Amsterdam",
    "America/New_York",
    "America/Havana",  # changes at midnight, both ways
    "America/Sao_Paulo",  # midnight skipped until 2019
    "Asia/Tokyo",
    "Asia/Kolkata",
    "Asia/Kathmandu",
    "Asia/Beirut",  # midnight skipped
    "Africa/Casablanca",
    "Australia/Lord_Howe",  # changes by half an hour
    "Pacific/Apia",  # a whole day skipped, 2011-12-30
    "Pacific/Chatham",
]


def ms(text: str) -> int:
    """Milliseconds of an ISO time; without an offset it is UTC."""
    when = datetime.fromisoformat(text)
    return round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)


def begins(one: Span, tz: str) -> str:
    return datetime.fromtimestamp(one.start_ms / 1000, ZoneInfo(tz)).isoformat()


# -- plain spans --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("window", "start", "end", "label"),
    [
        (Calendar("hour"), "2026-11-30T14:00", "2026-11-30T15:00", "2026-11-30T14"),
        (Calendar("day"), "2026-11-30T00:00", "2026-12-01T00:00", "2026-11-30"),
        (Calendar("week"), "2026-11-30T00:00", "2026-12-07T00:00", "2026-W49"),
        (Calendar("month"), "2026-11-01T00:00", "2026-12-01T00:00", "2026-11"),
        (Calendar("hour", at=":30"), "2026-11-30T14:30", "2026-11-30T15:30", "2026-11-30T14.30"),
        (Calendar("day", at="09:00"), "2026-11-30T09:00", "2026-12-01T09:00", "2026-11-30"),
        (Calendar("day", at="16:00"), "2026-11-29T16:00", "2026-11-30T16:00", "2026-11-29"),
        (Calendar("week", at="wed 09:00"), "2026-11-25T09:00", "2026-12-02T09:00", "2026-W48"),
        (Calendar("month", at="15 09:00"), "2026-11-15T09:00", "2026-12-15T09:00", "2026-11"),
        (Calendar("month", at="31"), "2026-11-30T00:00", "2026-12-31T00:00", "2026-11"),
        (Calendar("day", "Asia/Tokyo"), "2026-11-29T15:00", "2026-11-30T15:00", "2026-11-30"),
        (Fixed(30_000), "2026-11-30T14:59:30", "2026-11-30T15:00:00", "2026-11-30T14.59.30"),
        (Fixed(7_200_000), "2026-11-30T14:00", "2026-11-30T16:00", "2026-11-30T14.00.00"),
    ],
)
def test_span_of_a_window(window: Calendar | Fixed, start: str, end: str, label: str) -> None:
    """Each kind of window begins and ends where its name and anchor say, and is labelled after its start."""
    assert span(window, ms("2026-11-30T14:59:50")) == Span(ms(start), ms(end), label)


def test_lifetime_has_no_end() -> None:
    """A lifetime window is one span without end or label."""
    assert span(Lifetime(), ms("2026-11-30T14:59:50")) == Span(0, 0, "")


def test_a_month_that_is_too_short_begins_on_its_last_day() -> None:
    """An anchor past a month's end means its last day, also in February and in a leap year."""
    window = Calendar("month", at="31 09:00")
    starts = []
    now_ms = ms("2028-01-31T09:00")
    for _ in range(4):
        one = span(window, now_ms)
        starts.append(begins(one, "UTC")[:16])
        now_ms = one.end_ms
    assert starts == ["2028-01-31T09:00", "2028-02-29T09:00", "2028-03-31T09:00", "2028-04-30T09:00"]


def test_the_last_week_of_a_year_has_one_label() -> None:
    """A week across New Year keeps the label of the ISO year in which it began counting."""
    assert span(Calendar("week"), ms("2026-12-31T12:00")).label == span(Calendar("week"), ms("2027-01-03T12:00")).label == "2026-W53"


# -- zones --------------------------------------------------------------------------------------------------------------------------------


def test_month_in_tokyo_begins_at_tokyo_midnight() -> None:
    """Case 22: one minute after midnight in Tokyo the month has already reset, though UTC is still in the last one."""
    one = span(Calendar("month", "Asia/Tokyo"), ms("2026-08-01T00:01:00+09:00"))
    assert one == Span(ms("2026-08-01T00:00:00+09:00"), ms("2026-09-01T00:00:00+09:00"), "2026-08")


@pytest.mark.parametrize(("day", "hours"), [("2026-03-28", 24), ("2026-03-29", 23), ("2026-03-30", 24), ("2026-10-25", 25), ("2026-10-26", 24)])
def test_days_of_a_clock_change(day: str, hours: int) -> None:
    """Case 23: days in Amsterdam run from local midnight to local midnight: 23 and 25 hours on the days of the change."""
    one = span(Calendar("day", "Europe/Amsterdam"), ms(f"{day}T12:00"))
    assert one.label == day
    assert begins(one, "Europe/Amsterdam").startswith(f"{day}T00:00:00")
    assert one.end_ms - one.start_ms == hours * HOUR_MS


def test_skipped_hour_is_the_first_instant_after_it() -> None:
    """A day anchored at an hour that clocks skip begins when they have skipped it."""
    one = span(Calendar("day", "Europe/Berlin", "02:30"), ms("2026-03-29T12:00"))
    assert begins(one, "Europe/Berlin") == "2026-03-29T03:00:00+02:00"


def test_repeated_hour_is_the_first_of_the_two() -> None:
    """A day anchored at an hour that comes twice begins at the first of the two, and only once."""
    window = Calendar("day", "Europe/Berlin", "02:30")
    one = span(window, ms("2026-10-25T12:00"))
    assert begins(one, "Europe/Berlin") == "2026-10-25T02:30:00+02:00"
    assert span(window, ms("2026-10-25T02:40:00+01:00")) == one


def test_repeated_hours_are_two_hour_windows() -> None:
    """Both of two repeated hours count for themselves, an hour each, under labels of their own."""
    window = Calendar("hour", "Europe/Berlin")
    first, second = span(window, ms("2026-10-25T02:10:00+02:00")), span(window, ms("2026-10-25T02:10:00+01:00"))
    assert (first.label, second.label) == ("2026-10-25T02", "2026-10-25T02+0100")
    assert first.end_ms == second.start_ms == first.start_ms + HOUR_MS
    assert second.end_ms == second.start_ms + HOUR_MS


def test_a_day_that_never_was_has_no_window() -> None:
    """Samoa skipped 30 December 2011: the 29th ends where the 31st begins."""
    before, after = span(Calendar("day", "Pacific/Apia"), ms("2011-12-30T09:59:59")), span(Calendar("day", "Pacific/Apia"), ms("2011-12-30T10:00:00"))
    assert (before.label, after.label) == ("2011-12-29", "2011-12-31")
    assert before.end_ms == after.start_ms


# -- properties ---------------------------------------------------------------------------------------------------------------------------

clocks = st.builds(lambda h, m: f"{h:02}:{m:02}", st.integers(0, 23), st.sampled_from([0, 1, 30, 59]))
anchored = st.one_of(
    st.builds(lambda m: ("hour", f":{m:02}"), st.integers(0, 59)),
    clocks.map(lambda clock: ("day", clock)),
    st.builds(lambda day, clock: ("week", f"{day} {clock}"), st.sampled_from(WEEKDAYS), clocks),
    st.builds(lambda day, clock: ("month", f"{day} {clock}"), st.integers(1, 31), clocks),
)
windows = st.one_of(
    st.builds(lambda at, tz: Calendar(at[0], tz, anchor(*at)), anchored, st.sampled_from(ZONES)),
    st.integers(1, 10**9).map(Fixed),
)


def near_a_change(tz: str) -> list[int]:
    """Times around which clocks of a zone change, found by looking at every day of some years."""
    zone, found = ZoneInfo(tz), []
    for day in range(ms("2011-01-01") // 86_400_000, ms("2027-01-01") // 86_400_000):
        at, later = datetime.fromtimestamp(day * 86_400, zone), datetime.fromtimestamp((day + 1) * 86_400, zone)
        if at.utcoffset() != later.utcoffset():
            found.append(day * 86_400_000)
    return found


CHANGES = {tz: near_a_change(tz) for tz in ZONES}


@given(st.data(), windows, st.integers(-(3 * 86_400_000), 3 * 86_400_000))
def test_spans_follow_each_other(data: st.DataObject, window: Calendar | Fixed, shift_ms: int) -> None:
    """Spans contain the time asked for, are what any time inside them gives, touch the next one, and never share its label."""
    changes = CHANGES.get(getattr(window, "tz", "UTC")) or [ms("2026-11-30")]
    now_ms = data.draw(st.sampled_from(changes)) + shift_ms
    one = span(window, now_ms)
    assert one.start_ms <= now_ms < one.end_ms
    inside_ms = data.draw(st.integers(one.start_ms, one.end_ms - 1))
    assert span(window, inside_ms) == span(window, one.start_ms) == span(window, one.end_ms - 1) == one
    following, before = span(window, one.end_ms), span(window, one.start_ms - 1)
    assert following.start_ms == one.end_ms
    assert before.end_ms == one.start_ms
    assert len({before.label, one.label, following.label}) == 3


@given(st.sampled_from(ZONES), st.sampled_from(["hour", "day", "week"]), st.integers(0, 5_000))
def test_labels_are_unique_over_a_year(tz: str, every: str, offset_min: int) -> None:
    """No two spans of a window over two weeks around a clock change have the same label."""
    window = Calendar(every, tz)  # type: ignore[arg-type]
    now_ms = (CHANGES[tz] or [ms("2026-11-30")])[-1] - 7 * 86_400_000 + offset_min * 60_000
    until_ms, labels = now_ms + 14 * 86_400_000, []
    while now_ms < until_ms:
        one = span(window, now_ms)
        labels.append(one.label)
        now_ms = one.end_ms
    assert len(set(labels)) == len(labels)


# -- anchors ------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("every", "written", "spelling"),
    [
        ("hour", ":30", ":30"),
        ("hour", ":00", ""),
        ("day", "09:00", "09:00"),
        ("day", "00:00", ""),
        ("week", "Mon", ""),
        ("week", "mon 09:00", "mon 09:00"),
        ("week", "sun", "sun"),
        ("month", "01", ""),
        ("month", "15 09:00", "15 09:00"),
        ("month", "31", "31"),
        ("month", "1 00:30", "1 00:30"),
    ],
)
def test_anchor_has_one_spelling(every: str, written: str, spelling: str) -> None:
    """Anchors that mean the same are spelled the same, since the spelling is part of a counter's identity."""
    assert anchor(every, written) == spelling  # type: ignore[arg-type]
    assert anchor(every, spelling) == spelling  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("every", "written"),
    [
        ("hour", "09:00"),
        ("hour", ":60"),
        ("day", "24:00"),
        ("day", "9:00"),
        ("day", "mon 09:00"),
        ("week", "09:00"),
        ("week", "mon 9"),
        ("month", "32"),
        ("month", "0"),
    ],
)
def test_bad_anchors_name_the_accepted_forms(every: str, written: str) -> None:
    """An anchor that is not a time in that window is refused with the forms that are."""
    with pytest.raises(ValueError, match="write '"):
        anchor(every, written)  # type: ignore[arg-type]
