"""What bodies of the admin API are made of. What is asked refuses unknown fields and takes no text for a number; durations are texts as in the
configuration.
"""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
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
