"""The exact-match cache, over real connections: what hits, in which framing, what it costs, what is never kept (cases 8, 50, 66, 94 to 97)."""

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support_inloop import INPUT_NANO_USD, OUTPUT_NANO_USD, PROMPT_TOKENS, Bench, Reply, request, running
from support_sockets import read_request, scripted

COST_NANO_USD = PROMPT_TOKENS * INPUT_NANO_USD + 20 * OUTPUT_NANO_USD  # of the usual answer
ALL = "cache: {mode: all}"
STREAMED: dict[str, Any] = {"stream": True}
WITH_USAGE: dict[str, Any] = STREAMED | {"stream_options": {"include_usage": True}}
NO_USER: dict[str, Any] = {"user": ...}
TWO = "\n  acme: {keys: [{name: one, key: sk-one}, {name: two, key: sk-two}]}\n  globe: {keys: [{name: three, key: sk-three}]}"


def calls(bench: Bench) -> int:
    return bench.mock.truth.stats().total.requests


def told(answer: Reply) -> str:
    return answer.headers.get("x-sluicegate-cache", "")


def text(answer: Reply) -> str:
    return answer.text if answer.headers["content-type"].startswith("text/event-stream") else str(answer.json["choices"][0]["message"]["content"])


async def post(bench: Bench, path: str, key: str = "sk-key", more: bytes = b"", **body: Any) -> Reply:
    return await bench.raw(request(json.dumps(body).encode(), key, path=path, more=more))


# -- framing ------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [{}, STREAMED, WITH_USAGE], ids=["unary", "stream", "stream_with_usage"])
async def test_case_96_each_client_gets_its_own_framing(tmp_path: Path, first: dict[str, Any]) -> None:
    """However an answer came, it is kept once, and told in one piece or as a stream, with the usage chunk for who has asked alone (case 50)."""
    async with running(tmp_path, more=ALL, limits="[100k tokens/day]") as bench:
        came = await bench.chat(**first)
        assert told(came) == "miss"
        whole, stream, counted = [await bench.chat(**fields) for fields in ({}, STREAMED, WITH_USAGE)]
        assert [told(answer) for answer in (whole, stream, counted)] == ["hit"] * 3 and calls(bench) == 1
        assert whole.json["object"] == "chat.completion" and whole.headers["content-type"] == "application/json"
        assert {text(answer) for answer in (came, whole, stream, counted)} == {text(came)}
        for answer in (stream, counted):
            assert answer.done and answer.clean and answer.finishes == {0: "stop"} and answer.headers["content-type"].startswith("text/event-stream")
        assert stream.usages == [] and all(event["choices"] for event in stream.events)
        (usage,) = [event["usage"] for event in counted.usages]
        assert usage == whole.json["usage"] and (usage["prompt_tokens"], usage["completion_tokens"]) == (PROMPT_TOKENS, 20)
        assert bench.worker.gateway.caching.store.entries == 1


async def test_bytes_in_one_piece_are_those_that_came(tmp_path: Path) -> None:
    """The same answer to the last byte, id and time included; how old it is is told."""
    async with running(tmp_path, more=ALL) as bench:
        first, second = await bench.chat(), await bench.chat()
        assert second.body == first.body and "age" not in first.headers and int(second.headers["age"]) >= 0
        for name in ("x-sluicegate-model", "x-sluicegate-deployment", "content-type"):
            assert second.headers[name] == first.headers[name]
        assert second.headers["x-sluicegate-request-id"] != first.headers["x-sluicegate-request-id"] and "x-sluicegate-attempts" not in second.headers


CALLS = [{"name": "weather", "arguments": {"city": "Paris"}}, {"name": "time", "arguments": {}}]
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("weather", "time")]


