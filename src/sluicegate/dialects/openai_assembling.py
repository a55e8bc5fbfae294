"""Streams of OpenAI's dialects put together again (assembling.py): chunks of chats and completions, the events of a response.

Texts of a delta follow one another under whatever name they come, as the meter counts them; names that hold no output have one value. Calls are told
apart by their index, and at one index by their ids. Sound is left alone: its pieces are not those of the encoded whole.
"""

from typing import Any

import msgspec
from msgspec import Raw, Struct

from sluicegate.core.usage import Usage
from sluicegate.dialects.openai_body import NOT_OUTPUT, int_or
from sluicegate.dialects.openai_chat_reply import usage_fields
from sluicegate.dialects.openai_completions import counts
from sluicegate.dialects.unfaithful import Unfaithful, lists, stay

# Of a chunk: what many give new in each, where the first that says anything counts; what tells how things stand, where the last does; and padding.
_HEAD = frozenset(("id", "created", "model", "system_fingerprint", "service_tier", "provider"))
_LATEST = frozenset(("timings", "time_info", "perf_metrics", "nvext", "citations", "search_results"))
_PADDING = frozenset(("obfuscation", "p", "object"))
# Of a choice.
_LATEST_OF_CHOICE = frozenset(("finish_reason", "native_finish_reason", "stop_reason", "matched_stop", "content_filter_results"))
_LISTS = frozenset(("logprobs", "token_ids"))
_PIECES = frozenset(("text", "summary", "data"))  # of a detail of reasoning


class _Said(Struct, gc=False, forbid_unknown_fields=True):
    content: str


class _Saying(Struct, gc=False, forbid_unknown_fields=True):
    delta: _Said
    index: int = 0
    logprobs: None = None
    finish_reason: None = None


class _Text(Struct, gc=False, forbid_unknown_fields=True):
    """The usual chunk of a chat: what is known of the answer already, and a text."""

    choices: list[_Saying]
    id: str = ""
    object: str = ""
    created: int = 0
    model: str = ""
    service_tier: str | None = None
    system_fingerprint: str | None = None
    usage: None = None
    obfuscation: Raw = Raw()


_decode_text = msgspec.json.Decoder(_Text).decode


class _Chunks:
    """Chunks with choices."""

    kind = ""

    def __init__(self) -> None:
        self._head: dict[str, Any] = {}
        self._choices: dict[int, _Choice] = {}
        self._usage: Any = None

    def usual(self, data: bytes) -> bool:
        return False

    def take(self, name: str, data: dict[str, Any]) -> None:
        if name == "error" or data.get("error") is not None or "sluicegate" in data:
            raise Unfaithful
        for field, value in data.items():
            if field == "choices":
                for place, choice in enumerate(value or ()):
                    self._choice(choice, place)
            elif field == "usage":
                self._usage = value if value is not None else self._usage
            elif field == "x_groq":
                self._groq(value)
            elif field in _HEAD:
                self._head[field] = self._head.get(field) or value
            elif field in _LATEST:
                self._head[field] = value
            elif field not in _PADDING:
                stay(self._head, field, value)

    def whole(self, usage: Usage | None) -> dict[str, Any]:
        if not self._choices:
            raise Unfaithful
        head = {"id": self._head.pop("id", ""), "object": self.kind} | self._head
        body = head | {"choices": [self._choices[index].whole(index) for index in sorted(self._choices)]}
        reported = self._usage
        if reported is None and usage is not None:
            reported = self.usage(usage)
        return body if reported is None else body | {"usage": reported}

    def usage(self, usage: Usage) -> dict[str, Any]:
        raise NotImplementedError

    def _choice(self, choice: Any, place: int) -> None:
        if not isinstance(choice, dict):
            raise Unfaithful
        index = int_or(choice.get("index"), place)
        known = self._choices.get(index)
        if known is None:
            known = self._choices[index] = self.choice()
        known.take(choice)

    def choice(self) -> "_Choice":
        return _Choice()

    def _groq(self, told: Any) -> None:
        """Groq has the usage in an object of its own."""
        if not isinstance(told, dict):
            raise Unfaithful
        rest = {field: value for field, value in told.items() if field != "usage"}
        self._usage = told.get("usage") or self._usage
        self._head["x_groq"] = self._head.get("x_groq", {}) | rest


