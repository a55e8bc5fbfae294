"""An answer of a provider that speaks another dialect, for a client that speaks OpenAI chat: whole, or as a stream of chunks.

What a model thought is `reasoning_content`, as several vendors have it. Its signature, without which Anthropic's models do not go on after a call of
a tool, stands in `reasoning_details` as OpenRouter writes them: clients keep unknown fields of a message and send it back, openai_chat_prompt reads
them there. In a stream the text of a detail comes whole, with its signature, and details are numbered from 0, by which OpenAI's own client puts
streamed lists together.

A client that sent the older `functions` is answered with `function_call`, which has room for one call: the first.
"""

from typing import Any

import msgspec

from sluicegate.core.usage import Usage
from sluicegate.dialects.content import (
    Begin,
    Choice,
    Finish,
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
from sluicegate.dialects.openai_chat import DONE, Head

_FORMAT = "anthropic-claude-v1"  # of reasoning details: OpenRouter's name of the only signatures that are known here

_encode = msgspec.json.Encoder().encode
_TEXT = b'%b{"index":%d,"delta":{"content":%b},"logprobs":null,"finish_reason":null}]}\n\n'


def write_reply(reply: Reply, request: Request) -> bytes:
    """The body of a unary answer."""
    legacy = _legacy(request)
    body = {
        "id": reply.id,
        "object": "chat.completion",
        "created": reply.created,
        "model": reply.model or request.model,
        "choices": [_choice(choice, legacy) for choice in reply.choices],
    }
    if reply.usage is not None:
        body["usage"] = usage_fields(reply.usage)
    return _encode(body)


def usage_fields(usage: Usage) -> dict[str, Any]:
    """Usage as a chat client reads it."""
    read, written = usage.input_tokens or 0, usage.output_tokens or 0
    cached = {"cached_tokens": usage.cached_tokens} | ({"cache_write_tokens": usage.cache_write_tokens} if usage.cache_write_tokens else {})
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
        "prompt_tokens_details": cached,
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _legacy(request: Request) -> bool:
    return "functions" in request.fields and "tools" not in request.fields


def _choice(choice: Choice, legacy: bool) -> dict[str, Any]:
    parts = choice.parts
    message: dict[str, Any] = {"role": "assistant", "content": "".join([part.text for part in parts if isinstance(part, Text)])}
    calls = [_call(part) for part in parts if isinstance(part, ToolUse)]
    refusal = "".join([part.text for part in parts if isinstance(part, Refusal)])
    if not message["content"] and (calls or refusal):
        message["content"] = None
    message["refusal"] = refusal or None
    if thought := "".join([part.text for part in parts if isinstance(part, Thinking)]):
        message["reasoning_content"] = thought
    if details := [_detail(part, 0) for part in parts if isinstance(part, RedactedThinking) or (isinstance(part, Thinking) and part.signature)]:
        message["reasoning_details"] = [detail | {"index": index} for index, detail in enumerate(details)]
    if calls and legacy:
        message["function_call"] = calls[0]["function"]
    elif calls:
        message["tool_calls"] = calls
    finish = choice.finish or ("tool_calls" if calls else "stop")
    return {"index": choice.index, "message": message, "logprobs": None, "finish_reason": _finish_reason(finish, legacy)}


def _call(call: ToolUse) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments or "{}"}}


def _detail(thought: Thinking | RedactedThinking, index: int) -> dict[str, Any]:
    if isinstance(thought, RedactedThinking):
        return {"type": "reasoning.encrypted", "data": thought.data, "format": _FORMAT, "index": index}
    return {"type": "reasoning.text", "text": thought.text, "signature": thought.signature, "format": _FORMAT, "index": index}


def _finish_reason(reason: str, legacy: bool) -> str:
    return "function_call" if legacy and reason == "tool_calls" else reason


class _State:
    """What of one choice has been written."""

    __slots__ = ("calls", "details", "finished", "thought")

    def __init__(self) -> None:
        self.finished = False
        self.thought: list[str] = []  # since the last signature
        self.details = 0
        self.calls: dict[int, bool] = {}  # by number: whether arguments have been written


