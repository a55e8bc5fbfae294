"""The OpenAI Responses dialect: answers, streams and what the gateway itself says in them. The request side is in openai_responses_request.

Readers never raise, whatever an upstream sends. Events pass as the bytes they came in. A stream ends with `response.completed` (or `incomplete`),
which has the usage; there is no [DONE]. It is read as two events: what it says, without bytes, and the end. All that a model writes is output: texts,
reasoning and its summaries, refusals, names and arguments of calls, of tools that the provider runs, too, and a text in any field that is not known
to hold none, in an event, an item or a part. What such tools found is none. Each text comes up to four times (in
deltas, at the end of its part, of its item, of the response) and is counted once.

Vendors differ: Ollama and vLLM end a response that was cut with `response.completed`, so its status is what counts; some tell a text only at its end.
"""

import json
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Raw, Struct

from sluicegate.core.usage import Usage
from sluicegate.dialects import openai_chat
from sluicegate.dialects.form import Answer, Delta, Event, Failure
from sluicegate.dialects.hosted import counted
from sluicegate.dialects.openai_body import bare_failure, failure_in, int_or, loosely, others, plainly, strings, text_of
from sluicegate.dialects.openai_chat import write_error
from sluicegate.dialects.openai_responses_output import BY_PART, KINDS, Events, Head, Kind, Output, Step, ended, told
from sluicegate.dialects.openai_responses_request import read_request, write_request
from sluicegate.dialects.sse import RawEvent, Reader
from sluicegate.dialects.usage import OPENAI_RESPONSES
from sluicegate.dialects.usage import read as read_usage

__all__ = [
    "NAME", "PATH", "STATUS", "StreamReader", "read_answer", "read_request", "streamed",
    "write_error", "write_event", "write_request", "write_stream_error", "write_truncation",
]  # fmt: skip

NAME = "openai_responses"
STATUS: dict[str, int] = {}
PATH = b"/responses"  # below a provider's base URL

_LAST_SEQUENCE = 2**31 - 1  # of an error, which has to be told where it is not known how many events went before
_UNNAMED = Failure(None, "", "", "The upstream reported an error.")
_ENDS = frozenset(("response.completed", "response.incomplete", "response.failed", "response.cancelled"))
_FINISHES = {"max_output_tokens": "length", "max_tokens": "length"}
# Fields in which items have what a model wrote, beside the texts of their parts.
_WRITTEN = ("name", "arguments", "input", "code", "action", "operation", "queries")
# Fields of items that hold no output beside those of which this is true everywhere: what tools found, and where they run.
_BESIDE = frozenset({"content", "summary", "output", "outputs", "results", "result", "tools", "server_label", "namespace", "phase", "size"})
_BESIDE |= {"container_id", "approval_request_id", "pending_safety_checks", "environment", "quality", "background", "output_format", "created_by"}
_OF_ITEM = _BESIDE.union(_WRITTEN)
_FOUND = "_output"  # the end of the types of items that hold what a tool found


class _Said(Struct, gc=False, forbid_unknown_fields=True):
    """An event. more: the texts of all other fields."""

    type: str = ""
    item_id: Any = None
    delta: str = ""
    output_index: int = 0
    content_index: int = 0
    summary_index: int = 0
    sequence_number: int = 0
    text: str | None = None
    refusal: str | None = None
    arguments: str | None = None
    input: str | None = None
    code: str | None = None
    message: str | None = None
    item: Raw = Raw()
    response: Raw = Raw()
    part: Any = None
    error: Any = None
    logprobs: Raw = Raw()
    obfuscation: Raw = Raw()
    more: str = ""


_OF_EVENT = frozenset(_Said.__struct_fields__) - {"more"}


class _Response(Struct, gc=False):
    output: list[Any] = []


_decode = msgspec.json.Decoder(_Said).decode
_decode_response = msgspec.json.Decoder(_Response).decode


# -- reading ------------------------------------------------------------------------------------------------------------------------------


def read_answer(body: bytes) -> Answer:
    """A unary answer, or the body of an error status. Never raises."""
    loose = loosely(body)
    if not isinstance(loose, dict) or not isinstance(loose.get("output"), list):
        failure = bare_failure(loose)
        return Answer([], [], None, failure, failure is not None)
    text, calls = _written(loose["output"])
    failure = _failure(loose)
    finishes = [] if failure is not None else [(0, _finish(loose))]
    usage = _used(loose, counted(loose["output"]) if calls else None)
    return Answer([Delta(0, text, calls)] if text or calls else [], finishes, usage, failure, True)


def _used(response: dict[str, Any], calls: dict[str, int] | None) -> Usage | None:
    """calls: of tools that the provider ran."""
    usage = read_usage(OPENAI_RESPONSES, response.get("usage"))
    if usage is not None:
        usage.calls = calls or None
    return usage


