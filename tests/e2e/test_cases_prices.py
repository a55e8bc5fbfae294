"""Cases of cases.md on cost: what a dollar limit holds and is charged, at whatever price a deployment has. With a real provider on a real socket."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from support_inloop import INPUT_NANO_USD, OUTPUT_NANO_USD, PROMPT_TOKENS, Bench, fresh_redis, running, whole
from support_ledgers import Clock

STREAM = pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
EXTEND = pytest.mark.parametrize("extend", [False, True], ids=["capped", "extended"])
ROUTE = """
  two:
    deployments:
      - {provider: mock, model: one, price: {input: 0.5, output: 1.0}}
      - {provider: mock, model: two, price: {input: 0.05, output: 0.1}}"""
ANSWER = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}


async def spent(bench: Bench, name: str = "key key usd/day") -> Any:
    await bench.quiet()
    return (await bench.usage())[name]["used"]


@contextlib.asynccontextmanager
async def answering(usage: dict[str, Any] | None) -> AsyncIterator[int]:
    """The port of a provider whose every answer has this usage."""
    choices = [{"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}]
    body = json.dumps(ANSWER | {"choices": choices} | ({"usage": usage} if usage is not None else {})).encode()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
                writer.write(whole(200, body))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


# -- a budget of $0.0001 a day ------------------------------------------------------------------------------------------------------------


@EXTEND
@STREAM
async def test_a_tenth_of_a_cent_is_refused_when_it_would_be_crossed(tmp_path: Path, stream: bool, extend: bool) -> None:
    """402 that names scope, window, reset and the tokens that can be afforded; a model without a price of its own is refused, a free one served."""
    price_of_20 = PROMPT_TOKENS * INPUT_NANO_USD + 20 * OUTPUT_NANO_USD
    models = "  unknown: {deployments: [{provider: mock, model: mystery}]}"
    async with running(tmp_path, limits="[$0.0001/day]", extend=extend, models=models) as bench:
        served = [await bench.chat(max_tokens=20, stream=stream) for _ in range(4)]
        assert [answer.code for answer in served] == ["200"] * 4
        refused = await bench.chat(max_tokens=20, stream=stream)
        assert (refused.status, refused.code, refused.headers["x-sluicegate-limited-by"]) == (402, "budget_exceeded", "key key usd/day")
        told = refused.error["sluicegate"]
        assert (told["scope"], told["window"], told["unit"]) == ("acme/@key", "calendar", "usd")
        assert told["resets_at"] and told["affordable_output_tokens"] == 0
        assert (await bench.chat(model="unknown", stream=stream)).code == "price_unknown"
        assert (await bench.chat(model="free", max_tokens=20, stream=stream)).code == "200"
        assert await spent(bench) == 4 * price_of_20 / 1e9
        bench.whole = False  # the free answer is in the provider's count, too


@STREAM
async def test_a_fallback_to_a_cheaper_deployment_settles_the_cheaper_price(tmp_path: Path, stream: bool) -> None:
    """It fails unbilled at the first, is held anew at the second's price, and costs that (case 59: also where the client leaves)."""
    async with running(tmp_path, limits="[$0.00005/day]", models=ROUTE) as bench:
        bench.whole = False
        bench.mock.fault(count=1, model="one", status=500)
        answer = await bench.chat(model="two", max_tokens=20, stream=stream)
        assert answer.headers["x-sluicegate-attempts"] == "mock/one:500,mock/two:200"
        assert await spent(bench) == (PROMPT_TOKENS * 50 + 20 * 100) / 1e9


async def test_what_is_too_dear_at_one_deployment_is_served_at_a_cheaper_one(tmp_path: Path) -> None:
    """The worst case is of the deployment about to be called."""
    async with running(tmp_path, limits="[$0.00002/day]", models=ROUTE) as bench:
        bench.whole = False
        answer = await bench.chat(model="two", max_tokens=20)
        assert (answer.code, answer.headers["x-sluicegate-deployment"]) == ("200", "mock/two")


