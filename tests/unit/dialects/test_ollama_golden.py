"""Requests, answers and streams as Ollama documents them (tests/golden/ollama): what a chat request becomes, and what is made of the answers."""

import difflib
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import support_golden
from sluicegate.core.usage import Usage, merge
from sluicegate.dialects import ollama, openai_chat
from sluicegate.dialects.form import Target
from sluicegate.dialects.ollama_content import Pieces, read_reply, write_prompt
from sluicegate.dialects.openai_chat_content import read_prompt

GOLDEN = support_golden.GOLDEN / "ollama"
STREAMS, REQUESTS, ANSWERS = (sorted(GOLDEN.glob(glob)) for glob in ("*.ndjson", "requests/*.json", "answers/*.json"))
TARGET = Target("llama3.2", 64, "num_predict", stream_usage=True)


def agreed(path: Path, got: Any) -> None:
    """What was made of a file is what was agreed to be right."""
    want, text = path.read_text(), json.dumps(got, indent=1, ensure_ascii=True) + "\n"
    assert text == want, "\n".join(difflib.unified_diff(want.splitlines(), text.splitlines(), lineterm=""))


def summary(data: bytes, size: int) -> dict[str, Any]:
    """What is read of a stream that comes in pieces of that size."""
    reader, translated = ollama.StreamReader(), Pieces()
    events = [event for at in range(0, len(data), size) for event in reader.feed(data[at : at + size])] + reader.end()
    assert b"".join(event.raw for event in events) == data
    usage: Usage | None = None
    for event in events:
        usage = merge(usage, event.usage) if event.usage is not None else usage
    pieces = [piece for event in events if event.kind in ("chunk", "other") for piece in translated.of(event)]
    return {
        "kinds": [event.kind for event in events],
        "deltas": [msgspec.to_builtins(delta) for event in events for delta in event.deltas],
        "finishes": [list(finish) for event in events for finish in event.finishes],
        "usage": support_golden.usage_told(usage),
        "failures": [msgspec.to_builtins(event.failure) for event in events if event.failure is not None],
        "pieces": [[type(piece).__name__, *(value for value in msgspec.structs.astuple(piece) if value is not None)] for piece in pieces],
    }


@pytest.mark.parametrize("path", STREAMS, ids=lambda path: path.stem)
def test_stream(path: Path) -> None:
    """A stream, whole and byte by byte: what counts for the bill, and what it says."""
    data = path.read_bytes()
    assert summary(data, 1) == summary(data, len(data))
    agreed(path.with_suffix(".json"), summary(data, len(data)))


@pytest.mark.parametrize("path", REQUESTS, ids=lambda path: path.stem)
def test_request(path: Path) -> None:
    """A chat client's request as it goes upstream, and what could not be said."""
    case = json.loads(path.read_text())
    request = openai_chat.read_request(json.dumps(case["client"]).encode())
    prompt = read_prompt(request)
    upstream = json.loads(write_prompt(prompt, request, TARGET))
    agreed(path, {"source": case["source"], "client": case["client"], "upstream": upstream, "left_out": prompt.left_out})


@pytest.mark.parametrize("path", ANSWERS, ids=lambda path: path.stem)
def test_answer(path: Path) -> None:
    """A whole answer: what counts for the bill, what it says, and that it says the same as a stream."""
    case = json.loads(path.read_text())
    body = json.dumps(case["body"]).encode()
    read = ollama.read_answer(body)
    figures = support_golden.answer_told(read)
    reply = msgspec.to_builtins(read_reply(body))
    told = summary(ollama.streamed(body), 1 << 20)
    assert (told["deltas"], told["usage"]) == (figures["deltas"], figures["usage"])
    assert told["finishes"] == [list(finish) for finish in read.finishes]
    agreed(path, {"source": case["source"], "body": case["body"], "read": figures, "reply": reply})


def test_they_are_there() -> None:
    """The golden files are where they are looked for."""
    assert len(STREAMS) >= 6 and len(REQUESTS) >= 6 and len(ANSWERS) >= 4
