"""Golden streams of the Anthropic messages dialect: see support_golden."""

from pathlib import Path

import pytest

from sluicegate.dialects import anthropic_messages
from support_golden import check, streams


@pytest.mark.parametrize("path", streams(anthropic_messages.NAME), ids=lambda path: path.stem)
def test_golden(path: Path) -> None:
    """What is read of a stream is what was agreed to be right, and what a client gets is every byte of what can be read."""
    check(path, anthropic_messages)
