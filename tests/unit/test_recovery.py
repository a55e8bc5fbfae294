"""Lost or rolled-back state: what is decided, and workers that share a ledger and records going through it together.

The workers are stepped by hand and time is the test's own. `Net` is the ledger and the records that they share; what the ledger has can be lost.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import structlog

from sluicegate.beginnings import FIRST_AGAIN_S, FOLLOWED_S
from sluicegate.core import counters as counting
from sluicegate.core.claims import Announcement
from sluicegate.core.record import Spent
from sluicegate.ledger.contract import LedgerUnavailable
from sluicegate.records.rows import NotLeading, RecordsUnavailable, TreeRow, WorkerRow
from sluicegate.records.store import Records
from sluicegate.recovery import CLAIM_MS, LEASE_MS, LIVE_MS, OtherRecords
from sluicegate.recovery_steps import PATIENCE_MS, View, confirmable, next_step
from support_recovery import LIMITS, Net, counter, recovered
from support_sockets import settle

# -- deciding -----------------------------------------------------------------------------------------------------------------------------


def row(status: Any = "open", *, seq: int = 5, round: int = 3, incarnation: str = "run-1", leader: str = "", tree: str = "t") -> TreeRow:
    return TreeRow(tree, "e1", seq, status, round, incarnation, leader, 0)


def worker(name: str = "me", round: int = 3, incarnation: str = "run-1") -> WorkerRow:
    return WorkerRow(name, 0, round, incarnation)


def view(
    row: TreeRow | None,
    *live: WorkerRow,
    open: bool = False,
    told: bool = False,
    seq: int = 5,
    incarnation: str = "run-1",
    may_lead: bool = True,
    waited_ms: int = 0,
) -> View:
    return View(row, open, told, seq, incarnation, live or (worker(),), may_lead, waited_ms)


@pytest.mark.parametrize(
    ("given", "step"),
    [
        (view(None), "declare_lost"),
        # open in the records: verified, or given up
        (view(row()), "adopt"),
        (view(row(), seq=6), "adopt"),
        (view(row(), seq=4), "declare_lost"),
        (view(row(), seq=0), "declare_lost"),
        (view(row(seq=0), seq=0), "declare_lost"),
        (view(row(), incarnation=""), "wait"),
        (view(row(incarnation=""), incarnation=""), "wait"),
        (view(row(), worker(), worker("other"), incarnation="run-2"), "wait"),
        (view(row(), worker(incarnation="run-2"), worker("other"), incarnation="run-2"), "wait"),
        (view(row(), worker(incarnation="run-2"), worker("other", incarnation="run-0 run-2"), incarnation="run-2"), "adopt"),
        (view(row(), worker(incarnation="run-2"), incarnation="run-2", seq=4), "declare_lost"),
        (view(row(), told=True), "open"),
        (view(row(), told=True, open=True), "none"),
        # lost: every worker's usage, then one seeds
        (view(row("lost"), worker(round=2)), "wait"),
        (view(row("lost"), worker(), worker("other", round=2)), "wait"),
        (view(row("lost"), worker(), worker("other", round=9)), "seed"),
        (view(row("lost"), worker(), may_lead=False), "wait"),
        # seeding: every worker's holds, then one opens
        (view(row("seeding"), seq=0), "seed"),
        (view(row("seeding"), seq=0, may_lead=False), "wait"),
        (view(row("seeding")), "adopt"),
        (view(row("seeding"), seq=4), "seed"),
        (view(row("seeding"), told=True, seq=4, may_lead=False), "wait"),
        (view(row("seeding"), incarnation="run-2"), "wait"),
        (view(row("seeding"), worker(), worker("other", incarnation="run-2"), incarnation="run-2"), "wait"),
        (view(row("seeding"), worker(incarnation="run-2"), incarnation="run-2"), "adopt"),
        (view(row("seeding"), incarnation="run-2", waited_ms=PATIENCE_MS), "adopt"),
        (view(row("seeding"), worker(round=2), may_lead=False), "adopt"),
        (view(row("seeding"), told=True), "complete"),
        (view(row("seeding"), worker(), worker("other", round=2), told=True), "wait"),
        (view(row("seeding"), worker(), worker("other", round=2), told=True, waited_ms=PATIENCE_MS), "complete"),
        (view(row("seeding"), told=True, may_lead=False, waited_ms=PATIENCE_MS), "wait"),
    ],
)
def test_the_next_step(given: View, step: str) -> None:
    """From what one worker knows of one tree."""
    found, why = next_step(given)
    assert found == step and (why or step == "none")


def test_rounds_are_confirmed_up_to_the_first_that_is_not_done() -> None:
    """Whoever confirms a round confirms all before it."""
    rows = [row("lost", round=7, tree="b"), row("seeding", round=5, tree="a"), row("lost", round=9, tree="c")]
    assert confirmable(rows, lambda one: True) == 9
    assert confirmable(rows, lambda one: one.tree != "c") == 7
    assert confirmable(rows, lambda one: one.tree != "a") == 0
    assert confirmable([], lambda one: True) == 0


# -- together -----------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
async def net(tmp_path: Path) -> Any:
    records = Records(f"sqlite:///{tmp_path}/records.db", 20)
    await records.open()
    net = Net(tmp_path, records)
    yield net
    for worker in net.workers:
        worker.journal.close()
    await records.close()


async def test_a_new_tree_is_open_at_once(net: Net) -> None:
    """One worker alone waits for nobody."""
    one = net.worker("one")
    assert await one.admit("h", 1) == "recovering"
    assert await recovered(one) < 8
    assert one.open
    await one.spend("h", 7)
    assert await net.used() == (7, 0)
    await one.recovery.until_open(1)
    assert one.recovery.closed_s() == 0


async def test_case_2_what_was_lost_is_seeded_from_the_records(net: Net) -> None:
    """The counters begin with all that was used, what this worker had not yet recorded included: the limit binds as before."""
    one = net.worker("one")
    await recovered(one)
    await one.spend("a", 600)
    await one.outbox.flush()
    await one.spend("b", 300)
    net.flush()
    assert await one.admit("c", 200) == "recovering"
    assert await one.admit("c", 1) == "recovering"
    await recovered(one)
    assert await net.used() == (900, 0)
    assert [await one.admit("d", 200), await one.admit("e", 100)] == ["refused", "granted"]


async def test_open_holds_are_told_to_the_new_state(net: Net) -> None:
    """They are held there as before, and end as ever."""
    one, two = net.worker("one"), net.worker("two")
    await recovered(one, two)
    await one.spend("a", 100)
    assert [await one.admit("b", 300), await two.admit("c", 400)] == ["granted"] * 2
    net.flush()
    assert await two.admit("d", 1) == "recovering"
    await recovered(one, two)
    assert (await net.used(), one.open, two.open) == ((100, 700), True, True)
    assert [await one.admit("d", 201), await two.admit("e", 200)] == ["refused", "granted"]
    one.end("b", 250)
    two.end("c", 400)
    two.end("e", 200)
    await settle()
    assert await net.used() == (950, 0)


async def test_nothing_is_admitted_before_every_worker_has_told(net: Net) -> None:
    """However the rounds fall: no order of steps lets more through than there is."""
    workers = [net.worker(f"w{n}") for n in range(3)]
    await recovered(*workers)
    for n, worker in enumerate(workers):
        assert await worker.admit(f"h{n}", 300) == "granted"
    net.flush()
    for number in range(12):
        for n, worker in enumerate(workers):
            await worker.recovery.step()
            outcome = await worker.admit(f"x{number}{n}", 101)
            assert outcome in ("recovering", "refused")
    assert await net.used() == (0, 900)
    assert all(worker.open for worker in workers)


async def test_what_ends_meanwhile_is_charged_before_it_opens(net: Net) -> None:
    """A request that ends after its worker has brought in its usage, and before the new state is open."""
    one, two = net.worker("one"), net.worker("two")
    await recovered(one, two)
    assert [await one.admit("a", 300), await two.admit("b", 400)] == ["granted"] * 2
    net.flush()
    assert await one.admit("x", 1) == "recovering"
    while "t" in two.ledger.trees:
        await one.recovery.step()
        await two.recovery.step()
    two.end("b", 390)
    await recovered(one, two)
    assert await net.used() == (390, 300)
    one.end("a", 10)
    await settle()
    assert (await net.used(), two.outbox.backlog) == ((400, 0), 0)


async def test_a_hold_that_ends_while_it_is_told_is_charged_once(net: Net) -> None:
    """Its settlement still is one of the old epoch."""
    one = net.worker("one")
    await recovered(one)
    assert await one.admit("a", 300) == "granted"
    net.flush()
    tell = one.ledger.announce

    async def announce(announcement: Announcement) -> None:
        one.end("a", 250)
        await tell(announcement)

    one.ledger.announce = announce  # type: ignore[method-assign]
    assert await one.admit("x", 1) == "recovering"
    await recovered(one)
    await settle()
    assert (await net.used(), one.outbox.backlog) == ((250, 0), 0)


async def test_what_is_on_its_way_comes_first(net: Net) -> None:
    """Before a worker says that it has brought in all: what it has asked the ledger is answered, or given up."""
    one = net.worker("one")
    await recovered(one)
    net.flush()
    assert await one.admit("x", 1) == "recovering"
    order: list[str] = []
    flush, beat = one.outbox.flush, net.records.beat

    async def ping() -> None:
        order.append("ping")
        raise LedgerUnavailable("given up")

    async def flushed() -> None:
        order.append("flush")
        await flush()

    async def beating(*told: Any) -> Any:
        order.append(f"round {told[2]}")
        return await beat(*told)

    one.ledger.ping, one.outbox.flush, net.records.beat = ping, flushed, beating  # type: ignore[method-assign]
    before = one.recovery._confirmed
    await one.recovery.step()
    order.clear()
    await one.recovery.step()
    assert order[:4] == [f"round {before}", "ping", "flush", f"round {before + 1}"]


async def test_a_leader_that_dies_is_followed_by_another(net: Net) -> None:
    """It had taken the sums and not seeded the ledger; its lead ends with its lease."""
    one, two = net.worker("one"), net.worker("two")
    await recovered(one, two)
    await two.spend("a", 300)
    net.flush()
    assert await one.admit("x", 1) == "recovering"
    one.ledger.fails = {"seed"}
    with pytest.raises(LedgerUnavailable):
        await recovered(one, two)
    for _ in range(3):
        await two.recovery.step()
    assert not two.open
    net.clock.now_ms += LIVE_MS + LEASE_MS
    await recovered(two)
    assert (two.open, await net.used()) == (True, (300, 0))


async def test_a_leader_whose_ledger_failed_seeds_again(net: Net) -> None:
    """It still has the lead."""
    one = net.worker("one")
    await recovered(one)
    await one.spend("a", 300)
    net.flush()
    assert await one.admit("x", 1) == "recovering"
    one.ledger.fails = {"seed"}
    with pytest.raises(LedgerUnavailable):
        await recovered(one)
    one.ledger.fails = set()
    await recovered(one)
    assert (one.open, await net.used()) == (True, (300, 0))


async def test_a_worker_that_was_left_out_catches_up(net: Net) -> None:
    """It hung for longer than anybody waits, with usage that only the old state had: it is charged when the worker goes on."""
    one, two = net.worker("one"), net.worker("two")
    await recovered(one, two)
    await two.spend("a", 300)
    assert await two.admit("b", 200) == "granted"
    net.flush()
    assert await one.admit("x", 1) == "recovering"
    await one.recovery.step()
    await one.recovery.step()
    assert not one.open
    net.clock.now_ms += LIVE_MS + 1
    await recovered(one)
    assert (one.open, await net.used()) == (True, (0, 0))
    two.end("b", 150)
    assert await two.admit("c", 1) == "recovering"
    await recovered(one, two)
    await settle()
    assert (two.open, await net.used(), two.outbox.backlog) == (True, (450, 0), 0)


async def test_a_beat_tells_that_the_others_have_gone_on(net: Net) -> None:
    """A worker that hung is told by the records, before the ledger can tell it."""
    one, two = net.worker("one"), net.worker("two")
    await recovered(one, two)
    await two.spend("a", 300)
    net.flush()
    assert await one.admit("x", 1) == "recovering"
    await one.recovery.step()
    net.clock.now_ms += LIVE_MS + 1
    await recovered(one)
    with structlog.testing.capture_logs() as logs:
        await two.recovery.step()
    assert ("doubt", "the other workers have gone on") in [(line.get("to"), line.get("reason")) for line in logs]
    await recovered(one, two)
    assert (two.open, await net.used()) == (True, (300, 0))


@pytest.mark.parametrize("how", ["another has the lead", "another has opened it", "it took too long"])
async def test_who_has_lost_the_lead_seeds_nothing(net: Net, how: str) -> None:
    """The ledger is touched by one leader at a time."""
    one = net.worker("one")
    await recovered(one)
    net.flush()
    assert await one.admit("x", 1) == "recovering"
    lead, seed, seeded = net.records.lead, net.records.seed, one.ledger.seed

    async def not_leading(*_: Any) -> Any:
        if how == "another has the lead":
            return False
        return await lead(*_)

    async def late(*asked: Any) -> Any:
        if how == "another has opened it":
            raise NotLeading("no")
        net.clock.now_ms += LEASE_MS
        return await seed(*asked)

    one.ledger.seed = None  # type: ignore[assignment, method-assign]
    net.records.lead, net.records.seed = not_leading, late  # type: ignore[method-assign]
    for _ in range(3):
        await one.recovery.step()
    assert not one.open
    one.ledger.seed = seeded  # type: ignore[method-assign]
    net.records.lead, net.records.seed = lead, seed  # type: ignore[method-assign]
    net.clock.now_ms += LEASE_MS
    await recovered(one)
    assert one.open


async def test_long_work_does_not_look_like_death(net: Net) -> None:
    """With many trees a round takes long: the worker beats all the while."""
    one = net.worker("one", trees=tuple(f"t{n}" for n in range(12)))
    declare, beats = net.records.declare_lost, []

    async def slow(tree: str, epoch: str) -> Any:
        net.clock.now_ms += 400
        beats.append(next(row.beat_ms for row in await net.records.workers()))
        return await declare(tree, epoch)

    net.records.declare_lost = slow  # type: ignore[method-assign]
    await one.recovery.step()
    assert len(set(beats)) >= 4 and net.clock.now_ms - beats[-1] <= 1600


async def test_a_worker_that_does_not_tell_its_holds_is_not_waited_for_endlessly(net: Net) -> None:
    """It lives, and cannot reach the ledger."""
    one, two = net.worker("one"), net.worker("two")
    await recovered(one, two)
    await two.spend("a", 300)
    net.flush()
    assert await one.admit("x", 1) == "recovering"
    two.ledger.away = True

    async def rounds() -> None:
        for _ in range(6):
            await one.recovery.step()
            with pytest.raises(LedgerUnavailable):
                await two.recovery.step()

    await rounds()
    assert not one.open
    net.clock.now_ms += PATIENCE_MS // 2
    await rounds()
    assert not one.open
    net.clock.now_ms += PATIENCE_MS // 2
    await rounds()
    assert (one.open, await net.used()) == (True, (300, 0))
    two.ledger.away = False
    await recovered(one, two)
    assert two.open


async def test_case_132_an_older_copy_is_not_believed(net: Net) -> None:
    """A server that was restarted with the data of before: its sequence is behind what was seen."""
    one = net.worker("one")
    await recovered(one)
    await one.spend("a", 300)
    old = net.snapshot()
    await one.spend("b", 400)
    net.restart(old, "run-2")
    assert await one.admit("x", 1) == "recovering"
    await recovered(one)
    assert await net.used() == (700, 0)


async def test_what_any_worker_has_seen_counts(net: Net) -> None:
    """The copy is not behind what this worker has seen, but what another one has."""
    one, two = net.worker("one"), net.worker("two")
    await recovered(one, two)
    await one.spend("a", 300)
    old = net.snapshot()
    await two.spend("b", 400)
    net.restart(old, "run-2")
    for _ in range(4):
        await one.recovery.step()
        assert await one.admit("x", 1) == "recovering"
    await recovered(one, two)
    assert await net.used() == (700, 0)


async def test_a_server_that_lost_nothing_is_verified(net: Net) -> None:
    """Restarted with all of its data: the same epoch goes on, as soon as every worker has seen the new server; holds are there as before."""
    one, two = net.worker("one"), net.worker("two")
    await recovered(one, two)
    epoch = one.ledger.trees["t"].epoch
    await one.spend("a", 300)
    assert await two.admit("b", 200) == "granted"
    net.restart(net.snapshot(), "run-2")
    await recovered(one, two)
    assert [worker.ledger.trees["t"].epoch for worker in (one, two)] == [epoch] * 2
    assert await net.used() == (300, 200)
    assert (await net.records.trees(["t"]))["t"].incarnation == "run-2"
    two.end("b", 100)
    await settle()
    assert await net.used() == (400, 0)


async def test_a_start_adopts_what_is_there(net: Net) -> None:
    """The workers before have ended, and nothing was lost since."""
    one = net.worker("one")
    await recovered(one)
    await one.spend("a", 300)
    await one.outbox.flush()
    await one.recovery.leave()
    later = net.worker("later")
    await recovered(later)
    assert later.ledger.trees["t"].epoch == one.ledger.trees["t"].epoch
    assert (await net.used(), [row.worker for row in await net.records.workers()]) == ((300, 0), ["later"])


async def test_a_copy_from_before_the_end_of_the_last_run_is_not_believed(net: Net) -> None:
    """The last worker has published what it had seen when it left, however short ago it was."""
    one = net.worker("one")
    await recovered(one)
    await one.spend("a", 300)
    old = net.snapshot()
    await one.spend("b", 400)
    await one.outbox.flush()
    await one.recovery.leave()
    net.restart(old, "run-1")
    later = net.worker("later")
    await recovered(later)
    assert await net.used() == (700, 0)


async def test_a_limit_that_is_new_begins_with_what_was_used(net: Net) -> None:
    """In its present window; those that counted already stay as they are."""
    one = net.worker("one")
    await recovered(one)
    await one.spend("a", 300)
    await one.outbox.flush()
    await one.recovery.leave()
    later = net.worker("later", *LIMITS, "5000 tokens/month", "10 requests/day")
    await recovered(later)
    states = (await later.ledger.peek(later.refs())).states
    assert [state for state, ref in zip(states, later.refs().refs, strict=True) if ref.kind == "w"] == [(300, 0), (300, 0), (1, 0)]


async def test_a_leader_with_an_older_configuration_forgets_no_limit(net: Net) -> None:
    """Whoever knows a limit fills it after the seeding, before it opens the tree."""
    old, new = net.worker("old"), net.worker("new", *LIMITS, "5000 tokens/month")
    await recovered(old, new)
    await new.spend("a", 300)
    await new.outbox.flush()
    net.flush()
    assert await old.admit("x", 1) == "recovering"
    await recovered(old, new)
    month = counting.refs("t", [counter("5000 tokens/month")], net.clock.now_ms)
    assert (await new.ledger.peek(month)).states == ((300, 0),)


async def test_records_that_were_lost_take_nothing_back(net: Net, tmp_path: Path) -> None:
    """They know nothing of the tree: what the ledger has stays, with all that is held there, as nobody will end it."""
    one = net.worker("one")
    await recovered(one)
    await one.spend("a", 300)
    assert await one.admit("b", 200) == "granted"
    records = Records(f"sqlite:///{tmp_path}/other.db", 20)
    await records.open()
    try:
        net.records = records
        net.clock.now_ms += CLAIM_MS
        later = net.worker("later")
        await recovered(later)
        assert await net.used() == (500, 0)
    finally:
        await records.close()


async def test_what_the_dead_left_is_in_the_sums(net: Net) -> None:
    """A worker died with lines that nobody has recorded, and the ledger was lost too: its journal is read before the tree is seeded."""
    one = net.worker("one")
    await recovered(one)
    await one.spend("a", 300)
    one.journal.close()
    net.clock.now_ms += LIVE_MS + 1
    net.flush()
    later = net.worker("later")
    await recovered(later)
    assert await net.used() == (300, 0)
    assert await later.outbox.replay() == 0
    assert await net.used() == (300, 0)


async def test_one_tree_does_not_wait_for_another(net: Net) -> None:
    """Each is lost, and comes back, by itself; a tree that only others know of is confirmed all the same."""
    one, two = net.worker("one", trees=("t", "u")), net.worker("two")
    await recovered(one, two)
    await one.spend("a", 300)
    for epochs in (net.first._book.epochs["u"],):
        epochs.clear()
    assert await one.admit("b", 5, "u") == "recovering"
    assert await one.admit("c", 5) == "granted"
    await recovered(one, two)
    assert await one.admit("d", 5, "u") == "granted"


async def test_nothing_is_opened_without_the_records(net: Net) -> None:
    """They are away when the ledger has lost a tree: refused until they are back, and said once."""
    one = net.worker("one")
    await recovered(one)
    net.flush()
    assert await one.admit("x", 1) == "recovering"
    beat = net.records.beat
    net.records.beat = _away  # type: ignore[method-assign]
    with structlog.testing.capture_logs() as logs:
        assert [await one.recovery._round() for _ in range(3)] == [False] * 3
    assert [line["event"] for line in logs] == ["recovery waits"]
    net.records.beat = beat  # type: ignore[method-assign]
    await recovered(one)
    assert one.open


async def _away(*_: Any) -> Any:
    raise RecordsUnavailable("away")


async def test_a_worker_that_is_open_serves_on_while_the_records_are_away(net: Net) -> None:
    """Nothing is in doubt, so nothing is said."""
    one = net.worker("one")
    await recovered(one)
    net.records.beat = _away  # type: ignore[method-assign]
    with structlog.testing.capture_logs() as logs:
        assert not await one.recovery._round()
    assert (logs, await one.admit("a", 5)) == ([], "granted")


async def test_each_change_is_one_line(net: Net) -> None:
    """As the worker sees it, with the reason."""
    with structlog.testing.capture_logs() as logs:
        one, two = net.worker("one"), net.worker("two")
        await recovered(one)
        await recovered(two)
        net.flush()
        assert await one.admit("x", 1) == "recovering"
        await recovered(one, two)
    changes = [(line["from"], line["to"]) for line in logs if line["event"] == "tree state"]
    assert sorted(changes) == sorted(
        [
            *[("unknown", "new"), ("new", "seeding"), ("seeding", "open")],
            ("unknown", "open"),
            *[("open", "doubt"), ("doubt", "lost"), ("lost", "seeding"), ("seeding", "open")],
            *[("open", "lost"), ("lost", "seeding"), ("seeding", "open")],
        ]
    )
    levels = {(line["to"], line["log_level"]) for line in logs if line["event"] == "tree state"}
    assert levels == {("new", "info"), ("seeding", "info"), ("open", "info"), ("doubt", "warning"), ("lost", "warning")}
    assert all(line["reason"] for line in logs if line["event"] == "tree state")


async def test_how_long_a_tree_has_been_closed(net: Net) -> None:
    """Endless before it first was open; from the doubt on afterwards."""
    one = net.worker("one")
    assert one.recovery.closed_s() == float("inf")
    await recovered(one)
    assert one.recovery.closed_s() == 0
    net.flush()
    await one.admit("x", 1)
    net.clock.now_ms += 12_000
    assert one.recovery.closed_s() == 12


async def test_it_runs_by_itself_and_a_doubt_wakes_it(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between rounds it sleeps, for long while all is well."""
    monkeypatch.setattr("sluicegate.recovery.BEAT_S", 600)
    one = net.worker("one")
    running = asyncio.get_running_loop().create_task(one.recovery.run())
    await one.recovery.until_open(20)
    assert one.open
    net.flush()
    await settle()
    assert await one.admit("x", 1) == "recovering"
    async with asyncio.timeout(30):
        while not one.open:
            await settle()
    running.cancel()


