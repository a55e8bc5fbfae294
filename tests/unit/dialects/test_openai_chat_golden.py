"""Requests, answers and streams as clients and servers really send them (tests/golden/openai_chat): what is read, and what is passed on."""

from pathlib import Path

import pytest

import support_golden
from sluicegate.dialects import openai_chat

STREAMS = support_golden.streams("openai_chat")
REQUESTS, ANSWERS = support_golden.cases("openai_chat", "requests"), support_golden.cases("openai_chat", "answers")


@pytest.mark.parametrize("path", STREAMS, ids=lambda path: path.stem)
def test_stream(path: Path) -> None:
    """A recorded stream, whole and byte by byte, against what was agreed to be right."""
    support_golden.check(path, openai_chat)


def test_there_are_streams() -> None:
    """The golden files are where they are looked for."""
    assert len(STREAMS) >= 12


@pytest.mark.parametrize("path", REQUESTS, ids=lambda path: path.stem)
def test_request(path: Path) -> None:
    """A request as its vendor documents it: what is held for it, and what goes upstream, where fields that nobody here knows are as they came."""
    support_golden.check_case(path, openai_chat, support_golden.request)


@pytest.mark.parametrize("path", ANSWERS, ids=lambda path: path.stem)
def test_answer(path: Path) -> None:
    """A whole answer as its vendor documents it: what is read of it, and the stream that it is told as, with every field that came."""
    support_golden.check_case(path, openai_chat, support_golden.answer)


def test_there_are_requests_and_answers() -> None:
    """The golden files are where they are looked for."""
    assert len(REQUESTS) >= 11
    assert len(ANSWERS) >= 11
