"""Ollama and the content form (content.py), the provider's side: requests that are written for it, answers that are read from it.

https://github.com/ollama/ollama/blob/main/docs/api.md, and where that is silent the types of its `api` package. What it has no way to say: several
choices, that a tool must be called, pictures and documents by their URL, sound. Instructions of a developer are the system's.

A model that thinks, and is asked for an answer of some shape, generates twice: Ollama stops it where it ends to think and begins again with the
shape, each time with the whole of `num_predict`, and counts the second time alone. So with a shape goes `think: false`: it begins with the answer.
"""

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Raw

from sluicegate.dialects.content import (
    Begin,
    Choice,
    Document,
    Finish,
    Image,
    Inexpressible,
    Message,
    Part,
    Piece,
    Prompt,
    Refusal,
    Reply,
    Text,
    TextDelta,
    Thinking,
    ThinkingDelta,
    Tool,
    ToolBegin,
    ToolDelta,
    ToolResult,
    ToolUse,
)
from sluicegate.dialects.form import BadRequest, Event, Request, Target
from sluicegate.dialects.ollama import Body, Call, arguments_of, finish_of, read_body

_EFFORTS: dict[str, bool | str] = {
    "none": False, "minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "max", "max": "max",
}  # fmt: skip
_NO_ARGUMENTS = Raw(b'{"type":"object","properties":{}}')

_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_encode = msgspec.json.Encoder().encode


# -- requests -----------------------------------------------------------------------------------------------------------------------------


def write_prompt(prompt: Prompt, request: Request, target: Target) -> bytes:
    """The body for one deployment. Raises Inexpressible, BadRequest."""
    if request.choices > 1:
        raise Inexpressible("No deployment of this model gives several answers to one request.", "n")
    fields: dict[str, Any] = {"model": target.model, "messages": _messages(prompt.messages, target.foreign), "stream": request.stream}
    if prompt.tools and (tools := _tools(prompt)):
        fields["tools"] = tools
    if prompt.shape is not None:
        fields["format"] = prompt.shape.schema if prompt.shape.schema is not None else "json"
    think = _think(prompt)
    if think is not None:
        fields["think"] = think
    fields["options"] = _options(prompt, request.cap if target.cap is None else target.cap)
    if prompt.user:
        prompt.left_out.append("user")
    try:
        return _encode(fields)
    except RecursionError:  # it could just be read
        raise BadRequest("The body is nested too deeply.") from None


def _options(prompt: Prompt, cap: int | None) -> dict[str, Any]:
    options = {
        "num_predict": cap,
        "temperature": prompt.temperature,
        "top_p": prompt.top_p,
        "top_k": prompt.top_k,
        "stop": prompt.stop or None,
        "seed": prompt.seed,
        "presence_penalty": prompt.presence_penalty,
        "frequency_penalty": prompt.frequency_penalty,
    }
    return {name: value for name, value in options.items() if value is not None}


def _think(prompt: Prompt) -> bool | str | None:
    """Whether, or how much; None leaves it to the model. How many tokens cannot be said."""
    asked = _EFFORTS.get(prompt.effort) if prompt.thinking != "off" else False
    if asked is None and prompt.thinking == "on":
        asked = True
    if prompt.shape is None:
        return asked
    if asked:
        prompt.left_out.append("thinking" if prompt.thinking else "reasoning_effort")
    return False


def _tools(prompt: Prompt) -> list[dict[str, Any]]:
    choice = prompt.tool_choice.kind if prompt.tool_choice is not None else "auto"
    if choice in ("any", "tool"):
        raise Inexpressible("No deployment of this model can be made to call a tool.", "tool_choice")
    if prompt.parallel_tool_calls is False:
        prompt.left_out.append("parallel_tool_calls")
    return [_tool(tool) for tool in prompt.tools] if choice == "auto" else []


def _tool(tool: Tool) -> dict[str, Any]:
    described = {"description": tool.description} if tool.description else {}
    return {"type": "function", "function": {"name": tool.name, **described, "parameters": tool.schema if bytes(tool.schema) else _NO_ARGUMENTS}}


