"""Cases of cases.md on a ledger that hangs, is full, drops connections or is away: bounded, told, and nothing used is lost or charged twice."""

import asyncio
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import redis as redis_client
import structlog

from sluicegate import app
from support_gateway import Child, free_port, pongs
from support_inloop import PROMPT_TOKENS, Bench, running
from support_sockets import scripted
from support_time import undisturbed

STREAM = pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
LIMITS = "[1M tokens/day, 1000 requests/minute, 200 concurrent]"
QUICK = "ledger_timeout: 300ms"


class Server:
    """A Redis that may be disturbed. `pause` stops the process: connections stay and nothing is answered."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        program = shutil.which("redis-server")
        assert program, "redis-server is needed on PATH: `make test` installs it"
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(directory), "--maxmemory-policy", "noeviction"]
        self.child = Child([program, *options], directory / "redis.log")
        self.child.wait_until(lambda: pongs(self.port))
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.client = redis_client.Redis(port=self.port)

    def pause(self) -> None:
        self.child.send(signal.SIGSTOP)

    def go_on(self) -> None:
        self.child.send(signal.SIGCONT)


@pytest.fixture(scope="module")
def running_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("redis"))
    yield server
    server.go_on()
    server.client.close()
    server.child.stop()


@pytest.fixture
def server(running_server: Server) -> Iterator[Server]:
    """What a test did to it is undone."""
    running_server.client.flushall()
    yield running_server
    running_server.go_on()
    running_server.client.config_set("maxmemory", 0)


async def timed(request: Any) -> tuple[Any, float]:
    started = undisturbed()
    answer = await request
    return answer, undisturbed() - started


async def served_again(bench: Bench, **fields: Any) -> None:
    """The ledger is there, or back: soon a request is answered."""
    async with asyncio.timeout(30):
        while (await bench.chat(**fields)).code != "200":  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@STREAM
async def test_case_99_a_hung_redis_is_bounded_and_told(tmp_path: Path, server: Server, stream: bool) -> None:
    """Paused for a minute: every request is a 503 with retry-after within the timeout, one log line per change, and all is well when it is back."""
    async with running(tmp_path, ledger=server.url, limits=LIMITS, more=QUICK) as bench:
        await served_again(bench, stream=stream, max_tokens=20)
        with structlog.testing.capture_logs() as logs:
            server.pause()
            for _ in range(2):
                results = await asyncio.gather(*(timed(bench.chat(stream=stream, max_tokens=20)) for _ in range(20)))
                for answer, seconds in results:
                    assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "ledger_unavailable", "1")
                    assert seconds < 1
            server.go_on()
            await served_again(bench, stream=stream, max_tokens=20)
        states = [line for line in logs if "state" in line["event"] or "ledger" in line["event"]]
        assert 1 <= len(states) <= 8, states
        assert len(bench.mock.calls) == sum(record.status == 200 for record in bench.records)


async def test_case_99_a_black_hole_does_not_stop_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections are accepted and nothing is answered: the gateway starts, says that it is not ready, and refuses in time."""

    monkeypatch.setattr(app, "SETTLE_AT_STOP_S", 0.3)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with scripted(silent) as port:
        started = undisturbed()
        async with running(tmp_path, ledger=f"redis://127.0.0.1:{port}/0", limits=LIMITS, more=QUICK) as bench:
            bench.reachable = False
            assert undisturbed() - started < 2
            answer, seconds = await timed(bench.chat())
            assert (answer.status, answer.code, seconds < 1) == (503, "ledger_recovering", True)
            ready = await bench.get("/readyz")
            assert (ready.status, ready.json["status"]) == (503, "the ledger does not answer")
            assert (await bench.get("/healthz")).status == 200
            assert (await bench.get("/v1/usage")).status == 503
            assert (await bench.get("/metrics")).status == 200
            assert list(bench.mock.calls) == []


