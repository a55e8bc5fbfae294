"""The request side of the OpenAI chat dialect: `POST /v1/chat/completions` from bytes to `Request`, and to the bytes for one deployment.

Typed only where the gateway acts on a field; every other field goes upstream as the bytes it came in. What is read is read strictly, so that what
is held is what the upstream will do: a wrong type, an impossible number or a field name that differs from a known one only in case (some
upstreams would obey it) is a `BadRequest` that names the field. Choices made here:

- A cap of 0 or below, -1 included, a fraction, a string or a boolean is refused; null is absent. Of several caps, under whichever names, the smallest
  holds, and one is sent: what one of them allows, another forbids.
- A field given twice: the last one counts, here and upstream, since only that one is sent. A name that is given twice
  further in is refused: both would be sent.
- All that a chat template could put before the model counts as text. A message of the usual shape counts by its texts, calls with the JSON that
  frames them; of any other, what is not content counts as the JSON that it came in. Unknown fields and overlong settings count as they stand.
- What the provider fetches or keeps for itself (searches, stored prompts, earlier answers, files) makes the input unbounded. Such fields are known by
  the words in their names, so that one which no list has yet is caught; a boolean of another name asks for no input.
- What is billed and not shown (a prediction that was wrong, sound, the answers that were not the best) makes the output one that cannot be metered.
- `background` is refused: an answer that nobody waits for could not be settled.
- Half a surrogate pair, which Python's json writes, is read and sent as U+FFFD: few upstreams would take it.
- Only `BadRequest` is ever raised.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from sluicegate.dialects.form import BadRequest, Request, Target
from sluicegate.dialects.hosted import of_field, of_tool
from sluicegate.dialects.openai_messages import AnyMessage, AnyPart, Content, Message
from sluicegate.dialects.repeats import refuse_repeats, refuse_repeats_in
from sluicegate.dialects.showing import shows_all
from sluicegate.dialects.tariffs import PRICED, tariff

T = TypeVar("T")

CHOICES_MAX = 128  # OpenAI's own maximum of `n`
NUMBER_MAX = 2**53 - 1

Count = Annotated[int, Meta(ge=1, le=NUMBER_MAX)]
Choices = Annotated[int, Meta(ge=1, le=CHOICES_MAX)]


class _ToolFunction(Struct, gc=False):
    name: str


class _Tool(Struct, gc=False):
    type: str
    function: _ToolFunction | None = None


class StreamOptions(Struct, gc=False):
    include_usage: bool | None = None


class _Typed(Struct, gc=False):
    type: str


class _Prediction(Struct, gc=False):
    content: str | list[AnyPart] = ""


class Thinking(Struct, gc=False):
    budget_tokens: Count | None = None  # Anthropic's field, taken over by several vendors
    max_tokens: Count | None = None  # OpenRouter's `reasoning.max_tokens`


class _Settings(Struct, gc=False):
    """Everything but the messages."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    max_output_tokens: Count | None = None
    max_new_tokens: Count | None = None
    n_predict: Count | None = None
    n: Choices | None = None
    best_of: Choices | None = None
    n_cmpl: Choices | None = None
    stop: str | list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    logit_bias: dict[str, float] | None = None
    user: str | None = None
    parallel_tool_calls: bool | None = None
    modalities: list[str] | None = None
    tools: list[_Tool] | None = None
    functions: list[_ToolFunction] | None = None
    response_format: _Typed | None = None
    prediction: _Prediction | None = None
    thinking: Thinking | bool | str | None = None
    reasoning: Thinking | bool | str | None = None


class _Usual(_Settings, kw_only=True, gc=False):
    messages: Annotated[list[Message], Meta(min_length=1)]


class Body(_Settings, kw_only=True, gc=False):
    """The body, as far as the gateway acts on it."""

    messages: Annotated[list[AnyMessage], Meta(min_length=1)]


