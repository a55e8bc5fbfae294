"""The mock's Ollama dialect: lines of JSON that say what the mock says that it produced."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sluicegate.mock import Mock, MockOptions, Tally
from support_gateway import call

WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}
ASK = [{"role": "user", "content": "hello"}]
SAID = " the of and to in"


@pytest.fixture
async def mock() -> AsyncIterator[Mock]:
    """Answers of five tokens."""
    mock = Mock(MockOptions(completion_tokens=5))
    await mock.start()
    yield mock
    await mock.stop()


async def post(mock: Mock, body: Any) -> tuple[int, dict[str, str], bytes]:
    return await asyncio.to_thread(call, f"{mock.root_url}/api/chat", body)


async def ask(mock: Mock, stream: bool | None, messages: Any = ASK, fields: Any = None, **overrides: Any) -> list[Any]:
    """The lines of the answer. stream None: not said."""
    body = {"model": "m", "messages": messages, "mock": overrides, **(fields or {})} | ({} if stream is None else {"stream": stream})
    status, headers, data = await post(mock, body)
    assert status == 200, data
    assert headers["content-type"] == ("application/json" if stream is False else "application/x-ndjson")
    assert data.endswith(b"\n") != (stream is False)
    return [json.loads(line) for line in data.splitlines()]


def joined(lines: list[Any], name: str = "content") -> str:
    return "".join(line["message"].get(name, "") for line in lines)


def truth(mock: Mock) -> Tally:
    return mock.stats().total


@pytest.mark.parametrize("stream", [None, True, False])
async def test_text(mock: Mock, stream: bool | None) -> None:
    """A line for each token, and one with the figures; one line in all where that is asked for."""
    lines = await ask(mock, stream)
    assert joined(lines) == SAID and len(lines) == (1 if stream is False else 6)
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    last = lines[-1]
    assert (last["done_reason"], last["prompt_eval_count"], last["eval_count"]) == ("stop", 9, 5)
    assert (truth(mock).prompt_tokens, truth(mock).completion_tokens) == (9, 5)


@pytest.mark.parametrize("stream", [True, False])
async def test_caps(mock: Mock, stream: bool) -> None:
    """It ends at num_predict; below zero there is no cap."""
    lines = await ask(mock, stream, fields={"options": {"num_predict": 3}})
    assert (lines[-1]["done_reason"], lines[-1]["eval_count"], truth(mock).completion_tokens) == ("length", 3, 3)
    assert (await ask(mock, stream, fields={"options": {"num_predict": -1}}))[-1]["eval_count"] == 5


@pytest.mark.parametrize("stream", [True, False])
async def test_thinking(mock: Mock, stream: bool) -> None:
    """What the model thinks has a field of its own, or is not to be seen."""
    lines = await ask(mock, stream, reasoning="visible", reasoning_tokens=2)
    assert (joined(lines, "thinking"), joined(lines)) == (" the of", " and to in")
    hidden = await ask(mock, stream, reasoning="hidden", reasoning_tokens=2)
    assert (joined(hidden, "thinking"), joined(hidden), hidden[-1]["eval_count"]) == ("", " and to in", 5)
    assert truth(mock).completion_tokens == 10


@pytest.mark.parametrize("stream", [True, False])
async def test_agent_loop(mock: Mock, stream: bool) -> None:
    """A call comes whole, on one line, once all of it has been generated; its result is answered with text."""
    told: Any = {"tools": "first", "completion": None}
    lines = await ask(mock, stream, fields={"tools": [WEATHER]}, **told)
    (made,) = [one for line in lines for one in line["message"].get("tool_calls", [])]
    assert made["function"] == {"index": 0, "name": "weather", "arguments": {"city": "water"}}
    assert lines[-1]["done_reason"] == "stop" and lines[-1]["eval_count"] == truth(mock).completion_tokens == 5
    messages = [*ASK, {"role": "assistant", "content": "", "tool_calls": [made]}, {"role": "tool", "tool_name": "weather", "content": "rain"}]
    assert joined(await ask(mock, stream, messages, {"tools": [WEATHER]}, **told))


@pytest.mark.parametrize("stream", [True, False])
async def test_a_call_that_is_cut_is_generated_and_not_shown(mock: Mock, stream: bool) -> None:
    """Of a call that the cap cuts nothing can be seen but the count."""
    lines = await ask(mock, stream, fields={"tools": [WEATHER], "options": {"num_predict": 4}}, tools="first", completion=1)
    assert joined(lines) == " the" and not any("tool_calls" in line["message"] for line in lines)
    assert lines[-1]["eval_count"] == truth(mock).completion_tokens == 4


async def test_zero_is_left_out(mock: Mock) -> None:
    """A count of zero is not there, as with a prompt that was cached; nor are counts that are not to be told."""
    assert "prompt_eval_count" not in (await ask(mock, True, usage="zero_input"))[-1]
    assert not {"prompt_eval_count", "eval_count"} & set((await ask(mock, True, usage="none"))[-1])
    assert "eval_count" not in (await ask(mock, False, usage="partial"))[-1]


async def test_errors(mock: Mock) -> None:
    """Errors are a text, by status or as a line."""
    mock.fault(status=500, message="out of memory")
    status, _, data = await post(mock, {"model": "m", "messages": ASK})
    assert (status, json.loads(data)) == (500, {"error": "out of memory"})
    mock.fault(error_in_200=500, message="out of memory")
    assert (await ask(mock, True)) == [{"error": "out of memory"}]
    for body in ({"model": "m"}, {"model": "m", "messages": ASK, "options": {"num_predict": "x"}}):
        status, _, data = await post(mock, body)
        assert status == 400 and isinstance(json.loads(data)["error"], str)
    assert truth(mock).tokens == 0


async def test_a_stream_without_its_end(mock: Mock) -> None:
    """`done: false` leaves out the last line; `insert` and `pad` put lines in."""
    lines = await ask(mock, True, done=False, insert={"2": '{"unknown":1}\n'}, pad=10)
    assert lines[0]["padding"] == "x" * 10 and lines[3] == {"unknown": 1} and not lines[-1]["done"]
