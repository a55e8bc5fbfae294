"""Content rules, by the official packages: every dialect of clients, the same on both sides and another, whole and streamed.

The mock says " the of and to in is you that it he ...", one word in each chunk.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from support_gateway import Gateway, Mock, call, config, running_gateway, running_mock

NOTE = "No advice."
SAID: list[Any] = [{"role": "user", "content": "Say something."}]
MASKED = " the # in is"
MODELS = pytest.mark.parametrize("model", ["chat", "claude"])
STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@pytest.fixture(scope="module")
def mock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mock]:
    with running_mock(tmp_path_factory.mktemp("mock"), "--completion", "6") as mock:
        yield mock


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, mock: Mock) -> Iterator[Gateway]:
    directory: Path = tmp_path_factory.mktemp("gateway")
    config = f"""
server: {{listen: "127.0.0.1:0"}}
ledger: sqlite:///{directory}/ledger.db
records: sqlite:///{directory}/records.db
journal: {directory}/journal/
resilience: {{retries: 0}}
providers:
  mock: {{provider: mock, base_url: {mock.url}/v1}}
  chats: {{dialect: openai, base_url: {mock.url}/v1}}
  anthropic: {{provider: anthropic, base_url: {mock.url}, api_key: sk-ant-of-the-operator}}
models:
  chat: {{deployments: [{{provider: mock, model: mock-model, price: {{input: 1, output: 2}}}}], max_output: 4096}}
  foreign: {{deployments: [{{provider: chats, model: mock-model, price: {{input: 1, output: 2}}}}], max_output: 4096}}
  claude: {{deployments: [{{provider: anthropic, model: claude-sonnet-4-5, price: {{input: 1, output: 2}}}}], max_output: 4096}}
rules:
  banned: [{{name: secret, pattern: hush-hush}}]
tenants:
  acme:
    keys: [{{name: plain, key: sk-plain}}]
    children:
      masked:
        rules:
          disclaimer: {NOTE}
          banned: [{{name: words, pattern: of and to, action: mask, mask: "#", on: output}}, {{name: seen, pattern: "regex:i[ns]", action: report}}]
        keys:
          - {{name: it, key: sk-masked}}
          - {{name: more, key: sk-more, rules: {{banned: [{{name: iban, pattern: 'regex:de\\d{{2}}( ?\\d{{4}}){{4}}', action: mask, on: input}}]}}}}
      refused: {{rules: {{banned: [{{name: words, pattern: of and to, on: output}}]}}, keys: [{{name: it, key: sk-refused}}]}}
      ends: {{rules: {{banned: [{{name: words, pattern: in is, on: output}}]}}, keys: [{{name: it, key: sk-ends}}]}}
      prompted:
        rules: {{system_prompt: Be kind., force: {{temperature: 0.25}}, ceilings: {{max_tokens: 4, n: 2}}}}
        keys: [{{name: it, key: sk-prompted, rules: {{system_prompt: Be brief.}}}}]
      quiet: {{rules: {{ceilings: {{reasoning_effort: none}}}}, keys: [{{name: it, key: sk-quiet}}]}}
      small:
        rules: {{max_input_tokens: 50, max_input: 2KB}}
        keys: [{{name: it, key: sk-small}}]
"""
    with running_gateway(directory, config) as gateway:
        yield gateway


def oai(gateway: Gateway, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=gateway.base_url, api_key=key, max_retries=0)


def ant(gateway: Gateway, key: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=gateway.base_url.removesuffix("/v1"), api_key=key, max_retries=0)


def says(gateway: Gateway, key: str, dialect: str, model: str, stream: bool, **fields: Any) -> str:
    """The text of an answer, as a client's own code puts it together."""
    if dialect == "messages":
        with ant(gateway, key) as claude:
            asked: dict[str, Any] = {"model": model, "max_tokens": 64, "messages": SAID, **fields}
            if not stream:
                return "".join([block.text for block in claude.messages.create(**asked).content])
            with claude.messages.stream(**asked) as events:
                return str(events.get_final_text())
    with oai(gateway, key) as sdk:
        if dialect == "chat":
            made = sdk.chat.completions.create(model=model, messages=SAID, stream=stream, **fields)
            return "".join([one.choices[0].delta.content or "" for one in made]) if stream else made.choices[0].message.content
        if dialect == "completions":
            made = sdk.completions.create(model=model, prompt="Say", max_tokens=64, stream=stream, **fields)
            return "".join([one.choices[0].text for one in made]) if stream else made.choices[0].text
        if not stream:
            return str(sdk.responses.create(model=model, input="Say something.", **fields).output_text)
        with sdk.responses.stream(model=model, input="Say something.", **fields) as events:
            return str(events.get_final_response().output_text)


