"""Does the cap hold? Replicas on one Redis, mock providers that know what they produced, many tenants, and everything that may go wrong.

    python bench/overshoot.py --list
    python bench/overshoot.py --quick                       under a minute
    python bench/overshoot.py --cells 'base/128/*' --json out.json
    python bench/overshoot.py --cells base/16/capped --print-config --redis URL --upstream mock=URL > gateway.yaml
    python bench/overshoot.py --cells base/16/capped --redis URL --upstream mock=URL --gateway URL --gateway URL

Clients work in a closed loop; each stops at its first `budget_exceeded`. What counts is what the mocks produced: `overshoot` is by how much that is
above a limit, per tenant. A row also says how much of the budget was used, how many streams were ended early and calls refused as busy, what the
ledger counts beyond the truth, which holds are left over, and what the gateway added to the time of a small call, beside the mock asked directly.

A row in which an event loop was late by more than 50 ms at the 99th percentile is void where its pace was to be kept: it measures the machine.
Against gateways that run elsewhere, only one cell at a time can be measured, since its tenants and models are their configuration.
Exits 1 if the cap was exceeded in a cell that is judged, a hold was left over, or the ledger counts less than was produced.
"""

import argparse
import asyncio
import contextlib
import fnmatch
import itertools
import json
import logging
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import structlog
import uvloop

from cells import GUARD_S, HOLD_TTL_S, PROBE, Cell, cells, quick
from clients import FINAL, Ask, Caller, Told, closed_loop
from sluicegate.config.load import Loaded
from sluicegate.core.limits import Unit
from sluicegate.core.tenants import Counter as Limit
from sluicegate.core.windows import span
from stand import Books, Child, Lag, Stand, answers, config, free_port, loaded, set_fault, stats, wait_idle

LAG_MAX_MS = 50.0
RUN_S = 900.0  # the longest that a run may take
PROBE_S = 0.25
LEFT_OVER_S = HOLD_TTL_S + 10.0


@dataclass
class Place:
    """Where a cell is run."""

    urls: list[str]
    mocks: dict[str, str]
    settings: Loaded
    stand: Stand | None


# -- load -------------------------------------------------------------------------------------------------------------------------------------


