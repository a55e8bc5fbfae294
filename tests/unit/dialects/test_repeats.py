"""Names that are given twice inside a body."""

import json
from types import ModuleType
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.dialects import anthropic_request, openai_completions_request, openai_request, openai_responses_request
from sluicegate.dialects.form import BadRequest
from sluicegate.dialects.repeats import refuse_repeats_in

LONG = "word " * 3_000
CHAT, MESSAGES, RESPONSES = openai_request, anthropic_request, openai_responses_request
BODIES = {CHAT: '{"model":"m","max_tokens":5,%s}', MESSAGES: '{"model":"m","max_tokens":5,%s}', RESPONSES: '{"model":"m",%s}'}
BODIES[openai_completions_request] = '{"model":"m","prompt":"a",%s}'
HI = '"messages":[{"role":"user","content":"hi"}]'


@pytest.mark.parametrize(
    ("module", "given", "field"),
    [
        (CHAT, '"messages":[{"role":"user","content":"L","content":"s"}]', "messages"),
        (CHAT, '"messages":[{"role":"user","c\\u006fntent":"L","content":"s"}]', "messages"),
        (CHAT, '"messages":[{"role":"user","content":"L","c\\u006fntent":"s"}]', "messages"),
        (CHAT, '"messages": [ {"role": "user", "content": "L", "content": "s \\u00e9"} ]', "messages"),
        (CHAT, '"messages":[{"role":"user","content":[{"type":"text","text":"L","text":"s"}]}]', "messages"),
        (CHAT, '"messages":[{"role":"user","content":"a","content":"s"}]', "messages"),
        (CHAT, '"messages":[{"role":"user","content":"s","thought":{"a":1e15,"b":"L","b":1}}]', "messages"),
        (CHAT, '"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"L","arguments":""}}]}]', "messages"),
        (CHAT, HI + ',"tools":[{"type":"web_search","type":"function","function":{"name":"f"}}]', "tools"),
        (CHAT, HI + ',"prediction":{"type":"content","content":"L","content":""}', "prediction"),
        (CHAT, HI + ',"reasoning":{"max_tokens":900000,"max_tokens":1}', "reasoning"),
        (CHAT, HI + ',"extra_body":{"search":true,"search":false}', "extra_body"),
        (MESSAGES, '"messages":[{"role":"user","content":"L","content":"s"}]', "messages"),
        (MESSAGES, '"messages":[{"role":"user","content":[{"type":"text","text":"L","t\\u0065xt":"s"}]}]', "messages"),
        (MESSAGES, HI + ',"system":[{"type":"text","text":"L","text":"s"}]', "system"),
        (MESSAGES, HI + ',"thinking":{"type":"enabled","budget_tokens":90000,"budget_tokens":2000}', "thinking"),
        (RESPONSES, '"input":[{"role":"user","content":"L","content":"s"}]', "input"),
        (RESPONSES, '"input":[{"role":"user","content":[{"type":"input_text","text":"L","text":"s"}]}]', "input"),
        (RESPONSES, '"input":"s","tools":[{"type":"mcp","type":"function","name":"f"}]', "tools"),
        (openai_completions_request, '"extra_body":{"search":true,"search":false}', "extra_body"),
    ],
)
def test_a_name_that_is_given_twice_is_refused(module: ModuleType, given: str, field: str) -> None:
    """The last one would be held, both sent: a 400 that names the field, however the names are written."""
    with pytest.raises(BadRequest, match="given twice") as info:
        module.read_request((BODIES[module] % given).replace('"L"', f'"{LONG}"').encode())
    assert info.value.param == field


ORDINARY: list[dict[str, Any]] = [
    {"role": "user", "content": 'é \u2028 \\ " / \x01 \x7f \U0001f600'},
    {"role": "assistant", "content": None, "tool_calls": None, "refusal": None, "annotations": []},
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "u", "detail": "low"}}]},
    {"role": "user", "content": "a", "more": [1.5, 1e300, -0.0, 10**30, int("1" * 4000), {"content": "b", "role": {"content": 1}}]},
]


@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" ,\n", "\t:")])
def test_ordinary_bodies_pass(ascii_only: bool, separators: tuple[str, str]) -> None:
    """However a client writes its JSON, the same name in several objects is none that is given twice."""
    body = {
        "model": "m",
        "max_tokens": 5,
        "messages": ORDINARY,
        "temperature": 0.70,
        "metadata": {"a": "b"},
        "provider": {"max_price": {"prompt": 1.0}},
    }
    data = json.dumps(body, ensure_ascii=ascii_only, separators=separators).encode()
    assert openai_request.read_request(data).messages == 4
    refuse_repeats_in(b"[" + b"1" * 5_000 + b"]", "messages")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**25), 10**25) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES, VALUES, st.text(max_size=3), st.booleans(), st.sampled_from([(",", ":"), (", ", ": ")]))
def test_any_value(value: Any, other: Any, name: str, ascii_only: bool, separators: tuple[str, str]) -> None:
    """Exactly the repeated names are found, beside values of any length."""
    text, again, key = (json.dumps(one, ensure_ascii=ascii_only, separators=separators) for one in (value, other, name))
    try:
        once, twice = f"[{{{key}:{text}}},{again}]".encode(), f"[{{{key}:{text},{key}:{again}}}]".encode()
        msgspec.json.decode(once, type=list[msgspec.Raw])
    except (UnicodeEncodeError, msgspec.DecodeError):  # half a surrogate pair is refused before
        return
    refuse_repeats_in(once, "messages")
    with pytest.raises(BadRequest):
        refuse_repeats_in(twice, "messages")


@pytest.mark.parametrize("role", ['"role": "user"', '"role":"user"', '"role" :  "user"'])
@pytest.mark.parametrize("text", ["a b  c", "", " ", "a\\u0020b", "a\\/b"])
def test_spaces_hide_no_repeat(role: str, text: str) -> None:
    """However texts and what is between them are spaced: a name that is given twice in a message is refused, and nothing else is."""
    once = f'{{"model": "m", "messages": [{{{role}, "content": "{text}"}}]}}'
    assert openai_request.read_request(once.encode()).texts == [json.loads(f'"{text}"')]
    with pytest.raises(BadRequest, match="given twice"):
        openai_request.read_request(once.replace(role, f"{role}, {role}").encode())
