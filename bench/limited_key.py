"""A provider's key that is limited, with an idle local deployment behind it: is anybody refused whom the other could have answered?

    python bench/limited_key.py                    4,000 requests in 60 s, a key of 400 requests a minute; a minute for each variant
    python bench/limited_key.py --variants configured --count 200 --seconds 3 --rpm 60
    python bench/limited_key.py --json out.json

The mock of the first deployment lets a credential make so many requests a minute and refuses the rest with 429. Variants, by how a gateway may know:
`configured` (it stands in the deployment's `limits:`, and answers tell nothing), `openai`, `anthropic` (answers and 429s carry the vendor's headers),
`bare` (a 429 and nothing else). Half of the requests are streams. Per variant: what clients got, who answered, how many calls the provider refused,
percentiles of the time to the first byte, and what the ledger counts beyond what the mocks produced.

Exits 1 if a client got anything but its answer, or the ledger does not count what was produced.
"""

import argparse
import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import structlog

from clients import open_loop, percentile
from overshoot import machine
from stand import Books, Shape, Stand, loaded, stats, wait_idle

TOKENS = 16
MOCK = ("--ttft", "10ms", "--tpot", "1ms", "--completion", str(TOKENS))
RESILIENCE = {"retries": 1, "max_wait": "2s", "backoff": "200ms", "cooldown": "10s"}
PATIENCE_S = 20.0
NOTHING = {"requests": 0, "errors": 0, "tokens": 0}
VARIANTS = {"configured": "none", "openai": "openai", "anthropic": "anthropic", "bare": "none"}  # to the headers of the answers


def bodies(variant: str) -> list[bytes]:
    """A unary request and a stream."""
    fields = {"model": variant, "user": variant, "messages": [{"role": "user", "content": "Go on."}], "max_tokens": TOKENS}
    return [json.dumps(fields | more, separators=(",", ":")).encode() for more in ({}, {"stream": True})]


def shape(variants: Sequence[str], rpm: int, replicas: int) -> Shape:
    """A model, a limited provider and a tenant for each variant; the local provider is the same for all."""
    mocks = {variant: ("--rpm", str(rpm), "--limit-headers", VARIANTS[variant], *MOCK) for variant in variants}
    known = {variant: {"limits": [f"{rpm} requests/minute"]} if variant == "configured" else {} for variant in variants}
    local = {"provider": "local", "model": "m"}
    return Shape(
        tenants={name: {"keys": [{"name": "key", "key": f"sk-{name}", "limits": ["1000M tokens/day", "100M requests/day"]}]} for name in variants},
        mocks={**mocks, "local": MOCK},
        models={variant: {"deployments": [{"provider": variant, "model": "m", **known[variant]}, local]} for variant in variants},
        more={"resilience": RESILIENCE},
        replicas=replicas,
    )


async def measure(variant: str, stand: Stand, options: argparse.Namespace) -> dict[str, Any]:
    """One variant."""
    load_before = os.getloadavg()[0]
    rate = options.count / options.seconds
    found = await open_loop(stand.urls, f"sk-{variant}", bodies(variant), rate=rate, count=options.count, patience_s=PATIENCE_S)
    wait_idle(list(stand.mock_urls.values()))
    paid, local = (stats(stand.mocks[name].url)["callers"].get(variant, NOTHING) for name in (variant, "local"))
    used = await Books(loaded(stand.config("books", stand.redis.url))).used(f"sg1:{{{variant}}}:", ":tokens:day")
    return {
        "variant": variant,
        "load_before": round(load_before, 2),
        "requests": found.requests,
        "outcomes": dict(found.outcomes),
        "failed": found.failed,
        "answered_by_paid": paid["requests"] - paid["errors"],
        "answered_by_local": local["requests"],
        "refused_by_paid": paid["errors"],
        "first_byte_p50_ms": percentile(found.first_ms, 50),
        "first_byte_p99_ms": percentile(found.first_ms, 99),
        "first_byte_max_ms": percentile(found.first_ms, 100),
        "late_p99_ms": percentile(found.late_ms, 99),
        "ledger_minus_produced_tokens": used - paid["tokens"] - local["tokens"],
    }


def shown(row: dict[str, Any]) -> str:
    """A row in words."""
    return (
        f"{row['variant']:10} {row['requests']} requests, {row['failed']} failed: {row['outcomes']}; load before {row['load_before']}\n"
        f"           answered by the key {row['answered_by_paid']}, by the local one {row['answered_by_local']}"
        f"; the provider refused {row['refused_by_paid']}\n"
        f"           first byte p50 {row['first_byte_p50_ms']} ms, p99 {row['first_byte_p99_ms']} ms"
        f"; ledger minus produced {row['ledger_minus_produced_tokens']} tokens"
    )


def main(arguments: list[str] | None = None) -> int:
    """Runs the variants and prints what came of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=4000, help="requests")
    parser.add_argument("--seconds", type=float, default=60.0, help="in which they arrive")
    parser.add_argument("--rpm", type=int, default=400, help="requests per minute that the key may make")
    parser.add_argument("--replicas", type=int, default=1, help="gateways on one ledger")
    parser.add_argument("--variants", default=",".join(VARIANTS), help="of these, separated by commas")
    parser.add_argument("--json", type=Path, help="write the rows here, with the machine and the parameters")
    options = parser.parse_args(arguments)
    variants = options.variants.split(",")
    rows = []
    with Stand(shape(variants, options.rpm, options.replicas)) as stand:
        for variant in variants:
            rows.append(asyncio.run(measure(variant, stand, options)))
            print(shown(rows[-1]), flush=True)
    if options.json:
        chosen = {name: getattr(options, name) for name in ("count", "seconds", "rpm", "replicas")}
        parameters = {**chosen, "mock": MOCK, "resilience": RESILIENCE, "ledger": "redis"}
        report = {"what": "limited key", "date": time.strftime("%Y-%m-%d"), "machine": machine(), "parameters": parameters, "rows": rows}
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if any(row["failed"] or row["ledger_minus_produced_tokens"] for row in rows) else 0


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))  # our looks at the ledger
    sys.exit(main())
