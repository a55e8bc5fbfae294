"""`Idempotency-Key` against real gateways: two of them with one store, and one in this loop, with clients that leave."""

import asyncio
import contextlib
import json
import signal
import sqlite3
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
import redis as redis_client

from sluicegate import idempotency, lasting
from sluicegate.idempotency_redis import PREFIX
from support_gateway import Gateway, Mock, call, config, running_gateway, running_mock
from support_inloop import Bench, Reply, fresh_redis, request, running

TENANTS = """
  acme: {keys: [{name: lab, key: sk-lab, limits: [100k tokens/day]}, {name: other, key: sk-other}]}"""


def once(key: str) -> bytes:
    return b"idempotency-key: %b\r\n" % key.encode()


# -- two gateways ---------------------------------------------------------------------------------------------------------------------------


class Pair:
    """Two gateways that share a store, before one mock. `expire` ends a lease."""

    def __init__(self, one: Gateway, two: Gateway, mock: Mock, store: str) -> None:
        self.one, self.two, self.mock, self._store = one, two, mock, store

    def post(self, gateway: Gateway, key: str, **fields: Any) -> tuple[int, dict[str, str], bytes]:
        body = {"model": "chat", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 50, **fields}
        head = [f"idempotency-key: {key}", "authorization: Bearer sk-lab"]
        return _post(gateway, "/v1/chat/completions", body, head)

    @property
    def made(self) -> int:
        return int(self.mock.stats()["total"]["requests"])

    def expire(self) -> None:
        """As if its time had come: it was to come within a minute."""
        if self._store.startswith("redis:"):
            with redis_client.Redis.from_url(self._store) as client:
                (key,) = client.keys(PREFIX + "*")  # type: ignore[misc]
                assert 0 < int(client.pttl(key)) <= idempotency.LEASE_MS  # type: ignore[arg-type]
                client.delete(key)
        else:
            with contextlib.closing(sqlite3.connect(self._store)) as database, database:
                changed = database.execute("UPDATE idempotency_keys SET until_ms = 0 WHERE until_ms <= unixepoch() * 1000 + 61000")
                assert changed.rowcount == 1


