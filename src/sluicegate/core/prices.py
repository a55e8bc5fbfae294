"""Prices and cost, in integers.

A price is pico-USD per token (1 USD per 1M tokens = 1,000,000 pico-USD per token); a cost is nano-USD, rounded up once per call.

Invariant: what a claim holds is never below what the call can cost. `dearest_input` and `dearest_output` are the most that a token can cost, and for
every usage within the tokens that are held, `cost_nano_usd` <= `input_cost_nano_usd(input)` + output tokens * `dearest_output`, rounded up.
"""

from typing import TYPE_CHECKING

import msgspec

from sluicegate.core.limits import AMOUNT_MAX

if TYPE_CHECKING:  # usage.py settles at prices
    from sluicegate.core.usage import Usage


class Price(msgspec.Struct, frozen=True):
    """pico-USD per token; request_fee in nano-USD. None: the class costs what `input` or `output` costs, cache_write_1h what cache_write does."""

    input: int
    output: int
    cached_input: int | None = None
    cache_write: int | None = None
    reasoning: int | None = None
    request_fee: int = 0
    cache_write_1h: int | None = None
    dearest_input: int = 0  # of any class; worked out, not given
    dearest_output: int = 0

    def __post_init__(self) -> None:
        dearest_input = max(self.input, self.cached_input or 0, self.cache_write or 0, self.cache_write_1h or 0)
        msgspec.structs.force_setattr(self, "dearest_input", dearest_input)
        msgspec.structs.force_setattr(self, "dearest_output", max(self.output, self.reasoning or 0))


def input_cost_nano_usd(price: Price, input_tokens: int) -> int:
    """The most that this much input can cost, the fee included."""
    return -(-input_tokens * price.dearest_input // 1000) + price.request_fee


def cost_nano_usd(price: Price, usage: "Usage", unknown_input: int = 0, unknown_output: int = 0) -> int:
    """What a call of this usage costs, plus tokens of which only the number is known, at the dearest. Parts never exceed the whole: more from a cache
    than was read at all is none. Output of which nobody says how much was reasoning costs the dearer of the two prices.

    At most AMOUNT_MAX, which no limit is above: an absurd report must not overflow a counter.
    """
    read, written = usage.input_tokens or 0, usage.output_tokens or 0
    output = price.output if usage.no_reasoning or usage.reasoning_tokens else price.dearest_output
    if not (usage.cached_tokens or usage.cache_write_tokens or usage.reasoning_tokens or unknown_input or unknown_output):  # the usual case
        return min(-(-(read * price.input + written * output) // 1000) + price.request_fee, AMOUNT_MAX)
    cached = usage.cached_tokens if usage.cached_tokens <= read else 0
    stored = min(usage.cache_write_tokens, read - cached)
    for_an_hour = min(usage.cache_write_1h_tokens, stored)
    reasoned = min(usage.reasoning_tokens, written)
    write_rate = price.input if price.cache_write is None else price.cache_write
    pico = (
        (read - cached - stored) * price.input
        + cached * (price.input if price.cached_input is None else price.cached_input)
        + (stored - for_an_hour) * write_rate
        + for_an_hour * (write_rate if price.cache_write_1h is None else price.cache_write_1h)
        + (written - reasoned) * output
        + reasoned * (price.output if price.reasoning is None else price.reasoning)
        + unknown_input * price.dearest_input
        + unknown_output * price.dearest_output
    )
    return min(-(-pico // 1000) + price.request_fee, AMOUNT_MAX)
