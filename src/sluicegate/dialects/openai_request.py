"""The request side of the OpenAI chat dialect: `POST /v1/chat/completions` from bytes to `Request`, and to the bytes for one deployment.

Typed only where the gateway acts on a field; every other field goes upstream as the bytes it came in. What is read is read strictly, so that what
is held is what the upstream will do: a wrong type, an impossible number or a field name that differs from a known one only in case (some
upstreams would obey it) is a `BadRequest` that names the field. Choices made here:

- A cap of 0 or below, -1 included, a fraction, a string or a boolean is refused; null is absent. Of several caps the largest is held, one is sent.
- A field given twice: the last one counts, here and upstream, since only that one is sent.
- Text that the gateway does not know (an unknown field that holds a string, an object or an array) is counted as it stands.
- Only `BadRequest` is ever raised.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct

from sluicegate.dialects.form import BadRequest, Request, Target

CHOICES_MAX = 128  # OpenAI's own maximum of `n`
NUMBER_MAX = 2**53 - 1

_Count = Annotated[int, Meta(ge=1, le=NUMBER_MAX)]
_Choices = Annotated[int, Meta(ge=1, le=CHOICES_MAX)]


class _Function(Struct, gc=False):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None  # an object where a client has decoded it: llama.cpp and vLLM accept that


class _Custom(Struct, gc=False):
    name: str | None = None
    input: str | None = None


class _Call(Struct, gc=False):
    function: _Function | None = None
    custom: _Custom | None = None


class _Url(Struct, gc=False):
    url: str


class _Part(Struct, gc=False):
    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: _Url | str | None = None


class _Message(Struct, gc=False):
    role: str
    content: str | list[_Part] | None = None
    name: str | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    function_call: _Function | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    audio: dict[str, Any] | None = None  # an earlier answer, by its id


class _StrictMessage(_Message, forbid_unknown_fields=True, gc=False):
    pass


class _ToolFunction(Struct, gc=False):
    name: str


class _Tool(Struct, gc=False):
    type: str
    function: _ToolFunction | None = None


class _StreamOptions(Struct, gc=False):
    include_usage: bool | None = None


class _Typed(Struct, gc=False):
    type: str


class _Prediction(Struct, gc=False):
    content: str | list[_Part] = ""


class _Thinking(Struct, gc=False):
    budget_tokens: _Count | None = None  # Anthropic's field, taken over by several vendors
    max_tokens: _Count | None = None  # OpenRouter's `reasoning.max_tokens`


class _Settings(Struct, gc=False):
    """Everything but the messages."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: _Count | None = None
    max_completion_tokens: _Count | None = None
    max_output_tokens: _Count | None = None
    max_new_tokens: _Count | None = None
    n_predict: _Count | None = None
    n: _Choices | None = None
    best_of: _Choices | None = None
    n_cmpl: _Choices | None = None
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
    thinking: _Thinking | bool | str | None = None
    reasoning: _Thinking | bool | str | None = None


class _Loose(_Settings, kw_only=True, gc=False):
    messages: Annotated[list[_Message], Meta(min_length=1)]


class _Strict(_Settings, kw_only=True, gc=False):
    messages: Annotated[list[_StrictMessage], Meta(min_length=1)]


# Names under which some upstream reads a cap, or a number of answers. llama.cpp lets `n_predict` win over `max_tokens`, and takes `n_cmpl` for `n`.
_CAPS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens", "n_predict")
_ACTED_ON = frozenset(_Strict.__struct_fields__)
# Known fields that put no text before the model (or whose text is counted by name below).
_KNOWN = _ACTED_ON | {
    "audio", "function_call", "metadata", "min_p", "prompt_cache_key", "prompt_cache_retention", "provider", "reasoning_effort", "repetition_penalty",
    "safety_identifier", "service_tier", "store", "tool_choice", "top_k", "transforms", "usage", "verbosity",
}  # fmt: skip
_ELSEWHERE = ("web_search_options", "plugins")  # the provider fetches input of its own

