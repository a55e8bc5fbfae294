"""Each kind of text in an answer under content rules: which are searched, which are not, and what becomes of what goes with them."""

import json
from typing import Any

import pytest

from sluicegate.core.speech import at_once
from sluicegate.dialects.anthropic_thinking import UNSIGNED
from sluicegate.dialects.openai_responses_prompt import THINKING
from support_ruled import events_of, mask, ruled, rules, shaped

BOMB = rules(mask("bomb"))


def whole(dialect: str, answer: dict[str, Any]) -> Any:
    body = json.dumps(answer).encode()
    return json.loads(ruled(dialect, BOMB, stream=False).read_answer(body).body or body)


def chunks(*deltas: dict[str, Any]) -> bytes:
    """A stream of chats."""
    told = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    told.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    return (
        b"".join([b"data: %b\n\n" % json.dumps({"id": "c", "object": "chat.completion.chunk"} | each).encode() for each in told])
        + b"data: [DONE]\n\n"
    )


def deltas(data: bytes) -> list[dict[str, Any]]:
    return [each["choices"][0]["delta"] for each in events_of(shaped("openai_chat", BOMB, data)[0])]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"refusal": "no bomb"}, {"refusal": "no #"}),
        ({"reasoning_content": "a bomb"}, {"reasoning_content": "a #"}),
        (
            {"reasoning_details": [{"type": "reasoning.summary", "summary": "a bomb"}]},
            {"reasoning_details": [{"type": "reasoning.summary", "summary": "a #"}]},
        ),
        ({"function_call": {"name": "bomb", "arguments": '{"a":"bomb"}'}}, {"function_call": {"name": "bomb", "arguments": '{"a":"#"}'}}),
        (
            {"tool_calls": [{"id": "bomb", "type": "custom", "custom": {"name": "bomb", "input": "a bomb"}}]},
            {"tool_calls": [{"id": "bomb", "type": "custom", "custom": {"name": "bomb", "input": "a #"}}]},
        ),
        ({"audio": {"id": "bomb", "data": "bomb", "transcript": "a bomb"}}, {"audio": {"id": "bomb", "data": "bomb", "transcript": "a #"}}),
        (
            {"annotations": [{"type": "url_citation", "url_citation": {"title": "bomb"}}]},
            {"annotations": [{"type": "url_citation", "url_citation": {"title": "bomb"}}]},
        ),
    ],
)
def test_a_whole_answer_of_a_chat(said: dict[str, Any], told: dict[str, Any]) -> None:
    """Refusals, thoughts and their summaries, transcripts, and what tools are called with; names, ids, sound and sources are left as they are."""
    assert whole("openai_chat", {"choices": [{"index": 0, "message": {"content": None} | said}]})["choices"][0]["message"] == {"content": None} | told


def test_a_transcript_is_masked_over_chunks_and_its_sound_is_not() -> None:
    """What cannot be read goes on at once."""
    told = deltas(
        chunks({"audio": {"id": "a"}}, {"audio": {"transcript": "a bo", "data": "AA"}}, {"audio": {"transcript": "mb c"}}, {"audio": {"data": "BB"}})
    )
    assert "".join([delta.get("audio", {}).get("transcript", "") for delta in told]) == "a # c"
    assert "".join([delta.get("audio", {}).get("data", "") for delta in told]) == "AABB"
    data = b"".join(
        b"event: %b\ndata: %b\n\n" % (each["type"].encode(), json.dumps(each).encode())
        for each in (
            {"type": "response.audio.transcript.delta", "sequence_number": 0, "delta": "a bo"},
            {"type": "response.audio.delta", "sequence_number": 1, "delta": "bomb"},
            {"type": "response.audio.transcript.delta", "sequence_number": 2, "delta": "mb"},
            {"type": "response.audio.transcript.done", "sequence_number": 3},
        )
    )
    events = events_of(shaped("openai_responses", BOMB, data)[0])
    assert "".join([each["delta"] for each in events if each["type"] == "response.audio.transcript.delta"]) == "a #"
    assert [each["delta"] for each in events if each["type"] == "response.audio.delta"] == ["bomb"]


