"""Probes: when one is due, what is asked, what an answer means, and what workers of one machine make of each other's."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sluicegate import probes as module
from sluicegate.bus import Message
from sluicegate.config import load_text
from sluicegate.core.tenants import Policy
from sluicegate.core.usage import Usage
from sluicegate.http.pools import Pools
from sluicegate.mock import Mock, from_mapping
from sluicegate.probes import Probes

GET = "{interval: 10s, timeout: 1s}"
CHAT = "{interval: 10s, timeout: 1s, request: completion}"


def policy_of(base_url: str, health: str, provider: str = "mock", more: str = "") -> Policy:
    text = f"""
providers:
  one: {{provider: {provider}, base_url: "{base_url}", api_key: sk-provider, health: {health}}}
  two: {{provider: mock}}
models:
  chat: {{deployments: [{{provider: one, model: a}}, {{provider: two, model: b}}]}}
  other: {{deployments: [{{provider: one, model: a}}]}}
{more}
tenants: {{acme: {{keys: [{{name: k, key: sk-1}}]}}}}"""
    return load_text(text, {}).policy


class Stage:
    """One worker's probes at a time that the test moves; in place of the bus what goes out and what is to be heard."""

    def __init__(self, base_url: str = "http://127.0.0.1:9/v1", health: str = GET, host: str = "h", provider: str = "mock") -> None:
        self.policy = policy_of(base_url, health, provider)
        self.now_s = 0.0
        self.rated: list[tuple[str, str, str]] = []
        self.used: list[tuple[str, Usage]] = []
        self.published: list[dict[str, Any]] = []
        self.pools = Pools([one.provider for one in self.policy.models["chat"].deployments])
        self.probes = Probes(
            lambda: self.policy,
            self.pools,
            self,  # type: ignore[arg-type]
            lambda *rated: self.rated.append(rated),
            lambda *used: self.used.append(used),
            lambda: self.now_s,
            lambda: int(self.now_s * 1000),
            lambda: 0.5,
            host,
        )

    def publish(self, kind: str, data: dict[str, Any]) -> None:
        assert kind == "health"
        self.published.append(data)

    def subscribe(self, kind: str, callback: Any, *, earlier: bool = False) -> None:
        assert (kind, earlier) == ("health", True)
        self._heard = callback

    def hears(self, data: Any, age_s: float = 0.0) -> str:
        self._heard(Message("1", "health", int((self.now_s - age_s) * 1000), "other", data))
        return self.probes.state("one/a")

    def due(self) -> list[str]:
        return [deployment.id for deployment, _ in self.probes.due()]

    async def probe(self) -> str:
        """Makes one; what the deployment is then."""
        deployment = self.policy.models["chat"].deployments[0]
        assert deployment.probe is not None
        await self.probes.probe(deployment, deployment.probe)
        return self.probes.state("one/a")


def result(failure: str = "", **changed: Any) -> dict[str, Any]:
    return {"deployment": "one/a", "host": "h", "failure": failure, "latency_ms": 12.5, **changed}


@contextlib.asynccontextmanager
async def mocked(health: str = GET, provider: str = "mock", root: bool = False) -> AsyncIterator[tuple[Stage, Mock]]:
    mock = Mock(from_mapping({}))
    await mock.start()
    stage = Stage(mock.base_url.removesuffix("/v1") if root else mock.base_url, health, provider=provider)
    try:
        yield stage, mock
    finally:
        await stage.pools.close()
        await mock.stop()


async def test_each_deployment_is_probed_in_its_interval() -> None:
    """Once, whatever routes it is in, soon after the start; then after the interval and some spread; those without `health` never."""
    stage = Stage()
    assert stage.due() == []
    stage.now_s = 0.5
    assert (stage.due(), stage.due()) == (["one/a"], [])
    stage.hears(result())
    stage.now_s = 0.5 + 10.9
    assert stage.due() == []
    stage.now_s = 0.5 + 11.1
    assert stage.due() == ["one/a"]


async def test_a_probe_whose_result_never_comes_is_made_again() -> None:
    """After the interval and the probe's own timeout."""
    stage = Stage()
    stage.due()
    stage.now_s = 0.5
    assert stage.due() == ["one/a"]
    stage.now_s = 11.4
    assert stage.due() == []
    stage.now_s = 11.6
    assert stage.due() == ["one/a"]


async def test_a_page_is_asked_for_with_our_credential() -> None:
    """The list of models; what is found goes to the standings and to the other workers, and costs nothing."""
    async with mocked() as (stage, mock):
        assert await stage.probe() == "healthy"
        assert stage.rated[0][:2] == ("one/a", "healthy")
        assert stage.published == [{"deployment": "one/a", "host": "h", "failure": "", "latency_ms": 0.0}]
        assert stage.probes.latency_ms("one/a") == 0.0
        assert stage.used == [] and mock.truth.stats().total.completion_tokens == 0


