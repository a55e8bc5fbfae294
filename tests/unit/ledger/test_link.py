"""The pipelined connection, without a network: a loop whose time the test moves, and a transport that keeps what was written."""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from sluicegate.ledger.address import Address
from sluicegate.ledger.contract import LedgerUnavailable
from sluicegate.ledger.link import Command, Connection, Link, Run, pack, raw

ECHO = raw("ECHO")
SCRIPT = Command("verb", lambda reply: reply, b"return 1", b"a" * 40)


class Timer:
    def __init__(self, at: float, callback: Callable[[], object]) -> None:
        self.at = at
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """What a connection uses of an event loop."""

    def __init__(self) -> None:
        self.now = 100.0
        self.soon: list[Callable[[], object]] = []
        self.timers: list[Timer] = []
        self.timers_made = 0

    def time(self) -> float:
        return self.now

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.get_running_loop().create_future()

    def call_soon(self, callback: Callable[[], object]) -> None:
        self.soon.append(callback)

    def call_at(self, at: float, callback: Callable[[], object]) -> Timer:
        self.timers_made += 1
        self.timers.append(Timer(at, callback))
        return self.timers[-1]

    def turn(self) -> None:
        soon, self.soon = self.soon, []
        for callback in soon:
            callback()

    def advance(self, seconds: float) -> None:
        """Moves time and fires the timers that are due, in order."""
        until = self.now + seconds
        while due := [timer for timer in self.timers if timer.at <= until and not timer.cancelled]:
            timer = min(due, key=lambda timer: timer.at)
            self.timers.remove(timer)
            self.now = max(self.now, timer.at)
            timer.callback()
        self.now = until


class Transport:
    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.ended = ""

    def write(self, data: bytes) -> None:
        assert not self.ended
        self.writes.append(data)

    def abort(self) -> None:
        self.ended = "abort"

    def close(self) -> None:
        self.ended = "close"


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, event: str, **fields: object) -> None:
        self.lines.append(f"{event}: {fields.get('command', fields.get('reason', ''))}")

    warning = info


class Asked(NamedTuple):
    hold_id: str


class Wire:
    """A connection on the fakes above. Calls time out after 1 s."""

    def __init__(self) -> None:
        self.loop, self.transport, self.log = Loop(), Transport(), Log()
        self.late: list[tuple[str, Any, Any]] = []
        self.link = Link(
            Address(host="h"), 1000, name="n", log=self.log, on_late=lambda command, answer, asked: self.late.append((command.name, answer, asked))
        )
        self.connection = Connection(self.link, self.loop)  # type: ignore[arg-type]
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]

    def send(self, packed: bytes = b"x", command: Command = ECHO, asked: Any = None) -> "asyncio.Future[Any]":
        return self.connection.send(command, packed, asked)

    def receive(self, data: bytes) -> None:
        self.connection.data_received(data)


@pytest.fixture
async def wire() -> Wire:
    return Wire()


def reason(future: "asyncio.Future[Any]") -> str:
    error = future.exception()
    assert isinstance(error, LedgerUnavailable)
    return str(error)


async def test_all_calls_of_a_turn_go_out_in_one_write(wire: Wire) -> None:
    """Nothing is written before the turn ends, and nothing twice."""
    for part in (b"a", b"b", b"c"):
        wire.send(part)
    assert wire.transport.writes == []
    wire.loop.turn()
    wire.send(b"d")
    wire.loop.turn()
    wire.loop.turn()
    assert wire.transport.writes == [b"abc", b"d"]


@pytest.mark.parametrize("size", [1, 3, 1000])
async def test_replies_resolve_calls_in_order(wire: Wire, size: int) -> None:
    """Whole, in pieces, byte by byte."""
    futures = [wire.send() for _ in range(4)]
    data = b":1\r\n$2\r\n\r\n\r\n*3\r\n:2\r\n$-1\r\n*1\r\n:9007199254740991\r\n+OK\r\n"
    for start in range(0, len(data), size):
        wire.receive(data[start : start + size])
    assert [future.result() for future in futures] == [1, b"\r\n", [2, None, [2**53 - 1]], b"OK"]


async def test_a_call_ends_at_its_timeout_with_one_timer_for_all(wire: Wire) -> None:
    """Each within the timeout of its own turn; a thousand calls do not make a thousand timers."""
    first = wire.send()
    wire.loop.turn()
    wire.loop.advance(0.4)
    rest = [wire.send() for _ in range(1000)]
    assert wire.loop.timers_made == 1
    wire.loop.advance(0.59)
    assert not first.done()
    wire.loop.advance(0.01)
    assert "did not answer within 1 s" in reason(first)
    assert not any(future.done() for future in rest)
    wire.loop.advance(0.4)
    assert all("did not answer" in reason(future) for future in rest)
    assert wire.loop.timers_made < 6


