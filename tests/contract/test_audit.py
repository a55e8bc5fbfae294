"""The audit log, on SQLite and on a real PostgreSQL: only added to, told once, found again; and the queue of webhooks."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, text

from sluicegate.records import audit
from sluicegate.records.audit import Audit, Entry, Filter, Queued
from sluicegate.records.rows import RecordsUnavailable

NOW_MS = 1_764_514_790_000
HOOKS = ("hook",)


@pytest.fixture
async def store(records_url: str) -> AsyncIterator[Audit]:
    store = Audit(records_url)
    yield store
    await store.close()


def entry(number: int, action: str = "key.created", **fields: Any) -> Entry:
    return Entry(event_id=f"evt_{number}", time_ms=NOW_MS + number, action=action, **fields)


async def write(store: Audit, *entries: Entry) -> list[bool]:
    return [await store.call(partial(audit.write, entry=one)) for one in entries]


async def found(store: Audit, limit: int = 100, before_id: int = 0, **wanted: Any) -> list[str]:
    """The ids of events, without what all have."""
    rows = await store.call(partial(audit.read, wanted=Filter(**wanted), limit=limit, before_id=before_id), reading=True)
    return [row.entry.event_id.removeprefix("evt_") for row in rows]


async def test_an_entry_comes_back_as_it_was(store: Audit) -> None:
    """With every field, whatever is in it; one that is told each time has its event's id for what it is known by."""
    whole = entry(
        1,
        actor="ops",
        address="::1",
        subject="acme/@k",
        before=None,
        after={"limits": ["$5/day"], "ü": [1.5, None, True]},
        tenant="acme",
        key_id="acme/@k",
        limit="key k usd/day",
        unit="usd",
        window="day",
        amount=5 * 10**9,
        percent=80,
        used=2**51,
        held=1,
        requested=2,
        resets_ms=NOW_MS,
        reason="%_'",
        request_id="req_1",
        path="POST /admin/v1/keys",
        once="a b",
    )
    assert await write(store, whole, entry(2)) == [True, True]
    rows = await store.call(partial(audit.read, wanted=Filter(), limit=9), reading=True)
    assert [(row.entry, row.count) for row in rows] == [(entry(2, once="evt_2"), 1), (whole, 1)]


async def test_no_secret_is_kept(store: Audit) -> None:
    """Neither what is called like one nor what looks like one, however deep; the last four characters and names that only sound alike stay."""
    after = {
        "secret": "s3cr3t",
        "keys": [{"sha256": "ab" * 32, "last4": "1234"}, {"api_key": "x", "password": ""}],
        "note": "was sk-abcdefghijklmnopqrstuvwx",
        "max_tokens": 5,
        "token": None,
    }
    await write(store, entry(1, after=after))
    [row] = await store.call(partial(audit.read, wanted=Filter(), limit=9), reading=True)
    assert row.entry.after == {
        "secret": "***",
        "keys": [{"sha256": "***", "last4": "1234"}, {"api_key": "***", "password": ""}],
        "note": "was [API_KEY]",
        "max_tokens": 5,
        "token": None,
    }


async def test_what_is_told_once_is_written_by_the_first(store: Audit, records_url: str) -> None:
    """Of two workers at the same time one is told that it was; the same entry again, as after an answer that was lost, is still the first."""
    other = Audit(records_url)
    both = [partial(audit.write, entry=entry(number, "budget.exceeded", once="budget.exceeded c:2026-11")) for number in (1, 2)]
    told = await asyncio.gather(store.call(both[0]), other.call(both[1]))
    await other.close()
    assert sorted(told) == [False, True]
    assert [await store.call(work) for work in both] == told
    assert await found(store) == ["1" if told[0] else "2"]


async def test_what_happens_again_is_counted(store: Audit) -> None:
    """Beside the entry, by all workers together."""
    await write(store, entry(1, "budget.exceeded", once="a"), entry(2, "budget.exceeded", once="b"))
    for counts in ({"a": 3, "b": 1}, {"a": 2}):
        await store.call(partial(audit.count, counts=counts))
    rows = await store.call(partial(audit.read, wanted=Filter(), limit=9), reading=True)
    assert [(row.entry.once, row.count) for row in rows] == [("b", 1), ("a", 5)]


@pytest.mark.parametrize("statement", ["UPDATE audit_log SET actor = 'nobody'", "DELETE FROM audit_log"])
async def test_the_log_is_only_added_to(store: Audit, statement: str) -> None:
    """The database itself refuses to change or delete an entry."""
    await write(store, entry(1, actor="ops"))

    def change(connection: Connection) -> None:
        connection.execute(text(statement))

    with pytest.raises(RecordsUnavailable, match="only added to"):
        await store.call(change)
    assert await found(store, actor="ops") == ["1"]


