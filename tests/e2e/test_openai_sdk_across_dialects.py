"""An agent's loop with the official `openai` package at providers that speak other dialects: the same calls, text and usage as the package of the
provider's own dialect gets directly. The mock takes thinking back only with the signature that it gave, and calls only with their results.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from support_gateway import Gateway, Mock, call, running_gateway, running_mock

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": text,
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
    for name, text in (("weather", "The weather in a city."), ("time", "The time in a city."))
]
CALLS = [{"name": "weather", "arguments": {"city": "Paris"}}, {"name": "time", "arguments": {"city": "Rome"}}, {"name": "time", "arguments": {}}]
OPTIONS = {"completion": 16, "chunk": 3, "tools": CALLS, "reasoning": "visible", "reasoning_tokens": 6}
SYSTEM = f"You are an agent. [[mock {json.dumps(OPTIONS)}]]"
TASK = "How is it there, and when?"
MAX_TOKENS = 400
Turn = tuple[str, list[tuple[str, Any]], str, tuple[int, int]]  # text, calls, thought, tokens in and out


@pytest.fixture(scope="module")
def mock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mock]:
    with running_mock(tmp_path_factory.mktemp("mock")) as mock:
        yield mock


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, mock: Mock) -> Iterator[Gateway]:
    directory: Path = tmp_path_factory.mktemp("gateway")
    config = f"""
server: {{listen: "127.0.0.1:0"}}
ledger: sqlite:///{directory}/ledger.db
records: sqlite:///{directory}/records.db
journal: {directory}/journal/
providers:
  anthropic: {{provider: anthropic, base_url: {mock.url}, api_key: sk-a}}
  ollama: {{provider: ollama, base_url: {mock.url}}}
models:
  claude: {{deployments: [{{provider: anthropic, model: claude-sonnet-4-6, price: {{input: 3, output: 15}}}}]}}
  llama: {{deployments: [{{provider: ollama, model: llama3.2, price: {{input: 0, output: 0}}}}]}}
tenants:
  acme:
    keys: [{{name: k, key: sk-k, limits: [1M tokens/day]}}]
"""
    with running_gateway(directory, config) as gateway:
        yield gateway


# -- how a turn is asked for, whole and streamed, by each client --------------------------------------------------------------------------


def openai_turns(ask: Callable[[list[Any]], Any]) -> list[Turn]:
    """Runs the loop: asks, runs the calls, asks again, until there is none. The message goes back as the client has it."""
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": TASK}]
    turns: list[Turn] = []
    while True:
        completion = ask(messages)
        message, usage = completion.choices[0].message, completion.usage
        calls = [(tool.function.name, json.loads(tool.function.arguments)) for tool in message.tool_calls or ()]
        thought = (message.model_extra or {}).get("reasoning_content", "")
        turns.append((message.content or "", calls, thought, (usage.prompt_tokens, usage.completion_tokens)))
        assert completion.choices[0].finish_reason == ("tool_calls" if calls else "stop")
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
        if not calls:
            return turns
        messages.append(message.to_dict())
        messages += [{"role": "tool", "tool_call_id": tool.id, "content": f"Result of {tool.function.name}."} for tool in message.tool_calls]


def whole(client: openai.OpenAI, model: str) -> list[Turn]:
    return openai_turns(lambda messages: client.chat.completions.create(model=model, messages=messages, tools=TOOLS, max_tokens=MAX_TOKENS))


def streamed(client: openai.OpenAI, model: str) -> list[Turn]:
    """With the package's own helper, which puts chunks together."""

    def ask(messages: list[Any]) -> Any:
        asked = {"model": model, "messages": messages, "tools": TOOLS, "max_tokens": MAX_TOKENS, "stream_options": {"include_usage": True}}
        with client.chat.completions.stream(**asked) as stream:
            for _ in stream:
                pass
            return stream.get_final_completion()

    return openai_turns(ask)