def _post(gateway: Gateway, path: str, body: Any, head: list[str]) -> tuple[int, dict[str, str], bytes]:
    headers = {"content-type": "application/json"} | dict(line.split(": ", 1) for line in head)
    asked = urllib.request.Request(gateway.url + path, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return answer.status, {name.lower(): value for name, value in answer.headers.items()}, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, {name.lower(): value for name, value in error.headers.items()}, error.read()


@pytest.fixture(params=["redis", "sqlite"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    with contextlib.ExitStack() as stack:
        store, ledger = f"{tmp_path}/records.db", ""
        if request.param == "redis":
            store, _ = stack.enter_context(fresh_redis(request.getfixturevalue("redis_url"), db=9))
            ledger = store
        mock = stack.enter_context(running_mock(tmp_path, "--ttft", "150ms", "--tpot", "0ms", "--completion", "20"))
        text = config(tmp_path, mock.url, TENANTS, ledger=ledger)
        one, two = (stack.enter_context(running_gateway(tmp_path, text, name)) for name in ("one", "two"))
        yield Pair(one, two, mock, store)


def test_two_gateways_make_one_call(pair: Pair) -> None:
    """Of many that ask at once, at either, one is served and the rest are told to wait; then all get its answer, and nothing was charged for it."""
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda i: pair.post((pair.one, pair.two)[i % 2], "first"), range(8)))
    assert sorted(status for status, _, _ in answers) == [200] + [409] * 7
    (first,) = [answer for answer in answers if answer[0] == 200]
    for status, headers, body in answers:
        if status == 409:
            assert (json.loads(body)["error"]["code"], headers["retry-after"]) == ("idempotency_in_progress", "2")
    used = pair.one.usage("sk-lab")
    for gateway in (pair.one, pair.two):
        status, headers, body = pair.post(gateway, "first")
        assert (status, body, headers["x-sluicegate-idempotent"]) == (200, first[2], "replayed")
        assert headers["x-sluicegate-replay-of"] == first[1]["x-sluicegate-request-id"] != headers["x-sluicegate-request-id"]
        assert "x-sluicegate-idempotent" not in first[1]
    assert pair.made == 1 and pair.two.usage("sk-lab")["limits"] == used["limits"]
    status, _, body = pair.post(pair.two, "first", max_tokens=51)
    assert (status, json.loads(body)["error"]["code"]) == (422, "idempotency_key_reused")


def test_a_worker_that_dies_lets_go(pair: Pair) -> None:
    """Killed while it waits for the upstream: the other gateway says that the request runs until the lease is over, and then makes it."""
    with ThreadPoolExecutor(1) as threads:
        lost = threads.submit(pair.post, pair.one, "k")
        pair.mock.wait_until(lambda: pair.mock.stats()["total"]["in_flight"] > 0)
        pair.one.stop(signal.SIGKILL)
        with pytest.raises(OSError):
            lost.result()
    status, _, body = pair.post(pair.two, "k")
    assert (status, json.loads(body)["error"]["code"]) == (409, "idempotency_in_progress")
    pair.expire()
    assert pair.post(pair.two, "k")[0] == 200
    assert pair.post(pair.two, "k")[1]["x-sluicegate-idempotent"] == "replayed"


# -- one gateway in this loop ---------------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def bench_of(tmp_path: Path, **settings: Any) -> AsyncIterator[Bench]:
    async with running(tmp_path, limits="[100000 tokens/day]", **settings) as bench:
        yield bench


async def again(bench: Bench, key: str, **fields: Any) -> Reply:
    """The same request, once the first has let go of its client."""
    while (reply := await bench.post(bench.body(**fields), more=once(key))).code == "idempotency_in_progress":  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return reply


@pytest.mark.parametrize("extend", [False, True])
async def test_a_stream_is_replayed_as_it_was(tmp_path: Path, extend: bool) -> None:
    """Byte for byte, its end included; the record says that nobody was asked and nothing was charged."""
    async with bench_of(tmp_path, extend=extend) as bench:
        first = await bench.post(bench.body(stream=True), more=once("s"))
        second = await bench.post(bench.body(stream=True), more=once("s"))
        assert first.done and (second.status, second.body) == (200, first.body)
        assert second.headers["content-type"] == first.headers["content-type"]
        record = bench.record
        assert (record.status, record.attempts, record.cost_nano_usd, record.input_tokens, record.error) == (200, (), 0, 0, "")
        assert record.cache == "replay"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_finds_its_answer(tmp_path: Path, stream: bool) -> None:
    """The request is made to its end without it, once, and charged: that is what the key is for."""
    async with bench_of(tmp_path, options={"ttft": 20, "tpot_ms": 20, "completion": 20}, extend=True) as bench:
        connection = await bench.connect()
        connection.send(request(bench.body(stream=stream), more=once("k")))
        if stream:
            await connection.until(b"data: ")
        else:
            await bench.asked(1)
        with bench.held():
            connection.reset()
            await asyncio.sleep(0.05)
        reply = await again(bench, "k", stream=stream)
        assert (reply.status, reply.headers["x-sluicegate-idempotent"]) == (200, "replayed")
        assert not stream or reply.done
        assert bench.mock.truth.stats().total.requests == 1
        (made,) = [record for record in bench.records if record.attempts]
        assert made.client_gone and made.output_tokens == 20


async def test_what_is_final_is_kept_and_what_is_not_may_be_tried_again(tmp_path: Path) -> None:
    """An upstream's 400 stays one; its 500, its 429 and its 401 leave the key free."""
    async with bench_of(tmp_path, more="resilience: {cooldown: 0s}") as bench:
        for status, kept in ((400, True), (422, True), (500, False), (429, False), (401, False)):
            bench.mocked(status=status)
            first = await bench.post(bench.body(), more=once(f"k{status}"))
            assert first.status >= 400
            bench.mocked(completion=5)
            second = await bench.post(bench.body(), more=once(f"k{status}"))
            assert (second.status, "x-sluicegate-idempotent" in second.headers) == ((status, True) if kept else (200, False)), status
            assert not kept or second.body == first.body


async def test_a_stream_that_breaks_off_lets_go_before_its_client_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the store takes: who has seen the error may ask again at once."""
    async with bench_of(tmp_path, extend=True) as bench:
        bench.slack = 1024  # the cap: a stream that has just begun is charged as a fast one
        store = bench.worker.gateway._idempotency._store
        give_up = store.give_up

        async def later(name: str, owner: str) -> None:
            await asyncio.sleep(0.1)
            await give_up(name, owner)

        monkeypatch.setattr(store, "give_up", later)
        bench.mock.fault(cut_after=3)
        connection = await bench.connect()
        connection.send(request(bench.body(stream=True), more=once("k")))
        await connection.until(b'"error":')
        second = await bench.post(bench.body(stream=True), more=once("k"))
        first = await connection.rest()
        assert not first.clean and first.events[-1]["error"]["code"] == "upstream_error"
        assert second.done


async def test_a_refusal_by_a_limit_is_not_kept(tmp_path: Path) -> None:
    """The limit may have room when the client asks again."""
    async with running(tmp_path, limits="[1 requests/minute]") as bench:
        assert (await bench.post(bench.body())).status == 200
        for _ in range(2):
            refused = await bench.post(bench.body(), more=once("k"))
            assert refused.status == 429 and "x-sluicegate-idempotent" not in refused.headers


async def test_a_key_is_of_its_caller_and_its_path(tmp_path: Path) -> None:
    """Another caller's key of the same name is another one; the same on another path is refused."""
    tenants = "\n  acme: {keys: [{name: key, key: sk-key}, {name: two, key: sk-two}]}"
    async with running(tmp_path, tenants=tenants) as bench:
        body = json.dumps({"model": "chat", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}).encode()
        first, other = [await bench.raw(request(body, key, more=once("k"))) for key in ("sk-key", "sk-two")]
        assert (first.status, other.status, "x-sluicegate-idempotent" in other.headers) == (200, 200, False)
        elsewhere = await bench.raw(request(body, "sk-key", path="/v1/messages", more=once("k")))
        assert (elsewhere.status, elsewhere.json["error"]["code"]) == (422, "idempotency_key_reused")


@pytest.mark.parametrize("key", ["", "a b", "x" * 256, "caf\u00e9"])
async def test_a_key_that_is_none(tmp_path: Path, key: str) -> None:
    """It is refused, before anything is asked."""
    async with bench_of(tmp_path) as bench:
        reply = await bench.post(bench.body(), more=b"idempotency-key: %b\r\n" % key.encode())
        assert (reply.status, reply.error["code"], reply.error["param"]) == (400, "invalid_idempotency_key", "idempotency-key")
        assert bench.mock.truth.stats().total.requests == 0


async def test_an_answer_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is delivered, remembered as done, and not made again."""
    monkeypatch.setattr(lasting, "BODY_MAX", 100)
    async with bench_of(tmp_path) as bench:
        assert (await bench.post(bench.body(), more=once("k"))).status == 200
        again = await bench.post(bench.body(), more=once("k"))
        assert (again.status, again.code, again.headers["x-should-retry"]) == (409, "idempotency_answer_too_large", "false")


async def test_nothing_is_sent_while_the_store_is_away(tmp_path: Path) -> None:
    """Nobody knows whether it was sent before: 503. A request without a key does not notice."""
    async with bench_of(tmp_path) as bench:

        async def away(*_: Any) -> Any:
            raise idempotency.StoreUnavailable("away")

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(bench.worker.gateway._idempotency._store, "take", away)
            refused = await bench.post(bench.body(), more=once("k"))
        assert (refused.status, refused.code, refused.headers["retry-after"]) == (503, "idempotency_unavailable", "1")
        assert bench.mock.truth.stats().total.requests == 0
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(bench.worker.gateway._idempotency._store, "keep", away)
            assert (await bench.post(bench.body(), more=once("k"))).status == 200
        assert (await bench.post(bench.body(), more=once("k"))).code == "idempotency_in_progress"  # until its lease is over


def test_the_sdk_reads_a_replay(gateway: Gateway) -> None:
    """The official package sends the key by itself if it is told one, and takes the second answer as the first."""
    with openai.OpenAI(base_url=gateway.base_url, api_key="sk-normal", max_retries=0) as client:
        said: Any = {"model": "chat", "messages": [{"role": "user", "content": "Hi"}], "extra_headers": {"idempotency-key": "sdk"}}
        first = client.chat.completions.create(**said)
        assert client.chat.completions.create(**said) == first
        chunks: list[Any] = [list(client.chat.completions.create(**said | {"stream": True, "extra_headers": {"idempotency-key": "s"}})) for _ in "12"]
        assert chunks[0] == chunks[1] and chunks[0]
    assert call(f"{gateway.base_url}/usage", key="sk-normal")[0] == 200
