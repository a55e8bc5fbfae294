"""Which path answers what, to whom, and that nothing else is served."""

import json
from pathlib import Path
from typing import Any

import pytest

from sluicegate import reject
from sluicegate.config.load import load_text
from sluicegate.consumption import Consumption, ModelUse, Unknown, Use
from sluicegate.core.claims import Admission, Settlement
from sluicegate.core.plan import Template
from sluicegate.http.exchange import ClientGone, Exchange
from sluicegate.ledger.contract import LedgerUnavailable
from sluicegate.ledger.memory import MemoryLedger
from sluicegate.surface import Surface
from support_inloop import config_text
from support_ledgers import Clock, use_at_once
from support_playbook import FakeExchange

LIMITS = "[1000 tokens/day, $5/month, 60 requests/minute, 4 concurrent, {amount: 50, unit: tokens, per: day, models: [free]}, 9 requests/lifetime]"


class FakeGateway:
    """Knows its policy and who may call."""

    def __init__(self, directory: Path) -> None:
        tenants = f"""
  acme:
    keys:
      - {{name: key, key: sk-key, limits: {LIMITS}}}
      - {{name: narrow, key: sk-narrow, models: [free]}}"""
        self.policy = load_text(config_text(directory, "http://127.0.0.1:9/v1", tenants=tenants), {}).policy
        self.served: list[str] = []
        self.gone = False  # the client, before its body has come

    async def who(self, exchange: FakeExchange) -> Any:
        name = exchange.headers.get(b"authorization", b"").decode().removeprefix("Bearer sk-")
        for key in self.policy.keys.values():
            if key.name == name:
                return key
        raise reject.unauthenticated(bool(name))

    async def count(self, exchange: FakeExchange, read_request: Any) -> int:
        await self.who(exchange)
        if self.gone:
            raise ClientGone
        return len(read_request(b'{"model":"chat","messages":[{"role":"user","content":"hi"}]}').texts)

    async def serve(self, exchange: FakeExchange, dialect: Any) -> None:
        self.served.append(dialect.NAME)
        exchange.start(200, [], 2)
        exchange.finish(b"{}")


class Stage:
    def __init__(self, directory: Path) -> None:
        self.gateway = FakeGateway(directory)
        self.ledger = MemoryLedger(Clock())
        use_at_once(self.ledger, "acme")
        self.why_not = ""
        self.may_scrape = True
        ready = lambda: (self.why_not, {"closed_trees": 3, "deployments_down": 1})  # noqa: E731
        self.surface = Surface(self.gateway, self.ledger, self.used, ready, self.metrics, lambda _: self.may_scrape)  # type: ignore[arg-type]
        self.known: Consumption | None = None

    async def used(self, key_id: str) -> Consumption:
        assert key_id.startswith("acme/@")
        if self.known is None:
            raise Unknown("the records do not answer")
        return self.known

    async def metrics(self) -> bytes:
        return b"sluicegate_requests_total 1\n"

    async def ask(self, path: str, method: str = "GET", key: str = "sk-key") -> FakeExchange:
        exchange = FakeExchange(headers={b"authorization": f"Bearer {key}".encode()} if key else {})
        exchange.path, exchange.method = path, method
        exchange_: Any = exchange
        await self.surface.handle(exchange_)
        assert exchange.finished
        return exchange


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def error_of(exchange: FakeExchange) -> Any:
    assert exchange.sent_headers[b"content-type"] == b"application/json"
    return json.loads(exchange.data)["error"]


async def test_chat_goes_to_the_gateway(stage: Stage) -> None:
    """In OpenAI's dialect."""
    await stage.ask("/v1/chat/completions", "POST")
    assert stage.gateway.served == ["openai_chat"]


async def test_tokens_of_messages_are_counted_by_the_gateway(stage: Stage) -> None:
    """POST /v1/messages/count_tokens needs no cap and is answered with a number alone; nothing is served for it."""
    exchange = await stage.ask("/v1/messages/count_tokens", "POST")
    assert (exchange.status, json.loads(exchange.data), stage.gateway.served) == (200, {"input_tokens": 1}, [])


