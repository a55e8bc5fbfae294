"""The pool through a real proxy, with asyncio's loop and uvloop: tunnels, TLS in TLS, whole URLs, and proxies that fail; then a whole gateway."""

import asyncio
import contextlib
import json
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import uvloop

from sluicegate.config.proxies import parse_proxy
from sluicegate.core.tenants import Timeouts
from sluicegate.http.upstream import Call, Pool, UpstreamError
from support_gateway import Gateway, Mock, call, running_gateway
from support_inloop import chunk, framed, request, sse, usage_chunk
from support_proxy import FAULTS, Proxy, in_tls, server_tls
from support_sockets import Script, on_both_loops, read_request, scripted
from support_time import undisturbed

OK = b"HTTP/1.1 200 OK\r\n"
ME = b"me:hunter2"
USAGE = {"prompt_tokens": 9, "completion_tokens": 33}
WAYS = [(secure, proxy_secure) for secure in (False, True) for proxy_secure in (False, True)]
each_way = pytest.mark.parametrize(("secure", "proxy_secure"), WAYS, ids=["http by http", "http by https", "https by http", "https by https"])


class Origin:
    """Answers with the body that it was sent."""

    def __init__(self) -> None:
        self.heads: list[bytes] = []
        self.closed = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head, body = await read_request(reader)
                self.heads.append(head)
                writer.write(OK + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        finally:
            self.closed += 1


@contextlib.asynccontextmanager
async def through(
    proxy: Proxy,
    certificates: Path,
    secure: bool,
    proxy_secure: bool,
    *,
    proxy_certificate: str = "address.pem",
    host: str = "localhost",
    serve: Script | None = None,
) -> AsyncIterator[tuple[Pool, Origin]]:
    """A pool and its origin. The origin is `localhost`, the proxy `127.0.0.1`: neither has the other's certificate."""
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)  # the peers' own complaints about refused handshakes
    origin = Origin()
    origin_tls = server_tls(certificates / "localhost.pem") if secure else None
    proxy_tls = server_tls(certificates / proxy_certificate) if proxy_secure else None
    async with scripted(serve or origin.serve, ssl=origin_tls) as origin_port, scripted(proxy.serve, ssl=proxy_tls) as proxy_port:
        setting = parse_proxy(f"http{'s' * proxy_secure}://{ME.decode()}@127.0.0.1:{proxy_port}")
        pool = Pool(f"http{'s' * secure}://{host}:{origin_port}/v1", ca_file=str(certificates / "ca.pem"), proxy=setting)
        try:
            yield pool, origin
        finally:
            await pool.close()


async def run(pool: Pool, body: bytes = b"{}", connect_ms: int = 2000) -> tuple[Call, bytes]:
    started = pool.begin(b"POST", b"/chat", ((b"authorization", b"Bearer sk-origin"),), body, Timeouts(connect_ms=connect_ms))
    try:
        await started.start()
        data = b""
        while piece := await started.read():
            data += piece
        return started, data
    finally:
        started.close()


@each_way
@on_both_loops
async def test_calls_through_a_proxy(certificates: Path, secure: bool, proxy_secure: bool) -> None:
    """Bodies of any size go and come unharmed over one connection that is kept; credentials go where they belong and nowhere else."""
    proxy = Proxy(credentials=ME)
    async with through(proxy, certificates, secure, proxy_secure) as (pool, origin):
        for body in (b"hello", b"", b"x" * 3_000_000, b"hello"):
            assert (await run(pool, body))[1] == body
        assert (proxy.connections, len(origin.heads), len(proxy.heads)) == (1, 4, 1 if secure else 4)
        assert all(head.startswith(b"POST /v1/chat HTTP/1.1\r\n") and b"proxy" not in head and b"sk-origin" in head for head in origin.heads)
        if secure:
            assert proxy.heads[0].startswith(b"CONNECT localhost:")
            assert b"sk-origin" not in proxy.heads[0] and b"/v1" not in proxy.heads[0]


@each_way
@on_both_loops
async def test_many_calls_at_once(certificates: Path, secure: bool, proxy_secure: bool) -> None:
    """Each gets its own answer, over at most as many connections as calls."""
    proxy = Proxy(credentials=ME)
    async with through(proxy, certificates, secure, proxy_secure) as (pool, origin):
        for _ in range(3):
            bodies = [b"call %d" % n * 1000 for n in range(10)]
            answers = await asyncio.gather(*(run(pool, body) for body in bodies))
            assert [data for _, data in answers] == bodies
        assert proxy.connections <= 10
        await pool.close()
        async with asyncio.timeout(30):
            while origin.closed < proxy.connections:  # noqa: ASYNC110  (on the other side of a socket)
                await asyncio.sleep(0.01)


