"""Cases of cases.md on clients that leave, stop reading or send slowly: nobody gets for nothing what an upstream billed."""

import asyncio
from pathlib import Path

import pytest

from support_inloop import PROMPT_TOKENS, Bench, request, running

EXTEND = pytest.mark.parametrize("extend", [False, True], ids=["capped", "extended"])
STREAM = pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
LIMITS = "[1M tokens/day]"


def provider(base: str = "BASE_URL", *, stops: bool, extend: bool = False) -> dict[str, str]:
    """A model `own` at a provider that stops on close, or does not."""
    on = {True: "on", False: "off"}
    return {
        "providers": f"  own: {{provider: mock, base_url: {base}, tokenizer: o200k_base, stops_on_close: {on[stops]}, extend: {on[extend]}}}",
        "models": """
  own:
    deployments: [{provider: own, model: m, price: {input: 0.5, output: 1.0}}]
    max_output: 30000""",
    }


async def until_called(bench: Bench, calls: int = 1) -> None:
    async with asyncio.timeout(30):
        while len(bench.mock.calls) < calls:  # noqa: ASYNC110
            await asyncio.sleep(0.002)


@EXTEND
@pytest.mark.parametrize("how", ["close", "reset"])
async def test_case_48_the_upstream_stops_when_the_client_leaves(tmp_path: Path, how: str, extend: bool) -> None:
    """Closed after the second chunk: the upstream is closed within a second and produces next to nothing more; charged at least what it produced."""
    options = {"completion": 20_000, "tpot": 5}
    async with running(tmp_path, limits=LIMITS, options=options, **provider(stops=True, extend=extend)) as bench:
        stream = await bench.open(model="own", stream=True, max_tokens=20_000)
        await stream.until(b'"content":" of"')
        getattr(stream, how)()
        async with asyncio.timeout(30):
            await bench.mock.idle()
        assert bench.mock.truth.stats().total.completion_tokens < 2_000  # of 20,000: on a machine that stalls, some
        assert bench.mock.truth.stats().total.disconnects == 1
        await bench.quiet()
        assert (bench.record.client_gone, bench.record.error) == (True, "")
        bench.slack = 2_000 if extend else 20_000


@STREAM
async def test_case_48_a_half_close_before_the_answer_is_a_leave(tmp_path: Path, stream: bool) -> None:
    """It cannot be told from a client that has gone, so the upstream is closed at once and nobody is answered."""
    options = {"completion": 1000, "ttft": 60_000}
    async with running(tmp_path, limits=LIMITS, options=options, **provider(stops=True, extend=False)) as bench:
        client = await bench.open(model="own", stream=stream, max_tokens=1000)
        while not bench.mock.calls:  # noqa: ASYNC110  (nothing to wait for)
            await asyncio.sleep(0.002)
        client.writer.write_eof()
        async with asyncio.timeout(30):
            assert await client.reader.read() == b""
            await bench.mock.idle()
        await bench.quiet()
        assert bench.record.client_gone
        bench.slack = 1000


@EXTEND
@pytest.mark.parametrize("times", [5])
async def test_case_109_a_fast_upstream_and_a_client_that_resets(tmp_path: Path, times: int, extend: bool) -> None:
    """Answers of 20,000 tokens, without pace, reset after 200 bytes, five times: charged at least what was produced, each time."""
    options = {"completion": 20_000, "chunk": 10}
    async with running(tmp_path, limits=LIMITS, options=options, **provider(stops=True, extend=extend)) as bench:
        for _ in range(times):
            stream = await bench.open(model="own", stream=True, max_tokens=20_000)
            await stream.until(b"data: {")
            stream.reset()
            await bench.quiet()
            used = (await bench.usage())["key key tokens/day"]["used"]
            assert used >= bench.total
        assert bench.total < times * 20_000 or extend
        bench.slack = times * 20_000


@STREAM
@pytest.mark.parametrize("usage", ["normal", "none"])
async def test_case_57_an_upstream_that_goes_on_is_read_to_its_usage(tmp_path: Path, usage: str, stream: bool) -> None:
    """Where closing does not stop the bill: what it says is charged, and without that the whole cap."""
    options = {"completion": 300, "tpot": 1, "stops_on_close": False, "usage": usage}
    async with running(tmp_path, limits=LIMITS, options=options, **provider(stops=False)) as bench:
        client = await bench.open(model="own", stream=stream, max_tokens=400)
        await until_called(bench)
        if stream:
            await client.until(b'"content":" of"')
        with bench.held():
            await bench.left(client)
        await bench.quiet()
        charged = 300 if usage == "normal" else 400
        assert (bench.record.output_tokens, bench.record.client_gone) == (charged, True)
        bench.slack = charged - 300


@EXTEND
@pytest.mark.parametrize("at", [b'"finish_reason":"stop"', b'"content":" as"'])
async def test_case_57_leaving_just_before_the_end_is_not_free(tmp_path: Path, at: bytes, extend: bool) -> None:
    """500 tokens streamed, closed before the last chunk, or right after it: input and output are charged."""
    options = {"completion": 500}
    async with running(tmp_path, limits=LIMITS, options=options, extend=extend) as bench:
        stream = await bench.open(stream=True, max_tokens=500)
        await stream.until(at)
        stream.reset()
        await bench.quiet()
        assert bench.record.input_tokens == PROMPT_TOKENS
        assert bench.record.output_tokens >= bench.mock.truth.stats().total.completion_tokens
        bench.slack = 500


