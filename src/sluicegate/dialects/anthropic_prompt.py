"""A client's request for messages as a `Prompt`, for a provider that speaks another dialect.

Reads the raw fields of a request that anthropic_request has read before, so what has a fixed type there is known to have it. What another dialect has
no way to say raises `Inexpressible` with the path of the field: files by their ids, blocks and tools that only Anthropic knows. Choices made here:

- `system` is the first message; one in the middle of the conversation stays where it stood.
- A search result is a text: its title, where it is from, and what it says. Citations are not asked for, and are left out of earlier answers.
- The effort "max", which few models of others take, is "xhigh". Thinking without a proof has none here either.
- Fields that nobody here knows are left out and named, unless they make the provider fetch input.
"""

import msgspec
from msgspec import Raw, Struct

from sluicegate.dialects import anthropic_blocks as blocks
from sluicegate.dialects.anthropic_thinking import UNSIGNED
from sluicegate.dialects.content import (
    Document,
    Image,
    Inexpressible,
    Message,
    Part,
    Prompt,
    RedactedThinking,
    Shape,
    Text,
    Thinking,
    Tool,
    ToolChoice,
    ToolResult,
    ToolUse,
)
from sluicegate.dialects.form import BadRequest, Request
from sluicegate.dialects.openai_request import ABSENT, fetches

_ABSENT = Raw()


class _Message(Struct):
    role: str
    content: str | list[Raw] | None = None


class _Tool(Struct):
    type: str | None = None
    name: str = ""
    description: str | None = None
    input_schema: Raw = _ABSENT
    strict: bool | None = None
    cache_control: Raw = _ABSENT


class _ToolChoice(Struct):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class _Thinking(Struct):
    type: str
    budget_tokens: int | None = None


class _Format(Struct):
    type: str
    schema: Raw = _ABSENT


class _OutputConfig(Struct):
    effort: str | None = None
    format: _Format | None = None


class _Metadata(Struct):
    user_id: str | None = None


class _Settings(Struct):
    """The fields that are read; each other one is left out."""

    messages: list[_Message]
    system: str | list[Raw] | None = None
    tools: list[_Tool] | None = None
    tool_choice: _ToolChoice | None = None
    thinking: _Thinking | None = None
    output_config: _OutputConfig | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: _Metadata | None = None


_READ = frozenset((*_Settings.__struct_fields__, "model", "max_tokens", "stream"))
_MEDIA_TYPES = {"image/jpg": "image/jpeg"}
_EFFORTS = {"max": "xhigh"}

_decode = msgspec.json.Decoder(_Settings).decode
_encode = msgspec.json.Encoder().encode


def read_prompt(request: Request) -> Prompt:
    """What a client's request says. Raises Inexpressible, BadRequest."""
    fields = request.fields
    left_out = _left_out(fields)
    try:
        settings = _decode(_encode({name: raw for name, raw in fields.items() if name in _READ}))
        messages = _messages(settings)
    except msgspec.ValidationError as error:  # a value that the API itself would refuse, and that nothing depends on here
        raise BadRequest(f"Invalid value: {error}.") from None
    except RecursionError:
        raise BadRequest("The body is nested too deeply.", "messages") from None
    output, thinking = settings.output_config or _OutputConfig(), settings.thinking
    prompt = Prompt(
        messages,
        tools=[_tool(tool, f"tools[{index}]") for index, tool in enumerate(settings.tools or ())],
        shape=_shape(output.format),
        temperature=settings.temperature,
        top_p=settings.top_p,
        top_k=settings.top_k,
        stop=settings.stop_sequences or [],
        effort=_EFFORTS.get(output.effort or "", output.effort or ""),
        user=(settings.metadata.user_id or "") if settings.metadata is not None else "",
        left_out=left_out,
    )
    if settings.tool_choice is not None:
        prompt.tool_choice = _tool_choice(settings.tool_choice)
        if settings.tool_choice.disable_parallel_tool_use is not None:
            prompt.parallel_tool_calls = not settings.tool_choice.disable_parallel_tool_use
    if thinking is not None:
        prompt.thinking = "on" if thinking.type == "enabled" else "off" if thinking.type == "disabled" else "adaptive"
        prompt.thinking_budget = thinking.budget_tokens
    return prompt