async def test_waiting_for_all_to_be_open_has_an_end(net: Net) -> None:
    """A start goes on without."""
    one = net.worker("one")
    await one.recovery.until_open(0)
    assert not one.open


async def test_faults_of_its_own_are_logged_and_it_goes_on(net: Net) -> None:
    """As every background work."""
    one = net.worker("one")
    one.recovery._beat = None  # type: ignore[assignment, method-assign]
    with structlog.testing.capture_logs() as logs:
        assert not await one.recovery._round()
    assert [line["event"] for line in logs] == ["background work failed"]


async def test_lost_again_while_it_is_seeded(net: Net) -> None:
    """The state goes between its seeding and its opening: it begins anew and nothing is forgotten."""
    one = net.worker("one")
    await recovered(one)
    await one.spend("a", 300)
    assert await one.admit("b", 200) == "granted"
    net.flush()
    assert await one.admit("x", 1) == "recovering"
    tell, told = one.ledger.announce, []

    async def announce(announcement: Announcement) -> None:
        if not told:
            told.append(announcement)
            net.flush()
        await tell(announcement)

    one.ledger.announce = announce  # type: ignore[method-assign]
    await recovered(one)
    assert (one.open, await net.used()) == (True, (300, 200))


async def test_records_that_are_deleted_under_running_workers(net: Net) -> None:
    """The ledger is whole: the trees stay open, and the new records know them, and what was used, as soon as a worker has beaten."""
    one, two = net.worker("one"), net.worker("two")
    await recovered(one, two)
    await one.spend("a", 300)
    await two.spend("b", 200)
    await recovered(one, two)
    await asyncio.gather(one.outbox.flush(), two.outbox.flush())
    epoch = one.ledger.trees["t"].epoch
    lose(net)
    await recovered(one, two)
    assert (one.open, two.open) == (True, True)
    row = (await net.records.trees(["t"]))["t"]
    assert (row.epoch, row.status, row.seq) == (epoch, "open", max(one.ledger.trees["t"].seq, two.ledger.trees["t"].seq))
    await one.recovery.leave()
    later = net.worker("later")
    await recovered(two, later)
    assert (later.open, later.ledger.trees["t"].epoch, await net.used()) == (True, epoch, (500, 0))