@pytest.mark.parametrize("order", [({}, WITH_USAGE), (WITH_USAGE, {})], ids=["unary_first", "stream_first"])
async def test_calls_and_thinking_survive(tmp_path: Path, order: tuple[dict[str, Any], ...]) -> None:
    """Both ways: names, ids, arguments and what the model thought."""
    async with running(tmp_path, more=ALL, options={"tools": CALLS, "reasoning": "visible"}) as bench:
        answers = [await bench.chat(tools=TOOLS, max_tokens=200, **fields) for fields in order]
        assert [told(answer) for answer in answers] == ["miss", "hit"]
        whole = next(answer for answer in answers if answer.headers["content-type"] == "application/json")
        stream = next(answer for answer in answers if answer is not whole)
        message = whole.json["choices"][0]["message"]
        pieces = [choice["delta"] for choice in stream.choices]
        made: dict[int, dict[str, str]] = {}
        for call in [call for piece in pieces for call in piece.get("tool_calls") or ()]:
            known = made.setdefault(call["index"], {"id": "", "name": "", "arguments": ""})
            known["id"] += call.get("id") or ""
            known["name"] += call["function"].get("name") or ""
            known["arguments"] += call["function"].get("arguments") or ""
        assert list(made.values()) == [{"id": call["id"], **call["function"]} for call in message["tool_calls"]] and len(made) == 2
        thought = "".join([piece.get("reasoning_content") or "" for piece in pieces])
        assert thought and thought == message["reasoning_content"]


OTHERS = {
    "completions": ("/v1/completions", {"prompt": "Tell me"}),
    "responses": ("/v1/responses", {"input": "Tell me"}),
    "messages": ("/v1/messages", {"messages": [{"role": "user", "content": "Tell me"}], "max_tokens": 50}),
}


@pytest.mark.parametrize("model", ["chat", "claude"])
@pytest.mark.parametrize("first_streams", [False, True], ids=["unary_first", "stream_first"])
@pytest.mark.parametrize("dialect", OTHERS)
async def test_every_dialect(tmp_path: Path, dialect: str, first_streams: bool, model: str) -> None:
    """At a provider that speaks it and at one that does not: the same words, finish and usage in one piece and as a stream, from one call."""
    path, fields = OTHERS[dialect]
    providers = "  anthropic: {provider: anthropic, base_url: ROOT_URL, api_key: sk-a}"
    models = "  claude: {deployments: [{provider: anthropic, model: claude, price: {input: 0.5, output: 1.0}}]}"
    async with running(tmp_path, more=ALL, providers=providers, models=models) as bench:
        answers = {}
        for n, stream in enumerate((first_streams, not first_streams, True, False)):
            answer = await post(bench, path, model=model, stream=stream, **fields)
            assert (answer.status, told(answer)) == (200, "hit" if n else "miss"), answer.body
            answers.setdefault(stream, answer)
        assert calls(bench) == 1
        whole, stream = answers[False].json, answers[True].events
        if dialect == "completions":
            assert "".join([event["choices"][0]["text"] for event in stream]) == whole["choices"][0]["text"]
            assert [event["choices"][0]["finish_reason"] for event in stream][-1] == whole["choices"][0]["finish_reason"] == "stop"
        elif dialect == "responses":
            (last,) = [event["response"] for event in stream if event["type"] == "response.completed"]
            assert last == whole and whole["usage"]["output_tokens"] == 20
            said = [event["delta"] for event in stream if event["type"] == "response.output_text.delta"]
            assert "".join(said) == whole["output"][-1]["content"][0]["text"]
        else:
            deltas = [event["delta"] for event in stream if event["type"] == "content_block_delta"]
            assert "".join([delta["text"] for delta in deltas]) == whole["content"][0]["text"]
            (end,) = [event for event in stream if event["type"] == "message_delta"]
            assert end["delta"]["stop_reason"] == whole["stop_reason"] == "end_turn"
            assert end["usage"]["output_tokens"] == whole["usage"]["output_tokens"] == 20


