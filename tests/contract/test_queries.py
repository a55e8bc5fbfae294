"""Questions about usage: whatever is grouped by and filtered, the answers are those of the requests one by one, and totals are the ledger's."""

import random
from collections import defaultdict
from datetime import datetime
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import Connection, delete, event, update

import records as bench
from sluicegate.core.limits import Unit
from sluicegate.core.record import Attempt, Record, Spent
from sluicegate.records import queries, rollups
from sluicegate.records.figures import BOUNDS_US, quantile_us
from sluicegate.records.queries import Figures, Question, Sums
from sluicegate.records.requests import Line
from sluicegate.records.rows import UsageRow
from sluicegate.records.schema import DAY_S, meta, usage, usage_days, usage_quarters
from sluicegate.records.store import Records
from support_postgres import fresh
from support_records import asked, opened

DAY = 1_800_057_600  # a full day in UTC
KEYS = ("acme/team/@lab", "acme/team/@lab/sub", "acme/team2/@lab", "acme/@root", "other/@k")
USERS = ("", "ann", "bob")
TAGS = ("", "app=x", "app=x,env=prod", "app=xy")


def made(number: int, seed: int = 7) -> list[Record]:
    """Requests of four days, of every kind."""
    chance = random.Random(seed)
    found = []
    for i in range(number):
        model, deployments = chance.choice([("chat", ("up/big", "down/small")), ("small", ("up/small",))])
        kind = chance.choice(["ok", "ok", "ok", "refused", "failed", "fallback"])
        tried = deployments if kind == "fallback" else () if kind == "refused" else (chance.choice(deployments),)
        answered = kind in ("ok", "fallback")
        amounts = [chance.randrange(1, 1_000) if tried else 0 for _ in range(3)]
        found.append(
            Record(
                f"r{i}",
                DAY * 1000 + chance.randrange(4 * DAY_S * 1000),
                chance.choice(KEYS),
                model,
                tried[-1] if tried else "",
                tuple(Attempt(deployment, "200") for deployment in tried),
                status=200 if answered else 429 if kind == "refused" else 502,
                refusal="rate" if kind == "refused" else "",
                error="" if answered else kind,
                input_tokens=amounts[0],
                output_tokens=amounts[1],
                cached_tokens=amounts[0] // 2,
                cost_nano_usd=amounts[2],
                latency_us=chance.randrange(500, 5_000_000),
                cache=chance.choice(["", "hit"]) if answered else "",
                client_user=chance.choice(USERS),
                tags=chance.choice(TAGS),
            )
        )
    return found


