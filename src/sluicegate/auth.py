"""Who is asking: from the header that a request presents to a key, of the file or of the directory.

Secrets are known by their SHA-256 alone. What has been presented and found is remembered by the header itself, so that a secret is hashed once; this
memory is bounded, belongs to one policy, and goes with it, and with every change of the directory. What is bound to a time or to addresses is not in
it: that is looked at with each request.
"""

import hashlib
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from sluicegate import reject
from sluicegate.config.entries import Network, contains
from sluicegate.core.tenants import Key

PRESENTED_MAX = 10_000


class Entry(msgspec.Struct, frozen=True):
    """A key of the directory, as a secret leads to it."""

    key: Key
    blocked: bool = False
    expires_ms: int = 0  # 0: never
    networks: tuple[tuple[Network, ...], ...] = ()  # one of each must have the address

    @property
    def unconditional(self) -> bool:
        """It will do for every request, until the directory changes."""
        return not self.blocked and not self.expires_ms and not self.networks


Find = Callable[[bytes], Awaitable[Entry | None]]  # by digest


class Credentials:
    """The keys of one policy, by SHA-256 digest, and those of the directory."""

    def __init__(
        self,
        keys: Mapping[bytes, Key],
        blocked: Mapping[bytes, Key] | None = None,
        find: Find | None = None,
        time_ms: Callable[[], int] | None = None,
    ) -> None:
        """blocked: keys of the file that are. find: asks the directory."""
        self._keys = keys
        self._blocked = blocked or {}
        self._find = find
        self._time_ms = time_ms
        self._presented: dict[bytes, Key] = {}

    def known(self, headers: Mapping[bytes, bytes]) -> Key | None:
        """The key that a request presents as a bearer token, or in `x-api-key` as Anthropic's clients do, if it has been seen before."""
        return self._presented.get(headers.get(b"authorization") or _bearer(headers.get(b"x-api-key", b"")))

    async def find(self, headers: Mapping[bytes, bytes], peer: str) -> Key:
        """The same, whatever it takes. Raises Reject 401, 403; RecordsUnavailable where the directory does not answer."""
        presented = headers.get(b"authorization") or _bearer(headers.get(b"x-api-key", b""))
        secret = presented[7:].strip() if presented[:7].lower() == b"bearer " else b""
        if not secret:
            raise reject.unauthenticated(False)
        digest = hashlib.sha256(secret).digest()
        key = self._keys.get(digest)
        if key is None:
            if digest in self._blocked:
                raise reject.key_blocked()
            entry = await self._find(digest) if self._find is not None else None
            if entry is None:
                raise reject.unauthenticated(True)
            self._check(entry, peer)
            key = entry.key
            if not entry.unconditional:
                return key
        if len(self._presented) >= PRESENTED_MAX:
            self._presented.clear()
        self._presented[presented] = key
        return key

    async def of_secret(self, secret: str, peer: str) -> Key:
        """The same by the secret alone. Raises as `find` does."""
        return await self.find({b"authorization": b"Bearer " + secret.encode("latin-1", "replace")}, peer)

    def forget(self) -> None:
        """What was found may not be so any more."""
        self._presented.clear()

    def _check(self, entry: Entry, peer: str) -> None:
        if entry.blocked:
            raise reject.key_blocked()
        if entry.expires_ms and self._time_ms is not None and self._time_ms() >= entry.expires_ms:
            raise reject.key_expired()
        if not all(contains(networks, peer) for networks in entry.networks):
            raise reject.address_not_allowed()


def _bearer(secret: bytes) -> bytes:
    return b"Bearer " + secret if secret else b""
