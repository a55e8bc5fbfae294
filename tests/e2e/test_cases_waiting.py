"""The waiting queue, shadow limits, reserves and warning marks, on a whole gateway inside the loop."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sluicegate.core.estimate import ENOUGH_SAMPLES, Figures
from sluicegate.core.meter import Meter
from sluicegate.core.usage import Usage
from sluicegate.ledger.contract import LedgerUnavailable
from support_inloop import PROMPT_TOKENS, Bench, Connection, Reply, fresh_redis, request, running, until
from support_ledgers import Clock

SLOW = {"ttft": 60, "completion": 5}
USED = PROMPT_TOKENS + 5  # by a request of that mock
BACKEND = pytest.mark.parametrize("kind", ["memory", "sqlite", "redis"])

# Room for one request of 60 tokens at a time: it holds 69, and 21 are not enough for another. It uses 14 in the end.
ONE_AT_A_TIME = "[90 tokens/day]"

TWO_PRIORITIES = """
  acme:
    limits: [1 concurrent]
    children:
      first: {priority: high, keys: [{name: high, key: sk-high}]}
      second: {priority: low, keys: [{name: low, key: sk-low}, {name: normal, key: sk-normal, priority: normal}]}
  other: {limits: [1000 tokens/day], keys: [{name: free, key: sk-free}]}"""


def queue(max_wait: str = "5s", max_depth: int = 1000, more: str = "") -> str:
    return f"budget: {{queue: {{max_wait: {max_wait}, max_depth: {max_depth}}}{more}}}"


@asynccontextmanager
async def waiting_bench(directory: Path, max_wait: str = "5s", max_depth: int = 1000, **settings: Any) -> AsyncIterator[Bench]:
    settings = {"options": SLOW, "more": queue(max_wait, max_depth), **settings}
    async with running(directory, **settings) as bench:
        yield bench


def place(kind: str, directory: Path, redis: str) -> str:
    return {"memory": "memory://", "sqlite": f"sqlite:///{directory}/ledger.db", "redis": redis}[kind]


async def sent(bench: Bench, key: str, name: str, **fields: Any) -> Connection:
    """A request that has arrived: in flight, or waiting. It is known by `name` in its record."""

    def arrived() -> int:
        return len(bench.worker.gateway.trips) + len(bench.records)

    before = arrived()
    connection = await bench.connect()
    connection.send(request(bench.body(key, **{"max_tokens": 60, **fields}), key, more=f"x-request-id: {name}\r\n".encode()))
    await until(lambda: arrived() > before)
    await asyncio.sleep(0.005)
    return connection


async def codes(*connections: Connection) -> list[str]:
    return [reply.code for reply in await asyncio.gather(*(connection.rest() for connection in connections))]


def depth(bench: Bench) -> int:
    return bench.worker.gateway.holding.waiting.depth


def wait_outcomes(bench: Bench) -> dict[str, int]:
    return {outcome: sum(histogram.counts) for outcome, histogram in bench.worker.metrics.counts().waits.items()}


# -- the queue ----------------------------------------------------------------------------------------------------------------------------


@BACKEND
async def test_busy_is_waited_for(tmp_path: Path, redis_url: str, kind: str) -> None:
    """Three that fit only one after another are all served; the record says how long each waited, and that is no overhead of ours."""
    with fresh_redis(redis_url) as (url, _):
        async with waiting_bench(tmp_path, limits=ONE_AT_A_TIME, ledger=place(kind, tmp_path, url)) as bench:
            with bench.held():
                asking = [asyncio.create_task(bench.chat(max_tokens=60)) for _ in range(3)]
                await until(lambda: depth(bench) == 2)
                await asyncio.sleep(0.05)
            replies: list[Reply] = await asyncio.gather(*asking)
            assert [reply.code for reply in replies] == ["200"] * 3
            waited_ms = sorted(record.waited_us / 1000 for record in bench.records)
            assert waited_ms[0] == 0
            assert waited_ms[1] >= 50
            assert waited_ms[2] >= 110
            assert all(record.overhead_us + record.waited_us <= record.latency_us for record in bench.records)
            assert (await bench.usage())["key key tokens/day"]["used"] == 3 * USED
            assert wait_outcomes(bench) == {"served": 2}
            assert bench.worker.gateway.holding.waiting.lines == {}


async def test_whose_wait_behind_others_ends_is_told_what_it_lacked(tmp_path: Path) -> None:
    """Also one that has named no cap, so that all it might have said would never have fitted: busy, and neither too large nor a failure."""
    async with waiting_bench(tmp_path, "200ms", max_output=4096, limits="[1000 tokens/day]", options={"ttft": 700, "completion": 5}) as bench:
        with bench.held():
            first = await sent(bench, "sk-key", "first", max_tokens=None)
            head = await sent(bench, "sk-key", "head", max_tokens=None)
            behind = await asyncio.gather(*(bench.post(bench.body(max_tokens=None), more=b"timeout: 0.1\r\n") for _ in range(3)))
            assert [reply.code for reply in behind] == ["budget_busy"] * 3
            assert await codes(head) == ["budget_busy"]
        assert await codes(first) == ["200"]


async def test_without_a_queue_refusals_are_told_at_once(tmp_path: Path) -> None:
    """`max_wait: 0s` is what there is without the setting."""
    async with running(tmp_path, limits=ONE_AT_A_TIME, options=SLOW) as bench:
        with bench.held():
            asking = [asyncio.create_task(bench.chat(max_tokens=60)) for _ in range(3)]
            await until(lambda: sum(task.done() for task in asking) == 2)
        replies = await asyncio.gather(*asking)
        assert sorted(reply.code for reply in replies) == ["200", "budget_busy", "budget_busy"]
        assert wait_outcomes(bench) == {}


@BACKEND
async def test_who_may_wait_is_not_served_too_little(tmp_path: Path, redis_url: str, kind: str) -> None:
    """Half of what an answer may need is there, the rest is held by another: it waits for all of it. Without a queue it is served what there is."""
    limits = "[110 tokens/day]"  # 69 are held by the first, which leaves 41: 32 of output
    with fresh_redis(redis_url) as (url, database):
        async with waiting_bench(tmp_path, limits=limits, ledger=place(kind, tmp_path, url)) as bench:
            with bench.held():
                asking = [asyncio.create_task(bench.chat(max_tokens=60)) for _ in range(2)]
                await until(lambda: depth(bench) == 1)
            replies = await asyncio.gather(*asking)
            assert [reply.headers.get("x-sluicegate-max-tokens") for reply in replies] == [None, None]
            assert sorted(record.waited_us > 0 for record in bench.records) == [False, True]
        database.flushall()
    (tmp_path / "two").mkdir()
    async with running(tmp_path / "two", limits=limits, options=SLOW) as bench:
        with bench.held():
            asking = [asyncio.create_task(bench.chat(max_tokens=60)) for _ in range(2)]
            await bench.asked(2)
        replies = await asyncio.gather(*asking)
        assert sorted(reply.headers.get("x-sluicegate-max-tokens") or "" for reply in replies) == ["", "32"]


async def test_a_stream_that_is_held_bit_by_bit_waits_for_room_for_all_of_it(tmp_path: Path) -> None:
    """Though little is held for it at first. So what those before it still need is not given away, and its own cap is not lowered."""
    more = queue(more=", estimator: fixed, fixed_output: 20")
    limits = "[160 tokens/day]"  # the third finds 93 free: 58 are held by the others, and its prompt takes 9
    async with waiting_bench(tmp_path, limits=limits, extend=True, more=more, options={"ttft": 150, "completion": 5}) as bench:
        with bench.held():
            asking = [asyncio.create_task(bench.chat(max_tokens=100, stream=True)) for _ in range(3)]
            await until(lambda: depth(bench) == 1)
        replies = await asyncio.gather(*asking)
        assert [reply.headers.get("x-sluicegate-max-tokens") for reply in replies] == [None] * 3
        assert sorted(record.waited_us > 0 for record in bench.records) == [False, False, True]
        assert all(20 <= record.held < 100 for record in bench.records)  # 20, unless the machine stalls: then it looks as if more were to come


async def test_who_waits_asks_for_what_is_known_by_then(tmp_path: Path) -> None:
    """What answers probably need is learned while it waits: it is served as soon as there is room for that."""
    async with waiting_bench(tmp_path, limits="[110 tokens/day]", options={"ttft": 600, "completion": 5}) as bench:
        model, key = next(iter(bench.loaded.policy.models.values())), bench.keys["sk-key"]
        figures = Figures(9, 9, 1, 60, 60, 16, 0, counted=1, in_tokens=True, text_bytes=3, framing=7)
        with bench.held():
            first, second = await sent(bench, "sk-key", "first"), await sent(bench, "sk-key", "second")
            await until(lambda: depth(bench) == 1)
            for _ in range(ENOUGH_SAMPLES):
                bench.worker.learned.observe(
                    figures, Usage(8, 5), Meter("", 1000), model=model, deployment=model.deployments[0], key=key, truncated=False
                )
            await until(lambda: depth(bench) == 0)  # though the first is still under way
        replies = await asyncio.gather(first.rest(), second.rest())
        assert [reply.headers.get("x-sluicegate-max-tokens") for reply in replies] == [None, "32"]


async def test_who_may_wait_takes_what_there_is_where_more_will_not_come(tmp_path: Path) -> None:
    """What is used leaves too little for a whole answer: nobody waits for that."""
    async with waiting_bench(tmp_path, limits="[80 tokens/day]") as bench:
        assert (await bench.chat(max_tokens=60)).code == "200"
        reply = await bench.chat(max_tokens=80)
        assert (reply.code, reply.headers["x-sluicegate-max-tokens"]) == ("200", str(80 - USED - PROMPT_TOKENS))
        assert wait_outcomes(bench) == {}


async def test_who_has_waited_long_enough_takes_what_there_is(tmp_path: Path) -> None:
    """Rather than the refusal: enough for most answers has been there all the while."""
    async with waiting_bench(tmp_path, "150ms", limits="[120 tokens/day]", options={"ttft": 600, "completion": 5}) as bench:
        with bench.held():
            both = [asyncio.create_task(bench.chat(max_tokens=60)) for _ in range(2)]
            await bench.asked(2)
        replies = await asyncio.gather(*both)
        assert [reply.code for reply in replies] == ["200", "200"]
        assert sorted(reply.headers.get("x-sluicegate-max-tokens") or "" for reply in replies) == ["", "42"]
        assert max(record.waited_us for record in bench.records) > 100_000


@pytest.mark.parametrize(("limit", "served"), [(1_300, True), (2_000, False)])
async def test_where_little_is_left_most_of_the_estimate_is_enough(tmp_path: Path, limit: int, served: bool) -> None:
    """A limit that is nearly used up is shared by those who wait for it. While it has room for many whole answers, one waits for all of its own."""
    more = queue(more=", estimator: fixed, fixed_output: 40")
    room = 9 + 30  # for what the others leave: its prompt, and more than 60 % of 40
    async with waiting_bench(tmp_path, limits=f"[{limit} tokens/day]", more=more, options={"ttft": 600, "completion": 5}) as bench:
        with bench.held():
            first = await sent(bench, "sk-key", "first", max_tokens=limit - room - 9)
            second = await sent(bench, "sk-key", "second", max_tokens=200)
            assert (depth(bench) == 0) is served
        assert await codes(first) == ["200"]
        reply = await second.rest()
        assert (reply.code, reply.headers.get("x-sluicegate-max-tokens")) == ("200", "30" if served else None)


@pytest.mark.parametrize("limit", ["$0.002/day", "{amount: 2000, unit: tokens, per: day, models: [chat]}"])
async def test_limits_that_another_deployment_might_not_have_are_waited_for_at_the_last(tmp_path: Path, limit: str) -> None:
    """Dollars, or the tokens of one model: where nothing else can be tried, they are waited for as any other limit is."""
    async with waiting_bench(tmp_path, limits=f"[{limit}]", options={"ttft": 600, "completion": 5}) as bench:
        with bench.held():  # room for some thirty tokens is left, and most will come free
            first = await sent(bench, "sk-key", "first", max_tokens=1950)
            second = await sent(bench, "sk-key", "second", max_tokens=200)
            assert depth(bench) == 1
        assert await codes(first) == ["200"]
        reply = await second.rest()
        assert (reply.code, reply.headers.get("x-sluicegate-max-tokens")) == ("200", None)


async def test_another_deployment_is_tried_before_less_is_taken(tmp_path: Path) -> None:
    """The dear one has room for a part of the answer, the cheap one for all of it."""
    models = TWO_DEPLOYMENTS.replace("model: cheap, price: {input: 0.5, output: 1.0}", "model: first, price: {input: 5, output: 10}")
    models = models.replace("model: dear, price: {input: 5, output: 10.0}", "model: cheap, price: {input: 0.5, output: 1}")
    async with waiting_bench(tmp_path, limits="[$0.002/day]", models=models, options={"ttft": 80, "completion": 5}) as bench:
        with bench.held():
            first = await sent(bench, "sk-key", "first", max_tokens=150, model="both")
            second = await sent(bench, "sk-key", "second", max_tokens=150, model="both")
            await bench.asked(2)
        assert await codes(first, second) == ["200"] * 2
        bench.whole = False  # two prices
        assert {record.client_id: record.deployment for record in bench.records} == {"first": "mock/first", "second": "mock/cheap"}
        assert max(record.waited_us for record in bench.records) == 0


async def test_who_has_waited_long_enough_takes_no_crumbs(tmp_path: Path) -> None:
    """What would end most answers early is no help at the end of a wait: it is told that the budget is in use."""
    async with waiting_bench(tmp_path, "150ms", limits="[98 tokens/day]", options={"ttft": 600, "completion": 5}) as bench:
        with bench.held():  # 69 are held, and 29 leave 20 of output: less than most of 60
            first, second = await sent(bench, "sk-key", "first"), await sent(bench, "sk-key", "second")
            assert await codes(second) == ["budget_busy"]
        assert await codes(first) == ["200"]


async def test_thirty_of_three_priorities_are_served_in_order(tmp_path: Path) -> None:
    """Higher priority first, first come first served inside one; a tenant of another tree is not concerned."""
    async with waiting_bench(tmp_path, tenants=TWO_PRIORITIES, options={"ttft": 4, "completion": 5}) as bench:
        with bench.held():
            connections = [await sent(bench, "sk-normal", "first")]
            keys = ["low", "high", "normal"] * 10
            connections += [await sent(bench, f"sk-{key}", f"{key}-{n}") for n, key in enumerate(keys)]
            await until(lambda: depth(bench) == 30)
            other = asyncio.create_task(bench.chat("sk-free", max_tokens=20))
            await bench.asked(2)
            assert depth(bench) == 30
        assert await codes(*connections) == ["200"] * 31
        assert (await other).code == "200"
        served = [record.client_id for record in bench.records if record.client_id != ""]
        assert served == ["first"] + [f"{one}-{n}" for one in ("high", "normal", "low") for n, key in enumerate(keys) if key == one]
        assert bench.mock.truth.stats().total.in_flight_max <= 2  # one of each tree


async def test_a_higher_priority_goes_first_however_late_it_comes(tmp_path: Path) -> None:
    """It asks although others wait, is refused, and stands before them."""
    async with waiting_bench(tmp_path, tenants=TWO_PRIORITIES, options={"ttft": 200, "completion": 5}) as bench:
        with bench.held():
            connections = [await sent(bench, key, key) for key in ("sk-low", "sk-low", "sk-normal", "sk-high")]
            await until(lambda: depth(bench) == 3)
        assert await codes(*connections) == ["200"] * 4
        assert [record.client_id for record in bench.records] == ["sk-low", "sk-high", "sk-normal", "sk-low"]


async def test_a_smaller_request_does_not_overtake(tmp_path: Path) -> None:
    """While somebody waits for a limit, one that would fit stands behind without asking."""
    async with waiting_bench(tmp_path, limits="[120 tokens/day]", options={"ttft": 60, "completion": 5}) as bench:
        with bench.held():
            connections = [await sent(bench, "sk-key", "first"), await sent(bench, "sk-key", "large", n=3)]
            await until(lambda: depth(bench) == 1)
            connections.append(await sent(bench, "sk-key", "small", max_tokens=16))
            await until(lambda: depth(bench) == 2)
        assert await codes(*connections) == ["200"] * 3
        order = [record.client_id for record in bench.records]
        assert order.index("large") < order.index("small")


async def test_case_9_what_costs_nothing_does_not_wait_for_money(tmp_path: Path) -> None:
    """A model priced 0 passes those who wait for dollars."""
    async with waiting_bench(tmp_path, limits="[$0.0001/day]", options={"ttft": 400, "completion": 5}) as bench:
        with bench.held():
            connections = [await sent(bench, "sk-key", "first", max_tokens=90), await sent(bench, "sk-key", "second", max_tokens=90)]
            await until(lambda: depth(bench) == 1)
            free = asyncio.create_task(bench.chat(model="free", max_tokens=20))
            await bench.asked(2)
            assert depth(bench) == 1
        assert (await free).code == "200"
        bench.whole = False  # two prices
        assert await codes(*connections) == ["200"] * 2


async def test_a_client_that_leaves_leaves_the_queue(tmp_path: Path) -> None:
    """At once, without a hold or a charge; who stands behind moves up."""
    async with waiting_bench(tmp_path, limits=ONE_AT_A_TIME) as bench:
        with bench.held():
            first, second, third = [await sent(bench, "sk-key", name) for name in ("first", "second", "third")]
            await until(lambda: depth(bench) == 2)
            second.close()
            await until(lambda: depth(bench) == 1)
            assert (await bench.usage())["key key tokens/day"]["held"] == 69
        assert await codes(first, third) == ["200"] * 2
        await bench.quiet()
        gone = next(record for record in bench.records if record.client_id == "second")
        assert (gone.status, gone.client_gone, gone.attempts, gone.input_tokens) == (499, True, (), 0)
        assert gone.waited_us > 0
        assert (await bench.usage())["key key tokens/day"]["used"] == 2 * USED
        assert wait_outcomes(bench) == {"left": 1, "served": 1}


async def test_a_client_that_left_while_the_ledger_was_asked_takes_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its refusal finds nobody who could wait: whoever stands behind is not held up."""
    async with waiting_bench(tmp_path, limits=ONE_AT_A_TIME) as bench:
        admit, asked, go_on = bench.ledger.admit, asyncio.Event(), asyncio.Event()

        async def late(admission: Any) -> Any:
            asked.set()
            await go_on.wait()
            return await admit(admission)

        with bench.held(), monkeypatch.context() as patched:
            first = await sent(bench, "sk-key", "first")
            patched.setattr(bench.ledger, "admit", lambda admission: asyncio.ensure_future(late(admission)))
            second = await bench.open(max_tokens=60)
            await asked.wait()
            second.close()
            await until(lambda: any(trip.exchange.gone for trip in bench.worker.gateway.trips))
            go_on.set()
            await until(lambda: len(bench.worker.gateway.trips) == 1)
        assert bench.record.client_gone
        assert bench.record.waited_us == 0
        assert wait_outcomes(bench) == {}
        assert (await first.rest()).code == "200"


