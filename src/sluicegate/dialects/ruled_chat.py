"""Answers of OpenAI's chats and completions under content rules (ruled.py).

What has to wait at the end of a choice comes in a chunk of its own before the one with the finish reason, or in that one if it has text itself; so
does the disclaimer. It stands behind the text of each choice that says something and calls no tool: an answer that calls one goes on.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct

from sluicegate.core.content_rules import BETWEEN
from sluicegate.core.speech import Channel, Speech, Steps
from sluicegate.dialects.openai_body import int_or
from sluicegate.dialects.ruled import alone, decoded, encoded, pieces, reading, reworded, written
from sluicegate.dialects.sse import RawEvent


class _Delta(Struct, gc=False, forbid_unknown_fields=True):
    content: str
    role: str | None = None


class _Choice(Struct, gc=False, forbid_unknown_fields=True):
    delta: _Delta
    index: int = 0
    finish_reason: None = None
    logprobs: None = None


class _Chunk(Struct, gc=False):
    """The usual chunk, in which something is said and nothing else. Only here is speed of interest."""

    choices: list[_Choice]


_NOTHING = Raw(b"")


class _Message(Struct, gc=False, forbid_unknown_fields=True):
    role: str | None = None
    content: Raw = _NOTHING
    refusal: None = None
    annotations: Annotated[list[Raw], Meta(max_length=0)] | None = None
    reasoning: None = None
    reasoning_content: None = None
    tool_calls: Annotated[list[Raw], Meta(max_length=0)] | None = None
    function_call: None = None
    audio: None = None


class _Told(Struct, gc=False, forbid_unknown_fields=True):
    index: int = 0
    message: _Message | None = None
    text: Raw = _NOTHING
    logprobs: None = None
    finish_reason: str | None = None
    stop_reason: None = None
    token_ids: None = None


class _Answer(Struct, gc=False):
    """The usual whole answer, in which something is said and nothing else. Only here is speed of interest."""

    choices: Annotated[list[_Told], Meta(max_length=1, min_length=1)]


_decode_chunk = msgspec.json.Decoder(_Chunk).decode
_decode_answer = msgspec.json.Decoder(_Answer).decode
_CALLS = ("tool_calls", "function_call")
_PARTS = ("content", "thinking")  # where there may be a list of them
_SAID = ("content", "text")  # where the client reads the answer itself


def _is_content_alone(before: bytes) -> bool:
    return alone(before, 3, before.count(b'"content"'), b'"choices"', b'"message"')


def _is_text_alone(before: bytes) -> bool:
    return alone(before, 2, before.count(b'"text"'), b'"choices"')


class Shaper:
    """One answer."""

    def __init__(self, speech: Speech, disclaimer: str) -> None:
        self.speech = speech
        self._disclaimer = disclaimer
        self._last = b""  # chunk
        self._tails: dict[int, str] = {}  # the ends of what was said, by choice; without any, nothing was said
        self._done: frozenset[int] = frozenset()  # choices that have ended or have called a tool

    def mark(self) -> Any:
        return dict(self._tails), self._done

    def back_to(self, mark: Any) -> None:
        self._tails, self._done = dict(mark[0]), mark[1]

    # -- in one piece ---------------------------------------------------------------------------------------------------------------------

    def usual(self, data: bytes) -> bytes | None:
        """An answer of the usual shape."""
        try:
            choice = _decode_answer(data).choices[0]
            content = bytes(choice.message.content) if choice.message is not None else b""
            said = bytes(choice.text)
            if said and content:
                return None
            return reworded(self.speech, self._disclaimer, data, said or content, _is_text_alone if said else _is_content_alone)
        except (ValueError, RecursionError):
            return None

    def body(self, answer: dict[str, Any]) -> Steps[bool]:
        """Masks it and adds the disclaimer."""
        choices = answer.get("choices")
        changed = yield from reading(self.speech, choices)
        for choice in choices if self._disclaimer and isinstance(choices, list) else ():
            if isinstance(choice, dict):
                message = choice.get("message")
                changed |= self._disclaim(message if isinstance(message, dict) else choice)
        return changed

    def _disclaim(self, said: dict[str, Any]) -> bool:
        field = next((name for name in _SAID if said.get(name)), "")
        text = said.get(field)
        if isinstance(text, list) and isinstance(text[-1], dict) and isinstance(text[-1].get("text"), str):
            said, field, text = text[-1], "text", text[-1]["text"]
        if not isinstance(text, str) or any(said.get(name) for name in _CALLS) or text.rstrip().endswith(self._disclaimer):
            return False
        said[field] = text + BETWEEN + self._disclaimer
        return True

    # -- streamed -------------------------------------------------------------------------------------------------------------------------

    def event(self, event: RawEvent) -> list[bytes]:
        """What the client reads instead of an event."""
        if event.kind != "event":
            return [event.raw]
        if event.data.strip() == b"[DONE]":
            return [*self._chunks(None), event.raw]
        try:
            said = _decode_chunk(event.data).choices
        except (ValueError, RecursionError):
            said = []
        if len(said) == 1:
            return [self._usual(event, said[0].index, said[0].delta.content)]
        chunk = decoded(event.data)
        choices = chunk.get("choices") if isinstance(chunk, dict) else None
        if not isinstance(choices, list) or not choices:
            return [event.raw]
        self._last = event.data
        before: list[bytes] = []
        changed = False
        for place, choice in enumerate(choices):
            if isinstance(choice, dict):
                changed |= self._choice(int_or(choice.get("index"), place), choice, before)
        return [*before, written(event, chunk) if changed else event.raw]

    def _usual(self, event: RawEvent, index: int, text: str) -> bytes:
        self._last = event.data
        told = self.speech.say((index, "delta", "content"), text)
        if self._disclaimer and text:
            self._add(index, told)
        if told == text:
            return event.raw
        chunk = decoded(event.data)
        chunk["choices"][0]["delta"]["content"] = told
        return written(event, chunk)

    def _add(self, index: int, text: str) -> None:
        self._tails[index] = (self._tails.get(index, "") + text)[-len(self._disclaimer) - 40 :]

    def _choice(self, index: int, choice: dict[str, Any], before: list[bytes]) -> bool:
        """One choice in a chunk. Whether it was changed."""
        last = bool(choice.get("finish_reason"))
        delta = choice.get("delta")
        said = delta if isinstance(delta, dict) else choice
        spoken = any(isinstance(said.get(name), str) and said[name] for name in _SAID) or isinstance(said.get("content"), list)
        if any(said.get(name) for name in _CALLS):
            self._done |= {index}
        changed = pieces(self.speech, choice, (index,), last)
        if spoken or index in self._tails:
            self._add(index, "".join([said[name] for name in _SAID if isinstance(said.get(name), str)]))
        if not last:
            return changed
        here = next((name for name in _SAID if isinstance(said.get(name), str) and said[name]), "")
        before += self._chunks(index, disclaimed=not here)
        if here and self._due(index):
            said[here], changed = said[here] + BETWEEN + self._disclaimer, True
        self._done |= {index}
        if self.speech.refused:  # that is no end
            choice["finish_reason"], changed = None, True
        return changed

    def _due(self, index: int) -> bool:
        """Whether the disclaimer belongs at the end of a choice."""
        return (
            bool(self._disclaimer)
            and index in self._tails
            and index not in self._done
            and not self.speech.refused
            and not self._tails[index].rstrip().endswith(self._disclaimer)
        )

    def _chunks(self, index: int | None, disclaimed: bool = True) -> list[bytes]:
        """Chunks with what is left of the texts of a choice, or of all, and the disclaimer. None: the stream ends."""
        out = []
        for channel in self.speech.open:
            if index in (None, channel[0]) and (rest := self.speech.end(channel)):
                out.append(self._chunk(channel, rest))
                if channel[-1] in _SAID and isinstance(choice := channel[0], int) and choice in self._tails:
                    self._add(choice, rest)
        for choice in [index] if index is not None else list(self._tails):
            if disclaimed and self._due(choice):
                field: Channel = ("text",) if self._head().get("object") == "text_completion" else ("delta", "content")
                out.append(self._chunk((choice, *field), BETWEEN + self._disclaimer))
                self._done |= {choice}
        return out

    def _chunk(self, channel: Channel, text: str) -> bytes:
        """A chunk with one text."""
        inside: Any = text
        for place in range(len(channel) - 1, 0, -1):
            step = channel[place]
            if isinstance(step, str):
                inside = {step: inside}
            else:  # parts of content name their kind, which is that of what they hold
                named = {"type": next(iter(inside))} if channel[place - 1] in _PARTS else {}
                inside = [{"index": step, **named, **inside}]
        choice = {"index": channel[0], **inside, "logprobs": None, "finish_reason": None}
        return b"data: %b\n\n" % encoded(self._head() | {"choices": [choice]})

    def _head(self) -> dict[str, Any]:
        """What all chunks repeat."""
        last = decoded(self._last)
        return {name: value for name, value in last.items() if name not in ("choices", "usage", "sluicegate")} if isinstance(last, dict) else {}
