"""The stand that benchmarks and the soak share: real processes on loopback that can be killed, stopped, slowed down or set to a wrong clock.

    with Stand(Shape(replicas=3, mocks={"mock": ("--tpot", "20ms")}, limits=...)) as stand:
        stand.replicas[0].kill()

A Redis, mock providers that know the truth, and gateways, each with a journal of its own, as on machines of their own; all share one records
database. Between a gateway and Redis stands a link that can delay or swallow what passes, where the shape asks for one.

Everything is started in new sessions and ended by its own pid when the stand is left, also on failure. What a process printed is in the stand's
directory, which is removed; `logs` is for whoever reports a failure.
"""

import asyncio
import contextlib
import json
import os
import re
import shutil
import sys
import tempfile
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM
from types import TracebackType
from typing import Any, Self

import redis as redis_client

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from overhead import cpu_s, rss_kib
from sluicegate import app
from sluicegate.config.load import Loaded, load_text
from sluicegate.core.claims import CounterView, HoldView
from support_gateway import Child, Mock, answers, call, free_port, pongs

FAKETIME = "faketime/libfaketime.so.1"
QUIET_S = 60.0


def wrong_clock(clock_s: int) -> dict[str, str]:
    """The environment of a process whose wall clock is wrong by so much, in C as in Python. Raises OSError where Debian's libfaketime is missing.

    Its monotonic clock is left alone: timed waits of threads need the kernel's. For that, the library is told two things, and a thread's sleep is
    replaced (wrong_clock/sitecustomize.py). Told only not to shift that clock, it shifts the time until which a thread waits for the interpreter all
    the same, and event loops are late; where it may shift the clock, a thread that waits for a lock with a time limit waits for ever.
    """
    for directory in (*Path("/usr/lib").glob("*-linux-gnu"), Path("/usr/lib"), Path("/usr/local/lib")):
        if (directory / FAKETIME).exists():
            alone = {"FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1", "FAKETIME_FORCE_MONOTONIC_FIX": "0"}
            ours = os.pathsep.join([str(Path(__file__).parent / "wrong_clock"), *filter(None, [os.environ.get("PYTHONPATH")])])
            return {"LD_PRELOAD": str(directory / FAKETIME), "FAKETIME": f"{clock_s:+d}s", "PYTHONPATH": ours, **alone}
    raise OSError("libfaketime is needed for clocks that differ (Debian: libfaketime)")


@dataclass(frozen=True)
class Shape:
    """What a stand is made of. Durations as their names say."""

    tenants: Mapping[str, Any]  # the configuration's `tenants:`
    mocks: Mapping[str, Sequence[str]] = field(default_factory=lambda: {"mock": ()})  # provider -> options of `sluicegate mock`
    providers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # more fields of a provider's section
    models: Mapping[str, Any] = field(default_factory=dict)
    budget: Mapping[str, Any] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)  # more sections of the configuration
    replicas: int = 3
    clocks_s: tuple[int, ...] = ()  # by how much the clock of each replica is wrong
    linked: bool = False  # a Link between each replica and Redis


class Link:
    """A TCP link with a delay, in a thread of its own. `delay_s` is per direction; `swallow` keeps what comes, until it is False again."""

    def __init__(self, port: int) -> None:
        self.delay_s = 0.0
        self.swallow = False
        self.target = port  # where new connections lead
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._wires: set[_Wire] = set()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._ready.wait()

    def drop(self) -> None:
        """Closes every connection."""
        self._loop.call_soon_threadsafe(lambda: [wire.transport.abort() for wire in list(self._wires)])

    def close(self) -> None:
        """Ends the link and its thread."""
        self.drop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        async def serve() -> asyncio.Server:
            return await self._loop.create_server(lambda: _Wire(self, self._loop, None), "127.0.0.1", 0)

        server = self._loop.run_until_complete(serve())
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        self._loop.run_until_complete(asyncio.sleep(0.01))
        self._loop.close()


