"""What RedisLedger sends, keeps and reads: encodings, lifetimes of keys, records. Verbs: tests/contract; faults: tests/e2e/test_redis_faults.py."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import hiredis
import msgspec
import pytest
import redis as redis_client

from sluicegate.core.claims import Admission, Announcement, Extension, Ref, RefSet, Reply, Seed, Settlement, Swept
from sluicegate.ledger.contract import GENERATION_MS, LedgerRecovering, LedgerUnavailable, TreeState
from sluicegate.ledger.link import Command
from sluicegate.ledger.redis import RedisLedger
from sluicegate.ledger.redis_scripts import NO_MARK, load_scripts
from sluicegate.ledger.topology import Route
from support_ledgers import Desk, use

HOUR_MS = 3_600_000
HUGE = 2**52 - 1


class FakeLink:
    """Keeps commands and answers each with what the test put there."""

    def __init__(self) -> None:
        self.sent: list[list[bytes]] = []
        self.answers: list[Any] = []

    def call(self, command: Command, packed: bytes, asked: Any = None) -> "asyncio.Future[Any]":
        reader = hiredis.Reader()
        reader.feed(packed)
        self.sent.append(reader.gets())
        assert reader.gets() is False, "one whole command"
        future = asyncio.get_running_loop().create_future()
        if self.answers:
            try:
                future.set_result(command.read(self.answers.pop(0)))
            except LedgerRecovering as error:
                future.set_exception(error)
        return future


def led_by(ledger: RedisLedger, link: FakeLink) -> None:
    """All calls of the ledger go over this link."""
    route = Route("any")
    route.front = route.back = link
    ledger.topology.route = lambda tree: route  # type: ignore[method-assign]


def values(packed: bytes) -> list[Any]:
    """What a script makes of MessagePack values that stand one behind the other."""
    for count in range(1, 100):
        with contextlib.suppress(msgspec.DecodeError):
            return msgspec.msgpack.decode(b"\xdc" + count.to_bytes(2, "big") + packed)  # type: ignore[no-any-return]
    raise AssertionError(packed)


@pytest.fixture
def offline() -> tuple[RedisLedger, FakeLink]:
    ledger, link = RedisLedger("redis://nowhere"), FakeLink()
    led_by(ledger, link)
    ledger.trees["acme"] = TreeState("e1", 70, open=True)
    return ledger, link


REFS = (
    Ref("sg1:{acme}:c:acme/@k:tokens:bucket60s", "b", 300, gain=1, per_ms=200, reserved=30),
    Ref("sg1:{acme}:c:acme:tokens:day:2026-11-30", "w", 1000, 1_000_000, 9_000_000),
    Ref("sg1:{acme}:c:acme:usd:month:2026-11", "w", 5000, 500_000, 0, marks=(4000, 5000)),
    Ref("sg1:{acme}:c:acme:requests:sliding", "s", 40, per_ms=1000),
    Ref("sg1:{acme}:c:acme:concurrent:open", "o", 8),
)


def test_scripts_are_constants_that_say_what_they_take() -> None:
    """The first line names flags, comments name keys, arguments and returns, and the shared steps stand in between."""
    scripts = load_scripts()
    assert {verb for verb, script in scripts.items() if b"allow-oom" in script.text.split(b"\n")[0]} == {
        "settle",
        "renew",
        "sweep",
        "warn",
        "fill",
        "announce",
    }
    for verb, script in scripts.items():
        assert script.text.startswith(b"#!lua")
        for word in (f"-- {verb}: ", "-- KEYS  ", "-- ARGV  ", "-- Returns "):
            assert word.encode() in script.text
        assert script.text.count(b"-- base: ") == (0 if verb == "learned" else 1)
        assert not re.search(rb"--@\w+\n", script.text)
        assert re.fullmatch(rb"[0-9a-f]{40}", script.sha)


async def test_a_call_declares_its_keys_under_one_hash_tag(offline: tuple[RedisLedger, FakeLink]) -> None:
    """Key and team scopes in one slot of a Redis Cluster: every key of every verb carries the tree's tag."""
    ledger, link = offline
    refs = RefSet("acme", REFS)
    ledger.admit(Admission("h", refs, (1, 0) * 5, 1, 2, 3, 30_000, "tag", "old"))
    ledger.extend(Extension("h", refs, 4, 5, 3, 30_000))
    ledger.settle(Settlement("h", refs, (1, 2, 3, 4, 5), "force"))
    ledger.peek(refs)
    for sent in link.sent:
        keys = sent[3 : 3 + int(sent[2])]
        own = [f"sg1:{{acme}}:{name}".encode() for name in ("holds", "expiry", "counters", "e:e1")]
        assert keys == [*own, *(ref.key.encode() for ref in REFS)]
    assert [sent[1] for sent in link.sent] == [ledger.scripts[verb].sha for verb in ("admit", "extend", "settle", "peek")]
    assert [len(sent) - 3 - 9 for sent in link.sent] == [2, 2, 3, 1]
    times, end = ["h", 1_000_000, 9_000_000], ["s", 40, 1000, 0, "o", 8, 0, 0]
    admits, *others = [values(sent[12]) for sent in link.sent]
    assert admits == [*times, "b", 270, 1, 200, "w", 1000, 9_000_000, NO_MARK, "w", 5000, 0, NO_MARK, *end]
    assert others == [[*times, "b", 300, 1, 200, "w", 1000, 9_000_000, NO_MARK, "w", 5000, 0, 4000, *end]] * 3
    assert msgspec.msgpack.decode(link.sent[2][13]) == [[], [], [4000, 5000], [], []]
    assert [values(sent[-1]) for sent in link.sent[:3]] == [
        [70, "h", "old", "tag", 1, 2, 3, 30_000, *[1, 0] * 5],
        [70, "h", 4, 5, 3, 30_000],
        [70, "h", "force", 1, 2, 3, 4, 5],
    ]


