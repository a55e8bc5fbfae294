"""Requests of the OpenAI chat dialect: what is read, what is refused by name, what is sent on."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.dialects.form import BadRequest, Request, Target
from sluicegate.dialects.openai_request import CAPS, read_request, write_request

USER = {"role": "user", "content": "hi"}
TARGET = Target("served", 64, "max_tokens", True)


def body(**fields: Any) -> bytes:
    """A small request with these fields."""
    return json.dumps({"model": "chat", "messages": [USER], **fields}).encode()


def read(**fields: Any) -> Request:
    return read_request(body(**fields))


def sent(request: Request, target: Target = TARGET) -> Any:
    return json.loads(write_request(request, target))


def refused(data: bytes) -> BadRequest:
    """The error that these bytes give."""
    with pytest.raises(BadRequest) as info:
        read_request(data)
    return info.value


# -- what is read -------------------------------------------------------------------------------------------------------------------------


def test_usual_request() -> None:
    """Two messages and a cap."""
    request = read_request(
        b'{"model":"chat","messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"hi"}],"max_tokens":16,"stream":true}'
    )
    assert (request.model, request.stream, request.choices, request.cap, request.messages) == ("chat", True, 1, 16, 2)
    assert request.texts == ["Be brief.", "hi"]
    assert not request.include_usage and not request.unbounded and request.images == 0


def test_every_text_is_counted() -> None:
    """Parts, names, calls with their arguments, refusals, reasoning, tools, functions and schemas are texts."""
    request = read(
        messages=[
            {"role": "system", "content": [{"type": "text", "text": "t1"}, {"type": "text", "text": "t2"}]},
            {"role": "user", "content": "t3", "name": "ann"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"q":1}'}}],
                "refusal": "no",
                "reasoning_content": "hmm",
            },
            {"role": "assistant", "function_call": {"name": "old", "arguments": "{}"}},
            {"role": "assistant", "tool_calls": [{"id": "c2", "type": "custom", "custom": {"name": "sh", "input": "ls"}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "t4"},
        ],
        tools=[{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}],
        functions=[{"name": "old"}],
        response_format={"type": "json_schema", "json_schema": {"name": "s"}},
    )
    assert request.texts == [
        *("t1\nt2", "t3", "ann", '[{"id":"c1","type":"function","function":{"name":"look","arguments":"{\\"q\\":1}"}}]', "no", "hmm"),
        *('{"name":"old","arguments":"{}"}', '[{"id":"c2","type":"custom","custom":{"name":"sh","input":"ls"}}]', "t4", "c1"),
        '[{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]',
        '[{"name": "old"}]',
        '{"type": "json_schema", "json_schema": {"name": "s"}}',
    ]
    assert request.messages == 6


@pytest.mark.parametrize("message", [{"content": None}, {}])
def test_content_may_be_absent_beside_tool_calls(message: dict[str, Any]) -> None:
    """An assistant message with calls needs no content (case 76)."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    counted = '[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]'
    assert read(messages=[USER, {"role": "assistant", "tool_calls": [call], **message}]).texts == ["hi", counted]


def test_answers_given_back_are_usual_messages() -> None:
    """What SDKs send back of an earlier answer, with all its empty fields, counts as its text alone."""
    empty = {"refusal": None, "annotations": [], "audio": None, "function_call": None, "tool_calls": None}
    assert read(messages=[USER, {"role": "assistant", "content": "yes", **empty}, USER]).texts == ["hi", "yes", "hi"]


