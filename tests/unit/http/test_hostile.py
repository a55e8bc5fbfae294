"""Bytes that no one would write: whatever a client or an upstream sends, everything ends, and nothing but the known errors is raised."""

import asyncio
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.core.tenants import Timeouts
from sluicegate.http.connection import Bounds
from sluicegate.http.exchange import ClientGone, Exchange
from sluicegate.http.upstream import Pool, UpstreamError
from support_sockets import FakeLoop, client, settle, sweep

HEAD = b"POST /x HTTP/1.1\r\nHost: x\r\n"
REQUESTS = [
    b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n",
    HEAD + b"Content-Length: 5\r\n\r\nhello",
    HEAD + b"Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n3;a\r\nhel\r\n2\r\nlo\r\n0\r\nX: y\r\n\r\n",
    HEAD + b"Connection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 5\r\n\r\nhello",
    b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n",
]
OK = b"HTTP/1.1 200 OK\r\n"
ANSWERS = [
    OK + b"Content-Length: 5\r\n\r\nhello",
    OK + b"Transfer-Encoding: chunked\r\n\r\n3;a\r\nhel\r\n2\r\nlo\r\n0\r\nX: y\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
    b"HTTP/1.1 204 No Content\r\n\r\n",
    OK + b"\r\nhello",
]
INSERTED = [b"\r\n", b"\n", b" ", b":", b"0", b"\0", b"\r\n\r\n", b"Transfer-Encoding: chunked\r\n", b"Content-Length: 1\r\n", b"Upgrade: x\r\n"]


def spoilt(dice: random.Random, corpus: list[bytes]) -> list[bytes]:
    """Some messages, one behind the other, with a few faults, as several reads."""
    data = bytearray(b"".join(dice.choice(corpus) for _ in range(dice.randint(1, 3))))
    for _ in range(dice.randint(0, 3)):
        at = dice.randrange(len(data))
        kind = dice.randrange(3)
        if kind == 0:
            data[at] = dice.randrange(256)
        elif kind == 1:
            del data[at : at + dice.randint(1, 4)]
        else:
            data[at:at] = dice.choice(INSERTED)
    cuts = sorted(dice.randrange(len(data) + 1) for _ in range(dice.randint(0, 4)))
    return [bytes(data[start:end]) for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True) if start < end]


async def echo(exchange: Exchange) -> None:
    try:
        body = await exchange.read_body(1000)
    except ClientGone:
        return
    exchange.start(200, [], None)
    exchange.write(body)
    exchange.finish()


@settings(max_examples=300, deadline=None)
@given(st.randoms(use_true_random=False))
async def test_whatever_a_client_sends(dice: random.Random) -> None:
    """No exception leaves the connection, what is written is answers, and every handler ends when the client goes."""
    transport, loop, state = client(echo, Bounds())
    for data in spoilt(dice, REQUESTS):
        transport.feed(data)
        if dice.random() < 0.5:
            await settle()
        if not transport.reading:
            break
    await settle()
    loop.advance(dice.choice([0, 11, 31, 80]))
    sweep(state, loop)
    assert transport.written[:9] in (b"", b"HTTP/1.1 ")
    if state.connections:
        transport.lose(dice.choice([None, ConnectionResetError()]))
    await settle()
    assert not state.exchanges


@settings(max_examples=300, deadline=None)
@given(st.randoms(use_true_random=False))
async def test_whatever_an_upstream_sends(dice: random.Random) -> None:
    """A call ends whole or with an UpstreamError, written, and leaves nothing behind in the pool."""
    loop = FakeLoop()
    pool = Pool("http://up", loop=loop)  # type: ignore[arg-type]
    call = pool.begin(b"POST", b"/", [], b"{}", Timeouts())
    task = asyncio.get_running_loop().create_task(call.start())
    await settle()
    transport = loop.transports[0]
    for data in spoilt(dice, ANSWERS):
        if not transport.is_closing():
            transport.feed(data)
    if not transport.is_closing() and dice.random() < 0.5:
        transport.lose(dice.choice([None, ConnectionResetError()]))
    loop.advance(600.2)
    try:
        await task
        while await call.read():
            pass
    except UpstreamError as error:
        assert error.written
        assert not call.complete
    else:
        assert call.complete
    loop.advance(60)
    assert transport.is_closing()
    assert (pool._calls, pool._idle, loop._timers) == (set(), [], [])