async def test_a_wait_ends_with_the_refusal(tmp_path: Path) -> None:
    """For the first and for those behind it, when max_wait is over; nothing of it is charged."""
    async with waiting_bench(tmp_path, "100ms", limits=ONE_AT_A_TIME, options={"ttft": 600, "completion": 5}) as bench:
        with bench.held():
            first = await sent(bench, "sk-key", "first")
            started = time.monotonic()
            replies = await asyncio.gather(*(bench.chat(max_tokens=60) for _ in range(3)))
            assert time.monotonic() - started >= 0.09
        assert [reply.code for reply in replies] == ["budget_busy"] * 3
        for reply in replies:
            assert reply.headers["x-sluicegate-limited-by"] == "key key tokens/day"
            assert reply.headers["retry-after"] == "1"
            assert reply.error["sluicegate"]["requested"] in (PROMPT_TOKENS + 36, PROMPT_TOKENS + 16)  # what it asked for; what it might have
        assert all(record.waited_us >= 50_000 for record in bench.records)
        assert (await first.rest()).code == "200"
        assert wait_outcomes(bench) == {"refused": 3}


async def test_room_that_comes_as_the_time_is_over_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's own time: it is told why it was refused until then, not that the provider was late; nobody was called, nothing is charged."""
    async with waiting_bench(tmp_path, limits=ONE_AT_A_TIME) as bench:
        holding = bench.worker.gateway.holding
        admit = holding._admit

        async def late(trip: Any, *others: Any) -> Any:
            if trip.hurried and trip.exchange.on_gone is not None:  # it has waited
                await first.rest()
                await asyncio.sleep(max(0, trip.ends_at - holding._clock()))
            return await admit(trip, *others)

        monkeypatch.setattr(holding, "_admit", late)
        with bench.held():
            first = await sent(bench, "sk-key", "first")
            asking = asyncio.create_task(bench.post(bench.body(max_tokens=60), more=b"timeout: 0.3\r\n"))
            await until(lambda: depth(bench) == 1)
        reply = await asking
        assert (reply.status, reply.code) == (429, "budget_busy")
        assert (await first.rest()).code == "200"
        assert (await bench.usage())["key key tokens/day"]["used"] == USED
        assert wait_outcomes(bench) == {"refused": 1}