def _written(items: list[Any]) -> tuple[str, int]:
    """All that a model wrote in these items, and how many calls they are."""
    texts: list[str] = []
    calls = 0
    for item in items:
        if not isinstance(item, dict):
            continue
        for name in ("content", "summary"):
            parts = item.get(name)
            if isinstance(parts, str):
                texts.append(parts)
            for part in parts if isinstance(parts, list) else ():
                texts.append(others(part, (), set()) if isinstance(part, dict) else "".join(strings(part)))
        call = _is_call(item)
        calls += call
        if not text_of(item.get("type")).endswith(_FOUND):
            values = [item[name] for name in _WRITTEN if item.get(name)]
            texts += [value if isinstance(value, str) else _json(value) for value in values]
            texts.append(others(item, _OF_ITEM, set(texts)))
    return "".join(texts), calls


def _is_call(item: dict[str, Any]) -> bool:
    return text_of(item.get("type")).endswith("_call")


def _finish(response: dict[str, Any]) -> str:
    """Why a response ended, in OpenAI's names of chat."""
    if response.get("status") == "incomplete":
        details = response.get("incomplete_details")
        reason = text_of(details.get("reason")) if isinstance(details, dict) else ""
        return _FINISHES.get(reason, reason or "length")
    output = response.get("output")
    types = [item.get("type") for item in output if isinstance(item, dict)] if isinstance(output, list) else []
    return "tool_calls" if "function_call" in types or "custom_tool_call" in types else "stop"


def _failure(response: dict[str, Any]) -> Failure | None:
    failure = failure_in(response.get("error"))
    if failure is None and response.get("status") in ("failed", "cancelled"):
        failure = _UNNAMED
    return failure


