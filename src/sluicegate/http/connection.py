"""A client's connection: bytes to exchanges, one after the other, within bounds.

A subclass of uvicorn's httptools protocol. Requests go straight to the server's `handle(exchange)`; a connection that asks for a web socket below
`sockets_below` is uvicorn's own from there on, with the ASGI app of the server's configuration.

Invariants: exchanges of one connection are handled in the order they came in, one at a time. Whatever httptools refuses (both framings, a length
twice, bare line feeds, blanks before colons) and whatever passes a bound is answered once in JSON, and nothing after it is read. A connection that is
closed while its client still sends is closed in two steps, so that the client can read the answer. No timer is made per connection or request:
`sweep` is called once a second.

Nor is a task made per request: that of the one before serves the next, unless it is still busy with what comes after its answer. And a client that
stays sends the same head again and again, but for the length of the body: such a head is recognised, byte for byte, and not parsed.
"""

import asyncio
import socket
import struct
import traceback
from collections import deque
from typing import Any, NamedTuple

import httptools
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from sluicegate.http import heads, wire
from sluicegate.http.exchange import Exchange, Handler, logger
from sluicegate.http.heads import Head, Refused

HIGH_WATER_BYTES = 65_536  # of a body nobody reads, and of an answer nobody takes
LOW_WATER_BYTES = 16_384
PIPELINED_MAX = 8  # requests read ahead of the one being answered
LINGER_S = 5.0
LINGER_TOTAL_S = 30.0
NEVER = float("inf")

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Bounds(NamedTuple):
    """What a client may take."""

    head_bytes: int = wire.HEAD_BYTES_MAX
    head_count: int = wire.HEAD_COUNT_MAX
    head_s: float = 10.0  # from a request's first byte to the end of its headers
    body_idle_s: float = 30.0  # between two reads of a body
    keep_alive_s: float = 75.0  # between requests
    flush_s: float = 30.0  # without a byte taken, when all is written and the connection is to close


class State(ServerState):
    """What a server's connections share."""

    def __init__(self, handle: Handler, bounds: Bounds, sockets_below: str = "") -> None:
        super().__init__()
        self.handle = handle
        self.bounds = bounds
        self.sockets_below = sockets_below  # "": nowhere
        self.exchanges: set[Exchange] = set()  # those whose handler has not returned
        self.date = wire.date_line()


