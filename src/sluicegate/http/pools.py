"""The pools of one worker: one for each provider, kept as long as where the provider is stays the same.

A provider that is left out by a reload, or is somewhere else from then on, has its pool drained: what is under way there goes on to its end, and so
does what a request that began before still asks of it; its connections are closed as they become free.
"""

import asyncio
from collections.abc import Iterable, Iterator

from sluicegate.core.tenants import Provider
from sluicegate.http.upstream import Pool


class Pools:
    """Pools by provider."""

    def __init__(self, providers: Iterable[Provider]) -> None:
        self._of: dict[str, tuple[Provider, Pool]] = {}  # by the provider's name
        self._drained: list[tuple[Provider, Pool]] = []
        self.apply(providers)

    def of(self, provider: Provider) -> Pool:
        """Where the calls of a provider go, perhaps of one that was replaced meanwhile."""
        entry = self._of.get(provider.name)
        return entry[1] if entry is not None and entry[0] is provider else self._other(provider)

    def _other(self, provider: Provider) -> Pool:
        for known, pool in (*self._of.values(), *self._drained):
            if _same_place(known, provider):
                return pool
        pool = _pool(provider)
        pool.drain()
        self._drained.append((provider, pool))
        return pool

    def apply(self, providers: Iterable[Provider]) -> None:
        """These are the providers from now on. Raises ValueError, and changes nothing, where one of them cannot be called."""
        found: dict[str, tuple[Provider, Pool]] = {}
        for provider in providers:
            known, pool = self._of.get(provider.name, (None, None))
            stays = known is not None and pool is not None and _same_place(known, provider)
            found[provider.name] = provider, pool if stays and pool is not None else _pool(provider)
        kept = {id(pool) for _, pool in found.values()}
        left = [(provider, pool) for provider, pool in self._of.values() if id(pool) not in kept]
        for _, pool in left:
            pool.drain()
        self._drained = [(provider, pool) for provider, pool in self._drained if pool.busy] + left
        self._of = found

    def values(self) -> Iterator[Pool]:
        """All of them, those that are being drained too."""
        for _, pool in (*self._of.values(), *self._drained):
            yield pool

    async def close(self) -> None:
        """Closes every connection."""
        await asyncio.gather(*(pool.close() for pool in self.values()))


def _same_place(one: Provider, other: Provider) -> bool:
    return one is other or (one.name, one.base_url, one.ca_file, one.proxy) == (other.name, other.base_url, other.ca_file, other.proxy)


def _pool(provider: Provider) -> Pool:
    try:
        return Pool(provider.base_url, ca_file=provider.ca_file, proxy=provider.proxy)
    except OSError as error:
        raise ValueError(f"providers.{provider.name}.ca_file: {error}") from None