async def test_an_entry_and_its_change_are_there_together(store: Audit) -> None:
    """A change that fails leaves no entry."""

    def fails(connection: Connection) -> None:
        audit.write(connection, entry(1))
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await store.call(fails)
    assert await found(store) == []


async def test_entries_are_found_by_what_they_are_about(store: Audit) -> None:
    """All that is asked for must fit; a group of actions by its beginning, a tenant with all below it and nothing beside it."""
    await write(
        store,
        entry(1, "key.created", actor="ops", subject="acme/@k", tenant="acme"),
        entry(2, "key.deleted", actor="eve", subject="acme/team/@k", tenant="acme/team"),
        entry(3, "keys.other", actor="ops", subject="acme-2/@k", tenant="acme-2"),
        entry(4, "tenant.created", actor="ops", subject="acme_team", tenant="acme_team"),
    )
    assert await found(store) == ["4", "3", "2", "1"]
    assert await found(store, action="key.created") == ["1"]
    assert await found(store, action="key.") == ["2", "1"]
    assert await found(store, actor="ops", action="key.") == ["1"]
    assert await found(store, subject="acme/team/@k") == ["2"]
    assert await found(store, tenant="acme") == ["2", "1"]
    assert await found(store, since_ms=NOW_MS + 2, until_ms=NOW_MS + 4) == ["3", "2"]


async def test_entries_come_in_pages(store: Audit) -> None:
    """The newest first, each once."""
    await write(store, *(entry(number) for number in range(5)))
    first = await store.call(partial(audit.read, wanted=Filter(), limit=2), reading=True)
    assert [row.entry.event_id for row in first] == ["evt_4", "evt_3"]
    assert await found(store, limit=9, before_id=first[-1].id) == ["2", "1", "0"]


async def test_windows_that_were_told_of_are_found_again(store: Audit) -> None:
    """Those of budgets that end after a moment, the first to end first."""
    await write(
        store,
        entry(1, "budget.warning", once="a", resets_ms=NOW_MS + 9),
        entry(2, "budget.exceeded", once="b", resets_ms=NOW_MS + 5),
        entry(3, "budget.exceeded", once="c", resets_ms=NOW_MS - 5),
        entry(4, "budget.exceeded", once="d"),
        entry(5, "budget.reset", once="e", resets_ms=NOW_MS + 5),
    )
    assert [one.event_id for one in await store.call(partial(audit.windows, since_ms=NOW_MS, limit=9))] == ["evt_2", "evt_1"]


async def test_what_is_queued_is_taken_by_one(store: Audit, records_url: str) -> None:
    """Two workers at the same time get different rows; what is taken is due again when its lease is over, and counts the tries."""
    other = Audit(records_url)
    await store.call(partial(audit.queue, rows=[Queued("hook", f"evt_{number}", "{}", NOW_MS) for number in range(4)]))
    assert not await store.call(partial(audit.any_due, now_ms=NOW_MS - 1, webhooks=HOOKS))
    assert await store.call(partial(audit.any_due, now_ms=NOW_MS, webhooks=HOOKS))
    take = partial(audit.take, now_ms=NOW_MS, lease_ms=1_000, limit=3, webhooks=HOOKS)
    one, two = await asyncio.gather(store.call(take), other.call(take))
    await other.close()
    assert sorted(row.event_id for row in (*one, *two)) == [f"evt_{number}" for number in range(4)]
    assert await store.call(take) == []
    again = await store.call(partial(audit.take, now_ms=NOW_MS + 1_000, lease_ms=1_000, limit=9, webhooks=HOOKS))
    assert [row.tries for row in again] == [2] * 4
    await store.call(partial(audit.done, id=again[0].id))
    await store.call(partial(audit.put_off, id=again[1].id, due_ms=NOW_MS + 9_000))
    left = await store.call(partial(audit.take, now_ms=NOW_MS + 5_000, lease_ms=1_000, limit=9, webhooks=HOOKS))
    assert {row.id for row in left} == {row.id for row in again[2:]}


async def test_webhooks_have_queues_of_their_own(store: Audit) -> None:
    """What is for one is not taken with what is for another; what is for those that are not known, with nothing else."""
    for hook in ("a", "b", "gone"):
        await store.call(partial(audit.queue, rows=[Queued(hook, f"evt_{hook}", "{}", NOW_MS)]))
    take = partial(audit.take, now_ms=NOW_MS, lease_ms=1_000, limit=9)
    assert not await store.call(partial(audit.any_due, now_ms=NOW_MS, webhooks=("a", "b", "gone"), others=True))
    assert [row.event_id for row in await store.call(partial(take, webhooks=("b",)))] == ["evt_b"]
    assert [row.event_id for row in await store.call(partial(take, webhooks=("a", "b"), others=True))] == ["evt_gone"]
    assert [row.event_id for row in await store.call(partial(take, webhooks=("a",)))] == ["evt_a"]
