"""What the exact-match cache has to do with one request: what it was asked, what it had, and the stream that is put together for it (caching.py)."""

from typing import Any, cast

from sluicegate.core.cache import Entry
from sluicegate.core.plan import CACHE
from sluicegate.core.usage import Usage
from sluicegate.dialects.assembling import Assembler, Unfaithful, assembler_of
from sluicegate.dialects.between import Reader as TranslatedReader
from sluicegate.dialects.form import Event
from sluicegate.relay import Reader


class Lookup:
    """Of one request whose model has a cache. told: `hit`, `miss` or `skip:<why>`."""

    __slots__ = ("_max_bytes", "copying", "entry", "key", "seeded", "told", "ttl_ms")

    def __init__(self, told: str, key: bytes, ttl_ms: int, max_bytes: int) -> None:
        """max_bytes: of a stream that is put together."""
        self.told = told
        self.key = key  # b"": neither looked up nor kept
        self.ttl_ms = ttl_ms
        self._max_bytes = max_bytes
        self.seeded = False  # the gateway has given it a seed
        self.entry: Entry | None = None  # that it is answered with
        self.copying: Copying | None = None

    def copy(self, dialect: str, reader: Reader) -> Reader:
        """A stream's reader; one that also puts the stream together, where its answer may be kept."""
        assembler = assembler_of(dialect) if self.key else None
        if assembler is None:
            return reader
        self.copying = Copying(reader, assembler, self._max_bytes)
        return self.copying

    def recorded(self, deployment: str) -> tuple[str, str, int]:
        """For the record: what stands for the deployment, hit or miss ("" for what was not looked up, or refused), and what was saved in nano-USD."""
        if self.entry is not None:
            return CACHE, "hit", self.entry.cost_nano_usd
        return deployment, "miss" if self.told == "miss" else "", 0


class Copying:
    """A stream reader whose events are put together on their way. `spoiled` says why they could not be; "" if they could."""

    def __init__(self, reader: Reader, assembler: Assembler, max_bytes: int) -> None:
        self._reader = reader
        self._assembler = assembler
        self._left_bytes = max_bytes
        self.spoiled = ""

    @property
    def ending(self) -> bytes:
        return self._reader.ending

    @property
    def head(self) -> Any:
        return self._reader.head

    def feed(self, data: bytes) -> list[Event]:
        events = self._reader.feed(data)
        if not self.spoiled:
            self._take(events)
        return events

    def end(self) -> list[Event]:
        events = self._reader.end()
        if not self.spoiled:
            self._take(events)
        return events

    def last(self, charged: Usage) -> bytes:
        """Of a reader that translates."""
        return cast(TranslatedReader, self._reader).last(charged)

    def body(self, tail: bytes, usage: Usage | None) -> bytes:
        """All of it in one piece. tail: the end of the stream. Raises Unfaithful."""
        self._assembler.add(tail)
        return self._assembler.body(usage)

    def _take(self, events: list[Event]) -> None:
        try:
            for event in events:
                if event.kind in ("chunk", "other") and event.raw:
                    self._left_bytes -= len(event.raw)
                    if self._left_bytes < 0:
                        self.spoiled = "too_large"
                        return
                    self._assembler.add(event.raw)
                elif event.kind in ("bad", "error"):
                    self.spoiled = "incomplete"
                    return
        except Unfaithful:
            self.spoiled = "unfaithful"
