"""A text as it reads without the escapes of JSON: the same whatever the steps are, and each place of it where it is written."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sluicegate.core import escapes
from sluicegate.core.escapes import Read, read_in_steps

# As they are defined, for the whole text at once: without slashes, and with them (and with backslashes).
LETTERS = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", '"': '"', "/": "/", "\\": "\\"}
NUMBER = "u([0-9A-Fa-f]{4})"
ESCAPES = re.compile(rf'(?<!\\)\\{{1,8}}(?:[nrtbf"]|{NUMBER})'), re.compile(rf'(?<!\\)(?:\\{{1,8}}(?:[nrtbf"/]|{NUMBER})|\\{{2,8}}(?=[^\\]))')
PIECES = [
    "\\",
    "\\\\\\\\",
    "u0040",
    "/",
    "u20aC",
    "u1234",
    "ud83D",
    "\\uDe00",
    "a",
    "é",
    "u00",
    "40",
    "\\u0041",
    "\\" * 9,
    "n",
    "\\t",
    '\\"',
    "\\\\b",
    "f",
    "u000b",
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)


def character(number: int) -> str:
    return chr(number) if not 0xD800 <= number < 0xE000 else "\ufffd"


def read(text: str, slashes: bool) -> Read | None:
    steps = read_in_steps(text, slashes)
    while True:
        try:
            assert next(steps) == ""
        except StopIteration as end:
            found: Read | None = end.value
            return found


@settings(max_examples=300, deadline=None)
@given(TEXTS, st.booleans(), st.integers(14, 40))
@example("\\" * 60 + "/", True, 20)
@example("a" * 12 + "\\" * 9 + "/", True, 20)
@example("a" * 12 + "\\" * 8 + "u0040/", False, 14)
@example("a" * 12 + "\\" * 4 + "\\n", True, 14)
@example("a" * 12 + "\\" * 3 + "u00", True, 14)
def test_steps_change_nothing(text: str, slashes: bool, step: int) -> None:
    """However long a step is, the same is read, and every place is where it is in the whole text."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(escapes, "STEP", step)
        found = read(text, slashes)
    expected, places, done = "", list[int](), 0
    for escape in ESCAPES[slashes].finditer(text):
        places += range(done, escape.start() + 1)
        expected += text[done : escape.start()] + (character(int(escape[1], 16)) if escape[1] else LETTERS[escape[0][-1]])
        done = escape.end()
    places += range(done, len(text) + 1)
    if not ESCAPES[slashes].search(text):
        assert found is None
        return
    assert found is not None and found.text == expected + text[done:]
    assert found.places(list(range(len(found.text) + 1))) == places
    assert [place for at in range(len(found.text), -1, -1) for place in found.places([at])] == places[::-1]
    assert found.places([]) == []


def test_a_step_is_short() -> None:
    """No step is longer than STEP and what an escape is, also in a text of nothing but backslashes."""
    for text in ("\\" * 50_000, r"\/" * 25_000, r"\n" * 25_000, "\\\\a" * 17_000, "\\u0041" * 9_000):
        count = sum(1 for _ in read_in_steps(text, slashes=True))
        assert len(text) / (escapes.STEP + 13) <= count <= len(text) / escapes.STEP + 1
