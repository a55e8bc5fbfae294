"""The request side of the Anthropic messages dialect: `POST /v1/messages` from bytes to `Request`, and to the bytes for one deployment.

As strict as openai_request, and with the same means: what is held is what the upstream will do. Documented choices:

- `max_tokens` is required and at least 1. Fields by which upstreams of other dialects read a cap or a number of answers are refused: some servers
  obey them here too.
- What bills beyond `max_tokens`, or at another price than the deployment's, is refused: compaction, fallbacks to other models, an advisor, fast mode,
  inference that is bound to a place. No hold would cover it.
- A conversation that the provider keeps (`thread`) is refused with the code at which Anthropic's own client goes on without it, sending all of it.
- An image counts as an image however it comes: the provider scales it down to a known maximum. A document counts by its text if that is in the
  request, else (PDF, URL, file id, or cut up for citations) the input cannot be bounded; nor can it with tools that the provider runs, and with any
  block or tool of a type that is not known here.
- The proofs of thinking (`signature`, `data`) count as text: what a model thought is read again from them.
- The provider tells the model in words of its own how to use tools, or the shape of the answer: `Request.own_prompts` says how many such texts there
  may be.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from sluicegate.dialects.anthropic_blocks import (
    KNOWN,
    Citations,
    Document,
    Image,
    Redacted,
    SearchResult,
    Source,
    Text,
    Thought,
    ToolResult,
    ToolUse,
    read_block,
)
from sluicegate.dialects.anthropic_thinking import without_thinking
from sluicegate.dialects.form import BadRequest, Request, Target
from sluicegate.dialects.hosted import LOOP, name_of, of_container, of_tool
from sluicegate.dialects.openai_messages import Content
from sluicegate.dialects.openai_request import CAPS, Count, as_known, more_fields, named, strictly
from sluicegate.dialects.repeats import refuse_repeats
from sluicegate.dialects.showing import shows_all
from sluicegate.dialects.tariffs import PRICED, tariff


class _Thinking(Struct, gc=False):
    type: str
    budget_tokens: Count | None = None


class _ToolChoice(Struct, gc=False):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class _Tool(Struct, gc=False):
    type: str | None = None
    name: str | None = None
    input_schema: dict[str, Raw] | None = None
    max_uses: Count | None = None


class _Format(Struct, gc=False):
    type: str


class _OutputConfig(Struct, gc=False):
    effort: str | None = None
    format: _Format | None = None


class _Edit(Struct, gc=False):
    type: str


class _ContextManagement(Struct, gc=False):
    edits: list[_Edit] | None = None


class _Message(Struct, gc=False):
    role: Literal["user", "assistant", "system"]
    content: str | list[Raw] | None = None  # absent where a system message only changes settings


class Body(Struct, gc=False):
    """The body, as far as the gateway acts on it."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    messages: Annotated[list[_Message], Meta(min_length=1)]
    max_tokens: Count | None = None
    stream: bool | None = None
    system: str | list[Raw] | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: dict[str, Raw] | None = None
    service_tier: str | None = None
    thinking: _Thinking | None = None
    tool_choice: _ToolChoice | None = None
    tools: list[_Tool] | None = None
    output_config: _OutputConfig | None = None
    context_management: _ContextManagement | None = None
    compaction: dict[str, Raw] | None = None
    fallbacks: list[Raw] | str | None = None
    thread: dict[str, Raw] | None = None


# Tools that the client runs and the provider describes, by the beginning of their types. The text of each is at most a few hundred tokens.
_DESCRIBED = ("bash_", "computer_2", "memory_", "text_editor_")
_ADVISOR = "advisor_"
_USES = frozenset(("web_fetch", "web_search"))  # tools that take `max_uses`
_FOREIGN = frozenset((*CAPS[1:], "n", "best_of", "n_cmpl"))
_ACTED_ON = PRICED.union(Body.__struct_fields__)
# Fields that put no text before the model, or whose text is counted by name.
_SILENT = _ACTED_ON | {"betas", "cache_control", "diagnostics"}

_decode = msgspec.json.Decoder(Body).decode
_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_list = msgspec.json.Decoder(list[dict[str, Raw]]).decode
_encode = msgspec.json.Encoder().encode


def read_request(body: bytes) -> Request:
    """A client's request. Raises BadRequest, and nothing else, naming the field."""
    request = read_count(body)
    if request.cap is None:
        raise BadRequest("Missing required parameter: 'max_tokens'.", "max_tokens")
    return request


