"""Cases of cases.md on bodies and headers in both directions: sizes, framing, encodings, images, cookies, what is passed on and what is not."""

import asyncio
import base64
import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from support_inloop import PROMPT_TOKENS, chunk, framed, request, running, sse, usage_chunk, whole
from support_sockets import read_request, scripted

STREAM = pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
LIMITS = "[100k tokens/day]"
ANSWER = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "ab"}, "finish_reason": "stop"}]}


def answer_body(**fields: Any) -> bytes:
    usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": 1}
    return json.dumps({**ANSWER, "usage": usage, **fields}).encode()


# -- what is sent upstream ----------------------------------------------------------------------------------------------------------------


@STREAM
async def test_case_86_only_identity_is_asked_for(tmp_path: Path, stream: bool) -> None:
    """Whatever the client accepts, the upstream is asked for plain bytes; nothing of the client's headers or its key goes along."""
    more = b"accept-encoding: gzip, br\r\ncookie: a=b\r\nx-forwarded-for: 1.2.3.4\r\nx-api-key: other\r\nx-mock: {}\r\nuser-agent: me\r\n"
    async with running(tmp_path, limits=LIMITS) as bench:
        assert (await bench.post(bench.body(stream=stream), more=more)).status == 200
        sent = bench.mock.calls[-1].headers
        assert (sent["accept-encoding"], sent["authorization"]) == ("identity", "Bearer sk-provider-secret")
        assert set(sent) == {"host", "accept-encoding", "content-length", "authorization", "content-type"}


async def test_everything_the_client_sent_reaches_the_upstream(tmp_path: Path) -> None:
    """Fields that the gateway does not act on pass as the bytes they came in: big and small numbers, order inside, escapes, text of any script."""
    odd = ['{"b": 1.10, "a": 1e400, "t": "\\u00e9 日本"}', "0.10", '{"50256": -100}', '[{"role": "user", "content": "a\\u2028b", "x": [1.0]}]']
    body = '{"model": "chat", "x_vendor": %s, "temperature": %s, "logit_bias": %s, "messages": %s}' % tuple(odd)  # noqa: UP031
    async with running(tmp_path, limits="[1M tokens/day]") as bench:
        assert (await bench.post(body.encode())).status == 200
        sent = bench.mock.calls[-1].body
        assert all(part in sent for part in odd)
        assert json.loads(sent)["model"] == "mock-chat"


# -- what comes back ----------------------------------------------------------------------------------------------------------------------


@STREAM
@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "none"])
async def test_case_86_an_answer_that_is_compressed_all_the_same(tmp_path: Path, coding: str, stream: bool) -> None:
    """Asked for plain bytes, it sends others: read where it says how and we know how, else an error; never passed on as they are, never free."""
    plain = sse(chunk("ab"), chunk(finish="stop"), usage_chunk(PROMPT_TOKENS, 1), None) if stream else answer_body()
    data = zlib.compress(plain) if coding == "deflate" else gzip.compress(plain)
    kind = "text/event-stream" if stream else "application/json"
    headers = () if coding == "none" else (f"content-encoding: {coding}",)

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(whole(200, data, *headers, kind=kind))

    async with scripted(script) as port, running(tmp_path, upstream=port, limits=LIMITS) as bench:
        bench.truth, bench.slack = (PROMPT_TOKENS, 1), 0 if coding in ("gzip", "deflate") else 20
        answer = await bench.chat(stream=stream, max_tokens=20, stream_options={"include_usage": True} if stream else ...)
        assert data[:10] not in answer.body
        if coding in ("gzip", "deflate"):
            assert (answer.status, answer.body, "content-encoding" in answer.headers) == (200, plain, False)
        else:
            assert (answer.status, answer.code) == (502, "upstream_error")


