"""Tools that a provider runs: by which names, of which fields, and how often an answer says that they were called."""

import json
from typing import Any

import pytest

from sluicegate.core.hosted import Hosted
from sluicegate.dialects import anthropic_messages, openai_chat, openai_responses
from sluicegate.dialects.form import Target
from sluicegate.dialects.hosted import counted, name_of


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("web_search", "web_search"),
        ("web_search_20250305", "web_search"),
        ("web_search_preview", "web_search_preview"),
        ("web_search_preview_2025_03_11", "web_search_preview"),
        ("openrouter:web_search", "web_search"),
        ("code_execution_20250825", "code_execution"),
        ("file_search", "file_search"),
        ("", "tool"),
    ],
)
def test_a_tool_has_one_name_in_all_versions(kind: str, name: str) -> None:
    """Without the vendor before it and the date behind it."""
    assert name_of(kind) == name


def responses(**fields: Any) -> Any:
    return openai_responses.read_request(json.dumps({"model": "m", "input": "hi", **fields}).encode())


def messages(*tools: dict[str, Any], **fields: Any) -> Any:
    asked = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], "tools": list(tools), **fields}
    return anthropic_messages.read_request(json.dumps(asked).encode())


def chat(**fields: Any) -> Any:
    return openai_chat.read_request(json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}).encode())


def test_tools_of_responses() -> None:
    """`max_tool_calls` bounds those of the provider together, and not those of servers elsewhere; what the client runs is none of them."""
    tools = [{"type": kind} for kind in ("web_search", "computer_use_preview", "mcp", "local_shell")]
    asked = responses(tools=tools, max_tool_calls=3)
    assert asked.hosted == (Hosted("web_search", "tools[0].type", 3, True), Hosted("mcp", "tools[2].type"))
    assert responses(tools=[{"type": "function", "name": "f"}]).hosted == ()
    assert responses(tools=[{"type": "web_search"}]).hosted[0].most is None
    (preview,) = responses(tools=[{"type": "web_search_preview_2025_03_11"}]).hosted
    assert (preview.name, preview.told) == ("web_search_preview", "web_search")


@pytest.mark.parametrize(
    ("container", "name"),
    [
        ({"type": "auto"}, "code_interpreter"),
        ({"type": "auto", "memory_limit": "1g"}, "code_interpreter"),
        ({"type": "auto", "memory_limit": "16g"}, "code_interpreter_16g"),
        ("cntr_1", "code_interpreter_kept"),
        (None, "code_interpreter_kept"),
    ],
)
def test_code_costs_by_its_container(container: Any, name: str) -> None:
    """One that is kept may be of any size."""
    (tool,) = responses(tools=[{"type": "code_interpreter", "container": container}], max_tool_calls=2).hosted
    assert (tool.name, tool.told, tool.most) == (name, "code_interpreter", 2)


def test_tools_of_messages() -> None:
    """`max_uses` bounds the calls of each, and ten the rounds of all."""
    asked = messages(
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}, {"type": "code_execution_20250825", "name": "code_execution"}
    )
    assert asked.hosted == (Hosted("web_search", "tools[0].type", 5, rounds=10), Hosted("code_execution", "tools[1].type", rounds=10))
    assert messages({"type": "bash_20250124", "name": "bash"}).hosted == ()


def test_tools_and_fields_of_chats() -> None:
    """A search that is a part of the model happens once; of others nobody tells how often, nor afterwards. What a provider has kept runs nothing."""
    assert chat(web_search_options={"search_context_size": "low"}).hosted == (Hosted("web_search", "web_search_options", 1, told=None, again=False),)
    assert chat(tools=[{"type": "browser_search"}]).hosted == (Hosted("browser_search", "tools[0].type", told=None),)
    assert chat(search_parameters={"mode": "on"}).hosted == (Hosted("search_parameters", "search_parameters", told=None),)
    assert chat(extra_body={"enable_search": True}).hosted == (Hosted("enable_search", "enable_search", told=None),)
    assert chat(mcp_servers=[{"url": "u"}]).hosted == (Hosted("mcp", "mcp_servers", told=None),)
    assert chat(previous_response_id="r", conversation="c", file_ids=["f"]).hosted == ()


def test_what_the_provider_has_kept_may_bring_tools_of_any_kind() -> None:
    """Stored prompts do: where `max_tool_calls` bounds all calls together, these too. Earlier responses and conversations bring none."""
    assert responses(prompt={"id": "p"}, max_tool_calls=3).hosted == (Hosted("prompt", "prompt", 3, True, any=True),)
    assert responses(prompt={"id": "p"}).hosted == (Hosted("prompt", "prompt", None, True, any=True),)
    assert chat(preset="p").hosted == (Hosted("preset", "preset", told=None, any=True),)
    assert responses(previous_response_id="r", conversation="c").hosted == ()
    assert messages(container={"id": "c", "skills": []}).hosted == (Hosted("code_execution", "container", rounds=10),)
    assert messages(container=None).hosted == ()


TARGET = Target("served", 5, "max_tokens", True, tool_calls=2)


