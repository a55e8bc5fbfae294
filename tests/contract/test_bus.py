"""One list of behaviours for the bus, on every channel: memory, sqlite, a Redis, a Redis Cluster."""

import asyncio
import contextlib
import itertools
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis as redis_client

from sluicegate import bus_redis, bus_sqlite
from sluicegate.bus import KEPT, Bus, BusAway, Channel, Message
from sluicegate.bus_memory import MemoryChannel
from sluicegate.bus_redis import RedisChannel
from sluicegate.bus_sqlite import SqliteChannel
from support_redis import Cluster

SOON_S = 30.0
OUTSIDE = pytest.mark.parametrize("place", ["sqlite", "redis", "cluster"], indirect=True)


class Place:
    """Where channels of one kind meet."""

    def __init__(self, kind: str, at: str) -> None:
        self.kind = kind
        self.at = at  # a file or a URL
        self._memory = MemoryChannel()

    def channel(self) -> Channel:
        if self.kind == "memory":
            return self._memory
        return SqliteChannel(self.at) if self.kind == "sqlite" else RedisChannel(self.at)

    async def write(self, *bodies: bytes) -> None:
        """As somebody who is no worker."""
        channel = self.channel()
        await channel.open()
        await channel.append(bodies)
        if self.kind != "memory":
            await channel.close()

    def lose(self) -> None:
        """All that the channel keeps, past it."""
        if self.kind == "sqlite":
            with contextlib.closing(sqlite3.connect(self.at, isolation_level=None)) as file:
                file.execute("DELETE FROM events")
                file.execute("DELETE FROM sqlite_sequence")
        else:
            client: Any = redis_client.RedisCluster if self.kind == "cluster" else redis_client.Redis
            with client.from_url(self.at.replace("+cluster", "")) as server:
                server.delete(bus_redis.KEY)


class Ear:
    """Collects what is heard."""

    def __init__(self, bus: Bus, *kinds: str, earlier: bool = False) -> None:
        self.messages: list[Message] = []
        for kind in kinds:
            bus.subscribe(kind, self.messages.append, earlier=earlier)

    @property
    def heard(self) -> list[Any]:
        return [message.data.get("n") for message in self.messages]

    async def until(self, heard: Sequence[Any]) -> None:
        await until(lambda: self.heard == list(heard), lambda: self.heard)


async def until(true: Callable[[], bool], seen: Callable[[], object]) -> None:
    try:
        async with asyncio.timeout(SOON_S):
            while not true():  # noqa: ASYNC110  (nothing to wait for)
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(seen()) from None


