"""Texts without what rules find in them: the same whatever the slices are, the same when done twice, in a time that is linear in the text."""

import json
import re
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sluicegate.core.matching import REACH, SLICE, Masks, Rule, masked, run_of, slices, whole
from sluicegate.core.redact import BUILT_IN, rules_of
from support_hostile import HARMLESS, HOSTILE, JWT, KEY, PEM, SECRETS

PIECES = st.sampled_from(
    [text for _, text in SECRETS]
    + list(HARMLESS)
    + [*HOSTILE, KEY * 20, JWT + "x" * 900, "x" * 500, "4111 " * 30, r"\u0040", r"\\u002d", r"\/", r"\u", r"\n", r"\\t", r"\"", "@", "+49", "/"]
)
TEXTS = st.lists(st.one_of(PIECES, st.text(max_size=5), st.sampled_from(["", " ", "\n", ".", ", ", '"', "="])), max_size=30).map("".join)
WITHOUT_CLUES = Masks(rule._replace(clues=()) for rule in BUILT_IN)
WITHOUT_CLUES.as_written = BUILT_IN.as_written
RULES = rules_of([("STAFF", r"\bE-[0-9]{3,6}\b"), ("WORD", "[a-z]{2,5}x")])


def sliced(text: str, masks: Masks, size: int) -> str:
    return "".join(slices(text, masks, size))


@settings(max_examples=150, deadline=None)
@given(TEXTS, st.integers(1, 700))
@example("sk-" + "a" * 5_000 + " b", 1)
@example(PEM * 2 + "?", 3)
@example("4111 " * 900 + "x", 88)
@example("a@b.co" * 500, 17)
@example(r"x\u0040y.co \/" * 2_000, 17)
def test_slices_change_nothing(text: str, step: int) -> None:
    """However a text is cut into slices, the same is masked."""
    for masks in (BUILT_IN, RULES):
        assert sliced(text, masks, REACH + step) == masked(text, masks) == sliced(text, masks, 10**6)


ESCAPED = [r"\n", r"\r\n", r"\t", r"\b", r"\f", r"\"", r"\/", r"\\n", r"\\\\r", r"\\\"", r"\u000a", r"\n\u00e9 \t"]


@pytest.mark.parametrize("escape", ESCAPED)
@pytest.mark.parametrize(("name", "secret"), SECRETS)
def test_escapes_are_read(name: str, secret: str, escape: str) -> None:
    """What is behind an escape of JSON, or between two, is masked as behind the character that it stands for; the escapes stay."""
    assert masked(f'{{"a":"x{escape}{secret}"}}', BUILT_IN) == f'{{"a":"x{escape}[{name}]"}}'
    assert masked(f"{escape}{secret}{escape}b", RULES) == f"{escape}[{name}]{escape}b"


WORDS = [*(secret for _, secret in SECRETS), *(one for one in HARMLESS if "\\" not in one and "§" not in one), "E-1234", "\u20ac", "日本", "😀", "1"]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from(WORDS), max_size=12),
    st.lists(st.sampled_from(["\n", "\r\n", "\t", "\b", "\f", '"', "\n\n", " \\ ", "日", "😀"]), min_size=1, max_size=4),
    st.integers(1, 3),
    st.booleans(),
)
def test_json_of_a_text(parts: list[str], between: list[str], times: int, ascii_only: bool) -> None:
    """Masking a text written as JSON, also more than once, leaves the JSON of what masking the text leaves."""
    text = "".join([between[at % len(between)] + part for at, part in enumerate(parts)])
    for masks in (BUILT_IN, RULES):
        written = text
        for _ in range(times):
            written = json.dumps(written, ensure_ascii=ascii_only)
        found = masked(written, masks)
        for _ in range(times):
            found = json.loads(found)
        assert found == masked(text, masks)


@pytest.mark.parametrize("key", [secret for name, secret in SECRETS if name in ("API_KEY", "JWT")])
def test_emphasis(key: str) -> None:
    """Keys are found where Markdown emphasizes them, and behind percent-encoded characters; not inside of a name."""
    for before in ("_", "see __", "(_", "x%20"):
        assert re.fullmatch(rf"{re.escape(before)}\[(API_KEY|JWT)\](_?\))?", masked(f"{before}{key}{'_)' if before == '(_' else ''}", BUILT_IN))
    for before in ("a_", "a__", "1_", "___"):
        assert masked(before + key, BUILT_IN).startswith(before + key[:4])


def test_rules_with_quotes_and_backslashes() -> None:
    """A pattern of the configuration may have these, and is found where JSON escapes them."""
    masks = rules_of([("STAFF", r'"staff": ?"[a-z]{1,20}"'), ("LOGIN", r"CORP\\[a-z]{1,20}")])
    text = json.dumps({"x": json.dumps({"staff": "bob"}), "y": "CORP\\joe"})
    assert masked(text, masks) == r'{"x": "{[STAFF]}", "y": "[LOGIN]"}'