async def test_the_static_part_is_encoded_once_for_each_ledger(offline: tuple[RedisLedger, FakeLink]) -> None:
    """A RefSet that another ledger has packed is packed anew: how expired holds are charged is part of it."""
    ledger, link = offline
    other = RedisLedger("redis://nowhere", expired_hold="charge_seen")
    led_by(other, link)
    other.trees["acme"] = TreeState("e1", 70, open=True)
    refs = RefSet("acme", REFS)
    ledger.peek(refs)
    packed = refs.packed
    ledger.settle(Settlement("h", refs, (0,) * 5))
    assert refs.packed is packed
    other.peek(refs)
    assert values(link.sent[-1][12])[0] == "s"


async def test_a_reply_is_read(offline: tuple[RedisLedger, FakeLink]) -> None:
    """Status, time, grant, states in pairs, and what was swept; its time sets the ledger's clock."""
    ledger, link = offline
    refs = RefSet("acme", REFS[:2])
    swept = [b"id", "tag é".encode(), 7, 3, b"k1", 10, b"k2", HUGE]
    link.answers = [[0, 1_700_000_000_000, 72, 9, 10, 1, 0, HUGE, 4, [swept]], [3, 5, 71, 0, 0], [3, 5, 73, 0, 0, [swept]]]
    expected = Swept("id", "tag é", 7, 3, (("k1", 10), ("k2", HUGE)))
    admission = Admission("h", refs, (1, 0) * 2, 1, 2, 3, 30_000, "tag")
    assert await ledger.admit(admission) == Reply("granted", 1_700_000_000_000, 9, 10, ((1, 0), (HUGE, 4)), (expected,))
    assert 0 <= ledger.now_ms() - 1_700_000_000_000 < 1000
    assert await ledger.admit(admission) == Reply("cancelled", 5)
    assert ledger.trees["acme"].seq == 72
    assert await ledger.admit(admission) == Reply("cancelled", 5, swept=(expected,))


