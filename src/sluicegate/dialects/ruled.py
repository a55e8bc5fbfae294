"""An answer under content rules, on its way to the client: masked, ended where it must, with a disclaimer at its end.

`Ruled` stands before whatever makes an attempt and reads its answer (form.py, between.py) and has the same names. What was metered stays as it is;
only the bytes for the client change, and only where a rule changes them. A shaper for the client's dialect does that, event by event; a text that
has to wait comes with a later event, at the latest with the one that ends it. Its state goes with each event as `after`, since a stream that is cut
ends behind the last event that was covered: what came later was never said.

Where a rule refuses what was said, an event of kind "refused" follows the last text before it.

A whole answer of the usual shape, which says one text, is changed in its bytes. Any other is decoded and encoded; a long one in steps, between which
others have their turns (`Ruled.steps`, ruling.py). Numbers stay as they are written. Where a name is given twice, or it is no JSON to us and may be
some to others, what was read is what goes out.
"""

import json
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any, Protocol

import msgspec
from msgspec import Raw, Struct

from sluicegate.core.content_rules import BETWEEN
from sluicegate.core.speech import CLEAR_MAX, Mark, Speech, Steps, at_once
from sluicegate.core.usage import Usage
from sluicegate.dialects.between import Between
from sluicegate.dialects.form import Answer, BadRequest, Event, Request, Target
from sluicegate.dialects.openai_body import int_or
from sluicegate.dialects.repeats import refuse_repeats_in
from sluicegate.dialects.sse import RawEvent
from sluicegate.dialects.sse import Reader as Lines


def _as_written(number: str) -> Raw:
    return Raw(number.encode())


_decode = msgspec.json.Decoder(float_hook=_as_written).decode
_decode_text = msgspec.json.Decoder(str).decode
_encode = msgspec.json.Encoder().encode


# Fields that hold what a model wrote, wherever in an answer they stand, be it to a tool, in a text or in a list of them; and those that hold JSON.
TEXTS = frozenset((
    "content", "text", "reasoning", "reasoning_content", "refusal", "thinking", "summary", "transcript",
    "input", "code", "query", "queries", "command", "commands", "diff", "revised_prompt",
))  # fmt: skip
ARGUMENTS = frozenset(("arguments", "partial_json"))
# They repeat output in pieces that nobody has searched.
LOGPROBS = "logprobs"


class Shaper(Protocol):
    """How a client's dialect says an answer. One for each answer."""

    speech: Speech

    def usual(self, data: bytes) -> bytes | None: ...  # a whole answer of the usual shape, as `reworded`
    def body(self, answer: dict[str, Any]) -> Steps[bool]: ...  # changes any whole answer; whether it did
    def event(self, event: RawEvent) -> list[bytes]: ...  # what the client reads instead of an event
    def mark(self) -> Any: ...
    def back_to(self, mark: Any) -> None: ...


class _After(Struct, frozen=True, gc=False):
    """The state after an event: of the stream itself, of its texts, and of the shaper."""

    inner: Any
    speech: Mark
    shaper: Any


