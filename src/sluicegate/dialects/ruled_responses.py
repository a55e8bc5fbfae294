"""Answers of OpenAI's Responses under content rules (ruled.py).

Each text is told several times (its end, the end of its part, of its item, of the response), and each time as the client was told it in pieces: what
came and what was told of it is kept until the response is over. What has to wait at the end of a text goes on in the next part of the item, if that
is of the same kind; else it comes in a delta of its own before that end, and the numbers of later events are then higher. The disclaimer is the end
of the last item, if that is a message. So the events that end a text are held back until it is known what follows them.
"""

from collections.abc import Iterator
from typing import Any

from sluicegate.core.content_rules import BETWEEN
from sluicegate.core.speech import Channel, Speech, Steps
from sluicegate.dialects.openai_body import int_or, text_of
from sluicegate.dialects.openai_responses_output import BY_PART, KINDS, REASONING, REFUSAL, SUMMARY, TEXT, Kind
from sluicegate.dialects.openai_responses_prompt import THINKING
from sluicegate.dialects.retelling import Pieces
from sluicegate.dialects.ruled import ARGUMENTS, LOGPROBS, TEXTS, decoded, encoded, reading, whole, written
from sluicegate.dialects.sse import RawEvent

_ENDS = frozenset(("response.completed", "response.incomplete", "response.failed", "response.cancelled"))
_ITEM_DONE = "response.output_item.done"
_SOUND = "audio.delta"
_JOINED = frozenset(kind.name for kind in (TEXT, REFUSAL, REASONING, SUMMARY))  # of which parts that stand side by side are read as one
_PLACES = ("content", "summary")  # where an item has its parts
_ARGUED = "_arguments"  # how the names of texts end that are JSON


