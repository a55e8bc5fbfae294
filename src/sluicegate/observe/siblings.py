"""The integers of all workers of a machine: whichever is scraped answers for all.

Each has a Unix socket beside the journals, over which it gives its counts to the others and asks for theirs.

How it fails: a sibling that does not answer within 200 ms is left out of that scrape; the socket of one that has died is removed. Counters of a
worker that has ended are gone with it, which Prometheus reads as a reset.
"""

import asyncio
import os
from pathlib import Path

import msgspec

from sluicegate.observe.exposition import render
from sluicegate.observe.metrics import Counts, Metrics

ASK_S = 0.2
SOCKET_PATH_MAX = 100  # bytes; the kernel's limit is 104 on macOS and 108 on Linux

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Counts).decode


class Siblings:
    """This worker's socket `worker-<pid>.sock` in a directory that all workers share, and the way to the others'."""

    def __init__(self, directory: str | Path, metrics: Metrics) -> None:
        self._directory = Path(directory)
        self._metrics = metrics
        self._path = self._directory / f"worker-{os.getpid()}.sock"
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Serves our counts. Raises OSError if the directory cannot be used or its path is too long for a socket."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if len(os.fsencode(self._path)) > SOCKET_PATH_MAX:
            raise OSError(f"path too long for a Unix socket ({SOCKET_PATH_MAX} bytes): {self._path}")
        self._path.unlink(missing_ok=True)  # of a dead worker with our pid
        self._server = await asyncio.start_unix_server(self._serve, self._path)
        await asyncio.gather(*map(_ask, self._others()))  # removes the sockets of workers that were killed

    async def stop(self) -> None:
        """Closes and removes our socket."""
        if self._server is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)

    async def scrape(self) -> bytes:
        """The text of all workers together."""
        total = _decode(_encode(self._metrics.counts()))  # a copy, to add to
        for counts in await asyncio.gather(*map(_ask, self._others())):
            if counts is not None:
                total.add(counts)
        return render(total)

    def _others(self) -> list[Path]:
        return [path for path in self._directory.glob("worker-*.sock") if path != self._path]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_encode(self._metrics.counts()))
        writer.close()
        try:
            async with asyncio.timeout(ASK_S):
                await writer.wait_closed()
        except (OSError, TimeoutError):
            writer.transport.abort()


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


async def _ask(path: Path) -> Counts | None:
    """One sibling's counts; None if it does not answer in time. The socket of a dead one is removed."""
    writer = None
    try:
        async with asyncio.timeout(ASK_S):
            reader, writer = await asyncio.open_unix_connection(path)
            return _decode(await reader.read(-1))
    except ConnectionRefusedError:
        _remove(path)
    except (OSError, TimeoutError, msgspec.DecodeError):
        pass
    finally:
        if writer is not None:
            writer.close()
    return None
