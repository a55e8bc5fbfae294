"""The waiting queue, reserves, shadow limits and warning marks over two replicas and a real Redis; the provider's own count is the truth."""

import json
import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from signal import SIGTERM
from typing import Any

import pytest

from support_gateway import Gateway, Mock, answers, call, config, running_gateway, running_mock
from support_inloop import request
from support_time import undisturbed

TENANTS = """
  acme:
    limits: [1 concurrent]
    keys: [{name: high, key: sk-high, priority: high}, {name: low, key: sk-low, priority: low}]
  days:
    limits: [3000 tokens/day]
    keys: [{name: day, key: sk-day}]
  spent:
    limits: [100 tokens/day]
    keys: [{name: spent, key: sk-spent, limits: [1 concurrent]}]
  kept:
    limits: [{amount: 4000, unit: tokens, per: day, reserve: {low: 50%}}]
    keys: [{name: kept-high, key: sk-kept-high, priority: high}, {name: kept-low, key: sk-kept-low, priority: low}]
  seen:
    limits: [{amount: 500, unit: tokens, per: day, mode: shadow}, {amount: 20, unit: requests, per: minute, mode: shadow}, 4000 tokens/day]
    keys: [{name: seen, key: sk-seen}]
  marked:
    limits: [1000 tokens/day]
    keys: [{name: marked, key: sk-marked}]"""


@pytest.fixture(scope="module")
def mock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mock]:
    with running_mock(tmp_path_factory.mktemp("mock"), "--completion", "12") as mock:
        yield mock


@contextmanager
def replicas(directory: Path, mock: Mock, redis: str, queue: str = "{max_wait: 20s}", count: int = 2) -> Iterator[list[Gateway]]:
    with ExitStack() as stack:
        more = f"budget: {{queue: {queue}, estimator: max_tokens}}\nlog: {{access: json}}"
        started = []
        for n in range(count):  # a journal of its own each, as on machines of their own; what was used is known to all
            text = config(directory, mock.url, TENANTS, ledger=redis, more=more).replace(f"{directory}/journal/", f"{directory}/journal-{n}/")
            started.append(stack.enter_context(running_gateway(directory, text, f"gateway-{n}")))
        yield started


class Clients(ThreadPoolExecutor):
    """Many at once. Each answer is its code, with the time at which it came."""

    def ask(self, gateway: Gateway, key: str, ttft: str = "2ms", **fields: Any) -> "Future[tuple[str, float]]":
        def one() -> tuple[str, float]:
            status, _, body = gateway.chat(key, mock={"ttft": ttft}, **{"max_tokens": 20, **fields})
            return "200" if status == 200 else body["error"]["code"], time.monotonic()

        return self.submit(one)


def waiting(gateway: Gateway) -> int:
    """How many wait there now."""
    found = re.search(rb"^sluicegate_waiting (\d+)", call(f"{gateway.url}/metrics")[2], re.MULTILINE)
    assert found
    return int(found[1])


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def until_waiting(gateway: Gateway, count: int) -> None:
    eventually(lambda: waiting(gateway) == count)


def metric(gateways: list[Gateway], name: str) -> Counter[str]:
    """A counter's values by its label, over all replicas."""
    found: Counter[str] = Counter()
    for gateway in gateways:
        for label, value in re.findall(rb'^%b\{[a-z]+="([^"]*)"\} ([0-9.]+)' % name.encode(), call(f"{gateway.url}/metrics")[2], re.MULTILINE):
            found[label.decode()] += int(float(value))
    return found


def records(gateway: Gateway, key: str) -> list[Any]:
    """Lines of the access log about one key."""
    return [line for line in lines(gateway) if line.get("key_id", "").endswith(f"/@{key}")]


def lines(gateway: Gateway) -> list[Any]:
    """What is whole of the log by now."""
    return [json.loads(line) for line in gateway.logged().splitlines(keepends=True) if line.startswith("{") and line.endswith("}\n")]


def held(gateway: Gateway, key: str) -> int:
    return sum(limit["held"] for limit in gateway.usage(key)["limits"])


