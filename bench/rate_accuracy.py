"""How exact are rates? Two gateways on one Redis, and far more requests than a bucket has room for: what is admitted against burst + rate x T.

    python bench/rate_accuracy.py            each run has 5,000 requests at a concurrency of 100; about two minutes
    python bench/rate_accuracy.py --quick    a fifth of that

Limits of requests per minute and of tokens per minute, shared by keys of three priorities, for which a part is kept
(`reserve: {normal: 10%, low: 30%}`). For each there is a run of every priority alone, which may fill the bucket up to its own ceiling, and one of all
three together, which may fill it up to the highest; there the others may still not have more than theirs.

T is the ledger's own time, from the first decision to the last, each of which lies between two readings of Redis's clock a few milliseconds apart.
All clients begin at once, until they are refused; then their requests are spread over some seconds, so that most of what is admitted has been
refilled. The last request is sent alone and repeated until it is refused: so in the end the bucket is known to be used up.

Exits 1 where the difference is not below 0.5 % or one request, whichever is more (and what T may be wrong by, which is shown).
"""

import argparse
import asyncio
import json
import os
import platform
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import uvloop

from clients import Ask, Caller
from sluicegate.mock.text import prompt_tokens
from stand import Shape, Stand

REQUESTS, CONCURRENCY, SPREAD_S = 5_000, 100, 8.0
TOLERANCE = 0.005
PER_S = 100  # requests a second that are admitted in the long run
BURST = 100  # requests
MAX_TOKENS = 20
PROMPT = "Tell me something about rivers and the gates that people build into them."
TOKENIZER = "o200k_base"
EACH = {"requests": 1, "tokens": prompt_tokens([PROMPT], 1, TOKENIZER) + MAX_TOKENS}  # what a request takes from a limit of that unit
RESERVE = {"high": 0, "normal": 10, "low": 30}  # per cent
TOGETHER = tuple(RESERVE)
RUNS = [(unit, who) for unit in EACH for who in (*((name,) for name in RESERVE), TOGETHER)]
TIMEOUT_S = 30.0


@dataclass
class Outcome:
    """One run. Amounts are in the limit's unit; times are the ledger's."""

    unit: str
    priorities: str
    asked: int
    allowed: int  # of all priorities
    allowed_by: dict[str, int]
    seconds: float
    unsure_ms: float  # by how much `seconds` may be wrong
    idle_ms: float  # the longest time without an answer
    expected: float
    least: float  # what is admitted at least, and at most, whatever the time was in truth
    most: float
    over: list[str]  # priorities that had more than their own ceiling leaves them

    @property
    def difference(self) -> float:
        return self.allowed - self.expected

    @property
    def unsure(self) -> float:
        """What the rate gives in the time by which T may be wrong."""
        return self.unsure_ms / 1000 * PER_S * EACH[self.unit]

    @property
    def tolerated(self) -> float:
        return max(TOLERANCE * self.expected, EACH[self.unit]) + self.unsure

    @property
    def void(self) -> bool:
        """Nothing was asked for so long that the bucket may have been full and gained nothing: that measures the machine."""
        return self.idle_ms > 1000 * BURST * (100 - RESERVE["low"]) / 100 / PER_S / 2

    @property
    def good(self) -> bool:
        return abs(self.difference) < self.tolerated and not self.over


def name_of(unit: str, who: Sequence[str]) -> str:
    return f"{unit}-{'-'.join(who)}"


