"""Files that change in the ways in which editors, operators and Kubernetes change them."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from sluicegate.config.watch import Watch


class Looks:
    """Does something between two looks; ends the watch when there is nothing more to do."""

    def __init__(self, *between: Callable[[], object]) -> None:
        self.between = iter(between)

    async def sleep(self, _seconds: float) -> None:
        try:
            next(self.between)()
        except StopIteration:
            raise asyncio.CancelledError from None


def nothing() -> None:
    """Happens."""


async def seen(files: list[Path], *between: Callable[[], object]) -> int:
    """How many changes are noticed while these things happen between the looks."""
    watch, count = Watch(files, Looks(*between).sleep), 0
    try:
        while True:
            await watch.changed()
            count += 1
    except asyncio.CancelledError:
        return count


async def test_a_file_that_is_written_to(tmp_path: Path) -> None:
    """Once it is left alone, whatever was written on the way; nothing else is a change."""
    file = tmp_path / "config.yaml"
    file.write_text("a")
    assert await seen([file], nothing, nothing) == 0
    assert await seen([file], lambda: file.write_text("bb"), lambda: file.write_text("ccc"), nothing, nothing) == 1
    assert await seen([file], lambda: file.write_text("d"), nothing, nothing, lambda: file.write_text("ee"), nothing) == 2


async def test_a_file_that_is_replaced(tmp_path: Path) -> None:
    """By renaming another over it, with the same size and times too; and one that is away for a moment."""
    file, other = tmp_path / "config.yaml", tmp_path / ".config.yaml.swp"
    file.write_text("a")
    other.write_text("b")
    assert await seen([file], lambda: other.rename(file), nothing) == 1
    assert await seen([file], file.unlink, lambda: file.write_text("c"), nothing) == 1


async def test_a_link_that_leads_elsewhere(tmp_path: Path) -> None:
    """As Kubernetes does it: the file is a link through a link to a folder, and that one is swapped."""
    for name in ("..1", "..2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text("same")
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "config.yaml").symlink_to("..data/config.yaml")

    def swap() -> None:
        (tmp_path / "..new").symlink_to("..2")
        (tmp_path / "..new").rename(tmp_path / "..data")

    assert await seen([tmp_path / "config.yaml"], swap, nothing) == 1


@pytest.mark.parametrize("changed", [0, 1])
async def test_each_of_several_files_counts(tmp_path: Path, changed: int) -> None:
    """A change of any of them is one."""
    files = [tmp_path / "a", tmp_path / "b"]
    files[0].write_text("a")
    assert await seen(files, lambda: files[changed].write_text("new"), nothing) == 1
