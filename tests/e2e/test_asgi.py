"""An ordinary ASGI application behind the server's exchanges, and web sockets, on real sockets; with asyncio's loop and uvloop."""

import asyncio
from typing import Any

import pytest
import websockets
from websockets.asyncio.client import connect

from sluicegate.http import asgi
from sluicegate.http.exchange import BodyTooLarge, ClientGone, Exchange
from sluicegate.http.server import Server
from support_sockets import on_both_loops, serving, split_answer, talk

BODY_MAX = 1_000


class App:
    """Answers by path, and remembers what it was told."""

    def __init__(self) -> None:
        self.scopes: list[Any] = []
        self.told: list[str] = []
        self.sent = 0
        self.gone = asyncio.Event()

    async def handle(self, exchange: Exchange) -> None:
        try:
            await asgi.serve(self, exchange, BODY_MAX)
        except BodyTooLarge:
            exchange.start(413, [], 0)
            exchange.finish()
        except ClientGone:
            self.gone.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        if scope["type"] == "websocket":
            await self.socket(receive, send)
            return
        request = await receive()
        assert not request["more_body"]
        await getattr(self, scope["path"].rpartition("/")[2])(scope, request["body"], receive, send)

    async def start(self, send: Any, *headers: tuple[bytes, bytes], status: int = 200) -> None:
        await send({"type": "http.response.start", "status": status, "headers": headers})

    async def echo(self, scope: Any, body: bytes, receive: Any, send: Any) -> None:
        reply = b"%b %b" % (scope["query_string"], body)
        await self.start(send, (b"Content-Length", b"%d" % len(reply)), (b"X-A", b"1"), status=201)
        await send({"type": "http.response.body", "body": reply})
        self.told.append((await receive())["type"])

    async def parts(self, scope: Any, body: bytes, receive: Any, send: Any) -> None:
        await self.start(send)
        for part in (b"a", b"", b"b"):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body"})

    async def endless(self, scope: Any, body: bytes, receive: Any, send: Any) -> None:
        await self.start(send)
        left = asyncio.get_running_loop().create_task(receive())
        while not left.done():
            await send({"type": "http.response.body", "body": bytes(100_000), "more_body": True})
            self.sent += 1
            await asyncio.sleep(0)
        self.told.append(left.result()["type"])
        await send({"type": "http.response.body"})  # goes nowhere
        self.gone.set()

    async def broken(self, scope: Any, body: bytes, receive: Any, send: Any) -> None:
        raise RuntimeError("before")

    async def breaks(self, scope: Any, body: bytes, receive: Any, send: Any) -> None:
        await self.start(send)
        await send({"type": "http.response.body", "body": b"some", "more_body": True})
        raise RuntimeError("after")

    async def socket(self, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": message["text"].upper()})
        self.told.append(f"{message['type']} {message['code']}")
        self.gone.set()


def get(path: str, method: str = "GET", more: str = "") -> bytes:
    return f"{method} /admin/{path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{more}\r\n".encode()


@on_both_loops
async def test_a_request_and_its_answer() -> None:
    """Method, decoded path, query, headers, address and body arrive; status, headers and body go back; then it hears that this is over."""
    app = App()
    async with serving(app.handle) as server:
        data = await talk(server.port, get("a%20b/echo?c=%20d", "POST", "X-B: 2\r\nTransfer-Encoding: chunked\r\n") + b"2\r\nhi\r\n0\r\n\r\n")
    status, headers, body = split_answer(data)
    assert (status, body, headers[b"x-a"], headers[b"content-length"]) == (201, b"c=%20d hi", b"1", b"9")
    scope = app.scopes[0]
    assert (scope["method"], scope["path"], scope["raw_path"], scope["client"][0]) == ("POST", "/admin/a b/echo", b"/admin/a%20b/echo", "127.0.0.1")
    assert (b"x-b", b"2") in scope["headers"]
    assert app.told == ["http.disconnect"]


@on_both_loops
async def test_head_is_get_without_a_body() -> None:
    """The application sees GET; its headers are sent and its body is not."""
    app = App()
    async with serving(app.handle) as server:
        status, headers, body = split_answer(await talk(server.port, get("echo?abc", "HEAD")))
    assert (app.scopes[0]["method"], status, headers[b"content-length"], body) == ("GET", 201, b"4", b"")


@on_both_loops
async def test_an_answer_in_parts_is_chunked() -> None:
    """Without a length the parts are chunks, and the end is a clean one."""
    async with serving(App().handle) as server:
        _, headers, body = split_answer(await talk(server.port, get("parts")))
    assert (headers[b"transfer-encoding"], body) == (b"chunked", b"1\r\na\r\n1\r\nb\r\n0\r\n\r\n")


@on_both_loops
async def test_a_body_beyond_the_bound_never_reaches_the_application() -> None:
    """Neither one that is announced as too large nor one that turns out to be."""
    app = App()
    async with serving(app.handle) as server:
        told = await talk(server.port, get("echo", "POST", f"Content-Length: {BODY_MAX + 1}\r\n") + bytes(BODY_MAX + 1))
        chunk = b"%x\r\n%b\r\n" % (BODY_MAX, bytes(BODY_MAX))
        found = await talk(server.port, get("echo", "POST", "Transfer-Encoding: chunked\r\n") + 2 * chunk + b"0\r\n\r\n")
    assert (split_answer(told)[0], split_answer(found)[0], app.scopes) == (413, 413, [])


@on_both_loops
async def test_an_application_that_fails() -> None:
    """Before its answer: a 500 in JSON, and the connection lives on. In the middle: an unclean end."""
    async with serving(App().handle) as server:
        status, headers, body = split_answer(await talk(server.port, get("broken")))
        assert (status, headers[b"content-type"], b"before" in body) == (500, b"application/json", False)
        _, _, body = split_answer(await talk(server.port, get("breaks")))
        assert body == b"4\r\nsome\r\n"


@on_both_loops
async def test_a_client_that_takes_nothing_or_leaves() -> None:
    """The application waits for a client that does not read, and hears of one that leaves; what it sends then goes nowhere."""
    app = App()
    async with serving(app.handle) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1_000)
        writer.write(get("endless"))
        await reader.readuntil(b"\r\n\r\n")
        before = -1
        while app.sent != before:
            before = app.sent
            await asyncio.sleep(0.05)
        assert app.sent < 200  # what two sockets hold, not what it would send in that time
        writer.transport.abort()
        async with asyncio.timeout(30):
            await app.gone.wait()
    assert app.told == ["http.disconnect"]


