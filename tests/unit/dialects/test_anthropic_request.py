"""Requests of the Anthropic messages dialect: what is read, what is refused by name, what is sent on."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.dialects.anthropic_request import read_count, read_request, write_request
from sluicegate.dialects.anthropic_thinking import UNSIGNED
from sluicegate.dialects.form import BadRequest, Request, Target

USER = {"role": "user", "content": "hi"}
TARGET = Target("served", 64, "max_tokens", True)
FOREIGN = Target("served", 64, "max_tokens", True, foreign=True)
TOOL = {"name": "look", "description": "Looks.", "input_schema": {"type": "object", "properties": {"q": {"type": "string"}}}}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "EqQBCgIYAhIM1gbcDa9G+/=="}
HIDDEN = {"type": "redacted_thinking", "data": "EmwKAhgB"}
USE = {"type": "tool_use", "id": "use", "name": "look", "input": {"q": 1}}
RESULT = {"type": "tool_result", "tool_use_id": "use", "content": "found"}


def body(**fields: Any) -> bytes:
    """A small request with these fields. One that is ... is left out."""
    asked = {"model": "claude", "max_tokens": 64, "messages": [USER], **fields}
    return json.dumps({name: value for name, value in asked.items() if value is not ...}).encode()


def read(**fields: Any) -> Request:
    return read_request(body(**fields))


def user(*blocks: Any) -> list[Any]:
    return [{"role": "user", "content": list(blocks)}]


def sent(request: Request, target: Target = TARGET) -> Any:
    return json.loads(write_request(request, target))


def refused(data: bytes) -> BadRequest:
    """The error that these bytes give."""
    with pytest.raises(BadRequest) as info:
        read_request(data)
    return info.value


# -- what is read -------------------------------------------------------------------------------------------------------------------------


def test_usual_request() -> None:
    """A system prompt, a message and a cap. Usage is always for the client."""
    request = read(system="Be brief.", stream=True)
    assert (request.model, request.stream, request.choices, request.cap, request.messages) == ("claude", True, 1, 64, 1)
    assert request.texts == ["Be brief.", "hi"]
    assert request.include_usage and not request.unbounded and (request.images, request.own_prompts, request.thinking) == (0, 0, 0)


def test_every_text_is_counted() -> None:
    """Blocks of all kinds, calls with what frames them, results, thinking and its proofs, tools and what else a message has."""
    document = {"type": "document", "title": "d1", "context": "d2", "source": {"type": "text", "media_type": "text/plain", "data": "d3"}}
    inside = {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "d4"}]}}
    found = {"type": "search_result", "source": "s1", "title": "s2", "content": [{"type": "text", "text": "s3"}]}
    given_back = {"type": "tool_result", "tool_use_id": "r1", "content": [{"type": "text", "text": "r2"}, found], "is_error": True}
    request = read(
        system=[{"type": "text", "text": "y1", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "t1", "unknown": "t2"}, document, inside]},
            {"role": "assistant", "content": [THOUGHT, HIDDEN, {"type": "text", "text": "t3", "citations": [{"cited_text": "t4"}]}, USE]},
            {"role": "user", "content": [given_back], "effort": "t5"},
            {"role": "system", "content": "t6"},
        ],
        tools=[TOOL],
        tool_choice={"type": "tool", "name": "c1"},
        output_config={"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object", "title": "f1"}}},
        unknown_field={"x": "u1"},
    )
    counted = "\n".join(request.texts)
    for text in ("y1", "t1", "t2", "t3", "t4", "t5", "t6", "d1", "d2", "d3", "d4", "s1", "s2", "s3", "r1", "r2", "c1", "f1", "u1"):
        assert counted.count(text) == 1, text
    for text in ("hm", THOUGHT["signature"], HIDDEN["data"], '"input": {"q": 1}', '"Looks."'):
        assert text in counted, text
    assert not request.unbounded
    assert request.messages == 4 + 2  # a call and a result are framed, too
    assert request.own_prompts == 2  # on tools, on the shape of the answer


@pytest.mark.parametrize(
    "source",
    [
        {"type": "base64", "media_type": "image/png", "data": "A" * 5000},
        {"type": "url", "url": "https://example.com/a.png"},
        {"type": "file", "file_id": "file_1"},
    ],
)
def test_images_count_as_images(source: Any) -> None:
    """However they come, in a message or in what a tool gave, and never as text (case 91)."""
    image = {"type": "image", "source": source}
    request = read(messages=user(image, {"type": "tool_result", "tool_use_id": "t", "content": [image]}))
    assert (request.images, request.unbounded, request.texts) == (2, "", ["t"])


UNBOUNDED = [
    {"messages": user({"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}})},
    {"messages": user({"type": "document", "source": {"type": "url", "url": "https://example.com/a.pdf"}})},
    {"messages": user({"type": "document", "source": {"type": "file", "file_id": "f"}})},
    {"messages": user({"type": "document", "source": {"type": "text", "data": "x"}, "citations": {"enabled": True}})},
    {"messages": user({"type": "image", "source": {"type": "elsewhere"}})},
    {"messages": user({"type": "tool_result", "tool_use_id": "t", "content": [{"type": "tool_reference", "tool_name": "x"}]})},
    {"messages": user({"type": "container_upload", "file_id": "f"})},
    {"messages": user({"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}})},
    {"messages": user({"type": "web_search_tool_result", "tool_use_id": "s", "content": {"type": "error"}})},
    {"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 5}]},
    {"tools": [{"type": "code_execution_20250825", "name": "code_execution"}]},
    {"tools": [{"type": "computer_toolset_20260801"}]},
    {"tools": [TOOL, {"type": "mcp_toolset", "mcp_server_name": "m"}]},
    {"mcp_servers": [{"type": "url", "url": "https://example.com", "name": "m"}]},
    {"container": "container_1"},
    {"container": {"skills": [{"type": "anthropic", "skill_id": "pdf"}]}},
]


@pytest.mark.parametrize("fields", UNBOUNDED, ids=range(len(UNBOUNDED)))
def test_case_128_content_that_is_not_in_the_request(fields: Any) -> None:
    """What the provider fetches, keeps or runs, and what is not known here, cannot be bounded; the field is named."""
    request = read(**fields)
    assert request.unbounded and request.unbounded_by.split("[")[0].split(".")[0] in fields


def test_tools_that_the_provider_describes() -> None:
    """Each may bring a text of its own, beside the one on the use of tools."""
    described = [{"type": "bash_20250124", "name": "bash"}, {"type": "text_editor_20250728", "name": "e"}, {"type": "memory_20250818", "name": "m"}]
    assert (read(tools=described).own_prompts, read(tools=described).unbounded) == (4, "")
    assert read(tools=[TOOL, {**TOOL, "type": "custom"}]).own_prompts == 1
    assert read(tools=[]).own_prompts == 0


def test_thinking() -> None:
    """A budget is what an answer needs beside its least output; other ways of thinking name none."""
    assert read(max_tokens=4096, thinking={"type": "enabled", "budget_tokens": 2048, "display": "omitted"}).thinking == 2048
    assert [read(thinking={"type": kind}).thinking for kind in ("adaptive", "disabled", "between_tools")] == [0, 0, 0]


def test_a_count_needs_no_cap() -> None:
    """Of `count_tokens`; all else is as strict."""
    assert read_count(body(max_tokens=...)).cap is None
    with pytest.raises(BadRequest):
        read_count(body(max_tokens=0))


def test_lone_surrogates_are_mended() -> None:
    """Half a pair is read and sent as U+FFFD."""
    request = read_request(b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"a\\ud83d"}]}')
    assert request.texts == ["a\ufffd"]


# -- what is refused ----------------------------------------------------------------------------------------------------------------------

REFUSED = [
    *[({"max_tokens": cap}, "max_tokens") for cap in (0, -5, 1.5, "10", [], True, 10**17, ...)],
    *[({name: 5}, name) for name in ("max_completion_tokens", "n", "best_of", "n_predict", "Max_Output_Tokens", "N")],
    ({"Max_Tokens": 5}, "Max_Tokens"),
    *[({"stream": value}, "stream") for value in ("false", 1, 0, [])],
    ({"model": []}, "model"),
    ({"model": ""}, "model"),
    ({"messages": []}, "messages"),
    ({"messages": 5}, "messages"),
    ({"messages": ["x"]}, "messages[0]"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": user({"type": "text", "text": None})}, "messages[0].content[0].text"),
    ({"messages": user({"text": "x"})}, "messages[0].content[0].type"),
    ({"messages": user("x")}, "messages[0].content[0]"),
    ({"messages": user({"type": "image", "source": {"type": "base64"}})}, "messages[0].content[0].source"),
    ({"messages": user({"type": "image"})}, "messages[0].content[0].source"),
    ({"messages": user({**USE, "input": "x"})}, "messages[0].content[0].input"),
    ({"messages": user({"type": "tool_result", "content": "x"})}, "messages[0].content[0].tool_use_id"),
    ({"messages": user({**RESULT, "content": [{"type": "text", "text": 5}]})}, "messages[0].content[0].content[0].text"),
    ({"messages": user({"type": "thinking", "thinking": "x"})}, "messages[0].content[0].signature"),
    ({"system": 5}, "system"),
    ({"system": [{"type": "text"}]}, "system[0].text"),
    ({"stop_sequences": "x"}, "stop_sequences"),
    ({"temperature": "x"}, "temperature"),
    ({"tools": {}}, "tools"),
    ({"tools": [{"name": "x"}]}, "tools[0].input_schema"),
    ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
    ({"tools": [{"type": "advisor_20260301", "name": "advisor", "model": "big"}]}, "tools[0].type"),
    ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": -1}}, "thinking.budget_tokens"),
    ({"thinking": True}, "thinking"),
    ({"speed": 1}, "speed"),
    ({"inference_geo": ["us"]}, "inference_geo"),
    ({"fallbacks": [{"model": "other"}]}, "fallbacks"),
    ({"context_management": {"edits": [{"type": "compact_20260112"}]}}, "context_management"),
    ({"compaction": {"type": "summarize"}}, "compaction"),
    ({"thread": {"type": "create"}}, "thread"),
    ({"thread": {"type": "continue", "previous_message_id": "m"}}, "thread"),
    ({"Thread": {"type": "create"}}, "Thread"),
    ({"background": True}, "background"),
    ({"models": ["a", "b"]}, "models"),
    ({"extra_body": {"n_predict": 5}}, "extra_body"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=[f"{param}-{i}" for i, (_, param) in enumerate(REFUSED)])
def test_cases_92_104_111_114_119_what_is_refused(fields: Any, param: str) -> None:
    """A wrong type, an impossible number, another dialect's cap, and what would bill beyond what is held: 400 that names the field."""
    assert refused(body(**fields)).param == param


