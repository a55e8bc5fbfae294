"""What a worker does beside serving: renews its holds, charges those that nobody settled, exchanges what was learned, watches the ledger.

None of it is on a request's path. Each loop survives a ledger that is away and says so once per change of state. Work that asked the ledger nothing
says nothing about it: each kind of work answers whether it asked.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Awaitable, Callable

import structlog

from sluicegate.core.claims import RefSet, Swept
from sluicegate.core.estimate import Learned
from sluicegate.gateway import Gateway
from sluicegate.ledger.contract import Ledger, LedgerRecovering, LedgerUnavailable
from sluicegate.observe.log import StateLog

RENEW_AT_ONCE = 256
SWEEP_S, SWEEP_AT_ONCE = 2.0, 64
LEARN_S = 1.0
LAG_S = 0.1

log = structlog.get_logger("upkeep")


class Upkeep:
    """The background work of one worker. `seen_at` is when the ledger last answered (by `clock`).

    `charged`: the counters, by whose they are, of holds that a sweep has charged; they are looked at for warning marks.
    """

    def __init__(
        self,
        gateway: Gateway,
        ledger: Ledger,
        learned: Learned,
        hold_ttl_ms: int,
        on_swept: Callable[[Swept], None],
        on_marks: Callable[[RefSet, tuple[tuple[int, int], ...]], object],
        on_answer: Callable[[str, int], None],
        on_lag: Callable[[int], None],
        clock: Callable[[], float],
    ) -> None:
        """In microseconds: on_answer, what the ledger was asked (renew, sweep, learn) and how long it took; on_lag, by how much a timer was late."""
        self.seen_at = clock()
        self.charged: dict[str, RefSet] = {}
        self._gateway = gateway
        self._ledger = ledger
        self._learned = learned
        self._hold_ttl_ms = hold_ttl_ms
        self._ttl_changed = asyncio.Event()
        self._on_swept = on_swept
        self._on_marks = on_marks
        self._on_answer = on_answer
        self._on_lag = on_lag
        self._clock = clock
        self._failing: set[str] = set()  # kinds of work
        self._state = StateLog("ledger", "up", good=frozenset({"up"}))

    def hold_for(self, ttl_ms: int) -> None:
        """Holds last so long without a renewal from now on; if that is another time than before, all are renewed at once."""
        if ttl_ms != self._hold_ttl_ms:
            self._hold_ttl_ms = ttl_ms
            self._ttl_changed.set()

    @property
    def state(self) -> str:
        """Of the ledger: up or away."""
        return self._state.state

    async def run(self) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._renewals())
            tasks.create_task(self._every(SWEEP_S, self.sweep))
            tasks.create_task(self._every(LEARN_S, self.learn))
            tasks.create_task(self._watch_loop())

    async def renew(self) -> bool:
        """Nothing expires under a live worker."""
        open_holds: dict[str, list[str]] = defaultdict(list)
        for trip in self._gateway.trips:
            for tree, hold_id in trip.open_holds():
                open_holds[tree].append(hold_id)
        known = {tree: ids for tree, ids in open_holds.items() if tree in self._ledger.trees}
        calls = [
            self._ledger.renew(tree, ids[start : start + RENEW_AT_ONCE], self._hold_ttl_ms)
            for tree, ids in known.items()
            for start in range(0, len(ids), RENEW_AT_ONCE)
        ]
        for error in await asyncio.gather(*calls, return_exceptions=True):  # at once: a server that is away keeps nobody waiting for another
            if error is not None and not isinstance(error, LedgerRecovering):
                raise error
        return bool(known)

    async def sweep(self) -> bool:
        """Charges holds that nobody settled: their worker died."""
        for swept in await self._ledger.sweep(SWEEP_AT_ONCE):
            self._on_swept(swept)
        while self.charged:
            whose, refs = next(iter(self.charged.items()))
            marks = await self._ledger.warn(refs) if refs.tree in self._ledger.trees else ()
            if marks:
                self._on_marks(refs, marks)
            del self.charged[whose]
        return bool(self._ledger.trees)

    async def learn(self) -> bool:
        """Adds what this worker learned to what all have, and takes the sums."""
        increments = self._learned.increments()
        try:
            sums = await self._ledger.learned(increments)
        except LedgerUnavailable:
            self._learned.keep(increments)
            raise
        self._learned.absorb(sums)
        return True

    async def _watch_loop(self) -> None:
        while True:
            due = self._clock() + LAG_S
            await asyncio.sleep(LAG_S)
            self._on_lag(max(0, int((self._clock() - due) * 1e6)))

    async def _renewals(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._hold_ttl_ms / 3000):
                    await self._ttl_changed.wait()
            self._ttl_changed.clear()
            await self._do(self.renew)

    async def _every(self, period_s: float, work: Callable[[], Awaitable[bool]]) -> None:
        while True:
            await asyncio.sleep(period_s)
            await self._do(work)

    async def _do(self, work: Callable[[], Awaitable[bool]]) -> None:
        started = self._clock()
        try:
            asked = await work()
        except LedgerRecovering:
            return
        except LedgerUnavailable as error:
            self._change(work.__name__, away=True, why=str(error))
        except Exception:
            log.exception("background work failed", work=work.__name__)
        else:
            if asked:
                self.seen_at = self._clock()
                self._on_answer(work.__name__, int((self.seen_at - started) * 1e6))
                self._change(work.__name__, away=False)

    def _change(self, work: str, away: bool, why: str = "") -> None:
        """The ledger is up when every kind of work gets its answers: they may come from servers of their own."""
        (self._failing.add if away else self._failing.discard)(work)
        self._state("away" if self._failing else "up", reason=why)
