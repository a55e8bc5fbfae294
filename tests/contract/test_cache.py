"""Answers of the exact-match cache, as every store keeps them; and a store that is away."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import redis as redis_client

from sluicegate.cache_memory import MemoryCache
from sluicegate.core.cache import ENTRY_BYTES, Entry, Store, pack
from sluicegate.ledger.cache_redis import PREFIX, RedisCache
from support_gateway import free_port, running_redis
from support_redis import Cluster, Move, running_cluster

ANSWER = Entry(bytes(range(256)), "p/m", "stop", 24_500, 1_800_000_000_000)
MANY = 1 << 20


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Said(list[str]):
    """The states that a store has told, once each."""

    def __call__(self, state: str, **_: object) -> None:
        if self[-1:] != [state]:
            self.append(state)


def in_redis(url: str, max_bytes: int = MANY, said: Said | None = None, clock: Clock | None = None) -> RedisCache:
    return RedisCache(url, 5_000, max_bytes, clock or Clock(), said if said is not None else Said())


@pytest.fixture(params=["memory", "redis", "cluster"])
def make(request: pytest.FixtureRequest) -> Callable[..., Store]:
    """Of a store; in Redis any number share what they keep."""
    if request.param == "memory":
        return lambda max_bytes=MANY: MemoryCache(max_bytes, Clock())
    url = request.getfixturevalue("redis_url") if request.param == "redis" else request.getfixturevalue("redis_cluster").url
    return lambda max_bytes=MANY: in_redis(url, max_bytes)


def fresh_key() -> bytes:
    return secrets.token_bytes(32)


@contextlib.asynccontextmanager
async def opened(*stores: Store) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for store in stores:
            await store.close()


async def found(store: Store, key: bytes, wanted: Entry | None) -> Entry | None:
    """What the store has, once it is what is wanted: what is put need not have arrived at once."""
    async with asyncio.timeout(5):
        while (entry := await store.get(key)) != wanted:  # noqa: ASYNC110  (nothing to wait for)
            await asyncio.sleep(0.002)
    return entry


async def test_an_answer_comes_back_as_it_was(make: Callable[..., Store]) -> None:
    """Byte for byte, at once for whoever has put it, under its own key alone; a later one stands instead."""
    store = make()
    async with opened(store):
        key, later = fresh_key(), Entry(b"", "", "", 0, 0)
        assert await store.get(key) is None
        store.put(key, ANSWER, 60_000)
        assert await store.get(key) == ANSWER and await store.get(fresh_key()) is None
        store.put(key, later, 60_000)
        assert await store.get(key) == later and (store.entries, store.size_bytes >= ENTRY_BYTES, store.evicted) == (1, True, 0)


async def test_never_more_than_it_may_keep(make: Callable[..., Store]) -> None:
    """What came first, or was asked for least lately, makes room: in Redis too, whose memory is the ledger's."""
    store = make(4 * ENTRY_BYTES)
    async with opened(store):
        keys = [fresh_key() for _ in range(8)]
        assert await store.get(keys[0]) is None  # where the servers are is known by now
        for key in keys:
            store.put(key, Entry(b"", "p/m", "stop", 1, 1), 60_000)
            assert 0 < store.size_bytes <= 4 * ENTRY_BYTES
        there = [await store.get(key) is not None for key in keys]
        assert there == [False] * (8 - store.entries) + [True] * store.entries and store.evicted == 8 - store.entries > 0
        store.put(keys[7], Entry(b"x" * 4 * ENTRY_BYTES, "", "", 0, 0), 60_000)
        assert await store.get(keys[7]) is None, "an answer that is too large does not leave the one before it"


async def test_workers_share_what_redis_has(redis_url: str) -> None:
    """An answer that one has put is the other's, too, and Redis forgets it by itself."""
    one, two, key = in_redis(redis_url), in_redis(redis_url), fresh_key()
    async with opened(one, two):
        one.put(key, ANSWER, 60_000)
        assert await found(two, key, ANSWER)
        with redis_client.Redis.from_url(redis_url) as client:
            assert 0 < int(client.pttl(PREFIX + key.hex())) <= 60_000  # type: ignore[arg-type]
        two.put(key, ANSWER, 1)
        assert await found(one, key, None) is None


async def test_what_is_put_arrives_by_itself(redis_url: str) -> None:
    """It goes out with the next lookup, in order; without one in a moment; and at the end at once."""
    one, two, key, last = in_redis(redis_url), in_redis(redis_url), fresh_key(), fresh_key()
    async with opened(two):
        async with opened(one):
            one.put(key, ANSWER, 60_000)
            one.put(key, Entry(b"later", "", "", 0, 0), 60_000)
            assert await found(two, key, Entry(b"later", "", "", 0, 0)), "nobody has looked anything up at that worker"
            one.put(last, ANSWER, 60_000)
        assert await two.get(last) == ANSWER


async def test_what_is_too_old_is_not_counted(redis_url: str) -> None:
    """What Redis has forgotten takes none of a worker's room, and is not taken out again."""
    clock = Clock()
    store = in_redis(redis_url, 4 * ENTRY_BYTES, clock=clock)
    async with opened(store):
        for _ in range(3):
            store.put(fresh_key(), Entry(b"", "", "", 0, 0), 1000)
        clock.now += 2
        store.put(fresh_key(), Entry(b"", "", "", 0, 0), 1000)
        assert (store.entries, store.evicted) == (1, 0)