async def test_a_late_admission_is_cancelled_and_what_it_swept_is_kept(offline: tuple[RedisLedger, FakeLink]) -> None:
    """Nobody else would write the records of the holds that it charged."""
    ledger, link = offline
    admission = Admission("h", RefSet("acme", REFS[:1]), (1, 0), 1, 2, 3, 30_000, "tag")
    swept = Swept("id", "tag", 7, 3, ())
    ledger._on_late(ledger.scripts["admit"], Reply("refused", 5, swept=(swept,)), admission)
    ledger._on_late(ledger.scripts["settle"], None, None)
    assert link.sent == []
    ledger._on_late(ledger.scripts["admit"], Reply("granted", 5), admission)
    assert [values(sent[-1]) for sent in link.sent] == [[70, "h", "cancel", 0]]
    link.answers = [[0, 5, 71]]
    assert await ledger.sweep(1) == [swept]
    link.answers = [[0, 5, 72]]
    assert await ledger.sweep(1) == []


async def test_a_sweep_looks_into_every_tree_in_use(offline: tuple[RedisLedger, FakeLink]) -> None:
    """Also where this worker has served nobody yet: holds of a replica that crashed lie there. A tree that turns out to be lost stops no other."""
    ledger, link = offline
    doubts: list[tuple[str, str]] = []
    ledger.on_doubt = lambda tree, why: doubts.append((tree, why))
    ledger.trees |= {"other": TreeState("e2", 5, open=True), "seeded": TreeState("e3", 1, open=False)}
    link.answers = [[5, 1, b"why"], [0, 1, 6, [b"h", b"t", 1, 0]], [0, 1, 2]]
    assert [swept.hold_id for swept in await ledger.sweep(64)] == ["h"]
    assert [sent[3:] for sent in link.sent] == [
        [*(f"sg1:{{{tree}}}:{name}".encode() for name in ("holds", "expiry", "counters", f"e:{epoch}")), b"h", b"64", known]
        for tree, epoch, known in (("acme", "e1", b"70"), ("other", "e2", b"5"), ("seeded", "e3", b"1"))
    ]
    assert doubts == [("acme", "why")]
    assert {tree: state.seq for tree, state in ledger.trees.items()} == {"other": 6, "seeded": 2}


async def test_what_a_lost_admission_swept_is_kept(offline: tuple[RedisLedger, FakeLink]) -> None:
    """The requests were charged, and somebody has to write their records."""
    ledger, link = offline
    link.answers = [[5, 1_700_000_000_000, b"a counter is missing", 0, 0, [[b"id", b"tag", 7, 3]]]]
    with pytest.raises(LedgerRecovering, match="acme is lost: a counter is missing"):
        await ledger.admit(Admission("h", RefSet("acme", REFS[:1]), (1, 0), 1, 2, 3, 30_000, "tag"))
    assert await ledger.sweep(64) == [Swept("id", "tag", 7, 3, ())]


async def test_an_answer_from_an_epoch_before_says_nothing_about_the_present_one(offline: tuple[RedisLedger, FakeLink]) -> None:
    """Neither that it is lost nor how far it has come."""
    ledger, link = offline
    doubts: list[str] = []
    ledger.on_doubt = lambda tree, why: doubts.append(tree)
    ledger.settle(Settlement("h", RefSet("acme", REFS[:1]), (0,)))
    before = ledger._known["acme"]
    ledger.trees["acme"] = TreeState("e2", 3, open=True)
    before.settle.read([0, 5, 900])
    with pytest.raises(LedgerRecovering):
        before.settle.read([5, 5, b"why"])
    assert (ledger.trees["acme"].seq, doubts) == (3, [])
    ledger.settle(Settlement("h", RefSet("acme", REFS[:1]), (0,)))
    assert link.sent[-1][6] == b"sg1:{acme}:e:e2"


