"""What a client is told of its request if it asks: by the official packages, in each dialect and between two, after a fallback too."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from support_gateway import Gateway, Mock, call, free_port, running_gateway, running_mock

BLOCK, COST = {"x-sluicegate-include": "block"}, {"x-sluicegate-include": "cost"}
SAID: list[Any] = [{"role": "user", "content": "Say something."}]
MODELS = pytest.mark.parametrize("model", ["chat", "gpt", "claude"])


@pytest.fixture(scope="module")
def mock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mock]:
    with running_mock(tmp_path_factory.mktemp("mock"), "--ttft", "2ms", "--tpot", "0ms", "--completion", "5") as mock:
        yield mock


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, mock: Mock) -> Iterator[Gateway]:
    directory: Path = tmp_path_factory.mktemp("gateway")
    config = f"""
server: {{listen: "127.0.0.1:0"}}
ledger: sqlite:///{directory}/ledger.db
records: sqlite:///{directory}/records.db
journal: {directory}/journal/
resilience: {{retries: 0, cooldown: 0s, breaker: {{failures: 10000}}}}
providers:
  dead: {{provider: openai_compatible, base_url: "http://127.0.0.1:{free_port()}/v1"}}
  mock: {{provider: mock, base_url: {mock.url}/v1}}
  compatible: {{provider: openai_compatible, base_url: {mock.url}/v1}}
  groq: {{provider: groq, base_url: {mock.url}/v1, api_key: sk-of-the-operator}}
  anthropic: {{provider: anthropic, base_url: {mock.url}, api_key: sk-ant-of-the-operator}}
models:
  chat: {{deployments: [{{provider: mock, model: mock-model, price: {{input: 1, output: 2}}}}], max_output: 4096}}
  gpt: {{deployments: [{{provider: compatible, model: gpt-mock, price: {{input: 1, output: 2}}}}], max_output: 4096}}
  claude: {{deployments: [{{provider: anthropic, model: claude-sonnet-4-5, price: {{input: 1, output: 2}}}}], max_output: 4096}}
  le: {{deployments: [{{provider: groq, model: llama, price: {{input: 1, output: 2}}}}], max_output: 4096}}
  falls:
    deployments: [{{provider: dead, model: gone}}, {{provider: mock, model: mock-model, price: {{input: 1, output: 2}}}}]
    max_output: 4096
tenants:
  acme: {{keys: [{{name: normal, key: sk-normal}}]}}
