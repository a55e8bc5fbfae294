"""Cases of cases.md on streams: what passes and what is hidden, where usage is found, how events are framed, how a stream may end."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from support_inloop import PROMPT_TOKENS, STREAM_HEAD, Bench, chunk, framed, request, running, sse, usage_chunk, whole
from support_sockets import Script, read_request, scripted
from support_time import undisturbed

EXTEND = pytest.mark.parametrize("extend", [False, True], ids=["capped", "extended"])
LIMITS = "[100k tokens/day]"
ASKED = {"include_usage": True}


def saying(*pieces: bytes, end: bool = True, pause_s: float = 0.0) -> Script:
    """An upstream that answers every request with these pieces of a stream, each in a write of its own."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            writer.write(STREAM_HEAD)
            for piece in pieces:
                writer.write(framed(piece))
                await asyncio.sleep(pause_s)
            if not end:
                return
            writer.write(framed(b"", last=True))

    return script


async def charged(bench: Bench) -> tuple[int, int, str]:
    await bench.quiet()
    return bench.record.input_tokens, bench.record.output_tokens, bench.record.source


# -- usage: asked for, found, hidden ------------------------------------------------------------------------------------------------------


@EXTEND
@pytest.mark.parametrize("options", [..., None, {}, {"include_usage": False}, {"include_usage": None}, ASKED])
async def test_case_49_and_50_usage_is_asked_for_and_hidden(tmp_path: Path, options: Any, extend: bool) -> None:
    """Upstream always with include_usage; a client that did not ask sees no usage and no chunk without choices, one that did sees one."""
    async with running(tmp_path, limits=LIMITS, extend=extend) as bench:
        answer = await bench.chat(stream=True, stream_options=options, max_tokens=20)
        assert json.loads(bench.mock.calls[-1].body)["stream_options"] == {"include_usage": True}
        assert (answer.done, answer.finishes) == (True, {0: "stop"})
        asked = options == ASKED
        assert [event["usage"]["completion_tokens"] for event in answer.usages] == ([20] if asked else [])
        assert (b'"choices":[]' in answer.body, b"usage" in answer.body) == (asked, asked)
        assert await charged(bench) == (PROMPT_TOKENS, 20, "reported")


@EXTEND
@pytest.mark.parametrize("usage", ["unasked", "with_choices", "cumulative"])
@pytest.mark.parametrize("asked", [False, True])
async def test_case_51_and_52_usage_is_found_wherever_it_is(tmp_path: Path, usage: str, asked: bool, extend: bool) -> None:
    """On a chunk of its own, on the last one with choices, cumulative on each: the last report counts, none is summed."""
    async with running(tmp_path, limits=LIMITS, extend=extend, options={"completion": 30, "usage": usage}) as bench:
        answer = await bench.chat(stream=True, stream_options=ASKED if asked else ..., max_tokens=50)
        assert await charged(bench) == (PROMPT_TOKENS, 30, "reported")
        assert bool(answer.usages) is asked
        assert (answer.finishes, len(answer.choices) >= 30) == ({0: "stop"}, True)


@EXTEND
async def test_case_51_cached_tokens_are_cheaper(tmp_path: Path, extend: bool) -> None:
    """The price of what was read from a cache is taken from a usage chunk that has choices, too: the same bill as unary (case 62)."""
    price = "{input: 4.0, output: 1.0, cached_input: 1.0}"
    async with running(tmp_path, limits="[$1/day]", extend=extend, price=price) as bench:
        bench.whole = False
        costs = []
        for stream, usage in ((False, "normal"), (True, "normal"), (True, "with_choices"), (True, "cumulative")):
            bench.mocked(completion=10, prompt=1000, cached=900, usage=usage)
            await bench.chat(stream=stream, max_tokens=10)
            await bench.quiet()
            costs.append(bench.record.cost_nano_usd)
        assert costs == [100 * 4000 + 900 * 1000 + 10 * 1000] * 4


BOUND = 9 + 4 + 3  # of "1 2 3 4 5", which has nine tokens
REPORTS: list[tuple[Any, int | None, int | None]] = [  # usage, and what can be taken of it: input and output
    (None, None, None),
    ({}, None, None),
    ({"prompt_tokens": 9}, 9, None),
    ({"prompt_tokens": 9, "completion_tokens": None}, 9, None),
    ({"completion_tokens": 7}, None, 7),
    ({"completion_tokens": 7, "total_tokens": 16}, 9, 7),
    ({"prompt_tokens": None, "completion_tokens": None, "total_tokens": None}, None, None),
    ({"prompt_tokens": "9", "completion_tokens": [7]}, None, None),
    ({"prompt_tokens": -9, "completion_tokens": -7}, None, None),
    ({"prompt_tokens": 0, "completion_tokens": 40}, None, 40),
    ({"prompt_tokens": 0, "completion_tokens": 0}, None, 0),
    ({"prompt_tokens": 9, "completion_tokens": 7, "prompt_tokens_details": None, "completion_tokens_details": 5}, 9, 7),
    ({"prompt_tokens": 9.0, "completion_tokens": 7.0}, 9, 7),
    ("many", None, None),
    ([1], None, None),
]


