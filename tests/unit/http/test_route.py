"""The way to an origin: what a proxy is sent, and every answer that it may give to a CONNECT, byte by byte."""

import base64
import ssl

import pytest

from sluicegate.core.tenants import Proxy
from sluicegate.http.upstream import Call, UpstreamError
from support_pool import OK, Net, failure, read_all
from support_sockets import FakeTransport, settle

BASIC = b"Basic " + base64.b64encode(b"me:hunter2")
PROXY = Proxy(False, "out", 3128, BASIC)
CONNECT = b"CONNECT up:443 HTTP/1.1\r\nhost: up:443\r\nproxy-authorization: " + BASIC + b"\r\n\r\n"
GRANTED = b"HTTP/1.1 200 Connection established\r\n\r\n"
HELLO = OK + b"Content-Length: 5\r\n\r\nhello"
REQUEST = b"host: up\r\naccept-encoding: identity\r\nx-a: 1\r\ncontent-length: 2\r\n\r\n{}"


async def test_an_http_origin_is_asked_for_by_its_whole_url() -> None:
    """With the proxy's credentials in each request; the connection is kept, and serves the next call."""
    net = Net("http://up:81/v1", proxy=PROXY)
    for _ in range(2):
        call, task = await net.start()
        net.last.feed(HELLO)
        await task
        assert await read_all(call) == b"hello"
    head = b"POST http://up:81/v1/chat HTTP/1.1\r\nhost: up:81\r\naccept-encoding: identity\r\nproxy-authorization: " + BASIC
    assert net.last.writes == [head + b"\r\nx-a: 1\r\ncontent-length: 2\r\n\r\n{}"] * 2
    assert net.loop.reached == [("out", 3128, None)]


async def test_an_https_origin_is_reached_through_a_tunnel() -> None:
    """CONNECT once, with nothing of the origin's in it; TLS with the origin's name; nothing of the proxy's inside. The tunnel is kept."""
    net = Net("https://up/v1", proxy=PROXY)
    call, task = await net.start()
    outer = net.last
    assert outer.writes == [CONNECT]
    outer.feed(GRANTED)
    await settle()
    inner = net.last
    assert net.loop.reached == [("out", 3128, None), (outer, "up")]
    assert inner.writes == [b"POST /v1/chat HTTP/1.1\r\n" + REQUEST]
    for _ in range(2):
        inner.feed(HELLO)
        await task
        assert await read_all(call) == b"hello"
        call, task = await net.start()
    assert (len(net.loop.transports), len(inner.writes), outer.writes) == (2, 3, [CONNECT])


@pytest.mark.parametrize("url", ["http://up/v1", "https://up/v1"])
async def test_a_proxy_in_tls(url: str) -> None:
    """The proxy's own name is verified; without credentials none are sent."""
    net = Net(url, proxy=Proxy(True, "out", 443))
    await net.start()
    assert net.loop.reached == [("out", 443, "out")]
    assert b"authorization" not in net.last.written
    await net.pool.close()


@pytest.mark.parametrize(
    ("url", "asked"),
    [("https://[::1]:8443", b"[::1]:8443"), ("https://bücher.example", b"xn--bcher-kva.example:443"), ("https://UP:444/v1", b"up:444")],
)
async def test_where_a_tunnel_is_to_lead(url: str, asked: bytes) -> None:
    """Host and port, in ASCII, an IPv6 address in brackets."""
    net = Net(url, proxy=Proxy(False, "out", 3128))
    await net.start()
    assert net.last.written == b"CONNECT %b HTTP/1.1\r\nhost: %b\r\n\r\n" % (asked, asked)
    await net.pool.close()


TUNNELS = {
    "200": GRANTED,
    "no reason": b"HTTP/1.1 200\r\n\r\n",
    "1.0, headers": b"HTTP/1.0 200 OK\r\nVia: 1.1 out\r\nContent-Length: 99\r\n\r\n",
    "another 2xx": b"HTTP/1.1 201 Created\r\n\r\n",
    "interim": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 x\r\nLink: y\r\n\r\n" + GRANTED,
}


@pytest.mark.parametrize("answer", TUNNELS.values(), ids=TUNNELS)
async def test_a_tunnel_is_granted(answer: bytes) -> None:
    """By any 2xx, whole, byte by byte and in two pieces; lengths that it names mean nothing."""
    for cut in range(len(answer)):
        net = Net("https://up", proxy=PROXY)
        call, task = await net.start()
        for piece in (answer[:cut], answer[cut:]) if cut else [answer[i : i + 1] for i in range(len(answer))]:
            if piece:
                net.last.feed(piece)
        await settle()
        net.last.feed(HELLO)
        await task
        assert (await read_all(call), call.written) == (b"hello", True)


