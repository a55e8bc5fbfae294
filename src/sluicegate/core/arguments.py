"""Arguments of calls, which are JSON in a text, as content rules look at them: each string in them, names included, and each number is a text.

They are not decoded and encoded again: what a rule changes is written anew where it stands, and all else stays as it is written. So no number is
another afterwards, and a name that is given twice is read twice, whichever of the two somebody takes.

What is no JSON to us may be some to others (cut off, nested too deeply, half of a surrogate pair, a comma too many). It is read as a text, and once
more as it reads without escapes (`Loose`), each character of which has its place in the text as it is written.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import msgspec
from msgspec import Raw

from sluicegate.core.phrases import Span

_check = msgspec.json.Decoder(Raw).decode
_encode = msgspec.json.Encoder().encode
_string = json.JSONDecoder(strict=False).raw_decode
_begins = re.compile(r'"|-?[0-9][-+.0-9eE]*').search
_is_name = re.compile(r"[ \t\r\n]*:").match
_ESCAPE = re.compile(r'(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\["\\/bfnrt])')


class Part(NamedTuple):
    """A string or a number in JSON."""

    start: int
    end: int
    text: str  # as it reads
    name: bool  # of a member


Change = tuple[Part, str]


def is_json(text: str) -> bool:
    """Whether it is, to us."""
    try:
        _check(text)
    except (ValueError, RecursionError):
        return False
    return True


def parts(text: str) -> Iterator[Part]:
    """The strings and numbers of JSON, in the order in which they are written."""
    at = 0
    while (begin := _begins(text, at)) is not None:
        start, at = begin.span()
        said = begin[0]
        if said == '"':
            said, at = _string(text, start)
            yield Part(start, at, said, _is_name(text, at) is not None)
        else:
            yield Part(start, at, said, False)


class Names:
    """Of members, where some are masked: two that were told apart still are."""

    def __init__(self, taken: Iterable[str]) -> None:
        """taken: the names that there are."""
        self._taken = set(taken)
        self._new: dict[str, str] = {}
        self._numbers: dict[str, int] = {}

    def of(self, name: str, told: str) -> str:
        """What a name becomes that is told so: that, or with a number behind."""
        new = self._new.get(name)
        if new is None:
            new, number = told, self._numbers.get(told, 1)
            while new in self._taken:
                number += 1
                new = f"{told} {number}"
            self._taken.add(new)
            self._new[name], self._numbers[told] = new, number
        return new


def changed(text: str, changes: Sequence[Change], names: Iterable[str]) -> str:
    """JSON with other strings in some places, each in quotes. names: of all its members."""
    named = Names(names)
    out, at = list[str](), 0
    for part, told in changes:
        out += text[at : part.start], quoted(named.of(part.text, told) if part.name else told)
        at = part.end
    return "".join([*out, text[at:]])


def quoted(text: str) -> str:
    """In JSON."""
    try:
        return _encode(text).decode()
    except ValueError:  # half of a surrogate pair
        return json.dumps(text)


class Loose:
    """What is no JSON, as it reads without escapes."""

    __slots__ = ("_behind", "_moved", "_written", "text")

    def __init__(self, written: str) -> None:
        pieces = _ESCAPE.split(written)
        escapes = pieces[1::2]
        reads = {escape: str(_string(f'"{escape}"')[0]) for escape in set(escapes)}
        pieces[1::2] = map(reads.__getitem__, escapes)
        self.text = "".join(pieces)
        self._written = written
        self._behind = list(accumulate(map(len, pieces)))[1::2]  # each escape, in the text
        self._moved = list(accumulate([len(escape) - 1 for escape in escapes], initial=0))  # how much further on what follows is written

    def masked(self, spans: Sequence[Span], masks: Sequence[str]) -> str:
        """As it is written, with masks where something was found in the text. masks: by phrase."""
        out, at = list[str](), 0
        for first, last, index in spans:
            if first >= at:
                out += self._written[self._place(at) : self._place(first)], quoted(masks[index])[1:-1]
            at = max(at, last)
        return "".join([*out, self._written[self._place(at) :]])

    def _place(self, at: int) -> int:
        return at + self._moved[bisect_right(self._behind, at)]


def loose(text: str) -> Loose | None:
    """What is no JSON, without its escapes; None: it has none."""
    return Loose(text) if "\\" in text else None
