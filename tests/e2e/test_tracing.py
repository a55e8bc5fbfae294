"""Traces of a whole gateway, as a receiver on a socket gets them, and what upstreams are told of them."""

import asyncio
import contextlib
import itertools
import json
import re
import time
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from sluicegate import tracing
from sluicegate.config.load import ConfigError, load_text
from support_admin import Api, more
from support_inloop import Bench, Reply, config_text, running, whole
from support_otlp import OK, Receiver, Span, receiving

LIMITS = "[100k tokens/day, 1k requests/day]"
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"traceparent: 00-{TRACE}-{SPAN}-01\r\n".encode()
ANSWER = json.dumps(
    {
        "id": "c9",
        "object": "chat.completion",
        "model": "mock-chat-0613",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 1},
    }
).encode()


@contextlib.asynccontextmanager
async def traced(directory: Path, tracing: str = "", *, more: str = "", **settings: Any) -> AsyncIterator[tuple[Bench, Receiver]]:
    """A gateway whose spans are with the receiver once it has ended."""
    async with receiving() as receiver:
        section = f"tracing: {{endpoint: '{receiver.url}'{tracing}}}"
        async with running(directory, **{"limits": LIMITS, "more": f"{more}\n{section}", **settings}) as bench:
            yield bench, receiver


class Upstream:
    """Answers whole calls in their order, and keeps their heads."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.heads: list[dict[str, str]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = [line.split(": ", 1) for line in head.decode().split("\r\n")[1:-2]]
                self.heads.append(dict(lines))
                assert len(self.heads[-1]) == len(lines), "a header twice"
                await reader.readexactly(int(self.heads[-1]["content-length"]))
                writer.write(self.answers.pop(0))
        writer.close()


@contextlib.asynccontextmanager
async def upstream(*answers: bytes) -> AsyncIterator[tuple[Upstream, int]]:
    one = Upstream(*answers)
    server = await asyncio.start_server(one.serve, "127.0.0.1", 0)
    yield one, server.sockets[0].getsockname()[1]
    server.close()


def names(parts: list[Span]) -> list[str]:
    return [span.name for span in parts]


async def asked(bench: Bench, headers: bytes = b"", **fields: Any) -> Reply:
    bench.whole = False
    return await bench.post(bench.body(**fields), more=headers)


# -- trees --------------------------------------------------------------------------------------------------------------------------------


async def test_a_unary_request_is_a_tree(tmp_path: Path) -> None:
    """Below the client's span: the plan, the hold, the call, the settlement, one after another, with what the record says."""
    async with traced(tmp_path) as (bench, receiver):
        assert (await asked(bench, PARENT + b"tracestate: a=1\r\n", max_tokens=50)).status == 200
        record, port = bench.record, int(bench.mock.base_url.split(":")[2].split("/")[0])
    own, parts = receiver.only()
    assert (own.trace_id, own.parent, own.state) == (TRACE, SPAN, "a=1")
    assert record.trace_id == TRACE
    assert names(parts) == ["plan", "admit", "chat mock-chat", "settle"]
    assert all(before.until <= after.since for before, after in itertools.pairwise(parts))
    assert own.since <= parts[0].since and parts[-1].until <= own.until
    assert abs(own.since - time.time_ns()) < 60e9
    call = parts[2]
    assert (call.kind, call["server.address"], call["server.port"], call["http.response.status_code"]) == (3, "127.0.0.1", port, 200)
    assert (call["gen_ai.provider.name"], call["gen_ai.request.model"], call["gen_ai.request.max_tokens"]) == ("mock", "mock-chat", 50)
    assert call["gen_ai.response.model"] == "mock-chat"
    assert call["gen_ai.response.finish_reasons"] == ["stop"]
    assert (call["gen_ai.usage.input_tokens"], call["gen_ai.usage.output_tokens"]) == (record.input_tokens, record.output_tokens)
    assert (own["sluicegate.key_id"], own["sluicegate.tenant"], own["sluicegate.model"]) == ("acme/@key", "acme", "chat")
    assert (own["sluicegate.request_id"], own["sluicegate.held_output_tokens"]) == (record.request_id, record.held)
    assert own["sluicegate.cost_usd"] == parts[3]["sluicegate.cost_usd"] == record.cost_nano_usd / 1e9
    assert own.resource["service.name"] == "sluicegate"
    assert not any(span.error for span in receiver.spans)


