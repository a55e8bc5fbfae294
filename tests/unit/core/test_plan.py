"""The plan: which counters bind a request, what it claims of each, and what can never fit."""

from typing import Any

import pytest

from sluicegate.core.counters import group
from sluicegate.core.estimate import Figures
from sluicegate.core.limits import Priority, parse
from sluicegate.core.plan import PLANS_MAX, Plans, Template, fit, refills
from sluicegate.core.prices import Price, cost_nano_usd
from sluicegate.core.rules import amount
from sluicegate.core.tenants import Deployment, Key, Model, Provider, Scope
from sluicegate.core.usage import Charge, Usage

KEY = Scope("acme/@k", "key", "k")
PRICE = Price(500_000, 1_000_000)  # 500 and 1000 nano-USD per token
NOW_MS = 1_800_000_000_000


def template(*limits: Any, model: str | None = "chat", priority: Priority | None = None) -> Template:
    return Template("acme", group("acme", KEY, [parse(limit) for limit in limits]), model, priority)


def figures(estimate: int = 10, bound: int = 20, *, choices: int = 1, need: int = 16, aim: int = 100, want: int = 400) -> Figures:
    return Figures(estimate, bound, choices, need, aim, want)


UNITS = {
    "requests": ((1, 0), (1, 0)),
    "input tokens": ((10, 0), (20, 0)),
    "output tokens": ((100, 0), (0, 1000)),
    "tokens": ((110, 0), (20, 1000)),
}


@pytest.mark.parametrize(("unit", "claims"), UNITS.items())
def test_what_a_request_claims(unit: str, claims: tuple[tuple[int, int], tuple[int, int]]) -> None:
    """Limits that refill take the estimate and the output aimed at, as a constant; others the bound, and the output as it is granted."""
    refilling, fixed = claims
    assert template(f"1000 {unit}/minute").amounts(figures(), PRICE, 1) == refilling
    for window in ("day", "30s", "lifetime"):
        assert template(f"1000 {unit}/{window}").amounts(figures(), PRICE, 1) == fixed


