"""Cooldowns, told to all workers and heard from them: what one was refused for, none of the others tries; and their end, where an operator says so.

A cooldown goes out as the time of the ledger's clock at which it ends, since that is the one clock that replicas share. A worker that starts hears of
those that are not over. What is heard is not told again, lasts an hour at most, and concerns deployments that are known here; the rest is ignored.
A cooldown that was told before a reset, by the same clock, is not heard after it.
"""

from collections.abc import Callable

import msgspec

from sluicegate.bus import Bus, Message
from sluicegate.core.waits import WAIT_MAX_MS
from sluicegate.standings import Standings

KIND = "cooldown"
RESET = "reset"
REASON_MAX = 200


class Cooldown(msgspec.Struct, frozen=True):
    """What is told of one. limited: a limit, and not that it is broken or our account there no good."""

    deployment: str
    until_ms: int
    reason: str
    limited: bool


class Reset(msgspec.Struct, frozen=True):
    """A deployment may be called again, whatever it has done."""

    deployment: str
    reason: str


class Cooldowns:
    """One worker's."""

    def __init__(self, bus: Bus, standings: Standings, now_ms: Callable[[], int]) -> None:
        """now_ms: the ledger's clock."""
        self._bus = bus
        self._standings = standings
        self._now_ms = now_ms
        self._reset_ms: dict[str, int] = {}  # when, by deployment
        self.on_found: Callable[[str, float, str], None] = lambda deployment, for_s, reason: None  # (deployment, for_s, reason), here
        standings.on_cooled = self._found
        bus.subscribe(KIND, self._heard, earlier=True)
        bus.subscribe(RESET, self._hear_reset, earlier=True)

    def reset(self, deployment: str, reason: str) -> None:
        """Ends what keeps requests from a deployment of this policy, here and at all workers."""
        self._bus.publish(RESET, msgspec.to_builtins(Reset(deployment, reason[:REASON_MAX])))
        self._reset(deployment, reason, self._now_ms())

    def _found(self, deployment: str, for_s: float, reason: str, limited: bool) -> None:
        self._bus.publish(KIND, msgspec.to_builtins(Cooldown(deployment, self._now_ms() + int(for_s * 1000), reason, limited)))
        self.on_found(deployment, for_s, reason)

    def _heard(self, message: Message) -> None:
        try:
            told = msgspec.convert(message.data, Cooldown)
        except msgspec.ValidationError:
            return
        left_ms = min(told.until_ms - self._now_ms(), WAIT_MAX_MS)
        if left_ms > 0 and message.time_ms > self._reset_ms.get(told.deployment, -1):
            self._standings.cool(told.deployment, left_ms / 1000, told.reason[:REASON_MAX], told.limited)

    def _hear_reset(self, message: Message) -> None:
        try:
            told = msgspec.convert(message.data, Reset)
        except msgspec.ValidationError:
            return
        self._reset(told.deployment, told.reason[:REASON_MAX], message.time_ms)

    def _reset(self, deployment: str, reason: str, time_ms: int) -> None:
        if self._standings.knows(deployment):
            self._reset_ms[deployment] = time_ms
            self._standings.reset(deployment, reason)
