"""A whole gateway, a mock provider and raw clients inside one event loop, and the audit with which every test against them ends.

    async with running(tmp_path, limits="[1000 tokens/day]", extend=True) as bench:
        answer = await bench.chat(max_tokens=20, stream=True)

On leaving, `Bench.audit` waits until nothing is in flight and compares the ledger with what the provider really produced: no hold is left, nothing
is held, no limit that does not refill is overspent, and what is used is at least the truth and at most `slack` tokens above it.
"""

import asyncio
import contextlib
import json
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import redis as redis_client

from sluicegate import app
from sluicegate.app import Worker
from sluicegate.config.load import Loaded, load_text
from sluicegate.core.estimate import FEW_USAGES, Figures
from sluicegate.core.limits import Unit
from sluicegate.core.meter import Meter
from sluicegate.core.plan import Template
from sluicegate.core.record import Record
from sluicegate.core.tenants import Counter, Key
from sluicegate.core.usage import Usage
from sluicegate.http import server as http_server
from sluicegate.ledger.contract import Ledger, LedgerUnavailable
from sluicegate.mock import Mock, from_mapping

TOKENIZER = "o200k_base"
PROMPT = "Tell me"  # of the default request: 2 tokens, 4 for the message, 3 for the reply
PROMPT_TOKENS = 9
INPUT_NANO_USD, OUTPUT_NANO_USD = 500, 1000  # per token, of the default price
MARKERS = ("cancelled", "forced")
SETTLE_S = 30.0  # for what happens at once on a machine with nothing else to do


class Reply:
    """One HTTP answer. clean: it ended as its framing says."""

    def __init__(self, data: bytes) -> None:
        head, _, rest = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        self.status = int(first.split()[1]) if first else 0
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        self.body, self.clean = _unframed(rest, self.headers) if first else (b"", False)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        """The error of a JSON answer, or of the last event of a stream."""
        return self.json["error"] if self.headers.get("content-type") == "application/json" else self.events[-1]["error"]

    @property
    def code(self) -> str:
        """200, or what the error is called."""
        return "200" if self.status == 200 else str(self.error["code"])

    @property
    def lines(self) -> list[str]:
        return [line for line in self.body.decode().replace("\r\n", "\n").replace("\r", "\n").split("\n") if line]

    @property
    def events(self) -> list[Any]:
        """The data of a stream, decoded, without `[DONE]`."""
        return [json.loads(line[6:]) for line in self.lines if line.startswith("data: {")]

    @property
    def done(self) -> bool:
        return self.body.rstrip().endswith(b"data: [DONE]")

    @property
    def choices(self) -> list[Any]:
        return [choice for event in self.events for choice in event.get("choices") or ()]

    @property
    def finishes(self) -> dict[int, str]:
        return {choice["index"]: choice["finish_reason"] for choice in self.choices if choice.get("finish_reason")}

    @property
    def text(self) -> str:
        return "".join([choice.get("delta", {}).get("content") or "" for choice in self.choices])

    @property
    def usages(self) -> list[Any]:
        """The events that carry usage."""
        return [event for event in self.events if event.get("usage") is not None]

    @property
    def truncated(self) -> str:
        """Why the gateway cut the stream; "" if it did not."""
        return next((event["sluicegate"]["truncated"] for event in self.events if "sluicegate" in event), "")


def _unframed(rest: bytes, headers: dict[str, str]) -> tuple[bytes, bool]:
    if "content-length" in headers:
        return rest, len(rest) == int(headers["content-length"])
    if headers.get("transfer-encoding") != "chunked":
        return rest, True
    body = []
    while True:
        size_text, separator, after = rest.partition(b"\r\n")
        size = int(size_text, 16) if separator else -1
        if size <= 0 or len(after) < size + 2:
            return b"".join(body), size == 0
        body.append(after[:size])
        rest = after[size + 2 :]