# Names under which some upstream reads a cap, or a number of answers. llama.cpp lets `n_predict` win over `max_tokens`, and takes `n_cmpl` for `n`.
CAPS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens", "n_predict")
_MULTIPLIED = frozenset((*CAPS, "n", "best_of", "n_cmpl"))
_RARELY_COUNTED = _MULTIPLIED - {"max_tokens"}
_ACTED_ON = frozenset((*_Usual.__struct_fields__, "background"))
# Settings that some template puts before the model: text if longer than any usual one.
RENDERED = frozenset(("function_call", "reasoning", "reasoning_effort", "thinking", "tool_choice", "verbosity"))
SETTING_BYTES = 64
# Fields that put no text before the model (or whose text is counted by name below).
_SILENT = frozenset(_Usual.__struct_fields__) - RENDERED | {
    "audio", "metadata", "min_p", "prompt_cache_key", "prompt_cache_retention", "provider", "repetition_penalty", "safety_identifier", "service_tier",
    "prompt_cache_options", "store", "top_k", "transforms", "usage",
}  # fmt: skip
# Fields with which a request asks for nothing but an answer in text.
_PLAIN = frozenset((
    *CAPS, "frequency_penalty", "messages", "model", "n", "presence_penalty", "seed", "stop", "stream", "stream_options", "temperature", "top_p",
    "user",
))  # fmt: skip
# Words in the names of fields by which the provider gets input of its own, without separators; and whole names.
_FETCHING = (
    "agentid", "assistantid", "cachedcontent", "connector", "conversation", "datasource", "fileid", "grounding", "knowledge", "mcp", "plugin",
    "previous", "promptid", "retriev", "search", "sessionid", "threadid", "vectorstore",
)  # fmt: skip
_FETCHING_NAMES = frozenset(("chattemplate", "container", "files", "memory", "preset", "rag"))
ABSENT = frozenset((b"null", b"false", b'""', b"[]"))  # an empty object asks for the defaults

_decode_usual = msgspec.json.Decoder(_Usual).decode
_decode_any = msgspec.json.Decoder(Body).decode
_decode_usual_message = msgspec.json.Decoder(Message).decode
_decode_list = msgspec.json.Decoder(list[Raw]).decode
_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_items = msgspec.json.Decoder(list[dict[str, Raw]]).decode
_encode = msgspec.json.Encoder().encode
_NULL = Raw(b"null")
_USAGE_ONLY = Raw(b'{"include_usage":true}')
# A pair of surrogates, or half of one (the second group), after an even number of backslashes.
_SURROGATES = re.compile(rb"(?<!\\)((?:\\\\)*)\\u(?:[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|([dD][89a-fA-F][0-9a-fA-F]{2}))")


def read_request(body: bytes) -> Request:
    """A client's request. Raises BadRequest, and nothing else, naming the field."""
    typed, fields, content = strictly(_read, body)
    stream, cap, cap_by, choices = typed.stream is True, typed.max_tokens, "max_tokens", 1
    if not _RARELY_COUNTED.isdisjoint(fields):
        cap, cap_by = cap_of(typed)
        choices = max(typed.n or 1, typed.best_of or 1, typed.n_cmpl or 1)
    request = Request(  # by position: on the path of every request, and names cost as much as all values together
        typed.model,
        stream,
        stream and typed.stream_options is not None and typed.stream_options.include_usage is True,
        choices,
        cap,
        0,
        content.texts,
        len(typed.messages),
        content.images,
        "",
        content.unbounded,
        fields,
        cap_by,
        content.unbounded_by,
        0,
        (),
        content.more,
    )
    if content.unbounded:
        request.hosted = content.hosted
    if not _PLAIN.issuperset(fields):
        _special(request, typed)
    return request


def cap_of(typed: Any, own: str = CAPS[0]) -> tuple[int | None, str]:
    """The smallest of the caps that are given, and the field that says it; of equals the dialect's own."""
    cap, by = None, own
    for name in CAPS:
        given = getattr(typed, name)
        if given and (cap is None or given < cap or (given == cap and name == own)):
            cap, by = given, name
    return cap, by


def _special(request: Request, typed: _Usual | Body) -> None:
    """What some requests ask for beside an answer in text."""
    request.thinking = max(budget_of(typed.thinking), budget_of(typed.reasoning))
    request.prediction = _prediction(typed.prediction)
    request.own_prompts = (1 if typed.tools or typed.functions else 0) + (1 if typed.response_format is not None else 0)
    hidden = typed.prediction is not None or (typed.best_of or 1) > (typed.n or 1) or "audio" in (typed.modalities or ())
    request.shown = not hidden and shows_all(request.fields)
    request.tariff = tariff(request.fields)


