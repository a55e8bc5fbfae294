"""The mock upstream over real sockets: what it answers, how it misbehaves when told to, and that its count is the truth."""

import asyncio
import json
import os
import signal
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httptools
import msgspec
import openai
import pytest

from sluicegate.core.meter import count
from sluicegate.core.waits import spent_ms, wait_ms
from sluicegate.mock import Mock, MockOptionError, MockOptions, Tally, from_mapping, openai_chat
from sluicegate.mock.allowance import Allowance
from sluicegate.mock.answers import Answer, plan, stream
from sluicegate.mock.text import DENSE, WORDS, words

PATH = "/v1/chat/completions"


class Client:
    """One connection to the mock, and the answer to one request at a time as it comes off the wire."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.reads: list[bytes] = []  # what each read of the socket brought

    @classmethod
    async def connect(cls, mock: Mock) -> "Client":
        host, port = mock.base_url.removeprefix("http://").removesuffix("/v1").split(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    def send(self, method: str, path: str, body: bytes = b"", **headers: str) -> None:
        lines = [f"{method} {path} HTTP/1.1", "host: mock", f"content-length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    async def read(self) -> "Response":
        """Until the answer is complete or the connection ends."""
        response = Response()
        parser = httptools.HttpResponseParser(response)
        while not response.complete:
            try:
                data = await self.reader.read(65536)
            except ConnectionResetError:
                response.ended = "reset"
                break
            if not data:
                response.ended = "closed"
                break
            self.reads.append(data)
            parser.feed_data(data)
        response.status = parser.get_status_code() if response.started else 0
        return response

    async def until(self, text: bytes) -> None:
        """Reads on until the text has come."""
        while text not in b"".join(self.reads):
            self.reads.append(await self.reader.read(65536))

    def close(self) -> None:
        self.writer.close()


class Response:
    """An answer, read to its end."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.body = b""
        self.started = self.complete = False
        self.status = 0
        self.ended = ""

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode().lower()] = value.decode()

    def on_headers_complete(self) -> None:
        self.started = True

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.complete = True

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The data of its events; [DONE] and what is not JSON as text."""
        found = []
        for block in self.body.decode().replace("\r\n", "\n").replace("\r", "\n").split("\n\n"):
            data = "\n".join(line.removeprefix("data: ") for line in block.split("\n") if line.startswith("data: "))
            try:
                found.append(json.loads(data))
            except ValueError:
                found.extend([block] if block else [])
        return found

    @property
    def text(self) -> str:
        return "".join(delta.get("content") or "" for delta in self.deltas())

    def deltas(self, choice: int = 0) -> list[dict[str, Any]]:
        choices = [part for event in self.events if isinstance(event, dict) for part in event.get("choices", [])]
        return [part["delta"] for part in choices if part["index"] == choice]

    @property
    def usages(self) -> list[Any]:
        return [event["usage"] for event in self.events if isinstance(event, dict) and event.get("usage")]

    @property
    def finishes(self) -> list[str]:
        choices = [part for event in self.events if isinstance(event, dict) for part in event.get("choices", [])]
        return [part["finish_reason"] for part in choices if part["finish_reason"]]


def chat(prompt: str = "hello", **fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": prompt}], **fields}).encode()


@pytest.fixture
async def mock() -> AsyncIterator[Mock]:
    mock = Mock(MockOptions(completion_tokens=5))
    await mock.start()
    yield mock
    await mock.stop()


@pytest.fixture
async def client(mock: Mock) -> AsyncIterator[Client]:
    client = await Client.connect(mock)
    yield client
    client.close()


async def ask(client: Client, prompt: str = "hello", headers: dict[str, str] | None = None, **fields: Any) -> Response:
    client.send("POST", PATH, chat(prompt, **fields), **(headers or {}))
    return await client.read()


async def ask_mock(client: Client, stream: bool = True, **overrides: Any) -> Response:
    """A call with overrides in its body."""
    return await ask(client, stream=stream, mock=overrides)


def totals(mock: Mock) -> Tally:
    return mock.stats().total


# -- words and lengths ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["o200k_base", "cl100k_base"])
def test_each_word_is_one_token(encoding: str) -> None:
    """Any run of the mock's words has as many tokens as words, so a gateway that counts with the tokenizer counts exactly."""
    assert all(count(word, encoding) == 1 for word in WORDS)
    for start in range(len(WORDS)):
        assert count(words(start, 250, "", False), encoding) == 250


def test_each_dense_character_is_one_token() -> None:
    """Dense text is one token per character, in o200k_base, alone and together."""
    assert len(DENSE) == 4
    assert [count(words(start, 400, "", True), "o200k_base") for start in range(4)] == [400] * 4


def lengths(caller: str = "a", body: bytes = b"", n: int = 1, **options: Any) -> list[int]:
    call = openai_chat.read_call(body or chat(n=n))
    return [output.tokens for output in plan(openai_chat, call, from_mapping(options), caller, 1).outputs]


