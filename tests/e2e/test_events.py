"""Warnings, events, the audit log and webhooks of a whole gateway, with real web socket clients and receivers on real sockets."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from sluicegate import alarms, webhooks
from sluicegate.admin import events
from sluicegate.events import Event
from support_inloop import PROMPT_TOKENS, Bench, fresh_redis, request, running

KEY = "sk-admin-of-the-tests"
ADMIN = f"admin: {{key: {KEY}, chaos: on}}"
OUTPUT = 20
EACH = PROMPT_TOKENS + OUTPUT  # tokens of one request
LIMITS = "[{amount: 100, unit: tokens, per: day, warn_at: [0.5, 1.0]}]"
WAIT_S = 30.0


@contextlib.asynccontextmanager
async def listening(bench: Bench, query: str = "", **more: Any) -> AsyncIterator[ClientConnection]:
    headers = {"additional_headers": {"authorization": f"Bearer {KEY}"}} | more
    async with connect(f"ws://127.0.0.1:{bench.port}/admin/v1/events{query}", proxy=None, **headers) as socket:
        yield socket


async def heard(socket: ClientConnection, *types: str) -> list[dict[str, Any]]:
    """The next events; they have these types, in whatever order."""
    async with asyncio.timeout(WAIT_S):
        found = [json.loads(await socket.recv()) for _ in types]
    assert sorted(one["type"] for one in found) == sorted(types)
    return sorted(found, key=lambda one: types.index(one["type"]))


async def ask(bench: Bench, path: str) -> Any:
    reply = await bench.get(path, KEY)
    assert reply.status == 200, reply.body
    return reply.json


async def use(bench: Bench, times: int = 1, **fields: Any) -> Any:
    """Requests that are served; the last answer."""
    for _ in range(times):
        answer = await bench.chat(max_tokens=OUTPUT, **fields)
        assert answer.status == 200, answer.body
        await bench.quiet()
    return answer


# -- warnings -----------------------------------------------------------------------------------------------------------------------------


async def test_a_budget_is_told_of_from_its_first_mark_to_its_end(tmp_path: Path) -> None:
    """An answer's header, live events and the audit log: once at the mark, once when it is used up, with the count of what was refused."""
    async with running(tmp_path, limits=LIMITS, more=ADMIN) as bench, listening(bench) as socket:
        assert "x-sluicegate-budget-warning" not in (await use(bench, 2)).headers
        [warning] = await heard(socket, "budget.warning")
        assert (warning["limit"], warning["unit"], warning["window"], warning["threshold_percent"]) == ("key key tokens/day", "tokens", "day", 50)
        assert (warning["used"], warning["amount"], warning["tenant"], warning["key_id"]) == (2 * EACH, 100, ["acme"], "acme/@key")
        shown = (await use(bench)).headers["x-sluicegate-budget-warning"]
        assert shown.startswith("limit=key key tokens/day; used=58%; remaining=")
        assert shown.endswith("T00:00:00Z")
        refusals = [await bench.chat(max_tokens=OUTPUT) for _ in range(5)]
        assert {refusal.code for refusal in refusals} == {"budget_exceeded"}
        assert refusals[0].headers["x-sluicegate-budget-warning"].startswith("limit=key key tokens/day; used=87%; remaining=13; reset=")
        exceeded, refused = await heard(socket, "budget.exceeded", "request.refused")
        assert (exceeded["threshold_percent"], exceeded["used"], exceeded["requested"]) == (100, 3 * EACH, PROMPT_TOKENS + 16)
        assert (refused["reason"], refused["count"], refused["limit"]) == ("exhausted", 5, "key key tokens/day")
        log = await ask(bench, "/admin/v1/audit-logs?action=budget.*")
        assert [(one["action"], one["percent"], one["count"]) for one in log["data"]] == [("budget.exceeded", 100, 5), ("budget.warning", 50, 1)]
        assert (log["data"][0]["event_id"], log["data"][0]["path"]) == (exceeded["event_id"], "POST /v1/chat/completions")
        assert log["data"][0]["request_id"] == refusals[0].headers["x-sluicegate-request-id"]


async def test_a_stream_is_warned_too(tmp_path: Path) -> None:
    """Also where a sign of life has begun it."""
    async with running(tmp_path, limits=LIMITS, options={"ttft": 200}, more="resilience: {keep_alive: 40ms}") as bench:
        await use(bench, 2)
        answer = await use(bench, stream=True)
        assert answer.body.startswith(b": keep-alive")
        assert answer.headers["x-sluicegate-budget-warning"].startswith("limit=key key tokens/day; used=58%")


