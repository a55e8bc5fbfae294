"""One row per request, whatever its lines were and however they came; what rows say and what is counted agree with the usage."""

import asyncio
import json
from typing import Any

import msgspec
import pytest
from sqlalchemy import Connection, select

from sluicegate.core.record import Attempt, Record, Spent
from sluicegate.core.request_ids import request_id
from sluicegate.records.requests import Line
from sluicegate.records.retention import Kept
from sluicegate.records.rows import UsageRow
from sluicegate.records.schema import DAY_S, request_shapes, requests, usage_days, usage_quarters
from sluicegate.records.store import Records
from support_records import SECOND, asked, opened, used

KEY = "acme/team/@lab"
ID = request_id(SECOND * 1000, "w", 1)


def record(request_id: str, **fields: Any) -> Record:
    known: dict[str, Any] = {"key_id": KEY, "model": "chat", "deployment": "up/small", "status": 200, "latency_us": 3_000}
    return Record(request_id, fields.pop("time_ms", SECOND * 1000), **(known | fields))


def spent(input_tokens: int = 10, output_tokens: int = 20, cost: int = 5, *, deployment: str = "up/small", at_s: int = SECOND) -> Spent:
    return Spent(KEY, "chat", deployment, at_s * 1000, 1, 1, input_tokens, output_tokens, cost)


def line(hold_id: str, one: Record | None, charged: Spent | None = None) -> Line:
    return "acme", hold_id, one, charged


async def rows(records: Records) -> list[dict[str, Any]]:
    def work(connection: Connection) -> list[dict[str, Any]]:
        return [dict(row._mapping) for row in connection.execute(select(requests).order_by(requests.c.request_id))]

    return await records._database.call(work)


async def counted(records: Records, *names: str, days: bool = False) -> list[int]:
    """Sums of columns of the quarters, or of the days."""
    table = usage_days if days else usage_quarters

    def work(connection: Connection) -> list[int]:
        found = connection.execute(select(*(table.c[name] for name in names))).all()
        return [sum(row[i] for row in found) for i in range(len(names))]

    return await records._database.call(work)


async def test_a_row_says_all_that_the_record_says(records_url: str) -> None:
    """Each column has its field; the tenant's path and the provider are told apart."""
    attempts = (Attempt("up/big", "429", 5), Attempt("up/small", "200", 7))
    one = record(
        "r1",
        attempts=attempts,
        dialect="openai_chat",
        stream=True,
        finish="stop",
        truncated="budget",
        input_tokens=10,
        output_tokens=20,
        cached_tokens=3,
        cache_write_tokens=2,
        reasoning_tokens=4,
        cost_nano_usd=5,
        source="reported",
        held=64,
        latency_us=9_000,
        first_byte_us=4_000,
        overhead_us=300,
        waited_us=100,
        client_gone=True,
        client_user="ann",
        tags="app=x",
        client_id="theirs",
        shadow="soft",
        saved_nano_usd=7,
        rules="no-cards",
        trace_id="0af7",
    )
    async with opened(records_url) as records:
        await records.add("w", 1, [used()], lines=[line("r1.1", one, spent())])
        [row] = await rows(records)
    assert [attempt["deployment"] for attempt in json.loads(row.pop("attempts"))] == ["up/big", "up/small"]
    assert row == {
        **{"request_id": "r1", "time_ms": SECOND * 1000, "tree": "acme", "tenant": "acme/team", "key_id": KEY, "model": "chat"},
        **{"deployment": "up/small", "provider": "up", "dialect": "openai_chat", "stream": 1, "status": 200, "finish": "stop", "refusal": ""},
        **{"truncated": "budget", "error": "", "tries": 2, "fell_back": 1},
        **{"input_tokens": 10, "cached_tokens": 3, "cache_write_tokens": 2, "output_tokens": 20},
        **{"reasoning_tokens": 4, "source": "reported", "cost_nano_usd": 5, "cost_source": "", "cache": "", "held": 64, "latency_us": 9_000},
        **{"first_byte_us": 4_000, "overhead_us": 300, "waited_us": 100, "client_gone": 1, "client_user": "ann", "tags": "app=x"},
        **{"client_id": "theirs", "shadow": "soft", "saved_nano_usd": 7, "rules": "no-cards", "trace_id": "0af7", "ended": 1},
        **{"outcome": "", "billed": "", "failure": "", "called_us": 0},
    }