"""
    with running_gateway(directory, config) as gateway:
        yield gateway


@pytest.fixture
def sdk(gateway: Gateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=gateway.base_url, api_key="sk-normal", max_retries=0) as client:
        yield client


@pytest.fixture
def claude(gateway: Gateway) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=gateway.url, api_key="sk-normal", max_retries=0) as client:
        yield client


def check(block: dict[str, Any], model: str, usage: tuple[int, int], deployments: int = 1) -> None:
    """A block is whole, and says what the usage costs."""
    assert block.keys() == {"model", "deployment", "fallback_used", "attempts", "cost_usd", "overhead_ms", "cache", "request_id"}
    assert (block["model"], block["fallback_used"], block["cache"]) == (model, deployments > 1, "off")
    assert [attempt["outcome"] for attempt in block["attempts"]] == ["connect"] * (deployments - 1) + ["200"]
    assert block["attempts"][-1]["deployment"] == block["deployment"]
    assert block["cost_usd"] == pytest.approx((usage[0] * 1 + usage[1] * 2) / 1e6)
    assert block["overhead_ms"] > 0 and block["request_id"].startswith("req_")


@MODELS
def test_a_chat_in_one_piece(sdk: openai.OpenAI, model: str) -> None:
    """The block agrees with the headers and the usage; without the header there is none."""
    raw = sdk.chat.completions.with_raw_response.create(model=model, messages=SAID, extra_headers=BLOCK)
    answer: Any = raw.parse()
    check(answer.sluicegate, model, (answer.usage.prompt_tokens, answer.usage.completion_tokens))
    assert float(raw.headers["x-sluicegate-cost-usd"]) == answer.sluicegate["cost_usd"]
    assert raw.headers["x-sluicegate-request-id"] == answer.sluicegate["request_id"]
    plain = sdk.chat.completions.create(model=model, messages=SAID)
    assert plain.choices[0].message.content and "sluicegate" not in (plain.model_extra or {})


@MODELS
def test_a_streamed_chat(sdk: openai.OpenAI, model: str) -> None:
    """A last chunk of ours without choices, and the usage with the cost if that is asked for: once, whether usage was asked for or not."""
    chunks: list[Any] = list(sdk.chat.completions.create(model=model, messages=SAID, stream=True, extra_headers=BLOCK))
    assert [chunk for chunk in chunks if not chunk.choices] == [chunks[-1]] and chunks[-1].id == chunks[0].id
    check(chunks[-1].sluicegate, model, (_input(sdk, model), 5))
    for options in ({}, {"stream_options": {"include_usage": True}}):
        said: Any = {"model": model, "messages": SAID, "stream": True, **options}
        chunks = list(sdk.chat.completions.create(**said, extra_headers=COST))
        (last,) = [chunk for chunk in chunks if chunk.usage]
        assert last is chunks[-1] and last.usage.completion_tokens == 5
        assert last.usage.cost_usd == pytest.approx((last.usage.prompt_tokens + 10) / 1e6)
    assert all(chunk.choices for chunk in sdk.chat.completions.create(model=model, messages=SAID, stream=True))


def _input(sdk: openai.OpenAI, model: str) -> int:
    usage = sdk.chat.completions.create(model=model, messages=SAID).usage
    assert usage is not None
    return usage.prompt_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_after_a_fallback(sdk: openai.OpenAI, stream: bool) -> None:
    """Who was asked before is told, and that it was not the first."""
    said: Any = {"model": "falls", "messages": SAID, "extra_headers": BLOCK, "stream": stream}
    answer: Any = sdk.chat.completions.create(**said)
    block = list(answer)[-1].sluicegate if stream else answer.sluicegate
    check(block, "falls", (_input(sdk, "chat"), 5), deployments=2)
    assert block["attempts"][0] | {"duration_ms": 0} == {
        **{"deployment": "dead/gone", "outcome": "connect", "duration_ms": 0, "error": "upstream_error", "cost_usd": 0}
    }


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", ["chat"])
def test_a_completion(sdk: openai.OpenAI, model: str, stream: bool) -> None:
    """As a chat."""
    said: Any = {"model": model, "prompt": "Say", "max_tokens": 5, "stream": stream, "extra_headers": {"x-sluicegate-include": "block, cost"}}
    answer: Any = sdk.completions.create(**said)
    last = list(answer)[-1] if stream else answer
    check(last.sluicegate, model, (last.usage.prompt_tokens, last.usage.completion_tokens))
    assert not stream or last.usage.cost_usd == last.sluicegate["cost_usd"]


@MODELS
def test_a_response(sdk: openai.OpenAI, model: str) -> None:
    """In the response, whole or at the end of a stream; the cost in its usage."""
    answer: Any = sdk.responses.create(model=model, input="Say", extra_headers=BLOCK)
    check(answer.sluicegate, model, (answer.usage.input_tokens, answer.usage.output_tokens))
    events: list[Any] = list(sdk.responses.create(model=model, input="Say", stream=True, extra_headers={"x-sluicegate-include": "cost,block"}))
    last = events[-1]
    assert last.type == "response.completed"
    check(last.response.sluicegate, model, (last.response.usage.input_tokens, last.response.usage.output_tokens))
    assert last.response.usage.cost_usd == last.response.sluicegate["cost_usd"]


def test_embeddings(sdk: openai.OpenAI) -> None:
    """They are never streamed."""
    answer: Any = sdk.embeddings.create(model="chat", input="Say", extra_headers=BLOCK)
    check(answer.sluicegate, "chat", (answer.usage.prompt_tokens, 0))


@MODELS
def test_a_message(claude: anthropic.Anthropic, model: str) -> None:
    """In the message, or in the event that ends it; Anthropic's own client puts the message together as ever."""
    said: Any = {"model": model, "max_tokens": 100, "messages": SAID}
    answer: Any = claude.messages.create(**said, extra_headers=BLOCK)
    check(answer.sluicegate, model, (answer.usage.input_tokens, answer.usage.output_tokens))
    both = {"x-sluicegate-include": "block,cost"}
    with claude.messages.stream(**said, extra_headers=both) as stream:
        message = stream.get_final_message()
    assert message.content and message.stop_reason
    events: list[Any] = list(claude.messages.create(**said, stream=True, extra_headers=both))
    stop = events[-1]
    assert stop.type == "message_stop"
    check(stop.sluicegate, model, (message.usage.input_tokens, message.usage.output_tokens))
    assert stop.usage["cost_usd"] == stop.sluicegate["cost_usd"]


def test_a_word_that_is_not_known(gateway: Gateway) -> None:
    """It is refused, by name, rather than ignored."""
    with pytest.raises(openai.BadRequestError) as caught, openai.OpenAI(base_url=gateway.base_url, api_key="sk-normal", max_retries=0) as client:
        client.chat.completions.create(model="chat", messages=SAID, extra_headers={"x-sluicegate-include": "block, costs"})
    assert caught.value.param == "x-sluicegate-include" and "'costs'" in caught.value.message


def test_what_a_provider_would_refuse_is_named(gateway: Gateway) -> None:
    """Fields that its row says it rejects are left out and named, those of messages too; what is null was not said."""
    messages = [{"role": "user", "content": "Say", "name": "ann"}]
    body = {"model": "le", "messages": messages, "logit_bias": {"1": 1}, "store": None, "temperature": 0}
    status, headers, _ = call(f"{gateway.base_url}/chat/completions", body, "sk-normal")
    assert (status, headers["x-sluicegate-left-out"]) == (200, "logit_bias,messages[].name")
    status, headers, _ = call(f"{gateway.base_url}/chat/completions", {"model": "le", "messages": SAID}, "sk-normal")
    assert status == 200 and "x-sluicegate-left-out" not in headers
    both = {"model": "le", "max_tokens": 9, "messages": SAID, "top_k": 3, "metadata": {"user_id": "u"}}
    status, headers, body_ = call(f"{gateway.base_url}/messages", both, "sk-normal")
    assert status == 200, json.loads(body_)
    assert headers["x-sluicegate-left-out"] == "top_k"