MUCH = "x" * 30_000
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
SMUGGLED: list[dict[str, Any]] = [
    {"role": MUCH, "content": "a"},
    {"role": "tool", "content": "a", "tool_call_id": MUCH},
    {"role": "user", "content": "a", "name": MUCH},
    {"role": "user", "content": "a", "thought": MUCH},
    {"role": "user", "content": "a", "Content": MUCH},
    {"role": "user", "content": "a", "thought": [[[["["] * 10_000]]]},
    {"role": "user", "content": "a", "thought": {MUCH: 1}},
    {"role": "user", "content": "a", "thought": int("1" * 4000), "more": [1.5] * 10_000},
    {"role": "user", "content": "a", "reasoning_details": [{"type": "reasoning.text", "text": MUCH}]},
    {"role": "user", "content": "a", "annotations": [{"type": "url_citation", "title": MUCH}]},
    {"role": "assistant", "tool_calls": [CALL | {"id": MUCH}]},
    {"role": "assistant", "tool_calls": [CALL | {"type": MUCH}]},
    {"role": "assistant", "tool_calls": [CALL | {"extra": MUCH}]},
    {"role": "assistant", "tool_calls": [CALL | {"function": {"name": "f", "arguments": "{}", "description": MUCH}}]},
    {"role": "assistant", "tool_calls": [CALL | {"function": {"name": "f", "arguments": {"q": MUCH}}}]},
    {"role": "assistant", "tool_calls": [CALL | {"function": {"name": MUCH, "arguments": "{}"}}]},
    {"role": "assistant", "tool_calls": [{"type": "custom", "custom": {"name": "f", "input": "", "format": MUCH}}]},
    {"role": "assistant", "tool_calls": [{"function": {"name": "", "arguments": ""}}] * 1000},
    {"role": "assistant", "function_call": {"name": "f", "arguments": "{}", "extra": MUCH}},
    {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": MUCH}}]},
    {"role": "user", "content": [{"type": "text", "text": "a", "refusal": MUCH}]},
    {"role": "user", "content": [{"type": "text", "text": "a", "image_url": {"url": "u", "alt": MUCH}}]},
    {"role": "user", "content": [{"type": "image_url", "image_url": "u", "text": MUCH}]},
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u", "detail": MUCH}}]},
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u", "caption": MUCH}}]},
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}, "caption": MUCH}]},
    {"role": "user", "content": [{"type": "refusal", "refusal": MUCH}]},
    {"role": "user", "content": [{"type": "text", "text": ""}] * 20_000},
]


@pytest.mark.parametrize("message", SMUGGLED)
def test_whatever_a_template_could_render_is_counted(message: dict[str, Any]) -> None:
    """Every part of a message counts as text, wherever it is: some chat template puts it before the model."""
    request = read(messages=[USER, message])
    assert request.unbounded or sum(map(len, request.texts)) >= 19_900


@pytest.mark.parametrize("name", ["reasoning_effort", "tool_choice", "function_call", "verbosity", "thinking", "reasoning", "documents"])
@pytest.mark.parametrize("value", [MUCH, {"type": MUCH}])
def test_long_settings_are_counted(name: str, value: Any) -> None:
    """A setting that is longer than any usual one is text: templates render the effort, the choice of a tool, and fields of their own."""
    assert sum(map(len, read(**{name: value}).texts)) >= 30_000
    assert read(reasoning_effort="minimal", tool_choice="required", verbosity="low", reasoning={"effort": "high"}).texts == ["hi"]


def test_a_schema_beside_a_json_object_is_counted() -> None:
    """Some providers put the schema before the model whatever the type of the response format is."""
    assert read(response_format={"type": "json_object"}).texts == ["hi"]
    assert len(read(response_format={"type": "json_object", "schema": {"title": MUCH}}).texts[1]) > 30_000


def test_only_unusual_messages_are_counted_as_json() -> None:
    """An unknown field makes its own message's frame count, not those of the others, and text in it counts once."""
    request = read(messages=[USER, {**USER, "content": "ho", "thought": "long", "score": 1}, USER], documents=["d"], top_k=5, flag=True, nothing=None)
    assert request.texts == ["hi", "ho", '{"role":"user","thought":"long","score":1}', "hi", '["d"]']


