"""Who has used what, from outside: /admin/v1/usage, requests and forecasts, and /v1/usage, on SQLite and on PostgreSQL."""

import asyncio
import contextlib
import csv
import io
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

import pytest

from sluicegate import consumption
from sluicegate.core.record import Attempt, Record, Spent
from sluicegate.records.requests import Line
from sluicegate.records.rows import RecordsUnavailable, UsageRow
from sluicegate.records.schema import DAY_S
from sluicegate.records.store import Records
from support_admin import Api
from support_inloop import INPUT_NANO_USD, OUTPUT_NANO_USD, PROMPT_TOKENS, Bench, Reply, running
from support_records import opened

KEY = "sk-admin-of-the-tests"
LIMITS = "[$100/lifetime, 10M tokens/lifetime, 1M requests/lifetime]"
TENANTS = f"""
  acme:
    limits: {LIMITS}
    children:
      team:
        limits: ["$300/month", "1M tokens/day"]
        keys: [{{name: a, key: sk-a, limits: ["$0.50/lifetime"]}}, {{name: b, key: sk-b, limits: [3 requests/day]}}]
  other:
    keys: [{{name: k, key: sk-k}}]
"""
MODELS = """
  two:
    deployments:
      - {provider: mock, model: one, price: {input: 0.5, output: 1.0}, limits: ["$20/month"]}
      - {provider: second, model: two, price: {input: 0.5, output: 1.0}}"""
SECOND = "  second: {provider: mock, base_url: BASE_URL, tokenizer: o200k_base}"
ADMIN = f"admin: {{key: {KEY}}}"


@contextlib.asynccontextmanager
async def serving(tmp_path: Path, records_url: str, **settings: Any) -> AsyncIterator[Bench]:
    settings = {"tenants": TENANTS, "models": MODELS, "providers": SECOND, "more": ADMIN, **settings}
    async with running(tmp_path, records=records_url, **settings) as bench:
        yield bench


async def ask(bench: Bench, path: str, accept: str = "application/json", **query: Any) -> Reply:
    asked = f"{path}?{urlencode(query, doseq=True)}" if query else path
    head = f"GET /admin/v1/{asked} HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer {KEY}\r\naccept: {accept}\r\n\r\n"
    return await bench.raw(head.encode())


async def usage(bench: Bench, **query: Any) -> Any:
    reply = await ask(bench, "usage", **query)
    assert reply.status == 200, reply.body
    return reply.json


async def recorded(bench: Bench) -> None:
    """All that has happened is in the records."""
    await bench.quiet()
    await bench.worker._outbox.flush()


async def mixed(bench: Bench) -> None:
    """Every kind of request: whole and streamed ones, refused, failing, falling back, left by their clients, and of models that do not exist."""
    for _ in range(4):
        await bench.chat("sk-b", max_tokens=20)  # the last is refused
    await asyncio.gather(*(bench.chat("sk-a", max_tokens=30, stream=stream, user=user) for stream in (False, True) for user in ("ann", "bob")))
    bench.mock.fault(count=1, model="one", status=500)
    assert (await bench.chat("sk-k", model="two", max_tokens=20)).headers["x-sluicegate-attempts"] == "mock/one:500,second/two:200"
    bench.mock.fault(count=1, model="mock-chat", status=503)
    assert (await bench.chat("sk-k", max_tokens=20)).status == 503
    assert (await bench.chat("sk-k", model="made up", max_tokens=5)).status == 404
    bench.mocked(completion=200, tpot_ms=2)
    gone = await bench.open("sk-a", max_tokens=300, stream=True)
    await gone.until(b"data: ")
    with bench.held():
        await bench.left(gone)
    bench.mocked(completion=20)
    await recorded(bench)


