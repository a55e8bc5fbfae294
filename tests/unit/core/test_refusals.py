"""Refusals: the reason out of the closed set, the limit, the wait, the figures and the words; and the headers on remaining room."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.core import rules
from sluicegate.core.claims import Admission, RefSet, Reply
from sluicegate.core.counters import group, refs
from sluicegate.core.limits import Limit, Priority, parse
from sluicegate.core.plan import Template
from sluicegate.core.refusals import (
    REASONS,
    Refusal,
    affordable_output_tokens,
    budget_warning,
    duration,
    explain,
    iso,
    ratelimit_lines,
    shadowed,
    still_waiting,
    too_large,
)
from sluicegate.core.tenants import Counter, Scope
from sluicegate.ledger.memory_book import MemoryBook

NOW_MS = round(datetime(2026, 11, 30, 14, 59, 50, tzinfo=UTC).timestamp() * 1000)
KEY, ORGANIZATION = Scope("acme/@tight", "key", "tight"), Scope("acme", "organization", "acme")


class Case:
    """Limits of a key and of its organization in given states, and what a request asks of each."""

    def __init__(
        self, *limits: tuple[str | dict[str, Any], tuple[int, int], tuple[int, int]], scope: Scope = KEY, priority: Priority | None = None
    ) -> None:
        self.counters: tuple[Counter, ...] = tuple(group("acme", scope, [parse(one)])[0] for one, _, _ in limits)
        self.refs: RefSet = refs("acme", self.counters, NOW_MS, priority)
        self.template = Template("acme", self.counters, None, priority)
        self.states = tuple(state for _, state, _ in limits)
        self.amounts = tuple(figure for _, _, pair in limits for figure in pair)

    def refused(self, need: int = 16, want: int = 16, **more: Any) -> Refusal:
        return explain(self.counters, self.refs, self.amounts, need, want, Reply("refused", NOW_MS, states=self.states), **more)


# -- the closed set -----------------------------------------------------------------------------------------------------------------------


def test_rate_in_its_literal_form() -> None:
    """The message of ledger.md 5, with the wait that the shortfall takes to refill, rounded up."""
    refusal = Case(("300 tokens/minute", (234, 0), (148, 0))).refused(aim=16)
    assert refusal.message == (
        "Rate limit reached for key tight on tokens per min (TPM): Limit 300, Remaining 66, Requested 148. Please try again in 17s."
    )
    assert (refusal.reason, refusal.status, refusal.code, refusal.type) == ("rate", 429, "rate_limit_exceeded", "rate_limit_error")
    assert (refusal.retry_after_s, refusal.resets_at_ms) == (17, NOW_MS + 16_400)
    assert (refusal.limit, refusal.used, refusal.held, refusal.requested) == (300, 234, 0, 148)
    assert refusal.name == "key tight tokens/minute"


@pytest.mark.parametrize(
    ("limit", "state", "claim", "status", "message"),
    [
        (
            "$5/day",
            (4_990_000_000, 0),
            (8_000_000, 500_000_000),
            402,
            "Budget exceeded for key tight on dollars per day: Limit $5, Used $4.99, Requested at least $0.016. It resets at 2026-12-01T00:00:00Z.",
        ),
        (
            "100k tokens/month",
            (99_990, 5),
            (4, 1000),
            429,
            "Budget exceeded for key tight on tokens per month: Limit 100000, Used 99990, Held 5, Requested at least 20. "
            "It resets at 2026-12-01T00:00:00Z.",
        ),
        (
            "100k tokens lifetime",
            (99_990, 0),
            (4, 1000),
            429,
            "Budget exceeded for key tight on tokens in its lifetime: Limit 100000, Used 99990, Requested at least 20. It does not reset.",
        ),
    ],
)
def test_exhausted(limit: str, state: tuple[int, int], claim: tuple[int, int], status: int, message: str) -> None:
    """What is used alone leaves no room until the window ends: 402 for money, else 429, and no time to try again."""
    refusal = Case((limit, state, claim)).refused()
    assert (refusal.reason, refusal.status, refusal.code, refusal.type) == ("exhausted", status, "budget_exceeded", "budget_error")
    assert refusal.retry_after_s is None
    assert refusal.message == message


def test_busy() -> None:
    """It would fit if what is in flight were settled."""
    refusal = Case(("100k tokens/day", (50_000, 49_990), (4, 1000))).refused()
    assert (refusal.reason, refusal.status, refusal.code, refusal.type) == ("busy", 429, "budget_busy", "rate_limit_error")
    assert (refusal.retry_after_s, refusal.held) == (1, 49_990)
    assert refusal.message == (
        "Budget in use by other requests in flight for key tight on tokens per day (TPD): Limit 100000, Used 50000, Held 49990, "
        "Requested at least 20. Please try again in 1s."
    )


def test_concurrency() -> None:
    """Too many in flight."""
    refusal = Case(("8 concurrent", (0, 8), (1, 0))).refused()
    assert (refusal.reason, refusal.status, refusal.code, refusal.type) == ("concurrency", 429, "concurrency_exceeded", "rate_limit_error")
    assert (refusal.retry_after_s, refusal.resets_at_ms) == (1, 0)
    assert refusal.message == "Too many requests in flight for key tight on requests at a time: Limit 8. Please try again in 1s."


@pytest.mark.parametrize(
    ("limit", "claim"),
    [
        ("300 tokens/minute", (301, 0)),
        ("300 tokens/day", (285, 1000)),
        ("300 input tokens/day", (301, 0)),
        ("0 requests/day", (1, 0)),
        ("0 concurrent", (1, 0)),
    ],
)
def test_too_large_whatever_is_used(limit: str, claim: tuple[int, int]) -> None:
    """What no window holds even when empty is a 400 that is not worth trying again."""
    refusal = Case((limit, (10, 10), claim)).refused()
    assert (refusal.used, refusal.asked) == (10, True)
    assert (refusal.reason, refusal.status, refusal.code, refusal.type) == ("too_large", 400, "request_too_large", "invalid_request_error")
    assert refusal.retry_after_s is None


def test_too_large_says_what_would_fit() -> None:
    """The message names the limit and the longest answer that would fit."""
    (counter,) = group("acme", KEY, [parse("300 tokens/minute")])
    assert too_large(counter, 532, 168).message == (
        "Request too large for key tight on tokens per min (TPM): Limit 300, Requested 532. At most 168 output tokens would fit."
    )
    assert too_large(counter, 532, 168).affordable_output_tokens == 168
    assert not too_large(counter, 532, 168).asked
    assert too_large(counter, 532, -1).message.endswith("The input must be shorter.")
    assert Case(("300 tokens/minute", (0, 0), (532, 0))).refused(aim=400).affordable_output_tokens == 168
    (nothing,) = group("acme", KEY, [parse("0 tokens/day")])
    assert too_large(nothing, 20, -1).message.endswith("This limit allows nothing.")


# -- several refuse -----------------------------------------------------------------------------------------------------------------------

TOO_LARGE = ("10 tokens/hour", (0, 0), (4, 1000))
EXHAUSTED = ("100 tokens/day", (90, 0), (4, 1000))
RATE = ("100 tokens/minute", (90, 0), (20, 0))
BUSY = ("100 tokens/month", (0, 90), (4, 1000))
CONCURRENCY = ("1 concurrent", (0, 1), (1, 0))
FREE = ("100 requests/day", (0, 0), (1, 0))
BY_REASON = {"too_large": TOO_LARGE, "exhausted": EXHAUSTED, "rate": RATE, "busy": BUSY, "concurrency": CONCURRENCY}


@given(st.sets(st.sampled_from(REASONS), min_size=1).flatmap(lambda reasons: st.permutations(sorted(reasons))))
def test_the_first_reason_in_order_is_told(reasons: list[Any]) -> None:
    """Case 129: of several limits that refuse, the order of reasons decides, not the order of limits."""
    refusal = Case(FREE, *(BY_REASON[reason] for reason in reasons), FREE).refused()
    assert refusal.reason == min(reasons, key=REASONS.index)


def test_among_equals_the_longest_wait_is_told() -> None:
    """Waiting for the sooner one would be in vain."""
    slow, fast = ("100 requests/minute", (100, 0), (1, 0)), ("100 requests/second", (100, 0), (1, 0))
    assert Case(fast, slow, fast).refused().name == "key tight requests/minute"
    day, month, ever = (("100 tokens/" + per, (100, 0), (4, 1000)) for per in ("day", "month", "lifetime"))
    assert Case(month, day).refused().resets_at_ms == NOW_MS // 86_400_000 * 86_400_000 + 86_400_000
    assert Case(day, ever, month).refused().resets_at_ms == 0


def test_affordable_is_the_minimum_over_all_limits() -> None:
    """Also over those that do not refuse, tokens and dollars together."""
    case = Case(("8 concurrent", (0, 7), (1, 0)), ("1000 tokens/day", (400, 100), (100, 1000)), ("$1/day", (999_000_000, 0), (0, 10_000_000)))
    assert affordable_output_tokens(case.counters, case.refs, case.amounts, 50, case.states) == 100
    full = Case(("8 concurrent", (0, 8), (1, 0)), ("1000 tokens/day", (400, 100), (100, 1000)))
    assert full.refused().affordable_output_tokens == 0


def test_affordable_on_limits_that_refill() -> None:
    """There the claim is a constant that includes the output aimed at; how much of it is output is told by `aim` and the price."""
    tokens = Case(("300 tokens/minute", (150, 0), (132 + 400, 0)))
    assert affordable_output_tokens(tokens.counters, tokens.refs, tokens.amounts, 400, tokens.states, aim=400) == 18
    usd = Case(("$1/minute", (400_000_000, 0), (100_000_000 + 400 * 2_000_000, 0)))
    assert affordable_output_tokens(usd.counters, usd.refs, usd.amounts, 400, usd.states, aim=400, usd_rate=2_000_000_000) == 250


def test_affordable_without_a_limit_on_output() -> None:
    """Where no limit depends on the answer's length, all that is wanted is affordable."""
    case = Case(("100 requests/day", (0, 0), (1, 0)))
    assert affordable_output_tokens(case.counters, case.refs, case.amounts, 50, case.states) == 50