class StreamReader:
    """Reads one streamed answer. An event without data, or `[DONE]`, which some servers send behind the end, is left out: it says nothing."""

    __slots__ = ("_called", "_created", "_in_items", "_reader", "_seen", "_sequence", "_steps")
    ending = b""  # a stream without its last event is not complete

    def __init__(self) -> None:
        self._reader = Reader()
        self._created = Raw()
        self._steps: list[Step] = []
        self._seen: dict[tuple[int, str, int], int] = {}  # characters that were read, by index of the item, name of the text, index of the part
        self._in_items: dict[int, int] = {}  # the same over all texts of an item
        self._called: set[int] = set()  # items that are calls and were counted
        self._sequence = 0  # of the next event

    def feed(self, data: bytes) -> list[Event]:
        """The events that `data` completes."""
        return [event for raw in self._reader.feed(data) for event in self._events(raw, raw.raw)]

    def end(self) -> list[Event]:
        """What is left at the end of the answer. A last event without its blank line gets one."""
        return [event for raw in self._reader.end() for event in self._events(raw, raw.raw.rstrip(b"\r\n") + b"\n\n")]

    @property
    def head(self) -> Head:
        """The response as it began, and what was said since."""
        created = loosely(bytes(self._created))
        return Head(created if isinstance(created, dict) else {"id": "", "object": "response"}, self._steps)

    def _events(self, event: RawEvent, raw: bytes) -> list[Event]:
        if event.kind != "event":
            return [Event(raw, event.kind)]
        data = event.data
        try:
            said = _decode(data)
        except (ValueError, RecursionError):
            if not data or data.strip() in (b"[DONE]", b"null"):
                return []
            loose = plainly(data)
            if not isinstance(loose, dict):
                return [Event(raw, "bad")]
            said = _tolerated(loose)
        type_ = said.type or event.event
        events = self._read(type_, said, raw, data)
        self._sequence = max(self._sequence, min(said.sequence_number, _LAST_SEQUENCE - 2)) + 1
        for each in events:
            each.after = (len(self._steps), self._sequence)
        return events

    def _read(self, type_: str, said: _Said, raw: bytes, data: bytes) -> list[Event]:
        if (said.delta or said.more) and type_.endswith(".delta") and type_ != "response.audio.delta":
            if said.delta:
                self._text(type_[:-6], said, said.delta)
            if said.more:
                self._count(said.output_index, type_, 0, len(said.more))
            return [Event(raw, "chunk", [Delta(0, said.delta + said.more)])]
        if type_ == "response.audio.delta":
            return [Event(raw, "other")]
        if type_ == "error" or said.error is not None:
            return [_error(said, raw, data)]
        if type_.startswith("response.output_item."):
            return [self._item(type_, said, raw)]
        if said.response:
            return self._lifecycle(type_, said, raw)
        return [self._part(type_, said, said.part, raw) if isinstance(said.part, dict) else self._text_done(type_, said, raw)]

    def _text(self, name: str, said: _Said, text: str) -> None:
        kind = KINDS.get(name)
        index = _index(kind, said)
        self._count(said.output_index, name, index, len(text))
        if kind is not None:
            self._steps.append(Step("text", said.output_index, kind, index, text))

    def _count(self, output_index: int, name: str, index: int, characters: int) -> None:
        key = (output_index, name, index)
        self._seen[key] = self._seen.get(key, 0) + characters
        self._in_items[output_index] = self._in_items.get(output_index, 0) + characters

    def _whole(self, name: str, said: _Said, text: str, raw: bytes) -> Event:
        """A text is told once more: what no delta has said of it is output now."""
        missing = text[self._seen.get((said.output_index, name, _index(KINDS.get(name), said)), 0) :]
        if not missing:
            return Event(raw, "other")
        self._text(name, said, missing)
        return Event(raw, "chunk", [Delta(0, missing)])

    def _text_done(self, type_: str, said: _Said, raw: bytes) -> Event:
        """The end of a text, or an event that is not known: what is new in it is output."""
        name = type_.removesuffix(".done")
        event = self._whole(name, said, (said.text or said.refusal or said.arguments or said.input or said.code or said.delta) + said.more, raw)
        if name == type_:
            return event
        kind = KINDS.get(name)
        if kind is not None:
            self._steps.append(Step("text_done", said.output_index, kind, _index(kind, said)))
        return event

    def _part(self, type_: str, said: _Said, part: dict[str, Any], raw: bytes) -> Event:
        kind = BY_PART.get(text_of(part.get("type")))
        if kind is None:
            return self._whole("part", said, text_of(others(part, (), set())), raw)
        text = text_of(part.get(kind.field))
        event = self._whole(kind.name, said, text + text_of(others(part, (kind.field,), {text})), raw)
        self._steps.append(Step("part_done" if type_.endswith(".done") else "part", said.output_index, kind, _index(kind, said)))
        return event

    def _item(self, type_: str, said: _Said, raw: bytes) -> Event:
        """An item begins or ends: what nothing else has said is output, but that arguments come in deltas, whatever the beginning says of them."""
        done = type_ == "response.output_item.done"
        index = said.output_index
        self._steps.append(Step("done" if done else "added", index, value=said.item))
        item = loosely(bytes(said.item))
        if not isinstance(item, dict):
            return Event(raw, "other")
        text, calls = _written([item if done else {name: value for name, value in item.items() if name not in _WRITTEN[1:]}])
        text = text[self._in_items.get(index, 0) :]
        if index in self._called:
            calls = 0
        elif calls:
            self._called.add(index)
        if text:
            self._count(index, "", 0, len(text))
        return Event(raw, "chunk", [Delta(0, text, calls)]) if text or calls else Event(raw, "other")

    def _lifecycle(self, type_: str, said: _Said, raw: bytes) -> list[Event]:
        """The response begins, goes on or ends."""
        if type_ not in _ENDS:
            self._created = said.response
            return [self._going(said.response, raw)]
        response = loosely(bytes(said.response))
        if not isinstance(response, dict):
            return [Event(raw, "bad")]
        output = response.get("output")
        usage = _used(response, self._ran(output if isinstance(output, list) else []) if self._called or output else None)
        failure = _failure(response) or (_UNNAMED if type_ in ("response.failed", "response.cancelled") else None)
        deltas = self._missing(output)
        if failure is not None:
            return [Event(raw, "error", deltas, usage=usage, failure=failure)]
        if type_ == "response.completed" and usage is None and not (deltas or output or self._steps or self._seen or "status" in response):
            return [Event(raw, "done")]  # of nothing
        finish = _finish(response if type_ != "response.incomplete" else response | {"status": "incomplete"})
        if finish == "stop" and self._called_back():
            finish = "tool_calls"
        return [Event(b"", "chunk", deltas, [(0, finish)], usage), Event(raw, "done")]

    def _going(self, response: Raw, raw: bytes) -> Event:
        """What it says of the response so far, where it says anything."""
        try:
            output: Any = _decode_response(response).output
        except (ValueError, RecursionError):
            loose = plainly(bytes(response))
            output = loose.get("output") if isinstance(loose, dict) else None
        deltas = self._missing(output) if output else []
        return Event(raw, "chunk" if deltas else "other", deltas)

    def _ran(self, output: list[Any]) -> dict[str, int]:
        """Calls of the provider's tools: as the whole response has them, or as they were told one by one."""
        told = [loosely(bytes(step.value)) for step in self._steps if step.what == "done"] if self._called else []
        whole, one_by_one = counted(output), counted(told)
        return {name: max(whole.get(name, 0), one_by_one.get(name, 0)) for name in {**whole, **one_by_one}}

    def _missing(self, output: Any) -> list[Delta]:
        """What a whole response has beyond all that was told before: the order is that of the items, so it is the end of it."""
        text, calls = _written(output) if isinstance(output, list) else ("", 0)
        text, calls = text[sum(self._in_items.values()) :], 0 if self._called or self._in_items else calls
        if text:
            self._count(-1, "", 0, len(text))
        return [Delta(0, text, calls)] if text or calls else []

    def _called_back(self) -> bool:
        """Whether the client is asked to run a tool, where the last event does not repeat the output."""
        return any(step.kind is not None and not step.kind.inside for step in self._steps)


