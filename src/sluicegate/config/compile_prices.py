"""The price of each deployment: what is written at it, else an override, else the catalogue, else what `prices.unpriced` says."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from sluicegate.config import schema
from sluicegate.config.compiling import Compiling, did_you_mean
from sluicegate.config.fields import Path, Problem
from sluicegate.config.schema import Config
from sluicegate.core.prices import Origin, Price, Tier
from sluicegate.dialects.tariffs import tariff_of
from sluicegate.prices.catalogue import Catalogue, CatalogueError, in_use
from sluicegate.providers import Row

Priced = tuple[Price | None, Origin | None]


DAY_MIN = "2000-01-01"


def plausible(day: str) -> bool:
    """Whether a price can have been looked up on that day. Somewhere it is tomorrow already."""
    return DAY_MIN <= day <= (datetime.now(UTC) + timedelta(days=1)).date().isoformat()


class Making:
    """Prices as they are calculated with, from how they are written."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems

    def made(self, written: schema.Price | schema.Variant, path: Path) -> Price:
        """What is wrong with it is among the problems."""
        tiers: list[Tier] = []
        for i, tier in enumerate(written.tiers):
            if tiers and tier.above <= tiers[-1].above:
                self.problems.append(Problem((*path, "tiers", i, "above"), "must be above the tier before it"))
            tiers.append(Tier(tier.above, Price(**_classes(tier), request_fee=written.request_fee)))
        rates: dict[str, Any] = {**_classes(written), "request_fee": written.request_fee, "tiers": tuple(tiers)}
        if isinstance(written, schema.Variant):
            return Price(**rates)
        variants = [self.variant(one, (*path, "variants", i)) for i, one in enumerate(written.variants)]
        return Price(**rates, variants=tuple(variants), tools=tuple(written.tools.items()))

    def dated(self, written: schema.Price, path: Path) -> Price:
        """As `made`, of a price whose day somebody has looked it up on: not one that is to come, nor one before there were such prices."""
        if written.date and not plausible(written.date):
            self.problems.append(Problem((*path, "date"), f"must be a day from {DAY_MIN} to today"))
        return self.made(written, path)

    def variant(self, written: schema.Variant, path: Path) -> tuple[str, Price]:
        tariff = tariff_of(written.when)
        if tariff is None:
            wrong = "must be what a client may ask for at a price of its own, such as {service_tier: priority} or {speed: fast}"
            self.problems.append(Problem((*path, "when"), wrong))
        return tariff or "", self.made(written, path)


class Pricing(Compiling):
    """Prices of one configuration. The catalogue is read only if some deployment needs it."""

    def __init__(self, config: Config, environ: Mapping[str, str], problems: list[Problem]) -> None:
        super().__init__(config, environ, problems)
        deployed = {f"{one.provider}/{one.model}" for model in config.models.values() for one in model.deployments}
        for name in config.prices.overrides.keys() - deployed:
            self.problem(("prices", "overrides", name), f"there is no such deployment; {did_you_mean(name, deployed)}")
        self.made = Making(problems).dated
        self.overrides = {name: self.made(one, ("prices", "overrides", name)) for name, one in config.prices.overrides.items()}

    def price(self, written: schema.Deployment, provider: schema.Provider, row: Row, base_url: str, path: Path) -> Priced:
        """The price of a deployment, and where it is from; (None, None) if it has none."""
        settings, name = self.config.prices, f"{written.provider}/{written.model}"
        if written.price is not None:
            return self.made(written.price, (*path, "price")), Origin("deployment", written.price.date, written.price.source)
        override = settings.overrides.get(name)
        if override is not None:
            return self.overrides[name], Origin("override", override.date, override.source)
        found = self.listed(written, provider, row, base_url) if settings.catalogue else None
        if found is not None:
            return found
        if isinstance(settings.unpriced, schema.Price):
            return self.made(settings.unpriced, ("prices", "unpriced")), Origin("unpriced", settings.unpriced.date, settings.unpriced.source)
        return None, None

    def listed(self, written: schema.Deployment, provider: schema.Provider, row: Row, base_url: str) -> tuple[Price, Origin] | None:
        """What the catalogue has. Of a row's own list only at the row's own address: elsewhere the same names may cost something else."""
        name = provider.catalogue if provider.catalogue is not None else row.catalogue if base_url == row.base_url else ""
        if name in ("", "off") or self.catalogue is None:
            return None
        if name not in self.catalogue.providers:
            problem = f"the catalogue has no provider {name!r}; {did_you_mean(name, self.catalogue.providers)}"
            self.problem(("providers", written.provider, "catalogue"), problem)
            return None
        return self.catalogue.price(name, written.model)

    @cached_property
    def catalogue(self) -> Catalogue | None:
        """None: it cannot be read, which is a problem."""
        file = self.config.prices.catalogue_file
        try:
            return in_use(file)
        except (CatalogueError, OSError) as error:
            self.problem(("prices", "catalogue_file"), f"{file} {error}" if isinstance(error, CatalogueError) else f"{file}: {error.strerror}")
            return None


def _classes(written: schema.Rates) -> dict[str, Any]:
    return {name: getattr(written, name) for name in schema.Rates.model_fields if getattr(written, name) is not None}
