"""The Redis ledger when Redis, or the way to it, fails: a real redis-server that pauses, dies, forgets scripts, is full, is no master any more.

Every test has a server of its own. What is asked of each fault: calls end in time by `LedgerUnavailable`, nothing is charged or held for those that
failed, the ledger works again by itself, and the log says so once.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as redis_client

from sluicegate.core.claims import Admission, Settlement
from sluicegate.ledger.contract import LedgerUnavailable
from sluicegate.ledger.redis import RedisLedger
from support_gateway import Child, free_port, pongs
from support_ledgers import Desk, Log, use
from support_time import undisturbed

TIMEOUT_MS = 300


class Server:
    """A redis-server of the test's own; `client` looks at it past the ledger."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.directory = directory
        self.port = free_port()
        program = shutil.which("redis-server")
        assert program, "redis-server is needed on PATH: `make test` installs it"
        common = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(directory), "--maxmemory-policy", "noeviction"]
        self.command = [program, "--port", str(self.port), *common, *options]
        self.client = redis_client.Redis(port=self.port)
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        self.child = Child(self.command, self.directory / "redis.log")
        self.child.wait_until(lambda: pongs(self.port))

    def pause(self) -> None:
        """It says nothing any more, whatever is written to it."""
        os.kill(self.child.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.child.pid, signal.SIGCONT)

    def kill(self) -> None:
        self.child.stop(signal.SIGKILL)

    def stop(self) -> None:
        self.client.close()
        self.child.stop(signal.SIGKILL)


class Cutter:
    """A proxy in front of a server; when told, it lets through so many more bytes of answers and then closes. Without a server it only listens."""

    def __init__(self, target: int = 0) -> None:
        self.target = target
        self.budget = -1  # bytes of answers still let through; negative: all
        self.tasks: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> "Cutter":
        self.server = await asyncio.start_server(self.accept, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        return self

    async def __aexit__(self, *error: object) -> None:
        self.server.close()
        await asyncio.gather(*self.tasks)

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        if self.target:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.target)
            await asyncio.gather(self.pump(reader, up_writer, False), self.pump(up_reader, writer, True))
        else:
            while await self.read(reader):
                pass
            writer.close()

    async def pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: bool) -> None:
        while data := await self.read(reader):
            if answers and 0 <= self.budget < len(data):
                writer.write(data[: self.budget])
                self.budget = -1
                break
            writer.write(data)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async def read(self, reader: asyncio.StreamReader) -> bytes:
        with contextlib.suppress(ConnectionError):
            return await reader.read(65536)
        return b""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.stop()


@pytest.fixture
def log() -> Log:
    return Log()


@contextlib.asynccontextmanager
async def ledger_at(url: str, log: Log, timeout_ms: int = TIMEOUT_MS) -> AsyncIterator[Desk]:
    ledger = RedisLedger(url, timeout_ms, log=log, jitter=lambda: 0.0)
    try:
        await ledger.open()
        await use(ledger, "t")
        yield Desk(ledger)
    finally:
        await ledger.close()


@pytest.fixture
async def desk(server: Server, log: Log) -> AsyncIterator[Desk]:
    async with ledger_at(server.url, log) as desk:
        yield desk


async def outcome(call: "asyncio.Future[Any]") -> str:
    try:
        return str((await call).status)
    except LedgerUnavailable as error:
        return f"unavailable: {error}"


async def works_again(desk: Desk) -> None:
    """Waits until an admit and a settle succeed. A server that came back empty is taken for what it is, as the recovery would do."""
    refs = desk.refs(desk.window(10, "probe"))
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(LedgerUnavailable):
            if "t" not in desk.ledger.trees:
                await use(desk.ledger, "t")
        if await outcome(desk.admit(refs, 1, 0, hold_id="probe")) == "granted":
            assert await desk.settle(refs, 0, hold_id="probe") == "settled"
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the ledger did not come back")


async def nothing_is_left(desk: Desk) -> bool:
    counters, holds = await desk.ledger.show()
    return not holds and all((counter.used, counter.held) == (0, 0) for counter in counters)


async def eventually(check: Callable[[], Any], within_s: float = 30.0) -> None:
    deadline = time.monotonic() + within_s
    while not await check():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


