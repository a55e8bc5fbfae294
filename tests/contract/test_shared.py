"""Several workers and processes on one ledger: what one does, the others see, and together they never pass a limit."""

import asyncio
import contextlib
import multiprocessing
from collections.abc import Iterator
from pathlib import Path

import pytest

from support_ledgers import Backend, Desk, admit_for_ever, backend_of, race


@pytest.fixture(params=["sqlite", "redis"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    yield backend_of(request.param, tmp_path, request.getfixturevalue("redis_url") if request.param == "redis" else "")


async def test_two_workers_share_every_counter(shared: Backend) -> None:
    """100 tokens a minute, 100 on each of two replicas: the second is refused; what one admitted the other may extend and settle."""
    async with shared.running() as one, shared.running() as two:
        desks = Desk(one), Desk(two)
        refs = desks[0].refs(desks[0].bucket(100), desks[0].window(1000))
        assert (await desks[0].admit(refs, 100, 0, 100, 1000, output=(1, 50, 50))).status == "granted"
        assert (await desks[1].admit(refs, 100, 0, 1, 0, hold_id="h2")).status == "refused"
        for turn in range(1, 6):
            assert (await desks[turn % 2].extend(refs, 50 + turn, 50 + turn)).g == 50 + turn
        assert await desks[1].settle(refs, 100, 120) == "settled"
        assert await desks[0].settle(refs, 100, 120) == "already"
        assert await desks[0].states(refs) == await desks[1].states(refs) == [(100, 0), (120, 0)]


async def test_two_workers_race(shared: Backend) -> None:
    """Hundreds of tasks on two connections admit, extend and settle at once: nothing is lost, nothing counted twice."""
    async with shared.running() as one, shared.running() as two:

        async def request(i: int) -> int:
            desk = Desk(two if i % 2 else one)
            refs = desk.refs(desk.window(20_000), desk.concurrent(150), desk.window(10**15, "usd"))
            reply = await desk.admit(refs, 50, 1000, 1, 0, 1, 7, hold_id=f"h{i}", output=(1, 20, 100))
            if reply.status != "granted":
                return 0
            reply = await desk.extend(refs, reply.g, 50, hold_id=f"h{i}")
            used = 50 + min(reply.g, i % 60)
            assert await desk.settle(refs, used, 1, 3, hold_id=f"h{i}") == "settled"
            return used

        used = await asyncio.gather(*(request(i) for i in range(400)))
        desk = Desk(one)
        states = await desk.states(desk.refs(desk.window(1), desk.concurrent(1), desk.window(1, "usd")))
        assert states == [(sum(used), 0), (0, 0), (3 * sum(map(bool, used)), 0)]
        assert 10_000 < sum(used) <= 20_000
        assert await desk.holds() == {}


def test_three_processes_race(shared: Backend) -> None:
    """A limit of 1,000 and three processes that ask for 80 times 10 each: exactly 100 are granted."""

    async def there() -> None:
        async with shared.running():  # so that none of them makes the state anew under the others
            pass

    asyncio.run(there())
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        granted = pool.map(race, [(shared.kind, shared.place, name, 80) for name in "abc"])
    assert sum(granted) == 100

    async def states() -> list[tuple[int, int]]:
        async with shared.running() as ledger:
            desk = Desk(ledger)
            return await desk.states(desk.refs(desk.window(1), desk.bucket(1), desk.concurrent(1)))

    window, bucket, concurrent = asyncio.run(states())
    assert (window, concurrent) == ((0, 1000), (0, 100))
    assert bucket[0] <= 1000


async def test_what_was_answered_outlives_a_kill(shared: Backend) -> None:
    """A worker killed at any moment: every hold it was granted is there, every settlement counts once, and nothing is half done."""
    context = multiprocessing.get_context("spawn")
    told, tell = context.Pipe(duplex=False)
    worker = context.Process(target=admit_for_ever, args=(shared.kind, shared.place, tell))
    worker.start()
    tell.close()
    answers = [told.recv() for _ in range(100)]
    worker.kill()
    with contextlib.suppress(EOFError):
        while True:
            answers.append(told.recv())
    told.close()
    worker.join()
    async with shared.running() as ledger:
        desk = Desk(ledger)
        used, held = (await desk.states(desk.refs(desk.window(1), desk.concurrent(1))))[0]
        holds = await desk.holds()
        assert {hold_id for hold_id, settled in answers if not settled} <= holds.keys()
        assert not {hold_id for hold_id, settled in answers if settled} & holds.keys()
        assert held == 10 * len(holds)
        settled = sum(settled for _, settled in answers)
        assert 7 * settled <= used <= 7 * (settled + 2)
        assert (await desk.counters())["o"].held == len(holds)


async def test_learned_tables_are_shared(shared: Backend) -> None:
    """Each worker sends increments and reads the sum over all."""
    async with shared.running() as one, shared.running() as two:
        await one.learned({"p95": {"a": 1}})
        assert await two.learned({"p95": {"a": 2, "b": 1}}) == {"p95": {"a": 3, "b": 1}}
        assert await one.learned({"p95": {}}) == {"p95": {"a": 3, "b": 1}}


async def test_holds_outlive_their_worker(shared: Backend) -> None:
    """A worker that dies leaves its holds; another one sweeps them."""
    async with shared.running() as ledger:
        desk = Desk(ledger)
        refs = desk.refs(desk.window(100))
        await desk.admit(refs, 60, 0, ttl_ms=40)
    await shared.wait(60)
    async with shared.running() as ledger:
        desk = Desk(ledger)
        reply = await desk.admit(refs, 41, 0, hold_id="new")
        assert (reply.status, [swept.hold_id for swept in reply.swept]) == ("refused", ["h"])
        assert await desk.states(refs) == [(60, 0)]
