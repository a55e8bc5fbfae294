"""Golden streams: what a dialect reads of a stream as a server really sends it, and what a client gets, in a form that does not depend on how it was
cut into reads. `tests/golden/<dialect>/<name>.sse` is the stream, `<name>.json` what was agreed to be right.
"""

import difflib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from sluicegate.core.usage import Usage, merge
from sluicegate.dialects.form import Event

GOLDEN = Path(__file__).parent / "golden"


def streams(dialect: str) -> list[Path]:
    """The golden streams of a dialect."""
    return sorted((GOLDEN / dialect).glob("*.sse"))


def check(path: Path, dialect: ModuleType) -> None:
    """Reads a stream whole and byte by byte, and compares with what was agreed to be right."""
    data = path.read_bytes()
    want = path.with_suffix(".json").read_text()
    for pieces in ([data], [data[i : i + 1] for i in range(len(data))]):
        reader = dialect.StreamReader()
        events = [event for piece in pieces for event in reader.feed(piece)] + reader.end()
        got = json.dumps(summary(events, reader, dialect), indent=1, ensure_ascii=True) + "\n"
        assert got == want, "\n".join(difflib.unified_diff(want.splitlines(), got.splitlines(), lineterm=""))


def summary(events: list[Event], reader: Any, dialect: ModuleType) -> dict[str, Any]:
    """What was read and what is written."""
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
        "client": b"".join(dialect.write_event(event, True) for event in events).decode("utf-8", "surrogatepass"),
        "client_asked": b"".join(dialect.write_event(event, False) for event in events).decode("utf-8", "surrogatepass"),
    }
