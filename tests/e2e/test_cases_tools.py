"""Tools that a provider runs, and marks for its cache, under a dollar limit: what is held covers what the provider charges, and what it reports is
what is charged. With a provider on a real socket that answers in each dialect."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support_inloop import STREAM_HEAD, Bench, Reply, framed, request, running, whole

STREAM = pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
FEE_NANO_USD = 10_000_000  # $10 per thousand
PRICE = "{input: 1, output: 2, tools: {web_search: 10, code_interpreter: 30}}"
SEARCH_CALL = {"type": "web_search_call", "id": "ws", "status": "completed", "action": {"type": "search", "query": "q"}}
OPENED = {**SEARCH_CALL, "action": {"type": "open_page", "url": "u"}}
MESSAGE = {
    "type": "message",
    "id": "m",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "a", "annotations": []}],
}
WEB_SEARCH = {"type": "web_search_20250305", "name": "web_search"}
SEARCHED = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}}


class Upstream:
    """Answers that are set by a test, in one piece or as the bytes of a stream; the bodies of what it was asked."""

    def __init__(self) -> None:
        self.answer: Any = {}
        self.asked: list[Any] = []
        self.breaks = False  # in the middle of its answer
        self.hangs = False  # after it, without an end

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                self.asked.append(json.loads(await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))))
                if isinstance(self.answer, bytes):  # events
                    writer.write(STREAM_HEAD + framed(self.answer, last=not (self.breaks or self.hangs)))
                    if self.breaks:
                        break
                    continue
                data = whole(200, json.dumps(self.answer).encode())
                writer.write(data[:-5] if self.breaks else data)
                if self.breaks:
                    break
        writer.close()


@contextlib.asynccontextmanager
async def gateway(tmp_path: Path, limit: str, *, price: str = PRICE, deployment: str = ", context: 1000") -> AsyncIterator[tuple[Bench, Upstream]]:
    """Models `searching` (of OpenAI) and `claude`."""
    upstream = Upstream()
    server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0)
    at = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    providers = f"""
  ai: {{provider: openai_compatible, base_url: "{at}/v1", speaks: [openai_chat, openai_responses], api_key: k}}
  an: {{provider: anthropic, base_url: "{at}", catalogue: anthropic, api_key: k}}"""
    models = f"""
  searching: {{deployments: [{{provider: ai, model: s, price: {price}{deployment}}}]}}
  claude: {{deployments: [{{provider: an, model: c, price: {price}{deployment}}}]}}"""
    async with server, running(tmp_path, limits=f"[{limit}]", providers=providers, models=models) as bench:
        bench.whole = False  # the mock is not asked
        yield bench, upstream


def response(*items: Any) -> dict[str, Any]:
    usage = {"input_tokens": 100, "output_tokens": 10, "total_tokens": 110}
    return {"id": "r", "object": "response", "created_at": 1, "model": "s", "status": "completed", "output": [*items, MESSAGE], "usage": usage}


def message(searches: int | None, **usage: int) -> dict[str, Any]:
    report = {"input_tokens": 100, "output_tokens": 10, **({"server_tool_use": {"web_search_requests": searches}} if searches is not None else {})}
    content = [*[SEARCHED] * (searches or 0), {"type": "text", "text": "a"}]
    return {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "c",
        "content": content,
        "stop_reason": "end_turn",
        "usage": {**report, **usage},
    }


async def ask(bench: Bench, **fields: Any) -> Reply:
    """`/v1/responses`."""
    body = {"model": "searching", "input": "hi", "max_output_tokens": 20, "tools": [{"type": "web_search"}], **fields}
    return await bench.raw(request(json.dumps(body).encode(), path="/v1/responses"))


async def say(bench: Bench, *tools: Any, **fields: Any) -> Reply:
    """`/v1/messages`."""
    body = {"model": "claude", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 20, "tools": [*tools], **fields}
    return await bench.raw(request(json.dumps(body).encode(), path="/v1/messages"))


async def spent(bench: Bench) -> int:
    await bench.quiet()
    return round((await bench.usage())["key key usd/day"]["used"] * 1e9)


def told(reply: Reply) -> tuple[int, str, str | None]:
    return (reply.status, reply.code, reply.error.get("param")) if reply.status != 200 else (200, "200", None)


TOKENS = 100 * 1000 + 10 * 2000


@STREAM
async def test_searches_are_held_by_their_bound_and_charged_as_they_were(tmp_path: Path, stream: bool) -> None:
    """Three could have been made, two were; a page that was opened costs nothing."""
    async with gateway(tmp_path, "$1/day") as (bench, upstream):
        upstream.answer = response(SEARCH_CALL, OPENED, SEARCH_CALL)
        assert (await ask(bench, max_tool_calls=3, stream=stream)).status == 200
        assert await spent(bench) == TOKENS + 2 * FEE_NANO_USD
        upstream.answer = message(2)
        assert (await say(bench, {**WEB_SEARCH, "max_uses": 3}, stream=stream)).status == 200
        assert await spent(bench) == 2 * (TOKENS + 2 * FEE_NANO_USD)
        upstream.answer = response()
        assert (await ask(bench, max_tool_calls=3, stream=stream)).status == 200
        assert await spent(bench) == 3 * TOKENS + 4 * FEE_NANO_USD


async def test_what_the_searches_could_cost_must_be_there(tmp_path: Path) -> None:
    """The input once more with each, and the fee of each; two of them fit, three do not, and nothing is held afterwards."""
    fits = 3 * 1000 * 1000 + 2 * FEE_NANO_USD + 20 * 2000
    async with gateway(tmp_path, f"${fits / 1e9:.9f}/day") as (bench, upstream):
        upstream.answer = response()
        assert told(await ask(bench, max_tool_calls=3)) == (400, "request_too_large", None)
        assert told(await ask(bench, max_tool_calls=2)) == (200, "200", None)
        assert (await bench.usage())["key key usd/day"]["held"] == 0


async def test_what_nobody_bounds_or_has_a_price_for_is_refused_under_a_dollar_limit(tmp_path: Path) -> None:
    """With the field; under no such limit it is served, and where the context is not known that is what is told."""
    async with gateway(tmp_path, "$1/day") as (bench, upstream):
        assert told(await ask(bench)) == (400, "unbounded_tool_calls", "tools[0].type")
        assert told(await say(bench, WEB_SEARCH)) == (400, "unbounded_tool_calls", "tools[0].type")
        tools = [{"type": "file_search", "vector_store_ids": ["v"]}]
        assert told(await ask(bench, tools=tools, max_tool_calls=1)) == (400, "tool_price_unknown", "tools[0].type")
        large = [{"type": "code_interpreter", "container": {"type": "auto", "memory_limit": "64g"}}]
        assert told(await ask(bench, tools=large, max_tool_calls=1)) == (400, "tool_price_unknown", "tools[0].type")
        assert upstream.asked == []
    async with gateway(tmp_path / "tokens", "100k tokens/day") as (bench, upstream):
        upstream.answer = response()
        assert told(await ask(bench)) == (200, "200", None)
    async with gateway(tmp_path / "context", "$1/day", deployment="") as (bench, _):
        assert told(await ask(bench)) == (400, "unbounded_input", "tools[0].type")


async def test_what_the_operator_allows_is_held_and_sent(tmp_path: Path) -> None:
    """A request that says nothing has that bound, upstream too."""
    async with gateway(tmp_path, "$1/day", deployment=", context: 1000, tool_calls: 2") as (bench, upstream):
        upstream.answer = response(SEARCH_CALL)
        assert told(await ask(bench)) == (200, "200", None)
        upstream.answer = message(1)
        assert told(await say(bench, WEB_SEARCH)) == (200, "200", None)
        assert await spent(bench) == 2 * (TOKENS + FEE_NANO_USD)
        assert upstream.asked[0]["max_tool_calls"] == 2
        assert upstream.asked[1]["tools"] == [{**WEB_SEARCH, "max_uses": 2}]


async def test_an_answer_that_breaks_off_is_charged_all_that_it_may_have_called(tmp_path: Path) -> None:
    """Nobody has said how much of it was used."""
    async with gateway(tmp_path, "$1/day") as (bench, upstream):
        upstream.answer, upstream.breaks = response(SEARCH_CALL), True
        assert (await ask(bench, max_tool_calls=3)).status != 200
        assert await spent(bench) == 4 * 1000 * 1000 + 3 * FEE_NANO_USD + 20 * 2000


def events(*told: dict[str, Any]) -> bytes:
    return b"".join(b"event: %b\ndata: %b\n\n" % (one["type"].encode(), json.dumps(one).encode()) for one in told)


START = {"type": "message_start", "message": {**message(None, input_tokens=10, output_tokens=1), "content": []}}
TEXT = (
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}},
)
STOP = {"type": "message_stop"}
HELD = 10 * 1000 * 1000 + 3 * FEE_NANO_USD  # three searches, in ten rounds at the most, at a model that can read 1,000 tokens


def ended(usage: Any) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": usage}


WHOLE = {"input_tokens": 300, "output_tokens": 10, "server_tool_use": {"web_search_requests": 2}}


@pytest.mark.parametrize("last", [{}, None, {"output_tokens": 10}, {"server_tool_use": {"web_search_requests": 0}}], ids=str)
async def test_the_input_that_is_told_first_is_not_what_searches_make_of_it(tmp_path: Path, last: Any) -> None:
    """Where the end does not tell it again, input and fees are charged as they were held; where it does, as told."""
    async with gateway(tmp_path, "$1/day") as (bench, upstream):
        upstream.answer = events(START, *TEXT, ended(last), STOP)
        assert (await say(bench, {**WEB_SEARCH, "max_uses": 3}, stream=True)).status == 200
        assert await spent(bench) >= HELD
        assert bench.record.input_tokens == 10_000
        upstream.answer = events(START, *TEXT, ended(WHOLE), STOP)
        before = await spent(bench)
        assert (await say(bench, {**WEB_SEARCH, "max_uses": 3}, stream=True)).status == 200
        assert await spent(bench) == before + 300 * 1000 + 10 * 2000 + 2 * FEE_NANO_USD


@pytest.mark.parametrize("limit", ["$1/day", "100k tokens/day"])
@pytest.mark.parametrize("how", ["breaks", "leaves"])
async def test_a_stream_that_ends_before_its_last_report_is_charged_what_was_held(tmp_path: Path, how: str, limit: str) -> None:
    """The upstream closes, or the client does: what the start has told of the input gives nothing back."""
    async with gateway(tmp_path, limit) as (bench, upstream):
        upstream.answer = events(START, *TEXT)
        upstream.breaks, upstream.hangs = how == "breaks", how == "leaves"
        asked = {"model": "claude", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 20, "stream": True}
        connection = await bench.connect()
        connection.send(request(json.dumps({**asked, "tools": [{**WEB_SEARCH, "max_uses": 3}]}).encode(), path="/v1/messages"))
        await connection.until(b"text_delta")
        if how == "leaves":
            await bench.left(connection)
            for trip in bench.worker.gateway.trips:
                for attempt in (trip.standing, trip.answered):
                    if attempt is not None:
                        attempt.close()  # as it is after READ_ON_S
        await bench.quiet()
        assert bench.record.input_tokens == 10_000
        assert limit != "$1/day" or await spent(bench) >= HELD


async def test_output_behind_a_report_makes_it_none_of_the_answer(tmp_path: Path) -> None:
    """A first chunk with usage and a last one without: what came between was read again, as far as anybody knows."""
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "s"}
    told = [{**chunk, "choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": end}]} for end in (None, None, "stop")]
    told[0]["usage"] = {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}
    async with gateway(tmp_path, "$1/day") as (bench, upstream):
        upstream.answer = b"".join(b"data: %b\n\n" % json.dumps(one).encode() for one in told) + b"data: [DONE]\n\n"
        body = {"model": "searching", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 20, "stream": True}
        assert (await bench.raw(request(json.dumps({**body, "web_search_options": {}}).encode()))).status == 200
        assert await spent(bench) >= 1000 * 1000 + FEE_NANO_USD + 3 * 2000
        assert (await bench.raw(request(json.dumps(body).encode()))).status == 200
        assert (bench.record.input_tokens, bench.record.output_tokens >= 3) == (5, True)


@STREAM
@pytest.mark.parametrize("count", [-5, 10**12, 10**30, None, [1], "2"], ids=str)
async def test_a_count_of_searches_that_cannot_be_read_costs_all_that_were_held(tmp_path: Path, count: Any, stream: bool) -> None:
    """It is not none."""
    async with gateway(tmp_path, "$1/day") as (bench, upstream):
        usage: Any = {"server_tool_use": {"web_search_requests": count}}
        upstream.answer = message(None, **usage)
        assert (await say(bench, {**WEB_SEARCH, "max_uses": 3}, stream=stream)).status == 200
        assert await spent(bench) == TOKENS + 3 * FEE_NANO_USD


@STREAM
async def test_more_searches_than_were_allowed_are_charged(tmp_path: Path, stream: bool) -> None:
    """They are what is billed; so is one that does nobody knows what."""
    async with gateway(tmp_path, "$1/day") as (bench, upstream):
        upstream.answer = message(5)
        assert (await say(bench, {**WEB_SEARCH, "max_uses": 3}, stream=stream)).status == 200
        assert await spent(bench) == TOKENS + 5 * FEE_NANO_USD
        upstream.answer = response({**SEARCH_CALL, "action": {"type": "banana"}})
        assert (await ask(bench, max_tool_calls=3, stream=stream)).status == 200
        assert await spent(bench) == 2 * TOKENS + 6 * FEE_NANO_USD


async def test_a_stored_prompt_may_bring_tools_of_any_kind(tmp_path: Path) -> None:
    """Under a dollar limit their calls must be bounded and have prices: the dearest is held, and what the answer tells is charged."""
    stored = {"prompt": {"id": "pmpt_1"}, "tools": []}
    async with gateway(tmp_path, "$1/day") as (bench, upstream):
        assert told(await ask(bench, **stored)) == (400, "unbounded_tool_calls", "prompt")
        upstream.answer = response(SEARCH_CALL)
        assert told(await ask(bench, **stored, max_tool_calls=2)) == (200, "200", None)
        assert await spent(bench) == TOKENS + FEE_NANO_USD
        upstream.breaks = True
        assert (await ask(bench, **stored, max_tool_calls=2)).status != 200
        assert await spent(bench) == TOKENS + FEE_NANO_USD + 3 * 1000 * 1000 + 2 * 3 * FEE_NANO_USD + 20 * 2000
        assert told(await say(bench, container={"skills": []})) == (400, "tool_price_unknown", "container")
    async with gateway(tmp_path / "unpriced", "$1/day", price="{input: 1, output: 2}") as (bench, _):
        assert told(await ask(bench, **stored, max_tool_calls=2)) == (400, "tool_price_unknown", "prompt")
    async with gateway(tmp_path / "operator", "$1/day", deployment=", context: 1000, tool_calls: 2") as (bench, upstream):
        upstream.answer = response()
        assert told(await ask(bench, **stored)) == (200, "200", None)
        assert upstream.asked[0]["max_tool_calls"] == 2
    async with gateway(tmp_path / "tokens", "100k tokens/day") as (bench, upstream):
        upstream.answer = response()
        assert told(await ask(bench, **stored)) == (200, "200", None)


CACHED = "{input: 1, output: 2, cached_input: 0.1, cache_write: 1.25, cache_write_1h: 2}"
MARK = {"type": "ephemeral"}


@pytest.mark.parametrize(("fields", "rate"), [({}, 1000), ({"cache_control": MARK}, 1250), ({"cache_control": {**MARK, "ttl": "1h"}}, 2000)])
async def test_what_is_not_marked_for_the_cache_is_held_at_the_inputs_own_rate(tmp_path: Path, fields: dict[str, Any], rate: int) -> None:
    """A budget that is just large enough for that rate is enough, and one that is a little smaller is not."""
    text = "a" * 1000
    held = (1000 + 7) * rate + 10 * 2000  # a token per byte, and the frame of a message
    for budget, code in ((held, "200"), (held - 1, "request_too_large")):
        directory = tmp_path / code[:1]
        directory.mkdir()
        async with gateway(directory, f"${budget / 1e9:.9f}/day", price=CACHED) as (bench, upstream):
            upstream.answer = message(None)
            reply = await say(bench, messages=[{"role": "user", "content": text}], tools=[], max_tokens=10, **fields)
            assert told(reply)[1] == code


async def test_writes_that_were_marked_are_charged_as_reported(tmp_path: Path) -> None:
    """And what nobody reports, at the rate that was held."""
    async with gateway(tmp_path, "$1/day", price=CACHED) as (bench, upstream):
        upstream.answer = message(None, cache_creation_input_tokens=400)
        assert (await say(bench, tools=[], cache_control=MARK)).status == 200
        assert await spent(bench) == 100 * 1000 + 400 * 1250 + 10 * 2000
        upstream.breaks = True
        assert (await say(bench, tools=[])).status != 200
        assert await spent(bench) == 100 * 1000 + 400 * 1250 + 10 * 2000 + (2 + 7) * 1000 + 20 * 2000
