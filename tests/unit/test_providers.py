"""The table of providers."""

import importlib.util

import pytest

from sluicegate.providers import ROWS, cap_field, tokenizer


@pytest.mark.parametrize(
    ("model", "vocabulary", "field"),
    [
        ("gpt-4o", "o200k_base", "max_tokens"),
        ("gpt-4o-mini-2024-07-18", "o200k_base", "max_tokens"),
        ("chatgpt-4o-latest", "o200k_base", "max_tokens"),
        ("gpt-4.1-nano", "o200k_base", "max_tokens"),
        ("gpt-4", "cl100k_base", "max_tokens"),
        ("gpt-4-turbo", "cl100k_base", "max_tokens"),
        ("gpt-3.5-turbo", "cl100k_base", "max_tokens"),
        ("ft:gpt-4o-mini:org::id", "o200k_base", "max_tokens"),
        ("gpt-5", "o200k_base", "max_completion_tokens"),
        ("gpt-5.1-mini", "o200k_base", "max_completion_tokens"),
        ("o1", "o200k_base", "max_completion_tokens"),
        ("o3-mini", "o200k_base", "max_completion_tokens"),
        ("o4-mini", "o200k_base", "max_completion_tokens"),
        ("o1x", "", "max_tokens"),
        ("gpt-oss-20b", "", "max_tokens"),
        ("llama-3", "", "max_tokens"),
    ],
)
def test_openai_models(model: str, vocabulary: str, field: str) -> None:
    """The vocabulary and the cap field follow from the model's name; of others nothing is assumed."""
    assert (tokenizer(ROWS["openai"], model), cap_field(ROWS["openai"], model)) == (vocabulary, field)


@pytest.mark.parametrize("name", ROWS)
def test_rows_are_sound(name: str) -> None:
    """Every row speaks a dialect that exists, and extends only where generation stops on close."""
    row = ROWS[name]
    assert importlib.util.find_spec(f"sluicegate.dialects.{row.dialect}") is not None
    assert row.stops_on_close or not row.extend


def test_other_rows_assume_nothing_from_names() -> None:
    """Elsewhere, a model of a familiar name may be another one."""
    assert tokenizer(ROWS["openai_compatible"], "gpt-4o") == ""
    assert cap_field(ROWS["vllm"], "o3-mini") == "max_tokens"
