"""A client's chat request as a `Prompt`, for a provider that speaks another dialect.

Reads the raw fields of a request that openai_request has read before, so what has a fixed type there is known to have it. What another dialect has
no way to say raises `Inexpressible` with the path of the field; other odd values `BadRequest`; nothing else is raised. Choices made here:

- Results of tools that follow each other are one message. Of the older functions, which have no ids, a call and its result get one that is made up.
- Thinking is taken back where it has its signature: from `reasoning_details`, as OpenRouter has them and as openai_chat_reply writes them, or from
  `thinking_blocks` (LiteLLM). Text that a model thought without a signature proves nothing to any provider and is left out.
- `cache_control`, which OpenAI does not know, is what several vendors take on parts, messages, calls and tools; on a message it marks its last part.
- Empty texts, and messages in which nothing is left, are left out: some providers refuse them.
- Fields that nobody here knows are left out and named, unless they make the provider fetch input or bind the form of the answer.
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
    Prompt,
    RedactedThinking,
    Refusal,
    Shape,
    Text,
    Thinking,
    Tool,
    ToolChoice,
    ToolResult,
    ToolUse,
)
from sluicegate.dialects.form import BadRequest, Request
from sluicegate.dialects.openai_request import ABSENT, fetches, named

_ABSENT = Raw()


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
    cache_control: Raw = _ABSENT


class _Called(Struct):
    name: str
    arguments: Any = None


class _Call(Struct):
    id: str | None = None
    type: str | None = None
    function: _Called | None = None
    cache_control: Raw = _ABSENT


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
    reasoning_details: list[_Detail] | None = None
    thinking_blocks: list[_Part] | None = None
    audio: dict[str, Raw] | None = None
    cache_control: Raw = _ABSENT


class _Definition(Struct):
    name: str
    description: str | None = None
    parameters: Raw = _ABSENT
    strict: bool | None = None
    cache_control: Raw = _ABSENT


class _Tool(Struct):
    type: str
    function: _Definition | None = None
    cache_control: Raw = _ABSENT


class _Named(Struct):
    name: str


class _Allowed(Struct):
    mode: str
    tools: list["_Choice"]


class _Choice(Struct):
    type: str | None = None
    name: str | None = None  # as Anthropic has it
    function: _Named | None = None
    allowed_tools: _Allowed | None = None


class _Schema(Struct):
    name: str = ""
    description: str | None = None
    schema: Raw = _ABSENT
    strict: bool | None = None


class _Format(Struct):
    type: str
    json_schema: _Schema | None = None


class _Thinking(Struct):
    """`thinking` as Anthropic has it, `reasoning` as OpenRouter has it."""

    type: str | None = None
    budget_tokens: int | None = None
    max_tokens: int | None = None
    effort: str | None = None
    enabled: bool | None = None


class _Settings(Struct):
    """The fields that are read; each other one is left out."""

    tools: list[_Tool] | None = None
    functions: list[_Definition] | None = None
    tool_choice: _Choice | str | None = None
    function_call: _Named | str | None = None
    parallel_tool_calls: bool | None = None
    response_format: _Format | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    reasoning_effort: str | None = None
    thinking: _Thinking | bool | str | None = None
    reasoning: _Thinking | bool | str | None = None
    user: str | None = None


# Fields that another part of the request says: form.Request, or the messages.
_SAID = frozenset((
    "model", "messages", "stream", "stream_options", "max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens", "n_predict",
    "n", "best_of", "n_cmpl",
))  # fmt: skip
# Fields that bind what the answer is, where they are not absent.
_BINDING = frozenset((
    "grammar", "guided_choice", "guided_grammar", "guided_json", "guided_regex", "json_schema", "logprobs", "moderation", "structured_outputs",
))  # fmt: skip
_READ = frozenset(_Settings.__struct_fields__)
_NO_ARGUMENTS = Raw(b'{"type":"object","properties":{}}')
_MEDIA_TYPES = {"image/jpg": "image/jpeg", "application/x-pdf": "application/pdf"}

_decode_messages = msgspec.json.Decoder(list[_Message]).decode
_decode_settings = msgspec.json.Decoder(_Settings).decode
_decode_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def read_prompt(request: Request) -> Prompt:
    """What a client's request says. Raises Inexpressible, BadRequest."""
    fields = request.fields
    if request.choices > 1:
        raise Inexpressible("No deployment of this model gives several answers to one request.", "n")
    left_out = _left_out(fields)
    try:
        messages = _decoded(_decode_messages, fields["messages"], "messages")
        read = {name: raw for name, raw in fields.items() if name in _READ}
        settings = _decoded(_decode_settings, _encode(read), "")
    except RecursionError:
        raise BadRequest("The body is nested too deeply.") from None
    prompt = Prompt(
        _Conversation().read(messages),
        parallel_tool_calls=settings.parallel_tool_calls,
        shape=_shape(settings.response_format),
        temperature=settings.temperature,
        top_p=settings.top_p,
        top_k=settings.top_k,
        stop=[settings.stop] if isinstance(settings.stop, str) else settings.stop or [],
        seed=settings.seed,
        presence_penalty=settings.presence_penalty,
        frequency_penalty=settings.frequency_penalty,
        effort=settings.reasoning_effort or "",
        user=settings.user or "",
        left_out=left_out,
    )
    _tools(prompt, settings)
    _think(prompt, settings.reasoning, "reasoning")
    _think(prompt, settings.thinking, "thinking")
    return prompt


