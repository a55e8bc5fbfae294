"""A `Prompt` as a chat request, for a provider that speaks OpenAI chat where the client speaks another dialect.

Written so that every compatible server takes it: content of nothing but text is one text, instructions of a developer are a system message, results
of tools stand directly after the calls that they belong to. What a tool gave in pictures, which a `tool` message has no room for, follows in a
message of the user. Thinking stays behind, but for a provider that wants its own back (`Target.thoughts`); marks of a cache too: these providers
cache on their own.
"""

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import msgspec
from msgspec import Raw

from sluicegate.dialects.content import (
    Audio,
    Document,
    Image,
    Inexpressible,
    Message,
    Part,
    Prompt,
    Refusal,
    Shape,
    Text,
    Thinking,
    Tool,
    ToolChoice,
    ToolResult,
    ToolUse,
)
from sluicegate.dialects.form import Request, Target
from sluicegate.dialects.openai_request import as_known

_NO_ARGUMENTS = Raw(b'{"type":"object","properties":{}}')
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
# Models of OpenAI's that always think: gpt-5 itself, those before it, gpt-oss. Later ones have `none`.
_LEAST = re.compile(r"(?:^|/)(?:(?P<minimal>gpt-5(?:-mini|-nano)?(?:-20[0-9-]+)?$)|o[134](?:-|$)|gpt-5-codex|gpt-oss)")

_encode = msgspec.json.Encoder().encode


def write_prompt(prompt: Prompt, request: Request, target: Target) -> bytes:
    """The body for one deployment. Raises Inexpressible."""
    fields: dict[str, Any] = {"messages": _messages(prompt.messages, "" if target.foreign else target.thoughts)}
    if prompt.tools:
        fields["tools"] = [_tool(tool) for tool in prompt.tools]
        if prompt.tool_choice is not None:
            fields["tool_choice"] = _tool_choice(prompt.tool_choice)
        if prompt.parallel_tool_calls is not None:
            fields["parallel_tool_calls"] = prompt.parallel_tool_calls
    if prompt.shape is not None:
        fields["response_format"] = _response_format(prompt.shape)
    if request.choices > 1:
        fields["n"] = request.choices
    tuned = {
        "temperature": prompt.temperature,
        "top_p": prompt.top_p,
        "stop": prompt.stop or None,
        "seed": prompt.seed,
        "presence_penalty": prompt.presence_penalty,
        "frequency_penalty": prompt.frequency_penalty,
        "reasoning_effort": _effort(prompt.effort, target.model) or None,
        "user": prompt.user or None,
    }
    fields |= {name: value for name, value in tuned.items() if value is not None}
    if prompt.top_k is not None:
        prompt.left_out.append("top_k")
    if prompt.thinking and not prompt.effort:
        prompt.left_out.append("thinking")
    if target.rejects or target.renames:
        as_known(fields, target)
    fields["model"] = target.model
    cap = request.cap if target.cap is None else target.cap
    if cap is not None:
        fields[target.cap_field] = cap
    if request.stream:
        fields["stream"] = True
        if target.stream_usage:
            fields["stream_options"] = {"include_usage": True}
    return _encode(fields)


def _effort(effort: str, model: str) -> str:
    """The least that a model has, where it cannot do without: https://platform.openai.com/docs/guides/reasoning."""
    if effort == "none" and (least := _LEAST.search(model)) is not None:
        return "minimal" if least["minimal"] else "low"
    return effort


def _messages(messages: list[Message], thoughts: str) -> list[dict[str, Any]]:
    written: list[dict[str, Any]] = []
    for role, run in groupby(messages, lambda message: message.role):
        if role == "user":
            written += _from_user(list(run))
        elif role == "assistant":
            written += [message for each in run if len(message := _from_assistant(each, thoughts)) > 1]
        else:
            written += [_named({"role": "system", "content": _content(each.parts)}, each) for each in run]
    return written


def _from_user(run: list[Message]) -> list[dict[str, Any]]:
    """Messages of a user that follow each other: what tools gave comes first, where the calls are answered."""
    written: list[dict[str, Any]] = []
    pictures: list[Part] = []
    for result in [part for message in run for part in message.parts if isinstance(part, ToolResult)]:
        text = "\n".join([part.text for part in result.parts if isinstance(part, Text)])
        written.append({"role": "tool", "tool_call_id": result.id, "content": text})
        pictures += [part for part in result.parts if not isinstance(part, Text)]
    if pictures:
        written.append({"role": "user", "content": [_part(part) for part in pictures]})
    for message in run:
        if parts := [part for part in message.parts if not isinstance(part, ToolResult)]:
            written.append(_named({"role": "user", "content": _content(parts)}, message))
    return written


def _from_assistant(message: Message, thoughts: str) -> dict[str, Any]:
    """What was thought only in the field for it, if there is one; nothing but the role, if that was all."""
    text = "\n".join([part.text for part in message.parts if isinstance(part, Text) and part.text])
    refusal = "".join([part.text for part in message.parts if isinstance(part, Refusal)])
    calls = [
        {"id": part.id, "type": "function", "function": {"name": part.name, "arguments": part.arguments or "{}"}}
        for part in message.parts
        if isinstance(part, ToolUse)
    ]
    written: dict[str, Any] = {"role": "assistant"}
    if text or refusal or calls:
        written["content"] = text or None
    if thoughts and len(written) > 1 and (thought := "\n".join([part.text for part in message.parts if isinstance(part, Thinking)])):
        written[thoughts] = thought
    if refusal:
        written["refusal"] = refusal
    if calls:
        written["tool_calls"] = calls
    return _named(written, message) if len(written) > 1 else written


def _named(written: dict[str, Any], message: Message) -> dict[str, Any]:
    return written | {"name": message.name} if message.name else written


def _content(parts: Sequence[Part | ToolResult]) -> str | list[dict[str, Any]]:
    texts = [part.text for part in parts if isinstance(part, Text)]
    return "\n".join(texts) if len(texts) == len(parts) else [_part(part) for part in parts]


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if isinstance(part, Image):
        url = {"url": part.url or f"data:{part.media_type};base64,{part.data}"}
        return {"type": "image_url", "image_url": url | ({"detail": part.detail} if part.detail else {})}
    if isinstance(part, Audio):
        return {"type": "input_audio", "input_audio": {"data": part.data, "format": part.format}}
    if isinstance(part, Document):
        return _document(part)
    raise Inexpressible("A part of this kind can stand in an answer only.", "messages")


def _document(document: Document) -> dict[str, Any]:
    if document.text:
        return {"type": "text", "text": document.text}
    if not document.data:
        raise Inexpressible("No deployment of this model reads a document by its URL.", "messages")
    file = {"filename": document.name or "document.pdf", "file_data": f"data:{document.media_type};base64,{document.data}"}
    return {"type": "file", "file": file}


def _tool(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    function["parameters"] = tool.schema if bytes(tool.schema) else _NO_ARGUMENTS
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _tool_choice(choice: ToolChoice) -> Any:
    return _CHOICES.get(choice.kind) or {"type": "function", "function": {"name": choice.name}}


def _response_format(shape: Shape) -> dict[str, Any]:
    if shape.schema is None:
        return {"type": "json_object"}
    schema: dict[str, Any] = {"name": shape.name or "answer", "schema": shape.schema}
    if shape.description:
        schema["description"] = shape.description
    if shape.strict is not None:
        schema["strict"] = shape.strict
    return {"type": "json_schema", "json_schema": schema}
