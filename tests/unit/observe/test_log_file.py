"""Lines in a file: whole or not at all, from several processes, put aside when it is full, whatever the disk does."""

import contextlib
import errno
import gzip
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sluicegate.observe import log_file
from sluicegate.observe.log_file import LogFile, Rotation, rotated, tidy

NEVER = Rotation(1 << 30, 10, False)
WAIT_S = 10.0


class Watched:
    """A log file, and the states that it told."""

    def __init__(self, to: str, rotation: Rotation = NEVER) -> None:
        self.states: list[tuple[str, str]] = []
        self._ns = 1_764_516_251_000_000_000
        self.file = LogFile(to, rotation, lambda state, reason: self.states.append((state, reason)), self._time_ns)

    def _time_ns(self) -> int:
        self._ns += 1_000_000
        return self._ns

    def write(self, *lines: str) -> bool:
        return self.file.write([line.encode() + b"\n" for line in lines])

    def close(self) -> int:
        """Lines that were lost."""
        self.file.close(WAIT_S)
        return self.file.lost

    def write_each(self, *lines: str) -> None:
        """One after the other has been written."""
        for line in lines:
            done = self.file._done
            self.write(line)
            while self.file._done == done:
                threading.Event().wait(0.0002)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "requests.jsonl"


def everything(path: Path) -> list[str]:
    """All lines, those put aside first."""
    texts = [gzip.decompress(one.read_bytes()).decode() if one.suffix == ".gz" else one.read_text() for one in rotated(path)]
    return "".join([*texts, path.read_text()]).splitlines()


def test_lines_are_appended(path: Path) -> None:
    """In their order, to what is there; the directory is made; nothing is lost."""
    for lines in (("a", "b"), ("c",)):
        log = Watched(str(path))
        assert log.write(*lines)
        assert log.close() == 0
    assert everything(path) == ["a", "b", "c"]


def test_a_full_file_is_put_aside(path: Path) -> None:
    """No file is longer than it may be, but for one line; the oldest are deleted; no line is in two files."""
    log = Watched(str(path), Rotation(20, 3, False))
    log.write_each(*[f"line {n:04}" for n in range(20)], "x" * 50, "last")
    assert log.close() == 0
    tidy(path, Rotation(20, 3, False))
    assert everything(path) == [*[f"line {n:04}" for n in range(16, 20)], "x" * 50, "last"]
    assert len(rotated(path)) == 3


def test_lines_that_come_together_are_divided(path: Path) -> None:
    """Among files none of which is longer than it may be; what is in one when they come is filled up."""
    written = [f"line {n:04}" for n in range(20)]
    log = Watched(str(path), Rotation(35, 100, False))
    log.write_each("first")
    log.write(*written[:10], "x" * 50, *written[10:])
    assert log.close() == 0
    assert everything(path) == ["first", *written[:10], "x" * 50, *written[10:]]
    sizes = [one.stat().st_size for one in rotated(path)]
    assert sizes[0] == 26 and sorted(sizes)[-1] == 51 and all(size >= 20 for size in sizes[:-1]) and all(size <= 35 for size in sizes if size != 51)


def test_what_is_put_aside_is_compressed(path: Path) -> None:
    """All but the file that is written to; what was left of a process that was killed as it compressed does not matter."""
    log = Watched(str(path), Rotation(20, 10, True))
    log.write_each(*[f"line {n:04}" for n in range(8)])
    assert log.close() == 0
    rotated(path)[0].with_name(rotated(path)[0].name.removesuffix(".gz") + ".gz.part").write_bytes(b"torn")
    tidy(path, Rotation(20, 10, True))
    assert {one.suffix for one in rotated(path)} == {".gz"} and everything(path) == [f"line {n:04}" for n in range(8)]