class Reader:
    """A stream as its client may read it."""

    def __init__(self, reader: Any, shaper: Shaper) -> None:
        self._reader = reader
        self._shaper = shaper
        self._over = False

    @property
    def head(self) -> Any:
        return self._reader.head

    @property
    def ending(self) -> bytes:
        """What is left to be said, and the end that the upstream has left out."""
        ending: bytes = self._reader.ending
        return b"".join(self.shaped(ending)) if ending else b""

    def feed(self, data: bytes) -> list[Event]:
        """The events that `data` completes."""
        return self._all(self._reader.feed(data))

    def end(self) -> list[Event]:
        """What is left at the end of the answer."""
        return self._all(self._reader.end())

    def last(self, charged: Usage) -> bytes:
        """The last bytes of an answer that is translated."""
        return b"".join(self.shaped(self._reader.last(charged)))

    def shaped(self, raw: bytes) -> list[bytes]:
        """Bytes for the client, in events."""
        if raw.startswith(b"data: ") and raw.find(b"\n") == len(raw) - 2 and raw.endswith(b"\n\n"):  # as nearly always
            return self._shaper.event(RawEvent(raw, "", raw[6:-2]))
        lines = Lines()
        return [piece for event in (*lines.feed(raw), *lines.end()) for piece in self._shaper.event(event)]

    def refused_at_end(self, after: _After | None) -> str:
        """Takes note of what is in the texts that wait, if the answer ends behind the event that left this state (None: the last one). The rule that
        refuses them, if one does."""
        speech = self._shaper.speech
        now = speech.mark()
        if after is not None:
            speech.back_to(after.speech)
        for channel in speech.open:
            speech.end(channel)
        refused = speech.refused
        speech.back_to(now)
        return refused

    def truncated(self, after: _After, raw: bytes) -> bytes:
        """The bytes that end an answer behind the event that left this state."""
        self._shaper.speech.back_to(after.speech)
        self._shaper.back_to(after.shaper)
        return b"".join(self.shaped(raw))

    def _all(self, events: list[Event]) -> list[Event]:
        speech, shaper, out = self._shaper.speech, self._shaper, list[Event]()
        refused = False
        for event in events:
            if self._over:  # metered all the same
                out.append(Event(b"", "chunk", event.deltas, usage=event.usage))
                continue
            if event.kind in ("chunk", "other", "done") and event.raw:
                pieces = self.shaped(event.raw)
                event.raw = pieces[-1] if pieces else b""
                if len(pieces) > 1:
                    out.append(Event(b"".join(pieces[:-1]), "other"))
                self._over = refused = bool(speech.refused)
                if refused:
                    event.kind, event.finishes = "chunk", []
            event.after = _After(event.after, speech.mark(), shaper.mark())
            out.append(event)
        if refused:
            out.append(Event(b"", "refused"))
        return out


class Ruled:
    """One attempt whose answer is under rules. `refused`: the rule that a whole answer has broken, or a stream."""

    def __init__(self, inner: Any, shaper: Callable[[], Shaper], request: Request) -> None:
        self._inner = inner
        self._new_shaper = shaper
        self._streams = request.stream
        self.steps: Steps[None] | None = None  # that are left to take before a whole answer can be told
        self._shaper: Shaper | None = None
        self._reader: Reader | None = None
        self._refused_at_end = ""

    @property
    def left_out(self) -> list[str]:
        """Fields of the request that the provider's dialect has no place for."""
        return self._inner.left_out if isinstance(self._inner, Between) else []

    @property
    def speech(self) -> Speech:
        """Of an answer that has come."""
        assert self._shaper is not None
        return self._shaper.speech

    @property
    def refused(self) -> str:
        return self._refused_at_end or (self._shaper.speech.refused if self._shaper is not None else "")

    def write_request(self, request: Request, target: Target) -> bytes:
        """Raises Inexpressible, BadRequest."""
        written: bytes = self._inner.write_request(request, target)
        return written

    def read_answer(self, body: bytes) -> Answer:
        """As it is metered; `body` is what the client gets, after the `steps` of a long one."""
        answer: Answer = self._inner.read_answer(body)
        if answer.readable and answer.failure is None and not self._streams:
            shaper = self._shaper = self._new_shaper()
            data = answer.body or body
            told = shaper.usual(data) if len(data) <= CLEAR_MAX else None
            if told is not None:
                answer.body = told or answer.body
                return answer
            steps = _changed(answer, data, shaper)
            if len(data) <= shaper.speech.at_once:
                at_once(steps)
            else:
                self.steps = steps
        return answer

    def streamed(self, body: bytes) -> bytes:
        """Not under rules yet: the stream reader's is."""
        streamed: bytes = self._inner.streamed(body)
        return streamed

    def StreamReader(self) -> Reader:
        self._shaper = self._new_shaper()
        self._reader = Reader(self._inner.StreamReader(), self._shaper)
        return self._reader

    def end(self, after: _After | None) -> bool:
        """A stream has ended, behind the event that left this state (None: the last one), but for its last bytes. Whether a rule refuses what waits:
        then they are not to be written."""
        if self._reader is not None and not self.refused:
            self._refused_at_end = self._reader.refused_at_end(after)
        return bool(self.refused)

    def write_event(self, event: Event, hide_usage: bool) -> bytes:
        written: bytes = self._inner.write_event(event, hide_usage) if event.raw else b""
        return written

    def write_truncation(self, head: Any, after: _After | None, choices: Iterable[int], reason: str, usage: Usage | None) -> bytes:
        """What was covered and had to wait is said before the end."""
        written: bytes = self._inner.write_truncation(head, after.inner if after is not None else None, choices, reason, usage)
        return self._reader.truncated(after, written) if self._reader is not None and after is not None else written


