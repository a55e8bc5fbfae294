"""A small HTTP proxy on a real socket, in bytes: tunnels (CONNECT) and whole URLs, credentials, and every way in which a proxy may fail.

    proxy = Proxy(credentials=b"me:hunter2")
    async with scripted(proxy.serve) as port: ...      # ssl=... for one that is spoken to in TLS

`certificates` makes an authority and certificates for tests in TLS.
"""

import asyncio
import base64
import contextlib
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

from support_sockets import read_request, scripted

# What a proxy says instead of doing its work, and then whether it closes. `b""` and no close: it hangs.
FAULTS: dict[str, tuple[bytes, bool]] = {
    "403": (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno", False),
    "407": (b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n", False),
    "502": (b"HTTP/1.1 502 Bad Gateway\r\nConnection: close\r\n\r\nno such host", True),
    "closes": (b"", True),
    "hangs": (b"", False),
    "half an answer": (b"HTTP/1.1 200 Connection est", False),
    "half an answer, then closes": (b"HTTP/1.1 200 Connection est", True),
    "garbage": (b"\x15\x03\x01\x00\x02\x02\x28", False),
    "endless headers": (b"HTTP/1.1 200 OK\r\n" + b"X-A: 1\r\n" * 20_000, False),
    "no TLS in the tunnel": (b"HTTP/1.1 200 OK\r\n\r\n" + b"hello" * 100, False),
    "grants, then closes": (b"HTTP/1.1 200 OK\r\n\r\n", True),
    "grants, then hangs": (b"HTTP/1.1 200 OK\r\n\r\n", False),
}


class Proxy:
    """heads: of all that it was asked. fault: one of FAULTS."""

    def __init__(self, *, credentials: bytes = b"", fault: str = "") -> None:
        self.credentials = credentials
        self.fault = fault
        self.heads: list[bytes] = []
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of a client."""
        self.connections += 1
        head, body = await read_request(reader)
        self.heads.append(head)
        if self.fault:
            said, closes = FAULTS[self.fault]
            writer.write(said)
            await writer.drain()
            if not closes:
                await reader.read()
            return
        basic = b"proxy-authorization: Basic " + base64.b64encode(self.credentials)
        if self.credentials and basic not in head.split(b"\r\n"):
            writer.write(FAULTS["407"][0])
            return
        method, target, _ = head.split(b" ", 2)
        where = target if method == b"CONNECT" else target.split(b"/", 3)[2]
        host, _, port = where.decode().rpartition(":")
        origin_reader, origin = await asyncio.open_connection(host, int(port))
        try:
            if method == b"CONNECT":
                writer.write(b"HTTP/1.1 200 Connection established\r\nVia: 1.1 test\r\n\r\n")
                await both_ways(pipe(reader, origin), pipe(origin_reader, writer))
            else:
                await both_ways(self._relay(head, body, reader, origin), pipe(origin_reader, writer))
        finally:
            origin.transport.abort()

    async def _relay(self, head: bytes, body: bytes, reader: asyncio.StreamReader, origin: asyncio.StreamWriter) -> None:
        """Requests with whole URLs, passed on as their origin wants them, without what was meant for the proxy."""
        while True:
            method, target, rest = head.split(b" ", 2)
            lines = [line for line in rest.split(b"\r\n") if not line.startswith(b"proxy-")]
            origin.write(b"%b /%b %b" % (method, target.split(b"/", 3)[3], b"\r\n".join(lines)) + body)
            head, body = await read_request(reader)
            self.heads.append(head)


async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Passes bytes on until there are no more."""
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()


async def both_ways(*ways: object) -> None:
    """Until one of them has ended."""
    tasks = [asyncio.ensure_future(way) for way in ways]  # type: ignore[call-overload]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def in_tls(port: int, context: ssl.SSLContext) -> AsyncIterator[int]:
    """A port at which a plain server is spoken to in TLS."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner = await asyncio.open_connection("127.0.0.1", port)
        try:
            await both_ways(pipe(reader, inner), pipe(inner_reader, writer))
        finally:
            inner.transport.abort()

    async with scripted(serve, ssl=context) as outer:
        yield outer


def certificates(directory: Path) -> Path:
    """An authority (ca.pem), and keys with their certificates for localhost (localhost.pem) and for 127.0.0.1 (address.pem) alone."""
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    _openssl(directory, *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test authority")
    signed = [*key, "-subj", "/CN=x", "-CA", "ca.pem", "-CAkey", "ca.key", "-addext", "basicConstraints=critical,CA:FALSE"]
    for name, subject in (("localhost", "DNS:localhost"), ("address", "IP:127.0.0.1")):
        _openssl(directory, *signed, "-keyout", "key.pem", "-out", "cert.pem", "-addext", f"subjectAltName={subject}")
        (directory / f"{name}.pem").write_text((directory / "key.pem").read_text() + (directory / "cert.pem").read_text())
    return directory


def _openssl(directory: Path, *options: str) -> None:
    subprocess.run(["openssl", "req", "-x509", *options], cwd=directory, check=True, capture_output=True)


def server_tls(file: Path) -> ssl.SSLContext:
    """For a server with a key and certificate."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(file)
    return context
