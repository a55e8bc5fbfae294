"""The records against the provider's truth: what a gateway that was killed had done is all there, once, in rows, in sums and in the ledger."""

import asyncio
import csv
import http.client
import io
import json
import subprocess
import sys
import threading
import time
from datetime import datetime, timedelta
from pathlib import Path
from signal import SIGKILL
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from sluicegate.records.queries import Figures, Question
from sluicegate.records.schema import DAY_S
from sluicegate.records.store import Records
from support_gateway import Gateway, call, config, running_gateway, running_mock
from support_postgres import fresh

TENANTS = """
  acme:
    children:
      team:
        limits: [$100/month]
        keys: [{name: k, key: sk-k, limits: [50M tokens/day]}, {name: r, key: sk-r, limits: [1 requests/day]}]
"""
LOAD_S, CLIENTS = 1.4, 8  # it ends amid a batch


def ask(gateway: Gateway, stopped: threading.Event, stream: bool, answered: list[int]) -> None:
    """Again and again until the gateway is gone."""
    body = {"model": "chat", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 40, "stream": stream, "user": "ann"}
    while not stopped.is_set():
        try:
            answered.append(call(f"{gateway.base_url}/chat/completions", body, "sk-k")[0])
        except (OSError, http.client.HTTPException):
            return


async def read(url: str) -> tuple[Figures, list[dict[str, Any]]]:
    """All that was used, and all rows."""
    records = Records(url, 20.0)
    try:
        rows, after = [], ""
        while True:
            page = await records.requests(Question(), 1_000, after)
            rows += page.rows
            if not (after := page.next):
                return (await records.usage(Question())).total, rows
    finally:
        await records.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_after_a_kill_records_ledger_and_truth_agree(tmp_path: Path, request: pytest.FixtureRequest, kind: str) -> None:
    """Killed under load and started again: each answer that a client had got has a row, rows, sums and the ledger say the same, and none is below
    what the provider produced."""
    url = f"sqlite:///{tmp_path}/records.db" if kind == "sqlite" else fresh(request.getfixturevalue("postgres_url"))
    answered: list[int] = []
    with running_mock(tmp_path, "--ttft", "2ms", "--tpot", "1ms", "--completion", "20") as mock:
        text = config(tmp_path, mock.url, TENANTS, records=url, more="budget: {hold_ttl: 1s}")
        with running_gateway(tmp_path, text) as gateway:
            stopped = threading.Event()
            clients = [threading.Thread(target=ask, args=(gateway, stopped, number % 2 == 0, answered)) for number in range(CLIENTS)]
            for client in clients:
                client.start()
            time.sleep(LOAD_S)
            gateway.stop(SIGKILL)
            stopped.set()
            for client in clients:
                client.join()
        with running_gateway(tmp_path, text, "later") as gateway:
            deadline = time.monotonic() + 60
            while (limits := by_unit(gateway))["tokens"]["held"] or limits["tokens"]["used"] < mock.total()["tokens"]:
                assert time.monotonic() < deadline, (limits, mock.total())
                time.sleep(0.1)
        truth = mock.total()
    total, rows = asyncio.run(read(url))
    assert len({row["request_id"] for row in rows}) == len(rows) == total.requests
    assert (
        0 <= len([row for row in rows if row["status"] == 200]) - answered.count(200) <= CLIENTS
    )  # had been recorded, but the last byte did not arrive
    assert total.input_tokens + total.output_tokens == limits["tokens"]["used"] == sum(row["input_tokens"] + row["output_tokens"] for row in rows)
    assert limits["tokens"]["used"] >= truth["tokens"] > 0
    assert total.cost_nano_usd == sum(row["cost_nano_usd"] for row in rows) == round(limits["usd"]["used"] * 10**9)
    assert {row["client_user"] for row in rows if row["status"] == 200} == {"ann"}


def by_unit(gateway: Gateway) -> dict[str, Any]:
    return {limit["unit"]: limit for limit in gateway.usage("sk-k")["limits"]}


