"""A `Prompt` as a request for messages, for a provider that speaks Anthropic messages where the client speaks another dialect.

What the API refuses is not sent to it (https://docs.anthropic.com/en/api/messages and the pages on its features):

- Instructions, wherever they stood, are `system`, which has no place among turns at most models. Turns of one role that follow each other are one, in
  which the results of tools come first. Texts of nothing but white space are left out, as is white space at the end of a last turn of the assistant.
- Thinking is sent back where it has a proof, and only to the model that gave it.
- How much to think is a budget for models up to 4.5 and those of other vendors; later models take an effort, and decide themselves: a budget becomes
  the effort that it is enough for, since without one they take "high". A budget that the client says stays as it is if it is below the cap; any
  other leaves a quarter of the cap to the answer. There is none where that is less than the API takes, where a turn of a tool loop does not begin
  with thinking, or where a call is demanded.
- A temperature is at most 1, and stands in for `top_p` where both are given; models from 4.7 on take neither.
- A schema for the answer goes into `output_config.format`. JSON of any kind cannot be asked for.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import msgspec
from msgspec import Raw

from sluicegate.core.efforts import BUDGETS, LEAST, Effort, effort_for
from sluicegate.dialects.content import (
    Document,
    Image,
    Inexpressible,
    Message,
    Part,
    Prompt,
    RedactedThinking,
    Refusal,
    Text,
    Thinking,
    Tool,
    ToolResult,
    ToolUse,
)
from sluicegate.dialects.form import BadRequest, Request, Target
from sluicegate.dialects.openai_body import loosely
from sluicegate.dialects.openai_request import as_known

_BUDGETS = {effort.value: BUDGETS.get(effort, BUDGETS[Effort.XHIGH]) for effort in Effort}
_EFFORTS = {"minimal": "low"}
# A model's version, in its own name and in those that other vendors give it.
_VERSION = re.compile(r"claude-(?:[a-z]+-)?(\d+)(?:[-.](\d{1,2})(?!\d))?")
_NOT_ID = re.compile(r"[^A-Za-z0-9_-]")
# What base64 text of an image begins with.
_BEGINNINGS = {"iVBORw0KGgo": "image/png", "/9j/": "image/jpeg", "R0lGOD": "image/gif", "UklGR": "image/webp"}
_NO_ARGUMENTS = Raw(b'{"type":"object","properties":{}}')

_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_encode = msgspec.json.Encoder().encode


def write_prompt(prompt: Prompt, request: Request, target: Target) -> bytes:
    """The body for one deployment. Raises Inexpressible, BadRequest."""
    try:
        return _encode(_fields(prompt, request, target))
    except RecursionError:  # it could just be read
        raise BadRequest("The body is nested too deeply.") from None


def _fields(prompt: Prompt, request: Request, target: Target) -> dict[str, Any]:
    if request.choices > 1:
        raise Inexpressible("No deployment of this model gives several answers to one request.", "n")
    if prompt.shape is not None and prompt.shape.schema is None:
        raise Inexpressible("No deployment of this model answers in JSON without a schema.", "response_format")
    cap = request.cap if target.cap is None else target.cap
    system, messages = _conversation(prompt.messages, target.foreign)
    fields: dict[str, Any] = {"model": target.model, "max_tokens": cap, "messages": messages}
    if system:
        fields["system"] = system[0]["text"] if len(system) == 1 and len(system[0]) == 2 else system
    if prompt.tools:
        fields["tools"] = [_tool(tool) for tool in prompt.tools]
        _choose(fields, prompt)
    if prompt.shape is not None:
        fields["output_config"] = {"format": {"type": "json_schema", "schema": prompt.shape.schema}}
    version = _version(target.model)
    _think(fields, prompt, version, cap or 0)
    _tune(fields, prompt, version)
    if target.rejects or target.renames:
        as_known(fields, target)
    if request.stream:
        fields["stream"] = True
    return fields


def _version(model: str) -> tuple[int, int] | None:
    """(4, 5) of claude-sonnet-4-5-20250929, (3, 7) of claude-3-7-sonnet-20250219; None of a model of another vendor."""
    found = _VERSION.search(model)
    return (int(found[1]), int(found[2] or 0)) if found is not None else None


# -- messages -----------------------------------------------------------------------------------------------------------------------------


def _conversation(messages: Sequence[Message], foreign: bool) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Instructions, and turns."""
    instructions = [message for message in messages if message.role in ("system", "developer")]
    turns = [message for message in messages if message.role in ("user", "assistant")]
    if not turns and instructions:  # of nothing but instructions, the last is the question
        turns = [Message("user", instructions.pop().parts)]
    system = [block for message in instructions for block in _blocks(message.parts, foreign)]
    written: list[dict[str, Any]] = []
    for role, run in groupby(turns, lambda message: message.role):
        parts = [part for message in run for part in message.parts]
        parts.sort(key=lambda part: not isinstance(part, ToolResult))
        if blocks := list(_blocks(parts, foreign)):
            if written and written[-1]["role"] == role:  # what stood between them is left out
                written[-1]["content"] += blocks
            else:
                written.append({"role": role, "content": blocks})
    if written and written[-1]["role"] == "assistant" and written[-1]["content"][-1]["type"] == "text":
        last = written[-1]["content"][-1]
        last["text"] = last["text"].rstrip()
    return system, written


