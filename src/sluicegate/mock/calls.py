"""What a call asks for, whatever wire format it came in.

Each dialect's module reads its own bodies into a `Call`. Conversations are checked as strictly as vendors do where a gateway that translates could go
wrong: every call of a tool must have its result, right after it. How it fails: BadCall, a 400.
"""

from collections.abc import Callable, Iterable
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

OUTPUT_MAX = 1_000_000
Positive = Annotated[int, msgspec.Meta(ge=1)]
T = TypeVar("T")
Choices = Annotated[int, msgspec.Meta(ge=1, le=128)]


class BadCall(Exception):
    """The request is not a call that the mock understands. param: the field, where that is known."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class Offered(NamedTuple):
    """A tool that the model may call."""

    name: str
    description: str
    schema: bytes  # of its arguments, JSON

    @property
    def text(self) -> str:
        """What the model reads of it."""
        return f"{self.name} {self.description} {self.schema.decode()}"


class Call(msgspec.Struct):
    """A request, as far as the mock acts on it. texts: everything that the model reads; a tag in one of them overrides options."""

    model: str
    texts: list[str]
    identity: bytes  # lengths are drawn from it
    body: Any  # the dialect's own, for its answers
    stream: bool = False
    include_usage: bool = False  # OpenAI's stream_options
    choices: int = 1  # that are generated
    cap: int = OUTPUT_MAX  # output tokens per choice
    messages: int = 0  # that frame the texts
    token_ids: int = 0  # of a prompt given in tokens
    user: str = ""
    overrides: dict[str, Any] | None = None
    tools: list[Offered] = []
    may_call: bool = True  # tools are not to be left alone (tool_choice none), and the last turn is not the result of one


class StreamOptions(msgspec.Struct):
    """OpenAI's `stream_options`."""

    include_usage: bool | None = None


def read(decode: Callable[[bytes], T], body: bytes | msgspec.Raw, field: str | None = None) -> T:
    """Decodes the body, or a field of it. Raises BadCall."""
    try:
        return decode(bytes(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadCall(str(error), field) from None


class Conversation:
    """Takes the turns in order, for their texts and for whether calls and results fit."""

    def __init__(self, field: str = "messages") -> None:
        self._field = field
        self.texts: list[str] = []
        self.answered = False  # the last turn is the result of a tool
        self._open: list[str] = []

    def turn(self, text: str = "") -> None:
        """A message that is no result."""
        self.end()
        self.answered = False
        if text:
            self.texts.append(text)

    def call(self, id: str, name: str, arguments: str) -> None:
        """The model has called a tool."""
        self._open.append(id)
        self.texts.append(f"{name} {arguments}")

    def result(self, id: str, text: str) -> None:
        """A tool has answered."""
        if id not in self._open:
            raise BadCall(f"the result of {id!r} answers no call of a tool right before it", self._field)
        self._open.remove(id)
        self.answered = True
        self.texts.append(text)

    def end(self) -> None:
        """Nothing may be left unanswered here."""
        if self._open:
            raise BadCall(f"calls of tools without a result right after them: {', '.join(self._open)}", self._field)


def offered(tools: Iterable[Offered], conversation: Conversation) -> list[Offered]:
    """The tools, counted as texts of the conversation."""
    found = list(tools)
    conversation.texts += [tool.text for tool in found]
    return found
