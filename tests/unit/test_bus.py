"""The bus over a channel that fails as it is told to: what is said, what is kept for later, what is dropped."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from sluicegate import bus as module
from sluicegate.bus import QUEUE_MAX, Bus, Entry, Message
from sluicegate.bus_memory import MemoryChannel


class Flaky(MemoryChannel):
    """Fails in the verbs that are in `broken`."""

    def __init__(self) -> None:
        super().__init__()
        self.broken: set[str] = set()
        self.opened = 0

    async def open(self) -> str:
        self.opened += 1
        self._fail("open")
        return await super().open()

    async def append(self, bodies: Sequence[bytes]) -> None:
        self._fail("append")
        await super().append(bodies)

    async def read(self, after: str, limit: int, *, wait: bool) -> Sequence[Entry]:
        self._fail("read")
        return await super().read(after, limit, wait=wait)

    def _fail(self, verb: str) -> None:
        if verb in self.broken:
            raise ConnectionError(f"no {verb}")


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_S", (0.001, 0.004))


@contextlib.asynccontextmanager
async def running(*buses: Bus) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(bus.run()) for bus in buses]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def states(logged: list[Any]) -> list[str]:
    return [line["to"] for line in logged if line["event"] == "bus state"]


async def turn(until: Any) -> None:
    async with asyncio.timeout(30):
        while not until():  # noqa: ASYNC110  (nothing to wait for)
            await asyncio.sleep(0.001)


async def test_a_channel_that_is_away_is_told_once(logged: list[Any]) -> None:
    """However often it is tried, and once more when it is back; why is in the line."""
    channel = Flaky()
    channel.broken = {"open"}
    async with running(Bus(channel, "w", lambda: 0)):
        await turn(lambda: channel.opened > 5)
        assert states(logged) == ["away"] and logged[0]["reason"] == "no open"
        channel.broken.clear()
        await turn(lambda: states(logged) == ["away", "up"])


async def test_one_that_takes_nothing_is_away_and_does_not_flap(logged: list[Any]) -> None:
    """It can be opened and read: as long as something is to be sent that is not enough."""
    channel = Flaky()
    bus = Bus(channel, "w", lambda: 0)
    async with running(bus):
        await turn(lambda: channel.opened == 1)
        channel.broken = {"append"}
        bus.publish("a", {})
        await turn(lambda: channel.opened > 5)
        assert states(logged) == ["away"]
        channel.broken.clear()
        await turn(lambda: len(channel._entries) == 1)


async def test_what_waits_for_a_channel_is_bounded(logged: list[Any]) -> None:
    """The oldest are dropped, and counted in the line that says that it is back; the rest goes out in order."""
    channel = Flaky()
    channel.broken = {"open"}
    one, two = Bus(channel, "w1", lambda: 0), Bus(channel, "w2", lambda: 0)
    heard: list[int] = []
    two.subscribe("a", lambda message: heard.append(message.data["n"]))
    for n in range(QUEUE_MAX + 7):
        one.publish("a", {"n": n})
    async with running(one, two):
        await turn(lambda: states(logged) == ["away", "away"])
        channel.broken.clear()
        await turn(lambda: len(channel._entries) == QUEUE_MAX and states(logged).count("up") == 2)
        assert [line["dropped"] for line in logged if line.get("to") == "up"] in ([7, 0], [0, 7])
    kept = [message.data["n"] for message in await one.history("", {"a"}, 10_000)]
    assert kept == list(range(7, QUEUE_MAX + 7)) and heard == sorted(heard)


async def test_what_breaks_while_it_is_sent_is_sent_again() -> None:
    """In its place: before what was published later."""
    channel = Flaky()
    bus = Bus(channel, "w", lambda: 0)
    channel.broken = {"append"}
    async with running(bus):
        bus.publish("a", {"n": 1})
        await turn(lambda: channel.opened > 2)
        bus.publish("a", {"n": 2})
        channel.broken.clear()
        await turn(lambda: len(channel._entries) == 2)
    assert [message.data["n"] for message in await bus.history("", {"a"}, 10)] == [1, 2]


async def test_publishing_never_raises(logged: list[Any]) -> None:
    """What is no JSON goes as its text; what is too large does not go, and is told."""
    channel = Flaky()
    bus = Bus(channel, "w", lambda: 0)
    async with running(bus):
        bus.publish("a", {"n": {1, 2}, "o": OSError("x")})
        bus.publish("a", {"n": "x" * 70_000})
        await turn(lambda: len(channel._entries) == 1)
    [message] = await bus.history("", {"a"}, 10)
    assert message.data["o"] == "OSError('x')"
    assert [line["event"] for line in logged] == ["message too large for the bus"]


async def test_last_words_to_a_channel_that_is_away_are_counted(logged: list[Any]) -> None:
    """The end of a worker waits for nothing and raises nothing."""
    channel = Flaky()
    channel.broken = {"append"}
    bus = Bus(channel, "w", lambda: 0)
    bus.publish("a", {})
    await bus.close()
    assert [(line["to"], line["lost"]) for line in logged] == [("away", 1)]


async def test_a_callback_that_raises_harms_nobody(logged: list[Any]) -> None:
    """It is logged with the kind; the others are called."""
    channel = Flaky()
    bus, heard = Bus(channel, "w", lambda: 0), list[Message]()

    def fail(message: Message) -> None:
        raise ValueError(message.kind)

    bus.subscribe("a", fail)
    bus.subscribe("a", heard.append)
    async with running(bus):
        await turn(lambda: channel.opened == 1)
        other = Bus(channel, "other", lambda: 5)
        other.publish("a", {"n": 1})
        await other.close()
        await turn(lambda: heard)
    assert heard[0].time_ms == 5
    assert [line["kind"] for line in logged] == ["a"]


class Swallowing(Flaky):
    """Fails instead, where it is cancelled."""

    def __init__(self, verb: str) -> None:
        super().__init__()
        self._verb = verb
        self.waiting = False

    async def open(self) -> str:
        await self._wait("open")
        return await super().open()

    async def read(self, after: str, limit: int, *, wait: bool) -> Sequence[Entry]:
        await self._wait("read")
        return await super().read(after, limit, wait=wait)

    async def _wait(self, verb: str) -> None:
        if verb == self._verb:
            self.waiting = True
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                raise ConnectionError("broken") from None


@pytest.mark.parametrize("verb", ["open", "read"])
async def test_a_cancellation_that_a_channel_swallows_ends_it_all_the_same(verb: str) -> None:
    """A worker that stops does not wait for a bus that goes on."""
    channel = Swallowing(verb)
    task = asyncio.create_task(Bus(channel, "w", lambda: 0).run())
    await turn(lambda: channel.waiting)
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=5)
    assert done and task.cancelled()
