"""Answers to a client, byte for byte, and what happens when either side fails."""

import asyncio
import logging
from collections.abc import Callable

import pytest

from sluicegate.http.connection import HIGH_WATER_BYTES, LOW_WATER_BYTES, Bounds, State
from sluicegate.http.exchange import BodyTooLarge, ClientGone, Exchange
from support_sockets import FakeTransport, client, settle, split_answer, sweep

GET = b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n"
OLD = b"GET /x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
POST = b"POST /x HTTP/1.1\r\nHost: x\r\n"
DATE = b"date: Mon, 30 Nov 2026 00:00:00 GMT\r\n"
JSON = (b"content-type", b"application/json")


async def ask(raw: bytes, answer: Callable[[Exchange], object]) -> FakeTransport:
    """A client's connection after a request was answered by a function."""

    async def handle(exchange: Exchange) -> None:
        answer(exchange)

    transport, _, _ = client(handle)
    transport.feed(raw)
    await settle()
    return transport


async def waiting(raw: bytes = GET) -> tuple[FakeTransport, State, Exchange, asyncio.Event]:
    """A connection whose handler has started a chunked answer with `a` and waits for the event."""
    exchanges = []
    gate = asyncio.Event()

    async def handle(exchange: Exchange) -> None:
        exchanges.append(exchange)
        exchange.start(200, [], None)
        exchange.write(b"a")
        await gate.wait()

    transport, _, state = client(handle)
    transport.feed(raw)
    await settle()
    return transport, state, exchanges[0], gate


async def test_head_and_data_go_out_together() -> None:
    """A unary answer is one write; a stream's first write carries the head, its last the end."""

    def unary(exchange: Exchange) -> None:
        exchange.start(200, [JSON], 2)
        exchange.finish(b"{}")

    transport = await ask(GET, unary)
    assert transport.writes == [b"HTTP/1.1 200 OK\r\n" + DATE + b"content-type: application/json\r\ncontent-length: 2\r\n\r\n{}"]

    def stream(exchange: Exchange) -> None:
        exchange.start(200, [JSON], None)
        exchange.write(b"x" * 17)
        exchange.write(b"")
        exchange.write(b"y")
        exchange.finish(b"z")

    transport = await ask(GET, stream)
    assert transport.writes == [
        b"HTTP/1.1 200 OK\r\n" + DATE + b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n11\r\n" + b"x" * 17 + b"\r\n",
        b"1\r\ny\r\n",
        b"1\r\nz\r\n0\r\n\r\n",
    ]


@pytest.mark.parametrize("raw", [GET, OLD, b"HEAD /x HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"])
@pytest.mark.parametrize("status", [200, 204, 404])
async def test_a_whole_answer_is_start_and_finish(raw: bytes, status: int) -> None:
    """The same bytes, the same end."""

    def at_once(exchange: Exchange) -> None:
        exchange.answer(status, b"{}", b"\r\na: b")

    def in_steps(exchange: Exchange) -> None:
        exchange.start(status, (), 2, b"\r\na: b")
        exchange.finish(b"{}")

    one, other = await ask(raw, at_once), await ask(raw, in_steps)
    assert (one.writes, one.is_closing()) == (other.writes, other.is_closing())


async def test_an_empty_write_sends_the_head_alone() -> None:
    """Who wants the head out early can have it."""

    def answer(exchange: Exchange) -> None:
        exchange.start(200, [], None)
        exchange.write(b"")
        exchange.finish()

    transport = await ask(GET, answer)
    head, end = transport.writes
    assert head.endswith(b"transfer-encoding: chunked\r\n\r\n")
    assert end == b"0\r\n\r\n"


async def test_large_data_is_not_copied_behind_its_head() -> None:
    """The bytes of a large answer are handed over as they are."""

    def answer(exchange: Exchange) -> None:
        exchange.start(200, [], 100_000)
        exchange.finish(b"x" * 100_000)

    transport = await ask(GET, answer)
    assert [len(write) for write in transport.writes[1:]] == [100_000]


