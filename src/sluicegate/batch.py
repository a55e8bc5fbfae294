"""What a batch for the records is made of: lines of a journal, and the sums of what they were charged, which are made when it is sent."""

from collections.abc import Iterable

from sluicegate.journal import Entry
from sluicegate.records.requests import Line
from sluicegate.records.rows import UsageRow


def sums(lines: Iterable[Line]) -> list[UsageRow]:
    """What lines spent, by second of admission, key, model and deployment."""
    found: dict[tuple[str, int, str, str, str], list[int]] = {}
    for tree, _, _, spent in lines:
        if spent is None:
            continue
        place = (tree, spent.admitted_ms // 1000, spent.key_id, spent.model, spent.deployment)
        into = found.get(place)
        if into is None:
            found[place] = [spent.requests, spent.attempts, spent.input_tokens, spent.output_tokens, spent.cost_nano_usd]
        else:
            into[0] += spent.requests
            into[1] += spent.attempts
            into[2] += spent.input_tokens
            into[3] += spent.output_tokens
            into[4] += spent.cost_nano_usd
    return [UsageRow(*place, *amounts) for place, amounts in found.items()]


def told(entries: Iterable[Entry]) -> list[Line]:
    """What lines that were read back tell the records."""
    return [(entry.tree, entry.hold_id, entry.record, entry.spent) for entry in entries if entry.spent is not None or entry.record is not None]
