"""Over `/v1/responses`: whatever a client asks and whatever an upstream answers. Never a 500, always an end that a client of this dialect can read,
no hold left, nothing negative, and the cap holds.

All is made with a Random: one seed, the same few hundred examples each time, or with SLUICEGATE_FUZZ=20000 so many new ones.
"""

import asyncio
import json
from collections import Counter
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import pytest

import support_golden
from support_fuzz import EXAMPLES
from support_inloop import Bench, Reply, request, running
from support_sockets import read_request, scripted

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 1.5, 2**53, 10**400, 1e308, "", "x", "\ud800", "\u2028", [], {}, [[]], [{}], [None], {"type": "x"}, "x" * 5000),
    *({"type": "message"}, {"type": "reasoning", "id": "r"}, {"type": "input_image", "image_url": "data:,"}, [1, "a"], {"a": [{"b": "c"}]}),
)
STREAM = pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a JSON value: what holds it, and its name or index there."""
    found: list[tuple[Any, Any]] = []
    for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
        found.append((value, name))
        if isinstance(inner, dict | list):
            found += places(inner)
    return found


def spoil(value: Any, r: Random, times: int) -> Any:
    """A value that is wrong in so many places: something else stands there, nothing, or the same twice."""
    value = deepcopy(value)
    for _ in range(times):
        found = places(value)
        if not found:
            break
        holder, name = r.choice(found)
        what = r.randrange(4)
        if what == 0:
            del holder[name]
        elif what == 1 and isinstance(holder, list):
            holder.insert(r.randrange(len(holder) + 1), deepcopy(holder[name]))
        elif what == 2 and isinstance(holder, dict):
            holder[r.choice(("x", "type", "text", "id", str(name).upper()))] = deepcopy(r.choice(ODD))
        else:
            holder[name] = deepcopy(r.choice(ODD))
    return value


def ended_well(reply: Reply, stream: bool) -> str:
    """How a client sees it end: "200", "incomplete", "broken", or the code of an error."""
    if reply.status != 200:
        assert reply.clean and reply.status not in (500, 501), reply.body[:500]
        error = reply.json["error"]
        assert error["message"] and error["type"] and error["code"] != "internal_error"
        assert error["param"] is None or isinstance(error["param"], str)
        return str(error["code"])
    if not stream:
        assert reply.clean and isinstance(reply.json["output"], list)
        return "200"
    if reply.clean:
        said = reply.events[-1].get("type")
        last = said if said and isinstance(said, str) else [line for line in reply.lines if line.startswith("event: ")][-1].removeprefix("event: ")
        assert last in ("response.completed", "response.incomplete"), reply.body[-500:]
        return "200" if last == "response.completed" else "incomplete"
    assert [event["type"] for event in reply.events[-2:]] == ["error", "response.failed"], reply.body[-500:]
    return "broken"


# -- whatever is asked --------------------------------------------------------------------------------------------------------------------

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}, "strict": True}
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "low"}
ASKED: tuple[dict[str, Any], ...] = (
    {"input": "Tell me", "instructions": "Be brief.", "temperature": 0.5, "metadata": {"a": "b"}, "store": False},
    {"input": [{"role": "user", "content": "Tell me"}], "text": {"format": {"type": "json_object"}, "verbosity": "low"}, "top_p": 0.5},
    {"input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "See"}, IMAGE]}], "reasoning": {"effort": "low"}},
    {
        "input": [
            {"role": "developer", "content": "d"},
            {"role": "user", "content": "q"},
            {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "s"}], "encrypted_content": "sluicegate:thinking:S"},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "t"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a", "annotations": []}]},
            {"role": "user", "content": "q"},
        ],
        "tools": [TOOL],
        "tool_choice": {"type": "function", "name": "f"},
        "parallel_tool_calls": False,
    },
    {"input": "x", "previous_response_id": "resp_1", "prompt": {"id": "p"}, "include": ["reasoning.encrypted_content"], "truncation": "auto"},
)


@STREAM
@pytest.mark.parametrize("model", ["chat", "other"])
async def test_any_request(tmp_path: Path, model: str, stream: bool) -> None:
    """Served, or refused with the field named; at a provider that speaks this dialect, and translated."""
    r = Random(f"{model} {stream} {EXAMPLES or ''}")
    codes: Counter[str] = Counter()
    providers = "  compatible: {provider: openai_compatible, base_url: BASE_URL, tokenizer: o200k_base}"
    models = "  other: {deployments: [{provider: compatible, model: mock-other, price: {input: 0.5, output: 1.0}}]}"
    settings: dict[str, Any] = {"providers": providers, "models": models, "limits": "[1M tokens/day, $5/day]", "options": {"completion": 3}}
    async with running(tmp_path, **settings) as b:
        for _ in range(EXAMPLES or 80):
            asked = spoil(r.choice(ASKED) | {"max_output_tokens": 20}, r, r.randrange(4)) | {"model": model, "stream": stream}
            reply = await b.raw(request(json.dumps(asked).encode(), path="/v1/responses"))
            codes[ended_well(reply, stream)] += 1
        assert codes["200"] > 5 and codes.total() - codes["200"] > 5, codes


# -- whatever is answered -----------------------------------------------------------------------------------------------------------------

STREAMS = [path.read_bytes() for path in support_golden.streams("openai_responses")]


def streamed(r: Random) -> bytes:
    """A stream, with events lost, doubled, moved, spoilt, or cut short."""
    events = [event + b"\n\n" for event in r.choice(STREAMS).replace(b"\r\n", b"\n").split(b"\n\n") if event]
    for _ in range(r.randrange(4)):
        at = r.randrange(len(events))
        what = r.randrange(5)
        if what == 0 and len(events) > 1:
            del events[at]
        elif what == 1:
            events.insert(at, events[r.randrange(len(events))])
        elif what == 2 and events[at].startswith((b"event: ", b"data: {")):
            name, _, data = events[at].partition(b"data: ")
            try:
                events[at] = name + b"data: " + json.dumps(spoil(json.loads(data), r, 2)).encode() + b"\n\n"
            except ValueError:
                continue
        elif what == 3:
            events[at] = events[at][: r.randrange(len(events[at]))]
        elif r.randrange(4) == 0:
            events = [*events[:at], events[at][:20]]
            break
    return b"".join(events)


def whole(r: Random) -> bytes:
    """A whole response, spoilt."""
    last = r.choice([stream for stream in STREAMS if b"response.completed" in stream]).replace(b"\r\n", b"\n").partition(b"response.completed")[2]
    response = json.loads(last.partition(b'"response":')[2].partition(b"\n\n")[0].rpartition(b"}")[0])
    return json.dumps(spoil(response, r, r.randrange(4))).encode()


@STREAM
@pytest.mark.parametrize("extend", [False, True], ids=["capped", "extended"])
async def test_any_answer(tmp_path: Path, extend: bool, stream: bool) -> None:
    """It is told to its end or broken off with an error; what was reported of a whole answer is charged, and never less than nothing."""
    r = Random(f"{extend} {stream} {EXAMPLES or ''}")
    codes: Counter[str] = Counter()
    answer = b""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        kind = b"text/event-stream" if stream else b"application/json"
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: " + kind + b"\r\n\r\n")
        for at in range(0, len(answer), step := r.choice((1 << 20, 700, 90))):
            writer.write(answer[at : at + step])
            await asyncio.sleep(0)
        await writer.drain()

    async with scripted(script) as port, running(tmp_path, upstream=port, extend=extend, limits="[4503599627370495 tokens/day]") as b:
        b.whole = False  # nobody but the answer knows what was produced
        for _ in range(EXAMPLES or 80):
            answer = streamed(r) if stream else whole(r)
            code = await told(b, stream)
            codes[code] += 1
            assert b.record.input_tokens >= 0 and b.record.output_tokens >= 0 and b.record.cost_nano_usd >= 0
            if code == "200" and answer in STREAMS:
                assert b.record.source == "reported"
        assert codes["200"] > 5, codes
        assert not stream or codes["broken"] > 5, codes


async def told(b: Bench, stream: bool) -> str:
    asked = {"model": "chat", "input": "Tell me", "stream": stream, "max_output_tokens": 2000}
    return ended_well(await b.raw(request(json.dumps(asked).encode(), path="/v1/responses")), stream)
