"""The exact-match cache of gateways as processes: what the official packages make of a hit, and what two replicas share."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
import redis as redis_client

from sluicegate.ledger.cache_redis import PREFIX
from support_gateway import Gateway, Mock, config, running_gateway, running_mock
from support_inloop import fresh_redis

SAID: list[Any] = [{"role": "user", "content": "What is the weather?"}]
CHAT_TOOLS: list[Any] = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}]
TOOLS: list[Any] = [{"name": "get_weather", "input_schema": {"type": "object", "properties": {}}}]
MODELS = pytest.mark.parametrize("model", ["gpt", "claude"])
FIRST = pytest.mark.parametrize("stream_first", [False, True], ids=["unary_first", "stream_first"])


@pytest.fixture(scope="module")
def mock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mock]:
    options = ("--ttft", "1ms", "--tpot", "0ms", "--completion", "20", "--tools", "first")
    with running_mock(tmp_path_factory.mktemp("mock"), *options) as mock:
        yield mock


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, mock: Mock) -> Iterator[Gateway]:
    directory: Path = tmp_path_factory.mktemp("gateway")
    text = f"""
server: {{listen: "127.0.0.1:0"}}
ledger: sqlite:///{directory}/ledger.db
records: sqlite:///{directory}/records.db
journal: {directory}/journal/
cache: {{mode: all}}
providers:
  anthropic: {{provider: anthropic, base_url: {mock.url}, api_key: sk-ant-of-the-operator}}
  openai: {{provider: openai_compatible, base_url: {mock.url}/v1}}
models:
  claude: {{deployments: [{{provider: anthropic, model: claude-sonnet-4-5, price: {{input: 3, output: 15}}}}], max_output: 4096}}
  gpt: {{deployments: [{{provider: openai, model: gpt-mock, price: {{input: 1, output: 2}}}}], max_output: 4096}}
