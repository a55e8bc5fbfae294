"""A client's request for messages in the content form, and through it to providers of other dialects and back."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from sluicegate.dialects import anthropic_ask, openai_chat, openai_chat_content
from sluicegate.dialects.anthropic_prompt import read_prompt
from sluicegate.dialects.anthropic_request import read_request
from sluicegate.dialects.anthropic_thinking import UNSIGNED
from sluicegate.dialects.content import (
    Document,
    Image,
    Inexpressible,
    Message,
    Prompt,
    RedactedThinking,
    Shape,
    Text,
    Thinking,
    Tool,
    ToolChoice,
    ToolResult,
    ToolUse,
)
from sluicegate.dialects.form import BadRequest, Target

USER = {"role": "user", "content": "hi"}
MARK = {"type": "ephemeral", "ttl": "1h"}
RAW_MARK = Raw(b'{"type": "ephemeral", "ttl": "1h"}')
TARGET = Target("served", 64, "max_tokens", True)


def prompt(**fields: Any) -> Prompt:
    return read_prompt(read_request(json.dumps({"model": "m", "max_tokens": 2048, "messages": [USER], **fields}).encode()))


def parts(*blocks: Any) -> Any:
    return prompt(messages=[{"role": "user", "content": list(blocks)}]).messages[0].parts


def test_usual_request() -> None:
    """A system prompt, turns, and what tunes; system messages stay where they stood."""
    got = prompt(
        system="Be brief.", temperature=0.5, top_p=0.9, top_k=4, stop_sequences=["x"], metadata={"user_id": "u"},
        messages=[USER, {"role": "system", "content": "Now long."}, {"role": "assistant", "content": "yes"}],
    )  # fmt: skip
    assert got.messages == [
        Message("system", [Text("Be brief.")]), Message("user", [Text("hi")]),
        Message("system", [Text("Now long.")]), Message("assistant", [Text("yes")]),
    ]  # fmt: skip
    assert (got.temperature, got.top_p, got.top_k, got.stop, got.user, got.left_out) == (0.5, 0.9, 4, ["x"], "u", [])


BLOCKS = [
    ({"type": "text", "text": "a", "cache_control": MARK}, [Text("a", RAW_MARK)]),
    ({"type": "text", "text": "a", "citations": [{"cited_text": "x"}]}, [Text("a")]),
    (
        {"type": "image", "source": {"type": "base64", "media_type": "image/jpg", "data": "/9j/"}, "cache_control": MARK},
        [Image("", "image/jpeg", "/9j/", cache=RAW_MARK)],
    ),
    ({"type": "image", "source": {"type": "url", "url": "https://x/a.png"}}, [Image("https://x/a.png")]),
    (
        {"type": "document", "title": "t", "context": "c", "source": {"type": "text", "media_type": "text/plain", "data": "d"}},
        [Text("c"), Document(media_type="text/plain", text="d", name="t")],
    ),
    (
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBE"}},
        [Document(media_type="application/pdf", data="JVBE")],
    ),
    ({"type": "document", "source": {"type": "url", "url": "https://x/a.pdf"}}, [Document(url="https://x/a.pdf")]),
    (
        {"type": "document", "title": "t", "source": {"type": "content", "content": [{"type": "text", "text": "a"}]}},
        [Text("t"), Text("a")],
    ),
    ({"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": "a"}]}, [Text("t\ns\na")]),
    ({"type": "tool_use", "id": "i", "name": "f", "input": {"q": 1}, "cache_control": MARK}, [ToolUse("i", "f", '{"q":1}', RAW_MARK)]),
    ({"type": "tool_use", "id": "i", "name": "f", "input": {}}, [ToolUse("i", "f", "{}")]),
    ({"type": "tool_result", "tool_use_id": "i", "content": "a", "is_error": True}, [ToolResult("i", [Text("a")], failed=True)]),
    ({"type": "tool_result", "tool_use_id": "i"}, [ToolResult("i", [])]),
    (
        {
            "type": "tool_result",
            "tool_use_id": "i",
            "content": [{"type": "text", "text": "a"}, {"type": "image", "source": {"type": "url", "url": "u"}}],
        },
        [ToolResult("i", [Text("a"), Image("u")])],
    ),
    ({"type": "thinking", "thinking": "hm", "signature": "proof"}, [Thinking("hm", "proof")]),
    ({"type": "thinking", "thinking": "hm", "signature": UNSIGNED}, [Thinking("hm")]),
    ({"type": "redacted_thinking", "data": "x"}, [RedactedThinking("x")]),
]


@pytest.mark.parametrize(("block", "want"), BLOCKS, ids=range(len(BLOCKS)))
def test_blocks(block: Any, want: Any) -> None:
    """Each block that others know has its part, with its mark of a cache (case 71)."""
    assert [json.loads(json.dumps(_plain(part))) for part in parts(block)] == [json.loads(json.dumps(_plain(part))) for part in want]


def _plain(part: Any) -> Any:
    fields = {name: getattr(part, name) for name in part.__struct_fields__}
    fields["cache"] = json.loads(bytes(fields["cache"])) if fields.get("cache") is not None else None
    fields["parts"] = [_plain(inner) for inner in fields.get("parts", [])]
    return {"kind": type(part).__name__, **fields}


def test_tools_and_their_choice() -> None:
    """Definitions with marks; every choice; parallel calls switched off."""
    tool = {"type": "custom", "name": "f", "description": "d", "input_schema": {"type": "object"}, "strict": True, "cache_control": MARK}
    got = prompt(tools=[tool], tool_choice={"type": "tool", "name": "f", "disable_parallel_tool_use": True})
    [read] = got.tools
    assert isinstance(read, Tool) and (read.name, read.description, bytes(read.schema), read.strict) == ("f", "d", b'{"type": "object"}', True)
    assert read.cache is not None and json.loads(bytes(read.cache)) == MARK
    assert (got.tool_choice, got.parallel_tool_calls) == (ToolChoice("tool", "f"), False)
    assert [prompt(tool_choice={"type": kind}).tool_choice for kind in ("auto", "any", "none")] == [
        ToolChoice("auto"),
        ToolChoice("any"),
        ToolChoice("none"),
    ]
    assert prompt(tool_choice={"type": "auto"}).parallel_tool_calls is None


def test_thinking_effort_and_shape() -> None:
    """As the form has them; the highest effort is the highest that others have."""
    got = prompt(
        thinking={"type": "enabled", "budget_tokens": 1024},
        output_config={"effort": "max", "format": {"type": "json_schema", "schema": {"type": "object"}}},
    )
    assert (got.thinking, got.thinking_budget, got.effort) == ("on", 1024, "xhigh")
    assert isinstance(got.shape, Shape) and got.shape.schema is not None and bytes(got.shape.schema) == b'{"type": "object"}'
    assert [prompt(thinking={"type": kind}).thinking for kind in ("adaptive", "disabled", "between_tools")] == ["adaptive", "off", "adaptive"]


def test_what_only_tunes_is_left_out_and_named() -> None:
    """Fields that no other dialect has, and unknown ones; not those that are absent."""
    got = prompt(service_tier="auto", cache_control=MARK, context_management={"edits": [{"type": "clear_tool_uses_20250919"}]}, new=1, old=None)
    assert got.left_out == ["cache_control", "context_management", "new", "service_tier"]


INEXPRESSIBLE = [
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "file", "file_id": "f"}}]}]}, "messages[0].content[0].source"),
    (
        {"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "file", "file_id": "f"}}]}]},
        "messages[0].content[0].source",
    ),
    ({"messages": [{"role": "user", "content": [{"type": "container_upload", "file_id": "f"}]}]}, "messages[0].content[0].type"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
    ({"mcp_servers": [{"type": "url", "url": "u", "name": "m"}]}, "mcp_servers"),
    ({"container": "c"}, "container"),
    ({"output_config": {"format": {"type": "grammar"}}}, "output_config.format"),
]


@pytest.mark.parametrize(("fields", "param"), INEXPRESSIBLE, ids=range(len(INEXPRESSIBLE)))
def test_what_no_other_dialect_can_say(fields: Any, param: str) -> None:
    """Is named: another deployment of the route may take it."""
    with pytest.raises(Inexpressible) as error:
        prompt(**fields)
    assert error.value.param == param


def test_only_bad_requests_are_raised() -> None:
    """Of values on which nothing depends for a provider of the same dialect."""
    with pytest.raises(BadRequest):
        prompt(metadata={"user_id": 5})


# -- to another dialect and back ------------------------------------------------------------------------------------------------------------

WORDS = st.text("abc é\u2028", min_size=1, max_size=8).filter(str.strip)
IDS = st.text("abc_-1", min_size=1, max_size=6)
TEXTS = st.builds(lambda text: {"type": "text", "text": text}, WORDS)
CALLS = st.lists(st.tuples(IDS, st.dictionaries(WORDS, st.integers() | WORDS, max_size=2)), min_size=1, max_size=3, unique_by=lambda call: call[0])


@st.composite
def conversations(draw: st.DrawFn) -> list[Any]:
    """Turns as an agent has them: text, calls, what they gave, text."""
    turns: list[Any] = [{"role": "user", "content": [draw(TEXTS)]}]
    for _ in range(draw(st.integers(0, 2))):
        calls = draw(CALLS)
        said = [draw(TEXTS)] if draw(st.booleans()) else []
        turns.append({"role": "assistant", "content": [*said, *({"type": "tool_use", "id": id, "name": "f", "input": given} for id, given in calls)]})
        results = [{"type": "tool_result", "tool_use_id": id, "content": [draw(TEXTS)]} for id, _ in calls]
        turns.append({"role": "user", "content": [*results, *([draw(TEXTS)] if draw(st.booleans()) else [])]})
    return turns


@settings(max_examples=60)
@given(conversations(), WORDS)
def test_there_and_back(turns: list[Any], system: str) -> None:
    """A conversation in this dialect, said in OpenAI's and from there in this one again, is the same conversation."""
    fields: dict[str, Any] = {"model": "m", "max_tokens": 64, "system": system, "messages": turns}
    fields["tools"] = [{"name": "f", "description": "d", "input_schema": {"type": "object", "properties": {}}}]
    fields["tool_choice"] = {"type": "any", "disable_parallel_tool_use": True}
    request = read_request(json.dumps(fields).encode())
    chat = openai_chat.read_request(openai_chat_content.write_prompt(read_prompt(request), request, TARGET))
    back = json.loads(anthropic_ask.write_prompt(openai_chat_content.read_prompt(chat), chat, TARGET))
    assert back == {**fields, "model": "served"}
