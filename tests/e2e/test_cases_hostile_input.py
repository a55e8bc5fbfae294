"""Cases of cases.md on what clients send: malformed, impossible, or meant to get something for nothing. None reaches a ledger or an upstream."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from sluicegate.config.fields import ConfigError
from sluicegate.config.load import load_text
from support_inloop import PROMPT, Bench, config_text, fresh_redis, request, running

LIMITS = "[2000 tokens/day, $1/day, 5000 tokens/minute, 4 concurrent]"
TWO_KEYS = """
  acme:
    keys: [{name: key, key: sk-key, limits: [1000 tokens/day]}, {name: other, key: sk-other}]"""
ROOT = {"model": "chat", "messages": [{"role": "user", "content": PROMPT}]}


async def refuses(bench: Bench, bodies: list[Any], status: int = 400) -> list[Any]:
    """Sends each; all are refused in JSON, nothing is held or used, nothing reaches the upstream. Returns the errors."""
    errors = []
    for body in bodies:
        answer = await bench.post(body if isinstance(body, bytes) else json.dumps(body).encode())
        assert (answer.status, answer.headers["content-type"]) == (status, "application/json"), (body, answer.body)
        assert answer.error["type"] == "invalid_request_error"
        assert answer.error["message"] and answer.error["code"]
        errors.append(answer.error)
    assert list(bench.mock.calls) == []
    counters, holds = await bench.ledger.show()
    assert (holds, [counter for counter in counters if counter.used or counter.held]) == ([], [])
    return errors


NOT_JSON = [
    b"", b" ", b"{", b'{"a":', b"\xff", b"{}}", b'{"model": "chat"', b"model=chat",
    b"\xef\xbb\xbf{}", b'{"model": "\xff\xfe"}', b"nan", b"[" * 100_000,
    b'{"a":' * 100_000, b"{'model': 'chat'}", b'{"model": "chat",}', b"\x00", b'{"messages": [{"role": "user", "content": "\xed\xa0\x80"}]}',
]  # fmt: skip


async def test_case_88_malformed_json_is_a_400(tmp_path: Path) -> None:
    """Not a 500 that clients try again for ever, and never taken as an empty object."""
    async with running(tmp_path, limits=LIMITS) as bench:
        await refuses(bench, NOT_JSON)


async def test_case_89_json_that_is_no_object_is_a_400(tmp_path: Path) -> None:
    """A list, null, a number, a text, a boolean."""
    async with running(tmp_path, limits=LIMITS) as bench:
        await refuses(bench, [[], None, 1, "x", True, 1.5, [ROOT], ""])


CAPS = ("max_tokens", "max_completion_tokens")
BAD_CAPS: list[Any] = [0, -1, -5, 1.5, "10", "abc", [], {}, True, False, [5], 0.0, -0.5, 10**400]


@pytest.mark.parametrize("field", CAPS)
async def test_case_92_impossible_output_caps(tmp_path: Path, field: str) -> None:
    """Zero, negative, fractional, text: a 400 that names the field, beside a valid cap in the other field too."""
    other = CAPS[1 - CAPS.index(field)]
    async with running(tmp_path, limits=LIMITS) as bench:
        errors = await refuses(bench, [ROOT | {field: cap} for cap in BAD_CAPS])
        errors += await refuses(bench, [ROOT | {other: 5, field: cap} for cap in BAD_CAPS])
        assert {error["param"] for error in errors} <= {field, None}
        assert sum(error["param"] == field for error in errors) >= len(errors) - 2


@pytest.mark.parametrize("field", CAPS)
async def test_case_92_null_is_absent(tmp_path: Path, field: str) -> None:
    """Then the model's own maximum counts; one field reaches the upstream, with what is held."""
    async with running(tmp_path, limits=LIMITS, max_output=70, options={"completion": 100}) as bench:
        answer = await bench.chat(**{field: None})
        assert (answer.code, answer.headers["x-sluicegate-max-tokens"]) == ("200", "70")
        assert json.loads(bench.mock.calls[-1].body)["max_tokens"] == 70
        assert "max_completion_tokens" not in bench.mock.calls[-1].body


