"""The thread that sends spans: what waits, what is dropped, what is lost, what the log has."""

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from sluicegate.core.record import Record
from sluicegate.observe.sending import Sender
from sluicegate.observe.tracing import Finished, Step


def finished(steps: int = 0) -> Finished:
    """2 spans, and one for each step."""
    return Finished(1, 2, 0, "", 0, 0.0, 1.0, "/v1/chat/completions", "acme", False, Record("req_1", 1), [Step("x", 0, 1, {})] * steps, [])


class Receiver:
    """Takes what it is sent when it is let; `says` is its answer."""

    def __init__(self) -> None:
        self.got: list[list[int]] = []
        self.says: str | Exception = ""
        self.asked = threading.Semaphore(0)
        self.let = threading.Semaphore(0)
        self.interrupted = threading.Event()

    def exporter(self) -> Any:
        return self.export, self.interrupt

    def interrupt(self) -> None:
        self.interrupted.set()
        self.let.release(100)

    def export(self, batch: Sequence[Finished]) -> str:
        self.asked.release()
        assert self.let.acquire(timeout=5)
        self.got.append([each.spans for each in batch])
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


def made(receiver: Receiver, **bounds: Any) -> Sender:
    sender = Sender(receiver.exporter, **{"capacity": 20, "batch": 6, "delay_s": 60.0, **bounds})
    sender.start()
    return sender


def test_a_full_batch_is_sent_at_once_and_the_rest_at_the_end(receiver: Receiver) -> None:
    """In the order in which they were put down, no more spans together than a batch has, whole requests always."""
    sender = made(receiver, capacity=100)
    receiver.let.release(100)
    for steps in (0, 0, 3, 9):
        sender.put(finished(steps))
    assert receiver.asked.acquire(timeout=5)
    sender.put(finished())
    sender.stop(5.0)
    assert [spans for batch in receiver.got for spans in batch] == [2, 2, 5, 11, 2]
    assert all(sum(batch) <= 6 or len(batch) == 1 for batch in receiver.got)
    assert (sender.sent, sender.dropped) == (22, 0)


def test_what_has_no_room_is_dropped_and_counted(receiver: Receiver) -> None:
    """While a receiver takes its time the loop goes on: what waits stays within its bound."""
    sender = made(receiver)
    for _ in range(3):
        sender.put(finished())
    assert receiver.asked.acquire(timeout=5)  # it has 6 of 20 now, and says nothing
    for _ in range(20):
        sender.put(finished())
    assert sender.dropped == 2 * 20 - 14
    receiver.let.release(100)
    sender.stop(5.0)
    assert (sender.sent, sender.failed) == (20, 0)
    sender.put(finished())
    assert sender.dropped == 2 * 20 - 14 + 2


@pytest.mark.parametrize("says", ["nobody listens", OSError("nobody listens")])
def test_a_receiver_that_is_away_is_one_line_and_one_when_it_is_back(receiver: Receiver, logged: list[Any], says: str | Exception) -> None:
    """What it did not take is counted as failed; what comes next is tried all the same."""
    sender = made(receiver, batch=2)
    receiver.let.release(100)
    receiver.says = says
    for _ in range(3):
        sender.put(finished())
        assert receiver.asked.acquire(timeout=5)
    while sender.failed < 6:
        time.sleep(0.001)
    receiver.says = ""
    sender.put(finished())
    sender.stop(5.0)
    assert (sender.sent, sender.failed) == (2, 6)
    lines = [(line["from"], line["to"], line["log_level"]) for line in logged]
    assert lines == [("up", "away", "warning"), ("away", "up", "info")]
    assert "nobody listens" in logged[0]["reason"]
    assert logged[1]["lost_spans"] == 6


def test_an_end_does_not_wait_for_a_receiver_that_says_nothing(receiver: Receiver) -> None:
    """After its patience the export is interrupted."""
    sender = made(receiver, batch=2)
    sender.put(finished())
    assert receiver.asked.acquire(timeout=5)
    sender.stop(0.01)
    assert receiver.interrupted.is_set()


@pytest.mark.parametrize("away", [False, True])
def test_an_end_takes_no_longer_than_its_patience(receiver: Receiver, monkeypatch: pytest.MonkeyPatch, away: bool) -> None:
    """Whoever waits for a receiver that hangs, and does not heed an interruption, is left behind."""
    waits: list[float] = []
    monkeypatch.setattr(receiver, "interrupt", lambda: None)
    sender = made(receiver, batch=2)
    if away:
        receiver.says = "no"
        receiver.let.release()
        sender.put(finished())
        while sender.failed < 2:
            time.sleep(0.001)
        assert receiver.asked.acquire(timeout=5)
    sender.put(finished())
    assert receiver.asked.acquire(timeout=5)
    monkeypatch.setattr(sender._thread, "join", waits.append)
    sender.stop(2.0)
    assert sum(waits) <= (0.1 if away else 2.0)
    receiver.let.release(100)


def test_what_cannot_be_made_is_told_when_there_is_something_to_send(logged: list[Any]) -> None:
    """An environment that the library cannot read: nothing is sent, the log says why, nothing else happens."""

    def exporter() -> Any:
        raise ValueError("no such certificate")

    sender = Sender(exporter, delay_s=60.0)
    sender.start()
    sender.put(finished())
    sender.stop(5.0)
    assert sender.failed == 2
    assert [line["reason"] for line in logged] == ["ValueError: no such certificate"]
