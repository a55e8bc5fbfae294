"""Both ends of HTTP for tests: transports and a loop that a test drives by hand, and scripted peers on real loopback sockets.

Unit tests: `client(handle)` is a server's connection over a FakeTransport, `FakeLoop` a loop whose time moves by `advance` only and whose
`create_connection` hands out FakeTransports. End-to-end tests: `scripted(script)` serves connections with raw bytes, `talk` is a raw client.
"""

import asyncio
import contextlib
import functools
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import pytest
import uvloop

from sluicegate.http.connection import Bounds, ClientConnection, State
from sluicegate.http.exchange import Handler
from sluicegate.http.server import Server


def on_both_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs a test on asyncio's own loop and on uvloop: they differ where connections end."""

    def run(*, new_loop: Callable[[], asyncio.AbstractEventLoop], **arguments: Any) -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(test(**arguments))

    signature = inspect.signature(test)
    loop = inspect.Parameter("new_loop", inspect.Parameter.KEYWORD_ONLY)
    functools.update_wrapper(run, test)
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), loop])  # type: ignore[attr-defined]
    return pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])(run)


async def settle() -> None:
    """Lets every task go on as far as it can without anything new."""
    for _ in range(10):
        await asyncio.sleep(0)


class FakeTransport(asyncio.Transport):
    """Records what is written; `unsent_bytes` is what its kernel has not taken."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__({"peername": ("192.0.2.7", 4711)})
        self.protocol = protocol
        self.writes: list[bytes] = []
        self.unsent_bytes = 0
        self.full = False  # each write fills the buffer
        self.reading = True
        self.closed = False  # after what is unsent
        self.aborted = False
        self.half_closed = False
        self.lost = False

    @property
    def written(self) -> bytes:
        return b"".join(self.writes)

    def feed(self, data: bytes) -> None:
        """One socket read."""
        assert self.reading, "data came while reading is paused"
        if not self.aborted and not self.closed:
            self.protocol.data_received(data)

    def lose(self, error: Exception | None = None) -> None:
        """The connection is gone."""
        self.lost = True
        if error is None:
            self.protocol.eof_received()
        self.protocol.connection_lost(error)

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))
        if self.full:
            self.protocol.pause_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.limits = (high, low)

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.half_closed = True

    def is_closing(self) -> bool:
        return self.closed or self.aborted or self.lost

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True


class FakeLoop:
    """The running loop with a clock and connections of the test's own."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.transports: list[FakeTransport] = []
        self.connects: list[asyncio.Future[None]] = []  # attempts that wait for `refuse` or `accept`
        self.held = False  # attempts wait
        self.full = False  # of new transports
        self.reached: list[tuple[Any, ...]] = []  # host, port, name that TLS verifies
        self.tls_failure: Exception | None = None
        self.transport_kind: type[FakeTransport] = FakeTransport
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self._loop = asyncio.get_running_loop()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def time(self) -> float:
        return self.now

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Any:
        entry = (self.now + delay_s, callback)
        self._timers.append(entry)

        class Handle:
            def cancel(handle) -> None:
                with contextlib.suppress(ValueError):
                    self._timers.remove(entry)

        return Handle()

    def advance(self, seconds: float) -> None:
        """Moves time on, in steps of the timers that become due."""
        end = self.now + seconds
        while due := [entry for entry in self._timers if entry[0] <= end]:
            entry = min(due, key=lambda entry: entry[0])
            self._timers.remove(entry)
            self.now = max(self.now, entry[0])
            entry[1]()
        self.now = end

    async def create_connection(
        self, factory: Callable[[], Any], host: str, port: int, *, ssl: object, server_hostname: str | None
    ) -> tuple[FakeTransport, Any]:
        assert (ssl is None) is (server_hostname is None)
        self.reached.append((host, port, server_hostname))
        if self.held:
            gate = self._loop.create_future()
            self.connects.append(gate)
            await gate
        protocol = factory()
        transport = self.transport_kind(protocol)
        transport.full = self.full
        self.transports.append(transport)
        protocol.connection_made(transport)
        return transport, protocol

    async def start_tls(self, transport: FakeTransport, protocol: Any, _context: object, *, server_hostname: str) -> FakeTransport:
        """TLS inside a connection: what is written and fed is plain, over a transport of its own."""
        self.reached.append((transport, server_hostname))
        transport.protocol = protocol
        await asyncio.sleep(0)
        if self.tls_failure is not None:
            raise self.tls_failure
        inner = FakeTransport(protocol)
        self.transports.append(inner)
        return inner


def client(handle: Handler, bounds: Bounds | None = None, loop: FakeLoop | None = None) -> tuple[FakeTransport, FakeLoop, State]:
    """A client's connection to a server, the loop that times it, and the server's state."""
    server = Server(handle, bounds=bounds or Bounds())
    server.config.load()
    server.server_state.date = b"date: Mon, 30 Nov 2026 00:00:00 GMT"
    loop = loop or FakeLoop()
    connection = ClientConnection(server.config, server.server_state, {}, loop)  # type: ignore[arg-type]
    transport = FakeTransport(connection)
    connection.connection_made(transport)
    return transport, loop, server.server_state


def sweep(state: State, loop: FakeLoop) -> None:
    """What the server does once a second."""
    for connection in list(state.connections):
        connection.sweep(loop.time())  # type: ignore[union-attr]


def split_answer(data: bytes) -> tuple[int, dict[bytes, bytes], bytes]:
    """Status, headers and undecoded body of an answer."""
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    return int(first.split()[1]), dict(line.split(b": ", 1) for line in lines), body


def error_of(data: bytes) -> tuple[int, Any]:
    """Status and error of an answer in JSON, which ends its connection."""
    status, headers, body = split_answer(data)
    assert headers[b"content-type"] == b"application/json"
    assert int(headers[b"content-length"]) == len(body)
    assert headers[b"connection"] == b"close"
    return status, json.loads(body)["error"]


Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def scripted(script: Script, **options: Any) -> AsyncIterator[int]:
    """A server that runs `script` for each connection; yields its port. A script's failure fails the test."""
    tasks: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await script(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the other side left, or the test is over
        finally:
            writer.transport.abort()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.get_running_loop().create_task(serve(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0, **options)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Head and body (by content-length) of one request."""
    head = await reader.readuntil(b"\r\n\r\n")
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return head, await reader.readexactly(int(value))
    return head, b""


async def talk(port: int, data: bytes) -> bytes:
    """Sends bytes to a port and returns all that comes until the other side closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        return await reader.read()
    finally:
        writer.transport.abort()


@contextlib.asynccontextmanager
async def serving(handle: Handler, **options: Any) -> AsyncIterator[Server]:
    """A started server, stopped at the end."""
    server = Server(handle, **{"drain_s": 5.0, **options})
    await server.start()
    try:
        yield server
    finally:
        if server.ready:
            await server.stop()
