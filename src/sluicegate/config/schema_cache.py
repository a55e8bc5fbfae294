"""The sections of the configuration file on the exact-match cache (docs/cache.md)."""

from typing import Literal

from pydantic import Field

from sluicegate.config.fields import Duration, Size
from sluicegate.config.section import Section

Mode = Literal["off", "deterministic", "seeded", "all"]
Scope = Literal["key", "team", "organization", "global"]


class ModelCache(Section):
    """`cache:` of one of `models:`: what it says otherwise."""

    mode: Mode | None = None
    scope: Scope | None = None
    ttl_ms: Duration | None = Field(default=None, alias="ttl", ge=1)


class Cache(Section):
    """`cache:`"""

    mode: Mode = "off"
    scope: Scope = "key"
    ttl_ms: Duration = Field(default=3_600_000, alias="ttl", ge=1)
    backend: Literal["memory", "redis"] | None = None
    max_bytes: Size = Field(default=64 * 2**20, ge=2**16)
    max_entry: Size = Field(default=256 * 2**10, ge=2**10)
