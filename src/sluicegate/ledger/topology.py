"""Which server keeps a tree, and over which links its calls go: one server, a Redis Cluster, or the master that Sentinels name.

All keys of a tree share a hash tag, so one server keeps all of it. A `Route` per tree is what the verbs use; it is made when a tree is first asked
about, and pointed elsewhere when the map changes: the path of a request looks at one attribute. A `Node` per server has the two links. One server
named by the URL is a map that never changes: nothing runs beside its links.

The map is looked up again (discovery.py) when a link or an answer says that another server may be the right one: one lookup at a time, the pauses
between them growing while nothing changes. It is looked up now and then where Sentinels may have named another master without the old one knowing.

Invariants: a tree is told to `on_move` when its route goes to another node, or its node turns out to be another run of the server than before,
always before a call of that tree goes out there. Both links of a node lead to the same run. No link leads to a replica (link.py).
Redirections are not followed: a tree that moves is in doubt, so nothing may be written to its new node before the recovery has looked at it.
Fails by LedgerUnavailable in a call's future, at once where no node is known. One node that is away holds up no other.
"""

import asyncio
import contextlib
import random
from binascii import crc_hqx
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from sluicegate.ledger.address import Address, Place
from sluicegate.ledger.contract import LedgerUnavailable
from sluicegate.ledger.link import Command, Link, Log, Run, fail

SLOTS, NOBODY = 1 << 14, 0xFFFF
PAUSE_S = (0.1, 1.0)  # between two lookups: the first, the longest; times 0.5 to 1.5
WATCH_S = 2.0  # Sentinels are asked at least so often
COMMON = "learned"  # the tree of the tables that all workers share; its node is the one that must be there at the start


class Map(msgspec.Struct, frozen=True):
    """The servers that take writes. owners: by slot, which of them; empty where there is but one."""

    masters: tuple[Address, ...]
    owners: Sequence[int] = ()

    def of(self, tree: str) -> Address | None:
        """The server that keeps a tree; None while the cluster has none for its slot."""
        if not self.owners:
            return self.masters[0] if self.masters else None
        owner = self.owners[slot(tree)]
        return None if owner == NOBODY else self.masters[owner]


class Finder(Protocol):
    """Looks the map up (discovery.py)."""

    async def find(self, masters: Sequence[Address]) -> Map: ...
    async def close(self) -> None: ...


class Caller(Protocol):
    """What a verb needs of a link."""

    def call(self, command: Command, packed: bytes, asked: Any = None) -> "asyncio.Future[Any]": ...


class Nowhere:
    """Where calls of a tree go that no server keeps."""

    def call(self, command: Command, packed: bytes, asked: Any = None) -> "asyncio.Future[Any]":
        future = asyncio.get_running_loop().create_future()
        fail(future, "no server of the ledger is known to keep this")
        return future


# Makes a link: to where, whether it is the back link, on_greeted, on_trouble.
LinkMaker = Callable[[Address, bool, Callable[[Link, Run], None], Callable[[], None]], Link]


class Node:
    """A server, its two links, and which run of it they lead to. The back link never stands before an admission."""

    def __init__(self, address: Address, link: LinkMaker, on_run: "Callable[[Node], None]", on_trouble: Callable[[], None]) -> None:
        """Begins to connect; calls made before that has ended wait for it. on_run: told that it is another run of the server than before."""
        self.address = address
        self.run = Run("", "")
        self.front, self.back = (link(address, back, self._greeted, on_trouble) for back in (False, True))
        self._on_run = on_run
        self._first = asyncio.gather(self.front.start(), self.back.start(), return_exceptions=True)

    async def ready(self) -> None:
        """Waits for the end of the first attempt to connect. Raises LedgerUnavailable if it failed."""
        for error in await asyncio.shield(self._first):
            if error is not None:
                raise error

    async def close(self) -> None:
        await asyncio.gather(self.front.close(), self.back.close())

    @property
    def up(self) -> bool:
        return self.front.up and self.back.up

    def _greeted(self, link: Link, run: Run) -> None:
        """A link has connected. If to another run than was known, the other link must not go on with that one."""
        known, self.run = self.run, run
        if known.run_id and known != run:
            (self.back if link is self.front else self.front).drop("the server has been restarted, or another one has taken its place")
            self._on_run(self)


class Route:
    """Where the calls of one tree go now."""

    __slots__ = ("back", "front", "node", "tree")

    def __init__(self, tree: str) -> None:
        self.tree = tree
        self.node: Node | None = None
        self.front: Caller = Nowhere()
        self.back: Caller = self.front


