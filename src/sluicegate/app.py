"""The composition root: builds everything of one worker from its configuration; nothing else wires.

serve_worker(loaded, sockets)                        one worker process, until a signal ends it
worker = Worker(loaded); await worker.start(); ...   the same inside a running loop
"""

import asyncio
import contextlib
import gc
import hmac
import itertools
import os
import random
import secrets
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import structlog

from sluicegate.announcements import Announcements
from sluicegate.applying import Applying, deployments, providers, tokenizers
from sluicegate.bus import Bus
from sluicegate.bus_channels import channel_of
from sluicegate.caching import caching_of
from sluicegate.chaos import Chaos
from sluicegate.config.load import Loaded
from sluicegate.consumption import Asking
from sluicegate.cooling import Cooldowns
from sluicegate.core import meter
from sluicegate.core.estimate import Learned
from sluicegate.core.once import Store
from sluicegate.core.record import Record
from sluicegate.core.request_ids import request_id
from sluicegate.directory import Compiled, Directory
from sluicegate.directory_changes import Changes
from sluicegate.expiries import Expiries
from sluicegate.gateway import Gateway
from sluicegate.http.asgi import Application
from sluicegate.http.exchange import Exchange
from sluicegate.http.pools import Pools
from sluicegate.http.server import Server
from sluicegate.idempotency import Idempotency
from sluicegate.journal import Journal, JournalState
from sluicegate.keepalive import KeepAlive
from sluicegate.ledger.contract import Ledger, LedgerUnavailable
from sluicegate.ledger.memory import MemoryLedger
from sluicegate.ledger.redis import RedisLedger
from sluicegate.ledger.sqlite import SqliteLedger
from sluicegate.observe.log import StateLog, access_log, configure
from sluicegate.observe.metrics import Metrics
from sluicegate.observe.notices import Notices
from sluicegate.observe.siblings import Siblings
from sluicegate.outbox import Outbox
from sluicegate.probes import Probes
from sluicegate.records import directory as tables
from sluicegate.records.idempotency import RecordsStore
from sluicegate.records.retention import Kept
from sluicegate.records.rows import RecordsUnavailable
from sluicegate.records.store import Records
from sluicegate.recovery import OtherRecords, Recovery
from sluicegate.reloading import Reloading
from sluicegate.request_logging import RequestLogging
from sluicegate.surface import Surface
from sluicegate.tracing import Tracing
from sluicegate.upkeep import Upkeep

LEDGER_AWAY_S = 10.0  # not ready after this long without the ledger or a tree's state, under `on_ledger_failure: refuse`
START_S = 10.0  # for which a start waits for the states of all trees
SETTLE_AT_STOP_S = 5.0
OPERATORS_DRAIN_S = 1.0
GC_THRESHOLD = 20_000  # allocations; the default of 700 is reached within two requests

log = structlog.get_logger("app")


def time_ms() -> int:
    """The wall clock."""
    return time.time_ns() // 1_000_000


def ledger_of(loaded: Loaded) -> Ledger:
    """The ledger that a configuration names, not yet opened."""
    config, policy = loaded.config, loaded.policy
    expired_hold = policy.budget.expired_hold
    if config.ledger.startswith("memory:"):
        return MemoryLedger(time_ms, expired_hold)
    if config.ledger.startswith("sqlite:"):
        return SqliteLedger(config.ledger, config.ledger_timeout_ms, config.ledger_durability, time_ms, expired_hold)
    return RedisLedger(config.ledger, config.ledger_timeout_ms, expired_hold)


def _idempotency_store(loaded: Loaded) -> Store:
    """Where all workers find it: with the ledger if that is a Redis, else with the records."""
    config = loaded.config
    if config.ledger.startswith(("memory:", "sqlite:")):
        return RecordsStore(config.records, time_ms)
    from sluicegate.idempotency_redis import RedisStore  # noqa: PLC0415  (redis-py takes a while to import)

    return RedisStore(config.ledger, config.ledger_timeout_ms)


