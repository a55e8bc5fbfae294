"""Cases of cases.md over `/v1/responses`: the same limits, the same arithmetic, with the provider's own count as the truth; at a provider that speaks
the same dialect (model `chat`), at one that speaks OpenAI chat (`other`) and at Anthropic's (`claude`)."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from support_inloop import Bench, Connection, Reply, request, running, sse
from support_sockets import read_request, scripted

PRICE = "price: {input: 0.5, output: 1.0}"
MODELS = f"""
  other: {{deployments: [{{provider: compatible, model: mock-other, {PRICE}}}]}}
  claude: {{deployments: [{{provider: anthropic, model: claude, {PRICE}}}]}}
  known: {{deployments: [{{provider: mock, model: mock-known, context: 500, {PRICE}}}]}}
  either:
    deployments:
      - {{provider: compatible, model: mock-other, {PRICE}}}
      - {{provider: mock, model: mock-chat, {PRICE}}}"""
ALL = pytest.mark.parametrize("model", ["chat", "other", "claude"])
EXTEND = pytest.mark.parametrize("extend", [False, True], ids=["capped", "extended"])
STREAM = pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
FIXED = "budget: {estimator: fixed, fixed_output: 40}"
WEATHER = {"type": "function", "name": "weather", "description": "Of a city", "parameters": {"type": "object", "properties": {}}}


def bench(directory: Path, extend: bool = False, **options: Any) -> Any:
    """A gateway in front of one mock, known as three providers."""
    on = "on" if extend else "off"
    providers = f"""
  compatible: {{provider: openai_compatible, base_url: BASE_URL, extend: {on}, stops_on_close: {on}, tokenizer: o200k_base}}
  anthropic: {{provider: anthropic, base_url: BASE_URL, api_key: sk-a, extend: {on}, stops_on_close: {on}, tokenizer: o200k_base}}"""
    return running(directory, extend=extend, providers=providers, models=MODELS, **options)


def body(model: str = "chat", key: str = "sk-key", **fields: Any) -> bytes:
    asked = {"model": model, "input": "Tell me", "max_output_tokens": 64, "user": key, **fields}
    return json.dumps({name: value for name, value in asked.items() if value is not ...}).encode()


async def ask(bench: Bench, model: str = "chat", key: str = "sk-key", **fields: Any) -> Reply:
    return await bench.raw(request(body(model, key, **fields), key, path="/v1/responses"))


async def opened(bench: Bench, model: str, **fields: Any) -> Connection:
    connection = await bench.connect()
    connection.send(request(body(model, stream=True, **fields), path="/v1/responses"))
    return connection


def kinds(reply: Reply) -> list[str]:
    return [event["type"].removeprefix("response.") for event in reply.events]


def final(reply: Reply) -> Any:
    """The response, whole."""
    return reply.events[-1]["response"] if "event-stream" in reply.headers["content-type"] else reply.json


def text(response: Any) -> str:
    return "".join(part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"])


# -- counting -----------------------------------------------------------------------------------------------------------------------------


@STREAM
@EXTEND
@ALL
async def test_case_27_responses_count(tmp_path: Path, model: str, extend: bool, stream: bool) -> None:
    """A budget is spent over responses as over chats, and the provider has produced no more (cases 4, 60)."""
    async with bench(tmp_path, extend, limits="[130 tokens/day]", options={"completion": 30}) as b:
        replies = [await ask(b, model, stream=stream, max_output_tokens=30) for _ in range(6)]
        assert replies[0].code == "200" and replies[-1].code == "budget_exceeded"
        assert b.total <= 130
        assert (await b.chat(max_tokens=30)).code == "budget_exceeded"


@STREAM
@ALL
async def test_case_65_one_record_and_one_charge(tmp_path: Path, model: str, stream: bool) -> None:
    """With the usage that was reported, cached tokens and all, at the price of the deployment (cases 49, 62)."""
    options = {"completion": 12, "prompt": 30, "cached": 10}
    async with bench(tmp_path, limits="[1000 tokens/day]", options=options) as b:
        usage = final(await ask(b, model, stream=stream))["usage"]
        assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (30, 12, 42)
        assert usage["input_tokens_details"]["cached_tokens"] == 10
        assert len(b.records) == 1
        assert (b.record.input_tokens, b.record.output_tokens, b.record.source, b.record.dialect) == (30, 12, "reported", "openai_responses")
        assert b.record.cost_nano_usd == 30 * 500 + 12 * 1000


@pytest.mark.parametrize("tools", [[], [{"name": "weather", "arguments": {"city": "Paris"}}]], ids=["text", "calls"])
@pytest.mark.parametrize("reasoning", ["visible", "both"])
@ALL
async def test_all_that_is_billed_is_metered(tmp_path: Path, model: str, reasoning: str, tools: list[Any]) -> None:
    """Reasoning, its summary, text, names and arguments of calls: without a report an extended stream is charged at least what it was, and one whose
    calls may come whole all that was held."""
    options = {"completion": 40, "reasoning": reasoning, "usage": "none", "tools": tools or ""}
    async with bench(tmp_path, extend=True, limits="[3000 tokens/day]", options=options) as b:
        b.slack = 1500  # a deployment that has not been seen before is held at its bound
        reply = await ask(b, model, stream=True, max_output_tokens=500, **({"tools": [WEATHER]} if tools else {}))
        assert reply.code == "200" and kinds(reply)[-1] == "completed"
        assert b.record.source == ("held" if tools and model != "chat" else "counted")


@STREAM
@ALL
async def test_case_10_a_cap_is_lowered_to_what_the_budget_covers(tmp_path: Path, model: str, stream: bool) -> None:
    """Sent in the provider's own field, told by a header, and the response is incomplete for that."""
    async with bench(tmp_path, limits="[60 tokens/day]", options={"completion": 500}) as b:
        b.whole = model != "claude"  # which may put a text of its own before the model
        reply = await ask(b, model, stream=stream, max_output_tokens=...)
        assert int(reply.headers["x-sluicegate-max-tokens"]) < 60
        response = final(reply)
        assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        assert b.record.finish == "length"
        assert b.total <= 60
        sent = json.loads(b.mock.calls[-1].body)
        field = {"chat": "max_output_tokens", "other": "max_tokens", "claude": "max_tokens"}[model]
        assert sent[field] == int(reply.headers["x-sluicegate-max-tokens"])


