"""Streams as servers really send them (tests/golden/openai_chat): what is read, and what a client that did not ask for usage gets."""

import difflib
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sluicegate.core.usage import Usage, merge
from sluicegate.dialects.form import Event
from sluicegate.dialects.openai_chat import StreamReader, write_event

GOLDEN = Path(__file__).parents[2] / "golden" / "openai_chat"
STREAMS = sorted(GOLDEN.glob("*.sse"))


def read(*pieces: bytes) -> tuple[list[Event], StreamReader]:
    """All events of a stream that arrives in these pieces."""
    reader = StreamReader()
    events = [event for piece in pieces for event in reader.feed(piece)]
    return events + reader.end(), reader


def summary(events: list[Event], reader: StreamReader) -> dict[str, Any]:
    """What was read, in a form that does not depend on how events were cut."""
    texts: dict[str, str] = {}
    calls = 0
    usage: Usage | None = None
    for event in events:
        for delta in event.deltas:
            texts[str(delta.choice)] = texts.get(str(delta.choice), "") + delta.text
            calls += delta.tool_calls
        usage = merge(usage, event.usage) if event.usage is not None else usage
    failures = [msgspec.to_builtins(event.failure) for event in events if event.failure is not None]
    return {
        "kinds": [event.kind for event in events],
        "head": msgspec.to_builtins(reader.head),
        "texts": texts,
        "tool_calls": calls,
        "finishes": [finish for event in events for finish in event.finishes],
        "usage": msgspec.to_builtins(usage),
        "usage_only": sum(event.usage_only for event in events),
        "failures": failures,
        "client": b"".join(write_event(event, True) for event in events).decode("utf-8", "surrogatepass"),
        "client_asked": b"".join(write_event(event, False) for event in events).decode("utf-8", "surrogatepass"),
    }


@pytest.mark.parametrize("path", STREAMS, ids=lambda path: path.stem)
def test_stream(path: Path) -> None:
    """A recorded stream, whole and byte by byte, against what was agreed to be right."""
    data = path.read_bytes()
    want = path.with_suffix(".json").read_text()
    for pieces in ([data], [data[i : i + 1] for i in range(len(data))]):
        got = json.dumps(summary(*read(*pieces)), indent=1, ensure_ascii=True) + "\n"
        assert got == want, "\n".join(difflib.unified_diff(want.splitlines(), got.splitlines(), lineterm=""))


def test_there_are_streams() -> None:
    """The golden files are where they are looked for."""
    assert len(STREAMS) >= 12
