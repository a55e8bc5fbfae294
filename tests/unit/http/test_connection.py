"""A client's connection: requests in every shape, hostile ones too, over a transport that the test drives."""

import asyncio
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.http.connection import PIPELINED_MAX, Bounds
from sluicegate.http.exchange import ClientGone, Exchange
from support_sockets import FakeTransport, client, error_of, settle, split_answer, sweep

Seen = tuple[str, str, bytes, bytes]

HEAD = b"POST /v1/chat/completions?a=b HTTP/1.1\r\nHost: x\r\nX-A: 1\r\n"
PATH = "/v1/chat/completions"
GOOD: dict[str, tuple[bytes, Seen]] = {
    "no body": (b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n", ("GET", "/v1/models", b"", b"")),
    "length": (HEAD + b"Content-Length: 5\r\n\r\nhello", ("POST", PATH, b"a=b", b"hello")),
    "length 0": (HEAD + b"Content-Length: 0\r\n\r\n", ("POST", PATH, b"a=b", b"")),
    "chunks": (HEAD + b"Transfer-Encoding: Chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n", ("POST", PATH, b"a=b", b"hello")),
    "extensions and trailers": (
        HEAD + b'Transfer-Encoding: chunked\r\n\r\n5;a="b"\r\nhello\r\n0;c\r\nX-B: 2\r\nHost: y\r\n\r\n',
        ("POST", PATH, b"a=b", b"hello"),
    ),
    "1.0": (b"POST /x HTTP/1.0\r\nContent-Length: 2\r\n\r\nhi", ("POST", "/x", b"", b"hi")),
    "full URL": (b"GET http://h:1/x?q HTTP/1.1\r\nHost: x\r\n\r\n", ("GET", "/x", b"q", b"")),
    "URL without path": (b"GET http://h HTTP/1.1\r\nHost: x\r\n\r\n", ("GET", "/", b"", b"")),
    "escapes": (b"GET /a%20b%2Fc HTTP/1.1\r\nHost: x\r\n\r\n", ("GET", "/a%20b%2Fc", b"", b"")),
    "upgrade": (
        b"POST /x HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nContent-Length: 5\r\n\r\nhello",
        ("POST", "/x", b"", b"hello"),
    ),
    "upgrade in chunks": (
        b"POST /x HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: h2c\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        ("POST", "/x", b"", b"hello"),
    ),
    "upgrade without body": (b"GET /x HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n", ("GET", "/x", b"", b"")),
}

BAD: dict[str, bytes] = {
    "both framings": HEAD + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "both framings, the other way": HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
    "two lengths": HEAD + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "a length twice": HEAD + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "a list of lengths": HEAD + b"Content-Length: 3, 3\r\n\r\nabc",
    "a signed length": HEAD + b"Content-Length: +3\r\n\r\nabc",
    "a negative length": HEAD + b"Content-Length: -3\r\n\r\nabc",
    "a hexadecimal length": HEAD + b"Content-Length: 0x3\r\n\r\nabc",
    "a length beyond 64 bits": HEAD + b"Content-Length: 99999999999999999999\r\n\r\nabc",
    "bare line feeds": b"GET / HTTP/1.1\nHost: x\n\n",
    "one bare line feed": b"GET / HTTP/1.1\r\nHost: x\nX-A: 1\r\n\r\n",
    "a bare carriage return": b"GET / HTTP/1.1\r\nHost: x\rX-A: 1\r\n\r\n",
    "a blank before the colon": b"GET / HTTP/1.1\r\nHost : x\r\n\r\n",
    "a blank before the name": b"GET / HTTP/1.1\r\n Host: x\r\n\r\n",
    "a folded line": b"GET / HTTP/1.1\r\nHost: x\r\n y\r\n\r\n",
    "no name": b"GET / HTTP/1.1\r\n: x\r\n\r\n",
    "no colon": b"GET / HTTP/1.1\r\nHost\r\n\r\n",
    "a null byte": b"GET / HTTP/1.1\r\nHost: x\0\r\n\r\n",
    "a control character": b"GET / HTTP/1.1\r\nHost: x\x01\r\n\r\n",
    "a name in another script": "GET / HTTP/1.1\r\nHost: x\r\nÄ: 1\r\n\r\n".encode(),
    "a coding besides chunked": HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "a coding after chunked": HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "a coding that ends in chunked": HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a coding twice": HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks in 1.0": b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
    "HTTP/0.9": b"GET /\r\n\r\n",
    "HTTP/2 by word": b"GET / HTTP/2.0\r\nHost: x\r\n\r\n",
    "HTTP/2 by preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "an unknown method": b"FETCH / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a small method": b"get / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a path with a blank": b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n",
    "a path beyond ASCII": "GET /ä HTTP/1.1\r\nHost: x\r\n\r\n".encode(),
    "a tunnel": b"CONNECT h:1 HTTP/1.1\r\nHost: h:1\r\n\r\n",
}
BAD_BODIES: dict[str, bytes] = {
    "a chunk's bare line feed": b"1\na\n0\n\n",
    "a chunk size with a prefix": b"0x1\r\na\r\n0\r\n\r\n",
    "a chunk size with a blank": b"1 \r\na\r\n0\r\n\r\n",
    "a chunk size beyond 64 bits": b"fffffffffffffffff\r\na\r\n0\r\n\r\n",
    "a negative chunk size": b"-1\r\na\r\n0\r\n\r\n",
    "a chunk longer than it says": b"1\r\nab\r\n0\r\n\r\n",
}


class Recorder:
    """A handler that reads the body and answers 200 with it."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self.seen: list[Seen] = []
        self.errors: list[BaseException] = []

    async def __call__(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)
        try:
            body = await exchange.read_body()
        except ClientGone as error:
            self.errors.append(error)
            return
        self.seen.append((exchange.method, exchange.path, exchange.query, body))
        exchange.start(200, [], len(body))
        exchange.finish(body)


def feed_bytes(transport: FakeTransport, data: bytes) -> None:
    for i in range(len(data)):
        transport.feed(data[i : i + 1])


async def test_a_refused_head_is_told_without_a_body() -> None:
    """An answer to HEAD ends with its headers, also where it is an error that the parser found."""
    for raw in (b"HEAD /x HTTP/1.1\r\n\r\n", b"HEAD /x HTTP/1.1\r\nHost: x\r\nContent-Length: +3\r\n\r\n"):
        transport, _, _ = client(Recorder())
        transport.feed(raw)
        status, headers, body = split_answer(transport.written)
        assert (status, headers[b"connection"], body) == (400, b"close", b"")


@pytest.mark.parametrize(("raw", "seen"), GOOD.values(), ids=GOOD)
async def test_requests_read_the_same_however_they_are_cut(raw: bytes, seen: Seen) -> None:
    """Whole, byte by byte, in two pieces at every place, and with the next request right behind: always the same request."""
    for cut in range(len(raw)):
        handle = Recorder()
        transport, _, _ = client(handle)
        transport.feed(raw[:cut]) if cut else feed_bytes(transport, raw)
        if cut:
            transport.feed(raw[cut:])
        await settle()
        assert handle.seen == [seen]
    handle = Recorder()
    transport, _, _ = client(handle)
    transport.feed(raw + GOOD["no body"][0])
    await settle()
    assert handle.seen == [seen] if b"HTTP/1.0" in raw else [seen, GOOD["no body"][1]]


AGAIN = [
    (b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nX-A: 1\r\n\r\n%b", "/a"),
    (b"POST /b HTTP/1.1\r\ncontent-length:%d \r\nHost: x\r\n\r\n%b", "/b"),
    (b"POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Type: %d\r\n\r\n2\r\nok\r\n0\r\n\r\n", "/c"),
]


@settings(deadline=None, max_examples=100)
@given(
    requests=st.lists(st.tuples(st.sampled_from(AGAIN), st.binary(max_size=20)), min_size=1, max_size=PIPELINED_MAX),
    cuts=st.lists(st.integers(1, 500), max_size=12),
    waits=st.lists(st.booleans(), min_size=13, max_size=13),
)
def test_heads_that_come_again_are_read_as_when_they_first_came(
    requests: list[tuple[tuple[bytes, str], bytes]], cuts: list[int], waits: list[bool]
) -> None:
    """Whatever the length of their bodies, however the bytes are cut, and whether one waits for the answer before."""

    async def run() -> None:
        recorder = Recorder()
        transport, _, _ = client(recorder)
        data, seen = b"", []
        for (form, path), body in requests:
            data += form % (len(body), body) if form.count(b"%") == 2 else form % 0
            seen.append(("POST", path, b"", body if form.count(b"%") == 2 else b"ok"))
        for cut, wait in zip([*cuts, len(data)], waits, strict=False):
            piece, data = data[:cut], data[cut:]
            transport.feed(piece)
            if wait:
                await settle()
        await settle()
        assert recorder.seen == seen
        assert all(exchange.headers[b"host"] == b"x" for exchange in recorder.exchanges)

    asyncio.run(run())


async def test_a_task_serves_a_connection() -> None:
    """One after the other, unless it is still busy with what comes after an answer; it ends with the connection."""
    gate, served = asyncio.Event(), []

    async def handle(exchange: Exchange) -> None:
        served.append(exchange)
        exchange.start(200, [], 0)
        exchange.finish()
        if len(served) == 2:
            await gate.wait()

    transport, _, state = client(handle)
    for _ in range(4):
        transport.feed(GOOD["no body"][0])
        await settle()
    first, second, third, fourth = [exchange.task for exchange in served]
    assert first is second
    assert first is not third
    assert third is fourth
    gate.set()
    await settle()
    assert not state.exchanges
    assert first is not None and first.done()
    assert third is not None and not third.done()
    transport.lose()
    await settle()
    assert third.done()


async def test_headers_have_small_names_and_repeated_ones_are_joined() -> None:
    """Names are lower-case, blanks around values are gone, a repeated header is one with a comma, an empty one stays, trailers are left out."""
    handle = Recorder()
    transport, loop, _ = client(handle)
    transport.feed(HEAD + b"x-a:  2 \t\r\nX-E:\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-T: 1\r\n\r\n")
    await settle()
    exchange = handle.exchanges[0]
    assert exchange.headers == {b"host": b"x", b"x-a": b"1, 2", b"x-e": b"", b"transfer-encoding": b"chunked"}
    assert (exchange.peer, exchange.arrived) == ("192.0.2.7", loop.now)


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "byte by byte"])
@pytest.mark.parametrize("raw", BAD.values(), ids=BAD)
async def test_hostile_heads_are_refused(raw: bytes, whole: bool) -> None:
    """A 400 in JSON, once, the handler not called, and nothing read behind it; our side is closed."""
    handle = Recorder()
    transport, _, _ = client(handle)
    transport.feed(raw + GOOD["no body"][0]) if whole else feed_bytes(transport, raw + GOOD["no body"][0])
    await settle()
    status, error = error_of(transport.written)
    assert (status, error["type"], error["param"], error["code"]) == (400, "invalid_request_error", None, "malformed_http")
    assert transport.half_closed
    assert handle.seen == []


@pytest.mark.parametrize("raw", BAD_BODIES.values(), ids=BAD_BODIES)
async def test_hostile_bodies_are_refused(raw: bytes) -> None:
    """A 400 in JSON; who reads the body finds the client gone, and nothing behind it is a request."""
    handle = Recorder()
    transport, _, _ = client(handle)
    transport.feed(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    await settle()
    transport.feed(raw + GOOD["no body"][0])
    await settle()
    assert error_of(transport.written)[0] == 400
    assert handle.seen == []
    assert [type(error) for error in handle.errors] == [ClientGone]


async def test_a_broken_body_ends_an_answer_that_has_begun_unclean() -> None:
    """No error in the middle of an answer: the connection closes without the end of it."""

    async def handle(exchange: Exchange) -> None:
        exchange.start(200, [], None)
        exchange.write(b"x")
        await asyncio.Event().wait()

    transport, _, _ = client(handle)
    transport.feed(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    await settle()
    transport.feed(b"zz\r\n")
    assert transport.closed
    assert transport.written.endswith(b"\r\n\r\n1\r\nx\r\n")


BOUNDS = Bounds(head_bytes=1000, head_count=10, head_s=10, body_idle_s=30, keep_alive_s=75, flush_s=20)


@pytest.mark.parametrize(
    "raw",
    [
        b"GET /%b HTTP/1.1\r\nHost: x\r\n\r\n" % (b"a" * 1000),
        b"GET / HTTP/1.1\r\nHost: x\r\nX: %b\r\n\r\n" % (b"a" * 1000),
        b"GET / HTTP/1.1\r\nHost: x\r\n%b: 1\r\n\r\n" % (b"a" * 1000),
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"".join(b"X-%d: 1\r\n" % i for i in range(10)) + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: 1\r\n" * 10 + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 5000,
        b"GET /" + b"a" * 5000,
    ],
    ids=["path", "value", "name", "count", "count of one name", "value without end", "path without end"],
)
async def test_large_heads_are_refused(raw: bytes) -> None:
    """A 431 in JSON for too many bytes or headers, in one read or in many, behind another request too."""
    for prefix in (b"", GOOD["no body"][0]):
        for size in (len(raw) + len(prefix), 7):
            handle = Recorder()
            transport, _, _ = client(handle, BOUNDS)
            data = prefix + raw
            for start in range(0, len(data), size):
                transport.feed(data[start : start + size])
                await settle()
            answers = transport.written
            if prefix:
                assert answers.startswith(b"HTTP/1.1 200")
                answers = answers[answers.find(b"HTTP/1.1 431") :] if size == 7 else b""
            if answers:
                status, error = error_of(answers)
                assert (status, error["code"]) == (431, "headers_too_large")
            assert len(handle.seen) == len(prefix and [prefix])
            assert transport.half_closed or transport.closed


async def test_empty_lines_instead_of_a_request_are_bounded() -> None:
    """Line ends before a request are skipped, but not for ever."""
    handle = Recorder()
    transport, _, _ = client(handle, BOUNDS)
    for _ in range(501):
        transport.feed(b"\r\n")
    assert error_of(transport.written)[0] == 431


async def test_a_flood_of_one_header_costs_no_more_than_the_bound() -> None:
    """Values are not joined without end."""
    handle = Recorder()
    transport, _, _ = client(handle, BOUNDS)
    transport.feed(b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a:\r\n" * 50_000 + b"\r\n")
    assert error_of(transport.written)[0] in (400, 431)


async def test_heads_at_the_bounds_pass() -> None:
    """Exactly as many headers and bytes as allowed, with a large body in the same read."""
    handle = Recorder()
    transport, _, _ = client(handle, BOUNDS)
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n" + b"".join(b"X-%d: 1\r\n" % i for i in range(7))
    head += b"Y: " + b"a" * (1000 - 27 - len(head)) + b"\r\n\r\n"
    transport.feed(head + b"b" * 5000)
    await settle()
    assert handle.seen == [("POST", "/", b"", b"b" * 5000)]


@pytest.mark.parametrize("raw", [b"5;" + b"x" * 2000, b"5\r\nhello\r\n0\r\nX: " + b"y" * 2000], ids=["extension", "trailer"])
async def test_chunk_extensions_and_trailers_are_bounded(raw: bytes) -> None:
    """What is no part of a body may not come without end either."""
    handle = Recorder()
    transport, _, _ = client(handle, BOUNDS)
    transport.feed(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    await settle()
    for start in range(0, len(raw), 100):
        transport.feed(raw[start : start + 100])
    await settle()
    assert error_of(transport.written)[0] == 431
    assert len(handle.errors) == 1


async def test_a_body_in_tiny_chunks_is_no_flood() -> None:
    """Many chunk heads, each with a piece of the body, pass."""
    handle = Recorder()
    transport, _, _ = client(handle, BOUNDS)
    transport.feed(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    for _ in range(500):
        transport.feed(b"1\r\n")
        transport.feed(b"a\r\n")
    transport.feed(b"0\r\n\r\n")
    await settle()
    assert handle.seen[0][3] == b"a" * 500


async def test_slow_headers_time_out() -> None:
    """408 when the headers are not complete after their time, however steadily they trickle."""
    handle = Recorder()
    transport, loop, state = client(handle, BOUNDS)
    for byte in b"GET / HTT":
        transport.feed(bytes([byte]))
        loop.advance(1.1)
        sweep(state, loop)
        assert transport.writes == []
    loop.advance(1.1)
    sweep(state, loop)
    status, error = error_of(transport.written)
    assert (status, error["code"]) == (408, "request_timeout")


async def test_a_silent_body_times_out() -> None:
    """408 when no byte of the body comes for a while; a byte starts the time anew; who reads finds the client gone."""
    handle = Recorder()
    transport, loop, state = client(handle, BOUNDS)
    transport.feed(HEAD + b"Content-Length: 5\r\n\r\n")
    await settle()
    for _ in range(4):
        loop.advance(29)
        sweep(state, loop)
        transport.feed(b"x")
    loop.advance(30)
    sweep(state, loop)
    await settle()
    assert error_of(transport.written)[0] == 408
    assert len(handle.errors) == 1


async def test_an_idle_connection_is_closed_without_a_word() -> None:
    """After the keep-alive time, or when nothing ever comes; not while an answer is being worked on."""
    handle = Recorder()
    transport, loop, state = client(handle, BOUNDS)
    loop.advance(10)
    sweep(state, loop)
    assert transport.closed
    assert transport.writes == []

    transport, loop, state = client(handle, BOUNDS)
    transport.feed(GOOD["no body"][0])
    loop.advance(1000)
    sweep(state, loop)
    await settle()
    loop.advance(74)
    sweep(state, loop)
    assert not transport.closed
    loop.advance(1)
    sweep(state, loop)
    assert transport.closed
    assert transport.written.count(b"HTTP/1.1") == 1


async def test_pipelined_requests_are_answered_in_order_one_at_a_time() -> None:
    """The second handler starts when the first has finished, even if it is quicker; reading pauses when too many wait."""
    running, order = 0, []
    gates = [asyncio.Event() for _ in range(PIPELINED_MAX + 1)]

    async def handle(exchange: Exchange) -> None:
        nonlocal running
        running += 1
        assert running == 1
        number = int(exchange.path[1:])
        await gates[number].wait()
        order.append(number)
        running -= 1
        exchange.start(200, [], 1)
        exchange.finish(b"%d" % number)

    transport, _, _ = client(handle)
    for i in range(PIPELINED_MAX + 1):
        assert transport.reading
        transport.feed(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % i)
    assert not transport.reading
    await settle()
    for gate in reversed(gates[1:]):
        gate.set()
    await settle()
    assert transport.writes == []
    gates[0].set()
    for _ in gates:
        await settle()
    assert transport.reading
    assert [answer[-1:] for answer in transport.writes] == [b"%d" % i for i in range(PIPELINED_MAX + 1)]


@pytest.mark.parametrize("raw", [b"BROKEN\r\n\r\n", HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"], ids=["head", "body"])
async def test_a_broken_request_behind_another_does_not_disturb_its_answer(raw: bytes) -> None:
    """The answer in progress is finished whole, then the connection closes."""
    gate = asyncio.Event()

    async def handle(exchange: Exchange) -> None:
        await gate.wait()
        exchange.start(200, [], 1)
        exchange.finish(b"1")

    transport, loop, state = client(handle)
    transport.feed(GOOD["no body"][0] + raw)
    await settle()
    loop.advance(1000)
    sweep(state, loop)
    assert transport.writes == []
    gate.set()
    await settle()
    assert split_answer(transport.written)[0::2] == (200, b"1")
    assert transport.closed


async def test_slow_headers_behind_a_long_answer_do_not_cut_it() -> None:
    """A half request waits behind a stream: the stream goes on."""
    gate = asyncio.Event()

    async def handle(exchange: Exchange) -> None:
        exchange.start(200, [], None)
        exchange.write(b"a")
        await gate.wait()
        exchange.finish(b"b")

    transport, loop, state = client(handle)
    transport.feed(GOOD["no body"][0] + b"GET / HT")
    await settle()
    loop.advance(1000)
    sweep(state, loop)
    gate.set()
    await settle()
    assert transport.written.endswith(b"1\r\na\r\n1\r\nb\r\n0\r\n\r\n")
    assert transport.closed


async def test_continue_is_sent_when_the_body_is_wanted() -> None:
    """`100 Continue` goes out when the handler reads, once, and not when it refuses first."""
    want = asyncio.Event()

    async def handle(exchange: Exchange) -> None:
        await want.wait()
        body = await exchange.read_body()
        exchange.start(200, [], len(body))
        exchange.finish(body)

    transport, _, _ = client(handle)
    transport.feed(HEAD + b"Expect: 100-Continue\r\nContent-Length: 5\r\n\r\n")
    await settle()
    assert transport.writes == []
    want.set()
    await settle()
    assert transport.writes == [b"HTTP/1.1 100 Continue\r\n\r\n"]
    transport.feed(b"he")
    transport.feed(b"llo")
    await settle()
    assert split_answer(transport.writes[1])[0::2] == (200, b"hello")
    assert len(transport.writes) == 2


async def test_no_continue_for_a_body_that_has_come() -> None:
    """A client that does not wait for it gets none."""
    handle = Recorder()
    transport, _, _ = client(handle)
    transport.feed(HEAD + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\nhello")
    await settle()
    assert transport.written.startswith(b"HTTP/1.1 200")


async def test_uploads_meet_back_pressure() -> None:
    """Reading pauses while nobody wants the body and goes on when the handler reads it."""
    want = asyncio.Event()
    bodies = []

    async def handle(exchange: Exchange) -> None:
        await want.wait()
        bodies.append(await exchange.read_body())
        exchange.start(204, [], None)
        exchange.finish()

    transport, loop, state = client(handle, BOUNDS)
    transport.feed(HEAD + b"Content-Length: 200000\r\n\r\n" + b"a" * 50_000)
    assert transport.reading
    transport.feed(b"a" * 50_000)
    assert not transport.reading
    await settle()
    loop.advance(1000)
    sweep(state, loop)  # that nothing comes is not the client's fault
    want.set()
    await settle()
    assert transport.reading
    transport.feed(b"a" * 100_000)
    await settle()
    assert bodies == [b"a" * 200_000]


async def test_reading_goes_on_when_a_large_body_is_complete() -> None:
    """A connection that was paused for its body is read again, so that a client that leaves is noticed."""
    transport, _, _ = client(lambda exchange: asyncio.sleep(3600))
    transport.feed(HEAD + b"Content-Length: 100000\r\n\r\n" + b"a" * 100_000)
    assert transport.reading


def test_every_bound_has_its_case() -> None:
    """The tables above hold no request twice."""
    raws = list(itertools.chain((raw for raw, _ in GOOD.values()), BAD.values(), BAD_BODIES.values()))
    assert len(raws) == len(set(raws))
