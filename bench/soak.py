"""Half an hour of everything at once: three gateways, mixed traffic, faults at random, and an auditor who looks all the while.

    python bench/soak.py --minutes 30 --seed 7
    python bench/soak.py --seed 7 --schedule        prints what would go wrong, and when

Rounds of traffic with faults, each followed by a quiet point. What goes wrong is drawn from the seed and printed as it happens, so that a run can be
repeated (what processes make of it depends on the machine's time, of course).

At all times: no key and no window of an organization has been given more than its limit, by the mocks' own count; nothing held is negative, and what
is held is the sum of the open holds. At quiet points, too: the ledger counts at least what was produced; no hold is left once its ttl has passed;
every gateway serves again; the number of keys in Redis and the sizes of journals and databases stay bounded. In the end: the memory of the gateway
that was never killed has not grown since the warm-up.

Ends at the first breach, with the seed and exit code 1.
"""

import argparse
import asyncio
import itertools
import json
import logging
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import redis.exceptions
import structlog
import uvloop

from cells import LENGTHS, TOKENIZER, prompt
from clients import SERVED, Ask, Caller
from sluicegate.core.limits import Unit
from sluicegate.core.tenants import Counter as Limit
from sluicegate.core.windows import Fixed, span
from sluicegate.ledger.redis_scripts import read_hold, view_counter
from sluicegate.ledger.views import hold_view
from stand import Books, Shape, Stand, loaded, set_fault, stats, wait_idle

ROUND_S, LAST_FAULT_S = 40.0, 28.0
TTL_S = 6
QUIET_S = TTL_S + 15.0  # after which no hold may be left
WINDOW_S = 60
ORGANIZATIONS, STREAMS = 6, 8
KEY_TOKENS, KEY_NANO_USD = 12_000, 30_000_000
WINDOW_TOKENS = 40_000
AUDIT_S = 1.0
PATIENCE_S = 60.0  # a request that takes longer than this hangs
WARM_UP = 0.3  # of the time
GROWTH_MAX_KIB = 8 * 1024  # of a replica's memory over the rest
JOURNAL_MAX, RECORDS_MAX = 32 << 20, 64 << 20
PRICE = {"chat": {"input": 0.5, "output": 1.0}, "live": {"input": 2.0, "output": 4.0}}
_LIMITED_BY = re.compile(rb"\r\nx-sluicegate-limited-by: (\w+)")
_ALL = """local all = {}
for _, key in ipairs(redis.call('KEYS', 'sg1:{*')) do
  if string.find(key, '}:c:', 1, true) or string.sub(key, -7) == '}:holds' then all[#all + 1] = {key, redis.call('HGETALL', key)} end
end
return all"""
UNASKED = ("left", "stalled")


class Breach(Exception):
    """An invariant does not hold."""


# -- what goes wrong --------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong in a round."""

    at_s: float
    kind: str
    seconds: float
    replica: int

    def __str__(self) -> str:
        return f"{self.at_s:5.1f} s  {self.kind} ({self.seconds:.1f} s, gateway {self.replica})"


def _link(change: Callable[[Any], None], back: Callable[[Any], None]) -> Callable[[Stand, Fault], None]:
    def work(stand: Stand, fault: Fault) -> None:
        link = stand.replicas[fault.replica].link
        change(link)
        time.sleep(fault.seconds)
        back(link)

    return work


def _redis_paused(stand: Stand, fault: Fault) -> None:
    stand.redis.pause()
    time.sleep(fault.seconds)
    stand.redis.resume()


def _redis_full(stand: Stand, fault: Fault) -> None:
    stand.redis.client.config_set("maxmemory", "1mb")
    time.sleep(fault.seconds)
    stand.redis.client.config_set("maxmemory", "0")


def _redis_rolled_back(stand: Stand, fault: Fault) -> None:
    stand.redis.snapshot()
    time.sleep(fault.seconds)
    stand.redis.restore()


