"""The messages of a client's chat request as those of a `Prompt`.

What another dialect has no way to say raises `Inexpressible` with the path of the field; other odd values `BadRequest`. Choices made here:

- Results of tools that follow each other are one message. Of the older functions, which have no ids, a call and its result get one that is made up.
- Thinking is taken back where it has its signature: from `reasoning_details`, as OpenRouter has them and as openai_chat_reply writes them, or from
  `thinking_blocks` (LiteLLM). What has none stands in `reasoning_content` or `reasoning`; it proves nothing, but some providers read it.
- `cache_control`, which OpenAI does not know, is what several vendors take on parts, messages, calls and tools; on a message it marks its last part.
- Empty texts, and messages in which nothing is left, are left out: some providers refuse them.
"""

from typing import Any

import msgspec
from msgspec import Raw, Struct

from sluicegate.dialects.content import (
    Audio,
    Document,
    Image,
    Inexpressible,
    Message,
    Part,
    RedactedThinking,
    Refusal,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
)
from sluicegate.dialects.openai_request import named

NOTHING = Raw()


class _Url(Struct):
    url: str
    detail: str | None = None


class _AudioData(Struct):
    data: str
    format: str


class _File(Struct):
    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None


class _Part(Struct):
    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: _Url | str | None = None
    input_audio: _AudioData | None = None
    file: _File | None = None
    thinking: Any = None
    signature: str | None = None
    data: str | None = None
    cache_control: Raw = NOTHING


class _Called(Struct):
    name: str
    arguments: Any = None


class _Call(Struct):
    id: str | None = None
    type: str | None = None
    function: _Called | None = None
    cache_control: Raw = NOTHING


class _Detail(Struct):
    """Of `reasoning_details`."""

    type: str
    text: str | None = None
    signature: str | None = None
    data: str | None = None
    format: str | None = None


class _Message(Struct):
    role: str
    content: str | list[_Part] | None = None
    name: str | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    function_call: _Called | None = None
    refusal: str | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    reasoning_details: list[_Detail] | None = None
    thinking_blocks: list[_Part] | None = None
    audio: dict[str, Raw] | None = None
    cache_control: Raw = NOTHING


_MEDIA_TYPES = {"image/jpg": "image/jpeg", "application/x-pdf": "application/pdf"}

_decode_messages = msgspec.json.Decoder(list[_Message]).decode
_encode = msgspec.json.Encoder().encode


def read_messages(raw: Raw) -> list[Message]:
    """The conversation. Raises Inexpressible, BadRequest, RecursionError."""
    try:
        return _Conversation().read(_decode_messages(raw))
    except msgspec.ValidationError as error:
        raise named(error, "messages") from None