class Connection:
    """A client's connection, in bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.received = b""

    async def until(self, mark: bytes) -> bytes:
        """Everything received, once `mark` is in it."""
        async with asyncio.timeout(SETTLE_S):
            while mark not in self.received:
                data = await self.reader.read(1 << 20)
                assert data, f"closed before {mark!r}: {self.received[-500:]!r}"
                self.received += data
        return self.received

    async def rest(self, timeout_s: float = 60.0) -> Reply:
        """The answer, once it has ended as its framing says or the connection is closed."""
        async with asyncio.timeout(timeout_s):
            while True:
                if b"\r\n\r\n" in self.received:
                    reply = Reply(self.received)
                    if reply.clean and ("content-length" in reply.headers or "transfer-encoding" in reply.headers):
                        return reply
                try:
                    data = await self.reader.read(1 << 20)
                except ConnectionError:
                    data = b""
                if not data:
                    return Reply(self.received)
                self.received += data

    def send(self, data: bytes) -> None:
        self.received = b""
        self.writer.write(data)

    def stop_reading(self) -> None:
        self.writer.transport.pause_reading()  # type: ignore[attr-defined]

    def close(self) -> None:
        """Closes. With data unread the kernel resets."""
        self.writer.transport.abort()

    def reset(self) -> None:
        """An unmistakable reset."""
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


def request(body: bytes, key: str = "sk-key", *, path: str = "/v1/chat/completions", more: bytes = b"") -> bytes:
    """The bytes of one POST. `more`: header lines."""
    head = b"POST %b HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer %b\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n"
    return head % (path.encode(), key.encode(), more, len(body)) + body


class Bench:
    """What a test has at hand."""

    def __init__(self, loaded: Loaded, worker: Worker, port: int, mock: Mock) -> None:
        self.loaded = loaded
        self.worker = worker
        self.port = port
        self.mock = mock
        self.records: list[Record] = []
        self.slack = 0  # tokens that may be charged above the truth, where an upstream did not say what it used
        self.overrun = 0  # tokens by which the truth may exceed a limit, where physics leaves that
        self.truth: tuple[int, int] | None = None  # prompt and completion, where the upstream is not the mock
        self.whole = True  # used and truth are compared
        self.reachable = True  # the ledger can be asked in the end
        self.connections: list[Connection] = []
        worker.gateway._observers = (*worker.gateway._observers, self.records.append)

    @property
    def ledger(self) -> Ledger:
        return self.worker.ledger

    @property
    def keys(self) -> dict[str, Key]:
        return {f"sk-{key.name}": key for key in self.loaded.policy.keys.values()}

    @property
    def record(self) -> Record:
        return self.records[-1]

    @property
    def total(self) -> int:
        """Tokens that the mock has produced, prompts included."""
        tally = self.mock.truth.stats().total
        return tally.prompt_tokens + tally.completion_tokens

    # -- clients --------------------------------------------------------------------------------------------------------------------------

    async def connect(self, receive_bytes: int = 0) -> Connection:
        """receive_bytes: the kernel's buffer, for clients that are to be slow."""
        sock = socket.socket()
        if receive_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        connection = Connection(*await asyncio.open_connection(sock=sock))
        self.connections.append(connection)
        return connection

    async def raw(self, data: bytes) -> Reply:
        """One request in bytes."""
        connection = await self.connect()
        connection.send(data)
        try:
            return await connection.rest()
        finally:
            connection.close()

    def body(self, key: str = "sk-key", **fields: Any) -> bytes:
        """A chat request. A field that is ... is left out."""
        body = {"model": "chat", "messages": [{"role": "user", "content": PROMPT}], "user": key, **fields}
        return json.dumps({name: value for name, value in body.items() if value is not ...}).encode()

    async def post(self, body: bytes, key: str = "sk-key", more: bytes = b"") -> Reply:
        return await self.raw(request(body, key, more=more))

    def mocked(self, **options: Any) -> None:
        """How the mock answers from now on."""
        self.mock.options = from_mapping({"tokenizer": TOKENIZER, **options})

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """No answer of the mock that has a `ttft` goes on until this ends."""
        ticker: Any = self.mock.ticker
        tick = ticker._tick

        def hold() -> None:
            ticker._handle = None

        if ticker._handle is not None:
            ticker._handle.cancel()
        ticker._handle, ticker._tick = None, hold
        try:
            yield
        finally:
            ticker._tick = tick
            tick()

    async def at_once(self, requests: Sequence[Coroutine[Any, Any, Reply]], served: int) -> list[Reply]:
        """The answers to requests of which so many get through before the mock, which has a `ttft`, answers any."""
        with self.held():
            asking = [asyncio.create_task(request) for request in requests]
            await until(lambda: sum(task.done() for task in asking) >= len(asking) - served)
        return await asyncio.gather(*asking)

    async def left(self, connection: Connection) -> None:
        """A client resets its connection, and the gateway knows of it."""
        connection.reset()
        await until(lambda: all(trip.exchange.gone for trip in self.worker.gateway.trips))

    async def asked(self, count: int) -> None:
        """Until so many calls have come to the mock, in all."""
        await until(lambda: len(self.mock.calls) >= count)

    async def chat(self, key: str = "sk-key", **fields: Any) -> Reply:
        return await self.raw(request(self.body(key, **fields), key))

    async def open(self, key: str = "sk-key", receive_bytes: int = 0, **fields: Any) -> Connection:
        """A request whose answer has not been read."""
        connection = await self.connect(receive_bytes)
        connection.send(request(self.body(key, **fields), key))
        return connection

    async def get(self, path: str, key: str = "sk-key") -> Reply:
        return await self.raw(f"GET {path} HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer {key}\r\n\r\n".encode())

    async def usage(self, key: str = "sk-key") -> dict[str, Any]:
        """The caller's limits by name, with used and held."""
        limits = (await self.get("/v1/usage", key)).json["limits"]
        return {limit["name"]: limit for limit in limits}

    # -- the audit ------------------------------------------------------------------------------------------------------------------------

    async def quiet(self) -> None:
        """Nothing is in flight, and the ledger has taken every settlement."""
        async with asyncio.timeout(SETTLE_S):
            await self.mock.idle()
            while self.worker.gateway.trips:  # noqa: ASYNC110  (nothing to wait for)
                await asyncio.sleep(0.002)
            while self.worker._outbox.backlog:
                await self.worker._outbox.retry()
                await asyncio.sleep(0.002)

    async def audit(self) -> None:
        """See the module's docstring."""
        for connection in self.connections:
            connection.close()
        if not self.reachable:
            return
        await self.quiet()
        counters, holds = await self._shown()
        left = [hold for hold in holds if hold.state not in MARKERS]
        assert left == [], left
        assert [counter for counter in counters if counter.held] == []
        if not self.whole:
            return
        used = {counter.key: counter.used for counter in counters}
        for secret, key in self.keys.items():
            for counter, ref in zip(key.counters, self._refs(key), strict=True):
                if ref.kind == "w" and counter.models is None:
                    self._check(counter, used.get(ref.key, 0), *self._truth_below(counter, secret))

    async def _shown(self) -> Any:
        """What is in the ledger, which may be on its way back."""
        async with asyncio.timeout(SETTLE_S):
            while True:
                try:
                    return await self.ledger.show()
                except LedgerUnavailable:
                    await asyncio.sleep(0.02)

    def _refs(self, key: Key) -> Any:
        return Template(key.tree, key.counters, None).refset(self.ledger.now_ms()).refs

    def _truth_below(self, counter: Counter, secret: str) -> tuple[int, int]:
        """Prompt and completion tokens really produced for the keys under a counter's scope."""
        if self.truth is not None:
            return self.truth
        callers = self.mock.truth.stats().callers
        below = [name for name, key in self.keys.items() if counter.scope in key.path]
        tallies = [tally for caller, tally in callers.items() if caller in below or caller not in self.keys]
        return sum(tally.prompt_tokens for tally in tallies), sum(tally.completion_tokens for tally in tallies)

    def _check(self, counter: Counter, used: int, prompt: int, completion: int) -> None:
        per_token = {Unit.INPUT_TOKENS: (1, 0), Unit.OUTPUT_TOKENS: (0, 1), Unit.TOKENS: (1, 1), Unit.USD: (INPUT_NANO_USD, OUTPUT_NANO_USD)}
        if counter.unit not in per_token:
            return
        of_input, of_output = per_token[counter.unit]
        truth = prompt * of_input + completion * of_output
        assert used >= truth, f"{counter.key_prefix}: used {used}, produced {truth}"
        assert used - truth <= self.slack * max(of_input, of_output), f"{counter.key_prefix}: used {used}, produced {truth}"
        assert truth <= counter.ceiling + self.overrun * max(of_input, of_output), f"{counter.key_prefix}: limit {counter.ceiling}, produced {truth}"


