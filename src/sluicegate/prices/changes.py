"""What differs between two catalogues, for who decides whether the newer one is to count."""

from collections.abc import Iterable, Iterator

import msgspec

from sluicegate.prices.catalogue import Catalogue, Known, Rates, TierRates

TOOL = "call of "  # and the name of a tool that the provider runs


class Change(msgspec.Struct, frozen=True):
    """One rate of one model. Pico-USD per token, nano-USD per call for `request_fee` and tools; None: there is no such model, tier or rate."""

    model: str  # `openai/gpt-4o-mini`
    rate: str  # `input`, `output above 200000`, `input with service_tier=priority`
    before: int | None
    after: int | None


def changes(old: Catalogue, new: Catalogue, models: Iterable[tuple[str, str]] | None = None) -> list[Change]:
    """All changes, or those of some models, given as a provider of the catalogue and a name."""
    if models is None:
        every = {(provider, model) for one in (old, new) for provider, maker in one.providers.items() for model in maker.models}
        pairs = [(f"{p}/{m}", _exactly(old, p, m), _exactly(new, p, m)) for p, m in sorted(every)]
    else:
        pairs = [(f"{p}/{m}", _named(old, p, m), _named(new, p, m)) for p, m in sorted(set(models))]
    return [change for model, before, after in pairs for change in _changes(model, before, after)]


def _named(catalogue: Catalogue, provider: str, model: str) -> Known | None:
    found = catalogue.find(provider, model)
    return found[1] if found is not None else None


def _exactly(catalogue: Catalogue, provider: str, model: str) -> Known | None:
    maker = catalogue.providers.get(provider)
    return maker.models.get(model) if maker is not None else None


def _changes(model: str, before: Known | None, after: Known | None) -> Iterator[Change]:
    old, new = ({} if one is None else dict(_flat(one.rates)) for one in (before, after))
    for rate in [*old, *(rate for rate in new if rate not in old)]:
        if old.get(rate) != new.get(rate):
            yield Change(model, rate, old.get(rate), new.get(rate))


def _flat(rates: Rates, variant: str = "") -> Iterator[tuple[str, int]]:
    if rates.request_fee:
        yield f"request_fee{variant}", rates.request_fee
    yield from ((f"{TOOL}{name}", fee) for name, fee in rates.tools.items())
    for tier in rates.tiers:
        for name in TierRates.__struct_fields__[1:]:
            value = getattr(tier, name)
            if value is not None:
                yield name + (f" above {tier.above}" if tier.above else "") + variant, value
    for tariff, others in rates.variants.items():
        yield from _flat(others, f" with {tariff}")
