"""The content form: what a request or an answer says, apart from the wire format in which it is said.

Used only where a client and a provider speak different dialects; where they speak the same one, bytes pass as they came. N + M: each dialect that
clients speak reads a `Prompt` and writes a `Reply` and its pieces, each that providers speak writes a `Prompt` and reads a `Reply` and its pieces
(between.py puts one of each together). What a request asks for and a provider's dialect has no way to say raises `Inexpressible`, if the answer would
be of another kind without it (several choices, logprobs, a tool that the provider runs); what only tunes sampling or routing is left out and named in
`Prompt.left_out`.

JSON that nobody here acts on (schemas, arguments of calls) stays as the text that it came in. Finish reasons have OpenAI's names throughout:
stop, length, tool_calls, content_filter; any other is passed on as it came.
"""

from typing import Literal

from msgspec import Raw, Struct

from sluicegate.core.usage import Usage
from sluicegate.dialects.form import BadRequest


class Inexpressible(BadRequest):
    """A provider's dialect cannot say this: another deployment may. `param` names the client's field."""


# -- requests -----------------------------------------------------------------------------------------------------------------------------


class Text(Struct):
    text: str
    cache: Raw | None = None  # Anthropic's cache_control, as it came; only Anthropic is sent it


class Image(Struct):
    """By URL or by its bytes (base64)."""

    url: str = ""
    media_type: str = ""  # image/png, image/jpeg, image/gif, image/webp; of the bytes
    data: str = ""
    detail: str = ""  # OpenAI's: low, high, auto
    cache: Raw | None = None


class Document(Struct):
    """A file that is read as text and pictures: by URL, or by its bytes (base64), or as plain text."""

    url: str = ""
    media_type: str = ""  # application/pdf, text/plain
    data: str = ""
    text: str = ""
    name: str = ""
    cache: Raw | None = None


class Audio(Struct):
    data: str  # base64
    format: str  # wav, mp3


class Thinking(Struct):
    """What a model thought, with the proof that it did."""

    text: str
    signature: str = ""


class RedactedThinking(Struct):
    data: str


class Refusal(Struct):
    text: str


class ToolUse(Struct):
    """A call that the model makes. arguments: JSON text of an object, "{}" for none, cut short where the answer was."""

    id: str
    name: str
    arguments: str
    cache: Raw | None = None


class ToolResult(Struct):
    """What a call gave."""

    id: str
    parts: list["Text | Image | Document"]
    failed: bool = False
    cache: Raw | None = None


Part = Text | Image | Document | Audio | Thinking | RedactedThinking | Refusal | ToolUse | ToolResult


class Message(Struct):
    """In the order of the conversation. Results of tools are parts of a user's message; system and developer messages stay where they stood."""

    role: Literal["system", "developer", "user", "assistant"]
    parts: list[Part]
    name: str = ""


class Tool(Struct):
    """A function that the client runs."""

    name: str
    description: str
    schema: Raw  # JSON schema of the arguments, as it came
    strict: bool | None = None
    cache: Raw | None = None


class ToolChoice(Struct):
    kind: Literal["auto", "any", "none", "tool"] = "auto"  # any: at least one call; tool: this one
    name: str = ""


class Shape(Struct):
    """The form that the answer must have: some JSON, or JSON of a schema."""

    schema: Raw | None = None
    name: str = ""
    description: str = ""
    strict: bool | None = None


class Prompt(Struct):
    """A request, but for the model, the cap, the number of choices and the stream, which form.Request has."""

    messages: list[Message]
    tools: list[Tool] = []
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    shape: Shape | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop: list[str] = []
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    thinking_budget: int | None = None  # tokens; None: none was given
    thinking: Literal["", "on", "off", "adaptive"] = ""
    effort: str = ""  # none, minimal, low, medium, high, xhigh, max; "" = not said
    user: str = ""
    left_out: list[str] = []  # fields that only tune, and that the provider's dialect has no place for


# -- answers ------------------------------------------------------------------------------------------------------------------------------


class Choice(Struct):
    index: int
    parts: list[Part]  # Text, Thinking, RedactedThinking, Refusal, ToolUse; in the order in which they came
    finish: str
    stop_sequence: str = ""  # the one that ended it, if that was said


class Reply(Struct):
    """A whole answer."""

    id: str
    model: str
    created: int  # Unix seconds; 0: not said
    choices: list[Choice]
    usage: Usage | None = None  # left to Between, which has it from the answer's figures


# -- streamed answers, in pieces ------------------------------------------------------------------------------------------------------------
# Invariant: every piece of a call comes after its ToolBegin; `call` numbers the calls of a choice from 0. Pieces of several calls may interleave.


class Begin(Struct):
    """Once, before every other piece."""

    id: str
    model: str
    created: int
    usage: Usage | None = None  # what is known of the input by then


class TextDelta(Struct):
    choice: int
    text: str


class ThinkingDelta(Struct):
    choice: int
    text: str


class SignatureDelta(Struct):
    """The proof of the thinking before it."""

    choice: int
    signature: str


class RedactedBlock(Struct):
    choice: int
    data: str


class RefusalDelta(Struct):
    choice: int
    text: str


class ToolBegin(Struct):
    choice: int
    call: int
    id: str
    name: str


class ToolDelta(Struct):
    choice: int
    call: int
    arguments: str


class Finish(Struct):
    choice: int
    reason: str
    stop_sequence: str = ""


Piece = Begin | TextDelta | ThinkingDelta | SignatureDelta | RedactedBlock | RefusalDelta | ToolBegin | ToolDelta | Finish