async def drive(cell: Cell, place: Place, tenants: Sequence[str], told: Mapping[str, Told], seed: int) -> None:
    """One run: all clients of these tenants, until each has stopped."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + (cell.seconds or RUN_S)
    serials = itertools.count(seed * 1_000_000)
    async with asyncio.TaskGroup() as group:
        for tenant in tenants:
            callers = cell.callers(tenant)
            for number in range(cell.streams):
                name = callers[number % len(callers)]
                rng = random.Random(f"{seed} {tenant} {number}")
                caller = Caller(place.urls, number, f"sk-{name}")
                final = () if cell.window_s else FINAL

                async def make(name: str = name, rng: random.Random = rng) -> Ask:
                    await _inside_window(cell)
                    return cell.ask(rng, name, next(serials))

                group.create_task(closed_loop(caller, make, told[tenant], final=final, until_s=until_s))


async def _inside_window(cell: Cell) -> None:
    """Until what is sent now is admitted in the window in which it arrives upstream, which is where the mock counts it."""
    if cell.window_s and (left_s := cell.window_s - time.time() % cell.window_s) < GUARD_S:
        await asyncio.sleep(left_s + 0.05)


@contextlib.asynccontextmanager
async def probing(place: Place) -> AsyncIterator[dict[str, list[float]]]:
    """Small calls all the while, to each gateway and to the mock in turn; their times in seconds, by `gateway` and `direct`."""
    times: dict[str, list[float]] = {"gateway": [], "direct": []}
    fields = {"model": "chat", "stream": True, "max_tokens": 1, "user": PROBE, "messages": [{"role": "user", "content": "Hello"}]}
    body = json.dumps({**fields, "mock": {"ttft": 0, "completion": 1}}, separators=(",", ":")).encode()
    callers = [("gateway", Caller([url], 0, f"sk-{PROBE}")) for url in place.urls]
    direct = ("direct", Caller([place.mocks["mock"]], 0, PROBE))

    async def probe() -> None:
        for kind, caller in itertools.cycle([pair for one in callers for pair in (one, direct)]):
            started = time.monotonic()
            if await caller.ask(Ask(body), 10.0) in ("ok", "shortened"):
                times[kind].append(time.monotonic() - started)
            await asyncio.sleep(PROBE_S / len(callers))

    task = asyncio.create_task(probe())
    try:
        yield times
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for _, caller in (*callers, direct):
            caller.close()


# -- truth ------------------------------------------------------------------------------------------------------------------------------------


@dataclass
class Account:
    """A limit of a tenant (in one window), what was produced under it, and what the ledger counts."""

    tenant: str
    unit: Unit
    ceiling: int
    truth: float
    ledger: int

    @property
    def overshoot(self) -> float:
        return max(0.0, self.truth - self.ceiling)


def accounts(place: Place, cell: Cell, tenants: Sequence[str], used: Mapping[str, int], posthoc: Mapping[str, int]) -> list[Account]:
    """All limits of these tenants. used: by storage key; posthoc: what the baseline counts, by key."""
    produced = [(provider, stats(url)["callers"]) for provider, url in place.mocks.items()]
    prices = {d.provider.name: d.price for model in place.settings.policy.models.values() for d in model.deployments}
    limits: dict[tuple[str, Limit], list[str]] = {}
    for key in place.settings.policy.keys.values():
        tenant = key.path[0].name if key.path[0].kind != "global" else key.path[1].name
        for counter in key.counters:
            if tenant in tenants:
                limits.setdefault((tenant, counter), []).append(f"{tenant}.{key.path[-1].name}")
    found = []
    for (tenant, counter), callers in limits.items():
        for start in _starts(produced, callers) if cell.window_s else [""]:
            truth = 0.0
            for provider, tallies in produced:
                price = prices[provider]
                for caller in callers:
                    tally = tallies.get(caller + start, {"prompt_tokens": 0, "completion_tokens": 0})
                    cost = (tally["prompt_tokens"] * price.input + tally["completion_tokens"] * price.output) / 1000 if price else 0
                    truth += cost if counter.unit is Unit.USD else tally["prompt_tokens"] + tally["completion_tokens"]
            key = f"{counter.key_prefix}:{span(counter.window, int(start[1:]) * 1000).label}" if start else counter.key_prefix
            counted = posthoc.get(f"sk-{callers[0]}", 0) if cell.mode == "posthoc" else used.get(key, 0)
            found.append(Account(tenant, counter.unit, counter.ceiling, truth, counted))
    return found


def _starts(produced: Sequence[tuple[str, Mapping[str, Any]]], callers: Sequence[str]) -> list[str]:
    """The windows in which these callers were served, as the mock names them."""
    users = {user for _, tallies in produced for user in tallies}
    return sorted({f"@{start}" for name, _, start in (user.partition("@") for user in users) if name in callers})


async def books(place: Place, tenants: Sequence[str]) -> tuple[dict[str, int], int, int]:
    """What counters have counted, by storage key, and, of these tenants, the holds that are open and what is held."""
    counters, holds = await Books(place.settings).read()
    marks = tuple(f"sg1:{{{tenant}}}:" for tenant in tenants)
    held = sum(view.held for view in counters if view.key.startswith(marks))
    opened = sum(1 for hold in holds if hold.state == "open" and any(key.startswith(marks) for key, _ in hold.amounts))
    return {view.key: view.used for view in counters}, opened, held


async def settled(place: Place, tenants: Sequence[str]) -> tuple[dict[str, int], int, int]:
    """The books once nothing is held, or once every hold's ttl has passed."""
    deadline = time.monotonic() + LEFT_OVER_S
    while True:
        found = await books(place, tenants)
        if not (found[1] or found[2]) or time.monotonic() > deadline:
            return found
        await asyncio.sleep(0.25)