async def test_keys_of_a_cluster_are_everywhere(redis_cluster: Cluster) -> None:
    """Each is where its slot is, and found there by others."""
    one, two = in_redis(redis_cluster.url), in_redis(redis_cluster.url)
    async with opened(one, two):
        keys = [fresh_key() for _ in range(30)]
        for key in keys:
            assert await one.get(key) is None
            one.put(key, Entry(key, "", "", 0, 0), 60_000)
        for key in keys:
            assert await found(two, key, Entry(key, "", "", 0, 0))
        assert all(master.client.keys(PREFIX + "*") for master in redis_cluster.masters)


def key_at(cluster: Cluster, place: int) -> bytes:
    """One that this master of a cluster keeps."""
    return next(key for _ in range(1000) if cluster.keeper(PREFIX + (key := fresh_key()).hex()) is cluster.masters[place])


async def test_a_slot_that_moves_is_found_again(tmp_path: Path) -> None:
    """Not at once: servers are looked up once a second at most. As long as no server has a slot, nothing is known of its keys, and no server is told
    of them; others go on; when there is one again, that is found, too."""
    clock, said = Clock(), Said()
    with running_cluster(tmp_path, 2) as cluster:
        source, target = cluster.masters
        store, key, other = in_redis(cluster.url, 2 * ENTRY_BYTES, said, clock), key_at(cluster, 0), key_at(cluster, 1)
        small = Entry(b"", "", "", 0, 0)
        async with opened(store):
            store.put(key, small, 60_000)
            assert (store.entries, await store.get(key)) == (0, None), "where it belongs was not known yet"
            store.put(key, small, 60_000)
            assert await store.get(key) == small
            move = Move(cluster, PREFIX + key.hex(), source, target)
            while move.keys(100):
                pass
            move.end()
            assert await store.get(key) is None and await store.get(key) is None and said == ["there", "away"]
            clock.now += 1
            assert await found(store, key, small) and said == ["there", "away", "there"]
            for server in (target, source):
                server.client.execute_command("CLUSTER", "DELSLOTS", move.slot)
            clock.now += 1
            assert await store.get(key) is None
            await asyncio.wait([store._finding])  # type: ignore[list-item]
            assert await store.get(key) is None and said[-1] == "away"
            store.put(key, ANSWER, 60_000)
            store.put(other, small, 60_000)
            assert await found(store, other, small) and (store.entries, store.evicted, said[-1]) == (1, 1, "there")
            target.client.execute_command("CLUSTER", "ADDSLOTS", move.slot)
            async with asyncio.timeout(5):
                while await store.get(key) != small:
                    clock.now += 1
                    await asyncio.sleep(0.01)


async def test_a_cluster_that_is_away() -> None:
    """Where its servers are is asked once a second at most, nobody waits for long, and it is told once."""
    clock, said = Clock(), Said()
    store = in_redis(f"redis+cluster://127.0.0.1:{free_port()}", said=said, clock=clock)
    lookups = list[object]()
    async with opened(store):
        for _ in range(3):
            for _ in range(2):
                store.put(fresh_key(), ANSWER, 1000)
                assert await store.get(fresh_key()) is None
                lookups.append(store._finding)
            clock.now += 1
        assert (said, store.entries, len(set(lookups))) == (["away"], 0, 3)


async def test_what_somebody_else_has_written_is_nothing(redis_url: str) -> None:
    """Neither of another shape nor of another type."""
    said = Said()
    store, key, other = in_redis(redis_url, said=said), fresh_key(), fresh_key()
    async with opened(store):
        with redis_client.Redis.from_url(redis_url) as client:
            client.set(PREFIX + key.hex(), pack(ANSWER)[:-1])
            client.hset(PREFIX + other.hex(), "a", "b")
            assert await store.get(key) is None and await store.get(other) is None
            client.delete(PREFIX + other.hex())


async def test_a_redis_that_is_away(tmp_path: Path) -> None:
    """Nothing raises, nobody waits for long, each change is told once; when it is back it is used again."""
    said = Said()
    store = in_redis(f"redis://127.0.0.1:{free_port()}/0", said=said)
    async with opened(store):
        for _ in range(3):
            store.put(fresh_key(), ANSWER, 1000)
            assert await store.get(fresh_key()) is None
        assert said == ["away"]
    said = Said()
    with running_redis(tmp_path) as url:
        store = in_redis(url, said=said)
        key = fresh_key()
        store.put(key, ANSWER, 60_000)
        assert await store.get(key) == ANSWER and said == ["there"]
        with redis_client.Redis.from_url(url) as client:
            client.execute_command("CLIENT", "PAUSE", 400, "ALL")
            began = asyncio.get_running_loop().time()
            assert await store.get(key) is None
            assert asyncio.get_running_loop().time() - began < 0.4, "the timeout of a cache is shorter than a ledger's"
            assert await found(store, key, ANSWER) and said == ["there", "away", "there"]
    async with opened(store):
        assert await store.get(key) is None and said[-1] == "away"


def test_what_is_stored_names_its_version() -> None:
    """A release that writes otherwise does not read this one's."""
    assert PREFIX == "sg1:cache:1:"