# -- what is kept in a real Redis ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def store(redis_url: str) -> Iterator[redis_client.Redis]:
    """A database of its own, empty."""
    with redis_client.Redis.from_url(redis_url.removesuffix("/0") + "/8") as client:
        client.flushdb()
        yield client


@pytest.fixture
async def desk(redis_url: str, store: redis_client.Redis) -> AsyncIterator[Desk]:
    ledger = RedisLedger(redis_url.removesuffix("/0") + "/8", 5_000)
    await ledger.open()
    await use(ledger, "t")
    yield Desk(ledger)
    await ledger.close()


async def test_every_counter_that_ends_expires(desk: Desk, store: redis_client.Redis) -> None:
    """A window's an hour after it, a bucket when it would be full, a sliding one when its last slice leaves; what is drained is gone."""
    now_ms = desk.ledger.now_ms()
    ending, lifetime = desk.window(1000, "day", now_ms - 1000, now_ms + 60_000), desk.window(1000, "lifetime")
    bucket, sliding, concurrent = desk.bucket(1000, gain=1, per_ms=50), desk.sliding(1000, slice_ms=1000), desk.concurrent(8)
    refs = desk.refs(ending, lifetime, bucket, sliding, concurrent)
    await desk.admit(refs, 10, 0, 10, 0, 10, 0, 10, 0, 1, 0)

    def expiry_ms(ref: Ref) -> int:
        return int(store.execute_command("PEXPIRETIME", ref.key))

    assert expiry_ms(ending) == now_ms + 60_000 + HOUR_MS
    assert expiry_ms(lifetime) == -1
    assert 500 <= expiry_ms(bucket) - now_ms <= 1500
    assert 60_000 <= expiry_ms(sliding) - now_ms <= 62_000
    await desk.settle(refs, 10, 10, 100, 10, 1)
    assert 5000 <= expiry_ms(bucket) - now_ms <= 6000
    assert expiry_ms(ending) == now_ms + 60_000 + HOUR_MS
    await desk.settle(refs, 0, 0, 0, 0, 0, hold_id="nothing", mode="force")
    assert not store.exists(concurrent.key)
    forced = desk.refs(desk.window(1000, "forced", now_ms - 1000, now_ms + 60_000))
    await desk.settle(forced, 5, hold_id="unknown", mode="force")
    assert expiry_ms(forced.refs[0]) == now_ms + 60_000 + HOUR_MS


async def test_the_index_keeps_windows_as_long_as_their_counters(desk: Desk, store: redis_client.Redis) -> None:
    """By whatever verb they were made; a sweep takes out what has expired."""
    now_ms = desk.ledger.now_ms()
    day = {name: desk.window(1000, name, now_ms - 1000, now_ms + 60_000) for name in ("admitted", "forced", "announced", "filled")}
    for_ever = desk.window(1000, "lifetime")
    long_over = desk.window(1000, "over", 1, now_ms - HOUR_MS + 100)
    await desk.admit(desk.refs(day["admitted"], for_ever, desk.bucket(9), desk.sliding(9), desk.concurrent(9)), 1, 0, 1, 0, 1, 0, 1, 0, 1, 0)
    await desk.settle(desk.refs(day["forced"], long_over), 1, 1, hold_id="forced", mode="force")
    await desk.announce(desk.refs(day["announced"]), 1, 0, hold_id="announced")
    await desk.ledger.fill("t", [Seed(day["filled"], used=1)])
    expiries = dict(store.zrange("sg1:{t}:counters", 0, -1, withscores=True))
    day_expiries = {ref.key.encode(): now_ms + 60_000 + HOUR_MS for ref in day.values()}
    over = {long_over.key.encode(): now_ms + 100}
    assert expiries == {b"": float("inf"), for_ever.key.encode(): 2**52} | day_expiries | over
    assert {int(store.execute_command("PEXPIRETIME", ref.key)) for ref in day.values()} == set(day_expiries.values())
    await asyncio.sleep(0.15)
    await desk.ledger.sweep(64)
    assert dict(store.zrange("sg1:{t}:counters", 0, -1, withscores=True)) == {key: at for key, at in expiries.items() if key not in over}


