"""Answers under content rules, in every dialect that clients speak: streams made of pieces of text, and what a client reads of them."""

import json
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from sluicegate.core.content_rules import ContentRules, Rules
from sluicegate.core.phrases import Phrase
from sluicegate.core.speech import Speech
from sluicegate.dialects import (
    anthropic_messages,
    openai_chat,
    openai_completions,
    openai_responses,
    ruled_chat,
    ruled_messages,
    ruled_responses,
)
from sluicegate.dialects.form import Event, Request
from sluicegate.dialects.ruled import Ruled
from sluicegate.dialects.sse import Reader as Lines

SHAPERS: dict[str, Any] = {
    "openai_chat": ruled_chat.Shaper,
    "openai_completions": ruled_chat.Shaper,
    "openai_responses": ruled_responses.Shaper,
    "anthropic_messages": ruled_messages.Shaper,
}
MODULES: dict[str, ModuleType] = {module.NAME: module for module in (openai_chat, openai_completions, openai_responses, anthropic_messages)}


def rules(*phrases: Phrase, disclaimer: str = "") -> ContentRules:
    return ContentRules((Rules("acme", disclaimer=disclaimer, banned=phrases),))


def mask(pattern: str, action: Any = "mask", text: str = "#") -> Phrase:
    return Phrase(pattern[-20:], pattern, action, mask=text)


def request(stream: bool) -> Request:
    return Request("m", stream, True, 1, None, 0, [], 1, 0, "", "", {})


def ruled(dialect: str, by: ContentRules, *, stream: bool, acted: set[str] | None = None) -> Ruled:
    """An answer of a provider that speaks the client's dialect."""
    seen = acted if acted is not None else set()
    return Ruled(MODULES[dialect], lambda: SHAPERS[dialect](Speech(by, seen), by.disclaimer), request(stream))


def shaped(dialect: str, by: ContentRules, data: bytes, *, cuts: Sequence[int] = (), acted: set[str] | None = None) -> tuple[bytes, list[Event]]:
    """What a client reads of a stream that comes in reads that are cut there, and its events."""
    reader = ruled(dialect, by, stream=True, acted=acted).StreamReader()
    events: list[Event] = []
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        events += reader.feed(data[start:end])
    events += reader.end()
    return b"".join([event.raw for event in events]), events


def events_of(data: bytes) -> list[dict[str, Any]]:
    """The JSON of each event."""
    lines = Lines()
    return [json.loads(event.data) for event in (*lines.feed(data), *lines.end()) if event.data and event.data != b"[DONE]"]


def _sse(data: dict[str, Any], named: bool = False) -> bytes:
    return (f"event: {data['type']}\n" if named else "").encode() + b"data: " + json.dumps(data).encode() + b"\n\n"


# -- streams ------------------------------------------------------------------------------------------------------------------------------


def chat(pieces: Sequence[str], *, choices: int = 1, finish: str = "stop", field: str = "content") -> bytes:
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "unknown": 1.50}
    out = []
    for piece in pieces:
        out += [_sse(head | {"choices": [{"index": n, "delta": {field: piece}, "finish_reason": None}]}) for n in range(choices)]
    out += [_sse(head | {"choices": [{"index": n, "delta": {}, "finish_reason": finish}]}) for n in range(choices)]
    return b"".join(out) + b"data: [DONE]\n\n"


def completions(pieces: Sequence[str]) -> bytes:
    head = {"id": "c", "object": "text_completion", "created": 1, "model": "m"}
    out = [_sse(head | {"choices": [{"index": 0, "text": piece, "finish_reason": None}]}) for piece in pieces]
    return b"".join(out) + _sse(head | {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}) + b"data: [DONE]\n\n"


