"""What is noted of a request while it is under way, for the spans that are made of it at its end.

On the path of a request only times are taken (`Trace`); at its end they and the record become a `Finished`, which holds nothing of the request.
Spans are made of it elsewhere (spans.py), in the thread that sends them (sending.py).

Invariant: nothing here waits, fails or reads what a client wrote.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec

from sluicegate.core import trace_context
from sluicegate.core.matching import REACH, Masks
from sluicegate.core.record import Attempt, Record

PROMPT_MAX = 16_384  # characters of a prompt that are told
PROMPT_READ = PROMPT_MAX + REACH  # and that are looked at: what begins before the end is masked whole

T = TypeVar("T")
Value = str | int | float | bool


class Upstream(msgspec.Struct, frozen=True):
    """Who a provider is, as spans tell it."""

    name: str
    address: str
    port: int


class Known(msgspec.Struct, frozen=True):
    """What is known where spans are made. version: ours; upstreams: by the provider's name; rules: what is masked in prompts."""

    version: str
    upstreams: Mapping[str, Upstream]
    rules: Masks = Masks(())


class Step(msgspec.Struct, gc=False):
    """A part of a request's way with a span of its own. Times are the clock's."""

    name: str
    since_s: float
    until_s: float
    notes: dict[str, Value]


class Outgoing:
    """One call of an upstream, while it is under way. answered_s: when there was an answer to deliver, or it was clear that there would be none."""

    __slots__ = ("answered_s", "attempt", "since_s", "span_id")

    def __init__(self, span_id: int, attempt: Any) -> None:
        self.span_id = span_id
        self.attempt = attempt
        self.since_s = self.answered_s = 0.0


class Called(msgspec.Struct, gc=False):
    """One call of an upstream, as its span tells it."""

    span_id: int
    since_s: float
    answered_s: float
    until_s: float
    attempt: Attempt
    provider: str  # as the configuration names it
    model: str  # that was asked for there
    dialect: str
    stream: bool
    status: int  # of HTTP; 0: none came
    cap: int | None
    granted: int
    response_id: str
    response_model: str
    finishes: list[str]
    cached_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int


class Trace:
    """Of one request. `id` is that of its trace, in hex; headers: those of the client but for a context of its own, which is not passed on."""

    __slots__ = ("_bits", "calls", "end", "headers", "id", "parent_id", "sampled", "span_id", "state", "steps", "trace_id")

    def __init__(
        self, parent: trace_context.Parent | None, sampled: bool, trace_id: int, headers: Mapping[bytes, bytes], bits: Callable[[int], int]
    ) -> None:
        """sampled: whether it is kept. bits: so many random ones."""
        self._bits = bits
        self.trace_id = trace_id
        self.id = f"{trace_id:032x}"
        self.span_id = bits(64) or 1
        self.parent_id = parent.span_id if parent is not None else 0
        self.state = parent.state if parent is not None else b""
        self.sampled = sampled
        self.headers = headers
        self.steps: list[Step] = []
        self.calls: list[Outgoing] = []
        self.end: Callable[[Any, Record, float], None]  # (trip, record, now), at the end of the request

    def step(self, name: str, since_s: float, until_s: float, **notes: Value) -> None:
        """A part of the way has ended."""
        self.steps.append(Step(name, since_s, until_s, notes))

    async def through(self, name: str, doing: Awaitable[T], clock: Callable[[], float], **notes: Value) -> T:
        """A part of the way that may take a while, or fail."""
        since_s = clock()
        try:
            done = await doing
        except BaseException as error:
            self.step(name, since_s, clock(), outcome=getattr(error, "code", None) or type(error).__name__, **notes)
            raise
        self.step(name, since_s, clock(), **notes)
        return done

    def outgoing(self, attempt: Any) -> bytes:
        """The header lines of a call that begins now: whoever answers it is below its span."""
        call = Outgoing(self._bits(64) or 1, attempt)
        self.calls.append(call)
        return trace_context.lines(self.trace_id, call.span_id, self.sampled, self.state)

    def called(self, since_s: float, answered_s: float) -> None:
        """The call that began last has an answer, or none."""
        call = self.calls[-1]
        call.since_s, call.answered_s = since_s, answered_s

    def extending(self, asked: "asyncio.Future[Any]", want: int, clock: Callable[[], float]) -> None:
        """A hold is to grow to `want` tokens."""
        since_s = clock()

        def answered(done: "asyncio.Future[Any]") -> None:
            failed = done.cancelled() or done.exception() is not None
            status, granted = ("failed", 0) if failed else (done.result().status, done.result().g)
            self.step("extend", since_s, clock(), wanted_output_tokens=want, held_output_tokens=granted, outcome=status)

        asked.add_done_callback(answered)


class Finished(msgspec.Struct, gc=False):
    """A request that has ended. zero_ns: the wall clock's time at zero of the other one."""

    trace_id: int
    span_id: int
    parent_id: int  # 0: it has none
    state: str
    zero_ns: int
    arrived_s: float
    until_s: float
    path: str
    tenant: str
    fallback: bool
    record: Record
    steps: list[Step]
    calls: list[Called]
    prompt: str = ""  # its beginning, as it came; empty where it is not to be told

    @property
    def spans(self) -> int:
        """How many it becomes: those of the request and the plan, and all others."""
        return 2 + len(self.steps) + len(self.calls)
