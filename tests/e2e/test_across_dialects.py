"""One chat request, providers of every dialect: the same answer from each, the next one where one fails or cannot be asked, one budget over all.

The mock speaks each provider's dialect with the same truth, and is as strict as they are. `gpt` is a model at an OpenAI-compatible provider, `claude`
one at Anthropic, `llama` one at Ollama; routes of two are named after their order.
"""

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest

from support_inloop import Bench, Connection, Reply, request, running

MODELS = (
    """
  gpt: {deployments: [GPT]}
  claude: {deployments: [CLAUDE]}
  llama: {deployments: [LLAMA]}
  gpt_claude: {deployments: [GPT, CLAUDE]}
  claude_gpt: {deployments: [CLAUDE, GPT]}
  llama_gpt: {deployments: [LLAMA, GPT]}
  gpt_llama: {deployments: [GPT, LLAMA]}
  claude_openai: {deployments: [CLAUDE, {provider: openai, model: gpt-4o, price: {input: 0.5, output: 1.0}}]}
  claude_claude: {deployments: [CLAUDE, {provider: anthropic, model: two, price: {input: 0.5, output: 1.0}}]}""".replace(
        "GPT", "{provider: mock, model: gpt, price: {input: 0.5, output: 1.0}}"
    )
    .replace("CLAUDE", "{provider: anthropic, model: claude, price: {input: 0.5, output: 1.0}}")
    .replace("LLAMA", "{provider: ollama, model: llama, price: {input: 0.5, output: 1.0}}")
)
ROUTES = pytest.mark.parametrize("model", ["gpt", "claude", "llama"])
STREAM = pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "Of a city", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
LONG = [{"name": "weather", "arguments": {"city": "x" * 400}}]
CALLS = [{"name": "weather", "arguments": {"city": "Paris"}}, {"name": "weather", "arguments": {"city": "Rome"}}]


def bench(directory: Path, extend: bool = False, **settings: Any) -> Any:
    """A gateway in front of one mock, which is known as a provider of each dialect."""
    on = "on" if extend else "off"
    common = f"extend: {on}, stops_on_close: {on}, tokenizer: o200k_base"
    providers = f"""
  anthropic: {{provider: anthropic, base_url: BASE_URL, api_key: sk-a, {common}}}
  openai: {{provider: openai, base_url: BASE_URL, api_key: sk-o}}
  ollama: {{provider: ollama, base_url: ROOT_URL, {common}}}"""
    return running(directory, extend=extend, providers=providers, models=MODELS, **settings)


async def streamed(b: Bench, **fields: Any) -> Reply:
    return await b.chat(stream=True, stream_options={"include_usage": True}, max_tokens=fields.pop("max_tokens", 200), **fields)


async def answered(b: Bench, stream: bool, **fields: Any) -> tuple[Any, str, Any]:
    """Message, finish reason and usage of an answer, whole or put together as clients do it."""
    if not stream:
        reply = await b.chat(**{"max_tokens": 200, **fields})
        assert reply.status == 200, reply.body
        choice = reply.json["choices"][0]
        return choice["message"], choice["finish_reason"], reply.json["usage"]
    reply = await streamed(b, **fields)
    assert reply.status == 200 and reply.clean and reply.done, reply.body
    return put_together(reply), reply.finishes[0], reply.events[-1]["usage"]


