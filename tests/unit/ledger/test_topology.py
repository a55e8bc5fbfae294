"""Which link the calls of a tree take, and who is told when that changes. Links and lookups are fakes; real servers: tests/e2e."""

import asyncio
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from sluicegate.ledger.address import Address, Place
from sluicegate.ledger.contract import LedgerUnavailable
from sluicegate.ledger.link import Command, Link, Run, raw
from sluicegate.ledger.topology import COMMON, NOBODY, SLOTS, Map, Topology, slot

A, B, C = Address("a"), Address("b"), Address("c")


class FakeLink:
    """Connects, or fails to, when the test says so."""

    def __init__(self, address: Address, back: bool, on_greeted: Callable[[Any, Run], None], on_trouble: Callable[[], None]) -> None:
        self.address = address
        self.back = back
        self.up = self.closed = False
        self.dropped: list[str] = []
        self.trouble = on_trouble
        self._on_greeted = on_greeted
        self._first: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def start(self) -> "asyncio.Future[None]":
        return self._first

    def connect(self, run: str, history: str = "") -> None:
        self._on_greeted(self, Run(run, history or run))
        self.up = True
        if not self._first.done():
            self._first.set_result(None)

    def fail(self, why: str) -> None:
        self._first.set_exception(LedgerUnavailable(why))

    def drop(self, reason: str) -> None:
        self.dropped.append(reason)
        self.up = False

    async def close(self) -> None:
        self.closed = True

    def call(self, command: Command, packed: bytes, asked: Any = None) -> "asyncio.Future[Any]":
        raise NotImplementedError


class Finder:
    """Answers with what the test puts there; the same again until then."""

    def __init__(self, found: Map | str) -> None:
        self.found = found
        self.lookups = 0
        self.known: Sequence[Address] = ()
        self.closed = False

    async def find(self, masters: Sequence[Address]) -> Map:
        self.lookups += 1
        self.known = masters
        if isinstance(self.found, str):
            raise LedgerUnavailable(self.found)
        return self.found

    async def close(self) -> None:
        self.closed = True


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, event: str, **fields: object) -> None:
        self.lines.append(f"{event} {fields.get('reason', '')}".strip())

    warning = info


class Stage:
    """A topology, and everything around it."""

    def __init__(self, url: str, finder: Finder | None) -> None:
        self.links: list[FakeLink] = []
        self.moves: list[tuple[str, str]] = []
        self.log = Log()
        self.topology = Topology(Place.parse(url), self._link, finder, lambda tree, why: self.moves.append((tree, why)), self.log, lambda: 0.0)

    def _link(self, *arguments: Any) -> Link:
        self.links.append(FakeLink(*arguments))
        return self.links[-1]  # type: ignore[return-value]

    def of(self, address: Address) -> list[FakeLink]:
        """Front and back link to a server."""
        return [link for link in self.links if link.address == address and not link.closed]

    async def open(self) -> None:
        """Opens; servers connect as runs named after their host."""
        opening = asyncio.create_task(self.topology.open())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for link in self.links:
            link.connect(link.address.host)
        await opening


def ring(*owners: tuple[str, Address]) -> Map:
    """A cluster in which each of these trees is kept by the server behind it, and nothing else by anybody."""
    masters = tuple(dict.fromkeys(address for _, address in owners))
    table = array("H", [NOBODY]) * SLOTS
    for tree, address in owners:
        table[slot(tree)] = masters.index(address)
    return Map(masters, table)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses between lookups are short."""
    monkeypatch.setattr("sluicegate.ledger.topology.PAUSE_S", (0.02, 0.1))


async def soon(check: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not check():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


@pytest.mark.parametrize(("tree", "expected"), [("123456789", 12739), ("foo", 12182)])
def test_slots_are_those_of_a_redis_cluster(tree: str, expected: int) -> None:
    """As CLUSTER KEYSLOT says."""
    assert slot(tree) == expected


async def test_one_server_has_everything() -> None:
    """One pair of links, made once, no lookups, no task beside them."""
    stage = Stage("redis://a", None)
    await stage.open()
    first, second = stage.topology.route("t"), stage.topology.route("u")
    assert (first.front, first.back) == (second.front, second.back) == tuple(stage.links)
    assert [link.back for link in stage.links] == [False, True]
    assert stage.topology.route("t") is first
    assert [node.address for node in stage.topology.masters()] == [A]
    assert len(asyncio.all_tasks()) == 1
    await stage.topology.close()
    assert all(link.closed for link in stage.links)


async def test_opening_fails_with_the_first_attempt() -> None:
    """And says why."""
    stage = Stage("redis://a", None)
    opening = asyncio.create_task(stage.topology.open())
    await asyncio.sleep(0)
    stage.links[0].connect("a")
    stage.links[1].fail("wrong password")
    with pytest.raises(LedgerUnavailable, match="wrong password"):
        await opening
    await stage.topology.close()


async def test_trees_of_a_cluster_go_to_the_servers_that_keep_them() -> None:
    """Links are made when a tree needs them; a tree that nobody keeps fails at once, and goes where it belongs as soon as somebody does."""
    finder = Finder(ring((COMMON, A), ("t", B), ("u", B)))
    stage = Stage("redis+cluster://seed", finder)
    await stage.open()
    assert [link.address for link in stage.links] == [A, A]
    assert stage.topology.route("t").front is stage.topology.route("u").front is stage.of(B)[0]
    nowhere = stage.topology.route("nobody's")
    with pytest.raises(LedgerUnavailable, match="no server"):
        await nowhere.front.call(raw("PING"), b"")
    finder.found = ring((COMMON, A), ("t", B), ("nobody's", C))
    stage.of(A)[0].trouble()
    await soon(lambda: nowhere.front is stage.links[-2])
    assert (nowhere.front, nowhere.back) == tuple(stage.of(C))
    assert finder.known == (A, B)
    assert stage.moves == []
    await stage.topology.close()
    assert finder.closed


async def test_a_tree_that_moves_is_told_of() -> None:
    """Once, and no other; a server that is no longer one of the cluster's is left, one that still is stays."""
    finder = Finder(ring((COMMON, A), ("t", B), ("u", B), ("v", C)))
    stage = Stage("redis+cluster://seed", finder)
    await stage.open()
    routes = {tree: stage.topology.route(tree) for tree in ("t", "u", "v")}
    fronts = {tree: route.front for tree, route in routes.items()}
    finder.found = ring((COMMON, A), ("t", A), ("u", B), ("v", A))
    stage.of(B)[0].trouble()
    await soon(lambda: len(stage.moves) == 2)
    assert [tree for tree, _ in stage.moves] == ["t", "v"]
    assert stage.moves[0][1] == "it is kept at redis://a:6379/0 now, not at redis://b:6379/0"
    assert routes["t"].front is routes["v"].front is stage.of(A)[0]
    assert routes["u"].front is fronts["u"]
    await soon(lambda: stage.of(C) == [])
    assert len(stage.of(B)) == 2
    assert stage.log.lines == ["ledger servers", "ledger servers"]
    await stage.topology.close()


