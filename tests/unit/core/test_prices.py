"""Cost in integers, and that what is held covers it."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sluicegate.core.prices import Price, Tier, cost_nano_usd, input_cost_nano_usd
from sluicegate.core.usage import Usage

MINI = Price(150_000, 600_000, cached_input=75_000)  # $0.15, $0.60 and $0.075 per million tokens

RATE = st.integers(0, 10**9)
CLASSES: dict[str, Any] = {
    "input": RATE,
    "output": RATE,
    **dict.fromkeys(("cached_input", "cache_write", "cache_write_1h", "reasoning", "audio_input", "audio_output"), st.none() | RATE),
    "request_fee": RATE,
}
PLAIN = st.builds(Price, **CLASSES)
TIERS = st.lists(st.builds(Tier, st.integers(1, 10**6), PLAIN), max_size=3, unique_by=lambda tier: tier.above).map(
    lambda tiers: tuple(sorted(tiers, key=lambda tier: tier.above))
)
PRICES = st.builds(Price, **CLASSES, tiers=TIERS)
COUNTS = st.integers(0, 10**6)
USAGES = st.builds(
    Usage,
    input_tokens=COUNTS,
    output_tokens=COUNTS,
    cached_tokens=COUNTS,
    cache_write_tokens=COUNTS,
    cache_write_1h_tokens=COUNTS,
    reasoning_tokens=COUNTS,
    no_reasoning=st.booleans(),
    audio_input_tokens=COUNTS,
    audio_output_tokens=COUNTS,
    audio_told=st.booleans(),
)
LONG = Price(2_500_000, 15_000_000, cached_input=250_000, tiers=(Tier(272_000, Price(5_000_000, 22_500_000, cached_input=500_000)),))


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


@given(PRICES, USAGES, COUNTS)
def test_what_is_held_covers_the_cost(price: Price, usage: Usage, more: int) -> None:
    """No usage of the tokens held costs more than the claim on a dollar limit, whatever tier it is in and whatever of the bound it leaves."""
    read, written = usage.input_tokens or 0, usage.output_tokens or 0
    held = price.within(read + more)
    cost = cost_nano_usd(price, usage)
    assert cost <= input_cost_nano_usd(held, read + more) - (-written * held.dearest_output // 1000)
    assert cost_nano_usd(price, Usage(), read, written) <= input_cost_nano_usd(held, read + more) - (-written * held.dearest_output // 1000)
    assert held.dearest_output <= price.utmost_output


@given(PLAIN, USAGES)
def test_what_is_not_known_is_charged_the_dearest(price: Price, usage: Usage) -> None:
    """Tokens of which only the number is known cost no less than if it were known what they are."""
    assert price.request_fee <= cost_nano_usd(price, usage) <= cost_nano_usd(price, Usage(), usage.input_tokens or 0, usage.output_tokens or 0)


@given(PLAIN)
def test_rates_are_the_dearest(price: Price) -> None:
    """No class of tokens costs more than the rate that is claimed."""
    classes = (price.input, price.cached_input, price.cache_write, price.cache_write_1h, price.audio_input)
    assert price.dearest_input == max(rate or 0 for rate in classes)
    assert price.dearest_output == max(price.output, price.reasoning or 0, price.audio_output or 0)


def test_above_a_size_all_tokens_cost_more() -> None:
    """A tier begins above its number, counts what is from a cache, and is for every token of the call, those below it and those out."""
    assert cost_nano_usd(LONG, Usage(272_000, 1000)) == 272_000 * 2500 + 1000 * 15_000
    assert cost_nano_usd(LONG, Usage(272_001, 1000)) == 272_001 * 5000 + 1000 * 22_500
    assert cost_nano_usd(LONG, Usage(272_001, 0, cached_tokens=272_000)) == 1 * 5000 + 272_000 * 500
    assert cost_nano_usd(LONG, Usage(0, 10), unknown_input=272_001) == 272_001 * 5000 + 10 * 22_500


def test_a_tier_is_held_where_it_can_be_reached() -> None:
    """A bound below a tier is held at the rates there, one above it at the dearest of both."""
    assert (LONG.within(272_000).dearest_input, LONG.within(272_000).dearest_output) == (2_500_000, 15_000_000)
    assert (LONG.within(272_001).dearest_input, LONG.within(272_001).dearest_output) == (5_000_000, 22_500_000)
    cheaper = Price(10, 10, request_fee=7, tiers=(Tier(5, Price(1, 20, request_fee=3)), Tier(9, Price(2, 3))))
    assert (cheaper.within(10).dearest_input, cheaper.within(10).dearest_output, cheaper.within(10).request_fee) == (10, 20, 7)
    assert cheaper.at(10).input == 2
    smaller = Price(0, 0, tiers=(Tier(2, Price(0, 0, request_fee=1)), Tier(3, Price(1, 0))))
    assert smaller.within(4).request_fee == 1  # of the tier below, in which it may end


def test_two_rates_are_all_that_most_requests_are_asked_about() -> None:
    """A price without tiers, variants and audio is plain; so is what is left of one for a request that asks for none of it."""
    assert MINI.plain and MINI.usual is None and not LONG.plain
    varied = Price(1, 2, audio_input=9, variants=(("speed=fast", Price(6, 12, audio_output=50)),))
    assert not varied.plain
    assert varied.for_request("", audio=False) == Price(1, 2)
    assert varied.for_request("", audio=True) is varied
    assert varied.for_request("speed=fast", audio=False) == Price(6, 12)
    assert varied.for_request("speed=slow", audio=False) is None
    assert varied.utmost_output == 50


def test_audio_has_its_own_rates() -> None:
    """Audio counts once, before what is from a cache; a report that leaves open how much there was costs the dearer rate on either side."""
    price = Price(1000, 2000, cached_input=500, reasoning=4000, audio_input=10_000, audio_output=20_000)
    told = Usage(10, 10, cached_tokens=8, audio_input_tokens=4, audio_output_tokens=5, no_reasoning=True, audio_told=True)
    assert cost_nano_usd(price, told) == 4 * 10 + 6 * 0.5 + 5 * 20 + 5 * 2
    assert cost_nano_usd(price, Usage(10, 10, no_reasoning=True, audio_told=True)) == 10 + 20
    assert cost_nano_usd(price, Usage(10, 10, no_reasoning=True)) == 100 + 200
    assert cost_nano_usd(price, Usage(10, 10, reasoning_tokens=3)) == 100 + 7 * 20 + 3 * 4


def test_an_absurd_report_costs_no_more_than_a_counter_can_hold() -> None:
    """A cost is at most the largest amount that a limit may have, so that no counter overflows."""
    assert cost_nano_usd(Price(10**12, 10**12), Usage(10**9, 10**9)) == 2**52 - 1


CLAUDE = Price(3_000_000, 15_000_000, cached_input=300_000, cache_write=3_750_000, cache_write_1h=6_000_000)


def test_what_nobody_marks_is_not_written_into_the_cache() -> None:
    """Without marks the input's own rate is the dearest, with marks for minutes that of such writes; a price without writes is the same for all."""
    assert [CLAUDE.marked(marks).dearest_input for marks in ("", "5m", "1h")] == [3_000_000, 3_750_000, 6_000_000]  # type: ignore[arg-type]
    assert MINI.marked("") is MINI and CLAUDE.marked("1h") is CLAUDE
    tiered = Price(1, 2, tiers=(Tier(10, Price(3, 4, cache_write=5, cache_write_1h=6)),))
    assert [tiered.marked(marks).within(11).dearest_input for marks in ("", "5m", "1h")] == [3, 5, 6]  # type: ignore[arg-type]


