"""One connection to an upstream: requests out, answers in, one call at a time. Only upstream.py uses it.

What one socket read delivers is parsed at once, and whoever waits is woken once. The pieces of a body go from the parser straight into `chunks`,
without a Python frame for each. Those of a compressed answer are decoded between two reads, one step (decoding.py) at a time: the next when the
last has been taken. Nothing of that is on the path of an answer that is not compressed.

Invariant: after a call has ended, no byte that comes is anyone's: while no call is attached, whatever arrives closes the connection, and bytes behind
the end of an answer do too.
"""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Literal, Protocol

import httptools

from sluicegate.http import wire
from sluicegate.http.decoding import CodingError, Decoder, decoder_of

INTERIM_MAX = 16  # answers with a 1xx status before the real one


class Call(Protocol):
    """What a connection tells of a call."""

    stirred: bool  # a piece of the answer came since the timer looked last
    bodiless: bool  # asked with HEAD

    def answered(self, status: int, headers: dict[bytes, bytes]) -> None: ...  # the head is complete
    def wake(self) -> None: ...  # something came, or may be written again
    def end(self) -> None: ...  # the answer is whole
    def broken(self, message: str, reason: Literal["protocol", "incomplete"] = "protocol") -> None: ...  # not HTTP, not decodable, or not asked for
    def refused(self, message: str) -> None: ...  # a proxy on the way did not pass it on
    def lost(self, error: Exception | None) -> None: ...  # the connection closed first


