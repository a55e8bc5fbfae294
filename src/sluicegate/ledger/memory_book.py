"""Counters and holds in dicts: what the rules run on in memory.py, and on a copy of a few counters in planning.py."""

import heapq
from typing import Literal

from sluicegate.core.book import Counter as State
from sluicegate.core.book import Hold
from sluicegate.core.claims import Kind
from sluicegate.ledger.trees import prefix


class MemoryBook:
    """Counters and holds in dicts."""

    def __init__(self, expired_state: Literal["expired_held", "expired_seen"]) -> None:
        self.now_ms = 0
        self.expired_state = expired_state
        self.counters: dict[str, tuple[Kind, State, int]] = {}  # kind, state, expiry (0: never)
        self.holds: dict[str, dict[str, tuple[Hold, int]]] = {}  # by tree, then id: record, expiry
        self.whole: set[str] = set()  # trees whose records are all there
        self.indexes: dict[str, dict[str, int]] = {}  # by tree: windows by key, with their expiry; "" is always in one that is whole
        self.epochs: dict[str, dict[str, int]] = {}  # by tree, then epoch: sequence
        self._expiries: dict[str, list[tuple[int, str]]] = {}  # by tree: a heap; an entry that its hold no longer agrees with is stale

    def counter(self, key: str) -> State | None:
        entry = self.counters.get(key)
        if entry is None or 0 < entry[2] <= self.now_ms:
            return None
        return entry[1]

    def put_counter(self, key: str, kind: Kind, counter: State, expires_ms: int | None) -> None:
        self.counters[key] = (kind, counter, self.counters[key][2] if expires_ms is None else expires_ms)

    def hold(self, tree: str, hold_id: str) -> Hold | None:
        entry = self.holds.get(tree, {}).get(hold_id)
        return entry[0] if entry else None

    def put_hold(self, tree: str, hold_id: str, hold: Hold, expires_ms: int) -> None:
        self.holds.setdefault(tree, {})[hold_id] = (hold, expires_ms)
        heapq.heappush(self._expiries.setdefault(tree, []), (expires_ms, hold_id))

    def drop_hold(self, tree: str, hold_id: str) -> None:
        self.holds[tree].pop(hold_id, None)

    def due(self, tree: str, limit: int) -> list[str]:
        heap, holds = self._expiries.get(tree, []), self.holds.get(tree, {})
        found: list[str] = []
        while heap and heap[0][0] <= self.now_ms and len(found) < limit:
            expires_ms, hold_id = heapq.heappop(heap)
            if hold_id in holds and holds[hold_id][1] == expires_ms and hold_id not in found:
                found.append(hold_id)
        for hold_id in found:  # they stay due until the caller puts or drops them
            heapq.heappush(heap, (holds[hold_id][1], hold_id))
        return found

    def sequence(self, tree: str, epoch: str) -> int:
        epochs = self.epochs.get(tree)
        return epochs.get(epoch, 0) if epochs else 0

    def put_sequence(self, tree: str, epoch: str, seq: int) -> None:
        if seq:
            self.epochs.setdefault(tree, {})[epoch] = seq
        else:
            self.epochs.get(tree, {}).pop(epoch, None)

    def index(self, tree: str, key: str, expires_ms: int) -> None:
        self.indexes.setdefault(tree, {})[key] = expires_ms

    def expected(self, tree: str, key: str) -> bool:
        """A tree that no epoch was ever begun for keeps no index: rules may run on a book filled by hand."""
        if tree not in self.epochs:
            return False
        index = self.indexes.get(tree, {})
        return "" not in index or (key in index and not 0 < index[key] <= self.now_ms)

    def trim(self, tree: str) -> None:
        if tree in self.indexes:
            self.indexes[tree] = {key: expires_ms for key, expires_ms in self.indexes[tree].items() if not 0 < expires_ms <= self.now_ms}

    def holds_lost(self, tree: str) -> bool:
        return tree in self.epochs and tree not in self.whole

    def clear(self, tree: str) -> None:
        self.counters = {key: entry for key, entry in self.counters.items() if not key.startswith(prefix(tree))}
        self.holds[tree], self._expiries[tree], self.indexes[tree], self.epochs[tree] = {}, [], {"": 0}, {}
        self.whole.add(tree)

    def forget(self) -> None:
        """Frees what has expired, and heap entries that no hold agrees with."""
        self.counters = {key: entry for key, entry in self.counters.items() if not 0 < entry[2] <= self.now_ms}
        self._expiries = {tree: sorted((expires_ms, hold_id) for hold_id, (_, expires_ms) in holds.items()) for tree, holds in self.holds.items()}
