"""The OpenAI completions dialect (legacy): answers, streams and what the gateway itself says in them. The request side is in
openai_completions_request.

An answer is a chat's (openai_chat), but for where its text is: in the choice itself, and a chunk of a stream is an object of the same kind as a whole
answer. So what is not a usual chunk is read as a chat's would be: there, a text in a choice is output, too. Readers never raise,
whatever an upstream sends. An echoed prompt is output as far as a reader knows: the meter tells it from the rest (core/meter.py).
"""

import json
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Raw, Struct

from sluicegate.core.usage import Usage
from sluicegate.dialects import openai_chat
from sluicegate.dialects.form import Answer, Delta, Event
from sluicegate.dialects.openai_body import Beside, int_or, loosely
from sluicegate.dialects.openai_chat import Head, write_error, write_event, write_stream_error
from sluicegate.dialects.openai_completions_request import read_request, write_request
from sluicegate.dialects.sse import RawEvent

__all__ = [
    "DONE", "NAME", "PATH", "STATUS", "Head", "StreamReader", "chunk", "counts", "read_answer", "read_request", "streamed",
    "write_error", "write_event", "write_request", "write_stream_error", "write_truncation",
]  # fmt: skip

NAME = "openai_completions"
STATUS: dict[str, int] = {}
PATH = b"/completions"  # below a provider's base URL

DONE = b"data: [DONE]\n\n"
_NONE = Raw()
_encode = msgspec.json.Encoder().encode


class _Choice(Struct, gc=False, forbid_unknown_fields=True):
    text: str
    index: int = 0
    logprobs: Raw = _NONE
    finish_reason: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    error: Any = None
    stop_reason: Any = None
    token_ids: Raw = _NONE
    content_filter_results: Raw = _NONE


class _Chunk(Beside, kw_only=True):
    choices: list[_Choice]


_decode = msgspec.json.Decoder(_Chunk).decode


# -- reading ------------------------------------------------------------------------------------------------------------------------------


def read_answer(body: bytes) -> Answer:
    """A unary answer, or the body of an error status. Never raises."""
    return openai_chat.read_answer(body)


class StreamReader(openai_chat.StreamReader):
    """Reads one streamed answer."""

    __slots__ = ()

    def _event(self, raw: RawEvent) -> Event | None:
        try:
            # The usual chunk. Only here is speed of interest.
            chunk = _decode(raw.data)
            if chunk.choices and chunk.usage is None and chunk.x_groq is None and chunk.error is None and not raw.event:
                event = _usual(raw.raw, chunk.choices)
                if event is not None:
                    self._last = raw.data
                    return event
        except (ValueError, RecursionError):
            pass
        return super()._event(raw)


def _usual(raw: bytes, choices: list[_Choice]) -> Event | None:
    """The event of a chunk that has text, thoughts and finishes alone."""
    deltas, finishes = [], []
    for choice in choices:
        if choice.error is not None:
            return None
        text = choice.text
        if choice.reasoning or choice.reasoning_content:
            text += _thought(choice.reasoning or "", choice.reasoning_content or "")
        if text:
            deltas.append(Delta(choice.index, text))
        if choice.finish_reason:
            finishes.append((choice.index, choice.finish_reason))
    return Event(raw, "chunk", deltas, finishes)


def _thought(one: str, other: str) -> str:
    """Under two names, and sometimes under both."""
    return one if one == other else one + other


# -- writing ------------------------------------------------------------------------------------------------------------------------------


def streamed(body: bytes) -> bytes:
    """A readable whole answer as the stream that was asked for: per choice all its output and then its end, usage if there is any, [DONE]."""
    answer = loosely(body)
    try:
        head = {name: value for name, value in answer.items() if name not in ("choices", "usage", "error")}
        chunks: list[dict[str, Any]] = []
        for place, choice in enumerate(answer["choices"]):
            if isinstance(choice, dict):
                index = int_or(choice.get("index"), place)
                chunks.append(head | {"choices": [choice | {"index": index, "finish_reason": None}]})
                chunks.append(head | {"choices": [_choice(index, "", choice.get("finish_reason"))]})
        if answer.get("usage"):
            chunks.append(head | {"choices": [], "usage": answer["usage"]})
        return b"".join([b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks]) + DONE
    except (AttributeError, RecursionError):  # no object, or one that could just be read
        return write_stream_error("The upstream's answer cannot be told as a stream.", "upstream_error", "upstream_error")


def write_truncation(head: Head, after: None, choices: Iterable[int], reason: str, usage: Usage | None) -> bytes:
    """The end of a stream that the gateway cuts: each unfinished choice ends with "length", then usage if asked for, then [DONE].

    reason: "budget" or "ledger".
    """
    out = [chunk(head, index, "", "length", {"sluicegate": {"truncated": reason}}) for index in choices]
    if usage is not None:
        out.append(chunk(head, None, "", None, {"usage": counts(usage)}))
    return b"".join(out) + DONE


def chunk(head: Head, index: int | None, text: str, finish: str | None, more: dict[str, Any] | None = None) -> bytes:
    """A chunk of a stream with one choice, or with none."""
    choices = [_choice(index, text, finish)] if index is not None else []
    fields = {"id": head.id, "object": "text_completion", "created": head.created, "model": head.model, "choices": choices}
    return b"data: %b\n\n" % _encode(fields | (more or {}))


def counts(usage: Usage) -> dict[str, Any]:
    """Usage as this dialect writes it."""
    read, written = usage.input_tokens or 0, usage.output_tokens or 0
    told: dict[str, Any] = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
    if usage.cached_tokens:
        told["prompt_tokens_details"] = {"cached_tokens": usage.cached_tokens}
    if usage.reasoning_tokens:
        told["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    return told


def _choice(index: int, text: str, finish: Any) -> dict[str, Any]:
    return {"text": text, "index": index, "logprobs": None, "finish_reason": finish}
