"""Faults on purpose: for a time, calls to a named deployment are slow, refused or cut, as if its upstream were misbehaving.

Only where `admin.chaos` is on; set through the admin API, told to all workers over the bus, over by itself. Everything else in the gateway sees what
it would see of a real upstream:

latency   passes between the request, which is sent, and the first byte of the answer; longer than a time limit it is that limit's failure
status    is answered in place of a call: nothing is sent upstream, so nothing is billed
cut       the connection is reset behind so many bytes, or events of a stream, of an answer that has really been produced

Invariant: a fault changes what the gateway is told, never what it books: holds settle as for the real failure, since by then it is one.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Protocol

import msgspec
import structlog
from msgspec import Meta

from sluicegate.http.upstream import Call, Reason

KIND = "chaos"  # of messages on the bus
FOR_MS_MAX = 3_600_000
REFUSAL = b'{"error":{"message":"Chaos: this deployment is made to fail.","type":"server_error","param":null,"code":"chaos"}}'

_EVENTS_END: Mapping[bytes, "re.Pattern[bytes]"] = {
    b"text/event-stream": re.compile(rb"\r\n\r\n|\n\n|\r\r"),
    b"application/x-ndjson": re.compile(rb"\n"),
}

log = structlog.get_logger("chaos")


class Fault(msgspec.Struct, frozen=True, omit_defaults=True):
    """What happens to the calls of one deployment. Of them, `failure_rate` get `status`, or are cut where that is 0."""

    until_ms: int  # Unix time
    latency_ms: Annotated[int, Meta(ge=0, le=FOR_MS_MAX)] = 0
    failure_rate: Annotated[float, Meta(ge=0, le=1)] = 0.0
    status: Annotated[int, Meta(ge=0, le=599)] = 0
    cut_bytes: Annotated[int, Meta(ge=0, le=2**40)] | None = None
    cut_events: Annotated[int, Meta(ge=0, le=2**40)] | None = None

    @property
    def cut_after(self) -> str:
        """`3 events`, `200 bytes`; "": it cuts nothing."""
        if self.cut_bytes is not None:
            return f"{self.cut_bytes} bytes"
        return f"{self.cut_events} events" if self.cut_events is not None else ""

    def __str__(self) -> str:
        """In words, for the log."""
        parts = [f"{self.latency_ms / 1000:g} s late"] if self.latency_ms else []
        if self.failure_rate:
            parts.append(f"{self.failure_rate:.0%} " + (f"answered {self.status}" if self.status else f"cut after {self.cut_after}"))
        return ", ".join(parts) or "nothing"


class _Told(msgspec.Struct, frozen=True):
    """The data of a message on the bus. fault: null ends it."""

    deployment: str | None  # None: all, to end them
    fault: Fault | None
    at: tuple[int, float]  # when it was said, and a draw for what was said at the same time: the later one stands, in whatever order they are heard


class Message(Protocol):
    """As far as a message of the bus is read here."""

    @property
    def data(self) -> dict[str, Any]: ...


class Switch(Protocol):
    """Where calls are made. `disturb` is None while nothing is to be disturbed."""

    disturb: Callable[[Call, str], Call] | None


class Chaos:
    """The faults in force in one worker."""

    def __init__(
        self,
        calls: Switch,
        knows: Callable[[str], bool],
        publish: Callable[[str, dict[str, Any]], None],
        later: Callable[[float, Callable[[], None]], asyncio.TimerHandle],
        time_ms: Callable[[], int],
        random: Callable[[], float],
    ) -> None:
        """knows: whether there is such a deployment. publish: tells the other workers, by kind and data. later: after seconds. time_ms: a clock that
        all workers share."""
        self.faults: dict[str, Fault] = {}
        self._said: dict[str | None, tuple[int, float]] = {}  # when something was last said of a deployment, or (None) of all
        self._calls = calls
        self._knows = knows
        self._publish = publish
        self._later = later
        self._time_ms = time_ms
        self._random = random
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def set(self, deployment: str, fault: Fault, reason: str) -> None:
        """From now on, in all workers, in place of what was before."""
        self._change(deployment, fault, reason)
        self._publish(KIND, {"deployment": deployment, "fault": msgspec.to_builtins(fault), "at": self._now(deployment)})

    def clear(self, deployment: str | None, reason: str) -> list[str]:
        """Ends it (None: all) in all workers, also where only they know of it. Returns the deployments for which there was one here."""
        ended = [each for each in self.faults if deployment in (None, each)]
        self._end(ended, reason)
        self._publish(KIND, {"deployment": deployment, "fault": None, "at": self._now(deployment)})
        return sorted(ended)

    def hear(self, message: Message) -> None:
        """What another worker was told. Raises msgspec.ValidationError for what nobody can have been told."""
        told = msgspec.convert(message.data, _Told)
        if told.at <= self._last(told.deployment):
            return  # it is older than what is known
        if told.deployment is None:
            self._end([each for each in self.faults if self._last(each) < told.at], "ended through another worker")
        elif told.fault is None:
            self._end([each for each in self.faults if each == told.deployment], "ended through another worker")
        elif self._knows(told.deployment):
            self._change(told.deployment, told.fault, "set through another worker")
        else:
            return
        self._said[told.deployment] = told.at

    def disturb(self, call: Call, deployment: str) -> Call:
        """A call that has not been started, as its deployment's fault has it."""
        fault = self.faults.get(deployment)
        if fault is None:
            return call
        return _Disturbed(call, fault, fails=self._random() < fault.failure_rate)

    def _now(self, deployment: str | None) -> tuple[int, float]:
        """Later than all that has been said of it."""
        last_ms, _ = max(self._said.values(), default=(0, 0.0)) if deployment is None else self._last(deployment)
        said = self._said[deployment] = max(self._time_ms(), last_ms + 1), self._random()
        return said

    def _last(self, deployment: str | None) -> tuple[int, float]:
        never = (0, 0.0)
        return max(self._said.get(deployment, never), self._said.get(None, never))

    def _end(self, deployments: Iterable[str], reason: str) -> None:
        for each in sorted(deployments):
            self._change(each, None, reason)

    def _change(self, deployment: str, fault: Fault | None, reason: str) -> None:
        left_ms = min(fault.until_ms - self._time_ms(), FOR_MS_MAX) if fault is not None else 0
        timer = self._timers.pop(deployment, None)
        if timer is not None:
            timer.cancel()
        before = self.faults.pop(deployment, None)
        if fault is not None and left_ms > 0:
            self.faults[deployment] = fault
            self._timers[deployment] = self._later(left_ms / 1000, lambda: self._change(deployment, None, "its time is over"))
        self._calls.disturb = self.disturb if self.faults else None
        now = self.faults.get(deployment)
        if before != now:
            texts = {"from": str(before or "none"), "to": str(now or "none"), "reason": reason}
            log.warning("chaos state", deployment=deployment, **texts, **({"for_s": left_ms / 1000} if now is not None else {}))


