"""`sluicegate prices`: what deployments cost, what another catalogue would change, and taking it over."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sluicegate.cli import prices
from sluicegate.cli.console import InputError
from sluicegate.prices.catalogue import bundled, in_use, write
from sluicegate.records.directory import Directory, set_price
from sluicegate.records.directory_rows import PriceRow

CONFIG = """
providers: {openai: {dialect: openai}, local: {provider: vllm}}
models:
  chat:
    deployments:
      - {provider: openai, model: gpt-4o-mini}
      - provider: openai
        model: mine
        price: {input: 1, output: 2.5, request_fee: 0.01, tiers: [{above: 10, input: 2, output: 3}], date: 2026-10-01, source: me}
      - {provider: openai, model: other}
      - {provider: local, model: smollm}
tenants: {acme: {keys: [{name: a, key: sk-a}]}}
prices: {catalogue_file: FILE, overrides: {openai/other: {input: 3, output: 4, date: 2026-11-01, source: contract 17}}}
"""
NEWER: list[dict[str, Any]] = [{"id": "openai", "models": [
    {"id": "gpt-4o-mini", "match": {"equals": "gpt-4o-mini"}, "prices": {"input_mtok": 0.2, "output_mtok": 0.6, "requests_kcount": 1}},
]}]  # fmt: skip


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "config.yaml"
    file.write_text(CONFIG.replace("FILE", str(tmp_path / "data" / "prices.json")))
    return file


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    """What genai-prices might publish some day."""
    file = tmp_path / "newer.json"
    file.write_text(json.dumps(NEWER))
    return file


def run(*arguments: str) -> str:
    """The output of a command, in one line."""
    result = CliRunner().invoke(prices.commands, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def test_it_lists_rates_and_who_says_so(config: Path) -> None:
    """Each deployment with its price, the rule that won, day and source; as text and for programs."""
    text = run("--config", str(config))
    for part in ("0.15", "cached_input 0.075", "catalogue", "2.5", "0.01 per call", "above 10: 2 in, 3 out", "override", "contract 17", "nobody"):
        assert part in text
    rows = json.loads(run("--config", str(config), "--json"))
    assert [(row["deployment"], row["rule"], row["date"]) for row in rows] == [
        ("openai/gpt-4o-mini", "catalogue", bundled().date),
        ("openai/mine", "deployment", "2026-10-01"),
        ("openai/other", "override", "2026-11-01"),
        ("local/smollm", "", ""),
    ]


def test_prices_that_were_set_through_the_admin_api_are_among_them(config: Path) -> None:
    """With their day and source, over whatever the file says; records that are not there yet are not made."""
    records = config.parent / "records.db"
    config.write_text(f"{config.read_text()}records: sqlite:///{records}\n")
    assert "admin" not in run("--config", str(config)) and not records.exists()
    price = {"input": 7, "output": 8, "tools": {"web_search": 10}, "date": "2026-11-20", "source": "a call"}

    async def put() -> None:
        directory = Directory(f"sqlite:///{records}")
        try:
            await directory.call(partial(set_price, row=PriceRow("openai/mine", price)))
        finally:
            await directory.close()

    asyncio.run(put())
    row = json.loads(run("--config", str(config), "--json"))[1]
    assert (row["deployment"], row["rule"], row["date"], row["source"]) == ("openai/mine", "api", "2026-11-20", "a call")
    assert "web_search 10 per 1,000 calls" in run("--config", str(config))


def test_a_diff_tells_what_would_change_and_changes_nothing(config: Path, newer: Path) -> None:
    """For the deployments that a catalogue prices, or for all models; a rate that is new or gone is a dash."""
    text = run("diff", str(newer), "--config", str(config))
    assert "openai/gpt-4o-mini │ input │ 0.15 │ 0.2" in text and "request_fee │ - │ 0.001 per call" in text and "gpt-4o │" not in text
    assert in_use(str(config.parent / "data" / "prices.json")) is bundled()


def test_a_diff_of_all_models_tells_of_those_that_nobody_uses(config: Path, newer: Path) -> None:
    """Also of those that are new there."""
    run("apply", str(newer), "--config", str(config))
    newest = [{**NEWER[0], "models": [*NEWER[0]["models"], {"id": "new", "match": {"equals": "new"}, "prices": {"input_mtok": 1}}]}]
    newer.write_text(json.dumps(newest))
    assert "no change for the deployments" in run("diff", str(newer), "--config", str(config))
    assert "openai/new │ input │ - │ 1" in run("diff", str(newer), "--all", "--config", str(config))


def test_apply_shows_it_and_takes_it_over(config: Path, newer: Path) -> None:
    """The file is read from then on; told again, nothing changes; a catalogue that was written can be given in turn."""
    assert "input │ 0.15 │ 0.2" in run("apply", str(newer), "--config", str(config))
    file = config.parent / "data" / "prices.json"
    assert json.loads(run("--config", str(config), "--json"))[0]["price"]["input"] == 200_000
    assert "no change" in run("diff", str(newer), "--config", str(config))
    write(bundled(), config.parent / "back.json")
    run("apply", str(config.parent / "back.json"), "--config", str(config))
    assert in_use(str(file)) == bundled()
    assert str(config.parent / "elsewhere.json") in run("apply", str(newer), "--to", str(config.parent / "elsewhere.json"), "--config", str(config))
    assert in_use(str(file)) == bundled()


@contextlib.contextmanager
def publishing(data: bytes) -> Iterator[str]:
    """The URL of a server that has a file."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/data.json"
        finally:
            server.shutdown()
            thread.join()


def test_the_latest_is_fetched_when_told(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From where it is published, or from the URL that is given."""
    with publishing(json.dumps(NEWER).encode()) as url:
        assert "input │ 0.15 │ 0.2" in run("diff", url, "--config", str(config))
        monkeypatch.setattr(prices, "PUBLISHED", url)
        assert "input │ 0.15 │ 0.2" in run("diff", "--latest", "--config", str(config))


def test_what_is_no_catalogue_is_refused(config: Path, tmp_path: Path) -> None:
    """And so is none, and two."""
    wrong = tmp_path / "wrong.json"
    wrong.write_text("{}")
    for arguments in (["diff"], ["diff", str(wrong), "--latest"], ["apply", str(wrong)]):
        with pytest.raises(InputError):
            run(*arguments, "--config", str(config))
    assert not (tmp_path / "data").exists()
