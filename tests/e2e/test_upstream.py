"""The pool against scripted peers on real sockets: framings, TLS, reuse, limits of time, large bodies, closing; with asyncio's loop and uvloop."""

import asyncio
import hashlib
import time
from pathlib import Path

import pytest

from sluicegate.core.tenants import Timeouts
from sluicegate.http.upstream import Call, Pool, UpstreamError
from support_proxy import server_tls
from support_sockets import on_both_loops, read_request, scripted
from support_time import undisturbed

OK = b"HTTP/1.1 200 OK\r\n"
SHORT = Timeouts(connect_ms=500, first_byte_ms=500, idle_ms=500, write_ms=500, total_ms=1_500)


async def run(pool: Pool, body: bytes = b"{}", timeouts: Timeouts = Timeouts()) -> tuple[Call, bytes]:  # noqa: B008  (immutable)
    call = pool.begin(b"POST", b"/chat", [], body, timeouts)
    try:
        await call.start()
        data = b""
        while piece := await call.read():
            data += piece
        return call, data
    finally:
        call.close()


async def failure(pool: Pool, body: bytes = b"{}", timeouts: Timeouts = SHORT) -> UpstreamError:
    with pytest.raises(UpstreamError) as caught:
        await run(pool, body, timeouts)
    return caught.value


@on_both_loops
async def test_answers_whole_and_byte_by_byte() -> None:
    """Every framing, as one write or a write per byte, over kept and closed connections."""
    answers = [
        (OK + b"Content-Length: 5\r\n\r\nhello", False),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n2;x\r\nhe\r\n3\r\nllo\r\n0\r\nX: y\r\n\r\n", False),
        (b"HTTP/1.1 103 Early\r\n\r\n" + OK + b"Content-Length: 5\r\n\r\nhello", False),
        (OK + b"\r\nhello", True),
        (b"HTTP/1.0 200 OK\r\n\r\nhello", True),
    ]
    todo = [(raw, close, size) for raw, close in answers for size in (1, len(raw))]
    script = iter(todo)

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            raw, close, size = next(script)
            for start in range(0, len(raw), size):
                writer.write(raw[start : start + size])
                await writer.drain()
                await asyncio.sleep(0)
            if close:
                writer.close()
                return

    async with scripted(upstream) as port:
        pool = Pool(f"http://127.0.0.1:{port}")
        for _ in todo:
            call, data = await run(pool)
            assert (call.status, data, call.complete) == (200, b"hello", True)
        await pool.close()


@on_both_loops
async def test_nobody_listens() -> None:
    """A refused connection, and a name that is none: `connect`, nothing written."""
    async with scripted(lambda reader, writer: asyncio.sleep(0)) as port:
        pass
    for url in (f"http://127.0.0.1:{port}", "http://name.invalid"):
        pool = Pool(url)
        error = await failure(pool, timeouts=Timeouts())
        assert (error.reason, error.written) == ("connect", False)
        await pool.close()


@on_both_loops
async def test_a_reused_connection_that_the_peer_closes_is_replaced() -> None:
    """The race of every keep-alive: the peer closes just when the next request comes. Nobody notices; a fresh one that does so is an error."""
    connections = 0
    requests = 0

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections, requests
        connections += 1
        if connections == 4:
            await read_request(reader)
            return
        await read_request(reader)
        requests += 1
        writer.write(OK + b"Content-Length: 5\r\n\r\nhello")
        await reader.readexactly(1)  # of the next request: then the connection is reset

    async with scripted(upstream) as port:
        pool = Pool(f"http://127.0.0.1:{port}")
        for _ in range(3):
            assert (await run(pool))[1] == b"hello"
        error = await failure(pool)
        assert (error.reason, error.written) == ("reset", True)
        assert (connections, requests) == (4, 3)
        await pool.close()


@on_both_loops
async def test_connections_are_reused_by_many_calls() -> None:
    """200 calls, 20 at a time, over at most 20 connections, each with its own answer."""
    connections = 0

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while True:
            _, body = await read_request(reader)
            writer.write(OK + b"Transfer-Encoding: chunked\r\n\r\n")
            for byte in body:
                writer.write(b"1\r\n%c\r\n" % byte)
                await asyncio.sleep(0)
            writer.write(b"0\r\n\r\n")

    async def some(pool: Pool, number: int) -> None:
        for i in range(10):
            body = b"call %d of %d" % (i, number)
            assert (await run(pool, body))[1] == body

    async with scripted(upstream) as port:
        pool = Pool(f"http://127.0.0.1:{port}")
        await asyncio.gather(*(some(pool, number) for number in range(20)))
        assert connections <= 20
        await pool.close()


@on_both_loops
async def test_limits_of_time() -> None:
    """Headers at once and a first piece later than first_byte are fine; silence before the headers, between pieces, and no end are not."""
    kind = ""

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        if kind == "silent":
            await reader.read()
            return
        writer.write(OK + b"Transfer-Encoding: chunked\r\n\r\n")
        while True:
            await asyncio.sleep(0.1 if kind == "endless" else 5)
            writer.write(b"1\r\nx\r\n")

    async with scripted(upstream) as port:
        pool = Pool(f"http://127.0.0.1:{port}")
        for each, at_least_s, at_most_s in (("silent", 0.5, 1.2), ("stalled", 0.5, 1.3), ("endless", 1.5, 2.2)):
            kind = each
            started, began = time.monotonic(), undisturbed()
            error = await failure(pool)
            assert (error.reason, error.written) == ("deadline" if kind == "endless" else "timeout", True)
            assert time.monotonic() - started + 0.02 >= at_least_s and undisturbed() - began < at_most_s
        await pool.close()


