"""The records as every database keeps them: what each call does, and what holds when several workers call at once."""

import asyncio
import multiprocessing
import threading

import pytest
from sqlalchemy import Connection

from sluicegate.core.limits import Unit
from sluicegate.records import store
from sluicegate.records.rows import NotLeading, RecordsBehind, TreeRow, WorkerRow
from sluicegate.records.store import WORKER_KEPT_MS, Records
from support_records import SECOND, asked, opened, used, write_lines

# -- usage --------------------------------------------------------------------------------------------------------------------------------


async def test_usage_adds_up(records_url: str) -> None:
    """Rows of the same second, key, model and deployment are summed, within a batch and over batches and writers."""
    async with opened(records_url) as records:
        await records.add("one", 2, [used(requests=1, attempts=2, tokens=(10, 20), cost=5), used(requests=3, attempts=4, tokens=(1, 2), cost=7)])
        await records.add("two", 1, [used(requests=10, attempts=20, tokens=(100, 200), cost=2**52)])
        units = [Unit.REQUESTS, Unit.INPUT_TOKENS, Unit.OUTPUT_TOKENS, Unit.TOKENS, Unit.USD]
        assert await records.sums([asked(unit=unit) for unit in units]) == [14, 111, 222, 333, 2**52 + 12]
        assert await records.sums([asked("up/small", unit, deployment=True) for unit in units]) == [26, 111, 222, 333, 2**52 + 12]


async def test_a_batch_counts_once(records_url: str) -> None:
    """However often it is sent, by whomever, and also when what is sent later is already behind the writer's mark."""
    async with opened(records_url) as records, opened(records_url) as other:
        assert await records.written("w") == 0
        await asyncio.gather(*(one.add("w", 5, [used()]) for one in (records, other) * 8))
        assert await other.written("w") == 5
        await other.add("w", 4, [used()])
        await other.add("w", 9, [])
        assert await records.written("w") == 9
        assert await records.sums([asked()]) == [1]


async def test_a_batch_says_what_must_be_there_before_it(records_url: str) -> None:
    """Records that lack lines which they once had take nothing on top of the gap."""
    async with opened(records_url) as records:
        await records.add("w", 5, [used()])
        await records.add("w", 7, [used()], 5)
        await records.add("w", 7, [used()], 5)
        with pytest.raises(RecordsBehind, match="w up to 7, and had them up to 8"):
            await records.add("w", 9, [used()], 8)
        with pytest.raises(RecordsBehind, match="v up to 0, and had them up to 1"):
            await records.add("v", 9, [used()], 1)
        assert await records.sums([asked()]) == [2]


async def test_an_add_that_is_under_way_is_waited_for(records_url: str) -> None:
    """A worker was killed while its last batch was being committed: who asks how far it got hears of that batch, or it is not in."""
    async with opened(records_url) as records, opened(records_url) as other:
        holding, done = threading.Event(), threading.Event()
        for line in (1, 2):  # the row is made, then changed

            def add_slowly(connection: Connection, upto: int = line) -> None:
                store._add(connection, "w", upto, [used()])
                holding.set()
                done.wait()

            adding = asyncio.create_task(records._database.call(add_slowly))
            await asyncio.to_thread(holding.wait)
            asking = asyncio.create_task(other.written("w"))
            await asyncio.sleep(0.1)
            assert not asking.done()
            done.set()
            await adding
            assert await asking == line
            holding.clear()
            done.clear()


async def test_scopes_hold_what_is_below_them(records_url: str) -> None:
    """A tenant's sum is that of all keys below it, a key's is its own and its sub-keys', `*` is everything; likeness of names counts nothing."""
    keys = ["acme/@k", "acme/team/@k", "acme/team/@k/sub", "acme/team/sub/@k", "acme/team2/@k", "acme2/@k", "other/team/@k"]
    async with opened(records_url) as records:
        await records.add("w", 1, [used(key_id=key, tree=key.partition("/")[0], requests=10**i) for i, key in enumerate(keys)])
        scopes = ["*", "acme", "acme/team", "acme/team/@k", "acme/team/sub", "acme/team2", "acme2", "acme/tea", "nobody"]
        found = await records.sums([asked(scope) for scope in scopes])
        assert found == [1111111, 11111, 1110, 110, 1000, 10000, 100000, 0, 0]
        assert [(await records.sums([asked(scope)]))[0] for scope in scopes] == found


async def test_a_scope_is_found_in_either_tree(records_url: str) -> None:
    """Limits on all organizations put every key into the tree `*`: what was used before or after that still counts for each scope."""
    async with opened(records_url) as records:
        await records.add("w", 1, [used(requests=1), used(tree="*", requests=10), used(key_id="b/@k", tree="*", requests=100)])
        assert await records.sums([asked("acme"), asked("*"), asked("b")]) == [11, 111, 100]