async def test_no_timer_is_left_when_all_is_answered(wire: Wire) -> None:
    """It looks once more, finds nothing and rests until the next call."""
    wire.send()
    wire.receive(b":1\r\n")
    wire.loop.advance(5)
    assert wire.loop.timers == []
    wire.send()
    assert len(wire.loop.timers) == 1


async def test_a_late_answer_keeps_its_place(wire: Wire) -> None:
    """It goes to on_late, not to the next call; a call that its caller gave up is late, too."""
    slow = wire.send(asked="slow")
    wire.loop.turn()
    wire.loop.advance(0.9)
    quick, given_up = wire.send(asked="quick"), wire.send(asked="given up")
    given_up.cancel()
    wire.loop.advance(0.2)
    wire.receive(b":1\r\n:2\r\n:3\r\n")
    assert "did not answer" in reason(slow)
    assert quick.result() == 2
    assert wire.late == [("ECHO", 1, "slow"), ("ECHO", 3, "given up")]


async def test_calls_after_a_late_answer_keep_their_time(wire: Wire) -> None:
    """What was overdue and came late does not count among those that wait."""
    for _ in range(3):
        wire.send()
    wire.loop.turn()
    wire.loop.advance(1.5)
    wire.receive(b":1\r\n:2\r\n:3\r\n")
    call = wire.send()
    wire.loop.advance(0.99)
    assert not call.done()
    wire.loop.advance(0.01)
    assert "did not answer" in reason(call)


async def test_a_call_behind_overdue_ones_keeps_its_time(wire: Wire) -> None:
    """The timer that then waits for the silence to become too long waits for it, too."""
    wire.send()
    wire.loop.turn()
    wire.loop.advance(1)
    wire.loop.advance(0.001)
    wire.receive(b"*1\r\n")
    call = wire.send()
    wire.loop.advance(1)
    assert "did not answer" in reason(call)


async def test_a_silent_connection_is_dropped(wire: Wire) -> None:
    """After 2 s without any answer that is owed; calls under way end, their outcome unknown."""
    wire.send()
    wire.loop.turn()
    wire.loop.advance(1.8)
    young = wire.send()
    wire.loop.advance(0.1)
    assert wire.transport.ended == ""
    wire.loop.advance(0.11)
    assert wire.transport.ended == "abort"
    assert "nothing answered for 2 s; the outcome of the call is unknown" in reason(young)
    assert wire.connection.lost.result() == "nothing answered for 2 s"


async def test_a_slow_connection_that_answers_is_kept(wire: Wire) -> None:
    """Every answer counts as a sign of life, and so does owing nothing for a long time."""
    for _ in range(4):
        wire.send()
    wire.loop.turn()
    for _ in range(4):
        wire.loop.advance(1.9)
        wire.receive(b":1\r\n")
    wire.loop.advance(60)
    wire.send()
    wire.loop.advance(1.9)
    assert wire.transport.ended == ""


def evalsha(*args: str) -> bytes:
    return pack("EVALSHA", SCRIPT.sha, 1, "k", *args)


async def test_a_missing_script_is_sent_whole_once(wire: Wire) -> None:
    """In the order of the calls; what it answers then is the answer, an error too."""
    futures = [wire.send(evalsha("1"), SCRIPT, Asked("a")), wire.send(evalsha("2"), SCRIPT, Asked("b"))]
    wire.loop.turn()
    wire.receive(b"-NOSCRIPT No matching script.\r\n" * 2)
    wire.loop.turn()
    assert wire.transport.writes[1:] == [pack("EVAL", SCRIPT.text, 1, "k", "1") + pack("EVAL", SCRIPT.text, 1, "k", "2")]
    wire.receive(b":1\r\n-ERR no\r\n")
    assert futures[0].result() == 1
    assert "the ledger answered: ERR no" in reason(futures[1])


async def test_a_missing_script_does_not_overtake(wire: Wire) -> None:
    """A later call for the same hold may have taken effect: the earlier one fails, with nothing done. Nor does one run that was given up."""
    admit, settle, other = (wire.send(evalsha(), SCRIPT, Asked(hold_id)) for hold_id in ("a", "a", "b"))
    wire.loop.turn()
    wire.loop.advance(0.5)
    other.cancel()
    wire.receive(b"-NOSCRIPT\r\n-NOSCRIPT\r\n-NOSCRIPT\r\n")
    wire.loop.turn()
    assert "NOSCRIPT" in reason(admit)
    assert wire.transport.writes[1:] == [pack("EVAL", SCRIPT.text, 1, "k")]
    wire.receive(b":7\r\n")
    assert settle.result() == 7


