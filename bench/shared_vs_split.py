"""Three replicas and one limit: what is admitted, and what it costs, when each has a ledger of its own, or all have one.

    python bench/shared_vs_split.py [--json FILE] [--page docs/shared-or-split.md]

Four ways to enforce one limit:

    whole     each replica enforces all of it, in a ledger of its own
    split     each replica enforces a third of it, in a ledger of its own
    redis     one Redis for all
    service   one small HTTP service in front of an SQLite ledger, for all (bench/http_ledger.py; bench only)

Three loads: more than all replicas could serve on the whole limit, spread evenly; one and a half times the limit, most of it at one replica; and less
than the limit, most of it at one replica, where nothing ought to be refused. What was admitted is what the mock produced. The latency
that a gateway adds is that of small calls whose answer takes no time, beside the same calls to the mock itself, one at a time and sixteen at once.
"""

import argparse
import asyncio
import json
import os
import platform
import socket
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import uvloop

from clients import FINAL, SERVED, Ask, Caller
from stand import Child, Replica, Shape, Stand, free_port, stats, wait_idle

HERE = Path(__file__).parent
REPLICAS = 3
LIMIT = 60_000  # tokens that never come back
WAYS = {
    "whole": "each replica enforces the whole limit",
    "split": "each replica enforces a third of it",
    "redis": "one Redis",
    "service": "one HTTP service in front of SQLite",
}
PROMPT = "Tell me something about rivers and the gates that people build into them."
TOKENS_EACH = 156  # of a request and its answer, about
MAX_TOKENS = 512
CLIENTS = 36
BUSY_TRIES = 400
MOCK = ("--ttft", "10ms", "--tpot", "1ms", "--median", "120", "--sigma", "0.6", "--tokenizer", "o200k_base")
LOADS: dict[str, tuple[float, tuple[float, ...], str]] = {  # name -> demand in limits, share of each replica, in words
    "flood": (4.0, (1 / 3, 1 / 3, 1 / 3), "4 x the limit, evenly"),
    "uneven": (1.5, (0.7, 0.2, 0.1), "1.5 x the limit, 70 / 20 / 10"),
    "enough": (0.6, (0.7, 0.2, 0.1), "0.6 x the limit, 70 / 20 / 10"),
}
PROBES, AT_ONCE = 1500, (1, 16)
TIMEOUT_S = 60.0


# -- the stands -------------------------------------------------------------------------------------------------------------------------------


class Apart(Stand):
    """Each replica has a ledger and records of its own."""

    def config(self, name: str, ledger: str) -> dict[str, Any]:
        home = f"sqlite:///{self.directory}/{name}"
        return {**super().config(name, ledger), "ledger": f"{home}.db", "records": f"{home}-records.db"}


class Served(Replica):
    """A replica whose ledger is the service."""

    ledger_url = ""

    def start(self) -> None:
        command = [sys.executable, str(HERE / "http_ledger.py"), "gateway", str(self.file), str(self.port), self.ledger_url]
        self._child = Child(command, self.directory / f"{self.name}.log")


class OneService(Stand):
    """The replicas have their ledger behind HTTP."""

    def _start(self) -> None:
        self._service_port = free_port()
        super()._start()

    def _replica(self, number: int) -> None:
        if number == 0:
            file = str(self.directory / "service.db")
            service = Child([sys.executable, str(HERE / "http_ledger.py"), "service", str(self._service_port), file], self.directory / "service.log")
            self._stack.callback(service.stop)
            service.wait_until(lambda: listens(self._service_port))
        replica = Served(self.directory, f"replica{number}", self.config(f"replica{number}", "memory://"), 0)
        replica.ledger_url = f"http://127.0.0.1:{self._service_port}"
        self.replicas.append(replica)
        self._stack.callback(replica.kill)
        replica.start()