class _Wire(asyncio.Protocol):
    """One end of a connection through a link; what it reads goes to the other end, late."""

    def __init__(self, link: Link, loop: asyncio.AbstractEventLoop, other: "_Wire | None") -> None:
        self._link, self._loop, self._other = link, loop, other
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._moving = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._link._wires.add(self)
        if self._other is None:
            self._task = self._loop.create_task(self._connect())

    async def _connect(self) -> None:
        try:
            _, wire = await self._loop.create_connection(lambda: _Wire(self._link, self._loop, self), "127.0.0.1", self._link.target)
        except OSError:
            self.transport.abort()
            return
        self._other = wire
        self._move()

    def data_received(self, data: bytes) -> None:
        self._waiting.append((self._loop.time() + self._link.delay_s, data))
        self._move()

    def _move(self) -> None:
        if self._moving or self._other is None:
            return
        now = self._loop.time()
        while self._waiting and not self._link.swallow and self._waiting[0][0] <= now:
            self._other.transport.write(self._waiting.popleft()[1])
        if self._waiting:
            self._moving = True
            self._loop.call_later(0.02 if self._link.swallow else self._waiting[0][0] - now, self._again)

    def _again(self) -> None:
        self._moving = False
        self._move()

    def connection_lost(self, exc: Exception | None) -> None:
        self._link._wires.discard(self)
        self._waiting.clear()
        if self._other is not None:
            self._other.transport.abort()


class _Process:
    """What can be done to any process of a stand."""

    _child: Child | None = None

    def pause(self) -> None:
        assert self._child is not None
        self._child.send(SIGSTOP)

    def resume(self) -> None:
        assert self._child is not None
        self._child.send(SIGCONT)


class Redis(_Process):
    """A Redis whose data survive a restart or do not."""

    def __init__(self, directory: Path, name: str = "redis") -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._directory = directory / name
        self._directory.mkdir()
        self.start()

    @property
    def client(self) -> "redis_client.Redis":
        """A client for looking at it from outside."""
        return redis_client.Redis(port=self.port, socket_timeout=5)

    def start(self) -> None:
        server = shutil.which("redis-server")
        if server is None:
            raise OSError("redis-server is needed on PATH")
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(self._directory)]
        self._child = Child([server, *options, "--maxmemory-policy", "noeviction", "--enable-debug-command", "yes"], self._directory / "redis.log")
        self._child.wait_until(lambda: pongs(self.port))

    def stop(self) -> None:
        """Ends it as kill -9 does."""
        if self._child is not None:
            if self._child.process.poll() is None:
                self._child.send(SIGCONT)
            self._child.stop(SIGKILL)

    def restart(self, keep: bool, away_s: float = 0.0) -> None:
        """keep: with all of its data, as it answers nothing more once it begins to save them; otherwise empty."""
        if keep:
            self.client.shutdown(save=True)
        self.stop()
        if not keep:
            self._dump.unlink(missing_ok=True)
        time.sleep(away_s)
        self.start()

    @contextlib.contextmanager
    def followed(self, standby: "Redis") -> Iterator[Link]:
        """Replicates to a standby over a link, which can be held up."""
        link = Link(self.port)
        try:
            standby.client.replicaof("127.0.0.1", str(link.port))
            deadline = time.monotonic() + 20
            while standby.client.info("replication").get("master_link_status") != "up":
                if time.monotonic() > deadline:
                    raise TimeoutError("the standby does not follow")
                time.sleep(0.05)
            yield link
        finally:
            link.close()

    def snapshot(self) -> None:
        """Remembers the present data, for `restore`."""
        self.client.save()
        shutil.copy(self._dump, self._directory / "snapshot.rdb")

    def restore(self) -> None:
        """Killed, and started again with the data of the snapshot."""
        self.stop()
        shutil.copy(self._directory / "snapshot.rdb", self._dump)
        self.start()

    @property
    def _dump(self) -> Path:
        return self._directory / "dump.rdb"


