"""Content rules before a request is sent: what is read, in which turns, and what goes on."""

import asyncio
import json
import random
import time
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from sluicegate import ruling
from sluicegate.core.content_rules import ContentRules, Rules
from sluicegate.core.phrases import MATCHES_MAX, SLICE, Phrase
from sluicegate.core.speech import at_once
from sluicegate.dialects import anthropic_messages, openai_chat, openai_completions, openai_embeddings, openai_responses
from sluicegate.dialects.ruled import Ruled
from sluicegate.reject import Reject
from support_ruled import STREAMS, ruled, text_in, whole_answer
from support_ruled import rules as answer_rules


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


@pytest.mark.parametrize("before", ["", "x " * 20_000, "b" * SLICE, "x" * (SLICE - 2)])
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


async def test_a_ceiling_on_thinking_goes_with_the_request() -> None:
    """For providers of another dialect, whether or not anything else is changed."""
    low = (("reasoning_effort", "low"), ("thinking_budget", 1024))
    for rules in (Rules("a", ceilings=low), Rules("a", ceilings=low, system_prompt="Be kind."), Rules("a", force=low[:1])):
        told = await asked(trip(), ContentRules((rules,)), messages=[{"role": "user", "content": "Hi"}])
        assert told.effort_most == "low"
    assert (await asked(trip(), MASK, messages=[{"role": "user", "content": "Hi"}])).effort_most == ""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"a":"b\\u006fmb","k":1e400}', '{"a":"#","k":1e400}'),
        ('{"a":"\\u0062omb","k":"\\ud83d"}', '{"a":"#","k":"\\ud83d"}'),
        ('{"a":"\\\\ \\u0062omb and bomb', '{"a":"\\\\ # and #'),
        ('{"a":"bomb","a":"ok"}', '{"a":"#","a":"ok"}'),
        ('{"bomb":1,"#":2}', '{"# 2":1,"#":2}'),
    ],
)
async def test_escapes_hide_nothing_in_arguments(text: str, told: str) -> None:
    """JSON to us or not, they are masked where they are written, or refused."""
    call = {"id": "t", "type": "function", "function": {"name": "f", "arguments": text}}
    messages = [{"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "tool_call_id": "t", "content": "x"}]
    request = await asked(trip(), MASK, messages=messages)
    assert json.loads(bytes(request.fields["messages"]))[0]["tool_calls"][0]["function"]["arguments"] == told
    with pytest.raises(Reject) as rejected:
        await asked(trip(), banned(Phrase("p", "bomb")), messages=messages)
    assert rejected.value.code == "content_policy"


async def test_inputs_of_embeddings_are_searched_and_tokens_refused() -> None:
    """What cannot be read cannot be searched."""
    told = await asked(trip(openai_embeddings), MASK, input=["a bomb", "x"])
    assert json.loads(bytes(told.fields["input"])) == ["a #", "x"]
    with pytest.raises(Reject) as rejected:
        await asked(trip(openai_embeddings), MASK, input=[1, 2])
    assert (rejected.value.code, rejected.value.param) == ("content_policy", "prompt")


@pytest.mark.parametrize("dialect", sorted(STREAMS))
@pytest.mark.parametrize("action", ["mask", "refuse", "report"])
def test_what_waits_where_a_stream_is_cut_is_found_before_its_record_is_made(dialect: str, action: Any) -> None:
    """Its last bytes are written later, and have the same in them. What is refused there ends the stream as anything that is refused."""
    acted: set[str] = set()
    one = ruled(dialect, answer_rules(Phrase("last", "regex:the.{1,400}", action, mask="#")), stream=True, acted=acted)
    reader = one.StreamReader()
    data = STREAMS[dialect](["say the", " wo", "rd. And more"])
    covered = [event for event in reader.feed(data[: data.index(b"rd. And")]) if event.deltas][1]
    assert acted == set()
    relay = SimpleNamespace(ended="truncated", truncated="budget", after=covered.after)
    ruling.end(SimpleNamespace(via=one), relay)  # type: ignore[arg-type]
    assert (acted, relay.truncated, one.refused) == ({"last"}, *(("policy", "last") if action == "refuse" else ("budget", "")))
    end = one.write_truncation(reader.head, covered.after, [0], "budget", None)
    assert (b"#" in end, acted) == (action == "mask", {"last"})


def test_a_stream_that_died_or_of_which_nothing_is_covered_has_no_last_words() -> None:
    """None of it is told any more."""
    acted: set[str] = set()
    one = ruled("openai_chat", answer_rules(Phrase("last", "regex:the.{1,400}", "mask")), stream=True, acted=acted)
    data = STREAMS["openai_chat"](["say the", " wo", "rd"])
    one.StreamReader().feed(data[: data.index(b'"rd"')])
    for ended in ("died", "truncated"):
        ruling.end(SimpleNamespace(via=one), SimpleNamespace(ended=ended, truncated="", after=None))  # type: ignore[arg-type]
    assert acted == set()
    ruling.end(SimpleNamespace(via=one), SimpleNamespace(ended="complete", truncated="", after=None))  # type: ignore[arg-type]
    assert acted == {"last"}


async def test_a_long_hostile_request_leaves_the_loop_its_turns() -> None:
    """A text that is written against a pattern that has hundreds of beginnings under way at once: others wait for a few milliseconds at a time."""
    waits: list[float] = []

    async def others() -> None:
        while True:
            begun = time.perf_counter()
            await asyncio.sleep(0)
            waits.append(time.perf_counter() - begun)

    rules = banned(Phrase("p", r"regex:[ab].{0,60}z"))
    begun_all = time.process_time()
    ticking = asyncio.get_running_loop().create_task(others())
    await asked(trip(), rules, messages=[{"role": "user", "content": "z" + "".join(random.Random(1).choices("abcd", k=10_000))}])
    ticking.cancel()
    assert len(waits) >= (time.process_time() - begun_all) / 0.006


@pytest.mark.parametrize("action", ["mask", "report"])
async def test_a_text_full_of_a_phrase_is_read_in_short_turns_and_little_time(action: str) -> None:
    """A match costs what it costs for a few thousand of them; then the rest is masked as one, and a report is looked for once."""
    of = trip()
    begun = time.process_time()
    told = await asked(of, banned(Phrase("p", "foo", action, mask="#")), messages=[{"role": "user", "content": "foo " * 262_144}])  # type: ignore[arg-type]
    assert time.process_time() - begun < 0.5
    assert of.acted == {"p"}
    assert told.texts[0].count("#") == (MATCHES_MAX + 1 if action == "mask" else 0)


@pytest.mark.parametrize("before", ["", "x" * SLICE])
async def test_a_phrase_over_parts_of_a_message_is_found(before: str) -> None:
    """Parts that stand side by side are read as one, each by itself too; a picture between them, or another message, parts them."""

    def message(*texts: str | None) -> dict[str, Any]:
        picture = {"type": "image_url", "image_url": {"url": "https://a.b/c.png"}}
        return {"role": "user", "content": [picture if text is None else {"type": "text", "text": text} for text in texts]}

    def texts(told: Any) -> list[Any]:
        return [[part.get("text") for part in each["content"]] for each in json.loads(bytes(told.fields["messages"]))]

    of = trip()
    told = await asked(of, MASK, messages=[message(before + "a bo", "mb", " gu"), message("n bo", None, "mb")])
    assert texts(told) == [[before + "a #", "#", " gu"], ["n bo", None, "mb"]]
    assert of.acted == {"p"}
    with pytest.raises(Reject) as rejected:
        await asked(trip(), banned(Phrase("p", "bomb")), messages=[message(before + "b", "o", "mb")])
    assert rejected.value.code == "content_policy"
    parts = [{"type": "text", "text": before + "a bo"}, {"type": "refusal", "refusal": "mb"}]
    told = await asked(trip(), MASK, messages=[{"role": "assistant", "content": parts}, {"role": "user", "content": "Hi"}])
    assert json.loads(bytes(told.fields["messages"]))[0]["content"] == [parts[0] | {"text": before + "a #"}, parts[1] | {"refusal": "#"}]
    words = banned(Phrase("w", "cat", "mask", words=True, mask="#"))
    assert texts(await asked(trip(), words, messages=[message(before + " cat", "fish")])) == [[before + " #", "fish"]]
    blocks = [{"type": "text", "text": "a bo"}, {"type": "text", "text": "mb"}]
    told = await asked(trip(anthropic_messages), MASK, max_tokens=5, system=blocks, messages=[{"role": "user", "content": before + "Hi"}])
    assert [block["text"] for block in json.loads(bytes(told.fields["system"]))] == ["a #", "#"]


async def answered(of: Any, rules: ContentRules, answer: bytes) -> tuple[Ruled, bytes]:
    """What a client gets of a whole answer."""
    request = SimpleNamespace(fields={}, stream=False)
    via = ruling.over(of, rules, of.dialect, request)  # type: ignore[arg-type]
    assert isinstance(via, Ruled)
    told = via.read_answer(answer)
    if via.steps is not None:
        await ruling.take_steps(via, via.steps)
    return via, told.body or answer


@pytest.mark.parametrize("dialect", [openai_chat, openai_completions, openai_responses, anthropic_messages])
@pytest.mark.parametrize("text", ["a BOMB and a gun", "x " * SLICE + "BOMB and gun", "b" * SLICE + "omb gun bomb", "word " * SLICE])
async def test_long_answers_are_masked_as_short_ones_are(dialect: Any, text: str) -> None:
    """Over the borders of slices too, with the disclaimer behind; nothing else changes."""
    rules = ContentRules((Rules("a", disclaimer="No advice.", banned=MASK.chain[0].banned),))
    of = trip(dialect)
    _, told = await answered(of, rules, whole_answer(dialect.NAME, text))
    masked = text.replace("BOMB", "#").replace("bomb", "#")
    assert json.loads(told) == json.loads(whole_answer(dialect.NAME, f"{masked}\n\nNo advice."))
    assert of.acted == ({"p", "q"} if "gun" in text else set())
    assert text_in(dialect.NAME, told).endswith("No advice.")


@pytest.mark.parametrize("size", [0, SLICE])
async def test_long_answers_are_refused_as_short_ones_are(size: int) -> None:
    """What is told of them then is nothing that they said."""
    via, told = await answered(trip(), banned(Phrase("p", "bomb"), Phrase("q", "gun", "mask")), whole_answer("openai_chat", "x " * size + "bomb gun"))
    assert via.refused == "p"
    assert json.loads(told)["choices"][0]["message"]["content"] == ""


async def test_a_long_hostile_answer_leaves_the_loop_its_turns() -> None:
    """One text or thousands of short ones, in arguments too: others wait for a few milliseconds at a time."""
    rules = banned(Phrase("p", r"regex:[ab].{0,60}z", "mask"))
    hostile = "z" + "".join(random.Random(1).choices("abcd", k=10_000))
    pieces = ["z" + hostile[at : at + 100] for at in range(0, len(hostile), 100)]
    calls = [{"id": "t", "type": "function", "function": {"name": "f", "arguments": json.dumps({"a": pieces})}}]
    for message in ({"content": hostile}, {"content": [{"type": "text", "text": piece} for piece in pieces]}, {"content": None, "tool_calls": calls}):
        waits: list[float] = []

        async def others(waits: list[float] = waits) -> None:
            while True:
                begun = time.perf_counter()
                await asyncio.sleep(0)
                waits.append(time.perf_counter() - begun)

        ticking = asyncio.get_running_loop().create_task(others())
        begun_all = time.process_time()
        await answered(trip(), rules, json.dumps({"choices": [{"index": 0, "message": {"role": "assistant", **message}}]}).encode())
        ticking.cancel()
        assert len(waits) >= (time.process_time() - begun_all) / 0.006


SAID = {"index": 0, "message": {"role": "assistant", "content": "a bomb"}, "finish_reason": "stop"}
BLOCK = {"type": "text", "text": "a bomb"}


@pytest.mark.parametrize(
    ("dialect", "answer", "usual"),
    [
        (openai_chat, {"id": "c", "choices": [SAID], "usage": {"completion_tokens": 2}}, True),
        (
            openai_chat,
            {"choices": [SAID | {"message": {"role": "assistant", "content": "a b\u00f6mb \n", "refusal": None, "annotations": []}}]},
            True,
        ),
        (openai_chat, {"choices": [SAID | {"message": {"content": ""}}]}, True),
        (openai_completions, {"choices": [{"index": 0, "text": "a bomb", "logprobs": None, "finish_reason": "stop"}]}, True),
        (openai_chat, {"id": "a bomb", "choices": [SAID]}, False),
        (openai_chat, {"usage": {"completion_tokens": 2}, "choices": [SAID]}, True),
        (anthropic_messages, {"usage": {"output_tokens": 2}, "content": [{"text": "a bomb", "type": "text"}]}, True),
        (openai_chat, {"choices": [SAID, SAID | {"index": 1}]}, False),
        (openai_chat, {"choices": [SAID | {"message": {"content": "a bomb", "reasoning": "a bomb"}}]}, False),
        (openai_chat, {"choices": [SAID | {"message": {"content": "x", "odd": "a bomb"}}]}, False),
        (openai_chat, {"choices": [SAID | {"text": "bomb"}]}, False),
        (openai_chat, {"choices": [SAID | {"message": {"content": None}}]}, False),
        (openai_chat, {"choices": [SAID | {"logprobs": {"content": [{"token": "bomb"}]}}]}, False),
        (anthropic_messages, {"type": "message", "content": [BLOCK], "usage": {"output_tokens": 2}}, True),
        (anthropic_messages, {"type": "message", "content": [BLOCK, {"type": "text", "text": "b"}]}, False),
        (anthropic_messages, {"type": "message", "content": [BLOCK | {"citations": [{"cited_text": "x"}]}]}, False),
        (anthropic_messages, {"type": "message", "content": [{"type": "thinking", "thinking": "bomb", "signature": "s"}]}, False),
        (openai_responses, {"output": [{"type": "message", "content": [{"type": "output_text", "text": "a bomb"}]}]}, False),
    ],
)
@pytest.mark.parametrize("note", ["", "No advice."])
async def test_an_answer_that_is_changed_in_its_bytes_says_what_any_other_way_would(dialect: Any, answer: Any, usual: bool, note: str) -> None:
    """Where nothing but one text is said. Every other answer is decoded."""
    rules = ContentRules((Rules("a", disclaimer=note, banned=MASK.chain[0].banned),))
    via, told = await answered(trip(dialect), rules, json.dumps(answer).encode())
    shaper = via._new_shaper()
    quickly = shaper.usual(json.dumps(answer).encode())
    assert (quickly is not None) is usual
    again = json.loads(json.dumps(answer))
    at_once(shaper.body(again))
    assert json.loads(told) == again
    if quickly:
        assert json.loads(quickly) == again


async def test_an_ordinary_long_answer_keeps_its_bytes() -> None:
    """But for the disclaimer: nothing that a rule looks for is in it, and that shows at once."""
    rules = ContentRules((Rules("a", disclaimer="No advice.", banned=MASK.chain[0].banned),))
    answer = whole_answer("openai_chat", "word " * SLICE)
    via, told = await answered(trip(), rules, answer)
    assert via.steps is None
    assert told == answer.replace(b'word "', b'word \\n\\nNo advice."')


@pytest.mark.parametrize(
    ("fields", "noted"),
    [
        ({}, True),
        ({"response_format": {"type": "text"}, "guided_json": None, "format": "", "structured_outputs": {}}, True),
        ({"response_format": {"type": "json_object"}}, False),
        ({"response_format": {"type": "grammar", "grammar": "root ::= x"}}, False),
        ({"guided_json": {"type": "object"}}, False),
        ({"guided_choice": ["a", "b"]}, False),
        ({"structured_outputs": {"json": {}}}, False),
        ({"grammar": "root ::= x"}, False),
        ({"format": "json"}, False),
        ({"extra_body": {"guided_json": {"type": "object"}}}, False),
        ({"extra_body": {"extra_body": {"top_k": 5}}}, True),
        ({"extra_body": 5}, True),
    ],
)
async def test_an_answer_that_is_asked_to_have_a_form_gets_no_disclaimer(fields: dict[str, Any], noted: bool) -> None:
    """Which would break it; in whichever way it is asked for."""
    request = SimpleNamespace(fields={name: msgspec.Raw(json.dumps(value).encode()) for name, value in fields.items()}, stream=False)
    via = ruling.over(trip(), ContentRules((Rules("a", disclaimer="No advice."),)), openai_chat, request)  # type: ignore[arg-type]
    told = via.read_answer(whole_answer("openai_chat", "{}")).body
    assert (b"No advice." in told) is noted
