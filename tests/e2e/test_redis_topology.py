"""The Redis ledger on a Redis Cluster and behind Sentinels: real servers, slots that move, masters that die, replicas that lag.

What is asked: every tree is served by the server that keeps it; before a call of a tree goes to another server, or to another run of its server, the
tree is in doubt; nothing is counted twice or lost; one server that is away holds up no other.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from sluicegate.core.claims import RefSet, Settlement
from sluicegate.ledger.contract import LedgerRecovering, LedgerUnavailable, TreeState
from sluicegate.ledger.redis import RedisLedger
from sluicegate.ledger.topology import SLOTS
from support_gateway import free_port
from support_inloop import Bench, running
from support_ledgers import Desk, Log, use
from support_redis import Cluster, Move, Server, Watched, running_cluster, until, watched
from support_time import undisturbed

TIMEOUT_MS = 500


class Worker:
    """A ledger, and the part of a recovery that verifies: a tree in doubt is used again when its epoch is where it was or further."""

    def __init__(self, url: str, timeout_ms: int) -> None:
        self.log = Log()
        self.ledger = RedisLedger(url, timeout_ms, log=self.log, jitter=lambda: 0.0)
        self.ledger.on_doubt = self._doubted
        self.doubts: dict[str, list[str]] = {}  # why, by tree
        self.verified: list[tuple[str, str]] = []  # tree, incarnation
        self._states: dict[str, TreeState] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def use(self, *trees: str) -> None:
        await use(self.ledger, *trees)
        self._states.update({tree: self.ledger.trees[tree] for tree in trees})

    def desk(self, tree: str) -> Desk:
        return Desk(self.ledger, tree)

    def _doubted(self, tree: str, why: str) -> None:
        assert tree not in self.ledger.trees
        self.doubts.setdefault(tree, []).append(why)
        task = asyncio.create_task(self._verify(tree, self._states[tree]))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _verify(self, tree: str, known: TreeState) -> None:
        while True:
            with contextlib.suppress(LedgerUnavailable):
                seq = await self.ledger.seq(tree, known.epoch)
                assert seq >= known.seq, f"rolled back from {known.seq} to {seq}"
                self._states[tree] = self.ledger.trees[tree] = TreeState(known.epoch, seq, open=True)
                self.verified.append((tree, self.ledger.incarnation(tree)))
                return
            await asyncio.sleep(0.02)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self.ledger.close()
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def working(url: str, *trees: str, timeout_ms: int = TIMEOUT_MS) -> AsyncIterator[Worker]:
    worker = Worker(url, timeout_ms)
    try:
        await worker.ledger.open()
        await worker.use(*trees)
        yield worker
    finally:
        await worker.close()


@pytest.fixture(scope="module")
def cluster_of_the_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def cluster(cluster_of_the_module: Cluster) -> Cluster:
    """Empty. Every test undoes what it did to the servers."""
    cluster_of_the_module.flush()
    return cluster_of_the_module


class Load:
    """Clients in a closed loop that hold 8, use 5 and settle until that is taken; `used` is what they used."""

    def __init__(self, workers: list[Worker], tree: str) -> None:
        self.used = self.granted = self.failed = 0
        self.slowest_s = 0.0
        self._workers = workers
        self._tree = tree
        self._rounds = 0
        self.go_on()

    def go_on(self) -> None:
        self._going = True
        self._rounds += 1
        names = [f"{self._tree}-{self._rounds}-{i}" for i in range(8)]
        self._tasks = [asyncio.create_task(self._client(self._workers[i % len(self._workers)], name)) for i, name in enumerate(names)]

    async def until_granted(self, more: int) -> None:
        """Lets so many more requests be granted."""
        target = self.granted + more
        await eventually(lambda: self.granted >= target)

    async def end(self) -> None:
        self._going = False
        await asyncio.gather(*self._tasks)

    async def is_all_there(self, worker: Worker) -> bool:
        """Whether what was used is what is charged, and nothing is held."""
        desk = worker.desk(self._tree)
        states = await desk.states(counters(desk))
        return states == [(self.used, 0), (self.used, 0), (0, 0)]

    async def _client(self, worker: Worker, name: str) -> None:
        desk = worker.desk(self._tree)
        refs = counters(desk)
        for count in range(1_000_000):
            if not self._going:
                return
            hold_id = f"{name}.{count}"
            started = undisturbed()
            try:
                reply = await desk.admit(refs, 8, 0, 8, 0, 1, 0, hold_id=hold_id)
            except LedgerUnavailable:
                self.failed += 1
                await self._settle(worker, Settlement(hold_id, refs, (0, 0, 0), "cancel"))
            else:
                assert reply.status == "granted"
                self.granted += 1
                await self._settle(worker, Settlement(hold_id, refs, (5, 5, 1)))
                self.used += 5
            finally:
                self.slowest_s = max(self.slowest_s, undisturbed() - started)

    async def _settle(self, worker: Worker, settlement: Settlement) -> None:
        """As the outbox does: again until it is taken."""
        while True:
            with contextlib.suppress(LedgerUnavailable):
                await worker.ledger.settle(settlement)
                return
            self.failed += 1
            await asyncio.sleep(0.01)


def counters(desk: Desk) -> RefSet:
    return desk.refs(desk.window(10**9), desk.bucket(10**9), desk.concurrent(100))


async def eventually(check: Callable[[], object], within_s: float = 30.0) -> None:
    async with asyncio.timeout(within_s):
        while not check():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def patiently(call: Callable[[], Awaitable[int]]) -> int:
    """Again while the ledger is away."""
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(LedgerUnavailable):
                return await call()
            await asyncio.sleep(0.02)


# -- a cluster ----------------------------------------------------------------------------------------------------------------------------


async def test_every_tree_is_served_by_the_server_that_keeps_it(cluster: Cluster) -> None:
    """All verbs; sweeps, learned tables and views cover the whole cluster; each server keeps what is its own."""
    trees = [cluster.tree_at(master, f"served{i}") for i in range(2) for master in cluster.masters]
    async with working(cluster.url, *trees) as worker:
        ledger = worker.ledger
        for tree in trees:
            desk = worker.desk(tree)
            refs = counters(desk)
            assert (await desk.admit(refs, 8, 1000, 8, 0, 1, 0, output=(1, 5, 9), hold_id=f"{tree}.1")).status == "granted"
            assert (await desk.extend(refs, 10, 12, hold_id=f"{tree}.1")).g == 12
            assert await desk.settle(refs, 15, 15, 1, hold_id=f"{tree}.1") == "settled"
            assert (await desk.admit(refs, 8, 0, 8, 0, 1, 0, hold_id=f"{tree}.2", ttl_ms=1)).status == "granted"
            await ledger.renew(tree, [f"{tree}.3"], 1000)
            assert ledger.incarnation(tree) == cluster.keeper(tree).run_id
        await asyncio.sleep(0.01)
        assert {swept.hold_id for swept in await ledger.sweep(64)} == {f"{tree}.2" for tree in trees}
        assert await ledger.learned({"a": {"n": 1}, "b": {"n": 2}}) == {"a": {"n": 1}, "b": {"n": 2}}
        views, holds = await ledger.show()
        assert {f"sg1:{{{tree}}}:c:{tree}/w:tokens:any" for tree in trees} <= {view.key for view in views}
        assert {f"{tree}.2" for tree in trees} <= {hold.hold_id for hold in holds}
        for tree in trees:
            for master in cluster.masters:
                assert (f"sg1:{{{tree}}}:holds" in master.client.keys("*")) is (master is cluster.keeper(tree))
        assert worker.doubts == {}


async def test_a_slot_moves_under_load(cluster: Cluster) -> None:
    """Two workers at a tree on its way to another server: nothing is counted twice or lost, each is in doubt once; other trees notice nothing."""
    source, target, _ = cluster.masters
    tree, other = cluster.tree_at(source, "moves"), cluster.tree_at(source, "stays")
    async with working(cluster.url, tree, other) as first, working(cluster.url, tree, other) as second:
        load, beside = Load([first, second], tree), Load([first, second], other)
        await load.until_granted(200)
        move = Move(cluster, tree, source, target)
        while move.keys(1):  # noqa: ASYNC110  slowly: for some time each server has a part of them
            await asyncio.sleep(0.03)
        await asyncio.sleep(0.05)
        move.end()
        await eventually(lambda: first.verified and second.verified)
        await load.until_granted(200)
        await load.end()
        await beside.end()
        assert load.failed > 0
        assert await load.is_all_there(first)
        assert await beside.is_all_there(second)
        assert (beside.failed, max(load.slowest_s, beside.slowest_s) < 2) == (0, True)
        for worker in (first, second):
            assert {name: len(whys) for name, whys in worker.doubts.items()} == {tree: 1}
            assert f"127.0.0.1:{target.port}" in worker.doubts[tree][0]
            assert worker.verified == [(tree, target.run_id)]
            assert "ledger away" not in worker.log.lines
    assert target.client.exists(f"sg1:{{{tree}}}:holds")


async def test_a_script_does_nothing_while_its_slot_moves(cluster: Cluster) -> None:
    """Where keys that it does not name have left already it would end in the middle. It is refused at once, though all keys it names are there."""
    source, target, _ = cluster.masters
    tree = cluster.tree_at(source, "half")
    async with working(cluster.url, tree) as worker:
        desk = worker.desk(tree)
        named, unnamed = desk.refs(desk.concurrent(9), desk.window(100)), desk.refs(desk.window(100, "unnamed"))
        assert (await desk.admit(unnamed, 7, 0, hold_id="due", ttl_ms=40)).status == "granted"
        for hold_id in ("a", "b"):
            assert (await desk.admit(named, 1, 0, 1, 0, hold_id=hold_id)).status == "granted"
        await asyncio.sleep(0.05)
        move = Move(cluster, tree, source, target)
        source.client.migrate("127.0.0.1", target.port, desk.key("unnamed"), 0, 5000)
        for call in (desk.admit(named, 1, 0, 1, 0, hold_id="c"), desk.ledger.sweep(9), desk.settle(named, 1, 1, hold_id="a")):
            with pytest.raises(LedgerUnavailable, match="TRYAGAIN"):
                await call
        assert source.client.hget(desk.key("w"), "h") == "2"
        while move.keys(100):
            pass
        move.end()
        with pytest.raises(LedgerUnavailable, match="MOVED"):
            await desk.states(named)
        await eventually(lambda: worker.verified)
        assert [swept.hold_id for swept in await desk.ledger.sweep(9)] == ["due"]
        assert await desk.settle(named, 1, 1, hold_id="a") == "settled"
        assert await desk.states(desk.refs(*named.refs, *unnamed.refs)) == [(0, 1), (1, 1), (7, 0)]


async def test_a_server_that_hangs_holds_up_no_other(cluster: Cluster) -> None:
    """Calls to it end in time; those to others, sweeps too, go on as if nothing were; it is taken up again without a doubt."""
    hung, well, _ = cluster.masters
    away, here, quiet = cluster.tree_at(hung, "away"), cluster.tree_at(well, "here"), cluster.tree_at(well, "quiet")
    async with working(cluster.url, away, here, quiet) as worker:
        load, beside = Load([worker], away), Load([worker], here)
        await load.until_granted(50)
        hung.pause()
        try:
            before, started = beside.granted, undisturbed()
            desk = worker.desk(quiet)
            await desk.admit(desk.refs(desk.window(9, "due")), 1, 0, hold_id="due", ttl_ms=1)
            await asyncio.sleep(0.01)
            assert [swept.hold_id for swept in await worker.ledger.sweep(9)] == ["due"]
            assert undisturbed() - started < TIMEOUT_MS / 1000 + 0.3
            await eventually(lambda: beside.granted - before > 100)
        finally:
            hung.go_on()
        await load.until_granted(50)
        await load.end()
        await beside.end()
        assert await load.is_all_there(worker)
        assert await beside.is_all_there(worker)
        assert (beside.failed, beside.slowest_s < 0.3, load.slowest_s < 2) == (0, True, True)
        assert worker.doubts == {}


async def test_a_server_that_comes_back_without_its_data(cluster: Cluster) -> None:
    """Its trees are in doubt before a call of theirs is answered from nothing; their epoch is gone. Other trees are not in doubt."""
    _, well, lost = cluster.masters
    gone, here = cluster.tree_at(lost, "gone"), cluster.tree_at(well, "still")
    async with working(cluster.url, gone, here) as worker:
        doubts: list[str] = []
        worker.ledger.on_doubt = lambda tree, why: doubts.append(f"{tree}: {why}")
        desk = worker.desk(gone)
        refs = desk.refs(desk.window(100))
        assert (await desk.admit(refs, 90, 0)).status == "granted"
        before = worker.ledger.incarnation(gone)
        lost.kill()
        with pytest.raises(LedgerUnavailable):
            await desk.admit(refs, 90, 0, hold_id="next")
        lost.start()

        async def asked() -> str:
            try:
                return (await desk.admit(refs, 90, 0, hold_id="next")).status
            except LedgerRecovering:
                return "recovering"
            except LedgerUnavailable:
                return "unavailable"

        answers = ["unavailable"]
        async with asyncio.timeout(30):
            while answers[-1] == "unavailable":
                await asyncio.sleep(0.01)
                answers.append(await asked())
        assert answers[-1] == "recovering"
        assert doubts == [f"{gone}: the server at redis://127.0.0.1:{lost.port}/0 was restarted, or another one has taken its place"]
        assert worker.ledger.incarnation(gone) not in ("", before)
        assert worker.ledger.incarnation(gone) == lost.run_id
        assert await patiently(lambda: worker.ledger.seq(gone, "first")) == 0
        assert (await worker.desk(here).admit(counters(worker.desk(here)), 1, 0, 1, 0, 1, 0)).status == "granted"


async def test_a_replica_is_promoted_and_the_old_master_again(cluster: Cluster) -> None:
    """Two failovers as an operator orders them: what was used goes with the tree, and both times the tree is in doubt first."""
    _, master, _ = cluster.masters
    replica = cluster.replica_of(master)
    tree = cluster.tree_at(master, "promoted")
    async with working(cluster.url, tree) as worker:
        load = Load([worker], tree)
        await load.until_granted(100)
        for times, (new, old) in enumerate(((replica, master), (master, replica)), 1):
            await asyncio.to_thread(cluster.promote, new, old)
            await eventually(lambda times=times: len(worker.verified) >= times)
            assert worker.ledger.incarnation(tree) == new.run_id
            await load.until_granted(100)
        await load.end()
        assert await load.is_all_there(worker)
        assert len(worker.doubts[tree]) == 2


async def test_a_gateway_serves_who_can_be_served(cluster: Cluster, tmp_path: Path) -> None:
    """One of three servers hangs: tenants on the others are served, their holds renewed; a worker that starts meanwhile serves them too."""
    *well, hung = cluster.masters  # the first is the one that the URL names
    names = [cluster.tree_at(master, "tenant") for master in (hung, *well)]
    tenants = "".join(f"\n  {name}: {{keys: [{{name: '{name}', key: sk-{name}, limits: [1M tokens/day, 9 concurrent]}}]}}" for name in names)
    settings: dict[str, Any] = {"ledger": cluster.url, "tenants": tenants, "more": "ledger_timeout: 300ms\nbudget: {hold_ttl: 1s}"}

    async def codes(bench: Bench) -> list[str]:
        return [answer.code for answer in await asyncio.gather(*(bench.chat(f"sk-{name}", max_tokens=2) for name in names))]

    async with running(tmp_path, options={"completion": 30, "tpot": 60}, **settings) as bench:
        assert await codes(bench) == ["200", "200", "200"]
        hung.pause()
        try:
            streams = [asyncio.create_task(bench.chat(f"sk-{name}", stream=True, max_tokens=30)) for name in names[1:]]
            assert await codes(bench) == ["ledger_unavailable", "200", "200"]
            async with running(tmp_path, **settings) as other:
                other.reachable = other.whole = False
                async with asyncio.timeout(30):
                    while await codes(other) != ["ledger_recovering", "200", "200"]:  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
                served_beside = other.total
            for stream in streams:  # almost twice as long as a hold that nobody renews
                assert (await stream).finishes == {0: "stop"}
            assert not [hold for hold in bench.records if hold.status == "expired"]
        finally:
            hung.go_on()
        async with asyncio.timeout(30):
            while (await codes(bench)) != ["200", "200", "200"]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        bench.whole = False  # of two mocks
        await bench.quiet()
        used = [(await bench.usage(f"sk-{name}"))[f"key {name} tokens/day"]["used"] for name in names]
        assert sum(used) == bench.total + served_beside


@pytest.mark.parametrize("away", [False, True])
def test_check_says_which_servers_there_are(cluster: Cluster, tmp_path: Path, away: bool) -> None:
    """And which tenants' limits each of them keeps; where nobody answers, it says so as a warning."""
    names = [cluster.tree_at(master, "checked") for master in cluster.masters]
    keys = "".join(f"\n  {name}: {{keys: [{{name: k, sha256: {'a' * 63}{i}, limits: [$1/day]}}]}}" for i, name in enumerate(names))
    at = f"127.0.0.1:{free_port()}" if away else cluster.url.removeprefix("redis+cluster://")
    models = "{chat: {deployments: [{provider: mock, model: m, price: {input: 1, output: 1}}]}}"
    credential = ":secret@" if away else ""
    text = f"ledger: redis+cluster://{credential}{at}\nproviders: {{mock: {{provider: mock}}}}\nmodels: {models}\ntenants:{keys}\n"
    (tmp_path / "config.yaml").write_text(text)
    command = [sys.executable, "-m", "sluicegate", "check", "config.yaml"]
    checked = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"}, check=False)
    assert checked.returncode == 0, checked.stderr
    assert "secret" not in checked.stdout + checked.stderr
    if away:
        assert f"warning ledger: nobody says where the ledger is: redis://{at}/0: " in checked.stdout
    else:
        for name, master in zip(names, cluster.masters, strict=True):
            [line] = [line for line in checked.stdout.splitlines() if f"redis://127.0.0.1:{master.port}/0" in line]
            assert name in line


