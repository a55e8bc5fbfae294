"""Forecasts: known series, what is no day, bounds, and when a limit is reached."""

import random
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from math import inf
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.forecast import HORIZON_DAYS, SAMPLE_DAYS, Outlook, Reached, course, outlook, reached, used_by

WORKING = [10.0, 12.0, 11.0, 10.0, 12.0, 2.0, 1.0]


def days(expected: Outlook, number: int) -> list[float]:
    return [round(each, 2) for each in expected.fit.point[:number]]


def test_a_constant() -> None:
    """Every day is as all were, with nothing to be wrong about."""
    for number, method in ((2, "mean"), (13, "mean"), (14, "mstl_ets"), (60, "mstl_ets")):
        found = outlook([10.0] * number)
        assert (found.fit.method, found.avg_daily, found.std_dev_daily, found.sample_days) == (method, 10, 0, number)
        assert days(found, 30) == [10.0] * 30
        assert found.lower[29] == pytest.approx(10) == found.upper[29]


def test_a_trend_goes_on() -> None:
    """Two more each day: the next days follow it, later ones less and less."""
    found = outlook([10.0 + 2 * day for day in range(42)])
    assert found.fit.method == "mstl_ets"
    assert found.fit.point[:3] == pytest.approx([94, 96, 98], rel=0.02)
    assert 110 < found.fit.point[20] < 134 + 1


@pytest.mark.parametrize("number", [14, 15, 17, 42])
def test_a_week_has_its_shape(number: int) -> None:
    """Working days and weekends come at their places, also from two weeks alone, and wherever in a week the present day is."""
    found = outlook((WORKING * 6)[:number])
    wanted = [WORKING[(number + i) % 7] for i in range(14)]
    assert days(found, 14) == pytest.approx(wanted, abs=0.3)


def test_without_statsmodels_it_is_the_mean() -> None:
    """Nothing fails, and it says so."""
    with patch.dict(sys.modules, {"statsmodels.tsa.seasonal": None}):
        found = outlook(WORKING * 6)
    assert found.fit.method == "mean"
    assert days(found, 2) == [round(sum(WORKING) / 7, 2)] * 2


def test_statsmodels_is_not_loaded_before_it_is_needed() -> None:
    """It takes seconds and 100 MB."""
    script = "import sys; import sluicegate.forecast as f; f.outlook([1.0] * 13); sys.exit('numpy' in sys.modules or 'statsmodels' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_days_without_use_count_but_for_those_before_the_first() -> None:
    """The mean is over all days since it began."""
    found = outlook([0, 0, 0, 50, 0, 0, 0, 0, 10, 0])
    assert (found.sample_days, round(found.avg_daily, 3)) == (7, round(60 / 7, 3))


def test_nothing_was_ever_used() -> None:
    """Nothing is expected, and no limit is reached."""
    for before in ([], [0.0] * 30):
        found = outlook(before)
        assert (found.sample_days, found.avg_daily, found.std_dev_daily, found.fit.point[0], found.upper[100]) == (0, 0, None, 0, 0)
        assert reached(course(found, 0.5), 1, None) == Reached(None, None, None)


def test_the_present_day_counts_where_it_is_the_only_one() -> None:
    """With what it has used so far; else it is no day yet, so that a morning does not look like a lull."""
    alone = outlook([0, 0], today=6.0)
    assert (alone.sample_days, alone.avg_daily, alone.std_dev_daily) == (0, 6, None)
    assert outlook([10.0, 10.0], today=1.0).avg_daily == 10


def test_of_one_day_little_is_known() -> None:
    """Bounds are wide: from nothing to several times as much."""
    found = outlook([10.0])
    assert (found.fit.method, found.sample_days, found.std_dev_daily, days(found, 2)) == ("mean", 1, None, [10, 10])
    assert found.lower[0] == 0 and found.upper[0] > 30


def test_old_days_are_left_out() -> None:
    """What was a quarter of a year ago says nothing any more."""
    found = outlook([1000.0] * 50 + [10.0] * SAMPLE_DAYS)
    assert (found.sample_days, found.avg_daily) == (SAMPLE_DAYS, 10)


