"""The bus of a worker that is alone: its channel is a list in this process. Several buses of one process may share one, which tests do."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from itertools import islice

from sluicegate.bus import KEPT, Entry

WAIT_S = 1.0


class MemoryChannel:
    """See bus.Channel. It is never away."""

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque(maxlen=KEPT)
        self._last = 0
        self._more = asyncio.Event()  # replaced when it is set: each event is one batch

    async def open(self) -> str:
        return self._entries[-1][0] if self._entries else ""

    async def append(self, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            self._last += 1
            self._entries.append((f"{self._last:016d}", body))
        more, self._more = self._more, asyncio.Event()
        more.set()

    async def read(self, after: str, limit: int, *, wait: bool) -> Sequence[Entry]:
        found = self._behind(after, limit)
        if not found and wait:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WAIT_S):
                    await self._more.wait()
            found = self._behind(after, limit)
        await asyncio.sleep(0)
        return found

    async def close(self) -> None:
        """Nothing is held."""

    def _behind(self, after: str, limit: int) -> list[Entry]:
        behind = self._last - int(after or 0)
        start = max(0, len(self._entries) - behind)
        return list(islice(self._entries, start, start + limit))