def stand(way: str) -> Stand:
    """The processes of one way, with a tenant for each load and one for the probes."""
    amount = LIMIT // REPLICAS if way == "split" else LIMIT
    tenants: dict[str, Any] = {name: {"keys": [{"name": name, "key": f"sk-{name}", "limits": [f"{amount} tokens/lifetime"]}]} for name in LOADS}
    limits = ["$1000/month", "1000M tokens/day", "1M requests/minute", "1000 concurrent"]
    tenants["probe"] = {"keys": [{"name": "probe", "key": "sk-probe", "limits": limits}]}
    models = {"chat": {"deployments": [{"provider": "mock", "model": "mock-model", "price": {"input": 0.5, "output": 1.0}}]}}
    shape = Shape(tenants, {"mock": MOCK}, {"mock": {"tokenizer": "o200k_base"}}, models, replicas=REPLICAS)
    return {"whole": Apart, "split": Apart, "redis": Stand, "service": OneService}[way](shape)


def listens(port: int) -> bool:
    """Whether somebody takes connections on a port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


# -- what is admitted -------------------------------------------------------------------------------------------------------------------------


@dataclass
class Admitted:
    """One load on one way. Tokens are the mock's own count."""

    way: str
    load: str
    asked: int  # requests
    tokens: int
    refused: int  # requests that the limit refused for good
    outcomes: dict[str, int]

    @property
    def limits(self) -> float:
        return self.tokens / LIMIT


async def client(url: str, load: str, turns: Iterator[int], told: Counter[str]) -> None:
    """Asks one replica for one request after the other, each until it is served or refused for good."""
    caller = Caller([url], 0, f"sk-{load}")
    for turn in turns:
        messages = [{"role": "user", "content": f"{PROMPT} {turn}"}]
        ask = Ask(json.dumps({"model": "chat", "max_tokens": MAX_TOKENS, "messages": messages, "user": load}).encode())
        for _ in range(BUSY_TRIES):
            outcome = await caller.ask(ask, TIMEOUT_S)
            if outcome != "budget_busy":
                break
            await asyncio.sleep(0.02)
        told[outcome] += 1
    caller.close()


async def drive(urls: Sequence[str], load: str) -> Counter[str]:
    """A load, to its end."""
    demand, shares, _ = LOADS[load]
    requests = int(demand * LIMIT / TOKENS_EACH)
    told: Counter[str] = Counter()
    async with asyncio.TaskGroup() as group:
        for number, (url, share) in enumerate(zip(urls, shares, strict=True)):
            turns = iter(range(number * requests, number * requests + round(requests * share)))
            for _ in range(max(1, round(CLIENTS * share))):
                group.create_task(client(url, load, turns, told))
    return told


def admitted(way: str, place: Stand, load: str) -> Admitted:
    told = uvloop.run(drive(place.urls, load))
    wait_idle(list(place.mock_urls.values()))
    odd = told.keys() - {*SERVED, *FINAL, "budget_busy"}
    if odd:
        raise RuntimeError(f"answered {odd}: {told}")
    tokens = stats(place.mock_urls["mock"])["callers"][load]["tokens"]
    return Admitted(way, load, sum(told.values()), tokens, told["budget_exceeded"], dict(told))


# -- what it costs ----------------------------------------------------------------------------------------------------------------------------


@dataclass
class Latency:
    """Small calls through the gateways of one way, beside the same to the mock. Milliseconds."""

    way: str
    at_once: int
    median_ms: float
    p99_ms: float
    direct_median_ms: float
    direct_p99_ms: float

    @property
    def added_ms(self) -> tuple[float, float]:
        return self.median_ms - self.direct_median_ms, self.p99_ms - self.direct_p99_ms


PROBE = Ask(
    json.dumps(
        {"model": "chat", "max_tokens": 1, "messages": [{"role": "user", "content": "Hello"}], "mock": {"ttft": 0, "tpot": 0, "completion": 1}}
    ).encode()
)


async def probe(urls: Sequence[str], at_once: int, count: int) -> list[float]:
    """How long each of `count` small calls took."""
    taken: list[float] = []

    async def ask(number: int) -> None:
        caller = Caller(urls, number, "sk-probe")
        while len(taken) < count:
            began_s = time.perf_counter()  # the loop's own time has milliseconds
            outcome = await caller.ask(PROBE, TIMEOUT_S)
            if outcome != "ok":
                raise RuntimeError(f"a small call was answered {outcome}")
            taken.append(time.perf_counter() - began_s)
        caller.close()

    async with asyncio.TaskGroup() as group:
        for number in range(at_once):
            group.create_task(ask(number))
    return taken


