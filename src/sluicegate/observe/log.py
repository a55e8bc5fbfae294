"""Logs: what changed, and one line per request.

`configure` sets structlog up for the process, to stderr. `StateLog` writes a line when a state changes and nothing while it stays (a ledger that
is away for an hour is two lines, not a million). `AccessLog` writes a line per request, buffered, with one write per loop turn; with access "off"
there is none, and the gateway has no observer to call.

Invariant: no secret reaches a log. Every text passes `masks.mask`, also inside tracebacks; fields named like credentials are not shown at all.

How it fails: an access line that cannot be written (a closed or full pipe) is dropped, never raised into a request.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Mapping, MutableMapping
from functools import lru_cache
from typing import Any, Literal, TextIO

import msgspec
import structlog

from sluicegate.core.masks import mask
from sluicegate.core.record import Record

_SECRET_FIELDS = frozenset({"authorization", "proxy-authorization", "x-api-key", "api_key", "api-key", "secret", "password", "cookie", "set-cookie"})


def _mask_value(value: object) -> object:
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, bytes | bytearray):
        return mask(value.decode("utf-8", "replace"))
    if isinstance(value, Mapping):
        return {key: "***" if str(key).lower() in _SECRET_FIELDS else _mask_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_mask_value(item) for item in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return mask(str(value))


def mask_event(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A structlog processor: everything in the event without credentials. Comes after tracebacks have become text."""
    return {key: "***" if key.lower() in _SECRET_FIELDS else _mask_value(value) for key, value in event.items()}


def configure(form: Literal["json", "console"], stream: TextIO | None = None, level: int = 20) -> None:
    """Sets structlog up for this process. level: as in logging, 20 is info."""
    renderer: Any = structlog.processors.JSONRenderer() if form == "json" else structlog.dev.ConsoleRenderer(colors=False, sort_keys=False)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            mask_event,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(stream if stream is not None else sys.stderr),
        cache_logger_on_first_use=False,
    )


class StateLog:
    """The state of one thing (the ledger, the records, a journal, a tree): one line per change, `<name> state`."""

    def __init__(self, name: str, state: str, good: frozenset[str]) -> None:
        """state: what it begins with, not logged. good: states logged as info; others are warnings."""
        self._name, self.state, self._good = name, state, good

    def __call__(self, state: str, **fields: object) -> None:
        """It is in this state now."""
        if state == self.state:
            return
        before, self.state = self.state, state
        logger = structlog.get_logger()
        say = logger.info if state in self._good else logger.warning
        say(f"{self._name} state", **{"from": before, "to": state}, **fields)


# -- one line per request -----------------------------------------------------------------------------------------------------------------

MODEL_MAX = 100  # characters of a model's name in a text line: a client may have made it up
_encode = msgspec.json.Encoder().encode


_OWN_FINISHES = frozenset(("", "stop", "length", "tool_calls", "content_filter"))  # no words of an upstream's


def as_json(record: Record) -> bytes:
    """The record, masked if there are words in it that a client or an upstream has chosen."""
    line = _encode(record)
    if record.attempts and not (record.client_user or record.tags or record.client_id) and record.finish in _OWN_FINISHES:
        return line
    return mask(line.decode()).encode()


def _as_json(record: Record) -> str:
    return as_json(record).decode()


def _as_text(record: Record) -> str:
    """What one looks for first: `200 acme/@laptop chat -> openai/gpt-4o-mini in=100 out=30 usd=0.000012 cache=- tries=1 ms=12.3 req_...`."""
    notes = ""
    if len(record.attempts) > 1:
        notes += " tried=" + ",".join([f"{attempt.deployment}:{attempt.outcome}" for attempt in record.attempts])
    if record.refusal:
        notes += f" refused={record.refusal}"
    if record.shadow:
        notes += f" shadow={_plain(record.shadow)}"
    if record.waited_us:
        notes += f" waited_ms={record.waited_us / 1000:.1f}"
    if record.truncated:
        notes += f" truncated={record.truncated}"
    if record.error:
        notes += f" error={record.error}"
    if record.stream:
        notes += " stream"
    if record.client_gone:
        notes += " client_gone"
    return (
        f"{record.status} {record.key_id or '-'} {_plain(record.model)} -> {record.deployment or '-'}"
        f" in={record.input_tokens} out={record.output_tokens} usd={record.cost_nano_usd / 1e9:.6f} cache={record.cache or '-'}"
        f" tries={len(record.attempts)} ms={record.latency_us / 1000:.1f}{notes} {record.request_id}"
    )


def _in_colour(record: Record) -> str:
    """The same for a terminal: green for an answer, yellow where the client was refused something, red where we or an upstream failed."""
    status, _, rest = _as_text(record).partition(" ")
    colour = 32 if record.status < 400 else 33 if record.status < 500 else 31
    return f"\x1b[{colour}m{status}\x1b[0m {rest}"


@lru_cache(1024)
def _plain(text: str) -> str:
    """A client's text as one word of a line: masked, and quoted where it could be taken for something else."""
    if text.isprintable() and " " not in text and '"' not in text and len(text) <= MODEL_MAX:
        return mask(text) or "-"
    return ascii(mask(text)[:MODEL_MAX])


class AccessLog:
    """Called with each record. Lines of one loop turn go out in one write."""

    def __init__(self, form: Literal["text", "json"], loop: asyncio.AbstractEventLoop, fd: int) -> None:
        self._line = _as_json if form == "json" else _in_colour if os.isatty(fd) else _as_text
        self._loop = loop
        self._fd = fd
        self._lines: list[str] = []

    def __call__(self, record: Record) -> None:
        if not self._lines:
            self._loop.call_soon(self.flush)
        self._lines.append(self._line(record))

    def flush(self) -> None:
        """Writes what is buffered."""
        data = "".join([line + "\n" for line in self._lines]).encode("utf-8", "replace")
        self._lines.clear()
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError:
            return  # nobody reads the log: that is no reason to fail requests


def access_log(access: Literal["text", "json", "off"], loop: asyncio.AbstractEventLoop, fd: int = 2) -> Callable[[Record], None] | None:
    """The observer that `log.access` asks for, writing to a file descriptor (stderr). None: off."""
    return None if access == "off" else AccessLog(access, loop, fd)