async def test_a_stream_that_grows_tells_each_extension(tmp_path: Path) -> None:
    """Its call lasts until its last byte, the first extension begins in its midst, and each holds more than the one before."""
    options = {"completion": 400, "ttft": 5, "tpot": 1}
    more = "budget: {estimator: fixed, fixed_output: 40}"
    async with traced(tmp_path, more=more, limits="[1000 tokens/day]", extend=True, options=options) as (bench, receiver):
        reply = await bench.chat(stream=True, max_tokens=800)
        assert reply.done
    own, parts = receiver.only()
    grown = [span for span in parts if span.name == "extend"]
    (call,) = [span for span in parts if span.kind == 3]
    assert len(grown) > 1
    assert [span["sluicegate.outcome"] for span in grown] == ["granted"] * len(grown)
    held = [span["sluicegate.held_output_tokens"] for span in grown]
    assert held == sorted(held)
    assert own["sluicegate.held_output_tokens"] == held[-1]
    assert call.since < grown[0].since < call.until
    assert call.until - call.since > 0.3e9  # 400 tokens, a millisecond each
    assert 0 < call["gen_ai.response.time_to_first_chunk"] < (call.until - call.since) / 1e9
    assert (call["gen_ai.request.stream"], call["gen_ai.usage.output_tokens"], own["sluicegate.stream"]) == (True, 400, True)


async def test_a_route_that_falls_back_has_a_span_for_each_call(tmp_path: Path) -> None:
    """The one that failed is an error, the request is none; each upstream was told the span of its own call, in the same trace."""
    price = "price: {input: 1, output: 1}"
    models = f"\n  two: {{deployments: [{{provider: mock, model: one, {price}}}, {{provider: b, model: two, {price}}}]}}"
    async with upstream(whole(503, b'{"error": {"message": "no"}}'), whole(200, ANSWER)) as (far, port):
        providers = f'  b: {{provider: openai, base_url: "http://127.0.0.1:{port}/v1", api_key: k}}'
        async with traced(tmp_path, upstream=port, providers=providers, models=models) as (bench, receiver):
            assert (await asked(bench, model="two")).status == 200
    own, parts = receiver.only()
    assert names(parts) == ["plan", "admit", "chat one", "admit", "chat two", "settle"]
    failed, answered = parts[2], parts[4]
    assert (failed.error, failed["error.type"], failed["http.response.status_code"]) == (True, "503", 503)
    assert (answered.error, answered["gen_ai.provider.name"], answered["gen_ai.response.model"]) == (False, "openai", "mock-chat-0613")
    assert answered["gen_ai.response.id"] == "c9"
    assert (own.error, own["sluicegate.fallback"], own["sluicegate.attempts"], own["sluicegate.deployment"]) == (False, True, 2, "b/two")
    assert [head["traceparent"] for head in far.heads] == [f"00-{own.trace_id}-{span.id}-01" for span in (failed, answered)]


async def test_a_refusal_is_no_error_of_ours(tmp_path: Path) -> None:
    """The hold says why there was none; nobody was called."""
    async with traced(tmp_path, limits="[35 tokens/day]") as (bench, receiver):
        assert [(await bench.chat(max_tokens=20)).status for _ in range(2)] == [200, 429]
    own = receiver.roots()[1]
    parts = receiver.below(own)
    assert names(parts) == ["plan", "admit"]
    assert parts[1]["sluicegate.outcome"] == own["error.type"] == bench.record.error
    assert (own.error, own["http.response.status_code"], own["sluicegate.refusal"]) == (False, 429, bench.record.refusal)


async def test_a_wait_is_a_span_inside_the_hold(tmp_path: Path) -> None:
    """The second of two requests waits for the first one's settlement."""
    more = "budget: {queue: {max_wait: 5s}}"
    async with traced(tmp_path, more=more, limits="[1 concurrent]", options={"ttft": 60, "completion": 5}) as (bench, receiver):
        assert [reply.status for reply in await asyncio.gather(bench.chat(), bench.chat())] == [200, 200]
    (waited,) = [span for span in receiver.spans if span.name == "queue"]
    (root,) = [own for own in receiver.roots() if own.id == waited.parent]
    parts = receiver.below(root)
    assert sorted(names(parts)) == ["admit", "chat mock-chat", "plan", "queue", "settle"]
    admit = next(span for span in parts if span.name == "admit")
    assert admit.since <= waited.since < waited.until <= admit.until
    assert waited.until - waited.since > 0.02e9
    assert waited["sluicegate.outcome"] == "served"


