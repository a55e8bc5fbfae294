"""Both neighbours of the gateway as fakes at the level of their interfaces: a client's exchange and an upstream's
call, driven by a test step by step."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sluicegate.core.tenants import Timeouts
from sluicegate.http.exchange import BodyTooLarge, ClientGone
from sluicegate.http.upstream import Reason, UpstreamError

Headers = Sequence[tuple[bytes, bytes]]


class FakeExchange:
    """A client that takes what it is told to take. `buffered` is what its kernel has not taken."""

    method = "POST"
    path = "/v1/chat/completions"
    query = b""
    peer = "192.0.2.7"

    def __init__(self, body: bytes = b"", headers: dict[bytes, bytes] | None = None, arrived: float = 0.0) -> None:
        self.headers = headers or {}
        self.arrived = arrived
        self.status = 0
        self.sent_headers: dict[bytes, bytes] = {}
        self.data = b""
        self.kernel_takes = True
        self.buffered = 0
        self.started = self.finished = self.aborted = self.gone = False
        self.on_drained: Callable[[], None] | None = None
        self.on_gone: Callable[[], None] | None = None
        self._body = body

    def take_body(self, max_bytes: int) -> bytes:
        return b""

    async def read_body(self, max_bytes: int) -> bytes:
        if self.gone:
            raise ClientGone
        if len(self._body) > max_bytes:
            raise BodyTooLarge
        return self._body

    def start(self, status: int, headers: Iterable[tuple[bytes, bytes]], length: int | None, lines: bytes = b"") -> None:
        assert not self.started
        if not self.gone:
            pairs = [*headers, *(tuple(line.split(b": ", 1)) for line in lines.split(b"\r\n")[1:])]
            self.started, self.status, self.sent_headers = True, status, dict(pairs)
            assert len(self.sent_headers) == len(pairs), "a header twice"

    def answer(self, status: int, body: bytes, lines: bytes = b"") -> None:
        self.start(status, (), len(body), lines)
        self.finish(body)

    def write(self, data: bytes) -> None:
        if self.gone:
            return
        assert self.started and not self.finished
        self.data += data
        if not self.kernel_takes:
            self.buffered += len(data)

    def finish(self, data: bytes = b"") -> None:
        self.write(data)
        self.finished = not self.gone

    def break_off(self, data: bytes) -> None:
        self.write(data)
        self.abort()

    def unsent(self) -> int:
        return self.buffered

    def take(self, size: int) -> None:
        """The client reads."""
        self.buffered = max(0, self.buffered - size)
        if not self.buffered and self.on_drained is not None:
            self.on_drained()

    def abort(self) -> None:
        if not self.gone and not self.finished:
            self.aborted = True
            self.leave()

    def leave(self) -> None:
        """The client's connection is lost."""
        self.gone = True
        self.buffered = 0
        tell, self.on_gone = self.on_gone, None
        if tell is not None:
            tell()


class FakeCall:
    """An upstream that says what it is fed."""

    def __init__(self, body: bytes = b"", connected: bool = True, ends_at: float | None = None) -> None:
        self.body = body
        self.ends_at = ends_at
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.pieces: deque[bytes] = deque()
        self.failure: Reason | None = None
        self.written = self.complete = self.closed = self.paused = False
        self.pauses = 0
        self.sink: Callable[[], None] | None = None
        self.connected = connected
        self._waiter: asyncio.Future[None] | None = None

    # What the test does.

    def connect(self) -> None:
        self.connected = True
        self._wake()

    def answer(self, status: int = 200, kind: bytes = b"text/event-stream", **headers: bytes) -> None:
        self.status = status
        self.headers = {b"content-type": kind} | {name.encode().replace(b"_", b"-"): value for name, value in headers.items()}
        self._wake()

    def feed(self, data: bytes) -> None:
        if data:
            self.pieces.append(data)
            self._wake()

    def end(self) -> None:
        self.complete = True
        self._wake()

    def fail(self, reason: Reason) -> None:
        self.failure = reason
        self._wake()

    # What the gateway does.

    async def start(self) -> None:
        await self._until(lambda: self.connected)
        self.written = True
        await self._until(lambda: bool(self.status))

    async def _until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            self._check()
            await self._wait()
        self._check()

    async def read(self) -> bytes:
        while True:
            if self.failure == "closed":
                self._check()
            if self.pieces:
                return self.take()
            if self.complete:
                return b""
            self._check()
            await self._wait()

    def take(self) -> bytes:
        data = b"".join(self.pieces)
        self.pieces.clear()
        return data

    def close(self) -> None:
        self.closed = True
        if not self.complete:
            self.fail("closed")

    def pause(self) -> None:
        self.paused = True
        self.pauses += 1

    def resume(self) -> None:
        self.paused = False

    def _check(self) -> None:
        if self.failure is not None:
            raise UpstreamError(self.failure, self.written, self.failure)

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    @property
    def over(self) -> bool:
        return self.complete or self.failure is not None

    def _wake(self) -> None:
        if self.sink is not None:
            self.sink()
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class FakePool:
    """Calls to one provider, in the order in which they are begun."""

    def __init__(self) -> None:
        self.calls: list[FakeCall] = []
        self.connected = True  # new calls are

    def begin(self, method: bytes, path: bytes, headers: Headers, body: bytes, timeouts: Timeouts, ends_at: float | None = None) -> Any:
        self.calls.append(FakeCall(body, self.connected, ends_at))
        return self.calls[-1]
