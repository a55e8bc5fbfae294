"""What bodies of the admin API are made of. What is asked refuses unknown fields and takes no text for a number; durations are texts as in the
configuration.
"""

import re
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from sluicegate.core.limits import NANO, Unit

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
_LENGTH = r"^(0|[1-9][0-9]{0,4})(s|m|h|d)$"
_LENGTHS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_UP_TO_AN_HOUR = r"^([1-9][0-9]{0,5}ms|[1-9][0-9]{0,2}s|[1-9]m|[1-5][0-9]m|60m|1h)$"


class Asked(BaseModel):
    """A request's body, or its query."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Answer(BaseModel):
    """An answer's body."""

    model_config = ConfigDict(extra="forbid")


def _whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = BeforeValidator(_whole)  # behind the bounds of an int: JSON knows one kind of number, so 5.0 is 5

Span = Annotated[
    str, Field(pattern=_UP_TO_AN_HOUR, description="A duration of at most an hour: `500ms`, `30s`, `5m`, `1h`.", examples=["30s"], max_length=8)
]


def span_ms(text: str) -> int:
    """Milliseconds of a Span."""
    number = text.rstrip("hms")
    return int(number) * _UNITS_MS[text[len(number) :]]


Id = Annotated[str, Field(min_length=1, max_length=400, pattern=r"^[^\x00-\x1f\x7f]+$")]
Plain = Annotated[str, Field(max_length=500, pattern=r"^[^\x00-\x1f\x7f]*$")]
LimitText = Annotated[
    str | dict[str, Any], Field(description="As in the configuration: `$100/month`, `20k tokens/minute`, or the long form.", examples=["$100/month"])
]
Length = Annotated[str, Field(pattern=_LENGTH, max_length=6, description="`90s`, `30m`, `24h`, `30d`.", examples=["24h"])]


def length_ms(text: str) -> int:
    """Milliseconds of a Length."""
    return int(text[:-1]) * _LENGTHS_MS[text[-1]]


def _checked(text: str) -> str:
    when_ms(text, 0)
    return text


When = Annotated[
    str,
    AfterValidator(_checked),
    Field(max_length=40, description="A time such as `2026-12-31T00:00:00Z`, or how long from now: `30d`.", examples=["30d"]),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": _LENGTH}, {"type": "string", "format": "date-time"}], "title": "When"}),
]


def when_ms(text: str, now_ms: int) -> int:
    """The moment that a When means. Raises ValueError."""
    if re.match(_LENGTH, text):
        return now_ms + length_ms(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise ValueError("It must be a time with its offset, such as 2026-12-31T00:00:00Z, or a length such as 30d")
    return max(1, int(found.timestamp() * 1000))


def amount_of(figure: float, unit: Unit) -> int | None:
    """In the unit of the limit; dollars are given as dollars. None: it is finer than that unit."""
    exact = Decimal(repr(figure)) * (NANO if unit is Unit.USD else 1)
    return int(exact) if exact == exact.to_integral_value() else None
