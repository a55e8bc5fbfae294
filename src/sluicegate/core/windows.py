"""Windows: over which time a limit counts, and the spans of those that end.

Two families. Windows that *refill* (Bucket, Sliding) give room back with time. Windows that do not (Calendar, Fixed, Lifetime) only end.
Open is concurrency: room comes back at settle. All times are integer milliseconds since the epoch, in the ledger's time.
"""

from typing import Literal

import msgspec


class Bucket(msgspec.Struct, frozen=True, tag="bucket"):
    """A token bucket: refills `amount` every `period_ms`, continuously."""

    period_ms: int


class Sliding(msgspec.Struct, frozen=True, tag="sliding"):
    """60 slices of `period_ms`; a slice counts whole while any part of it is inside, so no span of that length admits more than the amount."""

    period_ms: int


class Calendar(msgspec.Struct, frozen=True, tag="calendar"):
    """Hour, day, week or month in an IANA zone, optionally anchored (`mon 09:00`, `09:00`, `15 09:00`)."""

    every: Literal["hour", "day", "week", "month"]
    tz: str = "UTC"
    at: str = ""


class Fixed(msgspec.Struct, frozen=True, tag="fixed"):
    """`period_ms` long, aligned to the epoch."""

    period_ms: int


class Lifetime(msgspec.Struct, frozen=True, tag="lifetime"):
    """Never resets."""


class Open(msgspec.Struct, frozen=True, tag="open"):
    """Concurrency: counts what is in flight."""


Window = Bucket | Sliding | Calendar | Fixed | Lifetime | Open


class Span(msgspec.Struct, frozen=True):
    """One instance of a window that ends: `[start_ms, end_ms)` and a readable label in local time. `end_ms` 0 means for ever."""

    start_ms: int
    end_ms: int
    label: str
