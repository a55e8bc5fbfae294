"""Cases of cases.md on upstreams that fail: what the client is told, whether another deployment is tried, and what is charged."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from support_inloop import PROMPT, PROMPT_TOKENS, STREAM_HEAD, Bench, chunk, framed, request, running, sse, usage_chunk, whole
from support_sockets import Script, read_request, scripted

EXTEND = pytest.mark.parametrize("extend", [False, True], ids=["capped", "extended"])
STREAM = pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
LIMITS = "[100k tokens/day, 100 requests/day]"
FAST = "resilience: {timeouts: {connect: 10s, first_byte: 700ms, first_token: 700ms, idle: 700ms}}"

ROUTE = {
    "providers": "  second: {provider: mock, base_url: BASE_URL, tokenizer: o200k_base}",
    "models": """
  two:
    deployments:
      - {provider: mock, model: one, price: {input: 0.5, output: 1.0}}
      - {provider: second, model: two, price: {input: 0.5, output: 1.0}}""",
}


def answering(data: bytes, *, close: bool = False) -> Script:
    """An upstream that answers every request with these bytes."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            writer.write(data)
            await writer.drain()
            if close:
                return

    return script


async def requests_used(bench: Bench) -> int:
    return int((await bench.usage())["key key requests/day"]["used"])


# -- what the client is told --------------------------------------------------------------------------------------------------------------


@STREAM
@pytest.mark.parametrize("retry_after", ["12", "Wed, 21 Oct 2099 07:28:00 GMT"])
@pytest.mark.parametrize("status", [429, 503])
async def test_case_33_retry_after_is_passed_on_under_its_own_name(tmp_path: Path, status: int, retry_after: str, stream: bool) -> None:
    """A bare `retry-after`, in seconds; a day far off is an hour."""
    async with running(tmp_path, limits=LIMITS) as bench:
        bench.mock.fault(count=1, status=status, retry_after=retry_after)
        answer = await bench.chat(stream=stream)
        assert (answer.status, answer.headers["retry-after"]) == (status, "12" if retry_after == "12" else "3600")
        assert answer.code == ("upstream_rate_limited" if status == 429 else "upstream_error")


@STREAM
async def test_case_35_a_422_is_a_422(tmp_path: Path, stream: bool) -> None:
    """Never a 200 with nothing in it: status, message and a record; nothing is charged but the request."""
    async with running(tmp_path, limits=LIMITS) as bench:
        bench.mock.fault(count=2, status=422, message="unknown parameter", code="unknown_parameter")
        for _ in range(2):
            answer = await bench.chat(stream=stream)
            assert (answer.status, answer.error["message"], answer.code) == (422, "unknown parameter", "unknown_parameter")
            assert (bench.record.status, bench.record.error, bench.record.attempts[0].outcome) == (422, "unknown_parameter", "422")
        assert await requests_used(bench) == 2


@STREAM
@pytest.mark.parametrize("status", [200, 302, 400, 403, 404, 429, 500, 502, 503, 504, 520, 529])
async def test_case_36_html_is_never_passed_on(tmp_path: Path, status: int, stream: bool) -> None:
    """Whatever the status: a JSON error in the client's dialect with a status that says the same, and none of the page in it."""
    page = b"<html><body>secret intranet page</body></html>"
    data = whole(status, page, kind="text/html")
    async with scripted(answering(data)) as port, running(tmp_path, upstream=port, limits=LIMITS) as bench:
        bench.whole = False
        answer = await bench.chat(stream=stream, max_tokens=20)
        assert (answer.headers["content-type"], b"<html>" in answer.body, b"intranet" in answer.body) == ("application/json", False, False)
        expected = {200: 502, 302: 502, 403: 502, 404: 502, 520: 502, 529: 503}.get(status, status)
        assert (answer.status, bool(answer.error["message"])) == (expected, True)
        in_doubt = status in (200, 502, 504, 520)
        assert (await bench.usage())["key key tokens/day"]["used"] == (PROMPT_TOKENS + 20 if in_doubt else 0)


@STREAM
@pytest.mark.parametrize(("inside", "status"), [(429, 429), (500, 500), (503, 503), (400, 400), (401, 502), (529, 503)])
async def test_case_37_an_error_inside_a_200_is_that_error(tmp_path: Path, inside: int, status: int, stream: bool) -> None:
    """Status 200 around an error: told as what it is, not billed, tried elsewhere where that may help."""
    async with running(tmp_path, limits=LIMITS, **ROUTE) as bench:
        bench.mock.fault(count=1, error_in_200=inside, message="slow down", retry_after=7)
        answer = await bench.chat(stream=stream)
        assert answer.status == status
        if status in (429, 503):
            assert answer.headers["retry-after"] == "7"
        bench.mock.fault(count=1, model="one", error_in_200=inside)
        answer = await bench.chat(model="two", stream=stream, max_tokens=20)
        assert answer.status == (200 if inside != 400 else 400)


