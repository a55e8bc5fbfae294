"""The Anthropic messages dialect: answers, streams and what the gateway itself says in them. The request side is in anthropic_request.

Readers never raise, whatever an upstream sends. Events pass as the bytes they came in. What the gateway says itself (errors, truncations) has
Anthropic's shape, plus fields that other clients ignore: `code` and `param` of an error, `sluicegate`.

A stream is one message: its start, blocks of content one after the other, each with a start, changes and a stop, then what is said of the whole
message, then its stop. `Event.after` is the index of the block that is open, NO_BLOCK for none, so that a stream can be ended after any event. Usage
is cumulative; output that the start of a message reports is no count of any answer.
"""

import json
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct

from sluicegate.core.usage import Usage
from sluicegate.dialects import usage as reports
from sluicegate.dialects.anthropic_body import (
    CALLS,
    ERRORS,
    RUN,
    Message,
    StreamEvent,
    decode_event,
    deltas_of,
    failure_of,
    finish_of,
    ran,
    ran_as,
    read_message,
    tolerated_event,
    usage_of,
)
from sluicegate.dialects.anthropic_request import read_count, read_request, write_request
from sluicegate.dialects.form import Answer, Delta, Event, Failure
from sluicegate.dialects.openai_body import loosely, plainly
from sluicegate.dialects.sse import RawEvent, Reader, ended

__all__ = [
    "NAME", "NO_BLOCK", "PATH", "STATUS", "Head", "StreamReader", "event_bytes", "read_answer", "read_count", "read_request", "start_of", "streamed",
    "write_error", "write_event", "write_request", "write_stream_error", "write_truncation",
]  # fmt: skip

NAME = "anthropic_messages"
PATH = b"/v1/messages"  # below a provider's base URL
STATUS = {"upstream_overloaded": ERRORS["overloaded_error"]}

NO_BLOCK = -1

_LATER = ("output_tokens", "server_tool_use")  # of which the start of a message knows nothing yet
_INPUTS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
_STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
_UNNAMED = Failure(500, "", "api_error", "The upstream reported an error.")
_BY_STATUS = {status: name for name, status in ERRORS.items()}
_encode = msgspec.json.Encoder().encode


class Head(Struct, gc=False):
    """What is known of an answer from its start. told: of its input, to the client."""

    id: str = ""
    model: str = ""
    told: bool = False


# -- reading ------------------------------------------------------------------------------------------------------------------------------


def read_answer(body: bytes) -> Answer:
    """A unary answer, or the body of an error status. Never raises."""
    message, loose = read_message(body)
    if message is None:
        failure = failure_of(None, loose)
        return Answer([], [], None, failure, failure is not None)
    failure = failure_of(message.error, loose) if message.content is None or message.error else None
    finishes = [(0, finish_of(message.stop_reason))] if message.stop_reason else []
    deltas = deltas_of(message)
    calls = ran(message.content or ()) if deltas and deltas[0].tool_calls else None
    return Answer(deltas, finishes, usage_of(message.usage, calls), failure, message.content is not None or failure is not None)


