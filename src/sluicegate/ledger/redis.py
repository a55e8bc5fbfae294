"""The ledger for many machines: the rules of core/rules.py as Lua scripts in a Redis (7 or later) or Valkey.

Every verb is one script call, atomic over all counters of a tenant tree, whose keys share a hash tag. The clock is the server's. Two connections:
admit, extend, settle and peek share one; renewals, sweeps, estimators and views have their own and never stand before an admission.
What the scripts need of a RefSet is encoded once and kept in it; a call adds the rest. Key and record formats: docs/redis-keys.md.

A key of another type, a record or a number that cannot be read end a script with an error: that is a lost state as well.

Invariants: an admit that timed out and was granted all the same is cancelled as soon as that is known; its hold id must therefore not be used again.
Fails as link.py says. Redis without memory refuses admits and extends, never a settle.
"""

import asyncio
import os
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import structlog

from sluicegate.core.claims import (
    Admission,
    Announcement,
    CounterView,
    Extension,
    HoldView,
    Ref,
    RefSet,
    Reply,
    Seed,
    Settled,
    Settlement,
    Swept,
)
from sluicegate.ledger import redis_commands
from sluicegate.ledger.address import Address, Place
from sluicegate.ledger.contract import LedgerRecovering, LedgerUnavailable, TreeState
from sluicegate.ledger.link import Command, Link, Log, Run, pack, raw
from sluicegate.ledger.redis_commands import command, hashes, scan, unlink
from sluicegate.ledger.redis_scripts import (
    LOST,
    REPLIES,
    SETTLED,
    bare,
    bare_at,
    encode,
    escaped,
    figures,
    head,
    load_scripts,
    marks,
    read_hold,
    read_swept,
    view_counter,
    whole,
)
from sluicegate.ledger.topology import COMMON, Finder, Topology
from sluicegate.ledger.trees import Trees, failed, prefix, recovering
from sluicegate.ledger.views import hold_view

DAMAGE = ("WRONGTYPE", "not an integer", " input", "attempt to ")  # in errors of scripts that come from what they found
SEEDS_AT_ONCE = 100  # counters that one call of a script makes
TREES_AT_ONCE = 64  # swept in one go; Redis works on each of them for up to a millisecond


class _Tree:
    """A tree in one epoch: the keys of its own, and its commands, whose replies tell where the sequence of that epoch stands."""

    def __init__(self, ledger: "RedisLedger", name: str, state: TreeState) -> None:
        self.ledger = ledger
        self.name = name
        self.state = state
        self.route = ledger.topology.route(name)
        self.keys = tuple(prefix(name) + part for part in ("holds", "expiry", "counters", f"e:{state.epoch}"))
        # No such key ever exists. In a slot that is on its way to another server, Redis refuses a script that names one, before it has done anything;
        # else a script that goes on to keys it did not name would end in the middle where such a key has left already.
        self.guard = (prefix(name) + "none",) if ledger.sharded else ()
        scripts = ledger.scripts
        self.admit, self.extend, self.peek = (scripts[verb].with_reader(self._read_reply, self._damage) for verb in ("admit", "extend", "peek"))
        self.settle = scripts["settle"].with_reader(self._read_settled, self._damage)
        self.others = {verb: scripts[verb].with_reader(self._read, self._damage) for verb in ("renew", "sweep", "warn", "fill", "announce")}

    def _read_reply(self, reply: list[Any]) -> Reply:
        status, now_ms, seq, g, room, *rest = reply
        ledger, state = self.ledger, self.state
        ledger.set_clock(now_ms)
        swept: tuple[Swept, ...] = ()
        if rest and type(rest[-1]) is list:
            swept = tuple(map(read_swept, rest.pop()))
        if status == LOST:
            ledger.found += swept
            raise ledger.doubt(self.name, state.epoch, seq.decode())
        if seq > state.seq:  # noqa: PLR1730 - max would cost a request a third of a microsecond
            state.seq = seq
        if len(rest) % 2:
            raise ValueError("half a state")
        return Reply(REPLIES[status], now_ms, g, room, tuple(zip(rest[::2], rest[1::2])), swept)  # noqa: B905 - a keyword costs as much as the rest

    def _read_settled(self, reply: list[Any]) -> Settled:
        reached = self._read(reply)
        if not reached:
            return Settled(SETTLED[reply[0]], reply[1])
        expired = read_swept(reached.pop()) if type(reached[-1]) is list else None
        return Settled(SETTLED[reply[0]], reply[1], tuple(zip(reached[::2], reached[1::2], strict=True)), expired)

    def _read(self, reply: list[Any]) -> list[Any]:
        """What follows status, time and sequence."""
        status, seq, state = reply[0], reply[2], self.state
        if status == LOST:
            raise self.ledger.doubt(self.name, state.epoch, seq.decode())
        if seq > state.seq:  # noqa: PLR1730 - as above
            state.seq = seq
        return reply[3:]

    def _damage(self, error: str) -> LedgerRecovering | None:
        """The script has ended in the middle: its epoch is over for everybody."""
        if not any(sign in error for sign in DAMAGE):
            return None
        self.route.back.call(raw("UNLINK"), pack("UNLINK", self.keys[3]))  # before this worker asks, on the same link, where the epoch stands
        return self.ledger.doubt(self.name, self.state.epoch, f"a key is damaged: {error.partition(' script:')[0]}")


