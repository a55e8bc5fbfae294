"""The bus over a Redis that is restarted, hangs, or whose place another server takes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sluicegate import bus_redis
from sluicegate.bus import Bus
from sluicegate.bus_redis import RedisChannel
from support_redis import Server, running_cluster, watched

WITHIN_S = 60.0


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus_redis, "WAIT_MS", 200)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.kill()


class Pair:
    """Two workers' buses: what the second hears of the first."""

    def __init__(self, url: str) -> None:
        self.one, self.two = (Bus(RedisChannel(url, 300), name, lambda: 0) for name in ("w1", "w2"))
        self.heard: list[int] = []
        self.two.subscribe("a", lambda message: self.heard.append(message.data["n"]))

    async def hears(self, *numbers: int) -> None:
        await until(lambda: self.heard == list(numbers))

    @property
    def states(self) -> set[str]:
        return {self.one.state, self.two.state}


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not true():  # noqa: ASYNC110  (nothing to wait for)
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def running(url: str) -> AsyncIterator[Pair]:
    """With one message heard."""
    pair = Pair(url)
    tasks = [asyncio.create_task(bus.run()) for bus in (pair.one, pair.two)]
    try:
        await until(lambda: pair.two._begun is not None)
        pair.one.publish("a", {"n": 1})
        await pair.hears(1)
        yield pair
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await pair.one.close()
        await pair.two.close()
        await asyncio.sleep(0)


async def test_a_redis_that_is_restarted_empty(server: Server, logged: list[Any]) -> None:
    """What was published meanwhile is heard afterwards; it is two lines in the log of each worker."""
    async with running(f"redis://127.0.0.1:{server.port}/0") as pair:
        server.kill()
        await until(lambda: pair.states == {"away"})
        pair.one.publish("a", {"n": 2})
        server.start()
        await pair.hears(1, 2)
        pair.one.publish("a", {"n": 3})
        await pair.hears(1, 2, 3)
        assert sorted(line["to"] for line in logged if line["event"] == "bus state") == ["away", "away", "up", "up"]


async def test_a_redis_that_hangs_is_noticed_and_gone_on_with(server: Server) -> None:
    """It answers nothing for a while: away in bounded time, then all of it comes, once."""
    async with running(f"redis://127.0.0.1:{server.port}/0") as pair:
        server.pause()
        await until(lambda: pair.states == {"away"})
        pair.one.publish("a", {"n": 2})
        server.go_on()
        await pair.hears(1, 2)


async def test_a_cluster_whose_server_is_replaced(tmp_path: Path) -> None:
    """The stream's server hands over to its replica: nothing is lost, and the bus finds it."""
    with running_cluster(tmp_path) as cluster:
        master = cluster.keeper(bus_redis.KEY)
        replica = cluster.replica_of(master)
        async with running(cluster.url) as pair:
            await asyncio.to_thread(cluster.promote, replica, master)
            pair.one.publish("a", {"n": 2})
            await pair.hears(1, 2)
            master.kill()
            pair.one.publish("a", {"n": 3})
            await pair.hears(1, 2, 3)
            master.start()


async def test_sentinels_that_name_another_master(tmp_path: Path) -> None:
    """The master dies: once its replica is promoted, the bus goes on there from where it was."""
    with watched(tmp_path) as group:
        async with running(group.url) as pair:
            await until(lambda: bool(group.replica.client.xlen(bus_redis.KEY)))
            group.master.kill()
            pair.one.publish("a", {"n": 2})
            await pair.hears(1, 2)
            group.master.start()
