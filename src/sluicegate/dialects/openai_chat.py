"""The OpenAI chat dialect: answers, streams and what the gateway itself says in them. The request side is in openai_request.

Readers never raise, whatever an upstream sends. Events pass as the bytes they came in; `write_event` says what is left out for whom.
What the gateway says itself (errors, truncations) has OpenAI's shape, plus a field `sluicegate` that other clients ignore.
"""

import json
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Raw, Struct

from sluicegate.core.usage import Usage
from sluicegate.dialects.form import Answer, Delta, Event, Failure
from sluicegate.dialects.openai_body import (
    Body,
    bare_failure,
    beside,
    decode_body,
    failure_in,
    int_or,
    loosely,
    parse,
    read_choices,
    text_of,
    usage_of,
)
from sluicegate.dialects.openai_request import read_request, write_request
from sluicegate.dialects.sse import RawEvent, Reader, ended

__all__ = [
    "DONE", "NAME", "PATH", "STATUS", "Head", "StreamReader", "read_answer", "read_request", "streamed",
    "write_error", "write_event", "write_request", "write_stream_error", "write_truncation",
]  # fmt: skip

NAME = "openai_chat"
STATUS: dict[str, int] = {}
PATH = b"/chat/completions"  # below a provider's base URL

DONE = b"data: [DONE]\n\n"  # the end of a stream
# What a chunk has that says nothing but usage.
_REPEATED = frozenset(("id", "object", "created", "model", "service_tier", "system_fingerprint", "provider", "choices", "usage", "obfuscation", "p"))
_UNNAMED = Failure(None, "", "", "The upstream reported an error.")


class Head(Struct, gc=False):
    """What all chunks of one answer repeat."""

    id: str = ""
    created: int = 0
    model: str = ""


_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_encode = msgspec.json.Encoder().encode


# -- reading ------------------------------------------------------------------------------------------------------------------------------


def read_answer(body: bytes) -> Answer:
    """A unary answer, or the body of an error status. Never raises."""
    parsed, loose = parse(body)
    if parsed is None:
        failure = failure_in(loose) if isinstance(loose, list) else None
        return Answer([], [], None, failure, failure is not None)
    deltas, finishes, failure = read_choices(parsed.choices or [])
    if failure is None and parsed.error is not None:
        failure = failure_in(parsed.error)
    if failure is None and parsed.choices is None:
        failure = bare_failure(loose)
    elif failure is None and loose is not None:
        deltas += beside(loose, {delta.text for delta in deltas})
    return Answer(deltas, finishes, usage_of(parsed), failure, parsed.choices is not None or failure is not None)


class StreamReader:
    """Reads one streamed answer. An event without data, or of `data: null`, is left out: it would break clients and says nothing."""

    __slots__ = ("_beside", "_last", "_reader")
    ending = DONE

    def __init__(self) -> None:
        self._reader = Reader()
        self._last = b""
        self._beside: set[str] = set()  # texts of the last chunk that had any beside its choices

    def feed(self, data: bytes) -> list[Event]:
        """The events that `data` completes."""
        events = []
        for raw in self._reader.feed(data):
            event = self._event(raw)
            if event is not None:
                events.append(event)
        return events

    def end(self) -> list[Event]:
        """What is left at the end of the answer. A last event without its blank line gets one."""
        events = []
        for raw in self._reader.end():
            event = self._event(raw)
            if event is not None:
                event.raw = ended(raw.raw)
                events.append(event)
        return events

    @property
    def head(self) -> Head:
        """Id, time and model of the answer as of its last chunk; empty before one has come."""
        parsed = loosely(self._last)
        if not isinstance(parsed, dict):
            return Head()
        return Head(text_of(parsed.get("id")), int_or(parsed.get("created"), 0), text_of(parsed.get("model")))

    def _event(self, raw: RawEvent) -> Event | None:
        data = raw.data
        try:
            # The usual chunk. Only here is speed of interest.
            body = decode_body(data)
            if body.choices and body.error is None and not raw.event:
                self._last = data
                return _chunk(raw.raw, body)
        except (ValueError, RecursionError):
            pass
        if raw.kind != "event":
            return Event(raw.raw, raw.kind)
        if data.strip() == b"[DONE]":
            return Event(raw.raw, "done")
        if not data:
            return _field_error(raw)
        return self._odd(raw)

    def _odd(self, raw: RawEvent) -> Event | None:
        """Anything but the usual chunk: an error, usage alone, wrong types, an event that is not known."""
        body, loose = parse(raw.data)
        if loose is None and body is None:
            return None if raw.data.strip() == b"null" else Event(raw.raw, "bad")
        if body is None:
            failure = failure_in(loose) if isinstance(loose, list) else None
            return Event(raw.raw, "bad" if failure is None else "error", failure=failure)
        event = _chunk(raw.raw, body)
        if event.failure is None and (raw.event == "error" or (isinstance(loose, dict) and loose.get("object") == "error")):
            event.failure = bare_failure(loose) or _UNNAMED
        if event.failure is not None:
            event.kind = "error"
        elif more := self._beside_the_choices(loose, event.deltas):
            event.deltas = event.deltas + more
        elif not body.choices and event.usage is None:
            event.kind, event.usage_only = "other", "usage" in loose and _REPEATED.issuperset(loose)
        if event.kind == "chunk" or body.choices:
            self._last = raw.data
        return event

    def _beside_the_choices(self, loose: Any, deltas: list[Delta]) -> list[Delta]:
        """What stood there in the chunk before, too, is a name or a place that the upstream repeats in each."""
        said = {delta.text for delta in deltas}
        found = beside(loose, said | self._beside)
        beside(loose, said)
        self._beside = said
        return found


