"""The table of providers."""

from typing import Any

import pytest

from sluicegate.core.tenants import Provider
from sluicegate.providers import ROWS, SPOKEN, ByModel, Row, cap_field, forwarded, image_tokens, tokenizer


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
        ("text-embedding-3-small", "cl100k_base", "max_tokens"),
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
    """Every row speaks dialects that exist, each once, and extends only where generation stops on close; what is left out is no cap."""
    row = ROWS[name]
    spoken = (row.dialect, *row.also)
    assert len(set(spoken)) == len(spoken) and {*spoken, *dict(row.paths)} <= set(SPOKEN)
    assert row.stops_on_close or not row.extend
    assert not {row.cap_field, *dict(row.cap_fields).values()} & {*row.rejects, *dict(row.renames)}
    assert row.stream_usage or row.rejects


@pytest.mark.parametrize("name", ["openai_compatible", "vllm", "llama_cpp", "mistral", "gemini", "deepseek"])
def test_other_rows_assume_nothing_from_names(name: str) -> None:
    """Elsewhere, a model of a familiar name may be another one."""
    assert tokenizer(ROWS[name], "gpt-4o") == ""
    assert cap_field(ROWS[name], "o3-mini") == "max_tokens"
    assert image_tokens(ROWS[name], "gpt-4o-mini") == image_tokens(ROWS[name], "anything")


@pytest.mark.parametrize("pairs", [pairs for row in ROWS.values() for pairs in (row.cap_fields, row.image_tokens, row.tokenizers)])
def test_no_prefix_hides_a_longer_one(pairs: ByModel[Any]) -> None:
    """Of two prefixes of the same name the longer stands first, so that it is found."""
    prefixes = [prefix for prefix, _ in pairs]
    assert [later for i, earlier in enumerate(prefixes) for later in prefixes[i + 1 :] if later.startswith(earlier)] == []


def test_a_prefix_ends_where_a_part_of_the_name_does() -> None:
    """`gpt-4o` is not for `gpt-4ox`, and `gpt-4` not for `gpt-4o`."""
    row = Row("openai_chat", image_tokens=(("gpt-4o-mini", 3), ("gpt-4o", 2), ("gpt-4", 1)))
    names = ["gpt-4o-mini", "gpt-4o-mini-2024", "gpt-4o", "gpt-4o:free", "gpt-4", "gpt-4.5", "ft:gpt-4:me", "gpt-4ox", "my-gpt-4", ""]
    assert [image_tokens(row, name) for name in names] == [3, 3, 2, 2, 1, 1, 1, 0, 0, 0]
    assert image_tokens(Row("openai_chat", image_tokens=(("gpt-4", 1), ("", 9))), "other") == 9


def test_what_says_who_a_client_is_stays_here() -> None:
    """Only listed headers go on; the provider's own go first, and what could end a header does not pass."""
    own = ((b"authorization", b"Bearer ours"), (b"anthropic-version", b"2023-06-01"))
    provider = Provider("p", "openai_chat", "http://x", own, frozenset((b"traceparent", b"anthropic-version", b"anthropic-beta", b"x-bad")))
    client = {
        b"authorization": b"Bearer theirs",
        b"cookie": b"a=b",
        b"x-forwarded-for": b"10.0.0.1",
        b"anthropic-version": b"2099-01-01",
        b"traceparent": b"00-1",
        b"x-bad": b"a\x01b",
    }
    assert list(forwarded(provider, client)) == [*own, (b"traceparent", b"00-1")]
    assert forwarded(provider, {b"cookie": b"a=b"}) is own
    hop = {b"traceparent": b"00-1", b"anthropic-beta": b"x", b"connection": b"Keep-Alive, Anthropic-Beta"}
    assert list(forwarded(provider, hop)) == [*own, (b"traceparent", b"00-1")]  # what a connection names goes no further