@pytest.mark.parametrize("key", ["r8_", "fw_", "nvapi-", "tgp_", "rk_live_"])
def test_what_only_seems_an_escape(key: str) -> None:
    """What begins with the letter of an escape is found behind a backslash, too: with it, or behind it. A path stays as it is."""
    assert masked(rf"C:\{key}abcdefghij0123456789", BUILT_IN) == r"C:[API_KEY]"
    assert masked(r"CORP\nick: CORP\joe", rules_of([("LOGIN", r"CORP\\[a-z]{1,20}")])) == "[LOGIN]: [LOGIN]"
    for text in (r"C:\new\table\bin \frac{1}{2}", rf"C:\\new\\{key}x"):
        assert masked(text, BUILT_IN) == masked(text, RULES) == text


def test_escapes_alone_are_harmless() -> None:
    """Code and JSON, with nothing in them, are seen to be harmless at a glance; with a secret behind an escape they are not."""
    code = r'print("a\tb\n", {"k": "v\\n"}); re.compile("\\b[a-z]+\\s")' + "\n"
    assert BUILT_IN.harmless(code * 9)
    assert not BUILT_IN.harmless(code + r"\n10.1.2.3")


@settings(max_examples=150, deadline=None)
@given(TEXTS)
@example("a" * 16 + "4111111111111111" + "a" * 64 + "@b.co")
@example("bob@example.com+4915123456789")
@example("-----BEGIN PRIVATE KEY----- ab bob@example.com!")
def test_what_is_masked_is_masked(text: str) -> None:
    """Masking what is masked changes nothing."""
    once = masked(text, BUILT_IN)
    assert masked(once, BUILT_IN) == once


@settings(max_examples=50, deadline=None)
@given(TEXTS)
def test_what_is_not_masked_stays(text: str) -> None:
    """Between masks there is nothing but what was there, in its order."""
    parts = re.split(r"\[[A-Z_]+\]", masked(text, BUILT_IN))
    place = 0
    for part in parts:
        place = text.find(part, place)
        assert place >= 0
        place += len(part)


@pytest.mark.parametrize("unit", HOSTILE)
def test_time_is_linear_on_hostile_text(unit: str) -> None:
    """A slice eight times as long takes eight times as long: the same text in fewer slices takes no longer, whatever it is made of."""
    text = (unit * (16_384 // len(unit) + 1))[:16_384]

    def seconds(size: int) -> float:
        found = []
        for _ in range(3):
            began = time.process_time()
            for _ in slices(text, BUILT_IN, size):
                pass
            found.append(time.process_time() - began)
        return min(found)

    assert seconds(20_000) < 3 * seconds(2_048) + 0.005


@settings(max_examples=300, deadline=None)
@given(TEXTS)
@example("x" * 7_679 + "4111 1111 1111 1111 bob@example.com")
@example("-sk-aaaaaaaaaaaaaaaa%40b.co%4012345678901 1.212.555.1234")
def test_clues_hide_nothing(text: str) -> None:
    """A rule is left out only where it finds nothing."""
    assert masked(text, BUILT_IN) == masked(text, WITHOUT_CLUES)
    assert not BUILT_IN.harmless(text) or masked(text, WITHOUT_CLUES) == text


def test_clues_are_in_all_rules() -> None:
    """Of those that are built in: a text of prose is searched for none of them, however long it is; one with an address, for addresses."""
    assert all(rule.clues for rule in BUILT_IN)
    prose = 'On 12/30 at 12:34:56, "Ada" (and 17 others) paid $1,234.50; see https://example.org/a-b?c=d_e, v1.2.3. ' * 90
    assert BUILT_IN.harmless(prose) and not BUILT_IN.possible(prose, 0, len(prose))
    mail = prose + "bob@example.com"
    assert not BUILT_IN.harmless(mail) and {BUILT_IN[rank].name for rank in BUILT_IN.possible(mail, 0, len(mail))} == {"EMAIL"}


def test_a_step_is_a_slice() -> None:
    """Each step looks at no more than a slice, of which the last part is looked at again."""
    looked: list[tuple[int, int]] = []

    class Spy:
        def finditer(self, text: str, start: int, end: int) -> list[object]:
            looked.append((start, end))
            return []

    text = "x" * 50_000
    assert masked(text, Masks([Rule("X", Spy())])) == text
    assert max(end - start for start, end in looked) == SLICE
    assert [start for start, _ in looked[1:]] == [end - REACH for _, end in looked[:-1]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("abc", "[AB]"), ("xbcd", "x[BC]d"), ("abab", "[AB][AB]"), ("abcx", "[AB]x"), ("bcab", "[BC][AB]"), ("", "")],
)
def test_overlapping(text: str, expected: str) -> None:
    """Of what overlaps, one mask stands for all; what only touches has two."""
    assert masked(text, Masks([Rule("BC", re.compile("bc")), Rule("AB", re.compile("ab"))])) == expected


def test_two_that_go_on() -> None:
    """Where two secrets of any length overlap, the mask goes on to the end of the longer one, in whichever slice that is."""
    masks = Masks([Rule("A", re.compile("a!"), check=whole, rest=run_of("xyz!a")), Rule("Z", re.compile("z!"), check=whole, rest=run_of("xz!q"))])
    text = "..a!" + "x" * 2_000 + "z!" + "x" * 2_000 + "q" * 3_000 + "a."
    for size in (REACH + 1, 900, 4_096, 10**6):
        assert "".join(slices(text, masks, size)) == "..[A]a."
