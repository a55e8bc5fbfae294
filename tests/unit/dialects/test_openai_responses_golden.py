"""Streams as servers really send them (tests/golden/openai_responses): what is read, what a client gets, and how it ends where it is cut."""

import difflib
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import support_golden
from sluicegate.core.usage import Usage, merge
from sluicegate.dialects.form import Event
from sluicegate.dialects.openai_responses import StreamReader, write_event, write_truncation

STREAMS = support_golden.streams("openai_responses")


def read(*pieces: bytes) -> tuple[list[Event], StreamReader]:
    """All events of a stream that arrives in these pieces."""
    reader = StreamReader()
    events = [event for piece in pieces for event in reader.feed(piece)]
    return events + reader.end(), reader


def datas(stream: bytes) -> list[Any]:
    """The JSON of all events that the gateway wrote."""
    return [json.loads(event.partition(b"\ndata: ")[2]) for event in stream.split(b"\n\n") if event]


def summary(events: list[Event], reader: StreamReader) -> dict[str, Any]:
    """What was read, in a form that does not depend on how events were cut."""
    usage: Usage | None = None
    for event in events:
        usage = merge(usage, event.usage) if event.usage is not None else usage
    middle = next((event.after for event in reversed(events[: len(events) * 2 // 3]) if event.after is not None), None)
    return {
        "kinds": [event.kind for event in events],
        "output": [[delta.text, delta.tool_calls] for event in events for delta in event.deltas],
        "finishes": [finish for event in events for finish in event.finishes],
        "usage": support_golden.usage_told(usage),
        "failures": [msgspec.to_builtins(event.failure) for event in events if event.failure is not None],
        "cut": datas(write_truncation(reader.head, middle, [0], "budget", Usage(7, 3))),
    }


@pytest.mark.parametrize("path", STREAMS, ids=lambda path: path.stem)
def test_stream(path: Path) -> None:
    """A stream, whole and byte by byte, against what was agreed to be right; what is cut is cut after two thirds of its events."""
    data = path.read_bytes()
    want = path.with_suffix(".json").read_text()
    for pieces in ([data], [data[i : i + 1] for i in range(len(data))]):
        got = json.dumps(summary(*read(*pieces)), indent=1, ensure_ascii=True) + "\n"
        assert got == want, "\n".join(difflib.unified_diff(want.splitlines(), got.splitlines(), lineterm=""))


@pytest.mark.parametrize("path", STREAMS, ids=lambda path: path.stem)
def test_the_client_gets_the_bytes_that_came(path: Path) -> None:
    """Events pass as they came, unknown fields included; left out are those that say nothing, cannot be read, or only keep the connection."""
    data = path.read_bytes()
    events, _ = read(data)
    written = b"".join(write_event(event, False) for event in events)
    if path.stem == "odd_shapes":
        for gone in (
            b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","del\n\n',
            b"data: null\n\n",
            b"data: [1,2]\n\n",
        ):
            data = data.replace(gone, b"")
    data = data.replace(b": keep-alive\r\n\r\n", b": keep-alive\n").replace(b"data: [DONE]\r\n\r\n", b"")
    assert written == data


@pytest.mark.parametrize("path", STREAMS, ids=lambda path: path.stem)
def test_trailing_bytes_change_nothing(path: Path) -> None:
    """What stands behind the end is not a part of the answer, and what was before it is read as ever."""
    data = path.read_bytes()
    events, _ = read(data)
    more, _ = read(data + b"data: {")
    assert [event.kind for event in more] == [*(event.kind for event in events), "bad"]


def test_there_are_streams() -> None:
    """The golden files are where they are looked for."""
    assert len(STREAMS) >= 12
