"""Which deployment a request goes to, and which it goes to next: order, what a route is left for, what can be afforded, what is too long. In one
process, with a real mock on a real socket."""

import asyncio
import json
from collections import Counter as Tally
from pathlib import Path
from typing import Any

import pytest

from support_inloop import Bench, Reply, request, running
from support_standing import Time

STREAM = pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
LIMITS = "[100k tokens/day, 1k requests/day]"
STAY = b"x-sluicegate-disable-fallbacks: true\r\n"


def route(*deployments: str, more: str = "", others: str = "") -> dict[str, Any]:
    """A model `two` whose deployments mock/one, second/two, third/three say this beside their names, and other models."""
    listed = "\n".join(
        f"      - {{provider: {provider}, model: {name}{'' if 'price' in one else ', price: {input: 0.5, output: 1.0}'}{one}}}"
        for (provider, name), one in zip([("mock", "one"), ("second", "two"), ("third", "three")], deployments, strict=False)
    )
    providers = "\n".join(f"  {name}: {{provider: mock, base_url: BASE_URL, tokenizer: o200k_base}}" for name in ("second", "third"))
    return {"limits": LIMITS, "providers": providers, "models": f"\n  two:\n    deployments:\n{listed}\n{more}{others}"}


def resilience(failures: int = 5, cooldown: str = "10s") -> str:
    return f"resilience: {{retries: 0, cooldown: {cooldown}, breaker: {{failures: {failures}, pause: 10s}}}}"


def told(answer: Reply) -> str:
    """The status, and what was tried."""
    return f"{answer.status} {answer.headers.get('x-sluicegate-attempts', '')}".strip()


async def tries(bench: Bench, headers: bytes = b"", **fields: Any) -> str:
    body = bench.body(**{"model": "two", "max_tokens": 20, **fields})
    return told(await bench.post(body, more=headers))


# -- what a route is left for -------------------------------------------------------------------------------------------------------------


@STREAM
async def test_case_40_a_route_is_left_for_what_it_says_alone(tmp_path: Path, stream: bool) -> None:
    """For a limit it is; for a server error it is not, nor for a 400, which is nobody's but the caller's."""
    written = route("", "", more="    fallback_on: [rate_limit]")
    async with running(tmp_path, more=resilience(), **written) as bench:
        for status in (503, 400):
            bench.mock.fault(count=1, model="one", status=status)
            assert await tries(bench, stream=stream) == f"{status} mock/one:{status}"
        bench.mock.fault(count=1, model="one", status=429, retry_after=30)
        assert await tries(bench, stream=stream) == "200 mock/one:429,second/two:200"
        assert await tries(bench, stream=stream) == "200 second/two:200"


async def test_case_40_while_it_is_left_alone_for_another_reason_nobody_else_is_asked(tmp_path: Path) -> None:
    """A limit is no reason to leave: during the cooldown, too, the client is told of it, and when it will be over."""
    written = route("", "", more="    fallback_on: [server_error, timeout]")
    async with running(tmp_path, more=resilience(), **written) as bench:
        bench.mock.fault(count=1, model="one", status=429, retry_after=30)
        for _ in range(2):
            answer = await bench.chat(model="two")
            assert (answer.code, answer.headers["retry-after"]) == ("upstream_rate_limited", "30")
        assert len(bench.mock.calls) == 1


@STREAM
@pytest.mark.parametrize("how", ["header", "field"])
async def test_a_request_may_want_the_first_or_none(tmp_path: Path, how: str, stream: bool) -> None:
    """What it says never reaches an upstream; what fails is told at once, and so is a cooldown."""
    headers, fields = (STAY, {}) if how == "header" else (b"", {"disable_fallbacks": True})
    async with running(tmp_path, more=resilience(), **route("", "")) as bench:
        assert await tries(bench, headers, stream=stream, **fields) == "200 mock/one:200"
        assert "disable_fallbacks" not in bench.mock.calls[-1].body
        assert not any(name.startswith("x-sluicegate") for name in bench.mock.calls[-1].headers)
        bench.mock.fault(count=1, model="one", status=503)
        assert await tries(bench, headers, stream=stream, **fields) == "503 mock/one:503"
        bench.mock.fault(count=1, model="one", status=429, retry_after=30)
        assert await tries(bench, headers, stream=stream, **fields) == "429 mock/one:429"
        assert await tries(bench, headers, stream=stream, **fields) == "429"
        assert await tries(bench, stream=stream) == "200 second/two:200"


