"""Records that a test can take away, for what writes to them."""

import asyncio

from sluicegate.records.rows import RecordsUnavailable, UsageRow


class FakeRecords:
    """Batches as they came; away when the test says so, before or after it has taken what it was given."""

    def __init__(self) -> None:
        self.rows: list[UsageRow] = []
        self.uptos: dict[str, int] = {}
        self.seeded: dict[str, int] = {}  # how far each writer was at the last seeding
        self.batches: list[tuple[str, int, list[UsageRow]]] = []
        self.away = self.after = False

    async def add(self, writer: str, upto: int, rows: list[UsageRow]) -> None:
        self.batches.append((writer, upto, rows))
        if (not self.away or self.after) and self.uptos.get(writer, 0) < upto:
            self.uptos[writer] = upto
            self.rows += rows
        await self.check()

    async def check(self) -> None:
        away = self.away
        await asyncio.sleep(0)
        if away:
            raise RecordsUnavailable("away")

    async def written(self, writer: str) -> int:
        await self.check()
        return self.uptos.get(writer, 0)

    async def included(self, tree: str, writer: str, seq: int) -> bool:
        await self.check()
        return self.seeded.get(writer, 0) >= seq

    async def forget(self, writer: str) -> None:
        await self.check()
        self.uptos.pop(writer, None)

    def total(self) -> int:
        return sum(row.input_tokens + row.output_tokens for row in self.rows)