def _counter_evicted(stand: Stand, fault: Fault) -> None:
    client = stand.redis.client
    found = sorted(client.scan_iter("sg1:{*}:c:*:tokens:*"))
    if found:
        client.delete(found[int(fault.seconds * 1000) % len(found)])


def _killed(stand: Stand, fault: Fault) -> None:
    replica = stand.replicas[fault.replica or 1]  # one is never killed: its memory is watched
    replica.kill()
    time.sleep(fault.seconds)
    replica.start()
    replica.wait_ready()


def _drained(stand: Stand, fault: Fault) -> None:
    replica = stand.replicas[fault.replica or 2]
    replica.stop()
    replica.start()
    replica.wait_ready()


def _stopped(stand: Stand, fault: Fault) -> None:
    replica = stand.replicas[fault.replica]
    replica.pause()
    time.sleep(2 * fault.seconds)  # longer than a hold's ttl, at times
    replica.resume()


FAULTS: dict[str, Callable[[Stand, Fault], None]] = {
    "Redis paused": _redis_paused,
    "Redis restarted with its data": lambda stand, fault: stand.redis.restart(True, fault.seconds / 3),
    "Redis restarted empty": lambda stand, fault: stand.redis.restart(False, fault.seconds / 3),
    "Redis rolled back": _redis_rolled_back,
    "Redis out of memory": _redis_full,
    "Redis failed over to a standby that lags": lambda stand, fault: stand.fail_over(fault.seconds / 3),
    "a counter evicted": _counter_evicted,
    "link to Redis swallows": _link(lambda link: setattr(link, "swallow", True), lambda link: setattr(link, "swallow", False)),
    "link to Redis slow": _link(lambda link: setattr(link, "delay_s", 0.15), lambda link: setattr(link, "delay_s", 0.0)),
    "link to Redis cut": _link(lambda link: link.drop(), lambda link: None),
    "gateway killed": _killed,
    "gateway restarted": _drained,
    "gateway stopped for a while": _stopped,
}


def schedule(seed: int, rounds: int) -> list[list[Fault]]:
    """What goes wrong, by round: two faults each, one after the other; every kind once before any comes again."""
    rng = random.Random(seed)
    kinds: list[str] = []
    found = []
    for _ in range(rounds):
        faults, at_s = [], 3.0
        for _ in range(2):
            kinds = kinds or rng.sample(sorted(FAULTS), len(FAULTS))
            faults.append(Fault(at_s + rng.uniform(0, 4), kinds.pop(), rng.uniform(0.5, 6.0), rng.randrange(3)))
            at_s += LAST_FAULT_S / 2
        found.append(faults)
    return found


# -- traffic ----------------------------------------------------------------------------------------------------------------------------------

UPSTREAM_FAULTS: Sequence[dict[str, Any]] = (  # a share of the calls, at each provider
    {"status": 503},
    {"status": 429, "retry_after": 1},
    {"cut_after": 6},
    {"cut_after": 3, "cut": "rst"},
    {"cut_after": 0},
    {"usage": "none"},
    {"usage": "cumulative"},
    {"chunk": 0},
    {"stall_after": 5},
    {"html": True},
)


