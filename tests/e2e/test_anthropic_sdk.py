"""The official `anthropic` package against the gateway, only base_url and key changed: at a provider that speaks its dialect, and at one that speaks
OpenAI chat."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest

from support_gateway import Gateway, Mock, call, running_gateway, running_mock

MESSAGES: list[Any] = [{"role": "user", "content": "Say something."}]
TOOLS: list[Any] = [
    {
        "name": "get_weather",
        "description": "The weather at a place.",
        "input_schema": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    }
]
MODELS = ["claude", "gpt"]


@pytest.fixture(scope="module")
def mock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mock]:
    with running_mock(tmp_path_factory.mktemp("mock"), "--ttft", "2ms", "--tpot", "0ms") as mock:
        yield mock


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, mock: Mock) -> Iterator[Gateway]:
    directory = tmp_path_factory.mktemp("gateway")
    config = f"""
server: {{listen: "127.0.0.1:0", max_body: 1MB}}
ledger: sqlite:///{directory}/ledger.db
records: sqlite:///{directory}/records.db
journal: {directory}/journal/
resilience: {{retries: 0, cooldown: 0s, breaker: {{failures: 10000}}}}
providers:
  anthropic: {{provider: anthropic, base_url: {mock.url}, api_key: sk-ant-of-the-operator}}
  versioned: {{provider: anthropic, base_url: {mock.url}/v1, api_key: sk-ant-of-the-operator}}
  openai: {{provider: openai_compatible, base_url: {mock.url}/v1}}
models:
  claude: {{deployments: [{{provider: anthropic, model: claude-sonnet-4-5, price: {{input: 3, output: 15}}}}], max_output: 4096}}
  versioned: {{deployments: [{{provider: versioned, model: claude-sonnet-4-5, price: {{input: 3, output: 15}}}}]}}
  gpt: {{deployments: [{{provider: openai, model: gpt-mock, price: {{input: 1, output: 2}}}}], max_output: 4096}}
  either:
    deployments:
      - {{provider: openai, model: gpt-mock, price: {{input: 1, output: 2}}}}
      - {{provider: anthropic, model: claude-sonnet-4-5, price: {{input: 3, output: 15}}}}
tenants:
  acme:
    keys:
      - {{name: normal, key: sk-normal}}
      - {{name: rate, key: sk-rate, limits: [1 requests/minute]}}
      - {{name: poor, key: sk-poor, limits: [$0.0008/day]}}
      - {{name: short, key: sk-short, limits: [40 output tokens/day]}}
      - {{name: narrow, key: sk-narrow, models: [claude]}}
