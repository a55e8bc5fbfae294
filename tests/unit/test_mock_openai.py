"""The mock's OpenAI dialects as the official package sees them: what it reads is what the mock says that it produced."""

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from sluicegate.mock import Mock, MockOptions, Tally

WEATHER: Any = {
    "type": "function",
    "function": {"name": "weather", "description": "Weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
ASK: Any = [{"role": "user", "content": "hello"}]
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


def told(**overrides: Any) -> Any:
    return {"mock": overrides}


def truth(mock: Mock) -> Tally:
    return mock.stats().total


# -- chat -----------------------------------------------------------------------------------------------------------------------------------


async def test_tools_are_called_whole_and_in_pieces(sdk: openai.AsyncOpenAI, mock: Mock) -> None:
    """Two calls: the same ids, names and arguments whole and streamed; a name is a token, four characters of arguments are another."""
    calls = [{"name": "weather", "arguments": {"city": "Paris"}}, {"name": "time", "arguments": ""}]
    extra = told(tools=calls, completion=None)
    whole = await sdk.chat.completions.create(model="m", messages=ASK, tools=[WEATHER], extra_body=extra)
    message = whole.choices[0].message
    assert whole.choices[0].finish_reason == "tool_calls" and message.content is None and message.tool_calls
    seen = [(call.function.name, call.function.arguments) for call in message.tool_calls if call.type == "function"]
    assert seen == [("weather", '{"city":"Paris"}'), ("time", "")]
    assert whole.usage and whole.usage.completion_tokens == 1 + 4 + 1 == truth(mock).completion_tokens
    async with sdk.chat.completions.stream(model="m", messages=ASK, tools=[WEATHER], extra_body=extra) as stream:
        final = await stream.get_final_completion()
    streamed = final.choices[0].message.tool_calls or []
    assert [(call.function.name, call.function.arguments) for call in streamed] == seen
    assert len({call.id for call in [*message.tool_calls, *streamed]}) == 4


async def test_agent_loop(sdk: openai.AsyncOpenAI) -> None:
    """The first tool that is offered is called with arguments of its schema; the result of it is answered with text, a new question is not."""
    extra, messages = told(tools="first", completion=None), list(ASK)
    first = (await sdk.chat.completions.create(model="m", messages=messages, tools=[WEATHER], extra_body=extra)).choices[0]
    assert first.message.tool_calls and json.loads(first.message.tool_calls[0].function.arguments) == {"city": "water"}  # type: ignore[union-attr]
    messages += [first.message, {"role": "tool", "tool_call_id": first.message.tool_calls[0].id, "content": "rain"}]
    second = (await sdk.chat.completions.create(model="m", messages=messages, tools=[WEATHER], extra_body=extra)).choices[0]
    assert second.finish_reason == "stop" and second.message.content and not second.message.tool_calls
    messages += [second.message, *ASK]
    third = (await sdk.chat.completions.create(model="m", messages=messages, tools=[WEATHER], extra_body=extra)).choices[0]
    assert third.finish_reason == "tool_calls"
    fourth = (await sdk.chat.completions.create(model="m", messages=messages, tools=[WEATHER], tool_choice="none", extra_body=extra)).choices[0]
    assert fourth.finish_reason == "stop"


async def test_a_cap_cuts_the_arguments(sdk: openai.AsyncOpenAI, mock: Mock) -> None:
    """A call that the cap cuts short has the arguments that were generated, and ends with `length`."""
    extra = told(tools=[{"name": "weather", "arguments": {"city": "Paris"}}], completion=1)
    answer = await sdk.chat.completions.create(model="m", messages=ASK, max_tokens=4, extra_body=extra)
    (call,) = answer.choices[0].message.tool_calls or []
    assert (answer.choices[0].finish_reason, answer.choices[0].message.content) == ("length", " the")
    assert call.type == "function" and call.function.arguments == '{"city":'
    assert truth(mock).completion_tokens == 4


@pytest.mark.parametrize("results", [[], ["other"], ["call_1", "call_1"]])
async def test_calls_need_their_results(sdk: openai.AsyncOpenAI, results: list[str]) -> None:
    """A conversation in which a call has no result, or a result no call, is refused as vendors do."""
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    answered = [{"role": "tool", "tool_call_id": id, "content": "rain"} for id in results]
    messages: Any = [*ASK, {"role": "assistant", "content": None, "tool_calls": [call]}, *answered, *ASK]
    with pytest.raises(openai.BadRequestError) as caught:
        await sdk.chat.completions.create(model="m", messages=messages)
    assert caught.value.param == "messages"


async def test_prompt_counts_tools(sdk: openai.AsyncOpenAI) -> None:
    """Tools that are offered and calls that were made are read by the model."""
    plain = await sdk.chat.completions.create(model="m", messages=ASK)
    tools = await sdk.chat.completions.create(model="m", messages=ASK, tools=[WEATHER])
    assert plain.usage and tools.usage and tools.usage.prompt_tokens > plain.usage.prompt_tokens + 10


async def test_credentials(sdk: openai.AsyncOpenAI, mock: Mock) -> None:
    """A mock that knows its key refuses any other."""
    with pytest.raises(openai.AuthenticationError):
        await sdk.chat.completions.create(model="m", messages=ASK, extra_body=told(api_key="sk-other"))
    await sdk.chat.completions.create(model="m", messages=ASK, extra_body=told(api_key="sk-sdk"))
    assert truth(mock).errors == 1


# -- completions ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_completions(sdk: openai.AsyncOpenAI, mock: Mock, stream: bool) -> None:
    """Prompts times n choices, in order, each with its prompt before it where that is asked for."""
    texts: dict[int, str] = {}
    answer: Any = await sdk.completions.create(
        model="m", prompt=["one", "two"], n=2, echo=True, stream=stream, stream_options={"include_usage": True}
    )
    parts = [part async for part in answer] if stream else [answer]
    for part in parts:
        for choice in part.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
    assert texts == {0: "one" + SAID, 1: "one" + SAID, 2: "two" + SAID, 3: "two" + SAID}
    assert parts[-1].usage.completion_tokens == truth(mock).completion_tokens == 20
    assert parts[-1].usage.prompt_tokens == truth(mock).prompt_tokens == 2


async def test_best_of_is_generated_and_billed(sdk: openai.AsyncOpenAI, mock: Mock) -> None:
    """All candidates count, n of them come back; they cannot be streamed."""
    answer = await sdk.completions.create(model="m", prompt="one", n=1, best_of=3)
    assert [choice.index for choice in answer.choices] == [0]
    assert answer.usage and answer.usage.completion_tokens == truth(mock).completion_tokens == 15
    with pytest.raises(openai.BadRequestError):
        await sdk.completions.create(model="m", prompt="one", best_of=3, stream=True)


@pytest.mark.parametrize(("prompt", "choices", "tokens"), [([1, 2, 3], 1, 3), ([[1, 2], [3]], 2, 3), ("x" * 40, 1, 10), (["x" * 4, "y" * 4], 2, 2)])
async def test_prompts_in_tokens(sdk: openai.AsyncOpenAI, prompt: Any, choices: int, tokens: int) -> None:
    """A prompt given in tokens costs them, one in text a token per four characters; nothing frames it."""
    answer = await sdk.completions.create(model="m", prompt=prompt)
    assert answer.usage and (len(answer.choices), answer.usage.prompt_tokens) == (choices, tokens)


async def test_completions_have_a_cap_of_their_own(sdk: openai.AsyncOpenAI) -> None:
    """Sixteen tokens where no cap is given, as OpenAI has it."""
    answer = await sdk.completions.create(model="m", prompt="one", extra_body=told(completion=40))
    assert answer.usage and (answer.choices[0].finish_reason, answer.usage.completion_tokens) == ("length", 16)


@pytest.mark.parametrize("prompt", [[], [1, "two"], 5, {"a": 1}, [[["x"]]]])
async def test_bad_prompts(sdk: openai.AsyncOpenAI, prompt: Any) -> None:
    """What is no prompt is a 400."""
    with pytest.raises(openai.BadRequestError):
        await sdk.completions.create(model="m", prompt=prompt)


# -- embeddings -----------------------------------------------------------------------------------------------------------------------------


async def test_embeddings(sdk: openai.AsyncOpenAI, mock: Mock) -> None:
    """One vector per text, of the asked length and always the same, as numbers and (the package's own choice) as base64."""
    numbers = await sdk.embeddings.create(model="m", input=["one", "two"], encoding_format="float")
    coded = await sdk.embeddings.create(model="m", input=["one", "two"])
    assert [one.embedding for one in numbers.data] == [list(one.embedding) for one in coded.data]
    assert [len(one.embedding) for one in numbers.data] == [8, 8] and numbers.data[0].embedding != numbers.data[1].embedding
    assert sum(number**2 for number in numbers.data[0].embedding) == pytest.approx(1)
    assert (numbers.usage.prompt_tokens, numbers.usage.total_tokens) == (2, 2)
    assert (truth(mock).prompt_tokens, truth(mock).completion_tokens, truth(mock).in_flight) == (4, 0, 0)
    short = await sdk.embeddings.create(model="m", input=[5, 6, 7], dimensions=3)
    assert (len(short.data), len(short.data[0].embedding), short.usage.prompt_tokens) == (1, 3, 3)


async def test_embeddings_fail_as_told(sdk: openai.AsyncOpenAI, mock: Mock) -> None:
    """Faults and wrong values are errors in the same shape."""
    mock.fault(status=429, message="slow down")
    with pytest.raises(openai.RateLimitError, match="slow down"):
        await sdk.embeddings.create(model="m", input="one")
    with pytest.raises(openai.BadRequestError):
        await sdk.embeddings.create(model="m", input="one", dimensions=0)
