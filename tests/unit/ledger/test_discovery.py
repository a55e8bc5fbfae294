"""Who is believed about where the servers are. The servers are fakes; real ones: tests/e2e/test_redis_topology.py."""

import asyncio
from typing import Any

import pytest

from sluicegate.ledger.address import Address, Place
from sluicegate.ledger.contract import LedgerUnavailable
from sluicegate.ledger.discovery import ASKED_AT_ONCE, Discovery
from sluicegate.ledger.topology import SLOTS
from support_time import undisturbed

HALF = SLOTS // 2


class Told:
    """A server that says what the test wants, or fails so, or is silent."""

    def __init__(
        self, *, slots: Any = (), epoch: int = 1, state: str = "ok", master: Any = None, error: Exception | None = None, silent: bool = False
    ) -> None:
        self.slots = slots
        self.info = {"cluster_state": state, "cluster_current_epoch": str(epoch)}
        self.master = master
        self.error = error
        self.silent = silent
        self.asked = self.closed = 0

    async def execute_command(self, command: str) -> Any:
        await self._answer()
        return {"CLUSTER INFO": self.info, "CLUSTER SLOTS": [[*row] for row in self.slots]}[command]

    async def sentinel_master(self, service: str) -> Any:
        assert service == "main"
        await self._answer()
        return self.master

    async def aclose(self) -> None:
        self.closed += 1

    async def _answer(self) -> None:
        self.asked += 1
        if self.silent:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error


def discovery(url: str, timeout_s: float = 5.0, **servers: Told) -> Discovery:
    """Servers by host."""
    return Discovery(Place.parse(url), timeout_s, lambda at, timeout_s: servers[at.host])


def halves(first: str, second: str) -> list[Any]:
    return [(0, HALF - 1, [first, 1, b"id", []]), (HALF, SLOTS - 1, [second, 2, b"id", []], [b"replica", 3, b"id", []])]


async def test_a_map_of_a_cluster() -> None:
    """Masters and the ranges of their slots, entered as the URL says; a replica is none; a slot that nobody has is nobody's."""
    cluster = discovery("rediss+cluster://user:pw@a:1", a=Told(slots=halves("a", "b")[1:]))
    found = await cluster.find(())
    assert found.masters == (Address("b", 2, username="user", password="pw", tls=True),)
    assert set(found.owners[:HALF]) == {0xFFFF}
    assert set(found.owners[HALF:]) == {0}


@pytest.mark.parametrize("host", ["", b"", None, "?", b"?"])
async def test_a_server_that_does_not_say_its_host(host: Any) -> None:
    """It is where it was asked."""
    found = await discovery("redis+cluster://a:1", a=Told(slots=[(0, SLOTS - 1, [host, 7, b"id"])])).find(())
    assert found.masters == (Address("a", 7),)


async def test_the_newest_view_of_a_cluster_is_taken() -> None:
    """Of the highest epoch; one of a part that is cut off says so, and is not believed whatever its epoch."""
    servers = {
        "a": Told(slots=halves("old", "old"), epoch=4),
        "b": Told(slots=halves("new", "new"), epoch=5),
        "c": Told(slots=halves("cut", "cut"), epoch=9, state="fail"),
        "d": Told(error=ConnectionError("refused")),
    }
    found = await discovery("redis+cluster://a,b,c,d", **servers).find(())
    assert {address.host for address in found.masters} == {"new"}


async def test_known_masters_are_asked_too() -> None:
    """The servers of the URL may be gone. No more are asked at once than is needed, and connections to servers that are gone are closed."""
    gone, there = Told(error=ConnectionError("refused")), Told(slots=halves("b", "b"))
    cluster = discovery("redis+cluster://a", a=gone, b=there, c=there)
    assert {address.host for address in (await cluster.find((Address("b"), Address("c")))).masters} == {"b"}
    assert there.closed == 2  # b at its default port and c are no masters any more
    many = {f"h{i}": Told(slots=halves("a", "b")) for i in range(20)}
    await discovery("redis+cluster://h0", **many).find([Address(host) for host in many])
    assert sum(server.asked for server in many.values()) == ASKED_AT_ONCE * 2


async def test_a_silent_server_is_not_waited_for() -> None:
    """Once another has answered."""
    started = undisturbed()
    found = await discovery("redis+cluster://a,b", a=Told(silent=True), b=Told(slots=halves("x", "x"))).find(())
    assert {address.host for address in found.masters} == {"x"}
    assert undisturbed() - started < 1


async def test_nobody_answers() -> None:
    """Each is named with what is wrong with it, within the timeout."""
    servers = {"a": Told(silent=True), "b": Told(error=ConnectionError("refused")), "c": Told(slots=[])}
    with pytest.raises(LedgerUnavailable) as error:
        await discovery("redis+cluster://u:secret@a,b,c", 0.05, **servers).find(())
    for words in ("a:6379/0: no answer in time", "b:6379/0: refused", "c:6379/0: knows of no slots"):
        assert words in str(error.value)
    assert "secret" not in str(error.value)


async def test_the_newest_master_that_sentinels_name_is_taken() -> None:
    """A Sentinel that has not heard of a failover, or is cut off with the old master, has an older configuration."""
    sentinels = {
        "a": Told(master={"ip": "10.0.0.1", "port": 6379, "config-epoch": 3}),
        "b": Told(master={"ip": "10.0.0.2", "port": 6380, "config-epoch": 4}),
        "c": Told(error=ConnectionError("refused")),
    }
    found = await discovery("redis+sentinel://user:pw@a,b,c/main/2", **sentinels).find(())
    assert found.masters == (Address("10.0.0.2", 6380, db=2, username="user", password="pw"),)
    assert found.of("whatever") == found.masters[0]


async def test_connections_are_kept_and_closed_in_the_end() -> None:
    """A lookup does not connect anew."""
    connected = []
    server = Told(slots=halves("a", "a"))
    cluster = Discovery(Place.parse("redis+cluster://a:1"), 1.0, lambda at, timeout_s: connected.append(at) or server)
    for _ in range(3):
        await cluster.find(())
    assert len(connected) == 1
    await cluster.close()
    assert server.closed == 1