class ClientConnection(HttpToolsProtocol):
    """One connection of a client, as a server's loop drives it."""

    server_state: State

    def __init__(self, config: Config, server_state: State, app_state: dict[str, Any], _loop: asyncio.AbstractEventLoop | None = None) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.bounds = server_state.bounds
        self.peer = ""
        self.deadline = NEVER
        self.fields: dict[bytes, bytes] = {}
        self._active: Exchange | None = None  # its handler is at work on the answer
        self._waiting: deque[Exchange] = deque()
        self._receiving: Exchange | None = None  # its body is being received
        self._left_bytes = 0  # of that body, where its head was recognised: they are not for the parser
        self._known: Head | None = None  # the last that was parsed, if it may come again
        self._fresh = b""  # a read that begins with a request whose head has not been parsed yet
        self._idle: asyncio.Future[Exchange] | None = None  # a task waits for the next exchange here
        self._in_head = False
        self._repeats = 0
        self._now = 0.0  # of this read
        self._read_bytes = 0  # of this read
        self._quiet_bytes = 0  # since a request began, or its headers ended, or a piece of its body came
        self._upgrading = False  # httptools takes what follows for another protocol
        self._resuming = False  # a new parser is being told of a head that is known
        self._deaf = False  # nothing is parsed any more
        self._linger_end = 0.0
        self._unsent_bytes = 0  # at the last sweep while closing

    @property
    def write_paused(self) -> bool:
        return self.flow.write_paused

    # The transport's side.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(HIGH_WATER_BYTES, LOW_WATER_BYTES)
        self.peer = self.client[0] if self.client else ""
        self.deadline = self.loop.time() + self.bounds.head_s

    def data_received(self, data: bytes) -> None:
        self._now = self.loop.time()
        if self._deaf:
            if self._linger_end:
                self.deadline = min(self._now + LINGER_S, self._linger_end)
            return
        self._read_bytes = len(data)
        self._quiet_bytes += len(data)
        if self._receiving is not None:
            self.deadline = self._now + self.bounds.body_idle_s
            if self._left_bytes:
                data = self._more(data)
        elif not self._in_head:
            if self._known is not None and self._again(data, self._known):
                return
            self._fresh = data
        if data:
            self._parse(data)

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._refuse(cause if isinstance(cause, Refused) else heads.malformed(str(error)))
        else:
            if self._quiet_bytes > self.bounds.head_bytes:
                self._refuse(heads.too_long(self.bounds.head_bytes))

    def eof_received(self) -> None:
        self._lose()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose()
        if self._idle is not None:
            self._idle.cancel()
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._active is not None and self._active.on_drained is not None:
            self._active.on_drained()

    def _lose(self) -> None:
        self._deaf = True
        self._receiving = None
        self._waiting.clear()
        if self._active is not None:
            self._active.lose()
            self._active = None

    # The parser's side.

    def on_message_begin(self) -> None:
        if self._resuming:
            return
        self.url = b""
        self.fields = {}
        self._repeats = 0
        self._in_head = True
        self._quiet_bytes = self._read_bytes
        self.deadline = self._now + self.bounds.head_s

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        fields = self.fields
        if name not in fields:
            fields[name] = value.rstrip()
            return
        self._repeats += 1
        if self._repeats > self.bounds.head_count or (name == b"host" and self._in_head):
            raise heads.malformed("a header was sent too often")
        fields[name] = b"%b, %b" % (fields[name], value.rstrip())

    def on_headers_complete(self) -> None:
        if self._resuming:
            self._resuming = False
            return
        fields, parser, bounds = self.fields, self.parser, self.bounds
        # Only HTTP/1.1 is kept alive without a header that says so, and asking for the version is dear.
        keep_alive = parser.should_keep_alive()
        version = "1.1" if keep_alive and b"connection" not in fields else parser.get_http_version()
        modern = heads.check(fields, version, len(fields) + self._repeats, bounds.head_count)
        if self._quiet_bytes > bounds.head_bytes:  # what was read is a cheap upper bound, so the sum is rarely needed
            heads.check_size(self.url, fields, bounds.head_bytes)
        method = parser.get_method().decode()
        if method == "CONNECT":
            raise Refused(400, "malformed_http", "This is not a proxy.")
        path, query = heads.target(self.url)
        self._upgrading = b"upgrade" in fields and parser.should_upgrade()
        self._in_head = False
        fresh, self._fresh, self._known = self._fresh, b"", None
        self._quiet_bytes = 0
        if self._upgrading and self._asks_for_socket(method, path):
            return
        self.deadline = self._now + self.bounds.body_idle_s
        keep_alive = modern and keep_alive
        if keep_alive and not self._upgrading:
            self._known = Head.of(fresh, method, path, query, fields, modern)
        self._receiving = exchange = Exchange(self, method, path, fields, query, self.peer, self._now, modern, keep_alive)  # names would cost a dict
        self.fields = {}  # trailers are nobody's
        self._received(exchange)

    def _received(self, exchange: Exchange) -> None:
        """A head is complete."""
        if self._active is None:
            self._begin(exchange)
        else:
            self._waiting.append(exchange)
            if len(self._waiting) >= PIPELINED_MAX:
                self.flow.pause_reading()

    def on_body(self, body: bytes) -> None:
        if self._receiving is not None:
            self._quiet_bytes = 0
            self._receiving.feed(body)

    def on_message_complete(self) -> None:
        if self._upgrading or self._receiving is None:
            return
        self.deadline = NEVER
        exchange, self._receiving = self._receiving, None
        exchange.feed_end()

    def _again(self, data: bytes, head: Head) -> bool:
        """Takes a request that begins with a head that is known. False: it begins with none, or is more than that request."""
        found = head.begins(data)
        if found is None:
            return False
        fields, end = found
        body = data[end:]
        left_bytes = int(fields[b"content-length"]) - len(body)
        if left_bytes < 0:
            return False
        self._quiet_bytes = 0
        exchange = Exchange(self, head.method, head.path, fields, head.query, self.peer, self._now, head.modern)
        if left_bytes:
            self._receiving, self._left_bytes = exchange, left_bytes
            self.deadline = self._now + self.bounds.body_idle_s
            exchange.feed(body)
        else:
            self.deadline = NEVER
            exchange.feed_all(body)
        self._received(exchange)
        return True

    def _more(self, data: bytes) -> bytes:
        """Takes what of this read belongs to the body; returns the rest."""
        body = data[: self._left_bytes]
        self._left_bytes -= len(body)
        self.on_body(body)
        if not self._left_bytes:
            self.on_message_complete()
        self._fresh = rest = data[len(body) :]
        self._read_bytes = len(rest)
        return rest

    def _asks_for_socket(self, method: str, path: str) -> bool:
        """Whether a request to upgrade is one that uvicorn's protocol for web sockets is to answer. Any other is served as if it had not asked."""
        below, fields = self.server_state.sockets_below, self.fields
        if not below or method != "GET" or not path.startswith(below) or fields[b"upgrade"].lower() != b"websocket":
            return False
        if b"content-length" in fields or b"transfer-encoding" in fields:
            return False
        if self._active is not None:
            raise Refused(400, "malformed_http", "Requests of different kinds are not pipelined.")
        self.deadline = NEVER
        return True

    def _upgrade(self, rest: bytes) -> None:
        """A server may ignore `upgrade` and read on; httptools cannot. So a new parser reads on, told how the body is framed and nothing else."""
        self._upgrading = False
        if self._receiving is None:
            self.scope = {"method": "GET", "headers": list(self.fields.items())}  # type: ignore[typeddict-item]  # as far as it is read here
            self.handle_websocket_upgrade()
            return
        headers = self._receiving.headers
        framing = [b"%b: %b\r\n" % (name, headers[name]) for name in (b"content-length", b"transfer-encoding") if name in headers]
        self.parser = httptools.HttpRequestParser(self)
        self._resuming = True
        self.data_received(b"POST / HTTP/1.1\r\n%b\r\n%b" % (b"".join(framing), rest))

    # What does not go on.

    def _refuse(self, refused: Refused) -> None:
        """Nothing more is read. Answers with an error, unless that would come in the middle of another answer."""
        self._deaf = True
        self.deadline = NEVER
        broken, self._receiving = self._receiving, None
        active = self._active
        if broken is not None and self._waiting and broken is self._waiting[-1]:
            self._waiting.pop()
        if active is not None and (broken is not active or active.started):
            if broken is active:
                active.abort()
            else:
                (self._waiting[-1] if self._waiting else active).keep_alive = False
        else:
            if active is not None:
                active.lose()
                self._active = None
            body = wire.error_body(refused.message, "invalid_request_error", refused.code) if self.parser.get_method() != b"HEAD" else b""
            head = b"%b\r\n%b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            self.transport.write(head % (wire.STATUS_LINES[refused.status], self.server_state.date, len(body)) + body)
            self._linger()

    def _linger(self) -> None:
        """Closes our side, and all when the client has closed its own or is silent: data that nobody read would reset it, answer and all."""
        self._deaf = True
        self._receiving = None
        self._waiting.clear()
        self.flow.resume_reading()
        now = self.loop.time()
        self._linger_end = now + LINGER_TOTAL_S
        self.deadline = now + LINGER_S
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _close(self) -> None:
        """Closes when all is written; `sweep` sees to it that this comes to an end."""
        self._deaf = True
        self._linger_end = 0.0
        self._unsent_bytes = self.transport.get_write_buffer_size()
        self.deadline = self.loop.time() + self.bounds.flush_s
        self.transport.close()

    def sweep(self, now: float) -> None:
        """Ends what has taken too long. Called about once a second."""
        if now < self.deadline:
            return
        if self._linger_end:
            self._close()
        elif self._deaf:
            unsent_bytes = self.transport.get_write_buffer_size()
            if unsent_bytes >= self._unsent_bytes:
                self.transport.abort()
            self._unsent_bytes = unsent_bytes
            self.deadline = now + self.bounds.flush_s
        elif self._receiving is not None and self.flow.read_paused:
            self.deadline = now + self.bounds.body_idle_s
        elif self._receiving is not None:
            self._refuse(Refused(408, "request_timeout", f"No byte of the body came for {self.bounds.body_idle_s:g} s."))
        elif self._in_head:
            self._refuse(Refused(408, "request_timeout", f"Request line and headers took more than {self.bounds.head_s:g} s."))
        else:
            self._close()

    def shutdown(self) -> None:
        """The server drains: the connection closes after the answer in progress, or now."""
        if self._active is not None:
            self._active.keep_alive = False
        elif not self.transport.is_closing():
            self._close()

    # One exchange after the other.

    def _begin(self, exchange: Exchange) -> None:
        self._active = exchange
        self.server_state.exchanges.add(exchange)
        idle, self._idle = self._idle, None
        if idle is not None and not idle.done():
            idle.set_result(exchange)
        else:
            exchange.task = self.loop.create_task(self._serve(exchange))

    async def _serve(self, exchange: Exchange) -> None:
        """Serves this exchange, and then those that begin while no other task waits for them. Each must leave no context variable set."""
        task = exchange.task
        while True:
            exchange.task = task
            try:
                await self.server_state.handle(exchange)
            except Exception as error:
                # Places only: the text of an exception may quote what a client or a provider sent.
                places = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)]
                raised = type(error).__name__, " < ".join(reversed(places))
                logger.error("the handler of %s %r raised %s: %s", exchange.method, exchange.path, *raised)
            else:
                if not (exchange.finished or exchange.gone):
                    logger.error("the handler of %s %r did not finish its answer", exchange.method, exchange.path)
            finally:
                self.server_state.exchanges.discard(exchange)
                if not exchange.finished:
                    exchange.fail()
            if self._idle is not None or self._deaf:
                return
            self._idle = self.loop.create_future()
            exchange = await self._idle

    def want_body(self) -> None:
        if len(self._waiting) < PIPELINED_MAX:
            self.flow.resume_reading()

    def got_body(self, buffered_bytes: int) -> None:
        if buffered_bytes > HIGH_WATER_BYTES:
            self.flow.pause_reading()

    def answered(self, exchange: Exchange) -> None:
        self._active = None
        if exchange is self._receiving:
            self._linger()
        elif not exchange.keep_alive:
            self._close()
        elif self._waiting:
            self.flow.resume_reading()
            self._begin(self._waiting.popleft())
        elif not self._in_head:
            self.deadline = self.loop.time() + self.bounds.keep_alive_s

    def cut(self, *, reset: bool) -> None:
        self._active = None
        if not reset:
            self._close()
            return
        self._deaf = True
        sock = self.transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.transport.abort()