async def test_a_failed_attempt_that_may_be_billed_costs_what_it_may_cost(tmp_path: Path) -> None:
    """A proxy's error leaves it open: it is charged at its own deployment's price, and the answer at the other's."""
    async with running(tmp_path, limits="[$1/day]", models=ROUTE) as bench:
        bench.whole = False
        bench.mock.fault(count=1, model="one", status=502)
        assert (await bench.chat(model="two", max_tokens=20)).code == "200"
        assert await spent(bench) >= (PROMPT_TOKENS * 550 + 20 * 1100) / 1e9
        assert [attempt.outcome for attempt in bench.record.attempts] == ["502", "200"]


@pytest.mark.parametrize(
    ("limit", "hours"),
    [("$0.00003/hour", 1), ("$0.00003/day", 24), ("$0.00003/week", 24 * 7), ("$0.00003/month", 24 * 31),
     ("{amount: 0.00003, unit: usd, per: day, tz: Asia/Tokyo}", 24), ("$0.00003/lifetime", 0)],
)  # fmt: skip
async def test_dollars_of_any_window_end_and_come_back_with_it(tmp_path: Path, limit: str, hours: int) -> None:
    """An hour, a day, a week, a month, in any zone: used up, refused, and served again in the next one; for a lifetime never."""
    clock = Clock()
    async with running(tmp_path, limits=f"[{limit}]", clock=clock) as bench:
        bench.whole = False
        codes = [(await bench.chat(max_tokens=40)).status for _ in range(2)]
        clock.now_ms += (hours or 10_000) * 3_600_000
        codes.append((await bench.chat(max_tokens=40)).status)
        assert codes == [200, 402, 200 if hours else 402]


# -- two replicas -------------------------------------------------------------------------------------------------------------------------


@EXTEND
async def test_a_hundred_at_once_on_two_replicas_cost_no_more_than_their_dollar(tmp_path: Path, redis_url: str, extend: bool) -> None:
    """100 requests of up to $0.04 each against $1, at two gateways with one Redis: what the providers made, at list price, is at most $1."""
    with fresh_redis(redis_url) as (url, _):
        shared: dict[str, Any] = {
            "ledger": url, "records": f"sqlite:///{tmp_path}/records.db", "limits": "[$1/day]", "extend": extend,
            "price": "{input: 500, output: 1000}", "options": {"median": 30, "ttft": 30, "tokenizer": "o200k_base"},
        }  # fmt: skip
        one, two = tmp_path / "one", tmp_path / "two"
        one.mkdir(), two.mkdir()
        async with running(one, **shared) as first, running(two, **shared) as second:
            first.whole = second.whole = False  # each knows only half of it
            asked = [(first, second)[i % 2].chat(max_tokens=40, stream=i % 4 > 1, messages=[{"role": "user", "content": f"{i}"}]) for i in range(100)]
            codes = [answer.code for answer in await asyncio.gather(*asked)]
            assert 20 <= codes.count("200") < 100
            await first.quiet(), await second.quiet()
            made = [bench.mock.truth.stats().total for bench in (first, second)]
            truth = sum(tally.prompt_tokens * 500_000 + tally.completion_tokens * 1_000_000 for tally in made)
            used = (await first.usage())["key key usd/day"]["used"]
            assert 0.5 <= truth / 1e9 <= used <= 1.0


# -- tiers, variants, classes -------------------------------------------------------------------------------------------------------------

TIERED = "{input: 1.0, output: 2.0, tiers: [{above: 100, input: 3.0, output: 4.0}]}"


async def test_the_tier_that_the_input_can_reach_is_held_and_the_one_it_was_in_is_charged(tmp_path: Path) -> None:
    """A short prompt fits into what a long one does not; a long one costs its tier's price for every token."""
    async with running(tmp_path, limits="[$0.0002/day]", price=TIERED) as bench:
        bench.whole = False
        assert (await bench.chat(max_tokens=20)).code == "200"
        assert await spent(bench) == (PROMPT_TOKENS * 1000 + 20 * 2000) / 1e9
        assert (await bench.chat(max_tokens=1, messages=[{"role": "user", "content": "word " * 100}])).code == "request_too_large"
    (tmp_path / "long").mkdir()
    async with running(tmp_path / "long", limits="[$0.1/day]", price=TIERED, options={"prompt": 101, "completion": 10}) as bench:
        bench.whole = False
        assert (await bench.chat(max_tokens=10, messages=[{"role": "user", "content": "word " * 100}])).code == "200"
        assert await spent(bench) == (101 * 3000 + 10 * 4000) / 1e9


