"""Answers of OpenAI's Responses under content rules (ruled.py).

Each text is told several times (its end, the end of its part, of its item, of the response), and each time as the client was told it in pieces. What
has to wait at the end of a text comes in a delta of its own before that end; the numbers of later events are then higher. The disclaimer is the end
of the last item, if that is a message: so the events that end a text are held back until it is known what follows them.
"""

from typing import Any

from sluicegate.core.content_rules import BETWEEN
from sluicegate.core.speech import Channel, Speech, Steps
from sluicegate.dialects.openai_body import int_or, text_of
from sluicegate.dialects.openai_responses_output import ARGUMENTS, KINDS, TEXT, encoded
from sluicegate.dialects.ruled import LOGPROBS, decoded, reading, whole, written
from sluicegate.dialects.sse import RawEvent

_ENDS = frozenset(("response.completed", "response.incomplete", "response.failed", "response.cancelled"))
_TEXT_DONE = f"{TEXT.name}.done"
_ITEM_DONE = "response.output_item.done"
_OF_TEXT = (f"{TEXT.events}.done", _ITEM_DONE)  # they follow the end of a text
_SOUND = "audio.delta"
_PLACE = ("item_id", "output_index", "content_index", "summary_index")


class Shaper:
    """One answer."""

    def __init__(self, speech: Speech, disclaimer: str) -> None:
        self.speech = speech
        self._disclaimer = disclaimer
        self._shift = 0  # events of ours so far
        self._kept: tuple[tuple[RawEvent, dict[str, Any], bool], ...] = ()  # the events that end the last text, and whether they were changed

    def mark(self) -> Any:
        return self._shift, self._kept

    def back_to(self, mark: Any) -> None:
        self._shift, self._kept = mark

    # -- in one piece ---------------------------------------------------------------------------------------------------------------------

    def usual(self, data: bytes) -> bytes | None:
        """Its text may stand in it twice."""
        return None

    def body(self, answer: dict[str, Any]) -> Steps[bool]:
        """Masks it and adds the disclaimer."""
        changed = yield from reading(self.speech, answer.get("output"))
        if isinstance(answer.get("output_text"), str):
            again = yield from reading(self.speech, answer)
            changed |= again
        part = _last_part(answer)
        if part is None or not self._disclaimer or not part["text"] or part["text"].rstrip().endswith(self._disclaimer):
            return changed
        part["text"] += BETWEEN + self._disclaimer
        return True

    # -- streamed -------------------------------------------------------------------------------------------------------------------------

    def event(self, event: RawEvent) -> list[bytes]:
        """What the client reads instead of an event."""
        said = decoded(event.data) if event.kind == "event" else None
        if not isinstance(said, dict):
            return [event.raw]
        type_ = text_of(said.get("type")) or event.event
        if type_.endswith(".delta") and isinstance(said.get("delta"), str):
            changed = False if type_.endswith(_SOUND) else self._delta(type_, said)
            return [*self._released(), self._told(event, said, changed)]
        if type_ in _ENDS:
            return self._end(event, said)
        rest = self._rest(said, type_)
        changed = self._whole(type_, said)
        if self.speech.refused:
            return [*self._released(), *rest]
        if type_ == _TEXT_DONE or (self._kept and type_ in _OF_TEXT):
            released = self._released() if type_ == _TEXT_DONE else []
            self._kept = (*self._kept, (event, said, changed))
            return [*released, *rest]
        return [*self._released(), *rest, self._told(event, said, changed)]

    def _delta(self, type_: str, said: dict[str, Any]) -> bool:
        name = type_.removesuffix(".delta")
        channel = _channel(name, said)
        told = (self.speech.argue if name == ARGUMENTS.name else self.speech.say)(channel, said["delta"])
        changed: bool = told != said["delta"]
        said["delta"] = told
        if said.get(LOGPROBS) and self.speech.acts:
            said[LOGPROBS], changed = [], True
        return changed

    def _whole(self, type_: str, said: dict[str, Any]) -> bool:
        """What an event tells in one piece."""
        changed = False
        kind = KINDS.get(type_.removesuffix(".done"))
        if kind is not None and isinstance(said.get(kind.field), str):
            text = said[kind.field]
            said[kind.field] = self.speech.whole_arguments(text) if kind is ARGUMENTS else self.speech.whole(text)
            changed = said[kind.field] != text
        for name in ("part", "item"):
            changed |= whole(self.speech, said.get(name))
        if isinstance(response := said.get("response"), dict):
            changed |= whole(self.speech, response.get("output"))
        if said.get(LOGPROBS) and self.speech.acts:
            said[LOGPROBS], changed = [], True
        return changed

    def _end(self, event: RawEvent, said: dict[str, Any]) -> list[bytes]:
        """The response ends."""
        out = self._rest(said, "")
        changed = self._whole("", said)
        response = said.get("response")
        if self._due(response if isinstance(response, dict) else {}):
            out += self._insert(self._kept[0][1], TEXT.name, BETWEEN + self._disclaimer)
            self._kept = tuple([(kept, self._disclaimed(told), True) for kept, told, _ in self._kept])
            part = _last_part(response) if isinstance(response, dict) else None
            if part is not None:
                part["text"], changed = part["text"] + BETWEEN + self._disclaimer, True
        return [*out, *self._released(), self._told(event, said, changed)]

    def _due(self, response: dict[str, Any]) -> bool:
        """Whether the answer ends with what is kept, and lacks the disclaimer."""
        if not self._disclaimer or not self._kept or self.speech.refused:
            return False
        text = text_of(self._kept[0][1].get("text"))
        items = response.get("output")
        last = _last_part(response) if isinstance(items, list) and items else {}
        return bool(text) and last is not None and not text.rstrip().endswith(self._disclaimer)

    def _disclaimed(self, told: dict[str, Any]) -> dict[str, Any]:
        """An event that ends the last text, with the disclaimer in it."""
        more = BETWEEN + self._disclaimer
        if "text" in told:
            return told | {"text": told["text"] + more}
        if isinstance(part := told.get("part"), dict):
            return told | {"part": part | {"text": text_of(part.get("text")) + more}}
        item = told.get("item")
        content = item.get("content") if isinstance(item, dict) else None
        if not isinstance(item, dict) or not isinstance(content, list) or not content or not isinstance(content[-1], dict):
            return told
        return told | {"item": item | {"content": [*content[:-1], content[-1] | {"text": text_of(content[-1].get("text")) + more}]}}

    def _rest(self, said: dict[str, Any], type_: str) -> list[bytes]:
        """What is left of the texts that an event ends: one text, all of an item, or all ("")."""
        name, index = type_.removesuffix(".done"), said.get("output_index")
        out: list[bytes] = []
        for channel in self.speech.open:
            of_it = channel[:3] == _channel(name, said)[:3] or (type_ == _ITEM_DONE and channel[0] == index)
            if (of_it or not type_) and (rest := self.speech.end(channel)):
                place = said if of_it and type_ != _ITEM_DONE else {"output_index": channel[0], "content_index": channel[2]}
                out += self._insert({**said, **place, "item_id": channel[3]}, str(channel[1]), rest)
        return out

    def _insert(self, near: dict[str, Any], name: str, text: str) -> list[bytes]:
        """A delta of ours before an event."""
        type_ = f"{name}.delta"
        place = {field: near[field] for field in _PLACE if field in near}
        more: dict[str, Any] = {LOGPROBS: []} if name == TEXT.name else {}
        number = int_or(near.get("sequence_number"), 0) + self._shift
        self._shift += 1
        data = {"type": type_, "sequence_number": number, **place, "delta": text, **more}
        return [b"event: %b\ndata: %b\n\n" % (type_.encode(), encoded(data))]

    def _released(self) -> list[bytes]:
        kept, self._kept = self._kept, ()
        return [self._told(event, said, changed) for event, said, changed in kept]

    def _told(self, event: RawEvent, said: dict[str, Any], changed: bool) -> bytes:
        """An event of the upstream's, with its number."""
        if self._shift and isinstance(number := said.get("sequence_number"), int):
            return written(event, said | {"sequence_number": number + self._shift})
        return written(event, said) if changed else event.raw


def _channel(name: str, said: dict[str, Any]) -> Channel:
    """Item, kind of text, part; and the item's id, to write of it."""
    part = said.get("summary_index") if "summary_index" in said else said.get("content_index")
    return (int_or(said.get("output_index"), 0), name, int_or(part, 0), text_of(said.get("item_id")))


def _last_part(response: dict[str, Any]) -> dict[str, Any] | None:
    """The text with which a response ends; None if it does not end with one."""
    items = response.get("output")
    item = items[-1] if isinstance(items, list) and items else None
    content = item.get("content") if isinstance(item, dict) and item.get("type") == "message" else None
    part = content[-1] if isinstance(content, list) and content else None
    ends = isinstance(part, dict) and part.get("type") == TEXT.part and isinstance(part.get("text"), str)
    return part if ends else None
