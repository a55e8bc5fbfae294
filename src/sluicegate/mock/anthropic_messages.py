"""Anthropic messages, as the mock speaks them, and as strict as Anthropic is where a gateway that translates could go wrong.

Thinking is signed, and in a conversation only what was signed here is taken back, byte for byte. Reasoning that is visible comes as thinking;
`redacted` as a block of data that nobody can read; `hidden` is not to be seen at all.
"""

import hashlib
from typing import Annotated, Any, Literal

import msgspec

from sluicegate.mock.answers import Answer, Output, Piece, pieces
from sluicegate.mock.calls import BadCall, Call, Conversation, Offered, Positive, offered, read
from sluicegate.mock.openai_chunks import phrase
from sluicegate.mock.options import MockOptions

PATH = "/v1/messages"
KEY_HEADER = "x-api-key"
STREAM_TYPE = "text/event-stream; charset=utf-8"
THINKING_MIN = 1024
FINISHES = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_TYPES = {
    **{400: "invalid_request_error", 401: "authentication_error", 402: "billing_error", 403: "permission_error", 404: "not_found_error"},
    **{413: "request_too_large", 429: "rate_limit_error", 504: "timeout_error", 529: "overloaded_error"},
}
_json = msgspec.json.Encoder().encode


class Block(msgspec.Struct):
    """A block of a message's content, as far as the mock reads it."""

    type: str
    text: str = ""
    thinking: str = ""
    signature: str = ""
    data: str = ""
    id: str = ""
    name: str = ""
    input: msgspec.Raw = msgspec.Raw(b"{}")
    tool_use_id: str = ""
    content: "str | list[Block] | None" = None


class Message(msgspec.Struct):
    """A message."""

    role: Literal["user", "assistant"]
    content: str | list[Block]


class Tool(msgspec.Struct):
    """A tool that is offered."""

    name: str
    description: str = ""
    input_schema: msgspec.Raw = msgspec.Raw(b"{}")


class Choosing(msgspec.Struct):
    """`tool_choice`."""

    type: Literal["auto", "any", "tool", "none"]


class Thinking(msgspec.Struct):
    """`thinking`."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, msgspec.Meta(ge=THINKING_MIN)] | None = None


class Metadata(msgspec.Struct):
    """`metadata`."""

    user_id: str | None = None


class Body(msgspec.Struct):
    """The body of a call, as far as the mock acts on it."""

    model: str
    max_tokens: Positive
    messages: msgspec.Raw
    system: str | list[Block] | None = None
    stream: bool | None = None
    tools: list[Tool] | None = None
    tool_choice: Choosing | None = None
    thinking: Thinking | None = None
    metadata: Metadata | None = None
    mock: dict[str, Any] | None = None


_decode_body = msgspec.json.Decoder(Body).decode
_decode_messages = msgspec.json.Decoder(Annotated[list[Message], msgspec.Meta(min_length=1)]).decode


def read_call(body: bytes) -> Call:
    """Checks roles, empty texts, signatures, the thinking budget, and that each call of a tool has its result."""
    asked = read(_decode_body, body)
    messages = read(_decode_messages, asked.messages)
    thinking = asked.thinking
    if thinking is not None and thinking.budget_tokens is not None and thinking.budget_tokens >= asked.max_tokens:
        raise BadCall("max_tokens must be greater than thinking.budget_tokens")
    if messages[0].role != "user":
        raise BadCall("messages: the first must use the user role")
    conversation = Conversation()
    if asked.system:
        conversation.turn(_text(asked.system))
    for place, message in enumerate(messages):
        _take(message, f"messages.{place}", conversation)
    conversation.end()
    tools = [Offered(tool.name, tool.description, bytes(tool.input_schema)) for tool in asked.tools or ()]
    return Call(
        asked.model,
        conversation.texts,
        bytes(asked.messages),
        asked,
        bool(asked.stream),
        cap=asked.max_tokens,
        messages=len(messages) + bool(asked.system),
        user=(asked.metadata.user_id if asked.metadata is not None else None) or "",
        overrides=asked.mock,
        tools=offered(tools, conversation),
        may_call=not conversation.answered and (asked.tool_choice is None or asked.tool_choice.type != "none"),
    )


def _take(message: Message, path: str, conversation: Conversation) -> None:
    if isinstance(message.content, str):
        if not message.content:
            raise BadCall(f"{path}: all messages must have non-empty content")
        conversation.turn(message.content)
        return
    results = [block for block in message.content if block.type == "tool_result"]
    if not results:
        conversation.turn()
    for block in results:
        conversation.result(block.tool_use_id, _text(block.content or ""))
    for block in message.content:
        if block.type == "text" and not block.text:
            raise BadCall(f"{path}: text content blocks must be non-empty")
        if block.type == "thinking" and block.signature != signature(block.thinking):
            raise BadCall(f"{path}: Invalid `signature` in `thinking` block")
        if block.type == "redacted_thinking" and not block.data.startswith("mock-redacted-"):
            raise BadCall(f"{path}: Invalid `data` in `redacted_thinking` block")
        if block.type == "tool_use":
            conversation.call(block.id, block.name, bytes(block.input).decode())
        elif block.text or block.thinking:
            conversation.texts.append(block.text + block.thinking)


def _text(content: str | list[Block]) -> str:
    return content if isinstance(content, str) else "".join([block.text for block in content])


def signature(thought: str) -> str:
    """The proof that this was thought here."""
    return "mock-" + hashlib.blake2b(thought.encode(), digest_size=16).hexdigest()


def error(status: int, message: str, code: str | int, param: str | None = None) -> dict[str, Any]:
    """An error in Anthropic's shape. code: the type, if it is given."""
    kind = code or _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message or phrase(status)}, "request_id": "req_mock"}


