"""Answers of other dialects as chat clients read them: whole, streamed, and cut."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from openai.lib.streaming._deltas import accumulate_delta
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from sluicegate.core.usage import Usage
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
from sluicegate.dialects.form import Request
from sluicegate.dialects.openai_chat_prompt import read_prompt
from sluicegate.dialects.openai_chat_reply import Writer, write_reply
from sluicegate.dialects.openai_request import read_request

BEGIN = Begin("msg_1", "claude", 1700000000)
USAGE = Usage(20, 7, cached_tokens=5, cache_write_tokens=3, reasoning_tokens=2)
USAGE_FIELDS = {
    "prompt_tokens": 20,
    "completion_tokens": 7,
    "total_tokens": 27,
    "prompt_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 3},
    "completion_tokens_details": {"reasoning_tokens": 2},
}


def request(**fields: Any) -> Request:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}
    return read_request(json.dumps(body).encode())


def replied(*parts: Part, finish: str = "stop", usage: Usage | None = None, **fields: Any) -> Any:
    """The body of an answer, which OpenAI's own client can read."""
    body = json.loads(write_reply(Reply("msg_1", "claude", 5, [Choice(0, list(parts), finish)], usage), request(**fields)))
    ChatCompletion.model_validate(body)
    return body


def chunks(*pieces: Piece, usage: Usage | None = None, **fields: Any) -> list[Any]:
    """The chunks of a stream that begins with BEGIN; each is one that OpenAI's own client can read."""
    writer = Writer(request(stream=True, **fields))
    data = writer.write([BEGIN]) + writer.write(list(pieces)) + writer.last(usage)
    *events, done, rest = data.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    read = [json.loads(event.removeprefix(b"data: ")) for event in events]
    for chunk in read:
        ChatCompletionChunk.model_validate(chunk)
        assert {name: chunk[name] for name in ("id", "object", "created", "model")} == {
            "id": "msg_1", "object": "chat.completion.chunk", "created": 1700000000, "model": "claude",
        }  # fmt: skip
    return read


def deltas(*pieces: Piece, **fields: Any) -> list[Any]:
    """Delta and finish reason of each chunk after the first, which has the role."""
    first, *rest = [chunk["choices"][0] for chunk in chunks(*pieces, **fields)]
    assert first == {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    return [choice["finish_reason"] or choice["delta"] for choice in rest]


# -- whole answers ------------------------------------------------------------------------------------------------------------------------


def test_a_text() -> None:
    """Everything that a chat completion has, texts put together, usage with its details and its total."""
    assert replied(Text("a"), Text("b"), usage=USAGE) == {
        "id": "msg_1",
        "object": "chat.completion",
        "created": 5,
        "model": "claude",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "ab", "refusal": None}, "logprobs": None, "finish_reason": "stop"},
        ],
        "usage": USAGE_FIELDS,
    }


