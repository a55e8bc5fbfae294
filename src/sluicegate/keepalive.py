"""Signs of life for clients that wait for the first output of a stream (`resilience.keep_alive`; off by default).

Some clients, and proxies before them, give up a connection on which nothing comes for long, as before the first token of a model that thinks.
While a streaming request waits, for a limit, an upstream, a pause before a retry, each `keep_alive` a comment goes out (a `ping` where the client's
dialect has one). The first one commits the status 200, so a request that fails after it ends with an error event. That another deployment answers
stays possible until the first output.

One look at all requests of the worker now and then, so no request has a timer, and none of this runs on the path of a request.
"""

import asyncio
from collections.abc import Callable, Collection

import structlog

from sluicegate import answers
from sluicegate.core.tenants import Policy
from sluicegate.trip import Trip

LOOKS = 8  # between two signs of life: one comes late by less than an eighth
OFF_S = 1.0  # between two looks at whether it is on

log = structlog.get_logger("gateway")


class KeepAlive:
    """Of one worker."""

    def __init__(self, trips: Collection[Trip], policy: Callable[[], Policy], clock: Callable[[], float]) -> None:
        """trips: in flight. policy: the one now."""
        self._trips = trips
        self._policy = policy
        self._clock = clock
        self._told: dict[Trip, float] = {}  # when those who wait were last told

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            every_s = self._policy().resilience.keep_alive_ms / 1000
            await asyncio.sleep(every_s / LOOKS if every_s else OFF_S)
            try:
                if every_s:
                    self.look(every_s)
            except Exception:
                log.exception("background work failed", work="keep-alive")

    def look(self, every_s: float) -> None:
        """A sign of life to each client that has waited for so long since its request, or since the last one."""
        now, told = self._clock(), {}
        for trip in list(self._trips):
            if trip.request is None or not trip.request.stream or trip.plan is None or trip.answered is not None or trip.exchange.gone:
                continue
            last = self._told.get(trip, trip.exchange.arrived)
            if now - last >= every_s:
                answers.keep_alive(trip)
                last = now
            told[trip] = last
        self._told = told
