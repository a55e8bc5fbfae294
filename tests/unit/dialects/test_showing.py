"""Which requests leave all output to be seen."""

import json
from typing import Any

import pytest

from sluicegate.dialects import anthropic_messages, openai_chat, openai_completions, openai_responses

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
BODIES: dict[Any, dict[str, Any]] = {
    openai_chat: CHAT,
    openai_completions: {"model": "m", "prompt": "hi"},
    openai_responses: {"model": "m", "input": "hi"},
    anthropic_messages: CHAT | {"max_tokens": 9},
}
NAMES = [dialect.NAME for dialect in BODIES]


def shown(dialect: Any, **fields: Any) -> bool:
    request = dialect.read_request(json.dumps(BODIES[dialect] | fields).encode())
    return bool(request.shown)


@pytest.mark.parametrize("dialect", BODIES, ids=NAMES)
@pytest.mark.parametrize("fields", [{}, {"temperature": 0.5, "stream": True}, {"top_k": 5}, {"unheard_of": None}], ids=str)
def test_what_only_steers_hides_nothing(dialect: Any, fields: dict[str, Any]) -> None:
    """The usual fields, and what says nothing."""
    assert shown(dialect, **fields)


@pytest.mark.parametrize("dialect", BODIES, ids=NAMES)
@pytest.mark.parametrize(
    "fields",
    [
        {"include_reasoning": False},
        {"reasoning": {"exclude": True}},
        {"thinking": {"type": "enabled", "budget_tokens": 5, "display": "omitted"}},
        {"reasoning_format": "hidden"},
        {"extra_body": {"include_reasoning": False}},
        {"unheard_of": 1},
    ],
    ids=str,
)
def test_any_other_field_might(dialect: Any, fields: dict[str, Any]) -> None:
    """A server may have a field by which a client hides output: not the known ones are distrusted, but all that are not known to steer only."""
    assert not shown(dialect, **fields)