@pytest.fixture(params=["memory", "sqlite", "redis", "cluster"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(bus_sqlite, "LOOK_S", 0.01)
    if request.param == "cluster":
        cluster: Cluster = request.getfixturevalue("redis_cluster")
        cluster.flush()
        return Place("cluster", cluster.url)
    if request.param == "redis":
        url = request.getfixturevalue("redis_url").removesuffix("/0") + "/12"
        with redis_client.Redis.from_url(url) as client:
            client.flushdb()
        return Place("redis", url)
    return Place(request.param, str(tmp_path / "new" / "ledger.db"))


@contextlib.asynccontextmanager
async def running(bus: Bus) -> AsyncIterator[None]:
    """Until it is connected, to the end."""
    task = asyncio.create_task(bus.run())
    await until(lambda: bus._begun is not None, lambda: "not connected")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await bus.close()
        await asyncio.sleep(0)  # transports of this event loop close in its next turn


def bus_at(place: Place, worker: str) -> Bus:
    return Bus(place.channel(), worker, lambda: 1_700_000_000_000, jitter=lambda: 0.0)


async def test_what_one_publishes_all_others_hear_in_order(place: Place) -> None:
    """By kind, with who said it and when; a worker does not hear itself."""
    one, two, three = (bus_at(place, name) for name in ("w1", "w2", "w3"))
    own, other, third = Ear(one, "a"), Ear(two, "a"), Ear(three, "a", "b")
    async with running(one), running(two), running(three):
        for n in range(300):
            one.publish("a" if n % 3 else "b", {"n": n})
        await third.until(range(300))
        await other.until([n for n in range(300) if n % 3])
        assert own.heard == []
        first = third.messages[0]
        assert (first.kind, first.worker, first.time_ms) == ("b", "w1", 1_700_000_000_000)
        ids = [message.id for message in third.messages]
        assert ids == sorted(ids) and len(set(ids)) == 300


async def test_who_comes_later_hears_what_was_before_only_if_it_asks(place: Place) -> None:
    """Earlier messages go to those who want them, later ones to everybody."""
    one, two = bus_at(place, "w1"), bus_at(place, "w2")
    async with running(one):
        for n in range(3):
            one.publish("a", {"n": n})
        await until_kept(one, 3)
        all_of_it, new = Ear(two, "a", earlier=True), Ear(two, "a")
        async with running(two):
            await all_of_it.until(range(3))
            one.publish("a", {"n": 3})
            await all_of_it.until(range(4))
            assert new.heard == [3]


async def until_kept(bus: Bus, number: int) -> None:
    async with asyncio.timeout(SOON_S):
        while len(await bus.history("", {"a", "b"}, KEPT)) < number:  # noqa: ASYNC110  (as above)
            await asyncio.sleep(0.005)


async def test_history_is_read_in_pages(place: Place) -> None:
    """Of the kinds asked for, everybody's and one's own, each page after the last id of the one before; what is no id is told."""
    bus = bus_at(place, "w1")
    async with running(bus):
        for n in range(600):
            bus.publish("a" if n % 2 else "b", {"n": n})
        await until_kept(bus, 600)
        pages, after = [], ""
        while page := await bus.history(after, {"a"}, 70):
            pages.append([message.data["n"] for message in page])
            after = page[-1].id
        assert [len(page) for page in pages] == [70, 70, 70, 70, 20]
        assert list(itertools.chain(*pages)) == list(range(1, 600, 2))
        for bad in ("x", "1-2-3", "-1", "9" * 40, "1; DROP"):
            with pytest.raises(ValueError, match="id"):
                await bus.history(bad, {"a"}, 1)


async def test_no_more_than_the_last_messages_are_kept(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older ones go as new ones come; Redis may keep some more, as it frees whole blocks."""
    monkeypatch.setattr(bus_sqlite, "KEPT", 50)
    monkeypatch.setattr(bus_redis, "KEPT", 50)
    await place.write(*(b'{"kind":"a","time_ms":1,"worker":"w","data":{"n":%d}}' % n for n in range(200)))
    await place.write(b'{"kind":"a","time_ms":1,"worker":"w","data":{"n":200}}')
    bus = bus_at(place, "w1")
    async with running(bus):
        kept = [message.data["n"] for message in await bus.history("", {"a"}, KEPT)]
    assert kept[-1] == 200
    assert place.kind == "memory" or len(kept) == 50 or (place.kind in ("redis", "cluster") and len(kept) <= 150)


HOSTILE = [
    *(b"", b"{", b"null", b"[]", b'"x"', b"\xff\xfe", b"[" * 60_000, b'{"kind":"a"}', b'{"kind":1,"time_ms":1,"worker":"w","data":{}}'),
    *(b'{"kind":"a","time_ms":"x","worker":"w","data":{}}', b'{"kind":"a","time_ms":1,"worker":"w","data":[]}'),
    b'{"kind":"a","time_ms":1,"worker":"w","data":{"n":"%s"}}' % (b"x" * 70_000),
]


async def test_what_is_malformed_or_too_large_is_skipped(place: Place) -> None:
    """Between two good messages, neither lost; a subscriber that raises keeps none from the others."""
    bus = bus_at(place, "w1")

    def fail(_message: Message) -> None:
        raise RuntimeError("no")

    bus.subscribe("a", fail)
    ear = Ear(bus, "a")
    good = [b'{"kind":"a","time_ms":1,"worker":"w","more":1,"data":{"n":%d}}' % n for n in range(2)]
    async with running(bus):
        await place.write(good[0], *HOSTILE, good[1])
        await ear.until([0, 1])
        assert len(await bus.history("", {"a"}, 100)) == 2


@OUTSIDE
async def test_a_lost_channel_is_gone_on_with(place: Place, logged: list[Any]) -> None:
    """All it kept is gone, and ids may begin anew: what is published from then on is heard, once the connection was made anew at the latest."""
    one, two = bus_at(place, "w1"), bus_at(place, "w2")
    ear = Ear(two, "a")
    async with running(one), running(two):
        for n in range(5):
            one.publish("a", {"n": n})
        await ear.until(range(5))
        place.lose()
        await two._channel.close()  # and the connection with it
        await until(lambda: [line["to"] for line in logged if line["event"] == "bus state"] == ["away", "up"], lambda: logged)
        one.publish("a", {"n": 5})
        await ear.until(range(6))


async def test_what_was_said_while_the_connection_was_gone_is_heard(place: Place) -> None:
    """It is read on from where it was: nothing is missing, nothing comes twice."""
    one, two = bus_at(place, "w1"), bus_at(place, "w2")
    ear = Ear(two, "a")
    async with running(one):
        task = asyncio.create_task(two.run())
        await until(lambda: two._begun is not None, lambda: "not connected")
        one.publish("a", {"n": 0})
        await ear.until([0])
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for n in range(1, 400):
            one.publish("a", {"n": n})
        await until_kept(one, 400)
        task = asyncio.create_task(two.run())
        await ear.until(range(400))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await two.close()
    await asyncio.sleep(0)


async def test_last_words_are_sent(place: Place) -> None:
    """What is published just before the end still goes out."""
    one, two = bus_at(place, "w1"), bus_at(place, "w2")
    ear = Ear(two, "a")
    async with running(two):
        async with running(one):
            one.publish("a", {"n": 1})
        await ear.until([1])


@OUTSIDE
async def test_a_bus_that_was_never_connected_says_so(place: Place) -> None:
    """Its history cannot be had; publishing raises nothing."""
    bus = bus_at(place, "w1")
    bus.publish("a", {"n": object()})
    with pytest.raises(BusAway):
        await bus.history("", {"a"}, 1)
