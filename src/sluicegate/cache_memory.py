"""The exact-match cache in the memory of one worker: at most so many bytes; what was asked for least lately goes first (core/cache.py)."""

from collections import OrderedDict
from collections.abc import Callable

from sluicegate.core.cache import ENTRY_BYTES, Entry


class MemoryCache:
    """A Store of this worker alone."""

    def __init__(self, max_bytes: int, clock: Callable[[], float]) -> None:
        """clock: seconds, monotonic."""
        self.size_bytes = self.evicted = 0
        self._max_bytes = max_bytes
        self._clock = clock
        self._kept: OrderedDict[bytes, tuple[Entry, float]] = OrderedDict()  # with the time at which it is too old; the last asked for is the last

    @property
    def entries(self) -> int:
        return len(self._kept)

    async def get(self, key: bytes) -> Entry | None:
        found = self._kept.get(key)
        if found is None:
            return None
        if found[1] <= self._clock():
            self._drop(key)
            return None
        self._kept.move_to_end(key)
        return found[0]

    def put(self, key: bytes, entry: Entry, ttl_ms: int) -> None:
        if key in self._kept:
            self._drop(key)
        size = _size(entry)
        if size > self._max_bytes:
            return
        while self.size_bytes + size > self._max_bytes:
            self._drop(next(iter(self._kept)))
            self.evicted += 1
        self._kept[key] = entry, self._clock() + ttl_ms / 1000
        self.size_bytes += size

    async def close(self) -> None:
        return

    def _drop(self, key: bytes) -> None:
        self.size_bytes -= _size(self._kept.pop(key)[0])


def _size(entry: Entry) -> int:
    return len(entry.body) + ENTRY_BYTES
