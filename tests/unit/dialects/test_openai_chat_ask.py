"""A prompt as a chat request: every part, tool and setting, and what the provider's row changes."""

import json
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec import Raw

from sluicegate.dialects.content import (
    Audio,
    Document,
    Image,
    Inexpressible,
    Message,
    Part,
    Prompt,
    RedactedThinking,
    Refusal,
    Shape,
    Text,
    Thinking,
    Tool,
    ToolChoice,
    ToolResult,
    ToolUse,
)
from sluicegate.dialects.form import Request, Target
from sluicegate.dialects.openai_chat_ask import write_prompt
from sluicegate.dialects.openai_chat_prompt import read_prompt
from sluicegate.dialects.openai_request import read_request

TARGET = Target("gpt", None, "max_tokens", stream_usage=True)
CACHE = Raw(b'{"type":"ephemeral"}')


def request(**fields: Any) -> Request:
    """As another dialect has read it: only the form's own figures count here."""
    figures = {"stream": False, "include_usage": False, "choices": 1, "cap": None, "thinking": 0} | fields
    return Request(model="m", texts=[], messages=1, images=0, prediction="", unbounded="", fields={}, **figures)


def asked(prompt: Prompt, target: Target = TARGET, **fields: Any) -> Any:
    return json.loads(write_prompt(prompt, request(**fields), target))


def messages_of(*messages: Message) -> Any:
    """The messages of the written request, which reads again as a chat request."""
    body = asked(Prompt(list(messages)))
    read_request(json.dumps(body).encode())
    return body["messages"]


def user(*parts: Part) -> Message:
    return Message("user", list(parts))


# -- messages -----------------------------------------------------------------------------------------------------------------------------


def test_instructions_are_system_messages_where_they_stood() -> None:
    """A developer's too: not every compatible server knows that role, and OpenAI takes the one for the other."""
    assert messages_of(Message("system", [Text("a"), Text("b")]), user(Text("u")), Message("developer", [Text("d")])) == [
        {"role": "system", "content": "a\nb"},
        {"role": "user", "content": "u"},
        {"role": "system", "content": "d"},
    ]


def test_parts() -> None:
    """Images as data URLs or URLs, documents as files, audio; text alone is one text, and marks of a cache are gone (case 71)."""
    parts = [
        Text("t", CACHE),
        Image("", "image/png", "AA==", "low", CACHE),
        Image("https://a.test/b.png"),
        Document("", "application/pdf", "JVBERi0=", "", "a.pdf", CACHE),
        Document("", "application/pdf", "JVBERi0="),
        Document(text="plain", name="a.txt"),
        Audio("UklG", "wav"),
    ]
    assert messages_of(Message("user", list(parts), "ann"), user(Text("a", CACHE), Text("b"))) == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "t"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}},
                {"type": "image_url", "image_url": {"url": "https://a.test/b.png"}},
                {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}},
                {"type": "file", "file": {"filename": "document.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}},
                {"type": "text", "text": "plain"},
                {"type": "input_audio", "input_audio": {"data": "UklG", "format": "wav"}},
            ],
            "name": "ann",
        },
        {"role": "user", "content": "a\nb"},
    ]


@pytest.mark.parametrize(
    ("model", "effort"),
    [
        ("gpt-5.1", "none"), ("gpt-5.2-codex", "none"), ("qwen3", "none"), ("gpt-5", "minimal"), ("openai/gpt-5-mini-2025-08-07", "minimal"),
        ("o3", "low"), ("o4-mini", "low"), ("gpt-5-codex", "low"), ("openai/gpt-oss-120b", "low"),
    ],
)  # fmt: skip
def test_models_that_always_think_are_told_the_least(model: str, effort: str) -> None:
    """Where they would refuse to be told not to."""
    body = asked(Prompt([user(Text("x"))], effort="none"), Target(model, None, "max_tokens", stream_usage=True))
    assert body["reasoning_effort"] == effort


@pytest.mark.parametrize("part", [Document("https://a.test/b.pdf"), ToolUse("c", "f", "{}"), Refusal("no"), Thinking("t")])
def test_parts_that_cannot_be_asked(part: Part) -> None:
    """A document by its URL, and what only an answer can hold."""
    with pytest.raises(Inexpressible) as error:
        messages_of(user(part))
    assert error.value.param == "messages"


def test_an_assistant_turn() -> None:
    """Text, calls with their ids, a refusal; what was thought stays behind, empty texts too (case 68)."""
    calls = [ToolUse("c1", "f", '{"a":1}', CACHE), ToolUse("c2", "g", "")]
    turn = [Thinking("hm", "sig"), RedactedThinking("zz"), Text("a"), Text(""), Text("b"), *calls]
    assert messages_of(Message("assistant", turn), Message("assistant", calls[:1]), Message("assistant", [Refusal("no")])) == [
        {
            "role": "assistant",
            "content": "a\nb",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
                {"id": "c2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
            ],
        },
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}]},
        {"role": "assistant", "content": None, "refusal": "no"},
    ]


