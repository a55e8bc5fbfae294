"""A prompt as a request for messages: what the API takes, and nothing that it refuses."""

import base64
import json
from typing import Any

import pytest
from msgspec import Raw

from sluicegate.dialects.anthropic_ask import write_prompt
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
from sluicegate.dialects.form import Target
from sluicegate.dialects.openai_request import read_request

MARK = Raw(b'{"type":"ephemeral","ttl":"1h"}')
SCHEMA = Raw(b'{"type":"object","properties":{}}')
OLD, MIDDLE, NEW = "claude-sonnet-4-5-20250929", "claude-opus-4-6", "claude-opus-4-8"
USE, RESULT = ToolUse("c1", "f", "{}"), ToolResult("c1", [Text("found")])


def sent(*messages: Message, model: str = OLD, cap: int = 4096, foreign: bool = False, stream: bool = False, **fields: Any) -> Any:
    prompt = Prompt(list(messages) or [Message("user", [Text("hi")])], **fields)
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": stream}
    request = read_request(json.dumps(body).encode())
    written = json.loads(write_prompt(prompt, request, Target(model, cap, "max_completion_tokens", True, foreign=foreign)))
    written["left_out"] = prompt.left_out
    return written


def user(*parts: Any) -> Message:
    return Message("user", list(parts))


def assistant(*parts: Any) -> Message:
    return Message("assistant", list(parts))


def block(part: Any) -> Any:
    return sent(user(part))["messages"][0]["content"][0]


# -- messages -----------------------------------------------------------------------------------------------------------------------------


def test_a_usual_prompt() -> None:
    """The cap is always sent, in this API's field, whatever field another dialect of the provider wants."""
    written = sent(Message("system", [Text("Be brief.")]), user(Text("hi")), stream=True)
    assert written == {
        "model": OLD, "max_tokens": 4096, "system": "Be brief.", "stream": True, "left_out": [],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
    }  # fmt: skip


def test_instructions_are_the_system_prompt() -> None:
    """Wherever they stood, in their order, with their marks; alone they are the question."""
    written = sent(Message("system", [Text("a", MARK)]), user(Text("hi")), Message("developer", [Text("b")]), user(Text("ho")))
    assert written["system"] == [{"type": "text", "text": "a", "cache_control": json.loads(bytes(MARK))}, {"type": "text", "text": "b"}]
    assert [message["role"] for message in written["messages"]] == ["user"]
    assert [part["text"] for part in written["messages"][0]["content"]] == ["hi", "ho"]
    alone = sent(Message("system", [Text("a")]), Message("system", [Text("b")]))
    assert (alone["system"], alone["messages"]) == ("a", [{"role": "user", "content": [{"type": "text", "text": "b"}]}])


def test_turns_of_one_role_are_one_and_results_come_first() -> None:
    """As the API wants them after a turn of calls."""
    written = sent(user(Text("go")), assistant(Text("a")), assistant(USE), user(Text("and")), user(RESULT), user(Text("so")))
    assert [message["role"] for message in written["messages"]] == ["user", "assistant", "user"]
    assert [part["type"] for part in written["messages"][1]["content"]] == ["text", "tool_use"]
    assert [part["type"] for part in written["messages"][2]["content"]] == ["tool_result", "text", "text"]


@pytest.mark.parametrize("empty", ["", " ", "\n\t"])
def test_case_68_empty_texts_are_left_out(empty: str) -> None:
    """In any place, marked or not, as are turns and system prompts of nothing else."""
    written = sent(
        Message("system", [Text(empty)]), user(Text("go"), Text(empty, MARK)), assistant(Text(empty), USE), user(ToolResult("c1", [Text(empty)])),
        assistant(Text(empty)), user(Text("so")),
    )  # fmt: skip
    assert "system" not in written
    assert [[part["type"] for part in message["content"]] for message in written["messages"]] == [["text"], ["tool_use"], ["tool_result", "text"]]
    assert "content" not in written["messages"][2]["content"][0]


def test_a_last_turn_of_the_assistant_ends_with_no_white_space() -> None:
    """Which the API refuses."""
    assert sent(user(Text("go")), assistant(Text("It is \n")))["messages"][1]["content"][0]["text"] == "It is"