def read_count(body: bytes) -> Request:
    """A request whose tokens are to be counted, so that it needs no cap. Raises BadRequest, and nothing else, naming the field."""
    typed, fields, blocks = strictly(_read, body)
    content = blocks.content
    thinking = typed.thinking
    return Request(
        model=typed.model,
        stream=typed.stream is True,
        include_usage=True,  # it is part of every answer
        choices=1,
        cap=typed.max_tokens,
        thinking=thinking.budget_tokens or 0 if thinking is not None else 0,
        texts=content.texts,
        messages=len(typed.messages) + blocks.framed,
        images=content.images,
        prediction="",
        unbounded=content.unbounded,
        fields=fields,
        unbounded_by=content.unbounded_by,
        hosted=content.hosted,
        tariff=tariff(fields),
        own_prompts=blocks.own_prompts,
        shown=shows_all(fields),
    )


def write_request(request: Request, target: Target) -> bytes:
    """The request as one deployment gets it: its model name and the cap; the rest as it came, but for thinking that is another model's.

    Raises BadRequest where that cannot be written.
    """
    fields: dict[str, Any] = dict(request.fields)
    fields["model"] = target.model
    if target.rejects or target.renames:
        as_known(fields, target)
    fields["max_tokens"] = request.cap if target.cap is None else target.cap
    try:
        if target.tool_calls and any(tool.by.startswith("tools[") for tool in request.hosted):
            fields["tools"] = _bounded(request.fields["tools"], target.tool_calls)
        without_thinking(fields, target.foreign)
    except RecursionError:  # it could just be read, a few calls further up
        raise BadRequest("The body is nested too deeply.", "messages") from None
    return _encode(fields)


def _bounded(tools: Raw, most: int) -> list[dict[str, Any]]:
    """Tools that take a number of uses in one request have no larger one than that. What a model asks of them beyond it is an error, and is free.
    https://docs.anthropic.com/en/docs/agents-and-tools/tool-use/web-search-tool"""
    found: list[dict[str, Any]] = [dict(tool) for tool in _decode_list(tools)]
    for tool in found:
        kind = msgspec.json.decode(tool.get("type", b"null"))
        if isinstance(kind, str) and name_of(kind) in _USES:
            said = msgspec.json.decode(tool.get("max_uses", b"null"))
            tool["max_uses"] = min(said or most, most)
    return found


class _Blocks:
    """What the provider will read, block by block."""

    __slots__ = ("content", "framed", "own_prompts")

    def __init__(self) -> None:
        self.content = Content()
        self.framed = 0  # blocks that are framed as messages are
        self.own_prompts = 0

    def add(self, content: str | list[Raw] | None, path: str) -> None:
        """Content in either of its forms."""
        if isinstance(content, str):
            self.content.texts.append(content)
        elif content is not None:
            for index, raw in enumerate(content):
                at = f"{path}[{index}]"
                try:
                    self._block(raw, at)
                except msgspec.ValidationError as error:
                    raise named(error, at) from None

    def unbounded(self, why: str, path: str) -> None:
        self.content.unbounded, self.content.unbounded_by = why, path

    def _block(self, raw: Raw, path: str) -> None:
        kind, block = read_block(raw)
        if block is None:
            self.unbounded(f"a block of type {kind[:40]!r}", path)
            return
        texts = self.content.texts
        match block:
            case Text():
                texts.append(block.text)
            case Image():
                self._image(block.source, path)
            case Document():
                self._document(block, path)
            case SearchResult():
                texts += (block.source, block.title)
                self._cited(block.citations, path)
                self.add(block.content, f"{path}.content")
            case ToolUse():
                self.framed += 1
                texts.append(bytes(raw).decode())
                return
            case ToolResult():
                self.framed += 1
                texts.append(block.tool_use_id)
                self.add(block.content, f"{path}.content")
            case Thought():
                texts += (block.thinking, block.signature)
            case Redacted():
                texts.append(block.data)
        for name, value in _decode_fields(raw).items():
            if name not in KNOWN[kind]:
                texts.append(bytes(value).decode())

    def _image(self, source: Source, path: str) -> None:
        needed = {"base64": source.data, "url": source.url, "file": source.file_id}
        if source.type not in needed:
            self.unbounded(f"an image from a {source.type[:40]!r}", path)
        elif needed[source.type] is None:
            raise BadRequest(f"Invalid value for '{path}.source'. It lacks what its type needs.", f"{path}.source")
        self.content.images += 1

    def _document(self, document: Document, path: str) -> None:
        source = document.source
        self.content.texts += [text for text in (document.title, document.context) if text]
        self._cited(document.citations, path)
        if source.type == "text" and source.data is not None:
            self.content.texts.append(source.data)
        elif source.type == "content" and source.content is not None:
            self.add(source.content, f"{path}.source.content")
        else:
            self.unbounded(f"a document from a {source.type[:40]!r}", path)

    def _cited(self, citations: Citations | None, path: str) -> None:
        """To be cited from, a text is cut into numbered pieces of nobody knows which sizes."""
        if citations is not None and citations.enabled:
            self.unbounded("a text that is to be cited from", f"{path}.citations")