class _Choice:
    """One choice as it comes."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}

    def take(self, choice: dict[str, Any]) -> None:
        for field, value in choice.items():
            if field in _LISTS:
                self.fields[field] = lists(self.fields.get(field), value)
            elif field in _LATEST_OF_CHOICE:
                self.fields[field] = self.fields.get(field) if value is None else value
            elif field == "error" and value:
                raise Unfaithful
            elif field != "index" and not self.said(field, value, choice):
                stay(self.fields, field, value)

    def said(self, field: str, value: Any, choice: dict[str, Any]) -> bool:
        """Whether a field was output, which has been taken."""
        raise NotImplementedError

    def say(self, text: str) -> None:
        """A text that a chunk says alone."""
        raise NotImplementedError

    def whole(self, index: int) -> dict[str, Any]:
        raise NotImplementedError


class ChatAssembler(_Chunks):
    """A chat."""

    kind = "chat.completion"

    def usual(self, data: bytes) -> bool:
        try:
            chunk = _decode_text(data)
            (said,) = chunk.choices
        except (ValueError, RecursionError):  # of several choices, or none, too
            return False
        known, head = self._choices.get(said.index), self._head.get
        if known is None or not (head("id") and head("created") and head("model")):
            return False
        if (chunk.system_fingerprint and not head("system_fingerprint")) or (chunk.service_tier and not head("service_tier")):
            return False
        known.say(said.delta.content)
        return True

    def usage(self, usage: Usage) -> dict[str, Any]:
        return usage_fields(usage)

    def choice(self) -> "_ChatChoice":
        return _ChatChoice()


class CompletionAssembler(_Chunks):
    """A completion."""

    kind = "text_completion"

    def usage(self, usage: Usage) -> dict[str, Any]:
        return counts(usage)

    def choice(self) -> "_TextChoice":
        return _TextChoice()


class _TextChoice(_Choice):
    def __init__(self) -> None:
        super().__init__()
        self._texts: dict[str, list[str]] = {"text": []}

    def said(self, field: str, value: Any, choice: dict[str, Any]) -> bool:
        if not isinstance(value, str) or field in NOT_OUTPUT:
            return False
        self._texts.setdefault(field, []).append(value)
        return True

    def whole(self, index: int) -> dict[str, Any]:
        texts = {name: "".join(pieces) for name, pieces in self._texts.items()}
        return texts | {"index": index, "logprobs": None} | {name: value for name, value in self.fields.items() if name not in texts}


class _ChatChoice(_Choice):
    def __init__(self) -> None:
        super().__init__()
        self._message = _Message()

    def said(self, field: str, value: Any, choice: dict[str, Any]) -> bool:
        if field not in ("delta", "message"):
            return False
        if field == "delta" or "delta" not in choice:  # Perplexity repeats in each chunk's message what was said so far
            self._message.take(value)
        return True

    def say(self, text: str) -> None:
        self._message.say(text)

    def whole(self, index: int) -> dict[str, Any]:
        return {"index": index, "message": self._message.whole(), "logprobs": None, **self.fields}


class _Message:
    """A message as its deltas come."""

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._texts: dict[str, list[str]] = {}
        self._parts: dict[str, list[Any]] = {}
        self._details: dict[Any, dict[str, Any]] = {}
        self._calls: list[_Call] = []
        self._at: dict[Any, _Call] = {}  # the latest call at an index
        self._function: _Call | None = None

    def say(self, text: str) -> None:
        self._texts.setdefault("content", []).append(text)

    def take(self, delta: Any) -> None:
        if not isinstance(delta, dict | None):
            raise Unfaithful
        for field, value in (delta or {}).items():
            if isinstance(value, str) and field not in NOT_OUTPUT:
                self._texts.setdefault(field, []).append(value)
            elif value is None:
                self._fields.setdefault(field, None)
            else:
                self._more(field, value)

    def _more(self, field: str, value: Any) -> None:
        """What is no text."""
        if field == "tool_calls":
            for call in value if isinstance(value, list) else [value]:
                self._called(call)
        elif field == "function_call":
            self._function = self._function or _Call()
            self._function.take({"function": value})
        elif field == "reasoning_details" and isinstance(value, list):
            for detail in value:
                self._detail(detail)
        elif field in ("content", "annotations", "images") and isinstance(value, list):
            self._parts.setdefault(field, []).extend(value)
        elif field == "audio":
            raise Unfaithful
        else:
            stay(self._fields, field, value)

    def whole(self) -> dict[str, Any]:
        message = {"role": "assistant", "content": None} | self._fields
        for name, pieces in self._texts.items():
            text = "".join(pieces)
            if text or not isinstance(message.get(name), str):
                message[name] = text
        for name, parts in self._parts.items():
            if any(self._texts.get(name, ())):
                raise Unfaithful
            message[name] = parts
        if self._details:
            message["reasoning_details"] = list(self._details.values())
        if self._calls:
            message["tool_calls"] = [call.whole() for call in self._calls]
        if self._function is not None:
            message["function_call"] = self._function.whole()["function"]
        if not message["content"] and (self._calls or self._function is not None or message.get("refusal")):
            message["content"] = None
        return message

    def _called(self, call: Any) -> None:
        if not isinstance(call, dict):
            raise Unfaithful
        place, id_ = call.get("index"), call.get("id")
        known = self._at.get(place)
        if known is None or (id_ and known.id and id_ != known.id):
            known = self._at[place] = _Call()
            self._calls.append(known)
        known.take(call)

    def _detail(self, detail: Any) -> None:
        """A detail of reasoning, as OpenRouter writes them: those with one index are one."""
        if not isinstance(detail, dict):
            raise Unfaithful
        index = detail.get("index")
        place = index if isinstance(index, int) else f"#{len(self._details)}"
        known = self._details.setdefault(place, {})
        for name, value in detail.items():
            if name in _PIECES and isinstance(value, str) and isinstance(known.get(name), str):
                known[name] += value
            else:
                stay(known, name, value)


class _Call:
    """A call as it comes."""

    def __init__(self) -> None:
        self.id: Any = None
        self._fields: dict[str, Any] = {}
        self._said: dict[str, tuple[dict[str, Any], list[str]]] = {}  # by function or custom: its fields, and the pieces of its arguments

    def take(self, call: dict[str, Any]) -> None:
        self.id = self.id or call.get("id")
        for field, value in call.items():
            if field in ("function", "custom"):
                if isinstance(value, dict):
                    self._function(field, value)
                elif value is not None:
                    raise Unfaithful
            elif field != "index" and value not in (None, ""):
                stay(self._fields, field, value)

    def _function(self, kind: str, said: dict[str, Any]) -> None:
        fields, pieces = self._said.setdefault(kind, ({}, []))
        for name, value in said.items():
            if name in ("arguments", "input") and isinstance(value, str):
                fields.setdefault(name, "")
                pieces.append(value)
            elif value not in (None, ""):
                stay(fields, name, value)

    def whole(self) -> dict[str, Any]:
        said = {}
        for kind, (fields, pieces) in self._said.items():
            argument = "input" if kind == "custom" else "arguments"
            said[kind] = fields | {argument: "".join(pieces)}
        return self._fields | said


class ResponseAssembler:
    """A response: its last event has all of it, where it has all items that were told."""

    def __init__(self) -> None:
        self._response: dict[str, Any] | None = None
        self._items = 0

    def usual(self, data: bytes) -> bool:
        return False

    def take(self, name: str, data: dict[str, Any]) -> None:
        kind = data.get("type") or name
        if kind == "response.output_item.done":
            self._items += 1
        elif kind in ("response.completed", "response.incomplete"):
            response = data.get("response")
            self._response = response if isinstance(response, dict) else None
        elif kind == "error" or data.get("error") is not None:
            raise Unfaithful

    def whole(self, usage: Usage | None) -> dict[str, Any]:
        output = self._response.get("output") if self._response is not None else None
        if self._response is None or not isinstance(output, list) or len(output) != self._items:
            raise Unfaithful
        return self._response
