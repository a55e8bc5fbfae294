"""Prices that are put over the file's."""

from typing import Any

import pytest

from sluicegate.config import ConfigError, load_text
from sluicegate.config.price_entries import read_price, repriced
from sluicegate.core.prices import Origin, Price, Tier

DATED = {"date": "2026-11-01", "source": "contract 17"}
MODELS = """
providers: {p: {provider: mock}}
models:
  tiered:
    deployments:
      - {provider: p, model: a, tier: first, price: {input: 9, output: 9}}
      - {provider: p, model: b, tier: second, when: {budget_used: ">80%"}}
  other: {deployments: [{provider: p, model: c}]}
tenants: {acme: {keys: [{name: a, key: sk-a}]}}"""


def problem(written: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as info:
        read_price(written)
    return str(info.value.problems[0])


def test_all_that_a_price_of_the_file_may_have() -> None:
    """Exactly, whatever binary fractions JSON makes of it."""
    tiers = [{"above": 100, "input": 0.2, "output": 0.7}]
    variants = [{"when": {"service_tier": "priority"}, "input": 0.3, "output": 1.1, "tiers": tiers, "request_fee": 0.01}]
    written = {"input": 0.1, "output": 0.6, "cached_input": 0.05, "cache_write": 0.125, "cache_write_1h": 0.2, "reasoning": 0.7, "audio_input": 2}
    found, origin = read_price(
        {**written, "audio_output": 3, "request_fee": 0.005, "tools": {"web_search": 10}, "tiers": tiers, "variants": variants, **DATED}
    )
    fast = Price(300_000, 1_100_000, request_fee=10_000_000, tiers=(Tier(100, Price(200_000, 700_000, request_fee=10_000_000)),))
    assert origin == Origin("api", "2026-11-01", "contract 17")
    assert found == Price(
        100_000, 600_000, 50_000, 125_000, 700_000, 5_000_000, 200_000,
        audio_input=2_000_000, audio_output=3_000_000, tools=(("web_search", 10_000_000),),
        tiers=(Tier(100, Price(200_000, 700_000, request_fee=5_000_000)),), variants=(("service_tier=priority", fast),),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"date": None}, "date: must be a day such as 2026-11-01"),
        ({"source": ""}, "source: "),
        ({"input": -1}, "input: must be from 0 to 1000000 USD per 1M tokens"),
        ({"input": 0.0000001}, "input: must have at most six decimal places"),
        ({"tools": {"web_search": 0.0000001}}, "tools.web_search: must have at most six decimal places (USD per 1,000 calls)"),
        ({"tools": {"Web Search": 1}}, "tools.Web Search"),
        (
            {"tiers": [{"above": 9, "input": 1, "output": 1}, {"above": 9, "input": 1, "output": 1}]},
            "tiers[1].above: must be above the tier before it",
        ),
        ({"variants": [{"when": {"model": "x"}, "input": 1, "output": 1}]}, "variants[0].when: must be what a client may ask for"),
        ({"inputs": 1}, "inputs: "),
    ],
)
def test_what_is_wrong_is_told_as_of_the_file(change: dict[str, Any], told: str) -> None:
    """With the field."""
    assert problem({"input": 1, "output": 1, **DATED, **change}).startswith(told)


def test_a_price_is_put_over_whatever_the_file_says() -> None:
    """At the deployment, wherever a route has it; models without such a deployment stay what they are, and one that is nowhere does nothing."""
    models = load_text(MODELS, {}).policy.models
    given = Price(1, 2), Origin("api", "2026-11-01", "me")
    found = repriced(models, {"p/a": given, "p/b": given, "p/gone": given})
    assert found["other"] is models["other"] and repriced(models, {}) is models
    assert [(one.price, one.price_origin) for one in found["tiered"].deployments] == [given, given]
    for tier, one in zip(found["tiered"].tiers, found["tiered"].deployments, strict=True):
        assert tier.deployments == (one,) and tier.deployments[0] is one
    assert [one for _, one in found["tiered"].preferred] == [found["tiered"].deployments[1]]