def _read(body: bytes) -> tuple[Body, dict[str, Raw], _Blocks]:
    """The typed body, its fields as they came, and what the provider will read of it."""
    fields = _decode_fields(body)
    typed = _decode(body)
    _refuse(typed, fields)
    refuse_repeats(fields)
    blocks = _Blocks()
    if typed.system is not None:
        blocks.add(typed.system, "system")
    for index, message in enumerate(typed.messages):
        if message.content is None and message.role != "system":
            raise BadRequest(f"Missing required parameter: 'messages[{index}].content'.", f"messages[{index}].content")
        blocks.add(message.content, f"messages[{index}].content")
    for message_fields in _decode_list(fields["messages"]):
        if message_fields.keys() != {"role", "content"}:
            blocks.content.texts += [bytes(raw).decode() for name, raw in message_fields.items() if name not in ("role", "content")]
    if typed.tools:
        _tools(blocks, typed.tools)
        blocks.content.texts.append(bytes(fields["tools"]).decode())
    if (typed.output_config is not None and typed.output_config.format is not None) or "output_format" in fields:
        blocks.own_prompts += 1
        blocks.content.texts.append(bytes(fields.get("output_config", b"")).decode())
    if typed.tool_choice is not None and typed.tool_choice.name:
        blocks.content.texts.append(typed.tool_choice.name)
    if not fields.keys() <= _SILENT:
        more_fields(blocks.content, fields, _SILENT, _ACTED_ON)
        blocks.content.hosted += of_container(fields)
    return typed, fields, blocks


def _tools(blocks: _Blocks, tools: list[_Tool]) -> None:
    """Whether each can be bounded; what it says is counted by the caller."""
    blocks.own_prompts += 1
    for index, tool in enumerate(tools):
        path = f"tools[{index}]"
        if tool.type in (None, "custom"):
            if not tool.name:
                raise BadRequest(f"Missing required parameter: '{path}.name'.", f"{path}.name")
            if tool.input_schema is None:
                raise BadRequest(f"Missing required parameter: '{path}.input_schema'.", f"{path}.input_schema")
        elif tool.type.startswith(_ADVISOR):
            raise BadRequest("An advisor is not supported: what it writes is billed beyond 'max_tokens'.", f"{path}.type")
        elif tool.type.startswith(_DESCRIBED):
            blocks.own_prompts += 1
        else:
            blocks.unbounded(f"a tool of type {tool.type[:40]!r}, which the provider runs or describes", f"{path}.type")
            blocks.content.hosted += of_tool(tool.type, f"{path}.type", tool.max_uses, rounds=LOOP)


def _refuse(typed: Body, fields: dict[str, Raw]) -> None:
    """What would bill beyond what is held."""
    for name in fields:
        if name.casefold() in _FOREIGN:
            raise BadRequest(f"{name!r} is no field of this API: the cap is 'max_tokens', and there is one answer.", name)
    if typed.thread is not None:
        raise BadRequest("'thread' is not supported: send the whole conversation.", "thread", "thread_unsupported_request")
    if typed.fallbacks:
        raise BadRequest("'fallbacks' is not supported: the gateway routes; ask for one 'model'.", "fallbacks")
    if typed.thinking is not None and typed.thinking.type == "enabled" and typed.thinking.budget_tokens is None:
        raise BadRequest("Missing required parameter: 'thinking.budget_tokens'.", "thinking.budget_tokens")
    edits = typed.context_management.edits if typed.context_management is not None else None
    if typed.compaction is not None or any("compact" in edit.type for edit in edits or ()):
        where = "compaction" if typed.compaction is not None else "context_management"
        raise BadRequest("Compaction is not supported: what it writes is billed beyond 'max_tokens'.", where)