def last_sent(mock: Mock) -> Any:
    """The body that the provider was sent last."""
    return json.loads(json.loads(call(f"{mock.url}/mock/calls")[2])[-1]["body"])


@MODELS
@STREAMED
@pytest.mark.parametrize("dialect", ["chat", "completions", "responses", "messages"])
def test_answers_are_masked_and_end_with_the_disclaimer(gateway: Gateway, dialect: str, model: str, stream: bool) -> None:
    """Over three chunks, in every dialect, from a provider that speaks it and from one that does not."""
    assert says(gateway, "sk-masked", dialect, model, stream) == f"{MASKED}\n\n{NOTE}"
    assert "of and to" in says(gateway, "sk-plain", dialect, model, stream)


@MODELS
@pytest.mark.parametrize("dialect", ["chat", "completions", "responses", "messages"])
def test_a_refused_answer_is_an_error_of_the_package(gateway: Gateway, dialect: str, model: str) -> None:
    """400 content_policy where it is whole; in a stream an error event behind the text before the phrase. It names the rule and quotes nothing."""
    for key in ("sk-refused", "sk-ends"):  # in the middle, and as the last that is said
        for stream in (False, True):
            with pytest.raises((openai.APIError, anthropic.APIError)) as error:
                says(gateway, key, dialect, model, stream)
            assert "content rule 'words'" in str(error.value)
            assert "of and to" not in str(error.value) and "in is" not in str(error.value)
            if not stream:
                assert error.value.status_code == 400


@pytest.mark.parametrize("dialect", ["chat", "completions", "responses", "messages"])
def test_a_refused_request_is_never_sent(gateway: Gateway, mock: Mock, dialect: str) -> None:
    """Wherever the phrase stands and however it is written, nothing is called, held or charged."""
    before = mock.stats()["total"]["requests"]
    hidden = "a Ｈush\u200b-\u00adHUSH b"
    bodies: dict[str, list[dict[str, Any]]] = {
        "chat": [
            {"messages": [{"role": "user", "content": hidden}]},
            {"messages": [{"role": "user", "content": [{"type": "text", "text": hidden}]}]},
            {"messages": [*SAID, {"role": "assistant", "content": None, "tool_calls": [_call(hidden)]}, _result("x")]},
            {"messages": [*SAID, {"role": "assistant", "content": None, "tool_calls": [_call("x")]}, _result(hidden)]},
            {"messages": SAID, "tools": [{"type": "function", "function": {"name": "f", "description": hidden, "parameters": {"type": "object"}}}]},
        ],
        "completions": [{"prompt": hidden}, {"prompt": ["x", hidden]}, {"prompt": [1, 2, 3]}],
        "responses": [{"input": hidden}, {"input": "x", "instructions": hidden}, {"input": [{"role": "user", "content": hidden}]}],
        "messages": [
            {"messages": SAID, "system": [{"type": "text", "text": hidden}], "max_tokens": 9},
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": hidden}]}], "max_tokens": 9},
        ],
    }
    path = {"chat": "chat/completions", "messages": "messages"}.get(dialect, dialect)
    for body in bodies[dialect]:
        status, headers, told = call(f"{gateway.base_url}/{path}", {"model": "chat", **body}, "sk-plain")
        assert (status, json.loads(told)["error"].get("code")) == (400, "content_policy"), body
        assert headers["x-should-retry"] == "false"
        assert "hush" not in told.decode().casefold()
    assert mock.stats()["total"]["requests"] == before


