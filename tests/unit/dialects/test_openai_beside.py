"""Texts of a chunk, or of a whole answer, that stand beside its choices."""

import json
from types import ModuleType
from typing import Any

import pytest

from sluicegate.dialects import openai_chat, openai_completions
from sluicegate.dialects.form import Event

HEAD = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "system_fingerprint": "fp", "service_tier": "default"}
CHOICES = {
    openai_chat: [{"index": 0, "delta": {"content": "said"}, "finish_reason": None}],
    openai_completions: [{"text": "said", "index": 0, "logprobs": None, "finish_reason": None}],
}
DIALECTS = pytest.mark.parametrize("dialect", [openai_chat, openai_completions])


def read(dialect: ModuleType, chunk: dict[str, Any]) -> Event:
    (event,) = dialect.StreamReader().feed(b"data: %b\n\n" % json.dumps(chunk).encode())
    assert isinstance(event, Event)
    return event


def texts(event: Event) -> list[str]:
    return [delta.text for delta in event.deltas]


@DIALECTS
@pytest.mark.parametrize("beside", [{"thoughts": "hidden"}, {"vendor": {"id": "no", "steps": ["hid", {"den": "den"}]}}])
def test_a_text_beside_the_choices_is_output(dialect: ModuleType, beside: dict[str, Any]) -> None:
    """Whatever it is called, and also in a chunk without choices."""
    event = read(dialect, HEAD | {"choices": CHOICES[dialect]} | beside)
    assert (event.kind, texts(event)) == ("chunk", ["said", "hidden"])
    for bare in (HEAD | {"choices": []} | beside, HEAD | beside):
        event = read(dialect, bare)
        assert (event.kind, texts(event)) == ("chunk", ["hidden"])


@DIALECTS
@pytest.mark.parametrize(
    "beside",
    [
        {"usage": None, "obfuscation": "xyz"},
        {"provider": "Someone", "p": "abcd", "citations": ["https://example.com"], "x_groq": {"id": "req"}},
        {"timings": {"unit": "ms"}, "prompt_filter_results": [{"content_filter_results": {"hate": {"severity": "safe"}}}]},
        {"sluicegate": {"model": "chat", "deployment": "a/b"}},
        {"output_text": "said"},
    ],
)
def test_what_is_known_beside_the_choices_is_none(dialect: ModuleType, beside: dict[str, Any]) -> None:
    """Ids, names, padding, figures, what was found, and what repeats the choices."""
    event = read(dialect, HEAD | {"choices": CHOICES[dialect]} | beside)
    assert (event.kind, texts(event)) == ("chunk", ["said"])


def test_what_stands_beside_every_chunk_counts_once() -> None:
    """A name that an upstream repeats in each chunk is not what a model wrote; what changes is."""
    reader = openai_chat.StreamReader()
    found = []
    for beside in ({"region": "eu"}, {"region": "eu"}, {"region": "eu", "said": "a"}, {"region": "eu", "said": "b"}):
        (event,) = reader.feed(b"data: %b\n\n" % json.dumps(HEAD | {"choices": CHOICES[openai_chat]} | beside).encode())
        found.append(texts(event)[1:])
    assert found == [["eu"], [], ["a"], ["b"]]


def test_a_whole_answer_likewise() -> None:
    """It is counted once, and an error's words are no output."""
    answer = HEAD | {"choices": [{"index": 0, "message": {"role": "assistant", "content": "said"}, "finish_reason": "stop"}], "thoughts": "hidden"}
    assert [delta.text for delta in openai_chat.read_answer(json.dumps(answer).encode()).deltas] == ["said", "hidden"]
    failed = openai_chat.read_answer(json.dumps(answer | {"error": {"message": "no"}}).encode())
    assert failed.failure is not None and [delta.text for delta in failed.deltas] == ["said"]
    assert read(openai_chat, {"object": "error", "message": "no"}).deltas == []
