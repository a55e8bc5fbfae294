"""Answers and streams of Ollama, whatever is in them; golden files are in test_ollama_golden."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.core.usage import Usage
from sluicegate.dialects.form import Delta, Event, Failure
from sluicegate.dialects.ollama import StreamReader, read_answer, streamed
from sluicegate.dialects.ollama_content import Pieces, read_reply


def line(message: Any, **fields: Any) -> bytes:
    return json.dumps({"model": "m", "message": message, "done": False, **fields}).encode() + b"\n"


def read(data: bytes) -> list[Event]:
    reader = StreamReader()
    return reader.feed(data) + reader.end()


@pytest.mark.parametrize(
    ("message", "text", "calls"),
    [
        ({"content": "abc"}, "abc", 0),
        ({"content": "", "role": "assistant"}, "", 0),
        ({"content": None, "thinking": None, "tool_calls": None}, "", 0),
        ({"thinking": "t", "content": "c"}, "tc", 0),
        ({"tool_calls": [{"function": {"name": "f", "arguments": {"q": 1}}}]}, 'f{"q": 1}', 1),
        ({"tool_calls": [{"function": {"name": "f", "arguments": '{"q":1}'}}, {"function": {"name": "g"}}]}, 'f{"q":1}g', 2),
        ({"tool_calls": [{"function": {"name": "f", "arguments": "\ud800"}}]}, "f\ufffd", 1),
        ({"content": {"parts": ["a", {"text": "b"}]}, "images": ["AAAA"]}, "ab", 0),
        ({"content": 5}, "", 0),
    ],
)
def test_output_is_counted_once_wherever_it_is(message: Any, text: str, calls: int) -> None:
    """Text, thinking and calls are output, in a stream and in a whole answer (116, 117)."""
    want = [Delta(0, text, calls)] if text or calls else []
    (event,) = read(line(message))
    assert (event.kind, event.deltas) == ("chunk", want)
    assert read_answer(line(message, done=True)).deltas == want


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": "", "reasoning": " word"}, " word"),
        ({"content": "c", "foo": {"bar": [" one", {"baz": " two"}]}, "copy": "c"}, "c one two"),
        ({"more": {"x": " word"}}, " word"),
        ({"content": "c", "role": "assistant", "images": ["AAAA"], "tool_calls": None}, "c"),
        (
            {"tool_calls": [{"id": "i", "type": "function", "foo": " a", "function": {"index": 0, "name": "f", "arguments": {}, "bar": " b"}}]},
            "f{} a b",
        ),
        ({"tool_calls": [{"foo": " a"}]}, " a"),
    ],
)
def test_a_text_in_a_field_that_is_not_known_is_output(message: Any, text: str) -> None:
    """Whatever it is called, once; roles, ids and pictures are none."""
    (event,) = read(line(message))
    assert [delta.text for delta in event.deltas] == [delta.text for delta in read_answer(line(message, done=True)).deltas] == [text]


@pytest.mark.parametrize(
    ("counts", "want"),
    [
        ({"prompt_eval_count": 26, "eval_count": 3}, Usage(26, 3)),
        ({"eval_count": 3}, Usage(None, 3)),
        ({"prompt_eval_count": 26}, Usage(26, None)),
        ({"prompt_eval_count": 0, "eval_count": 0}, Usage(0, 0)),
        ({"prompt_eval_count": -1, "eval_count": "3"}, Usage(None, None)),
        ({"prompt_eval_count": 26.0, "eval_count": 10**12}, Usage(26, None)),
        ({}, None),
    ],
)
def test_counts(counts: dict[str, Any], want: Usage | None) -> None:
    """What is left out, as of a prompt that was cached, is not zero; durations are no counts (49 to 60)."""
    data = line({"content": "x"}, done=True, done_reason="stop", total_duration=5, eval_duration=7, **counts)
    assert read_answer(data).usage == want
    said, end = read(data)
    assert said.usage == want and (end.kind, end.usage) == ("done", None)


@pytest.mark.parametrize(
    ("reason", "called", "want"),
    [("stop", False, "stop"), ("stop", True, "tool_calls"), ("length", True, "length"), ("load", False, "load"), (None, True, "tool_calls")],
)
def test_finishes(reason: str | None, called: bool, want: str) -> None:
    """In OpenAI's names; a stream that has called a tool before ends with that."""
    calls = {"tool_calls": [{"function": {"name": "f", "arguments": {}}}]} if called else {}
    assert read_answer(line(calls, done=True, done_reason=reason)).finishes == [(0, want)]
    said = read(line(calls) + line({"content": ""}, done=True, done_reason=reason))
    assert [finish for event in said for finish in event.finishes] == [(0, want)]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": "no such model"}, "no such model"),
        ({"error": {"message": "no", "code": 404}}, "no"),
        ({"detail": "not here"}, "not here"),
        ({"message": "a gateway's own"}, "a gateway's own"),
    ],
)
def test_errors(body: Any, message: str) -> None:
    """An error is a text; proxies before it have shapes of their own."""
    failure = read_answer(json.dumps(body).encode()).failure
    assert failure is not None and failure.message == message