def _call(text: str) -> dict[str, Any]:
    return {"id": "t", "type": "function", "function": {"name": "f", "arguments": json.dumps({"q": text})}}


def _result(text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "t", "content": text}


def test_what_is_masked_in_a_request_never_reaches_the_provider(gateway: Gateway, mock: Mock) -> None:
    """Its place is taken by the mask; everything else of the body is as it was."""
    arguments = {"iban": "DE02 1203 0000 0000 2020 51", "n": 1.50}
    history = [{"role": "assistant", "content": None, "tool_calls": [_call(arguments["iban"])]}, _result("ok")]
    said = [{"role": "user", "content": "Pay to DE02120300000000202051, please"}, *history]
    body = {"model": "chat", "messages": said, "some_field": {"kept": [1, None]}}
    assert call(f"{gateway.base_url}/chat/completions", body, "sk-more")[0] == 200
    sent = last_sent(mock)
    assert sent["messages"][0]["content"] == "Pay to [BANNED]51, please"
    assert json.loads(sent["messages"][1]["tool_calls"][0]["function"]["arguments"]) == {"q": "[BANNED] 51"}
    assert (sent["messages"][2], sent["some_field"]) == (_result("ok"), {"kept": [1, None]})


def test_system_prompts_come_first_and_once(gateway: Gateway, mock: Mock) -> None:
    """The parent's before the child's, in every dialect; a client that has sent it does not send it twice, and keeps its own."""
    both = "Be kind.\n\nBe brief."
    says(gateway, "sk-prompted", "chat", "chat", False)
    assert last_sent(mock)["messages"] == [{"role": "system", "content": both}, *SAID]
    with oai(gateway, "sk-prompted") as sdk:
        mine = [{"role": "system", "content": "Mine."}, {"role": "developer", "content": "Be kind."}, *SAID]
        sdk.chat.completions.create(model="chat", messages=mine)
        assert last_sent(mock)["messages"] == [{"role": "system", "content": both}, mine[0], *SAID]
        sdk.chat.completions.create(model="chat", messages=[{"role": "system", "content": both}, *SAID])
        assert last_sent(mock)["messages"] == [{"role": "system", "content": both}, *SAID]
        sdk.completions.create(model="chat", prompt=["One", f"{both}\n\nTwo"], max_tokens=4)
        assert last_sent(mock)["prompt"] == [f"{both}\n\nOne", f"{both}\n\nTwo"]
        sdk.responses.create(model="chat", input=[{"role": "system", "content": "Be brief."}, *SAID], instructions="Mine.")
        assert (last_sent(mock)["instructions"], last_sent(mock)["input"]) == (f"{both}\n\nMine.", SAID)
        sdk.embeddings.create(model="chat", input="x", encoding_format="float")
        assert last_sent(mock)["input"] == "x"
    mark = {"type": "ephemeral"}
    says(gateway, "sk-prompted", "messages", "claude", False, system=[{"type": "text", "text": "Mine.", "cache_control": mark}])
    assert last_sent(mock)["system"] == [{"type": "text", "text": both}, {"type": "text", "text": "Mine.", "cache_control": mark}]
    says(gateway, "sk-prompted", "messages", "claude", False, system="Be kind.")
    assert last_sent(mock)["system"] == [{"type": "text", "text": both}]


def test_injected_text_is_counted(gateway: Gateway) -> None:
    """The hold and the bill are those of the request that was sent."""
    with oai(gateway, "sk-prompted") as ruled, oai(gateway, "sk-plain") as plain:
        usages = [sdk.chat.completions.create(model="chat", messages=SAID, max_tokens=4).usage.prompt_tokens for sdk in (ruled, plain)]
    assert usages[0] > usages[1]


