"""The command line as a user has it: real processes, their output and exit codes."""

import asyncio
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sluicegate.config.load import EXAMPLE
from sluicegate.core.claims import Settlement
from sluicegate.ledger.sqlite import SqliteLedger
from support_gateway import Child, Mock, answers, call, config, free_port, running_gateway, running_mock
from support_ledgers import Desk, use
from support_time import undisturbed

DOCS = Path(__file__).parents[2] / "docs"
TENANT = "  acme:\n    keys: [{name: k, key: sk-k, limits: [10k tokens/day, $1/day]}]\n"


def sluicegate(*arguments: str, cwd: Path, given: str = "", **env: str) -> "subprocess.CompletedProcess[str]":
    """Runs a command to its end."""
    command = [sys.executable, "-m", "sluicegate", *arguments]
    return subprocess.run(command, cwd=cwd, input=given, capture_output=True, text=True, timeout=60, check=False, env=os.environ | env)


def written(directory: Path, mock: Mock, tenants: str = TENANT, **options: str) -> str:
    file = directory / "config.yaml"
    file.write_text(config(directory, mock.url, tenants, **options))
    return str(file)


# -- serve --------------------------------------------------------------------------------------------------------------------------------


def test_serve_with_a_mock_prints_requests_that_work(tmp_path: Path) -> None:
    """`serve --mock` needs no configuration; the lines that it prints, pasted into a shell, are answered, streamed too, and so are those of
    docs/admin.md; SIGTERM ends both."""
    port = free_port()
    child = Child([sys.executable, "-m", "sluicegate", "serve", "--mock", "--port", str(port)], tmp_path / "log")
    try:
        child.wait_until(lambda: answers(f"http://127.0.0.1:{port}/readyz"))
        commands = re.findall(r"^  (curl (?:.*\\\n)?.*)$", child.logged(), re.MULTILINE)
        answered = [subprocess.run(["bash", "-c", c], capture_output=True, text=True, timeout=30, check=True).stdout for c in commands]
        for line in re.findall(r"^(curl (?:.*\\\n)?.*)$", (DOCS / "admin.md").read_text(), re.MULTILINE):
            if "..." in line:  # to be filled in
                continue
            there = line.replace("127.0.0.1:8080", f"127.0.0.1:{port}").replace("curl", "curl --fail", 1)
            assert subprocess.run(["bash", "-c", there], capture_output=True, timeout=30, check=True).stdout
    finally:
        assert child.stop(timeout_s=30) == 0, child.logged()
    unary, streamed, usage, health, chaos = answered
    assert json.loads(unary)["choices"][0]["message"]["content"]
    assert streamed.startswith("data: {")
    assert streamed.endswith("data: [DONE]\n\n")
    assert json.loads(usage)["limits"]
    assert json.loads(health)["ready"]
    assert json.loads(chaos)["status"] == 503


