"""Newline-delimited JSON, incrementally: bytes in, whole lines out, each with exactly the bytes that it came in.

The joined `raw` of all lines, `end()` included, is what was fed, and the lines are the same however reads were cut. Lines end with LF, a CR before
it is white space, and nothing else ends one: JSON has neither inside its texts. A BOM at the start is skipped. https://github.com/ndjson/ndjson-spec

Time is linear in what is fed, also for one line of many megabytes fed byte by byte. A line above LINE_MAX is one of kind "bad", after which the
reader is deaf: what follows cannot be framed.
"""

from typing import Literal

import msgspec

from sluicegate.dialects.sse import EVENT_MAX

LINE_MAX = EVENT_MAX
_BOM = b"\xef\xbb\xbf"


class RawLine(msgspec.Struct, gc=False):
    """One line. `raw`: the bytes it came in, its end included; `data`: without white space around it.

    kind "blank": there is nothing on it. kind "bad": it was too long, `raw` is empty.
    """

    raw: bytes
    data: bytes
    kind: Literal["line", "blank", "bad"] = "line"


class Reader:
    """Splits one answer into lines."""

    __slots__ = ("_deaf", "_pending", "_started")

    def __init__(self) -> None:
        self._pending = bytearray()
        self._started = False
        self._deaf = False

    def feed(self, data: bytes) -> list[RawLine]:
        """The lines that `data` completes."""
        pending = self._pending
        if self._deaf:
            return []
        if pending:
            pending += data
            if 10 not in data:
                return self._too_long() if len(pending) > LINE_MAX else []
            data = bytes(pending)
            pending.clear()
        lines: list[RawLine] = []
        start = 0
        while end := data.find(b"\n", start) + 1:
            if end - start > LINE_MAX:
                return lines + self._too_long()
            lines.append(self._line(data[start:end]))
            start = end
        if start < len(data):
            pending += data[start:]
            if len(pending) > LINE_MAX:
                return lines + self._too_long()
        return lines

    def end(self) -> list[RawLine]:
        """What is left at the end of the answer, as one line: its end may have been left out."""
        raw = bytes(self._pending)
        self._pending.clear()
        return [self._line(raw)] if raw else []

    def _too_long(self) -> list[RawLine]:
        self._pending.clear()
        self._deaf = True
        return [RawLine(b"", b"", "bad")]

    def _line(self, raw: bytes) -> RawLine:
        data = raw
        if not self._started:
            self._started = True
            data = raw.removeprefix(_BOM)
        data = data.strip(b" \t\r\n")
        return RawLine(raw, data, "line" if data else "blank")
