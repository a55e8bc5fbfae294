"""Compressed answers as a call reads them: framings, events that are flushed, bodies that unpack to huge ones, and every way to be wrong."""

import asyncio
import gzip
import zlib
from collections.abc import Callable

import pytest

from sluicegate.calling import read_all as read_bounded
from sluicegate.http.decoding import STEP_BYTES
from sluicegate.http.upstream import Call
from support_pool import OK, Net, failure, read_all
from support_sockets import FakeTransport, settle

TEXT = b"".join(b"data: %d\n\n" % (n * n) for n in range(40))
GZIPPED = gzip.compress(TEXT)
HEAD = OK + b"Content-Encoding: gzip\r\n"
FRAMED: dict[str, tuple[Callable[[bytes], bytes], bool]] = {  # and whether the connection can serve another call
    "length": (lambda body: HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body, True),
    "one chunk": (lambda body: HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n", True),
    "chunks": (lambda body: HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n", True),
    "until the close": (lambda body: HEAD + b"\r\n" + body, False),
}


def feed(transport: FakeTransport, data: bytes, size: int) -> None:
    for start in range(0, len(data), size):
        transport.feed(data[start : start + size])


class Taker:
    """Takes what comes at once, as the relay does."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.taken: list[bytes] = []
        call.sink = self.take

    def take(self) -> None:
        if data := self.call.take():
            self.taken.append(data)

    @property
    def text(self) -> bytes:
        return b"".join(self.taken)


@pytest.mark.parametrize(("frame", "kept"), FRAMED.values(), ids=FRAMED)
async def test_every_framing_however_it_is_cut(frame: Callable[[bytes], bytes], kept: bool) -> None:
    """Read as it was before it was compressed; the connection then serves a plain call and another compressed one."""
    raw = frame(GZIPPED)
    for size in (1, 2, 3, 50, len(raw)):
        net = Net()
        for _ in range(2):
            call, task = await net.start()
            transport = net.last
            feed(transport, raw, size)
            if not kept:
                transport.lose()
            await task
            assert (await read_all(call), call.complete) == (TEXT, True)
            assert transport.is_closing() is not kept
            plain, task = await net.start()
            feed(net.last, OK + b"Content-Length: 5\r\n\r\nhello", size)
            await task
            assert await read_all(plain) == b"hello"
        assert len(net.loop.transports) == (1 if kept else 3)


@pytest.mark.parametrize("coding", [b"gzip", b"x-gzip", b"deflate"])
async def test_each_event_comes_with_its_bytes(coding: bytes) -> None:
    """A server that flushes per event is read per event, inside the socket's read where somebody takes it there."""
    compressor = zlib.compressobj(wbits=15 if coding == b"deflate" else 31)
    net = Net()
    call, task = await net.start()
    net.last.feed(OK + b"Content-Encoding: %b\r\nTransfer-Encoding: chunked\r\n\r\n" % coding)
    await task
    taker = Taker(call)
    for n, event in enumerate(TEXT.split(b"\n\n")):
        if n == 20:
            call.sink = None
        body = compressor.compress(event) + compressor.flush(zlib.Z_SYNC_FLUSH)
        net.last.feed(b"%x\r\n%b\r\n" % (len(body), body))
        assert (taker.taken[-1] if n < 20 else call.take()) == event
    body = compressor.flush()
    net.last.feed(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
    assert (await call.read(), call.complete, net.last.is_closing()) == (b"", True, False)


@pytest.mark.parametrize(("frame", "kept"), FRAMED.values(), ids=FRAMED)
@pytest.mark.parametrize("gone", [False, True], ids=["open", "closed behind it"])
async def test_a_small_body_that_is_a_large_one(frame: Callable[[bytes], bytes], kept: bool, gone: bool) -> None:
    """It comes in bounded steps, each when the one before has been taken, by reads as by a taker; the answer ends with the last, not before."""
    text = bytes(range(256)) * (5 * STEP_BYTES // 256 + 1)
    raw = frame(gzip.compress(text))
    for by_taker in (False, True):
        net = Net()
        call, task = await net.start()
        feed(net.last, raw, 40_000 if len(raw) > 40_000 else 4000)
        if gone or not kept:
            net.last.lose()
        await task
        assert not call.complete
        if by_taker:
            taker = Taker(call)
            taker.take()
            while not call.complete:  # noqa: ASYNC110  (nothing to wait for)
                await asyncio.sleep(0)
            taker.take()
            pieces = taker.taken
        else:
            pieces = []
            while piece := await call.read():
                pieces.append(piece)
        assert b"".join(pieces) == text
        assert all(len(piece) <= STEP_BYTES for piece in pieces)
        assert net.last.is_closing() is (gone or not kept)


async def test_a_bound_on_bodies_holds_for_what_they_unpack_to() -> None:
    """A gigabyte in one read: a bounded reader gets its error, the connection is gone, and little of it was ever there."""
    body = gzip.compress(bytes(1 << 30), 1)
    net = Net()
    call, task = await net.start()
    net.last.feed(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    await task
    caught = await failure(read_bounded(call, 3_000_000))
    assert (caught.reason, net.last.aborted) == ("protocol", True)
    assert "larger than 3000000 bytes" in str(caught)


async def test_a_call_closed_in_a_large_body() -> None:
    """What was not taken, and a step more of what had come, can be taken; the rest is never unpacked."""
    net = Net()
    call, task = await net.start()
    body = gzip.compress(bytes(100 * STEP_BYTES), 1)
    net.last.feed(HEAD + b"Content-Length: %d\r\n\r\n" % (len(body) + 1) + body)
    await task
    call.close()
    assert len(call.take()) == 2 * STEP_BYTES
    await settle()
    assert call.take() == b""


@pytest.mark.parametrize("by_taker", [False, True], ids=["read", "taken"])
@pytest.mark.parametrize("error", [None, ConnectionResetError()], ids=["closed", "reset"])
async def test_a_lost_connection_loses_nothing_that_came(by_taker: bool, error: Exception | None) -> None:
    """All that can be decoded of what came can be read before the error."""
    compressor = zlib.compressobj(wbits=31)
    body = compressor.compress(TEXT) + compressor.flush(zlib.Z_SYNC_FLUSH)
    net = Net()
    call, task = await net.start()
    net.last.feed(HEAD + b"Content-Length: 9999\r\n\r\n" + body[:5])
    await task
    taker = Taker(call) if by_taker else None
    net.last.feed(body[5:30])
    net.last.feed(body[30:])  # before anybody has read what came first
    net.last.lose(error)
    assert (taker.text if taker else await call.read()) == TEXT
    assert (await failure(call.read())).reason == ("incomplete" if error is None else "reset")


CORRUPT = GZIPPED[:-8] + bytes(8)  # all of the text, and another checksum
WRONG = {
    "another checksum": (CORRUPT, TEXT, "protocol"),
    "bytes behind the end": (GZIPPED + b"hello", TEXT, "protocol"),
    "not compressed": (b"hello hello hello", b"", "protocol"),
    "cut short": (GZIPPED[:-1], TEXT, "incomplete"),
    "half a header": (GZIPPED[:5], b"", "incomplete"),
    "half a second member": (GZIPPED + GZIPPED[:5], TEXT, "incomplete"),
}


@pytest.mark.parametrize(("body", "before", "reason"), WRONG.values(), ids=WRONG)
@pytest.mark.parametrize(("frame", "kept"), FRAMED.values(), ids=FRAMED)
@pytest.mark.parametrize("size", [1, 1_000_000], ids=["bytes", "whole"])
async def test_what_is_wrong_is_an_error_behind_what_was_right(
    body: bytes, before: bytes, reason: str, frame: Callable[[bytes], bytes], kept: bool, size: int
) -> None:
    """What could be decoded is delivered, then the error; the call counts as written; the connection is gone."""
    net = Net()
    call, task = await net.start()
    feed(net.last, frame(body), size)
    if not kept:
        net.last.lose()
    await task
    data = b""
    while (piece := call.take()) or not call.over:
        data += piece
        await settle()
    assert data == before
    caught = await failure(call.read())
    assert (caught.reason, caught.written, call.complete) == (reason, True, False)
    assert net.last.is_closing()


@pytest.mark.parametrize(
    ("method", "raw"),
    [
        (b"POST", HEAD + b"Content-Length: 0\r\n\r\n"),
        (b"POST", HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        (b"POST", b"HTTP/1.1 204 No Content\r\nContent-Encoding: gzip\r\n\r\n"),
        (b"POST", b"HTTP/1.1 304 Not Modified\r\nContent-Encoding: gzip\r\nContent-Length: 99\r\n\r\n"),
        (b"HEAD", HEAD + b"Content-Length: 99\r\n\r\n"),
        (b"POST", OK + b"Content-Encoding:\r\nContent-Length: 0\r\n\r\n"),
    ],
    ids=["length 0", "no chunk", "204", "304", "HEAD", "an empty name"],
)
async def test_answers_without_a_body(method: bytes, raw: bytes) -> None:
    """No body is a whole one, whatever it is said to be compressed with."""
    net = Net()
    call, task = await net.start(method, b"")
    net.last.feed(raw)
    await task
    assert (await call.read(), call.complete) == (b"", True)


async def test_compressed_bytes_that_never_give_anything() -> None:
    """Endless empty members are as bounded as endless headers."""
    net = Net()
    call, task = await net.start()
    net.last.feed(HEAD + b"Content-Length: 99999999\r\n\r\n")
    await task
    for _ in range(200):
        net.last.feed(gzip.compress(b"") * 50)
        if call.over:
            break
    assert (await failure(call.read())).reason == "protocol"
    assert net.last.aborted


async def test_pieces_keep_a_compressed_answer_alive() -> None:
    """The idle limit runs from the last that was decoded."""
    compressor = zlib.compressobj(wbits=31)
    net = Net()
    call, task = await net.start()
    net.last.feed(HEAD + b"Content-Length: 9999\r\n\r\n")
    await task
    for _ in range(5):
        net.loop.advance(4.8)
        net.last.feed(compressor.compress(b"x") + compressor.flush(zlib.Z_SYNC_FLUSH))
        assert await call.read() == b"x"
    net.loop.advance(5.2)
    assert (await failure(call.read())).reason == "timeout"


async def test_what_comes_behind_a_large_body_is_nobodys() -> None:
    """While it is still being read: the answer stands, the connection is not used again."""
    text = bytes(3 * STEP_BYTES)
    net = Net()
    call, task = await net.start()
    net.last.feed(FRAMED["length"][0](gzip.compress(text)))
    await task
    net.last.feed(OK + b"Content-Length: 1\r\n\r\nx")
    assert await read_all(call) == text
    assert call.complete
    await net.serve()
    assert len(net.loop.transports) == 2
