"""What a streamed response consists of, as far as it was told: its items, and the events that tell and end them.

A stream is a list of `Step`s, in the order in which the client was told. `Output` is what they add up to: made from the first so many of them, it is
what the client knows at that point, and what has to be closed there. Both ends use it: the stream reader of a provider's answer, for the case that
the gateway has to end it, and the writer of an answer in this dialect.

https://platform.openai.com/docs/api-reference/responses-streaming
"""

import json
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct

from sluicegate.core.usage import Usage
from sluicegate.dialects.openai_body import loosely, text_of

_encode = msgspec.json.Encoder().encode


class Kind(Struct, frozen=True, gc=False):
    """A kind of text in an item. Its events are `<name>.delta` and `<name>.done`."""

    name: str
    field: str  # of the text, in the part (or item) and in the last event
    part: str = ""  # type of the part that holds it; "": it stands in the item itself
    index: str = ""  # the field of events that numbers the parts
    inside: str = ""  # the field of the item that has the parts
    events: str = ""  # of the part: `<events>.added` and `<events>.done`


TEXT = Kind("response.output_text", "text", "output_text", "content_index", "content", "response.content_part")
REFUSAL = Kind("response.refusal", "refusal", "refusal", "content_index", "content", "response.content_part")
REASONING = Kind("response.reasoning_text", "text", "reasoning_text", "content_index", "content", "response.content_part")
SUMMARY = Kind("response.reasoning_summary_text", "text", "summary_text", "summary_index", "summary", "response.reasoning_summary_part")
ARGUMENTS = Kind("response.function_call_arguments", "arguments")
INPUT = Kind("response.custom_tool_call_input", "input")
KINDS = {kind.name: kind for kind in (TEXT, REFUSAL, REASONING, SUMMARY, ARGUMENTS, INPUT)}
BY_PART = {kind.part: kind for kind in (TEXT, REFUSAL, REASONING, SUMMARY)}
CALLS = {"function_call": ARGUMENTS, "custom_tool_call": INPUT}

Status = Literal["completed", "incomplete"]


class Step(Struct, gc=False):
    """One thing that the client was told."""

    what: Literal["added", "part", "text", "text_done", "part_done", "done", "finish"]
    output_index: int = 0
    kind: Kind | None = None
    index: int = 0
    value: Any = None  # an item (its fields, or the JSON of them), a text, or the finish reason


class Head(Struct):
    """A stream up to any point: the response as it began, and all steps."""

    response: dict[str, Any]
    steps: list[Step]


class _Part:
    """A text and how much of its end was told."""

    def __init__(self, kind: Kind, index: int) -> None:
        self.kind = kind
        self.index = index
        self.texts: list[str] = []
        self.beside: dict[str, Any] = {"annotations": [], "logprobs": []} if kind is TEXT else {}
        self.open = self.text_open = True
        self.frame: tuple[bytes, bytes, bytes] | None = None  # of the events of its deltas: around their numbers and their texts

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def object(self) -> dict[str, Any]:
        return {"type": self.kind.part, self.kind.field: self.text, **self.beside}


class Item:
    """An item as far as it was told."""

    def __init__(self, index: int, fields: dict[str, Any]) -> None:
        self.index = index
        self.fields = fields
        self.parts: list[_Part] = []
        self.open = True

    def part(self, kind: Kind, index: int) -> _Part:
        for part in self.parts:
            if part.kind is kind and part.index == index:
                return part
        self.parts.append(_Part(kind, index))
        return self.parts[-1]

    def whole(self, status: Status) -> dict[str, Any]:
        """The item, as if it ended here."""
        if not self.open:
            return self.fields
        fields = dict(self.fields)
        if "status" in fields or fields.get("type") != "custom_tool_call":  # which need not have one
            fields["status"] = status
        for name in {part.kind.inside for part in self.parts if part.kind.inside}:
            fields[name] = [part.object() for part in sorted(self.parts, key=lambda part: part.index) if part.kind.inside == name]
        for part in self.parts:
            if not part.kind.inside:
                fields[part.kind.field] = part.text
        return fields


class Output:
    """All items, as far as they were told."""

    def __init__(self, steps: list[Step]) -> None:
        self.items: dict[int, Item] = {}
        self.finish = ""
        for step in steps:
            self.take(step)

    def take(self, step: Step) -> None:
        """One more step."""
        if step.what == "finish":
            self.finish = step.value
            return
        item = self.items.get(step.output_index)
        if item is None or step.what == "added":
            item = self.items[step.output_index] = Item(step.output_index, dict(_fields(step.value)))
        if step.what == "done":
            item.fields, item.open = _fields(step.value), False
        elif step.kind is not None:
            part = item.part(step.kind, step.index)
            if step.what == "text":
                part.texts.append(step.value)
            part.text_open = part.text_open and step.what not in ("text_done", "part_done")
            part.open = part.open and step.what != "part_done"

    def whole(self, status: Status) -> list[dict[str, Any]]:
        """All items, as if they ended here."""
        return [self.items[index].whole(status) for index in sorted(self.items)]