# -- a budget that ends under a stream ----------------------------------------------------------------------------------------------------


@ALL
async def test_case_107_a_stream_is_cut_in_its_own_words(tmp_path: Path, model: str) -> None:
    """Every item that was begun ends, then the response as incomplete, with the output and the usage so far; truth is within the limit."""
    async with bench(tmp_path, extend=True, limits="[1000 tokens/day]", options={"ttft": 5, "completion": 900, "tpot": 3}, more=FIXED) as b:
        b.slack = 900  # a delta, and what it produces in 100 ms, as fast as it was seen to come: on a machine that stalls, all of it
        with b.held():
            connection = await opened(b, model, max_output_tokens=900)
            await b.asked(1)
            b.mock.fault(count=1, completion=700, tpot=0)
            other = asyncio.create_task(b.chat(max_tokens=700))
            await b.asked(2)
        reply = await connection.rest()
        await other
        assert kinds(reply)[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
        assert kinds(reply)[-4:] == ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
        assert [event["sequence_number"] for event in reply.events] == list(range(len(reply.events)))
        response = final(reply)
        assert (response["sluicegate"], response["incomplete_details"]) == ({"truncated": "budget"}, {"reason": "max_output_tokens"})
        assert text(response) == "".join(event["delta"] for event in reply.events if event["type"] == "response.output_text.delta")
        assert len({event["response"]["id"] for event in reply.events if "response" in event}) == 1
        cut = next(record for record in b.records if record.truncated == "budget")
        assert response["usage"]["output_tokens"] == cut.output_tokens
        assert reply.clean and b.total <= 1000


def all_at_once(where: str) -> bytes:
    """A stream whose text no delta tells: it stands in the end of its part, of its item, or of the response."""
    part = {"type": "output_text", "text": "word " * 3000, "annotations": []}
    item = {"id": "msg_1", "type": "message", "status": "completed", "role": "assistant", "content": [part]}
    response = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": "in_progress", "output": []}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": response},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": []}},
        {"type": "response.output_text.done", "output_index": 0, "content_index": 0, "item_id": "msg_1", "text": part["text"]},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": {**response, "status": "completed", "output": [item]}},
    ]
    told = [event for event in events if event["type"] in ("response.created", "response.completed") or where in event["type"] or where == "text"]
    return sse(*({**event, "sequence_number": number} for number, event in enumerate(told)))