@STREAM
@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"{}", b'{"choices": null}', b'"x"', b"{" * 50, b'{"object": "chat.completion"}', b"data: x"])
async def test_a_200_without_an_answer_is_a_502(tmp_path: Path, body: bytes, stream: bool) -> None:
    """Whatever it says, it is no answer; it may have been billed, so it is charged."""
    async with scripted(answering(whole(200, body))) as port, running(tmp_path, upstream=port, limits=LIMITS) as bench:
        bench.whole = False
        answer = await bench.chat(stream=stream, max_tokens=20)
        assert (answer.status, answer.code) == (502, "upstream_error")
        assert (await bench.usage())["key key tokens/day"]["used"] == PROMPT_TOKENS + 20


@STREAM
@pytest.mark.parametrize("status", [400, 401, 404, 429, 500])
async def test_case_102_no_credential_leaves_the_gateway(tmp_path: Path, status: int, stream: bool) -> None:
    """An upstream that echoes our key, plain or percent-encoded, or one that looks like any vendor's: masked in the answer and the record."""
    secret = "sk-provider-secret"
    encoded = "".join(f"%{ord(c):02X}" for c in secret)
    message = f"bad key {secret} at https://x/?key=AIzaSyD1234567890abcdefghi and {encoded} and {encoded.replace('%', '%25')} Bearer abcdef123456"
    async with running(tmp_path, limits=LIMITS) as bench:
        bench.mock.fault(count=1, status=status, message=message, code=secret)
        answer = await bench.chat(stream=stream)
        shown = answer.body.decode() + str(answer.headers) + str(bench.record)
        for part in (secret, "AIzaSyD1234567890", "abcdef123456", encoded, encoded.lower()):
            assert part not in shown


async def test_case_102_no_credential_leaves_inside_a_stream(tmp_path: Path) -> None:
    """The same in an error event in the middle."""
    event = {"error": {"message": "bad key sk-provider-secret", "code": 401}}
    data = STREAM_HEAD + framed(sse(chunk("ab"), event), last=True)
    async with scripted(answering(data)) as port, running(tmp_path, upstream=port, limits=LIMITS) as bench:
        bench.whole = False
        answer = await bench.chat(stream=True)
        assert (b"sk-provider-secret" in answer.body, answer.error["code"]) == (False, "upstream_error")


WHOLE = {
    "id": "c1", "object": "chat.completion", "created": 1, "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello you"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11},
}  # fmt: skip


@EXTEND
@pytest.mark.parametrize("asked", [False, True], ids=["no usage", "usage"])
@pytest.mark.parametrize("kind", ["application/json", "application/json; charset=utf-8", "text/plain"])
async def test_a_whole_answer_to_a_streamed_request_is_told_as_a_stream(tmp_path: Path, kind: str, asked: bool, extend: bool) -> None:
    """An upstream that ignores `stream` and answers in JSON has answered, and is paid: charged by its usage, and nobody else is asked.

    The client gets a stream made of it. Passing the JSON on would be simpler, but the official `openai` package reads a JSON body of a streamed
    request as a stream without events: its user would see an empty answer and no error.
    """
    async with scripted(answering(whole(200, json.dumps(WHOLE).encode(), kind=kind))) as port, running(
        tmp_path, upstream=port, limits=LIMITS, extend=extend, **ROUTE
    ) as bench:  # fmt: skip
        bench.truth = (9, 2)
        answer = await bench.chat(model="two", stream=True, max_tokens=20, **({"stream_options": {"include_usage": True}} if asked else {}))
        assert (answer.status, answer.headers["content-type"].partition(";")[0], answer.done, answer.clean) == (200, "text/event-stream", True, True)
        assert (answer.text, answer.finishes, len(answer.usages)) == ("Hello you", {0: "stop"}, int(asked))
        assert answer.headers["x-sluicegate-deployment"] == "mock/one"
        assert list(bench.mock.calls) == []
        assert (bench.record.output_tokens, bench.record.finish, bench.record.source) == (2, "stop", "reported")