class Events:
    """Writes events, numbering them. Raises RecursionError where a value is nested too deeply to be written."""

    def __init__(self, sequence: int = 0) -> None:
        self.sequence = sequence  # of the next

    def event(self, type_: str, fields: Mapping[str, Any]) -> bytes:
        data = {"type": type_, "sequence_number": self.sequence, **fields}
        self.sequence += 1
        return b"event: %b\ndata: %b\n\n" % (type_.encode(), encoded(data))

    def added(self, item: Item) -> bytes:
        return self.event("response.output_item.added", {"output_index": item.index, "item": item.fields})

    def part_added(self, item: Item, part: _Part) -> bytes:
        """For texts that stand in a part of their own; b"" for others."""
        if not part.kind.events:
            return b""
        empty = {**part.object(), part.kind.field: ""}
        return self.event(f"{part.kind.events}.added", {**_place(item, part), "part": empty})

    def text(self, item: Item, part: _Part, delta: str) -> bytes:
        frame = part.frame
        if frame is None:
            name = f"{part.kind.name}.delta".encode()
            place, more = encoded(_place(item, part))[1:-1], b',"logprobs":[]' if part.kind is TEXT else b""
            begin = b'event: %b\ndata: {"type":"%b","sequence_number":' % (name, name)
            frame = part.frame = (begin, b',%b,"delta":' % place, more + b"}\n\n")
        self.sequence += 1
        return b"%b%d%b%b%b" % (frame[0], self.sequence - 1, frame[1], encoded(delta), frame[2])

    def end(self, item: Item, whole: dict[str, Any]) -> bytes:
        """What is left to tell of an item that ends as `whole`."""
        out = []
        for part in item.parts:
            place = _place(item, part)
            if part.text_open:
                more: dict[str, Any] = {"logprobs": []} if part.kind is TEXT else {}
                out.append(self.event(f"{part.kind.name}.done", {**place, part.kind.field: part.text, **more}))
            if part.open and part.kind.events:
                out.append(self.event(f"{part.kind.events}.done", {**place, "part": part.object()}))
        out.append(self.event("response.output_item.done", {"output_index": item.index, "item": whole}))
        return b"".join(out)

    def ends(self, output: Output, status: Status) -> bytes:
        """The ends of all items that are open."""
        open_items = [output.items[index] for index in sorted(output.items) if output.items[index].open]
        return b"".join([self.end(item, item.whole(status)) for item in open_items])


def encoded(data: Any) -> bytes:
    """Raises RecursionError."""
    try:
        return _encode(data)
    except (ValueError, OverflowError):  # half of a surrogate pair, or a number beyond 64 bits, of an upstream's
        return json.dumps(data, default=_value).encode()


def _value(value: Any) -> Any:
    """Of what json does not know: raw fields of a request."""
    return loosely(bytes(value))


def _place(item: Item, part: _Part) -> dict[str, Any]:
    numbered = {part.kind.index: part.index} if part.kind.index else {}
    return {"item_id": text_of(item.fields.get("id")), "output_index": item.index, **numbered}


def _fields(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    loose = loosely(bytes(value)) if isinstance(value, Raw) else None
    return loose if isinstance(loose, dict) else {}


# -- the response itself ------------------------------------------------------------------------------------------------------------------

_REASONS = {"length": "max_output_tokens"}


def ended(response: dict[str, Any], output: Output, finish: str, usage: Usage | None) -> dict[str, Any]:
    """The response when all is said. Any finish but a good one makes it incomplete, for that reason."""
    good = finish in ("stop", "tool_calls")
    return response | {
        "status": "completed" if good else "incomplete",
        "incomplete_details": None if good else {"reason": _REASONS.get(finish, finish)},
        "output": output.whole("completed" if good else "incomplete"),
        "usage": usage_object(usage) if usage is not None else None,
    }


def usage_object(usage: Usage) -> dict[str, Any]:
    read, written = usage.input_tokens or 0, usage.output_tokens or 0
    return {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": usage.cache_write_tokens},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": read + written,
    }


def told(response: dict[str, Any]) -> bytes:
    """A whole response as the stream that it might have been."""
    events = Events()
    begun = response | {"status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    out = [events.event(f"response.{name}", {"response": begun}) for name in ("created", "in_progress")]
    for index, whole in enumerate(response["output"]):
        if isinstance(whole, dict):
            out.append(_told_item(events, index, whole))
    status = "completed" if response.get("status") != "incomplete" else "incomplete"
    out.append(events.event(f"response.{status}", {"response": response}))
    return b"".join(out)


def _told_item(events: Events, index: int, whole: dict[str, Any]) -> bytes:
    item = Item(index, dict(whole))
    for name in ("content", "summary"):
        parts = whole.get(name)
        for place, part in enumerate(parts) if isinstance(parts, list) else ():
            kind = BY_PART.get(text_of(part.get("type"))) if isinstance(part, dict) else None
            if kind is not None and kind.inside == name and isinstance(part.get(kind.field), str):
                told_part = item.part(kind, place)
                told_part.texts.append(part[kind.field])
                told_part.beside = {field: value for field, value in part.items() if field not in ("type", kind.field)}
                item.fields[name] = []
    kind = CALLS.get(text_of(whole.get("type")))
    if kind is not None and isinstance(whole.get(kind.field), str):
        item.part(kind, 0).texts.append(whole[kind.field])
        item.fields[kind.field] = ""
    if "status" in whole:
        item.fields["status"] = "in_progress"
    out = [events.added(item)]
    for part in item.parts:
        out += [events.part_added(item, part), events.text(item, part, part.text)]
    return b"".join([*out, events.end(item, whole)])
