"""Streams put together again: what a recorded stream says and what its answer in one piece says are the same, and so is the stream made of that."""

import contextlib
import json
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import support_golden
from sluicegate.core.usage import Usage, merge
from sluicegate.dialects import anthropic_messages, openai_chat, openai_completions, openai_responses
from sluicegate.dialects.assembling import Assembler, Unfaithful, assembled, assembler_of
from sluicegate.dialects.registry import between
from support_inloop import chunk, sse, usage_chunk

DIALECTS = {dialect.NAME: dialect for dialect in (openai_chat, openai_completions, openai_responses, anthropic_messages)}
STREAMS = [(name, path) for name in DIALECTS for path in support_golden.streams(name)]
# Streams that broke off, that are of a shape which means nothing, or whose texts cannot be written down.
LEFT_ALONE = {
    "bad_line_and_no_done",
    "error_in_a_choice",
    "error_in_the_middle",
    "lone_surrogates",
    "odd_shapes",
    "error_at_once",
    "error_documented",
}
LEFT_ALONE |= {"failed", "overloaded_in_the_middle"}


def said(text: str) -> Counter[str]:
    """Its characters: fields may stand in another order, and JSON may be spaced otherwise or be none for an empty object."""
    return Counter([c for c in text if c not in " {}"])


def of_stream(dialect: ModuleType, stream: bytes) -> Any:
    """Texts and finishes by choice, calls, usage."""
    reader = dialect.StreamReader()
    texts: dict[int, str] = {}
    calls, finishes, usage = 0, {}, None
    for event in (*reader.feed(stream), *reader.end()):
        for delta in event.deltas:
            texts[delta.choice] = texts.get(delta.choice, "") + delta.text
            calls += delta.tool_calls
        finishes.update(event.finishes)
        usage = merge(usage, event.usage) if event.usage is not None else usage
    if usage is not None:
        usage.early = False  # a whole answer has no start
    return {choice: said(text) for choice, text in texts.items()}, calls, finishes, usage


def of_body(dialect: ModuleType, body: bytes) -> Any:
    answer = dialect.read_answer(body)
    texts: dict[int, str] = {}
    for delta in answer.deltas:
        texts[delta.choice] = texts.get(delta.choice, "") + delta.text
    calls = sum(delta.tool_calls for delta in answer.deltas)
    return {choice: said(text) for choice, text in texts.items()}, calls, dict(answer.finishes), answer.usage


@pytest.mark.parametrize(("name", "path"), STREAMS, ids=[f"{name}-{path.stem}" for name, path in STREAMS])
def test_recorded_streams(name: str, path: Path) -> None:
    """In one piece and as a stream again they say what they said, also when they come byte by byte; those that cannot be told so are left alone."""
    dialect, stream = DIALECTS[name], path.read_bytes()
    if path.stem in LEFT_ALONE:
        with pytest.raises(Unfaithful):
            assembled(name, stream)
        return
    body = assembled(name, stream)
    assert of_body(dialect, body) == of_stream(dialect, stream) == of_stream(dialect, dialect.streamed(body))
    reader, assembler = dialect.StreamReader(), assembler_of(name)
    assert assembler is not None
    for i in range(len(stream)):
        for event in reader.feed(stream[i : i + 1]):
            assembler.add(event.raw)
    for event in reader.end():
        assembler.add(event.raw)
    assert assembler.body(None) == body


def chat(*events: Any, usage: Usage | None = None) -> Any:
    return json.loads(assembled("openai_chat", sse(*events), usage))


