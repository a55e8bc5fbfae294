"""Between two dialects: a client that speaks one, a provider that speaks another, and the content form in the middle (content.py).

`Between` has what the gateway asks of a dialect module where a call is made and its answer is read (form.py), for one attempt. The events of its
stream reader carry what the provider's reader metered, and as `raw` the bytes that the client is to read, so the relay treats them as any others. The
last bytes of a stream are written when the usage is known: `last`. An answer that came without an id or a time gets those of the request.
"""

import re
from collections.abc import Iterable
from types import ModuleType
from typing import Any, Protocol

from msgspec import Struct

from sluicegate.core.efforts import Effort
from sluicegate.core.usage import Usage, merge
from sluicegate.dialects import efforts
from sluicegate.dialects.content import Begin, Piece, Prompt, Reply
from sluicegate.dialects.form import Answer, Event, Request, Target

_NAME = re.compile(r"[A-Za-z0-9_.\[\]-]{1,64}")  # of a field, if it can stand in a header


class Origin(Struct, frozen=True):
    """Of an answer whose provider does not say it."""

    id: str
    created: int  # Unix seconds


class Writer(Protocol):
    """Writes a streamed answer for a client, piece by piece."""

    head: Any  # for the client dialect's write_truncation
    after: Any  # the state after what was written so far, likewise

    def write(self, pieces: list[Piece]) -> bytes: ...
    def last(self, usage: Usage | None) -> bytes: ...


class Pieces(Protocol):
    """Reads what a provider's event says."""

    def of(self, event: Event) -> list[Piece]: ...


class Client(Protocol):
    """The client's side of a dialect: its `*_content` module."""

    def read_prompt(self, request: Request) -> Prompt: ...
    def write_reply(self, reply: Reply, request: Request) -> bytes: ...
    def Writer(self, request: Request) -> Writer: ...


class Provider(Protocol):
    """The provider's side of a dialect: its `*_content` module."""

    def write_prompt(self, prompt: Prompt, request: Request, target: Target) -> bytes: ...
    def read_reply(self, body: bytes) -> Reply: ...
    def Pieces(self) -> Pieces: ...


class Reader:
    """A provider's stream as the client is to read it."""

    ending = b""  # written by `last`, which knows the usage

    def __init__(self, reader: Any, pieces: Pieces, writer: Writer, origin: Origin) -> None:
        self._reader = reader
        self._pieces = pieces
        self._writer = writer
        self._origin = origin
        self.usage: Usage | None = None
        self._over = False  # what comes behind the end is not for the client: nothing of it may be written, nor change what is written last

    @property
    def head(self) -> Any:
        return self._writer.head

    def feed(self, data: bytes) -> list[Event]:
        """The events that `data` completes."""
        return self._all(self._reader.feed(data))

    def end(self) -> list[Event]:
        """What is left at the end of the answer."""
        return self._all(self._reader.end())

    def _all(self, events: list[Event]) -> list[Event]:
        translated: list[Event] = []
        for event in events:
            if self._over:
                break
            self._over = event.kind == "done"
            translated.append(self._translated(event))
        return translated

    def last(self, charged: Usage) -> bytes:
        """The last bytes of a whole answer, with the usage that was reported, else with what is charged."""
        usage = self.usage
        return self._writer.last(merge(charged, usage) if usage is not None else charged)

    def _translated(self, event: Event) -> Event:
        if event.usage is not None:
            self.usage = merge(self.usage, event.usage)
        if event.kind in ("chunk", "other"):
            pieces = self._pieces.of(event)
            if pieces and isinstance(begin := pieces[0], Begin):
                begin.id, begin.created = begin.id or self._origin.id, begin.created or self._origin.created
            event.raw = self._writer.write(pieces)
        elif event.kind in ("done", "comment"):
            event.raw = b""
        event.after = self._writer.after
        return event


class Between:
    """One attempt of a client's request at a provider that speaks another dialect."""

    def __init__(
        self, client: ModuleType, client_content: Client, provider: ModuleType, provider_content: Provider, request: Request, origin: Origin
    ) -> None:
        self._client = client
        self._client_content = client_content
        self._provider = provider
        self._provider_content = provider_content
        self._request = request
        self._origin = origin
        self.left_out: list[str] = []  # fields of the request that the provider's dialect has no place for

    def write_request(self, request: Request, target: Target) -> bytes:
        """Raises Inexpressible, BadRequest."""
        prompt = self._client_content.read_prompt(request)
        if request.effort_most:
            efforts.bind(prompt, request.fields, Effort(request.effort_most))
        body = self._provider_content.write_prompt(prompt, request, target)
        self.left_out = [name for name in prompt.left_out if _NAME.fullmatch(name)]
        return body

    def read_answer(self, body: bytes) -> Answer:
        """As the provider's dialect reads it; `body` is what the client gets."""
        answer: Answer = self._provider.read_answer(body)
        if answer.readable and answer.failure is None and not self._request.stream:
            reply = self._provider_content.read_reply(body)
            reply.id, reply.created, reply.usage = reply.id or self._origin.id, reply.created or self._origin.created, answer.usage
            answer.body = self._client_content.write_reply(reply, self._request)
        return answer

    def streamed(self, body: bytes) -> bytes:
        """Still in the provider's dialect: the stream reader translates."""
        streamed: bytes = self._provider.streamed(body)
        return streamed

    def StreamReader(self) -> Reader:
        return Reader(self._provider.StreamReader(), self._provider_content.Pieces(), self._client_content.Writer(self._request), self._origin)

    @staticmethod
    def write_event(event: Event, hide_usage: bool) -> bytes:
        """What the reader wrote; usage is left to `last`."""
        return b"" if event.kind == "bad" else event.raw

    def write_truncation(self, head: Any, after: Any, choices: Iterable[int], reason: str, usage: Usage | None) -> bytes:
        written: bytes = self._client.write_truncation(head, after, choices, reason, usage)
        return written
