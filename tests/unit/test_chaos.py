"""Faults on purpose: how long they last, who hears of them, and what they make of a call whose upstream the test plays."""

import asyncio
import itertools
import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.bus import Message
from sluicegate.chaos import FOR_MS_MAX, KIND, Chaos, Fault
from sluicegate.http.upstream import Call
from support_pool import OK, Net, failure, read_all
from support_sockets import settle

NOW_MS = 1_000_000
STREAM = OK + b"Content-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"


class Timer:
    def __init__(self, later: "Later", entry: tuple[float, Callable[[], None]]) -> None:
        self.later, self.entry = later, entry

    def cancel(self) -> None:
        if self.entry in self.later.entries:
            self.later.entries.remove(self.entry)


class Later:
    """Timers that the test lets pass."""

    def __init__(self) -> None:
        self.entries: list[tuple[float, Callable[[], None]]] = []

    def __call__(self, seconds: float, callback: Callable[[], None]) -> Any:
        self.entries.append((seconds, callback))
        return Timer(self, self.entries[-1])

    def pass_(self) -> None:
        entries, self.entries = self.entries, []
        for _, callback in entries:
            callback()


class Calls:
    disturb: Callable[[Call, str], Call] | None = None


class Stage:
    """Chaos in one worker that knows the deployments p/a and p/b."""

    def __init__(self) -> None:
        self.calls = Calls()
        self.later = Later()
        self.told: list[tuple[str, Any]] = []
        self.now_ms = NOW_MS
        self.drawn = 0.0

        def publish(kind: str, data: Any) -> None:
            self.told.append((kind, data))

        known = ("p/a", "p/b").__contains__
        self.chaos = Chaos(self.calls, known, publish, self.later, lambda: self.now_ms, lambda: self.drawn)

    def hear(self, data: Any) -> None:
        self.chaos.hear(Message("1", KIND, 0, "other", data))


def fault(for_ms: int = 60_000, **what: Any) -> Fault:
    return Fault(NOW_MS + for_ms, **({"failure_rate": 1.0} | what))


def test_a_fault_is_in_force_until_its_time_is_over() -> None:
    """Calls are disturbed from when it is set; it is logged with from, to and reason, at its end too; then calls are left alone again."""
    stage = Stage()
    with structlog.testing.capture_logs() as logs:
        stage.chaos.set("p/a", fault(30_000, status=503), "set by admin key")
        assert stage.calls.disturb == stage.chaos.disturb
        assert [seconds for seconds, _ in stage.later.entries] == [30.0]
        stage.later.pass_()
    assert stage.calls.disturb is None
    assert stage.chaos.faults == {}
    assert [(line["event"], line["deployment"], line["from"], line["to"], line["reason"]) for line in logs] == [
        ("chaos state", "p/a", "none", "100% answered 503", "set by admin key"),
        ("chaos state", "p/a", "100% answered 503", "none", "its time is over"),
    ]


def test_a_later_fault_takes_the_place_of_an_earlier_one() -> None:
    """With a timer of its own; the earlier one's end ends nothing."""
    stage = Stage()
    stage.chaos.set("p/a", fault(30_000, status=503), "")
    later = fault(50_000, latency_ms=2_000, failure_rate=0.0)
    stage.chaos.set("p/a", later, "")
    assert stage.chaos.faults == {"p/a": later}
    assert [seconds for seconds, _ in stage.later.entries] == [50.0]


def test_other_workers_hear_of_it() -> None:
    """What one is told is what another then has; the end too, of one or of all."""
    one, other = Stage(), Stage()
    set_ = fault(latency_ms=10, status=429)
    for deployment in ("p/a", "p/b"):
        one.chaos.set(deployment, set_, "")
        other.hear(msgspec.json.decode(msgspec.json.encode(one.told[-1][1])))
    assert other.chaos.faults == {"p/a": set_, "p/b": set_}
    assert one.chaos.clear("p/a", "") == ["p/a"]
    other.hear(one.told[-1][1])
    assert list(other.chaos.faults) == ["p/b"]
    assert one.chaos.clear(None, "") == ["p/b"]
    other.hear(one.told[-1][1])
    assert (other.chaos.faults, other.calls.disturb, other.told) == ({}, None, [])


