"""Serves an ordinary ASGI application from an Exchange, so that what is not on the data plane may be written with a framework.

The body is read, within its bound, before the application is called. HEAD is GET whose body is left out, so no route has to know of it. An
application that stops sending, or raises, is ended by the connection: a 500 if nothing of its answer was sent, else an unclean end.

Invariant: the application waits while its client does not take what was sent, and no longer than `WRITE_S` for a byte; nothing is kept for it without
bound. It learns of a client that has left by `http.disconnect`; what it sends then goes nowhere (ASGI 2.3), its task is not cancelled.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import unquote

from sluicegate.http.exchange import Exchange

Application = Callable[[Any, Any, Any], Awaitable[None]]  # ASGI 3
Message = dict[str, Any]

UNSENT_BYTES_MAX = 65_536
WRITE_S = 30.0


async def serve(app: Application, exchange: Exchange, max_body_bytes: int) -> None:
    """Raises ClientGone, and BodyTooLarge, which may still be answered, before the application is called; then what it raises."""
    body = await exchange.read_body(max_body_bytes)
    talk = _Talk(exchange, body)
    await app(_scope(exchange), talk.receive, talk.send)


def _scope(exchange: Exchange) -> Message:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET" if exchange.method == "HEAD" else exchange.method,
        "scheme": "http",
        "path": unquote(exchange.path),
        "raw_path": exchange.path.encode(),
        "query_string": exchange.query,
        "root_path": "",
        "headers": list(exchange.headers.items()),
        "client": (exchange.peer, 0),
        "server": None,
    }


class _Talk:
    """One request's `receive` and `send`."""

    def __init__(self, exchange: Exchange, body: bytes) -> None:
        self._exchange = exchange
        self._body: bytes | None = body
        self._over = asyncio.Event()  # the client has left, or has the whole answer
        self._taken: asyncio.Future[None] | None = None
        exchange.on_gone = self._left
        exchange.on_drained = self._wake

    async def receive(self) -> Message:
        body, self._body = self._body, None
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        await self._over.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        exchange = self._exchange
        if exchange.gone:
            return
        if message["type"] == "http.response.start":
            headers = [(bytes(name).lower(), bytes(value)) for name, value in message.get("headers", ())]
            length = next((int(value) for name, value in headers if name == b"content-length"), None)
            exchange.start(message["status"], headers, length)
        elif message.get("more_body", False):
            exchange.write(message.get("body", b""))
            if exchange.unsent() > UNSENT_BYTES_MAX:
                await self._until_taken()
        else:
            exchange.finish(message.get("body", b""))
            self._over.set()

    async def _until_taken(self) -> None:
        """Waits for the client to take what was sent; one that takes nothing for `WRITE_S` is cut off."""
        exchange = self._exchange
        while not exchange.gone and (unsent := exchange.unsent()) > UNSENT_BYTES_MAX:
            self._taken = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(WRITE_S):
                    await self._taken
            except TimeoutError:
                if exchange.unsent() >= unsent:
                    exchange.abort()

    def _left(self) -> None:
        self._over.set()
        self._wake()

    def _wake(self) -> None:
        if self._taken is not None and not self._taken.done():
            self._taken.set_result(None)
