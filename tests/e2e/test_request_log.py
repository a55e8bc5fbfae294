"""The request log of real gateways: what is in it, what is not, and that a disk without room is nobody's concern but the operator's."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sluicegate.config.load import load_text
from support_gateway import call, config, running_gateway, running_mock
from support_inloop import config_text, running, whole
from support_sockets import Script, read_request, scripted

STREAM = pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
ADMIN = "sk-admin-of-the-tests"
TENANTS = """
  acme:
    children:
      team:
        keys: [{name: k, key: sk-k, limits: [1000 requests/day]}]
"""


def answering(data: bytes) -> Script:
    """An upstream that answers every request with these bytes."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            writer.write(data)
            await writer.drain()

    return script


def written(path: Path) -> list[Any]:
    """Whole lines: one that is being written has no end yet."""
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def everything(directory: Path) -> bytes:
    """What is in all files."""
    return b"".join(file.read_bytes() for file in directory.rglob("*") if file.is_file())


async def lines(path: Path, count: int) -> list[Any]:
    """What is in a log, as soon as it has so many lines."""
    for _ in range(500):
        found = written(path)
        if len(found) >= count:
            return found
        await asyncio.sleep(0.01)
    raise AssertionError(found)


def to(path: Path | str, more: str = "") -> str:
    return f", requests: {{to: {path}}}{more}"


