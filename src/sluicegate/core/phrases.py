"""Looks for phrases in texts, whole or as they come.

Invariant: what comes out of a text, all pieces joined, is the same however it was cut. So a piece of a text that goes on is given out as far as
nothing that comes can change it: what may be the beginning of a phrase waits, at most HELD_MAX characters, and usually nothing does. Phrases of
several rules may overlap: every character of any of them is masked, so no rule can save from another what it bans. Time is linear in the text.

A match that is longer than HELD_MAX characters, most of which cannot be seen then, is none. A phrase is not found where a combining mark follows it,
which makes its last letter another one.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from sluicegate.core.folding import EDGE, fold
from sluicegate.core.patterns import WORD, BadPattern, Pattern, parse

HELD_MAX = 4_096  # characters of a text that goes on
MATCHES_MAX = 5_000  # of one phrase in one piece: what follows them is masked as one
PROGRAM_MAX = 50_000  # instructions of RE2, of all phrases together: about as many characters as they are long

Action = Literal["refuse", "mask", "report"]

_ANY = r"[\x{0}-\x{10FFFF}]"
_NO_WORD = f"[^{WORD}]"
_NO_MARK = r"[^\pM\x{11A8}-\x{11FF}]"


class Phrase(Struct, frozen=True):
    """What is banned, and what comes of it."""

    name: str
    pattern: str  # a literal text, or `regex:` and an expression
    action: Action = "refuse"
    input: bool = True
    output: bool = True
    words: bool = False  # whole words only
    mask: str = "[BANNED]"
    scope: str = ""  # id of whose rule it is


class State(Struct, frozen=True, gc=False):
    """Of a text that goes on."""

    before: str = EDGE  # the folded character before what waits
    pending: str = ""  # what waits
    masked: int = 0  # characters of it that have been replaced already
    looked: tuple[int, ...] = ()  # by phrase, bytes of it, folded, that a match was found in already; (): none


START = State()


class Passed(NamedTuple):
    """What of a text may go on, and what was found."""

    state: State
    text: str
    found: frozenset[int]  # places of phrases
    refused: int = -1  # the phrase by which the text ends here


NONE: frozenset[int] = frozenset()


class Phrases:
    """Several phrases, compiled. Those that refuse and those that mask act; for those that report, texts stay as they are."""

    __slots__ = ("_any", "_begun", "_each", "_first", "phrases")

    def __init__(self, phrases: Sequence[Phrase]) -> None:
        """Raises BadPattern."""
        self.phrases = tuple(phrases)
        parsed = [parse(phrase.pattern, phrase.words) for phrase in phrases]
        wholes = [_before(one) + one.whole + _behind(one) for one in parsed]
        self._each = [_compiled(whole) for whole in wholes]
        self._any = _compiled("|".join(wholes))
        begun = "(?:" + "|".join([_before(one) + one.begun for one in parsed]) + r")\z"
        self._begun = _compiled(begun)
        self._first = _compiled("|".join([*wholes, begun]))

    def find(self, text: str) -> frozenset[int]:
        """Which are in a whole text."""
        return self.read(START, text, end=True).found

    def anywhere(self, texts: Iterable[str]) -> bool:
        """Whether any is in one of these texts."""
        return self._any.search((EDGE + EDGE.join([fold(text) for text in texts]) + EDGE).encode()) is not None

    def read(self, state: State, more: str, *, end: bool) -> Passed:
        """One more piece of a text. end: it is the last."""
        text = state.pending + more
        folded = fold(text)
        data = (state.before + folded + (EDGE if end else "")).encode()
        if not text or (not state.looked and not state.masked and self._is_clear(data, end)):
            return Passed(START if end else State(folded[-1:] or state.before), text, NONE)  # the usual case
        base = len(state.before.encode())
        starts = _starts(text, folded, base)
        held = len(text) if end else self._held(data, text, starts)
        if self._any.search(data) is None:
            out = text[state.masked : held]
            return Passed(self._next(state, data, text, starts, held, max(state.masked, held), ()), out, NONE)
        limit = starts[held] if held < len(text) else len(data)
        looked = [base + at for at in state.looked] or [base] * len(self._each)
        spans = sorted(self._spans(data, text, starts, limit, looked), key=lambda span: (span[0], self.phrases[span[2]].action != "refuse", span[2]))
        return self._replaced(state, data, text, starts, held, spans, looked)

    def _is_clear(self, data: bytes, end: bool) -> bool:
        """There is no phrase, and where the text goes on, no beginning of one at the end but the empty one behind the last character."""
        if end:
            return self._any.search(data) is None
        match = self._first.search(data)
        return match is None or _after_first(data, match.start()) == len(data)

    def _replaced(
        self, state: State, data: bytes, text: str, starts: Sequence[int], held: int, spans: list[tuple[int, int, int]], looked: list[int]
    ) -> Passed:
        out: list[str] = []
        found: set[int] = set()
        at = state.masked
        for first, last, index in spans:
            found.add(index)
            phrase = self.phrases[index]
            if phrase.action == "report":
                continue
            if first >= at:
                out.append(text[at:first])
            if phrase.action == "refuse":
                return Passed(START, "".join(out), frozenset(found), index)
            if first >= at:
                out.append(phrase.mask)
            at = max(at, last)
        out.append(text[at:held])
        after = self._next(state, data, text, starts, held, max(at, held), looked)
        return Passed(after, "".join(out), frozenset(found))

    def _next(self, state: State, data: bytes, text: str, starts: Sequence[int], held: int, at: int, looked: Sequence[int]) -> State:
        """The state in which `text[held:]` waits; it has been replaced up to `at`."""
        begin = starts[held]
        before = _last(data[:begin]) if begin > starts[0] else state.before
        ahead = tuple([max(0, one - begin) for one in looked]) if looked else tuple([max(0, one + starts[0] - begin) for one in state.looked])
        return State(before, text[held:], at - held, ahead if any(ahead) else ())

    def _held(self, data: bytes, text: str, starts: Sequence[int]) -> int:
        """From which character on a text that goes on has to wait."""
        held = self._beginning(data, 0, starts)
        if len(text) - held > HELD_MAX:
            least = len(text) - HELD_MAX
            held = max(least, self._beginning(data, _before_last(data, starts[least]), starts))
        return held

    def _beginning(self, data: bytes, at: int, starts: Sequence[int]) -> int:
        """The first character, from the one behind `at` on, from which to the end of the data stands the beginning of a phrase."""
        match = self._begun.search(data, at)
        return bisect_right(starts, _after_first(data, match.start())) - 1 if match is not None else len(starts) - 1

    def _spans(self, data: bytes, text: str, starts: Sequence[int], limit: int, looked: list[int]) -> Iterable[tuple[int, int, int]]:
        """(first character, the one behind the last, phrase) of the matches that begin before `limit`, which are final. Moves `looked`."""
        for index, pattern in enumerate(self._each):
            at, left = looked[index], MATCHES_MAX
            while (match := pattern.search(data, _before_last(data, at))) is not None:
                first, last = _after_first(data, match.start()), _before_last(data, match.end())
                if first >= limit:
                    break
                begin, behind = bisect_right(starts, first) - 1, bisect_left(starts, last)
                if behind - begin > HELD_MAX:
                    at = _after_first(data, first)
                    continue
                left -= 1
                if left < 0:
                    looked[index] = limit
                    yield begin, bisect_left(starts, min(limit, starts[-1])), index
                    break
                at = looked[index] = last
                yield begin, behind, index


def _before(pattern: Pattern) -> str:
    return _NO_WORD if pattern.words[0] else _ANY


def _behind(pattern: Pattern) -> str:
    return _NO_WORD if pattern.words[1] else _NO_MARK


def _compiled(written: str) -> Any:
    import re2  # noqa: PLC0415  (only where something is banned)

    options = re2.Options()
    options.longest_match = True
    options.never_capture = True
    options.log_errors = False
    options.max_mem = 16 << 20  # of which the search takes two thirds at most, as texts make it
    try:
        compiled = re2.compile(written, options)
    except re2.error as error:
        raise BadPattern(f"cannot be compiled: {error}") from None
    if compiled.programsize > PROGRAM_MAX:
        raise BadPattern(f"is too large, together with the others: {compiled.programsize} steps, and {PROGRAM_MAX} are the most")
    return compiled


def _starts(text: str, folded: str, base: int) -> Sequence[int]:
    """Where each character of a text, and its end, are in the bytes of what it is folded to."""
    if len(folded) == len(text) and text.isascii():
        return range(base, base + len(text) + 1)
    return list(accumulate([len(fold(character).encode()) for character in text], initial=base))


def _after_first(data: bytes, at: int) -> int:
    """Behind the character at `at`."""
    at += 1
    while at < len(data) and data[at] & 0xC0 == 0x80:
        at += 1
    return at


def _before_last(data: bytes, at: int) -> int:
    """Where the character before `at` begins."""
    at -= 1
    while data[at] & 0xC0 == 0x80:
        at -= 1
    return at


def _last(data: bytes) -> str:
    return data[_before_last(data, len(data)) :].decode()
