"""What dead workers left: read whole, in order, by one process at a time."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from sluicegate.core.claims import Ref, RefSet, Settlement
from sluicegate.journal import Journal, encode
from sluicegate.leftovers import File, leftovers, read_own

REFS = RefSet("t", [Ref("k", "w", 100)])


def line(number: int, writer: str = "w1") -> bytes:
    return encode(Settlement(f"h{number}", REFS, (number,)), None, None, writer, number)


def write(directory: Path, writer: str, numbers: range, *, segment_bytes: int = 1) -> Journal:
    """The journal of a worker that lives, with one file for each line."""
    own = Journal.open(directory, writer, asyncio.new_event_loop(), segment_bytes=segment_bytes)
    for number in numbers:
        own.append(line(number, writer))
        own.flush()
    return own


def found(directory: Path) -> list[File]:
    return [one.read(path) for one in leftovers(directory) for path in one.paths]


def numbers(found: list[File]) -> list[int]:
    return [entry.seq for file in found for entry in file.entries]


@pytest.fixture(autouse=True)
def _loops_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No loop is run: journals are flushed by hand."""
    loop = type("Loop", (), {"call_soon": lambda *_: None, "call_later": lambda *_: None})()
    monkeypatch.setattr(asyncio, "new_event_loop", lambda: loop)


def test_files_in_use_are_left_alone(tmp_path: Path) -> None:
    """Nobody replays a file whose worker lives; when it is gone all of its files are found, in order."""
    own = write(tmp_path, "w1", range(1, 4))
    assert len(list(tmp_path.iterdir())) == 3
    assert found(tmp_path) == []
    own.close()
    assert numbers(found(tmp_path)) == [1, 2, 3]


def test_all_files_of_a_worker_or_none(tmp_path: Path) -> None:
    """A worker that dies while its files are looked at: a later file never comes without an earlier one."""
    own = write(tmp_path, "w1", range(1, 3))
    own._segments.pop().close(0)  # its second file is free, the first is not yet
    assert found(tmp_path) == []
    own.close()
    assert numbers(found(tmp_path)) == [1, 2]


def test_two_replayers_never_share_a_worker(tmp_path: Path) -> None:
    """While one process replays a worker's files another one does not see them; not removed, they are found again."""
    write(tmp_path, "w1", range(1, 3)).close()
    first = leftovers(tmp_path)
    taken = next(first)
    assert len(taken.paths) == 2
    assert found(tmp_path) == []
    first.close()
    assert numbers(found(tmp_path)) == [1, 2]
    for one in leftovers(tmp_path):
        one.remove()
    assert list(tmp_path.iterdir()) == []


def test_replayed_oldest_first(tmp_path: Path) -> None:
    """Workers come in the order in which they began."""
    for number in range(5):
        write(tmp_path, f"w{9 - number}", range(number, number + 1)).close()
    assert numbers(found(tmp_path)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("cut", [1, 30, len(line(2)) - 1])
def test_torn_last_line(tmp_path: Path, cut: int) -> None:
    """A last line without its end is ignored and reported; those before it count."""
    (tmp_path / "1-1-1.journal").write_bytes(line(1) + line(2)[:cut])
    (file,) = found(tmp_path)
    assert numbers([file]) == [1]
    assert file.torn == line(2)[:cut] and file.corrupt == []


def test_corrupt_middle_line(tmp_path: Path) -> None:
    """A line that is not readable is reported and skipped; the others count."""
    (tmp_path / "1-1-1.journal").write_bytes(line(1) + b"\x00\x00garbage\xff\n" + line(2))
    (file,) = found(tmp_path)
    assert numbers([file]) == [1, 2]
    assert file.corrupt == [b"\x00\x00garbage\xff"] and file.torn == b""


def test_lines_of_the_format_before_are_named_by_their_file(tmp_path: Path) -> None:
    """They have no writer and no number: the file's name and the place in it stand for them."""
    old = b'[1,99,"h","settle","t",[["k","w",10,0,5,0,0]],[7],null]\n'
    (tmp_path / "77-1-1.journal").write_bytes(b"spoilt\n" + old + old)
    (file,) = found(tmp_path)
    assert [(entry.writer, entry.seq) for entry in file.entries] == [("77-1-1", 2), ("77-1-1", 3)]


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    """Only journal files are read; a directory that does not exist has none."""
    (tmp_path / "notes.txt").write_bytes(b"x")
    (tmp_path / "d.journal").mkdir()
    assert found(tmp_path) == []
    assert found(tmp_path / "nowhere") == []


def test_a_worker_reads_its_own_files(tmp_path: Path) -> None:
    """While it lives and writes on; nobody else's."""
    own, other = write(tmp_path, "w1", range(1, 4)), write(tmp_path, "w10", range(4, 6))
    assert numbers(read_own(tmp_path, "w1")) == [1, 2, 3]
    own.close()
    other.close()


@pytest.mark.parametrize("when", ["before it is opened", "before it is locked"])
def test_a_file_that_another_worker_has_just_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """It is gone between being seen and being locked: the writer's other files are taken, nothing of it is read."""
    write(tmp_path, "w1", range(1, 3)).close()
    first = sorted(tmp_path.iterdir(), key=lambda path: path.name.partition("-")[2])[0]
    take = os.open

    def late(path: Any, flags: int, *rest: Any) -> int:
        if when == "before it is opened" and path == first:
            first.unlink()
        fd = take(path, flags, *rest)
        if path == first:
            first.unlink()
        return fd

    monkeypatch.setattr(os, "open", late)
    assert numbers(found(tmp_path)) == [2]