def _blocks(parts: Iterable[Part], foreign: bool) -> Iterator[dict[str, Any]]:
    for part in parts:
        block = _block(part, foreign)
        if block is not None:
            cache = getattr(part, "cache", None)
            yield block | {"cache_control": cache} if cache is not None else block


def _block(part: Part, foreign: bool) -> dict[str, Any] | None:
    """None for what is left out."""
    match part:
        case Text() | Refusal():
            return {"type": "text", "text": part.text} if part.text.strip() else None
        case Thinking():
            signed = bool(part.signature) and not foreign
            return {"type": "thinking", "thinking": part.text, "signature": part.signature} if signed else None
        case RedactedThinking():
            return {"type": "redacted_thinking", "data": part.data} if not foreign else None
        case Image() | Document():
            return _file(part)
        case ToolUse():
            return {"type": "tool_use", "id": _id(part.id), "name": part.name, "input": _input(part.arguments)}
        case ToolResult():
            result: dict[str, Any] = {"type": "tool_result", "tool_use_id": _id(part.id)}
            if content := list(_blocks(part.parts, foreign)):
                result["content"] = content
            return result | {"is_error": True} if part.failed else result
    raise Inexpressible("No deployment of this model takes audio.", "messages")


def _file(part: Image | Document) -> dict[str, Any]:
    if isinstance(part, Image):
        source = {"type": "url", "url": part.url} if part.url else {"type": "base64", "media_type": _media_type(part), "data": part.data}
        return {"type": "image", "source": source}
    if part.url:
        source = {"type": "url", "url": part.url}
    elif part.text:
        source = {"type": "text", "media_type": "text/plain", "data": part.text}
    elif part.media_type == "application/pdf":
        source = {"type": "base64", "media_type": part.media_type, "data": part.data}
    else:
        raise Inexpressible(f"No deployment of this model reads a document of type {part.media_type[:40]!r}.", "messages")
    return {"type": "document", "source": source} | ({"title": part.name} if part.name else {})


def _media_type(image: Image) -> str:
    """By its bytes, which the API compares with what is said of them."""
    for beginning, media_type in _BEGINNINGS.items():
        if image.data.startswith(beginning):
            return media_type
    raise Inexpressible(f"No deployment of this model reads an image of type {image.media_type[:40]!r}.", "messages")


def _id(id: str) -> str:
    """Of a call: in the characters that the API takes."""
    return _NOT_ID.sub("_", id) or "call"


def _input(arguments: str) -> Raw:
    data = arguments.encode()
    if not isinstance(loosely(data or b"{}"), dict):
        raise Inexpressible("No deployment of this model takes a call whose arguments are not a JSON object.", "messages")
    return Raw(data or b"{}")


# -- settings -----------------------------------------------------------------------------------------------------------------------------


