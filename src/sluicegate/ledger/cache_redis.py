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
from binascii import hexlify
from collections import OrderedDict
from collections.abc import Callable

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
POST_S = 0.01  # what is put goes out with the next lookup, and not later than this
LOOK_AGAIN_S = 1.0  # between two lookups of where the servers are

Say = Callable[..., None]  # (state), and why

_GET, _SET, _UNLINK = wire.raw("GET"), wire.raw("SET"), wire.raw("UNLINK")
# In the Redis protocol, with the digest in 64 hex digits. Written by hand: each is on the path of a request.
_NAME = b"$%d\r\n%b%%b\r\n" % (len(PREFIX) + 64, PREFIX.encode())
_GETTING = b"*2\r\n$3\r\nGET\r\n" + _NAME
_UNLINKING = b"*2\r\n$6\r\nUNLINK\r\n" + _NAME
_SETTING = b"*5\r\n$3\r\nSET\r\n" + _NAME + b"$%d\r\n%b\r\n$2\r\nPX\r\n$%d\r\n%d\r\n"


class RedisCache:
    """A Store in the Redis of a ledger's URL."""

    def __init__(self, url: str, timeout_ms: int, max_bytes: int, clock: Callable[[], float], say: Say) -> None:
        """timeout_ms: of the ledger. clock: seconds, monotonic. say: told the state, `there` or `away`, when it changes.

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
        self._only: Link | None = None  # where there is one server, once it was asked
        self._put: OrderedDict[bytes, tuple[int, float]] = OrderedDict()  # what this worker has put: bytes, and when it is too old; oldest first
        self._posted: list[tuple[Link, wire.Command, bytes]] = []  # that nobody waits for and that has not gone out
        self._posting: asyncio.TimerHandle | None = None
        self._say = say
        self._state = ""  # as it was told

    @property
    def entries(self) -> int:
        return len(self._put)

    async def get(self, key: bytes) -> Entry | None:
        if self._map is None:
            await asyncio.wait([self._find()], timeout=self._timeout_ms / 1000)
        link = self._only or self._link(key)
        if link is None:
            self._tell("away", "it is not known which server has it")
            return None
        if self._posted:
            self._send()
        try:
            found: bytes | None = await link.call(_GET, _GETTING % hexlify(key))
        except LedgerUnavailable as error:
            self._tell("away", str(error))
            return None
        if self._state != "there":
            self._tell("there")
        if found is None:
            return None
        try:
            return unpack(found)
        except (msgspec.DecodeError, TypeError):  # not ours
            return None

    def put(self, key: bytes, entry: Entry, ttl_ms: int) -> None:
        link, data, now = self._only or self._link(key), pack(entry), self._clock()
        if link is None:
            return
        put, size = self._put, len(data) + ENTRY_BYTES
        if key in put:
            self._forget(key)
        if size > self._max_bytes:
            self._post(link, _UNLINK, _UNLINKING % hexlify(key))
            return
        while put and (self.size_bytes + size > self._max_bytes or next(iter(put.values()))[1] <= now):
            oldest = next(iter(put))
            there = self._only or self._link(oldest)
            if self._forget(oldest) > now:
                self.evicted += 1
                if there is not None:
                    self._post(there, _UNLINK, _UNLINKING % hexlify(oldest))
        put[key] = size, now + ttl_ms / 1000
        self.size_bytes += size
        self._post(link, _SET, _SETTING % (hexlify(key), len(data), data, len(b"%d" % ttl_ms), ttl_ms))

    async def close(self) -> None:
        if self._posting is not None:
            self._posting.cancel()
        self._send()
        if self._finding is not None:
            self._finding.cancel()
            await asyncio.wait([self._finding])
        await asyncio.gather(*(link.close() for link in self._links.values()))
        if self._finder is not None:
            await self._finder.close()

    def _tell(self, state: str, reason: str = "") -> None:
        if state != self._state:
            self._state = state
            self._say(state, **({"reason": reason} if reason else {}))

    def _forget(self, key: bytes) -> float:
        """When it is too old."""
        size, until = self._put.pop(key)
        self.size_bytes -= size
        return until

    def _post(self, link: Link, command: wire.Command, packed: bytes) -> None:
        """Sends what nobody waits for, in order with all else, a little later: with a lookup it costs neither a write nor a turn of the loop."""
        self._posted.append((link, command, packed))
        if self._posting is None:
            self._posting = asyncio.get_running_loop().call_later(POST_S, self._post_is_due)

    def _post_is_due(self) -> None:
        self._posting = None
        self._send()

    def _send(self) -> None:
        for link, command, packed in self._posted:
            link.call(command, packed)
        self._posted.clear()

    def _link(self, key: bytes) -> Link | None:
        """To the server that has a key, if that is known."""
        address = self._map.of(PREFIX + key.hex()) if self._map is not None else None
        if address is None:
            self._doubt()
            return None
        link = self._links.get(address)
        if link is None:
            link = Link(address, self._timeout_ms, name="sluicegate-cache", log=_Silent(), on_trouble=self._doubt)
            self._links[address] = link
            link.start()
        if self._map is not None and not self._map.owners:
            self._only = link
        return link

    def _doubt(self) -> None:
        """Another server may be the right one."""
        if self._finder is not None:
            self._find()

    def _find(self) -> "asyncio.Task[None]":
        """Looks up where the servers are, unless that has just been done."""
        if self._finding is None or (self._finding.done() and self._clock() >= self._find_at):
            self._find_at = self._clock() + LOOK_AGAIN_S
            self._finding = asyncio.get_running_loop().create_task(self._found())
        return self._finding

    async def _found(self) -> None:
        assert self._finder is not None
        try:
            found = self._map = await self._finder.find(self._map.masters if self._map is not None else ())
        except LedgerUnavailable as error:
            self._tell("away", str(error))
            return
        self._only = None
        gone = [self._links.pop(address) for address in self._links.keys() - set(found.masters)]
        await asyncio.gather(*(link.close() for link in gone))


class _Silent:
    """A link's own words are about a ledger; what matters of a cache is said here."""

    def info(self, event: str, **fields: object) -> None:
        return

    def warning(self, event: str, **fields: object) -> None:
        return
