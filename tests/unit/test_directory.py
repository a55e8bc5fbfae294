"""Keys and tenants that are made at run time: a whole gateway in this loop, and another on the same records and ledger where one is needed."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select, text

from sluicegate import app
from sluicegate.app import Worker
from sluicegate.config.fields import ConfigError
from sluicegate.config.load import load_text
from sluicegate.directory import Directory
from sluicegate.directory_changes import Changes, FromFile
from sluicegate.records import directory as tables
from sluicegate.records.directory_rows import Missing, Taken
from sluicegate.records.rows import RecordsUnavailable
from support_inloop import Bench, config_text, running
from support_time import undisturbed


@contextlib.asynccontextmanager
async def bench_of(directory: Path, **settings: Any) -> AsyncIterator[tuple[Bench, Changes]]:
    async with running(directory, **settings) as bench:
        yield bench, bench.worker.changes
        bench.whole = False  # keys that are made here are not among those that the audit knows


async def status(bench: Bench, secret: str, **fields: Any) -> int:
    return (await bench.chat(secret, max_tokens=5, **fields)).status


async def code(bench: Bench, secret: str, **fields: Any) -> str:
    return (await bench.chat(secret, max_tokens=5, **fields)).code


async def test_a_key_is_made_and_used(tmp_path: Path) -> None:
    """Its secret is shown once and kept as a digest; its tenant's limits bind it, and its own; it sees its models."""
    async with bench_of(tmp_path, org="[1000 tokens/day]") as (bench, changes):
        made = await changes.create_key("acme", "new", limits=["2 requests/day"], models=["chat"], metadata={"team": "x"})
        assert made.before is None and made.after is not None
        assert (made.after["id"], made.after["metadata"], made.after["secrets"][0]["last4"]) == ("acme/@new", {"team": "x"}, made.secret[-4:])
        assert [await status(bench, made.secret) for _ in range(3)] == [200, 200, 429]
        assert await code(bench, made.secret, model="free") == "model_not_found"
        names = [limit["name"] for limit in (await bench.get("/v1/usage", made.secret)).json["limits"]]
        assert names == ["organization acme tokens/day", "key new requests/day"]
        assert bench.record.key_id == "acme/@new"
        shown = await changes.get_key("acme/@new")
        assert made.secret not in repr((shown, await changes.list_keys()))
        assert (await changes.list_keys("acme"))[0] == shown and await changes.list_keys("acm") == []
        assert await status(bench, "sk-key") == 200


async def test_case_125_sub_keys_share_the_limit_of_their_key(tmp_path: Path) -> None:
    """Ten sub-keys of a key with a dollar limit have that limit together; so have those of a key of the file, and keys below sub-keys."""
    async with bench_of(tmp_path, limits="[10 requests/day]") as (bench, changes):
        above = await changes.create_key("acme", "top", limits=["7 requests/day"])
        for parent, most in (("acme/@top", 7), ("acme/@key", 10)):
            secrets = [(await changes.create_key(parent, f"sub{n}")).secret for n in range(4)]
            secrets.append((await changes.create_key(f"{parent}/@sub0", "deep")).secret)
            statuses = [await status(bench, secrets[n % 5]) for n in range(most + 3)]
            assert statuses == [200] * most + [429] * 3
        assert await status(bench, above.secret) == 429
        await changes.delete_key("acme/@top")
        assert await code(bench, secrets[0]) == "budget_exceeded"
        assert [key["id"] for key in await changes.list_keys("acme/@top")] == []