@pytest.mark.parametrize("of_all", [False, True])
def test_the_later_word_stands_in_whatever_order_it_is_heard(of_all: bool) -> None:
    """A fault is set at one worker and ended at another before either has heard of the other: it is over at both; and set again, in force at both."""
    one, other = Stage(), Stage()
    one.chaos.set("p/a", fault(status=429), "")
    other.now_ms += 1
    other.chaos.clear(None if of_all else "p/a", "")
    other.hear(one.told[-1][1])
    one.hear(other.told[-1][1])
    assert (one.chaos.faults, other.chaos.faults) == ({}, {})
    again = fault(status=500)
    one.now_ms += 2
    one.chaos.set("p/a", again, "")
    one.hear(other.told[-1][1])
    other.hear(one.told[-1][1])
    assert (one.chaos.faults, other.chaos.faults) == ({"p/a": again}, {"p/a": again})


def test_what_is_said_at_the_same_time_is_decided_by_a_draw() -> None:
    """So that all workers end with the same."""
    one, other = Stage(), Stage()
    one.drawn, other.drawn = 0.2, 0.7
    one.chaos.set("p/a", fault(status=429), "")
    other.chaos.set("p/a", fault(status=500), "")
    other.hear(one.told[-1][1])
    one.hear(other.told[-1][1])
    assert one.chaos.faults == other.chaos.faults == {"p/a": fault(status=500)}


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"deployment": 5, "fault": None, "at": [NOW_MS, 0.5]},
        {"deployment": "p/a", "at": [NOW_MS, 0.5], "fault": {"until_ms": NOW_MS + 5, "failure_rate": 2}},
        {"deployment": "p/a", "at": [NOW_MS, 0.5], "fault": {"until_ms": NOW_MS + 5, "latency_ms": -1}},
        {"deployment": "p/a", "at": [NOW_MS, 0.5], "fault": {"until_ms": NOW_MS + 5, "cut_bytes": -1}},
    ],
)
def test_what_nobody_can_have_been_told_changes_nothing(data: Any) -> None:
    """A channel that others can write to may say anything."""
    stage = Stage()
    with pytest.raises(msgspec.ValidationError):
        stage.hear(data)
    assert stage.chaos.faults == {}


def test_a_message_is_bounded_in_time_and_to_known_deployments() -> None:
    """One that is over, or of a deployment that is not here, sets nothing; none lasts for longer than an hour."""
    stage = Stage()
    set_ = msgspec.to_builtins(fault(10 * FOR_MS_MAX))
    stage.hear({"deployment": "p/unknown", "fault": set_, "at": [NOW_MS, 0.5]})
    stage.hear({"deployment": "p/a", "fault": set_ | {"until_ms": NOW_MS}, "at": [NOW_MS, 0.5]})
    assert stage.chaos.faults == {}
    stage.hear({"deployment": "p/a", "fault": set_, "at": [NOW_MS, 0.6]})
    assert [seconds for seconds, _ in stage.later.entries] == [FOR_MS_MAX / 1000]


async def disturbed(net: Net, drawn: float = 0.0, **what: Any) -> tuple[Call, "asyncio.Task[None]"]:
    """A call that has been started while a fault is in force."""
    stage = Stage()
    stage.drawn = drawn
    stage.chaos.set("p/a", fault(**what), "")
    assert stage.calls.disturb is not None
    untouched = net.begin()
    assert stage.calls.disturb(untouched, "p/b") is untouched
    call = stage.calls.disturb(untouched, "p/a")
    task = asyncio.get_running_loop().create_task(call.start())
    await settle()
    return call, task


async def test_a_status_is_answered_in_place_of_a_call() -> None:
    """Nothing is connected or written, and what is answered is an error that every dialect can read."""
    net = Net()
    call, task = await disturbed(net, status=529)
    await task
    assert (call.status, call.complete, call.written, net.loop.transports) == (529, True, False, [])
    assert msgspec.json.decode(call.take())["error"]["code"] == "chaos"
    call.close()


@pytest.mark.parametrize(("drawn", "status"), [(0.29, 503), (0.3, 200)])
async def test_only_a_share_of_calls_fails(drawn: float, status: int) -> None:
    """Below the rate a call fails, else it goes upstream as ever."""
    net = Net()
    call, task = await disturbed(net, drawn, failure_rate=0.3, status=503)
    if status == 200:
        net.last.feed(OK + b"Content-Length: 2\r\n\r\nhi")
    await task
    assert call.status == status
    assert status == 503 or await read_all(call) == b"hi"


