"""The OpenAI embeddings dialect: what is read and counted, what is refused by name, what passes as it came."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.core.usage import Usage
from sluicegate.dialects.form import BadRequest, Request, Target
from sluicegate.dialects.openai_embeddings import read_answer, read_request, write_request

TARGET = Target("served", None, "max_tokens", True, ("user",), (("dimensions", "output_dimension"),))


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "embed", "input": "text", **fields}).encode()


def read(**fields: Any) -> Request:
    return read_request(body(**fields))


def refused(data: bytes) -> BadRequest:
    with pytest.raises(BadRequest) as info:
        read_request(data)
    return info.value


@pytest.mark.parametrize(
    ("value", "texts", "tokens", "inputs"),
    [
        ("text", ["text"], 0, 1),
        (["a", "b"], ["a", "b"], 0, 2),
        ([5, 6, 7], [], 3, 1),
        ([[5], [6, 7]], [], 3, 2),
    ],
)
def test_inputs(value: Any, texts: list[str], tokens: int, inputs: int) -> None:
    """A text, texts, tokens or lists of tokens, each framed once; there is no output, and however many they are, no answer to multiply."""
    request = read(input=value, encoding_format="base64", dimensions=256, user="u")
    assert (request.texts, request.tokens, request.messages) == (texts, tokens, inputs)
    assert (request.cap, request.choices, request.stream, request.images, request.unbounded) == (0, 1, False, 0, "")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": True}, "stream"),
        ({"stream": "false"}, "stream"),
        ({"input": []}, "input"),
        ({"input": [[]]}, "input[0]"),
        ({"input": 5}, "input"),
        ({"input": None}, "input"),
        ({"input": ["a", 5]}, "input"),
        ({"input": [{"text": "a"}]}, "input[0]"),
        ({"input": [-1]}, "input[0]"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": "256"}, "dimensions"),
        ({"encoding_format": 5}, "encoding_format"),
        ({"Input": "x"}, "Input"),
        ({"model": 5}, "model"),
    ],
)
def test_what_is_refused_names_the_field(fields: dict[str, Any], param: str) -> None:
    """Wrong types, nothing to read, and streams."""
    assert refused(body(**fields)).param == param


@pytest.mark.parametrize("missing", ["model", "input"])
def test_what_is_missing_is_named(missing: str) -> None:
    """Both are needed; a conversation in its stead, which vLLM would take, is not read."""
    fields = {"model": "m", "input": "x", "messages": [{"role": "user", "content": "x"}]}
    del fields[missing]
    assert refused(json.dumps(fields).encode()).param == missing


def test_what_is_sent() -> None:
    """The provider's name of the model, no cap and no stream options; fields that it rejects or knows by another name; the rest as it came."""
    written = json.loads(write_request(read(dimensions=256, user="u", input=[[1, 2]], truncate="END", instruction="Represent this"), TARGET))
    assert written == {"model": "served", "input": [[1, 2]], "output_dimension": 256, "truncate": "END", "instruction": "Represent this"}


def test_unknown_text_counts() -> None:
    """It may be put before each input."""
    assert read(instruction="Represent this").texts == ["text", '"Represent this"']


@pytest.mark.parametrize(
    ("reported", "usage"),
    [
        ({"prompt_tokens": 5, "total_tokens": 5}, Usage(5, 0)),
        ({"prompt_tokens": 5, "completion_tokens": 0, "total_tokens": 5}, Usage(5, 0)),
        ({"total_tokens": 50}, Usage(50, 0)),
        ({"prompt_tokens": None, "total_tokens": 50}, Usage(50, 0)),
        (None, None),
        ("many", None),
    ],
)
def test_usage(reported: Any, usage: Usage | None) -> None:
    """Input alone; where only a total is told, that is it."""
    answer = read_answer(json.dumps({"object": "list", "data": [], "usage": reported}).encode())
    assert (answer.usage, answer.readable, answer.deltas, answer.finishes, answer.failure) == (usage, True, [], [], None)


@pytest.mark.parametrize("vector", [[0.1, -2e-5], base64.b64encode(b"\0" * 16).decode(), ["odd"], None])
def test_vectors_are_not_looked_at(vector: Any) -> None:
    """Whatever they are."""
    data = [{"object": "embedding", "index": 0, "embedding": vector}]
    assert read_answer(json.dumps({"data": data, "usage": {"prompt_tokens": 1, "total_tokens": 1}}).encode()).readable


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"error":{"message":"no","type":"t","code":"c"}}', "no"),
        (b'{"data":[],"error":{"message":"no"}}', "no"),
        (b'{"object":"error","message":"no"}', "no"),
        (b'{"detail":"no"}', "no"),
        (b'[{"error":{"message":"no"}}]', "no"),
    ],
)
def test_errors_are_read(data: bytes, message: str) -> None:
    """As vendors write them, also inside a 200 (37)."""
    answer = read_answer(data)
    assert answer.readable and answer.failure is not None and answer.failure.message == message


@pytest.mark.parametrize("data", [b"", b"<html>", b"{", b"1", b"{}", b'{"data":null}', b'{"data":{}}', b"\xff", b"[" * 5000])
def test_what_is_no_answer_is_not_readable(data: bytes) -> None:
    """Such a body is never taken for vectors."""
    answer = read_answer(data)
    assert (answer.readable, answer.usage) == (False, None)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(["input", "dimensions", "stream", "user", "encoding_format", "extra_body", "files"]), JSON, max_size=4))
def test_only_bad_request_is_raised(fields: dict[str, Any]) -> None:
    """Whatever is in it; what is taken is sent on as it came, but for the model."""
    try:
        request = read(**fields)
    except BadRequest:
        return
    assert json.loads(write_request(request, Target("m", None, "", True))) == {"input": "text", **fields, "model": "m"}


@given(st.dictionaries(st.sampled_from(["data", "usage", "error", "message"]), JSON, max_size=4))
def test_any_answer_is_read(fields: dict[str, Any]) -> None:
    """Nothing is raised."""
    read_answer(json.dumps(fields).encode())
