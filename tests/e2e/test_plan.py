"""What would happen to a request, as the admin API and the command line tell it: the same that then happens, and nothing comes of asking."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support_admin import KEY, OPERATOR, VIEWER, Api, more
from support_gateway import Gateway, running_gateway, running_mock
from support_inloop import Bench, Reply, running

TWO = """
  two:
    deployments:
      - {provider: mock, model: one, price: {input: 1, output: 1}, limits: [60 tokens/day]}
      - {provider: mock, model: two, price: {input: 1, output: 1}}"""
SECRET = "sk-abcdefghijklmnopqrstuvwxyz0123456789"


async def planned(bench: Bench, key: str = "acme/@key", dialect: str = "chat", **fields: Any) -> Any:
    """What is told of the request that `bench.chat` would send."""
    request = json.loads(bench.body(**fields))
    reply = await Api(bench)("POST", "plan", {"key": key, "dialect": dialect, "request": request}, OPERATOR)
    assert reply.status == 200, reply.body
    return reply.json


def agrees(plan: Any, reply: Reply) -> bool:
    """The gateway then tells the client so."""
    return (plan["allowed"], str(plan["status"] if plan["allowed"] else plan["code"])) == (reply.status == 200, reply.code)


# -- limits and deployments ---------------------------------------------------------------------------------------------------------------


async def test_a_plan_is_what_happens(tmp_path: Path) -> None:
    """While there is room, when there is none, for what can never fit and for a model that is not there; asking takes nothing."""
    async with running(tmp_path, limits="[80 tokens/day]", more=more()) as bench:
        for fields, code in (
            ({"max_tokens": 40}, "200"),
            ({"max_tokens": 40}, "token_limit"),
            ({"max_tokens": 400}, "too_large"),
            ({"model": "no"}, "no"),
        ):
            before, calls = await bench.usage(), bench.mock.truth.stats().total.requests
            plans = [await planned(bench, **fields) for _ in range(3)]
            assert plans[0] == plans[1] == plans[2]
            assert (await bench.usage(), bench.mock.truth.stats().total.requests) == (before, calls)
            reply = await bench.chat(**fields)
            assert agrees(plans[0], reply), (code, plans[0], reply.body)
            assert plans[0]["retry_after_s"] == (int(reply.headers["retry-after"]) if "retry-after" in reply.headers else None)
        assert bench.records[0].status == 200
        assert not (await bench._shown())[1]


async def test_a_deployment_that_is_left_alone_is_told_and_not_asked(tmp_path: Path) -> None:
    """Its cooldown, how long; the next one is where the request would go. Where all are left alone, what the client would be told."""
    async with running(tmp_path, models=TWO, more=more() + "\nresilience: {cooldown: 30s, breaker: {failures: 1, pause: 20s}}") as bench:
        bench.whole = False
        bench.mock.fault(count=1, model="one", status=503)
        assert (await bench.chat(model="two", max_tokens=20)).status == 200
        plan = await planned(bench, model="two", max_tokens=20)
        one, two = plan["deployments"]
        assert (one["id"], one["breaker"], two["breaker"], two["cooldown_s"]) == ("mock/one", "open", "closed", None)
        assert 10 < one["cooldown_s"] <= 20
        assert (plan["allowed"], plan["deployment"]) == (True, "mock/two")
        bench.mock.fault(count=1, model="two", status=503)
        await bench.chat(model="two", max_tokens=20)
        assert agrees(await planned(bench, model="two", max_tokens=20), await bench.chat(model="two", max_tokens=20))


async def test_a_deployment_that_is_full_is_told(tmp_path: Path) -> None:
    """Its own limit has no room for this request: the next one is asked."""
    async with running(tmp_path, models=TWO, more=more()) as bench:
        plan = await planned(bench, model="two", max_tokens=100)
        assert [place["full"] != "" for place in plan["deployments"]] == [True, False]
        assert (plan["allowed"], plan["deployment"]) == (True, "mock/two")
        assert (await bench.chat(model="two", max_tokens=100)).headers["x-sluicegate-deployment"] == "mock/two"


@pytest.mark.parametrize(
    ("dialect", "fields"),
    [
        ("completions", {"prompt": "Hi", "max_tokens": 9}),
        ("embeddings", {"input": "Hi"}),
        ("messages", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9}),
        ("responses", {"input": "Hi", "max_output_tokens": 16}),
    ],
)
async def test_every_dialect_can_be_asked_about(tmp_path: Path, dialect: str, fields: dict[str, Any]) -> None:
    """Read as its clients' requests are."""
    async with running(tmp_path, limits="[100k tokens/day]", more=more()) as bench:
        reply = await Api(bench)("POST", "plan", {"key": "acme/@key", "dialect": dialect, "request": {"model": "chat", **fields}}, OPERATOR)
        assert (reply.json["allowed"], reply.json["deployment"]) == (True, "mock/mock-chat")


# -- cache, rules, logs -------------------------------------------------------------------------------------------------------------------


