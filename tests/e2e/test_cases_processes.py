"""Cases of cases.md on processes that are told to end, or die: streams are finished or settled, what is owed is paid, nothing is held for ever."""

import json
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest
import redis as redis_client

from support_gateway import Gateway, Mock, call, config, running_gateway, running_mock, running_redis
from support_time import undisturbed

KEYS = """
  acme:
    limits: [1M tokens/day]
    keys: [{name: key, key: sk-key, limits: [8 concurrent]}]"""
STREAMS = 5
EXIT_S = 2.5  # 2 s after the second signal, and what a busy machine takes to tell of it


class Stream:
    """A client that reads a stream in steps, over a socket of its own."""

    def __init__(self, gateway: Gateway, **fields: Any) -> None:
        body = json.dumps({"model": "chat", "messages": [{"role": "user", "content": "Hello"}], "stream": True, **fields}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer sk-key\r\ncontent-length: {len(body)}\r\n\r\n"
        self.socket = socket.create_connection(("127.0.0.1", gateway.port), timeout=20)
        self.socket.sendall(head.encode() + body)
        self.data = b""

    def until(self, mark: bytes) -> None:
        while mark not in self.data:
            data = self.socket.recv(1 << 16)
            assert data, self.data[-300:]
            self.data += data

    def rest(self) -> bytes:
        """All that comes until the connection ends."""
        while True:
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionError:
                data = b""
            if not data:
                self.socket.close()
                return self.data
            self.data += data


def used(gateway: Gateway) -> dict[str, int]:
    """Of both limits, what is used and held."""
    limits = {limit["unit"]: limit for limit in gateway.usage("sk-key")["limits"]}
    return {"used": limits["tokens"]["used"], "held": limits["tokens"]["held"], "concurrent": limits["concurrent"]["held"]}


def streams(gateway: Gateway, count: int = STREAMS) -> list[Stream]:
    """Streams that have begun."""
    opened = [Stream(gateway, max_tokens=400) for _ in range(count)]
    for stream in opened:
        stream.until(b'"content":" of"')
    return opened


def begun(gateway: Gateway) -> None:
    """Waits until the first signal has been taken: no new connection is accepted."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", gateway.port), timeout=1).close()
        except OSError:
            return
        time.sleep(0.02)
    raise AssertionError("it still accepts")


@pytest.mark.parametrize("workers", [1, 2])
def test_case_61_and_118_the_first_signal_drains(tmp_path: Path, workers: int) -> None:
    """SIGTERM with five open streams: each ends whole, all is settled, the exit code is 0, and the next process finds it so."""
    with running_mock(tmp_path, "--tpot", "4ms", "--completion", "300") as mock:
        text = config(tmp_path, mock.url, KEYS)
        with running_gateway(tmp_path, text, arguments=("--workers", str(workers))) as gateway:
            opened = streams(gateway)
            gateway.send(signal.SIGTERM)
            answers = [stream.rest() for stream in opened]
            assert gateway.process.wait(20) == 0
        assert all(answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n") for answer in answers)
        settled(tmp_path, text, mock, exactly=True)


@pytest.mark.parametrize(("workers", "extend"), [(1, False), (2, True)], ids=["capped", "extended-two workers"])
def test_case_61_and_118_the_second_signal_cuts_and_settles(tmp_path: Path, workers: int, extend: bool) -> None:
    """Two signals with five streams that would go on for long: cut at once, charged at least what was produced, gone within 2 s, exit code 0."""
    with running_mock(tmp_path, "--tpot", "50ms", "--completion", "2000") as mock:
        text = config(tmp_path, mock.url, KEYS, extend=extend)
        with running_gateway(tmp_path, text, arguments=("--workers", str(workers))) as gateway:
            opened = streams(gateway)
            gateway.send(signal.SIGTERM)
            begun(gateway)
            started = undisturbed()
            gateway.send(signal.SIGTERM)
            answers = [stream.rest() for stream in opened]
            assert gateway.process.wait(20) == 0
            assert undisturbed() - started < EXIT_S
        assert not any(answer.endswith(b"0\r\n\r\n") for answer in answers)
        settled(tmp_path, text, mock, exactly=False)


def test_case_61_readiness_goes_first(tmp_path: Path) -> None:
    """For `drain_delay` new connections are served while /readyz says that it drains; a stream ends whole after it, and then the process."""
    with running_mock(tmp_path, "--tpot", "5ms", "--completion", "300") as mock:
        text = config(tmp_path, mock.url, KEYS).replace('listen: "127.0.0.1:0"', 'listen: "127.0.0.1:0", drain_delay: 700ms')
        with running_gateway(tmp_path, text) as gateway:
            (stream,) = streams(gateway, 1)
            gateway.send(signal.SIGTERM)
            deadline = time.monotonic() + 60
            while (ready := call(f"{gateway.url}/readyz"))[0] == 200 and time.monotonic() < deadline:
                time.sleep(0.01)
            assert ready[0] == 503 and b"draining" in ready[2]
            assert gateway.chat("sk-key", max_tokens=5)[0] == 200
            begun(gateway)
            assert stream.rest().endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
            assert gateway.process.wait(20) == 0


def test_case_61_and_118_the_second_signal_waits_for_nobody(tmp_path: Path) -> None:
    """The ledger hangs: gone within 2 s all the same, exit code 0. What was used is in the journal, and charged when the ledger is back."""
    with running_mock(tmp_path, "--tpot", "50ms", "--completion", "2000") as mock, running_redis(tmp_path) as redis:
        text = config(tmp_path, mock.url, KEYS, ledger=redis)
        with redis_client.Redis.from_url(redis) as client:
            pid = int(client.info("server")["process_id"])
        with running_gateway(tmp_path, text, arguments=("--workers", "2")) as gateway:
            opened = streams(gateway)
            os.kill(pid, signal.SIGSTOP)
            try:
                gateway.send(signal.SIGTERM)
                begun(gateway)
                started = undisturbed()
                gateway.send(signal.SIGTERM)
                assert gateway.process.wait(20) == 0
                assert undisturbed() - started < EXIT_S
                for stream in opened:
                    stream.rest()
            finally:
                os.kill(pid, signal.SIGCONT)
        with running_gateway(tmp_path, text, name="next") as gateway:
            deadline = time.monotonic() + 60
            while (found := used(gateway))["used"] < mock.total()["tokens"] or found["held"] or found["concurrent"]:
                assert time.monotonic() < deadline, found
                time.sleep(0.05)


def settled(directory: Path, text: str, mock: Mock, *, exactly: bool) -> None:
    """A new process on the same ledger and journal: nothing is held, and at least what the provider produced is charged."""
    with running_gateway(directory, text, name="next") as gateway:
        found, truth = used(gateway), mock.total()
        assert (found["held"], found["concurrent"]) == (0, 0)
        assert found["used"] >= truth["tokens"]
        assert found["used"] == truth["tokens"] or not exactly


@pytest.mark.parametrize("ledger", ["sqlite", "redis"])
def test_case_127_concurrency_after_a_crash(tmp_path: Path, redis: str, ledger: str) -> None:
    """Eight streams of eight, kill -9, the time to live: eight new ones are admitted, and what the dead ones held is charged."""
    more = "budget: {hold_ttl: 1s}"
    with running_mock(tmp_path, "--tpot", "20ms", "--completion", "400") as mock:
        text = config(tmp_path, mock.url, KEYS, ledger=redis if ledger == "redis" else "", more=more)
        with running_gateway(tmp_path, text) as gateway:
            opened = streams(gateway, 8)
            assert gateway.chat("sk-key", max_tokens=20)[2]["error"]["code"] == "concurrency_exceeded"
            assert used(gateway)["concurrent"] == 8
            gateway.stop(signal.SIGKILL)
            for stream in opened:
                stream.rest()
        with running_gateway(tmp_path, text, name="next") as gateway:
            until_free(gateway)
            opened = streams(gateway, 8)
            assert used(gateway)["used"] >= 8 * 400
            for stream in opened:
                stream.socket.close()
            until_free(gateway)
            assert used(gateway)["used"] >= mock.total()["tokens"]


def until_free(gateway: Gateway) -> None:
    """Nothing is in flight, or taken to be."""
    deadline = time.monotonic() + 60
    while used(gateway)["concurrent"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_case_113_what_a_killed_process_owed_is_paid(tmp_path: Path) -> None:
    """Redis has gone when an answer ends, then the gateway is killed: its journal is replayed by the next process, and charged once."""
    with running_mock(tmp_path, "--completion", "30") as mock, running_redis(tmp_path) as redis:
        text = config(tmp_path, mock.url, KEYS, ledger=redis, more="on_ledger_failure: allow\nledger_timeout: 200ms")
        with running_gateway(tmp_path, text) as gateway:
            assert gateway.chat("sk-key", max_tokens=30)[0] == 200
            with redis_client.Redis.from_url(redis) as client:
                pid = int(client.info("server")["process_id"])
            os.kill(pid, signal.SIGSTOP)
            try:
                assert gateway.chat("sk-key", max_tokens=30)[0] == 200
                gateway.stop(signal.SIGKILL)
            finally:
                os.kill(pid, signal.SIGCONT)
        for name in ("next", "third"):
            with running_gateway(tmp_path, text, name=name) as gateway:
                deadline = time.monotonic() + 60
                while (found := used(gateway))["used"] < mock.total()["tokens"]:
                    assert time.monotonic() < deadline, found
                    time.sleep(0.05)
                assert (found["used"], found["held"]) == (mock.total()["tokens"], 0)
