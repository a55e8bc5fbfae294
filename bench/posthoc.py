"""The baseline of bench/overshoot.py: a proxy that checks a budget, forwards, and charges afterwards. What most gateways are; no part of the product.

Replicas share a counter per key in Redis, so the check is as good as a check can be: only the time between it and the charge is wrong.
"""

import argparse
import asyncio
import re
from urllib.parse import urlsplit

import redis.asyncio
import uvloop

_TOTAL = re.compile(rb'"total_tokens":\s*(\d+)')
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)", re.IGNORECASE)
_KEY = re.compile(rb"\r\nauthorization: bearer (\S+)", re.IGNORECASE)
REFUSAL = b'{"error":{"message":"budget exceeded","type":"budget_error","param":null,"code":"budget_exceeded"}}'
USAGE = b',"stream_options":{"include_usage":true}}'
END = b"0\r\n\r\n"


class Proxy:
    """Serves connections. Idle connections to the upstream are kept."""

    def __init__(self, ledger: "redis.asyncio.Redis", upstream: str, budget: int) -> None:
        self._redis = ledger
        self._budget = budget
        self._upstream = urlsplit(upstream)
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client's connection."""
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = _LENGTH.search(head)
                body = await reader.readexactly(int(length[1])) if length else b""
                await self._answer(head, body, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        if head.startswith(b"GET"):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            return
        found = _KEY.search(head)
        name = b"posthoc:" + (found[1] if found else b"")
        if int(await self._redis.get(name) or 0) >= self._budget and not name.endswith(b"probe"):
            writer.write(b"HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(REFUSAL) + REFUSAL)
            return
        total = await self._forward(body, writer)
        await self._redis.incrby(name, total)

    async def _forward(self, body: bytes, writer: asyncio.StreamWriter) -> int:
        if b'"stream":true' in body:
            body = body[:-1] + USAGE
        if self._idle:
            upstream_reader, upstream = self._idle.pop()
        else:
            upstream_reader, upstream = await asyncio.open_connection(self._upstream.hostname, self._upstream.port)
        line = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        upstream.write(line % len(body) + body)
        head = await upstream_reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        left = int(length[1]) if length else -1
        writer.write(head)
        tail = b""
        while left > 0 or (left < 0 and not tail.endswith(END)):
            data = await upstream_reader.read(65536)
            if not data:
                break
            writer.write(data)
            tail = (tail + data)[-2048:]
            left -= len(data) if left > 0 else 0
        self._idle.append((upstream_reader, upstream))
        totals = _TOTAL.findall(tail)
        return int(totals[-1]) if totals else 0


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--redis", required=True)
    parser.add_argument("--upstream", required=True)
    parser.add_argument("--budget", type=int, required=True)
    options = parser.parse_args()
    proxy = Proxy(redis.asyncio.Redis.from_url(options.redis), options.upstream, options.budget)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", options.port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
