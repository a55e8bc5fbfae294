"""Answers and streams of the Anthropic messages dialect: what is read of them, whatever is in them, and what the gateway says itself."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sluicegate.core.usage import Usage, merge
from sluicegate.dialects.anthropic_messages import (
    NO_BLOCK,
    Head,
    StreamReader,
    read_answer,
    streamed,
    write_error,
    write_event,
    write_stream_error,
    write_truncation,
)
from sluicegate.dialects.form import Delta, Event, Failure

TEXT = {"type": "text", "text": "abc"}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "proof"}
USE = {"type": "tool_use", "id": "t", "name": "f", "input": {"q": 1}}


def event(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), json.dumps({"type": kind, **fields}).encode())


def start(index: int, block: Any) -> bytes:
    return event("content_block_start", index=index, content_block=block)


def change(index: int, **delta: Any) -> bytes:
    return event("content_block_delta", index=index, delta=delta)


def begun(**usage: Any) -> bytes:
    return event("message_start", message={"id": "m", "model": "x", "content": [], "usage": usage})


def ended(reason: Any, **usage: Any) -> bytes:
    return event("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage=usage)


def read(*data: bytes) -> list[Event]:
    return StreamReader().feed(b"".join(data))


def usage_in(events: list[Event]) -> Usage | None:
    usage: Usage | None = None
    for each in events:
        usage = merge(usage, each.usage) if each.usage is not None else usage
    return replace(usage, early=False) if usage is not None else None


def below(frames: int, call: Any) -> Any:
    """The same, further down the stack."""
    return below(frames - 1, call) if frames else call()


def message(*content: Any, **fields: Any) -> bytes:
    return json.dumps({"id": "m", "type": "message", "role": "assistant", "model": "x", "content": list(content), **fields}).encode()


# -- output -------------------------------------------------------------------------------------------------------------------------------

OUTPUTS = [
    (TEXT, "abc", 0),
    (THOUGHT, "hm", 0),
    ({"type": "redacted_thinking", "data": "xyz"}, "", 0),
    (USE, 'f{"q":1}', 1),
    ({"type": "tool_use", "id": "t", "name": "f", "input": {}}, "f", 1),
    ({"type": "server_tool_use", "id": "t", "name": "web_search", "input": {"query": "q"}}, 'web_search{"query":"q"}', 1),
    ({"type": "web_search_tool_result", "tool_use_id": "t", "content": [{"title": "found"}]}, "", 0),
    ({"type": "text", "text": "abc", "citations": [{"cited_text": "cited"}]}, "abc", 0),
    ({"type": "text", "text": ["a", {"b": "c"}]}, "ac", 0),
    ({"type": "text", "text": None}, "", 0),
    ({"type": "tool_use", "id": 5, "name": "f", "input": "raw"}, "fraw", 1),
    ({"type": "tool_use", "id": 5, "name": ["f"], "input": [1]}, "f[1]", 1),
    ({"type": "later", "text": "abc"}, "abc", 0),
    ({"type": "tool_use", "id": 5, "name": "f", "input": {"q": ["\ud83d", "abc"]}}, 'f"\ufffdabc"', 1),
]


@pytest.mark.parametrize(("block", "text", "calls"), OUTPUTS, ids=range(len(OUTPUTS)))
def test_output_is_counted_once_wherever_it_is(block: Any, text: str, calls: int) -> None:
    """Text, thinking, names and input of tools, whole; what tools found, proofs and citations are no output (case 117)."""
    answer = read_answer(message(block, stop_reason="end_turn"))
    got = [(delta.text.replace(" ", ""), delta.tool_calls) for delta in answer.deltas]
    assert (got, answer.readable) == ([(text, calls)] if text or calls else [], True)


@pytest.mark.parametrize("fields", [{}, {"id": 5, "later": "more"}])
def test_content_that_is_a_text_is_output(fields: dict[str, Any]) -> None:
    """Where blocks belong some servers write a text, as requests may."""
    answer = read_answer(json.dumps({"type": "message", "content": "abc", "stop_reason": "end_turn", **fields}).encode())
    assert ([delta.text for delta in answer.deltas], answer.readable) == (["abc" + str(fields.get("later", ""))], True)


def test_output_of_a_stream() -> None:
    """Each change counts as it comes, a call where it begins."""
    events = read(
        begun(input_tokens=3, output_tokens=1),
        start(0, {"type": "thinking", "thinking": "", "signature": ""}), change(0, type="thinking_delta", thinking="hm"),
        change(0, type="signature_delta", signature="proof"), event("content_block_stop", index=0),
        start(1, {"type": "text", "text": "a"}), change(1, type="text_delta", text="b"), change(1, type="citations_delta", citation={"x": 1}),
        event("content_block_stop", index=1), event("ping"),
        start(2, {"type": "tool_use", "id": "t", "name": "f", "input": {}}), change(2, type="input_json_delta", partial_json='{"q'),
        event("content_block_stop", index=2), ended("tool_use", output_tokens=9), event("message_stop"),
    )  # fmt: skip
    assert [delta for each in events for delta in each.deltas] == [Delta(0, "hm"), Delta(0, "a"), Delta(0, "b"), Delta(0, "f", 1), Delta(0, '{"q')]
    assert [each.kind for each in events if each.kind != "chunk"] == ["other", "done"]
    assert [each.after for each in events] == [NO_BLOCK, 0, 0, 0, NO_BLOCK, 1, 1, 1, NO_BLOCK, NO_BLOCK, 2, 2, NO_BLOCK, NO_BLOCK, NO_BLOCK]


def test_output_counts_in_an_event_of_any_kind() -> None:
    """An event that is not known may carry some, and one that is known may carry more than its own."""
    [got] = read(event("later", delta={"text": "a", "thinking": "b"}, content_block={"type": "text", "text": "c"}))
    assert (got.kind, "".join(delta.text for delta in got.deltas)) == ("chunk", "abc")
    assert read(event("message_start", message={"content": [TEXT]}, delta={"text": "d"}))[0].deltas == [Delta(0, "d"), Delta(0, "abc")]


REASONS = [
    ("end_turn", "stop"), ("stop_sequence", "stop"), ("tool_use", "tool_calls"), ("max_tokens", "length"),
    ("model_context_window_exceeded", "length"), ("refusal", "content_filter"), ("pause_turn", "pause_turn"), ("new", "new"),
]  # fmt: skip


UNKNOWN: list[tuple[dict[str, Any], str]] = [
    ({"type": "foo", "foo": " word"}, " word"),
    ({"type": "text", "text": "abc", "foo": {"bar": [" one", {"baz": " two"}]}, "copy": "abc"}, "abc one two"),
    ({"type": "compaction", "content": "in short"}, "in short"),
    ({"type": "foo", "name": "f", "input": {"q": 1}}, 'f{"q": 1}'),
    ({"more": {"x": " word"}}, " word"),
    ({"type": "text", "text": "abc", "citations": [{"cited_text": "source"}], "cache_control": None}, "abc"),
    ({"type": "mcp_tool_use", "id": "t", "name": "f", "server_name": "s", "input": {}}, "f"),
    ({"type": "bash_code_execution_tool_result", "tool_use_id": "t", "content": {"stdout": "found"}, "name": "n"}, ""),
]


@pytest.mark.parametrize(("block", "text"), UNKNOWN)
def test_a_text_in_a_field_that_is_not_known_is_output(block: dict[str, Any], text: str) -> None:
    """In a block, whole or as it begins, whatever it is called, once; citations, and what a tool of the provider's found, are none."""
    for deltas in (read_answer(message(block)).deltas, read(start(0, block))[0].deltas):
        assert "".join([delta.text for delta in deltas]) == text