def latencies(way: str, place: Stand) -> Iterator[Latency]:
    direct_urls = list(place.mock_urls.values())
    for at_once in AT_ONCE:
        figures = []
        for urls in (place.urls, direct_urls):
            uvloop.run(probe(urls, 3 * at_once, PROBES // 5))  # connections, vocabularies, caches
            taken = sorted(uvloop.run(probe(urls, at_once, PROBES)))
            figures += [round(1000 * statistics.median(taken), 3), round(1000 * taken[int(0.99 * len(taken))], 3)]
        yield Latency(way, at_once, *figures)


# -- telling ----------------------------------------------------------------------------------------------------------------------------------

BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


def page_table(found: Sequence[Admitted], costs: Sequence[Latency], machine: dict[str, Any]) -> str:
    """The tables of the page."""
    lines = ["| way | " + " | ".join(words for _, _, words in LOADS.values()) + " |", "|---|" + "---|" * len(LOADS)]
    for way, words in WAYS.items():
        cells = [f"{one.limits:.2f} limits, {one.refused} of {one.asked} refused" for one in found if one.way == way]
        lines.append(f"| {words} | " + " | ".join(cells) + " |")
    lines += ["", "| way | added, one call at a time: median | 99th | sixteen at once: median | 99th |", "|---|---|---|---|---|"]
    for way, words in WAYS.items():
        cells = [f"{value:.2f} ms" for one in costs if one.way == way for value in one.added_ms]
        lines.append(f"| {words} | " + " | ".join(cells) + " |")
    lines += [
        "",
        f"{REPLICAS} replicas, a limit of {LIMIT:,} tokens, {CLIENTS} clients, at most {MAX_TOKENS} tokens an answer, {TOKENS_EACH} each on average;",
        f"{PROBES} small calls for each latency. Clients, gateways, ledger and mock shared a machine: {machine['cores']} cores, {machine['system']},",
        f"Python {machine['python']}. Sixteen calls at once keep it busy, so that each also waits for the others.",
    ]
    return "\n".join(lines)


def main() -> int:
    """Runs, prints, and judges: a shared limit is never passed, and nearly used up where there is demand for it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the results here, with the machine and the parameters")
    parser.add_argument("--page", type=Path, help="write the tables between the markers of this page")
    options = parser.parse_args()
    found: list[Admitted] = []
    costs: list[Latency] = []
    for way in WAYS:
        with stand(way) as place:
            for load in LOADS:
                found.append(admitted(way, place, load))
                one = found[-1]
                print(f"{way:8} {load:7} admitted {one.tokens:6} of {LIMIT} tokens ({one.limits:.3f}); {one.outcomes}", flush=True)
            for cost in latencies(way, place):
                costs.append(cost)
                median_ms, p99_ms = cost.added_ms
                print(f"{way:8} {cost.at_once:2} at once: added {median_ms:6.2f} ms, at the 99th percentile {p99_ms:6.2f} ms", flush=True)
    machine = {"system": platform.platform(), "python": platform.python_version(), "cores": os.cpu_count()}
    if options.json:
        parameters = {"replicas": REPLICAS, "limit_tokens": LIMIT, "clients": CLIENTS, "max_tokens": MAX_TOKENS}
        parameters |= {"mock": MOCK, "loads": LOADS, "probes": PROBES}
        results = {"machine": machine, "parameters": parameters, "admitted": [*map(asdict, found)], "latency": [*map(asdict, costs)]}
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    if options.page:
        before, _, rest = options.page.read_text().partition(BEGIN)
        options.page.write_text(f"{before}{BEGIN}\n{page_table(found, costs, machine)}\n{END}{rest.partition(END)[2]}")
    shared = [one for one in found if one.way in ("redis", "service")]
    bad = [one for one in shared if one.limits > 1 or (one.refused > 0 if one.load == "enough" else one.limits < 0.98)]
    for one in bad:
        print(f"not as it should be: {one}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