def test_lengths_repeat() -> None:
    """The same seed, caller and messages give the same lengths, whatever cap a gateway puts on them; another of each gives others."""
    first = lengths(n=8)
    assert first == lengths(n=8) and len(set(first)) > 4
    assert lengths(body=chat(n=8, max_tokens=10_000)) == first
    assert first not in (lengths("b", n=8), lengths(n=8, seed=1), lengths(body=chat("other", n=8)))
    assert lengths(n=8, id="r1") == lengths(body=chat("other", n=8), id="r1") != first


def test_lengths_are_log_normal() -> None:
    """Lengths spread around the median as asked: half below, and 84 % below the median times e to sigma."""
    drawn = sorted(length for number in range(40) for length in lengths(body=chat(str(number), n=100), median=150, sigma=0.8))
    assert 140 < drawn[2_000] < 160
    assert 310 < drawn[3_365] < 360
    assert lengths(n=5, median=150, sigma=0) == [150] * 5


# -- options --------------------------------------------------------------------------------------------------------------------------------


def test_options_by_short_and_long_names() -> None:
    """Names may be short or those of the fields; durations are text or milliseconds; text from a command line is converted."""
    options = from_mapping({"ttft": "20ms", "tpot": 5, "completion": "40", "chunk_tokens": 4, "dense": "true", "insert": {"2": "x"}})
    assert options == MockOptions(ttft_ms=20, tpot_ms=5, completion_tokens=40, chunk_tokens=4, dense=True, insert={2: "x"})
    assert from_mapping({"ttft": "1.5s"}).ttft_ms == 1_500
    assert from_mapping({"seed": 3}, options) == msgspec.structs.replace(options, seed=3)


@pytest.mark.parametrize(
    ("name", "value"),
    [("nope", 1), ("ttft", "soon"), ("ttft", -1), ("ttft", "-1ms"), ("completion", -1), ("usage", "some"), ("status", 99), ("insert", {"x": "y"})],
)
def test_wrong_options_are_named(name: str, value: object) -> None:
    """An unknown name or a wrong value is an error that names it."""
    with pytest.raises(MockOptionError, match=f"`{name}`"):
        from_mapping({name: value})


# -- answers --------------------------------------------------------------------------------------------------------------------------------


async def test_unary_answer(client: Client, mock: Mock) -> None:
    """A whole answer in OpenAI's shape, with usage, counted."""
    response = await ask(client, "x" * 41, headers={"authorization": "Bearer sk-a"})
    assert response.status == 200
    assert response.json["choices"] == [
        {"index": 0, "message": {"role": "assistant", "content": " the of and to in", "refusal": None}, "logprobs": None, "finish_reason": "stop"}
    ]
    assert response.json["usage"] == {"prompt_tokens": 18, "completion_tokens": 5, "total_tokens": 23}
    assert mock.stats().callers == {"sk-a": Tally(1, 0, 18, 5, 1, 0, 0, 1, 23)}


async def test_streamed_answer(client: Client, mock: Mock) -> None:
    """Role, one chunk per token, the finish, [DONE]; usage only when asked for, and then null elsewhere."""
    plain = await ask(client, stream=True)
    assert plain.headers["content-type"].startswith("text/event-stream")
    assert plain.deltas()[0] == {"role": "assistant", "content": ""}
    assert [delta.get("content") for delta in plain.deltas()[1:]] == [" the", " of", " and", " to", " in", None]
    assert plain.finishes == ["stop"] and plain.events[-1] == "data: [DONE]" and b"usage" not in plain.body
    asked = await ask(client, stream=True, stream_options={"include_usage": True})
    assert asked.events[-2]["choices"] == [] and asked.events[-2]["usage"]["completion_tokens"] == 5
    assert all(event["usage"] is None for event in asked.events[:-2])
    assert (totals(mock).completion_tokens, totals(mock).chunks, totals(mock).requests) == (10, 10, 2)


async def test_official_sdk(mock: Mock) -> None:
    """The openai package reads its answers, streams and errors."""
    async with openai.AsyncOpenAI(base_url=mock.base_url, api_key="sk-sdk", max_retries=0) as sdk:
        messages: Any = [{"role": "user", "content": "hello"}]
        unary = await sdk.chat.completions.create(model="m", messages=messages)
        assert unary.choices[0].message.content == " the of and to in"
        chunks = [chunk async for chunk in await sdk.chat.completions.create(model="m", messages=messages, stream=True)]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == " the of and to in"
        mock.fault(status=429, retry_after="7", message="slow down")
        with pytest.raises(openai.RateLimitError, match="slow down") as caught:
            await sdk.chat.completions.create(model="m", messages=messages)
        assert caught.value.response.headers["retry-after"] == "7"
        assert [model.id for model in (await sdk.models.list()).data] == ["mock-small", "mock-large"]
    assert mock.stats().callers["sk-sdk"].completion_tokens == 10


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "expected"), [({"max_tokens": 3}, 3), ({"max_completion_tokens": 2}, 2), ({"max_tokens": 2, "max_completion_tokens": 4}, 4)]
)
async def test_caps_are_honoured(client: Client, mock: Mock, fields: dict[str, int], expected: int, stream: bool) -> None:
    """Each choice ends at the cap with `length`; of two caps the larger counts, so that a forgotten one shows."""
    response = await ask(client, stream=stream, n=3, **fields)
    finishes = response.finishes if stream else [choice["finish_reason"] for choice in response.json["choices"]]
    assert finishes == ["length"] * 3
    assert totals(mock).completion_tokens == 3 * expected


