"""Responses in the content form: what a request says, and answers of other dialects as a Responses client reads them."""

import json
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from openai.types.responses import Response, ResponseStreamEvent

from sluicegate.core.usage import Usage
from sluicegate.dialects import anthropic_content, anthropic_messages, openai_chat, openai_chat_content
from sluicegate.dialects.content import (
    Audio,
    Begin,
    Choice,
    Document,
    Finish,
    Image,
    Inexpressible,
    Message,
    Piece,
    Prompt,
    RedactedBlock,
    RedactedThinking,
    Refusal,
    RefusalDelta,
    Reply,
    Shape,
    SignatureDelta,
    Text,
    TextDelta,
    Thinking,
    ThinkingDelta,
    Tool,
    ToolBegin,
    ToolChoice,
    ToolDelta,
    ToolResult,
    ToolUse,
)
from sluicegate.dialects.form import BadRequest, Request, Target
from sluicegate.dialects.openai_responses import StreamReader, read_answer, write_truncation
from sluicegate.dialects.openai_responses_content import Writer, read_prompt, write_reply
from sluicegate.dialects.openai_responses_request import read_request

_TYPES = {get_args(known.model_fields["type"].annotation)[0]: known for known in get_args(get_args(ResponseStreamEvent)[0])}
BEGIN = Begin("chatcmpl-a1", "served", 1700000000)


def request(**fields: Any) -> Request:
    return read_request(json.dumps({"model": "chat", "input": "hi", **fields}).encode())


def prompt(**fields: Any) -> Prompt:
    return read_prompt(request(**fields))


def read(written: bytes) -> list[Any]:
    """The JSON of all events."""
    return [json.loads(event.partition(b"\ndata: ")[2]) for event in written.split(b"\n\n") if event]


def datas(written: bytes) -> list[Any]:
    """Likewise, each as the official package's types demand."""
    events = read(written)
    for event in events:
        _TYPES[event["type"]].model_validate(event)
    return events


def told(pieces: list[Piece], usage: Usage | None = None, **fields: Any) -> list[Any]:
    """The events of a whole stream."""
    writer = Writer(request(stream=True, **fields))
    events = datas(b"".join(writer.write([piece]) for piece in [BEGIN, *pieces]) + writer.last(usage))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def names(events: list[Any]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


# -- what a request says ------------------------------------------------------------------------------------------------------------------


def test_a_text() -> None:
    """Instructions are the system's, the input is the user's."""
    assert prompt(instructions="Be brief.").messages == [Message("system", [Text("Be brief.")]), Message("user", [Text("hi")])]


def test_a_conversation() -> None:
    """All that the assistant says in a row is one message, results in a row are one; roles stay where they stood; empty texts are left out (68)."""
    thought = {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "sluicegate:thinking:SIG"}
    hidden = {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "sluicegate:redacted:DATA"}
    said = prompt(
        input=[
            {"role": "developer", "content": "d"},
            {"role": "user", "content": [{"type": "input_text", "text": "q"}, {"type": "input_text", "text": ""}]},
            {"role": "user", "content": ""},
            thought,
            hidden,
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}, {"type": "refusal", "refusal": "no"}]},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"x": 1}'},
            {"type": "function_call", "call_id": "c2", "name": "g", "arguments": ""},
            {"type": "function_call_output", "call_id": "c1", "output": "one"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_image", "image_url": "https://x/i.png"}]},
            {"role": "system", "content": "s"},
        ]
    )
    assert said.messages == [
        Message("developer", [Text("d")]),
        Message("user", [Text("q")]),
        Message(
            "assistant",
            [Thinking("hm", "SIG"), RedactedThinking("DATA"), Text("a"), Refusal("no"), ToolUse("c1", "f", '{"x": 1}'), ToolUse("c2", "g", "{}")],
        ),
        Message("user", [ToolResult("c1", [Text("one")]), ToolResult("c2", [Image("https://x/i.png")])]),
        Message("system", [Text("s")]),
    ]


