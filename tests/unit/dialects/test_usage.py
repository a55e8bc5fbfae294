"""Usage arithmetic, shape by shape; and what reports become on a bill (cases 49 to 64 of cases.md that are arithmetic)."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.core.prices import Price, cost_nano_usd
from sluicegate.core.usage import Usage, merge, settle_figures
from sluicegate.dialects.usage import (
    ANTHROPIC,
    OLLAMA,
    OPENAI_CHAT,
    OPENAI_EMBEDDINGS,
    OPENAI_RESPONSES,
    TOKENS_MAX,
    Shape,
    laid_over,
    read,
)

SHAPES = {"chat": OPENAI_CHAT, "responses": OPENAI_RESPONSES, "embeddings": OPENAI_EMBEDDINGS, "anthropic": ANTHROPIC, "ollama": OLLAMA}

# shape, what is reported, what it means
TABLE: list[tuple[Shape, Any, Usage | None]] = [
    (OPENAI_CHAT, {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}, Usage(9, 4)),
    (OPENAI_CHAT, {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}, Usage(0, 0)),
    (OPENAI_CHAT, {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 5}}, Usage(9, 4, 5)),
    (OPENAI_CHAT, {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 0}, "cached_tokens": 3}, Usage(9, 4, 3)),
    (OPENAI_CHAT, {"prompt_tokens": 9, "completion_tokens": 4, "prompt_cache_hit_tokens": 2, "prompt_cache_miss_tokens": 7}, Usage(9, 4, 2)),
    (OPENAI_CHAT, {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cache_write_tokens": 5}}, Usage(9, 4, 0, 5)),
    (OPENAI_CHAT, {"prompt_tokens": 9, "completion_tokens": 40, "completion_tokens_details": {"reasoning_tokens": 30}}, Usage(9, 40, 0, 0, 30)),
    (OPENAI_CHAT, {"prompt_tokens": 9, "completion_tokens": 4, "completion_tokens_details": {"reasoning_tokens": 30}}, Usage(9, 34, 0, 0, 30)),
    (
        OPENAI_CHAT,  # xAI: the total alone has the reasoning in it
        {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 43, "completion_tokens_details": {"reasoning_tokens": 30}},
        Usage(9, 34, 0, 0, 30),
    ),
    (OPENAI_CHAT, {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 43}, Usage(9, 34)),
    (OPENAI_CHAT, {"prompt_tokens": 9, "completion_tokens": 4, "completion_tokens_details": {"reasoning_tokens": 0}}, Usage(9, 4, no_reasoning=True)),
    (OPENAI_CHAT, {"prompt_tokens": 9, "completion_tokens": 4, "completion_tokens_details": {"reasoning_tokens": None}}, Usage(9, 4)),
    (
        OPENAI_CHAT,  # which the total contradicts
        {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 43, "completion_tokens_details": {"reasoning_tokens": 0}},
        Usage(9, 34),
    ),
    (OPENAI_CHAT, {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 10}}, Usage(9, 4)),
    (OPENAI_CHAT, {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 9}}, Usage(9, 4, 9)),
    (
        OPENAI_CHAT,
        {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 6, "cache_write_tokens": 5}},
        Usage(9, 4, 0, 5),
    ),
    (OPENAI_CHAT, {"prompt_tokens": 9, "completion_tokens": 4, "cost": 0.1}, Usage(9, 4, cost_nano_usd=100_000_000)),
    (
        OPENAI_CHAT,  # OpenRouter, with a key of one's own: the vendor's bill comes on top of its fee
        {"prompt_tokens": 9, "completion_tokens": 4, "cost": 0.05, "is_byok": True, "cost_details": {"upstream_inference_cost": 1}},
        Usage(9, 4, cost_nano_usd=1_050_000_000),
    ),
    (
        OPENAI_CHAT,
        {"prompt_tokens": 9, "completion_tokens": 4, "cost": 0.05, "is_byok": False, "cost_details": {"upstream_inference_cost": 1}},
        Usage(9, 4, cost_nano_usd=50_000_000),
    ),
    (OPENAI_RESPONSES, {"input_tokens": 9, "output_tokens": 4, "total_tokens": 13}, Usage(9, 4)),
    (
        OPENAI_RESPONSES,
        {
            "input_tokens": 90,
            "input_tokens_details": {"cached_tokens": 50},
            "output_tokens": 40,
            "output_tokens_details": {"reasoning_tokens": 30},
            "total_tokens": 130,
        },
        Usage(90, 40, 50, 0, 30),
    ),
    (OPENAI_EMBEDDINGS, {"prompt_tokens": 9, "total_tokens": 9}, Usage(9, 0)),
    (OPENAI_EMBEDDINGS, {"total_tokens": 9}, Usage(9, 0)),
    (OPENAI_EMBEDDINGS, {"prompt_tokens": 9}, Usage(9, 0)),
    (OPENAI_EMBEDDINGS, {}, Usage(None, 0)),
    (ANTHROPIC, {"input_tokens": 9, "output_tokens": 4}, Usage(9, 4)),
    (ANTHROPIC, {"input_tokens": 9, "cache_read_input_tokens": 50, "output_tokens": 4}, Usage(59, 4, 50)),
    (ANTHROPIC, {"input_tokens": 9, "cache_creation_input_tokens": 70, "cache_read_input_tokens": 50, "output_tokens": 4}, Usage(129, 4, 50, 70)),
    (ANTHROPIC, {"input_tokens": 9, "cache_creation_input_tokens": None, "cache_read_input_tokens": None, "output_tokens": 4}, Usage(9, 4)),
    (
        ANTHROPIC,
        {
            "input_tokens": 9,
            "cache_creation_input_tokens": 70,
            "cache_creation": {"ephemeral_5m_input_tokens": 60, "ephemeral_1h_input_tokens": 10},
            "output_tokens": 4,
        },
        Usage(79, 4, 0, 70, cache_write_1h_tokens=10),
    ),
    (
        ANTHROPIC,
        {"input_tokens": 9, "cache_creation": {"ephemeral_5m_input_tokens": 60, "ephemeral_1h_input_tokens": 10}, "output_tokens": 4},
        Usage(79, 4, 0, 70, cache_write_1h_tokens=10),
    ),
    (ANTHROPIC, {"input_tokens": 9, "output_tokens": 40, "output_tokens_details": {"thinking_tokens": 30}}, Usage(9, 40, 0, 0, 30)),
    (
        ANTHROPIC,  # a compaction, which the counts beside the list leave out
        {
            "input_tokens": 23,
            "output_tokens": 10,
            "iterations": [
                {"type": "compaction", "input_tokens": 100, "cache_read_input_tokens": 80, "output_tokens": 35},
                {"type": "message", "input_tokens": 23, "output_tokens": 10},
            ],
        },
        Usage(203, 45, 80),
    ),
    (ANTHROPIC, {"input_tokens": 23, "output_tokens": 10, "iterations": [{"input_tokens": 3, "output_tokens": 1}, None]}, Usage(23, 10)),
    (ANTHROPIC, {"output_tokens": 4}, Usage(None, 4)),
    (OLLAMA, {"prompt_eval_count": 9, "eval_count": 4, "eval_duration": 7}, Usage(9, 4)),
    (OLLAMA, {"eval_count": 4}, Usage(None, 4)),
]


@pytest.mark.parametrize(("shape", "reported", "want"), TABLE)
def test_what_a_report_means(shape: Shape, reported: Any, want: Usage | None) -> None:
    """Input has all that was read from a cache or written into one, output all reasoning; what is not reported is not made up."""
    assert read(shape, reported) == want


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("wrong", [None, -1, 1.5, "10", True, [], {}, TOKENS_MAX + 1, 10**400, float("nan"), float("inf")])
def test_what_is_no_count_is_not_reported(shape: Shape, wrong: Any) -> None:
    """A field of the wrong type, negative, fractional or absurd counts as missing, that field only (case 54)."""
    usage = read(shape, {shape.input: wrong, shape.output: 4})
    assert usage is not None and (usage.input_tokens, usage.output_tokens) == (None, 4 if shape.output else 0)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_whole_number_may_be_written_as_a_fraction(shape: Shape) -> None:
    """9.0 is 9."""
    usage = read(shape, {shape.input: 9.0})
    assert usage is not None and usage.input_tokens == 9


@pytest.mark.parametrize("reported", [None, [], 5, "x", True])
def test_what_is_no_object_is_no_report(reported: Any) -> None:
    """None: no usage was reported."""
    assert read(OPENAI_CHAT, reported) is None


COUNTS = st.one_of(st.integers(-2, 50), st.none(), st.floats(0, 50), st.text(max_size=2), st.just({}))
PLACES = [place for shape in SHAPES.values() for place in ((shape.input,), (shape.total,), *shape.cached, *shape.reasoning)]
FIELDS = sorted({place[0] for place in PLACES} - {""})
INNER = st.dictionaries(st.sampled_from(["cached_tokens", "reasoning_tokens", "ephemeral_1h_input_tokens", "cache_write_tokens"]), COUNTS, max_size=3)
REPORTS = st.dictionaries(
    st.sampled_from([*FIELDS, "completion_tokens", "output_tokens", "eval_count", "cache_creation", "iterations", "cost", "cost_details"]),
    st.one_of(COUNTS, INNER, st.lists(INNER, max_size=2)),
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(SHAPES)), REPORTS, REPORTS)
def test_parts_stay_inside_the_whole(name: str, earlier: dict[str, Any], later: dict[str, Any]) -> None:
    """Whatever is reported, nothing raises, and the parts that are billed at other rates are never more than what they are part of."""
    usage = read(SHAPES[name], laid_over(earlier, later))
    assert usage is not None
    assert 0 <= usage.cached_tokens + usage.cache_write_tokens <= (usage.input_tokens or 0)
    assert 0 <= usage.cache_write_1h_tokens <= usage.cache_write_tokens
    assert 0 <= usage.reasoning_tokens <= (usage.output_tokens or 0)


# -- reports of one call, one after the other ---------------------------------------------------------------------------------------------


def after(shape: Shape, *reports: dict[str, Any]) -> Usage | None:
    """What several reports of one call say together, each read on its own."""
    usage: Usage | None = None
    for reported in reports:
        one = read(shape, reported)
        usage = usage if one is None else merge(usage, one)
    return usage


def test_cumulative_reports_are_not_summed() -> None:
    """Usage on every chunk is where the call stood then (case 52), as is Anthropic's (case 53)."""
    assert after(OPENAI_CHAT, *({"prompt_tokens": 7, "completion_tokens": n, "total_tokens": 7 + n} for n in (10, 20, 30))) == Usage(7, 30)
    assert after(ANTHROPIC, {"input_tokens": 25, "output_tokens": 1}, {"output_tokens": 15}) == Usage(25, 15)