# -- silence ------------------------------------------------------------------------------------------------------------------------------


async def test_calls_end_in_time_while_redis_pauses_and_nothing_is_charged(server: Server, desk: Desk, log: Log) -> None:
    """Admits that were granted after their callers had been told are given back as soon as their answers come."""
    refs = desk.refs(desk.window(10**6), desk.bucket(10**6), desk.concurrent(1000))
    server.pause()
    admits = []
    for i in range(300):
        admits.append(desk.admit(refs, 10, 1000, 10, 0, 1, 0, hold_id=f"h{i}", output=(1, 50, 50)))
        await asyncio.sleep(0)
    outcomes = [await outcome(admit) for admit in admits]
    server.go_on()
    assert set(outcomes) == {f"unavailable: the ledger did not answer within {TIMEOUT_MS / 1000:g} s"}

    async def all_given_back() -> bool:
        with contextlib.suppress(LedgerUnavailable):
            return await nothing_is_left(desk) and server.client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"] >= 600
        return False

    await eventually(all_given_back)
    assert log.lines == ["ledger connected", "ledger fails"]
    await works_again(desk)


async def test_a_connection_that_is_silent_for_long_is_replaced(server: Server, desk: Desk, log: Log) -> None:
    """After 2 s; no call waits longer than its timeout meanwhile, and holds that were granted behind our back expire."""
    refs = desk.refs(desk.concurrent(10))
    server.pause()
    i = 0
    while "ledger away" not in log.lines:
        i += 1
        called = undisturbed()
        assert (await outcome(desk.admit(refs, 1, 0, hold_id=f"h{i}", ttl_ms=1))).startswith("unavailable")
        assert undisturbed() - called < TIMEOUT_MS / 1000 + 0.2
        await asyncio.sleep(0.05)
    server.go_on()
    await works_again(desk)
    while await desk.ledger.sweep(64):
        pass
    assert await desk.states(refs) == [(0, 0)]
    assert log.lines == ["ledger connected", "ledger fails", "ledger away", "ledger connected"]


async def test_a_server_that_never_answers_is_reported_at_open(log: Log) -> None:
    """It accepts connections and says nothing: open ends within the timeout, calls fail at once, close does not hang."""
    async with Cutter() as silent:
        ledger = RedisLedger(silent.url, TIMEOUT_MS, log=log)
        begun = undisturbed()
        with pytest.raises(LedgerUnavailable, match=f"cannot use the ledger at {silent.url}: .*answer"):
            await ledger.open()
        called = undisturbed()
        assert called - begun < TIMEOUT_MS / 1000 + 0.3
        desk = Desk(ledger)
        with pytest.raises(LedgerUnavailable, match="no connection"):
            await ledger.peek(desk.refs(desk.window(1)))
        with pytest.raises(LedgerUnavailable):
            await ledger.ping()
        assert undisturbed() - called < 0.1
        await asyncio.sleep(1)
        assert log.lines == ["ledger away"]
        await ledger.close()


# -- death --------------------------------------------------------------------------------------------------------------------------------


async def test_a_killed_server_is_found_again(server: Server, desk: Desk, log: Log) -> None:
    """Calls fail at once while it is away; scripts are loaded anew on the new connection."""
    await works_again(desk)
    server.kill()
    refs = desk.refs(desk.window(10))
    for i in range(200):
        called = undisturbed()
        assert (await outcome(desk.admit(refs, 1, 0, hold_id=f"h{i}"))).startswith("unavailable")
        assert undisturbed() - called < 0.1
    server.start()
    await works_again(desk)
    stats = server.client.info("commandstats")
    assert stats["cmdstat_evalsha"]["failed_calls"] == 0
    assert "cmdstat_eval" not in stats
    assert log.lines == ["ledger connected", "ledger away", "ledger connected"]
    await eventually(lambda: back_works(desk))


async def back_works(desk: Desk) -> bool:
    """The second connection came back, too."""
    with contextlib.suppress(LedgerUnavailable):
        await desk.ledger.renew("t", ["x"], 1000)
        return True
    return False


