"""The lines of the request log, and what becomes of prompts: in steps of the loop, within bounds, never silently missing."""

import asyncio
import json
import tracemalloc
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from sluicegate.core.matching import SLICE, Masks, Rule
from sluicegate.core.prices import Origin
from sluicegate.core.record import Attempt, Record
from sluicegate.core.redact import BUILT_IN, How
from sluicegate.core.tenants import Scope
from sluicegate.observe import request_log
from sluicegate.observe.request_log import RequestLog

RECORD = Record(
    "req_1",
    1_764_460_800_007,
    "acme/team/@laptop",
    "chat",
    "openai/gpt",
    (Attempt("openai/gpt", "200", 5, "yes"),),
    "openai_chat",
    status=200,
    input_tokens=100,
    output_tokens=30,
    cost_nano_usd=12_345,
    source="reported",
    cost_source="calculated",
    latency_us=12_345,
    first_byte_us=4_000,
    overhead_us=300,
    cache="miss",
    trace_id="0af7651916cd43dd8448eb211c80319c",
    rules="acme",
)
PATH = (
    Scope("*", "global", "all tenants"),
    Scope("acme", "organization", "acme"),
    Scope("acme/team", "team", "team"),
    Scope("acme/team/@laptop", "key", "laptop"),
    Scope("key_7", "key", "a sub-key"),
)
ORIGIN = Origin("catalogue", "2026-11-01", "https://prices.example/", "openai:gpt")


class File:
    """Takes lines, or not."""

    def __init__(self) -> None:
        self.lines: list[Any] = []
        self.batches: list[int] = []
        self.lost = 0
        self.closed = False
        self.room = 1 << 30

    def takes(self, size: int) -> bool:
        return size <= self.room

    def write(self, lines: list[bytes]) -> bool:
        self.batches.append(len(lines))
        self.lines += [json.loads(line) for line in lines]
        assert all(line.endswith(b"}\n") and line.count(b"\n") == 1 for line in lines)
        return True

    def close(self, _timeout_s: float) -> None:
        self.closed = True


class Loop:
    """Runs callbacks when the test says so; its clock stands still but for `tick_s` at each look."""

    def __init__(self, tick_s: float = 0.0) -> None:
        self.due: list[Any] = []
        self.now_s = 0.0
        self.tick_s = tick_s

    def call_later(self, _delay_s: float, callback: Any) -> None:
        self.due.append(callback)

    def call_soon(self, callback: Any) -> None:
        self.due.append(callback)

    def clock(self) -> float:
        self.now_s += self.tick_s
        return self.now_s

    def turn(self) -> bool:
        due, self.due = self.due, []
        for callback in due:
            callback()
        return bool(self.due)


def ended(*texts: str) -> Any:
    """A trip that is over."""
    answered = SimpleNamespace(deployment=SimpleNamespace(price_origin=ORIGIN))
    return SimpleNamespace(request=SimpleNamespace(texts=list(texts)), key=SimpleNamespace(path=PATH), answered=answered)


def logging(how: How = "redacted", masks: Masks = BUILT_IN, tick_s: float = 0.0) -> tuple[RequestLog, File, Loop]:
    loop, file = Loop(tick_s), File()
    return RequestLog(file, how, masks, loop, loop.clock), file, loop  # type: ignore[arg-type]


def test_a_line() -> None:
    """Who, what, where, how many tokens and counted by whom, what it cost and by which price, how long it took, and what was asked."""
    log, file, loop = logging()
    log(ended("mail bob@example.com", "and more"), RECORD)
    assert file.lines == []
    loop.turn()
    (line,) = file.lines
    assert (line["time"], line["tenant"], line["key_id"]) == ("2025-11-30T00:00:00.007Z", "acme/team", "acme/team/@laptop")
    assert line["price"] == {"rule": "catalogue", "date": "2026-11-01", "source": "https://prices.example/", "entry": "openai:gpt"}
    assert line["prompt"] == {"text": "mail [EMAIL]\nand more", "characters": 29}
    for name in ("model", "deployment", "input_tokens", "source", "cost_nano_usd", "cost_source", "latency_us", "first_byte_us", "overhead_us"):
        assert line[name] == getattr(RECORD, name)
    assert (line["cache"], line["trace_id"], line["rules"], line["attempts"][0]["outcome"]) == ("miss", RECORD.trace_id, "acme", "200")


