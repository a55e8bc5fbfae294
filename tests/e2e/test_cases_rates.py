"""Cases of cases.md on limits that refill, on concurrency, and on what clients are told of them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from support_inloop import PROMPT_TOKENS, Bench, fresh_redis, running
from support_ledgers import Clock

STREAM = pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
BACKEND = pytest.mark.parametrize("kind", ["memory", "sqlite", "redis"])


def place(kind: str, directory: Path, redis: str) -> str:
    return {"memory": "memory://", "sqlite": f"sqlite:///{directory}/ledger.db", "redis": redis}[kind]


@BACKEND
@STREAM
async def test_case_26_a_burst_is_counted_before_the_answers(tmp_path: Path, redis_url: str, kind: str, stream: bool) -> None:
    """100 tokens a minute and five requests of 80 at once: one is admitted, the others are told when to come again."""
    with fresh_redis(redis_url) as (url, _):
        options = {"completion": 71, "ttft": 100}
        async with running(tmp_path, ledger=place(kind, tmp_path, url), limits="[100 tokens/minute]", options=options) as bench:
            answers = await bench.at_once([bench.chat(max_tokens=71, stream=stream) for _ in range(5)], served=1)
            codes = sorted(answer.code for answer in answers)
            assert codes == ["200", *["rate_limit_exceeded"] * 4]
            for answer in answers:
                if answer.code != "200":
                    assert (answer.status, answer.error["type"]) == (429, "rate_limit_error")
                    assert 30 <= int(answer.headers["retry-after"]) <= 37  # 60 of 100 short, at 100 a minute


@BACKEND
@STREAM
async def test_concurrency_is_counted_and_released(tmp_path: Path, redis_url: str, kind: str, stream: bool) -> None:
    """Three at a time: the fourth is refused while they run and admitted when they have ended."""
    with fresh_redis(redis_url) as (url, _):
        async with running(tmp_path, ledger=place(kind, tmp_path, url), limits="[3 concurrent]", options={"ttft": 150}) as bench:
            codes = [answer.code for answer in await bench.at_once([bench.chat(stream=stream, max_tokens=20) for _ in range(8)], served=3)]
            assert sorted(codes) == ["200"] * 3 + ["concurrency_exceeded"] * 5
            codes = [answer.code for answer in await asyncio.gather(*(bench.chat(stream=stream, max_tokens=20) for _ in range(3)))]
            assert codes == ["200"] * 3


@STREAM
async def test_case_28_what_remains_goes_down(tmp_path: Path, stream: bool) -> None:
    """The headers show the tightest limit of each unit, after this request, on every answer."""
    limits = "[10 requests/minute, 100k requests/day, 1M tokens/day, 2000 tokens/minute]"
    async with running(tmp_path, limits=limits, org="[7 requests/minute]", options={"completion": 100}) as bench:
        seen: list[dict[str, str]] = []
        for _ in range(3):
            answer = await bench.chat(max_tokens=100, stream=stream)
            seen.append({name.removeprefix("x-ratelimit-"): value for name, value in answer.headers.items() if name.startswith("x-ratelimit-")})
        assert [shown["remaining-requests"] for shown in seen] == ["6", "5", "4"]
        assert [shown["limit-requests"] for shown in seen] == ["7", "7", "7"]
        remaining = [int(shown["remaining-tokens"]) for shown in seen]
        assert remaining[0] > remaining[1] > remaining[2]
        assert {shown["limit-tokens"] for shown in seen} == {"2000"}
        assert all(shown["reset-requests"] and shown["reset-tokens"] for shown in seen)


async def test_case_28_a_refusal_shows_what_remains(tmp_path: Path) -> None:
    """A refused request has taken nothing."""
    async with running(tmp_path, limits="[200 tokens/minute]", options={"completion": 100}) as bench:
        await bench.chat(max_tokens=100)
        refused = [await bench.chat(max_tokens=100) for _ in range(3)]
        assert {answer.code for answer in refused} == {"rate_limit_exceeded"}
        assert {answer.headers["x-ratelimit-remaining-tokens"] for answer in refused} == {"91"}
        assert [answer.error["sluicegate"]["reason"] for answer in refused] == ["rate"] * 3


@pytest.mark.parametrize("limit", ["100 tokens/minute", "100 output tokens/minute", "100 tokens/s"])
async def test_case_29_a_denied_big_request_takes_nothing(tmp_path: Path, limit: str) -> None:
    """A capacity of 100: 1,000 can never fit and is told so; ten fit at once afterwards."""
    async with running(tmp_path, limits=f"[{limit}]", options={"completion": 10}) as bench:
        refused = await bench.chat(max_tokens=1000)
        assert (refused.status, refused.code, refused.error["sluicegate"]["reason"]) == (400, "request_too_large", "too_large")
        assert {"limit", "requested"} <= refused.error["sluicegate"].keys() and not {"used", "held"} & refused.error["sluicegate"].keys()
        assert refused.headers["x-should-retry"] == "false"
        assert (await bench.chat(max_tokens=10)).code == "200"


@STREAM
@pytest.mark.parametrize("limits", ["[5 requests/minute]", "[2 concurrent]", "[]", "[5 requests/day, 1M input tokens/day]"])
async def test_case_31_no_token_limit_needs_no_cap(tmp_path: Path, limits: str, stream: bool) -> None:
    """Without max_tokens and without a limit on output: served, as long as the model's own maximum."""
    async with running(tmp_path, limits=limits, max_output=300, options={"completion": 900}) as bench:
        answer = await bench.chat(stream=stream)
        assert answer.code == "200"
        assert bench.mock.truth.stats().total.completion_tokens == 300


