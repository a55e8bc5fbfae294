"""Counts output while it streams, and text before it is sent.

Per choice over the text so far: tokens of the model's vocabulary where it is known, else UTF-8 bytes (no token is shorter than one), never less
than one per delta with text, plus 8 per tool call (its framing is billed and never seen); all of it times what the deployment has been found to
bill beyond that (`factor_milli`). `seen` never falls. Where each token is known to come in an event of its own, the events are counted instead.

Vocabularies come with the package bpe-openai: nothing is downloaded. Its private binding is used, and only here, since it counts in 0.3 us and
in linear time on hostile text, where the public `encode` takes 2 us and refuses long texts. One is loaded when first named (0.5 s, 140 MB).
"""

import re
from collections.abc import Sequence
from functools import cache
from typing import Protocol

from msgspec import Raw

from sluicegate.core.prices import Marks
from sluicegate.dialects.form import Delta, Request

TEXT_MAX = 256 * 1024  # characters; above it text is counted by its bytes, since tokenizing would block every stream of the worker
TOOL_CALL = 8
TOKEN_BYTES = 16  # no text has more bytes than this in each of its tokens for long
OVERSHOOT_MILLI, OVERSHOOT_FLAT = 1100, 16
_TAIL_MAX = 32  # characters of a text without spaces that are counted again with what follows


class _Tokenizer(Protocol):
    def count(self, text: str) -> int: ...


@cache
def _loaded(tokenizer: str) -> _Tokenizer:
    # Here, since the import alone takes 0.6 s and 70 MB: a process that names no vocabulary does not pay for it.
    from bpe_openai._bindings import tokenizer_for_encoding  # type: ignore[import-untyped]  # noqa: PLC0415

    loaded: _Tokenizer = tokenizer_for_encoding(tokenizer)
    return loaded


def believed(cap: int) -> int:
    """How much an upstream may have produced and still be taken to keep to the cap that it was sent: 1.1 times that and 16 tokens."""
    return cap * OVERSHOOT_MILLI // 1000 + OVERSHOOT_FLAT


def load(tokenizer: str) -> None:
    """Loads a vocabulary before it is needed: at start, not under a request."""
    _loaded(tokenizer).count("")