def put_together(reply: Reply) -> dict[str, Any]:
    """The message that a stream of one choice says."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    calls: list[dict[str, Any]] = []
    for delta in [choice["delta"] for choice in reply.choices]:
        message["content"] += delta.get("content") or ""
        if "reasoning_content" in delta:
            message["reasoning_content"] = message.get("reasoning_content", "") + delta["reasoning_content"]
        if "reasoning_details" in delta:
            message["reasoning_details"] = [*message.get("reasoning_details", []), *delta["reasoning_details"]]
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                assert call["index"] == len(calls)
                calls.append({"id": call["id"], "type": call["type"], "function": dict(call["function"])})
            else:
                calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return message | ({"tool_calls": calls} if calls else {})


def called(message: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in message["tool_calls"]]


# -- the same answer from each ------------------------------------------------------------------------------------------------------------


@STREAM
async def test_the_same_answer_whichever_provider_gives_it(tmp_path: Path, stream: bool) -> None:
    """Text, finish reason, usage and cost of one request are the same from a provider that is passed through and from one that is translated."""
    async with bench(tmp_path, limits="[9000 tokens/day]", options={"completion": 24, "prompt": 30, "cached": 10}) as b:
        b.whole = False  # the prompt is not what it is said to be
        answers = [await answered(b, stream, model=model) for model in ("gpt", "claude", "llama")]
        for message, finish, usage in answers:
            assert (message["content"], finish) == (answers[0][0]["content"], "stop")
            assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (30, 24, 54)
        assert [answer[2]["prompt_tokens_details"]["cached_tokens"] for answer in answers[:2]] == [10, 10]
        assert [record.deployment for record in b.records] == ["mock/gpt", "anthropic/claude", "ollama/llama"]
        assert [record.source for record in b.records] == ["reported"] * 3
        assert len({record.cost_nano_usd for record in b.records}) == 1


@STREAM
@ROUTES
async def test_an_agents_loop(tmp_path: Path, model: str, stream: bool) -> None:
    """Thinking, two calls at once, their results, an answer: at a provider that takes its thinking back only as it was, signature included."""
    options = {"tools": CALLS, "completion": 12, "reasoning": "visible", "reasoning_tokens": 4}
    async with bench(tmp_path, limits="[9000 tokens/day]", options=options) as b:
        messages: list[dict[str, Any]] = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "How is the weather?"}]
        message, finish, _ = await answered(b, stream, model=model, messages=messages, tools=[WEATHER])
        assert finish == "tool_calls"
        assert called(message) == [("weather", {"city": "Paris"}), ("weather", {"city": "Rome"})]
        assert len({call["id"] for call in message["tool_calls"]}) == 2
        assert message["reasoning_content"]
        results = [{"role": "tool", "tool_call_id": call["id"], "content": "fine"} for call in message["tool_calls"]]
        message, finish, _ = await answered(b, stream, model=model, messages=[*messages, message, *results], tools=[WEATHER])
        assert (finish, bool(message["content"])) == ("stop", True)
        if model == "claude":
            sent = json.loads(b.mock.calls[-1].body)
            assert sent["messages"][1]["content"][0].keys() == {"type", "thinking", "signature"}
            assert [block["type"] for block in sent["messages"][2]["content"]] == ["tool_result", "tool_result"]


@STREAM
async def test_case_75_a_call_that_the_cap_cuts(tmp_path: Path, stream: bool) -> None:
    """Ends with `length`, and in a stream its arguments come as far as they were written; a whole answer of Anthropic's has no place for that."""
    async with bench(tmp_path, limits="[9000 tokens/day]", options={"tools": LONG, "completion": 2}) as b:
        message, finish, _ = await answered(b, stream, model="claude", tools=[WEATHER], max_tokens=20)
        assert finish == "length"
        assert message["tool_calls"][0]["function"]["arguments"].startswith('{"city":"xx' if stream else "{}")


async def test_case_71_marks_of_a_cache_go_to_anthropic_alone(tmp_path: Path) -> None:
    """As they came, with their ttl; a provider that is passed through gets what the client sent."""
    mark = {"type": "ephemeral", "ttl": "1h"}
    asked = {
        "messages": [{"role": "system", "content": "S", "cache_control": mark}, {"role": "user", "content": "U"}],
        "tools": [{**WEATHER, "cache_control": mark}],
    }
    async with bench(tmp_path, limits="[9000 tokens/day]", options={"completion": 2}) as b:
        assert (await b.chat(model="claude", **asked)).status == 200
        sent = json.loads(b.mock.calls[-1].body)
        assert sent["system"] == [{"type": "text", "text": "S", "cache_control": mark}]
        assert sent["tools"][0]["cache_control"] == mark


