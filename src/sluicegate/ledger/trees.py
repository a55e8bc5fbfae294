"""The trees of which a worker trusts the state: what the ledgers have in common about epochs.

A tree that is not in `trees` is not used. Whoever finds that the state of one is lost takes it out and tells `on_doubt`, once per epoch; the recovery
verifies or seeds the state and puts the tree in again.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from sluicegate.core.claims import Swept
from sluicegate.ledger.contract import LedgerRecovering, TreeState


class Trees:
    """Base of the ledgers. `found`: holds that were swept by a call which came to nothing; the next sweep returns them."""

    def __init__(self) -> None:
        self.trees: dict[str, TreeState] = {}
        self.on_doubt: Callable[[str, str], None] = lambda tree, why: None
        self.found: list[Swept] = []

    def doubt(self, tree: str, epoch: str, why: str) -> LedgerRecovering:
        """Takes a tree out, unless it has got another epoch meanwhile; returns what its callers are told."""
        state = self.trees.get(tree)
        if state is not None and state.epoch == epoch:
            del self.trees[tree]
            self.on_doubt(tree, why)
        return LedgerRecovering(f"the state of {tree} is lost: {why}")

    async def claim(self, records: str, before: str, ttl_ms: int) -> str:
        """Nobody else can have it."""
        return records

    def take_found(self) -> list[Swept]:
        found, self.found = self.found, []
        return found


def recovering(tree: str) -> LedgerRecovering:
    """For a tree that is not used for now."""
    return LedgerRecovering(f"the state of {tree} is being recovered")


def failed(error: Exception) -> "asyncio.Future[Any]":
    """A call that comes to nothing; a caller that does not look makes no noise."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.set_exception(error)
    future.exception()
    return future


def prefix(tree: str) -> str:
    """What every storage key of a tree begins with."""
    return f"sg1:{{{tree}}}:"
