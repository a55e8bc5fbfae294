"""The input items of the OpenAI Responses dialect: what the provider will read of them.

Messages, calls, their results and reasoning that comes with the request count as text, whatever else is in them as the JSON that it came in;
images are no text. Encrypted reasoning counts as the text that it is: it is longer than what it hides. Everything else is content that is not in
the request (a reference, a file, reasoning that the provider keeps, what a tool of its own found) and makes the input unbounded. Fails with
BadRequest, naming the field.
"""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct

from sluicegate.dialects.form import BadRequest
from sluicegate.dialects.openai_messages import Content
from sluicegate.dialects.openai_request import named

OURS = "sluicegate:"  # what `encrypted_content` begins with where it is no provider's: see openai_responses_content


class _Head(Struct, gc=False):
    type: str | None = None
    role: Any = None
    id: str | None = None


class _Part(Struct, gc=False):
    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    file_id: str | None = None


class _Message(Struct, gc=False):
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[_Part]


class _FunctionCall(Struct, gc=False):
    call_id: str
    name: str
    arguments: str


class _CustomCall(Struct, gc=False):
    call_id: str
    name: str
    input: str


class _Output(Struct, gc=False):
    call_id: str
    output: str | list[_Part]


class _Reasoning(Struct, gc=False):
    summary: list[_Part] | None = None
    content: list[_Part] | None = None
    encrypted_content: str | None = None


_decode_head = msgspec.json.Decoder(_Head).decode
_decode_message = msgspec.json.Decoder(_Message).decode
_decode_output = msgspec.json.Decoder(_Output).decode
_decode_reasoning = msgspec.json.Decoder(_Reasoning).decode
_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_list = msgspec.json.Decoder(list[Raw]).decode
_encode = msgspec.json.Encoder().encode
_CALLS = {
    "function_call": msgspec.json.Decoder(_FunctionCall).decode,
    "custom_tool_call": msgspec.json.Decoder(_CustomCall).decode,
}
_OUTPUTS = frozenset(("function_call_output", "custom_tool_call_output"))
TEXTS = frozenset(("input_text", "output_text", "text", "summary_text", "reasoning_text"))
# Fields that put no text before the model, and those that are counted by name.
_OF_MESSAGE = frozenset(("type", "role", "content", "id", "status", "phase"))
_OF_PART = frozenset(("type", "text", "refusal", "image_url", "file_id", "detail", "logprobs", "prompt_cache_breakpoint"))
_OF_OUTPUT = frozenset(("type", "output", "id", "status"))
_EMPTY = frozenset((b"null", b"[]", b'""'))


def kind_of(item: Raw) -> str:
    """The type of an item; messages and references may leave it out."""
    head = _decode_head(item)
    if head.type is not None:
        return head.type
    return "message" if head.role is not None or head.id is None else "item_reference"


def add_items(content: Content, items: Sequence[Raw]) -> None:
    """Counts all items of a request. Raises BadRequest."""
    for index, item in enumerate(items):
        path = f"input[{index}]"
        try:
            _add(content, item, path)
        except msgspec.ValidationError as error:
            raise named(error, path) from None


def _add(content: Content, item: Raw, path: str) -> None:
    kind = kind_of(item)
    if kind == "message":
        message = _decode_message(item)
        if isinstance(message.content, str):
            content.texts.append(message.content)
        _beside(content, item, _OF_MESSAGE)
        if not isinstance(message.content, str):
            _parts(content, message.content, item, path, "content")
    elif kind in _CALLS:
        _CALLS[kind](item)
        content.texts.append(bytes(item).decode())
    elif kind in _OUTPUTS:
        output = _decode_output(item)
        if isinstance(output.output, str):
            content.texts.append(output.output)
        _beside(content, item, _OF_OUTPUT)
        if not isinstance(output.output, str):
            _parts(content, output.output, item, path, "output")
    elif kind == "reasoning":
        _reasoning(content, item, path)
    else:
        _unbounded(content, f"an input item of type {kind[:40]!r}", f"{path}.type")


def _reasoning(content: Content, item: Raw, path: str) -> None:
    reasoning = _decode_reasoning(item)
    for name in ("summary", "content"):
        parts = getattr(reasoning, name)
        if parts:
            _parts(content, parts, item, path, name)
    if reasoning.encrypted_content:
        content.texts.append(reasoning.encrypted_content)
    elif not reasoning.content:
        _unbounded(content, "reasoning that the provider has kept", path)


def _parts(content: Content, parts: Sequence[_Part], item: Raw, path: str, field: str) -> None:
    texts = []
    for index, part in enumerate(parts):
        here = f"{path}.{field}[{index}]"
        if part.type in TEXTS:
            if part.text is None:
                raise BadRequest(f"Invalid value for '{here}.text'. A part of type {part.type!r} needs a string.", f"{here}.text")
        elif part.type == "input_image" and part.file_id is None:
            if part.image_url is None:
                raise BadRequest(f"Missing required parameter: '{here}.image_url'.", f"{here}.image_url")
            content.images += 1
        elif part.type != "refusal":
            _unbounded(content, f"a content part of type {part.type[:40]!r}" + (" by its id" if part.file_id else ""), here)
            continue
        texts += [text for text in (part.text, part.refusal) if text]
    if texts:
        content.texts.append("\n".join(texts))
    for part, raw in zip(parts, _decode_list(_decode_fields(item)[field]), strict=True):
        if part.type in TEXTS or part.type in ("input_image", "refusal"):
            _beside(content, raw, _OF_PART)


def _beside(content: Content, raw: Raw, known: frozenset[str]) -> None:
    """What an object holds beside the known fields, as JSON."""
    fields = _decode_fields(raw)
    if not fields.keys() <= known:
        rest = {name: value for name, value in fields.items() if name not in known and bytes(value) not in _EMPTY}
        if rest:
            content.texts.append(_encode(rest).decode())


def _unbounded(content: Content, why: str, by: str) -> None:
    content.unbounded, content.unbounded_by = why, by


def without_reasoning(items: Raw, *, foreign: bool) -> list[Raw]:
    """The items without the reasoning that a provider could not read: what is marked as ours, and all of it where it is another model's."""
    return [item for item in _decode_list(items) if kind_of(item) != "reasoning" or not (foreign or _is_ours(item))]


def _is_ours(item: Raw) -> bool:
    return (_decode_reasoning(item).encrypted_content or "").startswith(OURS)