def test_who_may_read_it_does_not_change(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file, what is put aside, and what is compressed, from its first byte on: for the owner and the group, or as somebody has set it since."""
    seen: list[int] = []

    def watched(source: object, target: gzip.GzipFile, size: int) -> None:
        seen.extend(one.stat().st_mode & 0o777 for one in path.parent.glob("*.part"))

    monkeypatch.setattr(log_file.shutil, "copyfileobj", watched)
    before = os.umask(0o022)
    try:
        log = Watched(str(path), Rotation(10, 10, False))
        log.write_each("line 1", "line 2", "line 3")
        log.close()
        rotated(path)[0].chmod(0o600)
        rotated(path)[0].with_name(rotated(path)[0].name + ".gz.part").touch(0o644)
        tidy(path, Rotation(10, 10, True))
    finally:
        os.umask(before)
    assert {one.suffix for one in rotated(path)} == {".gz"}
    assert [one.stat().st_mode & 0o777 for one in (*rotated(path), path)] == [0o600, 0o640, 0o640] and seen == [0o600, 0o640]


def test_files_of_other_names_are_left_alone(path: Path) -> None:
    """Only what was put aside is deleted."""
    path.parent.mkdir()
    names = ["requests.jsonl.bak", "requests.jsonl.20261130T152411", "other.20261130T152411.000001"]
    for name in names:
        (path.parent / name).touch()
    (path.parent / "requests.jsonl.20261130T152411.000001").touch()
    tidy(path, Rotation(1, 0, True))
    assert sorted(one.name for one in path.parent.iterdir()) == sorted(names)


WRITER = """
import sys
from sluicegate.observe.log_file import LogFile, Rotation
log = LogFile(sys.argv[1], Rotation(4_000, 1_000, True), lambda *state: print(state))
for n in range(400):
    log.write([f"{sys.argv[2]} {n} {'x' * (n % 97)}\\n".encode()])
    if n % 7 == 0:
        import time; time.sleep(0.0005)
log.close(20)
print(log.lost)
"""


def test_several_processes_share_a_file(path: Path) -> None:
    """Which each of them puts aside when it is full: every line is there once, whole, and each one's are in their order."""
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(n)], stdout=subprocess.PIPE, text=True) for n in range(3)]
    assert [writer.communicate()[0].split() for writer in writers] == [["0"]] * 3
    lines = everything(path)
    assert len(lines) == 1_200
    for writer in range(3):
        own = [line.split(" ") for line in lines if line.startswith(f"{writer} ")]
        assert [(int(n), len(x)) for _, n, x in own] == [(n, n % 97) for n in range(400)]
    assert len(rotated(path)) > 5


def test_a_file_that_others_have_renamed_is_made_anew(path: Path) -> None:
    """As logrotate does it: what comes goes into the file of that name."""
    log = Watched(str(path))
    log.write_each("a")
    path.rename(path.with_suffix(".old"))
    log.write_each("b")
    path.unlink()
    log.write_each("c")
    assert log.close() == 0
    assert path.with_suffix(".old").read_text() == "a\n" and path.read_text() == "c\n"


def test_behind_a_torn_line_a_new_one_begins(path: Path) -> None:
    """What a process that was killed has left of a line spoils no other."""
    path.parent.mkdir()
    path.write_text('{"a": 1}\n{"tor')
    log = Watched(str(path))
    log.write("b")
    assert log.close() == 0
    assert everything(path) == ['{"a": 1}', '{"tor', "b"]


@contextlib.contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    """As on a disk that is full: the last write takes a part."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def test_a_disk_without_room(path: Path) -> None:
    """A line that does not fit is taken back whole, those before it stay; lines are lost and counted until there is room; it is told twice."""
    log = Watched(str(path))
    with no_file_longer_than(25):
        log.write_each("0123456789")
        log.write("abcdefghi", "0123456789", "x")
        log.write_each("0123456789")
    log.write_each("end")
    assert log.close() == 3
    assert everything(path) == ["0123456789", "abcdefghi", "end"]
    assert log.states == [("failing", "EFBIG"), ("ok", "")]


def test_a_file_that_cannot_be_made_in_the_middle(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written of a batch is not counted as lost."""
    opened, counted = os.open, []

    def second_fails(*given: Any) -> int:
        if given[0] == path:
            counted.append(given)
            if len(counted) == 2:
                raise OSError(errno.EMFILE, "no")
        return opened(*given)

    monkeypatch.setattr(log_file.os, "open", second_fails)
    log = Watched(str(path), Rotation(20, 9, False))
    log.write(*[f"line {n:04}" for n in range(5)])
    assert log.close() == 3 and log.states == [("failing", "EMFILE")]


def test_a_device_without_room() -> None:
    """What is no file is neither cut nor put aside."""
    log = Watched("/dev/full", Rotation(1, 0, True))
    log.write("a", "b")
    assert log.close() == 2
    assert log.states == [("failing", "ENOSPC")] and os.path.exists("/dev/full")