@pytest.mark.parametrize("values", [(30, 40), (40, 30)])
async def test_case_92_of_two_caps_the_smaller_holds(tmp_path: Path, values: tuple[int, int]) -> None:
    """It is what is held, and the only one that is sent."""
    async with running(tmp_path, limits=LIMITS, options={"completion": 100}) as bench:
        await bench.chat(**dict(zip(CAPS, values, strict=True)))
        assert json.loads(bench.mock.calls[-1].body)["max_tokens"] == 30
        assert "max_completion_tokens" not in bench.mock.calls[-1].body
        assert bench.mock.truth.stats().total.completion_tokens == 30


@pytest.mark.parametrize("stream", [False, True])
async def test_case_104_a_negative_cap_gives_nothing_away(tmp_path: Path, stream: bool) -> None:
    """A cap of -1,000,000 is a 400, and a large request afterwards finds the budget as it was."""
    async with running(tmp_path, limits="[2000 tokens/day]", options={"completion": 500_000}) as bench:
        await refuses(bench, [ROOT | {"max_tokens": -1_000_000, "stream": stream}])
        answer = await bench.chat(max_tokens=500_000, stream=stream)
        assert answer.code == "200"
        assert bench.total == 2000


async def test_case_12_impossible_numbers_of_choices(tmp_path: Path) -> None:
    """n from 1 to 128, in every name under which an upstream may read it."""
    async with running(tmp_path, limits=LIMITS) as bench:
        bad = [0, -1, 129, 1.5, "2", [], 10**30, True]
        errors = await refuses(bench, [ROOT | {field: n} for field in ("n", "best_of", "n_cmpl") for n in bad])
        assert {error["param"] for error in errors} <= {"n", "best_of", "n_cmpl", None}


async def test_case_111_stream_is_true_false_or_null(tmp_path: Path) -> None:
    """A text or a number is neither."""
    async with running(tmp_path, limits=LIMITS) as bench:
        errors = await refuses(bench, [ROOT | {"stream": value} for value in ("false", "true", 1, 0, [], {}, "")])
        assert {error["param"] for error in errors} == {"stream"}
        assert (await bench.chat(stream=None)).headers["content-type"] == "application/json"
        assert (await bench.chat(stream=False)).headers["content-type"] == "application/json"
        assert (await bench.chat(stream=True)).done