async def test_records_and_ledger_are_lost_together(net: Net) -> None:
    """What the workers that run have used is in their journals; rounds that they have confirmed before mean nothing in the new file."""
    one, two = net.worker("one"), net.worker("two")
    await recovered(one, two)
    for _ in range(3):
        net.flush()
        assert await one.admit("x", 1) == "recovering"
        await recovered(one, two)
    await one.spend("a", 300)
    await two.spend("b", 200)
    await asyncio.gather(one.outbox.flush(), two.outbox.flush())
    lose(net)
    net.flush()
    assert [await one.admit("x", 1), await two.admit("y", 1)] == ["recovering"] * 2
    await recovered(one, two)
    assert (one.open, two.open, await net.used()) == (True, True, (500, 0))


async def test_a_ledger_in_use_with_other_records_is_left_alone(net: Net, tmp_path: Path) -> None:
    """They would be wiped out of it, and it would be seeded from what these know. Once the others are gone it is free."""
    one = net.worker("one")
    await recovered(one)
    await one.spend("a", 300)
    epoch = one.ledger.trees["t"].epoch
    records = Records(f"sqlite:///{tmp_path}/other.db", 20)
    await records.open()
    net.records = records
    stranger = net.worker("stranger")
    await recovered(stranger)
    await stranger.recovery.until_open(0)  # perhaps those before have just gone
    with structlog.testing.capture_logs() as logs:
        for _ in range(4):
            net.clock.now_ms += CLAIM_MS // 2
            await recovered(one)
            await recovered(stranger)
    assert [(line["event"], line["log_level"]) for line in logs] == [("ledger in use with other records", "error")]
    with pytest.raises(OtherRecords, match="must share their records"):
        await stranger.recovery.until_open(20)
    assert (stranger.open, one.open, await net.used()) == (False, True, (300, 0))
    assert await net.first.seq("t", epoch) > 0
    net.clock.now_ms += CLAIM_MS
    await recovered(stranger)
    assert (stranger.open, await net.used()) == (True, (300, 0))
    await stranger.recovery.until_open(0)
    await records.close()