def test_debt_counts_into_the_wait() -> None:
    """A bucket below zero refills to zero first."""
    refusal = Case(("60 tokens/minute", (90, 0), (10, 0))).refused()
    assert (refusal.retry_after_s, refusal.used) == (40, 90)
    assert "Remaining 0," in refusal.message


def test_a_sliding_window_waits_until_something_leaves() -> None:
    """Its state says when that is."""
    refusal = Case(({"amount": 5, "unit": "requests", "per": "minute", "window": "sliding"}, (5, 2_500), (1, 0))).refused()
    assert (refusal.reason, refusal.retry_after_s, refusal.held) == ("rate", 3, 0)


def test_figures_can_be_hidden() -> None:
    """Without figures no message has one, and all still say what to do."""
    for case in (EXHAUSTED, RATE, BUSY, CONCURRENCY):
        refusal = Case(case).refused(show_figures=False)
        assert ": Limit" not in refusal.message
        assert refusal.message.endswith(_advice_of(refusal))
    assert Case(RATE).refused(show_figures=False).message == "Rate limit reached for key tight on tokens per min (TPM). Please try again in 6s."
    assert Case(TOO_LARGE).refused(show_figures=False).message == (
        "Request too large for key tight on tokens per hour (TPH). Ask for fewer output tokens."
    )


