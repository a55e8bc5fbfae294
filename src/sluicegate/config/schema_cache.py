"""The sections of the configuration file on the exact-match cache (docs/cache.md)."""

from typing import Annotated, Literal

from pydantic import Field

from sluicegate.config.fields import Duration, Size, at_least
from sluicegate.config.section import Section

Mode = Literal["off", "deterministic", "seeded", "all"]
Scope = Literal["key", "team", "organization", "global"]
Ttl = Annotated[Duration, at_least(1, "1ms")]


class ModelCache(Section):
    """`cache:` of one of `models:`: what it says otherwise."""

    mode: Mode | None = None
    scope: Scope | None = None
    ttl_ms: Ttl | None = Field(default=None, alias="ttl")


class Cache(Section):
    """`cache:`"""

    mode: Mode = "off"
    scope: Scope = "key"
    ttl_ms: Ttl = Field(default=3_600_000, alias="ttl")
    backend: Literal["memory", "redis"] | None = None
    max_bytes: Annotated[Size, at_least(2**16, "64KiB")] = 64 * 2**20
    max_entry: Annotated[Size, at_least(2**10, "1KiB")] = 256 * 2**10
