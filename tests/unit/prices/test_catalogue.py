"""The catalogue of prices: how models are found in it, what it comes with, how it is written."""

import json
from pathlib import Path

import pytest

from sluicegate.core.prices import Origin, Price, Tier
from sluicegate.prices.catalogue import Catalogue, CatalogueError, Known, Maker, Rates, TierRates, bundled, in_use, read, write
from sluicegate.providers import ROWS

SMALL = Rates([TierRates(0, 1, 2)])
LARGE = Rates([TierRates(0, 3, 4, cached_input=1), TierRates(1000, 6, 8)], 5, {"speed=fast": SMALL})
CATALOGUE = Catalogue(
    1,
    "2026-11-30",
    "a list",
    {
        "maker": Maker(
            {"small": Known(["small", "small-2", "tiny-2026-01-01"], SMALL), "large": Known(["large"], LARGE, "a note")}, "https://maker/prices"
        ),
        "reseller": Maker({"own": Known(["own"], SMALL)}, also=["maker", "nobody"]),
    },
)


DATED = ["small-20260101", "small-2026-01-01", "small-0101", "small@20260101", "small-latest", "small-001", "small-preview-09-2026", "small:latest"]
OTHERS = ["small-3", "smaller", "small-turbo", "small-turbo-20260101", "tiny", "ft:small", "own", ""]


@pytest.mark.parametrize("model", ["small", "Small", "small-2", "tiny-2026-01-01", *DATED])
def test_a_model_is_found_by_its_name_or_its_dated_name(model: str) -> None:
    """In any case, under each of its names."""
    found = CATALOGUE.find("maker", model)
    assert found is not None and found[0] == "small"


@pytest.mark.parametrize("model", OTHERS)
def test_a_model_that_is_only_named_alike_is_not_found(model: str) -> None:
    """It may cost anything."""
    assert CATALOGUE.find("maker", model) is None


def test_a_reseller_has_what_others_make_too() -> None:
    """Its own models first, then those of the providers that it names; a provider that is not listed has none."""
    assert CATALOGUE.price("reseller", "own") == (Price(1, 2), Origin("catalogue", "2026-11-30", "a list", "reseller/own"))
    assert CATALOGUE.find("reseller", "large") == ("large", Known(["large"], LARGE, "a note"))
    assert CATALOGUE.price("nobody", "small") is None
    assert CATALOGUE.price("maker", "unknown") is None


def test_a_price_has_its_tiers_its_variants_and_its_origin() -> None:
    """As it is calculated with, and as an operator is told where it is from."""
    found = CATALOGUE.price("maker", "large")
    tiers = (Tier(1000, Price(6, 8, request_fee=5)),)
    price = Price(3, 4, cached_input=1, request_fee=5, tiers=tiers, variants=(("speed=fast", Price(1, 2)),))
    assert found == (price, Origin("catalogue", "2026-11-30", "a list, https://maker/prices", "maker/large", "a note"))


def test_it_is_written_so_that_versions_can_be_compared(tmp_path: Path) -> None:
    """One line a model, in one step, in a folder that need not be there; and read again it is the same."""
    file = tmp_path / "data" / "prices.json"
    write(CATALOGUE, file)
    assert in_use(str(file)) == CATALOGUE
    assert len([line for line in file.read_text().splitlines() if '"names"' in line]) == 3
    assert [path.name for path in file.parent.iterdir()] == ["prices.json"]


def test_without_a_file_the_bundled_one_is_in_use(tmp_path: Path) -> None:
    """And a file that is no catalogue, or of another format, is an error: nothing is guessed."""
    assert in_use(str(tmp_path / "none")) is bundled()
    for data in (b"", b"[]", b"{}", json.dumps({"format": 2, "date": "", "source": "", "providers": {}}).encode()):
        with pytest.raises(CatalogueError):
            read(data)


def test_the_bundled_one_has_what_rows_of_providers_name() -> None:
    """Each list that a row names, with prices that can be calculated with, and the day on which it was made."""
    catalogue = bundled()
    assert catalogue.date >= "2026-11-30" and "genai-prices" in catalogue.source
    for row in ROWS.values():
        assert not row.catalogue or catalogue.providers[row.catalogue].models
    prices = [known.rates.price() for maker in catalogue.providers.values() for known in maker.models.values()]
    assert len(prices) > 1000
    assert all(0 <= price.input <= 10**12 and price.utmost_output <= 10**12 for price in prices)


@pytest.mark.parametrize(
    ("provider", "model", "price"),
    [
        ("openai", "gpt-4o-mini-2024-07-18", (150_000, 600_000, 75_000)),
        ("anthropic", "claude-sonnet-4-5-20250929", (3_000_000, 15_000_000, 300_000)),
        ("google", "gemini-2.5-flash", (300_000, 2_500_000, 30_000)),
        ("openai", "text-embedding-3-small", (20_000, 0, None)),
    ],
)
def test_well_known_models_are_in_it(provider: str, model: str, price: tuple[int, int, int | None]) -> None:
    """At the prices that their vendors have long had."""
    found = bundled().price(provider, model)
    assert found is not None and (found[0].input, found[0].output, found[0].cached_input) == price


@pytest.mark.parametrize("model", ["whisper-1", "tts-1", "gpt-image-1", "gpt-4o-mini-search-preview", "gpt-4o-audio-nothing", "moderation"])
def test_what_is_billed_by_more_than_tokens_is_not_in_it(model: str) -> None:
    """It would be held at too little."""
    assert bundled().find("openai", model) is None


def test_searches_have_their_fees() -> None:
    """Where a vendor charges for each."""
    found = bundled().price("anthropic", "claude-sonnet-4-5-20250929")
    assert found is not None and found[0].tools == (("web_search", 10_000_000),)
