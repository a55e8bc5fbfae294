"""Keys and tenants that were made at run time, as one worker knows them, put together with those of the file.

Tenants, overrides and increases are in memory, and compiled with the file into one policy (`compile`). Keys are looked up by the digest of their
secret when they are first presented, and the last ENTRIES_MAX kept, also that there is none, for a few seconds. A change is known by the version of
the tables, which is asked for once a second, and at once when another worker tells of it: what has changed is forgotten, so a key that is blocked is
refused within a second everywhere, whoever is away. Before a secret is refused as unknown, it is asked for too (`catch_up`), so that what another
worker has just made is known here; all who come within PAUSE_S are answered by one look, so guesses cost the database little.

What was looked up while something changed is not kept. Limits that a key got after it was made begin with what was used before (`begin`).

How it fails: RecordsUnavailable where the tables do not answer and a key has to be looked up. What is known stays known as it was.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import msgspec
import structlog

from sluicegate import seeding
from sluicegate.auth import Entry
from sluicegate.config.compile_tenants import GLOBAL, Above, TenantTree, below_key
from sluicegate.config.entries import in_file, increased, merged, read_cidr, read_key
from sluicegate.config.fields import ConfigError
from sluicegate.config.load import Loaded
from sluicegate.config.price_entries import read_price, repriced
from sluicegate.config.schema import Config
from sluicegate.core.tenants import Counter, Key, Policy, Scope
from sluicegate.records import directory as tables
from sluicegate.records.directory_rows import Found, KeyRow, Tree, Version
from sluicegate.records.rows import RecordsUnavailable

LOOK_S = 1.0
PAUSE_S = 0.05  # before a look for those whose secret is not known
ENTRIES_MAX = 10_000
ABSENT_MAX = 10_000
ABSENT_MS = 5_000
TRIES = 3  # of a look-up while something changes
SEEDED_AT_ONCE = 1_000

Counters = Mapping[str, Sequence[Counter]]

log = structlog.get_logger("directory")


class Compiled(msgspec.Struct, frozen=True):
    """The file and the directory together."""

    config: Config  # with tenants, overrides and increases of the directory
    policy: Policy  # its keys: those of the file that are not blocked
    blocked_keys: dict[bytes, Key]  # those that are
    trees: dict[str, tuple[Counter, ...]]
    tenants: TenantTree
    by_id: dict[str, Key]  # keys of the file
    blocked: frozenset[str]  # ids of tenants and of keys of the file


class Directory:
    """Of one worker."""

    def __init__(self, store: tables.Directory, time_ms: Callable[[], int]) -> None:
        self.store = store
        self.tree = Tree()
        self.begin: Callable[[Counters], Awaitable[set[str]]] = _nothing_to_begin  # brings new windows up to what was used; the trees where it did
        self.on_change: Callable[[], None] = _unheard  # keys that were found may be others now
        self.apply: Callable[[], Awaitable[object]] = _nothing_to_apply  # the configuration anew, with what has changed
        self.current: Compiled | None = None
        self.time_ms = time_ms
        self._known = Version(-1, -1)  # how far changes are known; -1: nothing is
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()
        self._absent: OrderedDict[bytes, int] = OrderedDict()  # until when
        self._changes = 0
        self._next_end_ms = 0  # of an increase; 0: there is none
        self._awake = asyncio.Event()
        self._one = asyncio.Lock()
        self._due = False  # what has changed is not in use yet
        self._look: asyncio.Task[None] | None = None  # that has not begun yet

    async def close(self) -> None:
        """Nothing is asked for any more."""
        if self._look is not None:
            self._look.cancel()
        await self.store.close()

    # -- together with the file -----------------------------------------------------------------------------------------------------------

    def compile(self, loaded: Loaded) -> Compiled:
        """What the file and the directory make together."""
        tree, now_ms = self.tree, self.time_ms()
        config, placeless = merged(loaded.config, tree, now_ms)
        if placeless:
            log.warning("tenants have no place in this configuration: what they hang under is gone", tenants=placeless)
        tenants = TenantTree(config, {}, [])
        keys = tenants.keys()
        made = [row.id for row in tree.tenants if row.blocked and in_file(loaded.config, row.id) is None]
        blocked = frozenset(made + [row.id for row in tree.overrides if row.blocked])
        shut = {digest: key for digest, key in keys.items() if _is_blocked(key, blocked)}
        models = repriced(loaded.policy.models, {row.id: read_price(row.price) for row in tree.prices})
        policy = msgspec.structs.replace(loaded.policy, keys={digest: key for digest, key in keys.items() if digest not in shut}, models=models)
        trees = seeding.counters_by_tree(policy)
        if tree.any_keys:
            for above in tenants.at.values():
                found = {counter.key_prefix: counter for counter in (*trees.get(above.tree, ()), *above.counters)}
                if found:
                    trees[above.tree] = tuple(found.values())
            for organization in tree.organizations:
                trees.setdefault(GLOBAL if tenants.global_limits else organization, ())
        return Compiled(config, policy, shut, trees, tenants, {key.id: key for key in keys.values()}, blocked)

    def use(self, compiled: Compiled) -> None:
        """Keys are looked up below these tenants from now on."""
        self.current = compiled
        ends = [increase.until_ms for increase in self.tree.increases if increase.until_ms > self.time_ms()]
        self._next_end_ms = min(ends, default=0)
        self._forget_all()

    def tree_of(self, key_id: str) -> str:
        """Where the counters of a key are."""
        shared = self.current is not None and bool(self.current.tenants.global_limits)
        return GLOBAL if shared else key_id.partition("/")[0]

    def key(self, key_id: str) -> Key | None:
        """A key by its id, if this worker knows it."""
        if self.current is not None and key_id in self.current.by_id:
            return self.current.by_id[key_id]
        return next((entry.key for entry in self._entries.values() if entry.key.id == key_id), None)

    async def below(self, key_id: str, limit: int) -> list[str]:
        """Ids of all keys that were ever made below one, that many at most. Raises RecordsUnavailable."""
        return await self.store.call(partial(tables.keys_below, key_id=key_id, limit=limit), reading=True)

    async def look_up(self, key_id: str) -> Key | None:
        """The same, whether this worker knows it or not; its limits count what was used. Raises RecordsUnavailable."""
        current = self.current
        if current is None or key_id in current.by_id:
            return current.by_id[key_id] if current is not None else None
        rows = await self.store.call(partial(tables.chain, key_id=key_id), reading=True)
        above = self._above(rows[-1].owner, current) if rows and not any(row.deleted_ms for row in rows) else None
        key = self._key(rows[0], rows[1:], above, current) if above is not None else None
        if key is not None:
            await self._begin(key, rows)
        return key

    # -- changes --------------------------------------------------------------------------------------------------------------------------

    @property
    def loaded(self) -> bool:
        """The tables have been read."""
        return self._known.all >= 0

    def wake(self) -> None:
        """Somebody has changed something."""
        self._awake.set()

    async def run(self) -> None:
        """Follows the tables until cancelled."""
        while True:
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._awake.wait()
            except TimeoutError:
                pass
            self._awake.clear()
            try:
                await self.follow(self.apply)
            except RecordsUnavailable:
                continue  # the outbox says so
            except Exception:
                log.exception("background work failed", work="directory")

    async def follow(self, apply: Callable[[], Awaitable[object]]) -> None:
        """What has changed is known, and in use, when this returns. Raises RecordsUnavailable."""
        async with self._one:
            self._due = await self.refresh() or self._due
            if self._due:
                await apply()
                self._due = False

    async def catch_up(self) -> bool:
        """What had changed before this call is known, and in use, when this returns: whether anything had. Raises RecordsUnavailable."""
        changes = self._changes
        if self._look is None:
            self._look = asyncio.create_task(self._look_soon())
            self._look.add_done_callback(_failed_for_nobody)
        await asyncio.shield(self._look)  # others wait for it too
        return changes != self._changes

    async def _look_soon(self) -> None:
        try:
            await asyncio.sleep(PAUSE_S)
        finally:
            self._look = None
        await self.follow(self.apply)

    async def refresh(self) -> bool:
        """Finds out what has changed. Whether the policy has to be compiled anew. Raises RecordsUnavailable."""
        over = 0 < self._next_end_ms <= self.time_ms()
        found = await self.store.call(tables.version, reading=True)
        if found == self._known:
            return over
        ids: list[str] = []
        if found.tree != self._known.tree:
            self.tree = await self.store.call(tables.tree, reading=True)
            self._forget_all()
        elif found.all > self._known.all:
            ids = await self.store.call(partial(tables.changed, since=self._known.all), reading=True)
        else:  # another database, or an older copy
            self._forget_all()
        anew = over or found.tree != self._known.tree
        self._known = found
        self._forget(ids)
        return anew

    def _forget(self, ids: Sequence[str]) -> None:
        self._changes += 1
        self._absent.clear()
        gone = [digest for digest, entry in self._entries.items() if any(entry.key.id == id or entry.key.id.startswith(f"{id}/@") for id in ids)]
        for digest in gone:
            del self._entries[digest]
        self.on_change()

    def _forget_all(self) -> None:
        self._entries.clear()
        self._forget(())

    # -- looking up -----------------------------------------------------------------------------------------------------------------------

    async def find(self, digest: bytes) -> Entry | None:
        """The key that a secret belongs to. Raises RecordsUnavailable."""
        entry = self._entries.get(digest)
        if entry is not None:
            self._entries.move_to_end(digest)
            return entry
        entry = await self._look_for(digest)
        if entry is not None and not self._is_ahead(entry.key):
            return entry
        try:
            changed = await self.catch_up()
        except RecordsUnavailable:
            if self.tree.any_keys:
                raise
            return None
        return await self._look_for(digest) if changed else entry

    async def _look_for(self, digest: bytes) -> Entry | None:
        if not self.tree.any_keys or self._absent.get(digest, 0) > self.time_ms():
            return None
        for _ in range(TRIES):
            changes = self._changes
            found = await self.store.call(partial(tables.find, digest=digest.hex()), reading=True)
            entry = self._entry(found) if found is not None else None
            if entry is not None and found is not None:
                await self._begin(entry.key, found.chain)
            if changes == self._changes:
                self._keep(digest, entry)
                break
        return entry

    def _is_ahead(self, key: Key) -> bool:
        """It has limits where this worker knows of none: they are new."""
        return bool(key.counters) and self.current is not None and key.tree not in self.current.trees

    async def _begin(self, key: Key, rows: Sequence[KeyRow]) -> None:
        """Limits that came after their key was made count what was used before. rows: it, and the keys above it. Raises RecordsUnavailable."""
        if any(row.late for row in rows):
            own = [counter for counter in key.counters if counter.scope.kind == "key"]
            if key.tree not in await self.begin({key.tree: seeding.new_windows(own, ())}):
                raise RecordsUnavailable("what was used before a limit came is not known")

    def _keep(self, digest: bytes, entry: Entry | None) -> None:
        if entry is not None:
            self._entries[digest] = entry
            if len(self._entries) > ENTRIES_MAX:
                self._entries.popitem(last=False)
            return
        self._absent[digest] = self.time_ms() + ABSENT_MS
        if len(self._absent) > ABSENT_MAX:
            self._absent.popitem(last=False)

    def _entry(self, found: Found) -> Entry | None:
        """None: it has been deleted, hangs under nothing, or the file has come to define a key of that id, whose limits it would not be held to."""
        rows, current = found.chain, self.current
        if not rows or current is None or any(row.deleted_ms or row.id in current.by_id for row in rows):
            return None
        above = self._above(rows[-1].owner, current)
        if above is None:
            return None
        key = self._key(rows[0], rows[1:], above, current)
        ends = [ms for ms in (found.secret.ends_ms, *(row.expires_ms for row in rows)) if ms]
        blocked = any(row.blocked for row in rows) or _is_blocked(key, current.blocked)
        return Entry(key, blocked, min(ends, default=0), tuple(read_cidr(row.cidr) for row in rows if row.cidr))

    def _above(self, owner: str, current: Compiled) -> Above | None:
        """What a tenant's keys, or those of a key of the file, inherit."""
        if owner in current.by_id:
            return below_key(current.by_id[owner])
        return current.tenants.at.get(owner)

    def _key(self, row: KeyRow, higher: Sequence[KeyRow], above: Above, current: Compiled) -> Key:
        """higher: the keys above it, the nearest first."""
        if higher:
            above = below_key(self._key(higher[0], higher[1:], above, current))
        written = read_key(row.name, row.limits, row.models, row.priority, row.may_create_sub_keys)
        more = [one for one in self.tree.increases if one.scope_id == row.id and one.until_ms > self.time_ms()]
        if more:
            written = written.model_copy(update={"limits": increased(written.limits, more)})
        key = current.tenants.key_below(written, (), above)
        current.tenants.problems.clear()  # of models that are not there any more: they cannot be used
        return key

    async def counters_of(self, tree: str) -> list[Counter]:
        """The counters of all keys with limits of their own in a tree: what it is seeded with beside the policy's. Raises RecordsUnavailable."""
        found: list[Counter] = []
        current, after = self.current, ""
        while current is not None and self.tree.organizations:
            rows = await self.store.call(partial(tables.limited, organization=tree, after=after, limit=SEEDED_AT_ONCE), reading=True)
            for row in rows:
                found += self._own(row, current)
            if len(rows) < SEEDED_AT_ONCE:
                break
            after = rows[-1].id
            await asyncio.sleep(0)
        return found

    async def limited(self, first: str, limit: int) -> list[tuple[str, Counter]]:
        """The own limits of so many keys, from one on, each with its tree; they count what was used. Raises RecordsUnavailable."""
        current = self.current
        if current is None or not self.tree.organizations:
            return []
        work = partial(tables.limited, organization="*", after=first, limit=limit, included=True)
        rows = [row for row in await self.store.call(work, reading=True) if row.id not in current.by_id]
        late: dict[str, list[Counter]] = {}
        for row in rows:
            if row.late:
                late.setdefault(self.tree_of(row.id), []).extend(seeding.new_windows(self._own(row, current), ()))
        if late.keys() - await self.begin(late):
            raise RecordsUnavailable("what was used before a limit came is not known")
        return [(self.tree_of(row.id), counter) for row in rows for counter in self._own(row, current)]

    def _own(self, row: KeyRow, current: Compiled) -> list[Counter]:
        tree = self.tree_of(row.id)
        try:
            key = self._key(row, (), Above(tree, (Scope(row.owner, "key", ""),), (), None, None, 0), current)
        except ConfigError:
            return []
        return list(key.counters)


def _is_blocked(key: Key, blocked: frozenset[str]) -> bool:
    return bool(blocked) and any(scope.id in blocked for scope in key.path)


async def _nothing_to_begin(counters: Counters) -> set[str]:
    return set(counters)


async def _nothing_to_apply() -> None:
    """Nobody uses what is compiled."""


def _failed_for_nobody(look: "asyncio.Task[None]") -> None:
    """Whoever waited for it may have gone: that it failed has been heard all the same."""
    if not look.cancelled():
        look.exception()


def _unheard() -> None:
    """Nobody remembers keys."""