async def test_sums_of_some_models(records_url: str) -> None:
    """Only requests for the models that a limit names count in it."""
    rows = [used(model=model, requests=n) for model, n in {"chat": 1, "small": 10, "large": 100}.items()]
    async with opened(records_url) as records:
        await records.add("w", 1, rows)
        filters = [None, frozenset({"chat"}), frozenset({"chat", "large"}), frozenset({"none"}), frozenset[str]()]
        assert await records.sums([asked(models=models) for models in filters]) == [111, 1, 101, 0, 0]


async def test_sums_of_a_time(records_url: str) -> None:
    """From the first second to the one before the end; an open end takes all that came since."""
    async with opened(records_url) as records:
        await records.add("w", 1, [used(SECOND + i, requests=10**i) for i in range(4)])
        spans = [(0, 0), (SECOND, SECOND + 4), (SECOND + 1, SECOND + 3), (SECOND + 2, 0), (0, SECOND + 1), (SECOND + 4, 0)]
        assert await records.sums([asked(start_s=start, end_s=end) for start, end in spans]) == [1111, 1111, 110, 1100, 1, 0]


async def test_sums_by_slices(records_url: str) -> None:
    """A second counts in the last slice that it may belong to; slices without usage are left out."""
    async with opened(records_url) as records:
        await records.add("w", 1, [used(SECOND + i, requests=10**i) for i in range(4)])
        first = SECOND * 1000 // 1_500
        sliced, whole, other = await records.sums([asked(slice_ms=1_500), asked(), asked("other", slice_ms=1_500)])
        assert sliced == {first: 1, first + 1: 110, first + 2: 1000}
        assert (whole, other) == (1111, {})


