"""The prompt as a log may have it; patterns of the configuration."""

import re
from pathlib import Path

import pytest

from sluicegate.config import load_text
from sluicegate.config.schema_log import Log
from sluicegate.core.masks import mask
from sluicegate.core.matching import masked
from sluicegate.core.record import Record
from sluicegate.core.redact import BUILT_IN, BadPattern, logged_prompt, pattern_of, rules_of


def test_the_three_ways() -> None:
    """A hash with a length, the prompt with masks, or all of it."""
    texts = ["mail bob@example.com", "bye"]
    assert logged_prompt(texts, "redacted") == {"text": "mail [EMAIL]\nbye", "characters": 24}
    assert logged_prompt(texts, "full") == {"text": "mail bob@example.com\nbye", "characters": 24}
    assert logged_prompt(texts, "hash") == logged_prompt(["mail bob@example.com\nbye"], "hash") == {"sha256": "d0e2a42de5b07796", "characters": 24}


def test_own_patterns() -> None:
    """Are masked by their name, beside what is built in."""
    rules = rules_of([("STAFF", r"\bE-[0-9]{6}\b"), ("STREET", r"(?i)[a-zäöüß]{2,30}straße [0-9]{1,4}")])
    assert masked("E-123456 at bob@example.com, XE-123456, Hauptstraße 12", rules) == "[STAFF] at [EMAIL], XE-123456, [STREET]"


def test_a_pattern_that_fits_masks_leaves_them_alone() -> None:
    """So that masking what is masked changes nothing."""
    rules = rules_of([("WORD", "[A-Z]{4,9}")])
    once = masked("HELLO bob@example.com [WORD]", rules)
    assert once == "[WORD] [EMAIL] [WORD]" and masked(once, rules) == once


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(", "missing"),
        ("[a", "missing"),
        ("(?<=a)b", "invalid"),
        (r"(a)\1", "invalid"),
        ("a+", "give each repetition a bound"),
        (".*", "must not match an empty text"),
        ("x.*", "give each repetition a bound"),
        ("a{1,600}", "give each repetition a bound"),
        ("(a{1,30}){1,30}", "give each repetition a bound"),
        ("a?", "must not match an empty text"),
        (r"\p{Greek}{2,3}", "bad escape"),
        ("a{2000}", "invalid"),
    ],
)
def test_patterns_that_cannot_be_used(pattern: str, why: str) -> None:
    """What cannot be compiled, fits nothing, or may be longer than what slices share; all others are linear by the way they are searched for."""
    with pytest.raises(BadPattern, match=why):
        pattern_of(pattern)


@pytest.mark.parametrize("pattern", ["(a{1,20}){1,20}b", "(a|a|a){1,200}b", "([a-z]{1,9},){1,40}x", "a{0,250}a{0,250}b"])
def test_patterns_that_would_be_slow_elsewhere(pattern: str) -> None:
    """Take their time, and no more."""
    assert masked("a" * 20_000, rules_of([("SLOW", pattern)])) == "a" * 20_000


def test_one_place_for_shapes() -> None:
    """What is masked in a prompt as a credential is masked in an error text by the same name."""
    for text in ("sk-ant-api03-abcdefghijklmnopqrstuv", "AKIAIOSFODNN7EXAMPLE", "ghp_0123456789abcdefghij0123456789abcdef"):
        assert mask(f"<{text}>") == masked(f"<{text}>", BUILT_IN) and text not in mask(text)


def test_the_page_on_logs_says_what_is_so() -> None:
    """Its configuration can be used, and it has every mask and every field."""
    page = (Path(__file__).parents[3] / "docs" / "logs.md").read_text()
    models = "models: {a: {deployments: [{provider: mock, model: a}]}}\nproviders: {mock: {provider: mock}}"
    rest = f"{models}\ntenants: {{acme: {{keys: [{{name: k, key: sk-1}}]}}}}"
    text = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)[0]
    assert load_text(f"{text}{rest}", {}).config.log.patterns == (("STAFF", r"\bE-[0-9]{6}\b"),)
    assert {rule.name for rule in BUILT_IN} == set(re.findall(r"^\| `\[([A-Z_]+)\]` \|", page, re.MULTILINE))
    fields = {field.alias or name for name, field in Log.model_fields.items()} | {"requests.to", "requests.rotate"}
    assert fields == set(re.findall(r"^\| `([a-z.]+)` \|", page.partition("## The access line")[0], re.MULTILINE))
    assert set(Record.__struct_fields__) <= set(re.findall(r"`([a-z_]+)`", page.partition("## The request log")[2])) | {"held"}