def test_a_port_in_use_is_said(tmp_path: Path, mock: Mock) -> None:
    """Exit code 1, and one line that names the port and how to choose another."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = sluicegate("serve", "--config", written(tmp_path, mock), "--port", port, cwd=tmp_path)
    assert ended.returncode == 1
    assert f"port {port}" in ended.stderr
    assert "PORT=" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_memory_ledger_is_one_workers(tmp_path: Path, mock: Mock) -> None:
    """More than one worker on the memory ledger is refused with exit code 2."""
    ended = sluicegate("serve", "--config", written(tmp_path, mock, ledger="memory://"), "--workers", "2", cwd=tmp_path)
    assert ended.returncode == 2
    assert ended.stderr.startswith("sluicegate: ledger: ")


def test_a_wrong_configuration_is_named(tmp_path: Path, mock: Mock) -> None:
    """Exit code 2, with the path and the line of the field, for serve and for check; a file that is not there too."""
    file = Path(written(tmp_path, mock))
    file.write_text(file.read_text().replace("limits: [10k tokens/day, $1/day]", "limits: [10k tokens/fortnight]"))
    for command in (["serve", "--config"], ["check"]):
        ended = sluicegate(*command, str(file), cwd=tmp_path)
        assert ended.returncode == 2
        assert "tenants.acme.keys[0].limits[0]" in ended.stderr
        assert re.search(r"config.yaml:\d+:", ended.stderr)
        assert "Traceback" not in ended.stderr
    assert sluicegate("check", "nothing.yaml", cwd=tmp_path).returncode == 2


def test_an_environment_file_is_read(tmp_path: Path, mock: Mock) -> None:
    """Variables of --env-file are known to the configuration, and the environment wins over it."""
    file = Path(written(tmp_path, mock))
    file.write_text(file.read_text().replace("sk-k", '"${SECRET}"').replace("$1/day", '"${DOLLARS}/day"'))
    (tmp_path / "env").write_text("# of the test\nexport SECRET='sk-other'\nDOLLARS=$9\n")
    checked = sluicegate("check", str(file), "--env-file", "env", cwd=tmp_path, DOLLARS="$3")
    assert checked.returncode == 0, checked.stderr
    assert "$3/day" in checked.stdout
    assert "$9" not in checked.stdout


@pytest.mark.parametrize("ledger", ["sqlite", "redis"])
def test_workers_drain_settle_and_are_replaced(tmp_path: Path, ledger: str, request: pytest.FixtureRequest) -> None:
    """With two workers: a dead one is replaced; on SIGTERM open streams run to their end, all is settled, the parent exits 0."""
    url = request.getfixturevalue("redis") if ledger == "redis" else ""
    with running_mock(tmp_path, "--ttft", "50ms", "--tpot", "10ms", "--completion", "100") as mock:
        text = config(tmp_path, mock.url, TENANT, ledger=url)
        with running_gateway(tmp_path, text, arguments=("--workers", "2")) as gateway:
            first = workers_of(gateway.pid)
            assert len(first) == 2
            os.kill(first[0], signal.SIGKILL)
            gateway.wait_until(lambda: len(workers_of(gateway.pid)) == 2 and first[0] not in workers_of(gateway.pid))
            streams = [Stream(gateway.port) for _ in range(8)]
            gateway.wait_until(lambda: mock.stats()["total"]["in_flight"] == 8)
            gateway.send(signal.SIGTERM)
            assert [stream.result() for stream in streams] == [100] * 8
            assert gateway.process.wait(15) == 0
        produced = mock.total()["tokens"]
    shown = sluicegate("ledger", "show", "--config", str(tmp_path / "gateway.yaml"), cwd=tmp_path)
    assert "no holds" in shown.stdout
    assert re.search(rf"key k tokens/day .* {produced} +│ 0 +│ 10000", shown.stdout), (produced, shown.stdout)


def test_a_second_signal_cuts(tmp_path: Path) -> None:
    """Streams that would take a minute end within two seconds of the second signal, and are settled."""
    with running_mock(tmp_path, "--tpot", "60ms", "--completion", "1000") as mock:
        with running_gateway(tmp_path, config(tmp_path, mock.url, TENANT), arguments=("--workers", "2")) as gateway:
            streams = [Stream(gateway.port) for _ in range(4)]
            gateway.wait_until(lambda: mock.stats()["total"]["in_flight"] == 4)
            gateway.send(signal.SIGTERM)
            time.sleep(0.5)
            assert gateway.process.poll() is None
            cut_at = undisturbed()
            gateway.send(signal.SIGINT)
            assert gateway.process.wait(15) == 0
            assert undisturbed() - cut_at < 4
            for stream in streams:
                stream.result()
        assert mock.total()["disconnects"] == 4
    shown = sluicegate("ledger", "show", "--config", str(tmp_path / "gateway.yaml"), cwd=tmp_path)
    assert "no holds" in shown.stdout


class Stream(threading.Thread):
    """Reads one streamed answer; `result` is how many chunks with output came."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.port = port
        self.chunks = 0
        self.start()

    def run(self) -> None:
        body = {"model": "chat", "stream": True, "max_tokens": 1000, "messages": [{"role": "user", "content": "Hello"}]}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"authorization": "Bearer sk-k"})
            for line in connection.getresponse():
                self.chunks += b'"content":"' in line and b'"content":""' not in line
        except (OSError, http.client.HTTPException):
            pass  # cut
        finally:
            connection.close()

    def result(self) -> int:
        self.join(30)
        assert not self.is_alive()
        return self.chunks


