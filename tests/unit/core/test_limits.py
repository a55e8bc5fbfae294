"""Limits as written: every accepted form, exact amounts, and errors that name the field and what would be accepted."""

import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.core.limits import AMOUNT_MAX, Limit, LimitError, Unit, parse, show_amount, show_period, show_share, show_window
from sluicegate.core.windows import Bucket, Calendar, Fixed, Lifetime, Open, Sliding, Window

MINUTE, DAY, MONTH = Bucket(60_000), Calendar("day"), Calendar("month")


@pytest.mark.parametrize(
    ("text", "unit", "amount", "window"),
    [
        ("20k tokens/minute", Unit.TOKENS, 20_000, MINUTE),
        ("1M input tokens/day", Unit.INPUT_TOKENS, 1_000_000, DAY),
        ("50k output tokens/hour", Unit.OUTPUT_TOKENS, 50_000, Calendar("hour")),
        ("5 input_tokens/week", Unit.INPUT_TOKENS, 5, Calendar("week")),
        ("120 requests/minute", Unit.REQUESTS, 120, MINUTE),
        ("1 request/second", Unit.REQUESTS, 1, Bucket(1_000)),
        ("2 requests/s", Unit.REQUESTS, 2, Bucket(1_000)),
        ("2 requests/min", Unit.REQUESTS, 2, MINUTE),
        ("2 requests/h", Unit.REQUESTS, 2, Calendar("hour")),
        ("2 requests/d", Unit.REQUESTS, 2, DAY),
        ("$100/month", Unit.USD, 100 * 10**9, MONTH),
        ("$0.0001/day", Unit.USD, 100_000, DAY),
        ("$0.000000001/day", Unit.USD, 1, DAY),
        ("5 usd/day", Unit.USD, 5 * 10**9, DAY),
        ("4 concurrent", Unit.CONCURRENT, 4, Open()),
        ("50k tokens/30s", Unit.TOKENS, 50_000, Fixed(30_000)),
        ("50k tokens/5m", Unit.TOKENS, 50_000, Fixed(300_000)),
        ("50k tokens/12h", Unit.TOKENS, 50_000, Fixed(43_200_000)),
        ("50k tokens/7d", Unit.TOKENS, 50_000, Fixed(604_800_000)),
        ("$2000/lifetime", Unit.USD, 2000 * 10**9, Lifetime()),
        ("100k tokens lifetime", Unit.TOKENS, 100_000, Lifetime()),
        ("$5 lifetime", Unit.USD, 5 * 10**9, Lifetime()),
        ("1.5M tokens per day", Unit.TOKENS, 1_500_000, DAY),
        ("2B tokens/month", Unit.TOKENS, 2_000_000_000, MONTH),
        ("0 tokens/day", Unit.TOKENS, 0, DAY),
        ("$0/month", Unit.USD, 0, MONTH),
        (f"{AMOUNT_MAX} tokens/day", Unit.TOKENS, AMOUNT_MAX, DAY),
    ],
)
def test_string_form(text: str, unit: Unit, amount: int, window: Window) -> None:
    """A limit in its string form; seconds and minutes refill, hours and longer are calendar windows in UTC, other lengths are fixed."""
    assert parse(text) == Limit(unit, amount, window, text=text)