async def test_a_cluster_with_tls_names_and_passwords(tmp_path: Path, certificates: Path) -> None:
    """Its servers are entered by the names that it gives them, with the URL's credentials and authority; without them the reason is told."""
    tls_port = free_port()
    own, authority = str(certificates / "localhost.pem"), str(certificates / "ca.pem")
    files = ["--tls-cert-file", own, "--tls-key-file", own, "--tls-ca-cert-file", authority, "--tls-cluster", "yes", "--tls-auth-clients", "no"]
    names = ["--cluster-announce-hostname", "localhost", "--cluster-preferred-endpoint-type", "hostname"]
    server = Server(tmp_path, "--cluster-enabled", "yes", "--tls-port", str(tls_port), *files, *names)
    try:
        server.client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, SLOTS - 1)
        server.client.execute_command("ACL", "SETUSER", "gate", "on", ">p@ss,word", "~sg1:*", "+@all", "-@dangerous", "+info", "+config|get")
        server.client.execute_command("ACL", "SETUSER", "default", ">other")
        server.client.auth("other")
        formed = "cluster_state", "ok"
        await asyncio.to_thread(until, lambda: formed in server.client.execute_command("CLUSTER INFO").items(), "the cluster does not come up")
        at = f"localhost:{tls_port}"
        async with working(f"rediss+cluster://gate:p%40ss%2Cword@{at}?ca_file={authority}", "t", timeout_ms=3000) as worker:
            desk = worker.desk("t")
            assert (await desk.admit(counters(desk), 1, 0, 1, 0, 1, 0)).status == "granted"
            assert len((await worker.ledger.show())[1]) == 1
            assert [str(node.address) for node in worker.ledger.topology.masters()] == [f"rediss://{at}/0"]
        for url, why in (
            (f"rediss+cluster://gate:p%40ss%2Cword@{at}", "CERTIFICATE_VERIFY_FAILED"),
            (f"rediss+cluster://gate:wrong@{at}?ca_file={authority}", "invalid username-password pair"),
        ):
            with pytest.raises(LedgerUnavailable, match=why) as error:
                async with working(url, timeout_ms=3000):
                    pass
            assert not any(secret in str(error.value) for secret in ("p@ss", "p%40ss", "wrong@"))
    finally:
        server.kill()


