"""Signs of life while a stream's first output is waited for, with a clock that the test moves."""

import asyncio
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from sluicegate import answers, keepalive
from sluicegate.dialects import anthropic_messages, openai_chat, openai_completions, openai_responses
from sluicegate.keepalive import KeepAlive
from support_playbook import FakeExchange

EVERY_S = 15.0
DIALECTS = {module.NAME: module for module in (openai_chat, openai_completions, openai_responses, anthropic_messages)}


class FakeTrip:
    """A streaming request that came now and waits."""

    def __init__(self, arrived: float = 100.0, dialect: ModuleType = openai_chat, stream: bool = True) -> None:
        self.exchange = FakeExchange(arrived=arrived)
        self.dialect = dialect
        self.request_id = "req_1"
        self.request: Any = SimpleNamespace(stream=stream)
        self.plan: Any = object()
        self.reply = self.refset = None
        self.answered: Any = None
        self.status = 0


class Stage:
    def __init__(self, *trips: FakeTrip) -> None:
        self.now = 100.0
        self.trips: Any = set(trips)
        self.policy: Any = SimpleNamespace(resilience=SimpleNamespace(keep_alive_ms=int(EVERY_S * 1000)))
        self.keep_alive = KeepAlive(self.trips, lambda: self.policy, lambda: self.now)

    def after(self, seconds: float) -> None:
        self.now += seconds
        self.keep_alive.look(EVERY_S)


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_case_83_a_sign_of_life_is_no_event(dialect: ModuleType) -> None:
    """A comment with one line feed, which no reader takes for the end of an event; over messages a ping. Read beside real events it is nothing."""
    trip = FakeTrip(dialect=dialect)
    stage = Stage(trip)
    stage.after(EVERY_S)
    stage.after(EVERY_S)
    sent = trip.exchange.data
    if dialect is anthropic_messages:
        assert sent == b'event: ping\ndata: {"type": "ping"}\n\n' * 2
    else:
        assert sent == b": keep-alive\n" * 2
    assert [event for event in dialect.StreamReader().feed(sent) if event.deltas or event.finishes or event.failure] == []
    assert (trip.exchange.status, trip.status) == (200, 200)
    assert trip.exchange.sent_headers[b"content-type"].startswith(b"text/event-stream")


def test_what_is_not_known_yet_is_in_no_header() -> None:
    """The ids and how a stream is framed; neither who answers nor what was tried."""
    trip = FakeTrip()
    Stage(trip).after(EVERY_S)
    assert set(trip.exchange.sent_headers) == {b"x-request-id", b"x-sluicegate-request-id", b"content-type", b"cache-control", b"x-accel-buffering"}


def test_each_waits_for_its_own_time() -> None:
    """The first one after `keep_alive` from the request, then each so long after the last; not one for a request that is answered before."""
    early, late = FakeTrip(100.0), FakeTrip(109.0)
    stage = Stage(early, late)
    told: list[tuple[int, int]] = []
    for _ in range(8):
        stage.after(5)
        told.append((early.exchange.data.count(b":"), late.exchange.data.count(b":")))
    assert told == [(0, 0), (0, 0), (1, 0), (1, 0), (1, 1), (2, 1), (2, 1), (2, 2)]


@pytest.mark.parametrize("why", ["unary", "answered", "no body yet", "no plan yet", "gone"])
def test_who_does_not_wait_for_a_stream_is_told_nothing(why: str) -> None:
    """A unary answer would be spoiled by it, an event that has begun be torn."""
    trip = FakeTrip(stream=why != "unary")
    if why == "answered":
        trip.answered = object()
    elif why == "no body yet":
        trip.request = None
    elif why == "no plan yet":
        trip.plan = None
    elif why == "gone":
        trip.exchange.leave()
    Stage(trip).after(10 * EVERY_S)
    assert (trip.exchange.started, trip.exchange.data, trip.status) == (False, b"", 0)


def test_requests_that_have_ended_are_forgotten() -> None:
    """Nothing is kept of them."""
    trip = FakeTrip()
    stage = Stage(trip)
    stage.after(EVERY_S)
    stage.trips.clear()
    stage.after(EVERY_S)
    assert stage.keep_alive._told == {}


async def test_it_goes_on_whatever_one_look_meets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure is logged and ends nothing; where it is off nobody is looked at."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        stage.now += seconds
        if len(pauses) == 2:
            stage.policy.resilience.keep_alive_ms = 400
        if len(pauses) > 12:
            raise asyncio.CancelledError

    def keep_alive(_trip: Any) -> None:
        looks.append(stage.now)
        raise ValueError

    looks: list[float] = []
    stage = Stage(FakeTrip())
    stage.policy.resilience.keep_alive_ms = 0
    monkeypatch.setattr(keepalive, "asyncio", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(answers, "keep_alive", keep_alive)
    with pytest.raises(asyncio.CancelledError):
        await stage.keep_alive.run()
    assert pauses == [1.0, 1.0] + [0.05] * 11
    assert len(looks) == 10
