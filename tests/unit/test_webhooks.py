"""Webhooks, against receivers on a real socket: what they get, how it is signed, and what becomes of what is not taken."""

import asyncio
import contextlib
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from sluicegate import webhooks
from sluicegate.core.tenants import Webhook
from sluicegate.events import Event
from sluicegate.records import audit
from sluicegate.records.audit import Audit, Queued
from sluicegate.webhooks import Webhooks, in_words, signature

NOW_MS = 1_764_514_790_000
EVENT = Event(event_id="evt_1", type="budget.warning", time="2025-11-30T14:59:50.000Z", limit="key k usd/month", unit="usd", threshold_percent=80)


CLOSED, SILENT = 0, -1


class Receiver:
    """Answers with the statuses it is given, in order, or not at all; the last one goes on."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.got: list[tuple[bytes, dict[str, str], bytes]] = []
        self.port = 0
        self.tasks: list[asyncio.Task[Any]] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.append(task)
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while True:
                first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
                body = await reader.readexactly(int(headers["content-length"]))
                self.got.append((first.encode(), headers, body))
                status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
                if status == SILENT:
                    await asyncio.Event().wait()
                if status == CLOSED:
                    break
                writer.write(b"HTTP/1.1 %d X\r\ncontent-length: 2\r\n\r\nok" % status)


@contextlib.asynccontextmanager
async def receiving(*statuses: int) -> AsyncIterator[Receiver]:
    receiver = Receiver(*statuses)
    server = await asyncio.start_server(receiver, "127.0.0.1", 0)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        for task in receiver.tasks:
            task.cancel()
        await asyncio.gather(*receiver.tasks, return_exceptions=True)


class Case:
    """One worker's webhooks, on a database that others may share."""

    def __init__(self, url: str, *hooks: Webhook) -> None:
        self.store = Audit(url)
        self.now_ms = NOW_MS
        self.outcomes: list[str] = []
        self.sent = asyncio.Event()
        self.webhooks = Webhooks(self.store, lambda: self.now_ms, self.note, lambda: 1.0)
        self.webhooks.apply(hooks)

    def note(self, outcome: str) -> None:
        self.outcomes.append(outcome)
        self.sent.set()

    async def queue(self, *events: Event, webhook: str = "h") -> None:
        rows = [Queued(webhook, event.event_id, webhooks.msgspec.json.encode(event).decode(), self.now_ms) for event in events]
        await self.store.call(partial(audit.queue, rows=rows))

    async def send(self) -> None:
        for webhook in ("h", webhooks.OTHERS):
            while await self.webhooks.send_due(webhook):
                pass

    async def left(self) -> int:
        return len(await self.store.call(partial(audit.take, now_ms=2 * NOW_MS, lease_ms=0, limit=99, webhooks=(), others=True)))

    async def close(self) -> None:
        await self.webhooks.close()
        await self.store.close()


@pytest.fixture
def url(tmp_path: Any) -> str:
    return f"sqlite:///{tmp_path}/records.db"


def hook(receiver: Receiver, **more: Any) -> Webhook:
    fields: dict[str, Any] = {
        "id": "h",
        "origin": f"http://127.0.0.1:{receiver.port}",
        "target": b"/in?x=1",
        "format": "json",
        "types": ("budget.*",),
    }
    return Webhook(**(fields | more))


async def test_an_event_is_delivered_signed(url: str) -> None:
    """The body is the event; the signature is over the time and the body, under the secret; the configured headers go along, but not over ours."""
    async with receiving(204) as receiver:
        case = Case(url, hook(receiver, secret=b"s3", headers=((b"x-team", b"ops"), (b"x-sluicegate-event-id", b"forged"))))
        await case.queue(EVENT)
        await case.send()
        [(first, headers, body)] = receiver.got
        assert first == b"POST /in?x=1 HTTP/1.1"
        assert json.loads(body) == webhooks.msgspec.to_builtins(EVENT)
        time, _, digest = headers["x-sluicegate-signature"].partition(",v1=")
        assert time == f"t={NOW_MS // 1000}"
        assert digest == hmac.new(b"s3", time[2:].encode() + b"." + body, hashlib.sha256).hexdigest()
        assert (headers["x-sluicegate-event-id"], headers["x-sluicegate-event"], headers["x-team"]) == ("evt_1", "budget.warning", "ops")
        assert (case.outcomes, await case.left()) == (["delivered"], 0)
        await case.close()


