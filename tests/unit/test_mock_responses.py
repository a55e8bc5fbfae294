"""The mock's OpenAI responses as the official package sees them: what it reads is what the mock says that it produced."""

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from sluicegate.mock import Mock, MockOptions, Tally

WEATHER: Any = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}, "strict": False}
SAID = " the of and to in"


@pytest.fixture
async def mock() -> AsyncIterator[Mock]:
    """Answers of five tokens."""
    mock = Mock(MockOptions(completion_tokens=5))
    await mock.start()
    yield mock
    await mock.stop()


@pytest.fixture
async def sdk(mock: Mock) -> AsyncIterator[openai.AsyncOpenAI]:
    """The official client."""
    async with openai.AsyncOpenAI(base_url=mock.base_url, api_key="sk-sdk", max_retries=0) as sdk:
        yield sdk


async def ask(sdk: openai.AsyncOpenAI, stream: bool, input: Any = "hello", **fields: Any) -> Any:
    """The response, whole or of the last event that the package's own helper lets through. Fields that the API does not have are the mock's."""
    own = {name: fields.pop(name) for name in list(fields) if name not in ("max_output_tokens", "tools", "tool_choice", "instructions")}
    arguments: Any = {"model": "m", "input": input, "extra_body": {"mock": own}, **fields}
    if not stream:
        return await sdk.responses.create(**arguments)
    async with sdk.responses.stream(**arguments) as streamed:
        last: Any = [event async for event in streamed][-1]
        return last.response


def truth(mock: Mock) -> Tally:
    return mock.stats().total


@pytest.mark.parametrize("stream", [False, True])
async def test_text(sdk: openai.AsyncOpenAI, mock: Mock, stream: bool) -> None:
    """One message of text, and usage with its details."""
    response = await ask(sdk, stream, cached=2)
    assert (response.output_text, response.status) == (SAID, "completed")
    usage = response.usage
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens, usage.input_tokens_details.cached_tokens) == (9, 5, 14, 2)
    assert (truth(mock).prompt_tokens, truth(mock).completion_tokens) == (9, 5)


async def test_events(sdk: openai.AsyncOpenAI) -> None:
    """The event vocabulary of reasoning, text and a call, numbered from 0; the deltas are what the whole items say."""
    told = {"reasoning": "both", "completion": 4, "reasoning_tokens": 2, "tools": [{"name": "weather", "arguments": {"city": "Paris"}}]}
    stream = await sdk.responses.create(model="m", input="hello", stream=True, tools=[WEATHER], extra_body={"mock": told})
    seen: list[Any] = [event async for event in stream]
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    kinds = [event.type.removeprefix("response.") for event in seen]
    assert kinds == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta", "reasoning_text.done", "content_part.done"),
        *("reasoning_summary_part.added", "reasoning_summary_text.delta", "reasoning_summary_text.done", "reasoning_summary_part.done"),
        "output_item.done",
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.delta", "output_text.done", "content_part.done"),
        "output_item.done",
        *("output_item.added", *["function_call_arguments.delta"] * 5, "function_call_arguments.done", "output_item.done"),
        "completed",
    ]
    final = seen[-1].response
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]
    assert [event.item.id for event in seen if event.type.endswith("item.done")] == [item.id for item in final.output]
    assert final.output[2].arguments == '{"city":"Paris"}' == "".join(event.delta for event in seen if event.type.endswith("arguments.delta"))
    assert final.output[0].content[0].text == " the of" and final.output_text == " and to"
    assert (final.usage.output_tokens, final.usage.output_tokens_details.reasoning_tokens) == (9, 2)