class StreamReader:
    """Reads one streamed answer. An event without data, of `data: null` or of `data: [DONE]` is left out: it says nothing here."""

    __slots__ = ("_early", "_open", "_ran", "_reader", "_reported", "head")
    ending = _STOP

    def __init__(self) -> None:
        self._reader = Reader()
        self._early = True  # no more was told of the input than what was read at first
        self._open = NO_BLOCK
        self._reported: dict[str, Any] | None = None  # usage so far
        self._ran: dict[str, int] = {}  # calls of tools by the provider, so far
        self.head = Head()

    def feed(self, data: bytes) -> list[Event]:
        """The events that `data` completes."""
        return [event for raw in self._reader.feed(data) if (event := self._event(raw)) is not None]

    def end(self) -> list[Event]:
        """What is left at the end of the answer. A last event without its blank line gets one."""
        events = []
        for raw in self._reader.end():
            event = self._event(raw)
            if event is not None:
                event.raw = ended(raw.raw)
                events.append(event)
        return events

    def _event(self, raw: RawEvent) -> Event | None:
        if raw.kind != "event":
            return Event(raw.raw, raw.kind, after=self._open)
        try:
            said = decode_event(raw.data)
        except (ValueError, RecursionError):
            loose = plainly(raw.data)
            if not isinstance(loose, dict):
                empty = raw.data.strip() in (b"", b"null", b"[DONE]")
                return None if empty else Event(raw.raw, "bad", after=self._open)
            said = tolerated_event(loose)
        event = Event(raw.raw, "chunk")
        self._take(said, said.type or raw.event, event)
        if event.kind == "error" and event.failure is None:
            event.failure = failure_of(said.error, loosely(raw.data)) or _UNNAMED
        event.after = self._open
        return event

    def _take(self, said: StreamEvent, kind: str, event: Event) -> None:
        """What an event of this kind says. Output is output in an event of any kind."""
        if (change := said.delta) is not None:
            text = (change.text or "") + (change.thinking or "") + (change.partial_json or "") + (change.more or "")
            if text:
                event.deltas = [Delta(0, text)]
        if (block := said.content_block) is not None and (block.output or block.type in CALLS):
            event.deltas = [*event.deltas, Delta(0, block.output, 1 if block.type in CALLS else 0)]
            if block.type == RUN:
                name = ran_as(block.name or "")
                self._ran = self._ran | {name: self._ran.get(name, 0) + 1}
        if kind != "content_block_delta":
            self._frame(said, kind, event)

    def _frame(self, said: StreamEvent, kind: str, event: Event) -> None:
        """What an event says beside output."""
        if kind == "content_block_start":
            self._open = said.index
        elif kind == "content_block_stop":
            self._open = NO_BLOCK
        elif kind == "message_delta":
            again = said.usage if isinstance(said.usage, dict) else {}
            self._early = self._early and not ("input_tokens" in again and any(map(again.get, _INPUTS)))
            self._report(said.usage, event)
            if said.delta is not None and said.delta.stop_reason:
                event.finishes = [(0, finish_of(said.delta.stop_reason))]
            self._is_nothing(event)
        elif kind == "message_start":
            self._start(said.message or Message(), event)
        elif kind == "message_stop":
            event.kind = "done"
        elif kind == "error" or said.error is not None:
            event.kind = "error"
        elif not event.deltas:
            event.kind = "other"

    def _start(self, message: Message, event: Event) -> None:
        usage = message.usage
        if isinstance(usage, dict):
            for later in _LATER:
                usage.pop(later, None)
        self._report(usage, event)
        self.head = Head(message.id, message.model, event.usage is not None and bool(event.usage.input_tokens))
        event.deltas = [*event.deltas, *deltas_of(message)]
        self._is_nothing(event)

    @staticmethod
    def _is_nothing(event: Event) -> None:
        """What frames an answer is none of it, if it says nothing of one."""
        if event.usage is None and not event.finishes and not event.deltas:
            event.kind = "other"

    def _report(self, reported: Any, event: Event) -> None:
        self._reported = reports.laid_over(self._reported, reported)
        event.usage = usage_of(self._reported, self._ran)
        if event.usage is not None:
            event.usage.early = self._early


# -- writing ------------------------------------------------------------------------------------------------------------------------------


def event_bytes(data: dict[str, Any]) -> bytes:
    """One event, named after its type."""
    return b"event: %b\ndata: %b\n\n" % (data["type"].encode(), _encode(data))


def start_of(head: Head, usage: dict[str, int]) -> bytes:
    """The start of a message."""
    message = {"id": head.id, "type": "message", "role": "assistant", "model": head.model, "content": []}
    return event_bytes({"type": "message_start", "message": {**message, "stop_reason": None, "stop_sequence": None, "usage": usage}})


def write_event(event: Event, hide_usage: bool) -> bytes:
    """The event for the client as it came; b"" drops what cannot be read. A comment goes out in one line and without a blank one."""
    if event.kind == "comment":
        line = event.raw.strip(b"\r\n")
        return line + b"\n" if line else b""
    return b"" if event.kind == "bad" else event.raw


