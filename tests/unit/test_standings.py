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
        told = self.standings.nowhere(self.model.deployments, rejected)
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


@pytest.mark.parametrize(("room_in_s", "retry_after"), [(4, b"4"), (40, b"30"), (None, b"30")])
def test_one_that_is_full_counts_with_its_own_time(room_in_s: int | None, retry_after: bytes) -> None:
    """One is left alone for half a minute, the other has had no room by its own limits: the sooner of the two, or the one that will end at all."""
    full = Reject(
        429, "rate_limit_error", "upstream_rate_limited", "full", headers=() if room_in_s is None else ((b"retry-after", b"%d" % room_in_s),)
    )
    assert Stage(said(429, "30")).told(full) == (429, "upstream_rate_limited", {b"retry-after": retry_after})


def test_full_ones_alone_are_told_as_they_are() -> None:
    """Nobody is left alone: the refusal stands, with its own headers."""
    full = Reject(429, "rate_limit_error", "upstream_rate_limited", "full", headers=((b"x-should-retry", b"false"),))
    assert Stage().told(full) == (429, "upstream_rate_limited", {b"x-should-retry": b"false"})


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


def test_who_is_not_well_comes_last() -> None:
    """Degraded after all that are well, down after those; otherwise the order stays."""
    stage = Stage()
    one, two = stage.model.deployments
    assert stage.standings.healthy_first((one, two)) == (one, two)
    stage.standings.rate("one/a", "degraded", "slow")
    assert stage.standings.healthy_first((one, two)) == (two, one)
    stage.standings.rate("two/b", "down", "no answer")
    assert stage.standings.healthy_first((two, one)) == (one, two)


def test_a_wait_of_nothing_says_nothing() -> None:
    """Who says `retry-after: 0` and refuses again is left alone for the usual time, and asked once more after the usual pause."""
    stage = Stage(said(429, "0"))
    assert stage.standings.pause_s(said(429, "0"), 0) == stage.standings.pause_s(said(429), 0) == pytest.approx(0.1)
    assert stage.standings.of("one/a").cool_until_s == stage.now_s + 10


@pytest.mark.parametrize(
    ("tries", "outcome", "pause_s"),
    [
        (0, said(429, "2"), 2.0),
        (0, said(429, "3"), None),
        (0, said(503), 0.1),
        (1, said(503), 0.2),
        (2, said(503), 0.4),
        (3, said(503), None),
        (0, said(502), None),
        (0, said(402), None),
        (0, said(400), None),
    ],
)
def test_how_long_is_waited_before_the_same_is_asked_again(tries: int, outcome: Outcome, pause_s: float | None) -> None:
    """What it says, if that is short enough; else a pause that doubles; not what may have been billed, nor what would be told the same again."""
    policy = load_text(FILE.replace("{cooldown: 10s}", "{retries: 3, max_wait: 2s, backoff: 200ms}"), {}).policy
    standings = Standings(policy, lambda: 0.0, lambda: 0.0)
    assert standings.pause_s(outcome, tries) == pause_s


def test_the_pause_is_drawn() -> None:
    """Between half of it and all, so that those who were refused together do not come back together."""
    draws = iter([0.0, 0.5, 0.999])
    standings = Standings(load_text(FILE, {}).policy, lambda: 0.0, lambda: next(draws))
    assert [standings.pause_s(said(503), 0) for _ in range(3)] == pytest.approx([0.1, 0.15, 0.2], abs=0.001)


def test_a_reload_keeps_what_is_known() -> None:
    """A deployment that stays cools on; a new one may be called; one that is gone is not listed, but requests under way may still report."""
    stage = Stage(said(402))
    permit = stage.standings.of("two/b").permit(stage.now_s)
    assert permit is not None
    stage.standings.apply(load_text(FILE.replace("{provider: two, model: b}", "{provider: two, model: c}"), {}).policy)
    assert [one.deployment for one in stage.standings.all()] == ["one/a", "two/c"]
    assert stage.standings.of("one/a").permit(stage.now_s) is None
    assert stage.standings.of("two/c").permit(stage.now_s) is not None
    stage.standings.of("two/b").report(permit, "failed", stage.now_s)


def test_why_one_is_left_alone() -> None:
    """For a limit, or for any other failure."""
    stage = Stage(said(402), said(429, "30"))
    told = [stage.standings.left_alone_for(stage.standings.of(one)) for one in ("one/a", "two/b")]
    assert ["rate_limit" in kinds for kinds in told] == [False, True]
    assert ["account" in kinds for kinds in told] == [True, False]


def test_what_keeps_requests_from_a_deployment_is_told_by_name() -> None:
    """For the metrics: what cools, whose breaker is not closed, what probes find; nothing of a deployment that is well."""
    stage = Stage(said(429, "30"))
    assert list(stage.standings.troubles()) == [("one/a", "cooling")]
    stage.now_s += 31
    stage.standings.rate("two/b", "down", "")
    assert list(stage.standings.troubles()) == [("two/b", "down")]
    stage.standings.rate("two/b", "healthy", "")
    other = stage.standings.of("two/b")
    for _ in range(5):
        permit = other.permit(stage.now_s)
        assert permit is not None
        other.report(permit, "failed", stage.now_s)
    assert list(stage.standings.troubles()) == [("two/b", "open")]
