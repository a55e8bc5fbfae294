"""The OpenAPI document of the data plane: it is valid, it names every path and every error, and real answers are as it says."""

import ast
import asyncio
import inspect
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from sluicegate import openapi, reject, surface
from sluicegate.core import classify
from sluicegate.core.refusals import ANSWERS
from sluicegate.openapi import errors
from support_inloop import Bench, Reply, request, running

# The smallest request of each path, and its variant whose answer is a stream.
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Tell me"}], "max_tokens": 8},
    "/v1/completions": {"prompt": "Tell me", "max_tokens": 8},
    "/v1/responses": {"input": "Tell me", "max_output_tokens": 8},
    "/v1/embeddings": {"input": "Tell me"},
    "/v1/messages": {"messages": [{"role": "user", "content": "Tell me"}], "max_tokens": 8},
}
COUNT = "/v1/messages/count_tokens"
TENANTS = """
  acme:
    keys:
      - {name: key, key: sk-key}
      - {name: rate, key: sk-rate, limits: [1 requests/minute]}
      - {name: small, key: sk-small, limits: [20 tokens/minute]}
      - {name: poor, key: sk-poor, limits: [$0/day]}
      - {name: short, key: sk-short, limits: [1 input tokens/day]}
      - {name: one, key: sk-one, limits: [1 concurrent]}"""
MODELS = "  unpriced: {deployments: [{provider: mock, model: u}]}"
MORE = "resilience: {timeouts: {first_byte: 1s}}"


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with running(tmp_path, tenants=TENANTS, models=MODELS, more=MORE) as bench:
        bench.whole = False
        yield bench


def served() -> dict[str, Any]:
    """The document of all that is served."""
    return openapi.document(surface.Surface(None, None, None, None, None, None)._routes, surface._DIALECTS)  # type: ignore[arg-type]


DOCUMENT = served()


async def ask(bench: Bench, path: str, key: str = "sk-key", **fields: Any) -> Reply:
    """One small request to a path. A field that is ... is left out."""
    body = {"model": "chat", **BODIES.get(path, BODIES["/v1/messages"]), **fields}
    data = json.dumps({name: value for name, value in body.items() if value is not ...}).encode()
    return await bench.raw(request(data, key, path=path, more=b"x-api-key: %b\r\n" % key.encode()))


def conforms(path: str, reply: Reply, verb: str = "post") -> str:
    """Holds an answer against what the document says of its status; its code, or 200."""
    responses = DOCUMENT["paths"][path][verb]["responses"]
    response = responses.get(str(reply.status)) or responses[f"{reply.status // 100}XX"]
    media_type = reply.headers["content-type"].partition(";")[0]
    content = response["content"][media_type]
    if media_type == "text/event-stream":
        for event in reply.events:
            check(content["x-event"], event)
        return "200"
    check(content["schema"], reply.json)
    return "200" if reply.status == 200 else reply.json["error"]["code"]


def check(schema: dict[str, Any], instance: Any) -> None:
    found = list(Draft202012Validator(schema | {"components": DOCUMENT["components"]}).iter_errors(instance))
    assert not found, found


