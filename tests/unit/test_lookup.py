"""A stream that is put together as it goes by: its events pass as they came, and whatever keeps it from being kept is known at its end."""

import json
from typing import Any

import pytest

from sluicegate.core.cache import Entry
from sluicegate.core.usage import Usage
from sluicegate.dialects import openai_chat
from sluicegate.lookup import Copying, Lookup
from support_inloop import chunk, sse, usage_chunk

STREAM = sse(chunk(""), chunk("Hel"), ": comment\n\n", chunk("lo"), chunk(finish="stop"), usage_chunk(3, 2))


def copying(max_bytes: int = 10_000) -> Copying:
    reader = Lookup("miss", b"key", 1000, max_bytes).copy("openai_chat", openai_chat.StreamReader())
    assert isinstance(reader, Copying)
    return reader


def test_events_pass_and_the_answer_is_put_together() -> None:
    """Byte by byte, too; the end of the stream is added when it is known."""
    for size in (1, 7, len(STREAM)):
        reader = copying()
        events = [event for i in range(0, len(STREAM), size) for event in reader.feed(STREAM[i : i + size])] + reader.end()
        assert b"".join(event.raw for event in events) == STREAM and reader.head.id == "c1" and reader.ending == openai_chat.DONE
        body = json.loads(reader.body(openai_chat.DONE, None))
        assert (body["choices"][0]["message"]["content"], body["usage"]["completion_tokens"], reader.spoiled) == ("Hello", 2, "")


def test_a_last_event_without_its_blank_line() -> None:
    """Is a part of the answer."""
    reader = copying()
    reader.feed(sse(chunk("a")) + sse(chunk(finish="stop"))[:-2])
    assert len(reader.end()) == 1
    assert json.loads(reader.body(openai_chat.DONE, Usage(1, 2)))["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("stream", "max_bytes", "why"),
    [
        (STREAM, len(STREAM) // 2, "too_large"),
        (STREAM + sse("data: {"), 10_000, "incomplete"),
        (sse(chunk("a"), {"error": {"message": "no"}}), 10_000, "incomplete"),
        (sse(chunk("a") | {"x": 1}, chunk("b") | {"x": 2}), 10_000, "unfaithful"),
    ],
)
def test_what_spoils_it(stream: bytes, max_bytes: int, why: str) -> None:
    """The first reason stands, and the events pass as ever."""
    reader = copying(max_bytes)
    events = [*reader.feed(stream), *reader.feed(sse(chunk("c"))), *reader.end()]
    assert reader.spoiled == why and len(events) > 1


def test_a_reader_that_translates_writes_the_end() -> None:
    """When the usage is known."""

    class Translating:
        ending, head = b"", None

        def feed(self, data: bytes) -> list[Any]:
            return []

        def end(self) -> list[Any]:
            return []

        def last(self, charged: Usage) -> bytes:
            return b"end %d" % (charged.output_tokens or 0)

    reader = Lookup("miss", b"key", 1000, 10).copy("openai_chat", Translating())
    assert isinstance(reader, Copying) and reader.last(Usage(1, 2)) == b"end 2"


def test_what_is_not_kept_is_not_copied() -> None:
    """A stream without a key, and one of a dialect that has no streams, is read as ever."""
    reader = openai_chat.StreamReader()
    for lookup, dialect in ((Lookup("skip:sampling", b"", 1, 10), "openai_chat"), (Lookup("miss", b"key", 1, 10), "openai_embeddings")):
        assert lookup.copy(dialect, reader) is reader and lookup.copying is None


def test_what_the_record_says() -> None:
    """A hit saves what the answer cost; one that was refused is none; what was not looked up is neither."""
    hit, miss, refused, skipped = (Lookup(told, b"key", 1, 1) for told in ("hit", "miss", "hit", "skip:sampling"))
    hit.entry = Entry(b"", "p/m", "stop", 42, 1)
    assert hit.recorded("") == ("cache", "hit", 42) and miss.recorded("p/m") == ("p/m", "miss", 0)
    assert refused.recorded("") == ("", "", 0) == skipped.recorded("")