async def test_the_ledger_may_come_up_later(tmp_path: Path, log: Log) -> None:
    """open fails in time and goes on trying."""
    server = Server(tmp_path)
    server.kill()
    ledger = RedisLedger(server.url, TIMEOUT_MS, log=log, jitter=lambda: 0.0)
    with pytest.raises(LedgerUnavailable, match="cannot use the ledger"):
        await ledger.open()
    server.start()
    await works_again(Desk(ledger))
    await ledger.close()
    server.stop()


@pytest.mark.parametrize("bytes_let_through", [0, 1, 20])
async def test_a_connection_closed_in_the_middle_of_an_answer(server: Server, log: Log, bytes_let_through: int) -> None:
    """Every call under way fails, its outcome unknown. Repeats are harmless: a settle counts once, a cancel ends what the admit left."""
    async with Cutter(server.port) as cutter, ledger_at(cutter.url, log) as desk:
        refs = desk.refs(desk.window(1000), desk.concurrent(9))
        await desk.admit(refs, 100, 0, 1, 0, hold_id="settled")
        cutter.budget = bytes_let_through
        calls = [desk.ledger.settle(Settlement("settled", refs, (70, 1))), desk.admit(refs, 10, 0, 1, 0, hold_id="admitted")]
        outcomes = [await outcome(call) for call in calls]
        assert "outcome of the call is unknown" in outcomes[1]
        await works_again(desk)
        assert await desk.settle(refs, 70, 1, hold_id="settled") == "already"
        assert await desk.settle(refs, 0, 0, hold_id="admitted", mode="cancel") == "cancelled"
        assert await desk.states(refs) == [(70, 0), (0, 0)]
    assert log.lines == ["ledger connected", "ledger away", "ledger connected"]


# -- Redis answers, but not as hoped ------------------------------------------------------------------------------------------------------


async def test_forgotten_scripts_are_sent_again(server: Server, desk: Desk, log: Log) -> None:
    """SCRIPT FLUSH under load: no call fails, none is counted twice."""
    refs = desk.refs(desk.window(10**6), desk.concurrent(100))
    for _ in range(3):
        server.client.script_flush()
        replies = await asyncio.gather(*(desk.admit(refs, 10, 0, 1, 0, hold_id=f"h{i}") for i in range(50)))
        assert {reply.status for reply in replies} == {"granted"}
        assert {(await desk.extend(refs, 5, 5, hold_id=f"h{i}")).status for i in range(50)} == {"granted"}
        server.client.script_flush()
        settled = await asyncio.gather(*(desk.ledger.settle(Settlement(f"h{i}", refs, (7, 1))) for i in range(50)))
        assert {settled.status for settled in settled} == {"settled"}
    await desk.ledger.renew("t", ["x"], 1000)
    assert await desk.ledger.sweep(10) == []
    assert await desk.states(refs) == [(3 * 50 * 7, 0), (0, 0)]
    assert log.lines == ["ledger connected"]


async def test_a_full_redis_refuses_admissions_and_takes_settlements(server: Server, desk: Desk, log: Log) -> None:
    """maxmemory reached: admits and extends fail with nothing done, usage is charged all the same and holds do not leak."""
    refs = desk.refs(desk.window(1000), desk.bucket(1000), desk.concurrent(9))
    await desk.admit(refs, 100, 1000, 100, 0, 1, 0, output=(1, 50, 50))
    await desk.admit(refs, 10, 0, 10, 0, 1, 0, hold_id="lost", ttl_ms=1)
    await asyncio.sleep(0.01)
    server.client.config_set("maxmemory", 1)
    for i in range(100):
        assert (await outcome(desk.admit(refs, 10, 0, 10, 0, 1, 0, hold_id=f"h{i}"))).startswith("unavailable: the ledger answered: OOM")
    assert (await outcome(desk.extend(refs, 60, 90))).startswith("unavailable: the ledger answered: OOM")
    assert [swept.hold_id for swept in await desk.ledger.sweep(9)] == ["lost"]
    assert await desk.settle(refs, 120, 120, 1) == "settled"
    assert await desk.states(refs) == [(130, 0), (130, 0), (0, 0)]
    assert await desk.settle(refs, 5, 5, 1, hold_id="served without a hold", mode="force") == "forced"
    assert log.lines == ["ledger connected", "ledger fails", "ledger fails"]  # admit, extend
    server.client.config_set("maxmemory", 0)
    await works_again(desk)


