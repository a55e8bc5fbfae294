"""`check` and `ledger show`: what a configuration means, and what its ledger holds."""

import asyncio
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from sluicegate import app
from sluicegate.cli.console import DEFAULT_CONFIG, ConfigFile, EnvFile, console, loaded
from sluicegate.config.check import report
from sluicegate.config.load import Loaded
from sluicegate.core.claims import CounterView, HoldView
from sluicegate.core.counters import name, of_key, shadow_room
from sluicegate.core.limits import Unit, show_amount
from sluicegate.core.tenants import Counter, Policy
from sluicegate.ledger.address import Place
from sluicegate.ledger.contract import LedgerUnavailable
from sluicegate.seeding import counters_by_tree

_MARKERS = ("forced", "cancelled")
_KINDS = {"b": "refills", "s": "refills", "w": "window", "o": "in flight"}


def check(file: Annotated[Path, typer.Argument(metavar="FILE")], env_file: EnvFile = None) -> None:
    """Print what a configuration means: tenants, limits with window and next reset, models and deployments; and what looks wrong.

    A ledger of several servers is asked which they are; no other connection is made.
    """
    found = loaded(file, env_file)
    for part in report(found, time.time_ns() // 1_000_000):
        console.print(part, highlight=False)
    if found.config.ledger.partition("://")[0].endswith(("+cluster", "+sentinel")):
        console.print(asyncio.run(_servers(found)), highlight=False)


def show(config: ConfigFile = DEFAULT_CONFIG, env_file: EnvFile = None) -> None:
    """Print the counters and the open holds, in words."""
    found = loaded(config, env_file)
    now_ms, counters, records = asyncio.run(_read(found))
    holds = [hold for hold in records if hold.state not in _MARKERS]
    known = {counter.key_prefix: counter for counter in _counters(found.policy)}
    console.print(_counter_table(counters, known) if counters else "no counters: nothing was used yet")
    console.print(_hold_table(holds, known, now_ms) if holds else "no holds: nothing is in flight")
    if remembered := len(records) - len(holds):
        console.print(f"{remembered} ids are remembered that hold nothing: what comes again for them is not counted twice", highlight=False)


async def _servers(found: Loaded) -> Table | Text:
    """The servers of the ledger that take writes, and the trees of this configuration that each of them keeps."""
    from sluicegate.ledger.discovery import Discovery  # noqa: PLC0415  (redis-py, which nothing else here needs)

    place = Place.parse(found.config.ledger)
    discovery = Discovery(place, found.config.ledger_timeout_ms / 1000)
    try:
        servers = await discovery.find(())
    except LedgerUnavailable as error:
        return Text(f"warning ledger: {error}", style="yellow")
    finally:
        await discovery.close()
    table = Table("server", "keeps the limits of", title=f"Ledger {place}", title_justify="left", title_style="bold", header_style="dim")
    for master in servers.masters:
        trees = sorted(tree for tree in counters_by_tree(found.policy) if servers.of(tree) == master)
        table.add_row(Text(str(master)), Text(", ".join(trees) or "nobody"))
    return table


async def _read(found: Loaded) -> tuple[int, list[CounterView], list[HoldView]]:
    ledger = app.ledger_of(found)
    await ledger.open()
    try:
        await ledger.ping()
        counters, holds = await ledger.show()
        return ledger.now_ms(), counters, holds
    finally:
        await ledger.close()


def _counters(policy: Policy) -> Iterable[Counter]:
    for key in policy.keys.values():
        yield from key.counters
    for model in policy.models.values():
        for deployment in model.deployments:
            yield from deployment.counters


def _counter_table(views: list[CounterView], known: dict[str, Counter]) -> Table:
    table = Table("limit", "in", "kind", "used", "held", "of")
    for view in sorted(views, key=lambda view: view.key):
        counter = of_key(view.key, known)
        label = view.key.removeprefix(counter.key_prefix).removeprefix(":") if counter else view.key.rpartition(":")[2]
        unit = counter.unit if counter else Unit.TOKENS
        held = show_amount(unit, view.held) if view.kind in ("w", "o") else ""
        table.add_row(Text(name(counter) if counter else view.key), label, _KINDS[view.kind], show_amount(unit, view.used), held, _of(counter))
    return table


def _hold_table(holds: list[HoldView], known: dict[str, Counter], now_ms: int) -> Table:
    table = Table("hold", "key and deployment", "state", "granted", "seen", "expires in", "takes")
    for hold in sorted(holds, key=lambda hold: hold.expires_ms):
        takes = []
        for key, amount in hold.amounts:
            counter = of_key(key, known)
            takes.append(f"{show_amount(counter.unit, amount)} of {name(counter)}" if counter else f"{amount} of {key}")
        whose = Text("\n".join(hold.tag.split()[1:3]))  # after the request's id, which the hold's begins with
        left = f"{(hold.expires_ms - now_ms) / 1000:.0f} s"
        table.add_row(hold.hold_id, whose, hold.state.replace("_", ", "), str(hold.g), str(hold.seen), left, Text("\n".join(takes)))
    return table


def _of(counter: Counter | None) -> str:
    if counter is None:
        return "no longer configured"
    if counter.enforced:
        return show_amount(counter.unit, counter.ceiling)
    return f"{show_amount(counter.unit, shadow_room(counter, None))} (shadow)"