async def test_whose_the_ledger_is_cannot_be_asked(net: Net) -> None:
    """The server that knows is away: trees that others keep go on."""
    one = net.worker("one")
    one.ledger.fails = {"claim"}
    await recovered(one)
    assert one.open


async def test_a_server_that_is_gone_for_good_holds_up_no_other_tree(net: Net) -> None:
    """A tree was being seeded when its server went; another one that is lost later comes back, since nobody waits longer for the first."""
    one, two = (net.worker(name, trees=("t", "u")) for name in ("one", "two"))
    await recovered(one, two)
    await one.spend("a", 300)
    net.first._book.epochs["u"].clear()
    assert await two.admit("x", 1, "u") == "recovering"
    for worker in (one, two):
        worker.ledger.fails = {"announce"}  # so that it stays as it is
    while (await net.records.trees(["u"]))["u"].status != "seeding":
        for worker in (one, two):
            await worker.recovery.step()
    for worker in (one, two):
        worker.ledger.fails, worker.ledger.gone = set(), {"u"}
    net.first._book.epochs["t"].clear()
    assert await one.admit("y", 1) == "recovering"

    async def rounds() -> None:
        for _ in range(6):
            for worker in (one, two):
                with pytest.raises(LedgerUnavailable):
                    await worker.recovery.step()

    await rounds()
    assert not one.open
    net.clock.now_ms += PATIENCE_MS
    await rounds()
    assert (one.open, two.open, await net.used()) == (True, True, (300, 0))
    for worker in (one, two):
        worker.ledger.gone = set()
    await recovered(one, two)
    assert await two.admit("z", 1, "u") == "granted"