@on_both_loops
async def test_a_client_that_leaves_within_its_body() -> None:
    """The application is not called for it."""
    app = App()
    async with serving(app.handle) as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(get("echo", "POST", "Content-Length: 5\r\n") + b"ab")
        await asyncio.sleep(0.02)
        writer.transport.abort()
        async with asyncio.timeout(30):
            await app.gone.wait()
    assert app.scopes == []


def sockets(app: App) -> Any:
    return serving(app.handle, sockets_below="/admin/", sockets_app=app)


@on_both_loops
async def test_a_web_socket() -> None:
    """A real client's is answered by the application, which gets path, query and headers, and hears that the client has closed it."""
    app = App()
    async with sockets(app) as server:
        async with connect(f"ws://127.0.0.1:{server.port}/admin/v1/events?after=7", additional_headers={"X-A": "b"}, proxy=None) as socket:
            for text in ("hello", "again"):
                await socket.send(text)
                assert await socket.recv() == text.upper()
        async with asyncio.timeout(30):
            await app.gone.wait()
    assert (app.scopes[0]["path"], app.scopes[0]["query_string"]) == ("/admin/v1/events", b"after=7")
    assert (b"x-a", b"b") in app.scopes[0]["headers"]
    assert app.told == ["websocket.disconnect 1000"]


@on_both_loops
async def test_a_server_that_stops_closes_web_sockets() -> None:
    """A draining server does not wait for them: clients are told that the service restarts, and come back."""
    app = App()
    async with sockets(app) as server, connect(f"ws://127.0.0.1:{server.port}/admin/x", proxy=None) as socket:
        stopping = asyncio.get_running_loop().create_task(stop(server))
        with pytest.raises(websockets.ConnectionClosed) as closed:
            await socket.recv()
        await stopping
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, app.told) == (1012, ["websocket.disconnect 1012"])


async def stop(server: Server) -> None:
    await server.stop()


@on_both_loops
async def test_what_asks_for_another_upgrade_is_an_ordinary_request() -> None:
    """Elsewhere, by another method, to another protocol, or with a body: the exchange's handler answers as if nobody had asked."""
    app = App()
    upgrade = "Upgrade: websocket\r\nConnection: upgrade\r\n"
    async with sockets(app) as server:
        for raw in (
            f"GET /other/echo HTTP/1.1\r\nHost: x\r\n{upgrade}\r\n",
            f"DELETE /admin/echo HTTP/1.1\r\nHost: x\r\n{upgrade}\r\n",
            "GET /admin/echo HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n",
            f"GET /admin/echo HTTP/1.1\r\nHost: x\r\n{upgrade}Content-Length: 1\r\n\r\nz",
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(raw.encode())
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 201")
            writer.transport.abort()
        raw = f"GET /x/echo HTTP/1.1\r\nHost: x\r\n\r\nGET /admin/ HTTP/1.1\r\nHost: x\r\n{upgrade}\r\n".encode()
        assert (await talk(server.port, raw)).count(b"HTTP/1.1") == 1  # not in the middle of another answer
    assert {scope["type"] for scope in app.scopes} == {"http"}