async def test_a_client_that_leaves_before_its_tokens_are_counted(stage: Stage) -> None:
    """It gets nothing."""
    stage.gateway.gone = True
    exchange = FakeExchange(headers={b"authorization": b"Bearer sk-key"})
    exchange.path, exchange.method = "/v1/messages/count_tokens", "POST"
    exchange_: Any = exchange
    await stage.surface.handle(exchange_)
    assert exchange.aborted and not exchange.finished


@pytest.mark.parametrize(
    ("path", "method", "key", "status", "kind"),
    [
        ("/v1/messages", "GET", "sk-key", 405, "invalid_request_error"),
        ("/v1/messages/count_tokens", "GET", "sk-key", 405, "invalid_request_error"),
        ("/v1/messages/count_tokens", "POST", "sk-nobody", 401, "authentication_error"),
        ("/v1/messages/batches", "POST", "sk-key", 404, "not_found_error"),
    ],
)
async def test_errors_about_messages_are_anthropics(stage: Stage, path: str, method: str, key: str, status: int, kind: str) -> None:
    """Anthropic's shape and types, whatever is wrong."""
    exchange = await stage.ask(path, method, key)
    body = json.loads(exchange.data)
    assert (exchange.status, body["type"], body["error"]["type"], body["request_id"]) == (status, "error", kind, None)
    assert (b"allow" in exchange.sent_headers) == (status == 405)


@pytest.mark.parametrize("path", [
    "/", "/v1", "/v1/", "/v1/chat/completions/", "/v1/moderations", "/v1/rerank", "/v1/responses/resp_1", "/v1/images/generations",
    "/v1/files", "/v1/batches", "/v1/audio/speech", "/openai/v1/chat/completions", "/chat/completions", "/v1/realtime", "/V1/CHAT/COMPLETIONS",
    "/v1/models/chat", "/v1/messages/batches", "/../v1/chat/completions", "/v1/chat%2fcompletions", "/v1/chat/completions\x00", "/é" * 1000,
])  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_case_4_what_is_not_metered_does_not_exist(stage: Stage, path: str, method: str) -> None:
    """Every other path is a JSON 404 that names what is served, in bounded length; nothing passes through."""
    exchange = await stage.ask(path, method)
    error = error_of(exchange)
    assert (exchange.status, error["code"]) == (404, "path_not_found")
    assert "POST /v1/chat/completions" in error["message"]
    assert len(exchange.data) < 3000
    assert stage.gateway.served == []


@pytest.mark.parametrize(("path", "right"), [("/v1/chat/completions", "POST"), ("/v1/models", "GET"), ("/v1/usage", "GET"), ("/metrics", "GET")])
@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "GET", "POST", "HEAD"])
async def test_a_wrong_method_is_told_the_right_one(stage: Stage, path: str, right: str, method: str) -> None:
    """405 with `allow`; HEAD is as good as GET."""
    exchange = await stage.ask(path, method)
    if method == right or (method == "HEAD" and right == "GET"):
        assert exchange.status == 200
    else:
        assert (exchange.status, exchange.sent_headers[b"allow"], error_of(exchange)["code"]) == (405, right.encode(), "method_not_allowed")


@pytest.mark.parametrize("path", ["/v1/models", "/v1/usage"])
@pytest.mark.parametrize("key", ["", "sk-nobody"])
async def test_no_key_no_answer(stage: Stage, path: str, key: str) -> None:
    """401 in JSON."""
    exchange = await stage.ask(path, key=key)
    assert (exchange.status, error_of(exchange)["code"]) == (401, "invalid_api_key")


@pytest.mark.parametrize(("key", "models"), [("sk-key", ["chat", "free"]), ("sk-narrow", ["free"])])
async def test_models_are_those_that_a_key_may_use(stage: Stage, key: str, models: list[str]) -> None:
    """In OpenAI's form."""
    listed = json.loads((await stage.ask("/v1/models", key=key)).data)
    assert listed["object"] == "list"
    assert [(model["id"], model["object"]) for model in listed["data"]] == [(name, "model") for name in models]