def shape(keys: int) -> Shape:
    """Organizations with a window, a rate and a concurrency; each key with a budget for ever. Every second organization counts dollars."""
    tenants: dict[str, Any] = {"lab": {"keys": [{"name": f"probe{n}", "key": f"sk-probe{n}", "limits": ["900M tokens/lifetime"]} for n in range(3)]}}
    for number in range(ORGANIZATIONS):
        amount = f"{KEY_TOKENS} tokens/lifetime" if number % 2 == 0 else f"${KEY_NANO_USD / 1e9:.9f}/lifetime"
        limits = [f"{WINDOW_TOKENS} tokens/{WINDOW_S}s", "3000 requests/minute", f"{STREAMS} concurrent"]
        children = {"team": {"keys": [{"name": f"k{n}", "key": f"sk-o{number}.k{n}", "limits": [amount]} for n in range(keys)]}}
        tenants[f"o{number}"] = {"limits": limits, "children": children}
    pace = ("--ttft", "50ms", "--tpot", "10ms", "--chunk", "4", "--window", str(WINDOW_S), "--tokenizer", TOKENIZER, *LENGTHS)
    deployments = {name: {"provider": name, "model": f"{name}-model", "price": price} for name, price in PRICE.items()}
    return Shape(
        tenants=tenants,
        mocks=dict.fromkeys(PRICE, pace),
        providers={"chat": {"extend": False, "tokenizer": TOKENIZER}, "live": {"extend": True, "tokenizer": TOKENIZER}},
        models={name: {"deployments": [deployments[name], deployments["chat"]], "max_output": 1024} for name in PRICE if name != "chat"}
        | {"chat": {"deployments": [deployments["chat"], deployments["live"]], "max_output": 1024}},
        budget={"hold_ttl": f"{TTL_S}s", "queue": {"max_wait": "3s"}},
        more={"resilience": {"timeouts": {"write": "2s", "idle": "4s", "first_byte": "4s"}}},
        clocks_s=(0, 0, 90),
        linked=True,
    )


class Traffic:
    """Clients of all organizations. `on` says whether they ask; `outcomes` is what they were told."""

    def __init__(self, stand: Stand, seed: int, keys: int) -> None:
        self.on = False
        self.outcomes: Counter[str] = Counter()
        self.slowest_s = 0.0
        self._stand = stand
        self._keys = keys
        self._at = [0] * ORGANIZATIONS  # the key that an organization uses
        self._serials = itertools.count()
        self.quiet = asyncio.Event()  # no request is under way
        self._busy = 0
        self._seed = seed

    def body(self, rng: random.Random, caller: str) -> Ask:
        fields: dict[str, Any] = {"model": rng.choice(("chat", "live")), "max_tokens": rng.choice((64, 256, 1024)), "user": caller}
        fields["stream"] = rng.random() < 0.75
        fields["messages"] = [{"role": "user", "content": prompt(next(self._serials))}]
        if rng.random() < 0.1:
            fields["n"] = rng.randint(2, 3)
        if rng.random() < 0.1:
            fields["stream_options"] = {"include_usage": True} if fields["stream"] else None
        conduct = rng.random()
        leave = rng.randint(0, 8_000) if conduct < 0.1 else -1
        stall = rng.randint(0, 2_000) if 0.1 <= conduct < 0.13 else -1
        return Ask(json.dumps(fields, separators=(",", ":")).encode(), leave, stall)

    async def client(self, organization: int, number: int) -> None:
        """One client, for ever."""
        rng = random.Random(f"{self._seed} {organization} {number}")
        while True:
            await asyncio.sleep(rng.uniform(0.01, 0.2))
            if not self.on or self._at[organization] >= self._keys:
                continue
            key = self._at[organization]
            name = f"o{organization}.k{key}"
            caller = Caller(self._stand.urls, rng.randrange(3), f"sk-{name}")
            self._busy += 1
            self.quiet.clear()
            started = time.monotonic()
            try:
                found = await caller.ask(self.body(rng, name), PATIENCE_S)
                self._note(found, time.monotonic() - started)
                if found == "budget_exceeded" and caller.wire is not None:
                    match = _LIMITED_BY.search(caller.wire.head)
                    if match is not None and match[1] == b"key":
                        self._at[organization] = max(self._at[organization], key + 1)
            finally:
                self._busy -= 1
                if not self._busy:
                    self.quiet.set()
                caller.close()
            if found not in SERVED and found not in UNASKED:
                await asyncio.sleep(rng.uniform(0.1, 0.5))

    def _note(self, found: str, taken_s: float) -> None:
        self.outcomes[found] += 1
        if found not in UNASKED:
            self.slowest_s = max(self.slowest_s, taken_s)
        if found == "timeout":
            raise Breach(f"a request hung for {PATIENCE_S} s")
        if found == "internal_error":
            raise Breach("a gateway failed with a 500")


