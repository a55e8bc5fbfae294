"""What an operator is told beside records: one count each, and a log line where it is rare.

Invariant: nothing here is on the path of a request that has nothing to tell.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import structlog

from sluicegate.core.claims import Ref, RefSet, Reply
from sluicegate.core.counters import Mark, label, marks, of_key
from sluicegate.core.limits import Unit, show_amount, show_share
from sluicegate.core.refusals import Refusal, iso
from sluicegate.core.tenants import Counter
from sluicegate.observe.metrics import Metrics

log = structlog.get_logger("notices")


class Notices:
    """One per worker."""

    def __init__(self, metrics: Metrics, counters: Iterable[Counter], peek: "Callable[[RefSet], asyncio.Future[Reply]]") -> None:
        """counters: all of the policy. peek: reads states from the ledger."""
        self._metrics = metrics
        self._peek = peek
        self._dear: set[str] = set()  # deployments
        self.on_mark: Callable[[Counter, Ref, Mark, int, int], None] = lambda counter, ref, mark, used, held: None
        self.refused: Callable[[Refusal, Any], None] = lambda refusal, trip: None  # by a limit; the trip's client is told so
        self.ruled: Callable[[Iterable[str], str], None] = lambda rules, key_id: None  # content rules have found something
        self.know(counters)

    def know(self, counters: Iterable[Counter]) -> None:
        """These are all counters from now on."""
        self._counters = {counter.key_prefix: counter for counter in counters}

    def shadow(self, counter: Counter) -> None:
        """A request was granted that a limit in mode shadow would have refused. Its record names the limit."""
        self._metrics.shadow_refusal(label(counter))

    def overrun(self, deployment: str) -> None:
        """An upstream billed more output than it showed."""
        log.warning("deployment is capped from now on: it bills more than it shows", deployment=deployment)
        self._metrics.overrun(deployment)

    def dear(self, deployment: str, charged_nano_usd: int, calculated_nano_usd: int) -> None:
        """A provider has reported a cost far above the deployment's price, and it was charged. Told once for each deployment."""
        if deployment not in self._dear:
            self._dear.add(deployment)
            charged, calculated = show_amount(Unit.USD, charged_nano_usd), show_amount(Unit.USD, calculated_nano_usd)
            log.warning("provider charges more than its price", deployment=deployment, charged=charged, calculated=calculated)

    def waited(self, outcome: str, waited_us: int) -> None:
        """A wait for a limit ended: served, refused, left (the client), failed (the ledger); or the line was full."""
        self._metrics.waited(outcome, waited_us)

    def on_marks(self, refs: RefSet, reached: tuple[tuple[int, int], ...]) -> None:
        """What is used of a limit has reached a mark: pairs of the counter's index and the mark's. Each is told once per window, by one worker."""
        peeked = self._peek(refs)

        def tell(done: "asyncio.Future[Reply]") -> None:
            known = not done.cancelled() and done.exception() is None
            for i, mark in reached:
                ref = refs.refs[i]
                at = ref.marks[mark]
                used, held = done.result().states[i] if known else (at, 0)
                counter = of_key(ref.key, self._counters) or (refs.of[i] if refs.of else None)  # a key's that was made at run time
                if counter is not None:
                    self._warn(counter, ref, at, max(at, used), held)

        peeked.add_done_callback(tell)

    def _warn(self, counter: Counter, ref: Ref, at: int, used: int, held: int) -> None:
        for mark in marks(counter):
            if mark.amount != at:
                continue  # of another amount, or of one that was changed meanwhile
            limit, unit = mark.limit, counter.unit
            log.warning(
                "limit warning",
                scope=counter.scope.id,
                limit=limit.text,
                percent=show_share(mark.share),
                used=show_amount(unit, used),
                amount=show_amount(unit, limit.amount),
                resets_at=iso(ref.end_ms) if ref.end_ms else None,
                **({"mode": "shadow"} if limit.shadow else {}),
            )
            self._metrics.limit_warning(label(counter))
            self.on_mark(counter, ref, mark, used, held)
