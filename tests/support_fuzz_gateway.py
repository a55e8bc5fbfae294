"""A gateway in this loop and an upstream on a real socket that says what is drawn, for fuzzers of what upstreams answer (support_fuzz_upstream.py).

After every answer it is looked at what must be so: the client can read to an end, nothing is held, the ledger has what the records say, nothing is
negative, and what the answer had said is charged.
"""

import asyncio
import contextlib
import json
import logging
import re
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from sluicegate import calling as calling_module
from sluicegate import gateway as gateway_module
from sluicegate.core.estimate import Learned
from sluicegate.core.meter import Meter
from sluicegate.core.record import Record
from sluicegate.trip import Attempt
from support_fuzz import Watch
from support_fuzz_upstream import SECRET, Answer, outputs
from support_inloop import MARKERS, Bench, Connection, Reply, running
from support_sockets import read_request, scripted, settle

KEYS = tuple(f"sk-k{number}" for number in range(40))  # some answers report so much that it uses up any limit
LIMITS = "[4503599627370495 tokens/lifetime, $4000000/lifetime, 1M requests/s, 64 concurrent]"
TENANTS = "  acme:\n    keys:\n" + "".join(f"      - {{name: {key[3:]}, key: {key}, limits: {LIMITS}}}\n" for key in KEYS)
PROVIDERS = """
  fast: {provider: mock, base_url: "UPSTREAM", api_key: sk-provider-secret, extend: on, tokenizer: o200k_base}
  events: {provider: llama_cpp, base_url: "UPSTREAM", extend: on}
  second: {provider: mock, base_url: "BASE_URL", extend: off, tokenizer: o200k_base}
"""
PRICED = "price: {input: 0.5, output: 1.0}"
MODELS = f"""
  open: {{deployments: [{{provider: fast, model: mock-open, {PRICED}}}]}}
  events: {{deployments: [{{provider: events, model: mock-events, {PRICED}}}]}}
  own: {{deployments: [{{provider: fast, model: mock-own, {PRICED}, extend: off, limits: [4503599627370495 tokens/lifetime, 9 concurrent]}}]}}
  route: {{deployments: [{{provider: mock, model: mock-first, {PRICED}}}, {{provider: second, model: mock-second, {PRICED}}}]}}
"""
CAP = 4000
WAIT_S = 60.0
WAITS = "resilience: {retries: 0, cooldown: 0s, breaker: {failures: 10000}, timeouts: {connect: 20s, first_byte: 50s, idle: 50s, total: 500s}}"
PAUSE_S = 0.02  # both sides run in one loop: what was written has been read by then