def test_reasoning_of_another_provider_is_left_behind() -> None:
    """What is not marked as ours proves nothing (case 70)."""
    foreign = {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "gAAAA"}
    open_model = {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    assert prompt(input=[foreign, open_model, {"role": "user", "content": "q"}]).messages == [Message("user", [Text("q")])]


@pytest.mark.parametrize(
    ("part", "want"),
    [
        ({"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"}, Image("", "image/png", "AA==", "low")),
        ({"type": "input_image", "image_url": "data:image/jpg;base64,AA=="}, Image("", "image/jpeg", "AA==")),
        ({"type": "input_image", "image_url": "https://x/i.png", "detail": "auto"}, Image("https://x/i.png", detail="auto")),
        ({"type": "input_file", "file_data": "data:application/pdf;base64,AA==", "filename": "a"}, Document("", "application/pdf", "AA==", "", "a")),
        ({"type": "input_file", "file_data": "AA=="}, Document("", "application/pdf", "AA==")),
        ({"type": "input_file", "file_url": "https://x/a.pdf"}, Document("https://x/a.pdf")),
        ({"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}, Audio("AA==", "wav")),
    ],
)  # fmt: skip
def test_parts(part: dict[str, Any], want: Any) -> None:
    """Images, files and audio by their bytes or by URL (case 73)."""
    assert prompt(input=[{"role": "user", "content": [part]}]).messages == [Message("user", [want])]


def test_settings() -> None:
    """What tunes an answer and what the other dialects know of it; the rest is named."""
    said = prompt(
        temperature=0.5, top_p=0.9, parallel_tool_calls=False, user="u", reasoning={"effort": "high", "summary": "auto"}, store=False,
        text={"format": {"type": "json_schema", "name": "n", "schema": {"a": 1.50}, "strict": True}, "verbosity": "low"}, truncation="auto",
        metadata={"a": "b"}, service_tier="flex", prompt_cache_key="k", max_output_tokens=9, include=["reasoning.encrypted_content"],
        max_tool_calls=2,
    )  # fmt: skip
    assert (said.temperature, said.top_p, said.parallel_tool_calls, said.user, said.effort) == (0.5, 0.9, False, "u", "high")
    assert said.shape == Shape(Raw(b'{"a": 1.5}'), "n", "", strict=True)
    assert said.left_out == ["metadata", "prompt_cache_key", "service_tier", "truncation", "reasoning.summary", "text.verbosity"]
    assert prompt(text={"format": {"type": "json_object"}}).shape == Shape()
    assert prompt(text={"format": {"type": "text"}}, truncation="disabled") == Prompt([Message("user", [Text("hi")])])
    assert prompt(safety_identifier="s").user == "s"
    budget = prompt(thinking={"type": "enabled", "budget_tokens": 2000})
    assert (budget.thinking, budget.thinking_budget) == ("on", 2000)


TOOLS = [{"type": "function", "name": name, "description": "d", "parameters": {"type": "object"}, "strict": False} for name in ("f", "g")]


@pytest.mark.parametrize(
    ("choice", "want", "tools"),
    [
        (None, None, "fg"),
        ("auto", ToolChoice("auto"), "fg"),
        ("required", ToolChoice("any"), "fg"),
        ("none", ToolChoice("none"), "fg"),
        ({"type": "function", "name": "g"}, ToolChoice("tool", "g"), "fg"),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g"}]}, ToolChoice("any"), "g"),
    ],
)
def test_tools(choice: Any, want: ToolChoice | None, tools: str) -> None:
    """Functions, and which of them may or must be called."""
    said = prompt(tools=TOOLS, tool_choice=choice)
    assert said.tools == [Tool(name, "d", Raw(b'{"type": "object"}'), strict=False) for name in tools]
    assert said.tool_choice == want


def test_a_tool_without_parameters() -> None:
    """It has no arguments."""
    assert prompt(tools=[{"type": "function", "name": "f", "parameters": None}]).tools == [Tool("f", "", Raw(b'{"type":"object","properties":{}}'))]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "r"}, "previous_response_id"),
        ({"conversation": "c"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"context_management": [{"type": "compaction"}]}, "context_management"),
        ({"store": True}, "store"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"moderation": {"model": "m"}}, "moderation"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "custom", "name": "f"}]}, "tools[0].type"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice"),
        ({"tool_choice": "always"}, "tool_choice"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"input": [{"type": "item_reference", "id": "m"}]}, "input[0].type"),
        ({"input": [{"type": "custom_tool_call", "call_id": "c", "name": "f", "input": ""}]}, "input[0].type"),
        ({"input": [{"type": "computer_call_output", "call_id": "c", "output": {}}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]}, "input[0].content[0].file_id"),
        ({"input": [{"role": "user", "content": [{"type": "input_video"}]}]}, "input[0].content[0]"),
        (
            {"input": [{"type": "function_call_output", "call_id": "c", "output": [{"type": "input_audio", "input_audio": {}}]}]},
            "input[0].output",
        ),
        ({"tools": [{"type": "function", "name": "f", "strict": "x"}]}, "tools[0].strict"),
    ],
)
def test_what_cannot_be_said(fields: dict[str, Any], param: str) -> None:
    """What a provider keeps, runs or gives beside an answer: a 400 that names the field; another deployment may have it."""
    with pytest.raises(BadRequest) as info:
        prompt(**fields)
    assert info.value.param == param
    assert isinstance(info.value, Inexpressible) or param == "tools[0].strict"