def error_in_200(options: MockOptions, stream: bool) -> bytes:
    """The error as a body, or as an event."""
    body = error(options.error_in_200, options.message, options.code)
    return _event("error", body, b"\n\n") if stream else _json(body)


def _usage(answer: Answer, position: int) -> dict[str, Any] | None:
    figures = answer.figures(position)
    if figures is None:
        return None
    written = figures.cache_written + figures.cache_written_1h
    return {
        "input_tokens": max(figures.prompt - figures.cached - written, 0),
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": figures.cached,
        "cache_creation": {"ephemeral_5m_input_tokens": figures.cache_written, "ephemeral_1h_input_tokens": figures.cache_written_1h},
        "output_tokens": figures.completion,
        "service_tier": "standard",
    }


def _message(answer: Answer) -> dict[str, Any]:
    return {"id": f"msg_mock_{answer.number}", "type": "message", "role": "assistant", "model": answer.call.model}


def unary(answer: Answer) -> bytes:
    """The body of a unary answer."""
    output = answer.outputs[0]
    blocks = [_block(answer, piece) for piece in pieces(output, 0, output.tokens) if not _hides(answer, piece)]
    body = _message(answer) | {"content": blocks, "stop_reason": _stop_reason(output), "stop_sequence": None}
    if answer.options.usage != "none":
        body["usage"] = _usage(answer, output.tokens)
    return _json({**body, **answer.options.chunk_fields})


def _hides(answer: Answer, piece: Piece) -> bool:
    return piece.kind == "reasoning" and answer.options.reasoning == "hidden"


def _stop_reason(output: Output) -> str:
    return FINISHES.get(output.finish, output.finish)


def _block(answer: Answer, piece: Piece) -> dict[str, Any]:
    """A whole block."""
    if piece.kind == "call":
        call = answer.outputs[0].calls[piece.call]
        try:
            arguments = msgspec.json.decode(call.arguments) if call.arguments else {}
        except msgspec.DecodeError:  # cut short
            arguments = {}
        return {"type": "tool_use", "id": answer.call_id(0, piece.call, "toolu"), "name": call.name, "input": arguments}
    text = answer.text(0, piece)
    if piece.kind == "text":
        return {"type": "text", "text": text}
    if answer.options.reasoning == "redacted":
        return {"type": "redacted_thinking", "data": f"mock-redacted-{piece.tokens}"}
    return {"type": "thinking", "thinking": text, "signature": signature(text)}


class Writer:
    """A stream: message_start, blocks of deltas, message_delta, message_stop."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._end = (answer.options.newline * 2).encode()
        self._index = 0  # of the block

    def _event(self, kind: str, **fields: Any) -> bytes:
        return _event(kind, {"type": kind, **fields}, self._end)

    def lead(self) -> bytes:
        """message_start, with what is known of the usage by then, and a ping."""
        options = self._answer.options
        message = _message(self._answer) | {"content": [], "stop_reason": None, "stop_sequence": None, **options.chunk_fields}
        if options.usage != "none":
            usage = _usage(self._answer, 0)
            message["usage"] = usage if usage is None else usage | {"output_tokens": 0 if options.usage == "zero" else 1}
        padding = {"padding": "x" * options.pad_bytes} if options.pad_bytes else {}
        return self._event("message_start", message=message, **padding) + self._event("ping")

    def chunk(self, index: int, piece: Piece) -> bytes:
        """A delta, with the begin of its block before it and the end after it."""
        answer, block = self._answer, self._index
        if _hides(answer, piece):
            return b""
        if piece.kind == "reasoning" and answer.options.reasoning == "redacted":
            if not piece.ends:
                return b""
            self._index += 1
            whole = _block(answer, piece._replace(tokens=piece.at + piece.tokens))
            return self._event("content_block_start", index=block, content_block=whole) + self._event("content_block_stop", index=block)
        text = answer.text(0, piece)
        start: dict[str, Any]
        if piece.kind == "call":
            start = {"type": "tool_use", "id": answer.call_id(0, piece.call, "toolu"), "name": answer.outputs[0].calls[piece.call].name, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": text}
        elif piece.kind == "text":
            start, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": text}
        else:
            start, delta = {"type": "thinking", "thinking": "", "signature": ""}, {"type": "thinking_delta", "thinking": text}
        data = self._event("content_block_start", index=block, content_block=start) if piece.begins else b""
        data += self._event("content_block_delta", index=block, delta=delta)
        if piece.ends:
            if piece.kind == "reasoning":
                proof = {"type": "signature_delta", "signature": signature(answer.whole(0, "reasoning"))}
                data += self._event("content_block_delta", index=block, delta=proof)
            data += self._event("content_block_stop", index=block)
            self._index += 1
        return data

    def finish(self, index: int) -> bytes:
        """message_delta, with the usage."""
        output, usage = self._answer.outputs[0], _usage(self._answer, self._answer.longest)
        fields: dict[str, Any] = {"delta": {"stop_reason": _stop_reason(output), "stop_sequence": None}}
        if self._answer.options.usage != "none":
            fields["usage"] = usage and {name: value for name, value in usage.items() if name not in ("cache_creation", "service_tier")}
        return self._event("message_delta", **fields)

    def tail(self) -> bytes:
        """message_stop."""
        return self._event("message_stop") if self._answer.options.done else b""


def _event(kind: str, fields: dict[str, Any], end: bytes) -> bytes:
    return b"event: %b%bdata: %b%b" % (kind.encode(), end[: len(end) // 2], _json(fields), end)
