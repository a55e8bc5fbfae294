"""The server on real sockets and, for signals, in a process of its own; with asyncio's loop and uvloop."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time

import pytest

from sluicegate.core.tenants import Timeouts
from sluicegate.http import server as server_module
from sluicegate.http.connection import Bounds
from sluicegate.http.exchange import BodyTooLarge, Exchange
from sluicegate.http.server import Server, bind, listen
from sluicegate.http.upstream import Pool
from support_sockets import on_both_loops, read_request, scripted, serving, split_answer, talk
from support_time import undisturbed

GET = b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n"
CLOSE = b"GET /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
POST = b"POST /x HTTP/1.1\r\nHost: x\r\n"


async def echo(exchange: Exchange) -> None:
    try:
        body = await exchange.read_body(1_000_000)
    except BodyTooLarge:
        body = b'{"error": "too large"}'
        exchange.start(413, [(b"content-type", b"application/json")], len(body))
    else:
        exchange.start(200, [], len(body))
    exchange.finish(body)


@on_both_loops
async def test_requests_over_one_connection() -> None:
    """Kept alive, pipelined, byte by byte: each gets its answer, in order."""
    async with serving(echo) as server:
        raw = b"".join(POST + b"Content-Length: 1\r\n\r\n%d" % i for i in range(3))
        answer = await talk(server.port, raw + CLOSE)
        assert [part[-1:] for part in answer.split(b"HTTP/1.1 200 OK")[1:4]] == [b"0", b"1", b"2"]
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for byte in POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n":
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200 OK\r\ndate: ")
        writer.transport.abort()


@pytest.mark.parametrize("framing", ["length", "chunks"])
@on_both_loops
async def test_a_client_that_sends_on_can_read_the_413(framing: str) -> None:
    """20 MB are sent to the end before the client reads; the refusal is not lost in a reset."""
    async with serving(echo) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        size = 20_000_000
        writer.write(POST + (b"Content-Length: %d\r\n\r\n" % size if framing == "length" else b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % size))
        for _ in range(20):
            writer.write(b"x" * (size // 20))
            await writer.drain()
        if framing == "chunks":
            writer.write(b"\r\n0\r\n\r\n")
        status, headers, body = split_answer(await reader.read())
        assert (status, headers[b"connection"], json.loads(body)) == (413, b"close", {"error": "too large"})
        writer.close()


@on_both_loops
async def test_a_header_flood_is_answered() -> None:
    """5 MB of headers: a 431 that the client can read although it sent on."""
    async with serving(echo) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n")
        for i in range(50):
            writer.write(b"X-%d: %b\r\n" % (i, b"y" * 100_000))
            await writer.drain()
        assert split_answer(await reader.read())[0] == 431
        writer.close()


@on_both_loops
async def test_slow_heads_and_bodies_are_ended() -> None:
    """Connections that trickle, stop in the middle or say nothing do not stay."""
    async with serving(echo, bounds=Bounds(head_s=0.3, body_idle_s=0.3, keep_alive_s=0.3)) as server:
        started = undisturbed()
        answers = await asyncio.gather(*(talk(server.port, raw) for raw in (b"", b"GET / HT", POST + b"Content-Length: 5\r\n\r\nhel", GET)))
        assert [answer[:12] for answer in answers] == [b"", b"HTTP/1.1 408", b"HTTP/1.1 408", b"HTTP/1.1 200"]
        assert undisturbed() - started < 8


@on_both_loops
async def test_the_upstream_is_closed_when_the_client_leaves() -> None:
    """A client closes after the second piece: the upstream sees it well within a second, and the handler settles."""
    left, settled = asyncio.Event(), asyncio.Event()

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            while not reader.at_eof():
                writer.write(b"1\r\nx\r\n")
                await writer.drain()
                await asyncio.sleep(0.01)
        finally:
            left.set()

    async def relay(exchange: Exchange) -> None:
        call = pool.begin(b"GET", b"/", [], b"", Timeouts())
        exchange.on_gone = call.close
        await call.start()
        exchange.start(call.status, [], None)
        try:
            while data := await call.read():
                exchange.write(data)
        except Exception:
            settled.set()

    async with scripted(upstream) as port, serving(relay) as server:
        pool = Pool(f"http://127.0.0.1:{port}")
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(GET)
        await reader.readuntil(b"1\r\nx\r\n")
        writer.close()
        async with asyncio.timeout(30):
            await left.wait()
            await settled.wait()
        await pool.close()


@on_both_loops
async def test_a_client_that_stops_reading() -> None:
    """What it does not take is counted; it is told of when it reads again; aborted, it is gone at once."""
    unsent: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    drained, go_on, gone = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def handle(exchange: Exchange) -> None:
        exchange.on_drained = drained.set
        exchange.on_gone = gone.set
        exchange.start(200, [], None)
        exchange.write(b"x" * 20_000_000)
        await asyncio.sleep(0.1)
        unsent.set_result(exchange.unsent())
        await go_on.wait()
        exchange.write(b"y" * 20_000_000)
        await asyncio.sleep(0.1)
        exchange.abort()

    async with serving(handle) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(GET)
        assert 65_536 < await unsent <= 20_000_010
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(20_000_000)
        async with asyncio.timeout(30):
            await drained.wait()
            go_on.set()
            await gone.wait()
        assert server.server_state.connections == set()
        writer.transport.abort()


@on_both_loops
async def test_what_a_signal_does_inside_a_loop() -> None:
    """stop(): not ready at once, nothing new accepted, idle connections closed, the open answer finished, on_stop called last."""
    events: list[str] = []
    gate = asyncio.Event()

    async def handle(exchange: Exchange) -> None:
        exchange.start(200, [], None)
        exchange.write(b"a")
        await gate.wait()
        exchange.finish(b"b")
        await asyncio.sleep(0.05)
        events.append("settled")

    async def started() -> None:
        events.append("started")

    async def stopped() -> None:
        events.append("stopped")

    async with serving(handle, on_start=started, on_stop=stopped) as server:
        assert server.ready
        idle, idle_writer = await asyncio.open_connection("127.0.0.1", server.port)
        busy, busy_writer = await asyncio.open_connection("127.0.0.1", server.port)
        busy_writer.write(GET)
        await busy.readuntil(b"a\r\n")
        stopping = asyncio.get_running_loop().create_task(server.stop())
        assert await idle.read() == b""
        assert not server.ready
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", server.port)
        gate.set()
        assert await busy.read() == b"1\r\nb\r\n0\r\n\r\n"
        await stopping
        assert events == ["started", "settled", "stopped"]
        idle_writer.close()
        busy_writer.close()


@on_both_loops
async def test_the_delay_before_draining_keeps_accepting() -> None:
    """While load balancers notice that it is not ready, new connections are served."""
    async with serving(echo, drain_delay_s=2.0) as server:
        stopping = asyncio.get_running_loop().create_task(server.stop())
        await asyncio.sleep(0)
        assert not server.ready
        assert (await talk(server.port, CLOSE)).startswith(b"HTTP/1.1 200")
        await stopping


@on_both_loops
async def test_the_end_of_the_drain_cuts() -> None:
    """An answer that does not end in time loses its client, so that its handler settles; one that ignores that is cancelled."""
    ended: list[str] = []
    begun = asyncio.Semaphore(0)

    async def handle(exchange: Exchange) -> None:
        gone = asyncio.Event()
        exchange.on_gone = gone.set
        begun.release()
        exchange.start(200, [], None)
        exchange.write(b"a")
        await gone.wait()
        ended.append("settled")
        if exchange.query == b"stubborn":
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

    async with serving(handle, drain_s=0.2) as server:
        clients = [asyncio.get_running_loop().create_task(talk(server.port, raw)) for raw in (GET, GET.replace(b"/x", b"/x?stubborn"))]
        for _ in clients:
            await begun.acquire()
        started = undisturbed()
        await server.stop()
        assert undisturbed() - started < 0.2 + 2
        assert ended == ["settled", "settled", "cancelled"]
        for answer in await asyncio.gather(*clients, return_exceptions=True):
            assert isinstance(answer, ConnectionError) or not answer.endswith(b"0\r\n\r\n")


@on_both_loops
async def test_inherited_sockets() -> None:
    """A parent's listening sockets serve; the port is theirs."""
    sockets = [listen("127.0.0.1", 0), listen("127.0.0.1", 0)]
    async with serving(echo, sockets=sockets) as server:
        assert server.port == sockets[0].getsockname()[1]
        for port in [sock.getsockname()[1] for sock in sockets]:
            assert (await talk(port, CLOSE)).startswith(b"HTTP/1.1 200")