async def test_a_master_that_becomes_a_replica_is_left(server: Server, desk: Desk, log: Log) -> None:
    """Its first READONLY ends the connection; it is not used again until it is a master."""
    server.client.replicaof("127.0.0.1", 1)
    refs = desk.refs(desk.window(1000))
    assert (await outcome(desk.admit(refs, 10, 0))).startswith("unavailable: the ledger answered: READONLY")

    async def left_alone() -> bool:
        return "not a master" in await outcome(desk.admit(refs, 10, 0))

    await eventually(left_alone)
    server.client.replicaof("NO", "ONE")
    await works_again(desk)
    assert await desk.holds() == {}
    assert log.lines == ["ledger connected", "ledger fails", "ledger away", "ledger connected"]


async def test_a_redis_that_evicts_is_not_used(server: Server, log: Log) -> None:
    """Budgets that are forgotten under pressure are none; the message says what to set."""
    server.client.config_set("maxmemory-policy", "allkeys-lru")
    with pytest.raises(LedgerUnavailable, match="maxmemory-policy must be noeviction, is allkeys-lru"):
        async with ledger_at(server.url, log):
            pass


# -- ways in ------------------------------------------------------------------------------------------------------------------------------


async def test_user_password_and_database(tmp_path: Path, log: Log) -> None:
    """A user who may not ask for the policy is let in with a warning; a wrong password is said so, without showing it."""
    server = Server(tmp_path)
    server.client.execute_command("ACL", "SETUSER", "gate", "on", ">p@ss/word", "~sg1:*", "+@all", "-config")
    server.client.execute_command("CONFIG", "SET", "requirepass", "default-secret")
    at = f"127.0.0.1:{server.port}"
    async with ledger_at(f"redis://gate:p%40ss%2Fword@{at}/5", log) as desk:
        await works_again(desk)
        await desk.admit(desk.refs(desk.window(10)), 1, 0)
        names = {client["name"].partition("-")[0]: client["db"] for client in server.client.client_list() if client["user"] == "gate"}
        assert names == {"sluicegate": "5"}
    assert log.lines[0] == "ledger policy unknown: see that maxmemory-policy is noeviction"
    async with ledger_at(f"redis://:default-secret@{at}/5", log) as desk:
        assert set(await desk.holds()) == {"h"}
    for credential in ("", ":wrong-secret@", "gate:wrong-secret@"):
        with pytest.raises(LedgerUnavailable, match=r"NOAUTH|WRONGPASS") as error:
            async with ledger_at(f"redis://{credential}{at}", log):
                pass
        assert "wrong-secret" not in str(error.value)
    server.stop()


def certificate(directory: Path) -> tuple[Path, Path]:
    """A certificate for localhost that signs itself, and its key."""
    key, pem = directory / "key.pem", directory / "cert.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", *subject]
    subprocess.run([*make, "-keyout", str(key), "-out", str(pem)], check=True, capture_output=True)
    return key, pem


async def test_tls(tmp_path: Path, log: Log) -> None:
    """With a CA of one's own; a certificate that nobody vouches for, or that names another host, is refused."""
    key, pem = certificate(tmp_path)
    tls_port = free_port()
    files = ["--tls-cert-file", str(pem), "--tls-key-file", str(key), "--tls-ca-cert-file", str(pem)]
    server = Server(tmp_path, "--tls-port", str(tls_port), "--tls-auth-clients", "no", *files)
    async with ledger_at(f"rediss://localhost:{tls_port}/0?ca_file={pem}", log, 3000) as desk:
        await works_again(desk)
    for url in (
        f"rediss://localhost:{tls_port}",
        f"rediss://127.0.0.1:{tls_port}?ca_file={pem}",
        f"rediss://localhost:{tls_port}?ca_file=/missing.pem",
    ):
        with pytest.raises(LedgerUnavailable, match=r"CERTIFICATE_VERIFY_FAILED|No such file"):
            async with ledger_at(url, log, 3000):
                pass
    server.stop()