def test_reports_are_laid_over_each_other_before_they_are_read() -> None:
    """Where cached tokens are beside the input, a later report that repeats the input alone does not make them vanish."""
    start = {"input_tokens": 100, "cache_read_input_tokens": 900, "cache_creation": {"ephemeral_1h_input_tokens": 20}, "output_tokens": 1}
    assert read(ANTHROPIC, laid_over(start, {"input_tokens": 100, "output_tokens": 15})) == Usage(1020, 15, 900, 20, cache_write_1h_tokens=20)
    assert read(ANTHROPIC, laid_over(start, {"cache_read_input_tokens": None, "input_tokens": 0})) == Usage(
        1020, 1, 900, 20, cache_write_1h_tokens=20
    )
    parts = {"cache_creation": {"ephemeral_1h_input_tokens": 0, "ephemeral_5m_input_tokens": 3}}
    assert read(ANTHROPIC, laid_over(start, parts)) == Usage(1023, 1, 900, 23, cache_write_1h_tokens=20)
    assert start["cache_creation"] == {"ephemeral_1h_input_tokens": 20}
    assert laid_over(start, None) is start
    assert laid_over(None, {"input_tokens": 0, "output_tokens": None}) == {"input_tokens": 0, "output_tokens": None}


# -- on the bill --------------------------------------------------------------------------------------------------------------------------

