"""Content rules of a tree of scopes: what is added, what is lowered, what is told."""

import pytest

from sluicegate.core import content_rules
from sluicegate.core.content_rules import ContentRules, Rules
from sluicegate.core.phrases import Phrase
from sluicegate.core.speech import Speech

ABOVE = Rules(
    "acme",
    "Be kind.",
    "No advice.",
    (Phrase("bomb", "bomb"),),
    1000,
    500,
    (("temperature", 0.5),),
    (("max_output", 100), ("n", 4)),
)


def test_a_scope_that_says_nothing_shares_the_rules_above_it() -> None:
    """The same object, or none at all."""
    above = ContentRules((ABOVE,))
    assert content_rules.below(None, Rules("acme")) is None
    assert content_rules.below(above, Rules("acme/team")) is above


def test_a_scope_below_adds_and_never_takes_away() -> None:
    """Prompts and disclaimers in order and once, all that is banned, the lowest of limits and ceilings, what is forced above."""
    own = Rules(
        "acme/team",
        "Be brief.",
        "No advice.",
        (Phrase("gun", "gun", "mask", output=False),),
        2000,
        400,
        (("seed", 1),),
        (("max_output", 50), ("n", 8)),
    )
    rules = content_rules.below(ContentRules((ABOVE,)), own)
    assert rules is not None
    assert rules.prompts == ("Be kind.", "Be brief.")
    assert rules.disclaimer == "No advice."
    assert rules.banned_in is not None and [phrase.name for phrase in rules.banned_in.phrases] == ["bomb", "gun"]
    assert rules.banned_out is not None and [phrase.name for phrase in rules.banned_out.phrases] == ["bomb"]
    assert (rules.max_input_tokens, rules.max_input_bytes) == (1000, 400)
    assert rules.force == {"temperature": 0.5, "seed": 1}
    assert rules.ceilings == {"max_output": 50, "n": 4}


def test_what_is_forced_above_cannot_be_forced_to_be_anything_else() -> None:
    """The same value may be said again."""
    above = ContentRules((ABOVE,))
    assert content_rules.conflict(above, "temperature", 0.7)
    assert not content_rules.conflict(above, "temperature", 0.5)
    assert not content_rules.conflict(above, "seed", 5)
    assert not content_rules.conflict(None, "seed", 5)


def test_the_digest_is_of_what_shapes_answers() -> None:
    """Equal for equal rules, another for another mask, empty where answers stay as they are."""
    plain = ContentRules((Rules("a", system_prompt="x", banned=(Phrase("p", "p", output=False),)),))
    assert (plain.digest, plain.shapes_answers) == (b"", False)
    masked = [ContentRules((Rules(scope, banned=(Phrase("p", "p", "mask", mask=mask),)),)) for scope, mask in (("a", "#"), ("b", "#"), ("a", "*"))]
    assert masked[0].digest == masked[1].digest != masked[2].digest
    assert ContentRules((Rules("a", disclaimer="x"),)).digest
    assert masked[0] == ContentRules(masked[0].chain) and hash(masked[0]) == hash(ContentRules(masked[0].chain))


@pytest.mark.parametrize("text", ['{"a": "bomb", "bomb": ["BOMB"]}', "a bomb", '["bomb"', '"bomb"'])
def test_a_report_names_what_it_finds_in_arguments_and_changes_nothing(text: str) -> None:
    """They go on as they come, and are searched when they are whole."""
    acted: set[str] = set()
    speech = Speech(ContentRules((Rules("a", banned=(Phrase("p", "bomb", "report"),)),)), acted)
    assert [speech.argue(("c",), piece) for piece in (text[:4], text[4:])] == [text[:4], text[4:]]
    assert acted == set()
    assert (speech.end(("c",)), speech.open) == ("", [])
    assert acted == {"p"}
    assert speech.whole_arguments(text) == text


def test_after_a_refusal_nothing_is_said() -> None:
    """In no text of the answer."""
    speech = Speech(ContentRules((Rules("a", banned=(Phrase("p", "bomb"),)),)), set())
    assert speech.say(("a",), "x bomb y") == "x "
    assert (speech.say(("b",), "z"), speech.say(("a",), "z"), speech.whole("z"), speech.refused) == ("", "", "", "p")