def _chunk(raw: bytes, body: Body) -> Event:
    deltas, finishes, failure = read_choices(body.choices or [])
    if failure is None and body.error is not None:
        failure = failure_in(body.error)
    usage = None if body.usage is None and body.x_groq is None else usage_of(body)
    return Event(raw, "chunk" if failure is None else "error", deltas, finishes, usage, usage is not None and not body.choices, failure)


def _field_error(raw: RawEvent) -> Event | None:
    """An event without data, which says nothing: the specification has clients ignore it, and some take it for empty JSON. Older llama.cpp servers
    write errors as a field of the event: `error: {...}`."""
    line = raw.raw.strip(b"\r\n")
    if line.startswith(b"error:"):
        return Event(raw.raw, "error", failure=bare_failure(loosely(line[6:])) or _UNNAMED)
    return None


# -- writing ------------------------------------------------------------------------------------------------------------------------------


def write_event(event: Event, hide_usage: bool) -> bytes:
    """The event for the client: as it came, but for usage that nobody asked for; b"" drops it, as it drops what cannot be read.

    A comment goes out in one line and without a blank one: after an event with an id, a blank line makes some clients see an empty event.
    """
    raw = event.raw
    if event.kind == "comment":
        line = raw.strip(b"\r\n")
        return line + b"\n" if line else b""
    if not hide_usage and event.kind != "bad":
        return raw
    if event.usage_only or event.kind == "bad":
        return b""
    if event.usage is not None:
        return _without_usage(raw)
    # Sent by upstreams on each chunk because the gateway asked for usage. These bytes cannot be part of a string in JSON.
    return raw.replace(b',"usage":null', b"")


def _without_usage(raw: bytes) -> bytes:
    """A chunk that carries output and usage, without the usage."""
    reader = Reader()
    parsed = (reader.feed(raw) or reader.end())[0]
    try:
        fields = _decode_fields(parsed.data)
    except (ValueError, RecursionError):
        return raw
    if fields.pop("usage", None) is None:
        return raw
    return (b"event: %b\n" % parsed.event.encode() if parsed.event else b"") + b"data: %b\n\n" % _encode(fields)


def streamed(body: bytes) -> bytes:
    """A readable whole answer as the stream that was asked for: per choice all its output and then its end, usage if there is any, [DONE]."""
    answer = loosely(body)
    if not isinstance(answer, dict):  # a number of thousands of digits somewhere
        return _untold()
    head = {name: value for name, value in answer.items() if name not in ("choices", "usage", "error")} | {"object": "chat.completion.chunk"}
    chunks: list[dict[str, Any]] = []
    for place, choice in enumerate(answer["choices"]):
        if isinstance(choice, dict):
            ended, index = choice.get("finish_reason"), int_or(choice.get("index"), place)
            rest = {name: value for name, value in choice.items() if name not in ("message", "delta")} | {"index": index, "finish_reason": None}
            chunks.append(head | {"choices": [rest | {"delta": _delta(choice.get("delta") or choice.get("message"))}]})
            chunks.append(head | {"choices": [{"index": index, "delta": {}, "finish_reason": ended}]})
    if answer.get("usage"):
        chunks.append(head | {"choices": [], "usage": answer["usage"]})
    try:
        return b"".join([b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks]) + DONE
    except RecursionError:  # it could just be read
        return _untold()


def _untold() -> bytes:
    return write_stream_error("The upstream's answer cannot be told as a stream.", "upstream_error", "upstream_error")


def _delta(message: Any) -> dict[str, Any]:
    """A whole message as a delta: without what is null, and with its calls numbered."""
    if not isinstance(message, dict):
        return {"content": message} if message else {}
    delta = {name: value for name, value in message.items() if value is not None}
    calls = delta.get("tool_calls")
    if isinstance(calls, list):
        delta["tool_calls"] = [{"index": index, **call} if isinstance(call, dict) else call for index, call in enumerate(calls)]
    return delta


def write_truncation(head: Head, after: None, choices: Iterable[int], reason: str, usage: Usage | None) -> bytes:
    """The end of a stream that the gateway cuts: each unfinished choice ends with "length", then usage if asked for, then [DONE].

    reason: "budget" or "ledger".
    """
    out = []
    for index in choices:
        choice = {"index": index, "delta": {}, "finish_reason": "length"}
        out.append(b"data: %b\n\n" % _encode(_chunk_of(head) | {"choices": [choice], "sluicegate": {"truncated": reason}}))
    if usage is not None:
        read, written = usage.input_tokens or 0, usage.output_tokens or 0
        counts = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
        out.append(b"data: %b\n\n" % _encode(_chunk_of(head) | {"choices": [], "usage": counts}))
    out.append(DONE)
    return b"".join(out)


def _chunk_of(head: Head) -> dict[str, Any]:
    return {"id": head.id, "object": "chat.completion.chunk", "created": head.created, "model": head.model}


def write_error(
    status: int, message: str, type: str = "", param: str | None = None, code: str | None = None, extra: dict[str, Any] | None = None
) -> bytes:
    """The body of an error. Without a type it is named after the status; `extra` goes inside `error`."""
    named = type or ("invalid_request_error" if status < 500 else "server_error")
    return _encode({"error": {"message": message, "type": named, "param": param, "code": code, **(extra or {})}})


def write_stream_error(message: str, type: str = "server_error", code: str | None = None, extra: dict[str, Any] | None = None) -> bytes:
    """The error event that ends a stream which has begun. No [DONE] follows: the answer is not whole."""
    return b"data: %b\n\n" % write_error(500, message, type, None, code, extra)