async def test_a_counter_says_what_it_is(desk: Desk, store: redis_client.Redis) -> None:
    """Named fields that whoever is called at night can read: marks as bits, when a bucket was last full."""
    refs = desk.refs(desk.window(1000, marks=(5, 7, 1000)), desk.bucket(1000), desk.concurrent(9))
    await desk.admit(refs, 1, 0, 10, 0, 1, 0)
    await desk.settle(refs, 7, 10, 1, hold_id="other", mode="force")
    window, bucket, concurrent = (store.hgetall(ref.key) for ref in refs.refs)
    assert window == {b"u": b"7", b"h": b"1", b"m": b"3"}
    assert (bucket[b"d"], bucket[b"r"].isdigit(), concurrent) == (b"20", True, {b"h": b"1"})
    seconds, microseconds = store.time()  # the server's: our idea of it may be a millisecond behind
    assert int(bucket[b"f"]) <= int(bucket[b"t"]) <= seconds * 1000 + microseconds // 1000
    assert msgspec.msgpack.decode(store.hget("sg1:{t}:holds", "h"))[14] == int(bucket[b"f"])


async def test_a_counter_that_only_watches_expires(desk: Desk, store: redis_client.Redis) -> None:
    """Whatever its ceiling is: by its window, or when what it counts has refilled."""
    now_ms, large = desk.ledger.now_ms(), 2**52
    refs = desk.refs(desk.window(large, "w", now_ms - 1000, now_ms + 60_000), desk.bucket(large, per_ms=50), desk.sliding(large, slice_ms=1000))
    await desk.admit(refs, 10, 0, 20, 0, 10, 0)
    for ref, after_ms in zip(refs.refs, (60_000 + HOUR_MS, 1000, 61_000), strict=True):
        assert after_ms - 1500 <= int(store.execute_command("PEXPIRETIME", ref.key)) - now_ms <= after_ms + 1500


async def test_seeding_leaves_what_is_not_of_the_tree(desk: Desk, store: redis_client.Redis) -> None:
    """Other trees, tables that workers share, whatever else is in that database."""
    await desk.ledger.learned({"p95": {"7": 3}})
    store.set("somebody else's", 1)
    others = set(store.keys()) - {b"sg1:{t}:holds", b"sg1:{t}:counters", b"sg1:{t}:e:first"}
    await desk.settle(desk.refs(desk.window(100)), 1, mode="force")
    assert await desk.ledger.seed("t", "second", ()) == 1
    assert set(store.keys()) == others | {b"sg1:{t}:holds", b"sg1:{t}:counters", b"sg1:{t}:e:second"}


async def test_a_tree_of_thousands_of_counters(desk: Desk, store: redis_client.Redis) -> None:
    """More than Redis is asked about at once: each is shown, once, and none survives a seeding."""
    with store.pipeline() as pipeline:
        for number in range(2_500):
            pipeline.hset(desk.key(f"w{number}"), mapping={"u": number, "h": 1})
        pipeline.execute()
    counters = (await desk.ledger.show())[0]
    assert sorted(counter.used for counter in counters) == list(range(2_500))
    await desk.ledger.seed("t", "second", ())
    assert (await desk.ledger.show())[0] == [] and store.dbsize() == 3


DAMAGES = ["c:t/w:tokens:any", "c:t/b:tokens:any", "c:t/s:tokens:any", "c:t/o:tokens:any", "holds", "expiry", "counters", "e:first"]


