"""Prices as the admin API gives them: read by the same schema as those of the file, and put over them.

    read_price(written)          the price and where it is from, or ConfigError with the path of each field that is wrong
    repriced(models, prices)     the models with these prices at their deployments

A price that was given goes before everything that the file says of that deployment, also at the deployment itself: it is the later word, and its
origin says whose it is. What is without a deployment in the file does nothing, and counts when there is one.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from sluicegate.config import entries
from sluicegate.config.compile_prices import Making
from sluicegate.config.fields import ConfigError, Problem
from sluicegate.config.schema import Override
from sluicegate.core.prices import Origin, Price
from sluicegate.core.tenants import Deployment, Model

Prices = Mapping[str, tuple[Price, Origin]]


def read_price(written: Mapping[str, Any]) -> tuple[Price, Origin]:
    """A price with its date and source. Raises ConfigError."""
    section = entries.read(Override, written)
    problems: list[Problem] = []
    price = Making(problems).made(section, ())
    if problems:
        raise ConfigError("request", problems)
    return price, Origin("api", section.date, section.source)


def repriced(models: dict[str, Model], prices: Prices) -> dict[str, Model]:
    """Models that have none of these deployments stay what they are."""
    return {name: _repriced(model, prices) for name, model in models.items()} if prices else models


def _repriced(model: Model, prices: Prices) -> Model:
    if not any(one.id in prices for one in model.deployments):
        return model
    of = {one.id: _with_price(one, prices) for one in model.deployments}
    return msgspec.structs.replace(
        model,
        deployments=tuple(of.values()),
        tiers=tuple(msgspec.structs.replace(tier, deployments=tuple(of[one.id] for one in tier.deployments)) for tier in model.tiers),
        preferred=tuple((share, of[one.id]) for share, one in model.preferred),
    )


def _with_price(deployment: Deployment, prices: Prices) -> Deployment:
    if deployment.id not in prices:
        return deployment
    price, origin = prices[deployment.id]
    return msgspec.structs.replace(deployment, price=price, price_origin=origin)