class Replica(_Process):
    """One gateway, always on the same port."""

    def __init__(self, directory: Path, name: str, config: Mapping[str, Any], clock_s: int) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.name = name
        self.directory = directory
        self.file = directory / f"{name}.yaml"
        self.file.write_text(json.dumps(config, indent=1))  # JSON is YAML
        self.link: Link | None = None
        self._env: dict[str, str] = {}
        if clock_s:
            self._env = wrong_clock(clock_s)

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.process.poll() is None

    def start(self) -> None:
        command = [sys.executable, "-m", "sluicegate", "serve", "--config", str(self.file), "--port", str(self.port)]
        self._child = Child(command, self.directory / f"{self.name}.log", self._env)

    def wait_ready(self) -> None:
        assert self._child is not None
        self._child.wait_until(lambda: answers(f"{self.url}/readyz"))

    def kill(self) -> None:
        """kill -9."""
        if self._child is not None:
            self._child.stop(SIGKILL)

    def stop(self) -> None:
        """Drains and ends; killed when that takes too long."""
        if self._child is not None:
            with contextlib.suppress(AssertionError):
                self._child.stop(SIGTERM)

    @property
    def logged(self) -> str:
        return (self.directory / f"{self.name}.log").read_text(errors="replace")

    def cpu_s(self) -> float:
        return cpu_s(self.pid)

    def rss_kib(self) -> int:
        return rss_kib(self.pid)

    def metrics(self) -> dict[str, float]:
        return metrics(self.url)


