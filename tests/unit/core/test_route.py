"""In which order the deployments of a model are tried."""

import random
from collections import Counter as Tally
from itertools import count
from typing import Any

import pytest
from msgspec import Raw

from sluicegate.config import load_text
from sluicegate.core.plan import Plans, Template
from sluicegate.core.route import alike, budget_used, ordered, told_to_stay
from sluicegate.core.tenants import Model
from sluicegate.dialects.form import BadRequest


def model(*deployments: str, more: str = "", limits: str = "[]") -> tuple[Model, Template]:
    """A model whose deployments say this beside their names a, b, c, ...; with the template of the one key."""
    listed = ", ".join(f"{{provider: p, model: {'abcdefgh'[i]}, price: {{input: 1, output: 1}}{one}}}" for i, one in enumerate(deployments))
    policy = load_text(
        f"""
providers: {{p: {{provider: mock}}}}
models: {{chat: {{deployments: [{listed}]{more}}}}}
tenants: {{acme: {{keys: [{{name: k, key: sk-1, limits: {limits}}}]}}}}
""",
        {},
    ).policy
    [key] = policy.keys.values()
    return policy.models["chat"], Plans().of(key, policy.models["chat"]).template


def names(route: Model, who: bytes = b"k", used: int = 0, busy: dict[str, int] | None = None, draw: random.Random | None = None) -> str:
    order = ordered(route, who, used, lambda one: (busy or {}).get(one, 0), (draw or random.Random(1)).random)
    return "".join(one.model for one in order)


TIER, LAST = ", tier: t", ", tier: t, weight: 0"


def test_as_listed_costs_nothing() -> None:
    """Without tiers of several there is no order to work out, also where each deployment has a tier of its own."""
    plain, _ = model("", "")
    assert plain.tiers == ()
    assert model(", tier: large", ", tier: medium", ", tier: small")[0].tiers == ()


def test_tiers_come_in_the_order_in_which_they_first_appear() -> None:
    """A deployment without one is one by itself; who is listed apart from its tier belongs there all the same."""
    route, _ = model(", tier: x", "", ", tier: y, weight: 1000000", ", tier: x, weight: 0", ", tier: y")
    assert names(route) == "adbce"
    assert "".join(one.model for one in route.deployments) == "adbce"


def test_weights_decide_how_often_each_is_first() -> None:
    """3 to 1 means three times as often; so among those that are left; one of weight 0 is last whatever comes."""
    route, _ = model(f"{TIER}, weight: 3", TIER, LAST, f"{TIER}, weight: 4")
    draw = random.Random(7)
    orders = Tally(names(route, draw=draw) for _ in range(4_000))
    first = Tally[str]()
    for order, times in orders.items():
        assert order[-1] == "c"
        first[order[0]] += times
    assert first["a"] / 4_000 == pytest.approx(3 / 8, abs=0.03)
    assert first["b"] / 4_000 == pytest.approx(1 / 8, abs=0.03)
    after_d = {order: times for order, times in orders.items() if order[0] == "d"}
    assert sum(times for order, times in after_d.items() if order[1] == "a") / sum(after_d.values()) == pytest.approx(3 / 4, abs=0.04)


@pytest.mark.parametrize("drawn", [0.0, 1.0 - 2**-53])
def test_any_draw_has_an_order(drawn: float) -> None:
    """The least and the greatest that a generator gives, too."""
    route, _ = model(f"{TIER}, weight: 1000000", TIER)
    order = ordered(route, b"", 0, lambda _: 0, lambda: drawn)
    assert sorted(one.model for one in order) == ["a", "b"]


def test_the_least_busy_for_its_weight_is_first() -> None:
    """Fewest calls in flight at this worker; one of twice the weight may have twice as many; who is idle goes before all; equals are drawn for."""
    route, _ = model(TIER, f"{TIER}, weight: 2", LAST, more=", balance: least_busy")
    assert names(route, busy={"p/a": 2, "p/b": 3}) == "bac"
    assert names(route, busy={"p/a": 1, "p/b": 3}) == "abc"
    assert names(route, busy={"p/a": 1, "p/b": 0, "p/c": 0}) == "bac"
    draw = random.Random(3)
    first = Tally(names(route, draw=draw)[0] for _ in range(900))
    assert first["b"] / 900 == pytest.approx(2 / 3, abs=0.06)


def test_sticky_is_always_the_same_and_spreads() -> None:
    """Who asks decides, without any draw; many are spread as the weights say."""
    route, _ = model(f"{TIER}, weight: 3", TIER, more=", balance: sticky")
    assert {names(route, b"somebody", draw=random.Random(seed)) for seed in range(5)} == {names(route, b"somebody")}
    first = Tally(names(route, b"%d" % i)[0] for i in range(2_000))
    assert first["a"] / 2_000 == pytest.approx(3 / 4, abs=0.04)


def test_sticky_stays_put_when_another_comes_or_goes() -> None:
    """Only what the one that has gone served moves, and it is spread over those that are left; a new one takes only what it serves itself."""
    four, _ = model(TIER, TIER, TIER, TIER, more=", balance: sticky")
    three, _ = model(TIER, TIER, TIER, more=", balance: sticky")
    moved = Tally[str]()
    for i in range(1_000):
        before, after = names(four, b"%d" % i), names(three, b"%d" % i)
        if before[0] == "d":
            moved[after[0]] += 1
        assert after == before.replace("d", "")
    assert set(moved) == {"a", "b", "c"}
    assert sum(moved.values()) == pytest.approx(250, abs=50)