def test_a_text_in_a_change_that_is_not_known_is_output() -> None:
    """The same of what is added to a block, wherever the event has it, and of a message's own fields."""
    foo, nested, cited = read(
        change(0, type="foo_delta", foo=" word"),
        change(0, type="text_delta", text="a", x={"y": [" b", "a"]}),
        change(0, type="citations_delta", citation={"cited_text": "source"}),
    )
    assert (foo.deltas, nested.deltas, cited.deltas) == ([Delta(0, " word")], [Delta(0, "a ba")], [])
    assert read(event("content_block_delta", index=0, content_block={"foo": " word"}))[0].deltas == [Delta(0, " word")]
    end = {"stop_reason": "refusal", "stop_details": {"explanation": "no"}, "container": {"id": "c"}}
    assert read(event("message_delta", delta=end))[0].deltas == []
    beside = {"role": "assistant", "type": "message", "container": {"expires_at": "x"}, "stop_details": None}
    assert read_answer(message(TEXT, foo=" word", **beside)).deltas == [Delta(0, "abc word")]


@pytest.mark.parametrize(("theirs", "ours"), REASONS)
def test_case_69_stop_reasons(theirs: str, ours: str) -> None:
    """Each has its own meaning; one that is not known is passed on, never taken for success."""
    assert read_answer(message(TEXT, stop_reason=theirs)).finishes == [(0, ours)]
    assert read(ended(theirs, output_tokens=1))[0].finishes == [(0, ours)]


