"""What an operator is told: warnings of limits, shadow refusals, overruns."""

import asyncio
from typing import Any

from sluicegate.core.claims import RefSet, Reply
from sluicegate.core.counters import group, refs
from sluicegate.core.limits import Limit, parse
from sluicegate.core.tenants import Counter, Scope
from sluicegate.ledger.contract import LedgerUnavailable
from sluicegate.observe.metrics import Metrics
from sluicegate.observe.notices import Notices

NOW_MS = 1_764_514_790_000  # 2025-11-30T14:59:50Z
TEAM = Scope("acme/team", "team", "team")
DOLLARS: dict[str, Any] = {"amount": 5, "unit": "usd", "per": "day", "warn_at": [0.8, 0.95, 1.0]}


class Peeked:
    """A ledger that is only looked at."""

    def __init__(self, used: int | None) -> None:
        self.used = used

    def __call__(self, asked: RefSet) -> "asyncio.Future[Reply]":
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        if self.used is None:
            future.set_exception(LedgerUnavailable("away"))
        else:
            future.set_result(Reply("granted", NOW_MS, states=tuple((self.used, 7) for _ in asked.refs)))
        return future


def limits(*written: Any) -> list[Limit]:
    return [parse(one) for one in written]


async def warned(counters: tuple[Counter, ...], reached: tuple[tuple[int, int], ...], used: int | None = 0) -> dict[str, int]:
    """Tells of marks that were reached; the warnings counted by limit."""
    metrics = Metrics(lambda _: True)
    Notices(metrics, counters, Peeked(used)).on_marks(refs("acme", counters, NOW_MS), reached)
    await asyncio.sleep(0)
    return metrics.counts().limit_warnings


async def test_a_mark_is_one_line_and_one_count(logged: list[Any]) -> None:
    """Whose limit, which, how much of it, what is used now, and when it resets."""
    counters = group("acme", TEAM, limits(DOLLARS))
    assert await warned(counters, ((0, 0),), used=4_100_000_000) == {"team usd/day": 1}
    assert logged == [
        {
            "event": "limit warning",
            "log_level": "warning",
            "scope": "acme/team",
            "limit": "$5/day",
            "percent": "80%",
            "used": "$4.10",
            "amount": "$5",
            "resets_at": "2025-12-01T00:00:00Z",
        }
    ]


async def test_marks_passed_at_once_are_told_each(logged: list[Any]) -> None:
    """One settle may cross several, of several counters."""
    counters = group("acme", TEAM, limits({"amount": 10, "unit": "requests", "per": "lifetime", "warn_at": [0.5, 1]}, DOLLARS))
    assert await warned(counters, ((0, 0), (0, 1), (1, 2)), used=6_000_000_000) == {"team requests/lifetime": 2, "team usd/day": 1}
    assert [(line["percent"], line["resets_at"]) for line in logged] == [("50%", None), ("100%", None), ("100%", "2025-12-01T00:00:00Z")]


async def test_a_shadow_limit_warns_under_that_name(logged: list[Any]) -> None:
    """Of limits that share a counter, the one that the mark belongs to."""
    counters = group("acme", TEAM, limits(DOLLARS | {"warn_at": [1]}, DOLLARS | {"amount": 4, "mode": "shadow", "warn_at": [1]}))
    assert await warned(counters, ((0, 0),), used=4_000_000_000) == {"team usd/day": 1}
    assert [(line["amount"], line["mode"]) for line in logged] == [("$4", "shadow")]


async def test_what_is_used_may_not_be_known(logged: list[Any]) -> None:
    """The ledger has gone away meanwhile: at least the mark is used."""
    await warned(group("acme", TEAM, limits(DOLLARS)), ((0, 1),), used=None)
    assert [line["used"] for line in logged] == ["$4.75"]


async def test_a_limit_that_is_gone_is_not_warned_of(logged: list[Any]) -> None:
    """A journal's line has it, and this configuration does not, or with another amount."""
    metrics, counters = Metrics(lambda _: True), group("acme", TEAM, limits(DOLLARS))
    Notices(metrics, (), Peeked(0)).on_marks(RefSet("acme", refs("acme", counters, NOW_MS).refs), ((0, 0),))
    changed = group("acme", TEAM, limits(DOLLARS | {"amount": 50}))
    Notices(metrics, changed, Peeked(0)).on_marks(refs("acme", counters, NOW_MS), ((0, 0),))
    await asyncio.sleep(0)
    assert (logged, metrics.counts().limit_warnings) == ([], {})


async def test_a_limit_of_a_key_that_was_made_at_run_time_is_warned_of(logged: list[Any]) -> None:
    """The configuration does not have it: what was counted in knows it. Whoever listens hears of the counter, its window, the mark, used and held."""
    metrics, counters, heard = Metrics(lambda _: True), group("acme", TEAM, limits(DOLLARS)), []
    notices = Notices(metrics, (), Peeked(4_100_000_000))
    notices.on_mark = lambda counter, ref, mark, used, held: heard.append((counter, ref.key, mark.share, used, held))
    notices.on_marks(refs("acme", counters, NOW_MS), ((0, 0),))
    await asyncio.sleep(0)
    assert heard == [(counters[0], f"{counters[0].key_prefix}:2025-11-30", 800_000, 4_100_000_000, 7)]
    assert metrics.counts().limit_warnings == {"team usd/day": 1}


def test_shadow_refusals_overruns_and_waits_are_counted(logged: list[Any]) -> None:
    """Shadow refusals by limit without its owner's name; a deployment that bills more than it shows is logged as well."""
    metrics = Metrics(lambda _: True)
    notices = Notices(metrics, (), Peeked(0))
    for _ in range(2):
        notices.shadow(group("acme", TEAM, limits(DOLLARS | {"mode": "shadow"}))[0])
    notices.overrun("mock/liar")
    notices.waited("served", 20_000)
    counts = metrics.counts()
    assert (counts.shadow_refusals, counts.overruns) == ({"team usd/day": 2}, {"mock/liar": 1})
    assert [(outcome, sum(histogram.counts)) for outcome, histogram in counts.waits.items()] == [("served", 1)]
    assert [line["deployment"] for line in logged] == ["mock/liar"]
