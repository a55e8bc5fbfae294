"""Calls to an upstream that the test plays: framings, failures at every place, reuse, limits of time; no socket and no real time."""

import asyncio

import msgspec
import pytest

from sluicegate.http.upstream import SLICE_BYTES, TICK_S, Pool
from support_pool import LIMITS, OK, Net, failure, read_all
from support_sockets import settle

# raw answer, status, body, whether the connection can serve another call
WHOLE: dict[str, tuple[bytes, int, bytes, bool]] = {
    "length": (OK + b"Content-Length: 5\r\nX-A: 1\r\n\r\nhello", 200, b"hello", True),
    "length 0": (OK + b"Content-Length: 0\r\n\r\n", 200, b"", True),
    "length, close": (OK + b"Connection: close\r\nContent-Length: 5\r\n\r\nhello", 200, b"hello", False),
    "length, 1.0": (b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", 200, b"hello", False),
    "chunks": (OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n", 200, b"hello", True),
    "chunks, capitals": (OK + b"TRANSFER-ENCODING: Chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", 200, b"hello", True),
    "extensions and trailers": (OK + b"Transfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\nX-T: 1\r\nX-A: 2\r\n\r\n", 200, b"hello", True),
    "204": (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", True),
    "304": (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", 304, b"", True),
    "no reason": (b"HTTP/1.1 429\r\nContent-Length: 5\r\n\r\nhello", 429, b"hello", True),
    "odd status": (b"HTTP/1.1 599 Odd\r\nContent-Length: 5\r\n\r\nhello", 599, b"hello", True),
    "interim": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK + b"Content-Length: 5\r\n\r\nhello",
        200,
        b"hello",
        True,
    ),
    "identity": (OK + b"Content-Encoding: identity\r\nContent-Length: 5\r\n\r\nhello", 200, b"hello", True),
}
UNTIL_CLOSE = {
    "1.1": OK + b"\r\nhello",
    "1.0": b"HTTP/1.0 200 OK\r\n\r\nhello",
    "close": OK + b"Connection: close\r\n\r\nhello",
}
# What is wrong, as the error says it.
WRONG: dict[str, tuple[bytes, str]] = {
    "both framings": (OK + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", "not HTTP"),
    "two lengths": (OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n", "not HTTP"),
    "bare line feeds": (b"HTTP/1.1 200 OK\nContent-Length: 0\n\n", "not HTTP"),
    "a folded line": (OK + b"X: a\r\n b\r\n\r\n", "not HTTP"),
    "HTML": (b"<html>", "not HTTP"),
    "a bad chunk": (OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", "not HTTP"),
    "another coding": (OK + b"Transfer-Encoding: gzip\r\n\r\nhello", "a transfer encoding other than chunked"),
    "brotli": (OK + b"Content-Encoding: br\r\nContent-Length: 5\r\n\r\nhello", "compressed ('br') although"),
    "two encodings": (OK + b"Content-Encoding: gzip, gzip\r\nContent-Length: 5\r\n\r\nhello", "compressed ('gzip, gzip') although"),
    "two encodings, two lines": (OK + b"Content-Encoding: gzip\r\nContent-Encoding: br\r\n\r\nhello", "compressed ('gzip, br') although"),
    "another protocol": (b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", "a status 101"),
    "status 0": (b"HTTP/1.1 000 x\r\n\r\n", "a status 0"),
    "HTTP/2": (b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n", "a version of HTTP"),
    "interim without end": (b"HTTP/1.1 102 Processing\r\n\r\n" * 20, "a status 102"),
    "many headers": (OK + b"".join(b"X-%d: 1\r\n" % i for i in range(101)) + b"\r\n", "too many headers"),
    "one header many times": (OK + b"Set-Cookie: 1\r\n" * 200 + b"\r\n", "too many headers"),
    "a header without end": (OK + b"X: " + b"a" * 70_000, "bytes of headers"),
    "a status line without end": (b"HTTP/1.1 200 " + b"a" * 70_000, "bytes of headers"),
    "an extension without end": (OK + b"Transfer-Encoding: chunked\r\n\r\n5;" + b"a" * 70_000, "bytes of headers"),
    "a trailer without end": (OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: " + b"a" * 70_000, "bytes of headers"),
}


async def test_what_goes_out() -> None:
    """The given headers, host, length and `accept-encoding: identity`, below the base URL's path, in one write; nothing else."""
    net = Net()
    await net.start()
    assert net.last.writes == [b"POST /v1/chat HTTP/1.1\r\nhost: up:81\r\naccept-encoding: identity\r\nx-a: 1\r\ncontent-length: 2\r\n\r\n{}"]
    await net.start(b"GET", b"")
    assert net.last.writes == [b"GET /v1/chat HTTP/1.1\r\nhost: up:81\r\naccept-encoding: identity\r\nx-a: 1\r\n\r\n"]
    await net.start(b"POST", b"")
    assert b"content-length: 0\r\n" in net.last.written
    await net.pool.close()


async def test_headers_of_ours_are_not_taken_from_others() -> None:
    """A host, a length, an encoding or a framing that is given is left out."""
    net = Net()
    given = [(b"host", b"evil"), (b"content-length", b"9"), (b"accept-encoding", b"gzip"), (b"transfer-encoding", b"chunked"), (b"x-a", b"1")]
    call = net.pool.begin(b"POST", b"/chat", given, b"{}", LIMITS)
    task = asyncio.get_running_loop().create_task(call.start())
    await settle()
    assert net.last.writes == [b"POST /v1/chat HTTP/1.1\r\nhost: up:81\r\naccept-encoding: identity\r\nx-a: 1\r\ncontent-length: 2\r\n\r\n{}"]
    call.close()
    assert (await failure(task)).reason == "closed"


@pytest.mark.parametrize(
    ("path", "header"),
    [
        (b"/chat", (b"x-a", b"1\r\nx-b: 2")),
        (b"/chat", (b"x-a", b"1\n")),
        (b"/chat", (b"x-a\r\n", b"1")),
        (b"/chat", (b"x-a", b"\0")),
        (b"/chat HTTP/1.1\r\nx: y", (b"x-a", b"1")),
        (b"/chat x", (b"x-a", b"1")),
    ],
)
async def test_nothing_that_ends_a_line_is_sent(path: bytes, header: tuple[bytes, bytes]) -> None:
    """Control characters in headers, and blanks in a path, are refused before anything is sent."""
    with pytest.raises(ValueError, match="control characters"):
        Net().pool.begin(b"POST", path, [header], b"", LIMITS)


@pytest.mark.parametrize("url", ["ftp://up", "up:80", "http://", "http://user:pw@up", "http://up?x", "http://up#x"])
async def test_base_urls_are_plain(url: str) -> None:
    """Credentials, queries and other schemes do not belong into a base URL."""
    with pytest.raises(ValueError, match="base URL"):
        Pool(url)


@pytest.mark.parametrize(("raw", "status", "body", "kept"), WHOLE.values(), ids=WHOLE)
async def test_answers_read_the_same_however_they_are_cut(raw: bytes, status: int, body: bytes, kept: bool) -> None:
    """Whole, byte by byte, and in two pieces at every place; the connection is kept if HTTP says so, and the next call reads its own answer."""
    for cut in range(len(raw)):
        net = Net()
        call, task = await net.start()
        if cut:
            net.last.feed(raw[:cut])
            await settle()
            if not net.last.is_closing():
                net.last.feed(raw[cut:])
        else:
            for i in range(len(raw)):
                net.last.feed(raw[i : i + 1])
        await task
        assert (call.status, await read_all(call), call.complete, call.written) == (status, body, True, True)
        assert await call.read() == b""
        call.close()
        assert net.last.is_closing() is not kept
        await net.serve()
        assert len(net.loop.transports) == (1 if kept else 2)


@pytest.mark.parametrize("raw", UNTIL_CLOSE.values(), ids=UNTIL_CLOSE)
async def test_answers_that_the_close_ends(raw: bytes) -> None:
    """Without length and chunks the close is the clean end, a reset is none."""
    for size in (1, len(raw)):
        for error in (None, ConnectionResetError()):
            net = Net()
            call, task = await net.start()
            for start in range(0, len(raw), size):
                net.last.feed(raw[start : start + size])
            await task
            assert not call.complete
            net.last.lose(error)
            assert (await read_all(call) if error is None else await call.read()) == b"hello"
            assert call.complete is (error is None)
            if error is not None:
                assert (await failure(call.read())).reason == "reset"


@pytest.mark.parametrize("raw", [WHOLE["length"][0], WHOLE["chunks"][0], WHOLE["interim"][0]], ids=["length", "chunks", "interim"])
async def test_a_close_at_every_place_is_an_error(raw: bytes) -> None:
    """Before the head it is a reset, behind it an incomplete answer; what came before can be taken; `written` is True."""
    for end in range(len(raw)):
        for error in (None, ConnectionResetError()):
            net = Net()
            call, task = await net.start()
            if end:
                net.last.feed(raw[:end])
            net.last.lose(error)
            caught = await failure(task if not call.status else read_all(call))
            assert caught.reason == ("incomplete" if call.status and error is None else "reset")
            assert caught.written
            assert not call.complete
            assert (await failure(call.read())).reason == caught.reason


async def test_what_came_before_an_error_can_be_taken() -> None:
    """`take` returns it once, without waiting; `read` gives it before it raises."""
    for use_take in (True, False):
        net = Net()
        call, task = await net.start()
        net.last.feed(OK + b"Content-Length: 9\r\n\r\nhel")
        net.last.feed(b"lo")
        await task
        net.last.lose()
        assert (call.take() if use_take else await call.read()) == b"hello"
        assert call.take() == b""
        assert (await failure(call.read())).reason == "incomplete"


async def test_a_complete_answer_can_be_put_back() -> None:
    """It is read again, in the words that were put back, and then it has ended."""
    net = Net()
    call, task = await net.start()
    net.last.feed(OK + b"Content-Length: 5\r\n\r\nhello")
    await task
    assert await call.read() == b"hello"
    call.put_back(b"hi")
    assert [await call.read(), await call.read()] == [b"hi", b""]


@pytest.mark.parametrize(("raw", "message"), WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("size", [1_000_000, 1000], ids=["whole", "in pieces"])
async def test_what_is_not_an_answer_is_a_protocol_error(raw: bytes, message: str, size: int) -> None:
    """Whatever is out of the bounds or not HTTP as we speak it: an error that says why, and the connection is gone."""
    net = Net()
    call, task = await net.start()
    for start in range(0, len(raw), size):
        net.last.feed(raw[start : start + size])
    if not call.status:
        caught = await failure(task)
    else:
        await task
        caught = await failure(read_all(call))
    assert (caught.reason, caught.written) == ("protocol", True)
    assert message in str(caught)
    assert net.last.aborted


@pytest.mark.parametrize("garbage", [b"x", b"hello", OK + b"Content-Length: 1\r\n\r\nx", OK], ids=["a byte", "a word", "an answer", "a line"])
@pytest.mark.parametrize("raw", [WHOLE["length"][0], WHOLE["chunks"][0], WHOLE["204"][0], WHOLE["length, close"][0]])
async def test_bytes_behind_an_answer_are_nobodys(raw: bytes, garbage: bytes) -> None:
    """The answer stands, the connection is closed, and no later call reads a byte of them: in the same read or after."""
    for together in (True, False):
        net = Net()
        call, task = await net.start()
        if together:
            net.last.feed(raw + garbage)
        else:
            net.last.feed(raw)
            net.last.feed(garbage)
        await task
        assert await read_all(call) == (b"" if call.status == 204 else b"hello")
        assert net.last.is_closing()
        await net.serve()
        assert len(net.loop.transports) == 2


async def test_head_has_no_body() -> None:
    """The answer to HEAD is complete with its headers."""
    net = Net()
    call, task = await net.start(b"HEAD", b"")
    net.last.feed(OK + b"Content-Length: 5\r\n\r\n")
    await task
    assert (call.complete, call.headers, await call.read()) == (True, {b"content-length": b"5"}, b"")


async def test_headers_are_those_of_the_final_answer() -> None:
    """Small names, repeated ones joined, interim headers and trailers left out; no cookie goes into the next call."""
    net = Net()
    raw = b"HTTP/1.1 103 x\r\nLink: a\r\n\r\n" + OK + b"Set-Cookie: a=1\r\nset-cookie:  b=2 \r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-T: 1\r\n\r\n"
    call = await net.serve(raw)
    assert call.headers == {b"set-cookie": b"a=1, b=2", b"transfer-encoding": b"chunked"}
    await net.start()
    assert b"cookie" not in net.last.written
    await net.pool.close()


async def test_one_wake_up_for_what_came() -> None:
    """A read returns everything that several socket reads brought."""
    net = Net()
    call, task = await net.start()
    net.last.feed(OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
    await task
    assert await call.read() == b"a"
    reading = asyncio.get_running_loop().create_task(call.read())
    await settle()
    net.last.feed(b"1\r\nb\r\n1\r\n")
    net.last.feed(b"c\r\n1\r\n")
    assert await reading == b"bc"
    net.last.feed(b"d\r\n0\r\n\r\n")
    assert await read_all(call) == b"d"


# Reuse.


async def test_the_last_used_connection_goes_first() -> None:
    """Two idle connections: the younger serves, the older grows old and is closed."""
    net = Net(idle_s=50)
    first, task_1 = await net.start()
    older = net.last
    second, task_2 = await net.start()
    younger = net.last
    older.feed(OK + b"Content-Length: 0\r\n\r\n")
    net.loop.advance(1)
    younger.feed(OK + b"Content-Length: 0\r\n\r\n")
    await asyncio.gather(task_1, task_2)
    for _ in range(6):
        net.loop.advance(9)
        await settle()
        call, task = await net.start()
        assert len(younger.writes) > 1
        younger.feed(OK + b"Content-Length: 0\r\n\r\n")
        await task
    assert (older.closed, len(older.writes), younger.closed) == (True, 1, False)
    net.loop.advance(60)
    assert younger.closed
    assert first.complete and second.complete and call.complete


async def test_idle_connections_are_bounded() -> None:
    """No more than `max_idle`: the one idle for longest goes."""
    net = Net(max_idle=2)
    started = [await net.start() for _ in range(3)]
    for transport in net.loop.transports:
        transport.feed(OK + b"Content-Length: 0\r\n\r\n")
    for _, task in started:
        await task
    assert [transport.closed for transport in net.loop.transports] == [True, False, False]


async def test_a_connection_that_died_idle_is_not_used() -> None:
    """A close while idle, or while the loop has not told us yet, leads to a new connection at once."""
    net = Net()
    await net.serve()
    net.last.lose()
    await net.serve()
    assert len(net.loop.transports) == 2
    net.last.close()
    await net.serve()
    assert len(net.loop.transports) == 3


@pytest.mark.parametrize("error", [None, ConnectionResetError()], ids=["closed", "reset"])
async def test_a_reused_connection_that_dies_at_once_is_replaced(error: Exception | None) -> None:
    """Without a byte within 100 ms the peer had never taken the request: it goes out again on a new connection, once."""
    net = Net()
    await net.serve()
    call, task = await net.start()
    net.loop.now += 0.09
    net.last.lose(error)
    await settle()
    assert len(net.loop.transports) == 2
    assert net.last.writes == net.loop.transports[0].writes[:1]
    net.last.feed(OK + b"Content-Length: 5\r\n\r\nhello")
    await task
    assert await read_all(call) == b"hello"
    assert call.written


async def test_the_replacement_is_not_replaced() -> None:
    """A new connection that dies is an error, and so is a second one."""
    net = Net()
    await net.serve()
    _, task = await net.start()
    net.last.lose()
    await settle()
    net.last.lose()
    caught = await failure(task)
    assert (caught.reason, caught.written) == ("reset", True)
    assert len(net.loop.transports) == 2


async def test_no_replacement_after_a_byte_or_later_than_100_ms_or_for_a_new_connection() -> None:
    """In each of these the upstream may have taken the request."""
    net = Net()
    await net.serve()
    _, task = await net.start()
    net.last.feed(b"H")
    net.last.lose()
    assert (await failure(task)).written

    await net.serve()
    _, task = await net.start()
    net.loop.now += 0.11
    net.last.lose()
    assert (await failure(task)).written

    _, task = await net.start()
    net.last.lose()
    assert (await failure(task)).written
    assert len(net.loop.transports) == 3


async def test_a_replacement_that_cannot_connect_means_nothing_was_written() -> None:
    """The first connection had not taken the request, and there was no second."""
    net = Net()
    await net.serve()
    _, task = await net.start()
    net.loop.held = True
    net.last.lose()
    await settle()
    net.loop.connects[0].set_exception(ConnectionRefusedError())
    caught = await failure(task)
    assert (caught.reason, caught.written) == ("connect", False)


# Limits of time, and closing.


async def test_a_connection_that_does_not_come_up_times_out() -> None:
    """`connect`, nothing written, and the attempt is given up."""
    net = Net()
    net.loop.held = True
    call, task = await net.start()
    net.loop.advance(1.9)
    await settle()
    assert not task.done()
    net.loop.advance(0.2)
    caught = await failure(task)
    await settle()
    assert (caught.reason, caught.written, call.written) == ("connect", False, False)
    assert net.loop.connects[0].cancelled()


@pytest.mark.parametrize("came", [b"", b"HTTP/1.1 20", b"HTTP/1.1 100 Continue\r\n\r\n"], ids=["nothing", "half a line", "interim"])
async def test_no_answer_times_out(came: bytes) -> None:
    """first_byte runs from the request to the headers, whatever interim answers come."""
    net = Net()
    _, task = await net.start()
    net.loop.advance(9)
    if came:
        net.last.feed(came)
    net.loop.advance(0.9)
    await settle()
    assert not task.done()
    net.loop.advance(0.2)
    caught = await failure(task)
    assert (caught.reason, caught.written) == ("timeout", True)
    assert net.last.aborted


async def test_what_came_while_the_process_stood_still_is_read_before_time_is_up() -> None:
    """A machine that stops for seconds finds its timers due and its answers unread: peers are judged by what they have sent by then."""
    net = Net()
    call, task = await net.start()
    net.loop.now += 12  # nothing ran: neither timers nor reads
    net.loop.advance(0)
    net.last.feed(OK + b"Content-Length: 0\r\n\r\n")
    await task
    assert call.status == 200
    _, silent = await net.start()
    net.loop.now += 12
    net.loop.advance(0.2)
    assert (await failure(silent)).reason == "timeout"


async def test_silence_in_an_answer_times_out() -> None:
    """idle runs between pieces; each piece starts it anew; a pause by the caller does not count."""
    net = Net()
    call, task = await net.start()
    net.last.feed(OK + b"Transfer-Encoding: chunked\r\n\r\n")
    await task
    for _ in range(5):
        net.loop.advance(4.8)
        net.last.feed(b"1\r\nx\r\n")
    assert await call.read() == b"xxxxx"
    call.pause()
    net.loop.advance(20)
    call.resume()
    net.loop.advance(4.8)
    assert call.take() == b""
    net.loop.advance(0.4)
    assert (await failure(call.read())).reason == "timeout"


async def test_an_answer_without_end_times_out() -> None:
    """total ends the call even while pieces come."""
    net = Net()
    call, task = await net.start()
    net.last.feed(OK + b"Transfer-Encoding: chunked\r\n\r\n")
    await task
    for _ in range(29):
        net.loop.advance(2)
        net.last.feed(b"1\r\nx\r\n")
    net.loop.advance(2 + TICK_S)
    assert await call.read() == b"x" * 29
    assert (await failure(call.read())).reason == "deadline"


async def test_a_call_ends_when_its_request_must() -> None:
    """A time that is given stands in the place of total, also while it connects; it is told from the limits of the upstream."""
    for held in (False, True):
        net = Net()
        net.loop.held = held
        call = net.pool.begin(b"POST", b"/chat", [], b"{}", LIMITS, net.loop.time() + 1.5)
        task = asyncio.get_running_loop().create_task(call.start())
        await settle()
        net.loop.advance(1.4)
        await settle()
        assert not task.done()
        net.loop.advance(0.2)
        caught = await failure(task)
        assert (caught.reason, caught.written) == ("deadline", not held)


@pytest.mark.parametrize("pings", [False, True])
async def test_case_47_a_stream_has_a_limit_of_its_own_for_its_first_output(pings: bool) -> None:
    """Headers at once, and then for longer than `idle` nothing, or pings alone: neither does that limit end it, nor do pings keep it alive."""
    net = Net()
    call, task = await net.start()
    call.unspoken = True
    net.last.feed(OK + b"Transfer-Encoding: chunked\r\n\r\n")
    await task
    for _ in range(14):  # first_token is 15 s, idle 5 s
        net.loop.advance(1)
        if pings:
            net.last.feed(b"1\r\nx\r\n")
    assert not call.over
    net.loop.advance(1 + TICK_S)
    assert call.take() == b"x" * 14 * pings
    caught = await failure(call.read())
    assert (caught.reason, caught.written) == ("timeout", True)
    assert "no output within 15000 ms" in str(caught)


async def test_case_47_the_idle_limit_begins_with_the_first_output() -> None:
    """A first output after 14 s, gaps of 4 s: served; a gap of 5 s ends it."""
    net = Net()
    call, task = await net.start()
    call.unspoken = True
    net.last.feed(OK + b"Transfer-Encoding: chunked\r\n\r\n")
    await task
    net.loop.advance(14)
    call.unspoken = False
    for _ in range(5):
        net.last.feed(b"1\r\nx\r\n")
        net.loop.advance(4)
    assert not call.over
    net.loop.advance(1.2)
    assert call.take() == b"xxxxx"
    assert "nothing more for 5000 ms" in str(await failure(call.read()))


async def test_the_first_output_may_be_wanted_before_the_status_line_is() -> None:
    """Whichever of `first_byte` and `first_token` is shorter ends a stream of which nothing has come; a unary call knows the first alone."""
    for unspoken, seconds in ((True, 3), (False, 10)):
        net = Net()
        call = net.pool.begin(b"POST", b"/chat", [], b"{}", msgspec.structs.replace(LIMITS, first_token_ms=3_000))
        call.unspoken = unspoken
        task = asyncio.get_running_loop().create_task(call.start())
        await settle()
        net.loop.advance(seconds - 0.2)
        await settle()
        assert not task.done()
        net.loop.advance(0.4)
        assert (await failure(task)).reason == "timeout"


async def test_the_first_output_is_waited_for_from_the_end_of_a_large_request() -> None:
    """However long its body takes to go out."""
    net = Net()
    net.loop.full = True
    call = net.begin(body=b"x" * (3 * SLICE_BYTES))
    call.unspoken = True
    task = asyncio.get_running_loop().create_task(call.start())
    await settle()
    for _ in range(3):
        net.loop.advance(4.9)
        net.last.protocol.resume_writing()
        await settle()
    net.loop.advance(1)
    net.last.feed(OK + b"Transfer-Encoding: chunked\r\n\r\n")
    await task
    net.loop.advance(13.8)
    assert not call.over
    net.loop.advance(0.4)
    assert "no output" in str(await failure(call.read()))


async def test_no_timer_runs_without_work() -> None:
    """A pool without calls and idle connections leaves the loop alone."""
    net = Net(idle_s=50)
    await net.serve()
    net.loop.advance(60)
    assert net.loop._timers == []
    assert net.last.closed


async def test_close_wakes_who_waits_and_closes_at_once() -> None:
    """At every stage: connecting, waiting for the answer, reading. It may be called again."""
    net = Net()
    net.loop.held = True
    call, task = await net.start()
    call.close()
    caught = await failure(task)
    assert (caught.reason, caught.written) == ("closed", False)
    net.loop.held = False

    call, task = await net.start()
    call.close()
    caught = await failure(task)
    assert (caught.reason, caught.written) == ("closed", True)
    assert net.last.aborted

    call, task = await net.start()
    net.last.feed(OK + b"Content-Length: 9\r\n\r\nhel")
    await task
    call.close()
    call.close()
    assert net.last.aborted
    assert (await failure(call.read())).reason == "closed"
    assert call.take() == b"hel"


async def test_a_call_closed_before_it_starts_sends_nothing() -> None:
    """Nothing is connected for it."""
    net = Net()
    call = net.begin()
    call.close()
    assert (await failure(call.start())).written is False
    assert net.loop.transports == []


async def test_a_connection_that_comes_up_too_late_is_closed() -> None:
    """The call is over; the connection must not leak."""
    net = Net()
    net.loop.held = True
    call, task = await net.start()
    net.loop.connects[0].set_result(None)
    await asyncio.sleep(0)
    call.close()
    await failure(task)
    await settle()
    assert all(transport.aborted for transport in net.loop.transports)


async def test_close_after_the_answer_keeps_the_connection() -> None:
    """A complete answer's connection went back to the pool; the unread rest can still be read."""
    net = Net()
    call = await net.serve(OK + b"Content-Length: 5\r\n\r\nhello")
    call.close()
    assert not net.last.is_closing()
    assert await read_all(call) == b"hello"


async def test_closing_the_pool_ends_everything() -> None:
    """Open calls fail with `closed`, idle connections are closed."""
    net = Net()
    first, task_1 = await net.start()
    await net.serve()
    await net.pool.close()
    assert (await failure(task_1)).reason == "closed"
    assert all(transport.is_closing() for transport in net.loop.transports)
    assert not first.complete


async def test_pause_and_resume_reach_the_socket() -> None:
    """Reading stops and goes on; a connection that goes back to the pool is read."""
    net = Net()
    call, task = await net.start()
    net.last.feed(OK + b"Content-Length: 5\r\n\r\nhe")
    await task
    call.pause()
    call.pause()
    assert not net.last.reading
    call.resume()
    assert net.last.reading
    net.last.feed(b"llo")
    call.pause()
    call.resume()
    assert await read_all(call) == b"hello"
    assert net.last.reading


# Large requests.


async def test_a_large_body_goes_out_as_it_is_taken() -> None:
    """Slice after slice, each when the one before has been taken; the connection is kept."""
    net = Net()
    net.loop.full = True
    body = bytes(range(256)) * (3 * SLICE_BYTES // 256) + b"end"
    call, task = await net.start(body=body)
    for slices in range(1, 5):
        assert len(net.last.writes) == 1 + slices
        net.loop.advance(4.9)
        net.last.protocol.resume_writing()
        await settle()
    assert net.last.written.endswith(b"\r\n\r\n" + body)
    net.last.feed(OK + b"Content-Length: 0\r\n\r\n")
    await task
    assert call.complete
    assert not net.last.is_closing()


async def test_an_answer_before_the_body_is_out_stops_it() -> None:
    """No byte more than needed goes up; the answer is read; the connection is not used again."""
    net = Net()
    net.loop.full = True
    call, task = await net.start(body=b"x" * (4 * SLICE_BYTES))
    net.last.feed(b"HTTP/1.1 413 Too Large\r\nContent-Length: 5\r\n\r\nhello")
    await task
    assert (call.status, await read_all(call), len(net.last.writes)) == (413, b"hello", 2)
    assert net.last.is_closing()


async def test_an_upstream_that_does_not_take_the_body_times_out() -> None:
    """The idle limit runs for what is written too."""
    net = Net()
    net.loop.full = True
    _, task = await net.start(body=b"x" * (4 * SLICE_BYTES))
    net.loop.advance(5.1)
    caught = await failure(task)
    assert (caught.reason, caught.written) == ("timeout", True)


async def test_a_cancelled_caller_leaves_nothing_behind() -> None:
    """A task that is cancelled while it waits closes its call, and that ends the connection."""
    net = Net()
    call, task = await net.start()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    call.close()
    assert net.last.aborted
    assert not net.pool._calls