async def test_a_line_for_each_request(tmp_path: Path) -> None:
    """Answers, streams, refusals and what was nobody's: each with what the record has, and its prompt with masks."""
    path = tmp_path / "requests.jsonl"
    async with running(tmp_path, limits="[3 requests/day]", log=to(path, ", masks: [{name: STAFF, pattern: 'E-[0-9]{6}'}]")) as bench:
        said = [{"role": "user", "content": "mail bob@example.com, E-123456"}]
        await bench.chat(messages=said)
        await bench.chat(messages=said, stream=True)
        await bench.chat(model="unknown")
        await bench.chat(messages=said)
        await bench.chat(messages=said)
        await bench.raw(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer sk-no\r\ncontent-length: 2\r\n\r\n{}")
        found = await lines(path, 6)
        assert [line["status"] for line in found] == [200, 200, 404, 200, 429, 401] == [record.status for record in bench.records]
        assert [line["prompt"] and line["prompt"]["text"] for line in found] == ["mail [EMAIL], [STAFF]"] * 2 + ["Tell me"] + [
            "mail [EMAIL], [STAFF]"
        ] * 2 + [None]
        for line, record in zip(found, bench.records, strict=True):
            assert msgspec.convert(line, type(record)) == record
        assert found[1]["first_byte_us"] > 0 and found[0]["tenant"] == "acme" and found[0]["price"]["rule"] == "deployment" and found[4]["refusal"]


@pytest.mark.parametrize("prompts", ["hash", "full"])
async def test_prompts_as_the_file_says(tmp_path: Path, prompts: str) -> None:
    """Nothing of the text, or all of it."""
    path = tmp_path / "requests.jsonl"
    async with running(tmp_path, log=to(path, f", prompts: {prompts}")) as bench:
        await bench.chat(messages=[{"role": "user", "content": "mail bob@example.com"}])
        (line,) = await lines(path, 1)
        assert ("bob@example.com" in json.dumps(line)) == (prompts == "full")
        assert set(line["prompt"]) == {"characters", "text" if prompts == "full" else "sha256"}


@STREAM
@pytest.mark.parametrize("status", [400, 500])
async def test_case_102_no_credential_is_written_down(tmp_path: Path, status: int, stream: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """An upstream echoes our key, plain, percent-encoded, in base64 and shortened: in no reply, no line, no record, no file."""
    secret = "sk-provider-secret"
    encoded = ["".join(f"%{ord(c):02x}" for c in secret), "c2stcHJvdmlkZXItc2VjcmV0", "\\u0073k-provider-secret"]
    path = tmp_path / "requests.jsonl"
    async with running(tmp_path, log=to(path)) as bench:
        bench.mock.fault(count=1, status=status, message=f"bad key {secret} or {', '.join(encoded)} or sk-provider-...", code=secret)
        answer = await bench.chat(stream=stream)
        await lines(path, 1)
        assert answer.status == status and "[API_KEY]" in answer.error["message"]
        told = f"{answer.body!r}{answer.headers}{bench.record}".encode()
    printed = capsys.readouterr()
    told += (printed.out + printed.err).encode() + everything(tmp_path)
    for form in (secret[3:], *encoded):
        assert form.encode() not in told


async def test_case_36_a_page_is_a_snippet_in_the_log_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its beginning, without credentials, and nothing of it in the reply or in the request's line."""
    page = b"<html><h1>Gateway Time-out</h1> key=AIzaSyD1234567890abcdefghi " + b"long " * 5_000 + b"</html>"
    path = tmp_path / "requests.jsonl"
    async with scripted(answering(whole(504, page, kind="text/html"))) as port, running(tmp_path, upstream=port, log=to(path)) as bench:
        bench.whole = False
        answer = await bench.chat()
        (line,) = await lines(path, 1)
        assert (answer.status, answer.code, line["status"]) == (504, "upstream_timeout", 504)
        assert b"Time-out" not in answer.body and "Time-out" not in json.dumps(line)
    printed = capsys.readouterr()
    (told,) = [text for text in (printed.out + printed.err).splitlines() if "Time-out" in text]
    assert "[API_KEY]" in told and "AIza" not in told and len(told) < 600


async def test_a_disk_without_room_stops_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Requests are answered; what is lost is counted, in health and told once; with a file that has room it is well again, without a restart."""
    async with running(tmp_path, log=to("/dev/full"), more=f"admin: {{key: {ADMIN}}}") as bench:

        async def state() -> str:
            return str((await bench.get("/admin/v1/health", ADMIN)).json["states"].get("request_log"))

        assert await state() == "ok"
        for _ in range(3):
            assert (await bench.chat()).status == 200
            await asyncio.sleep(0.06)
        for _ in range(500):
            if await state() == "failing":
                break
            await asyncio.sleep(0.01)
        assert await state() == "failing"
        metrics = (await bench.get("/metrics")).body.decode()
        assert 'sluicegate_request_log_lost_total{what="line"} 3.0' in metrics
        path = tmp_path / "requests.jsonl"
        text = config_text(tmp_path, bench.mock.base_url, log=to(path), more=f"admin: {{key: {ADMIN}}}")
        await bench.worker.apply(load_text(text, {}))
        assert (await bench.chat()).status == 200
        assert len(await lines(path, 1)) == 1
        for _ in range(500):
            if await state() == "ok":
                break
            await asyncio.sleep(0.01)
        assert await state() == "ok"
        await bench.worker.apply(bench.loaded)
    told = [text for text in capsys.readouterr().out.splitlines() if "request log state" in text]
    assert len(told) == 2 and "ENOSPC" in told[0] and "from=failing" in told[1] and "lines_lost=3" in told[1]


async def test_nothing_is_kept_of_a_request_where_there_is_no_log(tmp_path: Path) -> None:
    """The gateway has nobody to tell; one that is switched on hears of the next request, one that is switched off has written all of before."""
    path = tmp_path / "requests.jsonl"
    async with running(tmp_path) as bench:
        gateway = bench.worker.gateway
        assert gateway.request_log is None
        assert (await bench.get("/metrics")).body.count(b"request_log_lost_total{") == 0
        await bench.chat()
        await bench.worker.apply(load_text(config_text(tmp_path, bench.mock.base_url, log=to(path)), {}))
        answer = await bench.chat()
        await bench.worker.apply(bench.loaded)
        assert gateway.request_log is None
        await bench.chat()
        assert [line["request_id"] for line in await lines(path, 1)] == [answer.headers["x-sluicegate-request-id"]]


async def test_a_long_prompt_holds_nobody_up(tmp_path: Path) -> None:
    """While megabytes of hostile text are redacted, others are served, and no turn of the loop is as long as redacting all of it would be."""
    path = tmp_path / "requests.jsonl"
    text = "4444 4444 a@b.co sk-ant eyJ DE11 1111 1.1.1.1 ::1 " * 20_000
    async with running(tmp_path, log=to(path)) as bench:
        await bench.chat(messages=[{"role": "user", "content": text}])
        served = 0
        while not path.exists() or not path.read_text():
            await bench.chat()
            served += 1
        assert served > 10
        found = await lines(path, served + 1)
        assert found[0]["prompt"]["characters"] == len(text) and found[0]["prompt"]["text"].count("[EMAIL]") == 20_000


async def test_no_line_of_others_is_lost_to_a_very_long_prompt(tmp_path: Path) -> None:
    """One that is longer than all that may wait for the disk is written whole, and so is what ends meanwhile."""
    path = tmp_path / "requests.jsonl"
    async with running(tmp_path, log=to(path, ", prompts: full")) as bench:
        long = asyncio.create_task(bench.chat(messages=[{"role": "user", "content": "x" * (17 << 20)}]))
        served = 0
        while not long.done() or not path.exists() or path.stat().st_size < 17 << 20:
            assert (await bench.chat()).status == 200
            served += 1
        assert (await long).status == 200
        found = await lines(path, served + 1)
        assert sorted(line["prompt"]["characters"] for line in found)[-2:] == [7, 17 << 20]
        metrics = (await bench.get("/metrics")).body.decode()
        assert 'sluicegate_request_log_lost_total{what="line"} 0.0' in metrics
        assert 'sluicegate_request_log_lost_total{what="prompt"} 0.0' in metrics


def report(directory: Path, *options: str) -> Any:
    command = [sys.executable, "-m", "sluicegate", "report", "--config", str(directory / "gateway.yaml"), "--format", "json", *options]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_two_workers_share_a_file_and_a_report_reads_it(tmp_path: Path) -> None:
    """Every request is in it once, whichever worker served it; a report of it says what one of the records says."""
    log = "log: {access: json, requests: {to: requests.jsonl, rotate: {size: 64KiB, keep: 100, gzip: off}}}"
    with running_mock(tmp_path, "--ttft", "1ms", "--tpot", "0ms", "--completion", "20") as mock:
        text = config(tmp_path, mock.url, TENANTS, more=log).replace('listen: "127.0.0.1:0"', 'listen: "127.0.0.1:0", workers: 2')
        with running_gateway(tmp_path, text) as gateway:
            for n in range(60):
                body = {"model": "chat", "messages": [{"role": "user", "content": f"{n} " + "word " * 500}], "max_tokens": 40}
                assert call(f"{gateway.base_url}/chat/completions", body, "sk-k")[0] == 200
            assert gateway.stop() == 0
    files = sorted(tmp_path.glob("requests.jsonl*"), key=lambda file: (file.suffix == ".jsonl", file.name))
    text = "".join(file.read_text() for file in files)
    found = [json.loads(line) for line in text.splitlines()]
    assert len(files) > 1 and all(file.stat().st_size <= 65_536 for file in files)
    assert sorted(int(line["prompt"]["text"].split()[0]) for line in found) == list(range(60))
    (tmp_path / "all.jsonl").write_text(text)
    assert report(tmp_path, "--log", str(tmp_path / "all.jsonl")) == report(tmp_path)


def test_stdout(tmp_path: Path) -> None:
    """Lines of JSON on stdout, whole, beside what is said on stderr."""
    with running_mock(tmp_path, "--ttft", "1ms", "--tpot", "0ms", "--completion", "20") as mock:
        text = config(tmp_path, mock.url, TENANTS, more="log: {access: text, requests: {to: stdout}}")
        with running_gateway(tmp_path, text) as gateway:
            for _ in range(3):
                body = {"model": "chat", "messages": [{"role": "user", "content": "bob@example.com"}], "max_tokens": 40}
                assert call(f"{gateway.base_url}/chat/completions", body, "sk-k")[0] == 200
            assert gateway.stop() == 0
            printed = gateway.logged().splitlines()
    assert [json.loads(line)["prompt"]["text"] for line in printed if line.startswith('{"time"')] == ["[EMAIL]"] * 3
    assert len([line for line in printed if line.startswith("200 acme/team/@k chat -> mock/mock-model in=")]) == 3