async def test_a_window_that_has_ended_is_told_of(tmp_path: Path) -> None:
    """Once; what comes then is warned of anew."""
    limits = "[{amount: 40, unit: tokens, per: 2s, warn_at: [0.5]}]"
    with patch.object(alarms, "LOOK_S", 0.05):
        async with running(tmp_path, limits=limits, more=ADMIN) as bench, listening(bench, "?types=budget.*") as socket:
            bench.whole = False  # windows that are over are forgotten
            for _ in range(2):
                await use(bench)
                warning, reset = await heard(socket, "budget.warning", "budget.reset")
                assert (reset["used"], reset["limit"], reset["amount"]) == (0, warning["limit"], 40)
                log = (await ask(bench, "/admin/v1/audit-logs?action=budget.reset"))["data"]
            assert len(log) == 2


async def test_a_key_that_was_made_at_run_time_is_warned_too(tmp_path: Path) -> None:
    """Of limits that no file has."""
    async with running(tmp_path, more=ADMIN) as bench, listening(bench, "?types=budget.*") as socket:
        limit = {"amount": 100, "unit": "tokens", "per": "month", "warn_at": [0.2]}
        made = await bench.worker.changes.create_key("acme", "made", limits=[limit])
        await use(bench, key=made.secret)
        [warning] = await heard(socket, "budget.warning")
        assert (warning["key_id"], warning["limit"], warning["used"]) == ("acme/@made", "key made tokens/month", EACH)
        assert "used=29%" in (await use(bench, key=made.secret)).headers["x-sluicegate-budget-warning"]


