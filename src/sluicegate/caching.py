"""The exact-match cache on the path of a request: a request that was answered before gets that answer again, and nothing is called (docs/cache.md).

    answer   looks a request up, before anything is held for it; a hit holds and is charged one of the limits on requests, and nothing else
    keep     keeps a whole answer, once it has been settled and told; a stream has been put together as it went by (lookup.py)

What is kept is final and complete: what another client, with another budget, at another time would have got. An answer that a cap of the gateway's
has cut, a stream that broke off or was truncated, an answer that a filter ended, or without usage, is not.

How it fails: a store that is away knows nothing and keeps nothing (core/cache.py); requests are then served as without a cache.
"""

import asyncio
from collections.abc import Callable

from msgspec import Raw

from sluicegate.cache_memory import MemoryCache
from sluicegate.config.compile import in_redis
from sluicegate.config.schema import Config
from sluicegate.core import cache_key
from sluicegate.core.cache import Entry, Store
from sluicegate.core.claims import RefSet, Reply
from sluicegate.core.plan import CachePlan, Plan
from sluicegate.dialects.assembling import Unfaithful
from sluicegate.dialects.between import Between
from sluicegate.dialects.form import Request
from sluicegate.dialects.ruled import Ruled
from sluicegate.holding import Holding
from sluicegate.ledger.contract import Ledger, LedgerUnavailable
from sluicegate.lookup import Lookup
from sluicegate.observe.log import StateLog
from sluicegate.observe.metrics import Metrics
from sluicegate.relay import Relay
from sluicegate.trip import Attempt, Trip

STREAM_FACTOR = 16  # a stream has many times the bytes of its answer in one piece
ENDS = frozenset(("stop", "tool_calls", "function_call"))  # finish reasons of answers that a model has ended
_NOTHING = Request("", False, False, 1, 0, 0, [], 0, 0, "", "", {})  # what a hit asks of limits, beside being a request

Count = Callable[[str], None]


class Caching:
    """Of one worker."""

    def __init__(
        self, store: Store, ledger: Ledger, holding: Holding, max_entry: int, time_ms: Callable[[], int], looked: Count, kept: Count
    ) -> None:
        """looked: told of each request that comes upon a cache, `hit`, `miss` or `skip:<why>`. kept: of each answer, `kept`, or why it is not."""
        self.store = store
        self.max_entry = max_entry
        self._max_stream = STREAM_FACTOR * max_entry
        self.saved_nano_usd = 0  # by hits
        self._ledger = ledger
        self._holding = holding
        self._time_ms = time_ms
        self._looked = looked
        self._kept = kept

    async def answer(self, trip: Trip, plan: Plan, cached: CachePlan, request: Request) -> bool:
        """Whether there is an answer, which the client may have: `trip.lookup` has it. Raises Reject, ClientGone, LedgerUnavailable."""
        caching, dialect, headers = cached.caching, trip.dialect.NAME, trip.exchange.headers
        why, body = cache_key.decide(caching, dialect, request, headers.get(b"cache-control", b""))
        key = cache_key.digest(cached.prefix, dialect, headers, cached.shaping, body) if body else b""
        lookup = trip.lookup = Lookup(f"skip:{why}" if why else "miss", key, caching.ttl_ms, self._max_stream)
        entry = None if why else await self.store.get(key)
        if entry is not None:
            lookup.told = "hit"
            await self._take(trip, plan, cached)
            lookup.entry = entry
            self.saved_nano_usd += entry.cost_nano_usd
        elif caching.mode == "seeded" and key and dialect in cache_key.SEEDED and not cache_key.has_seed(request.fields):
            request.fields["seed"] = Raw(b"%d" % cache_key.seed(key))
            lookup.seeded = True
        self._looked(lookup.told)
        return entry is not None

    async def _take(self, trip: Trip, plan: Plan, cached: CachePlan) -> None:
        """Holds one of each limit on requests; the path's end settles it. What clients are told of their other limits is asked for in the same write,
        and anew where it has become old meanwhile."""
        trip.plan = cached.plan  # whose limits are those that the ledger answers for
        refset = plan.template.refset(self._ledger.now_ms())
        told = None if cached.all_told else self._ledger.peek(refset)
        try:
            await self._holding.take(trip, 0, cached.deployment, cached.plan, _NOTHING)
            trip.written = True  # so that it counts as a request
        finally:
            trip.plan = plan
            if told is not None:
                await self._add(trip, plan, cached, refset, told)

    async def _add(self, trip: Trip, plan: Plan, cached: CachePlan, refset: RefSet, told: "asyncio.Future[Reply]") -> None:
        """Takes what was told of all limits, with what the admission said of those on requests."""
        held, trip.reply, trip.refset = trip.reply, None, None
        try:
            reply = await told
            now = plan.template.refset(self._ledger.now_ms())
            if trip.waited_s or now is not refset:
                refset, held, reply = now, None, await self._ledger.peek(now)
        except LedgerUnavailable:
            return
        if held is not None and held.states and reply.states:
            states = list(reply.states)
            for place, state in zip(cached.places, held.states, strict=True):
                states[place] = state
            reply.states = tuple(states)
        trip.reply, trip.refset = reply, refset

    def keep(self, trip: Trip, lookup: Lookup, attempt: Attempt) -> None:
        """Keeps an answer that has been told, if it is one that others may have."""
        if not lookup.key or trip.rejected is not None:
            return
        finish = attempt.finish()
        why = _not_to_be_kept(trip, lookup, attempt, finish)
        if not why:
            try:
                body = attempt.body if attempt.relay is None else _in_one_piece(lookup, attempt, attempt.relay)
            except Unfaithful:
                why = "unfaithful"
            else:
                why = "kept" if len(body) <= self.max_entry else "too_large"
        if why == "kept":
            cost = attempt.charge.cost_nano_usd if attempt.charge is not None else 0
            self.store.put(lookup.key, Entry(body, attempt.deployment.id, finish, cost, self._time_ms()), lookup.ttl_ms)
        self._kept(why)

    def figures(self) -> dict[str, int]:
        """For the metrics."""
        store = self.store
        return {"bytes": store.size_bytes, "entries": store.entries, "evicted": store.evicted, "saved_nano_usd": self.saved_nano_usd}

    async def close(self) -> None:
        await self.store.close()


