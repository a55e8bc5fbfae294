"""An answer of a provider that speaks another dialect, for a client that speaks Anthropic messages: whole, or as a stream of events.

In a stream one block is open at a time. Text and thinking end where something else begins. A call ends where its arguments are a whole object and
something else has begun: what comes for other blocks before that waits, so that providers which interleave calls are told in the order of the calls.
Thinking has a proof in this dialect; what comes without one is given `UNSIGNED`, by which it is known again when the client sends it back. A call
without arguments is told as one with none: `{}`.
"""

from typing import Any

import msgspec
from msgspec import Raw

from sluicegate.core.usage import Usage
from sluicegate.dialects.anthropic_messages import NO_BLOCK, Head, event_bytes, start_of
from sluicegate.dialects.anthropic_thinking import UNSIGNED
from sluicegate.dialects.content import (
    Begin,
    Choice,
    Finish,
    Part,
    Piece,
    RedactedBlock,
    RedactedThinking,
    Refusal,
    RefusalDelta,
    Reply,
    SignatureDelta,
    Text,
    TextDelta,
    Thinking,
    ThinkingDelta,
    ToolBegin,
    ToolDelta,
    ToolUse,
)
from sluicegate.dialects.form import Request
from sluicegate.dialects.openai_body import loosely

_REASONS = {
    "": "end_turn",
    "stop": "end_turn",
    "length": "max_tokens",
    "content_filter": "refusal",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
}

_TEXT = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"text_delta","text":%b}}\n\n'

_encode = msgspec.json.Encoder().encode


def usage_fields(usage: Usage) -> dict[str, Any]:
    """Usage as this API writes it: what a cache took and gave is beside the input, not in it."""
    beside = usage.cached_tokens + usage.cache_write_tokens
    fields: dict[str, Any] = {
        "input_tokens": max(0, (usage.input_tokens or 0) - beside),
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens or 0,
    }
    if usage.cache_write_tokens:
        hour = usage.cache_write_1h_tokens
        fields["cache_creation"] = {"ephemeral_5m_input_tokens": usage.cache_write_tokens - hour, "ephemeral_1h_input_tokens": hour}
    if usage.reasoning_tokens:
        fields["output_tokens_details"] = {"thinking_tokens": usage.reasoning_tokens}
    return fields


# -- whole answers ------------------------------------------------------------------------------------------------------------------------


def write_reply(reply: Reply, request: Request) -> bytes:
    """A whole message: the first choice."""
    choice = reply.choices[0] if reply.choices else Choice(0, [], "")
    refused, called = (any(isinstance(part, kind) for part in choice.parts) for kind in (Refusal, ToolUse))
    message = {
        "id": reply.id,
        "type": "message",
        "role": "assistant",
        "model": reply.model or request.model,
        "content": [block for part in choice.parts if (block := _block(part)) is not None],
        "stop_reason": _stop_reason(choice.finish, choice.stop_sequence, refused=refused, called=called),
        "stop_sequence": choice.stop_sequence or None,
        "usage": usage_fields(reply.usage or Usage()),
    }
    return _encode(message)


def _block(part: Part) -> dict[str, Any] | None:
    match part:
        case Text() | Refusal():
            return {"type": "text", "text": part.text} if part.text else None
        case Thinking():
            return {"type": "thinking", "thinking": part.text, "signature": part.signature or UNSIGNED}
        case RedactedThinking():
            return {"type": "redacted_thinking", "data": part.data}
        case ToolUse():
            return {"type": "tool_use", "id": part.id, "name": part.name, "input": _input(part.arguments)}
    return None


def _input(arguments: str) -> Any:
    """An object. What was cut short is told as the text that there is."""
    data = arguments.encode()
    if isinstance(loosely(data), dict):
        return Raw(data)
    return {"arguments": arguments} if arguments.strip() else {}


def _stop_reason(finish: str, stop_sequence: str, *, refused: bool, called: bool) -> str:
    if refused:
        return "refusal"
    if called and finish == "stop":
        return "tool_use"
    if stop_sequence and finish == "stop":
        return "stop_sequence"
    return _REASONS.get(finish, finish)


# -- streams ------------------------------------------------------------------------------------------------------------------------------


class _Object:
    """Finds out where the text of a JSON object ends, as it comes."""

    __slots__ = ("_depth", "_escaped", "_quoted", "whole")

    def __init__(self) -> None:
        self._depth = 0
        self._quoted = self._escaped = False
        self.whole = False

    def add(self, text: str) -> None:
        for c in text:
            if self._escaped:
                self._escaped = False
            elif self._quoted:
                self._escaped = c == "\\"
                self._quoted = c != '"'
            elif c == '"':
                self._quoted = True
            elif c in "{[":
                self._depth += 1
            elif c in "}]":
                self._depth -= 1
                self.whole = self.whole or self._depth == 0


