"""What a failing provider costs: streams through one worker from a primary to a secondary, while the primary fails.

    python bench/failover.py                      all scenes, about two minutes
    python bench/failover.py --quick              shorter ones, under 30 seconds
    python bench/failover.py --json out.json

Streaming requests arrive at a fixed rate (open loop), 32 tokens each. Scenes: `well` (nothing fails), `refused` (503 on every call of the primary),
`killed` (SIGKILL of the primary in the middle of the run). Per scene: how many failed, and how; how often the primary was called; percentiles of the
time to the first byte and to the last, and of what was added to them beside the scene `well`; what the ledger counts beyond what the mocks produced.

Exits 1 if a request failed that had not had its first byte, if any failed in another scene than `killed`, if a stream that failed did not end with an
error event, or if the ledger counts less than was produced (what a killed mock had produced died with it: there only the other's count is compared).
A row whose requests themselves came late (`late_p99_ms`) measures the machine.
"""

import argparse
import asyncio
import json
import logging
import os
import sys
import time
from pathlib import Path
from signal import SIGKILL
from typing import Any

import structlog

from clients import open_loop, percentile
from overshoot import machine
from stand import Books, Shape, Stand, loaded, set_fault, stats, wait_idle

TOKENS = 32
MOCK = ("--chunk", "4", "--ttft", "20ms", "--tpot", "2ms", "--completion", str(TOKENS))
BODY = json.dumps({"model": "chat", "messages": [{"role": "user", "content": "Go on."}], "max_tokens": TOKENS, "stream": True}, separators=(",", ":"))
RESILIENCE = {"retries": 0, "breaker": {"failures": 5, "pause": "2s"}}
PATIENCE_S = 20.0
SCENES = ("well", "refused", "killed")
SHAPE = Shape(
    tenants={"bench": {"keys": [{"name": "key", "key": "sk-bench", "limits": ["1000M tokens/day", "100M requests/day"]}]}},
    mocks={"primary": MOCK, "secondary": MOCK},
    models={"chat": {"deployments": [{"provider": "primary", "model": "m"}, {"provider": "secondary", "model": "m"}]}},
    more={"resilience": RESILIENCE},
    replicas=1,
)


async def scene(name: str, rate: float, seconds: float) -> dict[str, Any]:
    """One run, on a stand of its own."""
    load_before = os.getloadavg()[0]
    with Stand(SHAPE) as stand:
        primary, secondary = stand.mocks["primary"], stand.mocks["secondary"]
        if name == "refused":
            set_fault(primary.url, status=503, count=0)
        elif name == "killed":
            asyncio.get_running_loop().call_later(seconds / 2, primary.send, SIGKILL)
        found = await open_loop(stand.urls, "sk-bench", [BODY.encode()], rate=rate, count=int(rate * seconds), patience_s=PATIENCE_S)
        alive = [secondary.url] if name == "killed" else [primary.url, secondary.url]
        wait_idle(alive)
        produced = sum(stats(url)["total"]["tokens"] for url in alive)
        used = await Books(loaded(stand.config("books", stand.redis.url))).used(":tokens:day")
        return {
            "scene": name,
            "load_before": round(load_before, 2),
            "requests": found.requests,
            "outcomes": dict(found.outcomes),
            "failed": found.failed,
            "failed_before_first_byte": found.failed_before_first_byte,
            "calls_of_primary": stats(primary.url)["total"]["requests"] if name != "killed" else None,
            "first_byte_p50_ms": percentile(found.first_ms, 50),
            "first_byte_p99_ms": percentile(found.first_ms, 99),
            "first_byte_max_ms": percentile(found.first_ms, 100),
            "whole_p50_ms": percentile(found.whole_ms, 50),
            "whole_p99_ms": percentile(found.whole_ms, 99),
            "late_p99_ms": percentile(found.late_ms, 99),
            "ledger_minus_produced_tokens": used - produced,
        }


def added(row: dict[str, Any], well: dict[str, Any]) -> dict[str, float]:
    """What came to the times of a scene beside the one in which nothing failed."""
    names = ("first_byte_p50_ms", "first_byte_p99_ms", "whole_p50_ms", "whole_p99_ms")
    return {f"added_{name}": round(row[name] - well[name], 2) for name in names}


def wrong_with(row: dict[str, Any]) -> list[str]:
    """What a row shows that must not be."""
    wrong = []
    if row["failed_before_first_byte"]:
        wrong.append(f"{row['failed_before_first_byte']} failed before their first byte, or without an error event")
    if row["failed"] and row["scene"] != "killed":
        wrong.append(f"{row['failed']} failed")
    if row["ledger_minus_produced_tokens"] < 0:
        wrong.append(f"the ledger counts {-row['ledger_minus_produced_tokens']} tokens less than were produced")
    return wrong


def main(arguments: list[str] | None = None) -> int:
    """Runs the scenes and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="5 seconds per scene instead of 20")
    parser.add_argument("--rate", type=float, default=200, help="requests per second")
    parser.add_argument("--seconds", type=float, default=0.0, help="per scene")
    parser.add_argument("--json", type=Path, help="write the rows here, with the machine and the parameters")
    options = parser.parse_args(arguments)
    seconds = options.seconds or (5.0 if options.quick else 20.0)
    rows: list[dict[str, Any]] = []
    for name in SCENES:
        row = asyncio.run(scene(name, options.rate, seconds))
        rows.append(row)
        row |= added(row, rows[0])
        row["wrong"] = wrong_with(row)
        print(f"{name:8} {row['requests']} requests, {row['failed']} failed, {row['failed_before_first_byte']} of them before their first byte")
        print(f"         {row['outcomes']}, calls of the primary: {row['calls_of_primary']}, load before {row['load_before']}")
        print(f"         first byte p50 {row['first_byte_p50_ms']} ms (+{row['added_first_byte_p50_ms']}), p99 {row['first_byte_p99_ms']} ms", end="")
        print(f" (+{row['added_first_byte_p99_ms']}); arrivals late by {row['late_p99_ms']} ms at p99 {'; '.join(row['wrong'])}", flush=True)
    if options.json:
        parameters = {"rate": options.rate, "seconds": seconds, "mock": MOCK, "resilience": RESILIENCE, "workers": 1, "ledger": "redis"}
        report = {"what": "failover", "date": time.strftime("%Y-%m-%d"), "machine": machine(), "parameters": parameters, "rows": rows}
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if any(row["wrong"] for row in rows) else 0


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))  # our looks at the ledger
    sys.exit(main())
