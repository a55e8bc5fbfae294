"""`prices`: what the deployments of a configuration cost and who says so; what a newer catalogue would change; and taking it over, when told to."""

import asyncio
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.markup import escape
from rich.table import Table

from sluicegate.cli.console import DEFAULT_CONFIG, ConfigFile, EnvFile, InputError, console, loaded
from sluicegate.config.load import Loaded
from sluicegate.config.price_entries import read_price, repriced
from sluicegate.core.prices import Price
from sluicegate.core.tenants import Deployment
from sluicegate.prices.catalogue import Catalogue, CatalogueError, in_use, read, write
from sluicegate.prices.changes import TOOL, Change, changes
from sluicegate.prices.genai import PUBLISHED, convert
from sluicegate.records.directory import Directory, list_prices
from sluicegate.records.directory_rows import PriceRow
from sluicegate.records.rows import RecordsUnavailable

FETCH_S = 30.0
FETCH_MAX = 64 << 20

commands = typer.Typer(invoke_without_command=True, help="What deployments cost, and the catalogue of prices.")
Source = Annotated[str, typer.Argument(metavar="FILE", help="A catalogue, or what genai-prices publishes: a file or a URL.")]
Latest = Annotated[bool, typer.Option("--latest", help="Fetch what genai-prices publishes.")]
AllModels = Annotated[bool, typer.Option("--all", help="All models of the catalogue, not only those in use.")]


class Row(msgspec.Struct):
    """What one deployment costs. Rates are pico-USD per token."""

    deployment: str
    rule: str  # that won; "": it has no price
    date: str
    source: str
    entry: str
    note: str
    price: Price | None