class Writer:
    """Writes a stream, piece by piece. `after` stays None: a chunk stands for itself, so a cut needs no state."""

    after = None

    def __init__(self, request: Request) -> None:
        self.head = Head("", 0, request.model)
        self._include_usage = request.include_usage
        self._legacy = _legacy(request)
        self._start = self._started(self.head)
        self._states: dict[int, _State] = {}

    def write(self, pieces: list[Piece]) -> bytes:
        if len(pieces) == 1 and isinstance(text := pieces[0], TextDelta) and text.choice in self._states:  # as nearly always
            return _TEXT % (self._start, text.choice, _encode(text.text))
        return b"".join([self._piece(piece) for piece in pieces])

    def last(self, usage: Usage | None) -> bytes:
        """The end of choices of which the provider told none, usage if it was asked for, and the end."""
        unended = [(index, "tool_calls" if state.calls else "stop") for index, state in self._states.items() if not state.finished]
        told = b"".join([self._finish(Finish(index, reason)) for index, reason in unended])
        if not self._include_usage or usage is None:
            return told + DONE
        return told + b'%b],"usage":%b}\n\n' % (self._start, _encode(usage_fields(usage))) + DONE

    def _piece(self, piece: Piece) -> bytes:
        if isinstance(piece, Begin):
            self.head = Head(piece.id, piece.created, piece.model or self.head.model)
            self._start = self._started(self.head)
            return self._begin(0)
        index = piece.choice
        begin = self._begin(index) if index not in self._states else b""
        if isinstance(piece, TextDelta):
            return begin + self._chunk(index, {"content": piece.text})
        if isinstance(piece, Finish):
            return begin + self._finish(piece)
        if isinstance(piece, ToolBegin | ToolDelta):
            return begin + self._tool(piece, self._states[index])
        return begin + self._other(piece, self._states[index])

    def _begin(self, index: int) -> bytes:
        self._states[index] = _State()
        return self._chunk(index, {"role": "assistant", "content": ""})

    def _tool(self, piece: ToolBegin | ToolDelta, state: _State) -> bytes:
        if isinstance(piece, ToolBegin):
            state.calls[piece.call] = False
            return self._call(piece.choice, piece.call, {"name": piece.name, "arguments": ""}, piece.id)
        if not piece.arguments:
            return b""
        state.calls[piece.call] = True
        return self._call(piece.choice, piece.call, {"arguments": piece.arguments})

    def _other(self, piece: ThinkingDelta | SignatureDelta | RedactedBlock | RefusalDelta, state: _State) -> bytes:
        if isinstance(piece, ThinkingDelta):
            state.thought.append(piece.text)
            return self._chunk(piece.choice, {"reasoning_content": piece.text})
        if isinstance(piece, SignatureDelta):
            thinking = Thinking("".join(state.thought), piece.signature)
            state.thought.clear()
            return self._told(piece.choice, thinking, state)
        if isinstance(piece, RedactedBlock):
            return self._told(piece.choice, RedactedThinking(piece.data), state)
        return self._chunk(piece.choice, {"refusal": piece.text})

    def _told(self, index: int, thought: Thinking | RedactedThinking, state: _State) -> bytes:
        state.details += 1
        return self._chunk(index, {"reasoning_details": [_detail(thought, state.details - 1)]})

    def _call(self, index: int, call: int, function: dict[str, str], id: str | None = None) -> bytes:
        if self._legacy:
            return self._chunk(index, {"function_call": function}) if call == 0 else b""
        head = {"index": call} if id is None else {"index": call, "id": id, "type": "function"}
        return self._chunk(index, {"tool_calls": [head | {"function": function}]})

    def _finish(self, piece: Finish) -> bytes:
        """The end of a choice. A call without arguments gets empty ones, unless it was cut short."""
        out = []
        self._states[piece.choice].finished = True
        if piece.reason != "length":
            calls = self._states[piece.choice].calls
            out = [self._call(piece.choice, call, {"arguments": "{}"}) for call, written in calls.items() if not written]
        out.append(self._chunk(piece.choice, {}, _finish_reason(piece.reason, self._legacy)))
        return b"".join(out)

    def _chunk(self, index: int, delta: dict[str, Any], finish: str | None = None) -> bytes:
        return b'%b{"index":%d,"delta":%b,"logprobs":null,"finish_reason":%b}]}\n\n' % (self._start, index, _encode(delta), _encode(finish))

    @staticmethod
    def _started(head: Head) -> bytes:
        fields = {"id": head.id, "object": "chat.completion.chunk", "created": head.created, "model": head.model}
        return b'data: %b,"choices":[' % _encode(fields)[:-1]