def _messages(messages: list[Message], foreign: bool) -> list[dict[str, Any]]:
    written: list[dict[str, Any]] = []
    called: dict[str, str] = {}  # names of tools by the ids of their calls
    for message in messages:
        if message.role == "assistant":
            written.append(_from_assistant(message, foreign))
            called.update({part.id: part.name for part in message.parts if isinstance(part, ToolUse)})
            continue
        for part in message.parts:
            if isinstance(part, ToolResult):
                named = {"tool_name": called[part.id]} if part.id in called else {}
                written.append({"role": "tool", **_content(part.parts), **named, "tool_call_id": part.id})
        said = [part for part in message.parts if not isinstance(part, ToolResult)]
        if said or not message.parts:
            written.append({"role": "user" if message.role == "user" else "system", **_content(said)})
    return written


def _from_assistant(message: Message, foreign: bool) -> dict[str, Any]:
    written: dict[str, Any] = {"role": "assistant", "content": "\n".join([part.text for part in message.parts if isinstance(part, Text | Refusal)])}
    thought = "\n".join([part.text for part in message.parts if isinstance(part, Thinking)])
    if thought and not foreign:
        written["thinking"] = thought
    calls = [part for part in message.parts if isinstance(part, ToolUse)]
    if calls:
        written["tool_calls"] = [
            {"id": call.id, "function": {"index": index, "name": call.name, "arguments": _arguments(call.arguments)}}
            for index, call in enumerate(calls)
        ]
    return written


def _arguments(text: str) -> Raw | dict[str, Any]:
    """They must be an object. Text that is none, as where an answer was cut, is put into one."""
    data = text.encode("utf-8", "replace")
    try:
        _decode_fields(data or b"{}")
    except (ValueError, RecursionError):
        return {"arguments": text}
    return Raw(data or b"{}")


def _content(parts: Iterable[Part]) -> dict[str, Any]:
    """Text, and pictures beside it as bare base64."""
    texts: list[str] = []
    images: list[str] = []
    for part in parts:
        if isinstance(part, Text | Refusal):
            texts.append(part.text)
        elif isinstance(part, Image) and part.data:
            images.append(part.data)
        elif isinstance(part, Document) and part.text:
            texts.append(part.text)
        else:
            kind = "an image by its URL" if isinstance(part, Image) else f"a {type(part).__name__.lower()}"
            raise Inexpressible(f"No deployment of this model reads {kind}.", "messages")
    content = {"content": "\n".join(texts)}
    return content | {"images": images} if images else content


# -- answers ------------------------------------------------------------------------------------------------------------------------------


def read_reply(body: bytes) -> Reply:
    """A whole answer that has a message."""
    said = read_body(body) or Body()
    message = said.message
    parts: list[Part] = []
    calls: list[Call] = []
    if message is not None:
        calls = message.tool_calls or []
        if message.thinking:
            parts.append(Thinking(message.thinking))
        if message.content:
            parts.append(Text(message.content))
        parts += [ToolUse(_id(said, call, number), call.function.name, arguments_of(call) or "{}") for number, call in enumerate(calls)]
    return Reply("", said.model or "", 0, [Choice(0, parts, finish_of(said, bool(calls)))])


def _id(body: Body, call: Call, number: int) -> str:
    """The call's own, or for older servers one that is not in the conversation yet, made of the time of the answer."""
    return call.id or "_".join(["call", *filter(None, ["".join(filter(str.isalnum, body.created_at or ""))]), str(number)])


class Pieces:
    """Reads one stream."""

    def __init__(self) -> None:
        self._begun = False
        self._calls = 0

    def of(self, event: Event) -> list[Piece]:
        """What one line says."""
        said = read_body(event.raw)
        if said is None or (said.message is None and not said.done):
            return []
        pieces: list[Piece] = []
        if not self._begun:
            self._begun = True
            pieces.append(Begin("", said.model or "", 0))
        message = said.message
        if message is not None:
            if message.thinking:
                pieces.append(ThinkingDelta(0, message.thinking))
            if message.content:
                pieces.append(TextDelta(0, message.content))
            for call in message.tool_calls or ():
                pieces.append(ToolBegin(0, self._calls, _id(said, call, self._calls), call.function.name))
                pieces.append(ToolDelta(0, self._calls, arguments_of(call) or "{}"))
                self._calls += 1
        if said.done:
            pieces.append(Finish(0, finish_of(said, self._calls > 0)))
        return pieces
