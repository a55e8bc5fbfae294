"""Clients for load: many in one process, one keep-alive connection each, with as little parsing as tells how an answer ended.

A client may behave badly: hang up in the middle of an answer, or stop reading. Its answer's outcome is then "left" or "stalled".
"""

import asyncio
import re
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, cast
from urllib.parse import urlsplit

TAIL = 4096  # bytes of an answer that are kept: its last events, or a whole error
RETRY_S = 0.05
CONNECT_S = 5.0
STALL_S = 6.0  # how long a client that reads no more stays
STALLED_BYTES = 4096  # that its kernel takes for it, about
END = b"0\r\n\r\n"
_CODE = re.compile(rb'"code":"([a-z_]+)"')
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)", re.IGNORECASE)
_RETRY = re.compile(rb"\r\nretry-after: (\d+)", re.IGNORECASE)


class Ask(NamedTuple):
    """One request. leave_after, stall_after: bytes of the answer's body after which the client hangs up, or reads no more (-1: never)."""

    body: bytes
    leave_after: int = -1
    stall_after: int = -1


class Wire(asyncio.Protocol):
    """A connection; one request at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[str] | None = None
        self.open = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    async def ask(self, data: bytes, ask: Ask, timeout_s: float) -> str:
        """Sends; returns how the answer ended: complete, left, stalled, broken, timeout."""
        self.head = self.tail = b""
        self.first_s = 0.0
        self._size = 0
        self._left = -1  # bytes of the body to come; -1: chunked
        self._ask = ask
        self._done = self._loop.create_future()
        self.sent_s = self._loop.time()
        self._transport.write(data)
        try:
            ended = await asyncio.wait_for(self._done, timeout_s)
        except TimeoutError:
            ended = "timeout"
        if ended != "complete":
            self.abort()
        return ended

    def data_received(self, data: bytes) -> None:
        if not self.head:
            self.tail += data
            head, found, data = self.tail.partition(b"\r\n\r\n")
            if not found:
                return
            self.first_s = self._loop.time()
            self.head, self.tail = head, b""
            length = _LENGTH.search(head)
            self._left = int(length[1]) if length else -1
        self._size += len(data)
        self.tail = (self.tail + data)[-TAIL:]
        if self._size >= self._left if self._left >= 0 else self.tail.endswith(END):
            self._end("complete")
        elif 0 <= self._ask.leave_after <= self._size:
            self._end("left")
        elif 0 <= self._ask.stall_after <= self._size:
            self._transport.pause_reading()
            self._loop.call_later(STALL_S, self._end, "stalled")

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        self._end("broken")

    def _end(self, how: str) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(how)

    def abort(self) -> None:
        self._transport.abort()
        self.open = False


class Caller:
    """Asks one URL after the other when one does not answer, as behind a load balancer; one request at a time."""

    def __init__(self, urls: Sequence[str], start: int, key: str, path: str = "/v1/chat/completions") -> None:
        self._urls = urls
        self._at = start % len(urls)
        self._head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n".encode()
        self.wire: Wire | None = None

    async def ask(self, ask: Ask, timeout_s: float) -> str:
        """ok; shortened (a lowered cap ended it), cut (the gateway did), an error's code, left, stalled, broken, unreachable, timeout."""
        if self.wire is None or not self.wire.open or ask.stall_after >= 0:
            self.close()
            self.wire = await self._connect(STALLED_BYTES if ask.stall_after >= 0 else 0)
            if self.wire is None:
                return "unreachable"
        wire = self.wire
        ended = await wire.ask(self._head + b"content-length: %d\r\n\r\n" % len(ask.body) + ask.body, ask, timeout_s)
        if ended != "complete":
            if ended == "broken":
                self._at = (self._at + 1) % len(self._urls)
            return ended
        return outcome(wire.head, wire.tail, b'"stream":true' in ask.body)

    async def _connect(self, buffer_bytes: int) -> Wire | None:
        """buffer_bytes: how much the kernel takes in for a client that does not read; 0: the kernel's own."""
        url = urlsplit(self._urls[self._at])
        loop, sock = asyncio.get_running_loop(), socket.socket()
        sock.setblocking(False)
        if buffer_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        try:
            async with asyncio.timeout(CONNECT_S):
                await loop.sock_connect(sock, (url.hostname, url.port))
                _, wire = await loop.create_connection(Wire, sock=sock)
        except (OSError, TimeoutError):
            sock.close()
            self._at = (self._at + 1) % len(self._urls)
            return None
        return wire

    @property
    def retry_s(self) -> float:
        """When the last answer says to come back."""
        match = _RETRY.search(self.wire.head) if self.wire is not None else None
        return float(match[1]) if match else RETRY_S

    def close(self) -> None:
        if self.wire is not None:
            self.wire.abort()


