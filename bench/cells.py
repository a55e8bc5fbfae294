"""The cells of bench/overshoot.py: who asks for what, under which limits, what goes wrong meanwhile, and what is promised then.

A cell is run in each of its modes. Names are `<name>/<streams>/<mode>`; the base grid is `base` and `starved`, all others are rows of their own.
"""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from clients import Ask
from sluicegate.mock.text import WORDS
from stand import Shape, Stand

Mode = Literal["capped", "extended", "posthoc"]

PACED = ("--ttft", "100ms", "--tpot", "20ms", "--chunk", "4")
STARVED = ("--ttft", "0ms", "--tpot", "1ms", "--chunk", "1")
LENGTHS = ("--median", "150", "--sigma", "0.8")
TOKENIZER = "o200k_base"
PROMPT_TOKENS = 58
_TEXT_TOKENS = PROMPT_TOKENS - 7  # a message and the reply's priming take 7
CHEAP, DEAR = {"input": 0.5, "output": 1.0}, {"input": 5.0, "output": 10.0}  # USD per 1M tokens
PROBE = "probe"
HOLD_TTL_S = 6
QUEUE = {"max_wait": "30s", "max_depth": 1000}
GUARD_S = 0.4  # before a window's end: what is sent then may be admitted in it and arrive upstream after it

Disturb = Callable[[Stand], Awaitable[None]]
Fields = dict[str, Any]
Traffic = Callable[[random.Random, Fields], tuple[int, int] | None]  # changes the body's fields; (leave_after, stall_after)


