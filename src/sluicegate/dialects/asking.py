"""What a request says to a model, as content rules look at it: every text in it, and where a system prompt stands first in each dialect.

All strings of a body are texts but those that are names of kinds and ids, settings that no model reads, and encoded pictures, sounds and files.
Strings and numbers in the arguments of earlier calls, which are JSON in a string, are texts of their own (core/arguments.py); so are the names of
properties in schemas. What cannot be read as text (tokens, files, pictures) is not searched.

The system prompt is a message of its own before all others (chat, messages as a block of `system`), the beginning of `instructions` (responses) or
of each prompt (completions). A client that sends it, as a paragraph, has it where it would stand, or it is taken out elsewhere: it is there once.
Embeddings get none.

Where nothing else changes (`begun`), the request is not read again: a text of its own stands before all others, which are counted as before. That is
what its dialect would read of the new body.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw, Struct

from sluicegate.core.arguments import changed, is_json, loose, parts
from sluicegate.core.content_rules import BETWEEN
from sluicegate.dialects.form import BadRequest, Request

_UNREAD = frozenset((  # fields of a body
    "model", "user", "metadata", "stop", "stop_sequences", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "stream_options", "encoding_format", "previous_response_id", "include", "truncation", "logit_bias", "modalities", "reasoning_effort", "verbosity",
))  # fmt: skip
_NO_TEXT = frozenset((  # fields anywhere, if what they hold is one word
    "type", "role", "id", "call_id", "tool_call_id", "tool_use_id", "item_id", "file_id", "signature", "encrypted_content", "media_type", "mime_type",
    "format", "detail", "status", "data", "file_data", "url", "image_url", "b64_json",
))  # fmt: skip
_ARGUMENTS = "arguments"
_SAID = ("refusal", "text")  # where a part of content has its text
_OF_TOOLS = ("tool", "function")  # roles whose name is that of a tool

_decode = msgspec.json.Decoder(float_hook=lambda number: Raw(number.encode())).decode  # it stays as it is written
_encode = msgspec.json.Encoder().encode
_decode_items = msgspec.json.Decoder(list[dict[str, Raw]]).decode
_decode_list = msgspec.json.Decoder(list[Raw]).decode

# Requests with no other fields have all their texts in `Request.texts`, but for JSON in which something is escaped.
_USUAL = frozenset((
    "model", "messages", "stream", "stream_options", "temperature", "top_p", "top_k", "n", "seed", "stop", "stop_sequences", "user", "metadata",
    "tools", "max_tokens", "max_completion_tokens", "max_output_tokens", "presence_penalty", "frequency_penalty", "system", "input", "instructions",
    "prompt", "parallel_tool_calls", "store", "logprobs", "top_logprobs",
))  # fmt: skip

_IN_PARTS = ("messages", "input", "system")

Leaf = tuple[Any, Any, str]  # an object or a list, the place in it, the text that stands there


def usual(request: Request) -> bool:
    """Whether `Request.texts` has every text of it as it is, and none has parts."""
    fields = request.fields
    if not _USUAL.issuperset(fields):
        return False
    for text in request.texts:
        if "\\" in text:
            return False
    for name in _IN_PARTS:  # there may be a list of parts in one, or it is one
        if name in fields and bytes(fields[name]).find(b"[", name != "system") >= 0:
            break
    else:
        return True
    return False


NOTHING: Mapping[int, str] = {}


class Texts:
    """All texts of a request."""

    def __init__(self, fields: dict[str, Any]) -> None:
        """Raises BadRequest where they cannot be read."""
        self._fields = fields
        try:
            self._read = {name: _decode(raw) for name, raw in fields.items() if name not in _UNREAD and bytes(raw)[:1] in b'"{['}
            self._leaves = list(_leaves(self._read))
            self.adjacent = _adjacent(self._read, self._leaves)  # places of texts that stand side by side in one message, by message
        except RecursionError:
            raise BadRequest("The body is nested too deeply.") from None

        arguments = [(number, text) for number, (_, place, text) in enumerate(self._leaves) if place == _ARGUMENTS]
        self._json = {number for number, text in arguments if is_json(text)}
        read = [(number, loose(text)) for number, text in arguments if number not in self._json]
        self.loose = {number: without for number, without in read if without is not None}  # arguments that are no JSON, as they read without escapes

    def all(self) -> Iterator[str]:
        """Each of them."""
        for number, (_, _, text) in enumerate(self._leaves):
            if number in self._json:
                yield from (part.text for part in parts(text))
            else:
                yield text
        yield from (without.text for without in self.loose.values())

    def at(self, number: int) -> str:
        """One that is no JSON."""
        return self._leaves[number][2]

    def joined(self) -> Iterator[str]:
        """Those that stand side by side, as one."""
        return ("".join([self.at(number) for number in places]) for places in self.adjacent)

    def replace(self, told: Callable[[str], str], across: Mapping[int, str] = NOTHING) -> bool:
        """Puts `told` of each text in its place, where it can stand there; `across` of some, by their number. Whether that changed anything."""
        changed = False
        for number, (holder, place, text) in enumerate(self._leaves):
            new = across[number] if number in across else _arguments(text, told) if number in self._json else told(text)
            if new != text and not _is_fixed(holder, place, text):
                holder[place], changed = new, True
        if changed:
            self._fields.update({name: Raw(_encode(value)) for name, value in self._read.items() if value != _decode(self._fields[name])})
        return changed


def _leaves(value: Any) -> Iterator[Leaf]:
    """Texts in the order in which they stand."""
    waiting = [(value, False)]
    while waiting:
        holder, argued = waiting.pop()
        inside = []
        for place, each in holder.items() if isinstance(holder, dict) else enumerate(holder):
            if isinstance(each, str):
                if each and not (place in _NO_TEXT and not _is_text(holder, place, each)):
                    yield holder, place, each
            elif isinstance(each, dict | list):
                inside.append((each, argued or (place == "input" and isinstance(each, dict))))
                if place == "properties":  # of a schema: what they are called is read
                    yield from ((each, "name", name) for name in each)
            elif argued and isinstance(each, int | Raw) and not isinstance(each, bool):  # what a tool was called with
                yield holder, place, bytes(each).decode() if isinstance(each, Raw) else str(each)
        waiting += reversed(inside)


def _adjacent(value: Any, leaves: Sequence[Leaf]) -> list[list[int]]:
    """Parts of content with nothing between them but what is no text."""
    numbers = {id(holder): number for field in _SAID for number, (holder, place, _) in enumerate(leaves) if place == field}
    found: list[list[int]] = []
    waiting = [value]
    while waiting:
        holder = waiting.pop()
        if isinstance(holder, list):
            runs: list[list[int]] = [[]]
            for each in holder:
                if not isinstance(each, dict) or not any(isinstance(each.get(field), str) for field in _SAID):
                    runs.append([])
                elif id(each) in numbers:
                    runs[-1].append(numbers[id(each)])
            found += [run for run in runs if len(run) > 1]
        waiting += [each for each in (holder.values() if isinstance(holder, dict) else holder) if isinstance(each, dict | list)]
    return found


def _is_text(holder: Any, place: str, text: str) -> bool:
    """Whether what is usually none is one: it has several words, or is a document of plain text."""
    if place == "data":
        return bool(holder.get("type") == "text")
    return " " in text and not text.startswith("data:")


def _is_fixed(holder: Any, place: Any, text: str) -> bool:
    """A text that cannot be masked: the name of a tool (not of who says a message), or a thought, which is signed."""
    if place != "name":
        return bool(place == "thinking")
    return holder.get(place) != text or not isinstance(role := holder.get("role"), str) or role in _OF_TOOLS


def _arguments(text: str, told: Callable[[str], str]) -> str:
    read = [(part, told(part.text)) for part in parts(text)]
    changes = [(part, new) for part, new in read if new != part.text]
    return changed(text, changes, (part.text for part, _ in read if part.name)) if changes else text


# -- system prompts -----------------------------------------------------------------------------------------------------------------------


def prompted(dialect: str, fields: dict[str, Any], prompts: Sequence[str]) -> bool:
    """Puts system prompts first. Whether that changed anything. Raises BadRequest where they cannot stand."""
    put = _PUT.get(dialect)
    return put is not None and put(fields, prompts, BETWEEN.join(prompts))


def _begins(text: str, joined: str) -> bool:
    """A text is the system prompt, or begins with it as a paragraph: what goes on in its last sentence may turn it around."""
    return text.startswith(joined) and (len(text) == len(joined) or text.startswith(BETWEEN, len(joined)))


def _chat(fields: dict[str, Any], prompts: Sequence[str], joined: str) -> bool:
    items = _decode_items(fields["messages"])
    if items and _begins(_system_text(items[0]), joined):
        return False
    own = {"role": "system", "content": joined}
    fields["messages"] = Raw(_encode([own, *_without(items, prompts, joined)]))
    return True


def _responses(fields: dict[str, Any], prompts: Sequence[str], joined: str) -> bool:
    told = _decode(fields["instructions"]) if "instructions" in fields else None
    told = told if isinstance(told, str) else ""
    if _begins(told, joined):
        return False
    fields["instructions"] = Raw(_encode(joined if told.strip() in ("", *prompts) else joined + BETWEEN + told))
    if bytes(fields.get("input", b"")).startswith(b"["):
        items = [_decode(raw) for raw in _decode_list(fields["input"])]
        if all(isinstance(item, dict) for item in items):
            whole = _decode_items(fields["input"])
            kept = _without(whole, prompts, joined)
            if len(kept) < len(whole) and kept:
                fields["input"] = Raw(_encode(kept))
    return True


def _messages(fields: dict[str, Any], prompts: Sequence[str], joined: str) -> bool:
    system = fields.get("system", b"null")
    blocks: list[Any] = []
    if bytes(system)[:1] == b'"':
        blocks = [{"type": "text", "text": _decode(system)}]
    elif bytes(system)[:1] == b"[":
        blocks = _decode_items(system)
    texts = [_text_of(block) for block in blocks]
    if texts and _begins(texts[0], joined):
        return False
    kept = [block for block, text in zip(blocks, texts, strict=True) if text.strip() not in ("", *prompts, joined)]  # an empty one is refused
    fields["system"] = Raw(_encode([{"type": "text", "text": joined}, *kept]))
    return True


def _completions(fields: dict[str, Any], _prompts: Sequence[str], joined: str) -> bool:
    prompt = _decode(fields.get("prompt", b"null"))
    if prompt is None:
        prompt = ""
    several = prompt if isinstance(prompt, list) else [prompt]
    if not all(isinstance(each, str) for each in several):
        raise BadRequest("A prompt of tokens is not served here: a system prompt has to stand before it.", "prompt", "content_policy")
    new = [each if _begins(each, joined) else joined + BETWEEN + each if each else joined for each in several]
    fields["prompt"] = Raw(_encode(new if isinstance(prompt, list) else new[0]))
    return new != several


class _Message(Struct, gc=False):
    role: str
    content: str | list[Raw] | None = None


class _Beginning(NamedTuple):
    """A system prompt, and how each dialect says it."""

    text: str
    alone: frozenset[str]  # what a system message says that says nothing else
    value: bytes
    message: bytes
    block: bytes


_OF_SYSTEM = frozenset(("system", "developer"))
_decode_messages = msgspec.json.Decoder(list[_Message]).decode


@lru_cache(1024)
def _beginning(prompts: tuple[str, ...]) -> _Beginning:
    text = BETWEEN.join(prompts)
    message, block = _encode({"role": "system", "content": text}), _encode([{"type": "text", "text": text}])
    return _Beginning(text, frozenset(("", text, *prompts)), _encode(text), b"[%b," % message, block)


def begun(dialect: str, request: Request, prompts: tuple[str, ...]) -> Request | None:
    """The request with system prompts before everything else, if that is all that has to be done; None where `prompted` has to do it."""
    told = _BEGUN.get(dialect)
    if told is None or request.unbounded:
        return None
    beginning = _beginning(prompts)
    change = told(request.fields, beginning)
    if change is None:
        return None
    name, value, messages = change
    fields, texts = {**request.fields, name: Raw(value)}, [beginning.text, *request.texts]
    return msgspec.structs.replace(request, fields=fields, texts=texts, messages=request.messages + messages)


_Change = tuple[str, bytes, int]  # a field, what it is, messages more


def _begun_chat(fields: Mapping[str, Raw], beginning: _Beginning) -> _Change | None:
    messages = fields["messages"]
    try:
        for message in _decode_messages(messages):
            if message.role in _OF_SYSTEM:
                said = message.content
                if not isinstance(said, str) or _begins(said, beginning.text) or said.strip() in beginning.alone:
                    return None
    except RecursionError:
        return None
    return "messages", beginning.message + bytes(messages)[1:], 1


def _begun_responses(fields: Mapping[str, Raw], beginning: _Beginning) -> _Change | None:
    told = bytes(fields.get("input", b"null"))
    if bytes(fields.get("instructions", b"null")) != b"null" or told[:1] != b'"':
        return None
    return "instructions", beginning.value, 1


def _begun_messages(fields: Mapping[str, Raw], beginning: _Beginning) -> _Change | None:
    return ("system", beginning.block, 0) if bytes(fields.get("system", b"null")) == b"null" else None


_BEGUN: dict[str, Callable[[Mapping[str, Raw], _Beginning], _Change | None]] = {
    "openai_chat": _begun_chat,
    "openai_responses": _begun_responses,
    "anthropic_messages": _begun_messages,
}
_PUT: dict[str, Callable[[dict[str, Any], Sequence[str], str], bool]] = {
    "openai_chat": _chat,
    "openai_completions": _completions,
    "openai_responses": _responses,
    "anthropic_messages": _messages,
}


def _without(items: list[dict[str, Raw]], prompts: Sequence[str], joined: str) -> list[dict[str, Raw]]:
    """Messages but for those of the system that say nothing else than a prompt, or nothing."""
    return [item for item in items if not _is_system(item) or _system_text(item).strip() not in ("", *prompts, joined)]


def _is_system(item: dict[str, Raw]) -> bool:
    return bytes(item.get("role", b"")) in (b'"system"', b'"developer"')


def _system_text(item: dict[str, Raw]) -> str:
    """What a system message says; "" for any other."""
    if not _is_system(item) or "content" not in item:
        return ""
    content = _decode(item["content"])
    if isinstance(content, str):
        return content
    return "".join([_text_of(part) for part in content]) if isinstance(content, list) else ""


def _text_of(part: Any) -> str:
    """Of a part or block."""
    text = part.get("text") if isinstance(part, dict) else None
    if isinstance(text, Raw):
        text = _decode(text)
    return text if isinstance(text, str) else ""
