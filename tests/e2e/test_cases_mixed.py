"""Everything at once: many clients that leave, reset, ask for several choices or too much, against upstreams that fail in every way, on one budget.

The provider's own count is the truth: it never exceeds the budget, and every token of it is charged. A failing seed is run again by its number.
"""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from support_inloop import Bench, fresh_redis, running

BUDGET = 12_000
KNOWN = {
    "200", "budget_exceeded", "budget_busy", "request_too_large", "upstream_error", "upstream_timeout", "upstream_rate_limited",
    "upstream_unavailable", "unknown_parameter",
}  # fmt: skip
FAST = "resilience: {timeouts: {first_byte: 150ms, idle: 150ms, write: 200ms}}\nbudget: {estimator: fixed, fixed_output: 40}"


def options(dice: random.Random) -> dict[str, Any]:
    """How the upstream answers one request."""
    chosen: dict[str, Any] = {
        "completion": dice.choice([1, 5, 40, 120, 400]),
        "tpot": dice.choice([0, 0, 0.2, 2]),
        "chunk": dice.choice([1, 1, 4, 0]),
        "usage": dice.choice(["normal", "normal", "none", "null", "partial", "cumulative", "with_choices", "unasked", "zero", "zero_input"]),
        "done": dice.random() < 0.9,
        "dense": dice.random() < 0.1,
        "reasoning": dice.choice(["none", "none", "visible", "both"]),
        "early_headers": dice.random() < 0.3,
    }
    if dice.random() < 0.15:
        chosen |= dice.choice(
            [
                {"cut_after": 3}, {"cut_after": 0}, {"cut_after": 7, "cut": "rst"}, {"stall_after": 4}, {"stall_after": 0}, {"status": 500},
                {"status": 429},
                {"status": 422, "code": "unknown_parameter"}, {"html": True, "status": 502}, {"error_in_200": 503}, {"ttft": 300},
            ]
        )  # fmt: skip
    return chosen


async def client(bench: Bench, dice: random.Random, calls: int) -> None:
    for _ in range(calls):
        fields: dict[str, Any] = {"stream": dice.random() < 0.7, "n": dice.choice([1, 1, 1, 2, 5]), "max_tokens": dice.choice([1, 20, 100, 400, ...])}
        if dice.random() < 0.3:
            fields["stream_options"] = {"include_usage": dice.random() < 0.5}
        connection = await bench.open(model="two", messages=[{"role": "user", "content": "Tell me"}], mock=options(dice), **fields)
        leaves = dice.random()
        if leaves < 0.16:
            await asyncio.sleep(dice.choice([0, 0.001, 0.01, 0.05]))
            (connection.reset if leaves < 0.08 else connection.close)()
            continue
        answer = await connection.rest()
        if answer.status == 200 and not (fields["stream"] and not answer.done):
            assert answer.clean
        elif answer.status != 200:
            assert answer.code in KNOWN, answer.body
        connection.close()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", ["memory", "sqlite", "redis"])
@pytest.mark.parametrize("extend", [False, True], ids=["capped", "extended"])
async def test_nobody_gets_more_than_the_budget(tmp_path: Path, redis_url: str, kind: str, extend: bool, seed: int) -> None:
    """Twelve clients of mixed manners until the money is gone: truth <= budget, charged >= truth, nothing held, nothing in flight."""
    dice = random.Random(seed * 31 + extend)
    on = "on" if extend else "off"
    settings = {
        "providers": f"  second: {{provider: mock, base_url: BASE_URL, tokenizer: o200k_base, extend: {on}}}",
        "models": """
  two:
    deployments:
      - {provider: mock, model: one, price: {input: 0.5, output: 1.0}, limits: [40 concurrent]}
      - {provider: second, model: two, price: {input: 0.5, output: 1.0}}
    max_output: 500""",
    }
    limits = f"[{BUDGET} tokens/day, $10/day, 1000 requests/minute, 100 concurrent]"
    with fresh_redis(redis_url) as (url, _):
        ledger = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/ledger.db", "redis": url}[kind]
        async with running(tmp_path, ledger=ledger, limits=limits, extend=extend, more=FAST, **settings) as bench:
            await asyncio.gather(*(client(bench, random.Random(dice.random()), 9) for _ in range(12)))
            bench.slack = 10 * BUDGET  # where nobody says what was used, the most that it may have been is charged
