"""One request of a client and its answer, as the gateway sees it.

An Exchange is made by connection.ClientConnection when a request's headers are complete. It reads the body when asked to, with back-pressure towards
the client, and writes the answer without ever waiting: what the kernel does not take yet is counted by `unsent()`.

Invariants: an answer's framing is decided here alone (headers about it are left out); an answer that ends short of its length, or is aborted, ends
unclean for the client; `on_gone` is called at most once, and never after `finish`. Once `gone`, writing is a no-op. Nothing here cancels a task.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from sluicegate.http import wire

logger = logging.getLogger("sluicegate.http")

# Above this, data is handed over apart from what precedes it rather than copied behind it.
COPY_BYTES_MAX = 65_536

_FRAMING = frozenset((b"connection", b"content-length", b"date", b"keep-alive", b"trailer", b"transfer-encoding", b"upgrade"))
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class ClientGone(Exception):
    """The client has closed or reset its connection, or was refused for what it sent."""


class BodyTooLarge(Exception):
    """The body is larger than allowed. It may still be answered."""


class Shared(Protocol):
    """What the connections of a server share, as far as it is needed here."""

    date: bytes  # header line, without its end


class Connection(Protocol):
    """What an exchange needs of its connection."""

    transport: asyncio.Transport

    @property
    def server_state(self) -> Shared: ...
    @property
    def write_paused(self) -> bool: ...  # more than the high-water mark is unsent
    def want_body(self) -> None: ...  # reading goes on
    def got_body(self, buffered_bytes: int) -> None: ...  # reading pauses where nobody wants it
    def answered(self, exchange: "Exchange") -> None: ...  # the last byte has been written
    def cut(self, *, reset: bool) -> None: ...  # closes; reset: at once and as a failure


class Exchange:
    """A request (method, path, query, headers, peer) with `read_body`, and its answer: `start`, `write`, `finish` or `abort`."""

    __slots__ = (
        *("arrived", "finished", "gone", "headers", "keep_alive", "method", "on_drained", "on_gone", "path", "peer", "query", "started"),
        *("_bodiless", "_chunked", "_complete", "_connection", "_continued", "_discarding", "_held", "_left_bytes"),
        *("_max_bytes", "_modern", "_pieces", "_reader", "_received_bytes", "_until_close", "task"),
    )

    def __init__(
        self,
        connection: Connection,
        method: str,
        path: str,
        headers: dict[bytes, bytes],
        query: bytes = b"",
        peer: str = "",
        arrived: float = 0.0,
        modern: bool = True,  # HTTP/1.1: knows chunks and 100-continue
        keep_alive: bool = True,
    ) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.headers = headers
        self.peer = peer
        self.arrived = arrived
        self.keep_alive = keep_alive
        self.gone = False
        self.on_gone: Callable[[], None] | None = None
        self.on_drained: Callable[[], None] | None = None
        self.started = False
        self.finished = False
        self.task: asyncio.Task[None] | None = None  # a loop keeps tasks by weak reference only
        self._connection = connection
        self._modern = modern
        self._continued = False
        self._pieces: list[bytes] = []
        self._received_bytes = 0
        self._max_bytes: int  # since somebody reads
        self._discarding = False
        self._complete = False
        self._reader: asyncio.Future[None] | None = None
        self._held = b""
        self._chunked = False
        self._bodiless = False
        self._until_close = False
        self._left_bytes = 0

    # The request's body.

    def take_body(self, max_bytes: int) -> bytes:
        """The whole body if it has come already, as it mostly has; b"" where it must be waited for (or is empty, or too large)."""
        if not self._complete or self._received_bytes > max_bytes:
            return b""
        pieces, self._pieces = self._pieces, []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def read_body(self, max_bytes: int = wire.BODY_BYTES_MAX) -> bytes:
        """The whole body. Raises BodyTooLarge as soon as it is known to be larger than `max_bytes`, ClientGone when it will not come."""
        self._max_bytes = max_bytes
        announced_bytes = int(self.headers.get(b"content-length", 0))
        while not self.gone:
            if max(announced_bytes, self._received_bytes) > max_bytes:
                self._discard()
                raise BodyTooLarge
            if self._complete:
                pieces, self._pieces = self._pieces, []
                return pieces[0] if len(pieces) == 1 else b"".join(pieces)
            if self._modern and not (self._continued or self.started) and self.headers.get(b"expect", b"").lower() == b"100-continue":
                self._continued = True
                self._connection.transport.write(_CONTINUE)
            self._connection.want_body()
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        raise ClientGone

    def feed(self, data: bytes) -> None:
        """A piece of the body, from the connection."""
        if self._discarding:
            return
        self._pieces.append(data)
        self._received_bytes += len(data)
        if self._reader is None:
            self._connection.got_body(self._received_bytes)
        elif self._received_bytes > self._max_bytes:
            self._wake()

    def feed_all(self, body: bytes) -> None:
        """The whole body, from the connection, which goes on reading: that is how a client that leaves is noticed."""
        self._pieces.append(body)
        self._received_bytes = len(body)
        self._complete = True

    def feed_end(self) -> None:
        """The body is complete, says the connection."""
        self._complete = True
        self._connection.want_body()  # a client that leaves is noticed by reading
        if self._reader is not None:
            self._wake()

    def _discard(self) -> None:
        self._discarding = True
        self._pieces.clear()
        self._connection.want_body()

    def _wake(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None and not reader.done():
            reader.set_result(None)

    # The answer.

    def start(self, status: int, headers: wire.Headers, length: int | None, lines: bytes = b"") -> None:
        """Status and headers, sent together with the first data. `length` None: as long as it takes, in chunks or, for HTTP/1.0, until the close.

        lines: header lines that the caller vouches for, each begun by CR LF; they are not looked at.
        """
        if self.started:
            raise RuntimeError("the answer has been started")
        if self.gone:
            return
        self.started = True
        first = wire.STATUS_LINES[status], self._connection.server_state.date
        if headers:
            text, clean = wire.block([*first], headers, _FRAMING)
            if not clean:
                text, _ = wire.block([*first], wire.cleaned(headers), _FRAMING)
        else:
            text = b"%b\r\n%b" % first
        if not self._complete:
            self.keep_alive = False  # what is left of the body would be read as the next request
        self._held = b"".join((text, lines, self._framing(status, length)))

    def answer(self, status: int, body: bytes, lines: bytes = b"") -> None:
        """All of an answer at once: as `start` and `finish` do, with less on the way for what most requests get. lines: as in `start`."""
        if self.started or self.gone or not self._complete or not self.keep_alive or self.method == "HEAD" or status != 200:
            self.start(status, (), len(body), lines)
            self.finish(body)
            return
        self.started = True
        connection, small = self._connection, len(body) <= COPY_BYTES_MAX
        length = f"\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        head = wire.STATUS_LINES[status], b"\r\n", connection.server_state.date, lines, length, body if small else b""
        connection.transport.write(b"".join(head))
        if not small:
            connection.transport.write(body)
        self.finished = True
        self._connection.answered(self)

    def _framing(self, status: int, length: int | None) -> bytes:
        """Decides how the answer ends, and returns the end of its head."""
        if status in (204, 304):
            self._bodiless = True
            end = b""
        elif length is not None:
            self._left_bytes = length
            end = b"\r\ncontent-length: %d" % length
        elif self._modern:
            self._chunked = True
            end = b"\r\ntransfer-encoding: chunked"
        else:
            self._until_close = True
            self.keep_alive = False
            end = b""
        if self.method == "HEAD":
            self._bodiless = True
        return end + b"\r\n\r\n" if self.keep_alive else end + b"\r\nconnection: close\r\n\r\n"

    def write(self, data: bytes) -> None:
        """Sends data, with the headers if they are not sent yet (`b""` sends them alone)."""
        if self.gone or self.finished:
            return
        if not self.started:
            raise RuntimeError("the answer has not been started")
        if self._bodiless:
            data = b""
        elif self._chunked:
            if data:
                data = b"%x\r\n%b\r\n" % (len(data), data)
        elif not self._until_close:
            self._count(len(data))
        self._send(data)

    def finish(self, data: bytes = b"") -> None:
        """Sends the last data and ends the answer."""
        if self.gone or self.finished:
            return
        if not self.started:
            raise RuntimeError("the answer has not been started")
        if self._bodiless:
            data = b""
        elif self._chunked:
            data = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if data else b"0\r\n\r\n"
        elif not self._until_close:
            self._count(len(data))
            if self._left_bytes:
                raise RuntimeError("the answer is shorter than its length")
        self._send(data)
        self.finished = True
        self._connection.answered(self)

    def abort(self) -> None:
        """Closes the connection so that the client sees an unclean end. The exchange is gone: `on_gone` is called before this returns."""
        if self.finished or self.gone:
            return
        # Where only the close ends the answer, and where the client is not reading, a mere close would look clean or take for ever.
        self._connection.cut(reset=self._until_close or self._connection.write_paused)
        self.lose()

    def break_off(self, data: bytes) -> None:
        """Sends the last data of an answer that does not end as it should, and closes so that the client sees it."""
        self.write(data)
        self.abort()

    def unsent(self) -> int:
        """Bytes written that the kernel has not taken yet."""
        return self._connection.transport.get_write_buffer_size()

    def fail(self) -> None:
        """Ends an answer that nobody will end: 500 if nothing of it was sent, else unclean."""
        if self.started and not self._held:
            self.abort()
        elif not self.gone:
            self.started = self._chunked = self._until_close = self._bodiless = False
            body = wire.error_body("Internal error.", "server_error", "internal_error")
            self.start(500, [(b"content-type", b"application/json")], len(body))
            self.finish(body)

    def lose(self) -> None:
        """The client is gone, says the connection."""
        if self.finished or self.gone:
            return
        self.gone = True
        self._pieces.clear()
        self._wake()
        tell, self.on_gone = self.on_gone, None
        if tell is not None:
            try:
                tell()
            except Exception as error:  # the other exchanges of a server that is cut must hear of it too
                logger.error("on_gone raised %s", type(error).__name__)

    def _count(self, added_bytes: int) -> None:
        self._left_bytes -= added_bytes
        if self._left_bytes < 0:
            raise RuntimeError("the answer is longer than its length")

    def _send(self, data: bytes) -> None:
        held = self._held
        if not held:
            if data:
                self._connection.transport.write(data)
            return
        self._held = b""
        if len(data) <= COPY_BYTES_MAX:
            self._connection.transport.write(held + data)
        else:
            self._connection.transport.write(held)
            self._connection.transport.write(data)


Handler = Callable[[Exchange], Awaitable[None]]
