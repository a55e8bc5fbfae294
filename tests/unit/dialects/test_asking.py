"""What a request says, and where a system prompt stands in it."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.dialects.asking import Texts, prompted
from sluicegate.dialects.form import BadRequest

USER = {"role": "user", "content": "Hi"}
BOTH = "A.\n\nB."


def fields(body: dict[str, Any]) -> dict[str, Any]:
    return msgspec.json.decode(json.dumps(body).encode(), type=dict[str, msgspec.Raw])


def plain(read: dict[str, Any]) -> Any:
    return json.loads(msgspec.json.encode(read))


@pytest.mark.parametrize(
    ("body", "texts"),
    [
        ({"model": "m", "messages": [USER], "user": "me", "stop": "x", "temperature": 1}, ["Hi"]),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:x"}}]}]}, ["a"]),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "i", "function": {"name": "f", "arguments": '{"k": "v\\u0021"}'}}]}]},
            ["f", "k", "v!"],
        ),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": '{"k'}}]}]}, ['{"k']),
        ({"tools": [{"type": "function", "function": {"description": "d", "parameters": {"properties": {"p": {"enum": ["e"]}}}}}]}, ["d", "e", "p"]),
        ({"system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}]}, ["s"]),
        ({"content": [{"source": {"type": "text", "data": "doc"}}, {"source": {"type": "base64", "media_type": "x/y", "data": "QUJD"}}]}, ["doc"]),
        ({"prompt": ["a", "b"], "suffix": "c", "extra_body": {"note": "d"}}, ["a", "b", "c", "d"]),
        ({"messages": [{"format": "several words of text", "id": "one"}]}, ["several words of text"]),
    ],
)
def test_every_text_is_found(body: dict[str, Any], texts: list[str]) -> None:
    """Contents, names, descriptions, arguments and whatever else may be read; not ids, kinds and pictures."""
    assert sorted(Texts(fields(body)).all()) == sorted(texts)


def test_texts_are_replaced_where_they_stand() -> None:
    """Arguments stay JSON; names of tools and signed thoughts stay what they are; the rest of the body does not change a byte."""
    call = {"id": "i", "function": {"name": "bad", "arguments": '{"k": "bad\\n", "n": 1.50}'}}
    thought = {"type": "thinking", "thinking": "bad", "signature": "s"}
    body = {
        "messages": [{"role": "user", "content": "bad"}, {"role": "assistant", "tool_calls": [call]}, {"content": [thought]}],
        "tools": [{"a": 1.50}],
    }
    read = fields(body)
    tools = bytes(read["tools"])
    assert Texts(read).replace(lambda text: text.replace("bad", "#"))
    told = plain(read)["messages"]
    assert told[0]["content"] == "#"
    assert told[1]["tool_calls"][0]["function"]["name"] == "bad"
    assert json.loads(told[1]["tool_calls"][0]["function"]["arguments"]) == {"k": "#\n", "n": 1.5}
    assert told[2]["content"] == [thought]
    assert bytes(read["tools"]) == tools
    assert not Texts(read).replace(lambda text: text)


@given(
    st.recursive(
        st.text(max_size=8) | st.integers() | st.booleans() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=5), inner)
    )
)
@settings(max_examples=60, deadline=None)
def test_any_body_can_be_read(value: Any) -> None:
    """Nothing raises but for what is nested too deeply, and replacing nothing changes nothing."""
    read = fields({"messages": value})
    before = dict(read)
    texts = Texts(read)
    assert all(isinstance(text, str) for text in texts.all())
    assert not texts.replace(lambda text: text)
    assert read == before


def test_a_body_that_is_nested_too_deeply_is_refused() -> None:
    """As everywhere."""
    with pytest.raises(BadRequest, match="nested too deeply"):
        Texts({"messages": msgspec.Raw(b"[" * 5000 + b"]" * 5000)})


@pytest.mark.parametrize(
    ("dialect", "body", "told"),
    [
        ("openai_chat", {"messages": [USER]}, {"messages": [{"role": "system", "content": BOTH}, USER]}),
        (
            "openai_chat",
            {"messages": [{"role": "system", "content": [{"type": "text", "text": "A."}]}, {"role": "system", "content": "C."}, USER]},
            {"messages": [{"role": "system", "content": BOTH}, {"role": "system", "content": "C."}, USER]},
        ),
        ("openai_responses", {"input": "Hi"}, {"input": "Hi", "instructions": BOTH}),
        ("openai_responses", {"input": "Hi", "instructions": "A."}, {"input": "Hi", "instructions": BOTH}),
        ("openai_responses", {"input": "Hi", "instructions": "C."}, {"input": "Hi", "instructions": f"{BOTH}\n\nC."}),
        (
            "openai_responses",
            {"input": [{"role": "developer", "content": [{"type": "input_text", "text": "B."}]}, USER], "instructions": None},
            {"input": [USER], "instructions": BOTH},
        ),
        ("anthropic_messages", {"messages": [USER]}, {"messages": [USER], "system": [{"type": "text", "text": BOTH}]}),
        ("anthropic_messages", {"system": "C."}, {"system": [{"type": "text", "text": BOTH}, {"type": "text", "text": "C."}]}),
        ("anthropic_messages", {"system": ""}, {"system": [{"type": "text", "text": BOTH}]}),
        ("anthropic_messages", {"system": [{"type": "text", "text": " "}]}, {"system": [{"type": "text", "text": BOTH}]}),
        (
            "openai_chat",
            {"messages": [{"role": "system", "content": ""}, {"role": "user", "content": ""}]},
            {"messages": [{"role": "system", "content": BOTH}, {"role": "user", "content": ""}]},
        ),
        ("openai_completions", {"prompt": "Hi"}, {"prompt": f"{BOTH}\n\nHi"}),
        ("openai_completions", {"prompt": ["a", ""]}, {"prompt": [f"{BOTH}\n\na", BOTH]}),
        ("openai_completions", {}, {"prompt": BOTH}),
        ("openai_embeddings", {"input": "x"}, {"input": "x"}),
    ],
)
def test_system_prompts_stand_first_and_once(dialect: str, body: dict[str, Any], told: dict[str, Any]) -> None:
    """In each dialect where its clients put theirs. Once more changes nothing."""
    read = fields(body)
    assert prompted(dialect, read, ("A.", "B.")) is (body != told)
    assert plain(read) == told
    assert not prompted(dialect, read, ("A.", "B."))
    assert plain(read) == told


def test_a_prompt_of_tokens_is_refused() -> None:
    """Nothing can stand before it."""
    with pytest.raises(BadRequest) as error:
        prompted("openai_completions", fields({"prompt": [1, 2]}), ("A.",))
    assert (error.value.param, error.value.code) == ("prompt", "content_policy")