@pytest.mark.parametrize(
    ("raw", "status", "length", "framing", "body"),
    [
        (b"HEAD /x HTTP/1.1\r\nHost: x\r\n\r\n", 200, 5, {b"content-length": b"5"}, b""),
        (b"HEAD /x HTTP/1.1\r\nHost: x\r\n\r\n", 200, None, {b"transfer-encoding": b"chunked"}, b""),
        (GET, 204, None, {}, b""),
        (GET, 304, 5, {}, b""),
        (GET, 200, 5, {b"content-length": b"5"}, b"hello"),
        (OLD, 200, 5, {b"content-length": b"5", b"connection": b"close"}, b"hello"),
        (OLD, 200, None, {b"connection": b"close"}, b"hello"),
    ],
)
async def test_framing(raw: bytes, status: int, length: int | None, framing: dict[bytes, bytes], body: bytes) -> None:
    """HEAD, 204 and 304 have no body; HTTP/1.0 gets neither chunks nor a second answer."""

    def answer(exchange: Exchange) -> None:
        exchange.start(status, [], length)
        exchange.write(b"he")
        exchange.finish(b"llo")

    transport = await ask(raw, answer)
    got, headers, data = split_answer(transport.written)
    headers.pop(b"date")
    assert (got, headers, data) == (status, framing, body)
    assert transport.closed == (b"connection" in framing)


async def test_close_is_kept() -> None:
    """A client that asks for it, and an answer before the body has come, end the connection and say so."""

    def answer(exchange: Exchange) -> None:
        exchange.start(200, [], 0)
        exchange.finish()

    transport = await ask(b"GET /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", answer)
    assert split_answer(transport.written)[1][b"connection"] == b"close"
    assert transport.closed

    transport = await ask(POST + b"Content-Length: 9\r\n\r\nabc", answer)
    assert split_answer(transport.written)[1][b"connection"] == b"close"
    assert transport.half_closed
    assert not transport.closed


async def test_header_values_cannot_end_a_line() -> None:
    """Control characters become blanks, in values and names; a tab stays; bytes beyond ASCII pass."""
    nasty = [(b"x-a", b"1\r\nx-b: 2"), (b"x\r\n-c", b"3\n\n<html>"), (b"x-d", bytes(range(32))), (b"x-e", b"\x7f\xe4\t.")]

    def answer(exchange: Exchange) -> None:
        exchange.start(200, nasty, 0)
        exchange.finish()

    transport = await ask(GET, answer)
    lines = transport.written.split(b"\r\n")[2:]
    assert lines == [
        b"x-a: 1  x-b: 2",
        b"x  -c: 3  <html>",
        b"x-d: " + b" " * 9 + b"\t" + b" " * 22,
        b"x-e:  \xe4\t.",
        b"content-length: 0",
        b"",
        b"",
    ]


async def test_headers_about_framing_are_ours() -> None:
    """Headers copied from another answer do not contradict how this one is sent."""
    copied = [(b"content-length", b"7"), (b"transfer-encoding", b"gzip"), (b"connection", b"upgrade"), (b"keep-alive", b"5"), (b"date", b"never")]

    def answer(exchange: Exchange) -> None:
        exchange.start(200, copied, 2)
        exchange.finish(b"ok")

    transport = await ask(GET, answer)
    assert split_answer(transport.written) == (200, {b"date": DATE[6:-2], b"content-length": b"2"}, b"ok")


async def test_a_wrong_length_is_an_error_not_a_broken_connection() -> None:
    """An answer longer or shorter than its length raises; the client sees an unclean end."""

    def longer(exchange: Exchange) -> None:
        exchange.start(200, [], 2)
        exchange.write(b"abc")

    transport = await ask(GET, longer)
    assert split_answer(transport.written)[0] == 500

    def shorter(exchange: Exchange) -> None:
        exchange.start(200, [], 4)
        exchange.write(b"abc")
        exchange.finish()

    transport = await ask(GET, shorter)
    assert transport.written.endswith(b"\r\n\r\nabc")
    assert transport.closed


async def test_a_body_that_announces_too_much_is_refused_at_once() -> None:
    """BodyTooLarge before a byte of the body; it can be answered; the rest is read and dropped so that the client sees the answer."""

    async def handle(exchange: Exchange) -> None:
        with pytest.raises(BodyTooLarge):
            await exchange.read_body(10)
        exchange.start(413, [JSON], 2)
        exchange.finish(b"{}")

    transport, loop, state = client(handle, Bounds())
    transport.feed(POST + b"Content-Length: 11\r\nExpect: 100-continue\r\n\r\n")
    await settle()
    assert split_answer(transport.written)[0::2] == (413, b"{}")
    assert transport.half_closed
    for _ in range(10):
        loop.advance(4)
        transport.feed(b"x" * 100_000)
        sweep(state, loop)
    assert transport.closed  # at last