@pytest.mark.parametrize(
    ("fields", "amount", "window", "burst"),
    [
        ({"amount": 20000, "unit": "tokens", "per": "minute", "window": "bucket", "burst": 40000}, 20_000, MINUTE, 40_000),
        ({"amount": "20k", "unit": "tokens", "per": "minute"}, 20_000, MINUTE, 0),
        ({"amount": 20000, "unit": "tokens", "per": "hour", "window": "bucket"}, 20_000, Bucket(3_600_000), 0),
        ({"amount": 20000, "unit": "tokens", "per": "90s", "window": "bucket"}, 20_000, Bucket(90_000), 0),
        ({"amount": 20000, "unit": "tokens", "per": "minute", "window": "sliding"}, 20_000, Sliding(60_000), 0),
        ({"amount": 20000, "unit": "tokens", "per": "day", "window": "fixed"}, 20_000, Fixed(86_400_000), 0),
        ({"amount": 20000, "unit": "tokens", "window": "lifetime"}, 20_000, Lifetime(), 0),
        (
            {"amount": 20000, "unit": "tokens", "per": "week", "tz": "Europe/Berlin", "at": "mon 09:00"},
            20_000,
            Calendar("week", "Europe/Berlin", "mon 09:00"),
            0,
        ),
        ({"amount": 20000, "unit": "tokens", "per": "month", "at": 31}, 20_000, Calendar("month", at="31"), 0),
        ({"amount": 3, "unit": "usd", "per": "day"}, 3 * 10**9, DAY, 0),
        ({"amount": "$0.50", "unit": "usd", "per": "day"}, 500_000_000, DAY, 0),
        ({"amount": 0.1, "unit": "usd", "per": "day"}, 100_000_000, DAY, 0),
        ({"amount": Decimal("0.000000003"), "unit": "usd", "per": "day"}, 3, DAY, 0),
        ({"amount": 8, "unit": "concurrent"}, 8, Open(), 0),
        ({"amount": 8, "unit": "tokens", "per": "minute", "burst": None, "tz": None}, 8, MINUTE, 0),
    ],
)
def test_long_form(fields: dict[str, Any], amount: int, window: Window, burst: int) -> None:
    """A limit in its long form; fields that are null are as if left out."""
    limit = parse(fields)
    assert (limit.amount, limit.window, limit.burst) == (amount, window, burst)


def test_model_filter() -> None:
    """A long-form limit may bind some models only."""
    assert parse({"amount": 8, "unit": "tokens", "per": "day", "models": ["chat", "live"]}).models == frozenset({"chat", "live"})


@given(st.integers(0, AMOUNT_MAX))
def test_dollars_are_exact(nano_usd: int) -> None:
    """Every number of nano-dollars that is allowed survives being written as dollars and read again."""
    limit = parse(f"{show_amount(Unit.USD, nano_usd)}/month")
    assert limit.amount == nano_usd


# -- refused ------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tokens/minute",
        "20k/minute",
        "$5 tokens/day",
        "5 tokens",
        "5",
        "5 tokens per",
        "-5 tokens/day",
        "-$5/day",
        "$-5/day",
        "1.5 tokens/day",
        "NaN tokens/day",
        "inf tokens/day",
        "1e3 tokens/day",
        "5..5 tokens/day",
        "$0.0000000001/day",
        "5 tokens/year",
        "5 tokens/0s",
        "5 tokens/500ms",
        "5 concurrent/minute",
        "$10.000000001/minute",
        f"{AMOUNT_MAX + 1} tokens/day",
        "$4503600/month",
        "5 tokns/day",
        "5 tokens/minute or so",
    ],
)
def test_refused_texts(text: str) -> None:
    """A text that is not wholly understood is refused, with the path and a way to write it."""
    with pytest.raises(LimitError) as caught:
        parse(text, "limits[0]")
    assert caught.value.path == "limits[0]"
    assert str(caught.value).startswith("limits[0]: ")