# -- the same everywhere ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("extend", [False, True])
async def test_usage_ledger_rows_and_truth_agree(tmp_path: Path, records_url: str, extend: bool) -> None:
    """After a mixed load the totals are what the ledger counts and what the rows add up to, and never below what the provider produced."""
    async with serving(tmp_path, records_url, extend=extend) as bench:
        bench.slack = 1024  # of the stream that its client left
        await mixed(bench)
        for tenant, secret in (("acme", "sk-a"), ("acme/team", "sk-b")):
            total = (await usage(bench, tenant=tenant))["total"]
            tokens = total["input_tokens"] + total["output_tokens"]
            told = {"usd": total["cost_usd"], "tokens": tokens, "requests": total["counted"]}
            for limit in (await bench.usage(secret)).values():
                if limit["scope"] == tenant:
                    assert limit["used"] == pytest.approx(told[limit["unit"]], abs=1e-12), limit
            rows = (await ask(bench, "requests", tenant=tenant)).json["data"]
            assert len(rows) == total["requests"] == 9
            assert sum(row["input_tokens"] + row["output_tokens"] for row in rows) == tokens
            assert sum(row["cost_usd"] for row in rows) == pytest.approx(total["cost_usd"], abs=1e-12)
            assert total["counted"] == sum(row["tries"] > 0 for row in rows) == 8
        everything = (await usage(bench))["total"]
        assert everything["input_tokens"] + everything["output_tokens"] >= bench.total > 0
        truth = bench.mock.truth.stats().total
        assert round(everything["cost_usd"] * 1e9) >= truth.prompt_tokens * INPUT_NANO_USD + truth.completion_tokens * OUTPUT_NANO_USD
        wanted = {"requests": 12, "throttled": 1, "refused": 1, "errors": 2, "fallbacks": 1}
        assert {name: everything[name] for name in wanted} == wanted


# -- sums ---------------------------------------------------------------------------------------------------------------------------------


async def test_groups_filters_and_pages(tmp_path: Path, records_url: str) -> None:
    """Any groups, by repetition or commas; filters combine with AND, values of one with OR; `next` leads through all groups, the total is of all."""
    async with serving(tmp_path, records_url) as bench:
        bench.slack = 1024
        await mixed(bench)
        found = await usage(bench, group_by="tenant,model")
        assert [tuple(one["group"].values()) for one in found["data"]] == [("acme/team", "chat"), ("other", ""), ("other", "chat"), ("other", "two")]
        assert found == await usage(bench, group_by=["tenant", "model"])
        pages, after = [], ""
        while after is not None:
            page = await usage(bench, group_by="tenant,model", limit=1, after=after)
            pages += page["data"]
            assert page["total"] == found["total"]
            after = page["next"]
        assert pages == found["data"]
        assert [one["group"]["label"] for one in (await usage(bench, group_by="label", key="acme/team/@a"))["data"]] == ["ann", "bob", "sk-a"]
        for query, requests in (
            ({"tenant": "acme"}, 9),
            ({"tenant": "acme", "label": ["ann", "bob"]}, 4),
            ({"key": ["acme/team/@a", "other/@k"], "model": "chat"}, 6),
            ({"provider": "second"}, 1),
            ({"deployment": "mock/mock-chat", "status": "503"}, 1),
            ({"status": ["429", "404"]}, 2),
            ({"tag": "app=none"}, 0),
            ({"tenant": "acm"}, 0),
        ):
            assert (await usage(bench, **query))["total"]["requests"] == requests, query


async def test_times_and_zones(tmp_path: Path, records_url: str) -> None:
    """Moments have an offset or are of `tz`, whose days and hours are told."""
    async with serving(tmp_path, records_url) as bench:
        await bench.chat("sk-a", max_tokens=5)
        await recorded(bench)
        now = time.time()
        for tz in ("UTC", "Pacific/Kiritimati"):
            [group] = (await usage(bench, group_by="day", tz=tz))["data"]
            assert group["group"]["day"] in {f"{datetime.fromtimestamp(at, ZoneInfo(tz)):%Y-%m-%d}" for at in (now - 60, now)}
        hour = datetime.fromtimestamp(now, UTC)
        for since, requests in (
            (f"{hour:%Y-%m-%d}", 1),
            ("2100-01-01", 0),
            (f"{hour:%Y-%m-%dT%H:00:00}-12:00", 0),
            (f"{hour:%Y-%m-%dT%H:00:00Z}", 1),
        ):
            assert (await usage(bench, since=since))["total"]["requests"] == requests, since
        assert (await usage(bench, until="2026-11-30"))["total"]["requests"] == 0
        assert (await ask(bench, "usage?since=2026-01-01T00:00:00+01:00")).status == 200  # a plus that nobody escaped