# -- usage --------------------------------------------------------------------------------------------------------------------------------


def test_case_53_usage_is_cumulative() -> None:
    """15 in the end are 15, not 16 with the one at the start."""
    assert usage_in(read(begun(input_tokens=10, output_tokens=1), ended(None, output_tokens=7), ended("end_turn", output_tokens=15))) == Usage(10, 15)


def test_case_58_the_start_alone_is_no_count_of_the_output() -> None:
    """So that a stream which ends without another report is settled at what was seen."""
    assert usage_in(read(begun(input_tokens=10, output_tokens=1))) == Usage(10, None)
    assert usage_in(read(begun(input_tokens=10, output_tokens=1), event("message_delta", delta={"stop_reason": "end_turn"}))) == Usage(10, None)


def test_cases_55_63_64_what_a_cache_gave_and_took_is_input() -> None:
    """Both lie beside `input_tokens`; a later report of the input alone does not take them back; an hour's writes are told apart."""
    cached = {"cache_read_input_tokens": 900, "cache_creation_input_tokens": 50, "cache_creation": {"ephemeral_1h_input_tokens": 50}}
    want = Usage(1050, 5, cached_tokens=900, cache_write_tokens=50, cache_write_1h_tokens=50)
    assert usage_in(read(begun(input_tokens=100, **cached, output_tokens=1), ended("end_turn", output_tokens=5, input_tokens=100))) == want
    assert read_answer(message(TEXT, usage={"input_tokens": 100, "output_tokens": 5, **cached})).usage == want
    assert usage_in(read(begun(input_tokens=0, output_tokens=1), ended("end_turn", output_tokens=40))) == Usage(0, 40)


def test_input_is_early_until_the_end_repeats_it() -> None:
    """Tools of the provider's have it read again; what was told of their calls at the start is nothing."""
    begin, tools = begun(input_tokens=10, output_tokens=1, server_tool_use={"web_search_requests": 0}), {"web_search_requests": None}
    for end, early in (({}, True), ({"output_tokens": 5}, True), ({"input_tokens": 0}, True), ({"input_tokens": 30}, False)):
        usage = read(begin, event("message_delta", delta={"stop_reason": "end_turn"}, usage=end))[-1].usage
        assert usage is not None and (usage.early, usage.calls or {}, usage.calls_unread) == (early, {}, False)
    unread = read(begin, ended("end_turn", input_tokens=30, server_tool_use=tools))[-1].usage
    assert unread is not None and (unread.calls, unread.calls_unread) == (None, True)