BAD_FIELDS: list[tuple[str, dict[str, Any]]] = [
    ("stream_options", {"stream_options": 5}),
    ("stream_options.include_usage", {"stream": True, "stream_options": {"include_usage": "yes"}}),
    ("stop", {"stop": 5}),
    ("stop[1]", {"stop": ["a", 5]}),
    ("model", {"model": []}),
    ("model", {"model": ""}),
    ("model", {"model": "x" * 300}),
    ("model", {"model": None}),
    ("messages[0]", {"messages": ["x"]}),
    ("messages", {"messages": 5}),
    ("messages", {"messages": []}),
    ("messages", {"messages": None}),
    ("messages", {"messages": {"role": "user"}}),
    ("messages[0].role", {"messages": [{"content": "x"}]}),
    ("messages[0].role", {"messages": [{"role": 5, "content": "x"}]}),
    ("messages[0].content", {"messages": [{"role": "user", "content": 5}]}),
    ("messages[0].content[0].text", {"messages": [{"role": "user", "content": [{"type": "text", "text": None}]}]}),
    ("messages[0].content[0].text", {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}),
    ("messages[1].content[0]", {"messages": [ROOT["messages"][0], {"role": "user", "content": ["x"]}]}),  # type: ignore[index]
    ("messages[0].content[0].image_url", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
    ("messages[0].tool_calls", {"messages": [{"role": "assistant", "tool_calls": 5}]}),
    ("max_tokens", {"max_tokens": "abc"}),
    ("temperature", {"temperature": "hot"}),
    ("tools", {"tools": 5}),
    ("tools[0].function", {"tools": [{"type": "function"}]}),
    ("logit_bias", {"logit_bias": 5}),
    ("Max_Tokens", {"Max_Tokens": 5}),
    ("MESSAGES", {"MESSAGES": []}),
    ("models", {"models": ["chat", "other"]}),
]


@pytest.mark.parametrize("stream", [False, True])
async def test_case_114_wrong_types_are_named(tmp_path: Path, stream: bool) -> None:
    """Each is a 400 in JSON, streamed or not, whose `param` is the field."""
    async with running(tmp_path, limits=LIMITS) as bench:
        for param, fields in BAD_FIELDS:
            (error,) = await refuses(bench, [{**ROOT, "stream": stream, **fields}])
            assert str(error["param"]).startswith(param.partition("[")[0]), (param, error)
            assert error["param"] in (param, param.partition("[")[0], param.partition(".")[0]), (param, error)


@pytest.mark.parametrize("missing", ["model", "messages"])
async def test_case_114_missing_fields_are_named(tmp_path: Path, missing: str) -> None:
    """In OpenAI's words."""
    async with running(tmp_path, limits=LIMITS) as bench:
        (error,) = await refuses(bench, [{name: value for name, value in ROOT.items() if name != missing}])
        assert (error["param"], error["message"]) == (missing, f"Missing required parameter: '{missing}'.")


@pytest.mark.parametrize("amount", ["100000000000000000", "1e17", "9007199254740992", "9007199254740991", "4503599627370496", "1e400"])
@pytest.mark.parametrize("ledger", ["memory", "redis"])
async def test_case_119_amounts_beyond_2_53(tmp_path: Path, redis_url: str, amount: str, ledger: str) -> None:
    """What a double cannot hold exactly never reaches a script: alone, times the price, or times the number of choices."""
    with fresh_redis(redis_url) as (redis, _):
        url = redis if ledger == "redis" else "memory://"
        async with running(tmp_path, ledger=url, limits="[$1000/day]", options={"completion": 5}) as bench:
            for n in (1, 128):
                body = json.dumps(ROOT | {"n": n}).encode()[:-1] + f', "max_tokens": {amount}}}'.encode()
                answer = await bench.post(body)
                assert (answer.status, answer.error["param"]) == (400, "max_tokens")
            assert list(bench.mock.calls) == []


UNBOUNDED: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "file-1"}}]}]},
    {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}]}]},
    {"messages": [{"role": "assistant", "audio": {"id": "audio_1"}}, {"role": "user", "content": "x"}]},
    {"web_search_options": {}},
    {"plugins": [{"id": "web"}]},
    {"tools": [{"type": "web_search"}]},
    {"previous_response_id": "resp_1"},
    {"prompt": {"id": "pmpt_1"}},
    {"conversation": "conv_1"},
    {"data_sources": [{"type": "azure_search", "parameters": {}}]},
    {"search_parameters": {"mode": "on"}},
    {"enable_search": True},
    {"file_ids": ["file-1"]},
]


@pytest.mark.parametrize("fields", UNBOUNDED)
async def test_case_128_content_that_is_not_in_the_request(tmp_path: Path, fields: dict[str, Any]) -> None:
    """Where the model's context is known its whole is held; else the request is refused and says why."""
    async with running(tmp_path, limits="[2000 tokens/day]") as bench:
        (error,) = await refuses(bench, [{**ROOT, **fields}])
        assert (error["code"], error["message"].startswith("The input cannot be bounded")) == ("unbounded_input", True)
    async with running(tmp_path / "known", limits="[2000 tokens/day]", deployment=", context: 1500", options={"usage": "none"}) as bench:
        bench.slack = 2000  # nobody says what was used
        answer = await bench.chat(**fields)
        assert answer.code == "200"
        assert json.loads(bench.mock.calls[-1].body)["max_tokens"] == 500
        assert (await bench.chat(**fields)).code == "budget_exceeded"


async def test_case_128_nobody_waits_for_background_answers(tmp_path: Path) -> None:
    """A 400 that says so; asked for with false, it is an ordinary request."""
    async with running(tmp_path, limits="[2000 tokens/day]") as bench:
        (error,) = await refuses(bench, [ROOT | {"background": True}])
        assert (error["param"], "'background' is not supported" in error["message"]) == ("background", True)
        assert (await bench.chat(background=False)).code == "200"


@pytest.mark.parametrize(
    "message",
    [
        {"role": "x" * 30_000, "content": "a"},
        {"role": "tool", "content": "a", "tool_call_id": "x" * 30_000},
        {"role": "assistant", "tool_calls": [{"id": "x" * 30_000, "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{}", "x": "x" * 30_000}}]},
        {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "x" * 30_000}}]},
    ],
)
async def test_text_hidden_in_a_message_is_held(tmp_path: Path, message: dict[str, Any]) -> None:
    """30,000 characters do not pass as a handful of tokens, wherever in a message they are: templates render roles, ids and what they do not know."""
    async with running(tmp_path, limits="[2000 tokens/lifetime]") as bench:
        (error,) = await refuses(bench, [ROOT | {"messages": [message]}])
        assert error["code"] == "request_too_large"