@pytest.mark.parametrize("value", ["another type", "garbage"])
@pytest.mark.parametrize("part", DAMAGES)
async def test_a_key_that_no_script_can_read_is_a_lost_state(desk: Desk, store: redis_client.Redis, part: str, value: str) -> None:
    """One of another type, or with garbage in it: the epoch is over for everybody, the rest can still be looked at, and a seeding makes it good."""
    refs = desk.refs(desk.window(1000), desk.bucket(1000), desk.sliding(1000), desk.concurrent(9))
    await desk.admit(refs, 5, 0, 5, 0, 5, 0, 1, 0)
    key, doubts = "sg1:{t}:" + part, []
    desk.ledger.on_doubt = lambda tree, why: doubts.append((tree, why))
    assert store.exists(key)
    damage(store, key, value)
    with contextlib.suppress(LedgerRecovering):
        await desk.ledger.announce(Announcement("h", refs, (1, 0) * 4, 1, 0, 1_000, "tag"))
        await desk.settle(refs, 1, 1, 1, 1)
        await desk.admit(refs, 5, 0, 5, 0, 5, 0, 1, 0, hold_id="next")
        await desk.admit(desk.refs(desk.window(1000, "new")), 5, 0, hold_id="other")
    if not doubts:  # what was there is ignored, and written over
        assert value == "garbage" and await desk.ledger.seq("t", "first") > 1
        return
    assert [tree for tree, _ in doubts] == ["t"] and await desk.ledger.seq("t", "first") == 0
    assert len(await desk.states(refs)) == 4
    await use(desk.ledger, "t", epoch="second", seeds=[Seed(refs.refs[0], 7)])
    assert (await desk.states(refs))[0] == (7, 0)
    assert (await desk.admit(refs, 5, 0, 5, 0, 5, 0, 1, 0, hold_id="again")).status == "granted"


def damage(store: redis_client.Redis, key: str, value: str) -> None:
    kind = store.type(key).decode()
    if value == "another type":
        store.delete(key)
        store.rpush(key, "x")
    elif kind == "string":
        store.set(key, "x")
    elif kind == "hash":
        for field in store.hkeys(key):
            store.hset(key, field, "x")
    else:
        members = store.zrange(key, 0, -1)
        store.delete(key)
        store.zadd(key, {member + b"x": 1 for member in members})


async def test_errors_that_say_nothing_of_the_data_are_no_loss(desk: Desk, store: redis_client.Redis) -> None:
    """A Redis without memory refuses an admission; the tree stays in use."""
    store.config_set("maxmemory", "1")
    try:
        with pytest.raises(LedgerUnavailable, match="OOM"):
            await desk.admit(desk.refs(desk.window(1000)), 5, 0)
    finally:
        store.config_set("maxmemory", "0")
    assert desk.ledger.trees["t"].open
    assert (await desk.admit(desk.refs(desk.window(1000)), 5, 0, hold_id="again")).status == "granted"


def allowed() -> list[str]:
    """What docs/redis-keys.md says that a user needs, at least."""
    page = (Path(__file__).parents[3] / "docs" / "redis-keys.md").read_text()
    return re.search(r"```\n(~sg1:\* \+hello.*?)```", page, re.DOTALL)[1].split()  # type: ignore[index]