async def test_case_99_readiness_follows_the_ledger(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not ready once it has been away for long enough, idle or not, and ready again when it is back."""
    monkeypatch.setattr(app, "LEDGER_AWAY_S", 1.5)
    async with running(tmp_path, ledger=server.url, limits=LIMITS, more=QUICK + "\nbudget: {hold_ttl: 1s}") as bench:
        assert (await bench.get("/readyz")).status == 200
        server.pause()
        seen = []
        for _ in range(30):
            seen.append((await bench.get("/readyz")).status)
            await asyncio.sleep(0.1)
        assert seen[0] == 200
        assert set(seen[-10:]) == {503}
        server.go_on()
        async with asyncio.timeout(30):
            while (await bench.get("/readyz")).status != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


@STREAM
async def test_case_99_under_allow_it_is_served_and_charged_afterwards(tmp_path: Path, server: Server, stream: bool) -> None:
    """`on_ledger_failure: allow`: answers come, late by the timeout at most; what was used is charged when the ledger is back, to the token."""
    more = QUICK + "\non_ledger_failure: allow"
    async with running(tmp_path, ledger=server.url, limits="[1M tokens/day]", more=more) as bench:
        server.pause()
        results = await asyncio.gather(*(timed(bench.chat(stream=stream, max_tokens=20)) for _ in range(5)))
        assert [(answer.code, seconds < 1) for answer, seconds in results] == [("200", True)] * 5
        server.go_on()
        await bench.quiet()
        assert (await bench.usage())["key key tokens/day"]["used"] == 5 * (20 + PROMPT_TOKENS)


@STREAM
async def test_case_113_a_settle_that_does_not_get_through_is_sent_again(tmp_path: Path, server: Server, stream: bool) -> None:
    """Redis hangs between admit and settle: the client has its whole answer at once; charged once, later; the hold does not leak."""
    options = {"completion": 20, "ttft": 200}
    async with running(tmp_path, ledger=server.url, limits=LIMITS, more=QUICK, options=options) as bench:
        with bench.held():
            asked = asyncio.get_running_loop().create_task(timed(bench.chat(stream=stream, max_tokens=20)))
            await bench.asked(1)
            server.pause()
        answer, seconds = await asked
        assert (answer.code, answer.clean, seconds < 0.45) == ("200", True, True)
        await asyncio.sleep(0.4)
        assert bench.worker._outbox.backlog == 1
        server.go_on()
        await bench.quiet()
        assert (await bench.usage())["key key tokens/day"]["used"] == 20 + PROMPT_TOKENS


@pytest.mark.parametrize("fault", ["full", "closed", "closed often", "paused"])
async def test_case_113_a_ledger_that_fails_in_the_middle_of_a_stream(tmp_path: Path, server: Server, fault: str) -> None:
    """No memory for an extend, connections closed, a pause: the stream ends inside its grant or goes on, and all of it is charged."""
    more = QUICK + "\nbudget: {estimator: fixed, fixed_output: 60}"
    options = {"completion": 500, "tpot": 2}
    async with running(tmp_path, ledger=server.url, limits="[100k tokens/day]", extend=True, more=more, options=options) as bench:
        limit = bench.loaded.policy.models["chat"].max_output
        assert limit * 8 < 100_000  # else everything would be granted at once
        stream = await bench.open(stream=True, max_tokens=500)
        await stream.until(b'"content":" of"')
        if fault == "full":
            server.client.config_set("maxmemory", 1)
        elif fault == "paused":
            server.pause()
        for _ in range({"closed": 1, "closed often": 20}.get(fault, 0)):
            server.client.client_kill_filter(_type="normal", skipme=True)
            await asyncio.sleep(0.02)
        answer = await stream.rest()
        assert (answer.done, answer.clean) == (True, True)
        assert answer.truncated in ("", "ledger", "budget")
        server.go_on()
        server.client.config_set("maxmemory", 0)
        await bench.quiet()
        bench.slack = 1024 if answer.truncated else 0


@pytest.mark.parametrize("policy", ["refuse", "allow"])
async def test_case_113_a_stream_without_its_ledger(tmp_path: Path, server: Server, policy: str) -> None:
    """Paused for good while a stream needs more: it runs to the end of its grant and is cut under `refuse`, to its own end under `allow`."""
    more = QUICK + f"\non_ledger_failure: {policy}\nbudget: {{estimator: fixed, fixed_output: 60}}"
    options = {"completion": 500, "ttft": 5, "tpot": 2}
    async with running(tmp_path, ledger=server.url, limits="[4000 tokens/day]", extend=True, more=more, options=options) as bench:
        with bench.held():
            stream = await bench.open(stream=True, max_tokens=500)
            await bench.asked(1)
            server.pause()
        answer = await stream.rest()
        assert (answer.truncated, answer.done) == ("ledger" if policy == "refuse" else "", True)
        produced = bench.mock.truth.stats().total.completion_tokens
        assert produced == 500 if policy == "allow" else produced < 500
        server.go_on()
        await bench.quiet()
        bench.slack = 0 if policy == "allow" else 500


async def test_case_126_an_admission_that_timed_out(tmp_path: Path, server: Server) -> None:
    """A pause longer than the timeout under load: what was refused is not charged, though Redis ran it afterwards, and no hold is left."""
    async with running(tmp_path, ledger=server.url, limits=LIMITS, more=QUICK) as bench:
        server.pause()
        asyncio.get_running_loop().call_later(0.7, server.go_on)
        answers = []
        for _ in range(10):
            answers += await asyncio.gather(*(bench.chat(max_tokens=20) for _ in range(10)))
        codes = [answer.code for answer in answers]
        assert set(codes) <= {"200", "ledger_unavailable"}
        assert codes.count("ledger_unavailable") >= 10
        await served_again(bench, max_tokens=20)
        await bench.quiet()
        served = sum(record.status == 200 for record in bench.records)
        shown = await bench.usage()
        assert shown["key key tokens/day"]["used"] == served * (20 + PROMPT_TOKENS)
        assert shown["key key concurrent"]["held"] == 0


async def test_a_restarted_redis_is_taken_up_again(tmp_path: Path, server: Server) -> None:
    """All connections and scripts are gone: the next requests work, with the scripts loaded anew."""
    async with running(tmp_path, ledger=server.url, limits=LIMITS, more=QUICK) as bench:
        await served_again(bench, max_tokens=20)
        server.client.script_flush()
        await served_again(bench, max_tokens=20)
        server.client.client_kill_filter(_type="normal", skipme=True)
        await served_again(bench, max_tokens=20)


@pytest.mark.parametrize("kind", ["redis", "sqlite"])
async def test_nothing_expires_under_a_live_worker(tmp_path: Path, server: Server, kind: str) -> None:
    """A stream three times as long as the time to live: its hold is renewed, stays the only one admitted, and is charged once."""
    url = server.url if kind == "redis" else f"sqlite:///{tmp_path}/ledger.db"
    options = {"completion": 100, "tpot": 5}
    async with running(tmp_path, ledger=url, limits="[1 concurrent, 300 tokens/day]", options=options, more="budget: {hold_ttl: 1s}") as bench:
        asked = asyncio.get_running_loop().create_task(bench.chat(stream=True, max_tokens=100))
        await bench.asked(1)
        with bench.held():
            for _ in range(4):
                await asyncio.sleep(0.6)
                assert (await bench.chat(max_tokens=20)).code == "concurrency_exceeded"
                assert (await bench.usage())["key key tokens/day"]["used"] == 0
        assert (await asked).done
        assert (await bench.usage())["key key tokens/day"]["used"] == 100 + PROMPT_TOKENS


@asynccontextmanager
async def two(directory: Path, url: str, **settings: Any) -> AsyncIterator[tuple[Bench, Bench]]:
    """Two gateways on one ledger, each with a mock of its own. They share their records."""
    settings["records"] = f"sqlite:///{directory}/records.db"
    async with running(directory / "a", ledger=url, **settings) as first, running(directory / "b", ledger=url, **settings) as second:
        first.whole = second.whole = False
        yield first, second


@pytest.mark.parametrize("extend", [False, True], ids=["capped", "extended"])
@pytest.mark.parametrize("kind", ["redis", "sqlite"])
async def test_two_gateways_share_one_budget(tmp_path: Path, server: Server, kind: str, extend: bool) -> None:
    """Both at once, unary and streamed: together they never get more than the limit out of their providers, and get nearly all of it."""
    url = server.url if kind == "redis" else f"sqlite:///{tmp_path}/ledger.db"
    options = {"completion": None, "median": 120, "tpot": 0.2, "chunk": 4}
    async with two(tmp_path, url, limits="[6000 tokens/day]", extend=extend, options=options) as benches:

        async def client(bench: Bench, stream: bool) -> None:
            while (answer := await bench.chat(stream=stream, max_tokens=300)).code != "budget_exceeded":
                assert answer.code in ("200", "budget_busy")
                await asyncio.sleep(0.01 if answer.code == "budget_busy" else 0)

        await asyncio.gather(*(client(bench, stream) for bench in benches for stream in (False, True, True)))
        assert 5700 <= sum(bench.total for bench in benches) <= 6000
