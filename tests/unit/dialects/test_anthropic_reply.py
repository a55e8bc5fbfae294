"""Answers of other dialects as Anthropic's clients read them: whole, and as streams in which one block is open at a time."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.core.usage import Usage
from sluicegate.dialects.anthropic_messages import NO_BLOCK, StreamReader, write_truncation
from sluicegate.dialects.anthropic_reply import Writer, usage_fields, write_reply
from sluicegate.dialects.anthropic_request import read_request
from sluicegate.dialects.anthropic_thinking import UNSIGNED
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
    Reply,
    SignatureDelta,
    Text,
    TextDelta,
    Thinking,
    ThinkingDelta,
    ToolBegin,
    ToolDelta,
    ToolUse,
)

REQUEST = read_request(b'{"model":"asked","max_tokens":5,"messages":[{"role":"user","content":"hi"}]}')
BEGIN = Begin("id", "model", 1)


def whole(*parts: Part, finish: str = "stop", stop_sequence: str = "", usage: Usage | None = None) -> Any:
    return json.loads(write_reply(Reply("id", "model", 1, [Choice(0, list(parts), finish, stop_sequence)], usage), REQUEST))


def datas(data: bytes) -> list[Any]:
    """The data of each event, whose name is its type."""
    found = []
    for event in data.split(b"\n\n")[:-1]:
        name, _, said = event.partition(b"\n")
        found.append(json.loads(said.removeprefix(b"data: ")))
        assert name == b"event: " + found[-1]["type"].encode()
    return found


def streamed(*pieces: Piece, usage: Usage | None = None) -> list[Any]:
    writer = Writer(REQUEST)
    return datas(b"".join(writer.write([piece]) for piece in (BEGIN, *pieces)) + writer.last(usage or Usage(7, 5)))


def blocks(events: list[Any]) -> list[Any]:
    """Blocks as a client puts them together, which checks the rules: one open at a time, numbered from 0."""
    found: list[Any] = []
    current: Any = None
    for event in events:
        if event["type"] == "content_block_start":
            assert current is None and event["index"] == len(found)
            current = dict(event["content_block"])
            current["partial_json"] = ""
        elif event["type"] == "content_block_delta":
            assert event["index"] == len(found)
            for name, value in event["delta"].items():
                if name != "type":
                    current[name] = current[name] + value
        elif event["type"] == "content_block_stop":
            assert event["index"] == len(found)
            given = current.pop("partial_json")
            if current["type"] == "tool_use":
                current["input"] = given
            found.append(current)
            current = None
    assert current is None
    return found


# -- whole --------------------------------------------------------------------------------------------------------------------------------


def test_a_whole_reply() -> None:
    """Every part has its block; thinking without a proof is marked, a refusal is text and the reason."""
    parts = [Thinking("hm", "proof"), Thinking("hm"), RedactedThinking("x"), Text("a"), Text(""), ToolUse("i", "f", '{"q":1}'), ToolUse("j", "g", "")]
    message = whole(*parts, finish="tool_calls", usage=Usage(7, 5))
    assert (message["id"], message["type"], message["role"], message["model"]) == ("id", "message", "assistant", "model")
    assert message["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": "proof"}, {"type": "thinking", "thinking": "hm", "signature": UNSIGNED},
        {"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "a"},
        {"type": "tool_use", "id": "i", "name": "f", "input": {"q": 1}}, {"type": "tool_use", "id": "j", "name": "g", "input": {}},
    ]  # fmt: skip
    assert (message["stop_reason"], message["stop_sequence"], message["usage"]["output_tokens"]) == ("tool_use", None, 5)
    assert json.loads(write_reply(Reply("", "", 0, []), REQUEST))["model"] == "asked"


REASONS = [
    ("stop", "end_turn"), ("length", "max_tokens"), ("tool_calls", "tool_use"), ("content_filter", "refusal"), ("", "end_turn"),
    ("pause_turn", "pause_turn"), ("new", "new"),
]  # fmt: skip


@pytest.mark.parametrize(("finish", "reason"), REASONS)
def test_case_69_reasons(finish: str, reason: str) -> None:
    """Each has its own; one that is not known is passed on."""
    assert whole(Text("a"), finish=finish)["stop_reason"] == reason
    assert streamed(TextDelta(0, "a"), Finish(0, finish))[-2]["delta"]["stop_reason"] == reason


def test_reasons_that_other_dialects_do_not_have() -> None:
    """The sequence that ended it, a refusal, and calls after which some upstreams say no more than "stop"."""
    assert (whole(finish="stop", stop_sequence="x")["stop_reason"], whole(stop_sequence="x")["stop_sequence"]) == ("stop_sequence", "x")
    assert streamed(Finish(0, "stop", "x"))[-2]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "x"}
    assert whole(Refusal("no"))["stop_reason"] == streamed(RefusalDelta(0, "no"), Finish(0, "stop"))[-2]["delta"]["stop_reason"] == "refusal"
    assert (
        whole(ToolUse("i", "f", "{}"))["stop_reason"]
        == streamed(ToolBegin(0, 0, "i", "f"), Finish(0, "stop"))[-2]["delta"]["stop_reason"]
        == "tool_use"
    )


def test_case_63_usage() -> None:
    """What a cache gave and took is beside the input."""
    usage = Usage(1050, 9, cached_tokens=900, cache_write_tokens=50, reasoning_tokens=4, cache_write_1h_tokens=20)
    assert usage_fields(usage) == {
        "input_tokens": 100, "cache_creation_input_tokens": 50, "cache_read_input_tokens": 900, "output_tokens": 9,
        "cache_creation": {"ephemeral_5m_input_tokens": 30, "ephemeral_1h_input_tokens": 20}, "output_tokens_details": {"thinking_tokens": 4},
    }  # fmt: skip


# -- streamed -----------------------------------------------------------------------------------------------------------------------------


def test_a_streamed_reply() -> None:
    """Blocks one after the other, usage where it is known by then and in the end."""
    events = streamed(
        ThinkingDelta(0, "h"), ThinkingDelta(0, "m"), SignatureDelta(0, "proof"), RedactedBlock(0, "x"), TextDelta(0, "a"), TextDelta(0, "b"),
        ToolBegin(0, 0, "i", "f"), ToolDelta(0, 0, '{"q"'), ToolDelta(0, 0, ":1}"), Finish(0, "tool_calls"),
    )  # fmt: skip
    assert blocks(events) == [
        {"type": "thinking", "thinking": "hm", "signature": "proof"}, {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "ab"}, {"type": "tool_use", "id": "i", "name": "f", "input": '{"q":1}'},
    ]  # fmt: skip
    assert events[0]["message"]["usage"]["input_tokens"] == 0
    assert (events[-2]["usage"]["input_tokens"], events[-2]["usage"]["output_tokens"], events[-1]["type"]) == (7, 5, "message_stop")


def test_thinking_without_a_proof_is_marked() -> None:
    """So that it is known again when it comes back."""
    assert blocks(streamed(ThinkingDelta(0, "hm"), TextDelta(0, "a")))[0]["signature"] == UNSIGNED
    signed_twice = blocks(streamed(ThinkingDelta(0, "a"), SignatureDelta(0, "1"), ThinkingDelta(0, "b"), SignatureDelta(0, "2")))
    assert [(block["thinking"], block["signature"]) for block in signed_twice] == [("a", "1"), ("b", "2")]


def test_case_67_calls_without_arguments() -> None:
    """Are told as calls with none."""
    assert [block["input"] for block in blocks(streamed(ToolBegin(0, 0, "i", "f"), ToolBegin(0, 1, "j", "g"), ToolDelta(0, 1, "{}")))] == ["{}", "{}"]


def test_case_72_interleaved_calls() -> None:
    """Each gets its own arguments, one block after the other, whatever comes first."""
    events = streamed(
        TextDelta(0, "a"), ToolBegin(0, 0, "i", "f"), ToolBegin(0, 1, "j", "g"), ToolDelta(0, 1, '{"y":'), ToolDelta(0, 0, '{"x":"}'),
        ToolDelta(0, 1, "2}"), ToolDelta(0, 0, '\\""}'), TextDelta(0, "b"), Finish(0, "tool_calls"),
    )  # fmt: skip
    assert [block.get("input", block.get("text")) for block in blocks(events)] == ["a", '{"x":"}\\""}', '{"y":2}', "b"]


def test_a_call_is_told_as_it_comes() -> None:
    """One that follows a whole one is not kept back."""
    writer = Writer(REQUEST)
    writer.write([BEGIN, ToolBegin(0, 0, "i", "f"), ToolDelta(0, 0, '{"q":[1]}')])
    assert writer.after == 0
    begun = datas(writer.write([ToolBegin(0, 1, "j", "g")]))
    assert [event["type"] for event in begun] == ["content_block_stop", "content_block_start"] and writer.after == 1
    assert datas(writer.write([ToolDelta(0, 1, '{"x')]))[0]["delta"] == {"type": "input_json_delta", "partial_json": '{"x'}


def test_case_75_a_call_that_was_cut() -> None:
    """Its arguments come as far as they were written, with the reason."""
    events = streamed(ToolBegin(0, 0, "i", "f"), ToolDelta(0, 0, '{"q":"lo'), Finish(0, "length"))
    assert blocks(events)[0]["input"] == '{"q":"lo' and events[-2]["delta"]["stop_reason"] == "max_tokens"
    assert whole(ToolUse("i", "f", '{"q":"lo'), finish="length")["content"][0]["input"] == {"arguments": '{"q":"lo'}


def test_a_stream_that_says_nothing() -> None:
    """Is a message without content all the same."""
    writer = Writer(REQUEST)
    events = datas(writer.last(Usage(7, 0)))
    assert [event["type"] for event in events] == ["message_start", "message_delta", "message_stop"]
    assert events[0]["message"]["model"] == "asked"


def test_pieces_of_another_choice_are_left_out() -> None:
    """There is one answer in this dialect."""
    assert [event["type"] for event in streamed(TextDelta(1, "a"))] == ["message_start", "message_delta", "message_stop"]


PIECES = st.lists(
    st.one_of(
        st.builds(TextDelta, st.just(0), st.text("ab", min_size=1, max_size=3)),
        st.builds(ThinkingDelta, st.just(0), st.text("ab", min_size=1, max_size=3)),
        st.builds(SignatureDelta, st.just(0), st.just("proof")),
        st.builds(RedactedBlock, st.just(0), st.just("x")),
        st.builds(ToolDelta, st.just(0), st.integers(0, 2), st.sampled_from(["{", "}", '"', "a", "\\", "[", "]"])),
    ),
    max_size=12,
)


@settings(max_examples=100)
@given(PIECES, st.integers(0, 12))
def test_any_pieces_make_a_well_formed_stream(pieces: list[Piece], at: int) -> None:
    """Nothing is lost or told twice, each call has its own arguments, and a stream may be cut after any piece."""
    told: list[Piece] = [ToolBegin(0, call, f"id{call}", "f") for call in range(3)] + pieces
    events = streamed(*told, Finish(0, "stop"))
    found = blocks(events)
    texts = "".join(block["text"] for block in found if block["type"] == "text")
    thoughts = "".join(block["thinking"] for block in found if block["type"] == "thinking")
    assert texts == "".join(piece.text for piece in pieces if isinstance(piece, TextDelta))
    assert thoughts == "".join(piece.text for piece in pieces if isinstance(piece, ThinkingDelta))
    for call in range(3):
        [block] = [block for block in found if block.get("id") == f"id{call}"]
        want = "".join(piece.arguments for piece in pieces if isinstance(piece, ToolDelta) and piece.call == call)
        if block["input"] != (want or "{}"):  # only behind a whole value is anything left out
            assert want.startswith(block["input"]) and block["input"][-1] in "}]"
    writer = Writer(REQUEST)
    data = writer.write([BEGIN, *told[:at]])
    reader = StreamReader()
    reader.feed(data)
    after = reader.feed(b": the state\n\n")[0].after
    assert after == writer.after
    cut = datas(data + write_truncation(writer.head, writer.after, [0], "budget", Usage(7, 5)))
    blocks(cut)
    assert cut[-2]["usage"] == {"output_tokens": 5, "input_tokens": 7} and writer.after is not None and writer.after >= NO_BLOCK
