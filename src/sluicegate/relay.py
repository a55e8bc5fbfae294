"""The streaming loop: upstream bytes -> events -> meter -> client bytes, extending the hold ahead of need.

Everything read from the upstream is metered at once, whether it is forwarded or not. Only what the grant covers is forwarded. Two modes:

capped     the upstream was sent a cap that the hold covers; the hold is never extended.
extended   the hold grows as the answer does; after a refusal, once `granted - seen <= margin`, the upstream is closed at once and the stream ends
           in the client's dialect with `finish_reason: "length"`.

The last byte of a stream (its `[DONE]`, or a truncation) is not written here but left in `tail`: the gateway settles first.
A stream that ends before any choice has begun, and without usage, has answered nothing, as an empty one: it has died.
Nothing is written to the client before the first event with output, a finish or the end: until then the attempt may still move on.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Literal, Protocol

from sluicegate import growth as growing
from sluicegate.core.meter import Meter, believed
from sluicegate.core.usage import Usage, merge
from sluicegate.dialects.form import Event, Failure
from sluicegate.growth import Growth, Pace, Why
from sluicegate.http.exchange import Exchange
from sluicegate.http.upstream import Call, UpstreamError

CLIENT_BUFFER_MAX = 1 << 20
WITHHELD_MAX = 1 << 22  # bytes of events without output, before the first with any


End = Literal["open", "complete", "truncated", "died"]


class Reader(Protocol):
    """A dialect's stream reader."""

    @property
    def ending(self) -> bytes: ...  # what a client takes for the end of a stream
    @property
    def head(self) -> Any: ...  # what the dialect needs to write into the stream itself
    def feed(self, data: bytes) -> list[Event]: ...
    def end(self) -> list[Event]: ...


WriteEvent = Callable[[Event, bool], bytes]  # (event, hide_usage); b"" drops it


