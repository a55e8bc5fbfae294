"""Time for tests that say that something happens soon, on machines that have much else to do.

    began = undisturbed()
    ...
    assert undisturbed() - began < 0.5

A thread counts what passes between its turns, but CAP_S at most for each: what a machine does with other processes meanwhile hardly counts, and
whatever blocks the test for as long as it says does.
"""

import threading
import time

TURN_S = 0.004
CAP_S = 0.012


class _Clock:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counted_s = 0.0
        self._seen = time.monotonic()
        threading.Thread(target=self._run, name="undisturbed", daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(TURN_S)
            self.read()

    def read(self) -> float:
        with self._lock:
            now = time.monotonic()
            self._counted_s += min(now - self._seen, CAP_S)
            self._seen = now
            return self._counted_s


_clocks: list[_Clock] = []


def undisturbed() -> float:
    """Seconds, of which only differences mean anything."""
    if not _clocks:
        _clocks.append(_Clock())
    return _clocks[0].read()