@pytest.mark.parametrize(
    "amount", [-1, -0.5, math.nan, math.inf, -math.inf, True, "many", "", [5], {}, AMOUNT_MAX + 1, 1e17, 1.5, Decimal("NaN"), Decimal("1e999999")]
)
def test_refused_amounts(amount: Any) -> None:
    """Negative, infinite, fractional, over-large amounts, booleans and what is no number are refused at `amount`."""
    with pytest.raises(LimitError) as caught:
        parse({"amount": amount, "unit": "tokens", "per": "day"}, "x")
    assert caught.value.path == "x.amount"


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"amount": None}, "amount"),
        ({"unit": None}, "unit"),
        ({"unit": "tokns"}, "unit"),
        ({"unit": 5}, "unit"),
        ({"per": None}, "per"),
        ({"per": "year"}, "per"),
        ({"per": "minute", "window": "calendar"}, "per"),
        ({"per": "month", "window": "bucket"}, "per"),
        ({"per": "month", "window": "fixed"}, "per"),
        ({"per": "day", "window": "lifetime"}, "per"),
        ({"window": "hourly"}, "window"),
        ({"burst": 5}, "burst"),
        ({"per": "minute", "burst": 0}, "burst"),
        ({"per": "minute", "burst": -1}, "burst"),
        ({"per": "minute", "burst": 5, "amount": 0}, "burst"),
        ({"per": "minute", "burst": AMOUNT_MAX, "amount": 7}, "burst"),
        ({"per": "minute", "tz": "UTC"}, "tz"),
        ({"tz": "Europe/Berln"}, "tz"),
        ({"tz": "../../etc/passwd"}, "tz"),
        ({"tz": 5}, "tz"),
        ({"at": "mon 09:00"}, "at"),
        ({"at": "25:00"}, "at"),
        ({"models": "chat"}, "models"),
        ({"models": []}, "models"),
        ({"models": [5]}, "models"),
        ({"mode": "shaddow"}, "mode"),
        ({"mode": True}, "mode"),
        ({"reserve": "30%"}, "reserve"),
        ({"reserve": {}}, "reserve"),
        ({"reserve": {"high": "30%"}}, "reserve.high"),
        ({"reserve": {"lowest": "30%"}}, "reserve.lowest"),
        ({"reserve": {"low": 30}}, "reserve.low"),
        ({"reserve": {"low": "0.3"}}, "reserve.low"),
        ({"reserve": {"low": "101%"}}, "reserve.low"),
        ({"reserve": {"low": "-1%"}}, "reserve.low"),
        ({"reserve": {"normal": "30%", "low": "10%"}}, "reserve.low"),
        ({"warn_at": 0.8}, "warn_at"),
        ({"warn_at": [0]}, "warn_at"),
        ({"warn_at": [80]}, "warn_at"),
        ({"warn_at": ["0.8"]}, "warn_at"),
        ({"warn_at": [True]}, "warn_at"),
        ({"warn_at": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]}, "warn_at"),
        ({"per": "minute", "warn_at": [0.8]}, "warn_at"),
        ({"window": "sliding", "warn_at": [0.8]}, "warn_at"),
        ({"unit": "concurrent", "per": None, "warn_at": [0.8]}, "warn_at"),
        ({"unit": "concurrent"}, "per"),
    ],
)
def test_refused_fields(change: dict[str, Any], path: str) -> None:
    """What a limit cannot mean is refused at the field that says it; fields that do not exist are refused too."""
    with pytest.raises(LimitError) as caught:
        parse({"amount": 5, "unit": "tokens", "per": "day"} | change, "limits[2]")
    assert caught.value.path == f"limits[2].{path}"


def test_modes() -> None:
    """A limit is enforced unless it says that it only counts and reports."""
    tokens = {"amount": 5, "unit": "tokens", "per": "day"}
    assert not parse("5 tokens/day").shadow
    assert not parse(tokens | {"mode": "enforce"}).shadow
    assert parse(tokens | {"mode": "shadow"}).shadow


@pytest.mark.parametrize(
    ("written", "rooms"),
    [
        (None, [1000, 1000, 1000, 1000]),
        ({"normal": "10%", "low": "30%"}, [1000, 1000, 900, 700]),
        ({"low": "12.5 %"}, [1000, 1000, 1000, 875]),
        ({"normal": "25%"}, [1000, 1000, 750, 750]),
        ({"normal": "0%", "low": "100%"}, [1000, 1000, 1000, 0]),
    ],
)
def test_reserves(written: object, rooms: list[int]) -> None:
    """What is kept from a priority is a share of the amount; from low at least what is kept from normal; without a priority nothing."""
    limit = parse({"amount": 1000, "unit": "tokens", "per": "day", "reserve": written})
    assert [limit.room(priority) for priority in (None, "high", "normal", "low")] == rooms