async def test_choices_run_in_parallel(client: Client) -> None:
    """Choices of different lengths are interleaved and each ends once."""
    response = await ask(client, stream=True, n=3, mock={"median": 20, "completion": None})
    by_choice = [sum(len(delta.get("content", "").split()) for delta in response.deltas(index)) for index in range(3)]
    assert by_choice == lengths(caller="anonymous", n=3, median=20)
    assert response.finishes == ["stop"] * 3
    assert [part["index"] for event in response.events[3:9] for part in event["choices"]] == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize(("chunk", "sizes"), [(1, [1] * 10), (4, [4, 4, 2]), (10, [10]), (0, [10])])
async def test_tokens_per_chunk(client: Client, chunk: int, sizes: list[int]) -> None:
    """`chunk` tokens come in each delta; 0 is the whole answer in one."""
    response = await ask_mock(client, completion=10, chunk=chunk)
    assert [len(delta["content"].split()) for delta in response.deltas()[1:-1]] == sizes


async def test_dense_text(client: Client) -> None:
    """Deltas of four characters that are four tokens each."""
    response = await ask_mock(client, completion=8, chunk=4, dense=True)
    assert [delta["content"] for delta in response.deltas()[1:-1]] == [DENSE, DENSE]


async def test_prompt_counts(client: Client) -> None:
    """The prompt costs a token per four characters and framing, or what a tokenizer says, or what is given."""
    parts = [{"role": "user", "content": [{"type": "text", "text": "x" * 10}, {"type": "image_url", "image_url": {"url": "u"}}]}]
    assert (await ask(client, messages=[*parts, {"role": "assistant", "content": None}])).json["usage"]["prompt_tokens"] == 3 + 8 + 3
    assert (await ask(client, "".join(WORDS[:50]), mock={"tokenizer": "o200k_base"})).json["usage"]["prompt_tokens"] == 50 + 4 + 3
    assert (await ask(client, mock={"prompt": 101})).json["usage"]["prompt_tokens"] == 101


@pytest.mark.parametrize(
    ("mode", "names"), [("visible", {"reasoning_content"}), ("both", {"reasoning", "reasoning_content"}), ("hidden", set[str]())]
)
async def test_reasoning(client: Client, mock: Mock, mode: str, names: set[str]) -> None:
    """Reasoning comes before the content, is shown or not, and is billed either way; a chunk never mixes the two."""
    response = await ask(
        client, stream=True, stream_options={"include_usage": True}, mock={"completion": 10, "chunk": 4, "reasoning": mode, "reasoning_tokens": 5}
    )
    thoughts = [delta for delta in response.deltas() if any("reasoning" in name for name in delta)]
    assert all(set(delta) == names for delta in thoughts) and bool(thoughts) == bool(names)
    assert len("".join(delta["reasoning_content"] for delta in thoughts).split()) == (5 if names else 0)
    assert len(response.text.split()) == 5
    assert response.usages[-1]["completion_tokens_details"] == {"reasoning_tokens": 5} and response.usages[-1]["completion_tokens"] == 10
    unary = (await ask_mock(client, stream=False, completion=10, reasoning=mode, reasoning_tokens=5)).json
    assert {name for name in unary["choices"][0]["message"] if "reasoning" in name} == names
    assert totals(mock).completion_tokens == 20


async def test_hidden_reasoning_shows_nothing(client: Client, mock: Mock) -> None:
    """Five visible tokens, five thousand billed, and a cap that counts both."""
    response = await ask(
        client, stream=True, stream_options={"include_usage": True}, mock={"completion": 5000, "reasoning": "hidden", "reasoning_tokens": 4995}
    )
    assert len(response.text.split()) == 5 and response.usages[-1]["completion_tokens"] == 5000
    capped = await ask(client, stream=True, max_tokens=100, mock={"completion": 5000, "reasoning": "hidden", "reasoning_tokens": 4995})
    assert capped.text == "" and capped.finishes == ["length"]
    assert totals(mock).completion_tokens == 5100


# -- usage in every shape -------------------------------------------------------------------------------------------------------------------


async def usages(client: Client, mode: str, asked: bool) -> Response:
    more = {"stream_options": {"include_usage": True}} if asked else {}
    return await ask(client, stream=True, mock={"usage": mode, "completion": 3, "prompt": 10, "cached": 9}, **more)


FULL = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13, "prompt_tokens_details": {"cached_tokens": 9}}


async def test_usage_nobody_asked_for(client: Client) -> None:
    """`unasked` sends the extra chunk in any case."""
    response = await usages(client, "unasked", False)
    assert response.usages == [FULL] and response.events[-2]["choices"] == []


