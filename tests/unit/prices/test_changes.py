"""What differs between two catalogues."""

from sluicegate.prices.catalogue import Catalogue, Known, Maker, Rates, TierRates
from sluicegate.prices.changes import Change, changes


def catalogue(**models: Rates) -> Catalogue:
    return Catalogue(1, "", "", {"p": Maker({name: Known([name], rates) for name, rates in models.items()})})


OLD = catalogue(same=Rates([TierRates(0, 1, 2)]), gone=Rates([TierRates(0, 1, 2)]), other=Rates([TierRates(0, 1, 2), TierRates(10, 3, 4)], 5))
NEW = catalogue(
    same=Rates([TierRates(0, 1, 2)]),
    other=Rates([TierRates(0, 1, 3, cached_input=1), TierRates(10, 3, 4)], 6, {"speed=fast": Rates([TierRates(0, 7, 8)])}, {"web_search": 9}),
    new=Rates([TierRates(0, 1, 2)]),
)


def test_each_rate_that_differs_is_told() -> None:
    """Of every model, tier and variant, those that came and went included; nothing of what is as it was."""
    assert changes(OLD, NEW) == [
        Change("p/gone", "input", 1, None),
        Change("p/gone", "output", 2, None),
        Change("p/new", "input", None, 1),
        Change("p/new", "output", None, 2),
        Change("p/other", "request_fee", 5, 6),
        Change("p/other", "output", 2, 3),
        Change("p/other", "call of web_search", None, 9),
        Change("p/other", "cached_input", None, 1),
        Change("p/other", "input with speed=fast", None, 7),
        Change("p/other", "output with speed=fast", None, 8),
    ]


def test_of_some_models_only_theirs_are_told() -> None:
    """By the names under which they are deployed."""
    assert changes(OLD, NEW, [("p", "same-20260101"), ("q", "gone")]) == []
    assert [change.rate for change in changes(OLD, NEW, [("p", "gone-latest")])] == ["input", "output"]