@pytest.mark.parametrize("data", [b"", b"{", b'{"a":', b"\xff", b"[]", b"null", b"1", b'"x"', b"[" * 100_000, b'{"messages":' + b"[" * 100_000])
def test_cases_88_89_what_is_no_object(data: bytes) -> None:
    """Anything but a JSON object is a 400."""
    assert refused(data).message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5) | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "text", "source", "content", "x"]), inner, max_size=3),
    max_leaves=8,
)
FIELDS = [
    "model",
    "max_tokens",
    "messages",
    "system",
    "stream",
    "tools",
    "tool_choice",
    "thinking",
    "output_config",
    "context_management",
    "metadata",
]
KINDS = ["text", "image", "document", "search_result", "tool_use", "tool_result", "thinking", "redacted_thinking", "other"]


@settings(max_examples=150)
@given(st.sampled_from(FIELDS), JSON)
def test_wrong_shapes_never_raise_anything_else(name: str, value: Any) -> None:
    """Whatever is in a field, it is read or is a BadRequest."""
    try:
        request = read(**{name: value})
    except BadRequest:
        return
    write_request(request, FOREIGN)


@settings(max_examples=150)
@given(st.sampled_from(KINDS), st.dictionaries(st.sampled_from(["text", "source", "content", "input", "id", "thinking", "data", "title"]), JSON))
def test_wrong_blocks_never_raise_anything_else(kind: str, fields: Any) -> None:
    """Whatever is in a block, it is read or is a BadRequest that names its place."""
    try:
        read(messages=user({"type": kind, **fields}))
    except BadRequest as error:
        assert error.param is not None and error.param.startswith("messages[0].content[0]")


