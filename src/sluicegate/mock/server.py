"""The mock's HTTP side: an asyncio protocol on httptools.

Cheap enough for load tests: no task and no timer per stream (flights.py); everything that is due on one stream goes out in one write.
Connections are kept alive; pipelined requests are answered in order.

How it fails: what is not a call that it understands is answered with a JSON error; bad HTTP closes the connection.
"""

import asyncio
import contextlib
import functools
import itertools
import json
import random
import signal
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Annotated, Any, cast

import httptools
import msgspec
import uvloop

from sluicegate.mock import anthropic_messages, ollama_chat, openai_chat, openai_completions, openai_embeddings, openai_responses
from sluicegate.mock.allowance import Allowance
from sluicegate.mock.allowance import headers as allowance_headers
from sluicegate.mock.answers import Dialect, plan
from sluicegate.mock.calls import BadCall, Call
from sluicegate.mock.flights import Flight, Ticker, flight_for, head
from sluicegate.mock.openai_chunks import error
from sluicegate.mock.options import Count, MockOptionError, MockOptions, from_mapping
from sluicegate.mock.truth import Stats, Tally, Truth

RESET_DELAY_S = 0.005  # a reset overtakes what was written just before it unless it has been taken
BODY_MAX_BYTES = 64 * 1024 * 1024
SEEN_CALLS, SEEN_BODY_BYTES = 256, 64 * 1024
MODELS = ("mock-small", "mock-large")
TAG = "[[mock "
DIALECTS: dict[str, Dialect] = {
    dialect.PATH: dialect for dialect in (anthropic_messages, ollama_chat, openai_chat, openai_completions, openai_embeddings, openai_responses)
}

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]

_PLAIN = MockOptions()
_json = msgspec.json.Encoder().encode
_tag_decoder = json.JSONDecoder()


class SeenCall(msgspec.Struct):
    """One of the last calls as it came, for `GET /mock/calls`: what a gateway really sent upstream."""

    caller: str
    path: str
    headers: dict[str, str]
    body: str  # at most 64 KiB of it


class Fault(msgspec.Struct):
    """Overrides for the next `count` calls (0: until the reset) that name `model` ("": any), or for a `share` of them, drawn from the seed."""

    overrides: dict[str, Any]
    count: int = 1
    model: str = ""
    share: Share = 1.0


