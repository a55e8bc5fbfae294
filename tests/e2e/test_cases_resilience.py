"""Retry, cool down, break, fall back: the cases on what a failing provider may cost a client. In one process, with a real mock on a real socket."""

from pathlib import Path
from typing import Any

import pytest

from support_inloop import Bench, running
from support_standing import Time

STREAM = pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])

LIMITS = "[10k tokens/day, 1k requests/day]"
ROUTE: dict[str, Any] = {
    "limits": LIMITS,
    "providers": "  second: {provider: mock, base_url: BASE_URL, tokenizer: o200k_base}",
    "models": """
  two:
    deployments:
      - {provider: mock, model: one, price: {input: 0.5, output: 1.0}}
      - {provider: second, model: two, price: {input: 0.5, output: 1.0}}""",
}


def resilience(retries: int = 0, max_wait: str = "2s", failures: int = 5) -> str:
    return f"resilience: {{retries: {retries}, backoff: 10ms, max_wait: {max_wait}, cooldown: 10s, breaker: {{failures: {failures}, pause: 10s}}}}"


async def tries(bench: Bench, model: str = "two", **fields: Any) -> str:
    """What was tried for one request, and what came of it."""
    answer = await bench.chat(model=model, max_tokens=20, **fields)
    return f"{answer.status} {answer.headers.get('x-sluicegate-attempts', '')}".strip()


@STREAM
async def test_an_error_is_tried_again_where_it_was_and_then_elsewhere(tmp_path: Path, stream: bool) -> None:
    """One retry answers; two failures go on to the next deployment. One request, one answer charged."""
    async with running(tmp_path, more=resilience(retries=1), **ROUTE) as bench:
        bench.mock.fault(count=1, model="one", status=500)
        assert await tries(bench, stream=stream) == "200 mock/one:500,mock/one:200"
        bench.mock.fault(count=2, model="one", status=500)
        assert await tries(bench, stream=stream) == "200 mock/one:500,mock/one:500,second/two:200"
        assert (await bench.usage())["key key requests/day"]["used"] == 2
        assert bench.record.output_tokens == 20


@pytest.mark.parametrize("status", [502, 504, 408])
async def test_what_may_have_been_billed_is_not_sent_there_again(tmp_path: Path, status: int) -> None:
    """A proxy's error leaves open whether the provider goes on: the next deployment is tried at once."""
    async with running(tmp_path, more=resilience(retries=3), **ROUTE) as bench:
        bench.mock.fault(count=1, model="one", status=status)
        assert await tries(bench) == f"200 mock/one:{status},second/two:200"
        bench.slack = 100


async def test_a_short_wait_is_waited_and_a_long_one_is_not(tmp_path: Path) -> None:
    """Within `max_wait` the same deployment answers after it; beyond, the next one does at once, and the first is left alone meanwhile."""
    async with running(tmp_path, more=resilience(retries=1), **ROUTE) as bench:
        time = Time(bench)
        bench.mock.fault(count=1, model="one", status=429, retry_after=1)
        assert await tries(bench) == "200 mock/one:429,mock/one:200"
        assert time.slept == [1.0]
        bench.mock.fault(count=1, model="one", status=429, retry_after=30)
        assert await tries(bench) == "200 mock/one:429,second/two:200"
        time.now_s += 29
        assert await tries(bench) == "200 second/two:200"
        time.now_s += 2
        assert await tries(bench) == "200 mock/one:200"
        assert time.slept == [1.0]


async def test_case_32_and_34_all_limited_is_told_with_the_soonest_recovery(tmp_path: Path) -> None:
    """429 with a bare retry-after of the deployment that is back first; then without any call; no breaker counts it."""
    async with running(tmp_path, more=resilience(failures=1), **ROUTE) as bench:
        Time(bench)  # so that no second passes
        bench.mock.fault(count=1, model="one", status=429, retry_after=9)
        bench.mock.fault(count=1, model="two", status=429, retry_after=7)
        for _ in range(3):
            answer = await bench.chat(model="two")
            assert (answer.status, answer.code, answer.headers["retry-after"]) == (429, "upstream_rate_limited", "7")
        assert len(bench.mock.calls) == 2
        assert bench.worker.gateway.standings.of("mock/one").state == "closed"


@pytest.mark.parametrize("fault", [{"status": 401}, {"status": 402}, {"status": 403}, {"status": 400, "message": "Your credit balance is too low"}])
async def test_case_46_an_account_that_is_no_good_is_left_alone(tmp_path: Path, fault: dict[str, Any]) -> None:
    """The caller does not see our credential's trouble, and the next request is spared the detour."""
    async with running(tmp_path, more=resilience(retries=2), **ROUTE) as bench:
        bench.mock.fault(count=1, model="one", **fault)
        assert (await tries(bench)).endswith("second/two:200")
        assert await tries(bench) == "200 second/two:200"


