"""What the routers of the admin API may use of a worker. They reach nothing else."""

from collections.abc import Callable
from dataclasses import dataclass

from sluicegate.admin.access import Access
from sluicegate.chaos import Chaos
from sluicegate.config.load import Loaded
from sluicegate.gateway import Gateway
from sluicegate.ledger.contract import Ledger
from sluicegate.probes import Probes
from sluicegate.recovery import Recovery
from sluicegate.reloading import Reloading


@dataclass(frozen=True, slots=True)
class Services:
    """Of one worker. What changes by itself (the configuration in force, states) is asked for."""

    access: Access
    worker: str  # its id
    gateway: Gateway
    ledger: Ledger
    recovery: Recovery
    chaos: Chaos | None  # None: `admin.chaos` is off
    probes: Probes
    loaded: Callable[[], Loaded]
    reloading: Reloading
    states: Callable[[], dict[str, str]]  # of the ledger, the records, the bus, ...: "up", or what else
    why_not_ready: Callable[[], str]  # "": it is
    clock: Callable[[], float]
    time_ms: Callable[[], int]

    def deployments(self) -> dict[str, list[str]]:
        """The models that lead to each deployment, by its id."""
        found: dict[str, list[str]] = {}
        for model in self.gateway.policy.models.values():
            for one in model.deployments:
                found.setdefault(one.id, []).append(model.name)
        return found
