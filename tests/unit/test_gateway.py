"""The path of a request, with a client, upstreams and a ledger that do what the test says, and no real time.

One letter is one token of output. A request's input is bounded at INPUT tokens; the key has 10,000 tokens a day.
"""

import asyncio
import json
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sluicegate import answers
from sluicegate.config.load import load_text
from sluicegate.core.claims import Admission, Extension, Reply, Settled, Settlement, Swept
from sluicegate.core.estimate import Learned
from sluicegate.core.record import Attempt, Record
from sluicegate.core.tenants import Provider
from sluicegate.dialects import openai_chat
from sluicegate.gateway import Gateway
from sluicegate.idempotency import Idempotency
from sluicegate.ledger.contract import LedgerUnavailable
from sluicegate.ledger.memory import MemoryLedger
from sluicegate.outbox import Outbox
from sluicegate.trip import READ_ON_S
from support_inloop import chunk, config_text, sse, usage_chunk
from support_ledgers import Clock, use_at_once
from support_once import MemoryStore
from support_playbook import FakeCall, FakeExchange, FakePool
from support_recovery import FakeRecords
from support_sockets import settle

KEY = {b"authorization": b"Bearer sk-key"}
PROMPT = "hello"
INPUT = len(PROMPT) + 4 + 3
LIMITS = "[10000 tokens/day]"
STOP = sse(chunk(finish="stop"))
DONE = sse(None)


def text(tokens: int) -> bytes:
    return sse(chunk("x" * tokens))


def whole(tokens: int, **fields: Any) -> bytes:
    """A unary answer."""
    choice = {"index": 0, "message": {"role": "assistant", "content": "x" * tokens}, "finish_reason": "stop"}
    return json.dumps({"id": "c", "object": "chat.completion", "choices": [choice], **fields}).encode()


class PlayLedger(MemoryLedger):
    """A memory ledger that may keep an admission waiting, or be away."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.away: set[str] = set()
        self.hold_admits = False
        self.waiting: deque[tuple[asyncio.Future[Reply], Admission]] = deque()
        self.admissions: list[Admission] = []
        self.settlements: list[Settlement] = []

    def admit(self, admission: Admission) -> "asyncio.Future[Reply]":
        self.admissions.append(admission)
        if "admit" in self.away:
            return _failed()
        if not self.hold_admits:
            return super().admit(admission)
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.waiting.append((future, admission))
        return future

    def let_in(self) -> None:
        future, admission = self.waiting.popleft()
        future.set_result(super().admit(admission).result())

    def extend(self, extension: Extension) -> "asyncio.Future[Reply]":
        return _failed() if "extend" in self.away else super().extend(extension)

    def settle(self, settlement: Settlement) -> "asyncio.Future[Settled]":
        self.settlements.append(settlement)
        return _failed() if "settle" in self.away else super().settle(settlement)


def _failed() -> "asyncio.Future[Any]":
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.set_exception(LedgerUnavailable("away"))
    return future


class FakeJournal:
    """Remembers lines that are not acknowledged."""

    writer = "w1"

    def __init__(self) -> None:
        self.lines: dict[int, bytes] = {}
        self.next_seq = 1

    def append(self, line: bytes) -> int:
        self.lines[self.next_seq] = line
        self.next_seq += 1
        return self.next_seq - 1

    def acknowledge(self, sequences: Sequence[int]) -> None:
        for sequence in sequences:
            self.lines.pop(sequence, None)


class FakeNotices:
    """What an operator is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def __getattr__(self, what: str) -> Any:
        return lambda *about: self.told.append((what, *about))


class FakePools:
    """Each provider's."""

    def __init__(self, pools: dict[str, FakePool]) -> None:
        self.pools = pools

    def of(self, provider: Provider) -> FakePool:
        return self.pools[provider.name]