async def test_a_route_whose_accounts_are_no_good_is_unavailable_and_not_limited(tmp_path: Path) -> None:
    """The first client gets a 502, the next ones, for whom nobody is asked, a 503 that says when it is tried again."""
    async with running(tmp_path, more=resilience(retries=2), **ROUTE) as bench:
        for model in ("one", "two"):
            bench.mock.fault(count=1, model=model, status=402)
        answer = await bench.chat(model="two")
        assert (answer.status, answer.code) == (502, "upstream_error")
        answer = await bench.chat(model="two")
        assert (answer.status, answer.code) == (503, "upstream_unavailable") and int(answer.headers["retry-after"]) >= 1
        assert len(bench.mock.calls) == 2


@pytest.mark.parametrize("status", [400, 404, 413, 422])
async def test_case_42_the_callers_faults_open_no_breaker(tmp_path: Path, status: int) -> None:
    """Told unchanged, tried nowhere else, and counted by nobody."""
    async with running(tmp_path, more=resilience(retries=2, failures=3), **ROUTE) as bench:
        bench.mock.fault(count=10, model="one", status=status, message="too long")
        for _ in range(10):
            assert await tries(bench) == f"{status} mock/one:{status}"
        assert await tries(bench) == "200 mock/one:200"


@pytest.mark.parametrize("fault", [{"status": 503}, {"html": True}, {"cut_after": 3}], ids=str)
async def test_it_opens_on_the_nth_failure_and_one_probe_closes_it(tmp_path: Path, fault: dict[str, Any]) -> None:
    """Errors, pages instead of answers (case 44) and streams that die count, one per request, after its retries."""
    async with running(tmp_path, more=resilience(retries=1, failures=3), **ROUTE) as bench:
        bench.slack, time = 1000, Time(bench)
        bench.mock.fault(count=0, model="one", **fault)
        standing = bench.worker.gateway.standings.of("mock/one")
        for failures in (1, 2, 3):
            assert standing.state == "closed"
            await tries(bench, stream=True)
            assert standing.failures == failures
        assert standing.state == "open"
        assert await tries(bench, stream=True) == "200 second/two:200"
        bench.mock.reset()
        time.now_s += 10
        assert await tries(bench, stream=True) == "200 mock/one:200"
        assert standing.state == "closed"


async def test_streams_that_die_each_time_cost_one_client_per_pause(tmp_path: Path) -> None:
    """The probe that begins well and dies opens the breaker again by itself: the next client is answered elsewhere."""
    async with running(tmp_path, more=resilience(failures=3), **ROUTE) as bench:
        bench.slack, time = 1000, Time(bench)
        bench.mock.fault(count=0, model="one", cut_after=3)
        for _ in range(3):
            await tries(bench, stream=True)
        for _ in range(2):
            time.now_s += 10
            assert await tries(bench, stream=True) == "200 mock/one:200"
            assert [await tries(bench, stream=True) for _ in range(2)] == ["200 second/two:200"] * 2


async def test_case_43_a_probe_that_tells_nothing_returns_its_place(tmp_path: Path) -> None:
    """It got a 400, which says nothing of the deployment: the next request may try at once."""
    async with running(tmp_path, more=resilience(failures=1), **ROUTE) as bench:
        time = Time(bench)
        bench.mock.fault(count=1, model="one", status=500)
        await tries(bench)
        time.now_s += 10
        bench.mock.fault(count=1, model="one", status=400)
        assert await tries(bench) == "400 mock/one:400"
        assert await tries(bench) == "200 mock/one:200"


async def test_all_broken_is_a_503_with_the_time_of_the_next_probe(tmp_path: Path) -> None:
    """Nothing is called while every breaker is open."""
    async with running(tmp_path, more=resilience(failures=1), **ROUTE) as bench:
        bench.mock.fault(count=2, status=500)
        assert await tries(bench) == "500 mock/one:500,second/two:500"
        answer = await bench.chat(model="two")
        assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "upstream_unavailable", "10")
        assert len(bench.mock.calls) == 2


async def test_a_spent_limit_is_noticed_before_it_refuses(tmp_path: Path) -> None:
    """A good answer that says that nothing remains: the next request goes elsewhere until the reset."""
    async with running(tmp_path, more=resilience(), **ROUTE) as bench:
        bench.mock.fault(count=1, model="one", headers={"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6m0s"})
        assert await tries(bench) == "200 mock/one:200"
        assert await tries(bench) == "200 second/two:200"


async def test_a_retry_needs_no_second_place_at_the_deployment(tmp_path: Path) -> None:
    """Its own limits hold for one call at a time: the first try's place is free again before the second; each call counts there, the request once."""
    models = ROUTE["models"].replace("model: one,", "model: one, limits: [1 concurrent, 5 requests/day],")
    async with running(tmp_path, more=resilience(retries=2), **{**ROUTE, "models": models}) as bench:
        bench.mock.fault(count=2, model="one", status=503)
        assert await tries(bench) == "200 mock/one:503,mock/one:503,mock/one:200"
        assert (await bench.usage())["key key requests/day"]["used"] == 1
        counters, holds = await bench.ledger.show()
        assert not holds
        assert sorted(counter.used for counter in counters if "mock/one" in counter.key and counter.used) == [3]