@pytest.mark.parametrize("mode", ["all", "deterministic"])
async def test_an_answer_from_the_cache_calls_nobody(tmp_path: Path, mode: str) -> None:
    """What the cache did is told, be it that it had nothing to do with a request; a hit costs nothing and says what it saved."""
    async with traced(tmp_path, more=f"cache: {{mode: {mode}}}") as (bench, receiver):
        first, second = await bench.chat(), await bench.chat()
        assert (first.status, second.status) == (200, 200)
    trees = [receiver.below(own) for own in receiver.roots()]
    called = ["plan", "cache", "admit", "chat mock-chat", "settle"]
    skipped = "skip:sampling"
    assert [names(parts) for parts in trees] == [called, ["plan", "cache", "settle"] if mode == "all" else called]
    assert [parts[1]["sluicegate.outcome"] for parts in trees] == (["miss", "hit"] if mode == "all" else [skipped, skipped])
    if mode == "all":
        hit = receiver.roots()[1]
        assert (hit["sluicegate.cache"], hit["sluicegate.cost_usd"]) == ("hit", 0)
        assert hit["sluicegate.saved_usd"] == receiver.roots()[0]["sluicegate.cost_usd"]


async def test_an_answer_that_breaks_off_is_an_error(tmp_path: Path) -> None:
    """Of the call and of the request, though its status was 200."""
    async with traced(tmp_path, options={"completion": 40, "cut_after": 10}) as (bench, receiver):
        bench.whole = False
        await bench.chat(stream=True)
    own, parts = receiver.only()
    (call,) = [span for span in parts if span.kind == 3]
    assert (own.error, own["error.type"], own["http.response.status_code"]) == (True, "upstream_error", 200)
    assert (call.error, call["error.type"]) == (True, "incomplete")


@pytest.mark.parametrize(
    ("path", "body", "operation"),
    [
        ("/v1/completions", {"prompt": "Hi", "max_tokens": 9}, "text_completion"),
        ("/v1/embeddings", {"input": "Hi"}, "embeddings"),
        ("/v1/responses", {"input": "Hi", "max_output_tokens": 16}, "chat"),
        ("/v1/responses", {"input": "Hi", "max_output_tokens": 16, "stream": True}, "chat"),
        ("/v1/messages", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9}, "chat"),
        ("/v1/messages", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9, "stream": True}, "chat"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "stream": True}, "chat"),
    ],
)
async def test_every_dialect_is_told_alike(tmp_path: Path, path: str, body: dict[str, Any], operation: str) -> None:
    """What is done, at which model, which model says that it answered, and under which path."""
    async with traced(tmp_path) as (bench, receiver):
        bench.whole = False
        data = json.dumps({"model": "chat", **body}).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: g\r\nauthorization: Bearer sk-key\r\ncontent-length: {len(data)}\r\n\r\n"
        assert (await bench.raw(head.encode() + data)).status == 200
    own, parts = receiver.only()
    (call,) = [span for span in parts if span.kind == 3]
    assert (own.name, call.name) == (f"POST {path}", f"{operation} mock-chat")
    assert call["gen_ai.response.model"] == "mock-chat"


async def test_no_text_of_a_request_is_in_its_spans(tmp_path: Path) -> None:
    """Neither the prompt nor the answer, nor a credential."""
    async with traced(tmp_path) as (bench, receiver):
        reply = await asked(bench, messages=[{"role": "user", "content": "my-secret-words"}], user="sk-key")
    told = repr([(span.name, span.attributes, span.resource) for span in receiver.spans])
    for word in ("my-secret-words", "sk-key", "sk-provider-secret", reply.json["choices"][0]["message"]["content"]):
        assert word not in told


async def test_a_prompt_is_told_if_it_is_asked_for_and_never_its_secrets(tmp_path: Path) -> None:
    """With the masks of the request log, its own ones too."""
    masks = ", masks: [{name: STAFF, pattern: 'E-[0-9]{4}'}]"
    async with traced(tmp_path, tracing=", prompts: redacted", log=masks) as (bench, receiver):
        assert (await asked(bench, messages=[{"role": "user", "content": "I am E-1234, jane@example.com"}])).status == 200
    assert receiver.only()[0]["sluicegate.prompt"].endswith("I am [STAFF], [EMAIL]")


