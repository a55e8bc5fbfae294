"""Server-sent events, incrementally: bytes in, whole events out, each with exactly the bytes that it came in.

The joined `raw` of all events, `end()` included, is what was fed, and the events are the same however reads were cut. Lines end with CR, LF or
CRLF, mixed as they like, and with nothing else: text is never split as text (U+2028 and the like are content). Several `data` lines are joined
with a newline, a BOM at the start is skipped, unknown fields are ignored. See the HTML standard, "Server-sent events".

A CR at the end of a read may be half of a CRLF, so it is looked at when the next byte has come. Only streams whose lines end with a lone CR
could see an event earlier, and there are none.

Time is linear in what is fed, also for one line of many megabytes fed byte by byte. An event above EVENT_MAX is one event of kind "bad", after which
the reader is deaf: what follows cannot be framed.
"""

import re
from typing import Literal

import msgspec

EVENT_MAX = 16 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"
# A line end and an empty line. The look-aheads keep a CRLF from being taken for two ends.
_BLANK = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r(?=[^\n]))")
_LINE = re.compile(rb"\r\n?|\n")


class RawEvent(msgspec.Struct, gc=False):
    """One event. `raw`: the bytes it came in, blank line included.

    kind "comment": there is no field in it, only comments or empty lines. kind "bad": it was too long, `raw` is empty.
    """

    raw: bytes
    event: str
    data: bytes
    kind: Literal["event", "comment", "bad"] = "event"


class Reader:
    """Splits one answer into events."""

    __slots__ = ("_deaf", "_pending", "_started")

    def __init__(self) -> None:
        self._pending = bytearray()
        self._started = False
        self._deaf = False

    def feed(self, data: bytes) -> list[RawEvent]:
        """The events that `data` completes."""
        pending = self._pending
        if self._deaf:
            return []
        look = 0  # where the end of the first event may be: what was searched before is not searched again
        if pending:
            look = max(0, len(pending) - 3)
            if not self._completes(data, look):
                return self._too_long() if len(pending) > EVENT_MAX else []
            data = bytes(pending)
            pending.clear()
        events: list[RawEvent] = []
        start, cr = 0, 13 in data
        while True:
            # The usual event is one line, `data: {...}`, with at most a name before it, and an empty line: finds, no regular expression.
            line = -1 if cr else data.find(10, start)
            if line >= 0 and data.startswith(b"\n\n", line) and data.startswith(b"data: ", start):
                end = line + 2
                self._started = True
                event = RawEvent(data[start:end], "", data[start + 6 : line])
            elif (
                line >= 0
                and data.startswith(b"event: ", start)
                and data.startswith(b"data: ", line + 1)
                and data.startswith(b"\n\n", second := data.find(10, line + 1))
            ):
                end = second + 2
                self._started = True
                event = RawEvent(data[start:end], data[start + 7 : line].decode("utf-8", "replace"), data[line + 7 : second])
            else:
                end = _end(data, look, cr)
                if not end:
                    break
                event = self._event(data[start:end])
            if end - start > EVENT_MAX:
                return events + self._too_long()
            events.append(event)
            start = look = end
        if start < len(data):
            pending += data[start:] if start else data
            if len(pending) > EVENT_MAX:
                return events + self._too_long()
        return events

    def _completes(self, data: bytes, look: int) -> bool:
        """Adds to an event that has begun: whether its end is there now, from `look` on."""
        pending = self._pending
        no_end = 10 not in data and 13 not in data and pending[-1] != 13
        pending += data
        return not no_end and _BLANK.search(pending, look) is not None

    def end(self) -> list[RawEvent]:
        """What is left at the end of the answer, as one event. It has no blank line: whether it is whole is for the caller to find out."""
        raw = bytes(self._pending)
        self._pending.clear()
        return [self._event(raw)] if raw else []

    def _too_long(self) -> list[RawEvent]:
        self._pending.clear()
        self._deaf = True
        return [RawEvent(b"", "", b"", "bad")]

    def _event(self, raw: bytes) -> RawEvent:
        text = raw
        if not self._started:
            self._started = True
            text = raw.removeprefix(_BOM)
        name, data, fields = b"", [], False
        for line in _LINE.split(text):
            if not line or line.startswith(b":"):
                continue
            fields = True
            field, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if field == b"data":
                data.append(value)
            elif field == b"event":
                name = value
        return RawEvent(raw, name.decode("utf-8", "replace"), b"\n".join(data), "event" if fields else "comment")


def _end(data: bytes, look: int, cr: bool) -> int:
    """Where the event that begins before `look` ends; 0: not yet. cr: there is a CR in the data."""
    if cr:
        blank = _BLANK.search(data, look)
        return blank.end() if blank is not None else 0
    found = data.find(b"\n\n", look)
    return found + 2 if found >= 0 else 0


def ended(raw: bytes) -> bytes:
    """The last event of an answer with the blank line that it lacks."""
    return raw if raw.endswith((b"\r\r", b"\n\r")) else raw.rstrip(b"\r\n") + b"\n\n"