async def test_csv(tmp_path: Path, records_url: str) -> None:
    """By `format` or `accept`; the columns of a report; no cell that a spreadsheet would run; the page that follows is in `link`."""
    async with serving(tmp_path, records_url) as bench:
        for user in ("=1+1", "ann"):
            await bench.chat("sk-a", max_tokens=20, user=user)
        await recorded(bench)
        reply = await ask(bench, "usage", accept="text/csv", group_by="key,label")
        assert reply.headers["content-type"].startswith("text/csv") and "link" not in reply.headers
        lines = list(csv.DictReader(io.StringIO(reply.body.decode())))
        assert [(line["key"], line["label"], line["requests"]) for line in lines] == [("acme/team/@a", "'=1+1", "1"), ("acme/team/@a", "ann", "1")]
        assert sum(float(line["usd"]) for line in lines) == pytest.approx((await usage(bench))["total"]["cost_usd"], abs=1e-12)
        first = await ask(bench, "usage", group_by="label", format="csv", limit=1)
        path = first.headers["link"].partition(">")[0].removeprefix("</admin/v1/")
        assert (await ask(bench, path)).body.decode().splitlines()[1].startswith("ann,")


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("usage?group_by=colour", "400 invalid_value group_by"),
        ("usage?colour=red", "400 unknown_field colour"),
        ("usage?since=yesterday", "400 invalid_value since"),
        ("usage?until=2026-02-30", "400 invalid_value until"),
        ("usage?tz=Europe/Nowhere", "404 zone_not_found tz"),
        ("usage?tz=../../etc", "404 zone_not_found tz"),
        ("usage?status=many", "400 invalid_value status"),
        ("usage?after=x", "400 invalid_value after"),
        ("usage?format=xml", "400 invalid_value format"),
        ("requests?after=soon", "400 invalid_value after"),
        ("requests?group_by=day", "400 unknown_field group_by"),
        ("requests/nobodys", "404 request_not_found id"),
        ("keys/acme/@none/usage/forecast", "404 key_not_found id"),
        ("keys/%00/@none/usage/forecast", "404 key_not_found id"),
        ("tenants/none/usage/forecast", "404 tenant_not_found id"),
        ("providers/none/usage/forecast", "404 provider_not_found id"),
        ("models/none/usage/forecast", "404 model_not_found id"),
        ("models/chat/usage/forecast?days=0", "400 invalid_value days"),
    ],
)
async def test_what_cannot_be_asked(tmp_path: Path, path: str, told: str) -> None:
    """Is told by its field, in OpenAI's form."""
    async with running(tmp_path, more=ADMIN) as bench:
        reply = await ask(bench, path)
        error = reply.error
        assert f"{reply.status} {error['code']} {error['param'].partition('.')[0]}" == told


