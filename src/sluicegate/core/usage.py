"""Usage: what an upstream says that a call used, in one shape for all dialects, and what a call is charged whether it says that or not.

Invariant: an attempt that may have been billed is never charged less than what was read of it, nor less than it can have produced unseen,
unless the upstream itself has said how much it was (ledger.md 8, Settling).
"""

from typing import Literal

import msgspec

from sluicegate.core.hosted import fees_of
from sluicegate.core.limits import AMOUNT_MAX
from sluicegate.core.prices import Marks, Price, cost_nano_usd

# How the answer of an attempt ended. complete: the upstream said all of it (a whole body, `[DONE]`, or every finish and the usage). closed: the
# gateway closed the upstream before that (budget, client gone). broken: anything else, so that nobody knows what was produced.
Ended = Literal["complete", "closed", "broken"]
Unknown = Literal["charge", "input_only", "free"]
Source = Literal["reported", "counted", "partly", "held"]
# Whose figure of a cost is charged, where both are known (`prices.cost_source`).
CostSource = Literal["prefer_provider", "calculated_only", "provider_only"]


class Usage(msgspec.Struct, gc=False):
    """Token counts. input_tokens includes cached reads and cache writes; output_tokens includes reasoning. None: not reported.

    A later report of the same call replaces an earlier one field by field (cumulative, never summed).
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int = 0  # part of input_tokens, read from the provider's cache
    cache_write_tokens: int = 0  # part of input_tokens, written into it, for however long
    reasoning_tokens: int = 0  # part of output_tokens
    cost_nano_usd: int | None = None  # as reported by a provider that says so
    cache_write_1h_tokens: int = 0  # part of cache_write_tokens: to stay for an hour
    no_reasoning: bool = False  # it was said that none of the output is reasoning; else reasoning_tokens 0 says nothing
    audio_input_tokens: int = 0  # part of input_tokens
    audio_output_tokens: int = 0  # part of output_tokens
    audio_told: bool = False  # it was said how much is audio, be it none
    calls: dict[str, int] | None = None  # of tools that the provider ran, by their names; None: there were none
    calls_unread: bool = False  # it says something of them that cannot be read
    early: bool = False  # the input was told when the answer began: tools of the provider's may have had it read again since


class Charge(msgspec.Struct, frozen=True, gc=False):
    """What a call is settled at. source: reported (complete usage), counted (our meter or estimate), held (everything that was held), partly.

    cost_source: whose figure the cost is. none: nobody's, it has no price.
    """

    input_tokens: int
    output_tokens: int
    cost_nano_usd: int
    source: Source
    cost_source: Literal["calculated", "provider", "none"] = "calculated"


NOTHING = Charge(0, 0, 0, "counted")  # of an attempt that was not billed


def merge(earlier: Usage | None, later: Usage) -> Usage:
    """A later report of the same call over an earlier one, field by field: cumulative, never summed. A zero does not take back a count."""
    if earlier is None:
        return later
    return Usage(
        _latest(earlier.input_tokens, later.input_tokens),
        _latest(earlier.output_tokens, later.output_tokens),
        later.cached_tokens or earlier.cached_tokens,
        later.cache_write_tokens or earlier.cache_write_tokens,
        later.reasoning_tokens or earlier.reasoning_tokens,
        _latest(earlier.cost_nano_usd, later.cost_nano_usd),
        later.cache_write_1h_tokens or earlier.cache_write_1h_tokens,
        later.no_reasoning or (earlier.no_reasoning and later.output_tokens is None),
        later.audio_input_tokens or earlier.audio_input_tokens,
        later.audio_output_tokens or earlier.audio_output_tokens,
        later.audio_told or earlier.audio_told,
        later.calls or earlier.calls,
        later.calls_unread,
        later.early if later.input_tokens is not None else earlier.early,
    )


def _latest(earlier: int | None, later: int | None) -> int | None:
    return earlier if later is None or (not later and earlier is not None) else later


def is_whole(usage: Usage) -> bool:
    """Both counts are there and not zero, and no cost beside them: the usual report."""
    return bool(usage.input_tokens and usage.output_tokens and not usage.cost_nano_usd)


def reported(usage: Usage, price: Price | None) -> Charge:
    """The charge of a complete answer with a whole report."""
    if price is None:
        return Charge(usage.input_tokens or 0, usage.output_tokens or 0, 0, "reported", "none")
    return Charge(usage.input_tokens or 0, usage.output_tokens or 0, cost_nano_usd(price, usage), "reported")


def settle_figures(
    usage: Usage | None,
    *,
    ended: Ended,
    seen: int,
    least: int,
    margin: int,
    cap: int,
    input_bound: int,
    visible: bool,
    stops_on_close: bool,
    price: Price | None,
    unknown_outcome: Unknown = "charge",
    cost_source: CostSource = "prefer_provider",
    marks: Marks = "1h",
    fees_nano_usd: int = 0,
    grows: bool = False,
    outdated: bool = False,
) -> Charge:
    """What an attempt is charged that was, or may have been, billed.

    seen: the meter. least: what it was in any case (`Meter.certain`); more than the cap only where the upstream did not keep to it. margin: what may
    have been produced beyond it. cap: output tokens over all choices that the upstream was told it may produce.
    visible: every billed token is in the stream. stops_on_close: closing the connection ends the generation.
    marks: for the provider's cache. fees_nano_usd: for calls of the provider's tools at most; charged where nobody says how many there were.
    grows: such tools have the model read everything again while it answers. outdated: output came after the last report of usage.
    """
    whole = usage is not None and ended == "complete" and not outdated
    if usage is not None and whole and not grows and cost_source != "provider_only" and is_whole(usage):
        return reported(usage, price)
    usage = usage or Usage()
    final = whole and not usage.early  # nothing that tools of the provider's make grow is settled before
    known = visible and (ended == "complete" or stops_on_close)
    produced = max(least, min(seen, cap))
    unreported = max(least, min(cap, seen + margin) if known else cap) if ended != "broken" or unknown_outcome == "charge" else produced
    output, output_known = _output(usage, ended == "complete" and not outdated, produced, unreported)
    if not output and ended == "broken" and unknown_outcome == "free":
        return NOTHING
    input_tokens, input_known = _input(usage, input_bound, nothing=not output and ended == "complete", growing=grows and not final)
    source: Source = "held" if output > produced and not known else "counted"
    if input_known or output_known:
        source = "reported" if input_known and output_known else "partly"
    told = _told(usage, cost_source, ended, input_known and output_known)
    if told is not None or price is None:
        return Charge(input_tokens, output, told or 0, source, "none" if told is None else "provider")
    counts = Usage(input_tokens if input_known else 0, output if output_known else 0)
    counts.calls = usage.calls if whole and not grows else None
    unknown_input, unknown_output = input_tokens - (counts.input_tokens or 0), output - (counts.output_tokens or 0)
    cost = _cost(usage, price, counts, unknown_input, unknown_output, marks) + (_fees(usage, price, fees_nano_usd, final) if grows else 0)
    return Charge(input_tokens, output, min(cost, AMOUNT_MAX), source, "calculated")


def _input(usage: Usage, input_bound: int, *, nothing: bool, growing: bool) -> tuple[int, bool]:
    """Input tokens, and whether they are what the upstream reported. growing: there may be more by now, as much as is held. nothing: no output."""
    reported = usage.input_tokens
    if growing:
        return max(input_bound, reported or 0), False
    return (reported or 0, True) if reported or (reported == 0 and nothing) else (input_bound, False)


def _fees(usage: Usage, price: Price, held_nano_usd: int, final: bool) -> int:
    """Of calls of the provider's tools: of those that are told, and of all that were held where these need not be all, or cannot be read."""
    told_nano_usd = fees_of(price.tools, usage.calls or {})
    return told_nano_usd if final and not usage.calls_unread else max(told_nano_usd, held_nano_usd)