# -- Sentinels ----------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Watched]:
    with watched(tmp_path) as pair:
        yield pair


async def test_the_master_that_sentinels_name_is_used(pair: Watched) -> None:
    """The replica never; when it takes the dead master's place its tree is in doubt before a call goes there, and what was used is there."""
    async with working(pair.url, "t") as worker:
        load = Load([worker], "t")
        await load.until_granted(100)
        await load.end()
        assert worker.ledger.incarnation("t") == pair.master.run_id
        await asyncio.to_thread(until, pair.in_step, "the replica does not come into step")
        assert {client["name"] for client in pair.replica.client.client_list() if client["name"].startswith("sluicegate")} == set()
        pair.master.kill()
        load.go_on()
        await asyncio.to_thread(until, pair.promoted, "the Sentinels name no other master")  # when depends on them: an election may need two rounds
        promoted_at = undisturbed()
        await eventually(lambda: worker.verified)
        assert undisturbed() - promoted_at < 4
        assert worker.verified == [("t", pair.replica.run_id)]
        await load.until_granted(100)
        await load.end()
        assert await load.is_all_there(worker)
        assert load.failed > 0
        pair.master.start()  # takes itself for a master until a Sentinel tells it otherwise
        await asyncio.sleep(0.3)
        desk = worker.desk("t")
        assert (await desk.admit(counters(desk), 1, 0, 1, 0, 1, 0)).status == "granted"
        assert len(worker.doubts["t"]) == 1
        assert [line for line in worker.log.lines if line != "ledger fails"] == [
            *("ledger servers", "ledger connected"),
            *("ledger away", "ledger servers", "ledger connected"),
        ]


