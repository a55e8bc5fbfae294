"""A configuration file that changes under running processes: two workers, clients that stay, and what a second brings."""

import json
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support_gateway import Gateway, Mock, call, config, running_gateway, running_mock
from support_time import undisturbed

WITHIN_S = 1.0
SLACK_S = 6.0  # beside other tests on few cores


class Changing(Gateway):
    """A gateway whose file a test changes."""

    file: Path
    text: str

    def write(self, text: str) -> None:
        """As an editor that saves beside it and renames."""
        beside = self.file.with_suffix(".new")
        beside.write_text(text)
        beside.rename(self.file)


@pytest.fixture(scope="module")
def slow_mock(directory: Path) -> Iterator[Mock]:
    with running_mock(directory, "--ttft", "2ms", "--tpot", "20ms") as mock:
        yield mock


def tenants(*keys: str, limits: str = "[1M tokens/day]") -> str:
    return f"  acme:\n    limits: {limits}\n    keys: [{', '.join(f'{{name: {name}, key: sk-{name}}}' for name in keys)}]"


@pytest.fixture
def gateway(tmp_path: Path, slow_mock: Mock) -> Iterator[Changing]:
    text = config(tmp_path, slow_mock.url, tenants("one"))
    with running_gateway(tmp_path, text, arguments=("--workers", "2")) as gateway:
        gateway.__class__ = Changing
        assert isinstance(gateway, Changing)
        gateway.file, gateway.text = tmp_path / "gateway.yaml", text
        wait_until(lambda: gateway.logged().count("to=open tree=acme") >= 2)
        yield gateway


def wait_until(true: Callable[[], bool], within_s: float = 60.0) -> float:
    """How long it took to come true."""
    began = undisturbed()
    while not true():
        assert undisturbed() - began < within_s
        time.sleep(0.02)
    return undisturbed() - began


def always(gateway: Gateway, key: str, status: int, times: int = 12) -> bool:
    """Whether every one of some requests, on connections of their own, gets this status: the workers share them."""
    return all(gateway.chat(key, max_tokens=1)[0] == status for _ in range(times))


def applied(gateway: Gateway, times: int) -> bool:
    return gateway.logged().count("configuration applied") >= times


class Stream(threading.Thread):
    """A stream under way."""

    def __init__(self, gateway: Gateway, key: str, tokens: int) -> None:
        super().__init__()
        body = {"model": "chat", "messages": [{"role": "user", "content": "Hello"}], "stream": True, "max_tokens": tokens}
        headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
        self.request = urllib.request.Request(f"{gateway.base_url}/chat/completions", json.dumps(body).encode(), headers)
        self.begun = threading.Event()
        self.lines: list[bytes] = []

    def run(self) -> None:
        with urllib.request.urlopen(self.request, timeout=30) as answer:
            for line in answer:
                self.lines.append(line)
                self.begun.set()


def test_keys_and_limits_change_under_a_stream(gateway: Changing) -> None:
    """A limit, a key more, a key less: on every worker within a second, and the stream under way, whose key is gone, comes to its end."""
    streams = [Stream(gateway, "sk-one", 150) for _ in range(4)]
    for stream in streams:
        stream.start()
    for stream in streams:
        assert stream.begun.wait(20)
    gateway.write(gateway.text.replace("[1M tokens/day]", "[1M tokens/day, $1/month]").replace("keys: [", "keys: [{name: two, key: sk-two}, "))
    took_s = wait_until(lambda: applied(gateway, 2))
    assert took_s < WITHIN_S + SLACK_S
    assert always(gateway, "sk-two", 200)
    names = [limit["name"] for limit in gateway.usage("sk-one")["limits"]]
    assert names == ["organization acme tokens/day", "organization acme usd/month"]
    gateway.write(gateway.text.replace("name: one, key: sk-one", "name: two, key: sk-two"))
    assert wait_until(lambda: applied(gateway, 4)) < WITHIN_S + SLACK_S
    assert always(gateway, "sk-one", 401) and always(gateway, "sk-two", 200)
    for stream in streams:
        stream.join(30)
        assert stream.lines[-2] == b"data: [DONE]\n"