async def test_errors_are_logged_once_per_change_of_state(wire: Wire) -> None:
    """However many calls fail; well again is what has not failed for 5 s."""
    for _ in range(3):
        for _ in range(50):
            wire.send(command=SCRIPT)
        wire.receive(b"-OOM command not allowed\r\n" * 49 + b":1\r\n")
        wire.loop.advance(1)
    assert wire.log.lines == ["ledger fails: verb"]
    wire.loop.advance(5)
    wire.send(command=ECHO)
    wire.send(command=SCRIPT)
    wire.receive(b":1\r\n:1\r\n")
    assert wire.log.lines == ["ledger fails: verb", "ledger works again: verb"]
    wire.send(command=SCRIPT)
    wire.receive(b"-OOM\r\n")
    assert wire.log.lines[2:] == ["ledger fails: verb"]


async def test_timeouts_are_logged_once(wire: Wire) -> None:
    """A thousand of them are one state."""
    for _ in range(3):
        for _ in range(300):
            wire.send(command=SCRIPT)
        wire.loop.turn()
        wire.loop.advance(1)
        wire.receive(b":1\r\n" * 300)
    assert wire.log.lines == ["ledger fails: verb"]


async def test_a_server_that_became_a_replica_is_left(wire: Wire) -> None:
    """The name may point to the new master by now: connect again."""
    calls = [wire.send(command=SCRIPT) for _ in range(3)]
    wire.receive(b":1\r\n-READONLY You can't write against a read only replica.\r\n-READONLY\r\n")
    assert calls[0].result() == 1
    assert "READONLY" in reason(calls[1])
    assert "the outcome of the call is unknown" in reason(calls[2])
    assert wire.transport.ended == "abort"


@pytest.mark.parametrize("data", [b"HTTP/1.1 400 Bad Request\r\n", b":1\r\n:2\r\n", b"*1\r\n:1\r\n:3\r\n"])
async def test_garbage_ends_the_connection(wire: Wire, data: bytes) -> None:
    """Not Redis, an answer to nothing, an answer that the command cannot read: no call is left waiting."""
    call = wire.send(command=Command("number", lambda reply: reply + 0))
    wire.receive(data)
    assert wire.transport.ended == "abort"
    assert wire.connection.lost.result().startswith("unreadable reply")
    assert call.done()


async def test_a_lost_connection_fails_what_is_under_way(wire: Wire) -> None:
    """Also what has not been written yet; nothing is written afterwards."""
    sent = wire.send()
    wire.loop.turn()
    unsent = wire.send()
    wire.receive(b"*2\r\n:1\r\n")
    wire.connection.connection_lost(ConnectionResetError("reset"))
    wire.loop.turn()
    for call in (sent, unsent):
        assert reason(call) == "connection lost: reset; the outcome of the call is unknown"
    assert len(wire.transport.writes) == 1
    wire.loop.advance(10)


async def test_without_a_connection_calls_fail_at_once(wire: Wire) -> None:
    """They say where the ledger should be and why it is away."""
    call = wire.link.call(ECHO, b"x")
    assert reason(call) == "no connection to the ledger at redis://h:6379/0: not connected yet"


# -- the first connection -----------------------------------------------------------------------------------------------------------------