# -- a cell -----------------------------------------------------------------------------------------------------------------------------------


def names(cell: Cell, nonce: str) -> list[list[str]]:
    """Tenants per run. Each run has its own, since their budgets never come back."""
    return [[f"{nonce}r{run}t{number}" for number in range(cell.tenants)] for run in range(cell.runs)]


async def measure(cell: Cell, place: Place, groups: Sequence[Sequence[str]], seed: int) -> dict[str, Any]:
    """All runs of a cell, and what they came to."""
    tenants = [tenant for group in groups for tenant in group]
    told = {tenant: Told() for tenant in tenants}
    lag = Lag([] if cell.mode == "posthoc" else place.urls)
    started = time.monotonic()
    async with probing(place) as times:
        for number, run in enumerate([tenants] if cell.at_once else groups):
            trouble = asyncio.create_task(cell.disturb(place.stand)) if cell.disturb is not None and place.stand is not None else None
            await drive(cell, place, run, told, seed * 10 + number)
            if trouble is not None:
                await trouble
    seconds = time.monotonic() - started
    lags_ms = await asyncio.to_thread(lag.p99_ms)
    await asyncio.to_thread(wait_idle, list(place.mocks.values()))
    if cell.mode == "posthoc":
        await asyncio.sleep(0.5)  # the last charges
        used, opened, held, posthoc = {}, 0, 0, _posthoc_counts(place)
    else:
        (used, opened, held), posthoc = await settled(place, tenants), {}
    row = figures(cell, accounts(place, cell, tenants, used, posthoc), told)
    row |= {"holds_left": opened, "held_left": held, "loop_lag_p99_ms": max(lags_ms, default=0.0), "seconds": round(seconds, 1)}
    row["void"] = cell.mode != "posthoc" and cell.name != "starved" and row["loop_lag_p99_ms"] > LAG_MAX_MS
    row |= {f"{kind}_call_ms": _median_ms(taken) for kind, taken in times.items()}
    row["added_ms"] = round(row["gateway_call_ms"] - row["direct_call_ms"], 2)
    return row


def figures(cell: Cell, found: Sequence[Account], told: Mapping[str, Told]) -> dict[str, Any]:
    """The row's figures of one cell, from its accounts and from what clients were told."""
    tenants = list(told)
    suffix = "nano_usd" if cell.usd else "tokens"
    over = [max(one.overshoot for one in found if one.tenant == tenant) for tenant in tenants]
    used = [max(one.truth / one.ceiling for one in found if one.tenant == tenant) for tenant in tenants]
    beyond = [one.ledger - one.truth for one in found]
    outcomes = sum((one.outcomes for one in told.values()), Counter[str]())
    return {
        "cell": cell.name,
        "what": cell.what,
        "mode": cell.mode,
        "concurrency": cell.streams,
        "tenants": cell.tenants,
        "runs": cell.runs,
        "budget": cell.budget,
        f"overshoot_max_{suffix}": round(max(over), 3),
        f"overshoot_mean_{suffix}": round(statistics.mean(over), 3),
        "utilization_mean_pct": round(100 * statistics.mean(used), 2),
        "utilization_min_pct": round(100 * min(used), 2),
        f"ledger_minus_truth_min_{suffix}": round(min(beyond), 3),
        f"ledger_minus_truth_max_{suffix}": round(max(beyond), 3),
        f"ledger_minus_truth_mean_{suffix}": round(statistics.mean(beyond), 1),
        "truncated_mean": round((outcomes["cut"] + outcomes["shortened"]) / len(tenants), 2),
        "cut_mean": round(outcomes["cut"] / len(tenants), 2),
        "busy_mean": round(outcomes["budget_busy"] / len(tenants), 2),
        "busy_max": max(one.outcomes["budget_busy"] for one in told.values()),
        "outcomes": dict(outcomes.most_common()),
        "first_byte_p50_ms": _median_ms([taken for one in told.values() for taken in one.first_s]),
    }