def test_a_provider_that_wants_its_thoughts_back() -> None:
    """Gets them in its own field, with or without a signature; not those of another model, and not where nothing else was said."""
    turn = [Thinking("so", "sig"), Thinking("and so"), RedactedThinking("zz"), ToolUse("c1", "f", "{}")]
    prompt = Prompt([user(Text("x")), Message("assistant", turn), Message("assistant", [Thinking("hm")]), Message("assistant", [Text("a")])])
    target = Target("ds", None, "max_tokens", stream_usage=True, thoughts="reasoning_content")
    _, first, second = asked(prompt, target)["messages"]
    assert first["reasoning_content"] == "so\nand so"
    assert second == {"role": "assistant", "content": "a"}
    foreign = Target("ds", None, "max_tokens", stream_usage=True, thoughts="reasoning_content", foreign=True)
    assert "reasoning_content" not in asked(prompt, foreign)["messages"][1]


def test_a_turn_of_nothing_but_thinking_is_left_out() -> None:
    """Nothing of it is left."""
    assert messages_of(user(Text("a")), Message("assistant", [Thinking("hm", "sig")]), user(Text("b"))) == [
        {"role": "user", "content": "a"},
        {"role": "user", "content": "b"},
    ]


def test_results_stand_directly_after_the_calls() -> None:
    """Whatever the user says around them, and in however many messages they come; pictures follow in a message of the user."""
    run = [
        user(Text("first"), ToolResult("c1", [Text("one"), Text("more"), Image("", "image/png", "AA==")], failed=True, cache=CACHE)),
        user(ToolResult("c2", []), Text("last")),
    ]
    assert messages_of(Message("assistant", [ToolUse("c1", "f", "{}"), ToolUse("c2", "f", "{}")]), *run)[1:] == [
        {"role": "tool", "tool_call_id": "c1", "content": "one\nmore"},
        {"role": "tool", "tool_call_id": "c2", "content": ""},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]},
        {"role": "user", "content": "first"},
        {"role": "user", "content": "last"},
    ]


# -- tools and settings -------------------------------------------------------------------------------------------------------------------


def test_tools() -> None:
    """Schemas as they came; a choice and whether calls may be parallel only beside tools."""
    tools = [Tool("f", "d", Raw(b'{"type": "object"}'), True, CACHE), Tool("g", "", Raw())]
    body = asked(Prompt([user(Text("x"))], tools, ToolChoice("any"), parallel_tool_calls=False))
    assert body["tools"] == [
        {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}},
        {"type": "function", "function": {"name": "g", "parameters": {"type": "object", "properties": {}}}},
    ]
    assert (body["tool_choice"], body["parallel_tool_calls"]) == ("required", False)
    bare = asked(Prompt([user(Text("x"))], [], ToolChoice("any"), parallel_tool_calls=False))
    assert bare.keys() == {"model", "messages"}


@pytest.mark.parametrize(
    ("choice", "want"),
    [
        (ToolChoice("auto"), "auto"),
        (ToolChoice("any"), "required"),
        (ToolChoice("none"), "none"),
        (ToolChoice("tool", "f"), {"type": "function", "function": {"name": "f"}}),
    ],
)
def test_choices_of_tools(choice: ToolChoice, want: Any) -> None:
    """In OpenAI's words."""
    assert asked(Prompt([], [Tool("f", "", Raw())], choice))["tool_choice"] == want


@pytest.mark.parametrize(
    ("shape", "want"),
    [
        (Shape(), {"type": "json_object"}),
        (Shape(Raw(b"{}")), {"type": "json_schema", "json_schema": {"name": "answer", "schema": {}}}),
        (
            Shape(Raw(b"{}"), "n", "d", True),
            {"type": "json_schema", "json_schema": {"name": "n", "schema": {}, "description": "d", "strict": True}},
        ),
    ],
)
def test_shapes(shape: Shape, want: Any) -> None:
    """A schema has to have a name."""
    assert asked(Prompt([], shape=shape))["response_format"] == want


def test_settings() -> None:
    """What chat has a field for is sent, what it has none for is named, and nothing is sent that was not said."""
    fields = {"temperature": 0.0, "top_p": 0.5, "stop": ["x"], "seed": 0, "presence_penalty": 1.0, "frequency_penalty": 0.0, "user": "u"}
    prompt = Prompt([], **fields, top_k=4, thinking="on", thinking_budget=2000)
    assert asked(prompt) == {"model": "gpt", "messages": [], **fields}
    assert prompt.left_out == ["top_k", "thinking"]
    effort = Prompt([], effort="low", thinking="adaptive")
    assert asked(effort)["reasoning_effort"] == "low"
    assert effort.left_out == []


@pytest.mark.parametrize(
    ("target_cap", "cap", "want"), [(None, None, None), (None, 50, 50), (40, 50, 40), (40, None, 40)], ids=["none", "own", "lower", "set"]
)
def test_the_cap_stands_in_the_field_of_the_row(target_cap: int | None, cap: int | None, want: int | None) -> None:
    """The gateway's cap if it sets one, else the client's (case 77)."""
    body = asked(Prompt([]), Target("gpt", target_cap, "max_completion_tokens", stream_usage=True), cap=cap)
    assert body.get("max_completion_tokens") == want
    assert "max_tokens" not in body