class Starting:
    """A link whose attempts to connect end as the test says, on the fakes above."""

    def __init__(self) -> None:
        self.wire, self.told = Wire(), list[Run]()
        self.link = Link(Address(host="h"), 1000, name="n", log=self.wire.log, on_greeted=self._greeted, jitter=lambda: 0.0)
        self.attempt: asyncio.Future[tuple[Connection, Run]] = asyncio.get_running_loop().create_future()
        self.link._connect = lambda: self.attempt  # type: ignore[method-assign,assignment,return-value]
        self.first = self.link.start()
        self.first.add_done_callback(lambda first: first.exception())

    def _greeted(self, link: Link, run: Run) -> None:
        assert not link.up
        assert self.wire.transport.writes == []
        self.told.append(run)

    async def connects(self) -> None:
        self.attempt.set_result((self.wire.connection, Run("run", "history")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_calls_made_before_the_first_connection_wait_for_it() -> None:
    """They go out first, in order, once it is known which run of a server this is; their time has run since they were made."""
    start = Starting()
    calls = [start.link.call(ECHO, b"a"), start.link.call(ECHO, b"b")]
    await start.connects()
    calls.append(start.link.call(ECHO, b"c"))
    assert (start.told, start.link.up, start.wire.transport.writes) == ([Run("run", "history")], True, [])
    start.wire.loop.turn()
    assert start.wire.transport.writes == [b"abc"]
    start.wire.receive(b":1\r\n:2\r\n")
    assert [call.result() for call in calls[:2]] == [1, 2]
    [timer] = [timer for timer in start.wire.loop.timers if not timer.cancelled]
    assert timer.at <= asyncio.get_running_loop().time() + 1
    start.wire.connection.closed.set_result(None)
    await start.link.close()


async def test_calls_fail_with_the_first_attempt_to_connect() -> None:
    """And then at once, until there is a connection."""
    start = Starting()
    call = start.link.call(ECHO, b"a")
    start.attempt.set_exception(OSError("refused"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert reason(call) == "no connection to the ledger at redis://h:6379/0: refused"
    assert reason(start.first) == "cannot use the ledger at redis://h:6379/0: refused"
    assert reason(start.link.call(ECHO, b"b")) == "no connection to the ledger at redis://h:6379/0: refused"
    await start.link.close()


async def test_calls_made_before_a_connection_end_with_the_link() -> None:
    """Closed while it connects."""
    start = Starting()
    call = start.link.call(ECHO, b"a")
    await start.link.close()
    for future in (call, start.first):
        assert reason(future) == "no connection to the ledger at redis://h:6379/0: closed"


async def test_closing_a_link_that_was_never_started() -> None:
    """Nothing is to be ended."""
    link = Link(Address(host="h"), 1000, name="n", log=Log())
    await link.close()
    assert not link.up


async def test_a_connection_that_is_lost_as_it_is_greeted_is_not_used() -> None:
    """Whoever is told of the run of the server may drop it at once: calls that waited for it fail."""
    start = Starting()
    start.link._on_greeted = lambda link, run: start.wire.connection.end("another run than the other link's")
    call = start.link.call(ECHO, b"a")
    await start.connects()
    async with asyncio.timeout(30):
        await asyncio.wait([call])
    assert (start.link.up, start.wire.transport.writes) == (False, [])
    assert "another run than the other link's" in reason(call)
    await start.link.close()


class Greeted:
    """A server that answers what a link asks of it first."""

    def __init__(self, role: bytes = b"master", version: bytes = b"7.2.1", policy: Any = (b"maxmemory-policy", b"noeviction")) -> None:
        self.answers = {
            "HELLO": [b"server", b"redis", b"version", version, b"role", role],
            "SELECT": b"OK",
            "CONFIG": list(policy) if isinstance(policy, tuple) else policy,
            "INFO": b"# Server\r\nrun_id:r1\r\nmaster_replid:h1\r\n",
        }

    def send(self, command: Command, packed: bytes) -> "asyncio.Future[Any]":
        future = asyncio.get_running_loop().create_future()
        answer = self.answers[command.name]
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
        return future


@pytest.mark.parametrize(
    ("server", "why"),
    [
        (Greeted(role=b"slave"), "the server is a slave, not a master"),
        (Greeted(version=b"6.2.14"), "Redis 7 or later, or Valkey, is needed; this is 6.2.14"),
        (Greeted(policy=(b"maxmemory-policy", b"allkeys-lru")), "maxmemory-policy must be noeviction, is allkeys-lru"),
    ],
)
async def test_a_server_that_is_not_fit_is_not_used(wire: Wire, server: Greeted, why: str) -> None:
    """One that does not keep what it is told, or cannot be told."""
    with pytest.raises(LedgerUnavailable, match=why):
        await wire.link._greet(server)  # type: ignore[arg-type]


async def test_a_policy_that_may_not_be_asked_is_told_once(wire: Wire) -> None:
    """However often it connects; the server is used."""
    server = Greeted(policy=LedgerUnavailable("NOPERM"))
    assert [await wire.link._greet(server) for _ in range(2)] == [Run("r1", "h1")] * 2  # type: ignore[arg-type]
    assert wire.log.lines == ["ledger policy unknown: see that maxmemory-policy is noeviction: NOPERM"]


@pytest.mark.parametrize(
    ("error", "elsewhere"),
    [
        ("MOVED 3999 127.0.0.1:6381", True),
        ("CLUSTERDOWN Hash slot not served", True),
        ("READONLY You can't write against a read only replica.", True),
        ("LOADING Redis is loading the dataset in memory", True),
        ("TRYAGAIN Multiple keys request during rehashing of slot", False),
        ("ASK 3999 127.0.0.1:6381", False),
        ("ERR no", False),
    ],
)
async def test_some_errors_say_that_another_server_is_the_right_one(wire: Wire, error: str, elsewhere: bool) -> None:
    """A slot that is only on its way does not: until it has arrived its old server is the right one."""
    told: list[bool] = []
    wire.link.on_trouble = lambda: told.append(True)
    call = wire.send()
    wire.receive(b"-%b\r\n" % error.encode())
    assert reason(call) == f"the ledger answered: {error}"
    assert bool(told) is elsewhere
