"""The journal over real files: what is written when, what stays, what a crash leaves, and what a full disk does."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sluicegate import journal
from sluicegate.core.claims import Ref, RefSet, Settlement
from sluicegate.core.record import Attempt, Record
from sluicegate.journal import Entry, Journal, JournalState, decode, encode, leftover

REFS = RefSet(
    "acme",
    [
        Ref("sg1:{acme}:c:acme:usd:month:2026-11", "w", 500_000_000_000, 1_793_491_200_000, 1_796_083_200_000),
        Ref("sg1:{acme}:c:acme/team-a:requests:minute", "b", 120, gain=1, per_ms=500),
        Ref("sg1:{acme}:c:acme/@k:tokens:slide", "s", 9, per_ms=1_000),
        Ref("sg1:{acme}:c:acme/@k:concurrent", "o", 8),
    ],
)


class FakeLoop:
    """Runs callbacks when the test says so."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], object]] = []
        self.later: list[tuple[float, Callable[[], object]]] = []

    def call_soon(self, callback: Callable[[], object], /) -> None:
        self.soon.append(callback)

    def call_later(self, delay: float, callback: Callable[[], object], /) -> None:
        self.later.append((delay, callback))

    def turn(self) -> None:
        """One loop turn."""
        due, self.soon = self.soon, []
        for callback in due:
            callback()

    def pass_time(self) -> None:
        """Every timer fires."""
        due, self.later = self.later, []
        for _, callback in due:
            callback()


def settlement(number: int) -> Settlement:
    return Settlement(f"req_{number}.0", REFS, (123_456_789 + number, 1, 117, 0))


def line(number: int) -> bytes:
    return encode(settlement(number), None, 1_000 + number)


def open_journal(directory: Path, loop: FakeLoop, **sizes: int) -> tuple[Journal, list[JournalState]]:
    states: list[JournalState] = []
    return Journal.open(directory, loop, states.append, **sizes), states


def files(directory: Path) -> list[Path]:
    return sorted(directory.iterdir())


def ids(directory: Path) -> list[str]:
    return [entry.settlement.hold_id for file in leftover(directory) for entry in file.entries]


@pytest.fixture
def loop() -> FakeLoop:
    return FakeLoop()


def test_line_comes_back_whole() -> None:
    """A line carries the settlement, its counters with their figures, and the record."""
    record = Record(
        "req_7", 5, "acme/@k", "chat", attempts=(Attempt("a/b", "429"), Attempt("a/c", "200", 7, "yes")), cost_nano_usd=2**52, error='"\n '
    )
    written = Settlement("req_7.1", REFS, (2**52 - 1, 1, 0, 0), "force")
    entry = decode(encode(written, record, 99))
    assert (entry.settlement.hold_id, entry.settlement.actual, entry.settlement.mode) == ("req_7.1", (2**52 - 1, 1, 0, 0), "force")
    assert (entry.settlement.refs.tree, entry.settlement.refs.refs) == ("acme", REFS.refs)
    assert (entry.record, entry.time_ms) == (record, 99)


def test_line_has_one_newline_at_its_end() -> None:
    """Text from a client cannot break a line in two."""
    data = encode(settlement(1), Record("r", 1, model="a\nb\r\u2028", client_user="\n"), 1)
    assert data.count(b"\n") == 1 and data.endswith(b"\n")


def test_stored_counter_has_the_fields_of_a_ref() -> None:
    """The stored form follows `Ref` field by field: a field added there must be stored too."""
    assert journal._StoredRef.__struct_fields__ == Ref.__struct_fields__


def test_cached_counters_are_not_confused() -> None:
    """Each RefSet is written with its own counters, however many there are and though ids are reused."""
    for number in range(3_000):
        refs = RefSet("t", [Ref(f"k{number}", "w", number)])
        assert decode(encode(Settlement("h", refs, (1,)), None, 0)).settlement.refs.refs == refs.refs