class _Disturbed(Call):
    """A call to a deployment that is made to misbehave. It takes the place of one that has not been started."""

    __slots__ = ("_ends", "_fails", "_fault", "_left", "_passed", "_tail")

    def __init__(self, call: Call, fault: Fault, *, fails: bool) -> None:
        for name in Call.__slots__:
            setattr(self, name, getattr(call, name))
        self._fault = fault
        self._fails = fails
        self._passed = False
        self._left: int | None = None  # bytes or events that are still let through; None: all
        self._ends: re.Pattern[bytes] | None = None  # of events, where they are counted
        self._tail = b""  # of what has been let through, where an event's end may have begun

    async def start(self) -> None:
        began = self._loop.time()
        if self._fails and self._fault.status:
            await self._delay(began)
            self.status, self.headers = self._fault.status, {b"content-type": b"application/json"}
            self._rest, self.complete, self.over = REFUSAL, True, True
            return
        await super().start()
        await self._delay(began)
        if self._fails:
            self._left = self._fault.cut_bytes
            self._ends = (
                None if self._left is not None else _EVENTS_END.get(self.headers.get(b"content-type", b"").partition(b";")[0].strip().lower())
            )
            if self._ends is not None:
                self._left = self._fault.cut_events
            if self._left is not None and self.complete:  # whoever finds it complete would not look for its end
                self._rest, self._left = self._cut(self._rest), None

    def take(self) -> bytes:
        data = super().take()
        return self._cut(data) if data and self._left is not None and self._failure is None else data

    async def _delay(self, began: float) -> None:
        """The latency, unless a time limit or the end of the call comes first."""
        late_s = self._fault.latency_ms / 1000
        first_byte_end = began + self._timeouts.first_byte_ms / 1000
        end, reason = min((first_byte_end, "timeout"), (self.ends_at, "deadline"))
        left_s = end - self._loop.time()
        if late_s:
            await self._pass(min(late_s, left_s))
        if late_s > left_s:
            self._break(reason)  # type: ignore[arg-type]
            self._check()

    async def _pass(self, seconds: float) -> None:
        def passed() -> None:
            self._passed = True
            self.wake()

        timer = self._loop.call_later(seconds, passed)
        try:
            while not self._passed:
                await self._wait()
        finally:
            timer.cancel()

    def _cut(self, data: bytes) -> bytes:
        """What of this is let through; behind the last of it the call breaks."""
        assert self._left is not None
        if self._ends is None:
            keep = min(len(data), self._left)
            self._left -= keep
        else:
            keep = self._events(data, self._ends)
        if not self._left:
            self._break("reset")
        return data[:keep]

    def _events(self, data: bytes, end: "re.Pattern[bytes]") -> int:
        """How many bytes of this belong to events that are let through. An event's end may be in two pieces."""
        assert self._left is not None
        seen, before = self._tail + data, len(self._tail)
        position = 0
        while self._left and (found := end.search(seen, position)):
            position = found.end()
            self._left -= 1
        self._tail = seen[max(position, len(seen) - 3) :]
        return len(data) if self._left else position - before

    def _break(self, reason: Reason) -> None:
        """As if the upstream had: what comes after what was let through is not seen, and a clean end neither."""
        self.complete = False
        sink, self.sink = self.sink, None  # it is the one who takes
        self._fail(reason, "chaos")
        self.sink = sink
        self._rest = b""