class Mock:
    """The server. `truth` is what it really produced; `calls` are the last ones as they came."""

    def __init__(self, options: MockOptions | None = None, time_s: Callable[[], float] = time.time) -> None:
        self.options = options if options is not None else MockOptions()
        self._time_s = time_s
        self.truth = Truth()
        self.calls: deque[SeenCall] = deque(maxlen=SEEN_CALLS)
        self.faults: list[Fault] = []
        self.connections: set[Connection] = set()
        self._all_gone: asyncio.Future[None] | None = None
        self.base_url = ""  # of OpenAI's API, with its /v1, once started
        self._server: asyncio.Server | None = None
        self._numbers = itertools.count(1)
        self._idle: list[asyncio.Future[None]] = []
        self._random = random.Random(self.options.seed)
        self._allowances: dict[str, Allowance] = {}  # by credential

    async def start(self, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None) -> int:
        """Listens and returns the port. Raises OSError if it is taken."""
        loop = asyncio.get_running_loop()
        self.ticker = Ticker(loop)
        self._server = await loop.create_server(functools.partial(Connection, self, loop), host, port, ssl=tls, backlog=4096)
        port = self._server.sockets[0].getsockname()[1]
        self.base_url = f"{'https' if tls else 'http'}://{host}:{port}/v1"
        return port

    @property
    def root_url(self) -> str:
        """What the clients of Anthropic and Ollama call the base URL."""
        return self.base_url.removesuffix("/v1")

    async def stop(self) -> None:
        """Stops listening and drops every connection."""
        if self._server is None:
            return
        self._server.close()
        self.ticker.stop()
        for connection in list(self.connections):
            connection.transport.abort()
        if self.connections:
            self._all_gone = asyncio.get_running_loop().create_future()
            await self._all_gone
        await self._server.wait_closed()

    async def idle(self) -> None:
        """Returns once no call can produce tokens any more: from then on the truth is final. A stalled call ends with its connection."""
        if self.truth.in_flight:
            future = asyncio.get_running_loop().create_future()
            self._idle.append(future)
            await future

    def fault(self, count: int = 1, model: str = "", share: float = 1.0, **overrides: object) -> None:
        """The next calls, or a share of them, are answered with these overrides on top of everything else. Raises MockOptionError."""
        from_mapping(overrides)
        self.faults.append(Fault(overrides, count, model, share))

    def reset(self) -> None:
        """Forgets counts, calls and faults, and what was used of `requests_per_minute`."""
        self.truth.reset()
        self.calls.clear()
        self.faults.clear()
        self._allowances.clear()

    # -- what one request is answered ------------------------------------------------------------------------------------------------------

    def respond(self, connection: "Connection", method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        """Begins the answer to one request."""
        route = (method, path.partition("?")[0])
        dialect = DIALECTS.get(route[1]) if method == "POST" else None
        try:
            if dialect is not None:
                self._generate(dialect, connection, path, headers, body)
            elif route == ("GET", "/v1/models"):
                connection.answer(200, {"object": "list", "data": [{"id": name, "object": "model", "owned_by": "mock"} for name in MODELS]})
            elif route == ("GET", "/mock/stats"):
                connection.answer(200, self.stats())
            elif route == ("GET", "/mock/calls"):
                connection.answer(200, list(self.calls))
            elif route == ("POST", "/mock/reset"):
                self.reset()
                connection.answer(200, {})
            elif route == ("POST", "/mock/faults"):
                self._take_faults(body)
                connection.answer(200, {"faults": len(self.faults)})
            else:
                connection.answer(404, error(404, f"no {method} {route[1]} here", ""))
        except (BadCall, MockOptionError) as bad:
            connection.answer(400, (dialect or openai_chat).error(400, str(bad), "", getattr(bad, "param", None)))

    def stats(self) -> Stats:
        """Counts so far, per caller and in total."""
        return self.truth.stats()

    def _take_faults(self, body: bytes) -> None:
        try:
            faults = msgspec.json.decode(body, type=list[dict[str, Any]] | dict[str, Any])
            for fault in faults if isinstance(faults, list) else [faults]:
                found = (fault.pop("count", 1), fault.pop("model", ""), fault.pop("share", 1.0))
                count, model, share = msgspec.convert(found, tuple[Count, str, Share])
                self.fault(count, model, share, **fault)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as bad:
            raise BadCall(str(bad)) from None

    def _generate(self, dialect: Dialect, connection: "Connection", path: str, headers: dict[str, str], body: bytes) -> None:
        call = dialect.read_call(body)
        options = self._options(call, headers)
        credential = headers.get("authorization", "").removeprefix("Bearer ") or headers.get("x-api-key", "")
        if options.api_key and headers.get(dialect.KEY_HEADER, "").removeprefix("Bearer ") != options.api_key:
            options = msgspec.structs.replace(options, status=401, message=f"{dialect.KEY_HEADER} has no credential of this server")
        elif options.requests_per_minute:
            options = self._rated(options, credential)
        caller = options.caller or headers.get("x-mock-caller") or call.user or credential or "anonymous"
        self.calls.append(SeenCall(caller, path, headers, body[:SEEN_BODY_BYTES].decode("utf-8", "replace")))
        window = f"@{int(self._time_s()) // options.window_s * options.window_s}" if options.window_s else ""
        tally = self.truth.begin(caller + window)
        answer = plan(dialect, call, options, caller, next(self._numbers))
        connection.flight = flight_for(connection, self.ticker, answer, tally, self._ended)
        connection.flight.begin()

    def _rated(self, options: MockOptions, credential: str) -> MockOptions:
        """An answer within the credential's allowance, which says what is left of it, or a refusal."""
        now_s = self._time_s()
        allowance = self._allowances.setdefault(credential, Allowance(options.requests_per_minute, now_s))
        taken = allowance.take(now_s)
        told = {**allowance_headers(options.limit_headers, options.requests_per_minute, taken, now_s), **options.headers}
        if taken.granted:
            return msgspec.structs.replace(options, headers=told)
        return msgspec.structs.replace(options, headers=told, status=429, message="Rate limit reached for requests")

    def _options(self, call: Call, headers: dict[str, str]) -> MockOptions:
        options = self.options
        if "x-request-id" in headers:
            options = msgspec.structs.replace(options, request_id=headers["x-request-id"])
        if "x-mock" in headers:
            options = from_mapping(_mapping(headers["x-mock"]), options)
        if call.overrides is not None:
            options = from_mapping(call.overrides, options)
        for text in call.texts:
            start = text.find(TAG)
            if start >= 0:
                options = from_mapping(_mapping(text[start + len(TAG) :]), options)
        for fault in self.faults:
            if fault.model in ("", call.model) and (fault.share == 1 or self._random.random() < fault.share):
                fault.count -= 1
                if fault.count == 0:
                    self.faults.remove(fault)
                return from_mapping(fault.overrides, options)
        return options

    def disconnected(self, connection: "Connection") -> None:
        """A connection is closed."""
        self.connections.discard(connection)
        if self._all_gone is not None and not self.connections and not self._all_gone.done():
            self._all_gone.set_result(None)

    def _ended(self, tally: Tally) -> None:
        """A call produces nothing any more."""
        self.truth.end(tally)
        if not self.truth.in_flight:
            for future in self._idle:
                if not future.done():
                    future.set_result(None)
            self._idle.clear()


def _mapping(text: str) -> dict[str, Any]:
    """The JSON object that the text begins with."""
    try:
        value, _ = _tag_decoder.raw_decode(text.lstrip())
    except (ValueError, RecursionError) as bad:
        raise BadCall(f"mock options are not JSON: {bad}") from None
    if not isinstance(value, dict):
        raise BadCall("mock options are not a JSON object")
    return value


# -- connections --------------------------------------------------------------------------------------------------------------------------


class Connection(asyncio.Protocol):
    """One client. Requests are answered one after the other; `flight` is the answer in progress."""

    def __init__(self, mock: Mock, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.keep_alive = True
        self.flight: Flight | None = None
        self._mock = mock
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[tuple[str, str, dict[str, str], bytes, bool]] = deque()
        self._busy = False
        self._trickle: deque[bytes] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._mock.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._mock.disconnected(self)
        self._trickle.clear()
        if self.flight is not None:
            self.flight.client_gone(self.loop.time())

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.transport.abort()
        self._next()

    # -- httptools ---------------------------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._path = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._size = 0

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._headers.get("expect", "").lower() == "100-continue" and not self._busy:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size > BODY_MAX_BYTES:
            self.transport.abort()
        else:
            self._body.append(body)

    def on_message_complete(self) -> None:
        method = self._parser.get_method().decode("latin-1")
        self._waiting.append((method, self._path.decode("latin-1"), self._headers, b"".join(self._body), self._parser.should_keep_alive()))

    # -- answers -----------------------------------------------------------------------------------------------------------------------

    def _next(self) -> None:
        if self._busy or not self._waiting or self.transport.is_closing():
            return
        self._busy = True
        method, path, headers, body, self.keep_alive = self._waiting.popleft()
        self._mock.respond(self, method, path, headers, body)

    def answer(self, status: int, value: object) -> None:
        """A whole JSON answer."""
        body = _json(value)
        self.write(head(status, len(body), "application/json", _PLAIN, self.keep_alive) + body)
        self.finished()

    def write(self, data: bytes) -> None:
        size = self._mock.options.write_bytes if self.flight is None else self.flight.options.write_bytes
        if not size:
            self.transport.write(data)
            return
        if not self._trickle:
            self.loop.call_soon(self._write_piece)
        self._trickle.extend(data[i : i + size] for i in range(0, len(data), size))

    def _write_piece(self) -> None:
        if self._trickle:
            self.transport.write(self._trickle.popleft())
        if self._trickle:
            self.loop.call_soon(self._write_piece)

    def finished(self) -> None:
        """The answer is complete: the next one, or the end of the connection."""
        if self._trickle:
            self.loop.call_soon(self.finished)
            return
        self.flight, self._busy = None, False
        if not self.keep_alive:
            self.transport.close()
        elif self._waiting:
            self.loop.call_soon(self._next)

    def cut(self, reset: bool) -> None:
        """Ends the connection in the middle of an answer: closed, or reset once what was written has had time to arrive."""
        if self._trickle:
            self.loop.call_soon(self.cut, reset)
        elif reset:
            self.loop.call_later(RESET_DELAY_S, self._reset)
        else:
            self.transport.close()

    def _reset(self) -> None:
        sock = self.transport.get_extra_info("socket")
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()


def run_mock(options: MockOptions, host: str, port: int, on_ready: Callable[[str], object] | None = None) -> None:
    """Serves until SIGINT or SIGTERM. `on_ready` is told the base URL of the API. Raises OSError if the port is taken."""

    async def serve() -> None:
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopped.set)
        mock = Mock(options)
        await mock.start(host, port)
        if on_ready is not None:
            on_ready(mock.base_url)
        await stopped.wait()
        await mock.stop()

    uvloop.run(serve())
