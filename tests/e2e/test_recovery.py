"""The cap when the ledger loses what it knew: real gateways, a real Redis or ledger file, and the mock provider's own count as the truth.

Cases 2 and 132. Whatever was lost, what the provider produces never exceeds the limit, and the ledger never counts less than that in the end.
"""

import asyncio
import http.client
import json
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest

from sluicegate import app, upkeep
from sluicegate.records.rows import RecordsUnavailable
from support_gateway import Gateway, Mock, call, config, running_gateway, running_mock
from support_inloop import running
from support_redis import Server, until

LIMIT = 2_000
TENANTS = f"  acme: {{keys: [{{name: k, key: sk-k, limits: [{LIMIT} tokens/day]}}]}}"
QUICK = "budget: {hold_ttl: 1s}"


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path, "--appendonly", "no")
    yield server
    server.go_on()
    server.kill()


@pytest.fixture
def mock(tmp_path: Path) -> Iterator[Mock]:
    with running_mock(tmp_path, "--ttft", "2ms", "--tpot", "0ms", "--completion", "90") as mock:
        yield mock


def at(directory: Path, mock: Mock, redis: Server | None = None, **fields: Any) -> str:
    """A configuration on that Redis, or on a ledger file in the directory."""
    return config(directory, mock.url, TENANTS, ledger=f"redis://127.0.0.1:{redis.port}/0" if redis is not None else "", **fields)


def ask(gateway: Gateway) -> str:
    """One request: "ok", or the error's code. One that is to come again at once is repeated for as long."""
    deadline = time.monotonic() + 60
    while True:
        status, headers, body = gateway.chat("sk-k", max_tokens=90)
        code = "ok" if status == 200 else str(body["error"]["code"])
        if code not in ("ledger_recovering", "ledger_unavailable", "budget_busy"):
            return code
        assert status in (429, 503) and headers["retry-after"] == "1", (status, body)
        assert time.monotonic() < deadline, (code, gateway.logged())
        time.sleep(0.05)


def spend(gateway: Gateway, mock: Mock, share: float) -> None:
    """Up to that share of the limit, by the truth."""
    while mock.total()["tokens"] < share * LIMIT:
        assert ask(gateway) == "ok"


def used(gateway: Gateway) -> dict[str, int]:
    (limit,) = gateway.usage("sk-k")["limits"]
    return {"used": limit["used"], "held": limit["held"]}


def rest_only_is_admitted(gateway: Gateway, mock: Mock) -> None:
    """Asks until the limit refuses for good: all of it was used, none twice."""
    answers = []
    while (code := ask(gateway)) == "ok":
        answers.append(code)
    assert code == "budget_exceeded"
    total = mock.total()["tokens"]
    assert LIMIT - 100 < total <= LIMIT, (total, answers)
    assert used(gateway) == {"used": total, "held": 0}


# -- Redis --------------------------------------------------------------------------------------------------------------------------------


def flushed(redis: Server) -> None:
    redis.client.flushall()


def restarted_empty(redis: Server) -> None:
    redis.kill()
    (redis.directory / "dump.rdb").unlink()
    redis.start()


def restarted_from_an_older_copy(redis: Server) -> None:
    redis.kill()
    redis.start()


def one_counter_deleted(redis: Server) -> None:
    (key,) = redis.client.keys("sg1:{acme}:c:*")
    redis.client.delete(key)


def one_counter_of_another_type(redis: Server) -> None:
    (key,) = redis.client.keys("sg1:{acme}:c:*")
    redis.client.set(key, "0")


@pytest.mark.parametrize("lose", [flushed, restarted_empty, restarted_from_an_older_copy, one_counter_deleted, one_counter_of_another_type])
def test_cases_2_and_132_after_a_loss_the_rest_only_is_admitted(tmp_path: Path, redis: Server, mock: Mock, lose: Callable[[Server], None]) -> None:
    """Nine tenths of a budget are spent when Redis loses what it knew, or goes back to an earlier state: one tenth is left."""
    with running_gateway(tmp_path, at(tmp_path, mock, redis)) as gateway:
        spend(gateway, mock, 0.4)
        redis.client.save()
        spend(gateway, mock, 0.9)
        lose(redis)
        rest_only_is_admitted(gateway, mock)
        assert "tree state" in gateway.logged()


