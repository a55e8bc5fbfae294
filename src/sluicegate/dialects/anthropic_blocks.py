"""Blocks of content in a request of the Anthropic messages dialect, as far as they are typed here: https://docs.anthropic.com/en/api/messages.

`read_block` raises msgspec.ValidationError with the path inside the block where one of a known type is not what its type says.
"""

from typing import Any

import msgspec
from msgspec import Raw, Struct

_ABSENT = Raw()


class _Block(Struct, kw_only=True, gc=False):
    cache_control: Raw = _ABSENT

    @property
    def mark(self) -> Raw | None:
        """`cache_control`, if there is any."""
        return self.cache_control if bytes(self.cache_control) not in (b"", b"null") else None


class Text(_Block, gc=False):
    text: str


class Citations(Struct, gc=False):
    enabled: bool | None = None


class Source(Struct, gc=False):
    """Where an image or a document comes from."""

    type: str
    media_type: str | None = None
    data: str | None = None
    url: str | None = None
    file_id: str | None = None
    content: str | list[Raw] | None = None


class Image(_Block, gc=False):
    source: Source


class Document(_Block, gc=False):
    source: Source
    title: str | None = None
    context: str | None = None
    citations: Citations | None = None


class SearchResult(_Block, gc=False):
    content: list[Raw]
    source: str
    title: str
    citations: Citations | None = None


class ToolUse(_Block, gc=False):
    id: str
    name: str
    input: dict[str, Raw]


class ToolResult(_Block, gc=False):
    tool_use_id: str
    content: str | list[Raw] | None = None
    is_error: bool | None = None


class Thought(_Block, gc=False):
    thinking: str
    signature: str


class Redacted(_Block, gc=False):
    data: str


class _Any(Struct, gc=False):
    type: str


Block = Text | Image | Document | SearchResult | ToolUse | ToolResult | Thought | Redacted

_BLOCKS: dict[str, Any] = {
    "text": Text,
    "image": Image,
    "document": Document,
    "search_result": SearchResult,
    "tool_use": ToolUse,
    "tool_result": ToolResult,
    "thinking": Thought,
    "redacted_thinking": Redacted,
}
_DECODE = {kind: msgspec.json.Decoder(block).decode for kind, block in _BLOCKS.items()}
# The fields of each type that are read, or that say nothing to a model.
KNOWN = {kind: frozenset(("type", "caller", "toolset_name", *block.__struct_fields__)) for kind, block in _BLOCKS.items()}

_decode_any = msgspec.json.Decoder(_Any).decode


def read_block(raw: Raw) -> tuple[str, Block | None]:
    """Its type and, if that is known here, what it says."""
    kind = _decode_any(raw).type
    decode = _DECODE.get(kind)
    return kind, decode(raw) if decode is not None else None
