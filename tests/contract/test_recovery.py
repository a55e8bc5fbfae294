"""State that is lost, rolled back or seeded anew; reserves, marks, buckets that were full meanwhile, counters that only watch. On every ledger."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sluicegate.core.claims import Ref, Seed, Settlement
from sluicegate.ledger.contract import LedgerRecovering, TreeState
from support_ledgers import Backend, Desk, Vandal, backend_of, use

DAY_MS = 86_400_000
SHADOW = 2**52  # the ceiling of a counter whose limits only watch
TTL_MS = 40  # of holds that are to expire


@pytest.fixture
async def desk(backend: Backend) -> AsyncIterator[Desk]:
    async with backend.running() as ledger:
        yield Desk(ledger)


@pytest.fixture
def vandal(backend: Backend, desk: Desk) -> Iterator[Vandal]:
    vandal = Vandal(backend, desk.ledger)
    yield vandal
    vandal.close()


@pytest.fixture
def doubts(desk: Desk) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    desk.ledger.on_doubt = lambda tree, why: found.append((tree, why))
    return found


def refs_of(desk: Desk) -> Any:
    return desk.refs(desk.window(1000), desk.concurrent(9))


Verb = Callable[[Desk], Awaitable[Any]]
VERBS: dict[str, Verb] = {
    "admit": lambda desk: desk.admit(refs_of(desk), 1, 0, 1, 0, hold_id="new"),
    "extend": lambda desk: desk.extend(refs_of(desk), 2, 3),
    "settle": lambda desk: desk.settle(refs_of(desk), 1, 1),
    "renew": lambda desk: desk.ledger.renew("t", ["h"], 60_000),
    "warn": lambda desk: desk.ledger.warn(refs_of(desk)),
    "fill": lambda desk: desk.ledger.fill("t", [Seed(desk.window(1, "filled"))]),
    "announce": lambda desk: desk.announce(refs_of(desk), 1, 0, 1, 0, hold_id="new"),
}
Loss = Callable[[Vandal, Desk], None]
LOSSES: dict[str, Loss] = {
    "everything": lambda vandal, desk: vandal.everything(),
    "an older state": lambda vandal, desk: vandal.rewind(desk.ledger.trees["t"].seq - 1),
    "nothing since": lambda vandal, desk: vandal.rewind(1),
}


# -- what is noticed ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
async def test_a_tree_that_is_not_in_use_is_left_alone(desk: Desk, verb: Verb) -> None:
    """Every verb that writes fails at once, and does nothing; it can be looked at."""
    await desk.admit(refs_of(desk), 10, 0, 1, 0)
    states = await desk.states(refs_of(desk))
    state = desk.ledger.trees.pop("t")
    with pytest.raises(LedgerRecovering):
        await verb(desk)
    assert await desk.ledger.sweep(64) == []
    assert await desk.states(refs_of(desk)) == states
    assert await desk.ledger.seq("t", "first") == state.seq


async def test_a_tree_that_is_not_open_yet_admits_nothing(desk: Desk) -> None:
    """While holds are announced everything else goes on."""
    await desk.admit(refs_of(desk), 10, 1000, 1, 0, output=(1, 1, 1))
    desk.ledger.trees["t"].open = False
    with pytest.raises(LedgerRecovering):
        await VERBS["admit"](desk)
    await desk.announce(refs_of(desk), 5, 0, 1, 0, hold_id="announced")
    assert (await desk.extend(refs_of(desk), 2, 3)).g == 3
    await desk.ledger.renew("t", ["h"], 60_000)
    assert await desk.settle(refs_of(desk), 12, 1) == "settled"
    assert await desk.states(refs_of(desk)) == [(12, 5), (0, 1)]


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
async def test_what_was_lost_is_not_read_as_zero(desk: Desk, vandal: Vandal, doubts: list[tuple[str, str]], verb: Verb, loss: Loss) -> None:
    """Cases 2 and 132: a flushed or restored ledger. The first verb that meets it ends the epoch, and the tree is out of use until it is seeded."""
    await desk.admit(refs_of(desk), 10, 0, 1, 0)
    await desk.settle(refs_of(desk), 900, 1, hold_id="used", mode="force")
    loss(vandal, desk)
    with pytest.raises(LedgerRecovering, match="t is lost: the epoch is gone, or behind"):
        await verb(desk)
    assert doubts == [("t", "the epoch is gone, or behind what was seen of it")]
    assert "t" not in desk.ledger.trees
    assert await desk.ledger.seq("t", "first") == 0
    with pytest.raises(LedgerRecovering, match="being recovered"):
        await VERBS["admit"](desk)
    assert len(doubts) == 1


async def test_a_sweep_notices_what_was_lost_and_goes_on(desk: Desk, vandal: Vandal, doubts: list[tuple[str, str]], backend: Backend) -> None:
    """It stops at no tree."""
    await use(desk.ledger, "a", "z")
    desks = [Desk(desk.ledger, tree) for tree in ("a", "z")]
    for one in (desk, *desks):
        await one.admit(refs_of(one), 10, 0, 1, 0, hold_id=one.tree, ttl_ms=TTL_MS)
    vandal.rewind(1)
    await backend.wait(TTL_MS + 10)
    assert sorted(swept.hold_id for swept in await desk.ledger.sweep(64)) == ["a", "z"]
    assert [tree for tree, _ in doubts] == ["t"]


async def test_parallel_calls_are_one_doubt(desk: Desk, vandal: Vandal, doubts: list[tuple[str, str]]) -> None:
    """All of them fail, and whoever recovers the tree is told once."""
    vandal.everything()
    calls = [desk.admit(refs_of(desk), 1, 0, 1, 0, hold_id=f"h{i}") for i in range(9)]
    assert {type(result) for result in await asyncio.gather(*calls, return_exceptions=True)} == {LedgerRecovering}
    assert len(doubts) == 1


@pytest.mark.parametrize("verb", ["admit", "again", "extend", "settle", "announce"])
async def test_one_counter_that_was_lost_is_noticed(desk: Desk, vandal: Vandal, doubts: list[tuple[str, str]], verb: str) -> None:
    """Case 132: one counter evicted, or deleted by hand. It cannot be told from a new one but by the index."""
    await desk.admit(refs_of(desk), 10, 0, 1, 0)
    vandal.counter(desk.key("w"))
    call = VERBS[verb](desk) if verb != "again" else desk.admit(refs_of(desk), 10, 0, 1, 0)
    with pytest.raises(LedgerRecovering, match="a counter is missing"):
        await call
    assert doubts == [("t", "a counter is missing, or the index of counters")]
    assert await desk.ledger.seq("t", "first") == 0


IN_REDIS = pytest.mark.parametrize("backend", ["redis", "cluster"], indirect=True)  # a counter, a hold and its expiry are one row elsewhere
DAMAGES = [("w", "u", None), ("w", "h", None), ("w", "u", "many"), ("o", "h", "many"), ("b", "d", None), ("b", "d", "many"), ("s", "many", "1")]


@IN_REDIS
@pytest.mark.parametrize(("kind", "field", "value"), DAMAGES)
async def test_a_damaged_counter_is_not_read_as_zero(
    desk: Desk, vandal: Vandal, doubts: list[tuple[str, str]], kind: str, field: str, value: str | None
) -> None:
    """A hash that is there without one of its fields, or with one that is no number, was not made so: something of it was lost."""
    refs = desk.refs({"w": desk.window(1000), "o": desk.concurrent(9), "b": desk.bucket(1000), "s": desk.sliding(1000)}[kind])
    await desk.admit(refs, 9, 0)
    vandal.field(refs.refs[0].key, field, value)
    with pytest.raises(LedgerRecovering, match="a counter is damaged"):
        await desk.admit(refs, 1, 0, hold_id="new")
    assert doubts == [("t", "a counter is damaged")]


@IN_REDIS
async def test_a_lost_record_of_one_hold_is_noticed_when_it_expires(
    desk: Desk, vandal: Vandal, doubts: list[tuple[str, str]], backend: Backend
) -> None:
    """Its expiry still tells of it. Passed over, what it held would be held for ever. Nothing is charged that the seeding would not know of."""
    await desk.admit(refs_of(desk), 10, 0, 1, 0, ttl_ms=TTL_MS)
    await desk.admit(refs_of(desk), 10, 0, 1, 0, ttl_ms=TTL_MS, hold_id="other")
    vandal.record("other")
    await backend.wait(TTL_MS + 10)
    assert await desk.ledger.sweep(64) == []
    assert doubts == [("t", "the record of a hold is missing")]


async def test_what_an_admission_swept_before_it_noticed_is_not_forgotten(desk: Desk, vandal: Vandal, backend: Backend) -> None:
    """Somebody has to write the records of those requests: the next sweep returns them."""
    await desk.admit(desk.refs(desk.concurrent(9)), 1, 0, ttl_ms=TTL_MS)
    await desk.admit(refs_of(desk), 10, 0, 1, 0, hold_id="other")
    vandal.counter(desk.key("w"))
    await backend.wait(TTL_MS + 10)
    with pytest.raises(LedgerRecovering):
        await VERBS["admit"](desk)
    assert [swept.hold_id for swept in await desk.ledger.sweep(64)] == ["h"]
    assert await desk.ledger.sweep(64) == []


@pytest.mark.parametrize("loss", [Vandal.index, Vandal.everything])
async def test_a_lost_index_is_noticed_with_the_first_new_counter(desk: Desk, vandal: Vandal, doubts: list[tuple[str, str]], loss: Any) -> None:
    """Without it nobody could tell a new counter from one that was lost, not even where the epoch was put back by hand."""
    await desk.admit(refs_of(desk), 10, 0, 1, 0)
    loss(vandal)
    if loss is Vandal.everything:
        await desk.ledger.seed("t", "other", ())
        vandal.everything()
        desk.ledger.trees["t"] = TreeState("first", 1, open=True)
        with pytest.raises(LedgerRecovering):
            await VERBS["admit"](desk)
        return
    assert (await VERBS["admit"](desk)).status == "granted"  # nothing is missing
    with pytest.raises(LedgerRecovering, match="or the index of counters"):
        await desk.admit(desk.refs(desk.window(1000, "new")), 10, 0, hold_id="other")
    assert len(doubts) == 1


@pytest.mark.parametrize("verb", ["extend", "settle"])
async def test_lost_records_of_holds_are_noticed(desk: Desk, vandal: Vandal, doubts: list[tuple[str, str]], verb: str) -> None:
    """Else every hold would count as settled, and what it held would be held for ever."""
    await desk.admit(refs_of(desk), 10, 0, 1, 0)
    vandal.holds()
    with pytest.raises(LedgerRecovering, match="the records of holds are missing"):
        await VERBS[verb](desk)
    assert len(doubts) == 1


async def test_every_verb_raises_the_sequence(desk: Desk) -> None:
    """Refused or not, and the worker remembers where it stands."""
    await desk.admit(refs_of(desk), 10, 0, 1, 0)
    for verb in VERBS.values():
        before = await desk.ledger.seq("t", "first")
        await verb(desk)
        assert await desk.ledger.seq("t", "first") == desk.ledger.trees["t"].seq == before + 1
    assert (await desk.admit(desk.refs(desk.window(0)), 1, 0, hold_id="refused")).status == "refused"
    await desk.admit(desk.refs(), hold_id="due", ttl_ms=0)
    assert len(await desk.ledger.sweep(64)) == 1
    await desk.states(refs_of(desk))
    assert await desk.ledger.seq("t", "first") == desk.ledger.trees["t"].seq == before + 4


@pytest.fixture(params=["sqlite", "redis"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    return backend_of(request.param, tmp_path, request.getfixturevalue("redis_url") if request.param == "redis" else "")


async def test_an_epoch_that_one_worker_found_lost_is_over_for_all(shared: Backend) -> None:
    """One that has seen less would not notice a state that is rolled back; the one that does ends it for both."""
    async with shared.running() as one, shared.running() as two:
        vandal = Vandal(shared, one)
        behind, ahead = Desk(one), Desk(two)
        for i in range(5):
            await ahead.admit(refs_of(ahead), 1, 0, 1, 0, hold_id=f"h{i}")
        vandal.rewind(3)
        assert (await behind.admit(refs_of(behind), 1, 0, 1, 0, hold_id="unnoticed")).status == "granted"
        with pytest.raises(LedgerRecovering):
            await ahead.admit(refs_of(ahead), 1, 0, 1, 0, hold_id="noticed")
        with pytest.raises(LedgerRecovering):
            await behind.admit(refs_of(behind), 1, 0, 1, 0, hold_id="noticed")
        vandal.close()


async def test_a_ledger_says_which_run_of_a_server_it_is(desk: Desk, backend: Backend) -> None:
    """The same as long as it runs; of a shared one the same for all workers."""
    run = desk.ledger.incarnation("t")
    assert run
    assert run == desk.ledger.incarnation("t")
    async with backend.running() as other:
        assert (other.incarnation("t") == run) == backend.shared


# -- seeding ------------------------------------------------------------------------------------------------------------------------------


async def test_seeding_begins_anew(desk: Desk, doubts: list[tuple[str, str]]) -> None:
    """Counters that are not named, holds, markers and other epochs are gone; those that are named stand where they were said to stand."""
    slice_ms = 3_600_000
    old = desk.refs(desk.window(1000), desk.window(1000, "ghost"), desk.bucket(1000), desk.sliding(1000), desk.concurrent(9))
    await desk.admit(old, 10, 0, 20, 0, 30, 0, 40, 0, 1, 0)
    await desk.settle(old, 1, 2, 3, 4, 1, hold_id="marker", mode="force")
    now_ms = (await desk.ledger.peek(old)).now_ms
    ending = desk.window(1000, "ending", now_ms - DAY_MS, now_ms + DAY_MS)
    over = desk.window(1000, "over", now_ms - 2 * DAY_MS, now_ms - DAY_MS)
    slices = {now_ms // slice_ms - 70: 1, now_ms // slice_ms - 3: 5, now_ms // slice_ms: 7}
    seeds = [
        Seed(desk.window(1000), used=700),
        Seed(ending, used=2**52 - 1),
        Seed(over, used=5),
        Seed(desk.bucket(1000), used=1500),
        Seed(desk.bucket(1000, "full")),
        Seed(desk.sliding(1000), slices=slices),
        Seed(desk.sliding(1000, "idle")),
        Seed(desk.concurrent(9)),
    ]
    seq = await desk.ledger.seed("t", "second", seeds)
    assert seq == await desk.ledger.seq("t", "second") > 0
    assert await desk.ledger.seq("t", "first") == 0
    counters = await desk.counters()
    assert {name: (view.kind, view.used, view.held) for name, view in counters.items() if name != "s"} == {
        "w": ("w", 700, 0),
        "ending": ("w", 2**52 - 1, 0),
        "b": ("b", 1500, 0),
    }
    assert await desk.holds() == {}
    with pytest.raises(LedgerRecovering):
        await VERBS["settle"](desk)
    assert [tree for tree, _ in doubts] == ["t"]
    desk.ledger.trees["t"] = TreeState("second", seq, open=True)
    assert [state[0] for state in await desk.states(old)] == [700, 0, 1500, 12, 0]
    assert (await desk.admit(old, 301, 0, 0, 0, 0, 0, 0, 0, 0, 0, hold_id="a")).status == "refused"
    assert (await desk.admit(old, 300, 0, 1, 0, 0, 0, 988, 0, 1, 0, hold_id="b")).status == "granted"


async def test_seeding_leaves_other_trees_alone(desk: Desk) -> None:
    """Also where a tree's name would match others', were it a pattern."""
    await use(desk.ledger, "tt", "a[t]", "t?", "*")
    desks = [Desk(desk.ledger, tree) for tree in ("t", "tt", "a[t]", "t?", "*")]
    for one in desks:
        await one.admit(refs_of(one), 10, 0, 1, 0)
    for tree in ("*", "t?", "a[t]"):
        await desk.ledger.seed(tree, "second", ())
    for one in desks:
        assert await one.states(refs_of(one)) == ([(0, 10), (0, 1)] if one.tree in ("t", "tt") else [(0, 0), (0, 0)])


async def test_a_seeded_window_that_is_lost_is_noticed(desk: Desk, vandal: Vandal) -> None:
    """Seeding writes the index, too."""
    await desk.ledger.seed("t", "second", [Seed(desk.window(1000), used=7)])
    desk.ledger.trees["t"] = TreeState("second", 1, open=True)
    vandal.counter(desk.key("w"))
    with pytest.raises(LedgerRecovering, match="a counter is missing"):
        await VERBS["admit"](desk)


async def test_seeding_many_counters(desk: Desk) -> None:
    """More than one call to the server carries."""
    seeds = [Seed(desk.window(1000, f"w{i}"), used=i) for i in range(250)]
    await desk.ledger.seed("t", "second", seeds)
    assert {name: view.used for name, view in (await desk.counters()).items()} == {f"w{i}": i for i in range(250)}


async def test_filling_makes_what_is_missing(desk: Desk) -> None:
    """Windows of a limit that is new begin with what was used in them; one that counts already has used that much at least, whatever it holds."""
    now_ms = desk.ledger.now_ms()
    refs = desk.refs(desk.window(1000), desk.bucket(1000), desk.sliding(1000))
    await desk.admit(refs, 10, 0, 20, 0, 30, 0)
    slices = {now_ms // 3_600_000: 9}
    old = [Seed(desk.window(1000), used=9), Seed(desk.bucket(1000), used=9), Seed(desk.sliding(1000), slices=slices)]
    new = [
        Seed(desk.window(1000, "new"), used=9),
        Seed(desk.bucket(1000, "new-b"), used=8),
        Seed(desk.sliding(1000, "new-s"), slices=slices),
        Seed(desk.window(1000, "new-over", now_ms - 3 * DAY_MS, now_ms - 2 * DAY_MS), used=6),
    ]
    for _ in range(2):
        await desk.ledger.fill("t", [*old, *new])
        assert [state[: 2 if i == 0 else 1] for i, state in enumerate(await desk.states(refs))] == [(9, 10), (20,), (30,)]
        assert [state[0] for state in await desk.states(desk.refs(*(seed.ref for seed in new)))] == [9, 8, 9, 0]
    await desk.ledger.fill("t", [Seed(desk.window(1000), used=8)])
    assert (await desk.states(refs))[0] == (9, 10)


async def test_filling_does_not_hide_a_loss(desk: Desk, vandal: Vandal) -> None:
    """A window that should be there is not made anew from records that know nothing of what is held."""
    await desk.admit(refs_of(desk), 10, 0, 1, 0)
    vandal.counter(desk.key("w"))
    await desk.ledger.fill("t", [Seed(desk.window(1000), used=9)])
    with pytest.raises(LedgerRecovering, match="a counter is missing"):
        await VERBS["admit"](desk)


async def test_an_announced_hold_goes_on(desk: Desk, backend: Backend) -> None:
    """It holds what it held, whatever the ceilings say; told twice it counts once; it grows, expires and settles like any other."""
    refs = desk.refs(desk.window(100), desk.bucket(100), desk.sliding(100), desk.concurrent(0))
    for _ in range(2):
        await desk.announce(refs, 100, 1000, 120, 0, 130, 0, 1, 0, g=50, seen=20, ttl_ms=TTL_MS)
    assert [state[0] + (state[1] if i in (0, 3) else 0) for i, state in enumerate(await desk.states(refs))] == [150, 120, 130, 1]
    hold = (await desk.holds())["h"]
    assert (hold.state, hold.g, hold.seen, hold.tag) == ("open", 50, 20, "tag-h")
    assert (await desk.extend(refs, 50, 60, ttl_ms=TTL_MS)).g == 50
    await backend.wait(TTL_MS + 10)
    assert [(swept.g, swept.seen) for swept in await desk.ledger.sweep(64)] == [(50, 20)]
    assert await desk.settle(refs, 110, 110, 110, 1) == "late"
    assert [state[0] for state in await desk.states(refs)] == [110, 110, 110, 0]
    await desk.announce(desk.refs(), hold_id="known")
    await desk.settle(desk.refs(), hold_id="known", mode="force")
    await desk.announce(refs_of(desk), 5, 0, 1, 0, hold_id="known")
    assert (await desk.states(refs_of(desk)))[1] == (0, 0)


async def test_an_announced_hold_leaves_out_windows_that_are_over(desk: Desk) -> None:
    """What was used in them is not known any more, so the hold grows no further; what it uses counts there all the same."""
    now_ms = (await desk.ledger.peek(desk.refs())).now_ms
    refs = desk.refs(desk.window(1000), desk.window(1000, "over", now_ms - DAY_MS, now_ms - 1000))
    await desk.announce(refs, 10, 1000, 10, 1000, g=50)
    assert await desk.states(refs) == [(0, 60), (0, 0)]
    assert (await desk.extend(refs, 51, 90)).status == "refused"
    assert (await desk.extend(refs, 50, 90)).g == 50
    assert await desk.settle(refs, 55, 55) == "settled"
    assert await desk.states(refs) == [(55, 0), (55, 0)]


async def test_a_settlement_that_comes_after_a_seeding(desk: Desk) -> None:
    """Its hold is not known any more: whoever keeps settlements asks the records first, and forces what they do not have."""
    refs = refs_of(desk)
    await desk.admit(refs, 10, 0, 1, 0)
    seq = await desk.ledger.seed("t", "second", [Seed(desk.window(1000), used=100)])
    desk.ledger.trees["t"] = TreeState("second", seq, open=True)
    assert await desk.settle(refs, 7, 1) == "already"
    assert await desk.states(refs) == [(100, 0), (0, 0)]
    assert [await desk.settle(refs, 7, 1, mode="force") for _ in range(2)] == ["forced", "already"]
    assert await desk.states(refs) == [(107, 0), (0, 0)]


# -- reserves, marks, buckets -------------------------------------------------------------------------------------------------------------


def reserving(ref: Ref, reserved: int) -> Ref:
    return Ref(ref.key, ref.kind, ref.ceiling, gain=ref.gain, per_ms=ref.per_ms, reserved=reserved)


@pytest.mark.parametrize("kind", ["window", "bucket", "sliding", "concurrent"])
async def test_what_is_reserved_admits_others_only(desk: Desk, kind: str) -> None:
    """A low priority finds the ceiling lower by the reserve; it counts in the same counter."""
    high: Ref = getattr(desk, kind)(100)
    low = reserving(high, 30)
    assert (await desk.admit(desk.refs(low), 71, 0, hold_id="a")).status == "refused"
    assert (await desk.admit(desk.refs(low), 70, 0, hold_id="b")).status == "granted"
    assert (await desk.admit(desk.refs(low), 1, 0, hold_id="c")).status == "refused"
    assert (await desk.admit(desk.refs(high), 30, 0, hold_id="d")).status == "granted"
    assert (await desk.admit(desk.refs(low), 0, 0, hold_id="free")).status == "granted"


async def test_a_stream_may_grow_into_what_is_reserved(desk: Desk) -> None:
    """The reserve is kept from admissions: what is under way is not cut for it."""
    low = desk.refs(desk.window(100, reserved=30))
    assert (await desk.admit(low, 10, 1000, output=(1, 90, 90))).g == 60
    assert (await desk.extend(low, 61, 200)).g == 90
    assert (await desk.extend(low, 91, 200)).status == "refused"


async def settled_marks(desk: Desk, refs: Any, *actual: int, hold_id: str) -> tuple[tuple[int, int], ...]:
    return (await desk.ledger.settle(Settlement(hold_id, refs, actual, "force"))).marks


async def test_a_settlement_tells_which_marks_it_reached(desk: Desk) -> None:
    """All at once if it passes several, each one once; marks of one limit are no other's; used alone counts, not what is held."""
    refs = desk.refs(desk.concurrent(99), desk.window(100, marks=(80, 95, 100)), desk.window(10**14, "usd", marks=(10**14,)), desk.bucket(10))
    await desk.admit(refs, 1, 0, 99, 0, 0, 0, 0, 0)
    assert await settled_marks(desk, refs, 0, 0, 0, 0, hold_id="h") == ()
    assert await settled_marks(desk, refs, 0, 79, 10**14 - 1, 0, hold_id="a") == ()
    assert await settled_marks(desk, refs, 0, 1, 0, 90, hold_id="b") == ((1, 0),)
    assert await settled_marks(desk, refs, 0, 14, 0, 0, hold_id="c") == ()
    assert await settled_marks(desk, refs, 0, 30, 1, 0, hold_id="d") == ((1, 1), (1, 2), (2, 0))
    assert await settled_marks(desk, refs, 0, 30, 1, 0, hold_id="e") == ()
    assert await desk.ledger.warn(refs) == ()
    assert (await desk.counters())["w"].used == 154


