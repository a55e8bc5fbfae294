"""The configuration at run time: its files are watched, and what they say anew is applied, or refused and shown.

    unchanged -> nothing | broken, or not to be changed at run time -> refused: the one in use stays | else -> applied, as a whole

A text that is refused is logged once, and is among `state.problems` until another one comes. What cannot be applied is refused whole: half of a
configuration is one that nobody has written.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from operator import attrgetter

import msgspec
import structlog

from sluicegate.config.fields import ConfigError
from sluicegate.config.load import Loaded, Source
from sluicegate.config.schema import Config
from sluicegate.config.watch import Watch

# What a process cannot change while it runs, by the field's name in the file.
_FIXED: dict[str, Callable[[Config], object]] = {
    "server.listen": attrgetter("server.listen"),
    "server.workers": attrgetter("server.workers"),
    "ledger": attrgetter("ledger"),
    "ledger_timeout": attrgetter("ledger_timeout_ms"),
    "ledger_durability": attrgetter("ledger_durability"),
    "records": attrgetter("records"),
    "journal": attrgetter("journal"),
    "retention": attrgetter("retention"),
    "cache.backend": attrgetter("cache.backend"),
    "cache.max_bytes": attrgetter("cache.max_bytes"),
    "cache.max_entry": attrgetter("cache.max_entry"),
    "admin.listen": attrgetter("admin.listen"),
    "admin.key": lambda config: config.admin.secret is not None,  # another key is taken; none is another gateway
    "admin.chaos": attrgetter("admin.chaos"),
    "budget.expired_hold": attrgetter("budget.expired_hold"),
    "tenants.limits": lambda config: any(limit is not None for limit in config.tenants.limits),  # the first binds all organizations into one tree
}

log = structlog.get_logger("configuration")


class ConfigState(msgspec.Struct, frozen=True):
    """Which configuration is in use, and what is wrong with a later one."""

    file: str
    version: str  # of the text that is in use
    loaded_at_ms: int
    refused: str  # the version of the text that is not; "": none, or it cannot be read
    problems: tuple[str, ...]  # why


class Reloading:
    """Of one worker. `loaded` is what is in use."""

    def __init__(self, loaded: Loaded, apply: Callable[[Loaded], Awaitable[None]], time_ms: Callable[[], int]) -> None:
        """apply: raises ValueError, and has changed nothing, where a configuration turns out to be of no use."""
        self.loaded = loaded
        self.state = ConfigState(loaded.file, loaded.version, time_ms(), "", ())
        self.on_change: Callable[[str, str, str, Sequence[str]], None] = lambda file, before, after, problems: None  # another version came
        self._apply = apply
        self._time_ms = time_ms
        self._one = asyncio.Lock()
        self._soon: set[asyncio.Task[list[str]]] = set()

    async def run(self, source: Source) -> None:
        """Reloads whenever the files change. Runs until cancelled."""
        watch = Watch(source.files)
        while True:
            try:
                await self.reload()
            except Exception:
                log.exception("background work failed", work="reload")
            await watch.changed()

    def soon(self) -> None:
        """Reloads as soon as possible: what a SIGHUP asks for."""
        task = asyncio.get_running_loop().create_task(self.reload())
        self._soon.add(task)
        task.add_done_callback(self._soon.discard)

    async def reload(self) -> list[str]:
        """What keeps the files from being applied; [] if they are in use now."""
        async with self._one:
            refused, problems = await self._reload()
        state = self.state
        if problems and (refused, tuple(problems)) != (state.refused, state.problems):
            log.error("configuration refused", file=state.file, version=refused, problems=problems, in_use=state.version)
            self.on_change(state.file, state.version, refused, problems)
        elif not problems and state.problems:
            log.info("configuration is in use again", file=state.file, version=state.version)
        if problems or state.problems:
            self.state = msgspec.structs.replace(self.state, refused=refused, problems=tuple(problems))
        return problems

    async def _reload(self) -> tuple[str, list[str]]:
        """The version that is refused, and why; nothing of either if it is in use."""
        source, version = self.loaded.source, ""
        if source is None:
            return "", ["the configuration was not read from a file"]
        try:
            text = await asyncio.to_thread(source.read)
            version = text.version
            if version != self.loaded.version:
                loaded = await asyncio.to_thread(text.load)
                self._check_fixed(loaded)
                await self._apply(loaded)
                before, self.loaded = self.loaded, loaded
                self.state = ConfigState(loaded.file, version, self._time_ms(), "", ())
                log.info("configuration applied", file=loaded.file, version=version)
                self.on_change(loaded.file, before.version, version, ())
        except OSError as error:
            return version, [f"{error.filename or source.file}: {error.strerror or error}"]
        except (ConfigError, ValueError) as error:
            return version, str(error).splitlines()
        return "", []

    def _check_fixed(self, loaded: Loaded) -> None:
        changed = [name for name, of in _FIXED.items() if of(loaded.config) != of(self.loaded.config)]
        if changed:
            raise ValueError("\n".join(f"{name}: cannot be changed while the gateway runs; restart it, or set it back" for name in changed))


def fixed(config: Config) -> str:
    """Tells configurations apart between which a running gateway cannot change. Shows nothing of them."""
    return hashlib.sha256(repr([of(config) for of in _FIXED.values()]).encode()).hexdigest()
