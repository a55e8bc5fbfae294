"""The ledger for many machines: the rules of core/rules.py as Lua scripts in a Redis (7 or later) or Valkey.

Every verb is one script call, atomic over all counters of a tenant tree, whose keys share a hash tag. The clock is the server's. Two connections:
admit, extend, settle and peek share one; renewals, sweeps, estimators and views have their own and never stand before an admission.
What the scripts need of a RefSet is encoded once and kept in it; a call adds the rest. Key and record formats: docs/redis-keys.md.

Invariants: an admit that timed out and was granted all the same is cancelled as soon as that is known; its hold id must therefore not be used again.
Fails as link.py says. Redis without memory refuses admits and extends, never a settle.
"""

import asyncio
import hashlib
import os
import random
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import msgspec
import structlog

from sluicegate.core import rules
from sluicegate.core.claims import Admission, CounterView, Extension, HoldView, Kind, Ref, RefSet, Reply, Settled, Settlement, Swept
from sluicegate.ledger.contract import LedgerUnavailable
from sluicegate.ledger.link import Address, Command, Link, Log, pack, raw
from sluicegate.ledger.views import counter_view, hold_view

PREFIX = "sg1"
SCAN_COUNT = 1_000
TREES_AT_ONCE = 64  # swept in one go; Redis works on each of them for up to a millisecond

encode, decode = msgspec.msgpack.encode, msgspec.msgpack.decode

# What the numbers and letters of the scripts stand for.
REPLIES: tuple[Literal["granted", "refused", "stale_window", "cancelled", "gone"], ...] = ("granted", "refused", "stale_window", "cancelled", "gone")
SETTLED: tuple[Literal["settled", "already", "late", "forced", "cancelled"], ...] = ("settled", "already", "late", "forced", "cancelled")
STATES: dict[str, rules.HoldState] = {"o": "open", "h": "expired_held", "s": "expired_seen", "f": "forced", "c": "cancelled"}


class _Packed:
    """The static part of the commands on one RefSet, in the Redis protocol."""

    __slots__ = ("admit", "extend", "ledger", "peek", "settle")

    def __init__(self, ledger: "RedisLedger", refs: RefSet) -> None:
        self.ledger = ledger
        keys = (*_hold_keys(refs.tree), *(ref.key for ref in refs.refs))
        figures = encode(_figures(refs.refs, ledger.expired_state))
        self.admit = _head(ledger.scripts["admit"], keys, (figures,), 1)
        self.extend = _head(ledger.scripts["extend"], keys, (figures,), 1)
        self.settle = _head(ledger.scripts["settle"], keys, (figures,), 1)
        self.peek = _head(ledger.scripts["peek"], keys, (figures,), 0)