def report(directory: Path, *options: str) -> str:
    command = [sys.executable, "-m", "sluicegate", "report", "--config", str(directory / "gateway.yaml"), *options]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_a_report_of_records_and_of_the_log(tmp_path: Path) -> None:
    """By key and model: answers, refusals, errors, tokens and money; the log of requests says the same as the records, in every form."""
    with running_mock(tmp_path, "--ttft", "2ms", "--tpot", "0ms", "--completion", "20") as mock:
        text = config(tmp_path, mock.url, TENANTS, more="log: {access: json}")
        with running_gateway(tmp_path, text) as gateway:
            for key in ("sk-k", "sk-k", "sk-r", "sk-r", "sk-nobody"):
                gateway.chat(key, max_tokens=40)
            gateway.chat("sk-k", max_tokens=-1)
            gateway.chat("sk-k", model="made up")
            assert gateway.stop() == 0
            log = tmp_path / "requests.log"
            log.write_text(gateway.logged())
        truth = mock.total()
    told = json.loads(report(tmp_path, "--format", "json"))
    assert json.loads(report(tmp_path, "--format", "json", "--log", str(log))) == told
    by_key = {tuple(one["group"].values()): one["figures"] for one in told["groups"]}
    counted = {place: [one["requests"], one["throttled"], one["refused"], one["errors"], one["answers"]] for place, one in by_key.items()}
    assert counted == {
        ("acme/team/@k", ""): [2, 0, 0, 2, 0],  # neither a body that cannot be read nor a model that does not exist has one
        ("acme/team/@k", "chat"): [2, 0, 0, 0, 2],
        ("acme/team/@r", "chat"): [2, 1, 1, 0, 1],
    }
    assert told["total"]["input_tokens"] + told["total"]["output_tokens"] == truth["tokens"]
    lines = list(csv.DictReader(io.StringIO(report(tmp_path, "--format", "csv", "--by", "tenant"))))
    assert [(line["tenant"], line["requests"], line["429s"], line["errors"]) for line in lines] == [("acme/team", "6", "1", "2")]
    table = report(tmp_path, "--by", "key", "--until", time.strftime("%Y-%m-%d", time.gmtime(time.time() + DAY_S)))
    assert [line.split()[:2] for line in table.splitlines()[1:]] == [["acme/team/@k", "4"], ["acme/team/@r", "2"], ["total", "6"]]
    assert "total" in report(tmp_path, "--since", "2100-01-01")
    by_hour = ["--by", "hour", "--tz", "Asia/Kathmandu", "--format", "csv"]
    there = [f"{datetime.fromtimestamp(time.time() - ago, ZoneInfo('Asia/Kathmandu')):%Y-%m-%dT%H}" for ago in (0, 60)]
    assert {line["hour"] for line in csv.DictReader(io.StringIO(report(tmp_path, *by_hour)))} <= set(there)
    assert report(tmp_path, *by_hour, "--log", str(log)) == report(tmp_path, *by_hour)
    an_hour_ago = datetime.now(ZoneInfo("Asia/Kathmandu")) - timedelta(hours=1)
    for since in (an_hour_ago.isoformat(), f"{an_hour_ago:%Y-%m-%dT%H:%M:%S}"):  # with its offset, and as the zone's
        assert json.loads(report(tmp_path, "--since", since, "--tz", "Asia/Kathmandu", "--format", "json"))["total"]["requests"] == 6
    chosen = ["--key", "acme/team/@k", "--key", "acme/team/@r", "--status", "200", "--tenant", "acme", "--format", "json"]
    assert json.loads(report(tmp_path, *chosen))["total"]["requests"] == 3
    assert report(tmp_path, *chosen, "--log", str(log)) == report(tmp_path, *chosen)
    for options in (["--by", "colour"], ["--since", "yesterday"], ["--tz", "Nowhere"], ["--tag", "app"]):
        with pytest.raises(subprocess.CalledProcessError) as failed:
            report(tmp_path, *options)
        assert failed.value.returncode == 2 and options[0] in failed.value.stderr
