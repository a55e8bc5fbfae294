"""A client's chat request as a prompt: every role, part, tool and setting, and what cannot be said."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from sluicegate.dialects.content import (
    Audio,
    Document,
    Image,
    Inexpressible,
    Message,
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
from sluicegate.dialects.form import BadRequest
from sluicegate.dialects.openai_chat_prompt import read_prompt
from sluicegate.dialects.openai_request import read_request

HELLO = [{"role": "user", "content": "Hello"}]
PNG = "data:image/png;base64,iVBORw0K"
CACHE = {"type": "ephemeral", "ttl": "1h"}
CACHED = Raw(json.dumps(CACHE, separators=(",", ":")).encode())


def prompt_of(messages: Any = None, **fields: Any) -> Prompt:
    """What a request says, as the gateway reads it."""
    body = {"model": "m", "messages": HELLO if messages is None else messages, **fields}
    return read_prompt(read_request(json.dumps(body, separators=(",", ":")).encode()))


def user(*parts: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts), **fields}


def call(name: str = "f", arguments: Any = "{}", id: str = "c1", **fields: Any) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}, **fields}


def assistant(*calls: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": list(calls), **fields}


def function(name: str = "f", **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


# -- messages -----------------------------------------------------------------------------------------------------------------------------


def test_every_role_in_its_place() -> None:
    """System and developer messages stay where they stood; names are kept."""
    messages = [
        {"role": "system", "content": "S"},
        {"role": "developer", "content": [{"type": "text", "text": "D"}]},
        {"role": "user", "content": "U", "name": "ann"},
        {"role": "assistant", "content": "A"},
        {"role": "system", "content": "S2"},
    ]
    assert prompt_of(messages).messages == [
        Message("system", [Text("S")]),
        Message("developer", [Text("D")]),
        Message("user", [Text("U")], "ann"),
        Message("assistant", [Text("A")]),
        Message("system", [Text("S2")]),
    ]


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}, {"content": []}, {"content": [{"type": "text", "text": ""}]}])
def test_an_assistant_that_only_calls_has_no_text(content: dict[str, Any]) -> None:
    """Content that is null, absent or empty beside calls is no part (cases 68, 76)."""
    assert prompt_of([*HELLO, assistant(call(), **content)]).messages[1:] == [Message("assistant", [ToolUse("c1", "f", "{}")])]


def test_messages_in_which_nothing_is_left_are_left_out() -> None:
    """An empty message says nothing."""
    assert prompt_of([{"role": "system", "content": ""}, *HELLO, {"role": "assistant", "content": None}]).messages == [
        Message("user", [Text("Hello")])
    ]


@pytest.mark.parametrize(
    ("part", "want"),
    [
        ({"type": "text", "text": "t"}, Text("t")),
        ({"type": "image_url", "image_url": {"url": PNG, "detail": "low"}}, Image("", "image/png", "iVBORw0K", "low")),
        ({"type": "image_url", "image_url": PNG}, Image("", "image/png", "iVBORw0K")),
        ({"type": "image_url", "image_url": "data:image/jpg;base64,AA=="}, Image("", "image/jpeg", "AA==")),
        ({"type": "image_url", "image_url": "DATA:image/PNG;x=1;base64,AA=="}, Image("", "image/png", "AA==")),
        ({"type": "image_url", "image_url": {"url": "https://a.test/b.png"}}, Image("https://a.test/b.png")),
        ({"type": "input_audio", "input_audio": {"data": "UklG", "format": "wav"}}, Audio("UklG", "wav")),
        (
            {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}},
            Document("", "application/pdf", "JVBERi0=", "", "a.pdf"),
        ),
        ({"type": "file", "file": {"file_data": "JVBERi0="}}, Document("", "application/pdf", "JVBERi0=")),
        ({"type": "file", "file": {"file_data": "SGk=", "filename": "a.txt"}}, Document("", "text/plain", "SGk=", "", "a.txt")),
        ({"type": "file", "file": {"file_data": "https://a.test/b.pdf"}}, Document("https://a.test/b.pdf")),
        ({"type": "refusal", "refusal": "no"}, Refusal("no")),
    ],
)
def test_parts(part: dict[str, Any], want: Any) -> None:
    """Images and files by data and by URL, with the media type that they have (case 73), audio, refusals."""
    assert prompt_of([user(part)]).messages == [Message("user", [want])]


@pytest.mark.parametrize(
    ("part", "param"),
    [
        ({"type": "video_url", "video_url": {"url": "https://a.test"}}, "type"),
        ({"type": "file", "file": {"file_id": "file-1"}}, "file.file_id"),
        ({"type": "file"}, "type"),
        ({"type": "input_audio"}, "type"),
        ({"type": "image_url", "image_url": {"url": "data:image/png,%89"}}, "image_url"),
        ({"type": "image_url", "image_url": "data:image/png;base64,"}, "image_url"),
        ({"type": "file", "file": {"file_data": "data:text/plain,hello"}}, "file.file_data"),
    ],
)
def test_parts_that_no_other_dialect_knows(part: dict[str, Any], param: str) -> None:
    """They are named with their place in the request."""
    with pytest.raises(Inexpressible) as error:
        prompt_of([*HELLO, user({"type": "text", "text": "x"}, part)])
    assert error.value.param == f"messages[1].content[1].{param}"


def test_results_of_tools_are_parts_of_one_message() -> None:
    """Results that follow each other belong together, whatever is in them; what the user says next is a message of its own."""
    messages = [
        assistant(call(id="c1"), call("g", '{"q": 1}', id="c2"), content="Let me see."),
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
        {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "two"}, {"type": "image_url", "image_url": PNG}]},
        {"role": "user", "content": "And?"},
        {"role": "tool", "tool_call_id": "c3", "content": ""},
    ]
    assert prompt_of(messages).messages == [
        Message("assistant", [Text("Let me see."), ToolUse("c1", "f", "{}"), ToolUse("c2", "g", '{"q": 1}')]),
        Message("user", [ToolResult("c1", [Text("one")]), ToolResult("c2", [Text("two"), Image("", "image/png", "iVBORw0K")])]),
        Message("user", [Text("And?")]),
        Message("user", [ToolResult("c3", [])]),
    ]


def test_older_functions_get_ids() -> None:
    """A call and its result find each other by the function's name, the latest call first."""
    messages = [
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": ""}},
        {"role": "function", "name": "f", "content": "1"},
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"a":1}'}},
        {"role": "function", "name": "f", "content": "2"},
        {"role": "function", "name": "never called", "content": "3"},
    ]
    assert prompt_of(messages).messages == [
        Message("assistant", [ToolUse("call_0", "f", "{}")]),
        Message("user", [ToolResult("call_0", [Text("1")])]),
        Message("assistant", [ToolUse("call_2", "f", '{"a":1}')]),
        Message("user", [ToolResult("call_2", [Text("2")]), ToolResult("call_4", [Text("3")])]),
    ]


