"""The request side of the OpenAI Responses dialect: `POST /v1/responses` from bytes to `Request`, and to the bytes for one deployment.

As strict as openai_request, whose choices hold here, too. Beside them:

- The cap is `max_output_tokens`, over reasoning and all turns of one response. A cap under another dialect's name is obeyed and sent as
  that; of several the smallest.
- There is one answer: `n` and its like may only be 1.
- What the provider has kept (`previous_response_id`, `conversation`, `prompt`, referenced items), fetches or runs for itself makes the input
  unbounded.
- `background` is refused.
- `input` may be left out only where the provider has something to answer.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from sluicegate.dialects.form import BadRequest, Request, Target
from sluicegate.dialects.hosted import of_code, of_response, of_tool
from sluicegate.dialects.openai_messages import Content
from sluicegate.dialects.openai_request import CAPS, RENDERED, SETTING_BYTES, Count, Thinking, as_known, budget_of, cap_of, more_fields, strictly
from sluicegate.dialects.openai_responses_items import OURS, add_items, without_reasoning
from sluicegate.dialects.repeats import refuse_repeats
from sluicegate.dialects.showing import shows_all
from sluicegate.dialects.tariffs import tariff

CAP_FIELD = "max_output_tokens"


class _StreamOptions(Struct, gc=False):
    include_obfuscation: bool | None = None


class _Typed(Struct, gc=False):
    type: str


class _TextSettings(Struct, gc=False):
    format: _Typed | None = None
    verbosity: str | None = None


class _Tool(Struct, gc=False):
    type: str
    name: str | None = None
    container: Any = None


class Body(Struct, gc=False):
    """The body, as far as the gateway acts on it."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    input: str | list[Raw] | None = None
    instructions: str | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_output_tokens: Count | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    max_new_tokens: Count | None = None
    n_predict: Count | None = None
    n: Literal[1] | None = None
    best_of: Literal[1] | None = None
    n_cmpl: Literal[1] | None = None
    max_tool_calls: Count | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    user: str | None = None
    parallel_tool_calls: bool | None = None
    tools: list[_Tool] | None = None
    text: _TextSettings | None = None
    reasoning: Thinking | bool | str | None = None
    thinking: Thinking | bool | str | None = None
    include: list[str] | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    truncation: str | None = None
    previous_response_id: str | None = None


_STATEFUL = ("previous_response_id", "conversation", "prompt")
_ACTED_ON = frozenset((*Body.__struct_fields__, *_STATEFUL, "background", "context_management"))
_SILENT = frozenset(Body.__struct_fields__) - RENDERED - {"previous_response_id"} | {
    "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier", "service_tier",
}  # fmt: skip

_decode = msgspec.json.Decoder(Body).decode
_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_encode = msgspec.json.Encoder().encode


def read_request(body: bytes) -> Request:
    """A client's request. Raises BadRequest, and nothing else, naming the field."""
    typed, fields, content = strictly(_read, body)
    cap, cap_by = cap_of(typed, CAP_FIELD)
    items = typed.input if isinstance(typed.input, list) else ()
    return Request(
        model=typed.model,
        stream=typed.stream is True,
        include_usage=True,  # it is a part of every response
        choices=1,
        cap=cap,
        thinking=max(budget_of(typed.thinking), budget_of(typed.reasoning)),
        texts=content.texts,
        messages=(len(items) or 1) + (typed.instructions is not None),
        images=content.images,
        prediction="",
        unbounded=content.unbounded,
        fields=fields,
        cap_by=cap_by,
        unbounded_by=content.unbounded_by,
        hosted=content.hosted,
        tariff=tariff(fields),
        own_prompts=(1 if typed.tools else 0) + (1 if typed.text is not None and typed.text.format is not None else 0),
        shown=not content.unbounded and shows_all(fields),  # what a provider runs or keeps, it may answer without showing all that it took
    )


def write_request(request: Request, target: Target) -> bytes:
    """The request as one deployment gets it: its model name, one cap field, no reasoning that it could not read; the rest as it came.

    Raises BadRequest where that cannot be written.
    """
    fields: dict[str, Any] = dict(request.fields)
    fields["model"] = target.model
    if target.rejects or target.renames:
        as_known(fields, target)
    if request.hosted and target.tool_calls:
        said = [tool.most for tool in request.hosted if tool.together and tool.most is not None]
        fields["max_tool_calls"] = min((*said, target.tool_calls))
    cap = request.cap if target.cap is None else target.cap
    for name in CAPS:
        fields.pop(name, None)
    if cap is not None:
        fields[CAP_FIELD] = cap
    items = request.fields.get("input")
    if items is not None and bytes(items)[:1] == b"[" and (target.foreign or OURS.encode() in bytes(items)):
        try:
            fields["input"] = without_reasoning(items, foreign=target.foreign)
        except RecursionError:  # it could just be read, a few calls further up
            raise BadRequest("The body is nested too deeply.", "input") from None
    return _encode(fields)


def _read(body: bytes) -> tuple[Body, dict[str, Raw], Content]:
    """The typed body, its fields as they came, and what the provider will read of it."""
    fields = _decode_fields(body)
    typed = _decode(body)
    refuse_repeats(fields)
    content = Content()
    content.unbounded_by = "input"
    if typed.instructions:
        content.texts.append(typed.instructions)
    if isinstance(typed.input, str):
        content.texts.append(typed.input)
    elif typed.input:
        add_items(content, typed.input)
    if not fields.keys() <= _SILENT:
        more_fields(content, fields, _SILENT, _ACTED_ON)
        content.hosted = of_response(content.hosted, typed.max_tool_calls)
        if bytes(fields.get("context_management", b"null")) not in (b"null", b"[]"):
            content.unbounded, content.unbounded_by = "'context_management', by which the provider works on its own", "context_management"
    if typed.tools:
        _tools(content, typed.tools, typed.max_tool_calls)
        content.texts.append(bytes(fields["tools"]).decode())
    if typed.text is not None:
        raw = bytes(fields["text"])
        if len(raw) > SETTING_BYTES or (typed.text.format is not None and typed.text.format.type not in ("text", "json_object")):
            content.texts.append(raw.decode())
    if not typed.input and not any(bytes(fields.get(name, b"null")) != b"null" for name in _STATEFUL):
        raise BadRequest("Missing required parameter: 'input'.", "input")
    return typed, fields, content


def _tools(content: Content, tools: list[_Tool], most: int | None) -> None:
    """`max_tool_calls` bounds the calls of all built-in tools together, what goes beyond is ignored; of servers elsewhere (`mcp`) that is not said.
    https://platform.openai.com/docs/api-reference/responses/create"""
    for index, tool in enumerate(tools):
        if tool.type not in ("function", "custom"):
            by = f"tools[{index}].type"
            content.unbounded, content.unbounded_by = f"a tool of type {tool.type[:40]!r}, which the provider runs", by
            if tool.type == "code_interpreter":
                content.hosted += (of_code(tool.container, by, most),)
            else:
                ours = tool.type != "mcp"
                content.hosted += of_tool(tool.type, by, most if ours else None, together=ours)
        elif tool.name is None:
            raise BadRequest(f"Missing required parameter: 'tools[{index}].name'.", f"tools[{index}].name")