@pytest.mark.parametrize(
    "item", [{"role": "user", "content": ""}, {"role": "assistant", "content": []}, {"type": "reasoning", "encrypted_content": "x"}]
)
def test_an_input_that_says_nothing(item: dict[str, Any]) -> None:
    """No provider has anything to answer then."""
    with pytest.raises(BadRequest) as info:
        prompt(input=[item])
    assert info.value.param == "input"


def test_a_stored_prompt_without_input() -> None:
    """It is refused for what it is."""
    with pytest.raises(Inexpressible) as info:
        read_prompt(read_request(b'{"model":"chat","prompt":{"id":"p"}}'))
    assert info.value.param == "prompt"


TEXT = st.text(max_size=6)
PICTURE = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
ITEMS = st.lists(
    st.one_of(
        st.builds(lambda role, text: [{"role": role, "content": text}], st.sampled_from(["user", "assistant", "developer", "system"]), TEXT),
        st.builds(lambda text: [{"role": "user", "content": [{"type": "input_text", "text": text}, PICTURE]}], TEXT),
        st.builds(lambda ids: [made for id_ in ids for made in called(id_)], st.lists(st.uuids().map(str), min_size=1, max_size=3)),
        st.builds(lambda proof, text: [thought(proof, text)], st.sampled_from(["sluicegate:thinking:S", "sluicegate:redacted:D", "gAAAA"]), TEXT),
    ),
    max_size=5,
)


def called(id_: str) -> list[dict[str, Any]]:
    """A call and what it gave."""
    call = {"type": "function_call", "call_id": id_, "name": "f", "arguments": "{}"}
    return [call, {"type": "function_call_output", "call_id": id_, "output": "given"}]


def thought(proof: str, text: str) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}], "encrypted_content": proof}


@settings(max_examples=60, deadline=None)
@given(ITEMS, st.sampled_from([None, "auto", "required"]), st.booleans())
def test_what_is_sent_on_is_a_request_of_the_other_dialect(drawn: list[list[dict[str, Any]]], choice: str | None, stream: bool) -> None:
    """As strictly as that dialect is read here: every call with its result, every picture once, and no text that was not there."""
    items = [*(item for some in drawn for item in some), {"role": "user", "content": "last"}]
    asked = request(input=items, tools=TOOLS, tool_choice=choice, stream=stream, instructions="Be kind.", max_output_tokens=50)
    target = Target("served", 40, "max_tokens", stream_usage=True)
    for dialect, content in ((openai_chat, openai_chat_content), (anthropic_messages, anthropic_content)):
        sent = dialect.read_request(content.write_prompt(read_prompt(asked), asked, target))
        assert (sent.model, sent.cap, sent.stream, sent.unbounded) == ("served", 40, stream, "")
        assert sent.images == asked.images
        words = " ".join(sent.texts)
        assert "last" in words and "Be kind." in words
        assert words.count("given") == sum(item.get("output") == "given" for item in items)


# -- whole answers ------------------------------------------------------------------------------------------------------------------------

PARTS = [Thinking("hm", "SIG"), RedactedThinking("DATA"), Text("a"), Text("b"), Refusal("no"), ToolUse("c1", "f", '{"x":1}'), ToolUse("c2", "g", "")]