@pytest.mark.parametrize(
    ("arguments", "want"), [("", "{}"), (" ", "{}"), ("{}", "{}"), ('{"a": 1}', '{"a": 1}'), ({"a": 1}, '{"a":1}'), (None, "{}")]
)
def test_arguments_are_the_text_of_an_object(arguments: Any, want: str) -> None:
    """None at all are an empty object (case 67); what has content stays as it came."""
    assert prompt_of([assistant(call("f", arguments))]).messages[0].parts == [ToolUse("c1", "f", want)]


def test_a_call_without_an_id_gets_one() -> None:
    """By its place."""
    made = call()
    del made["id"]
    assert prompt_of([*HELLO, assistant(call(id="x"), made)]).messages[1].parts == [ToolUse("x", "f", "{}"), ToolUse("call_1_1", "f", "{}")]


def test_refusals_of_the_assistant() -> None:
    """Beside content or as a part."""
    assert prompt_of([{"role": "assistant", "content": None, "refusal": "no"}]).messages[0].parts == [Refusal("no")]
    assert prompt_of([{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}]).messages[0].parts == [Refusal("no")]


DETAILS = [
    {"type": "reasoning.text", "text": "why", "signature": "sig", "format": "anthropic-claude-v1", "index": 0},
    {"type": "reasoning.encrypted", "data": "zz", "format": "anthropic-claude-v1", "index": 1},
]
BLOCKS = [{"type": "thinking", "thinking": "why", "signature": "sig"}, {"type": "redacted_thinking", "data": "zz"}]


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_details": DETAILS},
        {"reasoning_details": DETAILS, "thinking_blocks": BLOCKS, "reasoning_content": "why"},
        {"thinking_blocks": BLOCKS},
    ],
)
def test_signed_thinking_is_taken_back_once(fields: dict[str, Any]) -> None:
    """From the fields in which vendors keep it, before everything else that the turn said."""
    (message,) = prompt_of([assistant(call(), content="x", **fields)]).messages
    assert message.parts == [Thinking("why", "sig"), RedactedThinking("zz"), Text("x"), ToolUse("c1", "f", "{}")]