SOLE = Attempt("up/small", "200", 7, "yes", 0, "odd", 5, 10, 20)


@pytest.mark.parametrize("attempts", [(), (SOLE,), (msgspec.structs.replace(SOLE, wait_us=9),), (SOLE, SOLE)], ids=["none", "one", "waited", "two"])
async def test_attempts_are_told_as_they_were(records_url: str, attempts: tuple[Attempt, ...]) -> None:
    """A single one is not written, and told from the rest of its row all the same."""
    async with opened(records_url) as records:
        await records.add("w", 1, [], lines=[line(f"{ID}.1", record(ID, attempts=attempts), spent())])
        row = await records.request(ID)
        assert row is not None
        assert json.loads(row["attempts"]) == msgspec.to_builtins(list(attempts))
        assert row["tries"] == len(attempts)


async def test_a_shape_is_written_once(records_url: str) -> None:
    """Whoever writes it, and however many requests have it."""
    async with opened(records_url) as one, opened(records_url) as two:
        for number, records in enumerate((one, two, one), 1):
            ids = [request_id(SECOND * 1000 + i, f"w{number}", i) for i in range(3)]
            await records.add(f"w{number}", 1, [], lines=[line(f"{id}.1", record(id), spent(input_tokens=i)) for i, id in enumerate(ids)])
        shapes = await one._database.call(lambda connection: connection.execute(select(request_shapes)).all())
        assert (len(shapes), len(await rows(one))) == (1, 9)


async def test_what_became_of_requests_is_counted(records_url: str) -> None:
    """Refused, answered 429, failed, answered by another deployment, by the cache: in quarters and in days, each where it belongs."""
    lines = [
        line("r1", record("r1"), spent()),
        line("r2", record("r2", status=429, refusal="rate", error="rate_limit_exceeded")),
        line("r3", record("r3", status=402, refusal="exhausted", error="budget_exceeded")),
        line("r4", record("r4", status=429, error="upstream_rate_limited")),
        line("r5", record("r5", attempts=(Attempt("up/big", "500"), Attempt("up/small", "200")), cached_tokens=7)),
        line("r6", record("r6", cache="hit", latency_us=2_000_000_000)),
        line("r7", record("r7", status=404, model="made up", error="model_not_found", deployment="")),
    ]
    names = ("records", "refused", "throttled", "errors", "fallbacks", "cache_hits", "answers", "cached_tokens", "latency_3", "latency_more")
    async with opened(records_url) as records:
        await records.add("w", 7, [used()], lines=lines)
        for days in (False, True):
            assert await counted(records, *names, days=days) == [7, 2, 2, 2, 1, 1, 3, 7, 2, 1]
        assert [row["model"] for row in await rows(records)][-1] == "made up"
        assert await records.sums([asked()]) == [1]

        def models(connection: Connection) -> set[str]:
            return set(connection.execute(select(usage_days.c.model)).scalars())

        assert await records._database.call(models) == {"chat", ""}


async def test_attempts_of_a_request_are_one_row(records_url: str) -> None:
    """Two were billed, in one batch or in two: their charges add up, and the end of the request is told once."""
    async with opened(records_url) as records:
        for number in (1, 2):
            id = request_id(SECOND * 1000, "w", number)
            first = line(f"{id}.1", None, spent(1, 2, 3, deployment="up/big", at_s=SECOND + 2))
            last = line(f"{id}.2", record(id, input_tokens=11), spent(10, 20, 5, at_s=SECOND + 3))
            for seq, batch in enumerate([[first, last]] if number == 1 else [[first], [last]], 1):
                await records.add(f"w{number}", seq, [], lines=batch)
                await records.add(f"w{number}", seq, [], lines=batch)  # is in already
            row = await records.request(id)
            assert row is not None
            assert [row[name] for name in ("input_tokens", "output_tokens", "cost_nano_usd", "ended", "status")] == [11, 22, 8, 1, 200]
        assert len(await rows(records)) == 2
        assert await counted(records, "records", "answers") == [2, 2]


