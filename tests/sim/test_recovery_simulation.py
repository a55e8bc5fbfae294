"""A seeded simulation of workers on a ledger that forgets, comes back from older copies, and is restarted; a failing seed replays.

Requests are admitted and end in any order, workers beat and recover in any order, flush or do not, crash and are followed by others. At any moment
what was used and what is still open fit into the limit (but for what a worker had not told the ledger when it crashed); in the end the ledger counts
exactly what was used, whatever was lost in between; never less if the records were lost, too.
"""

import random
from pathlib import Path
from typing import Any

import pytest

from sluicegate.ledger.contract import LedgerUnavailable
from sluicegate.records.store import Records
from sluicegate.recovery import LIVE_MS
from support_recovery import Net, Worker, recovered
from support_sockets import settle

LIMIT = 300
STEPS = 200
WORKERS = 3
SEEDS = range(16)


class Simulation:
    """One run. `truth`: what the requests that have ended have used."""

    def __init__(self, net: Net, seed: int, worst: str = "crash") -> None:
        """worst: beside what happens to the ledger, a worker may crash, or the records be lost under all of them."""
        self.net = net
        self.worst = {"crash": self.crash, "lose_records": self.lose_records}[worst]
        self.random = random.Random(seed)
        self.truth = 0
        self.number = 0
        self.live: list[Worker] = []
        self.copies: list[Any] = []
        self.crashes = 0
        self.orphaned = 0  # used by requests of workers that crashed before the ledger had their settlements: counted when they are replayed

    def start(self) -> None:
        self.number += 1
        self.live.append(self.net.worker(f"w{self.number}", f"{LIMIT} tokens/day"))

    def check(self) -> None:
        held = sum(held.g for worker in self.live for held in worker.trip.held.values())
        assert self.truth - self.orphaned + held <= LIMIT, (self.truth, self.orphaned, held)

    async def step(self) -> None:
        worker = self.random.choice(self.live)
        choices = [self.admit] * 12 + [self.end] * 8 + [self.go_on] * 24 + [self.send] * 3
        choices += [self.forget, self.keep, self.restart, self.worst]
        await self.random.choice(choices)(worker)
        await settle()
        self.check()

    async def admit(self, worker: Worker) -> None:
        self.number += 1
        await worker.admit(f"h{self.number}", self.random.randint(1, 60))

    async def end(self, worker: Worker) -> None:
        if worker.trip.held:
            hold_id = self.random.choice(list(worker.trip.held))
            used = self.random.randint(0, worker.trip.held[hold_id].g)
            worker.end(hold_id, used)
            self.truth += used

    async def go_on(self, worker: Worker) -> None:
        await worker.recovery.step()

    async def send(self, worker: Worker) -> None:
        """The outbox's round, or the half of it."""
        await worker.outbox.flush()
        if self.random.random() < 0.5:
            try:
                await worker.outbox.retry()
            except LedgerUnavailable:
                return

    async def forget(self, _worker: Worker) -> None:
        self.net.flush()

    async def keep(self, _worker: Worker) -> None:
        self.copies.append(self.net.snapshot())

    async def restart(self, _worker: Worker) -> None:
        """With all data, or those of an older copy."""
        older = self.copies and self.random.random() < 0.6
        self.number += 1
        self.net.restart(self.random.choice(self.copies) if older else self.net.snapshot(), f"run-{self.number}")

    async def crash(self, worker: Worker) -> None:
        """Its requests end unseen, having used nothing; another worker starts in its place. Nobody else hangs meanwhile."""
        self.crashes += 1
        self.orphaned += sum(settlement.actual[0] for settlement in worker.outbox._owed.values())
        self.live.remove(worker)
        worker.trip.held.clear()
        worker.journal.close()
        self.net.workers.remove(worker)
        self.net.clock.now_ms += LIVE_MS + 1
        for other in self.live:
            await other.recovery._beat()
        self.start()

    async def lose_records(self, _worker: Worker) -> None:
        """Whoever comes next makes new ones."""
        for file in self.net.directory.glob("records.db*"):
            file.unlink()

    async def end_of_all(self) -> None:
        """Every request ends, whoever may have lost something finds out, and all that is owed is brought in."""
        for worker in self.live:
            await self.admit(worker)
        await recovered(*self.live, rounds=40)
        for worker in self.live:
            for hold_id in list(worker.trip.held):
                worker.end(hold_id, 1)
                self.truth += 1
        await settle()
        for _ in range(3):
            await recovered(*self.live, rounds=40)
            for worker in self.live:
                await worker.outbox.flush()
                await worker.outbox.retry()
                await worker.outbox.replay()
            await settle()


@pytest.mark.parametrize("worst", ["crash", "lose_records"])
@pytest.mark.parametrize("seed", SEEDS)
async def test_nothing_used_is_forgotten_and_the_limit_holds(tmp_path: Path, seed: int, worst: str) -> None:
    """Whatever the order of losses, recoveries, crashes and requests; what records that were lost had is in the journals of those who live."""
    records = Records(f"sqlite:///{tmp_path}/records.db", 20)
    await records.open()
    net = Net(tmp_path, records)
    simulation = Simulation(net, seed, worst)
    try:
        for _ in range(WORKERS):
            simulation.start()
        await recovered(*simulation.live)
        for _ in range(STEPS):
            await simulation.step()
        await simulation.end_of_all()
        used, held = await net.used()
        assert used == simulation.truth or (worst == "lose_records" and used > simulation.truth)  # what earlier sums had cannot be told any more
        assert held == 0 or simulation.crashes
        assert simulation.truth > 0
    finally:
        for worker in net.workers:
            worker.journal.close()
        await records.close()