def _changed(answer: Answer, data: bytes, shaper: Shaper) -> Steps[None]:
    told = decoded(data)
    if isinstance(told, dict):
        changed = yield from shaper.body(told)
        if changed or (shaper.speech.acts and _reads_otherwise(data)):
            answer.body = encoded(told)


# -- for shapers --------------------------------------------------------------------------------------------------------------------------


def decoded(data: bytes) -> Any:
    """JSON as plain values, but for fractions, which are raw; None if it is none."""
    try:
        return _decode(data)
    except (ValueError, RecursionError):
        pass
    try:
        return json.loads(data, parse_int=_integer, parse_float=_as_written, parse_constant=_as_written)
    except (ValueError, RecursionError):
        return None


def _integer(digits: str) -> int | Raw:
    return int(digits) if len(digits) < 19 else _as_written(digits)


def encoded(data: Any) -> bytes:
    """What was decoded, with numbers as they were written. Raises RecursionError."""
    try:
        return _encode(data)
    except (ValueError, OverflowError):  # half of a surrogate pair, of an upstream's
        return _spelled(data).encode()


def _spelled(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join([f"{json.dumps(name)}:{_spelled(each)}" for name, each in value.items()]) + "}"
    if isinstance(value, list):
        return "[" + ",".join([_spelled(each) for each in value]) + "]"
    return bytes(value).decode() if isinstance(value, Raw) else json.dumps(value)


def _reads_otherwise(data: bytes) -> bool:
    """Whether others may read something else in JSON: it has a name twice, or not everybody takes it."""
    try:
        refuse_repeats_in(data, "")
    except (BadRequest, ValueError, RecursionError):
        return True
    return False


def written(event: RawEvent, data: Any) -> bytes:
    """An event with other data."""
    return (b"event: %b\n" % event.event.encode() if event.event else b"") + b"data: %b\n\n" % encoded(data)


def alone(before: bytes, braces: int, last: int, *above: bytes) -> bool:
    """Whether no name that leads to a text is given twice: of two the last is read, so the others stand before it. braces: that are open there, if
    nothing was closed. last: how often the name stands there that is next to the text. above: the other names."""
    return b"\\" not in before and last == 1 and (before.count(b"{") == braces or all([before.count(name) == 1 for name in above]))


def reworded(speech: Speech, disclaimer: str, data: bytes, said: bytes, is_alone: Callable[[bytes], bool]) -> bytes | None:
    """An answer that says one text and nothing else, as its client may read it; b"" if that is as it came. None: it cannot be changed so. said: that
    text in JSON. is_alone: of what stands before it (`alone`)."""
    around = data.split(said) if said[:1] == b'"' else ()
    if len(around) != 2 or (speech.acts and not is_alone(around[0])):
        return None
    text = _decode_text(said)
    if len(text) > speech.at_once and not speech.clear(text):
        return None
    told = speech.whole(text)
    if disclaimer and told and not told.rstrip().endswith(disclaimer):
        told = told + BETWEEN + disclaimer
    return _encode(told).join(around) if told != text else b""


def whole(speech: Speech, value: Any) -> bool:
    """Masks every text in an object or a list. Whether that changed anything."""
    return at_once(reading(speech, value))


def reading(speech: Speech, value: Any) -> Steps[bool]:
    """The same in steps."""
    changed = False
    for key, each in _members(value):
        told = each
        if isinstance(each, str):
            if key in TEXTS:
                told = yield from speech.read(each)
            elif key in ARGUMENTS:
                told = yield from speech.read_arguments(each)
        elif key == LOGPROBS and each and speech.acts:
            told = [] if isinstance(each, list) else None
        elif (key == "input" and isinstance(each, dict)) or (key in TEXTS and isinstance(each, list) and _are_texts(each)):  # of a call
            told = yield from speech.read_strings(each)
        elif isinstance(each, dict | list):
            inside = yield from reading(speech, each)
            if inside and isinstance(each, dict) and each.get("signature"):
                each["signature"] = ""  # which is that of another text
            changed |= inside
        if told is not each and told != each:
            value[key], changed = told, True
    beside = isinstance(value, list) and (yield from joined(speech, value))
    return beside or changed


def joined(speech: Speech, parts: list[Any]) -> Steps[bool]:
    """Masks what stands in several parts side by side, as if their texts were one. Whether that changed anything."""
    changed = False
    for kind, alike in groupby(parts, _kind):
        run = list(alike)
        if kind is None or len(run) < 2:
            continue
        fields = [_text_field(part) for part in run]
        texts = [part[field] for part, field in zip(run, fields, strict=True)]
        masked = yield from speech.joined(texts)
        for part, field, old, told in zip(run, fields, texts, masked, strict=True):
            if told != old:
                part[field], changed = told, True
                if part.get("signature"):
                    part["signature"] = ""  # which is that of another text
    return changed


def _text_field(part: dict[str, Any]) -> str:
    """Where a part has its text; "" if it has none."""
    return next((name for name in ("text", "refusal", "thinking") if isinstance(part.get(name), str)), "")


def _kind(part: Any) -> Any:
    """Parts of one kind are read on from one to the next: answers and refusals are. None: it has no text."""
    if not isinstance(part, dict) or not _text_field(part):
        return None
    kind = part.get("type")
    return "text" if kind in ("output_text", "refusal") else kind


def _are_texts(values: list[Any]) -> bool:
    return all(isinstance(each, str) for each in values)


def _members(value: Any) -> list[tuple[Any, Any]]:
    return list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []


def pieces(speech: Speech, value: dict[str, Any], channel: tuple[str | int, ...], last: bool) -> bool:
    """The same for an object whose texts go on, unless it is the last."""
    changed = False
    for key, each in list(value.items()):
        here = (*channel, key)
        if isinstance(each, str):
            told = each
            if key in TEXTS:
                told = speech.say(here, each, last=last)
            elif key in ARGUMENTS:
                told = speech.argue(here, each, last=last)
            if told != each:
                value[key], changed = told, True
        elif key == LOGPROBS and each and speech.acts:
            value[key], changed = None, True
        elif isinstance(each, dict):
            changed |= pieces(speech, each, here, last)
        elif isinstance(each, list):
            for place, one in enumerate(each):
                if isinstance(one, dict):
                    part = (*here, int_or(one.get("index"), place))
                    changed |= _signed(speech, one, part) if one.get("signature") else pieces(speech, one, part, last)
    return changed


def _signed(speech: Speech, thought: dict[str, Any], channel: tuple[str | int, ...]) -> bool:
    """The same for a thought that comes whole with its signature, or ends with it. Once something was masked that goes: its provider would refuse it,
    and so the thought is left out when it is sent back."""
    goes_on = any(one[: len(channel)] == channel for one in speech.open)
    if not goes_on:
        masked = whole(speech, thought)
    else:
        masked = pieces(speech, thought, channel, last=True)
        for one in [one for one in speech.open if one[: len(channel)] == channel]:  # of which it has no more
            rest = speech.end(one)
            thought[str(one[-1])], masked = rest, masked or bool(rest)
    if speech.masks and (goes_on or masked):
        thought["signature"], masked = "", True
    return masked