tenants: {{acme: {{keys: [{{name: normal, key: sk-normal}}]}}}}
"""
    with running_gateway(directory, text) as gateway:
        yield gateway


def calls(mock: Mock) -> int:
    return int(mock.total()["requests"])


@MODELS
@FIRST
def test_openai_chat(gateway: Gateway, mock: Mock, model: str, stream_first: bool) -> None:
    """A stream put together by the package and an answer in one piece: the same calls, finish and usage, from one call of the provider."""
    asked: dict[str, Any] = {"model": model, "messages": SAID, "tools": CHAT_TOOLS, "max_tokens": 100, "user": f"{model} {stream_first}"}
    before = calls(mock)
    with openai.OpenAI(base_url=gateway.base_url, api_key="sk-normal", max_retries=0) as sdk:

        def whole() -> Any:
            return sdk.chat.completions.create(**asked)

        def stream() -> Any:
            with sdk.chat.completions.stream(**asked, stream_options={"include_usage": True}) as events:
                for _ in events:
                    pass
                return events.get_final_completion()

        first, second = (stream(), whole()) if stream_first else (whole(), stream())
    assert calls(mock) - before == 1 and (first.id, first.model, first.created) == (second.id, second.model, second.created)
    for one, other in zip(first.choices, second.choices, strict=True):
        assert (one.finish_reason, one.message.content) == (other.finish_reason, other.message.content) and one.finish_reason == "tool_calls"
        made = [[(call.id, call.function.name, call.function.arguments) for call in each.message.tool_calls] for each in (one, other)]
        assert made[0] == made[1] and made[0]
    assert first.usage.model_dump(exclude_none=True) == second.usage.model_dump(exclude_none=True) and first.usage.completion_tokens > 0


@MODELS
@FIRST
def test_anthropic_messages(gateway: Gateway, mock: Mock, model: str, stream_first: bool) -> None:
    """The same of a message, at a provider that speaks this dialect and at one that does not."""
    asked: dict[str, Any] = {"model": model, "messages": SAID, "tools": TOOLS, "max_tokens": 100, "metadata": {"user_id": f"{model} {stream_first}"}}
    before = calls(mock)
    with anthropic.Anthropic(base_url=gateway.url, api_key="sk-normal", max_retries=0) as sdk:

        def whole() -> Any:
            return sdk.messages.create(**asked)

        def stream() -> Any:
            with sdk.messages.stream(**asked) as events:
                return events.get_final_message()

        first, second = (stream(), whole()) if stream_first else (whole(), stream())
    assert calls(mock) - before == 1 and (first.id, first.model, first.stop_reason) == (second.id, second.model, second.stop_reason)
    assert first.stop_reason == "tool_use"
    dumped = [[block.model_dump(include={"type", "text", "id", "name", "input"}) for block in message.content] for message in (first, second)]
    assert dumped[0] == dumped[1] and dumped[0]
    for name in ("input_tokens", "output_tokens", "cache_read_input_tokens"):
        assert getattr(first.usage, name) == getattr(second.usage, name)


@FIRST
def test_openai_responses(gateway: Gateway, mock: Mock, stream_first: bool) -> None:
    """The same of a response: the events of a stream end with the response that the other client gets."""
    asked: dict[str, Any] = {"model": "gpt", "input": "Say something.", "user": f"responses {stream_first}"}
    before = calls(mock)
    with openai.OpenAI(base_url=gateway.base_url, api_key="sk-normal", max_retries=0) as sdk:

        def whole() -> Any:
            return sdk.responses.create(**asked)

        def stream() -> Any:
            return [event for event in sdk.responses.create(**asked, stream=True) if event.type == "response.completed"][-1].response

        first, second = (stream(), whole()) if stream_first else (whole(), stream())
    assert calls(mock) - before == 1 and first.model_dump(warnings=False) == second.model_dump(warnings=False) and first.output_text


TENANTS = """
  acme: {keys: [{name: lab, key: sk-lab, limits: [100 requests/day, 100k tokens/day]}, {name: other, key: sk-other}]}"""


def test_two_replicas_share_answers_in_redis(tmp_path: Path, redis_url: str) -> None:
    """With a ledger in Redis nothing else need be said: one asks, the other has the answer. A limit on requests counts over both; another key does
    not get it. When Redis forgets an answer, it is asked for anew."""
    with contextlib.ExitStack() as stack:
        store, client = stack.enter_context(fresh_redis(redis_url, db=8))
        mock = stack.enter_context(running_mock(tmp_path, "--ttft", "1ms", "--tpot", "0ms", "--completion", "20"))
        text = config(tmp_path, mock.url, TENANTS, ledger=store, more="cache: {mode: all}")
        one, two = (stack.enter_context(running_gateway(tmp_path, text, name)) for name in ("one", "two"))
        asked = one.chat("sk-lab")
        assert asked[1]["x-sluicegate-cache"] == "miss"
        hit = two.chat("sk-lab")
        deadline = time.monotonic() + 60
        while hit[1]["x-sluicegate-cache"] != "hit" and time.monotonic() < deadline:
            hit = two.chat("sk-lab")
        assert hit[1]["x-sluicegate-cache"] == "hit" and hit[2]["choices"][0]["message"]["role"] == "assistant"
        made = calls(mock)
        assert one.chat("sk-lab")[1]["x-sluicegate-cache"] == "hit" and calls(mock) == made
        used = {limit["unit"]: limit["used"] for limit in two.usage("sk-lab")["limits"]}
        assert used["requests"] == 2 + made and used["tokens"] == mock.total()["tokens"]
        assert two.chat("sk-other")[1]["x-sluicegate-cache"] == "miss"
        assert isinstance(client, redis_client.Redis)
        for key in client.keys(PREFIX + "*"):  # type: ignore[union-attr]
            client.delete(key)
        assert two.chat("sk-lab")[1]["x-sluicegate-cache"] == "miss"
