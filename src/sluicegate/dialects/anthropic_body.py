"""What an upstream of the Anthropic messages dialect says: a message, an event of a stream, an error; from bytes to typed values, whatever is in it.

Nothing here raises. What is of the documented types is decoded at once; an object in which something is of another type goes a slower way that takes
what can be taken, as does one with a field that is not known. Output is what is billed as such: text, thinking, names of tools and their input as
JSON, those of tools that the provider runs included, and a text in any field that is not known to hold none. What such tools found, proofs of
thinking and citations are none. https://docs.anthropic.com/en/api/messages has the shapes.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct

from sluicegate.core.usage import Usage
from sluicegate.dialects import usage as reports
from sluicegate.dialects.form import Delta, Failure
from sluicegate.dialects.openai_body import bare_failure, failure_in, int_or, others, plainly, strings, text_of

# Why an answer ended, in OpenAI's names; any other is passed on as it came. https://docs.anthropic.com/en/api/handling-stop-reasons
FINISHES = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}
# The types of errors with the statuses that go with them. https://docs.anthropic.com/en/api/errors
ERRORS = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "conflict_error": 409,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
_FOUND = "_tool_result"  # the end of the types of blocks that hold what a tool found
RUN = "server_tool_use"  # a call of a tool that the provider runs
CALLS = ("tool_use", RUN, "mcp_tool_use")

_NONE = Raw(b"")


class Block(Struct, gc=False, forbid_unknown_fields=True):
    """A block of content, as far as it is output. more: the texts of all other fields."""

    type: str = ""
    id: str | None = None
    name: str | None = None
    input: Raw = _NONE  # JSON
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    citations: Raw = _NONE
    more: str = ""

    @property
    def output(self) -> str:
        """All output in it."""
        text = (self.text or "") + (self.thinking or "") + self.more
        if not self.type.endswith(_FOUND):
            given = bytes(self.input)
            text += (self.name or "") + (given.decode("utf-8", "replace") if given not in (b"", b"{}", b"null") else "")
        return text


class Change(Struct, gc=False, forbid_unknown_fields=True):
    """What an event adds: to a block, or to the message. more: the texts of all other fields."""

    type: str = ""
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    signature: str | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None
    citation: Raw = _NONE
    more: str | None = None


class Message(Struct, gc=False, forbid_unknown_fields=True):
    """An answer. more: the texts of all other fields."""

    id: str = ""
    type: Any = None
    role: Any = None
    model: str = ""
    content: list[Block] | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: Any = None
    error: Any = None
    more: str = ""


class StreamEvent(Struct, gc=False):
    """The data of one event of a stream."""

    type: str = ""
    index: int = 0
    message: Message | None = None
    content_block: Block | None = None
    delta: Change | None = None
    usage: Any = None
    error: Any = None


# Fields that are read, or hold no output beside those of which this is true everywhere.
_OF_BLOCK = frozenset({"name", "input", "text", "thinking", "server_name"})
_OF_CHANGE = frozenset({"text", "thinking", "partial_json", "container"})
_OF_MESSAGE = frozenset({"model", "content", "usage", "container", "context_management"})

_decode_message = msgspec.json.Decoder(Message).decode
decode_event = msgspec.json.Decoder(StreamEvent).decode
_encode = msgspec.json.Encoder().encode


def read_message(body: bytes) -> tuple[Message | None, Any]:
    """An answer; (None, ...) if it is not an object. The second is the body as plain values, where it is no message."""
    try:
        message = _decode_message(body)
        if message.content is not None and message.error is None:
            return message, None
    except (ValueError, RecursionError):
        pass
    loose = plainly(body)
    return (_tolerated_message(loose) if isinstance(loose, dict) else None), loose


def tolerated_event(loose: dict[str, Any]) -> StreamEvent:
    """What can be taken of an event in which something has a wrong type."""
    message, block, delta = loose.get("message"), loose.get("content_block"), loose.get("delta")
    return StreamEvent(
        text_of(loose.get("type")),
        int_or(loose.get("index"), 0),
        _tolerated_message(message) if isinstance(message, dict) else None,
        _tolerated_block(block) if isinstance(block, dict) else None,
        _tolerated_change(delta) if isinstance(delta, dict) else None,
        loose.get("usage"),
        loose.get("error"),
    )


def deltas_of(message: Message) -> list[Delta]:
    """The output of a whole answer."""
    blocks = message.content or []
    text, calls = "".join([block.output for block in blocks]) + message.more, sum(block.type in CALLS for block in blocks)
    return [Delta(0, text, calls)] if text or calls else []


def usage_of(reported: Any, ran: Mapping[str, int] | None = None) -> Usage | None:
    """ran: tools that the provider has run, as the answer shows. What it reports of them goes before: calls that failed are not charged. A report
    without a word of them (`server_tool_use` is null where none was called) says nothing: then each call that is shown counts."""
    usage = reports.read(reports.ANTHROPIC, reported)
    if usage is not None:
        usage.calls = {**(ran or {}), **(usage.calls or {})} if ran or usage.calls else None
    return usage


def ran(blocks: Iterable[Block]) -> dict[str, int]:
    """Calls of tools that the provider has run."""
    return dict(Counter(ran_as(block.name or "") for block in blocks if block.type == RUN))


def ran_as(name: str) -> str:
    """The tool that a call is of: code has a name for each thing that it does (`bash_code_execution`)."""
    return "code_execution" if name.endswith("code_execution") else name


def finish_of(stop_reason: str) -> str:
    return FINISHES.get(stop_reason, stop_reason)


def failure_of(error: Any, loose: Any = None) -> Failure | None:
    """An error in its own shape, or in that of another vendor, which servers that only speak this dialect write."""
    failure = failure_in(error) if error else bare_failure(loose)
    if failure is not None and failure.status is None:
        failure.status = ERRORS.get(failure.type)
    return failure


def _tolerated_message(loose: dict[str, Any]) -> Message:
    content = loose.get("content")
    blocks = [_tolerated_block(block) for block in content if isinstance(block, dict)] if isinstance(content, list) else None
    if isinstance(content, str):
        blocks = [Block("text", text=text_of(content))]
    return Message(
        text_of(loose.get("id")),
        None,
        None,
        text_of(loose.get("model")),
        blocks,
        text_of(loose.get("stop_reason")) or None,
        text_of(loose.get("stop_sequence")) or None,
        loose.get("usage"),
        loose.get("error"),
        text_of(others(loose, _OF_MESSAGE, {block.output for block in blocks})) if blocks is not None else "",  # else it is an error
    )


def _tolerated_block(loose: dict[str, Any]) -> Block:
    block = Block(text_of(loose.get("type")), text_of(loose.get("id")), _all(loose.get("name")))
    block.text, block.thinking = _all(loose.get("text")), _all(loose.get("thinking"))
    block.signature, block.data = text_of(loose.get("signature")), text_of(loose.get("data"))
    if not block.type.endswith(_FOUND):
        block.more = text_of(others(loose, _OF_BLOCK, {block.text, block.thinking}))
    given = loose.get("input")
    if given:
        try:
            block.input = Raw(given.encode("utf-8", "replace") if isinstance(given, str) else _encode(given))
        except (ValueError, RecursionError, OverflowError):  # what could just be read may be too deep, or hold half a surrogate pair
            block.input = Raw(_encode(_all(given)))
    return block


def _tolerated_change(loose: dict[str, Any]) -> Change:
    text, thinking, given = [_all(loose.get(name)) for name in ("text", "thinking", "partial_json")]
    return Change(
        text_of(loose.get("type")),
        text,
        thinking,
        given,
        text_of(loose.get("signature")),
        text_of(loose.get("stop_reason")) or None,
        text_of(loose.get("stop_sequence")) or None,
        more=text_of(others(loose, _OF_CHANGE, {text, thinking, given})),
    )


def _all(value: Any) -> str:
    """Every text in a value that should have been one."""
    return text_of("".join(strings(value)))
