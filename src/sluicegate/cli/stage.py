"""What `demo` runs on: a mock provider and two gateways that share a ledger, as processes in a temporary directory, and requests to them.

Everything is on loopback, ends with the context, and leaves nothing behind. What a gateway prints goes to a file, from which `changes` reads.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

from sluicegate.cli.console import console
from sluicegate.cli.serving import free_port

START_S = 30.0
ADMIN_KEY = "sk-demo-admin-key"
PAUSE_S = 1.5  # of breakers
FAILURES = 5  # until one opens


def _pair(name: str, more: str = "") -> str:
    """A route of two deployments."""
    price = "price: {input: 0.5, output: 1.5}"
    return f"{{deployments: [{{provider: east, model: {name}-1, {price}{more}}}, {{provider: west, model: {name}-2, {price}}}]}}"


CONFIG = f"""
server: {{listen: "127.0.0.1:0"}}
ledger: sqlite:///ledger.db
records: sqlite:///records.db
journal: "${{JOURNAL}}"
admin: {{key: {ADMIN_KEY}, chaos: on}}
log: {{access: json}}
resilience: {{retries: 1, backoff: 20ms, max_wait: 2s, breaker: {{failures: {FAILURES}, pause: {PAUSE_S * 1000:.0f}ms}}}}
providers:
  east: {{provider: mock, base_url: "${{MOCK_URL}}", proxy: off}}
  west: {{provider: mock, base_url: "${{MOCK_URL}}", proxy: off}}
models:
  chat:
    deployments: [{{provider: east, model: demo, price: {{input: 0.5, output: 1.5}}}}]
  capped:
    deployments: [{{provider: east, model: capped, price: {{input: 0.5, output: 1.5}}, extend: off}}]
  outage: {_pair("outage")}
  limited: {_pair("limited", ", limits: [3 requests/minute]")}
  patient: {_pair("patient")}
  chaos: {_pair("chaos")}
  shared: {_pair("shared")}
  short:
    deployments: [{{provider: east, model: short, price: {{input: 0.5, output: 1.5}}}}]
    context_fallback: long
  long:
    deployments: [{{provider: west, model: long, price: {{input: 0.5, output: 1.5}}}}]
tenants:
  demo:
    limits: [$10/month]
    keys:
      - {{name: roomy, key: sk-demo-roomy, limits: [100k tokens/minute]}}
      - {{name: tight, key: sk-demo-tight, limits: [100 tokens/minute]}}
      - {{name: small, key: sk-demo-small, limits: [100 output tokens/day]}}
      - {{name: pair, key: sk-demo-pair, limits: [300 output tokens/day]}}