# -- whose trace it is --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hostile", ["x" * 5000, f"00-{'0' * 32}-{SPAN}-01", f"ff-{TRACE}-{SPAN}-01", f"00-{TRACE.upper()}-{SPAN}-01", "é"])
async def test_a_context_that_is_none_begins_a_trace(tmp_path: Path, hostile: str) -> None:
    """Nothing of it goes on to the upstream, its state neither."""
    async with upstream(whole(200, ANSWER)) as (far, port), traced(tmp_path, upstream=port) as (bench, receiver):
        assert (await asked(bench, f"traceparent: {hostile}\r\ntracestate: a=1\r\n".encode())).status == 200
    own, parts = receiver.only()
    assert own.parent == "" and own.trace_id != TRACE and own.state == ""
    assert far.heads[0]["traceparent"] == f"00-{own.trace_id}-{parts[2].id}-01"
    assert "tracestate" not in far.heads[0]


async def test_what_the_client_does_not_keep_is_not_kept_here(tmp_path: Path) -> None:
    """No span; the upstream is told so too, and the record has the trace all the same."""
    async with upstream(whole(200, ANSWER)) as (far, port), traced(tmp_path, upstream=port) as (bench, receiver):
        assert (await asked(bench, PARENT.replace(b"-01\r", b"-00\r") + b"tracestate: a=1\r\n")).status == 200
        assert bench.record.trace_id == TRACE
    assert receiver.spans == []
    assert re.fullmatch(f"00-{TRACE}-(?!{SPAN})[0-9a-f]{{16}}-00", far.heads[0]["traceparent"])
    assert far.heads[0]["tracestate"] == "a=1"


async def test_a_share_of_none_keeps_what_clients_keep(tmp_path: Path) -> None:
    """`sample` is for traces that begin here."""
    async with traced(tmp_path, tracing=", sample: 0") as (bench, receiver):
        bench.whole = False
        assert (await asked(bench)).status == 200
        assert len(bench.record.trace_id) == 32
        assert (await asked(bench, PARENT)).status == 200
    assert [own.trace_id for own in receiver.roots()] == [TRACE]


async def test_without_tracing_a_context_passes_as_it_came(tmp_path: Path) -> None:
    """We are not part of the trace; nothing is recorded of it."""
    async with upstream(whole(200, ANSWER)) as (far, port), running(tmp_path, upstream=port, limits=LIMITS) as bench:
        assert (await asked(bench, PARENT)).status == 200
        assert bench.record.trace_id == ""
        assert bench.worker.metrics.counts().spans == {"sent": 0, "dropped": 0, "failed": 0}
    assert far.heads[0]["traceparent"].encode() in PARENT


async def test_who_has_no_key_has_no_spans(tmp_path: Path) -> None:
    """Anybody could fill the receiver."""
    async with traced(tmp_path) as (bench, receiver):
        assert (await bench.post(bench.body(), "sk-nobody", more=PARENT)).status == 401
    assert receiver.spans == []


async def test_the_records_have_the_trace(tmp_path: Path) -> None:
    """So that whoever looks at a request finds its spans."""
    async with traced(tmp_path, more=more()) as (bench, _):
        bench.whole = False
        assert (await asked(bench, PARENT)).status == 200
        async with asyncio.timeout(5):
            while not (found := (await Api(bench)("GET", "requests")).json["data"]):  # noqa: ASYNC110  (another thread writes)
                await asyncio.sleep(0.05)
        assert found[0]["trace_id"] == TRACE


