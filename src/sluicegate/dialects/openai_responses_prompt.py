"""A client's Responses request as a `Prompt`, for a provider that speaks another dialect.

Reads the raw fields of a request that openai_responses_request has read before. What another dialect has no way to say raises `Inexpressible` with
the path of the field: tools that a provider runs, custom tools, everything that a provider keeps. Choices made here:

- Items of the assistant that follow each other (reasoning, messages, calls) are one message, and so are results of calls.
- Reasoning is thinking where `encrypted_content` is of our own making (openai_responses_reply); any other proves nothing to any other provider.
- Nothing is stored: `store: true` is refused, without it the answer says that it is not.
- Fields that only tune are left out and named.
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
from sluicegate.dialects.openai_body import text_of
from sluicegate.dialects.openai_chat_conversation import inline
from sluicegate.dialects.openai_request import ABSENT, CAPS, fetches, named
from sluicegate.dialects.openai_responses_items import OURS, TEXTS, kind_of

THINKING = OURS + "thinking:"  # then the signature
REDACTED = OURS + "redacted:"  # then the data


class _Tool(Struct):
    type: str
    name: str = ""
    description: str | None = None
    parameters: Raw = Raw()
    strict: bool | None = None


class _Allowed(Struct):
    type: str
    name: str = ""


class _Choice(Struct):
    type: str
    name: str = ""
    mode: str = "auto"
    tools: list[_Allowed] = []


class _Format(Struct):
    type: str
    name: str = ""
    description: str | None = None
    schema: Raw = Raw()
    strict: bool | None = None


class _TextSettings(Struct):
    format: _Format | None = None
    verbosity: str | None = None


class _Effort(Struct):
    effort: str | None = None
    summary: str | None = None


class _Settings(Struct):
    """The fields that are read; each other one is left out."""

    tools: list[_Tool] | None = None
    tool_choice: _Choice | str | None = None
    parallel_tool_calls: bool | None = None
    text: _TextSettings | None = None
    reasoning: _Effort | bool | str | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    store: bool | None = None
    user: str | None = None
    safety_identifier: str | None = None


_READ = frozenset(_Settings.__struct_fields__)
# Fields that another part of the request says, or that say nothing where the provider runs no tools.
_SAID = frozenset((*CAPS, "model", "input", "instructions", "stream", "stream_options", "n", "best_of", "n_cmpl", "max_tool_calls", "thinking"))
_BINDING = frozenset(("context_management", "moderation", "prompt"))
_NO_ARGUMENTS = Raw(b'{"type":"object","properties":{}}')
_CHOICES = {"auto": ToolChoice("auto"), "required": ToolChoice("any"), "none": ToolChoice("none")}

_decode_settings = msgspec.json.Decoder(_Settings).decode
_decode_items = msgspec.json.Decoder(list[Raw]).decode
_decode_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def read_prompt(request: Request) -> Prompt:
    """What a client's request says. Raises Inexpressible, BadRequest."""
    left_out = _left_out(request.fields)
    try:
        settings = _decode_settings(_encode({name: raw for name, raw in request.fields.items() if name in _READ}))
        messages = _messages(request.fields)
    except msgspec.ValidationError as error:
        raise named(error) from None
    except RecursionError:
        raise BadRequest("The body is nested too deeply.") from None
    _answerable(settings)
    prompt = Prompt(
        messages,
        parallel_tool_calls=settings.parallel_tool_calls,
        temperature=settings.temperature,
        top_p=settings.top_p,
        user=settings.user or settings.safety_identifier or "",
        left_out=left_out,
    )
    if request.thinking:
        prompt.thinking, prompt.thinking_budget = "on", request.thinking
    if isinstance(settings.reasoning, _Effort):
        prompt.effort = settings.reasoning.effort or ""
        if settings.reasoning.summary:
            left_out.append("reasoning.summary")
    if settings.text is not None:
        prompt.shape = _shape(settings.text.format)
        if settings.text.verbosity:
            left_out.append("text.verbosity")
    prompt.tools = [_tool(tool, index) for index, tool in enumerate(settings.tools or ())]
    _choose(prompt, settings.tool_choice)
    return prompt


def _left_out(fields: dict[str, Raw]) -> list[str]:
    """The fields that only tune, and that no other dialect has a place for."""
    left_out = []
    for name in sorted(fields.keys() - _READ - _SAID):
        raw = bytes(fields[name])
        if raw in ABSENT or (name == "truncation" and raw == b'"disabled"'):
            continue
        if name in _BINDING or fetches(name):
            raise Inexpressible(f"No deployment of this model takes {name[:40]!r}.", name[:100])
        left_out.append(name)
    return left_out


def _answerable(settings: _Settings) -> None:
    """Refuses what would have to come with the answer."""
    if settings.store:
        raise Inexpressible("No deployment of this model keeps its answers: leave 'store' out or make it false.", "store")
    if settings.top_logprobs:
        raise Inexpressible("No deployment of this model gives log probabilities.", "top_logprobs")
    if settings.include and "message.output_text.logprobs" in settings.include:
        raise Inexpressible("No deployment of this model gives log probabilities.", "include")


# -- input --------------------------------------------------------------------------------------------------------------------------------