def test_images_in_unusual_parts_are_no_text_either() -> None:
    """A field beside an image counts, its data does not."""
    url = "data:image/png;base64," + "A" * 100_000
    parts = [
        {"type": "image_url", "image_url": {"url": url, "x": 1}, "cache_control": {"type": "ephemeral"}},
        {"type": "image_url", "image_url": url},
    ]
    request = read(messages=[{"role": "user", "content": [*parts, {"type": "text", "text": "see", "y": 1}]}])
    assert (request.images, request.texts[0]) == (2, "see")
    assert len(request.texts[1]) < 250


def test_images_are_no_text() -> None:
    """A 2.5 MB image counts as one image, not as a megabyte of text (case 91)."""
    url = "data:image/jpeg;base64," + "A" * 2_500_000
    parts = [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": url, "detail": "high"}},
        {"type": "image_url", "image_url": "https://x/y"},
    ]
    request = read(messages=[{"role": "user", "content": parts}])
    assert (request.images, request.texts, request.unbounded) == (2, ["see"], "")


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}]}]},
        {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}]},
        {"messages": [{"role": "user", "content": [{"type": "video_url", "video_url": {"url": "https://x"}}]}]},
        {"messages": [{"role": "assistant", "audio": {"id": "a"}}]},
        {"tools": [{"type": "web_search"}]},
        {"web_search_options": {}},
        {"plugins": [{"id": "web"}]},
        {"previous_response_id": "resp_1"},
        {"conversation": "conv_1"},
        {"conversation": {"id": "conv_1"}},
        {"prompt": {"id": "pmpt_1", "version": "2"}},
        {"data_sources": [{"type": "azure_search"}]},
        {"dataSources": [{"type": "AzureCognitiveSearch"}]},
        {"search_parameters": {"mode": "auto"}},
        {"search_parameters": {}},
        {"enable_search": True},
        {"Enable_Search": True},
        {"web_search": True},
        {"search_domain_filter": ["x"]},
        {"deep_research_mode": 1},
        {"file_ids": ["file-1"]},
        {"files": [{"id": 1}]},
        {"retrieval": True},
        {"retrieval_options": {"k": 5}},
        {"knowledge_base_id": "kb"},
        {"connectors": ["c"]},
        {"mcp_servers": [{"url": "u"}]},
        {"vector_store_ids": ["v"]},
        {"assistant_id": "a"},
        {"thread_id": "a"},
        {"preset": "p"},
        {"memory": {"id": 1}},
        {"chat_template": "{% for i in range(99999) %}x{% endfor %}"},
        {"extra_body": {"google": {"cached_content": "c"}}},
        {"extra_body": {"enable_search": True}},
        {"extra_body": [{"enable_search": True}]},
    ],
)
def test_content_elsewhere_is_unbounded(fields: dict[str, Any]) -> None:
    """What is not in the body, or what the provider makes of it, cannot be counted by it (case 128)."""
    assert read(**fields).unbounded


@pytest.mark.parametrize("nothing", [None, False, "", []])
@pytest.mark.parametrize("name", ["previous_response_id", "enable_search", "data_sources", "plugins", "background", "files"])
def test_nothing_asked_for_is_bounded(name: str, nothing: Any) -> None:
    """Null, false and what is empty ask for nothing."""
    assert read(**{name: nothing}).unbounded == ""


@pytest.mark.parametrize(
    "fields",
    [
        {"use_beam_search": True},
        {"prompt": "text"},
        {"include_stop_str_in_output": True},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"documents": [{"title": "t", "search": "s"}]},
        {"guided_json": {"properties": {"search": {}}}},
        {"extra_body": {"google": {"thinking_config": {"include_thoughts": True}}}},
        {"metadata": {"conversation": "c"}},
    ],
)
def test_other_fields_are_bounded(fields: dict[str, Any]) -> None:
    """Names that say nothing of a search or a store, and names inside what is only data."""
    assert read(**fields).unbounded == ""


@pytest.mark.parametrize("value", [True, "yes", 1, {}])
def test_background_is_refused(value: Any) -> None:
    """An answer that nobody waits for could not be settled."""
    assert refused(body(background=value)).param == "background"


