"""Requests of the OpenAI completions dialect: what is read, what is refused by name, what is sent on."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.dialects.form import BadRequest, Request, Target
from sluicegate.dialects.openai_completions import read_request, write_request

TARGET = Target("served", 64, "max_tokens", True)


def body(**fields: Any) -> bytes:
    """A small request with these fields."""
    return json.dumps({"model": "instruct", "prompt": "Once", **fields}).encode()


def read(**fields: Any) -> Request:
    return read_request(body(**fields))


def sent(request: Request, target: Target = TARGET) -> Any:
    return json.loads(write_request(request, target))


def refused(data: bytes) -> BadRequest:
    """The error that these bytes give."""
    with pytest.raises(BadRequest) as info:
        read_request(data)
    return info.value


@pytest.mark.parametrize(
    ("prompt", "texts", "tokens", "prompts"),
    [
        ("Once", ["Once"], 0, 1),
        ("", [""], 0, 1),
        (["Once", "upon"], ["Once", "upon"], 0, 2),
        (["Once"], ["Once"], 0, 1),
        ([12, 7, 100_000], [], 3, 1),
        ([[1, 2], [3]], [], 3, 2),
        (None, [], 1, 1),
    ],
)
def test_prompts(prompt: Any, texts: list[str], tokens: int, prompts: int) -> None:
    """A text, texts, tokens or lists of tokens; tokens count as tokens; without a prompt the provider begins a document."""
    request = read(prompt=prompt)
    assert (request.texts, request.tokens, request.choices, request.messages, request.images) == (texts, tokens, prompts, prompts, 0)
    assert sent(request)["prompt"] == prompt


@pytest.mark.parametrize(
    ("fields", "choices"),
    [
        ({}, 1),
        ({"n": 3}, 3),
        ({"best_of": 5}, 5),
        ({"n": 2, "best_of": 5}, 5),
        ({"prompt": ["a", "b", "c"], "n": 2}, 6),
        ({"prompt": ["a", "b"], "n": 2, "best_of": 4}, 8),
        ({"prompt": [[1], [2]], "n": 64}, 128),
        ({"n_cmpl": 3}, 3),
    ],
)
def test_case_12_every_multiplier_counts(fields: dict[str, Any], choices: int) -> None:
    """Choices are prompts x max(n, best_of)."""
    assert read(**fields).choices == choices


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"prompt": ["a", "b"], "n": 65}, "n"),
        ({"prompt": ["a", "b"], "best_of": 65}, "best_of"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"best_of": 0}, "best_of"),
        ({"best_of": "2"}, "best_of"),
        ({"n": True}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": "16"}, "max_tokens"),
        ({"max_tokens": 10**17}, "max_tokens"),
        ({"max_tokens": 16, "max_completion_tokens": 0}, "max_completion_tokens"),
        ({"n_predict": -1}, "n_predict"),
        ({"Max_Tokens": 16}, "Max_Tokens"),
        ({"Prompt": "x"}, "Prompt"),
        ({"stream": "false"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"echo": "no"}, "echo"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"suffix": 5}, "suffix"),
        ({"stop": 5}, "stop"),
        ({"model": []}, "model"),
        ({"model": ""}, "model"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": {"prompt_string": "x", "multimodal_data": []}}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": ["a", 5]}, "prompt"),
        ({"prompt": [[1], "a"]}, "prompt"),
        ({"prompt": [1.5]}, "prompt[0]"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": [True]}, "prompt[0]"),
        ({"prompt_embeds": "UEsDB"}, "prompt_embeds"),
        ({"prompt_embeds": ["UEsDB", "UEsDB"]}, "prompt_embeds"),
        ({"background": True}, "background"),
        ({"extra_body": {"n": 8}}, "extra_body"),
        ({"stream": True, "best_of": 2}, "best_of"),
        ({"stream": True, "echo": True, "prompt": [1, 2]}, "echo"),
        (
            {"stream": True, "prompt": ["a", "b"], "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
            "stream_options.continuous_usage_stats",
        ),
    ],
)
def test_what_is_refused_names_the_field(fields: dict[str, Any], param: str) -> None:
    """Wrong types, impossible numbers, names in another case, hidden caps and multipliers, what cannot be streamed (12, 92, 111, 114, 119)."""
    assert refused(body(**fields)).param == param


@pytest.mark.parametrize("missing", ["model", "prompt"])
def test_what_is_missing_is_named(missing: str) -> None:
    """Both are needed."""
    fields = {"model": "m", "prompt": "p"}
    del fields[missing]
    assert refused(json.dumps(fields).encode()).param == missing


@pytest.mark.parametrize("data", [b"", b'{"a":', b"\xff", b"[]", b"null", b"1", b'"x"', b'{"model":"m","prompt":"\xff"}', b"[" * 5000])
def test_what_is_no_object_is_refused(data: bytes) -> None:
    """Not JSON, not UTF-8, not an object, or nested without end (88, 89)."""
    assert refused(data).message.startswith("The body")


def test_the_smallest_cap_counts() -> None:
    """Of several, and one is sent, under the name that completions have for it also where a model's chats want another; null is absent."""
    request = read(max_tokens=None, max_completion_tokens=30, n_predict=20)
    assert (request.cap, request.cap_by) == (20, "n_predict")
    assert read(max_tokens=None).cap is None
    written = sent(request, Target("served", 24, "max_completion_tokens", True))
    assert written == {"model": "served", "prompt": "Once", "max_tokens": 24}


