"""One small HTTP service in front of the SQLite ledger, and a gateway whose ledger is that service: the fourth way of bench/shared_vs_split.py.

    python bench/http_ledger.py service PORT FILE
    python bench/http_ledger.py gateway CONFIG PORT LEDGER_URL

It is what a team writes that wants one ledger for several machines and no Redis: each verb is one POST, arguments and results in MessagePack. It
lives here and not in the product, since it has nothing of what Redis has: no second server, nothing by which its loss is noticed.
"""

import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from sluicegate import app
from sluicegate.calling import read_all
from sluicegate.config.load import load
from sluicegate.core.claims import Admission, Announcement, CounterView, Extension, HoldView, Ref, RefSet, Reply, Seed, Settled, Settlement, Swept
from sluicegate.core.tenants import Timeouts
from sluicegate.http.exchange import Exchange
from sluicegate.http.server import Server, listen
from sluicegate.http.upstream import Pool, UpstreamError
from sluicegate.ledger.contract import LedgerUnavailable, TreeState
from sluicegate.ledger.sqlite import SqliteLedger
from sluicegate.ledger.trees import Trees, failed, recovering

Marks = tuple[tuple[int, int], ...]
Tables = dict[str, dict[str, int]]
VERBS: dict[str, tuple[Any, Any]] = {  # arguments, result
    "admit": (tuple[Admission], Reply),
    "extend": (tuple[Extension], Reply),
    "settle": (tuple[Settlement], Settled),
    "peek": (tuple[RefSet], Reply),
    "renew": (tuple[str, list[str], int], None),
    "sweep": (tuple[int], list[Swept]),
    "warn": (tuple[RefSet], Marks),
    "learned": (tuple[Tables], Tables),
    "show": (tuple[()], tuple[list[CounterView], list[HoldView]]),
    "seq": (tuple[str, str], int),
    "seed": (tuple[str, str, list[Seed]], int),
    "fill": (tuple[str, list[Seed]], None),
    "announce": (tuple[Announcement], None),
    "ping": (tuple[()], None),
}
ANSWER_MAX = 16 * 2**20


def _plain(value: Any) -> Any:
    assert isinstance(value, RefSet), value
    return (value.tree, value.refs)


def _refset(_kind: type, value: Any) -> RefSet:
    tree, refs = value
    return RefSet(tree, msgspec.convert(refs, list[Ref]))


encode = msgspec.msgpack.Encoder(enc_hook=_plain).encode
_arguments = {verb: msgspec.msgpack.Decoder(tuple[dict[str, str], kinds], dec_hook=_refset).decode for verb, (kinds, _) in VERBS.items()}  # type: ignore[valid-type]
_result = {verb: msgspec.msgpack.Decoder(kind).decode for verb, (_, kind) in VERBS.items()}


# -- the service ------------------------------------------------------------------------------------------------------------------------------


class Service:
    """Answers POST /<verb>: the epochs of the caller's trees and the arguments; 503 with a text where the ledger fails."""

    def __init__(self, ledger: SqliteLedger) -> None:
        self._ledger = ledger

    async def handle(self, exchange: Exchange) -> None:
        verb = exchange.path.removeprefix("/")
        try:
            epochs, arguments = _arguments[verb](await exchange.read_body())
            for tree, epoch in epochs.items():
                state = self._ledger.trees.get(tree)
                if state is None or state.epoch != epoch:
                    self._ledger.trees[tree] = TreeState(epoch, 0, open=True)
            status, body = 200, encode(await getattr(self._ledger, verb)(*arguments))
        except LedgerUnavailable as error:
            status, body = 503, str(error).encode()
        exchange.start(status, [], len(body))
        exchange.finish(body)


def serve(port: int, file: str) -> None:
    """Until a signal ends it."""

    async def run() -> None:
        ledger = SqliteLedger(file)
        await ledger.open()
        await Server(Service(ledger).handle, port=port, drain_s=1.0).serve()
        await ledger.close()

    asyncio.run(run())


# -- the ledger -------------------------------------------------------------------------------------------------------------------------------