async def test_usage_on_the_last_chunk_with_choices(client: Client) -> None:
    """`with_choices` puts usage on the chunk that finishes the last choice, with its details."""
    response = await usages(client, "with_choices", False)
    assert response.usages == [FULL]
    assert response.events[-2]["choices"][0]["finish_reason"] == "stop"


async def test_cumulative_usage(client: Client) -> None:
    """`cumulative` reports on each chunk what has come so far."""
    response = await usages(client, "cumulative", False)
    assert [usage["completion_tokens"] for usage in response.usages] == [1, 2, 3, 3]


async def test_no_usage(client: Client) -> None:
    """`none` reports nothing even if asked, streamed or not; `null` reports null."""
    assert b"usage" not in (await usages(client, "none", True)).body
    assert "usage" not in (await ask_mock(client, stream=False, usage="none")).json
    response = await usages(client, "null", True)
    assert response.usages == [] and all(event["usage"] is None for event in response.events[:-1])
    assert (await ask_mock(client, stream=False, usage="null")).json["usage"] is None


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("partial", {"prompt_tokens": 10, "completion_tokens": None}),
        ("zero_input", FULL | {"prompt_tokens": 0, "total_tokens": 3}),
        ("zero", FULL | {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}),
    ],
)
async def test_wrong_usage(client: Client, mock: Mock, mode: str, expected: dict[str, Any]) -> None:
    """Usage may lack a field or be zero; the truth counts what was produced."""
    assert (await usages(client, mode, True)).usages == [expected]
    assert (totals(mock).prompt_tokens, totals(mock).completion_tokens) == (10, 3)


# -- odd events -----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw", ["data: null\n\n", "data: {bro\n\n", ": OPENROUTER PROCESSING\n\n", ":\n\n", "id: 1\nevent: x\nretry: 3\ndata: {\ndata: }\n\n: ping\n\n"]
)
async def test_inserted_text(client: Client, raw: str) -> None:
    """Raw text goes between chunks as it is, before the first or after any."""
    response = await ask_mock(client, insert={"0": raw, "2": raw})
    assert response.body.count(raw.encode()) == 2
    assert response.body.index(raw.encode()) < response.body.index(b" the")
    assert response.body.index(b" of") < response.body.rindex(raw.encode()) < response.body.index(b" and")
    assert response.finishes == ["stop"]


async def test_line_of_two_megabytes(client: Client) -> None:
    """An unknown field may make one line as long as is asked."""
    response = await ask_mock(client, pad=2_000_000)
    assert max(map(len, response.body.split(b"\n"))) > 2_000_000 and len(response.text.split()) == 5


@pytest.mark.parametrize("newline", ["\r\n", "\r"])
async def test_line_ends(client: Client, newline: str) -> None:
    """Lines may end in CRLF or CR."""
    response = await ask_mock(client, newline=newline)
    assert f'"stop"}}]}}{newline}{newline}data: [DONE]{newline}{newline}'.encode() in response.body
    assert newline == "\r\n" or b"\n" not in response.body


async def test_own_text(client: Client) -> None:
    """The text of a token may be anything, raw separators and half of an é at the end of a read included."""
    response = await ask_mock(client, word="a\u2028b", usage="with_choices", completion=2)
    assert response.text == "a\u2028ba\u2028b" and "\u2028".encode() in response.body


async def test_bytes_one_by_one(client: Client) -> None:
    """With `write_bytes: 1` every byte is written on its own, so that characters and lines are split between reads."""
    response = await ask_mock(client, word="é", completion=3, write_bytes=1)
    assert response.text == "ééé" and response.complete
    assert len(client.reads) > 10
    assert (await ask_mock(client)).text == " the of and to in"  # and the connection goes on


async def test_unknown_fields(client: Client) -> None:
    """More fields, logprobs among them, may be in every chunk and choice beside reasoning."""
    response = await ask_mock(client, chunk_fields={"provider": "x"}, choice_fields={"logprobs": {"content": []}}, reasoning="visible")
    chunks = [event for event in response.events if isinstance(event, dict)]
    assert all(chunk["provider"] == "x" and chunk["choices"][0]["logprobs"] == {"content": []} for chunk in chunks)


async def test_missing_done(client: Client) -> None:
    """A stream may end without [DONE] after complete usage."""
    response = await ask(client, stream=True, mock={"done": False, "usage": "unasked"})
    assert response.complete and response.usages and b"[DONE]" not in response.body


async def test_response_headers(client: Client) -> None:
    """More headers may come with an answer: a cookie, say."""
    assert (await ask_mock(client, headers={"set-cookie": "a=b"})).headers["set-cookie"] == "a=b"


# -- what goes wrong ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_faults_for_the_next_calls(client: Client, mock: Mock, stream: bool) -> None:
    """A fault answers the next N calls, streams too, with its status and retry-after; nothing is billed for them."""
    client.send("POST", "/mock/faults", json.dumps([{"status": 429, "retry_after": 3, "count": 2}, {"status": 500, "model": "other"}]).encode())
    assert (await client.read()).json == {"faults": 2}
    for _ in range(2):
        response = await ask(client, stream=stream)
        assert (response.status, response.headers["retry-after"], response.json["error"]["code"]) == (429, "3", "rate_limit_exceeded")
    assert (await ask(client, stream=stream)).status == 200
    assert (await ask(client, stream=stream, model="other")).status == 500
    total = totals(mock)
    assert (total.requests, total.errors, total.completion_tokens) == (4, 3, 5)


