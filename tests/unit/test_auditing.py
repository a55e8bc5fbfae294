"""What a worker writes into the audit log: together, once, kept while the records are away, and told when it is written."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from sluicegate import auditing
from sluicegate.auditing import Auditing, new_event_id
from sluicegate.events import Event
from sluicegate.records import audit
from sluicegate.records.audit import Audit, Entry, Filter
from sluicegate.records.rows import RecordsUnavailable

NOW_MS = 1_764_514_790_000


class Flaky(Audit):
    """Does not answer while `away`; with `late`, has done what it was asked for nevertheless."""

    away = late = False

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.refused = asyncio.Event()

    async def call(self, work: Callable[..., Any], *, reading: bool = False) -> Any:
        if self.away and not self.late:
            self.refused.set()
            raise RecordsUnavailable("away")
        done = await super().call(work, reading=reading)
        if self.away:
            raise RecordsUnavailable("no answer")
        return done


class Case:
    """One worker, on a database that others may share."""

    def __init__(self, url: str, webhooks: tuple[str, ...] = ()) -> None:
        self.store = Flaky(url)
        self.told: list[dict[str, Any]] = []
        self.types: list[str] = []
        self.heard = asyncio.Event()
        self.wakes = 0
        self.auditing = Auditing(self.store, self.hear, self.types.append, lambda _: webhooks, lambda: NOW_MS)
        self.auditing.on_queued = self.woken

    def hear(self, _: str, data: dict[str, Any]) -> None:
        self.told.append(data)
        self.heard.set()

    def woken(self) -> None:
        self.wakes += 1

    async def entries(self) -> list[str]:
        rows = await self.store.call(partial(audit.read, wanted=Filter(), limit=99), reading=True)
        return [f"{row.entry.event_id} {row.count}" for row in rows]

    async def queued(self) -> list[str]:
        rows = await self.store.call(partial(audit.take, now_ms=2 * NOW_MS, lease_ms=1, limit=99, webhooks=("hook",)))
        return [f"{row.webhook} {row.event_id}" for row in rows]


@pytest.fixture
def url(tmp_path: Any) -> str:
    return f"sqlite:///{tmp_path}/records.db"


def entry(number: int, once: str = "") -> Entry:
    return Entry(event_id=f"evt_{number}", time_ms=NOW_MS, action="key.created", subject="acme/@k", once=once)


async def test_what_is_noted_is_written_and_then_told(url: str) -> None:
    """On the bus, in the counts, and for webhooks; in the order in which it was noted."""
    case = Case(url, ("hook",))
    first: list[str] = []
    case.auditing.on_told = lambda entry: first.append(entry.event_id)
    for number in range(3):
        case.auditing.note(entry(number))
    assert case.told == []
    await case.auditing.flush()
    assert await case.entries() == ["evt_2 1", "evt_1 1", "evt_0 1"]
    assert [one["event_id"] for one in case.told] == first == ["evt_0", "evt_1", "evt_2"]
    assert case.types == ["key.created"] * 3
    assert await case.queued() == ["hook evt_0", "hook evt_1", "hook evt_2"]
    assert case.wakes
    await case.auditing.close(1)


async def test_of_two_workers_one_tells(url: str) -> None:
    """What is told once is told by whoever writes it first; webhooks get it once, and what happens again is counted."""
    cases = [Case(url, ("hook",)), Case(url, ("hook",))]
    for number, case in enumerate(cases):
        case.auditing.note(entry(number, "window"))
        case.auditing.count("window", 3)
    await asyncio.gather(*(case.auditing.flush() for case in cases))
    assert sorted(len(case.told) for case in cases) == [0, 1]
    assert [one.split()[1] for one in await cases[0].entries()] == ["6"]
    assert len(await cases[0].queued()) == 1
    for case in cases:
        await case.auditing.close(1)


@pytest.mark.parametrize("late", [False, True])
async def test_nothing_is_lost_or_told_twice_while_the_records_are_away(url: str, late: bool, logged: list[Any]) -> None:
    """Also where they had done what they did not confirm: it is written once, and told by the worker whose it is."""
    case = Case(url)
    case.auditing.note(entry(0))
    await case.auditing.flush()
    case.store.away, case.store.late = True, late
    case.auditing.note(entry(1, "window"))
    with pytest.raises(RecordsUnavailable):
        await case.auditing.flush()
    assert len(case.told) == 1
    case.store.away = False
    await case.auditing.flush()
    assert await case.entries() == ["evt_1 1", "evt_0 1"]
    assert [one["event_id"] for one in case.told] == ["evt_0", "evt_1"]
    await case.auditing.close(1)


async def test_what_waits_is_bounded(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest makes room while the records are away; a count goes on for what is counted already."""
    monkeypatch.setattr(auditing, "WAITING_MAX", 2)
    case = Case(url, ("hook",))
    for number in range(4):
        case.auditing.note(entry(number))
        case.auditing.send(Event(event_id=f"evt_{number}", type="request.refused", time=""))
        case.auditing.count(f"w{number % 3}", 1)
    await case.auditing.flush()
    assert await case.entries() == ["evt_3 1", "evt_2 1"]
    assert sorted(await case.queued()) == ["hook evt_2", "hook evt_2", "hook evt_3", "hook evt_3"]
    await case.auditing.close(1)


async def test_events_without_an_entry_are_told_at_once(url: str) -> None:
    """The records are not asked, unless a webhook wants them."""
    case = Case(url)
    case.store.away = True
    case.auditing.send(Event(event_id="evt_1", type="breaker.changed", time="now", subject="mock/one"))
    assert case.told == [{"event_id": "evt_1", "type": "breaker.changed", "time": "now", "subject": "mock/one"}]
    await case.auditing.flush()
    await case.auditing.close(1)


async def test_it_runs_by_itself_and_ends_with_everything_written(url: str, monkeypatch: pytest.MonkeyPatch, logged: list[Any]) -> None:
    """An outage is two lines in the log; what is noted last is written at the end."""
    monkeypatch.setattr(auditing, "GATHER_S", 0.0)
    monkeypatch.setattr(auditing, "RETRY_S", (0.0, 0.0))
    case = Case(url)
    task = asyncio.create_task(case.auditing.run())
    case.store.away = True
    case.auditing.note(entry(0))
    async with asyncio.timeout(30):
        await case.store.refused.wait()
        case.store.away = False
        await case.heard.wait()
    await asyncio.sleep(0)
    assert [(line["from"], line["to"]) for line in logged if line["event"] == "audit log state"] == [("up", "away"), ("away", "up")]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    case.auditing.note(entry(1))
    await case.auditing.close(1)
    other = Case(url)
    assert await other.entries() == ["evt_1 1", "evt_0 1"]
    await other.auditing.close(1)


def test_ids_are_their_own() -> None:
    """No two are alike."""
    assert len({new_event_id() for _ in range(100)}) == 100