async def test_case_100_blocked_rotated_and_deleted_on_every_replica(tmp_path: Path) -> None:
    """Within a second elsewhere too, without the bus; an old secret does until its grace is over."""
    clock = [app.time_ms()]
    async with bench_of(tmp_path, ledger=f"sqlite:///{tmp_path}/ledger.db", clock=lambda: clock[0]) as (bench, changes):
        loaded = load_text(config_text(tmp_path, bench.mock.base_url, ledger=f"sqlite:///{tmp_path}/ledger.db"), {})
        async with app.serving(loaded) as (other, server):
            changes._publish = lambda *_: None
            there = Bench(loaded, other, server.port, bench.mock)
            made = await changes.create_key("acme", "new")
            await until(lambda: status(there, made.secret), 200)
            await changes.block_key("acme/@new")
            assert await code(bench, made.secret) == "key_blocked"
            assert await until(lambda: code(there, made.secret), "key_blocked") < 1.5
            await changes.block_key("acme/@new", blocked=False)
            rotated = await changes.rotate_key("acme/@new", grace_ms=60_000)
            assert rotated.after is not None and [bool(one["ends_ms"]) for one in rotated.after["secrets"]] == [True, False]
            assert [await status(bench, secret) for secret in (made.secret, rotated.secret)] == [200, 200]
            await until(lambda: status(there, made.secret), 200)
            clock[0] += 60_000
            assert (await code(bench, made.secret), await status(bench, rotated.secret)) == ("key_expired", 200)
            await changes.delete_key("acme/@new")
            assert await code(bench, rotated.secret) == "invalid_api_key"
            assert await until(lambda: code(there, rotated.secret), "invalid_api_key") < 1.5


async def until(ask: Any, wanted: Any) -> float:
    """How long it took to be so."""
    began = undisturbed()
    while await ask() != wanted:
        assert undisturbed() - began < 10
        await asyncio.sleep(0.02)
    return undisturbed() - began


async def test_what_binds_a_key_beside_limits(tmp_path: Path) -> None:
    """Networks, an end, and what its tenant or key above is bound by."""
    clock = [app.time_ms()]
    async with bench_of(tmp_path, clock=lambda: clock[0]) as (bench, changes):
        far = await changes.create_key("acme", "far", cidr=["192.0.2.0/24"])
        near = await changes.create_key("acme", "near", cidr=["127.0.0.0/8"], expires_ms=clock[0] + 1000)
        below = await changes.create_key("acme/@near", "below")
        assert await code(bench, far.secret) == "address_not_allowed"
        assert [await status(bench, one.secret) for one in (near, below)] == [200, 200]
        await changes.block_key("acme/@near")
        assert [await code(bench, one.secret) for one in (near, below)] == ["key_blocked"] * 2
        await changes.block_key("acme/@near", blocked=False)
        clock[0] += 1000
        assert [await code(bench, one.secret) for one in (near, below)] == ["key_expired"] * 2


async def test_a_key_that_the_file_comes_to_define_is_the_files(tmp_path: Path) -> None:
    """Its limits bind it: a secret that was made at run time for the same id, with limits of its own, is worth nothing from then on, nor are its
    sub-keys; they are good again when the file has lost it."""
    async with bench_of(tmp_path, org="[1000 tokens/day]") as (bench, changes):
        made = await changes.create_key("acme", "new", limits=["50 requests/day"], may_create_sub_keys=True)
        below = await changes.create_key("acme/@new", "sub")
        assert [await status(bench, one.secret) for one in (made, below)] == [200, 200]
        key = "{name: new, key: sk-file, limits: [3 requests/day]}"
        text = config_text(tmp_path, bench.mock.base_url, org="[1000 tokens/day]")
        await bench.worker.apply(load_text(text.replace("keys: [", f"keys: [{key}, ", 1).replace("keys:\n", f"keys:\n      - {key}\n", 1), {}))
        assert [await code(bench, one.secret) for one in (made, below)] == ["invalid_api_key"] * 2
        assert [await status(bench, "sk-file") for _ in range(2)] == [200, 429]
        await bench.worker.apply(bench.loaded)
        assert await status(bench, made.secret) == 200