async def test_fault_until_the_reset(client: Client, mock: Mock) -> None:
    """A fault with count 0 stays until the reset."""
    mock.fault(0, status=503)
    assert [(await ask(client)).status for _ in range(3)] == [503] * 3
    client.send("POST", "/mock/reset")
    assert (await client.read()).status == 200
    assert (await ask(client)).status == 200 and totals(mock).requests == 1


async def test_fault_for_a_share_of_the_calls(client: Client, mock: Mock) -> None:
    """Which calls fail is drawn from the seed: about that share of them, in no order, none where it is 0."""
    mock.fault(0, share=0, status=500)
    mock.fault(0, share=0.5, status=503)
    statuses = [(await ask(client)).status for _ in range(60)]
    assert set(statuses) == {200, 503} and 15 <= statuses.count(503) <= 45
    assert statuses[:30] != [200, 503] * 15


async def test_windows_are_counted_apart() -> None:
    """What arrives in a window counts for its caller in it, wherever it ends."""
    now = [1_790_000_039.9]
    mock = Mock(MockOptions(window_s=30, caller="a", completion_tokens=5), lambda: now[0])
    await mock.start()
    client = await Client.connect(mock)
    for _ in range(3):
        await ask(client)
        now[0] += 0.2
    client.close()
    await mock.stop()
    assert {name: tally.completion_tokens for name, tally in mock.stats().callers.items()} == {"a@1790000010": 5, "a@1790000040": 10}


def test_an_allowance_refills_continuously() -> None:
    """All of it at once, then one each time that its share of the minute has passed, and never more than the whole."""
    allowance = Allowance(60, 1000.0)
    assert [allowance.take(1000.0).granted for _ in range(61)] == [True] * 60 + [False]
    refused = allowance.take(1000.5)
    assert (refused.granted, refused.remaining, refused.full_in_s, refused.next_in_s) == (False, 0, 59.5, 0.5)
    assert allowance.take(1001.0).granted
    assert allowance.take(9000.0).remaining == 59


@pytest.mark.parametrize(("style", "waits_ms", "spent_for_ms"), [("openai", 15_000, 60_000), ("anthropic", 15_000, 60_000), ("none", None, None)])
async def test_requests_of_a_credential_are_limited(style: str, waits_ms: int | None, spent_for_ms: int | None) -> None:
    """Four at once, and a 429 that produces nothing; the answers tell as vendors do, so that a gateway can read it; others are not concerned."""
    now_s = 1_790_000_000.0
    mock = Mock(from_mapping({"rpm": 4, "limit_headers": style, "completion": 5}), lambda: now_s)
    await mock.start()
    client = await Client.connect(mock)
    answers = [await ask(client, headers={"authorization": "Bearer a"}) for _ in range(5)]
    other = await ask(client, headers={"authorization": "Bearer b"})
    now_s += 15
    again = await ask(client, headers={"authorization": "Bearer a"})
    client.close()
    await mock.stop()
    assert [answer.status for answer in (*answers, other, again)] == [200] * 4 + [429, 200, 200]
    last, refused = ({name.encode(): value.encode() for name, value in answer.headers.items()} for answer in answers[3:])
    now_ms = 1_790_000_000_000
    assert wait_ms(refused, now_ms) == waits_ms
    assert spent_ms(last, now_ms) == spent_for_ms
    assert totals(mock).errors == 1 and totals(mock).completion_tokens == 30


async def test_html_pages(client: Client) -> None:
    """An error, and even a success, may come as an HTML page."""
    bad = await ask_mock(client, status=504, html=True)
    assert bad.status == 504 and bad.headers["content-type"].startswith("text/html") and bad.body.startswith(b"<html>")
    good = await ask_mock(client, stream=False, html=True)
    assert good.status == 200 and good.body.startswith(b"<html>")


async def test_unknown_status(client: Client) -> None:
    """Statuses outside the standard come through."""
    assert (await ask_mock(client, status=520)).status == 520


@pytest.mark.parametrize("stream", [False, True])
async def test_error_inside_a_200(client: Client, mock: Mock, stream: bool) -> None:
    """A 200 may hold an error with a status of its own, and bills nothing."""
    response = await ask_mock(client, stream=stream, error_in_200=429, message="slow down")
    body = response.events[0] if stream else response.json
    assert response.status == 200 and (body["error"]["code"], body["error"]["message"]) == (429, "slow down")
    assert totals(mock).completion_tokens == totals(mock).prompt_tokens == 0


