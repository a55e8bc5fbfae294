"""What workers tell each other, between real processes: one learns it at a client's cost, the others need not."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support_gateway import Gateway, Mock, call, config, running_gateway, running_mock
from support_time import undisturbed

TENANTS = """
  acme:
    keys: [{name: k, key: sk-k}]"""
ROUTE = """
  two:
    deployments:
      - {provider: mock, model: one, price: {input: 0.5, output: 1.0}}
      - {provider: mock, model: two, price: {input: 0.5, output: 1.0}}
  second_name:
    deployments:
      - {provider: mock, model: one, price: {input: 0.5, output: 1.0}}
      - {provider: mock, model: two, price: {input: 0.5, output: 1.0}}
tenants:"""
WITHIN_S = 5.0  # a second, beside other tests on few cores


def settings(directory: Path, mock: Mock, health: str = "", workers: int = 1, **stores: str) -> str:
    text = config(directory, mock.url, TENANTS, more="resilience: {retries: 0, cooldown: 60s}", **stores)
    text = text.replace("\ntenants:", ROUTE, 1).replace('server: {listen: "127.0.0.1:0"}', f'server: {{listen: "127.0.0.1:0", workers: {workers}}}')
    return text.replace("extend: off", f"extend: off{health}")


@pytest.fixture
def mock(tmp_path: Path) -> Iterator[Mock]:
    with running_mock(tmp_path, "--ttft", "0ms", "--tpot", "0ms") as mock:
        yield mock


def tried(gateway: Gateway, model: str = "two") -> str:
    """One request, on a connection of its own: which deployments were asked."""
    status, headers, _ = gateway.chat("sk-k", model=model, max_tokens=2)
    return f"{status} {headers.get('x-sluicegate-attempts', '')}".strip()


def within(seconds: float, true: Callable[[], bool]) -> float:
    """Seconds until it was so; fails after so many."""
    began = undisturbed()
    while not true():
        assert undisturbed() - began < seconds
        time.sleep(0.01)
    return undisturbed() - began


def changes(log: str, event: str) -> list[str]:
    return [line for line in log.splitlines() if f"{event} state" in line]


def test_a_429_that_one_replica_has_seen_spares_the_other(tmp_path: Path, mock: Mock, redis: str) -> None:
    """With `retry-after: 30`: within a second the other skips the deployment without asking, under any model, and so does one that starts later."""
    text = settings(tmp_path, mock, ledger=redis)
    with running_gateway(tmp_path, text, "a") as a, running_gateway(tmp_path, text, "b") as b:
        assert tried(b) == "200 mock/one:200"
        mock.faults(count=1, model="one", status=429, retry_after=30)
        assert tried(a) == "200 mock/one:429,mock/two:200"
        within(WITHIN_S, lambda: bool(changes(b.logged(), "cooldown")))
        assert (tried(b), tried(b, "second_name"), tried(a, "second_name")) == ("200 mock/two:200",) * 3
        [line] = changes(b.logged(), "cooldown")
        assert "mock/one" in line and "429" in line
        with running_gateway(tmp_path, text, "c") as c:
            within(WITHIN_S, lambda: bool(changes(c.logged(), "cooldown")))
            assert tried(c) == "200 mock/two:200"


def test_two_workers_of_one_machine_share_a_cooldown(tmp_path: Path, mock: Mock) -> None:
    """Over the ledger's file: of many requests, that land on both, one alone meets the 429."""
    with running_gateway(tmp_path, settings(tmp_path, mock, workers=2)) as gateway:
        mock.faults(count=0, model="one", status=429, retry_after=30)
        assert tried(gateway) == "200 mock/one:429,mock/two:200"
        within(WITHIN_S, lambda: len(changes(gateway.logged(), "cooldown")) == 2)
        assert {tried(gateway) for _ in range(20)} == {"200 mock/two:200"}


def down(gateway: Gateway, deployment: str) -> list[str]:
    return [line for line in changes(gateway.logged(), "health") if deployment in line and "to=down" in line]


def models_asked(mock: Mock) -> list[str]:
    return [json.loads(one["body"])["model"] for one in json.loads(call(f"{mock.url}/mock/calls")[2])]


def ready(gateway: Gateway) -> Any:
    return json.loads(call(f"{gateway.url}/readyz")[2])


@contextlib.contextmanager
def probed(directory: Path, mock: Mock, workers: int) -> Iterator[Gateway]:
    health = ", health: {interval: 1s, request: completion, failures: 2}"
    with running_gateway(directory, settings(directory, mock, health, workers)) as gateway:
        yield gateway


def test_probes_are_made_once_by_all_workers_and_change_the_order(tmp_path: Path, mock: Mock) -> None:
    """Four deployments, each asked about once a second by two workers together; one that is down comes last on both, and the gateway stays ready."""
    with probed(tmp_path, mock, workers=2) as gateway:
        within(30.0, lambda: len(set(models_asked(mock))) == 4)
        mock.faults(count=0, model="one", status=503)
        before = len(models_asked(mock))
        began = time.monotonic()
        within(30.0, lambda: len(down(gateway, "mock/one")) == 2)
        assert len(models_asked(mock)) - before <= 4 * 1.5 * (time.monotonic() - began + 1)
        assert {tried(gateway) for _ in range(10)} == {"200 mock/two:200"}
        assert ready(gateway) == {"status": "ready", "closed_trees": 0, "deployments_down": 1}
        metrics = call(f"{gateway.url}/metrics")[2].decode()
        assert 'sluicegate_deployment_workers{deployment="mock/one",state="down"} 2.0' in metrics
        assert 'sluicegate_probe_tokens_total{deployment="mock/two",direction="output"}' in metrics


def test_a_model_whose_deployments_are_all_down_is_still_tried(tmp_path: Path, mock: Mock) -> None:
    """Probes alone refuse nothing: a request gets what the upstream says now."""
    with probed(tmp_path, mock, workers=1) as gateway:
        mock.faults(count=0, model="mock-model", status=503)
        within(30.0, lambda: bool(down(gateway, "mock/mock-model")))
        assert tried(gateway, "chat") == "503 mock/mock-model:503"
        assert call(f"{mock.url}/mock/reset", {})[0] == 200
        assert tried(gateway, "chat") == "200 mock/mock-model:200"