def caching_of(config: Config, ledger: Ledger, holding: Holding, metrics: Metrics, time_ms: Callable[[], int], clock: Callable[[], float]) -> Caching:
    """The cache of a configuration: with the ledger if that is a Redis and nothing else is said, else in this worker's memory."""
    written = config.cache
    store: Store = MemoryCache(written.max_bytes, clock)
    if written.backend == "redis" or (written.backend is None and in_redis(config.ledger)):
        from sluicegate.ledger.cache_redis import RedisCache  # noqa: PLC0415  (redis-py takes a while to import)

        store = RedisCache(config.ledger, config.ledger_timeout_ms, written.max_bytes, clock, StateLog("cache", "there", good=frozenset({"there"})))
    caching = Caching(store, ledger, holding, written.max_entry, time_ms, metrics.cache_looked, metrics.cache_kept)
    metrics.cache = caching.figures
    return caching


def _in_one_piece(lookup: Lookup, attempt: Attempt, relay: Relay) -> bytes:
    """A stream. Raises Unfaithful."""
    if lookup.copying is None:
        raise Unfaithful
    return lookup.copying.body(relay.tail, attempt.usage)


def _not_to_be_kept(trip: Trip, lookup: Lookup, attempt: Attempt, finish: str) -> str:
    """Why this answer is for this client alone; "" if it is not."""
    relay, request, usage = attempt.relay, trip.request, attempt.usage
    assert request is not None
    if attempt.ended() != "complete" or (relay is not None and relay.bad_events):
        return "incomplete"
    if lookup.copying is not None and lookup.copying.spoiled:
        return lookup.copying.spoiled
    if attempt.model != request.model:
        return "elsewhere"
    if usage is None or not usage.input_tokens or usage.output_tokens is None:
        return "usage"
    if finish not in ENDS and request.cap != 0 and (finish != "length" or attempt.cap not in (None, request.cap)):
        return "cut" if finish == "length" else "finish"  # its end is neither that of its model nor at the cap that the client has set
    return "seed" if lookup.seeded and _without_seed(attempt) else ""


def _without_seed(attempt: Attempt) -> bool:
    """Whether the provider was not sent the seed that the gateway has added."""
    return "seed" in attempt.left_out or (isinstance(attempt.via, Between | Ruled) and "seed" in attempt.via.left_out)