@pytest.mark.parametrize(
    "reported", [None, 5, "x", [], {}, {"input_tokens": None}, {"input_tokens": "7", "output_tokens": -1}, {"output_tokens": 1e30}]
)
def test_case_54_odd_usage_is_tolerated(reported: Any) -> None:
    """It is taken as not reported."""
    for usage in (read_answer(message(TEXT, usage=reported)).usage, usage_in(read(event("message_delta", delta={}, usage=reported)))):
        assert usage is None or (usage.input_tokens, usage.output_tokens) == (None, None)


# -- errors -------------------------------------------------------------------------------------------------------------------------------

ERRORS = [
    ({"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}, Failure(529, "", "overloaded_error", "busy")),
    ({"type": "error", "error": {"type": "rate_limit_error", "message": "slow"}, "request_id": "r"}, Failure(429, "", "rate_limit_error", "slow")),
    ({"error": {"message": "no", "type": "odd", "code": 503}}, Failure(503, "503", "odd", "no")),
    ({"error": "no"}, Failure(None, "", "", "no")),
    ({"message": "no", "type": "error"}, Failure(None, "", "error", "no")),
    ([{"error": {"message": "no", "code": 400}}], Failure(400, "400", "", "no")),
]


@pytest.mark.parametrize(("said", "failure"), ERRORS, ids=range(len(ERRORS)))
def test_errors_in_any_shape(said: Any, failure: Failure) -> None:
    """Anthropic's own, which has a status by its type, and those of servers in front of it."""
    answer = read_answer(json.dumps(said).encode())
    assert (answer.failure, answer.readable, answer.deltas) == (failure, True, [])


@pytest.mark.parametrize("data", [b"", b"<html>", b"null", b"5", b"{}", b'{"type":"message"}', b'{"content":5}', b"\xff", b"[" * 50_000])
def test_what_is_no_answer_is_not_readable(data: bytes) -> None:
    """And is no success (case 36)."""
    answer = read_answer(data)
    assert not answer.readable and answer.failure is None


def test_an_error_in_a_stream() -> None:
    """Is one whatever its event is called."""
    for data in (
        event("error", error={"type": "overloaded_error", "message": "busy"}),
        b'data: {"error":{"message":"busy"}}\n\n',
        b"event: error\ndata: {}\n\n",
    ):
        got = read(data)[0]
        assert got.kind == "error" and got.failure is not None and (got.failure.message == "busy" or b"{}" in data)


# -- streams of any shape -----------------------------------------------------------------------------------------------------------------

STREAM = (
    begun(input_tokens=3, output_tokens=1)
    + start(0, {"type": "text", "text": ""})
    + change(0, type="text_delta", text="é\u2028😀")
    + b": comment\n\n"
    + b"event: ping\ndata: {\ndata: \"type\": \"ping\"}\n\n"
    + b"data: {bro\n\n"
    + event("content_block_stop", index=0)
    + ended("end_turn", output_tokens=2)
    + event("message_stop")
)  # fmt: skip


@pytest.mark.parametrize("trailing", [b"", b"\n", b"data: {}\n\n", b"event: message_stop\n"])
def test_cases_78_80_any_cut(trailing: bytes) -> None:
    """A stream that is cut after every byte says the same in the same bytes, whatever comes behind it."""
    stream = STREAM + trailing
    whole, bytewise = StreamReader(), StreamReader()
    events = whole.feed(stream) + whole.end()
    got = [each for i in range(len(stream)) for each in bytewise.feed(stream[i : i + 1])] + bytewise.end()
    assert got == events and bytewise.head == whole.head == Head("m", "x", True)
    assert [each.kind for each in events[:9]] == ["chunk", "chunk", "chunk", "comment", "other", "bad", "chunk", "chunk", "done"]
    assert b"".join(each.raw for each in events[:9]) == STREAM


def test_what_says_nothing_is_left_out() -> None:
    """No data, null, and the end of another dialect's streams (case 56)."""
    assert read(b"data: null\n\n", b"event: ping\n\n", b"data: [DONE]\n\n", b"data:\n\n") == []


def test_a_last_event_without_its_blank_line() -> None:
    """Is read, and gets one."""
    reader = StreamReader()
    assert reader.feed(event("message_stop")[:-1]) == []
    [last] = reader.end()
    assert (last.kind, last.raw) == ("done", event("message_stop"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "text", "index", "usage", "error", "input", "name"]), inner),
    max_leaves=8,
)
NAMES = ["message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop", "error", "x"]
FIELDS = ["index", "message", "content_block", "delta", "usage", "error", "content", "stop_reason"]


