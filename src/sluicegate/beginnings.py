"""What a new limit's window begins with: what was used in it before there was any (ledger.md 3, "Counters and windows").

`fill` makes the windows that a tree lacks, when a worker begins to use it. A limit that comes with a reload begins likewise, and is looked at again
for a while (`follow`, `again`): requests that were under way when it came, here or in a worker that did not know of it yet, do not count on it, and
reach the records when they end. What the records have has been used, so a window may be raised to that at any time, and as often as one likes.

How it fails: trees whose server does not answer are left out of what is returned; RecordsUnavailable is raised. Both are asked again.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence

from sluicegate import seeding
from sluicegate.core.claims import Seed
from sluicegate.core.tenants import Counter
from sluicegate.ledger.contract import Ledger, LedgerUnavailable
from sluicegate.records.store import Records

FOLLOWED_S = 1_800.0  # after which no request is under way that began without the limit
FIRST_AGAIN_S, LAST_AGAIN_S = 1.0, 4.0  # between two looks: doubled with each

Counters = Mapping[str, Iterable[Counter]]  # by tree


class Beginnings:
    """Of one worker."""

    def __init__(self, ledger: Ledger, records: Records, clock: Callable[[], float]) -> None:
        self._ledger = ledger
        self._records = records
        self._clock = clock
        self._followed: dict[str, dict[str, Counter]] = {}  # by tree and key_prefix
        self._until = self._next = self._pause_s = 0.0

    async def fill(self, counters: Counters, missing_only: bool) -> set[str]:
        """Brings windows up to what was used in them. Returns the trees of which that is true now. missing_only: those that are there stay so."""
        filled: set[str] = set()
        unsure: list[tuple[str, seeding.Question]] = []
        now_ms = self._ledger.now_ms()
        for tree, some in counters.items():
            asked = seeding.windows(seeding.questions(some, now_ms))
            with contextlib.suppress(LedgerUnavailable):
                states = (await self._ledger.peek(seeding.refset(tree, asked))).states if missing_only else [(0, 0)] * len(asked)
                unsure += [(tree, question) for question, state in zip(asked, states, strict=True) if state == (0, 0)]
                filled.add(tree)
        answers = await self._records.sums([question.sum for _, question in unsure]) if unsure else []
        seeds: dict[str, list[Seed]] = {}
        for (tree, question), answer in zip(unsure, answers, strict=True):
            if isinstance(answer, int) and answer:
                seeds.setdefault(tree, []).append(Seed(question.ref, answer))
        for tree, found in seeds.items():
            filled.discard(tree)
            with contextlib.suppress(LedgerUnavailable):
                await self._ledger.fill(tree, found)
                filled.add(tree)
        return filled

    def follow(self, counters: Counters) -> None:
        """These are new: they are looked at again, for as long as there may be requests that began without them."""
        for tree, some in counters.items():
            self._followed.setdefault(tree, {}).update({counter.key_prefix: counter for counter in some})
        now, self._pause_s = self._clock(), FIRST_AGAIN_S
        self._until, self._next = now + FOLLOWED_S, now + FIRST_AGAIN_S

    async def again(self) -> None:
        """Looks again at what is followed, when it is time to. Raises RecordsUnavailable."""
        now = self._clock()
        if not self._followed or now < self._next:
            return
        self._pause_s = min(2 * self._pause_s, LAST_AGAIN_S)
        self._next = now + self._pause_s
        await self.fill({tree: counters.values() for tree, counters in self._followed.items() if tree in self._ledger.trees}, missing_only=False)
        if now >= self._until:
            self._followed.clear()


async def nothing_first() -> None:
    """Of a worker that has to know nothing before it uses trees."""


async def no_keys(_tree: str) -> Sequence[Counter]:
    """Of a worker without a directory."""
    return ()