@STREAM
async def test_case_87_framing_and_private_headers_are_not_passed_on(tmp_path: Path, stream: bool) -> None:
    """Stale lengths and encodings, cookies, the upstream's server and request ids: the answer's headers are the gateway's own."""
    theirs = (
        "content-encoding: identity", "set-cookie: session=1; path=/", "server: vendor", "x-request-id: theirs",
        "openai-organization: org-secret", "strict-transport-security: max-age=1", "keep-alive: timeout=5", "x-ratelimit-limit-requests: 1",
        "location: http://x/", "connection: keep-alive",
    )  # fmt: skip

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        if not stream:
            writer.write(whole(200, answer_body(), *theirs))
            return
        head = "".join(f"{line}\r\n" for line in (*theirs, "content-type: text/event-stream", "transfer-encoding: chunked"))
        data = sse(chunk("ab"), chunk(finish="stop"), usage_chunk(PROMPT_TOKENS, 1), None)
        writer.write(f"HTTP/1.1 200 OK\r\n{head}\r\n".encode() + framed(data, last=True))

    async with scripted(script) as port, running(tmp_path, upstream=port, limits=LIMITS) as bench:
        bench.truth = (PROMPT_TOKENS, 1)
        answer = await bench.chat(stream=stream)
        ours = {
            "date", "content-type", "x-request-id", "x-sluicegate-request-id", "x-sluicegate-overhead-ms", "x-sluicegate-attempts",
            "x-sluicegate-model", "x-sluicegate-deployment", "x-sluicegate-max-tokens",
            "x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens",
        }  # fmt: skip
        framing = {"transfer-encoding", "cache-control", "x-accel-buffering"} if stream else {"content-length", "x-sluicegate-cost-usd"}
        assert set(answer.headers) == ours | framing
        assert answer.headers["x-request-id"].startswith("req_")


@STREAM
async def test_case_115_no_cookie_jar(tmp_path: Path, stream: bool) -> None:
    """A cookie that an upstream set for one tenant's call is sent with nobody's."""
    tenants = "\n  acme: {keys: [{name: a, key: sk-a}]}\n  beta: {keys: [{name: b, key: sk-b}]}"
    async with running(tmp_path, tenants=tenants, options={"headers": {"set-cookie": "session=of-a; Path=/"}}) as bench:
        for key in ("sk-a", "sk-b", "sk-a"):
            assert (await bench.chat(key, stream=stream)).code == "200"
        assert all("cookie" not in call.headers for call in bench.mock.calls)


async def test_redirects_are_not_followed(tmp_path: Path) -> None:
    """Nor passed on: an upstream that moved is the operator's to mend, and our credential goes nowhere else."""
    asked = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        await read_request(reader)
        asked += 1
        writer.write(whole(307, b"", f"location: http://127.0.0.1:{port}/elsewhere"))

    async with scripted(script) as port, running(tmp_path, upstream=port, limits=LIMITS) as bench:
        bench.truth = (0, 0)
        answer = await bench.chat()
        assert (answer.status, "location" in answer.headers, asked) == (502, False, 1)


# -- sizes --------------------------------------------------------------------------------------------------------------------------------


def with_image(size: int) -> list[Any]:
    url = "data:image/jpeg;base64," + base64.b64encode(b"\xff\xd8" + b"x" * size).decode()
    return [{"role": "user", "content": [{"type": "text", "text": "what is it"}, {"type": "image_url", "image_url": {"url": url}}]}]


