"""Cases of cases.md on budgets: what is held, refused, clamped and charged, with the provider's own count as the truth."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sluicegate.core.claims import Admission, Settlement
from support_inloop import PROMPT_TOKENS, Bench, fresh_redis, request, running
from support_ledgers import Clock

EXTEND = pytest.mark.parametrize("extend", [False, True], ids=["capped", "extended"])
STREAM = pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
DAY_MS = 86_400_000
UNBROKEN = "resilience: {breaker: {failures: 100}}"


def ledger_url(kind: str, directory: Path) -> str:
    return {"memory": "memory://", "sqlite": f"sqlite:///{directory}/ledger.db"}[kind]


async def used(bench: Bench, name: str = "key key tokens/day", key: str = "sk-key") -> Any:
    return (await bench.usage(key))[name]["used"]


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
@EXTEND
async def test_case_1_parallel_requests_share_one_budget(tmp_path: Path, redis_url: str, kind: str, extend: bool) -> None:
    """Twenty at once that cost $0.004 each, with $0.01 left: two fit, a third gets the rest as its cap, and the provider has billed no more."""
    with fresh_redis(redis_url) as (url, _):
        ledger = url if kind == "redis" else ledger_url(kind, tmp_path)
        async with running(tmp_path, ledger=ledger, limits="[$0.01/day]", extend=extend, options={"completion": 3995, "ttft": 100}) as bench:
            answers = await bench.at_once([bench.chat(max_tokens=3995, stream=extend, n=1) for _ in range(20)], served=3)
            codes = [answer.code for answer in answers]
            assert (codes.count("200"), set(codes)) == (3, {"200", "budget_busy"})
            assert await used(bench, "key key usd/day") <= 0.01


async def test_case_3_a_global_budget_binds_everyone(tmp_path: Path) -> None:
    """$0.00002 over all tenants: one priced request of one tenant uses it up for the other; every configured limit is on the path."""
    tenants = """
  limits: [$0.00002/day]
  acme: {keys: [{name: a, key: sk-a}]}
  other: {keys: [{name: b, key: sk-b}]}"""
    async with running(tmp_path, tenants=tenants, options={"completion": 12}) as bench:
        assert (await bench.chat("sk-a", max_tokens=12)).code == "200"
        refused = await bench.chat("sk-b", max_tokens=12)
        assert (refused.status, refused.code, refused.headers["x-sluicegate-limited-by"]) == (402, "budget_exceeded", "global usd/day")


@pytest.mark.parametrize("level", ["organization", "team", "project", "user", "key"])
@pytest.mark.parametrize(
    "limit", ["1 requests/day", "30 tokens/day", "$0.00003/day", "30 tokens/minute", "25 output tokens/lifetime", "15 input tokens/30s"]
)
async def test_case_3_every_limit_at_every_level_is_enforced(tmp_path: Path, level: str, limit: str) -> None:
    """Wherever in the tree a limit stands, and whatever its unit and window, it refuses the second request."""
    levels = ["organization", "team", "project", "user"]
    limits = {name: f"[{limit}]" if name == level else "[]" for name in [*levels, "key"]}
    keys = f"keys: [{{name: key, key: sk-key, limits: {limits['key']}}}]"
    tree = keys
    for depth, name in reversed(list(enumerate(levels))):
        inner = f"limits: {limits[name]}, " + (tree if depth == 3 else f"children: {{{levels[depth + 1]}1: {{{tree}}}}}")
        tree = inner
    async with running(tmp_path, tenants=f"  acme: {{{tree}}}") as bench:
        codes = [(await bench.chat(max_tokens=20)).status for _ in range(2)]
        assert codes[0] == 200
        assert codes[1] in (402, 429)


@EXTEND
@STREAM
async def test_case_7_tokens_are_charged_as_tokens(tmp_path: Path, stream: bool, extend: bool) -> None:
    """A limit of 1,000 tokens refuses the third answer of 500, not the thousandth request."""
    async with running(tmp_path, limits="[1000 tokens/day]", extend=extend, options={"completion": 491}) as bench:
        codes = [(await bench.chat(stream=stream, max_tokens=491)).code for _ in range(3)]
        assert codes == ["200", "200", "budget_exceeded"]
        assert await used(bench) == bench.total <= 1000


@pytest.mark.parametrize(
    ("limits", "code"),
    [("null", "200"), ("[null]", "200"), ("[{amount: null, unit: usd, per: day}]", "200"), ("[]", "200"),
     ("[$0/day]", "request_too_large"), ("[0 tokens/day]", "request_too_large"), ("[0 requests/minute]", "request_too_large")],
)  # fmt: skip
async def test_case_8_no_limit_is_not_a_limit_of_nothing(tmp_path: Path, limits: str, code: str) -> None:
    """null means none, and 0 means that nothing is allowed."""
    async with running(tmp_path, limits=limits) as bench:
        assert (await bench.chat(max_tokens=20)).code == code


@EXTEND
@STREAM
async def test_case_9_a_free_model_is_served_without_money(tmp_path: Path, stream: bool, extend: bool) -> None:
    """With the dollars used up (over, even), a model priced 0/0 answers, and still counts in tokens."""
    async with running(tmp_path, limits="[$0.00005/day, 100 tokens/day]", extend=extend) as bench:
        assert (await bench.chat(max_tokens=40, stream=stream)).code == "200"
        bench.mocked(completion=30)
        assert (await bench.chat(max_tokens=40, stream=stream)).code == "200"
        bench.whole = False  # one tree, two prices
        assert (await bench.chat(max_tokens=40, stream=stream)).code == "budget_exceeded"
        before = await used(bench)
        assert (await bench.chat(model="free", max_tokens=20, stream=stream)).code == "200"
        assert await used(bench) == before + PROMPT_TOKENS + 20
        assert (await bench.chat(model="free", max_tokens=20, stream=stream)).code == "budget_exceeded"


@EXTEND
@STREAM
@pytest.mark.parametrize("left", [300, 60])
async def test_case_10_a_small_budget_is_used_with_a_lower_cap(tmp_path: Path, left: int, stream: bool, extend: bool) -> None:
    """No max_tokens and a model of 64,000: what is affordable is sent upstream as the cap, and told to the client."""
    dollars = (PROMPT_TOKENS * 500 + left * 1000) / 1e9
    async with running(tmp_path, limits=f"[${dollars:.9f}/day]", max_output=64_000, extend=extend, options={"completion": 5000}) as bench:
        answer = await bench.chat(stream=stream)
        assert (answer.code, answer.headers["x-sluicegate-max-tokens"]) == ("200", str(left))
        assert bench.mock.calls[-1].body.count(f'"max_tokens":{left}') == 1
        assert bench.mock.truth.stats().total.completion_tokens == left


async def test_case_10_below_the_floor_it_says_what_is_affordable(tmp_path: Path) -> None:
    """Fewer than `min_output` tokens can be paid for: refused, with the number."""
    dollars = (PROMPT_TOKENS * 500 + 25_000) / 1e9
    async with running(tmp_path, limits=f"[${dollars:.9f}/day]", max_output=64_000, options={"completion": 10}) as bench:
        assert (await bench.chat(max_tokens=10)).code == "200"
        refused = await bench.chat()
        assert (refused.status, refused.code) == (402, "budget_exceeded")
        assert refused.error["sluicegate"]["affordable_output_tokens"] == 15 - 4 - 1
        assert (refused.headers["x-should-retry"], "retry-after" in refused.headers) == ("false", False)


async def test_case_11_a_small_rate_without_a_cap(tmp_path: Path) -> None:
    """100 tokens a minute and no max_tokens: the first request is served, with a cap that fits; what can never fit is a 400, not a 429 for ever."""
    async with running(tmp_path, limits="[100 tokens/minute]", options={"completion": 500}) as bench:
        answer = await bench.chat()
        assert (answer.code, answer.headers["x-sluicegate-max-tokens"]) == ("200", str(100 - PROMPT_TOKENS))
        refused = await bench.chat(max_tokens=92)
        assert (refused.status, refused.code) == (400, "request_too_large")
        assert str(100 - PROMPT_TOKENS) in refused.error["message"]
        assert (await bench.chat(max_tokens=20)).code == "rate_limit_exceeded"


@STREAM
@EXTEND
@pytest.mark.parametrize(("n", "cap", "limit"), [(8, 100, 300), (3, 50, 160), (128, 5, 700), (2, 1000, 500)])
async def test_case_12_n_multiplies_the_output(tmp_path: Path, n: int, cap: int, limit: int, stream: bool, extend: bool) -> None:
    """Each choice may be as long as the cap: clamped or refused, never n x the cap out of less."""
    async with running(tmp_path, limits=f"[{limit} tokens/day]", extend=extend, options={"completion": cap}) as bench:
        answer = await bench.chat(n=n, max_tokens=cap, stream=stream)
        if answer.code == "200":
            per_choice = (limit - PROMPT_TOKENS) // n
            assert f'"max_tokens":{min(cap, per_choice)}' in bench.mock.calls[-1].body
        else:
            assert answer.code == "request_too_large"


@pytest.mark.parametrize("kind", ["memory", "sqlite", "redis"])
async def test_case_13_all_scopes_or_none(tmp_path: Path, redis_url: str, kind: str) -> None:
    """The key has room, its organization has not: fifty refusals leave nothing held on the key."""
    with fresh_redis(redis_url) as (url, _):
        ledger = url if kind == "redis" else ledger_url(kind, tmp_path)
        async with running(tmp_path, ledger=ledger, org="[40 tokens/day]", limits="[100k tokens/day, 1000 requests/minute, 50 concurrent]") as bench:
            assert (await bench.chat(max_tokens=20)).code == "200"
            for _ in range(5):
                assert {answer.code for answer in await asyncio.gather(*(bench.chat(max_tokens=20) for _ in range(10)))} == {"budget_exceeded"}
            limits = await bench.usage()
            assert (limits["key key tokens/day"]["used"], limits["key key tokens/day"]["held"]) == (29, 0)
            assert (limits["key key requests/minute"]["used"] <= 1, limits["key key concurrent"]["held"]) == (True, 0)


@STREAM
async def test_case_14_calls_that_never_reach_an_upstream_cost_nothing(tmp_path: Path, stream: bool) -> None:
    """Thirty requests to a provider that refuses connections: nothing is used and nothing stays held; recorded spend and counters agree."""
    async with running(tmp_path, upstream=1, limits="[1000 tokens/day, 100 requests/day, $1/day, 500 tokens/minute]", more=UNBROKEN) as bench:
        for _ in range(30):
            answer = await bench.chat(max_tokens=400, stream=stream)
            assert (answer.status, answer.code) == (502, "upstream_error")
        assert {limit["used"] for limit in (await bench.usage()).values()} == {0}
        assert sum(record.cost_nano_usd + record.output_tokens for record in bench.records) == 0


@STREAM
async def test_case_16_a_request_is_charged_to_the_window_that_admitted_it(tmp_path: Path, stream: bool) -> None:
    """Admitted just before midnight, settled just after it: yesterday's counter has it, today's is empty."""
    clock = Clock(1_800_000_000_000 // DAY_MS * DAY_MS + DAY_MS - 1000)
    async with running(tmp_path, clock=clock, limits="[100 tokens/day]", options={"completion": 40, "ttft": 150}) as bench:
        bench.whole = False
        with bench.held():
            asked = asyncio.get_running_loop().create_task(bench.chat(max_tokens=40, stream=stream))
            await bench.asked(1)
            clock.now_ms += 5000
        assert (await asked).code == "200"
        counters, _ = await bench.ledger.show()
        assert [(counter.used, counter.held) for counter in counters] == [(40 + PROMPT_TOKENS, 0)]
        assert await used(bench) == 0
        assert (await bench.chat(max_tokens=91, stream=stream)).code == "200"


async def test_case_121_a_stream_is_longer_than_its_window(tmp_path: Path) -> None:
    """A window of 60 s ends several times under an extended stream: it is not cut for that, and all of it counts where it was admitted."""
    clock = Clock(1_800_000_000_000)
    limits = "[{amount: 500, unit: tokens, per: 60s, window: fixed}]"
    more = "budget: {estimator: fixed, fixed_output: 20}"
    async with running(tmp_path, clock=clock, limits=limits, extend=True, more=more, options={"completion": 48, "tpot": 5}) as bench:
        bench.whole = False
        stream = await bench.open(max_tokens=48, stream=True)
        await stream.until(b'"content":" to"')
        for _ in range(6):
            clock.now_ms += 60_000
            await asyncio.sleep(0.03)
        answer = await stream.rest()
        assert (answer.done, answer.truncated) == (True, "")
        counters, _ = await bench.ledger.show()
        assert [(counter.used, counter.held) for counter in counters if counter.used] in ([], [(48 + PROMPT_TOKENS, 0)])
        assert next(iter((await bench.usage()).values()))["used"] == 0


@STREAM
async def test_case_17_a_second_attempt_is_the_same_request(tmp_path: Path, stream: bool) -> None:
    """First a 500, then a 200: one request counts, two attempts are recorded, one answer is charged."""
    async with running(tmp_path, limits="[1 requests/minute, 1 requests/day, 100 tokens/day]", **two_providers()) as bench:
        bench.mock.fault(count=1, model="one", status=500)
        answer = await bench.chat(model="two", max_tokens=20, stream=stream)
        assert answer.code == "200"
        assert answer.headers["x-sluicegate-attempts"] == "mock/one:500,second/two:200"
        assert [attempt.outcome for attempt in bench.record.attempts] == ["500", "200"]
        limits = await bench.usage()
        assert (limits["key key requests/day"]["used"], limits["key key requests/minute"]["used"]) == (1, 1)
        assert (await bench.chat(model="two", max_tokens=20, stream=stream)).code in ("rate_limit_exceeded", "budget_exceeded")


def two_providers(price: str = "{input: 0.5, output: 1.0}", prices: tuple[str, str] | None = None) -> dict[str, str]:
    """A model `two` with two deployments, `mock/one` and `second/two`."""
    first, second = prices or (price, price)
    return {
        "providers": "  second: {provider: mock, base_url: BASE_URL, tokenizer: o200k_base}",
        "models": f"""
  two:
    deployments:
      - {{provider: mock, model: one, price: {first}}}
      - {{provider: second, model: two, price: {second}}}""",
    }


# -- the cap under odd answers ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 8])
@STREAM
async def test_case_105_n_is_in_the_hold(tmp_path: Path, n: int, stream: bool) -> None:
    """592 tokens left and n answers: the cap per choice is the grant // n, and what is billed is within it."""
    async with running(tmp_path, limits="[592 tokens/day]", options={"completion": 4000}) as bench:
        answer = await bench.chat(n=n, max_tokens=4000, stream=stream)
        assert (answer.code, answer.headers["x-sluicegate-max-tokens"]) == ("200", str((592 - PROMPT_TOKENS) // n))
        assert bench.total <= 592


@EXTEND
@STREAM
async def test_case_106_hidden_reasoning(tmp_path: Path, stream: bool, extend: bool) -> None:
    """Five visible tokens of 5,000 billed, on a budget of 2,000: the upstream is sent a cap that the hold covers."""
    options = {"completion": 5000, "reasoning": "hidden", "reasoning_tokens": 4995}
    async with running(tmp_path, limits="[2000 tokens/day]", extend=extend, options=options) as bench:
        answer = await bench.chat(stream=stream, max_tokens=5000)
        assert answer.code == "200"
        assert bench.total <= 2000
        assert await used(bench) == bench.total


async def test_case_106_an_upstream_that_bills_more_than_it_shows_is_capped_from_then_on(tmp_path: Path) -> None:
    """Extended until its usage once says 1.1 x what was seen + 16; then sent caps that its holds cover, on all workers."""
    options = {"completion": 60, "reasoning": "hidden", "reasoning_tokens": 50}
    async with running(tmp_path, limits="[100k tokens/day]", extend=True, options=options) as bench:
        deployment = bench.loaded.policy.models["chat"].deployments[0]
        await bench.chat(stream=True, max_tokens=100)
        learned = bench.worker.learned
        assert learned.exceeded(deployment)
        await bench.worker._upkeep.learn()
        assert (await bench.ledger.learned({"exceeded": {}}))["exceeded"] == {"mock/mock-chat": 1}
        stream = await bench.open(stream=True, max_tokens=700)
        await stream.until(b'"content"')
        (hold,) = (await bench.ledger.show())[1] or [None]
        assert hold is None or hold.g == 700


@pytest.mark.parametrize("visible", ["visible", "both"])
@EXTEND
async def test_case_116_reasoning_is_counted_once(tmp_path: Path, visible: str, extend: bool) -> None:
    """In one field or, the same text, in two: the meter comes to what was produced, without usage to tell it."""
    options = {"completion": 40, "reasoning": visible, "reasoning_tokens": 20, "usage": "none"}
    async with running(tmp_path, limits="[1000 tokens/day]", extend=extend, options=options) as bench:
        await bench.chat(stream=True, max_tokens=200)
        if extend:
            assert (bench.record.output_tokens, bench.record.source) == (40, "counted")
        else:
            assert (bench.record.output_tokens, bench.record.source) == (200, "held")
            bench.slack = 160


@pytest.mark.parametrize("tokenizer", ["o200k_base", ""])
async def test_case_107_dense_text_is_cut_inside_the_budget(tmp_path: Path, tokenizer: str) -> None:
    """Deltas of four tokens in four characters, extended, cut where the budget ends: with the vocabulary, and by bytes without one."""
    models = "" if tokenizer else "\n  bytes: {deployments: [{provider: blind, model: m, price: {input: 0.5, output: 1.0}}]}"
    providers = "" if tokenizer else "  blind: {provider: mock, base_url: BASE_URL}"
    more = "budget: {estimator: fixed, fixed_output: 50}"
    options = {"completion": 5000, "dense": True, "chunk": 4, "ttft": 5, "tpot": 1}
    async with running(tmp_path, limits="[1000 tokens/day]", extend=True, options=options, models=models, providers=providers, more=more) as bench:
        with bench.held():
            stream = await bench.open(model="chat" if tokenizer else "bytes", stream=True, max_tokens=900)
            await bench.asked(1)
            await rival(bench, 500)
        answer = await stream.rest()
        assert (answer.truncated, answer.done, answer.finishes) == ("budget", True, {0: "length"})
        await bench.quiet()
        assert bench.total <= 1000 - 500
        await end_rival(bench)
        bench.slack = 900  # the margin: a delta, and 100 ms as fast as it was seen to come, which on a machine that stalls is all of it


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("n", [1, 3])
async def test_a_stream_that_is_cut_ends_in_the_clients_dialect(tmp_path: Path, n: int, asked: bool) -> None:
    """Each unfinished choice ends with `length` and says why, usage comes if it was asked for and is what was charged, then `[DONE]`."""
    more = "budget: {estimator: fixed, fixed_output: 20}"
    options = {"completion": 900, "ttft": 5, "tpot": 2}
    async with running(tmp_path, limits="[1000 tokens/day]", extend=True, options=options, more=more) as bench:
        with bench.held():
            stream = await bench.open(stream=True, n=n, max_tokens=900 // n, **({"stream_options": {"include_usage": True}} if asked else {}))
            await bench.asked(1)
            await rival(bench, 650)
        answer = await stream.rest()
        assert (answer.finishes, answer.truncated, answer.done, answer.clean) == (dict.fromkeys(range(n), "length"), "budget", True, True)
        assert len({event["id"] for event in answer.events}) == 1
        told = [event["usage"] for event in answer.usages]
        assert [(usage["prompt_tokens"], usage["completion_tokens"]) for usage in told] == ([(9, bench.record.output_tokens)] if asked else [])
        assert (bench.record.truncated, bench.record.finish, bench.record.source) == ("budget", "length", "counted")
        await end_rival(bench)
        bench.slack = 900  # a delta, and what three choices produce in 100 ms, as fast as they were seen to come


def _template(bench: Bench) -> Any:
    return bench.worker.gateway.plans.of(bench.keys["sk-key"], bench.loaded.policy.models["chat"]).template


async def rival(bench: Bench, tokens: int) -> None:
    """Another request's hold: a stream that began with room for everything meets the end of its budget."""
    refs = _template(bench).refset(bench.ledger.now_ms())
    reply = await bench.ledger.admit(Admission("rival", refs, (0, 1000), tokens, tokens, tokens, 60_000, "rival"))
    assert reply.status == "granted"


async def end_rival(bench: Bench) -> None:
    await bench.ledger.settle(Settlement("rival", _template(bench).refset(bench.ledger.now_ms()), (0,)))


@pytest.mark.parametrize("chunk", [0, 3000])
@EXTEND
async def test_case_108_one_huge_delta(tmp_path: Path, chunk: int, extend: bool) -> None:
    """All 3,000 tokens in one delta on a budget of 2,000: the upstream is sent a cap, so that not even one delta can be beyond it."""
    async with running(tmp_path, limits="[2000 tokens/day]", extend=extend, options={"completion": 3000, "chunk": chunk}) as bench:
        answer = await bench.chat(stream=True, max_tokens=3000)
        assert (answer.code, answer.done) == ("200", True)
        assert bench.total == 2000 == await used(bench)


async def test_case_108_one_huge_delta_of_an_extended_stream(tmp_path: Path) -> None:
    """A delta larger than anything granted is the exception that physics leaves: not delivered, charged in full, and the stream is cut."""
    more = "budget: {estimator: fixed, fixed_output: 20}"
    options = {"completion": 900, "chunk": 0, "ttft": 100, "early_headers": True}
    async with running(tmp_path, limits="[1000 tokens/day]", extend=True, options=options, more=more) as bench:
        with bench.held():
            stream = await bench.open(stream=True, max_tokens=900)
            await bench.asked(1)
            await rival(bench, 900)
        answer = await stream.rest()
        assert (answer.text, answer.done) == ("", True)
        assert (bench.record.output_tokens >= 900, bench.record.truncated) == (True, "budget")
        await end_rival(bench)
        bench.slack = 900 + 20


@pytest.mark.parametrize("kind", ["memory", "sqlite", "redis"])
@EXTEND
@STREAM
async def test_case_130_a_sequential_client_never_meets_its_own_hold(tmp_path: Path, redis_url: str, kind: str, stream: bool, extend: bool) -> None:
    """Room for one call at a time, forty calls over one connection, each the moment the one before has ended: never `budget_busy`."""
    with fresh_redis(redis_url) as (url, _):
        ledger = url if kind == "redis" else ledger_url(kind, tmp_path)
        limits = "[1200 tokens/day, 1 concurrent]"
        async with running(tmp_path, ledger=ledger, limits=limits, extend=extend, options={"completion": 1}) as bench:
            client = await bench.connect()
            codes = []
            for _ in range(40):
                client.send(request(bench.body(stream=stream, max_tokens=700)))
                codes.append((await client.rest()).code)
            assert set(codes) == {"200"}


@pytest.mark.parametrize("exhausted", ["organization acme", "key key"])
async def test_case_129_exhausted_is_told_before_busy(tmp_path: Path, exhausted: str) -> None:
    """One limit is only held by others, another is used up: waiting would not help, so that is said, at once, whichever comes first in the tree."""
    tenants = """
  acme:
    limits: [80 tokens/day]
    keys: [{name: key, key: sk-key, limits: [60 tokens/day]}, {name: other, key: sk-other}]"""
    first, second = ("sk-key", "sk-other") if exhausted == "organization acme" else ("sk-other", "sk-key")
    async with running(tmp_path, tenants=tenants, options={"completion": 1000, "ttft": 300}) as bench:
        with bench.held():
            in_flight = await bench.open(first, max_tokens=20)
            await bench.asked(1)
            bench.mocked(completion=1000)  # at once, even now
            assert (await bench.chat(second, max_tokens=36 if second == "sk-other" else 20)).code == "200"
            refused = await bench.chat(n=2)
            assert (refused.code, refused.headers["x-sluicegate-limited-by"]) == ("budget_exceeded", f"{exhausted} tokens/day")
        assert (await bench.chat(max_tokens=1)).code in ("200", "budget_busy")
        assert (await in_flight.rest()).code == "200"


async def test_case_124_limits_on_one_counter(tmp_path: Path) -> None:
    """A large and a small amount of the same window count once and the smaller binds; one for a model binds that model only."""
    limits = "[$5/day, $4/day, 100k tokens/day, {amount: 40, unit: tokens, per: day, models: [free]}]"
    async with running(tmp_path, limits=limits) as bench:
        bench.whole = False
        assert (await bench.chat(model="free", max_tokens=20)).code == "200"
        assert (await bench.chat(model="free", max_tokens=20)).code == "budget_exceeded"
        assert (await bench.chat(max_tokens=20)).code == "200"
        shown = await bench.usage()
        assert (shown["key key usd/day"]["limit"], shown["key key tokens/day"]["used"], shown["key key tokens/day [free]"]["used"]) == (4, 58, 29)


@pytest.mark.parametrize(("left", "second"), [(1.0, "refused"), (2.0, "served")])
async def test_case_123_a_second_attempt_needs_money_of_its_own(tmp_path: Path, left: float, second: str) -> None:
    """The first deployment is silent until the time limit and may bill: all it may cost is charged, and the second gets what is left, or nothing."""
    cost = (PROMPT_TOKENS * 500 + 100 * 1000) / 1e9
    limits = f"[${cost * left * 1.01:.9f}/day]"
    more = "resilience: {timeouts: {first_byte: 600ms}}"
    async with running(tmp_path, limits=limits, more=more, options={"completion": 100}, **two_providers()) as bench:
        bench.mock.fault(count=1, model="one", ttft="10s")
        answer = await bench.chat(model="two", max_tokens=100)
        assert answer.code == ("200" if second == "served" else "budget_exceeded")
        assert await used(bench, "key key usd/day") == pytest.approx(cost * (2 if second == "served" else 1))
        assert bench.record.attempts[0].outcome == "timeout"
        bench.whole = False  # what the silent one really produced is not known to anyone


@STREAM
async def test_case_110_a_timeout_stays_charged(tmp_path: Path, stream: bool) -> None:
    """An answer that takes longer than the first-byte limit: input and cap stay charged, under the name of what happened."""
    more = "resilience: {timeouts: {first_byte: 200ms}}"
    async with running(tmp_path, limits="[1000 tokens/day]", more=more, options={"completion": 50, "ttft": 60_000}) as bench:
        answer = await bench.chat(max_tokens=300, stream=stream)
        assert (answer.status, answer.code) == (504, "upstream_timeout")
        assert (bench.record.output_tokens, bench.record.source) == (300, "held")
        bench.slack = 300


@EXTEND
async def test_case_60_streams_reach_the_counter(tmp_path: Path, extend: bool) -> None:
    """A limit of one cent and fifty streams: refused after the first few, and the money is used up to less than one answer."""
    async with running(tmp_path, limits="[$0.01/day]", extend=extend, options={"completion": 800, "chunk": 50}) as bench:
        codes = [(await bench.chat(stream=True, max_tokens=800)).code for _ in range(50)]
        assert codes.index("budget_exceeded") in (12, 13)
        assert set(codes[13:]) == {"budget_exceeded"}
        assert 0.01 - 0.001 <= await used(bench, "key key usd/day") <= 0.01
