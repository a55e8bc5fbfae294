"""The Ollama dialect, which providers speak and clients do not: what is read of a whole answer and of a stream, in the native /api/chat.

https://github.com/ollama/ollama/blob/main/docs/api.md. A stream is lines of JSON, each with what is new; the last one, `done: true`, has the counts
and why it ended. Counts that are zero are left out, so of a prompt that comes from the cache there may be none. What a model thinks has a field of
its own, calls of tools come whole; a text in any other field of a message is output, too. An error is a text, also as a line in the middle of a
stream. Durations and log probabilities say nothing here.

Readers never raise, whatever an upstream sends.
"""

from typing import Any

import msgspec
from msgspec import Struct

from sluicegate.core.usage import Usage
from sluicegate.dialects import usage
from sluicegate.dialects.form import Answer, Delta, Event
from sluicegate.dialects.ndjson import RawLine, Reader
from sluicegate.dialects.openai_body import bare_failure, failure_in, loosely, others, plainly, strings, text_of

NAME = "ollama"
PATH = b"/api/chat"  # below a provider's base URL

_encode = msgspec.json.Encoder().encode


class Function(Struct, gc=False, forbid_unknown_fields=True):
    """A call. arguments: an object, as it came."""

    index: Any = None
    name: str = ""
    arguments: msgspec.Raw = msgspec.Raw(b"")


class Call(Struct, gc=False, forbid_unknown_fields=True):
    function: Function
    id: str = ""
    type: Any = None
    more: str = ""


class Message(Struct, gc=False, forbid_unknown_fields=True):
    """What was said, or what is new of it. more: the texts of all other fields."""

    role: Any = None
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[Call] | None = None
    more: str | None = None


class Body(Struct, gc=False):
    """A line of a stream, or a whole answer."""

    message: Message | None = None
    done: bool = False
    done_reason: str | None = None
    prompt_eval_count: Any = None
    eval_count: Any = None
    error: Any = None
    model: str | None = None
    created_at: str | None = None


_decode_body = msgspec.json.Decoder(Body).decode


def read_body(data: bytes) -> Body | None:
    """A line or an answer; None if it is no object. Where something has a wrong type, what can be taken of it."""
    try:
        return _decode_body(data)
    except (ValueError, RecursionError):
        loose = plainly(data)
    return _tolerated(loose) if isinstance(loose, dict) else None


def _tolerated(loose: dict[str, Any]) -> Body:
    body = Body(
        done=loose.get("done") is True,
        done_reason=text_of(loose.get("done_reason")) or None,
        prompt_eval_count=loose.get("prompt_eval_count"),
        eval_count=loose.get("eval_count"),
        error=loose.get("error"),
        model=text_of(loose.get("model")),
        created_at=text_of(loose.get("created_at")),
    )
    message = loose.get("message")
    if isinstance(message, dict):
        calls = message.get("tool_calls")
        content, thinking = [text_of("".join(strings(message.get(name)))) for name in ("content", "thinking")]
        body.message = Message(
            None,
            content,
            thinking,
            [_tolerated_call(call) for call in (calls if isinstance(calls, list) else [calls]) if call] if calls else None,
            text_of(others(message, ("content", "thinking", "tool_calls"), {content, thinking})),
        )
    return body


def _tolerated_call(loose: Any) -> Call:
    function = loose.get("function") if isinstance(loose, dict) else loose
    if not isinstance(function, dict):
        more = others(loose, ("function",), set()) if isinstance(loose, dict) else ""
        return Call(Function(None, "", _json(function) if function else msgspec.Raw(b"")), more=text_of(more))
    arguments = function.get("arguments")
    called = Function(None, text_of(function.get("name")), _json(arguments) if arguments is not None else msgspec.Raw(b""))
    more = others(loose, ("function",), set()) + others(function, ("name", "arguments"), set())
    return Call(called, text_of(loose.get("id")), more=text_of(more))


