"""Merging reports of usage, and what an attempt is charged."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.core.prices import Price
from sluicegate.core.usage import NOTHING, Charge, CostSource, Ended, Usage, merge, settle_figures

PRICE = Price(1000, 2000, cached_input=500, reasoning=3000)  # nano-USD per token: 1, 2, 0.5, 3
CALL: dict[str, Any] = {
    "ended": "complete",
    "seen": 40,
    "margin": 5,
    "cap": 500,
    "input_bound": 100,
    "visible": True,
    "stops_on_close": True,
    "price": PRICE,
}


def settled(usage: Usage | None, **change: Any) -> Charge:
    """The charge of a usual call with these changes."""
    call = {**CALL, **change}
    return settle_figures(usage, **{"least": call["seen"], **call})


def test_later_reports_replace_earlier_ones() -> None:
    """Reports are cumulative, never summed (cases 52, 53)."""
    usage = None
    for tokens in (10, 20, 30):
        usage = merge(usage, Usage(7, tokens))
    assert usage == Usage(7, 30)
    assert merge(Usage(9, 1, cached_tokens=4), Usage(None, 15)) == Usage(9, 15, cached_tokens=4)


def test_no_reasoning_is_said_of_the_output_beside_it() -> None:
    """A later report of more output, which says nothing of reasoning, leaves nothing known of it."""
    earlier = Usage(7, 10, no_reasoning=True)
    assert merge(earlier, Usage(7, 30)) == Usage(7, 30)
    assert merge(earlier, Usage(7, None)) == earlier
    assert merge(Usage(7, 10), Usage(7, 30, no_reasoning=True)) == Usage(7, 30, no_reasoning=True)


def test_a_zero_takes_nothing_back() -> None:
    """A last report of zeros does not undo what was reported before; zeros alone stay zeros."""
    assert merge(Usage(9, 30), Usage(0, 0)) == Usage(9, 30)
    assert merge(Usage(None, 0), Usage(0, None)) == Usage(0, 0)


def test_complete_usage_wins() -> None:
    """What the upstream reports of a whole answer is charged, above or below the meter."""
    assert settled(Usage(50, 333, no_reasoning=True)) == Charge(50, 333, 50 + 666, "reported")
    assert settled(Usage(50, 3, no_reasoning=True)) == Charge(50, 3, 56, "reported")
    assert settled(Usage(50, 3)) == Charge(50, 3, 50 + 9, "reported")  # any of it may have been reasoning, which is dearer
    assert settled(Usage(50, 900)).output_tokens == 900


def test_classes_of_tokens() -> None:
    """Cached and reasoning tokens are charged at their own price."""
    assert settled(Usage(100, 40, cached_tokens=60, reasoning_tokens=10)).cost_nano_usd == 40 + 30 + 60 + 30


@pytest.mark.parametrize(
    ("usage", "want"),
    [
        (Usage(0, 40), (100, 40, "partly")),
        (Usage(None, 40), (100, 40, "partly")),
        (Usage(50, None), (50, 45, "partly")),
        (Usage(50, 0), (50, 40, "partly")),
        (Usage(0, 0), (100, 40, "counted")),
        (Usage(), (100, 45, "counted")),
        (None, (100, 45, "counted")),
    ],
)
def test_missing_fields_are_estimated_one_by_one(usage: Usage | None, want: tuple[int, int, str]) -> None:
    """A count that is missing, or zero where there was something, is replaced, and that alone; the source says so (cases 54, 55)."""
    charge = settled(usage)
    assert (charge.input_tokens, charge.output_tokens, charge.source) == want


def test_zero_is_zero_only_if_nothing_was_counted() -> None:
    """A report of zeros stands where the meter saw nothing, and costs the fee alone (case 55)."""
    assert settled(Usage(0, 0), seen=0) == Charge(0, 0, 0, "reported")
    assert settled(Usage(0, 0), seen=0, price=Price(1, 1, request_fee=9)).cost_nano_usd == 9
    assert settled(Usage(50, 0), seen=0) == Charge(50, 0, 50, "reported")


def test_unknown_classes_cost_the_dearest() -> None:
    """Tokens of which only the number is known are charged at the dearest class."""
    assert settled(None).cost_nano_usd == 100 * 1 + 45 * 3
    assert settled(None, price=None) == Charge(100, 45, 0, "counted", "none")


@pytest.mark.parametrize(
    ("change", "output", "source"),
    [
        ({}, 45, "counted"),
        ({"ended": "closed"}, 45, "counted"),
        ({"ended": "closed", "stops_on_close": False}, 500, "held"),
        ({"ended": "complete", "stops_on_close": False}, 45, "counted"),
        ({"ended": "complete", "visible": False}, 500, "held"),
        ({"ended": "closed", "visible": False}, 500, "held"),
        ({"ended": "broken"}, 45, "counted"),
        ({"ended": "broken", "stops_on_close": False}, 500, "held"),
        ({"ended": "broken", "visible": False}, 500, "held"),
        ({"margin": 1000}, 500, "counted"),
        ({"seen": 3000}, 3000, "counted"),
    ],
)
def test_without_usage(change: dict[str, Any], output: int, source: str) -> None:
    """All that may have been produced is charged, at most the cap that was sent, never less than was seen (cases 57, 108, 109)."""
    charge = settled(None, **change)
    assert (charge.input_tokens, charge.output_tokens, charge.source) == (100, output, source)


def test_a_report_of_an_unfinished_answer_only_raises() -> None:
    """Usage that stood at some point of an answer that went on never lowers the charge (case 58); the input it names is taken."""
    charge = settled(Usage(30, 1), ended="closed")
    assert (charge.input_tokens, charge.output_tokens, charge.source) == (30, 45, "partly")
    assert settled(Usage(30, 60), ended="closed").output_tokens == 60


@pytest.mark.parametrize(
    ("policy", "seen", "want"),
    [
        ("charge", 0, (100, 500)),
        ("input_only", 0, (100, 0)),
        ("input_only", 40, (100, 40)),
        ("free", 0, (0, 0)),
        ("free", 40, (100, 40)),
    ],
)
def test_unknown_outcome(policy: str, seen: int, want: tuple[int, int]) -> None:
    """What nobody knows is charged as the operator says, but what was read of it always is."""
    charge = settled(None, ended="broken", visible=False, seen=seen, unknown_outcome=policy)
    assert (charge.input_tokens, charge.output_tokens) == want
    assert (charge == NOTHING) is (want == (0, 0))


def test_cost_of_the_provider() -> None:
    """A cost that the provider reports with a whole usage wins, unless it is nothing; beside a part of one it is not trusted."""
    assert settled(Usage(50, 40, cost_nano_usd=7)).cost_nano_usd == 7
    assert settled(Usage(50, 40, cost_nano_usd=0)).cost_nano_usd == 50 + 120
    assert settled(Usage(50, 40, cost_nano_usd=0, no_reasoning=True)).cost_nano_usd == 50 + 80
    assert settled(Usage(50, None, cost_nano_usd=7)).cost_nano_usd == 50 + 135
    assert settled(Usage(50, 40, cost_nano_usd=7), price=None).cost_nano_usd == 7


def test_unpriced() -> None:
    """Without a price a call costs nothing and still counts its tokens."""
    assert settled(Usage(50, 40), price=None) == Charge(50, 40, 0, "reported", "none")


COUNTS = st.none() | st.integers(0, 10**6)


@given(
    usage=st.none() | st.builds(Usage, COUNTS, COUNTS),
    ended=st.sampled_from(["complete", "closed", "broken"]),
    seen=st.integers(0, 10**6),
    margin=st.integers(0, 10**4),
    cap=st.integers(0, 10**6),
    visible=st.booleans(),
    stops_on_close=st.booleans(),
    unknown_outcome=st.sampled_from(["charge", "input_only", "free"]),
)
def test_never_less_than_was_seen(usage: Usage | None, **call: Any) -> None:
    """Unless a whole answer's usage says otherwise, what was read is charged; nothing is ever negative."""
    charge = settled(usage, **call)
    assert min(charge.input_tokens, charge.output_tokens, charge.cost_nano_usd) >= 0
    if call["ended"] != "complete" or usage is None or not usage.output_tokens:
        assert charge.output_tokens >= call["seen"]
    if call["ended"] == "broken" and call["unknown_outcome"] == "charge" and not call["visible"]:
        assert charge.output_tokens >= call["cap"]