async def test_usage_shows_a_key_its_limits(stage: Stage) -> None:
    """Used, held and remaining of each limit that binds it, dollars as dollars, with the next reset where there is one; of no other key."""
    key = next(key for key in stage.gateway.policy.keys.values() if key.name == "key")
    refs = Template(key.tree, key.counters, None).refset(stage.ledger.now_ms())
    amounts = (5, 1000, 2_500_000, 1_000_000, 1, 0, 1, 0, 5, 1000, 1, 0)
    await stage.ledger.admit(Admission("done", refs, amounts, 10, 10, 10, 60_000, "t"))
    await stage.ledger.settle(Settlement("done", refs, (12, 9_000_000, 1, 0, 12, 1)))
    await stage.ledger.admit(Admission("open", refs, amounts, 10, 10, 10, 60_000, "t"))
    limits = {limit["name"]: limit for limit in json.loads((await stage.ask("/v1/usage")).data)["limits"]}
    day = limits["key key tokens/day"]
    assert (day["used"], day["held"], day["remaining"], day["limit"], day["unit"]) == (12, 15, 973, 1000, "tokens")
    assert day["resets_at"] == "2027-01-16T00:00:00Z"
    month = limits["key key usd/month"]
    assert (month["used"], month["limit"], month["held"]) == (0.009, 5.0, 0.00251)
    minute = limits["key key requests/minute"]
    assert (minute["used"], minute["held"], minute["resets_at"]) == (2, 0, None)
    assert (limits["key key concurrent"]["held"], limits["key key requests/lifetime"]["resets_at"]) == (1, None)
    assert limits["key key tokens/day [free]"]["models"] == ["free"]
    assert json.loads((await stage.ask("/v1/usage", key="sk-narrow")).data)["limits"] == []


async def test_usage_without_the_ledger_is_a_503(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a time to try again, in JSON."""

    async def away(_: object) -> None:
        raise LedgerUnavailable("away")

    monkeypatch.setattr(stage.ledger, "peek", away)
    exchange = await stage.ask("/v1/usage")
    assert (exchange.status, exchange.sent_headers[b"retry-after"], error_of(exchange)["code"]) == (503, b"1", "ledger_unavailable")


async def test_health_and_readiness(stage: Stage) -> None:
    """Alive as long as it answers; ready unless there is a reason."""
    for why_not, status in (("", 200), ("draining", 503), ("the ledger does not answer", 503)):
        stage.why_not = why_not
        ready = await stage.ask("/readyz", key="")
        assert (ready.status, json.loads(ready.data)) == (status, {"status": why_not or "ready", "closed_trees": 3, "deployments_down": 1})
        assert (await stage.ask("/healthz", key="")).status == 200


async def test_metrics_ask_for_their_own_credential(stage: Stage) -> None:
    """Where they are not free to read: 401, and not a figure."""
    shown = await stage.ask("/metrics", key="")
    assert (shown.status, shown.data) == (200, b"sluicegate_requests_total 1\n")
    stage.may_scrape = False
    refused = await stage.ask("/metrics")
    assert (refused.status, b"sluicegate_requests" in refused.data) == (401, False)


def test_the_fake_exchange_has_what_it_stands_for() -> None:
    """Everything that the gateway uses of an exchange exists in the real one."""
    for name in ("read_body", "start", "write", "finish", "abort", "unsent", "gone", "on_gone", "on_drained", "headers", "arrived"):
        assert hasattr(Exchange, name)


async def test_what_a_key_has_used_is_told_beside_its_limits(stage: Stage) -> None:
    """As the records have it; where they do not answer the limits are told all the same, and why the rest is not."""
    told = json.loads((await stage.ask("/v1/usage")).data)
    assert (told["usage"], told["usage_unavailable"], len(told["limits"])) == (None, "the records do not answer", 6)
    use = Use("2026-11-30T00:00:00Z", 1, 2, 3, 0.5, [ModelUse("chat", 1, 2, 3, 0.5)])
    stage.known = Consumption(use, use)
    told = json.loads((await stage.ask("/v1/usage")).data)
    assert told["usage_unavailable"] is None
    assert told["usage"]["today"] == told["usage"]["month"]
    assert told["usage"]["today"]["models"] == [{"model": "chat", "requests": 1, "input_tokens": 2, "output_tokens": 3, "cost_usd": 0.5}]