@EXTEND
async def test_a_whole_answer_without_usage_is_metered_by_its_text(tmp_path: Path, extend: bool) -> None:
    """It came in one piece, so its tokens are counted, at every provider."""
    body = {name: value for name, value in WHOLE.items() if name != "usage"}
    async with scripted(answering(whole(200, json.dumps(body).encode()))) as port, running(
        tmp_path, upstream=port, limits=LIMITS, extend=extend
    ) as bench:  # fmt: skip
        bench.truth, bench.slack = (9, 2), 20
        answer = await bench.chat(stream=True, max_tokens=20)
        assert (answer.text, answer.done) == ("Hello you", True)


# -- elsewhere, or not --------------------------------------------------------------------------------------------------------------------


@STREAM
@pytest.mark.parametrize("status", [401, 402, 403, 408, 409, 429, 500, 502, 503, 504, 529])
async def test_case_41_and_46_another_deployment_answers(tmp_path: Path, status: int, stream: bool) -> None:
    """Faults of the account, of the deployment and of the moment move on, also before a stream's first event; one request is counted."""
    async with running(tmp_path, limits=LIMITS, **ROUTE) as bench:
        bench.mock.fault(count=1, model="one", status=status)
        answer = await bench.chat(model="two", stream=stream, max_tokens=20)
        assert (answer.status, answer.headers["x-sluicegate-deployment"]) == (200, "second/two")
        assert await requests_used(bench) == 1
        in_doubt = status in (408, 502, 504)
        assert bench.record.output_tokens == (40 if in_doubt else 20)
        bench.slack = 20 + PROMPT_TOKENS if in_doubt else 0


@STREAM
@pytest.mark.parametrize("text", ["Your credit balance is too low", "insufficient_quota"])
async def test_case_46_an_account_without_money_moves_on(tmp_path: Path, text: str, stream: bool) -> None:
    """A 400 that says so is no fault of the caller's."""
    async with running(tmp_path, limits=LIMITS, **ROUTE) as bench:
        bench.mock.fault(count=1, model="one", status=400, message=text)
        assert (await bench.chat(model="two", stream=stream)).headers["x-sluicegate-deployment"] == "second/two"


@STREAM
@pytest.mark.parametrize("status", [400, 413, 415, 422])
async def test_case_40_the_callers_fault_stays_the_callers(tmp_path: Path, status: int, stream: bool) -> None:
    """A request that is wrong is wrong everywhere: told at once, the second deployment is not called."""
    async with running(tmp_path, limits=LIMITS, **ROUTE) as bench:
        bench.mock.fault(count=1, model="one", status=status, message="context too long")
        answer = await bench.chat(model="two", stream=stream)
        assert (answer.status, len(bench.mock.calls)) == (status, 1)


@STREAM
async def test_case_84_a_stream_that_begins_with_an_error_has_a_real_status(tmp_path: Path, stream: bool) -> None:
    """Both deployments answer 500: that status, in JSON, not an empty stream of status 200."""
    async with running(tmp_path, limits=LIMITS, **ROUTE) as bench:
        bench.mock.fault(count=2, status=500, message="overloaded")
        answer = await bench.chat(model="two", stream=stream)
        assert (answer.status, answer.headers["content-type"], answer.error["message"]) == (500, "application/json", "overloaded")
        assert answer.headers["x-sluicegate-attempts"] == "mock/one:500,second/two:500"


@pytest.mark.parametrize("first", [b": wait\n\n", sse(chunk()), b"event: x\ndata: {}\n\n", b""])
@pytest.mark.parametrize("how", ["error", "fin", "silence", "broken line", "clean end"])
async def test_case_38_before_the_first_output_another_deployment_is_tried(tmp_path: Path, first: bytes, how: str) -> None:
    """Role, comments and unknown events bind to nothing: an error, an end, silence or a broken line after them still moves on."""
    rest = {"error": sse({"error": {"message": "no", "code": 500}}), "broken line": b"data: {bro\n\n"}.get(how, b"")
    ends = how in ("error", "broken line", "clean end")

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(STREAM_HEAD + framed(first) + framed(rest, last=ends))
        if how == "silence":
            await reader.read()

    async with scripted(script) as port:
        providers = "  second: {provider: mock, base_url: BASE_URL, tokenizer: o200k_base}"
        async with running(
            tmp_path, upstream=port, limits=LIMITS, more=FAST if how == "silence" else "", models=ROUTE["models"], providers=providers
        ) as bench:
            bench.slack = 20 + PROMPT_TOKENS  # the first may have billed; an error event says that it has not
            answer = await bench.chat(model="two", stream=True, max_tokens=20)
            assert (answer.code, answer.headers["x-sluicegate-deployment"], answer.done) == ("200", "second/two", True)
            assert bench.record.output_tokens == (20 if how == "error" else 40)
            assert len(bench.record.attempts) == 2


