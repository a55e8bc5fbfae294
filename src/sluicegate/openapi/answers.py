"""What clients are answered, as types for the OpenAPI document: the fields that every answer of its kind has, and what the gateway adds.

Answers pass as the bytes that an upstream sent, or are written in the same form, so any of them may have more fields than these.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from sluicegate.consumption import Consumption

Natural = Annotated[int, Meta(ge=0)]


class Truncated(Struct):
    """In the last chunk of a choice that the gateway ended: "budget", or "ledger" where that did not answer."""

    truncated: str


# -- OpenAI -------------------------------------------------------------------------------------------------------------------------------


class Usage(Struct):
    """Tokens as the provider counted them."""

    prompt_tokens: Natural
    completion_tokens: Natural
    total_tokens: Natural
    prompt_tokens_details: dict[str, Any] | None = None
    completion_tokens_details: dict[str, Any] | None = None


class ChatMessage(Struct):
    role: Literal["assistant"]
    content: str | None = None
    refusal: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


class ChatChoice(Struct):
    index: Natural
    message: ChatMessage
    finish_reason: str | None


class ChatCompletion(Struct):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage | None = None


class ChatDelta(Struct):
    role: Literal["assistant"] | None = None
    content: str | None = None
    refusal: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


class ChatChunkChoice(Struct):
    index: Natural
    delta: ChatDelta
    finish_reason: str | None = None


class ChatChunk(Struct):
    """The data of an event. After the last one comes `data: [DONE]`."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    sluicegate: Truncated | None = None


class TextChoice(Struct):
    index: Natural
    text: str
    finish_reason: str | None = None
    logprobs: dict[str, Any] | None = None


class TextCompletion(Struct):
    """A whole answer, or the data of an event: after the last one comes `data: [DONE]`."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage | None = None
    sluicegate: Truncated | None = None


class InputUsage(Struct):
    prompt_tokens: Natural
    total_tokens: Natural


class Vector(Struct):
    object: Literal["embedding"]
    index: Natural
    embedding: list[float] | str  # base64 of little-endian floats of four bytes


class Embeddings(Struct):
    object: Literal["list"]
    data: list[Vector]
    model: str
    usage: InputUsage | None = None


class ResponseUsage(Struct):
    input_tokens: Natural
    output_tokens: Natural
    total_tokens: Natural
    input_tokens_details: dict[str, Any] | None = None
    output_tokens_details: dict[str, Any] | None = None


class Item(Struct):
    """A message, a call of a tool, reasoning, ..."""

    type: str


class Response(Struct):
    id: str
    object: Literal["response"]
    created_at: float
    status: str
    model: str
    output: list[Item]
    usage: ResponseUsage | None = None


class ResponseEvent(Struct):
    """The data of an event; the last one is `response.completed`, `response.incomplete` or `response.failed`."""

    type: str
    sequence_number: int | None = None
    response: dict[str, Any] | None = None


# -- Anthropic ----------------------------------------------------------------------------------------------------------------------------


class Block(Struct):
    """Text, thinking, the use of a tool, ..."""

    type: str


class MessageUsage(Struct):
    """Tokens read from or written to a cache are beside the input's."""

    input_tokens: Natural
    output_tokens: Natural
    cache_read_input_tokens: Natural | None = None
    cache_creation_input_tokens: Natural | None = None


class Message(Struct):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Block]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessageUsage


class MessageEvent(Struct):
    """The data of an event; the last one is `message_stop`."""

    type: str


class TokenCount(Struct):
    """The gateway's own count of a request."""

    input_tokens: Natural


# -- the gateway's own --------------------------------------------------------------------------------------------------------------------


class Model(Struct):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class Models(Struct):
    object: Literal["list"]
    data: list[Model]


class Limit(Struct):
    """Amounts are in the limit's unit; dollars are dollars. remaining: null where the limit only counts (`shadow`)."""

    name: str
    scope: str
    unit: str
    window: str
    models: list[str] | None
    mode: Literal["enforce", "shadow"]
    limit: float
    used: float
    held: float
    remaining: float | None
    resets_at: str | None


class UsageReport(Struct):
    """usage: null where the records do not answer within a second; usage_unavailable says so."""

    object: Literal["usage"]
    key: str
    limits: list[Limit]
    usage: Consumption | None
    usage_unavailable: str | None


class Health(Struct):
    status: str


class Readiness(Struct):
    """closed_trees: how many trees of tenants or deployments take no requests, since what was used of them is being recovered."""

    status: str
    closed_trees: Natural


# -- errors -------------------------------------------------------------------------------------------------------------------------------


class Detail(Struct):
    """Of a refusal by a limit. The figures may be hidden by the configuration."""

    reason: str
    scope: str
    unit: str
    window: str
    resets_at: str | None
    limit: int | None = None
    used: int | None = None
    held: int | None = None
    requested: int | None = None
    affordable_output_tokens: int | None = None
    reserved: int | None = None


class ErrorBody(Struct):
    message: str
    type: str
    param: str | None
    code: str | None
    request_id: str | None = None
    sluicegate: Detail | None = None


class Error(Struct):
    """In OpenAI's form."""

    error: ErrorBody


class MessageErrorBody(Struct):
    type: str
    message: str
    code: str | None = None
    param: str | None = None
    sluicegate: Detail | None = None


class MessageError(Struct):
    """In Anthropic's form."""

    type: Literal["error"]
    error: MessageErrorBody
    request_id: str | None = None