PRICE = Price(3_000_000, 15_000_000, cached_input=300_000, cache_write=3_750_000, cache_write_1h=6_000_000)  # USD 3, 15, 0.30, 3.75 and 6 per 1M


def charged(usage: Usage | None, *, ended: Any = "complete", seen: int = 0, cap: int = 500) -> tuple[int, int, str]:
    """Tokens and source of the bill of a capped call with a bound of 200 on its input."""
    charge = settle_figures(
        usage, ended=ended, seen=seen, least=0, margin=0, cap=cap, input_bound=200, visible=False, stops_on_close=False, price=PRICE
    )
    return charge.input_tokens, charge.output_tokens, charge.source


@pytest.mark.parametrize("shape", [OPENAI_CHAT, OPENAI_RESPONSES, ANTHROPIC, OLLAMA])
def test_fields_that_are_missing_are_estimated_those_only(shape: Shape) -> None:
    """A missing input is the bound, a missing output what may have come of it; the other field is as reported (case 54)."""
    assert charged(read(shape, {shape.input: 90, shape.output: 40}), seen=38) == (90, 40, "reported")
    assert charged(read(shape, {shape.output: 40}), seen=38) == (200, 40, "partly")
    assert charged(read(shape, {shape.input: 90, shape.output: None}), seen=38) == (90, 500, "partly")
    assert charged(read(shape, {shape.input: None, shape.output: None}), seen=38) == (200, 500, "held")


