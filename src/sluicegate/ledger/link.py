"""The link to a Redis: one pipelined connection that scripts and commands of a whole worker share.

All commands of one turn of the event loop go out in one write; replies resolve futures in order. A connection is greeted (user, database, name,
policy, which run of a server it is, scripts) before it is used, and replaced with a jittered backoff when it is lost.

Invariants: a call ends within the timeout, by an answer or by `LedgerUnavailable`; one that timed out keeps its place in the pipeline, and
what its late answer says goes to `on_late`. One timer watches all calls: they wait in the order in which they were sent, so the oldest is due first.
No call goes out on a connection before `on_greeted` knows of it. Calls made while the very first attempt to connect is under way wait for its end.
Fails by `LedgerUnavailable` in the call's future: at once while there is no connection; for every call under way when the connection is lost
(outcome unknown), also when nothing was answered for 2 s; and where Redis answers an error (nothing was done). Each change of state is one log line.
"""

import asyncio
import random
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, NamedTuple, Protocol, cast

import hiredis

from sluicegate.ledger.address import Address
from sluicegate.ledger.contract import LedgerUnavailable

SILENCE_S = 2.0  # a connection that owes answers and gives none for this long is dropped
BACKOFF_S = (0.05, 2.0)  # first and longest pause before connecting again, times 0.5 to 1.5
TROUBLE_S = 5.0  # a command that failed is well again, in the log, when it has not failed for this long
MAJOR_MIN = 7
MOVED = ("MOVED", "CLUSTERDOWN", "READONLY", "MASTERDOWN", "LOADING")  # errors that say that another server may be the right one


class Log(Protocol):
    """What is used of a structlog logger."""

    def info(self, event: str, **fields: object) -> object: ...
    def warning(self, event: str, **fields: object) -> object: ...


class Run(NamedTuple):
    """Which run of a server it is. The history of its data changes when it was a replica meanwhile, and with each run."""

    run_id: str
    history: str


class Command:
    """A kind of call: its name in the log, how its reply is read, and for a script its text and SHA-1.

    damage: what an error says of the data, if it does; the call then fails so, and nothing is amiss with the server.
    """

    __slots__ = ("damage", "name", "read", "sha", "text")

    def __init__(
        self,
        name: str,
        read: Callable[[Any], Any],
        text: bytes = b"",
        sha: bytes = b"",
        damage: Callable[[str], LedgerUnavailable | None] = lambda error: None,
    ) -> None:
        self.name = name
        self.read = read
        self.text = text
        self.sha = sha
        self.damage = damage

    def with_reader(self, read: Callable[[Any], Any], damage: Callable[[str], LedgerUnavailable | None]) -> "Command":
        return Command(self.name, read, self.text, self.sha, damage)


def raw(name: str) -> Command:
    """A command whose reply is wanted as it is."""
    return Command(name, lambda reply: reply)


def pack(*args: str | bytes | int) -> bytes:
    """A command in the Redis protocol."""
    return cast(bytes, hiredis.pack_command(args))  # type: ignore[arg-type]


# Who waits, since when, for what; the bytes sent; what the caller asked. A plain tuple: two are made per request.
Waiting = tuple["asyncio.Future[Any]", float, Command, bytes, Any]


