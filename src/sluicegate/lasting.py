"""A request that is made to its end, whether its client stays or not (idempotency.py): the client as the rest of the gateway sees it, and the key."""

import asyncio
from collections.abc import Callable

from sluicegate.http.exchange import Exchange
from sluicegate.http.wire import Headers

BODY_MAX = 1 << 20  # bytes of an answer that are kept


class Client:
    """The client of a request that is made to its end: an exchange that is never gone, whose answer is copied, and whose last bytes wait."""

    def __init__(self, exchange: Exchange) -> None:
        self.headers, self.method, self.path, self.arrived = exchange.headers, exchange.method, exchange.path, exchange.arrived
        self.gone = False
        self.on_gone: Callable[[], None] | None = None  # never called
        self.status = 0
        self.content_type = ""
        self.copied: list[bytes] | None = []  # None: too much
        self._copied_bytes = 0
        self._exchange = exchange
        self._last: bytes | None = None
        self._broken = False  # the last bytes are those of an answer that breaks off

    @property
    def on_drained(self) -> Callable[[], None] | None:
        return self._exchange.on_drained

    @on_drained.setter
    def on_drained(self, tell: Callable[[], None] | None) -> None:
        self._exchange.on_drained = tell

    def start(self, status: int, headers: Headers, length: int | None, lines: bytes = b"") -> None:
        self.status = status
        self.content_type = lines.rpartition(b"content-type: ")[2].partition(b"\r\n")[0].decode("latin-1")
        self._exchange.start(status, headers, length, lines)

    def answer(self, status: int, body: bytes, lines: bytes = b"") -> None:
        self.start(status, (), len(body), lines)
        self.finish(body)

    def write(self, data: bytes) -> None:
        self._copy(data)
        self._exchange.write(data)

    def finish(self, data: bytes = b"") -> None:
        self._copy(data)
        self._last = data

    def break_off(self, data: bytes) -> None:
        self._last, self._broken = data, True

    def abort(self) -> None:
        self._exchange.abort()

    def unsent(self) -> int:
        return 0 if self._exchange.gone else self._exchange.unsent()

    def release(self) -> None:
        """The last bytes may go."""
        if self._last is None:
            return
        if self._broken:
            self._exchange.break_off(self._last)
        else:
            self._exchange.finish(self._last)

    def _copy(self, data: bytes) -> None:
        self._copied_bytes += len(data)
        if self._copied_bytes > BODY_MAX:
            self.copied = None
        elif self.copied is not None:
            self.copied.append(data)


class Taken:
    """A key that a request has taken."""

    __slots__ = ("client", "name", "print", "renewing")

    def __init__(self, name: str, print: str, client: Client) -> None:
        self.name = name
        self.print = print  # of the request
        self.client = client
        self.renewing: asyncio.Task[None] | None = None
