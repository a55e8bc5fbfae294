"""Short ways to write usage and questions about it, and work on records for processes of their own."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from sluicegate.core.limits import Unit
from sluicegate.records.rows import Sum, UsageRow
from sluicegate.records.store import Records

SECOND = 1_800_000_000  # a full quarter of an hour


@contextlib.asynccontextmanager
async def opened(url: str, timeout_s: float = 20.0) -> AsyncIterator[Records]:
    """Patient by default: the machine may be busy."""
    records = Records(url, timeout_s)
    try:
        await records.open()
        yield records
    finally:
        await records.close()


def used(
    time_s: int = SECOND,
    key_id: str = "acme/team/@lab",
    *,
    tree: str = "acme",
    model: str = "chat",
    deployment: str = "up/small",
    requests: int = 1,
    attempts: int = 1,
    tokens: tuple[int, int] = (10, 20),
    cost: int = 5,
) -> UsageRow:
    return UsageRow(tree, time_s, key_id, model, deployment, requests, attempts, *tokens, cost)


def asked(
    scope_id: str = "acme",
    unit: Unit = Unit.REQUESTS,
    start_s: int = 0,
    end_s: int = 0,
    *,
    slice_ms: int = 0,
    models: frozenset[str] | None = None,
    deployment: bool = False,
) -> Sum:
    return Sum(scope_id, deployment, models, unit, start_s * 1000, end_s * 1000, slice_ms)


def write_lines(work: tuple[str, str, int]) -> None:
    """For a process of its own: opens the records and adds `lines` requests as one writer, a line a call, each call twice."""
    url, writer, lines = work

    async def run() -> None:
        async with opened(url) as records:
            for line in range(1, lines + 1):
                rows = [used(SECOND + line % 7), used(SECOND + line % 5, "other/@k", tree="other")]
                await records.add(writer, line, rows)
                await records.add(writer, line, rows)

    asyncio.run(run())