def test_a_restart_that_lost_nothing_goes_on_at_once(tmp_path: Path, redis: Server, mock: Mock) -> None:
    """The server is another one with all of its data: verified, not seeded anew."""
    with running_gateway(tmp_path, at(tmp_path, mock, redis)) as gateway:
        spend(gateway, mock, 0.5)
        epochs = redis.client.keys("sg1:{acme}:e:*")
        redis.client.save()
        restarted_from_an_older_copy(redis)
        rest_only_is_admitted(gateway, mock)
        assert redis.client.keys("sg1:{acme}:e:*") == epochs


def test_a_loss_while_nobody_runs_is_seen_at_the_start(tmp_path: Path, redis: Server, mock: Mock) -> None:
    """Before the first request is admitted."""
    with running_gateway(tmp_path, at(tmp_path, mock, redis)) as gateway:
        spend(gateway, mock, 0.9)
    redis.client.flushall()
    with running_gateway(tmp_path, at(tmp_path, mock, redis), "later") as gateway:
        assert used(gateway)["used"] == mock.total()["tokens"]
        rest_only_is_admitted(gateway, mock)


def test_a_replica_with_records_of_its_own_is_refused(tmp_path: Path, redis: Server, mock: Mock) -> None:
    """Beside a ledger that lives with others it would seed it from what it alone knows: one line says why, exit code 1; the others notice nothing."""
    with running_gateway(tmp_path, at(tmp_path, mock, redis), "one") as one:
        spend(one, mock, 0.5)
        epochs = redis.client.keys("sg1:{acme}:e:*")
        (tmp_path / "own").mkdir()
        stranger = Gateway(tmp_path, at(tmp_path / "own", mock, redis), "stranger", ())
        assert stranger.process.wait(30) == 1
        assert "sluicegate: the ledger is in use with other records" in stranger.logged() and "Traceback" not in stranger.logged()
        assert redis.client.keys("sg1:{acme}:e:*") == epochs
        rest_only_is_admitted(one, mock)


class Client(threading.Thread):
    """Streams again and again until the budget is used up."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__()
        self.gateway = gateway
        self.codes: list[str] = []

    def run(self) -> None:
        body = {"model": "chat", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 200, "stream": True}
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            status, _, data = call(f"{self.gateway.base_url}/chat/completions", body, "sk-k")
            code = "ok" if status == 200 else str(json.loads(data)["error"]["code"])
            self.codes.append(code)
            if code == "budget_exceeded":
                return
            if code != "ok":
                time.sleep(0.02)


@pytest.mark.parametrize("extend", [False, True], ids=["capped", "extended"])
def test_two_replicas_with_streams_in_flight(tmp_path: Path, redis: Server, extend: bool) -> None:
    """Redis forgets everything three times while streams of both run: the truth stays below the limit, the ledger's count is not below the truth."""
    limit = 12_000
    tenants = f"  acme: {{keys: [{{name: k, key: sk-k, limits: [{limit} tokens/day]}}]}}"
    url, records = f"redis://127.0.0.1:{redis.port}/0", f"sqlite:///{tmp_path}/records.db"
    with running_mock(tmp_path, "--ttft", "5ms", "--tpot", "4ms", "--chunk", "4", "--median", "120", "--sigma", "0.6") as mock:
        texts = []
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            texts.append(config(tmp_path / name, mock.url, tenants, ledger=url, records=records, extend=extend, more=QUICK))
        with running_gateway(tmp_path, texts[0], "one") as one, running_gateway(tmp_path, texts[1], "two") as two:
            clients = [Client(gateway) for gateway in (one, two) for _ in range(4)]
            for client in clients:
                client.start()
            for share in (0.2, 0.4, 0.6):
                until(lambda share=share: _tokens(mock) > share * limit, "the clients make no headway")
                redis.client.flushall()
            for client in clients:
                client.join()
            assert all(client.codes[-1] == "budget_exceeded" for client in clients), [client.codes[-3:] for client in clients]
            total = mock.total()["tokens"]
            assert 0.9 * limit < total <= limit
            until(lambda: one.usage("sk-k")["limits"][0]["held"] == 0, "holds are left over")
            assert total <= one.usage("sk-k")["limits"][0]["used"]
            assert redis.client.hlen("sg1:{acme}:holds") <= 1 + _markers(redis)


