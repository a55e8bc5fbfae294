"""Streams as servers really send them (tests/golden/openai_chat): what is read, and what a client that did not ask for usage gets."""

from pathlib import Path

import pytest

import support_golden
from sluicegate.dialects import openai_chat

STREAMS = support_golden.streams("openai_chat")


@pytest.mark.parametrize("path", STREAMS, ids=lambda path: path.stem)
def test_stream(path: Path) -> None:
    """A recorded stream, whole and byte by byte, against what was agreed to be right."""
    support_golden.check(path, openai_chat)


def test_there_are_streams() -> None:
    """The golden files are where they are looked for."""
    assert len(STREAMS) >= 12