@pytest.mark.parametrize("how", ["fin", "rst"])
async def test_cut_in_the_middle(client: Client, mock: Mock, how: str) -> None:
    """After k chunks the connection is closed or reset; what came before arrives and is billed."""
    response = await ask_mock(client, cut_after=3, cut=how, prompt=7)
    assert response.ended == {"fin": "closed", "rst": "reset"}[how] and not response.complete
    assert len(response.text.split()) == 3 and response.finishes == []
    assert (totals(mock).completion_tokens, totals(mock).prompt_tokens, totals(mock).disconnects) == (3, 7, 0)


async def test_cut_in_the_middle_of_a_body(client: Client, mock: Mock) -> None:
    """A unary answer cut short is billed whole: it had been generated."""
    response = await ask_mock(client, stream=False, cut_after=1)
    assert response.started and response.ended == "closed" and response.body
    assert totals(mock).completion_tokens == 5


@pytest.mark.parametrize("stream", [False, True])
async def test_cut_before_a_byte(client: Client, mock: Mock, stream: bool) -> None:
    """With `cut_after: 0` the connection ends without an answer and nothing is billed."""
    response = await ask_mock(client, stream=stream, cut_after=0)
    assert response.ended == "closed" and not response.started
    total = totals(mock)
    assert (total.requests, total.errors, total.prompt_tokens, total.completion_tokens, total.in_flight) == (1, 1, 0, 0, 0)


@pytest.mark.parametrize(("stall_after", "came"), [(0, b""), (2, b" of")])
async def test_stalled_stream(client: Client, mock: Mock, stall_after: int, came: bytes) -> None:
    """A stalled stream stays silent and open until the client goes."""
    client.send("POST", PATH, chat(stream=True, mock={"stall_after": stall_after}))
    if came:
        await client.until(came)
    other = await Client.connect(mock)
    assert (await ask(other)).status == 200  # the mock had every chance to go on
    assert totals(mock).in_flight == 1 and b"and" not in b"".join(client.reads)
    client.close()
    await mock.idle()
    assert (totals(mock).completion_tokens, totals(mock).disconnects) == (stall_after + 5, 1)
    other.close()


async def test_early_headers(client: Client, mock: Mock) -> None:
    """Status and headers may come long before the first token."""
    client.send("POST", PATH, chat(stream=True, mock={"ttft": "60s", "early_headers": True}))
    await client.until(b"\r\n\r\n")
    assert b"".join(client.reads).startswith(b"HTTP/1.1 200") and totals(mock).completion_tokens == 0
    unary = await Client.connect(mock)
    unary.send("POST", PATH, chat(mock={"ttft": "60s", "early_headers": True}))
    await unary.until(b"\r\n\r\n")
    unary.close()


# -- the truth ------------------------------------------------------------------------------------------------------------------------------


async def test_generation_stops_when_the_client_leaves(client: Client, mock: Mock) -> None:
    """What was written when the client left is the truth: no less, and nothing after it."""
    client.send("POST", PATH, chat(stream=True, mock={"completion": 1_000_000, "tpot": 0.5}))
    await client.until(b" and")
    client.close()
    await mock.idle()
    total = totals(mock)
    assert 3 <= total.completion_tokens < 10_000 and total.completion_tokens == total.chunks
    assert (total.disconnects, total.in_flight) == (1, 0)


async def test_generation_goes_on_when_told(client: Client, mock: Mock) -> None:
    """A provider that does not stop on close bills the whole answer."""
    client.send("POST", PATH, chat(stream=True, mock={"completion": 300, "tpot": 0.5, "stops_on_close": False}))
    await client.until(b" and")
    client.close()
    await mock.idle()
    assert (totals(mock).completion_tokens, totals(mock).disconnects) == (300, 1)


async def test_fast_stream_is_counted_as_written(client: Client, mock: Mock) -> None:
    """A stream without pace counts what was written, also if the client resets after the first bytes."""
    client.send("POST", PATH, chat(stream=True, mock={"completion": 20_000}))
    await client.reader.read(200)
    client.writer.transport.abort()
    await mock.idle()
    assert 1 <= totals(mock).completion_tokens <= 20_000 and totals(mock).disconnects == 1


async def test_hidden_tokens_count_before_anything_is_written(client: Client, mock: Mock) -> None:
    """Hidden reasoning is billed while the client has seen nothing."""
    client.send("POST", PATH, chat(stream=True, mock={"completion": 1_000_000, "tpot": 0.1, "reasoning": "hidden", "reasoning_tokens": 1_000_000}))
    other = await Client.connect(mock)
    while totals(mock).completion_tokens < 10:
        other.send("GET", "/mock/stats")
        await other.read()
    client.close()
    other.close()
    await mock.idle()
    assert totals(mock).chunks == 0


async def in_flight(mock: Mock, calls: int) -> None:
    """Until so many calls have arrived."""
    other = await Client.connect(mock)
    while totals(mock).in_flight < calls:
        other.send("GET", "/mock/stats")
        await other.read()
    other.close()


