"""A stream of Anthropic messages put together again (assembling.py)."""

from typing import Any

import msgspec
from msgspec import Raw

from sluicegate.core.usage import Usage
from sluicegate.dialects import usage as reports
from sluicegate.dialects.unfaithful import Unfaithful, stay

_TEXTS = {"text_delta": "text", "thinking_delta": "thinking"}  # the field of an event, and of the block
_decode = msgspec.json.Decoder(dict[str, Raw]).decode


class _Block:
    """A block as it comes."""

    def __init__(self, begun: dict[str, Any]) -> None:
        self._fields = begun
        self._texts: dict[str, list[str]] = {}
        self._json: list[str] = []
        self._cited: list[Any] = []

    def take(self, delta: dict[str, Any]) -> None:
        kind = delta.get("type")
        if kind in _TEXTS and delta.keys() <= {"type", _TEXTS[kind]} and isinstance(text := delta.get(_TEXTS[kind]), str):
            self._texts.setdefault(_TEXTS[kind], []).append(text)
        elif kind == "input_json_delta" and delta.keys() == {"type", "partial_json"} and isinstance(text := delta["partial_json"], str):
            self._json.append(text)
        elif kind == "signature_delta" and delta.keys() == {"type", "signature"}:
            self._fields["signature"] = self._fields.get("signature") or None
            stay(self._fields, "signature", delta["signature"])
        elif kind == "citations_delta" and delta.keys() == {"type", "citation"}:
            self._cited.append(delta["citation"])
        else:
            raise Unfaithful

    def whole(self) -> dict[str, Any]:
        fields = self._fields
        for name, pieces in self._texts.items():
            fields[name] = (fields.get(name) or "") + "".join(pieces)
        if self._cited:
            fields["citations"] = [*(fields.get("citations") or ()), *self._cited]
        written = "".join(self._json)
        if written:
            if fields.get("input"):
                raise Unfaithful
            try:
                _decode(written.encode())
            except (ValueError, RecursionError):
                raise Unfaithful from None
            fields["input"] = Raw(written.encode())
        return fields


class MessageAssembler:
    """A message."""

    def __init__(self) -> None:
        self._message: dict[str, Any] | None = None
        self._blocks: dict[int, _Block] = {}
        self._usage: dict[str, Any] | None = None

    def usual(self, data: bytes) -> bool:
        return False

    def take(self, name: str, data: dict[str, Any]) -> None:
        kind = data.get("type") or name
        if kind == "message_start" and isinstance(data.get("message"), dict) and self._message is None:
            self._message = dict(data["message"])
            self._usage = reports.laid_over(None, self._message.get("usage"))
            if self._message.get("content"):
                raise Unfaithful
        elif kind == "content_block_start" and isinstance(data.get("content_block"), dict) and data.get("index") not in self._blocks:
            self._blocks[data["index"]] = _Block(dict(data["content_block"]))
        elif kind == "content_block_delta" and data.get("index") in self._blocks and isinstance(data.get("delta"), dict):
            self._blocks[data["index"]].take(data["delta"])
        elif kind == "message_delta" and self._message is not None and isinstance(data.get("delta"), dict) and "sluicegate" not in data:
            self._message |= data["delta"]
            self._message |= {field: value for field, value in data.items() if field not in ("type", "delta", "usage")}
            self._usage = reports.laid_over(self._usage, data.get("usage"))
        elif kind not in ("content_block_stop", "message_stop", "ping"):
            raise Unfaithful

    def whole(self, usage: Usage | None) -> dict[str, Any]:
        if self._message is None:
            raise Unfaithful
        content = [self._blocks[index].whole() for index in sorted(self._blocks)]
        return self._message | {"content": content, "usage": self._usage}