def test_thirty_waiters_of_two_priorities(tmp_path: Path, mock: Mock, redis: str) -> None:
    """High priority before low, each in the order in which it came, one at a time; the other replica's clients are served as well."""
    with replicas(tmp_path, mock, redis) as gateways, Clients(40) as clients:
        gateway, other = gateways
        asked = [("first", clients.ask(gateway, "sk-low", ttft="4s"))]
        eventually(lambda: held(gateway, "sk-low") > 0)
        for n in range(30):
            key = ("low", "high")[n % 2]
            asked.append((name := f"{key}-{n:02}", clients.ask(gateway, f"sk-{key}", user=name)))
            until_waiting(gateway, n + 1)
        elsewhere = [clients.ask(other, "sk-high") for _ in range(3)]
        assert {future.result()[0] for _, future in asked} == {"200"}
        assert [future.result()[0] for future in elsewhere] == ["200"] * 3
        order = [f"high-{n:02}" for n in range(1, 30, 2)] + [f"low-{n:02}" for n in range(0, 30, 2)]
        eventually(lambda: len(records(gateway, "high")) == 15 and len(records(gateway, "low")) == 16)
        ended = [line["client_user"] for line in lines(gateway) if line.get("client_user", "").startswith(("high", "low"))]
        assert ended == order  # one at a time, so that they end as they were served
        assert all(record["waited_us"] > 0 for record in records(gateway, "high"))
        assert waiting(gateway) == held(gateway, "sk-low") == 0
        assert metric([gateway], "sluicegate_wait_seconds_count")["served"] == 30


def test_busy_then_served_and_never_overspent(tmp_path: Path, mock: Mock, redis: str) -> None:
    """Forty clients of two replicas want four times what is left while others are in flight: none is told `busy`, all of the budget is used."""
    mock.reset()
    with replicas(tmp_path, mock, redis) as gateways, Clients(40) as clients:
        # Each holds 148 or more (the prompt by its bytes) and uses 20: by what is held only some twenty fit at once, by what is used all but a few.
        futures = [clients.ask(gateways[n % 2], "sk-day", max_tokens=128, ttft="20ms") for n in range(160)]
        codes = Counter(future.result()[0] for future in futures)
        assert set(codes) <= {"200", "budget_exceeded"}
        used = sum(limit["used"] for limit in gateways[0].usage("sk-day")["limits"])
        assert mock.total()["tokens"] == used <= 3000
        assert used >= 2800
        assert held(gateways[0], "sk-day") == 0
        assert metric(gateways, "sluicegate_wait_seconds_count")["served"] > 0


def test_leaving_clients_leave_nothing(tmp_path: Path, mock: Mock, redis: str) -> None:
    """Twenty that hang up while they wait are out of the queue at once, are not charged, and never reach the provider."""
    mock.reset()
    with replicas(tmp_path, mock, redis, count=1) as [gateway], Clients(30) as clients:
        first = clients.ask(gateway, "sk-low", ttft="4s")
        eventually(lambda: held(gateway, "sk-low") > 0)
        body = json.dumps({"model": "chat", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 20}).encode()
        with ExitStack() as leaving:
            for _ in range(20):
                client = leaving.enter_context(socket.create_connection(("127.0.0.1", gateway.port)))
                client.sendall(request(body, "sk-high"))
            until_waiting(gateway, 20)
            last = clients.ask(gateway, "sk-low")
            until_waiting(gateway, 21)
        until_waiting(gateway, 1)
        assert (first.result()[0], last.result()[0]) == ("200", "200")
        assert mock.total()["requests"] == 2
        assert metric([gateway], "sluicegate_wait_seconds_count") == {"left": 20, "served": 1}
        assert held(gateway, "sk-low") == 0


def test_exhausted_at_once_and_a_queue_that_is_full(tmp_path: Path, mock: Mock, redis: str) -> None:
    """What waiting does not help is told at once, as is who finds no place."""
    with replicas(tmp_path, mock, redis, "{max_wait: 20s, max_depth: 2}", count=1) as [gateway], Clients(10) as clients:
        first = clients.ask(gateway, "sk-low", ttft="4s")
        eventually(lambda: held(gateway, "sk-low") > 0)
        waiters = [clients.ask(gateway, "sk-low") for _ in range(2)]
        until_waiting(gateway, 2)
        started = undisturbed()
        assert clients.ask(gateway, "sk-low").result()[0] == "concurrency_exceeded"
        codes = [clients.ask(gateway, "sk-spent").result()[0] for _ in range(8)]
        assert codes[-1] == "budget_exceeded"
        assert undisturbed() - started < 1.2
        assert [future.result()[0] for future in (first, *waiters)] == ["200"] * 3