def workers_of(pid: int) -> list[int]:
    """The child processes of one."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    return [int(child) for child, parent in (line.split() for line in listed.splitlines()) if int(parent) == pid]


# -- the others ---------------------------------------------------------------------------------------------------------------------------


def test_check_says_what_the_example_means(tmp_path: Path) -> None:
    """Tenants, limits with window and next reset, models and deployments, and a warning for keys in plain text."""
    checked = sluicegate("check", str(EXAMPLE), cwd=tmp_path)
    assert checked.returncode == 0, checked.stderr
    for expected in ("normal", "tight", "batch", "300 tokens/minute", "refills over 1m", "$100/month", "00:00:00 UTC", "mock/mock-small", "warning"):
        assert expected in checked.stdout
    assert "sk-sluicegate" not in checked.stdout


def test_the_configuration_in_the_readme_is_one(tmp_path: Path) -> None:
    """What the README shows as a configuration is accepted as it stands."""
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    shown = re.findall(r"```yaml\n(.*?)```", readme, re.DOTALL)
    assert len(shown) == 2
    (tmp_path / "config.yaml").write_text("".join(shown))
    checked = sluicegate("check", "config.yaml", cwd=tmp_path, OPENAI_API_KEY="sk-none")
    assert checked.returncode == 0, checked.stderr


def test_plan_tells_what_would_happen_and_sends_nothing(tmp_path: Path, mock: Mock) -> None:
    """Allowed: claims, grant and cost, in the stated order; neither the mock nor the ledger has noticed."""
    file = written(tmp_path, mock)
    (tmp_path / "body.json").write_text(json.dumps({"model": "chat", "max_tokens": 100, "messages": [{"role": "user", "content": "x" * 40}]}))
    before = mock.stats()["total"]["requests"]
    told = sluicegate("plan", "--config", file, "--key", "sk-k", "body.json", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    heads = [line.split()[0] for line in told.stdout.splitlines() if line[:1].strip()]
    assert list(dict.fromkeys(heads)) == ["key", "allowed", "cache", "deployments", "estimate", "claim", "grant", "cost", "affordable", "logged"]
    body = (tmp_path / "body.json").read_text()
    as_json = json.loads(sluicegate("plan", "--config", file, "--key", "acme/@k", "--json", "-", cwd=tmp_path, given=body).stdout)
    assert (as_json["key"], as_json["path"], as_json["allowed"]) == ("acme/@k", ["acme", "k"], True)
    assert (as_json["input_tokens"], as_json["output_tokens"], as_json["grant"]) == (17, 100, 100)
    assert {claim["limit"]: claim["takes"] for claim in as_json["claims"]} == {"key k tokens/day": 147, "key k usd/day": 123_500}
    assert as_json["cost_at_most_nano_usd"] == 123_500
    assert mock.stats()["total"]["requests"] == before
    assert "no holds" in sluicegate("ledger", "show", "--config", file, cwd=tmp_path).stdout


def test_plan_agrees_with_the_gateway(tmp_path: Path) -> None:
    """Of an exhausted key and of a limit that needs time, plan tells status, code and message that the gateway then answers."""
    tenants = "  acme:\n    keys: [{name: k, key: sk-k, limits: [40 output tokens/day]}, {name: m, key: sk-m, limits: [100 tokens/minute]}]\n"
    with running_mock(tmp_path, "--completion", "40") as mock, running_gateway(tmp_path, config(tmp_path, mock.url, tenants)) as gateway:
        for key, status in (("sk-k", 429), ("sk-m", 429)):
            assert gateway.chat(key, max_tokens=60)[0] == 200
            body = {"model": "chat", "max_tokens": 60, "messages": [{"role": "user", "content": "Hello"}]}
            file = str(tmp_path / "gateway.yaml")
            planned = json.loads(sluicegate("plan", "--config", file, "--key", key, "--json", "-", cwd=tmp_path, given=json.dumps(body)).stdout)
            answered, headers, told = gateway.chat(key, max_tokens=60)
            assert answered == planned["status"] == status
            assert planned["allowed"] is False
            assert (planned["code"], planned["limited_by"]) == (told["error"]["code"], headers["x-sluicegate-limited-by"])
            assert ("retry-after" in headers) == (planned["retry_after_s"] is not None)


@pytest.mark.parametrize(
    ("key", "body", "expected"),
    [("sk-nobody", "{}", "--key"), ("sk-k", '{"model": ', "JSON"), ("sk-k", '{"model": "chat", "messages": 5}', "messages")],
)
def test_wrong_input_of_plan_is_named(tmp_path: Path, mock: Mock, key: str, body: str, expected: str) -> None:
    """Exit code 2 and one line for a key that is not known and for a body that is not a request."""
    ended = sluicegate("plan", "--config", written(tmp_path, mock), "--key", key, "-", cwd=tmp_path, given=body)
    assert ended.returncode == 2
    assert expected in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_ledger_show_tells_counters_and_holds_in_words(tmp_path: Path) -> None:
    """While a stream is open its hold is there, with its key and what it takes; afterwards what was used."""
    with (
        running_mock(tmp_path, "--tpot", "20ms", "--completion", "400") as mock,
        running_gateway(tmp_path, config(tmp_path, mock.url, TENANT)) as gateway,
    ):
        stream = Stream(gateway.port)
        gateway.wait_until(lambda: mock.stats()["total"]["in_flight"] == 1)
        shown = sluicegate("ledger", "show", "--config", str(tmp_path / "gateway.yaml"), cwd=tmp_path).stdout
        assert stream.result() == 400
        used = mock.total()["tokens"]
        after = sluicegate("ledger", "show", "--config", str(tmp_path / "gateway.yaml"), cwd=tmp_path).stdout
    assert re.search(r"req_\w+\.1 │ acme/@k +│ open +│ 1000 ", shown)
    assert "│ mock/mock-model " in shown
    assert "1012 of key k tokens/day" in shown
    assert "no holds" in after
    assert re.search(rf"key k tokens/day .* {used} ", after)


async def test_ledger_show_takes_no_marker_for_a_hold(tmp_path: Path, mock: Mock) -> None:
    """An id that was charged without a hold is remembered for a week, and holds nothing; one that has expired was charged, and is shown."""
    written(tmp_path, mock)
    ledger = SqliteLedger(f"{tmp_path}/ledger.db")
    await ledger.open()
    await use(ledger, "acme")
    desk = Desk(ledger, "acme")
    await desk.admit(desk.refs(desk.window(9)), 5, 0, hold_id="expired", ttl_ms=0)
    for hold_id, mode in (("charged", "force"), ("given-up", "cancel")):
        await ledger.settle(Settlement(hold_id, desk.refs(desk.window(9)), (1,), mode))  # type: ignore[arg-type]
    await asyncio.sleep(0.005)
    await ledger.sweep(9)
    await ledger.close()
    shown = await asyncio.to_thread(sluicegate, "ledger", "show", "--config", str(tmp_path / "config.yaml"), cwd=tmp_path)
    assert re.search(r"expired +│ +│ expired, held", shown.stdout), shown
    assert "2 ids are remembered that hold nothing" in shown.stdout
    assert not re.search("charged +│|given-up", shown.stdout)


def test_the_mock_refuses_an_option_that_it_does_not_have(tmp_path: Path) -> None:
    """Exit code 2 and the option's name; a value that is missing too."""
    for arguments in (["--nonsense", "1"], ["--ttft"], ["--tpot", "soon"]):
        ended = sluicegate("mock", "--port", str(free_port()), *arguments, cwd=tmp_path)
        assert ended.returncode == 2
        assert arguments[0].lstrip("-") in ended.stderr
        assert "Traceback" not in ended.stderr