@settings(max_examples=150)
@given(st.lists(st.tuples(st.sampled_from(NAMES), st.dictionaries(st.sampled_from(FIELDS), JSON)), max_size=4), st.binary(max_size=20))
def test_readers_never_raise(events: list[tuple[str, dict[str, Any]]], rest: bytes) -> None:
    """Whatever an upstream sends: streamed, whole, and told as a stream."""
    data = b"".join(b"event: %b\ndata: %b\n\n" % (name.encode(), json.dumps({"type": name, **fields}).encode()) for name, fields in events)
    reader = StreamReader()
    for each in reader.feed(data + rest) + reader.end():
        write_event(each, False)
        write_truncation(reader.head, each.after, [0], "budget", each.usage)
    for name, fields in events:
        body = json.dumps({"type": name, **fields}).encode()
        if read_answer(body).readable and read_answer(body).failure is None:
            StreamReader().feed(streamed(body))
    read_answer(data + rest)


# -- what the gateway writes --------------------------------------------------------------------------------------------------------------


def test_events_pass_as_they_came() -> None:
    """Usage is for everybody; a comment is one line; what cannot be read is dropped."""
    events = read(STREAM)
    assert b"".join(write_event(each, True) for each in events) == STREAM.replace(b": comment\n\n", b": comment\n").replace(b"data: {bro\n\n", b"")


def test_a_whole_answer_as_a_stream() -> None:
    """Says the same, and nothing twice: output, proofs, citations, unknown fields, how it ended, usage."""
    cited = {"type": "text", "text": "abc", "citations": [{"cited_text": "x"}], "unknown": 1}
    found = {"type": "web_search_tool_result", "tool_use_id": "t", "content": []}
    usage = {"input_tokens": 7, "output_tokens": 9, "cache_read_input_tokens": 3}
    body = message(THOUGHT, cited, USE, found, stop_reason="tool_use", stop_sequence=None, usage=usage, container={"id": "c"})
    events = read(streamed(body))
    answer = read_answer(body)
    assert "".join(d.text for each in events for d in each.deltas).replace(" ", "") == "".join(d.text for d in answer.deltas).replace(" ", "")
    assert usage_in(events) == answer.usage and [f for each in events for f in each.finishes] == answer.finishes
    assert [each.kind for each in events][-1] == "done"
    datas = [json.loads(each.raw.split(b"data: ")[1]) for each in events]
    assert datas[0]["message"]["container"] == {"id": "c"} and datas[0]["message"]["content"] == []
    blocks = [data["content_block"] for data in datas if data["type"] == "content_block_start"]
    assert blocks == [{**THOUGHT, "thinking": "", "signature": ""}, {**cited, "text": "", "citations": []}, {**USE, "input": {}}, found]
    deltas = [data["delta"] for data in datas if data["type"] == "content_block_delta"]
    assert [delta["type"] for delta in deltas] == ["thinking_delta", "signature_delta", "text_delta", "citations_delta", "input_json_delta"]
    assert deltas[1]["signature"] == "proof" and json.loads(deltas[4]["partial_json"]) == {"q": 1}


