"""`report`: who has used what, from the records or from a log of requests; and `records sum`, for rows that came in by other ways."""

import asyncio
import sys
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated
from zoneinfo import ZoneInfo

import msgspec
import typer
from rich.table import Table

from sluicegate.chargeback import HEADS, as_csv, cells
from sluicegate.cli.console import DEFAULT_CONFIG, ConfigFile, EnvFile, InputError, console, loaded
from sluicegate.core.record import Record
from sluicegate.records.fitting import fits
from sluicegate.records.queries import TAG, Group, Question, Sums, Usage
from sluicegate.records.store import Records

BUILD_TIMEOUT_S = 3_600.0  # of one day's rows
REPORT_TIMEOUT_S = 60.0
GROUPS_MAX = 1_000_000
TOTAL = "total"


class Format(StrEnum):
    """How a report is printed."""

    table = "table"
    csv = "csv"
    json = "json"


By = Annotated[str, typer.Option("--by", metavar="NAMES", help="Of tenant, key, model, deployment, provider, day, hour, label, tag:NAME; by commas.")]
Since = Annotated[str, typer.Option("--since", metavar="TIME", help="2026-11-30 or 2026-11-30T14:00, in the zone of --tz; the first that counts.")]
Until = Annotated[str, typer.Option("--until", metavar="TIME", help="The first that does not count any more.")]
Zone = Annotated[str, typer.Option("--tz", metavar="ZONE", help="Of days, hours and times without an offset, such as Europe/Berlin.")]
Log = Annotated[Path | None, typer.Option("--log", metavar="FILE", help="A log of requests (`log: {access: json}`) instead; - for standard input.")]


Names = Annotated[list[str] | None, typer.Option(metavar="NAME", help="That one alone; given several times, any of them. All filters must fit.")]
Tenants = Annotated[list[str] | None, typer.Option(metavar="PATH", help="It and all below it.")]
Labels = Annotated[list[str] | None, typer.Option(metavar="TEXT", help="The end user, as requests name it.")]
Tags = Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Of `x-sluicegate-tags`.")]
Statuses = Annotated[list[int] | None, typer.Option(metavar="STATUS", min=100, max=599, help="What clients were told.")]


def report(
    by: By = "key,model",
    tenant: Tenants = None,
    key: Names = None,
    model: Names = None,
    deployment: Names = None,
    provider: Names = None,
    label: Labels = None,
    tag: Tags = None,
    status: Statuses = None,
    since: Since = "",
    until: Until = "",
    tz: Zone = "UTC",
    form: Annotated[Format, typer.Option("--format", help="How it is printed.")] = Format.table,
    log: Log = None,
    config: ConfigFile = DEFAULT_CONFIG,
    env_file: EnvFile = None,
) -> None:
    """Print who has used what: requests, 429s, errors, cache hits, fallbacks, tokens, cost, latencies."""
    names = tuple(name.strip() for name in by.split(",") if name.strip())
    zone = _zone(tz)
    named = {"tenant": tenant, "key": key, "model": model, "deployment": deployment, "provider": provider, "label": label}
    filters = {**{name: values for name, values in named.items() if values}, **_outcomes(tag or (), status or ())}
    question = Question(names, filters, _time_ms("--since", since, zone), _time_ms("--until", until, zone), tz)
    try:
        sums = Sums(names, tz)
    except ValueError as error:
        raise InputError(f"--by: {str(error).partition(': ')[2]}") from None
    if log is not None:
        _read_log(log, question, sums)
        usage = sums.usage(GROUPS_MAX)
    else:
        usage = asyncio.run(_ask(loaded(config, env_file).config.records, question))
    match form:
        case Format.json:
            print(msgspec.json.encode(usage).decode())
        case Format.csv:
            sys.stdout.write(as_csv(names, usage.groups))
        case Format.table:
            console.print(_table(names, usage), highlight=False)


def build_sums(config: ConfigFile = DEFAULT_CONFIG, env_file: EnvFile = None) -> None:
    """Sum up days of which there are rows of requests only, such as imported ones. Days that have sums stay as they are."""

    async def build(url: str) -> int:
        records = Records(url, BUILD_TIMEOUT_S)
        try:
            return await records.build_sums()
        finally:
            await records.close()

    console.print(f"{asyncio.run(build(loaded(config, env_file).config.records))} requests were summed up", highlight=False)


async def _ask(url: str, question: Question) -> Usage:
    records = Records(url, REPORT_TIMEOUT_S)
    try:
        return await records.usage(question, GROUPS_MAX)
    finally:
        await records.close()


def _outcomes(tags: Sequence[str], statuses: Sequence[int]) -> dict[str, list[str]]:
    """The filters that are not names."""
    found: dict[str, list[str]] = {"status": [str(status) for status in statuses]} if statuses else {}
    for tag in tags:
        name, equals, value = tag.partition("=")
        if not (name and equals) or "," in tag:
            raise InputError(f"--tag: {tag!r} is no tag such as app=search")
        found.setdefault(TAG + name, []).append(value)
    return found


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError):
        raise InputError(f"--tz: {name!r} is no time zone such as Europe/Berlin") from None


def _time_ms(option: str, text: str, zone: ZoneInfo) -> int:
    if not text:
        return 0
    try:
        moment = datetime.fromisoformat(text)
        return int((moment if moment.tzinfo is not None else moment.replace(tzinfo=zone)).timestamp() * 1000)
    except ValueError:
        raise InputError(f"{option}: {text!r} is no time such as 2026-11-30 or 2026-11-30T14:00") from None


def _read_log(file: Path, question: Question, sums: Sums) -> None:
    """Lines that are no records (the log of the gateway itself) are passed over, as are requests without a key."""
    decode = msgspec.json.Decoder(Record).decode
    lines = sys.stdin.buffer if str(file) == "-" else file.open("rb")
    with lines:
        for line in lines:
            try:
                record = decode(line)
            except msgspec.DecodeError:
                continue
            if fits(record, question):
                sums.add_record(record)


def _table(names: Sequence[str], usage: Usage) -> Table:
    table = Table(*names, box=None, pad_edge=False)
    for head in HEADS:
        table.add_column(head, justify="right")
    for group in usage.groups:
        table.add_row(*(_shown(group, name) for name in names), *cells(group.figures))
    if names:
        table.add_section()
    table.add_row(*[TOTAL, *[""] * len(names)][: len(names)], *cells(usage.total))
    return table


def _shown(group: Group, name: str) -> str:
    return group.group[name].replace("[", r"\[") or "-"