class Complaints(logging.Handler):
    """Everything that says that something went wrong inside of the gateway."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append(record.getMessage())


class Fuzz:
    """A running gateway, and an upstream that answers as it is told."""

    providers, models = PROVIDERS, MODELS
    outputs = staticmethod(outputs)  # in the client's dialect

    def __init__(self, runner: asyncio.Runner, directory: Path, stack: contextlib.ExitStack) -> None:
        self.runner = runner
        self.answers: list[Answer] = []  # by the `seed` of the request
        self.asked: Counter[int] = Counter()  # requests that the upstream was sent, by the same
        self.codes: Counter[str] = Counter()
        self.meters: dict[str, Meter] = {}  # of the last attempt of each request
        self.complaints = Complaints()
        self._keys = list(KEYS)
        self._used: dict[str, int] = {}
        self._stack = stack
        port = self._enter(scripted(self._serve))
        settings: dict[str, Any] = {"tenants": TENANTS, "models": self.models, "more": WAITS, "max_output": 4096}
        self.bench: Bench = self._enter(
            running(directory, upstream=port, providers=self.providers.replace("UPSTREAM", f"http://127.0.0.1:{port}/v1"), **settings)
        )
        self.bench.whole = False  # what is charged is compared with each answer
        Watch(self.bench)  # of the claims
        self._listen()

    def _enter(self, context: Any) -> Any:
        entered = self.runner.run(context.__aenter__())
        self._stack.callback(lambda: self.runner.run(_left(context)))
        return entered

    def _listen(self) -> None:
        """For complaints, and for what meters see. What is learned stays apart: an answer must be charged the same whatever came before it."""
        worker, scratch = self.bench.worker, Learned()
        logging.getLogger().addHandler(self.complaints)
        self._stack.callback(logging.getLogger().removeHandler, self.complaints)
        self.runner.get_loop().set_exception_handler(lambda loop, context: self.complaints.heard.append(str(context)))
        for module in (gateway_module, calling_module):
            log = module.log.bind()
            self._stack.enter_context(patch.object(module, "log", _Log(log, self.complaints.heard)))
        worker.learned.observe = scratch.observe  # type: ignore[method-assign]
        worker.learned.observe_later = scratch.observe_later  # type: ignore[method-assign]
        for name in ("_text_meter", "_stream_meter"):
            setattr(worker.gateway.calls, name, self._noting(getattr(worker.gateway.calls, name)))

    def _noting(self, make: Callable[..., Meter]) -> Callable[..., Meter]:
        def made(attempt: Attempt, *arguments: Any) -> Meter:
            meter = self.meters[attempt.held.hold_id.partition(".")[0]] = make(attempt, *arguments)
            return meter

        return made

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            _, body = await read_request(reader)
            number = self.number(json.loads(body))
            answer = self.answers[number]
            self.asked[number] += 1
            for piece in answer.pieces:
                writer.write(piece)
                await asyncio.sleep(0)
                if writer.transport.is_closing():
                    return
            match answer.end:
                case "close":
                    await writer.drain()
                    with contextlib.suppress(OSError):  # the other side may have closed
                        writer.write_eof()
                        await reader.read()
                    return
                case "reset":
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    return
                case "hang":
                    await writer.drain()
                    await asyncio.sleep(PAUSE_S)
                    if not reader._buffer:  # type: ignore[attr-defined]  # else the answer was whole, and the next request is there
                        self._expire(writer.get_extra_info("peername"))

    @staticmethod
    def number(body: Any) -> int:
        """Which of the requests this is, as the upstream gets it."""
        return int(body["seed"])

    def _expire(self, address: Any) -> None:
        """The gateway's patience with the call on one connection is over, sooner than its clock says."""
        for pool in self.bench.worker._pools.values():
            for call in list(pool._calls):
                if call._connection is not None and call._connection.transport.get_extra_info("sockname") == address:
                    call.expire(self.runner.get_loop().time() + WAIT_S)
                    call.expire(self.runner.get_loop().time() + 2 * WAIT_S)

    def ask(self, *told: tuple[dict[str, Any], Answer], leaving: int = 0) -> None:
        """Requests at the same time, each of which is answered as it says; looks at all that comes of it. Of the first few the client leaves."""
        self.runner.run(self._ask(told, leaving))

    async def _ask(self, told: tuple[tuple[dict[str, Any], Answer], ...], leaving: int) -> None:
        bench, key = self.bench, self._keys[0]
        self.answers = [answer for _, answer in told]
        self.asked.clear()
        self.meters.clear()
        bench.records.clear()
        replies = await asyncio.gather(*(self._reply(key, number, told[number][0], number < leaving) for number in range(len(told))))
        bench.connections.clear()
        await bench.quiet()
        await settle()  # a record is told a turn after its settlement
        assert self.complaints.heard == []
        await self._look_at_ledger(key)
        assert len(bench.records) == len(told)
        records = {record.request_id: record for record in bench.records}
        for number, reply in enumerate(replies):
            if reply is not None:
                fields, answer = told[number]
                self._count(reply, fields)
                self.well_formed(reply, fields)
                charged(self, answer, fields, reply, records[reply.headers["x-sluicegate-request-id"]], self.asked[number])

    def well_formed(self, reply: Reply, fields: dict[str, Any]) -> None:
        """A client can read the answer to its end."""
        well_formed(reply, fields["stream"])

    async def open(self, key: str, number: int, fields: dict[str, Any]) -> Connection:
        """A request whose answer has not been read."""
        return await self.bench.open(key, seed=number, **fields)

    async def _reply(self, key: str, number: int, fields: dict[str, Any], leave: bool) -> Reply | None:
        client = await self.open(key, number, fields)
        try:
            if not leave:
                return await client.rest()
            await client.reader.read(1 << 16)
            return None
        finally:
            client.close()

    def _count(self, reply: Reply, fields: dict[str, Any]) -> None:
        kind = "whole" if not fields["stream"] else "stream" if reply.done else "broken"
        self.codes[kind if reply.status == 200 else reply.code] += 1
        if reply.code in ("budget_exceeded", "request_too_large"):
            self._keys.pop(0)

    async def _look_at_ledger(self, key: str) -> None:
        """Nothing is held, and as much more is used as the records say."""
        records = self.bench.records
        tokens, cost = sum(one.input_tokens + one.output_tokens for one in records), sum(one.cost_nano_usd for one in records)
        counters, holds = await self.bench.ledger.show()
        assert [hold for hold in holds if hold.state not in MARKERS] == []
        for counter, ref in zip(self.bench.keys[key].counters, self.bench._refs(self.bench.keys[key]), strict=True):
            shown = next((one for one in counters if one.key == ref.key), None)
            assert shown is None or shown.held == 0, shown
            if shown is not None and ref.kind == "w":
                more = shown.used - self._used.get(ref.key, 0)
                self._used[ref.key] = shown.used
                assert more == (cost if counter.unit == "usd" else tokens)


