"""A completion that a provider answers which only takes chats."""

import json
from typing import Any

import pytest

from sluicegate.core.usage import Usage
from sluicegate.dialects.content import (
    Begin,
    Choice,
    Finish,
    Inexpressible,
    Message,
    Refusal,
    RefusalDelta,
    Reply,
    Text,
    TextDelta,
    Thinking,
    ThinkingDelta,
)
from sluicegate.dialects.form import Delta, Request
from sluicegate.dialects.openai_completions import StreamReader, read_answer, read_request
from sluicegate.dialects.openai_completions_content import Writer, read_prompt, write_reply


def request(**fields: Any) -> Request:
    return read_request(json.dumps({"model": "m", "prompt": "Once", **fields}).encode())


@pytest.mark.parametrize("prompt", ["Once", ["Once"]])
def test_a_prompt_is_what_a_user_says(prompt: Any) -> None:
    """A single one, also in a list."""
    assert read_prompt(request(prompt=prompt)).messages == [Message("user", [Text("Once")])]


def test_what_tunes_is_said_or_left_out() -> None:
    """Settings that conversations have, too, are kept; the others are named; what is absent is not."""
    prompt = read_prompt(
        request(
            temperature=0.5, top_p=0.9, top_k=40, stop="\n", seed=7, presence_penalty=0.1, frequency_penalty=0.2, user="u", max_tokens=9, n=1,
            best_of=1, stream=True, stream_options={"include_usage": True}, logit_bias={"5": 1}, min_p=0.1, echo=False, suffix=None, logprobs=None,
        )
    )  # fmt: skip
    assert (prompt.temperature, prompt.top_p, prompt.top_k, prompt.stop, prompt.seed) == (0.5, 0.9, 40, ["\n"], 7)
    assert (prompt.presence_penalty, prompt.frequency_penalty, prompt.user) == (0.1, 0.2, "u")
    assert prompt.left_out == ["logit_bias", "min_p"]
    assert read_prompt(request(stop=["a", "b"])).stop == ["a", "b"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"echo": True}, "echo"),
        ({"best_of": 2}, "best_of"),
        ({"logprobs": 0}, "logprobs"),
        ({"suffix": "end"}, "suffix"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"guided_json": {"type": "object"}}, "guided_json"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [1, 2]}, "prompt"),
        ({"prompt": [[1, 2]]}, "prompt"),
        ({"prompt": None}, "prompt"),
    ],
)
def test_what_no_conversation_says_is_for_another_deployment(fields: dict[str, Any], param: str) -> None:
    """It names the field."""
    with pytest.raises(Inexpressible) as info:
        read_prompt(request(**fields))
    assert info.value.param == param


def test_a_reply() -> None:
    """Text and refusals are the text; thoughts have no place; it reads back as an answer of this dialect."""
    parts = [Thinking("hmm"), Text("a"), Text("b"), Refusal("no")]
    body = write_reply(Reply("id", "served", 5, [Choice(0, parts, "length"), Choice(1, [], "stop")], Usage(7, 9, 2, 0, 3)), request())
    written = json.loads(body)
    assert (written["object"], written["id"], written["created"], written["model"]) == ("text_completion", "id", 5, "served")
    assert written["choices"][0] == {"text": "abno", "index": 0, "logprobs": None, "finish_reason": "length"}
    answer = read_answer(body)
    assert (answer.deltas, answer.finishes) == ([Delta(0, "abno")], [(0, "length"), (1, "stop")])
    assert answer.usage == Usage(7, 9, 2, 0, 3)
    assert "usage" not in json.loads(write_reply(Reply("id", "m", 5, []), request()))


@pytest.mark.parametrize("asked", [True, False])
def test_a_stream(asked: bool) -> None:
    """Chunks that read back as those of this dialect; usage only where it was asked for; [DONE]."""
    writer = Writer(request(stream=True, stream_options={"include_usage": asked}))
    pieces = [Begin("id", "served", 5), TextDelta(0, "a"), ThinkingDelta(0, "hmm"), RefusalDelta(1, "no"), Finish(0, "stop"), Finish(1, "length")]
    data = b"".join(writer.write([piece]) for piece in pieces) + writer.last(Usage(7, 9))
    events = StreamReader().feed(data)
    assert [delta for event in events for delta in event.deltas] == [Delta(0, "a"), Delta(1, "no")]
    assert [finish for event in events for finish in event.finishes] == [(0, "stop"), (1, "length")]
    assert [event.usage for event in events if event.usage is not None] == ([Usage(7, 9)] if asked else [])
    assert events[-1].kind == "done" and writer.head.id == "id"
    assert writer.write([ThinkingDelta(0, "hmm")]) == b""


def test_an_end_without_a_reason_is_told_as_one() -> None:
    """Clients wait for a finish reason: a provider may have named none, whole or streamed."""
    writer = Writer(request(stream=True))
    data = writer.write([Begin("id", "served", 5), TextDelta(0, "a"), TextDelta(1, "b"), Finish(1, "length")]) + writer.last(None)
    assert [finish for event in StreamReader().feed(data) for finish in event.finishes] == [(1, "length"), (0, "stop")]
    whole = json.loads(write_reply(Reply("id", "served", 5, [Choice(0, [Text("a")], "")]), request()))
    assert whole["choices"][0]["finish_reason"] == "stop"
