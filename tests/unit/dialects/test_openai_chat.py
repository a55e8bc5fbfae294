"""Answers and streams of the OpenAI chat dialect: what is read of them, whatever is in them, and what the gateway says itself."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.core.usage import Usage
from sluicegate.dialects.form import Delta, Event, Failure
from sluicegate.dialects.openai_chat import (
    Head,
    StreamReader,
    read_answer,
    streamed,
    write_error,
    write_event,
    write_stream_error,
    write_truncation,
)
from sluicegate.dialects.sse import EVENT_MAX


def events_of(*datas: Any) -> list[Event]:
    """The events of a stream with these JSON values as data."""
    return StreamReader().feed(b"".join(b"data: %b\n\n" % json.dumps(data).encode() for data in datas))


def chunk(delta: Any, **rest: Any) -> dict[str, Any]:
    """A chunk with one choice."""
    return {"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": None}], **rest}


def answer(message: Any, **rest: Any) -> bytes:
    """A unary body with one choice."""
    return json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], **rest}).encode()


def usage_of(reported: Any) -> Usage | None:
    return read_answer(answer({"content": "x"}, usage=reported)).usage


# -- output -------------------------------------------------------------------------------------------------------------------------------

OUTPUTS = [
    ({"content": "abc"}, "abc", 0),
    ({"content": None}, "", 0),
    ({"content": "", "role": "assistant"}, "", 0),
    ({"reasoning": "r", "reasoning_content": "r", "content": "c"}, "cr", 0),
    ({"reasoning": "one", "reasoning_content": "two"}, "onetwo", 0),
    ({"reasoning": "r", "reasoning_details": [{"type": "reasoning.text", "text": "r"}]}, "r", 0),
    ({"reasoning_details": [{"type": "reasoning.text", "text": "r", "signature": "s"}]}, "r", 0),
    ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "ab", 0),
    ({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "t"}]}]}, "t", 0),
    ({"refusal": "no"}, "no", 0),
    ({"audio": {"id": "a", "data": "QUJD", "transcript": "said"}}, "said", 0),
    ({"function_call": {"name": "f", "arguments": "{}"}}, "f{}", 1),
    ({"tool_calls": [{"index": 0, "id": "i", "type": "function", "function": {"name": "f", "arguments": "{"}}]}, "f{", 1),
    ({"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]}, "1}", 0),
    ({"tool_calls": [{"index": 0, "type": "custom", "custom": {"name": "sh", "input": "ls"}}]}, "shls", 1),
    ({"tool_calls": [{"function": {"name": "f", "arguments": {"q": 1}}}, {"function": {"name": "g", "arguments": None}}]}, 'f{"q": 1}g', 2),
    ({"tool_calls": {"function": {"name": "f", "arguments": "x"}}}, "fx", 1),
    ({"tool_calls": ["odd", None, 5]}, "odd", 0),
    ({"content": {"parts": ["a", {"text": "b"}]}}, "ab", 0),
    ({"content": 5}, "", 0),
]


@pytest.mark.parametrize(("output", "text", "calls"), OUTPUTS)
def test_output_is_counted_once_wherever_it_is(output: Any, text: str, calls: int) -> None:
    """Text, parts, reasoning under two names, refusals, transcripts and calls are output, in a stream and in a whole answer (116, 117)."""
    want = [Delta(0, text, calls)] if text or calls else []
    (event,) = events_of(chunk(output))
    assert (event.kind, event.deltas) == ("chunk", want)
    assert read_answer(answer(output)).deltas == want


UNKNOWN: list[tuple[dict[str, Any], str]] = [
    ({"thinking": " word"}, " word"),
    ({"foo": {"bar": [" one", {"baz": " two"}], "n": 5}}, " one two"),
    ({"content": "c", "foo": " word"}, "c word"),
    ({"content": "c", "copy": "c", "again": {"deep": "c"}}, "c"),
    ({"foo": " word", "bar": " word"}, " word"),
    ({"reasoning": "r", "reasoning_details": [{"type": "reasoning.text", "text": "more"}]}, "rmore"),
    ({"audio": {"id": "a", "expires_at": 5, "data": "QUJD", "transcript": "said", "foo": " word"}}, "said word"),
    ({"more": {"x": " word"}}, " word"),
]


@pytest.mark.parametrize(("output", "text"), UNKNOWN)
def test_a_text_in_a_field_that_is_not_known_is_output(output: dict[str, Any], text: str) -> None:
    """Whatever it is called and however deep it is, in a delta, in a message or beside them in the choice; each text once."""
    (event,) = events_of(chunk(output))
    assert event.deltas == read_answer(answer(output)).deltas == [Delta(0, text)]
    (event,) = events_of({"choices": [{"index": 0, "delta": {"role": "assistant"}, "beside": output}]})
    assert event.deltas == [Delta(0, text)]


def test_a_number_that_is_too_long_hides_no_text() -> None:
    """Thousands of digits in a field that is not known: the rest is read."""
    (event,) = StreamReader().feed(b'data: {"choices":[{"index":0,"delta":{"content":"a","n":%b,"foo":" word"}}]}\n\n' % (b"9" * 5000))
    assert event.deltas == [Delta(0, "a word")]


def test_a_text_in_a_call_that_is_not_known_is_output() -> None:
    """Beside the function and inside it; a proof of thinking is none."""
    call = {"index": 0, "id": "i", "type": "function", "function": {"name": "f", "arguments": "{}", "foo": " in"}, "bar": " beside"}
    proof = {"extra_content": {"google": {"thought_signature": "proof"}}}
    assert read_answer(answer({"tool_calls": [call | proof]})).deltas == [Delta(0, "f{} in beside", 1)]
    both = {"function": {"name": "f", "arguments": "{}"}, "custom": {"name": "g", "input": "x"}}
    assert read_answer(answer({"tool_calls": [both]})).deltas == [Delta(0, "f{}gx", 2)]


def test_what_only_the_message_of_a_chunk_says_is_output() -> None:
    """Some repeat in it, beside each delta, all that was said so far: then it is none, at the end, where the delta is empty, neither."""
    (event,) = events_of({"choices": [{"index": 0, "delta": {"role": "assistant"}, "message": {"content": " word"}}]})
    assert event.deltas == [Delta(0, " word")]
    repeated = {"role": "assistant", "content": "so far"}
    choice = {"index": 0, "delta": {"content": "far"}, "message": repeated}
    first, last = events_of({"choices": [choice]}, {"choices": [choice | {"delta": {"content": ""}, "finish_reason": "stop"}]})
    assert (first.deltas, last.deltas) == ([Delta(0, "far")], [])


def test_what_vendors_say_beside_output_is_none() -> None:
    """Log probabilities, tokens by number, Azure's filters, reasons of an end under other names, proofs, pictures, citations, what tools found."""
    beside = {
        "logprobs": {"content": [{"token": "c", "bytes": [99], "top_logprobs": [{"token": "d"}]}]}, "token_ids": [1, 2], "prompt_token_ids": [3],
        "content_filter_results": {"hate": {"filtered": False, "severity": "safe"}}, "content_filter_offsets": {"check_offset": 4},
        "stop_reason": "x", "matched_stop": "y", "native_finish_reason": "STOP", "seed": 5,
    }  # fmt: skip
    output = {
        "role": "assistant", "content": "c", "annotations": [{"type": "url_citation", "url_citation": {"url": "u", "title": "t"}}],
        "images": [{"type": "image_url", "image_url": {"url": "AAAA"}}], "signature": "s", "extra_content": {"google": {"thought_signature": "p"}},
        "executed_tools": [{"type": "search", "output": "found"}], "citations": ["u"], "token_id": 12,
    }  # fmt: skip
    top = {"system_fingerprint": "f", "obfuscation": "abc", "prompt_filter_results": [{"prompt_index": 0}], "usage": None, "service_tier": "default"}
    (event,) = events_of({"choices": [{"index": 0, "delta": output, **beside}], **top})
    assert event.deltas == [Delta(0, "c")]