def messages(pieces: Sequence[str], kind: str = "text") -> bytes:
    names = {"text": ("text", "text_delta"), "thinking": ("thinking", "thinking_delta"), "tool_use": ("partial_json", "input_json_delta")}
    field, delta = names[kind]
    block: dict[str, Any] = {"type": kind, field: ""} if kind != "tool_use" else {"type": kind, "id": "t", "name": "f", "input": {}}
    start = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": {"input_tokens": 3}}
    told = [{"type": "message_start", "message": start}, {"type": "content_block_start", "index": 0, "content_block": block}]
    told += [{"type": "content_block_delta", "index": 0, "delta": {"type": delta, field: piece}} for piece in pieces]
    if kind == "thinking":
        told.append({"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "proof"}})
    told += [{"type": "content_block_stop", "index": 0}, {"type": "ping"}]
    reason = "tool_use" if kind == "tool_use" else "end_turn"
    told += [{"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 9}}, {"type": "message_stop"}]
    return b"".join([_sse(each, named=True) for each in told])


def responses(pieces: Sequence[str], *, call: bool = False) -> bytes:
    text = "".join(pieces)
    place: dict[str, Any] = {"item_id": "i", "output_index": 0}
    if call:
        name, field, whole = "response.function_call_arguments", "arguments", text
        item: dict[str, Any] = {"id": "i", "type": "function_call", "name": "f", "call_id": "c", "arguments": ""}
        done: dict[str, Any] = item | {"arguments": text, "status": "completed"}
    else:
        name, field, whole = "response.output_text", "text", text
        place["content_index"] = 0
        item = {"id": "i", "type": "message", "role": "assistant", "content": []}
        done = item | {"status": "completed", "content": [{"type": "output_text", "text": text, "annotations": []}]}
    response = {"id": "r", "object": "response", "status": "in_progress", "output": []}
    told: list[dict[str, Any]] = [{"type": "response.created", "response": response}]
    told.append({"type": "response.output_item.added", "output_index": 0, "item": item})
    if not call:
        told.append({"type": "response.content_part.added", **place, "part": {"type": "output_text", "text": "", "annotations": []}})
    told += [{"type": f"{name}.delta", **place, "delta": piece} for piece in pieces]
    told.append({"type": f"{name}.done", **place, field: whole})
    if not call:
        told.append({"type": "response.content_part.done", **place, "part": done["content"][0]})
    told.append({"type": "response.output_item.done", "output_index": 0, "item": done})
    usage = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
    told.append({"type": "response.completed", "response": response | {"status": "completed", "output": [done], "usage": usage}})
    return b"".join([_sse(each | {"sequence_number": number}, named=True) for number, each in enumerate(told)])


STREAMS: dict[str, Callable[[Sequence[str]], bytes]] = {
    "openai_chat": chat,
    "openai_completions": completions,
    "openai_responses": responses,
    "anthropic_messages": messages,
}


# -- what a client reads of them ----------------------------------------------------------------------------------------------------------


def said(dialect: str, data: bytes, choice: int = 0, field: str = "content") -> str:
    """The text that a client puts together from a stream."""
    told = events_of(data)
    if dialect == "openai_responses":
        return "".join([each["delta"] for each in told if each["type"].endswith(".delta")])
    if dialect == "anthropic_messages":
        names = ("text", "thinking", "partial_json")
        deltas = [each["delta"] for each in told if each["type"] == "content_block_delta"]
        return "".join([delta[name] for delta in deltas for name in names if name in delta])
    texts = []
    for each in told:
        for one in each["choices"]:
            if one["index"] == choice:
                texts.append(one.get("text") or one.get("delta", {}).get(field) or "")
    return "".join(texts)


def whole_answer(dialect: str, text: str) -> bytes:
    """The same text in one piece."""
    match dialect:
        case "openai_chat":
            choices = [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]
            answer: dict[str, Any] = {"id": "c", "object": "chat.completion", "choices": choices}
        case "openai_completions":
            answer = {"id": "c", "object": "text_completion", "choices": [{"index": 0, "text": text, "finish_reason": "stop"}]}
        case "openai_responses":
            part = {"type": "output_text", "text": text, "annotations": []}
            item = {"id": "i", "type": "message", "role": "assistant", "content": [part]}
            answer = {"id": "r", "object": "response", "status": "completed", "output": [item]}
        case _:
            answer = {"id": "m", "type": "message", "role": "assistant", "content": [{"type": "text", "text": text}], "stop_reason": "end_turn"}
    return json.dumps(answer).encode()


def text_in(dialect: str, body: bytes) -> str:
    """The text of an answer in one piece."""
    answer = json.loads(body)
    match dialect:
        case "openai_chat":
            return str(answer["choices"][0]["message"]["content"])
        case "openai_completions":
            return str(answer["choices"][0]["text"])
        case "openai_responses":
            return str(answer["output"][-1]["content"][-1]["text"])
        case _:
            return "".join([block["text"] for block in answer["content"]])