async def test_embeddings(tmp_path: Path) -> None:
    """Are the same for the same input, in every mode; another input is another request."""
    async with running(tmp_path, more="cache: {mode: deterministic}") as bench:
        answers = [await post(bench, "/v1/embeddings", model="chat", input=text) for text in ("a", "a", "b")]
        assert [told(answer) for answer in answers] == ["miss", "hit", "miss"] and answers[0].body == answers[1].body


# -- what it costs ------------------------------------------------------------------------------------------------------------------------


async def test_case_66_a_hit_costs_nothing(tmp_path: Path) -> None:
    """Nothing is charged but the request, also in a stream; the record says what was saved; the metrics count hits and misses."""
    async with running(tmp_path, more=ALL, limits="[100 requests/day, 1000 tokens/day, $1/day]") as bench:
        for fields in ({}, {}, STREAMED):
            answer = await bench.chat(**fields)
        first, second, third = bench.records
        assert (first.cache, first.cost_nano_usd, first.saved_nano_usd, first.deployment) == ("miss", COST_NANO_USD, 0, "mock/mock-chat")
        for record in (second, third):
            assert (record.cache, record.cost_nano_usd, record.saved_nano_usd, record.deployment) == ("hit", 0, COST_NANO_USD, "cache")
            assert (record.status, record.finish, record.attempts, record.input_tokens, record.output_tokens) == (200, "stop", (), 0, 0)
        assert answer.headers["x-sluicegate-cost-usd"] == "0.000000000"
        used = {name: limit["used"] for name, limit in (await bench.usage()).items()}
        assert used == {"key key requests/day": 3, "key key tokens/day": PROMPT_TOKENS + 20, "key key usd/day": COST_NANO_USD / 1e9}
        scraped = (await bench.get("/metrics")).body.decode()
        for line in (
            'sluicegate_cache_requests_total{outcome="hit"} 2.0',
            'sluicegate_cache_requests_total{outcome="miss"} 1.0',
            'sluicegate_cache_answers_total{outcome="kept"} 1.0',
            "sluicegate_cache_entries 1.0",
            f"sluicegate_cache_saved_usd_total {2 * COST_NANO_USD / 1e9}",
        ):
            assert line in scraped


@pytest.mark.parametrize("limit", ["$0.00003/day", "40 tokens/day", "25 output tokens/day", "1 concurrent"])
async def test_a_hit_passes_where_a_budget_is_used_up(tmp_path: Path, limit: str) -> None:
    """Limits on tokens, dollars and concurrency do not bind it: the upstream is not asked. Any other request is refused."""
    async with running(tmp_path, more=ALL, limits=f"[{limit}]", options={"ttft": 1} if limit == "1 concurrent" else None) as bench:
        assert (await bench.chat(max_tokens=20)).status == 200
        if limit == "1 concurrent":
            bench.mocked(ttft=60_000)
            waiting = await bench.open(max_tokens=20, seed=1)
            while not bench.mock.truth.stats().total.in_flight:  # noqa: ASYNC110  (nothing to wait for)
                await asyncio.sleep(0.002)
        refused, hit, streamed = [await bench.chat(max_tokens=20, **fields) for fields in ({"seed": 2}, {}, STREAMED)]
        assert refused.status in (402, 429) and (told(refused), told(hit), told(streamed)) == ("miss", "hit", "hit")
        assert (hit.status, streamed.status, streamed.done) == (200, 200, True)
        if limit == "1 concurrent":
            waiting.close()
            bench.slack = 1000