def test_streams_ask_for_usage() -> None:
    """Whether the client has asked or not, where the provider can tell it (case 49)."""
    body = asked(Prompt([]), stream=True)
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})
    body = asked(Prompt([]), Target("gpt", None, "max_tokens", stream_usage=False), stream=True)
    assert body["stream"] is True
    assert "stream_options" not in body
    assert "stream" not in asked(Prompt([]))


def test_several_choices() -> None:
    """Chat can say them, for dialects whose clients ask for them."""
    assert asked(Prompt([]), choices=3)["n"] == 3
    assert "n" not in asked(Prompt([]))


def test_what_the_row_rejects_and_renames() -> None:
    """Never the model, the cap or the stream."""
    target = Target("gpt", 5, "max_tokens", True, rejects=("user", "seed", "model", "stream"), renames=(("stop", "stop_sequences"), ("top_p", "p")))
    body = asked(Prompt([], user="u", seed=1, stop=["x"]), target, stream=True)
    assert body == {
        "model": "gpt", "messages": [], "stop_sequences": ["x"], "max_tokens": 5, "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip


def test_chat_through_the_form_and_back() -> None:
    """What a chat client says comes out as a chat request that says the same."""
    body = {
        "model": "m",
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "t"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "c", "content": "r"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": False}}],
        "tool_choice": "required",
        "parallel_tool_calls": True,
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
        "temperature": 0.5,
        "stop": ["a"],
        "reasoning_effort": "low",
        "max_tokens": 9,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    read = read_request(json.dumps(body).encode())
    assert json.loads(write_prompt(read_prompt(read), read, Target("m", None, "max_tokens", stream_usage=True))) == body


TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
NAME = st.text("abcxyz_-", min_size=1, max_size=6)
ARGUMENTS = st.dictionaries(NAME, st.integers(0, 9), max_size=2).map(json.dumps)
SCHEMAS = st.sampled_from([b'{"type":"object"}', b'{"type":"object","properties":{"a":{"type":"string"}}}']).map(Raw)
TEXTS = st.builds(Text, TEXT)
IMAGES = st.builds(Image, st.just("https://a.test/b.png")) | st.builds(
    Image, st.just(""), st.just("image/png"), st.just("AA=="), NAME.map(lambda _: "low")
)
FILES = st.builds(Document, st.just(""), st.just("application/pdf"), st.just("AA=="), st.just(""), NAME)
CALLS = st.lists(st.builds(ToolUse, NAME, NAME, ARGUMENTS), max_size=2)
MESSAGES = st.one_of(
    st.builds(Message, st.just("system"), st.lists(TEXTS, min_size=1, max_size=1), st.just("") | NAME),
    st.builds(
        Message, st.just("user"), st.lists(TEXTS, min_size=1, max_size=1) | st.lists(IMAGES | FILES, min_size=1, max_size=2), st.just("") | NAME
    ),
    st.builds(Message, st.just("assistant"), st.builds(lambda texts, calls: [*texts, *calls], st.lists(TEXTS, min_size=1, max_size=1), CALLS)),
)
RESULTS = st.builds(Message, st.just("user"), st.lists(st.builds(ToolResult, NAME, st.lists(TEXTS, max_size=1)), min_size=1, max_size=2))
PROMPTS = st.builds(
    Prompt,
    st.lists(MESSAGES, min_size=1, max_size=4).flatmap(lambda said: st.lists(RESULTS, max_size=1).map(lambda results: [*said, *results])),
    st.lists(st.builds(Tool, NAME, st.just("") | TEXT, SCHEMAS, st.none() | st.booleans()), min_size=1, max_size=2),
    st.none() | st.builds(ToolChoice, st.sampled_from(["auto", "any", "none"])) | st.builds(ToolChoice, st.just("tool"), NAME),
    st.none() | st.booleans(),
    st.none() | st.builds(Shape) | st.builds(Shape, SCHEMAS, NAME, st.just("") | TEXT, st.none() | st.booleans()),
    temperature=st.none() | st.just(0.5),
    stop=st.lists(TEXT, max_size=2),
    seed=st.none() | st.integers(0, 9),
    effort=st.sampled_from(["", "low", "high"]),
    user=st.just("") | NAME,
)


@settings(max_examples=60)
@given(PROMPTS)
def test_what_is_written_reads_as_the_same(prompt: Prompt) -> None:
    """From the form to a request and back: nothing is lost, added or moved."""
    if prompt.messages[-1].parts and isinstance(prompt.messages[-1].parts[0], ToolResult) and len(prompt.messages) > 1:
        assume(prompt.messages[-2].role != "user")  # they would come before it
    written = write_prompt(prompt, request(), TARGET)
    assert read_prompt(read_request(written)) == prompt