def _advice_of(refusal: Refusal) -> str:
    return "It resets at 2026-12-01T00:00:00Z." if refusal.retry_after_s is None else f"Please try again in {refusal.retry_after_s}s."


def test_models_are_named() -> None:
    """A limit on some models says so."""
    refusal = Case(({"amount": 5, "unit": "requests", "per": "minute", "models": ["chat"]}, (5, 0), (1, 0)), scope=ORGANIZATION).refused()
    assert refusal.message.startswith("Rate limit reached for organization acme on requests per min (RPM) of chat: ")
    assert refusal.name == "organization acme requests/minute [chat]"


def test_a_reply_that_nothing_explains_is_a_fault() -> None:
    """States in which every limit has room were not refused."""
    with pytest.raises(ValueError, match="no limit refuses"):
        Case(FREE).refused()


# -- against the rules --------------------------------------------------------------------------------------------------------------------

WRITTEN = [
    "50 tokens/minute",
    "80 requests/minute",
    "50 output tokens/day",
    "60 tokens/day",
    "$0.00005/month",
    "70 input tokens/hour",
    "3 concurrent",
]
CLAIMS = {
    "bucket-1m:tokens": lambda x: (x + 20, 0),
    "requests": lambda x: (1, 0),
    "output_tokens": lambda x: (0, 1000),
    "tokens": lambda x: (x, 1000),
    "usd": lambda x: (x * 500, 1_000_000),
    "input_tokens": lambda x: (x, 0),
    "concurrent": lambda x: (1, 0),
}