class Stage:
    """A gateway with two deployments in its route, `mock/mock-chat` (or what `first` says) and `b/second`."""

    def __init__(
        self, directory: Path, *, limits: str = LIMITS, extend: bool = False, first: str = "", stops: bool = True, more: str = "", row: str = "mock"
    ) -> None:
        row = f"{{provider: {row}, base_url: http://127.0.0.1:9/v1, stops_on_close: {'on' if stops else 'off'}, extend: {'on' if extend else 'off'}}}"
        on = ", extend: on" if extend else ""
        models = f"""
  two:
    deployments:
      - {{provider: a, model: first, price: {{input: 0.5, output: 1.0}}{on}{first}}}
      - {{provider: b, model: second, price: {{input: 0.5, output: 1.0}}{on}}}
    max_output: 1000"""
        written = config_text(directory, "http://127.0.0.1:9/v1", limits=limits, models=models, providers=f"  a: {row}\n  b: {row}", more=more)
        self.policy = load_text(written, {}).policy
        self.clock = Clock()
        self.ledger = PlayLedger(self.clock)
        use_at_once(self.ledger, "acme", "d/a/first", "d/b/second")
        self.journal = FakeJournal()
        self.outbox = Outbox(self.ledger, self.journal, FakeRecords(), "", {"acme"}, print, print)  # type: ignore[arg-type]
        self.pools = {"a": FakePool(), "b": FakePool()}
        self.learned = Learned()
        self.records: list[Record] = []
        self.swept: list[Swept] = []
        self.notices = FakeNotices()
        self.now = 100.0
        self.requests = 0
        self.gateway = Gateway(
            self.policy,
            self.ledger,
            self.outbox,
            FakePools(self.pools),  # type: ignore[arg-type]
            self.learned,
            (self.records.append,),
            self.swept.append,
            self.notices,  # type: ignore[arg-type]
            self._new_id,
            lambda: self.now,
            self.clock,
            1_000_000,
            Idempotency(MemoryStore(self.clock)),
        )

    def _new_id(self, time_ms: int) -> str:
        self.requests += 1
        return f"req_{self.requests}"

    async def send(self, headers: dict[bytes, bytes] = KEY, **fields: Any) -> FakeExchange:
        """A request, as far as it goes without anything new."""
        body = {"model": "two", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 100, **fields}
        return await self.send_body(json.dumps({name: value for name, value in body.items() if value is not ...}).encode(), headers)

    async def send_body(self, body: bytes, headers: dict[bytes, bytes] = KEY) -> FakeExchange:
        exchange = FakeExchange(body, headers, self.now)
        self.task = asyncio.get_running_loop().create_task(self.gateway.serve(exchange, openai_chat))  # type: ignore[arg-type]
        await settle()
        return exchange

    def call(self, provider: str = "a") -> FakeCall:
        return self.pools[provider].calls[-1]

    async def over(self) -> Record:
        """The record of the last request, which must be over; with it every hold."""
        await settle()
        assert self.task.done()
        assert self.gateway.trips == set()
        counters, holds = await self.ledger.show()
        assert [hold for hold in holds if hold.state == "open"] == []
        assert [counter for counter in counters if counter.held] == []
        assert self.outbox.backlog == 0
        assert [line for line in self.journal.lines.values() if b'"none"' not in line] == []  # those are for the records
        return self.records[-1]

    async def used(self) -> dict[str, int]:
        """Used per counter, by unit, those of deployments with a `d` before."""
        counters, _ = await self.ledger.show()
        found = {}
        for counter in counters:
            scope, unit = counter.key.split(":c:")[1].split(":")[:2]
            found[unit if "@" in scope else f"d {unit}"] = counter.used
        return found


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


# -- one attempt --------------------------------------------------------------------------------------------------------------------------


async def test_a_unary_answer(stage: Stage) -> None:
    """Held before, sent with the cap that the hold covers, settled at what is reported, told with its costs."""
    exchange = await stage.send()
    held = (await stage.ledger.show())[0][0].held
    assert held == INPUT + 100
    call = stage.call()
    assert json.loads(call.body)["max_tokens"] == 100
    call.answer(kind=b"application/json")
    call.feed(whole(7, usage={"prompt_tokens": 9, "completion_tokens": 7}))
    call.end()
    record = await stage.over()
    assert (exchange.status, exchange.finished, json.loads(exchange.data)["usage"]["completion_tokens"]) == (200, True, 7)
    assert exchange.sent_headers[b"x-sluicegate-deployment"] == b"a/first"
    assert exchange.sent_headers[b"x-sluicegate-cost-usd"] == b"0.000011500"
    assert (record.input_tokens, record.output_tokens, record.source, record.status) == (9, 7, "reported", 200)
    assert await stage.used() == {"tokens": 16}


async def test_the_settle_is_written_before_the_last_byte(stage: Stage) -> None:
    """A client that asks again at once does not meet its own hold: journal, then ledger, then `[DONE]`."""
    exchange = await stage.send(stream=True)
    call = stage.call()
    call.answer()
    call.feed(text(3) + STOP)
    await settle()
    order: list[str] = []
    append, settle_, finish = stage.journal.append, stage.ledger.settle, exchange.finish
    stage.journal.append = lambda line: order.append("journal") or append(line)  # type: ignore[func-returns-value, method-assign]
    stage.ledger.settle = lambda s: order.append("ledger") or settle_(s)  # type: ignore[func-returns-value, method-assign]
    exchange.finish = lambda data=b"": order.append("finish") or finish(data)  # type: ignore[func-returns-value, method-assign]
    call.feed(DONE)
    call.end()
    await stage.over()
    assert order == ["journal", "ledger", "finish"]
    assert exchange.data.endswith(DONE)


async def test_a_lowered_cap_is_told(tmp_path: Path) -> None:
    """What is sent upstream is what the hold covers; the client reads it in a header."""
    stage = Stage(tmp_path, limits="[60 tokens/day]")
    exchange = await stage.send(stream=True)
    call = stage.call()
    assert json.loads(call.body)["max_tokens"] == 60 - INPUT
    call.answer()
    call.feed(text(3) + STOP + sse(usage_chunk(INPUT, 3)) + DONE)
    call.end()
    await stage.over()
    assert exchange.sent_headers[b"x-sluicegate-max-tokens"] == b"48"


