"""Accepts clients and lets their exchanges finish before it ends.

A subclass of uvicorn's server, which binds and accepts. `handle` gets every request; web sockets below a path go to an ASGI app, if there is one.

    await Server(handle, host="127.0.0.1", port=8080).run()   # as a process: signals, uvloop where it is installed
    await server.start(); ...; await server.stop()            # inside a running loop, without signals

The first signal: `ready` is False at once; after `drain_delay_s` nothing new is accepted, idle connections are closed, and open exchanges have
`drain_s` to finish. The second signal, or the end of that time, cuts: every open exchange loses its client (`on_gone`), so that its handler settles;
handlers that have not returned `CUT_S` later are cancelled. No exit skips this. After a second signal `on_stop` has `END_S`, and is cancelled then,
as `on_start` is at once.
"""

import asyncio
import contextlib
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import uvicorn

from sluicegate.http import wire
from sluicegate.http.asgi import Application
from sluicegate.http.connection import Bounds, ClientConnection, State
from sluicegate.http.exchange import Handler, logger

BACKLOG = 2_048  # connections that wait to be accepted
SOCKET_MESSAGE_BYTES_MAX = 65_536
CUT_S = 1.5
END_S = 0.3  # with CUT_S within 2 s
_POLL_S = 0.05


def bind(host: str, port: int) -> socket.socket:
    """A socket that has the port and does not listen yet: a server listens when it can serve, until then clients are refused, and go elsewhere.

    Raises OSError. Accepted sockets inherit its options.
    """
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Without it the last bytes of a stream wait up to 40 ms for the client's acknowledgement. asyncio's own loop sets it only where `proto` is
        # given.
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        bound.bind((host, port))
    except BaseException:
        bound.close()
        raise
    return bound


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; raises OSError."""
    listening = bind(host, port)
    try:
        listening.listen(BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening


class Server(uvicorn.Server):
    """One worker's server. `sockets` are inherited, and listen once it has started; without any it listens on host and port (0: any free one)."""

    server_state: State

    def __init__(
        self,
        handle: Handler,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        sockets: Sequence[socket.socket] = (),
        on_start: Callable[[], Awaitable[None]] | None = None,  # before the first connection is accepted
        on_stop: Callable[[], Awaitable[None]] | None = None,  # after the last handler has returned
        drain_s: float = 60.0,
        drain_delay_s: float = 0.0,
        bounds: Bounds = Bounds(),  # noqa: B008  (immutable)
        sockets_below: str = "",  # the path below which web sockets are spoken, with:
        sockets_app: Application | None = None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                sockets_app or _no_app,
                http=ClientConnection,
                interface="asgi3",
                lifespan="off",
                ws="sluicegate.http.sockets:Socket" if sockets_app else "none",
                ws_max_size=SOCKET_MESSAGE_BYTES_MAX,
                log_config=None,
                access_log=False,
                proxy_headers=False,
                timeout_keep_alive=int(bounds.keep_alive_s),
                backlog=BACKLOG,
            )
        )
        self.server_state = State(handle, bounds, sockets_below)
        self.ready = False
        self.hurried = False  # a second signal has ended on_start or on_stop before it was done
        self._address = (host, port)
        self._sockets = list(sockets)
        self._on_start = on_start
        self._on_stop = on_stop
        self.drain_s = drain_s
        self.drain_delay_s = drain_delay_s
        self._asked = asyncio.Event()
        self._cut = asyncio.Event()
        self._ticker: asyncio.TimerHandle | None = None

    @property
    def port(self) -> int:
        """Where it listens, once started."""
        return int(self._sockets[0].getsockname()[1])

    async def start(self) -> None:
        """Starts inside a running loop, without signals."""
        self.config.load()
        self.lifespan = self.config.lifespan_class(self.config)
        await self.startup()

    async def stop(self) -> None:
        """Drains and ends, as the first signal does; `ask_to_stop` meanwhile cuts."""
        self.ask_to_stop()
        await self.shutdown()

    def ask_to_stop(self) -> None:
        """What a signal does."""
        self.ready = False
        (self._cut if self._asked.is_set() else self._asked).set()

    # Called by uvicorn's serve().

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.ask_to_stop)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._on_start is not None and not await self._unless_cut(asyncio.ensure_future(self._on_start()), 0.0):
            self.servers, self.started = [], True  # nothing listens; what has been begun is ended as ever
            return
        if not self._sockets:
            self._sockets.append(listen(*self._address))
        self._tick()
        await super().startup(self._sockets)
        self.ready = not self._asked.is_set()

    async def main_loop(self) -> None:
        await self._asked.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.ready = False
        state = self.server_state
        await self._until(self._cut.is_set, self.drain_delay_s)
        for server in self.servers:
            server.close()
        for connection in list(state.connections):
            connection.shutdown()
        await self._until(lambda: self._cut.is_set() or self._quiet(), self.drain_s)
        if not self._quiet():
            await self._cut_all()
        await self.lifespan.shutdown()
        if self._on_stop is not None:
            await self._unless_cut(asyncio.ensure_future(self._on_stop()), END_S)
        if self._ticker is not None:
            self._ticker.cancel()

    async def _cut_all(self) -> None:
        state = self.server_state
        logger.warning("cutting %d open exchanges", len(state.exchanges))
        for connection in list(state.connections):
            connection.transport.abort()
        for exchange in list(state.exchanges):
            exchange.lose()
        if not await self._until(self._quiet, CUT_S):
            tasks = [exchange.task for exchange in state.exchanges if exchange.task is not None] + list(state.tasks)
            logger.error("cancelling %d handlers that have not returned", len(tasks))
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=_POLL_S)

    async def _unless_cut(self, work: "asyncio.Future[Any]", left_s: float) -> bool:
        """Waits for `work`. A second signal, before or meanwhile, leaves it so long; then it is cancelled: False."""
        cut: asyncio.Future[Any] = asyncio.get_running_loop().create_task(self._cut.wait())
        await asyncio.wait([work, cut], return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait([work], timeout=left_s)
        cut.cancel()
        if work.done():
            work.result()
            return True
        logger.warning("the second signal ends what is not done: the journal has what others have not been told")
        self.hurried = True
        work.cancel()
        await asyncio.wait([work])
        return False

    def _quiet(self) -> bool:
        state = self.server_state
        return not (state.exchanges or state.tasks or state.connections)

    async def _until(self, done: Callable[[], bool], seconds: float) -> bool:
        """Whether `done` came true within that time."""
        end = time.monotonic() + seconds
        while not done():
            if time.monotonic() >= end:
                return False
            await asyncio.sleep(_POLL_S)
        return True

    def _tick(self) -> None:
        """Once a second: the date of answers, and whatever has taken too long."""
        loop = asyncio.get_running_loop()
        self.server_state.date = wire.date_line()
        self.server_state.default_headers = [(b"date", self.server_state.date.removeprefix(b"date: "))]
        now = loop.time()
        for connection in list(self.server_state.connections):
            if isinstance(connection, ClientConnection):
                connection.sweep(now)
        self._ticker = loop.call_later(1.0, self._tick)


async def _no_app(scope: Any, receive: Any, send: Any) -> None:
    raise RuntimeError("there are no web sockets here")
