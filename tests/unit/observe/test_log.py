"""Logs: no secret in them, one line per change of state, one write per loop turn for access lines."""

import io
import json
import os
from collections.abc import Callable, Iterator

import pytest
import structlog

from sluicegate.core.masks import mask
from sluicegate.core.record import Attempt, Record
from sluicegate.observe.log import AccessLog, StateLog, access_log, configure

RECORD = Record(
    "req_1",
    1_764_460_800_000,
    "acme/@laptop",
    "chat",
    "openai/gpt",
    (Attempt("openai/gpt", "200", 5, "yes"),),
    status=200,
    input_tokens=100,
    output_tokens=30,
    cost_nano_usd=12_345,
    latency_us=12_345,
)


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    yield stream
    structlog.reset_defaults()


class FakeLoop:
    """Runs callbacks when the test says so."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], object]] = []

    def call_soon(self, callback: Callable[[], object]) -> None:
        self.soon.append(callback)

    def turn(self) -> None:
        due, self.soon = self.soon, []
        for callback in due:
            callback()


# -- secrets --------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("sk-proj-abc_DEF123456", "[API_KEY]"),
        ("key sk-lab-only-1234, then", "key [API_KEY], then"),
        ("Authorization: Bearer abc.def-123=", "Authorization: Bearer [API_KEY]"),
        ("authorization: bearer%20abcdef", "authorization: bearer%20[API_KEY]"),
        ("Basic dXNlcjpwYXNz", "Basic [API_KEY]"),
        ("https://h/x?key=AIzaSyA-123456&alt=json", "https://h/x?key=[API_KEY]&alt=json"),
        ("https://h/x?api_key=abc%2Bdef", "https://h/x?api_key=[API_KEY]"),
        ("token=abc password=def", "token=[API_KEY] password=[API_KEY]"),
        ("x=%2Fsk-abcdef%2B12 0sk-abcdefg", "x=%2F[API_KEY] 0[API_KEY]"),
        ("AKIAIOSFODNN7EXAMPLE", "[AWS_KEY]"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.sig", "[JWT]"),
    ],
)
def test_key_shapes_are_masked(text: str, masked: str) -> None:
    """Of credentials nothing is left but what they were, wherever they stand."""
    assert mask(text) == masked


@pytest.mark.parametrize("text", ["", "plain text", "task-force risk-averse", "in=100 out=30", "bear with me", "the basics of risk-3", "sk-"])
def test_other_text_stays(text: str) -> None:
    """What only resembles a credential is left as it is."""
    assert mask(text) == text


@pytest.mark.parametrize("form", ["json", "console"])
def test_no_secret_in_an_event(stream: io.StringIO, form: str) -> None:
    """Secrets vanish from messages, fields, nested values, bytes, objects and tracebacks."""
    configure(form, stream)  # type: ignore[arg-type]
    log = structlog.get_logger()
    log.info(
        "called with sk-one-secretsecret",
        url="http://h/?key=secretsecret",
        headers={"Authorization": "Bearer secretsecret", "x-api-key": "secretsecret", "accept": ["sk-two-secretsecret"]},
        raw=b"Bearer secretsecret",
        api_key="secretsecret",
        error=ValueError("sk-three-secretsecret"),
    )
    try:
        raise ValueError("upstream said sk-four-secretsecret")
    except ValueError:
        log.exception("failed")
    shown = stream.getvalue()
    assert "secretsecret" not in shown
    assert "called with [API_KEY]" in shown and "upstream said [API_KEY]" in shown and "accept" in shown


def test_json_lines(stream: io.StringIO) -> None:
    """One JSON object per line, with time and level; numbers stay numbers."""
    configure("json", stream)
    structlog.get_logger().warning("ledger away", waited_ms=1_000, ok=None)
    (line,) = stream.getvalue().splitlines()
    event = json.loads(line)
    assert (event["event"], event["level"], event["waited_ms"], event["ok"]) == ("ledger away", "warning", 1_000, None)
    assert event["timestamp"].endswith("Z")


def test_level(stream: io.StringIO) -> None:
    """Below the level nothing is written."""
    configure("console", stream, level=30)
    structlog.get_logger().info("quiet")
    assert stream.getvalue() == ""


def test_one_line_per_change_of_state(stream: io.StringIO) -> None:
    """A state that stays is not logged again; what is wrong is a warning, what is well again is not."""
    configure("json", stream)
    log = StateLog("ledger", "up", good=frozenset({"up"}))
    for state in ("up", "away", "away", "away", "up", "up"):
        log(state, reason="x")
    events = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(event["event"], event["level"], event["from"], event["to"], event["reason"]) for event in events] == [
        ("ledger state", "warning", "up", "away", "x"),
        ("ledger state", "info", "away", "up", "x"),
    ]


# -- access lines ---------------------------------------------------------------------------------------------------------------------------


class Pipe:
    """Where an access log writes to, and what has come out."""

    def __init__(self) -> None:
        self.out, self.fd = os.pipe()
        os.set_blocking(self.out, False)

    def read(self) -> str:
        try:
            return os.read(self.out, 1 << 20).decode()
        except BlockingIOError:
            return ""

    def close(self) -> None:
        for fd in (self.out, self.fd):
            os.close(fd)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.close()


def lines(form: str, pipe: Pipe, *records: Record) -> list[str]:
    loop = FakeLoop()
    log = access_log(form, loop, pipe.fd)  # type: ignore[arg-type]
    assert log is not None
    for record in records:
        log(record)
    loop.turn()
    return pipe.read().split("\n")[:-1]


def test_access_off_is_no_observer() -> None:
    """With access off there is nothing to call."""
    assert access_log("off", FakeLoop()) is None  # type: ignore[arg-type]


def test_one_write_per_loop_turn(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of one turn go out together at its end."""
    writes: list[bytes] = []
    monkeypatch.setattr(os, "write", lambda fd, data: writes.append(data) or len(data))
    loop = FakeLoop()
    log = AccessLog("text", loop, pipe.fd)  # type: ignore[arg-type]
    log(RECORD)
    log(RECORD)
    assert writes == [] and len(loop.soon) == 1
    loop.turn()
    log(RECORD)
    loop.turn()
    assert [data.count(b"\n") for data in writes] == [2, 1]


