"""Content rules before a request is sent: what is read, in which turns, and what goes on."""

import asyncio
import json
import time
from types import SimpleNamespace
from typing import Any

import pytest

from sluicegate import ruling
from sluicegate.core.content_rules import ContentRules, Rules
from sluicegate.core.phrases import Phrase
from sluicegate.dialects import openai_chat, openai_embeddings
from sluicegate.reject import Reject


def trip(dialect: Any = openai_chat) -> Any:
    return SimpleNamespace(dialect=dialect, include=frozenset(), acted=set(), changed=[])


async def asked(of: Any, rules: ContentRules, **body: Any) -> Any:
    data = json.dumps({"model": "m", **body}).encode()
    request = of.dialect.read_request(data)
    return await ruling.ask(of, None, rules, request, len(data), None)  # type: ignore[arg-type]


def banned(*phrases: Phrase) -> ContentRules:
    return ContentRules((Rules("a", banned=phrases),))


MASK = banned(Phrase("p", "bomb", "mask", mask="#"), Phrase("q", "gun", "report"))


async def test_a_request_in_which_nothing_is_found_is_the_same() -> None:
    """The very object, usual or not, short or long."""
    for more in ({}, {"metadata_x": {"a": "b"}}, {"messages": [{"role": "user", "content": "word " * 10_000}]}):
        of = trip()
        body = {"messages": [{"role": "user", "content": "Hi"}], **more}
        request = openai_chat.read_request(json.dumps({"model": "m", **body}).encode())
        assert await ruling.ask(of, None, MASK, request, len(json.dumps(body)), None) is request  # type: ignore[arg-type]
        assert of.acted == set()


@pytest.mark.parametrize("before", ["", "x " * 20_000, "b" * ruling.SLICE, "x" * (ruling.SLICE - 2)])
async def test_long_texts_are_masked_as_short_ones_are(before: str) -> None:
    """Over the borders of slices too; everything else is as it was, the figures are those of the new texts."""
    of = trip()
    told = await asked(of, MASK, messages=[{"role": "user", "content": f"{before}BOMB and gun"}], odd={"n": 1})
    assert json.loads(bytes(told.fields["messages"]))[0]["content"] == f"{before}# and gun"
    assert told.texts[0] == f"{before}# and gun"
    assert json.loads(bytes(told.fields["odd"])) == {"n": 1}
    assert of.acted == {"p", "q"}


async def test_an_escaped_phrase_in_a_tool_is_found() -> None:
    """Descriptions come as JSON in JSON; names of properties count."""
    tools = [{"type": "function", "function": {"name": "f", "description": 'a "bo\u200bmb"', "parameters": {"properties": {"gun": {}}}}}]
    of = trip()
    told = await asked(of, MASK, messages=[{"role": "user", "content": "Hi"}], tools=tools)
    assert json.loads(bytes(told.fields["tools"]))[0]["function"]["description"] == 'a "#"'
    assert of.acted == {"p", "q"}
    with pytest.raises(Reject) as rejected:
        await asked(trip(), banned(Phrase("p", "gun")), messages=[{"role": "user", "content": "Hi"}], tools=tools)
    assert (rejected.value.status, rejected.value.code, rejected.value.detail) == (400, "content_policy", {"rule": "p", "on": "input"})


async def test_inputs_of_embeddings_are_searched_and_tokens_refused() -> None:
    """What cannot be read cannot be searched."""
    told = await asked(trip(openai_embeddings), MASK, input=["a bomb", "x"])
    assert json.loads(bytes(told.fields["input"])) == ["a #", "x"]
    with pytest.raises(Reject) as rejected:
        await asked(trip(openai_embeddings), MASK, input=[1, 2])
    assert (rejected.value.code, rejected.value.param) == ("content_policy", "prompt")


async def test_a_long_hostile_request_leaves_the_loop_its_turns() -> None:
    """A megabyte for a pattern that has hundreds of beginnings under way at once: others wait for no more than a slice."""
    waits: list[float] = []

    async def others() -> None:
        while True:
            begun = time.perf_counter()
            await asyncio.sleep(0)
            waits.append(time.perf_counter() - begun)

    rules = banned(Phrase("p", r"regex:[ab].{0,40}z"))
    ticking = asyncio.get_running_loop().create_task(others())
    await asked(trip(), rules, messages=[{"role": "user", "content": "abcd" * 50_000}])
    ticking.cancel()
    assert len(waits) >= 200_000 // ruling.SLICE - 2
