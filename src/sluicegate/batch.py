"""What a batch for the records is made of: lines of a journal, and the sums of what they were charged."""

from collections.abc import Iterable

from sluicegate.core.record import Spent
from sluicegate.journal import Entry
from sluicegate.records.requests import Line
from sluicegate.records.rows import UsageRow


class Usage:
    """Sums of what was spent, by second of admission, key, model and deployment."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, int, str, str, str], list[int]] = {}

    def add(self, tree: str, spent: Spent) -> None:
        """Adds what one settlement spent."""
        key = (tree, spent.admitted_ms // 1000, spent.key_id, spent.model, spent.deployment)
        sums = self._sums.get(key)
        if sums is None:
            self._sums[key] = [spent.requests, spent.attempts, spent.input_tokens, spent.output_tokens, spent.cost_nano_usd]
        else:
            sums[0] += spent.requests
            sums[1] += spent.attempts
            sums[2] += spent.input_tokens
            sums[3] += spent.output_tokens
            sums[4] += spent.cost_nano_usd

    def rows(self) -> list[UsageRow]:
        """As the records take them."""
        return [UsageRow(*key, *sums) for key, sums in self._sums.items()]


def told(entries: Iterable[Entry]) -> tuple[list[UsageRow], list[Line]]:
    """What lines that were read back tell the records."""
    usage, lines = Usage(), []
    for entry in entries:
        if entry.spent is not None:
            usage.add(entry.tree, entry.spent)
        if entry.spent is not None or entry.record is not None:
            lines.append((entry.tree, entry.hold_id, entry.record, entry.spent))
    return usage.rows(), lines