async def until(condition: Callable[[], object]) -> None:
    """Until something is so, however busy the machine is."""
    async with asyncio.timeout(SETTLE_S):
        while not condition():  # noqa: ASYNC110  (nothing to wait for)
            await asyncio.sleep(0.002)


# -- running ------------------------------------------------------------------------------------------------------------------------------

PRICE = "{input: 0.5, output: 1.0}"


def config_text(
    directory: Path,
    base_url: str,
    *,
    limits: str = "[]",
    org: str = "[]",
    extend: bool = False,
    ledger: str = "memory://",
    records: str = "",
    tenants: str = "",
    models: str = "",
    providers: str = "",
    price: str = PRICE,
    max_output: int = 1024,
    deployment: str = "",
    log: str = "",
    more: str = "",
) -> str:
    """One key `sk-key` of `acme` with `limits`, under `org`; the models `chat` and `free` at one provider. The rest replaces or adds YAML."""
    on = "on" if extend else "off"
    if "retries:" not in more:  # a test that means retries says so
        more = more.replace("resilience: {", "resilience: {retries: 0, ") if "resilience:" in more else f"{more}\nresilience: {{retries: 0}}"
    return f"""
server: {{listen: "127.0.0.1:0", drain: 5s}}
ledger: {ledger}
records: {records or f"sqlite:///{directory}/records.db"}
journal: {directory}/journal/
log: {{access: "off"{log}}}
providers:
  mock: {{provider: mock, base_url: "{base_url}", api_key: sk-provider-secret, extend: {on}, tokenizer: {TOKENIZER}}}
{providers}
models:
  chat:
    deployments: [{{provider: mock, model: mock-chat, price: {price}{deployment}}}]
    max_output: {max_output}
  free:
    deployments: [{{provider: mock, model: mock-free, price: {{input: 0, output: 0}}}}]
{models}
tenants:
{
        tenants
        or f'''
  acme:
    limits: {org}
    keys: [{{name: key, key: sk-key, limits: {limits}}}]'''
    }
{more}"""


