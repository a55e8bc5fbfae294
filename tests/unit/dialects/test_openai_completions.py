"""Answers and streams of the OpenAI completions dialect: what is read of them, whatever is in them, and what the gateway says itself."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.core.usage import Usage
from sluicegate.dialects.form import Delta, Event
from sluicegate.dialects.openai_completions import Head, StreamReader, read_answer, streamed, write_event, write_truncation


def choice(text: Any, index: Any = 0, finish: Any = None, **rest: Any) -> dict[str, Any]:
    return {"text": text, "index": index, "logprobs": None, "finish_reason": finish, **rest}


def answer(*choices: Any, **rest: Any) -> bytes:
    return json.dumps({"id": "cmpl-1", "object": "text_completion", "created": 5, "model": "m", "choices": list(choices), **rest}).encode()


def events_of(*datas: bytes) -> list[Event]:
    """The events of a stream with these data."""
    reader = StreamReader()
    return reader.feed(b"".join(b"data: %b\n\n" % data for data in datas)) + reader.end()


OUTPUTS = [
    ("abc", {}, "abc"),
    ("", {}, ""),
    (None, {}, ""),
    (5, {}, ""),
    (["a", {"text": "b"}], {}, "ab"),
    ("c", {"reasoning": "r"}, "cr"),
    ("c", {"reasoning": "r", "reasoning_content": "r"}, "cr"),
    ("c", {"reasoning": "one", "reasoning_content": "two"}, "conetwo"),
    ("c", {"logprobs": {"tokens": ["c"], "token_logprobs": [-1.0]}}, "c"),
    ("c", {"token_ids": [5], "stop_reason": None}, "c"),
]


@pytest.mark.parametrize(("text", "rest", "want"), OUTPUTS)
def test_output_is_counted_once_wherever_it_is(text: Any, rest: dict[str, Any], want: str) -> None:
    """Text and thoughts, in a stream and in a whole answer; log probabilities repeat the text and are none (116, 117)."""
    data = answer(choice(text, **rest))
    deltas = [Delta(0, want)] if want else []
    (event,) = events_of(data)
    assert (event.kind, event.deltas, read_answer(data).deltas) == ("chunk", deltas, deltas)


@pytest.mark.parametrize(
    ("rest", "want"),
    [
        ({"thinking": " word"}, "c word"),
        ({"foo": {"bar": [" one", " two"]}}, "c one two"),
        ({"foo": "c"}, "c"),
        (
            {"prompt_logprobs": [{"5": {"decoded_token": "x"}}], "prompt_token_ids": [5], "content_filter_results": {"hate": {"severity": "safe"}}},
            "c",
        ),
    ],
)
def test_a_text_in_a_field_that_is_not_known_is_output(rest: dict[str, Any], want: str) -> None:
    """Whatever it is called; what is known to be none is none."""
    data = answer(choice("c", **rest))
    (event,) = events_of(data)
    assert event.deltas == read_answer(data).deltas == [Delta(0, want)]


def test_choices_and_finishes() -> None:
    """Each choice has its own output and finish; a missing or odd index is its place."""
    data = answer(choice("a", 1, "stop"), choice("b", 0, "length"))
    for got in (*events_of(data), read_answer(data)):
        assert (got.deltas, got.finishes) == ([Delta(1, "a"), Delta(0, "b")], [(1, "stop"), (0, "length")])
    odd = answer({"text": "a"}, {"text": "b", "index": "x"})
    assert read_answer(odd).deltas == [Delta(0, "a"), Delta(1, "b")]


@pytest.mark.parametrize("shape", ["message", "delta"])
def test_a_server_that_answers_as_in_a_chat_is_counted(shape: str) -> None:
    """Output is output."""
    data = answer({"index": 0, shape: {"role": "assistant", "content": "hi"}, "finish_reason": "stop"})
    (event,) = events_of(data)
    assert event.deltas == read_answer(data).deltas == [Delta(0, "hi")]


def test_usage() -> None:
    """In a whole answer, alone in a chunk, and beside choices (51)."""
    reported = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
    assert read_answer(answer(choice("a"), usage=reported)).usage == Usage(5, 3)
    alone, beside = events_of(answer(usage=reported), answer(choice("a", 0, "stop"), usage=reported))
    assert (alone.usage, alone.usage_only) == (Usage(5, 3), True)
    assert (beside.usage, beside.usage_only, beside.deltas, beside.finishes) == (Usage(5, 3), False, [Delta(0, "a")], [(0, "stop")])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error":{"message":"no","type":"t","param":"prompt","code":"c"}}', "no"),
        (b'{"object":"error","message":"no","type":"BadRequestError","code":400}', "no"),
        (b'{"detail":"no"}', "no"),
        (b'[{"error":{"message":"no"}}]', "no"),
        (answer(choice("a", error={"message": "no"})), "no"),
    ],
)
def test_errors_are_read(body: bytes, message: str) -> None:
    """As vendors write them, in a whole answer (37) and in a stream."""
    failure = read_answer(body).failure
    assert failure is not None and failure.message == message


@pytest.mark.parametrize("body", [b"", b"<html>", b"{", b"1", b'"x"', b"{}", b'{"choices":null}', b"\xff"])
def test_what_is_no_answer_is_not_readable(body: bytes) -> None:
    """Such a body is never taken for an empty answer."""
    got = read_answer(body)
    assert (got.readable, got.deltas) == (False, [])


def test_a_client_that_did_not_ask_sees_no_usage() -> None:
    """Neither alone nor beside choices, nor as null on each chunk (49, 50)."""
    reported = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
    null = b'{"id":"c","choices":[{"text":"a","index":0}],"usage":null}'
    first, last, alone = events_of(null, answer(choice("", 0, "stop"), usage=reported), answer(usage=reported))
    assert b"usage" not in b"".join(write_event(event, True) for event in (first, last, alone))
    assert b'"text"' in write_event(first, True) and b'"stop"' in write_event(last, True) and write_event(alone, True) == b""
    assert [write_event(event, False) for event in (first, last, alone)] == [first.raw, last.raw, alone.raw]


def test_a_whole_answer_as_a_stream() -> None:
    """Per choice its output and its end, then the usage, then [DONE]; unknown fields survive."""
    usage = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
    data = streamed(answer(choice("a", 1, "stop", more=1), choice("b", 0, "length"), usage=usage, fingerprint=7))
    events = StreamReader().feed(data)
    assert [event.kind for event in events] == ["chunk"] * 5 + ["done"]
    assert [delta for event in events for delta in event.deltas] == [Delta(1, "a"), Delta(0, "b")]
    assert [finish for event in events for finish in event.finishes] == [(1, "stop"), (0, "length")]
    assert (events[4].usage, events[4].usage_only) == (Usage(5, 3), True)
    assert data.count(b'"fingerprint": 7') == 5 and b'"more": 1' in data


@pytest.mark.parametrize("body", [b"[]", b'{"choices":' + b"[" * 3000 + b"]" * 3000 + b"}"])
def test_what_cannot_be_told_as_a_stream_is_an_error(body: bytes) -> None:
    """It could just be read."""
    events = StreamReader().feed(streamed(body))
    assert all(event.kind in ("error", "done") for event in events)


def test_a_truncation() -> None:
    """Each unfinished choice ends with "length" and says why; usage if asked for; [DONE]."""
    data = write_truncation(Head("cmpl-1", 5, "m"), None, [0, 2], "budget", Usage(7, 9))
    events = StreamReader().feed(data)
    assert [finish for event in events for finish in event.finishes] == [(0, "length"), (2, "length")]
    assert events[2].usage == Usage(7, 9) and events[-1].kind == "done" and len(events) == 4
    first = json.loads(events[0].raw[6:])
    assert first["object"] == "text_completion" and first["sluicegate"] == {"truncated": "budget"} and first["id"] == "cmpl-1"
    assert b"usage" not in write_truncation(Head(), None, [0], "ledger", None)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["text", "index", "finish_reason", "error", "x"]), inner, max_size=4),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["choices", "usage", "error", "object", "x"]), JSON, max_size=4), st.integers(1, 40))
def test_nothing_is_raised_and_cuts_do_not_matter(fields: dict[str, Any], size: int) -> None:
    """Whatever is in an object, whole or in pieces, as an answer, in a stream and as one made of it."""
    body = json.dumps(fields).encode()
    got = read_answer(body)
    stream = b"data: %b\n\ndata: [DONE]\n\n" % body
    whole, pieces = StreamReader(), StreamReader()
    events = whole.feed(stream)
    cut = [event for at in range(0, len(stream), size) for event in pieces.feed(stream[at : at + size])]
    assert cut == events and whole.end() == pieces.end() == []
    for event in events:
        write_event(event, True)
    if got.readable and got.failure is None:
        assert streamed(body)


@given(st.binary(max_size=200))
def test_any_bytes_are_read(data: bytes) -> None:
    """Nothing is raised."""
    reader = StreamReader()
    for event in reader.feed(data) + reader.end():
        write_event(event, True)
    read_answer(data)