# -- the receiver -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["refuses", "is silent", "is not there"])
async def test_a_receiver_that_is_away_touches_no_request(tmp_path: Path, logged: list[Any], how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are answered, what is lost is counted, the log has one line, and the end does not wait for it."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    async with traced(tmp_path) as (bench, receiver):
        receiver.answer = None if how == "is silent" else b"HTTP/1.1 400 no\r\ncontent-length: 0\r\n\r\n"
        if how == "is not there":
            bench.worker.tracing.apply(load_text(config_text(tmp_path, bench.mock.base_url, more="tracing: {endpoint: 'http://127.0.0.1:1'}"), {}))
        for _ in range(3):
            began = time.monotonic()
            assert (await bench.chat()).status == 200
            assert time.monotonic() - began < 3
        async with asyncio.timeout(5):
            while not bench.worker.metrics.counts().spans["failed"]:  # noqa: ASYNC110  (another thread counts)
                await asyncio.sleep(0.01)
        began = time.monotonic()
    assert time.monotonic() - began < 10
    assert [(line["to"], line["log_level"]) for line in logged if line["event"] == "tracing state"] == [("away", "warning")]


async def test_headers_and_names_are_the_operators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A credential from a variable, a name of the service, a path of the receiver's own."""
    monkeypatch.setenv("RECEIVER", "authorization=Bearer%20abc, x-tenant=7")
    async with receiving() as receiver:
        section = f"tracing: {{endpoint: '{receiver.url}/api/spans', headers_env: RECEIVER, service_name: front}}"
        async with running(tmp_path, limits=LIMITS, more=section) as bench:
            assert (await bench.chat()).status == 200
    head = receiver.heads[0].lower()
    assert head.startswith(b"post /api/spans http/1.1\r\n")
    assert b"authorization: bearer abc\r\n" in head and b"x-tenant: 7\r\n" in head
    assert receiver.only()[0].resource["service.name"] == "front"


async def test_what_the_file_leaves_open_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where to, under which name, how many; and that nothing is to be traced at all."""
    async with receiving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "of-env")
        async with running(tmp_path / "a", limits=LIMITS, more="tracing: {}") as bench:
            assert (await bench.chat()).status == 200
        assert receiver.only()[0].resource["service.name"] == "of-env"
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
        monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
        async with running(tmp_path / "b", limits=LIMITS, more="tracing: {}") as bench:
            assert (await bench.chat()).status == 200
        monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
        async with running(tmp_path / "c", limits=LIMITS, more="tracing: {sample: 1}") as bench:
            assert (await bench.chat()).status == 200
            assert bench.record.trace_id == ""
        assert len(receiver.roots()) == 1


async def test_a_reload_moves_what_comes_from_then_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another receiver gets what is new, the old one what was for it; without the section nothing is traced any more."""
    monkeypatch.setattr(tracing, "STOP_S", 60.0)  # on a busy machine, two seconds may pass before a thread has loaded what it sends with
    async with receiving() as other, traced(tmp_path) as (bench, receiver):

        def reloaded(more: str) -> Any:
            return load_text(config_text(tmp_path, bench.mock.base_url, limits=LIMITS, more=more), {})

        assert (await bench.chat()).status == 200
        await bench.worker.apply(reloaded(f"tracing: {{endpoint: '{other.url}'}}"))
        bench.worker.gateway._observers = (*bench.worker.gateway._observers, bench.records.append)
        assert (await bench.chat()).status == 200
        await bench.worker.apply(reloaded(""))
        assert (await bench.chat()).status == 200
        async with asyncio.timeout(60):
            while len(other.roots()) + len(receiver.roots()) < 2:  # noqa: ASYNC110  (another thread sends)
                await asyncio.sleep(0.01)
            while bench.worker.metrics.counts().spans["sent"] < len(other.spans) + len(receiver.spans):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert bench.worker.metrics.counts().spans == {"sent": len(other.spans) + len(receiver.spans), "dropped": 0, "failed": 0}
        assert (len(receiver.roots()), len(other.roots())) == (1, 1)
        assert receiver.answer == OK


# -- the configuration --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "field", "why"),
    [
        ("{endpoint: collector:4318}", "tracing.endpoint", "must be a URL"),
        ("{endpoint: 'http://u:p@127.0.0.1'}", "tracing.endpoint", "without user"),
        ("{sample: 1.5}", "tracing.sample", "from 0 (none) to 1"),
        ("{sample: often}", "tracing.sample", "from 0 (none) to 1"),
        ("{headers_env: WRONG}", "tracing.headers_env", "NAME=value"),
        ("{headers_env: ABSENT}", "tracing.headers_env", "is not set"),
        ("{prompts: full}", "tracing.prompts", "redacted"),
        ("{service_name: ''}", "tracing.service_name", "at least 1"),
        ("{sampled: 1}", "tracing.sampled", "unknown"),
    ],
)
def test_a_mistake_names_its_field(tmp_path: Path, section: str, field: str, why: str) -> None:
    """And never quotes a credential."""
    with pytest.raises(ConfigError) as raised:
        load_text(config_text(tmp_path, "http://127.0.0.1:1/v1", more=f"tracing: {section}"), {"WRONG": "hunter2"})
    assert f"{field}: " in str(raised.value) and why in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_what_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The field, and the extra that has it; without the section nothing is missed."""
    monkeypatch.setattr("sluicegate.config.compile.find_spec", lambda name: None if name.startswith("opentelemetry") else find_spec(name))
    text = config_text(tmp_path, "http://127.0.0.1:1/v1")
    load_text(text, {})
    with pytest.raises(ConfigError, match=r"tracing: .*sluicegate\[otel\]"):
        load_text(text + "\ntracing: {}", {})
