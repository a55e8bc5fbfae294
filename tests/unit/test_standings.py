"""What the client is told where no deployment of a route is asked."""

import pytest

from sluicegate.config import load_text
from sluicegate.core.classify import Outcome, failed
from sluicegate.dialects.form import Failure
from sluicegate.reject import Reject, upstream
from sluicegate.standings import Standings

FILE = """
providers: {one: {provider: mock}, two: {provider: mock}}
models: {chat: {deployments: [{provider: one, model: a}, {provider: two, model: b}]}}
tenants: {acme: {keys: [{name: k, key: sk-1}]}}
resilience: {cooldown: 10s}
"""


class Stage:
    """A route of two deployments, each of which has just told its outcome."""

    def __init__(self, *outcomes: Outcome) -> None:
        self.model = (policy := load_text(FILE, {}).policy).models["chat"]
        self.now_s = 100.0
        self.standings = Standings(policy, lambda: self.now_s, lambda: 0.0)
        self.told_others: list[tuple[str, float, str, bool]] = []
        self.standings.on_cooled = lambda *cooled: self.told_others.append(cooled)
        for deployment, outcome in zip(self.model.deployments, outcomes, strict=False):
            standing = self.standings.of(deployment.id)
            permit = standing.permit(self.now_s)
            assert permit is not None
            self.standings.note(standing, permit, outcome)

    def told(self, rejected: Reject | None = None) -> tuple[int, str, dict[bytes, bytes]]:
        told = self.standings.nowhere(self.model, rejected)
        return told.status, told.code, dict(told.headers)


def said(status: int, wait_s: str = "") -> Outcome:
    """An upstream's error, with the wait that it asks for."""
    return failed(status, {b"retry-after": wait_s.encode()} if wait_s else {}, Failure(None, "", "", "no"), False)


@pytest.mark.parametrize("status", [401, 402, 403])
def test_an_account_that_is_no_good_is_no_rate_limit(status: int) -> None:
    """While all cool down since they do not take our account, the client is told that nobody can serve, and when that is tried again."""
    assert Stage(said(status), said(status)).told() == (503, "upstream_unavailable", {b"retry-after": b"10"})


def test_an_overload_that_says_how_long_is_no_rate_limit() -> None:
    """Nor are deployments that have said with a 503 when they will be back."""
    assert Stage(said(503, "7"), said(402)).told() == (503, "upstream_unavailable", {b"retry-after": b"7"})


def test_one_limit_among_them_is_told_as_one() -> None:
    """Where one of them is rate limited it is a 429, with the soonest that one may serve."""
    assert Stage(said(402), said(429, "30")).told() == (429, "upstream_rate_limited", {b"retry-after": b"10"})
    assert Stage(said(429, "4"), said(429, "30")).told() == (429, "upstream_rate_limited", {b"retry-after": b"4"})


def test_what_one_has_said_just_now_is_told() -> None:
    """A deployment that was asked and failed is told as it failed; one that was limited, with the soonest that any may serve."""
    assert Stage(said(402), said(402)).told(upstream(said(402)))[:2] == (502, "upstream_error")
    assert Stage(said(402), said(429, "30")).told(upstream(said(429, "30"))) == (429, "upstream_rate_limited", {b"retry-after": b"10"})


def test_a_cooldown_is_told_to_the_other_workers() -> None:
    """With what it is for; again only if it has become notably longer."""
    stage = Stage(said(402), said(429, "30"))
    assert stage.told_others == [("one/a", 10.0, "402", False), ("two/b", 30.0, "429", True)]
    stage.now_s += 1
    for wait_ms in (5_000, 31_000, 60_000):
        stage.standings.found(stage.standings.of("two/b"), wait_ms, "429", True)
    assert stage.told_others[2:] == [("two/b", 60.0, "429", True)]


def test_a_cooldown_of_another_worker_is_taken_and_not_told_again() -> None:
    """Nor does one of a deployment that is not known here disturb."""
    stage = Stage()
    stage.standings.cool("one/a", 30.0, "429", True)
    stage.standings.cool("three/c", 30.0, "429", True)
    assert stage.standings.of("one/a").permit(stage.now_s + 29) is None
    assert stage.told_others == []


def test_every_standing_can_be_listed() -> None:
    """With its cooldown and the reason of it."""
    stage = Stage(said(402))
    assert {one.deployment: (one.state, one.cool_until_s, one.cool_reason) for one in stage.standings.all()} == {
        "one/a": ("closed", 110.0, "402"),
        "two/b": ("closed", 0.0, ""),
    }


def test_only_those_that_are_not_well_are_remembered() -> None:
    """What a probe says of a deployment; healthy and unknown are as if nobody had asked."""
    stage = Stage()
    stage.standings.rate("one/a", "down", "no answer")
    stage.standings.rate("two/b", "degraded", "slow")
    assert stage.standings.unwell == {"one/a": "down", "two/b": "degraded"}
    stage.standings.rate("one/a", "healthy", "it answers")
    stage.standings.rate("two/b", "unknown", "not asked")
    assert stage.standings.unwell == {}
