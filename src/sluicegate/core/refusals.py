"""Refusals: why a ledger said no, in the closed set of ledger.md 5, worked out from the states that it returned; and the headers on remaining room.

Pure, once for all backends. When several limits refuse, the first reason in the order of `REASONS` is told, and among equals the longest wait;
the output tokens said to be affordable are the minimum over all limits.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Literal, get_args

import msgspec

from sluicegate.core.book import amount
from sluicegate.core.claims import Ref, RefSet, Reply
from sluicegate.core.counters import name, scope_name
from sluicegate.core.limits import WHOLE, Unit, show_amount, show_share, show_window
from sluicegate.core.tenants import Counter
from sluicegate.core.windows import Calendar, Lifetime

Reason = Literal["too_large", "exhausted", "rate", "busy", "concurrency"]
REASONS: tuple[Reason, ...] = get_args(Reason)
FOR_EVER_MS = 2**62

ANSWERS = {  # reason -> status, error.code, error.type
    "too_large": (400, "request_too_large", "invalid_request_error"),
    "exhausted": (429, "budget_exceeded", "budget_error"),
    "rate": (429, "rate_limit_exceeded", "rate_limit_error"),
    "busy": (429, "budget_busy", "rate_limit_error"),
    "concurrency": (429, "concurrency_exceeded", "rate_limit_error"),
}


class Refusal(msgspec.Struct, frozen=True):
    """One refusal by a limit. Amounts are in the counter's unit (nano-USD for dollars); `used` of a bucket is its deficit, debt included."""

    reason: Reason
    counter: Counter
    status: int
    code: str
    type: str
    message: str
    retry_after_s: int | None  # None: trying again does not help
    resets_at_ms: int  # when there will be room, by a window's end or by refilling; 0: never, or not known
    used: int
    held: int
    requested: int
    limit: int
    reserved: int  # of the limit, kept from this claimant's priority
    affordable_output_tokens: int
    name: str  # for x-sluicegate-limited-by
    asked: bool = True  # how the counter stands; without that `used` and `held` are not known, and 0


