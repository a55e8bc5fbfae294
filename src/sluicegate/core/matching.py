"""Texts without what rules find in them, slice by slice.

    for piece in slices(text, rules): ...      # each is one step of bounded work
    masked(text, rules)                        # all at once; the same text, whatever the slices are

A rule is one regular expression, with a check of what it found where a shape alone does not decide (a sum of digits, say). What it matches, with all
that it looks at around it, is at most REACH characters; so whoever sees REACH characters more than a slice has, finds exactly what a search of the
whole text finds: a search goes on where the last match ended, in whichever slice that was. Some secrets are of any length (a token, a block of
PEM): their rule finds how they begin, and `Rule.rest` says where they end, which may be in any later slice.

Where a text has escapes of JSON (`joe\\u0040example.com`, `\\/`), it is searched as it reads without them, too; what is not masked stays as it is
written.

Invariants: the time of a search is linear in the text, however hostile: no repetition is without a bound or overlaps what follows it, and a rule
begins at most once in a run of the characters that it repeats. Nothing fails.
"""

import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, NamedTuple

REACH = 512
SLICE = 8_192  # characters, of which the last REACH are looked at again: at most 32 KiB, in whatever script

# A character as JSON may have it, in a text inside of another, too; of those that a rule knows. Not in the middle of a run of backslashes.
_ESCAPE = re.compile(r"(?<!\\)\\{1,8}(?:/|u((?:0[0-5]|20)[0-9A-Fa-f]{2}))")
_ESCAPE_MAX = 13  # characters
READ = 2_048  # of which as many may be escapes as take as long as a slice does

Check = Callable[["re.Match[str]"], tuple[int, int] | None]  # what is to be masked of a match: (start, end); None: nothing
Rest = Callable[[str, int, int], tuple[int, bool]]  # (text, from, to) -> where it ends, or up to where it is known to go, and whether that is its end


class Rule(NamedTuple):
    """One thing to be masked."""

    name: str  # EMAIL; as it stands in brackets
    pattern: Any  # re.Pattern[str], or what has its finditer
    signs: tuple[str, ...] = ()  # one of them is in every match; () where that does not save anything
    check: Check | None = None
    rest: Rest | None = None  # of what has no longest match: with a check
    before: int = 0  # characters by which what is masked may begin before its match


# What is to be masked: from where, the rank of its rule, to where; and its rule's rest, where more of it may follow.
Region = tuple[int, int, int, Rest | None]


class Finder:
    """One rule in one text. The slices are given from left to right."""

    __slots__ = ("_at", "_covered", "_rank", "_rule")

    def __init__(self, rule: Rule, rank: int) -> None:
        self._rule = rule
        self._rank = rank
        self._at = 0  # where the search goes on
        self._covered = 0  # up to here a region with a rest goes, as far as it was looked for

    def find(self, text: str, limit: int) -> list[Region]:
        """Regions that begin below `limit` and were not found yet; maybe some that begin behind it."""
        _, pattern, signs, check, rest, before = self._rule
        end = min(len(text), limit + REACH)
        limit = min(len(text), limit + before)
        at, rank = self._at, self._rank
        regions: list[Region] = []
        if limit > at:
            self._at = limit
        if at >= limit or (signs and not any([text.find(sign, at, end) >= 0 for sign in signs])):
            return []
        for found in pattern.finditer(text, at, end):
            first, last = found.span()
            if first >= limit:
                break
            if last > limit:
                self._at = last
            if check is not None:
                span = check(found)
                if span is None or span[0] < self._covered:
                    continue
                first, last = span
            if rest is None:
                regions.append((first, rank, last, None))
            else:
                self._covered, ended = rest(text, last, end)
                regions.append((first, rank, self._covered, None if ended else rest))
        return regions


def slices(text: str, rules: Sequence[Rule], size: int = SLICE) -> Iterator[str]:
    """The text with masks, in pieces. Where what is to be masked overlaps, one mask stands for all of it, by the name of what begins first."""
    if "\\" in text:
        read = yield from _read(text)
        if read is not None:
            pieces = []
            for piece in _slices(read.text, rules, size, read.written):
                pieces.append(piece)
                yield ""
            text = "".join(pieces)
    yield from _slices(text, rules, size, lambda start, end: text[start:end])