_decode_strict = msgspec.json.Decoder(_Strict).decode
_decode_loose = msgspec.json.Decoder(_Loose).decode
_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_encode = msgspec.json.Encoder().encode
_MESSAGE_FIELDS = frozenset(_Message.__struct_fields__)
_NULL = Raw(b"null")
_USAGE_ONLY = Raw(b'{"include_usage":true}')


def read_request(body: bytes) -> Request:
    """A client's request. Raises BadRequest, and nothing else, naming the field."""
    try:
        if not body.isascii():
            body.decode()
        fields = _decode_fields(body)
        try:
            typed: _Strict | _Loose = _decode_strict(body)
            extra = []
        except msgspec.ValidationError as error:
            if not str(error).startswith("Object contains unknown field"):
                raise
            typed = _decode_loose(body)
            extra = _unknown_in_messages(fields["messages"])
    except msgspec.ValidationError as error:
        raise _named(error) from None
    except UnicodeDecodeError:
        raise BadRequest("The body is not valid UTF-8.") from None
    except msgspec.DecodeError as error:
        raise BadRequest(f"The body is not valid JSON: {error}.") from None
    except RecursionError:
        raise BadRequest("The body is nested too deeply.") from None
    counted = _Counted(extra)
    for index, message in enumerate(typed.messages):
        counted.add(message, index)
    if not fields.keys() <= _KNOWN:
        counted.unknown_fields(fields)
    if typed.tools or typed.functions or typed.response_format:
        counted.schemas(typed, fields)
    caps = [cap for cap in (typed.max_tokens, typed.max_completion_tokens, typed.max_output_tokens, typed.max_new_tokens, typed.n_predict) if cap]
    stream = typed.stream is True
    return Request(
        model=typed.model,
        stream=stream,
        include_usage=stream and typed.stream_options is not None and typed.stream_options.include_usage is True,
        choices=max(typed.n or 1, typed.best_of or 1, typed.n_cmpl or 1),
        cap=max(caps) if caps else None,
        thinking=max(_budget(typed.thinking), _budget(typed.reasoning)),
        texts=counted.texts,
        messages=len(typed.messages),
        images=counted.images,
        prediction=_prediction(typed.prediction),
        unbounded=counted.unbounded,
        fields=fields,
    )


def write_request(request: Request, target: Target) -> bytes:
    """The request as one deployment gets it: its model name, one cap field, usage asked for in a stream; the rest as it came."""
    fields: dict[str, Any] = dict(request.fields)
    fields["model"] = target.model
    cap = request.cap if target.cap is None else target.cap
    for name in _CAPS:
        if name in fields and name != target.cap_field:
            del fields[name]
    if cap is not None:
        fields[target.cap_field] = cap
    if request.stream and target.stream_usage and not request.include_usage:
        options = fields.get("stream_options")
        if options is None or options == _NULL:
            fields["stream_options"] = _USAGE_ONLY
        else:
            fields["stream_options"] = {**_decode_fields(options), "include_usage": True}
    return _encode(fields)