@pytest.mark.parametrize("early", [True, False], ids=["before it is read", "while it is read"])
async def test_a_chunked_body_that_grows_too_large_is_refused(early: bool) -> None:
    """Chunked bodies are counted too, whether the bytes came before or after the handler asked."""
    refused = []

    async def handle(exchange: Exchange) -> None:
        try:
            await exchange.read_body(10)
        except BodyTooLarge:
            refused.append(exchange)
            exchange.start(413, [], 0)
            exchange.finish()

    transport, _, _ = client(handle)
    transport.feed(POST + b"Transfer-Encoding: chunked\r\n\r\n")
    if not early:
        await settle()
    transport.feed(b"a\r\n0123456789\r\n")
    assert refused == []
    transport.feed(b"1\r\nx\r\n")
    await settle()
    assert len(refused) == 1
    transport.feed(b"a\r\n0123456789\r\n")
    assert split_answer(transport.written)[0] == 413


async def test_a_body_of_exactly_the_limit_passes() -> None:
    """The limit itself is allowed."""

    async def handle(exchange: Exchange) -> None:
        body = await exchange.read_body(5)
        exchange.start(200, [], len(body))
        exchange.finish(body)

    for raw in (b"Content-Length: 5\r\n\r\nhello", b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"):
        transport, _, _ = client(handle)
        transport.feed(POST + raw)
        await settle()
        assert transport.written.endswith(b"hello")


@pytest.mark.parametrize("error", [None, ConnectionResetError()], ids=["closed", "reset"])
async def test_a_client_that_leaves_is_told_of_once(error: Exception | None) -> None:
    """`gone` and one call of `on_gone`; the task goes on; writing does nothing."""
    transport, state, exchange, gate = await waiting()
    told = []
    exchange.on_gone = lambda: told.append(exchange.gone)
    transport.lose(error)
    assert told == [True]
    written = transport.written
    exchange.write(b"b")
    exchange.finish(b"c")
    exchange.abort()
    assert transport.written == written
    assert exchange in state.exchanges
    gate.set()
    await settle()
    assert not state.exchanges
    assert told == [True]


async def test_a_client_that_leaves_while_it_sends() -> None:
    """Who reads the body gets ClientGone."""
    errors = []

    async def handle(exchange: Exchange) -> None:
        try:
            await exchange.read_body()
        except ClientGone as error:
            errors.append(error)

    transport, _, _ = client(handle)
    transport.feed(POST + b"Content-Length: 5\r\n\r\nhel")
    await settle()
    transport.lose()
    await settle()
    assert len(errors) == 1
    assert transport.writes == []


async def test_leaving_after_the_answer_is_nothing() -> None:
    """`on_gone` is not called when the answer was finished."""
    told = []
    exchanges = []

    def answer(exchange: Exchange) -> None:
        exchange.on_gone = lambda: told.append(1)
        exchange.start(200, [], 0)
        exchange.finish()
        exchanges.append(exchange)

    transport = await ask(GET, answer)
    transport.lose()
    assert told == []
    assert not exchanges[0].gone


async def test_an_error_in_on_gone_stays_there(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged by its type alone."""
    transport, _, exchange, gate = await waiting()

    def fail() -> None:
        raise ValueError("sk-secret")

    exchange.on_gone = fail
    with caplog.at_level(logging.ERROR):
        transport.lose()
    assert "ValueError" in caplog.text
    assert "sk-secret" not in caplog.text
    gate.set()
    await settle()


async def test_abort_leaves_no_clean_end() -> None:
    """No last chunk; what was written is flushed; the exchange is gone and its owner told."""
    transport, _, exchange, gate = await waiting()
    told = []
    exchange.on_gone = lambda: told.append(1)
    exchange.abort()
    exchange.abort()
    assert (exchange.gone, told) == (True, [1])
    assert transport.closed
    assert transport.written.endswith(b"1\r\na\r\n")
    gate.set()
    await settle()


async def test_abort_of_what_only_a_close_ends_resets() -> None:
    """An HTTP/1.0 stream that just closed would look whole."""
    transport, _, exchange, gate = await waiting(OLD)
    exchange.abort()
    assert transport.aborted
    gate.set()
    await settle()


async def test_abort_of_a_client_that_does_not_read_does_not_wait_for_it() -> None:
    """With more unsent than the high-water mark the connection is dropped."""
    transport, _, exchange, gate = await waiting()
    transport.protocol.pause_writing()
    exchange.abort()
    assert transport.aborted
    gate.set()
    await settle()


async def test_slow_readers_are_seen() -> None:
    """`unsent` is what the kernel has not taken; `on_drained` tells when it is little again."""
    transport, _, exchange, gate = await waiting()
    told = []
    exchange.on_drained = lambda: told.append(exchange.unsent())
    transport.unsent_bytes = 100_000
    transport.protocol.pause_writing()
    assert exchange.unsent() == 100_000
    assert transport.limits == (HIGH_WATER_BYTES, LOW_WATER_BYTES)
    transport.unsent_bytes = 10
    transport.protocol.resume_writing()
    assert told == [10]
    exchange.finish()
    transport.protocol.resume_writing()
    assert told == [10]
    gate.set()
    await settle()


async def test_a_finished_answer_that_nobody_takes_is_dropped() -> None:
    """A connection that is to close is aborted when no byte leaves for a while, and not as long as some do."""

    async def handle(exchange: Exchange) -> None:
        exchange.start(200, [], 5)
        transport.unsent_bytes = 5
        exchange.finish(b"hello")

    transport, loop, state = client(handle, Bounds(flush_s=20))
    transport.feed(b"GET /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    await settle()
    for unsent_bytes in (4, 3):
        transport.unsent_bytes = unsent_bytes
        loop.advance(20)
        sweep(state, loop)
        assert not transport.aborted
    loop.advance(20)
    sweep(state, loop)
    assert transport.aborted


@pytest.mark.parametrize("started", [False, True], ids=["nothing sent", "head held back"])
async def test_a_handler_that_raises_before_anything_is_sent(started: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A 500 in JSON; the log has the place and the type, not the text; the connection goes on."""

    def answer(exchange: Exchange) -> None:
        if started:
            exchange.start(200, [], None)
        raise ValueError("sk-secret")

    with caplog.at_level(logging.ERROR):
        transport = await ask(GET, answer)
    status, headers, body = split_answer(transport.written)
    assert status == 500
    assert headers[b"content-type"] == b"application/json"
    assert b'"code":"internal_error"' in body
    assert b"sk-secret" not in transport.written
    assert "ValueError" in caplog.text
    assert "test_exchange.py" in caplog.text
    assert "sk-secret" not in caplog.text
    assert not transport.closed


async def test_a_handler_that_raises_in_the_middle() -> None:
    """The answer ends unclean."""

    def answer(exchange: Exchange) -> None:
        exchange.start(200, [], None)
        exchange.write(b"a")
        raise ValueError

    transport = await ask(GET, answer)
    assert transport.written.endswith(b"1\r\na\r\n")
    assert transport.closed


async def test_a_handler_that_forgets_to_answer() -> None:
    """The client gets a 500 rather than silence."""
    transport = await ask(GET, lambda exchange: None)
    assert split_answer(transport.written)[0] == 500


async def test_a_cancelled_handler_answers_too() -> None:
    """No client waits for a task that is gone."""

    async def handle(exchange: Exchange) -> None:
        await asyncio.Event().wait()

    transport, _, state = client(handle)
    transport.feed(GET)
    await settle()
    (exchange,) = state.exchanges
    assert exchange.task is not None
    exchange.task.cancel()
    await settle()
    assert split_answer(transport.written)[0] == 500


async def test_misuse_raises() -> None:
    """Writing before start, and starting twice, are errors of the caller."""
    errors = []

    def answer(exchange: Exchange) -> None:
        for misuse in (lambda: exchange.write(b"x"), exchange.finish):
            with pytest.raises(RuntimeError) as caught:
                misuse()
            errors.append(caught)
        exchange.start(200, [], 0)
        with pytest.raises(RuntimeError) as caught:
            exchange.start(200, [], 0)
        errors.append(caught)
        exchange.finish()

    transport = await ask(GET, answer)
    assert len(errors) == 3
    assert split_answer(transport.written)[0] == 200


async def test_the_next_request_is_served_while_a_handler_settles() -> None:
    """What a handler does after `finish` does not hold up the connection."""
    settled = asyncio.Event()
    answered = 0

    async def handle(exchange: Exchange) -> None:
        nonlocal answered
        exchange.start(200, [], 0)
        exchange.finish()
        answered += 1
        await settled.wait()

    transport, _, state = client(handle)
    transport.feed(GET)
    transport.feed(GET)
    await settle()
    assert answered == 2
    assert len(state.exchanges) == 2
    settled.set()
    await settle()
    assert not state.exchanges
