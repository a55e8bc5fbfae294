"""What a request says, and where a system prompt stands in it."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.dialects import anthropic_messages, openai_chat, openai_responses
from sluicegate.dialects.asking import Texts, begun, prompted
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
        ({"messages": [{"tool_calls": [{"function": {"arguments": '{"k": 1.50, "k": [41, true]}'}}]}]}, ["k", "1.50", "k", "41"]),
        ({"messages": [{"tool_calls": [{"function": {"arguments": '{"\\u006b'}}]}]}, ['{"\\u006b', '{"k']),
        ({"messages": [{"content": [{"type": "tool_use", "name": "f", "input": {"n": [41, 1.25, True]}}], "n": 2}]}, ["f", "41", "1.25"]),
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


def test_who_says_a_message_is_masked_and_the_name_of_a_tool_is_not() -> None:
    """A tool has to be found again; a name of a property in a schema is none of them."""
    said = [{"role": role, "name": "bad", "content": "x"} for role in ("user", "system", "assistant", "tool", "function")]
    tool = {"type": "function", "function": {"name": "bad", "parameters": {"properties": {"bad": {}, "role": "x"}}}}
    read = fields({"messages": said, "tools": [tool]})
    assert Texts(read).replace(lambda text: text.replace("bad", "#"))
    assert [message["name"] for message in plain(read)["messages"]] == ["#", "#", "#", "bad", "bad"]
    assert plain(read)["tools"] == [tool]


def test_numbers_stay_as_they_are_written() -> None:
    """In what is built anew, too; one that is masked is a text then."""
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {"n": 4111, "m": 0}}
    body = json.dumps({"messages": [{"content": [call]}]}).replace('"m": 0', '"m": [1e400, 1.10, 12345678901234567890.123456789]')
    read = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    assert Texts(read).replace(lambda text: text.replace("4111", "#"))
    assert b'"input":{"n":"#","m":[1e400,1.10,12345678901234567890.123456789]}' in bytes(read["messages"])


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
        ("openai_responses", {"input": "Hi", "instructions": BOTH + "x"}, {"input": "Hi", "instructions": f"{BOTH}\n\n{BOTH}x"}),
        ("anthropic_messages", {"system": BOTH + " Or"}, {"system": [{"type": "text", "text": BOTH}, {"type": "text", "text": BOTH + " Or"}]}),
        ("anthropic_messages", {"system": BOTH + "\n\nC."}, {"system": BOTH + "\n\nC."}),
        (
            "openai_chat",
            {"messages": [{"role": "system", "content": [{"type": "text", "text": BOTH}, {"type": "text", "text": " Or"}]}]},
            {
                "messages": [
                    {"role": "system", "content": BOTH},
                    {"role": "system", "content": [{"type": "text", "text": BOTH}, {"type": "text", "text": " Or"}]},
                ]
            },
        ),
        ("openai_completions", {"prompt": BOTH + "\nHi"}, {"prompt": f"{BOTH}\n\n{BOTH}\nHi"}),
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


SYSTEM = {"role": "system", "content": "C."}
PARTS = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "https://a.b/c"}}]}
CALL = {"role": "assistant", "tool_calls": [{"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


@pytest.mark.parametrize(
    ("dialect", "body", "short"),
    [
        (openai_chat, {"messages": [USER]}, True),
        (
            openai_chat,
            {"messages": [SYSTEM, PARTS, CALL, {"role": "tool", "tool_call_id": "t", "content": "x"}], "tools": [TOOL], "stream": True},
            True,
        ),
        (openai_chat, {"messages": [USER, {"role": "user", "content": "odd", "more": {"a": 1}}], "max_tokens": 5, "odd_field": "x"}, True),
        (openai_chat, {"messages": [{"role": "system", "content": "B."}, USER]}, False),
        (openai_chat, {"messages": [{"role": "developer", "content": " "}, USER]}, False),
        (openai_chat, {"messages": [{"role": "system", "content": [{"type": "text", "text": "C."}]}, USER]}, False),
        (openai_chat, {"messages": [{"role": "system", "content": BOTH + "\n\nMore."}, USER]}, False),
        (openai_chat, {"messages": [{"role": "system", "content": BOTH + " Or not."}, USER]}, True),
        (openai_responses, {"input": "Hi", "max_output_tokens": 5}, True),
        (openai_responses, {"input": "Hi", "instructions": None}, True),
        (openai_responses, {"input": "Hi", "instructions": "C."}, False),
        (openai_responses, {"input": [USER]}, False),
        (anthropic_messages, {"messages": [USER], "max_tokens": 5}, True),
        (anthropic_messages, {"messages": [USER], "max_tokens": 5, "system": "C."}, False),
    ],
)
def test_what_a_prompt_adds_is_counted_as_its_dialect_counts_it(dialect: Any, body: dict[str, Any], short: bool) -> None:
    """A request that is not read again has every figure that it would have if it were; where more than that changes it is left alone."""
    request = dialect.read_request(json.dumps({"model": "m", **body}).encode())
    before = dialect.read_request(json.dumps({"model": "m", **body}).encode())
    told = begun(dialect.NAME, request, ("A.", "B."))
    assert (told is not None) is short
    assert request == before
    if told is not None:
        changed = dict(request.fields)
        prompted(dialect.NAME, changed, ("A.", "B."))
        assert plain(told.fields) == plain(changed)
        again = dialect.read_request(msgspec.json.encode(told.fields))
        assert msgspec.structs.replace(told, fields={}) == msgspec.structs.replace(again, fields={})


@given(
    st.lists(
        st.fixed_dictionaries(
            {"role": st.sampled_from(["system", "developer", "user"])}, optional={"content": st.sampled_from(["A.", BOTH, " ", "Hi", None])}
        ),
        min_size=1,
        max_size=3,
    )
)
@settings(max_examples=100, deadline=None)
def test_the_short_way_and_the_long_one_tell_the_same(messages: list[dict[str, Any]]) -> None:
    """Whatever a client has said first."""
    request = openai_chat.read_request(json.dumps({"model": "m", "messages": messages}).encode())
    told, changed = begun("openai_chat", request, ("A.", "B.")), dict(request.fields)
    prompted("openai_chat", changed, ("A.", "B."))
    assert told is None or plain(told.fields) == plain(changed)
