"""Idempotency keys and kept answers in the ledger's Redis, on connections of their own (core/once.py says what a store does).

With redis-py, as only requests that bring such a key pay for it. A key is one hash of its own, which Redis forgets when its lease or the answer's
time is over. In a Redis Cluster it is where its slot is, behind Sentinels at the master they name; where that is, is asked anew when a call fails,
and the call is made once more: each may be.
"""

import asyncio
from typing import Any

from redis.exceptions import RedisError

from sluicegate.core.once import OTHER, RUNNING, TAKEN, Found, Kept, StoreUnavailable, pack, unpack
from sluicegate.ledger.address import Address, Place
from sluicegate.ledger.contract import LedgerUnavailable
from sluicegate.ledger.discovery import Discovery, connect
from sluicegate.ledger.topology import Map

PREFIX = "sg1:once:"  # below no tree's: the seeding of a tree deletes what is there

_TAKE = """
local key = redis.call('HMGET', KEYS[1], 'print', 'owner', 'answer')
if not key[1] then
  redis.call('HSET', KEYS[1], 'print', ARGV[1], 'owner', ARGV[2])
elseif key[1] ~= ARGV[1] then
  return {'other'}
elseif key[3] then
  return {'finished', key[3]}
elseif key[2] ~= ARGV[2] then
  return {'running'}
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {'taken'}
"""
_KEEP = """
local owner = redis.call('HGET', KEYS[1], 'owner')
if not owner or owner == ARGV[2] then
  redis.call('HSET', KEYS[1], 'print', ARGV[1], 'owner', ARGV[2], 'answer', ARGV[4])
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
"""
_GIVE_UP = """
local key = redis.call('HMGET', KEYS[1], 'owner', 'answer')
if key[1] == ARGV[1] and not key[2] then
  redis.call('DEL', KEYS[1])
end
"""
_FOUND = {b"taken": TAKEN, b"running": RUNNING, b"other": OTHER}


class RedisStore:
    """A Store in the Redis of a ledger's URL."""

    def __init__(self, url: str, timeout_ms: int) -> None:
        """timeout_ms: of one call. Raises ValueError for a URL that ledger/address.py does not understand."""
        place = Place.parse(url)
        self._timeout_s = timeout_ms / 1000
        self._finder = None if place.kind == "server" else Discovery(place, self._timeout_s)
        self._map = Map(place.asked) if self._finder is None else None
        self._clients: dict[Address, Any] = {}  # redis-py's types do not say what its commands return

    async def take(self, name: str, print: str, owner: str, lease_ms: int) -> Found:
        state, *answer = await self._call(_TAKE, name, print, owner, lease_ms)
        return Found("finished", unpack(answer[0])) if answer else _FOUND[state]

    async def renew(self, name: str, print: str, owner: str, lease_ms: int) -> None:
        await self.take(name, print, owner, lease_ms)

    async def keep(self, name: str, print: str, owner: str, answer: Kept, kept_ms: int) -> None:
        await self._call(_KEEP, name, print, owner, kept_ms, pack(answer))

    async def give_up(self, name: str, owner: str) -> None:
        await self._call(_GIVE_UP, name, owner)

    async def close(self) -> None:
        clients, self._clients = list(self._clients.values()), {}
        await asyncio.gather(*(client.aclose() for client in clients), return_exceptions=True)
        if self._finder is not None:
            await self._finder.close()

    async def _call(self, script: str, name: str, *arguments: str | int | bytes) -> Any:
        key = PREFIX + name
        for last in (False, True):
            try:
                return await (await self._client(key)).eval(script, 1, key, *arguments)
            except (RedisError, OSError, TimeoutError, LedgerUnavailable) as error:
                if last:
                    raise StoreUnavailable(str(error) or type(error).__name__) from None
                if self._finder is not None:
                    self._map = None

    async def _client(self, key: str) -> Any:
        if self._map is None:
            assert self._finder is not None
            self._map = await self._finder.find(())
        address = self._map.of(key)
        if address is None:
            raise ConnectionError("the cluster has no server for this key")
        found = self._clients.get(address)
        if found is None:
            found = self._clients[address] = connect(address, self._timeout_s, "sluicegate-once")
        return found