def test_thinking_in_the_content() -> None:
    """Blocks as Anthropic has them are taken as such; Mistral's have no signature."""
    blocks = [*BLOCKS, {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "x"}]
    (message,) = prompt_of([{"role": "assistant", "content": blocks}]).messages
    assert message.parts == [Thinking("why", "sig"), RedactedThinking("zz"), Text("x")]


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_content": "why", "reasoning": "why"},
        {"reasoning": "why"},
        {"reasoning_content": "why", "reasoning_details": [{"type": "reasoning.encrypted", "data": "zz", "format": "openai-responses-v1"}]},
    ],
)
def test_thinking_that_nobody_signed(fields: dict[str, Any]) -> None:
    """Is text, once, for the providers that read such."""
    assert prompt_of([{"role": "assistant", "content": "x", **fields}]).messages == [Message("assistant", [Thinking("why"), Text("x")])]


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_content": "", "reasoning": {"effort": "low"}},
        {"reasoning_details": [{"type": "reasoning.text", "text": "why"}]},
        {"reasoning_details": [{"type": "reasoning.encrypted", "data": "zz", "format": "openai-responses-v1"}]},
        {"reasoning_details": [{"type": "reasoning.text", "text": "why", "signature": "s", "format": "google-gemini-v1"}]},
        {"thinking_blocks": [{"type": "thinking", "thinking": "why", "signature": None}]},
    ],
)
def test_thinking_that_another_kind_of_model_signed_stays_behind(fields: dict[str, Any]) -> None:
    """So does a block for signed thinking in which there is no signature."""
    assert prompt_of([{"role": "assistant", "content": "x", **fields}]).messages == [Message("assistant", [Text("x")])]


def test_cache_marks_are_kept_wherever_they_are() -> None:
    """On parts, messages of each role, calls and tools, with their ttl (case 71)."""
    messages = [
        {"role": "system", "content": "S", "cache_control": CACHE},
        user({"type": "text", "text": "a", "cache_control": CACHE}, {"type": "image_url", "image_url": PNG, "cache_control": CACHE}),
        user({"type": "text", "text": "a"}, {"type": "text", "text": "b"}, cache_control=CACHE),
        assistant(call(cache_control=CACHE)),
        {"role": "tool", "tool_call_id": "c1", "content": "r", "cache_control": CACHE},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "r", "cache_control": CACHE}]},
        {"role": "user", "content": "x", "cache_control": None},
    ]
    tools = [{**function("f"), "cache_control": CACHE}, function("g", cache_control=CACHE), function("h")]
    prompt = prompt_of(messages, tools=tools)
    assert prompt.messages == [
        Message("system", [Text("S", CACHED)]),
        Message("user", [Text("a", CACHED), Image("", "image/png", "iVBORw0K", "", CACHED)]),
        Message("user", [Text("a"), Text("b", CACHED)]),
        Message("assistant", [ToolUse("c1", "f", "{}", CACHED)]),
        Message("user", [ToolResult("c1", [Text("r")], cache=CACHED), ToolResult("c1", [Text("r", CACHED)])]),
        Message("user", [Text("x")]),
    ]
    assert [tool.cache for tool in prompt.tools] == [CACHED, CACHED, None]


# -- tools and settings -------------------------------------------------------------------------------------------------------------------

SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}}


def test_tools() -> None:
    """With the schema as it came, and one that takes nothing where there is none."""
    tools = [function("f", description="d", parameters=SCHEMA, strict=True), function("g"), function("h", parameters=None)]
    first, second, third = prompt_of(tools=tools).tools
    assert (first.name, first.description, first.strict, json.loads(bytes(first.schema))) == ("f", "d", True, SCHEMA)
    assert second == Tool("g", "", Raw(b'{"type":"object","properties":{}}'))
    assert third.schema == second.schema