"""
    with running_gateway(directory, config) as gateway:
        yield gateway


def client(gateway: Gateway, key: str = "sk-normal", **options: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=gateway.url, api_key=key, **options)


def mocked(**options: Any) -> dict[str, str]:
    """What the mock is to do in this call; it passes the gateway inside the conversation."""
    return {"role": "user", "content": f"[[mock {json.dumps(options)}]] Go."}


@pytest.mark.parametrize("model", [*MODELS, "versioned"])
def test_a_unary_answer(gateway: Gateway, model: str) -> None:
    """A message with text, a stop reason and usage; the headers of the raw response name the request and the deployment."""
    with client(gateway) as sdk:
        raw = sdk.messages.with_raw_response.create(model=model, messages=[mocked(completion=7, prompt=20)], max_tokens=64)
    answer = raw.parse()
    assert (answer.type, answer.role, answer.stop_reason, answer.content[0].type) == ("message", "assistant", "end_turn", "text")
    assert answer.content[0].text
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (20, 7)
    assert raw.headers["x-sluicegate-request-id"].startswith("req_")
    assert raw.headers["x-sluicegate-deployment"].endswith(("gpt-mock", "claude-sonnet-4-5"))


@pytest.mark.parametrize("model", MODELS)
def test_a_streamed_answer(gateway: Gateway, model: str) -> None:
    """The streaming helper puts together the same message that a unary call gives, with its usage."""
    with client(gateway) as sdk:
        whole = sdk.messages.create(model=model, messages=[mocked(completion=9, prompt=20, id="same")], max_tokens=64)
        with sdk.messages.stream(model=model, messages=[mocked(completion=9, prompt=20, id="same")], max_tokens=64) as stream:
            text = "".join(stream.text_stream)
            message = stream.get_final_message()
    assert message.content[0].text == text == whole.content[0].text
    assert (message.stop_reason, message.usage.output_tokens, message.usage.input_tokens) == ("end_turn", 9, 20)
    assert message.model == whole.model


@pytest.mark.parametrize("model", MODELS)
def test_a_cap_ends_an_answer(gateway: Gateway, model: str) -> None:
    """`max_tokens` is kept upstream and told as the stop reason, whole and streamed (case 69)."""
    with client(gateway) as sdk:
        whole = sdk.messages.create(model=model, messages=[mocked(completion=50)], max_tokens=5)
        with sdk.messages.stream(model=model, messages=[mocked(completion=50)], max_tokens=5) as stream:
            message = stream.get_final_message()
    assert [whole.stop_reason, message.stop_reason] == ["max_tokens", "max_tokens"]
    assert [whole.usage.output_tokens, message.usage.output_tokens] == [5, 5]


def loop(sdk: anthropic.Anthropic, model: str, stream: bool, thinking: Any, **options: Any) -> tuple[list[Any], list[tuple[int, int]]]:
    """An agent with one tool, until it has an answer: all messages, and the usage of each turn."""
    messages: list[Any] = [mocked(**options)]
    usages = []
    for _ in range(3):
        asked = {"model": model, "messages": messages, "max_tokens": 2048, "tools": TOOLS, "thinking": thinking}
        if stream:
            with sdk.messages.stream(**asked) as events:
                message = events.get_final_message()
        else:
            message = sdk.messages.create(**asked)
        usages.append((message.usage.input_tokens, message.usage.output_tokens))
        messages.append({"role": "assistant", "content": [block.to_dict() for block in message.content]})
        calls = [block for block in message.content if block.type == "tool_use"]
        if not calls:
            assert message.stop_reason == "end_turn"
            break
        assert message.stop_reason == "tool_use"
        results = [{"type": "tool_result", "tool_use_id": used.id, "content": f"It rains: {json.dumps(used.input)}"} for used in calls]
        messages.append({"role": "user", "content": results})
    return messages, usages


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "streamed"])
@pytest.mark.parametrize("model", MODELS)
def test_an_agent_with_tools_and_thinking(gateway: Gateway, model: str, stream: bool) -> None:
    """Thinking, two calls at once, their results, an answer: the same at either provider, whole or streamed, and thinking goes back as it came."""
    tools = [{"name": "get_weather", "arguments": {"place": "Oslo"}}, {"name": "get_weather", "arguments": {}}]
    with client(gateway) as sdk:
        thinking = {"type": "enabled", "budget_tokens": 1024}
        messages, usages = loop(sdk, model, stream, thinking, completion=30, tools=tools, reasoning="visible", reasoning_tokens=8, id="loop")
    assert [message["role"] for message in messages] == ["user", "assistant", "user", "assistant"]
    first = messages[1]["content"]
    assert first[0]["type"] == "thinking" and first[0]["thinking"] and first[0]["signature"]
    assert [block["input"] for block in first if block["type"] == "tool_use"] == [{"place": "Oslo"}, {}]
    assert messages[3]["content"][-1]["text"]
    assert all(read > 0 and written > 0 for read, written in usages)


@pytest.mark.parametrize("model", MODELS)
async def test_the_async_client(gateway: Gateway, model: str) -> None:
    """Whole and streamed, by events and by the helper; a key may also come as a bearer token."""
    async with anthropic.AsyncAnthropic(base_url=gateway.url, auth_token="sk-normal", api_key=None) as sdk:
        whole = await sdk.messages.create(model=model, messages=MESSAGES, max_tokens=16)
        kinds = [event.type async for event in await sdk.messages.create(model=model, messages=MESSAGES, max_tokens=16, stream=True)]
        async with sdk.messages.stream(model=model, messages=MESSAGES, max_tokens=16) as stream:
            text = "".join([part async for part in stream.text_stream])
    assert whole.content[0].text and text
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_tokens_are_counted_by_the_gateway(gateway: Gateway, mock: Mock) -> None:
    """count_tokens is answered without an upstream, for whoever may use the model, and needs no cap."""
    before = mock.stats()["total"]["requests"]
    with client(gateway) as sdk:
        few = sdk.messages.count_tokens(model="claude", messages=MESSAGES).input_tokens
        more = sdk.messages.count_tokens(model="claude", messages=[*MESSAGES, *MESSAGES], system="Be brief.", tools=TOOLS).input_tokens
        assert 0 < few < more
        with pytest.raises(anthropic.NotFoundError):
            sdk.messages.count_tokens(model="nothing", messages=MESSAGES)
        with pytest.raises(anthropic.BadRequestError, match="messages"):
            sdk.messages.count_tokens(model="claude", messages=[])
        pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}}
        with pytest.raises(anthropic.BadRequestError, match="cannot be bounded"):
            sdk.messages.count_tokens(model="claude", messages=[{"role": "user", "content": [pdf]}])  # type: ignore[list-item]
    with client(gateway, "sk-nobody") as sdk, pytest.raises(anthropic.AuthenticationError):
        sdk.messages.count_tokens(model="claude", messages=MESSAGES)
    assert mock.stats()["total"]["requests"] == before


ERRORS = [
    ("sk-nobody", {}, 401, "authentication_error", "invalid_api_key"),
    ("sk-normal", {"model": "nothing"}, 404, "not_found_error", "model_not_found"),
    ("sk-narrow", {"model": "gpt"}, 404, "not_found_error", "model_not_found"),
    ("sk-normal", {"max_tokens": 0}, 400, "invalid_request_error", "invalid_request"),
    ("sk-normal", {"messages": [{"role": "user", "content": "x" * 1_200_000}]}, 413, "request_too_large", "request_body_too_large"),
    ("sk-normal", {"messages": [mocked(status=529)]}, 529, "overloaded_error", "upstream_overloaded"),
    ("sk-normal", {"messages": [mocked(status=401)]}, 502, "api_error", "upstream_error"),
    ("sk-normal", {"messages": [mocked(status=504)]}, 504, "timeout_error", "upstream_timeout"),
    ("sk-normal", {"messages": [mocked(error_in_200=529)]}, 529, "overloaded_error", "upstream_overloaded"),
]


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "streamed"])
@pytest.mark.parametrize("at", [0, 1], ids=MODELS)
@pytest.mark.parametrize(("key", "fields", "status", "kind", "code"), ERRORS, ids=[f"{e[2]} {e[3]} {i}" for i, e in enumerate(ERRORS)])
def test_errors(gateway: Gateway, key: str, fields: dict[str, Any], status: int, kind: str, code: str, at: int, stream: bool) -> None:
    """Whatever is wrong, and whoever says so, is an error in Anthropic's shape, with its status and the request's id."""
    model = "claude" if key == "sk-narrow" and not fields else MODELS[at]
    asked: dict[str, Any] = {"model": model, "messages": MESSAGES, "max_tokens": 16, "stream": stream, **fields}
    with client(gateway, key, max_retries=0) as sdk, pytest.raises(anthropic.APIStatusError) as error:
        sdk.messages.create(**asked)
    body: Any = error.value.body
    assert (error.value.status_code, body["type"], body["error"]["type"]) == (status, "error", kind)
    assert body["error"]["code"] == code
    assert body["request_id"] == error.value.response.headers["x-sluicegate-request-id"]
    assert "sk-ant" not in str(body)


def test_money_that_is_spent_is_a_matter_of_billing(gateway: Gateway) -> None:
    """402 billing_error, which the package does not try again."""
    with client(gateway, "sk-poor") as sdk, pytest.raises(anthropic.APIStatusError) as error:
        for _ in range(5):
            sdk.messages.create(model="claude", messages=[mocked(completion=16, prompt=20)], max_tokens=16)
    assert (error.value.status_code, error.value.type) == (402, "billing_error")
    assert error.value.response.headers["x-should-retry"] == "false"


def test_a_rate_limit_says_when_to_come_back(gateway: Gateway) -> None:
    """429 rate_limit_error with a bare retry-after."""
    with client(gateway, "sk-rate", max_retries=0) as sdk:
        sdk.messages.create(model="claude", messages=MESSAGES, max_tokens=16)
        with pytest.raises(anthropic.RateLimitError) as error:
            sdk.messages.create(model="claude", messages=MESSAGES, max_tokens=16)
    assert error.value.type == "rate_limit_error"
    assert 0 < int(error.value.response.headers["retry-after"]) <= 60


@pytest.mark.parametrize("model", MODELS)
def test_case_74_a_failed_stream_is_an_error(gateway: Gateway, model: str) -> None:
    """A stream that breaks off upstream ends with an error event, never as a success."""
    broken: Any = {"model": model, "messages": [mocked(completion=30, cut_after=5, cut="rst")], "max_tokens": 64}
    with client(gateway, max_retries=0) as sdk, pytest.raises(anthropic.APIStatusError) as error, sdk.messages.stream(**broken) as stream:
        stream.get_final_message()
    assert "api_error" in str(error.value)


def test_a_bearer_or_an_api_key_and_other_methods(gateway: Gateway) -> None:
    """Without the package: 405 with `allow`, and 401 without any key, in Anthropic's shape."""
    status, headers, body = call(f"{gateway.url}/v1/messages", method="GET")
    assert (status, headers["allow"], json.loads(body)["error"]["type"]) == (405, "POST", "invalid_request_error")
    status, _, body = call(f"{gateway.url}/v1/messages", {"model": "claude", "max_tokens": 5, "messages": MESSAGES})
    assert (status, json.loads(body)["type"]) == (401, "error")