async def test_every_way_to_settle_tells_marks(desk: Desk, backend: Backend) -> None:
    """Late, forced, and by a cancel that finds what others have used; a settlement that changes nothing tells nothing."""
    refs = desk.refs(desk.window(100, marks=(10, 20, 30, 40)))
    await desk.admit(refs, 5, 0, ttl_ms=TTL_MS)
    await desk.admit(refs, 5, 0, hold_id="cancelled")
    await backend.wait(TTL_MS + 10)
    assert len(await desk.ledger.sweep(64)) == 1
    assert (await desk.ledger.settle(Settlement("h", refs, (12,)))).marks == ((0, 0),)
    assert (await desk.ledger.settle(Settlement("h", refs, (50,)))).marks == ()
    unmarked = desk.refs(desk.window(100))
    assert (await desk.ledger.settle(Settlement("f", unmarked, (10,), "force"))).marks == ()
    assert (await desk.ledger.settle(Settlement("cancelled", refs, (0,), "cancel"))).marks == ((0, 1),)


async def test_a_sweep_leaves_marks_to_be_asked_for(desk: Desk, backend: Backend) -> None:
    """It does not know them: the worker asks for the counters that the sweep has charged. Asked again, there is nothing to tell."""
    refs = desk.refs(desk.bucket(100), desk.window(100, marks=(80, 100)), desk.window(5, "never", marks=(1,)))
    await desk.admit(desk.refs(desk.window(100)), 90, 0, ttl_ms=TTL_MS)
    assert await desk.ledger.warn(refs) == ()
    await backend.wait(TTL_MS + 10)
    assert len(await desk.ledger.sweep(64)) == 1
    assert [await desk.ledger.warn(refs) for _ in range(2)] == [((1, 0),), ()]