def metrics(url: str) -> dict[str, float]:
    """Every sample of a gateway's /metrics, by name and labels as written."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {name: float(value) for name, value in re.findall(r"^([^#\s]\S*(?: \S+)*?) (\S+)$", text, re.MULTILINE)}


class Lag:
    """How late the event loops of gateways were, between its making and `p99_ms`."""

    _BUCKET = re.compile(r'sluicegate_loop_lag_seconds_bucket\{le="(\S+)"\}')

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = urls
        self._before = {url: self._read(url) for url in urls}

    def _read(self, url: str) -> dict[float, float]:
        found = {self._BUCKET.fullmatch(name): value for name, value in metrics(url).items()}
        return {float(match[1]): value for match, value in found.items() if match}

    def p99_ms(self) -> list[float]:
        """Per gateway: the upper bound of the bucket in which the 99th percentile lies, or -1 for one that was started again."""
        found = []
        for url in self._urls:
            after, before = self._read(url), self._before[url]
            counts = {bound: count - before.get(bound, 0) for bound, count in after.items()}
            total = max(counts.values(), default=0)
            bounds = [bound for bound, count in sorted(counts.items()) if count >= 0.99 * total]
            restarted = any(count < 0 for count in counts.values())
            found.append(-1.0 if restarted or not bounds or not total else round(bounds[0] * 1000, 3))
        return found


class Stand:
    """The running processes of a shape. A context manager."""

    def __init__(self, shape: Shape, *, gateways: bool = True) -> None:
        self.shape = shape
        self._gateways = gateways
        self._servers = 1  # Redis servers so far
        self.mocks: dict[str, Mock] = {}
        self.replicas: list[Replica] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            print(self.logs(), file=sys.stderr)
        self._stack.close()

    def _start(self) -> None:
        self.directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="sg")))
        self.redis = self._redis("redis")
        for name, options in self.shape.mocks.items():
            home = self.directory / name
            home.mkdir()
            mock = self.mocks[name] = Mock(home, free_port(), list(options))
            self._stack.callback(mock.stop, SIGKILL)
        for number in range(self.shape.replicas if self._gateways else 0):
            self._replica(number)
        for mock in self.mocks.values():
            mock.wait_until(lambda mock=mock: answers(f"{mock.url}/mock/stats"))  # type: ignore[misc]
        for replica in self.replicas:
            replica.wait_ready()

    def _redis(self, name: str) -> Redis:
        redis = Redis(self.directory, name)
        self._stack.callback(redis.stop)
        return redis

    def fail_over(self, lag_s: float) -> None:
        """To a standby that has not seen what was written last; behind the links, so that gateways keep their address."""
        self._servers += 1
        old, standby = self.redis, self._redis(f"redis{self._servers}")
        with old.followed(standby) as link:
            link.swallow = True
            time.sleep(lag_s)
            old.stop()
        standby.client.replicaof("NO", "ONE")
        self.redis = standby
        for replica in self.replicas:
            assert replica.link is not None
            replica.link.target = standby.port
            replica.link.drop()

    def _replica(self, number: int) -> None:
        name = f"replica{number}"
        link = Link(self.redis.port) if self.shape.linked else None
        if link is not None:
            self._stack.callback(link.close)
        clock_s = self.shape.clocks_s[number] if number < len(self.shape.clocks_s) else 0
        ledger = f"redis://127.0.0.1:{link.port}/0" if link is not None else self.redis.url
        replica = Replica(self.directory, name, self.config(name, ledger), clock_s)
        replica.link = link
        self.replicas.append(replica)
        self._stack.callback(replica.kill)
        replica.start()

    def config(self, name: str, ledger: str) -> dict[str, Any]:
        """The configuration of one replica."""
        urls = {provider: mock.url for provider, mock in self.mocks.items()}
        return config(self.shape, urls, ledger=ledger, journal=str(self.directory / name), records=f"sqlite:///{self.directory}/records.db")

    @property
    def urls(self) -> list[str]:
        return [replica.url for replica in self.replicas]

    @property
    def mock_urls(self) -> dict[str, str]:
        return {name: mock.url for name, mock in self.mocks.items()}

    def logs(self) -> str:
        """The ends of what the gateways printed."""
        return "\n".join(f"--- {replica.name}\n{replica.logged[-3000:]}" for replica in self.replicas)


def config(shape: Shape, mock_urls: Mapping[str, str], *, ledger: str, journal: str, records: str) -> dict[str, Any]:
    """A configuration for a shape."""
    providers = {
        name: {"provider": "mock", "base_url": f"{url}/v1", "api_key": "sk-upstream", **shape.providers.get(name, {})}
        for name, url in mock_urls.items()
    }
    return {
        "server": {"listen": "127.0.0.1:0", "drain": "5s"},
        "ledger": ledger,
        "records": records,
        "journal": journal,
        "log": {"access": "off"},
        "providers": providers,
        "models": shape.models,
        "tenants": shape.tenants,
        "budget": {"min_output": 16, **shape.budget},
        **shape.more,
    }


# -- what is seen from outside ----------------------------------------------------------------------------------------------------------------


def loaded(settings: Mapping[str, Any]) -> Loaded:
    """A configuration, compiled as a gateway compiles it."""
    return load_text(json.dumps(settings), os.environ)


class Books:
    """The ledger's counters and holds, read through a ledger of our own that changes nothing."""

    def __init__(self, settings: Loaded) -> None:
        self.loaded = settings

    async def read(self) -> tuple[list[CounterView], list[HoldView]]:
        ledger = app.ledger_of(self.loaded)
        await ledger.open()
        try:
            return await ledger.show()
        finally:
            await ledger.close()

    async def used(self, *marks: str) -> int:
        """What the counters whose keys have these marks have counted, once no hold is open. Raises TimeoutError."""
        async with asyncio.timeout(QUIET_S):
            while True:
                counters, holds = await self.read()
                if not any(hold.state == "open" for hold in holds):
                    return sum(counter.used for counter in counters if all(mark in counter.key for mark in marks))
                await asyncio.sleep(0.1)


def stats(url: str) -> Any:
    """A mock's truth: total and per caller."""
    return json.loads(call(f"{url}/mock/stats")[2])


def set_fault(url: str, **fault: Any) -> None:
    """Tells a mock how to answer calls to come."""
    status, _, body = call(f"{url}/mock/faults", fault)
    if status != 200:
        raise ValueError(body.decode())


def wait_idle(urls: Sequence[str]) -> None:
    """Until no mock can produce tokens any more."""
    deadline = time.monotonic() + QUIET_S
    while any(stats(url)["total"]["in_flight"] for url in urls):
        if time.monotonic() > deadline:
            raise TimeoutError(f"mocks still produce after {QUIET_S} s")
        time.sleep(0.05)