def delta(fields: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    return chunk() | {"choices": [{"index": 0, "delta": fields, "finish_reason": finish, **more}]}


def test_everything_of_a_chat() -> None:
    """Role, texts under known and unknown names, a refusal, logprobs, calls by index and by id, details of reasoning, usage, unknown fields."""
    logprobs = {"content": [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}], "refusal": None}
    answer = chat(
        delta({"role": "assistant", "content": "", "refusal": None}, system_only=1),
        delta({"content": "a", "reasoning_content": "th", "musing": "m"}, logprobs=logprobs) | {"service_tier": "default", "obfuscation": "xx"},
        delta({"content": "b", "reasoning_content": "ink", "musing": "n"}, logprobs=logprobs) | {"obfuscation": "yyy"},
        delta({"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "th"}]}),
        delta({"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "ink", "signature": "sig"}]}),
        delta({"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}]}),
        delta(
            {"tool_calls": [{"index": 0, "function": {"arguments": '{"x"'}}, {"index": 1, "id": "c2", "function": {"name": "g", "arguments": "{"}}]}
        ),
        delta({"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}, {"index": 1, "type": "function", "function": {"arguments": "}"}}]}),
        delta({"tool_calls": [{"index": 1, "id": "c3", "type": "custom", "custom": {"name": "h", "input": "in"}}]}),
        delta({}, "tool_calls", stop_reason="x"),
        usage_chunk(3, 4),
        None,
    )
    (choice,) = answer.pop("choices")
    message = choice.pop("message")
    assert answer == {
        **{"id": "c1", "object": "chat.completion", "created": 1, "model": "m", "service_tier": "default"},
        "usage": {"prompt_tokens": 3, "completion_tokens": 4},
    }
    assert choice["logprobs"] == {"content": [logprobs["content"][0]] * 2, "refusal": None}  # type: ignore[index]
    assert (choice["finish_reason"], choice["stop_reason"], choice["system_only"]) == ("tool_calls", "x", 1)
    assert message == {
        **{"role": "assistant", "content": "ab", "refusal": None, "reasoning_content": "think", "musing": "mn"},
        "reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "think", "signature": "sig"}],
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}},
            {"id": "c2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
            {"id": "c3", "type": "custom", "custom": {"name": "h", "input": "in"}},
        ],
    }


def test_content_that_is_not_there_is_null() -> None:
    """A message that calls or refuses, and says nothing, has no content; the older call of one function stays such a call."""
    called = chat(
        delta({"content": "", "function_call": {"name": "f", "arguments": "{"}}), delta({"function_call": {"arguments": "}"}}, "function_call")
    )
    assert called["choices"][0]["message"] == {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    refused = chat(delta({"content": "", "refusal": "no"}), delta({}, "stop"))
    assert refused["choices"][0]["message"] == {"role": "assistant", "content": None, "refusal": "no"}
    silent = chat(delta({"content": ""}), delta({}, "stop"))
    assert silent["choices"][0]["message"] == {"role": "assistant", "content": ""}


def test_usage_that_the_stream_does_not_say() -> None:
    """Is written as the dialect has it; what the stream says stands."""
    used = Usage(5, 6, cached_tokens=2)
    assert chat(delta({"content": "a"}, "stop"), usage=used)["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
    assert chat(delta({"content": "a"}, "stop"), usage_chunk(1, 2), usage=used)["usage"] == {"prompt_tokens": 1, "completion_tokens": 2}
    text = sse({"id": "c", "choices": [{"index": 0, "text": "a", "finish_reason": "stop"}]}, None)
    assert json.loads(assembled("openai_completions", text, used))["usage"]["total_tokens"] == 11


@pytest.mark.parametrize(
    "events",
    [
        [delta({"content": "a"}), delta({"content": [{"type": "text", "text": "b"}]}, "stop")],  # content of two kinds
        [delta({"audio": {"data": "AAAA"}}, "stop")],
        [delta({"thing": {"a": 1}}), delta({"thing": {"a": 2}}, "stop")],  # an unknown field of two values
        [delta({"content": "a"}) | {"x": 1}, delta({}, "stop") | {"x": 2}],
        [
            delta({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f"}}, {"index": 0, "function": {"name": "g"}}]})
        ],  # one call of two names
        [delta({"tool_calls": ["f"]})],
        [delta({"content": "a"}), {"error": {"message": "no"}}],
        [delta({"content": "a"}, "length") | {"sluicegate": {"truncated": "budget"}}],
        [{"choices": ["a"]}],
        [{"choices": [{"index": 0, "delta": "a"}]}],
        [{"x_groq": 1, "choices": []}],
        ["data: {\n\n"],
        ["data: []\n\n"],
        [None],
    ],
)
def test_what_is_not_understood_is_left_alone(events: list[Any]) -> None:
    """Rather than told wrongly."""
    with pytest.raises(Unfaithful):
        assembled("openai_chat", sse(*events))


def message(*events: tuple[str, dict[str, Any]]) -> Any:
    stream = b"".join(b"event: %b\ndata: %b\n\n" % (name.encode(), json.dumps({"type": name, **fields}).encode()) for name, fields in events)
    return json.loads(assembled("anthropic_messages", stream))


START = ("message_start", {"message": {"id": "m", "role": "assistant", "content": [], "usage": {"input_tokens": 5, "output_tokens": 1}}})
END = ("message_delta", {"delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": {"output_tokens": 7}})
STOP: tuple[str, dict[str, Any]] = ("message_stop", {})


def block(index: int, begun: dict[str, Any], *deltas: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    changes = [("content_block_delta", {"index": index, "delta": change}) for change in deltas]
    return [("content_block_start", {"index": index, "content_block": begun}), *changes, ("content_block_stop", {"index": index})]


def test_everything_of_a_message() -> None:
    """Thinking with its proof, text with citations, calls with and without arguments, usage of both ends, fields that come at the end."""
    answer = message(
        START,
        ("ping", {}),
        *block(
            0,
            {"type": "thinking", "thinking": "", "signature": ""},
            {"type": "thinking_delta", "thinking": "a"},
            {"type": "signature_delta", "signature": "s"},
        ),
        *block(
            1,
            {"type": "text", "text": "", "citations": []},
            *({"type": "text_delta", "text": "b"}, {"type": "citations_delta", "citation": {"n": 1}}, {"type": "text_delta", "text": "c"}),
        ),
        *block(
            2,
            {"type": "tool_use", "id": "t", "name": "f", "input": {}},
            {"type": "input_json_delta", "partial_json": '{"x": '},
            {"type": "input_json_delta", "partial_json": "1}"},
        ),
        *block(3, {"type": "tool_use", "id": "u", "name": "g", "input": {}}, {"type": "input_json_delta", "partial_json": ""}),
        (END[0], END[1] | {"context_management": {"applied_edits": []}}),
        STOP,
    )
    assert answer == {
        **{"id": "m", "role": "assistant", "stop_reason": "end_turn", "stop_sequence": None, "context_management": {"applied_edits": []}},
        "content": [
            {"type": "thinking", "thinking": "a", "signature": "s"},
            {"type": "text", "text": "bc", "citations": [{"n": 1}]},
            {"type": "tool_use", "id": "t", "name": "f", "input": {"x": 1}},
            {"type": "tool_use", "id": "u", "name": "g", "input": {}},
        ],
        "usage": {"input_tokens": 5, "output_tokens": 7},
    }
    again = json.loads(assembled("anthropic_messages", anthropic_messages.streamed(json.dumps(answer).encode())))
    assert again == answer


@pytest.mark.parametrize(
    "events",
    [
        [END, STOP],
        [START, ("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": "a"}}), END],
        [START, *block(0, {"type": "text", "text": ""}, {"type": "new_delta", "x": 1}), END],
        [START, *block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "a", "more": 1}), END],
        [START, *block(0, {"type": "tool_use", "input": {}}, {"type": "input_json_delta", "partial_json": '{"x"'}), END],
        [START, *block(0, {"type": "tool_use", "input": {"a": 1}}, {"type": "input_json_delta", "partial_json": "{}"}), END],
        [START, ("new_event", {}), END],
        [START, (END[0], END[1] | {"sluicegate": {"truncated": "budget"}})],
    ],
)
def test_messages_that_are_not_understood_are_left_alone(events: list[Any]) -> None:
    """Rather than told wrongly."""
    with pytest.raises(Unfaithful):
        message(*events)


def test_a_response_without_its_items_is_left_alone() -> None:
    """Some servers do not repeat the output in the last event; no stream of embeddings is known at all."""
    item = {"type": "response.output_item.done", "output_index": 0, "item": {"type": "message"}}
    done = {"type": "response.completed", "response": {"id": "r", "output": []}}
    for events in ([item, done], [item], [done | {"response": {"id": "r"}}], [{"type": "error"}, done]):
        with pytest.raises(Unfaithful):
            assembled("openai_responses", sse(*events))
    with pytest.raises(Unfaithful):
        assembled("openai_embeddings", b"")


# -- between two dialects -----------------------------------------------------------------------------------------------------------------

ASKED = {
    "openai_chat": b'{"model":"m","messages":[{"role":"user","content":"a"}],"stream":%b}',
    "openai_completions": b'{"model":"m","prompt":"a","stream":%b}',
    "openai_responses": b'{"model":"m","input":"a","stream":%b}',
    "anthropic_messages": b'{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"a"}],"stream":%b}',
}
PAIRS = [(client, provider) for client in ASKED for provider in ("openai_chat", "anthropic_messages") if client != provider]


def translated(client: str, provider: str, stream: bytes) -> tuple[bytes, bytes, Usage]:
    """What a client of another dialect gets: the stream put together after it was translated, and the answer in one piece, translated."""
    whole, streaming = [between(client, provider, DIALECTS[client].read_request(ASKED[client] % how), "req_1", 1) for how in (b"false", b"true")]
    reader, assembler = streaming.StreamReader(), assembler_of(client)
    assert assembler is not None
    usage = Usage()
    for event in (*reader.feed(stream), *reader.end()):
        usage = merge(usage, event.usage) if event.usage is not None else usage
        assembler.add(event.raw)
    assembler.add(reader.last(usage))
    return assembler.body(usage), whole.read_answer(assembled(provider, stream)).body, usage


def alike(client: str, one: bytes, other: bytes) -> None:
    """Words, calls, finishes and usage."""
    dialect = DIALECTS[client]
    assert of_body(dialect, one) == of_body(dialect, other) == of_stream(dialect, dialect.streamed(one))
    if client == "openai_chat":
        made = [[choice["message"].get("tool_calls") or [] for choice in json.loads(body)["choices"]] for body in (one, other)]
        calls = [[(call["function"]["name"], json.loads(call["function"]["arguments"])) for some in each for call in some] for each in made]
        assert calls[0] == calls[1]


@pytest.mark.parametrize(("client", "provider"), PAIRS)
def test_recorded_streams_between_dialects(client: str, provider: str) -> None:
    """It makes no difference whether a stream is translated and then put together, or put together and then translated."""
    paths = [path for path in support_golden.streams(provider) if path.stem not in LEFT_ALONE | {"two_choices_groq_usage"}]
    assert len(paths) >= 5
    for path in paths:
        one, other, usage = translated(client, provider, path.read_bytes())
        if usage.output_tokens:  # else the two are given different figures: what is charged, and none
            alike(client, one, other)


TEXTS = st.lists(st.text(st.characters(exclude_categories=("Cs",)), max_size=8), max_size=5)


@settings(max_examples=60, deadline=None)
@given(
    TEXTS,
    TEXTS,
    st.lists(st.tuples(st.integers(0, 2), st.text('{}":ax1é', max_size=5)), max_size=6),
    st.sampled_from(["stop", "length", "tool_calls"]),
)
def test_there_and_back(texts: list[str], thoughts: list[str], calls: list[tuple[int, str]], finish: str) -> None:
    """Any stream of a chat, in one piece and as a stream again: text, thinking, calls, finish and usage are the same."""
    begun = {index for index, _ in calls}
    events: list[Any] = [delta({"role": "assistant", "content": None})]
    events += [delta({"reasoning": thought}) for thought in thoughts] + [delta({"content": text}) for text in texts]
    events += [
        delta({"tool_calls": [{"index": i, "id": f"c{i}", "type": "function", "function": {"name": f"f{i}", "arguments": ""}}]})
        for i in sorted(begun)
    ]
    events += [delta({"tool_calls": [{"index": i, "function": {"arguments": piece}}]}) for i, piece in calls]
    stream = sse(*events, delta({}, finish), usage_chunk(3, 4), None)
    body = assembled("openai_chat", stream)
    answer = json.loads(body)["choices"][0]
    assert (answer["message"]["content"] or "") == "".join(texts) and answer["message"].get("reasoning", "") == "".join(thoughts)
    made = {call["id"]: call["function"]["arguments"] for call in answer["message"].get("tool_calls", ())}
    assert made == {f"c{i}": "".join([piece for at, piece in calls if at == i]) for i in begun} and answer["finish_reason"] == finish
    assert assembled("openai_chat", openai_chat.streamed(body)) == body
    for client in ("openai_responses", "anthropic_messages"):
        with contextlib.suppress(Unfaithful):  # arguments that are no JSON have no place in a message
            one, other, _ = translated(client, "openai_chat", stream)
            alike(client, one, other)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=40) | st.sampled_from([sse(delta({"content": "a"})), sse(chunk(finish="stop")), sse(None)]), max_size=6))
def test_nothing_but_unfaithful_is_raised(parts: list[bytes]) -> None:
    """Whatever an upstream sends."""
    for name in DIALECTS:
        assembler = assembler_of(name)
        assert isinstance(assembler, Assembler)
        try:
            for part in parts:
                assembler.add(part)
            json.loads(assembler.body(None))
        except Unfaithful:
            continue