"""


@dataclass
class Answer:
    """What a request was answered. code: of an error."""

    status: int
    headers: dict[str, str]
    body: Any
    seconds: float

    @property
    def asked(self) -> str:
        """Who was asked, and what came of it."""
        return self.headers.get("x-sluicegate-attempts", "")

    @property
    def deployment(self) -> str:
        return self.headers.get("x-sluicegate-deployment", "")

    @property
    def code(self) -> str:
        return str(self.body["error"]["code"]) if self.status >= 400 else ""


@dataclass
class Stage:
    """The running processes."""

    directory: Path
    mock: str  # its URL
    gateways: tuple[str, str]

    def open(
        self, model: str, key: str, max_tokens: int, prompt: str, *, gateway: int = 0, headers: dict[str, str] | None = None, **fields: Any
    ) -> HTTPResponse:
        """Sends a chat request, and shows it. Raises HTTPError for any answer but a 200."""
        body = {"model": model, "max_tokens": max_tokens, **fields, "messages": [{"role": "user", "content": prompt}]}
        console.print(f"POST /v1/chat/completions  {key}  {json.dumps(body)}", style="dim", highlight=False, markup=False, soft_wrap=True)
        sent = {"authorization": f"Bearer {key}", "content-type": "application/json", **(headers or {})}
        request = urllib.request.Request(f"{self.gateways[gateway]}/v1/chat/completions", json.dumps(body).encode(), sent)
        answer: HTTPResponse = urllib.request.urlopen(request, timeout=30)
        return answer

    def ask(self, model: str, key: str = "sk-demo-roomy", *, gateway: int = 0, headers: dict[str, str] | None = None, **fields: Any) -> Answer:
        """One quick unary request, told in a line."""
        quick = {"max_tokens": 8, "messages": [{"role": "user", "content": '[[mock {"ttft": 5, "tpot": 1}]] Hello.'}]}
        answer = self.call(f"{self.gateways[gateway]}/v1/chat/completions", {"model": model, **quick, **fields}, key, headers=headers)
        who = f", asked: {answer.asked}" if answer.asked else ""
        text = f"{model} at gateway {'AB'[gateway]}: {answer.status} {answer.code} in {answer.seconds * 1000:.0f} ms{who}"
        console.print(text, style="dim", highlight=False, markup=False, soft_wrap=True)
        return answer

    def call(self, url: str, body: Any = None, key: str = "", method: str | None = None, headers: dict[str, str] | None = None) -> Answer:
        """Any request."""
        sent = {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {}), **(headers or {})}
        request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), sent, method=method)
        started = time.monotonic()
        try:
            with urllib.request.urlopen(request, timeout=30) as found:
                status, told, data = found.status, found.headers, found.read()
        except urllib.error.HTTPError as error:
            with error:
                status, told, data = error.code, error.headers, error.read()
        return Answer(status, {name.lower(): value for name, value in told.items()}, json.loads(data or b"null"), time.monotonic() - started)

    # -- the provider ---------------------------------------------------------------------------------------------------------------------

    def fault(self, **fault: Any) -> None:
        """How the mock answers calls to come (docs/mock.md)."""
        self.call(f"{self.mock}/mock/faults", fault)

    def mend(self) -> None:
        """The mock answers well again, and has forgotten its calls."""
        self.call(f"{self.mock}/mock/reset", {})

    def calls(self, model: str) -> int:
        """How often the mock was called under a name of a model."""
        seen = self.call(f"{self.mock}/mock/calls").body
        return sum(json.loads(each["body"])["model"] == model for each in seen)

    def produced(self, caller: str) -> int:
        """Output tokens that the mock has really produced for a `user`."""
        return int(self.call(f"{self.mock}/mock/stats").body["callers"].get(caller, {}).get("completion_tokens", 0))

    # -- the gateways ---------------------------------------------------------------------------------------------------------------------

    def admin(self, path: str, body: Any = None, method: str | None = None, gateway: int = 0) -> Any:
        """What the admin API answers."""
        return self.call(f"{self.gateways[gateway]}/admin/v1/{path}", body, ADMIN_KEY, method).body

    def breaker(self, deployment: str, gateway: int = 0) -> Any:
        """A deployment's breaker and cooldown, as a gateway has them."""
        return next(each for each in self.admin("breakers", gateway=gateway)["data"] if each["deployment"] == deployment)

    def changes(self, what: str, deployment: str) -> list[str]:
        """The changes of a breaker or cooldown in the log of the first gateway."""
        lines = [json.loads(line) for line in (self.directory / "a.log").read_text().splitlines() if line.startswith("{")]
        found = [line for line in lines if line.get("event") == f"{what} state" and line["deployment"] == deployment]
        return [f"{line['from']} -> {line['to']}: {line['reason']}" for line in found]


@contextlib.contextmanager
def running() -> Iterator[Stage]:
    """The stage, once all of it is ready."""
    with tempfile.TemporaryDirectory() as there, contextlib.ExitStack() as stack:
        directory, ports = Path(there), [free_port() for _ in range(3)]
        (directory / "demo.yaml").write_text(CONFIG)
        mock, *gateways = (f"http://127.0.0.1:{port}" for port in ports)
        stack.enter_context(_process(directory, "mock", mock, "/v1/models", ["mock", f"--port={ports[0]}", "--ttft=100ms", "--tpot=10ms"]))
        for name, port, url in zip("ab", ports[1:], gateways, strict=True):
            variables = {"MOCK_URL": f"{mock}/v1", "JOURNAL": f"journal-{name}/"}
            stack.enter_context(_process(directory, name, url, "/readyz", ["serve", "--config=demo.yaml", f"--port={port}"], variables))
        yield Stage(directory, mock, (gateways[0], gateways[1]))


@contextlib.contextmanager
def _process(directory: Path, name: str, url: str, path: str, arguments: list[str], variables: dict[str, str] | None = None) -> Iterator[None]:
    """A command of ours as a child, ready. Its life ends with the context."""
    file = directory / f"{name}.log"
    command = [sys.executable, "-m", "sluicegate", *arguments]
    with file.open("wb") as log:
        child = subprocess.Popen(
            command, cwd=directory, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True, env={**os.environ, **(variables or {})}
        )
    try:
        deadline = time.monotonic() + START_S
        while not _answers(url + path):
            if child.poll() is not None or time.monotonic() > deadline:
                raise OSError(f"{' '.join(arguments)} did not start:\n{file.read_text()}")
            time.sleep(0.05)
        yield
    finally:
        child.terminate()
        child.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except OSError:
        return False
