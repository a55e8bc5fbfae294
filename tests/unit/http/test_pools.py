"""The pools of a worker through changes of its providers, with servers that keep their connections."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sluicegate.core.tenants import Provider, Timeouts
from sluicegate.http.pools import Pools
from sluicegate.http.upstream import Pool

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


class Origin:
    """A server that answers when it is told to, on connections that it counts."""

    def __init__(self) -> None:
        self.connections = 0
        self.open = 0
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        try:
            while await reader.readline():
                await reader.readuntil(b"\r\n\r\n")
                writer.write(ANSWER)
                await self.go_on.wait()
                writer.write(b"ok")
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            writer.close()


@pytest.fixture
async def origins() -> AsyncIterator[Any]:
    made = [Origin(), Origin()]
    servers = [await asyncio.start_server(one.serve, "127.0.0.1", 0) for one in made]
    urls = [f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1" for server in servers]
    yield made, urls
    for server in servers:
        server.close()


def provider(url: str, name: str = "p", header: bytes = b"a") -> Provider:
    return Provider(name, "openai_chat", url, ((b"authorization", header),))


async def gone(origin: Origin) -> None:
    """Until it has no connection."""
    async with asyncio.timeout(30):
        while origin.open:  # noqa: ASYNC110  (nothing to wait for)
            await asyncio.sleep(0.001)


async def ask(pool: Pool) -> bytes:
    call = pool.begin(b"GET", b"/", (), b"", Timeouts())
    await call.start()
    return await call.read()


async def test_a_provider_that_stays_where_it_is_keeps_its_connections(origins: Any) -> None:
    """Whatever else of it has changed; requests that began before share them."""
    (origin, _), (url, _) = origins
    before, after = provider(url), provider(url, header=b"b")
    pools = Pools([before])
    await ask(pools.of(before))
    pools.apply([after, provider(url, "other")])
    assert pools.of(after) is pools.of(before)
    await ask(pools.of(after))
    assert origin.connections == 1
    await pools.close()


async def test_a_provider_that_moves_is_left_at_the_end_of_its_calls(origins: Any) -> None:
    """What is under way ends well, idle connections are closed at once; who began before still calls the old place, with its credential."""
    (one, two), (url, other_url) = origins
    before, after = provider(url), provider(other_url)
    pools = Pools([before])
    pool = pools.of(before)
    await asyncio.gather(ask(pool), ask(pool))
    one.go_on.clear()
    call = pool.begin(b"GET", b"/", (), b"", Timeouts())
    await call.start()
    pools.apply([after])
    assert (pool.busy, pools.of(before), pools.of(after) is pool) == (True, pool, False)
    one.go_on.set()
    assert await call.read() == b"ok"
    await gone(one)
    assert (await ask(pools.of(after)), two.connections) == (b"ok", 1)
    assert await ask(pools.of(before)) == b"ok"
    await gone(one)
    pools.apply([after])
    assert list(pools.values()) == [pools.of(after)]
    await pools.close()


async def test_a_provider_that_is_gone_can_still_be_asked(origins: Any) -> None:
    """By requests that began while it was there, even if nothing of it is left; nothing is kept of that."""
    (origin, _), (url, _) = origins
    pools = Pools([])
    assert await ask(pools.of(provider(url))) == b"ok"
    assert pools.of(provider(url)) is pools.of(provider(url))
    await gone(origin)
    await pools.close()


async def test_a_provider_that_cannot_be_called_changes_nothing(origins: Any, tmp_path: Path) -> None:
    """An authority's file that is not there is told with its field."""
    _, (url, _) = origins
    pools = Pools([provider(url)])
    before = list(pools.values())
    with pytest.raises(ValueError, match=r"providers\.q\.ca_file: .*No such file"):
        pools.apply([Provider("q", "openai_chat", "https://127.0.0.1:9/v1", (), ca_file=f"{tmp_path}/none.pem")])
    assert list(pools.values()) == before
    await pools.close()
