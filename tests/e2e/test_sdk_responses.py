"""The official `openai` package against the gateway's `/v1/responses`, only base_url and key changed: at a provider that speaks this dialect (model
`chat`), at one that speaks OpenAI chat (`gpt`) and at Anthropic's (`claude`)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pydantic
import pytest

from support_gateway import Gateway, Mock, running_gateway, running_mock

MODELS = pytest.mark.parametrize("model", ["chat", "gpt", "claude"])
TOOLS: list[Any] = [
    {
        "type": "function",
        "name": "get_weather",
        "description": "The weather at a place.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"], "additionalProperties": False},
        "strict": True,
    }
]


@pytest.fixture(scope="module")
def mock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mock]:
    with running_mock(tmp_path_factory.mktemp("mock"), "--ttft", "2ms", "--tpot", "0ms") as mock:
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
  mock: {{provider: mock, base_url: {mock.url}/v1}}
  compatible: {{provider: openai_compatible, base_url: {mock.url}/v1}}
  anthropic: {{provider: anthropic, base_url: {mock.url}, api_key: sk-ant-of-the-operator}}
models:
  chat: {{deployments: [{{provider: mock, model: mock-model, price: {{input: 1, output: 2}}}}], max_output: 4096}}
  gpt: {{deployments: [{{provider: compatible, model: gpt-mock, price: {{input: 1, output: 2}}}}], max_output: 4096}}
  claude: {{deployments: [{{provider: anthropic, model: claude-sonnet-4-5, price: {{input: 1, output: 2}}}}], max_output: 4096}}
tenants:
  acme:
    keys:
      - {{name: normal, key: sk-normal, limits: [$500/month]}}
      - {{name: short, key: sk-short, limits: [60 output tokens/day]}}
"""
    with running_gateway(directory, config) as gateway:
        yield gateway


@pytest.fixture
def sdk(gateway: Gateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=gateway.base_url, api_key="sk-normal", max_retries=0) as client:
        yield client


@pytest.fixture
def agent(mock: Mock) -> Iterator[None]:
    """The next two calls: one that thinks and calls the first tool, one that answers with text."""
    mock.faults(count=2, tools="first", completion=9, reasoning="visible", reasoning_tokens=4)
    yield
    mock.reset()


@MODELS
def test_a_response(sdk: openai.OpenAI, model: str) -> None:
    """Text, a status, usage with its details, the headers of the raw response."""
    raw = sdk.responses.with_raw_response.create(model=model, input="Say something.", max_output_tokens=4000, metadata={"a": "b"}, store=False)
    response = raw.parse()
    assert response.output_text and response.status == "completed" and response.error is None
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens > 0
    assert response.usage.output_tokens_details.reasoning_tokens == 0
    assert raw.headers["x-sluicegate-request-id"].startswith("req_")
    cut = sdk.responses.create(model=model, input="Say something.", max_output_tokens=3)
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")


@MODELS
def test_a_streamed_response(sdk: openai.OpenAI, model: str) -> None:
    """Every event in its order, from `create(stream=True)` and from the helper; the helper has the same text in the end."""
    events = list(sdk.responses.create(model=model, input="Say something.", max_output_tokens=4000, stream=True))
    assert [event.type for event in events[:4]] == [
        *("response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"),
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    final = events[-1].response
    assert events[-1].type == "response.completed" and final.usage.output_tokens > 0
    assert final.output_text == "".join(event.delta for event in events if event.type == "response.output_text.delta") != ""
    with sdk.responses.stream(model=model, input="Say something.", max_output_tokens=4000) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert stream.get_final_response().output_text == text != ""


@MODELS
async def test_the_async_client(gateway: Gateway, model: str) -> None:
    """Likewise, the helper included."""
    async with openai.AsyncOpenAI(base_url=gateway.base_url, api_key="sk-normal") as client:
        assert (await client.responses.create(model=model, input="Say something.", max_output_tokens=16)).output_text
        async with client.responses.stream(model=model, input="Say something.", max_output_tokens=4000) as stream:
            text = "".join([event.delta async for event in stream if event.type == "response.output_text.delta"])
            assert (await stream.get_final_response()).output_text == text != ""


@MODELS
@pytest.mark.parametrize("streamed", [False, True], ids=["unary", "stream"])
@pytest.mark.usefixtures("agent")
def test_a_tool_loop(sdk: openai.OpenAI, model: str, streamed: bool) -> None:
    """An agent gives the items of the answer back as the package has them, with what its tool gave: reasoning and its signature included."""
    given: list[Any] = [{"role": "user", "content": "Weather?"}]
    for turn in range(2):
        asked: dict[str, Any] = {"model": model, "input": given, "tools": TOOLS, "max_output_tokens": 4000}
        if streamed:
            with sdk.responses.stream(**asked) as stream:
                response = stream.get_final_response()
        else:
            response = sdk.responses.create(**asked)
        calls = [item for item in response.output if item.type == "function_call"]
        assert bool(calls) == (turn == 0)
        given += response.output
        given += [{"type": "function_call_output", "call_id": call.call_id, "output": json.loads(call.arguments)["place"]} for call in calls]
    assert response.output_text


class Place(pydantic.BaseModel):
    """What the answer is to hold."""

    place: str


@pytest.mark.parametrize("model", ["chat", "gpt"])
def test_answers_of_a_schema(sdk: openai.OpenAI, mock: Mock, model: str) -> None:
    """`parse` makes a value of them."""
    mock.faults(count=1, completion=1, word='{"place":"Oslo"}')
    parsed = sdk.responses.parse(model=model, input="Where?", text_format=Place)
    assert parsed.output_parsed == Place(place="Oslo")


def test_errors_are_the_packages_own(sdk: openai.OpenAI, gateway: Gateway, mock: Mock) -> None:
    """Before a stream and in it; a budget that is used up is tried once."""
    with pytest.raises(openai.BadRequestError) as refused:
        sdk.responses.create(model="chat", input="x", background=True)
    assert refused.value.param == "background"
    with pytest.raises(openai.NotFoundError):
        sdk.responses.create(model="nothing", input="x", stream=True)
    with openai.OpenAI(base_url=gateway.base_url, api_key="sk-short") as short, pytest.raises(openai.RateLimitError) as exhausted:
        while True:
            short.responses.create(model="chat", input="x", max_output_tokens=30)
    assert exhausted.value.code == "budget_exceeded"
    for model in ("chat", "gpt", "claude"):
        mock.faults(count=1, completion=9, cut_after=4, cut="rst")
        with pytest.raises(openai.APIError) as broken:
            list(sdk.responses.create(model=model, input="x", max_output_tokens=16, stream=True))
        assert broken.value.code == "upstream_error"