async def test_the_field_is_nothing_that_is_left_out_between_dialects(tmp_path: Path) -> None:
    """It has been acted on: a client of another dialect is not told that its provider has no place for it."""
    async with running(tmp_path, limits=LIMITS, providers="  other: {provider: mock, base_url: ROOT_URL, speaks: [anthropic_messages]}",
                       models="\n  claude: {deployments: [{provider: other, model: c, price: {input: 1, output: 1}}]}") as bench:  # fmt: skip
        bench.slack = 100
        answer = await bench.chat(model="claude", disable_fallbacks=True, max_tokens=20)
        assert (answer.status, answer.headers.get("x-sluicegate-left-out")) == (200, None)
        assert "disable_fallbacks" not in bench.mock.calls[-1].body


@pytest.mark.parametrize("value", ["yes", 1])
async def test_what_is_neither_yes_nor_no_is_told(tmp_path: Path, value: Any) -> None:
    """As any other field of a wrong type."""
    async with running(tmp_path, **route("")) as bench:
        answer = await bench.chat(model="two", disable_fallbacks=value)
        assert (answer.status, answer.error["param"]) == (400, "disable_fallbacks")


async def test_an_extended_stream_stays_extended(tmp_path: Path) -> None:
    """The field hides no output: the upstream is sent the client's own cap and not what the hold covers."""
    async with running(tmp_path, extend=True, limits="[60 tokens/day]") as bench:
        await bench.chat(max_tokens=40, disable_fallbacks=True, stream=True)
        assert json.loads(bench.mock.calls[-1].body)["max_tokens"] == 40


async def test_another_of_the_same_tier_is_no_fallback(tmp_path: Path) -> None:
    """A request that stays is served by any that is as good as the first and can be called; a failure is told."""
    async with running(tmp_path, more=resilience(), **route(", tier: t", ", tier: t", "")) as bench:
        bench.worker.gateway.standings.cool("mock/one", 30, "429", True)
        assert await tries(bench, STAY) == "200 second/two:200"
        bench.worker.gateway.standings.cool("second/two", 30, "429", True)
        assert await tries(bench, STAY) == "429"
        assert await tries(bench) == "200 third/three:200"


# -- order --------------------------------------------------------------------------------------------------------------------------------


async def test_weights_spread_and_a_last_resort_is_one(tmp_path: Path) -> None:
    """Both of a tier are used; the one of weight 0 only when they fail."""
    async with running(tmp_path, more=resilience(), **route(", tier: t", ", tier: t", ", tier: t, weight: 0")) as bench:
        seen = Tally([await tries(bench) for _ in range(40)])
        assert set(seen) == {"200 mock/one:200", "200 second/two:200"}
        bench.mock.fault(count=1, model="one", status=500)
        bench.mock.fault(count=1, model="two", status=500)
        assert (await tries(bench)).endswith(",third/three:200")


async def test_the_least_busy_is_asked(tmp_path: Path) -> None:
    """While a stream goes on at one of them, the others are served by the other; when it has ended, both are idle again."""
    written = route(", tier: t", ", tier: t", more="    balance: least_busy")
    async with running(tmp_path, **written, options={"tpot": 20}) as bench:
        stream = await bench.open(model="two", stream=True, max_tokens=20)
        await stream.until(b"x-sluicegate-attempts")
        [busy] = [one.deployment for one in bench.worker.gateway.standings.all() if one.in_flight]
        idle = {"mock/one": "second/two", "second/two": "mock/one"}[busy]
        with bench.held():
            assert {await tries(bench, max_tokens=1) for _ in range(8)} == {f"200 {idle}:200"}
        await stream.rest()
        await bench.quiet()
        assert [one.in_flight for one in bench.worker.gateway.standings.all()] == [0] * 4