def _decoded(decode: Any, raw: bytes, field: str) -> Any:
    try:
        return decode(raw)
    except msgspec.ValidationError as error:
        raise named(error, field) from None


def _left_out(fields: dict[str, Raw]) -> list[str]:
    """The fields that only tune, and that no other dialect has a place for."""
    left_out = []
    for name in fields.keys() - _READ - _SAID:
        raw = bytes(fields[name])
        if raw in ABSENT:
            continue
        if name in _BINDING or fetches(name) or (name == "modalities" and b'"audio"' in raw) or (name == "prompt" and raw[:1] == b"{"):
            raise Inexpressible(f"No deployment of this model takes {name[:40]!r}.", name[:100])
        left_out.append(name)
    return sorted(left_out)


# -- messages -----------------------------------------------------------------------------------------------------------------------------


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
        content, cache = _content(message, path), _cache(message.cache_control)
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
            parts.append(ToolUse(call.id or f"call_{index}_{i}", call.function.name, arguments, _cache(call.cache_control)))
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
    kind, cache = part.type, _cache(part.cache_control)
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
    cache = _cache(message.cache_control)
    if cache is not None:
        for part in reversed(parts):
            if isinstance(part, Text | Image | Document | ToolUse):
                part.cache = part.cache or cache
                return


def _cache(raw: Raw) -> Raw | None:
    return None if bytes(raw) in (b"", b"null") else raw


def _arguments(arguments: Any) -> str:
    """The JSON text of an object; some clients send the object itself."""
    if isinstance(arguments, str):
        return arguments if arguments.strip() else "{}"
    return _encode(arguments).decode() if arguments else "{}"


# -- settings -----------------------------------------------------------------------------------------------------------------------------


def _tools(prompt: Prompt, settings: _Settings) -> None:
    """Tools and which of them may be called; else the older functions, of which one is called at a time."""
    if settings.tools:
        prompt.tools = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(settings.tools)]
        _choose(prompt, settings.tool_choice, "tool_choice")
    elif settings.functions:
        prompt.tools = [_defined(function, _ABSENT) for function in settings.functions]
        prompt.parallel_tool_calls = False
        choice = settings.function_call
        _choose(prompt, _Choice("function", function=choice) if isinstance(choice, _Named) else choice, "function_call")


def _tool(tool: _Tool, path: str) -> Tool:
    if tool.type != "function" or tool.function is None:
        raise Inexpressible(f"No deployment of this model takes tools of type {tool.type[:40]!r}.", f"{path}.type")
    return _defined(tool.function, tool.cache_control)


def _defined(function: _Definition, cache: Raw) -> Tool:
    schema = function.parameters if bytes(function.parameters) not in (b"", b"null") else _NO_ARGUMENTS
    return Tool(function.name, function.description or "", schema, function.strict, _cache(cache) or _cache(function.cache_control))


def _choose(prompt: Prompt, choice: _Choice | str | None, path: str) -> None:
    if choice is None:
        return
    if isinstance(choice, _Choice) and choice.allowed_tools is not None:
        allowed = {tool.function.name if tool.function is not None else tool.name for tool in choice.allowed_tools.tools}
        prompt.tools = [tool for tool in prompt.tools if tool.name in allowed]
        choice, path = choice.allowed_tools.mode, f"{path}.allowed_tools.mode"
    kind = choice if isinstance(choice, str) else choice.type
    if kind == "auto":
        prompt.tool_choice = ToolChoice("auto")
    elif kind in ("required", "any"):
        prompt.tool_choice = ToolChoice("any")
    elif kind == "none":
        prompt.tool_choice = ToolChoice("none")
    elif isinstance(choice, _Choice) and kind in ("function", "tool") and (name := choice.function.name if choice.function else choice.name):
        prompt.tool_choice = ToolChoice("tool", name)
    else:
        raise Inexpressible(f"No deployment of this model knows a choice of tools of this kind: {str(kind)[:40]!r}.", path)


def _shape(wanted: _Format | None) -> Shape | None:
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return Shape()
    schema = wanted.json_schema
    if wanted.type != "json_schema" or schema is None or not bytes(schema.schema):
        raise Inexpressible(f"No deployment of this model gives an answer of type {wanted.type[:40]!r}.", "response_format.type")
    return Shape(schema.schema, schema.name, schema.description or "", schema.strict)


def _think(prompt: Prompt, thinking: _Thinking | bool | str | None, name: str) -> None:
    """What one of two fields of vendors says of thinking. A text there is an effort."""
    if isinstance(thinking, str):
        prompt.effort = prompt.effort or thinking
    elif isinstance(thinking, bool):
        prompt.thinking = "on" if thinking else "off"
    elif thinking is not None:
        prompt.effort = prompt.effort or thinking.effort or ""
        prompt.thinking_budget = thinking.budget_tokens or thinking.max_tokens or prompt.thinking_budget
        if thinking.type == "adaptive":
            prompt.thinking = "adaptive"
        elif thinking.type == "disabled" or thinking.enabled is False:
            prompt.thinking = "off"
        elif thinking.type == "enabled" or thinking.enabled or thinking.budget_tokens or thinking.max_tokens:
            prompt.thinking = "on"
        elif thinking.type is not None:
            prompt.left_out.append(name)
