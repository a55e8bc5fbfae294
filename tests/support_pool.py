"""A pool of connections to an upstream that the test plays: no socket and no real time."""

import asyncio
from typing import Any

import pytest

from sluicegate.core.tenants import Timeouts
from sluicegate.http.upstream import Call, Pool, UpstreamError
from support_sockets import FakeLoop, FakeTransport, settle

LIMITS = Timeouts(connect_ms=2_000, first_byte_ms=10_000, first_token_ms=15_000, idle_ms=5_000, write_ms=1_000, total_ms=60_000)
OK = b"HTTP/1.1 200 OK\r\n"


class Net:
    """A pool whose upstream is the test."""

    def __init__(self, base_url: str = "http://up:81/v1/", **options: Any) -> None:
        self.loop = FakeLoop()
        self.pool = Pool(base_url, loop=self.loop, **options)  # type: ignore[arg-type]

    @property
    def last(self) -> FakeTransport:
        return self.loop.transports[-1]

    def begin(self, method: bytes = b"POST", body: bytes = b"{}") -> Call:
        return self.pool.begin(method, b"/chat", [(b"x-a", b"1")], body, LIMITS)

    async def start(self, method: bytes = b"POST", body: bytes = b"{}") -> tuple[Call, "asyncio.Task[None]"]:
        """A call that has been written."""
        call = self.begin(method, body)
        task = asyncio.get_running_loop().create_task(call.start())
        await settle()
        return call, task

    async def serve(self, answer: bytes = OK + b"Content-Length: 0\r\n\r\n") -> Call:
        """A whole call, which leaves an idle connection."""
        call, task = await self.start()
        self.last.feed(answer)
        await task
        return call


async def failure(awaitable: Any) -> UpstreamError:
    with pytest.raises(UpstreamError) as caught:
        await awaitable
    return caught.value


async def read_all(call: Call) -> bytes:
    body = b""
    while data := await call.read():
        body += data
    return body
