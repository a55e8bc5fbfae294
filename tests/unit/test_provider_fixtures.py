"""Every row of the table of providers against what its vendor documents: tests/golden/providers/<row>.json.

A fixture has what is given: the provider as in a configuration, a model, a client's request, the cap that its hold covers, a stream as the vendor
writes one, an error of the vendor's. `want` is what was agreed to be right: where the provider is called, what it is sent, what is read of the stream
however it is cut, and what the error means to the client. docs/how-to/add-a-provider.md
"""

import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from sluicegate import providers
from sluicegate.config.compile import compile_policy
from sluicegate.config.schema import Config
from sluicegate.core.classify import failed
from sluicegate.core.tenants import Deployment
from sluicegate.core.usage import Usage, merge
from sluicegate.dialects.between import Between
from sluicegate.dialects.form import Request, Target
from sluicegate.dialects.registry import DIALECTS, between
from sluicegate.providers import ROWS, forwarded

FIXTURES = Path(__file__).parents[1] / "golden" / "providers"
# What a client's request may carry beside its body: who it is, what it is traced by, and what concerns one vendor.
CLIENT_HEADERS = {
    b"authorization": b"Bearer THEIRS",
    b"x-api-key": b"THEIRS",
    b"api-key": b"THEIRS",
    b"cookie": b"session=THEIRS",
    b"x-forwarded-for": b"10.0.0.1",
    b"user-agent": b"client/1",
    b"anthropic-beta": b"interleaved-thinking-2025-05-14",
    b"anthropic-version": b"2023-01-01",
    b"openai-organization": b"org-theirs",
    b"traceparent": b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
}


def load(row: str) -> dict[str, Any]:
    fixture: dict[str, Any] = json.loads((FIXTURES / f"{row}.json").read_text())
    return fixture


def deployment_of(fixture: dict[str, Any]) -> Deployment:
    """The deployment that the gateway makes of the fixture's provider."""
    models = {"chat": {"deployments": [{"provider": "up", "model": fixture["model"]}]}}
    tenants = {"acme": {"keys": [{"name": "lab", "key": "sk-lab"}]}}
    config = Config.model_validate({"providers": {"up": fixture["provider"]}, "models": models, "tenants": tenants}, context={"environ": {}})
    [deployment] = compile_policy(config).models["chat"].deployments
    return deployment


def via_of(fixture: dict[str, Any], deployment: Deployment, request: Request) -> tuple[ModuleType | Between, bytes]:
    """How the gateway calls it, and where: as the client speaks if the provider does, too, else translated."""
    client = fixture["client"]
    path = deployment.path(client)
    if path is not None:
        return DIALECTS[client], path
    path = deployment.path(deployment.provider.dialect)
    assert path is not None
    return between(client, deployment.provider.dialect, request, "req_1", 1_700_000_000), path


def sent(fixture: dict[str, Any]) -> dict[str, Any]:
    """What goes upstream."""
    deployment = deployment_of(fixture)
    provider = deployment.provider
    request = DIALECTS[fixture["client"]].read_request(json.dumps(fixture["request"]).encode())
    via, path = via_of(fixture, deployment, request)
    quirks = (deployment.cap_field, provider.stream_usage, provider.rejects, provider.renames, provider.thoughts)
    body = via.write_request(request, Target(deployment.model, fixture["cap"], *quirks))
    headers = {name.decode(): value.decode() for name, value in forwarded(provider, CLIENT_HEADERS)}
    return {"url": provider.base_url + path.decode(), "headers": headers, "body": json.loads(body)}


def read(fixture: dict[str, Any], size: int) -> dict[str, Any]:
    """What is read of the stream when it comes in pieces of this size."""
    data = "\n".join(fixture["stream"]).encode() + b"\n"
    reader = DIALECTS[wire(fixture)].StreamReader()
    events = [event for i in range(0, len(data), size) for event in reader.feed(data[i : i + size])] + reader.end()
    usage: Usage | None = None
    for event in events:
        usage = merge(usage, event.usage) if event.usage is not None else usage
    return {
        "text": "".join(delta.text for event in events for delta in event.deltas),
        "finishes": [finish for event in events for _, finish in event.finishes],
        "ended": events[-1].kind,
        "usage": {name: value for name, value in msgspec.to_builtins(usage).items() if value},
    }


def wire(fixture: dict[str, Any]) -> str:
    """The dialect in which the provider answers."""
    deployment = deployment_of(fixture)
    client: str = fixture["client"]
    return client if deployment.path(client) is not None else deployment.provider.dialect


def means(fixture: dict[str, Any]) -> dict[str, Any]:
    """What the vendor's error means to the client, and to the route and the bill."""
    error = fixture["error"]
    answer = DIALECTS[wire(fixture)].read_answer(json.dumps(error["body"]).encode())
    outcome = failed(error["status"], {}, answer.failure, answer.usage is not None)
    return {"status": outcome.status, "code": outcome.code, "message": outcome.message, "elsewhere": outcome.elsewhere, "billed": outcome.billed}


def observed(fixture: dict[str, Any]) -> dict[str, Any]:
    """Everything that `want` is about."""
    deployment = deployment_of(fixture)
    called_at = {name: path.decode() for name, path in deployment.paths}
    return {"called_at": called_at, "sent": sent(fixture), "read": read(fixture, 1 << 20), "error_means": means(fixture)}


@pytest.mark.parametrize("row", ROWS)
def test_a_row_does_what_its_vendor_documents(row: str) -> None:
    """What is sent, and what is made of the answers, is what was agreed on. To add `want`, take what this prints, once you have found it right."""
    fixture = load(row)
    got = observed(fixture)
    assert fixture.get("want") == got, json.dumps({"want": got}, indent=1, ensure_ascii=False)


@pytest.mark.parametrize("row", ROWS)
def test_a_vendors_stream_may_come_in_any_pieces(row: str) -> None:
    """Read byte by byte it says the same as whole."""
    fixture = load(row)
    assert read(fixture, 1) == read(fixture, 1 << 20)


@pytest.mark.parametrize("row", ROWS)
def test_nothing_of_who_a_client_is_reaches_a_vendor(row: str) -> None:
    """Neither its key, in whichever header, nor its cookies, its address or its program."""
    text = json.dumps(sent(load(row)))
    assert "THEIRS" not in text and "10.0.0.1" not in text and "client/1" not in text


def test_the_how_to_is_true(monkeypatch: pytest.MonkeyPatch) -> None:
    """The row and the fixture that the page on adding a provider shows fit together: its quirks are kept, its stream is read."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "add-a-provider.md").read_text()
    [row], [given] = re.findall(r'"example": (Row\(.*?\n    \)),', page, re.DOTALL), re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    monkeypatch.setitem(ROWS, "example", eval(row, vars(providers)))
    fixture = json.loads(given)
    asked = {"messages": fixture["request"]["messages"], "stream": True, "model": "example-large", "max_completion_tokens": 64, "random_seed": 7}
    got = observed(fixture)
    assert got["sent"]["url"] == "https://api.example.com/v1/chat/completions"
    assert got["sent"]["body"] == asked
    assert got["read"] == {"text": "Hello", "finishes": ["stop"], "ended": "done", "usage": {"input_tokens": 8, "output_tokens": 2}}
    assert got["error_means"]["message"] == "Unknown field."


def test_there_is_a_fixture_for_each_row_and_a_row_for_each() -> None:
    """A vendor is a row and a fixture."""
    assert {path.stem for path in FIXTURES.glob("*.json")} == set(ROWS)