def test_a_path_that_cannot_be_opened(tmp_path: Path) -> None:
    """Loses lines, and says why."""
    log = Watched(str(tmp_path))
    log.write("a")
    assert log.close() == 1
    assert log.states == [("failing", "EISDIR")]


def test_a_file_that_cannot_be_put_aside(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Grows, which is told: no line is lost for that."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EACCES, "no")

    monkeypatch.setattr(log_file.os, "rename", refuse)
    log = Watched(str(path), Rotation(10, 3, False))
    log.write_each("line 1", "line 2")
    assert log.close() == 0
    assert everything(path) == ["line 1", "line 2"] and log.states == [("failing", "cannot be rotated: EACCES")]


class Hanging:
    """A disk that hangs until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stuck, self._go_on, self._write = threading.Event(), threading.Event(), os.write
        monkeypatch.setattr(log_file.os, "write", self._slow)
        monkeypatch.setattr(log_file, "WAITING_MAX", 100)
        monkeypatch.setattr(log_file, "LONG", 40)

    def _slow(self, fd: int, data: bytes) -> int:
        self.stuck.set()
        self._go_on.wait(WAIT_S)
        return self._write(fd, data)

    def let_go(self) -> None:
        self._go_on.set()


def test_a_disk_that_hangs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever writes goes on: what is more than may wait is lost, counted and told, once, as is that all of what waited is written."""
    disk = Hanging(monkeypatch)
    log = Watched(str(path))
    assert log.write("a" * 29)
    disk.stuck.wait(WAIT_S)
    assert log.write("b" * 29) and log.write("c" * 29) and log.states == []
    assert not log.write("d" * 9, "e") and log.file.lost == 1  # for the first there was room
    assert not log.write("f" * 29) and log.file.lost == 2
    assert log.states == [("failing", "too many lines wait")]
    disk.let_go()
    assert log.close() == 2
    assert everything(path) == ["a" * 29, "b" * 29, "c" * 29, "d" * 9]
    assert log.states == [("failing", "too many lines wait"), ("ok", "")]


def test_no_line_is_lost_to_a_long_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be longer than all that may wait, and takes none of their room; a second such is lost; others leave half of it to the short."""
    disk = Hanging(monkeypatch)
    log = Watched(str(path))
    assert log.write("x" * 200)
    disk.stuck.wait(WAIT_S)
    assert log.write("y" * 44) and not log.file.takes(45) and log.file.takes(40)  # of which there is no more than half
    assert log.write("a" * 19, "b" * 19) and log.states == []
    assert not log.write("z" * 200) and log.file.lost == 1
    disk.let_go()
    assert log.close() == 1
    assert everything(path) == ["x" * 200, "y" * 44, "a" * 19, "b" * 19]
    assert log.states == [("failing", "too many lines wait"), ("ok", "")]


def test_a_long_line_after_another(path: Path) -> None:
    """Has the room that the one before had, once that is written."""
    log = Watched(str(path))
    size = log_file.WAITING_MAX + 1
    for letter in "ab":
        assert log.file.takes(size) and log.file.write([letter.encode() * size + b"\n"])
        while log.file._long:
            threading.Event().wait(0.0002)
    assert log.close() == 0 and log.states == []
    assert path.stat().st_size == 2 * size + 2


def on_stdout(monkeypatch: pytest.MonkeyPatch, use: Callable[[Watched], None]) -> bytes:
    """What comes out of a pipe that is stdout."""
    out, into = os.pipe()
    monkeypatch.setattr(log_file, "STDOUT_FD", into)
    log = Watched("stdout")
    use(log)
    log.close()
    os.close(into)
    with os.fdopen(out, "rb") as reader:
        return reader.read()


def test_stdout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gets the same lines; it is not closed."""
    assert on_stdout(monkeypatch, lambda log: log.write_each("a", "b")) == b"a\nb\n"


def test_a_reader_of_stdout_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs lines, and nothing else."""
    out, into = os.pipe()
    os.close(out)
    monkeypatch.setattr(log_file, "STDOUT_FD", into)
    log = Watched("stdout")
    log.write("a")
    assert log.close() == 1 and log.states == [("failing", "EPIPE")]
    os.close(into)
