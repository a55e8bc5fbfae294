"""Requests of the OpenAI Responses dialect: what is read, what is refused by name, what is sent on."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.dialects.form import BadRequest, Request, Target
from sluicegate.dialects.openai_responses_request import read_request, write_request

TARGET = Target("served", 64, "max_completion_tokens", True)
CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "look", "arguments": '{"q":1}'}
SIGNED = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "gAAAA"}


def body(**fields: Any) -> bytes:
    """A small request with these fields."""
    return json.dumps({"model": "chat", "input": "hi", **fields}).encode()


def read(**fields: Any) -> Request:
    return read_request(body(**fields))


def sent(request: Request, target: Target = TARGET) -> Any:
    return json.loads(write_request(request, target))


def refused(data: bytes) -> BadRequest:
    """The error that these bytes give."""
    with pytest.raises(BadRequest) as info:
        read_request(data)
    return info.value


def message(*parts: Any, role: str = "user") -> dict[str, Any]:
    return {"type": "message", "role": role, "content": list(parts)}


# -- what is read -------------------------------------------------------------------------------------------------------------------------


def test_usual_request() -> None:
    """A text, instructions and a cap."""
    request = read(instructions="Be brief.", max_output_tokens=16, stream=True, temperature=0.5, store=False, metadata={"a": "b"})
    assert (request.model, request.stream, request.choices, request.cap, request.messages) == ("chat", True, 1, 16, 2)
    assert request.texts == ["Be brief.", "hi"]
    assert request.include_usage and not request.unbounded and request.images == 0 and request.thinking == 0


def test_every_text_is_counted() -> None:
    """Messages in all shapes, calls, their results, reasoning, tools, schemas and fields that nobody knows are texts."""
    tools = [{"type": "function", "name": "look", "parameters": {"type": "object"}}, {"type": "custom", "name": "sh"}]
    request = read(
        input=[
            {"role": "developer", "content": "t1"},
            message({"type": "input_text", "text": "t2"}, {"type": "input_text", "text": "t3", "new": "n"}),
            {
                "type": "message",
                "id": "m",
                "status": "completed",
                **message({"type": "output_text", "text": "t4", "annotations": []}, role="assistant"),
            },
            message({"type": "refusal", "refusal": "no"}, role="assistant") | {"name": "ann"},
            CALL,
            {"type": "function_call_output", "call_id": "c1", "output": "t5"},
            {"type": "custom_tool_call", "call_id": "c2", "name": "sh", "input": "ls"},
            {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "t6"}]},
            SIGNED,
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "t7"}]},
        ],
        tools=tools,
        text={"format": {"type": "json_schema", "name": "s", "schema": {}}},
        novel={"x": 1},
    )
    assert not request.unbounded
    assert request.texts == [
        *("t1", "t2\nt3", '{"new":"n"}', "t4", '{"name":"ann"}', "no", json.dumps(CALL), "t5", '{"call_id":"c1"}'),
        json.dumps({"type": "custom_tool_call", "call_id": "c2", "name": "sh", "input": "ls"}),
        *('{"call_id":"c2"}', "t6", "hm", "gAAAA", "t7", '{"x": 1}', json.dumps(tools)),
        '{"format": {"type": "json_schema", "name": "s", "schema": {}}}',
    ]
    assert request.messages == 10


def test_images_are_no_text() -> None:
    """By their bytes or by URL, in messages and in what tools give; base64 is never text (case 91)."""
    image = {"type": "input_image", "image_url": "data:image/png;base64," + "A" * 100_000, "detail": "auto"}
    request = read(input=[message(image, {"type": "input_text", "text": "x"}), {"type": "function_call_output", "call_id": "c", "output": [image]}])
    assert request.images == 2
    assert sum(map(len, request.texts)) < 100


@pytest.mark.parametrize(
    ("fields", "by"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"conversation": {"id": "conv_1"}}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"context_management": [{"type": "compaction"}]}, "context_management"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "file_search", "vector_store_ids": ["vs_1"]}]}, "tools[0].type"),
        ({"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "name": "f"}, {"type": "mcp", "server_label": "s", "server_url": "https://x"}]}, "tools[1].type"),
        ({"tools": [{"type": "image_generation"}]}, "tools[0].type"),
        ({"tools": [{"type": "computer_use_preview"}]}, "tools[0].type"),
        ({"tools": [{"type": "never_heard_of"}]}, "tools[0].type"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
        ({"input": [{"id": "msg_1"}]}, "input[0].type"),
        ({"input": [{"type": "", "role": "user", "content": "x"}]}, "input[0].type"),
        ({"input": [{"type": "web_search_call", "id": "ws_1", "status": "completed"}]}, "input[0].type"),
        ({"input": [{"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot"}}]}, "input[0].type"),
        ({"input": [{"type": "tool_search_call", "arguments": {"q": 1}}]}, "input[0].type"),
        ({"input": [{"type": "reasoning", "id": "rs_1", "summary": []}]}, "input[0]"),
        ({"input": [message({"type": "input_image", "file_id": "file_1", "detail": "low"})]}, "input[0].content[0]"),
        ({"input": [message({"type": "input_file", "file_id": "file_1"})]}, "input[0].content[0]"),
        ({"input": [message({"type": "input_file", "file_url": "https://example.org/a.pdf"})]}, "input[0].content[0]"),
        ({"input": [message({"type": "input_file", "file_data": "data:application/pdf;base64,AA==", "filename": "a"})]}, "input[0].content[0]"),
        ({"input": [message({"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}})]}, "input[0].content[0]"),
    ],
)
def test_content_that_is_not_in_the_request(fields: dict[str, Any], by: str) -> None:
    """What the provider has kept, fetches or runs for itself cannot be bounded by the body, and the field is named (case 128)."""
    request = read(**fields)
    assert request.unbounded
    assert request.unbounded_by == by


def test_a_request_without_input_needs_something_to_answer() -> None:
    """A stored prompt, a conversation or an earlier response; else the input is missing."""
    for fields in ({"prompt": {"id": "p"}}, {"previous_response_id": "r"}, {"conversation": "c"}):
        assert read_request(json.dumps({"model": "chat", **fields}).encode()).unbounded
    for data in (b'{"model":"chat"}', b'{"model":"chat","input":[]}', b'{"model":"chat","input":null,"conversation":null}'):
        assert refused(data).param == "input"


def test_nothing_of_it_makes_the_input_unbounded() -> None:
    """Fields that are absent in other words, and settings of the answer."""
    request = read(
        previous_response_id=None, conversation=None, prompt=None, background=False, tools=[], context_management=None, truncation="auto",
        include=["reasoning.encrypted_content"], service_tier="flex", prompt_cache_key="k", safety_identifier="u", top_logprobs=2, max_tool_calls=3,
        parallel_tool_calls=False, tool_choice="required", text={"format": {"type": "text"}, "verbosity": "low"},
        reasoning={"effort": "high", "summary": "auto"}, stream_options={"include_obfuscation": False}, user="u",
    )  # fmt: skip
    assert not request.unbounded
    assert request.texts == ["hi"]


@pytest.mark.parametrize("name", ["max_output_tokens", "max_tokens", "max_completion_tokens", "max_new_tokens", "n_predict"])
def test_caps(name: str) -> None:
    """The cap by any name that an upstream might obey is held, the smallest counts, and it is sent as the one that this dialect knows."""
    assert read(**{name: 50}).cap == 50
    assert read(**{"n_predict": 90, name: 50, "temperature": 1}).cap == 50
    both = read(max_output_tokens=20, max_tokens=700)
    assert (both.cap, both.cap_by, read(max_output_tokens=20, max_tokens=20).cap_by) == (20, "max_output_tokens", "max_output_tokens")
    assert sent(both, Target("served", None, "max_tokens", True)) == {"model": "served", "input": "hi", "max_output_tokens": 20}
    request = read(**{name: 50})
    assert sent(request, Target("served", None, "max_tokens", True)) == {"model": "served", "input": "hi", "max_output_tokens": 50}
    assert sent(request)["max_output_tokens"] == 64
    for wrong in (0, -5, 1.5, "10", [], True, 10**17):
        assert refused(body(**{name: wrong})).param == name
    assert read(**{name: None}).cap is None


def test_thinking_budgets() -> None:
    """Those of other vendors are known."""
    assert read(reasoning={"max_tokens": 100}).thinking == 100
    assert read(thinking={"type": "enabled", "budget_tokens": 200}).thinking == 200
    assert read(reasoning={"effort": "high"}).thinking == 0


def test_what_a_provider_may_add_or_hide() -> None:
    """Texts of its own on tools and on the shape of the answer; the output of what it runs itself."""
    usual = read()
    assert (usual.own_prompts, usual.shown) == (0, True)
    asked = read(tools=[{"type": "function", "name": "f"}], text={"format": {"type": "json_object"}})
    assert (asked.own_prompts, asked.shown) == (2, True)
    assert not read(tools=[{"type": "web_search"}]).shown


# -- what is refused ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"background": True}, "background"),
        ({"background": "false"}, "background"),
        ({"n": 2}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"n_cmpl": 0}, "n_cmpl"),
        ({"models": ["a"]}, "models"),
        ({"stream": "false"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"stream_options": 5}, "stream_options"),
        ({"model": []}, "model"),
        ({"model": ""}, "model"),
        ({"input": 5}, "input"),
        ({"input": {"role": "user"}}, "input"),
        ({"input": ["x"]}, "input[0]"),
        ({"input": [None]}, "input[0]"),
        ({"input": [{}]}, "input[0].role"),
        ({"input": [{"role": "bot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": None}]}, "input[0].content"),
        ({"input": [message({"type": "input_text", "text": None})]}, "input[0].content[0].text"),
        ({"input": [message({"type": "input_text", "text": 5})]}, "input[0].content[0].text"),
        ({"input": [message({"type": "input_image"})]}, "input[0].content[0].image_url"),
        ({"input": [message({"type": "input_image", "image_url": {"url": "x"}})]}, "input[0].content[0].image_url"),
        ({"input": [message({"text": "x"})]}, "input[0].content[0].type"),
        ({"input": [CALL | {"arguments": {}}]}, "input[0].arguments"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": ""}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": {"a": 1}}]}, "input[0].output"),
        ({"input": [{"type": "reasoning", "summary": "x"}]}, "input[0].summary"),
        ({"input": [{"type": 7}]}, "input[0].type"),
        ({"instructions": ["x"]}, "instructions"),
        ({"tools": {}}, "tools"),
        ({"tools": [{}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0].name"),
        ({"text": "x"}, "text"),
        ({"text": {"format": "json"}}, "text.format"),
        ({"temperature": "1"}, "temperature"),
        ({"max_tool_calls": 0}, "max_tool_calls"),
        ({"store": "no"}, "store"),
        ({"include": "x"}, "include"),
        ({"metadata": []}, "metadata"),
        ({"previous_response_id": 7}, "previous_response_id"),
        ({"Previous_Response_Id": "r"}, "Previous_Response_Id"),
        ({"Max_Output_Tokens": 5}, "Max_Output_Tokens"),
        ({"extra_body": {"n": 2}}, "extra_body"),
        ({"reasoning": {"max_tokens": -1}}, "reasoning.max_tokens"),
    ],
)
def test_refusals_name_the_field(fields: dict[str, Any], param: str) -> None:
    """A wrong type, an impossible number, a hidden multiplier or cap, a name in the wrong case (cases 12, 92, 104, 105, 111, 114, 119)."""
    assert refused(body(**fields)).param == param


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"null", b"1", b'"x"', b'{"a":', b"\xff", b'{"model":"\xff"}', b'{"model":"m","input":' + b"[" * 100_000]
)
def test_what_is_no_object(data: bytes) -> None:
    """A 400, never a crash (cases 88 and 89)."""
    assert refused(data).message


JSON = st.recursive(st.none() | st.booleans() | st.integers(-5, 2**70) | st.floats(allow_nan=False) | st.text(max_size=5), lambda inner: (
    st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "role", "content", "text", "id", "name", "call_id", "output"]), inner)
), max_leaves=8)  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(st.dictionaries(st.sampled_from(["input", "tools", "text", "reasoning", "prompt", "tool_choice", "stream", "n", "new"]), JSON))
def test_only_bad_request_is_raised(fields: dict[str, Any]) -> None:
    """Whatever stands in the fields: a request that can be written, or a 400."""
    try:
        request = read(**fields)
    except BadRequest:
        return
    assert sent(request)["model"] == "served"


# -- what is sent -------------------------------------------------------------------------------------------------------------------------


def test_everything_else_passes_as_it_came() -> None:
    """Unknown fields, numbers as they were written, and the order of items; no field of another dialect is added (case 49 does not apply here)."""
    data = b'{"model":"chat","input":[{"role":"user","content":"hi","new":1.50}],"novel":[1e3],"stream":true,"max_output_tokens":9}'
    written = write_request(read_request(data), TARGET)
    assert b'"input":[{"role":"user","content":"hi","new":1.50}]' in written
    assert json.loads(written) == json.loads(data) | {"model": "served", "max_output_tokens": 64}
    assert b'"novel":[1e3]' in written
    assert b"stream_options" not in written


def test_fields_that_a_provider_does_not_know() -> None:
    """Left out, or sent by the name that it knows."""
    target = Target("served", None, "max_tokens", True, rejects=("metadata",), renames=(("user", "end_user"),))
    assert sent(read(metadata={}, user="u"), target) == {"model": "served", "input": "hi", "end_user": "u"}


def test_reasoning_that_the_provider_could_not_read_is_left_out() -> None:
    """A signature of another dialect's always; all reasoning where the model is another than the one that probably thought it (case 70)."""
    ours = SIGNED | {"encrypted_content": "sluicegate:thinking:abc"}
    request = read(input=[SIGNED, ours, CALL, {"type": "reasoning", "id": "rs_2", "summary": []}])
    assert [item.get("encrypted_content") for item in sent(request)["input"]] == ["gAAAA", None, None]
    foreign = Target("served", 64, "max_tokens", True, foreign=True)
    assert sent(request, foreign)["input"] == [CALL]
    assert sent(read(), foreign)["input"] == "hi"
