"""How a connection to an origin comes about: straight, or through an HTTP proxy (RFC 9110, 9.3.6 and 7.1). Only upstream.py uses it.

    Direct      TCP, and TLS with the origin where its URL says https
    Relayed     an http origin through a proxy, which is sent whole URLs and its credentials with each request
    Tunnelled   an https origin through a proxy, which is asked to CONNECT once; then TLS with the origin, verified as ever

The proxy's credentials go to the proxy alone, and nothing meant for the origin goes into a CONNECT. A proxy may be spoken to in TLS; then the
origin's runs inside of it. Who waits for `connect` limits its time and cancels it. Fails with OSError where there is no connection, which includes a
proxy that refuses, closes, or answers what is no answer, and with ssl.SSLError where the origin's TLS fails: no byte of a request has been written.
"""

import asyncio
import re
import ssl
from functools import lru_cache
from typing import Protocol, TypeVar
from urllib.parse import SplitResult

from sluicegate.core.tenants import Proxy
from sluicegate.http import wire
from sluicegate.http.origin import INTERIM_MAX, OriginConnection, Owner, RelayedConnection

_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: [^\r\n]*)?\r\n")
_BEGINNING = b"HTTP/1."
_GARBAGE = "answered what is no answer to a CONNECT"
_CLOSED = "closed the connection"

_P = TypeVar("_P", bound=asyncio.Protocol)


class Route(Protocol):
    """One origin, and the way to it."""

    target: bytes  # in front of the path in a request line
    lines: tuple[bytes, ...]  # headers for the proxy

    async def connect(self, owner: Owner) -> OriginConnection: ...


@lru_cache
def _tls(ca_file: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca_file or None)
    context.set_alpn_protocols(["http/1.1"])
    return context


@lru_cache
def _tls_of_proxy(ca_file: str) -> ssl.SSLContext:
    """Trusts what the machine trusts, too: a proxy and a provider seldom have the same authority."""
    context = ssl.create_default_context()
    if ca_file:
        context.load_verify_locations(ca_file)
    context.set_alpn_protocols(["http/1.1"])
    return context


def route(origin: SplitResult, ca_file: str, proxy: Proxy | None) -> Route:
    """The way to the origin of a URL."""
    secure = origin.scheme == "https"
    host, port = origin.hostname or "", origin.port or (443 if secure else 80)
    tls = _tls(ca_file) if secure else None
    if proxy is None:
        return Direct(host, port, tls)
    hop = Hop(proxy, ca_file)
    return Relayed(hop, in_ascii(origin.netloc)) if tls is None else Tunnelled(hop, host, port, tls)


def in_ascii(host: str) -> bytes:
    """A host, perhaps with its port, as it is sent."""
    return host.encode("ascii" if host.isascii() else "idna")


class Direct:
    """No proxy."""

    target = b""
    lines: tuple[bytes, ...] = ()

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        self._host = host
        self._port = port
        self._tls = tls

    async def connect(self, owner: Owner) -> OriginConnection:
        name = self._host if self._tls else None
        _, connection = await owner.loop.create_connection(
            lambda: OriginConnection(owner), self._host, self._port, ssl=self._tls, server_hostname=name
        )
        return connection


class Hop:
    """The connection to a proxy."""

    def __init__(self, proxy: Proxy, ca_file: str) -> None:
        self._proxy = proxy
        self._tls = _tls_of_proxy(ca_file) if proxy.secure else None
        self.name = f"the proxy {proxy.name}"
        self.lines: tuple[bytes, ...] = (b"proxy-authorization: " + proxy.authorization,) if proxy.authorization else ()

    async def connect(self, loop: asyncio.AbstractEventLoop, protocol: _P) -> _P:
        """Lets a protocol speak to the proxy. A certificate that is not the proxy's is a failure to connect, not one of the origin's TLS."""
        host = self._proxy.host
        try:
            await loop.create_connection(lambda: protocol, host, self._proxy.port, ssl=self._tls, server_hostname=host if self._tls else None)
        except ssl.SSLError as error:
            raise ConnectionError(f"TLS with {self.name}: {error}") from None
        except OSError as error:
            raise ConnectionError(f"{self.name}: {error}") from None
        return protocol


class Relayed:
    """An http origin through a proxy."""

    def __init__(self, hop: Hop, authority: bytes) -> None:
        self._hop = hop
        self.target = b"http://" + authority
        self.lines = hop.lines

    async def connect(self, owner: Owner) -> OriginConnection:
        return await self._hop.connect(owner.loop, RelayedConnection(owner))


class Tunnelled:
    """An https origin through a proxy."""

    target = b""
    lines: tuple[bytes, ...] = ()

    def __init__(self, hop: Hop, host: str, port: int, tls: ssl.SSLContext) -> None:
        self._hop = hop
        self._host = host
        self._tls = tls
        where = b"%b:%d" % (f"[{host}]".encode() if ":" in host else in_ascii(host), port)
        self._asking = b"\r\n".join((b"CONNECT %b HTTP/1.1" % where, b"host: " + where, *hop.lines, b"", b""))

    async def connect(self, owner: Owner) -> OriginConnection:
        loop, connection = owner.loop, OriginConnection(owner)
        asking = await self._hop.connect(loop, _Asking(loop.create_future()))
        transport = asking.transport
        try:
            transport.write(self._asking)
            if (refusal := await asking.refusal) or transport.is_closing():
                raise ConnectionError(f"{self._hop.name} {refusal or _CLOSED}")
            connection.connection_made(transport)  # what should come before TLS is ready closes it
            inner = await loop.start_tls(transport, connection, self._tls, server_hostname=self._host)
            if inner is None:
                raise ConnectionError(f"{self._hop.name} {_CLOSED}")
        except BaseException:
            transport.abort()
            raise
        connection.connection_made(inner)
        return connection


class _Asking(asyncio.Protocol):
    """The proxy's answer to a CONNECT: a head that says yes, and not a byte behind it, since with TLS it is for us to speak first."""

    def __init__(self, refusal: "asyncio.Future[str]") -> None:
        self.refusal = refusal  # why there is no tunnel; "" if there is
        self.transport: asyncio.Transport
        self._head = b""
        self._interims = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        if self.refusal.done():
            self.transport.abort()
            return
        self._head += data
        while b"\r\n\r\n" in self._head and not self.refusal.done():
            head, _, self._head = self._head.partition(b"\r\n\r\n")
            self._read(head + b"\r\n")
        if len(self._head) > wire.HEAD_BYTES_MAX or not _BEGINNING.startswith(self._head[: len(_BEGINNING)]):
            self._answer(_GARBAGE)

    def _read(self, head: bytes) -> None:
        found = _STATUS.match(head)
        status = int(found[1]) if found else 0
        if 100 <= status < 200 and status != 101 and self._interims < INTERIM_MAX:
            self._interims += 1
        elif 200 <= status < 300:
            self._answer(_GARBAGE if self._head else "")
        else:
            self._answer(f"answered {status}" if status >= 300 else _GARBAGE)

    def connection_lost(self, exc: Exception | None) -> None:
        self._answer(f"{_CLOSED}: {exc}" if exc is not None else _CLOSED)

    def _answer(self, refusal: str) -> None:
        if not self.refusal.done():
            self.refusal.set_result(refusal)