async def test_a_full_queue_refuses_at_once(tmp_path: Path) -> None:
    """Whether the ledger was asked or others stand before it; with the refusal that there is without a queue."""
    async with waiting_bench(tmp_path, max_depth=2, limits=ONE_AT_A_TIME, options={"ttft": 200, "completion": 5}) as bench:
        with bench.held():
            connections = [await sent(bench, "sk-key", str(n)) for n in range(3)]
            await until(lambda: depth(bench) == 2)
            refused = await bench.chat(max_tokens=60)
            assert (refused.status, refused.code, bench.record.waited_us) == (429, "budget_busy", 0)
            assert depth(bench) == 2
        assert await codes(*connections) == ["200"] * 3
        assert wait_outcomes(bench) == {"full": 1, "served": 2}


async def test_case_129_exhausted_is_told_at_once(tmp_path: Path) -> None:
    """The key's limit is busy, its organization's used up: waiting does not help."""
    async with waiting_bench(tmp_path, "3s", limits="[1 concurrent]", org="[40 tokens/day]", options={"ttft": 200, "completion": 12}) as bench:
        first = await sent(bench, "sk-key", "first", max_tokens=12)
        assert (await first.rest()).code == "200"
        with bench.held():
            second = await sent(bench, "sk-key", "second", max_tokens=10)
            refused = await bench.chat(max_tokens=16)
            assert (refused.code, bench.record.waited_us) == ("budget_exceeded", 0)
        assert (await second.rest()).code == "200"