def write_request(request: Request, target: Target) -> bytes:
    """The request as one deployment gets it: its model name, one cap field, usage asked for in a stream; the rest as it came.

    Raises BadRequest where that cannot be written.
    """
    fields: dict[str, Any] = dict(request.fields)
    fields["model"] = target.model
    if target.rejects or target.renames:
        as_known(fields, target, request.more)
    cap = request.cap if target.cap is None else target.cap
    for name in CAPS:
        if name in fields and name != target.cap_field:
            del fields[name]
    if cap is not None:
        fields[target.cap_field] = cap
    if request.stream and target.stream_usage and not request.include_usage:
        options = fields.get("stream_options")
        if options is None or options == _NULL:
            fields["stream_options"] = _USAGE_ONLY
        else:
            try:
                fields["stream_options"] = {**_decode_fields(options), "include_usage": True}
            except RecursionError:  # it could just be read, a few calls further up
                raise BadRequest("The body is nested too deeply.", "stream_options") from None
    return _encode(fields)


def as_known(fields: dict[str, Any], target: Target, more: bool = True) -> None:
    """Takes out the fields that a provider answers with an error, naming them in `target.left_out`, and gives others the name by which it knows them.

    `messages[].name` is a field of each message. more: there may be messages with other fields than those that every message may have.
    """
    plain, inner = _apart(target.rejects)
    for name in plain:
        if fields.pop(name, _NULL) not in (None, _NULL):
            target.left_out.append(name)
    for outer, names in inner:
        if more and outer in fields:
            fields[outer], found = _without(fields[outer], names)
            target.left_out.extend(f"{outer}[].{name}" for name in found)
    for name, theirs in target.renames:
        if name in fields:
            fields[theirs] = fields.pop(name)


@lru_cache(maxsize=64)
def _apart(rejects: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[tuple[str, tuple[tuple[str, bytes], ...]], ...]]:
    """Fields of the body; and by the list whose items they are of, fields of items."""
    inner: dict[str, list[tuple[str, bytes]]] = {}
    for name in rejects:
        outer, within, field = name.partition("[].")
        if within:
            inner.setdefault(outer, []).append((field, field.encode()))
    return tuple(name for name in rejects if "[]." not in name), tuple((outer, tuple(names)) for outer, names in inner.items())


def _without(items: Any, names: tuple[tuple[str, bytes], ...]) -> tuple[Any, list[str]]:
    """A list of objects without fields of these names, and which of them it had. As bytes it is looked into only if a name stands somewhere in it."""
    if isinstance(items, Raw):
        data = bytes(items)
        if not [name for name, written in names if written in data]:
            return items, []
        try:
            items = _decode_items(items)
        except RecursionError:  # as above
            raise BadRequest("The body is nested too deeply.", "messages") from None
    left_out = {name for name, _ in names}
    found = [name for name, _ in names if any(name in item for item in items)]
    return [{field: value for field, value in item.items() if field not in left_out} for item in items], found


def strictly(read: Callable[[bytes], T], body: bytes) -> T:
    """What `read` makes of a body. Raises BadRequest, and nothing else, naming the field."""
    try:
        if not body.isascii():
            body.decode()
        return read(body)
    except msgspec.ValidationError as error:
        raise named(error) from None
    except UnicodeDecodeError:
        raise BadRequest("The body is not valid UTF-8.") from None
    except msgspec.DecodeError as error:
        mended = _SURROGATES.sub(_mend, body)
        if mended != body:
            return strictly(read, mended)
        raise BadRequest(f"The body is not valid JSON: {error}.") from None
    except RecursionError:
        raise BadRequest("The body is nested too deeply.") from None


def _read(body: bytes) -> tuple[_Usual | Body, dict[str, Raw], Content]:
    """The typed body, its fields as they came, and what the provider will read of it."""
    fields = _decode_fields(body)
    content = Content()
    typed: _Usual | Body
    try:
        typed = usual = _decode_usual(body)
    except msgspec.ValidationError:
        typed = _decode_any(body)  # names what is wrong, if anything is
        for index, (raw, message) in enumerate(zip(_decode_list(fields["messages"]), typed.messages, strict=True)):
            try:
                content.add(_decode_usual_message(raw), index)
            except msgspec.ValidationError:
                content.add_any(message, _decode_fields(raw), index)
        refuse_repeats_in(bytes(fields["messages"]), "messages")
    else:
        for index, each in enumerate(usual.messages):
            content.add(each, index)
        refuse_repeats_in(bytes(fields["messages"]), "messages", _encode(usual.messages))
    if not _PLAIN.issuperset(fields):
        refuse_repeats(fields, _PLAIN)
        if not _SILENT.issuperset(fields):
            more_fields(content, fields, _SILENT, _ACTED_ON)
        if typed.tools or typed.functions or typed.response_format:
            _schemas(content, typed, fields)
    return typed, fields, content


