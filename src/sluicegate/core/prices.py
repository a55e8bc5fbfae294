"""Prices and cost, in integers.

A price is pico-USD per token (1 USD per 1M tokens = 1,000,000 pico-USD per token); a cost is nano-USD, rounded up once per call.
"""

import msgspec


class Price(msgspec.Struct, frozen=True):
    """pico-USD per token; request_fee in nano-USD. None: the class costs what `input` or `output` costs."""

    input: int
    output: int
    cached_input: int | None = None
    cache_write: int | None = None
    reasoning: int | None = None
    request_fee: int = 0