@pytest.mark.parametrize(
    ("presented", "kept"),
    [
        (b"trace-1.2:3", "trace-1.2:3"),
        (b"a" * 128, "a" * 128),
        (b"a" * 129, ""),
        (b"", ""),
        (b"a b", ""),
        (b"a\xff", ""),
        (b"x\x00", ""),
        (b"a, a", ""),
    ],
)
async def test_case_93_a_clients_own_id_is_kept_apart(stage: Stage, presented: bytes, kept: str) -> None:
    """Ours is the key, unique whatever clients send; theirs is kept if it is a plain id of at most 128 characters."""
    answers = []
    for _ in range(2):
        answers.append(await stage.send(KEY | {b"x-request-id": presented}))
        stage.call().answer(400, b"application/json")
        stage.call().feed(b"{}")
        stage.call().end()
        await stage.over()
    assert [record.client_id for record in stage.records] == [kept, kept]
    assert [exchange.sent_headers[b"x-request-id"] for exchange in answers] == [b"req_1", b"req_2"]
    assert [record.request_id for record in stage.records] == ["req_1", "req_2"]


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [({}, 401, "invalid_api_key"), ({b"authorization": b"Bearer sk-no"}, 401, "invalid_api_key"), ({b"authorization": b"Basic sk-key"}, 401, None)],
)
async def test_no_key_no_call(stage: Stage, headers: dict[bytes, bytes], status: int, code: str | None) -> None:
    """Who does not say who he is reaches neither the ledger nor an upstream."""
    exchange = await stage.send(headers)
    await stage.over()
    assert exchange.status == status
    assert code in (None, json.loads(exchange.data)["error"]["code"])
    assert (stage.ledger.admissions, stage.pools["a"].calls) == ([], [])


async def test_a_fault_of_ours_is_a_500_and_leaves_no_hold(stage: Stage) -> None:
    """Whatever is raised in the middle: an answer in JSON without a trace, and the hold settled."""

    def broken(*_: object) -> object:
        raise RuntimeError("secret detail")

    stage.pools["a"].begin = broken  # type: ignore[method-assign, assignment]
    exchange = await stage.send()
    record = await stage.over()
    assert (exchange.status, record.error) == (500, "internal_error")
    assert b"secret" not in exchange.data
    assert await stage.used() == {"tokens": 0}


@pytest.mark.parametrize("moment", ["waiting", "reading", "relaying"])
async def test_a_handler_that_is_cancelled_is_charged(stage: Stage, moment: str) -> None:
    """A drain that has come to its end cancels: what may have been billed is settled, the upstream closed."""
    await stage.send(stream=True)
    call = stage.call()
    if moment != "waiting":
        call.answer()
    if moment == "relaying":
        call.feed(text(3))
    await settle()
    stage.task.cancel()
    await settle()
    assert stage.task.cancelled()
    record = await stage.over()
    assert call.closed
    assert (record.input_tokens, record.output_tokens) == (INPUT, 100)
    assert await stage.used() == {"tokens": INPUT + 100}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_probe_that_is_cancelled_returns_its_place(tmp_path: Path, stream: bool) -> None:
    """Whatever ends it: the next request is the probe, and nothing is in flight."""
    stage = Stage(tmp_path, more="resilience: {cooldown: 10s, breaker: {failures: 1, pause: 10s}}")
    standing = stage.gateway.standings.of("a/first")
    permit = standing.permit(stage.now)
    assert permit is not None
    standing.report(permit, "failed", stage.now)
    stage.now += 10
    await stage.send(stream=stream)
    assert (standing.state, standing.in_flight, standing.permit(stage.now)) == ("probing", 1, None)
    stage.task.cancel()
    await stage.over()
    again = standing.permit(stage.now)
    assert again is not None and again.probe
    assert standing.in_flight == 0


# -- several attempts ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("failure", ["connect", "429", "500", "error event"])
async def test_an_unbilled_attempt_passes_its_hold_on(tmp_path: Path, failure: str, stream: bool) -> None:
    """The next deployment answers on the same money: room for one is enough; one request is counted; both attempts are in the record."""
    stage = Stage(tmp_path, limits=f"[{INPUT + 110} tokens/day, 1 requests/day, 1 concurrent]", first=", limits: [1 concurrent, 5 requests/day]")
    stage.pools["a"].connected = failure != "connect"
    exchange = await stage.send(stream=stream)
    first = stage.call("a")
    if failure == "connect":
        first.fail("connect")
    elif failure == "error event" and stream:
        first.answer()
        first.feed(sse({"error": {"message": "overloaded", "code": 503}}))
        first.end()
    else:
        first.answer(int(failure) if failure.isdigit() else 503, b"application/json")
        first.feed(b'{"error": {"message": "no"}}')
        first.end()
    await settle()
    second = stage.call("b")
    usage = {"prompt_tokens": INPUT, "completion_tokens": 4}
    second.answer(kind=b"text/event-stream" if stream else b"application/json")
    second.feed(text(4) + STOP + sse(usage_chunk(INPUT, 4)) + DONE if stream else whole(4, usage=usage))
    second.end()
    record = await stage.over()
    assert (exchange.status, exchange.finished) == (200, True)
    assert [attempt.deployment for attempt in record.attempts] == ["a/first", "b/second"]
    assert record.deployment == "b/second"
    used = await stage.used()
    assert (used["tokens"], used["requests"], used["d requests"]) == (INPUT + 4, 1, 0 if failure == "connect" else 1)


