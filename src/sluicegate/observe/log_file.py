"""Lines that are appended to a file, or to stdout, by a thread of its own: whole lines or none, whatever the disk does.

    file = LogFile(path, Rotation(size_bytes, keep, gzip), on_state)
    file.write(lines)        # at once; False: some are lost, since too many wait
    file.takes(size)         # whether a line of so many bytes would not be
    file.lost                # lines so far, these included
    file.close(timeout_s)

Several processes may append to one file: each holds a lock on it while it does, and looks whether it still is the file of that name. Who finds it
full renames it, by the time, under that lock; then it is compressed, and the oldest are deleted, in a thread again.

Invariants: whoever writes never waits. What a full disk has taken of a line is taken back. One long line may wait beside all others, whatever its
length, so that none is lost to it; of further long ones there may be as many as leave half of what may wait to the short.

How it fails: lines that cannot be written, or for which there is no room, are counted (`lost`) and left out, the next ones are tried anew;
`on_state(state, reason)` is told, from either thread, when that begins and ends: where too many waited, once all of them are written. Nothing is
raised.
"""

import contextlib
import errno
import fcntl
import gzip
import os
import re
import select
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import NamedTuple

WAITING_MAX = 16 << 20  # bytes that may wait for the disk, beside one long line
LONG = 1 << 20  # bytes; a line of more is long, and so many are enough for one write
OPENED_MAX = 100  # times in a row that a file is found renamed by others
PIPE_WAIT_S = 1.0
STDOUT = "stdout"
STDOUT_FD = 1
_FULL = "too many lines wait"
_ROTATED = re.compile(r"\.[0-9]{8}T[0-9]{6}\.[0-9]{6}(\.gz)?")


class Rotation(NamedTuple):
    """When a file is put aside, and what becomes of it."""

    size_bytes: int
    keep: int  # files that were put aside
    gzip: bool