def test_case_67_calls_without_arguments() -> None:
    """Are calls with none: an empty text, or an empty object."""
    for arguments in ("", "{}"):
        [used] = sent(user(Text("go")), assistant(ToolUse("c1", "f", arguments)), user(RESULT))["messages"][1]["content"]
        assert used == {"type": "tool_use", "id": "c1", "name": "f", "input": {}}
    with pytest.raises(Inexpressible):
        block(ToolUse("c1", "f", '{"cut'))
    with pytest.raises(Inexpressible):
        block(ToolUse("c1", "f", "[]"))


def test_ids_of_calls_are_in_the_characters_that_are_taken() -> None:
    """The same for a call and its result."""
    messages = sent(user(Text("go")), assistant(ToolUse("functions.f:0", "f", "{}")), user(ToolResult("functions.f:0", [], failed=True)))["messages"]
    assert messages[1]["content"][0]["id"] == messages[2]["content"][0]["tool_use_id"] == "functions_f_0"
    assert messages[2]["content"][0]["is_error"] is True


PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n....").decode()
JPEG = base64.b64encode(b"\xff\xd8\xff\xe0....").decode()


@pytest.mark.parametrize(
    ("image", "source"),
    [
        (Image("", "image/png", PNG), {"type": "base64", "media_type": "image/png", "data": PNG}),
        (Image("", "image/jpg", JPEG), {"type": "base64", "media_type": "image/jpeg", "data": JPEG}),
        (Image("", "image/jpeg", PNG), {"type": "base64", "media_type": "image/png", "data": PNG}),
        (Image("", "", PNG), {"type": "base64", "media_type": "image/png", "data": PNG}),
        (Image("https://x/a.png", cache=MARK), {"type": "url", "url": "https://x/a.png"}),
    ],
)
def test_case_73_images(image: Image, source: Any) -> None:
    """By their bytes with the type that these have, by URL as a URL."""
    written = block(image)
    assert (written["type"], written["source"]) == ("image", source)
    assert ("cache_control" in written) == (image.cache is not None)


def test_documents() -> None:
    """By URL, as PDF, as text; nothing else."""
    assert block(Document(url="https://x/a.pdf")) == {"type": "document", "source": {"type": "url", "url": "https://x/a.pdf"}}
    pdf = {"type": "base64", "media_type": "application/pdf", "data": "JVBE"}
    assert block(Document(media_type="application/pdf", data="JVBE", name="a.pdf")) == {"type": "document", "source": pdf, "title": "a.pdf"}
    assert block(Document(text="t"))["source"] == {"type": "text", "media_type": "text/plain", "data": "t"}
    for odd in (Document(media_type="text/csv", data="YQ=="), Image("", "image/tiff", "SUkq"), Audio("YQ==", "wav")):
        with pytest.raises(Inexpressible):
            block(odd)


def test_case_71_marks_of_a_cache_are_kept() -> None:
    """On every kind of block, and on tools."""
    mark = json.loads(bytes(MARK))
    for part in (
        Text("a", MARK),
        Image("u", cache=MARK),
        Document(url="u", cache=MARK),
        ToolResult("i", [], cache=MARK),
        ToolUse("i", "f", "{}", MARK),
    ):
        assert block(part)["cache_control"] == mark
    assert sent(tools=[Tool("f", "", SCHEMA, cache=MARK)])["tools"][0]["cache_control"] == mark