def streamed(body: bytes) -> bytes:
    """A readable whole answer as the stream that was asked for."""
    answer = loosely(body)
    content = answer.get("content") if isinstance(answer, dict) else None
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list):  # a number of thousands of digits somewhere
        return _untold()
    usage = answer.get("usage") if isinstance(answer.get("usage"), dict) else {}
    ended = {name: answer.get(name) for name in ("stop_reason", "stop_sequence")}
    if answer.get("stop_details") is not None:
        ended["stop_details"] = answer["stop_details"]
    message = answer | {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage | {"output_tokens": 0}}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": message}]
    for index, block in enumerate([block for block in content if isinstance(block, dict)]):
        begun, changes = _told(block)
        events.append({"type": "content_block_start", "index": index, "content_block": begun})
        events += [{"type": "content_block_delta", "index": index, "delta": change} for change in changes]
        events.append({"type": "content_block_stop", "index": index})
    events.append({"type": "message_delta", "delta": ended, "usage": usage})
    try:
        return b"".join([b"event: %b\ndata: %b\n\n" % (event["type"].encode(), json.dumps(event).encode()) for event in events]) + _STOP
    except RecursionError:  # it could just be read
        return _untold()


def _told(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block as it begins, and what is then added to it."""
    kind = block.get("type")
    changes: list[dict[str, Any]] = []
    if kind == "text":
        changes = [{"type": "text_delta", "text": block.get("text")}]
        cited = block.get("citations")
        changes += [{"type": "citations_delta", "citation": one} for one in (cited if isinstance(cited, list) else [])]
        return block | ({"text": "", "citations": []} if cited else {"text": ""}), changes
    if kind == "thinking":
        changes = [{"type": "thinking_delta", "thinking": block.get("thinking")}, {"type": "signature_delta", "signature": block.get("signature")}]
        return block | {"thinking": "", "signature": ""}, changes
    if kind in CALLS:
        return block | {"input": {}}, [{"type": "input_json_delta", "partial_json": json.dumps(block.get("input") or {})}]
    return block, changes


def _untold() -> bytes:
    return write_stream_error("The upstream's answer cannot be told as a stream.", "upstream_error", "upstream_error")


def write_truncation(head: Head, after: int | None, choices: Iterable[int], reason: str, usage: Usage | None) -> bytes:
    """The end of a stream that the gateway cuts: what is open is closed, and an answer that has not ended ends with "max_tokens".

    reason: "budget" or "ledger". after: None if nothing was delivered.
    """
    usage = usage or Usage()
    out = []
    if after is None:
        out.append(start_of(head, {"input_tokens": usage.input_tokens or 0, "output_tokens": 0}))
    elif after != NO_BLOCK:
        out.append(event_bytes({"type": "content_block_stop", "index": after}))
    for _ in choices:
        counts = {"output_tokens": usage.output_tokens or 0}
        if not head.told and after is not None:
            counts["input_tokens"] = usage.input_tokens or 0
        ended = {"stop_reason": "max_tokens", "stop_sequence": None}
        out.append(event_bytes({"type": "message_delta", "delta": ended, "usage": counts, "sluicegate": {"truncated": reason}}))
    return b"".join(out) + _STOP


def write_error(
    status: int, message: str, type: str = "", param: str | None = None, code: str | None = None, extra: dict[str, Any] | None = None
) -> bytes:
    """The body of an error. Its type is named after the status; `extra` goes inside `error`, but for the request's id."""
    named = _BY_STATUS.get(status) or ("invalid_request_error" if status < 500 else "api_error")
    return _encode(_error(named, message, param, code, dict(extra or {})))


def write_stream_error(message: str, type: str = "api_error", code: str | None = None, extra: dict[str, Any] | None = None) -> bytes:
    """The error event that ends a stream which has begun. No stop follows: the answer is not whole."""
    named = {"upstream_overloaded": "overloaded_error", "upstream_timeout": "timeout_error"}.get(code or "", type if type in ERRORS else "api_error")
    return event_bytes(_error(named, message, None, code, dict(extra or {})))


def _error(named: str, message: str, param: str | None, code: str | None, extra: dict[str, Any]) -> dict[str, Any]:
    request_id = extra.pop("request_id", None)
    error: dict[str, Any] = {"type": named, "message": message}
    if param is not None:
        error["param"] = param
    if code is not None:
        error |= {"code": code, "details": {"error_code": code}}  # the latter is where Anthropic's own client looks for it
    return {"type": "error", "error": error | extra, "request_id": request_id}