def size(text: str) -> int:
    """UTF-8 bytes."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def count(text: str, tokenizer: str) -> int:
    """Tokens, or bytes where the vocabulary is not known or the text is very long."""
    if not tokenizer or len(text) > TEXT_MAX:
        return size(text)
    try:
        return _loaded(tokenizer).count(text)
    except UnicodeEncodeError:  # a lone surrogate, which JSON can write: three bytes of replacement
        return _loaded(tokenizer).count(text.encode("utf-8", "replace").decode())


class _Choice:
    """One choice in tokens. `settled` is the count of text that can no longer change, `tail` what is counted again with what follows."""

    __slots__ = ("deltas", "settled", "tail", "tail_tokens", "tokens")

    def __init__(self) -> None:
        self.settled = 0
        self.tail = ""
        self.tail_tokens = 0
        self.deltas = 0
        self.tokens = 0

    def add(self, text: str, tokenizer: str) -> int:
        """By how much the count of this choice grows."""
        tail = self.tail
        text = tail + text
        cut = text.rfind(" ")
        # No token of these vocabularies crosses from a character that is no space into a space: there the text can be cut for good.
        if cut > 0 and not text[cut - 1].isspace():
            self.settled += self.tail_tokens if cut == len(tail) else count(text[:cut], tokenizer)
            text = text[cut:]
        self.tail_tokens = count(text, tokenizer)
        if len(text) > _TAIL_MAX:
            self.settled += self.tail_tokens
            self.tail_tokens = 0
            text = ""
        self.tail = text
        self.deltas += 1
        before = self.tokens
        self.tokens = max(before, self.settled + self.tail_tokens, self.deltas)
        return self.tokens - before


class Meter:
    """The output of one answer.

    seen: over all choices, factor applied, rounded up. counted: the same without the factor. largest: the largest growth of `seen` in one `add`.
    least: what it is at least, in tokens: the count where the vocabulary is known, else one per delta, and per 16 bytes of it.
    by_event: each event counts as its token.
    """

    __slots__ = ("_choices", "_factor_milli", "_tokenizer", "_unread", "by_event", "counted", "largest", "least", "seen")

    def __init__(self, tokenizer: str, factor_milli: int) -> None:
        self.seen = 0
        self.counted = 0
        self.largest = 0
        self.least = 0
        self.by_event = False
        self._tokenizer = tokenizer
        self._factor_milli = factor_milli
        self._choices: dict[int, _Choice] = {}
        self._unread = 0  # of `seen`, beyond one per event: what events that could not be read may have been

    def add(self, delta: Delta) -> None:
        """Counts one delta."""
        text = delta.text
        if not text:
            more = 0
        elif self._tokenizer:
            choice = self._choices.get(delta.choice)
            if choice is None:
                choice = self._choices[delta.choice] = _Choice()
            more = choice.add(text, self._tokenizer)
        else:
            more = len(text) if text.isascii() else size(text)
        more += TOOL_CALL * delta.tool_calls
        if more:
            self.counted += more
            self.least += more if self._tokenizer else more // TOKEN_BYTES or 1
            seen = -(-self.counted * self._factor_milli // 1000)
            self.largest = max(self.largest, seen - self.seen)
            self.seen = seen

    def add_unreadable(self, text: str) -> None:
        """Counts an event that cannot be read: all of it may have been output, at least a token was."""
        least, seen = self.least, self.seen
        self.add(Delta(0, text))
        self.least = least + 1
        self._unread += self.seen - seen - 1

    def certain(self, cap: int) -> int:
        """What was produced in any case: the least; but all that there may be, once it is clear that the upstream does not keep to its cap."""
        return self.least if self.least <= believed(cap) else max(self.least, self.seen - self._unread)


class EchoMeter(Meter):
    """The output of an answer that begins with the prompt, `echoed` per choice: what repeats it is none.

    Where the answer turns out to be something else, all of it counts. Output that happens to begin as the prompt does, at an upstream that does not
    echo, is not counted: nothing may be decided by this count alone (`Request.shown` is False).
    """

    __slots__ = ("_echoed", "_left")

    def __init__(self, tokenizer: str, factor_milli: int, echoed: Sequence[str]) -> None:
        super().__init__(tokenizer, factor_milli)
        self._echoed = echoed
        self._left = list(echoed)

    def add(self, delta: Delta) -> None:
        """Counts what of a delta is no echo."""
        choice, text = delta.choice, delta.text
        left = self._left[choice] if 0 <= choice < len(self._left) else ""
        if left and text:
            if left.startswith(text):
                self._left[choice] = left[len(text) :]
                text = ""
            else:
                self._left[choice] = ""
                taken = self._echoed[choice].removesuffix(left)
                text = text[len(left) :] if text.startswith(left) else taken + text
        super().add(Delta(choice, text, delta.tool_calls))


class EventMeter(Meter):
    """The output of one stream whose upstream sends each token in an event of its own, and keeps to the `cap` over all choices that it was sent.

    Such an upstream holds a token back only while it ends inside a character. So ASCII is one token; other text is at most one, and one more for
    each byte inside its characters, where tokens may meet; between these two a vocabulary decides where one is known. Where the upstream may gather
    several tokens into an event (`each` is False), text is counted as it is elsewhere. Since all of that may be too much, and never too little, no
    more than the cap is counted, unless there have been more events.
    """

    __slots__ = ("_cap", "_events", "_most")

    def __init__(self, tokenizer: str, factor_milli: int, cap: int, each: bool = True) -> None:
        super().__init__(tokenizer, factor_milli)
        self.by_event = each
        self._cap = cap
        self._events = 0
        self._most = 0  # tokens that the events may have had

    def add(self, delta: Delta) -> None:
        """Counts one event."""
        text = delta.text
        self._events += 1
        if not self.by_event:
            self._most += max(1, count(text, self._tokenizer))
        else:
            self._most += 1 if text.isascii() else self._in_characters(text)
        if delta.tool_calls:
            self._most += TOOL_CALL * delta.tool_calls
        self.least = self._events
        self.counted = max(self._events, min(self._most, self._cap))
        seen = max(self._events, min(-(-self._most * self._factor_milli // 1000), self._cap))
        self.largest = max(self.largest, seen - self.seen)
        self.seen = seen

    def _in_characters(self, text: str) -> int:
        inside = size(text) - len(text)
        return max(1, min(1 + inside, count(text, self._tokenizer)))


# Fields of a request under which a server may send several tokens in one event: it waits whether they become a stop sequence, or a call.
_GATHERING = ("stop", "stop_sequences", "tools", "functions")
_NULL = Raw(b"null")


def sends_each_token(request: Request) -> bool:
    """Whether an upstream that sends each token in an event of its own does so for this request, too."""
    return all(request.fields.get(name, _NULL) == _NULL for name in _GATHERING)


def offers_tools(request: Request) -> bool:
    """Whether the model may call a tool."""
    fields = request.fields
    return fields.get("tools", _NULL) != _NULL or fields.get("functions", _NULL) != _NULL


def may_have_audio(request: Request) -> bool:
    """Whether audio may be in a request or asked for: content that is no text and no image is among that which is not bounded."""
    return bool(request.unbounded) or "audio" in request.fields or "modalities" in request.fields


_ESCAPED = re.compile(rb"\\u00[2-7]")  # what needs no escape, and may stand for a letter of a name that is looked for


def marks_of(request: Request) -> Marks:
    """How long what a request marks is to stay in the provider's cache. Longer than it says where a name could hide behind escapes."""
    found: Marks = "5m" if "cache_control" in request.fields else ""
    for raw in request.fields.values():
        data = bytes(raw)
        if b"\\u00" in data and _ESCAPED.search(data):
            return "1h"
        if found or b"cache_control" in data:
            found = "5m"
            if b'"1h"' in data:
                return "1h"
    return found