def prove(worker: Worker) -> None:
    """Usages enough of each deployment that its vocabulary is believed: before these, prompts are held by their bytes."""
    key = next(iter(worker.gateway.policy.keys.values()))
    figures = Figures(0, 0, 1, 0, 0, 0, 0, counted=1, in_tokens=True, text_bytes=3, framing=7)
    for model in worker.gateway.policy.models.values():
        for deployment in model.deployments:
            for _ in range(FEW_USAGES if deployment.tokenizer else 0):
                worker.learned.observe(figures, Usage(8, 0), Meter("", 1000), model=model, deployment=deployment, key=key, truncated=True)


@contextlib.asynccontextmanager
async def running(
    directory: Path,
    *,
    options: dict[str, Any] | None = None,
    upstream: int = 0,
    clock: Callable[[], int] | None = None,
    **settings: Any,
) -> AsyncIterator[Bench]:
    """A gateway in this loop, with a mock behind it, or the port of another `upstream`. Settings are those of `config_text`."""
    mock = Mock(from_mapping({"tokenizer": TOKENIZER, "completion": 20, **(options or {})}))
    await mock.start()
    base_url = f"http://127.0.0.1:{upstream}/v1" if upstream else mock.base_url
    for url, real in (("BASE_URL", mock.base_url), ("ROOT_URL", mock.base_url.removesuffix("/v1"))):
        settings = {name: value.replace(url, real) if isinstance(value, str) else value for name, value in settings.items()}
    loaded = load_text(config_text(directory, base_url, **settings), os.environ)
    try:
        with patch.object(app, "time_ms", clock or app.time_ms):
            serving = app.serving(loaded)
            worker, server = await serving.__aenter__()
        prove(worker)
        worker.directory.store._database._timeout_s = SETTLE_S  # a disk may have much to do
        bench = Bench(loaded, worker, server.port, mock)
        try:
            yield bench
            await bench.audit()
        finally:
            for connection in bench.connections:
                connection.close()
            with patch.object(http_server, "_POLL_S", 0.002):
                await serving.__aexit__(None, None, None)
    finally:
        await mock.stop()


@contextlib.contextmanager
def fresh_redis(redis_url: str, db: int = 11) -> Iterator[tuple[str, Any]]:
    """An empty database of that Redis: its URL, and a client."""
    url = redis_url.removesuffix("/0") + f"/{db}"
    with redis_client.Redis.from_url(url) as client:
        client.flushdb()
        yield url, client


def sse(*events: Any) -> bytes:
    """Events of a stream; a text goes as it is, anything else as JSON, None as `[DONE]`."""
    return b"".join(
        (event if isinstance(event, str) else "data: " + ("[DONE]" if event is None else json.dumps(event)) + "\n\n").encode() for event in events
    )


def chunk(text: str | None = None, finish: str | None = None, index: int = 0, **fields: Any) -> dict[str, Any]:
    """One chunk of an answer."""
    delta = {} if text is None else {"content": text}
    choices = [{"index": index, "delta": delta, "finish_reason": finish}]
    return {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices, **fields}


def usage_chunk(prompt: int, completion: int, **fields: Any) -> dict[str, Any]:
    """The chunk that carries usage alone."""
    return chunk() | {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion, **fields}}


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def framed(data: bytes, last: bool = False) -> bytes:
    """One HTTP chunk, and the end of the answer if it is the last."""
    return (b"%x\r\n%b\r\n" % (len(data), data) if data else b"") + (b"0\r\n\r\n" if last else b"")


def whole(status: int, body: bytes, *headers: str, kind: str = "application/json") -> bytes:
    """A whole answer with its length."""
    lines = "".join(f"{line}\r\n" for line in (f"content-type: {kind}", f"content-length: {len(body)}", *headers))
    return f"HTTP/1.1 {status} X\r\n{lines}\r\n".encode() + body