def claim(limit: Limit, counter: Counter, input_tokens: int) -> tuple[int, int]:
    """What a request of so many input tokens that aims at 20 output tokens claims."""
    refilling = "bucket" in counter.key_prefix and limit.unit == "tokens"
    return CLAIMS["bucket-1m:tokens" if refilling else str(limit.unit)](input_tokens)


@given(
    st.lists(st.sampled_from(WRITTEN), min_size=1, max_size=4, unique=True),
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 30), st.integers(0, 40), st.booleans()), min_size=1, max_size=8),
)
def test_every_refusal_of_the_rules_is_explained(written: list[str], calls: list[tuple[int, int, int, bool]]) -> None:
    """Whatever the rules refuse has a reason; what is said to be affordable is granted by the rules, and one token more is not."""
    counters = group("acme", KEY, [parse(one) for one in written])
    book, refset = MemoryBook("expired_held"), refs("acme", counters, NOW_MS)
    book.now_ms = NOW_MS
    for number, (input_tokens, need, used, settles) in enumerate(calls):
        amounts = tuple(figure for counter in counters for figure in claim(counter.limits[0], counter, input_tokens))
        admission = Admission(f"hold-{number}", refset, amounts, need, 40, 40, 30_000, "")
        reply = rules.admit(book, admission)
        if reply.status == "granted":
            if settles:
                actual = tuple(used * (1000 if counter.unit == "usd" else 1) for counter in counters)
                rules.settle(book, rules.Settlement(admission.hold_id, refset, actual))
            continue
        refusal = explain(counters, refset, amounts, need, 40, reply)
        assert refusal.requested > refusal.limit - refusal.used - refusal.held
        if refusal.reason != "too_large" and not any("minute" in one for one in written):
            check_affordable(book, admission, refusal.affordable_output_tokens)


def check_affordable(book: MemoryBook, admission: Admission, affordable: int) -> None:
    more = rules.admit(book, msgspec.structs.replace(admission, need=affordable + 1, aim=affordable + 1, want=affordable + 1))
    assert more.status == "refused"
    if affordable:
        assert rules.admit(book, msgspec.structs.replace(admission, need=affordable, aim=affordable, want=affordable)).status == "granted"