def test_the_clients_key_never_leaves(gateway: Gateway, mock: Mock) -> None:
    """The provider gets its own key, the version of the API and the betas that the client asked for; not the client's credential."""
    with client(gateway) as sdk:
        sdk.messages.create(model="claude", messages=MESSAGES, max_tokens=16, extra_headers={"anthropic-beta": "some-beta-2026-01-01"})
    seen = json.loads(call(f"{mock.url}/mock/calls")[2])
    last = seen[-1]
    assert last["headers"]["x-api-key"] == "sk-ant-of-the-operator"
    assert (last["headers"]["anthropic-version"], last["headers"]["anthropic-beta"]) == ("2023-06-01", "some-beta-2026-01-01")
    assert "sk-normal" not in str(last)


@pytest.mark.parametrize("model", MODELS)
def test_what_a_budget_leaves_is_the_cap_upstream(gateway: Gateway, mock: Mock, model: str, tmp_path: Path) -> None:
    """With 40 tokens a day at most 40 are produced, over both providers together; what is cut ends with max_tokens."""
    produced = 0
    with client(gateway, "sk-short", max_retries=0) as sdk:
        for _ in range(4):
            try:
                with sdk.messages.stream(model=model, messages=[mocked(completion=30, caller="short")], max_tokens=64) as stream:
                    produced += stream.get_final_message().usage.output_tokens
            except anthropic.APIStatusError as error:
                assert error.status_code in (402, 429)
    assert produced <= 40