async def test_without_a_secret_nothing_is_signed(url: str) -> None:
    """Slack's receivers get words."""
    async with receiving(200) as receiver:
        case = Case(url, hook(receiver, format="slack"))
        await case.queue(EVENT)
        await case.send()
        [(_, headers, body)] = receiver.got
        assert "x-sluicegate-signature" not in headers
        assert json.loads(body) == {"text": ":warning: Budget warning: key k usd/month is at 80%"}
        await case.close()


async def test_a_receiver_that_fails_twice_gets_it_the_third_time(url: str, logged: list[Any]) -> None:
    """A connection that is closed without an answer, and a 500; each time later, and no sooner. The log says when it is away and when it is back, and
    nothing of its path."""
    async with receiving(CLOSED, 500, 200) as receiver:
        case = Case(url, hook(receiver))
        await case.queue(EVENT)
        for tries, pause_ms in ((1, 1_000), (2, 2_000)):
            await case.send()
            assert (len(receiver.got), case.outcomes) == (tries, ["failed"] * tries)
            case.now_ms += pause_ms - 1
            await case.send()
            assert len(receiver.got) == tries
            case.now_ms += 1
        await case.send()
        assert [json.loads(body)["event_id"] for _, _, body in receiver.got] == ["evt_1"] * 3
        assert (case.outcomes, await case.left()) == (["failed", "failed", "delivered"], 0)
        assert [(line["from"], line["to"]) for line in logged] == [("up", "away"), ("away", "up")]
        assert "/in" not in repr(logged)
        await case.close()


async def test_what_is_never_taken_is_given_up(url: str, logged: list[Any]) -> None:
    """After so many tries, with a line in the log; it took an hour at least, and not a day."""
    async with receiving(404) as receiver:
        case = Case(url, hook(receiver))
        await case.queue(EVENT)
        for _ in range(webhooks.TRIES_MAX):
            await case.send()
            case.now_ms += webhooks.PAUSE_MS[1]
        assert len(receiver.got) == webhooks.TRIES_MAX
        assert (case.outcomes[-1], await case.left()) == ("given_up", 0)
        assert [line["reason"] for line in logged if line["log_level"] == "error"] == ["it answered 404"]
        pauses = [min(webhooks.PAUSE_MS[0] * 2**n, webhooks.PAUSE_MS[1]) for n in range(webhooks.TRIES_MAX - 1)]
        assert 3_600_000 < sum(pauses) < 86_400_000
        await case.close()


async def test_two_workers_send_each_event_once(url: str) -> None:
    """Whoever takes it has it."""
    async with receiving(200) as receiver:
        cases = [Case(url, hook(receiver)), Case(url, hook(receiver))]
        await cases[0].queue(*(webhooks.msgspec.structs.replace(EVENT, event_id=f"evt_{n}") for n in range(50)))
        await asyncio.gather(*(case.send() for case in cases))
        assert sorted(headers["x-sluicegate-event-id"] for _, headers, _ in receiver.got) == sorted(f"evt_{n}" for n in range(50))
        for case in cases:
            await case.close()


async def test_what_a_dead_worker_had_taken_is_sent_by_another(url: str) -> None:
    """When its lease is over."""
    async with receiving(200) as receiver:
        case = Case(url, hook(receiver))
        await case.queue(EVENT)
        await case.store.call(partial(audit.take, now_ms=NOW_MS, lease_ms=webhooks.LEASE_MS, limit=9, webhooks=("h",)))
        await case.send()
        assert receiver.got == []
        case.now_ms += webhooks.LEASE_MS
        await case.send()
        assert case.outcomes == ["delivered"]
        await case.close()


async def test_a_webhook_that_another_worker_knows_is_left_to_it(url: str) -> None:
    """A reload reaches one worker before another."""
    case = Case(url)
    await case.queue(EVENT)
    await case.send()
    assert (case.outcomes, await case.left()) == (["failed"], 1)
    await case.close()


