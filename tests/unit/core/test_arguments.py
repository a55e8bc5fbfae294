"""Arguments as content rules look at them: strings, names and numbers, and what is no JSON to us."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.core.arguments import Loose, changed, is_json, loose, parts
from sluicegate.core.content_rules import ContentRules, Rules
from sluicegate.core.phrases import Phrase
from sluicegate.core.speech import Speech, at_once

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=4), inside, max_size=3),
    max_leaves=12,
)


def texts_of(value: object) -> list[str]:
    if isinstance(value, dict):
        return [text for name, each in value.items() for text in (name, *texts_of(each))]
    if isinstance(value, list):
        return [text for each in value for text in texts_of(each)]
    return [value] if isinstance(value, str) else [json.dumps(value)] if isinstance(value, int | float) and not isinstance(value, bool) else []


@given(VALUES, st.booleans(), st.sampled_from([None, 2]))
@settings(max_examples=150, deadline=None)
def test_every_string_and_number_is_a_part(value: object, escaped: bool, indent: int | None) -> None:
    """In their order; where each is put back, the JSON says what it said, and numbers are strings then."""
    text = json.dumps(value, ensure_ascii=escaped, indent=indent)
    assert is_json(text)
    found = list(parts(text))
    assert [part.text for part in found] == texts_of(value)
    assert changed(text, [], ()) == text
    assert json.loads(changed(text, [(part, part.text) for part in found if not part.name], ())) == json.loads(text, parse_int=str, parse_float=str)


@given(st.lists(st.sampled_from(["\\u0070", "\\ud83d\\ude00", "\\ud83d", "\\n", '\\"', "\\\\", "\\x", "p", "é", "[", '"', "\\u00"]), max_size=12))
@settings(max_examples=150, deadline=None)
def test_what_is_masked_without_escapes_is_masked_where_it_is_written(pieces: list[str]) -> None:
    """Each character by itself, and all of them: nothing else changes."""
    reads = {"\\u0070": "p", "\\ud83d\\ude00": "😀", "\\ud83d": "\ud83d", "\\n": "\n", '\\"': '"', "\\\\": "\\"}
    read = Loose("".join(pieces))
    assert read.text == "".join([reads.get(piece, piece) for piece in pieces])
    at = 0
    for number, piece in enumerate(pieces):
        end = at + len(reads.get(piece, piece))
        assert read.masked([(at, end, 0)], ["#"]) == "".join([*pieces[:number], "#", *pieces[number + 1 :]])
        at = end
    assert read.masked([(0, 0, 0)] if not at else [(0, at, 0), (0, at, 1)], ["#", "+"]) == "#"
    assert read.masked([], []) == "".join(pieces)


def test_a_text_without_escapes_is_not_read_twice() -> None:
    """There is nothing else in it."""
    assert loose('{"a": "b') is None


def speech(*phrases: Phrase) -> Speech:
    return Speech(ContentRules((Rules("a", banned=phrases),)), set())


BLUE = Phrase("p", "project bluebird", "mask", mask="#")
E = '"\\u0070roject\\u0020bluebird"'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f'{{"a":{E}, "k" : 1e400}}', '{"a":"#", "k" : 1e400}'),
        (f'{{"a":{E},"k":1{"0" * 5000}}}', f'{{"a":"#","k":1{"0" * 5000}}}'),
        (f'{{"a":{E},"k":NaN}}', '{"a":"#","k":NaN}'),
        (f'{{"a":{E},"k":"\\ud83d"}}', '{"a":"#","k":"\\ud83d"}'),
        (f'\ufeff{{"a":{E}}}', '\ufeff{"a":"#"}'),
        (f"{'[' * 3000}{E}{']' * 3000}", f'{"[" * 3000}"#"{"]" * 3000}'),
        (f'{{"a":{E},}}', '{"a":"#",}'),
        (f'{{"a":{E}}}{{"b":1}}', '{"a":"#"}{"b":1}'),
        (f"{{'a':{E}", "{'a':\"#\""),
        ('{"x":"\\\\ \\u0070roject\\nblueb\\u0069rd and', '{"x":"\\\\ # and'),
        ('{"a":"project bluebird","a":"ok"}', '{"a":"#","a":"ok"}'),
        ('{"a":"ok","b":1.10,"a":"Project\\tBluebird", "c": 1E5}', '{"a":"ok","b":1.10,"a":"#", "c": 1E5}'),
        ('{"project bluebird":1,"#":2,"PROJECT bluebird":3,"b":{"project bluebird":4}}', '{"# 2":1,"#":2,"# 3":3,"b":{"# 2":4}}'),
        ('{"a":"\ud83d","b":"project bluebird"}', '{"a":"\ud83d","b":"#"}'),
    ],
)
def test_escapes_hide_nothing_from_a_mask(text: str, told: str) -> None:
    """Whatever stands beside them, JSON to us or not; all else stays as it was written, and no member is lost."""
    assert speech(BLUE).whole_arguments(text) == told
    spoken = speech(BLUE)
    assert spoken.argue(("c",), text[:9]) + spoken.argue(("c",), text[9:]) + spoken.end(("c",)) == told
    refusing = speech(Phrase("p", "project bluebird"))
    refusing.whole_arguments(text)
    assert refusing.refused == "p"


def test_a_cut_string_is_read_without_its_escapes() -> None:
    """Letters that are folded count as they do elsewhere."""
    refusing = speech(Phrase("p", "strasse"))
    refusing.whole_arguments('{"a":"stra\\u00dfe')
    assert refusing.refused == "p"


def test_a_number_is_read_as_its_digits() -> None:
    """A mask in its place is a string."""
    by = speech(Phrase("card", r"regex:\b(\d{4}[ -]?){3}\d{4}\b", "mask", mask="[CARD]"))
    assert by.whole_arguments('{"n":4111111111111111,"m":-1.50}') == '{"n":"[CARD]","m":-1.50}'
    assert by.whole_arguments("4111111111111111") == '"[CARD]"'


@pytest.mark.parametrize("nested", [False, True])
def test_masked_names_are_told_apart(nested: bool) -> None:
    """No member is lost, in JSON and in what was read of it, in a time that grows with their number."""
    members = {f"bird{number}": number for number in range(1, 3_000)} | {"#": 0, "# 2": -1}
    text = json.dumps({"in": members} if nested else members)
    told = json.loads(speech(Phrase("p", r"regex:bird\d{1,4}", "mask", mask="#")).whole_arguments(text))
    assert sorted((told["in"] if nested else told).values()) == list(range(-1, 3_000))
    by = speech(Phrase("p", "bird", "mask", mask="#"))
    assert at_once(by.read_strings({"bird": 1, "BIRD": 2, "#": 3, "n": 4.5, "x": True})) == {"# 2": 1, "# 3": 2, "#": 3, "n": 4.5, "x": True}
    assert at_once(speech(Phrase("p", "regex:\\d{4}", "mask", mask="#")).read_strings([1234, 12, 1.2345])) == ["#", 12, "1.#"]