async def test_an_error_behind_what_could_not_be_read_may_have_been_billed(stage: Stage) -> None:
    """The upstream may have produced something before its error: nobody can tell, so the attempt is charged."""
    exchange = await stage.send(stream=True)
    stage.call("a").answer()
    stage.call("a").feed(b"data: {bro\n\n" + sse({"error": {"message": "overloaded", "code": 503}}))
    stage.call("a").end()
    await settle()
    stage.call("b").answer()
    stage.call("b").feed(text(4) + STOP + sse(usage_chunk(INPUT, 4)) + DONE)
    stage.call("b").end()
    await stage.over()
    assert exchange.status == 200
    assert await stage.used() == {"tokens": 2 * INPUT + 100 + 4}


async def test_a_billed_attempt_is_charged_before_the_next_is_held(tmp_path: Path) -> None:
    """A timeout after the request was written: its outcome is unknown, so all it may have cost is charged, and the next needs room of its own."""
    stage = Stage(tmp_path, limits=f"[{2 * (INPUT + 100) - 1} tokens/day]")
    exchange = await stage.send()
    stage.call("a").fail("timeout")
    await settle()
    assert json.loads(stage.call("b").body)["max_tokens"] == 99
    stage.call("b").answer(kind=b"application/json")
    stage.call("b").feed(whole(1, usage={"prompt_tokens": INPUT, "completion_tokens": 1}))
    stage.call("b").end()
    record = await stage.over()
    assert exchange.status == 200
    assert (record.input_tokens, record.output_tokens) == (2 * INPUT, 101)
    assert await stage.used() == {"tokens": 2 * INPUT + 101}


async def test_the_upstreams_error_stands_where_no_other_deployment_has_room(tmp_path: Path) -> None:
    """The first is charged as unknown and used the budget up: the client is told of the budget, and nothing more is sent."""
    stage = Stage(tmp_path, limits=f"[{INPUT + 100} tokens/day]")
    exchange = await stage.send()
    stage.call("a").fail("timeout")
    await stage.over()
    assert stage.pools["b"].calls == []
    assert json.loads(exchange.data)["error"]["code"] == "budget_exceeded"


async def test_an_answer_that_is_final_is_not_tried_elsewhere(stage: Stage) -> None:
    """A 400 is the caller's."""
    exchange = await stage.send()
    stage.call("a").answer(400, b"application/json")
    stage.call("a").feed(b'{"error": {"message": "too long", "code": "context_length_exceeded", "param": "messages"}}')
    stage.call("a").end()
    await stage.over()
    error = json.loads(exchange.data)["error"]
    assert (exchange.status, error["code"], error["param"], stage.pools["b"].calls) == (400, "context_length_exceeded", "messages", [])


async def test_a_full_deployment_is_passed_over(tmp_path: Path) -> None:
    """Its own limit has no room for this: the next one answers; the key's limits know of one hold only."""
    stage = Stage(tmp_path, first=", limits: [1 concurrent]")
    await stage.send()
    first = stage.task
    await stage.send()
    assert (len(stage.pools["a"].calls), len(stage.pools["b"].calls)) == (1, 1)
    for provider in ("a", "b"):
        stage.call(provider).answer(kind=b"application/json")
        stage.call(provider).feed(whole(1, usage={"prompt_tokens": INPUT, "completion_tokens": 1}))
        stage.call(provider).end()
    await settle()
    assert first.done()
    await stage.over()
    assert (await stage.used())["tokens"] == 2 * (INPUT + 1)


async def test_each_attempt_is_recorded_with_what_it_was_charged(tmp_path: Path) -> None:
    """A timeout whose outcome is unknown, a retry after a wait, and an answer: each has its outcome, wait, error and cost, which add up."""
    stage = Stage(tmp_path, more="resilience: {retries: 1}")
    slept: list[float] = []

    async def sleep(pause_s: float) -> None:
        slept.append(pause_s)
        stage.now += pause_s

    stage.gateway._sleep = sleep
    await stage.send()
    stage.now += 3
    stage.call("a").fail("timeout")
    await settle()
    stage.call("b").answer(429, b"application/json", retry_after=b"1")
    stage.call("b").feed(b'{"error": {"message": "slow down"}}')
    stage.call("b").end()
    await settle()
    assert len(stage.pools["b"].calls) == 2
    stage.call("b").answer(kind=b"application/json")
    stage.call("b").feed(whole(1, usage={"prompt_tokens": INPUT, "completion_tokens": 1}))
    stage.call("b").end()
    record = await stage.over()
    cost = INPUT * 500
    assert record.attempts == (
        Attempt("a/first", "timeout", 3_000_000, "unknown", 0, "upstream_timeout", cost + 100_000, INPUT, 100),
        Attempt("b/second", "429", 0, "no", 0, "upstream_rate_limited"),
        Attempt("b/second", "200", 0, "yes", int(slept[0] * 1e6), "", cost + 1_000, INPUT, 1),
    )
    assert (record.cost_nano_usd, record.input_tokens, record.output_tokens) == (2 * cost + 101_000, 2 * INPUT, 101)