async def test_a_part_of_the_cluster_without_a_server_keeps_its_links() -> None:
    """Whether anything was lost shows when there is one again."""
    finder = Finder(ring((COMMON, A), ("t", B)))
    stage = Stage("redis+cluster://seed", finder)
    await stage.open()
    front = stage.topology.route("t").front
    for found in (ring((COMMON, A)), ring((COMMON, A), ("t", B))):
        finder.found = found
        before = finder.lookups
        stage.of(A)[0].trouble()
        await soon(lambda before=before: finder.lookups > before)
        assert stage.topology.route("t").front is front
    assert stage.moves == []
    assert not front.closed  # type: ignore[attr-defined]
    await stage.topology.close()


@pytest.mark.parametrize(
    ("again", "moved"), [(("r1", "h1"), False), (("r2", "h2"), True), (("r1", "h2"), True)], ids=["same", "restarted", "was a replica"]
)
async def test_another_run_of_a_server(again: tuple[str, str], moved: bool) -> None:
    """Its trees are told of, before the link is used, and the other link does not go on with the run before."""
    stage = Stage("redis://a", None)
    opening = asyncio.create_task(stage.topology.open())
    await asyncio.sleep(0)
    front, back = stage.links
    front.connect("r1", "h1")
    back.connect("r1", "h1")
    await opening
    for tree in ("t", "u"):
        stage.topology.route(tree)
    back.connect(*again)
    told = [tree for tree, why in stage.moves if "restarted" in why]
    assert (told, len(front.dropped), back.dropped) == (([COMMON, "t", "u"], 1, []) if moved else ([], 0, []))
    front.connect(*again)
    assert len(stage.moves) == len(told)
    node = stage.topology.route("t").node
    assert node is not None
    assert node.run == Run(*again)
    await stage.topology.close()


async def test_a_lookup_that_fails_is_repeated() -> None:
    """Open says why; nothing is known meanwhile; one log line for each change."""
    finder = Finder("nobody answers")
    stage = Stage("redis+cluster://seed", finder)
    with pytest.raises(LedgerUnavailable, match="nobody answers"):
        await stage.topology.open()
    route = stage.topology.route("t")
    assert route.node is None
    await soon(lambda: finder.lookups >= 3)
    finder.found = ring((COMMON, A), ("t", B))
    await soon(lambda: route.node is not None)
    assert stage.log.lines == ["ledger servers unknown nobody answers", "ledger servers"]
    await stage.topology.close()


async def test_lookups_are_one_at_a_time_and_not_too_many() -> None:
    """However much trouble there is; with nothing amiss there are none, but where Sentinels may know better."""
    finder = Finder(Map((A,)))
    stage = Stage("redis+sentinel://s/main", finder)
    await stage.open()
    await asyncio.sleep(0.05)  # one more, as the links were not there yet
    before = finder.lookups
    await asyncio.sleep(0.05)
    assert finder.lookups == before
    until = asyncio.get_running_loop().time() + 0.1
    while asyncio.get_running_loop().time() < until:
        stage.of(A)[0].trouble()
        await asyncio.sleep(0.001)
    assert 2 <= finder.lookups - before <= 5
    await stage.topology.close()


async def test_sentinels_are_asked_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old master may not know that it is one no longer; when another is named, everything moves there and the old one is left."""
    monkeypatch.setattr("sluicegate.ledger.topology.WATCH_S", 0.02)
    finder = Finder(Map((A,)))
    stage = Stage("redis+sentinel://s/main", finder)
    await stage.open()
    route = stage.topology.route("t")
    old = stage.of(A)
    finder.found = Map((B,))
    await soon(lambda: stage.moves)
    assert {tree for tree, _ in stage.moves} == {COMMON, "t"}
    assert (route.front, route.back) == tuple(stage.of(B))
    await soon(lambda: all(link.closed for link in old))
    await stage.topology.close()
