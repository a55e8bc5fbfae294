"""What is told of budgets, refusals, deployments and configurations: when, how often, with which figures."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sluicegate import alarms
from sluicegate.alarms import Alarms
from sluicegate.core.claims import RefSet
from sluicegate.core.counters import group, marks, refs
from sluicegate.core.limits import parse
from sluicegate.core.refusals import Refusal
from sluicegate.core.tenants import Counter, Scope
from sluicegate.events import Event
from sluicegate.records.audit import Entry
from sluicegate.records.rows import RecordsUnavailable

NOW_MS = 1_764_514_790_000  # 2025-11-30T14:59:50Z
MONTH_ENDS_MS = 1_764_547_200_000
KEY, TEAM = Scope("acme/team/@k", "key", "k"), Scope("acme/team", "team", "team")
DOLLARS = {"amount": 5, "unit": "usd", "per": "month", "warn_at": [0.8, 1.0]}


class Noted:
    """Stands where the audit log does."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.events: list[Event] = []
        self.counts: dict[str, int] = {}
        self.on_told: Callable[[Entry], None] = lambda entry: None

    def note(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.on_told(entry)

    def send(self, event: Event) -> None:
        self.events.append(event)

    def count(self, once: str, times: int) -> None:
        self.counts[once] = self.counts.get(once, 0) + times


class Store:
    """What was told before; None: it does not answer."""

    def __init__(self, found: list[Entry] | None = None) -> None:
        self.found = found

    async def call(self, _work: object, *, reading: bool) -> list[Entry]:
        assert reading
        if self.found is None:
            raise RecordsUnavailable("away")
        return self.found


class Case:
    """Alarms of one worker."""

    def __init__(self, store: Store | None = None) -> None:
        self.noted = Noted()
        self.now_ms = NOW_MS
        self.timers: list[Callable[[], None]] = []
        told: Any = self.noted
        where: Any = store or Store([])
        self.alarms = Alarms(told, where, "w1", lambda: self.now_ms, lambda _, call: self.timers.append(call))

    def pass_time(self) -> list[Event]:
        """What is told when the second is over."""
        timers, self.timers = self.timers, []
        for call in timers:
            call()
        return self.noted.events

    def mark(self, counter: Counter, which: int, used: int = 4_100_000_000) -> None:
        [ref] = refs("acme", (counter,), self.now_ms).refs
        self.alarms.marked(counter, ref, marks(counter)[which], used, 7)

    def refuse(self, counter: Counter, reason: Any = "exhausted", refset: RefSet | None = None, **fields: Any) -> None:
        figures = {"used": 4_990_000_000, "held": 5, "requested": 20_000_000, "limit": counter.amount}
        refusal = Refusal(reason, counter, 402, "", "", "", None, MONTH_ENDS_MS, **figures, reserved=0, affordable_output_tokens=0, name="limit k")
        exchange = SimpleNamespace(method="POST", path="/v1/chat/completions")
        known = refs("acme", (counter,), self.now_ms) if refset is None else refset
        trip: Any = SimpleNamespace(key=SimpleNamespace(id="acme/team/@k"), request_id="req_1", exchange=exchange, refset=known)
        self.alarms.refused(refusal, trip)


def counter(scope: Scope = KEY, **more: Any) -> Counter:
    return group("acme", scope, [parse(DOLLARS | more)])[0]


def test_a_mark_is_a_warning_of_its_window() -> None:
    """Once for the limit, its amount, the mark and the window; the figures as they were."""
    case, limit = Case(), counter()
    case.mark(limit, 0)
    [entry] = case.noted.entries
    assert entry.once == f"budget.warning {limit.key_prefix}:2025-11 5000000000 800000"
    assert (entry.action, entry.subject, entry.tenant, entry.key_id) == ("budget.warning", "acme/team/@k", "acme/team", "acme/team/@k")
    assert (entry.limit, entry.unit, entry.window, entry.percent) == ("key k usd/month", "usd", "month", 80)
    assert (entry.amount, entry.used, entry.held, entry.resets_ms) == (5 * 10**9, 4_100_000_000, 7, MONTH_ENDS_MS)


def test_the_last_mark_and_the_first_refusal_are_the_same_exhaustion() -> None:
    """Both are told under the same name, so that whoever comes first is the only one."""
    case, limit = Case(), counter()
    case.mark(limit, 1, used=5 * 10**9)
    case.refuse(limit)
    mark, refusal = case.noted.entries
    assert mark.once == refusal.once == f"budget.exceeded {limit.key_prefix}:2025-11 5000000000"
    assert (mark.action, mark.percent, refusal.action, refusal.percent) == ("budget.exceeded", 100, "budget.exceeded", 100)
    assert (refusal.request_id, refusal.path, refusal.requested) == ("req_1", "POST /v1/chat/completions", 20_000_000)


def test_what_content_rules_find_is_told_once_a_second() -> None:
    """One event for a rule and a key, with the number of requests; nothing is noted in the audit log."""
    case = Case()
    for _ in range(3):
        case.alarms.ruled({"a", "b"}, "acme/team/@k")
    case.alarms.ruled({"a"}, "other/@k")
    told = {(event.type, event.subject, event.key_id, event.tenant, event.count) for event in case.pass_time()}
    whose = ("acme/team/@k", ("acme", "acme/team"))
    assert told == {
        ("content.matched", "a", *whose, 3),
        ("content.matched", "b", *whose, 3),
        ("content.matched", "a", "other/@k", ("other",), 1),
    }
    assert case.noted.entries == []
    for number in range(200):
        case.alarms.ruled({f"r{number}"}, "k")
    assert len(case.pass_time()) == 3 + 100


def test_a_shadow_limit_is_told_as_one() -> None:
    """It refuses nobody."""
    case = Case()
    case.mark(counter(mode="shadow"), 0)
    assert case.noted.entries[0].reason == "shadow"


def test_refusals_are_counted_and_told_once_a_second() -> None:
    """However many there are: the exhaustion is noted at the first, each counts, and one event for the limit has the last figures."""
    case, limit = Case(), counter()
    for _ in range(1_000):
        case.refuse(limit)
    assert (len(case.noted.entries), case.noted.counts) == (1, {case.noted.entries[0].once: 1_000})
    assert case.noted.events == []
    [event] = case.pass_time()
    assert (event.type, event.reason, event.count, event.limit, event.key_id) == ("request.refused", "exhausted", 1_000, "limit k", "acme/team/@k")
    assert (event.tenant, event.amount, event.used, event.requested) == (("acme", "acme/team"), 5.0, 4.99, 0.02)
    assert case.pass_time() == [event]
    case.refuse(limit)
    assert [one.count for one in case.pass_time()] == [1_000, 1]


def test_refusals_by_many_limits_are_bounded() -> None:
    """A second in which more limits refuse than are told of has one event for all others."""
    case = Case()
    for number in range(alarms.LIMITS_MAX + 5):
        case.refuse(counter(Scope(f"acme/@k{number}", "key", f"k{number}")), "rate")
    events = case.pass_time()
    assert len(events) == alarms.LIMITS_MAX + 1
    assert (events[-1].count, events[-1].limit) == (5, "")


def test_a_refusal_that_time_ends_exhausts_nothing() -> None:
    """Nor does one of which the window is not known; a key that hits its team's limit is named."""
    case = Case()
    case.refuse(counter(), "rate")
    case.refuse(counter(), "exhausted", RefSet("acme", ()))
    assert case.noted.entries == []
    case.refuse(counter(TEAM))
    assert (case.noted.entries[0].subject, case.noted.entries[0].key_id) == ("acme/team", "acme/team/@k")


def test_a_window_that_was_told_of_ends_once() -> None:
    """Case 24: under the window's name, so that nothing has to be cleared. Nothing is used of the next one."""
    case, limit = Case(), counter()
    case.mark(limit, 0)
    case.mark(limit, 1)
    case.now_ms = MONTH_ENDS_MS - 1
    case.alarms.look()
    assert len(case.noted.entries) == 2
    case.now_ms = MONTH_ENDS_MS
    case.alarms.look()
    case.alarms.look()
    [*_, reset] = case.noted.entries
    assert len(case.noted.entries) == 3
    assert (reset.action, reset.once, reset.used, reset.percent) == ("budget.reset", f"budget.reset {limit.key_prefix}:2025-11", 0, 0)
    assert (reset.limit, reset.amount, reset.time_ms) == ("key k usd/month", 5 * 10**9, MONTH_ENDS_MS)


def test_a_lifetime_does_not_end() -> None:
    """It has been told of for ever."""
    case = Case()
    case.mark(group("acme", KEY, [parse({"amount": 5, "unit": "usd", "per": "lifetime", "warn_at": [0.8]})])[0], 0)
    case.now_ms *= 2
    case.alarms.look()
    assert [entry.action for entry in case.noted.entries] == ["budget.warning"]


async def test_windows_are_remembered_over_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was told of before is found in the records, as soon as these answer."""
    first, limit = Case(), counter()
    first.mark(limit, 0)
    store = Store(None)
    case = Case(store)
    case.now_ms = MONTH_ENDS_MS
    turns = iter(range(3))

    async def sleep(_: float) -> None:
        if next(turns) == 1:
            assert case.noted.entries == []  # the records were away
            store.found = first.noted.entries

    monkeypatch.setattr(alarms.asyncio, "sleep", sleep)
    with pytest.raises((StopIteration, RuntimeError)):
        await case.alarms.run()
    assert [entry.action for entry in case.noted.entries] == ["budget.reset"]


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest makes room; the records still know it as told."""
    monkeypatch.setattr(alarms, "WINDOWS_MAX", 2)
    case, limits = Case(), [counter(Scope(f"acme/@k{number}", "key", f"k{number}")) for number in range(3)]
    for limit in (*limits, *limits[1:]):
        case.refuse(limit)
    assert len(case.noted.entries) == 3
    case.refuse(limits[0])
    assert len(case.noted.entries) == 4


def test_breakers_cooldowns_and_probes_are_told() -> None:
    """A breaker with whose it is; a cooldown that this worker found, until when; not what is heard of cooldowns and probes of others."""
    case = Case()
    case.alarms.standing("mock/one", "breaker", "closed", "open", "5 failures in a row")
    case.alarms.standing("mock/one", "cooldown", "none", "cooling", "heard")
    case.alarms.standing("mock/one", "health", "healthy", "down", "heard")
    case.alarms.cooled("mock/one", 7.0, "429 rate_limit_exceeded")
    case.alarms.health("mock/one", "healthy", "down", "timeout")
    told = [(event.type, event.before, event.after, event.reason, event.worker, event.until) for event in case.noted.events]
    assert told == [
        ("breaker.changed", "closed", "open", "5 failures in a row", "w1", None),
        ("cooldown.changed", "", "cooling", "429 rate_limit_exceeded", "", "2025-11-30T14:59:57Z"),
        ("health.changed", "healthy", "down", "timeout", "", None),
    ]


def test_a_configuration_is_told_of_by_one_worker() -> None:
    """Every worker finds it; the entries of all have the same name."""
    one, two = Case(), Case()
    two.now_ms += 900
    for case in (one, two):
        case.alarms.configuration("sluicegate.yaml", "v1", "v2", ())
        case.alarms.configuration("sluicegate.yaml", "v2", "v3", ["a:1: models: is missing"])
    applied, refused = one.noted.entries
    assert [entry.once for entry in one.noted.entries] == [entry.once for entry in two.noted.entries]
    assert (applied.action, applied.before, applied.after) == ("config.reloaded", {"version": "v1"}, {"version": "v2"})
    assert (refused.action, refused.after) == ("config.refused", {"version": "v3", "problems": ["a:1: models: is missing"]})