@pytest.mark.parametrize(("usage", "read", "written"), REPORTS)
@pytest.mark.parametrize("stream", [False, True])
@EXTEND
async def test_case_54_and_55_usage_that_is_partial_null_or_zero(
    tmp_path: Path, usage: Any, read: int | None, written: int | None, stream: bool, extend: bool
) -> None:
    """A missing input is our bound, a missing output what was seen where all is visible, else the cap; zero against four seen is four; flagged."""
    text = "one two three four"
    if stream:
        script = saying(sse(chunk(text), chunk(finish="stop"), chunk() | {"choices": [], "usage": usage}, None))
    else:
        script = replying({"choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}], "usage": usage})
    async with scripted(script) as port, running(tmp_path, upstream=port, limits=LIMITS, extend=extend) as bench:
        bench.whole = False
        answer = await bench.chat(stream=stream, max_tokens=50, user=..., messages=[{"role": "user", "content": "1 2 3 4 5"}])
        assert answer.code == "200"
        visible = stream and extend
        output = written or (4 if written == 0 or visible else 50)
        if read and written:
            source = "reported"
        elif read or written:
            source = "partly"
        else:
            source = "counted" if output == 4 else "held"
        assert await charged(bench) == (read or BOUND, output, source)


def replying(answer: Any) -> Script:
    """A unary upstream."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            writer.write(whole(200, json.dumps({"object": "chat.completion", **answer}).encode()))

    return script


ODD = [b"data: null", b"data: {bro", b"data: [1]", b"data: {}", b"data:", b"data", b": x", b":", b"\n", b"id: 3", b"retry: 5", b"event: x"]


@pytest.mark.parametrize("extra", ODD)
@pytest.mark.parametrize("asked", [False, True])
async def test_case_56_odd_events_between_chunks(tmp_path: Path, extra: bytes, asked: bool) -> None:
    """null, broken JSON, empty data, comments: the stream goes on, usage is seen, and nothing that breaks a client is passed on."""
    pieces = (sse(chunk("a")), extra + b"\n\n", sse(chunk("b"), chunk(finish="stop"), usage_chunk(5, 2), None))
    async with scripted(saying(*pieces)) as port, running(tmp_path, upstream=port, limits=LIMITS) as bench:
        bench.truth = (5, 2)
        answer = await bench.chat(stream=True, stream_options=ASKED if asked else ...)
        assert (answer.text, answer.done, await charged(bench)) == ("ab", True, (5, 2, "reported"))
        for line in answer.lines:
            assert line.startswith(":") or line == "data: [DONE]" or isinstance(json.loads(line[6:]), dict)


# -- how a stream ends --------------------------------------------------------------------------------------------------------------------


@EXTEND
async def test_case_112_no_done_after_complete_usage(tmp_path: Path, extend: bool) -> None:
    """A finish, usage 50/333, and the end of the answer: complete, charged 383, clean for the client."""
    pieces = (sse(chunk("a"), chunk(finish="stop"), usage_chunk(50, 333)),)
    async with scripted(saying(*pieces)) as port, running(tmp_path, upstream=port, limits=LIMITS, extend=extend) as bench:
        bench.truth = (50, 333)
        answer = await bench.chat(stream=True, max_tokens=400)
        assert (answer.clean, answer.done, answer.finishes, await charged(bench)) == (True, True, {0: "stop"}, (50, 333, "reported"))


@pytest.mark.parametrize("usage", ["normal", "none", "null", "cumulative"])
@EXTEND
async def test_streams_of_a_server_without_done(tmp_path: Path, usage: str, extend: bool) -> None:
    """The same from the mock, with every kind of usage."""
    async with running(tmp_path, limits=LIMITS, extend=extend, options={"completion": 30, "done": False, "usage": usage}) as bench:
        answer = await bench.chat(stream=True, max_tokens=30)
        assert (answer.clean, answer.finishes) == (True, {0: "stop"})
        assert (await charged(bench))[1] == 30


async def test_the_last_event_is_not_delayed(tmp_path: Path) -> None:
    """`[DONE]` follows the settle at once: thirty short streams over one connection, none waiting for an acknowledgement of 40 ms."""
    async with running(tmp_path, limits=LIMITS, options={"completion": 2}) as bench:
        client = await bench.connect()
        started = undisturbed()
        for _ in range(30):
            client.send(request(bench.body(stream=True)))
            assert (await client.rest()).done
        assert undisturbed() - started < 30 * 0.03


# -- events and bytes ---------------------------------------------------------------------------------------------------------------------

TEXTS = ["é", "日本語", "a\u2028b\u2029c\x85d\x0be\x0cf", "👩‍👩‍👧", "\u0000", '"\\', "x" * 5000]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("raw", [False, True], ids=["escaped", "raw"])
async def test_case_78_and_79_bytes_may_be_cut_anywhere(tmp_path: Path, size: int, newline: str, raw: bool) -> None:
    """Code points halved between reads, and characters that some take for line ends: the text arrives intact and usage is seen."""
    text = "".join(TEXTS[:-1])
    events = [chunk(text), chunk(finish="stop"), usage_chunk(5, 2, note=text), None]
    lines = ["[DONE]" if event is None else json.dumps(event, ensure_ascii=not raw) for event in events]
    data = b"".join(f"data: {line}{newline * 2}".encode() for line in lines)
    pieces = [data[i : i + size] for i in range(0, len(data), size)]
    async with scripted(saying(*pieces)) as port, running(tmp_path, upstream=port, limits=LIMITS) as bench:
        bench.truth = (5, 2)
        answer = await bench.chat(stream=True, stream_options=ASKED)
        assert (answer.text, answer.body, await charged(bench)) == (text, data, (5, 2, "reported"))
        assert "\ufffd" not in answer.body.decode()


async def test_case_80_data_over_several_lines(tmp_path: Path) -> None:
    """JSON over two data lines, with id, event and retry beside it: joined, read, and passed as it came."""
    one = b'id: 7\nevent: message\nretry: 10\ndata: {"choices": [{"index": 0,\ndata: "delta": {"content": "ab"}}]}\n\n'
    end = sse(chunk(finish="stop")) + b'data: {"choices": [], "usage":\ndata: {"prompt_tokens": 5, "completion_tokens": 2}}\n\n' + sse(None)
    async with scripted(saying(one, end)) as port, running(tmp_path, upstream=port, limits=LIMITS) as bench:
        bench.truth = (5, 2)
        answer = await bench.chat(stream=True, stream_options=ASKED)
        assert (answer.body, await charged(bench)) == (one + end, (5, 2, "reported"))


@pytest.mark.parametrize("megabytes", [0.1, 2])
@EXTEND
async def test_case_81_long_lines_pass(tmp_path: Path, megabytes: float, extend: bool) -> None:
    """One data line of 2 MB, whole."""
    async with running(tmp_path, limits=LIMITS, extend=extend, options={"completion": 5, "pad": int(megabytes * 1e6)}) as bench:
        answer = await bench.chat(stream=True, max_tokens=5)
        assert (answer.done, len(answer.body) > megabytes * 1e6) == (True, True)


@EXTEND
async def test_case_81_a_line_without_end_is_an_error(tmp_path: Path, extend: bool) -> None:
    """Above the hard bound of 16 MB: an error for the client, what may have been produced is charged, and memory stays bounded."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(STREAM_HEAD + framed(sse(chunk("ab"))) + b"ffffffff\r\ndata: ")
        for _ in range(40):
            writer.write(b"x" * 1_000_000)
            await writer.drain()

    async with scripted(script) as port, running(tmp_path, upstream=port, limits=LIMITS, extend=extend) as bench:
        bench.truth, bench.slack = (PROMPT_TOKENS, 1), 50
        answer = await bench.chat(stream=True, max_tokens=50)
        assert (answer.clean, answer.done, answer.error["code"]) == (False, False, "upstream_error")


@pytest.mark.parametrize("comment", [": OPENROUTER PROCESSING\n\n", ":\n\n", ": ping\n\n", ": a\n: b\n\n", ":ok\r\n\r\n"])
async def test_case_82_and_83_comments(tmp_path: Path, comment: str) -> None:
    """Before the first output, between chunks, after an event with an id: forwarded as a comment in a line of its own, or dropped; never as data."""
    pieces = (comment.encode(), sse(chunk()), comment.encode(), b"id: 1\n" + sse(chunk("ab")), comment.encode(), sse(chunk(finish="stop"), None))
    async with scripted(saying(*pieces)) as port, running(tmp_path, upstream=port, limits=LIMITS) as bench:
        bench.truth, bench.slack = (PROMPT_TOKENS, 1), 5000
        answer = await bench.chat(stream=True, max_tokens=50)
        assert (answer.text, answer.done) == ("ab", True)
        assert b"data: :" not in answer.body
        text = answer.body.decode().replace("\r\n", "\n")
        for block in text.split("\n\n"):
            assert not block or any(line.startswith("data: ") for line in block.split("\n")), text


@pytest.mark.parametrize("insert", [0, 3])
@EXTEND
async def test_case_82_comments_between_the_chunks_of_the_mock(tmp_path: Path, insert: int, extend: bool) -> None:
    """They change no count."""
    options = {"completion": 10, "insert": {str(insert): ": keep-alive\n\n"}}
    async with running(tmp_path, limits=LIMITS, extend=extend, options=options) as bench:
        answer = await bench.chat(stream=True, max_tokens=10)
        assert (answer.done, b": keep-alive\n" in answer.body) == (True, True)


@pytest.mark.parametrize("asked", [False, True])
async def test_case_85_unknown_fields_pass(tmp_path: Path, asked: bool) -> None:
    """logprobs, reasoning, system_fingerprint, vendors' own: every field of every chunk arrives, whether or not usage is taken out."""
    options = {
        "completion": 5, "reasoning": "visible", "reasoning_tokens": 2, "usage": "with_choices",
        "chunk_fields": {"system_fingerprint": "fp", "x_vendor": {"usage": None, "a": [1]}}, "choice_fields": {"logprobs": {"content": []}, "own": 1},
    }  # fmt: skip
    async with running(tmp_path, limits=LIMITS, options=options) as bench:
        answer = await bench.chat(stream=True, stream_options=ASKED if asked else ..., max_tokens=50)
        assert all(event["system_fingerprint"] == "fp" and event["x_vendor"] == {"usage": None, "a": [1]} for event in answer.events)
        assert all(choice["own"] == 1 and choice["logprobs"] == {"content": []} for choice in answer.choices)
        assert answer.finishes == {0: "stop"}
        assert sum("reasoning_content" in choice["delta"] for choice in answer.choices) == 2


SHAPES: list[tuple[str, dict[str, Any], str]] = [
    ("content list", {"content": [{"type": "text", "text": "one two"}, {"type": "text", "text": " three"}]}, "one two three"),
    ("refusal", {"refusal": "one two three"}, "one two three"),
    ("audio", {"audio": {"id": "a", "data": "AAAA", "transcript": "one two three"}}, "one two three"),
    ("function_call", {"function_call": {"name": "one", "arguments": " two three"}}, "one two three"),
    ("tool call", {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "one", "arguments": " two three"}}]}, "one two three"),
    ("reasoning", {"reasoning": "one two three"}, "one two three"),
    ("both", {"reasoning": "one two three", "reasoning_content": "one two three"}, "one two three"),
    ("thinking blocks", {"reasoning_details": [{"type": "reasoning.text", "text": "one two three"}]}, "one two three"),
]