@EXTEND
@pytest.mark.parametrize("where", ["text", "output_item", "completed"])
async def test_case_108_what_comes_at_once_is_metered_before_it_is_passed_on(tmp_path: Path, where: str, extend: bool) -> None:
    """Thousands of tokens from an upstream that was allowed 150: nothing of them is delivered, what was produced is charged."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n" + all_at_once(where))
        await writer.drain()

    async with scripted(script) as port, bench(tmp_path, extend, upstream=port, limits="[200 tokens/day]") as b:
        b.whole = False  # such an upstream keeps to no limit
        reply = await ask(b, stream=True, max_output_tokens=150)
        assert kinds(reply)[-1] == "incomplete" and b"word" not in reply.body
        assert final(reply)["sluicegate"] == {"truncated": "budget"}
        assert b.record.output_tokens >= 3000


# -- faults -------------------------------------------------------------------------------------------------------------------------------


@ALL
async def test_case_39_a_stream_that_breaks_is_an_error(tmp_path: Path, model: str) -> None:
    """An error event and a failed response, no end, a connection that does not close as clean (cases 38, 74)."""
    async with bench(tmp_path, limits="[1000 tokens/day]", options={"completion": 40, "cut_after": 5, "cut": "rst"}) as b:
        b.slack = 800
        reply = await ask(b, model, stream=True)
        assert kinds(reply)[-2:] == ["error", "failed"] and not reply.clean
        error, failed = reply.events[-2:]
        assert (error["error"]["code"], failed["response"]["status"]) == ("upstream_error", "failed")


@pytest.mark.parametrize("fault", [{"status": 500}, {"status": 429}, {"error_in_200": 503}, {"html": True}], ids=lambda fault: next(iter(fault)))
@STREAM
async def test_case_84_before_the_first_output_another_deployment_answers(tmp_path: Path, fault: dict[str, Any], stream: bool) -> None:
    """Whichever dialect it speaks; where there is none, the status and a JSON body (cases 36, 37, 41)."""
    async with bench(tmp_path, limits="[3000 tokens/day]", options={"completion": 5}) as b:
        b.slack = 300
        b.mock.fault(count=1, model="mock-other", **fault)
        assert (await ask(b, "either", stream=stream)).code == "200"
        assert [attempt.deployment for attempt in b.record.attempts] == ["compatible/mock-other", "mock/mock-chat"]
        b.mock.fault(count=1, model="mock-chat", **fault)
        reply = await ask(b, stream=stream)
        assert reply.status >= 400 and reply.json["error"]["message"]


async def test_case_112_a_stream_without_its_end_is_not_complete(tmp_path: Path) -> None:
    """There is no usage before the last event of this dialect: without it nobody knows whether there was more."""
    async with bench(tmp_path, limits="[1000 tokens/day]", options={"completion": 9, "done": False}) as b:
        b.slack = 64
        reply = await ask(b, stream=True)
        assert kinds(reply)[-1] == "failed"
        assert b.record.output_tokens == 64


# -- what cannot be bounded, or said ------------------------------------------------------------------------------------------------------

ELSEWHERE: list[tuple[dict[str, Any], str]] = [
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "file_1"}]}]}, "input[0].content[0]"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
]


@pytest.mark.parametrize(("fields", "param"), ELSEWHERE, ids=["response", "conversation", "file", "search"])
async def test_case_128_content_that_is_not_in_the_request(tmp_path: Path, fields: dict[str, Any], param: str) -> None:
    """Held at the context of the model; where that is not known a 400 that names the field, and another provider is not asked to guess."""
    async with bench(tmp_path, limits="[2000 tokens/day]", options={"completion": 5, "prompt": 400}) as b:
        refused = await ask(b, **fields)
        assert (refused.status, refused.code, refused.error["param"]) == (400, "unbounded_input", param)
        assert b.total == 0
        assert (await ask(b, "known", **fields)).code == "200"
        assert b.record.input_tokens == 400
        b.mocked(completion=5, usage="none", prompt=400)
        b.slack = 200
        await ask(b, "known", **fields)
        assert b.record.input_tokens == 500  # nobody has said how much it was


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"store": True}, "store"), ({"tools": [{"type": "custom", "name": "sh"}]}, "tools[0].type"), ({"top_logprobs": 2}, "top_logprobs")],
    ids=["store", "custom", "logprobs"],
)
async def test_what_one_deployment_cannot_be_asked_another_can(tmp_path: Path, fields: dict[str, Any], param: str) -> None:
    """It is passed over; if it is the only one, the client is told the field, and nothing is charged."""
    async with bench(tmp_path, limits="[2000 tokens/day]", options={"completion": 5}) as b:
        refused = await ask(b, "other", **fields)
        assert (refused.status, refused.error["param"], b.total) == (400, param, 0)
        assert (await ask(b, "either", **fields)).code == "200"
        assert b.record.deployment == "mock/mock-chat"


@pytest.mark.parametrize(
    ("fields", "param"), [({"background": True}, "background"), ({"max_output_tokens": 0}, "max_output_tokens"), ({"n": 3}, "n")]
)
async def test_requests_that_are_refused(tmp_path: Path, fields: dict[str, Any], param: str) -> None:
    """A 400 that names the field, whatever the limits (cases 12, 92, 105)."""
    async with bench(tmp_path, limits="[2000 tokens/day]") as b:
        refused = await ask(b, **fields)
        assert (refused.status, refused.error["param"], refused.error["type"]) == (400, param, "invalid_request_error")
        assert b.total == 0


# -- an agent -----------------------------------------------------------------------------------------------------------------------------


@STREAM
@ALL
async def test_an_agents_loop(tmp_path: Path, model: str, stream: bool) -> None:
    """Reasoning, two calls at once, their results, an answer: the items of each answer go back as they came, also to a provider that takes its
    thinking back only with its signature (cases 67, 70, 72)."""
    calls = [{"name": "weather", "arguments": {"city": "Paris"}}, {"name": "weather", "arguments": {}}]
    options = {"tools": calls, "completion": 12, "reasoning": "visible", "reasoning_tokens": 4}
    async with bench(tmp_path, limits="[9000 tokens/day]", options=options) as b:
        b.slack = 600
        given: list[Any] = [{"role": "user", "content": "How is the weather?"}]
        first = final(await ask(b, model, stream=stream, input=given, tools=[WEATHER], instructions="Be kind.", max_output_tokens=200))
        called = [item for item in first["output"] if item["type"] == "function_call"]
        assert [json.loads(item["arguments"]) for item in called] == [{"city": "Paris"}, {}]
        assert len({item["call_id"] for item in called}) == 2
        assert first["output"][0]["type"] == "reasoning"
        results = [{"type": "function_call_output", "call_id": item["call_id"], "output": "fine"} for item in called]
        again = [*given, *first["output"], *results]
        reply = await ask(b, model, stream=stream, input=again, tools=[WEATHER], instructions="Be kind.", max_output_tokens=200)
        assert reply.status == 200, reply.body
        assert final(reply)["status"] == "completed" and text(final(reply))
        if model == "claude":
            sent = json.loads(b.mock.calls[-1].body)["messages"]
            assert sent[1]["content"][0]["signature"] and [block["type"] for block in sent[2]["content"]] == ["tool_result"] * 2