async def test_who_waits_learns_that_it_is_exhausted(tmp_path: Path) -> None:
    """The answer before it used more than was left: its wait ends then, not at max_wait."""
    async with waiting_bench(tmp_path, "40s", limits="[75 tokens/day]", options={"ttft": 60, "completion": 60}) as bench:
        with bench.held():
            connections = [await sent(bench, "sk-key", str(n)) for n in range(3)]
            await until(lambda: depth(bench) == 2)
        assert sorted(await codes(*connections)) == ["200", "budget_exceeded", "budget_exceeded"]
        assert all(record.waited_us < 30_000_000 for record in bench.records)


async def test_rate_is_waited_for_until_it_has_refilled(tmp_path: Path) -> None:
    """Ten a second, one at once: five are served over 400 ms, in the order in which they came."""
    limit = "[{amount: 600, unit: requests, per: minute, burst: 1}]"
    async with waiting_bench(tmp_path, limits=limit, options={"completion": 5}) as bench:
        started = time.monotonic()
        connections = [await sent(bench, "sk-key", str(n)) for n in range(5)]
        assert await codes(*connections) == ["200"] * 5
        assert time.monotonic() - started >= 0.38
        assert [record.client_id for record in bench.records] == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize(("max_wait", "code"), [("100ms", "rate_limit_exceeded"), ("30s", "200")])