def anthropic_directly(mock: Mock) -> list[Turn]:
    """The same loop as the provider's own client makes it, with the provider itself."""
    tools: list[Any] = [
        {"name": tool["function"]["name"], "description": tool["function"]["description"], "input_schema": tool["function"]["parameters"]}
        for tool in TOOLS
    ]
    messages: list[Any] = [{"role": "user", "content": TASK}]
    turns: list[Turn] = []
    with anthropic.Anthropic(base_url=mock.url, api_key="sk-a") as client:
        while True:
            asked = {"model": "claude-sonnet-4-6", "system": SYSTEM, "messages": messages, "tools": tools, "max_tokens": MAX_TOKENS}
            answer = client.messages.create(**asked)
            blocks = answer.content
            calls = [(block.name, block.input) for block in blocks if block.type == "tool_use"]
            text = "".join(block.text for block in blocks if block.type == "text")
            thought = "".join(block.thinking for block in blocks if block.type == "thinking")
            turns.append((text, calls, thought, (answer.usage.input_tokens, answer.usage.output_tokens)))
            if not calls:
                return turns
            messages.append({"role": "assistant", "content": blocks})
            results = [block for block in blocks if block.type == "tool_use"]
            content = [{"type": "tool_result", "tool_use_id": block.id, "content": f"Result of {block.name}."} for block in results]
            messages.append({"role": "user", "content": content})


def sdk(gateway: Gateway) -> openai.OpenAI:
    return openai.OpenAI(base_url=gateway.base_url, api_key="sk-k", max_retries=0)


# -- the same ---------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("turns_of", [whole, streamed], ids=["whole", "streamed"])
def test_an_agents_loop_at_anthropic(gateway: Gateway, mock: Mock, turns_of: Callable[[openai.OpenAI, str], list[Turn]]) -> None:
    """Three calls at once, one of them without arguments, thinking before them, and an answer: each turn as directly, to the token."""
    want = anthropic_directly(mock)
    assert [len(turn[1]) for turn in want] == [3, 0] and all(turn[2] for turn in want)
    with sdk(gateway) as client:
        assert turns_of(client, "claude") == want


@pytest.mark.parametrize("turns_of", [whole, streamed], ids=["whole", "streamed"])
def test_an_agents_loop_at_ollama(gateway: Gateway, turns_of: Callable[[openai.OpenAI, str], list[Turn]]) -> None:
    """The same calls and the same answer from a provider whose calls have no ids."""
    with sdk(gateway) as client:
        first, second = turns_of(client, "llama")
    assert first[1] == [(called["name"], called["arguments"]) for called in CALLS]
    assert second[0] and not second[1]


async def test_the_async_client(gateway: Gateway) -> None:
    """Whole and streamed."""
    asked: dict[str, Any] = {"model": "claude", "messages": [{"role": "user", "content": SYSTEM}], "tools": TOOLS, "max_tokens": MAX_TOKENS}
    async with openai.AsyncOpenAI(base_url=gateway.base_url, api_key="sk-k", max_retries=0) as client:
        answer = await client.chat.completions.create(**asked)
        async with client.chat.completions.stream(**asked) as stream:
            deltas = [event.type async for event in stream]
            final = await stream.get_final_completion()
    assert "tool_calls.function.arguments.done" in deltas
    for completion in (answer, final):
        calls = completion.choices[0].message.tool_calls
        assert [tool.function.name for tool in calls] == [called["name"] for called in CALLS]
    assert final.usage is None


def test_structured_output(gateway: Gateway, mock: Mock) -> None:
    """A schema for the answer reaches the provider in its own field."""
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
    with sdk(gateway) as client:
        client.chat.completions.create(
            model="claude",
            messages=[{"role": "user", "content": "A city."}],
            response_format={"type": "json_schema", "json_schema": {"name": "place", "schema": schema, "strict": True}},
            max_tokens=64,
        )
    sent = json.loads(json.loads(call(f"{mock.url}/mock/calls")[2])[-1]["body"])
    assert sent["output_config"]["format"] == {"type": "json_schema", "schema": schema}


def test_errors_are_the_packages_own(gateway: Gateway, mock: Mock) -> None:
    """An error of the provider's in its dialect is told in the client's, and so is what it cannot be asked."""
    with sdk(gateway) as client:
        messages: list[Any] = [{"role": "user", "content": "x"}]
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(model="claude", messages=messages, max_tokens=9, n=2)
        assert refused.value.param == "n"
        mock.faults(count=1, status=429, retry_after="7")
        with pytest.raises(openai.RateLimitError) as limited:
            client.chat.completions.create(model="claude", messages=messages, max_tokens=9)
        assert int(limited.value.response.headers["retry-after"]) in (6, 7)
