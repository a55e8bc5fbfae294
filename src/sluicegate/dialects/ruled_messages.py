"""Answers of Anthropic's messages under content rules (ruled.py).

What has to wait at the end of a block comes in a change of its own before the block's stop, or where another block of text follows, at the beginning
of that: a reader reads the two as one. The disclaimer is the end of the last block, if that is
text. So the stop of a block of text is held back until it is known what follows it. Thinking that was masked loses its signature, which would be
refused by the provider; the gateway's own mark takes its place, by which such thinking is left out when the client sends it back.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from sluicegate.core.content_rules import BETWEEN
from sluicegate.core.speech import Speech, Steps
from sluicegate.dialects.anthropic_messages import event_bytes
from sluicegate.dialects.anthropic_thinking import UNSIGNED
from sluicegate.dialects.openai_body import int_or
from sluicegate.dialects.ruled import alone, decoded, joined, pieces, reading, reworded, whole, written
from sluicegate.dialects.sse import RawEvent

_CHANGES = {"text": "text_delta", "thinking": "thinking_delta", "partial_json": "input_json_delta"}


class _Block(Struct, gc=False, forbid_unknown_fields=True):
    type: Literal["text"]
    text: Raw
    citations: None = None


class _Answer(Struct, gc=False):
    """The usual whole answer, in which something is said and nothing else. Only here is speed of interest."""

    content: Annotated[list[_Block], Meta(max_length=1, min_length=1)]


_decode_answer = msgspec.json.Decoder(_Answer).decode


def _is_alone(before: bytes) -> bool:
    typed = b'"type":"text"' in before or b'"type": "text"' in before
    return alone(before, 2, before.count(b'"text"') - typed, b'"content"')


class Shaper:
    """One answer."""

    def __init__(self, speech: Speech, disclaimer: str) -> None:
        self.speech = speech
        self._disclaimer = disclaimer
        self._kept = b""  # the stop of a block of text, and pings behind it
        self._at = -1  # which
        self._text = False  # the block that is open is text
        self._tail = ""  # the end of what it said
        self._masks = 0  # that there were before it

    def mark(self) -> Any:
        return self._kept, self._at, self._text, self._tail, self._masks

    def back_to(self, mark: Any) -> None:
        self._kept, self._at, self._text, self._tail, self._masks = mark

    # -- in one piece ---------------------------------------------------------------------------------------------------------------------

    def usual(self, data: bytes) -> bytes | None:
        """An answer of the usual shape."""
        try:
            return reworded(self.speech, self._disclaimer, data, bytes(_decode_answer(data).content[0].text), _is_alone)
        except (ValueError, RecursionError):
            return None

    def body(self, answer: dict[str, Any]) -> Steps[bool]:
        """Masks it and adds the disclaimer."""
        content = answer.get("content")
        if isinstance(content, str):
            changed = yield from reading(self.speech, answer)
            return self._disclaim(answer, "content") or changed
        changed = False
        for block in content if isinstance(content, list) else ():
            masked = isinstance(block, dict) and (yield from reading(self.speech, block))
            if masked:
                changed = True
                if block.get("signature"):
                    block["signature"] = ""
        if isinstance(content, list):
            beside = yield from joined(self.speech, content)
            changed |= beside
            for block in content if changed else ():
                if isinstance(block, dict) and block.get("signature") == "":
                    block["signature"] = UNSIGNED
        last = content[-1] if isinstance(content, list) and content else None
        return (isinstance(last, dict) and last.get("type") == "text" and self._disclaim(last, "text")) or changed

    def _disclaim(self, said: dict[str, Any], field: str) -> bool:
        text = said.get(field)
        if not self._disclaimer or not isinstance(text, str) or not text or text.rstrip().endswith(self._disclaimer):
            return False
        said[field] = text + BETWEEN + self._disclaimer
        return True

    # -- streamed -------------------------------------------------------------------------------------------------------------------------

    def event(self, event: RawEvent) -> list[bytes]:
        """What the client reads instead of an event."""
        said = decoded(event.data) if event.kind == "event" else None
        if not isinstance(said, dict):
            return [event.raw]
        match said.get("type") or event.event:
            case "content_block_delta":
                return self._delta(event, said, int_or(said.get("index"), 0))
            case "content_block_stop":
                return self._stop(event, int_or(said.get("index"), 0))
            case "content_block_start":
                return self._start(event, said, int_or(said.get("index"), 0))
            case "message_delta" | "message_stop":
                rest = self._rest()
                return rest if self.speech.refused else [*rest, *self._released(ends=True), event.raw]
        self._kept += event.raw if self._kept else b""  # a ping, in its place
        return [] if self._kept else [event.raw]

    def _stop(self, event: RawEvent, index: int) -> list[bytes]:
        waits = self._text and self.speech.waits((index, "text"))
        rest = [] if waits else self._rest()
        if not waits and not (self._text and self._disclaimer):
            self._text = False
            return [*rest, event.raw]
        self._kept, self._at, self._text = event.raw, index, False
        return rest

    def _start(self, event: RawEvent, said: dict[str, Any], index: int) -> list[bytes]:
        block = said.get("content_block")
        goes_on = isinstance(block, dict) and block.get("type") == "text" and self.speech.handed_on((self._at, "text"), (index, "text"))
        rest = [] if goes_on else self._rest()
        return rest if self.speech.refused else [*rest, *self._released(), self._started(event, said, block, index)]

    def _started(self, event: RawEvent, said: dict[str, Any], block: Any, index: int) -> bytes:
        self._text, self._tail, self._masks = False, "", self.speech.masks
        if not isinstance(block, dict):
            return event.raw
        self._text = block.get("type") == "text"
        goes_on = self._text or block.get("type") == "thinking"
        changed = pieces(self.speech, block, (index,), last=False) if goes_on else whole(self.speech, block)
        if self._text:
            self._add(block.get("text"))
        return written(event, said) if changed else event.raw

    def _delta(self, event: RawEvent, said: dict[str, Any], index: int) -> list[bytes]:
        change = said.get("delta")
        if not isinstance(change, dict):
            return [event.raw]
        if change.get("type") == "signature_delta":
            rest = self._rest()
            if self._masks == self.speech.masks:
                return [*rest, event.raw]
            change["signature"] = UNSIGNED
            return [*rest, written(event, said)]
        changed = pieces(self.speech, change, (index,), last=False)
        if self._text:
            self._add(change.get("text"))
        if not changed:
            return [event.raw]
        return [written(event, said)] if any(change.get(name) for name in _CHANGES) else []

    def _add(self, text: Any) -> None:
        if isinstance(text, str):
            self._tail = (self._tail + text)[-len(self._disclaimer) - 40 :]

    def _rest(self) -> list[bytes]:
        """What is left of the texts of the block that is open."""
        out = []
        for channel in self.speech.open:
            if rest := self.speech.end(channel):
                out.append(self._change(int(channel[0]), str(channel[-1]), rest))
                if self._text or self._kept:
                    self._add(rest)
        return out

    def _released(self, ends: bool = False) -> list[bytes]:
        """The stop that was held back. ends: nothing follows the block."""
        kept, self._kept = self._kept, b""
        if not kept:
            return []
        due = ends and self._disclaimer and self._tail and not self.speech.refused and not self._tail.rstrip().endswith(self._disclaimer)
        return [self._change(self._at, "text", BETWEEN + self._disclaimer), kept] if due else [kept]

    @staticmethod
    def _change(index: int, field: str, text: str) -> bytes:
        return event_bytes({"type": "content_block_delta", "index": index, "delta": {"type": _CHANGES.get(field, f"{field}_delta"), field: text}})
