"""A store of idempotency keys for tests in one process: what the real ones do (tests/contract/test_once.py holds all of them to the same)."""

from collections.abc import Callable

from sluicegate.core.once import OTHER, RUNNING, TAKEN, Found, Kept, StoreUnavailable


class MemoryStore:
    """In memory, with a clock of the test's. `away`: it is not there."""

    def __init__(self, time_ms: Callable[[], int]) -> None:
        self.away = False
        self.keys: dict[str, tuple[str, str, int, Kept | None]] = {}  # print, owner, until, answer
        self.renewals = 0
        self._time_ms = time_ms

    async def take(self, name: str, print: str, owner: str, lease_ms: int) -> Found:
        found = self._found(name)
        if found is None or (found[1] == owner and found[3] is None):
            self.keys[name] = print, owner, self._time_ms() + lease_ms, None
            return TAKEN
        if found[0] != print:
            return OTHER
        return RUNNING if found[3] is None else Found("finished", found[3])

    async def renew(self, name: str, print: str, owner: str, lease_ms: int) -> None:
        self.renewals += 1
        await self.take(name, print, owner, lease_ms)

    async def keep(self, name: str, print: str, owner: str, answer: Kept, kept_ms: int) -> None:
        found = self._found(name)
        if found is None or found[1] == owner:
            self.keys[name] = print, owner, self._time_ms() + kept_ms, answer

    async def give_up(self, name: str, owner: str) -> None:
        found = self._found(name)
        if found is not None and found[1] == owner and found[3] is None:
            del self.keys[name]

    async def close(self) -> None: ...

    def _found(self, name: str) -> tuple[str, str, int, Kept | None] | None:
        if self.away:
            raise StoreUnavailable("away")
        found = self.keys.get(name)
        return found if found is not None and found[2] > self._time_ms() else None
