"""Output in fields that the gateway does not know: it counts like any other, in both modes, whatever an upstream calls it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from sluicegate.core.claims import Admission, Settlement
from support_inloop import PROMPT_TOKENS, STREAM_HEAD, Bench, framed, request, running, sse
from support_sockets import Script, read_request, scripted

FIELDS = pytest.mark.parametrize("delta", [{"thinking": " word"}, {"foo": {"bar": [" word"]}}], ids=["named", "nested"])
WORDS = 3000


async def rival(bench: Bench, tokens: int) -> None:
    """Another request's hold."""
    reply = await bench.ledger.admit(Admission("rival", _refs(bench), (0, 1000), tokens, tokens, tokens, 60_000, "rival"))
    assert reply.status == "granted"


async def end_rival(bench: Bench) -> None:
    await bench.ledger.settle(Settlement("rival", _refs(bench), (0,)))


def _refs(bench: Bench) -> Any:
    return bench.worker.gateway.plans.of(bench.keys["sk-key"], bench.loaded.policy.models["chat"]).template.refset(bench.ledger.now_ms())


def streaming(event: dict[str, Any], sent: list[int]) -> Script:
    """An upstream that streams a word per event, 3,000 or until its connection is closed, and says how many in `sent`."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(STREAM_HEAD)
        sent.append(0)
        while sent[-1] < WORDS and not writer.transport.is_closing():
            writer.write(framed(sse(event) * 5))
            sent[-1] += 5
            await writer.drain()
            await asyncio.sleep(0.005)
        writer.write(framed(sse(None), last=True))

    return script


def delta_of(delta: dict[str, Any]) -> dict[str, Any]:
    return {"id": "c1", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


@FIELDS
async def test_an_extended_stream_is_cut_where_its_budget_ends(tmp_path: Path, delta: dict[str, Any]) -> None:
    """A stream that began with room for everything: when another request holds half of it, what was given is within the rest."""
    more = "budget: {estimator: fixed, fixed_output: 50}"
    sent: list[int] = []
    async with (
        scripted(streaming(delta_of(delta), sent)) as port,
        running(tmp_path, upstream=port, limits="[1000 tokens/day]", extend=True, more=more) as bench,
    ):
        bench.whole = False
        stream = await bench.open(max_tokens=900, stream=True)
        await stream.until(b" word")
        await rival(bench, 500)
        answer = await stream.rest()
        words = answer.body.count(b" word")
        assert (answer.truncated, answer.done) == ("budget", True)
        assert 200 < words <= 500 - PROMPT_TOKENS
        await end_rival(bench)
        await bench.quiet()
        assert (await bench.usage())["key key tokens/day"]["used"] >= PROMPT_TOKENS + words


@FIELDS
async def test_a_capped_upstream_that_goes_on_is_cut(tmp_path: Path, delta: dict[str, Any]) -> None:
    """At 1.1 times the cap that it was sent and 16 tokens, as where its output has the usual name."""
    given: list[int] = []
    for name in (delta, {"content": " word"}):
        async with scripted(streaming(delta_of(name), [])) as port, running(tmp_path, upstream=port, limits="[100k tokens/day]") as bench:
            bench.whole = False
            answer = await bench.chat(stream=True, max_tokens=100)
            given.append(answer.body.count(b" word"))
    assert given[0] == given[1] <= 1.1 * 100 + 16


DIALECTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "anthropic": ("dialect: anthropic", "/v1/messages", {"type": "content_block_delta", "index": 0, "delta": {"type": "foo_delta", "foo": " word"}}),
    "completions": ("dialect: openai", "/v1/completions", {"id": "c1", "choices": [{"index": 0, "text": "", "thinking": " word"}]}),
    "responses": ("provider: mock, speaks: [openai_responses]", "/v1/responses", {"type": "response.output_text.delta", "delta": "", "foo": " word"}),
}


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_every_dialect_is_cut(tmp_path: Path, dialect: str) -> None:
    """The same for clients and providers of the other dialects."""
    provider, path, event = DIALECTS[dialect]
    root = "http://127.0.0.1:{port}" + ("" if dialect == "anthropic" else "/v1")
    ask = (
        {"prompt": "a"}
        if dialect == "completions"
        else {"input": "a"}
        if dialect == "responses"
        else {"messages": [{"role": "user", "content": "a"}]}
    )
    cap = "max_output_tokens" if dialect == "responses" else "max_tokens"
    async with scripted(streaming(event, [])) as port:
        providers = f'  other: {{{provider}, base_url: "{root.format(port=port)}", tokenizer: o200k_base, proxy: off}}'
        models = "  other: {deployments: [{provider: other, model: m, price: {input: 0.5, output: 1.0}}]}"
        async with running(tmp_path, limits="[100k tokens/day]", providers=providers, models=models) as bench:
            bench.whole = False
            body = json.dumps({"model": "other", "stream": True, cap: 100, **ask}).encode()
            answer = await bench.raw(request(body, path=path))
            assert 50 < answer.body.count(b" word") <= 1.1 * 100 + 16
