"""The mock's Anthropic messages as the official package sees them: what it reads is what the mock says that it produced."""

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest

from sluicegate.mock import Mock, MockOptions, Tally

WEATHER: Any = {"name": "weather", "description": "Weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
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
async def sdk(mock: Mock) -> AsyncIterator[anthropic.AsyncAnthropic]:
    """The official client."""
    async with anthropic.AsyncAnthropic(base_url=mock.root_url, api_key="sk-ant", max_retries=0) as sdk:
        yield sdk


async def ask(sdk: anthropic.AsyncAnthropic, stream: bool, messages: Any = ASK, max_tokens: int = 100, offer: Any = (), **overrides: Any) -> Any:
    """The message, whole or put together from a stream by the package's own helper."""
    fields: Any = {"model": "m", "max_tokens": max_tokens, "messages": messages, "extra_body": {"mock": overrides}}
    if offer:
        fields["tools"] = offer
    if not stream:
        return await sdk.messages.create(**fields)
    async with sdk.messages.stream(**fields) as streamed:
        return await streamed.get_final_message()


def truth(mock: Mock) -> Tally:
    return mock.stats().total


@pytest.mark.parametrize("stream", [False, True])
async def test_text(sdk: anthropic.AsyncAnthropic, mock: Mock, stream: bool) -> None:
    """Text, why it ended and usage, by the credential of x-api-key."""
    message = await ask(sdk, stream)
    assert [(block.type, block.text) for block in message.content] == [("text", SAID)]
    assert (message.stop_reason, message.role, message.model) == ("end_turn", "assistant", "m")
    assert (message.usage.input_tokens, message.usage.output_tokens) == (9, 5) == (truth(mock).prompt_tokens, truth(mock).completion_tokens)
    assert list(mock.stats().callers) == ["sk-ant"]


async def test_events(sdk: anthropic.AsyncAnthropic) -> None:
    """Every event of a stream, in order; a delta for each token."""
    stream = await sdk.messages.create(model="m", max_tokens=100, messages=ASK, stream=True, extra_body={"mock": {"completion": 2}})
    seen = [event async for event in stream]
    delta = "content_block_delta"
    assert [event.type for event in seen] == [  # the package leaves pings out
        *("message_start", "content_block_start", delta, delta, "content_block_stop", "message_delta", "message_stop"),
    ]
    assert seen[0].type == "message_start" and seen[0].message.usage.output_tokens == 1 and seen[0].message.content == []
    assert seen[-2].type == "message_delta" and seen[-2].usage.output_tokens == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_caps(sdk: anthropic.AsyncAnthropic, mock: Mock, stream: bool) -> None:
    """It ends at max_tokens, which must be given."""
    message = await ask(sdk, stream, max_tokens=3)
    assert (message.stop_reason, message.usage.output_tokens, truth(mock).completion_tokens) == ("max_tokens", 3, 3)
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        await sdk.messages.create(model="m", messages=ASK, max_tokens=0)


@pytest.mark.parametrize("stream", [False, True])
async def test_thinking_is_signed(sdk: anthropic.AsyncAnthropic, mock: Mock, stream: bool) -> None:
    """Thinking comes first, with a signature; back in a conversation it is taken as it was, and not if a letter has changed."""
    message = await ask(sdk, stream, reasoning="visible", reasoning_tokens=2)
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert (message.content[0].thinking, message.content[1].text) == (" the of", " and to in")
    back = message.model_dump(include={"role", "content"}, exclude_none=True)
    await ask(sdk, stream, messages=[*ASK, back, *ASK])
    back["content"][0]["thinking"] += "."
    with pytest.raises(anthropic.BadRequestError, match="signature"):
        await ask(sdk, stream, messages=[*ASK, back, *ASK])
    assert truth(mock).completion_tokens == 10


@pytest.mark.parametrize("stream", [False, True])
async def test_thinking_that_cannot_be_read(sdk: anthropic.AsyncAnthropic, mock: Mock, stream: bool) -> None:
    """Redacted thinking is a block of data, hidden thinking nothing at all; both are billed."""
    redacted = await ask(sdk, stream, reasoning="redacted", reasoning_tokens=3)
    assert [block.type for block in redacted.content] == ["redacted_thinking", "text"] and redacted.content[0].data == "mock-redacted-3"
    hidden = await ask(sdk, stream, reasoning="hidden", reasoning_tokens=3)
    assert [block.type for block in hidden.content] == ["text"] and hidden.usage.output_tokens == 5
    assert truth(mock).completion_tokens == 10
    back = redacted.model_dump(include={"role", "content"}, exclude_none=True)
    await ask(sdk, stream, messages=[*ASK, back, *ASK])
    back["content"][0]["data"] = "else"
    with pytest.raises(anthropic.BadRequestError, match="redacted"):
        await ask(sdk, stream, messages=[*ASK, back, *ASK])


@pytest.mark.parametrize("stream", [False, True])
async def test_agent_loop(sdk: anthropic.AsyncAnthropic, mock: Mock, stream: bool) -> None:
    """Two calls of tools after some thinking, then their results, then text."""
    calls = [{"name": "weather", "arguments": {"city": "Paris"}}, {"name": "weather", "arguments": {}}]
    told: Any = {"tools": calls, "completion": 3, "reasoning": "visible", "reasoning_tokens": 3}
    message = await ask(sdk, stream, offer=[WEATHER], **told)
    assert [block.type for block in message.content] == ["thinking", "tool_use", "tool_use"] and message.stop_reason == "tool_use"
    assert [block.input for block in message.content[1:]] == [{"city": "Paris"}, {}]
    assert message.usage.output_tokens == truth(mock).completion_tokens == 3 + 1 + 4 + 1 + 1
    back = message.model_dump(include={"role", "content"}, exclude_none=True)
    results = [{"type": "tool_result", "tool_use_id": block.id, "content": "rain"} for block in message.content[1:]]
    messages = [*ASK, back, {"role": "user", "content": results}]
    answer = await ask(sdk, stream, messages=messages, offer=[WEATHER], **told)
    assert [block.type for block in answer.content] == ["thinking"] and answer.stop_reason == "end_turn"
    with pytest.raises(anthropic.BadRequestError, match="without a result"):
        await ask(sdk, stream, messages=[*ASK, back, {"role": "user", "content": results[:1]}], offer=[WEATHER])


@pytest.mark.parametrize("stream", [False, True])
async def test_cached_input(sdk: anthropic.AsyncAnthropic, mock: Mock, stream: bool) -> None:
    """What was read from a cache or written to it is not in input_tokens; the truth has all of it."""
    message = await ask(sdk, stream, prompt=1000, cached=600, cache_written=100, cache_written_1h=50)
    usage = message.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (250, 600, 150)
    assert (usage.cache_creation.ephemeral_5m_input_tokens, usage.cache_creation.ephemeral_1h_input_tokens) == (100, 50)
    assert truth(mock).prompt_tokens == 1000


@pytest.mark.parametrize(
    ("status", "kind", "error"),
    [
        (400, "invalid_request_error", anthropic.BadRequestError),
        (401, "authentication_error", anthropic.AuthenticationError),
        (413, "request_too_large", anthropic.RequestTooLargeError),
        (429, "rate_limit_error", anthropic.RateLimitError),
        (500, "api_error", anthropic.InternalServerError),
        (529, "overloaded_error", anthropic.OverloadedError),
    ],
)
async def test_errors(sdk: anthropic.AsyncAnthropic, mock: Mock, status: int, kind: str, error: type[anthropic.APIStatusError]) -> None:
    """Errors have Anthropic's shape and its names for statuses."""
    mock.fault(status=status, message="no")
    with pytest.raises(error) as caught:
        await ask(sdk, False)
    body: Any = caught.value.body
    assert (body["type"], body["error"]) == ("error", {"type": kind, "message": "no"})
    assert truth(mock).tokens == 0


async def test_error_in_a_stream(sdk: anthropic.AsyncAnthropic, mock: Mock) -> None:
    """Overload can be told by an event."""
    mock.fault(error_in_200=529)
    with pytest.raises(anthropic.APIStatusError, match="overloaded_error"):
        await ask(sdk, True)


@pytest.mark.parametrize("usage", ["none", "null", "partial", "zero"])
async def test_odd_usage(sdk: anthropic.AsyncAnthropic, usage: str) -> None:
    """Usage can be left out, be null, lack a figure, or be zero."""
    response = await sdk.messages.with_raw_response.create(model="m", max_tokens=9, messages=ASK, extra_body={"mock": {"usage": usage}})
    body: Any = response.http_response.json()
    if usage in ("none", "null"):
        assert body.get("usage", 0) == (0 if usage == "none" else None)
    else:
        assert body["usage"]["output_tokens"] == (None if usage == "partial" else 0)
    stream = await sdk.messages.create(model="m", max_tokens=9, messages=ASK, stream=True, extra_body={"mock": {"usage": usage}})
    (delta,) = [event async for event in stream if event.type == "message_delta"]
    assert (delta.usage is None) == (usage in ("none", "null"))


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": []},
        {"messages": [{"role": "assistant", "content": "x"}]},
        {"messages": [{"role": "system", "content": "x"}]},
        {"messages": [{"role": "user", "content": ""}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}]}]},
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": "y"}]}]},
        {"thinking": {"type": "enabled", "budget_tokens": 1000}},
        {"thinking": {"type": "enabled", "budget_tokens": 2000}},
    ],
)
async def test_what_anthropic_refuses(sdk: anthropic.AsyncAnthropic, fields: dict[str, Any]) -> None:
    """What the vendor would refuse is refused here too, so that a gateway that writes it is found out."""
    with pytest.raises(anthropic.BadRequestError):
        await sdk.messages.create(**{"model": "m", "max_tokens": 1500, "messages": ASK, **fields})
