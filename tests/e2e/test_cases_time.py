"""Limits of time, signs of life and streams that end in their middle, in the client's dialect. In one process, with a real mock on a real socket.

Model `chat` is at a provider that speaks every dialect of clients, `foreign` at one that mostly speaks another than the client does.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from sluicegate.core.record import Record
from support_inloop import PROMPT_TOKENS, Bench, Connection, Reply, request, running
from support_time import undisturbed

PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
EVERYWHERE = [(dialect, model) for dialect in PATHS for model in ("chat", "foreign")]
STREAM = pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
CAP = 60
LIMITS = "[100k tokens/day]"
PRICE = "price: {input: 0.5, output: 1.0}"


def bench(directory: Path, *, resilience: str = "", limits: str = LIMITS, more: str = "", **settings: Any) -> Any:
    """A gateway in front of one mock, known as two providers."""
    providers = """
  second: {provider: openai_compatible, speaks: [openai_chat], base_url: BASE_URL, tokenizer: o200k_base}
  claude: {provider: anthropic, base_url: BASE_URL, api_key: sk-a, tokenizer: o200k_base}"""
    models = f"""
  foreign: {{deployments: [{{provider: claude, model: three, {PRICE}}}]}}
  both: {{deployments: [{{provider: mock, model: one, {PRICE}}}, {{provider: second, model: two, {PRICE}}}]}}
  patient:
    deployments: [{{provider: mock, model: one, {PRICE}}}, {{provider: second, model: two, {PRICE}}}]
    timeouts: {{first_token: 2s}}"""
    more = f"resilience: {{{resilience}}}\n{more}" if resilience else more
    return running(directory, providers=providers, models=models, limits=limits, more=more, **settings)


def body(dialect: str, model: str, **fields: Any) -> bytes:
    messages = [{"role": "user", "content": "Tell me"}]
    asked: dict[str, Any] = {
        "chat": {"messages": messages, "max_tokens": CAP, "user": "sk-key"},
        "completions": {"prompt": "Tell me", "max_tokens": CAP, "user": "sk-key"},
        "responses": {"input": "Tell me", "max_output_tokens": CAP, "user": "sk-key"},
        "messages": {"messages": messages, "max_tokens": CAP, "metadata": {"user_id": "sk-key"}},
    }[dialect]
    return json.dumps({"model": model, **asked, **fields}).encode()


async def opened(b: Bench, dialect: str = "chat", model: str = "chat", more: bytes = b"", **fields: Any) -> Connection:
    connection = await b.connect()
    connection.send(request(body(dialect, model, **fields), path=PATHS[dialect], more=more))
    return connection


async def ask(b: Bench, dialect: str = "chat", model: str = "chat", more: bytes = b"", **fields: Any) -> Reply:
    return await (await opened(b, dialect, model, more, **fields)).rest()


async def ask_all(b: Bench, **settings: Any) -> list[tuple[Reply, Record]]:
    """The same request in every dialect of clients, at a provider that speaks it and at one that speaks another, at once."""
    replies = await asyncio.gather(*(ask(b, dialect, model, **settings) for dialect, model in EVERYWHERE))
    await b.quiet()
    records = {record.request_id: record for record in b.records}
    return [(reply, records[reply.headers["x-sluicegate-request-id"]]) for reply in replies]


def errors(reply: Reply) -> list[str]:
    """The codes of the error events of a stream, as its dialect says them."""
    return [event["error"].get("code") for event in reply.events if "error" in event]


def succeeded(reply: Reply) -> bool:
    """Whether a client would take the stream for a whole answer."""
    kinds = {event.get("type") for event in reply.events}
    return reply.clean or reply.done or bool(kinds & {"message_stop", "response.completed", "response.incomplete"})


# -- a stream that ends in its middle -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["fin", "rst", "silence"])
async def test_case_38_39_and_74_the_client_is_told_in_its_own_dialect(tmp_path: Path, how: str) -> None:
    """Cut, reset or silent after some output: one error event, nothing that looks like an end, an unclean close; what came is charged."""
    fault: dict[str, Any] = {"stall_after": 5} if how == "silence" else {"cut_after": 5, "cut": how}
    code = "upstream_timeout" if how == "silence" else "upstream_error"
    idle = "400ms" if how == "silence" else "30s"
    async with bench(tmp_path, resilience=f"timeouts: {{idle: {idle}}}", options={"completion": 40, "tpot": 0.5, **fault}) as b:
        b.slack = len(EVERYWHERE) * (CAP + PROMPT_TOKENS)
        for reply, record in await ask_all(b, stream=True):
            assert (reply.status, errors(reply), succeeded(reply)) == (200, [code], False)
            assert (record.status, record.error, record.attempts[0].billed) == (200, code, "yes")
            assert 5 <= record.output_tokens <= CAP
        failures = [b.worker.gateway.standings.of(deployment).failures for deployment in ("mock/mock-chat", "claude/three")]
        assert failures == [len(PATHS), len(PATHS)]


async def test_a_request_whose_time_is_over_ends_in_its_own_dialect(tmp_path: Path) -> None:
    """In the middle of a stream that goes well: an error event, and nothing is held against the deployment. The client has chosen it."""
    async with bench(tmp_path, options={"completion": CAP, "tpot": 20}) as b:
        b.slack = len(EVERYWHERE) * (CAP + PROMPT_TOKENS)
        for reply, record in await ask_all(b, more=b"timeout: 700ms\r\n", stream=True):
            assert (errors(reply), succeeded(reply)) == (["upstream_timeout"], False)
            assert b.worker.gateway.standings.of(record.deployment).failures == 0


# -- the first output ---------------------------------------------------------------------------------------------------------------------


async def test_case_47_a_slow_first_token_and_quick_ones_after_it(tmp_path: Path) -> None:
    """Headers at once, the first token after longer than may pass between two others: served, with all limits apart."""
    timeouts = "timeouts: {first_byte: 600ms, first_token: 30s, idle: 600ms}"
    async with bench(tmp_path, resilience=timeouts, options={"completion": 8, "ttft": 900, "tpot": 5, "early_headers": True}) as b:
        for reply, record in await ask_all(b, stream=True):
            assert (reply.status, errors(reply), succeeded(reply), record.output_tokens) == (200, [], True, 8)


async def test_case_47_a_first_token_that_is_too_late_goes_elsewhere(tmp_path: Path) -> None:
    """Headers at once and no token: the next deployment answers after `first_token`, for a model that is more patient the first one does."""
    async with bench(tmp_path, resilience="timeouts: {first_token: 400ms, idle: 10s}", options={"completion": 8}) as b:
        b.slack = CAP + PROMPT_TOKENS
        for model, tried in (("both", "mock/one:timeout,second/two:200"), ("patient", "mock/one:200")):
            b.mock.fault(count=1, model="one", early_headers=True, ttft=800)
            reply = await ask(b, model=model, stream=True)
            assert (reply.headers["x-sluicegate-attempts"], reply.done) == (tried, True)


# -- a time that the client has chosen ----------------------------------------------------------------------------------------------------


@STREAM
async def test_a_clients_deadline_is_kept(tmp_path: Path, stream: bool) -> None:
    """An upstream that is silent, a client that has little time: 504 in time, nobody else is asked, the deployment is not blamed."""
    async with bench(tmp_path, options={"stall_after": 0}) as b:
        b.slack = CAP + PROMPT_TOKENS
        started = undisturbed()
        reply = await ask(b, model="both", more=b"timeout: 0.15\r\n", stream=stream)
        assert undisturbed() - started < 2
        assert (reply.status, reply.code, reply.headers["x-sluicegate-attempts"]) == (504, "upstream_timeout", "mock/one:deadline")
        assert b.worker.gateway.standings.of("mock/one").failures == 0


async def test_a_place_in_line_is_part_of_a_requests_time(tmp_path: Path) -> None:
    """Who may wait for a minute and says that it has 100 ms is refused by then, with what refuses it."""
    more = "budget: {queue: {max_wait: 60s}}"
    async with bench(tmp_path, limits="[1 concurrent, 100k tokens/day]", more=more, options={"completion": CAP, "tpot": 20}) as b:
        b.slack = CAP
        first = await opened(b, stream=True)
        await first.until(b'"content"')
        started, began = asyncio.get_running_loop().time(), undisturbed()
        with b.held():
            reply = await ask(b, more=b"timeout: 100ms\r\n")
        assert (reply.status, reply.code) == (429, "concurrency_exceeded")
        assert asyncio.get_running_loop().time() - started > 0.08 and undisturbed() - began < 1


# -- signs of life ------------------------------------------------------------------------------------------------------------------------

ALIVE = "keep_alive: 40ms"


def signs(reply: Reply) -> int:
    return reply.body.count(b": keep-alive\n") + reply.body.count(b"event: ping\n")


async def test_case_83_a_waiting_client_is_told_that_all_is_well(tmp_path: Path) -> None:
    """Comments, or pings, until the first output; then the stream as it would have been, and none in between."""
    async with bench(tmp_path, resilience=ALIVE, options={"completion": 8, "ttft": 600}) as b:
        for reply, record in await ask_all(b, stream=True):
            assert (reply.status, errors(reply), succeeded(reply), record.output_tokens) == (200, [], True, 8)
            assert "x-sluicegate-deployment" not in reply.headers
            asked_in_messages = record.dialect == "anthropic_messages"
            sign = b'event: ping\ndata: {"type": "ping"}\n\n' if asked_in_messages else b": keep-alive\n"
            end = reply.body.index(b"event: message_start") if asked_in_messages else reply.body.rindex(sign) + len(sign)
            before, rest = reply.body[:end], reply.body[end:]
            assert 2 <= len(before) // len(sign) <= 15 and before == sign * (len(before) // len(sign)) and b"keep-alive" not in rest


async def test_another_deployment_may_still_answer_after_a_sign_of_life(tmp_path: Path) -> None:
    """Until the first output nothing is decided."""
    async with bench(tmp_path, resilience=f"{ALIVE}, timeouts: {{first_token: 700ms}}", options={"completion": 8}) as b:
        b.slack = CAP + PROMPT_TOKENS
        b.mock.fault(count=1, model="one", stall_after=0)
        reply = await ask(b, model="both", stream=True)
        assert (reply.done, reply.clean, reply.text.count(" "), b.record.deployment) == (True, True, 8, "second/two")
        assert signs(reply) >= 2


async def test_who_fails_after_a_sign_of_life_fails_in_the_stream(tmp_path: Path) -> None:
    """The status is 200 by then: an error event, no end, an unclean close; the record has what it would have been."""
    async with bench(tmp_path, resilience=f"{ALIVE}, timeouts: {{first_token: 200ms}}", options={"stall_after": 0}) as b:
        b.slack = len(EVERYWHERE) * (CAP + PROMPT_TOKENS)
        for reply, record in await ask_all(b, stream=True):
            assert (reply.status, errors(reply), succeeded(reply)) == (200, ["upstream_timeout"], False)
            assert signs(reply) >= 2
            assert (record.status, record.error) == (504, "upstream_timeout")


async def test_a_refusal_after_a_sign_of_life_says_what_refuses(tmp_path: Path) -> None:
    """It waited in line for a limit: the details that a refusal has are in the event."""
    more = "budget: {queue: {max_wait: 150ms}}"
    async with bench(
        tmp_path, resilience=ALIVE, limits="[1 concurrent, 100k tokens/day]", more=more, options={"completion": CAP, "tpot": 20}
    ) as b:  # fmt: skip
        b.slack = CAP
        first = await opened(b, stream=True)
        await first.until(b'"content"')
        with b.held():
            reply = await ask(b, stream=True)
        error = reply.events[-1]["error"]
        assert (reply.status, errors(reply), error["sluicegate"]["unit"]) == (200, ["concurrency_exceeded"], "concurrent")
        assert error["retry_after"] == 1  # in seconds, as the header would have said that is out by now


@STREAM
async def test_without_it_nothing_is_sent_early(tmp_path: Path, stream: bool) -> None:
    """It is off by default; and a unary answer has no such signs where it is on."""
    async with bench(tmp_path, resilience="" if stream else ALIVE, options={"completion": 8, "ttft": 120}) as b:
        reply = await ask(b, stream=stream)
        assert (signs(reply), reply.headers["x-sluicegate-deployment"]) == (0, "mock/mock-chat")
