"""What the gateway says of a request inside its answer, to clients that ask for it: where it stands in each dialect.

    in one piece                     a member `sluicegate` at the end of the body, whose other bytes stay as they came
    chat, completions, streamed      a chunk of ours before [DONE], with `sluicegate`, `usage` or both, and no choices
    responses, messages, streamed    `sluicegate` in the last event's response or in the last event itself, and the cost in the usage there

A chunk without choices breaks clients that do not expect one, so nobody gets it without having asked. Nothing here raises: where a last event cannot
be read, it stays as it is.
"""

from typing import Any

import msgspec
from msgspec import Raw, Struct

from sluicegate.core.usage import Usage
from sluicegate.dialects import openai_chat, openai_completions, openai_responses
from sluicegate.dialects.openai_completions import counts
from sluicegate.dialects.sse import Reader

_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_encode = msgspec.json.Encoder().encode


class Told(Struct):
    """What a client has asked for. None: it has not."""

    block: dict[str, Any] | None
    cost_usd: Raw | None
    usage: Usage


def in_body(body: bytes, block: dict[str, Any]) -> bytes:
    """A whole answer, which is an object with members, with the block as its last member."""
    written = body.rstrip()
    return b'%b,"sluicegate":%b}' % (written[:-1], _encode(block)) if written.endswith(b"}") else body


def in_stream(dialect: str, head: Any, tail: bytes, told: Told) -> bytes:
    """The last bytes of a stream with what is told. head: what the dialect repeats in all chunks."""
    if dialect in (openai_chat.NAME, openai_completions.NAME):
        before, done = (tail.removesuffix(openai_chat.DONE), openai_chat.DONE) if tail.endswith(openai_chat.DONE) else (b"", tail)
        kind = "text_completion" if dialect == openai_completions.NAME else "chat.completion.chunk"
        chunk = {"id": head.id, "object": kind, "created": head.created, "model": head.model, "choices": []}
        return b"%bdata: %b\n\n%b" % (before, _encode(chunk | _figures(told, counts(told.usage))), done)
    reader = Reader()
    events = [*reader.feed(tail), *reader.end()]
    if not events:
        return tail
    last = events.pop()
    try:
        fields: dict[str, Any] = _decode_fields(last.data)
        if dialect == openai_responses.NAME:
            response: dict[str, Any] = _decode_fields(fields["response"])
            counted = {"input_tokens": told.usage.input_tokens or 0, "output_tokens": told.usage.output_tokens or 0}
            fields["response"] = _with(response, told, counted)
        else:
            fields = _with(fields, told, {})  # the counts came before
    except (ValueError, RecursionError, KeyError):
        return tail
    name = b"event: %b\n" % last.event.encode() if last.event else b""
    return b"".join([event.raw for event in events]) + b"%bdata: %b\n\n" % (name, _encode(fields))


def _with(fields: dict[str, Any], told: Told, counted: dict[str, Any]) -> dict[str, Any]:
    """An object with what is told in it, beside what it has of the same: why the gateway has cut the stream, and the counts of the usage."""
    figures = _figures(told, _object(fields.get("usage")) or counted)
    if told.block is not None:
        figures["sluicegate"] = _object(fields.get("sluicegate")) | told.block
    return fields | figures


def _figures(told: Told, usage: dict[str, Any]) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    if told.cost_usd is not None:
        figures["usage"] = usage | {"cost_usd": told.cost_usd}
    if told.block is not None:
        figures["sluicegate"] = told.block
    return figures


def _object(raw: Raw | None) -> dict[str, Any]:
    """Its members as they came; none of anything else."""
    try:
        return _decode_fields(raw) if raw is not None else {}
    except (ValueError, RecursionError):
        return {}
