"""What is asked of the records: moments with and without an offset, zones, filters that are given."""

from typing import Any

import pytest
from pydantic import ValidationError

from sluicegate.admin.questions import Filters
from sluicegate.records.queries import Question
from sluicegate.reject import Reject

DAY_MS = 86_400_000
NEW_YEAR_MS = 1_798_761_600_000  # 2027-01-01T00:00:00Z


def asked(**query: Any) -> Question:
    return Filters(**query).question(("model",))


@pytest.mark.parametrize(
    ("since", "tz", "start_ms"),
    [
        ("2027-01-01", "UTC", NEW_YEAR_MS),
        ("2027-01-01", "Europe/Berlin", NEW_YEAR_MS - 3_600_000),
        ("2027-01-01T00:00:00Z", "Europe/Berlin", NEW_YEAR_MS),
        ("2027-01-01T05:45:00.250+05:45", "Europe/Berlin", NEW_YEAR_MS + 250),
        ("2027-01-01T01:00:00 01:00", "UTC", NEW_YEAR_MS),  # a plus that was not escaped
        ("1970-01-01", "UTC", 1),  # 0 would be none
        ("0001-01-01", "Asia/Tokyo", 1),
    ],
)
def test_moments(since: str, tz: str, start_ms: int) -> None:
    """An offset says which moment is meant; without one the zone does."""
    assert asked(since=since, tz=tz).start_ms == start_ms
    assert asked(until=since, tz=tz).end_ms == start_ms


@pytest.mark.parametrize("text", ["", "yesterday", "1798761600", "2027-02-30", "2027-13-01", "2027-01-01T25:00", "2027", 5, "2027-01-01" + "0" * 50])
def test_what_is_no_moment(text: object) -> None:
    """Neither numbers nor days that do not exist."""
    with pytest.raises(ValidationError, match="since"):
        asked(since=text)


@pytest.mark.parametrize("tz", ["Nowhere", "../../etc/passwd", "/etc/localtime", "", "Europe", "Europe/Berlin\x00"])
def test_what_is_no_zone(tz: str) -> None:
    """It is not there; nothing else is read from the disk for it."""
    with pytest.raises(Reject) as told:
        asked(tz=tz)
    assert (told.value.status, told.value.code, told.value.param) == (404, "zone_not_found", "tz")


def test_filters_that_are_given() -> None:
    """Those and no others; tags by their names."""
    found = asked(tenant=["acme"], status=[429, 200], tag=["app=x", "app=y=z", "env="])
    assert found.filters == {"tenant": ["acme"], "status": ["429", "200"], "tag:app": ["x", "y=z"], "tag:env": [""]}
    assert asked() == Question(("model",))


@pytest.mark.parametrize(
    "query", [{"tenant": [""]}, {"status": [99]}, {"tag": ["app"]}, {"tag": ["=x"]}, {"tag": ["a=b,c=d"]}, {"model": ["a"] * 51}, {"colour": "red"}]
)
def test_filters_that_cannot_be(query: dict[str, Any]) -> None:
    """Each is told by its field."""
    with pytest.raises(ValidationError, match=next(iter(query))):
        asked(**query)
