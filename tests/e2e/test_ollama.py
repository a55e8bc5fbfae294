"""Clients of other dialects at an Ollama provider: what it produced is what they read and what is charged, and a budget holds however it is spent."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from support_inloop import PRICE, Bench, running

STREAM = pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
WEATHER: Any = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}
ASK: Any = [{"role": "user", "content": "Tell me"}]
PROVIDERS = '  local: {dialect: ollama, base_url: "ROOT_URL", tokenizer: o200k_base, proxy: off}'
MODELS = f"  local: {{deployments: [{{provider: local, model: 'qwen3:0.6b', price: {PRICE}}}], max_output: 1024}}"


@asynccontextmanager
async def ollama(directory: Path, limits: str = "[100k tokens/day]", **options: Any) -> AsyncIterator[tuple[Bench, openai.AsyncOpenAI]]:
    """A gateway with one key and an Ollama behind it, and the official client of OpenAI's."""
    more = "budget: {estimator: fixed, fixed_output: 50}"
    async with (
        running(directory, limits=limits, providers=PROVIDERS, models=MODELS, options=options, more=more) as bench,
        openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{bench.port}/v1", api_key="sk-key", max_retries=0) as sdk,
    ):
        yield bench, sdk


async def chat(sdk: openai.AsyncOpenAI, stream: bool, **fields: Any) -> Any:
    """The whole answer, put together by the client where it was streamed."""
    fields = {"model": "local", "messages": ASK, **fields}
    if not stream:
        return await sdk.chat.completions.create(**fields)
    async with sdk.chat.completions.stream(**fields, stream_options={"include_usage": True}) as streamed:
        async for _ in streamed:
            pass
        return streamed.current_completion_snapshot


def sent(bench: Bench) -> Any:
    """The last body that went upstream."""
    assert bench.mock.calls[-1].path == "/api/chat"
    return json.loads(bench.mock.calls[-1].body)


@STREAM
async def test_text_and_thinking(tmp_path: Path, stream: bool) -> None:
    """Text, what the model thought, why it ended, and usage, as the provider had them; the client's id and time are the gateway's."""
    async with ollama(tmp_path, completion=6, reasoning="visible", reasoning_tokens=2) as (bench, sdk):
        answer = await chat(sdk, stream, max_tokens=50, temperature=0.5)
        (choice,) = answer.choices
        assert (choice.message.content, choice.finish_reason) == (" and to in is", "stop")
        assert choice.message.reasoning_content == " the of"
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (9, 6) and answer.id and answer.created
        assert sent(bench)["options"] == {"num_predict": 50, "temperature": 0.5} and sent(bench)["stream"] is stream
        assert (bench.record.input_tokens, bench.record.output_tokens, bench.record.source) == (9, 6, "reported")


