"""A catalogue from what genai-prices publishes: https://github.com/pydantic/genai-prices, prices/new_data/v2/data.json (MIT licence).

What is taken is what the gateway can hold: a price per token of each class, by tiers; fees per request and per search; the dearer tiers that a client
may ask for.
A model that is billed by anything else (hours, pages, images, searches that are part of every call) is left out, and so are models without a price:
what is not known is refused under a dollar limit. Where a price depends on the time of day, or another is announced for later, the dearest of each
class is taken and a note says so. Names are those that stand there in full or as the beginning of a name; patterns are left out.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from decimal import ROUND_CEILING, Decimal
from itertools import pairwise
from typing import Any

from sluicegate.prices.catalogue import FORMAT, Catalogue, CatalogueError, Known, Maker, Rates, TierRates

PUBLISHED = "https://raw.githubusercontent.com/pydantic/genai-prices/refs/heads/main/prices/new_data/v2/data.json"

_CLASSES = {
    "input_mtok": "input",
    "output_mtok": "output",
    "cache_read_mtok": "cached_input",
    "cache_write_mtok": "cache_write",
    "cache_write_1h_mtok": "cache_write_1h",
    "output_reasoning_mtok": "reasoning",
    "input_audio_mtok": "audio_input",
    "output_audio_mtok": "audio_output",
}
# What a class costs that has no price of its own.
_ELSE = {"cached_input": "input", "cache_write": "input", "cache_write_1h": "cache_write", "reasoning": "output"}
_ELSE |= {"audio_input": "input", "audio_output": "output"}
# Of what is not text: billed beside the tokens where a tool is used (searches), no dearer than text (what comes from a cache), or not served.
_BESIDE = {"web_searches_kcount", "storage_searches_kcount", "cache_audio_read_mtok", "cache_image_read_mtok", "cache_text_read_mtok"}
_AT_MOST_TEXT = {f"{side}_{what}_mtok": f"{side}_mtok" for side in ("input", "output") for what in ("image", "video")}
_FEE = "requests_kcount"
_TOOLS = {"web_searches_kcount": "web_search"}
_ASKED_FOR = {"service_tier", "speed", "inference_geo"}
_AT_THE_PRICE = {"auto", "default", "flex", "standard"}  # what may be asked for and is charged at the price all the same (dialects/tariffs.py)

Steps = dict[int, dict[str, int]]  # above so many tokens of input: rates by class


def convert(data: bytes, date: str, source: str) -> tuple[Catalogue, int]:
    """The catalogue as of a day, and how many models were left out. Raises CatalogueError."""
    try:
        providers = json.loads(data, parse_float=Decimal)
        makers, left_out = {}, 0
        for provider in providers:
            known = {model["id"]: found for model in provider["models"] if (found := _known(model, date)) is not None}
            left_out += len(provider["models"]) - len(known)
            page = (provider.get("pricing_urls") or [""])[0]
            if known:
                makers[provider["id"]] = Maker(known, page, provider.get("fallback_model_providers") or [])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CatalogueError(f"is not what genai-prices publishes: {error!r}") from None
    return Catalogue(FORMAT, date, source, makers), left_out


def _known(model: Mapping[str, Any], date: str) -> Known | None:
    names = sorted({model["id"].lower(), *_names(model["match"])})
    names = [name for name in names if "search" not in name]
    now, later = _in_force(model["prices"], date)
    if not names or not all(map(_can_be_held, (*now, *later))):
        return None
    rates = _rates(now + later)
    for variant in model.get("price_variants") or ():
        when, prices = variant["when"], variant["prices"]
        if when.keys() <= _ASKED_FOR and not _AT_THE_PRICE.issuperset(when.values()) and _starts(variant) <= date:
            merged = [one | prices for one in now + later]
            if all(map(_can_be_held, merged)):
                rates.variants.setdefault(",".join(f"{name}={value}" for name, value in sorted(when.items())), _rates(merged))
    for kind, name in _TOOLS.items():
        fees = [_up(Decimal(one[kind]) * 10**6) for one in now + later if kind in one]
        if fees:
            rates.tools[name] = max(fees)
    notes = []
    if len(now) > 1:
        notes.append("the dearest of the day")
    if later:
        notes.append("the dearer of now and what is announced")
    return Known(names, rates, "; ".join(notes))


def _names(match: Mapping[str, Any]) -> Iterator[str]:
    for kind, value in match.items():
        if kind == "or":
            for one in value:
                yield from _names(one)
        elif kind in ("equals", "starts_with"):
            yield value.lower()


def _in_force(prices: Any, date: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Prices that apply at some time of this day, and those that are announced for later ones. Of several the last one counts."""
    if isinstance(prices, dict):
        return [prices], []
    now: list[dict[str, Any]] = []
    for one in prices:
        if _by_time(one):
            now.append(one["prices"])
        elif _starts(one) <= date:
            now = [one["prices"]]
    return now or [prices[0]["prices"]], [one["prices"] for one in prices if _starts(one) > date]