def test_a_route_of_two_dialects(gateway: Gateway, mock: Mock) -> None:
    """Where the first provider fails, the second answers in the same shape though it speaks another dialect."""
    mock.faults(status=503, count=1)
    with client(gateway, max_retries=0) as sdk:
        raw = sdk.messages.with_raw_response.create(model="either", messages=MESSAGES, max_tokens=16)
    assert raw.parse().content[0].type == "text"
    assert raw.headers["x-sluicegate-attempts"] == "openai/gpt-mock:503,anthropic/claude-sonnet-4-5:200"


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "streamed"])
@pytest.mark.parametrize("model", MODELS)
def test_the_packages_own_tool_loop(gateway: Gateway, model: str, stream: bool) -> None:
    """Its runner calls the function and asks again until there is an answer; its beta paths are the same paths."""
    asked = []

    @anthropic.beta_tool
    def get_weather(place: str) -> str:
        """The weather at a place."""
        asked.append(place)
        return "It rains."

    options = mocked(completion=12, tools=[{"name": "get_weather", "arguments": {"place": "Oslo"}}])
    with client(gateway) as sdk:
        runner = sdk.beta.messages.tool_runner(model=model, max_tokens=256, tools=[get_weather], messages=[options], stream=stream)
        if stream:
            *_, last = [events.get_final_message() for events in runner]
        else:
            last = runner.until_done()
        counted = sdk.beta.messages.count_tokens(model=model, messages=MESSAGES, betas=["token-counting-2024-11-01"])
    assert (asked, last.stop_reason, last.content[-1].type) == (["Oslo"], "end_turn", "text")
    assert counted.input_tokens > 0


@pytest.mark.parametrize("model", MODELS)
def test_what_a_coding_agent_sends(gateway: Gateway, mock: Mock, model: str) -> None:
    """System blocks with marks of a cache, a system message in the middle, adaptive thinking, effort, context management, a user: served at either
    provider, and of all that tunes what the other dialect has no place for is named."""
    mark = {"type": "ephemeral", "ttl": "1h"}
    fields: dict[str, Any] = {
        "system": [{"type": "text", "text": "You write code.", "cache_control": mark}, {"type": "text", "text": "Be brief.", "cache_control": mark}],
        "metadata": {"user_id": "somebody"},
        "tools": [TOOLS[0] | {"cache_control": mark}],
        "thinking": {"type": "adaptive"},
        "extra_body": {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}, "output_config": {"effort": "medium"}},
    }
    with client(gateway) as sdk:
        raw = sdk.messages.with_raw_response.create(model=model, messages=[mocked(completion=5)], max_tokens=2048, **fields)
    assert raw.parse().content[-1].type == "text"
    body = json.loads(json.loads(call(f"{mock.url}/mock/calls")[2])[-1]["body"])
    if model == "claude":
        assert (body["system"], body["tools"][0]["cache_control"], body["thinking"]) == (fields["system"], mark, {"type": "adaptive"})
        assert "x-sluicegate-left-out" not in raw.headers
    else:
        assert [message["role"] for message in body["messages"]] == ["system", "user"]
        assert (body["user"], body["reasoning_effort"], "cache_control" in str(body)) == ("somebody", "medium", False)
        assert raw.headers["x-sluicegate-left-out"] == "context_management"
