"""OpenAI's embeddings, as the mock speaks them: of a text always the same vector, of length 1."""

import base64
import math
import random
import struct
from typing import Annotated, Any, Literal

import msgspec

from sluicegate.mock.answers import Answer
from sluicegate.mock.calls import Call, read
from sluicegate.mock.openai_chunks import KEY_HEADER, STREAM_TYPE, error, error_in_200
from sluicegate.mock.openai_completions import read_prompts

__all__ = ["KEY_HEADER", "PATH", "STREAM_TYPE", "error", "error_in_200", "read_call", "unary", "vector"]

PATH = "/v1/embeddings"
_json = msgspec.json.Encoder().encode


class Body(msgspec.Struct):
    """The body of a call, as far as the mock acts on it."""

    model: str
    input: msgspec.Raw
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, msgspec.Meta(ge=1, le=10_000)] | None = None
    user: str | None = None
    mock: dict[str, Any] | None = None


_decode_body = msgspec.json.Decoder(Body).decode


def read_call(body: bytes) -> Call:
    """No choices: there is no output."""
    asked = read(_decode_body, body)
    texts, token_ids = read_prompts(asked.input)
    return Call(asked.model, texts, bytes(asked.input), asked, choices=0, token_ids=token_ids, user=asked.user or "", overrides=asked.mock)


def unary(answer: Answer) -> bytes:
    """A vector for each text."""
    asked: Body = answer.call.body
    dims = asked.dimensions or answer.options.dims
    data = [
        {"object": "embedding", "index": index, "embedding": _encoded(vector(text, dims), asked), **answer.options.choice_fields}
        for index, text in enumerate(answer.call.texts)
    ]
    body: dict[str, Any] = {"object": "list", "data": data, "model": answer.call.model}
    if answer.options.usage != "none":
        figures = answer.figures(0)
        body["usage"] = None if figures is None else {"prompt_tokens": figures.prompt, "total_tokens": figures.prompt}
    return _json({**body, **answer.options.chunk_fields})


def vector(text: str, dims: int) -> bytes:
    """Little-endian floats of four bytes."""
    source = random.Random(text)
    numbers = [source.gauss(0, 1) for _ in range(dims)]
    length = math.hypot(*numbers)
    return struct.pack(f"<{dims}f", *(number / length for number in numbers))


def _encoded(data: bytes, asked: Body) -> str | list[float]:
    if asked.encoding_format == "base64":
        return base64.b64encode(data).decode()
    return list(struct.unpack(f"<{len(data) // 4}f", data))