async def test_a_rate_beyond_max_wait_is_told_at_once(tmp_path: Path, max_wait: str, code: str) -> None:
    """Where it takes longer to refill than one may wait; what is short enough is waited for."""
    limit = "[{amount: 1200, unit: tokens, per: minute, burst: 30}]"
    async with waiting_bench(tmp_path, max_wait, limits=limit, options={"completion": 16}) as bench:
        assert (await bench.chat(max_tokens=16)).code == "200"  # 25 of 30 are used
        answer = await bench.chat(max_tokens=16)  # 20 tokens refill in a second
        assert answer.code == code
        if code != "200":
            assert (answer.headers["retry-after"], bench.record.waited_us) == ("1", 0)


async def test_who_another_limit_refuses_waits_in_its_line(tmp_path: Path) -> None:
    """With the order that it came with: before a later one of the other key."""
    tenants = """
  acme:
    limits: [90 tokens/day]
    keys: [{name: a, key: sk-a, limits: [1 concurrent]}, {name: b, key: sk-b}, {name: c, key: sk-c}]"""
    async with waiting_bench(tmp_path, tenants=tenants, options={"ttft": 400, "completion": 5}) as bench:
        first = await sent(bench, "sk-a", "first", max_tokens=16)  # holds 25 of 90
        second = await sent(bench, "sk-a", "second", max_tokens=50)  # waits for the key's concurrency
        third = await sent(bench, "sk-b", "third", max_tokens=56)  # holds the other 65, for longer
        fourth = await sent(bench, "sk-c", "fourth", max_tokens=50)
        assert await codes(first, second, third, fourth) == ["200"] * 4
        order = [record.client_id for record in bench.records]
        assert order.index("second") < order.index("fourth")


