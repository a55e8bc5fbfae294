"""Whatever a client sends: never a 500, an error that says what is wrong, no hold left, no claim below zero, and the cap holds.

A gateway in this loop, on a real socket, with a mock behind it and a key for each kind of limit. What is drawn is in support_fuzz.py; the same
few hundred examples each time, or with SLUICEGATE_FUZZ=20000 so many new ones of each test.
"""

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import support_fuzz as fuzz
from support_fuzz import FIELDS, Watch, answers, good, profile
from support_inloop import Bench, Connection, Reply, fresh_redis, request, running
from support_sockets import settle

SMALL = tuple(f"small{number}" for number in range(12))  # each is soon used up
TENANTS = f"""
  acme:
    limits: [$100/lifetime]
    keys:
      - name: key
        key: sk-key
        limits: [20M tokens/lifetime, $50/day, 1M requests/minute, 100M tokens/minute, 8 concurrent, 20M input tokens/month]
      - {{name: huge, key: sk-huge, limits: [4503599627370495 tokens/lifetime, 4503599627370495 output tokens/day]}}
      - {{name: rate, key: sk-rate, limits: [300 tokens/minute, 5 requests/minute, {{amount: 1000, unit: tokens, per: hour, window: sliding}}]}}
{"".join(f"      - {{name: {name}, key: sk-{name}, limits: [1000 tokens/lifetime, 2 concurrent]}}" + chr(10) for name in SMALL)}"""
PROVIDERS = '  fast: {provider: mock, base_url: "BASE_URL", api_key: sk-provider-secret, extend: on, tokenizer: o200k_base}'
MODELS = """
  open: {deployments: [{provider: fast, model: mock-open, price: {input: 0.5, output: 1.0}}]}
  whole: {deployments: [{provider: mock, model: mock-whole, price: {input: 0.5, output: 1.0}, context: 2000}]}
  route:
    deployments:
      - {provider: mock, model: mock-first, price: {input: 0.5, output: 1.0}, limits: [200 requests/minute, 1 concurrent, 1000 tokens/lifetime]}
      - {provider: fast, model: mock-second, price: {input: 0.5, output: 1.0}}
"""
KEYS = (*("sk-key",) * 10, *("sk-huge",) * 5, *("sk-rate",) * 5, *(f"sk-{name}" for name in SMALL))
WAIT_S = 5.0
PAUSE_S = 0.002  # without an answer and without work, the gateway waits for its client


class Fuzz:
    """A running gateway that one example after another is sent to."""

    def __init__(self, runner: asyncio.Runner, bench: Bench) -> None:
        self._runner = runner
        self.bench = bench
        self.watch = Watch(bench)
        bench.whole = False  # `Watch.settled` compares more
        bench.mock.fault(0, "mock-first", share=0.5, status=503)
        self.statuses: Counter[int] = Counter()

    def send(self, data: bytes, key: str = "sk-key", *, bodiless: int = -1) -> list[Reply]:
        """What is answered to some bytes on a connection of their own, which is closed when no more is to come."""
        received = self._runner.run(self._talk_and_settle([data], key))
        return self._read(received[0], bodiless)

    def ask(self, body: bytes, key: str = "sk-key", path: str = "/v1/chat/completions") -> Reply:
        """The answer to one body, which is well framed."""
        (reply,) = self.send(request(body, key, path=path, more=b"connection: close\r\n"), key)
        return reply

    def ask_at_once(self, bodies: list[bytes], key: str, leaving: int) -> None:
        """So many requests at the same time; of the first `leaving` ones the client goes with the first bytes of the answer."""
        sent = [request(body, key, more=b"connection: close\r\n") for body in bodies]
        for received in self._runner.run(self._talk_and_settle(sent, key, leaving))[leaving:]:
            self._read(received)

    def _read(self, received: bytes, bodiless: int = -1) -> list[Reply]:
        replies = [good(reply) for reply in answers(received, bodiless)]
        self.statuses.update(reply.status for reply in replies)
        return replies

    async def _talk_and_settle(self, sent: list[bytes], key: str, leaving: int = 0) -> list[bytes]:
        received = await asyncio.gather(*(self._talk(data, number < leaving) for number, data in enumerate(sent)))
        self.bench.connections.clear()
        await self.watch.settled(key)
        return received

    async def _talk(self, data: bytes, leave: bool) -> bytes:
        client = await self.bench.connect()
        client.send(data)
        received = b""
        with contextlib.suppress(ConnectionError):
            while piece := await self._more(client):
                received += piece
                if leave:
                    break
        client.close()
        return received

    async def _more(self, client: Connection) -> bytes:
        """More of the answer. b"": that was all, or the gateway waits for more of the request."""
        async with asyncio.timeout(WAIT_S):
            for _ in range(2):  # the second time, all that was sent has been read, and all that was answered has come
                while True:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(PAUSE_S):
                            return await client.reader.read(1 << 20)
                    if self._waits_for(client):
                        break
                await settle()
        return b""

    def _waits_for(self, client: Connection) -> bool:
        server = self.bench.worker.server
        assert server is not None
        for connection in server.server_state.connections:
            if connection.client == client.writer.get_extra_info("sockname") and not client.writer.transport.get_write_buffer_size():
                active, receiving = connection._active, connection._receiving  # type: ignore[union-attr]
                if active is None or active is receiving:
                    assert connection.deadline < float("inf"), "a wait without an end"  # type: ignore[union-attr]
                    return True
        return False