class Topology:
    """The routes of one ledger."""

    def __init__(
        self,
        place: Place,
        link: LinkMaker,
        finder: Finder | None,
        on_move: Callable[[str, str], None],
        log: Log,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """finder: None where the place is one server. on_move: told of a tree, and why what is known of its state may not hold any more."""
        self._link = link
        self._finder = finder
        self._on_move = on_move
        self._log = log
        self._jitter = jitter
        self._period_s = WATCH_S if place.kind == "sentinel" else None
        self._map = Map(place.asked if finder is None else ())
        self._nodes: dict[Address, Node] = {}
        self._routes: dict[str, Route] = {}
        self._wanted = asyncio.Event()
        self._lost = ""  # why the last lookup failed
        self._watching: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()  # nodes that are left

    async def open(self) -> None:
        """Connects, and goes on trying if this fails; then LedgerUnavailable says why."""
        if self._finder is not None:
            await self._look_up(self._finder)
            self._watching = asyncio.create_task(self._watch(self._finder))
            if self._lost:
                raise LedgerUnavailable(self._lost)
        node = self.route(COMMON).node
        if node is None:
            raise LedgerUnavailable("the cluster has no server for a part of the slots")
        await node.ready()

    async def close(self) -> None:
        self._map = Map(())
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        await asyncio.gather(*self._closing, *(node.close() for node in self._nodes.values()))
        if self._finder is not None:
            await self._finder.close()

    def route(self, tree: str) -> Route:
        """Of a tree, for ever."""
        route = self._routes.get(tree)
        if route is None:
            route = self._routes[tree] = Route(tree)
            self._point(route)
        return route

    def masters(self) -> list[Node]:
        """All servers that take writes, whether a tree is kept there or not."""
        return [self._node(address) for address in self._map.masters]

    # -- steps --

    def _node(self, address: Address) -> Node:
        node = self._nodes.get(address)
        if node is None:
            node = self._nodes[address] = Node(address, self._link, self._restarted, self._wanted.set)
        return node

    def _point(self, route: Route) -> None:
        """Where the cluster has no server for it, a route stays as it is: whether anything was lost shows when there is one again."""
        address, was = self._map.of(route.tree), route.node
        if address is None or (was is not None and was.address == address):
            return
        node = self._node(address)
        route.node, route.front, route.back = node, node.front, node.back
        if was is not None:
            self._on_move(route.tree, f"it is kept at {address} now, not at {was.address}")

    def _restarted(self, node: Node) -> None:
        for route in list(self._routes.values()):
            if route.node is node:
                self._on_move(route.tree, f"the server at {node.address} was restarted, or another one has taken its place")

    def _apply(self, found: Map) -> None:
        if found.masters != self._map.masters:
            self._log.info("ledger servers", masters=[str(address) for address in found.masters])
        self._map = found
        for route in list(self._routes.values()):
            self._point(route)
        kept = {*found.masters, *(route.node.address for route in self._routes.values() if route.node is not None)}
        for address in self._nodes.keys() - kept:
            task = asyncio.create_task(self._nodes.pop(address).close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _look_up(self, finder: Finder) -> bool:
        """Whether the map is another one now."""
        try:
            found = await finder.find(self._map.masters)
        except Exception as error:  # whatever it is, the next lookup may go well
            if not self._lost:
                self._log.warning("ledger servers unknown", reason=str(error))
            self._lost = str(error) or repr(error)
            return False
        self._lost = ""
        if found == self._map:
            return False
        self._apply(found)
        return True

    async def _watch(self, finder: Finder) -> None:
        """Looks the map up when that is wanted, and as long as something is amiss."""
        pause_s, clock = PAUSE_S[0], asyncio.get_running_loop().time
        while True:
            amiss = self._lost or not all(route.node is not None and route.node.up for route in self._routes.values())
            since = clock()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s if amiss else self._period_s):
                    await self._wanted.wait()
            self._wanted.clear()
            changed = await self._look_up(finder)
            pause_s = PAUSE_S[0] if changed or clock() - since > 2 * PAUSE_S[1] else min(2 * pause_s, PAUSE_S[1])
            await asyncio.sleep(pause_s * (0.5 + self._jitter()))


def slot(tree: str) -> int:
    """Of a Redis Cluster, in which all keys with this hash tag are."""
    return crc_hqx(tree.encode(), 0) % SLOTS
