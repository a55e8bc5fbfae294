"""The internal form: what the gateway acts on, whatever wire format a client or a provider speaks.

A dialect module is pure: bytes in, values out, no client, no clock, one stream reader per answer. It offers, under the same names in every module:

    NAME, PATH                                           PATH: below a provider's base URL
    write_request(request, target) -> bytes              for the upstream; everything it does not act on passes as it came
    read_answer(body) -> Answer                          a unary answer, an error included
    streamed(body) -> bytes                              a unary answer as the stream that it might have been
    StreamReader().feed(data) -> list[Event]             whole events as they become complete; .end() -> list[Event] for what is left at EOF
    write_event(event, hide_usage) -> bytes              for the client; b"" drops it

and, if clients speak it:

    STATUS                                               HTTP statuses of error codes that its clients know by another one
    read_request(body) -> Request                        raises BadRequest naming the field
    write_error / write_stream_error / write_truncation

Same dialect on both sides: `Event.raw` and the unary body pass as the bytes they came in. Else the two meet in the content form (content.py), which
each dialect reads and writes in a module `<dialect>_content` (between.py says what that has).

Finish reasons have OpenAI's names, whatever a provider calls them: stop, length, tool_calls, content_filter; any other is passed on as it came.
"""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from sluicegate.core.hosted import Hosted
from sluicegate.core.usage import Usage


class BadRequest(Exception):
    """A request that is malformed or impossible: 400 with `param` naming the field."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class Request(msgspec.Struct, gc=False):
    """A client's request, typed only where the gateway acts on it."""

    model: str
    stream: bool
    include_usage: bool  # the client asked for the usage chunk
    choices: int  # prompts x max(n, best_of), 1 to 128
    cap: int | None  # output tokens per choice that the client allows; None: no cap sent; 0: there is no output
    thinking: int  # thinking budget in tokens, 0 = none
    texts: list[str]  # every text that the provider will read: contents, names, tool schemas (as JSON text), arguments
    messages: int  # how many messages frame them
    images: int  # how many images
    prediction: str  # predicted output, counted on the output side
    unbounded: str  # why the input cannot be bounded by this body (file id, ...), "" = it can
    fields: dict[str, msgspec.Raw]  # the body's top-level fields as they came
    cap_by: str = "max_tokens"  # the field to name when the cap cannot be counted
    unbounded_by: str = "messages"  # the field to name when the input cannot be bounded
    tokens: int = 0  # input that came as tokens, beside the texts
    echoed: Sequence[str] = ()  # per choice, the prompt with which its answer begins: no output
    more: bool = True  # some message may have more than a role, content and calls
    own_prompts: int = 0  # texts of its own that a provider may put before the model: on the use of tools, on the shape of the answer
    tariff: str = ""  # what it asks for that may have a price of its own (tariffs.py); "": nothing
    hosted: tuple[Hosted, ...] = ()  # tools that the provider is to run; then the input is unbounded, too
    effort_most: str = ""  # how hard a model may think at most, by content rules; "": as hard as it is told (core/efforts.py)
    shown: bool = True  # where a provider shows all output as it is made, it does so for this request, and shows nothing else


class Target(msgspec.Struct, frozen=True, gc=False):
    """How a request goes to one deployment, and what of it went not."""

    model: str
    cap: int | None  # output tokens per choice to send; None: none is sent
    cap_field: str
    stream_usage: bool  # ask for usage in a stream
    rejects: tuple[str, ...] = ()  # fields that this provider answers with an error: left out
    renames: tuple[tuple[str, str], ...] = ()  # fields that it knows by another name
    thoughts: str = ""  # the field of an assistant's message in which this provider takes back what its model thought
    foreign: bool = False  # thinking in the conversation is probably another model's: its signatures mean nothing here
    tool_calls: int = 0  # of tools that the provider runs, at most; 0: as many as the request says
    left_out: list[str] = []  # of `rejects`, what the request had: by whoever writes it


class Failure(msgspec.Struct, gc=False):
    """An error as an upstream told it: in an error status, in a 200's body, or as a stream event."""

    status: int | None  # status named inside the body, if any
    code: str
    type: str
    message: str
    param: str | None = None


class Delta(msgspec.Struct, gc=False):
    """Output of one choice in one event. tool_calls: how many calls begin in it."""

    choice: int
    text: str
    tool_calls: int = 0


class Event(msgspec.Struct, gc=False):
    """One event of a stream. `raw` is exactly what came, blank line included."""

    raw: bytes
    # bad: not readable; other: unknown event, passes; refused: by a content rule (ruled.py)
    kind: Literal["chunk", "comment", "done", "error", "bad", "other", "refused"]
    deltas: list[Delta] = []
    finishes: list[tuple[int, str]] = []  # (choice, finish reason)
    usage: Usage | None = None
    usage_only: bool = False  # the extra chunk with empty choices: hidden from a client that did not ask
    failure: Failure | None = None
    after: Any = None  # what the dialect must know of the stream up to here to write into it, if it is cut after this event


class Answer(msgspec.Struct, gc=False):
    """A unary answer. Deltas hold the whole output of each choice."""

    deltas: list[Delta]
    finishes: list[tuple[int, str]]
    usage: Usage | None
    failure: Failure | None
    readable: bool  # it was JSON of the expected shape
    body: bytes = b""  # for the client, where it speaks another dialect
