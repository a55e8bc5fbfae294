"""Calls to one provider's origin, over connections that are kept and reused.

    pool = Pool("https://api.example.com/v1")
    call = pool.begin(b"POST", b"/chat/completions", headers, body, timeouts)   # nothing is sent yet
    await call.start()                                                          # status and headers
    while data := await call.read(): ...                                        # b"" at the clean end
    call.close()                                                                # always, any time

Invariants: `written` is True as soon as a byte of the request may have reached the upstream and False before, so an error tells whether the call may
be billed. A request is sent twice in one case only: a reused connection that the peer closes without a single byte within 100 ms of the first write
had never accepted it. An answer that does not end as its framing says is an error. Only the headers given go out, with host, content-length and
`accept-encoding: identity`; no redirect is followed and no cookie kept. `close` closes the connection at once unless the answer is complete.

Time limits are checked by one timer per pool, every `TICK_S`: no timer is made per call or read, and none runs while the pool is idle. A call that is
`unspoken`, as its caller says of a stream until it has seen output, is bound by `first_token` and not by `idle`: pings do not meet the one, and the
other begins with the first output. That `ends_at` has come is a failure of its own, "deadline": it says little about the upstream.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import Literal
from urllib.parse import urlsplit

from sluicegate.core.tenants import Proxy, Timeouts
from sluicegate.http import wire
from sluicegate.http.origin import OriginConnection
from sluicegate.http.route import in_ascii, route

Reason = Literal["connect", "tls", "timeout", "deadline", "reset", "incomplete", "protocol", "closed"]

TICK_S = 0.1
STALL_S = 0.3  # a timer that is so much too late says that nothing has been read meanwhile: the peers are not to blame
REUSE_RACE_S = 0.1
HEADS_MAX = 256
SLICE_BYTES = 262_144  # of a large body: written when the one before has been taken
COPY_BYTES_MAX = 65_536

_OURS = frozenset((b"accept-encoding", b"connection", b"content-length", b"expect", b"host", b"keep-alive", b"te", b"transfer-encoding", b"upgrade"))
_BODILESS = frozenset((b"GET", b"HEAD", b"DELETE", b"OPTIONS"))
_NEVER = float("inf")


class UpstreamError(Exception):
    """A call without a whole answer. `written`: bytes of the request may have been accepted."""

    def __init__(self, reason: Reason, written: bool, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.written = written


class Call:
    """One request and its answer. One task at a time may start or read it; `close` may come from anywhere."""

    __slots__ = (
        *("bodiless", "complete", "deadline", "ends_at", "headers", "over", "sink", "status", "stirred", "unspoken", "written"),
        *("_body", "_connecting", "_connection", "_failure", "_head", "_loop", "_paused", "_pool", "_raced", "_rest", "_sent_at", "_timeouts"),
        *("_waiter", "_wrote_at"),
    )

    def __init__(self, pool: "Pool", head: bytes, body: bytes, timeouts: Timeouts, ends_at: float, bodiless: bool) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.written = False
        self.complete = False  # the answer has arrived whole
        self.over = False  # nothing more will come: it is complete, or the call has failed
        self.sink: Callable[[], None] | None = None  # called at once for all that comes, instead of waking whoever waits
        self.bodiless = bodiless
        self.stirred = False
        self.unspoken = False  # a stream of which no output has come
        self.deadline = _NEVER
        self.ends_at = ends_at
        self._pool = pool
        self._head = head
        self._body = body
        self._timeouts = timeouts
        self._loop = pool.loop
        self._connection: OriginConnection | None = None
        self._connecting: asyncio.Task[OriginConnection] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._failure: tuple[Reason, str] | None = None
        self._rest = b""  # received and not read when the connection was let go
        self._paused = False
        self._raced = False
        self._wrote_at = 0.0
        self._sent_at = _NEVER  # all of the request

    async def start(self) -> None:
        """Connects or reuses a connection, writes the request, waits for status and headers."""
        self._check()
        self._pool.enter(self)
        self._connection = self._pool.idle_connection()
        while not self.status:
            connection = self._connection or await self._connect()
            self._send(connection)
            if connection.unsent:
                await self._send_slices(connection)
            while not self.status and self._connection is not None:
                await self._wait()

    async def read(self) -> bytes:
        """Everything received since the last read; waits for more if that is nothing; b"" at the clean end."""
        while True:
            if self._failure is not None and self._failure[0] == "closed":
                self._check()
            data = self.take()
            if data:
                return data
            if self.complete:
                return b""
            await self._wait()

    def take(self) -> bytes:
        """What has been received and not read, without waiting; after an error, what came before it."""
        if self._connection is None:
            data, self._rest = self._rest, b""
            return data
        chunks = self._connection.chunks
        if not chunks:
            return b""
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        return data

    def put_back(self, data: bytes) -> None:
        """What the next read of a complete answer gives: it is read again, perhaps in other words."""
        self._rest = data

    def close(self) -> None:
        """Ends the call. The upstream's connection is closed at once unless the answer is complete; whoever waits gets UpstreamError("closed")."""
        self._fail("closed", "closed by the caller")

    def pause(self) -> None:
        """Reads nothing more from the upstream until `resume`; without it, what comes is kept however much it is.

        A close by the upstream is not noticed while paused, and the idle limit does not run.
        """
        if self._connection is not None and not self._paused and not self._connection.transport.is_closing():
            self._paused = True
            self._connection.transport.pause_reading()

    def resume(self) -> None:
        if self._paused and self._connection is not None:
            self._unpause(self._connection)

    def _unpause(self, connection: OriginConnection) -> None:
        self._paused = False
        if not connection.transport.is_closing():
            connection.transport.resume_reading()

    # Sending.

    async def _connect(self) -> OriginConnection:
        self._check()
        self.deadline = self._loop.time() + self._timeouts.connect_ms / 1000
        self._connecting = self._loop.create_task(self._pool.connect())
        self._connecting.add_done_callback(self._connected)
        while self._connection is None:
            await self._wait()
        self._connecting = None
        if self._connection.transport.is_closing():  # nobody would tell us that it has gone
            self._fail("connect", f"{self._pool.origin} closed the connection at once")
            self._check()
        return self._connection

    def _connected(self, task: asyncio.Task[OriginConnection]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            if self._failure is None:
                self._connection = task.result()
                self.wake()
            else:
                task.result().transport.abort()
        elif isinstance(error, ssl.SSLError):
            self._fail("tls", f"TLS with {self._pool.origin}: {error}")
        else:
            self._fail("connect", f"connecting to {self._pool.origin}: {error}")

    def _send(self, connection: OriginConnection) -> None:
        """Writes the head, and the body where it is small; a larger one is left `unsent`."""
        connection.attach(self)
        transport, body = connection.transport, self._body
        self.written = True
        self._wrote_at = self._sent_at = now = self._loop.time()
        if len(body) <= COPY_BYTES_MAX:
            transport.write(self._head + body)
        else:
            transport.write(self._head)
            connection.unsent = True
        self.deadline = now + self._timeouts.first_byte_ms / 1000

    async def _send_slices(self, connection: OriginConnection) -> None:
        """A large body, as fast as the upstream takes it; no further once it answers."""
        view = memoryview(self._body)
        self._sent_at = _NEVER
        for start in range(0, len(view), SLICE_BYTES):
            connection.transport.write(view[start : start + SLICE_BYTES])
            self.deadline = self._loop.time() + self._timeouts.idle_ms / 1000
            while connection.write_paused and not self.status and self._connection is connection:
                await self._wait()
            if self.status or self._connection is not connection:
                break
        else:
            connection.unsent = False
        self._sent_at = self._loop.time()
        self.deadline = self._sent_at + self._timeouts.first_byte_ms / 1000

    # Told by the connection.

    def answered(self, status: int, headers: dict[bytes, bytes]) -> None:
        self.status = status
        self.headers = headers
        self.stirred = True
        self.wake()

    def wake(self) -> None:
        if self.sink is not None:
            self.sink()
            return
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)

    def end(self) -> None:
        self.complete = self.over = True
        self._let_go()

    def broken(self, message: str, reason: Literal["protocol", "incomplete"] = "protocol") -> None:
        self._fail(reason, f"{self._pool.origin}: {message}")

    def refused(self, message: str) -> None:
        """A proxy did not pass the request on: for the origin it was never written."""
        self.written = False
        self._fail("connect", f"{self._pool.origin}: {message}")

    def lost(self, error: Exception | None) -> None:
        connection = self._connection
        if connection is None:
            return
        if self._loop.time() - self._wrote_at <= REUSE_RACE_S and connection.reused and not connection.touched and not self._raced:
            self._raced = True
            self.written = False
            self._connection = None
            self.wake()
        elif error is not None:
            self._fail("reset", f"{self._pool.origin} reset the connection: {error}")
        elif not self.status:
            self._fail("reset", f"{self._pool.origin} closed the connection without an answer")
        else:
            self._fail("incomplete", f"{self._pool.origin} closed the connection before the end of its answer")

    # Waiting and ending.

    def expire(self, now: float) -> None:
        """Fails the call if it has taken too long."""
        if now >= self.ends_at:
            self._fail("deadline", "no whole answer within the time of the request")
        elif self.unspoken and now >= self._sent_at + self._timeouts.first_token_ms / 1000:
            self._fail("timeout", f"no output within {self._timeouts.first_token_ms} ms")
        elif self.unspoken and self.status:
            pass  # the first limit of silence begins with the first output
        elif self.stirred or (self._paused and self.status):
            self.stirred = False
            self.deadline = now + self._timeouts.idle_ms / 1000
        elif now >= self.deadline:
            if self._connection is None:
                self._fail("connect", f"no connection to {self._pool.origin} within {self._timeouts.connect_ms} ms")
            elif not self.status:
                self._fail("timeout", f"no answer within {self._timeouts.first_byte_ms} ms")
            else:
                self._fail("timeout", f"nothing more for {self._timeouts.idle_ms} ms")

    def _wait(self) -> "asyncio.Future[None]":
        """Until something has happened; raises only what had happened before, so that a status that came with a failure is still seen."""
        if self._failure is not None:
            self._check()
        self._waiter = self._loop.create_future()
        return self._waiter

    def _check(self) -> None:
        if self._failure is not None:
            raise UpstreamError(self._failure[0], self.written, self._failure[1])

    def _fail(self, reason: Reason, message: str) -> None:
        if self.complete or self._failure is not None:
            return
        self._failure, self.over = (reason, message), True
        if self._connecting is not None:
            self._connecting.cancel()
        connection = self._connection
        self._let_go()
        if connection is not None:
            connection.transport.abort()

    def _let_go(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._rest = connection.detach()
            if self._paused:
                self._unpause(connection)
        self._pool.leave(self)
        self.wake()


class Pool:
    """Connections to one origin, in one event loop. At most `max_idle` are kept, none idle for longer than `idle_s`; the last used goes first."""

    def __init__(
        self,
        base_url: str,
        *,
        ca_file: str = "",
        proxy: Proxy | None = None,
        max_idle: int = 256,
        idle_s: float = 50.0,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None or parts.query or parts.fragment:
            raise ValueError("a base URL is http[s]://host[:port][/path]")
        self._route = route(parts, ca_file, proxy)
        self._base = self._route.target + parts.path.rstrip("/").encode()
        self._lines = [b"host: " + in_ascii(parts.netloc), b"accept-encoding: identity", *self._route.lines]
        self.origin = f"{parts.scheme}://{parts.netloc}"
        self.loop = loop or asyncio.get_running_loop()
        self._max_idle = max_idle
        self._idle_s = idle_s
        self._heads: dict[tuple[bytes, bytes, tuple[tuple[bytes, bytes], ...]], bytes] = {}
        self._idle: list[OriginConnection] = []  # the last used at the end
        self._calls: set[Call] = set()
        self._timer: asyncio.TimerHandle | None = None

    def begin(
        self, method: bytes, path: bytes, headers: wire.Headers, body: bytes, timeouts: Timeouts, ends_at: float | None = None, lines: bytes = b""
    ) -> Call:
        """A call that `Call.start` will send; it ends at `ends_at` by the loop's clock, else after `timeouts.total`. Header names are lower-case.
        `lines`: more headers, as `Exchange.start` has them. Raises ValueError for control characters: they could end a header."""
        head = self._heads.get((method, path, headers)) if type(headers) is tuple else None
        if head is None:
            head = self._head(method, path, tuple(headers))
        length = f"\r\ncontent-length: {len(body)}\r\n\r\n".encode() if body or method not in _BODILESS else b"\r\n\r\n"
        end = ends_at if ends_at is not None else self.loop.time() + timeouts.total_ms / 1000
        return Call(self, b"".join((head, lines, length)), body, timeouts, end, method == b"HEAD")

    def _head(self, method: bytes, path: bytes, headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
        """Request line and headers, kept: a provider's are the same for every call."""
        head, clean = wire.block([b"%b %b%b HTTP/1.1" % (method, self._base, path), *self._lines], headers, _OURS)
        if not clean or b" " in path:
            raise ValueError("a header or path with control characters or blanks")
        if len(self._heads) >= HEADS_MAX:
            self._heads.clear()
        self._heads[method, path, headers] = head
        return head

    async def close(self) -> None:
        """Closes every connection; calls that are open fail with "closed"."""
        for call in list(self._calls):
            call.close()
        self._max_idle = 0
        for connection in list(self._idle):
            connection.transport.abort()
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.sleep(0)

    @property
    def busy(self) -> bool:
        """Calls are under way."""
        return bool(self._calls)

    def drain(self) -> None:
        """Keeps no connection any more: idle ones are closed, the others at the end of their call. Calls go on as ever, and new ones may come."""
        self._max_idle = 0
        while self._idle:
            self._idle.pop().transport.close()

    # Used by calls and connections.

    async def connect(self) -> OriginConnection:
        return await self._route.connect(self)

    def idle_connection(self) -> OriginConnection | None:
        """The last used of the idle connections that are alive."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.transport.is_closing():
                return connection
        return None

    def keep(self, connection: OriginConnection) -> None:
        connection.idle_since = self.loop.time()
        self._idle.append(connection)
        if len(self._idle) > self._max_idle:
            self._idle.pop(0).transport.close()
        if self._timer is None:
            self._run_timer()

    def forget(self, connection: OriginConnection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)

    def enter(self, call: Call) -> None:
        self._calls.add(call)
        if self._timer is None:
            self._run_timer()

    def leave(self, call: Call) -> None:
        self._calls.discard(call)

    def _run_timer(self) -> None:
        self._timer = self.loop.call_later(TICK_S, self._tick)
        self._due = self.loop.time() + TICK_S

    def _tick(self) -> None:
        self._timer = None
        now = self.loop.time()
        if now - self._due > STALL_S:  # what has come is read first: the next tick judges
            self._run_timer()
            return
        for call in list(self._calls):
            call.expire(now)
        while self._idle and now - self._idle[0].idle_since > self._idle_s:
            self._idle.pop(0).transport.close()
        if self._calls or self._idle:
            self._run_timer()