def _output(usage: Usage, final: bool, produced: int, unreported: int) -> tuple[int, bool]:
    """Output tokens, and whether they are what the upstream reported."""
    reported = usage.output_tokens
    if not final:
        return max(unreported, reported or 0), False  # a report of an answer that went on is only where it stood
    if reported is None:
        return unreported, False
    if reported == 0 and produced:
        return produced, False
    return reported, True


def _told(usage: Usage, cost_source: CostSource, ended: Ended, known: bool) -> int | None:
    """The provider's own figure of the cost, where that is what is charged. With `provider_only` a complete answer costs what it says, be it nothing;
    of any other it has not had its say. Otherwise a figure wins beside a whole report, unless it is nothing."""
    if cost_source == "provider_only":
        return usage.cost_nano_usd or 0 if ended == "complete" else None
    return usage.cost_nano_usd or None if known and cost_source == "prefer_provider" else None


def _cost(usage: Usage, price: Price, counts: Usage, unknown_input: int, unknown_output: int, marks: Marks) -> int:
    """At the classes that were reported, the dearest for what was not."""
    counts.cached_tokens, counts.cache_write_tokens = usage.cached_tokens, usage.cache_write_tokens
    counts.cache_write_1h_tokens, counts.reasoning_tokens = usage.cache_write_1h_tokens, usage.reasoning_tokens
    counts.no_reasoning, counts.audio_told = usage.no_reasoning, usage.audio_told
    counts.audio_input_tokens, counts.audio_output_tokens = usage.audio_input_tokens, usage.audio_output_tokens
    return cost_nano_usd(price, counts, unknown_input, unknown_output, marks)