async def test_case_73_images_by_data_and_by_url(tmp_path: Path) -> None:
    """With the media type that they have."""
    png = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"\0" * 40).decode()
    parts = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{png}"}},
        {"type": "image_url", "image_url": {"url": "https://example.test/a.jpg"}},
    ]
    async with bench(tmp_path, limits="[90000 tokens/day]", options={"completion": 2}) as b:
        assert (await b.chat(model="claude", messages=[{"role": "user", "content": parts}])).status == 200
        _, first, second = json.loads(b.mock.calls[-1].body)["messages"][0]["content"]
        assert first["source"] == {"type": "base64", "media_type": "image/png", "data": png}
        assert second["source"] == {"type": "url", "url": "https://example.test/a.jpg"}


async def test_what_is_left_out_is_named(tmp_path: Path) -> None:
    """In a header, at the provider that has no place for it."""
    async with bench(tmp_path, limits="[9000 tokens/day]", options={"completion": 2}) as b:
        reply = await b.chat(model="claude", seed=5, logit_bias={"7": 1}, max_tokens=9)
        assert set(reply.headers["x-sluicegate-left-out"].split(",")) == {"seed", "logit_bias"}
        assert "x-sluicegate-left-out" not in (await b.chat(model="gpt", seed=5, max_tokens=9)).headers


# -- the next one -------------------------------------------------------------------------------------------------------------------------


FAULTS: list[dict[str, Any]] = [{"status": 529}, {"status": 429}, {"cut_after": 0}, {"error_in_200": 503}, {"html": True}]
NEXT = [("gpt_claude", "anthropic/claude"), ("claude_gpt", "mock/gpt"), ("gpt_llama", "ollama/llama"), ("llama_gpt", "mock/gpt")]
FAILED = [(*route, {"status": 500}) for route in NEXT] + [(*route, fault) for route in NEXT[:2] for fault in FAULTS]


@STREAM
@pytest.mark.parametrize(("model", "served", "fault"), FAILED, ids=[f"{model}-{next(iter(fault))}" for model, _, fault in FAILED])
async def test_the_next_deployment_of_another_dialect(tmp_path: Path, model: str, served: str, fault: dict[str, Any], stream: bool) -> None:
    """Before the first output a route goes on, whatever the two speak, tools included."""
    first = model.partition("_")[0]
    async with bench(tmp_path, limits="[9000 tokens/day]", options={"tools": CALLS}) as b:
        b.slack = 1200  # the attempt that broke may have been billed, and what Anthropic may put before the model itself
        b.mock.fault(count=1, model=first, **fault)
        message, finish, _ = await answered(b, stream, model=model, tools=[WEATHER])
        assert (finish, called(message)[0]) == ("tool_calls", ("weather", {"city": "Paris"}))
        assert b.record.deployment == served
        assert len(b.record.attempts) == 2


async def test_case_74_a_stream_that_breaks_is_no_success(tmp_path: Path) -> None:
    """After the first output there is no next one: an error event, no end, a connection that does not close as clean."""
    async with bench(tmp_path, limits="[9000 tokens/day]", options={"completion": 9, "cut_after": 4, "cut": "rst"}) as b:
        b.slack = 1024  # the cap
        reply = await streamed(b, model="claude_gpt")
        assert (reply.status, reply.done, reply.clean) == (200, False, False)
        assert reply.error["code"] == "upstream_error"
        assert reply.finishes == {}