async def test_records_that_are_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Administrators are told with a 503; a client gets its limits, and soon."""
    monkeypatch.setattr(consumption, "ANSWER_S", 0.05)
    async with running(tmp_path, more=ADMIN) as bench:

        async def away(*_: Any, **__: Any) -> Any:
            raise RecordsUnavailable("/a/place: is away")

        async def silent(*_: Any, **__: Any) -> Any:
            await asyncio.sleep(60)

        asking = bench.worker.asking
        monkeypatch.setattr(asking.records, "usage", away)
        reply = await ask(bench, "usage")
        assert (reply.status, reply.code, reply.headers["retry-after"]) == (503, "records_unavailable", "1")
        assert b"/a/place" not in reply.body
        for work in (away, silent):
            monkeypatch.setattr(asking._brief, "usage", work)
            told = (await bench.get("/v1/usage")).json
            assert (told["usage"], told["usage_unavailable"]) == (None, "the records do not answer")


# -- request by request -------------------------------------------------------------------------------------------------------------------


async def test_requests_with_their_attempts(tmp_path: Path, records_url: str) -> None:
    """The newest first, over pages, as filters say; one of them with who was asked, what came of it and what it cost."""
    async with serving(tmp_path, records_url) as bench:
        bench.slack = 1024
        await mixed(bench)
        whole = (await ask(bench, "requests")).json
        assert len(whole["data"]) == 12 and whole["next"] is None
        first = (await ask(bench, "requests", limit=5)).json
        rest = (await ask(bench, "requests", after=first["next"])).json
        assert first["data"] + rest["data"] == whole["data"]
        assert [row["refusal"] for row in (await ask(bench, "requests", status=429)).json["data"]] == ["exhausted"]
        assert len((await ask(bench, "requests", error="model_not_found")).json["data"]) == 1
        [row] = (await ask(bench, "requests", model="two")).json["data"]
        one = (await ask(bench, f"requests/{row['id']}")).json
        assert {name: one[name] for name in row} == row
        assert (row["fell_back"], row["tries"], row["key"], row["tenant"]) == (True, 2, "other/@k", "other")
        told = [(each["deployment"], each["outcome"], each["billed"], each["output_tokens"]) for each in one["attempts"]]
        assert told == [("mock/one", "500", "no", 0), ("second/two", "200", "yes", 20)]
        assert one["attempts"][1]["cost_usd"] == one["cost_usd"] > 0
        assert {row["client_gone"] for row in (await ask(bench, "requests", key="acme/team/@a", label="sk-a")).json["data"]} == {True}


async def test_case_93_ids_of_clients_are_no_keys(tmp_path: Path, records_url: str) -> None:
    """Case 93: two requests under one `x-request-id`, and another tenant's under it too, are three rows; each is found by the gateway's own id."""
    async with serving(tmp_path, records_url) as bench:
        for secret in ("sk-a", "sk-a", "sk-k"):
            body = bench.body(secret, max_tokens=5)
            assert (await bench.post(body, secret, b"x-request-id: mine\r\n")).status == 200
        await recorded(bench)
        rows = (await ask(bench, "requests")).json["data"]
        assert [(row["key"], row["client_id"]) for row in rows] == [("other/@k", "mine"), *[("acme/team/@a", "mine")] * 2]
        assert len({row["id"] for row in rows}) == 3
        for row in rows:
            assert (await ask(bench, f"requests/{row['id']}")).json["id"] == row["id"]
        assert (await ask(bench, "requests/mine")).code == "request_not_found"
        assert (await usage(bench))["total"]["counted"] == 3


# -- a key's own --------------------------------------------------------------------------------------------------------------------------


async def test_a_key_is_told_what_it_has_used(tmp_path: Path, records_url: str) -> None:
    """Today and this month, by model, and nothing of other keys."""
    async with serving(tmp_path, records_url) as bench:
        for key, model in (("sk-a", "chat"), ("sk-a", "free"), ("sk-b", "chat"), ("sk-a", "chat")):
            await bench.chat(key, model=model, max_tokens=20)
        await recorded(bench)
        told = (await bench.get("/v1/usage", "sk-a")).json
        limits = {limit["unit"]: limit for limit in told["limits"] if limit["scope"] == "acme/team/@a"}
        for span in ("today", "month"):
            use = told["usage"][span]
            assert {one["model"]: (one["requests"], one["output_tokens"]) for one in use["models"]} == {"chat": (2, 40), "free": (1, 20)}
            assert (use["requests"], use["output_tokens"], use["cost_usd"]) == (3, 60, limits["usd"]["used"])
        assert told["usage"]["today"]["since"] >= told["usage"]["month"]["since"]
        assert (await bench.get("/v1/usage", "sk-k")).json["usage"]["month"]["models"] == []
        bench.whole = False  # a free model costs nothing of what the audit expects


async def test_a_key_is_told_what_its_sub_keys_have_used(tmp_path: Path, records_url: str) -> None:
    """With its own, as its limits count it and as `me/usage` says; also of one that was deleted; a sub-key is told of its own."""
    async with serving(tmp_path, records_url) as bench:
        bench.whole = False  # the audit does not know the keys that are made here
        api = Api(bench)
        parent = await api.key("p", "acme/team", limits=["$5/month", "1000 requests/month"])
        child = await api.key("c", "acme/team/@p")
        below = await api.key("d", "acme/team/@p/@c")
        beside = await api.key("p2", "acme/team")
        secrets = [one["secret"] for one in (parent, child, child, below, beside)]
        for secret in secrets:
            assert await api.told(secret) == "200"
        await recorded(bench)
        assert (await api("DELETE", "keys/acme/team/@p/@c/@d")).status == 200
        told = (await bench.get("/v1/usage", parent["secret"])).json
        limits = {limit["unit"]: limit["used"] for limit in told["limits"] if limit["scope"] == "acme/team/@p"}
        mine = (await api("GET", "me/usage", key=parent["secret"])).json["total"]
        for span in ("today", "month"):
            use = told["usage"][span]
            assert (use["requests"], use["cost_usd"]) == (4, limits["usd"]) == (mine["counted"], mine["cost_usd"])
            assert (use["input_tokens"], use["output_tokens"]) == (mine["input_tokens"], mine["output_tokens"])
        assert limits["requests"] == 4
        assert (await bench.get("/v1/usage", child["secret"])).json["usage"]["month"]["requests"] == 3
        assert (await bench.get("/v1/usage", beside["secret"])).json["usage"]["month"]["requests"] == 1


async def test_more_sub_keys_than_are_looked_up_one_by_one(tmp_path: Path, records_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Are added up all the same."""
    monkeypatch.setattr(consumption, "BELOW_MAX", 1)
    async with serving(tmp_path, records_url) as bench:
        bench.whole = False
        api = Api(bench)
        keys = [await api.key(*where) for where in (("p", "acme"), ("a", "acme/@p"), ("b", "acme/@p"))]
        for key in keys:
            assert await api.told(key["secret"]) == "200"
        await recorded(bench)
        assert (await bench.get("/v1/usage", keys[0]["secret"])).json["usage"]["month"]["requests"] == 3