async def test_an_answer_that_is_late() -> None:
    """The request is sent at once, and the answer, however soon it came, is seen when the latency has passed."""
    net = Net()
    call, task = await disturbed(net, failure_rate=0.0, latency_ms=3_000)
    net.last.feed(OK + b"Content-Length: 2\r\n\r\nhi")
    await settle()
    net.loop.advance(2.9)
    await settle()
    assert not task.done()
    net.loop.advance(0.2)
    await task
    assert (call.written, await read_all(call)) == (True, b"hi")


@pytest.mark.parametrize(("status", "written"), [(0, True), (503, False)])
async def test_an_answer_that_is_later_than_a_limit(status: int, written: bool) -> None:
    """It fails as a slow upstream's does, when that would: as one that may bill only if something was sent."""
    net = Net()
    _, task = await disturbed(net, latency_ms=20_000, status=status, cut_bytes=None if status else 5)
    if not status:
        net.last.feed(OK + b"Content-Length: 2\r\n\r\nhi")
    await settle()
    net.loop.advance(9.9)
    await settle()
    assert not task.done()
    net.loop.advance(0.2)
    error = await failure(task)
    assert (error.reason, error.written) == ("timeout", written)


async def test_a_late_call_can_be_closed() -> None:
    """A client that leaves does not wait for the latency."""
    net = Net()
    call, task = await disturbed(net, status=503, latency_ms=5_000)
    call.close()
    assert (await failure(task)).reason == "closed"


@pytest.mark.parametrize("whole", [True, False])
async def test_bytes_and_then_a_reset(whole: bool) -> None:
    """So many bytes of the body arrive, whether the rest is there already or not; then the connection is gone, and never looks complete."""
    net = Net()
    call, task = await disturbed(net, cut_bytes=3)
    net.last.feed(OK + b"Content-Length: 8\r\n\r\nab")
    if whole:
        net.last.feed(b"cdefgh")
    await task
    if whole:
        assert (call.complete, call.take()) == (False, b"abc")
    else:
        assert await call.read() == b"ab"
        net.last.feed(b"cdef")
        assert await call.read() == b"c"
    error = await failure(call.read())
    assert (error.reason, error.written) == ("reset", True)
    assert whole or net.last.aborted


async def test_an_answer_shorter_than_the_cut_is_whole() -> None:
    """It ends as it would have."""
    net = Net()
    call, task = await disturbed(net, cut_bytes=30)
    net.last.feed(OK + b"Content-Length: 5\r\n\r\nhello")
    await task
    assert (call.complete, call.take(), await read_all(call)) == (True, b"hello", b"")


async def test_an_answer_that_is_no_stream_has_no_events() -> None:
    """It is not cut where events are counted."""
    net = Net()
    call, task = await disturbed(net, cut_events=0)
    net.last.feed(OK + b"Content-Type: application/json\r\nContent-Length: 6\r\n\r\n{}\n\n\n\n")
    await task
    assert await read_all(call) == b"{}\n\n\n\n"


@given(st.integers(0, 4), st.sampled_from([b"\n\n", b"\r\n\r\n", b"\r\r"]), st.lists(st.integers(0, 60), max_size=6))
def test_events_and_then_a_reset(count: int, end: bytes, cuts: list[int]) -> None:
    """However a stream comes in pieces, exactly so many whole events arrive, and then the connection is gone."""
    text = b"".join(b"data: %d%b" % (i, end) for i in range(3))
    places = [0, *sorted({cut for cut in cuts if cut < len(text)}), len(text)]

    async def receive() -> tuple[bytes, str]:
        net = Net()
        call, task = await disturbed(net, cut_events=count)
        net.last.feed(STREAM)
        await task
        seen = b""
        for start, stop in itertools.pairwise(places):
            if stop > start and not net.last.aborted:
                net.last.feed(b"%x\r\n%b\r\n" % (stop - start, text[start:stop]))
                seen += call.take()
        if not net.last.aborted:
            net.last.feed(b"0\r\n\r\n")
        try:
            return seen + await read_all(call), "complete"
        except Exception as error:
            return seen, str(getattr(error, "reason", error))

    expected = b"".join(re.findall(rb"data: .(?:\r\n\r\n|\n\n|\r\r)", text)[:count])
    assert asyncio.run(receive()) == ((expected, "reset") if count <= 3 else (text, "complete"))
