"""Cost in integers, and that what is held covers it."""

from hypothesis import given
from hypothesis import strategies as st

from sluicegate.core.prices import Price, cost_nano_usd, input_cost_nano_usd
from sluicegate.core.usage import Usage

MINI = Price(150_000, 600_000, cached_input=75_000)  # $0.15, $0.60 and $0.075 per million tokens

PRICES = st.builds(
    Price,
    input=st.integers(0, 10**9),
    output=st.integers(0, 10**9),
    cached_input=st.none() | st.integers(0, 10**9),
    cache_write=st.none() | st.integers(0, 10**9),
    cache_write_1h=st.none() | st.integers(0, 10**9),
    reasoning=st.none() | st.integers(0, 10**9),
    request_fee=st.integers(0, 10**9),
)
COUNTS = st.integers(0, 10**6)
USAGES = st.builds(
    Usage,
    input_tokens=COUNTS,
    output_tokens=COUNTS,
    cached_tokens=COUNTS,
    cache_write_tokens=COUNTS,
    cache_write_1h_tokens=COUNTS,
    reasoning_tokens=COUNTS,
)


def test_cost() -> None:
    """A million tokens cost what the price list says."""
    assert cost_nano_usd(MINI, Usage(1_000_000, 0)) == 150_000_000
    assert cost_nano_usd(MINI, Usage(0, 1_000_000)) == 600_000_000


def test_cached_input_is_part_of_input() -> None:
    """Cached reads are charged once, at their own price (case 63)."""
    assert cost_nano_usd(MINI, Usage(1000, 0, cached_tokens=900)) == (100 * 150_000 + 900 * 75_000) // 1000


def test_reasoning_and_cache_writes() -> None:
    """Parts with a price of their own cost that, others what the whole costs."""
    price = Price(1000, 2000, cache_write=5000, reasoning=3000)
    assert cost_nano_usd(price, Usage(10, 10, cached_tokens=4, cache_write_tokens=3, reasoning_tokens=6)) == 4 + 3 + 15 + 4 * 2 + 6 * 3


def test_parts_never_exceed_the_whole() -> None:
    """More cached than read, as some upstreams report, gives no credit: such a figure is not believed at all."""
    assert cost_nano_usd(MINI, Usage(10, 0, cached_tokens=1000)) == 1500


def test_dearer_reasoning_is_charged_where_the_split_is_not_told() -> None:
    """Output of which nobody says how much was reasoning costs the dearer price; where that is said, each part costs its own."""
    dear, cheap = Price(0, 1000, reasoning=10_000), Price(0, 1000, reasoning=100)
    assert cost_nano_usd(dear, Usage(0, 200)) == 2000
    assert cost_nano_usd(dear, Usage(9, 200, cached_tokens=5)) == 2000
    assert cost_nano_usd(dear, Usage(0, 200, no_reasoning=True)) == 200
    assert cost_nano_usd(dear, Usage(0, 200, reasoning_tokens=190)) == 1910
    assert cost_nano_usd(cheap, Usage(0, 200)) == 200
    assert cost_nano_usd(cheap, Usage(0, 200, reasoning_tokens=190)) == 29


def test_rounds_up_once() -> None:
    """A call costs at least a nano-USD if it costs anything; parts are not rounded one by one."""
    assert cost_nano_usd(Price(1, 1), Usage(1, 1)) == 1
    assert cost_nano_usd(Price(1, 1), Usage(0, 0)) == 0
    assert cost_nano_usd(Price(400, 400), Usage(1, 1)) == 1


def test_nothing_reported() -> None:
    """Counts that are missing cost nothing here: they are given as unknown tokens instead, at the dearest."""
    price = Price(1000, 1000, cached_input=4000, reasoning=5000, request_fee=7)
    assert cost_nano_usd(price, Usage()) == 7
    assert cost_nano_usd(price, Usage(), 2, 3) == 2 * 4 + 3 * 5 + 7


@given(PRICES, USAGES)
def test_what_is_held_covers_the_cost(price: Price, usage: Usage) -> None:
    """No usage of the tokens held costs more than the claim on a dollar limit."""
    read, written = usage.input_tokens or 0, usage.output_tokens or 0
    cost = cost_nano_usd(price, usage)
    assert price.request_fee <= cost <= input_cost_nano_usd(price, read) - (-written * price.dearest_output // 1000)
    assert cost <= cost_nano_usd(price, Usage(), read, written)


@given(PRICES)
def test_rates_are_the_dearest(price: Price) -> None:
    """No class of tokens costs more than the rate that is claimed."""
    assert price.dearest_input >= max(price.input, price.cached_input or 0, price.cache_write or 0, price.cache_write_1h or 0)
    assert price.dearest_output >= max(price.output, price.reasoning or 0)


def test_an_absurd_report_costs_no_more_than_a_counter_can_hold() -> None:
    """A cost is at most the largest amount that a limit may have, so that no counter overflows."""
    assert cost_nano_usd(Price(10**12, 10**12), Usage(10**9, 10**9)) == 2**52 - 1