def test_choices_and_finishes() -> None:
    """Each choice has its own output and finish; a missing or odd index is its place."""
    choices = [
        {"index": 1, "delta": {"content": "b"}, "finish_reason": "stop"},
        {"index": "x", "delta": {"content": "c"}, "finish_reason": 7},
        {"index": 0, "delta": None, "finish_reason": "length"},
        "odd",
    ]
    (event,) = events_of({"choices": choices})
    assert event.deltas == [Delta(1, "b"), Delta(1, "c")]
    assert event.finishes == [(1, "stop"), (0, "length")]


def test_unknown_fields_pass() -> None:
    """What the gateway does not know, log probabilities beside a finish included, passes as it came (case 85)."""
    raw = b'data: {"choices":[{"index":0,"delta":{"content":"a","new":{}},"logprobs":{"content":[]},"finish_reason":"stop"}],"x":1}\n\n'
    (event,) = StreamReader().feed(raw)
    assert event.finishes == [(0, "stop")]
    assert write_event(event, False) == write_event(event, True) == raw


# -- usage --------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reported", "want"),
    [
        ({"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}, Usage(9, 4)),
        ({"prompt_tokens": 9.0, "completion_tokens": 4}, Usage(9, 4)),
        ({"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 33}, Usage(9, 24)),
        ({"prompt_tokens": 9, "total_tokens": 13}, Usage(9, 4)),
        ({"completion_tokens": 4, "total_tokens": 13}, Usage(9, 4)),
        ({"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 2}}, Usage(9, 4, 5, 2)),
        ({"prompt_tokens": 9, "completion_tokens": 4, "completion_tokens_details": {"reasoning_tokens": 3}}, Usage(9, 4, reasoning_tokens=3)),
        ({"prompt_tokens": 9, "completion_tokens": 4, "prompt_cache_hit_tokens": 5}, Usage(9, 4, 5)),
        ({"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 50}}, Usage(9, 4)),
        ({"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": None, "completion_tokens_details": 5}, Usage(9, 4)),
        ({"prompt_tokens": None, "completion_tokens": 4}, Usage(None, 4)),
        ({"prompt_tokens": -1, "completion_tokens": 4}, Usage(None, 4)),
        ({"prompt_tokens": 9, "completion_tokens": 10**15}, Usage(9, None)),
        ({"prompt_tokens": 9, "completion_tokens": 10**400}, Usage(9, None)),
        ({"prompt_tokens": 1.5, "completion_tokens": "4"}, Usage()),
        ({"prompt_tokens": True, "completion_tokens": []}, Usage()),
        ({"prompt_tokens": 9, "completion_tokens": 4, "cost": 0.0000012345}, Usage(9, 4, cost_nano_usd=1235)),
        ({"prompt_tokens": 9, "completion_tokens": 4, "cost": 0.1}, Usage(9, 4, cost_nano_usd=100_000_000)),
        ({"prompt_tokens": 9, "completion_tokens": 4, "cost": -1}, Usage(9, 4)),
        ({}, Usage()),
        (None, None),
        (5, None),
        ([], None),
    ],
)
def test_usage(reported: Any, want: Usage | None) -> None:
    """Every vendor's fields are read; one that is no plausible count is as if not reported (case 54)."""
    assert usage_of(reported) == want


def test_not_a_number() -> None:
    """NaN and infinities, which some servers write, are no counts."""
    body = b'{"choices":[{"message":{"content":"x"}}],"usage":{"prompt_tokens":NaN,"completion_tokens":Infinity,"cost":NaN}}'
    assert read_answer(body).usage == Usage()


def test_usage_of_a_stream_and_of_a_whole_answer_are_equal() -> None:
    """The same usage is read the same from both (case 62)."""
    reported = {"prompt_tokens": 1000, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 900}}
    (event,) = events_of({"choices": [], "usage": reported})
    assert event.usage == usage_of(reported) == Usage(1000, 5, 900)


@pytest.mark.parametrize("choices", [[], None])
def test_usage_chunk_is_hidden(choices: Any) -> None:
    """The extra chunk reaches only a client that asked (case 50), even where its counts cannot be read."""
    for counts in ({"prompt_tokens": 1, "completion_tokens": 2}, {"prompt_tokens": None}):
        (event,) = events_of({"choices": choices, "usage": counts})
        assert event.usage_only
        assert write_event(event, True) == b""
        assert write_event(event, False) == event.raw


def test_usage_beside_output_is_taken_and_hidden() -> None:
    """Usage on a chunk with choices counts (case 51) and is cut out for a client that did not ask; the output stays."""
    counts = {"prompt_tokens": 1000, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 900}}
    (event,) = events_of(chunk({"content": "x"}, usage=counts))
    assert event.usage == Usage(1000, 2, 900)
    assert not event.usage_only
    assert json.loads(write_event(event, True)[6:]) == chunk({"content": "x"})
    assert write_event(event, False) == event.raw


def test_empty_choices_without_usage_pass() -> None:
    """Azure's first chunk has no choices and is no usage chunk."""
    (event,) = events_of({"choices": [], "prompt_filter_results": []})
    assert (event.kind, event.usage_only) == ("other", False)
    assert write_event(event, True) == event.raw
    (event,) = StreamReader().feed(b'data: {"choices":[],"prompt_filter_results":[],"usage":null}\n\n')
    assert write_event(event, True) == b'data: {"choices":[],"prompt_filter_results":[]}\n\n'


@pytest.mark.parametrize("usage", [None, {}, "many"])
def test_case_50_a_usage_chunk_that_says_none_is_hidden(usage: Any) -> None:
    """It comes since the gateway has asked for usage: who has not sees no chunk without choices; who has sees it as it came."""
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 5, "model": "m"}
    for said in ({"choices": [], "usage": usage}, head | {"choices": [], "usage": usage}):
        (event,) = events_of(said)
        assert (write_event(event, True), write_event(event, False)) == (b"", event.raw)


def test_text_that_looks_like_usage_is_left_alone() -> None:
    """Only a field is cut out, never text inside a string."""
    (event,) = events_of(chunk({"content": ',"usage":null'}))
    assert write_event(event, True) == event.raw


# -- events that are no chunks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("raw", [b"event: ping\n\n", b"id: 7\n\n", b"retry: 5\n\n", b"data:\n\n", b"data\n\n", b"event: x\ndata:\n\n"])
def test_events_without_data_are_left_out(raw: bytes) -> None:
    """The specification has clients ignore them; the official one takes them for empty JSON, and ends."""
    assert StreamReader().feed(raw) == []


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (b"data: [DONE]\n\n", "done"),
        (b"data:[DONE]\n\n", "done"),
        (b"data:  [DONE] \n\n", "done"),
        (b": ping\n\n", "comment"),
        (b"data: {bro\n\n", "bad"),
        (b"data: [1]\n\n", "bad"),
        (b'data: "x"\n\n', "bad"),
        (b"data: \xff\n\n", "bad"),
        (b"data: " + b"[" * 100_000 + b"\n\n", "bad"),
        (b'event: info\ndata: {"a":1}\n\n', "other"),
        (b'data: {"choices":5}\n\n', "other"),
        (b'data: {"message":5}\n\n', "other"),
        (b'data: {"message":"hello"}\n\n', "chunk"),
    ],
)
def test_kinds(raw: bytes, kind: str) -> None:
    """Comments, ends, unknown events and what cannot be read are told apart, and all but the last pass."""
    (event,) = StreamReader().feed(raw)
    assert event.kind == kind
    assert write_event(event, False) == (b"" if kind == "bad" else b": ping\n" if kind == "comment" else raw)


def test_null_is_ignored() -> None:
    """`data: null` between chunks is nothing (case 56)."""
    assert [event.deltas for event in events_of(chunk({"content": "a"}), None, chunk({"content": "b"}))] == [[Delta(0, "a")], [Delta(0, "b")]]


@pytest.mark.parametrize("comment", [b": ping\n\n", b": ping\r\n\r\n", b":\n\n", b": a\n: b\n\n"])
def test_comments_end_in_one_newline(comment: bytes) -> None:
    """A comment never brings a blank line, which after an id some clients take for an empty event (cases 82, 83)."""
    (event,) = StreamReader().feed(comment)
    assert write_event(event, True) == comment.strip() + b"\n"


def test_blank_lines_between_events_are_dropped() -> None:
    """Nor does an empty event."""
    events = StreamReader().feed(b"\n\n\n\ndata: [DONE]\n\n")
    assert b"".join(write_event(event, True) for event in events) == b"data: [DONE]\n\n"


def test_too_long_event_is_bad() -> None:
    """An event above the hard cap is an error of the stream (case 81)."""
    (event,) = StreamReader().feed(b"data: " + b"x" * EVENT_MAX + b"\n\n")
    assert event.kind == "bad"


def test_missing_blank_line_at_the_end() -> None:
    """A last event that lacks its blank line is read and gets one."""
    reader = StreamReader()
    assert reader.feed(b'data: {"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":50,"completion_tokens":333}}\n') == []
    (event,) = reader.end()
    assert (event.usage, event.finishes) == (Usage(50, 333), [(0, "stop")])
    assert event.raw.endswith(b"}\n\n")
    assert reader.end() == []


# -- errors -------------------------------------------------------------------------------------------------------------------------------

ERRORS = [
    ({"error": {"message": "slow", "type": "t", "param": "p", "code": "c"}}, Failure(None, "c", "t", "slow", "p")),
    ({"error": {"code": 429, "message": "slow down"}}, Failure(429, "429", "", "slow down")),
    ({"error": {"code": "429", "message": "slow down"}}, Failure(429, "429", "", "slow down")),
    ({"error": {"code": 8, "status": "UNAVAILABLE", "message": "m"}}, Failure(None, "8", "", "m")),
    ({"error": "text"}, Failure(None, "", "", "text")),
    ({"error": {"message": {"deep": 1}}}, Failure(None, "", "", '{"deep": 1}')),
    ({"object": "error", "message": "bad", "type": "BadRequestError", "code": 400}, Failure(400, "400", "BadRequestError", "bad")),
    ([{"error": {"code": 503, "message": "m"}}], Failure(503, "503", "", "m")),
]


@pytest.mark.parametrize(("body", "failure"), ERRORS)
def test_errors(body: Any, failure: Failure) -> None:
    """An error is found in every vendor's form, as an event and as a body, inside a 200 too (case 37)."""
    (event,) = events_of(body)
    assert (event.kind, event.failure) == ("error", failure)
    read = read_answer(json.dumps(body).encode())
    assert (read.failure, read.readable, read.deltas) == (failure, True, [])


def test_bare_error_bodies() -> None:
    """A body with nothing but a message is an error."""
    assert read_answer(b'{"detail":"Not Found"}').failure == Failure(None, "", "", "Not Found")
    assert read_answer(b'{"detail":[{"loc":["body"]}]}').failure == Failure(None, "", "", '[{"loc": ["body"]}]')


@pytest.mark.parametrize(
    "raw",
    [
        b'event: error\ndata: {"message":"gone","code":500}\n\n',
        b'error: {"code":500,"message":"gone"}\n\n',
        b'event: error\ndata: {"error":{"message":"gone","code":500}}\n\n',
    ],
)
def test_error_events(raw: bytes) -> None:
    """An event named error, and the `error:` field of older llama.cpp servers, are errors."""
    (event,) = StreamReader().feed(raw)
    assert event.kind == "error"
    assert event.failure == Failure(500, "500", "", "gone")


def test_nameless_error_event() -> None:
    """An event that says it is an error is one, whatever it holds."""
    (event,) = StreamReader().feed(b"event: error\ndata: {}\n\n")
    assert event.kind == "error"
    assert event.failure is not None and event.failure.message


@pytest.mark.parametrize("body", [b"", b"<html>504</html>", b"null", b"5", b'"x"', b"[]", b"{}", b'{"choices":5}', b"\xff", b"[" * 100_000])
def test_unreadable_bodies(body: bytes) -> None:
    """HTML and other JSON are no answer and no error that can be passed on (cases 36, 44)."""
    read = read_answer(body)
    assert (read.readable, read.deltas, read.failure, read.usage) == (False, [], None, None)


def test_error_null_beside_choices_is_none() -> None:
    """Some vendors send `"error": null` with every answer."""
    assert read_answer(answer({"content": "x"}, error=None)).failure is None
    (event,) = events_of(chunk({"content": "x"}, error=None))
    assert event.kind == "chunk"


# -- what the gateway says ----------------------------------------------------------------------------------------------------------------


def test_truncation() -> None:
    """Each unfinished choice ends with "length" and says why, then usage if asked for, then [DONE], under the answer's own id."""
    reader = StreamReader()
    reader.feed(b'data: {"id":"c1","created":5,"model":"m","choices":[{"index":0,"delta":{"content":"x"}}]}\n\n')
    out = write_truncation(reader.head, None, [0, 2], "budget", Usage(7, 3))
    assert out.endswith(b"data: [DONE]\n\n")
    first, second, usage, _ = [json.loads(event[6:]) if event[6:] != b"[DONE]" else None for event in out.split(b"\n\n")[:-1]]
    common = {"id": "c1", "object": "chat.completion.chunk", "created": 5, "model": "m"}
    assert first == {**common, "choices": [{"index": 0, "delta": {}, "finish_reason": "length"}], "sluicegate": {"truncated": "budget"}}
    assert second["choices"][0]["index"] == 2
    assert usage == {**common, "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}}
    finishes = [finish for event in StreamReader().feed(out) for finish in event.finishes]
    assert finishes == [(0, "length"), (2, "length")]


def test_truncation_without_usage() -> None:
    """A client that did not ask for usage gets none."""
    assert b"usage" not in write_truncation(Head("c", 1, "m"), None, [0], "ledger", None)


def test_head_of_nothing() -> None:
    """Before a chunk has come there is no id."""
    assert StreamReader().head == Head("", 0, "")


def test_errors_of_the_gateway() -> None:
    """OpenAI's shape, with what the gateway adds inside `error`."""
    body = json.loads(write_error(429, "Slow down.", "rate_limit_error", None, "budget_busy", {"sluicegate": {"reason": "busy"}}))
    want = {"message": "Slow down.", "type": "rate_limit_error", "param": None, "code": "budget_busy", "sluicegate": {"reason": "busy"}}
    assert body == {"error": want}
    assert json.loads(write_error(404, "No."))["error"]["type"] == "invalid_request_error"
    assert json.loads(write_error(502, "No."))["error"]["type"] == "server_error"


def test_stream_error() -> None:
    """One error event and no [DONE] (case 39)."""
    out = write_stream_error("gone", "upstream_error", "upstream_error", {"request_id": "r"})
    (event,) = StreamReader().feed(out)
    assert (event.kind, event.failure) == ("error", Failure(None, "upstream_error", "upstream_error", "gone"))
    assert b"[DONE]" not in out


# -- anything -----------------------------------------------------------------------------------------------------------------------------

NAMES = [
    "choices",
    "delta",
    "message",
    "content",
    "tool_calls",
    "function",
    "arguments",
    "usage",
    "prompt_tokens",
    "error",
    "code",
    "index",
    "x_groq",
    "audio",
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.sampled_from(["", "a", "429", "\ud83d"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)
CHUNKS = st.fixed_dictionaries({"choices": st.lists(st.fixed_dictionaries({"delta": JSON, "message": JSON, "index": JSON}), max_size=2)}) | JSON


@given(CHUNKS)
def test_readers_never_raise(value: Any) -> None:
    """Whatever JSON an upstream sends is read to something, and can be written again."""
    data = json.dumps(value).encode()
    read = read_answer(data)
    assert all(isinstance(delta.text, str) for delta in read.deltas)
    reader = StreamReader()
    for event in reader.feed(b"data: " + data + b"\n\n") + reader.end():
        assert isinstance(write_event(event, True), bytes)
    assert isinstance(reader.head.id, str)


@pytest.mark.parametrize("text", ["\ud83d", "a\udc00\ud800b", "\ud83d\ude00", "\x00\u2028"])
def test_what_is_passed_on_can_be_written(text: str) -> None:
    """Half a surrogate pair in an error, a finish reason or an id is no character: what is told or written down has another in its place."""
    fields = {name: text for name in ("message", "type", "code", "param")}
    for body in ({"error": fields}, {"error": text}, {"error": {"message": [text]}}, {"detail": text}, [{"error": fields}]):
        failure = read_answer(json.dumps(body).encode()).failure
        assert failure is not None
        assert json.loads(write_error(400, failure.message, failure.type, failure.param, failure.code))["error"]["message"]
    reader = StreamReader()
    last = {"id": text, "model": text, "created": 10**30, "choices": [{"delta": {"content": text}, "finish_reason": text}]}
    (event,) = reader.feed(b"data: " + json.dumps(last).encode() + b"\n\n")
    assert write_truncation(reader.head, None, [0], "budget", None)
    assert event.deltas == [Delta(0, json.loads(json.dumps(text)))]
    assert [reason.encode() for _, reason in event.finishes]


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    """Nor do bytes that are nothing raise."""
    read_answer(data)
    reader = StreamReader()
    for event in reader.feed(data) + reader.feed(b"data: " + data + b"\n\n") + reader.end():
        assert isinstance(write_event(event, True), bytes)


@pytest.mark.parametrize(
    "shape",
    ['{"error":{"message":%s}}', '{"detail":%s}', '{"choices":[{"message":{"content":%s}}]}', '{"choices":[{"delta":{"tool_calls":%s}}],"x":%s}'],
)
@pytest.mark.parametrize(("begin", "end"), [("[", "]"), ('{"a":', "}")])
def test_depths_that_can_just_be_read(shape: str, begin: str, end: str) -> None:
    """Values nested so deeply that they can be read here, and no longer a few calls further down: nothing raises at any depth."""
    for depth in range(900, 1010):
        body = shape.replace("%s", begin * depth + '"a"' + end * depth).encode()
        answer = read_answer(body)
        if answer.readable and answer.failure is None:
            assert streamed(body)
        reader = StreamReader()
        for event in reader.feed(b"data: " + body + b"\n\n") + reader.feed(b"event: error\ndata: " + body + b"\n\n"):
            assert isinstance(write_event(event, True), bytes)


# -- a whole answer as a stream -----------------------------------------------------------------------------------------------------------


def test_a_whole_answer_as_a_stream() -> None:
    """Each choice says all it has to say and then why it ended; usage has a chunk of its own; every chunk names the answer."""
    calls = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}, {"id": "b"}]
    choices = [
        {"index": 0, "message": {"role": "assistant", "content": "hi", "refusal": None}, "finish_reason": "stop", "logprobs": {"content": []}},
        {"index": 1, "message": {"role": "assistant", "content": None, "tool_calls": calls}, "finish_reason": "tool_calls"},
    ]
    usage = {"prompt_tokens": 3, "completion_tokens": 9, "total_tokens": 12}
    body = {"id": "c", "object": "chat.completion", "created": 7, "model": "m", "service_tier": "x", "choices": choices, "usage": usage}
    events = StreamReader().feed(streamed(json.dumps(body).encode()))
    assert [event.kind for event in events] == ["chunk"] * 5 + ["done"]
    assert [delta for event in events for delta in event.deltas] == [Delta(0, "hi"), Delta(1, "f{}", 1)]
    assert [finish for event in events for finish in event.finishes] == [(0, "stop"), (1, "tool_calls")]
    assert (events[4].usage, events[4].usage_only) == (Usage(3, 9), True)
    chunks = [json.loads(event.raw[6:]) for event in events[:-1]]
    head = {"id": "c", "object": "chat.completion.chunk", "created": 7, "model": "m", "service_tier": "x"}
    assert all(chunk.items() >= head.items() for chunk in chunks)
    assert chunks[0]["choices"] == [
        {"index": 0, "delta": {"role": "assistant", "content": "hi"}, "finish_reason": None, "logprobs": {"content": []}},
    ]
    assert [call["index"] for call in chunks[2]["choices"][0]["delta"]["tool_calls"]] == [0, 1]


@pytest.mark.parametrize(
    "choices",
    [
        [],
        [{}],
        [{"message": None}],
        [{"message": {"content": "\ud800", "tool_calls": 5}}],
        [{"message": "x", "index": "y"}],
        [5, None],
        [{"delta": {"content": "a"}}],
    ],
)
def test_odd_answers_as_streams(choices: Any) -> None:
    """Whatever is readable as a whole answer says the same as a stream, and ends."""
    body = json.dumps({"choices": choices}).encode()
    whole, events = read_answer(body), StreamReader().feed(streamed(body))
    assert [delta for event in events for delta in event.deltas] == whole.deltas
    assert [event.kind for event in events[-1:]] == ["done"]
    assert {event.kind for event in events} <= {"chunk", "done"}


def test_an_answer_that_cannot_be_told_as_a_stream() -> None:
    """What only one of two JSON readers takes ends in an error event, not in an empty answer."""
    body = b'{"choices":[{"message":{"content":"a"}}],"x":' + b"1" * 5000 + b"}"
    assert read_answer(body).readable
    assert [event.kind for event in StreamReader().feed(streamed(body))] == ["error"]


@pytest.mark.parametrize("written", [b"1e400", b"-1e400", b"NaN", b"Infinity", b"1" * 5000])
def test_numbers_that_json_has_not_are_told_as_some_that_it_has(written: bytes) -> None:
    """An answer that is told as a stream is JSON for every client, whatever an upstream wrote into it."""
    body = b'{"id":"c","odd":%b,"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"}]}' % written
    for event in streamed(body).split(b"\n\n")[:-2]:
        msgspec.json.decode(event.removeprefix(b"data: "))