ASKED_IN_VAIN = [
    ({"n": 2}, "n"),
    ({"logprobs": True}, "logprobs"),
    ({"tools": [{"type": "custom", "custom": {"name": "sh"}}]}, "tools[0].type"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
]


@STREAM
@pytest.mark.parametrize(("fields", "param"), ASKED_IN_VAIN, ids=[param for _, param in ASKED_IN_VAIN])
async def test_what_one_cannot_be_asked_another_can(tmp_path: Path, fields: dict[str, Any], param: str, stream: bool) -> None:
    """It is passed over without an attempt; if it was the only one, the client is told the field, and nothing is held or charged."""
    async with bench(tmp_path, limits="[9000 tokens/day]", options={"completion": 2}) as b:
        assert (await b.chat(model="claude_gpt", stream=stream, max_tokens=9, **fields)).status == 200
        assert [attempt.deployment for attempt in b.record.attempts] == ["mock/gpt"]
        before = b.total
        reply = await b.chat(model="claude", stream=stream, max_tokens=9, **fields)
        assert (reply.status, reply.error["param"], reply.error["code"]) == (400, param, "invalid_request")
        assert b.total == before
        assert b.record.attempts == ()


async def test_the_failure_of_one_that_was_asked_is_told_before_what_another_cannot_be_asked(tmp_path: Path) -> None:
    """The request itself was right."""
    async with bench(tmp_path, limits="[9000 tokens/day]") as b:
        for model in ("gpt_claude", "claude_gpt"):
            b.mock.fault(count=1, model="gpt", status=503)
            reply = await b.chat(model=model, n=2, max_tokens=9)
            assert (reply.status, reply.error["code"]) == (503, "upstream_error")


@STREAM
async def test_case_70_thinking_of_another_model_is_not_sent_on(tmp_path: Path, stream: bool) -> None:
    """Its signature would be refused there; the model that thought gets it back."""
    options = {"completion": 6, "reasoning": "visible", "reasoning_tokens": 2}
    async with bench(tmp_path, limits="[9000 tokens/day]", options=options) as b:
        message, _, _ = await answered(b, stream, model="claude")
        messages = [{"role": "user", "content": "a"}, message, {"role": "user", "content": "b"}]
        await answered(b, stream, model="claude_claude", messages=messages)
        assert "signature" in b.mock.calls[-1].body
        for model, first in (("claude_claude", "claude"), ("gpt_claude", "gpt")):
            b.mock.fault(count=1, model=first, status=503)
            await answered(b, stream, model=model, messages=messages)
            assert len(b.record.attempts) == 2
            assert "signature" not in b.mock.calls[-1].body


async def test_thinking_is_not_sent_where_it_would_be_an_error(tmp_path: Path) -> None:
    """OpenAI itself refuses fields of a message that it does not know: what Claude thought is taken out on the way to it, and nothing else."""
    options = {"completion": 6, "reasoning": "visible", "reasoning_tokens": 2}
    async with bench(tmp_path, limits="[9000 tokens/day]", options=options) as b:
        message, _, _ = await answered(b, False, model="claude_openai")
        assert {"reasoning_content", "reasoning_details"} <= message.keys()
        b.mock.fault(count=1, model="claude", status=503)
        await answered(b, False, model="claude_openai", messages=[{"role": "user", "content": "a"}, message, {"role": "user", "content": "b"}])
        assert b.record.deployment == "openai/gpt-4o"
        sent = json.loads(b.mock.calls[-1].body)["messages"][1]
        assert sent == {"role": "assistant", "content": message["content"], "refusal": None}


# -- one budget ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["claude", "llama"])
@pytest.mark.parametrize("usage", [None, {"include_usage": True}], ids=["no usage", "usage"])
async def test_a_translated_stream_is_cut_in_the_clients_dialect(tmp_path: Path, usage: Any, model: str) -> None:
    """Where the budget runs out under it: `length`, why, usage if it was asked for, `[DONE]`; what was made is within the limit."""
    more = "budget: {estimator: fixed, fixed_output: 40}"
    async with bench(tmp_path, extend=True, limits="[1000 tokens/day]", options={"ttft": 5, "completion": 900, "tpot": 1}, more=more) as b:
        b.slack = 900  # what it may produce in 100 ms, as fast as it was seen to come: on a machine that stalls, all of it
        with b.held():
            connection = await b.open(model=model, stream=True, max_tokens=900, stream_options=usage)
            await b.asked(1)
            other = asyncio.create_task(b.chat(model="gpt", max_tokens=600))
            await b.asked(2)
        reply = await connection.rest()
        await other
        assert (reply.finishes, reply.truncated, reply.done, reply.clean) == ({0: "length"}, "budget", True, True)
        cut = next(record for record in b.records if record.truncated == "budget")
        assert [event["usage"]["completion_tokens"] for event in reply.usages] == ([cut.output_tokens] if usage else [])
        assert len({(event["id"], event["model"]) for event in reply.events}) == 1
        assert b.total <= 1000


@ROUTES
async def test_a_cap_of_the_gateway_is_obeyed_by_each(tmp_path: Path, model: str) -> None:
    """A budget that covers less than was asked for is the cap that is sent, in the provider's own field."""
    async with bench(tmp_path, limits="[60 tokens/day]", options={"completion": 500}) as b:
        for stream in (False, True):
            reply = await b.chat(model=model, stream=stream, max_tokens=400)
            assert reply.status in (200, 429), reply.body
        assert b.records[0].output_tokens < 60
        assert b.total <= 60


MESSAGES = [{"role": "user", "content": "Tell me"}]


async def asked(b: Bench, path: str, body: dict[str, Any]) -> Reply:
    return await b.raw(request(json.dumps(body).encode(), path=path))


def surfaces(model: str, stream: bool) -> list[tuple[str, dict[str, Any]]]:
    """A request of every client dialect for one model, the caller's name where the mock finds it whatever it is translated to."""
    common = {"model": model, "stream": stream}
    return [
        ("/v1/chat/completions", {**common, "messages": MESSAGES, "max_tokens": 120, "user": "sk-key"}),
        ("/v1/completions", {**common, "prompt": "Tell me", "max_tokens": 120, "user": "sk-key"}),
        ("/v1/responses", {**common, "input": "Tell me", "max_output_tokens": 120, "user": "sk-key"}),
        ("/v1/messages", {**common, "messages": MESSAGES, "max_tokens": 120, "metadata": {"user_id": "sk-key"}}),
    ]


@pytest.mark.parametrize("extend", [False, True], ids=["capped", "extended"])
async def test_one_budget_over_every_surface(tmp_path: Path, extend: bool) -> None:
    """20,000 tokens spent through all client dialects at once, at providers of each dialect: no more is made, and it is used up."""
    embedded = {"model": "gpt", "input": ["one", "two three"], "user": "sk-key"}
    options = {"completion": 120, "tpot": 0.2}
    async with bench(tmp_path, extend, limits="[20000 tokens/day]", options=options) as b:
        b.slack = 500 if extend else 0  # the deltas
        served: dict[str, int] = {}

        async def spend(path: str, body: dict[str, Any]) -> None:
            for _ in range(40):
                reply = await asked(b, path, body)
                assert reply.status in (200, 429), (path, reply.body)
                if reply.status == 429:
                    assert json.loads(reply.body)["error"]["code"] in ("budget_exceeded", "budget_busy")
                served[path] = served.get(path, 0) + (reply.status == 200)

        calls = [spend(path, body) for model in ("gpt", "claude", "llama") for stream in (False, True) for path, body in surfaces(model, stream)]
        await asyncio.gather(*calls, spend("/v1/embeddings", embedded))
        await b.quiet()
        assert 18_000 < b.total <= 20_000
        assert set(served) == {path for path, _ in surfaces("gpt", False)} | {"/v1/embeddings"} and all(served.values()), served
        assert {record.dialect for record in b.records} >= {"openai_chat", "openai_completions", "openai_responses", "anthropic_messages"}


async def test_a_client_that_leaves_a_translated_stream(tmp_path: Path) -> None:
    """Is charged at least what the upstream wrote, which stops at once (cases 48, 57)."""
    async with bench(tmp_path, extend=True, limits="[5000 tokens/day]", options={"completion": 2000, "tpot": 1}) as b:
        b.slack = 400
        connection: Connection = await b.open(model="claude", stream=True, max_tokens=2000)
        await connection.until(b'"content":"')
        connection.reset()
        await b.quiet()
        assert b.record.client_gone
        assert b.total < 1000
