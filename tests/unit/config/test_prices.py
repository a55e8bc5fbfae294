"""Which price a deployment has, and what is wrong with prices in a configuration."""

from pathlib import Path
from typing import Any

import pytest

from sluicegate.config import ConfigError, load_text
from sluicegate.core.prices import Origin, Price, Tier
from sluicegate.core.tenants import Deployment, Policy
from sluicegate.prices.catalogue import Catalogue, Known, Maker, Rates, TierRates, bundled, write

MINI = Price(150_000, 600_000, cached_input=75_000, tools=(("web_search", 10_000_000),))


def policy(deployment: str = "provider: p, model: gpt-4o-mini", provider: str = "dialect: openai", prices: str = "{}", file: str = "") -> Policy:
    text = f"""
providers: {{p: {{{provider}}}}}
models: {{chat: {{deployments: [{{{deployment}}}]}}}}
tenants: {{acme: {{keys: [{{name: a, key: sk-a}}]}}}}
prices: {prices}"""
    return load_text(text.replace("FILE", file), {}).policy


def deployed(*arguments: str, **more: str) -> Deployment:
    return policy(*arguments, **more).models["chat"].deployments[0]


def problem(**settings: str) -> str:
    with pytest.raises(ConfigError) as info:
        policy(**settings)
    return "; ".join(f"{found}" for found in info.value.problems)


def more(fields: str) -> dict[str, str]:
    """A deployment whose price has these fields."""
    return {"deployment": f"provider: p, model: x, price: {{input: 1, output: 1, {fields}}}"}


def test_the_price_at_a_deployment_goes_before_all_others() -> None:
    """Then an override, then the catalogue, then what everything costs that has none."""
    override = "overrides: {p/gpt-4o-mini: {input: 3, output: 3, date: 2026-11-01, source: contract}}"
    unpriced = "unpriced: {input: 9, output: 9, source: the dearest}"
    own = "provider: p, model: gpt-4o-mini, price: {input: 1, output: 2, date: 2026-10-01, source: me}"
    one = deployed(own, prices=f"{{{override}, {unpriced}}}")
    assert (one.price, one.price_origin) == (Price(1_000_000, 2_000_000), Origin("deployment", "2026-10-01", "me"))
    one = deployed(prices=f"{{{override}, {unpriced}}}")
    assert (one.price, one.price_origin) == (Price(3_000_000, 3_000_000), Origin("override", "2026-11-01", "contract"))
    one = deployed(prices=f"{{{unpriced}}}")
    assert one.price is not None and one.price.for_request("", False) == MINI
    assert one.price_origin is not None and (one.price_origin.rule, one.price_origin.entry) == ("catalogue", "openai/gpt-4o-mini")
    one = deployed("provider: p, model: my-own", prices=f"{{{unpriced}}}")
    assert (one.price, one.price_origin) == (Price(9_000_000, 9_000_000), Origin("unpriced", "", "the dearest"))
    one = deployed("provider: p, model: my-own")
    assert (one.price, one.price_origin) == (None, None)


def test_a_price_of_nothing_is_a_price() -> None:
    """An explicit 0 goes before the catalogue (case 9)."""
    assert deployed("provider: p, model: gpt-4o-mini, price: {input: 0, output: 0}").price == Price(0, 0)


@pytest.mark.parametrize(
    ("provider", "priced"),
    [
        ("dialect: openai", True),
        ("provider: openai, base_url: 'https://api.openai.com/v1/'", True),
        ("dialect: openai, catalogue: off", False),
        ("dialect: openai, base_url: 'http://10.0.0.1/v1'", False),
        ("provider: openai, base_url: 'http://10.0.0.1/v1'", False),
        ("dialect: openai, base_url: 'http://10.0.0.1/v1', catalogue: openai", True),
        ("provider: azure_v1, base_url: 'https://x.openai.azure.com/openai/v1'", False),
        ("provider: azure_v1, base_url: 'https://x.openai.azure.com/openai/v1', catalogue: azure", True),
        ("provider: openrouter", False),
        ("provider: vllm", False),
        ("provider: mock", False),
        ("dialect: ollama", False),
    ],
)
def test_the_catalogue_counts_where_a_name_says_what_it_costs(provider: str, priced: bool) -> None:
    """At a vendor's own address, or where the operator names a list; never for servers of one's own, nor for resellers that may go elsewhere."""
    assert (deployed(provider=provider).price is not None) is priced


def test_the_catalogue_can_be_left_out() -> None:
    """Then only what is written counts, and no file is read."""
    assert deployed(prices="{catalogue: off, catalogue_file: /dev/null/none}").price is None


def test_a_catalogue_that_was_taken_over_is_read_in_place_of_the_bundled_one(tmp_path: Path) -> None:
    """All of it: a model that it lacks has no price."""
    file = tmp_path / "prices.json"
    write(Catalogue(1, "2027-01-01", "newer", {"openai": Maker({"gpt-4o-mini": Known(["gpt-4o-mini"], Rates([TierRates(0, 7, 8)]))})}), file)
    one = deployed(prices="{catalogue_file: FILE}", file=str(file))
    assert (one.price, one.price_origin) == (Price(7, 8), Origin("catalogue", "2027-01-01", "newer", "openai/gpt-4o-mini"))
    assert deployed("provider: p, model: gpt-4o", prices="{catalogue_file: FILE}", file=str(file)).price is None
    assert bundled().find("openai", "gpt-4o") is not None


