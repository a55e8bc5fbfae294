"""The bus: what workers and replicas tell each other, in one order for all of them (docs/workers.md has the kinds).

    bus = Bus(channel, worker_id, ledger.now_ms)
    bus.subscribe("cooldown", callback)     # before `run`
    bus.publish("cooldown", {...})          # at once, whatever becomes of it
    await bus.run()                         # until cancelled

A channel (bus_memory, bus_sqlite, bus_redis) keeps the last 10,000 messages in order. Each worker reads on from where it was, so a lost connection
costs time and no message, unless more than that were sent meanwhile. A channel that was lost, or is an older copy, is read on from its end.

Invariants: nobody waits for the bus, and nothing depends on it: it makes workers agree sooner. A worker's own messages are not handed back to it.
Messages of one worker come in the order in which they were published; one may come twice, where a connection broke before it was confirmed.
What is malformed or too large is skipped: whoever can write to the channel can lie, so subscribers check what they are told.

How it fails: a channel that is away is tried again and again, with pauses that grow, and that is one line in the log per change of state. Up to
QUEUE_MAX messages wait for it; then the oldest are dropped and counted.
"""

import asyncio
import random
import re
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import msgspec
import structlog

from sluicegate.observe.log import StateLog

KEPT = 10_000  # messages that a channel keeps
AT_ONCE = 256  # messages sent or read in one go
QUEUE_MAX = 1_000  # messages that wait for a channel that is away
BODY_BYTES_MAX = 65_536
PAUSE_S = (0.1, 5.0)  # between two attempts to reach the channel: the first, the longest; times 0.5 to 1.5
LAST_WORDS_S = 1.0  # for what is still to be sent when the worker ends

log = structlog.get_logger("bus")


class Message(msgspec.Struct, frozen=True):
    """What a worker told all others. time_ms: by the ledger's clock, when it was published."""

    id: str  # ids are in the order of the channel, as texts; `history` goes on after one
    kind: str
    time_ms: int
    worker: str
    data: dict[str, Any]


class Body(msgspec.Struct, frozen=True):
    """What a channel keeps of a message, as JSON."""

    kind: str
    time_ms: int
    worker: str
    data: dict[str, Any]


class BusAway(Exception):
    """What was asked of the bus cannot be known now."""


Entry = tuple[str, bytes]  # id, body


class Channel(Protocol):
    """Keeps bodies in order for all workers. Any exception means that it is away: it is opened anew."""

    async def open(self) -> str:
        """Connects, whatever there was before. The id of the last entry, "" if there is none."""
        ...

    async def append(self, bodies: Sequence[bytes]) -> None: ...

    async def read(self, after: str, limit: int, *, wait: bool) -> Sequence[Entry]:
        """The first entries behind an id ("": from the oldest). wait: for a second at most, if there are none."""
        ...

    async def close(self) -> None: ...


Callback = Callable[[Message], None]

_encode = msgspec.json.Encoder(enc_hook=repr).encode
_decode = msgspec.json.Decoder(Body).decode
_ID = re.compile(r"[0-9]{1,16}(-[0-9]{1,9})?")