def _mend(surrogates: "re.Match[bytes]") -> bytes:
    return surrogates[1] + rb"\ufffd" if surrogates[2] else surrogates[0]


def more_fields(content: Content, fields: dict[str, Raw], silent: frozenset[str], acted_on: frozenset[str]) -> None:
    """Fields of a body that may hold text, or make the provider fetch some: all but the silent ones."""
    for name in fields.keys() - silent:
        raw = bytes(fields[name])
        if name not in acted_on and name.casefold() in acted_on:
            raise BadRequest(f"Unknown field {name!r}: field names are in lower case.", name)
        if raw in ABSENT:
            continue
        if name == "background":
            raise BadRequest("'background' is not supported: the answer to a request is what settles it.", name)
        if name == "models":
            raise BadRequest("'models' is not supported: the gateway routes; ask for one 'model'.", name)
        if name == "extra_body":
            _nested(content, raw)
        if fetches(name) or (name == "prompt" and raw.startswith(b"{")):
            content.unbounded, content.unbounded_by = f"{name[:40]!r}, by which the provider gets input of its own", name[:100]
            content.hosted += of_field(name)
        if raw[:1] in (b'"', b"{", b"[") and (name not in RENDERED or len(raw) > SETTING_BYTES):
            content.texts.append(raw.decode())


def _nested(content: Content, raw: bytes) -> None:
    """Fields that an upstream may read as if they were not nested."""
    values = [msgspec.json.decode(raw)]
    while values:
        value = values.pop()
        if isinstance(value, list):
            values += value
        elif isinstance(value, dict):
            values += value.values()
            for name, inner in value.items():
                if name.casefold() in _MULTIPLIED or name.casefold() in PRICED:
                    raise BadRequest(f"{name!r} is not read inside 'extra_body': it belongs in the body itself.", "extra_body")
                if inner and fetches(name):
                    content.unbounded = f"{name[:40]!r}, by which the provider gets input of its own"
                    content.unbounded_by = "extra_body"
                    content.hosted += of_field(name)


def _schemas(content: Content, typed: _Settings, fields: dict[str, Raw]) -> None:
    for index, tool in enumerate(typed.tools or ()):
        if tool.type == "function" and tool.function is None:
            raise BadRequest(f"Missing required parameter: 'tools[{index}].function'.", f"tools[{index}].function")
        if tool.type not in ("function", "custom"):
            content.unbounded, content.unbounded_by = f"a tool of type {tool.type[:40]!r}, which the provider runs", f"tools[{index}].type"
            content.hosted += of_tool(tool.type, content.unbounded_by, told=None)
    if typed.tools:
        content.texts.append(bytes(fields["tools"]).decode())
    if typed.functions:
        content.texts.append(bytes(fields["functions"]).decode())
    if typed.response_format is not None:
        raw = bytes(fields["response_format"])
        if typed.response_format.type not in ("text", "json_object") or len(raw) > SETTING_BYTES:
            content.texts.append(raw.decode())


def fetches(name: str) -> bool:
    """Whether a field of this name makes the provider get input of its own, or make text of what it gets."""
    plain = name.casefold().replace("_", "").replace("-", "")
    return plain in _FETCHING_NAMES or (any(word in plain for word in _FETCHING) and "beamsearch" not in plain)


def _prediction(prediction: _Prediction | None) -> str:
    if prediction is None:
        return ""
    content = prediction.content
    return content if isinstance(content, str) else "".join(part.text or "" for part in content)


def budget_of(thinking: Thinking | bool | str | None) -> int:
    return max(thinking.budget_tokens or 0, thinking.max_tokens or 0) if isinstance(thinking, Thinking) else 0


def named(error: msgspec.ValidationError, inside: str = "") -> BadRequest:
    """msgspec's "Expected `int`, got `str` - at `$.max_tokens`" in the words of the API. inside: the path of what was decoded."""
    what, _, path = str(error).partition(" - at `$")
    param = (inside + path.rstrip("`")).lstrip(".")
    if what.startswith("Object missing required field"):
        field = what.split("`")[1]
        param = f"{param}.{field}" if param else field
        return BadRequest(f"Missing required parameter: '{param}'.", param)
    what = what.replace("`", "'")
    if not param:
        return BadRequest(f"The body must be a JSON object. {what}.")
    return BadRequest(f"Invalid value for '{param}'. {what}.", param)