@given(PRICES, USAGES, st.sampled_from(("", "5m", "1h")))
def test_no_usage_costs_more_than_its_marks_were_held_at(price: Price, usage: Usage, marks: Any) -> None:
    """Whatever was written into the cache was marked; what is not known of the rest costs no more, either."""
    usage.audio_told = True
    if not marks:
        usage.cache_write_tokens = 0
    if marks != "1h":
        usage.cache_write_1h_tokens = 0
    read, written = usage.input_tokens or 0, usage.output_tokens or 0
    held = price.marked(marks).within(read)
    at_most = input_cost_nano_usd(held, read) - (-written * held.dearest_output // 1000)
    assert cost_nano_usd(price, usage) <= at_most
    assert cost_nano_usd(price, Usage(), read, written, marks) <= at_most


def test_calls_of_the_providers_tools_cost_their_fees() -> None:
    """In any tier and with any tariff; what has no fee costs nothing."""
    tools = (("web_search", 10_000_000), ("web_fetch", 0))
    calls = {"web_search": 2, "web_fetch": 5, "other": 9}
    plain = Price(1_000_000, 2_000_000, tools=tools)
    assert plain.plain
    assert cost_nano_usd(plain, Usage(10, 10, calls=calls)) == 10_000 + 20_000 + 20_000_000
    assert cost_nano_usd(plain, Usage(10, 10)) == 30_000
    more = Price(1, 2, tiers=(Tier(5, Price(1_000_000, 2_000_000)),), variants=(("speed=fast", Price(1_000_000, 2_000_000)),), tools=tools)
    assert cost_nano_usd(more, Usage(10, 10, calls=calls)) == 30_000 + 20_000_000
    fast = more.for_request("speed=fast", False)
    assert fast is not None and cost_nano_usd(fast, Usage(10, 10, calls=calls)) == 30_000 + 20_000_000