def shape(replicas: int = 2) -> Shape:
    """A tenant with a bucket of its own for each run, and a key of each priority."""

    def limit(unit: str) -> dict[str, Any]:
        kept = {name: f"{percent}%" for name, percent in RESERVE.items() if percent}
        return {"amount": 60 * PER_S * EACH[unit], "unit": unit, "per": "minute", "burst": BURST * EACH[unit], "reserve": kept}

    tenants = {
        name_of(unit, who): {
            "limits": [limit(unit)],
            "keys": [{"name": f"{name_of(unit, who)}-{priority}", "key": secret(unit, who, priority), "priority": priority} for priority in who],
        }
        for unit, who in RUNS
    }
    tenants["warm"] = {"keys": [{"name": "warm", "key": "sk-warm"}]}
    mock = ("--tokenizer", TOKENIZER, "--completion", str(MAX_TOKENS))
    price = {"input": 0.5, "output": 1.0}
    models = {"chat": {"deployments": [{"provider": "mock", "model": "mock-model", "price": price}]}}
    return Shape(tenants, {"mock": mock}, {"mock": {"tokenizer": TOKENIZER}}, models, {"estimator": "max_tokens"}, replicas=replicas)


BODY = {"model": "chat", "max_tokens": MAX_TOKENS, "messages": [{"role": "user", "content": PROMPT}]}
ASK = Ask(json.dumps(BODY).encode())


def secret(unit: str, who: Sequence[str], priority: str) -> str:
    return f"sk-{name_of(unit, who)}-{priority}"


