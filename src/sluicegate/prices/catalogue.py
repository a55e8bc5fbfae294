"""The catalogue of prices: one JSON file in the package, with the day on which it was made and what of; or a newer one in its place.

It is read when a deployment is compiled whose price nobody has said (config/compile_routes.py), never while requests are served, and never fetched by
itself. Rates are whole pico-USD per token; what a source gives in finer parts is rounded up.

A model is found by a name that the catalogue has, or by such a name with a date or `latest` after it: nothing looser, since a model that the
catalogue does not know yet must not be held at the price of one that is named alike. Fails with CatalogueError where a file is none.
"""

import os
import re
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from sluicegate.core.prices import Origin, Price, Tier

FORMAT = 1
_DATED = re.compile(r"(-preview)?[-@:](\d{8}|\d{6}|\d{4}|\d{3}|\d{4}-\d{2}-\d{2}|\d{2}-\d{2}|\d{2}-\d{4}|latest)")


class CatalogueError(Exception):
    """A file that is no catalogue."""


class TierRates(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Rates of one tier, pico-USD per token; every class that has a price of its own is here."""

    above: int
    input: int
    output: int
    cached_input: int | None = None
    cache_write: int | None = None
    cache_write_1h: int | None = None
    reasoning: int | None = None
    audio_input: int | None = None
    audio_output: int | None = None


class Rates(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """What a call costs: by its smallest input, then in each tier; and with what a client may ask for."""

    tiers: list[TierRates]  # the first is above 0
    request_fee: int = 0  # nano-USD
    variants: dict[str, "Rates"] = {}
    tools: dict[str, int] = {}  # nano-USD per call of tools that the provider runs; of the whole price alone

    def price(self) -> Price:
        """As the ledger is asked at it."""
        first, *others = [Price(**_classes(tier), request_fee=self.request_fee) for tier in self.tiers]
        tiers = tuple(Tier(tier.above, price) for tier, price in zip(self.tiers[1:], others, strict=True))
        variants = tuple((tariff, rates.price()) for tariff, rates in self.variants.items())
        return msgspec.structs.replace(first, tiers=tiers, variants=variants, tools=tuple(self.tools.items()))


class Known(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """One model of a provider."""

    names: list[str]  # in lower case
    rates: Rates
    note: str = ""


class Maker(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """One provider."""

    models: dict[str, Known]
    source: str = ""  # its page of prices
    also: list[str] = []  # providers whose models it sells, too


class Catalogue(msgspec.Struct, forbid_unknown_fields=True):
    """All of it."""

    format: int
    date: str
    source: str
    providers: dict[str, Maker]

    def find(self, provider: str, model: str) -> tuple[str, Known] | None:
        """A model as the catalogue names it, and what is known of it."""
        maker = self.providers.get(provider)
        if maker is None or model.startswith("ft:"):  # a fine-tuned model costs more than its base
            return None
        for one in (maker, *(self.providers[name] for name in maker.also if name in self.providers)):
            found = _find(one, model.lower())
            if found is not None:
                return found
        return None

    def price(self, provider: str, model: str) -> tuple[Price, Origin] | None:
        """The price of a model, and where it is from."""
        found = self.find(provider, model)
        if found is None:
            return None
        name, known = found
        page = self.providers[provider].source
        source = f"{self.source}, {page}" if page else self.source
        return known.rates.price(), Origin("catalogue", self.date, source, f"{provider}/{name}", known.note)


def bundled() -> Catalogue:
    """The one that this version comes with."""
    return _bundled()


@cache
def _bundled() -> Catalogue:
    return read(resources.files("sluicegate.prices").joinpath("catalogue.json").read_bytes())


def in_use(file: str) -> Catalogue:
    """What `sluicegate prices apply` has written, else the bundled one. Raises CatalogueError, OSError."""
    try:
        data = Path(file).read_bytes()
    except FileNotFoundError:
        return bundled()
    return read(data)


def read(data: bytes) -> Catalogue:
    """A catalogue from its file."""
    try:
        found = msgspec.json.decode(data, type=Catalogue)
    except msgspec.MsgspecError as error:
        raise CatalogueError(f"is no catalogue of prices: {error}") from None
    if found.format != FORMAT:
        raise CatalogueError(f"has format {found.format}; this version reads {FORMAT}")
    return found


def write(catalogue: Catalogue, file: Path) -> None:
    """Replaces a file in one step. One line a model, so that versions can be compared."""
    lines = [f'{{"format":{catalogue.format},"date":{_json(catalogue.date)},"source":{_json(catalogue.source)},"providers":{{']
    for i, (name, maker) in enumerate(catalogue.providers.items()):
        lines.append(("," if i else "") + f'{_json(name)}:{{"source":{_json(maker.source)},"also":{_json(maker.also)},"models":{{')
        lines += [("," if j else "") + f"{_json(model)}:{_json(known)}" for j, (model, known) in enumerate(maker.models.items())]
        lines.append("}}")
    lines.append("}}\n")
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    try:
        with beside.open("wb") as stream:
            stream.write("\n".join(lines).encode())
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _classes(rates: TierRates) -> dict[str, Any]:
    return {name: value for name, value in msgspec.structs.asdict(rates).items() if name != "above" and value is not None}


def _find(maker: Maker, model: str) -> tuple[str, Known] | None:
    best: tuple[str, Known] | None = None
    length = 0
    for name, known in maker.models.items():
        for one in known.names:
            if model == one:
                return name, known
            if len(one) > length and model.startswith(one) and _DATED.fullmatch(model, len(one)):
                best, length = (name, known), len(one)
    return best