class Shaper:
    """One answer."""

    def __init__(self, speech: Speech, disclaimer: str) -> None:
        self.speech = speech
        self._disclaimer = disclaimer
        self._shift = 0  # events of ours so far
        self._kept: tuple[RawEvent, ...] = ()  # the events that end the last text
        self._at: Channel = ()  # that text
        self._waits: Channel | None = None  # likewise, if it may go on in the next part
        self._streamed: set[Channel] = set()  # texts that came in deltas
        self._pieces = Pieces()

    def mark(self) -> Any:
        return self._shift, self._kept, self._at, self._waits, self._pieces.count

    def back_to(self, mark: Any) -> None:
        self._shift, self._kept, self._at, self._waits, count = mark
        self._pieces.back_to(count)

    # -- in one piece ---------------------------------------------------------------------------------------------------------------------

    def usual(self, data: bytes) -> bytes | None:
        """Its text may stand in it twice."""
        return None

    def body(self, answer: dict[str, Any]) -> Steps[bool]:
        """Masks it and adds the disclaimer."""
        changed, items = False, answer.get("output")
        for item in items if isinstance(items, list) else ():
            masked = yield from reading(self.speech, item)
            if masked:
                _without_proof(item)
            changed |= masked
        if isinstance(text := answer.get("output_text"), str):
            answer["output_text"] = yield from self.speech.read(text)
            changed |= answer["output_text"] != text
        part = _last_part(answer)
        if part is None or not self._disclaimer or not part["text"] or part["text"].rstrip().endswith(self._disclaimer):
            return changed
        return _add(answer, BETWEEN + self._disclaimer)

    # -- streamed -------------------------------------------------------------------------------------------------------------------------

    def event(self, event: RawEvent) -> list[bytes]:
        """What the client reads instead of an event."""
        said = decoded(event.data) if event.kind == "event" else None
        if not isinstance(said, dict):
            return [event.raw]
        type_ = _type(event, said)
        if type_.endswith(".delta") and isinstance(said.get("delta"), str):
            return self._delta(event, said, type_)
        if type_.endswith(".done"):
            return self._item_ends(event, said) if type_ == _ITEM_DONE else self._text_ends(event, said, type_)
        return self._end(event, said) if type_ in _ENDS else self._other(event, said, type_)

    def _other(self, event: RawEvent, said: dict[str, Any], type_: str) -> list[bytes]:
        if isinstance(said.get("part"), dict) or isinstance(said.get("item"), dict):
            return self._begins(event, said)
        if self._waits is not None:  # what stands between two parts
            self._kept = (*self._kept, event)
            return []
        return self._and_told(self._decided(None, said), event, said, type_)

    def _delta(self, event: RawEvent, said: dict[str, Any], type_: str) -> list[bytes]:
        if type_.endswith(_SOUND):
            return [*self._decided(None, said), self._told(event, said, False)]
        channel = _channel(type_.removesuffix(".delta"), said)
        out = self._decided(channel, said)
        if self.speech.refused:
            return out
        text = said["delta"]
        self._streamed.add(channel[:3])
        said["delta"] = self._say(channel, text)
        changed: bool = said["delta"] != text
        if said.get(LOGPROBS) and self.speech.acts:
            said[LOGPROBS], changed = [], True
        return [*out, self._told(event, said, changed)]

    def _begins(self, event: RawEvent, said: dict[str, Any]) -> list[bytes]:
        """A part or an item, which may have text already."""
        part, item = said.get("part"), said.get("item")
        kind = BY_PART.get(text_of(part.get("type"))) if isinstance(part, dict) else None
        channel = _channel(kind.name, said) if kind is not None else None
        out = self._decided(channel, said)
        changed = False
        if isinstance(part, dict):
            changed = whole(self.speech, part) if kind is None or channel is None else self._has(part, kind.field, channel)
        if isinstance(item, dict):
            changed |= self._begun(item, int_or(said.get("output_index"), 0))
        return out if self.speech.refused else [*out, self._told(event, said, changed)]

    def _begun(self, item: dict[str, Any], index: int) -> bool:
        changed = False
        for kind, place, part in _parts(item):
            channel: Channel = (index, kind.name, place, text_of(item.get("id")))
            for before in self.speech.open:
                self._goes_on(before, channel)
            changed |= self._has(part, kind.field, channel)
        for field, name in _written(item):
            changed |= self._has(item, field, (index, name, 0, text_of(item.get("id"))))
        return self._rest_of(item) or changed

    def _has(self, holder: dict[str, Any], field: str, channel: Channel) -> bool:
        """A text that goes on has begun with something."""
        text = holder.get(field)
        if not isinstance(text, str) or not text:
            return False
        self._streamed.add(channel[:3])
        holder[field] = self._say(channel, text)
        changed: bool = holder[field] != text
        return changed

    def _text_ends(self, event: RawEvent, said: dict[str, Any], type_: str) -> list[bytes]:
        """A text, or the part that holds it."""
        part = said.get("part")
        kind = BY_PART.get(text_of(part.get("type"))) if isinstance(part, dict) else None
        holder, name = (said, type_.removesuffix(".done")) if kind is None or not isinstance(part, dict) else (part, kind.name)
        channel = _channel(name, said)
        if self._kept and self._at == channel[:3]:
            self._kept = (*self._kept, event)
            return []
        out = self._decided(channel, said)
        self._catch_up(channel, holder.get(_field(name, holder)))
        waits = name in _JOINED and self.speech.waits(channel)
        if not waits:
            out += self._ended(channel, said)
        if self.speech.refused:
            return out
        if waits or (self._disclaimer and name == TEXT.name):
            self._kept, self._at, self._waits = (event,), channel[:3], channel if waits else None
            return out
        return self._and_told(out, event, said, type_)

    def _item_ends(self, event: RawEvent, said: dict[str, Any]) -> list[bytes]:
        index = int_or(said.get("output_index"), 0)
        may_be_last = bool(self._kept) and self._disclaimer and self._at[:2] == (index, TEXT.name)
        out = self._rest(self._kept_first() or said, index) if may_be_last else [*self._decided(None, said), *self._rest(said, index)]
        if self.speech.refused:
            return out
        if may_be_last:
            self._kept, self._waits = (*self._kept, event), None
            return out
        return self._and_told(out, event, said, _ITEM_DONE)

    def _end(self, event: RawEvent, said: dict[str, Any]) -> list[bytes]:
        """The response ends."""
        out = self._rest(self._kept_first() or said)
        changed = self._retold(said, "")
        if self.speech.refused:
            return out
        response, kept = said.get("response"), self._settled()
        if kept and self._due(kept[0][1], response if isinstance(response, dict) else {}):
            if self._at in self._streamed:
                out += self._insert(kept[0][1], (*self._at, text_of(kept[0][1].get("item_id"))), BETWEEN + self._disclaimer)
            kept = [(each, self._disclaimed(told), True) for each, told, _ in kept]
            if isinstance(response, dict):
                changed |= _add(response, BETWEEN + self._disclaimer)
        return [*out, *[self._told(*each) for each in kept], self._told(event, said, changed)]

    # -- what waits -----------------------------------------------------------------------------------------------------------------------

    def _decided(self, channel: Channel | None, near: dict[str, Any]) -> list[bytes]:
        """The events that were kept: what they end goes on in a text (`channel`), if that is the next part, or does not go on. A text that has no end
        of its own ends where the next part begins."""
        out: list[bytes] = []
        if self._kept:
            waits = self._waits
            if waits is not None and not (channel is not None and self._goes_on(waits, channel)):
                out = self._ended(waits, self._kept_first())
            kept = self._settled()
            out += [] if self.speech.refused else [self._told(*each) for each in kept]
        if channel is not None and channel[2] and channel[:3] not in self._pieces:
            for before in self.speech.open:
                if before[:2] == channel[:2] and before != channel and not self._goes_on(before, channel):
                    out += self._ended(before, near)
        return out

    def _goes_on(self, channel: Channel, other: Channel) -> bool:
        """What waits of a text goes on in another, if that is of the next part."""
        if not _follows(channel, other) or not self.speech.handed_on(channel, other):
            return False
        if channel[:3] in self._streamed:
            self._streamed.add(other[:3])
        return True

    def _settled(self) -> list[tuple[RawEvent, dict[str, Any], bool]]:
        """The events that were kept, as they are told now, and whether they were changed."""
        kept, self._kept, self._waits = self._kept, (), None
        told = [(event, decoded(event.data)) for event in kept]
        return [(event, said, self._retold(said, _type(event, said))) for event, said in told]

    def _kept_first(self) -> dict[str, Any]:
        return decoded(self._kept[0].data) if self._kept else {}

    def _rest(self, near: dict[str, Any], index: int | None = None) -> list[bytes]:
        """What is left of all texts of an item, or of all."""
        return [piece for channel in self.speech.open if index in (None, channel[0]) for piece in self._ended(channel, near)]

    def _ended(self, channel: Channel, near: dict[str, Any]) -> list[bytes]:
        """What is left of a text, in a delta before an event, if the text came in deltas."""
        rest = self.speech.end(channel)
        self._note(channel, "", rest)
        return self._insert(near, channel, rest) if rest and channel[:3] in self._streamed else []

    def _insert(self, near: dict[str, Any], channel: Channel, text: str) -> list[bytes]:
        """A delta of ours before an event."""
        name, kind = str(channel[1]), KINDS.get(str(channel[1]))
        place = {"item_id": channel[3]} if channel[3] else {}
        place |= {"output_index": channel[0]} | ({kind.index: channel[2]} if kind is not None and kind.index else {})
        more: dict[str, Any] = {LOGPROBS: []} if kind is TEXT else {}
        number = int_or(near.get("sequence_number"), 0) + self._shift
        self._shift += 1
        data = {"type": f"{name}.delta", "sequence_number": number, **place, "delta": text, **more}
        return [b"event: %b\ndata: %b\n\n" % (f"{name}.delta".encode(), encoded(data))]

    def _and_told(self, out: list[bytes], event: RawEvent, said: dict[str, Any], type_: str) -> list[bytes]:
        """An event that tells texts again, if nothing in it is refused."""
        changed = self._retold(said, type_)
        return out if self.speech.refused else [*out, self._told(event, said, changed)]

    def _told(self, event: RawEvent, said: dict[str, Any], changed: bool) -> bytes:
        """An event of the upstream's, with its number."""
        if self._shift and isinstance(number := said.get("sequence_number"), int):
            return written(event, said | {"sequence_number": number + self._shift})
        return written(event, said) if changed else event.raw

    # -- what was told --------------------------------------------------------------------------------------------------------------------

    def _say(self, channel: Channel, text: str) -> str:
        told = (self.speech.argue if str(channel[1]).endswith(_ARGUED) else self.speech.say)(channel, text)
        self._note(channel, text, told)
        return told

    def _note(self, channel: Channel, text: str, told: str) -> None:
        if (text or told) and not self.speech.silent:
            self._pieces.add(channel[:3], text, told)

    def _catch_up(self, channel: Channel, text: Any) -> None:
        """What a text has at its end that did not come in pieces."""
        came = self._pieces.both(channel[:3])[0]
        if isinstance(text, str) and len(text) > len(came) and text.startswith(came):
            self._say(channel, text[len(came) :])

    def _again(self, holder: dict[str, Any], field: str, key: Channel) -> bool:
        """Tells a text again. Whether that changed it."""
        text = holder.get(field)
        if not isinstance(text, str):
            return False
        told = self._pieces.told(key, text)
        if told is None:
            told = self.speech.whole_arguments(text) if str(key[1]).endswith(_ARGUED) else self.speech.whole(text)
        holder[field] = told
        changed: bool = told != text
        return changed

    def _retold(self, said: dict[str, Any], type_: str) -> bool:
        """Tells again what an event has of texts. Whether that changed anything."""
        changed, index = False, int_or(said.get("output_index"), 0)
        part, item, response = said.get("part"), said.get("item"), said.get("response")
        if type_.endswith(".done"):
            name = type_.removesuffix(".done")
            changed = self._again(said, _field(name, said), _channel(name, said)[:3])
        if isinstance(part, dict):
            kind = BY_PART.get(text_of(part.get("type")))
            changed |= whole(self.speech, part) if kind is None else self._again(part, kind.field, _channel(kind.name, said)[:3])
        if isinstance(item, dict):
            changed |= self._item(item, index)
        if isinstance(response, dict):
            changed |= self._response(response)
        for holder in (said, part):
            if isinstance(holder, dict) and holder.get(LOGPROBS) and self.speech.acts:
                holder[LOGPROBS], changed = [], True
        return changed

    def _item(self, item: dict[str, Any], index: int) -> bool:
        parts = list(_parts(item))
        known = [self._pieces.told((index, kind.name, place), part[kind.field]) for kind, place, part in parts]
        changed = False
        if None in known:  # then what stands in several is looked for, too
            changed = any([whole(self.speech, item.get(name)) for name in _PLACES])
        else:
            for (kind, _, part), told in zip(parts, known, strict=True):
                changed |= told != part[kind.field]
                part[kind.field] = told
                if part.get(LOGPROBS) and self.speech.acts:
                    part[LOGPROBS], changed = [], True
        if changed:
            _without_proof(item)
        for field, name in _written(item):
            changed |= self._again(item, field, (index, name, 0))
        return self._rest_of(item) or changed

    def _rest_of(self, item: dict[str, Any]) -> bool:
        """Whatever else an item has: what a provider's tools are asked for, and answer."""
        rest = {name: value for name, value in item.items() if name not in _PLACES and isinstance(value, dict | list)}
        changed = bool(rest) and whole(self.speech, rest)
        item.update(rest)
        return changed

    def _response(self, response: dict[str, Any]) -> bool:
        items = response.get("output")
        changed = False
        for index, item in enumerate(items if isinstance(items, list) else ()):
            changed |= self._item(item, index) if isinstance(item, dict) else False
        if isinstance(text := response.get("output_text"), str):
            response["output_text"] = self.speech.whole(text)
            changed |= response["output_text"] != text
        return changed

    # -- the disclaimer -------------------------------------------------------------------------------------------------------------------

    def _due(self, last: dict[str, Any], response: dict[str, Any]) -> bool:
        """Whether the answer ends with what was kept, and lacks the disclaimer."""
        part = last.get("part")
        text = text_of((part if isinstance(part, dict) else last).get("text"))
        items = response.get("output")
        ends = _last_part(response) is not None if isinstance(items, list) and items else True
        return bool(self._disclaimer) and self._at[1] == TEXT.name and bool(text) and ends and not text.rstrip().endswith(self._disclaimer)

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