def test_completions_are_searched_and_their_log_probabilities_left_out() -> None:
    """They have the text in pieces; an echo is a part of what is answered."""
    choice = {"index": 0, "text": "echo bomb", "logprobs": {"tokens": ["bo", "mb"], "token_logprobs": [0, 0], "text_offset": [0, 2]}}
    assert whole("openai_completions", {"object": "text_completion", "choices": [choice]})["choices"] == [
        {"index": 0, "text": "echo #", "logprobs": None}
    ]


@pytest.mark.parametrize(
    ("item", "told"),
    [
        (
            {"type": "web_search_call", "action": {"type": "search", "query": "a bomb", "queries": ["a bomb", "x"]}},
            {"query": "a #", "queries": ["a #", "x"]},
        ),
        ({"type": "file_search_call", "queries": ["a bomb"]}, {"queries": ["a #"]}),
        ({"type": "local_shell_call", "action": {"type": "exec", "command": ["echo", "bomb"], "env": {}}}, {"command": ["echo", "#"]}),
        ({"type": "shell_call", "action": {"commands": ["echo bomb"]}}, {"commands": ["echo #"]}),
        ({"type": "apply_patch_call", "operation": {"type": "update_file", "path": "bomb", "diff": "+bomb"}}, {"path": "bomb", "diff": "+#"}),
        ({"type": "image_generation_call", "revised_prompt": "a bomb", "result": "bomb"}, {"revised_prompt": "a #", "result": "bomb"}),
        ({"type": "computer_call", "action": {"type": "type", "text": "bomb"}}, {"text": "#"}),
        ({"type": "code_interpreter_call", "code": "'bomb'", "outputs": [{"type": "logs", "logs": "bomb"}]}, {"code": "'#'"}),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_what_tools_of_the_provider_are_called_with(item: dict[str, Any], told: dict[str, Any], streamed: bool) -> None:
    """A model has written it: queries, commands, code, patches; what the tool answers it has not."""
    response = {"object": "response", "status": "completed", "output": [item]}
    if streamed:
        done = {"type": "response.output_item.done", "output_index": 0, "item": item}
        data = b"".join([b"data: %b\n\n" % json.dumps(each).encode() for each in (done, {"type": "response.completed", "response": response})])
        events = events_of(shaped("openai_responses", BOMB, data)[0])
        items = [events[0]["item"], events[1]["response"]["output"][0]]
    else:
        items = [whole("openai_responses", response)["output"][0]]
    for said in items:
        inside = said.get("action") or said.get("operation") or said
        assert {name: inside[name] for name in told} == told
        assert said.get("outputs") == item.get("outputs")


def test_a_thought_that_was_masked_loses_its_proof() -> None:
    """Its provider would refuse it, and so it is left out when the client sends it back: in every dialect, whole and streamed; others keep theirs."""
    for text, kept in (("a bomb", False), ("a boat", True)):
        detail = {"type": "reasoning.text", "text": text, "signature": "proof", "index": 0}
        message = whole("openai_chat", {"choices": [{"message": {"content": "x", "reasoning_details": [detail]}}]})["choices"][0]["message"]
        streamed = [delta for delta in deltas(chunks({"reasoning_details": [detail]}, {"content": "x"})) if "reasoning_details" in delta]
        for told in (message, *streamed):
            assert [each["signature"] for each in told["reasoning_details"]] == ["proof" if kept else ""]
            assert [each["text"] for each in told["reasoning_details"]] == [text.replace("bomb", "#")]
        assert len(streamed) == 1
        item = {"id": "i", "type": "reasoning", "summary": [{"type": "summary_text", "text": text}], "encrypted_content": THINKING + "proof"}
        response = {"object": "response", "status": "completed", "output": [item]}
        done = {"type": "response.output_item.done", "output_index": 0, "item": item}
        data = b"".join([b"data: %b\n\n" % json.dumps(each).encode() for each in (done, {"type": "response.completed", "response": response})])
        events = events_of(shaped("openai_responses", BOMB, data)[0])
        for told in (whole("openai_responses", response)["output"][0], events[0]["item"], events[1]["response"]["output"][0]):
            assert told["encrypted_content"] == THINKING + ("proof" if kept else "")
            assert told["summary"][0]["text"] == text.replace("bomb", "#")


def test_a_thought_that_ends_with_its_proof() -> None:
    """As OpenRouter streams them: in pieces, the signature with the last, or behind it."""
    for pieces, kept in ((["a bo", "mb"], False), (["a bo", "at"], True), (["a bo", ""], True)):
        for own in (False, True):
            details = [{"type": "reasoning.text", "index": 0, "text": piece} for piece in pieces]
            details[-1:] = (
                [details[-1] | {"signature": "proof"}] if own else [details[-1], {"type": "reasoning.text", "index": 0, "signature": "proof"}]
            )
            told = deltas(chunks(*[{"reasoning_details": [detail]} for detail in details], {"content": "x"}))
            said = [detail for delta in told for detail in delta.get("reasoning_details", [])]
            assert "".join([detail.get("text") or "" for detail in said]) == "".join(pieces).replace("bomb", "#")
            assert [detail["signature"] for detail in said if "signature" in detail] == ["proof" if kept else ""]


def test_an_opaque_proof_of_the_provider_s_own_is_left_alone() -> None:
    """It has what was thought in it, and nobody else can read it."""
    item = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "a bomb"}], "encrypted_content": "gAAAA"}
    told = whole("openai_responses", {"object": "response", "status": "completed", "output": [item]})["output"][0]
    assert (told["encrypted_content"], told["summary"][0]["text"]) == ("gAAAA", "a #")