async def test_two_gateways_warn_once(tmp_path: Path, redis_url: str) -> None:
    """On one Redis, with the records of both: one warning and one exhaustion in all, heard at both, whoever found it."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    async with contextlib.AsyncExitStack() as stack:
        ledger, _ = stack.enter_context(fresh_redis(redis_url))
        shared: dict[str, Any] = {"limits": LIMITS, "ledger": ledger, "records": f"sqlite:///{tmp_path}/records.db", "more": ADMIN}
        one = await stack.enter_async_context(running(tmp_path / "one", **shared))
        two = await stack.enter_async_context(running(tmp_path / "two", **shared))
        one.whole = two.whole = False  # each has a provider of its own
        async with listening(one, "?types=budget.*") as at_one, listening(two, "?types=budget.*") as at_two:
            for bench in (one, two, one):
                await use(bench)
            for _ in range(3):
                answers = await asyncio.gather(*(bench.chat(max_tokens=OUTPUT) for bench in (one, two)))
                assert {answer.code for answer in answers} == {"budget_exceeded"}
            told = [await heard(socket, "budget.warning", "budget.exceeded") for socket in (at_one, at_two)]
            assert told[0] == told[1]
            await asyncio.sleep(2 * alarms.TOGETHER_S)
            log = (await ask(two, "/admin/v1/audit-logs"))["data"]
            assert sorted((entry["action"], entry["count"]) for entry in log) == [("budget.exceeded", 6), ("budget.warning", 1)]
            for socket in (at_one, at_two):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.3):
                        await socket.recv()
        for bench in (one, two):
            await bench.quiet()


# -- live clients -------------------------------------------------------------------------------------------------------------------------


def tell(bench: Bench, *subjects: str, reason: str = "") -> None:
    for subject in subjects:
        event = Event(event_id=f"evt_{subject}", type="breaker.changed", time="now", subject=subject, reason=reason)
        bench.worker.announcements.auditing.send(event)


async def test_a_client_resumes_where_it_was(tmp_path: Path) -> None:
    """By the id of the last event that it has seen; what it did not ask for is left out. Polling gives the same, in pages."""
    async with running(tmp_path, more=ADMIN) as bench:
        async with listening(bench) as socket:
            tell(bench, "a", "b")
            first, _ = await heard(socket, "breaker.changed", "breaker.changed")
        tell(bench, "c")
        async with listening(bench, f"?after={first['id']}") as socket:
            again = await heard(socket, "breaker.changed", "breaker.changed")
            assert [one["subject"] for one in again] == ["b", "c"]
        async with listening(bench, f"?after={first['id']}&types=key.*,health.changed") as socket:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await socket.recv()
        page = await ask(bench, "/admin/v1/events?limit=2")
        assert [one["subject"] for one in page["data"]] == ["a", "b"]
        assert page["next"] == page["data"][1]["id"] == again[0]["id"]
        rest = await ask(bench, f"/admin/v1/events?limit=2&after={page['next']}")
        assert ([one["subject"] for one in rest["data"]], rest["next"]) == (["c"], None)
        assert (await ask(bench, "/admin/v1/events?types=key.*"))["data"] == []


async def test_who_may_listen(tmp_path: Path) -> None:
    """With the admin key, in a header or in the first message; nobody else, and nobody without one for long."""
    async with running(tmp_path, more=ADMIN) as bench:
        for key, status in (("wrong", 401), ("sk-key", 403)):
            with pytest.raises(InvalidStatus) as refused:
                async with listening(bench, additional_headers={"authorization": f"Bearer {key}"}):
                    pass
            assert refused.value.response.status_code == status
            assert json.loads(refused.value.response.body)["error"]["code"] in ("invalid_admin_key", "not_allowed")
        async with listening(bench, additional_headers={}) as socket:
            await socket.send(json.dumps({"authorization": f"Bearer {KEY}"}))
            await asyncio.sleep(0.1)
            tell(bench, "a")
            await heard(socket, "breaker.changed")
        for message in (json.dumps({"authorization": "Bearer wrong"}), "nonsense", json.dumps({"authorization": 5}), None):
            with patch.object(events, "FIRST_S", 0.2):
                async with listening(bench, additional_headers={}) as socket:
                    if message is not None:
                        await socket.send(message)
                    with pytest.raises(ConnectionClosed) as closed:
                        await socket.recv()
                    assert closed.value.rcvd is not None
                    assert closed.value.rcvd.code == events.POLICY


async def test_one_whose_key_is_taken_away_is_let_go(tmp_path: Path) -> None:
    """It need not say anything for that."""
    async with running(tmp_path, more=ADMIN) as bench, listening(bench) as socket:
        access = bench.worker.surface._admin.state.services.access  # type: ignore[union-attr]
        access._credentials = lambda: ()
        with pytest.raises(ConnectionClosed) as closed:
            async with asyncio.timeout(WAIT_S):
                await socket.recv()
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, closed.value.rcvd.reason.partition(":")[0]) == (events.POLICY, "invalid_admin_key")


@pytest.mark.parametrize(("query", "param"), [("?types=nothing", "types"), ("?after=nothing", "after"), ("?type=budget.*", "type")])
async def test_what_cannot_be_asked_for(tmp_path: Path, query: str, param: str) -> None:
    """Both ways of asking name the field."""
    async with running(tmp_path, more=ADMIN) as bench:
        with pytest.raises(InvalidStatus) as refused:
            async with listening(bench, query):
                pass
        for status, body in (
            (refused.value.response.status_code, json.loads(refused.value.response.body)),
            ((polled := await bench.get(f"/admin/v1/events{query}", KEY)).status, polled.json),
        ):
            assert (status, body["error"]["param"]) == (400, param)


async def test_a_client_that_takes_nothing_is_let_go(tmp_path: Path) -> None:
    """With a reason, and the place at which it may go on; meanwhile nobody else waits, and nothing is kept for it."""
    with patch.object(events, "SLOW_S", 0.2):
        async with running(tmp_path, more=ADMIN) as bench, listening(bench, compression=None) as slow, listening(bench) as quick:
            slow.transport.pause_reading()
            for number in range(8):
                tell(bench, *(f"{number}-{i}" for i in range(200)), reason="x" * 8000)
                await heard(quick, *["breaker.changed"] * 200)
            clients = bench.worker.surface._admin.state.live_clients  # type: ignore[union-attr]
            async with asyncio.timeout(WAIT_S):
                while len(clients) > 1:  # noqa: ASYNC110  (nothing to wait for)
                    await asyncio.sleep(0.02)
            slow.transport.resume_reading()
            with pytest.raises(ConnectionClosed) as closed:
                async with asyncio.timeout(WAIT_S):
                    while True:
                        last = json.loads(await slow.recv())
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == events.LATER
            assert closed.value.rcvd.reason == f"nothing was taken for 0.2 s; come back with after={last['id']}"
            [following] = (await ask(bench, f"/admin/v1/events?limit=1&after={last['id']}"))["data"]
            number, i = (int(part) for part in last["subject"].split("-"))
            assert following["subject"] == (f"{number}-{i + 1}" if i < 199 else f"{number + 1}-0")


async def test_clients_are_bounded(tmp_path: Path) -> None:
    """One more is told so."""
    with patch.object(events, "CLIENTS_MAX", 1):
        async with running(tmp_path, more=ADMIN) as bench, listening(bench):
            with pytest.raises(InvalidStatus) as refused:
                async with listening(bench):
                    pass
            assert refused.value.response.status_code == 503


# -- the audit log ------------------------------------------------------------------------------------------------------------------------


async def test_what_an_administrator_does_is_in_the_log(tmp_path: Path) -> None:
    """Who, from where, what was before and after; as an event, too. No secret is in it."""
    async with running(tmp_path, more=ADMIN) as bench, listening(bench, "?types=chaos.*") as socket:
        body = json.dumps({"deployment": "mock/mock-chat", "status": 503}).encode()
        more = b"x-request-id: from-a-script\r\n"
        assert (await bench.raw(request(body, KEY, path="/admin/v1/chaos", more=more))).status == 201
        await bench.raw(f"DELETE /admin/v1/chaos HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n\r\n".encode())
        made, ended = await heard(socket, "chaos.set", "chaos.cleared")
        assert (made["subject"], made["actor"]) == ("mock/mock-chat", "admin key")
        page = await ask(bench, "/admin/v1/audit-logs?actor=admin%20key&limit=1")
        assert page["has_more"]
        [cleared], [one] = page["data"], (await ask(bench, f"/admin/v1/audit-logs?after={page['next']}"))["data"]
        assert (cleared["event_id"], cleared["after"], cleared["before"]["status"]) == (ended["event_id"], None, 503)
        assert (one["action"], one["address"], one["request_id"], one["path"]) == ("chaos.set", "127.0.0.1", "from-a-script", "POST /admin/v1/chaos")
        assert (one["before"], one["after"]["deployment"]) == (None, "mock/mock-chat")
        assert KEY not in json.dumps([cleared, one])
        reload = b"POST /admin/v1/reload HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %b\r\ncontent-length: 0\r\n\r\n" % KEY.encode()
        assert (await bench.raw(reload)).status == 409  # it was not read from a file
        await bench.worker.announcements.auditing.flush()
        [asked] = (await ask(bench, "/admin/v1/audit-logs?action=config.reload_asked"))["data"]
        assert asked["after"]["problems"] == ["the configuration was not read from a file"]
        assert (await ask(bench, "/admin/v1/audit-logs?since=2099-01-01T00:00:00Z"))["data"] == []
        assert (await bench.get("/admin/v1/audit-logs?after=x", KEY)).error["param"] == "after"
        assert (await bench.get("/admin/v1/audit-logs?since=yesterday", KEY)).error["param"] == "since"


# -- webhooks -----------------------------------------------------------------------------------------------------------------------------


async def test_webhooks_get_it_at_last(tmp_path: Path) -> None:
    """A receiver that fails twice gets the warning the third time, the same each time; Slack's gets words. No request waits for either."""
    got: list[tuple[str, Any]] = []
    enough = asyncio.Event()

    async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        body = json.loads(await reader.readexactly(int(head.split("content-length: ")[1].split("\r\n")[0])))
        path = head.split(" ")[1]
        got.append((path, body))
        failed = path == "/json" and sum(where == path for where, _ in got) < 3
        writer.write(b"HTTP/1.1 %b\r\ncontent-length: 0\r\nconnection: close\r\n\r\n" % (b"500 no" if failed else b"200 ok"))
        writer.close()
        if len(got) == 4:
            enough.set()

    server = await asyncio.start_server(receive, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    more = f"webhooks: [{{url: {url}/json}}, {{url: {url}/slack, format: slack, types: [budget.warning]}}]"
    with patch.object(webhooks, "PAUSE_MS", (50, 50)):
        async with running(tmp_path, limits=LIMITS, more=more) as bench:
            await use(bench, 2)
            async with asyncio.timeout(WAIT_S):
                await enough.wait()
    server.close()
    bodies = {path: [body for where, body in got if where == path] for path in ("/json", "/slack")}
    assert [body["type"] for body in bodies["/json"]] == ["budget.warning"] * 3
    assert len({body["event_id"] for body in bodies["/json"]}) == 1
    assert bodies["/slack"][0]["text"].startswith(":warning: Budget warning: key key tokens/day is at 50% (58 of 100 used) until ")


async def test_events_are_counted(tmp_path: Path) -> None:
    """By type, in the metrics."""
    async with running(tmp_path, limits=LIMITS, more=ADMIN) as bench, listening(bench, "?types=budget.*") as socket:
        await use(bench, 2)
        await heard(socket, "budget.warning")
        assert b'sluicegate_events_total{type="budget.warning"} 1.0' in (await bench.get("/metrics")).body