async def test_a_replica_that_lags_is_promoted_under_load(pair: Watched, tmp_path: Path) -> None:
    """What its master had confirmed is missing there: two gateways notice, seed it from the records, and never get more than the limit."""
    settings: dict[str, Any] = {"ledger": pair.url, "limits": "[6000 tokens/day]", "more": "ledger_timeout: 300ms"}
    async with running(tmp_path, **settings) as first, running(tmp_path, **settings) as second:
        first.whole = second.whole = False
        benches = (first, second)

        async def client(bench: Bench) -> None:
            while (answer := await bench.chat(max_tokens=20)).code != "budget_exceeded":
                await asyncio.sleep(0.005 if answer.code == "200" else 0.05)
                assert answer.code in ("200", "budget_busy", "ledger_unavailable", "ledger_recovering")

        def served() -> int:
            return first.total + second.total

        clients = [asyncio.create_task(client(bench)) for bench in benches for _ in range(3)]
        await eventually(lambda: served() > 1000)
        await asyncio.to_thread(pair.cut_replica)
        seen = served()
        await eventually(lambda: served() > seen + 1000)
        with structlog.testing.capture_logs() as logs:
            pair.master.kill()
            async with asyncio.timeout(30):
                await asyncio.gather(*clients)
        for bench in benches:
            await bench.quiet()
        assert (await first.usage())["key key tokens/day"]["used"] == served()
        assert 5900 <= served() <= 6000
        changes = [(line["from"], line["to"]) for line in logs if line["event"] == "tree state"]
        assert ("doubt", "lost") in changes