def test_a_buckets_reserve_is_a_share_of_its_capacity() -> None:
    """What it holds when it is full, not what it refills by."""
    limit = parse({"amount": 60, "unit": "requests", "per": "minute", "burst": 200, "reserve": {"low": "30%"}})
    assert (limit.size, limit.room("low")) == (200, 140)


@pytest.mark.parametrize(
    ("written", "read"),
    [([], ()), ([0.8, 0.95, 1.0], (800_000, 950_000, 1_000_000)), ([Decimal("1.5"), 1, 0.8, 1], (800_000, 1_000_000, 1_500_000)), (None, None)],
)
def test_warning_marks(written: object, read: tuple[int, ...] | None) -> None:
    """Parts of the amount, ascending, each once; none and not given differ."""
    assert parse({"amount": 5, "unit": "usd", "per": "month", "warn_at": written}).warn_at == read


@pytest.mark.parametrize(("share", "shown"), [(300_000, "30%"), (125_000, "12.5%"), (1_000_000, "100%"), (1_500_000, "150%")])
def test_shares_in_words(share: int, shown: str) -> None:
    """In percent."""
    assert show_share(share) == shown


@pytest.mark.parametrize("written", [None, 5, True, ["5 tokens/day"]])
def test_a_limit_is_a_text_or_a_mapping(written: object) -> None:
    """Anything else is refused."""
    with pytest.raises(LimitError, match="text or a mapping"):
        parse(written)


def test_suggestions() -> None:
    """A misspelt unit, zone or field is answered with the nearest one."""
    for written, near in [
        ("5 tokns/day", "tokens"),
        ({"amount": 5, "unit": "tokens", "per": "day", "tz": "Europe/Berln"}, "Europe/Berlin"),
        ({"amount": 5, "unit": "tokens", "per": "day", "model": ["chat"]}, "models"),
    ]:
        with pytest.raises(LimitError, match=f"did you mean '{near}'"):
            parse(written)


@given(st.text(alphabet="$-+.0123456789kMB tokensrequd/lifhymncv ", max_size=30))
def test_any_text_is_a_limit_or_a_limit_error(text: str) -> None:
    """No text makes `parse` fail in another way, and no accepted amount is outside the bounds."""
    try:
        limit = parse(text)
    except LimitError:
        return
    assert 0 <= limit.amount <= AMOUNT_MAX


# -- in words -----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nano_usd", "shown"), [(0, "$0"), (10**9, "$1"), (4_200_000_000, "$4.20"), (100_000, "$0.0001"), (1, "$0.000000001"), (-500_000_000, "-$0.50")]
)
def test_dollars_in_words(nano_usd: int, shown: str) -> None:
    """Dollars are shown exactly, with cents where there are any."""
    assert show_amount(Unit.USD, nano_usd) == shown


@pytest.mark.parametrize(
    ("window", "shown"),
    [
        (MINUTE, "minute"),
        (Bucket(90_000), "90s"),
        (Fixed(60_000), "1m"),
        (DAY, "day"),
        (Calendar("day", "Asia/Tokyo", "09:00"), "day (Asia/Tokyo, 09:00)"),
        (Lifetime(), "lifetime"),
        (Open(), "in flight"),
    ],
)
def test_windows_in_words(window: Window, shown: str) -> None:
    """A window is shown as it would be written."""
    assert show_window(window) == shown


def test_periods_in_words() -> None:
    """A length is shown in the largest suffix that says it exactly."""
    assert [show_period(n) for n in (86_400_000, 3_600_000, 90_000, 1_500)] == ["1d", "1h", "90s", "1500ms"]