def test_a_thread_is_refused_with_the_code_at_which_clients_go_on_without_it() -> None:
    """Anthropic's own client then sends the whole conversation."""
    assert refused(body(thread={"type": "create"})).code == "thread_unsupported_request"
    assert read(thread=None, fallbacks=None, compaction=None, speed="standard", inference_geo="global").texts == ["hi"]


def test_a_system_message_may_only_change_settings() -> None:
    """It needs no content, others do; what it changes counts as text."""
    assert read(messages=[USER, {"role": "system", "output_config": {"effort": "low"}}]).texts == ["hi", '{"effort": "low"}']


# -- what is sent -------------------------------------------------------------------------------------------------------------------------


def test_everything_else_passes_as_it_came() -> None:
    """Model and cap are the deployment's; every other byte of a field is the client's, unknown fields included."""
    data = (
        b'{"model":"claude","max_tokens":900,"messages":[{"role":"user","content":[ {"type":"text","text":"\\u0068i","cache_control":'
        b'{"type":"ephemeral","ttl":"1h"}} ]}],"temperature":0.50,"new_field":{"b": 1,"a":[ ]},"stop_sequences":["x"]}'
    )
    written = write_request(read_request(data), TARGET)
    assert written == data.replace(b'"claude"', b'"served"').replace(b"900", b"64")


