"""The admin API of a whole gateway in one process: who may ask, what is answered, and what chaos does to requests and to the ledger."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from sluicegate import app
from sluicegate.config.load import load_text
from support_admin import OPERATOR, VIEWER, Api, more, until
from support_inloop import Bench, Reply, config_text, request, running

KEY = "sk-admin-of-the-tests"
ADMIN = f"admin: {{key: {KEY}, chaos: on}}"
NO_CHAOS = f"admin: {{key: {KEY}}}"
ROUTE: dict[str, Any] = {
    "limits": "[10k tokens/day, 1k requests/day]",
    "providers": "  second: {provider: mock, base_url: BASE_URL, tokenizer: o200k_base}",
    "models": """
  two:
    deployments:
      - {provider: mock, model: one, price: {input: 0.5, output: 1.0}, limits: [5 requests/minute]}
      - {provider: second, model: two, price: {input: 0.5, output: 1.0}}""",
}
PATIENT = "resilience: {breaker: {failures: 3, pause: 10s}, timeouts: {first_byte: 800ms}}"


async def ask(bench: Bench, path: str, key: str = KEY, method: str = "GET", port: int = 0) -> Reply:
    connection = await bench.connect() if not port else None
    if connection is None:
        main, bench.port = bench.port, port
        connection = await bench.connect()
        bench.port = main
    connection.send(f"{method} {path} HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer {key}\r\nconnection: close\r\n\r\n".encode())
    return await connection.rest()


async def chaos(bench: Bench, **fields: Any) -> Reply:
    """A fault of the deployment mock/one, unless another is named."""
    body = {"deployment": "mock/one", **{name.rstrip("_"): value for name, value in fields.items()}}
    return await bench.raw(request(json.dumps(body).encode(), KEY, path="/admin/v1/chaos"))


async def tried(bench: Bench, **fields: Any) -> str:
    answer = await bench.chat(model="two", max_tokens=20, **fields)
    return f"{answer.status} {answer.headers.get('x-sluicegate-attempts', '')}".strip()


# -- access -------------------------------------------------------------------------------------------------------------------------------


async def test_without_a_key_there_is_no_admin_api(tmp_path: Path) -> None:
    """What asks for it is told how to switch it on."""
    async with running(tmp_path) as bench:
        reply = await ask(bench, "/admin/v1/health")
        assert (reply.status, reply.code) == (404, "admin_off")
        assert "key_env" in reply.error["message"]


def test_without_a_key_the_framework_is_not_loaded() -> None:
    """It takes memory and a quarter of a second."""
    script = "import sys; import sluicegate.cli, sluicegate.app; sys.exit('fastapi' in sys.modules or 'websockets' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


async def test_nobody_gets_in_without_the_key(tmp_path: Path) -> None:
    """Every operation of the document answers 401 without a key, and to an ordinary one; only the document itself is open."""
    async with running(tmp_path, more=ADMIN) as bench:
        document = (await ask(bench, "/admin/openapi.json", key="none")).json
        operations = [(path, verb) for path, verbs in document["paths"].items() for verb in verbs]
        assert len(operations) >= 6
        for path, verb in operations:
            where = re.sub(r"\{\w+\}", "x", path)
            body = b'{"deployment": "mock/mock-chat"}' if verb == "post" else b""
            head = f"{verb.upper()} {where} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
            wanted = "invalid_api_key" if path.startswith("/admin/v1/me") else "invalid_admin_key"
            assert (await bench.raw(head.encode() + b"\r\n" + body)).code == wanted, (verb, path)
        assert (await ask(bench, "/admin/v1/health", key="sk-key")).code == "not_allowed"


async def test_an_address_that_guesses_is_held_up(tmp_path: Path) -> None:
    """The eleventh try within a minute is a 429 that says for how long, also with the right key; the data plane is not concerned."""
    async with running(tmp_path, more=ADMIN) as bench:
        assert {(await ask(bench, "/admin/v1/health", key=f"guess{i}")).status for i in range(10)} == {401}
        reply = await ask(bench, "/admin/v1/health")
        assert (reply.status, reply.code) == (429, "too_many_failures")
        assert 50 <= int(reply.headers["retry-after"]) <= 60
        assert (await bench.chat(max_tokens=5)).status == 200


# -- form ---------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'{"deployment": "mock/one", "budget": {"limit": 1}}', "400 unknown_field budget"),
        (b'{"deployment": "mock/one", "latncy": "1s"}', "400 unknown_field latncy"),
        (b'{"latency": "1s"}', "400 missing_field deployment"),
        (b'{"deployment": "mock/one", "latency": 5}', "400 invalid_value latency"),
        (b'{"deployment": "mock/one", "status": "503"}', "400 invalid_value status"),
        (b'{"deployment": "mock/one", "failure_rate": NaN}', "400 invalid_value failure_rate"),
        (b'{"deployment": "mock/one", "for": "2h"}', "400 invalid_value for"),
        (b'{"deployment": "mock/one", "status": 503, "cut_after": "1 bytes"}', "400 invalid_value cut_after"),
        (b'{"deployment": "mock/none"}', "404 deployment_not_found deployment"),
        (b"[]", "400 invalid_body None"),
        (b"{", "400 invalid_body None"),
        (b"", "400 invalid_body None"),
        (b'{"deployment": "\xff"}', "400 invalid_body None"),
        (b"[" * 100_000, "400 invalid_body None"),
        (b" " * (1 << 20) + b"{}", "413 request_body_too_large None"),
    ],
)
async def test_case_5_what_is_wrong_is_told_by_its_field(tmp_path: Path, body: bytes, told: str) -> None:
    """Case 5: no field is dropped in silence; every error is in OpenAI's form, names the field, and quotes nothing."""
    async with running(tmp_path, more=ADMIN, **ROUTE) as bench:
        reply = await bench.raw(request(body, KEY, path="/admin/v1/chaos"))
        assert f"{reply.status} {reply.code} {reply.error['param']}" == told
        assert (await ask(bench, "/admin/v1/chaos")).json["data"] == []