class _Block:
    """A block that has not been closed yet. `texts` are not written yet; so is `signature`, which follows them."""

    __slots__ = ("arguments", "begun", "kind", "opened", "signature", "texts", "written")

    def __init__(self, kind: str, begun: dict[str, Any]) -> None:
        self.kind = kind
        self.begun = begun
        self.opened = False
        self.texts: list[str] = []
        self.written = False  # any text
        self.signature = ""
        self.arguments = _Object()

    @property
    def ends(self) -> bool:
        """Whether it is over if something else has begun."""
        return self.kind != "tool_use" or self.arguments.whole

    def delta(self) -> dict[str, Any] | None:
        """What is not written yet, but for the signature."""
        text = "".join(self.texts)
        self.texts.clear()
        if not text:
            return None
        self.written = True
        if self.kind == "text":
            return {"type": "text_delta", "text": text}
        if self.kind == "thinking":
            return {"type": "thinking_delta", "thinking": text}
        return {"type": "input_json_delta", "partial_json": text}

    def last(self) -> dict[str, Any] | None:
        """What is written before it closes."""
        if self.kind == "thinking":
            return {"type": "signature_delta", "signature": self.signature or UNSIGNED}
        if self.kind == "tool_use" and not self.written:
            return {"type": "input_json_delta", "partial_json": "{}"}
        return None


class Writer:
    """Writes one streamed message."""

    def __init__(self, request: Request) -> None:
        self.head = Head(model=request.model)
        self.after: int | None = None
        self._blocks: list[_Block] = []  # not closed; the first is the one that is written
        self._calls: dict[int, _Block] = {}
        self._index = 0  # of the first
        self._finish = Finish(0, "")
        self._refused = False

    def write(self, pieces: list[Piece]) -> bytes:
        """The events that can be written now."""
        blocks = self._blocks
        if len(pieces) == 1 and isinstance(text := pieces[0], TextDelta) and not text.choice and len(blocks) == 1 and blocks[0].kind == "text":
            return _TEXT % (self._index, _encode(text.text))  # as nearly always
        out: list[bytes] = []
        for piece in pieces:
            if isinstance(piece, Begin):
                self._start(piece, out)
            elif isinstance(piece, Finish):
                self._finish = piece
                self._flow(out, to_the_end=True)
            elif piece.choice == 0:
                self._take(piece)
                self._flow(out)
        return b"".join(out)

    def last(self, usage: Usage | None) -> bytes:
        """The end of the message."""
        out: list[bytes] = []
        if self.after is None:
            self._start(Begin("", "", 0), out)
        self._flow(out, to_the_end=True)
        reason, sequence = self._finish.reason, self._finish.stop_sequence
        ended = {"stop_reason": _stop_reason(reason, sequence, refused=self._refused, called=bool(self._calls)), "stop_sequence": sequence or None}
        out.append(event_bytes({"type": "message_delta", "delta": ended, "usage": usage_fields(usage or Usage())}))
        out.append(event_bytes({"type": "message_stop"}))
        return b"".join(out)

    def _start(self, begin: Begin, out: list[bytes]) -> None:
        usage = begin.usage or Usage()
        self.head = Head(begin.id, begin.model or self.head.model, bool(usage.input_tokens))
        self.after = NO_BLOCK
        out.append(start_of(self.head, usage_fields(usage)))

    def _take(self, piece: Piece) -> None:
        """Puts a piece where it belongs."""
        match piece:
            case TextDelta():
                self._current("text").texts.append(piece.text)
            case RefusalDelta():
                self._refused = True
                self._current("text").texts.append(piece.text)
            case ThinkingDelta():
                self._current("thinking").texts.append(piece.text)
            case SignatureDelta():
                self._current("thinking").signature = piece.signature
            case RedactedBlock():
                self._blocks.append(_Block("redacted_thinking", {"type": "redacted_thinking", "data": piece.data}))
            case ToolBegin():
                block = _Block("tool_use", {"type": "tool_use", "id": piece.id, "name": piece.name, "input": {}})
                self._calls[piece.call] = block
                self._blocks.append(block)
            case ToolDelta() if piece.call in self._calls:
                block = self._calls[piece.call]
                block.texts.append(piece.arguments)
                block.arguments.add(piece.arguments)

    def _current(self, kind: str) -> _Block:
        """The last block if it is of this kind and goes on, else a new one."""
        if self._blocks and self._blocks[-1].kind == kind and not self._blocks[-1].signature:
            return self._blocks[-1]
        begun = {"type": "text", "text": ""} if kind == "text" else {"type": "thinking", "thinking": "", "signature": ""}
        self._blocks.append(_Block(kind, begun))
        return self._blocks[-1]

    def _flow(self, out: list[bytes], *, to_the_end: bool = False) -> None:
        """Writes what is not held up by a block before it."""
        while self._blocks:
            block, index = self._blocks[0], self._index
            if not block.opened:
                block.opened = True
                self.after = index
                out.append(event_bytes({"type": "content_block_start", "index": index, "content_block": block.begun}))
            if (delta := block.delta()) is not None:
                out.append(event_bytes({"type": "content_block_delta", "index": index, "delta": delta}))
            if not to_the_end and (len(self._blocks) == 1 or not block.ends):
                return
            if (delta := block.last()) is not None:
                out.append(event_bytes({"type": "content_block_delta", "index": index, "delta": delta}))
            out.append(event_bytes({"type": "content_block_stop", "index": index}))
            self.after = NO_BLOCK
            del self._blocks[0]
            self._index += 1