def test_without_a_cap_one_is_sent() -> None:
    """What is held, not OpenAI's 16."""
    assert sent(read())["max_tokens"] == 64


def test_unknown_fields_pass_and_count() -> None:
    """As they came; text in them is text that may be read, what a provider fetches makes the input unbounded."""
    request = read(guided_json={"type": "object"}, top_k=3, logit_bias={"5": -100}, user="u", metadata={"a": "b"}, whatever="w" * 10)
    assert sorted(request.texts) == sorted(["Once", '{"type": "object"}', '"' + "w" * 10 + '"'])
    assert sent(request)["whatever"] == "w" * 10
    assert read(file_ids=["f"]).unbounded and not request.unbounded


def test_a_suffix_is_read_too() -> None:
    """It is input, framed once more."""
    request = read(suffix="the end")
    assert (request.texts, request.messages) == (["Once", "the end"], 2)


def test_usage_is_asked_for_in_a_stream() -> None:
    """Whether the client did or not; it is told which."""
    assert sent(read(stream=True))["stream_options"] == {"include_usage": True}
    asked = read(stream=True, stream_options={"include_usage": True, "other": 1})
    assert asked.include_usage and sent(asked)["stream_options"] == {"include_usage": True, "other": 1}
    assert "stream_options" not in sent(read(stream=True), Target("m", 5, "max_tokens", False))


@pytest.mark.parametrize(
    ("fields", "echoed"),
    [
        ({}, []),
        ({"echo": False}, []),
        ({"echo": True}, ["Once"]),
        ({"echo": True, "n": 2, "best_of": 4}, ["Once", "Once"]),
        ({"echo": True, "prompt": ["a", "b"], "n": 2}, ["a", "a", "b", "b"]),
        ({"echo": True, "prompt": [1, 2]}, []),
    ],
)
def test_an_echo_is_known_by_choice(fields: dict[str, Any], echoed: list[str]) -> None:
    """The prompt that each choice begins with; where there is one, what a stream shows is not relied on."""
    request = read(**fields)
    assert (list(request.echoed), request.shown) == (echoed, not fields.get("echo"))


def test_beams_are_not_shown() -> None:
    """A beam search shows nothing before its end."""
    assert not read(use_beam_search=True, n=4).shown


def test_half_a_surrogate_pair_is_mended() -> None:
    """Few upstreams would take it."""
    request = read_request(b'{"model":"m","prompt":"a\\ud800b"}')
    assert request.texts == ["a\ufffdb"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = ["prompt", "n", "best_of", "max_tokens", "stream", "echo", "logprobs", "suffix", "stop", "stream_options", "logit_bias", "user", "extra_body"]


@given(st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4))
def test_only_bad_request_is_raised(fields: dict[str, Any]) -> None:
    """Whatever is in it; what is taken is sent on as it came, but for the model and the cap."""
    try:
        request = read(**fields)
    except BadRequest:
        return
    assert 1 <= request.choices <= 128 and (request.cap is None or request.cap > 0)
    written = sent(request, Target("m", 5, "max_tokens", False))
    assert {**written, "model": 0, "max_tokens": 0} == {"prompt": "Once", **fields, "model": 0, "max_tokens": 0}


@given(st.binary(max_size=60))
def test_any_bytes(data: bytes) -> None:
    """Nothing but BadRequest comes of them."""
    with pytest.raises(BadRequest):
        read_request(data)
