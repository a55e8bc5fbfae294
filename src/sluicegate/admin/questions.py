"""What is asked of the records: filters, and from when until when."""

from datetime import datetime
from typing import Annotated
from zoneinfo import ZoneInfo

from pydantic import BeforeValidator, Field, StringConstraints, WithJsonSchema

from sluicegate.admin.errors import not_found
from sluicegate.admin.paging import Page
from sluicegate.records.queries import TAG, Question

NAMES_MAX = 50
_MOMENT = {"anyOf": [{"type": "string", "format": "date"}, {"type": "string", "format": "date-time"}]}


def _moment(text: object) -> datetime:
    if isinstance(text, str) and len(text) <= 40 and text[4:5] == "-":
        return datetime.fromisoformat(text.replace(" ", "+"))  # what an unescaped + of a URL comes as
    raise ValueError("Input should be a time such as 2026-11-30 or 2026-11-30T14:00:00+01:00")


Moment = Annotated[datetime, BeforeValidator(_moment), WithJsonSchema(_MOMENT)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00]+$")]
Names = Annotated[list[Name], Field(max_length=NAMES_MAX)]
Tag = Annotated[str, StringConstraints(pattern=r"^[^,=\x00]{1,64}=[^,\x00]{0,64}$")]


class Filters(Page, strict=False):
    """All that are given must fit; of one that is given more than once, any value."""

    tenant: Names = Field(default=[], description="Its path: it and all below it.")
    key: Names = Field(default=[], description="Its id, without keys below it.")
    model: Names = Field(default=[], description="As clients name it.")
    deployment: Names = Field(default=[], description="Its id: `provider/model`.")
    provider: Names = Field(default=[], description="As the configuration names it.")
    label: Names = Field(default=[], description="The end user, as requests name it.")
    tag: list[Tag] = Field(default=[], max_length=NAMES_MAX, description="`name=value` of `x-sluicegate-tags`.")
    status: list[Annotated[int, Field(ge=100, le=599)]] = Field(default=[], max_length=NAMES_MAX, description="What clients were told.")
    since: Moment | None = Field(default=None, description="The first moment that counts. Without an offset: in `tz`.")
    until: Moment | None = Field(default=None, description="The first that does not count any more.")
    tz: str = Field(default="UTC", max_length=64, description="Time zone (IANA) of days, hours, and times without an offset.")

    def question(self, group_by: tuple[str, ...] = ()) -> Question:
        """Raises Reject where there is no such zone."""
        try:
            zone = ZoneInfo(self.tz)
        except (KeyError, OSError, ValueError):
            raise not_found("There is no such time zone; write one such as Europe/Berlin.", "tz", "zone_not_found") from None
        filters: dict[str, list[str]] = {name: getattr(self, name) for name in ("tenant", "key", "model", "deployment", "provider", "label")}
        filters["status"] = [str(status) for status in self.status]
        for tag in self.tag:
            name, _, value = tag.partition("=")
            filters.setdefault(TAG + name, []).append(value)
        given = {name: values for name, values in filters.items() if values}
        return Question(group_by, given, _ms(self.since, zone), _ms(self.until, zone), self.tz)


def _ms(moment: datetime | None, zone: ZoneInfo) -> int:
    """0: none is given."""
    if moment is None:
        return 0
    return max(1, round((moment if moment.tzinfo is not None else moment.replace(tzinfo=zone)).timestamp() * 1000))
