"""What is between two dialects: requests on their way out, answers and streams on their way back, for any pair of them."""

import json
from pathlib import Path
from typing import Any

import pytest
from openai.lib.streaming._deltas import accumulate_delta

from sluicegate.core.usage import Usage
from sluicegate.dialects import openai_chat, openai_chat_content
from sluicegate.dialects.between import Between, Origin
from sluicegate.dialects.content import Piece
from sluicegate.dialects.form import Event, Failure, Request, Target
from sluicegate.dialects.openai_request import read_request
from support_golden import cases

TARGET = Target("gpt", 9, "max_tokens", stream_usage=True)
ORIGIN = Origin("req_1", 1700000000)


def request(**fields: Any) -> Request:
    return read_request(json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}).encode())


def pair(client_content: Any = openai_chat_content, **fields: Any) -> Between:
    """Chat on both sides, translated all the same."""
    return Between(openai_chat, client_content, openai_chat, openai_chat_content, request(**fields), ORIGIN)


def sse(*events: Any) -> bytes:
    return b"".join(b"data: %b\n\n" % (event if isinstance(event, bytes) else json.dumps(event).encode()) for event in events)


def chunk(text: str = "", finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"id": "c1", "created": 7, "model": "gpt", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}], **fields}


class Counting:
    """A client's writer whose state is how many times it has written, and which says the text of what it was given."""

    def __init__(self, request: Request) -> None:
        self.head = "head"
        self.after = 0

    def write(self, pieces: list[Piece]) -> bytes:
        self.after += 1
        return repr([type(piece).__name__ for piece in pieces]).encode()

    def last(self, usage: Usage | None) -> bytes:
        return repr(usage).encode()


class CountingContent:
    Writer = Counting


# -- requests -----------------------------------------------------------------------------------------------------------------------------


def test_a_request_goes_through_the_form() -> None:
    """The provider's side writes what the client's side has read, for the deployment that it goes to."""
    between = pair(max_tokens=50, logit_bias={"5": 1})
    body = json.loads(between.write_request(request(max_tokens=50, logit_bias={"5": 1}), TARGET))
    assert body == {"model": "gpt", "messages": [{"role": "user", "content": "x"}], "max_tokens": 9}
    assert between.left_out == ["logit_bias"]


def test_names_that_cannot_stand_in_a_header_are_not_told() -> None:
    """What was left out is named to the client in a header, so a field that is named like one is not."""
    fields = {"x\r\nset-cookie: a": 1, "ü": 1, "": 1, "a" * 65: 1, "a.b-c_d[0]": 1}
    between = pair()
    between.write_request(request(**fields), TARGET)
    assert between.left_out == ["a.b-c_d[0]"]


# -- whole answers ------------------------------------------------------------------------------------------------------------------------

WHOLE = {
    "id": "c1",
    "created": 7,
    "model": "gpt",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6, "prompt_tokens_details": {"cached_tokens": 3}},
}


def test_a_whole_answer() -> None:
    """Is read for the bill by the provider's dialect and written for the client, with the usage that was reported."""
    answer = pair().read_answer(json.dumps(WHOLE).encode())
    assert (answer.usage, answer.finishes, answer.failure) == (Usage(5, 1, 3), [(0, "stop")], None)
    body = json.loads(answer.body)
    assert (body["id"], body["created"], body["model"]) == ("c1", 7, "gpt")
    assert body["choices"][0]["message"]["content"] == "a"
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}


def test_an_answer_without_usage_says_none() -> None:
    """Nothing is made up."""
    body = json.loads(pair().read_answer(json.dumps({**WHOLE, "usage": None}).encode()).body)
    assert "usage" not in body


@pytest.mark.parametrize("body", [b'{"error":{"message":"no"}}', b"<html>", b"{}"])
def test_what_is_no_answer_is_not_written(body: bytes) -> None:
    """An error is told by the client's dialect, what cannot be read by the gateway."""
    assert pair().read_answer(body).body == b""


