"""The admin API of real processes: several workers behind the operators' listener, and everything that its OpenAPI document allows (schemathesis)."""

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support_gateway import Gateway, call, config, free_port, running_gateway, running_mock

KEY = "sk-admin-of-the-tests"
TENANTS = "  acme: {limits: [100k tokens/day], keys: [{name: key, key: sk-key}]}"


@contextlib.contextmanager
def administered(directory: Path, workers: int) -> Iterator[tuple[Gateway, str]]:
    """A gateway and the base URL of its operators' listener."""
    port = free_port()
    more = f'admin: {{key_env: SLUICEGATE_ADMIN_KEY, listen: "127.0.0.1:{port}", chaos: on}}'
    with pytest.MonkeyPatch.context() as environment, running_mock(directory) as mock:
        environment.setenv("SLUICEGATE_ADMIN_KEY", KEY)
        arguments = ("--workers", str(workers))
        with running_gateway(directory, config(directory, mock.url, TENANTS, more=more), arguments=arguments) as gateway:
            yield gateway, f"http://127.0.0.1:{port}"


def faults(admin: str) -> dict[str, bool]:
    """Whether a deployment is made to fail, by the worker that says so: of those that take one of some requests that come at once."""
    with ThreadPoolExecutor(8) as pool:
        told = [json.loads(body) for status, _, body in pool.map(lambda _: call(f"{admin}/admin/v1/health", key=KEY), range(16)) if status == 200]
    assert len(told) == 16
    return {one["worker"]: any(deployment["chaos"] for deployment in one["deployments"]) for one in told}


def until_both(admin: str, fault: bool) -> None:
    """Both workers have been seen, and say that there is a fault, or that there is none."""
    seen: dict[str, bool] = {}
    deadline = time.monotonic() + 60
    while list(seen.values()) != [fault, fault]:
        assert time.monotonic() < deadline, seen
        seen |= faults(admin)


def test_workers_share_the_operators_listener(tmp_path: Path) -> None:
    """Each worker answers there, and hears of what another was told; the data plane's port has nothing of it; both ports are free in the end."""
    with administered(tmp_path, workers=2) as (gateway, admin):
        until_both(admin, False)
        fault = {"deployment": "mock/mock-model", "status": 503}
        assert call(f"{admin}/admin/v1/chaos", fault, KEY)[0] == 201
        until_both(admin, True)
        assert {gateway.chat("sk-key", max_tokens=5)[0] for _ in range(10)} == {503}
        assert call(f"{admin}/metrics")[0] == 200
        assert call(f"{gateway.url}/metrics")[0] == call(f"{gateway.url}/admin/v1/health", key=KEY)[0] == 404
        assert KEY not in gateway.logged()
    port = int(admin.rpartition(":")[2])
    for each in (port, gateway.port):
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", each)) != 0


def test_an_operators_port_in_use_is_told_before_anything_starts(tmp_path: Path) -> None:
    """With the field that has it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        file = tmp_path / "config.yaml"
        file.write_text(config(tmp_path, "http://127.0.0.1:9", TENANTS, more=f'admin: {{key: {KEY}, listen: "{listen}"}}'))
        command = [sys.executable, "-m", "sluicegate", "serve", "--config", str(file), "--port", "0"]
        ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)
    assert ended.returncode == 1
    assert f"cannot listen on 127.0.0.1 port {listen.rpartition(':')[2]}" in ended.stderr and "admin.listen" in ended.stderr


def test_schemathesis_finds_nothing(tmp_path: Path) -> None:
    """What the document says is allowed is accepted and answered as it says; what it does not say is refused, by a status that it names."""
    program = shutil.which("st", path=str(Path(sys.executable).parent))
    assert program is not None
    told = tmp_path / "schemathesis.toml"  # a schema does not say what a limit, a network, a model or a price is
    told.write_text('[[operations]]\ninclude-method = ["POST", "PATCH", "PUT"]\nchecks.positive_data_acceptance.enabled = false\n')
    with administered(tmp_path, workers=1) as (gateway, admin):
        # Wrong keys, one for each operation, would have the address held up; test_admin.py has them.
        command = [
            program,
            "--config-file",
            str(told),
            "run",
            f"{admin}/admin/openapi.json",
            "--header",
            f"Authorization: Bearer {KEY}",
            "--no-color",
        ]
        command += ["--exclude-checks", "ignored_auth", "--phases", "examples,coverage", "--generation-deterministic"]
        ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600, cwd=tmp_path)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        document = json.loads(call(f"{admin}/admin/openapi.json")[2])
        assert f"{sum(map(len, document['paths'].values()))} selected" in ended.stdout
        assert call(f"{admin}/admin/v1/chaos", key=KEY, method="DELETE")[0] == 200
        assert call(f"{admin}/admin/v1/breakers/mock/mock-model/reset", {}, KEY)[0] == 200
        status, _, body = gateway.chat("sk-key", max_tokens=5)
        assert status in (200, 429), body  # it has adjusted what was used, too
        assert "Traceback" not in gateway.logged() and "raised" not in gateway.logged()
