"""What is particular to the ledger in memory, and to the two that take an injected clock."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from sluicegate.core.claims import Admission
from sluicegate.ledger.contract import GENERATION_MS, Ledger
from sluicegate.ledger.memory import MemoryLedger
from sluicegate.ledger.sqlite import SqliteLedger
from support_ledgers import Clock, Desk, use


async def test_calls_take_effect_at_once() -> None:
    """Every future is resolved when it is returned."""
    desk = Desk(MemoryLedger(Clock()))
    await use(desk.ledger, "t")
    refs = desk.refs(desk.window(100))
    admitted = desk.ledger.admit(Admission("h", refs, (10, 0), 1, 1, 1, 1000, ""))
    assert isinstance(admitted, asyncio.Future)
    assert admitted.done()


async def test_what_has_expired_is_forgotten() -> None:
    """Counters, holds and the heap of expiries do not grow."""
    clock = Clock()
    ledger = MemoryLedger(clock)
    for tree in range(20):
        desk = Desk(ledger, f"tree{tree}")
        await use(ledger, desk.tree)
        refs = desk.refs(desk.bucket(100, per_ms=1), desk.concurrent(5), desk.window(100, "w", clock.now_ms, clock.now_ms + 1))
        await desk.admit(refs, 10, 0, 1, 0, 1, 0)
        for _ in range(10):
            await ledger.renew(desk.tree, ["h"], 60_000)
        await desk.settle(refs, 5, 1, 1)
    clock.now_ms += 3_700_000
    await ledger.sweep(64)
    book = ledger._book
    assert book.counters == {}
    assert set(map(len, book.holds.values())) == set(map(len, book._expiries.values())) == {0}
    assert set(map(len, book.indexes.values())) == {1}


@pytest.mark.parametrize("make", [lambda clock, path: MemoryLedger(clock), lambda clock, path: SqliteLedger(str(path), clock_ms=clock)])
async def test_learned_tables_live_for_two_generations(tmp_path: Path, make: Callable[[Clock, Path], Ledger]) -> None:
    """Ten minutes each; a sum covers the present one and the one before."""
    clock = Clock()
    ledger = make(clock, tmp_path / "ledger.db")
    await ledger.open()
    await ledger.learned({"t": {"a": 1}})
    clock.now_ms += GENERATION_MS
    assert await ledger.learned({"t": {"a": 10}}) == {"t": {"a": 11}}
    clock.now_ms += GENERATION_MS
    assert await ledger.learned({"t": {}}) == {"t": {"a": 10}}
    clock.now_ms += GENERATION_MS
    assert await ledger.learned({"t": {}}) == {"t": {}}
    await ledger.close()
