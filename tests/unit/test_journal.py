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
from sluicegate.core.record import Attempt, Record, Spent
from sluicegate.journal import Entry, Journal, JournalState, decode, encode, encode_usage
from sluicegate.leftovers import File, leftovers

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
    return Settlement(f"req_{number}.0", REFS, (123_456_789 + number, 1, 117, 0), epoch="e1")


SPENT = Spent("acme/@k", "chat", "up/m", 1_000, 1, 1, 10, 20, 30)


def line(number: int) -> bytes:
    return encode(settlement(number), None, SPENT, "w1", number)


def open_journal(directory: Path, loop: FakeLoop, writer: str = "w1", **sizes: int) -> tuple[Journal, list[JournalState]]:
    states: list[JournalState] = []
    return Journal.open(directory, writer, loop, states.append, **sizes), states


def files(directory: Path) -> list[Path]:
    return sorted(directory.iterdir())


def ids(directory: Path) -> list[str]:
    return [entry.settlement.hold_id for file in found(directory) for entry in file.entries if entry.settlement is not None]


def found(directory: Path) -> list[File]:
    """What is left of workers that are gone."""
    return [one.read(path) for one in leftovers(directory) for path in one.paths]


@pytest.fixture
def loop() -> FakeLoop:
    return FakeLoop()


def test_line_comes_back_whole() -> None:
    """A line carries the settlement, its counters with their figures, the record, what was spent, and which line of whom it is."""
    record = Record(
        "req_7",
        5,
        "acme/@k",
        "chat",
        attempts=(Attempt("a/b", "429"), Attempt("a/c", "200", 7, "yes", 3, "reset", 2**52, 5, 6)),
        cost_nano_usd=2**52,
        error='"\n ',
    )
    written = Settlement("req_7.1", REFS, (2**52 - 1, 1, 0, 0), "force", "e7")
    entry = decode(encode(written, record, SPENT, "w9", 12))
    back = entry.settlement
    assert back is not None
    assert (back.hold_id, back.actual, back.mode, back.epoch) == ("req_7.1", (2**52 - 1, 1, 0, 0), "force", "e7")
    assert (back.refs.tree, back.refs.refs) == ("acme", REFS.refs)
    assert (entry.record, entry.spent, entry.writer, entry.seq, entry.tree) == (record, SPENT, "w9", 12, "acme")


def test_line_of_usage_alone() -> None:
    """What the ledger need not be told has a line without a settlement."""
    entry = decode(encode_usage("acme", "req_7.1", None, SPENT, "w9", 12))
    assert entry == Entry("w9", 12, "acme", None, None, SPENT, "req_7.1")


OF_FORMAT_1 = (
    b'[1,99,"req_7.1","force","acme",[["k","w",10,0,5,0,0],["b","b",120,0,0,1,500]],[7,1],'
    b'{"request_id":"req_7","time_ms":5,"key_id":"acme/@k","model":"chat","deployment":"a/c","attempts":[{"deployment":"a/c","outcome":"200"}],'
    b'"input_tokens":3,"output_tokens":4,"cost_nano_usd":5}]'
)


def test_the_format_before_is_read() -> None:
    """A worker of the version before may have died: its settlements count, and its request's record tells the usage."""
    entry = decode(OF_FORMAT_1)
    back = entry.settlement
    assert back is not None
    assert (back.hold_id, back.actual, back.mode, back.epoch, back.refs.refs[0]) == ("req_7.1", (7, 1), "force", "", Ref("k", "w", 10, 0, 5))
    assert entry.spent == Spent("acme/@k", "chat", "a/c", 99, 1, 1, 3, 4, 5)
    without_record = decode(OF_FORMAT_1.partition(b",{")[0] + b",null]")
    assert (without_record.spent, without_record.writer, without_record.seq) == (None, "", 0)


def test_attempts_as_they_were_written_before_are_read() -> None:
    """An attempt has got more fields since: a line without them is whole, and what was not written is nothing."""
    attempts = b'"attempts":[{"deployment":"a/b","outcome":"429","duration_us":0,"billed":"no"}]'
    line = b'[2,"w9",12,"e","r.1","none","acme",[],[],{"request_id":"r","time_ms":1,' + attempts + b"},null]"
    record = decode(line).record
    assert record is not None
    assert record.attempts == (Attempt("a/b", "429"),)


def test_line_has_one_newline_at_its_end() -> None:
    """Text from a client cannot break a line in two."""
    data = encode(settlement(1), Record("r", 1, model="a\nb\r\u2028", client_user="\n"), None, "w1", 1)
    assert data.count(b"\n") == 1 and data.endswith(b"\n")


def test_stored_counter_has_the_fields_of_a_ref() -> None:
    """The stored form follows `Ref` field by field: a field added there must be stored too."""
    assert journal._StoredRef.__struct_fields__ == Ref.__struct_fields__