def _json(value: Any) -> msgspec.Raw:
    if isinstance(value, str):
        return msgspec.Raw(text_of(value).encode())
    try:
        return msgspec.Raw(_encode(value))
    except (ValueError, RecursionError, OverflowError):  # half a surrogate pair, a number of thousands of digits
        return msgspec.Raw("".join(map(text_of, strings(value))).encode())


# -- what is said -------------------------------------------------------------------------------------------------------------------------


def arguments_of(call: Call) -> str:
    """JSON text, which some servers write as a text once more; "" for none."""
    raw = bytes(call.function.arguments)
    if raw.startswith(b'"'):
        return text_of(loosely(raw))
    return raw.decode("utf-8", "replace") if raw != b"null" else ""


def finish_of(body: Body, called: bool) -> str:
    """Why it ended, in OpenAI's names: stop, length, tool_calls; any other (load, unload) as it came."""
    reason = body.done_reason or "stop"
    return "tool_calls" if reason == "stop" and called else reason


def _deltas(message: Message) -> list[Delta]:
    text = (message.thinking or "") + (message.content or "") + (message.more or "")
    calls = message.tool_calls
    if calls:
        text += "".join([call.function.name + arguments_of(call) + call.more for call in calls])
    return [Delta(0, text, len(calls) if calls else 0)] if text or calls else []


def _usage(body: Body) -> Usage | None:
    if body.eval_count is None and body.prompt_eval_count is None:
        return None
    return usage.read(usage.OLLAMA, {"prompt_eval_count": body.prompt_eval_count, "eval_count": body.eval_count})


def read_answer(body: bytes) -> Answer:
    """A whole answer, or the body of an error status. Never raises."""
    said = read_body(body)
    if said is None:
        return Answer([], [], None, None, False)
    message = said.message
    failure = failure_in(said.error)
    if message is None and failure is None:
        failure = bare_failure(loosely(body))
    finishes = [(0, finish_of(said, bool(message.tool_calls)))] if message is not None and said.done else []
    readable = message is not None or failure is not None
    return Answer(_deltas(message) if message is not None else [], finishes, _usage(said), failure, readable)


def streamed(body: bytes) -> bytes:
    """A readable whole answer as the stream that it might have been: one line is one, too. Line ends are no part of texts in JSON."""
    return body.strip().replace(b"\r", b" ").replace(b"\n", b" ") + b"\n"


class StreamReader:
    """Reads one streamed answer. The last line is two events: what it says, and the end."""

    __slots__ = ("_begun", "_called", "_reader")
    ending = b""

    def __init__(self) -> None:
        self._reader = Reader()
        self._begun = self._called = False

    def feed(self, data: bytes) -> list[Event]:
        """The events that `data` completes."""
        return [event for line in self._reader.feed(data) for event in self._events(line)]

    def end(self) -> list[Event]:
        """What is left at the end of the answer."""
        return [event for line in self._reader.end() for event in self._events(line)]

    def _events(self, line: RawLine) -> list[Event]:
        if line.kind != "line":
            return [Event(line.raw, "comment" if line.kind == "blank" else "bad")]
        body = read_body(line.data)
        if body is None:
            return [Event(line.raw, "bad")]
        failure = failure_in(body.error) if body.error is not None else None
        message = body.message
        deltas = _deltas(message) if message is not None else []
        if message is not None:
            self._begun = True
            if message.tool_calls:
                self._called = True
        if failure is not None:
            return [Event(line.raw, "error", deltas, usage=_usage(body), failure=failure)]
        if not body.done:
            return [Event(line.raw, "chunk" if message is not None else "other", deltas)]
        usage = _usage(body)
        if not self._begun and not body.done_reason and usage is None:
            return [Event(line.raw, "other"), Event(b"", "done")]  # the end of nothing
        return [Event(line.raw, "chunk", deltas, [(0, finish_of(body, self._called))], usage), Event(b"", "done")]
