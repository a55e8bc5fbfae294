"""Keys that are made at run time, on a real Redis that loses them, and on two gateways that share it and PostgreSQL."""

import asyncio
import time
from pathlib import Path
from typing import Any

from sluicegate import app
from sluicegate.config.load import load_text
from support_inloop import Bench, config_text, fresh_redis, running
from support_postgres import fresh


async def until(ask: Any, wanted: Any) -> float:
    """How long it took to be so."""
    began = time.monotonic()
    while (found := await ask()) != wanted:
        assert time.monotonic() - began < 10, found
        await asyncio.sleep(0.02)
    return time.monotonic() - began


async def test_keys_of_an_organization_without_limits_are_seeded(tmp_path: Path, redis_url: str) -> None:
    """Its tree has no counter but theirs; a Redis that is flushed gets them back with what they had used."""
    with fresh_redis(redis_url) as (url, client):
        async with running(tmp_path, ledger=url) as bench:

            async def status(secret: str) -> int:
                return (await bench.chat(secret, max_tokens=5)).status

            made = await bench.worker.changes.create_key("acme", "new", limits=["3 requests/day"])
            assert [await status(made.secret) for _ in range(2)] == [200, 200]
            await bench.quiet()
            client.flushdb()
            await until(lambda: status(made.secret), 200)
            assert await status(made.secret) == 429
            bench.whole = False


async def test_case_100_and_125_on_two_replicas(tmp_path: Path, redis_url: str, postgres_url: str) -> None:
    """Ten sub-keys have the limit of their key together, whichever replica they ask; the key that is blocked at one is refused at the other."""
    records = fresh(postgres_url)
    with fresh_redis(redis_url) as (url, _):
        async with running(tmp_path / "one", ledger=url, records=records) as bench:
            loaded = load_text(config_text(tmp_path / "two", bench.mock.base_url, ledger=url, records=records), {})
            async with app.serving(loaded) as (worker, server):
                replicas = [bench, Bench(loaded, worker, server.port, bench.mock)]

                async def told(replica: int, secret: str) -> str:
                    return (await replicas[replica].chat(secret, max_tokens=5)).code

                changes = bench.worker.changes
                await changes.create_key("acme", "top", limits=["20 requests/day"])
                secrets = [(await changes.create_key("acme/@top", f"sub{n}")).secret for n in range(10)]
                await until(lambda: told(1, secrets[0]), "200")
                answers = await asyncio.gather(*(told(n % 2, secrets[n % 10]) for n in range(25)))
                assert answers.count("200") == 19 and set(answers) <= {"200", "budget_exceeded", "budget_busy"}
                await changes.block_key("acme/@top")
                assert await told(0, secrets[0]) == "key_blocked"
                assert await until(lambda: told(1, secrets[0]), "key_blocked") < 1.5
                bench.whole = False
