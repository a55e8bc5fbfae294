"""Keys that are made at run time, on a real Redis that loses them, and on two gateways that share it and PostgreSQL."""

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sluicegate import app
from sluicegate.config.load import load_text
from sluicegate.directory import PAUSE_S
from support_admin import until
from support_inloop import Bench, config_text, fresh_redis, running
from support_postgres import fresh


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


async def test_what_is_made_at_one_replica_works_at_the_other_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the bus, and before the other looks by itself: the first key of all, one of a tenant that is new there, one whose organization has had
    no limits, one of which it had just found that there is none, and one that was rotated."""
    monkeypatch.setattr("sluicegate.directory.LOOK_S", 60)
    shared = {"ledger": f"sqlite:///{tmp_path}/ledger.db", "records": f"sqlite:///{tmp_path}/records.db"}
    async with running(tmp_path / "one", **shared) as bench:
        bench.whole = False
        loaded = load_text(config_text(tmp_path / "two", bench.mock.base_url, **shared), {})
        async with app.serving(loaded) as (worker, server):
            there, changes = Bench(loaded, worker, server.port, bench.mock), bench.worker.changes
            changes._publish = lambda *_: None
            secrets = iter([f"sk-{n:032d}" for n in range(9)])
            changes._new_secret = lambda: next(secrets)

            async def told(secret: str) -> str:
                return (await there.chat(secret, max_tokens=5)).code

            assert await told(f"sk-{0:032d}") == "invalid_api_key"
            for owner, limits in (("acme", None), ("acme/team", None), ("other", ["1 requests/day"]), ("acme/team", ["1 requests/day"])):
                if (owner, limits) in (("acme/team", None), ("other", ["1 requests/day"])):
                    await changes.create_tenant(owner)
                made = await changes.create_key(owner, "limited" if limits else "free", limits=limits)
                assert [await told(made.secret) for _ in range(2)] == ["200", "budget_exceeded" if limits else "200"], owner
            assert await told(f"sk-{4:032d}") == "invalid_api_key"
            assert await told((await changes.create_key("acme", "guessed")).secret) == "200"
            assert await told((await changes.rotate_key("acme/@guessed", 0)).secret) == "200"


async def test_guesses_cost_the_database_little(tmp_path: Path) -> None:
    """All that come within a moment are answered by one look at what has changed; each secret is looked up once."""
    async with running(tmp_path) as bench:
        bench.whole = False
        await bench.worker.changes.create_key("acme", "new")
        store, asked = bench.worker.directory.store, Counter[str]()
        call = store.call

        async def counted(work: Any, **options: Any) -> Any:
            asked[getattr(work, "func", work).__name__] += 1
            return await call(work, **options)

        store.call = counted  # type: ignore[method-assign]
        began = time.monotonic()
        replies = await asyncio.gather(*(bench.chat(f"sk-{n % 3}") for n in range(60)))
        looks = (time.monotonic() - began) / PAUSE_S
        assert {reply.code for reply in replies} == {"invalid_api_key"}
        assert asked["version"] <= looks + 1 and asked["find"] <= 60
        asked.clear()
        assert {(await bench.chat(f"sk-{n % 3}")).code for n in range(6)} == {"invalid_api_key"}
        assert asked["find"] == 0


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
