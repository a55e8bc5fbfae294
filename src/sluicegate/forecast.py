"""What days to come will use, from what days before have used: numbers in, numbers out.

From SEASONAL_DAYS on, where statsmodels is installed (the extra `forecast`): the week's shape is taken out by MSTL, what is left is continued by
exponential smoothing with a damped trend (ETS), and the week's shape put back. Else, and where that comes to nothing, the mean of the days. `method`
says which it was.

Days before the first that used anything are not days; later ones that used nothing are. The present day is none yet: the part that is left of it is
expected to use its share of what a whole one would. Only where there is no day before it, it counts as one, with what it has used so far.

Invariants: lower <= point <= upper, none is negative, and sums over days never fall. Nothing here knows the time or waits for anything, but with
statsmodels it calculates for a fifth of a second, and some seconds when that is first imported: it belongs in a thread.
"""

import warnings
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from math import isfinite, sqrt
from statistics import NormalDist, fmean, stdev
from typing import Literal

import msgspec

Method = Literal["mstl_ets", "mean"]

WEEK = 7
SEASONAL_DAYS = 2 * WEEK
SAMPLE_DAYS = 12 * WEEK  # older ones say little
HORIZON_DAYS = 366
CONFIDENCE = 0.95
_WIDTH = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)  # in standard deviations


class Fit(msgspec.Struct, frozen=True):
    """What is expected of days to come, the present one first, and by how much it may be wrong."""

    method: Method
    point: list[float]
    error: float  # standard deviation of a day
    echo: list[float]  # how much of a day's error each day behind it repeats
    drift: list[float]  # standard deviation of what is known of each day too badly, in one direction for all


class Outlook(msgspec.Struct, frozen=True):
    """Days to come, the present one first and as a whole. Bounds hold each day by itself."""

    avg_daily: float
    std_dev_daily: float | None  # None of fewer than two days
    sample_days: int
    fit: Fit
    lower: list[float]
    upper: list[float]


class Course(msgspec.Struct, frozen=True):
    """What will have been used from now on, at the ends of days. The first entry is now."""

    days: list[float]  # from now
    point: list[float]
    lower: list[float]
    upper: list[float]


class Reached(msgspec.Struct, frozen=True):
    """In how many days, at the earliest (lower), at the latest (upper); None: not in time."""

    point: float | None
    lower: float | None
    upper: float | None


def outlook(before: Sequence[float], today: float = 0.0) -> Outlook:
    """From what was used on each of the days before the present one, the oldest first, and on that so far."""
    first = next((i for i, amount in enumerate(before) if amount), len(before))
    sample = [float(amount) for amount in before[max(first, len(before) - SAMPLE_DAYS) :]]
    deviation = stdev(sample) if len(sample) > 1 else None
    fit = (_seasonal(sample) if len(sample) >= SEASONAL_DAYS else None) or _mean(sample or [today], deviation)
    squares = accumulate((each * each for each in fit.echo), initial=1.0)
    widths = [_WIDTH * sqrt(fit.error**2 * square + drift**2) for square, drift in zip(squares, fit.drift, strict=True)]
    lower = [max(0.0, point - width) for point, width in zip(fit.point, widths, strict=True)]
    upper = [point + width for point, width in zip(fit.point, widths, strict=True)]
    return Outlook(fmean(sample or [today]), deviation, len(sample), fit, lower, upper)


def course(expected: Outlook, left: float) -> Course:
    """left: how much of the present day there is still to come, 0 to 1.

    Errors of days are independent but for their echo: what a day is wrong by comes once for itself, and once more for each day that repeats it. What
    they drift by adds up.
    """
    fit = expected.fit
    days = [0.0, *(left + i for i in range(len(fit.point)))]
    point = list(accumulate((left * fit.point[0], *fit.point[1:]), initial=0.0))
    echoed = list(accumulate(fit.echo, initial=0.0))  # of a day's error, by all days behind it so far
    later = accumulate(((1 + each) ** 2 for each in echoed[:-1]), initial=0.0)  # of all whole days so far
    variances = [fit.error**2 * ((left + own) ** 2 + whole) for own, whole in zip(echoed, later, strict=True)]
    drifts = accumulate((left * fit.drift[0], *fit.drift[1:]))
    widths = [0.0, *(_WIDTH * sqrt(variance + drift**2) for variance, drift in zip(variances, drifts, strict=True))]
    lower = list(accumulate((max(0.0, sum_ - width) for sum_, width in zip(point, widths, strict=True)), max))
    upper = list(accumulate((sum_ + width for sum_, width in zip(point, widths, strict=True)), max))
    return Course(days, point, lower, upper)


