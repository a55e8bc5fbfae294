"""Labels are read from whatever clients send, and are plain, bounded text afterwards."""

import json
from typing import Any

import msgspec
import pytest

from sluicegate.core.labels import TAGS_MAX, plain, read_tags, tags, user


def fields(**values: Any) -> dict[str, msgspec.Raw]:
    return {name: msgspec.Raw(json.dumps(value).encode()) for name, value in values.items()}


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"user": "ann"}, "ann"),
        ({"user": "ann", "metadata": {"user_id": "bob"}}, "ann"),
        ({"metadata": {"user_id": "bob", "more": 1}}, "bob"),
        ({"metadata": {"app": "x"}}, ""),
        ({"metadata": {"user_id": None}}, ""),
        ({"metadata": {"user_id": 7}}, ""),
        ({"metadata": None}, ""),
        ({"user": None}, ""),
        ({"user": {"name": "ann"}}, ""),
        ({"user": "a\u0000b\nc"}, "a?b?c"),
        ({"user": "x" * 500}, "x" * 128),
        ({}, ""),
    ],
)
def test_the_end_user_of_a_request(body: dict[str, Any], named: str) -> None:
    """As OpenAI's or Anthropic's clients name it; anything else is none."""
    assert user(fields(**body)) == named


@pytest.mark.parametrize(
    ("header", "read"),
    [
        (b"app=search", {"app": "search"}),
        (b" env = prod ,app=search,", {"app": "search", "env": "prod"}),
        (b"a=1,a=2", {"a": "1"}),
        (b"formula==1+1", {"formula": "=1+1"}),
        (b"empty=", {"empty": ""}),
        (b"=x,word,,", {}),
        ("name=Jörg".encode(), {"name": "Jörg"}),
        (b"bytes=\xff\x01", {"bytes": "\ufffd?"}),
        (b"", {}),
        (b"k" * 100 + b"=" + b"v" * 100, {"k" * 64: "v" * 64}),
        (b",".join(b"t%d=x" % number for number in range(99)), {f"t{number}": "x" for number in range(TAGS_MAX)}),
    ],
)
def test_tags_of_a_header(header: bytes, read: dict[str, str]) -> None:
    """Pairs between commas, in an order of their own; what is none is left out, so is what is too much."""
    text = tags(header)
    assert read_tags(text) == read
    assert tags(text.encode()) == text
    assert list(read_tags(text)) == sorted(read)


def test_plain_text() -> None:
    """Control characters and halves of characters are replaced, length is cut, the rest stays."""
    assert [plain(text, 4) for text in ("abcdef", "a\tb", "\ud800x", "é漢")] == ["abcd", "a?b", "?x", "é漢"]
