"""Sums of usage: the tables that answer for a span of time, exactly as far as seconds are kept and never below what was used, by way of indexes."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, select
from sqlalchemy.dialects import sqlite

from sluicegate.core.limits import Unit
from sluicegate.records.rows import Sum, UsageRow
from sluicegate.records.schema import DAY_S, QUARTER_S, SECONDS_KEPT_S, meta, usage
from sluicegate.records.store import Records
from sluicegate.records.sums import NEVER_S, above, query, spans
from support_records import SECOND, asked, opened, used


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/records.db"


# -- which table answers for which time -----------------------------------------------------------------------------------------------------

Q, D = QUARTER_S, DAY_S
SECONDS, QUARTERS, DAYS = "usage", "usage_quarters", "usage_days"


@pytest.mark.parametrize(
    ("start_s", "end_s", "slice_ms", "kept_from_s", "expected"),
    [
        (0, 0, 0, 0, [(DAYS, 0, NEVER_S)]),
        (10 * Q, 20 * Q, 0, 0, [(QUARTERS, 10 * Q, 20 * Q)]),
        (10 * Q + 1, 20 * Q + 2, 0, 0, [(SECONDS, 10 * Q + 1, 11 * Q), (QUARTERS, 11 * Q, 20 * Q), (SECONDS, 20 * Q, 20 * Q + 2)]),
        (10 * Q, 0, 0, 0, [(QUARTERS, 10 * Q, D), (DAYS, D, NEVER_S)]),
        (10 * Q, 3 * D + 5 * Q, 0, 0, [(QUARTERS, 10 * Q, D), (DAYS, D, 3 * D), (QUARTERS, 3 * D, 3 * D + 5 * Q)]),
        (D - 1, 3 * D + 1, 0, 0, [(SECONDS, D - 1, D), (DAYS, D, 3 * D), (SECONDS, 3 * D, 3 * D + 1)]),
        (10 * Q + 1, 10 * Q + 3, 0, 0, [(SECONDS, 10 * Q + 1, 10 * Q + 3)]),
        (10 * Q + 1, 11 * Q + 3, 0, 0, [(SECONDS, 10 * Q + 1, 11 * Q + 3)]),
        # the seconds are gone: whole quarters, from the one in which the span begins
        (10 * Q + 1, 0, 0, 11 * Q, [(QUARTERS, 10 * Q, D), (DAYS, D, NEVER_S)]),
        (10 * Q + 1, 20 * Q + 2, 0, 15 * Q, [(QUARTERS, 10 * Q, 20 * Q), (SECONDS, 20 * Q, 20 * Q + 2)]),
        (10 * Q + 1, 10 * Q + 3, 0, 15 * Q, [(QUARTERS, 10 * Q, 11 * Q)]),
        # slices shorter than a quarter, and longer ones
        (10 * Q, 0, 60_000, 10 * Q, [(SECONDS, 10 * Q, NEVER_S)]),
        (10 * Q + 1, 0, 60_000, 12 * Q, [(QUARTERS, 10 * Q, 12 * Q), (SECONDS, 12 * Q, NEVER_S)]),
        (10 * Q, 0, 224_999, 10 * Q, [(SECONDS, 10 * Q, NEVER_S)]),
        (10 * Q, 0, 225_000, 10 * Q, [(QUARTERS, 10 * Q, NEVER_S)]),
        # nothing at all
        (D, D, 0, 0, []),
    ],
)
def test_spans(start_s: int, end_s: int, slice_ms: int, kept_from_s: int, expected: list[tuple[str, int, int]]) -> None:
    """Days in the middle, quarters around them, seconds at the ends; each moment is covered once."""
    found = spans(asked(start_s=start_s, end_s=end_s, slice_ms=slice_ms), kept_from_s)
    assert [(table.name, from_s, to_s) for table, from_s, to_s in found] == expected


def test_times_within_a_second() -> None:
    """A span that begins or ends inside a second has all of it."""
    [(table, from_s, to_s)] = spans(Sum("*", False, None, Unit.USD, 5_999, 7_001), 0)
    assert (table.name, from_s, to_s) == ("usage", 5, 8)


def test_scopes_above_a_key() -> None:
    """Everything, each tenant on the way down, the key, and a sub-key below its key."""
    assert list(above("acme/team/@k/sub")) == ["*", "acme", "acme/team", "acme/team/@k", "acme/team/@k/sub"]


# -- exact ----------------------------------------------------------------------------------------------------------------------------------

KEYS = ["a/@k", "a/t/@k", "a/t/@k2", "b/@k"]
times = st.integers(SECOND - 2 * Q, SECOND + 2 * Q)
rows = st.builds(
    lambda time_s, key_id, model, deployment, amounts: UsageRow(key_id[0], time_s, key_id, model, deployment, *amounts),
    times,
    st.sampled_from(KEYS),
    st.sampled_from(["chat", "small"]),
    st.sampled_from(["up/one", "up/two"]),
    st.tuples(*[st.integers(0, 1000)] * 5),
)
questions = st.builds(
    lambda scope, unit, span, models, slice_ms: asked(
        scope, unit, min(span), max(span) if len(span) > 1 else 0, models=models, deployment=scope.startswith("up/"), slice_ms=slice_ms
    ),
    st.sampled_from(["*", "a", "a/t", "b", *KEYS, "up/one", "up/two"]),
    st.sampled_from([unit for unit in Unit if unit is not Unit.CONCURRENT]),
    st.sets(times, min_size=1, max_size=2),
    st.none() | st.frozensets(st.sampled_from(["chat", "small", "x"])),
    st.sampled_from([0, 0, 0, 500, 1_000, 1_667, 60_000]),
)


def by_hand(one: Sum, row: UsageRow) -> int:
    """What one row adds to one sum."""
    if one.models is not None and row.model not in one.models:
        return 0
    inside = row.deployment == one.scope_id if one.deployment else one.scope_id == "*" or f"{row.key_id}/".startswith(f"{one.scope_id}/")
    if not inside or row.time_s * 1000 < one.start_ms or (one.end_ms and row.time_s * 1000 >= one.end_ms):
        return 0
    requests = row.attempts if one.deployment else row.requests
    tokens = row.input_tokens, row.output_tokens
    return {"requests": requests, "input_tokens": tokens[0], "output_tokens": tokens[1], "tokens": sum(tokens), "usd": row.cost_nano_usd}[one.unit]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(rows, max_size=30), st.lists(questions, min_size=1, max_size=12))
async def test_sums_are_those_of_the_rows(tmp_path_factory: pytest.TempPathFactory, usage: list[UsageRow], sums: list[Sum]) -> None:
    """Whatever was used and whatever is asked, in one call or several, the answers are the sums by hand."""
    async with opened(f"sqlite:///{tmp_path_factory.mktemp('sums')}/records.db") as records:
        for line, start in enumerate(range(0, len(usage), 10), 1):
            await records.add("w", line, usage[start : start + 10])
        for one, found in zip(sums, await records.sums(sums), strict=True):
            if one.slice_ms:
                slices: dict[int, int] = {}
                for row in usage:
                    number = (row.time_s * 1000 + 999) // one.slice_ms
                    slices[number] = slices.get(number, 0) + by_hand(one, row)
                assert found == {number: amount for number, amount in slices.items() if amount}
            else:
                assert found == sum(by_hand(one, row) for row in usage)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(-400, 400), max_size=40), st.lists(st.tuples(st.integers(-400, 400), st.integers(-400, 401)), min_size=1))
async def test_days_and_quarters_are_those_of_the_rows(
    tmp_path_factory: pytest.TempPathFactory, times: list[int], asked_for: list[tuple[int, int]]
) -> None:
    """Over many days, in windows that begin and end with any quarter of an hour, although the seconds have gone."""
    async with opened(f"sqlite:///{tmp_path_factory.mktemp('sums')}/records.db") as records:
        for line, time in enumerate(times, 1):
            await records.add("w", line, [used(SECOND + time * Q + line)])
        found = await records.sums([asked("acme", Unit.REQUESTS, SECOND + start * Q, SECOND + end * Q) for start, end in asked_for])
        assert found == [sum(start <= time < end for time in times) for start, end in asked_for]


# -- how long seconds are kept --------------------------------------------------------------------------------------------------------------


async def kept_seconds(records: Records) -> tuple[int, list[int]]:
    """Since when they are whole, and those that there are."""

    def work(connection: Connection) -> tuple[int, list[int]]:
        seconds = connection.execute(select(usage.c.time_s).order_by(usage.c.time_s)).scalars()
        return connection.execute(select(meta.c.seconds_from_s)).scalar_one(), list(seconds)

    return await records._database.call(work)


async def test_seconds_are_dropped_when_no_day_needs_them(url: str) -> None:
    """Each later quarter drops what is older than 26 hours; sums of longer windows stay the same."""
    async with opened(url) as records:
        await records.add("w", 1, [used(SECOND + i * Q, requests=1) for i in range(120)])
        assert await kept_seconds(records) == (SECOND + 15 * Q, [SECOND + i * Q for i in range(1, 120)])  # a quarter's worth in each add
        assert await records.sums([asked(), asked(start_s=SECOND + 3 * Q)]) == [120, 117]
        for line in range(2, 16):
            await records.add("w", line, [used(SECOND + 119 * Q, requests=0)])
        assert await kept_seconds(records) == (SECOND + 15 * Q, [SECOND + i * Q for i in range(15, 120)])
        assert await records.sums([asked(), asked(start_s=SECOND + 3 * Q)]) == [120, 117]


async def test_seconds_stay_bounded(url: str) -> None:
    """Days of steady use: there are never more than 26 hours and a quarter of them."""
    async with opened(url) as records:
        for line in range(1, 300):
            await records.add("w", line, [used(SECOND + line * Q), used(SECOND + line * Q + 450)])
        _, seconds = await kept_seconds(records)
        assert len(seconds) <= 2 * (SECONDS_KEPT_S // Q + 2)
        assert await records.sums([asked()]) == [598]


async def test_a_long_window_that_begins_inside_a_quarter_counts_all_of_it(url: str) -> None:
    """Once its seconds are gone: more than was used, never less."""
    async with opened(url) as records:
        await records.add("w", 1, [used(SECOND, requests=1), used(SECOND + 300, requests=10), used(SECOND + 2 * Q, requests=100)])
        assert await records.sums([asked(start_s=SECOND + 300)]) == [110]
        await records.add("w", 2, [used(SECOND + 2 * DAY_S, requests=1000)])
        assert await records.sums([asked(start_s=SECOND + 300)]) == [1111]


async def test_late_rows_count(url: str) -> None:
    """A journal that is replayed days later: what it had is in the sums of its windows, also where seconds are no longer kept."""
    async with opened(url) as records:
        await records.add("w", 1, [used(SECOND + 3 * DAY_S, requests=1)])
        await records.add("late", 1, [used(SECOND + 30, requests=10)])
        await records.add("w", 2, [used(SECOND + 3 * DAY_S + Q, requests=100)])
        assert await records.sums([asked(), asked(start_s=SECOND + 60), asked(start_s=SECOND + Q)]) == [111, 111, 101]


# -- by way of indexes ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "index"),
    [
        (asked("acme"), "usage_of_tree (tree=? AND time_s>? AND time_s<?)"),
        (asked("up/small", deployment=True), "usage_of_deployment (deployment=? AND time_s>? AND time_s<?)"),
        (asked("*"), "PRIMARY KEY (time_s>? AND time_s<?)"),
    ],
)
async def test_sums_are_found_by_index(url: str, one: Sum, index: str) -> None:
    """A sum reads the rows of its tree, or deployment, and time alone."""
    statement = query(usage, one, {one.scope_id}, SECOND, SECOND + 60)
    compiled = str(statement.compile(dialect=sqlite.dialect(), compile_kwargs={"literal_binds": True}))
    async with opened(url) as records:
        plan = await records._database.call(lambda connection: connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {compiled}").all())
    assert any(index in step[-1] for step in plan), plan
