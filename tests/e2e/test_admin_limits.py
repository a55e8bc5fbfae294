"""What the admin API tells of limits, and corrections of what was used, where several change or ask at once."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from sluicegate import app
from sluicegate.config.load import load_text
from support_admin import Api, more
from support_inloop import Bench, config_text, fresh_redis, running

LIMIT = "limits/acme/@key:requests:day"


@contextlib.asynccontextmanager
async def two_workers(tmp_path: Path, ledger: str, records: str, limits: str) -> AsyncIterator[tuple[Bench, Bench]]:
    """That share a ledger and records, before one mock provider."""
    options = {"ledger": ledger, "records": records, "limits": limits, "more": more()}
    async with running(tmp_path / "one", **options) as bench:  # type: ignore[arg-type]
        bench.whole = False
        loaded = load_text(config_text(tmp_path / "two", bench.mock.base_url, **options), {})  # type: ignore[arg-type]
        async with app.serving(loaded) as (worker, server):
            yield bench, Bench(loaded, worker, server.port, bench.mock)


@pytest.mark.parametrize("applied", [False, True])
async def test_two_workers_that_take_the_same_away(tmp_path: Path, redis_url: str, records_url: str, applied: bool) -> None:
    """Both have seen it used: one takes it, and the other is told that there is no more, whether the ledger knows of the first one by then or not.
    What is used after that counts, also in a ledger that is made anew."""
    with fresh_redis(redis_url) as (url, client):
        async with two_workers(tmp_path, url, records_url, "[10 requests/day]") as (bench, second_bench):
            here, there = Api(bench), Api(second_bench)
            worker = second_bench.worker
            assert [await here.told("sk-key") for _ in range(3)] == ["200"] * 3
            looked, taken = asyncio.Event(), asyncio.Event()
            peek, settle = worker.ledger.peek, bench.ledger.settle

            async def slow_peek(refs: Any) -> Any:
                reply = await peek(refs)
                looked.set()
                await taken.wait()
                return reply

            async def slow_settle(settlement: Any) -> Any:
                if not applied:
                    taken.set()
                    await second
                return await settle(settlement)

            worker.ledger.peek = slow_peek  # type: ignore[assignment, method-assign]
            bench.ledger.settle = slow_settle  # type: ignore[assignment, method-assign]
            second = asyncio.create_task(there.code("POST", f"{LIMIT}/adjust", {"amount": -3, "reason": "x"}))
            await looked.wait()
            first = await here("POST", f"{LIMIT}/adjust", {"amount": -3, "reason": "x"})
            taken.set()
            bench.ledger.settle = settle  # type: ignore[method-assign]
            assert (first.status, first.json["limit_status"]["used"]) == (200, 0)
            assert await second == "409 below_zero amount"
            assert await here.told("sk-key") == "200"
            await bench.quiet()
            client.flushdb()
            await here.until("sk-key", "200")
            assert (await here("GET", LIMIT)).json["used"] == 2


async def test_two_workers_that_give_the_same_id(tmp_path: Path, redis_url: str, records_url: str) -> None:
    """At once, for two limits: the one that comes second is told, and what was used of its limit stays as it was."""
    with fresh_redis(redis_url) as (url, _):
        async with two_workers(tmp_path, url, records_url, "[10 requests/day, 1000 tokens/day]") as (bench, second_bench):
            here, there = Api(bench), Api(second_bench)
            assert await here.told("sk-key") == "200"
            await bench.quiet()
            tokens = "limits/acme/@key:tokens:day"
            before = (await here("GET", tokens)).json["used"]
            looked, made = asyncio.Event(), asyncio.Event()
            peek = second_bench.worker.ledger.peek

            async def slow_peek(refs: Any) -> Any:
                looked.set()
                await made.wait()
                return await peek(refs)

            second_bench.worker.ledger.peek = slow_peek  # type: ignore[assignment, method-assign]
            second = asyncio.create_task(there.code("POST", f"{tokens}/adjust", {"id": "mine", "amount": 5, "reason": "x"}))
            await looked.wait()
            first = await here("POST", f"{LIMIT}/adjust", {"id": "mine", "amount": 5, "reason": "x"})
            made.set()
            assert (first.status, first.json["limit_status"]["used"], await second) == (200, 6, "409 adjustment_exists id")
            assert (await here("GET", tokens)).json["used"] == before


async def test_a_limit_that_a_key_gets_is_shown_with_what_was_used(tmp_path: Path) -> None:
    """Before its next request, wherever it is looked at."""
    async with running(tmp_path, more=more()) as bench:
        bench.whole = False
        api = Api(bench)
        made = await api.key()
        assert [await api.told(made["secret"]) for _ in range(3)] == ["200"] * 3
        for n, path in enumerate(("keys/acme/@k/status", "limits?key=acme/@k", "limits", "limits/acme/@k:requests:month")):
            await api("PATCH", "keys/acme/@k/limits", {"limits": [f"{n + 4} requests/{'month' if n == 3 else 'week'}"]})
            if n < 3:
                await api("PATCH", "keys/acme/@k/limits", {"limits": [f"{n + 4} requests/{('day', 'hour', 'lifetime')[n]}"]})
            told = (await api("GET", path)).json
            (shown,) = told.get("limits") or told.get("data") or [told]
            assert (shown["used"], shown["limit"]) == (3, n + 4), path


async def test_all_limits_come_in_pages(tmp_path: Path) -> None:
    """Of the file, of tenants, and of keys that were made through the API: each once, whatever the page."""
    tenants = "\n  acme: {limits: [5 requests/day], keys: [{name: k1-b, key: sk-b, limits: [5 requests/day]}]}\n  z: {limits: [$5/day]}"
    async with running(tmp_path, tenants=tenants, more=more(), deployment=", limits: [9 requests/minute]") as bench:
        bench.whole = False
        api = Api(bench)
        for name in ("k1", "k1-a", "k2", "k10"):
            await api.key(name, limits=["7 requests/day", "$3/month"])
        await api.key("none")
        await api.key("sub", owner="acme/@k1", limits=["2 requests/day"])
        made = {f"acme/@{name}:{limit}" for name in ("k1", "k1-a", "k2", "k10") for limit in ("requests:day", "usd:month")}
        file = {"acme:requests:day", "acme/@k1-b:requests:day", "z:usd:day", "deployment:mock/mock-chat:requests:bucket-1m"}
        for size in (1, 2, 3, 100):
            seen: list[str] = []
            after: str | None = ""
            while after is not None:
                page = (await api("GET", f"limits?limit={size}&after={quote(after, safe='')}")).json
                seen += [one["id"] for one in page["data"]]
                after = page["next"]
            assert len(seen) == len(set(seen)) and set(seen) == made | file | {"acme/@k1/@sub:requests:day"}, size