class HttpLedger(Trees):
    """See ledger/contract.py."""

    def __init__(self, url: str, timeout_ms: int) -> None:
        super().__init__()
        self._pool = Pool(url)
        self._timeouts = Timeouts(connect_ms=timeout_ms, first_byte_ms=timeout_ms, idle_ms=timeout_ms, write_ms=timeout_ms, total_ms=timeout_ms)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def incarnation(self, tree: str) -> str:
        return "service"

    async def open(self) -> None:
        await self.ping()

    async def close(self) -> None:
        await self._pool.close()

    def admit(self, admission: Admission) -> "asyncio.Future[Reply]":
        state = self.trees.get(admission.refs.tree)
        return self._later("admit", admission.refs.tree, admission) if state is None or state.open else failed(recovering(admission.refs.tree))

    def extend(self, extension: Extension) -> "asyncio.Future[Reply]":
        return self._later("extend", extension.refs.tree, extension)

    def settle(self, settlement: Settlement) -> "asyncio.Future[Settled]":
        return self._later("settle", settlement.refs.tree, settlement)

    def peek(self, refs: RefSet) -> "asyncio.Future[Reply]":
        return asyncio.get_running_loop().create_task(self._call("peek", {}, refs))

    async def renew(self, tree: str, hold_ids: list[str], ttl_ms: int) -> None:
        await self._call("renew", self._epochs(tree), tree, hold_ids, ttl_ms)

    async def sweep(self, limit: int) -> list[Swept]:
        return await self._call("sweep", self._epochs(*self.trees), limit)  # type: ignore[no-any-return]

    async def warn(self, refs: RefSet) -> Marks:
        return await self._call("warn", self._epochs(refs.tree), refs)  # type: ignore[no-any-return]

    async def learned(self, increments: Tables) -> Tables:
        return await self._call("learned", {}, increments)  # type: ignore[no-any-return]

    async def show(self) -> tuple[list[CounterView], list[HoldView]]:
        return await self._call("show", {})  # type: ignore[no-any-return]

    async def seq(self, tree: str, epoch: str) -> int:
        return await self._call("seq", {}, tree, epoch)  # type: ignore[no-any-return]

    async def seed(self, tree: str, epoch: str, counters: Sequence[Seed]) -> int:
        return await self._call("seed", {}, tree, epoch, counters)  # type: ignore[no-any-return]

    async def fill(self, tree: str, counters: Sequence[Seed]) -> None:
        await self._call("fill", self._epochs(tree), tree, counters)

    async def announce(self, announcement: Announcement) -> None:
        await self._call("announce", self._epochs(announcement.refs.tree), announcement)

    async def ping(self) -> None:
        await self._call("ping", {})

    def _epochs(self, *trees: str) -> dict[str, str]:
        return {tree: self.trees[tree].epoch for tree in trees if tree in self.trees}

    def _later(self, verb: str, tree: str, argument: Any) -> "asyncio.Future[Any]":
        if tree not in self.trees:
            return failed(recovering(tree))
        return asyncio.get_running_loop().create_task(self._call(verb, self._epochs(tree), argument))

    async def _call(self, verb: str, epochs: dict[str, str], *arguments: Any) -> Any:
        call = self._pool.begin(b"POST", b"/" + verb.encode(), (), encode((epochs, arguments)), self._timeouts)
        try:
            await call.start()
            body = await read_all(call, ANSWER_MAX)
        except UpstreamError as error:
            raise LedgerUnavailable(str(error)) from None
        finally:
            if not call.complete:
                call.close()
        if call.status != 200:
            raise LedgerUnavailable(body.decode(errors="replace"))
        return _result[verb](body)


def gateway(file: str, port: int, url: str) -> None:
    """`sluicegate serve` with that ledger."""
    loaded = load(Path(file))
    app.ledger_of = lambda loaded: HttpLedger(url, loaded.config.ledger_timeout_ms)
    app.serve_worker(loaded, [listen("127.0.0.1", port)])


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["service", port, file]:
            serve(int(port), file)
        case ["gateway", config, port, url]:
            gateway(config, int(port), url)
        case _:
            sys.exit(__doc__)
