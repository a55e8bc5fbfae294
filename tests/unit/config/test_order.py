"""What a configuration says of the order of a route, and what about it does not fit."""

from typing import Any

import pytest

from sluicegate.config import ConfigError, load_text
from sluicegate.core.tenants import Model


def load(models: str) -> dict[str, Model]:
    return load_text(
        f"providers: {{p: {{provider: mock}}}}\nmodels:\n{models}\ntenants: {{acme: {{keys: [{{name: k, key: sk-1}}]}}}}\n", {}
    ).policy.models


def chat(*deployments: str, more: str = "") -> str:
    listed = ", ".join(f"{{provider: p, model: m{i}{one}}}" for i, one in enumerate(deployments))
    return f"  chat: {{deployments: [{listed}]{more}}}"


def problems(models: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(models)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("", ("weighted", b"")),
        (", balance: least_busy", ("least_busy", b"")),
        (", balance: sticky", ("sticky", b"")),
        (", balance: sticky, sticky: key", ("sticky", b"")),
        (", balance: sticky, sticky: {header: X-Session}", ("sticky", b"x-session")),
    ],
)
def test_how_a_tier_is_balanced(written: str, expected: tuple[str, bytes]) -> None:
    """By weight unless something else is said; what sticks, to the key unless a header is named."""
    model = load(chat(", tier: t", ", tier: t", more=written))["chat"]
    assert (model.balance, model.sticky_header) == expected


@pytest.mark.parametrize(("written", "leaves_for"), [("", None), (", fallback_on: []", {""}), (", fallback_on: [timeout]", {"", "timeout"})])
def test_what_a_deployment_is_left_for(written: str, leaves_for: Any) -> None:
    """Every failure if nothing is said. Having no room is no failure."""
    assert load(chat("", "", more=written))["chat"].leaves_for == leaves_for


def test_a_chain_of_larger_models() -> None:
    """Each names the next."""
    models = load(chat("", more=", context_fallback: big") + "\n  big: {deployments: [{provider: p, model: b}], context_fallback: huge}\n"
                  "  huge: {deployments: [{provider: p, model: h}]}")  # fmt: skip
    assert [model.context_fallback for model in models.values()] == ["big", "huge", ""]


BIG = "\n  big: {deployments: [{provider: p, model: b}], context_fallback: %s}"
ONE = "models.chat.deployments[0]"


@pytest.mark.parametrize(
    ("models", "problem"),
    [
        (chat(", weight: 2", ""), f"{ONE}.weight: decides inside a tier; say in which one: tier: NAME"),
        (chat(", tier: t, weight: 0", ", tier: t, weight: 0"), f"{ONE}.weight: is 0 for all of tier 't'; 0 is a last resort beside others"),
        (chat(", tier: t, weight: -1"), f"{ONE}.weight: must be greater than or equal to 0"),
        (chat(', tier: "a b"'), f"{ONE}.tier: 'a b' is no name; names have letters, digits and ._-"),
        (chat(', when: {budget_used: ">80%"}', ""), f"{ONE}.when: has no effect: this deployment is the first in any case"),
        (chat("", ", when: {budget_used: 80}"), 'models.chat.deployments[1].when.budget_used: must be a share of what there is, such as ">80%"'),
        (chat("", ', when: {budget_used: "<80%"}'), 'models.chat.deployments[1].when.budget_used: must be a share of what there is, such as ">80%"'),
        (chat("", ', when: {budget_used: ">100%"}'), 'models.chat.deployments[1].when.budget_used: must be a share of what there is, such as ">80%"'),
        (chat("", ", when: {}"), "models.chat.deployments[1].when.budget_used: is required"),
        (chat("", "", more=", balance: least_busy"), "models.chat.balance: decides inside a tier, and no tier of this model has two deployments"),
        (chat(", tier: t", ", tier: t", more=", sticky: {header: x-s}"), "models.chat.sticky: goes with balance: sticky"),
        (
            chat(", tier: t", ", tier: t", more=", balance: sticky, sticky: {header: 'a b'}"),
            "models.chat.sticky: must be key, or {header: NAME} with the name of a header that clients send",
        ),
        (
            chat(", tier: t", ", tier: t", more=", balance: sticky, sticky: session"),
            "models.chat.sticky: must be key, or {header: NAME} with the name of a header that clients send",
        ),
        (chat("", more=", context_fallback: bog") + BIG % "null", "models.chat.context_fallback: there is no model 'bog'; did you mean 'big'?"),
        (chat("", more=", context_fallback: chat"), "models.chat.context_fallback: leads back to where it came from: chat > chat"),
        (chat("", "", more=", fallback_on: [quota]"), "models.chat.fallback_on[0]: must be "),
    ],
)
def test_what_does_not_fit(models: str, problem: str) -> None:
    """Names the field, and says what would be right."""
    [found] = problems(models)
    assert found.startswith(problem)


def test_a_circle_of_larger_models_is_told_at_each() -> None:
    """Whichever of them a request comes for, it would go round for ever; one outside of it is no part of the fault."""
    outside = "\n  third: {deployments: [{provider: p, model: t}], context_fallback: chat}"
    assert problems(chat("", more=", context_fallback: big") + BIG % "chat" + outside) == [
        "models.chat.context_fallback: leads back to where it came from: chat > big > chat",
        "models.big.context_fallback: leads back to where it came from: big > chat > big",
    ]