def test_a_file_that_is_no_catalogue_is_a_problem(tmp_path: Path) -> None:
    """Nothing is served at prices that nobody meant."""
    file = tmp_path / "prices.json"
    file.write_text("{}")
    assert "prices.catalogue_file" in problem(prices="{catalogue_file: FILE}", file=str(file))
    assert "prices.catalogue_file" in problem(prices="{catalogue_file: FILE}", file=str(tmp_path))


def test_all_that_a_price_may_have() -> None:
    """Each class in pico-USD per token, the fee in nano-USD; tiers have the fee of their price, variants one of their own."""
    price = """price: {input: 1, output: 2, cached_input: 0.1, cache_write: 1.25, cache_write_1h: 2, reasoning: 3, audio_input: 4, audio_output: 5,
      request_fee: 0.000000001, tiers: [{above: 10, input: 2, output: 4}, {above: 20, input: 3, output: 6, cached_input: 1}],
      variants: [{when: {service_tier: priority, speed: fast}, input: 7, output: 8, request_fee: 1, tiers: [{above: 5, input: 9, output: 9}]}]}"""
    million = 10**6
    fast = Price(7 * million, 8 * million, request_fee=10**9, tiers=(Tier(5, Price(9 * million, 9 * million, request_fee=10**9)),))
    tiers = (
        Tier(10, Price(2 * million, 4 * million, request_fee=1)),
        Tier(20, Price(3 * million, 6 * million, cached_input=million, request_fee=1)),
    )
    classes: dict[str, Any] = {"cached_input": 100_000, "cache_write": 1_250_000, "cache_write_1h": 2 * million, "reasoning": 3 * million}
    want = Price(million, 2 * million, **classes, audio_input=4 * million, audio_output=5 * million, request_fee=1, tiers=tiers)
    found = deployed(f"provider: p, model: x, price: {' '.join(price.removeprefix('price: ').split())}").price
    assert found is not None
    assert (found.at(1), found.at(11), found.at(21)) == (found, want.at(11), want.at(21))
    assert found.variants == (("service_tier=priority,speed=fast", fast),)
    assert (found.dearest_input, found.dearest_output, found.reaches) == (want.dearest_input, want.dearest_output, want.reaches)


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"prices": "{overrides: {p/gpt-4o-mino: {input: 1, output: 1, date: 2026-11-01, source: s}}}"}, "prices.overrides.p/gpt-4o-mino"),
        ({"prices": "{overrides: {p/gpt-4o-mini: {input: 1, output: 1, source: s}}}"}, "date: is required"),
        ({"prices": "{overrides: {p/gpt-4o-mini: {input: 1, output: 1, date: 2026-11-01}}}"}, "source: is required"),
        ({"prices": "{overrides: {p/gpt-4o-mini: {input: 1, output: 1, date: 2026-13-01, source: s}}}"}, "date: must be a day such as 2026-11-01"),
        ({"prices": "{overrides: {p/gpt-4o-mini: {input: 1, output: 1, date: 2999-01-01, source: s}}}"}, "date: must be a day from 2000-01-01"),
        (more("date: 1999-12-31"), "price.date: must be a day from 2000-01-01 to today"),
        ({"prices": "{unpriced: cheap}"}, "prices.unpriced"),
        ({"prices": "{unpriced: {input: 1}}"}, "output"),
        ({"prices": "{cost_source: provider}"}, "prices.cost_source"),
        ({"provider": "dialect: openai, catalogue: opena"}, "did you mean 'openai'"),
        (more("request_fee: 0.0000000001"), "at most nine decimal places"),
        (more("request_fee: 1001"), "from 0 to 1000 USD per call"),
        (more("tiers: [{above: 9, input: 1, output: 1}, {above: 9, input: 2, output: 2}]"), "price.tiers[1].above: must be above the tier before it"),
        (more("variants: [{when: {service_tier: flex}, input: 1, output: 1}]"), "price.variants[0].when: must be what a client may ask for"),
        (more("variants: [{when: {tier: x}, input: 1, output: 1}]"), "price.variants[0].when"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_prices_is_told(settings: dict[str, str], where: str) -> None:
    """With the path of the field and what would be right."""
    assert where in problem(**settings)


def test_the_policy_says_whose_figure_counts_and_what_is_free() -> None:
    """A price for everything that has none leaves nothing to be refused."""
    found = policy(prices="{cost_source: provider_only, unpriced: free}")
    assert (found.cost_source, found.unpriced) == ("provider_only", "free")
    assert (policy().cost_source, policy().unpriced) == ("prefer_provider", "refuse")


def test_fees_of_tools_that_the_provider_runs() -> None:
    """Per thousand calls; an override has them, too."""
    assert deployed(**more("tools: {web_search: 10, file_search: 2.5}")).price == Price(
        1_000_000, 1_000_000, tools=(("web_search", 10_000_000), ("file_search", 2_500_000))
    )
    override = "{overrides: {p/gpt-4o-mini: {input: 3, output: 3, tools: {web_search: 0}, date: 2026-11-01, source: contract}}}"
    found = deployed(prices=override).price
    assert found is not None and found.tools == (("web_search", 0),)


@pytest.mark.parametrize(
    ("provider", "marked"),
    [
        ("provider: anthropic", True),
        ("provider: anthropic, base_url: 'http://10.0.0.1'", False),
        ("provider: anthropic, base_url: 'http://10.0.0.1', catalogue: anthropic", True),
        ("provider: openai", False),
    ],
)
def test_where_only_what_is_marked_is_written_into_a_cache(provider: str, marked: bool) -> None:
    """At Anthropic's own address, or where its list of prices counts."""
    assert deployed("provider: p, model: claude-sonnet-4-5", provider=provider).provider.marked_cache is marked