def _starts(one: Mapping[str, Any]) -> str:
    return str((one.get("constraint") or {}).get("start_date", ""))


def _by_time(one: Mapping[str, Any]) -> bool:
    return "start_time" in (one.get("constraint") or {})


def _can_be_held(prices: Mapping[str, Any]) -> bool:
    if "input_mtok" not in prices:
        return False
    other = prices.keys() - _CLASSES.keys() - _BESIDE - {_FEE}
    return all(kind in _AT_MOST_TEXT and _first(prices[kind]) <= _first(prices.get(_AT_MOST_TEXT[kind], 0)) for kind in other)


def _first(price: Any) -> Any:
    return price["base"] if isinstance(price, dict) else price


def _rates(prices: Iterable[Mapping[str, Any]]) -> Rates:
    """The dearest of each class in each tier."""
    together: Steps = {}
    fee = 0
    for one in prices:
        together = _dearest(together, _steps(one))
        fee = max(fee, _up(Decimal(one.get(_FEE, 0)) * 10**6))
    tiers = [TierRates(above, **{name: rate for name, rate in rates.items() if name in ("input", "output") or rate != rates[_ELSE[name]]})
             for above, rates in sorted(together.items())]  # fmt: skip
    return Rates([tier for before, tier in pairwise([None, *tiers]) if tier is not None and not _same(before, tier)], fee)


def _steps(prices: Mapping[str, Any]) -> Steps:
    """Every class in every tier."""
    starts = {0, *(tier["start"] for price in prices.values() if isinstance(price, dict) for tier in price["tiers"])}
    return {above: {name: _rate(prices, name, above) for name in _CLASSES.values()} for above in starts}


def _rate(prices: Mapping[str, Any], name: str, above: int) -> int:
    price = next((price for key, price in prices.items() if _CLASSES.get(key) == name), None)
    if price is None:
        return _rate(prices, _ELSE[name], above) if name in _ELSE else 0
    if isinstance(price, dict):
        price = [price["base"], *(tier["price"] for tier in price["tiers"] if tier["start"] <= above and above)][-1]
    return _up(Decimal(price) * 10**6)


def _dearest(some: Steps, others: Steps) -> Steps:
    def at(steps: Steps, above: int) -> dict[str, int]:
        return steps[max(start for start in steps if start <= above)]

    if not some:
        return others
    return {above: {name: max(rate, at(others, above)[name]) for name, rate in at(some, above).items()} for above in some.keys() | others.keys()}


def _same(before: TierRates | None, tier: TierRates) -> bool:
    return before is not None and all(getattr(before, name) == getattr(tier, name) for name in _CLASSES.values())


def _up(value: Decimal) -> int:
    """Rounded up, but for what binary fractions add beyond a thousandth."""
    return int(round(value, 3).to_integral_value(ROUND_CEILING))
