"""Cases of cases.md over `/v1/messages`: the same limits, the same arithmetic, with the provider's own count as the truth; at a provider that speaks
the same dialect (model `chat`) and at one that speaks OpenAI chat (model `other`)."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from support_inloop import Bench, Connection, Reply, request, running

MODELS = """
  other: {deployments: [{provider: compatible, model: mock-other, price: {input: 0.5, output: 1.0}}]}
  either:
    deployments:
      - {provider: mock, model: mock-chat, price: {input: 0.5, output: 1.0}}
      - {provider: compatible, model: mock-other, price: {input: 0.5, output: 1.0}}"""
BOTH = pytest.mark.parametrize("model", ["chat", "other"])
EXTEND = pytest.mark.parametrize("extend", [False, True], ids=["capped", "extended"])
STREAM = pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
FIXED = "budget: {estimator: fixed, fixed_output: 40}"


def bench(directory: Path, extend: bool = False, **options: Any) -> Any:
    """A gateway in front of one mock, known as two providers."""
    on = "on" if extend else "off"
    providers = f"  compatible: {{provider: openai_compatible, base_url: BASE_URL, extend: {on}, tokenizer: o200k_base}}"
    return running(directory, extend=extend, providers=providers, models=MODELS, **options)


def body(model: str = "chat", key: str = "sk-key", **fields: Any) -> bytes:
    asked = {"model": model, "messages": [{"role": "user", "content": "Tell me"}], "max_tokens": 64, "metadata": {"user_id": key}, **fields}
    return json.dumps(asked).encode()


async def ask(bench: Bench, model: str = "chat", key: str = "sk-key", **fields: Any) -> Reply:
    return await bench.raw(request(body(model, key, **fields), key, path="/v1/messages"))


async def opened(bench: Bench, model: str, **fields: Any) -> Connection:
    connection = await bench.connect()
    connection.send(request(body(model, stream=True, **fields), path="/v1/messages"))
    return connection


def kinds(reply: Reply) -> list[str]:
    return [event["type"] for event in reply.events]


@STREAM
@EXTEND
@BOTH
async def test_messages_count(tmp_path: Path, model: str, extend: bool, stream: bool) -> None:
    """A budget is spent over messages as over chats, and the provider has produced no more (cases 4, 27, 60)."""
    async with bench(tmp_path, extend, limits="[130 tokens/day]", options={"completion": 30}) as b:
        replies = [await ask(b, model, stream=stream, max_tokens=30) for _ in range(6)]
        assert replies[0].status == 200 and replies[-1].error["code"] == "budget_exceeded"
        assert replies[-1].json["type"] == "error" and b.total <= 130
        assert (await b.chat(max_tokens=30)).code == "budget_exceeded"


@BOTH
async def test_case_49_usage_comes_whoever_counts(tmp_path: Path, model: str) -> None:
    """It is part of every stream of this dialect, and asked for where the provider's dialect gives it only then."""
    async with bench(tmp_path, limits="[1000 tokens/day]", options={"completion": 12, "prompt": 20}) as b:
        reply = await ask(b, model, stream=True)
        assert reply.events[-2]["usage"]["output_tokens"] == 12
        assert (b.record.input_tokens, b.record.output_tokens, b.record.source) == (20, 12, "reported")
        assert b.record.dialect == "anthropic_messages"


@STREAM
@BOTH
async def test_case_53_what_the_start_of_a_message_reports_is_no_count(tmp_path: Path, model: str, stream: bool) -> None:
    """One token at the start and fifteen in the end are fifteen; without a report in the end nothing is settled at the start's."""
    async with bench(tmp_path, limits="[1000 tokens/day]", options={"completion": 15}) as b:
        await ask(b, model, stream=stream)
        assert (b.record.output_tokens, b.record.source) == (15, "reported")
        b.mocked(completion=15, usage="none")
        b.slack = 64  # the cap
        await ask(b, model, stream=stream)
        assert b.record.output_tokens >= 15


async def test_case_63_cached_tokens_are_beside_the_input_here(tmp_path: Path) -> None:
    """100 that were not cached and 900 that were are 1,000 in the bill and for a client of the other dialect, and 100 and 900 for one of this."""
    async with bench(tmp_path, limits="[5000 tokens/day]", options={"completion": 5, "prompt": 1000, "cached": 900}) as b:
        b.whole = False  # the prompt is not what it is said to be
        same, other = await ask(b), await ask(b, "other")
        for reply in (same, other):
            usage = reply.json["usage"]
            assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (100, 900, 5)
        assert [(record.input_tokens, record.cached_tokens) for record in b.records] == [(1000, 900)] * 2
        assert b.records[0].cost_nano_usd == b.records[1].cost_nano_usd