async def test_tenants_and_overrides(tmp_path: Path) -> None:
    """Tenants below those of the file and of their own; the file's limits, models and blocking may be covered, marked and uncovered."""
    async with bench_of(tmp_path, org="[1000 tokens/day]", limits="[1000 tokens/day]") as (bench, changes):
        await changes.create_tenant("acme/team", limits=["2 requests/day"])
        await changes.create_tenant("other", limits=["3 requests/day"])
        team, other = [await changes.create_key(owner, "k") for owner in ("acme/team", "other")]
        assert [await status(bench, team.secret) for _ in range(3)] == [200, 200, 429]
        assert [await status(bench, other.secret) for _ in range(4)] == [200, 200, 200, 429]
        change = await changes.update_tenant("other", limits=["5 requests/day"])
        assert (change.before or {})["limits"] == ["3 requests/day"] and (change.after or {})["limits"] == ["5 requests/day"]
        assert [await status(bench, other.secret) for _ in range(3)] == [200, 200, 429]
        await changes.update_tenant("acme/team", blocked=True)
        assert await code(bench, team.secret) == "key_blocked"
        assert (await changes.override("acme/@key", limits=["1 requests/day"])).before is None
        assert [await status(bench, "sk-key") for _ in range(2)] == [200, 429]
        await changes.override("acme/@key", blocked=True)
        assert await code(bench, "sk-key") == "key_blocked"
        await bench.worker.apply(bench.loaded)
        assert await code(bench, "sk-key") == "key_blocked"
        removed = await changes.remove_override("acme/@key")
        assert (removed.before or {})["blocked"] is True
        assert await status(bench, "sk-key") == 200
        with pytest.raises(Taken, match="other/@k"):
            await changes.delete_tenant("other")
        await changes.delete_key("other/@k")
        await changes.delete_tenant("other")
        assert [row["id"] for row in await changes.list_tenants()] == ["acme/team"]


async def test_an_increase_for_a_time(tmp_path: Path) -> None:
    """A limit has more until then; the count goes on."""
    clock = [app.time_ms()]
    async with bench_of(tmp_path, limits="[1 requests/lifetime]", clock=lambda: clock[0]) as (bench, changes):
        made = await changes.create_key("acme", "new", limits=["1 requests/lifetime"])
        for id, secret in (("acme/@key", "sk-key"), ("acme/@new", made.secret)):
            assert [await status(bench, secret) for _ in range(2)] == [200, 429]
            await changes.increase(id, "requests:lifetime", 1, clock[0] + 1000)
            assert [await status(bench, secret) for _ in range(2)] == [200, 429]
        clock[0] += 1000
        await changes.increase("acme/@key", "requests:lifetime", 2, clock[0] + 1000)
        assert [await status(bench, "sk-key") for _ in range(2)] == [200, 429]


async def test_a_limit_that_a_key_gets_later_counts_what_was_used(tmp_path: Path) -> None:
    """As one of the file does."""
    async with bench_of(tmp_path) as (bench, changes):
        made = await changes.create_key("acme", "new")
        assert [await status(bench, made.secret) for _ in range(3)] == [200] * 3
        await changes.update_key("acme/@new", limits=["4 requests/day"])
        assert [await status(bench, made.secret) for _ in range(2)] == [200, 429]