def test_what_a_request_claims_in_dollars() -> None:
    """At the dearest price that it can reach here, in nano-USD, the rate in pico-USD per token; an estimate where the limit refills."""
    price = Price(500, 1000, cache_write=700, reasoning=1500, request_fee=50)
    assert template("$1/day").amounts(figures(), price, 1) == (20 * 700 // 1000 + 50, 1500)
    bucket = {"amount": 1, "unit": "usd", "per": "minute", "window": "bucket"}
    assert template(bucket).amounts(figures(), price, 1) == (10 * 700 // 1000 + 50 + 150, 0)


def test_no_price_costs_nothing() -> None:
    """Under `unpriced: free`, and where no dollar limit applies."""
    assert template("$1/day").amounts(figures(), None, 1) == (0, 0)
    assert template("$1/day").usd_rate(None) == template("1 tokens/day").usd_rate(PRICE) == 0
    assert template("$1/day").usd_rate(PRICE) == 1_000_000


def test_a_concurrent_claim_is_one_whatever_was_counted_before() -> None:
    """A later attempt claims no request, but is as much in flight as any."""
    assert template("4 concurrent", "5 requests/day").amounts(figures(), PRICE, 0) == (1, 0, 0, 0)


def test_case_9_a_free_model_claims_no_money() -> None:
    """An explicit price of 0 claims nothing of a dollar limit, and what it would of tokens."""
    assert template("$1/day", "100 tokens/day").amounts(figures(), Price(0, 0), 1) == (0, 0, 20, 1000)


def test_counters_of_other_models_do_not_bind() -> None:
    """A limit with a list of models is there for those alone; without a model (what `GET /v1/usage` shows) all are."""
    limits = ("100 tokens/day", {"amount": 10, "unit": "tokens", "per": "day", "models": ["chat"]})
    assert [len(template(*limits, model=model).counters) for model in ("chat", "other", None)] == [2, 1, 2]


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_used_is_per_counter_in_order(count: int) -> None:
    """What was used, for any number of counters; concurrency settles to nothing."""
    limits = ["9 tokens/day", "9 input tokens/day", "9 output tokens/day", "$1/day", "9 concurrent"][:count]
    charge = Charge(3, 4, 5, "reported")
    assert template(*limits).used(charge, 1) == (7, 3, 4, 5, 0)[:count]
    assert template("5 requests/day").used(charge, 0) == (0,)


def test_a_claim_covers_its_cost() -> None:
    """For every grant and price, what is held in dollars is at least what the call can cost, however it is rounded."""
    for input_price in (0, 1, 499, 1500):
        for output_price in (0, 1, 333, 2001):
            price = Price(input_price, output_price, cached_input=input_price // 2, reasoning=output_price + 1)
            for bound in (0, 1, 7, 1003):
                fixed, rate = template("$1/day").amounts(figures(bound, bound), price, 1)
                for output in (0, 1, 3, 999):
                    for reasoning in {0, output}:
                        cost = cost_nano_usd(price, Usage(bound, output, reasoning_tokens=reasoning))
                        assert amount(fixed, rate, output) >= cost


def test_a_refset_is_one_object_for_as_long_as_no_window_ends() -> None:
    """And a new one once the ledger has said that a window is stale, or a window has ended."""
    plan = template("100 tokens/30s", "100 requests/minute")
    first = plan.refset(NOW_MS)
    assert plan.refset(NOW_MS + 29_999 - NOW_MS % 30_000) is first
    assert plan.refset(NOW_MS + 30_000) is not first
    second = plan.refset(NOW_MS + 30_000)
    plan.recompute()
    assert plan.refset(NOW_MS + 30_000) is not second


# -- what can never fit -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "requested", "fits"),
    [
        ("100 tokens/day", None, None),  # the input and `need` fit: the rest is clamped
        ("36 tokens/day", None, None),
        ("35 tokens/day", 36, 15),
        ("19 tokens/day", 36, -1),
        ("15 output tokens/day", 16, 15),
        ("19 input tokens/day", 20, -1),
        ("0 requests/day", 1, -1),
        ("0 concurrent", 1, -1),
        ("$0.000025/day", 10_000 + 16_000, 15),
        ("409 tokens/minute", 410, 399),
        ("399 output tokens/minute", 400, 399),
        ("9 input tokens/minute", 10, -1),
    ],
)
def test_a_request_that_can_never_fit_is_told_what_would(limit: str, requested: int | None, fits: int | None) -> None:
    """A window that does not refill must hold the input and `need`; one that refills must hold all that the client asked for."""
    misfit = fit(template(limit), figures(), PRICE, True)
    assert (requested, fits) == (None, None) if misfit is None else (misfit.requested, misfit.fits_output_tokens) == (requested, fits)


@pytest.mark.parametrize(
    ("limit", "want"),
    [("100 tokens/minute", 90), ("26 tokens/minute", 16), ("50 output tokens/minute", 50), ("9 requests/minute", 400)],
)
def test_case_11_without_a_cap_the_request_is_made_to_fit(limit: str, want: int) -> None:
    """A client that named no cap gets what the smallest refilling limit can hold; what is aimed at is lowered with it."""
    asked = figures()
    assert fit(template(limit), asked, PRICE, False) is None
    assert (asked.want, asked.aim) == (want, min(want, 100))


def test_without_a_cap_and_without_room_for_need() -> None:
    """Not even `need` fits: told at once, not refused for ever."""
    misfit = fit(template("25 tokens/minute"), figures(), PRICE, False)
    assert misfit is not None
    assert (misfit.requested, misfit.fits_output_tokens) == (26, 15)


def test_need_fits_below_a_lowered_want() -> None:
    """For several choices too: what is left is at least `need`, so that every choice has its cap of one token or more."""
    for capacity in range(130, 400, 7):
        asked = figures(choices=8, need=128, aim=800, want=8000)
        if fit(template(f"{capacity} tokens/minute"), asked, PRICE, False) is None:
            assert asked.need <= asked.aim <= asked.want
            assert asked.cap(asked.want) >= 1


def test_embeddings_fit_by_their_input() -> None:
    """No output at all: need, aim and want are 0."""
    asked = figures(need=0, aim=0, want=0)
    assert fit(template("20 tokens/day", "10 tokens/minute"), asked, PRICE, False) is None
    assert fit(template("19 tokens/day"), asked, PRICE, False) is not None


@pytest.mark.parametrize(("priority", "fits"), [(None, True), ("high", True), ("normal", True), ("low", False)])
def test_what_is_reserved_never_fits(priority: Priority | None, fits: bool) -> None:
    """A request that only fits into what is kept from its priority is told so at once, with what would fit."""
    limit = {"amount": 50, "unit": "tokens", "per": "day", "reserve": {"normal": "28%", "low": "30%"}}
    misfit = fit(template(limit, priority=priority), figures(), PRICE, True)
    assert (misfit is None) == fits
    assert misfit is None or (misfit.requested, misfit.fits_output_tokens, misfit.reserved) == (36, 15, 15)


def test_without_a_cap_the_request_is_made_to_fit_beside_the_reserve() -> None:
    """What the claimant may use of the smallest refilling limit."""
    asked = figures()
    limit = {"amount": 100, "unit": "tokens", "per": "minute", "reserve": {"low": "40%"}}
    assert fit(template(limit, priority="low"), asked, PRICE, False) is None
    assert (asked.want, asked.aim) == (50, 50)


SHADOW = {"amount": 5, "unit": "tokens", "per": "minute", "mode": "shadow"}


def test_shadow_limits_claim_and_never_refuse() -> None:
    """They stand among the claims like others, and are left out where requests are refused and where remaining room is told."""
    found = template("9 requests/minute", SHADOW, "1000 tokens/day")
    assert found.amounts(figures(), PRICE, 1) == (1, 0, 110, 0, 20, 1000)
    assert fit(found, figures(), PRICE, True) is None
    assert found.shadows == ((1, 5),)
    assert found.shown == ((0, ((0, 9, False),)), (1, ((2, 1000, True),)))
    assert template(SHADOW).shown == ()
    assert template("9 requests/minute").shadows == ()


def test_only_an_enforced_dollar_limit_needs_a_price() -> None:
    """A shadow limit of dollars counts a call without a price as free; one with a price at its price."""
    shadow = template({"amount": 1, "unit": "usd", "per": "day", "mode": "shadow"})
    assert (shadow.needs_price, template("$1/day").needs_price, template("5 tokens/day").needs_price) == (False, True, False)
    assert shadow.amounts(figures(), PRICE, 1) == template("$1/day").amounts(figures(), PRICE, 1)


# -- kept per key and model ---------------------------------------------------------------------------------------------------------------


def test_plans_are_made_once() -> None:
    """One template per key and model, one per deployment with limits of its own."""
    provider = Provider("p", "openai_chat", "http://127.0.0.1:9/v1", ())
    own = Scope("p/m", "deployment", "p/m")
    deployment = Deployment("p/m", provider, "m", PRICE, False, counters=group("d/p/m", own, [parse("1 concurrent")]))
    chat, other = Model("chat", (deployment,)), Model("other", (deployment,))
    key = Key("acme/@k", "k", "acme", (KEY,), None, group("acme", KEY, [parse("5 tokens/day"), parse("5 tokens/minute")]))
    plans = Plans()
    assert plans.of(key, chat) is plans.of(key, chat)
    assert plans.of(key, chat) is not plans.of(key, other)
    assert plans.of_deployment(deployment, "low") is plans.of_deployment(deployment, "low")
    assert plans.of_deployment(deployment, "low") is not plans.of_deployment(deployment, None)
    assert plans.of_deployment(deployment, None).tree == "d/p/m"
    assert [refills(counter) for counter in key.counters] == [False, True]


def test_plans_are_of_the_very_key_and_deployment() -> None:
    """Whoever began under an earlier policy gets its limits, and nobody gets them after."""
    provider = Provider("p", "openai_chat", "http://127.0.0.1:9/v1", ())
    own = Scope("p/m", "deployment", "p/m")
    old, new = (
        Deployment("p/m", provider, "m", PRICE, False, counters=group("d/p/m", own, [parse(limit)])) for limit in ("1 concurrent", "2 concurrent")
    )
    before, after = (Key("acme/@k", "k", "acme", (KEY,), None, group("acme", KEY, [parse(limit)])) for limit in ("5 tokens/day", "6 tokens/day"))
    plans = Plans()
    for _ in range(2):
        for key, deployment, ceiling in ((before, old, 1), (after, new, 2)):
            model = Model("chat", (deployment,))
            assert plans.of(key, model).template.counters == key.counters
            assert plans.of_deployment(deployment, None).counters[0].ceiling == ceiling


def test_plans_are_bounded() -> None:
    """There may be more keys than plans that are kept."""
    provider = Provider("p", "openai_chat", "http://127.0.0.1:9/v1", ())
    plans, model = Plans(), Model("chat", (Deployment("p/m", provider, "m", PRICE, False),))
    first = Key("acme/@0", "0", "acme", (KEY,), None, ())
    kept = plans.of(first, model)
    for number in range(1, PLANS_MAX + 1):
        plans.of(Key(f"acme/@{number}", "n", "acme", (KEY,), None, ()), model)
    assert plans.of(first, model) is not kept
