"""Who is asking: from the header that a request presents to the key of the policy.

Secrets are known by their SHA-256 alone. What has been presented and found is remembered by the header itself, so that a secret is hashed once; this
memory is bounded, belongs to one policy, and goes with it.
"""

import hashlib
from collections.abc import Mapping

from sluicegate import reject
from sluicegate.core.tenants import Key

PRESENTED_MAX = 10_000


class Credentials:
    """The keys of one policy, by SHA-256 digest."""

    def __init__(self, keys: Mapping[bytes, Key]) -> None:
        self._keys = keys
        self._presented: dict[bytes, Key] = {}

    def identify(self, headers: Mapping[bytes, bytes]) -> Key:
        """The key that a request presents as a bearer token, or in `x-api-key` as Anthropic's clients do. Raises Reject 401."""
        presented = headers.get(b"authorization") or _bearer(headers.get(b"x-api-key", b""))
        key = self._presented.get(presented)
        return key if key is not None else self._look_up(presented)

    def _look_up(self, presented: bytes) -> Key:
        secret = presented[7:].strip() if presented[:7].lower() == b"bearer " else b""
        key = self._keys.get(hashlib.sha256(secret).digest()) if secret else None
        if key is None:
            raise reject.unauthenticated(bool(secret))
        if len(self._presented) >= PRESENTED_MAX:
            self._presented.clear()
        self._presented[presented] = key
        return key


def _bearer(secret: bytes) -> bytes:
    return b"Bearer " + secret if secret else b""
