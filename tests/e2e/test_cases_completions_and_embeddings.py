"""Cases of cases.md over `/v1/completions` and `/v1/embeddings`: the same limits, the same arithmetic, with the provider's own count as the truth."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from support_inloop import Bench, Reply, request, running

EXTEND = pytest.mark.parametrize("extend", [False, True], ids=["capped", "extended"])
STREAM = pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])


async def complete(bench: Bench, prompt: Any = "Tell me", key: str = "sk-key", **fields: Any) -> Reply:
    body = {"model": "chat", "prompt": prompt, "user": key, **fields}
    return await bench.raw(request(json.dumps(body).encode(), key, path="/v1/completions"))


async def embed(bench: Bench, text: Any = "Tell me", key: str = "sk-key", **fields: Any) -> Reply:
    body = {"model": "chat", "input": text, "user": key, **fields}
    return await bench.raw(request(json.dumps(body).encode(), key, path="/v1/embeddings"))


def texts(reply: Reply) -> list[str]:
    """The text of each choice."""
    choices = reply.choices if reply.headers["content-type"].startswith("text/event-stream") else reply.json["choices"]
    found: dict[int, str] = {}
    for choice in choices:
        found[choice["index"]] = found.get(choice["index"], "") + choice["text"]
    return [found[index] for index in sorted(found)]


@STREAM
@EXTEND
async def test_case_27_completions_count(tmp_path: Path, stream: bool, extend: bool) -> None:
    """A budget is spent over completions as over chats, and the provider has produced no more."""
    async with running(tmp_path, limits="[100 tokens/day]", extend=extend, options={"completion": 30}) as bench:
        replies = [await complete(bench, max_tokens=30, stream=stream) for _ in range(6)]
        assert replies[0].code == "200" and replies[-1].code == "budget_exceeded"
        assert bench.total <= 100
        assert (await bench.chat(max_tokens=30)).code == "budget_exceeded"


async def test_case_27_embeddings_count(tmp_path: Path) -> None:
    """Ten tokens a minute, two calls of fifty: a request of that size never fits, two small ones do, the third must wait."""
    async with running(tmp_path, limits="[30 tokens/minute]", options={"prompt": 8}) as bench:
        assert (await embed(bench, "word " * 50)).code == "request_too_large"
        replies = [await embed(bench, "word") for _ in range(4)]
        assert [reply.code for reply in replies] == ["200"] * 3 + ["rate_limit_exceeded"]
        assert bench.record.dialect == "openai_embeddings" and bench.records[1].input_tokens == 8


async def test_embeddings_need_room_for_their_input_alone(tmp_path: Path) -> None:
    """Two tokens of text and what frames them, exactly, without any least output; and no room for output is needed at all."""
    async with running(tmp_path, limits="[9 tokens/day, 1 output tokens/day]", options={"prompt": 9}) as bench:
        assert (await embed(bench)).code == "200"
        assert (await embed(bench)).code == "budget_exceeded"
        assert (bench.records[0].input_tokens, bench.records[0].output_tokens, bench.records[0].source) == (9, 0, "reported")
        assert bench.records[0].cost_nano_usd == 9 * 500


@pytest.mark.parametrize("asked", [{"encoding_format": "base64"}, {"encoding_format": "float", "dimensions": 8}, {}])
async def test_vectors_pass_as_they_came(tmp_path: Path, asked: dict[str, Any]) -> None:
    """One for each input, in the form that was asked for."""
    async with running(tmp_path, limits="[1000 tokens/day]") as bench:
        reply = await embed(bench, ["a", "b", "a"], **asked)
        vectors = [one["embedding"] for one in reply.json["data"]]
        assert len(vectors) == 3 and vectors[0] == vectors[2] != vectors[1]
        assert isinstance(vectors[0], str) == (asked.get("encoding_format") == "base64")
        assert len(vectors[0]) == 8 or "dimensions" not in asked
        assert reply.headers["x-sluicegate-cost-usd"] == f"{reply.json['usage']['prompt_tokens'] * 500 / 1e9:.9f}"


async def test_embeddings_without_usage_are_charged_as_held(tmp_path: Path) -> None:
    """The bound of their input."""
    async with running(tmp_path, limits="[1000 tokens/day]", options={"usage": "none", "prompt": 9}) as bench:
        assert (await embed(bench)).code == "200"
        assert (bench.record.input_tokens, bench.record.output_tokens, bench.record.source) == (9, 0, "counted")


@pytest.mark.parametrize("many", [{"n": 8}, {"best_of": 8}, {"n": 2, "prompt": ["a", "b", "c", "d"]}, {"prompt": [[5]] * 8}])
async def test_case_12_all_choices_are_held(tmp_path: Path, many: dict[str, Any]) -> None:
    """Eight answers of 100 tokens with 300 left: each is capped at an eighth of what is left."""
    async with running(tmp_path, limits="[300 tokens/day]", options={"completion": 100}) as bench:
        reply = await complete(bench, **{"prompt": "Tell me", "max_tokens": 100, **many})
        assert reply.code == "200" and bench.total <= 300
        assert int(reply.headers["x-sluicegate-max-tokens"]) < 300 // 8


async def test_without_a_cap_the_models_own_is_held_and_sent(tmp_path: Path) -> None:
    """Not OpenAI's 16."""
    async with running(tmp_path, max_output=40, options={"completion": 100}) as bench:
        reply = await complete(bench)
        assert (reply.json["usage"]["completion_tokens"], reply.headers["x-sluicegate-max-tokens"]) == (40, "40")