async def test_a_server_that_changes_while_it_is_verified(net: Net) -> None:
    """What was asked of the one before says nothing of it: an older copy is not used, though no tree is there to be in doubt."""
    one = net.worker("one")
    await recovered(one)
    await one.spend("a", 300)
    old = net.snapshot()
    await one.spend("b", 400)
    net.restart(net.snapshot(), "run-2")
    ask = one.ledger.seq

    async def seq(tree: str, epoch: str) -> int:
        found = await ask(tree, epoch)
        if net.incarnation == "run-2":
            net.restart(old, "run-3")
        return found

    one.ledger.seq = seq  # type: ignore[method-assign]
    opened = []
    for _ in range(12):
        await one.recovery.step()
        opened += [await net.used()] * one.open
    assert set(opened) == {(700, 0)}


def lose(net: Net) -> None:
    for file in net.directory.glob("records.db*"):
        file.unlink()


# -- another configuration ----------------------------------------------------------------------------------------------------------------


async def test_a_new_tree_is_opened_before_it_is_used(net: Net) -> None:
    """Whoever takes up a configuration with an organization that was not there waits until it can admit; what was there stays as it is."""
    one = net.worker("one")
    await recovered(one)
    await one.spend("a", 100)
    running = asyncio.create_task(one.recovery.run())
    state = one.ledger.trees["t"]
    one.counters["u"] = (counter(LIMITS[0], "u"),)
    counters = dict(one.counters)
    del one.counters["u"]
    await one.recovery.take_up(counters, 5)
    assert (one.ledger.trees["u"].open, one.ledger.trees["t"] is state, await one.admit("b", 1, "u")) == (True, True, "granted")
    running.cancel()


