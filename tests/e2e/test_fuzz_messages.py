"""Whatever an upstream answers, over `/v1/messages` and for chats that are translated to it: see support_fuzz_gateway. A client of messages gets a
stream in which one block is open at a time, whatever a provider of another dialect has said, and every stream ends as its dialect says."""

import asyncio
import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from support_fuzz import profile
from support_fuzz_gateway import CAP, PRICED, Fuzz
from support_fuzz_messages import MESSAGES, outputs
from support_fuzz_upstream import CHAT, SECRET, Answer, answers
from support_inloop import Connection, Reply, request

MODELS = f"""
  same: {{deployments: [{{provider: anthropic, model: one, {PRICED}}}]}}
  open: {{deployments: [{{provider: fast, model: one, {PRICED}}}]}}
  other: {{deployments: [{{provider: compatible, model: one, {PRICED}}}]}}
"""
PROVIDERS = """
  anthropic: {provider: anthropic, base_url: "UPSTREAM", api_key: sk-provider-secret}
  fast: {provider: anthropic, base_url: "UPSTREAM", api_key: sk-provider-secret, extend: on, tokenizer: o200k_base}
  compatible: {provider: openai_compatible, base_url: "UPSTREAM", api_key: sk-provider-secret, extend: on, tokenizer: o200k_base}
"""


class Translated(Fuzz):
    """Chats at providers of messages."""

    providers, models = PROVIDERS, MODELS

    @staticmethod
    def number(body: Any) -> int:
        return int(body["metadata"]["user_id"] if "metadata" in body else body["user"])

    async def open(self, key: str, number: int, fields: dict[str, Any]) -> Connection:
        return await self.bench.open(key, **{**fields, "user": str(number)})


class Messages(Translated):
    """Messages at providers of either dialect."""

    outputs = staticmethod(outputs)

    async def open(self, key: str, number: int, fields: dict[str, Any]) -> Connection:
        asked = {**fields, "messages": [{"role": "user", "content": "Tell me"}], "metadata": {"user_id": str(number)}}
        connection = await self.bench.connect()
        connection.send(request(json.dumps(asked).encode(), key, path="/v1/messages"))
        return connection

    def well_formed(self, reply: Reply, fields: dict[str, Any]) -> None:
        error: Any = None
        if reply.status != 200:
            assert reply.clean and 400 <= reply.status <= 599
            error = reply.json
        elif not fields["stream"]:
            assert reply.clean and isinstance(reply.json, dict)
            assert fields["model"] != "other" or all(isinstance(block["type"], str) for block in reply.json["content"])
        else:
            events = [] if fields["model"] != "other" else _events(reply.body)
            _blocks(events)
            if reply.clean:
                assert b"message_stop" in reply.body[-300:], reply.body[-300:]
                assert not events or [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
            else:
                last = reply.body.rstrip(b"\n").rpartition(b"event: error\n")[2]
                error = json.loads(last.removeprefix(b"data: "))
        if error is not None:
            assert error["type"] == "error" and isinstance(error["request_id"], str)
            assert error["error"]["message"] and len(error["error"]["message"]) <= 2500
            assert re.fullmatch(r"[a-z_]+_error|request_too_large", error["error"]["type"]) and error["error"]["code"] != "internal_error"
            assert SECRET not in json.dumps(error)

    def _count(self, reply: Reply, fields: dict[str, Any]) -> None:
        kind = "whole" if not fields["stream"] else "stream" if reply.clean else "broken"
        self.codes[kind if reply.status == 200 else reply.code] += 1
        if reply.code in ("budget_exceeded", "request_too_large"):
            self._keys.pop(0)


def _events(body: bytes) -> list[Any]:
    """The data of events that the gateway wrote itself."""
    found = []
    for raw in body.split(b"\n\n")[:-1]:
        name, _, data = raw.partition(b"\n")
        found.append(json.loads(data.removeprefix(b"data: ")))
        assert name == b"event: " + found[-1]["type"].encode()
    return found


def _blocks(events: list[Any]) -> None:
    """One block at a time, numbered from 0; a stream that does not break off closes each."""
    begun, current = 0, None
    for place, event in enumerate(events):
        match event["type"]:
            case "message_start":
                assert place == 0
            case "content_block_start":
                assert current is None and event["index"] == begun
                current, begun = begun, begun + 1
            case "content_block_delta":
                assert event["index"] == current
            case "content_block_stop":
                assert event["index"] == current
                current = None
            case "message_delta" | "message_stop":
                assert current is None


@pytest.fixture(params=[Messages, Translated], ids=["messages", "chats"])
def fuzz(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fuzz]:
    with asyncio.Runner() as runner, contextlib.ExitStack() as stack:
        yield request.param(runner, tmp_path, stack)


def example(r: Random, models: tuple[str, ...]) -> tuple[dict[str, Any], Answer]:
    """What is asked, and what is answered; shown if it fails."""
    fields = {"model": r.choice(models), "stream": r.random() < 0.7, "max_tokens": CAP}
    answer = answers(r, fields["stream"], 1, CHAT if fields["model"] == "other" else MESSAGES)
    note(f"{fields}\n{answer}")
    return fields, answer


randoms = st.randoms(use_true_random=True)  # seeded by what is drawn


def test_any_answers(fuzz: Fuzz) -> None:
    """Right and wrong, cut and damaged at any level, one by one and several at once, of which some clients leave: each has its own answer and is
    charged for it."""
    models = ("same", "open", "other") if isinstance(fuzz, Messages) else ("same", "open")

    @profile(150)
    @given(randoms)
    def drawn(r: Random) -> None:
        count = r.choice((1, 1, 1, 4))
        fuzz.ask(*(example(r, models) for _ in range(count)), leaving=r.choice((0, 1)) if count > 1 else 0)

    drawn()
    assert {"stream", "broken", "whole", "upstream_error"} <= fuzz.codes.keys()


def test_what_counts_as_output() -> None:
    """Of a stream that is right, as many changes as there are."""
    stream = "".join(MESSAGES.streams(Random(5), 1)[0]).encode()
    assert outputs(stream) == len(re.findall(rb'"(?:text|thinking|partial_json)": "[^"]', stream)) > 0