def _tokens(mock: Mock) -> int:
    total = mock.stats()["total"]
    return int(total["prompt_tokens"] + total["completion_tokens"])


def _markers(redis: Server) -> int:
    """Records in `holds` that hold nothing: they expire after a minute, or days."""
    return int(redis.client.zcount("sg1:{acme}:expiry", (time.time() + 30) * 1000, "+inf"))


def test_a_crash_is_not_forgotten_with_the_ledger(tmp_path: Path, redis: Server) -> None:
    """What the expiry of a dead gateway's holds has charged is recorded by whoever swept them: a loss afterwards does not give it back."""
    with running_mock(tmp_path, "--ttft", "2ms", "--tpot", "20ms", "--completion", "400") as mock:
        with running_gateway(tmp_path, at(tmp_path, mock, redis, more=QUICK), "first") as first:
            crashed = Client(first)
            crashed.run = lambda: _quietly(first)  # type: ignore[method-assign]
            crashed.start()
            until(lambda: mock.stats()["total"]["in_flight"] == 1, "the stream does not begin")
            first.stop(SIGKILL)
            crashed.join()
        truth = mock.total()["tokens"]
        with running_gateway(tmp_path, at(tmp_path, mock, redis, more=QUICK), "second") as second:
            until(lambda: used(second) == {"used": used(second)["used"], "held": 0} and used(second)["used"] > 0, "the hold does not expire")
            charged = used(second)["used"]
            assert charged >= truth
            time.sleep(1.5)  # the usage is recorded once a second
            redis.client.flushall()
            assert ask(second) in ("ok", "budget_exceeded")
            assert used(second)["used"] >= charged


def _quietly(gateway: Gateway) -> None:
    body = {"model": "chat", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 400, "stream": True}
    try:
        call(f"{gateway.base_url}/chat/completions", body, "sk-k")
    except (OSError, http.client.HTTPException):
        return


def test_what_a_dead_gateway_owed_is_counted_once(tmp_path: Path, redis: Server, mock: Mock) -> None:
    """Redis is silent when a request ends, the gateway is killed, Redis comes back empty: the journal tells, to the records and to the ledger."""
    with running_gateway(tmp_path, at(tmp_path, mock, redis), "first") as first:
        spend(first, mock, 0.3)
        mock.faults(ttft="300ms")
        owed = Client(first)
        owed.run = lambda: _quietly(first)  # type: ignore[method-assign]
        owed.start()
        until(lambda: mock.stats()["total"]["in_flight"] == 1, "the request does not begin")
        redis.pause()
        until(lambda: mock.stats()["total"]["in_flight"] == 0, "the request does not end")
        time.sleep(0.1)  # the line is written at the end of a turn
        first.stop(SIGKILL)
        owed.join()
        mock.faults()
    redis.go_on()
    redis.client.flushall()
    with running_gateway(tmp_path, at(tmp_path, mock, redis), "second") as second:
        assert used(second) == {"used": mock.total()["tokens"], "held": 0}
        rest_only_is_admitted(second, mock)
    assert list((tmp_path / "journal").glob("*.journal")) == []