VARIED = "{input: 0.5, output: 1.0, variants: [{when: {service_tier: priority}, input: 5, output: 10}]}"


@STREAM
async def test_a_dearer_tier_that_has_a_price_is_held_and_charged_at_it(tmp_path: Path, stream: bool) -> None:
    """And refused by name where none is known, with nothing held; what costs the price anyway passes."""
    async with running(tmp_path, limits="[$0.001/day]", price=VARIED) as bench:
        bench.whole = False
        assert (await bench.chat(max_tokens=20, stream=stream, service_tier="priority")).code == "200"
        assert bench.mock.calls[-1].body.count('"service_tier":"priority"') == 1
        assert await spent(bench) == (PROMPT_TOKENS * 5000 + 20 * 10_000) / 1e9
        refused = await bench.chat(max_tokens=20, stream=stream, service_tier="scale")
        assert (refused.status, refused.error["param"]) == (400, "service_tier")
        assert (await bench.chat(max_tokens=20, stream=stream, service_tier="flex")).code == "200"
        assert await spent(bench) == (PROMPT_TOKENS * 5500 + 20 * 11_000) / 1e9


@pytest.mark.parametrize(("limits", "code"), [("[1000 tokens/day]", "200"), ("[$1/day]", "price_unknown")])
async def test_a_dearer_tier_without_any_price_is_served_where_nobody_counts_dollars(tmp_path: Path, limits: str, code: str) -> None:
    """There is nothing that it could pass."""
    models = "  unknown: {deployments: [{provider: mock, model: mystery}]}"
    async with running(tmp_path, limits=limits, models=models) as bench:
        assert (await bench.chat(model="unknown", max_tokens=20, service_tier="priority")).code == code


async def test_another_deployment_that_has_a_price_for_the_tier_serves_it(tmp_path: Path) -> None:
    """The first of the route has none: it is not called."""
    models = f"""
  two:
    deployments:
      - {{provider: mock, model: one, price: {{input: 0.5, output: 1.0}}}}
      - {{provider: mock, model: two, price: {VARIED}}}"""
    async with running(tmp_path, limits="[$1/day]", models=models) as bench:
        bench.whole = False
        answer = await bench.chat(model="two", max_tokens=20, service_tier="priority")
        assert (answer.code, answer.headers["x-sluicegate-deployment"]) == ("200", "mock/two")


@STREAM
async def test_cases_62_and_63_cached_reads_are_charged_once_at_their_price(tmp_path: Path, stream: bool) -> None:
    """In streams as in unary answers, and whether the provider counts them inside its input or beside it."""
    price = "{input: 4.0, output: 1.0, cached_input: 1.0}"
    providers = "  claude: {provider: anthropic, base_url: ROOT_URL, api_key: k}"
    models = f"  claude: {{deployments: [{{provider: claude, model: m, price: {price}}}]}}"
    options = {"completion": 10, "prompt": 1000, "cached": 900}
    async with running(tmp_path, limits="[$1/day]", price=price, providers=providers, models=models, options=options) as bench:
        bench.whole = False
        costs = []
        for model in ("chat", "claude"):
            assert (await bench.chat(model=model, max_tokens=10, stream=stream)).code == "200"
            await bench.quiet()
            costs.append(bench.record.cost_nano_usd)
        assert costs == [100 * 4000 + 900 * 1000 + 10 * 1000] * 2


async def test_case_64_writes_for_an_hour_have_their_own_rate(tmp_path: Path) -> None:
    """The rest of what is written costs what is written for minutes."""
    providers = "  claude: {provider: anthropic, base_url: ROOT_URL, api_key: k}"
    price = "{input: 3, output: 15, cached_input: 0.3, cache_write: 3.75, cache_write_1h: 6}"
    models = f"  claude: {{deployments: [{{provider: claude, model: m, price: {price}}}]}}"
    options = {"completion": 10, "prompt": 1000, "cache_written": 600, "cache_written_1h": 300}
    async with running(tmp_path, limits="[$1/day]", providers=providers, models=models, options=options) as bench:
        bench.whole = False
        assert (await bench.chat(model="claude", max_tokens=10)).code == "200"
        await bench.quiet()
        assert bench.record.cost_nano_usd == 100 * 3000 + 600 * 3750 + 300 * 6000 + 10 * 15_000