def test_what_the_operator_allows_is_sent() -> None:
    """The smaller of that and what the client says; tools that take no number, and requests without tools, go as they came."""
    for said, sent in ((None, 2), (1, 1), (9, 2)):
        asked = responses(tools=[{"type": "web_search"}], **({"max_tool_calls": said} if said else {}))
        assert json.loads(openai_responses.write_request(asked, TARGET))["max_tool_calls"] == sent
        tool = {"type": "web_search_20250305", "name": "web_search", **({"max_uses": said} if said else {})}
        code = {"type": "code_execution_20250825", "name": "code_execution"}
        written = json.loads(anthropic_messages.write_request(messages(tool, code), TARGET))["tools"]
        assert written == [{**tool, "max_uses": sent}, code]
    assert "max_tool_calls" not in json.loads(openai_responses.write_request(responses(), TARGET))
    untouched = Target("served", 5, "max_tokens", True)
    assert "max_tool_calls" not in json.loads(openai_responses.write_request(responses(tools=[{"type": "web_search"}]), untouched))


SEARCH = {"type": "web_search_call", "id": "ws", "status": "completed", "action": {"type": "search", "query": "q"}}
OPENED = {"type": "web_search_call", "id": "wo", "status": "completed", "action": {"type": "open_page", "url": "u"}}
CODE = {"type": "code_interpreter_call", "id": "ci", "status": "completed", "container_id": "c1", "code": "1"}


def test_calls_in_a_response() -> None:
    """Pages are opened for nothing, code is paid for by its container, and what the client runs is no call of the provider's."""
    items = [SEARCH, SEARCH, OPENED, CODE, CODE, {**CODE, "container_id": "c2"}, {"type": "file_search_call"}, {"type": "function_call"}, "odd", {}]
    assert counted(items) == {"web_search": 2, "code_interpreter": 2, "file_search": 1}
    assert counted([{"type": "computer_call"}, {"type": "local_shell_call"}]) == {}


@pytest.mark.parametrize(
    ("action", "paid"), [("open_page", 0), ("find_in_page", 0), ("find", 0), ("search", 1), ("banana", 1), (None, 1), (7, 1), ([], 1)]
)
def test_a_search_costs_unless_it_is_known_to_be_free(action: Any, paid: int) -> None:
    """Whatever else it does."""
    assert counted([{**SEARCH, "action": {"type": action}}]) == ({"web_search": 1} if paid else {})


def response(*items: Any) -> dict[str, Any]:
    usage = {"input_tokens": 5, "output_tokens": 5, "total_tokens": 10}
    return {"id": "r", "object": "response", "status": "completed", "output": list(items), "usage": usage}


def streamed_calls(data: bytes, reader: Any) -> Any:
    return next(event.usage.calls for event in reversed(reader.feed(data)) if event.usage is not None)


def test_an_answer_tells_of_its_calls() -> None:
    """Whole, and as a stream; also one whose end leaves the items out that it has told one by one."""
    assert openai_responses.read_answer(json.dumps(response(SEARCH)).encode()).usage.calls == {"web_search": 1}  # type: ignore[union-attr]
    assert openai_responses.read_answer(json.dumps(response()).encode()).usage.calls is None  # type: ignore[union-attr]
    stream = openai_responses.streamed(json.dumps(response(SEARCH, CODE)).encode())
    assert streamed_calls(stream, openai_responses.StreamReader()) == {"web_search": 1, "code_interpreter": 1}
    *told, _ = stream.split(b"event: response.completed")
    last = json.dumps({"type": "response.completed", "sequence_number": 9, "response": response()})
    bare = b"".join(told) + f"event: response.completed\ndata: {last}\n\n".encode()
    assert streamed_calls(bare, openai_responses.StreamReader()) == {"web_search": 1, "code_interpreter": 1}


SEARCHED = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}}


@pytest.mark.parametrize("count", [-1, 10_001, 10**12, 10**30, None, [2], "2", 1.5, True])
def test_a_count_of_calls_that_cannot_be_read(count: Any) -> None:
    """Is none, and it is known that there is one; of what costs nothing it does not matter."""
    for name, unread in (("web_search", True), ("web_fetch", False)):
        usage = {"input_tokens": 5, "output_tokens": 5, "server_tool_use": {f"{name}_requests": count}}
        read = anthropic_messages.read_answer(json.dumps({"content": [SEARCHED], "usage": usage}).encode()).usage
        assert read is not None and (read.calls, read.calls_unread) == ({"web_search": 1}, unread)


@pytest.mark.parametrize(
    ("report", "calls"),
    [({}, {"web_search": 2}), ({"server_tool_use": {"web_search_requests": 1}}, {"web_search": 1}), ({"server_tool_use": None}, {"web_search": 2})],
)
def test_a_message_tells_of_its_calls(report: dict[str, Any], calls: dict[str, int]) -> None:
    """What is reported goes before what is seen, since searches that failed are not charged."""
    usage = {"input_tokens": 5, "output_tokens": 5, **report}
    message = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "x",
        "content": [SEARCHED, SEARCHED],
        "stop_reason": "end_turn",
        "usage": usage,
    }
    whole = json.dumps(message).encode()
    assert anthropic_messages.read_answer(whole).usage.calls == calls  # type: ignore[union-attr]
    assert streamed_calls(anthropic_messages.streamed(whole), anthropic_messages.StreamReader()) == calls


def test_a_message_without_calls() -> None:
    """Says nothing of them."""
    message = {"type": "message", "content": [{"type": "text", "text": "a"}], "usage": {"input_tokens": 5, "output_tokens": 5}}
    assert anthropic_messages.read_answer(json.dumps(message).encode()).usage.calls is None  # type: ignore[union-attr]