def _left_out(fields: dict[str, Raw]) -> list[str]:
    left_out = []
    for name in fields.keys() - _READ:
        if bytes(fields[name]) in ABSENT:
            continue
        if fetches(name):
            raise Inexpressible(f"No deployment of this model takes {name[:40]!r}.", name[:100])
        left_out.append(name)
    return sorted(left_out)


def _messages(settings: _Settings) -> list[Message]:
    messages: list[Message] = []
    if settings.system and (parts := _parts(settings.system, "system")):
        messages.append(Message("system", parts))
    for index, message in enumerate(settings.messages):
        parts = _parts(message.content, f"messages[{index}].content")
        messages.append(Message("assistant" if message.role == "assistant" else "system" if message.role == "system" else "user", parts))
    return messages


def _parts(content: str | list[Raw] | None, path: str) -> list[Part]:
    if not isinstance(content, list):
        return [Text(content)] if content else []
    return [part for index, raw in enumerate(content) for part in _part(raw, f"{path}[{index}]")]


def _part(raw: Raw, path: str) -> list[Part]:
    kind, block = blocks.read_block(raw)
    parts: list[Part]
    match block:
        case blocks.Text():
            parts = [Text(block.text, block.mark)]
        case blocks.Image():
            parts = [_image(block, path)]
        case blocks.Document():
            parts = _document(block, path)
        case blocks.SearchResult():
            said = [part.text for part in _parts(block.content, f"{path}.content") if isinstance(part, Text)]
            parts = [Text("\n".join([block.title, block.source, *said]), block.mark)]
        case blocks.ToolUse():
            parts = [ToolUse(block.id, block.name, _encode(block.input).decode(), block.mark)]
        case blocks.ToolResult():
            given = [part for part in _parts(block.content, f"{path}.content") if isinstance(part, Text | Image | Document)]
            parts = [ToolResult(block.tool_use_id, given, block.is_error is True, block.mark)]
        case blocks.Thought():
            parts = [Thinking(block.thinking, "" if block.signature == UNSIGNED else block.signature)]
        case blocks.Redacted():
            parts = [RedactedThinking(block.data)]
        case _:
            raise Inexpressible(f"No deployment of this model takes a block of type {kind[:40]!r}.", f"{path}.type")
    return parts


def _image(block: blocks.Image, path: str) -> Image:
    source = block.source
    if source.type == "base64" and source.data is not None:
        media_type = (source.media_type or "").lower()
        return Image("", _MEDIA_TYPES.get(media_type, media_type), source.data, "", block.mark)
    if source.type == "url" and source.url is not None:
        return Image(source.url, cache=block.mark)
    raise Inexpressible("An image by its id is known only to the provider that keeps it.", f"{path}.source")


def _document(block: blocks.Document, path: str) -> list[Part]:
    source, name, mark = block.source, block.title or "", block.mark
    before: list[Part] = [Text(block.context)] if block.context else []
    if source.type == "text" and source.data is not None:
        return [*before, Document(media_type="text/plain", text=source.data, name=name, cache=mark)]
    if source.type == "content" and source.content is not None:
        return [*before, *([Text(name)] if name else []), *_parts(source.content, f"{path}.source.content")]
    if source.type == "base64" and source.data is not None:
        return [*before, Document(media_type=source.media_type or "application/pdf", data=source.data, name=name, cache=mark)]
    if source.type == "url" and source.url is not None:
        return [*before, Document(url=source.url, name=name, cache=mark)]
    raise Inexpressible("A document by its id is known only to the provider that keeps it.", f"{path}.source")


def _tool(tool: _Tool, path: str) -> Tool:
    if tool.type not in (None, "custom"):
        raise Inexpressible(f"No deployment of this model has a tool of type {tool.type[:40]!r}.", f"{path}.type")
    cache = tool.cache_control if bytes(tool.cache_control) not in (b"", b"null") else None
    return Tool(tool.name, tool.description or "", tool.input_schema, tool.strict, cache)


def _tool_choice(choice: _ToolChoice) -> ToolChoice:
    if choice.type == "tool":
        return ToolChoice("tool", choice.name or "")
    return ToolChoice("any" if choice.type == "any" else "none" if choice.type == "none" else "auto")


def _shape(wanted: _Format | None) -> Shape | None:
    if wanted is None:
        return None
    if wanted.type != "json_schema" or not bytes(wanted.schema):
        raise Inexpressible(f"No deployment of this model answers in the format {wanted.type[:40]!r}.", "output_config.format")
    return Shape(wanted.schema, "answer", strict=True)