ENDS = [sse(None), b": wait\n\n" + sse(None), sse({"choices": [], "usage": None}, None), b"event: x\ndata: {}\n\n" + sse(None), b""]


@EXTEND
@pytest.mark.parametrize("dialect", ["chat", "messages"])
@pytest.mark.parametrize("said", ENDS)
async def test_case_39_and_74_an_end_of_nothing_is_no_answer(tmp_path: Path, said: bytes, dialect: str, extend: bool) -> None:
    """A stream that is nothing but its `[DONE]` is told, tried elsewhere and charged as one that is empty: its request may have been billed."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(STREAM_HEAD + framed(said, last=True))

    async with (
        scripted(script) as port,
        running(tmp_path, upstream=port, limits=LIMITS, extend=extend, models=ROUTE["models"], providers=ROUTE["providers"]) as bench,
    ):
        bench.truth, bench.slack = (PROMPT_TOKENS, 0), 20
        answer = await bench.chat(stream=True, max_tokens=20) if dialect == "chat" else await bench.raw(messages("chat"))
        assert (answer.status, answer.headers["content-type"]) == (502, "application/json")
        assert answer.error["code"] == "upstream_error"
        await bench.quiet()
        assert [attempt.outcome for attempt in bench.record.attempts] == ["incomplete"]
        assert (bench.record.input_tokens, bench.record.output_tokens, bench.record.source) == (PROMPT_TOKENS, 20, "counted" if extend else "held")
        answer = await bench.chat(model="two", stream=True, max_tokens=20) if dialect == "chat" else await bench.raw(messages("two"))
        assert (answer.status, answer.headers["x-sluicegate-deployment"]) == (200, "second/two")
        bench.truth, bench.slack = (3 * PROMPT_TOKENS, 20), 40


def messages(model: str) -> bytes:
    asked = {"model": model, "stream": True, "max_tokens": 20, "messages": [{"role": "user", "content": PROMPT}], "metadata": {"user_id": "sk-key"}}
    return request(json.dumps(asked).encode(), path="/v1/messages")


# -- in the middle ------------------------------------------------------------------------------------------------------------------------


@EXTEND
@pytest.mark.parametrize("cut", ["fin", "rst"])
@pytest.mark.parametrize("after", [1, 3, 40])
async def test_case_38_and_39_a_stream_that_is_cut_is_an_error(tmp_path: Path, after: int, cut: str, extend: bool) -> None:
    """After the first output: one error event, no `[DONE]`, an unclean end; charged at least what came, at most what may have come."""
    options = {"completion": 60, "cut_after": after, "cut": cut, "tpot": 0.5}
    async with running(tmp_path, limits=LIMITS, extend=extend, options=options) as bench:
        answer = await bench.chat(stream=True, max_tokens=60)
        assert (answer.status, answer.clean, answer.done) == (200, False, False)
        assert (answer.error["code"], sum("error" in event for event in answer.events)) == ("upstream_error", 1)
        assert answer.text.count(" ") == after
        assert bench.record.error == "upstream_error"
        bench.slack = 60


@EXTEND
async def test_case_38_a_stream_that_falls_silent_is_an_error(tmp_path: Path, extend: bool) -> None:
    """Nothing more within the idle limit: the same."""
    async with running(tmp_path, limits=LIMITS, extend=extend, more=FAST, options={"completion": 60, "stall_after": 5}) as bench:
        answer = await bench.chat(stream=True, max_tokens=60)
        assert (answer.clean, answer.done, answer.error["code"], answer.text.count(" ")) == (False, False, "upstream_timeout", 5)
        bench.slack = 60


@STREAM
@pytest.mark.parametrize("phase", ["no answer", "head", "body"])
@pytest.mark.parametrize("how", ["fin", "silence", "garbage"])
async def test_an_upstream_that_fails_in_every_phase(tmp_path: Path, phase: str, how: str, stream: bool) -> None:
    """After the request was written, nothing is known: 502 or 504, input and cap charged, one request counted."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n"
    said = {"no answer": b"", "head": head, "body": head + b'\r\n{"choices": ['}[phase]

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(said + (b"\x00\xff garbage\r\n\r\n" if how == "garbage" else b""))
        if how != "fin":
            await reader.read()

    async with scripted(script) as port, running(tmp_path, upstream=port, limits=LIMITS, more=FAST) as bench:
        bench.truth, bench.slack = (PROMPT_TOKENS, 0), 20
        answer = await bench.chat(stream=stream, max_tokens=20)
        assert answer.status in (502, 504)
        assert (answer.headers["content-type"], answer.error["type"]) == ("application/json", "upstream_error")
        assert (bench.record.input_tokens, bench.record.output_tokens, bench.record.source) == (PROMPT_TOKENS, 20, "held")
        assert await requests_used(bench) == 1