@each_way
@on_both_loops
async def test_other_credentials(certificates: Path, secure: bool, proxy_secure: bool) -> None:
    """A proxy that wants others is a failure to connect; the origin is never asked."""
    proxy = Proxy(credentials=b"other:one")
    async with through(proxy, certificates, secure, proxy_secure) as (pool, origin):
        for _ in range(2):
            with pytest.raises(UpstreamError, match="407") as caught:
                await run(pool)
            assert (caught.value.reason, caught.value.written) == ("connect", False)
        assert origin.heads == []
        proxy.credentials = ME
        assert (await run(pool, b"hello"))[1] == b"hello"


@pytest.mark.parametrize("fault", FAULTS)
@on_both_loops
async def test_a_proxy_that_fails(certificates: Path, fault: str) -> None:
    """Whatever it does to a CONNECT, in plain and in TLS: a failure within the limit of a connection, and nothing written."""
    for proxy_secure in (False, True):
        proxy = Proxy(fault=fault)
        async with through(proxy, certificates, True, proxy_secure) as (pool, origin):
            started = undisturbed()
            with pytest.raises(UpstreamError) as caught:
                await run(pool, connect_ms=500)
            assert caught.value.written is False
            assert caught.value.reason == "connect" or (caught.value.reason == "tls" and fault == "no TLS in the tunnel")
            assert undisturbed() - started < 1.2
            assert origin.heads == []


@on_both_loops
async def test_names_are_verified_on_both_hops(certificates: Path) -> None:
    """A proxy with another's certificate is a failure to connect, an origin with one is a failure of its TLS; neither is sent a request."""
    proxy = Proxy(credentials=ME)
    async with through(proxy, certificates, True, True, proxy_certificate="localhost.pem") as (pool, origin):
        with pytest.raises(UpstreamError, match="TLS with the proxy") as caught:
            await run(pool)
        assert (caught.value.reason, proxy.heads) == ("connect", [])
    for proxy_secure in (False, True):
        async with through(Proxy(credentials=ME), certificates, True, proxy_secure, host="127.0.0.1") as (pool, origin):
            with pytest.raises(UpstreamError) as caught:
                await run(pool)
            assert (caught.value.written, origin.heads) == (False, [])
            # In TLS inside TLS, asyncio of Python 3.11 stumbles over the failure that it is to report.
            assert caught.value.reason == "tls" or (proxy_secure and not isinstance(asyncio.get_running_loop(), uvloop.Loop))


@on_both_loops
async def test_no_proxy_listens() -> None:
    """A failure to connect."""
    async with scripted(lambda reader, writer: asyncio.sleep(0)) as port:
        pass
    for url in ("http://localhost:1", "https://localhost:1"):
        pool = Pool(url, proxy=parse_proxy(f"127.0.0.1:{port}"))
        with pytest.raises(UpstreamError, match=f"the proxy 127.0.0.1:{port}") as caught:
            await run(pool)
        assert (caught.value.reason, caught.value.written) == ("connect", False)
        await pool.close()


@each_way
@on_both_loops
async def test_close_reaches_the_origin_at_once(certificates: Path, secure: bool, proxy_secure: bool) -> None:
    """In the middle of an endless answer, through every layer; and pausing holds the origin back."""
    closed = asyncio.Event()
    written = 0

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await read_request(reader)
        writer.write(OK + b"Transfer-Encoding: chunked\r\n\r\n")
        try:
            while True:
                writer.write(b"10000\r\n" + b"x" * 65_536 + b"\r\n")
                await writer.drain()
                written += 65_536
        finally:
            closed.set()

    async with through(Proxy(credentials=ME), certificates, secure, proxy_secure, serve=endless) as (pool, _):
        endless_call = pool.begin(b"GET", b"/", [], b"", Timeouts())
        await endless_call.start()
        endless_call.pause()
        await asyncio.sleep(0.3)
        before = written
        await asyncio.sleep(0.1)
        assert written - before < 1_000_000
        endless_call.resume()
        assert await endless_call.read()
        endless_call.close()
        async with asyncio.timeout(30):
            await closed.wait()


# -- a whole gateway ----------------------------------------------------------------------------------------------------------------------