def test_nothing_is_admitted_without_the_records(tmp_path: Path, redis: Server, mock: Mock) -> None:
    """Records that are away when the ledger has lost a tree: requests are refused with a retry, and nothing is admitted until they are back."""
    records = tmp_path / "records"
    records.mkdir()
    with running_gateway(tmp_path, at(tmp_path, mock, redis, records=f"sqlite:///{records}/records.db")) as gateway:
        spend(gateway, mock, 0.9)
        time.sleep(1.5)
        lock = _locked(records / "records.db")
        redis.client.flushall()
        codes = {gateway.chat("sk-k", max_tokens=90)[2]["error"]["code"] for _ in range(5)}
        assert codes == {"ledger_recovering"}
        lock.close()
        rest_only_is_admitted(gateway, mock)


def _locked(file: Path) -> Any:
    """Another process' transaction on an SQLite file that does not end."""
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    return connection


async def test_not_ready_while_nothing_can_be_admitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while, so that a recovery that goes as it should takes no replica out; under `allow` it serves on and stays ready."""

    async def away(*_: Any) -> Any:
        raise RecordsUnavailable("away")

    monkeypatch.setattr(upkeep, "LEARN_S", 0.05)
    for policy, after in [("refuse", 503), ("allow", 200)]:
        async with running(tmp_path / policy, limits="[5000 tokens/day]", more=f"on_ledger_failure: {policy}") as bench:
            recovery, ledger = bench.worker.recovery, bench.worker.ledger
            async with asyncio.timeout(30):
                while (await bench.get("/readyz")).status != 200:  # noqa: ASYNC110  (the ledger has not been asked yet)
                    await asyncio.sleep(0.02)
            beat, recovery._records.beat = recovery._records.beat, away  # type: ignore[method-assign]
            recovery._leave("acme")
            answers = [(await bench.get("/readyz")).status]
            recovery._clock = lambda: time.monotonic() + app.LEDGER_AWAY_S + 1
            answers.append((await bench.get("/readyz")).status)
            assert answers == [200, after]
            assert (await bench.chat(max_tokens=20)).code == ("ledger_recovering" if policy == "refuse" else "200")
            recovery._records.beat = beat  # type: ignore[method-assign]
            async with asyncio.timeout(30):
                while (await bench.get("/readyz")).status != 200:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
                while "acme" not in ledger.trees or not ledger.trees["acme"].open:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)


async def test_one_tree_that_is_open_makes_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are counted: who takes a replica out for one of them would take it from all tenants."""

    async def away(*_: Any) -> Any:
        raise RecordsUnavailable("away")

    monkeypatch.setattr(upkeep, "LEARN_S", 0.05)
    tenants = "".join(f"  {name}: {{keys: [{{name: k, key: sk-{name}, limits: [9 tokens/day]}}]}}\n" for name in ("acme", "other"))
    async with running(tmp_path, tenants=tenants) as bench:
        bench.reachable = False  # its trees stay closed
        recovery = bench.worker.recovery
        assert (await bench.get("/readyz")).json == {"status": "ready", "closed_trees": 0, "deployments_down": 0}
        recovery._records.beat = away  # type: ignore[method-assign]
        recovery._leave("acme")
        recovery._clock = lambda: time.monotonic() + app.LEDGER_AWAY_S + 1
        answer = await bench.get("/readyz")
        assert (answer.status, answer.json) == (200, {"status": "ready", "closed_trees": 1, "deployments_down": 0})
        recovery._leave("other")
        recovery._clock = lambda: time.monotonic() + 2 * app.LEDGER_AWAY_S + 2
        answer = await bench.get("/readyz")
        assert (answer.status, answer.json) == (503, {"status": "the ledger is recovering", "closed_trees": 2, "deployments_down": 0})


# -- a ledger file ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("replaced", [False, True], ids=["deleted", "replaced by an older copy"])
def test_a_ledger_file_that_was_lost_between_two_runs(tmp_path: Path, mock: Mock, replaced: bool) -> None:
    """The counters begin with what the records have."""
    with running_gateway(tmp_path, at(tmp_path, mock), "first") as first:
        spend(first, mock, 0.4)
    (tmp_path / "copy").mkdir()
    for file in tmp_path.glob("ledger.db*"):
        shutil.copy(file, tmp_path / "copy")
    with running_gateway(tmp_path, at(tmp_path, mock), "second") as second:
        spend(second, mock, 0.9)
    for file in tmp_path.glob("ledger.db*"):
        file.unlink()
    if replaced:
        for file in (tmp_path / "copy").iterdir():
            shutil.copy(file, tmp_path)
    with running_gateway(tmp_path, at(tmp_path, mock), "third") as third:
        assert used(third) == {"used": mock.total()["tokens"], "held": 0}
        rest_only_is_admitted(third, mock)