@pytest.mark.parametrize(("name", "delta", "_text"), SHAPES, ids=[name for name, *_ in SHAPES])
async def test_case_117_output_in_every_shape_is_counted(tmp_path: Path, name: str, delta: dict[str, Any], _text: str) -> None:
    """Content as a list, refusals, transcripts, calls, reasoning: three tokens each (and 8 for the frame of a call), without usage to tell it."""
    pieces = (sse(chunk() | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}, chunk(finish="stop"), None),)
    async with scripted(saying(*pieces)) as port, running(tmp_path, upstream=port, limits=LIMITS, extend=True) as bench:
        bench.truth, bench.slack = (PROMPT_TOKENS, 3), 8
        answer = await bench.chat(stream=True, max_tokens=50)
        assert answer.choices[0]["delta"] == delta
        assert (await charged(bench))[1] == 3 + (8 if "call" in name else 0)


@pytest.mark.parametrize("kind", ["text/event-stream", "text/event-stream; charset=utf-8", "Text/Event-Stream;charset=UTF-8"])
async def test_the_kind_of_a_stream_in_every_spelling(tmp_path: Path, kind: str) -> None:
    """Media types do not depend on case, and may have parameters."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\nconnection: close\r\n\r\n" % kind.encode())
        writer.write(sse(chunk("ab"), chunk(finish="stop"), usage_chunk(5, 2), None))

    async with scripted(script) as port, running(tmp_path, upstream=port, limits=LIMITS) as bench:
        bench.truth = (5, 2)
        answer = await bench.chat(stream=True)
        assert (answer.text, answer.done, answer.headers["content-type"]) == ("ab", True, "text/event-stream; charset=utf-8")