@pytest.mark.parametrize("shape", [OPENAI_CHAT, OPENAI_RESPONSES, ANTHROPIC, OLLAMA])
def test_an_explicit_zero_is_believed_where_nothing_came(shape: Shape) -> None:
    """Input 0 beside output is not believed; both 0 are, if nothing was metered, else the meter counts (case 55)."""
    assert charged(read(shape, {shape.input: 0, shape.output: 40}), seen=38) == (200, 40, "partly")
    assert charged(read(shape, {shape.input: 0, shape.output: 0})) == (0, 0, "reported")
    assert charged(read(shape, {shape.input: 0, shape.output: 0}), seen=38)[1] == 38


def test_a_report_of_an_answer_that_went_on_is_where_it_stood() -> None:
    """An answer that was cut after message_start is never settled below what may have come (cases 57 and 58)."""
    start = read(ANTHROPIC, {"input_tokens": 25, "output_tokens": 1})
    assert charged(start, ended="closed", seen=30) == (25, 500, "partly")


def test_embeddings_are_charged_their_input() -> None:
    """There is no output to be missing."""
    assert charged(read(OPENAI_EMBEDDINGS, {"prompt_tokens": 9, "total_tokens": 9}), cap=0) == (9, 0, "reported")


def test_the_same_call_costs_the_same_in_every_shape() -> None:
    """1,000 tokens in, 900 of them from the cache, 10 out: one bill, whether the cached ones are inside the input's count or beside it (case 63)."""
    reports = [
        read(OPENAI_CHAT, {"prompt_tokens": 1000, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 900}}),
        read(OPENAI_CHAT, {"prompt_tokens": 1000, "completion_tokens": 10, "prompt_cache_hit_tokens": 900}),
        read(OPENAI_RESPONSES, {"input_tokens": 1000, "output_tokens": 10, "input_tokens_details": {"cached_tokens": 900}}),
        read(ANTHROPIC, {"input_tokens": 100, "cache_read_input_tokens": 900, "output_tokens": 10}),
    ]
    assert all(usage == Usage(1000, 10, 900) for usage in reports)
    assert {cost_nano_usd(PRICE, usage) for usage in reports if usage is not None} == {100 * 3000 + 900 * 300 + 10 * 15_000}