def test_a_whole_answer_to_a_stream() -> None:
    """Becomes a stream of the provider's, which the stream reader then translates."""
    between = pair(stream=True)
    body = json.dumps(WHOLE).encode()
    assert between.read_answer(body).body == b""
    reader = between.StreamReader()
    events = reader.feed(between.streamed(body))
    assert b"".join(event.raw for event in events).count(b'"content":"a"') == 1
    assert b'"usage"' not in b"".join(event.raw for event in events)


# -- streams ------------------------------------------------------------------------------------------------------------------------------


def test_events_carry_the_figures_of_the_one_and_the_bytes_of_the_other() -> None:
    """Deltas and finishes as the provider's reader metered them; what the client is to read as raw."""
    reader = pair(CountingContent()).StreamReader()
    first, second, third = reader.feed(sse(chunk("a"), chunk("b", "stop"), b"[DONE]"))
    assert [delta.text for delta in first.deltas + second.deltas] == ["a", "b"]
    assert second.finishes == [(0, "stop")]
    assert (first.raw, second.raw) == (b"['Begin', 'TextDelta']", b"['TextDelta', 'Finish']")
    assert (third.kind, third.raw) == ("done", b"")
    assert reader.ending == b""


def test_each_event_has_the_state_after_itself() -> None:
    """Events that come in one read and are then held back must not count for the end that is written after the ones before."""
    reader = pair(CountingContent()).StreamReader()
    events = reader.feed(sse(chunk("a"), chunk("b"), chunk("c")))
    assert [event.after for event in events] == [1, 2, 3]
    assert reader.head == "head"