def test_a_refused_big_request_takes_nothing() -> None:
    """Case 29: after a request for more than a bucket holds, a small one is served."""
    counters = group("acme", KEY, [parse("100 tokens/minute")])
    book, refset = MemoryBook("expired_held"), refs("acme", counters, NOW_MS)
    book.now_ms = NOW_MS
    assert rules.admit(book, Admission("big", refset, (1000, 0), 1, 1, 1, 30_000, "")).status == "refused"
    assert rules.admit(book, Admission("small", refset, (10, 0), 1, 1, 1, 30_000, "")).status == "granted"


def test_a_limit_of_nothing_lets_what_costs_nothing_pass() -> None:
    """Cases 8 and 9: 0 allows nothing, yet a call that costs nothing passes an exhausted money limit and counts on the token limit."""
    counters = group("acme", KEY, [parse("$0/month"), parse("$0/minute"), parse("100 tokens/day")])
    book, refset = MemoryBook("expired_held"), refs("acme", counters, NOW_MS)
    book.now_ms = NOW_MS
    priced = Admission("priced", refset, (5, 10, 5, 0, 5, 1000), 1, 1, 1, 30_000, "")
    free = Admission("free", refset, (0, 0, 0, 0, 5, 1000), 1, 1, 1, 30_000, "")
    assert rules.admit(book, priced).status == "refused"
    assert rules.admit(book, free).states == ((0, 0), (0, 0), (0, 6))


# -- reserve and shadow -------------------------------------------------------------------------------------------------------------------

RESERVE = {"reserve": {"normal": "10%", "low": "30%"}}


@pytest.mark.parametrize(
    ("limit", "state", "claim", "message"),
    [
        (
            {"amount": 300, "unit": "tokens", "per": "minute"},
            (144, 0),
            (148, 0),
            "Rate limit reached for key tight on tokens per min (TPM): Limit 300 (30% reserved for higher priorities), Remaining 66, "
            "Requested 148. Please try again in 17s.",
        ),
        (
            {"amount": 1000, "unit": "tokens", "per": "day"},
            (500, 190),
            (10, 1000),
            "Budget in use by other requests in flight for key tight on tokens per day (TPD): Limit 1000 (30% reserved for higher priorities), "
            "Used 500, Held 190, Requested at least 26. Please try again in 1s.",
        ),
        (
            {"amount": 1000, "unit": "tokens", "per": "day"},
            (690, 0),
            (10, 1000),
            "Budget exceeded for key tight on tokens per day (TPD): Limit 1000 (30% reserved for higher priorities), Used 690, "
            "Requested at least 26. It resets at 2026-12-01T00:00:00Z.",
        ),
        (
            {"amount": 8, "unit": "concurrent"},
            (0, 6),
            (1, 0),
            "Too many requests in flight for key tight on requests at a time: Limit 8 (25% reserved for higher priorities). Please try again in 1s.",
        ),
    ],
)
def test_a_refusal_names_what_is_reserved(limit: dict[str, Any], state: tuple[int, int], claim: tuple[int, int], message: str) -> None:
    """The limit, and the share of it that is kept from the claimant's priority; who is above it is granted."""
    refusal = Case((limit | RESERVE, state, claim), priority="low").refused()
    assert refusal.message == message
    assert refusal.reserved > 0
    with pytest.raises(ValueError, match="no limit refuses"):
        Case((limit | RESERVE, state, claim), priority="high").refused()


def test_what_is_reserved_is_too_large_for_ever() -> None:
    """A claim that only the reserve could hold will never fit, and the answer says what would."""
    limit = {"amount": 300, "unit": "tokens", "per": "minute"} | RESERVE
    refusal = Case((limit, (0, 0), (227, 0)), priority="low").refused(aim=16)
    assert (refusal.reason, refusal.limit, refusal.reserved) == ("too_large", 300, 90)
    assert refusal.message == (
        "Request too large for key tight on tokens per min (TPM): Limit 300 (30% reserved for higher priorities), Requested 227. "
        "The input must be shorter."
    )
    assert "reserved" not in Case((limit, (0, 0), (526, 0))).refused(aim=16).message


