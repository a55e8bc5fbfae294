"""Notices that files have changed, by looking at what their names lead to a few times a second.

A file that is written in place, one that another is renamed over, and a link that leads elsewhere (Kubernetes swaps `..data`, through which all files
of a ConfigMap are reached) all show in what `stat` says of the name. Nothing is asked of the kernel that a folder with the ledger's files, a network
file system or a hundred replicas would make dear or impossible, and a look costs microseconds.

Looks are made in a thread: a file system that hangs keeps nobody waiting but the next look.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

LOOK_S = 0.2

Stamp = tuple[tuple[int, ...], ...]


def stamp(files: Sequence[Path]) -> Stamp:
    """What tells that one of the files is another, or has other content; of one that is not there, nothing."""
    return tuple(map(_stamp, files))


def _stamp(file: Path) -> tuple[int, ...]:
    try:
        found = os.stat(file)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


class Watch:
    """Watches files from now on."""

    def __init__(self, files: Sequence[Path], sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._files = files
        self._sleep = sleep
        self._known = stamp(files)

    async def changed(self) -> None:
        """Until they are not as they were, and have been left alone from one look to the next: whoever writes in place may be half through."""
        last = self._known
        while True:
            await self._sleep(LOOK_S)
            now = await asyncio.to_thread(stamp, self._files)
            if now == last != self._known:
                self._known = now
                return
            last = now
