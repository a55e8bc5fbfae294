"""What workers that are gone left in their journals, to be replayed: the usage to the records, the settlements to the ledger.

All files of one worker (one `writer`) are taken together and in order, or not at all: the records know a writer's lines by how far they are, so a
later file must not come before an earlier one. A file stays until `remove`; not removed, it is found again.

How it fails: OSError where the directory or a file cannot be read.
"""

import contextlib
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from sluicegate.journal import SUFFIX, Entry, decode, lock


class File:
    """One file, read: its lines in order."""

    def __init__(self, path: Path, data: bytes) -> None:
        self.path = path
        self.entries: list[Entry] = []
        self.corrupt: list[bytes] = []  # whole lines that are not readable, as they are; skipped
        *lines, rest = data.split(b"\n")
        self.torn = rest  # the last line, if its writer died within the write: ignored
        for number, line in enumerate(lines, 1):
            try:
                entry = decode(line)
            except ValueError:
                self.corrupt.append(line)
                continue
            if not entry.writer:  # of the format before
                entry.writer, entry.seq = path.stem, number
            self.entries.append(entry)


class Leftover:
    """The files of one worker that is gone, oldest first. They stay locked by us while it is in use."""

    def __init__(self, descriptors: dict[Path, int]) -> None:
        self._descriptors = descriptors
        self.paths = list(descriptors)

    def read(self, path: Path) -> File:
        """One of the files. From any thread."""
        with open(self._descriptors[path], "rb", closefd=False) as file:
            file.seek(0)
            return File(path, file.read())

    def remove(self) -> None:
        """Deletes the files: everything in them has been taken."""
        for path in self.paths:
            path.unlink(missing_ok=True)


def leftovers(directory: str | Path) -> Iterator[Leftover]:
    """What each worker left that no longer lives, oldest first, each locked until the next one is asked for."""
    by_writer: dict[str, list[Path]] = defaultdict(list)
    for path in sorted((path for path in Path(directory).glob("*" + SUFFIX) if path.is_file()), key=_age):
        by_writer[path.name.partition("-")[0]].append(path)
    for paths in by_writer.values():
        descriptors: dict[Path, int] = {}
        try:
            if all(_take(path, descriptors) for path in paths) and descriptors:
                yield Leftover(descriptors)
        finally:
            for fd in descriptors.values():
                os.close(fd)


def own(directory: str | Path, writer: str) -> list[Path]:
    """The files of a worker that lives, for itself, oldest first."""
    return sorted(Path(directory).glob(f"{writer}-*{SUFFIX}"), key=_age)


def read_own(directory: str | Path, writer: str) -> Iterator[File]:
    """Those files, read one after the other as they are asked for: they may be many. From any thread."""
    for path in own(directory, writer):
        with contextlib.suppress(FileNotFoundError):  # all of it has been taken meanwhile
            yield File(path, path.read_bytes())


def _take(path: Path, into: dict[Path, int]) -> bool:
    """Locks a file and keeps it, if it is still there. False: its worker lives, or another one replays it."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return True  # another worker was faster
    if not lock(fd):
        os.close(fd)
        return False
    if os.fstat(fd).st_nlink:
        into[path] = fd
    else:
        os.close(fd)
    return True


def _age(path: Path) -> str:
    return path.name.partition("-")[2]