def test_counted_tokens_have_what_is_put_in(gateway: Gateway) -> None:
    """A client that counts before it asks learns what it will be charged."""
    counts = []
    for key in ("sk-plain", "sk-prompted"):
        with ant(gateway, key) as claude:
            counts.append(claude.messages.count_tokens(model="claude", messages=SAID).input_tokens)
    assert counts[0] < counts[1]


def test_a_changed_file_changes_the_rules(tmp_path: Path, mock: Mock) -> None:
    """For the next request, within a second or so."""
    text = config(tmp_path, mock.url, "  acme: {keys: [{name: a, key: sk-a}]}")
    with running_gateway(tmp_path, text) as gateway:
        assert gateway.chat("sk-a", "hush-hush")[0] == 200
        beside = tmp_path / "new.yaml"
        beside.write_text(text + "\nrules: {banned: [{name: secret, pattern: hush-hush}]}\n")
        beside.rename(tmp_path / "gateway.yaml")
        ends = time.monotonic() + 20
        while gateway.chat("sk-a", "hush-hush")[0] != 400:
            assert time.monotonic() < ends
            time.sleep(0.05)


def test_parameters_are_forced_and_lowered_and_told(gateway: Gateway, mock: Mock) -> None:
    """Under the names of each dialect, in a header."""
    with oai(gateway, "sk-prompted") as sdk:
        raw = sdk.chat.completions.with_raw_response.create(model="chat", messages=SAID, n=2, max_completion_tokens=50, temperature=1.5)
        assert raw.headers["x-sluicegate-changed"] == "temperature,max_completion_tokens"
        assert (last_sent(mock)["temperature"], last_sent(mock)["max_tokens"], last_sent(mock)["n"]) == (0.25, 4, 2)
        assert all(len(choice.message.content.split()) == 4 for choice in raw.parse().choices)
        raw = sdk.responses.with_raw_response.create(model="chat", input="x", temperature=0.25)
        assert raw.headers["x-sluicegate-changed"] == "max_output_tokens"
        raw = sdk.chat.completions.with_raw_response.create(model="chat", messages=SAID, n=5, max_tokens=3, temperature=0.25)
        assert (raw.headers["x-sluicegate-changed"], last_sent(mock)["n"]) == ("n", 2)
    with ant(gateway, "sk-prompted") as claude:
        made = claude.messages.with_raw_response.create(model="claude", messages=SAID, max_tokens=3)
        assert made.headers["x-sluicegate-changed"] == "temperature"
    assert "x-sluicegate-changed" not in gateway.chat("sk-plain")[1]


def test_the_largest_input_is_refused_before_the_call(gateway: Gateway, mock: Mock) -> None:
    """Tokens 400, bytes 413; both name the rule."""
    before = mock.stats()["total"]["requests"]
    status, _, body = gateway.chat("sk-small", "word " * 100)
    assert (status, body["error"]["code"], body["error"]["sluicegate"]) == (400, "input_too_large", {"rule": "max_input_tokens", "most": 50})
    status, _, body = gateway.chat("sk-small", "x" * 3000)
    assert (status, body["error"]["sluicegate"]["rule"]) == (413, "max_input")
    assert mock.stats()["total"]["requests"] == before
    assert gateway.chat("sk-small", "word " * 10)[0] == 200


@pytest.mark.parametrize("body", [{"output_config": {"effort": "max"}}, {"thinking": {"type": "enabled", "budget_tokens": 2000}}])
def test_a_ceiling_of_no_thinking_holds_in_another_dialect(gateway: Gateway, mock: Mock, body: dict[str, Any]) -> None:
    """What messages have no word for is said to a chat in its own; who says nothing of thinking is left alone."""
    url = gateway.base_url + "/messages"
    asked = {"model": "foreign", "max_tokens": 4000, "messages": SAID}
    assert call(url, {**asked, **body}, "sk-quiet")[0] == 200
    assert last_sent(mock)["reasoning_effort"] == "none"
    assert call(url, asked, "sk-quiet")[0] == 200
    assert "reasoning_effort" not in last_sent(mock)