async def test_what_the_cache_has_saved(tmp_path: Path, records_url: str) -> None:
    """In sums, by rows, in CSV, and of the request itself; the hit costs nothing."""
    async with serving(tmp_path, records_url, more=f"{ADMIN}\ncache: {{mode: all}}") as bench:
        for _ in range(3):
            assert (await bench.chat("sk-a", max_tokens=20)).status == 200
        await recorded(bench)
        cost = (PROMPT_TOKENS * INPUT_NANO_USD + 20 * OUTPUT_NANO_USD) / 1e9
        for more in ({}, {"status": 200}):
            total = (await usage(bench, **more))["total"]
            assert (total["cache_hits"], total["cost_usd"]) == (2, pytest.approx(cost)) and total["saved_usd"] == pytest.approx(2 * cost)
        (line,) = csv.DictReader(io.StringIO((await ask(bench, "usage", format="csv", group_by="key")).body.decode()))
        assert (line["cache_hits"], line["saved_usd"]) == ("2", f"{2 * cost:.9f}")
        rows = (await ask(bench, "requests")).json["data"]
        assert [(row["cache"], row["saved_usd"] > 0, row["cost_usd"] > 0) for row in rows] == [("hit", True, False)] * 2 + [("miss", False, True)]


# -- forecasts ----------------------------------------------------------------------------------------------------------------------------


async def write(records: Records, key_id: str, days: list[float], deployment: str = "mock/mock-chat", model: str = "chat") -> None:
    """So many dollars, and ten tokens a cent, on each of the days before this one, the last of which was yesterday."""
    rows, lines = [], list[Line]()
    midnight_s = int(time.time()) // DAY_S * DAY_S
    for i, usd in enumerate(reversed(days), 1):
        at_s = midnight_s - i * DAY_S + 40_000
        amounts = 1, 1, round(usd * 1000), 0, round(usd * 1e9)
        tree = key_id.partition("/")[0]
        rows.append(UsageRow(tree, at_s, key_id, model, deployment, *amounts))
        name, tried = f"{key_id}{deployment}{i}", (Attempt(deployment, "200"),)
        lines.append(
            (
                tree,
                name,
                Record(name, at_s * 1000, key_id, model, deployment, tried, status=200),
                Spent(key_id, model, deployment, at_s * 1000, *amounts),
            )
        )
    await records.add(f"w{key_id}{deployment}", 1, rows, lines=lines)


async def forecast(bench: Bench, path: str, **query: Any) -> dict[str, Any]:
    """By the limit's name."""
    reply = await ask(bench, f"{path}/usage/forecast", **query)
    assert reply.status == 200, reply.body
    return {limit["name"]: limit for limit in reply.json["limits"]}


