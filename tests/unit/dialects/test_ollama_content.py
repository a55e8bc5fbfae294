"""What is written for Ollama and what cannot be said to it; golden requests are in test_ollama_golden."""

import json
from typing import Any

import pytest
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
from sluicegate.dialects.form import BadRequest, Request, Target
from sluicegate.dialects.ollama_content import read_reply, write_prompt

ASK = Message("user", [Text("x")])
TOOL = Tool("f", "", Raw(b""))


def written(prompt: Prompt, cap: int | None = 64, own_cap: int | None = None, choices: int = 1, foreign: bool = False) -> Any:
    """The body that goes upstream."""
    request = Request("m", False, False, choices, own_cap, 0, [], 1, 0, "", "", {})
    return json.loads(write_prompt(prompt, request, Target("up", cap, "num_predict", True, foreign=foreign)))


def messages(*conversation: Message, foreign: bool = False) -> Any:
    return written(Prompt(list(conversation)), foreign=foreign)["messages"]


# -- how much and how -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cap", "own", "want"), [(64, 100, {"num_predict": 64}), (None, 100, {"num_predict": 100}), (None, None, {})])
def test_the_cap(cap: int | None, own: int | None, want: Any) -> None:
    """Goes into num_predict, where Ollama generates without an end unless told."""
    assert written(Prompt([ASK]), cap, own)["options"] == want


def test_streams_are_said() -> None:
    """Ollama streams where nothing is said."""
    assert written(Prompt([ASK]))["stream"] is False


@pytest.mark.parametrize(
    ("prompt", "want"),
    [
        (Prompt([ASK]), None),
        (Prompt([ASK], effort="none"), False),
        (Prompt([ASK], effort="minimal"), "low"),
        (Prompt([ASK], effort="xhigh"), "max"),
        (Prompt([ASK], thinking="on", thinking_budget=2000), True),
        (Prompt([ASK], thinking="off", effort="high"), False),
        (Prompt([ASK], thinking="adaptive"), None),
        (Prompt([ASK], thinking="adaptive", effort="medium"), "medium"),
    ],
)
def test_thinking(prompt: Prompt, want: Any) -> None:
    """From the effort, else from whether it is on; nothing is said of what the model may decide."""
    assert written(prompt).get("think") == want


@pytest.mark.parametrize(
    ("fields", "left_out"), [({}, []), ({"effort": "high"}, ["reasoning_effort"]), ({"thinking": "on"}, ["thinking"]), ({"effort": "none"}, [])]
)
def test_an_answer_of_some_shape_is_not_thought_about(fields: Any, left_out: list[str]) -> None:
    """Ollama would generate twice, each time up to the cap."""
    prompt = Prompt([ASK], shape=Shape(), **fields)
    body = written(prompt)
    assert (body["format"], body["think"], prompt.left_out) == ("json", False, left_out)


@pytest.mark.parametrize("kind", ["any", "tool"])
def test_tools_cannot_be_demanded(kind: Any) -> None:
    """There is no word for it."""
    with pytest.raises(Inexpressible) as error:
        written(Prompt([ASK], [TOOL], ToolChoice(kind, "f")))
    assert error.value.param == "tool_choice"


def test_tools() -> None:
    """Without a schema they have no arguments; where none is to be called, none is offered."""
    (tool,) = written(Prompt([ASK], [TOOL], ToolChoice("auto")))["tools"]
    assert tool == {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    assert "tools" not in written(Prompt([ASK], [TOOL], ToolChoice("none")))


def test_several_choices() -> None:
    """Cannot be asked for."""
    with pytest.raises(Inexpressible) as error:
        written(Prompt([ASK]), choices=2)
    assert error.value.param == "n"


# -- conversations --------------------------------------------------------------------------------------------------------------------------


def test_results_of_tools() -> None:
    """Are messages of their own, in their order, by the name of the tool; what a user says beside them comes after."""
    call = ToolUse("c1", "f", '{"a":1}')
    results: list[Part] = [ToolResult("c1", [Text("one"), Image(data="AAAA")]), ToolResult("c9", [Text("two")]), Text("and?")]
    said = messages(ASK, Message("assistant", [Text("so"), call]), Message("user", results))
    assert said[1:] == [
        {"role": "assistant", "content": "so", "tool_calls": [{"id": "c1", "function": {"index": 0, "name": "f", "arguments": {"a": 1}}}]},
        {"role": "tool", "content": "one", "images": ["AAAA"], "tool_name": "f", "tool_call_id": "c1"},
        {"role": "tool", "content": "two", "tool_call_id": "c9"},
        {"role": "user", "content": "and?"},
    ]


@pytest.mark.parametrize(
    ("text", "want"), [("", {}), ("{}", {}), ('{"a":{"b":[1]}}', {"a": {"b": [1]}}), ('{"a', {"arguments": '{"a'}), ("[1]", {"arguments": "[1]"})]
)
def test_arguments_are_an_object(text: str, want: Any) -> None:
    """What was cut short is put into one, since anything else would be refused."""
    (said,) = messages(Message("assistant", [ToolUse("c", "f", text)]))
    assert said["tool_calls"][0]["function"]["arguments"] == want


def test_thinking_goes_back_to_the_model_that_thought() -> None:
    """And to no other; what nobody can read stays behind."""
    turn = Message("assistant", [Thinking("hm", "signed"), RedactedThinking("data"), Text("yes"), Refusal("no")])
    assert messages(turn) == [{"role": "assistant", "content": "yes\nno", "thinking": "hm"}]
    assert messages(turn, foreign=True) == [{"role": "assistant", "content": "yes\nno"}]


def test_documents_of_text() -> None:
    """Are text."""
    assert messages(Message("user", [Text("read"), Document(text="this")])) == [{"role": "user", "content": "read\nthis"}]


@pytest.mark.parametrize("part", [Image(url="https://x/y.png"), Document(url="https://x"), Document(data="AAAA"), Audio("AAAA", "wav")])
def test_what_it_cannot_read(part: Part) -> None:
    """Pictures and documents by their URL, files, sound; also in the result of a tool."""
    with pytest.raises(Inexpressible) as error:
        messages(Message("user", [part]))
    assert error.value.param == "messages"


def test_nesting_that_could_just_be_read() -> None:
    """Is a bad request, not a failure."""
    prompt = Prompt([ASK], [TOOL])
    prompt.tools[0].schema = Raw(b"[" * 5)  # as it came: never looked at
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    prompt.seed = deep
    with pytest.raises(BadRequest):
        written(prompt)


# -- answers --------------------------------------------------------------------------------------------------------------------------------


def test_calls_without_ids_get_one_that_is_new() -> None:
    """Made of the time of the answer, so that those of two turns are told apart."""
    called = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}, {"id": "call_7", "function": {"name": "g"}}]}
    ids = []
    for time in ("2025-07-07T20:32:53.844124Z", "2025-07-07T20:32:53.944124Z", ""):
        reply = read_reply(json.dumps({"created_at": time, "message": called, "done": True}).encode())
        ids += [part.id for part in reply.choices[0].parts if isinstance(part, ToolUse)]
    assert ids == ["call_20250707T203253844124Z_0", "call_7", "call_20250707T203253944124Z_0", "call_7", "call_0", "call_7"]