class _Read:
    """A text without its escapes, and how each part of it is written."""

    __slots__ = ("_escapes", "_firsts", "_text", "text")

    def __init__(self, text: str, written: str, escapes: "list[tuple[array[int], array[int]]]") -> None:
        """escapes: the places behind each of them, in the text and as it is written; those of a step together."""
        self.text = text
        self._text, self._escapes = written, escapes
        self._firsts = array("q", [behind[0] for behind, _ in escapes])

    def written(self, start: int, end: int) -> str:
        return self._text[self._place(start) : self._place(end)]

    def _place(self, at: int) -> int:
        step = bisect_right(self._firsts, at)
        if not step:
            return at
        behind, written = self._escapes[step - 1]
        before = bisect_right(behind, at) - 1
        return at - behind[before] + written[before]


def _read(text: str) -> Generator[str, None, _Read | None]:
    """In steps of READ characters. None: there are no escapes in it."""
    pieces: list[str] = []
    escapes: list[tuple[array[int], array[int]]] = []
    done = length = 0  # characters that are read, and those that they are read as
    for start in range(0, len(text), READ):
        limit = start + READ
        some: list[str] = []
        behind, places = array("q"), array("q")
        for found in _ESCAPE.finditer(text, max(start, done), min(limit + _ESCAPE_MAX, len(text))):
            first, last = found.span()
            if first >= limit:
                break
            some += (text[done:first], chr(int(found[1], 16)) if found[1] else "/")
            length, done = length + first - done + 1, last
            behind.append(length)
            places.append(last)
        if behind:
            pieces.append("".join(some))
            escapes.append((behind, places))
        yield ""
    if not escapes:
        return None
    pieces.append(text[done:])
    return _Read("".join(pieces), text, escapes)


def _slices(text: str, rules: Sequence[Rule], size: int, written: Callable[[int, int], str]) -> Iterator[str]:
    """written: how a part of the text is written."""
    short = len(text) <= size - REACH  # most are, and few rules have anything to do with them
    finders = [Finder(rule, rank) for rank, rule in enumerate(rules) if not short or _may_match(rule.signs, text)]
    masks = [f"[{rule.name}]" for rule in rules]
    waiting: list[Region] = []  # that begin behind the slice
    going_on: dict[Rest, int] = {}  # whose end is not known, and up to where each is known to go
    done = 0  # characters that need not be looked at again: written out, or behind a mask that is
    for start in range(0, len(text), size - REACH):
        limit = min(start + size - REACH, len(text))
        done = max(done, *_go_on(text, min(limit + REACH, len(text)), going_on), 0)
        regions, waiting = waiting, []
        for finder in finders:
            found = finder.find(text, limit)
            if found and regions:
                regions = sorted(regions + found)
            elif found:
                regions = found
        pieces: list[str] = []
        for begin, rank, end, rest in regions:
            if begin >= limit:
                waiting.append((begin, rank, end, rest))
                continue
            if begin >= done:
                pieces += (written(done, begin), masks[rank])
                done = end
            elif end > done:
                done = end
            if rest is not None:
                going_on[rest] = max(going_on.get(rest, 0), end)
        if done < limit and not going_on:
            pieces.append(written(done, limit))
            done = limit
        yield "".join(pieces)


def _may_match(signs: tuple[str, ...], text: str) -> bool:
    for sign in signs:
        if sign in text:
            return True
    return not signs


def _go_on(text: str, end: int, going_on: dict[Rest, int]) -> list[int]:
    """Up to where goes what has not ended: looks for its end below `end`, and takes out what ends there."""
    reached = []
    for rest, known in list(going_on.items()):
        going_on[rest], ended = rest(text, known, end)
        reached.append(going_on[rest])
        if ended:
            del going_on[rest]
    return reached


def masked(text: str, rules: Sequence[Rule]) -> str:
    """The text with masks."""
    return "".join(slices(text, rules))


def run_of(characters: str) -> Rest:
    """The rest of something: all that follows of these characters."""
    run = re.compile(f"[{characters}]*").match

    def rest(text: str, start: int, end: int) -> tuple[int, bool]:
        found = run(text, start, end)
        assert found is not None
        return found.end(), found.end() < end or end == len(text)

    return rest


def whole(found: "re.Match[str]") -> tuple[int, int]:
    """The check of a rule whose shape decides."""
    return found.span()