def test_a_line_is_a_record() -> None:
    """Whoever reads records reads lines of the log, too."""
    log, file, loop = logging()
    log(ended("x"), RECORD)
    loop.turn()
    assert msgspec.json.decode(json.dumps(file.lines[0]), type=Record) == RECORD


def test_a_request_of_nobody() -> None:
    """Has neither tenant nor price nor prompt."""
    log, file, loop = logging()
    log(SimpleNamespace(request=None, key=None, answered=None), Record("req_2", 1_000, status=401))
    loop.turn()
    assert file.lines == [{"time": "1970-01-01T00:00:01.000Z", "request_id": "req_2", "time_ms": 1_000, "status": 401, "prompt": None}]


@pytest.mark.parametrize("text", ["hello bob@example.com", "", "ü" * 70_000, 'a\n"b"\\\u2028\x00'])
def test_hash(text: str) -> None:
    """The first digits of the SHA-256 of the prompt in UTF-8, and its length."""
    log, file, loop = logging("hash")
    log(ended(text, "x"), RECORD)
    while loop.turn():
        pass
    assert file.lines[0]["prompt"] == {"sha256": sha256(f"{text}\nx".encode()).hexdigest()[:16], "characters": len(text) + 2}


@pytest.mark.parametrize("text", ["hello bob@example.com", "x" * 200_000, 'a\n"b"\\\u2028\x00'])
def test_full(text: str) -> None:
    """All of it."""
    log, file, loop = logging("full")
    log(ended(text), RECORD)
    while loop.turn():
        pass
    assert file.lines[0]["prompt"] == {"text": text, "characters": len(text)}


@pytest.mark.parametrize("how", ["hash", "full"])
def test_nothing_is_redacted_unless_asked_for(how: How) -> None:
    """No rule is so much as looked at."""

    class Forbidden:
        def finditer(self, *_: object) -> None:
            raise AssertionError

    log, file, loop = logging(how, Masks([Rule("X", Forbidden())]))
    log(ended("bob@example.com"), RECORD)
    loop.turn()
    assert len(file.lines) == 1


def test_steps_between_which_the_loop_has_a_turn() -> None:
    """A long prompt is redacted a slice at a time; what came meanwhile is behind it, in order, and nothing of it is missing."""
    log, file, loop = logging(tick_s=0.0011)
    log(ended("bob@example.com " * 4 * SLICE), RECORD)
    log(ended("short"), msgspec.structs.replace(RECORD, request_id="req_2"))
    turns = 0
    while loop.turn():
        turns += 1
        if turns == 5:
            log(ended("late"), msgspec.structs.replace(RECORD, request_id="req_3"))
    assert turns > 4 * 16 / 2
    assert [line["request_id"] for line in file.lines] == ["req_1", "req_2", "req_3"]
    assert file.lines[0]["prompt"]["text"] == "[EMAIL] " * 4 * SLICE


def test_lines_that_come_together_are_written_together() -> None:
    """One hand-over for all that ended in a moment, and few for very many."""
    log, file, loop = logging()
    for _ in range(2_500):
        log(ended("x"), RECORD)
    while loop.turn():
        pass
    assert file.batches == [1_000, 1_000, 500]


