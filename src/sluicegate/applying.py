"""How another configuration, or another directory, comes into use in a running worker.

What takes time is done before (`apply`): vocabularies are loaded, pools made, trees opened, new limits filled. Then everything that decides about
requests is swapped in one synchronous step (`_use`): whatever comes now comes under this, and requests under way keep what they came under.
Only one is applied at a time.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

from sluicegate.auth import Credentials
from sluicegate.config.load import Loaded
from sluicegate.core import meter
from sluicegate.core.record import Record
from sluicegate.core.tenants import Counter, Deployment, Policy, Provider
from sluicegate.directory import Compiled, Directory
from sluicegate.gateway import Gateway
from sluicegate.http.pools import Pools
from sluicegate.observe.notices import Notices
from sluicegate.recovery import Recovery
from sluicegate.upkeep import Upkeep

TAKE_UP_S = 3.0  # for which a new configuration waits to have its limits ready


def deployments(policy: Policy) -> Iterator[Deployment]:
    """All deployments of all models."""
    for model in policy.models.values():
        yield from model.deployments


def providers(policy: Policy) -> Iterable[Provider]:
    """All providers that are called."""
    return {one.provider.name: one.provider for one in deployments(policy)}.values()


def tokenizers(policy: Policy) -> list[str]:
    """The vocabularies that are needed."""
    return sorted({one.tokenizer for one in deployments(policy) if one.tokenizer})


class Applying:
    """Of one worker. `loaded` is the configuration in use."""

    def __init__(
        self,
        loaded: Loaded,
        compiled: Compiled,
        directory: Directory,
        recovery: Recovery,
        gateway: Gateway,
        *,
        pools: Pools,
        notices: Notices,
        upkeep: Upkeep,
        trees: dict[str, tuple[Counter, ...]],
        observers: Callable[[Loaded], Sequence[Callable[[Record], None]]],
        on_applied: Callable[[Loaded, Loaded], None],
    ) -> None:
        """trees: those that `recovery` has. on_applied: told of the configuration before and of the one in use now."""
        self.loaded = loaded
        self._directory = directory
        self._recovery = recovery
        self._gateway = gateway
        self._pools = pools
        self._notices = notices
        self._upkeep = upkeep
        self._trees = trees
        self._observers = observers
        self._on_applied = on_applied
        self._one = asyncio.Lock()
        directory.begin = recovery.begin
        directory.on_change = self._forget
        directory.apply = self.again
        recovery.of_keys = directory.counters_of
        recovery.first = self._know_directory
        gateway.credentials = self._credentials(compiled)

    async def apply(self, loaded: Loaded) -> None:
        """Serves what comes from now on as this says.

        Raises ValueError, and has changed nothing, where it cannot be used: an authority's file that is not there, say.
        """
        async with self._one:
            for tokenizer in tokenizers(loaded.policy):
                await asyncio.to_thread(meter.load, tokenizer)
            self._pools.apply(providers(loaded.policy))
            compiled = await asyncio.to_thread(self._directory.compile, loaded)
            await self._recovery.take_up(compiled.trees, TAKE_UP_S)
            self._use(loaded, compiled)

    async def again(self) -> None:
        """The same configuration, with what has changed in the directory."""
        await self.apply(self.loaded)

    def _use(self, loaded: Loaded, compiled: Compiled) -> None:
        before, self.loaded = self.loaded, loaded
        self._directory.use(compiled)
        self._notices.know(itertools.chain.from_iterable(compiled.trees.values()))
        observers = self._observers(loaded) if loaded is not before else None
        self._gateway.apply(compiled.policy, self._credentials(compiled), observers, loaded.config.server.max_body)
        self._upkeep.hold_for(compiled.policy.budget.hold_ttl_ms)
        self._on_applied(before, loaded)

    async def _know_directory(self) -> None:
        """Before any tree is opened: what was made at run time binds, too."""
        if not self._directory.loaded:
            await self._directory.follow(self._use_at_once)

    async def _use_at_once(self) -> None:
        compiled = self._directory.compile(self.loaded)
        self._trees.update(compiled.trees)
        self._use(self.loaded, compiled)

    def _credentials(self, compiled: Compiled) -> Credentials:
        return Credentials(compiled.policy.keys, compiled.blocked_keys, self._directory.find, self._directory.time_ms)

    def _forget(self) -> None:
        self._gateway.credentials.forget()
