"""The messages of the OpenAI chat dialect: what the provider will read of them.

Everything in a message that a chat template could put before the model is counted as text, wherever it is. A message of the usual shape, in which
every field is known, counts by its texts, and its calls with the JSON that frames them. Of any other message, what is not content counts as the JSON
that it came in. Images are no text. Fails with BadRequest, naming the field.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from sluicegate.core.hosted import Hosted
from sluicegate.dialects.form import BadRequest

_decode_list = msgspec.json.Decoder(list[Raw]).decode
_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_encode = msgspec.json.Encoder().encode


# -- messages of the usual shape: every field is known, and each that is not of a few fixed values is counted ------------------------------


class _Function(Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    name: str | None = None
    arguments: str | None = None


class _Custom(Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    name: str | None = None
    input: str | None = None


class _Call(Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    id: str | None = None
    type: Literal["function", "custom"] | None = None
    index: int | None = None  # of clients that give back what they have streamed
    function: _Function | None = None
    custom: _Custom | None = None


class _Url(Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    url: str
    detail: Literal["auto", "low", "high", "original"] | None = None


class _Part(Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    type: Literal["text", "image_url", "refusal"]
    text: str | None = None
    refusal: str | None = None
    image_url: _Url | str | None = None


class Message(Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[_Part] | None = None
    name: str | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    function_call: _Function | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    audio: None = None
    annotations: Annotated[list[Raw], Meta(max_length=0)] | None = None


# -- messages of any other shape: typed where a wrong type would hide something -----------------------------------------------------------


class _AnyUrl(Struct, gc=False):
    url: str


class AnyPart(Struct, gc=False):
    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: _AnyUrl | str | None = None


class AnyMessage(Struct, gc=False):
    role: str
    content: str | list[AnyPart] | None = None
    name: str | None = None
    tool_calls: list[Raw] | None = None
    audio: dict[str, Raw] | None = None  # an earlier answer, by its id


# -- counting -----------------------------------------------------------------------------------------------------------------------------------


class Content(Struct, gc=False):
    """What the provider will read: texts, images, and why that cannot be known."""

    texts: list[str] = []
    images: int = 0
    more: bool = False  # some message has more than a role, content and calls
    hosted: tuple[Hosted, ...] = ()  # tools that the provider is to run
    unbounded: str = ""
    unbounded_by: str = "messages"  # the field of the body

    def add(self, message: Message, index: int) -> None:
        """A message of the usual shape."""
        content = message.content
        if isinstance(content, str):
            self.texts.append(content)
        elif content is not None:
            self._parts(content, index)
        if message.tool_calls or message.function_call:
            self.texts += [_encode(calls).decode() for calls in (message.tool_calls, message.function_call) if calls]
        if message.name or message.tool_call_id or message.refusal or message.reasoning or message.reasoning_content:
            more = (message.name, message.refusal, message.reasoning_content, message.reasoning, message.tool_call_id)
            self.texts += [text for text in more if text]
            self.more = True

    def add_any(self, message: AnyMessage, fields: dict[str, Any], index: int) -> None:
        """A message of another shape: its content by its texts, the rest as JSON without the images."""
        content = message.content
        if isinstance(content, str):
            self.texts.append(content)
            del fields["content"]
        elif content is not None:
            self._parts(content, index)
            fields["content"] = [_beside(part, raw) for part, raw in zip(content, _decode_list(fields["content"]), strict=True)]
        if message.audio is not None:
            self.unbounded = "an earlier audio answer"
        self.more = True
        self.texts.append(_encode(fields).decode())

    def _parts(self, parts: Sequence[_Part | AnyPart], index: int) -> None:
        texts = [text for i, part in enumerate(parts) if (text := self._part(part, index, i)) is not None]
        if texts:
            self.texts.append("\n".join(texts))  # as templates put them together

    def _part(self, part: _Part | AnyPart, index: int, i: int) -> str | None:
        """The text of a part; None for an image without any."""
        kind = part.type
        if kind == "text":
            if part.text is None:
                path = f"messages[{index}].content[{i}].text"
                raise BadRequest(f"Invalid value for '{path}'. A part of type 'text' needs a string.", path)
        elif kind == "image_url":
            if part.image_url is None:
                path = f"messages[{index}].content[{i}].image_url"
                raise BadRequest(f"Missing required parameter: '{path}'.", path)
            self.images += 1
            if part.text is None and part.refusal is None:
                return None
        elif kind != "refusal":
            self.unbounded = f"a content part of type {kind[:40]!r}"
        return (part.text or "") + (part.refusal or "")


def _beside(part: AnyPart, raw: Raw) -> dict[str, Any] | None:
    """What a part holds beside its texts and its image; None where that is unbounded anyway."""
    if part.type not in ("text", "image_url", "refusal"):
        return None
    fields: dict[str, Any] = _decode_fields(raw)
    fields.pop("text", None)
    fields.pop("refusal", None)
    if isinstance(part.image_url, str):
        del fields["image_url"]
    elif part.image_url is not None:
        fields["image_url"] = _decode_fields(fields["image_url"])
        del fields["image_url"]["url"]
    return fields
