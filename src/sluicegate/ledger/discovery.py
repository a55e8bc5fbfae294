"""Which servers of a Redis Cluster, or behind Sentinels, take writes: asked with redis-py, off the path of any request.

Some servers are asked at once and the newest answer is taken, so that one that is cut off, or has not heard yet, misleads nobody: in a cluster that
of the highest epoch among those whose cluster works, of Sentinels that of the highest configuration epoch. Servers that are silent are not waited
for once another has answered, but for a moment.

Fails by LedgerUnavailable, which says why, when nobody answers anything useful within the timeout.
"""

import asyncio
import random
from array import array
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from sluicegate.ledger.address import Address, Place
from sluicegate.ledger.contract import LedgerUnavailable
from sluicegate.ledger.topology import NOBODY, SLOTS, Map

ASKED_AT_ONCE = 5
GRACE_S = 0.1  # for others, once one has answered

Answer = tuple[tuple[int, ...], Map]  # how new it is; what it says


class Discovery:
    """Asks. Connections are kept from one time to the next."""

    def __init__(self, place: Place, timeout_s: float, connect: Callable[[Address, float], Any] | None = None) -> None:
        self._place = place
        self._timeout_s = timeout_s
        self._connect = connect or _connect_to_ask
        self._clients: dict[Address, Any] = {}  # redis-py's types do not say what its commands return

    async def find(self, masters: Sequence[Address]) -> Map:
        """masters: those known by now, who are asked too."""
        place = self._place
        if place.kind == "sentinel":
            return await self._newest([(address, self._of_sentinel(address)) for address in place.asked])
        some = list(dict.fromkeys((*masters, *place.asked)))
        if len(some) > ASKED_AT_ONCE:
            some = random.sample(some, ASKED_AT_ONCE)
        found = await self._newest([(address, self._of_cluster(address)) for address in some])
        await self._forget(self._clients.keys() - {*place.asked, *found.masters})
        return found

    async def close(self) -> None:
        await self._forget(self._clients.keys())

    async def _newest(self, asked: list[tuple[Address, Coroutine[Any, Any, Answer]]]) -> Map:
        tasks = {asyncio.create_task(question): address for address, question in asked}
        answers: list[Answer] = []
        reasons: list[str] = []
        pending, timeout_s = set(tasks), self._timeout_s
        deadline = asyncio.get_running_loop().time() + timeout_s
        try:
            while pending and timeout_s > 0:
                done, pending = await asyncio.wait(pending, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    try:
                        answers.append(task.result())
                    except Exception as error:  # whatever it is, others may have answered
                        reasons.append(f"{tasks[task]}: {error or type(error).__name__}")
                if answers:
                    deadline = min(deadline, asyncio.get_running_loop().time() + GRACE_S)
                timeout_s = deadline - asyncio.get_running_loop().time()
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
        if not answers:
            reasons += [f"{tasks[task]}: no answer in time" for task in pending]
            raise LedgerUnavailable(f"nobody says where the ledger is: {'; '.join(sorted(reasons))}")
        return max(answers, key=lambda answer: answer[0])[1]

    async def _of_cluster(self, asked: Address) -> Answer:
        server = self._client(asked)
        info = await server.execute_command("CLUSTER INFO")
        ranges = await server.execute_command("CLUSTER SLOTS")
        masters: dict[Address, int] = {}
        owners = array("H", [NOBODY]) * SLOTS
        for first, last, (host, port, *_), *_ in ranges:
            master = self._place.entry.at(_text(host) if host not in (b"", "", None, b"?", "?") else asked.host, int(port))
            owners[first : last + 1] = array("H", [masters.setdefault(master, len(masters))]) * (last - first + 1)
        if not masters:
            raise ValueError("knows of no slots: it is in no cluster, or in one that has not been made yet")
        return (info["cluster_state"] == "ok", int(info["cluster_current_epoch"])), Map(tuple(masters), owners)

    async def _of_sentinel(self, asked: Address) -> Answer:
        master = await self._client(asked).sentinel_master(self._place.service)
        return (int(master["config-epoch"]),), Map((self._place.entry.at(str(master["ip"]), int(master["port"])),))

    def _client(self, at: Address) -> Any:
        found = self._clients.get(at)
        if found is None:
            found = self._clients[at] = self._connect(at, self._timeout_s)
        return found

    async def _forget(self, addresses: Iterable[Address]) -> None:
        for address in list(addresses):
            await self._clients.pop(address).aclose()


def _connect_to_ask(at: Address, timeout_s: float) -> Redis:
    return connect(at, timeout_s, "sluicegate-discovery")


def connect(at: Address, timeout_s: float, name: str, connect_timeout_s: float | None = None) -> Redis:
    """A client that asks once. name: its own, as Redis lists it. connect_timeout_s: where calls may take longer than connecting."""
    where: dict[str, Any] = {"unix_socket_path": at.path} if at.path else {"host": at.host, "port": at.port}
    return Redis(
        **where,
        db=at.db,
        username=at.username or None,
        password=at.password or None,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s if connect_timeout_s is None else connect_timeout_s,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
        client_name=name,
        ssl=at.tls,
        ssl_ca_certs=at.ca_file or None,
    )


def _text(host: str | bytes) -> str:
    return host.decode() if isinstance(host, bytes) else host