@STREAM
@EXTEND
async def test_an_echo_is_no_output(tmp_path: Path, stream: bool, extend: bool) -> None:
    """A long prompt comes back before a short answer: the stream is not cut, what is charged is what was produced."""
    prompt = "once upon a time " * 40
    async with running(tmp_path, limits="[1000 tokens/day]", extend=extend, options={"completion": 10}) as bench:
        reply = await complete(bench, [prompt, "short"], echo=True, max_tokens=10, n=2, stream=stream)
        assert reply.code == "200" and [text.startswith(prompt) for text in texts(reply)] == [True, True, False, False]
        assert (bench.record.output_tokens, bench.record.finish, bench.record.truncated) == (40, "stop", "")


@EXTEND
async def test_an_echo_without_usage_is_charged_at_the_cap(tmp_path: Path, extend: bool) -> None:
    """What shows is not relied on, since an upstream that does not echo may say what the prompt says: the cap is, also where output is else seen."""
    async with running(tmp_path, limits="[1000 tokens/day]", extend=extend, options={"completion": 10, "usage": "none"}) as bench:
        bench.slack = 10 + 7  # of the cap, and what frames a prompt in a chat
        assert (await complete(bench, "once upon a time", echo=True, max_tokens=20, stream=True)).code == "200"
        assert bench.record.output_tokens == 20


async def test_case_49_usage_of_a_stream_is_for_those_who_ask(tmp_path: Path) -> None:
    """It is asked for upstream in any case (50)."""
    async with running(tmp_path, limits="[1000 tokens/day]") as bench:
        plain = await complete(bench, max_tokens=10, stream=True)
        asked = await complete(bench, max_tokens=10, stream=True, stream_options={"include_usage": True})
        assert plain.done and plain.usages == [] and b"usage" not in plain.body
        assert asked.done and asked.usages[-1]["usage"]["completion_tokens"] == 10 and asked.usages[-1]["choices"] == []
        assert bench.record.source == "reported"


async def test_a_stream_is_cut_in_its_own_form(tmp_path: Path) -> None:
    """Where a budget runs out under it, each choice ends with "length" and says why."""
    more = "budget: {estimator: fixed, fixed_output: 40}"
    async with running(tmp_path, limits="[1000 tokens/day]", extend=True, options={"ttft": 5, "completion": 900, "tpot": 1}, more=more) as bench:
        bench.slack = 900  # what two choices may produce in 100 ms, as fast as they were seen to come: on a machine that stalls, all of it
        connection = await bench.connect()
        body = {"model": "chat", "prompt": "Tell me", "user": "sk-key", "stream": True, "n": 2, "max_tokens": 450}
        with bench.held():
            connection.send(request(json.dumps(body).encode(), path="/v1/completions"))
            await bench.asked(1)
            other = asyncio.create_task(complete(bench, max_tokens=600))
            await bench.asked(2)
        reply = await connection.rest()
        await other
        assert (reply.truncated, reply.done, reply.finishes) == ("budget", True, {0: "length", 1: "length"})
        assert reply.events[-1]["object"] == "text_completion" and reply.events[-1]["id"] == reply.events[0]["id"]
        assert bench.total <= 1000


@pytest.mark.parametrize(("path", "field"), [("/v1/completions", "prompt"), ("/v1/embeddings", "input")])
async def test_case_4_an_exhausted_key_reaches_nothing(tmp_path: Path, path: str, field: str) -> None:
    """Whatever the path."""
    async with running(tmp_path, limits="[0 tokens/day]") as bench:
        reply = await bench.raw(request(json.dumps({"model": "chat", field: "x"}).encode(), path=path))
        assert (reply.status, bench.total) == (400, 0)
        assert (await bench.raw(request(json.dumps({"model": "none", field: "x"}).encode(), path=path))).code == "model_not_found"
        assert (await bench.raw(request(b"{", path=path))).code == "invalid_request"