def test_cached_counters_are_not_confused() -> None:
    """Each RefSet is written with its own counters, however many there are and though ids are reused."""
    for number in range(3_000):
        refs = RefSet("t", [Ref(f"k{number}", "w", number)])
        back = decode(encode(Settlement("h", refs, (1,)), None, None, "w", 1)).settlement
        assert back is not None and back.refs.refs == refs.refs


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"{}",
        b"[]",
        b"[1]",
        b"nonsense",
        b"\xff\xfe",
        b"\x00" * 40,
        line(1)[:-20],
        line(1).replace(b"[2,", b"[9,", 1),
        OF_FORMAT_1[:-9],
        OF_FORMAT_1.replace(b"[7,1]", b"[7]"),
    ],
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
        own.acknowledge([seq])
    assert own.backlog == 0
    own.recorded(seqs[-1])
    own.close()
    assert files(tmp_path) == []


def test_what_is_not_recorded_stays(tmp_path: Path, loop: FakeLoop) -> None:
    """The ledger has every line, the records only some: a segment goes when they have its last one, at once or at the end."""
    own, _ = open_journal(tmp_path, loop, segment_bytes=2 * len(line(1)))
    seqs = []
    for number in range(4):
        seqs.append(own.append(line(number)))
        loop.turn()
    for seq in seqs:
        own.acknowledge([seq])
    own.recorded(seqs[0])
    assert len(files(tmp_path)) == 2
    own.recorded(seqs[1])
    assert len(files(tmp_path)) == 1
    own.recorded(seqs[2])
    own.close()
    assert ids(tmp_path) == ["req_2.0", "req_3.0"]


def test_close_writes_what_waits_and_keeps_it(tmp_path: Path, loop: FakeLoop) -> None:
    """Lines that nobody acknowledged are found after a clean end, also those of the last turn."""
    own, _ = open_journal(tmp_path, loop)
    own.append(line(1))
    own.close()
    assert ids(tmp_path) == ["req_1.0"]


def test_acknowledged_before_it_was_written(tmp_path: Path, loop: FakeLoop) -> None:
    """A line that is acknowledged within its own turn is never written."""
    own, _ = open_journal(tmp_path, loop)
    own.acknowledge([own.append(line(1))])
    loop.turn()
    assert own.backlog == 0 and files(tmp_path) == []


def test_repeated_and_unknown_acknowledgements(tmp_path: Path, loop: FakeLoop) -> None:
    """Acknowledging twice, or a number that never was, deletes nothing else."""
    own, _ = open_journal(tmp_path, loop)
    first = own.append(line(1))
    own.append(line(2))
    loop.turn()
    for seq in (first, first, 999, 0, -1):
        own.acknowledge([seq])
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
    own.recorded(seqs[-1])
    own.acknowledge([seqs[3]])
    own.acknowledge([seqs[2]])
    assert len(files(tmp_path)) == 2
    own.acknowledge([seqs[0]])
    own.acknowledge([seqs[1]])
    assert len(files(tmp_path)) == 1
    own.close()
    assert ids(tmp_path) == ["req_4.0", "req_5.0"]


def test_file_deleted_before_it_was_locked(tmp_path: Path, loop: FakeLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replayer that meets a new, still unlocked and empty file may delete it: the journal then takes another one."""
    real, deleted = journal.lock, []

    def lock(fd: int) -> bool:
        if not deleted:
            deleted.extend(files(tmp_path))
            deleted[0].unlink()
        return real(fd)

    monkeypatch.setattr(journal, "lock", lock)
    own, _ = open_journal(tmp_path, loop)
    own.append(line(1))
    own.close()
    assert len(deleted) == 1 and ids(tmp_path) == ["req_1.0"]


def test_unwritable_directory_at_the_start(tmp_path: Path, loop: FakeLoop) -> None:
    """A journal that cannot be written is an error before the first request, not after it."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError):
        Journal.open(tmp_path / "file", "w1", loop)


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
    own.acknowledge([first])
    own.recorded(first)
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
    assert ids(tmp_path) == ["req_1.0", "req_2.0"]
    assert all(file.torn == b"" and file.corrupt == [] for file in found(tmp_path))


def test_acknowledged_while_the_disk_is_full(tmp_path: Path, loop: FakeLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that waits in memory needs no disk once it is acknowledged."""
    disk = Disk(monkeypatch)
    own, _ = open_journal(tmp_path, loop)
    disk.room = 0
    seq = own.append(line(1))
    loop.turn()
    own.acknowledge([seq])
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
    own = Journal.open(sys.argv[1], "w1")
    refs = RefSet("t", [Ref("k", "w", 1)])
    for n in range(200):
        own.append(encode(Settlement(f"h{n}", refs, (n,)), None, None, "w1", n + 1))
        await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


def test_survives_kill_9(tmp_path: Path) -> None:
    """After kill -9 every line of a finished loop turn is there, and the file is free to be replayed."""
    died = subprocess.run([sys.executable, "-c", CHILD, str(tmp_path)], check=False, timeout=60)
    assert died.returncode == -signal.SIGKILL
    settled = [entry.settlement for file in found(tmp_path) for entry in file.entries]
    assert [(one.hold_id, one.actual) for one in settled if one is not None] == [(f"h{n}", (n,)) for n in range(200)]