def test_prompts_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would be too much is left out of its line and counted; one alone may be longer; later there is room again."""
    monkeypatch.setattr(request_log, "WAITING_MAX", 100)
    log, file, loop = logging()
    for size in (150, 1, 200):
        log(ended("x" * size), RECORD)
    loop.turn()
    log(ended("x" * 100), RECORD)
    loop.turn()
    assert [line["prompt"] for line in file.lines] == [
        {"text": "x" * 150, "characters": 150},
        {"left_out": True, "characters": 1},
        {"left_out": True, "characters": 200},
        {"text": "x" * 100, "characters": 100},
    ]
    assert log.left_out == 2


def test_a_long_prompt_without_room_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its line, and counted: what waits in the file's queue is counted in before."""
    monkeypatch.setattr(request_log, "LONG", 10_000)
    log, file, loop = logging("full")
    file.room = 20_000
    for size in (15_000, 1, 25_000, 2):
        log(ended("x" * size), RECORD)
    loop.turn()
    assert [line["prompt"].get("left_out", False) for line in file.lines] == [False, False, True, False]
    assert file.lines[2]["prompt"]["characters"] == 25_000 and log.left_out == 1
    assert file.batches == [2, 2]


def test_a_prompt_that_cannot_be_redacted() -> None:
    """Is left out of its line; the next ones are not."""

    class Broken:
        def finditer(self, text: str, *_: object) -> list[object]:
            if "bad" in text:
                raise ValueError("no")
            return []

    log, file, loop = logging(masks=Masks([Rule("X", Broken())]))
    for text in ("bad", "good"):
        log(ended(text), RECORD)
    loop.turn()
    assert [line["prompt"] for line in file.lines] == [{"left_out": True, "characters": 3}, {"text": "good", "characters": 4}]
    assert log.left_out == 1


def test_words_of_clients_are_masked() -> None:
    """Where a client may have put a key into a field that is no prompt."""
    log, file, loop = logging()
    log(ended("x"), msgspec.structs.replace(RECORD, client_user="sk-abcdefghij", tags="a=b, token=abcdefgh"))
    log(ended("x"), msgspec.structs.replace(RECORD, attempts=(), model="sk-abcdefghij"))
    log(ended("x"), msgspec.structs.replace(RECORD, finish="sk-abcdefghij"))
    loop.turn()
    assert file.lines[0]["client_user"] == "[API_KEY]" and file.lines[0]["tags"] == "a=b, token=[API_KEY]"
    assert file.lines[1]["model"] == "[API_KEY]" and file.lines[2]["finish"] == "[API_KEY]"


@pytest.mark.parametrize(("how", "user", "tags"), [("redacted", "[EMAIL]", "ip=[IP]"), ("full", "bob@example.com", "ip=10.0.0.1")])
def test_labels_are_masked_as_prompts_are(how: How, user: str, tags: str) -> None:
    """What a client calls its user, and its tags; with `full` they are as they came."""
    log, file, loop = logging(how)
    log(ended("x"), msgspec.structs.replace(RECORD, client_user="bob@example.com", tags="ip=10.0.0.1"))
    loop.turn()
    assert (file.lines[0]["client_user"], file.lines[0]["tags"]) == (user, tags)


async def test_what_waits_is_written_at_the_end() -> None:
    """All of it, where there is time."""
    file = File()
    loop = asyncio.get_running_loop()
    log = RequestLog(file, "redacted", BUILT_IN, loop, loop.time)  # type: ignore[arg-type]
    log(ended("x" * 100_000), RECORD)
    await log.close(5)
    assert file.closed and file.lines[0]["prompt"]["text"] == "x" * 100_000


async def test_prompts_without_time_are_left_out_at_the_end() -> None:
    """Their lines are written."""
    file = File()
    loop = asyncio.get_running_loop()
    log = RequestLog(file, "redacted", BUILT_IN, loop, loop.time)  # type: ignore[arg-type]
    for _ in range(2):
        log(ended("x"), RECORD)
    await log.close(0)
    assert [line["prompt"] for line in file.lines] == [{"left_out": True, "characters": 1}] * 2
    assert log.left_out == 2 and file.closed


def test_what_was_logged_is_let_go() -> None:
    """No prompt is kept once its line is written."""
    log, _, loop = logging("hash")
    tracemalloc.start()
    for n in range(20):
        log(ended(f"{n}" * 100_000), RECORD)
        while loop.turn():
            pass
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 1_000_000
