"""Idempotency keys and kept answers, as every store keeps them: what each verb does, and what holds when several workers call at once."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from threading import Event

import pytest
import redis as redis_client
from sqlalchemy import Connection

from sluicegate.core.once import OTHER, RUNNING, TAKEN, Found, Kept, Store, StoreUnavailable
from sluicegate.idempotency_redis import PREFIX, RedisStore
from sluicegate.records.idempotency import RecordsStore, _take
from support_gateway import free_port
from support_ledgers import Clock
from support_once import MemoryStore
from support_postgres import fresh, until_waited_for
from support_redis import Cluster

ANSWER = Kept(200, "text/event-stream; charset=utf-8", "req_1", bytes(range(256)))
LEASE_MS, KEPT_MS = 60_000, 86_400_000


class Place:
    """Where a store keeps; any number of workers open it. `later` lets time pass for a key."""

    def __init__(self, make: Callable[[], Store], later: Callable[[str, int], None]) -> None:
        self.make = make
        self.later = later
        self.name = secrets.token_hex(16)


def in_redis(url: str) -> Place:
    def later(name: str, ms: int) -> None:
        with redis_client.Redis.from_url(url) as client:
            left_ms = int(client.pttl(PREFIX + name))  # type: ignore[arg-type]
            assert left_ms > 0
            if left_ms <= ms:
                client.delete(PREFIX + name)
            else:
                client.pexpire(PREFIX + name, left_ms - ms)

    return Place(lambda: RedisStore(url, 5_000), later)


@pytest.fixture(params=["memory", "sqlite", "postgresql", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "redis":
        return in_redis(request.getfixturevalue("redis_url"))
    clock = Clock()

    def later(name: str, ms: int) -> None:
        clock.now_ms += ms

    if request.param == "memory":
        store = MemoryStore(clock)
        return Place(lambda: store, later)
    url = f"sqlite:///{tmp_path}/records.db" if request.param == "sqlite" else fresh(request.getfixturevalue("postgres_url"))
    return Place(lambda: RecordsStore(url, clock, 20.0), later)


@contextlib.asynccontextmanager
async def opened(*stores: Store) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for store in stores:
            await store.close()


async def test_the_life_of_a_key(place: Place) -> None:
    """Taken by one, refused to another while it runs, and then found with its answer by everybody, for as long as that is kept; then it is free."""
    one, two, name = place.make(), place.make(), place.name
    async with opened(one, two):
        assert await one.take(name, "p", "req_1", LEASE_MS) == TAKEN
        assert await one.take(name, "p", "req_1", LEASE_MS) == TAKEN
        assert await two.take(name, "p", "req_2", LEASE_MS) == RUNNING
        assert await two.take(name, "q", "req_2", LEASE_MS) == OTHER
        await one.keep(name, "p", "req_1", ANSWER, KEPT_MS)
        await one.keep(name, "p", "req_1", ANSWER, KEPT_MS)
        await one.give_up(name, "req_1")
        for owner in ("req_1", "req_2"):
            assert await two.take(name, "p", owner, LEASE_MS) == Found("finished", ANSWER)
        assert await two.take(name, "q", "req_2", LEASE_MS) == OTHER
        place.later(name, KEPT_MS)
        assert await two.take(name, "q", "req_2", LEASE_MS) == TAKEN


async def test_a_key_that_is_given_up_is_free(place: Place) -> None:
    """For its owner alone to give up, and also for another request."""
    one, two, name = place.make(), place.make(), place.name
    async with opened(one, two):
        await one.take(name, "p", "req_1", LEASE_MS)
        await two.give_up(name, "req_2")
        assert await two.take(name, "p", "req_2", LEASE_MS) == RUNNING
        await one.give_up(name, "req_1")
        await one.give_up(name, "req_1")
        assert await two.take(name, "q", "req_2", LEASE_MS) == TAKEN


async def test_a_lease_that_is_not_renewed_runs_out(place: Place) -> None:
    """A worker that died blocks a key for no longer; one that renews keeps it; what a late one had to say changes nothing for whoever has it now."""
    one, two, name = place.make(), place.make(), place.name
    async with opened(one, two):
        await one.take(name, "p", "req_1", LEASE_MS)
        place.later(name, LEASE_MS // 2)
        await one.renew(name, "p", "req_1", LEASE_MS)
        place.later(name, LEASE_MS // 2)
        assert await two.take(name, "p", "req_2", LEASE_MS) == RUNNING
        place.later(name, LEASE_MS)
        assert await two.take(name, "p", "req_2", LEASE_MS) == TAKEN
        await one.renew(name, "p", "req_1", LEASE_MS)
        await one.keep(name, "p", "req_1", ANSWER, KEPT_MS)
        await one.give_up(name, "req_1")
        assert await two.take(name, "p", "req_3", LEASE_MS) == RUNNING


async def test_a_key_that_was_lost_is_taken_again(place: Place) -> None:
    """By renewing, or with the answer itself."""
    one, two, name = place.make(), place.make(), place.name
    async with opened(one, two):
        await one.renew(name, "p", "req_1", LEASE_MS)
        assert await two.take(name, "p", "req_2", LEASE_MS) == RUNNING
        await one.keep(name + "x", "p", "req_1", Kept(400, "application/json", "req_1", None), KEPT_MS)
        assert await two.take(name + "x", "p", "req_2", LEASE_MS) == Found("finished", Kept(400, "application/json", "req_1", None))


async def test_one_of_many_takes_it(place: Place) -> None:
    """However many ask at once, over several workers."""
    stores = [place.make() for _ in range(4)]
    async with opened(*stores):
        found = await asyncio.gather(*(stores[i % 4].take(place.name, "p", f"req_{i}", LEASE_MS) for i in range(24)))
        assert sorted(one.state for one in found) == ["running"] * 23 + ["taken"]


async def test_a_key_that_another_takes_at_the_same_time(postgres_url: str) -> None:
    """Neither has found it when both begin to write it: who comes second waits, looks again, and sees whose it is."""
    clock, begun, url = Clock(), Event(), fresh(postgres_url)
    one, two = RecordsStore(url, clock, 20.0), RecordsStore(url, clock, 20.0)

    def work(connection: Connection) -> Found:
        taken = _take(connection, "k", "p", "req_1", clock(), clock() + LEASE_MS)
        begun.set()
        until_waited_for(connection)
        return taken

    async with opened(one, two):
        for store in (one, two):
            await store.take("before", "p", "req_0", LEASE_MS)
        taking = asyncio.create_task(one._call(work))
        assert await asyncio.to_thread(begun.wait, 10)
        assert await two.take("k", "p", "req_2", LEASE_MS) == RUNNING
        assert await taking == TAKEN and await one.take("k", "p", "req_1", LEASE_MS) == TAKEN


async def test_keys_of_a_cluster(redis_cluster: Cluster) -> None:
    """Each is where its slot is: all of them can be taken, by way of any server."""
    store = RedisStore(redis_cluster.url, 5_000)
    async with opened(store):
        for i in range(12):
            assert await store.take(f"k{i}", "p", "req_1", LEASE_MS) == TAKEN
        assert sum(server.client.dbsize() > 0 for server in redis_cluster.masters) > 1  # type: ignore[operator,misc]


async def test_a_database_with_room_for_all(tmp_path: Path) -> None:
    """What is over is deleted, a thousand at once, when a minute has passed."""
    clock = Clock()
    store = RecordsStore(f"sqlite:///{tmp_path}/records.db", clock, 20.0)
    async with opened(store):
        await store.take("old", "p", "req_1", LEASE_MS)
        clock.now_ms += 2 * LEASE_MS
        await store.take("new", "p", "req_2", LEASE_MS)
        left = await store._database.call(lambda connection: [row[0] for row in connection.exec_driver_sql("SELECT name FROM idempotency_keys")])
        assert left == ["new"]


@pytest.mark.parametrize("kind", ["redis", "sqlite"])
async def test_a_store_that_is_away(tmp_path: Path, kind: str) -> None:
    """It says so in time, whatever is asked."""
    place = tmp_path / "none" / "records.db"
    store: Store = RedisStore(f"redis://127.0.0.1:{free_port()}/0", 200)
    if kind == "sqlite":
        place.parent.write_text("no directory")
        store = RecordsStore(f"sqlite:///{place}", Clock(), 0.5)
    async with opened(store):
        with pytest.raises(StoreUnavailable):
            await store.take("k", "p", "req_1", LEASE_MS)
        with pytest.raises(StoreUnavailable):
            await store.give_up("k", "req_1")