def test_calls() -> None:
    """With their ids; without arguments it is an empty object (case 67), and cut ones stay as they are (case 75)."""
    body = replied(ToolUse("c1", "f", '{"a": 1}'), ToolUse("c2", "g", ""), ToolUse("c3", "h", '{"b'), finish="length")
    assert body["choices"][0]["finish_reason"] == "length"
    message = body["choices"][0]["message"]
    assert message["content"] is None
    assert message["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}},
        {"id": "c2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        {"id": "c3", "type": "function", "function": {"name": "h", "arguments": '{"b'}},
    ]


def test_a_client_of_the_older_functions() -> None:
    """Gets the first call as a function call, and its finish reason."""
    choice = replied(ToolUse("c1", "f", ""), ToolUse("c2", "g", ""), finish="tool_calls", functions=[{"name": "f"}])["choices"][0]
    assert choice["message"]["function_call"] == {"name": "f", "arguments": "{}"}
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "function_call"


def test_a_refusal() -> None:
    """Stands in its own field; an answer of nothing is an empty text."""
    assert replied(Refusal("no"))["choices"][0]["message"] == {"role": "assistant", "content": None, "refusal": "no"}
    assert replied()["choices"][0]["message"] == {"role": "assistant", "content": "", "refusal": None}


def test_thinking_is_reasoning_content_and_its_signatures_survive() -> None:
    """What a client gets and sends back is what the model had thought, byte for byte."""
    parts = [Thinking("why", "sig=="), RedactedThinking("zz"), Thinking("more", "sig2"), Thinking("unsigned"), Text("x"), ToolUse("c1", "f", "{}")]
    message = replied(*parts, finish="tool_calls")["choices"][0]["message"]
    assert message["reasoning_content"] == "whymoreunsigned"
    body = {"model": "m", "messages": [message, {"role": "tool", "tool_call_id": "c1", "content": "r"}]}
    prompt = read_prompt(read_request(json.dumps(body).encode()))
    assert prompt.messages[0].parts == [part for part in parts if part != Thinking("unsigned")]


def test_without_a_model_the_asked_one_is_named() -> None:
    """A provider need not say which it was."""
    assert json.loads(write_reply(Reply("i", "", 5, []), request()))["model"] == "m"
    writer = Writer(request(stream=True))
    assert b'"model":"m"' in writer.write([Begin("i", "", 5)])


# -- streams ------------------------------------------------------------------------------------------------------------------------------


def test_a_streamed_text() -> None:
    """The role first, then texts, then the end; no usage for a client that did not ask (case 50)."""
    assert deltas(TextDelta(0, "a"), TextDelta(0, "b"), Finish(0, "stop"), usage=USAGE) == [{"content": "a"}, {"content": "b"}, "stop"]


def test_usage_is_one_chunk_for_those_who_asked() -> None:
    """After the end, with no choices; none where nothing is known."""
    asked = {"stream_options": {"include_usage": True}}
    *_, last = chunks(TextDelta(0, "a"), Finish(0, "stop"), usage=USAGE, **asked)
    assert (last["choices"], last["usage"]) == ([], USAGE_FIELDS)
    assert all("usage" not in chunk for chunk in chunks(Finish(0, "stop"), **asked))


def test_streamed_calls() -> None:
    """Numbered from 0 with their id and name first, however their arguments interleave (case 72)."""
    pieces = [
        TextDelta(0, "t"), ToolBegin(0, 0, "c1", "f"), ToolBegin(0, 1, "c2", "g"), ToolDelta(0, 1, '{"b"'), ToolDelta(0, 0, "{"), ToolDelta(0, 0, ""),
        ToolDelta(0, 1, ":1}"), ToolDelta(0, 0, "}"), Finish(0, "tool_calls"),
    ]  # fmt: skip
    assert deltas(*pieces, usage=None) == [
        {"content": "t"},
        {"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 1, "id": "c2", "type": "function", "function": {"name": "g", "arguments": ""}}]},
        {"tool_calls": [{"index": 1, "function": {"arguments": '{"b"'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]},
        {"tool_calls": [{"index": 1, "function": {"arguments": ":1}"}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]},
        "tool_calls",
    ]


def test_a_streamed_call_without_arguments() -> None:
    """Gets an empty object before the end (case 67), unless it was cut there (case 75)."""
    called = [ToolBegin(0, 0, "c1", "f"), ToolBegin(0, 1, "c2", "g"), ToolDelta(0, 1, "{}")]
    assert deltas(*called, Finish(0, "tool_calls"))[-2:] == [{"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}, "tool_calls"]
    assert deltas(*called, Finish(0, "length"))[-2:] == [{"tool_calls": [{"index": 1, "function": {"arguments": "{}"}}]}, "length"]


def test_an_end_without_a_reason_is_told_as_one() -> None:
    """Clients wait for a finish reason: a provider may have named none, whole or streamed."""
    called = [ToolBegin(0, 0, "c1", "f"), ToolDelta(0, 0, "{}")]
    assert deltas(TextDelta(0, "a")) == [{"content": "a"}, "stop"]
    assert deltas() == ["stop"]
    assert deltas(TextDelta(0, "a"), Finish(0, "length")) == [{"content": "a"}, "length"]
    assert deltas(*called)[-1] == "tool_calls" and deltas(*called, functions=[{"name": "f"}])[-1] == "function_call"
    assert replied(Text("a"), finish="")["choices"][0]["finish_reason"] == "stop"
    assert replied(ToolUse("c1", "f", ""), finish="")["choices"][0]["finish_reason"] == "tool_calls"


def test_a_streamed_older_function() -> None:
    """The first call alone."""
    pieces = [ToolBegin(0, 0, "c1", "f"), ToolDelta(0, 0, "{}"), ToolBegin(0, 1, "c2", "g"), Finish(0, "tool_calls")]
    assert deltas(*pieces, functions=[{"name": "f"}]) == [
        {"function_call": {"name": "f", "arguments": ""}},
        {"function_call": {"arguments": "{}"}},
        "function_call",
    ]


def test_streamed_thinking() -> None:
    """Told as it comes; with each signature the whole detail, under numbers from 0, which OpenAI's own client puts together."""
    thought = [ThinkingDelta(0, "wh"), ThinkingDelta(0, "y"), SignatureDelta(0, "sig"), RedactedBlock(0, "zz"), SignatureDelta(0, "empty")]
    got = deltas(*thought, RefusalDelta(0, "no"), Finish(0, "stop"))
    assert got[:2] == [{"reasoning_content": "wh"}, {"reasoning_content": "y"}]
    assert got[-2:] == [{"refusal": "no"}, "stop"]
    message: dict[Any, Any] = {"role": "assistant"}
    for delta in got[:-1]:
        message = accumulate_delta(message, delta)
    prompt = read_prompt(read_request(json.dumps({"model": "m", "messages": [message]}).encode()))
    assert prompt.messages[0].parts == [Thinking("why", "sig"), RedactedThinking("zz"), Thinking("", "empty"), Refusal("no")]


def test_a_stream_that_begins_with_output() -> None:
    """A choice that nothing announced begins with its role all the same."""
    writer = Writer(request(stream=True))
    first, second, _ = writer.write([TextDelta(1, "a")]).split(b"\n\n")
    assert json.loads(first[6:])["choices"] == [{"index": 1, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}]
    assert json.loads(second[6:])["choices"][0]["delta"] == {"content": "a"}


def test_a_cut_stream_ends_under_its_own_id() -> None:
    """The truncation of the dialect goes on where the writer stood."""
    writer = Writer(request(stream=True))
    writer.write([BEGIN, TextDelta(0, "a")])
    assert writer.after is None
    first, *_ = openai_chat.write_truncation(writer.head, writer.after, [0], "budget", None).split(b"\n\n")
    chunk = json.loads(first[6:])
    assert (chunk["id"], chunk["model"], chunk["choices"][0]["finish_reason"]) == ("msg_1", "claude", "length")


TEXTS = st.text(st.characters(codec="utf-8"), max_size=5)
PIECES = st.lists(
    st.one_of(
        st.builds(TextDelta, st.just(0), TEXTS),
        st.builds(ThinkingDelta, st.just(0), TEXTS),
        st.builds(SignatureDelta, st.just(0), TEXTS),
        st.builds(RedactedBlock, st.just(0), TEXTS),
        st.builds(RefusalDelta, st.just(0), TEXTS),
    ),
    max_size=8,
)


@settings(max_examples=60)
@given(PIECES, st.lists(TEXTS, max_size=3))
def test_a_stream_says_what_the_pieces_say(pieces: list[Piece], arguments: list[str]) -> None:
    """Read by the dialect's own reader and put together as OpenAI's client does it, nothing is lost and nothing added."""
    calls: list[Piece] = [piece for i, text in enumerate(arguments) for piece in (ToolBegin(0, i, f"c{i}", "f"), ToolDelta(0, i, text))]
    writer = Writer(request(stream=True))
    data = writer.write([BEGIN, *pieces, *calls, Finish(0, "stop")]) + writer.last(None)
    reader = openai_chat.StreamReader()
    events = reader.feed(data) + reader.end()
    assert [event.kind for event in events] == ["chunk"] * (len(events) - 1) + ["done"]
    message: dict[Any, Any] = {}
    for event in events[:-1]:
        message = accumulate_delta(message, json.loads(event.raw[6:])["choices"][0]["delta"])
    assert message["content"] == "".join(piece.text for piece in pieces if isinstance(piece, TextDelta))
    assert (message.get("reasoning_content") or "") == "".join(piece.text for piece in pieces if isinstance(piece, ThinkingDelta))
    assert [call["function"]["arguments"] for call in message.get("tool_calls", [])] == [text or "{}" for text in arguments]
