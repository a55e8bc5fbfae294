"""A stream put together again: the answer in one piece that it would have been, in its own dialect, built as its events go by.

    assembler = assembler_of(dialect);  assembler.add(raw) for the bytes of each event;  assembler.body(usage) -> bytes

What is not known to mean the same in one piece is `Unfaithful`: such a stream is better left alone than told wrongly. The rest survives: unknown
fields that stay the same in every chunk or come once, texts under any name, logprobs, calls, thinking with its proofs, citations, usage.
"""

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from sluicegate.core.usage import Usage
from sluicegate.dialects import anthropic_messages, openai_chat, openai_completions, openai_responses
from sluicegate.dialects.anthropic_assembling import MessageAssembler
from sluicegate.dialects.openai_assembling import ChatAssembler, CompletionAssembler, ResponseAssembler
from sluicegate.dialects.sse import Reader
from sluicegate.dialects.unfaithful import Unfaithful

__all__ = ["Unfaithful", "assembled", "assembler_of"]

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class Builder(Protocol):
    """Of one answer. All may raise Unfaithful."""

    def usual(self, data: bytes) -> bool:
        """Whether it has taken an event that says a text and nothing else, where it knows such events. Only here is speed of interest."""
        ...

    def take(self, name: str, data: dict[str, Any]) -> None:
        """One event: its name, and what it says."""
        ...

    def whole(self, usage: Usage | None) -> dict[str, Any]:
        """The answer. usage: what it used, to be written where the stream does not say it."""
        ...


_BUILDERS: dict[str, Callable[[], Builder]] = {
    openai_chat.NAME: ChatAssembler,
    openai_completions.NAME: CompletionAssembler,
    openai_responses.NAME: ResponseAssembler,
    anthropic_messages.NAME: MessageAssembler,
}


class Assembler:
    """Builds one answer from the bytes of its events."""

    def __init__(self, builder: Builder) -> None:
        self._builder = builder

    def add(self, raw: bytes) -> None:
        """Whole events, one or more. Raises Unfaithful."""
        if raw.startswith(b"data: ") and raw.find(b"\n") == len(raw) - 2:  # as nearly always
            data = raw[6:-2]
            if not self._builder.usual(data):
                self._take("", data)
            return
        reader = Reader()
        for event in (*reader.feed(raw), *reader.end()):
            if event.kind == "bad":
                raise Unfaithful
            if event.kind == "event":
                self._take(event.event, event.data)

    def body(self, usage: Usage | None) -> bytes:
        """The answer, all of which has been added. Raises Unfaithful."""
        try:
            return _encode(self._builder.whole(usage))
        except (ValueError, RecursionError, OverflowError):
            raise Unfaithful from None

    def _take(self, name: str, data: bytes) -> None:
        try:
            said = _decode(data)
        except (ValueError, RecursionError):
            if data.strip() in (b"[DONE]", b""):
                return
            raise Unfaithful from None
        if not isinstance(said, dict):
            if said is None:
                return
            raise Unfaithful
        self._builder.take(name, said)


def assembler_of(dialect: str) -> Assembler | None:
    """For a stream of a dialect, by its name. None: it has none."""
    builder = _BUILDERS.get(dialect)
    return Assembler(builder()) if builder is not None else None


def assembled(dialect: str, stream: bytes, usage: Usage | None = None) -> bytes:
    """A whole stream in one piece. Raises Unfaithful."""
    assembler = assembler_of(dialect)
    if assembler is None:
        raise Unfaithful
    assembler.add(stream)
    return assembler.body(usage)
