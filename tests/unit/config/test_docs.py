"""The pages on configuration and limits say what is so."""

import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from sluicegate.config import load_text
from sluicegate.config.check import warnings
from sluicegate.config.schema import (
    Admin,
    Budget,
    Config,
    Deployment,
    Health,
    Key,
    Model,
    Override,
    Prices,
    Provider,
    Queue,
    Section,
    Server,
    Tenant,
    Tier,
    Variant,
    Webhook,
    When,
)
from sluicegate.core.limits import parse
from sluicegate.core.prices import Origin

DOCS = Path(__file__).parents[3] / "docs"
CONFIG, LIMITS, PRICES = ((DOCS / f"{name}.md").read_text() for name in ("config", "limits", "prices"))


def blocks(page: str) -> list[str]:
    return re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)


def test_the_configuration_shown_can_be_used() -> None:
    """It loads, and only its plain key is warned about beside what it deliberately oversells."""
    text, *_ = blocks(CONFIG)
    loaded = load_text(text, {"OPENAI_API_KEY": "k", "METRICS_KEY": "m"})
    assert [line.split(":")[0] for line in warnings(loaded)] == ["tenants.acme.children.team-a.keys[1]"]


def test_the_order_shown_can_be_used() -> None:
    """It loads, where its providers and the larger model are there, and what is said of it is so."""
    chat = blocks(CONFIG)[1]
    providers = "providers: {east: {provider: mock}, west: {provider: mock}}"
    long = "long: {deployments: [{provider: west, model: long}]}"
    models = load_text(f"{providers}\nmodels:\n{chat}  {long}\ntenants: {{acme: {{keys: [{{name: k, key: sk-1}}]}}}}", {}).policy.models
    assert [[one.id for one in tier.deployments] for tier in models["chat"].tiers] == [["east/large", "west/large"], ["east/small"]]
    assert (models["chat"].sticky_header, models["chat"].context_fallback) == (b"x-session", "long")


def test_the_probes_shown_can_be_used() -> None:
    """They ask what is said of them: a page of the provider's own, and its list of models."""
    models = "models: {a: {deployments: [{provider: local, model: a}, {provider: openai, model: gpt-4o}]}}"
    text = f"{blocks(CONFIG)[2]}{models}\ntenants: {{acme: {{keys: [{{name: k, key: sk-1}}]}}}}"
    probes = [one.probe for one in load_text(text, {"OPENAI_API_KEY": "k"}).policy.models["a"].deployments]
    assert [(one.path, one.interval_ms) for one in probes if one is not None] == [(b"/health", 10_000), (b"/models", 60_000)]


def test_the_webhooks_shown_can_be_used() -> None:
    """They load, and go where and for what is said of them."""
    text = next(block for block in blocks(CONFIG) if block.startswith("webhooks:"))
    models = "models: {a: {deployments: [{provider: mock, model: a}]}}\nproviders: {mock: {provider: mock}}"
    rest = f"{models}\ntenants: {{acme: {{keys: [{{name: k, key: sk-1}}]}}}}"
    environ = {"OPS_HOOK": "https://ops.example/x?y=1", "SLACK_HOOK": "https://slack.example/z", "HOOK_SECRET": "s"}
    ops, slack = load_text(text + rest, environ).policy.webhooks
    assert (ops.origin, ops.target, ops.types, ops.headers) == (
        "https://ops.example",
        b"/x?y=1",
        ("budget.*", "breaker.changed"),
        ((b"x-team", b"platform"),),
    )
    assert (slack.format, slack.types, slack.secret) == ("slack", ("budget.*",), b"")


@pytest.mark.parametrize("section", [Config, Server, Admin, Budget, Queue, Provider, Health, Deployment, Model, When, Tenant, Key, Webhook])
def test_every_field_is_explained(section: type[Section]) -> None:
    """No field of the schema is missing from the page."""
    missing = [field.alias or name for name, field in section.model_fields.items() if not re.search(rf"\b{field.alias or name}\b", CONFIG)]
    assert missing == []


@pytest.mark.parametrize("section", [Prices, Override, Tier, Variant])
def test_every_field_of_a_price_is_explained(section: type[Section]) -> None:
    """No field of a price is missing from the page on prices."""
    assert [name for name in section.model_fields if not re.search(rf"\b{name}\b", PRICES)] == []


def test_the_prices_shown_can_be_used() -> None:
    """The sections on the page fit into a configuration."""
    [text] = blocks(PRICES)
    rest = "\nproviders: {openai: {dialect: openai}}\ntenants: {acme: {keys: [{name: a, key: sk-a}]}}\n"
    more = "  mini: {deployments: [{provider: openai, model: gpt-4o-mini}]}\nprices:\n"
    loaded = load_text(text.replace("prices:\n", more) + rest, {})
    price = loaded.policy.models["chat"].deployments[0].price
    assert price is not None
    assert (price.at(272_001).output, [name for name, _ in price.variants]) == (22_500_000, ["service_tier=priority"])
    assert loaded.policy.models["mini"].deployments[0].price_origin == Origin("override", "2026-11-01", "contract 17")


@pytest.mark.parametrize("text", re.findall(r"^\| `([^`]+)` \| [^|]+\|$", LIMITS.split("## Long form")[0], re.MULTILINE))
def test_short_forms_shown_are_read(text: str) -> None:
    """Each limit in the table of short forms is one."""
    assert parse(text).text == text


def test_long_forms_shown_are_read() -> None:
    """Each limit in the blocks of long forms is one."""
    yaml = YAML(typ="safe", pure=True)
    long, shadow = blocks(LIMITS)
    assert [parse(one).amount for one in yaml.load(long)] == [20_000, 5 * 10**9, 100, 4 * 10**9]
    assert [parse(one).shadow for one in yaml.load(shadow)["limits"]] == [False, True]
