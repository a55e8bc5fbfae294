"""Usage: what an upstream says that a call used, in one shape for all dialects."""

from typing import Literal

import msgspec


class Usage(msgspec.Struct):
    """Token counts. input_tokens includes cached reads and cache writes; output_tokens includes reasoning. None: not reported.

    A later report of the same call replaces an earlier one field by field (cumulative, never summed).
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int = 0  # part of input_tokens, read from the provider's cache
    cache_write_tokens: int = 0  # part of input_tokens
    reasoning_tokens: int = 0  # part of output_tokens
    cost_nano_usd: int | None = None  # as reported by a provider that says so


class Charge(msgspec.Struct, frozen=True):
    """What a call is settled at. source: reported (complete usage), counted (our meter or estimate), held (everything that was held), partly."""

    input_tokens: int
    output_tokens: int
    cost_nano_usd: int
    source: Literal["reported", "counted", "partly", "held"]