async def test_paths_methods_and_queries(tmp_path: Path) -> None:
    """What is not served is a 404, another method a 405 that names all that are taken, an unknown query field a 400; HEAD is GET without a body."""
    async with running(tmp_path, more=ADMIN) as bench:
        assert (await ask(bench, "/admin/v1/nothing")).code == "path_not_found"
        assert (await ask(bench, "/admin/v1/health/")).code == "path_not_found"
        wrong = await ask(bench, "/admin/v1/chaos", method="PUT")
        assert (wrong.status, wrong.code, wrong.headers["allow"]) == (405, "method_not_allowed", "DELETE, GET, POST")
        for query in ("limt=1", "limit=0", "limit=x", "limit=1001"):
            assert (await ask(bench, f"/admin/v1/breakers?{query}")).error["param"] == query.partition("=")[0]
        head = await ask(bench, "/admin/v1/breakers", method="HEAD")
        assert (head.status, head.body, int(head.headers["content-length"]) > 0) == (200, b"", True)


async def test_lists_come_in_pages(tmp_path: Path) -> None:
    """`next` leads from page to page."""
    async with running(tmp_path, more=ADMIN, **ROUTE) as bench:
        everything = (await ask(bench, "/admin/v1/breakers")).json
        assert (everything["object"], everything["has_more"], everything["next"]) == ("list", False, None)
        first = (await ask(bench, "/admin/v1/breakers?limit=1")).json
        rest = (await ask(bench, f"/admin/v1/breakers?after={first['next']}")).json
        assert first["data"] + rest["data"] == everything["data"]
        assert len(everything["data"]) >= 3


async def test_the_documentation_fetches_nothing(tmp_path: Path) -> None:
    """The page has no script and no address of anybody else; the document is one, and has every operation with its errors."""
    async with running(tmp_path, more=ADMIN) as bench:
        page = await ask(bench, "/admin/docs", key="none")
        assert page.headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        text = page.body.decode()
        assert "<script" not in text and "//" not in re.sub(r"<pre>.*?</pre>", "", text, flags=re.DOTALL)
        document = (await ask(bench, "/admin/openapi.json", key="none")).json
        for path, verbs in document["paths"].items():
            assert path in text
            for operation in verbs.values():
                assert {"400", "401", "429"} <= set(operation["responses"]) and "422" not in operation["responses"]
                assert operation["security"] == [{"bearer": []}]


# -- where it is served -------------------------------------------------------------------------------------------------------------------


async def test_a_listener_for_operators(tmp_path: Path) -> None:
    """With `admin.listen` the admin API and /metrics are served there alone, and nothing of the data plane is."""
    async with running(tmp_path, more=f'admin: {{key: {KEY}, listen: "127.0.0.1:0"}}') as bench:
        operators = bench.worker._operators
        assert operators is not None and operators.port != bench.port
        for path in ("/admin/v1/health", "/metrics"):
            here, there = await ask(bench, path), await ask(bench, path, port=operators.port)
            assert (here.status, here.code, there.status) == (404, "path_not_found", 200)
        for path in ("/healthz", "/readyz"):
            assert [(await ask(bench, path, port=port)).status for port in (0, operators.port)] == [200, 200]
        assert (await ask(bench, "/v1/models", key="sk-key", port=operators.port)).status == 404
        assert "/admin" not in (await ask(bench, "/nothing")).error["message"]


