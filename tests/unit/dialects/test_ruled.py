"""Answers under content rules, in each dialect of clients: whole and streamed, in any pieces."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.core.phrases import Phrase
from sluicegate.core.usage import Usage
from sluicegate.dialects.anthropic_thinking import UNSIGNED
from support_ruled import (
    MODULES,
    STREAMS,
    chat,
    events_of,
    mask,
    messages,
    responses,
    ruled,
    rules,
    said,
    shaped,
    text_in,
    whole_answer,
)

DIALECTS = sorted(STREAMS)
NOTE = "This is no advice."
BOMB = rules(mask("bomb"))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_without_anything_to_change_not_one_byte_changes(dialect: str) -> None:
    """What no rule finds passes as it came, unknown fields and numbers as they were written, whole and streamed."""
    data, body = STREAMS[dialect](["Hello ", "wor", "ld"]), whole_answer(dialect, "Hello world")
    by = rules(mask("bomb"), mask("xyz", "refuse"), mask("hello", "report"))
    acted: set[str] = set()
    assert shaped(dialect, by, data, acted=acted)[0] == data
    assert ruled(dialect, by, stream=False).read_answer(body).body == b""
    assert acted == {"hello"}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_phrase_split_over_three_pieces_is_masked(dialect: str) -> None:
    """The client reads the mask where the phrase was; what is metered is what came."""
    data = STREAMS[dialect](["a b", "o", "mb and a bo", "at"])
    told, events = shaped(dialect, BOMB, data)
    assert said(dialect, told) == "a # and a boat"
    assert b"bomb" not in told
    assert "".join([delta.text for event in events for delta in event.deltas]) == "a bomb and a boat"
    assert text_in(dialect, ruled(dialect, BOMB, stream=False).read_answer(whole_answer(dialect, "a bomb and")).body) == "a # and"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_waits_at_the_end_comes_before_it(dialect: str) -> None:
    """The beginning of a phrase that never ends is text like any other."""
    told, _ = shaped(dialect, BOMB, STREAMS[dialect](["a bo", "m"]))
    assert said(dialect, told) == "a bom"


@pytest.mark.parametrize("dialect", DIALECTS)
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_any_pieces_and_any_reads_give_the_text_of_the_whole(dialect: str, data: st.DataObject) -> None:
    """However a text is cut into events, and these into reads, inside characters and escapes too."""
    by = rules(mask("bomb"), mask("é😀"), mask(r"regex:\d{2}-\d"), disclaimer=NOTE)
    text = data.draw(st.lists(st.sampled_from(["bo", "mb", "BOMB", "é", "😀", "12", "-3", " ", '"', "\\", "x\u200b"]), max_size=14).map("".join))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    stream = STREAMS[dialect]([text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)])
    reads = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    told, _ = shaped(dialect, by, stream, cuts=reads)
    whole = ruled(dialect, by, stream=False).read_answer(whole_answer(dialect, text)).body or whole_answer(dialect, text)
    assert said(dialect, told) == text_in(dialect, whole)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_disclaimer_is_the_end_of_an_answer_once(dialect: str) -> None:
    """Behind the text, before the end; not again where the model has said it itself; not where nothing was said."""
    by = rules(disclaimer=NOTE)
    told, events = shaped(dialect, by, STREAMS[dialect](["It ", "rains."]))
    assert said(dialect, told) == f"It rains.\n\n{NOTE}"
    assert sum(len(delta.text) for event in events for delta in event.deltas) == len("It rains.")
    assert text_in(dialect, ruled(dialect, by, stream=False).read_answer(whole_answer(dialect, "It rains.")).body) == f"It rains.\n\n{NOTE}"
    again = f"It rains. {NOTE}"
    assert shaped(dialect, by, STREAMS[dialect]([again]))[0] == STREAMS[dialect]([again])
    assert ruled(dialect, by, stream=False).read_answer(whole_answer(dialect, again)).body == b""
    assert shaped(dialect, by, STREAMS[dialect]([]))[0] == STREAMS[dialect]([])


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_refused_answer_ends_before_the_phrase(dialect: str) -> None:
    """The text before it goes out, an event tells that the answer ends here, and what came after it is metered and not told."""
    by = rules(mask("bomb", "refuse"), disclaimer=NOTE)
    acted: set[str] = set()
    told, events = shaped(dialect, by, STREAMS[dialect](["to make a bo", "mb take ", "care"]), acted=acted)
    assert said(dialect, told) == "to make a "
    assert events[-1].kind == "refused"
    assert not any(event.finishes or event.kind == "done" for event in events)
    assert "".join([delta.text for event in events for delta in event.deltas]) == "to make a bomb take care"
    assert acted == {"bomb"}
    one = ruled(dialect, by, stream=False)
    one.read_answer(whole_answer(dialect, "a bomb"))
    assert one.refused == "bomb"
    told, events = shaped(dialect, by, STREAMS[dialect](["a bo", "mb"]))
    assert (said(dialect, told), events[-1].kind) == ("a ", "refused")
    assert b'"stop"' not in told and b"end_turn" not in told and b"completed" not in told


def test_choices_are_read_each_by_itself() -> None:
    """Two choices whose pieces come in turns: each has its mask and its disclaimer, and no phrase is made of both."""
    told, _ = shaped("openai_chat", rules(mask("bomb"), disclaimer=NOTE), chat(["a bo", "mb"], choices=2))
    assert [said("openai_chat", told, choice=n) for n in (0, 1)] == [f"a #\n\n{NOTE}"] * 2
    head = {"id": "c", "object": "chat.completion.chunk"}
    parts = [(0, "bo"), (1, "mb"), (1, "bo"), (0, "at")]
    stream = b"".join(b"data: %b\n\n" % json.dumps(head | {"choices": [{"index": n, "delta": {"content": text}}]}).encode() for n, text in parts)
    told, _ = shaped("openai_chat", BOMB, stream + b"data: [DONE]\n\n")
    assert [said("openai_chat", told, choice=n) for n in (0, 1)] == ["boat", "mbbo"]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "refusal"])
def test_thoughts_and_refusals_are_searched_too(field: str) -> None:
    """Whatever a model writes is, in its own text; a disclaimer belongs to what is said."""
    told, _ = shaped("openai_chat", rules(mask("bomb"), disclaimer=NOTE), chat(["a bo", "mb"], field=field))
    assert said("openai_chat", told, field=field) == "a #"
    assert NOTE.encode() not in told


def test_content_in_parts_is_read_part_by_part() -> None:
    """As Mistral streams thoughts and texts: what is left comes as a part of its kind."""
    parts = [
        [{"type": "thinking", "thinking": [{"type": "text", "text": "a bo"}]}],
        [{"type": "thinking", "thinking": [{"type": "text", "text": "mb bo"}]}],
    ]
    stream = b"".join(b"data: %b\n\n" % json.dumps({"choices": [{"index": 0, "delta": {"content": part}}]}).encode() for part in parts)
    stream += b"data: %b\n\n" % json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}).encode()
    deltas = [each["choices"][0]["delta"] for each in events_of(shaped("openai_chat", BOMB, stream)[0])]
    thoughts = [part["thinking"][0] for delta in deltas for part in delta.get("content", [])]
    assert "".join([thought["text"] for thought in thoughts]) == "a # bo"
    assert {part["type"] for delta in deltas for part in delta.get("content", [])} == {"thinking"}
    assert {thought["type"] for thought in thoughts} == {"text"}


def test_log_probabilities_are_left_out_where_texts_are_searched() -> None:
    """They hold the same text in pieces."""
    choice = {"index": 0, "delta": {"content": "x"}, "logprobs": {"content": [{"token": "bomb"}]}, "finish_reason": None}
    told, _ = shaped("openai_chat", BOMB, b"data: %b\n\n" % json.dumps({"choices": [choice]}).encode())
    assert events_of(told)[0]["choices"][0]["logprobs"] is None
    answer = {"choices": [{"message": {"content": "x"}, "logprobs": {"content": [{"token": "bomb"}]}}]}
    assert b"bomb" not in ruled("openai_chat", BOMB, stream=False).read_answer(json.dumps(answer).encode()).body


ARGUMENTS = ['{"a": "bo', "mb \\u0062", 'omb \\n", "bomb": [1.5, "x"]}']
MASKED = {"a": "# # \n", "#": [1.5, "x"]}


def test_arguments_of_calls_stay_json() -> None:
    """Strings in them are masked, over escapes too, names included; they come when they are whole. A call gets no disclaimer."""
    by = rules(mask("bomb"), disclaimer=NOTE)
    head = {"id": "c", "object": "chat.completion.chunk"}
    calls = [{"tool_calls": [{"index": 1, "function": {"arguments": piece}}]} for piece in ARGUMENTS]
    stream = b"".join(b"data: %b\n\n" % json.dumps(head | {"choices": [{"index": 0, "delta": delta}]}).encode() for delta in calls)
    stream += b"data: %b\n\n" % json.dumps(head | {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}).encode()
    told, _ = shaped("openai_chat", by, stream + b"data: [DONE]\n\n")
    deltas = [one for each in events_of(told) for choice in each["choices"] for one in choice["delta"].get("tool_calls", [])]
    assert {one["index"] for one in deltas} == {1}
    assert json.loads("".join([one["function"]["arguments"] for one in deltas])) == MASKED
    for dialect, data in (("openai_responses", responses(ARGUMENTS, call=True)), ("anthropic_messages", messages(ARGUMENTS, "tool_use"))):
        told, _ = shaped(dialect, by, data)
        assert json.loads(said(dialect, told)) == MASKED
        assert NOTE.encode() not in told


def test_whole_calls_stay_json() -> None:
    """The same in one piece: arguments as text, and as an object."""
    by, arguments = rules(mask("bomb"), disclaimer=NOTE), "".join(ARGUMENTS)
    message = {"content": None, "tool_calls": [{"id": "t", "function": {"name": "f", "arguments": arguments}}]}
    told = json.loads(ruled("openai_chat", by, stream=False).read_answer(json.dumps({"choices": [{"message": message}]}).encode()).body)
    assert json.loads(told["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]) == MASKED
    block = {"type": "tool_use", "id": "t", "name": "f", "input": json.loads(arguments)}
    answer = {"type": "message", "content": [{"type": "text", "text": "Let me look."}, block], "stop_reason": "tool_use"}
    told = json.loads(ruled("anthropic_messages", by, stream=False).read_answer(json.dumps(answer).encode()).body)
    assert (told["content"][1]["input"], told["content"][0]["text"]) == (MASKED, "Let me look.")


def test_arguments_that_never_become_json_are_read_as_text() -> None:
    """Of an answer that was cut in the middle of a call."""
    told, _ = shaped("anthropic_messages", BOMB, messages(['{"a": "bo', "mb"], "tool_use"))
    assert said("anthropic_messages", told) == '{"a": "#'


def test_thinking_that_was_masked_loses_its_signature() -> None:
    """The provider would refuse it; what was not masked keeps its own."""
    told, _ = shaped("anthropic_messages", BOMB, messages(["a bo", "mb"], "thinking"))
    assert said("anthropic_messages", told) == "a #"
    assert [each["delta"]["signature"] for each in events_of(told) if each.get("delta", {}).get("signature")] == [UNSIGNED]
    told, _ = shaped("anthropic_messages", BOMB, messages(["a bo", "at"], "thinking"))
    assert b'"proof"' in told
    answer = {"type": "message", "content": [{"type": "thinking", "thinking": "a bomb", "signature": "proof"}], "stop_reason": "end_turn"}
    body = ruled("anthropic_messages", BOMB, stream=False).read_answer(json.dumps(answer).encode()).body
    assert json.loads(body)["content"][0] == {"type": "thinking", "thinking": "a #", "signature": UNSIGNED}


def test_a_response_tells_the_same_every_time() -> None:
    """Deltas, the end of the text, of its part, of its item and of the response agree, and events are numbered one by one."""
    told = events_of(shaped("openai_responses", rules(mask("bomb"), disclaimer=NOTE), responses(["a bo", "mb", " and bo"]))[0])
    text = f"a # and bo\n\n{NOTE}"
    assert "".join([each["delta"] for each in told if each["type"].endswith(".delta")]) == text
    by_type = {each["type"]: each for each in told}
    assert by_type["response.output_text.done"]["text"] == text
    assert by_type["response.content_part.done"]["part"]["text"] == text
    assert by_type["response.output_item.done"]["item"]["content"][0]["text"] == text
    assert by_type["response.completed"]["response"]["output"][0]["content"][0]["text"] == text
    assert by_type["response.completed"]["response"]["usage"]["output_tokens"] == 2
    assert [each["sequence_number"] for each in told] == list(range(len(told)))
    assert told[-1]["type"] == "response.completed"


def test_a_message_that_goes_on_with_a_call_gets_no_disclaimer() -> None:
    """The answer is not over: the stop of its text is passed on when the next block begins."""
    text = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "I look."}}
    call = {"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "id": "t", "name": "f", "input": {}}}
    ends = [{"type": "content_block_stop", "index": 1}, {"type": "message_delta", "delta": {"stop_reason": "tool_use"}}, {"type": "message_stop"}]
    told = [text, {"type": "content_block_stop", "index": 0}, call, *ends]
    data = b"".join([b"event: %b\ndata: %b\n\n" % (each["type"].encode(), json.dumps(each).encode()) for each in told])
    assert shaped("anthropic_messages", rules(disclaimer=NOTE), data)[0] == data


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_stream_that_is_cut_tells_what_waited_and_nothing_that_came_later(dialect: str) -> None:
    """It ends behind the last event that was covered: with the beginning of a phrase that had to wait there, and the disclaimer."""
    one = ruled(dialect, rules(mask("bomb"), disclaimer=NOTE), stream=True)
    reader = one.StreamReader()
    data = STREAMS[dialect](["a bo", "mb never", " covered"])
    events = reader.feed(data)
    covered = next(place for place, event in enumerate(events) if event.deltas)
    delivered = b"".join([event.raw for event in events[: covered + 1]])
    end = one.write_truncation(reader.head, events[covered].after, [0], "budget", Usage(3, 4))
    assert said(dialect, delivered + end) == f"a bo\n\n{NOTE}"
    assert b"never" not in delivered + end
    plain = MODULES[dialect].StreamReader()
    plain.feed(data)
    assert one.write_truncation(plain.head, None, [0], "budget", None) == MODULES[dialect].write_truncation(plain.head, None, [0], "budget", None)


def test_a_cut_response_agrees_with_itself() -> None:
    """What its end tells of the text is what the client has read, numbered on."""
    one = ruled("openai_responses", rules(mask("bomb"), disclaimer=NOTE), stream=True)
    reader = one.StreamReader()
    events = reader.feed(responses(["a bomb and bo", "mb never"]))
    covered = next(place for place, event in enumerate(events) if event.deltas)
    raw = b"".join([event.raw for event in events[: covered + 1]])
    told = events_of(raw + one.write_truncation(reader.head, events[covered].after, [0], "budget", None))
    assert told[-1]["response"]["output"][0]["content"][0]["text"] == f"a # and bo\n\n{NOTE}"
    assert [each["sequence_number"] for each in told] == list(range(len(told)))


def test_a_stream_without_its_end_tells_what_waited() -> None:
    """Where the upstream leaves out [DONE], or a finish, nothing is lost."""
    one = ruled("openai_chat", rules(mask("bomb"), disclaimer=NOTE), stream=True)
    reader = one.StreamReader()
    events = reader.feed(chat(["a bo"]).split(b"\n\n")[0] + b"\n\n")
    raw = b"".join([event.raw for event in [*events, *reader.end()]]) + reader.ending
    assert said("openai_chat", raw) == f"a bo\n\n{NOTE}"
    assert raw.endswith(b"data: [DONE]\n\n")


def test_usage_on_the_last_chunk_can_still_be_hidden() -> None:
    """What is said before a finish comes in events of its own, so what is taken out of the last one is taken out of that."""
    one = ruled("openai_chat", rules(mask("bomb"), disclaimer=NOTE), stream=True)
    chunk = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}
    events = one.StreamReader().feed(chat(["a bo"]).split(b"\n\n")[0] + b"\n\ndata: %b\n\n" % json.dumps(chunk).encode())
    raw = b"".join([one.write_event(event, True) if event.kind == "chunk" else event.raw for event in events])
    assert said("openai_chat", raw) == f"a bo\n\n{NOTE}"
    assert b"usage" not in raw
    assert events[-1].finishes == [(0, "stop")]


ODD = [b"[]", b"{}", b'{"choices": 5}', b'{"choices": [null, {"delta": 5}, {"delta": {"content": [null, 3]}}]}', b"null", b'"x"']


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("body", ODD)
def test_odd_answers_are_left_as_they_are(dialect: str, body: bytes) -> None:
    """Nothing raises, whatever an upstream sends."""
    by = rules(mask("bomb"), disclaimer=NOTE)
    ruled(dialect, by, stream=False).read_answer(body)
    data = b'event: content_block_delta\ndata: %b\n\ndata: {"type": "response.completed"}\n\n: hi\n\n' % body
    shaped(dialect, by, data)


RECORDED = [(path.parent.name, path) for path in sorted((Path(__file__).parents[2] / "golden").glob("*/*.sse")) if path.parent.name in DIALECTS]


@pytest.mark.parametrize(("dialect", "path"), RECORDED, ids=[f"{name}-{path.stem}" for name, path in RECORDED])
def test_recorded_streams_of_vendors_are_metered_as_before(dialect: str, path: Path) -> None:
    """Under a report they pass byte for byte; under a mask that finds nothing each event still says what it said to the meter."""
    data = path.read_bytes()
    reader = MODULES[dialect].StreamReader()
    plain = [*reader.feed(data), *reader.end()]
    told, _ = shaped(dialect, rules(mask("never said", "report")), data)
    assert told == b"".join([event.raw for event in plain])
    _, events = shaped(dialect, rules(mask("never said"), disclaimer=NOTE), data)
    metered = [(event.kind, event.deltas, event.finishes, event.usage, event.failure) for event in plain]
    ours = [event for event in events if event.kind != "other" or event.deltas]
    theirs = [one for one in metered if one[0] != "other" or one[1]]
    assert [(event.kind, event.deltas, event.finishes, event.usage, event.failure) for event in ours] == theirs


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_bytes_of_a_stream_under_rules(dialect: str) -> None:
    """As they are kept beside the recorded streams."""
    told, _ = shaped(dialect, rules(mask("bomb", text="[BANNED]"), disclaimer=NOTE), STREAMS[dialect](["A b", "omb", ". A bo"]))
    assert told.decode() == (Path(__file__).parents[2] / "golden" / "content_rules" / f"{dialect}.txt").read_text()


def blocks(*texts: str | None) -> bytes:
    """A stream of Anthropic's in which each text is a block of its own, in two pieces; None: a call."""
    told: list[dict[str, Any]] = []
    for index, text in enumerate(texts):
        call = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
        told.append({"type": "content_block_start", "index": index, "content_block": call if text is None else {"type": "text", "text": ""}})
        for piece in filter(None, (text[:1], text[1:]) if text else ()):
            told.append({"type": "content_block_delta", "index": index, "delta": {"type": "text_delta", "text": piece}})
        told.append({"type": "content_block_stop", "index": index})
    told += [{"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}}, {"type": "message_stop"}]
    return b"".join([b"event: %b\ndata: %b\n\n" % (each["type"].encode(), json.dumps(each).encode()) for each in told])


def told_by_block(data: bytes) -> dict[int, str]:
    said: dict[int, str] = {}
    ended: set[int] = set()
    for each in events_of(data):
        if each["type"] == "content_block_delta":
            assert each["index"] not in ended
            said[each["index"]] = said.get(each["index"], "") + each["delta"]["text"]
        elif each["type"] == "content_block_stop":
            ended.add(each["index"])
    return said


@pytest.mark.parametrize("note", ["", NOTE])
def test_a_phrase_over_blocks_of_text_is_found_in_streams(note: str) -> None:
    """What waits at the end of a block goes on in the next, if that is text; what is a phrase by itself is one."""
    end = f"\n\n{note}" if note else ""

    def told(*texts: str | None, by: Any = BOMB.banned_out.phrases) -> dict[int, str]:
        return told_by_block(shaped("anthropic_messages", rules(*by, disclaimer=note), blocks(*texts))[0])

    assert told("a bo", "mb c") == {0: "a ", 1: "# c" + end}
    assert told("a b", "o", "mb") == {0: "a ", 2: "#" + end}
    assert told("a bo", None, "mb") == {0: "a bo", 2: "mb" + end}
    assert told("a bo", "at") == {0: "a ", 1: "boat" + end}
    assert told("a bo") == {0: "a bo" + end}
    assert told("a cat", "fish", by=[Phrase("w", "cat", "mask", words=True, mask="#")]) == {0: "a #", 1: "fish" + end}
    acted: set[str] = set()
    data = blocks("a bo", "mb c")
    assert shaped("anthropic_messages", rules(mask("bomb", "report")), data, acted=acted)[0] == data
    assert acted == {"bomb"}
    events = shaped("anthropic_messages", rules(mask("bomb", "refuse")), data)[1]
    assert events[-1].kind == "refused"
    told_last, events = shaped("anthropic_messages", rules(mask("cat", "refuse")), blocks("a cat", None))
    assert (told_by_block(told_last), events[-1].kind, b"tool_use" in told_last) == ({0: "a "}, "refused", False)


def test_a_phrase_over_blocks_of_a_whole_answer_is_found() -> None:
    """In each of them; a refusal says nothing of either."""
    parts = [{"type": "text", "text": "a bo"}, {"type": "text", "text": "mb c"}]
    answer = json.dumps({"type": "message", "content": parts, "stop_reason": "end_turn"}).encode()
    told = json.loads(ruled("anthropic_messages", BOMB, stream=False).read_answer(answer).body)
    assert [part["text"] for part in told["content"]] == ["a #", "# c"]
    acted: set[str] = set()
    assert ruled("anthropic_messages", rules(mask("bomb", "report")), stream=False, acted=acted).read_answer(answer).body == b""
    assert acted == {"bomb"}
    one = ruled("anthropic_messages", rules(mask("bomb", "refuse")), stream=False)
    one.read_answer(answer)
    assert one.refused == "bomb"
    item = {"type": "message", "content": [{"type": "output_text", "text": "a bo"}, {"type": "output_text", "text": "mb"}]}
    body = json.dumps({"object": "response", "status": "completed", "output": [item]}).encode()
    told = json.loads(ruled("openai_responses", BOMB, stream=False).read_answer(body).body)
    assert [part["text"] for part in told["output"][0]["content"]] == ["a #", "#"]