async def test_unix_socket(tmp_path: Path, log: Log) -> None:
    """No port at all."""
    server = Server(tmp_path, "--unixsocket", str(tmp_path / "r.sock"))
    async with ledger_at(f"unix://{tmp_path}/r.sock?db=3", log) as desk:
        await works_again(desk)
    server.stop()


async def test_a_cluster_accepts_every_verb(tmp_path: Path, log: Log) -> None:
    """Key, team and organization in one slot: with cluster mode on, a key outside it, declared or not, would be refused."""
    server = Server(tmp_path, "--cluster-enabled", "yes")
    server.client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
    server.child.wait_until(lambda: b"cluster_state:ok" in redis_raw(server.port, b"CLUSTER INFO\r\n"))
    async with ledger_at(server.url, log, 2000) as desk:
        refs = desk.refs(desk.window(1000, "key"), desk.bucket(1000, "team"), desk.sliding(1000, "organization"), desk.concurrent(9))
        part = desk.refs(desk.window(1000, "other"))
        await desk.admit(refs, 10, 1000, 10, 0, 10, 0, 1, 0, hold_id="a", output=(1, 5, 9))
        assert (await desk.extend(part, 20, 20, hold_id="a")).g == 20
        assert (await desk.admit(part, 10, 0, hold_id="b", replacing="a")).status == "granted"
        assert await desk.settle(refs, 1, 1, 1, 1, hold_id="b") == "settled"
        await desk.admit(refs, 10, 1000, 10, 0, 10, 0, 1, 0, hold_id="c", ttl_ms=0)
        assert len(await desk.ledger.sweep(9)) == 1
        await desk.ledger.renew("t", ["c"], 1000)
        assert (await desk.ledger.learned({"x": {"a": 1}, "y": {"b": 2}})) == {"x": {"a": 1}, "y": {"b": 2}}
        assert set(await desk.holds()) == {"c"}
        assert len((await desk.ledger.peek(refs)).states) == 4
    server.stop()


def redis_raw(port: int, command: bytes) -> bytes:
    with contextlib.closing(redis_client.Redis(port=port)) as client:
        return bytes(client.execute_command(*command.split()))


# -- a busy gateway -----------------------------------------------------------------------------------------------------------------------


async def test_a_pause_under_load_neither_overspends_nor_leaks(server: Server, desk: Desk) -> None:
    """Two ledgers, a closed loop of clients on a budget of 10,000, a pause longer than the timeout in between: what was served is what is charged."""
    other = RedisLedger(server.url, TIMEOUT_MS, log=Log())
    await other.open()
    await use(other, "t")
    refs = desk.refs(desk.window(10_000), desk.concurrent(64))
    served = 0

    async def client(name: str, ledger: Any, until: float) -> None:
        nonlocal served
        for i in range(10_000):
            hold_id = f"{name}.{i}"
            try:
                reply = await ledger.admit(Admission(hold_id, refs, (3, 1000, 1, 0), 1, 5, 5, 60_000, hold_id))
            except LedgerUnavailable:
                await asyncio.sleep(0.01)
                continue
            if reply.status == "refused" and reply.states[0][0] + 4 > 10_000:
                return
            if reply.status == "granted":
                served += 3 + reply.g
                while True:
                    with contextlib.suppress(LedgerUnavailable):
                        await ledger.settle(Settlement(hold_id, refs, (3 + reply.g, 1)))
                        break
                    await asyncio.sleep(0.01)
            if time.monotonic() > until:
                return

    until = time.monotonic() + 60
    clients = [asyncio.create_task(client(f"{i}", desk.ledger if i % 2 else other, until)) for i in range(32)]
    await asyncio.sleep(0.1)
    server.client.client_pause(500)
    await asyncio.gather(*clients)
    await eventually(lambda: no_holds(desk))
    assert await desk.states(refs) == [(served, 0), (0, 0)]
    assert served <= 10_000
    await other.close()


async def no_holds(desk: Desk) -> bool:
    with contextlib.suppress(LedgerUnavailable):  # the pause may not be over
        return not (await desk.ledger.show())[1]
    return False