def test_an_error_ends_a_stream() -> None:
    """What was said with it counts."""
    chunk, error = read(line({"content": "a"}) + line({"content": "b"}, error="out of memory", eval_count=7))
    assert (chunk.kind, error.kind) == ("chunk", "error")
    assert (error.failure, error.deltas, error.usage) == (Failure(None, "", "", "out of memory"), [Delta(0, "b")], Usage(None, 7))


def test_what_is_no_answer() -> None:
    """Is not readable, and one bad line does not end a stream."""
    for body in (b"", b"<html>", b"[]", b"null", b"{}", b'{"status":"ok"}', b"[" * 100_000):
        assert not read_answer(body).readable
    assert [event.kind for event in read(b"<html>\n\n" + line({"content": "a"}) + b'{"cut')] == ["bad", "comment", "chunk", "bad"]


def test_a_line_that_is_too_long() -> None:
    """Is bad, and what follows cannot be read."""
    assert [event.kind for event in read(b"x" * (17 << 20) + b"\n" + line({"content": "a"}))] == ["bad"]


def test_a_whole_answer_as_a_stream() -> None:
    """Is one line, however it was laid out."""
    body = json.dumps({"message": {"content": "a\nb"}, "done": True, "eval_count": 2}, indent=2).replace("\n", "\r\n").encode()
    said, end = read(streamed(body))
    assert (said.deltas, said.finishes, said.usage, end.kind) == ([Delta(0, "a\nb")], [(0, "stop")], Usage(None, 2), "done")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["function", "name", "arguments", "id", "x"]), inner, max_size=3),
    max_leaves=6,
)
MESSAGES = st.dictionaries(st.sampled_from(["role", "content", "thinking", "tool_calls", "images"]), JSON, max_size=4) | JSON
BODIES = st.fixed_dictionaries(
    {},
    optional={
        "model": JSON,
        "created_at": JSON,
        "message": MESSAGES,
        "done": st.booleans() | JSON,
        "done_reason": JSON,
        "error": JSON,
        "eval_count": JSON,
        "prompt_eval_count": JSON,
    },
)


@settings(max_examples=150)
@given(st.lists(BODIES, max_size=3), st.integers(1, 40))
def test_wrong_shapes(bodies: list[Any], size: int) -> None:
    """Nothing raises, nothing is lost, nothing depends on cuts, and all that is told to the client is metered."""
    data = b"".join(json.dumps(body).encode() + b"\n" for body in bodies)
    reader, pieces = StreamReader(), Pieces()
    events = [event for at in range(0, len(data), size) for event in reader.feed(data[at : at + size])] + reader.end()
    assert events == read(data) and b"".join(event.raw for event in events) == data
    metered = "".join(delta.text for event in events for delta in event.deltas)
    for event in events:
        for piece in pieces.of(event) if event.kind in ("chunk", "other") else ():
            told = getattr(piece, "text", "") or getattr(piece, "name", "") or getattr(piece, "arguments", "")
            assert told in metered or told == "{}"
    for body in bodies:
        whole = json.dumps(body).encode()
        if read_answer(whole).readable:
            read_reply(whole)
            assert read(streamed(whole))


@given(st.binary(max_size=100))
def test_any_bytes(data: bytes) -> None:
    """No bytes raise, none are lost."""
    assert b"".join(event.raw for event in read(data)) == data
    read_answer(data)