def test_older_functions_are_tools_that_are_called_one_at_a_time() -> None:
    """`functions` and `function_call` in all forms; where there are tools, those count."""
    functions = [{"name": "f", "parameters": SCHEMA}]
    prompt = prompt_of(functions=functions, function_call={"name": "f"})
    assert (prompt.tools[0].name, prompt.tool_choice, prompt.parallel_tool_calls) == ("f", ToolChoice("tool", "f"), False)
    assert prompt_of(functions=functions, function_call="none").tool_choice == ToolChoice("none")
    assert prompt_of(functions=functions).tool_choice is None
    both = prompt_of(functions=functions, tools=[function("g")], function_call="none")
    assert ([tool.name for tool in both.tools], both.tool_choice, both.parallel_tool_calls) == (["g"], None, None)


@pytest.mark.parametrize(
    ("choice", "want"),
    [
        (None, None),
        ("auto", ToolChoice("auto")),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("any")),
        ("any", ToolChoice("any")),
        ({"type": "function", "function": {"name": "f"}}, ToolChoice("tool", "f")),
        ({"type": "tool", "name": "f"}, ToolChoice("tool", "f")),
        ({"type": "any"}, ToolChoice("any")),
    ],
)
def test_choices_of_tools(choice: Any, want: ToolChoice | None) -> None:
    """In all forms that clients send."""
    assert prompt_of(tools=[function()], tool_choice=choice).tool_choice == want


def test_allowed_tools() -> None:
    """Only those are offered."""
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [function("g")]}}
    prompt = prompt_of(tools=[function("f"), function("g")], tool_choice=allowed)
    assert ([tool.name for tool in prompt.tools], prompt.tool_choice) == (["g"], ToolChoice("any"))


def test_a_choice_without_tools_says_nothing() -> None:
    """There is nothing to choose from."""
    assert prompt_of(tool_choice="required").tool_choice is None


@pytest.mark.parametrize(
    ("format", "want"),
    [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, Shape()),
        (
            {"type": "json_schema", "json_schema": {"name": "n", "description": "d", "schema": {"type": "object"}, "strict": True}},
            Shape(Raw(b'{"type":"object"}'), "n", "d", True),
        ),
        ({"type": "json_schema", "json_schema": {"schema": {}}}, Shape(Raw(b"{}"))),
    ],
)
def test_shapes(format: Any, want: Shape | None) -> None:
    """Text, any JSON, or JSON of a schema."""
    assert prompt_of(response_format=format).shape == want


def test_sampling() -> None:
    """Each setting is read; a single stop is a list of one."""
    fields = {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "seed": 7, "presence_penalty": 1, "frequency_penalty": -1, "user": "u"}
    prompt = prompt_of(stop="END", parallel_tool_calls=False, **fields)
    assert {name: getattr(prompt, name) for name in fields} == fields
    assert (prompt.stop, prompt.parallel_tool_calls) == (["END"], False)
    assert prompt_of(stop=["a", "b"]).stop == ["a", "b"]
    plain = prompt_of()
    assert (plain.stop, plain.temperature, plain.parallel_tool_calls, plain.left_out) == ([], None, None, [])


@pytest.mark.parametrize(
    ("fields", "effort", "thinking", "budget"),
    [
        ({"reasoning_effort": "low"}, "low", "", None),
        ({"reasoning": {"effort": "high"}}, "high", "", None),
        ({"reasoning": {"max_tokens": 2000}}, "", "on", 2000),
        ({"reasoning": {"enabled": True}}, "", "on", None),
        ({"reasoning": {"enabled": False}}, "", "off", None),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "", "on", 1024),
        ({"thinking": {"type": "disabled"}}, "", "off", None),
        ({"thinking": {"type": "adaptive"}, "reasoning_effort": "low"}, "low", "adaptive", None),
        ({"thinking": True}, "", "on", None),
        ({"thinking": False}, "", "off", None),
        ({"thinking": "medium"}, "medium", "", None),
    ],
)
def test_thinking(fields: dict[str, Any], effort: str, thinking: str, budget: int | None) -> None:
    """As OpenAI, OpenRouter and Anthropic ask for it."""
    prompt = prompt_of(**fields)
    assert (prompt.effort, prompt.thinking, prompt.thinking_budget, prompt.left_out) == (effort, thinking, budget, [])


def test_unknown_thinking_is_named() -> None:
    """What it asks for is not known."""
    assert prompt_of(thinking={"type": "odd"}).left_out == ["thinking"]


