"""What admit plus settle of a request costs the gateway's process, and the Redis server, with one to eight limits.

    python bench/ledger_cost.py memory://
    python bench/ledger_cost.py sqlite:////tmp/ledger.db --processes 2
    python bench/ledger_cost.py redis://127.0.0.1:6379/0 --tasks 64 --seconds 5

Each process runs `--tasks` tasks that admit and settle in a closed loop, so that calls meet in one turn of the loop as they do under load.
"""

import argparse
import asyncio
import json
import multiprocessing
import time
from typing import Any

import redis
import uvloop

from sluicegate.core.claims import Admission, Ref, RefSet, Settlement
from sluicegate.ledger.contract import Ledger, TreeState
from sluicegate.ledger.memory import MemoryLedger
from sluicegate.ledger.sqlite import SqliteLedger, system_clock_ms

DAY_MS = 86_400_000
AMOUNTS = (1, 0, 148, 0, 132, 1000, 132 * 150, 600_000)  # fixed and rate of requests, tokens/minute, tokens/day, usd/month
ACTUAL = (1, 117, 117, 60_000)


def ledger_of(url: str) -> Ledger:
    if url.startswith("memory"):
        return MemoryLedger(system_clock_ms)
    if url.startswith("sqlite"):
        return SqliteLedger(url)
    from sluicegate.ledger.redis import RedisLedger  # noqa: PLC0415

    return RedisLedger(url)


def refs_of(key: int, limits: int) -> RefSet:
    """A key's requests and tokens per minute, its team's tokens per day, its organization's dollars; repeated for more than four."""
    day_ms = system_clock_ms() // DAY_MS * DAY_MS
    refs = []
    for i in range(limits):
        prefix = f"sg1:{{bench}}:c:bench/team-{i // 4}"
        kinds = (
            Ref(f"{prefix}/@key{key}:requests:bucket60s", "b", 10**9, gain=10**6, per_ms=1),
            Ref(f"{prefix}/@key{key}:tokens:bucket60s", "b", 10**11, gain=10**8, per_ms=1),
            Ref(f"{prefix}:tokens:day:2026-11-30", "w", 2**50, day_ms, day_ms + 2 * DAY_MS),
            Ref(f"{prefix}:usd:month:2026-11", "w", 2**51, day_ms, day_ms + 9 * DAY_MS),
        )
        refs.append(kinds[i % 4])
    return RefSet("bench", refs)


async def drive(ledger: Ledger, name: str, limits: int, until: float) -> int:
    refs = refs_of(hash(name) % 16, limits)
    amounts, actual = (AMOUNTS * 2)[: 2 * limits], (ACTUAL * 2)[:limits]
    done = 0
    while time.monotonic() < until:
        hold_id = f"req_{name}{done:08d}.0"
        reply = await ledger.admit(Admission(hold_id, refs, amounts, 16, 200, 200, 30_000, f"{hold_id}|bench/team-0/@key|mock/model"))
        if reply.status != "granted":
            raise SystemExit(f"not granted: {reply}")
        await asyncio.sleep(0)
        await ledger.settle(Settlement(hold_id, refs, actual))
        done += 1
    return done


async def measure(options: argparse.Namespace, process: int) -> tuple[int, float]:
    ledger = ledger_of(options.url)
    await ledger.open()
    seq = await ledger.seq("bench", "first") or await ledger.seed("bench", "first", ())
    ledger.trees["bench"] = TreeState("first", seq, open=True)
    cpu, until = time.process_time(), time.monotonic() + options.seconds
    done = await asyncio.gather(*(drive(ledger, f"{process:02d}{task:04d}", options.limits, until) for task in range(options.tasks)))
    cpu = time.process_time() - cpu
    await ledger.close()
    return sum(done), cpu


def server_cpu_s(url: str) -> float:
    """CPU seconds that the Redis server has used since its start; 0 for a ledger without a server."""
    if not url.startswith("redis"):
        return 0.0
    with redis.Redis.from_url(url) as client:
        facts = client.info("cpu")
    return float(facts["used_cpu_user"] + facts["used_cpu_sys"])


def run(work: tuple[argparse.Namespace, int]) -> tuple[int, float]:
    options, process = work
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(measure(options, process))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--limits", type=int, choices=range(1, 9), default=4)
    parser.add_argument("--tasks", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    server_s = server_cpu_s(options.url)
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        results = pool.map(run, [(options, process) for process in range(options.processes)])
    server_s = server_cpu_s(options.url) - server_s
    pairs, cpu_s = sum(done for done, _ in results), sum(cpu for _, cpu in results)
    report: dict[str, Any] = {
        **vars(options),
        "pairs": pairs,
        "pairs_per_s": round(pairs / options.seconds),
        "cpu_us_per_pair": round(cpu_s / pairs * 1e6, 1),
        "server_cpu_us_per_pair": round(server_s / pairs * 1e6, 1),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