async def test_marks_outlive_what_happens_to_their_window(desk: Desk, backend: Backend) -> None:
    """Admissions, extensions, expiries and reopenings keep what was told; falling below a mark and reaching it again tells nothing."""
    refs = desk.refs(desk.window(100, marks=(50,)))
    await desk.admit(refs, 60, 1000, output=(1, 1, 1), ttl_ms=TTL_MS)
    await backend.wait(TTL_MS + 10)
    assert len(await desk.ledger.sweep(64)) == 1
    assert await desk.ledger.warn(refs) == ((0, 0),)
    await desk.ledger.renew("t", ["h"], 60_000)
    assert (await desk.states(refs))[0][0] == 0
    assert (await desk.extend(refs, 2, 2)).g == 2
    await desk.admit(refs, 1, 0, hold_id="other")
    assert (await desk.ledger.settle(Settlement("h", refs, (60,)))).marks == ()
    assert (await desk.ledger.settle(Settlement("other", refs, (60,)))).marks == ()


async def test_marks_are_told_once_by_all_workers(shared: Backend) -> None:
    """Whoever settles first tells."""
    async with shared.running() as one, shared.running() as two:
        desks = Desk(one), Desk(two)
        refs = [desk.refs(desk.window(10_000, marks=(100, 200, 300))) for desk in desks]
        calls = [desks[i % 2].ledger.settle(Settlement(f"h{i}", refs[i % 2], (10,), "force")) for i in range(40)]
        told = [mark for settled in await asyncio.gather(*calls) for mark in settled.marks]
        assert sorted(told) == [(0, 0), (0, 1), (0, 2)]


