"""What is taken of the prices that genai-prices publishes, and what is left out."""

import json
from typing import Any

import pytest

from sluicegate.prices.catalogue import Catalogue, CatalogueError, Known, Rates, TierRates
from sluicegate.prices.genai import convert

PLAIN = {"input_mtok": 1, "output_mtok": 2}


def converted(*models: Any, **provider: Any) -> Catalogue:
    """The catalogue of one provider `p`."""
    return convert(json.dumps([{"id": "p", "models": models, **provider}]).encode(), "2026-11-30", "test")[0]


def model(prices: Any, match: Any = None, **more: Any) -> dict[str, Any]:
    return {"id": "m", "match": match or {"equals": "m"}, "prices": prices, **more}


def known(prices: Any, match: Any = None, **more: Any) -> Known | None:
    """What is known of one model; None if it was left out."""
    found = converted(model(prices, match, **more)).providers.get("p")
    return found.models["m"] if found is not None else None


def rates(*tiers: TierRates, **more: Any) -> Rates:
    return Rates(list(tiers), **more)


def test_every_class_is_taken_at_its_own_rate() -> None:
    """In pico-USD per token; fees per call in nano-USD; one that costs what it would cost anyway is not said."""
    prices = {
        **PLAIN, "cache_read_mtok": 0.1, "cache_write_mtok": 1.25, "cache_write_1h_mtok": 2, "output_reasoning_mtok": 3, "input_audio_mtok": 4,
        "output_audio_mtok": 2, "requests_kcount": 5, "web_searches_kcount": 10,
    }  # fmt: skip
    tier = TierRates(0, 1_000_000, 2_000_000, 100_000, 1_250_000, 2_000_000, 3_000_000, 4_000_000)
    assert known(prices) == Known(["m"], rates(tier, request_fee=5_000_000, tools={"web_search": 10_000_000}))


def test_finer_parts_are_rounded_up() -> None:
    """But for what binary fractions add."""
    found = known({"input_mtok": 0.08333333333333334, "output_mtok": 0.18000000000000002, "cache_read_mtok": 0.0000001})
    assert found is not None and found.rates.tiers == [TierRates(0, 83_334, 180_000, 1)]


def test_tiers_are_of_all_classes_together() -> None:
    """Above each number every class has the rate of its own tier there, or keeps its last."""
    prices = {
        "input_mtok": {"base": 1, "tiers": [{"start": 100, "price": 2}, {"start": 300, "price": 3}]},
        "output_mtok": {"base": 5, "tiers": [{"start": 200, "price": 6}]},
        "cache_read_mtok": 0.5,
    }
    found = known(prices)
    want = [(0, 1, 5), (100, 2, 5), (200, 2, 6), (300, 3, 6)]
    assert found is not None and found.rates.tiers == [TierRates(above, i * 10**6, o * 10**6, 500_000) for above, i, o in want]


def test_the_newest_price_counts_and_an_announced_one_is_not_forgotten() -> None:
    """Of those in force the last; one for later is taken at once where it is dearer, since a gateway may run until then."""
    past = [{"prices": {"input_mtok": 9, "output_mtok": 9}}, {"constraint": {"start_date": "2026-11-30"}, "prices": PLAIN}]
    assert known(past) == Known(["m"], rates(TierRates(0, 1_000_000, 2_000_000)))
    announced = [*past, {"constraint": {"start_date": "2026-12-01"}, "prices": {"input_mtok": 0.5, "output_mtok": 4}}]
    assert known(announced) == Known(["m"], rates(TierRates(0, 1_000_000, 4_000_000)), "the dearer of now and what is announced")


def test_of_the_times_of_a_day_the_dearest_counts() -> None:
    """Whatever time it is."""
    hours = {"constraint": {"start_time": "00:30:00Z", "end_time": "16:30:00Z"}, "prices": {"input_mtok": 2, "output_mtok": 3}}
    assert known([{"prices": PLAIN}, hours]) == Known(["m"], rates(TierRates(0, 2_000_000, 3_000_000)), "the dearest of the day")


def test_variants_are_what_clients_may_ask_for() -> None:
    """At what they change of the price; not what costs the price anyway, nor what is no field of a request, nor one that is only announced."""
    variants = [
        {"when": {"service_tier": "priority"}, "prices": {"input_mtok": 2}},
        {"when": {"service_tier": "priority"}, "prices": {"input_mtok": 7}},
        {"when": {"speed": "fast"}, "prices": {"output_mtok": 9}, "constraint": {"start_date": "2027-01-01"}},
        {"when": {"service_tier": "flex"}, "prices": {"input_mtok": 0.5}},
        {"when": {"processing": "batch"}, "prices": {"input_mtok": 0.5}},
    ]
    found = known(PLAIN, price_variants=variants)
    assert found is not None and found.rates.variants == {"service_tier=priority": rates(TierRates(0, 2_000_000, 2_000_000))}


@pytest.mark.parametrize(
    "prices",
    [
        {},
        {"output_mtok": 1},
        {"audio_hours": 1},
        {**PLAIN, "audio_hours": 1},
        {**PLAIN, "input_image_mtok": 3},
        {**PLAIN, "output_image_mtok": 30},
        {**PLAIN, "some_new_mtok": 1},
        [{"prices": PLAIN}, {"constraint": {"start_date": "2027-01-01"}, "prices": {**PLAIN, "some_new_mtok": 1}}],
    ],
)
def test_what_cannot_be_held_is_left_out(prices: Any) -> None:
    """Without a price for input, or billed by anything but tokens and calls, now or by what is announced."""
    assert known(prices) is None


def test_images_that_cost_what_text_does_are_no_matter() -> None:
    """They are held by their tokens."""
    assert known({**PLAIN, "input_image_mtok": 1}) == Known(["m"], rates(TierRates(0, 1_000_000, 2_000_000)))


def test_names_are_those_that_stand_there() -> None:
    """In full, or as the beginning of a name; patterns and parts of names are left out, as are models that always search."""
    match = {"or": [{"equals": "A"}, {"starts_with": "b"}, {"or": [{"equals": "c"}, {"contains": "d"}]}, {"regex": "^e"}, {"equals": "a-search"}]}
    found = known(PLAIN, match)
    assert found is not None and found.names == ["a", "b", "c", "m"]


def test_a_provider_has_its_page_and_whose_models_it_sells() -> None:
    """And models that were left out are counted."""
    data = json.dumps(
        [{"id": "p", "models": [model(PLAIN), {**model({}), "id": "n"}], "pricing_urls": ["u", "v"], "fallback_model_providers": ["q"]}]
    )
    catalogue, left_out = convert(data.encode(), "2026-11-30", "test")
    assert (catalogue.date, catalogue.source, left_out) == ("2026-11-30", "test", 1)
    assert (catalogue.providers["p"].source, catalogue.providers["p"].also) == ("u", ["q"])


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[5]", b'[{"id": "p"}]', b'[{"id": "p", "models": [{"id": "m"}]}]', b'[{"id":"p","models":[{"id":"m","match":{},"prices":5}]}]'],
)
def test_what_is_not_published_by_it_is_refused(data: bytes) -> None:
    """With one kind of error, whatever is wrong."""
    with pytest.raises(CatalogueError):
        convert(data, "2026-11-30", "test")