def outcome(head: bytes, tail: bytes, streamed: bool) -> str:
    """How a whole answer ended."""
    if not head.startswith(b"HTTP/1.1 200"):
        match = _CODE.search(tail)
        return match[1].decode() if match else head[9:12].decode()
    if streamed and b"data: [DONE]" not in tail:
        return "broken"
    if b'"truncated"' in tail:
        return "cut"
    if b"\r\nx-sluicegate-max-tokens:" in head and b'"finish_reason":"length"' in tail:
        return "shortened"
    return "ok"


@dataclass
class Told:
    """What the clients of one tenant were told."""

    outcomes: Counter[str] = field(default_factory=Counter)
    first_s: list[float] = field(default_factory=list)


@dataclass
class Arrivals:
    """What came of requests that arrived at a rate of their own, whatever became of those before. Times in ms, sorted."""

    outcomes: Counter[str] = field(default_factory=Counter)  # `error event`: a stream that ended as it must after its first byte
    first_ms: list[float] = field(default_factory=list)  # to the first byte
    whole_ms: list[float] = field(default_factory=list)  # to the end of an answer that was whole
    late_ms: list[float] = field(default_factory=list)  # by how much they arrived after their time: what the load itself could not keep

    @property
    def requests(self) -> int:
        return sum(self.outcomes.values())

    @property
    def failed(self) -> int:
        return self.requests - self.outcomes["ok"]

    @property
    def failed_before_first_byte(self) -> int:
        return self.failed - self.outcomes["error event"]


def percentile(sorted_values: Sequence[float], percent: float) -> float:
    """Of sorted values; 0 of none."""
    return round(sorted_values[min(len(sorted_values) - 1, int(len(sorted_values) * percent / 100))], 2) if sorted_values else 0.0


async def open_loop(urls: Sequence[str], key: str, bodies: Sequence[bytes], *, rate: float, count: int, patience_s: float) -> Arrivals:
    """So many requests, so many per second, with each body in turn; each URL in turn."""
    loop, found = asyncio.get_running_loop(), Arrivals()
    idle: list[Caller] = []

    async def one(number: int) -> None:
        caller = idle.pop() if idle else Caller(urls, number, key)
        body = bodies[number % len(bodies)]
        outcome = await caller.ask(Ask(body), patience_s)
        wire = caller.wire
        if wire is not None and wire.first_s:
            found.first_ms.append((wire.first_s - wire.sent_s) * 1000)
        if outcome == "ok":
            assert wire is not None
            found.whole_ms.append((loop.time() - wire.sent_s) * 1000)
            idle.append(caller)
        else:
            if outcome == "broken" and wire is not None and b'"error":' in wire.tail:
                outcome = "error event"
            caller.close()
        found.outcomes[outcome] += 1

    started, tasks = loop.time(), []
    for number in range(count):
        due = started + number / rate
        await asyncio.sleep(max(0.0, due - loop.time()))
        found.late_ms.append((loop.time() - due) * 1000)
        tasks.append(loop.create_task(one(number)))
    await asyncio.gather(*tasks)
    for caller in idle:
        caller.close()
    for values in (found.first_ms, found.whole_ms, found.late_ms):
        values.sort()
    return found


FINAL = ("budget_exceeded",)
SERVED = ("ok", "shortened", "cut")


async def closed_loop(
    caller: Caller, make: Callable[[], Awaitable[Ask]], told: Told, *, final: Sequence[str], until_s: float, patience_s: float = 120.0
) -> None:
    """Asks again and again: until a final outcome, or until the loop's time. What was refused is asked again when the answer says so."""
    loop = asyncio.get_running_loop()
    try:
        while (left_s := until_s - loop.time()) > 0:
            found = await caller.ask(await make(), min(patience_s, left_s))
            told.outcomes[found] += 1
            if found in SERVED:
                assert caller.wire is not None
                told.first_s.append(caller.wire.first_s - caller.wire.sent_s)
            elif found in final:
                return
            elif found not in ("left", "stalled", "timeout"):
                await asyncio.sleep(min(caller.retry_s, max(0.0, until_s - loop.time())))
    finally:
        caller.close()
