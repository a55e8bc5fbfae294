"""Answers of Anthropic's models for clients of other dialects: whole, and in pieces."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.core.usage import Usage
from sluicegate.dialects.anthropic_answer import Pieces, read_reply
from sluicegate.dialects.anthropic_messages import NAME, StreamReader, read_answer, streamed
from sluicegate.dialects.content import (
    Begin,
    Choice,
    Finish,
    Piece,
    RedactedBlock,
    RedactedThinking,
    SignatureDelta,
    Text,
    TextDelta,
    Thinking,
    ThinkingDelta,
    ToolBegin,
    ToolDelta,
    ToolUse,
)
from sluicegate.dialects.form import Event
from support_golden import GOLDEN


def pieces(data: bytes) -> list[Piece]:
    """What a stream says."""
    reader, read = StreamReader(), Pieces()
    return [piece for event in reader.feed(data) + reader.end() if event.kind in ("chunk", "other") for piece in read.of(event)]


def golden(name: str) -> bytes:
    return (GOLDEN / NAME / f"{name}.sse").read_bytes()


def event(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), json.dumps({"type": kind, **fields}).encode())


def test_a_whole_reply() -> None:
    """Every block that others know; what tools of the provider did is left out."""
    content = [
        {"type": "thinking", "thinking": "hm", "signature": "proof"}, {"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "a"},
        {"type": "text", "text": ""}, {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"q": 1}},
        {"type": "tool_use", "id": "i", "name": "f", "input": {"q": 1}}, {"type": "tool_use", "id": "j", "name": "g", "input": {}},
    ]  # fmt: skip
    reply = read_reply(json.dumps({"id": "m", "model": "x", "content": content, "stop_reason": "stop_sequence", "stop_sequence": "END"}).encode())
    parts = [Thinking("hm", "proof"), RedactedThinking("x"), Text("a"), ToolUse("i", "f", '{"q": 1}'), ToolUse("j", "g", "{}")]
    assert (reply.id, reply.model, reply.choices) == ("m", "x", [Choice(0, parts, "stop", "END")])  # type: ignore[list-item]


def test_case_72_calls_are_numbered_from_0() -> None:
    """Whatever blocks come before them; text, thinking and proofs in their order; usage at the start."""
    got = pieces(golden("thinking_and_tools"))
    assert got == [
        Begin("msg_01", "claude-sonnet-4-5-20250929", 0, Usage(1212, 3, 900, 300, cache_write_1h_tokens=200)),
        ThinkingDelta(0, "Let me"), ThinkingDelta(0, " look."), SignatureDelta(0, "EqQBCgIYAhIM1gbcDa9GJwZA2b3hGgxBdjrkzLoky3dl1pkiMOYds+=="),
        RedactedBlock(0, "EmwKAhgBEgy3va3pzix/LafPsn4aDFIT2Xlxh0L5L8rLVyIwxtE3rAFBa8cr3qpP"), TextDelta(0, "I look"), TextDelta(0, " it up."),
        ToolBegin(0, 0, "toolu_01", "get_weather"), ToolDelta(0, 0, '{"location":'), ToolDelta(0, 0, ' "San Fra'), ToolDelta(0, 0, 'ncisco"}'),
        ToolBegin(0, 1, "toolu_02", "now"), ToolDelta(0, 1, "{}"), Finish(0, "tool_calls"),
    ]  # fmt: skip


def test_case_67_a_call_without_arguments_has_none() -> None:
    """`{}`, once, whether its block says so at the start or not at all."""
    for given_at_start in ({}, {"q": 1}):
        block = {"type": "tool_use", "id": "i", "name": "f", "input": given_at_start}
        got = pieces(event("content_block_start", index=0, content_block=block) + event("content_block_stop", index=0) * 2)
        assert got == [Begin("", "", 0), ToolBegin(0, 0, "i", "f"), ToolDelta(0, 0, json.dumps(given_at_start))]


def test_an_event_of_no_shape_says_nothing() -> None:
    """Not even that the answer has begun."""
    assert Pieces().of(Event(b"", "other")) == Pieces().of(Event(b": ping\n\n", "other")) == Pieces().of(Event(b"data: 5\n\n", "other")) == []


def test_an_event_may_be_known_by_its_name_alone() -> None:
    """As the stream's reader knows it."""
    data = b'event: content_block_delta\ndata: {"index":0,"delta":{"text":"a"}}\n\n'
    assert pieces(data)[1:] == pieces(data.replace(b"\n", b"\r\n"))[1:] == [TextDelta(0, "a")]


def test_tools_of_the_provider_are_left_out() -> None:
    """With what they were given and what they found."""
    got = pieces(golden("web_search"))
    assert [piece for piece in got if isinstance(piece, ToolBegin | ToolDelta)] == []
    assert "".join(piece.text for piece in got if isinstance(piece, TextDelta)) == "I'll check.It rains."


@pytest.mark.parametrize(("name", "finish"), [("refusal", "content_filter"), ("crlf_without_names", "length"), ("odd_shapes", "pause_turn")])
def test_case_69_finishes(name: str, finish: str) -> None:
    """In the form's names, once."""
    assert [piece.reason for piece in pieces(golden(name)) if isinstance(piece, Finish)] == [finish]
    assert pieces(golden("stop_sequence_and_no_stop"))[-1] == Finish(0, "stop", "three")


def test_a_whole_answer_says_the_same_as_a_stream() -> None:
    """For a client that wanted a stream of a provider that gave none."""
    content = [
        {"type": "thinking", "thinking": "hm", "signature": "p"},
        {"type": "text", "text": "a"},
        {"type": "tool_use", "id": "i", "name": "f", "input": {}},
    ]
    body = json.dumps(
        {"id": "m", "model": "x", "content": content, "stop_reason": "tool_use", "usage": {"input_tokens": 3, "output_tokens": 4}}
    ).encode()
    got = pieces(streamed(body))
    assert got[1:] == [
        ThinkingDelta(0, "hm"), SignatureDelta(0, "p"), TextDelta(0, "a"), ToolBegin(0, 0, "i", "f"), ToolDelta(0, 0, "{}"), Finish(0, "tool_calls"),
    ]  # fmt: skip
    assert read_answer(body).usage == Usage(3, 4)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "text", "input", "name", "id", "data"]), inner, max_size=3),
    max_leaves=6,
)
KINDS = ["message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "x"]
FIELDS = ["index", "message", "content_block", "delta", "usage", "content", "stop_reason"]


@settings(max_examples=120)
@given(st.lists(st.tuples(st.sampled_from(KINDS), st.dictionaries(st.sampled_from(FIELDS), JSON)), max_size=5))
def test_nothing_raises(events: list[tuple[str, dict[str, Any]]]) -> None:
    """Whatever comes, it can be told to clients of another dialect; every piece of a call comes after its begin."""
    data = b"".join(b"event: %b\ndata: %b\n\n" % (kind.encode(), json.dumps({"type": kind, **fields}).encode()) for kind, fields in events)
    begun = set()
    for piece in pieces(data):
        if isinstance(piece, ToolBegin):
            begun.add(piece.call)
        assert not isinstance(piece, ToolDelta) or piece.call in begun
    for _, fields in events:
        read_reply(json.dumps(fields).encode())
