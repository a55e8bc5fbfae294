"""Parameters that are forced, and ceilings, under the names of each dialect."""

import json
from typing import Any

import msgspec
import pytest

from sluicegate.dialects.parameters import changed


def applied(dialect: str, body: dict[str, Any], force: dict[str, Any], ceilings: dict[str, Any]) -> tuple[list[str], Any]:
    fields = msgspec.json.decode(json.dumps(body).encode(), type=dict[str, msgspec.Raw])
    names = changed(dialect, fields, force, ceilings)
    return names, json.loads(msgspec.json.encode(fields))


@pytest.mark.parametrize(
    ("dialect", "body", "force", "told", "names"),
    [
        ("openai_chat", {}, {"temperature": 0.2}, {"temperature": 0.2}, ["temperature"]),
        ("openai_chat", {"temperature": 0.2}, {"temperature": 0.2}, {"temperature": 0.2}, []),
        ("openai_chat", {"max_completion_tokens": 9}, {"max_output": 5}, {"max_tokens": 5}, ["max_tokens", "max_completion_tokens"]),
        ("openai_chat", {"n_cmpl": 3}, {"n": 1}, {"n": 1}, ["n", "n_cmpl"]),
        ("openai_chat", {}, {"stop": ("a",)}, {"stop": ["a"]}, ["stop"]),
        ("openai_responses", {}, {"max_output": 5, "seed": 1}, {"max_output_tokens": 5}, ["max_output_tokens"]),
        (
            "openai_responses",
            {"reasoning": {"summary": "auto"}},
            {"reasoning_effort": "low"},
            {"reasoning": {"summary": "auto", "effort": "low"}},
            ["reasoning.effort"],
        ),
        ("openai_responses", {"reasoning": {"effort": "low"}}, {"reasoning_effort": "low"}, {"reasoning": {"effort": "low"}}, []),
        ("anthropic_messages", {}, {"stop": ("a",), "seed": 1, "n": 2}, {"stop_sequences": ["a"]}, ["stop_sequences"]),
        ("openai_embeddings", {}, {"temperature": 0.2}, {}, []),
        (
            "openai_chat",
            {"reasoning": {"effort": "high", "max_tokens": 9}, "thinking": {"type": "enabled", "budget_tokens": 9}, "reasoning_effort": "low"},
            {"reasoning_effort": "low"},
            {"reasoning_effort": "low"},
            ["reasoning.effort", "reasoning.max_tokens", "thinking"],
        ),
        (
            "openai_chat",
            {"reasoning": "high", "extra_body": {"google": {"thinking_config": {"thinking_budget": 9}, "a": 1}}},
            {"reasoning_effort": "low"},
            {"extra_body": {"google": {"a": 1}}, "reasoning_effort": "low"},
            ["reasoning_effort", "reasoning.effort", "extra_body.google.thinking_config"],
        ),
        (
            "openai_chat",
            {"chat_template_kwargs": {"enable_thinking": True}},
            {"reasoning_effort": "low"},
            {"reasoning_effort": "low"},
            ["reasoning_effort", "chat_template_kwargs.enable_thinking"],
        ),
        ("openai_chat", {"seed": 1, "random_seed": 2}, {"seed": 1}, {"seed": 1}, ["random_seed"]),
        (
            "openai_responses",
            {"reasoning": {"effort": "high", "max_tokens": 9, "summary": "auto"}, "reasoning_effort": "high", "thinking": {"budget_tokens": 9}},
            {"reasoning_effort": "low"},
            {"reasoning": {"effort": "low", "summary": "auto"}},
            ["reasoning.effort", "reasoning_effort", "reasoning.max_tokens", "thinking"],
        ),
        (
            "anthropic_messages",
            {"output_config": {"effort": "high", "format": {}}, "thinking": {"type": "enabled", "budget_tokens": 9}},
            {"reasoning_effort": "low"},
            {"output_config": {"effort": "low", "format": {}}},
            ["output_config.effort", "thinking"],
        ),
        (
            "anthropic_messages",
            {"thinking": {"type": "adaptive"}},
            {"reasoning_effort": "low"},
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}},
            ["output_config.effort"],
        ),
    ],
)
def test_parameters_are_forced(dialect: str, body: dict[str, Any], force: dict[str, Any], told: dict[str, Any], names: list[str]) -> None:
    """Whatever the client says, where the dialect has the parameter; what was so already is not told."""
    assert applied(dialect, body, force, {}) == (names, told)


@pytest.mark.parametrize(
    ("dialect", "body", "ceilings", "told", "names"),
    [
        ("openai_chat", {"temperature": 1.5}, {"temperature": 1.0}, {"temperature": 1.0}, ["temperature"]),
        ("openai_chat", {"temperature": 0.5}, {"temperature": 1.0}, {"temperature": 0.5}, []),
        ("openai_chat", {}, {"temperature": 1.0}, {}, []),
        ("openai_chat", {}, {"temperature": 0.5, "top_p": 0.5}, {"temperature": 0.5, "top_p": 0.5}, ["temperature", "top_p"]),
        ("openai_chat", {}, {"n": 1}, {}, []),
        ("openai_chat", {"n": 3, "n_cmpl": 4}, {"n": 2}, {"n": 2, "n_cmpl": 2}, ["n", "n_cmpl"]),
        (
            "openai_chat",
            {"max_tokens": 9, "max_completion_tokens": 3},
            {"max_output": 5},
            {"max_tokens": 5, "max_completion_tokens": 3},
            ["max_tokens"],
        ),
        ("openai_chat", {"max_tokens": None}, {"max_output": 5}, {"max_tokens": 5}, ["max_tokens"]),
        ("openai_chat", {}, {"max_output": 5}, {"max_tokens": 5}, ["max_tokens"]),
        ("openai_responses", {}, {"max_output": 5}, {"max_output_tokens": 5}, ["max_output_tokens"]),
        ("openai_responses", {"max_tokens": 9}, {"max_output": 5}, {"max_tokens": 5}, ["max_tokens"]),
        (
            "anthropic_messages",
            {"max_tokens": 9, "top_k": 50},
            {"max_output": 5, "top_k": 40},
            {"max_tokens": 5, "top_k": 40},
            ["max_tokens", "top_k"],
        ),
        ("openai_completions", {"best_of": 9, "n": 2}, {"n": 3}, {"best_of": 3, "n": 2}, ["best_of"]),
        ("openai_embeddings", {}, {"max_output": 5}, {}, []),
    ],
)
def test_what_is_above_its_ceiling_is_lowered(
    dialect: str, body: dict[str, Any], ceilings: dict[str, Any], told: dict[str, Any], names: list[str]
) -> None:
    """Under whichever name; what is not said counts as what providers take then."""
    assert applied(dialect, body, {}, ceilings) == (names, told)


def test_what_is_forced_is_under_its_ceiling_too() -> None:
    """A scope below may lower what is forced above."""
    assert applied("openai_chat", {"temperature": 0.3}, {"temperature": 0.8}, {"temperature": 0.3}) == ([], {"temperature": 0.3})