@on_both_loops
async def test_nobody_is_let_in_before_it_can_serve() -> None:
    """A socket that the parent has bound refuses connections until the worker has started, so that nobody waits for it."""
    with bind("127.0.0.1", 0) as bound:
        refused = []

        async def start() -> None:
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(*bound.getsockname())
            refused.append(True)

        async with serving(echo, sockets=[bound], on_start=start) as server:
            assert refused == [True]
            assert (await talk(server.port, CLOSE)).startswith(b"HTTP/1.1 200")


def test_a_port_in_use_is_an_error_of_the_system() -> None:
    """OSError, which the command line turns into its exit code; also where another process has it and is still starting."""
    with listen("127.0.0.1", 0) as taken:
        for take in (listen, bind):
            with pytest.raises(OSError):
                take("127.0.0.1", taken.getsockname()[1])
    with bind("127.0.0.1", 0) as bound, bind("127.0.0.1", bound.getsockname()[1]) as other:
        bound.listen()
        with pytest.raises(OSError):
            other.listen()


PROCESS = """
import asyncio, sys
from sluicegate.http.server import Server

async def handle(exchange):
    gone = asyncio.Event()
    exchange.on_gone = gone.set
    exchange.start(200, [], None)
    exchange.write(b"a")
    if exchange.path == "/finish":
        while server.ready:
            await asyncio.sleep(0.01)
        exchange.finish(b"b")
        return
    await gone.wait()
    await asyncio.sleep(0.1)
    print("settled", flush=True)

async def started():
    print(type(asyncio.get_running_loop()).__module__, flush=True)

async def stopped():
    print("stopped", flush=True)

async def tell():
    while not server.ready:
        await asyncio.sleep(0.01)
    print(server.port, flush=True)

async def start():
    await started()
    server.telling = asyncio.get_running_loop().create_task(tell())

server = Server(handle, on_start=start, on_stop=stopped)
server.run()
print("done", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_signal_drains_a_process(number: int) -> None:
    """The open answer is finished, then the process ends with 0, by itself; its loop is uvloop."""
    with subprocess.Popen([sys.executable, "-c", PROCESS], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "uvloop\n"
        port = int(process.stdout.readline())
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(GET.replace(b"/x", b"/finish"))
            assert client.recv(1000).endswith(b"a\r\n")
            process.send_signal(number)
            assert client.recv(1000) == b"1\r\nb\r\n0\r\n\r\n"
            assert client.recv(1000) == b""
        assert process.wait(60) == 0
        assert process.stdout.read() == "stopped\ndone\n"


def test_a_second_signal_cuts_a_process() -> None:
    """Every handler hears that its client is gone and settles; the process ends with 0 within 2 seconds."""
    with subprocess.Popen([sys.executable, "-c", PROCESS], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        port = int(process.stdout.readline())
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
        for client in clients:
            client.sendall(GET)
            assert client.recv(1000).endswith(b"a\r\n")
        process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        started = undisturbed()
        assert process.wait(60) == 0
        assert undisturbed() - started < 2
        assert process.stdout.read() == "settled\n" * 3 + "stopped\ndone\n"
        for client in clients:
            client.close()


async def test_a_second_signal_ends_what_follows_the_last_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it comes before `on_stop` is called or while that waits for somebody: it is cancelled, after it has had a moment."""
    monkeypatch.setattr(server_module, "END_S", 0.01)
    for early in (False, True):
        asked, ended = asyncio.Event(), asyncio.Event()

        async def on_stop(asked: asyncio.Event = asked, ended: asyncio.Event = ended) -> None:
            asked.set()
            try:
                await asyncio.sleep(60)
            finally:
                ended.set()

        server = Server(echo, on_stop=on_stop)
        await server.start()
        if early:
            server.ask_to_stop()
        stopping = asyncio.get_running_loop().create_task(server.stop())
        await asyncio.wait_for(asked.wait(), 2)
        assert not server.hurried
        if not early:
            server.ask_to_stop()
        await asyncio.wait_for(stopping, 2)
        assert ended.is_set() and server.hurried