@pytest.mark.parametrize(("completion", "stops", "least", "most"), [(100_000, True, 1, 50_000), (200, False, 200, 200)])
async def test_unary_client_leaves(client: Client, mock: Mock, completion: int, stops: bool, least: int, most: int) -> None:
    """A unary call left early is billed for the time that it ran, or to its end where the provider goes on."""
    client.send("POST", PATH, chat(mock={"completion": completion, "tpot": 1, "stops_on_close": stops}))
    await in_flight(mock, 1)
    client.close()
    await mock.idle()
    assert least <= totals(mock).completion_tokens <= most and totals(mock).disconnects == 1


async def test_unary_client_leaves_before_the_first_token(client: Client, mock: Mock) -> None:
    """A call left before its first token is billed its prompt alone."""
    client.send("POST", PATH, chat(mock={"ttft": "60s", "prompt": 9}))
    await in_flight(mock, 1)
    client.close()
    await mock.idle()
    assert (totals(mock).prompt_tokens, totals(mock).completion_tokens) == (9, 0)


async def test_pace(mock: Mock) -> None:
    """The first token comes after ttft and each further one after tpot, also when four share a chunk; other streams do not change that."""
    started = asyncio.get_running_loop().time()

    async def one(chunk: int) -> float:
        client = await Client.connect(mock)
        response = await ask(client, stream=True, mock={"ttft": 20, "tpot": 2, "completion": 21, "chunk": chunk})
        assert len(response.text.split()) == 21
        client.close()
        return asyncio.get_running_loop().time() - started

    took = await asyncio.gather(*(one(chunk) for chunk in (1, 4, 0) for _ in range(10)))
    assert min(took) >= 0.058  # 20 ms and 20 times 2 ms, less what a clock of whole milliseconds may lose


async def test_callers(client: Client, mock: Mock) -> None:
    """Who is counted: the tag in the prompt, else the header, else the field `user`, else the credential, else nobody in particular."""
    bearer = {"authorization": "Bearer sk-a"}
    await ask(client)
    await ask(client, headers=bearer)
    await ask(client, headers={"x-api-key": "sk-b"})
    await ask(client, headers=bearer, user="u")
    await ask(client, headers=bearer | {"x-mock-caller": "h"}, user="u")
    await ask(client, 'hi [[mock {"caller": "t", "completion": 7}]] there', headers=bearer | {"x-mock-caller": "h"}, user="u")
    client.send("GET", "/mock/stats")
    stats = (await client.read()).json
    assert {name: tally["completion_tokens"] for name, tally in stats["callers"].items()} == {
        "anonymous": 5,
        "sk-a": 5,
        "sk-b": 5,
        "u": 5,
        "h": 5,
        "t": 7,
    }
    assert (stats["total"]["requests"], stats["total"]["completion_tokens"]) == (6, 32)
    assert stats["total"]["tokens"] == stats["total"]["prompt_tokens"] + 32


async def test_overrides_of_one_request(client: Client, mock: Mock) -> None:
    """Options come from the header, the body or a tag in any message, one over the other; a fault goes over all."""
    header = {"x-mock": '{"completion": 2, "prompt": 50}'}
    assert (await ask(client, headers=header)).json["usage"] == {"prompt_tokens": 50, "completion_tokens": 2, "total_tokens": 52}
    assert (await ask(client, headers=header, mock={"completion": 3})).json["usage"]["completion_tokens"] == 3
    assert (await ask(client, 'x [[mock {"completion": 4}]]', headers=header, mock={"completion": 3})).json["usage"]["completion_tokens"] == 4
    mock.fault(completion=6)
    assert (await ask(client, 'x [[mock {"completion": 4}]]')).json["usage"]["completion_tokens"] == 6


async def test_concurrency_is_counted(mock: Mock) -> None:
    """The largest number of calls at one time is kept, per caller and in total."""
    clients = [await Client.connect(mock) for _ in range(6)]
    for number, client in enumerate(clients):
        client.send("POST", PATH, chat(user=f"u{number % 2}", mock={"ttft": "60s"}))
    await in_flight(mock, 6)
    for client in clients:
        client.close()
    await mock.idle()
    stats = mock.stats()
    assert stats.total.in_flight_max == 6 and [tally.in_flight_max for tally in stats.callers.values()] == [3, 3]
    assert stats.total.in_flight == 0 and stats.total.disconnects == 6


async def test_last_calls_are_kept(client: Client) -> None:
    """What a gateway really sent upstream can be asked for."""
    await ask(client, max_tokens=3, headers={"authorization": "Bearer sk-a", "accept-encoding": "identity"})
    client.send("GET", "/mock/calls")
    (call,) = (await client.read()).json
    assert (call["caller"], call["path"], call["headers"]["accept-encoding"]) == ("sk-a", PATH, "identity")
    assert json.loads(call["body"])["max_tokens"] == 3


# -- HTTP -----------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b'{"model":"m"}',
        b'{"messages":[]}',
        b'{"model":"m","messages":5}',
        chat(max_tokens=0),
        chat(n=0),
        chat(stream=1),
        chat(mock={"x": 1}),
    ],
)
async def test_bad_bodies(client: Client, mock: Mock, body: bytes) -> None:
    """What is not a chat call is a 400 and counts nothing."""
    client.send("POST", PATH, body)
    response = await client.read()
    assert response.status == 400 and response.json["error"]["type"] == "invalid_request_error"
    assert totals(mock).requests == 0


