"""A client's chat request as a `Prompt`, for a provider that speaks another dialect.

Reads the raw fields of a request that openai_request has read before, so what has a fixed type there is known to have it. What another dialect has
no way to say raises `Inexpressible` with the path of the field; other odd values `BadRequest`; nothing else is raised. Fields that nobody here knows
are left out and named, unless they make the provider fetch input or bind the form of the answer.
"""

import msgspec
from msgspec import Raw, Struct

from sluicegate.dialects.content import Inexpressible, Prompt, Shape, Tool, ToolChoice
from sluicegate.dialects.form import BadRequest, Request
from sluicegate.dialects.openai_chat_conversation import NOTHING, mark, read_messages
from sluicegate.dialects.openai_request import ABSENT, fetches, named


class _Definition(Struct):
    name: str
    description: str | None = None
    parameters: Raw = NOTHING
    strict: bool | None = None
    cache_control: Raw = NOTHING


class _Tool(Struct):
    type: str
    function: _Definition | None = None
    cache_control: Raw = NOTHING


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
    schema: Raw = NOTHING
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

_decode_settings = msgspec.json.Decoder(_Settings).decode
_encode = msgspec.json.Encoder().encode


def read_prompt(request: Request) -> Prompt:
    """What a client's request says. Raises Inexpressible, BadRequest."""
    fields = request.fields
    if request.choices > 1:
        raise Inexpressible("No deployment of this model gives several answers to one request.", "n")
    left_out = _left_out(fields)
    try:
        messages = read_messages(fields["messages"])
        settings = _decode_settings(_encode({name: raw for name, raw in fields.items() if name in _READ}))
    except msgspec.ValidationError as error:
        raise named(error) from None
    except RecursionError:
        raise BadRequest("The body is nested too deeply.") from None
    prompt = Prompt(
        messages,
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


def _tools(prompt: Prompt, settings: _Settings) -> None:
    """Tools and which of them may be called; else the older functions, of which one is called at a time."""
    if settings.tools:
        prompt.tools = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(settings.tools)]
        _choose(prompt, settings.tool_choice, "tool_choice")
    elif settings.functions:
        prompt.tools = [_defined(function, NOTHING) for function in settings.functions]
        prompt.parallel_tool_calls = False
        choice = settings.function_call
        _choose(prompt, _Choice("function", function=choice) if isinstance(choice, _Named) else choice, "function_call")


def _tool(tool: _Tool, path: str) -> Tool:
    if tool.type != "function" or tool.function is None:
        raise Inexpressible(f"No deployment of this model takes tools of type {tool.type[:40]!r}.", f"{path}.type")
    return _defined(tool.function, tool.cache_control)


def _defined(function: _Definition, cache: Raw) -> Tool:
    schema = function.parameters if bytes(function.parameters) not in (b"", b"null") else _NO_ARGUMENTS
    return Tool(function.name, function.description or "", schema, function.strict, mark(cache) or mark(function.cache_control))


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
