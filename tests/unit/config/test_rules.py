"""`rules:` in the configuration: what it says, what is inherited, and what is wrong with it, by the path of the field."""

import re
from pathlib import Path
from typing import Any

import pytest

from sluicegate.config.fields import ConfigError
from sluicegate.config.load import load_text
from sluicegate.config.schema_rules import Banned, Ceilings, Force, Rules
from sluicegate.config.section import Section

PAGE = (Path(__file__).parents[3] / "docs" / "content-rules.md").read_text()

BASE = """
providers: {mock: {provider: mock, base_url: "http://127.0.0.1:1/v1"}}
models: {chat: {deployments: [{provider: mock, model: m, price: {input: 1, output: 1}}]}}
"""


def keys(rules: str, tenant: str = "{}", key: str = "{}", limits: str = "[]") -> dict[str, Any]:
    text = f"""{BASE}
rules: {rules}
tenants:
  limits: {limits}
  acme: {{rules: {tenant}, keys: [{{name: k, key: sk-1, rules: {key}}}]}}
  other: {{keys: [{{name: k, key: sk-2}}]}}
"""
    return {key.id: key for key in load_text(text, {}).policy.keys.values()}


@pytest.mark.parametrize("limits", ["[]", "[$10/month]"])
def test_rules_come_down_the_tree(limits: str) -> None:
    """Those of the file bind everybody, a tenant's all below it; a key's its own requests."""
    found = keys("{system_prompt: A}", "{disclaimer: B, max_input: 2KB}", "{ceilings: {temperature: 0.5, max_completion_tokens: 7}}", limits)
    rules = found["acme/@k"].rules
    assert (rules.prompts, rules.disclaimer, rules.max_input_bytes, rules.ceilings) == (("A",), "B", 2000, {"temperature": 0.5, "max_output": 7})
    assert [own.scope for own in rules.chain] == ["*", "acme", "acme/@k"]
    assert found["other/@k"].rules.prompts == ("A",)
    assert keys("{}")["acme/@k"].rules is None


def test_ceilings_on_thinking_come_down_by_their_order() -> None:
    """The lowest counts, by what the words mean; a budget and a word bind each other."""
    found = keys("{ceilings: {reasoning_effort: high}}", "{ceilings: {thinking_budget: 9000}}", "{ceilings: {reasoning_effort: xhigh}}")
    assert found["acme/@k"].rules.ceilings == {"reasoning_effort": "medium", "thinking_budget": 9000}
    assert found["other/@k"].rules.ceilings == {"reasoning_effort": "high", "thinking_budget": 24_576}
    assert keys("{ceilings: {reasoning_effort: max}}")["acme/@k"].rules.ceilings == {"reasoning_effort": "max"}


def test_a_key_without_rules_of_its_own_shares_its_tenants() -> None:
    """They are compiled once."""
    found = keys("{banned: [{name: a, pattern: b}]}")
    assert found["acme/@k"].rules is found["other/@k"].rules


def test_what_is_banned_is_read_in_full() -> None:
    """With all that may be said of it."""
    banned = "{name: a, pattern: 'regex:[ab]{2}', action: mask, on: input, words: on, mask: '*'}"
    rules = keys(f"{{banned: [{banned}]}}")["acme/@k"].rules
    (phrase,) = rules.banned_in.phrases
    assert (phrase.action, phrase.input, phrase.output, phrase.words, phrase.mask, phrase.scope) == ("mask", True, False, True, "*", "*")
    assert rules.banned_out is None