async def test_a_limit_refuses_under_its_own_name(tmp_path: Path) -> None:
    """The gateway's refusals never look like the provider's, and the other way round."""
    async with running(tmp_path, limits="[1 requests/minute]") as bench:
        bench.mock.fault(count=1, model="mock-free", status=429, retry_after=12, message="slow down")
        theirs = await bench.chat(model="free")
        ours = await bench.chat()
        assert (theirs.status, theirs.code, theirs.headers["retry-after"]) == (429, "upstream_rate_limited", "12")
        assert (ours.status, ours.code) == (429, "rate_limit_exceeded")
        assert "x-sluicegate-limited-by" not in theirs.headers
        assert ours.headers["x-sluicegate-limited-by"] == "key key requests/minute"


async def test_a_refilling_limit_repays_what_it_was_overrun_by(tmp_path: Path) -> None:
    """An answer that turns out longer than aimed at is debt: nothing is admitted until it has been repaid."""
    clock = Clock()
    more = "budget: {estimator: fixed, fixed_output: 20}"
    async with running(tmp_path, clock=clock, limits="[600 tokens/minute]", more=more, options={"completion": 900}) as bench:
        assert (await bench.chat(max_tokens=500)).code == "200"
        assert (await bench.chat(max_tokens=500)).code == "200"  # 29 claimed, 509 used: the bucket is 418 in debt
        refused = await bench.chat(max_tokens=500)
        assert refused.code == "rate_limit_exceeded"
        wait_s = int(refused.headers["retry-after"])
        assert wait_s == -(-(2 * 509 + 29 - 600) // 10)
        clock.now_ms += (wait_s - 1) * 1000
        assert (await bench.chat(max_tokens=500)).code == "rate_limit_exceeded"
        clock.now_ms += 1000
        assert (await bench.chat(max_tokens=500)).code == "200"


async def test_case_34_full_deployments_are_not_the_callers_limit(tmp_path: Path) -> None:
    """Every deployment of the route is at its own limit: 429 with a time, under a name of its own; the caller's limits are untouched."""
    async with running(tmp_path, limits="[100 tokens/day]", deployment=", limits: [1 requests/minute]") as bench:
        assert (await bench.chat(max_tokens=20)).code == "200"
        refused = await bench.chat(max_tokens=20)
        assert (refused.status, refused.code) == (429, "upstream_rate_limited")
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert (await bench.usage())["key key tokens/day"]["used"] == 20 + PROMPT_TOKENS


@STREAM
async def test_deployment_limits_count_what_was_used_there(tmp_path: Path, stream: bool) -> None:
    """A hold of their own, settled with the request's; what no call was made for is given back."""
    models = """
  own:
    deployments: [{provider: mock, model: own, price: {input: 0.5, output: 1.0}, limits: [100 tokens/day, 2 concurrent]}]"""
    async with running(tmp_path, limits="[1000 tokens/day]", models=models, options={"completion": 20}) as bench:
        for _ in range(3):
            assert (await bench.chat(model="own", max_tokens=30, stream=stream)).code == "200"
        assert (await bench.chat(model="own", max_tokens=30, stream=stream)).code == "upstream_rate_limited"
        assert deployment_used(await bench.ledger.show()) == {"tokens": 3 * (20 + PROMPT_TOKENS)}


def deployment_used(shown: Any) -> dict[str, int]:
    counters = [counter for counter in shown[0] if ":c:mock/own:" in counter.key]
    return {counter.key.split(":")[4]: counter.used for counter in counters if counter.kind == "w"}


async def test_two_keys_of_one_team_share_its_limits_only(tmp_path: Path) -> None:
    """Each has its own minute; the day is the team's."""
    tenants = """
  acme:
    children:
      team: {limits: [100 tokens/day], keys: [{name: a, key: sk-a, limits: [40 tokens/minute]}, {name: b, key: sk-b, limits: [60 tokens/minute]}]}"""
    async with running(tmp_path, tenants=tenants) as bench:
        assert [(await bench.chat(key, max_tokens=20)).code for key in ("sk-a", "sk-a", "sk-b", "sk-b")] == [
            "200", "rate_limit_exceeded", "200", "200",
        ]  # fmt: skip
        assert await codes(bench, "sk-b") == ["budget_exceeded"]


async def codes(bench: Bench, key: str) -> list[str]:
    return [(await bench.chat(key, max_tokens=20)).code]
