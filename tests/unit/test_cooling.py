"""Cooldowns between workers: what goes out, and what is made of what comes in."""

from typing import Any

import pytest

from sluicegate.bus import Message
from sluicegate.config import load_text
from sluicegate.cooling import Cooldowns
from sluicegate.core.classify import failed
from sluicegate.dialects.form import Failure
from sluicegate.standings import Standings

FILE = """
providers: {one: {provider: mock}}
models: {chat: {deployments: [{provider: one, model: a}]}, other: {deployments: [{provider: one, model: a}]}}
tenants: {acme: {keys: [{name: k, key: sk-1}]}}
"""
NOW_MS = 1_700_000_000_000


class Wire:
    """In place of a bus: what was published, and who is to hear."""

    def __init__(self) -> None:
        self.published: list[tuple[str, dict[str, Any]]] = []
        self.heard: dict[str, Any] = {}

    def publish(self, kind: str, data: dict[str, Any]) -> None:
        self.published.append((kind, data))

    def subscribe(self, kind: str, callback: Any, *, earlier: bool = False) -> None:
        assert earlier
        self.heard[kind] = callback

    def hear(self, message: Message) -> None:
        self.heard[message.kind](message)


class Worker:
    """One worker, at 100 s of a clock of its own."""

    def __init__(self, ledger_ahead_ms: int = 0) -> None:
        self.wire = Wire()
        self.standings = Standings(load_text(FILE, {}).policy, lambda: 100.0, lambda: 0.0)
        self.cooldowns = Cooldowns(self.wire, self.standings, lambda: NOW_MS + ledger_ahead_ms)  # type: ignore[arg-type]
        self.standing = self.standings.of("one/a")

    def refused(self, retry_after: str) -> None:
        permit = self.standing.permit(100.0)
        assert permit is not None
        self.standings.note(self.standing, permit, failed(429, {b"retry-after": retry_after.encode()}, Failure(None, "", "", "slow down"), False))

    def told(self, data: Any) -> float:
        """For how long it is left alone after this message."""
        self.wire.hear(Message("1", "cooldown", NOW_MS, "other", data))
        return self.standing.ready_in_s(100.0)


def test_what_one_was_told_the_others_go_by() -> None:
    """The end of it, by the ledger's clock, the reason, and that it is a limit; what is heard is not told again."""
    one, two = Worker(), Worker()
    one.refused("30")
    [(kind, data)] = one.wire.published
    assert (kind, data) == ("cooldown", {"deployment": "one/a", "until_ms": NOW_MS + 30_000, "reason": "429", "limited": True})
    assert two.told(data) == 30.0
    assert two.standing.limited and two.wire.published == []


def test_time_that_has_passed_on_the_way_counts() -> None:
    """By the clock of the ledger, whatever those of the machines say; what is over is over."""
    data = {"deployment": "one/a", "until_ms": NOW_MS + 30_000, "reason": "429", "limited": True}
    assert Worker(ledger_ahead_ms=12_000).told(data) == 18.0
    assert Worker(ledger_ahead_ms=30_000).told(data) == 0.0


def test_case_45_the_later_of_two_deadlines_stands_across_workers() -> None:
    """A shorter one that is heard later shortens nothing."""
    worker = Worker()
    data = {"deployment": "one/a", "until_ms": NOW_MS + 60_000, "reason": "429", "limited": True}
    assert worker.told(data) == 60.0
    assert worker.told({**data, "until_ms": NOW_MS + 1_000}) == 60.0


@pytest.mark.parametrize(
    ("changed", "for_s"),
    [
        ({"until_ms": 2**62}, 3600.0),
        ({"until_ms": -5}, 0.0),
        ({"until_ms": "x"}, 0.0),
        ({"until_ms": 1.5e300}, 0.0),
        ({"deployment": "no/such"}, 0.0),
        ({"deployment": ["one/a"]}, 0.0),
        ({"limited": None}, 0.0),
        ({"reason": "x" * 60_000}, 30.0),
    ],
    ids=str,
)
def test_impossible_things_are_ignored_or_bounded(changed: dict[str, Any], for_s: float) -> None:
    """Nothing that is heard keeps a deployment away for more than an hour, or fills the log."""
    worker = Worker()
    data = {"deployment": "one/a", "until_ms": NOW_MS + 30_000, "reason": "429", "limited": True, **changed}
    assert worker.told(data) == for_s
    assert len(worker.standing.cool_reason) <= 200


def test_one_that_is_reset_is_called_again_by_all() -> None:
    """Its cooldown and its breaker are forgotten; what was told of it before is not heard after, what is told later is."""
    one, two = Worker(), Worker()
    one.refused("30")
    [(_, told)] = one.wire.published
    assert two.told(told) == 30
    for _ in range(5):
        permit = two.standing.permit(131.0)
        assert permit is not None
        two.standing.report(permit, "failed", 131.0)
    assert two.standing.state == "open" and two.standing.permit(131.0) is None
    one.cooldowns.reset("one/a", "reset by on-call")
    kind, reset = one.wire.published[-1]
    assert (kind, reset, one.standing.ready_in_s(100.0)) == ("reset", {"deployment": "one/a", "reason": "reset by on-call"}, 0)
    two.wire.hear(Message("2", "reset", NOW_MS, "other", reset))
    assert (two.standing.state, two.standing.failures, two.standing.reason) == ("closed", 0, "reset by on-call")
    for worker in (one, two):
        worker.wire.hear(Message("3", "cooldown", NOW_MS, "third", told))
        assert worker.standing.ready_in_s(100.0) == 0
        worker.wire.hear(Message("4", "cooldown", NOW_MS + 1, "third", told))
        assert worker.standing.ready_in_s(100.0) == 30


@pytest.mark.parametrize("data", [{}, {"deployment": "one/a"}, {"deployment": "none", "reason": "x"}])
def test_a_reset_that_means_nothing_is_ignored(data: dict[str, Any]) -> None:
    """Whoever wrote it is none of ours, or has other deployments."""
    one = Worker()
    one.refused("30")
    one.wire.hear(Message("1", "reset", NOW_MS, "other", data))
    assert one.standing.ready_in_s(100.0) == 30
