"""Lists in pages, and texts of durations."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from sluicegate.admin.bodies import Answer, Span, span_ms
from sluicegate.admin.paging import Page, of_ids


class Item(Answer):
    id: str


@given(st.sets(st.text(min_size=1, max_size=5), max_size=12), st.integers(1, 5))
def test_pages_are_all_of_it_once_and_in_order(ids: set[str], limit: int) -> None:
    """Followed by `next` until there is none."""
    seen: list[str] = []
    after: str | None = ""
    while after is not None:
        page = of_ids(list(ids), Page(limit=limit, after=after), lambda each: Item(id=each))
        assert (page.next is not None) == page.has_more
        assert len(page.data) == limit or not page.has_more
        seen += [item.id for item in page.data]
        after = page.next
    assert seen == sorted(ids)


def test_a_page_behind_what_has_gone() -> None:
    """The one it was asked for may not be there any more."""
    assert [item.id for item in of_ids(["a", "c"], Page(after="b"), lambda each: Item(id=each)).data] == ["c"]


@pytest.mark.parametrize(("text", "ms"), [("1ms", 1), ("999999ms", 999_999), ("30s", 30_000), ("9m", 540_000), ("60m", 3_600_000), ("1h", 3_600_000)])
def test_spans(text: str, ms: int) -> None:
    """A duration as the configuration has them, of at most an hour."""
    assert span_ms(TypeAdapter(Span).validate_python(text)) == ms <= 3_600_000


@pytest.mark.parametrize("text", ["", "0s", "0m", "61m", "2h", "1000s", "1000000ms", "1.5s", "1 s", "s", "5", "-1s", "1d", "1s\n"])
def test_what_is_no_span(text: str) -> None:
    """Nothing, nothing of it, too much, or not written as one."""
    with pytest.raises(ValidationError):
        TypeAdapter(Span).validate_python(text)
