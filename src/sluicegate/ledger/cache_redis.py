"""The exact-match cache in the ledger's Redis, shared by all workers and replicas (core/cache.py), on links of its own (ledger/link.py).

An answer is one key, which Redis forgets when it is too old. In a Redis Cluster it is where its slot is, behind Sentinels at the master they name;
where that is, is looked up anew, in the background, when a server says or shows that it is no longer the right one.

A ledger's Redis must not evict, and without memory it refuses every admission. So each worker remembers what it has put there, and takes out its
oldest answers before they are more than so many bytes: all workers together never keep more than that each (restarted ones, until what they had kept
is too old).

How it fails: a server that is away, or does not answer within the timeout, knows nothing. No caller waits
longer than the timeout, and none at all while there is no connection.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec

from sluicegate.core.cache import ENTRY_BYTES, Entry, pack, unpack
from sluicegate.ledger import link as wire
from sluicegate.ledger.address import Address, Place
from sluicegate.ledger.contract import LedgerUnavailable
from sluicegate.ledger.discovery import Discovery
from sluicegate.ledger.link import Link
from sluicegate.ledger.topology import Map

PREFIX = "sg1:cache:1:"  # with the version of what is written; below no tree's: the seeding of a tree deletes what is there
TIMEOUT_MS = 200  # at most: a cache that is slower than that is no cache
LOOK_AGAIN_S = 1.0  # between two lookups of where the servers are

Say = Callable[..., None]  # (state), and why

_GET, _SET, _UNLINK = wire.raw("GET"), wire.raw("SET"), wire.raw("UNLINK")


class RedisCache:
    """A Store in the Redis of a ledger's URL."""

    def __init__(self, url: str, timeout_ms: int, max_bytes: int, clock: Callable[[], float], say: Say) -> None:
        """timeout_ms: of the ledger. clock: seconds, monotonic. say: told the state, `there` or `away`, with each answer.

        Raises ValueError for a URL that ledger/address.py does not understand.
        """
        place = Place.parse(url)
        self.size_bytes = self.evicted = 0
        self._timeout_ms = min(timeout_ms, TIMEOUT_MS)
        self._max_bytes = max_bytes
        self._clock = clock
        self._finder = None if place.kind == "server" else Discovery(place, timeout_ms / 1000)
        self._map: Map | None = Map(place.asked) if self._finder is None else None
        self._finding: asyncio.Task[None] | None = None
        self._find_at = 0.0
        self._links: dict[Address, Link] = {}
        self._put: OrderedDict[str, tuple[int, float]] = OrderedDict()  # what this worker has put: bytes, and when it is too old; oldest first
        self._say = say

    @property
    def entries(self) -> int:
        return len(self._put)

    async def get(self, key: bytes) -> Entry | None:
        name = PREFIX + key.hex()
        if self._map is None:
            self._find()
            if self._finding is not None:
                await asyncio.wait([self._finding], timeout=self._timeout_ms / 1000)
        try:
            found: bytes | None = await self._call(name, _GET, "GET", name)
            self._say("there")
            return unpack(found) if found is not None else None
        except LedgerUnavailable as error:
            self._say("away", reason=str(error))
        except (msgspec.DecodeError, TypeError):  # not ours
            pass
        return None

    def put(self, key: bytes, entry: Entry, ttl_ms: int) -> None:
        name, data, now = PREFIX + key.hex(), pack(entry), self._clock()
        link, size = self._link(name), len(data) + ENTRY_BYTES
        if link is None:
            return
        self._forget(name)
        if size > self._max_bytes:
            self._call(name, _UNLINK, "UNLINK", name)
            return
        while self._put and (self.size_bytes + size > self._max_bytes or next(iter(self._put.values()))[1] <= now):
            oldest = next(iter(self._put))
            if self._forget(oldest) > now:
                self.evicted += 1
                self._call(oldest, _UNLINK, "UNLINK", oldest)
        self._put[name] = size, now + ttl_ms / 1000
        self.size_bytes += size
        link.call(_SET, wire.pack("SET", name, data, "PX", ttl_ms))

    async def close(self) -> None:
        if self._finding is not None:
            self._finding.cancel()
            await asyncio.wait([self._finding])
        await asyncio.gather(*(link.close() for link in self._links.values()))
        if self._finder is not None:
            await self._finder.close()

    def _forget(self, name: str) -> float:
        """When it is too old; 0 if this worker has not put it."""
        size, until = self._put.pop(name, (0, 0.0))
        self.size_bytes -= size
        return until

    def _call(self, name: str, command: wire.Command, *arguments: str | bytes | int) -> "asyncio.Future[Any]":
        link = self._link(name)
        if link is not None:
            return link.call(command, wire.pack(*arguments))
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        wire.fail(future, "it is not known which server has it")
        return future

    def _link(self, name: str) -> Link | None:
        """To the server that has a key, if that is known."""
        if self._map is None:
            self._find()
        address = self._map.of(name) if self._map is not None else None
        if address is None:
            return None
        link = self._links.get(address)
        if link is None:
            link = Link(address, self._timeout_ms, name="sluicegate-cache", log=_Silent(), on_trouble=self._doubt)
            self._links[address] = link
            link.start()
        return link

    def _doubt(self) -> None:
        """Another server may be the right one."""
        if self._finder is not None:
            self._find()

    def _find(self) -> None:
        """Looks up where the servers are, unless that has just been done."""
        if (self._finding is None or self._finding.done()) and self._clock() >= self._find_at:
            self._find_at = self._clock() + LOOK_AGAIN_S
            self._finding = asyncio.get_running_loop().create_task(self._found())

    async def _found(self) -> None:
        assert self._finder is not None
        try:
            found = self._map = await self._finder.find(self._map.masters if self._map is not None else ())
        except LedgerUnavailable as error:
            self._say("away", reason=str(error))
            return
        gone = [self._links.pop(address) for address in self._links.keys() - set(found.masters)]
        await asyncio.gather(*(link.close() for link in gone))


class _Silent:
    """A link's own words are about a ledger; what matters of a cache is said here."""

    def info(self, event: str, **fields: object) -> None:
        return

    def warning(self, event: str, **fields: object) -> None:
        return
