"""Figures of requests, before and after learning."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.core.estimate import IMAGE_TOKENS, PAIRS_MAX, Figures, Learned
from sluicegate.core.meter import EventMeter, Meter, count
from sluicegate.core.prices import Price
from sluicegate.core.tenants import Budget, Deployment, Key, Model, Provider, Scope
from sluicegate.core.usage import Usage
from sluicegate.dialects import openai_completions, openai_embeddings, openai_responses
from sluicegate.dialects.form import BadRequest, Delta, Request
from sluicegate.dialects.openai_chat import read_request

PROVIDER = Provider("p", "openai_chat", "http://127.0.0.1/v1", ())
PLAIN = Deployment("p/m", PROVIDER, "m", Price(150_000, 600_000), False)
EXTENDED = Deployment("p/e", PROVIDER, "e", None, True)
BY_EVENT = Deployment("p/v", Provider("p", "openai_chat", "http://127.0.0.1/v1", (), token_per_event=True), "v", None, False)
TOKENS = Deployment("p/t", PROVIDER, "t", None, False, tokenizer="o200k_base", image_tokens=1000)
MODEL = Model("chat", (PLAIN, TOKENS), max_output=4096)
BUDGET = Budget()
WORDS = ("word " * 100)[:500]


def key(tenant: str = "acme/team") -> Key:
    """A key of this tenant."""
    organization, at = Scope("acme", "organization", "acme"), Scope(f"{tenant}/@k", "key", "k")
    return Key(at.id, "k", "acme", (organization, Scope(tenant, "team", tenant), at), None, ())


def request(text: str = WORDS, **fields: Any) -> Request:
    return read_request(json.dumps({"model": "chat", "messages": [{"role": "user", "content": text}], **fields}).encode())


def figures(
    learned: Learned | None = None, asked: Request | None = None, deployment: Deployment = PLAIN, budget: Budget = BUDGET, tenant: str = "acme/team"
) -> Figures:
    return (learned or Learned()).figures(asked or request(), MODEL, deployment, key(tenant), budget)


def observe(
    learned: Learned, usage: Usage, *, asked: Request | None = None, deployment: Deployment = PLAIN, seen: int = 0, truncated: bool = False,
    times: int = 1, tenant: str = "acme/team", by_event: bool = False,
) -> bool:  # fmt: skip
    """Tells of this usage so many times; whether the last one capped the deployment."""
    meter = EventMeter("", 1000, 0) if by_event else Meter("", 1000)
    if seen:
        meter.add(Delta(0, "x" * seen))
    found = figures(learned, asked, deployment, tenant=tenant)
    capped = False
    for _ in range(times):
        capped = learned.observe(found, usage, meter, model=MODEL, deployment=deployment, key=key(tenant), truncated=truncated)
    return capped


# -- input --------------------------------------------------------------------------------------------------------------------------------


def test_input_before_anything_is_known() -> None:
    """500 characters are estimated at 125 tokens and bounded by one per byte, plus 4 per message and 3."""
    found = figures()
    assert (found.input_estimate, found.input_bound) == (132, 507)


def test_bytes_bound_dense_text() -> None:
    """Text in which a character is several bytes is bounded by these."""
    found = figures(asked=request("鬱" * 10))
    assert (found.input_estimate, found.input_bound) == (3 + 7, 30 + 7)


def completion(prompt: Any, **fields: Any) -> Request:
    return openai_completions.read_request(json.dumps({"model": "chat", "prompt": prompt, **fields}).encode())


def embedding(texts: Any) -> Request:
    return openai_embeddings.read_request(json.dumps({"model": "chat", "input": texts}).encode())


@pytest.mark.parametrize("deployment", [PLAIN, TOKENS])
def test_tokens_count_as_tokens(deployment: Deployment) -> None:
    """In both figures, in all prompts together, and nothing is learned from them about text."""
    found = figures(asked=completion([[1, 2, 300_000], [4]]), deployment=deployment)
    assert (found.input_estimate, found.input_bound, found.choices) == (4 + 2 * 4 + 3, 4 + 2 * 4 + 3, 2)
    learned = Learned()
    observe(learned, Usage(5000, 5), asked=completion([1]), deployment=deployment, times=300, truncated=True)
    assert figures(learned, deployment=deployment) == figures(deployment=deployment)


def test_embeddings_have_no_output() -> None:
    """Neither wanted nor needed, also where a provider runs over its caps; each input is framed."""
    overrunning = Deployment("p/o", Provider("p", "openai_chat", "http://127.0.0.1/v1", (), cap_overrun=3), "o", None, False)
    found = figures(asked=embedding(["some", "text"]), deployment=overrunning)
    assert (found.need, found.aim, found.want, found.beyond_cap) == (0, 0, 0, 0)
    assert (found.input_estimate, found.input_bound) == (2 + 2 * 4 + 3, 8 + 2 * 4 + 3)


def test_input_with_a_vocabulary() -> None:
    """Where tokens can be counted, both figures are that count and the framing; a few usages must first show that the provider counts alike."""
    learned = Learned()
    want = count(WORDS, "o200k_base") + 7
    assert (figures(deployment=TOKENS).input_estimate, figures(deployment=TOKENS).input_bound) == (want, 500 + 7)
    observe(learned, Usage(want, 5), deployment=TOKENS, times=7)
    assert figures(learned, deployment=TOKENS).input_bound == 500 + 7
    observe(learned, Usage(want, 5), deployment=TOKENS)
    assert (figures(learned, deployment=TOKENS).input_estimate, figures(learned, deployment=TOKENS).input_bound) == (want, want)


def test_long_text_is_bounded_by_its_bytes() -> None:
    """Above 256 KiB nothing is tokenized: estimated by characters, bounded by bytes."""
    found = figures(asked=request("a" * 300_000), deployment=TOKENS)
    assert (found.input_estimate, found.input_bound) == (75_000 + 7, 300_000 + 7)


def test_every_text_counts() -> None:
    """Tools count beside messages."""
    tools = [{"type": "function", "function": {"name": "f", "description": "x" * 400}}]
    assert figures(asked=request(tools=tools)).input_bound > 507 + 400


def test_images() -> None:
    """Images count at the deployment's figure, else at a default, never as text (case 91)."""
    parts = [{"type": "text", "text": "hi"}, *[{"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}] * 2]
    asked = request(messages=[{"role": "user", "content": parts}])
    assert figures(asked=asked).input_bound == 2 + 7 + 2 * IMAGE_TOKENS
    assert figures(asked=asked, deployment=TOKENS).input_bound == 2 + 7 + 2 * 1000


def test_unbounded_input() -> None:
    """Content that is not in the request is bounded by the context, or refused by name (case 128)."""
    asked = request(messages=[{"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}])
    with pytest.raises(BadRequest) as info:
        figures(asked=asked)
    assert (info.value.code, info.value.param) == ("unbounded_input", "messages")
    assert figures(asked=asked, deployment=Deployment("p/c", PROVIDER, "c", None, False, context=8192)).input_bound == 8192


def test_with_each_round_of_calls_all_is_read_again() -> None:
    """Calls of tools that the provider runs multiply the input's bound, and their fees are held."""
    price = Price(1, 1, tools=(("web_search", 10_000_000),))
    deployment = Deployment("p/c", PROVIDER, "c", price, False, context=8192)
    asked = openai_responses.read_request(b'{"model":"m","input":"hi","max_tool_calls":3,"tools":[{"type":"web_search"}]}')
    found = figures(asked=asked, deployment=deployment)
    assert (found.input_bound, found.fees_nano_usd, found.priced) == (4 * 8192, 30_000_000, True)
    endless = openai_responses.read_request(b'{"model":"m","input":"hi","tools":[{"type":"web_search"}]}')
    assert (figures(asked=endless, deployment=deployment).input_bound, figures(asked=endless, deployment=deployment).fees_nano_usd) == (8192, 0)


def test_marks_count_where_nothing_else_is_written_into_the_cache() -> None:
    """At any other provider all input may be written into it, for an hour."""
    marking = msgspec.structs.replace(PROVIDER, marked_cache=True)
    priced = [Deployment("p/c", provider, "c", Price(1, 1), False) for provider in (PROVIDER, marking)]
    assert [figures(deployment=one).marks for one in priced] == ["1h", ""]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "r"}, "previous_response_id"),
        ({"extra_body": {"enable_search": True}}, "extra_body"),
        ({"tools": [{"type": "custom"}, {"type": "web_search"}]}, "tools[1].type"),
        ({"max_tokens": 2**53 - 1}, "max_tokens"),
        ({"max_completion_tokens": 2**53 - 1}, "max_completion_tokens"),
        ({"n_predict": 2**53 - 1}, "n_predict"),
    ],
)
def test_the_field_that_is_at_fault_is_named(fields: dict[str, Any], param: str) -> None:
    """Not the one that such a fault mostly comes from."""
    with pytest.raises(BadRequest) as info:
        figures(asked=request(**fields))
    assert info.value.param == param


def test_learned_input() -> None:
    """From 200 complete usages on, the estimate takes their mean and the bound the largest ratio and a tenth; until then neither."""
    learned = Learned()
    observe(learned, Usage(107, 5), times=199)
    assert (figures(learned).input_estimate, figures(learned).input_bound) == (132, 507)
    observe(learned, Usage(207, 5))
    found = figures(learned)
    assert found.input_estimate == 101 + 7  # 125 times a mean of 0.804, rounded up
    assert found.input_bound == 500 * 400 * 11 // 10_000 + 7  # 0.4 per byte was the densest


def test_dense_prompt_is_forgotten_after_a_thousand() -> None:
    """The largest ratio is that of the last 1,000 usages."""
    learned = Learned()
    observe(learned, Usage(407, 5))
    observe(learned, Usage(107, 5), times=999)
    assert figures(learned).input_bound == 440 + 7
    observe(learned, Usage(107, 5))
    assert figures(learned).input_bound == 110 + 7


def test_what_a_provider_adds_is_added() -> None:
    """A template that adds tokens to a short prompt widens the bound of all at once, and does not spoil the ratio of long ones."""
    learned = Learned()
    observe(learned, Usage(60, 5), asked=request("hi"), times=300)
    assert figures(learned, request("hi")).input_bound == 2 + 51 + 7
    observe(learned, Usage(132, 5), times=300)
    assert figures(learned).input_bound == 138 + 51 + 7


@pytest.mark.parametrize("deployment", [PLAIN, TOKENS])
@given(answers=st.lists(st.tuples(st.booleans(), st.integers(1, 700), st.integers(0, 50)), max_size=100))
def test_learned_together(deployment: Deployment, answers: list[tuple[bool, int, int]]) -> None:
    """What is learned some at a time gives the same estimates as one by one, and bounds that are never below those."""
    one_by_one, together = Learned(), Learned()
    for short, read, written in answers:
        asked = request("hi") if short else request()
        observe(one_by_one, Usage(read, written), asked=asked, deployment=deployment)
        together.observe_later(figures(None, asked, deployment), Usage(read, written), MODEL, deployment, key(), False)
    tables = [{name: table for name, table in learned.increments().items() if table} for learned in (one_by_one, together)]
    assert tables[0] == tables[1]
    for asked in (request("hi"), request()):
        one, other = figures(one_by_one, asked, deployment), figures(together, asked, deployment)
        assert (one.input_estimate, one.aim) == (other.input_estimate, other.aim)
        assert one.input_bound <= other.input_bound


@pytest.mark.parametrize("deployment", [PLAIN, TOKENS])
@pytest.mark.parametrize("asked", [request("hi"), request()])
def test_absurd_reports_teach_nothing(deployment: Deployment, asked: Request) -> None:
    """More tokens than bytes, and a large system prompt beside them, are not believed: they would shut out everybody else for ever."""
    learned = Learned()
    observe(learned, Usage(10**9, 5), asked=asked, deployment=deployment, times=300)
    assert figures(learned, asked, deployment).input_bound == figures(None, asked, deployment).input_bound


def test_overhead_beyond_the_vocabulary() -> None:
    """With a vocabulary, what was reported beyond the count is added to the bound, not to the estimate."""
    learned = Learned()
    before = figures(learned, deployment=TOKENS).input_estimate
    observe(learned, Usage(before + 30, 5), deployment=TOKENS, times=8)
    found = figures(learned, deployment=TOKENS)
    assert found.input_estimate == before
    assert 0 <= found.input_bound - (before + 30) <= 1  # a ratio is rounded up


def test_a_vocabulary_that_counts_too_little() -> None:
    """Where longer prompts are denser than the vocabulary says, the bound of each grows in proportion, beside what is added to all."""
    learned = Learned()
    text = "word" + " word" * 99
    asked, longer, short = request(text), request(text + " word" * 300), request("hi")
    observe(learned, Usage(1 + 2 + 7, 5), asked=short, deployment=TOKENS, times=8)
    observe(learned, Usage(150 + 2 + 7, 5), asked=asked, deployment=TOKENS)
    assert [figures(learned, one, TOKENS).input_bound for one in (asked, longer, short)] == [150 + 2 + 7, 600 + 2 + 7, 2 + 2 + 7]
    observe(learned, Usage(100 + 2 + 7, 5), asked=asked, deployment=TOKENS, times=1000)
    assert [figures(learned, one, TOKENS).input_bound for one in (asked, longer, short)] == [100 + 2 + 7, 400 + 2 + 7, 1 + 2 + 7]


def test_images_teach_nothing() -> None:
    """A request with images says nothing about text."""
    learned = Learned()
    asked = request(messages=[{"role": "user", "content": [{"type": "text", "text": WORDS}, {"type": "image_url", "image_url": "https://x"}]}])
    observe(learned, Usage(9000, 5), asked=asked, times=300)
    assert figures(learned).input_bound == 507


def test_partial_usage_teaches_nothing() -> None:
    """Only a complete usage is learned from."""
    learned = Learned()
    observe(learned, Usage(None, 500), seen=10, times=300)
    observe(learned, Usage(400, None), times=300)
    assert figures(learned) == figures()
    assert learned.factor_milli(PLAIN) == 1000


# -- output -------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "need", "want"),
    [
        ({}, 16, 4096),
        ({"max_tokens": 100}, 16, 100),
        ({"max_tokens": 4}, 4, 4),
        ({"max_tokens": 100, "n": 8}, 128, 800),
        ({"n": 2}, 32, 8192),
        ({"max_tokens": 2000, "thinking": {"type": "enabled", "budget_tokens": 1000}}, 1016, 2000),
        ({"max_tokens": 500, "thinking": {"type": "enabled", "budget_tokens": 1000}}, 500, 500),
    ],
)
def test_need_and_want(fields: dict[str, Any], need: int, want: int) -> None:
    """Totals over all choices: at least the minimum and a thinking budget, at most the cap (cases 12, 105)."""
    found = figures(asked=request(**fields))
    assert (found.need, found.aim, found.want) == (need, want, want)


def test_prediction_adds_output() -> None:
    """A predicted output is billed where it is rejected: it is held beside the cap, and not sent as part of it."""
    found = figures(asked=request(max_tokens=100, prediction={"type": "content", "content": "x" * 40}))
    assert (found.need, found.want, found.beyond_cap) == (16 + 40, 140, 40)
    assert (found.cap(found.want), found.cap(found.need)) == (100, 16)


def test_what_comes_beyond_the_cap_is_held() -> None:
    """Each choice of a provider that may run beyond its cap needs, aims at and wants that much more."""
    runs_on = Deployment("p/o", Provider("p", "openai_chat", "http://127.0.0.1/v1", (), cap_overrun=3), "o", None, False)
    found = figures(asked=request(n=2, max_tokens=100), deployment=runs_on, budget=Budget(estimator="fixed", fixed_output=40))
    assert (found.need, found.aim, found.want, found.beyond_cap) == (38, 86, 206, 6)
    assert (found.cap(found.want), found.cap(found.need)) == (100, 16)


def test_cap_per_choice() -> None:
    """What a grant pays for is divided among the choices, rounded down (case 105)."""
    assert figures(asked=request(n=8, max_tokens=100)).cap(592) == 74


@pytest.mark.parametrize(("deployment", "cap"), [(PLAIN, 2**53 - 1), (EXTENDED, 2**53 - 1), (PLAIN, 2**53 // 600_000 + 1)])
def test_amounts_beyond_exact_numbers(deployment: Deployment, cap: int) -> None:
    """What a double cannot hold exactly never reaches a ledger (case 119)."""
    with pytest.raises(BadRequest) as info:
        figures(asked=request(max_tokens=cap), deployment=deployment)
    assert info.value.param == "max_tokens"
    assert figures(asked=request(max_tokens=2**53 // 600_000 - 1)).want == 2**53 // 600_000 - 1


def test_estimators() -> None:
    """max_tokens aims at the whole cap, fixed at a number per choice; neither above the cap nor below the need."""
    asked = request(max_tokens=1000, n=2)
    assert figures(asked=asked, budget=Budget(estimator="max_tokens")).aim == 2000
    assert figures(asked=asked, budget=Budget(estimator="fixed", fixed_output=300)).aim == 600
    assert figures(asked=asked, budget=Budget(estimator="fixed", fixed_output=3000)).aim == 2000
    assert figures(asked=asked, budget=Budget(estimator="fixed", fixed_output=1)).aim == 32


def test_p95_needs_fifty_samples() -> None:
    """Below 50 samples the whole cap is aimed at; then what 95 % of answers stay within, per choice."""
    learned = Learned()
    observe(learned, Usage(100, 100), times=49)
    assert figures(learned).aim == 4096
    observe(learned, Usage(100, 100))
    assert 100 <= figures(learned).aim <= 110
    assert 200 <= figures(learned, request(n=2)).aim <= 220
    assert figures(learned, request(max_tokens=20)).aim == 20


def test_p95_of_a_tenant_comes_first() -> None:
    """A tenant with enough samples has its own p95, another the model's."""
    learned = Learned()
    observe(learned, Usage(100, 1000), times=60, tenant="acme/long")
    observe(learned, Usage(100, 10), times=60, tenant="acme/short")
    assert figures(learned, tenant="acme/short").aim == 16
    assert figures(learned, tenant="acme/long").aim >= 1000
    assert figures(learned, tenant="acme/new").aim >= 1000


def test_truncated_answers_are_left_out() -> None:
    """An answer that a cap has cut says nothing about how long it wanted to be."""
    learned = Learned()
    observe(learned, Usage(100, 100), times=100, truncated=True)
    assert figures(learned).aim == 4096


def test_workers_share_histograms() -> None:
    """Samples of one worker serve another through the ledger's tables; an exchange that failed is made up for."""
    one, two = Learned(), Learned()
    observe(one, Usage(100, 100), times=60)
    figures(two)
    lost = one.increments()
    one.keep(lost)
    sums = one.increments()
    assert {name: sum(table.values()) for name, table in sums.items() if name.startswith("output")} == {
        "output chat acme/team": 60,
        "output chat": 60,
    }
    assert set(two.increments()) == {"output chat acme/team", "output chat", "exceeded", "deltas"}
    two.absorb(sums)
    one.absorb(sums)
    assert figures(one).aim == figures(two).aim < 120
    assert set(Learned().increments()) == {"exceeded", "deltas"}


def test_memory_is_bounded() -> None:
    """However many tenants ask, so many histograms are kept."""
    learned = Learned()
    for n in range(PAIRS_MAX):
        figures(learned, tenant=f"acme/{n}")
    assert len(learned.increments()) <= PAIRS_MAX + 2


def test_case_108_an_upstream_that_gathers_its_output_is_aimed_at_twice_its_largest_delta() -> None:
    """Its first delta is covered, and the next one while the ledger is asked: an answer that comes at once cannot be stopped in the middle."""
    learned = Learned()
    observe(learned, Usage(100, 100), times=60, deployment=EXTENDED)
    assert figures(learned, deployment=EXTENDED).aim < 120
    for largest in (4, 700, 90):
        learned.saw_delta(EXTENDED, largest)
    assert learned.delta(EXTENDED) == 700
    assert figures(learned, deployment=EXTENDED).aim == 1400
    assert figures(learned, request(n=2), deployment=EXTENDED).aim == 2800
    assert figures(learned, request(max_tokens=900), deployment=EXTENDED).aim == 900
    assert figures(learned).aim < 120  # of another deployment
    for _ in range(200):
        learned.saw_delta(EXTENDED, 4)
    assert learned.delta(EXTENDED) == 4


def test_workers_share_the_deltas_that_matter() -> None:
    """As a power of two that is not below them; small ones are not told, and what nobody tells any more is forgotten."""
    one, two = Learned(), Learned()
    one.saw_delta(PLAIN, 32)
    one.saw_delta(EXTENDED, 700)
    sums = one.increments()
    assert sums["deltas"] == {"p/e 10": 1}
    two.absorb({**sums, "deltas": {"p/e 10": 2, "p/e 7": 1}})
    assert (two.delta(EXTENDED), two.delta(PLAIN)) == (1023, 0)
    two.absorb({})
    assert two.delta(EXTENDED) == 0


# -- what a deployment bills --------------------------------------------------------------------------------------------------------------


def test_factor() -> None:
    """The meter is multiplied by the largest reported/metered of the last 200 usages, never by less than 1; 16 tokens may be hidden in each."""
    learned = Learned()
    assert learned.factor_milli(EXTENDED) == 1000
    observe(learned, Usage(100, 40), deployment=EXTENDED, seen=100)
    assert learned.factor_milli(EXTENDED) == 1000
    observe(learned, Usage(100, 1096), deployment=EXTENDED, seen=1000)
    assert learned.factor_milli(EXTENDED) == 1080
    observe(learned, Usage(100, 90), deployment=EXTENDED, seen=100, times=200)
    assert learned.factor_milli(EXTENDED) == 1000


@pytest.mark.parametrize(("deployment", "billed"), [(EXTENDED, 2), (EXTENDED, 17), (EXTENDED, 2000), (PLAIN, 17), (PLAIN, 2000)])
def test_one_answer_with_hidden_tokens_makes_no_factor(deployment: Deployment, billed: int) -> None:
    """What one short answer bills beside its text, an end or a whole reasoning, is charged to no other answer."""
    learned = Learned()
    observe(learned, Usage(100, billed), deployment=deployment, seen=1)
    assert learned.factor_milli(deployment) == 1000


def test_events_have_a_factor_of_their_own() -> None:
    """What text is billed beyond its count says nothing of what events are, nor the other way round."""
    learned = Learned()
    observe(learned, Usage(100, 166), deployment=BY_EVENT, seen=100)
    assert (learned.factor_milli(BY_EVENT), learned.factor_milli(BY_EVENT, by_event=True)) == (1500, 1000)


def test_where_events_can_be_counted_they_judge() -> None:
    """A vocabulary that counts too little does not accuse a deployment that shows each token; events that are too few do, extended or not."""
    learned = Learned()
    assert observe(learned, Usage(100, 5000), deployment=BY_EVENT, seen=5) is False
    assert observe(learned, Usage(100, 5000), deployment=BY_EVENT, seen=5, by_event=True)
    assert learned.exceeded(BY_EVENT)


@pytest.mark.parametrize(("reported", "capped"), [(100, False), (126, False), (127, True), (5000, True)])
def test_hidden_output_caps_a_deployment(reported: int, capped: bool) -> None:
    """An extended deployment that bills more than 1.1 times what it showed, plus 16, is capped from then on (case 106)."""
    learned = Learned()
    assert observe(learned, Usage(100, reported), deployment=EXTENDED, seen=100) is capped
    assert learned.exceeded(EXTENDED) is capped
    assert observe(learned, Usage(100, reported), deployment=EXTENDED, seen=100) is False
    observe(learned, Usage(100, 100), deployment=EXTENDED, seen=100, times=500)
    assert learned.exceeded(EXTENDED) is capped


def test_capped_deployments_may_hide_output() -> None:
    """One that is capped anyway is not noted."""
    learned = Learned()
    assert observe(learned, Usage(100, 5000), seen=5) is False
    assert not learned.exceeded(PLAIN)


def test_all_workers_cap_it() -> None:
    """Every worker learns of it, and tells it on for as long as it lives, since tables are forgotten."""
    one, two, three = Learned(), Learned(), Learned()
    observe(one, Usage(100, 5000), deployment=EXTENDED, seen=5)
    two.absorb(one.increments())
    assert two.exceeded(EXTENDED)
    two.increments()
    three.absorb(two.increments())
    assert three.exceeded(EXTENDED)


TEXTS = st.text(max_size=300)


@given(
    st.lists(st.tuples(TEXTS, st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 300)), max_size=5),
    TEXTS,
    st.integers(1, 10**6),
    st.integers(1, 128),
    st.sampled_from([PLAIN, TOKENS, EXTENDED]),
)
def test_figures_are_always_sound(seen: list[tuple[str, int, int, int]], text: str, cap: int, n: int, deployment: Deployment) -> None:
    """Whatever was learned, nothing is negative and need, aim and want are in order."""
    learned = Learned()
    for told, read, written, metered in seen:
        observe(learned, Usage(read, written), asked=request(told), deployment=deployment, seen=metered)
    found = figures(learned, request(text, max_tokens=cap, n=n), deployment)
    assert 1 <= found.need <= found.aim <= found.want == cap * n
    assert found.input_estimate >= 7 and found.input_bound >= 7
    assert learned.factor_milli(deployment) >= 1000