def test_headers_tell_what_the_claimant_may_use() -> None:
    """What is reserved for others is neither its limit nor remaining."""
    case = Case(({"amount": 100, "unit": "requests", "per": "day"} | RESERVE, (65, 1), (1, 0)), priority="low")
    assert ratelimit_headers(case.template.shown, case.refs, Reply("granted", NOW_MS, states=case.states))[:2] == [
        (b"x-ratelimit-limit-requests", b"70"),
        (b"x-ratelimit-remaining-requests", b"4"),
    ]


def shadow(limit: str) -> dict[str, Any]:
    amount, _, per = limit.partition(" tokens/")
    return {"amount": int(amount), "unit": "tokens", "per": per, "mode": "shadow"}


def test_headers_never_describe_a_shadow_limit() -> None:
    """However little of it is left."""
    case = Case((shadow("100 tokens/day"), (99, 1), (1, 0)), ("300 tokens/day", (10, 0), (1, 0)))
    assert (
        dict(ratelimit_headers(case.template.shown, case.refs, Reply("granted", NOW_MS, states=case.states)))[b"x-ratelimit-remaining-tokens"]
        == b"290"
    )
    alone = Case((shadow("100 tokens/day"), (99, 1), (1, 0)))
    assert ratelimit_headers(alone.template.shown, alone.refs, Reply("granted", NOW_MS, states=alone.states)) == []


@pytest.mark.parametrize(
    ("limit", "claim", "state", "found"),
    [
        (shadow("100 tokens/day"), (10, 1000), (74, 36), False),  # 26 asked for at least, 26 were left
        (shadow("100 tokens/day"), (10, 1000), (75, 36), True),
        (shadow("100 tokens/day"), (10, 1000), (40, 60), False),  # enforced, the answer would have been shorter
        (shadow("100 tokens/day"), (0, 0), (500, 36), False),  # takes nothing
        (shadow("100 tokens/minute"), (26, 0), (100, 0), False),
        (shadow("100 tokens/minute"), (26, 0), (101, 0), True),
        (shadow("25 tokens/day"), (10, 1000), (0, 36), True),  # would never fit
        ({"amount": 2, "unit": "concurrent", "mode": "shadow"}, (1, 0), (0, 2), False),
        ({"amount": 2, "unit": "concurrent", "mode": "shadow"}, (1, 0), (0, 3), True),
        ({"amount": 9, "unit": "requests", "per": "minute", "window": "sliding", "mode": "shadow"}, (1, 0), (9, 5000), False),
        ({"amount": 9, "unit": "requests", "per": "minute", "window": "sliding", "mode": "shadow"}, (1, 0), (10, 5000), True),
        ("100 tokens/day", (10, 1000), (500, 36), False),
    ],
)
def test_what_a_shadow_limit_would_have_refused(limit: str | dict[str, Any], claim: tuple[int, int], state: tuple[int, int], found: bool) -> None:
    """Told from the states after the grant: at least `need`, or a constant claim, would not have fitted."""
    case = Case((limit, state, claim))
    reply = Reply("granted", NOW_MS, 26, 26, states=case.states)
    assert shadowed(case.template.shadows, case.refs, case.amounts, 16, reply) == ([0] if found else [])


def test_a_shadow_limit_beside_an_enforced_one_is_looked_at_by_its_own_amount() -> None:
    """One counter, two amounts: the small one would have refused, the large one grants."""
    counters = group("acme", KEY, [parse("1000 tokens/day"), parse(shadow("100 tokens/day"))])
    template, refset = Template("acme", counters, None), refs("acme", counters, NOW_MS)
    reply = Reply("granted", NOW_MS, 16, 16, states=((100, 26),))
    assert shadowed(template.shadows, refset, (10, 1000), 16, reply) == [0]
    assert dict(ratelimit_headers(template.shown, refset, reply))[b"x-ratelimit-remaining-tokens"] == b"874"