def test_a_lone_surrogate_is_replaced() -> None:
    """Python's json writes half a pair as an escape; here and upstream it is U+FFFD. Pairs and escaped backslashes stay as they are."""
    raw = rb'{"model":"chat","messages":[{"role":"user","content":"a\uD800b\ud83d\ude00\\ud800\uDE00","x":"\ud83d"}]}'
    request = read_request(raw)
    assert request.texts[0] == "a\ufffdb\U0001f600\\ud800\ufffd"
    assert sent(request)["messages"][0]["content"] == request.texts[0]
    assert refused(rb'{"model":"\ud800').message.startswith("The body is not valid JSON")


@pytest.mark.parametrize(
    ("fields", "cap"),
    [
        ({}, None),
        ({"max_tokens": None}, None),
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 7}, 7),
        ({"max_tokens": 500, "max_completion_tokens": 7}, 7),
        ({"max_tokens": 7, "max_completion_tokens": 500}, 7),
        ({"max_tokens": 50, "max_output_tokens": 5000}, 50),
        ({"max_tokens": 9, "max_completion_tokens": None}, 9),
        ({"max_tokens": 9, "n_predict": 10}, 9),
        ({"max_new_tokens": 4, "n_predict": 10, "max_tokens": 6}, 4),
    ],
)
@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_the_smallest_cap_holds(fields: dict[str, Any], cap: int | None, field: str) -> None:
    """Null is absent; of several caps the smallest counts, and it is the only one that is sent (cases 92, 104)."""
    request = read(**fields)
    assert request.cap == cap
    written = sent(request, Target("served", None, field, True))
    assert {name: written[name] for name in CAPS if written.get(name) is not None} == ({field: cap} if cap is not None else {})


def test_a_cap_that_cannot_be_counted_is_named_by_its_field() -> None:
    """That of the smallest."""
    assert read(max_tokens=2**50, n_predict=2**52).cap_by == "max_tokens"
    assert read(max_tokens=2**52, n_predict=2**50).cap_by == "n_predict"
    assert read(max_completion_tokens=2**50).cap_by == "max_completion_tokens"


@pytest.mark.parametrize(("fields", "choices"), [({}, 1), ({"n": None}, 1), ({"n": 8}, 8), ({"n": 2, "best_of": 5}, 5), ({"n_cmpl": 3}, 3)])
def test_choices(fields: dict[str, Any], choices: int) -> None:
    """All that multiplies the output is counted, whatever a vendor calls it (cases 12, 105)."""
    assert read(**fields).choices == choices


def test_thinking_and_prediction() -> None:
    """A thinking budget and a predicted output are read in each vendor's form."""
    assert read(thinking={"type": "enabled", "budget_tokens": 500}).thinking == 500
    assert read(reasoning={"max_tokens": 300}).thinking == 300
    assert read(thinking=True, reasoning="high").thinking == 0
    assert read(prediction={"type": "content", "content": "abc"}).prediction == "abc"
    assert read(prediction={"type": "content", "content": [{"type": "text", "text": "ab"}, {"type": "text", "text": "c"}]}).prediction == "abc"


def test_last_of_two_equal_names_counts_here_and_upstream() -> None:
    """A field given twice: the last one is read and the only one sent."""
    request = read_request(b'{"model":"a","model":"chat","messages":[{"role":"user","content":"x"}],"n":9,"n":2,"max_tokens":5,"max_tokens":6}')
    assert (request.model, request.choices, request.cap) == ("chat", 2, 6)
    assert write_request(request, Target("m", 6, "max_tokens", True)).count(b'"n"') == 1


@pytest.mark.parametrize(("options", "asked"), [({"include_usage": True}, True), ({"include_usage": False}, False), ({}, False), (None, False)])
def test_include_usage(options: dict[str, Any] | None, asked: bool) -> None:
    """The client asked for usage only if it said so, in a stream."""
    assert read(stream=True, stream_options=options).include_usage is asked
    assert read(stream=False, stream_options=options).include_usage is False