async def test_a_hit_counts_as_a_request(tmp_path: Path) -> None:
    """In every scope's limit, shown as ever; at the end of it a hit is refused as any request is, and is no hit in the records."""
    async with running(tmp_path, more=ALL, limits="[3 requests/day, 1000 tokens/day]", org="[100 requests/day]") as bench:
        left = [(await bench.chat()).headers for _ in range(3)]
        assert [headers["x-ratelimit-remaining-requests"] for headers in left] == ["2", "1", "0"]
        assert [headers["x-ratelimit-remaining-tokens"] for headers in left[1:]] == [str(1000 - PROMPT_TOKENS - 20)] * 2
        refused, other = await bench.chat(), await bench.chat(seed=1)
        assert (refused.status, refused.code) == (other.status, other.code) == (429, "budget_exceeded")
        assert refused.error["message"] == other.error["message"]
        for name in ("x-ratelimit-remaining-requests", "x-ratelimit-remaining-tokens", "x-sluicegate-limited-by"):
            assert refused.headers[name] == other.headers[name]
        assert [record.cache for record in bench.records] == ["miss", "hit", "hit", "", "miss"] and bench.records[3].saved_nano_usd == 0
        used = {limit["name"]: limit["used"] for limit in (await bench.get("/v1/usage")).json["limits"]}
        assert set(used.values()) == {3, PROMPT_TOKENS + 20}
        await bench.quiet()
        sums = [count for count in (await bench.worker.ledger.show())[0] if ":requests:" in count.key]
        assert {counter.used for counter in sums} == {3}


async def test_nothing_is_allowed_means_no_hit(tmp_path: Path) -> None:
    """Case 8: a limit of no requests refuses a hit, too."""
    tenants = "\n  acme: {keys: [{name: one, key: sk-one}, {name: two, key: sk-two, limits: [0 requests/day]}]}"
    async with running(tmp_path, more="cache: {mode: all, scope: organization}", tenants=tenants) as bench:
        assert (await bench.chat("sk-one", **NO_USER)).status == 200
        assert (await bench.chat("sk-two", **NO_USER)).status in (400, 402, 403, 429)


# -- whose it is --------------------------------------------------------------------------------------------------------------------------


async def test_case_97_no_tenant_gets_anothers_answer(tmp_path: Path) -> None:
    """Nor can it tell from any header or figure whether another one has asked the same."""
    async with running(tmp_path, more=ALL, tenants=TWO) as bench:
        asked = await bench.chat("sk-one", **NO_USER)
        assert told(asked) == "miss"
        known, fresh = await bench.chat("sk-two", **NO_USER), await bench.chat("sk-two", seed=1, **NO_USER)
        assert told(known) == told(fresh) == "miss" and calls(bench) == 3
        varying = {"x-request-id", "x-sluicegate-request-id", "x-sluicegate-overhead-ms", "date", "content-length"}
        assert {n: v for n, v in known.headers.items() if n not in varying} == {n: v for n, v in fresh.headers.items() if n not in varying}
        assert told(await bench.chat("sk-three", **NO_USER)) == "miss" and told(await bench.chat("sk-one", **NO_USER)) == "hit"


@pytest.mark.parametrize(("scope", "expected"), [("organization", ["miss", "hit", "miss"]), ("global", ["miss", "hit", "hit"])])
async def test_sharing_is_a_choice(tmp_path: Path, scope: str, expected: list[str]) -> None:
    """Within an organization, or among all; who asks pays for a request of its own."""
    async with running(tmp_path, more=f"cache: {{mode: all, scope: {scope}}}", tenants=TWO) as bench:
        assert [told(await bench.chat(key, **NO_USER)) for key in ("sk-one", "sk-two", "sk-three")] == expected
        assert [record.key_id for record in bench.records] == ["acme/@one", "acme/@two", "globe/@three"]


async def test_a_key_that_may_not_use_the_model(tmp_path: Path) -> None:
    """Gets no answer of it, whoever has asked before."""
    tenants = "\n  acme: {keys: [{name: one, key: sk-one}, {name: two, key: sk-two, models: [free]}]}"
    async with running(tmp_path, more="cache: {mode: all, scope: global}", tenants=tenants) as bench:
        assert (await bench.chat("sk-one", **NO_USER)).status == 200
        answer = await bench.chat("sk-two", **NO_USER)
        assert (answer.status, answer.code, told(answer)) == (404, "model_not_found", "")