@pytest.mark.parametrize("by", ["key", "header"])
async def test_a_session_sticks(tmp_path: Path, by: str) -> None:
    """The same one for the same session, others for others; without the header the key counts."""
    written = route(", tier: t", ", tier: t", more="    balance: sticky" + ("\n    sticky: {header: X-Session}" if by == "header" else ""))
    async with running(tmp_path, **written) as bench:
        sessions = {s: {await tries(bench, b"x-session: %d\r\n" % s) for _ in range(3)} for s in range(8)}
        assert all(len(served) == 1 for served in sessions.values())
        assert len(set.union(*sessions.values())) == (2 if by == "header" else 1)
        assert len({await tries(bench) for _ in range(4)}) == 1


async def test_a_cheaper_one_goes_first_when_most_of_the_budget_is_used(tmp_path: Path) -> None:
    """Before, it is the fallback that its place says; then the dearer one is the fallback. Known is what was used when the request
    before was let in."""
    written = route("", ', when: {budget_used: ">25%"}') | {"limits": "[200 tokens/day, 1k requests/day]"}
    async with running(tmp_path, more=resilience(), **written) as bench:
        assert [await tries(bench) for _ in range(4)] == ["200 mock/one:200"] * 3 + ["200 second/two:200"]
        bench.mock.fault(count=1, model="two", status=500)
        assert await tries(bench) == "200 second/two:500,mock/one:200"


async def test_who_is_down_is_asked_last_and_not_never(tmp_path: Path) -> None:
    """What a probe has found changes the order alone."""
    async with running(tmp_path, more=resilience(), **route("", "")) as bench:
        standings = bench.worker.gateway.standings
        standings.rate("mock/one", "down", "no answer")
        assert await tries(bench) == "200 second/two:200"
        bench.mock.fault(count=1, model="two", status=500)
        assert await tries(bench) == "200 second/two:500,mock/one:200"
        assert await tries(bench, STAY) == "200 mock/one:200"
        standings.rate("mock/one", "healthy", "it answers")
        assert await tries(bench) == "200 mock/one:200"


# -- what can be afforded -----------------------------------------------------------------------------------------------------------------

DEAR, CHEAP = ", price: {input: 5, output: 1000}", ", price: {input: 0.5, output: 1}"


@STREAM
@pytest.mark.parametrize("limit", ["$0.001/day", "$0.011/day"], ids=["more than the whole budget", "more than is left"])
async def test_a_dearer_one_that_cannot_be_afforded_is_skipped(tmp_path: Path, limit: str, stream: bool) -> None:
    """Whether it never could or cannot now; the cheaper one answers at its own price, uncut, and nothing is called at the dearer one."""
    written = route(DEAR, CHEAP) | {"limits": f"[{limit}]"}
    async with running(tmp_path, more="budget: {min_output: 8}", **written) as bench:
        bench.whole = False
        if limit == "$0.011/day":
            assert await tries(bench, max_tokens=8) == "200 mock/one:200"
        answer = await bench.chat(model="two", max_tokens=20, stream=stream)
        assert told(answer) == "200 second/two:200"
        assert (bench.record.output_tokens, bench.record.cost_nano_usd) == (20, 9 * 500 + 20 * 1000)
        assert answer.headers.get("x-sluicegate-max-tokens") is None


async def test_where_none_can_be_afforded_the_budget_is_told(tmp_path: Path) -> None:
    """Of the cheapest that was tried last, which is the truest."""
    async with running(tmp_path, **(route(DEAR, CHEAP) | {"limits": "[$0.000001/day]"})) as bench:
        bench.whole = False
        answer = await bench.chat(model="two", max_tokens=20)
        assert (answer.status, answer.code, len(bench.mock.calls)) == (400, "request_too_large", 0)
        assert answer.error["sluicegate"]["unit"] == "usd"


async def test_one_without_a_price_is_skipped_under_a_budget_in_dollars(tmp_path: Path) -> None:
    """The others have one; where none has, that is told."""
    models = "\n  two: {deployments: [{provider: mock, model: one}, {provider: second, model: two, price: {input: 1, output: 1}}]}"
    models += "\n  none: {deployments: [{provider: mock, model: one}, {provider: second, model: unknown}]}"
    async with running(tmp_path, **(route("") | {"limits": "[$1/day]", "models": models})) as bench:
        bench.whole = False
        assert await tries(bench) == "200 second/two:200"
        assert (await bench.chat(model="none")).code == "price_unknown"