# -- what is refused ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cap", [0, -1, -5, -1_000_000, 1.5, 1.0, "10", "abc", [], {}, True, False, 1e17, 2**53, 10**30])
@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "n_predict", "max_new_tokens", "max_output_tokens"])
def test_impossible_caps(name: str, cap: Any) -> None:
    """No cap but a positive integer below 2^53 is taken, and an invalid one never falls through to a valid one (cases 92, 104, 119)."""
    assert refused(body(**{name: cap})).param == name
    other = "max_tokens" if name != "max_tokens" else "max_completion_tokens"
    assert refused(body(**{other: 5, name: cap})).param == name


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": 1.5}, "n"),
        ({"n": "2"}, "n"),
        ({"best_of": -1}, "best_of"),
        ({"stream": "false"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"stream_options": 5}, "stream_options"),
        ({"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
        ({"stop": 5}, "stop"),
        ({"stop": ["a", 5]}, "stop[1]"),
        ({"model": []}, "model"),
        ({"model": ""}, "model"),
        ({"model": None}, "model"),
        ({"messages": 5}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": ["x"]}, "messages[0]"),
        ({"messages": [USER, {"content": "x"}]}, "messages[1].role"),
        ({"messages": [USER, {"role": "user", "content": 5}]}, "messages[1].content"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
        ({"messages": [USER, {"role": "user", "content": [{"type": "text", "text": None}]}]}, "messages[1].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].image_url"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages[0].content[0].image_url.url"),
        ({"messages": [{"role": "assistant", "tool_calls": {}}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "user", "content": "x", "unknown": 1}, {"role": "user", "content": 5}]}, "messages[1].content"),
        ({"tools": {}}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"function": {"name": "f"}}]}, "tools[0].type"),
        ({"functions": [{}]}, "functions[0].name"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": []}, "top_p"),
        ({"response_format": "json"}, "response_format"),
        ({"thinking": {"budget_tokens": -1}}, "thinking.budget_tokens"),
        ({"models": ["a", "b"]}, "models"),
        ({"Background": True}, "Background"),
        ({"extra_body": {"max_tokens": 100_000}}, "extra_body"),
        ({"extra_body": {"google": {"n": 5}}}, "extra_body"),
        ({"Max_Tokens": 100_000}, "Max_Tokens"),
        ({"MAX_TOKENS": 100_000}, "MAX_TOKENS"),
        ({"max_to\u212aens": 100_000}, "max_to\u212aens"),
        ({"N": 8}, "N"),
    ],
)
def test_wrong_fields_are_named(fields: dict[str, Any], param: str) -> None:
    """A wrong field is a 400 that names it, with its place (cases 12, 111, 114)."""
    error = refused(body(**fields))
    assert error.param == param
    assert param in error.message


@pytest.mark.parametrize("name", ["model", "messages"])
def test_missing_fields_are_named(name: str) -> None:
    """What must be there is asked for."""
    fields = {"model": "chat", "messages": [USER]}
    del fields[name]
    assert refused(json.dumps(fields).encode()).param == name


@pytest.mark.parametrize("data", [b"[]", b"null", b"1", b'"x"', b"true", b"1.5"])
def test_body_must_be_an_object(data: bytes) -> None:
    """JSON that is no object is a 400 (case 89)."""
    assert "JSON object" in refused(data).message


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b'{"a":',
        b"\xff",
        b"{",
        body()[:-1],
        body() + b"x",
        b'{"model":"\xff"}',
        body(user="\xe9").replace(b"\\u00e9", b"\xe9"),
        b"\xef\xbb\xbf{}",
        b"{'a':1}",
    ],
)
def test_malformed_json(data: bytes) -> None:
    """What is not JSON in UTF-8 is a 400 (case 88)."""
    assert refused(data).param is None


@pytest.mark.parametrize(
    "bomb", [b"[" * 500_000, b'{"a":' * 200_000, b'{"model":"m","messages":' + b"[" * 100_000, b'{"x":' + b"[" * 5000 + b"]" * 5000 + b"}"]
)
def test_deep_nesting(bomb: bytes) -> None:
    """A body nested without end is a 400."""
    assert refused(bomb).message


