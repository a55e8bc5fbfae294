"""Holds that nobody settled: what is written for them, and what is corrected where one was settled after all.

A worker that died with requests in flight leaves holds that expire. Whoever sweeps such a hold charges it in the ledger (upkeep.py) and tells this
worker here, which writes the request's record and its usage: what its own worker could not.
"""

from collections.abc import Callable

import structlog

from sluicegate.core import expired
from sluicegate.core.claims import RefSet, Swept
from sluicegate.core.counters import deployment_tree, refs
from sluicegate.core.record import Record, Spent
from sluicegate.core.tenants import Policy
from sluicegate.outbox import Outbox
from sluicegate.records.figures import EXPIRED

log = structlog.get_logger("expiries")


class Expiries:
    """Of one worker."""

    def __init__(
        self, policy: Callable[[], Policy], now_ms: Callable[[], int], observe: Callable[[Record], None], outbox: Callable[[], Outbox]
    ) -> None:
        """now_ms: the ledger's clock. outbox: where what was used is written; asked for when there is something."""
        self.charged: dict[str, RefSet] = {}  # by whose they are, the counters that were charged: to be looked at for warning marks
        self.tree_of: Callable[[str], str] = lambda key_id: key_id.partition("/")[0]  # of a key that is not the policy's
        self._policy = policy
        self._now_ms = now_ms
        self._observe = observe
        self._outbox = outbox

    def swept(self, swept: Swept) -> None:
        """A hold that nobody settled: its request gets the record and the usage that its worker could not write."""
        policy, now_ms = self._policy(), self._now_ms()
        log.warning("hold expired and was charged", hold_id=swept.hold_id, tag=swept.tag, output_tokens=swept.g, seen=swept.seen)
        found = expired.read(swept, policy.budget.expired_hold == "charge_seen", now_ms)
        record = Record(
            found.request_id,
            now_ms,
            key_id=found.key_id,
            model=found.spent.model if found.spent is not None else "",
            deployment=found.deployment,
            error=EXPIRED,
            source="held",
            held=swept.g,
        )
        self._observe(record)
        key = next((one for one in policy.keys.values() if one.id == found.key_id), None)
        if found.spent is not None:
            self._outbox().spend(key.tree if key is not None else self.tree_of(found.key_id), swept.hold_id, found.spent, record)
        if key is not None:
            self.charged[key.id] = refs(key.tree, key.counters, now_ms)
        for model in policy.models.values():
            for deployment in model.deployments:
                if deployment.id == found.deployment and deployment.counters:
                    self.charged[deployment.id] = refs(deployment_tree(deployment.id), deployment.counters, now_ms)

    def late(self, tree: str, spent: Spent, swept: Swept) -> None:
        """A hold that was charged at its expiry was settled after all: its usage is not to count twice."""
        corrected = expired.correction(swept, spent, self._policy().budget.expired_hold == "charge_seen")
        if corrected is not None:
            self._outbox().spend(tree, swept.hold_id, corrected)