@pytest.mark.parametrize(
    ("headers", "prompt"), [({"x-mock": "{"}, ""), ({"x-mock": "[1]"}, ""), ({}, "[[mock nonsense"), ({}, '[[mock {"usage": "x"}]]')]
)
async def test_bad_overrides(client: Client, headers: dict[str, str], prompt: str) -> None:
    """Overrides that cannot be read are a 400, not an answer of another kind than the test meant."""
    assert (await ask(client, prompt, headers)).status == 400


@pytest.mark.parametrize("body", [b"{", b"5", b'{"nope": 1}', b'{"count": -1}', b'{"share": 1.5}', b'[{"status": 1}]'])
async def test_bad_faults(client: Client, mock: Mock, body: bytes) -> None:
    """A fault that cannot be read is a 400 and does nothing."""
    client.send("POST", "/mock/faults", body)
    assert (await client.read()).status == 400 and mock.faults == []


async def test_unknown_paths(client: Client) -> None:
    """Other paths are a JSON 404."""
    for method, path in (("GET", "/"), ("GET", PATH), ("POST", "/v1/audio/speech")):
        client.send(method, path)
        assert (await client.read()).status == 404


async def test_pipelined_requests(client: Client) -> None:
    """Requests sent at once are answered one after the other, in order."""
    for number in range(1, 6):
        client.send("POST", PATH, chat(mock={"completion": number, "ttft": 6 - number}))
    client.send("GET", "/v1/models")
    data = b""
    while b"mock-large" not in data:
        data += await client.reader.read(65536)
    found = [data.index(b'"completion_tokens":%d' % number) for number in range(1, 6)]
    assert found == sorted(found)


async def test_connection_close(client: Client) -> None:
    """A client that asks for it gets its connection closed after the answer."""
    response = await ask(client, stream=True, headers={"connection": "close"})
    assert response.complete and response.headers["connection"] == "close"
    assert await client.reader.read() == b""


async def test_bad_http(client: Client) -> None:
    """What is not HTTP ends the connection."""
    client.writer.write(b"nonsense\r\n\r\n")
    assert await client.reader.read() == b""


async def test_expect_continue(client: Client) -> None:
    """A client that waits for leave to send its body gets it."""
    body = chat()
    client.writer.write(b"POST %b HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: %d\r\n\r\n" % (PATH.encode(), len(body)))
    assert (await client.reader.readline()).startswith(b"HTTP/1.1 100")
    assert await client.reader.readline() == b"\r\n"
    client.writer.write(body)
    assert (await client.read()).status == 200


async def test_stop_ends_calls_in_flight(mock: Mock, client: Client) -> None:
    """A stopped mock drops its connections and can be started again on the same port."""
    client.send("POST", PATH, chat(stream=True, mock={"stall_after": 1}))
    await client.until(b" the")
    port = int(mock.base_url.removesuffix("/v1").rpartition(":")[2])
    await mock.stop()
    assert (await client.read()).ended in ("closed", "reset")
    assert await mock.start(port=port) == port
    again = await Client.connect(mock)
    assert (await ask(again)).status == 200
    again.close()


def test_process() -> None:
    """As a process it says where it listens and ends on SIGTERM."""
    code = "from sluicegate.mock import *; run_mock(MockOptions(), '127.0.0.1', 0, lambda url: print(url, flush=True))"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline().startswith("http://127.0.0.1:")
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.stdout.close()


def test_stream_steps_sum_up() -> None:
    """Whatever the options, the tokens of a stream's steps are those of its choices, and only the last step ends it."""
    for n in (1, 3):
        for mode in ("none", "visible", "hidden"):
            for chunk in (0, 1, 7):
                call = openai_chat.read_call(chat(stream=True, n=n, max_tokens=90))
                answer: Answer = plan(openai_chat, call, from_mapping({"reasoning": mode, "chunk": chunk, "median": 60}), "a", 1)
                steps = list(stream(answer))
                assert sum(step.tokens for step in steps) == answer.tokens
                assert [step.ending for step in steps] == [""] * (len(steps) - 1) + ["done"]
                assert [step.due for step in steps] == sorted(step.due for step in steps)


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A directory with a key and a certificate for 127.0.0.1."""
    command = "openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=mock -addext subjectAltName=IP:127.0.0.1"
    subprocess.run(command.split(), cwd=tmp_path, capture_output=True, check=True)
    return tmp_path


async def test_tls(certificate: Path) -> None:
    """It also speaks TLS with a certificate given to it."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    mock = Mock(MockOptions(completion_tokens=5))
    port = await mock.start(tls=server)
    assert mock.base_url.startswith("https://")
    client = Client(*await asyncio.open_connection("127.0.0.1", port, ssl=ssl.create_default_context(cafile=str(certificate / "cert.pem"))))
    assert (await ask(client, stream=True)).text == " the of and to in"
    client.close()
    await client.writer.wait_closed()
    await mock.stop()