# -- the auditor ------------------------------------------------------------------------------------------------------------------------------


class Auditor:
    """Compares the mocks' truth with limits and ledger."""

    def __init__(self, stand: Stand) -> None:
        self._stand = stand
        self.started = time.time()
        self.rss_kib: list[tuple[float, int]] = []
        self._limits: dict[Limit, set[str]] = {}  # those that do not refill -> callers
        for key in self._policy().keys.values():
            for counter in key.counters:
                if counter.unit in (Unit.TOKENS, Unit.USD):
                    self._limits.setdefault(counter, set()).add(f"{key.path[0].name}.{key.path[-1].name}")

    def _policy(self) -> Any:
        return loaded(self._settings()).policy

    def _settings(self) -> dict[str, Any]:
        return self._stand.config("books", self._stand.redis.url)

    def truth(self) -> dict[Limit, dict[int, float]]:
        """What was produced under each limit, by the start of its window (0 where there is none)."""
        produced: dict[str, dict[int, list[float]]] = {}
        for provider, url in self._stand.mock_urls.items():
            for name, tally in stats(url)["callers"].items():
                caller, _, start = name.partition("@")
                tokens, price = produced.setdefault(caller, {}).setdefault(int(start), [0.0, 0.0]), PRICE[provider]
                tokens[0] += tally["prompt_tokens"] + tally["completion_tokens"]
                tokens[1] += 1000 * (tally["prompt_tokens"] * price["input"] + tally["completion_tokens"] * price["output"])
        found: dict[Limit, dict[int, float]] = {}
        for limit, callers in self._limits.items():
            sums = found[limit] = {}
            for caller in callers:
                for start, amounts in produced.get(caller, {}).items():
                    at = start if isinstance(limit.window, Fixed) else 0
                    sums[at] = sums.get(at, 0.0) + amounts[limit.unit is Unit.USD]
        return found

    def look(self) -> None:
        """What must hold at all times."""
        self._sums()
        for limit, sums in self.truth().items():
            for start, produced in sums.items():
                if produced > limit.ceiling:
                    raise Breach(f"{limit.key_prefix}: {produced:.0f} of {limit.ceiling} were produced (window {start})")

    def _sums(self) -> None:
        """What is held is the sum of the open holds, in one look at everything."""
        try:
            hashes = self._stand.redis.client.eval(_ALL, 0)
        except (redis.exceptions.RedisError, OSError):
            return  # it is away, as planned
        held, sums = Counter[str](), Counter[str]()
        for name, pairs in ((key.decode(), dict(zip(pairs[::2], pairs[1::2], strict=True))) for key, pairs in hashes):
            if name.endswith("}:holds"):
                holds = [hold_view(id_.decode(), read_hold(record), 0) for id_, record in pairs.items() if id_]
                for key, amount in (pair for hold in holds if hold.state == "open" for pair in hold.amounts):
                    sums[key] += amount
            else:
                view = view_counter(name, pairs)
                if view.kind in "wo":
                    held[name] = view.held
        wrong = {key: (amount, sums[key]) for key, amount in held.items() if amount != sums[key]}
        if wrong:
            raise Breach(f"held is not the sum of the holds: {wrong}")

    async def quiet(self, traffic: Traffic) -> str:
        """What must hold once nothing is in flight. Answers with a summary."""
        await traffic.quiet.wait()
        await asyncio.to_thread(wait_idle, list(self._stand.mock_urls.values()))
        await self._serves_again()
        used = await self._no_holds()
        missing = {sorted(self._limits[limit])[0] for limit, key, _ in self._running() if key not in used}
        if missing:  # evicted, and nobody has asked about it since: that it is missing is noticed when somebody does
            for caller in missing:
                await self._serves(self._stand.urls[0], caller, (*SERVED, "budget_exceeded"))
            used = await self._no_holds()
        for _, key, produced in self._running():
            if used.get(key, 0) < produced:
                raise Breach(f"{key}: {used.get(key, 0)} counted of {produced:.0f} that were produced")
        self.look()
        return self._sizes()

    def _running(self) -> Iterator[tuple[Limit, str, float]]:
        """What was produced under each limit in its running window, with the storage key."""
        for limit, sums in self.truth().items():
            for start, produced in sums.items():
                if not start:
                    yield limit, limit.key_prefix, produced
                elif start + WINDOW_S > time.time():
                    yield limit, f"{limit.key_prefix}:{span(limit.window, start * 1000).label}", produced

    async def _no_holds(self) -> dict[str, int]:
        deadline = time.monotonic() + QUIET_S
        while True:
            counters, holds = await Books(loaded(self._settings())).read()
            opened = [hold for hold in holds if hold.state == "open"]
            held = {view.key: view.held for view in counters if view.held}
            if any(amount < 0 for amount in held.values()):
                raise Breach(f"negative: {held}")
            if not opened and not held:
                return {view.key: view.used for view in counters}
            if time.monotonic() > deadline:
                raise Breach(f"left over after {QUIET_S} s: {[(hold.hold_id, hold.tag) for hold in opened]}, held {held}")
            await asyncio.sleep(0.5)

    async def _serves_again(self) -> None:
        """Each gateway answers a small call soon after the last fault."""
        for number, url in enumerate(self._stand.urls):
            await self._serves(url, f"probe{number}", SERVED)

    async def _serves(self, url: str, name: str, good: Sequence[str]) -> None:
        body = json.dumps({"model": "chat", "max_tokens": 4, "user": name, "messages": [{"role": "user", "content": "Hi"}]})
        deadline = time.monotonic() + QUIET_S
        caller = Caller([url], 0, f"sk-{name}")
        while (found := await caller.ask(Ask(body.encode()), 10.0)) not in good:
            if time.monotonic() > deadline:
                raise Breach(f"{url} does not serve {name} again: {found}")
            await asyncio.sleep(0.2)
        caller.close()

    def _sizes(self) -> str:
        stand = self._stand
        keys = stand.redis.client.dbsize()
        windows = int((time.time() - self.started) / WINDOW_S) + 3
        most = len(self._limits) + ORGANIZATIONS * (windows + 8) + 200
        if keys > most:
            raise Breach(f"{keys} keys in Redis, {most} at most")
        journals = sum(file.stat().st_size for replica in stand.replicas for file in (stand.directory / replica.name).glob("**/*") if file.is_file())
        records = sum(file.stat().st_size for file in stand.directory.glob("records.db*"))
        if journals > JOURNAL_MAX or records > RECORDS_MAX:
            raise Breach(f"journals {journals} bytes, records {records} bytes")
        rss = [replica.rss_kib() for replica in stand.replicas]
        self.rss_kib.append((time.time() - self.started, rss[0]))
        return f"{keys} keys, journals {journals >> 10} KiB, records {records >> 10} KiB, memory {'/'.join(str(kib >> 10) for kib in rss)} MiB"

    def growth(self, total_s: float) -> int:
        """KiB by which the memory of the gateway that was never killed has grown since the warm-up: the last third beside the first."""
        late = [kib for at_s, kib in self.rss_kib if at_s >= WARM_UP * total_s]
        third = max(1, len(late) // 3)
        return int(sum(late[-third:]) / third - sum(late[:third]) / third) if late else 0


# -- the run ----------------------------------------------------------------------------------------------------------------------------------


async def run(stand: Stand, faults: list[list[Fault]], seed: int, keys: int) -> None:
    """All rounds. Raises Breach."""
    auditor, traffic = Auditor(stand), Traffic(stand, seed, keys)
    await _meet_all(stand, keys)
    for url in stand.mock_urls.values():
        for fault in UPSTREAM_FAULTS:
            set_fault(url, count=0, share=0.01, **fault)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(traffic.client(number, client)) for number in range(ORGANIZATIONS) for client in range(STREAMS)]
        tasks.append(group.create_task(_audit(auditor)))
        try:
            for number, planned in enumerate(faults):
                await _round(stand, traffic, planned, number)
                told = await auditor.quiet(traffic)
                served = sum(traffic.outcomes[kind] for kind in SERVED)
                print(f"round {number}: {served} served, slowest {traffic.slowest_s:.1f} s, {told}", flush=True)
                print(f"         {dict(traffic.outcomes.most_common())}", flush=True)
        finally:
            for task in tasks:
                task.cancel()
    total_s = time.time() - auditor.started
    grown = auditor.growth(total_s)
    print(f"memory of gateway 0 has grown by {grown} KiB since the warm-up")
    if grown > GROWTH_MAX_KIB:
        raise Breach(f"memory of gateway 0 has grown by {grown} KiB in {total_s:.0f} s")


