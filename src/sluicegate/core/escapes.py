"""A text as it reads without the escapes of JSON (`joe\\u0040example.com`, `\\/`), with a way back to how each part of it is written.

    read = yield from read_in_steps(text)      # None: there are none in it
    read.text                                  # joe@example.com
    read.written(3, 4)                         # \\u0040

Only characters that rules know are read; of a run of one to eight backslashes, which is as deep as JSON is inside of JSON; never from the middle of
one. All else stays as it is.

Invariants: read in steps of STEP characters, each in a time that is linear in them; what is kept beside the text are two numbers for a step.
"""

import re
from array import array
from bisect import bisect_right
from collections.abc import Generator
from itertools import accumulate

_ESCAPE = re.compile(r"((?<!\\)\\{1,8}(?:/|u(?:0[0-5]|20)[0-9A-Fa-f]{2}))")
_ESCAPE_MAX = 13  # characters
_run = re.compile(r"(?:\\{1,8}(?!\\))?").match  # of backslashes that could begin an escape
STEP = 4_096  # characters, of which as many may be escapes as take as long as a slice does


class _Read(dict[str, str]):
    """What escapes are read as. There are not many."""

    def __missing__(self, escape: str) -> str:
        self[escape] = character = chr(int(escape[-4:], 16)) if escape[-1] != "/" else "/"
        return character


_read_as = _Read().__getitem__


class Read:
    """A text without its escapes."""

    __slots__ = ("_cuts", "_known", "_reads", "_step", "_text", "text")

    def __init__(self, text: str, written: str, reads: "array[int]", cuts: "array[int]") -> None:
        """reads, cuts: where each step begins, in the text and as it is written."""
        self.text = text
        self._text, self._reads, self._cuts = written, reads, cuts
        self._step = -1  # whose escapes are known
        self._known: tuple[list[int], list[int]] = [], []  # the places behind each of them, in the text and as it is written

    def written(self, start: int, end: int) -> str:
        """How what stands between these two places of the text is written."""
        return self._text[self._place(start) : self._place(end)]

    def _place(self, at: int) -> int:
        step = bisect_right(self._reads, at) - 1
        if step != self._step:
            self._step, self._known = step, self._places(step)
        reads, places = self._known
        before = bisect_right(reads, at) - 1
        return at - reads[before] + places[before]

    def _places(self, step: int) -> tuple[list[int], list[int]]:
        start = self._cuts[step]
        parts = _ESCAPE.split(self._text[start : self._cuts[step + 1] if step + 1 < len(self._cuts) else len(self._text)])
        written = list(accumulate(map(len, parts), initial=start))[::2]
        parts[1::2] = ["/"] * (len(parts) // 2)  # any one character
        return list(accumulate(map(len, parts), initial=self._reads[step]))[::2], written


def read_in_steps(text: str) -> Generator[str, None, Read | None]:
    """Each step yields an empty text. None: there are no escapes in it."""
    pieces: list[str] = []
    reads, cuts = array("q"), array("q")
    length = start = 0
    escaped = False
    while start < len(text):
        end = _cut(text, start + STEP)
        piece = text[start:end]
        if "\\" in piece:
            parts = _ESCAPE.split(piece)
            if len(parts) > 1:
                escaped = True
                parts[1::2] = map(_read_as, parts[1::2])
                piece = "".join(parts)
        reads.append(length)
        cuts.append(start)
        pieces.append(piece)
        start, length = end, length + len(piece)
        yield ""
    return Read("".join(pieces), text, reads, cuts) if escaped else None


def _cut(text: str, near: int) -> int:
    """A place, there or a little behind it, on both sides of which the same is read as without a cut: in no escape, and not in a run of backslashes
    whose second part alone might begin one."""
    if near >= len(text):
        return len(text)
    for found in _ESCAPE.finditer(text, near - _ESCAPE_MAX, near + _ESCAPE_MAX):
        if found.start() < near < found.end():
            return found.end()
    if text[near - 1] != "\\":
        return near
    run = _run(text, near)
    assert run is not None
    return run.end()