@pytest.mark.parametrize("policy", ["refuse", "allow"])
async def test_a_ledger_that_goes_away_ends_the_wait(tmp_path: Path, policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it ends requests without a queue: all who wait are refused, or served and charged afterwards."""
    async with waiting_bench(
        tmp_path, limits=ONE_AT_A_TIME, more=f"on_ledger_failure: {policy}\n" + queue(), options={"ttft": 300, "completion": 5}
    ) as bench:

        def away(_: object) -> "asyncio.Future[Any]":
            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            future.set_exception(LedgerUnavailable("away"))
            return future

        bench.overrun = 1000 if policy == "allow" else 0
        with monkeypatch.context() as patched:
            with bench.held():
                first = await sent(bench, "sk-key", "first")
                waiters = [await sent(bench, "sk-key", str(n)) for n in range(3)]
                await until(lambda: depth(bench) == 3)
                patched.setattr(bench.ledger, "admit", away)
                await until(lambda: depth(bench) == 0)
            expected = {"refuse": "ledger_unavailable", "allow": "200"}[policy]
            assert await codes(*waiters) == [expected] * 3
        assert (await first.rest()).code == "200"
        assert wait_outcomes(bench) == ({"failed": 3} if policy == "refuse" else {"served": 3})


async def test_a_place_costs_no_hold_at_the_deployment(tmp_path: Path) -> None:
    """Who waits for its own limit takes nothing from the deployment's, and is counted there once it is served."""
    deployment = ", limits: [2 concurrent, 9 requests/day]"
    async with waiting_bench(tmp_path, limits=ONE_AT_A_TIME, deployment=deployment, options={"ttft": 120, "completion": 5}) as bench:
        with bench.held():
            connections = [await sent(bench, "sk-key", str(n)) for n in range(4)]
            await until(lambda: depth(bench) == 3)
            counters, holds = await bench.ledger.show()
            assert sum(hold.state == "open" for hold in holds) == 2
            assert [counter.held for counter in counters if ":c:mock/" in counter.key and counter.kind == "o"] == [1]
        assert await codes(*connections) == ["200"] * 4
        await bench.quiet()
        counters, _ = await bench.ledger.show()
        assert [counter.used for counter in counters if ":requests:day" in counter.key] == [4]


TWO_DEPLOYMENTS = """
  both:
    deployments:
      - {provider: mock, model: cheap, price: {input: 0.5, output: 1.0}}
      - {provider: mock, model: dear, price: {input: 5, output: 10.0}}"""


async def test_another_deployment_is_tried_before_waiting(tmp_path: Path) -> None:
    """The dear one has no room for a time, the cheap one has: nobody waits."""
    models = TWO_DEPLOYMENTS.replace("cheap", "x").replace("dear", "cheap").replace("x", "dear")  # the names do not matter, the order does
    models = models.replace("0.5, output: 1.0", "50, output: 100.0").replace("5, output: 10.0", "0.5, output: 1.0")
    async with waiting_bench(tmp_path, limits="[$0.0025/day]", models=models, options={"ttft": 80, "completion": 5}) as bench:
        with bench.held():
            first = await sent(bench, "sk-key", "first", max_tokens=16, model="both")
            second = await sent(bench, "sk-key", "second", max_tokens=16, model="both")
            await bench.asked(2)
            assert depth(bench) == 0
        assert await codes(first, second) == ["200"] * 2
        bench.whole = False  # two prices
        assert sorted(record.deployment for record in bench.records) == ["mock/cheap", "mock/dear"]


async def test_an_earlier_attempt_gives_back_its_hold_before_the_wait(tmp_path: Path) -> None:
    """A first attempt that failed unbilled, and a second that has to wait: nothing is held meanwhile, and the request counts once."""
    async with waiting_bench(
        tmp_path, limits="[$0.0004/day, 9 requests/day]", models=TWO_DEPLOYMENTS, options={"ttft": 300, "completion": 5}
    ) as bench:
        with bench.held():
            other = await sent(bench, "sk-key", "other", max_tokens=200)
            await bench.asked(1)
            bench.mock.fault(count=1, status=503, ttft=0)
            second = await sent(bench, "sk-key", "second", max_tokens=16, model="both")
            await until(lambda: depth(bench) == 1)
            _, holds = await bench.ledger.show()
            assert sum(hold.state == "open" for hold in holds) == 1
        assert await codes(other, second) == ["200"] * 2
        await bench.quiet()
        assert (await bench.usage())["key key requests/day"]["used"] == 2
        assert bench.records[-1].waited_us > 0
        assert [attempt.outcome for attempt in bench.records[-1].attempts] == ["503", "200"]
        bench.whole = False  # two prices


# -- shadow limits ------------------------------------------------------------------------------------------------------------------------

SHADOW = "{amount: 40, unit: tokens, per: day, mode: shadow}"


@BACKEND
async def test_shadow_limits_report_and_never_refuse(tmp_path: Path, redis_url: str, kind: str) -> None:
    """Four requests under an enforced limit; the shadow one would have refused two. Headers and what remains tell of the enforced one alone."""
    with fresh_redis(redis_url) as (url, _):
        limits = f"[100 tokens/day, {SHADOW}, {{amount: 3, unit: requests, per: minute, mode: shadow}}]"
        async with running(tmp_path, ledger=place(kind, tmp_path, url), limits=limits, options={"completion": 5}) as bench:
            for n in range(4):
                answer = await bench.chat(max_tokens=16)
                assert answer.code == "200"
                assert answer.headers["x-ratelimit-limit-tokens"] == "100"
                assert answer.headers["x-ratelimit-remaining-tokens"] == str(100 - n * USED - PROMPT_TOKENS - 16)
                assert "x-ratelimit-limit-requests" not in answer.headers
            day, minute = "key key tokens/day", "key key requests/minute"
            assert [record.shadow for record in bench.records] == ["", "", day, f"{day}, {minute}"]
            assert bench.worker.metrics.counts().shadow_refusals == {"key tokens/day": 2, "key requests/minute": 1}
            usage = await bench.usage()
            assert (usage[day]["mode"], usage[day]["limit"], usage[day]["used"]) == ("enforce", 100, 4 * USED)
            assert (usage[minute]["mode"], usage[minute]["limit"], usage[minute]["remaining"]) == ("shadow", 3, None)


async def test_a_shadow_bucket_admits_as_an_enforced_one_would(tmp_path: Path) -> None:
    """Under twice its rate it would have refused half, and not all for ever: what it would have refused is given back."""
    clock = Clock()
    limit = "{amount: 60, unit: requests, per: minute, burst: 2%s}"
    outcomes = {}
    for mode in (", mode: shadow", ""):
        async with running(tmp_path / f"run{len(mode)}", clock=clock, limits=f"[{limit % mode}]", options={"completion": 5}) as bench:
            told = []
            for _ in range(20):
                told.append((await bench.chat()).code == "200" and not bench.record.shadow)
                clock.now_ms += 500
            outcomes[mode] = told
    assert outcomes[", mode: shadow"] == outcomes[""]
    assert 10 <= sum(outcomes[""]) <= 12


async def test_a_shadow_limit_of_a_deployment(tmp_path: Path) -> None:
    """Reports under the deployment's name, and sends nobody elsewhere."""
    async with running(tmp_path, limits="[1000 tokens/day]", deployment=f", limits: [{SHADOW}]", options={"completion": 5}) as bench:
        assert [(await bench.chat(max_tokens=30)).code for _ in range(3)] == ["200"] * 3
        assert [record.shadow for record in bench.records] == ["", "deployment mock/mock-chat tokens/day", "deployment mock/mock-chat tokens/day"]


async def test_a_request_is_reported_once_over_its_attempts(tmp_path: Path) -> None:
    """Two attempts at two deployments, one count."""
    models = TWO_DEPLOYMENTS
    async with running(tmp_path, limits="[{amount: 5, unit: tokens, per: day, mode: shadow}]", models=models, options={"completion": 5}) as bench:
        bench.mock.fault(count=1, status=503)
        assert (await bench.chat(model="both", max_tokens=16)).code == "200"
        assert len(bench.record.attempts) == 2
        assert bench.record.shadow == "key key tokens/day"
        assert bench.worker.metrics.counts().shadow_refusals == {"key tokens/day": 1}


# -- reserves -----------------------------------------------------------------------------------------------------------------------------

RESERVED = """
  acme:
    limits: [{amount: 10, unit: requests, per: day, reserve: {normal: 10%, low: 30%}}]
    keys:
      - {name: high, key: sk-high, priority: high}
      - {name: normal, key: sk-normal, priority: normal}
      - {name: low, key: sk-low, priority: low}
      - {name: none, key: sk-none}"""


@BACKEND
async def test_what_is_reserved_is_left_to_higher_priorities(tmp_path: Path, redis_url: str, kind: str) -> None:
    """Low priority gets seven of ten, normal then two more, high the last; whoever is refused is told why."""
    with fresh_redis(redis_url) as (url, _):
        async with running(tmp_path, ledger=place(kind, tmp_path, url), tenants=RESERVED, options={"completion": 5}) as bench:
            for key, granted in (("sk-low", 7), ("sk-normal", 2), ("sk-high", 1)):
                assert [(await bench.chat(key)).code for _ in range(granted)] == ["200"] * granted
                refused = await bench.chat(key)
                assert refused.code == "budget_exceeded"
                reserved = {"sk-low": 3, "sk-normal": 1, "sk-high": 0}[key]
                assert refused.error["sluicegate"].get("reserved", 0) == reserved
                assert ("reserved for higher priorities" in refused.error["message"]) == bool(reserved)
                assert (await bench.usage(key))["organization acme requests/day"]["limit"] == 10 - reserved
            assert (await bench.chat("sk-none")).code == "budget_exceeded"


async def test_a_deployment_may_have_a_reserve(tmp_path: Path) -> None:
    """Low priority finds it full while high priority is served there."""
    tenants = RESERVED.replace("limits: [{amount: 10, unit: requests, per: day, reserve: {normal: 10%, low: 30%}}]", "limits: []")
    deployment = ", limits: [{amount: 2, unit: requests, per: day, reserve: {low: 50%}}]"
    async with running(tmp_path, tenants=tenants, deployment=deployment, options={"completion": 5}) as bench:
        codes = [(await bench.chat(key)).code for key in ("sk-low", "sk-low", "sk-high", "sk-high")]
        assert codes == ["200", "upstream_rate_limited", "200", "upstream_rate_limited"]


# -- warnings -----------------------------------------------------------------------------------------------------------------------------


@BACKEND
async def test_marks_are_told_once(tmp_path: Path, redis_url: str, kind: str, logged: list[Any]) -> None:
    """As what is used reaches 80, 95 and 100 % of a day; what is merely held does not count. A shadow limit warns as well."""
    with fresh_redis(redis_url) as (url, _):
        limits = "[10 requests/day, {amount: 4, unit: requests, per: day, mode: shadow, warn_at: [1.0]}, 100 requests/minute, 9 concurrent]"
        async with running(tmp_path, ledger=place(kind, tmp_path, url), limits=limits, options={"completion": 5}) as bench:
            for _ in range(11):
                await bench.chat()
            await bench.quiet()
            await until(lambda: sum(line["event"] == "limit warning" for line in logged) == 3)
        found = [line for line in logged if line["event"] == "limit warning"]
        assert [(line["percent"], line["used"], line["amount"], line.get("mode", "enforce")) for line in found] == [
            ("100%", "4", "4", "shadow"),
            ("80%", "8", "10", "enforce"),
            ("100%", "10", "10", "enforce"),
        ]
        assert {(line["scope"], line["resets_at"][-10:]) for line in found} == {("acme/@key", "T00:00:00Z")}
        assert bench.worker.metrics.counts().limit_warnings == {"key requests/day": 3}
