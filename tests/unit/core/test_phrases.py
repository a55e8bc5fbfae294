"""Phrases in texts: how they are read, that it does not matter how a text is cut, and that nothing takes long."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.core import folding
from sluicegate.core import phrases as module
from sluicegate.core.folding import EDGE, fold
from sluicegate.core.patterns import BadPattern, parse
from sluicegate.core.phrases import HELD_MAX, START, Pace, Phrase, Phrases, Slices, divided


def banned(*patterns: str, action: str = "mask", words: bool = False, mask: str = "#") -> Phrases:
    return Phrases([Phrase(f"r{i}", pattern, action, words=words, mask=mask) for i, pattern in enumerate(patterns)])


def whole(phrases: Phrases, text: str) -> str:
    return phrases.read(START, text, end=True).text


def in_pieces(phrases: Phrases, pieces: list[str]) -> str:
    """What comes out of a text in pieces; what was refused ends it."""
    state, out = START, []
    for place, piece in enumerate(pieces or [""]):
        passed = phrases.read(state, piece, end=place + 1 >= len(pieces))
        out.append(passed.text)
        if passed.refused >= 0:
            return "".join(out) + "!"
        state = passed.state
    return "".join(out)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a bomb", "a #"),
        ("BOMB, Bomb", "#, #"),
        ("ｂｏｍｂ", "#"),
        ("b\u200bo\u00adm\u2060b", "#"),
        ("b\ufe0fo\u202emb\u200b!", "#\u200b!"),
        ("𝐛𝐨𝐦𝐛 ⓑⓞⓜⓑ", "# #"),
        ("bombe\u0301", "#e\u0301"),
        ("bomb\u0301", "bomb\u0301"),
        ("b\x00omb", "#"),
        ("bombbomb", "##"),
        ("бomb", "бomb"),
    ],
)
def test_letters_are_read_as_a_reader_reads_them(text: str, told: str) -> None:
    """Case, width, ligatures, what cannot be seen: none of it hides a phrase. Another letter that looks alike is another letter."""
    assert whole(banned("bomb"), text) == told


@pytest.mark.parametrize(
    ("pattern", "text", "told"),
    [
        ("straße", "STRASSE", "#"),
        ("file", "ﬁle", "#"),
        ("le", "ﬁle", "ﬁ#"),
        ("il", "ﬁle", "#e"),
        ("café", "cafe\u0301 and café", "# and #"),
        ("top secret", "top\u00a0\n secret", "#"),
        ("top secret", "top\u2800secret", "#"),
        ("폭탄", "폭탄이", "#이"),
        ("폭타", "폭탄", "폭탄"),
        ("爆弾", "この爆弾は", "この#は"),
        (r"regex:\d{3}-\d{2}", "123-45 １２３-４５", "# #"),
        ("regex:[A-F]{2,4}", "xabcdefx", "x##x"),
        ("regex:[а-я]{3}", "БОЙ", "#"),
        ("regex:(?:one|two three)!", "two three!", "#"),
        ("regex:a.c", "a\nc", "#"),
        (r"regex:\bcat\b", "cat concat cat.", "# concat #."),
        (r"regex:a\b", "ab a", "ab #"),
        (r"regex:\\b", r"\b", "#"),
        (r"regex:[\d.]{3}", "1.2", "#"),
        (r"regex:[^x]y", "xy ay", "xy #"),
        (r"regex:a{2,3}", "aaaaa", "##"),
        ("regex:ax{0}b{0,0}c", "axbc ac", "axbc #"),
        (r"regex:\x42om\u0062\tx", "bomb x", "#"),
        (r"regex:foo|foo bar", "foo bart foo bar", "#t #"),
    ],
)
def test_patterns_find_what_they_say(pattern: str, text: str, told: str) -> None:
    """Literals and expressions over folded text, the longest match first."""
    assert whole(banned(pattern), text) == told


def test_whole_words_may_be_asked_for() -> None:
    """With `words`, letters, digits and marks on either side make it another word, in any script; `_` does not; the longest match counts."""
    assert whole(banned(r"regex:\bcat\b"), "a _cat_") == "a _#_"
    assert whole(banned("ass", words=True), "ass class assay ass_ ass9 (ass)") == "# class assay #_ ass9 (#)"
    assert whole(banned("бомба", words=True), "бомба бомбардир") == "# бомбардир"
    assert whole(banned("regex:foo|foo bar", words=True), "foo bart") == "# bart"


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("regex:a*", "write {0,40} instead of *"),
        ("regex:a+", "write {1,40} instead of +"),
        ("regex:a{3,}", "give {3,} an end"),
        ("regex:a{513}", "512 are the most"),
        ("regex:(?:a{30}){30}", "512 are the most"),
        ("regex:a?", "without any character"),
        ("\u200b", "without any character"),
        ("x" * 600, "may match 600 characters"),
        ("regex:(a", "'(' without its end"),
        ("regex:a)", "')' without its beginning"),
        ("regex:[a", "'[' without its end"),
        ("regex:[b-a]", "cannot be"),
        ("regex:(?=a)b", "of a kind that is not supported"),
        (r"regex:(a)\1", "not known"),
        ("regex:^a", "no rule can ask"),
        ("regex:a{2}{3}", "behind a repetition"),
        ("regex:a??", "behind a repetition"),
        ("regex:{2}", "nothing to repeat"),
        ("regex:a{x}", "no repetition"),
        ("regex:a{3,2}", "cannot be"),
        (r"regex:a\bc", "inside"),
        ("regex:a\\", "ends with a backslash"),
        (r"regex:\xZZ", "hexadecimal"),
        (r"regex:[\D]", "opposite"),
        (r"regex:[\x00-\uffff]", "a range of more than 30000 characters"),
        ("regex:" + "(" * 21 + "a" + ")" * 21, "nested too deeply"),
    ],
)
def test_a_pattern_that_cannot_be_used_says_why(pattern: str, message: str) -> None:
    """Every pattern has an end, a longest match, and nothing that is searched in more than linear time."""
    with pytest.raises(BadPattern) as error:
        Phrases([Phrase("r", pattern)])
    assert message in str(error.value)


def test_phrases_that_are_too_large_together_are_refused() -> None:
    """What would take more memory than it is worth is a fault of the configuration."""
    with pytest.raises(BadPattern, match=r"too large|cannot be compiled"):
        banned(*[r"regex:(?:\w{1,500}|[^ab]{500})"] * 40)


ALPHABET = "abAB ﬁ\u200b\u00ad\u0301éß가각漢😀1-"
PATTERNS = ["ab", "aba", "a b", "fi", "i", "é", "ss", "가", "regex:a{1,3}b", "regex:(?:a|ab)b?-?", r"regex:\d-", "regex:b.{0,4}a", r"regex:\bab\b"]


@given(st.data())
@settings(max_examples=120, deadline=None)
def test_however_a_text_is_cut_the_same_comes_out(data: st.DataObject) -> None:
    """Any phrases, any text, any pieces: the pieces that come out make the text that comes out of the whole."""
    chosen = data.draw(st.lists(st.tuples(st.sampled_from(PATTERNS), st.sampled_from(["mask", "mask", "refuse", "report"])), min_size=1, max_size=4))
    phrases = Phrases([Phrase(f"r{i}", pattern, action, mask="#") for i, (pattern, action) in enumerate(chosen)])
    text = data.draw(st.text(ALPHABET, max_size=30))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert in_pieces(phrases, pieces) == in_pieces(phrases, [text])


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_what_is_found_is_found_in_pieces_too(data: st.DataObject) -> None:
    """Reports name the same phrases whether a text comes whole or one character at a time, and change nothing of it."""
    phrases = banned(*data.draw(st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=4)), action="report")
    text = data.draw(st.text(ALPHABET, max_size=30))
    state, found, out = START, set(), ""
    for character in [*text, ""]:
        passed = phrases.read(state, character, end=not character)
        state, out = passed.state, out + passed.text
        found |= passed.found
    assert (found, out) == (set(phrases.find(text)), text)
    assert phrases.anywhere(["x", text]) is bool(found)


def test_nothing_of_a_phrase_goes_out_before_it_is_known_to_be_none() -> None:
    """What may be its beginning waits, and only that."""
    phrases = banned("bombs")
    passed = phrases.read(START, "a bom", end=False)
    assert (passed.text, passed.state.pending) == ("a ", "bom")
    assert phrases.read(passed.state, "e", end=False).text == "bome"
    assert phrases.read(passed.state, "", end=True).text == "bom"


def test_phrases_that_overlap_are_all_masked() -> None:
    """A rule cannot save from another what that one bans, not a part of it either."""
    phrases = banned("ab cd", "cd ef", "x")
    assert whole(phrases, "ab cd ef x") == "# #"
    assert in_pieces(phrases, list("ab cd ef x")) == "# #"
    assert whole(Phrases([Phrase("long", "foo bar", "mask", mask="#"), Phrase("short", "bar", "refuse")]), "a foo bar") == "a #"
    assert Phrases([Phrase("long", "foo bar", "mask"), Phrase("short", "bar", "refuse")]).read(START, "a foo bar", end=True).refused == 1


def test_a_phrase_of_thousands_of_invisible_characters_is_none() -> None:
    """What waits is bounded: a text that never ends its phrase goes on."""
    phrases, flood = banned("bomb"), "\u200b" * (HELD_MAX + 10)
    assert whole(phrases, "bo" + flood + "mb bomb") == "bo" + flood + "mb #"
    state = START
    for piece in ("bo", *["\u200b" * 100] * 100):
        state = phrases.read(state, piece, end=False).state
        assert len(state.pending) <= HELD_MAX
    assert phrases.read(state, "mb", end=True).text.endswith("mb")
    assert whole(phrases, "b" + "\u200b" * 1000 + "omb") == "#"


def test_no_text_and_no_pattern_knows_the_edge() -> None:
    """The character that stands around texts is another one in them."""
    assert fold(EDGE) == "\ufffd"
    assert whole(banned("regex:[^a].{0,3}b"), EDGE + "b") == "#"
    assert whole(banned("regex:.b"), "b") == "b"


@pytest.mark.parametrize("pattern", ["regex:a{1,511}b", "regex:(?:a|aa){1,250}b", "regex:(?:a?){200}a{200}b", "regex:(?:a{1,20}b?){1,20}c", "a"])
def test_hostile_texts_take_linear_time(pattern: str) -> None:
    """A megabyte that other engines would never finish takes a moment, whole and in pieces."""
    phrases, text = banned(pattern), "a" * 1_000_000
    begun = time.process_time()
    assert whole(phrases, text).strip("a#") == ""
    state = START
    for _ in range(500):
        state = phrases.read(state, "a" * 40, end=False).state
    assert time.process_time() - begun < 2


def test_very_many_matches_are_masked_to_the_end() -> None:
    """Behind as many matches of one phrase as nobody writes, the rest of the text is masked as one."""
    told = whole(banned("a"), "ab" * 20_000)
    assert told.count("#") == module.MATCHES_MAX + 1
    assert told.count("b") == module.MATCHES_MAX
    assert in_pieces(banned("a"), ["ab" * 700] * 20) == told
    assert in_pieces(banned("a", "zz"), [*["ab" * 700] * 20, "zz", "b"]) == told


def test_what_only_reports_is_looked_for_until_it_is_found() -> None:
    """A text full of such a phrase costs one match of it; with one that acts, what was known is not looked for again."""
    phrases, text = Phrases([Phrase("seen", "foo", "report"), Phrase("not", "bar", "mask", mask="#")]), "foo " * 100_000
    begun = time.process_time()
    assert phrases.find(text) == {0}
    assert time.process_time() - begun < 0.1
    passed = phrases.read(START, "foo bar", end=True, known=frozenset({0}))
    assert (passed.text, passed.found) == ("foo #", {1})


@pytest.mark.parametrize(
    ("pieces", "told"),
    [
        (["a bo", "mb c"], ["a #", "# c"]),
        (["b", "o", "", "m", "b"], ["#", "#", "", "#", "#"]),
        (["bomb", "bomb"], ["#", "#"]),
        (["a bombbo", "mb bomb."], ["a ##", "# #."]),
        (["nothing", "here"], ["nothing", "here"]),
    ],
)
def test_what_stands_in_several_texts_is_masked_in_each(pieces: list[str], told: list[str]) -> None:
    """None becomes empty that was not, and what stands around the phrase stays where it is."""
    passed = banned("bomb").read(START, "".join(pieces), end=True)
    assert divided(pieces, passed.masked, ["#"]) == told


def test_half_a_surrogate_pair_is_a_character() -> None:
    """Texts of upstreams may have one; it is neither lost nor a fault."""
    assert whole(banned("bomb"), "\ud83d bomb") == "\ud83d #"


def test_what_is_remembered_of_characters_has_an_end() -> None:
    """Texts of ever other characters take no more memory; then those of before are folded anew, and as before, half a surrogate pair too."""
    text = "ＢⓄⓜb\u200b é\ud83d"
    before = fold(text)
    for first in range(0x20000, 0x20000 + folding._KEPT_MAX, 1_000):
        fold("".join(map(chr, range(first, first + 1_000))))
        assert len(folding._TABLE) <= folding._KEPT_MAX
    assert fold(text) == before == "bomb e\u0301\ufffd"
    assert whole(banned("bomb"), "\ud83d bomb") == "\ud83d #"


def test_a_pattern_knows_its_longest_match() -> None:
    """By which it is refused, and by which streams wait."""
    assert (parse("regex:a{2,5}(?:bc|d)").shortest, parse("regex:a{2,5}(?:bc|d)").longest) == (3, 7)
    assert parse("a b").longest == 6


@pytest.mark.parametrize(
    ("pattern", "signs"),
    [
        ("bomb", ("bomb",)),
        ("Top Secret", ("secret",)),
        ("regex:acme ?corp", ("acme",)),
        ("regex:(?:one|three)!?", ("one", "three")),
        ("regex:x(?:one|[a-c])", ("x",)),
        (r"regex:\d{4}", ()),
        ("regex:a?[bc]", ()),
        ("regex:(?:ab){2,3}c?", ("ab",)),
        ("regex:(?:ab){0,3}c", ("c",)),
    ],
)
def test_what_every_match_has_in_it_is_known(pattern: str, signs: tuple[str, ...]) -> None:
    """The longest text of which that is certain, or one of several."""
    assert parse(pattern).signs == signs


@given(st.lists(st.sampled_from([pattern for pattern in PATTERNS if parse(pattern).signs]), min_size=1, max_size=3), st.text(ALPHABET, max_size=20))
@settings(max_examples=200, deadline=None)
def test_a_text_without_the_signs_has_no_phrase(patterns: list[str], text: str) -> None:
    """What is not searched for that reason has nothing that a search would find."""
    phrases = banned(*patterns)
    if phrases.lacking((text,)):
        assert not any(pattern.search(f"{EDGE}{fold(text)}{EDGE}".encode()) for pattern in phrases._each)


@given(st.text(st.characters(max_codepoint=127)))
def test_a_text_in_ascii_is_folded_as_any_other(text: str) -> None:
    """The short way gives the same."""
    assert fold(text) == fold(text + "\u00e4")[:-2]


@given(st.text(ALPHABET, max_size=60), st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_slices_of_a_text_say_what_the_whole_says(text: str, size: int) -> None:
    """The same text, masked at the same places."""
    phrases, pace = banned("ab", "regex:b.{0,4}a"), Pace()
    pace.size = size
    slices = Slices(phrases)
    found = set().union(*[passed.found for passed in slices.over(text, pace)])
    told = phrases.read(START, text, end=True)
    assert ("".join(slices.out), slices.masked, found) == (told.text, list(told.masked), set(told.found))