def test_affordable_is_asked_of_limits_that_bind() -> None:
    """A shadow limit affords everything."""
    case = Case((shadow("100 tokens/day"), (99, 0), (10, 1000)), ("300 tokens/day", (240, 0), (10, 1000)))
    assert affordable_output_tokens(case.counters, case.refs, case.amounts, 400, case.states) == 50
    alone = Case((shadow("100 tokens/day"), (99, 0), (10, 1000)))
    assert affordable_output_tokens(alone.counters, alone.refs, alone.amounts, 400, alone.states) == 400


# -- waiting behind others ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "state", "claim", "reason", "retry_after_s"),
    [
        ("100 tokens/day", (20, 70), (10, 1000), "busy", 1),
        ("100 tokens/day", (20, 10), (10, 1000), "busy", 1),  # would fit, if others were not ahead
        ("100 tokens/day", (90, 0), (10, 1000), "exhausted", None),
        ("60 tokens/minute", (60, 0), (26, 0), "rate", 26),
        ("60 tokens/minute", (0, 0), (26, 0), "rate", 1),
        ("2 concurrent", (0, 2), (1, 0), "concurrency", 1),
    ],
)
def test_who_waited_behind_others_is_told_of_their_counter(
    limit: str, state: tuple[int, int], claim: tuple[int, int], reason: str, retry_after_s: int | None
) -> None:
    """By the state in which it last refused somebody, with the request's own figures."""
    case = Case(("500 requests/day", (1, 0), (1, 0)), (limit, (0, 0), claim))
    refusal = still_waiting(1, case.counters, case.refs, case.amounts, 16, 400, (state, NOW_MS), aim=16)
    assert (refusal.reason, refusal.retry_after_s, refusal.counter) == (reason, retry_after_s, case.counters[1])
    assert refusal.requested == claim[0] + (16 if claim[1] else 0)


def test_times_in_words() -> None:
    """RFC 3339, whole seconds."""
    assert iso(NOW_MS + 999) == "2026-11-30T14:59:50Z"


# -- headers ------------------------------------------------------------------------------------------------------------------------------


def ratelimit_headers(*of: Any) -> list[tuple[bytes, bytes]]:
    """The lines as pairs."""
    return [tuple(line.split(b": ")) for line in ratelimit_lines(*of).split(b"\r\n")[1:]]  # type: ignore[misc]


def test_headers_describe_the_tightest_limit_of_each_unit() -> None:
    """Case 28: the limit with least room left, in OpenAI's format, whatever scope it is of."""
    case = Case(
        ("300 tokens/minute", (234, 0), (148, 0)),
        ("100k tokens/day", (99_950, 20), (148, 0)),
        ("120 requests/minute", (3, 0), (1, 0)),
        ("$5/day", (1, 1), (1, 0)),
        ("9 concurrent", (0, 2), (1, 0)),
    )
    assert ratelimit_headers(case.template.shown, case.refs, Reply("granted", NOW_MS, states=case.states)) == [
        (b"x-ratelimit-limit-requests", b"120"),
        (b"x-ratelimit-remaining-requests", b"117"),
        (b"x-ratelimit-reset-requests", b"2s"),
        (b"x-ratelimit-limit-tokens", b"100000"),
        (b"x-ratelimit-remaining-tokens", b"30"),
        (b"x-ratelimit-reset-tokens", b"9h0m10s"),
    ]


def warned(case: Case, **more: Any) -> bytes:
    reply = Reply("granted", NOW_MS, states=case.states)
    return budget_warning(case.template.marked, case.template.heads, case.counters, case.refs, reply, **more)


def marked(amount: float, unit: str, per: str, *warn_at: float, **more: Any) -> dict[str, Any]:
    return {"amount": amount, "unit": unit, "per": per, "warn_at": list(warn_at), **more}


