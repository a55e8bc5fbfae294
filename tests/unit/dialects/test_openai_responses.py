"""Answers and streams of the OpenAI Responses dialect: what is read of them, whatever is in them, and what the gateway says itself."""

import json
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import ResponseStreamEvent

from sluicegate.core.usage import Usage
from sluicegate.dialects.form import Delta, Event, Failure
from sluicegate.dialects.openai_responses import (
    StreamReader,
    read_answer,
    streamed,
    write_error,
    write_event,
    write_stream_error,
    write_truncation,
)

MESSAGE = {"id": "msg_1", "type": "message", "status": "completed", "role": "assistant", "content": []}
CALL = {"id": "fc_1", "type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"q":1}', "status": "completed"}
USAGE = {"input_tokens": 9, "output_tokens": 4, "total_tokens": 13}
_TYPES = {get_args(known.model_fields["type"].annotation)[0]: known for known in get_args(get_args(ResponseStreamEvent)[0])}


def text(value: str, **rest: Any) -> dict[str, Any]:
    """A message of one text."""
    return MESSAGE | {"content": [{"type": "output_text", "text": value, "annotations": [], "logprobs": []}]} | rest


def response(*output: Any, **rest: Any) -> dict[str, Any]:
    """A whole response, with every field that the official package's types demand."""
    head = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    return head | {"status": "completed", "error": None, "incomplete_details": None, "output": list(output), "usage": None} | rest


def body(*output: Any, **rest: Any) -> bytes:
    return json.dumps(response(*output, **rest)).encode()


def stream(*datas: Any) -> bytes:
    """A stream with these values as data."""
    return b"".join(b"event: %b\ndata: %b\n\n" % (str(data.get("type")).encode(), json.dumps(data).encode()) for data in datas)


def datas(written: bytes) -> list[Any]:
    """The JSON of all events, whose names are those of their types."""
    events = [event.split(b"\n") for event in written.split(b"\n\n") if event]
    read = [json.loads(data.removeprefix(b"data: ")) for _, data in events]
    assert [name for name, _ in events] == [b"event: " + data["type"].encode() for data in read]
    return read


def valid(event: dict[str, Any]) -> None:
    """The official package's type for this event has all that it demands."""
    _TYPES[event["type"]].model_validate(event)


def begun() -> list[dict[str, Any]]:
    """A stream up to its second delta."""
    at = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    part = {"type": "output_text", "text": "", "annotations": []}
    return [
        {"type": "response.created", "sequence_number": 0, "response": response(status="in_progress")},
        {"type": "response.output_item.added", "sequence_number": 1, "output_index": 0, "item": MESSAGE | {"status": "in_progress"}},
        {"type": "response.content_part.added", "sequence_number": 2, **at, "part": part},
        {"type": "response.output_text.delta", "sequence_number": 3, **at, "delta": "Hel", "logprobs": []},
        {"type": "response.output_text.delta", "sequence_number": 4, **at, "delta": "lo", "logprobs": []},
    ]


# -- output -------------------------------------------------------------------------------------------------------------------------------

OUTPUTS = [
    ([], "", 0),
    ([text("abc")], "abc", 0),
    ([MESSAGE | {"content": [{"type": "refusal", "refusal": "no"}]}], "no", 0),
    ([{"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "s"}], "encrypted_content": "XXXX"}, text("a")], "sa", 0),
    ([{"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]}], "t", 0),
    ([CALL, CALL], 'look{"q":1}look{"q":1}', 2),
    ([{"type": "custom_tool_call", "id": "c", "call_id": "x", "name": "sh", "input": "ls"}], "shls", 1),
    ([{"type": "mcp_call", "id": "c", "name": "f", "arguments": "{}", "server_label": "s", "output": "what it found"}], "f{}", 1),
    ([{"type": "code_interpreter_call", "id": "c", "code": "1+1", "container_id": "x", "outputs": [{"type": "logs", "logs": "2"}]}], "1+1", 1),
    ([{"type": "web_search_call", "id": "w", "status": "completed", "action": {"type": "search"}}], '{"type": "search"}', 1),
    ([{"type": "image_generation_call", "id": "i", "result": "QUJD", "status": "completed"}], "", 1),
    ([None, 5, "x", {"type": 5}, {"type": "message", "content": "odd"}, {"type": "message", "content": [None, {"text": 5}]}], "odd", 0),
]


@pytest.mark.parametrize(("output", "text_", "calls"), OUTPUTS)
def test_output_is_counted_once_wherever_it_is(output: list[Any], text_: str, calls: int) -> None:
    """Texts, refusals, reasoning, calls of all tools; what a tool found, encrypted reasoning and pictures are no output (cases 116, 117)."""
    answer = read_answer(body(*output))
    assert (answer.readable, answer.deltas) == (True, [Delta(0, text_, calls)] if text_ or calls else [])
    events = StreamReader().feed(streamed(body(*output)))
    told = [delta for event in events for delta in event.deltas]
    assert (sum(len(delta.text) for delta in told), sum(delta.tool_calls for delta in told)) == (len(text_), calls)


_AT = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
UNKNOWN: list[tuple[dict[str, Any], str]] = [
    ({"type": "response.foo.delta", "delta": {"text": " word"}}, " word"),
    ({"type": "response.foo.delta", "delta": " word", "copy": " word"}, " word"),
    ({"type": "response.output_text.delta", **_AT, "delta": "a", "foo": {"bar": [" b", " c"]}, "logprobs": [], "obfuscation": "xyz"}, "a b c"),
    ({"type": "response.output_text.delta", **_AT, "delta": "", "foo": " word"}, " word"),
    ({"type": "response.foo", "bar": " word"}, " word"),
    ({"type": "response.foo", "delta": " word"}, " word"),
    ({"type": "response.output_text.done", **_AT, "text": "a", "foo": " b"}, "a b"),
    ({"type": "response.content_part.added", **_AT, "part": {"type": "foo", "foo": " word"}}, " word"),
    ({"type": "response.content_part.done", **_AT, "part": {"type": "output_text", "text": "a", "foo": " b", "annotations": [{"url": "u"}]}}, "a b"),
    ({"type": "response.output_item.added", "output_index": 0, "item": MESSAGE | {"foo": " word"}}, " word"),
    ({"type": "response.output_item.done", "output_index": 0, "item": text("a", foo=" b", phase="final")}, "a b"),
    ({"type": "response.in_progress", "response": response(text(" word"))}, " word"),
    ({"type": "response.completed", "response": response(text("a", foo=" b"))}, "a b"),
    ({"type": "response.failed", "response": response(text(" word"), status="failed")}, " word"),
    ({"type": "response.output_text.annotation.added", **_AT, "annotation_index": 0, "annotation": {"type": "url_citation", "title": "t"}}, ""),
    ({"type": "response.image_generation_call.partial_image", **_AT, "partial_image_index": 0, "partial_image_b64": "QUJD"}, ""),
    ({"type": "response.audio.delta", "delta": "QUJD"}, ""),
    ({"type": "response.output_item.done", "output_index": 0, "item": {"type": "function_call_output", "call_id": "c", "output": "found"}}, ""),
    ({"type": "response.web_search_call.searching", "item_id": "w", "output_index": 0}, ""),
]


@pytest.mark.parametrize(("event", "text_"), UNKNOWN)
def test_a_text_in_a_field_that_is_not_known_is_output(event: dict[str, Any], text_: str) -> None:
    """In an event, an item or a part, whatever it is called, once; citations, pictures, sound and what tools found are none."""
    told = [delta.text for each in StreamReader().feed(stream(event)) for delta in each.deltas]
    assert "".join(told) == text_


def test_a_whole_item_with_fields_that_are_not_known() -> None:
    """The same of a whole answer."""
    answer = read_answer(
        body(text("a", foo=" b"), MESSAGE | {"content": [{"type": "new", "x": {"y": " c"}}, " d"]}, {"type": "compaction", "z": " e"})
    )
    assert answer.deltas == [Delta(0, "a b c d e")]


@pytest.mark.parametrize(
    ("fields", "output", "finish"),
    [
        ({}, [text("a")], "stop"),
        ({}, [text("a"), CALL], "tool_calls"),
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, [CALL], "length"),
        ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, [], "content_filter"),
        ({"status": "incomplete", "incomplete_details": {"reason": "steered"}}, [], "steered"),
        ({"status": "incomplete", "incomplete_details": None}, [], "length"),
        ({"status": None}, [text("a")], "stop"),
        ({"status": 5}, [{"type": ["function_call"]}, None], "stop"),
    ],
)
def test_finishes(fields: dict[str, Any], output: list[Any], finish: str) -> None:
    """In OpenAI's names of chat, whole and streamed, also where a server calls the end `response.completed` whatever happened (case 69)."""
    assert read_answer(body(*output, **fields)).finishes == [(0, finish)]
    for name in ("response.completed", "response.incomplete") if finish != "stop" and fields else ("response.completed",):
        said, end = StreamReader().feed(stream({"type": name, "response": response(*output, **fields)}))
        assert (said.raw, said.finishes, end.kind) == (b"", [(0, finish)], "done")


@pytest.mark.parametrize(
    ("reported", "want"),
    [
        (USAGE, Usage(9, 4)),
        (USAGE | {"input_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 2}}, Usage(9, 4, 5, 2)),
        (USAGE | {"output_tokens_details": {"reasoning_tokens": 3}}, Usage(9, 4, reasoning_tokens=3)),
        ({"input_tokens": 9}, Usage(9, None)),
        ({"input_tokens": None, "output_tokens": 4}, Usage(None, 4)),
        ({}, Usage()),
        (None, None),
        ("odd", None),
    ],
)
def test_usage(reported: Any, want: Usage | None) -> None:
    """The same of a whole answer and of a stream; what is missing is not reported (cases 51, 54, 62)."""
    assert read_answer(body(text("a"), usage=reported)).usage == want
    assert StreamReader().feed(stream({"type": "response.completed", "response": response(usage=reported)}))[0].usage == want


def test_the_end_has_what_nothing_else_has_said() -> None:
    """An answer that is told in the last event alone is output; one that was told before is not so again."""
    end = {"type": "response.completed", "response": response(text("Hello"), usage=USAGE)}
    (said, _) = StreamReader().feed(stream(end))
    assert said.deltas == [Delta(0, "Hello")]
    (*_, said, _) = StreamReader().feed(stream(*begun(), end))
    assert said.deltas == []


@pytest.mark.parametrize("upto", [1, 2, 3, 4])
def test_a_text_is_output_where_it_is_first_told(upto: int) -> None:
    """In a delta, at the end of the text, of its part, of its item: each but the first adds only what was not told before."""
    at = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    ends = [
        {"type": "response.output_text.delta", **at, "delta": "Hel"},
        {"type": "response.output_text.done", **at, "text": "Hello"},
        {"type": "response.content_part.done", **at, "part": {"type": "output_text", "text": "Hello!"}},
        {"type": "response.output_item.done", "output_index": 0, "item": text("Hello!!")},
    ]
    told = [delta.text for event in StreamReader().feed(stream(*ends[:upto])) for delta in event.deltas]
    assert told == ["Hel", "lo", "!", "!"][:upto]
    assert StreamReader().feed(stream(ends[upto - 1]))[0].deltas[0].text == ["Hel", "Hello", "Hello!", "Hello!!"][upto - 1]


@pytest.mark.parametrize("output", [None, 5, "x", {}, [None]])
def test_an_end_without_output(output: Any) -> None:
    """It is the end all the same; what is known of the output is what was told before."""
    said, end = StreamReader().feed(stream({"type": "response.completed", "response": response() | {"output": output}}))
    assert (said.finishes, said.deltas, end.kind) == ([(0, "stop")], [], "done")


# -- errors -------------------------------------------------------------------------------------------------------------------------------

FAILED = {"code": "rate_limit_exceeded", "message": "slow down"}


@pytest.mark.parametrize(
    ("data", "failure"),
    [
        ({"error": {"message": "m", "type": "t", "code": "c", "param": "p"}}, Failure(None, "c", "t", "m", "p")),
        ({"error": {"message": "slow", "code": 429}}, Failure(429, "429", "", "slow")),
        (response(status="failed", error=FAILED), Failure(None, "rate_limit_exceeded", "", "slow down")),
        (response(status="cancelled"), Failure(None, "", "", "The upstream reported an error.")),
        (response(status="failed"), Failure(None, "", "", "The upstream reported an error.")),
        ({"detail": "Not Found"}, Failure(None, "", "", "Not Found")),
    ],
)
def test_failures_of_whole_answers(data: Any, failure: Failure) -> None:
    """An error inside a 200, a response that failed or was cancelled, the body of an error status (case 37)."""
    answer = read_answer(json.dumps(data).encode())
    assert (answer.failure, answer.readable, answer.finishes) == (failure, True, [])


@pytest.mark.parametrize(
    ("data", "failure"),
    [
        ({"type": "error", "code": "server_error", "message": "m", "param": None}, Failure(None, "server_error", "", "m")),
        ({"type": "error", "error": {"type": "t", "code": "c", "message": "m"}}, Failure(None, "c", "t", "m")),
        ({"type": "error"}, Failure(None, "", "", "The upstream reported an error.")),
        ({"error": {"message": "m"}}, Failure(None, "", "", "m")),
        ({"type": "response.failed", "response": response(error=FAILED)}, Failure(None, "rate_limit_exceeded", "", "slow down")),
        ({"type": "response.failed", "response": response()}, Failure(None, "", "", "The upstream reported an error.")),
        ({"type": "response.completed", "response": response(status="failed", error=FAILED)}, Failure(None, FAILED["code"], "", "slow down")),
    ],
)
def test_failures_in_a_stream(data: Any, failure: Failure) -> None:
    """However they are told, they are never an end; what was used is read."""
    (event,) = StreamReader().feed(stream(data))
    assert (event.kind, event.failure) == ("error", failure)
    if "response" in data:
        data["response"]["usage"] = USAGE
        assert StreamReader().feed(stream(data))[0].usage == Usage(9, 4)


@pytest.mark.parametrize("data", [b"", b"<html>", b"[]", b"null", b"{}", b'{"output":5}', b'{"object":"response"}', b"\xff"])
def test_what_is_no_answer(data: bytes) -> None:
    """It is not readable, and no error either (cases 36 and 44)."""
    answer = read_answer(data)
    assert (answer.readable, answer.failure) == (False, None)


# -- writing ------------------------------------------------------------------------------------------------------------------------------


def test_a_whole_answer_as_a_stream() -> None:
    """Every text comes in a delta and at the end of its part, its item and the response; the official types know every event."""
    reasoning = {"id": "rs_1", "type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}], "encrypted_content": "E"}
    cited = text("see x")
    cited["content"][0]["annotations"] = [{"type": "url_citation", "start_index": 0, "end_index": 1, "url": "https://x", "title": "x"}]
    details = {"input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    whole = response(reasoning, cited, CALL, usage=USAGE | details, new={"kept": 1})
    told = datas(streamed(json.dumps(whole).encode()))
    for event in told:
        valid(event)
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    assert [event["type"].removeprefix("response.") for event in told] == [
        *("created", "in_progress", "output_item.added", "reasoning_summary_part.added", "reasoning_summary_text.delta"),
        *("reasoning_summary_text.done", "reasoning_summary_part.done", "output_item.done", "output_item.added", "content_part.added"),
        *("output_text.delta", "output_text.done", "content_part.done", "output_item.done", "output_item.added"),
        *("function_call_arguments.delta", "function_call_arguments.done", "output_item.done", "completed"),
    ]
    assert told[-1]["response"] == whole
    assert [event["item"] for event in told if event["type"] == "response.output_item.done"] == whole["output"]
    assert told[0]["response"] == whole | {"status": "in_progress", "output": [], "usage": None}


def test_an_incomplete_answer_as_a_stream() -> None:
    """It ends as what it is."""
    details = {"reason": "max_output_tokens"}
    told = datas(streamed(body(text("a"), status="incomplete", incomplete_details=details)))
    assert (told[-1]["type"], told[-1]["response"]["incomplete_details"]) == ("response.incomplete", details)


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"output":[],"x":' + b"[" * 50_000 + b"]" * 50_000 + b"}"])
def test_what_cannot_be_told_as_a_stream(data: bytes) -> None:
    """An error event, in any case something that ends the stream."""
    assert b"event: error" in streamed(data)


def test_a_cut_stream_ends_in_its_own_words() -> None:
    """Open texts, parts and items end as incomplete, then the response does; it has the output so far, the usage and a mark of ours."""
    reader = StreamReader()
    events = reader.feed(stream(*begun()))
    for upto, said in ((4, "Hello"), (3, "Hel"), (2, "")):
        told = datas(write_truncation(reader.head, events[upto].after, [0], "budget", Usage(7, 3)))
        for event in told:
            valid(event)
        assert [event["type"].removeprefix("response.") for event in told] == [
            *("output_text.done", "content_part.done", "output_item.done", "incomplete"),
        ]
        assert [event["sequence_number"] for event in told] == [upto + 1 + i for i in range(4)]
        assert told[0]["text"] == said
        final = told[-1]["response"]
        assert (final["status"], final["incomplete_details"], final["sluicegate"]) == (
            "incomplete",
            {"reason": "max_output_tokens"},
            {"truncated": "budget"},
        )
        assert final["output"] == [text(said, status="incomplete")]
        assert (final["usage"]["input_tokens"], final["usage"]["output_tokens"], final["usage"]["total_tokens"]) == (7, 3, 10)
        assert (final["id"], final["model"]) == ("resp_1", "m")


def test_a_stream_that_is_cut_before_anything_was_told() -> None:
    """The response is created, for clients that wait for that, and ends."""
    told = datas(write_truncation(StreamReader().head, None, [0], "ledger", None))
    assert [(event["type"], event["sequence_number"]) for event in told] == [("response.created", 0), ("response.incomplete", 1)]
    assert told[-1]["response"]["sluicegate"] == {"truncated": "ledger"}


def test_items_that_have_ended_stay_as_they_were() -> None:
    """Only what is open when the stream is cut is incomplete; unknown fields of items survive."""
    done = text("Hello", new=[1])
    end = {"type": "response.output_item.done", "sequence_number": 5, "output_index": 0, "item": done}
    call = CALL | {"arguments": "", "status": "in_progress", "new": 2}
    more = {"type": "response.output_item.added", "sequence_number": 6, "output_index": 1, "item": call}
    delta = {"type": "response.function_call_arguments.delta", "sequence_number": 7, "item_id": "fc_1", "output_index": 1, "delta": '{"q'}
    reader = StreamReader()
    events = reader.feed(stream(*begun(), end, more, delta))
    told = datas(write_truncation(reader.head, events[-1].after, [0], "budget", None))
    assert [event["type"].removeprefix("response.") for event in told] == ["function_call_arguments.done", "output_item.done", "incomplete"]
    assert told[-1]["response"]["output"] == [done, call | {"arguments": '{"q', "status": "incomplete"}]


def test_errors() -> None:
    """As those of chat before a stream; in a stream as an error that the official packages raise, and as the end of the response."""
    assert json.loads(write_error(400, "m", "t", "p", "c", {"x": 1})) == {"error": {"message": "m", "type": "t", "param": "p", "code": "c", "x": 1}}
    error, failed = datas(write_stream_error("m", "t", "c", {"request_id": "r"}))
    for event in (error, failed):
        valid(event | ({"response": response() | event["response"]} if "response" in event else {}))
    assert (error["message"], error["code"]) == ("m", "c")
    assert error["error"] == {"type": "t", "code": "c", "message": "m", "param": None, "request_id": "r"}
    assert (failed["response"]["status"], failed["response"]["error"]) == ("failed", {"code": "server_error", "message": "m"})
    assert error["sequence_number"] < failed["sequence_number"] == 2**31 - 1


def test_comments_and_what_cannot_be_read() -> None:
    """A comment in one line, nothing of what is bad (case 83)."""
    events = StreamReader().feed(b": ping\n\ndata: {\n\n")
    assert [write_event(event, False) for event in events] == [b": ping\n", b""]


def test_a_last_event_without_its_blank_line() -> None:
    """It counts, and gets one."""
    reader = StreamReader()
    assert reader.feed(stream({"type": "response.completed", "response": response(usage=USAGE)})[:-2]) == []
    said, end = reader.end()
    assert (said.usage, end.kind, end.raw[-3:]) == (Usage(9, 4), "done", b"}\n\n")


# -- whatever comes -----------------------------------------------------------------------------------------------------------------------

NAMES = [
    *("response.created", "response.output_item.added", "response.output_item.done", "response.content_part.added", "response.content_part.done"),
    *("response.output_text.delta", "response.output_text.done", "response.function_call_arguments.delta", "response.function_call_arguments.done"),
    *("response.reasoning_summary_text.delta", "response.completed", "response.incomplete", "response.failed", "error", "x.delta", "", 5),
]
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2**70) | st.text(st.characters(exclude_categories=()), max_size=4) | st.sampled_from(NAMES),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "text", "content", "output", "status", "id", "name"]), inner)
    ),
    max_leaves=8,
)
FIELDS = ("delta", "text", "arguments", "output_index", "content_index", "item", "part", "response", "error", "code", "sequence_number")
EVENT = st.builds(lambda name, rest: {"type": name} | rest, st.sampled_from(NAMES), st.dictionaries(st.sampled_from(FIELDS), VALUE, max_size=4))


@settings(max_examples=80, deadline=None)
@given(st.lists(EVENT, max_size=8), st.integers(0, 8))
def test_readers_never_raise(told: list[Any], upto: int) -> None:
    """Whatever an upstream sends, at whatever point the stream is cut: it can be read, and told to its end."""
    data = stream(*told)
    reader = StreamReader()
    events = reader.feed(data) + reader.end()
    single = StreamReader()
    pieces = [event for i in range(len(data)) for event in single.feed(data[i : i + 1])] + single.end()
    assert [shown(event) for event in pieces] == [shown(event) for event in events]
    after = events[min(upto, len(events) - 1)].after if events else None
    assert datas(write_truncation(reader.head, after, [0], "budget", Usage(1, 2)))[-1]["response"]["status"] == "incomplete"


def shown(event: Event) -> tuple[Any, ...]:
    return event.kind, event.raw, event.deltas, event.finishes, event.usage, event.failure, event.after


@settings(max_examples=80, deadline=None)
@given(VALUE, st.lists(VALUE, max_size=3), VALUE, VALUE)
def test_whole_answers_never_raise(status: Any, output: list[Any], usage: Any, error: Any) -> None:
    """Whatever is in them: they can be read, and told as a stream."""
    data = json.dumps({"status": status, "output": output, "usage": usage, "error": error}).encode()
    assert read_answer(data).readable
    assert streamed(data)