@pytest.mark.parametrize("outcome", ["charge", "input_only", "free"])
async def test_what_an_unknown_outcome_costs_is_the_operators_choice(tmp_path: Path, outcome: str) -> None:
    """Everything, the input, or nothing."""
    more = f"budget: {{unknown_outcome: {outcome}}}"
    async with running(tmp_path, limits=LIMITS, more=more, options={"cut_after": 0}) as bench:
        answer = await bench.chat(max_tokens=20)
        assert answer.status == 502
        charge = {"charge": PROMPT_TOKENS + 20, "input_only": PROMPT_TOKENS, "free": 0}[outcome]
        assert (await bench.usage())["key key tokens/day"]["used"] == charge
        bench.slack = 20 + PROMPT_TOKENS


async def test_a_reused_connection_that_the_upstream_closes_is_replaced(tmp_path: Path) -> None:
    """It closed what had been idle, without a byte: the call goes out once more, on a new connection, and is one request."""
    served = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        await read_request(reader)
        served += 1
        usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": 1}
        answer = {"choices": [{"index": 0, "message": {"content": "a"}, "finish_reason": "stop"}], "usage": usage}
        writer.write(whole(200, json.dumps(answer).encode()))
        await reader.readuntil(b"\r\n\r\n")  # the next request is not answered: the connection closes

    async with scripted(script) as port, running(tmp_path, upstream=port, limits=LIMITS) as bench:
        bench.truth = (3 * PROMPT_TOKENS, 3)
        assert [(await bench.chat()).code for _ in range(3)] == ["200"] * 3
        assert (served, await requests_used(bench)) == (3, 3)


@EXTEND
async def test_an_error_event_after_output(tmp_path: Path, extend: bool) -> None:
    """The upstream's message reaches the client in one event of ours; what came before is charged."""
    data = STREAM_HEAD + framed(sse(chunk("one two three"), {"error": {"message": "the model crashed", "code": 500}}, None), last=True)
    async with scripted(answering(data)) as port, running(tmp_path, upstream=port, limits=LIMITS, extend=extend) as bench:
        bench.truth, bench.slack = (PROMPT_TOKENS, 3), 20
        answer = await bench.chat(stream=True, max_tokens=20)
        assert (answer.text, answer.error["message"], answer.done, answer.clean) == ("one two three", "the model crashed", False, False)
        assert bench.record.output_tokens >= 3


@pytest.mark.parametrize("n", [2, 3])
async def test_not_every_choice_has_ended(tmp_path: Path, n: int) -> None:
    """One of several choices finished, usage so far, and the connection ends without `[DONE]`: an error, charged as such."""
    events = [chunk("a b", index=0), chunk("c", index=1), chunk(finish="stop", index=0), usage_chunk(5, 3)]
    data = STREAM_HEAD + framed(sse(*events), last=True)
    async with scripted(answering(data)) as port, running(tmp_path, upstream=port, limits=LIMITS) as bench:
        bench.truth, bench.slack = (PROMPT_TOKENS, 3), 20 * n
        answer = await bench.chat(stream=True, n=n, max_tokens=20)
        assert (answer.clean, answer.done, answer.error["code"]) == (False, False, "upstream_error")


async def test_case_99_of_upstreams_slow_trickle_is_bounded(tmp_path: Path) -> None:
    """Comments for ever, and no output: the total limit ends it."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(STREAM_HEAD)
        while True:
            writer.write(framed(b": wait\n\n"))
            await asyncio.sleep(0.02)

    more = "resilience: {timeouts: {total: 400ms}}"
    async with scripted(script) as port, running(tmp_path, upstream=port, limits=LIMITS, more=more) as bench:
        bench.truth, bench.slack = (PROMPT_TOKENS, 0), 20
        answer: Any = await bench.chat(stream=True, max_tokens=20)
        assert (answer.status, answer.code) == (504, "upstream_timeout")