class Bus:
    """One worker's end."""

    def __init__(self, channel: Channel, worker: str, now_ms: Callable[[], int], *, jitter: Callable[[], float] = random.random) -> None:
        """worker: its id, no other worker's. now_ms: the ledger's clock."""
        self._channel = channel
        self._worker = worker
        self._now_ms = now_ms
        self._jitter = jitter
        self._subscribers: defaultdict[str, list[tuple[Callback, bool]]] = defaultdict(list)  # by kind; whether it hears of what was before
        self._queue: deque[bytes] = deque()
        self._dropped = 0
        self._wake = asyncio.Event()
        self._position = ""  # the last entry that was read
        self._begun: str | None = None  # the last entry that was there when this worker came
        self._state = StateLog("bus", "up", good=frozenset({"up"}))

    @property
    def state(self) -> str:
        """up or away."""
        return self._state.state

    @property
    def position(self) -> str:
        """The id of the last message that is known here; `history` goes on with what comes next."""
        return max(self._position, self._begun or "")

    def publish(self, kind: str, data: dict[str, Any]) -> None:
        """Tells the other workers, soon. data: what JSON has."""
        body = _encode(Body(kind, self._now_ms(), self._worker, data))
        if len(body) > BODY_BYTES_MAX:
            log.warning("message too large for the bus", kind=kind, bytes=len(body))
            return
        if len(self._queue) >= QUEUE_MAX:
            self._queue.popleft()
            self._dropped += 1
        self._queue.append(body)
        self._wake.set()

    def subscribe(self, kind: str, callback: Callback, *, earlier: bool = False) -> None:
        """Has it called for each message of this kind that another worker sends. earlier: for those first that were sent before this worker came."""
        self._subscribers[kind].append((callback, earlier))

    async def history(self, after: str, kinds: Collection[str], limit: int) -> list[Message]:
        """The first messages of these kinds (none: of all) behind an id ("": from the oldest that is kept), everybody's.

        Raises BusAway, and ValueError for what is no id.
        """
        if after and not _ID.fullmatch(after):
            raise ValueError("not the id of a message")
        found: list[Message] = []
        try:
            while True:
                entries = await self._channel.read(after, AT_ONCE, wait=False)
                found += [message for message in map(_read, entries) if message is not None and (not kinds or message.kind in kinds)]
                if len(found) >= limit or len(entries) < AT_ONCE:
                    return found[:limit]
                after = entries[-1][0]
        except Exception as error:
            raise BusAway(f"the bus does not answer: {error}") from error

    async def run(self) -> None:
        """Sends what is published and hands out what comes, until cancelled."""
        pause_s = PAUSE_S[0]
        while True:
            try:
                await self._connect()
                _heed_cancellation()
                pause_s = PAUSE_S[0]
                await self._exchange()
            except Exception as error:  # whatever it is, it may go well next time
                self._state("away", reason=str(error) or type(error).__name__)
            _heed_cancellation()
            await asyncio.sleep(pause_s * (0.5 + self._jitter()))
            pause_s = min(2 * pause_s, PAUSE_S[1])

    async def close(self) -> None:
        """After `run` was cancelled: what was published last is sent, if that can be done at once."""
        try:
            async with asyncio.timeout(LAST_WORDS_S):
                await self._flush()
        except Exception as error:
            self._state("away", reason=str(error), lost=len(self._queue))
        await self._channel.close()

    # -- steps --

    async def _connect(self) -> None:
        end = await self._channel.open()
        if self._begun is None:
            self._begun = end
        self._position = min(self._position, end)
        await self._flush()  # so that a channel which can be read and not written to is away, and not up and away by turns
        self._state("up", dropped=self._dropped)
        self._dropped = 0

    async def _exchange(self) -> None:
        """Until one of both fails. No task group: a cancellation that comes as one of its tasks fails is lost in the group's error."""
        tasks = [asyncio.create_task(self._send()), asyncio.create_task(self._receive())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()

    async def _flush(self) -> None:
        while self._queue:
            bodies = [self._queue.popleft() for _ in range(min(len(self._queue), AT_ONCE))]
            try:
                await self._channel.append(bodies)
                bodies = []
                _heed_cancellation()
            except BaseException:
                self._queue.extendleft(reversed(bodies))
                raise

    async def _send(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._flush()

    async def _receive(self) -> None:
        while True:
            entries = await self._channel.read(self._position, AT_ONCE, wait=True)
            _heed_cancellation()
            for entry in entries:
                self._position = entry[0]
                message = _read(entry)
                if message is not None and message.worker != self._worker:
                    self._hand_out(message)

    def _hand_out(self, message: Message) -> None:
        before = message.id <= (self._begun or "")
        for callback, earlier in self._subscribers.get(message.kind, ()):
            if before and not earlier:
                continue
            try:
                callback(message)
            except Exception:
                log.exception("a message of the bus was not understood", kind=message.kind, worker=message.worker)


def _read(entry: Entry) -> Message | None:
    """None: it is none of ours."""
    id_, raw = entry
    if len(raw) > BODY_BYTES_MAX:
        return None
    try:
        body = _decode(raw)
    except (ValueError, RecursionError):
        return None
    return Message(id_, body.kind, body.time_ms, body.worker, body.data)


def _heed_cancellation() -> None:
    """A channel's library may swallow a cancellation that comes as something else fails."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