class _Counted:
    """What the provider will read: texts, images, and why that cannot be known."""

    __slots__ = ("images", "texts", "unbounded")

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts
        self.images = 0
        self.unbounded = ""

    def add(self, message: _Message, index: int) -> None:
        content = message.content
        if isinstance(content, str):
            self.texts.append(content)
        elif content is not None:
            for i, part in enumerate(content):
                self._part(part, f"messages[{index}].content[{i}]")
        if message.tool_calls is not None or message.function_call is not None:
            self._calls(message)
        for text in (message.name, message.refusal, message.reasoning_content, message.reasoning):
            if text:
                self.texts.append(text)
        if message.audio is not None:
            self.unbounded = "an earlier audio answer"

    def _part(self, part: _Part, path: str) -> None:
        if part.type == "text":
            if part.text is None:
                raise BadRequest(f"Invalid value for '{path}.text'. A part of type 'text' needs a string.", f"{path}.text")
            self.texts.append(part.text)
        elif part.type == "image_url":
            if part.image_url is None:
                raise BadRequest(f"Missing required parameter: '{path}.image_url'.", f"{path}.image_url")
            self.images += 1
        elif part.type == "refusal":
            self.texts.append(part.refusal or "")
        else:
            self.unbounded = f"a content part of type {part.type[:40]!r}"

    def _calls(self, message: _Message) -> None:
        for call in message.tool_calls or ():
            if call.custom is not None:
                self.texts.append((call.custom.name or "") + (call.custom.input or ""))
            if call.function is not None:
                self.texts.append(_called(call.function))
        if message.function_call is not None:
            self.texts.append(_called(message.function_call))

    def unknown_fields(self, fields: dict[str, Raw]) -> None:
        for name in fields.keys() - _KNOWN:
            raw = bytes(fields[name])
            if name.casefold() in _ACTED_ON:
                raise BadRequest(f"Unknown field {name!r}: field names are in lower case.", name)
            if raw == b"null":
                continue
            if name == "models":
                raise BadRequest("'models' is not supported: the gateway routes; ask for one 'model'.", "models")
            if name in _ELSEWHERE:
                self.unbounded = f"{name!r}"
            elif raw[:1] in (b'"', b"{", b"["):
                self.texts.append(raw.decode())

    def schemas(self, typed: _Settings, fields: dict[str, Raw]) -> None:
        for index, tool in enumerate(typed.tools or ()):
            if tool.type == "function" and tool.function is None:
                raise BadRequest(f"Missing required parameter: 'tools[{index}].function'.", f"tools[{index}].function")
            if tool.type not in ("function", "custom"):
                self.unbounded = f"a tool of type {tool.type[:40]!r}, which the provider runs"
        if typed.tools:
            self.texts.append(bytes(fields["tools"]).decode())
        if typed.functions:
            self.texts.append(bytes(fields["functions"]).decode())
        if typed.response_format is not None and typed.response_format.type not in ("text", "json_object"):
            self.texts.append(bytes(fields["response_format"]).decode())


def _called(function: _Function) -> str:
    arguments = function.arguments
    return (function.name or "") + (arguments if isinstance(arguments, str) else _encode(arguments).decode() if arguments else "")


def _prediction(prediction: _Prediction | None) -> str:
    if prediction is None:
        return ""
    content = prediction.content
    return content if isinstance(content, str) else "".join(part.text or "" for part in content)


def _budget(thinking: _Thinking | bool | str | None) -> int:
    return max(thinking.budget_tokens or 0, thinking.max_tokens or 0) if isinstance(thinking, _Thinking) else 0


def _unknown_in_messages(messages: Raw) -> list[str]:
    """The texts in fields of messages that the gateway does not know: chat templates may well put them before the model."""
    texts = []
    for message in msgspec.json.decode(messages, type=list[dict[str, Raw]]):
        for name in message.keys() - _MESSAGE_FIELDS:
            raw = bytes(message[name])
            if raw[:1] in (b'"', b"{", b"["):
                texts.append(raw.decode())
    return texts


def _named(error: msgspec.ValidationError) -> BadRequest:
    """msgspec's "Expected `int`, got `str` - at `$.max_tokens`" in the words of the API."""
    what, _, path = str(error).partition(" - at `$")
    param = path.rstrip("`").lstrip(".")
    if what.startswith("Object missing required field"):
        field = what.split("`")[1]
        param = f"{param}.{field}" if param else field
        return BadRequest(f"Missing required parameter: '{param}'.", param)
    what = what.replace("`", "'")
    if not param:
        return BadRequest(f"The body must be a JSON object. {what}.")
    return BadRequest(f"Invalid value for '{param}'. {what}.", param)