@pytest.mark.parametrize(
    "bad", [b"", b"{}", b"[]", b"[1]", b"nonsense", b"\xff\xfe", b"\x00" * 40, line(1)[:-20], line(1).replace(b"[1,", b"[9,", 1)]
)
def test_unreadable_lines_are_value_errors(bad: bytes) -> None:
    """Whatever stands in a line, reading it gives an entry or a ValueError."""
    with pytest.raises(ValueError):
        decode(bad)


def test_one_write_per_loop_turn(tmp_path: Path, loop: FakeLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines appended in one turn are written together, in order, at its end."""
    writes: list[bytes] = []
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: writes.append(data) or real(fd, data))
    own, _ = open_journal(tmp_path, loop)
    own.append(line(1))
    own.append(line(2))
    assert writes == []
    loop.turn()
    own.append(line(3))
    loop.turn()
    assert writes == [line(1) + line(2), line(3)]


def test_nothing_stays_when_all_is_acknowledged(tmp_path: Path, loop: FakeLoop) -> None:
    """A clean end leaves no file."""
    own, _ = open_journal(tmp_path, loop)
    seqs = [own.append(line(n)) for n in range(5)]
    loop.turn()
    assert len(files(tmp_path)) == 1 and own.backlog == 5
    for seq in reversed(seqs):
        own.acknowledge(seq)
    assert own.backlog == 0
    own.close()
    assert files(tmp_path) == []


def test_close_writes_what_waits_and_keeps_it(tmp_path: Path, loop: FakeLoop) -> None:
    """Lines that nobody acknowledged are found after a clean end, also those of the last turn."""
    own, _ = open_journal(tmp_path, loop)
    own.append(line(1))
    own.close()
    assert ids(tmp_path) == ["req_1.0"]


def test_acknowledged_before_it_was_written(tmp_path: Path, loop: FakeLoop) -> None:
    """A line that is acknowledged within its own turn is never written."""
    own, _ = open_journal(tmp_path, loop)
    own.acknowledge(own.append(line(1)))
    loop.turn()
    assert own.backlog == 0 and files(tmp_path) == []


def test_repeated_and_unknown_acknowledgements(tmp_path: Path, loop: FakeLoop) -> None:
    """Acknowledging twice, or a number that never was, deletes nothing else."""
    own, _ = open_journal(tmp_path, loop)
    first = own.append(line(1))
    own.append(line(2))
    loop.turn()
    for seq in (first, first, 999, 0, -1):
        own.acknowledge(seq)
    assert own.backlog == 1
    own.close()
    assert ids(tmp_path) == ["req_1.0", "req_2.0"]  # applied lines of a file that stays are replayed too: both sides are idempotent


def test_segments_are_deleted_in_any_order(tmp_path: Path, loop: FakeLoop) -> None:
    """A full segment goes as soon as its last line is acknowledged, whatever older ones still wait for."""
    own, _ = open_journal(tmp_path, loop, segment_bytes=2 * len(line(1)))
    seqs = []
    for number in range(6):
        seqs.append(own.append(line(number)))
        loop.turn()
    assert len(files(tmp_path)) == 3
    own.acknowledge(seqs[3])
    own.acknowledge(seqs[2])
    assert len(files(tmp_path)) == 2
    own.acknowledge(seqs[0])
    own.acknowledge(seqs[1])
    assert len(files(tmp_path)) == 1
    own.close()
    assert ids(tmp_path) == ["req_4.0", "req_5.0"]


def test_files_in_use_are_left_alone(tmp_path: Path, loop: FakeLoop) -> None:
    """Nobody replays a file whose worker lives."""
    own, _ = open_journal(tmp_path, loop, segment_bytes=1)
    own.append(line(1))
    loop.turn()
    own.append(line(2))
    loop.turn()
    assert len(files(tmp_path)) == 2
    assert list(leftover(tmp_path)) == []
    own.close()
    assert ids(tmp_path) == ["req_1.0", "req_2.0"]


def test_two_replayers_never_share_a_file(tmp_path: Path, loop: FakeLoop) -> None:
    """While one process replays a file another one does not see it; not removed, it is found again."""
    own, _ = open_journal(tmp_path, loop)
    own.append(line(1))
    own.close()
    first = leftover(tmp_path)
    assert [entry.settlement.hold_id for entry in next(first).entries] == ["req_1.0"]
    assert list(leftover(tmp_path)) == []
    first.close()
    for file in leftover(tmp_path):
        file.remove()
    assert files(tmp_path) == []


def test_replayed_oldest_first(tmp_path: Path, loop: FakeLoop) -> None:
    """Files come in the order in which they were begun."""
    for number in range(5):
        own, _ = open_journal(tmp_path, loop)
        own.append(line(number))
        own.close()
    assert ids(tmp_path) == [f"req_{n}.0" for n in range(5)]


@pytest.mark.parametrize("cut", [1, 30, len(line(2)) - 1])
def test_torn_last_line(tmp_path: Path, cut: int) -> None:
    """A last line without its end is ignored and reported; those before it count."""
    (tmp_path / "1-1-1.journal").write_bytes(line(1) + line(2)[:cut])
    (found,) = leftover(tmp_path)
    assert [entry.settlement.hold_id for entry in found.entries] == ["req_1.0"]
    assert found.torn == line(2)[:cut] and found.corrupt == []


def test_corrupt_middle_line(tmp_path: Path) -> None:
    """A line that is not readable is reported and skipped; the others count."""
    (tmp_path / "1-1-1.journal").write_bytes(line(1) + b"\x00\x00garbage\xff\n" + line(2))
    (found,) = leftover(tmp_path)
    assert [entry.settlement.hold_id for entry in found.entries] == ["req_1.0", "req_2.0"]
    assert found.corrupt == [b"\x00\x00garbage\xff"] and found.torn == b""


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    """Only journal files are read; a directory that does not exist has none."""
    (tmp_path / "notes.txt").write_bytes(b"x")
    (tmp_path / "d.journal").mkdir()
    assert list(leftover(tmp_path)) == []
    assert list(leftover(tmp_path / "nowhere")) == []


def test_file_deleted_before_it_was_locked(tmp_path: Path, loop: FakeLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replayer that meets a new, still unlocked and empty file may delete it: the journal then takes another one."""
    real, deleted = journal._lock, []

    def lock(fd: int) -> bool:
        if not deleted:
            deleted.extend(files(tmp_path))
            deleted[0].unlink()
        return real(fd)

    monkeypatch.setattr(journal, "_lock", lock)
    own, _ = open_journal(tmp_path, loop)
    own.append(line(1))
    own.close()
    assert len(deleted) == 1 and ids(tmp_path) == ["req_1.0"]


def test_unwritable_directory_at_the_start(tmp_path: Path, loop: FakeLoop) -> None:
    """A journal that cannot be written is an error before the first request, not after it."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError):
        Journal.open(tmp_path / "file", loop)


class Disk:
    """Stands in for os.write: full, or with room for some bytes more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._write = os.write
        self.room: int | None = None
        monkeypatch.setattr(os, "write", self.write)

    def write(self, fd: int, data: bytes) -> int:
        if self.room is None:
            return self._write(fd, data)
        if self.room == 0:
            raise OSError(28, "No space left on device")
        part, self.room = data[: self.room], max(0, self.room - len(data))
        return self._write(fd, part)


def test_full_disk_keeps_lines_in_memory_and_retries(tmp_path: Path, loop: FakeLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the disk is full nothing raises, one report is made, and each line is there once there is room again."""
    disk = Disk(monkeypatch)
    own, states = open_journal(tmp_path, loop)
    first = own.append(line(0))
    loop.turn()
    disk.room = 0
    for number in range(1, 4):
        own.append(line(number))
        loop.turn()
    loop.pass_time()
    assert [state.status for state in states] == ["unwritable"]
    assert "No space left" in states[0].reason
    assert own.backlog == 4 and loop.soon == [] and len(loop.later) == 1
    disk.room = None
    loop.pass_time()
    assert [state.status for state in states] == ["unwritable", "ok"]
    own.acknowledge(first)
    own.close()
    assert ids(tmp_path) == ["req_1.0", "req_2.0", "req_3.0"] and loop.later == []


@pytest.mark.parametrize("room", [1, 40, len(line(1)), len(line(1)) + 40])
def test_short_write_is_taken_back(tmp_path: Path, loop: FakeLoop, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """A disk that fills up within a write leaves no half line and no line twice."""
    disk = Disk(monkeypatch)
    own, _ = open_journal(tmp_path, loop)
    disk.room = room
    own.append(line(1))
    own.append(line(2))
    loop.turn()
    assert own.backlog == 2
    disk.room = None
    loop.pass_time()
    own.close()
    found = list(leftover(tmp_path))
    assert [entry.settlement.hold_id for file in found for entry in file.entries] == ["req_1.0", "req_2.0"]
    assert all(file.torn == b"" and file.corrupt == [] for file in found)


def test_acknowledged_while_the_disk_is_full(tmp_path: Path, loop: FakeLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that waits in memory needs no disk once it is acknowledged."""
    disk = Disk(monkeypatch)
    own, _ = open_journal(tmp_path, loop)
    disk.room = 0
    seq = own.append(line(1))
    loop.turn()
    own.acknowledge(seq)
    assert own.backlog == 0
    own.close()
    assert files(tmp_path) == [] and own.dropped == 0


def test_memory_is_bounded_and_drops_are_counted(tmp_path: Path, loop: FakeLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the memory bound the oldest lines go, never without a count and a report."""
    disk = Disk(monkeypatch)
    size = len(line(1))
    own, states = open_journal(tmp_path, loop, memory_bytes=3 * size)
    disk.room = 0
    for number in range(1, 6):
        own.append(line(number))
        loop.turn()
    assert [(state.status, state.dropped) for state in states] == [("unwritable", 0), ("dropping", 1)]
    assert own.backlog == 3 and own.dropped == 2
    disk.room = None
    loop.pass_time()
    assert states[-1] == JournalState("ok", "", 0, 2)
    own.close()
    assert ids(tmp_path) == ["req_3.0", "req_4.0", "req_5.0"]


def test_lines_lost_at_the_end_are_counted(tmp_path: Path, loop: FakeLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal closed on a full disk says how many lines are lost."""
    disk = Disk(monkeypatch)
    own, states = open_journal(tmp_path, loop)
    disk.room = 0
    own.append(line(1))
    own.close()
    assert own.dropped == 1 and [state.status for state in states] == ["unwritable", "dropping"]
    loop.turn()
    assert loop.later == []


def test_no_file_descriptor_left(tmp_path: Path, loop: FakeLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without free descriptors keeps its lines and writes them later."""
    own, states = open_journal(tmp_path, loop)
    own.append(line(1))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
    try:
        loop.turn()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [state.status for state in states] == ["unwritable"]
    loop.pass_time()
    own.close()
    assert ids(tmp_path) == ["req_1.0"]


CHILD = """
import os, signal, sys
from sluicegate.core.claims import Ref, RefSet, Settlement
from sluicegate.journal import Journal, encode
import asyncio
async def main():
    own = Journal.open(sys.argv[1])
    refs = RefSet("t", [Ref("k", "w", 1)])
    for n in range(200):
        own.append(encode(Settlement(f"h{n}", refs, (n,)), None, n))
        await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


def test_survives_kill_9(tmp_path: Path) -> None:
    """After kill -9 every line of a finished loop turn is there, and the file is free to be replayed."""
    died = subprocess.run([sys.executable, "-c", CHILD, str(tmp_path)], check=False, timeout=60)
    assert died.returncode == -signal.SIGKILL
    entries: list[Entry] = [entry for file in leftover(tmp_path) for entry in file.entries]
    assert [(entry.settlement.hold_id, entry.settlement.actual) for entry in entries] == [(f"h{n}", (n,)) for n in range(200)]