REFUSALS = {
    "407": (b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\n\r\n", "answered 407"),
    "403, a body": (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno", "answered 403"),
    "502": (b"HTTP/1.1 502 Bad Gateway\r\n\r\n", "answered 502"),
    "a redirect": (b"HTTP/1.1 302 Found\r\nLocation: https://other\r\n\r\n", "answered 302"),
    "another protocol": (b"HTTP/1.1 101 Switching\r\n\r\n", "no answer"),
    "interim without end": (b"HTTP/1.1 102 x\r\n\r\n" * 20, "no answer"),
    "not HTTP": (b"SSH-2.0-x\r\n", "no answer"),
    "HTML": (b"<", "no answer"),
    "HTTP/2": (b"HTTP/2 200\r\n\r\n", "no answer"),
    "status 99": (b"HTTP/1.1 099 x\r\n\r\n", "no answer"),
    "no status": (b"HTTP/1.1 OK\r\n\r\n", "no answer"),
    "a header without end": (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70_000, "no answer"),
    "headers without end": (b"HTTP/1.1 200 OK\r\n" + b"X: 1\r\n" * 12_000, "no answer"),
}


@pytest.mark.parametrize(("answer", "message"), REFUSALS.values(), ids=REFUSALS)
@pytest.mark.parametrize("size", [1, 1000, 1_000_000])
async def test_a_tunnel_is_refused(answer: bytes, message: str, size: int) -> None:
    """A failure to connect, which says what the proxy did and not with which credentials; nothing was written."""
    net = Net("https://up", proxy=PROXY)
    call, task = await net.start()
    for start in range(0, len(answer), size):
        net.last.feed(answer[start : start + size])
        await settle()
    await refused(net, call, await failure(task), message)


async def refused(net: Net, call: Call, caught: UpstreamError, message: str) -> None:
    assert (caught.reason, caught.written, call.written) == ("connect", False, False)
    assert message in str(caught) and "out:3128" in str(caught)
    assert "hunter2" not in str(caught) and BASIC.decode() not in str(caught)
    await settle()
    assert all(transport.is_closing() for transport in net.loop.transports)


@pytest.mark.parametrize("error", [None, ConnectionResetError("reset by peer")], ids=["closed", "reset"])
async def test_a_proxy_that_closes(error: Exception | None) -> None:
    """At every place of its answer, and right behind it."""
    for end in range(len(GRANTED) + 1):
        net = Net("https://up", proxy=PROXY)
        call, task = await net.start()
        if end:
            net.last.feed(GRANTED[:end])
        net.last.lose(error)
        await refused(net, call, await failure(task), "closed the connection")


async def test_bytes_behind_the_proxys_answer() -> None:
    """In TLS it is for us to speak first: the proxy, or who sits there, is not what it says. In the same read or after it."""
    net = Net("https://up", proxy=PROXY)
    call, task = await net.start()
    net.last.feed(GRANTED + b"x")
    await refused(net, call, await failure(task), "no answer")
    call, task = await net.start()
    net.last.feed(GRANTED)
    net.last.feed(b"x")
    await refused(net, call, await failure(task), "closed the connection")


@pytest.mark.parametrize(
    ("error", "reason"),
    [(ssl.SSLCertVerificationError("not up's"), "tls"), (ConnectionResetError("reset by peer"), "connect")],
    ids=["certificate", "reset"],
)
async def test_tls_with_the_origin_fails(error: Exception, reason: str) -> None:
    """The origin's certificate is the origin's failure; the tunnel is closed; nothing was written."""
    net = Net("https://up", proxy=PROXY)
    net.loop.tls_failure = error
    call, task = await net.start()
    net.last.feed(GRANTED)
    caught = await failure(task)
    assert (caught.reason, caught.written, call.written, net.last.aborted) == (reason, False, False, True)


async def test_a_proxy_that_says_nothing() -> None:
    """The whole way, the tunnel included, takes at most as long as a connection may; then it is closed."""
    for answer in (b"", b"HTTP/1.1 20", GRANTED[:-1]):
        net = Net("https://up", proxy=PROXY)
        _, task = await net.start()
        net.loop.advance(1.9)
        if answer:
            net.last.feed(answer)
        await settle()
        assert not task.done()
        net.loop.advance(0.2)
        caught = await failure(task)
        await settle()
        assert (caught.reason, caught.written, net.last.aborted) == ("connect", False, True)


async def test_a_call_closed_while_its_tunnel_is_made() -> None:
    """The connection to the proxy goes with it."""
    net = Net("https://up", proxy=PROXY)
    call, task = await net.start()
    call.close()
    assert (await failure(task)).reason == "closed"
    await settle()
    assert net.last.aborted


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 407 x\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.0 407 x\r\n\r\n",
    ],
)
async def test_a_relaying_proxy_that_wants_credentials(answer: bytes) -> None:
    """Its 407 is a failure to connect, however it goes on: the origin was never asked."""
    net = Net("http://up", proxy=PROXY)
    call, task = await net.start()
    net.last.feed(answer)
    caught = await failure(task)
    assert (caught.reason, caught.written, call.written, call.status, net.last.aborted) == ("connect", False, False, 0, True)


@pytest.mark.parametrize("status", [403, 502, 503, 504])
async def test_other_answers_of_a_relaying_proxy(status: int) -> None:
    """They may be the origin's, and are read as such; a 407 of an origin without a proxy is an answer as well."""
    for proxy, answered in ((PROXY, status), (None, 407)):
        net = Net("http://up", proxy=proxy)
        call = await net.serve(b"HTTP/1.1 %d x\r\nContent-Length: 5\r\n\r\nhello" % answered)
        assert (call.status, await read_all(call), call.written) == (answered, b"hello", True)


async def test_a_connection_that_is_gone_before_it_can_be_used() -> None:
    """Something in between took it and hung up, as port forwarders do: nothing was written, and nobody waits for an answer."""
    net = Net("http://up")

    class Gone(FakeTransport):
        def is_closing(self) -> bool:
            return True

    net.loop.transport_kind = Gone
    call, task = await net.start()
    caught = await failure(task)
    assert (caught.reason, caught.written, call.written, net.last.writes) == ("connect", False, False, [])