@pytest.mark.parametrize("usage", [None, Usage(), Usage(0, 0)])
@pytest.mark.parametrize("ended", ["complete", "closed"])
def test_bytes_are_never_charged_beyond_the_cap(usage: Usage | None, ended: str) -> None:
    """Where tokens cannot be counted, 800 bytes in 200 deltas against a cap of 373 are charged 373: an upstream that keeps to it made no more."""
    assert settled(usage, ended=ended, seen=800, least=200, cap=373).output_tokens == 373


def test_an_upstream_that_ignores_its_cap_is_charged_what_it_made_at_least() -> None:
    """500 deltas against a cap of 373 are 500 tokens at least, however the answer ended."""
    for ended in ("complete", "closed", "broken"):
        assert settled(None, ended=ended, seen=2000, least=500, cap=373).output_tokens == 500


@pytest.mark.parametrize(
    ("source", "ended", "cost", "want"),
    [
        ("prefer_provider", "complete", 999, (999, "provider")),
        ("prefer_provider", "complete", 0, (130, "calculated")),
        ("prefer_provider", "complete", None, (130, "calculated")),
        ("calculated_only", "complete", 999, (130, "calculated")),
        ("provider_only", "complete", 999, (999, "provider")),
        ("provider_only", "complete", 0, (0, "provider")),
        ("provider_only", "complete", None, (0, "provider")),
        ("provider_only", "broken", None, (140, "calculated")),
        ("prefer_provider", "broken", 999, (140, "calculated")),
    ],
)
def test_whose_figure_of_the_cost_is_charged(source: CostSource, ended: Ended, cost: int | None, want: tuple[int, str]) -> None:
    """The provider's where that is wanted and it has had its say; with provider_only an answer without a figure costs nothing, one that broke off
    what is calculated all the same."""
    call: dict[str, Any] = {"seen": 40, "least": 40, "margin": 5, "cap": 45, "input_bound": 50, "visible": True, "stops_on_close": True}
    charge = settle_figures(Usage(50, 40, cost_nano_usd=cost), ended=ended, price=Price(1000, 2000), cost_source=source, **call)
    assert (charge.cost_nano_usd, charge.cost_source) == want