async def test_a_request_that_is_under_way_has_a_row_of_what_it_was_charged(records_url: str) -> None:
    """Its worker may die before it ends: nothing that was charged is missing."""
    async with opened(records_url) as records:
        await records.add("w", 1, [], lines=[line("r.1", None, spent(1, 2, 3, deployment="up/big"))])
        [row] = await rows(records)
        assert [row[name] for name in ("key_id", "deployment", "time_ms", "input_tokens", "ended", "status")] == [
            KEY,
            "up/big",
            SECOND * 1000,
            1,
            0,
            0,
        ]
        assert await counted(records, "records") == [0]


@pytest.mark.parametrize("late", [True, False], ids=["the end comes late", "the end was there"])
async def test_a_request_given_up_for_dead_that_ends_counts_once(records_url: str, late: bool) -> None:
    """Whoever charged its hold has written it as expired, with all that was held; then it is told what it really used, in any order."""
    later_ms = SECOND * 1000 + 1_000_000
    expired = line(f"{ID}.1", record(ID, time_ms=later_ms, status=0, error="expired", latency_us=0), spent(10, 50, 60))
    ended = line(f"{ID}.1", record(ID), spent(10, 20, 5))
    corrected = line(f"{ID}.1", None, Spent(KEY, "chat", "up/small", later_ms, -1, -1, -10, -50, -60))
    async with opened(records_url) as records:
        for writer, told in (("a", expired), ("b", ended)) if late else (("b", ended), ("a", expired)):
            await records.add(writer, 1, [], lines=[told])
        await records.add("a", 2, [], lines=[corrected])
        [row] = await rows(records)
        told = [row[name] for name in ("input_tokens", "output_tokens", "cost_nano_usd", "status", "error", "time_ms")]
        assert told == [10, 20, 5, 200, "", SECOND * 1000]
        assert await counted(records, "records", "errors", "answers", "latency_3") == [1, 0, 1, 1]


async def test_texts_that_a_database_would_not_take(records_url: str) -> None:
    """What upstreams and clients make up is stored without what is no text, and cut: it stops no batch."""
    odd = "a\x00b\ud800c\n" + "x" * 5_000
    async with opened(records_url) as records:
        await records.add("w", 1, [], lines=[line("r", record("r", model=odd, finish=odd, error=odd))])
        [row] = await rows(records)
    assert {row[name] for name in ("model", "finish", "error")} == {"a?b?c?" + "x" * 194}


async def test_workers_that_write_about_the_same_request(records_url: str) -> None:
    """At once: one of them has to look again, none fails."""
    async with opened(records_url) as one, opened(records_url) as two:
        for number in range(1, 9):
            expired = line(f"r{number}", record(f"r{number}", status=0, error="expired"), spent(1, 1, 1))
            ended = line(f"r{number}", record(f"r{number}"), spent(1, 1, 1))
            await asyncio.gather(one.add("a", number, [], lines=[expired]), two.add("b", number, [], lines=[ended]))
        assert [(row["error"], row["input_tokens"]) for row in await rows(one)] == [("", 2)] * 8
        assert await counted(one, "records", "errors") == [8, 0]


async def test_rows_and_quarters_go_when_their_time_is_over(records_url: str) -> None:
    """Days stay, and sums of windows that begin with a day; one that begins within a day has all of it: more than was used, never less."""
    records = Records(records_url, 20.0, Kept(requests_s=2 * DAY_S, quarters_s=40 * DAY_S))
    try:
        for day in (0, 1, 39, 41, 42):
            at_s = SECOND + day * DAY_S
            told = line(f"r{day}", record(f"r{day}", time_ms=at_s * 1000, finish=f"day {day}"), spent(at_s=at_s))
            await records.add("w", day + 1, [UsageRow("acme", at_s, KEY, "chat", "up/small", 1, 1, 10, 20, 5)], lines=[told])
        await records.add("w", 50, [used(SECOND + 42 * DAY_S + 900, requests=0)])
        assert [row["request_id"] for row in await rows(records)] == ["r41", "r42"]
        shapes = select(request_shapes.c.finish)
        assert set(await records._database.call(lambda connection: connection.execute(shapes).scalars().all())) == {"day 41", "day 42"}
        assert await records.sums([asked(), asked(start_s=SECOND + 900), asked(start_s=SECOND + DAY_S), asked(start_s=SECOND + 39 * DAY_S)]) == [
            5,
            5,
            4,
            3,
        ]
        assert await counted(records, "records") == [3]
        assert await counted(records, "records", days=True) == [5]
    finally:
        await records.close()
