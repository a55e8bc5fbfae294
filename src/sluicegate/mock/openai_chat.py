"""OpenAI chat, as the mock speaks it."""

from typing import Any

import msgspec

from sluicegate.mock.answers import CREATED, Answer, Output, Piece
from sluicegate.mock.calls import OUTPUT_MAX, Call, Choices, Conversation, Offered, Positive, StreamOptions, offered, read
from sluicegate.mock.openai_chunks import KEY_HEADER, STREAM_TYPE, Chunks, error, error_in_200, usage, wants_usage

__all__ = ["KEY_HEADER", "PATH", "STREAM_TYPE", "Writer", "error", "error_in_200", "read_call", "unary"]

PATH = "/v1/chat/completions"
_json = msgspec.json.Encoder().encode


class Part(msgspec.Struct):
    """One part of a message's content."""

    text: str | None = None


class Function(msgspec.Struct, frozen=True):
    """A tool that is offered, or called."""

    name: str = ""
    description: str | None = None
    parameters: msgspec.Raw = msgspec.Raw(b"{}")
    arguments: str = ""


class Tool(msgspec.Struct):
    """A tool, or the call of one."""

    id: str = ""
    function: Function = Function()


class Message(msgspec.Struct):
    """A message, as far as the mock reads it."""

    role: str = ""
    content: str | list[Part] | None = None
    tool_calls: list[Tool] | None = None
    tool_call_id: str = ""


class Body(msgspec.Struct):
    """The body of a chat call, as far as the mock acts on it."""

    model: str
    messages: msgspec.Raw
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Choices | None = None
    max_tokens: Positive | None = None
    max_completion_tokens: Positive | None = None
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    user: str | None = None
    mock: dict[str, Any] | None = None  # overrides


_decode_body = msgspec.json.Decoder(Body).decode
_decode_messages = msgspec.json.Decoder(list[Message]).decode


def read_call(body: bytes) -> Call:
    """Of two caps the larger counts: a gateway that lowers one and forgets the other must be found out."""
    asked = read(_decode_body, body)
    messages = read(_decode_messages, asked.messages, "messages")
    conversation = Conversation()
    for message in messages:
        content = message.content
        text = "".join([part.text or "" for part in content]) if isinstance(content, list) else content or ""
        if message.role == "tool":
            conversation.result(message.tool_call_id, text)
            continue
        conversation.turn(text)
        for call in message.tool_calls or ():
            conversation.call(call.id, call.function.name, call.function.arguments)
    conversation.end()
    tools = [Offered(tool.function.name, tool.function.description or "", bytes(tool.function.parameters)) for tool in asked.tools or ()]
    return Call(
        asked.model,
        conversation.texts,
        bytes(asked.messages),
        asked,
        bool(asked.stream),
        wants_usage(asked.stream_options),
        asked.n or 1,
        max(asked.max_tokens or 0, asked.max_completion_tokens or 0) or OUTPUT_MAX,
        len(messages),
        user=asked.user or "",
        overrides=asked.mock,
        tools=offered(tools, conversation),
        may_call=not conversation.answered and asked.tool_choice != "none",
    )


def unary(answer: Answer) -> bytes:
    """The body of a unary answer."""
    body: dict[str, Any] = {"id": _id(answer), "object": "chat.completion", "created": CREATED, "model": answer.call.model}
    body["choices"] = [_choice(answer, index, output) for index, output in enumerate(answer.outputs)]
    if answer.options.usage != "none":
        body["usage"] = usage(answer.figures(answer.longest))
    return _json({**body, **answer.options.chunk_fields})


def _id(answer: Answer) -> str:
    return f"chatcmpl-mock-{answer.number}"


def _choice(answer: Answer, index: int, output: Output) -> dict[str, Any]:
    content = answer.whole(index, "text")
    message: dict[str, Any] = {"role": "assistant", "content": None if output.calls and not content else content, "refusal": None}
    if answer.shows_reasoning:
        thought = answer.whole(index, "reasoning")
        message["reasoning_content"] = thought
        if answer.options.reasoning == "both":
            message["reasoning"] = thought
    if output.calls:
        message["tool_calls"] = [
            {"id": answer.call_id(index, call.number, "call"), "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in output.calls
        ]
    return {"index": index, "message": message, "logprobs": None, "finish_reason": output.finish, **answer.options.choice_fields}


class Writer(Chunks):
    """A stream: the role, the deltas, why each choice ended, usage."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer, _id(answer), "chat.completion.chunk", "delta")

    def lead(self) -> bytes:
        """The role, per choice."""
        return b"".join([self.silent(index, b'{"role":"assistant","content":""}') for index in range(len(self.answer.outputs))]) + self.padding()

    def chunk(self, index: int, piece: Piece) -> bytes:
        """One delta."""
        if piece.kind == "call":
            return self.output(index, piece, self._call(index, piece))
        if piece.kind == "reasoning" and not self.answer.shows_reasoning:
            return b""
        text = _json(self.answer.text(index, piece))
        if piece.kind == "text":
            delta = b'{"content":' + text + b"}"
        elif self.options.reasoning == "both":
            delta = b'{"reasoning":' + text + b',"reasoning_content":' + text + b"}"
        else:
            delta = b'{"reasoning_content":' + text + b"}"
        return self.output(index, piece, delta)

    def _call(self, index: int, piece: Piece) -> bytes:
        function = {"arguments": self.answer.text(index, piece)}
        call: dict[str, Any] = {"index": piece.call, "function": function}
        if piece.begins:
            name = self.answer.outputs[index].calls[piece.call].name
            call |= {"id": self.answer.call_id(index, piece.call, "call"), "type": "function", "function": {"name": name, **function}}
        return _json({"tool_calls": [call]})

    def finish(self, index: int) -> bytes:
        """Why it ended."""
        return self.ending(index, b"{}")
