"""`serve` and `mock`: the processes that listen.

The parent binds the socket, so that a port in use is an error before anything starts; every worker inherits it, and listens when it can serve.
One worker runs in the parent itself; several under supervisor.py, each as `sluicegate worker`, which reads the same files in the same environment.
"""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from sluicegate import app
from sluicegate.cli.console import DEFAULT_CONFIG, ConfigFile, EnvFile, InputError, console, errors, source
from sluicegate.config.fields import ConfigError
from sluicegate.config.load import EXAMPLE, Loaded, Source
from sluicegate.config.watch import LOOK_S
from sluicegate.http.server import bind
from sluicegate.mock import from_mapping, run_mock
from sluicegate.reloading import fixed
from sluicegate.supervisor import Supervisor, watch_parent

MOCK_START_S = 20.0
FIXED = "SLUICEGATE_FIXED"  # a variable of workers: what tells a configuration that they can use

TRY_IT = """\
Try it:

  curl {url}/v1/chat/completions -H 'Authorization: Bearer sk-sluicegate-normal' -H 'Content-Type: application/json' \\
    -d '{{"model": "chat", "messages": [{{"role": "user", "content": "Hello"}}]}}'

streamed:

  curl -N {url}/v1/chat/completions -H 'Authorization: Bearer sk-sluicegate-normal' -H 'Content-Type: application/json' \\
    -d '{{"model": "chat", "stream": true, "messages": [{{"role": "user", "content": "Hello"}}]}}'

A limit refuses when the same is sent a few times with sk-sluicegate-tight. What was used:

  curl {url}/v1/usage -H 'Authorization: Bearer sk-sluicegate-tight'

How it is, and a deployment that fails for a minute ({url}/admin/docs):

  curl {url}/admin/v1/health -H 'Authorization: Bearer sk-sluicegate-admin'
  curl {url}/admin/v1/chaos -H 'Authorization: Bearer sk-sluicegate-admin' -H 'Content-Type: application/json' \\
    -d '{{"deployment": "mock/mock-small", "status": 503}}'
"""


def serve(
    config: Annotated[Path | None, typer.Option("--config", "-c", metavar="FILE", help=f"{DEFAULT_CONFIG}; with --mock an example.")] = None,
    env_file: EnvFile = None,
    mock: Annotated[bool, typer.Option("--mock", help="Run a mock provider beside it, on loopback; its base URL is MOCK_URL.")] = False,
    workers: Annotated[int | None, typer.Option("--workers", min=1, max=256, help="Processes; the configuration's by default.")] = None,
    port: Annotated[int | None, typer.Option("--port", min=0, max=65535, help="Instead of the configuration's port.")] = None,
) -> None:
    """Run the gateway. The first SIGTERM or Ctrl-C drains, the second cuts."""
    file = config or (EXAMPLE if mock else DEFAULT_CONFIG)
    with contextlib.ExitStack() as stack:
        more = {"MOCK_URL": f"http://127.0.0.1:{free_port()}/v1"} if mock else {}
        read_from = source(file, env_file, **more)
        found = read_from.read().load()
        server = found.config.server
        count = workers or server.workers
        if count > 1 and found.config.ledger.startswith("memory:"):
            raise InputError("ledger: the memory ledger belongs to one process; with more than one worker use sqlite or redis")
        listener = stack.enter_context(_bind(server.address.host, server.address.port if port is None else port))
        address = found.config.admin.address
        operators = [stack.enter_context(_bind(*address, "admin.listen"))] if address is not None else []
        if mock:
            stack.enter_context(_mock_beside(more["MOCK_URL"]))
        if file is EXAMPLE:
            console.print(TRY_IT.format(url=_url(listener)), markup=False, highlight=False, soft_wrap=True)
        if count == 1:
            app.serve_worker(found, [listener], operators)
            return
        listeners = [listener, *operators]
        code = Supervisor(lambda life_line: _spawn_worker(found, listeners, life_line), count, listeners, console.print).run()
    if code:
        raise typer.Exit(code)


