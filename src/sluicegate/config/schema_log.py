"""`log:`, what is told of requests, and how much of what they say."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from sluicegate.config.fields import OnOff, Size, Whole, at_least
from sluicegate.config.section import Section
from sluicegate.core.redact import NAME, pattern_of


def _usable(written: str) -> str:
    pattern_of(written)
    return written


class Rotate(Section):
    """`log.requests.rotate:`"""

    size_bytes: Annotated[Size, at_least(65_536, "64KiB")] = Field(default=100_000_000, alias="size")
    keep: Whole = Field(default=10, ge=0, le=10_000)
    gzip: OnOff = True


class Requests(Section):
    """`log.requests:`"""

    to: str = Field(min_length=1)  # stdout, or a file
    rotate: Rotate = Rotate()


class Mask(Section):
    """One of `log.masks:`, beside those that are built in."""

    name: str = Field(pattern=f"^{NAME}$")
    pattern: Annotated[str, AfterValidator(_usable)]


class Log(Section):
    """`log:`"""

    access: Literal["text", "json", "off"] = "text"
    requests: Requests | None = None
    prompts: Literal["hash", "redacted", "full"] = "redacted"
    masks: list[Mask] = []

    @property
    def patterns(self) -> tuple[tuple[str, str], ...]:
        return tuple((mask.name, mask.pattern) for mask in self.masks)