async def test_the_cache_decides_as_it_then_does(tmp_path: Path) -> None:
    """Off, left out for a reason, a miss, a hit that costs nothing; asking is not counted among its requests."""
    section = "\ncache: {mode: deterministic}\n"
    async with running(tmp_path, limits="[100k tokens/day, 3 requests/day]", more=more() + section) as bench:
        drawn = await planned(bench)
        assert drawn["cache"] == "skip" and drawn["cache_why"].startswith("sampling: ")
        assert (await planned(bench, temperature=0))["cache"] == "miss"
        before = await bench.usage()
        assert (await bench.chat(temperature=0)).headers["x-sluicegate-cache"] == "miss"
        hit = await planned(bench, temperature=0)
        assert (hit["cache"], hit["deployment"], hit["cost_at_most_nano_usd"], hit["allowed"]) == ("hit", "cache", 0, True)
        assert [claim["limit"] for claim in hit["claims"]] == ["key key requests/day"]
        assert (await bench.chat(temperature=0)).headers["x-sluicegate-cache"] == "hit"
        assert bench.worker.metrics.counts().cache_lookups == {"miss": 1, "hit": 1}
        assert (await bench.usage())["key key requests/day"]["used"] == before["key key requests/day"]["used"] + 2
        await bench.chat()
        assert agrees(await planned(bench, temperature=0), await bench.chat(temperature=0))
    async with running(tmp_path / "off", more=more()) as bench:
        assert [(await planned(bench))[name] for name in ("cache", "cache_why")] == ["off", "the model has no cache"]


RULED = """
  acme:
    rules:
      system_prompt: Be kind to all.
      disclaimer: No advice.
      banned: [{name: hush, pattern: hush-hush}, {name: soft, pattern: softly, action: mask, on: input}]
      force: {temperature: 0.25}
      ceilings: {max_tokens: 50}
    keys: [{name: key, key: sk-key, limits: [100k tokens/day]}]"""


async def test_content_rules_are_told_and_the_request_as_they_make_it(tmp_path: Path) -> None:
    """Which bind, by whose word; what they found and set; a refusal as the client would get it."""
    async with running(tmp_path, tenants=RULED, more=more()) as bench:
        bench.whole = False
        plan = await planned(bench, max_tokens=400, messages=[{"role": "user", "content": "Say it softly"}])
        assert plan["rules"] == [
            "acme: a system prompt of 15 characters",
            "acme: a disclaimer of 10 characters",
            "acme: hush in requests and answers: refuse",
            "acme: soft in requests: mask",
            "acme: temperature is 0.25",
            "acme: max_output is at most 50",
        ]
        sent = json.loads(plan["request"])
        assert sent["messages"] == [{"role": "system", "content": "Be kind to all."}, {"role": "user", "content": "Say it [BANNED]"}]
        assert (sent["temperature"], sent["max_tokens"], plan["acted"], plan["output_tokens"]) == (0.25, 50, ["soft"], 50)
        assert sorted(plan["changed"]) == ["max_tokens", "temperature"]
        both = {"max_tokens": 400, "max_completion_tokens": 30}
        plan, _ = await planned(bench, **both), await bench.chat(**both)
        assert (plan["output_tokens"], json.loads(bench.mock.calls[-1].body)["max_tokens"]) == (30, 30)
        refused = {"messages": [{"role": "user", "content": "hush-hush"}]}
        plan, reply = await planned(bench, **refused), await bench.chat(**refused)
        assert agrees(plan, reply) and (plan["code"], plan["acted"]) == ("content_policy", ["hush"])


@pytest.mark.parametrize(("how", "told"), [("redacted", "I am [API_KEY], [STAFF]"), ("full", f"I am {SECRET}, E-1234"), ("hash", "sha256 ")])
async def test_the_prompt_is_told_as_it_would_be_logged(tmp_path: Path, how: str, told: str) -> None:
    """By `log.prompts` and with its own masks."""
    log = f", prompts: {how}, masks: [{{name: STAFF, pattern: 'E-[0-9]{{4}}'}}]"
    async with running(tmp_path, more=more(), log=log) as bench:
        plan = await planned(bench, messages=[{"role": "user", "content": f"I am {SECRET}, E-1234"}])
        assert told in plan["prompt"]
        assert (SECRET in json.dumps(plan)) == (how == "full")


async def test_no_plan_has_a_secret(tmp_path: Path) -> None:
    """Of the configuration, or of what rules make of a request."""
    async with running(tmp_path, tenants=RULED, more=more()) as bench:
        plan = json.dumps(await planned(bench, messages=[{"role": "user", "content": SECRET}]))
        for secret in (KEY, OPERATOR, "sk-provider-secret", SECRET):
            assert secret not in plan


# -- who may ask, and how -----------------------------------------------------------------------------------------------------------------