def test_a_reserve_holds_under_load(tmp_path: Path, mock: Mock, redis: str) -> None:
    """Forty clients of low priority on two replicas get half of a day at most; then all of the rest is there for high priority."""
    mock.reset()
    with replicas(tmp_path, mock, redis, "{max_wait: 0s}") as gateways, Clients(40) as clients:
        codes: Counter[str] = Counter()
        while not codes["budget_exceeded"]:
            futures = [clients.ask(gateways[n % 2], "sk-kept-low") for n in range(80)]
            codes.update(future.result()[0] for future in futures)
        assert 1900 <= mock.total()["tokens"] <= 2000
        status, _, body = gateways[1].chat("sk-kept-low", max_tokens=20)
        assert status == 429
        assert "50% reserved for higher priorities" in body["error"]["message"]
        for _ in range(10):
            high = [clients.ask(gateways[n % 2], "sk-kept-high") for n in range(6)]
            assert {future.result()[0] for future in high} == {"200"}
        assert mock.total()["tokens"] > 3000


def test_shadow_limits_never_refuse(tmp_path: Path, mock: Mock, redis: str) -> None:
    """A hundred requests far beyond two shadow limits are all served; each that would have been refused is told once."""
    with replicas(tmp_path, mock, redis, "{max_wait: 0s}") as gateways, Clients(20) as clients:
        futures = [clients.ask(gateways[n % 2], "sk-seen") for n in range(100)]
        assert Counter(future.result()[0] for future in futures) == {"200": 100}
        eventually(lambda: sum(len(records(gateway, "seen")) for gateway in gateways) == 100)
        told = [record["shadow"] for gateway in gateways for record in records(gateway, "seen") if "shadow" in record]
        counted = metric(gateways, "sluicegate_shadow_refusals_total")
        assert sum("tokens/day" in one for one in told) == counted["organization tokens/day"]
        assert sum("requests/minute" in one for one in told) == counted["organization requests/minute"]
        assert counted["organization tokens/day"] >= 100 - 500 // 20
        assert counted["organization requests/minute"] >= 60


def test_marks_once_over_two_replicas(tmp_path: Path, mock: Mock, redis: str) -> None:
    """Requests on two replicas use a day up: each mark that was reached is told once, by one of them."""
    with replicas(tmp_path, mock, redis, "{max_wait: 0s}") as gateways, Clients(20) as clients:
        futures = [clients.ask(gateways[n % 2], "sk-marked") for n in range(60)]
        assert {future.result()[0] for future in futures} <= {"200", "rate_limit_exceeded", "budget_busy", "budget_exceeded"}
        while (used := gateways[0].usage("sk-marked")["limits"][0]["used"]) < 800:  # of twenty at once, some may have found it busy
            clients.ask(gateways[1], "sk-marked").result()
        marks = [mark for mark, at in (("80%", 800), ("95%", 950), ("100%", 1000)) if used >= at]
        eventually(lambda: sum(metric(gateways, "sluicegate_limit_warnings_total").values()) >= len(marks))
        lines = [json.loads(line) for gateway in gateways for line in gateway.logged().splitlines() if '"limit warning"' in line]
        assert sorted(line["percent"] for line in lines) == sorted(marks)
        assert {(line["scope"], line["limit"], line["amount"]) for line in lines} == {("marked", "1000 tokens/day", "1000")}


def test_a_stopping_server_lets_waiters_run_to_their_end(tmp_path: Path, mock: Mock, redis: str) -> None:
    """After SIGTERM nobody new is taken in; those who wait are served."""
    with replicas(tmp_path, mock, redis, count=1) as [gateway], Clients(10) as clients:
        futures = [clients.ask(gateway, "sk-low", ttft="3s")]
        eventually(lambda: held(gateway, "sk-low") > 0)
        futures += [clients.ask(gateway, "sk-high", ttft="100ms") for _ in range(3)]
        until_waiting(gateway, 3)
        gateway.send(SIGTERM)
        assert [future.result()[0] for future in futures] == ["200"] * 4
        assert gateway.process.wait(60) == 0
        assert not answers(f"{gateway.url}/healthz")
