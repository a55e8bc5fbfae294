"""Golden streams: what a dialect reads of a stream as a server really sends it, and what a client gets, in a form that does not depend on how it was
cut into reads. `tests/golden/<dialect>/<name>.sse` is the stream, `<name>.json` what was agreed to be right.

Golden requests and answers are one file each, in `requests` and `answers` below that: what came, as its vendor documents it (`source`), and what was
agreed to be right.
"""

import difflib
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from sluicegate.core.usage import Usage, merge
from sluicegate.dialects.form import Answer, Event, Request, Target

GOLDEN = Path(__file__).parent / "golden"
FIGURES = (
    *("stream", "include_usage", "choices", "cap", "thinking", "texts", "messages", "images", "prediction", "unbounded", "cap_by"),
    *("unbounded_by", "tokens", "echoed", "own_prompts", "shown"),
)  # of a request: what is held for it


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
        "usage": usage_told(usage),
        "usage_only": sum(event.usage_only for event in events),
        "failures": failures,
        "client": b"".join(dialect.write_event(event, True) for event in events).decode("utf-8", "surrogatepass"),
        "client_asked": b"".join(dialect.write_event(event, False) for event in events).decode("utf-8", "surrogatepass"),
    }


def usage_told(usage: Usage | None) -> Any:
    """Calls of the provider's own tools only where there were any."""
    found = msgspec.to_builtins(usage)
    for name in ("calls", "calls_unread", "early"):
        if found is not None and (name == "early" or not found[name]):
            del found[name]
    return found


def answer_told(read: Answer) -> dict[str, Any]:
    """What was read of a whole answer."""
    found: dict[str, Any] = msgspec.to_builtins({name: getattr(read, name) for name in ("deltas", "finishes", "usage", "failure", "readable")})
    return found | {"usage": usage_told(read.usage)}


def cases(dialect: str, kind: str) -> list[Path]:
    """The golden `requests` or `answers` of a dialect: each a file that says what came and what was agreed to be right."""
    return sorted((GOLDEN / dialect / kind).glob("*.json"))


def check_case(path: Path, dialect: ModuleType, made: Callable[[dict[str, Any], ModuleType], dict[str, Any]]) -> None:
    """Reads what came and compares with the rest of the file."""
    want = path.read_text()
    case = json.loads(want)
    got = json.dumps(case | made(case, dialect), indent=1, ensure_ascii=True) + "\n"
    assert got == want, "\n".join(difflib.unified_diff(want.splitlines(), got.splitlines(), lineterm=""))


def request(case: dict[str, Any], dialect: ModuleType) -> dict[str, Any]:
    """What is read of a client's request, and what one deployment gets of it: every field that is not the gateway's as the bytes it came in."""
    read: Request = dialect.read_request(json.dumps(case["client"]).encode())
    target = msgspec.convert({"cap": None, **case["target"]}, Target)
    upstream = dialect.write_request(read, target)
    fields = msgspec.json.decode(upstream, type=dict[str, msgspec.Raw])
    figures = {name: getattr(read, name) for name in FIGURES}
    figures["texts"].sort()  # fields that are not known come in any order
    return {
        "read": figures,
        "upstream": json.loads(upstream),
        "as_they_came": sorted(name for name, raw in read.fields.items() if fields.get(name) == raw),
    }


def answer(case: dict[str, Any], dialect: ModuleType) -> dict[str, Any]:
    """What is read of a whole answer, and the stream that it is told as."""
    body = json.dumps(case["body"]).encode()
    read: Answer = dialect.read_answer(body)
    reader = dialect.StreamReader()
    stream = dialect.streamed(body)
    events = reader.feed(stream) + reader.end()
    texts: dict[int, str] = {}
    for delta in read.deltas:
        texts[delta.choice] = texts.get(delta.choice, "") + delta.text
    told = summary(events, reader, dialect)
    assert told["texts"] == {str(choice): text for choice, text in texts.items()}
    assert told["finishes"] == read.finishes
    assert told["usage"] == usage_told(read.usage)
    return {
        "read": answer_told(read),
        "streamed": [json.loads(line[6:]) for line in stream.decode().splitlines() if line.startswith("data: {")],
    }