CONFIG = """
server: {{listen: "127.0.0.1:0"}}
ledger: memory://
records: sqlite:///{directory}/records.db
journal: {directory}/journal/
providers:
{providers}
models:
{models}
tenants:
  acme: {{keys: [{keys}]}}
resilience: {{timeouts: {{connect: 2s}}}}
"""


@contextlib.asynccontextmanager
async def gateway(directory: Path, providers: dict[str, str], routes: dict[str, list[str]], environ: dict[str, str]) -> AsyncIterator[Gateway]:
    """A gateway process whose environment is read from a file; a key of 1M tokens a day for each model."""
    lines = "".join(f"{name}={value}\n" for name, value in environ.items())
    (directory / "env").write_text(lines)
    text = CONFIG.format(
        directory=directory,
        providers="\n".join(f"  {name}: {{provider: mock, api_key: sk-origin, {fields}}}" for name, fields in providers.items()),
        models="\n".join(
            f"  {name}: {{deployments: [{', '.join(f'{{provider: {one}, model: {name}, price: {{input: 0.5, output: 1.0}}}}' for one in route)}]}}"
            for name, route in routes.items()
        ),
        keys=", ".join(f"{{name: {name}, key: sk-{name}, limits: [1M tokens/day]}}" for name in routes),
    )
    async with contextlib.AsyncExitStack() as stack:
        running = running_gateway(directory, text, arguments=("--env-file", str(directory / "env")))
        started = await asyncio.to_thread(running.__enter__)
        stack.push_async_exit(lambda *error: asyncio.to_thread(running.__exit__, *error))
        yield started


async def ask(gateway: Gateway, model: str, **fields: object) -> tuple[int, bytes]:
    body = {"model": model, "messages": [{"role": "user", "content": "Tell me"}], "max_tokens": 50, **fields}
    status, _, answer = await asyncio.to_thread(call, f"{gateway.url}/v1/chat/completions", body, f"sk-{model}")
    return status, answer


async def used(gateway: Gateway, model: str) -> int:
    """Tokens, once nothing is held."""
    while True:
        limit = json.loads((await asyncio.to_thread(call, f"{gateway.url}/v1/usage", key=f"sk-{model}"))[2])["limits"][0]
        if not limit["held"]:
            return int(limit["used"])


async def test_a_gateway_behind_proxies(tmp_path: Path, certificates: Path, mock: Mock) -> None:
    """By the environment or its own field each provider has its way, streams and unary; what is charged is what was produced."""
    plain, secure, own = Proxy(credentials=ME), Proxy(credentials=ME), Proxy()
    mock_port = int(mock.url.rpartition(":")[2])
    address = server_tls(certificates / "address.pem")
    async with contextlib.AsyncExitStack() as stack:
        plain_port = await stack.enter_async_context(scripted(plain.serve))
        secure_port = await stack.enter_async_context(scripted(secure.serve, ssl=address))
        own_port = await stack.enter_async_context(scripted(own.serve))
        tls_port = await stack.enter_async_context(in_tls(mock_port, server_tls(certificates / "localhost.pem")))
        at, at_tls = f'base_url: "{mock.url}/v1"', f'base_url: "https://localhost:{tls_port}/v1", ca_file: "{certificates}/ca.pem"'
        providers = {"plain": at, "secure": at_tls, "own": f'{at_tls}, proxy: "http://127.0.0.1:{own_port}"', "direct": f"{at}, proxy: off"}
        environ = {
            "http_proxy": f"http://{ME.decode()}@127.0.0.1:{plain_port}",
            "HTTPS_PROXY": f"https://{ME.decode()}@127.0.0.1:{secure_port}",
            "NO_PROXY": "example.com",
        }
        served = await stack.enter_async_context(gateway(tmp_path, providers, {name: [name] for name in providers}, environ))
        for name in providers:
            before = mock.total()
            for stream in (False, True, True, False):
                status, answer = await ask(served, name, stream=stream)
                assert status == 200 and (not stream or answer.endswith(b"data: [DONE]\n\n"))
            made = {field: total - before[field] for field, total in mock.total().items()}
            assert await used(served, name) == made["prompt_tokens"] + made["completion_tokens"]
        assert (len(plain.heads), secure.heads[0][:8], own.heads[0][:8]) == (4, b"CONNECT ", b"CONNECT ")
        assert (secure.connections, own.connections) == (1, 1)
        assert b"sk-origin" in plain.heads[0] and b"sk-origin" not in secure.heads[0] + own.heads[0]
        assert "hunter2" not in served.logged()


