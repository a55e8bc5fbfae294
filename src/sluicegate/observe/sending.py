"""Sends what has ended, in a thread of its own: the loop puts it down and goes on.

What waits is bounded (`capacity`, in spans); what comes beyond that is dropped and counted. A receiver that is away costs nobody anything but its
spans: one line in the log when it goes, one when it is back.

How it fails: whatever `export` does, the thread goes on with what comes next; what it did not take is lost, and counted.
"""

import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence

from sluicegate.observe.log import StateLog
from sluicegate.observe.tracing import Finished

LAST_S = 0.1  # of the patience at an end: for a thread that was interrupted; one that waits for a receiver cannot be
SWITCH_S = 0.0005  # the loop waits no longer for this thread to let go of the interpreter

Export = Callable[[Sequence[Finished]], str]  # why they were not taken; "": they were


class Sender:
    """One per worker and receiver. What it has counted may be read at any time."""

    def __init__(
        self, exporter: Callable[[], tuple[Export, Callable[[], None]]], *, capacity: int = 2048, batch: int = 512, delay_s: float = 5.0
    ) -> None:
        """exporter: made in the thread, since that takes a while: what exports, and what ends an export that is under way. batch: spans that are sent
        together, at most; delay_s: for which fewer wait."""
        self.dropped = 0  # spans; counted by whoever puts, the two below by the thread
        self.sent = self.failed = 0
        self._exporter = exporter
        self._capacity = capacity
        self._batch = batch
        self._delay_s = delay_s
        self._queue: deque[Finished] = deque()
        self._put = self._taken = 0
        self._wake = threading.Event()
        self._stopping = False
        self._interrupt: Callable[[], None] = _nothing
        self._say = StateLog("tracing", "up", good=frozenset({"up"}))
        self._thread = threading.Thread(target=self._run, name="tracing", daemon=True)

    def start(self) -> None:
        """Begins to send."""
        self._thread.start()

    def put(self, finished: Finished) -> None:
        """Takes a request's spans, if there is room for them."""
        spans, waiting = finished.spans, self._put - self._taken
        if waiting + spans > self._capacity or self._stopping:
            self.dropped += spans
            return
        self._put += spans
        self._queue.append(finished)
        if waiting + spans >= self._batch:
            self._wake.set()

    def stop(self, patience_s: float) -> None:
        """Sends what waits, for so long at most; a receiver that is away is not waited for. Not in the loop."""
        self._stopping = True
        self._wake.set()
        if self._say.state == "up":
            self._thread.join(max(patience_s - LAST_S, 0.0))
        self._interrupt()
        self._thread.join(min(patience_s, LAST_S))

    def _run(self) -> None:
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_S))
        try:
            export, self._interrupt = self._exporter()
        except Exception as error:  # of a library, about an environment that nobody has checked
            reason = f"{type(error).__name__}: {error}"
            export = lambda _: reason  # noqa: E731
        while True:
            self._wake.wait(self._delay_s)
            self._wake.clear()
            while self._queue:
                self._send(export, self._some())
            if self._stopping:
                return

    def _some(self) -> list[Finished]:
        """The oldest, as many as are sent together."""
        batch: list[Finished] = []
        spans = 0
        while self._queue and (not batch or spans + self._queue[0].spans <= self._batch):
            batch.append(self._queue.popleft())
            spans += batch[-1].spans
        return batch

    def _send(self, export: Export, batch: list[Finished]) -> None:
        spans = sum(finished.spans for finished in batch)
        try:
            why_not = export(batch)
        except Exception as error:
            why_not = f"{type(error).__name__}: {error}"
        self._taken += spans
        if why_not:
            self.failed += spans
            self._say("away", reason=why_not)
        else:
            self.sent += spans
            self._say("up", lost_spans=self.failed, dropped_spans=self.dropped)


def _nothing() -> None:
    pass