def test_the_mock_says_where_it_is(tmp_path: Path) -> None:
    """The base URL as the clients of each dialect want it."""
    for dialect, path in (("openai", "/v1"), ("anthropic", ""), ("ollama", "")):
        port = free_port()
        child = Child([sys.executable, "-m", "sluicegate", "mock", "--port", str(port), "--dialect", dialect], tmp_path / dialect)
        try:
            child.wait_until(lambda child=child: "\n" in child.logged())  # type: ignore[misc]
        finally:
            child.stop()
        assert child.logged() == f"http://127.0.0.1:{port}{path}\n"
    assert sluicegate("mock", "--dialect", "telepathy", cwd=tmp_path).returncode == 2


def test_demo_shows_its_scenes(tmp_path: Path) -> None:
    """Those that need no waiting, each as it should be, in a directory of its own; exit code 0. A scene that there is not is a mistake."""
    scenes = ("refusal", "truncation", "limited", "context", "chaos", "once", "cap", "cooldown", "usage")
    shown = sluicegate("demo", *scenes, cwd=tmp_path)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert shown.stdout.count("Seen: ") == len(scenes)
    for expected in (
        "429 rate_limit_exceeded",
        "x-sluicegate-max-tokens: 60",
        "the provider produced 300 of 300 tokens",
        "key small output_tokens/day",
    ):
        assert expected in shown.stdout
    assert list(tmp_path.iterdir()) == []
    assert sluicegate("demo", "fire", cwd=tmp_path).returncode == 2


def test_an_unknown_command_is_a_usage_error(tmp_path: Path) -> None:
    """Exit code 2 for what the command line does not know, 0 for its help, with every command in it."""
    assert sluicegate("fly", cwd=tmp_path).returncode == 2
    shown = sluicegate("--help", cwd=tmp_path)
    assert shown.returncode == 0
    assert all(command in shown.stdout for command in ("serve", "mock", "check", "plan", "ledger", "demo"))
    assert "worker" not in shown.stdout


def test_what_is_served_is_named_to_who_asks_for_something_else(tmp_path: Path, mock: Mock) -> None:
    """`--port` wins over the configuration, and an unknown path is a JSON 404."""
    with running_gateway(tmp_path, config(tmp_path, mock.url, TENANT)) as gateway:
        status, headers, body = call(f"{gateway.url}/v1/images/generations", {}, "sk-k")
    assert status == 404
    assert headers["content-type"] == "application/json"
    assert "/v1/chat/completions" in json.loads(body)["error"]["message"]