class Owner(Protocol):
    """What a connection needs of its pool."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    def keep(self, connection: "OriginConnection") -> None: ...
    def forget(self, connection: "OriginConnection") -> None: ...


class _Refused(Exception):
    """Raised through the parser to stop it; its text says why."""


class _Decoded(list[bytes]):
    """Decoded pieces of a body. That they have been taken is how more comes to be decoded."""

    __slots__ = ("on_taken",)

    def __init__(self, on_taken: Callable[[], None]) -> None:
        self.on_taken = on_taken

    def clear(self) -> None:
        super().clear()
        self.on_taken()


class OriginConnection(asyncio.Protocol):
    """A connection of a pool."""

    __slots__ = (
        *("call", "chunks", "idle_since", "on_body", "reused", "touched", "transport", "unsent", "write_paused"),
        *("_came", "_complete", "_decoder", "_feed", "_headers", "_interim", "_interims", "_owner", "_parser", "_quiet_bytes", "_repeats"),
        *("_reusable", "_until_close"),
    )

    def __init__(self, owner: Owner) -> None:
        self.call: Call | None = None
        self.chunks: list[bytes] = []
        self.on_body = self.chunks.append
        self._came = self.chunks  # what the parser gives; `chunks` are others while it is decoded
        self._decoder: Decoder | None = None
        self.idle_since = 0.0
        self.reused = False  # has served a call before
        self.touched = False  # a byte came during this call
        self.unsent = False  # not all of the request has been written yet
        self.write_paused = False
        self.transport: asyncio.Transport
        self._owner = owner
        self._headers: dict[bytes, bytes] = {}
        self._repeats = 0
        self._quiet_bytes = 0  # since the call began, its headers ended, or a piece of its body came
        self._interim = False
        self._interims = 0
        self._until_close = False
        self._complete = False
        self._reusable = True
        self._parser = httptools.HttpResponseParser(self)
        self._feed = self._parser.feed_data

    def attach(self, call: Call) -> None:
        """Serves a call from now on."""
        self.call = call
        self.touched = self.unsent = self._complete = self._until_close = False
        self._reusable = True
        self._quiet_bytes = self._interims = 0

    def detach(self) -> bytes:
        """Serves it no more; returns what is left unread."""
        self.call = None
        data = b"".join(self.chunks)
        self.chunks.clear()
        if self._decoder is not None:
            data += self._decoded_last()
        return data

    # The transport's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def pause_writing(self) -> None:
        self.write_paused = True

    def resume_writing(self) -> None:
        self.write_paused = False
        if self.call is not None:
            self.call.wake()

    def data_received(self, data: bytes) -> None:
        call = self.call
        if call is None:
            self.transport.abort()
            return
        self.touched = True
        try:
            self._feed(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._reusable = False
            if not self._complete:
                call.broken(str(error.__context__ or error) if isinstance(error.__context__, _Refused) else f"not HTTP: {error}")
                return
        if self._complete:
            self._release(call)
        elif self.chunks or self._decode():
            self._quiet_bytes = 0
            call.stirred = True
            call.wake()
        else:
            self._quiet_bytes += len(data)
            if self._quiet_bytes > wire.HEAD_BYTES_MAX:
                call.broken(f"more than {wire.HEAD_BYTES_MAX} bytes of headers")

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.forget(self)
        call = self.call
        if call is not None:
            if self._complete or (self._until_close and exc is None):
                self._reusable = False
                self._release(call)
            else:
                call.lost(exc)
        del self._parser, self._feed  # they refer to this object

    def _release(self, call: Call) -> None:
        self._complete = True
        if self._decoder is not None and not self._decoded_all(self._decoder, call):
            return
        call.end()
        if self._reusable and not self.unsent and not self.transport.is_closing():
            self.reused = True
            self._owner.keep(self)
        else:
            self.transport.close()

    # Compressed answers.

    def _decode(self) -> bool:
        """Decodes a step of what came, if the last one has been taken; whether there is something to take. Corrupt data breaks the call."""
        decoder, call = self._decoder, self.call
        if decoder is not None and call is not None and not self.chunks:
            decoder.feed(self._came)
            self._came.clear()
            try:
                data = decoder.step()
            except CodingError as error:
                self.chunks.append(error.before)
                self._decoder = None
                call.broken(str(error))
                return False
            if data:
                self.chunks.append(data)
        return bool(self.chunks)

    def _decoded_all(self, decoder: Decoder, call: Call) -> bool:
        """Whether a body that has come whole is decoded to its end. If not, that goes on when what there is has been taken, or the call is broken."""
        self._decode()
        if self.call is None:
            return False
        if self._came or decoder.pending:
            call.stirred = True
            call.wake()
            return False
        if not decoder.finished:
            call.broken("the compressed answer ends early", "incomplete")
            return False
        return True

    def _taken(self) -> None:
        if self.call is not None and self._decoder is not None and (self._came or self._decoder.pending):
            self._owner.loop.call_soon(self._decode_on)

    def _decode_on(self) -> None:
        call = self.call
        if call is None:
            return
        if self._complete:
            self._release(call)
        elif self._decode():
            call.stirred = True
            call.wake()

    def _decoded_last(self) -> bytes:
        """A step of what a call that ends has not seen, since that may be metered; the next call's bytes are plain."""
        decoder, self._decoder = self._decoder, None
        assert decoder is not None
        decoder.feed(self._came)
        self._came.clear()
        self.chunks = self._came
        try:
            return decoder.step()
        except CodingError as error:
            return error.before

    # The parser's side.

    def on_message_begin(self) -> None:
        if self._complete:
            raise _Refused("bytes behind the end of the answer")
        self._headers = {}
        self._repeats = 0
        self._interim = False

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        headers = self._headers
        if name not in headers:
            headers[name] = value.rstrip()
            return
        self._repeats += 1
        if self._repeats > wire.HEAD_COUNT_MAX:
            raise _Refused("too many headers")
        headers[name] = b"%b, %b" % (headers[name], value.rstrip())

    def on_headers_complete(self) -> None:
        call, headers, parser = self.call, self._headers, self._parser
        assert call is not None
        status = parser.get_status_code()
        if len(headers) + self._repeats > wire.HEAD_COUNT_MAX:
            raise _Refused("too many headers")
        if status < 200:
            self._interims += 1
            if status < 100 or status == 101 or self._interims > INTERIM_MAX:
                raise _Refused(f"a status {status} that nobody asked for")
            self._interim = True
            return
        if not parser.should_keep_alive() and parser.get_http_version() not in ("1.1", "1.0"):
            raise _Refused("a version of HTTP other than 1.0 and 1.1")
        if (encoding := headers.get(b"content-encoding")) is not None:
            self._decoder = self._decoder_of(encoding)
        coding = headers.get(b"transfer-encoding")
        if coding is not None and coding.lower() != b"chunked":
            raise _Refused("a transfer encoding other than chunked")
        self._quiet_bytes = 0
        self._headers = {}  # trailers are nobody's
        self._until_close = coding is None and b"content-length" not in headers and status not in (204, 304)
        call.answered(status, headers)
        if call.bodiless:
            self._complete = True
            raise _Refused("the parser would wait for a body")

    def _decoder_of(self, encoding: bytes) -> Decoder | None:
        try:
            decoder = decoder_of(encoding)
        except CodingError as error:
            raise _Refused(str(error)) from None
        if decoder is not None:
            self.chunks = _Decoded(self._taken)
        return decoder

    def on_message_complete(self) -> None:
        if self._interim:
            return
        self._complete = True
        if not self._parser.should_keep_alive():
            self._reusable = False


class RelayedConnection(OriginConnection):
    """A connection to a proxy that is told whole URLs. Its wish for credentials is its own answer; every other may be the origin's."""

    __slots__ = ()

    def on_headers_complete(self) -> None:
        if self._parser.get_status_code() == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED and self.call is not None:
            self.call.refused("the proxy wants other credentials (407)")
            raise _Refused("not an answer of the origin")
        super().on_headers_complete()
