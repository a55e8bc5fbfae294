"""Another configuration under a running worker: a whole gateway in this loop, its mock, and clients that stay."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from sluicegate.config.load import Loaded, load_text
from support_inloop import Bench, config_text, running


async def change(bench: Bench, directory: Path, **settings: Any) -> None:
    """Applies what these settings make of the configuration."""
    base_url = settings.pop("base_url", bench.mock.base_url)
    await use(bench, load_text(config_text(directory, base_url, **settings), {}))


async def use(bench: Bench, loaded: Loaded) -> None:
    await bench.worker.apply(loaded)
    bench.loaded = loaded
    bench.worker.gateway._observers = (*bench.worker.gateway._observers, bench.records.append)


def keys(*names: str, limits: str = "[]") -> str:
    return f"\n  acme:\n    limits: {limits}\n    keys: [{', '.join(f'{{name: {name}, key: sk-{name}}}' for name in names)}]"


async def test_a_changed_limit_binds_at_once_and_keeps_the_count(tmp_path: Path) -> None:
    """Lowered below what is used, it refuses; raised, it has what is left of it."""
    async with running(tmp_path, limits="[1000 tokens/day]") as bench:
        assert (await bench.chat(max_tokens=20)).status == 200
        used = (await bench.usage())["key key tokens/day"]["used"]
        assert used > 20
        await change(bench, tmp_path, limits=f"[{used + 10} tokens/day]")
        refused = await bench.chat(max_tokens=20)
        assert (refused.status, refused.error["code"], refused.error["sluicegate"]["used"]) == (429, "budget_exceeded", used)
        await change(bench, tmp_path, limits="[5000 tokens/day]")
        assert (await bench.chat(max_tokens=20)).status == 200
        limit = (await bench.usage())["key key tokens/day"]
        assert (limit["limit"], limit["used"] > used) == (5000, True)


async def test_a_limit_that_is_new_has_what_was_used_before_it(tmp_path: Path) -> None:
    """As the records know it, this worker's latest included; on the key and above it; also when a tree gets its first limit."""
    async with running(tmp_path) as bench:
        assert (await bench.chat(max_tokens=20)).status == 200
        await change(bench, tmp_path, limits="[60 tokens/day]", org="[$1/month]")
        assert (await bench.usage())["key key tokens/day"]["used"] == bench.total
        assert (await bench.usage())["organization acme usd/month"]["used"] > 0
        assert [(await bench.chat(max_tokens=50)).status, (await bench.chat(max_tokens=50)).status] == [200, 429]
        assert not bench.worker.recovery.closed


async def test_a_new_organization_and_a_deployment_s_first_limit_refuse_nobody(tmp_path: Path) -> None:
    """Their trees are open before they are asked of."""
    async with running(tmp_path, limits="[1000 tokens/day]") as bench:
        tenants = keys("key", limits="[1000 tokens/day]") + keys("new", limits="[50 requests/day]").replace("acme", "other")
        await change(bench, tmp_path, tenants=tenants, deployment=", limits: [10 concurrent]")
        assert [(await bench.chat(key, max_tokens=5)).status for key in ("sk-key", "sk-new")] == [200, 200]
        assert bench.worker.recovery.known == 3
        await change(bench, tmp_path, limits="[1000 tokens/day]")
        assert [(await bench.chat(key, max_tokens=5)).status for key in ("sk-key", "sk-new")] == [200, 401]
        bench.whole = False  # what the key that is gone used is not told apart


async def test_a_stream_ends_under_what_it_came_under(tmp_path: Path) -> None:
    """Its key, its model, its provider's place and its limits are gone meanwhile; it goes on to its end, and is settled."""
    async with running(tmp_path, limits="[1000 tokens/day]", options={"tpot": "10ms", "completion": 30}, extend=True) as bench:
        connection = await bench.open(stream=True, max_tokens=30)
        await connection.until(b"data: ")
        standing = next(iter(bench.worker.gateway.trips)).standing
        await change(bench, tmp_path, tenants=keys("other"), base_url="http://127.0.0.1:9/v1")
        assert (await bench.chat()).status == 401
        assert (await bench.chat("sk-other", max_tokens=5)).status == 502
        assert standing is not None and standing in [trip.standing for trip in bench.worker.gateway.trips]
        reply = await connection.rest()
        assert (reply.done, len(reply.text) > 0, bench.record.status, bench.record.key_id) == (True, True, 200, "acme/@key")


async def test_who_is_under_way_has_the_policy_of_when_it_came(tmp_path: Path) -> None:
    """Also if its body comes only after another policy does, in which its model is not."""
    async with running(tmp_path) as bench:
        body = bench.body(max_tokens=5)
        connection = await bench.connect()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer sk-key\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        connection.send(head)
        while not bench.worker.gateway.trips:
            await bench.get("/healthz")
        loaded = load_text(config_text(tmp_path, bench.mock.base_url).replace("  chat:", "  renamed:"), {})
        await use(bench, loaded)
        connection.writer.write(body)
        assert (await connection.rest()).status == 200
        assert (await bench.chat()).code == "model_not_found"


async def test_a_deployment_that_stays_keeps_its_standing(tmp_path: Path) -> None:
    """Its breaker stays open; figures of the breaker count from now on."""
    failing = "resilience: {breaker: {failures: 1, pause: 60s}}"
    async with running(tmp_path, more=failing) as bench:
        bench.mock.fault(status=500)
        assert [(await bench.chat()).status for _ in range(2)] == [500, 503]
        await change(bench, tmp_path, more="resilience: {breaker: {failures: 3, pause: 60s}}")
        assert (await bench.chat()).status == 503


async def test_settings_of_the_worker_are_applied(tmp_path: Path) -> None:
    """The size of bodies, the time to drain, the log, how long holds last."""
    async with running(tmp_path) as bench:
        worker = bench.worker
        written = config_text(tmp_path, bench.mock.base_url, more="budget: {hold_ttl: 7s}")
        loaded = load_text(written.replace("drain: 5s", "drain: 9s, max_body: 1KB"), {})
        before = len(worker.gateway._observers)
        await worker.apply(msgspec.structs.replace(loaded, config=loaded.config.model_copy(update={"log": type(loaded.config.log)()})))
        assert (await bench.chat(user="x" * 1000)).status == 413
        assert worker.server is not None
        assert (worker.server.drain_s, worker._upkeep._hold_ttl_ms, len(worker.gateway._observers)) == (9, 7000, before)


async def test_what_cannot_be_used_changes_nothing(tmp_path: Path) -> None:
    """A provider's authority that is not there is found before anything is swapped."""
    async with running(tmp_path, limits="[1000 tokens/day]") as bench:
        policy = bench.worker.gateway.policy
        provider = f'  broken: {{provider: mock, base_url: "https://127.0.0.1:1/v1", ca_file: {tmp_path}/none.pem}}'
        model = "  broken: {deployments: [{provider: broken, model: m, price: {input: 0, output: 0}}]}"
        with pytest.raises(ValueError, match=r"providers\.broken\.ca_file"):
            await change(bench, tmp_path, limits="[1 tokens/day]", providers=provider, models=model)
        assert (bench.worker.gateway.policy is policy, (await bench.chat(max_tokens=5)).status) == (True, 200)