async def test_a_new_limit_counts_what_was_used_before(net: Net) -> None:
    """Of its window, as the records have it; so does one that comes back, whatever its counter had when it left."""
    one = net.worker("one", "100 requests/minute")
    await recovered(one)
    bucket, day = (counter(text) for text in ("100 requests/minute", LIMITS[0]))
    await one.spend("a", 300)
    await one.recovery.take_up({"t": (bucket, day)}, 5)
    assert await net.used() == (300, 0)
    one.counters["t"] = (bucket,)
    await one.recovery.take_up({"t": (bucket,)}, 5)
    await one.spend("b", 200)
    await one.recovery.take_up({"t": (bucket, day)}, 5)
    assert (await net.used(), one.open) == ((500, 0), True)


async def test_what_was_under_way_when_a_limit_came_is_counted_when_it_ends(net: Net) -> None:
    """It counts on no limit that it did not know of, but in the records: the new window is raised to them for a while."""
    one = net.worker("one", "100 requests/minute")
    await recovered(one)
    counters = {"t": (*one.counters["t"], counter(LIMITS[0]))}
    assert await one.admit("a", 300) == "granted"
    await one.recovery.take_up(counters, 5)
    one.end("a", 300)
    await one.outbox.flush()
    assert await net.used() == (0, 0)
    net.clock.now_ms += int(FIRST_AGAIN_S * 1000)
    await one.recovery._round()
    assert await net.used() == (300, 0)
    net.clock.now_ms += int(FOLLOWED_S * 1000)
    await one.recovery._round()
    assert not one.recovery._beginnings._followed


