"""Texts without what rules find in them, slice by slice.

    masks = Masks(rules)
    for piece in slices(text, masks): ...      # each is one step of bounded work
    masked(text, masks)                        # all at once; the same text, whatever the slices are

A rule is one regular expression, with a check of what it found where a shape alone does not decide (a sum of digits, say). What it matches, with all
that it looks at around it, is at most REACH characters; so whoever sees REACH characters more than a slice has, finds exactly what a search of the
whole text finds: a search goes on where the last match ended, in whichever slice that was. Some secrets are of any length (a token, a block of
PEM): their rule finds how they begin, and `Rule.rest` says where they end, which may be in any later slice.

Where a text has escapes of JSON (escapes.py), it is searched as it reads without them, and where there are rules without clues, which may look for
anything, as it is written, too. What is not masked stays as it is written.

Invariants: the time of a search is linear in the text, however hostile: no repetition is without a bound or overlaps what follows it, and a rule
begins at most once in a run of the characters that it repeats. Nothing fails.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from sluicegate.core.escapes import read_at_once, read_in_steps

REACH = 512
SLICE = 8_192  # characters, of which the last REACH are looked at again: at most 32 KiB, in whatever script
SHORT = SLICE - REACH  # characters that one slice has

CANDIDATES = 16  # in a slice: where there are more clues, all rules are tried whose anchors are in it

# (match, from, to) -> what is to be masked of a match that goes from here to there: (start, end); None: nothing.
Check = Callable[["re.Match[str]", int, int], tuple[int, int] | None]
Rest = Callable[[str, int, int], tuple[int, bool]]  # (text, from, to) -> where it ends, or up to where it is known to go, and whether that is its end


class Rule(NamedTuple):
    """One thing to be masked."""

    name: str  # EMAIL; as it stands in brackets
    pattern: Any  # re.Pattern[str], or what has its finditer
    signs: tuple[str, ...] = ()  # one of them is in every match; () where that does not save anything
    check: Check | None = None
    rest: Rest | None = None  # of what has no longest match: with a check
    before: int = 0  # characters by which what is masked may begin before its match
    clues: tuple[tuple[str, str], ...] = ()  # anchor and what stands around it, as patterns: one of them fits in every match; () where there is none


# What is to be masked: from where, the rank of its rule, to where; and its rule's rest, where more of it may follow.
Region = tuple[int, int, int, Rest | None]


class Masks(tuple[Rule, ...]):
    """Rules that are looked for together. Most texts have nothing that any of them fits: one or two patterns tell, which find the clues of all.

    An anchor is a character, around which a pattern must fit that consumes nothing, or a pattern of one, where any may follow. Anchors that are alike
    belong together: where a clue of one of their rules fits, none of them is left out.
    """

    def __init__(self, _: Iterable[Rule]) -> None:
        self.texts = [f"[{rule.name}]" for rule in self]
        self._always = [rank for rank, rule in enumerate(self) if not rule.clues]
        self.as_written = bool(self._always)  # texts with escapes are searched so, too; whoever gives clues, knows what he finds without that
        anchors: dict[str, tuple[list[str], list[int]]] = {}
        for rank, rule in enumerate(self):
            for anchor, around in rule.clues:
                conditions, ranks = anchors.setdefault(anchor, ([], []))
                conditions += [around] if around not in conditions else []
                ranks.append(rank)
        # A search that begins with one of some characters is fast; one for one of some patterns is not.
        literal = [anchor for anchor in anchors if len(anchor) == 1]
        self._gate = re.compile("|".join([f"{re.escape(one)}(?:{'|'.join(anchors[one][0])})()" for one in literal]) or "(?!)")
        self._literal = [(anchor, anchors[anchor][1]) for anchor in literal]
        others = [anchor for anchor in anchors if len(anchor) > 1]
        self._searches = [(re.compile(f"{one}(?:{'|'.join(anchors[one][0])})").search, anchors[one][1]) for one in others]

    def harmless(self, text: str) -> bool:
        """Nothing in it is masked. Where that is not seen at a glance, the answer is no."""
        if self._always:
            return False
        if "\\" in text:
            text = read_at_once(text)
        return not (self._gate.search(text) or any([search(text) for search, _ in self._searches]))

    def possible(self, text: str, start: int, end: int) -> Iterable[int]:
        """The ranks of the rules that may fit something between these two."""
        ranks: set[int] = set()
        for count, found in enumerate(self._gate.finditer(text, start, end), 1):
            if count > CANDIDATES:
                ranks.update(*[some for anchor, some in self._literal if text.find(anchor, start, end) >= 0])
                break
            ranks.update(self._literal[(found.lastindex or 1) - 1][1])
        for search, some in self._searches:
            if search(text, start, end):
                ranks.update(some)
        return ranks.union(self._always) if ranks else self._always


class Finder:
    """One rule in one text. The slices are given from left to right, without those in which it can find nothing."""

    __slots__ = ("_at", "_covered", "_rank", "_rule")

    def __init__(self, rule: Rule, rank: int) -> None:
        self._rule = rule
        self._rank = rank
        self._at = 0  # where the search goes on
        self._covered = 0  # up to here a region with a rest goes, as far as it was looked for

    def find(self, text: str, start: int, limit: int) -> list[Region]:
        """Regions that begin between these two and were not found yet; maybe some that begin behind `limit`."""
        _, pattern, signs, check, rest, before, _ = self._rule
        end = min(len(text), limit + REACH)
        limit = min(len(text), limit + before)
        at, rank = max(self._at, start), self._rank
        regions: list[Region] = []
        if limit > at:
            self._at = limit
        if at >= limit or (signs and not any([text.find(sign, at, end) >= 0 for sign in signs])):
            return regions
        for found in pattern.finditer(text, at, end):
            first, last = found.span()
            if last > limit:
                if first >= limit:
                    break
                self._at = last
            if check is None:
                regions.append((first, rank, last, None))
            elif (span := check(found, first, last)) is not None:
                if rest is None:
                    regions.append((span[0], rank, span[1], None))
                elif span[0] >= self._covered:
                    self._covered, ended = rest(text, span[1], end)
                    regions.append((span[0], rank, self._covered, None if ended else rest))
        return regions


def slices(text: str, masks: Masks, size: int = SLICE) -> Iterator[str]:
    """The text with masks, in pieces. Where what is to be masked overlaps, one mask stands for all of it, by the name of what begins first."""
    if "\\" in text:
        read = yield from read_in_steps(text, slashes=masks.as_written)
        if read is not None:
            pieces = _slices(read.text, masks, size, text, read.places)
            if not masks.as_written:
                yield from pieces
                return
            found = []
            for piece in pieces:
                found.append(piece)
                yield ""
            text = "".join(found)
    yield from _slices(text, masks, size, text)


def _slices(text: str, masks: Masks, size: int, written: str, places: Callable[[list[int]], list[int]] | None = None) -> Iterator[str]:
    """written: the text as it is written. places: where in it places of the text are; None: they are the same."""
    names = masks.texts
    finders: dict[int, Finder] = {}
    waiting: list[Region] = []  # that begin behind the slice
    going_on: dict[Rest, int] = {}  # whose end is not known, and up to where each is known to go
    done = 0  # characters that need not be looked at again: written out, or behind a mask that is
    for start in range(0, len(text), size - REACH):
        limit = min(start + size - REACH, len(text))
        end = min(limit + REACH, len(text))
        done = max(done, *_go_on(text, end, going_on), 0)
        regions, waiting = waiting, []
        for rank in masks.possible(text, start, end):
            finder = finders.get(rank)
            if finder is None:
                finder = finders[rank] = Finder(masks[rank], rank)
            found = finder.find(text, start, limit)
            regions = sorted(regions + found) if regions and found else regions or found
        pieces: list[str] = []
        cuts: list[int] = []  # before each of `pieces`, where the places are not those of `written`: what is shown, from, to
        for begin, rank, last, rest in regions:
            if begin >= limit:
                waiting.append((begin, rank, last, rest))
                continue
            if begin >= done:
                if places is None:
                    pieces += (text[done:begin], names[rank])
                else:
                    cuts += (done, begin)
                    pieces.append(names[rank])
                done = last
            elif last > done:
                done = last
            if rest is not None:
                going_on[rest] = max(going_on.get(rest, 0), last)
        if done < limit and not going_on:
            cuts += (done, limit)
            pieces.append("" if places is not None else text[done:limit])
            done = limit
        yield "".join(pieces if places is None else _interleaved(written, places(cuts), pieces))


def _interleaved(written: str, cuts: list[int], names: list[str]) -> list[str]:
    ends = iter(cuts)
    return [piece for start, end, name in zip(ends, ends, names, strict=True) for piece in (written[start:end], name)]


def _go_on(text: str, end: int, going_on: dict[Rest, int]) -> list[int]:
    """Up to where goes what has not ended: looks for its end below `end`, and takes out what ends there."""
    reached = []
    for rest, known in list(going_on.items()):
        going_on[rest], ended = rest(text, known, end)
        reached.append(going_on[rest])
        if ended:
            del going_on[rest]
    return reached


def masked(text: str, masks: Masks) -> str:
    """The text with masks."""
    return "".join(slices(text, masks))


def run_of(characters: str) -> Rest:
    """The rest of something: all that follows of these characters."""
    run = re.compile(f"[{characters}]*").match

    def rest(text: str, start: int, end: int) -> tuple[int, bool]:
        found = run(text, start, end)
        assert found is not None
        return found.end(), found.end() < end or end == len(text)

    return rest


def whole(_: "re.Match[str]", start: int, end: int) -> tuple[int, int]:
    """The check of a rule whose shape decides."""
    return start, end