async def test_a_key_that_is_left_out(tmp_path: Path) -> None:
    """Gets no answer that is kept, gives none, and is told nothing of a cache."""
    tenants = "\n  acme: {keys: [{name: one, key: sk-one}, {name: two, key: sk-two, cache: off}]}"
    async with running(tmp_path, more="cache: {mode: all, scope: organization}", tenants=tenants) as bench:
        assert [told(await bench.chat(key, **NO_USER)) for key in ("sk-two", "sk-one", "sk-two", "sk-one")] == ["", "miss", "", "hit"]
        assert calls(bench) == 3


# -- what is looked up, and kept ------------------------------------------------------------------------------------------------------------


async def test_off_says_nothing(tmp_path: Path) -> None:
    """By default there is no cache, for a temperature of 0 neither; a model may have one of its own, or none."""
    models = "  cached: {deployments: [{provider: mock, model: other, price: {input: 0.5, output: 1.0}}], cache: {mode: deterministic, ttl: 1m}}"
    async with running(tmp_path, models=models) as bench:
        plain = [await bench.chat(temperature=0) for _ in range(2)]
        assert [told(answer) for answer in plain] == ["", ""] and calls(bench) == 2 and bench.records[0].cache == ""
        assert [told(await bench.chat(model="cached", temperature=0)) for _ in range(2)] == ["miss", "hit"]


async def test_case_95_only_a_temperature_of_0(tmp_path: Path) -> None:
    """In the deterministic mode; one that is not given is not 0."""
    async with running(tmp_path, more="cache: {mode: deterministic}") as bench:
        for fields, expected in (({}, ["skip:sampling"] * 2), ({"temperature": 0.5}, ["skip:sampling"] * 2), ({"temperature": 0}, ["miss", "hit"])):
            assert [told(await bench.chat(**fields)) for _ in range(2)] == expected
        assert told(await bench.chat(temperature=0, n=2)) == "skip:choices" and bench.record.cache == ""


async def test_what_a_client_may_say(tmp_path: Path) -> None:
    """no-store is as if there were no cache; no-cache asks anew, and what comes is kept instead of what there was."""
    async with running(tmp_path, more=ALL) as bench:
        body = bench.body()
        asked = [await bench.post(body, more=more) for more in (b"cache-control: no-store\r\n", b"", b"cache-control: no-cache\r\n", b"")]
        assert [told(answer) for answer in asked] == ["skip:no-store", "miss", "skip:no-cache", "hit"] and calls(bench) == 3
        assert asked[3].body == asked[2].body != asked[1].body