def test_when_a_limit_is_reached() -> None:
    """What is left of today counts for its share; behind the end of the window a limit is as new."""
    ahead = course(outlook([10.0] * 5), left=0.25)
    assert reached(ahead, 2.5, None).point == pytest.approx(0.25)
    assert reached(ahead, 1.0, None).point == pytest.approx(0.1)
    assert reached(ahead, 32.5, None).point == pytest.approx(3.25)
    assert reached(ahead, 32.5, ends_in=3.0) == Reached(None, None, None)
    assert reached(ahead, 10.0 * HORIZON_DAYS, None) == Reached(None, None, None)
    assert [used_by(ahead, at) for at in (0, 0.1, 0.25, 2.25)] == pytest.approx([0, 1, 2.5, 22.5])
    assert used_by(ahead, HORIZON_DAYS + 1.0) is None


def test_a_limit_that_is_used_up_already() -> None:
    """Now, whatever is expected; also of a limit of nothing."""
    for left in (0, -5):
        assert reached(course(outlook([]), 1.0), left, None) == Reached(0, 0, 0)


def test_bounds_of_sums_are_narrower_than_all_days_at_their_bounds() -> None:
    """Days that differ by chance make up for each other."""
    found = outlook([5.0, 15.0] * 6)
    ahead = course(found, 1.0)
    assert ahead.upper[30] < sum(found.upper[:30]) * 0.8
    assert ahead.lower[30] > sum(found.lower[:30])


LEFT = st.floats(0.0001, 1)
LIMITS = st.lists(st.floats(0, 1e17), min_size=2, max_size=5)


@given(before=st.lists(st.floats(0, 1e15), max_size=13), today=st.floats(0, 1e12), left=LEFT, limits=LIMITS)
def test_whatever_was_used(before: Sequence[float], today: float, left: float, limits: list[float]) -> None:
    """Bounds are in order and not negative, of days and of sums; sums never fall; a higher limit is never reached sooner."""
    check(outlook(before, today), left, limits)


@settings(max_examples=8, deadline=None)
@given(
    before=st.lists(st.integers(0, 10**12), min_size=14, max_size=30) | st.lists(st.sampled_from([0, 0, 0, 1, 10**12]), min_size=14, max_size=30),
    left=LEFT,
    limits=LIMITS,
)
def test_whatever_was_used_for_weeks(before: Sequence[float], left: float, limits: list[float]) -> None:
    """The same with statsmodels."""
    check(outlook(before), left, limits)


def check(found: Outlook, left: float, limits: list[float]) -> None:
    ahead = course(found, left)
    for lower, point, upper in ((found.lower, found.fit.point, found.upper), (ahead.lower, ahead.point, ahead.upper)):
        assert all(0 <= low <= middle <= high < inf for low, middle, high in zip(lower, point, upper, strict=True))
    for sums in (ahead.days, ahead.lower, ahead.point, ahead.upper):
        assert all(one <= other for one, other in pairwise(sums))
    sooner = Reached(0, 0, 0)
    for limit in sorted(limits):
        at = reached(ahead, limit, None)
        for name in ("point", "lower", "upper"):
            assert day(getattr(sooner, name)) <= day(getattr(at, name)) + 1e-9
        assert day(at.lower) <= day(at.point) + 1e-9 and day(at.point) <= day(at.upper) + 1e-9
        sooner = at


def day(number: float | None) -> float:
    return inf if number is None else number


@pytest.mark.parametrize("number", [28, 84])
def test_the_sum_of_days_that_grow_steadily_is_within_its_bounds(number: int) -> None:
    """The damped trend expects less: how far it is from a straight line is a part of what is not known."""
    chance = random.Random(7)
    sums = 0
    for _ in range(6):
        growing = [WORKING[i % 7] * (1 + 0.02 * i) * max(0.0, chance.gauss(1, 0.15)) for i in range(number + 30)]
        ahead = course(outlook(growing[:number]), 1.0)
        sums += ahead.lower[30] <= sum(growing[number:]) <= ahead.upper[30]
    assert sums >= 5


@pytest.mark.parametrize("number", [14, 15, 28, 60])
def test_bounds_hold_for_days_that_differ_by_chance(number: int) -> None:
    """Of weeks with a shape and noise, nearly all days that follow are within their bounds, also from two weeks alone, and so is their sum."""
    chance = random.Random(7)
    inside, sums = 0, 0
    for _ in range(8):
        noisy = [WORKING[i % 7] * max(0.0, chance.gauss(1, 0.25)) for i in range(number + 14)]
        found, later = outlook(noisy[:number]), noisy[number:]
        ahead = course(found, 1.0)
        inside += sum(low <= day <= high for low, day, high in zip(found.lower, later, found.upper, strict=False))
        sums += ahead.lower[14] <= sum(later) <= ahead.upper[14]
    assert inside > 0.75 * 8 * 14
    assert sums >= 6
