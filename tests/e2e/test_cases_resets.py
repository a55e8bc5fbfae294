"""Budgets that begin anew, made and read through the admin API, with a clock that the test moves: cases 19 to 24."""

import json
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from sluicegate.records.rows import RecordsUnavailable
from support_inloop import Bench, running

KEY = "sk-admin-of-the-tests"


class Clock:
    """A time of day that the test sets."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.at("2026-08-10T12:00:00+00:00")

    def __call__(self) -> int:
        return self.now_ms

    def at(self, moment: str) -> None:
        self.now_ms = int(datetime.fromisoformat(moment).timestamp() * 1000)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[tuple[Bench, Clock]]:
    clock = Clock()
    async with running(tmp_path, clock=clock, more=f"admin: {{key: {KEY}}}") as bench:
        bench.whole = False
        yield bench, clock


async def api(bench: Bench, verb: str, path: str, body: Any = None) -> Any:
    data = json.dumps(body).encode() if body is not None else b""
    head = f"{verb} /admin/v1/{path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\ncontent-type: application/json\r\n"
    reply = await bench.raw(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
    assert reply.status in (200, 201), reply.body
    return reply.json


async def key(bench: Bench, owner: str, limit: Any) -> Callable[[], Any]:
    """A key of a tenant that gets this limit; what asks with it."""
    if owner != "acme":
        await api(bench, "POST", "tenants", {"id": owner, "limits": [limit]})
    else:
        await api(bench, "PATCH", "tenants/acme/limits", {"limits": [limit]})
    secret = (await api(bench, "POST", "keys", {"owner": owner, "name": "k"}))["secret"]

    async def ask() -> str:
        return (await bench.chat(secret, max_tokens=5)).code

    return ask


async def test_case_20_every_scope_is_served_again(place: tuple[Bench, Clock]) -> None:
    """Organization, team, project, user, service account and key: exceeded, and 31 s later served."""
    bench, clock = place
    asking = [await key(bench, owner, "1 requests/30s") for owner in ("org", "acme/team", "acme/team/project", "acme/team/project/user")]
    await api(bench, "POST", "tenants", {"id": "acme/robot", "kind": "service_account", "limits": ["1 requests/30s"]})
    secrets = [
        (await api(bench, "POST", "keys", {"owner": owner, "name": "x", "limits": limits}))["secret"]
        for owner, limits in (("acme/robot", []), ("acme", ["1 requests/30s"]))
    ]
    for n in range(2):
        clock.now_ms += 31_000 * n
        first = [await ask() for ask in asking[:1]] + [(await bench.chat(secret, max_tokens=5)).code for secret in secrets]
        again = [await ask() for ask in asking[:1]] + [(await bench.chat(secret, max_tokens=5)).code for secret in secrets]
        assert (first, again) == (["200"] * 3, ["budget_exceeded"] * 3)
    for ask in asking[1:]:  # each is below the others, so one after another
        clock.now_ms += 31_000
        assert [await ask(), await ask()] == ["200", "budget_exceeded"]


async def test_case_19_a_limit_that_says_no_reset_has_its_own(place: tuple[Bench, Clock]) -> None:
    """Its end comes from what it counts in; looking at it, changing it and time inside the window wipe nothing."""
    bench, clock = place
    ask = await key(bench, "org", "2 requests/day")
    assert await ask() == "200"
    for _ in range(3):
        clock.now_ms += 600_000
        (status,) = (await api(bench, "GET", "tenants/org/status"))["limits"]
        assert (status["used"], status["resets_at"]) == (1, "2026-08-11T00:00:00Z")
        await api(bench, "PATCH", "tenants/org/limits", {"limits": ["2 requests/day"]})
    assert [await ask() for _ in range(2)] == ["200", "budget_exceeded"]
    await api(bench, "PATCH", "tenants/org/limits", {"limits": ["2 requests/lifetime"]})
    assert (await api(bench, "GET", "tenants/org/status"))["limits"][0]["resets_at"] is None
    clock.at("2031-01-01T00:00:00+00:00")
    assert (await api(bench, "GET", "tenants/org/status"))["limits"][0]["used"] == 2


async def test_case_21_22_and_23_windows_end_where_they_say(place: tuple[Bench, Clock]) -> None:
    """An hour in an hour; a month in Tokyo at its midnight; days in Amsterdam at theirs, of 23 and 25 hours."""
    bench, clock = place
    hourly = await key(bench, "hourly", "1 requests/hour")
    monthly = await key(bench, "monthly", {"amount": 1, "unit": "requests", "per": "month", "tz": "Asia/Tokyo"})
    daily = await key(bench, "daily", {"amount": 1, "unit": "requests", "per": "day", "tz": "Europe/Amsterdam"})

    async def resets(tenant: str) -> str:
        (limit,) = (await api(bench, "GET", f"tenants/{tenant}/status"))["limits"]
        return str(limit["resets_at"])

    clock.at("2026-08-10T12:59:59+00:00")
    assert [await hourly(), await hourly()] == ["200", "budget_exceeded"]
    clock.at("2026-08-10T13:00:01+00:00")
    assert await hourly() == "200"
    clock.at("2026-08-31T23:59:59+09:00")
    assert [await monthly(), await monthly()] == ["200", "budget_exceeded"]
    assert await resets("monthly") == "2026-08-31T15:00:00Z"
    clock.at("2026-09-01T00:01:00+09:00")
    assert await monthly() == "200"
    for day, before, after in (("2027-03-28", "+01:00", "+02:00"), ("2027-10-31", "+02:00", "+01:00")):
        clock.at(f"{day}T00:00:01{before}")
        assert [await daily(), await daily()] == ["200", "budget_exceeded"]
        clock.at(f"{day}T23:59:59{after}")
        assert await daily() == "budget_exceeded"
        clock.now_ms += 2_000
        assert await daily() == "200"


async def test_case_24_a_reset_writes_nothing(place: tuple[Bench, Clock]) -> None:
    """With the records away when a window ends, the next one has begun, and what was used of the last is not undone."""
    bench, clock = place
    ask = await key(bench, "org", "1 requests/day")
    assert [await ask(), await ask()] == ["200", "budget_exceeded"]

    async def away(*_: Any, **__: Any) -> Any:
        raise RecordsUnavailable("away")

    bench.worker.directory.store.call = away  # type: ignore[method-assign]
    clock.at("2026-08-11T00:00:01+00:00")
    assert [await ask(), await ask()] == ["200", "budget_exceeded"]