class LogFile:
    """One worker's end of a file. to: `stdout`, or a path."""

    def __init__(
        self, to: str, rotation: Rotation, on_state: Callable[[str, str], None], time_ns: Callable[[], int] = time.time_ns, state: str = "ok"
    ) -> None:
        """time_ns: the wall clock. state: what on_state was told last, of the file before this one."""
        self._target = _Shared(STDOUT_FD) if to == STDOUT else _File(Path(to), rotation, time_ns)
        self._on_state = on_state
        self._queue: SimpleQueue[_Batch | None] = SimpleQueue()
        self._given = self._done = 0  # bytes that count; each is counted up by one thread only, and so are the two below
        self._refused = self._failed = 0  # lines
        self._long = False  # the long line that does not count waits
        self._full = False  # lines were refused, and some of those that waited then still do
        self._state = state
        self._lock = Lock()  # on what both threads decide by, and never held while anything is written
        self._thread = Thread(target=self._run, name="request log", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> int:
        """Lines."""
        return self._refused + self._failed

    def write(self, lines: list[bytes]) -> bool:
        """Takes whole lines, each with its end. False: for some there is no room."""
        size = sum(map(len, lines))
        if size <= LONG and self._given - self._done + size <= WAITING_MAX:  # as nearly always
            self._given += size
            self._queue.put(_Batch(lines, size, size >= LONG))
            return True
        with self._lock:
            refused = [self._take(line) for line in lines].count(False)
            if refused:
                self._refused += refused
                self._full = True
                self._tell("failing", _FULL)
        return not refused

    def takes(self, size: int) -> bool:
        """Whether there is room for a line of so many bytes."""
        is_long = size > LONG
        return (is_long and not self._long) or self._given - self._done + size <= (WAITING_MAX // 2 if is_long else WAITING_MAX)

    def _take(self, line: bytes) -> bool:
        size = len(line)
        if not self.takes(size):
            return False
        if size > LONG and not self._long:
            self._long = True
            self._queue.put(_Batch([line], 0, is_much=True, is_beside=True))
        else:
            self._given += size
            self._queue.put(_Batch([line], size, size >= LONG))
        return True

    def close(self, timeout_s: float) -> None:
        """Waits until everything is written, or the time is over."""
        self._queue.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        more = True
        while more:
            batches = [self._queue.get()]
            while (last := batches[-1]) is not None and not last.is_much:
                try:
                    batches.append(self._queue.get_nowait())
                except Empty:
                    break
            more = batches[-1] is not None
            if given := [batch for batch in batches if batch is not None]:
                self._append(b"".join([line for batch in given for line in batch.lines]), sum([batch.size for batch in given]), given[-1].is_beside)
        self._target.close()

    def _append(self, data: bytes, size: int, has_long: bool) -> None:
        """size: bytes of it that count. has_long: the long line that does not is among them."""
        try:
            kept, reason = self._target.append(data)
        except OSError as error:
            kept, reason = 0, _why(error)
        with self._lock:
            if kept < len(data):
                self._failed += data.count(b"\n", kept)
            self._done += size
            self._long = self._long and not has_long
            self._full = self._full and (self._long or self._given > self._done)
            self._tell("failing" if reason or self._full else "ok", reason or (_FULL if self._full else ""))

    def _tell(self, state: str, reason: str) -> None:
        if state != self._state:
            self._state = state
            self._on_state(state, reason)


class _Batch(NamedTuple):
    """Lines that were given together."""

    lines: list[bytes]
    size: int  # bytes of them that count
    is_much: bool = False  # enough for one write
    is_beside: bool = False  # the long line that does not count


class _Shared:
    """A descriptor that other processes write to as well, one at a time."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def append(self, data: bytes) -> tuple[int, str]:
        """How many bytes of whole lines were written, and why not all."""
        with contextlib.suppress(OSError):  # what cannot be locked is written to all the same
            fcntl.lockf(self._fd, fcntl.LOCK_EX)
        try:
            return _write(self._fd, data)
        finally:
            with contextlib.suppress(OSError):
                fcntl.lockf(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """It is the process's own."""


class _File:
    """A file by its path. What is no regular file (a pipe, /dev/full) is neither cut nor put aside."""

    def __init__(self, path: Path, rotation: Rotation, time_ns: Callable[[], int]) -> None:
        self._path = path
        self._rotation = rotation
        self._time_ns = time_ns
        self._fd: int | None = None
        self._tidying: Thread | None = None

    def append(self, data: bytes) -> tuple[int, str]:
        """How many bytes of whole lines are in the file now, and why not all (or what else is wrong). Raises OSError where it cannot be opened."""
        done, reason = 0, ""
        while done < len(data):
            try:
                tried, kept, reason = self._append(data[done:] if done else data)
            except OSError as error:
                if not done:
                    raise
                return done, _why(error)
            done += kept
            if kept < tried:
                break
        return done, reason

    def _append(self, data: bytes) -> tuple[int, int, str]:
        """As many lines as there is room for: how many bytes these are, how many of them are in the file now, and why not all."""
        reason = ""
        for _ in range(OPENED_MAX):
            fd = self._opened()
            fcntl.flock(fd, fcntl.LOCK_EX)
            try:
                found = os.fstat(fd)
                if not self._is(found):  # renamed by another process, which has made a new one
                    self.close()
                elif not stat.S_ISREG(found.st_mode):
                    return len(data), *_write(fd, data)
                elif some := data if reason else self._fitting(data, found.st_size):
                    kept, why = _append_whole(fd, some, found.st_size)
                    return len(some), kept, why or reason
                else:
                    reason = self._put_aside()
            finally:
                if self._fd is not None:
                    fcntl.flock(fd, fcntl.LOCK_UN)
        return len(data), 0, "others rename it all the time"

    def _fitting(self, data: bytes, size: int) -> bytes:
        """The lines for which a file of this size has room: one at least, if it is empty."""
        room = self._rotation.size_bytes - size
        if len(data) <= room:
            return data
        end = data.rfind(b"\n", 0, max(room, 0)) + 1
        return data[: end if end or size else (data.find(b"\n") + 1 or len(data))]

    def close(self) -> None:
        """And with it, its lock is given up."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _opened(self) -> int:
        if self._fd is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        return self._fd

    def _is(self, found: os.stat_result) -> bool:
        try:
            named = os.stat(self._path)
        except FileNotFoundError:
            return False
        return (named.st_dev, named.st_ino) == (found.st_dev, found.st_ino)

    def _put_aside(self) -> str:
        """Why it cannot be, "" if it is."""
        seconds, rest = divmod(self._time_ns() // 1_000, 1_000_000)
        try:
            os.rename(self._path, f"{self._path}.{time.strftime('%Y%m%dT%H%M%S', time.gmtime(seconds))}.{rest:06}")
        except OSError as error:
            return f"cannot be rotated: {_why(error)}"
        self.close()
        if self._tidying is None or not self._tidying.is_alive():
            self._tidying = Thread(target=tidy, args=(self._path, self._rotation), name="rotated logs", daemon=True)
            self._tidying.start()
        return ""


def _append_whole(fd: int, data: bytes, size: int) -> tuple[int, str]:
    """Appends to a regular file of this size, which nobody else appends to meanwhile."""
    torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"  # of a process that was killed as it wrote: a line of its own, which nobody can read
    kept, why = _write(fd, b"\n" + data if torn else data)
    if why:
        with contextlib.suppress(OSError):
            os.ftruncate(fd, size + kept)
    return max(kept - torn, 0), why


def _write(fd: int, data: bytes) -> tuple[int, str]:
    """How many bytes of whole lines were written, and why not all."""
    view, done = memoryview(data), 0
    while done < len(data):
        try:
            done += os.write(fd, view[done:])
        except BlockingIOError:  # somebody has made the pipe so
            select.select([], [fd], [], PIPE_WAIT_S)
        except OSError as error:
            return data.rfind(b"\n", 0, done) + 1, _why(error)
    return done, ""


def _why(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, "") or str(error)


def rotated(path: Path) -> list[Path]:
    """What was put aside of a file, the oldest first."""
    with contextlib.suppress(OSError):
        return sorted(one for one in path.parent.iterdir() if one.name.startswith(path.name) and _ROTATED.fullmatch(one.name[len(path.name) :]))
    return []


def tidy(path: Path, rotation: Rotation) -> None:
    """Deletes the oldest, compresses the others. Where that cannot be done, they stay as they are, and the next time it is tried again."""
    files = rotated(path)
    kept = max(len(files) - rotation.keep, 0)
    for file in files[:kept]:
        with contextlib.suppress(OSError):
            file.unlink()
    if rotation.gzip:
        for file in files[kept:]:
            if file.suffix != ".gz":
                with contextlib.suppress(OSError):
                    _compress(file)


def _compress(file: Path) -> None:
    """One that another process compresses is left to it. Nobody may read the copy who may not read the file, at no moment."""
    part = file.with_name(file.name + ".gz.part")
    with file.open("rb") as source:
        fcntl.flock(source.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not file.exists():
            return
        try:
            part.unlink(missing_ok=True)  # of a process that was killed
            fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, stat.S_IMODE(os.fstat(source.fileno()).st_mode))
            with os.fdopen(fd, "wb") as whole, gzip.GzipFile("", "wb", fileobj=whole) as target:
                shutil.copyfileobj(source, target, 1 << 20)
            part.rename(file.with_name(file.name + ".gz"))
            file.unlink()
        except OSError:
            part.unlink(missing_ok=True)
            raise