async def test_what_was_under_way_when_an_organization_got_its_first_limit_is_counted_when_it_ends(net: Net) -> None:
    """Its tree is new, since without a limit it had none."""
    one = net.worker("one", trees=("u",))
    await recovered(one)
    running = asyncio.create_task(one.recovery.run())
    await one.recovery.take_up({**one.counters, "t": (counter(LIMITS[0]),)}, 5)
    running.cancel()
    assert (await net.used(), one.ledger.trees["t"].open) == ((0, 0), True)
    one.outbox.spend("t", "req_x.1", Spent("t/@k", "m", "p/d", net.clock.now_ms, 1, 1, 100, 200, 0))
    await one.outbox.flush()
    net.clock.now_ms += int(FIRST_AGAIN_S * 1000)
    await one.recovery._round()
    assert await net.used() == (300, 0)


async def test_a_limit_that_is_new_while_the_records_are_away_admits_nothing(net: Net) -> None:
    """What was used before it is not known: its tree is closed until it is, and the other one is not."""
    one = net.worker("one", "100 requests/minute", trees=("t", "u"))
    await recovered(one)
    await one.spend("a", 300)
    sums = net.records.sums
    net.records.sums = away  # type: ignore[method-assign, assignment]
    await one.recovery.take_up({**one.counters, "t": (*one.counters["t"], counter(LIMITS[0]))}, 5)
    assert (await one.admit("b", 1), await one.admit("c", 1, "u")) == ("recovering", "granted")
    net.records.sums = sums  # type: ignore[method-assign]
    await recovered(one)
    assert (await net.used(), one.open) == ((300, 0), True)


async def test_a_tree_that_is_left_out_stays_known(net: Net) -> None:
    """Holds end there, and when it comes back with a limit, that is a new one."""
    one = net.worker("one", trees=("t", "u"))
    await recovered(one)
    assert await one.admit("a", 300) == "granted"
    await one.recovery.take_up({"u": one.counters["u"]}, 5)
    one.end("a", 300)
    await settle()
    assert await net.used() == (300, 0)
    await one.outbox.flush()
    net.first._book.put_counter(counting.ref(counter(LIMITS[0]), net.clock.now_ms).key, "w", [0, 0], None)
    await one.recovery.take_up({"u": one.counters["u"], "t": (counter(LIMITS[0]),)}, 5)
    assert await net.used() == (300, 0)


async def away(*_: Any) -> Any:
    raise RecordsUnavailable("away")