@on_both_loops
async def test_a_body_of_many_megabytes() -> None:
    """20 MB to an upstream that reads slowly at first arrive as they were."""
    body = bytes(range(256)) * (20_000_000 // 256)

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.3)
        _, got = await read_request(reader)
        digest = hashlib.sha256(got).hexdigest().encode()
        writer.write(OK + b"Content-Length: 64\r\n\r\n" + digest)
        await reader.read()

    async with scripted(upstream) as port:
        pool = Pool(f"http://127.0.0.1:{port}")
        call, data = await run(pool, body)
        assert data == hashlib.sha256(body).hexdigest().encode()
        assert call.complete
        await pool.close()


@on_both_loops
async def test_an_upstream_that_refuses_a_large_body_early() -> None:
    """A 413 before the body is read arrives; no more than what fits into the sockets has gone up."""
    closed = asyncio.Event()
    got_bytes = 0

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal got_bytes
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 5\r\n\r\nhello")
        await writer.drain()
        try:
            while data := await reader.read(65_536):
                got_bytes += len(data)
        finally:
            closed.set()

    async with scripted(upstream) as port:
        pool = Pool(f"http://127.0.0.1:{port}")
        call, data = await run(pool, b"x" * 50_000_000)
        assert (call.status, data) == (413, b"hello")
        async with asyncio.timeout(30):
            await closed.wait()
        assert got_bytes < 50_000_000
        await pool.close()


@on_both_loops
async def test_close_is_seen_by_the_upstream_at_once() -> None:
    """In the middle of a fast answer the connection ends; what was received can be taken."""
    closed = asyncio.Event()

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(OK + b"Transfer-Encoding: chunked\r\n\r\n")
        try:
            while not reader.at_eof():
                writer.write(b"400\r\n" + b"x" * 1024 + b"\r\n")
                await writer.drain()
                await asyncio.sleep(0)
        finally:
            closed.set()

    async with scripted(upstream) as port:
        pool = Pool(f"http://127.0.0.1:{port}")
        call = pool.begin(b"GET", b"/", [], b"", Timeouts())
        await call.start()
        assert await call.read()
        await asyncio.sleep(0.05)
        call.close()
        started = undisturbed()
        await closed.wait()
        assert undisturbed() - started < 0.5
        assert set(call.take()) == {ord("x")}
        with pytest.raises(UpstreamError):
            await call.read()
        await pool.close()


@on_both_loops
async def test_pause_holds_the_upstream_back() -> None:
    """A paused call takes no more than the sockets hold; resumed, it gets everything."""
    written = 0
    size = 30_000_000

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await read_request(reader)
        writer.write(OK + b"Content-Length: %d\r\n\r\n" % size)
        for _ in range(size // 100_000):
            writer.write(b"x" * 100_000)
            await writer.drain()
            written += 100_000
        await reader.read()

    async with scripted(upstream) as port:
        pool = Pool(f"http://127.0.0.1:{port}")
        call = pool.begin(b"GET", b"/", [], b"", Timeouts())
        await call.start()
        call.pause()
        await asyncio.sleep(0.3)
        assert written < size
        assert len(call.take()) < size
        got = written
        call.resume()
        total = 0
        while data := await call.read():
            total += len(data)
        assert got < written == size
        assert total <= size
        assert call.complete
        await pool.close()


@on_both_loops
async def test_tls(certificates: Path) -> None:
    """Verified against the given authority and the host's name, which is sent; else `tls`, nothing written, no request seen."""
    names: list[str | None] = []
    requests = 0
    context = server_tls(certificates / "localhost.pem")
    context.sni_callback = lambda sock, name, context: names.append(name)

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        while True:
            _, body = await read_request(reader)
            requests += 1
            writer.write(OK + b"Content-Length: %d\r\n\r\n" % len(body) + body)

    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)  # the peer's own complaints about refused handshakes
    async with scripted(upstream, ssl=context) as port:
        ca_file = str(certificates / "ca.pem")
        pool = Pool(f"https://localhost:{port}", ca_file=ca_file)
        for body in (b"hello", b"x" * 3_000_000):
            assert (await run(pool, body))[1] == body
        assert (names, requests) == (["localhost"], 2)
        await pool.close()

        for refused in (Pool(f"https://localhost:{port}"), Pool(f"https://127.0.0.1:{port}", ca_file=ca_file)):
            error = await failure(refused, timeouts=Timeouts())
            assert (error.reason, error.written) == ("tls", False)
            await refused.close()
        assert requests == 2


@on_both_loops
async def test_a_peer_that_speaks_no_tls(certificates: Path) -> None:
    """`tls`, nothing written."""

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(OK + b"Content-Length: 0\r\n\r\n")
        await reader.read()

    async with scripted(plain) as port:
        pool = Pool(f"https://127.0.0.1:{port}", ca_file=str(certificates / "ca.pem"))
        error = await failure(pool)
        assert (error.reason, error.written) == ("tls", False)
        await pool.close()