def test_a_later_report_keeps_what_is_known_of_audio() -> None:
    """Audio is laid over like the other counts."""
    merged = merge(Usage(1, 2, audio_input_tokens=3, audio_told=True), Usage(1, 9, audio_output_tokens=4))
    assert (merged.audio_input_tokens, merged.audio_output_tokens, merged.audio_told) == (3, 4, True)


TOOLS = Price(1000, 2000, tools=(("web_search", 10_000),))


HOSTED: dict[str, Any] = {"price": TOOLS, "fees_nano_usd": 50_000, "grows": True, "input_bound": 900}


def test_fees_are_charged_as_far_as_calls_are_known() -> None:
    """A complete answer with a report says how many there were; of any other all that were held are charged."""
    searched = Usage(50, 10, calls={"web_search": 1})
    assert settled(searched, **HOSTED) == Charge(50, 10, 70 + 10_000, "reported")
    assert settled(Usage(50, 10), **HOSTED) == Charge(50, 10, 70, "reported")
    assert settled(Usage(50, None, calls={"web_search": 1}), **HOSTED).cost_nano_usd == 50 + 90 + 10_000
    assert settled(None, **HOSTED).cost_nano_usd == 900 + 90 + 50_000
    assert settled(searched, **HOSTED, ended="broken").cost_nano_usd == 900 + 90 + 50_000
    told = Usage(50, 10, cost_nano_usd=77)
    assert settled(told, **HOSTED).cost_nano_usd == 77
    assert settled(None, **HOSTED | {"price": None}).cost_nano_usd == 0


def test_what_tools_of_the_provider_make_grow_is_charged_as_held_until_the_last_report() -> None:
    """The input that was told first, an answer that is cut, output behind the report: only more than was held is charged as it is told."""
    early = Usage(50, 10, early=True)
    for change in ({"usage": early}, {"usage": Usage(50, 10), "outdated": True}, {"usage": Usage(50, 10), "ended": "closed"}):
        charge = settled(change.pop("usage"), **HOSTED | change)  # type: ignore[arg-type]
        assert (charge.input_tokens, charge.source) == (900, "partly" if charge.output_tokens == 10 else "counted")
        assert charge.cost_nano_usd == 900 + 2 * charge.output_tokens + 50_000
    assert settled(Usage(1200, 10, calls={"web_search": 9}, early=True), **HOSTED).cost_nano_usd == 1200 + 20 + 90_000
    assert settled(early).input_tokens == 50  # nothing reads it again


def test_output_behind_the_last_report_is_charged() -> None:
    """What was reported before it was no count of the answer."""
    assert settled(Usage(50, 10), outdated=True) == Charge(50, 45, 50 + 135, "partly")
    assert settled(Usage(50, 90), outdated=True).output_tokens == 90


def test_calls_that_cannot_be_read_are_charged_as_held() -> None:
    """At least; a tool without a price costs the dearest, unless it is known to be free."""
    assert settled(Usage(50, 10, calls={}, calls_unread=True), **HOSTED).cost_nano_usd == 70 + 50_000
    assert settled(Usage(50, 10, calls={"web_search": 7}, calls_unread=True), **HOSTED).cost_nano_usd == 70 + 70_000
    assert settled(Usage(50, 10, calls={"odd": 2, "web_fetch": 5, "code_execution": 3}), **HOSTED).cost_nano_usd == 70 + 20_000


def test_what_is_not_known_costs_what_its_marks_were_held_at() -> None:
    """An answer without usage to a request that marks nothing is charged the input's own rate."""
    price = Price(1000, 2000, cache_write=1250, cache_write_1h=2000)
    costs = [settled(None, price=price, marks=marks, ended="complete").cost_nano_usd for marks in ("", "5m", "1h")]
    assert costs == [100 + 90, 125 + 90, 200 + 90]