def _tool(tool: Tool) -> dict[str, Any]:
    schema = bytes(tool.schema)
    written: dict[str, Any] = {"name": tool.name}
    if tool.description:
        written["description"] = tool.description
    described = _decode_fields(schema) if schema.startswith(b"{") else _decode_fields(_NO_ARGUMENTS)
    written["input_schema"] = tool.schema if schema.startswith(b"{") and "type" in described else {"type": "object"} | described
    if tool.strict is not None:
        written["strict"] = tool.strict
    return written | {"cache_control": tool.cache} if tool.cache is not None else written


def _choose(fields: dict[str, Any], prompt: Prompt) -> None:
    choice = prompt.tool_choice
    kind = choice.kind if choice is not None else "auto"
    written: dict[str, Any] = {"type": kind} | ({"name": choice.name} if choice is not None and kind == "tool" else {})
    if prompt.parallel_tool_calls is not None and kind != "none":
        written["disable_parallel_tool_use"] = not prompt.parallel_tool_calls
    if choice is not None or len(written) > 1:
        fields["tool_choice"] = written


def _think(fields: dict[str, Any], prompt: Prompt, version: tuple[int, int] | None, cap: int) -> None:
    effort, wanted = prompt.effort, bool(prompt.thinking_budget) or prompt.thinking in ("on", "adaptive")
    if prompt.thinking == "off" or effort == "none":
        if version is None or version >= (3, 7):
            fields["thinking"] = {"type": "disabled"}
        return
    if not effort and not wanted:
        return
    if version is not None and version >= (4, 6):
        fields["thinking"] = {"type": "adaptive"}
        effort = effort or (effort_for(max(prompt.thinking_budget, LEAST)).value if prompt.thinking_budget else "")
        if effort:
            fields.setdefault("output_config", {})["effort"] = _EFFORTS.get(effort, "high" if version < (4, 7) and effort == "xhigh" else effort)
        return
    said = prompt.thinking_budget or 0
    budget = said if 0 < said < cap else min(said or _BUDGETS.get(effort, _BUDGETS["medium"]), cap * 3 // 4)
    demanded = prompt.tool_choice is not None and prompt.tool_choice.kind in ("any", "tool")
    if budget < LEAST or demanded or (version is not None and version < (3, 7)) or _in_a_loop_without(fields["messages"]):
        prompt.left_out.append("thinking")
    else:
        fields["thinking"] = {"type": "enabled", "budget_tokens": budget}


def _in_a_loop_without(messages: list[dict[str, Any]]) -> bool:
    """Whether the last turn of the assistant calls tools and does not begin with thinking."""
    turns = [message["content"] for message in messages if message["role"] == "assistant"]
    if not turns:
        return False
    kinds = [block["type"] for block in turns[-1]]
    return "tool_use" in kinds and kinds[0] not in ("thinking", "redacted_thinking")


def _tune(fields: dict[str, Any], prompt: Prompt, version: tuple[int, int] | None) -> None:
    """What only tunes, where it is taken; the rest is left out and named."""
    sampled = {"temperature": prompt.temperature, "top_p": prompt.top_p, "top_k": prompt.top_k}
    if sampled["temperature"] is not None:
        sampled["temperature"] = min(max(sampled["temperature"], 0.0), 1.0)
        taken = {"temperature", "top_k"}
    else:
        taken = {"top_p", "top_k"}
    if (version is not None and version >= (4, 7)) or fields.get("thinking", {}).get("type") in ("enabled", "adaptive"):
        taken = set()
    stop = [text for text in prompt.stop if text.strip()]
    fields |= {name: value for name, value in sampled.items() if value is not None and name in taken}
    fields |= {"stop_sequences": stop} if stop else {}
    fields |= {"metadata": {"user_id": prompt.user}} if prompt.user else {}
    prompt.left_out += [name for name, value in sampled.items() if value is not None and name not in taken]
    prompt.left_out += ["stop"] if len(stop) < len(prompt.stop) else []
    prompt.left_out += [name for name in ("seed", "presence_penalty", "frequency_penalty") if getattr(prompt, name) is not None]
    if any(message.name for message in prompt.messages):
        prompt.left_out.append("messages.name")