def test_case_70_thinking_goes_back_with_its_proof_alone() -> None:
    """And only to the model that gave it."""
    turn = assistant(Thinking("hm", "proof"), Thinking("no proof"), RedactedThinking("x"), Refusal("no"), USE)
    [thought, hidden, said, _] = sent(user(Text("go")), turn, user(RESULT))["messages"][1]["content"]
    assert thought == {"type": "thinking", "thinking": "hm", "signature": "proof"}
    assert (hidden, said) == ({"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "no"})
    assert [part["type"] for part in sent(user(Text("go")), turn, user(RESULT), foreign=True)["messages"][1]["content"]] == ["text", "tool_use"]


# -- settings -----------------------------------------------------------------------------------------------------------------------------


def test_tools() -> None:
    """With a schema that says it is of an object, whatever came."""
    tools = [Tool("a", "d", SCHEMA, strict=True), Tool("b", "", Raw(b"")), Tool("c", "", Raw(b'{"properties":{"x":{}}}'))]
    written = sent(tools=tools)["tools"]
    assert written[0] == {"name": "a", "description": "d", "input_schema": {"type": "object", "properties": {}}, "strict": True}
    assert written[1] == {"name": "b", "input_schema": {"type": "object", "properties": {}}}
    assert written[2]["input_schema"] == {"type": "object", "properties": {"x": {}}}


@pytest.mark.parametrize(
    ("choice", "parallel", "want"),
    [
        (None, None, None),
        (None, False, {"type": "auto", "disable_parallel_tool_use": True}),
        (ToolChoice("auto"), None, {"type": "auto"}),
        (ToolChoice("any"), False, {"type": "any", "disable_parallel_tool_use": True}),
        (ToolChoice("tool", "f"), True, {"type": "tool", "name": "f", "disable_parallel_tool_use": False}),
        (ToolChoice("none"), False, {"type": "none"}),
    ],
)
def test_choice_of_a_tool(choice: ToolChoice | None, parallel: bool | None, want: Any) -> None:
    """With parallel calls switched off where there may be any; nothing without tools."""
    assert sent(tools=[Tool("f", "", SCHEMA)], tool_choice=choice, parallel_tool_calls=parallel).get("tool_choice") == want
    assert "tool_choice" not in sent(tool_choice=choice, parallel_tool_calls=parallel)


THINKING = [
    (OLD, {"thinking_budget": 2048, "thinking": "on"}, {"type": "enabled", "budget_tokens": 2048}, None),
    (OLD, {"thinking_budget": 4095}, {"type": "enabled", "budget_tokens": 4095}, None),
    (OLD, {"thinking_budget": 9000}, {"type": "enabled", "budget_tokens": 3072}, None),
    (OLD, {"effort": "medium", "cap": 1200}, None, None),
    (OLD, {"effort": "high", "cap": 1365}, None, None),
    (OLD, {"effort": "high", "cap": 1366}, {"type": "enabled", "budget_tokens": 1024}, None),
    (OLD, {"effort": "high", "cap": 40_000}, {"type": "enabled", "budget_tokens": 24_576}, None),
    (OLD, {"thinking_budget": 1100, "cap": 1200}, {"type": "enabled", "budget_tokens": 1100}, None),
    (OLD, {"thinking_budget": 1200, "cap": 1200}, None, None),
    (OLD, {"effort": "low"}, {"type": "enabled", "budget_tokens": 1024}, None),
    (OLD, {"effort": "high"}, {"type": "enabled", "budget_tokens": 3072}, None),
    (OLD, {"thinking": "adaptive"}, {"type": "enabled", "budget_tokens": 3072}, None),
    (OLD, {"effort": "none"}, {"type": "disabled"}, None),
    (OLD, {}, None, None),
    ("claude-3-5-haiku-20241022", {"effort": "high"}, None, None),
    ("claude-3-5-haiku-20241022", {"thinking": "off"}, None, None),
    ("anthropic/claude-3.7-sonnet", {"effort": "low"}, {"type": "enabled", "budget_tokens": 1024}, None),
    ("claude-opus-4-20250514", {"effort": "minimal"}, {"type": "enabled", "budget_tokens": 1024}, None),
    ("kimi-k2", {"effort": "low"}, {"type": "enabled", "budget_tokens": 1024}, None),
    (MIDDLE, {"effort": "xhigh"}, {"type": "adaptive"}, "high"),
    (MIDDLE, {"thinking_budget": 2048}, {"type": "adaptive"}, "low"),
    (MIDDLE, {"thinking_budget": 512, "thinking": "on"}, {"type": "adaptive"}, "low"),
    (NEW, {"thinking_budget": 10_000, "effort": "high"}, {"type": "adaptive"}, "high"),
    (NEW, {"thinking_budget": 10_000}, {"type": "adaptive"}, "medium"),
    (NEW, {"thinking": "on"}, {"type": "adaptive"}, None),
    (NEW, {"effort": "max"}, {"type": "adaptive"}, "max"),
    (OLD, {"effort": "max"}, {"type": "enabled", "budget_tokens": 3072}, None),
    (NEW, {"effort": "xhigh"}, {"type": "adaptive"}, "xhigh"),
    (NEW, {"effort": "minimal"}, {"type": "adaptive"}, "low"),
    ("claude-fable-5-1", {"effort": "medium"}, {"type": "adaptive"}, "medium"),
]


@pytest.mark.parametrize(("model", "fields", "want", "effort"), THINKING, ids=range(len(THINKING)))
def test_thinking(model: str, fields: Any, want: Any, effort: str | None) -> None:
    """A budget for models that take one: the client's own if below the cap, else one that leaves the answer a quarter; an effort for later ones."""
    written = sent(model=model, **fields)
    assert (written.get("thinking"), written.get("output_config", {}).get("effort")) == (want, effort)


def test_thinking_that_would_be_refused_is_left_out() -> None:
    """With a cap that leaves no budget, with a call that is demanded, and in a loop of tools that has begun without it."""
    tools = [Tool("f", "", SCHEMA)]
    loop = (user(Text("go")), assistant(USE), user(RESULT))
    for written in (sent(effort="low", cap=1024), sent(effort="low", tools=tools, tool_choice=ToolChoice("any")), sent(*loop, effort="low")):
        assert "thinking" not in written and written["left_out"] == ["thinking"]
    signed = (user(Text("go")), assistant(Thinking("hm", "proof"), USE), user(RESULT))
    assert sent(*signed, effort="low")["thinking"]["type"] == "enabled"
    assert sent(*loop, effort="low", model=NEW)["thinking"] == {"type": "adaptive"}


def test_what_tunes() -> None:
    """Within this API's bounds; what it does not take is left out and named."""
    written = sent(temperature=1.7, top_p=0.5, top_k=9, stop=["x", "\n"], seed=1, presence_penalty=0.1, frequency_penalty=0.2, user="u")
    assert (written["temperature"], written["top_k"], written["stop_sequences"], written["metadata"]) == (1.0, 9, ["x"], {"user_id": "u"})
    assert written["left_out"] == ["top_p", "stop", "seed", "presence_penalty", "frequency_penalty"]
    assert sent(top_p=0.5)["top_p"] == 0.5
    for fields in ({"model": NEW}, {"effort": "low"}):
        assert sent(temperature=0.2, top_k=9, **fields)["left_out"] == ["temperature", "top_k"]
    assert sent(Message("user", [Text("hi")], "ann"))["left_out"] == ["messages.name"]


def test_the_shape_of_the_answer() -> None:
    """A schema is one of this API's own; JSON without one cannot be asked for."""
    assert sent(shape=Shape(SCHEMA, "a", strict=True))["output_config"] == {"format": {"type": "json_schema", "schema": json.loads(bytes(SCHEMA))}}
    both = sent(shape=Shape(SCHEMA), effort="low", model=NEW)["output_config"]
    assert sorted(both) == ["effort", "format"]
    with pytest.raises(Inexpressible) as error:
        sent(shape=Shape())
    assert error.value.param == "response_format"


def test_several_answers_cannot_be_asked_for() -> None:
    """They raise Inexpressible, which names the field."""
    request = read_request(b'{"model":"m","messages":[{"role":"user","content":"hi"}],"n":2}')
    with pytest.raises(Inexpressible) as error:
        write_prompt(Prompt([user(Text("hi"))]), request, Target("m", 5, "max_tokens", True))
    assert error.value.param == "n"


def test_quirks_of_a_provider() -> None:
    """Fields that it does not take are left out, others renamed."""
    request = read_request(b'{"model":"m","messages":[{"role":"user","content":"hi"}]}')
    target = Target("m", 5, "max_tokens", True, rejects=("top_k",), renames=(("stop_sequences", "stop"),))
    written = json.loads(write_prompt(Prompt([user(Text("hi"))], top_k=4, stop=["x"]), request, target))
    assert ("top_k" in written, written["stop"]) == (False, ["x"])