def _median_ms(taken: Sequence[float]) -> float:
    return round(1000 * statistics.median(taken), 2) if taken else 0.0


def faults_of(row: Mapping[str, Any], cell: Cell) -> list[str]:
    """What a row shows that must not be."""
    suffix = "nano_usd" if cell.usd else "tokens"
    wrong = []
    if cell.judged and not row["void"] and row[f"overshoot_max_{suffix}"] > cell.allowed:
        wrong.append(f"overshoot {row[f'overshoot_max_{suffix}']}")
    if cell.mode != "posthoc":
        if row["holds_left"] or row["held_left"]:
            wrong.append(f"{row['holds_left']} holds left, {row['held_left']} held")
        if row[f"ledger_minus_truth_min_{suffix}"] < 0:
            wrong.append(f"ledger below the truth by {-row[f'ledger_minus_truth_min_{suffix}']}")
    return wrong


# -- places -----------------------------------------------------------------------------------------------------------------------------------


def run_cell(cell: Cell, options: argparse.Namespace) -> dict[str, Any]:
    """A cell on a stand of its own, or where the options say."""
    groups = names(cell, options.nonce)
    tenants = [tenant for group in groups for tenant in group]
    with contextlib.ExitStack() as stack:
        if options.gateway:
            place = Place(options.gateway, options.upstream, settings(cell, options, tenants), None)
        else:
            stand = stack.enter_context(Stand(cell.shape(tenants), gateways=cell.mode != "posthoc"))
            place = Place(stand.urls, stand.mock_urls, loaded(stand.config("books", stand.redis.url)), stand)
            if cell.mode == "posthoc":
                place.urls = stack.enter_context(posthoc(stand, cell))
        for fault in cell.faults:
            set_fault(place.mocks["mock"], **fault)
        return uvloop.run(measure(cell, place, groups, options.seed))


def settings(cell: Cell, options: argparse.Namespace, tenants: list[str]) -> Loaded:
    """The configuration of gateways that run elsewhere."""
    return loaded(_settings(cell, options, tenants))


def _settings(cell: Cell, options: argparse.Namespace, tenants: list[str]) -> dict[str, Any]:
    return config(cell.shape(tenants), options.upstream, ledger=options.redis, journal="data/journal", records="sqlite:///data/records.db")


@contextlib.contextmanager
def posthoc(stand: Stand, cell: Cell) -> Iterator[list[str]]:
    """The baseline's processes, as many as there would be gateways."""
    script = Path(__file__).parent / "posthoc.py"
    children, urls = [], []
    try:
        for number in range(stand.shape.replicas):
            port = free_port()
            urls.append(f"http://127.0.0.1:{port}")
            home = stand.directory / f"posthoc{number}"
            home.mkdir()
            arguments = ["--port", str(port), "--redis", stand.redis.url, "--upstream", stand.mock_urls["mock"], "--budget", str(cell.budget)]
            children.append(Child([sys.executable, str(script), *arguments], home / "log"))
        for child, url in zip(children, urls, strict=True):
            child.wait_until(lambda url=url: answers(url))  # type: ignore[misc]
        yield urls
    finally:
        for child in children:
            child.stop()


def _posthoc_counts(place: Place) -> dict[str, int]:
    assert place.stand is not None
    client = place.stand.redis.client
    return {key.decode().removeprefix("posthoc:"): int(client.get(key) or 0) for key in client.scan_iter("posthoc:*")}


# -- the report -------------------------------------------------------------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    """Where this was measured."""
    model = next((line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "")
    server = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=False).stdout.split(" v=")[-1].split(" ")[0]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    system = {"system": platform.system(), "kernel": platform.release(), "architecture": platform.machine()}
    return {**system, "cpu": model, "cores": os.cpu_count(), "memory_gib": memory, "python": platform.python_version(), "redis": server}


