"""The bus of many machines: a stream in the ledger's Redis, read with XREAD, which waits there for the next entry.

With redis-py, as nothing of it is on a request's path, and on connections of its own. The stream is one key: in a Redis Cluster the server of its
slot keeps it, behind Sentinels the master that they name. Where that is, is asked anew whenever a connection fails or an answer is an error, so a
failover or a slot that moves costs the bus a moment and nothing else. Every call is bounded in time.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

from sluicegate.bus import KEPT, Entry
from sluicegate.ledger.address import Place
from sluicegate.ledger.discovery import Discovery, connect
from sluicegate.ledger.topology import Map

KEY = "sg1:bus"  # below no tree's prefix: the seeding of a tree deletes what is there
FIELD = b"m"
WAIT_MS = 1_000  # for which XREAD waits


class RedisChannel:
    """See bus.Channel. An id is that of the stream, padded so that texts order as entries do."""

    def __init__(self, url: str, timeout_ms: int = 1_000) -> None:
        """url: the ledger's. timeout_ms: of a call that does not wait."""
        self._place = Place.parse(url)
        self._timeout_s = timeout_ms / 1000
        self._finder = None if self._place.kind == "server" else Discovery(self._place, self._timeout_s)
        self._opened: Any = None  # redis-py's types do not say what its commands return

    async def open(self) -> str:
        await self._disconnect()
        found = await self._finder.find(()) if self._finder is not None else Map(self._place.asked)
        address = found.of(KEY)
        if address is None:
            raise ConnectionError("the cluster has no server for the bus")
        self._opened = connect(address, self._timeout_s + WAIT_MS / 1000, "sluicegate-bus", self._timeout_s)
        last = await self._opened.xrevrange(KEY, count=1)
        return _padded(last[0][0]) if last else ""

    async def append(self, bodies: Sequence[bytes]) -> None:
        async with self._client.pipeline(transaction=False) as pipeline:
            for body in bodies:
                pipeline.xadd(KEY, {FIELD: body}, maxlen=KEPT, approximate=True)
            await pipeline.execute()

    async def read(self, after: str, limit: int, *, wait: bool) -> Sequence[Entry]:
        streams = await self._client.xread({KEY: _bare(after)}, count=limit, block=WAIT_MS if wait else None)
        return [(_padded(id_), fields.get(FIELD, b"")) for _, entries in streams for id_, fields in entries]

    async def close(self) -> None:
        await self._disconnect()
        if self._finder is not None:
            await self._finder.close()

    @property
    def _client(self) -> Any:
        if self._opened is None:
            raise ConnectionError("not connected")
        return self._opened

    async def _disconnect(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            with contextlib.suppress(Exception):  # it may be broken in any way
                await opened.aclose()


def _padded(stream_id: bytes) -> str:
    ms, _, number = stream_id.decode().partition("-")
    return f"{ms:0>13}-{number:0>6}"


def _bare(id_: str) -> str:
    ms, _, number = id_.partition("-")
    return f"{int(ms or 0)}-{int(number or 0)}"
