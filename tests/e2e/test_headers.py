"""What goes upstream of a client's headers, in each dialect, and by which header a client finds its request's id again."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support_gateway import Gateway, Mock, call, running_gateway, running_mock

CONFIG = """
server: {{listen: "127.0.0.1:0"}}
ledger: sqlite:///{directory}/ledger.db
records: sqlite:///{directory}/records.db
journal: {directory}/journal/
providers:
  openai: {{provider: openai, base_url: {url}/v1, api_key: OURS, forward_headers: [x-session]}}
  anthropic: {{dialect: anthropic, base_url: {url}, api_key: OURS}}
  ollama: {{dialect: ollama, base_url: {url}}}
models:
  openai: {{deployments: [{{provider: openai, model: gpt-4o}}]}}
  anthropic: {{deployments: [{{provider: anthropic, model: claude-sonnet-4-5}}]}}
  ollama: {{deployments: [{{provider: ollama, model: llama3.2}}]}}
tenants:
  acme: {{keys: [{{name: lab, key: sk-theirs}}]}}
"""
# In the order of a client that sends everything it could.
SENT = {
    "Cookie": "session=theirs",
    "X-Forwarded-For": "10.0.0.1",
    "X-Real-IP": "10.0.0.1",
    "Forwarded": "for=10.0.0.1",
    "User-Agent": "theirs/1",
    "X-Stainless-Lang": "python",
    "X-Request-Id": "theirs-1",
    "X-Session": "s-1",
    "Anthropic-Version": "2023-01-01",
    "Anthropic-Beta": "interleaved-thinking-2025-05-14",
    "OpenAI-Organization": "org-1",
    "OpenAI-Project": "proj-1",
    "OpenAI-Beta": "assistants=v2",
    "Traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "Tracestate": "a=1",
}
OF_EVERY_CALL = {"host", "content-length", "accept-encoding"}
TRACING = {"traceparent": SENT["Traceparent"], "tracestate": SENT["Tracestate"]}
AT_OPENAI = TRACING | {
    "authorization": "Bearer OURS",
    "content-type": "application/json",
    "openai-organization": "org-1",
    "openai-project": "proj-1",
    "openai-beta": "assistants=v2",
    "x-session": "s-1",
}
AT_ANTHROPIC = TRACING | {
    "x-api-key": "OURS",
    "content-type": "application/json",
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "interleaved-thinking-2025-05-14",
}
AT_OLLAMA = TRACING | {"content-type": "application/json"}
BEARER, KEY = {"Authorization": "Bearer sk-theirs"}, {"X-Api-Key": "sk-theirs"}
SAID = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 16}
CHAT = ("/chat/completions", SAID, BEARER, "x-request-id")
CHAT_STREAM = ("/chat/completions", SAID | {"stream": True}, BEARER, "x-request-id")
MESSAGES = ("/messages", SAID, KEY, "request-id")
MESSAGES_STREAM = ("/messages", SAID | {"stream": True}, KEY, "request-id")
RESPONSES = ("/responses", {"input": "Hi", "max_output_tokens": 16}, BEARER, "x-request-id")
COMPLETIONS = ("/completions", {"prompt": "Hi", "max_tokens": 16}, BEARER, "x-request-id")
EMBEDDINGS = ("/embeddings", {"input": "Hi"}, BEARER, "x-request-id")


@pytest.fixture(scope="module")
def mock(directory: Path) -> Iterator[Mock]:
    with running_mock(directory, "--completion", "4") as mock:
        yield mock


@pytest.fixture(scope="module")
def gateway(directory: Path, mock: Mock) -> Iterator[Gateway]:
    with running_gateway(directory, CONFIG.format(directory=directory, url=mock.url)) as gateway:
        yield gateway


@pytest.mark.parametrize("asked", [CHAT, CHAT_STREAM, COMPLETIONS, RESPONSES, EMBEDDINGS, MESSAGES, MESSAGES_STREAM])
def test_to_openai(gateway: Gateway, mock: Mock, asked: Any) -> None:
    """Whatever the client speaks, OpenAI gets its own credential, what traces the request, what concerns it and what the operator has listed."""
    assert arrived(gateway, mock, "openai", asked) == AT_OPENAI


@pytest.mark.parametrize("asked", [CHAT, CHAT_STREAM, COMPLETIONS, RESPONSES, MESSAGES, MESSAGES_STREAM])
def test_to_anthropic(gateway: Gateway, mock: Mock, asked: Any) -> None:
    """Whatever the client speaks, Anthropic gets its own credential and version, what traces the request, and the betas that the client wants."""
    assert arrived(gateway, mock, "anthropic", asked) == AT_ANTHROPIC


@pytest.mark.parametrize("asked", [CHAT, CHAT_STREAM, COMPLETIONS, RESPONSES, EMBEDDINGS, MESSAGES, MESSAGES_STREAM])
def test_to_ollama(gateway: Gateway, mock: Mock, asked: Any) -> None:
    """Whatever the client speaks, a provider without a credential gets none, and of the client what traces the request alone."""
    assert arrived(gateway, mock, "ollama", asked) == AT_OLLAMA


def arrived(gateway: Gateway, mock: Mock, model: str, asked: Any) -> dict[str, str]:
    """The headers of a call as the provider got them, but for those of every HTTP request. The client finds its id in the header of its dialect."""
    path, body, credential, request_id = asked
    data = json.dumps(body | {"model": model}).encode()
    request = urllib.request.Request(gateway.base_url + path, data, {"Content-Type": "application/json", **SENT, **credential})
    with urllib.request.urlopen(request, timeout=30) as answer:
        headers = {name.lower(): value for name, value in answer.headers.items()}
        answer.read()
    assert headers[request_id] == headers["x-sluicegate-request-id"]
    assert {"x-request-id", "request-id"} & set(headers) == {request_id}
    got: dict[str, str] = json.loads(call(f"{mock.url}/mock/calls")[2])[-1]["headers"]
    return {name: value for name, value in got.items() if name not in OF_EVERY_CALL}