async def test_web_sockets_reach_the_application(tmp_path: Path) -> None:
    """Beside the data plane and at the operators' listener; one that no route answers is refused, and the gateway goes on."""
    for listen in ("", ', listen: "127.0.0.1:0"'):
        async with running(tmp_path, more=f"admin: {{key: {KEY}{listen}}}") as bench:
            operators = bench.worker._operators
            port = operators.port if operators is not None else bench.port
            with pytest.raises(InvalidStatus) as refused:
                await connect(f"ws://127.0.0.1:{port}/admin/v1/nothing", proxy=None)
            assert refused.value.response.status_code == 403
            assert (await ask(bench, "/admin/v1/health", port=port)).status == 200


# -- health -------------------------------------------------------------------------------------------------------------------------------


async def deployment(bench: Bench, id_: str = "mock/one") -> Any:
    health = (await ask(bench, "/admin/v1/health")).json
    return next(one for one in health["deployments"] if one["id"] == id_)


async def test_health(tmp_path: Path) -> None:
    """States of what the gateway stands on, its trees, and each deployment with the models that lead to it and its own limits."""
    async with running(tmp_path, more=ADMIN, **ROUTE) as bench:
        assert await tried(bench) == "200 mock/one:200"
        health = (await ask(bench, "/admin/v1/health")).json
        assert (health["ready"], health["why_not_ready"], health["states"]["ledger"], health["states"]["records"]) == (True, "", "up", "up")
        assert health["trees"] == {"open": 2, "closed": 0}
        assert any("mock/one" in line and "5 requests/minute" in line for line in health["oversubscribed"])
        one = await deployment(bench)
        assert (one["provider"], one["models"], one["chaos"]) == ("mock", ["two"], None)
        [limit] = one["limits"]
        assert (limit["name"], limit["limit"], limit["used"] > 0) == ("deployment mock/one requests/minute", 5, True)


async def test_breakers_and_cooldowns(tmp_path: Path) -> None:
    """A breaker that failures have opened, and a deployment that is limited."""
    async with running(tmp_path, more=f"{ADMIN}\n{PATIENT}", **ROUTE) as bench:
        bench.mock.fault(count=3, model="one", status=500)
        for _ in range(3):
            await tried(bench)
        bench.mock.fault(count=1, model="two", status=429, headers={"retry-after": "30"})
        await tried(bench)
        found = {one["deployment"]: one for one in (await ask(bench, "/admin/v1/breakers")).json["data"]}
        assert (found["mock/one"]["state"], found["mock/one"]["failures"]) == ("open", 3)
        cooldown = found["second/two"]["cooldown"]
        assert (cooldown["limited"], 20 < cooldown["for_s"] <= 30) == (True, True)
        assert (await deployment(bench))["breaker"] == found["mock/one"]


async def test_a_deployment_is_reset_at_all_workers(tmp_path: Path) -> None:
    """By an operator: breakers and cooldowns are over everywhere, it is in the audit log, and it is called at once."""
    shared = {"ledger": f"sqlite:///{tmp_path}/ledger.db", "records": f"sqlite:///{tmp_path}/records.db", "more": f"{more()}\n{PATIENT}"}
    shared |= ROUTE | {"models": ROUTE["models"].replace(", limits: [5 requests/minute]", "")}
    async with running(tmp_path / "one", **shared) as bench:
        bench.whole = False
        text = config_text(tmp_path / "two", bench.mock.base_url, **shared).replace("BASE_URL", bench.mock.base_url)
        async with app.serving(load_text(text, {})) as (worker, server):
            there = Bench(bench.loaded, worker, server.port, bench.mock)
            for one in (bench, there):
                bench.mock.fault(count=3, model="one", status=500)
                for _ in range(3):
                    await tried(one)
            bench.mock.fault(count=1, model="two", status=429, headers={"retry-after": "30"})
            await tried(bench)
            here, apis, ids = Api(bench), [Api(bench), Api(there)], ("mock/one", "second/two")

            async def states() -> list[tuple[str, bool]]:
                shown = [(await api("GET", "breakers")).json["data"] for api in apis]
                return [(one["state"], one["cooldown"] is not None) for page in shown for one in page if one["deployment"] in ids]

            await until(states, [("open", False), ("closed", True)] * 2)
            assert await here.code("POST", "breakers/second/two/reset", key=VIEWER) == "403 not_allowed"
            assert await here.code("POST", "breakers/mock/none/reset", key=OPERATOR) == "404 deployment_not_found deployment"
            reset = await here("POST", "breakers/mock/one/reset", key=OPERATOR)
            assert reset.json == {"deployment": "mock/one", "state": "closed", "failures": 0, "cooldown": None}
            await here("POST", "breakers/second%2Ftwo/reset", key=OPERATOR)
            await until(states, [("closed", False)] * 4)
            assert await tried(there) == "200 mock/one:200"
            log = (await here("GET", "audit-logs?action=breaker.reset")).json["data"]
            assert [(one["actor"], one["subject"]) for one in log] == [("on-call", "second/two"), ("on-call", "mock/one")]
            assert (log[1]["before"]["state"], log[1]["after"]["state"], log[1]["tenant"]) == ("open", "closed", [])


