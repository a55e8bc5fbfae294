"""The journal: a worker's append-only file of settlements, so that nothing that was used is lost.

A settlement is appended before it goes to the ledger and acknowledged when the ledger has taken it. What it adds to the usage goes to the records
in batches; `recorded` tells how far they are. What a dead worker left is replayed by whoever finds its files unlocked (leftovers.py). Both sides
take a line once however often it is sent: the ledger by its hold id, the records by writer and sequence number.

Invariants: one write per loop turn, in the order of the appends; a file ends in a whole line unless its writer died within a write; a segment
(about 4 MiB) is deleted once all of its lines are acknowledged, in any order, and recorded, and never before; its file is locked (flock) while its
worker lives. A line survives `kill -9` of the worker once the loop turn that appended it is over (it is in the page cache), not a power cut.

How it fails: a directory that cannot be written at the start raises OSError. Later nothing raises: lines that cannot be written stay in memory
and are retried every second, up to `memory_bytes`; beyond that the oldest are dropped and counted. `on_state` hears of each change once.
"""

import asyncio
import contextlib
import errno
import fcntl
import itertools
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from sluicegate.core.claims import Ref, RefSet, Settlement
from sluicegate.core.record import Record, Spent

SEGMENT_BYTES = 4 * 1024 * 1024
MEMORY_BYTES = 64 * 1024 * 1024  # lines kept while the disk refuses them
RETRY_S = 1.0
SUFFIX = ".journal"
FORMAT = 2

_names = itertools.count(1)


class Loop(Protocol):
    """What the journal needs of an event loop."""

    def call_soon(self, callback: Callable[[], object], /) -> Any: ...

    def call_later(self, delay: float, callback: Callable[[], object], /) -> Any: ...


# -- lines --------------------------------------------------------------------------------------------------------------------------------


class Entry(msgspec.Struct, gc=False):
    """One line, read back. settlement: None where the ledger need not be told. writer and seq name the line among those of all workers."""

    writer: str  # "" in format 1, as seq is 0
    seq: int
    tree: str
    settlement: Settlement | None
    record: Record | None  # how its request ended, if it has; None in format 1
    spent: Spent | None  # what it adds to the usage
    hold_id: str  # or the request's own id