def shown(row: Mapping[str, Any], cell: Cell, wrong: Sequence[str]) -> str:
    """One line."""
    suffix = "nano_usd" if cell.usd else "tokens"
    beyond = f"{row[f'ledger_minus_truth_min_{suffix}']:.0f}..{row[f'ledger_minus_truth_max_{suffix}']:.0f}"
    marks = " VOID" if row["void"] else ""
    marks += f"  <-- {'; '.join(wrong)}" if wrong else ""
    return (
        f"{cell.id:34} over {row[f'overshoot_max_{suffix}']:>8.0f}  used {row['utilization_mean_pct']:6.2f} %"
        f"  ended early {row['truncated_mean']:6.2f}  busy {row['busy_mean']:7.2f}  ledger - truth {beyond:>14}"
        f"  lag {row['loop_lag_p99_ms']:6.1f} ms  added {row['added_ms']:6.2f} ms  {row['seconds']:6.1f} s{marks}"
    )


def chosen(options: argparse.Namespace) -> list[Cell]:
    """The cells that the options name."""
    all_of_them = list(quick() if options.quick else cells())
    patterns = options.cells.split(",") if options.cells else ["*"]
    found = [cell for cell in all_of_them if any(fnmatch.fnmatch(cell.id, pattern) or cell.name == pattern for pattern in patterns)]
    if not found:
        raise SystemExit(f"no cell is called {options.cells}; --list shows them")
    return [replace(cell, runs=options.runs or cell.runs) for cell in found]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few small cells, under a minute")
    parser.add_argument("--cells", default="", help="names or patterns such as base/128/*, separated by commas")
    parser.add_argument("--list", action="store_true", help="print the cells and end")
    parser.add_argument("--json", type=Path, help="write the rows here, with the machine and the parameters")
    parser.add_argument("--runs", type=int, default=0, help="runs per cell, instead of the cell's own number")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nonce", default="", help="begins the names of tenants: another set of budgets that never come back")
    parser.add_argument("--gateway", action="append", default=[], metavar="URL", help="a gateway that runs already; may be given several times")
    parser.add_argument("--redis", default="", metavar="URL", help="its Redis")
    parser.add_argument("--upstream", action="append", default=[], metavar="NAME=URL", help="its mock providers, without /v1")
    parser.add_argument("--print-config", action="store_true", help="print the configuration that such gateways need for the cell, and end")
    options = parser.parse_args(arguments)
    options.upstream = dict(one.split("=", 1) for one in options.upstream)
    if (options.gateway or options.print_config) and not (options.redis and options.upstream):
        parser.error("--redis and --upstream are needed, too")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs, prints, and judges."""
    options = parse(arguments)
    selected = chosen(options)
    if options.list:
        print("\n".join(f"{cell.id:34} {cell.what}" for cell in selected))
        return 0
    local = any(cell.disturb or cell.clocks_s or cell.mode == "posthoc" for cell in selected)
    if (options.gateway or options.print_config) and (local or len(selected) > 1):
        raise SystemExit("one cell at a time, and none that ends processes or sets clocks, with gateways that run elsewhere")
    if options.print_config:
        print(json.dumps(_settings(selected[0], options, [tenant for group in names(selected[0], options.nonce) for tenant in group]), indent=1))
        return 0
    rows, bad = [], 0
    started = time.monotonic()
    for cell in selected:
        row = run_cell(cell, options)
        wrong = row["wrong"] = faults_of(row, cell)
        bad += bool(wrong)
        rows.append(row)
        print(shown(row, cell, wrong), flush=True)
        if options.json:
            parameters = {"cells": options.cells, "quick": options.quick, "runs": options.runs, "seed": options.seed, "hold_ttl_s": HOLD_TTL_S}
            report = {"what": "overshoot", "date": time.strftime("%Y-%m-%d"), "machine": machine(), "parameters": parameters, "rows": rows}
            options.json.write_text(json.dumps(report, indent=1) + "\n")
    print(f"{len(rows)} cells in {time.monotonic() - started:.0f} s, {bad} with something wrong, {sum(row['void'] for row in rows)} void")
    return 1 if bad else 0


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))  # our looks at the ledger
    sys.exit(main())
