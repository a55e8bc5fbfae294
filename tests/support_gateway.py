"""Real processes for end-to-end tests: a mock provider, a Redis, and the gateway, each on a free loopback port and ended by its own pid.

    async with or with: running_mock(...) as mock, running_gateway(directory, config(...)) as gateway

What a process prints goes to a file in its directory; it is shown when the process does not come up or ends badly.
"""

import contextlib
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any

START_S = 90.0


PORTS = range(10_240, 20_000)  # a kernel gives none of these to clients, nor those 10,000 above, where a Redis has its cluster bus
_draw = random.SystemRandom()  # Hypothesis sets the seed of the other one


def free_port() -> int:
    """A loopback port that nobody listens on now, and that nobody is given by chance before whoever asked listens there."""
    while True:
        port = _draw.choice(PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Child:
    """One process that a test started."""

    def __init__(self, arguments: list[str], log: Path, env: dict[str, str] | None = None) -> None:
        self.log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                arguments,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=log.parent,
                env=os.environ | (env or {}),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def logged(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Waits for `ready()`; fails with the log when the process ends first or the time is over."""
        deadline = time.monotonic() + START_S
        while not ready():
            assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{self.logged()}"
            assert time.monotonic() < deadline, f"not ready after {START_S} s:\n{self.logged()}"
            time.sleep(0.02)

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def stop(self, number: int = SIGTERM, timeout_s: float = 60.0) -> int:
        """Ends the process and returns its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"did not end within {timeout_s} s:\n{self.logged()}") from None


def answers(url: str) -> bool:
    """Whether a URL answers with a 200."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def pongs(port: int) -> bool:
    """Whether a Redis answers on a port."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
    except OSError:
        return False


def call(url: str, body: Any = None, key: str = "", method: str | None = None, timeout_s: float = 30.0) -> tuple[int, dict[str, str], bytes]:
    """One HTTP request without any client's cleverness: status, headers (lower-case), body."""
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            return answer.status, {name.lower(): value for name, value in answer.headers.items()}, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, {name.lower(): value for name, value in error.headers.items()}, error.read()


class Mock(Child):
    """`sluicegate mock`: the provider that knows what it produced."""

    def __init__(self, directory: Path, port: int, options: list[str]) -> None:
        super().__init__([sys.executable, "-m", "sluicegate", "mock", "--port", str(port), *options], directory / "mock.log")
        self.url = f"http://127.0.0.1:{port}"

    def stats(self) -> Any:
        return json.loads(call(f"{self.url}/mock/stats")[2])

    def total(self) -> dict[str, int]:
        """What it produced in all, once nothing can be produced any more: its tally, with `tokens` as prompt and completion together."""
        deadline = time.monotonic() + START_S
        while (total := self.stats()["total"])["in_flight"]:
            assert time.monotonic() < deadline, total
            time.sleep(0.02)
        return {**total, "tokens": total["prompt_tokens"] + total["completion_tokens"]}

    def reset(self) -> None:
        assert call(f"{self.url}/mock/reset", {})[0] == 200

    def faults(self, **fault: Any) -> None:
        assert call(f"{self.url}/mock/faults", fault)[0] == 200


class Gateway(Child):
    """`sluicegate serve` with a configuration of the test's own."""

    def __init__(self, directory: Path, config: str, name: str, arguments: tuple[str, ...]) -> None:
        self.port = free_port()
        file = directory / f"{name}.yaml"
        file.write_text(config)
        command = [sys.executable, "-m", "sluicegate", "serve", "--config", str(file), "--port", str(self.port), *arguments]
        super().__init__(command, directory / f"{name}.log")
        self.url = f"http://127.0.0.1:{self.port}"
        self.base_url = f"{self.url}/v1"

    def usage(self, key: str) -> Any:
        status, _, body = call(f"{self.base_url}/usage", key=key)
        assert status == 200, body
        return json.loads(body)

    def chat(self, key: str, prompt: str = "Hello", **fields: Any) -> tuple[int, dict[str, str], Any]:
        """One unary chat request: status, headers, body."""
        body = {"model": "chat", "messages": [{"role": "user", "content": prompt}], **fields}
        status, headers, data = call(f"{self.base_url}/chat/completions", body, key)
        return status, headers, json.loads(data)


@contextlib.contextmanager
def running_mock(directory: Path, *options: str) -> Iterator[Mock]:
    """A mock provider; options are those of `sluicegate mock`."""
    mock = Mock(directory, free_port(), list(options))
    try:
        mock.wait_until(lambda: answers(f"{mock.url}/mock/stats"))
        yield mock
    finally:
        mock.stop()


@contextlib.contextmanager
def running_gateway(directory: Path, config: str, name: str = "gateway", arguments: tuple[str, ...] = ()) -> Iterator[Gateway]:
    """A ready gateway. A test that has not stopped it itself finds that it drains and ends well."""
    gateway = Gateway(directory, config, name, arguments)
    ended = False
    try:
        gateway.wait_until(lambda: answers(f"{gateway.url}/readyz"))
        yield gateway
        ended = gateway.process.poll() is not None
        assert ended or gateway.stop() == 0, gateway.logged()
    finally:
        if gateway.process.poll() is None:
            gateway.stop(SIGKILL)


@contextlib.contextmanager
def running_redis(directory: Path) -> Iterator[str]:
    """A Redis without persistence; yields its URL."""
    server = shutil.which("redis-server")
    assert server, "redis-server is needed on PATH: `make test` installs it"
    port = free_port()
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(directory)]
    redis = Child([server, *options, "--maxmemory-policy", "noeviction"], directory / "redis.log")
    try:
        redis.wait_until(lambda: pongs(port))
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        redis.stop()


def config(
    directory: Path, mock_url: str, tenants: str, *, ledger: str = "", records: str = "", extend: bool = False, tokenizer: str = "", more: str = ""
) -> str:
    """A configuration with the models `chat` and `other` (input 0.5 and output 1 USD per 1M tokens) at the mock. `tenants` and `more` are YAML."""
    counted = f", tokenizer: {tokenizer}" if tokenizer else ""
    return f"""
server: {{listen: "127.0.0.1:0"}}
ledger: {ledger or f"sqlite:///{directory}/ledger.db"}
records: {records or f"sqlite:///{directory}/records.db"}
journal: {directory}/journal/
providers:
  mock: {{provider: mock, base_url: {mock_url}/v1, extend: {"on" if extend else "off"}{counted}}}
models:
  chat:
    deployments:
      - {{provider: mock, model: mock-model, price: {{input: 0.5, output: 1.0}}}}
    max_output: 1024
  other:
    deployments: [{{provider: mock, model: other-model, price: {{input: 0.5, output: 1.0}}}}]
tenants:
{tenants}
{more}"""