def test_text_line(pipe: Pipe) -> None:
    """Status, key, model, deployment, tokens, cost, time, then what was special about it."""
    odd = Record(
        "req_2",
        1,
        status=429,
        refusal="rate",
        error="rate_limit_exceeded",
        truncated="budget",
        stream=True,
        client_gone=True,
        attempts=(Attempt("a/b", "429"), Attempt("c/d", "timeout")),
        shadow="key a tokens/day",
        waited_us=1_500_000,
    )
    assert lines("text", pipe, RECORD, odd) == [
        "200 acme/@laptop chat -> openai/gpt in=100 out=30 usd=0.000012 cache=- tries=1 ms=12.3 req_1",
        "429 - - -> - in=0 out=0 usd=0.000000 cache=- tries=2 ms=0.0 tried=a/b:429,c/d:timeout refused=rate shadow='key a tokens/day' "
        "waited_ms=1500.0 truncated=budget error=rate_limit_exceeded"
        " stream client_gone req_2",
    ]


def test_json_access_line(pipe: Pipe) -> None:
    """The record as JSON."""
    (line,) = lines("json", pipe, RECORD)
    assert json.loads(line)["cost_nano_usd"] == 12_345 and json.loads(line)["attempts"][0]["outcome"] == "200"


@pytest.mark.parametrize("model", ["a\n200 forged chat", 'x" y', "\u2028\x1b[31m", "x" * 5_000, "sk-abcdefghij", "key=s3cret\\", "\ud800"])
def test_model_names_from_clients(pipe: Pipe, model: str) -> None:
    """A made-up model can neither forge a line, nor fill the log, nor carry a key into it."""
    record = Record("req_3", 1, model=model, status=404)
    (text,) = lines("text", pipe, record)
    assert text.startswith("404 - ") and text.endswith(" req_3") and len(text) < 300 and text.isprintable()
    assert "abcdefghij" not in text and "s3cret" not in text
    if model != "\ud800":  # cannot be written as JSON, and cannot come from a JSON body either
        (line,) = lines("json", pipe, record)
        assert json.loads(line)["status"] == 404 and "abcdefghij" not in line and "s3cret" not in line


def test_reader_of_the_log_has_gone(pipe: Pipe) -> None:
    """A log that nobody reads any more does not fail requests."""
    os.close(pipe.out)
    loop = FakeLoop()
    log = AccessLog("text", loop, pipe.fd)  # type: ignore[arg-type]
    log(RECORD)
    loop.turn()
    log(RECORD)
    loop.turn()
    pipe.out = os.open(os.devnull, os.O_RDONLY)