def _index(kind: Kind | None, said: _Said) -> int:
    """Which of an item's parts it is about."""
    if kind is None or not kind.index:
        return 0
    return said.summary_index if kind.index == "summary_index" else said.content_index


def _tolerated(loose: dict[str, Any]) -> _Said:
    """What can be taken of an event in which something has a wrong type."""
    said = _Said(part=loose.get("part"), error=loose.get("error"))
    told = set()
    for name in ("type", "delta", "text", "refusal", "arguments", "input", "code", "message"):
        text = text_of("".join(strings(loose.get(name))))
        setattr(said, name, text)
        told.add(text)
    said.more = text_of(others(loose, _OF_EVENT, told))
    for name in ("output_index", "content_index", "summary_index", "sequence_number"):
        setattr(said, name, int_or(loose.get(name), 0))
    for name in ("item", "response"):
        if isinstance(loose.get(name), dict):
            setattr(said, name, Raw(_json(loose[name]).encode()))
    return said


def _error(said: _Said, raw: bytes, data: bytes) -> Event:
    failure = failure_in(said.error) if said.error else bare_failure(loosely(data))
    if failure is not None and failure.type == "error":  # the event's
        failure.type = ""
    return Event(raw, "error", failure=failure or _UNNAMED)


def _json(value: Any) -> str:
    try:
        return json.dumps(value)
    except RecursionError:  # what could just be read may be too deep to be written, further down the stack
        return ""


# -- writing ------------------------------------------------------------------------------------------------------------------------------


def write_event(event: Event, hide_usage: bool) -> bytes:
    """The event for the client, as it came: usage is a part of every response. What cannot be read is dropped."""
    return openai_chat.write_event(event, False)


def streamed(body: bytes) -> bytes:
    """A readable whole answer as the stream that was asked for."""
    response = loosely(body)
    try:
        if isinstance(response, dict):
            return told(response)
    except (ValueError, RecursionError, TypeError):  # nested as deeply as can just be read, or half of a surrogate pair
        pass
    return write_stream_error("The upstream's answer cannot be told as a stream.", "upstream_error", "upstream_error")


def write_truncation(head: Head, after: tuple[int, int] | None, choices: Iterable[int], reason: str, usage: Usage | None) -> bytes:
    """The end of a stream that the gateway cuts: every item that is open ends as incomplete, then the response does, with the output so far.

    reason: "budget" or "ledger". after: how many steps the client was told, and the number of the next event; None: it was told nothing.
    """
    told_steps, sequence = after or (0, 0)
    output = Output(head.steps[:told_steps])
    try:
        return _closing(Events(sequence), head.response, output, reason, usage, begun=after is not None)
    except RecursionError:  # what could just be read may be too deep to be written
        plain = {"id": text_of(head.response.get("id")), "object": "response"}
        return _closing(Events(sequence), plain, Output([]), reason, usage, begun=after is not None)


def _closing(events: Events, response: dict[str, Any], output: Output, reason: str, usage: Usage | None, *, begun: bool) -> bytes:
    out = [] if begun else [events.event("response.created", {"response": response | {"status": "in_progress"}})]
    if output.finish:
        response = ended(response, output, output.finish, usage)
    else:
        out.append(events.ends(output, "incomplete"))
        response = ended(response, output, "length", usage) | {"sluicegate": {"truncated": reason}}
    out.append(events.event(f"response.{response['status']}", {"response": response}))
    return b"".join(out)


def write_stream_error(message: str, type: str = "server_error", code: str | None = None, extra: dict[str, Any] | None = None) -> bytes:
    """The events that end a stream which has begun: an error, and the response as failed. Clients look for one or the other."""
    events = Events(_LAST_SEQUENCE - 1)
    error = {"type": type, "code": code, "message": message, "param": None, **(extra or {})}
    failed = {"id": "", "object": "response", "status": "failed", "output": [], "error": {"code": "server_error", "message": message}}
    return events.event("error", {"code": code, "message": message, "param": None, "error": error}) + events.event(
        "response.failed", {"response": failed}
    )