def reached(ahead: Course, remaining: float, ends_in: float | None) -> Reached:
    """When what remains of a limit is used up. ends_in: how many days its window goes on, None: for ever."""

    def when(sums: list[float]) -> float | None:
        at = _when(ahead.days, sums, remaining)
        return at if at is not None and (ends_in is None or at < ends_in) else None

    return Reached(when(ahead.point), when(ahead.upper), when(ahead.lower))


def used_by(ahead: Course, days: float) -> float | None:
    """What will have been used in so many days; None beyond the horizon."""
    i = bisect_left(ahead.days, days)
    if i == len(ahead.days):
        return None
    return _between(ahead.point[i - 1], ahead.point[i], (days - ahead.days[i - 1]) / (ahead.days[i] - ahead.days[i - 1])) if i else 0.0


def _when(days: list[float], sums: list[float], amount: float) -> float | None:
    if amount <= 0:
        return 0.0
    i = bisect_left(sums, amount)
    if i == len(sums):
        return None
    return _between(days[i - 1], days[i], (amount - sums[i - 1]) / (sums[i] - sums[i - 1]))


def _between(low: float, high: float, share: float) -> float:
    return min(high, low + (high - low) * share)


def _mean(sample: list[float], deviation: float | None) -> Fit:
    """Each day like any other. Of a single one nobody knows by how much days differ: by as much as it has itself."""
    mean = fmean(sample)
    error = deviation if deviation is not None else mean
    return Fit("mean", [mean] * HORIZON_DAYS, error, [0.0] * (HORIZON_DAYS - 1), [error / sqrt(len(sample))] * HORIZON_DAYS)


def _seasonal(sample: list[float]) -> Fit | None:
    """None: statsmodels is not installed, or comes to nothing with this."""
    try:
        import numpy as np  # noqa: PLC0415  (they take seconds to import, and need not be there)
        from statsmodels.tools.sm_exceptions import ConvergenceWarning  # noqa: PLC0415
        from statsmodels.tsa.exponential_smoothing.ets import ETSModel  # noqa: PLC0415
        from statsmodels.tsa.seasonal import MSTL  # noqa: PLC0415
    except ImportError:
        return None
    warnings.simplefilter("ignore", ConvergenceWarning)  # what it came to is looked at below
    # MSTL asks for more than two weeks: of exactly two, the day before is taken to be what it was a week later.
    known = [sample[WEEK - 1], *sample] if len(sample) == SEASONAL_DAYS else sample
    scale = fmean(known)
    numbers = np.array(known) / scale
    try:
        with np.errstate(all="ignore"):
            # The mean of each weekday: two of them would take any line that is put through them, and leave no error to see.
            week = MSTL(numbers, periods=WEEK, windows=10 * len(known) + 1, stl_kwargs={"seasonal_deg": 0}).fit().seasonal
            model = ETSModel(numbers - week, error="add", trend="add", damped_trend=True).fit(disp=False)
            trend = model.forecast(HORIZON_DAYS)
            error = scale * sqrt(float(np.sum(model.resid**2)) / (len(known) - WEEK))
            line = np.polyval(np.polyfit(np.arange(len(known)), numbers - week, 1), np.arange(len(known), len(known) + HORIZON_DAYS))
    except (ValueError, ArithmeticError):
        return None
    point = [scale * max(0.0, float(trend[i]) + float(week[i % WEEK - WEEK])) for i in range(HORIZON_DAYS)]
    damped = list(accumulate((float(model.damping_trend) ** i for i in range(1, HORIZON_DAYS)), initial=0.0))
    echo = [float(model.smoothing_level) + float(model.smoothing_trend) * each for each in damped[1:]]
    number = len(sample)
    drifts = [error * sqrt(1 / number + 12 * (number / 2 + each) ** 2 / number**3) for each in damped]  # of a line through so many days
    apart = [scale * float(one - other) for one, other in zip(line, trend, strict=True)]  # growth that is not damped: nobody knows whether it goes on
    drift = [sqrt(known_badly**2 + each**2) for known_badly, each in zip(drifts, apart, strict=True)]
    return Fit("mstl_ets", point, error, echo, drift) if all(map(isfinite, (*point, *echo, *drift))) else None
