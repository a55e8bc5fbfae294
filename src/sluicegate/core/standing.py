"""The standing of a deployment at one worker: whether it may be called now. Pure: time comes in, in seconds of a clock that never goes back.

cooldown  it has said that it will not serve for a while, or that our account there is no good: skipped until then. The later of two deadlines stands.
breaker   after so many requests in a row that it failed it is not called for a pause; then one request may try (the probe), whose success closes the
          breaker, whose failure opens it for another pause.

Invariants: while the breaker is not closed at most one permit is out, but a probe that does not report within a pause has lost its place (it hangs,
or was forgotten), so no probe can keep a deployment out for ever. A permit carries the generation in which it was given; a report from an earlier one
changes nothing, so calls that were under way when the breaker opened neither close it nor extend its pause. With one exception: a probe whose answer
takes longer than a pause closes the breaker all the same, unless a later one has failed; else a deployment that is slow and well would stay out.
Somebody may say that it is well (`reset`): all that was known against it is forgotten, and what was under way then changes nothing.
The probe that closed it may be reported a second time, as failed: its answer began well and broke off, which opens the breaker again if it comes
within a pause (later there have been others, by whom the deployment is known).
"""

from collections.abc import Callable
from typing import Literal

import msgspec

Report = Literal["ok", "failed", "void"]  # void: nothing was learned: refused before the call, a client's fault, the client left
State = Literal["closed", "open", "probing"]
OnChange = Callable[[str, str, str, str, str], None]  # (deployment, what, from, to, reason)


class Permit(msgspec.Struct, frozen=True):
    """Leave to call a deployment once, whatever number of tries that is. Each is reported once; a probe that began well and broke off, twice."""

    generation: int
    probe: bool


class Standing:
    """One deployment."""

    __slots__ = (
        *("_closer", "_failures_max", "_on_change", "_opened", "_pause_s", "_permit"),
        *("cool_reason", "cool_until_s", "deployment", "failures", "in_flight", "limited", "open_until_s", "reason", "state"),
    )

    def __init__(self, deployment: str, failures_max: int, pause_s: float, on_change: OnChange) -> None:
        self.deployment = deployment  # its id
        self.state: State = "closed"
        self.reason = ""  # of the last change of `state`
        self.failures = 0  # requests in a row
        self.open_until_s = 0.0  # or the end of the probe's time; closed: until when the probe that closed it may take that back
        self.in_flight = 0  # requests that this worker has there
        self.cool_until_s = 0.0  # 0: it does not
        self.cool_reason = ""
        self.limited = False  # why it cools down: a limit, and not that it is broken or our account no good
        self.configure(failures_max, pause_s)
        self._on_change = on_change
        self._permit = Permit(0, False)  # that is given out in this generation
        self._opened = 0  # the generation in which it opened last
        self._closer: Permit | None = None  # the probe that has closed it since

    def configure(self, failures_max: int, pause_s: float) -> None:
        """What counts from now on; a pause that has begun lasts as long as it was to last."""
        self._failures_max = failures_max
        self._pause_s = pause_s

    def permit(self, now_s: float) -> Permit | None:
        """Leave to call it; None while it cools down, or while the breaker is open or its probe out."""
        if self.cool_until_s:
            if now_s < self.cool_until_s:
                return None
            self.cool_until_s = 0.0
            self._on_change(self.deployment, "cooldown", "cooling", "none", "its time is over")
        if self.state == "closed":
            return self._permit
        if now_s < self.open_until_s:
            return None
        self._change("probing", "its pause is over" if self.state == "open" else "the last probe did not report")
        self.open_until_s = now_s + self._pause_s
        return self._permit

    def report(self, permit: Permit, report: Report, now_s: float) -> None:
        """What came of a permit."""
        if permit is not self._permit:
            if permit is self._closer and report == "failed" and now_s < self.open_until_s:
                self._open("the probe broke off", now_s)
                return
            if report != "ok" or self.state != "probing" or permit.generation <= self._opened:
                return
        if report == "void":
            if permit.probe:  # its place is free for the next
                self._permit = Permit(permit.generation + 1, True)
                self.open_until_s = now_s
            return
        if report == "ok":
            self.failures = 0
            if permit.probe:
                self._closer, self.open_until_s = permit, now_s + self._pause_s
                self._change("closed", "the probe succeeded")
            return
        self.failures += 1
        if permit.probe or self.failures >= self._failures_max:
            self._open("the probe failed" if permit.probe else f"{self.failures} failures in a row", now_s)

    def cool(self, for_s: float, now_s: float, reason: str, limited: bool = True) -> float:
        """It is not called for so long. Seconds by which that is longer than was known."""
        later_s = now_s + for_s - max(self.cool_until_s, now_s)
        if later_s <= 0:
            return 0.0
        if now_s >= self.cool_until_s:
            before = "cooling" if self.cool_until_s else "none"  # nobody has asked for it since the last one was over
            self._on_change(self.deployment, "cooldown", before, "cooling", f"{reason}, for {for_s:g} s")
        self.cool_until_s, self.cool_reason, self.limited = now_s + for_s, reason, limited
        return later_s

    def reset(self, reason: str) -> None:
        """It is called again, from now on, as if it had never failed."""
        if self.cool_until_s:
            self.cool_until_s = 0.0
            self._on_change(self.deployment, "cooldown", "cooling", "none", reason)
        self.failures, self.open_until_s, self._closer = 0, 0.0, None
        self._change("closed", reason)

    def ready_in_s(self, now_s: float) -> float:
        """For how long it will certainly not be called."""
        closed_for = self.open_until_s - now_s if self.state != "closed" else 0.0
        return max(0.0, self.cool_until_s - now_s, closed_for)

    def _open(self, reason: str, now_s: float) -> None:
        self.open_until_s = now_s + self._pause_s
        self._change("open", reason)
        self._opened, self._closer = self._permit.generation, None

    def _change(self, state: State, reason: str) -> None:
        before, self.state, self.reason = self.state, state, reason
        self._permit = Permit(self._permit.generation + 1, state == "probing")
        if before != state:
            self._on_change(self.deployment, "breaker", before, state, reason)
