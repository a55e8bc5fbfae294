"""What becomes of a file that changes under a running worker."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sluicegate.config.load import Loaded, load
from sluicegate.reloading import Reloading, fixed

FILE = """
providers: {one: {provider: mock}}
models: {chat: {deployments: [{provider: one, model: a}]}}
tenants: {acme: {limits: [LIMIT], keys: [{name: k, key: sk-1}]}}
"""
GOOD, OTHER = FILE.replace("LIMIT", "5 tokens/day"), FILE.replace("LIMIT", "6 tokens/day")
BROKEN = FILE.replace("LIMIT", "6 bananas/day")


class Stage:
    """A worker that applies what it is told to."""

    def __init__(self, directory: Path, text: str = GOOD, env: str | None = None) -> None:
        self.file, self.env_file = directory / "config.yaml", directory / "env"
        self.file.write_text(text)
        if env is not None:
            self.env_file.write_text(env)
        loaded = load(self.file, {"HOME": "/"}, self.env_file if env is not None else None)
        self.applied: list[Loaded] = []
        self.failure: Exception | None = None
        self.now_ms = 1000
        self.reloading = Reloading(loaded, self.apply, lambda: self.now_ms)

    async def apply(self, loaded: Loaded) -> None:
        if self.failure is not None:
            raise self.failure
        self.applied.append(loaded)

    async def after(self, text: str) -> list[str]:
        self.now_ms += 1000
        self.file.write_text(text)
        return await self.reloading.reload()

    @property
    def limit(self) -> int:
        return next(iter(self.applied[-1].policy.keys.values())).counters[0].ceiling


async def test_what_has_changed_is_applied(tmp_path: Path) -> None:
    """Once, and what is in use is known by version and time."""
    stage = Stage(tmp_path)
    first = stage.reloading.state
    assert (await stage.reloading.reload(), stage.applied) == ([], [])
    assert (await stage.after(OTHER), stage.limit) == ([], 6)
    state = stage.reloading.state
    assert (first.loaded_at_ms, state.loaded_at_ms, state.problems, state.file) == (1000, 2000, (), str(stage.file))
    assert len({first.version, state.version}) == 2
    assert (await stage.after(OTHER), len(stage.applied)) == ([], 1)


async def test_a_broken_file_is_refused(tmp_path: Path, logged: list[Any]) -> None:
    """It is told with file, line and field, logged once, and shown until another one comes; the old one stays, and may come back."""
    stage = Stage(tmp_path)
    before = stage.reloading.state
    for _ in range(3):
        [problem] = await stage.after(BROKEN)
    assert problem.startswith(f"{stage.file}:4: tenants.acme.limits[0]: 'bananas' is no unit")
    state = stage.reloading.state
    assert (state.problems, state.version, state.loaded_at_ms) == ((problem,), before.version, before.loaded_at_ms)
    assert state.refused not in ("", before.version)
    assert await stage.after("{") == [f"{stage.file}:1: YAML: expected the node content, but found '<stream end>'"]
    assert (await stage.after(GOOD), stage.reloading.state, stage.applied) == ([], before, [])
    assert [entry["event"] for entry in logged] == ["configuration refused"] * 2 + ["configuration is in use again"]
    assert (await stage.after(OTHER), stage.limit) == ([], 6)


async def test_a_file_that_is_gone_is_refused(tmp_path: Path) -> None:
    """Nothing changes while it is away."""
    stage = Stage(tmp_path)
    stage.file.unlink()
    problem = f"{stage.file}: No such file or directory"
    assert await stage.reloading.reload() == [problem]
    assert stage.reloading.state.problems == (problem,)
    assert (await stage.after(GOOD), stage.reloading.state.problems) == ([], ())


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ("server: {listen: 127.0.0.1:1}", "server.listen"),
        ("server: {workers: 2}", "server.workers"),
        ("ledger: sqlite:///elsewhere.db", "ledger"),
        ("ledger_timeout: 2s", "ledger_timeout"),
        ("ledger_durability: full", "ledger_durability"),
        ("records: sqlite:///elsewhere.db", "records"),
        ("journal: elsewhere/", "journal"),
        ("budget: {expired_hold: charge_seen}", "budget.expired_hold"),
        ("admin: {key: sk-admin-0123456789abcdef, listen: 127.0.0.1:1}", "admin.listen"),
        ("admin: {key: sk-admin-0123456789abcdef}", "admin.key"),
        ("retention: {requests: 5d}", "retention"),
    ],
)
async def test_what_a_process_cannot_change_is_refused_by_name(tmp_path: Path, more: str, field: str) -> None:
    """With all else that the file says, and such a configuration is told apart by its mark, which shows nothing of it."""
    stage = Stage(tmp_path)
    problems = await stage.after(OTHER + more)
    assert problems[0].startswith(f"{field}: cannot be changed") and stage.applied == []
    marks = {fixed(load(stage.file, {}).config), fixed(stage.reloading.loaded.config)}
    assert len(marks) == 2 and all(len(mark) == 64 for mark in marks)
    stage.file.write_text(OTHER)
    assert fixed(load(stage.file, {}).config) in marks


async def test_the_first_limit_of_all_organizations_is_refused(tmp_path: Path) -> None:
    """It makes one tree of theirs: what is under way in those would not count in it."""
    stage = Stage(tmp_path)
    for text in (OTHER, GOOD):
        problems = await stage.after(text.replace("tenants: {", "tenants: {limits: [$5/month], "))
        assert (problems[0].partition(":")[0], stage.applied) == ("tenants.limits", [])


async def test_what_cannot_be_applied_is_refused(tmp_path: Path) -> None:
    """An authority's file that is not there, say."""
    stage = Stage(tmp_path)
    stage.failure = ValueError("providers.one.ca_file: no such file")
    assert await stage.after(OTHER) == ["providers.one.ca_file: no such file"]
    stage.failure = None
    assert (await stage.after(OTHER), stage.limit) == ([], 6)


async def test_variables_are_read_anew(tmp_path: Path) -> None:
    """Those of the file with variables; the environment still goes before them."""
    stage = Stage(tmp_path, FILE.replace("LIMIT", '"${AMOUNT} tokens/day"'), "AMOUNT=5\nHOME=/x")
    stage.env_file.write_text("AMOUNT=7\nHOME=/y")
    assert (await stage.reloading.reload(), stage.limit) == ([], 7)
    stage.env_file.write_text("AMOUNT")
    assert await stage.reloading.reload() == [f"{stage.env_file}:1: must be NAME=value"]


async def test_a_text_is_read_once(tmp_path: Path) -> None:
    """A configuration that was not read from a file cannot be read again."""
    stage = Stage(tmp_path)
    stage.reloading.loaded = Loaded("text", stage.reloading.loaded.config, stage.reloading.loaded.policy)
    assert await stage.reloading.reload() == ["the configuration was not read from a file"]


async def test_it_is_watched(tmp_path: Path, logged: list[Any]) -> None:
    """A change between reading it and watching it is found too; work that fails goes on at the next change."""
    stage = Stage(tmp_path)
    stage.failure = RuntimeError("a bug")
    stage.file.write_text(OTHER)
    source = stage.reloading.loaded.source
    assert source is not None
    running = asyncio.create_task(stage.reloading.run(source))
    async with asyncio.timeout(30):
        while not logged:  # noqa: ASYNC110  (nothing to wait for)
            await asyncio.sleep(0.01)
        stage.failure = None
        stage.reloading.soon()
        while not stage.applied:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        stage.file.write_text(GOOD)
        while len(stage.applied) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    running.cancel()
    assert stage.limit == 5