def test_usage_is_kept_for_the_last_bytes() -> None:
    """Merged field by field as it comes, and laid over what is charged."""
    reader = pair(CountingContent()).StreamReader()
    usage = [{"prompt_tokens": 5, "completion_tokens": 1}, {"completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 2}}]
    reader.feed(sse(*[chunk("a", usage=one) for one in usage]))
    assert reader.last(Usage(50, 40)) == repr(Usage(5, 4)).encode()


@pytest.mark.parametrize(
    ("reported", "want"), [(None, Usage(50, 40)), ({"prompt_tokens": 5}, Usage(5, 40)), ({"completion_tokens": 0}, Usage(50, 40))]
)
def test_what_was_not_reported_is_told_as_it_is_charged(reported: Any, want: Usage) -> None:
    """A zero is no report of output that came (case 55)."""
    reader = pair(CountingContent()).StreamReader()
    reader.feed(sse(chunk("a", "stop", usage=reported)))
    assert reader.last(Usage(50, 40)) == repr(want).encode()


def test_comments_errors_and_what_cannot_be_read() -> None:
    """A comment of the provider's is no event of the client's; an error keeps what it says; what cannot be read is metered as it came."""
    between = pair(CountingContent())
    comment, error, bad = between.StreamReader().feed(b": ping\n\n" + sse({"error": {"message": "no", "code": "c"}}, b"{bro"))
    assert (comment.kind, comment.raw, between.write_event(comment, True)) == ("comment", b"", b"")
    assert (error.kind, error.failure) == ("error", Failure(None, "c", "", "no"))
    assert (bad.kind, bad.raw, between.write_event(bad, False)) == ("bad", b"data: {bro\n\n", b"")


def test_what_is_left_at_the_end() -> None:
    """A last event that lacks its blank line is translated too; a stream without an end has its last bytes all the same."""
    reader = pair(stream=True).StreamReader()
    assert reader.feed(b"data: " + json.dumps(chunk("a", "stop")).encode()) == []
    (event,) = reader.end()
    assert event.finishes == [(0, "stop")]
    assert event.raw.endswith(b'"finish_reason":"stop"}]}\n\n')
    assert reader.last(Usage(1, 1)) == b"data: [DONE]\n\n"
    assert reader.end() == []


def test_an_answer_without_an_id_and_a_time_gets_the_requests() -> None:
    """Clients take them for given."""
    (event,) = pair(stream=True).StreamReader().feed(sse({"choices": [{"delta": {"content": "a"}}]}))
    for part in event.raw.split(b"\n\n")[:-1]:
        told = json.loads(part[6:])
        assert (told["id"], told["created"], told["model"]) == ("req_1", 1700000000, "m")


def test_usage_is_hidden_from_a_client_that_did_not_ask() -> None:
    """It is left to the last bytes, which know whether it was asked for (case 50)."""
    for options, shown in ((None, False), ({"include_usage": True}, True)):
        between = pair(stream=True, stream_options=options)
        reader = between.StreamReader()
        events = reader.feed(sse(chunk("a", "stop"), {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 1}}, b"[DONE]"))
        assert b"usage" not in b"".join(between.write_event(event, not shown) for event in events)
        assert (b'"usage":{"prompt_tokens":5' in reader.last(Usage(5, 1))) is shown


def test_a_cut_is_written_in_the_clients_dialect() -> None:
    """From the state that the client has seen."""
    between = pair(stream=True)
    reader = between.StreamReader()
    (event,) = reader.feed(sse(chunk("a")))
    cut = between.write_truncation(reader.head, event.after, [0], "budget", None)
    assert cut == openai_chat.write_truncation(reader.head, None, [0], "budget", None)
    assert b'"id":"c1"' in cut


def told(events: list[Event]) -> bytes:
    return b"".join(event.raw for event in events)


def test_a_stream_is_the_same_however_its_bytes_come() -> None:
    """Whole, byte by byte, and in reads that cut a character in two (case 78)."""
    data = sse(chunk("é"), chunk("\u2028b"), {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}, chunk("", "stop"), b"[DONE]")
    between = pair(stream=True)
    whole = told(between.StreamReader().feed(data))
    reader = between.StreamReader()
    assert b"".join(told(reader.feed(data[i : i + 1])) for i in range(len(data))) == whole
    assert "é".encode() in whole


def test_prompts_are_made_anew_for_each_attempt() -> None:
    """What one provider left out is not held against the next."""
    between = pair()
    for _ in range(2):
        between.write_request(request(top_k=5), TARGET)
        assert between.left_out == ["top_k"]


@pytest.mark.parametrize("path", cases("openai_chat", "answers"), ids=lambda path: path.stem)
def test_an_answer_says_the_same_whole_and_streamed(path: Path) -> None:
    """Text, thinking, calls, refusals and why it ended, of every choice."""
    body = json.dumps(json.loads(path.read_text())["body"]).encode()
    whole = json.loads(pair().read_answer(body).body)
    streaming = pair(stream=True)
    reader = streaming.StreamReader()
    messages: dict[int, dict[Any, Any]] = {}
    finishes: dict[int, str] = {}
    for event in reader.feed(streaming.streamed(body)):
        for line in event.raw.splitlines():
            for choice in json.loads(line[6:])["choices"] if line else ():
                messages[choice["index"]] = accumulate_delta(messages.get(choice["index"], {}), choice["delta"])
                finishes[choice["index"]] = choice["finish_reason"] or ""
    assert finishes == {choice["index"]: choice["finish_reason"] for choice in whole["choices"]}
    for choice in whole["choices"]:
        message, got = choice["message"], messages[choice["index"]]
        for name in ("content", "refusal", "reasoning_content", "reasoning_details"):
            assert (got.get(name) or None) == (message.get(name) or None), name
        assert [{**call, "index": i} for i, call in enumerate(message.get("tool_calls", ()))] == got.get("tool_calls", [])


def test_what_comes_behind_the_end_changes_nothing() -> None:
    """It is not told, and the client's writer never hears of it: its last bytes must fit what was told before."""
    reader = pair(CountingContent).StreamReader()
    events = reader.feed(sse(chunk("a"), b"[DONE]", chunk("b"), b"[DONE]")) + reader.feed(sse(chunk("c"))) + reader.end()
    assert [event.kind for event in events] == ["chunk", "done"] and reader.head == "head" and events[-1].after == 1