async def test_one_budget_over_three_surfaces_at_once(tmp_path: Path) -> None:
    """Chats, completions and embeddings together stay within it."""
    async with running(tmp_path, limits="[2000 tokens/day]", extend=True, options={"completion": 60, "tpot": 1}) as bench:
        calls = [
            call
            for _ in range(15)
            for call in (bench.chat(max_tokens=60, stream=True), complete(bench, max_tokens=60, stream=True, n=2), embed(bench, "word " * 20))
        ]
        replies = await asyncio.gather(*calls)
        assert {reply.code for reply in replies} <= {"200", "budget_busy", "budget_exceeded"}
        assert 0 < bench.total <= 2000


@pytest.mark.parametrize("dialect", ["openai_chat", "anthropic_messages", "ollama"])
@STREAM
async def test_a_completion_at_any_provider(tmp_path: Path, dialect: str, stream: bool) -> None:
    """A prompt is what a user says; text, finish and usage come back as a completion's; what the dialect cannot say is a 400 that names it."""
    row = {"openai_chat": "mock", "anthropic_messages": "anthropic", "ollama": "ollama"}[dialect]
    provider = f"  other: {{provider: {row}, base_url: ROOT_URL, speaks: [{dialect}], tokenizer: o200k_base}}".replace(
        "mock, base_url: ROOT", "mock, base_url: BASE"
    )
    models = "  one: {deployments: [{provider: other, model: first, price: {input: 0.5, output: 1.0}}]}"
    async with running(tmp_path, limits="[1000 tokens/day]", providers=provider, models=models, options={"completion": 30}) as bench:
        fields = {"stop": ["zzz"], "temperature": 0.5, "seed": 7, "user": "sk-key"} | ({"stream_options": {"include_usage": True}} if stream else {})
        reply = await complete(bench, "Tell me", model="one", max_tokens=10, stream=stream, **fields)
        assert reply.code == "200", reply.body
        choices = reply.choices if stream else reply.json["choices"]
        assert texts(reply)[0] and [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["length"]
        last = reply.events[-1] if stream else reply.json
        assert (last["object"], last["usage"]["completion_tokens"], bench.record.output_tokens) == ("text_completion", 10, 10)
        assert (await complete(bench, ["a", "b"], model="one", max_tokens=10, stream=stream)).error["param"] == "prompt"
        two = await complete(bench, model="one", max_tokens=10, stream=stream, n=2)
        if dialect == "openai_chat":
            assert len(texts(two)) == 2 and bench.record.output_tokens == 20
        else:
            assert two.error["param"] == "n"


CHATS_ONLY = "  chats: {provider: mock, base_url: BASE_URL, speaks: [openai_chat], tokenizer: o200k_base}"
TWO = """
  two:
    deployments:
      - {provider: chats, model: first, price: {input: 0.5, output: 1.0}}
      - {provider: mock, model: second, price: {input: 0.5, output: 1.0}}
  one:
    deployments: [{provider: chats, model: first, price: {input: 0.5, output: 1.0}}]"""


@STREAM
async def test_a_completion_at_a_provider_that_takes_chats(tmp_path: Path, stream: bool) -> None:
    """The same form of answer, the same charge; what it cannot say goes to a deployment that can, and is a 400 where there is none."""
    async with running(tmp_path, limits="[1000 tokens/day]", providers=CHATS_ONLY, models=TWO, options={"completion": 10}) as bench:
        options = {"stream_options": {"include_usage": True}} if stream else {}
        reply = await complete(bench, model="one", max_tokens=10, stream=stream, **options)
        last = reply.events[-1] if stream else reply.json
        assert (reply.code, last["object"], last["usage"]["completion_tokens"]) == ("200", "text_completion", 10)
        assert len(texts(reply)) == 1 and texts(reply)[0] and (not stream or reply.done)
        assert (await complete(bench, model="two", max_tokens=10, stream=stream, echo=True)).code == "200"
        assert [record.deployment for record in bench.records] == ["chats/first", "mock/second"]
        refused = await complete(bench, model="one", max_tokens=10, stream=stream, echo=True)
        assert (refused.status, refused.error["param"]) == (400, "echo")


async def test_embeddings_go_where_there_are_some(tmp_path: Path) -> None:
    """They cannot be translated: the next deployment is asked, and where none has them it is a 400 at no cost."""
    async with running(tmp_path, limits="[1000 tokens/day]", providers=CHATS_ONLY, models=TWO) as bench:
        assert (await embed(bench, model="two")).headers["x-sluicegate-deployment"] == "mock/second"
        refused = await embed(bench, model="one")
        assert (refused.status, refused.error["param"], bench.record.cost_nano_usd) == (400, "model", 0)