async def test_one_budget_over_two_models_of_different_prices_is_not_exceeded(tmp_path: Path) -> None:
    """Twenty at once, at both: what was really produced, at the price of where it was, is within the limit."""
    models = "\n".join(
        f"  {name}: {{deployments: [{{provider: mock, model: {name}, price: {{input: {price}, output: {price}}}}}]}}"
        for name, price in (("x", 100), ("y", 1))
    )
    written = {"limits": "[$0.012/day]", "models": "\n" + models}
    async with running(tmp_path, options={"completion": 20, "ttft": 20}, **written) as bench:
        bench.whole = False
        answers = await asyncio.gather(*(bench.chat(model="xy"[i % 2], max_tokens=20) for i in range(20)))
        await bench.quiet()
        served = Tally("xy"[i % 2] for i, answer in enumerate(answers) if answer.status == 200)
        cost = served["x"] * 29 * 100_000 + served["y"] * 29 * 1_000
        assert 0 < served["x"] <= 4 and cost <= 12_000_000
        counters, _ = await bench.ledger.show()
        assert [counter.used for counter in counters if ":usd:" in counter.key] == [cost]


# -- too long -----------------------------------------------------------------------------------------------------------------------------

BIG = "\n  big: {deployments: [{provider: third, model: three, price: {input: 2, output: 4}}], max_output: 50}"
TOO_LONG = {"status": 400, "message": "This model's maximum context length is 8 tokens.", "code": "context_length_exceeded"}
LARGER = "    context_fallback: big"
BIG_TOO = "\n      - {provider: third, model: three, price: {input: 0.5, output: 1.0}}"


@STREAM
async def test_what_is_too_long_goes_to_the_model_that_takes_it(tmp_path: Path, stream: bool) -> None:
    """Its route follows, at its price and under its limits; the client is told who answered; the request counts once, and for no breaker."""
    limits = (
        "[{amount: 10000, unit: tokens, per: day, models: [two]}, {amount: 10000, unit: tokens, per: day, models: [big]}, 9 requests/day, $1/day]"
    )
    written = route("", "", more=LARGER, others=BIG) | {"limits": limits}
    async with running(tmp_path, more=resilience(failures=1), **written) as bench:
        bench.whole = False
        bench.mock.fault(count=1, model="one", **TOO_LONG)
        answer = await bench.chat(model="two", stream=stream)
        assert told(answer) == "200 mock/one:400,third/three:200"
        assert (answer.headers["x-sluicegate-model"], answer.headers["x-sluicegate-deployment"]) == ("big", "third/three")
        assert answer.headers["x-sluicegate-max-tokens"] == "50"
        usage = await bench.usage()
        assert {name: usage[name]["used"] for name in usage} == {
            "key key tokens/day [two]": 0,
            "key key tokens/day [big]": 29,
            "key key requests/day": 1,
            "key key usd/day": pytest.approx(9 * 2e-6 + 20 * 4e-6),
        }
        assert (bench.record.model, bench.record.deployment) == ("big", "third/three")
        assert bench.worker.gateway.standings.of("mock/one").failures == 0
        assert await tries(bench) == "200 mock/one:200"


async def test_a_fallback_is_told_as_one_and_a_choice_is_not(tmp_path: Path) -> None:
    """The block says whether the answer is from where the request would have gone first: any of a tier may be that, another model never."""
    include = b"x-sluicegate-include: block\r\n"
    async with running(tmp_path, **route(", tier: t", ", tier: t, weight: 0", more=LARGER, others=BIG)) as bench:
        bench.mock.fault(count=1, model="one", status=503)
        bench.mock.fault(count=1, model="one", **TOO_LONG)
        blocks = [(await bench.post(bench.body(model="two"), more=include)).json["sluicegate"] for _ in range(3)]
        assert [(block["model"], block["deployment"], block["fallback_used"]) for block in blocks] == [
            ("two", "second/two", True),
            ("big", "third/three", True),
            ("two", "mock/one", False),
        ]
        bench.worker.gateway.standings.rate("mock/one", "down", "no answer")
        block = (await bench.post(bench.body(model="two"), more=include)).json["sluicegate"]
        assert (block["deployment"], block["fallback_used"]) == ("second/two", False)
        bench.whole = False


