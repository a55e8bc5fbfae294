"""Several Redis servers that belong together, as real processes on loopback: a Redis Cluster, or a master with a replica and Sentinels."""

import contextlib
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import redis as redis_client

from sluicegate.ledger.topology import SLOTS, slot
from support_gateway import Child, free_port, pongs

WITHIN_S = 60.0


def program() -> str:
    found = shutil.which("redis-server")
    assert found, "redis-server is needed on PATH: `make test` installs it"
    return found


def until(ready: Callable[[], object], what: str) -> None:
    """Waits for something that Redis servers do by themselves."""
    deadline = time.monotonic() + WITHIN_S
    while True:
        with contextlib.suppress(redis_client.RedisError, OSError):
            if ready():
                return
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


class Server:
    """A redis-server; `client` looks at it past the ledger."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.port = free_port()
        self.directory = directory / str(self.port)
        self.directory.mkdir()
        common = ["--bind", "127.0.0.1", "--save", "", "--dir", str(self.directory), "--repl-diskless-sync-delay", "0"]
        self.command = [program(), "--port", str(self.port), *common, "--maxmemory-policy", "noeviction", *options]
        self.client = redis_client.Redis(port=self.port, decode_responses=True)
        self.start()

    def start(self) -> None:
        self.child = Child(self.command, self.directory / "redis.log")
        self.child.wait_until(lambda: pongs(self.port))

    def kill(self) -> None:
        self.client.close()
        self.child.stop(signal.SIGKILL)

    def pause(self) -> None:
        self.child.send(signal.SIGSTOP)

    def go_on(self) -> None:
        self.child.send(signal.SIGCONT)

    @property
    def run_id(self) -> str:
        return str(self.client.info("server")["run_id"])


class Cluster:
    """Masters that share the slots evenly, in order. A master that is away leaves the others at work."""

    def __init__(self, directory: Path) -> None:
        self.masters: list[Server] = []
        self.servers: list[Server] = []
        self._directory = directory

    def form(self, masters: int) -> None:
        for i in range(masters):
            server = self._new()
            self.masters.append(server)
            server.client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
            server.client.execute_command("CLUSTER", "ADDSLOTSRANGE", SLOTS * i // masters, SLOTS * (i + 1) // masters - 1)
            self._meet(server)
        until(lambda: all(self._agrees(server, SLOTS) for server in self.masters), "the cluster does not come up")

    @property
    def url(self) -> str:
        """Names the first server only: the others are found."""
        return f"redis+cluster://127.0.0.1:{self.masters[0].port}"

    def replica_of(self, master: Server) -> Server:
        """A new one, in step with its master."""
        server = self._new()
        self._meet(server)
        until(lambda: self._agrees(server, SLOTS), "the new server is not taken in")
        server.client.execute_command("CLUSTER", "REPLICATE", self.id_of(master))
        return server

    def promote(self, replica: Server, master: Server) -> None:
        """Has a replica take the place of its master, once all have heard that it is its replica. Nothing is lost."""
        until(lambda: replica.client.info("replication")["master_link_status"] == "up", "the replica does not come into step")
        own = self.id_of(replica)
        until(lambda: all(self._flags(server, own) == "slave" for server in self.servers), "not all have heard of the replica")
        assert self._flags(master, self.id_of(master)) == "master"
        replica.client.execute_command("CLUSTER", "FAILOVER")

    def id_of(self, server: Server) -> str:
        return str(server.client.execute_command("CLUSTER", "MYID"))

    def flush(self) -> None:
        for server in self.masters:
            server.client.flushall()

    def keeper(self, tree: str) -> Server:
        """The master that keeps a tree at the start."""
        return self.masters[slot(tree) * len(self.masters) // SLOTS]

    def tree_at(self, master: Server, name: str) -> str:
        """A name for a tree that this master keeps at the start."""
        return next(tree for i in range(1000) if self.keeper(tree := f"{name}{i}") is master)

    def stop(self) -> None:
        for server in self.servers:
            server.kill()

    def _new(self) -> Server:
        options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--cluster-require-full-coverage", "no")
        server = Server(self._directory, *options)
        self.servers.append(server)
        return server

    def _meet(self, server: Server) -> None:
        if server is not self.servers[0]:
            server.client.execute_command("CLUSTER", "MEET", "127.0.0.1", self.servers[0].port)

    def _flags(self, server: Server, node_id: str) -> str:
        """What a server holds another one for; "" as long as it has not heard of it."""
        nodes = server.client.execute_command("CLUSTER NODES")
        return next((str(node["flags"]).removeprefix("myself,") for node in nodes.values() if node["node_id"] == node_id), "")

    def _agrees(self, server: Server, slots: int) -> bool:
        info = server.client.execute_command("CLUSTER INFO")
        return info["cluster_state"] == "ok" and int(info["cluster_slots_ok"]) == slots


class Move:
    """A slot on its way from one master to another, in the steps that redis-cli takes."""

    def __init__(self, cluster: Cluster, tree: str, source: Server, target: Server) -> None:
        self.slot, self.source, self.target = slot(tree), source, target
        self._source_id, self._target_id = cluster.id_of(source), cluster.id_of(target)
        self._others = [server for server in cluster.masters if server not in (source, target)]
        self._set(target, "IMPORTING", self._source_id)
        self._set(source, "MIGRATING", self._target_id)

    def keys(self, most: int) -> int:
        """Moves some of the keys; returns how many."""
        keys = self.source.client.execute_command("CLUSTER", "GETKEYSINSLOT", self.slot, most)
        if keys:
            self.source.client.execute_command("MIGRATE", "127.0.0.1", self.target.port, "", 0, 5000, "KEYS", *keys)
        return len(keys)

    def end(self) -> None:
        for server in (self.target, self.source, *self._others):
            self._set(server, "NODE", self._target_id)

    def _set(self, server: Server, *what: str) -> None:
        server.client.execute_command("CLUSTER", "SETSLOT", self.slot, *what)


class Watched:
    """A master and a replica that Sentinels watch over, under the name `mymaster`."""

    def __init__(self, directory: Path) -> None:
        self.children: list[Child] = []
        self.servers = [Server(directory), Server(directory)]
        self.master, self.replica = self.servers
        self._directory = directory

    def watch(self, sentinels: int = 3) -> None:
        directory = self._directory
        self.replica.client.replicaof("127.0.0.1", self.master.port)
        self.ports = [free_port() for _ in range(sentinels)]
        until(self.in_step, "the replica does not come into step")
        for port in self.ports:
            file = directory / f"sentinel-{port}.conf"
            lines = [f"port {port}", "bind 127.0.0.1", f"dir {directory}"]
            lines += [f"sentinel monitor mymaster 127.0.0.1 {self.master.port} {sentinels // 2 + 1}"]
            lines += ["sentinel down-after-milliseconds mymaster 500", "sentinel failover-timeout mymaster 3000"]
            file.write_text("\n".join(lines) + "\n")
            self.children.append(Child([program(), str(file), "--sentinel"], directory / f"sentinel-{port}.log"))
        for child, port in zip(self.children, self.ports, strict=True):
            child.wait_until(lambda port=port: pongs(port))  # type: ignore[misc]
        until(lambda: all(self._knows(port) for port in self.ports), "the Sentinels do not find each other and the replica")

    @property
    def url(self) -> str:
        return f"redis+sentinel://{','.join(f'127.0.0.1:{port}' for port in self.ports)}/mymaster"

    def in_step(self) -> bool:
        return bool(self.replica.client.info("replication")["master_link_status"] == "up")

    def cut_replica(self) -> None:
        """From now on the replica gets nothing from its master."""
        self.replica.client.config_set("masterauth", "wrong")
        self.replica.client.client_kill_filter(_type="master")
        until(lambda: not self.in_step(), "the replica is still in step")

    def promoted(self) -> bool:
        return bool(self.replica.client.info("replication")["role"] == "master")

    def stop(self) -> None:
        for child in self.children:
            child.stop(signal.SIGKILL)
        for server in self.servers:
            server.kill()

    def _knows(self, port: int) -> bool:
        with redis_client.Redis(port=port) as client:
            state = client.sentinel_master("mymaster")
            return bool(state["num-slaves"] == 1 and state["num-other-sentinels"] == len(self.ports) - 1)


@contextlib.contextmanager
def running_cluster(directory: Path, masters: int = 3) -> Iterator[Cluster]:
    cluster = Cluster(directory)
    try:
        cluster.form(masters)
        yield cluster
    finally:
        cluster.stop()


@contextlib.contextmanager
def watched(directory: Path) -> Iterator[Watched]:
    watched = Watched(directory)
    try:
        watched.watch()
        yield watched
    finally:
        watched.stop()
