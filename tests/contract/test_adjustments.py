"""What operators add to the use of a limit, on SQLite and on a real PostgreSQL: once, in an epoch, and in every sum of that limit alone."""

import asyncio
from functools import partial
from threading import Event
from typing import Any

import pytest
from sqlalchemy import Connection

from sluicegate.core.limits import Unit
from sluicegate.records import adjustments
from sluicegate.records.adjustments import Adjustment, Moved, NotOpen, Standing
from sluicegate.records.rows import Sum
from sluicegate.records.store import Records
from support_postgres import fresh, until_waited_for
from support_records import SECOND, opened, used

NOW_MS = SECOND * 1000


def adjustment(id: str, amount: int, **fields: Any) -> Adjustment:
    return Adjustment(**({"id": id, "counter": "acme:tokens:day", "amount": amount, "at_ms": NOW_MS, "tree": "acme", "epoch": "e1"} | fields))


def question(counter: str, scope: str = "acme", end_ms: int = 0) -> Sum:
    return Sum(scope, False, None, Unit.TOKENS, NOW_MS - 1000, end_ms, 0, counter)


async def make(records: Records, row: Adjustment) -> tuple[Adjustment, bool]:
    before = await standing(records, row.counter)
    return await records._database.call(partial(adjustments.make, row=row, before=before))


async def standing(records: Records, counter: str, epoch: str = "e1") -> Standing:
    return await records._database.call(partial(adjustments.standing, counter=counter, epoch=epoch, start_ms=NOW_MS))


async def test_a_limit_s_sums_have_its_adjustments(records_url: str) -> None:
    """In the window of their time, and never below nothing; neither the scope above nor another limit of the same scope has them."""
    async with opened(records_url) as records:
        await records.beat("w", 1, 0, "server", {"acme": ("e1", 5)})
        await records.add("w", 1, [used()])
        assert (await make(records, adjustment("a", 12)))[1] and (await make(records, adjustment("b", -2)))[1]
        questions = [question("acme:tokens:day"), question("acme:tokens:month"), question("acme:tokens:day", end_ms=NOW_MS), question("")]
        assert await records.sums(questions) == [40, 30, 0, 30]
        await make(records, adjustment("c", -100))
        assert await records.sums(questions[:1]) == [0]


async def test_an_adjustment_is_made_once(records_url: str) -> None:
    """By its id: whoever asks again gets the first one, whatever has become of the tree."""
    async with opened(records_url) as records:
        await records.beat("w", 1, 0, "server", {"acme": ("e1", 5)})
        assert await make(records, adjustment("a", 12, reason="x")) == (adjustment("a", 12, reason="x"), True)
        await records.declare_lost("acme", "e1")
        assert await make(records, adjustment("a", 99)) == (adjustment("a", 12, reason="x"), False)
        await records._database.call(partial(adjustments.done, id="a"))
        assert (await make(records, adjustment("a", 99)))[0].applied == 1


@pytest.mark.parametrize("epoch", ["e1", "e2"])
async def test_a_tree_in_doubt_is_not_adjusted(records_url: str, epoch: str) -> None:
    """One that is lost, or in another epoch than the caller has seen: its ledger might have it twice, or never."""
    async with opened(records_url) as records:
        with pytest.raises(NotOpen):
            await make(records, adjustment("a", 1))
        await records.beat("w", 1, 0, "server", {"acme": ("e1", 5)})
        if epoch == "e1":
            await records.declare_lost("acme", "e1")
        with pytest.raises(NotOpen):
            await make(records, adjustment("a", 1, epoch=epoch))
        assert await records.sums([question("acme:tokens:day")]) == [0]


async def test_who_has_looked_before_another_adjusted_looks_again(records_url: str) -> None:
    """What the other takes counts as taken until the ledger has it, in that window and epoch alone; what is added may not be there yet."""
    async with opened(records_url) as records:
        await records.beat("w", 1, 0, "server", {"acme": ("e1", 5)})
        before = await standing(records, "acme:tokens:day")
        for row in (adjustment("a", -7), adjustment("b", 9), adjustment("c", -5, at_ms=NOW_MS - 1), adjustment("d", -3, counter="acme:usd:day")):
            await make(records, row)
        with pytest.raises(Moved):
            await records._database.call(partial(adjustments.make, row=adjustment("e", -1), before=before))
        assert await standing(records, "acme:tokens:day") == Standing(3, -7)
        assert await standing(records, "acme:tokens:day", "e2") == Standing(3, 0)
        await records._database.call(partial(adjustments.done, id="a"))
        assert await standing(records, "acme:tokens:day") == Standing(3, 0)
        assert await records._database.call(partial(adjustments.one, id="e")) is None


async def test_an_id_that_another_takes_at_the_same_time(postgres_url: str) -> None:
    """For a limit of another tree, so that neither waits before: one is made, the other looks again, and finds the first one."""
    url, begun = fresh(postgres_url), Event()
    async with opened(url) as one, opened(url) as two:
        await one.beat("w", 1, 0, "server", {"acme": ("e1", 5), "other": ("e1", 5)})
        first, second = adjustment("a", 12), adjustment("a", 7, counter="other:tokens:day", tree="other")

        def work(connection: Connection) -> tuple[Adjustment, bool]:
            made = adjustments.make(connection, first, Standing(0, 0))
            begun.set()
            until_waited_for(connection)
            return made

        making = asyncio.create_task(one._database.call(work))
        assert await asyncio.to_thread(begun.wait, 10)
        with pytest.raises(Moved):
            await make(two, second)
        assert await making == (first, True) and await make(two, second) == (first, False)
        assert await one.sums([question("acme:tokens:day"), question("other:tokens:day", "other")]) == [12, 0]


async def test_they_are_listed_in_pages(records_url: str) -> None:
    """The newest first, of one limit."""
    async with opened(records_url) as records:
        await records.beat("w", 1, 0, "server", {"acme": ("e1", 5)})
        for n in range(5):
            await make(records, adjustment(f"a{n}", 1, at_ms=NOW_MS + n // 2))
        await make(records, adjustment("other", 1, counter="acme:usd:day"))
        seen, after = list[str](), ""
        while page := await records._database.call(partial(adjustments.of_counter, counter="acme:tokens:day", after=after, limit=2)):
            seen += [row.id for row in page]
            after = seen[-1]
        assert seen == ["a4", "a3", "a2", "a1", "a0"]