def test_fields_that_a_provider_does_not_take() -> None:
    """Are left out or renamed."""
    target = Target("served", None, "max_tokens", True, rejects=("top_k",), renames=(("stop_sequences", "stop"),))
    written = sent(read(top_k=5, stop_sequences=["x"]), target)
    assert (written.get("top_k"), written["stop"], written["max_tokens"]) == (None, ["x"], 64)


TURNS = [
    USER,
    {"role": "assistant", "content": [THOUGHT, HIDDEN, {"type": "text", "text": "t"}, USE]},
    {"role": "user", "content": [RESULT]},
]


def test_case_70_thinking_stays_with_the_model_that_thought() -> None:
    """For the first model of a route every signature is sent byte for byte; for another, thinking is taken out and nothing else is changed."""
    request = read(messages=TURNS, thinking={"type": "enabled", "budget_tokens": 1024})
    assert json.dumps(TURNS).encode() in write_request(request, TARGET)
    written = sent(request, FOREIGN)
    assert written["messages"] == [TURNS[0], {"role": "assistant", "content": [{"type": "text", "text": "t"}, USE]}, TURNS[2]]


def test_case_70_a_loop_goes_on_without_thinking() -> None:
    """A model that thinks by a budget wants a turn of calls to begin with thinking: without it there is no budget, but only in such a loop."""
    thinking = {"type": "enabled", "budget_tokens": 1024}
    over = [*TURNS, {"role": "assistant", "content": "done"}, USER]
    assert "thinking" not in sent(read(messages=TURNS, thinking=thinking), FOREIGN)
    assert sent(read(messages=TURNS, thinking={"type": "adaptive"}), FOREIGN)["thinking"] == {"type": "adaptive"}
    assert sent(read(messages=over, thinking=thinking), FOREIGN)["thinking"] == thinking
    assert sent(read(messages=TURNS, thinking=thinking))["thinking"] == thinking


def test_a_turn_of_nothing_but_foreign_thinking_is_left_out() -> None:
    """An empty turn would be refused."""
    written = sent(read(messages=[USER, {"role": "assistant", "content": [THOUGHT]}, USER]), FOREIGN)
    assert written["messages"] == [USER, USER]


def below(frames: int, write: Callable[[], bytes]) -> bytes:
    """The same, further down the stack."""
    return below(frames - 1, write) if frames else write()


def test_what_is_too_deep_to_be_written() -> None:
    """Where it could just be read, further up the stack, it is the client's fault all the same."""

    def turns(depth: int) -> list[Any]:
        inner: Any = 1
        for _ in range(depth):
            inner = [inner]
        return [USER, {"role": "assistant", "content": [THOUGHT, {**USE, "input": {"q": inner}}]}]

    depth = 900
    while depth:
        try:
            request = read(messages=turns(depth))
            break
        except BadRequest:
            depth -= 10
    with pytest.raises(BadRequest, match="nested too deeply"):
        below(200, lambda: write_request(request, FOREIGN))


def test_thinking_without_a_proof_goes_to_nobody() -> None:
    """What a provider of another dialect thought, as the gateway told it, is taken out for every provider of this one; what has a proof is not."""
    unsigned = {"type": "thinking", "thinking": "hm", "signature": UNSIGNED}
    turns = [USER, {"role": "assistant", "content": [unsigned, THOUGHT, USE]}, {"role": "user", "content": [RESULT]}]
    assert sent(read(messages=turns))["messages"][1]["content"] == [THOUGHT, USE]