# -- chaos --------------------------------------------------------------------------------------------------------------------------------


async def test_chaos_must_be_switched_on(tmp_path: Path) -> None:
    """Without `admin.chaos` it is refused, and how to have it is said."""
    async with running(tmp_path, more=NO_CHAOS) as bench:
        for reply in (await chaos(bench), await ask(bench, "/admin/v1/chaos"), await ask(bench, "/admin/v1/chaos", method="DELETE")):
            assert (reply.status, reply.code) == (403, "chaos_off")
            assert "chaos: on" in reply.error["message"]


async def test_a_refusing_deployment(tmp_path: Path) -> None:
    """It is passed by as a real one would be and its breaker opens; nothing reaches it; health shows it; when ended it answers again."""
    async with running(tmp_path, more=f"{ADMIN}\n{PATIENT}", **ROUTE) as bench:
        made = await chaos(bench, status=500, for_="5m")
        assert (made.status, made.json["status"], made.json["failure_rate"]) == (201, 500, 1.0)
        assert [await tried(bench) for _ in range(4)] == ["200 mock/one:500,second/two:200"] * 3 + ["200 second/two:200"]
        assert bench.mock.truth.stats().total.requests == 4  # of the other deployment
        one = await deployment(bench)
        assert (one["chaos"], one["breaker"]["state"]) == (made.json, "open")
        assert (await ask(bench, "/admin/v1/chaos")).json["data"] == [made.json]
        ended = await ask(bench, "/admin/v1/chaos/mock/one", method="DELETE")
        assert (ended.status, ended.json["deployments"]) == (200, ["mock/one"])
        assert (await deployment(bench))["chaos"] is None
        assert (await ask(bench, "/admin/v1/chaos/mock/none", method="DELETE")).code == "deployment_not_found"


async def test_an_upstream_that_is_never_asked_is_never_paid(tmp_path: Path) -> None:
    """Where nothing else is left the client gets the error, and nothing was used or is held."""
    async with running(tmp_path, more=ADMIN, limits="[1000 tokens/day, 10 requests/day]") as bench:
        assert (await chaos(bench, deployment="mock/mock-chat", status=502)).status == 201
        for stream in (False, True):
            assert (await bench.chat(max_tokens=20, stream=stream)).status == 502
        assert [limit["used"] for limit in (await bench.usage()).values()] == [0, 0]
        assert bench.total == 0


async def test_a_late_deployment(tmp_path: Path) -> None:
    """Slower than `first_byte` it is left for the next; as it may bill what it does, it stays charged. Faster, it answers."""
    async with running(tmp_path, more=f"{ADMIN}\n{PATIENT}", **ROUTE) as bench:
        bench.slack = 100
        assert (await chaos(bench, latency="5s")).json["latency_ms"] == 5000
        assert await tried(bench) == "200 mock/one:timeout,second/two:200"
        await chaos(bench, latency="50ms")
        assert await tried(bench) == "200 mock/one:200"
        assert bench.record.latency_us >= 50_000


@pytest.mark.parametrize("cut", ["6 events", "700 bytes"])
async def test_a_stream_that_breaks_off(tmp_path: Path, cut: str) -> None:
    """The client has what came, an honest error and no end; what was produced is charged, at least."""
    async with running(tmp_path, more=ADMIN, **ROUTE) as bench:
        bench.slack = 100
        await chaos(bench, cut_after=cut)
        answer = await bench.chat(model="two", max_tokens=50, stream=True)
        assert (answer.status, answer.done, answer.clean) == (200, False, False)
        assert answer.text and answer.events[-1]["error"]["code"]
        assert bench.record.error and bench.record.output_tokens > 0


async def test_an_answer_that_breaks_off(tmp_path: Path) -> None:
    """One in a piece is asked of the next deployment; the first stays charged, since nobody knows what it has produced."""
    async with running(tmp_path, more=ADMIN, **ROUTE) as bench:
        bench.slack = 100
        await chaos(bench, cut_after="40 bytes")
        assert await tried(bench) == "200 mock/one:reset,second/two:200"


async def test_all_faults_are_ended_at_once(tmp_path: Path) -> None:
    """DELETE without a name."""
    async with running(tmp_path, more=ADMIN, **ROUTE) as bench:
        for one in ("mock/one", "second/two"):
            await chaos(bench, deployment=one)
        assert await tried(bench) == "503 mock/one:503,second/two:503"
        ended = await ask(bench, "/admin/v1/chaos", method="DELETE")
        assert ended.json["deployments"] == ["mock/one", "second/two"]
        assert await tried(bench) == "200 mock/one:200"