async def test_keys_are_seeded_too(tmp_path: Path) -> None:
    """After the ledger has lost a tree, the windows of its keys of the directory have what the records know; other trees are as they were."""
    async with bench_of(tmp_path) as (bench, changes):
        made = await changes.create_key("acme", "new", limits=["3 requests/day"])
        assert [await status(bench, made.secret) for _ in range(2)] == [200, 200]
        await bench.quiet()
        ledger: Any = bench.ledger
        ledger._book.__init__("expired_held")
        await until(lambda: status(bench, made.secret), 200)
        assert await status(bench, made.secret) == 429


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda c: c.create_key("acme", "x", limits=["5 bananas/day"]), "limits.0"),
        (lambda c: c.create_key("acme", "x", limits=[{"amount": 5, "unit": "tokens", "per": "day", "models": ["none"]}]), "limits.0.models"),
        (lambda c: c.create_key("acme", "x", models=["none"]), "models.0"),
        (lambda c: c.create_key("acme", "x/y"), "name"),
        (lambda c: c.create_key("acme", "x", cidr=["10.0.0.1/8"]), "cidr.0"),
        (lambda c: c.create_key("acme", "x", priority="top"), "priority"),
        (lambda c: c.create_key("acme", "x", metadata={"a": "x" * 600}), "metadata"),
        (lambda c: c.create_tenant("a/b/c/d/e"), ""),
        (lambda c: c.update_key("acme/@there", name="other"), "name"),
        (lambda c: c.increase("acme/@there", "usd:day", 1, 2**45), "limit"),
        (lambda c: c.increase("acme/@there", "usd:day", 0, 2**45), "amount"),
        (lambda c: c.rotate_key("acme/@there", -1), "grace"),
        (lambda c: c.create_key("none", "x"), Missing),
        (lambda c: c.create_key("acme/@none", "x"), Missing),
        (lambda c: c.get_key("acme/@none"), Missing),
        (lambda c: c.create_key("acme", "there"), Taken),
        (lambda c: c.create_key("acme", "key"), Taken),
        (lambda c: c.create_tenant("acme"), Taken),
        (lambda c: c.update_key("acme/@key", limits=[]), FromFile),
        (lambda c: c.rotate_key("acme/@key", 0), FromFile),
        (lambda c: c.update_tenant("acme", limits=[]), FromFile),
        (lambda c: c.override("acme/@there", blocked=True), Missing),
        (lambda c: c.remove_override("acme"), Missing),
    ],
)
async def test_what_is_wrong_is_told(tmp_path: Path, call: Any, field: Any) -> None:
    """With its field, or by what is missing or there already; nothing is changed."""
    async with bench_of(tmp_path) as (bench, changes):
        await changes.create_key("acme", "there")
        before = bench.worker.directory._known
        if field == "":
            field = Missing
        if isinstance(field, str):
            with pytest.raises(ConfigError) as wrong:
                await call(changes)
            assert ".".join(map(str, wrong.value.problems[0].path)) == field
        else:
            with pytest.raises(field):
                await call(changes)
        assert (await bench.worker.directory.refresh(), bench.worker.directory._known) == (False, before)


MANY = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000) "
KEYS = MANY + ("INSERT INTO directory_keys SELECT 'acme/@k' || i, 'acme', 'k' || i, '[]', NULL, '[]', '', '{}', 0, 0, 0, 0, 0, 0, 'acme', 0 FROM n")
SECRETS = MANY + "INSERT INTO directory_secrets SELECT printf('%064d', i), 'acme/@k' || i, '', 0, 0 FROM n"


async def test_a_hundred_thousand_keys(tmp_path: Path) -> None:
    """None of them is in memory before it asks; each is found as fast as among few, and what is not there is asked for once."""
    async with bench_of(tmp_path, org="[1000000 tokens/day]") as (bench, changes):
        directory = bench.worker.directory
        await changes.create_key("acme", "first")
        for statement in (KEYS, SECRETS):
            await directory.store.call(lambda connection, statement=statement: connection.execute(text(statement)) and None)
        made = await changes.create_key("acme", "last")
        assert await directory.store.call(lambda connection: connection.execute(select(func.count()).select_from(tables.keys)).scalar()) == 100_002
        assert await status(bench, made.secret) == 200
        began = undisturbed()
        for n in range(1, 100_000, 1000):
            found = await directory.find(bytes.fromhex(f"{n:064d}"))
            assert found is not None and found.key.id == f"acme/@k{n}"
        assert undisturbed() - began < 2
        assert (await code(bench, "sk-none"), len(directory._entries), len(directory._absent)) == ("invalid_api_key", 101, 1)


