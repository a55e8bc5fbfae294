"""Where the gateway's own word on a request stands in an answer of each dialect."""

import json
from typing import Any

import pytest
from msgspec import Raw

from sluicegate.core.usage import Usage
from sluicegate.dialects import openai_chat, openai_completions
from sluicegate.dialects.telling import Told, in_body, in_stream

BLOCK = {"model": "chat", "cost_usd": Raw(b"0.000000100")}
READ = {"model": "chat", "cost_usd": 1e-07}
COST = Raw(b"0.000000100")
USAGE = Usage(7, 3, 2, 0, 1)
HEAD = openai_chat.Head("c1", 5, "m")


def events(data: bytes) -> list[Any]:
    """The data of each event; `[DONE]` as text."""
    return [json.loads(part) if part.startswith("{") else part for line in data.decode().split("\n") if (part := line.removeprefix("data: ")) != line]


@pytest.mark.parametrize("body", [b'{"id": "c",  "n": 1.50 }\n', b'{"id":"c"}', b'{"choices":[{}], "sluicegate": {"of": "upstream"}}\r\n \n'])
def test_a_whole_answer_ends_with_the_block(body: bytes) -> None:
    """All other bytes stay as they came, and what an upstream calls the same does not stand for ours."""
    told = in_body(body, BLOCK)
    assert told.startswith(body.rstrip()[:-1])
    assert json.loads(told) == json.loads(body) | {"sluicegate": READ}


@pytest.mark.parametrize("done", [b"data: [DONE]\n\n", b"data:[DONE]\r\n\r\n"])
@pytest.mark.parametrize("before", [b"", b'data: {"last": 1}\n\n'])
def test_a_chat_ends_with_a_chunk_of_ours(before: bytes, done: bytes) -> None:
    """Without choices, before the end, with what was asked for: the block, or the usage with the cost."""
    if before and not done.endswith(b" [DONE]\n\n"):
        done = openai_chat.DONE  # more than one event is written by us
    told = in_stream(openai_chat.NAME, HEAD, before + done, Told(BLOCK, COST, USAGE))
    assert told.startswith(before) and told.endswith(done)
    (chunk,) = events(told[len(before) : -len(done)])
    assert chunk == {
        **{"id": "c1", "object": "chat.completion.chunk", "created": 5, "model": "m", "choices": [], "sluicegate": READ},
        "usage": {
            **{"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10, "cost_usd": 1e-07},
            **{"prompt_tokens_details": {"cached_tokens": 2}, "completion_tokens_details": {"reasoning_tokens": 1}},
        },
    }


@pytest.mark.parametrize(("block", "cost", "there"), [(BLOCK, None, "sluicegate"), (None, COST, "usage")])
def test_only_what_was_asked_for_is_told(block: Any, cost: Raw | None, there: str) -> None:
    """One without the other."""
    (chunk, _) = events(in_stream(openai_completions.NAME, HEAD, openai_chat.DONE, Told(block, cost, USAGE)))
    assert chunk["object"] == "text_completion"
    assert {"sluicegate", "usage"} & chunk.keys() == {there}


def test_a_response_has_it_in_its_last_event() -> None:
    """In the response and its usage, beside what they have, whatever came before the last event."""
    said = {"type": "response.incomplete", "sequence_number": 9, "response": {"id": "r", "usage": {"input_tokens": 1, "x": [1]}}}
    said["response"]["sluicegate"] = {"truncated": "budget"}  # type: ignore[index]
    before = b'event: response.output_text.done\ndata: {"type":"response.output_text.done"}\n\n'
    tail = before + b"event: response.incomplete\ndata: " + json.dumps(said).encode() + b"\n\n"
    told = in_stream("openai_responses", None, tail, Told(BLOCK, COST, USAGE))
    assert told.startswith(before + b"event: response.incomplete\n")
    response = events(told)[1]["response"]
    assert response == {"id": "r", "usage": {"input_tokens": 1, "x": [1], "cost_usd": 1e-07}, "sluicegate": {"truncated": "budget", **READ}}
    bare = in_stream("openai_responses", None, b'data: {"type":"response.completed","response":{"id":"r"}}\n\n', Told(None, COST, USAGE))
    assert events(bare)[0]["response"]["usage"] == {"input_tokens": 7, "output_tokens": 3, "cost_usd": 1e-07}


def test_a_message_has_it_in_its_stop() -> None:
    """The counts came before, in the event that has the reason."""
    told = in_stream("anthropic_messages", None, b'event: message_stop\r\ndata: {"type":"message_stop"}\r\n\r\n', Told(BLOCK, COST, USAGE))
    assert told.startswith(b"event: message_stop\n")
    assert events(told) == [{"type": "message_stop", "usage": {"cost_usd": 1e-07}, "sluicegate": READ}]


@pytest.mark.parametrize("tail", [b"", b"data: [DONE]\n\n", b'data: {"type":"response.completed"}\n\n', b'data: {"response":[]}\n\n'])
def test_an_end_that_cannot_be_read_stays_as_it_is(tail: bytes) -> None:
    """Nothing is told there, and nothing is raised."""
    assert in_stream("openai_responses", None, tail, Told(BLOCK, COST, USAGE)) == tail