@commands.callback()
def show(
    context: typer.Context,
    config: ConfigFile = DEFAULT_CONFIG,
    env_file: EnvFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Print what each deployment costs, since when, by whom, and which rule said so; with prices that were set through the admin API."""
    if context.invoked_subcommand is not None:
        return
    found = loaded(config, env_file)
    rows = [_row(one) for one in _deployments(_put_over(found))]
    if as_json:
        console.print(msgspec.json.encode(rows).decode(), markup=False, highlight=False, soft_wrap=True)
        return
    table = Table(title="Prices, USD per 1M tokens", title_justify="left", title_style="bold", header_style="dim")
    for column in ("deployment", "input", "output", "more", "by", "of", "source"):
        table.add_column(column, overflow="fold")
    for row in rows:
        rates = (_usd(row.price.input), _usd(row.price.output), "\n".join(_more(row.price))) if row.price is not None else ("unknown", "", "")
        source = "\n".join(part for part in (row.entry, row.source, row.note) if part)
        table.add_row(*(escape(cell) for cell in (row.deployment, *rates, row.rule or "nobody", row.date, source)))
    console.print(table, highlight=False)


@commands.command()
def diff(
    source: Source = "",
    latest: Latest = False,
    every: AllModels = False,
    config: ConfigFile = DEFAULT_CONFIG,
    env_file: EnvFile = None,
) -> None:
    """Print what another catalogue would change. Changes nothing."""
    found = loaded(config, env_file)
    _tell(_newer(source, latest), in_use(found.config.prices.catalogue_file), found, every)


@commands.command()
def apply(
    source: Source = "",
    latest: Latest = False,
    every: AllModels = False,
    config: ConfigFile = DEFAULT_CONFIG,
    env_file: EnvFile = None,
    to: Annotated[Path | None, typer.Option("--to", metavar="FILE", help="Instead of prices.catalogue_file.")] = None,
) -> None:
    """Print what another catalogue changes, then take it over: it is read in place of the bundled one at the next start or reload."""
    found = loaded(config, env_file)
    file = to or Path(found.config.prices.catalogue_file)
    newer = _newer(source, latest)
    _tell(newer, in_use(str(file)), found, every)
    write(newer, file)
    console.print(f"written to {file}", markup=False, highlight=False, soft_wrap=True)


def _put_over(found: Loaded) -> Loaded:
    """With what the records have from the admin API. Records that are not there yet have nothing."""
    url = found.config.records
    if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).exists():
        return found
    try:
        rows = asyncio.run(_set_at_run_time(url))
    except RecordsUnavailable:
        print("the records do not answer: prices that were set through the admin API are not shown", file=sys.stderr)
        return found
    models = repriced(found.policy.models, {row.id: read_price(row.price) for row in rows})
    return msgspec.structs.replace(found, policy=msgspec.structs.replace(found.policy, models=models))


async def _set_at_run_time(url: str) -> list[PriceRow]:
    directory = Directory(url)
    try:
        return await directory.call(list_prices, reading=True)
    finally:
        await directory.close()


def _newer(source: str, latest: bool) -> Catalogue:
    """Another catalogue than the one in use. Raises InputError."""
    if bool(source) == latest:
        raise InputError("name a FILE, or say --latest")
    place = PUBLISHED if latest else source
    data = _fetched(place) if place.startswith(("https://", "http://")) else Path(place).read_bytes()
    try:
        if data.lstrip()[:1] == b"{":
            return read(data)
        today = datetime.fromtimestamp(time.time(), UTC).date().isoformat()
        return convert(data, today, f"genai-prices ({place})")[0]
    except CatalogueError as error:
        raise InputError(f"{place} {error}") from None


def _fetched(url: str) -> bytes:
    from urllib import request  # noqa: PLC0415  (takes a while, and only this needs it)

    with request.urlopen(url, timeout=FETCH_S) as answer:  # its errors are OSErrors
        data: bytes = answer.read(FETCH_MAX)
        return data


def _tell(newer: Catalogue, old: Catalogue, found: Loaded, every: bool) -> None:
    """What would change, for the deployments that a catalogue prices or for all models."""
    listed = [(one.price_origin.entry.partition("/")[0], one.model) for one in _deployments(found) if one.price_origin and one.price_origin.entry]
    differences = changes(old, newer, None if every else listed)
    title = f"{old.source} of {old.date} -> {newer.source} of {newer.date}"
    if not differences:
        console.print(f"{title}: no change" + ("" if every else " for the deployments that it prices"), markup=False, highlight=False)
        return
    table = Table(title=title, title_justify="left", title_style="bold", header_style="dim")
    for column in ("model", "rate", "before", "after"):
        table.add_column(column, overflow="fold")
    for change in differences:
        table.add_row(*(escape(cell) for cell in (change.model, change.rate, _rate(change, change.before), _rate(change, change.after))))
    console.print(table, highlight=False)


def _rate(change: Change, value: int | None) -> str:
    if value is None:
        return "-"
    return f"{_usd(value, 10**9)} per call" if change.rate.startswith(("request_fee", TOOL)) else _usd(value)


def _deployments(found: Loaded) -> list[Deployment]:
    return list({one.id: one for model in found.policy.models.values() for one in model.deployments}.values())


def _row(one: Deployment) -> Row:
    origin = one.price_origin
    if origin is None:
        return Row(one.id, "", "", "", "", "", one.price)
    return Row(one.id, origin.rule, origin.date, origin.source, origin.entry, origin.note, one.price)


def _more(price: Price) -> list[str]:
    """What a price has beside its two rates."""
    named = ("cached_input", "cache_write", "cache_write_1h", "reasoning", "audio_input", "audio_output")
    lines = [f"{name} {_usd(rate)}" for name in named if (rate := getattr(price, name)) is not None]
    lines += [f"{_usd(price.request_fee, 10**9)} per call"] if price.request_fee else []
    lines += [f"above {tier.above}: {_usd(tier.price.input)} in, {_usd(tier.price.output)} out" for tier in price.tiers]
    lines += [f"{name} {_usd(fee, 10**6)} per 1,000 calls" for name, fee in price.tools]
    return lines + [f"{tariff}: {_usd(one.input)} in, {_usd(one.output)} out" for tariff, one in price.variants]


def _usd(value: int, parts: int = 10**6) -> str:
    """A rate in dollars, as short as it is exact."""
    whole, rest = divmod(value, parts)
    places = len(str(parts)) - 1
    return f"{whole}.{rest:0{places}d}".rstrip("0").rstrip(".")