async def test_a_seed_is_added(tmp_path: Path) -> None:
    """In mode seeded to requests without one, the same for the same request; the provider gets it. One that is there stays."""
    bodies: list[dict[str, Any]] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            bodies.append(json.loads((await read_request(reader))[1]))
            answer = {
                **{"id": "c", "object": "chat.completion", "choices": [{"index": 0, "message": {"content": "a"}, "finish_reason": "stop"}]},
                "usage": {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6},
            }
            data = json.dumps(answer).encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(data), data))

    async with scripted(script) as port, running(tmp_path, more="cache: {mode: seeded}", upstream=port) as bench:
        bench.whole = False
        asked = [{}, {}, {"seed": 7}, {"seed": 7}, {"max_tokens": 9}, {"seed": None}]
        assert [told(await bench.chat(**fields)) for fields in asked] == ["miss", "hit", "miss", "hit", "miss", "miss"]
        added, own, other, null = [body["seed"] for body in bodies]
        assert isinstance(null, int)
        assert own == 7 and added != other and all(0 <= seed < 2**31 for seed in (added, other))
        assert told(await bench.post(bench.body(), more=b"cache-control: no-cache\r\n")) == "skip:no-cache" and bodies[-1]["seed"] == added


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
@pytest.mark.parametrize(
    ("options", "limit", "why"),
    [
        ({"completion": 60}, "60 tokens/day", "cut"),  # the cap was lowered to what is left
        ({"finish": "content_filter"}, "1000 tokens/day", "finish"),
        ({"usage": "none"}, "1000 tokens/day", "usage"),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else "",
)
async def test_what_another_budget_would_not_get_is_not_kept(tmp_path: Path, options: dict[str, Any], limit: str, why: str, stream: bool) -> None:
    """An answer that a cap of the gateway's has ended, that a filter has, or that came without usage: it is asked for anew."""
    async with running(tmp_path, more=ALL, options=options, limits=f"[{limit}]") as bench:
        bench.slack = 1000
        answer = await bench.chat(stream=stream)
        assert (answer.status, told(answer)) == (200, "miss")
        counts = bench.worker.metrics.counts()
        assert counts.cache_answers == {why: 1} and bench.worker.gateway.caching.store.entries == 0


async def test_the_clients_own_cap_is_a_whole_answer(tmp_path: Path) -> None:
    """It has asked for no more; with another cap it is another request."""
    async with running(tmp_path, more=ALL, options={"completion": 60}) as bench:
        asked = [await bench.chat(max_tokens=cap, stream=stream) for cap, stream in ((10, True), (10, False), (11, False))]
        assert [told(answer) for answer in asked] == ["miss", "hit", "miss"]
        assert asked[1].json["choices"][0]["finish_reason"] == "length" and asked[1].json["usage"]["completion_tokens"] == 10


async def test_a_stream_that_breaks_or_is_cut_is_not_kept(tmp_path: Path) -> None:
    """By the upstream, or by the gateway where the budget ends; nor is what was left half read, nor an error."""
    more, options = f"{ALL}\nbudget: {{estimator: fixed, fixed_output: 50}}", {"completion": 800, "tpot": 0.2}
    async with running(tmp_path, more=more, extend=True, limits="[1000 tokens/day]", options=options) as bench:
        bench.whole = False  # what may have been produced unseen is charged, too
        answers = await asyncio.gather(*(bench.chat(stream=True, max_tokens=900, seed=seed) for seed in (1, 2)))
        cut = [answer.truncated for answer in answers].count("budget")
        assert cut and bench.worker.gateway.caching.store.entries == 2 - cut
    async with running(tmp_path / "2", more=ALL) as bench:
        bench.mock.fault(count=1, cut_after=3)
        broken = await bench.chat(stream=True)
        assert not broken.done and told(broken) == "miss"
        bench.mock.fault(count=1, status=500)
        assert (await bench.chat()).status == 500 and told(await bench.chat()) == "miss"


async def test_what_is_too_large_is_not_kept(tmp_path: Path) -> None:
    """In one piece or as a stream."""
    async with running(tmp_path, more="cache: {mode: all, max_entry: 1KiB}", options={"completion": 400}) as bench:
        for fields in ({}, STREAMED, {"max_tokens": 10}):
            await bench.chat(**fields)
        assert bench.worker.metrics.counts().cache_answers == {"too_large": 2, "kept": 1}


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
async def test_what_is_told_inside_the_answer(tmp_path: Path, stream: bool) -> None:
    """The block says that it is from the cache and cost nothing; it is not kept with the answer. A cost that is asked for is 0, with the usage."""
    async with running(tmp_path, more=ALL) as bench:
        include = b"x-sluicegate-include: block, cost\r\n"
        asked = [await bench.post(bench.body(stream=stream), more=include) for _ in range(2)]
        plain = await bench.chat(stream=stream)
        blocks = [(answer.events[-1] if stream else answer.json)["sluicegate"] for answer in asked]
        assert [(block["cache"], block["cost_usd"], len(block["attempts"])) for block in blocks] == [("miss", COST_NANO_USD / 1e9, 1), ("hit", 0, 0)]
        assert [block["deployment"] for block in blocks] == ["mock/mock-chat"] * 2
        assert b"sluicegate" not in plain.body and told(plain) == "hit"
        if stream:
            (usage,) = [event["usage"] for event in asked[1].usages]
            assert (usage["cost_usd"], usage["prompt_tokens"], usage["completion_tokens"]) == (0, PROMPT_TOKENS, 20)


async def test_with_an_idempotency_key(tmp_path: Path) -> None:
    """The replay of a request comes first, and counts against nothing; a hit is a final answer, which is kept for its key."""
    async with running(tmp_path, more=ALL, limits="[100 requests/day]") as bench:
        marked = [await bench.post(bench.body(), more=b"idempotency-key: a\r\n") for _ in range(2)]
        assert [told(answer) for answer in marked] == ["miss", ""] and marked[1].headers["x-sluicegate-idempotent"] == "replayed"
        hit, replayed = [await bench.post(bench.body(), more=b"idempotency-key: b\r\n") for _ in range(2)]
        assert told(hit) == "hit" and replayed.headers["x-sluicegate-idempotent"] == "replayed" and replayed.body == hit.body == marked[0].body
        assert [record.cache for record in bench.records] == ["miss", "replay", "hit", "replay"]
        assert (await bench.usage())["key key requests/day"]["used"] == 2 and calls(bench) == 1


async def test_a_model_that_is_defined_anew_has_no_old_answers(tmp_path: Path) -> None:
    """Nor has one that goes elsewhere for an answer that was too long for it."""
    async with running(tmp_path, more=ALL) as bench:
        await bench.chat()
        policy = bench.worker.gateway.policy
        model = policy.models["chat"]
        changed = msgspec.structs.replace(model.deployments[0], model="other")
        again = msgspec.structs.replace(policy, models=policy.models | {"chat": msgspec.structs.replace(model, deployments=(changed,))})
        bench.worker.gateway.policy = again
        assert [told(await bench.chat()) for _ in range(2)] == ["miss", "hit"]


async def test_a_hit_that_had_to_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For its place among the requests, or for a slow cache: a stream whose client has been given signs of life ends as any other does."""
    more = f"{ALL}\nresilience: {{keep_alive: 10ms}}\nbudget: {{queue: {{max_wait: 5s}}}}"
    async with running(tmp_path, more=more, limits="[{amount: 20, unit: requests, per: second, window: bucket, burst: 1}]") as bench:
        await bench.chat()
        store = bench.worker.gateway.caching.store
        get = store.get

        async def slow(key: bytes) -> Any:
            await asyncio.sleep(0.03)
            return await get(key)

        monkeypatch.setattr(store, "get", slow)
        answers = await asyncio.gather(*(bench.chat(stream=True) for _ in range(3)))
        for answer in answers:
            assert (answer.status, answer.done, answer.clean) == (200, True, True) and answer.body.startswith(b": keep-alive")
        assert calls(bench) == 1 and any(record.waited_us for record in bench.records)


async def test_answers_under_content_rules(tmp_path: Path) -> None:
    """What is kept is what the client read; under other rules it is another answer, and a key without them does not get it."""
    rules = '{disclaimer: "Checked by nobody."}'
    tenants = (
        f"\n  acme: {{keys: [{{name: one, key: sk-one, rules: {rules}}}, {{name: two, key: sk-two, rules: {rules}}}, {{name: free, key: sk-free}}]}}"
    )
    async with running(tmp_path, more="cache: {mode: all, scope: organization}", tenants=tenants) as bench:
        first, whole, free = [await bench.chat(key, **NO_USER, **how) for key, how in (("sk-one", STREAMED), ("sk-one", {}), ("sk-free", {}))]
        assert [told(answer) for answer in (first, whole, free)] == ["miss", "hit", "miss"] and calls(bench) == 2
        assert text(first) == text(whole) and text(whole).endswith("Checked by nobody.") and "Checked" not in text(free)
        other = await bench.chat("sk-two", **NO_USER, **STREAMED)
        assert (told(other), text(other)) == ("hit", text(whole)), "the same rules, in a scope that is shared"