def _messages(fields: dict[str, Raw]) -> list[Message]:
    messages: list[Message] = []
    instructions = text_of(_decode_any(fields.get("instructions", b"null")))
    if instructions:
        messages.append(Message("system", [Text(instructions)]))
    raw = fields["input"]
    if bytes(raw)[:1] == b'"':
        return [*messages, Message("user", [Text(_decode_any(raw))])]
    for index, item in enumerate(_decode_items(raw)):
        _add(messages, kind_of(item), _decode_any(item), f"input[{index}]")
    if not messages:
        raise BadRequest("There is nothing in 'input' to answer.", "input")
    return messages


def _add(messages: list[Message], kind: str, item: dict[str, Any], path: str) -> None:
    if kind == "message":
        role, parts = item["role"], _parts(item["content"], f"{path}.content")
        if role == "assistant":
            _say(messages, parts)
        elif parts:
            messages.append(Message(role, parts))
    elif kind == "reasoning":
        _say(messages, _thoughts(item))
    elif kind == "function_call":
        _say(messages, [ToolUse(item["call_id"], item["name"], item["arguments"] or "{}")])
    elif kind == "function_call_output":
        parts = _parts(item["output"], f"{path}.output")
        given: list[Text | Image | Document] = [part for part in parts if isinstance(part, Text | Image | Document)]
        if len(given) < len(parts):
            raise Inexpressible("What a tool gives is text, images or documents.", f"{path}.output")
        if not messages or not _is_results(messages[-1]):
            messages.append(Message("user", []))
        messages[-1].parts.append(ToolResult(item["call_id"], given))
    else:
        raise Inexpressible(f"No deployment of this model takes an input item of type {kind[:40]!r}.", f"{path}.type")


def _say(messages: list[Message], parts: list[Part]) -> None:
    """Adds to what the assistant says."""
    if not parts:
        return
    if not messages or messages[-1].role != "assistant":
        messages.append(Message("assistant", []))
    messages[-1].parts += parts


def _is_results(message: Message) -> bool:
    return message.role == "user" and isinstance(message.parts[-1], ToolResult)


def _thoughts(item: dict[str, Any]) -> list[Part]:
    proof = text_of(item.get("encrypted_content"))
    if proof.startswith(REDACTED):
        return [RedactedThinking(proof.removeprefix(REDACTED))]
    if not proof.startswith(THINKING):
        return []
    return [Thinking("".join([text_of(part.get("text")) for part in item.get("summary") or ()]), proof.removeprefix(THINKING))]


def _parts(content: str | list[dict[str, Any]], path: str) -> list[Part]:
    if isinstance(content, str):
        return [Text(content)] if content else []
    parts = [_part(part, f"{path}[{index}]") for index, part in enumerate(content)]
    return [part for part in parts if part is not None]


def _part(part: dict[str, Any], path: str) -> Part | None:
    kind = part["type"]
    if kind in TEXTS:
        return Text(part["text"]) if part["text"] else None
    if kind == "refusal":
        return Refusal(part["refusal"]) if part.get("refusal") else None
    if kind == "input_image" and part.get("image_url"):
        url = part["image_url"]
        media_type, data = inline(url, f"{path}.image_url")
        return Image("" if data else url, media_type, data, text_of(part.get("detail")))
    if kind == "input_file":
        return _document(part, path)
    audio = part.get("input_audio")
    if kind == "input_audio" and isinstance(audio, dict):
        return Audio(text_of(audio.get("data")), text_of(audio.get("format")))
    raise Inexpressible(f"No deployment of this model takes a content part of type {kind[:40]!r} as it is.", path)


def _document(part: dict[str, Any], path: str) -> Document:
    name, data, url = text_of(part.get("filename")), text_of(part.get("file_data")), text_of(part.get("file_url"))
    if data:
        media_type, inner = inline(data, f"{path}.file_data")
        return Document(media_type=media_type or "application/pdf", data=inner or data, name=name)
    if url:
        return Document(url=url, name=name)
    raise Inexpressible("A file that is known by its id is known only to the provider that has it.", f"{path}.file_id")


# -- tools and forms ----------------------------------------------------------------------------------------------------------------------


def _tool(tool: _Tool, index: int) -> Tool:
    if tool.type != "function":
        raise Inexpressible(f"No deployment of this model has tools of type {tool.type[:40]!r}.", f"tools[{index}].type")
    schema = tool.parameters if bytes(tool.parameters) not in (b"", b"null") else _NO_ARGUMENTS
    return Tool(tool.name, tool.description or "", schema, tool.strict)


def _choose(prompt: Prompt, choice: _Choice | str | None) -> None:
    if choice is None:
        return
    if isinstance(choice, str) and choice in _CHOICES:
        prompt.tool_choice = _CHOICES[choice]
    elif isinstance(choice, _Choice) and choice.type == "function":
        prompt.tool_choice = ToolChoice("tool", choice.name)
    elif isinstance(choice, _Choice) and choice.type == "allowed_tools" and choice.mode in _CHOICES:
        allowed = {tool.name for tool in choice.tools if tool.type == "function"}
        prompt.tools = [tool for tool in prompt.tools if tool.name in allowed]
        prompt.tool_choice = _CHOICES[choice.mode]
    else:
        raise Inexpressible("No deployment of this model knows this choice of tools.", "tool_choice")


def _shape(format_: _Format | None) -> Shape | None:
    if format_ is None or format_.type == "text":
        return None
    if format_.type == "json_object":
        return Shape()
    if format_.type == "json_schema":
        schema = format_.schema if bytes(format_.schema) else _NO_ARGUMENTS
        return Shape(schema, format_.name, format_.description or "", format_.strict)
    raise Inexpressible(f"No deployment of this model writes answers of the form {format_.type[:40]!r}.", "text.format.type")
