"""The OpenAPI 3.1 document of the data plane, made of what serves it: paths from the surface, requests from the types that dialects read them with,
errors from the functions that give them (errors.py), each as its dialect writes it. Only what is answered is typed here (answers.py).

An upstream's answer may have more fields than are named, and a request may have more than are named, so no schema excludes any. The events of a
stream, for which OpenAPI 3.1 has no place, are described by `x-event` beside the schema of the stream as text.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from sluicegate import __version__
from sluicegate.dialects import (
    anthropic_request,
    openai_chat,
    openai_completions_request,
    openai_embeddings,
    openai_request,
    openai_responses_request,
)
from sluicegate.openapi import answers, errors
from sluicegate.openapi.page import page
from sluicegate.reject import Reject
from sluicegate.trip import Dialect

__all__ = ["document", "page"]

_REFERENCE = "#/components/schemas/"
_ABOUT = (
    "An LLM gateway whose budgets cannot be overspent. Errors are JSON in the form of the path's dialect: `code` says what happened, "
    "`x-should-retry: false` that trying again does not help, `retry-after` when it does. A path that is not served is a 404 `path_not_found`, "
    "another method a 405 `method_not_allowed`, `/admin/` where that is switched off a 404 `admin_off`, "
    "bad HTTP a 400 `malformed_http`, a 408 `request_timeout` or a 431 `headers_too_large`. "
    "Once a stream has begun, an error is its last event, and the connection is not closed as clean."
)
_KEY_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "The key that the operator gave out."},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "The same key, as Anthropic's clients send it."},
}
_HEADERS = {
    "x-sluicegate-request-id": "The gateway's id of the request, also in errors and records.",
    "x-sluicegate-model": "The model that answered: the one that was asked for, or the one that takes what is too long for it.",
    "x-sluicegate-deployment": "Who answered: provider/model.",
    "x-sluicegate-attempts": "Who was asked, with the outcome of each: `openai/gpt-4o-mini:429,local/smollm2:200`.",
    "x-sluicegate-max-tokens": "The cap per answer that was sent upstream, where it is not the client's own.",
    "x-sluicegate-overhead-ms": "Time that the gateway itself took.",
    "x-sluicegate-cost-usd": "What the request cost; of an answer in one piece.",
    "x-sluicegate-left-out": "Fields of the request that the provider has no place for, or would refuse, and was not sent.",
    "x-sluicegate-changed": "Parameters that content rules have forced or lowered.",
    "x-sluicegate-idempotent": "`replayed`: the answer is that of an earlier request with the same `Idempotency-Key`, and free.",
    "x-sluicegate-replay-of": "That request's id.",
    "x-sluicegate-cache": "Where the model has a cache: `hit` (free, but for being a request), `miss`, or `skip:` and why it was not looked up.",
    "age": "Of a hit: seconds since the answer was kept.",
    "x-ratelimit-limit-requests": "The tightest limit on requests; likewise `remaining` and `reset`, and all three for `tokens`.",
    "x-sluicegate-budget-warning": "The limit of which most is used, from its first warning mark on: `limit`, `used`, `remaining`, `reset`.",
}
_ASKED = {
    "x-sluicegate-include": "What to be told in the answer, with commas: `block`, a member `sluicegate`, whole or at the end of a stream; `cost`, "
    "`cost_usd` in the usage at the end of a stream.",
    "cache-control": "`no-store`: no cache is asked, and nothing is kept; `no-cache`: none is asked, but the new answer is kept.",
    "idempotency-key": "1 to 255 visible characters. The request is made once; sent again within a day it is answered with what the first one was.",
}
_ERROR_HEADERS = {
    "retry-after": "Seconds, or a date.",
    "x-should-retry": "`false`: trying again does not help.",
    "x-sluicegate-limited-by": "The limit that refused.",
}


class _Call(Struct):
    """What a path of a dialect takes and gives. event: of a stream, if there are any."""

    summary: str
    request: type[Struct]
    answer: type[Struct]
    event: type[Struct] | None = None
    name: str = ""  # of the request's schema


_CALLS = {
    "openai_chat": _Call("A chat", openai_request.Body, answers.ChatCompletion, answers.ChatChunk, "ChatRequest"),
    "openai_completions": _Call(
        "A completion of a prompt (legacy)", openai_completions_request.Body, answers.TextCompletion, answers.TextCompletion, "CompletionRequest"
    ),
    "openai_responses": _Call("A response", openai_responses_request.Body, answers.Response, answers.ResponseEvent, "ResponseRequest"),
    "openai_embeddings": _Call("Vectors for texts", openai_embeddings.Body, answers.Embeddings, None, "EmbeddingRequest"),
    "anthropic_messages": _Call("A message", anthropic_request.Body, answers.Message, answers.MessageEvent, "MessageRequest"),
}
_COUNT = _Call("The gateway's own count of a message's tokens; free", anthropic_request.Body, answers.TokenCount, None, "MessageRequest")
_COUNT_PATH = "/v1/messages/count_tokens"


class _Read(Struct):
    """What a path gives that no upstream has a part in."""

    summary: str
    answer: type[Struct] | None
    media_type: str = "application/json"
    keyed: bool = False
    statuses: tuple[int, ...] = (200,)


_READS = {
    "/v1/models": _Read("The models that this key may ask for", answers.Models, keyed=True),
    "/v1/usage": _Read("This key's own limits, and what it has used today and this month by model", answers.UsageReport, keyed=True),
    "/healthz": _Read("Whether the process is alive", answers.Health),
    "/readyz": _Read("Whether it takes requests", answers.Readiness, statuses=(200, 503)),
    "/metrics": _Read("Metrics in the format of Prometheus; a credential of its own where it is not on loopback", None, "text/plain"),
    "/openapi.json": _Read("This document", None, "application/json"),
    "/docs": _Read("This document, to read", None, "text/html"),
}


def document(routes: Iterable[str], dialects: Mapping[str, Dialect]) -> dict[str, Any]:
    """The document of these paths; `dialects` are those that an upstream answers."""
    schemas = _Schemas()
    paths: dict[str, Any] = {}
    for path in routes:
        if path in dialects:
            paths[path] = {"post": _call(schemas, _CALLS[dialects[path].NAME], dialects[path], errors.calling(), upstream=True)}
        elif path == _COUNT_PATH:
            paths[path] = {"post": _call(schemas, _COUNT, dialects["/v1/messages"], errors.reading(), upstream=False)}
        else:
            paths[path] = {"get": _read(schemas, _READS[path])}
    headers = {name: {"description": text, "schema": {"type": "string"}} for name, text in (_HEADERS | _ERROR_HEADERS).items()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Sluicegate", "version": __version__, "description": _ABOUT, "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"}},
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {"schemas": schemas.found, "headers": headers, "securitySchemes": _KEY_SCHEMES},
    }


# -- paths --------------------------------------------------------------------------------------------------------------------------------


def _call(schemas: "_Schemas", call: _Call, dialect: Dialect, rejects: list[Reject], *, upstream: bool) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": schemas.of(call.answer)}}
    if call.event is not None:
        stream = {"type": "string", "description": "Server-sent events, where `stream` is true; `x-event` is the schema of each event's data."}
        content["text/event-stream"] = {"schema": stream, "x-event": schemas.of(call.event)}
    responses = {"200": {"description": "The answer.", "headers": _headers(_HEADERS), "content": content}}
    responses |= _by_status(schemas, dialect, rejects)
    if upstream:
        responses[errors.THEIRS] = _errors(schemas, dialect, [errors.theirs()])
    asked = [{"name": name, "in": "header", "description": text, "schema": {"type": "string"}} for name, text in _ASKED.items()] if upstream else []
    return {
        "summary": call.summary,
        "parameters": asked,
        "security": [{name: []} for name in _KEY_SCHEMES],
        "requestBody": {"required": True, "content": {"application/json": {"schema": schemas.of(call.request, call.name)}}},
        "responses": responses,
    }


def _read(schemas: "_Schemas", read: _Read) -> dict[str, Any]:
    content = {read.media_type: {"schema": schemas.of(read.answer) if read.answer is not None else {}}}
    described: dict[str, Any] = {"summary": read.summary, "security": [{name: []} for name in _KEY_SCHEMES] if read.keyed else []}
    responses: dict[str, Any] = {str(status): {"description": "The answer.", "content": content} for status in read.statuses}
    if read.keyed:
        responses |= _by_status(schemas, None, errors.common())
    return described | {"responses": responses}


def _by_status(schemas: "_Schemas", dialect: Dialect | None, rejects: list[Reject]) -> dict[str, Any]:
    found: dict[int, list[Reject]] = {}
    for rejected in rejects:
        status = dialect.STATUS.get(rejected.code, rejected.status) if dialect is not None else rejected.status
        found.setdefault(status, []).append(rejected)
    return {str(status): _errors(schemas, dialect, found[status], status) for status in sorted(found)}


def _errors(schemas: "_Schemas", dialect: Dialect | None, rejects: list[Reject], status: int = 0) -> dict[str, Any]:
    """A response with these errors as examples. Its schema names their codes, if there are no others."""
    examples: dict[str, Any] = {}
    for rejected in rejects:
        write = dialect.write_error if dialect is not None else openai_chat.write_error
        body = write(status or rejected.status, rejected.message, rejected.type, rejected.param, rejected.code, {})
        examples.setdefault(rejected.code, {"summary": rejected.message, "value": json.loads(body)})
    form = answers.MessageError if dialect is not None and dialect.NAME.startswith("anthropic") else answers.Error
    schema: dict[str, Any] = schemas.of(form)
    if status and status not in errors.OPEN:
        schema = {"allOf": [schema, {"properties": {"error": {"properties": {"code": {"enum": sorted(examples)}}}}}]}
    words = ", ".join(sorted(examples)) if status else "The upstream refused the request, in its own words"
    content = {"application/json": {"schema": schema, "examples": examples}}
    return {"description": f"{words}.", "headers": _headers(_ERROR_HEADERS), "content": content}


def _headers(names: Iterable[str]) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


# -- schemas ------------------------------------------------------------------------------------------------------------------------------


class _Schemas:
    """The schemas of types, each under a name of its own."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        self._references: dict[tuple[type[Struct], str], dict[str, Any]] = {}

    def of(self, kind: type[Struct], name: str = "") -> dict[str, Any]:
        """A reference to the schema of a type. name: for it, and for those that only it uses; else they are called what they are."""
        if (kind, name) in self._references:
            return self._references[kind, name]
        _, components = msgspec.json.schema_components([kind], ref_template=_REFERENCE + "{name}")
        names = {each: each for each in components}
        if name:
            names = {each: name if each == kind.__name__ else f"{name}.{each.lstrip('_')}" for each in components}
        text = msgspec.json.encode(components).decode()
        for each, known_as in names.items():
            text = text.replace(f'"{_REFERENCE}{each}"', f'"{_REFERENCE}{known_as}"')
        for each, schema in json.loads(text).items():
            self.found[names[each]] = schema | {"title": names[each]}
        reference = self._references[kind, name] = {"$ref": _REFERENCE + names[kind.__name__]}
        return reference
