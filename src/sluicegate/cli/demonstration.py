"""`demo`: a mock provider and a gateway in a temporary directory, and real requests to them over loopback."""

import contextlib
import json
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

from rich.table import Table

from sluicegate.cli.console import console
from sluicegate.cli.serving import free_port

START_S = 30.0
PROMPT = '[[mock {"completion": 200}]] Tell me about sluices.'  # the mock would say 200 tokens

CONFIG = """
server: {listen: "127.0.0.1:0"}
ledger: sqlite:///ledger.db
journal: journal/
providers:
  mock: {provider: mock, base_url: "${MOCK_URL}", proxy: off}
models:
  chat:
    deployments: [{provider: mock, model: demo, price: {input: 0.5, output: 1.5}}]
tenants:
  demo:
    limits: [$10/month]
    keys:
      - {name: roomy, key: sk-demo-roomy, limits: [100k tokens/minute]}
      - {name: tight, key: sk-demo-tight, limits: [100 tokens/minute]}
      - {name: small, key: sk-demo-small, limits: [100 output tokens/day]}
"""


def demo() -> None:
    """Show a stream, a refusal, a truncation and what was used, against a mock on this machine. Leaves nothing behind."""
    with tempfile.TemporaryDirectory() as directory, _gateway(Path(directory)) as url:
        _title("A streamed answer")
        _stream(url, "sk-demo-roomy", 40)
        _title("A refusal: the second call does not fit into 100 tokens a minute")
        for _ in range(2):
            _unary(url, "sk-demo-tight", 60)
        _title("A truncation: of the 100 output tokens for today's answers, 60 are there")
        _unary(url, "sk-demo-small", 40)
        _stream(url, "sk-demo-small", 400)
        _title("What was used")
        console.print(_usage(url, ("sk-demo-roomy", "sk-demo-tight", "sk-demo-small")))


@contextlib.contextmanager
def _gateway(directory: Path) -> Iterator[str]:
    """A gateway with a mock beside it; yields its URL when it is ready."""
    (directory / "demo.yaml").write_text(CONFIG)
    port = free_port()
    command = [sys.executable, "-m", "sluicegate", "serve", "--mock", "--config=demo.yaml", f"--port={port}"]
    with (directory / "log").open("wb") as log:
        child = subprocess.Popen(command, cwd=directory, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + START_S
        while not _ready(url):
            if child.poll() is not None or time.monotonic() > deadline:
                raise OSError(f"the gateway did not start:\n{(directory / 'log').read_text()}")
            time.sleep(0.05)
        yield url
    finally:
        child.terminate()
        child.wait()


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=2):
            return True
    except OSError:
        return False


def _ask(url: str, key: str, max_tokens: int, **fields: Any) -> HTTPResponse:
    """Sends one request, shown as a command. Raises HTTPError for any answer but a 200."""
    body = {"model": "chat", "max_tokens": max_tokens, **fields, "messages": [{"role": "user", "content": PROMPT}]}
    console.print(f"POST /v1/chat/completions  {key}  {json.dumps(body)}", style="dim", highlight=False, markup=False)
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
    answer: HTTPResponse = urllib.request.urlopen(request, timeout=30)
    return answer


def _stream(url: str, key: str, max_tokens: int) -> None:
    with _ask(url, key, max_tokens, stream=True) as answer:
        if "x-sluicegate-max-tokens" in answer.headers:
            console.print(f"x-sluicegate-max-tokens: {answer.headers['x-sluicegate-max-tokens']}", style="bold", highlight=False)
        for line in answer:
            if line.startswith(b"data: {"):
                chunk = json.loads(line[6:])
                for choice in chunk["choices"]:
                    console.print(choice["delta"].get("content") or "", end="", highlight=False, markup=False)
                    if choice.get("finish_reason"):
                        console.print(f"\nfinish_reason: {choice['finish_reason']}", style="bold", highlight=False)


def _unary(url: str, key: str, max_tokens: int) -> None:
    try:
        with _ask(url, key, max_tokens) as answer:
            usage = json.load(answer)["usage"]
            console.print(f"200: {usage['prompt_tokens']} + {usage['completion_tokens']} tokens", style="bold", highlight=False)
    except urllib.error.HTTPError as error:
        with error:
            told = json.load(error)["error"]
        console.print(f"{error.code} {told['code']}, retry-after {error.headers['retry-after']}", style="bold", highlight=False)
        console.print(told["message"], highlight=False, markup=False)


def _usage(url: str, keys: tuple[str, ...]) -> Table:
    """The limits of some keys as `GET /v1/usage` tells them."""
    table = Table("key", "limit", "used", "held", "remaining", "resets")
    for key in keys:
        request = urllib.request.Request(f"{url}/v1/usage", headers={"authorization": f"Bearer {key}"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            usage = json.load(answer)
        for limit in usage["limits"]:
            figures = [f"{limit[name]:,}" for name in ("used", "held", "remaining")]
            table.add_row(usage["key"], limit["name"], *figures, limit["resets_at"] or "")
        table.add_section()
    return table


def _title(text: str) -> None:
    console.print()
    console.rule(text, align="left")
