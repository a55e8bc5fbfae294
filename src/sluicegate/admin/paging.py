"""Lists of the admin API: `{object: "list", data: [...], has_more, next}`, asked for with `limit` and `after` (the `next` of the page before)."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Annotated, Generic, Literal, TypeVar

from fastapi import Query
from pydantic import BaseModel, Field

from sluicegate.admin.bodies import Answer, Asked

T = TypeVar("T", bound=BaseModel)


class Page(Asked, strict=False):
    """Which part of a list."""

    limit: int = Field(default=100, ge=1, le=1000, description="At most so many.")
    after: str = Field(default="", max_length=500, description="Those behind this one: the `next` of the page before.")


Paged = Annotated[Page, Query()]


class Listing(Answer, Generic[T]):
    """One page of a list. next: what `after` is for the one that follows, null on the last."""

    object: Literal["list"] = "list"
    data: list[T]
    has_more: bool
    next: str | None


def listing(data: list[T], next_after: str | None) -> Listing[T]:
    """A page. next_after: where the next one begins; None: there is none."""
    return Listing[T](data=data, has_more=next_after is not None, next=next_after)


def of_ids(ids: Sequence[str], page: Page, show: Callable[[str], T]) -> Listing[T]:
    """A page of what is all in memory, by its ids in order."""
    ordered = sorted(ids)
    start = bisect_right(ordered, page.after) if page.after else 0
    shown = ordered[start : start + page.limit]
    return listing([show(each) for each in shown], shown[-1] if start + page.limit < len(ordered) else None)