def test_the_document_is_valid() -> None:
    """OpenAPI 3.1, and every schema in it is one."""
    assert list(OpenAPIV31SpecValidator(DOCUMENT).iter_errors()) == []
    for schema in DOCUMENT["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


def test_every_path_is_in_it() -> None:
    """Each that is served, and no other; each that an upstream answers has the errors of all."""
    paths = DOCUMENT["paths"]
    assert set(BODIES) == set(surface._DIALECTS) and set(BODIES) | {COUNT} == {path for path, verbs in paths.items() if "post" in verbs}
    for path in BODIES:
        assert {"200", "400", "401", "402", "404", "413", "429", "500", "502", "503", "504", "4XX"} <= set(paths[path]["post"]["responses"])


def codes(module: Any) -> set[str]:
    """Codes that a module's source gives to errors: by name, or as the third of an error's status, type and code."""
    found = set()
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("Reject", "Outcome"):
            place = 2 if getattr(node.func, "id", "") == "Reject" else 5
            found |= {each.value for each in ast.walk(node.args[place]) if isinstance(each, ast.Constant) and isinstance(each.value, str)}
        elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "code":
            found |= {each.value for each in ast.walk(node.value) if isinstance(each, ast.Constant) and isinstance(each.value, str)}
    return {code for code in found if re.fullmatch("[a-z]+(_[a-z]+)+", code)}


def test_every_error_is_in_it() -> None:
    """Each code that the gateway's source gives, wherever."""
    documented = {rejected.code for rejected in [*errors.calling(), *errors.common()]}
    known = codes(reject) | codes(classify) | {code for _, code, _ in ANSWERS.values()}
    assert len(known) >= 15 and known - documented == set()
    assert codes(surface) - documented == {code for code in codes(surface) if f"`{code}`" in DOCUMENT["info"]["description"]}


def test_examples_are_as_their_schemas_say() -> None:
    """Each error that is shown."""
    for verbs in DOCUMENT["paths"].values():
        for operation in verbs.values():
            for response in operation["responses"].values():
                for content in response["content"].values():
                    for example in content.get("examples", {}).values():
                        check(content["schema"], example["value"])


@pytest.mark.parametrize("path", BODIES)
async def test_answers(bench: Bench, path: str) -> None:
    """In one piece, and each event of a stream; requests are as their schema says."""
    check(DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"], {"model": "chat", **BODIES[path]})
    assert conforms(path, await ask(bench, path)) == "200"
    if path != "/v1/embeddings":
        reply = await ask(bench, path, stream=True)
        assert reply.headers["content-type"].startswith("text/event-stream") and len(reply.events) > 2
        assert conforms(path, reply) == "200"


@pytest.mark.parametrize("path", [*BODIES, COUNT])
async def test_errors_before_a_call(bench: Bench, path: str) -> None:
    """What is malformed, not known or not allowed."""
    wrong = [
        (await ask(bench, path, model=5), 400, "invalid_request"),
        (await ask(bench, path, "sk-nobody"), 401, "invalid_api_key"),
        (await ask(bench, path, model="none"), 404, "model_not_found"),
        (await bench.raw(request(b"{", path=path)), 400, "invalid_request"),
    ]
    for reply, status, code in wrong:
        assert (reply.status, conforms(path, reply)) == (status, code)


@pytest.mark.parametrize("path", BODIES)
async def test_refusals(bench: Bench, path: str) -> None:
    """By limits of each kind, and for want of a price."""
    assert (await ask(bench, path, "sk-rate")).status == 200
    assert conforms(path, await ask(bench, path, "sk-rate")) == "rate_limit_exceeded"
    assert conforms(path, await ask(bench, path, "sk-short", **BODIES[path])) == "request_too_large"
    poor = await ask(bench, path, "sk-poor")
    assert conforms(path, poor) in ("budget_exceeded", "request_too_large")
    unpriced = await ask(bench, path, "sk-poor", model="unpriced")
    assert (unpriced.status, conforms(path, unpriced)) == (402, "price_unknown")
    bench.mocked(ttft=150)
    replies = await asyncio.gather(ask(bench, path, "sk-one"), ask(bench, path, "sk-one"))
    assert sorted(conforms(path, reply) for reply in replies) == ["200", "concurrency_exceeded"]


@pytest.mark.parametrize("path", BODIES)
async def test_errors_of_an_upstream(bench: Bench, path: str) -> None:
    """Whatever it says, in the form of the client's dialect, also where a stream was asked for."""
    for status in (400, 401, 404, 422, 429, 500, 502, 503, 504, 529):
        bench.mocked(status=status)
        for stream in (False, True) if path != "/v1/embeddings" else (False,):
            reply = await ask(bench, path, stream=stream)
            assert reply.status >= 400 and conforms(path, reply) != "200"


def test_what_is_not_as_documented_is_found() -> None:
    """The check that all others rely on."""
    for wrong in ({"error": "no"}, {"error": {"message": "m", "type": "t", "param": None, "code": "new"}}):
        with pytest.raises(AssertionError):
            check(DOCUMENT["paths"]["/v1/completions"]["post"]["responses"]["429"]["content"]["application/json"]["schema"], wrong)


@pytest.mark.parametrize(("path", "key"), [("/v1/models", "sk-key"), ("/v1/usage", "sk-small"), ("/healthz", ""), ("/readyz", "")])
async def test_what_is_read(bench: Bench, path: str, key: str) -> None:
    """Lists and reports, and what somebody gets without a key."""
    assert conforms(path, await bench.get(path, key), "get") == "200"
    if key:
        assert conforms(path, await bench.get(path, "sk-nobody"), "get") == "invalid_api_key"


@pytest.mark.parametrize("path", ["/none", "/v1/models", "/v1/chat/completions", "/v1/messages"])
async def test_other_paths_and_methods(bench: Bench, path: str) -> None:
    """A 404 or a 405 in one of the two forms."""
    reply = await bench.raw(f"PUT {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer sk-key\r\ncontent-length: 0\r\n\r\n".encode())
    assert reply.status == (404 if path == "/none" else 405)
    form = "MessageError" if path == "/v1/messages" else "Error"
    check({"$ref": f"#/components/schemas/{form}"}, reply.json)
    assert f"`{reply.json['error']['code']}`" in DOCUMENT["info"]["description"]


async def test_the_document_and_its_page_are_served(bench: Bench) -> None:
    """To anybody; the page has every path and schema in it, and nothing in it is fetched or run."""
    assert (await bench.get("/openapi.json", "")).json == json.loads(json.dumps(DOCUMENT))
    page = await bench.get("/docs", "")
    text = page.body.decode()
    assert page.headers["content-type"] == "text/html; charset=utf-8" and "default-src 'none'" in page.headers["content-security-policy"]
    assert all(f"<code>{path}</code>" in text for path in DOCUMENT["paths"])
    assert all(f"<h3 id={json.dumps(name)}>" in text for name in DOCUMENT["components"]["schemas"])
    assert not re.search(r"<script|<link|<img|src=|https?://(?!127)", text)
    anchors = set(re.findall(r'href="#([^"]*)"', text))
    assert anchors and anchors <= set(re.findall(r'id="([^"]*)"', text))


def test_text_of_a_document_is_no_html() -> None:
    """Whatever is in it."""
    document = served()
    document["info"]["title"] = '<b>&"'
    document["paths"]["/v1/models"]["get"]["summary"] = "`<i>`"
    text = openapi.page(document).decode()
    assert "<b>" not in text and "<i>" not in text and "&lt;b&gt;&amp;" in text
