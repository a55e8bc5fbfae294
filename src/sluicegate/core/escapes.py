"""A text as it reads without the escapes of JSON (`joe\\u0040example.com`, `\\n`, `\\/`), and where each part of it is written.

    read = yield from read_in_steps(text, slashes=True)     # None: there are none in it
    read.text                                               # joe@example.com
    read.places([3, 4])                                     # 3, 9: before \\u0040 and behind it

Slashes and backslashes are read where that is asked for (a text may be full of them, and few rules look for one). Escapes have a run of one to eight
backslashes, which is as deep as JSON is inside of JSON; none begins in the middle of one. All else stays as it is. What only looks like an escape (a
path with `\\new` in it) is read as one, too.

Invariants: read in steps of STEP characters, each in a time that is linear in them; what is kept beside the text are two numbers for a step.
"""

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Generator
from itertools import accumulate, count, repeat
from operator import add, sub

_NUMBER = "u[0-9A-Fa-f]{4}"
_MOST = re.compile(rf'(\\(?<!\\\\)\\{{0,7}}(?:[nrtbf"]|{_NUMBER}))')
_ESCAPE = re.compile(rf'(\\(?<!\\\\)\\{{0,7}}(?:[nrtbf"/]|{_NUMBER}|(?<=\\\\)(?=[^\\])))')
_ESCAPE_MAX = 13  # characters
_behind_run = re.compile(r"(?:\\{0,8}[^\\])?").match  # a run of backslashes that could begin an escape, or be one, and what follows it
_NUMBERED = 5  # characters, from the `u` on
_KEPT_BELOW = 0x100
LETTERS = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}
_SIMPLE = [("\\" + letter, character) for letter, character in (*LETTERS.items(), ('"', '"'))]
STEP = 1_024  # characters


class _Read(dict[str, str]):
    """What escapes are read as; those are kept that are often there, of which there are not many."""

    def __missing__(self, escape: str) -> str:
        if escape[-_NUMBERED : 1 - _NUMBERED] != "u":
            self[escape] = character = LETTERS.get(escape[-1], escape[-1])
            return character
        number = int(escape[-4:], 16)
        character = chr(number) if not 0xD800 <= number < 0xE000 else "\ufffd"  # each half of a pair
        if number < _KEPT_BELOW:
            self[escape] = character
        return character


_read_as = _Read().__getitem__


class Read:
    """A text without its escapes."""

    __slots__ = ("_behind", "_cuts", "_escape", "_moved", "_reads", "_step", "_written", "text")

    def __init__(self, text: str, written: str, escape: "re.Pattern[str]", reads: "array[int]", cuts: "array[int]") -> None:
        """escape: what is read. reads, cuts: where each step begins, in the text and as it is written; and where the last one ends."""
        self.text = text
        self._escape = escape
        self._written, self._reads, self._cuts = written, reads, cuts
        self._step = -1  # whose escapes are known
        self._behind: list[int] = []  # the places behind each of them, in the text
        self._moved: list[int] = []  # and by how much what is behind as many of them is further on as it is written

    def places(self, places: list[int]) -> list[int]:
        """Where these places of the text, in their order, are in it as it is written. They are found many at a time."""
        found: list[int] = []
        last = len(self._reads) - 2
        while len(found) < len(places):
            done = len(found)
            step = min(bisect_right(self._reads, places[done]) - 1, last)
            if step != self._step:
                self._turn_to(step)
            some = places[done : bisect_left(places, self._reads[step + 1], done) if step < last else None]
            found += map(add, some, map(self._moved.__getitem__, map(bisect_right, repeat(self._behind), some)))
        return found

    def _turn_to(self, step: int) -> None:
        self._step = step
        parts = self._escape.split(self._written[self._cuts[step] : self._cuts[step + 1]])
        written = list(accumulate(map(len, parts), initial=self._cuts[step]))[2::2]
        moved = list(map(sub, accumulate(map(len, parts[1::2]), initial=self._cuts[step] - self._reads[step]), count()))
        self._behind = list(map(sub, written, moved[1:]))
        self._moved = moved


def read_at_once(text: str, escape: "re.Pattern[str]" = _MOST) -> str:
    """A text that is short, as the steps read it."""
    if "\\\\" not in text and "\\u" not in text and (escape is _MOST or "\\/" not in text):
        for simple, character in _SIMPLE:  # is much faster, where there are many
            text = text.replace(simple, character)
        return text
    parts = escape.split(text)
    if len(parts) > 1:
        parts[1::2] = map(_read_as, parts[1::2])
        return "".join(parts)
    return text


def read_in_steps(text: str, slashes: bool) -> Generator[str, None, Read | None]:
    """Each step yields an empty text. None: there are no escapes in it."""
    escape = _ESCAPE if slashes else _MOST
    pieces: list[str] = []
    reads, cuts = array("q"), array("q")
    length = start = 0
    escaped = False
    while start < len(text):
        end = _cut(text, start + STEP)
        piece = text[start:end]
        if "\\" in piece:
            piece = read_at_once(piece, escape)
            escaped = escaped or len(piece) < end - start
        reads.append(length)
        cuts.append(start)
        pieces.append(piece)
        start, length = end, length + len(piece)
        yield ""
    reads.append(length)
    cuts.append(len(text))
    return Read("".join(pieces), text, escape, reads, cuts) if escaped else None


def _cut(text: str, near: int) -> int:
    """A place, there or a little behind it, on both sides of which the same is read as without a cut: in no escape, and not in a run of backslashes
    whose second part alone might begin one."""
    if near >= len(text):
        return len(text)
    for found in _ESCAPE.finditer(text, near - _ESCAPE_MAX, near + _ESCAPE_MAX):
        if found.start() < near < found.end() and text[found.end() - 1] != "\\":
            return found.end()
    if text[near - 1] != "\\":
        return near
    behind = _behind_run(text, near)
    assert behind is not None
    return behind.end()
