"""Prices and cost, in integers.

A price is pico-USD per token (1 USD per 1M tokens = 1,000,000 pico-USD per token); a cost is nano-USD, rounded up once per call.

Invariant: what a claim holds is never below what the call can cost. `dearest_input` and `dearest_output` are the most that a token can cost at the
price of one tier. At the price of its request (`for_request`), a usage within the tokens that are held costs at most `input_cost_nano_usd` of the
input at `within(input)`, and the output at the `dearest_output` there, rounded up.

Most prices are two rates. Whatever more a price may have makes it not `plain`, and only such a price is looked at again per request: its tiers by the
size of the input (from there on all tokens of the call cost more), its variants (a dearer service tier that a client asks for), and audio. Two things
matter only to requests that have them: tools that the provider runs; and what they mark for its cache, where nothing else is written into that.
"""

from typing import TYPE_CHECKING, Literal

import msgspec

from sluicegate.core.limits import AMOUNT_MAX

if TYPE_CHECKING:  # usage.py settles at prices
    from sluicegate.core.usage import Usage


# How long what a request marks stays in the provider's cache: "" where it marks nothing. "1h" also where that is not known.
Marks = Literal["", "5m", "1h"]


class Price(msgspec.Struct, frozen=True):
    """pico-USD per token; fees in nano-USD. None: the class costs what `input` or `output` costs, cache_write_1h what cache_write does."""

    input: int
    output: int
    cached_input: int | None = None
    cache_write: int | None = None
    reasoning: int | None = None
    request_fee: int = 0
    cache_write_1h: int | None = None
    dearest_input: int = 0  # of any class, tiers and variants left aside; worked out, not given
    dearest_output: int = 0
    audio_input: int | None = None
    audio_output: int | None = None
    tiers: "tuple[Tier, ...]" = ()  # ascending; their prices have neither tiers nor variants
    variants: "tuple[tuple[str, Price], ...]" = ()  # by what a request asks for (dialects/tariffs.py): `service_tier=priority`
    plain: bool = False  # worked out: the same for every request
    utmost_output: int = 0  # worked out: the most that an output token costs in any tier or variant
    reaches: "tuple[tuple[int, Price], ...]" = ()  # worked out, from the largest: above so many tokens of input, what may be reached so far
    usual: "Price | None" = None  # worked out: the price of requests that ask for nothing and have no audio, where that is another
    tools: tuple[tuple[str, int], ...] = ()  # what one call costs of a tool that the provider runs, by the tool's name; of the whole price alone
    unmarked: "Price | None" = None  # worked out: of requests that mark nothing for the cache, where that is another; likewise
    briefly: "Price | None" = None  # of those that mark for some minutes at most

    def __post_init__(self) -> None:
        dearest_input = max(self.input, self.cached_input or 0, self.cache_write or 0, self.cache_write_1h or 0, self.audio_input or 0)
        dearest_output = max(self.output, self.reasoning or 0, self.audio_output or 0)
        others = [tier.price for tier in self.tiers] + [price for _, price in self.variants]
        worked_out = {
            "dearest_input": dearest_input,
            "dearest_output": dearest_output,
            "plain": not (others or self.audio_input is not None or self.audio_output is not None),
            "utmost_output": max([dearest_output, *(price.utmost_output for price in others)]),
            "reaches": _reaches(dearest_input, dearest_output, self),
            "usual": _usual(self) if self.variants or self.audio_input is not None or self.audio_output is not None else None,
            "unmarked": _without(self, "cache_write", "cache_write_1h"),
            "briefly": _without(self, "cache_write_1h"),
        }
        for name, value in worked_out.items():
            msgspec.structs.force_setattr(self, name, value)

    def for_request(self, tariff: str, audio: bool) -> "Price | None":
        """What a request costs that asks for a tariff ("": none); None if that has no price. audio: it may have audio in it, or ask for some."""
        price: Price | None = dict(self.variants).get(tariff) if tariff else self
        if price is not None and price.tools != self.tools:
            price = msgspec.structs.replace(price, tools=self.tools)
        return price if price is None or audio else price.usual or price

    def marked(self, marks: Marks) -> "Price":
        """The price of requests that mark so much, where nothing else is written into the provider's cache."""
        other = None if marks == "1h" else self.briefly if marks else self.unmarked
        return other or self

    def within(self, input_tokens: int) -> "Price":
        """The price whose dearest rates hold whatever a call costs that has at most so much input: those of all tiers that it can reach."""
        for above, price in self.reaches:
            if input_tokens > above:
                return price
        return self

    def at(self, input_tokens: int) -> "Price":
        """The price of the tier that so much input is in."""
        for tier in reversed(self.tiers):
            if input_tokens > tier.above:
                return tier.price
        return self


class Tier(msgspec.Struct, frozen=True):
    """What all tokens of a call cost whose input, from a cache or not, is above a number of tokens."""

    above: int
    price: Price


