"""How the hold of an extended stream grows while it runs: how fast the stream comes, and when to ask the ledger for more.

Pure but for the call that asks; one call in flight. After a refusal the stream runs to the margin of its grant (ledger.md 8).
"""

import asyncio
from collections.abc import Callable, Collection
from math import ceil
from typing import Literal

from sluicegate.core.claims import Reply

LOOKAHEAD_MIN = 32
LOOKAHEADS_ASKED = 8
LOOKAHEADS_EARLY = 3  # before the grant is used up: where there is no room, others have the time of one to settle
ASK_AGAIN_S = 0.05  # after a refusal; others may have settled meanwhile
PATIENCE_S = 0.05  # with a ledger that does not answer, once the grant is at its margin: the upstream does not wait
PACE_S = 0.1  # over which a stream's pace is taken
SILENCE_S = 0.25  # after which an upstream is taken to go on producing what does not arrive
FASTEST = 2_500  # tokens per second: what a stream is charged as that was closed before its pace was seen for PACE_S
PACE_FIRST_S = 0.01  # the first estimate; until then all that was seen is taken to have come within it
Why = Literal["", "budget", "ledger", "policy"]


class Pace:
    """How fast a stream comes. `rate` is in tokens per second, 0 until it is known: rises at once, falls slowly."""

    __slots__ = ("_began_at", "_delta", "_marked_at", "_marked_seen", "_read_at", "_seen", "_stop_lag_s", "rate")

    def __init__(self, stop_lag_ms: int, delta: int = 0) -> None:
        """delta: the largest that is known of the deployment. A stream that has shown none yet may be about to."""
        self.rate = 0.0
        self._delta = delta
        self._stop_lag_s = stop_lag_ms / 1000
        self._began_at = 0.0
        self._marked_at = 0.0
        self._marked_seen = 0
        self._read_at = 0.0
        self._seen = 0

    def unseen(self, now: float) -> int:
        """Output that an upstream which has fallen silent may have produced meanwhile: a network that stalls stops nobody from generating."""
        silence_s = now - self._read_at
        return ceil(self.rate * silence_s) if silence_s >= SILENCE_S else 0

    def saw(self, seen: int, now: float) -> None:
        """Takes note of a read, with the output so far."""
        self._read_at = now
        self._seen = seen
        elapsed = now - self._marked_at
        if not self._marked_at:
            if seen:
                self._began_at = self._marked_at = now
                self._marked_seen = seen
        elif elapsed >= PACE_S or (elapsed >= PACE_FIRST_S and not self.rate):
            rate = (seen - self._marked_seen) / elapsed
            self.rate = max(rate, 0.8 * self.rate + 0.2 * rate)
            self._marked_at, self._marked_seen = now, seen

    def margin(self, largest: int, now: float) -> int:
        """Output that may still come after we decide to stop: the largest delta, and what is produced until the upstream notices.

        Until the rate is known, all that was seen is taken to have come since the first output, within PACE_FIRST_S at least.
        """
        rate = self.rate or self._seen / max(PACE_FIRST_S, now - self._marked_at)
        return max(largest, self._delta) + ceil(rate * self._stop_lag_s)

    def beyond(self, largest: int, now: float) -> int:
        """Output that an upstream which is closed now may have produced beyond what was read, and is charged for: as `margin`, and what it made since
        the last read. A stream that has just begun shows no pace, least of all if this process was held up: then it is taken to be a fast one."""
        rate, silence_s = self.rate, now - self._read_at if self._seen else 0.0
        if not self._seen or self._read_at - self._began_at < PACE_S:
            rate = max(rate or self._seen / max(PACE_FIRST_S, self._read_at - self._marked_at), FASTEST)
        return max(largest, self._delta) + ceil(rate * (self._stop_lag_s + silence_s))

    def lookahead(self, largest: int, round_trip_s: float) -> int:
        """How far from the end of a grant to ask for more, so that the answer comes before the margin is reached."""
        return max(LOOKAHEAD_MIN, max(largest, self._delta) + ceil(self.rate * (self._stop_lag_s + max(2 * round_trip_s, PATIENCE_S))))


class Growth:
    """The hold of an extended stream while it runs: asks the ledger ahead of need, one call in flight."""

    def __init__(
        self,
        extend: Callable[[int, int, int], "asyncio.Future[Reply]"],
        granted: int,
        want: int,
        pace: Pace,
        run_on: Collection[str],
        clock: Callable[[], float],
    ) -> None:
        self.granted = granted
        self.want = want
        self.refused: Why = ""
        self.asking: asyncio.Future[Reply] | None = None
        self.on_answer: Callable[[], None] = _nothing
        self._extend = extend  # (need, want, seen), totals
        self._pace = pace
        self._run_on = run_on  # refusals that the operator lets a stream outrun: "budget", "ledger"
        self._clock = clock
        self._asked_at = 0.0
        self._ask_again_at = 0.0
        self._round_trip_s = 0.002

    @property
    def covers_all(self) -> bool:
        """Everything that the upstream can be billed for is held."""
        return self.granted >= self.want

    def runs_out(self, seen: int, largest: int, now: float) -> Why:
        """Why the stream must be stopped now to stay inside its grant: the ledger has refused, or is too slow to be waited for. "": it goes on."""
        if self.covers_all or self.granted - seen > self._pace.margin(largest, now):
            return ""
        if self.refused or self.asking is None or "ledger" in self._run_on:
            return self.refused
        return "ledger" if now - self._asked_at >= PATIENCE_S else ""

    def saw(self, seen: int, largest: int, now: float) -> None:
        """Asks for more when the grant runs low."""
        if self.covers_all or self.asking is not None or now < self._ask_again_at:
            return
        lookahead = self._pace.lookahead(largest, self._round_trip_s)
        if self.granted - seen < LOOKAHEADS_EARLY * lookahead:
            self.ask(min(self.want, seen + LOOKAHEADS_ASKED * lookahead), seen)

    def ask(self, want: int, seen: int) -> None:
        """Asks for `want` tokens in all; any more than now is taken."""
        self._asked_at = self._clock()
        self.asking = self._extend(min(want, self.granted + 1), want, seen)
        self.asking.add_done_callback(self._answered)

    def _answered(self, asking: "asyncio.Future[Reply]") -> None:
        now = self._clock()
        self.asking = None
        if asking.cancelled():
            return
        if asking.exception() is None:
            reply = asking.result()
            self._round_trip_s += 0.3 * (now - self._asked_at - self._round_trip_s)
            self.granted = max(self.granted, reply.g)
            self.refused = "" if reply.status == "granted" else "budget"
        else:
            self.refused = "ledger"
        if self.refused in self._run_on:
            self.granted, self.refused = self.want, ""  # the overrun is settled
        elif self.refused:
            self._ask_again_at = now + ASK_AGAIN_S
        self.on_answer()


def _nothing() -> None:
    pass