async def test_who_may_ask_and_what_is_wrong_is_named(tmp_path: Path) -> None:
    """Operators; the field of the body, and of the request in it."""
    async with running(tmp_path, more=more()) as bench:
        api, right = Api(bench), {"key": "acme/@key", "request": {"model": "chat", "messages": []}}
        assert await api.code("POST", "plan", right, VIEWER) == "403 not_allowed"
        assert await api.code("POST", "plan", right, "sk-key") == "403 not_allowed"
        assert await api.code("POST", "plan", right | {"key": "acme/@nobody"}, OPERATOR) == "404 key_not_found key"
        assert await api.code("POST", "plan", right | {"keys": 1}, OPERATOR) == "400 unknown_field keys"
        assert await api.code("POST", "plan", right | {"dialect": "morse"}, OPERATOR) == "400 invalid_value dialect"
        assert await api.code("POST", "plan", right | {"request": {"model": "chat", "messages": 5}}, OPERATOR) == "400 invalid_value request.messages"
        assert await api.code("POST", "plan", {"key": "acme/@key"}, OPERATOR) == "400 missing_field request"


async def test_a_key_that_was_made_at_run_time_can_be_asked_about(tmp_path: Path) -> None:
    """By its id, with its limits."""
    async with running(tmp_path, more=more()) as bench:
        await Api(bench).key(limits=["5 requests/day"])
        plan = await planned(bench, "acme/@k")
        assert ("key k requests/day" in [claim["limit"] for claim in plan["claims"]], plan["allowed"]) == (True, True)


def test_the_command_line_asks_a_running_gateway(tmp_path: Path) -> None:
    """In words and as JSON, without a configuration; what is wrong is one line that names the option or the field."""
    body = json.dumps({"model": "chat", "max_tokens": 60, "messages": [{"role": "user", "content": f"I am {SECRET}"}]})
    with running_mock(tmp_path) as mock:
        text = f"""
server: {{listen: "127.0.0.1:0"}}
ledger: sqlite:///{tmp_path}/ledger.db
records: sqlite:///{tmp_path}/records.db
journal: {tmp_path}/journal/
cache: {{mode: all}}
{more()}
providers: {{mock: {{provider: mock, base_url: {mock.url}/v1}}}}
models: {{chat: {{deployments: [{{provider: mock, model: m, price: {{input: 1, output: 1}}}}]}}}}
tenants: {{acme: {{keys: [{{name: k, key: sk-k, limits: [10k tokens/day]}}]}}}}
"""
        file = tmp_path / "config.yaml"
        file.write_text(text)
        offline = ask(tmp_path, body, "--config", str(file), "--key", "sk-k")
        assert "cache look up: mode all" in offline and "mock/m\n" in offline and "logged as I am [API_KEY]" in offline
        with running_gateway(tmp_path, text) as gateway:
            _asks(tmp_path, body, gateway)


def ask(directory: Path, body: str, *options: str, code: int = 0) -> str:
    command = [sys.executable, "-m", "sluicegate", "plan", *options, "-"]
    known = os.environ | {"SLUICEGATE_ADMIN_KEY": OPERATOR, "WRONG": "wrong-wrong-wrong-wrong"}
    ended = subprocess.run(command, cwd=directory, input=body, capture_output=True, text=True, timeout=60, check=False, env=known)
    assert ended.returncode == code, ended.stderr
    said = "\n".join(" ".join(line.split()) for line in (ended.stdout if code == 0 else ended.stderr).splitlines())
    assert OPERATOR not in said and (code == 0 or len(said.splitlines()) == 1)
    return said


def _asks(directory: Path, body: str, gateway: Gateway) -> None:
    there = ("--gateway", f"http://127.0.0.1:{gateway.port}", "--key", "acme/@k")
    told = ask(directory, body, *there)
    assert "cache miss: mode all" in told and "mock/m (well)" in told and "allowed yes" in told
    assert SECRET not in told and "logged as I am [API_KEY]" in told
    assert json.loads(ask(directory, body, *there, "--json"))["deployments"][0]["breaker"] == "closed"
    assert "key: There is no such key." in ask(directory, body, *there[:3], "acme/@no", code=2)
    assert "--key: must be the id" in ask(directory, body, *there[:3], "sk-k", code=2)
    assert "--admin-key-env" in ask(directory, body, *there, "--admin-key-env", "ABSENT", code=2)
    assert "admin key is not known" in ask(directory, body, *there, "--admin-key-env", "WRONG", code=2)
    assert "request.messages" in ask(directory, '{"model": "chat", "messages": 5}', *there, code=2)
    assert "body: is not JSON" in ask(directory, '{"model": ', *there, code=2)
    for depth in (300, 900, 1_010, 3_000):  # what one of the readers on its way takes, and the next does not
        deep = f'{{"model": "chat", "messages": {"[" * depth}{"]" * depth}}}'
        assert "body: The body is nested too deeply." in ask(directory, deep, *there, code=2) or depth < 3_000, depth
    assert "--dialect" in ask(directory, body, *there, "--dialect", "morse", code=2)
    assert "--gateway" in ask(directory, body, "--gateway", "http://127.0.0.1:1", "--key", "acme/@k", code=2)
