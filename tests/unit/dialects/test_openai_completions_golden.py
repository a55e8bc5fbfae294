"""Streams of completions as servers really send them (tests/golden/openai_completions): what is read, and what a client gets."""

from pathlib import Path

import pytest

import support_golden
from sluicegate.dialects import openai_completions

STREAMS = support_golden.streams("openai_completions")


@pytest.mark.parametrize("path", STREAMS, ids=lambda path: path.stem)
def test_stream(path: Path) -> None:
    """A stream, whole and byte by byte, against what was agreed to be right; unknown fields survive."""
    support_golden.check(path, openai_completions)


def test_there_are_streams() -> None:
    """The golden files are where they are looked for."""
    assert len(STREAMS) >= 10