class _Claim(msgspec.Struct, frozen=True):
    """What one counter was asked for, and how it stood. fixed and rate describe the answer's length on refilling limits too."""

    counter: Counter
    ref: Ref
    state: tuple[int, int]
    needed: int
    fixed: int
    rate: int

    @property
    def most(self) -> int:
        """What this claimant may use of the counter when nothing is used."""
        return self.ref.ceiling - self.ref.reserved

    @property
    def free(self) -> int:
        """Room on the counter; negative while an overrun is not repaid, or where only what is reserved is left."""
        return self.most - self.state[0] - (self.state[1] if self.ref.kind in ("w", "o") else 0)

    @property
    def used(self) -> int:
        return self.state[0]

    @property
    def held(self) -> int:
        return 0 if self.ref.kind == "s" else self.state[1]

    @property
    def reason(self) -> Reason:
        """Why this counter refuses, given that it does."""
        if self.needed > self.most:
            return "too_large"
        if self.ref.kind == "o":
            return "concurrency"
        if self.ref.kind in ("b", "s"):
            return "rate"
        return "exhausted" if self.needed > self.most - self.state[0] else "busy"

    def room_at_ms(self, now_ms: int) -> int:
        """When there is room, at the soonest; FOR_EVER_MS: never."""
        if self.ref.kind == "b":
            return now_ms + -(-(self.needed - self.free) * self.ref.per_ms // self.ref.gain)
        if self.ref.kind == "s":
            return now_ms + self.state[1]
        return now_ms if self.ref.kind == "o" else self.ref.end_ms or FOR_EVER_MS

    def fits(self, room: int) -> int | None:
        """The longest answer that `room` holds; None: any; -1: not even the input."""
        if not self.rate:
            return None if self.fixed <= max(room, 0) else -1
        return (room - self.fixed) * 1000 // self.rate if room >= self.fixed else -1


def explain(
    counters: Sequence[Counter],
    refs: RefSet,
    amounts: Sequence[int],
    need: int,
    want: int,
    reply: Reply,
    *,
    aim: int = 0,
    usd_rate: int = 0,
    show_figures: bool = True,
) -> Refusal:
    """Explains a refused reply to an admission. counters, refs and reply.states match by position, as do pairs of amounts.

    aim: the output that claims on refilling limits include; usd_rate: thousandths of a nano-USD per output token at the price of this attempt.
    Both only serve to tell what would be affordable there; left out, the answer is too low, never too high.
    """
    claims = _claims(counters, refs, amounts, reply.states, need=need, aim=aim, usd_rate=usd_rate)
    refusing = [claim for claim in claims if claim.needed > max(claim.free, 0)]
    if not refusing:
        raise ValueError(f"no limit refuses: {reply}")
    worst = min(refusing, key=lambda claim: (REASONS.index(claim.reason), -claim.room_at_ms(reply.now_ms)))
    if worst.reason == "too_large":
        fits = worst.fits(worst.most)
        refusal = too_large(worst.counter, worst.needed, -1 if fits is None else fits, worst.ref.reserved, show_figures)
        return msgspec.structs.replace(refusal, used=worst.used, held=worst.held, asked=True)
    return _refusal(worst, reply.now_ms, _affordable(claims, want), show_figures)


def affordable_output_tokens(
    counters: Sequence[Counter],
    refs: RefSet,
    amounts: Sequence[int],
    want: int,
    states: Sequence[tuple[int, int]],
    *,
    aim: int = 0,
    usd_rate: int = 0,
) -> int:
    """The longest answer that all limits have room for in these states; `want` where no limit depends on the answer's length. See explain."""
    return _affordable(_claims(counters, refs, amounts, states, need=0, aim=aim, usd_rate=usd_rate), want)


def still_waiting(
    i: int,
    counters: Sequence[Counter],
    refs: RefSet,
    amounts: Sequence[int],
    need: int,
    want: int,
    standing: tuple[tuple[int, int], int],
    *,
    aim: int = 0,
    usd_rate: int = 0,
    show_figures: bool = True,
) -> Refusal:
    """The refusal of a request that waits for the i-th counter behind others, so that the ledger cannot be asked for it. The rest as in `explain`.

    standing: the counter's state when it last refused somebody, and that time in ms.
    """
    state, now_ms = standing
    one = RefSet(refs.tree, refs.refs[i : i + 1])
    claims = _claims(counters[i : i + 1], one, amounts[2 * i : 2 * i + 2], (state,), need=need, aim=aim, usd_rate=usd_rate)
    return _refusal(claims[0], now_ms, _affordable(claims, want), show_figures)


def shadowed(shadows: Sequence[tuple[int, int]], refs: RefSet, amounts: Sequence[int], need: int, reply: Reply) -> list[int]:
    """Which counters would have refused a granted request, had their shadow limits been enforced: indices. shadows: (index, room) pairs."""
    found = []
    for i, room in shadows:
        fixed, rate = amounts[2 * i], amounts[2 * i + 1]
        state = reply.states[i]
        before = state[0] + (state[1] if refs.refs[i].kind in ("w", "o") else 0) - amount(fixed, rate, reply.g)
        if amount(fixed, rate, need) > max(room - before, 0):
            found.append(i)
    return found


def too_large(counter: Counter, requested: int, fits_output_tokens: int, reserved: int = 0, show_figures: bool = True) -> Refusal:
    """The refusal of a request that can never fit: a refilling limit's capacity, or an empty window, is below it.

    fits_output_tokens: the longest answer that would fit; negative if not even the input does. reserved: kept from this claimant. How the counter
    stands is not said: it need not be asked for that.
    """
    status, code, type_ = ANSWERS["too_large"]
    limit = counter.ceiling
    figures = f": {_limit(counter, limit, reserved)}, Requested {show_amount(counter.unit, requested)}" if show_figures else ""
    if limit == 0:
        hint = "This limit allows nothing."
    elif fits_output_tokens < 0:
        hint = "The input must be shorter."
    else:
        hint = f"At most {fits_output_tokens} output tokens would fit." if show_figures else "Ask for fewer output tokens."
    message = f"Request too large for {_subject(counter)}{figures}. {hint}"
    fits = max(fits_output_tokens, 0)
    return Refusal("too_large", counter, status, code, type_, message, None, 0, 0, 0, requested, limit, reserved, fits, name(counter), asked=False)


def _claims(
    counters: Sequence[Counter],
    refs: RefSet,
    amounts: Sequence[int],
    states: Sequence[tuple[int, int]],
    *,
    need: int,
    aim: int,
    usd_rate: int,
) -> list[_Claim]:
    """Of the counters that can refuse."""
    rates = {Unit.TOKENS: 1000, Unit.OUTPUT_TOKENS: 1000, Unit.USD: usd_rate} if aim else {}
    claims = []
    for i, (counter, ref, state) in enumerate(zip(counters, refs.refs, states, strict=True)):
        if not counter.enforced:
            continue
        fixed, rate = amounts[2 * i], amounts[2 * i + 1]
        needed = amount(fixed, rate, need)
        if ref.kind in ("b", "s"):
            rate = rates.get(counter.unit, 0)
            fixed -= -(-rate * aim // 1000)
        claims.append(_Claim(counter, ref, state, needed, fixed, rate))
    return claims


def _affordable(claims: Sequence[_Claim], want: int) -> int:
    fits = [claim.fits(claim.free) for claim in claims]
    return max(0, min((fit for fit in fits if fit is not None), default=want))


def _refusal(claim: _Claim, now_ms: int, affordable: int, show_figures: bool) -> Refusal:
    reason, counter, room_at_ms = claim.reason, claim.counter, claim.room_at_ms(now_ms)
    status, code, type_ = ANSWERS[reason]
    used, held = claim.used, claim.held
    if reason == "exhausted" and counter.unit is Unit.USD:
        status = 402
    retry_after_s = None if reason == "exhausted" else max(1, -(-(room_at_ms - now_ms) // 1000)) if reason == "rate" else 1
    resets_at_ms = 0 if reason == "concurrency" or room_at_ms == FOR_EVER_MS else room_at_ms
    figures = _figures(claim, used, held) if show_figures else ""
    message = f"{_LEADS[reason]} {_subject(counter)}{figures}. {_advice(retry_after_s, resets_at_ms)}"
    figured = (used, held, claim.needed, claim.ref.ceiling, claim.ref.reserved, affordable)
    return Refusal(reason, counter, status, code, type_, message, retry_after_s, resets_at_ms, *figured, name(counter))


# -- in words -----------------------------------------------------------------------------------------------------------------------------

_LEADS = {
    "rate": "Rate limit reached for",
    "exhausted": "Budget exceeded for",
    "busy": "Budget in use by other requests in flight for",
    "concurrency": "Too many requests in flight for",
}
_LETTERS = {"second": "S", "minute": "M", "hour": "H", "day": "D"}
_SHORT = {"second": "sec", "minute": "min"}


def _subject(counter: Counter) -> str:
    """`key tight on tokens per min (TPM)`, in OpenAI's words."""
    window = counter.window.every if isinstance(counter.window, Calendar) else show_window(counter.window)
    unit = "dollars" if counter.unit is Unit.USD else counter.unit.replace("_", " ")
    if counter.unit is Unit.CONCURRENT:
        what = "requests at a time"
    elif isinstance(counter.window, Lifetime):
        what = f"{unit} in its lifetime"
    else:
        what = f"{unit} per {_SHORT.get(window, window)}"
        if counter.unit in (Unit.REQUESTS, Unit.TOKENS) and window in _LETTERS:
            what += f" ({unit[0].upper()}P{_LETTERS[window]})"
    models = f" of {', '.join(sorted(counter.models))}" if counter.models else ""
    return f"{scope_name(counter.scope)} on {what}{models}"


def _figures(claim: _Claim, used: int, held: int) -> str:
    unit = claim.counter.unit
    limit, requested = _limit(claim.counter, claim.ref.ceiling, claim.ref.reserved), show_amount(unit, claim.needed)
    if claim.reason == "rate":
        return f": {limit}, Remaining {show_amount(unit, max(claim.free, 0))}, Requested {requested}"
    if claim.reason == "concurrency":
        return f": {limit}"
    holding = f", Held {show_amount(unit, held)}" if held else ""
    return f": {limit}, Used {show_amount(unit, used)}{holding}, Requested at least {requested}"


def _limit(counter: Counter, limit: int, reserved: int) -> str:
    text = f"Limit {show_amount(counter.unit, limit)}"
    return f"{text} ({show_share(round(1000 * reserved / limit) * (WHOLE // 1000))} reserved for higher priorities)" if reserved else text


def _advice(retry_after_s: int | None, resets_at_ms: int) -> str:
    if retry_after_s is not None:
        return f"Please try again in {duration(retry_after_s * 1000)}."
    if not resets_at_ms:
        return "It does not reset."
    return f"It resets at {iso(resets_at_ms)}."


def iso(time_ms: int) -> str:
    """A time as people are told it: RFC 3339 in UTC, whole seconds."""
    return f"{datetime.fromtimestamp(time_ms // 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"


def duration(length_ms: int) -> str:
    """A length in OpenAI's format: `20ms`, `1s`, `6m0s`, `26h3m0s`; seconds are rounded up."""
    if length_ms < 1000:
        return f"{length_ms}ms" if length_ms > 0 else "0s"
    return _whole_seconds(-(-length_ms // 1000))


@lru_cache(4096)
def _whole_seconds(length_s: int) -> str:
    minutes, seconds = divmod(length_s, 60)
    if not minutes:
        return f"{seconds}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{seconds}s" if hours else f"{minutes}m{seconds}s"


# -- headers ------------------------------------------------------------------------------------------------------------------------------


Shown = Sequence[tuple[int, Sequence[tuple[int, int, bool]]]]  # 0 requests, 1 tokens; then index, amount, whether holds count beside what is used

_UNITS = ("requests", "tokens")


Marked = Sequence[tuple[int, int, int]]  # index, the lowest amount that is warned about, the limit


def budget_warning(
    marked: Marked, heads: dict[int, bytes], counters: Sequence[Counter], refs: RefSet, reply: Reply, show_figures: bool = True
) -> bytes:
    """`x-sluicegate-budget-warning` for the limit of which the largest part is used, where that has reached a mark; begun by CR LF.

    marked: the limits that have marks (`Template.marked`). heads: kept with them, what is always the same. Empty if none is reached, or the reply has
    no states.
    """
    states, tightest, share = reply.states, -1, -1
    if not states:
        return b""
    for i, least, limit in marked:
        if states[i][0] >= least and states[i][0] * 100 // limit > share:
            tightest, share = i, states[i][0] * 100 // limit
    if tightest < 0:
        return b""
    counter, (used, held) = counters[tightest], states[tightest]
    head = heads.get(tightest)
    if head is None:
        head = heads[tightest] = f"\r\nx-sluicegate-budget-warning: limit={name(counter)}; used=".encode()
    reset = _reset(refs.refs[tightest].end_ms)
    if not show_figures:
        return b"%b%d%%; reset=%b" % (head, share, reset)
    left = show_amount(counter.unit, max(0, counter.amount - used - held)).encode()
    return b"%b%d%%; remaining=%b; reset=%b" % (head, share, left, reset)


@lru_cache(4096)
def _reset(end_ms: int) -> bytes:
    return iso(end_ms).encode() if end_ms else b"never"


def ratelimit_lines(shown: Shown, refs: RefSet, reply: Reply) -> bytes:
    """`x-ratelimit-{limit,remaining,reset}-{requests,tokens}` for the limit of each unit that has least room left, each line begun by CR LF.

    shown: the limits of each unit (`Template.shown`), without what is reserved for others. On every answer, so written for speed. A limit that never
    resets has no reset header. Empty if the reply has no states.
    """
    lines, states = "", reply.states
    if not states:
        return b""
    for unit, limits in shown:
        least, tightest, most = FOR_EVER_MS, 0, 0
        for i, limit, holds in limits:
            used, held = states[i]
            remaining = limit - used - held if holds else limit - used
            if remaining < least:
                least, tightest, most = remaining, i, limit
        name, ref = _UNITS[unit], refs.refs[tightest]
        lines += f"\r\nx-ratelimit-limit-{name}: {most}\r\nx-ratelimit-remaining-{name}: {least if least > 0 else 0}"
        kind = ref.kind
        if kind == "b":
            reset_ms = -(-states[tightest][0] * ref.per_ms // ref.gain)
        elif kind == "s":
            reset_ms = states[tightest][1]
        elif ref.end_ms:
            reset_ms = ref.end_ms - reply.now_ms
        else:
            continue
        lines += f"\r\nx-ratelimit-reset-{name}: {duration(reset_ms)}"
    return lines.encode()