@pytest.fixture
def fuzzing(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Fuzz objects, each with a gateway of its own, which is audited at the end."""
    with asyncio.Runner() as runner, contextlib.ExitStack() as stack:

        def start(**settings: Any) -> Fuzz:
            gateway = running(tmp_path, tenants=TENANTS, providers=PROVIDERS, models=MODELS, **settings)
            bench = runner.run(gateway.__aenter__())
            stack.callback(lambda: runner.run(_exit(gateway)))
            return Fuzz(runner, bench)

        yield start


def _exit(gateway: Any) -> Awaitable[Any]:
    return gateway.__aexit__(None, None, None)


@pytest.mark.parametrize("ledger", ["memory", "redis"])
def test_any_body(fuzzing: Callable[..., Fuzz], redis_url: str, ledger: str) -> None:
    """Fields right and wrong, given twice, missing, spoilt bytes: served, or refused in OpenAI's shape; with every kind of limit."""
    with fresh_redis(redis_url) as (redis, _):
        run = fuzzing(ledger=redis if ledger == "redis" else "memory://")

        @profile(400 if ledger == "memory" else 150)
        @given(fuzz.bodies(), st.sampled_from(KEYS))
        def drawn(body: bytes, key: str) -> None:
            run.ask(body, key)

        drawn()
        assert {200, 400} <= run.statuses.keys()


@pytest.mark.parametrize("path", fuzz.OLDER)
def test_any_body_of_the_older_paths(fuzzing: Callable[..., Fuzz], path: str) -> None:
    """Prompts and inputs of every shape, several answers, echoes: likewise."""
    run = fuzzing()

    @profile(250)
    @given(fuzz.older_bodies(fuzz.OLDER[path]), st.sampled_from(KEYS))
    def drawn(body: bytes, key: str) -> None:
        run.ask(body, key, path)

    drawn()
    assert {200, 400} <= run.statuses.keys()


def test_any_bodies_at_once(fuzzing: Callable[..., Fuzz]) -> None:
    """Several of a key at the same time, some of whose clients leave, while answers take their time: limits of each kind hold over all of them."""
    run = fuzzing(options={"ttft": "1ms", "tpot": "0.2ms", "completion": 100})

    @profile(80)
    @given(st.lists(fuzz.bodies(), min_size=2, max_size=12), st.sampled_from(KEYS), st.integers(0, 2))
    def drawn(bodies: list[bytes], key: str, leaving: int) -> None:
        run.ask_at_once(bodies, key, leaving)

    drawn()
    assert {200, 400, 429} <= run.statuses.keys()


def check_field(run: Fuzz, field: str, value: str, stream: str) -> None:
    """In a body that is otherwise right, a value that does not fit is a 400 whose `param` is that field; one that fits is not."""
    meant = fuzz.parsed(value)
    if meant is fuzz.AMBIGUOUS:
        return
    fields = {"model": '"chat"', "messages": fuzz.USUAL_MESSAGES, "stream": stream, field: value}
    reply = run.ask(("{" + ",".join(f'"{name}":{text}' for name, text in fields.items()) + "}").encode())
    named = reply.status == 400 and reply.code == "invalid_request"
    wrong = meant is not None and not FIELDS[field][0](meant)
    uncountable = named and field in fuzz.CAPS and reply.error["message"].endswith("more than can be counted.")
    assert named == (wrong or uncountable), (field, value, reply.body)
    if named:
        assert str(reply.error["param"]).startswith(field), (field, value, reply.error)


def test_every_field_with_every_plain_value(fuzzing: Callable[..., Fuzz]) -> None:
    """Wrong types, extremes, numbers that are none: each field that is acted on is read strictly, and is named where it is wrong."""
    run = fuzzing()
    for number, (field, value) in enumerate(itertools.product(FIELDS, (*fuzz.PLAIN, '{"include_usage":"yes"}', '{"include_usage":true}'))):
        check_field(run, field, value, ("true", "false", "null")[number % 3])


def test_one_field(fuzzing: Callable[..., Fuzz]) -> None:
    """The same with values of any shape."""
    run = fuzzing()

    @profile(150)
    @given(st.tuples(st.sampled_from(sorted(FIELDS)), fuzz.values) | fuzz.right, st.sampled_from(("true", "false", "null")))
    def drawn(drawn: tuple[str, str], stream: str) -> None:
        check_field(run, *drawn, stream)

    drawn()


@pytest.mark.parametrize("field", ["stream_options", "extra_body", "metadata", "response_format", "x"])
def test_depths_that_can_just_be_read(fuzzing: Callable[..., Fuzz], field: str) -> None:
    """Values nested so deeply that they can be read, and perhaps no longer where the request is written, a few calls further down."""
    run = fuzzing()
    for depth in range(930, 1000):
        value = '{"type":"text","a":' + "[" * depth + "]" * depth + "}"
        run.ask(f'{{"model":"chat","stream":true,"messages":{fuzz.USUAL_MESSAGES},"{field}":{value}}}'.encode())
    assert 200 in run.statuses and 400 in run.statuses


def test_any_messages(fuzzing: Callable[..., Fuzz]) -> None:
    """Roles, contents, parts and calls of any shape: what is wrong with them is said of `messages`."""
    run = fuzzing()

    @profile(300)
    @given(fuzz.messages, st.sampled_from(KEYS))
    def drawn(messages: str, key: str) -> None:
        reply = run.ask(f'{{"model":"chat","messages":{messages}}}'.encode(), key)
        if reply.status == 400:
            assert str(reply.error["param"]).startswith("messages") or reply.code == "request_too_large", reply.error

    drawn()


def test_any_head(fuzzing: Callable[..., Fuzz]) -> None:
    """Methods, targets, versions, credentials and headers of any bytes, before a body that is good: answered, or waited for with an end."""
    run = fuzzing()

    @profile(400)
    @given(fuzz.heads(), st.booleans())
    @example(b"DELETE /v1/models HTTP/1.1\r\nhost: g\r\n\r\n", False)
    @example(b"GET /v1/models HTTP/1.1\r\nhost: g\r\n\r\n", False)
    @example(b"GET /nothing HTTP/1.1\r\nhost: g\r\n\r\n", True)
    @example(b"GET /healthz HTTP/1.1\r\nhost: g\r\nx: " + b"x" * 200_000 + b"\r\n\r\n", False)
    def drawn(data: bytes, behind: bool) -> None:
        first = b"GET /healthz HTTP/1.1\r\nhost: g\r\n\r\n" if behind else b""
        replies = run.send(first + data, bodiless=int(behind) if data.startswith(b"HEAD ") else -1)
        assert not behind or replies[0].status == 200

    drawn()
    assert {200, 400, 401, 404, 405, 431} <= run.statuses.keys()


def test_any_framing(fuzzing: Callable[..., Fuzz]) -> None:
    """Lengths against codings, chunks that are none: what could be read as two requests is none; only what has one meaning reaches an upstream."""
    run = fuzzing()

    @profile(400)
    @given(fuzz.framings())
    def drawn(data: bytes) -> None:
        meant = fuzz.bodies_read_strictly(data)
        callers = run.bench.mock.truth.stats().callers
        before = {name: tally.requests for name, tally in callers.items()}
        replies = run.send(data)
        assert len(replies) >= len(meant), (meant, [reply.body for reply in replies])
        after = {name: tally.requests for name, tally in run.bench.mock.truth.stats().callers.items()}
        sent = sum(after.values()) - sum(before.values())
        assert sent == sum(reply.status == 200 for reply in replies) <= len(meant)
        assert after.get("smuggled", 0) - before.get("smuggled", 0) <= meant.count(fuzz.SMUGGLED)

    drawn()
    assert {200, 400} <= run.statuses.keys()