@BOTH
async def test_a_stream_is_cut_in_its_own_form(tmp_path: Path, model: str) -> None:
    """Where a budget runs out under it, the open block is closed, the message ends with max_tokens, says why and what was used, and stops."""
    async with bench(tmp_path, extend=True, limits="[1000 tokens/day]", options={"ttft": 5, "completion": 900, "tpot": 1}, more=FIXED) as b:
        b.slack = 900  # what it may produce in 100 ms, as fast as it was seen to come: on a machine that stalls, all of it
        with b.held():
            connection = await opened(b, model, max_tokens=900)
            await b.asked(1)
            other = asyncio.create_task(b.chat(max_tokens=600))
            await b.asked(2)
        reply = await connection.rest()
        await other
        assert kinds(reply)[-3:] == ["content_block_stop", "message_delta", "message_stop"]
        ended = reply.events[-2]
        assert (ended["delta"]["stop_reason"], ended["sluicegate"], reply.clean) == ("max_tokens", {"truncated": "budget"}, True)
        cut = next(record for record in b.records if record.truncated == "budget")
        assert ended["usage"]["output_tokens"] == cut.output_tokens
        starts, stops = ([e["index"] for e in reply.events if e["type"] == f"content_block_{what}"] for what in ("start", "stop"))
        assert starts == stops
        assert b.total <= 1000


@BOTH
async def test_a_client_that_leaves_is_charged_what_was_made(tmp_path: Path, model: str) -> None:
    """At least what the upstream wrote (cases 57, 58, 109)."""
    async with bench(tmp_path, extend=True, limits="[1000 tokens/day]", options={"completion": 500, "tpot": 1}, more=FIXED) as b:
        b.slack = 500
        connection = await opened(b, model, max_tokens=500)
        await connection.until(b"content_block_delta")
        with b.held():
            await b.left(connection)
        await b.quiet()
        assert b.record.output_tokens >= 1 and b.record.client_gone


async def test_case_128_what_is_not_in_the_request_is_held_at_the_context(tmp_path: Path) -> None:
    """A document by URL is a 400 where the model's context is not known, and held at it where it is."""
    document = {"type": "document", "source": {"type": "url", "url": "https://example.com/a.pdf"}}
    asked = {"messages": [{"role": "user", "content": [document]}], "max_tokens": 10}
    async with bench(tmp_path, limits="[1000 tokens/day]") as b:
        reply = await ask(b, **asked)
        assert (reply.status, reply.error["code"], reply.error["param"]) == (400, "unbounded_input", "messages[0].content[0]")
    async with bench(tmp_path, limits="[1000 tokens/day]", deployment=", context: 900", options={"prompt": 880, "completion": 5}) as b:
        assert (await ask(b, **asked)).status == 200
        assert (await ask(b, **asked)).error["code"] == "budget_exceeded"


@STREAM
async def test_case_75_a_call_that_the_cap_cuts_is_told_as_cut(tmp_path: Path, stream: bool) -> None:
    """Its arguments come as far as they were written, the reason is max_tokens."""
    tools = [{"name": "get", "arguments": {"text": "word " * 60}}]
    offered = [{"name": "get", "input_schema": {"type": "object"}}]
    async with bench(tmp_path, limits="[1000 tokens/day]", options={"completion": 2, "tools": tools}) as b:
        reply = await ask(b, "other", tools=offered, max_tokens=20, stream=stream)
        if stream:
            assert reply.events[-2]["delta"]["stop_reason"] == "max_tokens"
            cut = "".join(e["delta"].get("partial_json", "") for e in reply.events if e["type"] == "content_block_delta")
        else:
            assert reply.json["stop_reason"] == "max_tokens"
            cut = reply.json["content"][-1]["input"]["arguments"]
        assert cut.startswith('{"text":') and not cut.endswith("}")


async def test_case_91_an_image_is_no_text(tmp_path: Path) -> None:
    """Two megabytes of base64 fit a budget of ten thousand tokens."""
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo" + "A" * 2_000_000}}
    async with bench(tmp_path, limits="[10000 tokens/day]", options={"completion": 5}) as b:
        reply = await ask(b, messages=[{"role": "user", "content": [image, {"type": "text", "text": "What is it?"}]}])
        assert reply.status == 200


async def test_one_budget_over_both_surfaces_and_both_providers_at_once(tmp_path: Path) -> None:
    """Chats and messages, each at each provider, together stay within it."""
    async with bench(tmp_path, extend=True, limits="[2000 tokens/day]", options={"completion": 60, "tpot": 1}) as b:
        calls = []
        for model in ("chat", "other") * 10:
            calls += [ask(b, model, stream=True, max_tokens=60), b.chat(model=model, max_tokens=60), ask(b, model, max_tokens=60)]
        await asyncio.gather(*calls)
        await b.quiet()
        assert 1500 < b.total <= 2000


async def test_the_next_deployment_speaks_another_dialect(tmp_path: Path) -> None:
    """Before the first output a route goes on (cases 38, 84); what comes before it, `message_start`, has not been sent."""
    async with bench(tmp_path, limits="[1000 tokens/day]", options={"completion": 5}) as b:
        b.slack = 100  # the cap and the input of the attempt that broke
        b.mock.fault(count=1, cut_after=1, cut="rst", ttft=0)
        reply = await ask(b, "either", stream=True)
        assert reply.status == 200
        b.mock.fault(count=1, status=529)
        reply = await ask(b, "either", stream=True)
        assert kinds(reply)[0] == "message_start" and kinds(reply).count("message_start") == 1
        assert reply.headers["x-sluicegate-attempts"] == "mock/mock-chat:529,compatible/mock-other:200"
