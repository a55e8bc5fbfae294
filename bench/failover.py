"""What a failing provider costs: streams through one worker from a primary to a secondary, while the primary fails.

    python bench/failover.py                      all scenes, about two minutes
    python bench/failover.py --quick              shorter ones, under 30 seconds
    python bench/failover.py --json out.json

Streaming requests arrive at a fixed rate (open loop), 32 tokens each. Scenes: `well` (nothing fails), `refused` (503 on every call of the primary),
`killed` (SIGKILL of the primary in the middle of the run). Per scene: how many failed, and how; how often the primary was called; percentiles of the
time to the first byte, and of what was added to it beside the scene `well`. A request that fails after its first byte must end with an error event;
one that fails before is a breach, and the exit code 1.
"""

import argparse
import asyncio
import json
import os
import platform
import sys
from collections import Counter
from pathlib import Path
from signal import SIGKILL
from typing import Any

from clients import Ask, Caller
from stand import Shape, Stand, set_fault, stats

TOKENS = 32
MOCK = ("--chunk", "4", "--ttft", "20ms", "--tpot", "2ms", "--completion", str(TOKENS))
BODY = json.dumps({"model": "chat", "messages": [{"role": "user", "content": "Go on."}], "max_tokens": TOKENS, "stream": True}, separators=(",", ":"))
RESILIENCE = {"retries": 0, "breaker": {"failures": 5, "pause": "2s"}}
PATIENCE_S = 20.0
SHAPE = Shape(
    tenants={"bench": {"keys": [{"name": "key", "key": "sk-bench", "limits": ["1000M tokens/day", "100M requests/day"]}]}},
    mocks={"primary": MOCK, "secondary": MOCK},
    models={"chat": {"deployments": [{"provider": "primary", "model": "m"}, {"provider": "secondary", "model": "m"}]}},
    more={"resilience": RESILIENCE},
    replicas=1,
)


async def _load(url: str, rate: int, seconds: float) -> tuple[Counter[str], list[float]]:
    """Outcomes, and times to the first byte in ms. An outcome `error event` is a stream that ended as it must after its first byte."""
    loop, outcomes, first_ms = asyncio.get_running_loop(), Counter[str](), list[float]()
    idle: list[Caller] = []

    async def one(number: int) -> None:
        caller = idle.pop() if idle else Caller([url], 0, "sk-bench")
        found = await caller.ask(Ask(BODY.encode()), PATIENCE_S)
        wire = caller.wire
        if wire is not None and wire.first_s:
            first_ms.append((wire.first_s - wire.sent_s) * 1000)
        if found == "broken" and wire is not None and b'"error":' in wire.tail:
            found = "error event"
        outcomes[found] += 1
        if found == "ok":
            idle.append(caller)
        else:
            caller.close()

    started, tasks = loop.time(), []
    for number in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, started + number / rate - loop.time()))
        tasks.append(loop.create_task(one(number)))
    await asyncio.gather(*tasks)
    for caller in idle:
        caller.close()
    return outcomes, first_ms


async def _scene(name: str, rate: int, seconds: float) -> dict[str, Any]:
    with Stand(SHAPE) as stand:
        primary = stand.mocks["primary"]
        if name == "refused":
            set_fault(primary.url, status=503, count=0)
        elif name == "killed":
            asyncio.get_running_loop().call_later(seconds / 2, primary.send, SIGKILL)
        outcomes, first_ms = await _load(stand.urls[0], rate, seconds)
        called = stats(primary.url)["total"]["requests"] if name != "killed" else None
        first_ms.sort()
        return {
            "scene": name,
            "requests": sum(outcomes.values()),
            "outcomes": dict(outcomes),
            "failed": sum(outcomes.values()) - outcomes["ok"],
            "failed_before_first_byte": sum(n for how, n in outcomes.items() if how not in ("ok", "error event")),
            "calls_of_primary": called,
            "first_byte_p50_ms": round(first_ms[len(first_ms) // 2], 2),
            "first_byte_p99_ms": round(first_ms[len(first_ms) * 99 // 100], 2),
        }


def main() -> int:
    """Runs the scenes and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="5 seconds per scene instead of 20")
    parser.add_argument("--rate", type=int, default=200, help="requests per second")
    parser.add_argument("--json", type=Path, help="write the rows here, with the machine and the parameters")
    options = parser.parse_args()
    seconds = 5.0 if options.quick else 20.0
    rows: list[dict[str, Any]] = []
    for name in ("well", "refused", "killed"):
        row = asyncio.run(_scene(name, options.rate, seconds))
        rows.append(row)
        row["added_p99_ms"] = round(row["first_byte_p99_ms"] - rows[0]["first_byte_p99_ms"], 2)
        before = row["failed_before_first_byte"]
        print(f"{name:8} {row['requests']} requests, {row['failed']} failed, {before} of them before their first byte: {row['outcomes']}")
        print(f"         first byte p50 {row['first_byte_p50_ms']} ms, p99 {row['first_byte_p99_ms']} ms, {row['added_p99_ms']} ms added", flush=True)
    if options.json:
        parameters = {"rate": options.rate, "seconds": seconds, "mock": MOCK, "resilience": RESILIENCE}
        options.json.write_text(
            json.dumps(
                {
                    "what": "failover",
                    "machine": {"system": platform.platform(), "python": platform.python_version(), "cores": os.cpu_count()},
                    "parameters": parameters,
                    "rows": rows,
                },
                indent=1,
            )
            + "\n"
        )
    breached = any(row["failed_before_first_byte"] for row in rows) or any(row["failed"] for row in rows if row["scene"] != "killed")
    return 1 if breached else 0


if __name__ == "__main__":
    sys.exit(main())