async def write(records: Records, requests: list[Record]) -> None:
    """As workers do."""
    rows, lines = [], list[Line]()
    for one in requests:
        spent = None
        tree = one.key_id.partition("/")[0]
        if one.attempts:
            amounts = 1, len(one.attempts), one.input_tokens, one.output_tokens, one.cost_nano_usd
            spent = Spent(one.key_id, one.model, one.deployment, one.time_ms, *amounts)
            rows.append(UsageRow(tree, one.time_ms // 1000, one.key_id, one.model, one.deployment, *amounts))
        lines.append((tree, one.request_id, one, spent))
    await records.add("w", 1, rows, lines=lines)


@pytest.fixture
async def records(records_url: str) -> Any:
    async with opened(records_url) as records:
        await write(records, REQUESTS)
        yield records


REQUESTS = made(623)  # a few more than go in at once


def group(one: Record, names: tuple[str, ...]) -> tuple[str, ...]:
    sums = Sums(names)
    sums.add_record(one)
    return tuple(sums.usage().groups[0].group.values())


def fits(one: Record, filters: dict[str, list[str]]) -> bool:
    for name, values in filters.items():
        if name == "tenant":
            if not any(one.key_id.startswith(value + "/") for value in values):
                return False
        elif group(one, (name,))[0] not in values:
            return False
    return True


def by_hand(names: tuple[str, ...], filters: dict[str, list[str]], start_s: int, end_s: int) -> dict[tuple[str, ...], dict[str, int]]:
    found: dict[tuple[str, ...], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for one in REQUESTS:
        if fits(one, filters) and start_s * 1000 <= one.time_ms and (not end_s or one.time_ms < end_s * 1000):
            into = found[group(one, names)]
            into["requests"] += 1
            into["throttled"] += one.status == 429
            into["refused"] += one.refusal != ""
            into["errors"] += one.status == 502
            into["fallbacks"] += len(one.attempts) > 1
            into["cache_hits"] += one.cache == "hit"
            into["answers"] += one.status == 200
            into["counted"] += len(one.attempts) > 0
            into["attempts"] += len(one.attempts)
            for name in ("input_tokens", "output_tokens", "cached_tokens", "cost_nano_usd"):
                into[name] += getattr(one, name)
    return found


QUESTIONS: list[tuple[tuple[str, ...], dict[str, list[str]], int, int]] = [
    ((), {}, 0, 0),
    (("tenant", "model"), {}, 0, 0),
    (("key",), {}, DAY + DAY_S, DAY + 3 * DAY_S),
    (("provider", "day"), {"tenant": ["acme"]}, DAY + 900, DAY + 2 * DAY_S + 4 * 900),
    (("hour",), {"key": ["acme/team/@lab"]}, DAY, DAY + DAY_S),
    (("deployment",), {"model": ["chat"], "provider": ["up", "down"], "tenant": ["acme/team"]}, 0, 0),
    (("day",), {"tenant": ["acme/team", "other"], "deployment": ["up/big"]}, 0, 0),
    (("label",), {}, 0, 0),
    (("label", "tenant", "hour"), {"label": ["ann", "bob"], "model": ["chat"]}, DAY + 5, DAY + DAY_S + 7),
    (("tag:app",), {"provider": ["up"]}, 0, 0),
    (("tag:env", "model"), {"tag:app": ["x"], "tenant": ["acme"]}, 0, 0),
    (("model",), {"tenant": ["nobody"]}, 0, 0),
]


@pytest.mark.parametrize(("names", "filters", "start_s", "end_s"), QUESTIONS, ids=[f"{i}" for i in range(len(QUESTIONS))])
async def test_answers_are_those_of_the_requests(
    records: Records, names: tuple[str, ...], filters: dict[str, list[str]], start_s: int, end_s: int
) -> None:
    """By any names, with filters that must all fit, from and until any quarter of an hour, whichever table they come from."""
    usage = await records.usage(Question(names, filters, start_s * 1000, end_s * 1000), 1_000)
    wanted = by_hand(names, filters, start_s, end_s)
    found = {tuple(one.group.values()): {name: getattr(one.figures, name) for name in wanted[tuple(one.group.values())]} for one in usage.groups}
    assert found == {place: dict(figures) for place, figures in wanted.items()}
    for name in ("requests", "input_tokens", "cost_nano_usd"):
        assert getattr(usage.total, name) == sum(figures[name] for figures in wanted.values())


@pytest.mark.parametrize("names", [("day",), ("hour", "model"), ("day", "label")])
@pytest.mark.parametrize("zone", ["Europe/Berlin", "Asia/Kathmandu", "America/New_York"])
async def test_days_and_hours_of_a_zone(records: Records, zone: str, names: tuple[str, ...]) -> None:
    """Those that clocks show there, whether sums or rows are asked; totals are the same everywhere."""
    found = await records.usage(Question(names, {"tenant": ["acme"]}, (DAY + 900) * 1000, 0, zone), 1_000)
    wanted: dict[tuple[str, ...], int] = defaultdict(int)
    for one in REQUESTS:
        if fits(one, {"tenant": ["acme"]}) and one.time_ms >= (DAY + 900) * 1000:
            there = datetime.fromtimestamp(one.time_ms // 1000, ZoneInfo(zone))
            form = {"day": f"{there:%Y-%m-%d}", "hour": f"{there:%Y-%m-%dT%H}", "model": one.model, "label": one.client_user}
            wanted[tuple(form[name] for name in names)] += one.input_tokens
    assert {tuple(one.group.values()): one.figures.input_tokens for one in found.groups} == wanted


@pytest.mark.parametrize(("start_s", "end_s", "covered"), [(900, DAY_S + 900, (0, 2)), (DAY_S, 2 * DAY_S, (1, 2)), (900, 3 * DAY_S + 900, (0, 3))])
async def test_of_times_before_the_quarters_whole_days_are_told(records: Records, start_s: int, end_s: int, covered: tuple[int, int]) -> None:
    """Where quarters of an hour are no longer kept, a day that is asked about in part is told whole; where they are, its part is."""

    def forget(connection: Connection) -> None:
        connection.execute(delete(usage_quarters).where(usage_quarters.c.time_s < DAY + 3 * DAY_S))
        connection.execute(update(meta).values(quarters_from_s=DAY + 3 * DAY_S))

    await records._database.call(forget)
    told = await records.usage(Question((), {}, (DAY + start_s) * 1000, (DAY + end_s) * 1000))
    first, last = covered
    wanted = by_hand((), {}, DAY + first * DAY_S, DAY + last * DAY_S if last < 3 else DAY + end_s)[()]
    assert {name: getattr(told.total, name) for name in wanted} == dict(wanted)


async def test_case_23_days_on_which_clocks_are_changed(records_url: str) -> None:
    """Case 23: one of 25 hours and one of 23: a request at 23:30 there belongs to the day that ends, not to the next one in UTC."""
    berlin = ZoneInfo("Europe/Berlin")
    times = [datetime(2027, 3, 27, 23, 30), datetime(2027, 3, 28, 23, 30), datetime(2027, 10, 30, 23, 30), datetime(2027, 10, 31, 23, 30)]
    some = [Record(f"r{i}", round(time.replace(tzinfo=berlin).timestamp()) * 1000, KEYS[0], "chat", status=200) for i, time in enumerate(times)]
    async with opened(records_url) as records:
        await write(records, some)
        found = await records.usage(Question(("day",), zone="Europe/Berlin"))
        assert [one.group["day"] for one in found.groups] == [f"{time:%Y-%m-%d}" for time in times]
        assert (await records.usage(Question(("hour",), zone="Europe/Berlin"))).groups[0].group == {"hour": "2027-03-27T23"}


async def test_scopes_and_outcomes(records: Records) -> None:
    """A scope is a tenant or key and all below it; what became of requests is read from the rows, and they are as the sums say."""
    for scope, keys in {"acme/team/@lab": KEYS[:2], "acme/team": KEYS[:2], "acme": KEYS[:4], "acme/team2/@lab": KEYS[2:3]}.items():
        total = (await records.usage(Question((), {"scope": [scope]}))).total
        assert total.requests == sum(one.key_id in keys for one in REQUESTS)
    for filters, wanted in (({"status": ["429", "502"]}, {429, 502}), ({"refusal": ["rate"]}, {429}), ({"error": ["failed"]}, {502})):
        found = await records.usage(Question(("model",), {**filters, "tenant": ["acme"]}))
        assert found.total.requests == sum(one.status in wanted and one.key_id.startswith("acme/") for one in REQUESTS)
        page = await records.requests(Question((), filters), 1_000)
        assert {row["status"] for row in page.rows} == wanted
    assert (await records.usage(Question((), {"status": ["429"]}))).total.throttled == (await records.usage(Question())).total.throttled


async def test_a_request_by_its_id(records: Records) -> None:
    """Its row, or None."""
    row = await records.request("r7")
    assert row is not None and (row["time_ms"], row["key_id"]) == (REQUESTS[7].time_ms, REQUESTS[7].key_id)
    assert await records.request("nobody's") is None


async def test_the_spans_of_a_key_are_looked_up_one_by_one(records: Records) -> None:
    """A month of one key does not read its whole organization: SQLite is asked how it would go about it."""

    def plan(connection: Connection) -> list[str]:
        told: list[str] = []

        def explain(connection: Connection, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
            if connection.dialect.name == "sqlite" and statement.startswith("SELECT usage_"):
                told.extend(row[3] for row in cursor.connection.execute("EXPLAIN QUERY PLAN " + statement, parameters))

        event.listen(connection, "before_cursor_execute", explain)
        queries.usage(connection, Question(("model",), {"key": [KEYS[0]]}, DAY * 1000, (DAY + 30 * DAY_S) * 1000))
        return [connection.dialect.name, *told]

    name, *steps = await records._database.call(plan, reading=True)
    assert name == "postgresql" or any("time_s=?" in step and "key_id=?" in step for step in steps), steps


async def test_totals_are_those_that_counters_are_seeded_from(records: Records) -> None:
    """For an organization, and for each unit."""
    total = (await records.usage(Question((), {"tenant": ["acme"]}))).total
    units = [Unit.REQUESTS, Unit.INPUT_TOKENS, Unit.OUTPUT_TOKENS, Unit.USD]
    told = [total.counted, total.input_tokens, total.output_tokens, total.cost_nano_usd]
    assert await records.sums([asked("acme", unit) for unit in units]) == told


async def test_quantiles_are_near_the_truth(records: Records) -> None:
    """The median and the 95th percentile of answers, from sums over hours, keys and days, are off by less than a fifth."""
    latencies = sorted(one.latency_us for one in REQUESTS if one.status == 200)
    total = (await records.usage(Question())).total
    for told, share in ((total.p50_us, 0.5), (total.p95_us, 0.95)):
        truth = latencies[int(share * len(latencies))]
        assert told is not None and abs(told - truth) < 0.2 * truth


def test_quantiles_of_few() -> None:
    """Of none there is none; one beyond the last bound is told as that bound; small ones are told from nothing on."""
    none = [0] * (len(BOUNDS_US) + 1)
    assert quantile_us(none, 0.5) is None
    assert quantile_us([*none[:-1], 3], 0.95) == BOUNDS_US[-1]
    assert quantile_us([4, *none[1:]], 0.5) == BOUNDS_US[0] // 2


async def test_pages(records: Records) -> None:
    """Groups come in the order of their names, each once; the total is that of all pages."""
    whole = await records.usage(Question(("key", "model")), 1_000)
    pages, after = [], ""
    while True:
        page = await records.usage(Question(("key", "model")), 3, after)
        pages += page.groups
        assert page.total == whole.total
        if not (after := page.next):
            break
    assert pages == whole.groups and whole.next == ""
    with pytest.raises(ValueError, match="after"):
        await records.usage(Question(("key",)), 3, "x")


async def test_requests_one_by_one(records: Records) -> None:
    """The newest first, each once over pages, as the filters say."""
    filters = {"tenant": ["acme"], "tag:app": ["x"]}
    wanted = sorted((one for one in REQUESTS if fits(one, filters)), key=lambda one: (-one.time_ms, one.request_id))
    found, after = [], ""
    while True:
        page = await records.requests(Question((), filters), 25, after)
        found += [row["request_id"] for row in page.rows]
        if not (after := page.next):
            break
    assert found == [one.request_id for one in wanted]
    with pytest.raises(ValueError, match="after"):
        await records.requests(Question(), 25, "soon")


async def test_what_was_used_each_day(records: Records) -> None:
    """The last days in order, with nothing where nothing was; a scope is a filter."""
    now_ms = (DAY + 4 * DAY_S) * 1000
    found = await records.daily({"model": ["chat"]}, Unit.USD, 6, now_ms)
    cost = by_hand(("day",), {"model": ["chat"]}, 0, 0)
    assert [day for day, _ in found] == [f"2027-01-{day}" for day in range(15, 21)]
    assert [amount for _, amount in found] == [cost[day,]["cost_nano_usd"] if (day,) in cost else 0 for day, _ in found]
    units = (Unit.INPUT_TOKENS, Unit.OUTPUT_TOKENS, Unit.TOKENS, Unit.REQUESTS)
    sent, produced, both, counted = [sum(amount for _, amount in await records.daily({}, unit, 6, now_ms)) for unit in units]
    assert (sent, produced) == (sum(one.input_tokens for one in REQUESTS), sum(one.output_tokens for one in REQUESTS))
    assert (both, counted) == (sent + produced, sum(1 for one in REQUESTS if one.attempts))
    with pytest.raises(ValueError, match="in flight"):
        await records.daily({}, Unit.CONCURRENT, 6, now_ms)


@pytest.mark.parametrize("question", [Question(("colour",)), Question((), {"colour": ["red"]}), Question((), {"day": ["2026-11-30"]})])
async def test_questions_that_cannot_be(records: Records, question: Question) -> None:
    """Names that are none are told."""
    with pytest.raises(ValueError, match="is none of tenant, key"):
        await records.usage(question)


async def test_sums_of_rows_are_those_that_workers_write(records: Records) -> None:
    """Days of which there are rows only are summed up to what they were; others stay as they are, and so does all of it the next time."""
    questions = [Question(("tenant", "model", "deployment", "day")), Question(("hour",))]
    before = [await records.usage(question, 1_000) for question in questions]

    def forget(connection: Connection) -> None:
        for table in (usage, usage_quarters, usage_days):
            connection.execute(delete(table).where(table.c.time_s >= DAY + DAY_S))

    await records._database.call(forget)
    assert await records.build_sums() == sum(one.time_ms >= (DAY + DAY_S) * 1000 for one in REQUESTS)
    assert [await records.usage(question, 1_000) for question in questions] == before
    assert await records.build_sums() == 0
    assert await records._database.call(partial(rollups.build, day_s=DAY)) == 0, "another program has summed it up first"
    assert [await records.usage(question, 1_000) for question in questions] == before


async def test_nothing_is_summed_up_of_nothing(records_url: str) -> None:
    """An empty database has nothing to sum up, and nothing was used."""
    async with opened(records_url) as records:
        assert await records.build_sums() == 0
        for question in (Question(("key",)), Question(("day",), zone="Europe/Berlin"), Question(("hour", "label"), zone="Asia/Kathmandu")):
            found = await records.usage(question)
            assert (found.groups, found.total, found.next) == ([], Figures(), "")


async def test_a_month_by_team_and_model_is_quick(postgres_url: str) -> None:
    """200,000 requests, summed up by the product: less than a second (bench/records.py does the same with ten million)."""
    rows = 200_000
    found = await bench.measure(fresh(postgres_url), rows)
    assert (found["built"], found["requests"], found["groups"]) == (rows, rows, bench.TEAMS * bench.MODELS)
    assert found["seconds"]["month by team and model"] < 1