def test_searches_of_messages_are_searched_and_what_they_find_is_not() -> None:
    """`server_tool_use` is a call like any other."""
    found = {
        "type": "web_search_tool_result",
        "tool_use_id": "s",
        "content": [{"type": "web_search_result", "title": "bomb", "url": "https://a.b/bomb"}],
    }
    blocks = [{"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "a bomb"}}, found]
    told = whole("anthropic_messages", {"type": "message", "content": blocks, "stop_reason": "end_turn"})["content"]
    assert told == [blocks[0] | {"input": {"query": "a #"}}, found]


NUMBERS = '{"a":1e400,"b":12345678901234567890.123456789,"c":1.10,"d":1E5,"e":-0.0,"f":123456789012345678901234567890}'


def test_numbers_stay_as_they_are_written() -> None:
    """In answers that are built anew, in calls and beside them; one that a rule finds in a call is a text then."""
    message = f'{{"content":"a bomb","reasoning":"x \\u00e9 bomb","odd":{NUMBERS}}}'
    for more in ("", '"half":"\\ud83d",', f'"long":1{"0" * 5_000},', '"none":NaN,'):
        body = f'{{{more}"choices":[{{"message":{message}}}]}}'.encode()
        one = ruled("openai_chat", BOMB, stream=False)
        answer = one.read_answer(body)
        if one.steps is not None:
            at_once(one.steps)
        told = answer.body.decode()
        assert NUMBERS in told and "bomb" not in told
        assert more in told
    call = f'{{"type":"tool_use","id":"t","name":"f","input":{{"n":4111,"m":-41.110,"o":[{NUMBERS}],"p":true}}}}'
    body = f'{{"type":"message","content":[{call}],"stop_reason":"tool_use"}}'.encode()
    told = ruled("anthropic_messages", rules(mask("4111"), mask("41.11")), stream=False).read_answer(body).body.decode()
    assert f'{{"n":"#","m":"-#0","o":[{NUMBERS}],"p":true}}' in told
    chunk = f'data: {{"choices":[{{"index":0,"delta":{{"content":"a bomb","odd":{NUMBERS}}}}}]}}\n\n'.encode()
    assert NUMBERS.encode() in shaped("openai_chat", BOMB, chunk)[0]


ALONE = '{"choices":[{"index":0,"message":{"role":"assistant","content":"ok"}}]}'


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        ("openai_chat", ALONE.replace('"content"', '"content":"a bomb","content"')),
        ("openai_chat", ALONE.replace('"content"', '"c\\u006fntent":"a bomb","content"')),
        ("openai_chat", ALONE.replace('"message"', '"message":{"content":"a bomb"},"message"')),
        ("openai_chat", ALONE.replace('"choices"', '"choices":[{"index":0,"message":{"content":"a bomb"}}],"choices"')),
        ("openai_chat", ALONE.replace('"choices"', '"\\u0063hoices":[{"index":0,"message":{"content":"a bomb"}}],"choices"')),
        ("openai_chat", ALONE.replace('"content"', '"tool_calls":[{"id":"a bomb","id":"x"}],"content"')),
        ("openai_chat", ALONE.replace('"content":"ok"', '"content":"ok \\ud83d","refusal":"a bomb","refusal":null')),
        ("openai_completions", '{"choices":[{"index":0,"text":"a bomb","text":"ok"}]}'),
        ("anthropic_messages", '{"type":"message","content":[{"type":"text","text":"a bomb"}],"content":[{"type":"text","text":"ok"}]}'),
        ("anthropic_messages", '{"type":"message","content":[{"type":"text","text":"a bomb","text":"ok"}]}'),
        ("anthropic_messages", '{"type":"message","content":[{"text":"a bomb","text":"ok","type":"text"}]}'),
        ("anthropic_messages", '{"usage":{},"content":[{"type":"text","text":"a bomb"}],"content":[{"type":"text","text":"ok"}]}'),
        ("openai_chat", '{"usage":{},' + ALONE.replace('"message"', '"message":{"content":"a bomb"},"message"')[1:]),
        ("openai_responses", '{"output":[{"type":"message","content":[{"type":"output_text","text":"a bomb","text":"ok"}]}]}'),
    ],
)
def test_a_name_that_is_given_twice_hides_nothing(dialect: str, body: str) -> None:
    """What was searched goes out, and the other does not, whichever of the two a client would have taken."""
    told = ruled(dialect, BOMB, stream=False).read_answer(body.encode()).body
    assert b"ok" in told and b"bomb" not in told
    assert ruled(dialect, rules(mask("bomb", "report")), stream=False).read_answer(body.encode()).body == b""