class Link:
    """A connection to one Redis that is kept up. `call` is all that a verb needs."""

    def __init__(
        self,
        address: Address,
        timeout_ms: int,
        *,
        name: str,
        log: Log,
        scripts: Sequence[Command] = (),
        on_late: Callable[[Command, Any, Any], None] = lambda command, answer, asked: None,
        on_greeted: Callable[["Link", Run], None] = lambda link, run: None,
        on_trouble: Callable[[], None] = lambda: None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """name: of the client, as Redis lists it. on_late: told of answers nobody waits for any more: command, what was read, what was asked.

        on_greeted: told of each new connection before it is used. on_trouble: told when another server may be the right one.
        """
        self.timeout_s = timeout_ms / 1000
        self.on_late = on_late
        self.on_trouble = on_trouble
        self._on_greeted = on_greeted
        self._address = address
        self._name = name
        self._scripts = scripts
        self._jitter = jitter
        self._log = log
        self._connection: Connection | None = None
        self._down = "not connected yet"
        self.troubled: dict[str, float] = {}  # commands that Redis fails, by the time of the last failure
        self._policy_unknown = False
        self._tls: ssl.SSLContext | None = None
        self._early: list[Waiting] | None = None  # made while the first attempt is under way
        self._first: asyncio.Future[None] | None = None  # the end of that attempt
        self._task: asyncio.Task[None] | None = None

    def start(self) -> "asyncio.Future[None]":
        """Begins to connect, and goes on trying if this fails. The future has the end of the first attempt; LedgerUnavailable says why it failed."""
        self._first = first = asyncio.get_running_loop().create_future()
        self._early = []
        self._task = asyncio.create_task(self._keep_up(first))
        return first

    async def close(self) -> None:
        if self._task is None or self._first is None:
            return
        self._task.cancel()
        await asyncio.wait([self._task])
        fail(self._first, f"no connection to the ledger at {self._address}: closed")
        self._fail_early("closed")
        connection, self._down = self._connection, "closed"
        if connection is not None:
            connection.end("closed", abort=False)
            await asyncio.wait([connection.closed], timeout=self.timeout_s)

    def call(self, command: Command, packed: bytes, asked: Any = None) -> "asyncio.Future[Any]":
        """Sends; the future has what `command.read` makes of the reply. asked: for `on_late`; its `hold_id` keeps order if a script is missing."""
        connection = self._connection
        if connection is not None:
            return connection.send(command, packed, asked)
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        if self._early is not None:
            self._early.append((future, loop.time(), command, packed, asked))
            return future
        fail(future, f"no connection to the ledger at {self._address}: {self._down}")
        return future

    def drop(self, reason: str) -> None:
        """Ends the present connection, if there is one; another one is made."""
        if self._connection is not None:
            self._connection.end(reason)

    @property
    def up(self) -> bool:
        """Whether calls go out now."""
        return self._connection is not None

    async def _keep_up(self, first: "asyncio.Future[None]") -> None:
        attempts = 0
        while True:
            try:
                connection, run = await self._connect()
            except (OSError, TimeoutError, LedgerUnavailable) as error:
                self._went_down(str(error) or "no answer in time")
            else:
                self._on_greeted(self, run)
                self._connection = None if connection.lost.done() else connection
                attempts, self._down = 0, ""
                if self._connection is not None:
                    early, self._early = self._early, None
                    if early:
                        connection.send_early(early)
                self._log.info("ledger connected", address=str(self._address), link=self._name)
                if not first.done():
                    first.set_result(None)
                await asyncio.wait([connection.lost])  # awaited itself, it would be cancelled with this task
                self._connection = None
                self._went_down(connection.lost.result())
            if not first.done():
                fail(first, f"cannot use the ledger at {self._address}: {self._down}")
            self._fail_early(self._down)
            pause_s = min(BACKOFF_S[0] * 2**attempts, BACKOFF_S[1])
            attempts = min(attempts + 1, 10)
            await asyncio.sleep(pause_s * (0.5 + self._jitter()))

    def _went_down(self, reason: str) -> None:
        if self._down in ("", "not connected yet"):
            self._log.warning("ledger away", address=str(self._address), link=self._name, reason=reason)
        self._down = reason
        self.on_trouble()

    def _fail_early(self, reason: str) -> None:
        early, self._early = self._early, None
        for future, *_ in early or ():
            fail(future, f"no connection to the ledger at {self._address}: {reason}")

    async def _connect(self) -> tuple["Connection", Run]:
        loop, at = asyncio.get_running_loop(), self._address
        async with asyncio.timeout(self.timeout_s):
            if at.path:
                _, connection = await loop.create_unix_connection(lambda: Connection(self, loop), at.path)
            else:
                if at.tls and self._tls is None:
                    self._tls = ssl.create_default_context(cafile=at.ca_file or None)
                _, connection = await loop.create_connection(lambda: Connection(self, loop), at.host, at.port, ssl=self._tls)
            try:
                return connection, await self._greet(connection)
            except BaseException:
                connection.end("not greeted")
                raise

    async def _greet(self, connection: "Connection") -> Run:
        """Makes a connection fit for use, in one write. Raises LedgerUnavailable if it cannot be."""
        at = self._address
        credential = ("AUTH", at.username or "default", at.password) if at.password else ()
        hello = connection.send(raw("HELLO"), pack("HELLO", 2, *credential, "SETNAME", self._name))
        select = connection.send(raw("SELECT"), pack("SELECT", at.db))
        policy = connection.send(raw("CONFIG"), pack("CONFIG", "GET", "maxmemory-policy"))
        info = connection.send(raw("INFO"), pack("INFO", "server", "replication"))
        loads = [connection.send(raw("SCRIPT"), pack("SCRIPT", "LOAD", script.text)) for script in self._scripts]
        await asyncio.wait([hello, select, policy, info, *loads])
        _check_server(hello.result())
        for reply in (select, *loads):
            reply.result()
        if policy.exception() is None:
            if policy.result()[1:] != [b"noeviction"]:
                found = b"".join(policy.result()[1:]).decode()
                raise LedgerUnavailable(f"maxmemory-policy must be noeviction, is {found}: it would forget what was used")
        elif not self._policy_unknown:
            self._policy_unknown = True
            self._log.warning("ledger policy unknown: see that maxmemory-policy is noeviction", address=str(at), reason=str(policy.exception()))
        facts = dict(line.split(b":", 1) for line in info.result().split(b"\r\n") if b":" in line)
        return Run(facts[b"run_id"].decode(), facts[b"master_replid"].decode())

    def lost(self, connection: "Connection") -> None:
        """Nothing more is sent on this connection."""
        if self._connection is connection:
            self._connection = None

    def failed(self, command: Command, reason: str, now: float) -> None:
        """A command was answered by an error, or not in time, on a connection that stands."""
        if command.name not in self.troubled:
            self._log.warning("ledger fails", command=command.name, reason=reason, link=self._name)
        self.troubled[command.name] = now

    def worked(self, command: Command, now: float) -> None:
        """A command was answered while some are troubled."""
        if now - self.troubled.get(command.name, now) >= TROUBLE_S:
            del self.troubled[command.name]
            self._log.info("ledger works again", command=command.name, link=self._name)


class Connection(asyncio.Protocol):
    """One connection: what goes out, who waits for what, and since when nothing was heard."""

    def __init__(self, link: Link, loop: asyncio.AbstractEventLoop) -> None:
        self.lost: asyncio.Future[str] = loop.create_future()  # with the reason: no more calls
        self.closed: asyncio.Future[None] = loop.create_future()  # the socket too
        self._link = link
        self._loop = loop
        self._transport: asyncio.Transport
        reader = hiredis.Reader()
        self._feed, self._next_reply = reader.feed, reader.gets
        self._waiting: deque[Waiting] = deque()
        self._overdue = 0  # calls at the front of `waiting` that have been told of their timeout
        self._out: list[bytes] = []
        self._turn = 0.0  # when the first of `out` was added
        self._heard = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def send(self, command: Command, packed: bytes, asked: Any = None, future: "asyncio.Future[Any] | None" = None) -> "asyncio.Future[Any]":
        """future: of a call that is sent again."""
        if future is None:
            future = self._loop.create_future()
        if not self._out:
            self._turn = self._loop.time()
            self._loop.call_soon(self._flush)
        if self._timer is None:
            self._timer = self._loop.call_at(self._turn + self._link.timeout_s, self._check)
        self._out.append(packed)
        self._waiting.append((future, self._turn, command, packed, asked))
        return future

    def send_early(self, early: list[Waiting]) -> None:
        """Sends first of all what was asked before there was a connection. The time of these calls has been running since then."""
        self._turn = early[-1][1]
        self._out += [packed for _, _, _, packed, _ in early]
        self._waiting += early
        self._loop.call_soon(self._flush)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(early[0][1] + self._link.timeout_s, self._check)

    def _flush(self) -> None:
        out, self._out = self._out, []
        if not self.lost.done():
            self._transport.write(b"".join(out))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        next_reply, waiting, link = self._next_reply, self._waiting, self._link
        future: asyncio.Future[Any] | None = None
        try:
            self._feed(data)
            while (reply := next_reply()) is not False:
                entry = waiting.popleft()
                if self._overdue:
                    self._overdue -= 1
                if isinstance(reply, hiredis.ReplyError):
                    self._refused(entry, str(reply))
                    continue
                future, _, command, _, asked = entry
                try:
                    answer = command.read(reply)
                except LedgerUnavailable as error:  # the reply says so
                    fail(future, error)
                    continue
                if future.done():
                    link.on_late(command, answer, asked)
                else:
                    future.set_result(answer)
                if link.troubled:
                    link.worked(command, self._heard)
        except (hiredis.HiredisError, LookupError, TypeError, ValueError) as error:  # garbage, or an answer to nothing
            self.end(f"unreadable reply: {error!r}")
            if future is not None:
                fail(future, "unreadable reply; the outcome of the call is unknown")

    def _refused(self, entry: Waiting, error: str) -> None:
        """Redis answered an error. A script that it does not know is sent whole, once, unless a later call for the same hold has overtaken it."""
        future, _, command, packed, asked = entry
        if error.startswith("NOSCRIPT") and not future.done() and not self._overtaken(asked):
            count, rest = packed[: packed.index(b"\r\n")], packed[packed.index(command.sha) + len(command.sha) :]
            self.send(command, b"%b\r\n$4\r\nEVAL\r\n$%d\r\n%b%b" % (count, len(command.text), command.text, rest), asked, future)
            return
        damage = command.damage(error)
        fail(future, damage or f"the ledger answered: {error}")
        if command.text and damage is None:
            self._link.failed(command, error, self._heard)
        if error.partition(" ")[0] in MOVED:
            self._link.on_trouble()
        if error.startswith("READONLY"):
            self.end("the server has become a read-only replica")

    def _overtaken(self, asked: Any) -> bool:
        hold_id = getattr(asked, "hold_id", None)
        return hold_id is not None and any(getattr(entry[4], "hold_id", None) == hold_id for entry in self._waiting)

    def _check(self) -> None:
        """Tells calls of their timeout, drops a connection that is silent, sets the next time to look."""
        self._timer = None
        now, timeout_s = self._loop.time(), self._link.timeout_s
        for future, since, command, _, _ in islice(self._waiting, self._overdue, None):
            if since + timeout_s > now:
                break
            self._overdue += 1
            if not future.done():
                fail(future, f"the ledger did not answer within {timeout_s:g} s")
                if command.text:
                    self._link.failed(command, "no answer in time", now)
        if not self._waiting:
            return
        silent_since = max(self._heard, self._waiting[0][1])
        if now - silent_since >= SILENCE_S:
            self.end(f"nothing answered for {SILENCE_S:g} s")
            return
        since = self._waiting[self._overdue][1] if self._overdue < len(self._waiting) else now  # a call that comes later is due after that
        self._timer = self._loop.call_at(min(since + timeout_s, silent_since + SILENCE_S), self._check)

    def connection_lost(self, exc: Exception | None) -> None:
        self.end(f"connection lost: {exc or 'closed by the server'}")
        self.closed.set_result(None)

    def end(self, reason: str, abort: bool = True) -> None:
        """Closes and fails every call under way. abort: without sending what has not been sent yet."""
        if self.lost.done():
            return
        self._link.lost(self)
        if not abort and self._out:
            self._transport.write(b"".join(self._out))
        self.lost.set_result(reason)
        if self._timer is not None:
            self._timer.cancel()
        for future, *_ in self._waiting:
            fail(future, f"{reason}; the outcome of the call is unknown")
        self._waiting.clear()
        if abort:
            self._transport.abort()
        else:
            self._transport.close()


def fail(future: "asyncio.Future[Any]", reason: str | LedgerUnavailable) -> None:
    """Fails a call. The link logs what matters, so a caller that does not look makes no noise."""
    if not future.done():
        future.set_exception(LedgerUnavailable(reason) if isinstance(reason, str) else reason)
        future.exception()


def _check_server(hello: list[Any]) -> None:
    """hello: what HELLO answers, names and values in turn."""
    facts = dict(zip(hello[::2], hello[1::2], strict=True))
    version = facts[b"version"].decode()
    if int(version.partition(".")[0]) < MAJOR_MIN:
        raise LedgerUnavailable(f"Redis 7 or later, or Valkey, is needed; this is {version}")
    if facts[b"role"] != b"master":
        raise LedgerUnavailable(f"the server is a {facts[b'role'].decode()}, not a master")