@pytest.mark.parametrize("depth", range(900, 1010, 3))
@pytest.mark.parametrize("where", [b'"messages":[{"role":"user","content":"","x":%b}]', b'"messages":[{"role":"user","content":""}],"extra_body":%b'])
def test_every_depth_is_read_or_refused(depth: int, where: bytes) -> None:
    """No place where only a part of the body is too deep for what reads it."""
    try:
        request = read_request(b'{"model":"m",' + where % (b'{"a":' * depth + b"1" + b"}" * depth) + b"}")
    except BadRequest:
        return
    assert sum(map(len, request.texts)) > depth


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.sampled_from(["", "a", "é", "text", "image_url"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "type", "text", "function", "name", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)
FIELDS = [
    "model",
    "messages",
    "stream",
    "stream_options",
    "max_tokens",
    "n",
    "stop",
    "tools",
    "response_format",
    "prediction",
    "thinking",
    "user",
    "foo",
]


@given(st.dictionaries(st.sampled_from(FIELDS), JSON))
def test_nothing_but_bad_request(fields: dict[str, Any]) -> None:
    """Any JSON is read or refused; a hold made from what is read is never negative, and it can be written again."""
    try:
        request = read_request(json.dumps({"model": "chat", "messages": [USER], **fields}).encode())
    except BadRequest:
        return
    assert 1 <= request.choices <= 128
    assert request.cap is None or request.cap >= 1
    assert sent(request)["model"] == "served"


@given(st.binary(max_size=100))
def test_any_bytes(data: bytes) -> None:
    """Bytes that are no request are refused, nothing else is raised."""
    refused(data)


# -- what is sent -------------------------------------------------------------------------------------------------------------------------


def test_untouched_fields_keep_their_bytes() -> None:
    """Spacing, escapes, digits and order of what the gateway does not act on arrive as they came."""
    raw = b'{"temperature": 0.70, "model":"chat","messages":[ {"role":"user","content":"\\u0041"} ],"x":{"a" : 1e2},"max_tokens":16}'
    want = b'{"temperature":0.70,"model":"served","messages":[ {"role":"user","content":"\\u0041"} ],"x":{"a" : 1e2},"max_tokens":16}'
    assert write_request(read_request(raw), Target("served", 16, "max_tokens", True)) == want


def test_writing_changes_nothing_for_the_next_attempt() -> None:
    """A request is written for several deployments, one after the other."""
    request = read(max_tokens=16, stream=True)
    first = write_request(request, Target("a", 9, "max_completion_tokens", True))
    assert write_request(request, Target("b", 16, "max_tokens", False)) != first
    assert write_request(request, Target("a", 9, "max_completion_tokens", True)) == first


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize(
    "client", [{}, {"max_tokens": 50}, {"max_completion_tokens": 50}, {"max_tokens": 50, "max_completion_tokens": 60, "n_predict": 70}]
)
def test_one_cap_is_sent(client: dict[str, Any], field: str) -> None:
    """The cap goes in the one field that the deployment names; every other is gone (case 77)."""
    fields = sent(read(**client), Target("m", 40, field, True))
    caps = {name: fields[name] for name in fields if "max" in name or "predict" in name}
    assert caps == {field: 40}


def test_cap_of_the_client_is_renamed() -> None:
    """Where the gateway sets no cap, the client's goes in the deployment's field."""
    target = Target("m", None, "max_completion_tokens", True)
    assert sent(read(max_tokens=50), target) == {"model": "m", "messages": [USER], "max_completion_tokens": 50}
    assert sent(read(), target) == {"model": "m", "messages": [USER]}


def test_usage_is_asked_for_in_streams() -> None:
    """Usage is asked for whatever the client said, and its other options stay (cases 49, 50)."""
    assert sent(read(stream=True))["stream_options"] == {"include_usage": True}
    assert sent(read(stream=True, stream_options=None))["stream_options"] == {"include_usage": True}
    options = {"include_usage": False, "include_obfuscation": False}
    assert sent(read(stream=True, stream_options=options))["stream_options"] == {"include_usage": True, "include_obfuscation": False}
    assert "stream_options" not in sent(read())
    assert "stream_options" not in sent(read(stream=True), Target("m", 1, "max_tokens", False))


# -- what a provider's row says -----------------------------------------------------------------------------------------------------------


def test_fields_that_a_provider_rejects_are_taken_out() -> None:
    """Wherever they stand: in the body, or in each message, where nothing else is changed. A row cannot take out what the gateway itself says."""
    target = Target("m", 9, "max_tokens", True, rejects=("store", "seed", "absent", "max_tokens", "messages[].odd", "messages[].gone", "none[].x"))
    messages = [{"role": "user", "content": "x", "odd": 1}, {"role": "assistant", "content": '"odd"', "odd": {"odd": 2}, "kept": {"odd": 3}}]
    got = sent(read(messages=messages, store=True, seed=5, new=1), target)
    kept = [{"role": "user", "content": "x"}, {"role": "assistant", "content": '"odd"', "kept": {"odd": 3}}]
    assert got == {"model": "m", "messages": kept, "new": 1, "max_tokens": 9}


def test_messages_without_a_rejected_field_pass_as_they_came() -> None:
    """To the byte."""
    raw = b'{"model":"m","messages":[ {"role":"user",  "content":"x"} ]}'
    assert b'[ {"role":"user",  "content":"x"} ]' in write_request(read_request(raw), Target("m", 9, "max_tokens", True, rejects=("messages[].odd",)))


def test_fields_that_a_provider_knows_by_another_name() -> None:
    """Are sent under that name, whatever they hold."""
    target = Target("m", 9, "max_tokens", True, renames=(("seed", "random_seed"), ("absent", "gone")))
    assert sent(read(seed=5), target) == {"model": "m", "messages": [USER], "random_seed": 5, "max_tokens": 9}


def test_a_provider_that_rejects_stream_options_is_not_asked_for_usage() -> None:
    """Its row says both: neither the client's options nor the gateway's go there."""
    target = Target("m", 9, "max_tokens", False, rejects=("stream_options",))
    assert "stream_options" not in sent(read(stream=True, stream_options={"include_usage": True}), target)


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({}, True),
        ({"n": 3}, True),
        ({"n": 2, "best_of": 2}, True),
        ({"modalities": ["text"]}, True),
        ({"modalities": ["text", "audio"]}, False),
        ({"prediction": {"type": "content", "content": "x"}}, False),
        ({"best_of": 3}, False),
        ({"n": 2, "best_of": 3}, False),
    ],
)
def test_output_that_is_billed_and_not_shown(fields: dict[str, Any], shown: bool) -> None:
    """Wrong predictions, sound, and answers that were not the best cannot be seen in a stream: it must not be metered by what is seen."""
    assert read(**fields).shown is shown


def test_messages_are_looked_through_only_if_they_have_more_than_the_usual() -> None:
    """What a vendor refuses in a message is taken out of it; messages of a role, content and calls pass unread."""
    refused = ("messages[].reasoning_content", "messages[].name", "store")
    call = {"id": "c", "type": "function", "function": {"name": "name", "arguments": '{"reasoning_content": 1}'}}
    usual = [{"role": "user", "content": "reasoning_content"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    for messages, more, left in (
        (usual, False, usual),
        ([*usual, {"role": "assistant", "content": "x", "reasoning_content": "y"}], True, [*usual, {"role": "assistant", "content": "x"}]),
        ([{"role": "user", "content": "x", "name": "ann"}], True, [{"role": "user", "content": "x"}]),
        ([{"role": "user", "content": "x", "odd": 1}], True, [{"role": "user", "content": "x", "odd": 1}]),
    ):
        request = read_request(json.dumps({"model": "chat", "messages": messages, "store": True}).encode())
        written = json.loads(write_request(request, Target("m", None, "max_tokens", True, refused)))
        assert (request.more, written) == (more, {"model": "m", "messages": left})
