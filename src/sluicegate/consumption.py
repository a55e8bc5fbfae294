"""What a key has used today and this month, for whoever has the key; and the connections on which the records are asked rather than written.

They are apart from the one that writes, so that nobody's question holds up what was used on its way to the database; and clients' questions, which
are answered within ANSWER_S or not at all, are apart from administrators', which may take a while.

How it fails: it says why (`Unknown`). The limits of a key are the ledger's and are told all the same.
"""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from sluicegate.core.refusals import iso
from sluicegate.core.windows import Calendar, span
from sluicegate.records.queries import Figures, Group, Question
from sluicegate.records.rows import RecordsUnavailable
from sluicegate.records.store import Records

ANSWER_S = 1.0
ADMINISTRATORS_S = 30.0
GROUPS_MAX = 100_000
BELOW_MAX = 1_000  # sub-keys of a key that are looked up one by one
_DAY, _MONTH = Calendar("day"), Calendar("month")


class Unknown(Exception):
    """What was used cannot be told now; its text says why."""


class ModelUse(msgspec.Struct, frozen=True):
    """Of one model. requests: those that were refused and those that failed too."""

    model: str
    requests: int
    input_tokens: int
    output_tokens: int
    cost_usd: float


class Use(msgspec.Struct, frozen=True):
    """Since a moment, in all and by model."""

    since: str
    requests: int
    input_tokens: int
    output_tokens: int
    cost_usd: float
    models: list[ModelUse]


class Consumption(msgspec.Struct, frozen=True):
    """Of one key and all below it, in days and months of UTC. What came in the last second may not be there yet."""

    today: Use
    month: Use


class Asking:
    """Of one worker."""

    def __init__(self, url: str, time_ms: Callable[[], int], below: Callable[[str, int], Awaitable[list[str]]]) -> None:
        """url: of the records. below: a key's sub-keys, so many at most."""
        self.records = Records(url, ADMINISTRATORS_S)
        self._brief = Records(url, ANSWER_S)
        self._time_ms = time_ms
        self._below = below

    async def of_key(self, key_id: str) -> Consumption:
        """Raises Unknown, after ANSWER_S at most."""
        now_ms = self._time_ms()
        today, month = span(_DAY, now_ms), span(_MONTH, now_ms)
        try:
            async with asyncio.timeout(ANSWER_S):
                below = await self._below(key_id, BELOW_MAX + 1)
                filters = {"key": [key_id, *below]} if len(below) <= BELOW_MAX else {"scope": [key_id]}
                question = Question(("day", "model"), filters, month.start_ms, today.end_ms)
                found = (await self._brief.usage(question, GROUPS_MAX)).groups
        except (RecordsUnavailable, TimeoutError):
            raise Unknown("the records do not answer") from None
        return Consumption(_use(today.start_ms, [group for group in found if group.group["day"] == today.label]), _use(month.start_ms, found))

    async def close(self) -> None:
        for records in (self.records, self._brief):
            await records.close()


def _use(since_ms: int, groups: list[Group]) -> Use:
    models: dict[str, list[Figures]] = {}
    for group in groups:
        models.setdefault(group.group["model"], []).append(group.figures)
    everything = [group.figures for group in groups]
    return Use(iso(since_ms), *_sums(everything), [ModelUse(model, *_sums(models[model])) for model in sorted(models)])


def _sums(of: list[Figures]) -> tuple[int, int, int, float]:
    cost_nano_usd = sum(each.cost_nano_usd for each in of)
    return sum(each.requests for each in of), sum(each.input_tokens for each in of), sum(each.output_tokens for each in of), cost_nano_usd / 1e9
