"""Waiting in front of refusals (`budget.queue`): who may ask the ledger next.

One line for each counter that refuses, in each worker: higher priority first, first come first served inside one. Only the first of a line asks
the ledger: when it comes to the front, when something of its counter is settled here, and from time to time. Who comes while somebody of the same
or a higher priority waits for a counter that binds it stands behind without asking. Whom another counter refuses goes on in that one's line, with
the order that it came with.

Invariants: a line that exists has somebody in it, so that `lines` is empty where nobody waits; a place is in one line at most; places are ordered
alike in all lines, and the first of them all is never behind anybody: lines cannot block each other. A place costs no hold.

How it fails: a ledger that is away dissolves the line that found out. Each then asks for itself and fares as it does without a queue.

All of it is sync but for `turn`.
"""

import asyncio
import itertools
from bisect import insort
from collections.abc import Callable, Sequence
from math import inf

from sluicegate.core.refusals import Refusal
from sluicegate.core.tenants import Counter

POLL_S = 0.05  # what other workers settle is seen by asking

Order = tuple[int, float]  # rank of the priority, number of arrival
Standing = tuple[tuple[int, int], int]  # a counter's state when it last refused somebody, and that time in ms

_RANKS = {"high": 0, "normal": 1, None: 1, "low": 2}


def newcomer(priority: str | None) -> Order:
    """The order of a request that has not waited yet: behind all of its priority."""
    return _RANKS[priority], inf


class Place:
    """One request that waits. Times are seconds of the clock; poll_s: how long it may be until it looks again, once it is the first."""

    __slots__ = ("awake", "deadline", "line", "order", "poll_s", "refusal", "since")

    def __init__(self, order: Order, since: float, deadline: float) -> None:
        self.order = order
        self.since = since
        self.deadline = deadline
        self.poll_s = POLL_S
        self.line: Line | None = None
        self.refusal: Refusal | None = None  # the last
        self.awake = asyncio.Event()


class Line:
    """Those who wait for one counter, the first first."""

    __slots__ = ("key", "places", "standing")

    def __init__(self, key: str, standing: Standing) -> None:
        self.key = key
        self.places: list[Place] = []
        self.standing = standing


class Waiting:
    """The lines of one worker, by the counter's key_prefix."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.lines: dict[str, Line] = {}
        self._clock = clock
        self._numbers = itertools.count()

    @property
    def depth(self) -> int:
        """How many wait, in all lines."""
        return sum(len(line.places) for line in self.lines.values())

    def ahead(self, counters: Sequence[Counter], amounts: Sequence[int], order: Order) -> int:
        """Which counter somebody else must be served at first, of those that a request claims something of: an index; -1: none."""
        for i, counter in enumerate(counters):
            line = self.lines.get(counter.key_prefix)
            if line is not None and line.places[0].order < order and (amounts[2 * i] or amounts[2 * i + 1]):
                return i
        return -1

    def enter(self, priority: str | None, wait_s: float) -> Place:
        """A place for a request that comes now, in no line yet."""
        now = self._clock()
        return Place((_RANKS[priority], next(self._numbers)), now, now + wait_s)

    def stand(self, place: Place, counter: Counter, max_depth: int, standing: Standing | None = None) -> bool:
        """Puts a place into a counter's line, out of the one that it stood in. False: the line is full, and the place is where it was.

        standing: what the counter has just refused with; where there is none, the line exists.
        """
        key = counter.key_prefix
        line = self.lines.get(key)
        if line is None:
            assert standing is not None
            line = Line(key, standing)
        elif standing is not None:
            line.standing = standing
        if place.line is line:
            return True
        if len(line.places) >= max_depth:
            return False
        self.leave(place)
        self.lines[key] = place.line = line
        insort(line.places, place, key=lambda one: one.order)
        return True

    def leave(self, place: Place) -> None:
        """Takes a place out of its line; whoever comes to the front is woken."""
        line, place.line = place.line, None
        if line is None:
            return
        was_first = line.places[0] is place
        line.places.remove(place)
        if not line.places:
            del self.lines[line.key]
        elif was_first:
            line.places[0].awake.set()

    def gone(self, place: Place) -> None:
        """The client has left."""
        self.leave(place)
        place.awake.set()

    def stir(self, counters: Sequence[Counter]) -> None:
        """Something of these counters has been settled: the first who waits for one of them asks again."""
        for counter in counters:
            line = self.lines.get(counter.key_prefix)
            if line is not None:
                line.places[0].awake.set()

    def dissolve(self, place: Place) -> None:
        """The ledger is away: all who stand in this place's line ask for themselves."""
        if place.line is not None:
            for one in list(place.line.places):
                self.gone(one)

    def left_s(self, place: Place) -> float:
        """How long it may still wait."""
        return place.deadline - self._clock()

    async def turn(self, place: Place) -> None:
        """Until it is worth looking again: it has come to the front or is there and something has changed, or the time is over."""
        first = place.line is not None and place.line.places[0] is place
        try:
            async with asyncio.timeout(min(self.left_s(place), place.poll_s if first else inf)):
                await place.awake.wait()
        except TimeoutError:
            pass
        place.awake.clear()
