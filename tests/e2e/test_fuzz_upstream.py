"""Whatever an upstream answers: never a crash, always a well-formed end for the client, no hold left, nothing negative, and no charge lost.

See support_fuzz_gateway. Its deployments are held in each of the ways there are: capped, extended, by the events of the stream, with limits of its
own, and as the first of a route whose second is a mock. The same few hundred examples each time, or with SLUICEGATE_FUZZ=20000 so many new ones of
each test.
"""

import asyncio
import contextlib
import gzip
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from support_fuzz import profile
from support_fuzz_gateway import CAP, Fuzz
from support_fuzz_upstream import Answer, answers
from support_inloop import chunk, sse


@pytest.fixture
def fuzz(tmp_path: Path) -> Iterator[Fuzz]:
    with asyncio.Runner() as runner, contextlib.ExitStack() as stack:
        yield Fuzz(runner, tmp_path, stack)


def example(r: Random) -> tuple[dict[str, Any], Answer]:
    """What is asked, and what is answered; shown if it fails."""
    stream, choices = r.random() < 0.7, r.choice((1, 1, 2, 3))
    fields = {
        "model": r.choice(("chat", "open", "open", "events", "own", "route")),
        "stream": stream,
        "n": choices,
        "max_tokens": CAP,
        "stream_options": r.choice((None, {"include_usage": True})),
    }
    answer = answers(r, stream, choices)
    note(f"{fields}\n{answer}")
    return fields, answer


randoms = st.randoms(use_true_random=True)  # seeded by what is drawn


def test_any_answer(fuzz: Fuzz) -> None:
    """Right and wrong, cut and damaged at any level, to every kind of deployment."""

    @profile(700)
    @given(randoms)
    def drawn(r: Random) -> None:
        fuzz.ask(example(r))

    drawn()
    assert {"stream", "broken", "whole", "upstream_error", "upstream_timeout", "invalid_request"} <= fuzz.codes.keys()


def test_any_answers_at_once(fuzz: Fuzz) -> None:
    """Over connections that are kept where that is right: each request has its own answer and is charged for it, whatever its neighbours get."""

    @profile(100)
    @given(randoms)
    def drawn(r: Random) -> None:
        fuzz.ask(*(example(r) for _ in range(r.randint(2, 8))), leaving=r.choice((0, 0, 1, 2)))

    drawn()
    assert {"stream", "broken", "whole", "upstream_error"} <= fuzz.codes.keys()


# -- more than anybody can take -----------------------------------------------------------------------------------------------------------

SAID = sse(*(chunk("word ") for _ in range(5)))
LINE = b"data: " + b"x" * 18_000_000
HUGE: dict[str, tuple[bool, bytes, bytes]] = {  # stream, headers, body
    "a line without end": (True, b"content-type: text/event-stream\r\n", SAID + LINE),
    "a line without end, compressed": (True, b"content-type: text/event-stream\r\ncontent-encoding: gzip\r\n", gzip.compress(SAID + LINE, 1)),
    "comments without end": (True, b"content-type: text/event-stream\r\n", (b": " + b"p" * 80 + b"\n\n") * 80_000),
    "events without output": (True, b"content-type: text/event-stream\r\n", (b"event: x\ndata: {" + b" " * 80 + b"}\n\n") * 60_000),
    "a body without end": (False, b"content-type: application/json\r\n", b'{"choices": [{"message": {"content": "' + b"x" * 70_000_000),
    "a body without end, compressed": (False, b"content-type: application/json\r\ncontent-encoding: gzip\r\n", gzip.compress(bytes(200_000_000), 1)),
    "a deep body": (False, b"content-type: application/json\r\n", b'{"choices":' * 1_000_000),
}


@pytest.mark.parametrize("name", HUGE)
def test_more_than_anybody_can_take(fuzz: Fuzz, name: str) -> None:
    """Bounded, told as an error, charged, also where the little that arrives unpacks to a lot."""
    stream, headers, body = HUGE[name]
    least = 5 if SAID in body or "line" in name else 0
    wire = b"HTTP/1.1 200 min(fuzz.meters[0].least, CAP)\r\n" + headers + b"\r\n" + body
    for model in ("chat", "open"):
        fields = {"model": model, "stream": stream, "n": 1, "max_tokens": CAP}
        answer = Answer([wire], "close", least)
        answer.billed = True
        fuzz.ask((fields, answer))
    assert fuzz.codes.keys() <= {"broken", "upstream_error", "upstream_timeout"}