@STREAM
@pytest.mark.parametrize(("stops", "extend"), [(True, True), (True, False), (False, False)], ids=["extended", "stops on close", "goes on"])
async def test_case_58_a_client_that_leaves_before_the_first_byte(tmp_path: Path, stops: bool, extend: bool, stream: bool) -> None:
    """The request was written: charged what it may have cost, no less than what was produced; requests are counted."""
    options = {"completion": 50, "ttft": 100, "stops_on_close": stops}
    async with running(tmp_path, limits="[1M tokens/day, 5 requests/day]", options=options, **provider(stops=stops, extend=extend)) as bench:
        with bench.held():
            client = await bench.open(model="own", stream=stream, max_tokens=80)
            await until_called(bench)
            await bench.left(client)
        await bench.quiet()
        assert (bench.record.status, bench.record.client_gone) == (499 if stops else 200, True)
        assert (await bench.usage())["key key requests/day"]["used"] == 1
        bench.slack = 80


@STREAM
async def test_leaving_at_once_leaves_nothing(tmp_path: Path, stream: bool) -> None:
    """Connections that are reset with the request: a hundred of them leave no hold, and are charged at least what reached the upstream."""
    async with running(tmp_path, limits="[1M tokens/day, 10 concurrent]", options={"completion": 20, "ttft": 5}) as bench:
        for _ in range(100):
            client = await bench.open(stream=stream, max_tokens=20)
            client.reset()
        await asyncio.sleep(0.05)
        await bench.quiet()
        assert (await bench.chat(max_tokens=20, stream=stream)).code == "200"
        bench.slack = 100 * (20 + PROMPT_TOKENS)


@pytest.mark.parametrize("declared", [True, False], ids=["length", "chunked"])
async def test_a_body_that_never_comes(tmp_path: Path, declared: bool) -> None:
    """A client that leaves in the middle of its request: nothing is held, nothing sent, and it is no error of ours."""
    framing = b"content-length: 500" if declared else b"transfer-encoding: chunked"
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer sk-key\r\n%b\r\n\r\n" % framing
    async with running(tmp_path, limits=LIMITS) as bench:
        client = await bench.connect()
        client.send(head + (b"" if declared else b"5\r\n") + b'{"mod')
        await asyncio.sleep(0.02)
        client.reset()
        await bench.quiet()
        assert list(bench.mock.calls) == []
        assert [(record.status, record.client_gone) for record in bench.records] == [(499, True)]


@EXTEND
async def test_case_59_leaving_after_a_fallback_costs_what_the_second_costs(tmp_path: Path, extend: bool) -> None:
    """The first deployment failed, the second streams and the client goes: its price, its name, its tokens."""
    models = f"""
  two:
    deployments:
      - {{provider: mock, model: dear, price: {{input: 50, output: 100}}}}
      - {{provider: own, model: cheap, price: {{input: 0.5, output: 1.0}}, extend: {"on" if extend else "off"}}}"""
    settings = provider(stops=True, extend=extend) | {"models": models}
    options = {"completion": 300, "tpot": 2}
    async with running(tmp_path, limits="[$1/day, 1M tokens/day]", options=options, **settings) as bench:
        bench.mock.fault(count=1, model="dear", status=500)
        stream = await bench.open(model="two", stream=True, max_tokens=300)
        await stream.until(b'"content":" of"')
        with bench.held():
            await bench.left(stream)
        await bench.quiet()
        record = bench.record
        assert (record.deployment, record.client_gone) == ("own/cheap", True)
        assert record.cost_nano_usd == PROMPT_TOKENS * 500 + record.output_tokens * 1000
        bench.slack = 300


WRITE = "resilience: {timeouts: {write: 300ms}}"


@EXTEND
async def test_case_122_clients_that_stop_reading(tmp_path: Path, extend: bool) -> None:
    """Eight streams of 16,000 tokens on a budget of 20,000, whose clients read 2 KB and then nothing: within the budget, ended by the write limit."""
    options = {"completion": 16_000, "chunk": 20}
    models = provider(stops=True, extend=extend)
    async with running(tmp_path, limits="[20k tokens/day]", options=options, more=WRITE, **models) as bench:
        streams = [await bench.open(model="own", receive_bytes=4096, stream=True, max_tokens=16_000) for _ in range(8)]
        for stream in streams:
            stream.writer.transport.set_write_buffer_limits(0)
            await stream.reader.read(2048)
            stream.stop_reading()
        async with asyncio.timeout(30):
            while bench.worker.gateway.trips:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await bench.quiet()
        assert bench.total <= 20_000
        bench.slack = 20_000


@EXTEND
async def test_a_slow_client_gets_everything(tmp_path: Path, extend: bool) -> None:
    """It takes 3 MB in small bites, with pauses longer in sum than the write limit: every byte arrives, and the count is right."""
    options = {"completion": 300, "pad": 0, "chunk_fields": {"obfuscation": "x" * 2_000}}
    models = provider(stops=True, extend=extend)
    async with running(tmp_path, limits=LIMITS, options=options, more=WRITE, **models) as bench:
        stream = await bench.open(model="own", receive_bytes=65_536, stream=True, max_tokens=300)
        while not stream.received.endswith(b"0\r\n\r\n"):
            stream.received += await stream.reader.read(24_000)
            await asyncio.sleep(0.015)
        answer = await stream.rest()
        assert (answer.done, answer.clean, answer.text.count(" ")) == (True, True, 300)


async def test_a_pipelined_client_gets_its_answers_in_order(tmp_path: Path) -> None:
    """Two requests in one write: one after the other, each charged."""
    async with running(tmp_path, limits="[1M tokens/day, 1 concurrent]") as bench:
        client = await bench.connect()
        client.send(request(bench.body(max_tokens=5)) + request(bench.body(max_tokens=7)))
        data = await client.until(b'"completion_tokens":7')
        assert data.index(b'"completion_tokens":5') < data.index(b'"completion_tokens":7')
