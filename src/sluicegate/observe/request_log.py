"""The request log: a JSON line for each request, with its prompt as far as `log.prompts` lets it be seen.

    log = RequestLog(file, "redacted", masks, loop, clock)
    log(trip, record)             # on the path of the request: what is needed is kept, nothing else is done
    await log.close(timeout_s)

A line is the record (its empty fields left out) between `time`, `tenant`, where its price is from, and `prompt`. Lines are made in the loop, some
at a time, and written by a thread (log_file.py). Redaction is work of the loop, in steps of a slice, for about TURN_S in a turn: a thread would hold
the interpreter while it searches, and the loop would wait for it five milliseconds at a time, in the middle of any request.

Invariants: the order is that of the requests' ends. No request waits. A prompt that would make more than WAITING_MAX characters wait is left out of
its line and counted, as is one that cannot be redacted, or whose line is long and would find no room in the file's queue. Lines that find none all
the same are lost and counted (log_file.py).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec
import structlog

from sluicegate.core.matching import Masks, masked
from sluicegate.core.record import Record
from sluicegate.core.redact import How, prompt_at_once, prompt_json
from sluicegate.observe.log import as_json
from sluicegate.observe.log_file import LONG, LogFile

GATHER_S = 0.05  # lines that come together are written together
TURN_S = 0.002
WAITING_MAX = 64 << 20  # characters of prompts; one prompt alone may be longer
LINES_MAX = 1_000  # handed over at once

log = structlog.get_logger("request log")
_encode = msgspec.json.Encoder().encode
_NO_TEXTS: Sequence[str] = ()


class Entry(msgspec.Struct, gc=False):
    """What is kept of a request until its line is written."""

    record: Record
    path: tuple[Any, ...]  # the scopes of its key
    origin: Any  # of the price: core.prices.Origin, None where there is none
    texts: Sequence[str] | None  # None: the prompt is left out
    characters: int


class RequestLog:
    """Of one worker."""

    def __init__(self, file: LogFile, how: How, masks: Masks, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]) -> None:
        self._file = file
        self._how = how
        self._masks = masks
        self._loop = loop
        self._clock = clock
        self._entries: deque[Entry] = deque()
        self._characters = 0  # of prompts that wait
        self._prompt: Iterator[bytes] | None = None  # of the line that is being made
        self._parts: list[bytes] = []  # of that line
        self._lines: list[bytes] = []  # whole ones
        self._due = False
        self._idle: asyncio.Event | None = None
        self.left_out = 0  # prompts

    @property
    def lost(self) -> int:
        """Lines."""
        return self._file.lost

    def __call__(self, trip: Any, record: Record) -> None:
        """A request has ended."""
        request, key, answered = trip.request, trip.key, trip.answered
        texts = request.texts if request is not None else _NO_TEXTS
        characters = sum(map(len, texts))
        if self._characters and self._characters + characters > WAITING_MAX:
            texts = None
            self.left_out += 1
        else:
            self._characters += characters
        origin = answered.deployment.price_origin if answered is not None else None
        self._entries.append(Entry(record, key.path if key is not None else (), origin, texts, characters))
        if not self._due:
            self._due = True
            self._loop.call_later(GATHER_S, self._turn)

    async def close(self, timeout_s: float) -> None:
        """Writes what waits, as far as there is time."""
        if self._due:
            self._idle = asyncio.Event()
            try:
                await asyncio.wait_for(self._idle.wait(), timeout_s)
            except TimeoutError:
                self._finish()
        await asyncio.to_thread(self._file.close, timeout_s)

    def _turn(self) -> None:
        """Makes lines for a while, and hands over those that are whole."""
        until = self._clock() + TURN_S
        while self._entries:
            if self._step() and len(self._lines) >= LINES_MAX:
                break
            if self._clock() >= until:
                break
        self._hand_over()
        if self._entries:
            self._loop.call_soon(self._turn)
        else:
            self._due = False
            if self._idle is not None:
                self._idle.set()

    def _step(self) -> bool:
        """Makes the line that is next, or a piece of it. True: it is whole."""
        entry = self._entries[0]
        try:
            if self._prompt is None:
                head, prompt = head_of(entry, self._how, self._masks), self._at_once(entry)
                if prompt is not None:
                    self._whole(entry, b"%b%b}\n" % (head, prompt))
                    return True
                assert entry.texts is not None
                self._parts, self._prompt = [head], prompt_json(entry.texts, self._how, self._masks)
            piece = next(self._prompt, None)
        except Exception:
            log.exception("a prompt cannot be logged", request_id=entry.record.request_id)
            self._without_prompt(msgspec.structs.replace(entry, record=msgspec.structs.replace(entry.record, client_user="", tags="")))
            return True
        if piece is None:
            self._whole(entry, b"".join([*self._parts, b"}\n"]))
            return True
        self._parts.append(piece)
        return False

    def _at_once(self, entry: Entry) -> bytes | None:
        """The prompt, where it takes no steps."""
        if entry.texts is None:
            return b'{"left_out":true,"characters":%d}' % entry.characters
        return prompt_at_once(entry.texts, self._how, self._masks) if entry.texts else b"null"

    def _whole(self, entry: Entry, line: bytes) -> None:
        if len(line) > LONG:
            self._hand_over()  # before it is known whether there is room
            if not self._file.takes(len(line)):
                self.left_out += 1
                line = self._prompt_left_out(entry)
        self._lines.append(line)
        self._prompt, self._parts = None, []
        self._entries.popleft()
        if entry.texts is not None:
            self._characters -= entry.characters

    def _without_prompt(self, entry: Entry) -> None:
        self.left_out += entry.texts is not None
        self._whole(entry, self._prompt_left_out(entry))

    def _prompt_left_out(self, entry: Entry) -> bytes:
        return b'%b{"left_out":true,"characters":%d}}\n' % (head_of(entry, self._how, self._masks), entry.characters)

    def _hand_over(self) -> None:
        if self._lines:
            self._file.write(self._lines)
            self._lines = []

    def _finish(self) -> None:
        """What has had no time is logged without its prompt."""
        while self._entries:
            self._without_prompt(self._entries[0])
        self._hand_over()


def head_of(entry: Entry, how: How, masks: Masks) -> bytes:
    """The line of a request, up to its prompt."""
    record = entry.record
    if how == "redacted" and (record.client_user or record.tags):
        record = msgspec.structs.replace(record, client_user=masked(record.client_user, masks), tags=masked(record.tags, masks))
    seconds, millis = divmod(record.time_ms, 1000)
    return b'{"time":"%b.%03dZ"%b,%b,"prompt":' % (_second(seconds), millis, _whose(entry.path, entry.origin), as_json(record)[1:-1])


@lru_cache(1024)
def _whose(path: tuple[Any, ...], origin: Any) -> bytes:
    """The fields that are the same for many requests: the tenant, and where the price is from."""
    found = b""
    if path:
        found += b',"tenant":%b' % _encode(next((scope.id for scope in reversed(path) if scope.kind != "key"), ""))
    if origin is not None:
        price = {"rule": origin.rule, "date": origin.date, "source": origin.source, "entry": origin.entry}
        found += b',"price":%b' % _encode({name: value for name, value in price.items() if value})
    return found


@lru_cache(4)
def _second(seconds: int) -> bytes:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S").encode()
