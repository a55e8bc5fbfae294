"""Everything of one worker that tells what has happened: the audit log, events on the bus, webhooks, and what finds things worth telling."""

import asyncio
from collections.abc import Callable
from typing import Any

from sluicegate.alarms import Alarms, Later
from sluicegate.auditing import Auditing
from sluicegate.core.tenants import Policy
from sluicegate.observe.metrics import Metrics
from sluicegate.records.audit import Audit
from sluicegate.webhooks import Webhooks

CLOSE_S = 1.0  # for what is still to be written


class Announcements:
    """What is made of what."""

    def __init__(
        self,
        records: str,
        policy: Policy,
        publish: Callable[[str, dict[str, Any]], None],
        metrics: Metrics,
        worker: str,
        now_ms: Callable[[], int],
        later: Later,
    ) -> None:
        """records: the database's URL. publish: on the bus. now_ms: the ledger's clock. later: calls something after so many seconds."""
        store = Audit(records)
        self._webhooks = Webhooks(store, now_ms, metrics.webhook)
        self._webhooks.apply(policy.webhooks)
        self.auditing = Auditing(store, publish, metrics.event, self._webhooks.of, now_ms)
        self.auditing.on_queued = self._webhooks.soon
        self.alarms = Alarms(self.auditing, store, worker, now_ms, later)

    def apply(self, policy: Policy) -> None:
        """Another configuration is in use."""
        self._webhooks.apply(policy.webhooks)

    async def run(self) -> None:
        """Until cancelled."""
        await asyncio.gather(self.auditing.run(), self.alarms.run(), self._webhooks.run())

    async def close(self) -> None:
        """After `run` was cancelled."""
        await self._webhooks.close()
        await self.auditing.close(CLOSE_S)