@pytest.mark.parametrize("stream", [False, True])
async def test_caps(sdk: openai.AsyncOpenAI, mock: Mock, stream: bool) -> None:
    """It ends at max_output_tokens, reasoning included, and says that it is incomplete."""
    response = await ask(sdk, stream, max_output_tokens=3, reasoning="visible", reasoning_tokens=2)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert response.output[-1].status == "incomplete" and response.output_text == " and"
    assert response.usage.output_tokens == truth(mock).completion_tokens == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_hidden_reasoning(sdk: openai.AsyncOpenAI, mock: Mock, stream: bool) -> None:
    """Hidden reasoning is an item without text, and billed; also where nothing follows it."""
    response = await ask(sdk, stream, reasoning="hidden", reasoning_tokens=3)
    assert [item.type for item in response.output] == ["reasoning", "message"] and response.output[0].summary == []
    assert response.output_text == " to in" and response.usage.output_tokens == 5
    cut = await ask(sdk, stream, reasoning="hidden", reasoning_tokens=3, max_output_tokens=2)
    assert [item.type for item in cut.output] == ["reasoning"] and truth(mock).completion_tokens == 7


@pytest.mark.parametrize("stream", [False, True])
async def test_agent_loop(sdk: openai.AsyncOpenAI, stream: bool) -> None:
    """A call, its output, text; both may stand in the input as they came."""
    first = await ask(sdk, stream, tools=[WEATHER], **{"completion": 2, "reasoning": "visible", "reasoning_tokens": 2})
    assert [item.type for item in first.output] == ["reasoning"]
    called = await sdk.responses.create(model="m", input="hello", tools=[WEATHER], extra_body={"mock": {"tools": "first", "completion": None}})
    call: Any = called.output[0]
    assert (call.name, call.arguments) == ("weather", '{"city":"water"}')
    back: Any = [{"role": "user", "content": "hello"}, *[item.model_dump(exclude_none=True) for item in [*first.output, *called.output]]]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    answer = await ask(sdk, stream, [*back, result], tools=[WEATHER])
    assert answer.output_text == SAID
    for wrong in (back, [*back[:1], result]):
        with pytest.raises(openai.BadRequestError):
            await ask(sdk, stream, wrong)


async def test_prompt_counts(sdk: openai.AsyncOpenAI) -> None:
    """Instructions, parts and tools are read by the model."""
    parts = [{"role": "user", "content": [{"type": "input_text", "text": "x" * 40}]}]
    assert (await ask(sdk, False, parts)).usage.input_tokens == 10 + 4 + 3
    assert (await ask(sdk, False, parts, instructions="y" * 20)).usage.input_tokens == 15 + 8 + 3
    assert (await ask(sdk, False, parts, tools=[WEATHER])).usage.input_tokens > 25


async def test_errors(sdk: openai.AsyncOpenAI, mock: Mock) -> None:
    """Errors by status, by an event, and as a response that failed."""
    mock.fault(status=429, message="slow down")
    with pytest.raises(openai.RateLimitError, match="slow down"):
        await ask(sdk, False)
    mock.fault(error_in_200=500, message="broken")
    failed = await ask(sdk, False)
    assert (failed.status, failed.error.message) == ("failed", "broken")
    mock.fault(error_in_200=500, message="broken")
    events: list[Any] = [event async for event in await sdk.responses.create(model="m", input="x", stream=True)]
    assert [(event.type, event.message) for event in events] == [("error", "broken")]
    assert truth(mock).errors == 3


@pytest.mark.parametrize(("usage", "expected"), [("none", "missing"), ("null", None), ("partial", 9), ("zero", 0)])
async def test_odd_usage(sdk: openai.AsyncOpenAI, usage: str, expected: Any) -> None:
    """Usage can be left out, be null, lack a figure, or be zero."""
    raw = await sdk.responses.with_raw_response.create(model="m", input="hello", extra_body={"mock": {"usage": usage}})
    found: Any = raw.http_response.json().get("usage", "missing")
    assert (found["input_tokens"] if isinstance(found, dict) else found) == expected


async def test_a_stream_without_its_end(sdk: openai.AsyncOpenAI) -> None:
    """`done: false` leaves out the last event."""
    stream = await sdk.responses.create(model="m", input="x", stream=True, extra_body={"mock": {"done": False}})
    assert [event.type async for event in stream][-1] == "response.output_item.done"