def test_writes_for_an_hour_have_their_own_rate() -> None:
    """Each kind of write at its own price, the rest of the input at the input's (case 64)."""
    report = {
        "input_tokens": 100,
        "cache_creation_input_tokens": 1000,
        "cache_creation": {"ephemeral_5m_input_tokens": 600, "ephemeral_1h_input_tokens": 400},
        "output_tokens": 0,
    }
    usage = read(ANTHROPIC, report)
    assert usage is not None
    assert cost_nano_usd(PRICE, usage) == 100 * 3000 + 600 * 3750 + 400 * 6000
    assert cost_nano_usd(Price(3_000_000, 0, cache_write=3_750_000), usage) == 100 * 3000 + 1000 * 3750
    assert cost_nano_usd(Price(3_000_000, 0), usage) == 1100 * 3000


@pytest.mark.parametrize(
    ("fields", "cost"),
    [
        ({"cost": 0.25}, 250_000_000),
        ({"cost": {"total_cost": 0.006, "request_cost": 0.005, "currency": "USD"}}, 6_000_000),
        ({"cost": {"currency": "USD"}}, None),
        ({"cost_in_usd_ticks": 37_756_001}, 3_775_601),
        ({"cost_in_usd_ticks": -1}, None),
        ({"cost_in_usd_ticks": 1.5}, None),
        ({"cost_in_usd_ticks": True}, None),
        ({"cost": -1}, None),
        ({}, None),
    ],
)
def test_costs_as_vendors_report_them(fields: dict[str, Any], cost: int | None) -> None:
    """In dollars, in dollars inside an object, in ticks, rounded up to a nano-dollar; what cannot be a cost is none."""
    usage = read(OPENAI_CHAT, {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10, **fields})
    assert usage is not None and usage.cost_nano_usd == cost


@pytest.mark.parametrize(
    ("details", "want"),
    [
        ({"prompt_tokens_details": {"audio_tokens": 3}, "completion_tokens_details": {"audio_tokens": 4}}, (3, 4, True)),
        ({"prompt_tokens_details": {"audio_tokens": 0}, "completion_tokens_details": {"audio_tokens": 0}}, (0, 0, True)),
        ({"prompt_tokens_details": {"audio_tokens": 3}}, (3, 0, False)),
        ({"prompt_tokens_details": {"audio_tokens": "3"}, "completion_tokens_details": None}, (0, 0, False)),
        ({}, (0, 0, False)),
    ],
)
def test_audio_is_told_where_both_sides_say_how_much(details: dict[str, Any], want: tuple[int, int, bool]) -> None:
    """As OpenAI's chats report it; what is left out says nothing."""
    usage = read(OPENAI_CHAT, {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10, **details})
    assert usage is not None and (usage.audio_input_tokens, usage.audio_output_tokens, usage.audio_told) == want


def test_case_62_a_stream_costs_what_a_unary_answer_does() -> None:
    """The same report, laid over an earlier one as streams have it, is the same bill: what is from a cache is cheaper in both."""
    report = {"prompt_tokens": 1000, "completion_tokens": 10, "total_tokens": 1010, "prompt_tokens_details": {"cached_tokens": 900}}
    whole, first = read(OPENAI_CHAT, report), read(OPENAI_CHAT, {"prompt_tokens": 1000, "completion_tokens": 1, "total_tokens": 1001})
    assert whole is not None
    assert cost_nano_usd(PRICE, merge(first, whole)) == cost_nano_usd(PRICE, whole) == 100 * 3000 + 900 * 300 + 10 * 15_000
