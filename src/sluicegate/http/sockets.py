"""Web sockets of the server: uvicorn's protocol on websockets' sans-I/O part, of which a client that takes nothing does not keep its connection.

Loaded only where there are web sockets.
"""

import asyncio

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

LINGER_S = 5.0  # for what was sent last, once it is over


class Socket(WebSocketsSansIOProtocol):
    """One client."""

    async def send(self, message: object) -> None:
        if isinstance(message, dict) and message["type"] == "websocket.close":
            self.writable.set()  # it is told why, also where it takes nothing: that is a few bytes, and the last ones
        await super().send(message)  # type: ignore[arg-type]

    def on_task_complete(self, task: "asyncio.Task[None]") -> None:
        super().on_task_complete(task)
        self.loop.call_later(LINGER_S, self.transport.abort)

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self.transport.abort()