def test_workers_of_one_gateway_recover_together(tmp_path: Path, mock: Mock) -> None:
    """Several processes on one file: all serve again, and together no more than is left."""
    with running_gateway(tmp_path, at(tmp_path, mock), "first", ("--workers", "3")) as first:
        spend(first, mock, 0.9)
    for file in tmp_path.glob("ledger.db*"):
        file.unlink()
    with running_gateway(tmp_path, at(tmp_path, mock), "second", ("--workers", "3")) as second:
        rest_only_is_admitted(second, mock)


def gone(directory: Path, name: str) -> None:
    for file in directory.glob(f"{name}.db*"):
        file.unlink()


def test_a_ledger_file_that_is_deleted_under_running_gateways(tmp_path: Path, mock: Mock) -> None:
    """One of two is started again and makes a new file: the other one leaves the old one, and together they spend what is left, no more."""
    texts = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        fields = {"ledger": f"sqlite:///{tmp_path}/ledger.db", "records": f"sqlite:///{tmp_path}/records.db"}
        texts.append(config(tmp_path / name, mock.url, TENANTS, **fields))
    with running_gateway(tmp_path, texts[0], "one") as one:
        spend(one, mock, 0.6)
        gone(tmp_path, "ledger")
        with running_gateway(tmp_path, texts[1], "two") as two:
            spend(two, mock, 0.8)
            spend(one, mock, 0.9)
            rest_only_is_admitted(two, mock)
            assert ask(one) == "budget_exceeded"


@pytest.mark.parametrize("flushed", [False, True], ids=["records", "records and ledger"])
def test_records_that_are_deleted_under_running_replicas(tmp_path: Path, redis: Server, mock: Mock, flushed: bool) -> None:
    """One replica is started again and makes new ones: the other goes over to them with all that it knows. Nothing is given back, all serve on."""
    texts = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        texts.append(at(tmp_path / name, mock, redis, records=f"sqlite:///{tmp_path}/records.db"))
    with running_gateway(tmp_path, texts[0], "one") as one:
        with running_gateway(tmp_path, texts[1], "two") as two:
            spend(two, mock, 0.3)
        spend(one, mock, 0.8)
        owed = mock.total()["tokens"] - LIMIT * 0.3 if flushed else mock.total()["tokens"]  # nobody is left who knows what the other one used
        time.sleep(1.5)
        gone(tmp_path, "records")
        if flushed:
            redis.client.flushall()
        with running_gateway(tmp_path, texts[1], "later") as two:
            until(lambda: used(two)["used"] >= owed - 100, "what was used is not known")
            for gateway in (one, two):
                assert ask(gateway) == "ok"
            epochs = redis.client.keys("sg1:{acme}:e:*")
            time.sleep(1.6)  # a beat and a half
            assert redis.client.keys("sg1:{acme}:e:*") == epochs
            assert 1 <= one.logged().count("records replaced") <= 4  # once for each connection to them
            if not flushed:
                rest_only_is_admitted(one, mock)


def test_records_that_were_lost_take_nothing_back(tmp_path: Path, mock: Mock) -> None:
    """The ledger is whole and the records are new: its counts stay."""
    with running_gateway(tmp_path, at(tmp_path, mock), "first") as first:
        spend(first, mock, 0.9)
    for file in tmp_path.glob("records.db*"):
        file.unlink()
    with running_gateway(tmp_path, at(tmp_path, mock), "second") as second:
        assert used(second)["used"] == mock.total()["tokens"]
        rest_only_is_admitted(second, mock)