@pytest.mark.parametrize("limits", ["[{amount: 99, unit: tokens, per: day, models: [two]}]", "[{amount: 99, unit: tokens, per: day, models: [big]}]"])
async def test_limits_that_bind_only_one_of_the_two(tmp_path: Path, limits: str) -> None:
    """What was held at the first model is given back although nothing binds at the other; and the other way round nothing was held."""
    written = route("", more=LARGER, others=BIG) | {"limits": limits}
    async with running(tmp_path, **written) as bench:
        bench.mock.fault(count=1, model="one", **TOO_LONG)
        assert await tries(bench) == "200 mock/one:400,third/three:200"
        [limit] = (await bench.usage()).values()
        assert (limit["used"], limit["held"]) == (29 if "[big]" in limit["name"] else 0, 0)
        bench.whole = False


async def test_the_larger_one_is_asked_only_if_the_key_may(tmp_path: Path) -> None:
    """Else the 400 is the client's, as it is where there is no larger one, and where the client wants no fallback."""
    tenants = "\n  acme: {keys: [{name: key, key: sk-key, models: [two], limits: [10k tokens/day]}, {name: all, key: sk-all}]}"
    async with running(tmp_path, tenants=tenants, **route("", "", more=LARGER, others=BIG)) as bench:
        bench.mock.fault(count=4, **TOO_LONG)
        for key, headers, expected in (("sk-key", b"", "400 mock/one:400"), ("sk-all", STAY, "400 mock/one:400")):
            answer = await bench.raw(request(bench.body(key, model="two"), key, more=headers))
            assert (told(answer), answer.code) == (expected, "context_length_exceeded")
        answer = await bench.raw(request(bench.body("sk-all", model="two"), "sk-all"))  # the larger one finds it too long as well
        assert (told(answer), answer.code) == ("400 mock/one:400,third/three:400", "context_length_exceeded")


@pytest.mark.parametrize(
    ("also", "expected"), [("", "400 mock/one:503,second/two:400"), (BIG_TOO, "200 mock/one:503,second/two:400,third/three:200")]
)
async def test_no_deployment_is_asked_twice_for_one_request(tmp_path: Path, also: str, expected: str) -> None:
    """The larger model's route has those that have failed already: they are left out, and if nothing is left the 400 stands."""
    others = f"""
  big:
    deployments:
      - {{provider: mock, model: one, price: {{input: 0.5, output: 1.0}}}}
      - {{provider: second, model: two, price: {{input: 0.5, output: 1.0}}}}{also}"""
    async with running(tmp_path, more=resilience(), **route("", "", more=LARGER, others=others)) as bench:
        bench.mock.fault(count=0, model="one", status=503)
        bench.mock.fault(count=1, model="two", **TOO_LONG)
        assert await tries(bench) == expected


async def test_a_larger_one_that_refuses_tells_why(tmp_path: Path) -> None:
    """Its limit has no room: that is what stands in the way, with its own figures; the request was made, and counts once."""
    limits = "[{amount: 5, unit: tokens, per: day, models: [big]}, 9 requests/day, 1k tokens/minute]"
    async with running(tmp_path, **(route("", more=LARGER, others=BIG) | {"limits": limits})) as bench:
        bench.mock.fault(count=1, model="one", **TOO_LONG)
        answer = await bench.chat(model="two", max_tokens=20)
        assert (answer.code, answer.error["sluicegate"]["limit"]) == ("request_too_large", 5)
        assert answer.headers["x-sluicegate-limited-by"] == "key key tokens/day [big]"
        assert (await bench.usage())["key key requests/day"]["used"] == 1


# -- breakers and cooldowns ---------------------------------------------------------------------------------------------------------------


async def test_case_43_a_probe_whose_client_leaves_returns_its_place(tmp_path: Path) -> None:
    """While the upstream thinks; the next request may try at once."""
    async with running(tmp_path, more=resilience(failures=1), **route("")) as bench:
        bench.slack = 100
        time, standing = Time(bench), bench.worker.gateway.standings.of("mock/one")
        bench.mock.fault(count=1, model="one", status=500)
        assert await tries(bench) == "500 mock/one:500"
        assert await tries(bench) == "503"
        time.now_s += 11
        bench.mock.fault(count=1, model="one", stall_after=0)
        probe = await bench.open(model="two", max_tokens=20)
        await _until(lambda: len(bench.mock.calls) == 2)
        assert await tries(bench) == "503"
        probe.close()
        await bench.quiet()
        assert await tries(bench) == "200 mock/one:200"
        assert standing.state == "closed"