async def test_a_second_signal_ends_a_start() -> None:
    """It waits for somebody who does not answer: it is cancelled, nothing listens, and what was begun is stopped."""
    told: list[str] = []

    async def on_start() -> None:
        server.ask_to_stop()
        await asyncio.sleep(0)
        told.append("one signal is not enough")
        server.ask_to_stop()
        await asyncio.sleep(60)

    async def on_stop() -> None:
        told.append("stopped")

    server = Server(echo, on_start=on_start, on_stop=on_stop)
    await asyncio.wait_for(server.serve(), 2)
    assert (told, server.servers, server.hurried, server.ready) == (["one signal is not enough", "stopped"], [], True, False)


def test_a_signal_before_it_is_up_ends_it() -> None:
    """A process that is told to stop while it starts does so."""
    source = PROCESS.replace("    await started()\n", "    await started()\n    import os, signal\n    os.kill(os.getpid(), signal.SIGTERM)\n")
    source = source.replace("    server.telling = asyncio.get_running_loop().create_task(tell())\n", "    await asyncio.sleep(0.1)\n")
    result = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=20, check=False)
    assert (result.returncode, result.stdout) == (0, "uvloop\nstopped\ndone\n"), result.stderr


def test_the_server_is_a_plain_object_before_it_starts() -> None:
    """Building one opens no socket and needs no loop."""
    assert Server(echo).ready is False