async def test_a_bucket_that_was_full_meanwhile_gives_nothing_back(desk: Desk, backend: Backend) -> None:
    """What an old claim took has refilled long ago: given back, it would make room for what others have taken since."""
    ref = desk.bucket(1000, gain=1, per_ms=10)
    refs = desk.refs(ref)
    for hold_id in ("old", "older", "replaced"):
        await desk.admit(refs, 2, 0, hold_id=hold_id)
    await backend.wait(120)
    await desk.admit(refs, 600, 0, hold_id="young")
    assert await desk.settle(refs, 0, hold_id="old") == "settled"
    assert (await desk.states(refs))[0][0] > 500
    reply = await desk.admit(refs, 1, 0, hold_id="next", replacing="replaced")
    assert reply.states[0][0] > 500
    assert await desk.settle(refs, 102, hold_id="older") == "settled"
    after = (await desk.states(refs))[0][0]
    assert 600 < after <= 701
    assert await desk.settle(refs, 500, hold_id="young") == "settled"
    assert after - 150 < (await desk.states(refs))[0][0] <= after - 100


async def test_a_bucket_gives_back_at_most_what_is_taken(desk: Desk, backend: Backend) -> None:
    """A claim that has refilled in part leaves no more than a full bucket; one that is gone takes what was used beyond the claim."""
    refs = desk.refs(desk.bucket(1000, gain=1, per_ms=1))
    await desk.admit(refs, 500, 0, hold_id="a")
    await backend.wait(100)
    assert await desk.settle(refs, 0, hold_id="a") == "settled"
    assert await desk.states(refs) == [(0, 0)]
    await desk.admit(refs, 5, 0, hold_id="b")
    await backend.wait(20)
    assert "b" not in await desk.counters()
    assert await desk.settle(refs, 0, hold_id="b") == "settled"
    assert await desk.states(refs) == [(0, 0)]
    await desk.admit(refs, 5, 0, hold_id="c")
    await backend.wait(20)
    assert await desk.settle(refs, 905, hold_id="c") == "settled"
    assert 500 < (await desk.states(refs))[0][0] <= 900


async def test_counters_that_only_watch_stay_exact(desk: Desk) -> None:
    """A ceiling above every amount refuses nothing; what is counted under it keeps its last digit."""
    refs = desk.refs(desk.window(SHADOW), desk.bucket(SHADOW), desk.sliding(SHADOW), desk.concurrent(SHADOW))
    large = 2**51 + 1
    for i in range(2):
        reply = await desk.admit(refs, 10**14 + i, 1_000_000_007, 2**40 + i, 0, 10**14 + i, 0, 1, 0, hold_id=f"h{i}", output=(1, 10**6, 10**6))
        assert (reply.status, reply.g) == ("granted", 10**6)
    assert [state[0] for state in reply.states] == [0, 2**41 + 1, 2 * 10**14 + 1, 0]
    assert [reply.states[i][1] for i in (0, 3)] == [2 * (10**14 + 1_000_000_007_000) + 1, 2]
    assert await desk.settle(refs, large, 3, 10**14, 1, hold_id="h0") == "settled"
    assert await desk.settle(refs, large - 1, 3, 10**14, 1, hold_id="h1") == "settled"
    assert [state[0] for state in await desk.states(refs)] == [2 * large - 1, 6, 2 * 10**14, 0]