async def test_case_65_a_call_is_one_record_at_one_price(tmp_path: Path) -> None:
    """`/v1/responses` with a custom price and a fee: one record, each charged once."""
    async with running(tmp_path, limits="[$1/day]", price="{input: 0.5, output: 1.0, request_fee: 0.001}") as bench:
        bench.whole = False
        body = json.dumps({"model": "chat", "input": "Tell me", "max_output_tokens": 20, "user": "sk-key"}).encode()
        head = f"POST /v1/responses HTTP/1.1\r\nhost: g\r\nauthorization: Bearer sk-key\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        assert (await bench.raw(head + body)).status == 200
        await bench.quiet()
        [record] = bench.records
        assert record.cost_nano_usd == 1_000_000 + record.input_tokens * 500 + record.output_tokens * 1000
        assert await spent(bench) == record.cost_nano_usd / 1e9


# -- whose figure -------------------------------------------------------------------------------------------------------------------------

USAGE = {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20}
OWN = 10 * INPUT_NANO_USD + 10 * OUTPUT_NANO_USD


@pytest.mark.parametrize(
    ("source", "usage", "nano_usd"),
    [
        ("prefer_provider", USAGE | {"cost": 0.5}, 500_000_000),
        ("prefer_provider", USAGE | {"cost": 0}, OWN),
        ("prefer_provider", USAGE | {"cost": -1}, OWN),
        ("prefer_provider", USAGE, OWN),
        ("calculated_only", USAGE | {"cost": 0.5}, OWN),
        ("provider_only", USAGE | {"cost": 0.5}, 500_000_000),
        ("provider_only", USAGE, 0),
        ("provider_only", None, 0),
    ],
)
async def test_whose_figure_is_charged(
    tmp_path: Path, caplog_events: Callable[[], list[str]], source: str, usage: dict[str, Any] | None, nano_usd: int
) -> None:
    """The provider's, ours, or its alone; one that is far above ours is charged and reported."""
    more = f"prices: {{cost_source: {source}}}"
    async with answering(usage) as port, running(tmp_path, upstream=port, limits="[$1/day]", more=more) as bench:
        bench.whole = False
        assert (await bench.chat(max_tokens=20)).code == "200"
        assert await spent(bench) == nano_usd / 1e9
        assert bench.record.cost_source == ("calculated" if nano_usd == OWN else "provider")
    assert caplog_events().count("provider charges more than its price") == (1 if nano_usd > OWN else 0)


@pytest.fixture
def caplog_events(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """What was reported, by name."""
    told: list[str] = []
    from sluicegate.observe import notices  # noqa: PLC0415  (only to listen to it)

    monkeypatch.setattr(notices.log, "warning", lambda event, **_fields: told.append(event))
    return lambda: told


async def test_what_has_no_price_may_cost_what_the_operator_says(tmp_path: Path) -> None:
    """`prices.unpriced` with a price: served, held and charged at it."""
    models = "  unknown: {deployments: [{provider: mock, model: mystery}]}"
    async with running(tmp_path, limits="[$0.001/day]", models=models, more="prices: {unpriced: {input: 1, output: 2}}") as bench:
        bench.whole = False
        assert (await bench.chat(model="unknown", max_tokens=20)).code == "200"
        assert await spent(bench) == (PROMPT_TOKENS * 1000 + 20 * 2000) / 1e9


async def test_a_deployments_own_dollars_need_a_price_too(tmp_path: Path) -> None:
    """Its limit would never fill: refused before the call, whoever asks."""
    models = "  unknown: {deployments: [{provider: mock, model: mystery, limits: [$1/day]}]}"
    async with running(tmp_path, models=models) as bench:
        refused = await bench.chat(model="unknown", max_tokens=20)
        assert (refused.status, refused.code, len(bench.mock.calls)) == (402, "price_unknown", 0)