@STREAM
async def test_an_agents_loop(tmp_path: Path, stream: bool) -> None:
    """The tool is called with its arguments, its result goes back by its name, text comes; all of it is charged once."""
    async with ollama(tmp_path, completion=None, tools="first") as (bench, sdk):
        first = (await chat(sdk, stream, tools=[WEATHER])).choices[0]
        (call,) = first.message.tool_calls
        assert first.finish_reason == "tool_calls" and json.loads(call.function.arguments) == {"city": "water"}
        made = {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": call.function.arguments}}
        back = {"role": "assistant", "content": None, "tool_calls": [made]}
        second = (
            await chat(sdk, stream, tools=[WEATHER], messages=[*ASK, back, {"role": "tool", "tool_call_id": call.id, "content": "rain"}])
        ).choices[0]
        assert second.finish_reason == "stop" and second.message.content
        assert sent(bench)["messages"][2] == {"role": "tool", "content": "rain", "tool_name": "weather", "tool_call_id": call.id}
        assert sum(record.output_tokens for record in bench.records) == bench.mock.stats().total.completion_tokens


async def test_a_budget_cuts_a_stream(tmp_path: Path) -> None:
    """It ends with `length` and says why; the provider has produced no more than the budget, and stopped."""
    async with ollama(tmp_path, "[600 tokens/day]", completion=900, tpot=1) as (bench, sdk):
        for _ in range(3):
            try:
                answer = await chat(sdk, True, max_tokens=900)
            except openai.APIStatusError as error:
                assert error.code in ("budget_exceeded", "budget_busy")
            else:
                assert answer.choices[0].finish_reason == "length"
        await bench.quiet()
        assert 500 < bench.total <= 600


async def test_a_stream_is_extended(tmp_path: Path) -> None:
    """With room enough the provider is sent the client's own cap, and text of any length comes through."""
    async with ollama(tmp_path, "[9k tokens/day]", completion=700) as (bench, sdk):
        answer = await chat(sdk, True, max_tokens=900)
        assert (answer.usage.completion_tokens, sent(bench)["options"]["num_predict"]) == (700, 900)


async def test_calls_that_are_seen_late(tmp_path: Path) -> None:
    """With tools all that may come is held before anything is seen: four calls of a thousand tokens at once keep to the budget."""
    long = [{"name": "weather", "arguments": {"city": "x" * 4000}}]
    async with ollama(tmp_path, "[3000 tokens/day]", tools=long, completion=0, tpot=0.3) as (bench, sdk):
        answers = await asyncio.gather(*[chat(sdk, True, tools=[WEATHER], max_tokens=1500) for _ in range(4)], return_exceptions=True)
        finishes = [answer.choices[0].finish_reason for answer in answers if not isinstance(answer, BaseException)]
        assert "tool_calls" in finishes and len(finishes) < 4
        assert {error.code for error in answers if isinstance(error, openai.APIStatusError)} <= {"budget_busy", "budget_exceeded"}
        await bench.quiet()
        assert 1000 < bench.total <= 3000


@STREAM
async def test_a_call_that_is_cut(tmp_path: Path, stream: bool) -> None:
    """Of a call of which nothing is seen before its end, and that the cap cuts, the tokens are charged."""
    long = [{"name": "weather", "arguments": {"city": "x" * 4000}}]
    async with ollama(tmp_path, "[600 tokens/day]", tools=long, completion=0) as (bench, sdk):
        answer = await chat(sdk, stream, tools=[WEATHER], max_tokens=2000)
        assert answer.choices[0].finish_reason == "length" and not answer.choices[0].message.tool_calls
        await bench.quiet()
        assert sent(bench)["options"]["num_predict"] == bench.record.output_tokens < 600


async def test_a_client_that_leaves(tmp_path: Path) -> None:
    """Generation stops with the connection, and no more is charged than what may have been produced by then."""
    async with ollama(tmp_path, completion=1000, tpot=2) as (bench, sdk):
        bench.slack = 1_000
        async for _ in await sdk.chat.completions.create(model="local", messages=ASK, max_tokens=1000, stream=True):
            if bench.mock.stats().total.completion_tokens > 30:
                break
        await sdk.close()
        await bench.quiet()
        assert 30 < bench.mock.stats().total.completion_tokens < 1_000


async def test_errors(tmp_path: Path) -> None:
    """By status, as a first line, and after output: each is the client's dialect's error, and what was produced is charged."""
    async with ollama(tmp_path, completion=20) as (bench, sdk):
        bench.mock.fault(status=400, message="does not support thinking")
        with pytest.raises(openai.BadRequestError, match="does not support thinking"):
            await chat(sdk, False)
        bench.mock.fault(error_in_200=500, message="out of memory")
        with pytest.raises(openai.InternalServerError):
            await chat(sdk, True)
        bench.slack = 2000
        bench.mock.fault(insert={"3": '{"error":"out of memory"}\n'})
        with pytest.raises(openai.APIError):
            await chat(sdk, True, max_tokens=50)


async def test_a_prompt_that_was_cached(tmp_path: Path) -> None:
    """Ollama leaves out what it did not have to read: that is not taken for zero."""
    async with ollama(tmp_path, usage="zero_input", completion=5) as (bench, sdk):
        await chat(sdk, True)
        assert (bench.record.input_tokens, bench.record.output_tokens, bench.record.source) == (9, 5, "partly")


async def test_what_it_cannot_say(tmp_path: Path) -> None:
    """Several choices, a picture by its URL, a call that is demanded: a 400 that names the field, and nothing is sent."""
    picture = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x/y.png"}}]}]
    fields: list[tuple[dict[str, Any], str]] = [
        ({"n": 2}, "n"),
        ({"tools": [WEATHER], "tool_choice": "required"}, "tool_choice"),
        ({"messages": picture}, "messages"),
    ]
    async with ollama(tmp_path) as (bench, sdk):
        for wrong, param in fields:
            with pytest.raises(openai.BadRequestError) as error:
                await chat(sdk, False, **wrong)
            assert error.value.param == param
        assert not bench.mock.calls


@STREAM
async def test_clients_of_anthropics(tmp_path: Path, stream: bool) -> None:
    """Blocks of thinking, text and calls, from the same lines."""
    tools: Any = [{"name": "weather", "input_schema": WEATHER["function"]["parameters"]}]
    async with ollama(tmp_path, completion=4, reasoning="visible", reasoning_tokens=2, tools="first") as (bench, _):
        async with anthropic.AsyncAnthropic(base_url=f"http://127.0.0.1:{bench.port}", api_key="sk-key", max_retries=0) as sdk:
            fields: Any = {"model": "local", "messages": ASK, "max_tokens": 100, "tools": tools}
            if stream:
                async with sdk.messages.stream(**fields) as streamed:
                    message: Any = await streamed.get_final_message()
            else:
                message = await sdk.messages.create(**fields)
        assert [block.type for block in message.content][-2:] == ["text", "tool_use"] and message.stop_reason == "tool_use"
        assert (message.content[-2].text, message.content[-1].input) == (" and to", {"city": "water"})
        assert message.usage.output_tokens == bench.mock.stats().total.completion_tokens