class Run:
    """One run against a stand."""

    def __init__(self, stand: Stand, unit: str, who: Sequence[str], requests: int, spread_s: float) -> None:
        self._redis = stand.redis.client
        self._urls = stand.urls
        self.unit = unit
        self.who = who
        self._left = iter(range(requests))
        self._pause_s = spread_s * CONCURRENCY / requests
        self._begun_s = 0.0
        self._answered_s = 0.0
        self._idle_s = 0.0
        self.asked = 0
        self.allowed: Counter[str] = Counter()

    def _ledger_s(self) -> float:
        seconds, microseconds = self._redis.time()
        return float(seconds) + float(microseconds) / 1e6

    def _caller(self, number: int) -> tuple[Caller, str]:
        priority = self.who[number % len(self.who)]
        return Caller(self._urls, number // len(self.who), secret(self.unit, self.who, priority)), priority

    async def _one(self, caller: Caller, priority: str) -> bool:
        outcome = await caller.ask(ASK, TIMEOUT_S)
        if outcome not in ("ok", "rate_limit_exceeded"):
            raise RuntimeError(f"answered {outcome}: {caller.wire.tail[-500:] if caller.wire is not None else ''!r}")
        now_s = asyncio.get_running_loop().time()
        self._begun_s = self._begun_s or self._ledger_s()
        self._idle_s = max(self._idle_s, now_s - (self._answered_s or now_s))
        self._answered_s = now_s
        self.asked += 1
        self.allowed[priority] += outcome == "ok"
        return outcome == "ok"

    async def _client(self, number: int, caller: Caller, priority: str) -> None:
        """Its share of the requests: one after the other until it is refused, from then on evenly over the run's time."""
        loop = asyncio.get_running_loop()
        due_s = 0.0
        for _ in self._left:
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            refused = not await self._one(caller, priority)
            if due_s:
                due_s += self._pause_s
            elif refused:
                due_s = loop.time() + self._pause_s * number / CONCURRENCY

    async def run(self) -> Outcome:
        callers = [self._caller(number) for number in range(CONCURRENCY)]
        for caller, _ in callers:
            caller.wire = await caller._connect(0)  # so that the first decision comes soon after the first reading of the clock
        before_s = self._ledger_s()
        async with asyncio.TaskGroup() as group:
            for number, (caller, priority) in enumerate(callers):
                group.create_task(self._client(number, caller, priority))
        caller, highest = callers[0]
        while True:
            ending_s = self._ledger_s()
            if not await self._one(caller, highest):
                break
        after_s = self._ledger_s()
        for caller, _ in callers:
            caller.close()
        return self._judged(ending_s - self._begun_s, after_s - before_s)

    def _judged(self, shortest_s: float, longest_s: float) -> Outcome:
        """What was admitted, beside what the rate gives in a time that lies between the two."""
        each = EACH[self.unit]
        amounts = {priority: count * each for priority, count in self.allowed.items()}
        over = [priority for priority, amount in amounts.items() if amount > self._most(priority, longest_s)]
        return Outcome(
            unit=self.unit,
            priorities="+".join(self.who),
            asked=self.asked,
            allowed=sum(amounts.values()),
            allowed_by=amounts,
            seconds=round((shortest_s + longest_s) / 2, 4),
            unsure_ms=round((longest_s - shortest_s) * 500, 2),
            idle_ms=round(self._idle_s * 1000, 1),
            expected=round(self._most(self.who[0], (shortest_s + longest_s) / 2), 2),
            least=round(self._most(self.who[0], shortest_s) - each, 2),
            most=round(self._most(self.who[0], longest_s), 2),
            over=over,
        )

    def _most(self, priority: str, seconds: float) -> float:
        """What a priority alone can get in a time: the part of the burst that is not kept from it, and what is refilled."""
        return (BURST * (100 - RESERVE[priority]) / 100 + PER_S * seconds) * EACH[self.unit]


async def warm(stand: Stand) -> None:
    for number in range(CONCURRENCY):
        caller = Caller(stand.urls, number, "sk-warm")
        if await caller.ask(ASK, TIMEOUT_S) != "ok":
            raise RuntimeError("a key without limits was refused")
        caller.close()


def runs(stand: Stand, requests: int, spread_s: float) -> Iterator[Outcome]:
    """All runs, one after the other, once everything has been used: what is used for the first time takes its time, in which a bucket fills up."""
    uvloop.run(warm(stand))
    for unit, who in RUNS:
        yield uvloop.run(Run(stand, unit, who, requests, spread_s).run())


def row(outcome: Outcome) -> str:
    percent = 100 * outcome.difference / outcome.expected
    verdict = "ok" if outcome.good else "void" if outcome.void else " ".join(("FAILED", *outcome.over))
    shares = ", ".join(f"{priority} {amount}" for priority, amount in sorted(outcome.allowed_by.items()))
    return (
        f"{outcome.unit + '/min':14}{outcome.priorities:18}{outcome.asked:6}{outcome.seconds:9.3f}{outcome.allowed:10}{outcome.expected:12.1f}"
        f"{outcome.difference:+9.1f}{percent:+8.2f} %{outcome.unsure:7.1f}{outcome.tolerated:9.1f}  {verdict:8}{shares}"
    )


def main() -> int:
    """Runs, prints, and judges."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a fifth of the requests, in a fifth of the time")
    parser.add_argument("--json", type=Path, help="write the results here, with the machine and the parameters")
    options = parser.parse_args()
    share = 5 if options.quick else 1
    requests, spread_s = REQUESTS // share, SPREAD_S / share
    print(f"{'limit':14}{'priorities':18}{'asked':>6}{'T, s':>9}{'allowed':>10}{'expected':>12}{'diff':>9}{'':10}{'unsure':>7}{'at most':>9}")
    outcomes = []
    with Stand(shape()) as stand:
        for outcome in runs(stand, requests, spread_s):
            outcomes.append(outcome)
            print(row(outcome), flush=True)
    if options.json:
        machine = {"system": platform.platform(), "python": platform.python_version(), "cores": os.cpu_count()}
        parameters = {
            **{"requests": requests, "concurrency": CONCURRENCY, "spread_s": spread_s, "replicas": 2, "per_second": PER_S, "burst": BURST},
            **{"tokens_each": EACH["tokens"], "reserve_percent": RESERVE, "tolerance": TOLERANCE},
        }
        options.json.write_text(json.dumps({"machine": machine, "parameters": parameters, "runs": [asdict(o) for o in outcomes]}, indent=1) + "\n")
    failed = [outcome for outcome in outcomes if not outcome.good]
    worst = max(abs(outcome.difference) / EACH[outcome.unit] for outcome in outcomes)
    print(f"{len(outcomes)} runs, {len(failed)} failed; the largest difference is that of {worst:.2f} requests")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