def _type(event: RawEvent, said: dict[str, Any]) -> str:
    return text_of(said.get("type")) or event.event


def _channel(name: str, said: dict[str, Any]) -> Channel:
    """Item, kind of text, part; and the item's id, to write of it."""
    part = said.get("summary_index") if "summary_index" in said else said.get("content_index")
    return (int_or(said.get("output_index"), 0), name, int_or(part, 0), text_of(said.get("item_id")))


def _follows(channel: Channel, other: Channel) -> bool:
    """The other text is that of a later part, of the same kind; those between say nothing."""
    return channel[:2] == other[:2] and int_or(channel[2], 0) < int_or(other[2], 0)


def _field(name: str, holder: dict[str, Any]) -> str:
    """Where an event that ends a text has it."""
    kind = KINDS.get(name)
    return kind.field if kind is not None else next((field for field in holder if field in TEXTS or field in ARGUMENTS), "")


def _parts(item: dict[str, Any]) -> Iterator[tuple[Kind, int, dict[str, Any]]]:
    """The parts of an item that hold texts, with their numbers."""
    for name in _PLACES:
        parts = item.get(name)
        for place, part in enumerate(parts if isinstance(parts, list) else ()):
            kind = BY_PART.get(text_of(part.get("type"))) if isinstance(part, dict) else None
            if kind is not None and isinstance(part.get(kind.field), str):
                yield kind, place, part