def test_a_broken_file_changes_nothing_until_it_is_mended(gateway: Changing) -> None:
    """It is logged once by each worker; a worker that dies meanwhile waits for a file that it can use, and the others serve on."""
    gateway.write(gateway.text.replace("tokens/day", "bananas/day"))
    wait_until(lambda: gateway.logged().count("configuration refused") == 2)
    assert always(gateway, "sk-one", 200, 4)
    [victim, _] = workers(gateway)
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: "waits for a configuration that it can use" in gateway.logged())
    assert always(gateway, "sk-one", 200, 4)
    os.kill(gateway.pid, signal.SIGHUP)
    gateway.write(gateway.text.replace("key: sk-one", "key: sk-other"))
    wait_until(lambda: applied(gateway, 1) and len(workers(gateway)) == 2)
    wait_until(lambda: always(gateway, "sk-other", 200, 4))
    assert always(gateway, "sk-one", 401)
    assert gateway.logged().count("configuration refused") == 2


def test_another_ledger_is_refused_and_a_hang_up_reads_anew(gateway: Changing, tmp_path: Path) -> None:
    """What a running gateway cannot change is named, and nothing of that file is used; a limit that is lowered binds at once, and keeps the count."""
    gateway.write(gateway.text.replace("/ledger.db", "/other.db").replace("key: sk-one", "key: sk-other"))
    wait_until(lambda: gateway.logged().count("ledger: cannot be changed while the gateway runs") == 2)
    assert always(gateway, "sk-one", 200, 4) and not (tmp_path / "other.db").exists()
    used = gateway.usage("sk-one")["limits"][0]["used"]
    gateway.file.write_text(gateway.text.replace("1M tokens", f"{used} tokens"))
    os.kill(gateway.pid, signal.SIGHUP)
    assert wait_until(lambda: applied(gateway, 2)) < WITHIN_S + SLACK_S
    refused: Any = gateway.chat("sk-one", max_tokens=20)
    assert (refused[0], refused[2]["error"]["code"], refused[2]["error"]["sluicegate"]["used"]) == (429, "budget_exceeded", used)


def test_a_reload_is_asked_for(tmp_path: Path, slow_mock: Mock) -> None:
    """`POST /admin/v1/reload` answers when the file is in use, or why it is not; the one in use is shown."""
    admin = "admin: {key: sk-admin-0123456789abcdef}"
    text = config(tmp_path, slow_mock.url, tenants("one"), more=admin)
    with running_gateway(tmp_path, text) as gateway:
        file, url = tmp_path / "gateway.yaml", f"{gateway.url}/admin/v1"

        def ask(path: str, body: Any = None) -> tuple[int, Any]:
            status, _, answer = call(f"{url}/{path}", body, "sk-admin-0123456789abcdef", method="GET" if body is None else "POST")
            return status, json.loads(answer)

        first = ask("configuration")[1]
        file.write_text(text.replace("tokens/day", "bananas/day"))
        status, answer = ask("reload", {})
        assert (status, answer["error"]["code"]) == (409, "configuration_refused") and "bananas" in answer["error"]["message"]
        shown = ask("configuration")[1]
        assert (shown["version"], len(shown["problems"])) == (first["version"], 1) and shown["refused"]
        file.write_text(text.replace("key: sk-one", "key: sk-two"))
        status, answer = ask("reload", {})
        assert (status, answer["problems"], answer["version"] != first["version"]) == (200, [], True)
        assert [gateway.chat(key, max_tokens=1)[0] for key in ("sk-one", "sk-two")] == [401, 200]


def workers(gateway: Gateway) -> list[int]:
    """The processes of a gateway's workers."""
    return [int(pid) for pid in Path(f"/proc/{gateway.pid}/task/{gateway.pid}/children").read_text().split()]