@dataclass(frozen=True)
class Cell:
    """One cell in one mode. Budgets are per tenant and run."""

    name: str
    what: str
    mode: Mode = "capped"
    streams: int = 16  # per tenant
    tenants: int = 8
    runs: int = 3
    replicas: int = 3
    at_once: bool = False  # the runs run together: where few streams leave the machine idle
    pace: tuple[str, ...] = PACED
    budget: int = 20_000  # tokens, or nano-USD
    usd: bool = False
    max_tokens: int = 1024
    traffic: Traffic | None = None
    mock: tuple[str, ...] = ()
    dear: tuple[str, ...] = ()  # options of a second, dearer provider that the route falls back to
    faults: tuple[Fields, ...] = ()  # at the first provider
    scopes: bool = False  # limits on organization, team and keys, of which another one binds for each tenant
    window_s: int = 0
    seconds: float = 0.0  # how long clients ask; 0: until the budget is used up
    tokenizer: str = TOKENIZER
    provider: Fields | None = None
    more: Fields | None = None
    queue: bool = True  # clients wait for a budget that is held by others, instead of being refused
    clocks_s: tuple[int, ...] = ()
    linked: bool = False
    disturb: Disturb | None = None
    allowed: int = 0  # overshoot that a named exception allows
    judged: bool = True  # an overshoot fails the benchmark

    @property
    def id(self) -> str:
        return f"{self.name}/{self.streams}/{self.mode}"

    # -- who asks -------------------------------------------------------------------------------------------------------------------------

    def callers(self, tenant: str) -> list[str]:
        """The names of a tenant's keys; `user` in a body, so that the mock tells them apart."""
        return [f"{tenant}.a", f"{tenant}.b"] if self.scopes else [f"{tenant}.a"]

    def ask(self, rng: random.Random, caller: str, serial: int) -> Ask:
        """The next request of a caller."""
        fields: Fields = {"model": "chat", "max_tokens": self.max_tokens, "stream": True, "user": caller}
        fields["messages"] = [{"role": "user", "content": prompt(serial)}]
        conduct = self.traffic(rng, fields) if self.traffic is not None else None
        leave_after, stall_after = conduct or (-1, -1)
        return Ask(json.dumps(fields, separators=(",", ":")).encode(), leave_after, stall_after)

    # -- what stands behind ---------------------------------------------------------------------------------------------------------------

    def shape(self, tenants: list[str]) -> Shape:
        """The stand for these tenants."""
        window = ("--window", str(self.window_s)) if self.window_s else ()
        mocks = {"mock": (*LENGTHS, "--tokenizer", TOKENIZER, *self.pace, *window, *self.mock)}
        price = {"mock": CHEAP}
        if self.dear:
            mocks["dear"] = (*LENGTHS, "--tokenizer", TOKENIZER, *self.pace, *self.dear)
            price["dear"] = DEAR
        row: Fields = {"extend": self.mode == "extended", **(self.provider or {})}
        if self.tokenizer:
            row["tokenizer"] = self.tokenizer
        deployments = {name: {"provider": name, "model": f"{name}-model", "price": price[name]} for name in mocks}
        models = {"chat": {"deployments": list(deployments.values()), "max_output": 1024}}
        if self.dear:
            models["fine"] = {"deployments": [deployments["dear"]], "max_output": 1024}
        lab = {"keys": [{"name": PROBE, "key": f"sk-{PROBE}", "limits": ["900M tokens/lifetime"]}]}
        budget: Fields = {"hold_ttl": f"{HOLD_TTL_S}s", "queue": QUEUE if self.queue else {"max_wait": "0s"}}
        return Shape(
            tenants={"lab": lab, **{tenant: self._tenant(tenant) for tenant in tenants}},
            mocks=mocks,
            providers=dict.fromkeys(mocks, row),
            models=models,
            budget=budget,
            replicas=self.replicas,
            more=self.more or {},
            clocks_s=self.clocks_s,
            linked=self.linked,
        )

    def _limit(self, amount: int) -> str:
        per = f"{self.window_s}s" if self.window_s else "lifetime"
        return f"${amount / 1e9:.9f}/{per}" if self.usd else f"{amount} tokens/{per}"

    def _tenant(self, tenant: str) -> Mapping[str, Any]:
        if not self.scopes:
            return {"keys": [{"name": "a", "key": f"sk-{tenant}.a", "limits": [self._limit(self.budget)]}]}
        binding = int(tenant.rpartition("t")[2]) % 3
        organization, team, key = (self.budget * (1 if binding == scope else 3) for scope in range(3))
        keys = [{"name": name, "key": f"sk-{tenant}.{name}", "limits": [self._limit(key // 2)]} for name in "ab"]
        return {"limits": [self._limit(organization)], "children": {"team": {"limits": [self._limit(team)], "keys": keys}}}


def prompt(serial: int) -> str:
    """58 tokens with the message's framing, and different for every serial below 10^9: the mock draws the answer's length from it."""
    words = [WORDS[serial // len(WORDS) ** place % len(WORDS)] for place in range(5)]
    return "".join(words + [WORDS[i % len(WORDS)] for i in range(_TEXT_TOKENS - len(words))])


# -- traffic ----------------------------------------------------------------------------------------------------------------------------------


def _mixed(rng: random.Random, fields: Fields) -> None:
    fields["stream"] = rng.random() < 0.5


def _several(rng: random.Random, fields: Fields) -> None:
    fields["n"] = rng.randint(1, 4)
    fields["stream"] = rng.random() < 0.7


def _hanging_up(rng: random.Random, fields: Fields) -> tuple[int, int] | None:
    return (rng.randint(1, 12_000), -1) if rng.random() < 0.4 else None


def _not_reading(rng: random.Random, fields: Fields) -> tuple[int, int] | None:
    return (-1, rng.randint(0, 4_000)) if rng.random() < 0.25 else None


def _two_models(rng: random.Random, fields: Fields) -> None:
    fields["model"] = "chat" if rng.random() < 0.7 else "fine"
    fields["stream"] = rng.random() < 0.7


# -- what goes wrong --------------------------------------------------------------------------------------------------------------------------


async def _kill_a_replica(stand: Stand) -> None:
    for replica in stand.replicas[:2]:
        await asyncio.sleep(3.0)
        await asyncio.to_thread(replica.kill)
        await asyncio.sleep(1.0)
        replica.start()
        await asyncio.to_thread(replica.wait_ready)


async def _restart_redis_with_data(stand: Stand) -> None:
    await asyncio.sleep(4.0)
    await asyncio.to_thread(stand.redis.restart, True, 0.5)


async def _restart_redis_empty(stand: Stand) -> None:
    await asyncio.sleep(4.0)
    await asyncio.to_thread(stand.redis.restart, False, 0.5)


async def _restore_redis(stand: Stand) -> None:
    await asyncio.sleep(2.0)
    await asyncio.to_thread(stand.redis.snapshot)
    await asyncio.sleep(2.0)
    await asyncio.to_thread(stand.redis.restore)


async def _slow_link(stand: Stand) -> None:
    link = stand.replicas[0].link
    assert link is not None
    link.delay_s = 0.15  # a round trip takes 300 ms


# -- the list ---------------------------------------------------------------------------------------------------------------------------------

BOTH: tuple[Mode, ...] = ("capped", "extended")
CONCURRENCY = (1, 4, 16, 64, 128)
_LARGE_CHUNKS = ({"count": 0, "chunk_fields": {"padding": "x" * 4000}},)  # so that what is not read does not vanish in the kernel
_QUICK_WRITE = {"resilience": {"timeouts": {"write": "2s"}}}

HIDDEN = (  # what a friendly workload hides
    Cell("unary-and-streams", "half of the calls are unary", traffic=_mixed),
    Cell("choices", "one to four choices per call, unary and streamed", traffic=_several, max_tokens=512),
    Cell("hidden-reasoning", "half of each answer is billed and not shown", mock=("--reasoning", "hidden"), tokenizer=""),
    Cell("dense-text", "Chinese answers, a token per character, and no vocabulary named", mock=("--dense", "true"), tokenizer=""),
    Cell("one-delta", "each answer comes in one delta", mock=("--chunk", "0")),
    Cell("hang-up", "two of five clients hang up in the middle", traffic=_hanging_up),
    Cell("stopped-reading", "a quarter of the clients stops reading", traffic=_not_reading, faults=_LARGE_CHUNKS, more=_QUICK_WRITE),
    Cell("no-usage", "no answer reports its usage", mock=("--usage", "none")),
    Cell("dense-prompts", "prompts of three times the estimate", mock=("--prompt", str(3 * PROMPT_TOKENS)), tokenizer=""),
    Cell(
        "dollars",
        "a dollar budget over two models, one ten times dearer, to which the other one falls back",
        traffic=_two_models,
        usd=True,
        budget=50_000_000,
        dear=("--seed", "1"),
        faults=({"count": 0, "share": 0.3, "status": 503},),
    ),
    Cell("three-scopes", "limits of organization, team and keys; another one binds for each tenant", scopes=True),
    Cell("rollover", "a window of 15 s, over which streams run", window_s=15, budget=8_000, seconds=50.0, queue=False, runs=1),
    Cell("replica-killed", "two replicas are killed and started again", disturb=_kill_a_replica),
    Cell("redis-restarted", "Redis is killed and comes back with its data", disturb=_restart_redis_with_data),
    Cell("redis-emptied", "Redis is killed and comes back empty", disturb=_restart_redis_empty),
    Cell("redis-rolled-back", "Redis is killed and comes back with the data of two seconds ago", disturb=_restore_redis),
    Cell("slow-ledger", "300 ms between one gateway and Redis", linked=True, disturb=_slow_link),
    Cell(
        "wrong-clocks",
        "clocks 90 s apart from each other, with a window of 15 s",
        clocks_s=(-90, 0, 90),
        window_s=15,
        budget=8_000,
        seconds=50.0,
        queue=False,
    ),
)


def cells() -> Iterator[Cell]:
    """All of them, in every mode."""
    modes: tuple[Mode, ...] = (*BOTH, "posthoc")
    for mode in modes:
        for streams in CONCURRENCY:
            base = Cell("base", "the closest peer's workload, at a pace that the machine keeps", mode, streams)
            yield replace(base, at_once=streams <= 4, judged=mode != "posthoc")
    for mode in modes:
        for streams in CONCURRENCY:
            yield Cell("starved", "the same, faster than the machine can keep up", mode, streams, pace=STARVED, judged=mode == "capped")
    for cell in HIDDEN:
        for mode in BOTH:
            yield replace(cell, mode=mode)


def quick() -> Iterator[Cell]:
    """A few seconds each: enough to see whether the cap holds at all."""
    fast = ("--ttft", "20ms", "--tpot", "4ms", "--chunk", "4")
    for mode in (*BOTH, "posthoc"):
        base = Cell("base", "the base workload, small", mode, 16, pace=fast)  # type: ignore[arg-type]
        yield replace(base, tenants=4, runs=1, replicas=2, budget=6_000, judged=mode != "posthoc")
    for name, mode in (("hang-up", "extended"), ("dollars", "capped"), ("three-scopes", "extended"), ("replica-killed", "capped")):
        cell = next(cell for cell in HIDDEN if cell.name == name)
        yield replace(cell, mode=mode, pace=fast, tenants=3, runs=1, replicas=2, streams=8, budget=cell.budget // 4)  # type: ignore[arg-type]