def test_a_whole_answer() -> None:
    """Every part is an item or a part of one, with ids of the answer's own; usage has its details; what was asked for is repeated as it came."""
    asked = request(tools=TOOLS, metadata={"k": "v"}, max_output_tokens=50, instructions="i")
    usage = Usage(9, 4, cached_tokens=3, cache_write_tokens=2, reasoning_tokens=1)
    written = json.loads(write_reply(Reply("chatcmpl-a1", "served", 1700000000, [Choice(0, PARTS, "tool_calls")], usage), asked))
    Response.model_validate(written)
    text = {"type": "output_text", "annotations": [], "logprobs": []}
    summary = [{"type": "summary_text", "text": "hm"}]
    assert written["output"] == [
        {"id": "rs_a1_0", "type": "reasoning", "status": "completed", "summary": summary, "encrypted_content": "sluicegate:thinking:SIG"},
        {"id": "rs_a1_1", "type": "reasoning", "status": "completed", "summary": [], "encrypted_content": "sluicegate:redacted:DATA"},
        {
            **{"id": "msg_a1_2", "type": "message", "status": "completed", "role": "assistant"},
            "content": [text | {"text": "a"}, text | {"text": "b"}, {"type": "refusal", "refusal": "no"}],
        },
        {"id": "fc_a1_3", "type": "function_call", "status": "completed", "call_id": "c1", "name": "f", "arguments": '{"x":1}'},
        {"id": "fc_a1_4", "type": "function_call", "status": "completed", "call_id": "c2", "name": "g", "arguments": "{}"},
    ]
    assert (written["id"], written["object"], written["created_at"], written["model"], written["status"]) == (
        *("resp_a1", "response", 1700000000, "served", "completed"),
    )
    assert (written["tools"], written["metadata"], written["max_output_tokens"], written["instructions"]) == (TOOLS, {"k": "v"}, 50, "i")
    assert (written["store"], written["tool_choice"], written["previous_response_id"]) == (False, "auto", None)
    assert written["usage"] == {
        **{"input_tokens": 9, "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 2}},
        **{"output_tokens": 4, "output_tokens_details": {"reasoning_tokens": 1}, "total_tokens": 13},
    }


@pytest.mark.parametrize(
    ("finish", "reason"),
    [("length", "max_output_tokens"), ("content_filter", "content_filter"), ("steered", "steered")],
)
def test_an_answer_that_is_no_plain_success(finish: str, reason: str) -> None:
    """It is incomplete for that reason, and so is its last item: a cut call keeps its arguments as they are (cases 69 and 75)."""
    parts = [Text("a"), ToolUse("c1", "f", '{"x')]
    written = json.loads(write_reply(Reply("r", "m", 1, [Choice(0, parts, finish)]), request()))
    assert (written["status"], written["incomplete_details"]) == ("incomplete", {"reason": reason})
    assert [item["status"] for item in written["output"]] == ["completed", "incomplete"]
    assert written["output"][1]["arguments"] == '{"x'
    end = told([TextDelta(0, "a"), ToolBegin(0, 0, "c1", "f"), ToolDelta(0, 0, '{"x'), Finish(0, finish)])[-1]
    assert (end["type"], end["response"]["incomplete_details"]) == ("response.incomplete", {"reason": reason})
    assert [item["status"] for item in end["response"]["output"]] == ["completed", "incomplete"]
    assert end["response"]["output"][1]["arguments"] == '{"x'


def test_an_answer_without_choices() -> None:
    """An empty response."""
    written = json.loads(write_reply(Reply("", "m", 1, []), request()))
    assert (written["output"], written["status"]) == ([], "completed")


# -- streams ------------------------------------------------------------------------------------------------------------------------------


def test_a_streamed_text() -> None:
    """Created, in progress, an item, its part, the deltas, each of them whole, the response whole."""
    events = told([TextDelta(0, "Hel"), TextDelta(0, "lo"), Finish(0, "stop")], Usage(3, 2), metadata={"k": "v"})
    assert names(events) == [
        *("created", "in_progress", "output_item.added", "content_part.added", "output_text.delta", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done", "completed"),
    ]
    assert [event["delta"] for event in events if event["type"].endswith(".delta")] == ["Hel", "lo"]
    final = events[-1]["response"]
    assert final["output"] == [events[-2]["item"]]
    assert final["output"][0]["content"] == [{"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}]
    assert (final["usage"]["total_tokens"], final["metadata"], final["id"], final["created_at"]) == (5, {"k": "v"}, "resp_a1", 1700000000)
    assert events[0]["response"]["output"] == [] and events[0]["response"]["status"] == "in_progress"


def test_streamed_thinking_and_calls() -> None:
    """Each stretch of thinking is an item with its signature; calls that interleave stay apart, one without arguments gets "{}" (67, 72)."""
    events = told([
        ThinkingDelta(0, "a"), ThinkingDelta(0, "b"), SignatureDelta(0, "S1"), SignatureDelta(0, "x"), ThinkingDelta(0, "c"), SignatureDelta(0, "S2"),
        RedactedBlock(0, "D"), TextDelta(0, "t"), RefusalDelta(0, "no"), ToolBegin(0, 0, "c1", "f"), ToolBegin(0, 1, "c2", "g"),
        ToolDelta(0, 1, "{"), ToolDelta(0, 0, '{"x":'), ToolDelta(0, 1, "}"), ToolDelta(0, 0, "1}"), ToolBegin(0, 2, "c3", "h"),
        Finish(0, "tool_calls"),
    ])  # fmt: skip
    output = events[-1]["response"]["output"]
    assert [(item["type"], item["status"]) for item in output] == [
        *[("reasoning", "completed")] * 3,
        ("message", "completed"),
        *[("function_call", "completed")] * 3,
    ]
    assert [item.get("encrypted_content", "").removeprefix("sluicegate:") for item in output[:3]] == ["thinking:S1x", "thinking:S2", "redacted:D"]
    assert [item["summary"] and item["summary"][0]["text"] for item in output[:3]] == ["ab", "c", []]
    assert [part.get("text") or part.get("refusal") for part in output[3]["content"]] == ["t", "no"]
    assert [(item["call_id"], item["arguments"]) for item in output[4:]] == [("c1", '{"x":1}'), ("c2", "{}"), ("c3", "{}")]
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == output
    ids = [item["id"] for item in output]
    assert len(set(ids)) == len(ids)


def test_what_comes_after_the_end_or_is_another_answer() -> None:
    """A response is one answer with one end; usage that nobody reported is nothing."""
    events = told([TextDelta(0, "a"), TextDelta(1, "b"), Finish(0, "stop"), TextDelta(0, "c"), Finish(0, "length")])
    assert events[-1]["type"] == "response.completed"
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "a"
    assert events[-1]["response"]["usage"]["total_tokens"] == 0
    assert names(told([TextDelta(0, "a")]))[-1] == "completed"


PIECES = st.lists(
    st.sampled_from(["t", "t", "think", "sign", "redacted", "refuse", "call", "arguments"]).flatmap(
        lambda kind: st.tuples(st.just(kind), st.sampled_from(["a", "b ", "é\u2028", '"'])),
    ),
    max_size=12,
)


def pieces_of(drawn: list[tuple[str, str]]) -> list[Piece]:
    """Well-formed pieces: arguments only of calls that have begun."""
    pieces: list[Piece] = []
    calls = 0
    for kind, text in drawn:
        if kind == "call":
            pieces.append(ToolBegin(0, calls, f"call_{calls}", "f"))
            calls += 1
        elif kind == "arguments":
            pieces += [ToolDelta(0, calls - 1, text)] if calls else []
        else:
            made = {"t": TextDelta, "think": ThinkingDelta, "sign": SignatureDelta, "redacted": RedactedBlock, "refuse": RefusalDelta}[kind]
            pieces.append(made(0, text))
    return pieces


@settings(max_examples=60, deadline=None)
@given(PIECES, st.sampled_from(["stop", "length", "tool_calls"]), st.integers(0, 12))
def test_any_stream_is_sound_and_can_be_cut_anywhere(drawn: list[tuple[str, str]], finish: str, cut: int) -> None:
    """Every event is valid, a reader of this dialect reads the same output back, and where the stream is cut all that was told is closed."""
    pieces = pieces_of(drawn)
    writer = Writer(request(stream=True))
    written = [writer.write([piece]) for piece in [BEGIN, *pieces]]
    writers = Writer(request(stream=True))
    part = b"".join(writers.write([piece]) for piece in [BEGIN, *pieces[:cut]])
    stream = b"".join([*written, writer.write([Finish(0, finish)]), writer.last(Usage(5, 7))])
    datas(stream)
    reader = StreamReader()
    events = reader.feed(stream)
    final = json.loads(events[-1].raw.partition(b"\ndata: ")[2])["response"]
    output = "".join(sorted("".join(delta.text for event in events for delta in event.deltas)))
    assert output == "".join(sorted("".join(delta.text for delta in read_answer(json.dumps(final).encode()).deltas)))
    assert events[-1].kind == "done" and events[-2].usage == Usage(5, 7, no_reasoning=True)
    ended = part + write_truncation(writers.head, writers.after, [0], "budget", Usage(5, 7))
    told_so_far = datas(ended)
    opened = [event["output_index"] for event in told_so_far if event["type"] == "response.output_item.added"]
    closed = [event["output_index"] for event in told_so_far if event["type"] == "response.output_item.done"]
    assert sorted(closed) == opened
    assert [event["sequence_number"] for event in told_so_far] == list(range(len(told_so_far)))
    assert told_so_far[-1]["response"]["sluicegate"] == {"truncated": "budget"}


def test_a_stream_that_is_cut_before_it_began() -> None:
    """Nothing was told, so the response is created first."""
    writer = Writer(request(stream=True))
    assert writer.after is None
    assert [event["type"] for event in read(write_truncation(writer.head, None, [0], "budget", None))] == ["response.created", "response.incomplete"]


def test_a_stream_that_is_cut_after_its_finish() -> None:
    """It ends as it would have: there is nothing that the client does not have."""
    writer = Writer(request(stream=True))
    written = writer.write([BEGIN, TextDelta(0, "a"), Finish(0, "stop")])
    events = datas(written + write_truncation(writer.head, writer.after, [], "budget", Usage(1, 1)))
    assert (events[-1]["type"], events[-1]["response"]["status"]) == ("response.completed", "completed")
    assert "sluicegate" not in events[-1]["response"]


def test_what_was_held_back_is_not_told() -> None:
    """The state after an event is that after this event, whatever was written since."""
    writer = Writer(request(stream=True))
    told_so_far = writer.write([BEGIN, ThinkingDelta(0, "a")])
    after = writer.after
    writer.write([SignatureDelta(0, "S"), TextDelta(0, "b"), Finish(0, "stop")])
    events = datas(told_so_far + write_truncation(writer.head, after, [0], "budget", Usage()))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    output = events[-1]["response"]["output"]
    assert [(item["type"], item["status"], item["encrypted_content"]) for item in output] == [("reasoning", "incomplete", "sluicegate:thinking:")]


# -- round trips --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [False, True])
def test_an_answer_comes_back_in_the_next_request(streamed: bool) -> None:
    """The items of an answer, given back as they are, say what the answer said: texts, calls, thinking and its signature to the byte; and they are
    input that can be bounded."""
    pieces = [ThinkingDelta(0, "h\u2028m"), SignatureDelta(0, "SIG+/=="), RedactedBlock(0, "DATA"), TextDelta(0, "a"), RefusalDelta(0, "no")]
    pieces += [ToolBegin(0, 0, "c1", "f"), ToolDelta(0, 0, '{"x":1}'), Finish(0, "tool_calls")]
    parts = [Thinking("h\u2028m", "SIG+/=="), RedactedThinking("DATA"), Text("a"), Refusal("no"), ToolUse("c1", "f", '{"x":1}')]
    if streamed:
        output = told(pieces)[-1]["response"]["output"]
    else:
        output = json.loads(write_reply(Reply("r", "m", 1, [Choice(0, parts, "tool_calls")]), request()))["output"]
    again = request(input=[{"role": "user", "content": "q"}, *output])
    assert not again.unbounded
    assert read_prompt(again).messages == [Message("user", [Text("q")]), Message("assistant", parts)]
