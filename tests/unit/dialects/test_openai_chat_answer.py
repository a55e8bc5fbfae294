"""Answers and streams of chat providers in the content form: every place where vendors put output, and calls however they are streamed."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.dialects import openai_chat
from sluicegate.dialects.content import (
    Begin,
    Choice,
    Finish,
    Part,
    Piece,
    RedactedBlock,
    RedactedThinking,
    Refusal,
    RefusalDelta,
    SignatureDelta,
    Text,
    TextDelta,
    Thinking,
    ThinkingDelta,
    ToolBegin,
    ToolDelta,
    ToolUse,
)
from sluicegate.dialects.openai_chat_answer import Pieces, read_reply

BEGIN = Begin("c1", "gpt", 7)


def answer(message: Any, finish: Any = "stop", **rest: Any) -> bytes:
    choice = {"index": 0, "message": message, "finish_reason": finish, **rest}
    return json.dumps({"id": "c1", "created": 7, "model": "gpt", "choices": [choice]}).encode()


def parts_of(message: Any, finish: Any = "stop") -> list[Part]:
    (choice,) = read_reply(answer(message, finish)).choices
    return choice.parts


def chunk(delta: Any, finish: Any = None, **rest: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish, **rest}
    return b"data: %b\n\n" % json.dumps({"id": "c1", "created": 7, "model": "gpt", "choices": [choice]}).encode()


def pieces_of(*events: bytes) -> list[Piece]:
    """The pieces of a stream, without the one that begins it."""
    pieces = Pieces()
    begin, *rest = [piece for event in openai_chat.StreamReader().feed(b"".join(events)) for piece in pieces.of(event)]
    assert begin == BEGIN
    return rest


def call(arguments: Any = "{}", name: Any = "f", id: Any = "i1", **rest: Any) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}, **rest}


# -- whole answers ------------------------------------------------------------------------------------------------------------------------


def test_an_answer() -> None:
    """Id, model, time, and each choice with its end."""
    body = {
        "id": "c1", "created": 7, "model": "gpt",
        "choices": [{"index": 1, "message": {"content": "b"}, "finish_reason": "length"}, {"message": {"content": "c"}, "finish_reason": "stop"}],
    }  # fmt: skip
    reply = read_reply(json.dumps(body).encode())
    assert (reply.id, reply.model, reply.created) == ("c1", "gpt", 7)
    assert reply.choices == [Choice(1, [Text("b")], "length"), Choice(1, [Text("c")], "stop")]


@pytest.mark.parametrize(
    ("message", "want"),
    [
        ({"content": "x"}, [Text("x")]),
        ({"content": None}, []),
        ({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "t"}]}, {"type": "text", "text": "x"}]}, [Thinking("t"), Text("x")]),
        ({"content": "x", "reasoning_content": "t", "reasoning": "t"}, [Thinking("t"), Text("x")]),
        ({"content": "x", "reasoning": "t"}, [Thinking("t"), Text("x")]),
        ({"reasoning_details": [{"type": "reasoning.text", "text": "t"}]}, [Thinking("t")]),
        ({"reasoning_details": [{"type": "reasoning.summary", "summary": "t"}]}, [Thinking("t")]),
        ({"refusal": "no"}, [Refusal("no")]),
        ({"tool_calls": [call('{"a":1}'), call("", "g", "i2")]}, [ToolUse("i1", "f", '{"a":1}'), ToolUse("i2", "g", "{}")]),
        ({"tool_calls": [call({"a": 1})]}, [ToolUse("i1", "f", '{"a":1}')]),
        ({"tool_calls": [call({"a": 10**30})]}, [ToolUse("i1", "f", '{"a":1000000000000000000000000000000}')]),
        ({"tool_calls": [call(None)]}, [ToolUse("i1", "f", "{}")]),
        ({"tool_calls": [call("{}", id=""), call("{}", id=None)]}, [ToolUse("call_c1_0_0", "f", "{}"), ToolUse("call_c1_0_1", "f", "{}")]),
        ({"tool_calls": [call(name="")]}, []),
        ({"function_call": {"name": "f", "arguments": "{}"}}, [ToolUse("call_c1_0_0", "f", "{}")]),
    ],
)
def test_output_wherever_it_is(message: dict[str, Any], want: list[Part]) -> None:
    """Thinking first, each text once; calls without an id get one."""
    assert parts_of(message) == want


def test_thinking_that_another_gateway_has_from_anthropic() -> None:
    """Its signatures are kept, those of other kinds are not."""
    details = [
        {"type": "reasoning.text", "text": "t", "signature": "s", "format": "anthropic-claude-v1"},
        {"type": "reasoning.encrypted", "data": "zz", "format": "anthropic-claude-v1"},
        {"type": "reasoning.encrypted", "data": "yy", "format": "openai-responses-v1"},
    ]
    assert parts_of({"reasoning": "t", "reasoning_details": details}) == [Thinking("t", "s"), RedactedThinking("zz")]
    assert parts_of({"reasoning_details": [{"signature": "s", "format": "anthropic-claude-v1"}]}) == [Thinking("", "s")]


@pytest.mark.parametrize(
    ("message", "reason", "want"),
    [
        ({"content": "x"}, "stop", "stop"),
        ({"content": "x"}, "length", "length"),
        ({"content": "x"}, "content_filter", "content_filter"),
        ({"content": "x"}, "eos", "eos"),
        ({"content": "x"}, None, ""),
        ({"tool_calls": [call()]}, "tool_calls", "tool_calls"),
        ({"tool_calls": [call()]}, "stop", "tool_calls"),
        ({"tool_calls": [call('{"a')]}, "length", "length"),
        ({"function_call": {"name": "f", "arguments": ""}}, "function_call", "tool_calls"),
    ],
)
def test_finish_reasons(message: Any, reason: Any, want: str) -> None:
    """A call that ended with "stop", as one asked for by name does, is a call; one that was cut is not (case 75)."""
    assert read_reply(answer(message, reason)).choices[0].finish == want
    (*_, finish) = pieces_of(chunk(message), chunk({}, reason or "stop"))
    assert finish == Finish(0, want or "stop")


def test_the_stop_sequence_of_vllm() -> None:
    """Is told where it is a text; an id of a token is none."""
    assert read_reply(answer({"content": "x"}, stop_reason="END")).choices[0].stop_sequence == "END"
    assert pieces_of(chunk({}, "stop", stop_reason=5), chunk({}))[-1] == Finish(0, "stop", "")


# -- streams ------------------------------------------------------------------------------------------------------------------------------


def test_a_stream() -> None:
    """Begins once, ends once, and says what each event says."""
    events = (
        chunk({"role": "assistant", "content": ""}),
        b'data: {"id":"c1","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}\n\n',
        chunk({"reasoning": "t"}),
        chunk({"content": "a"}),
        chunk({"refusal": "no"}),
        chunk({"content": "b"}, "stop"),
        chunk({}, "stop"),
        b"data: [DONE]\n\n",
    )
    assert pieces_of(*events) == [ThinkingDelta(0, "t"), TextDelta(0, "a"), RefusalDelta(0, "no"), TextDelta(0, "b"), Finish(0, "stop")]


def test_events_in_other_clothes() -> None:
    """Several data lines, other line ends, names and ids are read as the same event."""
    raw = b'id: 1\r\nevent: message\r\ndata: {"id":"c1","created":7,"model":"gpt",\r\ndata: "choices":[{"index":0,"delta":{"content":"a"}}]}\r\n\r\n'
    assert pieces_of(raw) == [TextDelta(0, "a")]
    assert pieces_of(b'data:{"id":"c1","created":7,"model":"gpt","choices":[{"delta":{"content":"a"}}]}\n\n') == [TextDelta(0, "a")]


def test_streamed_details() -> None:
    """Text once, a signature after the text that it is for."""
    first = {"type": "reasoning.text", "text": "t", "format": "anthropic-claude-v1", "index": 0}
    signed = {"type": "reasoning.text", "signature": "s", "format": "anthropic-claude-v1", "index": 0}
    redacted = {"type": "reasoning.encrypted", "data": "zz", "format": "anthropic-claude-v1", "index": 1}
    pieces = pieces_of(chunk({"reasoning": "t", "reasoning_details": [first]}), chunk({"reasoning_details": [signed, redacted]}))
    assert pieces == [ThinkingDelta(0, "t"), SignatureDelta(0, "s"), RedactedBlock(0, "zz")]


F, G = ToolBegin(0, 0, "i1", "f"), ToolBegin(0, 1, "i2", "g")
STREAMED = {
    "openai": (
        [
            [call("", index=0)],
            [{"index": 0, "function": {"arguments": "{"}}],
            [{"index": 0, "function": {"arguments": "}"}}],
            [call("{}", "g", "i2", index=1)],
        ],
        [F, ToolDelta(0, 0, "{"), ToolDelta(0, 0, "}"), G, ToolDelta(0, 1, "{}")],
    ),
    "interleaved": (
        [
            [call("", index=0), call("", "g", "i2", index=1)],
            [{"index": 1, "function": {"arguments": "{"}}, {"index": 0, "function": {"arguments": "{"}}],
            [{"index": 0, "function": {"arguments": "}"}}],
            [{"index": 1, "function": {"arguments": "}"}}],
        ],
        [F, G, ToolDelta(0, 1, "{"), ToolDelta(0, 0, "{"), ToolDelta(0, 0, "}"), ToolDelta(0, 1, "}")],
    ),
    "all at index 0": ([[call("{}", index=0)], [call("{}", "g", "i2", index=0)]], [F, ToolDelta(0, 0, "{}"), G, ToolDelta(0, 1, "{}")]),
    "no index": ([[call("{}")], [call("{}", "g", "i2")]], [F, ToolDelta(0, 0, "{}"), G, ToolDelta(0, 1, "{}")]),
    "id repeats": (
        [[call("", index=0)], [call("{", None, index=0)], [call("}", "", index=0)]],
        [F, ToolDelta(0, 0, "{"), ToolDelta(0, 0, "}")],
    ),
    "id and name repeat": ([[call("{", index=0)], [call("}", index=0)]], [F, ToolDelta(0, 0, "{"), ToolDelta(0, 0, "}")]),
    "id repeats without an index": (
        [[call("{")], [call("{", "g", "i2")], [call("}", None)], [call("}", None, "i2")]],
        [F, ToolDelta(0, 0, "{"), G, ToolDelta(0, 1, "{"), ToolDelta(0, 0, "}"), ToolDelta(0, 1, "}")],
    ),
    "id comes late": (
        [[call("{", id=None, index=0)], [call("}", None, "i1", index=0)]],
        [F, ToolDelta(0, 0, "{}")],
    ),
    "name comes late": ([[call("{", None, index=0)], [call("}", "f", None, index=0)]], [F, ToolDelta(0, 0, "{}")]),
    "no ids": (
        [[call("{", id=None, index=0)], [call("}", None, None, index=0)], [call("{}", "g", None, index=0)]],
        [ToolBegin(0, 0, "call_c1_0_0", "f"), ToolDelta(0, 0, "{}"), ToolBegin(0, 1, "call_c1_0_1", "g"), ToolDelta(0, 1, "{}")],
    ),
    "the same function twice, no ids": (
        [[call("{}", id=None, index=0)], [call('{"a":1}', id=None, index=0)]],
        [ToolBegin(0, 0, "call_c1_0_0", "f"), ToolDelta(0, 0, "{}"), ToolBegin(0, 1, "call_c1_0_1", "f"), ToolDelta(0, 1, '{"a":1}')],
    ),
    "no name": ([[call("{}", None, index=0)]], []),
    "not a list": ([call("{}")], [F, ToolDelta(0, 0, "{}")]),
    "odd": ([["x", None, {"function": 5}, {"index": [], "id": 5, "function": {"name": 5, "arguments": 5}}]], []),
}


@pytest.mark.parametrize(("streamed", "want"), STREAMED.values(), ids=STREAMED.keys())
def test_streamed_calls(streamed: list[Any], want: list[Piece]) -> None:
    """Each call is told apart and its arguments go to it, whichever way a vendor streams them (case 72)."""
    *pieces, finish = pieces_of(*[chunk({"tool_calls": calls}) for calls in streamed], chunk({}, "tool_calls"))
    assert pieces == want
    assert finish == Finish(0, "tool_calls")


def test_a_streamed_older_function() -> None:
    """Is a call as any other."""
    events = [chunk({"function_call": {"name": "f", "arguments": ""}}), chunk({"function_call": {"arguments": "{}"}}), chunk({}, "function_call")]
    assert pieces_of(*events) == [ToolBegin(0, 0, "call_c1_0_0", "f"), ToolDelta(0, 0, "{}"), Finish(0, "tool_calls")]


def test_choices_are_kept_apart() -> None:
    """Each has its own calls and its own end."""
    both = [{"index": i, "delta": {"tool_calls": [call("{}", index=0)]}, "finish_reason": "tool_calls"} for i in (0, 1)]
    raw = b"data: %b\n\n" % json.dumps({"id": "c1", "created": 7, "model": "gpt", "choices": both}).encode()
    assert pieces_of(raw) == [
        *(F, ToolDelta(0, 0, "{}"), Finish(0, "tool_calls")),
        *(ToolBegin(1, 0, "i1", "f"), ToolDelta(1, 0, "{}"), Finish(1, "tool_calls")),
    ]


def test_what_is_no_character_is_replaced() -> None:
    """Half a surrogate pair could not be written for the client; a time that no clock has is none."""
    reply = read_reply(b'{"id":"\\ud83d","created":1e400,"model":5,"choices":[{"message":{"content":"a\\ud83d"}}]}')
    assert (reply.id, reply.created, reply.model, reply.choices[0].parts) == ("\ufffd", 0, "", [Text("a\ufffd")])
    huge = b'{"id":"c","created":%d,"choices":[{"index":%d,"message":{"content":"a"}}]}' % (10**400, 10**400)
    assert (read_reply(huge).created, read_reply(huge).choices[0].index) == (0, 0)


NAMES = [
    "choices", "delta", "message", "content", "tool_calls", "function", "arguments", "name", "id", "index", "text", "reasoning", "reasoning_details",
    "format", "signature", "data", "function_call", "finish_reason", "refusal", "type",
]  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.sampled_from(["", "a", "anthropic", "thinking", "\ud83d", "{}"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5),
    max_leaves=14,
)
OUTPUT = st.dictionaries(st.sampled_from(NAMES), JSON, max_size=5)
CHOICES = st.lists(st.fixed_dictionaries({"delta": OUTPUT, "message": OUTPUT, "index": JSON, "finish_reason": JSON}) | JSON, max_size=2)


@settings(max_examples=150)
@given(st.lists(st.fixed_dictionaries({"choices": CHOICES, "id": JSON, "created": JSON}) | JSON, min_size=1, max_size=4))
def test_readers_never_raise(values: list[Any]) -> None:
    """Whatever JSON an upstream sends, whole or streamed; each delta of a call comes after its beginning."""
    pieces = Pieces()
    begun: set[tuple[int, int]] = set()
    for value in values:
        data = json.dumps(value).encode()
        for choice in read_reply(data).choices:
            assert all(part.arguments for part in choice.parts if isinstance(part, ToolUse))
        for event in openai_chat.StreamReader().feed(b"data: " + data + b"\n\n"):
            for piece in pieces.of(event):
                if isinstance(piece, ToolBegin):
                    begun.add((piece.choice, piece.call))
                assert not isinstance(piece, ToolDelta) or (piece.choice, piece.call) in begun
