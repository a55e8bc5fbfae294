"""The OpenAI embeddings dialect: `POST /v1/embeddings`. There is no output: what is counted and paid is the input, and no cap is held or sent.

Read as strictly as the other requests (openai_request). An answer of many megabytes passes as the bytes it came in; its vectors are not decoded,
only skipped (2 GB/s). There are no streams: `stream: true` is refused, and what the gateway needs to have of every dialect for them is the
chat's. It cannot be translated: only a provider that has embeddings of its own is asked. Readers never raise.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct

from sluicegate.dialects import usage
from sluicegate.dialects.form import Answer, BadRequest, Request, Target
from sluicegate.dialects.openai_body import bare_failure, failure_in, loosely
from sluicegate.dialects.openai_chat import StreamReader, streamed, write_error, write_event, write_stream_error, write_truncation
from sluicegate.dialects.openai_inputs import Inputs, counted
from sluicegate.dialects.openai_messages import Content
from sluicegate.dialects.openai_request import Count, as_known, more_fields, strictly
from sluicegate.dialects.tariffs import tariff

__all__ = [
    "NAME", "PATH", "STATUS", "StreamReader", "read_answer", "read_request", "streamed",
    "write_error", "write_event", "write_request", "write_stream_error", "write_truncation",
]  # fmt: skip

NAME = "openai_embeddings"
STATUS: dict[str, int] = {}
PATH = b"/embeddings"  # below a provider's base URL


class Body(Struct, gc=False):
    """The body, as far as the gateway acts on it."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    input: Inputs
    encoding_format: str | None = None  # float, base64; some vendors have more
    dimensions: Count | None = None
    user: str | None = None
    stream: bool | None = None


class _Answer(Struct, gc=False):
    """An answer. The vectors stay as they came."""

    data: Raw = Raw(b"")
    usage: Any = None
    error: Any = None


_ACTED_ON = frozenset((*Body.__struct_fields__, "background"))
_SILENT = frozenset(Body.__struct_fields__) | {"input_type", "metadata", "output_dtype", "truncate", "truncation"}
_decode = msgspec.json.Decoder(Body).decode
_decode_answer = msgspec.json.Decoder(_Answer).decode
_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_encode = msgspec.json.Encoder().encode


def read_request(body: bytes) -> Request:
    """A client's request. Raises BadRequest, and nothing else, naming the field."""
    typed, fields, content = strictly(_read, body)
    if typed.stream:
        raise BadRequest("Embeddings cannot be streamed.", "stream")
    inputs = counted(typed.input, "input")
    return Request(
        model=typed.model,
        stream=False,
        include_usage=False,
        choices=1,
        cap=0,
        thinking=0,
        texts=inputs.texts + content.texts,
        messages=inputs.inputs,
        images=0,
        prediction="",
        unbounded=content.unbounded,
        fields=fields,
        unbounded_by=content.unbounded_by,
        hosted=content.hosted,
        tariff=tariff(fields),
        tokens=inputs.tokens,
    )


def write_request(request: Request, target: Target) -> bytes:
    """The request as one deployment gets it: its model name, the rest as it came."""
    fields: dict[str, Any] = dict(request.fields)
    fields["model"] = target.model
    if target.rejects or target.renames:
        as_known(fields, target)
    return _encode(fields)


def read_answer(body: bytes) -> Answer:
    """The vectors, or the body of an error status. Never raises."""
    try:
        answer = _decode_answer(body)
    except (ValueError, RecursionError):
        loose = loosely(body)
        failure = failure_in(loose) if isinstance(loose, list) else None
        return Answer([], [], None, failure, failure is not None)
    failure = failure_in(answer.error)
    found = bytes(memoryview(answer.data)[:1]) == b"["
    if failure is None and not found:
        failure = bare_failure(loosely(body))
    return Answer([], [], usage.read(usage.OPENAI_EMBEDDINGS, answer.usage), failure, found or failure is not None)


def _read(body: bytes) -> tuple[Body, dict[str, Raw], Content]:
    fields: dict[str, Raw] = _decode_fields(body)
    typed, content = _decode(body), Content()
    if not fields.keys() <= _SILENT:
        more_fields(content, fields, _SILENT, _ACTED_ON)
    return typed, fields, content
