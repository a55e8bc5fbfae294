"""What a provider that speaks Anthropic messages answers, whole or streamed, for a client that speaks another dialect.

Nothing here raises, whatever is in it: anthropic_messages has read the same bytes for the bill, here they are read once more for what they say. What
tools did that the provider runs is no part of it: no other dialect can ask for them.
"""

from sluicegate.dialects.anthropic_body import Block, Change, Message, StreamEvent, decode_event, finish_of, read_message, tolerated_event, usage_of
from sluicegate.dialects.content import (
    Begin,
    Choice,
    Finish,
    Part,
    Piece,
    RedactedBlock,
    RedactedThinking,
    Reply,
    SignatureDelta,
    Text,
    TextDelta,
    Thinking,
    ThinkingDelta,
    ToolBegin,
    ToolDelta,
    ToolUse,
)
from sluicegate.dialects.form import Event
from sluicegate.dialects.openai_body import loosely
from sluicegate.dialects.sse import Reader


def read_reply(body: bytes) -> Reply:
    """A whole message."""
    message = read_message(body)[0] or Message()
    parts = [part for block in message.content or () if (part := _part(block)) is not None]
    return Reply(message.id, message.model, 0, [Choice(0, parts, finish_of(message.stop_reason or ""), message.stop_sequence or "")])


def _part(block: Block) -> Part | None:
    if block.type == "text":
        return Text(block.text or "") if block.text else None
    if block.type == "thinking":
        return Thinking(block.thinking or "", block.signature or "")
    if block.type == "redacted_thinking":
        return RedactedThinking(block.data or "")
    if block.type == "tool_use":
        return ToolUse(block.id or "", block.name or "", _arguments(block) or "{}")
    return None


def _arguments(block: Block) -> str:
    """What a call says from the start; "" for nothing."""
    given = bytes(block.input).decode("utf-8", "replace").strip()
    return "" if given in ("{}", "null") else given


class Pieces:
    """Reads one stream. Index and kind of a block are known from its start."""

    def __init__(self) -> None:
        self._begun = False
        self._calls: dict[int, int] = {}  # the number of a call by the index of its block
        self._count = 0
        self._told: set[int] = set()  # calls with arguments
        self._ended = False

    def of(self, event: Event) -> list[Piece]:
        """What one event says."""
        said, name = _said(event.raw)
        kind = said.type or name
        pieces: list[Piece] = []
        if kind == "message_start":
            message = said.message or Message()
            self._begun = True
            pieces.append(Begin(message.id, message.model, 0, usage_of(message.usage)))
        elif kind == "content_block_start" and said.content_block is not None:
            pieces += self._start(said.index, said.content_block)
        elif kind == "content_block_delta" and said.delta is not None:
            pieces += self._change(said.index, said.delta)
        elif kind == "content_block_stop":
            call = self._calls.get(said.index)
            if call is not None and call not in self._told:
                self._told.add(call)
                pieces.append(ToolDelta(0, call, "{}"))
        elif kind == "message_delta" and said.delta is not None and said.delta.stop_reason and not self._ended:
            self._ended = True
            pieces.append(Finish(0, finish_of(said.delta.stop_reason), said.delta.stop_sequence or ""))
        if pieces and not self._begun:
            self._begun = True
            pieces.insert(0, Begin("", "", 0))
        return pieces

    def _start(self, index: int, block: Block) -> list[Piece]:
        pieces: list[Piece] = []
        if block.type == "tool_use":
            call = self._calls[index] = self._count
            self._count += 1
            pieces.append(ToolBegin(0, call, block.id or "", block.name or ""))
            if given := _arguments(block):
                self._told.add(call)
                pieces.append(ToolDelta(0, call, given))
        elif block.type == "redacted_thinking":
            pieces.append(RedactedBlock(0, block.data or ""))
        elif block.type in ("text", "thinking"):
            pieces += self._change(index, Change("", block.text, block.thinking, None, block.signature))
        return pieces

    def _change(self, index: int, change: Change) -> list[Piece]:
        if change.text:
            return [TextDelta(0, change.text)]
        if change.partial_json:
            call = self._calls.get(index)
            if call is None:  # of a tool that the provider runs
                return []
            self._told.add(call)
            return [ToolDelta(0, call, change.partial_json)]
        pieces: list[Piece] = []
        if change.thinking:
            pieces.append(ThinkingDelta(0, change.thinking))
        if change.signature:
            pieces.append(SignatureDelta(0, change.signature))
        return pieces


def _said(raw: bytes) -> tuple[StreamEvent, str]:
    """What an event says, and its name."""
    line = raw.find(b"\n")
    one = raw.startswith(b"event: ") and raw.startswith(b"data: ", line + 1) and raw.find(b"\n", line + 1) == len(raw) - 2
    if one:  # as nearly always: a name, and one line of data
        name, data = raw[7:line].decode("utf-8", "replace"), raw[line + 7 : -2]
    else:
        reader = Reader()
        events = reader.feed(raw) or reader.end()
        if not events:
            return StreamEvent(), ""
        name, data = events[0].event, events[0].data
    try:
        return decode_event(data), name
    except (ValueError, RecursionError):
        loose = loosely(data)
        return tolerated_event(loose) if isinstance(loose, dict) else StreamEvent(), name