class RedisLedger:
    """See ledger/contract.py."""

    def __init__(
        self,
        url: str,
        timeout_ms: int = 1_000,
        expired_hold: Literal["charge_held", "charge_seen"] = "charge_held",
        *,
        trees: Callable[[], Iterable[str]] = tuple,
        name: str = "",
        log: Log | None = None,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """trees: those that the present configuration knows; `sweep` looks into them and into all that this ledger has been asked about.

        name: of this worker among the clients that Redis lists. Raises ValueError for a URL that link.Address does not understand.
        """
        address, name = Address.parse(url), name or f"sluicegate-{os.getpid()}"
        log = log or structlog.get_logger("sluicegate.ledger")
        self.trees = trees
        self.expired_state = "h" if expired_hold == "charge_held" else "s"
        self.scripts = _load_scripts({"admit": self._read_reply, "extend": self._read_reply, "peek": self._read_reply, "settle": self._read_settled})
        self._admit, self._extend = self.scripts["admit"], self.scripts["extend"]
        self._settle, self._peek = self.scripts["settle"], self.scripts["peek"]
        front = [self._admit, self._extend, self._settle, self._peek]
        back = [self.scripts[verb] for verb in ("renew", "sweep", "learned")]
        self._front = Link(address, timeout_ms, name=name, log=log, scripts=front, on_late=self._on_late, jitter=jitter)
        self._back = Link(address, timeout_ms, name=f"{name}-back", log=log, scripts=back, jitter=jitter)
        self._clock = clock
        self._offset_ms = time.time() * 1000 - clock() * 1000
        self._asked: set[str] = set()  # trees
        self._found: list[Swept] = []  # swept holds whose call came to nothing; the next sweep returns them

    def now_ms(self) -> int:
        return int(self._clock() * 1000 + self._offset_ms)

    async def open(self) -> None:
        results = await asyncio.gather(self._front.open(), self._back.open(), return_exceptions=True)
        for error in results:
            if error is not None:
                raise error
        seconds, microseconds = await self._front.call(raw("TIME"), pack("TIME"))
        self._set_clock(int(seconds) * 1000 + int(microseconds) // 1000)

    async def close(self) -> None:
        await self._front.close()
        await self._back.close()

    async def ping(self) -> None:
        await self._front.call(raw("PING"), pack("PING"))

    # -- verbs --

    def admit(self, admission: Admission) -> "asyncio.Future[Reply]":
        a = admission
        request = encode((a.hold_id, a.replacing, a.tag, a.need, a.aim, a.want, a.ttl_ms, a.amounts))
        return self._front.call(self._admit, b"%b$%d\r\n%b\r\n" % (self._packed(a.refs).admit, len(request), request), a)

    def extend(self, extension: Extension) -> "asyncio.Future[Reply]":
        e = extension
        request = encode((e.hold_id, e.need, e.want, e.seen, e.ttl_ms))
        return self._front.call(self._extend, b"%b$%d\r\n%b\r\n" % (self._packed(e.refs).extend, len(request), request), e)

    def settle(self, settlement: Settlement) -> "asyncio.Future[Settled]":
        s = settlement
        request = encode((s.hold_id, s.mode, s.actual))
        return self._front.call(self._settle, b"%b$%d\r\n%b\r\n" % (self._packed(s.refs).settle, len(request), request), s)

    def peek(self, refs: RefSet) -> "asyncio.Future[Reply]":
        return self._front.call(self._peek, self._packed(refs).peek)

    async def renew(self, tree: str, hold_ids: list[str], ttl_ms: int) -> None:
        self._asked.add(tree)
        script = self.scripts["renew"]
        await self._back.call(script, _head(script, _hold_keys(tree), (encode((ttl_ms, hold_ids)),), 0))

    async def sweep(self, limit: int) -> list[Swept]:
        script, arguments = self.scripts["sweep"], (self.expired_state.encode(), b"%d" % limit)
        trees = sorted(self._asked.union(self.trees()))
        failure: LedgerUnavailable | None = None
        for start in range(0, len(trees), TREES_AT_ONCE):
            some = trees[start : start + TREES_AT_ONCE]
            for call in [self._back.call(script, _head(script, _hold_keys(tree), arguments, 0)) for tree in some]:
                try:
                    self._found += [_read_swept(entry) for entry in (await call)[1:]]
                except LedgerUnavailable as error:
                    failure = error
        if failure is not None:
            raise failure
        found, self._found = self._found, []
        return found

    async def learned(self, increments: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
        if not increments:
            return {}
        script = self.scripts["learned"]
        keys = tuple(f"{PREFIX}:{{learned}}:t:{name}" for name in increments)
        flat = [[part for pair in increment.items() for part in pair] for increment in increments.values()]
        sums = await self._back.call(script, _head(script, keys, (encode(flat),), 0))
        return {
            name: {field.decode(): n for field, n in zip(table[::2], table[1::2], strict=True)}
            for name, table in zip(increments, sums, strict=True)
        }

    async def show(self) -> tuple[list[CounterView], list[HoldView]]:
        """Of every tree in the database, those no longer configured too. Looks at one key after another, so figures may differ by a moment."""
        keys = sorted(await self._scan(f"{PREFIX}:{{*"))
        counters = [_counter_view(key, fields) for key, fields in await self._hashes([key for key in keys if "}:c:" in key]) if fields]
        holds = []
        for key, records in await self._hashes([key for key in keys if key.endswith("}:holds")]):
            expiries = await self._command("ZRANGE", key.removesuffix("holds") + "expiry", 0, -1, "WITHSCORES")
            expires_ms = {hold_id: int(ms) for hold_id, ms in zip(expiries[::2], expiries[1::2], strict=True)}
            holds += [hold_view(id_.decode(), _read_hold(record), expires_ms[id_]) for id_, record in records.items() if id_ in expires_ms]
        return counters, holds

    # -- steps --

    def _packed(self, refs: RefSet) -> _Packed:
        packed = refs.packed
        if type(packed) is _Packed and packed.ledger is self:
            return packed
        self._asked.add(refs.tree)
        refs.packed = packed = _Packed(self, refs)
        return packed

    def _set_clock(self, now_ms: int) -> None:
        self._offset_ms = now_ms - self._clock() * 1000

    def _read_reply(self, reply: list[Any]) -> Reply:
        status, now_ms, g, room, *rest = reply
        self._offset_ms = now_ms - self._clock() * 1000
        swept: tuple[Swept, ...] = ()
        if rest and type(rest[-1]) is list:
            swept = tuple(map(_read_swept, rest.pop()))
        return Reply(REPLIES[status], now_ms, g, room, tuple(zip(rest[::2], rest[1::2], strict=True)), swept)

    def _read_settled(self, reply: list[int]) -> Settled:
        return Settled(SETTLED[reply[0]], reply[1])

    def _on_late(self, script: Command, answer: Any, asked: Any) -> None:
        """An answer that nobody waits for: an admission is given back, what it swept is kept for whoever sweeps next."""
        if script is not self._admit:
            return
        self._found += answer.swept
        if answer.status == "granted":
            self.settle(Settlement(asked.hold_id, asked.refs, (0,) * len(asked.refs.refs), "cancel"))

    async def _command(self, *args: str | bytes | int) -> Any:
        return await self._back.call(raw(str(args[0])), pack(*args))

    async def _hashes(self, keys: list[str]) -> list[tuple[str, dict[bytes, bytes]]]:
        found = []
        for start in range(0, len(keys), SCAN_COUNT):
            some = keys[start : start + SCAN_COUNT]
            calls = [self._back.call(raw("HGETALL"), pack("HGETALL", key)) for key in some]
            for key, call in zip(some, calls, strict=True):
                fields = await call
                found.append((key, dict(zip(fields[::2], fields[1::2], strict=True))))
        return found

    async def _scan(self, pattern: str) -> set[str]:
        found: set[str] = set()
        cursor = b"0"
        while True:
            cursor, keys = await self._command("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT)
            found.update(key.decode() for key in keys)
            if cursor == b"0":
                return found


# -- formats --


def _hold_keys(tree: str) -> tuple[str, str]:
    return f"{PREFIX}:{{{tree}}}:holds", f"{PREFIX}:{{{tree}}}:expiry"


def _figures(refs: tuple[Ref, ...], expired_state: str) -> list[str | int]:
    """State of expired holds; the time when all windows run, end 0 for ever; then kind, ceiling, a, b of each counter.

    a, b: of a bucket gain and per_ms, of a sliding window the length of a slice, of a window that ends its end.
    """
    start_ms = max((ref.start_ms for ref in refs if ref.kind == "w"), default=0)
    end_ms = min((ref.end_ms for ref in refs if ref.kind == "w" and ref.end_ms), default=0)
    figures: list[str | int] = [expired_state, start_ms, end_ms]
    for ref in refs:
        a, b = {"b": (ref.gain, ref.per_ms), "s": (ref.per_ms, 0), "w": (ref.end_ms, 0), "o": (0, 0)}[ref.kind]
        figures += (ref.kind, ref.ceiling, a, b)
    return figures


def _head(script: Command, keys: tuple[str, ...], arguments: tuple[bytes, ...], more: int) -> bytes:
    """An EVALSHA in the Redis protocol, up to the last `more` arguments."""
    whole = pack("EVALSHA", script.sha, len(keys), *keys, *arguments)
    count, _, rest = whole.partition(b"\r\n")
    return b"*%d\r\n%b" % (int(count[1:]) + more, rest)


def _load_scripts(readers: dict[str, Callable[[Any], Any]]) -> dict[str, Command]:
    """The scripts beside this module by verb. Scripts cannot import: a line `--@name` in one stands for the text of steps/name.lua."""
    folder = Path(__file__).parent / "lua"
    scripts = {}
    for verb in ("admit", "extend", "settle", "peek", "renew", "sweep", "learned"):
        text = re.sub(rb"--@(\w+)\n", lambda name: (folder / "steps" / f"{name[1].decode()}.lua").read_bytes(), (folder / f"{verb}.lua").read_bytes())
        sha = hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()
        scripts[verb] = Command(verb, readers.get(verb, lambda reply: reply), text, sha)
    return scripts


def _read_swept(entry: list[Any]) -> Swept:
    hold_id, tag, g, seen, *charged = entry
    charges = tuple((key.decode(), n) for key, n in zip(charged[::2], charged[1::2], strict=True))
    return Swept(hold_id.decode(), tag.decode(), g, seen, charges)


def _read_hold(record: bytes) -> rules.Hold:
    version, state, g, seen, tag, *claims = decode(record)
    return rules.Hold(version, STATES[state], g, seen, tag, [rules.HoldClaim(*claims[at : at + 5]) for at in range(0, len(claims), 5)])


def _counter_view(key: str, fields: dict[bytes, bytes]) -> CounterView:
    """A counter's kind shows in its fields (docs/redis-keys.md)."""
    state: rules.Counter
    kind: Kind
    if b"d" in fields:
        kind, state = "b", [int(fields[b"d"]), int(fields[b"r"]), int(fields[b"t"])]
    elif b"u" in fields:
        kind, state = "w", [int(fields[b"u"]), int(fields[b"h"])]
    elif b"h" in fields:
        kind, state = "o", [0, int(fields[b"h"])]
    else:
        kind, state = "s", {int(slot): int(n) for slot, n in fields.items()}
    return counter_view(key, kind, state)