def _written(item: dict[str, Any]) -> list[tuple[str, str]]:
    """Texts that stand in an item itself, and the names of their events: what a tool is called with."""
    type_ = text_of(item.get("type"))
    return [
        (field, f"response.{type_}_{field}") for field, value in item.items() if isinstance(value, str) and (field in TEXTS or field in ARGUMENTS)
    ]


def _without_proof(item: dict[str, Any]) -> None:
    """Of a thought that was masked, and whose proof is that of another: its provider would refuse it. Then it is left out when it is sent back."""
    if text_of(item.get("encrypted_content")).startswith(THINKING):
        item["encrypted_content"] = THINKING


def _last_part(response: dict[str, Any]) -> dict[str, Any] | None:
    """The text with which a response ends; None if it does not end with one."""
    items = response.get("output")
    item = items[-1] if isinstance(items, list) and items else None
    content = item.get("content") if isinstance(item, dict) and item.get("type") == "message" else None
    part = content[-1] if isinstance(content, list) and content else None
    ends = isinstance(part, dict) and part.get("type") == TEXT.part and isinstance(part.get("text"), str)
    return part if ends else None


def _add(response: dict[str, Any], text: str) -> bool:
    """Adds to the text with which a response ends. Whether it ends with one."""
    part = _last_part(response)
    if part is None:
        return False
    part["text"] += text
    if isinstance(response.get("output_text"), str):
        response["output_text"] += text
    return True