@pytest.mark.parametrize("rights", [allowed(), ["~sg1:*", "+@all", "-@dangerous", "+info", "+config|get"]], ids=["least", "short"])
async def test_what_the_user_of_the_gateway_may_do_suffices(redis_url: str, store: redis_client.Redis, rights: list[str]) -> None:
    """Every verb works for a user with the rights that the documentation names."""
    store.execute_command("ACL", "SETUSER", "gate", "reset", "on", ">pw", *rights)
    ledger = RedisLedger(redis_url.replace("redis://", "redis://gate:pw@").removesuffix("/0") + "/8", 5_000)
    await ledger.open()
    try:
        await use(ledger, "t", seeds=[Seed(Desk(ledger).window(1, "before"), 5)])
        desk = Desk(ledger)
        refs = desk.refs(desk.window(1000), desk.bucket(1000), desk.sliding(1000), desk.concurrent(9))
        for hold_id in ("used", "given back", "due"):
            await desk.admit(refs, 5, 0, 5, 0, 5, 0, 1, 0, hold_id=hold_id, ttl_ms=0 if hold_id == "due" else 9_000)
        await desk.extend(refs, 1, 2, hold_id="used")
        await ledger.renew("t", ["used"], 9_000)
        assert [await desk.settle(refs, *used, hold_id=id_) for id_, used in (("used", (9, 9, 9, 1)), ("given back", (0, 0, 0, 0)))] == [
            "settled"
        ] * 2
        await asyncio.sleep(0.002)
        assert [swept.hold_id for swept in await ledger.sweep(9)] == ["due"]
        assert await desk.settle(refs, 0, 0, 0, 0, hold_id="due") == "late"
        for mode in ("force", "cancel"):
            await ledger.settle(Settlement(mode, refs, (1, 1, 1, 0), mode))  # type: ignore[arg-type]
        await desk.announce(refs, 1, 0, 1, 0, 1, 0, 1, 0, hold_id="new")
        await ledger.fill("t", [Seed(desk.window(1, "filled"), 5)])
        await ledger.warn(refs)
        assert await ledger.learned({"a": {"n": 1}}) == {"a": {"n": 1}}
        assert await ledger.claim("records", "", 1_000) == "records"
        assert await ledger.seq("t", "first") > 1 and len((await ledger.show())[0]) >= 4
    finally:
        await ledger.close()
        store.execute_command("ACL", "DELUSER", "gate")


async def test_a_debt_beyond_all_time_does_not_break_a_settle(desk: Desk, store: redis_client.Redis) -> None:
    """However large the use that an upstream reports: a script must not fail between two writes."""
    refs = desk.refs(desk.bucket(100, gain=1, per_ms=HOUR_MS), desk.window(1000))
    await desk.admit(refs, 1, 0, 1, 0)
    assert await desk.settle(refs, HUGE, HUGE) == "settled"
    assert await desk.states(refs) == [(HUGE, 0), (HUGE, 0)]
    assert await desk.holds() == {}
    assert store.pttl(refs.refs[0].key) > 0


async def test_a_hold_record_is_small_and_begins_with_its_version(desk: Desk, store: redis_client.Redis) -> None:
    """About 300 bytes with four limits and a tag of ordinary length."""
    key = "acme/team-a/@laptop"
    buckets = [Ref(f"sg1:{{acme}}:c:{key}:{unit}:bucket60s", "b", 20_000, gain=1, per_ms=50) for unit in ("requests", "tokens")]
    windows = [Ref("sg1:{acme}:c:acme/team-a:tokens:day:2026-11-30", "w", 10**6), Ref("sg1:{acme}:c:acme:usd:month:2026-11", "w", 5 * 10**11)]
    refs = RefSet("acme", buckets + windows)
    await use(desk.ledger, "acme")
    tag = f"req_0123456789abcdef|{key}|openai/gpt-4o-mini"
    await desk.ledger.admit(Admission("req_0123456789abcdef.0", refs, (1, 0, 148, 0, 132, 1000, 20_000, 600_000), 16, 200, 200, 30_000, tag))
    record = store.hget("sg1:{acme}:holds", "req_0123456789abcdef.0")
    assert len(record) < 340
    assert msgspec.msgpack.decode(record)[:5] == [1, "o", 200, 0, tag]
    assert store.zscore("sg1:{acme}:expiry", "req_0123456789abcdef.0") == pytest.approx(desk.ledger.now_ms() + 30_000, abs=1000)