@STREAM
@pytest.mark.parametrize("megabytes", [1.2, 12])
async def test_case_90_large_bodies_are_served(tmp_path: Path, megabytes: float, stream: bool) -> None:
    """A data URL of 1.2 and of 12 MB goes through, whole."""
    async with running(tmp_path, limits=LIMITS, options={"tokenizer": ""}) as bench:
        bench.whole = False
        messages = with_image(int(megabytes * 1e6))
        answer = await bench.chat(stream=stream, messages=messages, max_tokens=20)
        assert answer.code == "200"
        assert int(bench.mock.calls[-1].headers["content-length"]) > megabytes * 1e6


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("early", [False, True], ids=["whole", "announced"])
async def test_case_90_above_the_limit_is_a_413(tmp_path: Path, chunked: bool, early: bool) -> None:
    """By its length or as its chunks come in: refused in JSON as soon as it is known, and read on so that the client sees it."""
    body = b'{"model": "chat", "x": "' + b"x" * 3_000_000 + b'"}'
    async with running(tmp_path, limits=LIMITS) as bench:
        bench.worker.gateway._max_body_bytes = 1_000_000
        data = request(body)
        if chunked:
            head = data.partition(b"content-length")[0] + b"transfer-encoding: chunked\r\n\r\n"
            data = head + b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[i : i + 50_000] for i in range(0, len(body), 50_000)))
            data += b"0\r\n\r\n"
        client = await bench.connect()
        client.send(data[:1_500_000] if early else data)
        answer = await client.rest()
        assert (answer.status, answer.code, answer.headers["connection"]) == (413, "request_body_too_large", "close")
        assert "1000000" in answer.error["message"]
        assert list(bench.mock.calls) == []


async def test_case_90_the_limit_is_configured(tmp_path: Path) -> None:
    """32 MiB where nothing is said."""
    async with running(tmp_path) as bench:
        assert bench.worker.gateway._max_body_bytes == 32 * 2**20


@pytest.mark.parametrize(("image_tokens", "used"), [("", 4096), (", image_tokens: 1000", 1000)])
async def test_case_91_an_image_counts_as_an_image(tmp_path: Path, image_tokens: str, used: int) -> None:
    """2.5 MB of base64 are neither 2.7 million tokens nor none: a flat maximum per image, on a budget of 100,000."""
    async with running(tmp_path, limits=LIMITS, deployment=image_tokens, options={"usage": "none"}) as bench:
        bench.whole = False
        assert (await bench.chat(messages=with_image(1_900_000), max_tokens=20)).code == "200"
        text = 3
        assert (await bench.usage())["key key tokens/day"]["used"] == used + text + 4 + 3 + 20
        assert (await bench.chat(messages=with_image(5) * 30, max_tokens=20)).code in ("request_too_large", "200")


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH"])
async def test_other_methods(tmp_path: Path, method: str) -> None:
    """405 in JSON with what is allowed; HEAD without a body."""
    async with running(tmp_path) as bench:
        raw = f"{method} /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer sk-key\r\nconnection: close\r\n\r\n".encode()
        answer = await bench.raw(raw)
        assert (answer.status, answer.headers["allow"]) == (405, "POST")
        assert (answer.body == b"") == (method == "HEAD")


@pytest.mark.parametrize("path", ["/v1/files", "/v1/batches", "/v1/images/generations", "/v1/messages/batches", "/chat/completions"])
async def test_case_4_vendor_paths_do_not_pass(tmp_path: Path, path: str) -> None:
    """An exhausted key finds no other way to an upstream: JSON 404, whatever the path, and nothing is called."""
    async with running(tmp_path, limits="[1 requests/day]") as bench:
        assert (await bench.chat()).code == "200"
        assert (await bench.chat()).code == "budget_exceeded"
        answer = await bench.raw(request(bench.body(), path=path))
        assert (answer.status, answer.code, len(bench.mock.calls)) == (404, "path_not_found", 1)


async def test_http_1_0_clients_are_served(tmp_path: Path) -> None:
    """A stream then ends with the connection; an answer that breaks must not look whole."""
    async with running(tmp_path, limits=LIMITS, options={"completion": 5}) as bench:
        body = bench.body(stream=True)
        head = b"POST /v1/chat/completions HTTP/1.0\r\nauthorization: Bearer sk-key\r\ncontent-length: %d\r\n\r\n" % len(body)
        answer = await bench.raw(head + body)
        assert (answer.status, answer.done, "transfer-encoding" in answer.headers) == (200, True, False)