@pytest.mark.parametrize(("provider", "root"), [("mock", False), ("anthropic", True), ("ollama", True)])
async def test_a_completion_has_one_token_and_says_what_it_used(provider: str, root: bool) -> None:
    """In the dialect of the provider; its tokens are told, since no tenant is charged for them."""
    async with mocked(CHAT, provider, root) as (stage, mock):
        assert await stage.probe() == "healthy"
        [(deployment, usage)] = stage.used
        assert (deployment, usage.output_tokens) == ("one/a", 1)
        assert (usage.input_tokens or 0) > 0
        assert mock.truth.stats().total.completion_tokens == 1


@pytest.mark.parametrize(
    ("fault", "failure"),
    [
        ({"status": 503}, "it answered 503"),
        ({"status": 529}, "it answered 529"),
        ({"status": 401}, "it answered 401"),
        ({"status": 404, "message": "no such model"}, "it answered 404"),
        ({"html": True}, "it answered 200:502"),
        ({"status": 400, "message": "Your credit balance is too low"}, "it answered 400"),
        ({"status": 429}, ""),
        ({"status": 400, "message": "max_tokens is too small"}, ""),
        ({"status": 422}, ""),
    ],
    ids=str,
)
async def test_what_an_answer_says(fault: dict[str, Any], failure: str) -> None:
    """Whoever is limited, or refuses what the probe asks, lives; whoever cannot serve does not."""
    async with mocked(CHAT) as (stage, mock):
        mock.fault(**fault)
        assert await stage.probe() == ("degraded" if failure else "healthy")
        assert stage.published[0]["failure"] == failure


async def test_a_page_of_html_is_no_list_of_models() -> None:
    """Something else than the provider's API answers there."""

    async def page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: Text/HTML; charset=utf-8\r\ncontent-length: 7\r\n\r\n<html/>")
        await reader.read()
        writer.close()

    async with await asyncio.start_server(page, "127.0.0.1", 0) as server:
        stage = Stage(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")
        assert await stage.probe() == "degraded"
        assert stage.published[0]["failure"] == "it answered with a page"
        await stage.pools.close()
        await asyncio.sleep(0.01)


async def test_a_page_that_is_not_there_is_a_failure() -> None:
    """So is a server that is not."""
    async with mocked("{path: /nothing}") as (stage, _):
        assert await stage.probe() == "degraded"
        assert stage.published[0]["failure"] == "it answered 404"
    stage = Stage()
    assert [await stage.probe() for _ in range(3)] == ["degraded", "degraded", "down"]
    assert stage.published[0]["failure"] == "connect"
    assert stage.rated[-1] == ("one/a", "down", "3 probes in a row failed: connect")
    await stage.pools.close()


async def test_workers_of_one_machine_share_what_they_find() -> None:
    """A result from the same host counts as one's own and puts one's own probe off; one from another host, or an old one, does neither."""
    stage = Stage()
    stage.due()
    assert stage.hears(result("timeout", host="elsewhere")) == "unknown"
    stage.now_s = 30.0
    assert stage.hears(result("timeout"), age_s=21.0) == "unknown"
    assert stage.due() == ["one/a"]
    assert stage.hears(result("timeout"), age_s=4.0) == "degraded"
    stage.now_s = 30.0 - 4.0 + 11.1
    assert stage.due() == ["one/a"]
    assert stage.published == []


@pytest.mark.parametrize(
    "data",
    [{}, result(latency_ms=-1), result(latency_ms="x"), result(failure=None), result(deployment="no/such"), result(deployment="two/b")],
    ids=str,
)
async def test_impossible_results_are_ignored(data: dict[str, Any]) -> None:
    """Nothing is rated, and nothing is put off."""
    stage = Stage()
    assert stage.hears(data) == "unknown"
    assert stage.rated == []


async def test_a_reload_is_followed() -> None:
    """What is not probed any more is unknown again, also to the standings; what is new is due soon."""
    stage = Stage()
    assert stage.hears(result("timeout")) == "degraded"
    stage.policy = policy_of("http://127.0.0.1:9/v1", "null")
    assert stage.due() == []
    assert (stage.probes.state("one/a"), stage.probes.latency_ms("one/a")) == ("unknown", None)
    assert stage.rated[-1][:2] == ("one/a", "unknown")
    assert stage.hears(result("timeout")) == "unknown"
    stage.policy = policy_of("http://127.0.0.1:9/v1", GET)
    assert stage.due() == []
    stage.now_s += 0.5
    assert stage.due() == ["one/a"]


async def test_it_goes_on_until_it_is_cancelled(monkeypatch: pytest.MonkeyPatch, logged: list[Any]) -> None:
    """A probe that goes wrong in a way nobody thought of is logged, and the next is made."""
    monkeypatch.setattr(module, "TICK_S", 0.001)
    stage, asked = Stage(), []

    async def ask(*_: Any) -> str:
        asked.append(stage.now_s)
        if len(asked) == 1:
            raise RuntimeError("no")
        return ""

    monkeypatch.setattr(stage.probes, "_ask", ask)
    task = asyncio.create_task(stage.probes.run())
    while len(asked) < 2:
        stage.now_s += 0.25
        await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert [line["event"] for line in logged] == ["probe went wrong"]
    assert stage.probes.state("one/a") == "healthy"