async def test_a_settled_hold_leaves_nothing(desk: Desk, store: redis_client.Redis) -> None:
    """No tombstone: missing means settled. A marker of a cancel goes with the first sweep after its time."""
    refs = desk.refs(desk.concurrent(4))
    await desk.admit(refs, 1, 0)
    await desk.settle(refs, 1)
    own = {b"sg1:{t}:holds", b"sg1:{t}:counters", b"sg1:{t}:e:first"}
    assert (set(store.keys()), store.hgetall("sg1:{t}:holds"), store.zrange("sg1:{t}:counters", 0, -1)) == (own, {b"": b""}, [b""])
    await desk.settle(refs, 0, hold_id="cancelled", mode="cancel")
    assert 59_000 < store.zscore("sg1:{t}:expiry", "cancelled") - desk.ledger.now_ms() <= 60_100
    store.zadd("sg1:{t}:expiry", {"cancelled": 1})
    assert await desk.ledger.sweep(64) == []
    assert set(store.keys()) == own


async def test_large_amounts_are_exact_through_expiry(desk: Desk, store: redis_client.Redis) -> None:
    """Held, charged, corrected: 2^52 - 1 keeps its last digit in records, counters and replies."""
    refs = desk.refs(desk.window(HUGE))
    await desk.admit(refs, HUGE, 0, ttl_ms=0)
    (swept,) = await desk.ledger.sweep(64)
    assert swept.charged == ((refs.refs[0].key, HUGE),)
    assert store.hgetall(refs.refs[0].key) == {b"u": str(HUGE).encode(), b"h": b"0"}
    await desk.ledger.renew("t", ["h"], 60_000)
    assert await desk.states(refs) == [(0, HUGE)]
    assert await desk.settle(refs, HUGE - 1) == "settled"
    assert await desk.states(refs) == [(HUGE - 1, 0)]


async def test_learned_tables_expire_and_cover_the_generation_before(desk: Desk, store: redis_client.Redis) -> None:
    """Ten minutes each, two of them counted."""
    generation = desk.ledger.now_ms() // GENERATION_MS
    for before, n in ((1, 20), (2, 400)):
        store.hset(f"sg1:{{learned}}:t:p95:{generation - before}", "7", n)
    sums = (await desk.ledger.learned({"p95": {"7": 3, "8": 1}}))["p95"]
    assert sums == {"7": 23, "8": 1} or desk.ledger.now_ms() // GENERATION_MS > generation
    (key,) = [key for key in store.keys("sg1:{learned}:*") if store.pttl(key) > 0]
    assert GENERATION_MS < store.pttl(key) <= 2 * GENERATION_MS


async def test_a_ledger_is_claimed_for_the_records_that_it_is_used_with(desk: Desk, store: redis_client.Redis) -> None:
    """Others get it when the claim has ended, or from those who had it before them; what else is there does not matter."""
    ledger, key = desk.ledger, "sg1:{learned}:records"
    assert [await ledger.claim(name, "", 60_000) for name in ("one", "two", "one")] == ["one"] * 3
    assert 50_000 < store.pttl(key) <= 60_000
    assert [await ledger.claim("two", "one", 30), await ledger.claim("one", "", 30)] == ["two"] * 2
    await asyncio.sleep(0.04)
    assert await ledger.claim("one", "", 60_000) == "one"
    damage(store, key, "another type")
    assert await ledger.claim("two", "", 60_000) == "two"


async def test_two_replicas_share_a_limit(desk: Desk, redis_url: str, store: redis_client.Redis) -> None:
    """100 tokens a minute: what one has taken is not there for the other."""
    other = RedisLedger(redis_url.removesuffix("/0") + "/8", 5_000)
    await other.open()
    await use(other, "t")
    refs = desk.refs(desk.bucket(100))
    assert (await desk.admit(refs, 100, 0, hold_id="a")).status == "granted"
    assert (await other.admit(Admission("b", refs, (100, 0), 1, 1, 1, 30_000, ""))).status == "refused"
    await other.close()