class Origin(msgspec.Struct, frozen=True):
    """Where a deployment's price is from."""

    rule: Literal["deployment", "override", "catalogue", "unpriced", "api"]
    date: str = ""  # on which it was looked up, as far as that is known
    source: str = ""
    entry: str = ""  # of the catalogue: its provider and model
    note: str = ""


def _reaches(dearest_input: int, dearest_output: int, price: Price) -> tuple[tuple[int, Price], ...]:
    found, fee = [], price.request_fee
    for tier in price.tiers:
        dearest_input, dearest_output = max(dearest_input, tier.price.dearest_input), max(dearest_output, tier.price.dearest_output)
        fee = max(fee, tier.price.request_fee)
        found.append((tier.above, Price(dearest_input, dearest_output, request_fee=fee)))
    return tuple(reversed(found))


def _usual(price: Price) -> Price:
    tiers = tuple(Tier(tier.above, tier.price.usual or tier.price) for tier in price.tiers)
    return msgspec.structs.replace(price, audio_input=None, audio_output=None, tiers=tiers, variants=())


def _without(price: Price, *classes: str) -> Price | None:
    """The same where tokens of these classes do not occur; None where there is no price of them."""

    def has(one: Price) -> bool:
        return any(getattr(one, name) is not None for name in classes)

    if not (has(price) or any(has(tier.price) for tier in price.tiers)):
        return None
    none = dict.fromkeys(classes)
    tiers = tuple(Tier(tier.above, msgspec.structs.replace(tier.price, **none)) for tier in price.tiers)
    return msgspec.structs.replace(price, **none, tiers=tiers)


def input_cost_nano_usd(price: Price, input_tokens: int) -> int:
    """The most that this much input can cost, the fee included. price: one that is `within` the input."""
    return -(-input_tokens * price.dearest_input // 1000) + price.request_fee


def cost_nano_usd(price: Price, usage: "Usage", unknown_input: int = 0, unknown_output: int = 0, marks: Marks = "1h") -> int:
    """What a call of this usage costs, plus tokens of which only the number is known, at the dearest. Parts never exceed the whole: more from a cache
    than was read at all is none. Output of which nobody says how much was reasoning costs the dearer of the two prices. marks: for what is not known.

    At most AMOUNT_MAX, which no limit is above: an absurd report must not overflow a counter.
    """
    read, written = usage.input_tokens or 0, usage.output_tokens or 0
    dearest = tier = price
    if not price.plain:
        dearest, tier = price.marked(marks).within(read + unknown_input), price.at(read + unknown_input)
    elif not (
        usage.cached_tokens or usage.cache_write_tokens or usage.reasoning_tokens or unknown_input or unknown_output or usage.calls
    ):  # the usual case
        output = price.output if usage.no_reasoning else price.dearest_output
        cost = price.request_fee - (-(read * price.input + written * output) // 1000)
        return cost if cost < AMOUNT_MAX else AMOUNT_MAX  # a call of min would be a third of this function
    else:
        dearest = price.marked(marks)
    pico = _pico(tier, usage, read, written) + unknown_input * dearest.dearest_input + unknown_output * dearest.dearest_output
    fees = sum([fee * usage.calls.get(name, 0) for name, fee in price.tools]) if usage.calls else 0
    return min(-(-pico // 1000) + tier.request_fee + fees, AMOUNT_MAX)


def _pico(price: Price, usage: "Usage", read: int, written: int) -> int:
    """What the tokens of a usage cost, by their classes. Each is in one: audio before what is from a cache, and before reasoning. Where audio has a
    price and nobody says how much of a side was audio, what may have been costs the dearer price."""
    heard = min(usage.audio_input_tokens, read) if price.audio_input is not None else 0
    spoken = min(usage.audio_output_tokens, written) if price.audio_output is not None else 0
    read, written = read - heard, written - spoken
    cached = usage.cached_tokens if usage.cached_tokens <= read + heard else 0
    cached = min(cached, read)
    stored = min(usage.cache_write_tokens, read - cached)
    for_an_hour = min(usage.cache_write_1h_tokens, stored)
    reasoned = min(usage.reasoning_tokens, written)
    fresh, output = price.input, price.output
    if price.audio_input is not None and not (heard or usage.audio_told):
        fresh = max(fresh, price.audio_input)
    if not (usage.no_reasoning or usage.reasoning_tokens):
        output = max(output, price.reasoning or 0)
    if price.audio_output is not None and not (spoken or usage.audio_told):
        output = max(output, price.audio_output)
    write_rate = price.input if price.cache_write is None else price.cache_write
    return (
        (read - cached - stored) * fresh
        + cached * (price.input if price.cached_input is None else price.cached_input)
        + (stored - for_an_hour) * write_rate
        + for_an_hour * (write_rate if price.cache_write_1h is None else price.cache_write_1h)
        + (written - reasoned) * output
        + reasoned * (price.output if price.reasoning is None else price.reasoning)
        + heard * (price.audio_input or 0)
        + spoken * (price.audio_output or 0)
    )