class _StoredRef(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """`Ref` on disk: the same fields in the same order, without their names."""

    key: str
    kind: Literal["b", "s", "w", "o"]
    ceiling: int
    start_ms: int
    end_ms: int
    gain: int
    per_ms: int
    reserved: int = 0  # format 1 ends before this
    marks: tuple[int, ...] = ()


class _Line(msgspec.Struct, array_like=True, gc=False):
    """As it is read. It is written as a tuple of the same: a Struct takes longer to make."""

    format: int
    writer: str
    seq: int
    epoch: str
    hold_id: str
    mode: Literal["settle", "force", "cancel", "none"]
    tree: str
    refs: tuple[_StoredRef, ...]
    actual: tuple[int, ...]
    record: Record | None
    spent: Spent | None


class _RecordOf1(msgspec.Struct, gc=False):
    """What format 1 said of the usage."""

    key_id: str = ""
    model: str = ""
    deployment: str = ""
    attempts: tuple[msgspec.Raw, ...] = ()
    input_tokens: int = 0
    output_tokens: int = 0
    cost_nano_usd: int = 0


class _LineOf1(msgspec.Struct, array_like=True, gc=False):
    """The format before this one: without writer, number, epoch and usage."""

    format: int
    time_ms: int
    hold_id: str
    mode: Literal["settle", "force", "cancel"]
    tree: str
    refs: tuple[_StoredRef, ...]
    actual: tuple[int, ...]
    record: _RecordOf1 | None


_encode = msgspec.json.Encoder().encode
_encode_into = msgspec.json.Encoder().encode_into
_decode_line = msgspec.json.Decoder(_Line).decode
_decode_line_of_1 = msgspec.json.Decoder(_LineOf1).decode
_written = bytearray()  # the line under work

# The static part of a RefSet, encoded once. Values hold the RefSet itself, so that its id stays taken while it is a key here.
_refs_cache: dict[int, tuple[RefSet, msgspec.Raw]] = {}
_REFS_CACHE_SIZE = 1024


def encode(settlement: Settlement, record: Record | None, spent: Spent | None, writer: str, seq: int) -> bytes:
    """One line, newline included."""
    refs = settlement.refs
    cached = _refs_cache.get(id(refs))
    raw = cached[1] if cached is not None else _encode_refs(refs)
    hold_id, mode, actual = settlement.hold_id, settlement.mode, settlement.actual
    _encode_into((FORMAT, writer, seq, settlement.epoch, hold_id, mode, refs.tree, raw, actual, record, spent), _written)
    _written.append(10)
    return bytes(_written)


def encode_usage(tree: str, hold_id: str, record: Record | None, spent: Spent | None, writer: str, seq: int) -> bytes:
    """A line about what the ledger need not be told."""
    _encode_into((FORMAT, writer, seq, "", hold_id, "none", tree, (), (), record, spent), _written)
    _written.append(10)
    return bytes(_written)


def _encode_refs(refs: RefSet) -> msgspec.Raw:
    if len(_refs_cache) >= _REFS_CACHE_SIZE:
        _refs_cache.clear()  # windows have moved on; the few in use come back at once
    raw = msgspec.Raw(_encode([msgspec.structs.astuple(ref) for ref in refs.refs]))
    _refs_cache[id(refs)] = (refs, raw)
    return raw


def decode(line: bytes) -> Entry:
    """Reads one line back, its RefSet rebuilt. Raises ValueError if it is not a whole line of this format or the one before."""
    try:
        if line.startswith(b"[1,"):
            return _read_1(_decode_line_of_1(line))
        stored = _decode_line(line)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error
    if stored.format != FORMAT:
        raise ValueError(f"a line of format {stored.format}, this version reads 1 and {FORMAT}")
    settlement = None
    if stored.mode != "none":
        settlement = Settlement(stored.hold_id, _refset(stored), stored.actual, stored.mode, stored.epoch)
    return Entry(stored.writer, stored.seq, stored.tree, settlement, stored.record, stored.spent, stored.hold_id)


def _read_1(stored: _LineOf1) -> Entry:
    spent, record = None, stored.record
    if record is not None:
        amounts = 1, len(record.attempts), record.input_tokens, record.output_tokens, record.cost_nano_usd
        spent = Spent(record.key_id, record.model, record.deployment, stored.time_ms, *amounts)
    return Entry("", 0, stored.tree, Settlement(stored.hold_id, _refset(stored), stored.actual, stored.mode), None, spent, stored.hold_id)


def _refset(stored: _Line | _LineOf1) -> RefSet:
    if len(stored.refs) != len(stored.actual):
        raise ValueError(f"{len(stored.actual)} amounts for {len(stored.refs)} counters")
    return RefSet(stored.tree, [Ref(*msgspec.structs.astuple(ref)) for ref in stored.refs])


# -- writing ------------------------------------------------------------------------------------------------------------------------------


class JournalState(msgspec.Struct, frozen=True):
    """What `on_state` is told. dropped: lines lost so far because memory was full too."""

    status: Literal["ok", "unwritable", "dropping"]
    reason: str
    waiting: int  # lines in memory only
    dropped: int


class _Segment:
    """One locked file. `outstanding` holds the sequence numbers of its lines that nobody has acknowledged; `last` is that of its last line."""

    __slots__ = ("fd", "full", "last", "outstanding", "path", "size")

    def __init__(self, directory: Path, writer: str) -> None:
        self.fd, self.path = _create_locked(directory, writer)
        self.size = 0
        self.full = False
        self.last = 0
        self.outstanding: set[int] = set()

    def write(self, data: bytes) -> None:
        """All of it or nothing. After a failure the segment is full: what part of a line it may end in stays its end, which a reader ignores."""
        try:
            if os.write(self.fd, data) != len(data):
                os.ftruncate(self.fd, self.size)
                raise OSError(errno.ENOSPC, "short write: " + os.strerror(errno.ENOSPC))
        except OSError:
            self.full = True
            raise
        self.size += len(data)

    def close(self, recorded: int) -> None:
        """Leaves the file to be replayed, unless all of its lines are acknowledged and recorded."""
        if not self.outstanding and self.last <= recorded:
            with contextlib.suppress(OSError):
                self.path.unlink()
        os.close(self.fd)


class Journal:
    """The journal of one worker. All methods are sync and none but `open` raises. `writer` names it, `next_seq` the line to be appended next."""

    def __init__(
        self,
        directory: Path,
        writer: str,
        loop: Loop,
        on_state: Callable[[JournalState], object] | None = None,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        self.writer = writer
        self.next_seq = 1
        self._directory = directory
        self._loop = loop
        self._on_state = on_state
        self._segment_bytes = segment_bytes
        self._memory_bytes = memory_bytes
        self._segments: deque[_Segment] = deque()  # oldest first; the last one is written to
        self._waiting: dict[int, bytes] = {}  # appended, not written, in order
        self._waiting_bytes = 0
        self._recorded = 0
        self._scheduled = False
        self._retry_due = False
        self._closed = False
        self.state = JournalState("ok", "", 0, 0)
        self.dropped = 0  # lines lost since the start

    @classmethod
    def open(
        cls,
        directory: str | Path,
        writer: str,
        loop: Loop | None = None,
        on_state: Callable[[JournalState], object] | None = None,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        memory_bytes: int = MEMORY_BYTES,
    ) -> "Journal":
        """Makes the directory (owner only) and proves that it can be written. Raises OSError if not. writer: an id that nobody else has had."""
        path = Path(directory)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        _Segment(path, writer).close(0)
        return cls(path, writer, loop or asyncio.get_running_loop(), on_state, segment_bytes=segment_bytes, memory_bytes=memory_bytes)

    @property
    def backlog(self) -> int:
        """Lines appended and not acknowledged, in memory or on disk."""
        return len(self._waiting) + sum(len(segment.outstanding) for segment in self._segments)

    def append(self, line: bytes) -> int:
        """Takes one whole line (newline included) and returns its sequence number. It is written at the end of this loop turn."""
        seq = self.next_seq
        self.next_seq = seq + 1
        self._waiting[seq] = line
        self._waiting_bytes += len(line)
        if not self._scheduled and not self._retry_due:
            self._scheduled = True
            self._loop.call_soon(self._turn)
        elif self._waiting_bytes > self._memory_bytes:
            self._shed()
        return seq

    def unwritten(self) -> bytes:
        """The lines that the disk has not taken yet."""
        return b"".join(self._waiting.values())

    def acknowledge(self, seqs: Sequence[int]) -> None:
        """These lines need no replay any more. Unknown and repeated numbers change nothing."""
        if self._waiting:
            for seq in seqs:
                self._waiting_bytes -= len(self._waiting.pop(seq, b""))
        for segment in list(self._segments):
            outstanding = segment.outstanding
            if not outstanding.isdisjoint(seqs):
                outstanding.difference_update(seqs)
                self._finish(segment)

    def recorded(self, upto: int) -> None:
        """The records have the usage of all lines up to this one."""
        self._recorded = upto
        for segment in list(self._segments):
            self._finish(segment)

    def flush(self) -> bool:
        """Writes what waits, now. False if it could not; it is retried."""
        if not self._waiting:
            return True
        try:
            self._write()
        except OSError as error:
            self._report("unwritable", str(error))
            self._retry_later()
            return False
        self._waiting.clear()
        self._waiting_bytes = 0
        self._report("ok", "")
        return True

    def close(self) -> None:
        """Writes what waits and lets go of the files. Those with lines that are not acknowledged or not recorded stay, to be replayed."""
        self._closed = True
        if not self.flush():
            self.dropped += len(self._waiting)
            self._report("dropping", self.state.reason)
        for segment in self._segments:
            segment.close(self._recorded)
        self._segments.clear()

    def _write(self) -> None:
        if not self._segments or self._segments[-1].full:
            self._segments.append(_Segment(self._directory, self.writer))
        segment = self._segments[-1]
        try:
            segment.write(b"".join(self._waiting.values()))
        except OSError:
            self._finish(segment)
            raise
        segment.outstanding.update(self._waiting)
        segment.last = self.next_seq - 1
        segment.full = segment.size >= self._segment_bytes

    def _finish(self, segment: _Segment) -> None:
        if segment.full and not segment.outstanding and segment.last <= self._recorded:
            segment.close(self._recorded)
            self._segments.remove(segment)

    def _turn(self) -> None:
        self._scheduled = False
        if not self._closed:
            self.flush()

    def _retry_later(self) -> None:
        if not self._retry_due and not self._closed:
            self._retry_due = True
            self._loop.call_later(RETRY_S, self._retry)

    def _retry(self) -> None:
        self._retry_due = False
        self._turn()

    def _shed(self) -> None:
        """Memory is full while the disk refuses lines: try once more, then drop the oldest, counted."""
        if self.flush():
            return
        while self._waiting_bytes > self._memory_bytes:
            oldest = next(iter(self._waiting))
            self._waiting_bytes -= len(self._waiting.pop(oldest))
            self.dropped += 1
        self._report("dropping", self.state.reason)

    def _report(self, status: Literal["ok", "unwritable", "dropping"], reason: str) -> None:
        if status == self.state.status or (status == "unwritable" and self.state.status == "dropping"):
            return  # one report per change; dropping includes unwritable
        self.state = JournalState(status, reason, len(self._waiting), self.dropped)
        if self._on_state is not None:
            self._on_state(self.state)


def _create_locked(directory: Path, writer: str) -> tuple[int, Path]:
    """A new empty file under our lock. A replayer may meet it before we lock it and delete it as empty: then the next name is tried."""
    while True:
        path = directory / f"{writer}-{time.time_ns()}-{next(_names)}{SUFFIX}"
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            if lock(fd) and os.fstat(fd).st_nlink:
                return fd, path
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def lock(fd: int) -> bool:
    """Takes a file's lock for this process. False: another one lives and has it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
