"""A file that processes share by its path: made once, told from others, free of what another one left."""

from pathlib import Path

import pytest

from sluicegate import sqlite_file


def test_a_file_is_made_once_and_told_from_another(tmp_path: Path) -> None:
    """With its folder; what the one before left beside it is gone, but not what belongs to a file that is there."""
    file = tmp_path / "made" / "x.db"
    first = sqlite_file.make(file)
    beside = [file.with_name("x.db" + end) for end in sqlite_file.LEFT_BESIDE]
    for one in beside:
        one.write_text("mine")
    assert sqlite_file.make(file) == first == sqlite_file.which(file)
    assert [one.read_text() for one in beside] == ["mine"] * 2
    file.rename(tmp_path / "kept")  # so that its number is not given again
    assert sqlite_file.which(file) is None
    second = sqlite_file.make(file)
    assert second != first
    assert [one.exists() for one in beside] == [False] * 2


def test_a_file_that_is_deleted_as_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the system like any other."""
    monkeypatch.setattr(sqlite_file, "which", lambda path: None)
    with pytest.raises(FileNotFoundError, match="deleted as it was made"):
        sqlite_file.make(tmp_path / "x.db")