def test_nobody_can_be_taken_for_another() -> None:
    """What a request is known by and a deployment's id are hashed apart."""
    route, _ = model(TIER, TIER, more=", balance: sticky")
    assert len({names(route, who) for who in (b"k", b"kp", b"kp/", b"kp/a", b"x", b"y", b"z")}) == 2


def test_a_cheaper_one_is_preferred_while_a_share_of_the_budget_is_used() -> None:
    """It goes before all others above that share, and is in its place until then; the highest share that is passed goes first."""
    route, _ = model("", ', when: {budget_used: ">50%"}', "", ', when: {budget_used: "> 80.5%"}')
    assert [names(route, used=used) for used in (0, 500_000, 500_001, 805_000, 805_001, 2_000_000)] == [
        "abcd",
        "abcd",
        "bacd",
        "bacd",
        "dbac",
        "dbac",
    ]


def test_a_preferred_one_leaves_its_tier() -> None:
    """The others of the tier keep their order."""
    route, _ = model(TIER, f'{LAST}, when: {{budget_used: ">0%"}}')
    assert (names(route), names(route, used=1)) == ("ab", "ba")


# -- what is used -------------------------------------------------------------------------------------------------------------------------


def test_the_share_that_is_used_is_that_of_the_tightest_limit() -> None:
    """Of those that do not refill and are enforced, as last told; what is held does not count."""
    shadow = "{amount: 1, unit: tokens, per: lifetime, mode: shadow}"
    _, template = model("", limits=f"[10 tokens/minute, 4 concurrent, 1000 tokens/day, $2/month, {shadow}]")
    assert budget_used(template, 0) == 0
    template.told = ((10, 0), (0, 4), (300, 700), (10**9, 0), (999, 0))
    assert budget_used(template, 0) == 500_000
    template.told = ((10, 0), (0, 4), (1_200, 0), (10**9, 0), (999, 0))
    assert budget_used(template, 0) == 1_200_000


def test_what_was_told_of_a_window_that_is_over_is_forgotten() -> None:
    """The next day begins with nothing used."""
    _, template = model("", limits="[10 tokens/day]")
    template.refset(0)
    template.told = ((9, 0),)
    assert budget_used(template, 86_399_999) == 900_000
    assert budget_used(template, 86_400_000) == 0


def test_a_limit_of_nothing_is_used_up() -> None:
    """There is no share of it."""
    _, template = model("", limits="[0 tokens/day]")
    template.refset(0)
    template.told = ((0, 0),)
    assert budget_used(template, 0) == 1_000_000


# -- staying ------------------------------------------------------------------------------------------------------------------------------


def test_those_alike_are_the_first_and_its_tier() -> None:
    """Another deployment of the tier is no fallback; where there are no tiers, only the first is left."""
    route, _ = model("", TIER, TIER, "")
    order = ordered(route, b"", 0, lambda _: 0, lambda: 0.5)
    assert [one.model for one in alike(route, order)] == ["a"]
    assert [one.model for one in alike(route, order[1:])] == ["b", "c"]
    plain, _ = model("", "")
    assert [one.model for one in alike(plain, plain.deployments)] == ["a"]


@pytest.mark.parametrize(
    ("header", "field", "stays"),
    [
        (b"true", None, True),
        (b" TRUE ", b"false", True),
        (b"false", b"true", True),
        (None, b"true", True),
        (None, b"null", False),
        (b"false", None, False),
        (None, None, False),
    ],
)
def test_a_request_says_that_it_stays_in_a_header_or_its_body(header: bytes | None, field: bytes | None, stays: bool) -> None:
    """Either will do; the field is not for upstreams."""
    headers = {} if header is None else {b"x-sluicegate-disable-fallbacks": header}
    fields = {"model": Raw(b'"m"')} | ({} if field is None else {"disable_fallbacks": Raw(field)})
    assert told_to_stay(headers, fields) is stays
    assert list(fields) == ["model"]


@pytest.mark.parametrize(
    ("headers", "fields", "param"),
    [
        ({b"x-sluicegate-disable-fallbacks": b"yes"}, {}, "x-sluicegate-disable-fallbacks"),
        ({}, {"disable_fallbacks": Raw(b'"true"')}, "disable_fallbacks"),
        ({}, {"disable_fallbacks": Raw(b"1")}, "disable_fallbacks"),
    ],
)
def test_what_is_neither_yes_nor_no_is_refused(headers: Any, fields: Any, param: str) -> None:
    """It is not taken for one of the two."""
    with pytest.raises(BadRequest) as caught:
        told_to_stay(headers, fields)
    assert caught.value.param == param


def test_draws_are_made_for_tiers_of_several_alone() -> None:
    """One that is alone needs none."""
    drawn = count()
    route, _ = model("", TIER, TIER)
    ordered(route, b"", 0, lambda _: 0, lambda: (next(drawn) + 1) / 10)
    assert next(drawn) == 2
