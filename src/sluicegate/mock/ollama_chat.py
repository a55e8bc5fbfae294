"""Ollama's /api/chat, as the mock speaks it: lines of JSON. A call of a tool comes whole, on one line, when its last token has been generated."""

from datetime import UTC, datetime
from typing import Any

import msgspec

from sluicegate.mock.answers import CREATED, Answer, Piece
from sluicegate.mock.calls import OUTPUT_MAX, Call, Conversation, Offered, offered, read
from sluicegate.mock.openai_chunks import phrase
from sluicegate.mock.options import MockOptions

PATH = "/api/chat"
KEY_HEADER = "authorization"
STREAM_TYPE = "application/x-ndjson"
_json = msgspec.json.Encoder().encode


class Function(msgspec.Struct, frozen=True):
    """A tool that is offered, or called."""

    name: str
    description: str = ""
    parameters: msgspec.Raw = msgspec.Raw(b"{}")
    arguments: dict[str, Any] = {}


class Tool(msgspec.Struct):
    """A tool, or the call of one."""

    function: Function


class Message(msgspec.Struct):
    """A message, as far as the mock reads it."""

    role: str
    content: str = ""
    thinking: str = ""
    images: list[str] | None = None
    tool_calls: list[Tool] | None = None


class Options(msgspec.Struct):
    """Ollama's own."""

    num_predict: int | None = None  # below 0: no cap


class Body(msgspec.Struct):
    """The body of a call, as far as the mock acts on it."""

    model: str
    messages: msgspec.Raw
    stream: bool = True
    options: Options | None = None
    tools: list[Tool] | None = None
    mock: dict[str, Any] | None = None


_decode_body = msgspec.json.Decoder(Body).decode
_decode_messages = msgspec.json.Decoder(list[Message]).decode


def read_call(body: bytes) -> Call:
    """Streams unless told otherwise, as Ollama does."""
    asked = read(_decode_body, body)
    messages = read(_decode_messages, asked.messages)
    conversation = Conversation()
    for message in messages:
        conversation.turn(message.content + message.thinking)
        conversation.answered = message.role == "tool"
        called = [f"{call.function.name} {_json(call.function.arguments).decode()}" for call in message.tool_calls or ()]
        conversation.texts += called
    cap = asked.options.num_predict if asked.options is not None else None
    tools = [Offered(tool.function.name, tool.function.description, bytes(tool.function.parameters)) for tool in asked.tools or ()]
    return Call(
        asked.model,
        conversation.texts,
        bytes(asked.messages),
        asked,
        asked.stream,
        cap=OUTPUT_MAX if cap is None or cap < 0 else cap,
        messages=len(messages),
        overrides=asked.mock,
        tools=offered(tools, conversation),
        may_call=not conversation.answered,
    )


def error(status: int, message: str, code: str | int, param: str | None = None) -> dict[str, Any]:
    """An error in Ollama's shape."""
    return {"error": message or phrase(status).lower()}


def error_in_200(options: MockOptions, stream: bool) -> bytes:
    """The error as a body, or as a line."""
    return _json(error(options.error_in_200, options.message, options.code)) + (b"\n" if stream else b"")


def _line(answer: Answer, message: dict[str, Any], done: bool) -> dict[str, Any]:
    head = {"model": answer.call.model, "created_at": datetime.fromtimestamp(CREATED, UTC).isoformat().replace("+00:00", "Z")}
    return {**head, "message": {"role": "assistant", "content": "", **message}, "done": done, **answer.options.chunk_fields}


def _figures(answer: Answer) -> dict[str, Any]:
    """Why it ended, durations in nanoseconds, and counts; Ollama leaves out those that are zero."""
    output, options = answer.outputs[0], answer.options
    ended = {"done_reason": "stop" if output.finish == "tool_calls" else output.finish, "total_duration": 5_000_000, "load_duration": 1_000_000}
    figures = answer.figures(output.tokens)
    if figures is None or options.usage == "none":
        return ended
    counts = {"prompt_eval_count": figures.prompt, "eval_count": figures.completion, "eval_duration": 3_000_000}
    return ended | {name: count for name, count in counts.items() if count}


def _call(answer: Answer, number: int) -> dict[str, Any]:
    call = answer.outputs[0].calls[number]
    arguments = msgspec.Raw(call.arguments.encode() or b"{}")
    return {"id": answer.call_id(0, number, "call"), "function": {"index": number, "name": call.name, "arguments": arguments}}


def unary(answer: Answer) -> bytes:
    """The body of a unary answer. Of a call that the cap has cut nothing is left."""
    message: dict[str, Any] = {"content": answer.whole(0, "text")}
    if answer.shows_reasoning:
        message["thinking"] = answer.whole(0, "reasoning")
    calls = [_call(answer, call.number) for call in answer.outputs[0].calls if call.whole]
    if calls:
        message["tool_calls"] = calls
    return _json(_line(answer, message, True) | _figures(answer))


class Writer:
    """A stream: a line for each delta, and one that says why it ended."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._end = answer.options.newline.encode()

    def _written(self, message: dict[str, Any], **more: Any) -> bytes:
        return _json(_line(self._answer, message, False) | more) + self._end

    def lead(self) -> bytes:
        """Nothing, but for a line that a test wants."""
        size = self._answer.options.pad_bytes
        return self._written({}, padding="x" * size) if size else b""

    def chunk(self, index: int, piece: Piece) -> bytes:
        """A line, once there is something to show."""
        if piece.kind == "call":
            whole = piece.ends and self._answer.outputs[0].calls[piece.call].whole
            return self._written({"tool_calls": [_call(self._answer, piece.call)]}) if whole else b""
        text = self._answer.text(0, piece)
        if piece.kind == "text":
            return self._written({"content": text})
        return self._written({"thinking": text}) if self._answer.shows_reasoning else b""

    def finish(self, index: int) -> bytes:
        """Nothing: the last line says it."""
        return b""

    def tail(self) -> bytes:
        """The last line."""
        return self._written({}, done=True, **_figures(self._answer)) if self._answer.options.done else b""