class Relay:
    """One stream from one attempt to one client."""

    def __init__(
        self,
        exchange: Exchange,
        call: Call,
        reader: Reader,
        write_event: WriteEvent,
        meter: Meter,
        *,
        hide_usage: bool,
        choices: int,
        cap: int,
        pace: Pace,
        growth: Growth | None,
        visible: bool,
        write_timeout_s: float,
        clock: Callable[[], float],
    ) -> None:
        self.usage: Usage | None = None
        self.failure: Failure | None = None
        self.error: UpstreamError | None = None
        self.finishes: dict[int, str] = {}
        self.ended: End = "open"
        self.truncated: Why = ""
        self.tail = b""  # what is left to write after the settle
        self.has_output = self._begun = False  # the latter: an answer has, be it without output so far
        self.bad_events = self._reported = 0  # the latter: output that was there when the last report of usage came
        self._exchange = exchange
        self._call = call
        self.reader = reader
        self._meter = meter
        self._write_event = write_event
        self._hide_usage = hide_usage
        self._choices = choices
        self._pace = pace
        self._growth = growth
        self._paced = visible  # the pace decides what may still come after a close, where that is not simply the cap
        self._ceiling = believed(cap)  # an upstream that runs far past its cap is cut too
        self._write_timeout_s = write_timeout_s
        self._clock = clock
        self._ready: list[bytes] = []
        self.after: Any = None  # `Event.after` of the last event that is covered
        self._waiting: deque[tuple[int, bytes, Event]] = deque()  # (seen at which it is covered, bytes, what they tell)
        self._done = False  # the upstream has said all
        self._flowing = False  # the response has been started: what is covered goes out
        self._unsent, self._taken_at = 0, 0.0  # bytes; when the client last took some
        self._drain: asyncio.Future[None] | None = None  # a slow client is waited for
        self._watching: asyncio.TimerHandle | None = None
        self._blocked: asyncio.Future[None]  # of this task, while what comes is taken in without it
        if growth is not None:
            growth.on_answer = self._advance

    @property
    def late(self) -> bool:
        """A limit of time has ended it."""
        return self.error is not None and self.error.reason in ("timeout", "deadline")

    @property
    def outdated(self) -> bool:
        """Output has come since the last report of usage: that was not the final one."""
        return self.usage is not None and self._meter.counted > self._reported

    def granted(self, before: int) -> int:
        """Output tokens that the hold covers in the end."""
        return self._growth.granted if self._growth is not None else before

    def margin(self) -> int:
        """What a stream that was closed may have produced beyond what was seen."""
        return self._pace.beyond(self._meter.largest, self._clock())

    async def first(self) -> None:
        """Reads until there is something to forward, or until it is clear that there is nothing: `failure`, `error` or an early end."""
        while not self.has_output and self.ended == "open":
            await self._read()
            if not self.has_output and sum(map(len, self._ready)) > WITHHELD_MAX:
                self.ended, self.error = "died", UpstreamError("protocol", True, f"more than {WITHHELD_MAX} bytes and no output")
                self._call.close()

    async def rest(self) -> None:
        """Relays to the end. The response has been started."""
        self._flowing = True
        self._flush()
        if self._growth is not None:
            self._watch()
        while self.ended == "open":
            if self._unsent:
                await self._slow_client()
            await self._flow()
            if self.ended == "open":
                await self._read()
        if self._watching is not None:
            self._watching.cancel()

    async def _flow(self) -> None:
        """Takes in what comes as it comes, without waking this task for it, until there is something that the task has to do or to wait for."""
        self._blocked = asyncio.get_running_loop().create_future()
        self._call.sink = self._take_in
        try:
            self._take_in()
            await self._blocked
        finally:
            self._call.sink = None

    def _take_in(self) -> None:
        call = self._call
        try:
            if not call.over and (data := call.take()):
                self._absorb(self.reader.feed(data))
                if self._paced:
                    self._pace.saw(self._meter.seen, self._clock())
                self._advance()
        except Exception as error:  # belongs to the task, not to the connection that called
            if not self._blocked.done():
                self._blocked.set_exception(error)
        if (call.over or self.ended != "open" or self._done or self._unsent) and not self._blocked.done():
            self._blocked.set_result(None)

    def cut(self, why: Why) -> None:
        """Closes the upstream at once; what is not covered is not delivered."""
        self._call.close()
        for _, _, event in self._waiting:
            for choice, _ in event.finishes:  # the client has not been told of that end
                self.finishes.pop(choice, None)
        self._waiting.clear()
        self.truncated = why
        self.ended = "truncated"

    def _watch(self) -> None:
        """Every `SILENCE_S` of an extended stream: the grant must stay ahead of what may be produced unseen, too."""
        growth, now = self._growth, self._clock()
        if growth is None or self.ended != "open" or self._done:
            return
        unseen = self._pace.unseen(now)
        if unseen:
            seen = min(self._meter.seen + unseen, growth.want)
            growth.saw(seen, self._meter.largest, now)
            if why := growth.runs_out(seen, self._meter.largest, now):
                self.cut(why)
                return
        self._watching = asyncio.get_running_loop().call_later(growing.SILENCE_S, self._watch)

    async def _read(self) -> None:
        if self._done and self._growth is not None and self._growth.asking is not None:
            await asyncio.wait([self._growth.asking])  # its callback advances
            return
        try:
            data = await self._call.read()
        except UpstreamError as error:
            self._absorb(self.reader.feed(self._call.take()))
            if self.ended == "open" and not self._done:
                self.ended, self.error = "died", error
        else:
            self._absorb(self.reader.feed(data) if data else self.reader.end())
            if self._paced:
                self._pace.saw(self._meter.seen, self._clock())
            if not data and not self._done and self.ended == "open":
                self._done = len(self.finishes) >= self._choices
                if self._done:
                    self.tail = self.reader.ending  # which the upstream has left out
                else:
                    self.ended = "died"
        self._advance()

    def _absorb(self, events: list[Event]) -> None:
        """Meters whole events and queues their bytes."""
        meter, hide_usage = self._meter, self._hide_usage
        for event in events:
            if self._done or self.ended != "open":
                return
            if event.kind == "chunk":
                self._note(event)
                raw = self._write_event(event, True) if hide_usage else event.raw
            else:
                passes = self._beside(event)
                if passes is None:
                    continue
                raw = passes
            if self._waiting or not self._covered(meter.seen):
                self._waiting.append((meter.seen, raw, event))
            else:
                self._ready.append(raw)
                if event.after is not None:
                    self.after = event.after

    def _beside(self, event: Event) -> bytes | None:
        """What of an event that is no chunk goes to the client; None: nothing. Takes note of how the stream ends."""
        kind = event.kind
        if kind == "other":
            return self._write_event(event, True) if self._hide_usage else event.raw
        if kind == "comment":
            return self._write_event(event, False)
        if kind == "done":
            if self.has_output or self._begun or self.usage is not None:
                self._done, self.tail = True, event.raw
            else:
                self.ended = "died"  # the end of nothing
        elif kind == "error":
            self._note(event)
            self.failure, self.ended = event.failure, "died"
        elif kind == "refused":
            self.cut("policy")
        else:
            self.bad_events += 1
            self._meter.add_unreadable(event.raw.decode("utf-8", "replace"))
        return None

    def _note(self, event: Event) -> None:
        for delta in event.deltas:
            self._meter.add(delta)
        if event.deltas or (event.finishes and event.failure is None):
            self.has_output = True
            if event.finishes:
                self.finishes.update(event.finishes)
        else:
            self._begun = True
        if event.usage is not None:
            self.usage, self._reported = merge(self.usage, event.usage), self._meter.counted

    def _covered(self, seen: int) -> bool:
        if self._growth is None or self._growth.covers_all:
            return self._meter.least <= self._ceiling
        return seen <= self._growth.granted

    def _advance(self) -> None:
        """After new bytes or an answer of the ledger: keeps the grant ahead of the stream, releases what is covered, ends what must end."""
        growth, meter = self._growth, self._meter
        if growth is None and not self._waiting and self._done and self.ended == "open":
            self.ended = "complete"
        if self.ended != "open" or (growth is None and not self._waiting):
            self._flush()
            return
        now = self._clock()
        if growth is not None and not self._done:
            growth.saw(meter.seen, meter.largest, now)
        while self._waiting and self._covered(self._waiting[0][0]):
            _, raw, event = self._waiting.popleft()
            self._ready.append(raw)
            if event.after is not None:
                self.after = event.after
        if not self._waiting:
            if self._done:
                self.ended = "complete"
            elif growth is not None and (why := growth.runs_out(meter.seen, meter.largest, now)):
                self.cut(why)
        elif growth is None or growth.covers_all:
            self.cut("budget")  # far beyond the cap that it was sent
        elif why := growth.runs_out(meter.seen, meter.largest, now):
            self.cut(why)
        elif self._done and growth.asking is None:
            growth.ask(max(meter.seen, growth.granted + 1), meter.seen)
        self._flush()

    def _flush(self) -> None:
        if self._ready and self._flowing:
            if self._unsent:
                self._look_at_client()
            if not self._unsent:
                self._taken_at = self._clock()
            self._exchange.write(self._ready[0] if len(self._ready) == 1 else b"".join(self._ready))
            self._ready.clear()
            self._unsent = self._exchange.unsent()

    def _look_at_client(self) -> None:
        """Takes note of whether the client has taken a byte since the last write or look."""
        unsent = self._exchange.unsent()
        if unsent < self._unsent:
            self._taken_at = self._clock()
        self._unsent = unsent

    async def _slow_client(self) -> None:
        """A client that takes no byte for the write timeout, or is a whole buffer behind an extended stream, is treated as one that left."""
        self._look_at_client()
        full = self._unsent > CLIENT_BUFFER_MAX
        left_s = self._taken_at + self._write_timeout_s - self._clock()
        if full and self._growth is None and left_s > 0:
            self._call.pause()
            await self._drained(left_s)
            self._call.resume()
            self._look_at_client()
            full = False
            left_s = self._taken_at + self._write_timeout_s - self._clock()
        if self._unsent and (full or left_s < 0):
            self._exchange.abort()  # calls on_gone, which decides about the upstream
            self._unsent = 0

    async def _drained(self, timeout_s: float) -> None:
        """Until the client has taken what is unsent, or has left."""
        self._drain = asyncio.get_running_loop().create_future()
        self._exchange.on_drained = self.client_left
        try:
            await asyncio.wait([self._drain], timeout=timeout_s)  # wait_for of Python 3.11 loses a cancellation that comes as the client takes it
        finally:
            self._exchange.on_drained = self._drain = None

    def client_left(self) -> None:
        """The client has gone: it is not waited for."""
        if self._drain is not None and not self._drain.done():
            self._drain.set_result(None)