class _Conversation:
    """Reads messages in their order; a result of an older function belongs to the last call of that function."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._results: Message | None = None  # if the last message is of results
        self._ids: dict[str, str] = {}  # of older functions, by name

    def read(self, messages: list[_Message]) -> list[Message]:
        for index, message in enumerate(messages):
            path = f"messages[{index}]"
            if message.role in ("tool", "function"):
                self._result(message, index, path)
                continue
            self._results = None
            parts = self._assistant(message, index, path) if message.role == "assistant" else self._parts(message, path)
            if parts:
                self._add(message.role, parts, message.name or "", path)
        return self._messages

    def _add(self, role: str, parts: list[Part], name: str, path: str) -> None:
        if role == "system":
            self._messages.append(Message("system", parts, name))
        elif role == "developer":
            self._messages.append(Message("developer", parts, name))
        elif role == "user":
            self._messages.append(Message("user", parts, name))
        elif role == "assistant":
            self._messages.append(Message("assistant", parts, name))
        else:
            raise Inexpressible(f"No deployment of this model knows the role {role[:40]!r}.", f"{path}.role")

    def _result(self, message: _Message, index: int, path: str) -> None:
        content, cache = _content(message, path), mark(message.cache_control)
        parts: list[Text | Image | Document] = [part for part in content if isinstance(part, Text | Image | Document)]
        if len(parts) < len(content):
            raise Inexpressible("What a tool gives is text, images or documents.", f"{path}.content")
        id = message.tool_call_id or self._ids.get(message.name or "", f"call_{index}")
        if self._results is None:
            self._results = Message("user", [])
            self._messages.append(self._results)
        self._results.parts.append(ToolResult(id, parts, cache=cache))

    def _parts(self, message: _Message, path: str) -> list[Part]:
        parts = _content(message, path)
        _mark(parts, message)
        return parts

    def _assistant(self, message: _Message, index: int, path: str) -> list[Part]:
        if message.audio is not None:
            raise Inexpressible("An earlier audio answer is known only to the provider that gave it.", f"{path}.audio")
        parts = [*_thoughts(message), *_content(message, path)]
        if message.refusal:
            parts.append(Refusal(message.refusal))
        for i, call in enumerate(message.tool_calls or ()):
            if call.function is None or call.type not in (None, "function"):
                raise Inexpressible("Only calls of functions are known to other deployments of this model.", f"{path}.tool_calls[{i}].type")
            arguments = _arguments(call.function.arguments)
            parts.append(ToolUse(call.id or f"call_{index}_{i}", call.function.name, arguments, mark(call.cache_control)))
        if message.function_call is not None:
            called, id = message.function_call, f"call_{index}"
            self._ids[called.name] = id
            parts.append(ToolUse(id, called.name, _arguments(called.arguments)))
        _mark(parts, message)
        return parts


def _thoughts(message: _Message) -> list[Part]:
    thoughts: list[Part] = []
    for detail in message.reasoning_details or ():
        if detail.format is not None and not detail.format.startswith("anthropic"):
            continue
        if detail.type == "reasoning.text" and detail.signature:
            thoughts.append(Thinking(detail.text or "", detail.signature))
        elif detail.type == "reasoning.encrypted" and detail.data:
            thoughts.append(RedactedThinking(detail.data))
    if not thoughts:
        thoughts = [thought for block in message.thinking_blocks or () if (thought := _thought(block)) is not None]
    plain = message.reasoning_content or message.reasoning
    if not thoughts and plain and isinstance(plain, str):
        thoughts.append(Thinking(plain))
    return thoughts


def _thought(block: _Part) -> Part | None:
    """A block of thinking as Anthropic has it."""
    if block.type == "redacted_thinking" and block.data:
        return RedactedThinking(block.data)
    return Thinking(block.thinking, block.signature) if isinstance(block.thinking, str) and block.signature else None


def _content(message: _Message, path: str) -> list[Part]:
    content = message.content
    if isinstance(content, str):
        return [Text(content)] if content else []
    parts = []
    for i, part in enumerate(content or ()):
        read = _part(part, f"{path}.content[{i}]")
        if read is not None:
            parts.append(read)
    return parts


def _part(part: _Part, path: str) -> Part | None:
    kind, cache = part.type, mark(part.cache_control)
    if kind == "text":
        return Text(part.text, cache) if part.text else None
    if kind == "image_url" and part.image_url is not None:
        return _image(part.image_url, cache, f"{path}.image_url")
    if kind == "input_audio" and part.input_audio is not None:
        return Audio(part.input_audio.data, part.input_audio.format)
    if kind == "file" and part.file is not None:
        return _document(part.file, cache, f"{path}.file")
    if kind == "refusal":
        return Refusal(part.refusal) if part.refusal else None
    if kind in ("thinking", "redacted_thinking"):
        return _thought(part)
    raise Inexpressible(f"No deployment of this model takes a content part of type {kind[:40]!r}.", f"{path}.type")


def _image(image: _Url | str, cache: Raw | None, path: str) -> Image:
    url, detail = (image, None) if isinstance(image, str) else (image.url, image.detail)
    media_type, data = inline(url, path)
    return Image("" if data else url, media_type, data, detail or "", cache)


def _document(file: _File, cache: Raw | None, path: str) -> Document:
    data, name = file.file_data, file.filename or ""
    if not data:
        raise Inexpressible("A file by its id is known only to the provider that keeps it.", f"{path}.file_id")
    if data.startswith(("http://", "https://")):
        return Document(url=data, name=name, cache=cache)
    if data[:5].lower() != "data:":
        data = f"data:{'application/pdf' if data.startswith('JVBERi') else 'text/plain'};base64,{data}"
    media_type, data = inline(data, f"{path}.file_data")
    return Document(media_type=media_type, data=data, name=name, cache=cache)


def inline(url: str, path: str) -> tuple[str, str]:
    """Media type and base64 text of a data URL; empty of any other URL."""
    if url[:5].lower() != "data:":
        return "", ""
    head, _, data = url.partition(",")
    media_type, *more = head[5:].lower().split(";")
    if not data or "base64" not in more:
        raise Inexpressible("A data URL must hold its bytes in base64.", path)
    return _MEDIA_TYPES.get(media_type, media_type), data


def _mark(parts: list[Part], message: _Message) -> None:
    """A mark on a message is one on its last part that can have one."""
    cache = mark(message.cache_control)
    if cache is not None:
        for part in reversed(parts):
            if isinstance(part, Text | Image | Document | ToolUse):
                part.cache = part.cache or cache
                return


def mark(raw: Raw) -> Raw | None:
    return None if bytes(raw) in (b"", b"null") else raw


def _arguments(arguments: Any) -> str:
    """The JSON text of an object; some clients send the object itself."""
    if isinstance(arguments, str):
        return arguments if arguments.strip() else "{}"
    return _encode(arguments).decode() if arguments else "{}"
