"""What the exact-match cache keeps of an answer, and the contract of who keeps it (cache_memory.py, cache_redis.py).

An answer is kept once, in one piece, in the dialect of the client that got it, whichever way it came; a stream is made of it for who wants one.
"""

from typing import Protocol

import msgspec


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One answer."""

    body: bytes  # in one piece
    deployment: str  # that gave it
    finish: str  # finish reason
    cost_nano_usd: int  # of the attempt that gave it
    stored_ms: int


class Store(Protocol):
    """Keeps answers by the digests of their requests. Nothing here raises: a store that is away knows nothing and keeps nothing."""

    size_bytes: int  # of what this worker has kept, about
    evicted: int  # answers so far, for want of room

    @property
    def entries(self) -> int:
        """How many answers this worker has kept that it may have still."""
        ...

    async def get(self, key: bytes) -> Entry | None:
        """An answer that is not too old."""
        ...

    def put(self, key: bytes, entry: Entry, ttl_ms: int) -> None:
        """Keeps an answer, instead of one that was there; it need not have arrived when this returns."""
        ...

    async def close(self) -> None: ...


ENTRY_BYTES = 512  # of an entry, beside its body

pack = msgspec.msgpack.Encoder().encode
unpack = msgspec.msgpack.Decoder(Entry).decode
