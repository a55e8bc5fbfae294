"""Looks for phrases in texts, whole or as they come.

Invariant: what comes out of a text, all pieces joined, is the same however it was cut. So a piece of a text that goes on is given out as far as
nothing that comes can change it: what may be the beginning of a phrase waits, at most HELD_MAX characters, and usually nothing does. Phrases of
several rules may overlap: every character of any of them is masked, so no rule can save from another what it bans. Time is linear in the text.

A match that is longer than HELD_MAX characters, most of which cannot be seen then, is none. A phrase is not found where a combining mark follows it,
which makes its last letter another one.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from sluicegate.core.folding import EDGE, fold
from sluicegate.core.patterns import LETTERS, BadPattern, Pattern, parse

HELD_MAX = 4_096  # characters of a text that goes on
MATCHES_MAX = 5_000  # that are masked one by one; the text that follows them is masked as one
PROGRAM_MAX = 50_000  # instructions of RE2, of all phrases together: about as many characters as they are long
SIGNS_MAX = 16  # more of them take longer than a search
WAITS_LONG = 32  # characters: what has waited so long will hardly be clear with the next ones
SLICE, SLICE_LEAST = 4_096, 128  # characters that are searched at once, at most
_AT_ONCE = 1_500_000  # characters times instructions: a few milliseconds, if a text has as many beginnings under way as there can be

Action = Literal["refuse", "mask", "report"]

_ANY = r"[\x{0}-\x{10FFFF}]"
_NO_WORD = f"[^{LETTERS}]"  # `_` ends a word: it is how emphasis is written
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
    left: int = MATCHES_MAX  # matches that are still masked one by one; below 0: the rest of the text is masked already


START = State()
Span = tuple[int, int, int]  # the first character, the one behind the last, the phrase


class Passed(NamedTuple):
    """What of a text may go on, and what was found."""

    state: State
    text: str
    found: frozenset[int]  # places of phrases
    refused: int = -1  # the phrase by which the text ends here
    masked: Sequence[Span] = ()  # from the first character on that waited, in their order


NONE: frozenset[int] = frozenset()


class Pace:
    """How many characters are searched between two turns of others. Whoever gives those sets it as it goes."""

    size = 1 << 40  # no turns


AT_ONCE = Pace()


class Phrases:
    """Several phrases, compiled. Those that refuse and those that mask act; for those that report, texts stay as they are."""

    __slots__ = ("_any", "_begun", "_each", "_first", "_rank", "_signs", "at_once", "phrases")

    def __init__(self, phrases: Sequence[Phrase]) -> None:
        """Raises BadPattern."""
        self.phrases = tuple(phrases)
        self._rank = [phrase.action != "refuse" for phrase in phrases]
        parsed = [parse(phrase.pattern, phrase.words) for phrase in phrases]
        signs = {sign for one in parsed for sign in one.signs} if all(one.signs for one in parsed) else set()
        self._signs = tuple(signs) if len(signs) <= SIGNS_MAX else ()  # one of which is in every text that has a phrase; (): they are not known
        wholes = [_before(one) + one.whole + _behind(one) for one in parsed]
        self._each = [_compiled(whole) for whole in wholes]
        self._any = _compiled("|".join(wholes))
        self.at_once = min(SLICE, max(SLICE_LEAST, _AT_ONCE // self._any.programsize))  # characters that may be searched in one turn
        begun = "(?:" + "|".join([_before(one) + one.begun for one in parsed]) + r")\z"
        self._begun = _compiled(begun)
        self._first = _compiled("|".join([*wholes, begun]))

    def find(self, text: str, known: frozenset[int] = NONE) -> frozenset[int]:
        """Which are in a whole text."""
        return self.read(START, text, end=True, known=known).found

    def lacking(self, texts: Sequence[str]) -> bool:
        """Whether it shows without a search that none is in any of these texts."""
        return self._lacks(fold("".join(texts)))

    def anywhere(self, texts: Sequence[str]) -> bool:
        """Whether any is in one of these texts."""
        if self._lacks(fold("".join(texts))):
            return False
        return self._any.search((EDGE + EDGE.join([fold(text) for text in texts]) + EDGE).encode()) is not None

    def _lacks(self, folded: str) -> bool:
        for sign in self._signs:
            if sign in folded:
                return False
        return self._signs != ()

    def read(self, state: State, more: str, *, end: bool, known: frozenset[int] = NONE) -> Passed:
        """One more piece of a text. end: it is the last. known: phrases that only report, and that have been found before: nobody looks for them."""
        if state.left < 0:
            return Passed(State(left=0) if end else state, "", NONE, masked=((0, len(more), -1),))
        text = state.pending + more
        folded, begun = fold(text), bool(state.looked or state.masked)
        data = b"" if end and self._lacks(folded) else (state.before + folded + (EDGE if end else "")).encode()
        if not text or (not begun and (not data or (len(state.pending) < WAITS_LONG and self._is_clear(data, end)))):
            return Passed(_ended(state.left) if end else State(folded[-1:] or state.before, left=state.left), text, NONE)  # the usual case
        base = len(state.before.encode())
        starts = _starts(text, folded, base)
        held = len(text) if end else self._held(data, text, starts)
        if not data or self._any.search(data) is None:
            out = text[state.masked : held]
            after = _ended(state.left) if end else self._next(state, data, text, starts, held, max(state.masked, held), ())
            return Passed(after, out, NONE)
        limit = starts[held] if held < len(text) else len(data)
        looked = [base + at for at in state.looked] or [base] * len(self._each)
        spans = sorted(self._spans(data, starts, limit, looked, state.left, known), key=lambda span: (span[0], self._rank[span[2]], span[2]))
        passed = self._replaced(text, held, state, spans)
        left = passed.state.left
        if end or left < 0 or passed.refused >= 0:  # masked to its end, or refused
            return passed._replace(state=_ended(left)) if end else passed
        at = max([state.masked, held, *[last for _, last, _ in passed.masked]])
        after = self._next(state, data, text, starts, held, at, looked)
        return passed._replace(state=State(after.before, after.pending, after.masked, after.looked, left))

    def _is_clear(self, data: bytes, end: bool) -> bool:
        """There is no phrase, and where the text goes on, no beginning of one at the end but the empty one behind the last character."""
        if end:
            return self._any.search(data) is None
        match = self._first.search(data)
        return match is None or _after_first(data, match.start()) == len(data)

    def _replaced(self, text: str, held: int, state: State, spans: list[Span]) -> Passed:
        """Its state knows what is left, and nothing of what waits."""
        out: list[str] = []
        found: set[int] = set()
        masked: list[Span] = []
        at = state.masked
        for first, last, index in spans:
            found.add(index)
            phrase = self.phrases[index]
            if phrase.action == "report":
                continue
            if first >= at:
                out.append(text[at:first])
            if phrase.action == "refuse":
                return Passed(START, "".join(out), frozenset(found), index, masked)
            if first >= at:
                out.append(phrase.mask)
            if len(masked) == state.left:
                masked.append((first, len(text), index))
                return Passed(State(left=-1), "".join(out), frozenset(found), masked=masked)
            masked.append((first, last, index))
            at = max(at, last)
        out.append(text[at:held])
        return Passed(State(left=state.left - len(masked)), "".join(out), frozenset(found), masked=masked)

    def _next(self, state: State, data: bytes, text: str, starts: Sequence[int], held: int, at: int, looked: Sequence[int]) -> State:
        """The state in which `text[held:]` waits; it has been replaced up to `at`."""
        begin = starts[held]
        before = _last(data[:begin]) if begin > starts[0] else state.before
        ahead = tuple([max(0, one - begin) for one in looked]) if looked else tuple([max(0, one + starts[0] - begin) for one in state.looked])
        return State(before, text[held:], at - held, ahead if any(ahead) else (), state.left)

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

    def _spans(self, data: bytes, starts: Sequence[int], limit: int, looked: list[int], left: int, known: frozenset[int]) -> Iterable[Span]:
        """The matches that begin before `limit`, which are final; of each phrase as many as may matter. Moves `looked`."""
        base = starts[0] if isinstance(starts, range) else -1  # of a text in which each character is a byte
        for index, pattern in enumerate(self._each):
            if index in known:
                continue
            at, more = looked[index], left + 1 if self.phrases[index].action == "mask" else 1
            while more and (match := pattern.search(data, at - 1 if base >= 0 and at > base else _before_last(data, at))) is not None:
                begin, end = match.span()
                first, last = _after_first(data, begin), _before_last(data, end)
                if first >= limit:
                    break
                if base >= 0:
                    begin, behind = first - base, last - base
                else:
                    begin, behind = bisect_right(starts, first) - 1, bisect_left(starts, last)
                if behind - begin > HELD_MAX:
                    at = _after_first(data, first)
                    continue
                more -= 1
                at = looked[index] = last
                yield begin, behind, index


class Slices:
    """One text, searched a slice at a time: what it has become so far, and where it was masked. `known` as in `Phrases.read`."""

    __slots__ = ("_phrases", "known", "masked", "out", "state")

    def __init__(self, phrases: Phrases, state: State = START, known: frozenset[int] = NONE) -> None:
        self._phrases = phrases
        self.state = state
        self.known = known
        self.out: list[str] = []
        self.masked: list[Span] = []

    def over(self, text: str, pace: Pace) -> Iterator[Passed]:
        """What was found, slice by slice."""
        at = 0
        while at < len(text):
            piece = text[at : at + pace.size]
            passed = self._phrases.read(self.state, piece, end=at + len(piece) == len(text), known=self.known)
            begin = at - len(self.state.pending)
            for first, last, index in passed.masked:
                if index < 0:
                    self.masked[-1] = (self.masked[-1][0], begin + last, self.masked[-1][2])
                else:
                    self.masked.append((begin + first, begin + last, index))
            self.out.append(passed.text)
            self.state = passed.state
            at += len(piece)
            yield passed


def divided(pieces: Sequence[str], masked: Sequence[Span], masks: Sequence[str]) -> list[str]:
    """Texts in which something was found as if they were one: what stood in several is masked in each. masks: by phrase."""
    out: list[str] = []
    begin = place = 0
    for piece in pieces:
        at, end, told = begin, begin + len(piece), list[str]()
        while piece and place < len(masked) and masked[place][0] < end:
            first, last, index = masked[place]
            if last > at:
                told.append(piece[at - begin : max(first, at) - begin])
                if first >= at or at == begin:
                    told.append(masks[index])
                at = min(last, end)
            if last > end:  # it goes on in the next
                break
            place += 1
        out.append("".join([*told, piece[at - begin :]]))
        begin = end
    return out


def _ended(left: int) -> State:
    """The state in which the next text of many is begun."""
    return START if left == MATCHES_MAX else State(left=max(0, left))


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