def worker(
    config: ConfigFile, listener: Annotated[list[int], typer.Option()], life_line: Annotated[int, typer.Option()], env_file: EnvFile = None
) -> None:
    """One of several workers; `serve` starts it with the descriptors of the listening sockets (the second is for operators) and of the parent's life
    line."""
    watch_parent(life_line)
    sockets = [socket.socket(fileno=each) for each in listener]
    app.serve_worker(_usable(Source(config, dict(os.environ), env_file), os.environ[FIXED]), sockets[:1], sockets[1:])


def _usable(source: Source, fixed_as: str) -> Loaded:
    """What the files have, once it can be used beside the other workers: one that starts while they are broken, or name another ledger, waits."""
    told = ""
    while True:
        try:
            found = source.read().load()
            if fixed(found.config) == fixed_as:
                return found
            why = "it differs from the one in use in what a running gateway cannot change"
        except (ConfigError, OSError) as error:
            why = str(error)
        if why != told:
            errors.print(f"worker {os.getpid()} waits for a configuration that it can use: {why}", markup=False, highlight=False, soft_wrap=True)
            told = why
        time.sleep(LOOK_S)


class MockDialect(StrEnum):
    """What `sluicegate mock` is to be called as."""

    openai = "openai"
    anthropic = "anthropic"
    ollama = "ollama"


def mock(
    context: typer.Context,
    host: Annotated[str, typer.Option()] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8089,
    dialect: Annotated[MockDialect, typer.Option(help="Whose base URL is printed; all are served.")] = MockDialect.openai,
    life_line: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run a mock provider that knows what it produced. Each option of docs/mock.md is given as `--name value`, e.g. `--ttft 20ms --tpot 5ms`."""
    options = from_mapping(_pairs(context.args))
    if life_line is not None:
        watch_parent(life_line)
        run_mock(options, host, port)
    else:
        run_mock(options, host, port, lambda url: print(url if dialect == MockDialect.openai else url.removesuffix("/v1"), flush=True))


def _pairs(arguments: list[str]) -> dict[str, str]:
    """`--name value --name=value` as a mapping."""
    words = [word for argument in arguments for word in (argument.split("=", 1) if argument.startswith("--") else [argument])]
    names, values = words[::2], words[1::2]
    for name in names:
        if not name.startswith("--"):
            raise InputError(f"{name}: an option of the mock is given as --name value")
    if len(names) != len(values):
        raise InputError(f"{names[-1]}: a value is missing")
    return {name[2:].replace("-", "_"): value for name, value in zip(names, values, strict=True)}


def _bind(host: str, port: int, field: str = "") -> socket.socket:
    """A socket on which the workers listen. Raises OSError that says what to do. field: of the configuration, if it alone has the address."""
    try:
        return bind(host, port)
    except OSError as error:
        advice = f"choose another in {field}" if field else "choose another with --port or PORT=..."
        raise OSError(f"cannot listen on {host} port {port}: {os.strerror(error.errno or 0).lower()}; {advice}") from None


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _spawn_worker(found: Loaded, listeners: Sequence[socket.socket], life_line: int) -> "subprocess.Popen[bytes]":
    source = found.source
    assert source is not None
    inherited = [listener.fileno() for listener in listeners]
    more = [f"--listener={each}" for each in inherited] + ([] if source.env_file is None else [f"--env-file={source.env_file}"])
    command = [sys.executable, "-m", "sluicegate", "worker", f"--config={source.file}", f"--life-line={life_line}"]
    env = {**source.environ, FIXED: fixed(found.config)}
    return subprocess.Popen([*command, *more], env=env, pass_fds=[*inherited, life_line], start_new_session=True)


@contextlib.contextmanager
def _mock_beside(base_url: str) -> Iterator[None]:
    """A mock provider as a child process. It outlives the gateway's draining, Ctrl-C reaches the gateway alone, and it ends with its life line."""
    port = urlsplit(base_url).port or 0
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "sluicegate", "mock", f"--port={port}", f"--life-line={reading}", "--ttft=100ms", "--tpot=10ms"]
    child = subprocess.Popen(command, pass_fds=[reading], start_new_session=True)
    os.close(reading)
    try:
        _wait_for(port, child)
        yield
    finally:
        os.close(writing)
        child.wait()


def _wait_for(port: int, child: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + MOCK_START_S
    while child.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.02)
    raise OSError("the mock provider did not start")


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
