"""What is kept of requests that a client marks with `Idempotency-Key`, so that each is made once (idempotency.py), and the contract of who keeps it.

A key is taken under a lease, renewed while the request runs; when a lease has run out, as its worker has died, it is as if the key had never been
taken. Who takes is named by an owner, an id that nobody else has. Every verb may be called again with the same arguments.
"""

from typing import Literal, Protocol

import msgspec


class StoreUnavailable(Exception):
    """It did not answer in time, cannot be reached or refused. The outcome of the call is unknown."""


class Kept(msgspec.Struct, frozen=True, array_like=True):
    """A finished answer."""

    status: int
    content_type: str
    request_id: str  # of the request that it answered
    body: bytes | None  # None: too large to be kept


class Found(msgspec.Struct, frozen=True):
    """What is known of a key.

    taken: it was free, or this owner's already. running: another owner has it. other: it came with another request. finished: with `answer`.
    """

    state: Literal["taken", "running", "other", "finished"]
    answer: Kept | None = None


TAKEN, RUNNING, OTHER = Found("taken"), Found("running"), Found("other")


class Store(Protocol):
    """Keeps keys and answers for all workers. name: of a key. print: of the request that it came with. Every verb may raise StoreUnavailable."""

    async def take(self, name: str, print: str, owner: str, lease_ms: int) -> Found:
        """Takes a key if it is free."""
        ...

    async def renew(self, name: str, print: str, owner: str, lease_ms: int) -> None:
        """Goes on with a key that this owner has, also if it was lost meanwhile."""
        ...

    async def keep(self, name: str, print: str, owner: str, answer: Kept, kept_ms: int) -> None:
        """The answer, unless another owner has taken the key meanwhile."""
        ...

    async def give_up(self, name: str, owner: str) -> None:
        """A key that this owner has is free again."""
        ...

    async def close(self) -> None: ...


pack = msgspec.msgpack.Encoder().encode
unpack = msgspec.msgpack.Decoder(Kept).decode
