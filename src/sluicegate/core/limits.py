"""Limits: unit + amount + window + model filter. RPM, TPM, a day's tokens, a month's dollars, concurrency: all are limits.

Amounts are integers in the unit of the limit; dollars are nano-USD. Limits are below 2^52 so that Lua's doubles stay exact (ledger.md 2).
"""

from enum import StrEnum

import msgspec

from sluicegate.core.windows import Window

AMOUNT_MAX = 2**52 - 1


class Unit(StrEnum):
    """What a limit counts."""

    REQUESTS = "requests"
    INPUT_TOKENS = "input_tokens"
    OUTPUT_TOKENS = "output_tokens"
    TOKENS = "tokens"  # input and output
    USD = "usd"  # integer nano-USD
    CONCURRENT = "concurrent"


class Limit(msgspec.Struct, frozen=True):
    """One limit as written. `burst` 0: a bucket's capacity is its amount."""

    unit: Unit
    amount: int
    window: Window
    burst: int = 0
    models: frozenset[str] | None = None
    text: str = ""  # as the operator wrote it