def test_what_only_tunes_is_left_out_and_named() -> None:
    """Fields that have no place elsewhere, unknown ones among them; those without a value are not worth a word."""
    fields = {
        "logit_bias": {"5": 1}, "metadata": {"a": "b"}, "service_tier": "flex", "store": True, "verbosity": "low", "safety_identifier": "s",
        "prediction": {"type": "content", "content": "p"}, "modalities": ["text"], "min_p": 0.1, "something_new": 5,
    }  # fmt: skip
    assert prompt_of(**fields, logprobs=False, top_logprobs=None, nothing=[], n=1, max_tokens=5).left_out == sorted(fields)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"best_of": 3}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}}, "modalities"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"previous_response_id": "r"}, "previous_response_id"),
        ({"guided_json": {"type": "object"}}, "guided_json"),
        ({"grammar": "root ::= x"}, "grammar"),
        ({"moderation": {"model": "m"}}, "moderation"),
        ({"tools": [function(), {"type": "custom", "custom": {"name": "sh"}}]}, "tools[1].type"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [function()], "tool_choice": {"type": "custom", "custom": {"name": "sh"}}}, "tool_choice"),
        ({"tools": [function()], "tool_choice": "odd"}, "tool_choice"),
        ({"response_format": {"type": "grammar"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.type"),
        ({"messages": [{"role": "assistant", "audio": {"id": "a"}}]}, "messages[0].audio"),
        ({"messages": [{"role": "ipython", "content": "x"}]}, "messages[0].role"),
        (
            {"messages": [assistant({"id": "c", "type": "custom", "custom": {"name": "sh", "input": "ls"}})]},
            "messages[0].tool_calls[0].type",
        ),
        ({"messages": [{"role": "tool", "tool_call_id": "c", "content": [{"type": "refusal", "refusal": "no"}]}]}, "messages[0].content"),
    ],
)
def test_what_makes_another_kind_of_answer_cannot_be_said(fields: dict[str, Any], param: str) -> None:
    """Another deployment may be able to; the field is named."""
    with pytest.raises(Inexpressible) as error:
        prompt_of(**fields)
    assert error.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": "yes"}}]}, "tools[0].function.strict"),
        ({"tool_choice": 5}, "tool_choice"),
        ({"reasoning_effort": 5}, "reasoning_effort"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]}, "messages[0].tool_calls[0].function.name"),
        ({"messages": [{"role": "tool", "tool_call_id": 5, "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [user({"type": "file", "file": "f"})]}, "messages[0].content[0].file"),
    ],
)
def test_odd_values_are_named(fields: dict[str, Any], param: str) -> None:
    """What the same dialect would pass on to the provider is looked at where it has to be understood."""
    with pytest.raises(BadRequest) as error:
        prompt_of(**fields)
    assert error.value.param == param


def test_too_deep_is_a_bad_request() -> None:
    """What can be read flat may be too deep to be read as what it is."""
    deep = b'{"model":"m","messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":' + b"[" * 900 + b"]" * 900 + b"}}]}]}"
    with pytest.raises(BadRequest):
        read_prompt(read_request(deep.replace(b"[" * 900, b"[" * 200_000).replace(b"]" * 900, b"]" * 200_000)))


NAMES = [
    "role", "content", "type", "text", "image_url", "url", "tool_calls", "function", "name", "arguments", "tool_call_id", "file", "file_data",
    "reasoning_details", "signature", "data", "thinking_blocks", "cache_control", "function_call", "refusal", "id",
]  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "a", "text", "tool", "assistant", "user", "function", "data:a;base64,AA"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=10,
)
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "function", "system", "odd"])}, optional={name: JSON for name in NAMES[1:]}
)
SETTINGS = st.dictionaries(
    st.sampled_from(["tools", "functions", "tool_choice", "function_call", "response_format", "stop", "reasoning", "thinking", "new", "user"]), JSON
)


@settings(max_examples=150)
@given(st.lists(MESSAGES, min_size=1, max_size=3), SETTINGS)
def test_only_bad_requests_are_raised(messages: Any, fields: Any) -> None:
    """Whatever a client sends, it is read or refused."""
    try:
        prompt = prompt_of(messages, **fields)
    except BadRequest:
        return
    assert all(message.parts for message in prompt.messages)