def records_of(loaded: Loaded) -> Records:
    """The records that a configuration names, not yet opened."""
    kept = loaded.config.retention
    return Records(loaded.config.records, kept=Kept(kept.requests_ms // 1000, kept.quarters_ms // 1000))


class Worker:
    """Everything that one worker process is made of."""

    def __init__(self, loaded: Loaded) -> None:
        config = self._config = loaded.config
        self._loaded = loaded
        self.directory = Directory(tables.Directory(config.records), time_ms)
        compiled = self.directory.compile(loaded)
        self.directory.use(compiled)
        self.ledger = ledger_of(loaded)
        self.metrics = Metrics(lambda model: model in self.gateway.policy.models)
        self.metrics.refresh, self.metrics.journal = self._gauge, lambda: (self._outbox.backlog, self._journal.dropped)
        self.learned = Learned()
        self._pools = Pools(providers(loaded.policy))
        ids, boot, trees = itertools.count(1), secrets.token_hex(6), compiled.trees
        self.records, self.asking = records_of(loaded), Asking(config.records, time_ms, self.directory.below)
        self._idempotency = Idempotency(_idempotency_store(loaded))
        self.notices = Notices(self.metrics, itertools.chain.from_iterable(trees.values()), self.ledger.peek)
        self._expiries = Expiries(lambda: self._loaded.policy, self.ledger.now_ms, self.metrics.observe, lambda: self._outbox)
        self._journal = Journal.open(config.journal, boot, asyncio.get_running_loop(), _journal_log())
        self._outbox = Outbox(self.ledger, self._journal, self.records, config.journal, trees, self.notices.on_marks, self._expiries.late)
        self.gateway = Gateway(
            compiled.policy,
            self.ledger,
            self._outbox,
            self._pools,
            self.learned,
            self._observers(loaded),
            self._expiries.swept,
            self.notices,
            lambda time_ms: request_id(time_ms, boot, next(ids)),
            time.monotonic,  # the loop's own time stands still within a turn and has milliseconds
            time_ms,
            config.server.max_body,
            self._idempotency,
        )
        self.recovery = Recovery(
            self.ledger, self.records, self._outbox, lambda: self.gateway.trips, trees, boot, lambda: secrets.token_hex(8), time.monotonic
        )
        self._upkeep = self._keep_up()
        self._upkeep.charged = self._expiries.charged
        self.tracing = Tracing(self.gateway, loaded, self.metrics)
        self._siblings = Siblings(Path(config.journal), self.metrics)
        self._boot = boot
        self.bus = Bus(channel_of(config.ledger, config.ledger_timeout_ms), boot, self.ledger.now_ms)
        self._applying = self._change_at_run_time(compiled)
        self.probes = self._share_what_is_found()
        self.admin = self._administration() if config.admin.secret is not None else None
        used, scrape, apart = self.asking.of_key, self._siblings.scrape, config.admin.listen is not None
        self.surface = Surface(self.gateway, self.ledger, used, self.readiness, scrape, self._may_scrape, self.admin, apart)
        self._tasks: list[asyncio.Task[None]] = []
        self.server: Server | None = None
        self._operators: Server | None = None  # the listener of `admin.listen`

    def _change_at_run_time(self, compiled: Compiled) -> Applying:
        parts: dict[str, Any] = {"pools": self._pools, "notices": self.notices, "upkeep": self._upkeep, "trees": compiled.trees}
        told: dict[str, Any] = {"observers": self._observers, "on_applied": self._applied}
        applying = Applying(self._loaded, compiled, self.directory, self.recovery, self.gateway, **parts, **told)
        self.apply = applying.apply
        self.reloading = Reloading(self._loaded, applying.apply, time_ms)
        self.changes = Changes(self.directory, lambda: self._loaded, applying.again, self.bus.publish, time_ms)
        self.bus.subscribe("config", lambda _: self.directory.wake())
        self._expiries.tree_of = self.directory.tree_of
        return applying

    def _applied(self, before: Loaded, loaded: Loaded) -> None:
        """What else goes by the configuration."""
        self._loaded, self._config = loaded, loaded.config
        self.announcements.apply(loaded.policy)
        self.tracing.apply(loaded)
        self.request_logging.apply(loaded)
        if self.server is not None:
            _let_go(self.server, loaded)
        if _log_form(loaded) != _log_form(before):
            configure(_log_form(loaded))

    def _share_what_is_found(self) -> Probes:
        """What this worker and the others find of deployments: cooldowns, and the results of probes."""
        standings, now_ms = self.gateway.standings, self.ledger.now_ms
        cooldowns = self._cooldowns = Cooldowns(self.bus, standings, now_ms)
        probes = Probes(lambda: self.gateway.policy, self._pools, self.bus, standings.rate, self.metrics.probed, time.monotonic, now_ms)
        self._tell(cooldowns, probes)
        return probes

    def _tell(self, cooldowns: Cooldowns, probes: Probes) -> None:
        """What is written into the audit log, and told as events."""
        policy, later = self._loaded.policy, asyncio.get_running_loop().call_later
        told = Announcements(self._config.records, policy, self.bus.publish, self.metrics, self._boot, self.ledger.now_ms, later)
        self.announcements, alarms = told, told.alarms
        self.notices.on_mark, self.notices.refused, self.notices.ruled = alarms.marked, alarms.refused, alarms.ruled
        self.gateway.standings.on_change, cooldowns.on_found, probes.on_change = alarms.standing, alarms.cooled, alarms.health
        self.reloading.on_change = alarms.configuration

    def _observers(self, loaded: Loaded) -> tuple[Callable[[Record], None], ...]:
        access = access_log(loaded.config.log.access, asyncio.get_running_loop())
        return (self.metrics.observe,) if access is None else (self.metrics.observe, access)

    def _keep_up(self) -> Upkeep:
        self.gateway.caching = caching_of(self._config, self.ledger, self.gateway.holding, self.metrics, time_ms, time.monotonic)
        self.request_logging = RequestLogging(self.gateway, self.metrics, self._loaded)
        told = (self._expiries.swept, self.notices.on_marks, self.metrics.ledger, self.metrics.loop_lag)
        return Upkeep(self.gateway, self.ledger, self.learned, self._loaded.policy.budget.hold_ttl_ms, *told, time.monotonic)

    def _administration(self) -> Application:
        """The admin API. Imported here, since few configurations have it, and it takes a quarter of a second."""
        from sluicegate.admin import access, app, services  # noqa: PLC0415

        later = asyncio.get_running_loop().call_later
        calls, on = self.gateway.calls, self._config.admin.chaos
        chaos = Chaos(calls, self._knows, self.bus.publish, later, self.ledger.now_ms, random.random) if on else None
        if chaos is not None:
            self.bus.subscribe("chaos", chaos.hear, earlier=True)
        return app.build(
            services.Services(
                access.Access(lambda: self._config.admin.credentials, lambda: self.gateway.credentials.of_secret, time.monotonic),
                self._boot,
                self.gateway,
                self.ledger,
                self.recovery,
                chaos,
                self.probes,
                self._cooldowns.reset,
                lambda: self._loaded,
                self.reloading,
                self.asking.records,
                self.directory,
                self.changes,
                self._outbox,
                self._upkeep.sweep,
                self.notices.on_marks,
                services.Audits(self.announcements.auditing, self.ledger.now_ms),
                self.bus,
                lambda: {"ledger": self._upkeep.state, "records": self._outbox.state, "bus": self.bus.state, **self.request_logging.states()},
                self._why_not_ready,
                time.monotonic,
                time_ms,
            )
        )

    def _knows(self, deployment_id: str) -> bool:
        return any(one.id == deployment_id for one in deployments(self.gateway.policy))

    async def listen_apart(self, sockets: Sequence[socket.socket] = ()) -> None:
        """Listens for operators, where `admin.listen` gives them an address of their own. sockets: that are bound to it already."""
        address = self._config.admin.address
        if address is None:
            return
        surface, admin = self.surface, self.admin
        self._operators = Server(
            surface.handle_operator,
            host=address.host,
            port=address.port,
            sockets=sockets,
            drain_s=OPERATORS_DRAIN_S,
            sockets_below=surface.ADMIN if admin is not None else "",
            sockets_app=admin,
        )
        await self._operators.start()

    async def start(self) -> None:
        """Opens ledger and records, makes sure of every tree's state, replays what dead workers left, starts the background work.

        A ledger or records that are away do not stop a start; nothing is admitted until both are there. Raises OtherRecords.
        """
        for tokenizer in tokenizers(self._loaded.policy):
            meter.load(tokenizer)
        loop, there = asyncio.get_running_loop(), True
        try:
            await self.ledger.open()
        except LedgerUnavailable as error:
            log.warning("ledger state", **{"from": "unknown", "to": "away", "reason": str(error)})
            self._upkeep.seen_at -= LEDGER_AWAY_S
            there = False
        self._tasks += [loop.create_task(work.run()) for work in (self.recovery, self.bus, self.announcements)]
        with contextlib.suppress(LedgerUnavailable, RecordsUnavailable):  # the outbox tries again, and says so
            await self.records.open()
            try:
                await self.recovery.until_open(START_S if there else 0)
            except OtherRecords:
                await self.stop()
                raise
            await self._outbox.replay()
        try:
            await self._siblings.start()
        except OSError as error:  # a gateway without the others' figures is better than none
            log.warning("metrics of other workers cannot be had", reason=str(error))
        alive = KeepAlive(self.gateway.trips, lambda: self.gateway.policy, time.monotonic)
        self._tasks += [loop.create_task(work.run()) for work in (self._upkeep, self._outbox, alive, self.probes)]
        self._tasks.append(loop.create_task(self.directory.run()))
        if self._loaded.source is not None:
            self._tasks.append(loop.create_task(self.reloading.run(self._loaded.source)))

    async def stop(self) -> None:
        """After the last request: what is owed to ledger and records is sent, for a few seconds; the rest stays in the journal, also if cancelled."""
        try:
            if self._operators is not None:
                await self._operators.stop()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._outbox.finish(SETTLE_AT_STOP_S)
            with contextlib.suppress(RecordsUnavailable):
                await self.recovery.leave()
            await self._siblings.stop()
            await self.tracing.stop()
            aside: tuple[Any, ...] = (self.request_logging, self.announcements, self.bus, self.directory, self._pools)
            for part in (*aside, self.gateway.caching, self.ledger, self._idempotency, self.asking, self.records):
                await part.close()
        finally:
            self._journal.close()

    def readiness(self) -> tuple[str, dict[str, int]]:
        """Why this worker should get no new requests, "" if it should; how many trees are not open, and how many deployments probes find down.

        One tree that is open makes it ready: in a cluster, each server keeps other trees, and a replica that is taken out would serve none of them.
        """
        down = sum(health == "down" for health in self.gateway.standings.unwell.values())
        return self._why_not_ready(), {"closed_trees": self.recovery.closed, "deployments_down": down}

    def _why_not_ready(self) -> str:
        if self.server is not None and not self.server.ready:
            return "draining"
        if self._loaded.policy.on_ledger_failure == "allow":
            return ""
        if time.monotonic() - self._upkeep.seen_at >= LEDGER_AWAY_S:
            return "the ledger does not answer"
        return "the ledger is recovering" if self.recovery.closed_s() > LEDGER_AWAY_S else ""

    def _gauge(self) -> None:
        metrics = self.metrics
        metrics.in_flight = len(self.gateway.trips)
        metrics.deployments = Counter(f"{one}\n{state}" for one, state in self.gateway.standings.troubles())
        metrics.waiting = self.gateway.holding.waiting.depth
        metrics.held_output_tokens = sum(trip.standing.granted for trip in self.gateway.trips if trip.standing is not None)
        metrics.ledger_up = time.monotonic() - self._upkeep.seen_at < LEDGER_AWAY_S

    def _may_scrape(self, exchange: Exchange) -> bool:
        key = self._config.admin.metrics_key
        if key is None:
            return (self._config.admin.address or self._config.server.address).on_loopback
        presented = exchange.headers.get(b"authorization", b"").removeprefix(b"Bearer ").strip()
        return hmac.compare_digest(presented, key.get_secret_value().encode())


def _log_form(loaded: Loaded) -> Literal["json", "console"]:
    return "json" if loaded.config.log.access == "json" else "console"


def _journal_log() -> Callable[[JournalState], None]:
    say = StateLog("journal", "ok", good=frozenset({"ok"}))
    return lambda state: say(state.status, reason=state.reason, waiting=state.waiting, dropped=state.dropped)


def _let_go(server: Server, loaded: Loaded) -> None:
    """How long a server that stops lets its clients go on."""
    config = loaded.config.server
    server.drain_s, server.drain_delay_s = config.drain_ms / 1000, config.drain_delay_ms / 1000


@contextlib.asynccontextmanager
async def serving(loaded: Loaded, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[tuple[Worker, Server]]:
    """A whole gateway inside the running loop, without signals."""
    worker = Worker(loaded)
    admin = worker.admin if loaded.config.admin.listen is None else None
    below = Surface.ADMIN if admin is not None else ""
    server = Server(worker.surface.handle, host=host, port=port, sockets_below=below, sockets_app=admin)
    _let_go(server, loaded)
    worker.server = server
    await worker.start()
    await server.start()
    await worker.listen_apart()
    try:
        yield worker, server
    finally:
        await server.stop()
        await worker.stop()


def serve_worker(loaded: Loaded, sockets: Sequence[socket.socket], operators: Sequence[socket.socket] = ()) -> None:
    """One worker process: serves until a signal has drained it. operators: bound to `admin.listen`, where it is given."""
    configure(_log_form(loaded))
    made: list[Worker] = []

    async def start() -> None:
        worker = Worker(loaded)
        made.append(worker)
        worker.server = server
        await worker.start()
        await worker.listen_apart(operators)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, worker.reloading.soon)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGHUP,))  # blocked by the parent, so that none ends a worker that starts

    async def admin(scope: Any, receive: Any, send: Any) -> None:
        application = made[0].admin
        assert application is not None
        await application(scope, receive, send)

    def handle(exchange: Exchange) -> Awaitable[None]:
        return made[0].surface.handle(exchange)

    async def stop() -> None:
        if made:
            await made[0].stop()

    # What exists by now lives as long as the process: nothing of it is looked at again for garbage, and little garbage is made.
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 20)
    here = loaded.config.admin.secret is not None and loaded.config.admin.listen is None
    below, app = (Surface.ADMIN, admin) if here else ("", None)
    server = Server(handle, sockets=sockets, on_start=start, on_stop=stop, sockets_below=below, sockets_app=app)
    _let_go(server, loaded)
    server.run()
    if server.hurried:  # a thread may be waiting for a database that does not answer
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