def test_every_parameter_can_be_forced() -> None:
    """Each of its kind."""
    force = (
        "{temperature: 0, top_p: 1, seed: 7, stop: [a], n: 1, max_tokens: 5, store: off, service_tier: flex, reasoning_effort: low, top_logprobs: 0}"
    )
    assert keys(f"{{force: {force}}}")["acme/@k"].rules.force == {
        "temperature": 0.0, "top_p": 1.0, "seed": 7, "stop": ("a",), "n": 1, "max_output": 5,
        "store": False, "service_tier": "flex", "reasoning_effort": "low", "top_logprobs": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        ("{banned: [{name: a, pattern: 'regex:a*'}]}", "rules.banned[0].pattern: has no longest match"),
        ("{banned: [{name: a, pattern: b}, {name: a, pattern: c}]}", "rules.banned[1].name: 'a' is already the name of another"),
        ("{banned: [{name: 'a, b', pattern: b}]}", "rules.banned[0].name"),
        ("{banned: [{name: a}]}", "rules.banned[0].pattern"),
        ("{banned: [{name: a, pattern: b, action: drop}]}", "rules.banned[0].action"),
        ("{banned: [{name: a, pattern: b, when: x}]}", "rules.banned[0].when: unknown field"),
        ("{force: {temprature: 1}}", "rules.force.temprature: unknown field; did you mean 'temperature'?"),
        ("{force: {temperature: 3}}", "rules.force.temperature"),
        ("{force: {temperature: warm}}", "rules.force.temperature"),
        ("{ceilings: {n: 0}}", "rules.ceilings.n"),
        ("{ceilings: {max_tokens: 5, max_output: 6}}", "rules.ceilings.max_tokens: and max_output are two names of the same"),
        ("{banned: [{name: a, pattern: bomb, action: mask, mask: a bomb}]}", "rules.banned[0].mask: is banned itself, by 'a'"),
        ("{banned: [{name: a, pattern: x, action: mask, mask: y}, {name: b, pattern: y}]}", "rules.banned[0].mask: is banned itself, by 'b'"),
        ("{banned: [{name: a, pattern: advice}], disclaimer: No advice.}", "rules.disclaimer: is banned itself, by 'a'"),
        ("{max_input_tokens: 0}", "rules.max_input_tokens"),
        ("{max_input: 0}", "rules.max_input"),
        ("{force: {n: 5}, ceilings: {n: 2}}", "rules.force.n: is above its ceiling, 2"),
        ("{force: {max_tokens: 5}, ceilings: {max_output: 2}}", "rules.force.max_output: is above its ceiling, 2"),
        ("{ceilings: {reasoning_effort: lots}}", "rules.ceilings.reasoning_effort"),
        ("{ceilings: {thinking_budget: 100}}", "rules.ceilings.thinking_budget: must be 0, which is no thinking, or at least 1,024 tokens"),
        ("{force: {thinking_budget: 2000}}", "rules.force.thinking_budget: unknown field"),
        ("{force: {reasoning_effort: xhigh}, ceilings: {reasoning_effort: low}}", "rules.force.reasoning_effort: is above its ceiling, low"),
        ("{force: {reasoning_effort: high}, ceilings: {thinking_budget: 2000}}", "rules.force.reasoning_effort: is above its ceiling, low"),
        ("{max_input: lots}", "rules.max_input"),
        ("{disclaimers: x}", "rules.disclaimers: unknown field; did you mean 'disclaimer'?"),
    ],
)
def test_what_is_wrong_is_told_with_its_path(rules: str, problem: str) -> None:
    """At the file's rules; a tenant's and a key's likewise, below their own paths."""
    for where, said in (("", (rules,)), ("tenants.acme.", ("{}", rules)), ("tenants.acme.keys[0].", ("{}", "{}", rules))):
        with pytest.raises(ConfigError) as error:
            keys(*said)
        assert where + problem in str(error.value)


def test_a_child_cannot_loosen_what_is_forced() -> None:
    """The field is named, and what it is above."""
    with pytest.raises(ConfigError) as error:
        keys("{force: {temperature: 0.2}}", "{force: {temperature: 0.9}}")
    assert "tenants.acme.rules.force.temperature: is forced to be 0.2 above; it cannot be anything else" in str(error.value)


@pytest.mark.parametrize(
    ("above", "below", "problem"),
    [
        ("{ceilings: {n: 2}}", "{force: {n: 5}}", "force.n: is above its ceiling, 2"),
        ("{disclaimer: No advice.}", "{banned: [{name: a, pattern: advice}]}", "banned[0].pattern: is in the disclaimer above"),
        (
            "{banned: [{name: a, pattern: x, action: mask}]}",
            "{banned: [{name: b, pattern: banned}]}",
            "banned[0].pattern: is in the mask of 'a' above",
        ),
        ("{banned: [{name: a, pattern: advice}]}", "{disclaimer: No advice.}", "disclaimer: is banned above, by 'a'"),
    ],
)
def test_a_child_cannot_ask_for_what_is_banned_or_bounded_above(above: str, below: str, problem: str) -> None:
    """What it puts into answers, and what it forces."""
    with pytest.raises(ConfigError) as error:
        keys(above, below)
    assert f"tenants.acme.rules.{problem}" in str(error.value)


def test_what_may_be_said_of_what_is_banned() -> None:
    """A system prompt may name it, a ceiling below may lower what is forced above, and a report is no ban."""
    found = keys("{system_prompt: Never say bomb., force: {n: 5}}", "{banned: [{name: a, pattern: bomb}], ceilings: {n: 2}}")
    assert found["acme/@k"].rules.ceilings == {"n": 2}
    assert keys("{banned: [{name: a, pattern: advice, action: report}], disclaimer: No advice.}")["acme/@k"].rules.disclaimer == "No advice."


@pytest.mark.parametrize("section", [Rules, Banned, Ceilings, Force])
def test_every_field_is_explained(section: type[Section]) -> None:
    """No field of the schema is missing from the page."""
    assert [name for name in section.model_fields if not re.search(rf"`{name}`", PAGE)] == []


def test_the_rules_shown_can_be_used() -> None:
    """They load, and come down the tree as it is said."""
    text = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)[0]
    (key,) = load_text(BASE + text, {}).policy.keys.values()
    rules = key.rules
    assert rules is not None and rules.banned_in is not None
    assert [phrase.name for phrase in rules.banned_in.phrases] == ["card-numbers", "project-x"]
    assert (rules.ceilings, rules.force) == ({"temperature": 1.0, "max_output": 256, "n": 2}, {"temperature": 0.2})
    assert rules.banned_in.anywhere(["pay with 4111 1111 1111 1111."])
    assert not rules.banned_in.anywhere(["project xyz 4111 1111"])
