"""Thinking in a conversation that goes on at another model than the one that thought.

A thinking block carries a proof that only the model which wrote it accepts, so for another model such blocks are taken out, and nothing else is
changed. What a provider of another dialect thought has no proof at all; the gateway gives it `UNSIGNED`, by which such blocks are known again when
the client sends them back, and taken out for every provider of this dialect.
"""

from typing import Any

import msgspec
from msgspec import Raw, Struct

UNSIGNED = "sluicegate:unsigned"

_UNSIGNED = UNSIGNED.encode()
_KINDS = ("thinking", "redacted_thinking")


class _Block(Struct, gc=False):
    type: str = ""
    signature: str | None = None


class _Message(Struct, gc=False):
    role: str
    content: Raw


class _Thinking(Struct, gc=False):
    type: str


_decode_messages = msgspec.json.Decoder(list[dict[str, Raw]]).decode
_decode_role = msgspec.json.Decoder(str).decode
_decode_list = msgspec.json.Decoder(list[Raw]).decode
_decode_block = msgspec.json.Decoder(_Block).decode
_decode_thinking = msgspec.json.Decoder(_Thinking | None).decode


def without_thinking(fields: dict[str, Any], foreign: bool) -> None:
    """Takes out of a body's `messages` the thinking that its provider would not accept: all if `foreign`, else what has no proof.

    A model that is to think by a budget wants every turn of a tool loop to begin with thinking, so if that of the last turn is taken out, the budget
    is, too.
    """
    raw = bytes(fields["messages"])
    if not (foreign and b"thinking" in raw) and _UNSIGNED not in raw:
        return
    messages, loop = [], False
    for message in _decode_messages(raw):
        assistant = _decode_role(message["role"]) == "assistant"
        if assistant:
            loop = False
        if assistant and bytes(message["content"]).startswith(b"["):
            blocks = [(block, _decode_block(block)) for block in _decode_list(message["content"])]
            kept = [block for block, typed in blocks if not _taken_out(typed, foreign)]
            if len(kept) < len(blocks):
                if not kept:
                    continue  # a turn of nothing else
                loop = any(typed.type == "tool_use" for _, typed in blocks)
                message["content"] = kept  # type: ignore[assignment]
        messages.append(message)
    fields["messages"] = messages
    if loop and _decode_thinking(fields.get("thinking", b"null")) == _Thinking("enabled"):
        del fields["thinking"]


def _taken_out(block: _Block, foreign: bool) -> bool:
    return block.type in _KINDS and (foreign or block.signature == UNSIGNED)
