"""The parent of several workers, with real processes."""

import signal
import subprocess
import sys
import time

import pytest

from sluicegate import supervisor
from sluicegate.supervisor import Supervisor

# A worker that says when it is up, and how many signals it got before its life line closed.
WORKER = """
import os, signal, sys
got = 0
def count(*_):
    global got
    got += 1
signal.signal(signal.SIGTERM, count)
signal.signal(signal.SIGHUP, lambda *_: os.write(1, b"read anew" + bytes([10])))
signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGHUP,))
os.write(1, b"up %d" % os.getpid() + bytes([10]))
while got < 2:
    signal.pause()
"""
PARENT = f"""
import subprocess, sys
from sluicegate.supervisor import Supervisor
def spawn(life_line):
    return subprocess.Popen([sys.executable, "-c", {WORKER!r}], pass_fds=[life_line], start_new_session=True)
sys.exit(Supervisor(spawn, 2, [], lambda text: print(text, flush=True)).run())
"""
DRAINED_BY_ITSELF = """
import os, signal, sys
from sluicegate.supervisor import watch_parent
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
watch_parent(int(sys.argv[1]))
os.write(1, b"up %d" % os.getpid() + bytes([10]))
signal.pause()
"""


def lines_until_up(process: "subprocess.Popen[str]", count: int) -> tuple[list[int], list[str]]:
    """Reads what a parent and its workers print until `count` workers are up: their pids, and the other lines."""
    pids: list[int] = []
    others: list[str] = []
    assert process.stdout is not None
    while len(pids) < count:
        line = process.stdout.readline()
        assert line, others
        if line.startswith("up "):
            pids.append(int(line.split()[1]))
        else:
            others.append(line.strip())
    return pids, others


def test_a_dead_worker_is_replaced_and_each_signal_is_passed_on() -> None:
    """kill -9 of a worker brings a new one; two SIGTERMs to the parent are two for every worker, and then it exits 0."""
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        first, _ = lines_until_up(parent, 2)
        subprocess.run(["kill", "-9", str(first[0])], check=True)
        (replacement,), said = lines_until_up(parent, 1)
        assert replacement not in first
        assert said == [f"worker {first[0]} ended (signal SIGKILL)"]
        parent.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            parent.wait(0.3)  # the workers are not done with one
        parent.send_signal(signal.SIGINT)
        assert parent.wait(60) == 0


def test_a_hang_up_is_passed_on() -> None:
    """Each worker is told once; one that is not up yet is told when it can be, and is not ended by it."""
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        lines_until_up(parent, 2)
        parent.send_signal(signal.SIGHUP)
        assert parent.stdout is not None
        assert [parent.stdout.readline().strip() for _ in range(2)] == ["read anew"] * 2
        for _ in range(2):
            parent.send_signal(signal.SIGTERM)
            time.sleep(0.05)
        assert parent.wait(60) == 0


def test_workers_that_cannot_live_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five early deaths in a row end the parent with exit code 1."""
    monkeypatch.setattr(supervisor, "BACKOFF_S", 0.001)
    started, said = [], []

    def spawn(life_line: int) -> "subprocess.Popen[bytes]":
        started.append(life_line)
        return subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"], pass_fds=[life_line])

    assert Supervisor(spawn, 1, [], said.append).run() == 1
    assert len(started) == 5
    assert "exit code 3" in said[0]
    assert said[-1].endswith("giving up")


def test_workers_drain_when_the_parent_was_killed() -> None:
    """kill -9 of the parent closes the life lines, and its workers end by themselves."""
    parent_code = PARENT.replace(repr(WORKER), f"{DRAINED_BY_ITSELF!r}, str(life_line)")
    with subprocess.Popen([sys.executable, "-c", parent_code], stdout=subprocess.PIPE, text=True) as parent:
        lines_until_up(parent, 2)
        parent.kill()
        assert parent.stdout is not None
        assert parent.stdout.read() == ""  # ends only when the workers, who share it, have ended