T, R = {"type": "output_text", "text": "a bo"}, {"type": "refusal", "refusal": "mb"}


@pytest.mark.parametrize(("parts", "told"), [([R | {"refusal": "a bo"}, R], ["a #", "#"]), ([T, R], ["a #", "#"]), ([T, {"type": "image"}, R], None)])
def test_a_phrase_over_parts_of_an_answer_and_of_a_refusal_is_found(parts: list[dict[str, Any]], told: list[str] | None) -> None:
    """A reader reads on; a picture between them parts them."""
    said = whole("openai_responses", {"output": [{"type": "message", "content": parts}]})["output"][0]["content"]
    assert said == ([part | {list(part)[1]: text} for part, text in zip(parts, told, strict=True)] if told is not None else parts)


def test_a_phrase_over_two_thoughts_is_found() -> None:
    """Both lose their proof, and another keeps its own."""
    thoughts = [{"type": "thinking", "thinking": text, "signature": "proof"} for text in ("a bo", "mb", "x")]
    told = whole("anthropic_messages", {"type": "message", "content": [*thoughts, {"type": "text", "text": "ok"}]})["content"]
    assert [block.get("thinking") for block in told] == ["a #", "#", "x", None]
    assert [block.get("signature") for block in told] == [UNSIGNED, UNSIGNED, "proof", None]