def test_a_limit_that_is_nearly_used_is_warned_of() -> None:
    """From its lowest mark on, with what is left beside what is held, and when it begins anew; below the mark nothing is said."""
    below, at = (Case((marked(5, "usd", "day", 0.8, 0.95), (used, 100_000_000), (1, 0))) for used in (3_999_999_999, 4_100_000_000))
    assert warned(below) == b""
    assert warned(at) == (b"\r\nx-sluicegate-budget-warning: limit=key tight usd/day; used=82%; remaining=$0.80; reset=2026-12-01T00:00:00Z")
    assert b"remaining" not in warned(at, show_figures=False)


def test_the_warning_is_of_the_limit_of_which_most_is_used() -> None:
    """Limits without marks, that refill, or only watch, do not count; one that is overdrawn has nothing left; a lifetime never resets."""
    case = Case(
        (marked(5, "usd", "day", 0.8), (4_100_000_000, 0), (1, 0)),
        (marked(1000, "tokens", "lifetime", 0.5, models=["chat"]), (1_010, 9), (1, 0)),
        (marked(10, "requests", "day", 0.1, mode="shadow"), (20, 0), (1, 0)),
        ("100 input tokens/day", (500, 0), (1, 0)),
        ("300 tokens/minute", (299, 0), (1, 0)),
    )
    assert warned(case) == b"\r\nx-sluicegate-budget-warning: limit=key tight tokens/lifetime [chat]; used=101%; remaining=0; reset=never"


def test_nothing_is_warned_of_where_nothing_is_known() -> None:
    """A reply without states, and limits without marks."""
    case = Case((marked(5, "usd", "day", 0.8), (5_000_000_000, 0), (1, 0)))
    assert budget_warning(case.template.marked, {}, case.counters, case.refs, Reply("gone", NOW_MS)) == b""
    assert Case((marked(5, "usd", "day"), (5_000_000_000, 0), (1, 0))).template.marked == ()


def test_remaining_goes_down() -> None:
    """Case 28: each granted request leaves less, and what is overdrawn is none."""
    counters = group("acme", KEY, [parse("10 requests/minute")])
    book, refset, shown = MemoryBook("expired_held"), refs("acme", counters, NOW_MS), Template("acme", counters, None).shown
    book.now_ms = NOW_MS
    left = []
    for number in range(3):
        reply = rules.admit(book, Admission(f"hold-{number}", refset, (1, 0), 0, 0, 0, 30_000, ""))
        left.append(dict(ratelimit_headers(shown, refset, reply))[b"x-ratelimit-remaining-requests"])
    assert left == [b"9", b"8", b"7"]
    overdrawn = Reply("refused", NOW_MS, states=((12, 0),))
    assert dict(ratelimit_headers(shown, refset, overdrawn))[b"x-ratelimit-remaining-requests"] == b"0"


def test_a_limit_that_never_resets_has_no_reset_header() -> None:
    """There is no time to name."""
    case = Case(("300 tokens/lifetime", (234, 0), (148, 0)))
    assert [name for name, _ in ratelimit_headers(case.template.shown, case.refs, Reply("granted", NOW_MS, states=case.states))] == [
        b"x-ratelimit-limit-tokens",
        b"x-ratelimit-remaining-tokens",
    ]


def test_no_states_no_headers() -> None:
    """A reply without states (a stale window) says nothing of room."""
    case = Case(("300 tokens/minute", (234, 0), (148, 0)))
    assert ratelimit_headers(case.template.shown, case.refs, Reply("stale_window", NOW_MS)) == []


@pytest.mark.parametrize(
    ("length_ms", "shown"),
    [(0, "0s"), (20, "20ms"), (999, "999ms"), (1_000, "1s"), (1_001, "2s"), (59_001, "1m0s"), (360_000, "6m0s"), (93_780_000, "26h3m0s")],
)
def test_durations_in_openais_format(length_ms: int, shown: str) -> None:
    """As `x-ratelimit-reset-*` has them."""
    assert duration(length_ms) == shown