async def test_nobody_is_there(url: str) -> None:
    """Nothing listens: it is tried again."""
    async with receiving(200) as receiver:
        pass
    case = Case(url, hook(receiver))
    await case.queue(EVENT)
    await case.send()
    assert (case.outcomes, await case.left()) == (["failed"], 1)
    await case.close()


async def test_it_runs_by_itself(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sends when it is woken, and looks by itself for what others have left."""
    monkeypatch.setattr(webhooks, "POLL_S", 0.01)
    async with receiving(200) as receiver:
        case = Case(url, hook(receiver))
        task = asyncio.create_task(case.webhooks.run())
        await case.queue(EVENT)
        async with asyncio.timeout(30):
            await case.sent.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert len(receiver.got) == 1
        await case.close()


async def test_one_that_does_not_answer_keeps_no_other_waiting(url: str) -> None:
    """Each has a task of its own."""
    async with receiving(200) as receiver, receiving(SILENT) as silent:
        case = Case(url, hook(silent, id="silent"), hook(receiver))
        await case.queue(*(webhooks.msgspec.structs.replace(EVENT, event_id=f"evt_{n}") for n in range(40)), webhook="silent")
        task = asyncio.create_task(case.webhooks.run())
        await case.queue(EVENT)
        case.webhooks.soon()
        async with asyncio.timeout(30):
            await case.sent.wait()
        assert case.outcomes == ["delivered"]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await case.close()


async def test_a_reload_changes_who_is_told(url: str) -> None:
    """Types and receivers are those of the configuration of the moment."""
    async with receiving(200) as receiver:
        case = Case(url, hook(receiver))
        assert (case.webhooks.of("budget.reset"), case.webhooks.of("key.created")) == (("h",), ())
        case.webhooks.apply([hook(receiver, types=("key.created",)), hook(receiver, id="i", types=("key.*",))])
        assert (case.webhooks.of("budget.reset"), case.webhooks.of("key.created")) == ((), ("h", "i"))
        case.webhooks.apply([])
        assert case.webhooks.of("key.created") == ()
        await case.close()


def test_a_signature_is_as_it_is_documented() -> None:
    """Under another secret, at another time, or for another body it is another."""
    made = signature(b"secret", 1_764_514_790, b'{"a":1}')
    assert made == b"t=1764514790,v1=" + hmac.new(b"secret", b'1764514790.{"a":1}', hashlib.sha256).hexdigest().encode()
    assert len({made, signature(b"other", 1_764_514_790, b'{"a":1}'), signature(b"secret", 1_764_514_791, b'{"a":1}')}) == 3


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (
            {"type": "budget.exceeded", "limit": "team ml usd/month", "unit": "usd", "threshold_percent": 100, "amount": 5.0, "used": 4.99}
            | {"resets_at": "2025-12-01T00:00:00Z", "reason": "<!channel>"},
            ":no_entry: Budget exceeded: team ml usd/month is at 100% ($4.99 of $5 used) until 2025-12-01T00:00:00Z (&lt;!channel&gt;)",
        ),
        ({"type": "budget.reset", "limit": "key k tokens/day", "unit": "tokens", "amount": 5.0}, ":white_check_mark: Budget reset: key k tokens/day"),
        (
            {
                "type": "request.refused",
                "limit": "key k tokens/minute",
                "unit": "tokens",
                "amount": 500.0,
                "used": 480.0,
                "count": 12,
                "reason": "rate",
            },
            "request.refused: key k tokens/minute (480 of 500 used) 12 times (rate)",
        ),
        (
            {"type": "breaker.changed", "subject": "openai/gpt-4o", "before": "closed", "after": "open", "reason": "5 failures in a row"},
            "breaker.changed: openai/gpt-4o closed -&gt; open (5 failures in a row)",
        ),
        ({"type": "key.blocked", "subject": "acme/@k", "actor": "ops"}, "key.blocked: acme/@k by ops"),
    ],
)
def test_events_in_words(event: dict[str, Any], words: str) -> None:
    """As Slack takes them: nothing that was sent can call a channel."""
    assert in_words(Event(event_id="", time="", **event)) == words