async def test_what_is_kept_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of keys, and of secrets that belong to none; what was asked for last stays."""
    monkeypatch.setattr("sluicegate.directory.ENTRIES_MAX", 2)
    monkeypatch.setattr("sluicegate.directory.ABSENT_MAX", 2)
    async with bench_of(tmp_path) as (bench, changes):
        secrets = [(await changes.create_key("acme", f"k{n}")).secret for n in range(3)]
        directory = bench.worker.directory
        for secret in (secrets[0], secrets[1], secrets[0], secrets[2]):
            assert await directory.find(hashlib.sha256(secret.encode()).digest()) is not None
        assert sorted(entry.key.name for entry in directory._entries.values()) == ["k0", "k2"]
        assert [await status(bench, f"sk-none{n}") for n in range(4)] == [401] * 4
        assert len(directory._absent) == 2


async def test_what_changes_while_it_is_looked_up_is_not_kept(tmp_path: Path) -> None:
    """A look-up that began before a change is made again."""
    async with bench_of(tmp_path) as (bench, changes):
        made = await changes.create_key("acme", "new")
        worker: Worker = bench.worker
        call = worker.directory.store.call

        async def slow(work: Any, *, reading: bool = False) -> Any:
            found = await call(work, reading=reading)
            worker.directory.store.call = call  # type: ignore[method-assign]
            await changes.block_key("acme/@new")
            return found

        worker.directory.store.call = slow  # type: ignore[method-assign, assignment]
        assert await code(bench, made.secret) == "key_blocked"


async def test_a_worker_that_starts_knows_what_was_made_before(tmp_path: Path) -> None:
    """Before it grants anything: an override binds its first request."""
    async with bench_of(tmp_path, limits="[9 requests/day]") as (bench, changes):
        await changes.override("acme/@key", limits=["1 requests/day"])
        made = await changes.create_key("acme", "new")
        assert await status(bench, made.secret) == 200
    async with bench_of(tmp_path, limits="[9 requests/day]") as (bench, _):
        assert [await status(bench, "sk-key") for _ in range(2)] == [200, 429]
        assert await status(bench, made.secret) == 200


async def test_an_increase_ends_by_itself(tmp_path: Path) -> None:
    """Nobody has to ask for it."""
    clock = [app.time_ms()]
    async with bench_of(tmp_path, limits="[1 requests/lifetime]", clock=lambda: clock[0]) as (bench, changes):
        await changes.increase("acme/@key", "requests:lifetime", 5, clock[0] + 1000)
        assert (await bench.usage())["key key requests/lifetime"]["limit"] == 6
        clock[0] += 1000
        bench.worker.directory.wake()

        async def limit() -> float:
            return float((await bench.usage())["key key requests/lifetime"]["limit"])

        await until(limit, 1.0)


async def test_without_the_tables_and_keys_in_them_a_wrong_key_is_one(tmp_path: Path) -> None:
    """There is nobody who could have another: it is refused as unknown."""
    async with bench_of(tmp_path) as (bench, _):

        async def away(*_: Any, **__: Any) -> Any:
            raise RecordsUnavailable("away")

        bench.worker.directory.store.call = away  # type: ignore[method-assign]
        assert [await code(bench, secret) for secret in ("sk-none", "sk-key")] == ["invalid_api_key", "200"]


async def test_nobody_looks_after_the_end(tmp_path: Path) -> None:
    """A look that was to come is not made any more; whoever waits for it is let go."""
    directory = Directory(tables.Directory(f"sqlite:///{tmp_path}/records.db"), app.time_ms)
    waiting = asyncio.create_task(directory.catch_up())
    await asyncio.sleep(0)
    await directory.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_without_the_tables_what_is_known_is_served(tmp_path: Path) -> None:
    """A key that was seen, and those of the file; any other is told to come again, and one that is none is not told that it is none."""
    async with bench_of(tmp_path) as (bench, changes):
        seen, other = [(await changes.create_key("acme", name)).secret for name in ("seen", "other")]
        assert await status(bench, seen) == 200

        async def away(*_: Any, **__: Any) -> Any:
            raise RecordsUnavailable("away")

        bench.worker.directory.store.call = away  # type: ignore[method-assign]
        assert [await status(bench, secret) for secret in (seen, "sk-key")] == [200, 200]
        for secret in (other, "sk-none"):
            reply = await bench.chat(secret)
            assert (reply.status, reply.code, reply.headers["retry-after"]) == (503, "keys_unavailable", "1")
