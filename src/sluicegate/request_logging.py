"""The request log that a worker keeps: made of `log:`, and anew whenever that says something else."""

import asyncio
import contextlib
import time
from collections.abc import Callable

from sluicegate.config.load import Loaded
from sluicegate.config.schema_log import Log
from sluicegate.core.redact import rules_of
from sluicegate.gateway import Gateway
from sluicegate.observe.log import StateLog
from sluicegate.observe.log_file import LogFile, Rotation
from sluicegate.observe.metrics import Metrics
from sluicegate.observe.request_log import RequestLog

STOP_S = 5.0  # for which what waits is written when a worker ends


class RequestLogging:
    """Of one worker. Keeps `gateway.request_log`, and tells the metrics what is missing in it."""

    def __init__(self, gateway: Gateway, metrics: Metrics, loaded: Loaded, clock: Callable[[], float] = time.monotonic) -> None:
        self._gateway = gateway
        self._clock = clock
        self._settings = Log()
        self._log: RequestLog | None = None
        self._file: LogFile | None = None  # that is written to, or was last
        self._lost = self._left_out = 0  # by logs that are no more
        self._closing: set[asyncio.Task[None]] = set()
        self._state = StateLog("request log", "ok", good=frozenset({"ok"}))
        metrics.request_log = self.counts
        self.apply(loaded)

    def apply(self, loaded: Loaded) -> None:
        """Logs what ends from now on as this says. What waits goes where it was to go."""
        before, self._settings = self._settings, loaded.config.log
        if _made_of(before) != _made_of(self._settings):
            self._replace(self._made())

    def states(self) -> dict[str, str]:
        """How it is, for health; nothing where there is none."""
        return {"request_log": self._state.state} if self._log is not None else {}

    def counts(self) -> dict[str, int]:
        """What is missing in it."""
        now = self._log
        found = {"line": self._lost + (now.lost if now else 0), "prompt": self._left_out + (now.left_out if now else 0)}
        return {what: count for what, count in found.items() if count or now}

    async def close(self) -> None:
        """Writes what waits, for a moment."""
        self._replace(None)
        await asyncio.gather(*self._closing)

    def _made(self) -> RequestLog | None:
        settings, loop = self._settings, asyncio.get_running_loop()
        if settings.requests is None:
            return None
        rotate = settings.requests.rotate

        def on_state(state: str, reason: str) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._say, file, state, reason)

        file = LogFile(settings.requests.to, Rotation(rotate.size_bytes, rotate.keep, rotate.gzip), on_state, state=self._state.state)
        self._file = file
        masks = rules_of(settings.patterns if settings.prompts == "redacted" else ())
        return RequestLog(file, settings.prompts, masks, loop, self._clock)

    def _say(self, file: LogFile, state: str, reason: str) -> None:
        if file is self._file:  # not one that was given up, which still writes what waits
            self._state(state, reason=reason, lines_lost=self.counts().get("line", 0))

    def _replace(self, log: RequestLog | None) -> None:
        old, self._log = self._log, log
        self._gateway.request_log = log
        if old is not None:
            closing = asyncio.get_running_loop().create_task(self._close(old))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def _close(self, old: RequestLog) -> None:
        await old.close(STOP_S)
        self._lost += old.lost
        self._left_out += old.left_out


def _made_of(settings: Log) -> tuple[object, ...]:
    return settings.requests, settings.prompts, settings.patterns