@pytest.mark.parametrize("fault", ["407", "502", "closes", "hangs", "garbage"])
async def test_a_gateway_whose_proxy_fails(tmp_path: Path, certificates: Path, mock: Mock, fault: str) -> None:
    """The next deployment answers and is all that is charged; without one the client is told, and nothing is charged."""
    proxy = Proxy(fault=fault)
    async with contextlib.AsyncExitStack() as stack:
        port = await stack.enter_async_context(scripted(proxy.serve))
        providers = {
            "walled": f'base_url: "https://localhost:1/v1", proxy: "127.0.0.1:{port}"',
            "relayed": f'base_url: "{mock.url}/v1", proxy: "127.0.0.1:{port}"',
            "direct": f'base_url: "{mock.url}/v1"',
        }
        routes = {"both": ["walled", "direct"], "alone": ["walled"], "relays": ["relayed"]}
        served = await stack.enter_async_context(gateway(tmp_path, providers, routes, {}))
        before = mock.total()
        assert [(await ask(served, "both", stream=stream))[0] for stream in (False, True)] == [200, 200]
        made = {field: total - before[field] for field, total in mock.total().items()}
        assert await used(served, "both") == made["prompt_tokens"] + made["completion_tokens"]
        refused = [*("alone" for _ in range(2)), *("relays" for _ in range(fault == "407"))]
        for name in refused:
            status, answer = await ask(served, name)
            assert (status, json.loads(answer)["error"]["code"]) == (502, "upstream_error")
            assert await used(served, name) == 0
        assert len(proxy.heads) >= len(refused) + 2


# -- compressed answers through a whole gateway -------------------------------------------------------------------------------------------


def squeezed(pieces: list[bytes], wbits: int) -> list[bytes]:
    """Compressed and flushed piece by piece."""
    compressor = zlib.compressobj(wbits=wbits)
    flushed = [compressor.compress(piece) + compressor.flush(zlib.Z_SYNC_FLUSH) for piece in pieces]
    return [*flushed, compressor.flush()]


@pytest.mark.parametrize(("coding", "wbits"), [("gzip", 31), ("x-gzip", 31), ("deflate", 15), ("deflate", -15)])
async def test_a_gateway_in_front_of_one_who_compresses(tmp_path: Path, coding: str, wbits: int) -> None:
    """Case 86: each event arrives before the next is sent; usage in the last one is charged exactly; unary answers and errors are read, too."""
    events = [sse(chunk(f"word {n} ")) for n in range(20)] + [sse(chunk(finish="stop"), usage_chunk(9, 33), None)]
    unary = json.dumps({"choices": [{"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}], "usage": USAGE}).encode()
    error = b'{"error": {"message": "too long", "type": "invalid_request_error", "code": "context_length_exceeded"}}'
    arrived = asyncio.Event()

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head, body = await read_request(reader)
            assert b"accept-encoding: identity" in head
            asked = json.loads(body)
            kind, status = ("text/event-stream", 200) if asked.get("stream") else ("application/json", 400 if asked.get("seed") else 200)
            lines = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-encoding: {coding}\r\ntransfer-encoding: chunked\r\n\r\n"
            writer.write(lines.encode())
            for n, piece in enumerate(squeezed(events if asked.get("stream") else [error if asked.get("seed") else unary], wbits)):
                writer.write(framed(piece))
                if asked.get("stream") and n < 20:
                    arrived.clear()
                    async with asyncio.timeout(30):
                        await arrived.wait()
            writer.write(framed(b"", last=True))

    async with contextlib.AsyncExitStack() as stack:
        port = await stack.enter_async_context(scripted(upstream))
        served = await stack.enter_async_context(gateway(tmp_path, {"up": f'base_url: "http://127.0.0.1:{port}/v1"'}, {"chat": ["up"]}, {}))
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        body = json.dumps({"model": "chat", "messages": [{"role": "user", "content": "Tell me"}], "stream": True, "max_tokens": 50}).encode()
        writer.write(request(body, "sk-chat"))
        for n in range(20):
            async with asyncio.timeout(30):
                await reader.readuntil(b"word %d " % n)
            arrived.set()
        assert await reader.readuntil(b"0\r\n\r\n")
        writer.close()
        assert await used(served, "chat") == 42
        status, answer = await ask(served, "chat")
        assert (status, json.loads(answer)) == (200, json.loads(unary))
        assert await used(served, "chat") == 84
        status, answer = await ask(served, "chat", seed=1)
        assert (status, json.loads(answer)["error"]["message"]) == (400, "too long")
        assert await used(served, "chat") == 84