async def test_many_counters_are_one_question(records_url: str) -> None:
    """Thousands of keys with several limits each are answered at once."""
    async with opened(records_url) as records:
        await records.add("w", 1, [used(key_id=f"acme/@k{i}", requests=i) for i in range(500)])
        questions = [asked(f"acme/@k{i % 500}", Unit.REQUESTS, start_s) for i in range(4_000) for start_s in (0, SECOND)]
        assert await records.sums(questions) == [i // 2 % 500 for i in range(8_000)]


async def test_what_is_in_flight_is_not_in_the_records(records_url: str) -> None:
    """To ask for it is a mistake."""
    async with opened(records_url) as records:
        await records.add("w", 1, [used()])
        with pytest.raises(ValueError, match="in flight"):
            await records.sums([asked(unit=Unit.CONCURRENT)])


async def test_two_workers_add_to_the_same_rows(records_url: str) -> None:
    """At once, several trees in a batch, in any order: nothing is lost and nobody waits for ever."""
    async with opened(records_url) as one, opened(records_url) as two:

        async def write(records: Records, writer: str) -> None:
            for line in range(1, 41):
                keys = ["a/@k", "b/@k", "c/@k"] if line % 2 else ["c/@k", "b/@k", "a/@k"]
                await records.add(writer, line, [used(SECOND + line % 3, key, tree=key[0]) for key in keys])

        await asyncio.gather(*(write(records, f"{name}{i}") for i in range(2) for name, records in {"one": one, "two": two}.items()))
        assert await one.sums([asked("*"), asked("a"), asked("up/small", deployment=True)]) == [480, 160, 480]


@pytest.mark.parametrize("processes", [3])
def test_processes_open_and_write_at_once(records_url: str, processes: int) -> None:
    """Each finds or makes the tables; each line counts once."""
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        pool.map(write_lines, [(records_url, f"writer {i}", 25) for i in range(processes)])

    async def found() -> list[int | dict[int, int]]:
        async with opened(records_url) as records:
            return await records.sums([asked("acme"), asked("other"), asked("*", Unit.TOKENS)])

    assert asyncio.run(found()) == [25 * processes, 25 * processes, 25 * processes * 60]


# -- workers ------------------------------------------------------------------------------------------------------------------------------


async def test_a_worker_lives_until_it_leaves(records_url: str) -> None:
    """Each beat replaces the one before; who died without leaving is forgotten after an hour."""
    async with opened(records_url) as records:
        await records.beat("one", 1_000, 0, "run a", {})
        await records.beat("two", 1_500, 3, "run a", {})
        await records.beat("one", 2_000, 4, "run b", {})
        rows = sorted(await records.workers(), key=lambda row: row.worker)
        assert rows == [WorkerRow("one", 2_000, 4, "run b"), WorkerRow("two", 1_500, 3, "run a")]
        await records.leave("one")
        assert await records.workers() == [WorkerRow("two", 1_500, 3, "run a")]
        await records.beat("three", 1_501 + WORKER_KEPT_MS, 0, "", {})
        assert [row.worker for row in await records.workers()] == ["three"]


async def test_a_beat_raises_sequences(records_url: str) -> None:
    """Never lowers one, and leaves a tree alone whose epoch is another, or that is lost."""
    async with opened(records_url) as records:
        await seeded(records, "t", "e1")
        await records.opened("t", "e1", 10, "run")
        assert await records.beat("w", 1, 0, "", {"t": ("e1", 12)}) == []
        assert await records.beat("w", 2, 0, "", {"t": ("e1", 11)}) == []
        assert (await records.trees(["t"]))["t"].seq == 12
        assert [row.epoch for row in await records.beat("w", 3, 0, "", {"t": ("e0", 99)})] == ["e1"]
        lost = await records.declare_lost("t", "e1")
        assert await records.beat("w", 4, 0, "", {"t": ("e1", 50)}) == [lost]
        assert await records.beat("w", 5, 0, "", {}) == [lost]
        assert lost.seq == 12


async def test_a_beat_restores_the_row_of_an_open_tree(records_url: str) -> None:
    """Where the records were lost and the ledger was not, its state goes on counting: the tree is open, not lost."""
    async with opened(records_url) as records:
        assert await records.beat("w", 1, 0, "run", {"t": ("e1", 12)}) == []
        assert await records.trees(["t"]) == {"t": TreeRow("t", "e1", 12, "open", 0, "", "", 0)}


# -- trees --------------------------------------------------------------------------------------------------------------------------------


async def seeded(records: Records, tree: str, epoch: str, worker: str = "w") -> TreeRow:
    """Takes a tree that has no row, or is not open, to `seeding`."""
    await records.declare_lost(tree, "")
    assert await records.lead(tree, worker, 0, 10_000)
    await records.seed(tree, worker, epoch, [])
    return (await records.trees([tree]))[tree]


async def test_the_life_of_a_tree(records_url: str) -> None:
    """Lost, led, seeded, opened, verified, lost again: each step in its row; rounds rise over all trees."""
    async with opened(records_url) as records:
        assert await records.trees(["t", "other"]) == {}
        first = (await records.declare_lost("t", "")).round
        assert (await records.trees(["t"])) == {"t": TreeRow("t", "", 0, "lost", first, "", "", 0)}
        assert await records.declare_lost("other", "") == TreeRow("other", "", 0, "lost", first + 1, "", "", 0)
        assert await records.lead("t", "w", 1_000, 5_000)
        assert await records.seed("t", "w", "e1", []) == []
        seeding = TreeRow("t", "e1", 0, "seeding", first + 2, "", "w", 6_000)
        assert (await records.trees(["t"])) == {"t": seeding}
        assert {row.tree: (row.status, row.seq) for row in await records.beat("w", 1, 2, "", {"t": ("e1", 9)})} == {
            "t": ("seeding", 9),
            "other": ("lost", 0),
        }
        await records.opened("t", "e1", 7, "run a")
        assert (await records.trees(["t"])) == {"t": TreeRow("t", "e1", 9, "open", first + 2, "run a", "", 0)}
        await records.verified("t", "e1", "run b")
        assert (await records.trees(["t", "nobody"])) == {"t": TreeRow("t", "e1", 9, "open", first + 2, "run b", "", 0)}
        assert await records.declare_lost("t", "e1") == TreeRow("t", "e1", 9, "lost", first + 3, "run b", "", 0)


async def test_what_has_gone_on_is_not_changed(records_url: str) -> None:
    """To declare lost an epoch that is not the open one, to open or verify one that is not the tree's, does nothing."""
    async with opened(records_url) as records:
        row = await seeded(records, "t", "e2")
        assert await records.declare_lost("t", "e2") == row
        await records.opened("t", "e1", 99, "run")
        await records.verified("t", "e2", "run")
        assert await records.trees(["t"]) == {"t": row}
        await records.opened("t", "e2", 5, "run")
        assert (await records.declare_lost("t", "e1")).status == "open"
        await records.verified("t", "e1", "other run")
        await records.opened("t", "e2", 50, "other run")
        assert await records.trees(["t"]) == {"t": TreeRow("t", "e2", 5, "open", row.round, "run", "", 0)}


async def test_one_worker_leads(records_url: str) -> None:
    """Of many that want to, one does; it may renew its lease; another follows when that has ended. An open tree, or none, has no leader."""
    async with opened(records_url) as one, opened(records_url) as two:
        assert not await one.lead("t", "w", 0, 10)
        await one.declare_lost("t", "")
        led = await asyncio.gather(*(records.lead("t", f"{name}{i}", 100, 50) for i in range(8) for name, records in {"a": one, "b": two}.items()))
        assert sum(led) == 1
        leader = (await one.trees(["t"]))["t"].leader
        assert await two.lead("t", leader, 140, 50)
        assert not await two.lead("t", "late", 189, 50)
        assert await two.lead("t", "late", 190, 50)
        await two.seed("t", "late", "e1", [])
        await two.opened("t", "e1", 1, "run")
        assert not await two.lead("t", "late", 1_000, 50)


async def test_only_the_leader_seeds(records_url: str) -> None:
    """Who lost the lead, or comes after the tree was opened, changes nothing; a new leader starts over from `seeding`."""
    async with opened(records_url) as records:
        with pytest.raises(NotLeading):
            await records.seed("t", "w", "e0", [])
        first = await seeded(records, "t", "e1", "dies")
        assert await records.lead("t", "next", first.lease_ms, 100)
        with pytest.raises(NotLeading, match="dies does not lead tree t"):
            await records.seed("t", "dies", "e2", [])
        await records.seed("t", "next", "e3", [])
        second = (await records.trees(["t"]))["t"]
        assert (second.epoch, second.round) == ("e3", first.round + 1)
        await records.opened("t", "e3", 1, "run")
        with pytest.raises(NotLeading):
            await records.seed("t", "next", "e4", [])


async def test_rounds_are_never_shared(records_url: str) -> None:
    """Trees that are declared lost at once, each by two workers, get a round each, and the two agree."""
    async with opened(records_url) as one, opened(records_url) as two:
        names = [f"t{i}" for i in range(10)]
        rows = await asyncio.gather(*(records.declare_lost(name, "") for name in names for records in (one, two)))
        assert rows[::2] == rows[1::2]
        rounds = sorted(row.round for row in rows[::2])
        assert rounds == list(range(rounds[0], rounds[0] + 10))


async def test_a_seeding_remembers_what_it_has_seen(records_url: str) -> None:
    """Lines of batches that were in are included, those of later ones not; each tree has its own; a forgotten writer is gone."""
    async with opened(records_url) as records:
        await records.add("w", 5, [used(requests=5)])
        await records.declare_lost("acme", "")
        assert await records.lead("acme", "me", 0, 10_000)
        assert await records.seed("acme", "me", "e1", [asked(), asked(slice_ms=60_000)]) == [5, {SECOND // 60: 5}]
        await records.add("w", 8, [used(requests=3)])
        await records.add("late", 1, [used()])
        lines = [("w", 1), ("w", 5), ("w", 6), ("late", 1)]
        assert [await records.included("acme", *line) for line in lines] == [True, True, False, False]
        assert not await records.included("other", "w", 1)
        assert await records.seed("acme", "me", "e2", [asked()]) == [9]
        assert [await records.included("acme", *line) for line in lines] == [True, True, True, True]
        await records.forget("w")
        assert not await records.included("acme", "w", 1)
        assert await records.written("w") == 0


async def test_a_seeding_amid_writers_is_exact(records_url: str) -> None:
    """While workers go on adding, each seeding has the usage of exactly the lines that it calls included."""
    async with opened(records_url) as one, opened(records_url) as two, opened(records_url) as leader:
        writing = True

        async def write(records: Records, writer: str) -> None:
            line = 0
            while writing:
                line += 1
                await records.add(writer, line, [used(SECOND + line % 1_800), used(SECOND, "b/@k", tree="b", requests=2)])

        writers = {"one": one, "two": two}
        tasks = [asyncio.create_task(write(records, writer)) for writer, records in writers.items()]
        try:
            await leader.declare_lost("acme", "")
            for turn in range(500):
                assert await leader.lead("acme", "leader", turn, 10_000)
                found = await leader.seed("acme", "leader", f"e{turn}", [asked("acme"), asked("b"), asked("up/small", deployment=True)])
                lines = sum([await last_included(leader, "acme", writer) for writer in writers])
                assert found == [lines, 2 * lines, 2 * lines]
                if turn >= 9 and lines > 10:
                    break
        finally:
            writing = False
            await asyncio.gather(*tasks)
        assert lines > 10


async def last_included(records: Records, tree: str, writer: str) -> int:
    """By bisection."""
    low, high = 0, await records.written(writer)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if await records.included(tree, writer, middle) else (low, middle - 1)
    return low