@pytest.mark.parametrize("kept_alive", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_is_told_what_all_attempts_cost(tmp_path: Path, stream: bool, kept_alive: bool) -> None:
    """One that may have been billed before the fallback is in the cost, also where a sign of life had begun the answer."""
    stage = Stage(tmp_path)
    exchange = await stage.send(KEY | {b"x-sluicegate-include": b"block"}, stream=stream)
    if stream and kept_alive:
        (trip,) = stage.gateway.trips
        answers.keep_alive(trip)
    stage.call("a").fail("timeout")
    await settle()
    stage.call("b").answer(kind=b"text/event-stream" if stream else b"application/json")
    usage = {"prompt_tokens": INPUT, "completion_tokens": 1}
    stage.call("b").feed(text(1) + STOP + sse(usage_chunk(INPUT, 1)) + DONE if stream else whole(1, usage=usage))
    stage.call("b").end()
    record = await stage.over()
    told = exchange.data.split(b"data: ")[-2] if stream else exchange.data
    block = json.loads(told)["sluicegate"]
    assert (block["fallback_used"], block["deployment"], block["cost_usd"]) == (True, "b/second", record.cost_nano_usd / 1e9)
    assert [(attempt["outcome"], attempt["cost_usd"] > 0) for attempt in block["attempts"]] == [("timeout", True), ("200", True)]


async def test_a_stream_that_breaks_off_says_why_in_its_attempt(stage: Stage) -> None:
    """The attempt was a 200, and what ended it is its error; what it may have cost is its cost."""
    await stage.send(stream=True)
    stage.call().answer()
    stage.call().feed(text(4))
    await settle()
    stage.call().fail("reset")
    (attempt,) = (await stage.over()).attempts
    assert (attempt.outcome, attempt.error, attempt.billed, attempt.cost_nano_usd > 0) == ("200", "reset", "yes", True)


async def test_an_attempt_that_was_given_up_is_recorded(stage: Stage) -> None:
    """A cancelled handler has made an attempt all the same, and is charged for it."""
    await stage.send()
    stage.task.cancel()
    (attempt,) = (await stage.over()).attempts
    assert (attempt.outcome, attempt.billed, attempt.input_tokens, attempt.output_tokens) == ("aborted", "unknown", INPUT, 100)


# -- clients that leave -------------------------------------------------------------------------------------------------------------------

NOTHING_CHARGED = 0
EVERYTHING = INPUT + 100


async def test_a_client_that_leaves_before_the_ledger_has_answered(stage: Stage) -> None:
    """The grant is given back, and nothing is sent upstream."""
    stage.ledger.hold_admits = True
    exchange = await stage.send()
    exchange.leave()
    await settle()
    stage.ledger.let_in()
    record = await stage.over()
    assert (stage.pools["a"].calls, record.client_gone, record.status) == ([], True, 499)
    assert (await stage.used())["tokens"] == 0


@pytest.mark.parametrize("extend", [False, True])
@pytest.mark.parametrize(
    ("fields", "delta", "output"),
    [
        ({}, " river", 5),
        ({"stop": "END"}, " river", 30),
        ({}, "河流", 5 * 5),
        ({"max_tokens": 16}, "河流", 16 + 3),
        ({"max_tokens": 16, "stop": "END"}, "河流", 16 + 3),
    ],
)
async def test_a_stream_with_an_event_per_token(tmp_path: Path, extend: bool, fields: dict[str, Any], delta: str, output: int) -> None:
    """Without usage it is settled at its events, extended or capped; at its bytes where the server may gather tokens.

    Where that is more than the server can have produced, it is settled at that: its cap, and what ends a character.
    """
    stage = Stage(tmp_path, extend=extend, row="llama_cpp")
    await stage.send(stream=True, **fields)
    stage.call().answer()
    for _ in range(5):
        stage.call().feed(sse(chunk(delta)))
    stage.call().feed(STOP + DONE)
    stage.call().end()
    record = await stage.over()
    assert (record.input_tokens, record.output_tokens, record.source) == (INPUT, output, "counted")


@pytest.mark.parametrize("fields", [{}, {"stop": "END"}])
async def test_another_models_vocabulary_cuts_nothing(tmp_path: Path, fields: dict[str, Any]) -> None:
    """A stream whose text is far more than its cap by a vocabulary that is not the model's own goes on to its end."""
    stage = Stage(tmp_path, row="llama_cpp", first=", tokenizer: o200k_base")
    exchange = await stage.send(stream=True, max_tokens=16, **fields)
    stage.call().answer()
    for _ in range(16):
        stage.call().feed(sse(chunk("ฤๅษฺฏฎ")))
    stage.call().feed(STOP + DONE)
    stage.call().end()
    record = await stage.over()
    assert (record.finish, record.truncated, exchange.data.count(b'"content"')) == ("stop", "", 16)


@pytest.mark.parametrize("stream", [False, True])
async def test_what_may_come_beyond_the_cap_is_held(tmp_path: Path, stream: bool) -> None:
    """Three tokens that end a character: with room for all, the client's cap is sent; else one that leaves room for them."""
    for limit, cap in ((INPUT + 103, 100), (INPUT + 102, 99), (INPUT + 19, 16)):
        stage = Stage(tmp_path, row="llama_cpp", limits=f"[{limit} tokens/day]")
        await stage.send(stream=stream)
        assert json.loads(stage.call().body)["max_tokens"] == cap
        assert (await stage.ledger.show())[0][0].held == INPUT + cap + 3
        stage.call().fail("reset")
        assert (await stage.over()).output_tokens == cap + 3


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stops", [False, True], ids=["goes on", "stops on close"])
@pytest.mark.parametrize("phase", ["connecting", "written", "headers", "output", "finish"])
async def test_a_client_that_leaves(tmp_path: Path, phase: str, stops: bool, stream: bool) -> None:
    """In every phase: not charged while nothing was written; then at what may have been billed; once, with no hold left, and no other deployment."""
    stage = Stage(tmp_path, stops=stops)
    stage.pools["a"].connected = phase != "connecting"
    exchange = await stage.send(stream=stream)
    call = stage.call()
    if phase not in ("connecting", "written"):
        call.answer(kind=b"text/event-stream" if stream else b"application/json")
    if phase in ("output", "finish"):
        call.feed((text(3) + (STOP if phase == "finish" else b"")) if stream else whole(3)[:50])
    await settle()
    exchange.leave()
    await settle()
    at_once = stops or phase == "connecting"
    assert call.closed is at_once
    if not at_once:
        call.close()  # what the timer does after READ_ON_S
    record = await stage.over()
    assert record.client_gone
    assert len(stage.ledger.settlements) == 1
    assert stage.pools["b"].calls == []
    assert await stage.used() == {"tokens": NOTHING_CHARGED if phase == "connecting" else EVERYTHING}


@pytest.mark.parametrize("stream", [False, True])
async def test_an_upstream_that_goes_on_is_read_for_its_usage(tmp_path: Path, stream: bool) -> None:
    """Where closing does not stop the bill the answer is read to its end, for up to READ_ON_S, and charged as it says."""
    stage = Stage(tmp_path, stops=False)
    exchange = await stage.send(stream=stream)
    call = stage.call()
    call.answer(kind=b"text/event-stream" if stream else b"application/json")
    call.feed(text(3) if stream else b"")
    await settle()
    exchange.leave()
    await settle()
    usage = {"prompt_tokens": 9, "completion_tokens": 8}
    call.feed(text(5) + STOP + sse(usage_chunk(9, 8)) + DONE if stream else whole(8, usage=usage))
    call.end()
    record = await stage.over()
    assert (record.source, record.client_gone, exchange.finished) == ("reported", True, False)
    assert await stage.used() == {"tokens": 17}
    assert READ_ON_S == 30


async def test_a_client_that_leaves_an_extended_stream(tmp_path: Path) -> None:
    """Charged at what was read and the margin, not at the whole cap: every token is visible, and the upstream has stopped."""
    stage = Stage(tmp_path, extend=True)
    exchange = await stage.send(stream=True)
    call = stage.call()
    call.answer()
    for tokens in (5, 7):
        call.feed(text(tokens))
        await settle()
        stage.now += 0.125
    call.feed(text(6))
    await settle()
    exchange.leave()
    record = await stage.over()
    assert (record.output_tokens, record.source, record.error) == (18 + 7 + 6, "counted", "")


async def test_a_client_that_leaves_after_done(stage: Stage) -> None:
    """The answer was whole: charged as reported."""
    exchange = await stage.send(stream=True)
    call = stage.call()
    call.answer()
    call.feed(text(3) + STOP + sse(usage_chunk(9, 3)) + DONE)
    call.end()
    exchange.leave()
    record = await stage.over()
    assert (record.source, record.output_tokens, record.client_gone) == ("reported", 3, True)


@pytest.mark.parametrize("outcome", ["charge", "input_only", "free"])
@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_early_is_never_free(tmp_path: Path, outcome: str, stream: bool) -> None:
    """Whatever the operator gives away for upstreams that fail, a client that closes its connection is charged."""
    stage = Stage(tmp_path, more=f"budget: {{unknown_outcome: {outcome}}}")
    exchange = await stage.send(stream=stream)
    exchange.leave()
    await stage.over()
    assert await stage.used() == {"tokens": EVERYTHING}


# -- a ledger that is away ----------------------------------------------------------------------------------------------------------------


async def test_a_ledger_that_is_away_refuses(stage: Stage) -> None:
    """503 with retry-after; the admission in doubt is cancelled, so that it is not granted late."""
    stage.ledger.away = {"admit"}
    exchange = await stage.send()
    await stage.over()
    assert (exchange.status, exchange.sent_headers[b"retry-after"], stage.pools["a"].calls) == (503, b"1", [])
    assert [(s.hold_id, s.mode) for s in stage.ledger.settlements] == [("req_1.1", "cancel")]


async def test_under_allow_it_is_served_and_charged_afterwards(tmp_path: Path) -> None:
    """Without a hold, with the client's own cap; the settlement is forced in when the ledger is back."""
    stage = Stage(tmp_path, more="on_ledger_failure: allow")
    stage.ledger.away = {"admit", "extend", "settle"}
    exchange = await stage.send()
    stage.call().answer(kind=b"application/json")
    stage.call().feed(whole(2, usage={"prompt_tokens": INPUT, "completion_tokens": 2}))
    stage.call().end()
    await settle()
    assert (exchange.status, exchange.finished, stage.outbox.backlog) == (200, True, 1)
    stage.ledger.away = set()
    await stage.outbox.retry()
    await stage.over()
    assert await stage.used() == {"tokens": INPUT + 2}


async def test_under_allow_an_earlier_hold_is_given_back(tmp_path: Path) -> None:
    """The ledger goes away between two attempts: the first one's hold is not left to expire."""
    stage = Stage(tmp_path, more="on_ledger_failure: allow")
    await stage.send()
    stage.ledger.away = {"admit"}
    stage.call("a").answer(500, b"application/json")
    stage.call("a").feed(b"{}")
    stage.call("a").end()
    await settle()
    stage.call("b").answer(kind=b"application/json")
    stage.call("b").feed(whole(2, usage={"prompt_tokens": INPUT, "completion_tokens": 2}))
    stage.call("b").end()
    await stage.over()
    assert await stage.used() == {"tokens": INPUT + 2}


async def test_a_settle_that_fails_once_is_sent_again(stage: Stage) -> None:
    """Settles are idempotent by hold id: one retry charges once: case 15."""
    await stage.send()
    stage.ledger.away = {"settle"}
    stage.call().answer(kind=b"application/json")
    stage.call().feed(whole(2, usage={"prompt_tokens": INPUT, "completion_tokens": 2}))
    stage.call().end()
    await settle()
    assert len(stage.journal.lines) == 1
    stage.ledger.away = set()
    await stage.outbox.retry()
    await stage.outbox.retry()
    await stage.over()
    assert await stage.used() == {"tokens": INPUT + 2}


async def test_a_stale_window_is_recomputed(stage: Stage) -> None:
    """The gateway's idea of the day is behind the ledger's: the windows are built anew, in ledger time."""
    exchange = await stage.send()
    stage.call().fail("connect")
    await settle()
    stage.call("b").fail("connect")
    await stage.over()
    template = stage.gateway.plans.of(next(iter(stage.policy.keys.values())), stage.policy.models["two"]).template
    stage.clock.now_ms += 86_400_000
    template._valid_until_ms = stage.clock.now_ms + 1  # as if this worker's clock were late
    exchange = await stage.send()
    assert len({admission.refs for admission in stage.ledger.admissions[-1:]}) == 1
    stage.call().answer(kind=b"application/json")
    stage.call().feed(whole(2, usage={"prompt_tokens": INPUT, "completion_tokens": 2}))
    stage.call().end()
    await stage.over()
    assert exchange.status == 200
    assert [admission.hold_id for admission in stage.ledger.admissions[-2:]] == ["req_2.1", "req_2.1"]


async def test_holds_of_requests_in_flight_are_named_for_renewal(tmp_path: Path) -> None:
    """The key's and the deployment's, as long as the request is under way; none that was never admitted."""
    stage = Stage(tmp_path, first=", limits: [5 concurrent]")
    exchange = await stage.send()
    (trip,) = stage.gateway.trips
    assert [hold_id for _, hold_id in trip.open_holds()] == ["req_1.1", "req_1.1.d1"]
    exchange.leave()
    await stage.over()
    assert list(trip.open_holds()) == []


# -- limits of time -----------------------------------------------------------------------------------------------------------------------


def timed(directory: Path, **resilience: str) -> Stage:
    """A gateway whose requests may take five seconds, and whose sleeps move the clock."""
    settings = {"retries": "1", "max_wait": "10s", "timeouts": "{total: 5s}"} | resilience
    stage = Stage(directory, more="resilience: {" + ", ".join(f"{name}: {value}" for name, value in settings.items()) + "}")

    async def sleep(pause_s: float) -> None:
        stage.now += pause_s

    stage.gateway._sleep = sleep
    return stage


def refuse(call: FakeCall, status: int, **headers: bytes) -> None:
    call.answer(status, b"application/json", **headers)
    call.feed(b'{"error": {"message": "no"}}')
    call.end()


def served(call: FakeCall) -> None:
    call.answer(kind=b"application/json")
    call.feed(whole(1, usage={"prompt_tokens": INPUT, "completion_tokens": 1}))
    call.end()


@pytest.mark.parametrize(("wait", "where"), [(b"4", "a"), (b"6", "b")])
async def test_a_pause_longer_than_what_is_left_is_not_made(tmp_path: Path, wait: bytes, where: str) -> None:
    """A retry after it would come too late: the next deployment is asked at once."""
    stage = timed(tmp_path)
    exchange = await stage.send()
    refuse(stage.call("a"), 429, retry_after=wait)
    await settle()
    served(stage.call(where))
    await stage.over()
    assert (exchange.status, len(stage.pools["a"].calls), len(stage.pools["b"].calls)) == (200, 2 if where == "a" else 1, int(where == "b"))


async def test_the_total_covers_all_that_is_tried(tmp_path: Path) -> None:
    """Each call ends with the request, whenever it began; when that has passed nobody is asked any more, and nothing is charged for it."""
    stage = timed(tmp_path, retries="0")
    exchange = await stage.send()
    stage.now += 3
    refuse(stage.call("a"), 503)
    await settle()
    assert [stage.call(name).ends_at for name in ("a", "b")] == [105.0, 105.0]
    stage.now += 2
    stage.call("b").fail("deadline")
    record = await stage.over()
    assert (exchange.status, json.loads(exchange.data)["error"]["code"]) == (504, "upstream_timeout")
    assert [attempt.outcome for attempt in record.attempts] == ["503", "deadline"]

    exchange = await stage.send()
    stage.now += 6
    refuse(stage.call("a"), 503)
    record = await stage.over()
    assert (exchange.status, stage.call("b").written) == (504, False)
    assert [(attempt.outcome, attempt.billed) for attempt in record.attempts] == [("503", "no"), ("deadline", "no")]
    assert record.output_tokens == 0


@pytest.mark.parametrize(
    ("header", "ends_at"),
    [(b"2", 102.0), (b"1500ms", 101.5), (b"2.5 s", 102.5), (b"7", 105.0), (b"2m", 105.0), (b"0", 105.0), (b"soon", 105.0), (b"-1", 105.0)],
)
async def test_a_client_shortens_its_request_and_never_lengthens_it(tmp_path: Path, header: bytes, ends_at: float) -> None:
    """By its header `timeout`; nonsense changes nothing. What the official packages say about silence is not read."""
    stage = timed(tmp_path)
    await stage.send(KEY | {b"timeout": header, b"x-stainless-read-timeout": b"1", b"x-stainless-timeout": b"1"})
    assert stage.call("a").ends_at == ends_at
    served(stage.call("a"))
    await stage.over()


@pytest.mark.parametrize("chosen", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_deadline_that_the_client_has_chosen_is_no_fault_of_the_upstreams(tmp_path: Path, stream: bool, chosen: bool) -> None:
    """No breaker counts it, and nobody else is asked: the time is over. What it may have cost is charged. The operator's own total counts."""
    stage = timed(tmp_path)
    exchange = await stage.send(KEY | ({b"timeout": b"2"} if chosen else {}), stream=stream)
    stage.call("a").fail("deadline")
    record = await stage.over()
    assert (exchange.status, json.loads(exchange.data)["error"]["code"], stage.pools["b"].calls) == (504, "upstream_timeout", [])
    assert stage.gateway.standings.of("a/first").failures == (0 if chosen else 1)
    assert (record.output_tokens, record.attempts[0].outcome, record.error) == (100, "deadline", "upstream_timeout")


@pytest.mark.parametrize("reason", ["deadline", "timeout"])
async def test_a_stream_that_takes_too_long_ends_with_an_error(tmp_path: Path, reason: Any) -> None:
    """One event that says so, no `[DONE]`, an unclean end; what came is charged. That the request's time is over says nothing of the deployment, a
    silence does."""
    stage = timed(tmp_path)
    exchange = await stage.send(stream=True)
    call = stage.call("a")
    call.answer()
    call.feed(text(7))
    await settle()
    call.fail(reason)
    record = await stage.over()
    error = json.loads(exchange.data.split(b"data: ")[-1])["error"]
    assert (error["code"], exchange.aborted, b"[DONE]" in exchange.data) == ("upstream_timeout", True, False)
    assert ("time of the request" in error["message"]) is (reason == "deadline")
    assert (record.error, record.status, record.attempts[0].error) == ("upstream_timeout", 200, reason)
    assert record.output_tokens >= 7
    assert stage.gateway.standings.of("a/first").failures == (0 if reason == "deadline" else 1)


@pytest.mark.parametrize("elsewhere", ["on", "off"])
@pytest.mark.parametrize(("reason", "status"), [("timeout", 504), ("reset", 502), ("protocol", 502), ("connect", 200), (504, 504), (503, 200)])
async def test_what_may_have_been_done_is_asked_for_elsewhere_if_that_is_wanted(tmp_path: Path, reason: Any, status: int, elsewhere: str) -> None:
    """Never where it was. The first attempt stays charged; what certainly was not done goes on in either case."""
    stage = timed(tmp_path, retries="0", resend_elsewhere=elsewhere)
    exchange = await stage.send()
    call = stage.call("a")
    if isinstance(reason, int):
        refuse(call, reason)
    else:
        call.written = reason != "connect"
        call.fail(reason)
    await settle()
    if stage.pools["b"].calls:
        served(stage.call("b"))
    record = await stage.over()
    assert exchange.status == (200 if elsewhere == "on" else status)
    assert len(stage.pools["a"].calls) == 1
    charged = status != 200
    assert record.output_tokens == 100 * charged + int(exchange.status == 200)