async def _round(stand: Stand, traffic: Traffic, planned: Sequence[Fault], number: int) -> None:
    """Traffic, with what is planned to go wrong."""
    started = time.monotonic()
    traffic.on = True
    for fault in planned:
        await asyncio.sleep(max(0.0, started + fault.at_s - time.monotonic()))
        print(f"round {number}: {fault}", flush=True)
        await asyncio.to_thread(FAULTS[fault.kind], stand, fault)
    await asyncio.sleep(max(0.0, started + ROUND_S - time.monotonic()))
    traffic.on = False


async def _meet_all(stand: Stand, keys: int) -> None:
    """A small call with each key to each model at the gateway whose memory is watched: what it knows of a key is no growth."""

    async def organization(number: int) -> None:
        for name in (f"o{number}.k{key}" for key in range(keys)):
            caller = Caller(stand.urls[:1], 0, f"sk-{name}")
            for model in PRICE:
                fields = {"model": model, "max_tokens": 2, "user": name, "messages": [{"role": "user", "content": "Hi"}]}
                await caller.ask(Ask(json.dumps(fields).encode()), 10.0)
            caller.close()

    await asyncio.gather(*map(organization, range(ORGANIZATIONS)))


async def _audit(auditor: Auditor) -> None:
    while True:
        await asyncio.to_thread(auditor.look)
        await asyncio.sleep(AUDIT_S)


def _breaches(group: BaseExceptionGroup) -> Iterator[Breach]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _breaches(error)
        elif isinstance(error, Breach):
            yield error


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0, help="0: one at random")
    parser.add_argument("--schedule", action="store_true", help="print what would go wrong, and end")
    options = parser.parse_args()
    seed = options.seed or random.SystemRandom().randrange(1, 10**6)
    rounds = max(1, round(options.minutes * 60 / (ROUND_S + 12)))
    keys = 6 + 5 * rounds
    planned = schedule(seed, rounds)
    print(f"seed {seed}, {rounds} rounds", flush=True)
    if options.schedule:
        print("\n".join(f"round {number}: {fault}" for number, faults in enumerate(planned) for fault in faults))
        return 0
    breaches: list[Breach] = []
    with Stand(shape(keys)) as stand:
        try:
            uvloop.run(run(stand, planned, seed, keys))
        except* Breach as group:
            print(stand.logs(), file=sys.stderr)
            breaches += _breaches(group)
    for breach in breaches:
        print(f"BREACH with seed {seed}: {breach}", flush=True)
    if breaches:
        return 1
    print(f"no breach in {options.minutes:g} minutes with seed {seed}")
    return 0


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))  # our looks at the ledger
    sys.exit(main())