class _Packed:
    """The static part of the commands on one RefSet in one epoch, in the Redis protocol."""

    __slots__ = ("admit", "admit_at", "extend", "peek", "route", "settle", "settle_at", "state", "tree")

    def __init__(self, tree: _Tree, refs: tuple[Ref, ...]) -> None:
        self.tree = tree
        self.state = tree.state
        self.route = tree.route
        self.admit_at, self.settle_at = bare_at(8 + 2 * len(refs)), bare_at(3 + len(refs))
        keys = (*tree.keys, *(ref.key for ref in refs), *tree.guard)
        expired_state = tree.ledger.expired_state
        described = figures(refs, expired_state)
        self.admit = head(tree.admit, keys, (figures(refs, expired_state, admitting=True),), 1)
        self.extend = head(tree.extend, keys, (described,), 1)
        self.settle = head(tree.settle, keys, (described, marks(refs)), 1)
        self.peek = head(tree.peek, keys, (described,), 0)


class RedisLedger(Trees):
    """See ledger/contract.py."""

    def __init__(
        self,
        url: str,
        timeout_ms: int = 1_000,
        expired_hold: Literal["charge_held", "charge_seen"] = "charge_held",
        *,
        name: str = "",
        log: Log | None = None,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """name: of this worker among the clients that Redis lists. Raises ValueError for a URL that address.py does not understand."""
        super().__init__()
        place, name = Place.parse(url), name or f"sluicegate-{os.getpid()}"
        log = log or structlog.get_logger("sluicegate.ledger")
        self.expired_state = "h" if expired_hold == "charge_held" else "s"
        self.scripts = load_scripts()

        def link(address: Address, back: bool, on_greeted: Callable[[Link, Run], None], on_trouble: Callable[[], None]) -> Link:
            verbs = ("renew", "sweep", "warn", "fill", "announce", "learned") if back else ("admit", "extend", "settle", "peek")
            return Link(
                address,
                timeout_ms,
                name=f"{name}-back" if back else name,
                log=log,
                scripts=[self.scripts[verb] for verb in verbs],
                on_late=self._on_late,
                on_greeted=on_greeted,
                on_trouble=on_trouble,
                jitter=jitter,
            )

        self.topology = Topology(place, link, _finder(place, timeout_ms / 1000), self._moved, log, jitter)
        self.sharded = place.kind == "cluster"
        self._clock = clock
        self._offset_ms = time.time() * 1000 - clock() * 1000
        self._known: dict[str, _Tree] = {}
        self._nowhere = TreeState("", 0, open=False)  # of a tree that is not used: it can be looked at

    def now_ms(self) -> int:
        return int(self._clock() * 1000 + self._offset_ms)

    async def open(self) -> None:
        await self.topology.open()
        seconds, microseconds = await self.topology.route(COMMON).front.call(raw("TIME"), pack("TIME"))
        self.set_clock(int(seconds) * 1000 + int(microseconds) // 1000)

    async def close(self) -> None:
        await self.topology.close()

    async def ping(self) -> None:
        await self.topology.route(COMMON).front.call(raw("PING"), pack("PING"))

    # -- verbs --

    def admit(self, admission: Admission) -> "asyncio.Future[Reply]":
        a, refs = admission, admission.refs
        state = self.trees.get(refs.tree)
        if state is None or not state.open:
            return failed(recovering(refs.tree))
        packed = refs.packed
        if type(packed) is not _Packed or packed.state is not state:
            packed = self._pack(refs, state)
        request = encode((state.seq, a.hold_id, a.replacing, a.tag, a.need, a.aim, a.want, a.ttl_ms, *a.amounts))[packed.admit_at :]
        return packed.route.front.call(packed.tree.admit, whole(packed.admit, request), a)

    def extend(self, extension: Extension) -> "asyncio.Future[Reply]":
        e, refs = extension, extension.refs
        state = self.trees.get(refs.tree)
        if state is None:
            return failed(recovering(refs.tree))
        packed = refs.packed
        if type(packed) is not _Packed or packed.state is not state:
            packed = self._pack(refs, state)
        request = bare((state.seq, e.hold_id, e.need, e.want, e.seen, e.ttl_ms))
        return packed.route.front.call(packed.tree.extend, whole(packed.extend, request), e)

    def settle(self, settlement: Settlement) -> "asyncio.Future[Settled]":
        s, refs = settlement, settlement.refs
        state = self.trees.get(refs.tree)
        if state is None:
            return failed(recovering(refs.tree))
        packed = refs.packed
        if type(packed) is not _Packed or packed.state is not state:
            packed = self._pack(refs, state)
        request = encode((state.seq, s.hold_id, s.mode, *s.actual))[packed.settle_at :]
        return packed.route.front.call(packed.tree.settle, whole(packed.settle, request), s)

    def peek(self, refs: RefSet) -> "asyncio.Future[Reply]":
        state, packed = self.trees.get(refs.tree, self._nowhere), refs.packed
        if type(packed) is not _Packed or packed.state is not state:
            packed = self._pack(refs, state)
        return packed.route.front.call(packed.tree.peek, packed.peek)

    async def renew(self, tree: str, hold_ids: list[str], ttl_ms: int) -> None:
        state = self._trusted(tree)
        await self._call("renew", self._tree(tree, state), (), bare((state.seq, ttl_ms, hold_ids)))

    async def sweep(self, limit: int) -> list[Swept]:
        trees = sorted(self.trees)
        failure: LedgerUnavailable | None = None
        answered = False
        for start in range(0, len(trees), TREES_AT_ONCE):
            calls = []
            for tree in trees[start : start + TREES_AT_ONCE]:
                if state := self.trees.get(tree):
                    arguments = (self.expired_state.encode(), b"%d" % limit, b"%d" % state.seq)
                    calls.append(self._call("sweep", self._tree(tree, state), (), *arguments))
            for call in calls:
                try:
                    self.found += map(read_swept, await call)
                    answered = True
                except LedgerRecovering:
                    continue
                except LedgerUnavailable as error:
                    failure = error
        if failure is not None and not answered:
            raise failure
        return self.take_found()

    async def warn(self, refs: RefSet) -> tuple[tuple[int, int], ...]:
        state = self._trusted(refs.tree)
        reached = await self._call("warn", self._tree(refs.tree, state), refs.refs, b"%d" % state.seq, marks(refs.refs))
        return tuple(zip(reached[::2], reached[1::2], strict=True))

    async def learned(self, increments: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
        if not increments:
            return {}
        script = self.scripts["learned"]
        keys = tuple(f"{prefix(COMMON)}t:{name}" for name in increments)
        flat = [[part for pair in increment.items() for part in pair] for increment in increments.values()]
        sums = await self.topology.route(COMMON).back.call(script, head(script, keys, (encode(flat),), 0))
        return {
            name: {field.decode(): n for field, n in zip(table[::2], table[1::2], strict=True)} for name, table in zip(increments, sums, strict=True)
        }

    async def show(self) -> tuple[list[CounterView], list[HoldView]]:
        """Of every tree in the database, those no longer configured too. Looks at one key after another, so figures may differ by a moment."""
        counters, holds = [], []
        for node in self.topology.masters():
            keys = sorted(await scan(node.back, "sg1:{*"))
            counters += [view_counter(key, fields) for key, fields in await hashes(node.back, [key for key in keys if "}:c:" in key]) if fields]
            for key, records in await hashes(node.back, [key for key in keys if key.endswith("}:holds")]):
                expiries = await command(node.back, "ZRANGE", key.removesuffix("holds") + "expiry", 0, -1, "WITHSCORES")
                expires_ms = {hold_id: int(ms) for hold_id, ms in zip(expiries[::2], expiries[1::2], strict=True)}
                holds += [hold_view(id_.decode(), read_hold(record), expires_ms[id_]) for id_, record in records.items() if id_ in expires_ms]
        return counters, holds

    async def holds(self, tree: str, after: tuple[int, str], limit: int) -> list[HoldView]:
        return await redis_commands.holds(self.topology.route(tree).back, prefix(tree), after, limit)

    async def hold(self, tree: str, hold_id: str) -> HoldView | None:
        return await redis_commands.hold(self.topology.route(tree).back, prefix(tree), hold_id)

    # -- recovery --

    async def claim(self, records: str, before: str, ttl_ms: int) -> str:
        """Of two who claim it at once the later one has it; the other one sees that at its next claim."""
        back, key = self.topology.route(COMMON).back, prefix(COMMON) + "records"
        (found,) = await command(back, "MGET", key)
        owner = (found or b"").decode()
        if owner in ("", records, before):
            await command(back, "SET", key, records, "PX", ttl_ms)
            return records
        return owner

    def incarnation(self, tree: str) -> str:
        node = self.topology.route(tree).node
        return node.run.run_id if node is not None else ""

    async def seq(self, tree: str, epoch: str) -> int:
        (found,) = await command(self.topology.route(tree).back, "MGET", f"{prefix(tree)}e:{epoch}")  # which has nothing to say of other types
        return int(found) if found is not None and found.isdigit() else 0

    async def seed(self, tree: str, epoch: str, counters: Sequence[Seed]) -> int:
        of_tree = escaped(prefix(tree))
        new = _Tree(self, tree, TreeState(epoch, 0, open=False))
        back = new.route.back
        await unlink(back, await scan(back, f"{of_tree}e:*"))  # from here on nobody can write to what is being wiped
        await unlink(back, await scan(back, f"{of_tree}*"))
        await command(back, "HSET", new.keys[0], "", "")
        await command(back, "ZADD", new.keys[2], "+inf", "")
        await self._fill(new, counters, known=-1)
        await command(back, "SET", new.keys[3], 1)
        return 1

    async def fill(self, tree: str, counters: Sequence[Seed]) -> None:
        state = self._trusted(tree)
        await self._fill(self._tree(tree, state), counters, state.seq)

    async def announce(self, announcement: Announcement) -> None:
        a, refs = announcement, announcement.refs
        state = self._trusted(refs.tree)
        request = bare((state.seq, a.hold_id, a.tag, a.g, a.seen, a.ttl_ms, *a.amounts))
        await self._call("announce", self._tree(refs.tree, state), refs.refs, figures(refs.refs, self.expired_state), request)

    # -- steps --

    def _trusted(self, tree: str) -> TreeState:
        state = self.trees.get(tree)
        if state is None:
            raise recovering(tree)
        return state

    def _tree(self, name: str, state: TreeState) -> _Tree:
        tree = self._known.get(name)
        if tree is None or tree.state is not state:
            tree = self._known[name] = _Tree(self, name, state)
        return tree

    def _pack(self, refs: RefSet, state: TreeState) -> _Packed:
        refs.packed = packed = _Packed(self._tree(refs.tree, state), refs.refs)
        return packed

    def _call(self, verb: str, tree: _Tree, refs: tuple[Ref, ...], *arguments: bytes) -> "asyncio.Future[list[Any]]":
        """A verb that is not on a request's path, on the connection for these."""
        script = tree.others[verb]
        keys = (*tree.keys, *(ref.key for ref in refs), *tree.guard)
        return tree.route.back.call(script, head(script, keys, arguments, 0))

    async def _fill(self, tree: _Tree, seeds: Sequence[Seed], known: int) -> None:
        """known: -1 while there is no epoch yet."""
        for start in range(0, len(seeds), SEEDS_AT_ONCE):
            some = seeds[start : start + SEEDS_AT_ONCE]
            refs = tuple(one.ref for one in some)
            values = [[part for pair in one.slices.items() for part in pair] if one.ref.kind == "s" else one.used for one in some]
            await self._call("fill", tree, refs, figures(refs, self.expired_state), bare((known, *values)))

    def _moved(self, tree: str, why: str) -> None:
        """Before a call of the tree goes to another server, or to another run of it."""
        if state := self.trees.get(tree):
            self.doubt(tree, state.epoch, why)

    def set_clock(self, now_ms: int) -> None:
        self._offset_ms = now_ms - self._clock() * 1000

    def _on_late(self, script: Command, answer: Any, asked: Any) -> None:
        """An answer that nobody waits for: an admission is given back, what it swept is kept for whoever sweeps next."""
        if script.name != "admit":
            return
        self.found += answer.swept
        if answer.status == "granted":
            self.settle(Settlement(asked.hold_id, asked.refs, (0,) * len(asked.refs.refs), "cancel"))


def _finder(place: Place, timeout_s: float) -> Finder | None:
    """redis-py costs a worker 10 MB: it is loaded only where something is to be found."""
    if place.kind == "server":
        return None
    from sluicegate.ledger.discovery import Discovery  # noqa: PLC0415

    return Discovery(place, timeout_s)