async def test_case_43_a_probe_that_is_never_answered_loses_its_place(tmp_path: Path) -> None:
    """After another pause the next request may try, and what becomes of the first changes nothing."""
    async with running(tmp_path, more=resilience(failures=1), **route("")) as bench:
        bench.slack = 100
        time, standing = Time(bench), bench.worker.gateway.standings.of("mock/one")
        bench.mock.fault(count=1, model="one", status=500)
        await tries(bench)
        time.now_s += 11
        bench.mock.fault(count=1, model="one", stall_after=0)
        probe = await bench.open(model="two", max_tokens=20)
        await _until(lambda: len(bench.mock.calls) == 2)
        time.now_s += 11
        assert await tries(bench) == "200 mock/one:200"
        probe.close()
        await bench.quiet()
        assert (standing.state, standing.failures) == ("closed", 0)


async def test_case_44_pages_instead_of_answers_open_a_breaker(tmp_path: Path) -> None:
    """Ten of them: a 200 alone is no success, and does not set the count back."""
    async with running(tmp_path, more=resilience(failures=5), **route("", "")) as bench:
        bench.slack = 1000
        bench.mock.fault(count=10, model="one", html=True)
        for _ in range(5):
            assert await tries(bench) == "200 mock/one:200:502,second/two:200"
        assert await tries(bench) == "200 second/two:200"


async def test_case_45_the_later_of_two_deadlines_stands(tmp_path: Path) -> None:
    """Two requests under way are limited for 60 s and for 1 s, in this order: it is left alone for the 60."""
    async with running(tmp_path, more=resilience(), **route("", ""), options={"ttft": 30}) as bench:
        time = Time(bench)
        bench.mock.fault(count=1, model="one", status=429, retry_after=60)
        bench.mock.fault(count=1, model="one", status=429, retry_after=1)
        with bench.held():
            both = [asyncio.create_task(tries(bench)) for _ in range(2)]
            await bench.asked(2)
        assert await asyncio.gather(*both) == ["200 mock/one:429,second/two:200"] * 2
        time.now_s += 59
        assert await tries(bench) == "200 second/two:200"
        time.now_s += 2
        assert await tries(bench) == "200 mock/one:200"


@pytest.mark.parametrize(
    ("max_wait", "expected", "slept"), [("15s", "200 mock/one:429,mock/one:200", True), ("2s", "200 mock/one:429,second/two:200", False)]
)
async def test_a_limit_that_only_anthropics_headers_tell_of_is_waited_for(tmp_path: Path, max_wait: str, expected: str, slept: bool) -> None:
    """A reset 12 s ahead: 12 s are waited where that is allowed, else the next one answers at once."""
    models = """
  two:
    deployments:
      - {provider: mock, model: one, price: {input: 0.5, output: 1.0}}
      - {provider: second, model: two, price: {input: 0.5, output: 1.0}}"""
    more = f"resilience: {{retries: 1, max_wait: {max_wait}}}"
    async with running(tmp_path, more=more, **(route("") | {"models": models})) as bench:
        time = Time(bench)
        bench.worker.gateway.calls._time_ms = lambda: 1_796_000_000_000
        headers = {
            "anthropic-ratelimit-requests-remaining": "7",
            "anthropic-ratelimit-requests-reset": "2026-11-30T00:59:59Z",
            "anthropic-ratelimit-input-tokens-remaining": "0",
            "anthropic-ratelimit-input-tokens-reset": "2026-11-30T00:53:32Z",
        }
        bench.mock.fault(count=1, model="one", status=429, headers=headers)
        assert await tries(bench) == expected
        assert time.slept == ([12.0] if slept else [])


async def _until(true: Any) -> None:
    async with asyncio.timeout(30):
        while not true():  # noqa: ASYNC110  (nothing to wait for)
            await asyncio.sleep(0.002)