async def test_half_a_surrogate_pair_is_replaced(tmp_path: Path) -> None:
    """Python's json writes a broken emoji as an escape; the upstream gets the replacement character, and the client its answer."""
    async with running(tmp_path, limits="[2000 tokens/day]") as bench:
        bench.whole = False
        assert (await bench.chat(messages=[{"role": "user", "content": "a\ud800b"}])).code == "200"
        assert json.loads(bench.mock.calls[-1].body)["messages"][0]["content"] == "a\ufffdb"


async def test_case_120_a_text_where_a_list_belongs() -> None:
    """`keys: sk-beta` is an error that names the field, never seven keys of one letter."""
    text = config_text(Path("d"), "http://127.0.0.1:9/v1", tenants="  acme: {keys: sk-beta}")
    with pytest.raises(ConfigError) as raised:
        load_text(text, {})
    assert "tenants.acme.keys" in str(raised.value)


async def test_case_93_ids_of_clients_are_theirs(tmp_path: Path) -> None:
    """The same x-request-id twice, from two tenants: two ids of ours, two records, and nothing of it upstream."""
    tenants = "\n  acme: {keys: [{name: a, key: sk-a}]}\n  beta: {keys: [{name: b, key: sk-b}]}"
    async with running(tmp_path, tenants=tenants) as bench:
        ids = []
        for key in ("sk-a", "sk-b", "sk-a"):
            answer = await bench.raw(request(bench.body(key), key, more=b"x-request-id: req-1\r\n"))
            ids.append(answer.headers["x-request-id"])
        assert len(set(ids)) == 3
        assert [(record.request_id, record.client_id) for record in bench.records] == [(id_, "req-1") for id_ in ids]
        assert all("req-1" not in str(call.headers) for call in bench.mock.calls)


async def test_case_103_metric_labels_are_bounded(tmp_path: Path) -> None:
    """A thousand made-up models and paths are one series each, whatever is in their names."""
    async with running(tmp_path) as bench:
        before = len((await bench.get("/metrics")).lines)
        client = await bench.connect()
        for i in range(300):
            client.send(request(bench.body(model=f'm{i}"\n{{}}')))
            assert (await client.rest()).status == 404
            client.send(request(b"{}", f"sk-{i}", path=f"/v1/x{i}"))
            assert (await client.rest()).status == 404
        shown = await bench.get("/metrics")
        assert len(shown.lines) - before < 60
        assert "m299" not in shown.body.decode()


@pytest.mark.parametrize("key", [b"", b"sk-no", b"sk-key\x00", b"\xff\xfe", b"sk-key sk-key", b"x" * 5000, b"SK-KEY"])
async def test_unknown_credentials(tmp_path: Path, key: bytes) -> None:
    """A 401 in OpenAI's form, whatever bytes are sent; the credential is not echoed."""
    async with running(tmp_path) as bench:
        body = bench.body()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer %b\r\ncontent-length: %d\r\n\r\n" % (key, len(body))
        answer = await bench.raw(head + body)
        assert answer.status in (400, 401)
        assert len(key) < 4 or key not in answer.body
        assert list(bench.mock.calls) == []


@pytest.mark.parametrize("field", [{"include_reasoning": False}, {"reasoning": {"exclude": True}}, {"show_nothing": True}], ids=str)
async def test_case_106_a_client_cannot_hide_output_from_an_extended_hold(tmp_path: Path, field: dict[str, Any]) -> None:
    """The provider shows all unless a client has it hidden: such a request is held as a cap, however short answers have been so far."""
    async with running(tmp_path, limits="[1000 tokens/day]", extend=True, tenants=TWO_KEYS, options={"completion": 5}) as bench:
        for _ in range(60):
            await bench.chat(key="sk-other", max_tokens=400, stream=True)
        bench.mocked(reasoning="hidden", reasoning_tokens=390, completion=400, tpot=1)
        await asyncio.gather(*[bench.chat(max_tokens=400, stream=True, **field) for _ in range(12)])
        await bench.quiet()
        produced = bench.mock.truth.stats().callers["sk-key"]
        assert 0 < produced.completion_tokens <= 1000 - produced.prompt_tokens