async def test_forecasts_of_keys_and_tenants(tmp_path: Path, records_url: str) -> None:
    """Of each limit of its own, from what it and all below it have used; what is used now is the ledger's word."""
    async with opened(records_url) as records:
        await write(records, "acme/team/@a", [0.1] * 5)
        await write(records, "acme/team/@b", [10.0, 2.0] * 10)
    async with serving(tmp_path, records_url) as bench:
        found = await forecast(bench, "keys/acme/team/@a", days=3)
        limit = found["key a usd/lifetime"]
        assert (limit["limit"], limit["current_spend"], limit["utilization_percent"], limit["window"]) == (0.5, 0.5, 100, "lifetime")
        assert [limit[f"days_until_exhaustion{end}"] for end in ("", "_lower", "_upper")] == [0, 0, 0]
        assert (limit["projected_window_spend"], limit["resets_at"], limit["sample_days"], limit["method"]) == (None, None, 5, "mean")
        assert limit["projected_exhaustion_date"] in {f"{datetime.now(UTC):%Y-%m-%d}", f"{datetime.fromtimestamp(time.time() - 60, UTC):%Y-%m-%d}"}
        tokens = found["key acme/team/@a tokens/month"]
        assert (tokens["limit"], tokens["utilization_percent"], tokens["days_until_exhaustion"], tokens["avg_daily"]) == (None, None, None, 100)
        assert tokens["projected_window_spend"] >= tokens["current_spend"]
        month = (await forecast(bench, "tenants/acme/team"))["team team usd/month"]
        assert (month["sample_days"], month["avg_daily"], month["method"]) == (20, pytest.approx((120 + 0.5) / 20), "mstl_ets")
        series = month["series"]
        assert (len(series["dates"]), series["confidence_level"], series["used_seasonal_decomposition"]) == (30, 0.95, True)
        assert all(0 <= low <= point <= high for low, point, high in zip(series["lower"], series["point"], series["upper"], strict=True))
        assert set(await forecast(bench, "tenants/acme")) == {"organization acme usd/lifetime", "organization acme tokens/lifetime"}
        lifetime = (await forecast(bench, "tenants/acme"))["organization acme usd/lifetime"]
        assert lifetime["days_until_exhaustion"] == 0 < lifetime["utilization_percent"] - 100
        made = await bench.worker.changes.create_key("acme", "new", limits=["$5/day"])
        assert made.after is not None
        daily = (await forecast(bench, "keys/acme/@new"))["key new usd/day"]
        assert (daily["limit"], daily["sample_days"], daily["days_until_exhaustion"]) == (5, 0, None)
        bench.whole = False


async def test_forecasts_of_providers_and_models(tmp_path: Path, records_url: str) -> None:
    """The limits of their deployments, and what they themselves have used."""
    async with opened(records_url) as records:
        await write(records, "other/@k", [1.0] * 4, "mock/one", "two")
        await write(records, "other/@k", [3.0] * 4, "second/two", "two")
    async with serving(tmp_path, records_url) as bench:
        model = await forecast(bench, "models/two")
        assert {name: (limit["limit"], limit["avg_daily"]) for name, limit in model.items()} == {
            "deployment mock/one usd/month": (20, 1),
            "model two tokens/month": (None, 4000),
        }
        assert model["deployment mock/one usd/month"]["scope"] == "mock/one"
        second = await forecast(bench, "providers/second")
        assert {name: (limit["limit"], limit["avg_daily"]) for name, limit in second.items()} == {
            "provider second usd/month": (None, 3),
            "provider second tokens/month": (None, 3000),
        }
        bench.whole = False


async def test_the_end_of_a_window_in_its_zone(tmp_path: Path) -> None:
    """A budget that would last four days is not used up if its window ends before; the date is the zone's."""
    limits = "[{amount: 4, unit: usd, per: day, tz: Pacific/Kiritimati}, {amount: 100, unit: usd, per: 400d}]"
    url = f"sqlite:///{tmp_path}/records.db"
    async with opened(url) as records:
        await write(records, "acme/@key", [10.0] * 3)
    async with running(tmp_path, records=url, limits=limits, more=ADMIN) as bench:
        found = await forecast(bench, "keys/acme/@key")
        day = found["key key usd/day (Pacific/Kiritimati)"]
        left = (datetime.fromisoformat(day["resets_at"]).timestamp() - time.time()) / DAY_S
        assert day["current_spend"] + left * 10 == pytest.approx(day["projected_window_spend"], abs=0.1)
        assert (day["days_until_exhaustion"] is None) == (left * 10 < 4 - day["current_spend"])
        bench.whole = False


async def test_forecasts_do_not_hold_up_the_loop(tmp_path: Path) -> None:
    """While one is worked out, others are answered."""
    url = f"sqlite:///{tmp_path}/records.db"
    async with opened(url) as records:
        await write(records, "acme/@key", [10.0, 2.0, 4.0] * 20)
    async with running(tmp_path, records=url, limits="[$900/month]", more=ADMIN) as bench:
        asked = asyncio.create_task(forecast(bench, "keys/acme/@key"))
        answered = 0
        while not asked.done():
            assert (await bench.get("/v1/models")).status == 200
            answered += 1
        assert (await asked)["key key usd/month"]["method"] == "mstl_ets"
        assert answered > 2
        bench.whole = False
