"""`serve --workers N`: one parent that listens, N worker processes that accept from its socket.

The parent handles no requests and imports nothing of the gateway. It passes the first and every further SIGTERM or SIGINT on to all workers
(the first drains, the second cuts), and each SIGHUP (they read their configuration anew). It starts a worker anew when one ends, and ends when the
last worker has.
A worker that cannot live is not started for ever: after EARLY_DEATHS_MAX early deaths in a row the rest is drained and the exit code is 1.
If the parent itself is killed, its end of each worker's life line closes and the workers drain by themselves: `watch_parent`.
"""

import os
import selectors
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence

EARLY_S = 10.0  # a worker that ends sooner after its start died early
EARLY_DEATHS_MAX = 5
BACKOFF_S = 0.1  # doubled by each early death in a row

# Starts a worker that inherits the given descriptor (its end of the life line), in a session of its own: Ctrl-C reaches the parent alone.
Spawn = Callable[[int], "subprocess.Popen[bytes]"]


class Supervisor:
    """Keeps `workers` processes alive until it is told to stop."""

    def __init__(self, spawn: Spawn, workers: int, listeners: Sequence[socket.socket], say: Callable[[str], None]) -> None:
        self._spawn = spawn
        self._wanted = workers
        self._listeners = listeners
        self._say = say
        self._running: dict[subprocess.Popen[bytes], tuple[float, int]] = {}  # worker: start, life line's writing end
        self._start_at: list[float] = [0.0] * workers  # workers that are yet to be started
        self._early_deaths = 0
        self._stopping = False
        self._failed = False

    def run(self) -> int:
        """Blocks until all workers have ended. 0 if each ended well after a signal, else 1. Call it from the main thread."""
        awake, wake = socket.socketpair()
        awake.setblocking(False)
        wake.setblocking(False)
        caught = {number: signal.signal(number, _caught) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP)}
        previous = signal.set_wakeup_fd(wake.fileno())
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(awake, selectors.EVENT_READ)
                self._start_due()
                while self._running or self._start_at:
                    if selector.select(self._pause_s()):
                        self._act_on(awake.recv(256))
                    self._reap()
                    self._start_due()
        finally:
            signal.set_wakeup_fd(previous)
            for number, handler in caught.items():
                signal.signal(number, handler)
            awake.close()
            wake.close()
        return int(self._failed)

    def _act_on(self, numbers: bytes) -> None:
        for number in numbers:
            if number in (signal.SIGTERM, signal.SIGINT):
                self._stop()
            elif number == signal.SIGHUP:
                for worker in self._running:
                    worker.send_signal(signal.SIGHUP)

    def _stop(self) -> None:
        """Tells every worker, once more each time. Only the workers keep the socket, so that it closes when they stop accepting."""
        self._stopping = True
        self._start_at.clear()
        for listener in self._listeners:
            listener.close()
        for worker in self._running:
            worker.send_signal(signal.SIGTERM)

    def _reap(self) -> None:
        now = time.monotonic()
        for worker in [worker for worker in self._running if worker.poll() is not None]:
            started, life_line = self._running.pop(worker)
            os.close(life_line)
            if self._stopping:
                # Ended by the signal itself: it had not come so far as to handle it, so there was nothing to drain.
                self._failed = self._failed or worker.returncode not in (0, -signal.SIGTERM)
                continue
            self._early_deaths = self._early_deaths + 1 if now - started < EARLY_S else 0
            self._say(f"worker {worker.pid} ended ({_how(worker.returncode)})")
            if self._early_deaths >= EARLY_DEATHS_MAX:
                self._say(f"{EARLY_DEATHS_MAX} workers in a row ended within {EARLY_S:.0f} s of their start: giving up")
                self._failed = True
                self._stop()
            else:
                self._start_at.append(now + (BACKOFF_S * 2**self._early_deaths if self._early_deaths else 0.0))

    def _start_due(self) -> None:
        now = time.monotonic()
        due = [at for at in self._start_at if at <= now]
        self._start_at = [at for at in self._start_at if at > now]
        for _ in due:
            reading, writing = os.pipe()
            # Its default would end a worker that has not come so far as to handle it: it waits until then.
            signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP,))
            worker = self._spawn(reading)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGHUP,))
            os.close(reading)
            self._running[worker] = (now, writing)

    def _pause_s(self) -> float | None:
        return max(0.0, min(self._start_at) - time.monotonic()) if self._start_at else None


def watch_parent(life_line: int) -> None:
    """In a worker: drains it, as a SIGTERM would, when the parent is gone."""

    def wait() -> None:
        os.read(life_line, 1)  # nothing is ever written; returns at the end of the pipe
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True, name="parent").start()


def _caught(_number: int, _frame: object) -> None:
    """Nothing: the wake-up socket has got the signal's number."""


def _how(returncode: int) -> str:
    return f"signal {signal.Signals(-returncode).name}" if returncode < 0 else f"exit code {returncode}"