class _Log:
    """The gateway's log. Exceptions must not be in it."""

    def __init__(self, log: Any, heard: list[str]) -> None:
        self._log = log
        self._heard = heard

    def warning(self, event: str, **fields: Any) -> None:
        assert SECRET not in str(fields)

    def exception(self, event: str, **fields: Any) -> None:
        self._log.exception(event, **fields)
        self._heard.append(event)


def _left(context: Any) -> Awaitable[Any]:
    return context.__aexit__(None, None, None)


# -- what must be so ----------------------------------------------------------------------------------------------------------------------


def well_formed(reply: Reply, stream: bool) -> None:
    """An answer that a client can read to its end: whole JSON, or a stream that ends with [DONE] or with an error event."""
    error: Any = None
    if reply.status != 200:
        assert reply.clean and reply.headers["content-type"] == "application/json", (reply.status, reply.body[-300:])
        assert 400 <= reply.status <= 599
        error = reply.json["error"]
    elif not stream:
        assert reply.clean and reply.headers["content-type"] == "application/json", reply.body[-300:]
        assert isinstance(reply.json, dict)
    else:
        assert reply.headers["content-type"].startswith("text/event-stream")
        if reply.clean:
            assert re.search(rb"data: *\[DONE\] *[\r\n]+$", reply.body), reply.body[-300:]
        else:
            last = re.split(rb"[\r\n]", reply.body.rstrip(b"\n"))[-1]
            error = json.loads(last.removeprefix(b"data: "))["error"]
    if error is not None:
        assert isinstance(error["message"], str) and error["message"] and len(error["message"]) <= 2500
        assert isinstance(error["type"], str) and error["type"]
        assert isinstance(error["code"], str) and error["code"] and error["code"] != "internal_error", error
        assert error["param"] is None or isinstance(error["param"], str)
        assert SECRET not in json.dumps(error)


def charged(fuzz: Fuzz, answer: Answer, fields: dict[str, Any], reply: Reply, record: Record, asked: int) -> None:
    """Nothing negative, nothing lost. asked: how often the upstream was sent this request."""
    read, written = record.input_tokens, record.output_tokens
    assert read >= 0 and written >= 0 and record.cost_nano_usd >= 0
    if not asked:
        assert (reply.status in (402, 429) or fields["model"] == "own") and not read and not written, (reply.body, read, written)
        return
    alone = len(record.attempts) == 1
    if answer.usage is not None:
        assert reply.status == 200 and alone, (reply.status, record.attempts)
        assert (read, written, record.source) == (*answer.usage, "reported")
        return
    if answer.billed:
        assert read > 0 and written >= answer.least, (read, written, record.source)
    if record.source not in ("reported", "partly") and alone and (meter := fuzz.meters.get(record.request_id)) is not None:
        assert written >= min(meter.least, CAP), (written, meter.least, record.source)
    if record.source not in ("reported", "partly") and fields["stream"] and reply.status == 200:
        assert written >= min(fuzz.outputs(reply.body), CAP) and read > 0