def test_a_whole_answer_in_an_odd_shape_as_a_stream() -> None:
    """Content that is one text is told; what can be read but not told is an error."""
    assert "".join(delta.text for each in read(streamed(b'{"content":"abc"}')) for delta in each.deltas) == "abc"
    refused = message(TEXT, stop_details={"type": "refusal", "category": None}, stop_reason="refusal")
    assert b'"stop_details"' in streamed(refused)
    for odd in (b'{"content":[],"x":' + b"9" * 5000 + b"}", b'{"content":[],"x":' + b"[" * 400 + b"]" * 400 + b"}"):
        assert read_answer(odd).readable
        assert below(500, lambda odd=odd: read(streamed(odd)))[0].kind in ("error", "chunk")


@pytest.mark.parametrize(
    ("after", "told", "kinds", "usage"),
    [
        (None, False, ["message_start", "message_delta", "message_stop"], {"output_tokens": 5}),
        (NO_BLOCK, True, ["message_delta", "message_stop"], {"output_tokens": 5}),
        (2, True, ["content_block_stop", "message_delta", "message_stop"], {"output_tokens": 5}),
        (0, False, ["content_block_stop", "message_delta", "message_stop"], {"output_tokens": 5, "input_tokens": 7}),
    ],
)
def test_a_truncation(after: int | None, told: bool, kinds: list[str], usage: Any) -> None:
    """What is open is closed, the reason is max_tokens, the gateway says why, input that the client knows is not told again."""
    datas = [json.loads(each.raw.split(b"data: ")[1]) for each in read(write_truncation(Head("m", "x", told), after, [0], "budget", Usage(7, 5)))]
    assert [data["type"] for data in datas] == kinds
    assert datas[-2]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert (datas[-2]["sluicegate"], datas[-2]["usage"]) == ({"truncated": "budget"}, usage)
    if after is None:
        assert datas[0]["message"]["usage"]["input_tokens"] == 7
    elif after != NO_BLOCK:
        assert datas[0]["index"] == after


def test_a_truncation_after_the_end() -> None:
    """An answer that has ended only stops."""
    assert [each.kind for each in read(write_truncation(Head(), NO_BLOCK, [], "ledger", None))] == ["done"]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"), (401, "authentication_error"), (402, "billing_error"), (403, "permission_error"), (404, "not_found_error"),
        (405, "invalid_request_error"), (409, "conflict_error"), (413, "request_too_large"), (422, "invalid_request_error"),
        (429, "rate_limit_error"), (500, "api_error"), (502, "api_error"), (503, "api_error"), (504, "timeout_error"), (529, "overloaded_error"),
    ],
)  # fmt: skip
def test_errors_have_the_types_of_their_statuses(status: int, kind: str) -> None:
    """In Anthropic's shape, with what the gateway adds inside it and the request's id beside it."""
    body = json.loads(write_error(status, "No.", "budget_error", "model", "code", {"request_id": "req_1", "sluicegate": {"reason": "rate"}}))
    error = {"type": kind, "message": "No.", "param": "model", "code": "code", "details": {"error_code": "code"}, "sluicegate": {"reason": "rate"}}
    assert body == {"type": "error", "error": error, "request_id": "req_1"}


@pytest.mark.parametrize(
    ("type_", "code", "kind"),
    [
        ("upstream_error", "upstream_error", "api_error"),
        ("upstream_error", "upstream_overloaded", "overloaded_error"),
        ("upstream_error", "upstream_timeout", "timeout_error"),
        ("rate_limit_error", None, "rate_limit_error"),
    ],
)
def test_errors_in_a_stream(type_: str, code: str | None, kind: str) -> None:
    """An `error` event, after which nothing comes (case 74)."""
    [got] = read(write_stream_error("No.", type_, code, {"request_id": "req_1"}))
    assert (got.kind, got.failure.type if got.failure else "") == ("error", kind)
    assert got.raw.startswith(b"event: error\n") and json.loads(got.raw.split(b"data: ")[1])["request_id"] == "req_1"
