"""One list of behaviours, run on every ledger: memory, sqlite, and a real Redis. What each verb means in detail: tests/unit/core/test_rules.py."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from sluicegate.core.claims import Settlement
from support_ledgers import Backend, Desk, use

HUGE = 2**52 - 1
TTL_MS = 300  # of holds that are to expire; in real time a busy machine may take a while to make them


@pytest.fixture
async def desk(backend: Backend) -> AsyncIterator[Desk]:
    async with backend.running() as ledger:
        yield Desk(ledger)


# -- admit --------------------------------------------------------------------------------------------------------------------------------


async def test_a_grant_holds_what_it_may_use(desk: Desk) -> None:
    """Tokens, dollars, a rate and concurrency in one step; the states are those after it."""
    refs = desk.refs(desk.window(1000), desk.window(10**9, "usd"), desk.bucket(300), desk.sliding(400), desk.concurrent(8))
    reply = await desk.admit(refs, 100, 1000, 50_000, 600_000, 148, 0, 148, 0, 1, 0, output=(16, 50, 50))
    assert (reply.status, reply.g, reply.room) == ("granted", 50, 50)
    assert [state[0] for state in reply.states] == [0, 0, 148, 148, 0]
    assert [reply.states[i][1] for i in (0, 1, 2, 4)] == [150, 80_000, 0, 1]
    assert 0 < reply.states[3][1] <= 61 * 3_600_000
    assert [state[0] for state in await desk.states(refs)] == [state[0] for state in reply.states]
    assert abs(reply.now_ms - desk.ledger.now_ms()) < 1000


@pytest.mark.parametrize(
    ("ceiling", "output", "expected"),
    [
        (1000, (16, 50, 100), ("granted", 100, 100)),  # plenty: all of want
        (899, (16, 50, 100), ("granted", 50, 100)),  # some: the aim
        (200, (100, 50, 100), ("granted", 50, 100)),  # room for more than the aim may be needed, and is not granted
        (199, (100, 50, 100), ("refused", 0, 99)),
        (180, (16, 50, 100), ("granted", 80, 80)),  # less than want: all there is
        (116, (16, 50, 100), ("granted", 16, 16)),
        (115, (16, 50, 100), ("refused", 0, 15)),
        (99, (16, 50, 100), ("refused", 0, 0)),
        (100, (0, 0, 0), ("granted", 0, 0)),  # no output at all: embeddings
        (99, (0, 0, 0), ("refused", 0, 0)),
    ],
)
async def test_a_grant_is_the_largest_that_fits(desk: Desk, ceiling: int, output: tuple[int, int, int], expected: tuple[str, int, int]) -> None:
    """With room for `want` that or the aim, else all the room; below need it is refused and tells what would fit."""
    reply = await desk.admit(desk.refs(desk.window(ceiling)), 100, 1000, output=output)
    assert (reply.status, reply.g, reply.room) == expected


async def test_a_refusal_changes_nothing(desk: Desk) -> None:
    """Fifty requests refused by the organization leave nothing on the key's counters."""
    key, team, organization = desk.window(1000, "key"), desk.bucket(1000, "team"), desk.window(100, "organization")
    await desk.admit(desk.refs(organization), 95, 0, hold_id="first")
    refs = desk.refs(key, team, desk.concurrent(9), organization)
    for i in range(50):
        reply = await desk.admit(refs, 10, 0, 10, 0, 1, 0, 10, 0, hold_id=f"h{i}")
        assert (reply.status, reply.states) == ("refused", ((0, 0), (0, 0), (0, 0), (0, 95)))
    assert set(await desk.counters()) == {"organization"}
    assert set(await desk.holds()) == {"first"}


async def test_a_repeated_admit_counts_once(desk: Desk) -> None:
    """It is idempotent by its id."""
    refs = desk.refs(desk.window(1000), desk.bucket(1000), desk.sliding(1000), desk.concurrent(9))
    for _ in range(3):
        reply = await desk.admit(refs, 10, 1000, 10, 0, 10, 0, 1, 0, output=(1, 50, 50))
        assert (reply.status, reply.g) == ("granted", 50)
    assert [state[0] + (state[1] if i in (0, 3) else 0) for i, state in enumerate(reply.states)] == [60, 10, 10, 1]


async def test_parallel_admits_never_pass_the_ceiling(desk: Desk) -> None:
    """$0.01 left, twenty at once of $0.004: two are admitted; 100 tokens a minute, five at once of 80: one."""
    usd, tpm = desk.refs(desk.window(10_000_000, "usd")), desk.refs(desk.bucket(100))
    dollars = await asyncio.gather(*(desk.admit(usd, 4_000_000, 0, hold_id=f"u{i}") for i in range(20)))
    tokens = await asyncio.gather(*(desk.admit(tpm, 80, 0, hold_id=f"t{i}") for i in range(5)))
    assert [reply.status for reply in dollars].count("granted") == 2
    assert [reply.status for reply in tokens].count("granted") == 1
    assert await desk.states(usd) == [(0, 8_000_000)]


async def test_what_is_free_passes_an_exhausted_limit(desk: Desk) -> None:
    """A claim of nothing is not refused, even where an overrun stands."""
    refs = desk.refs(desk.window(100))
    await desk.settle(refs, 150, mode="force", hold_id="f")
    assert (await desk.admit(refs, 0, 0, hold_id="free", output=(1, 5, 9))).g == 9
    assert (await desk.admit(refs, 0, 1000, hold_id="priced", output=(1, 5, 9))).status == "refused"
    assert await desk.states(refs) == [(150, 0)]


async def test_a_window_must_be_running(desk: Desk) -> None:
    """In ledger time; the reply tells it, so that the caller can recompute its windows."""
    now_ms = (await desk.ledger.peek(desk.refs(desk.window(1)))).now_ms
    for start_ms, end_ms in ((now_ms - 2000, now_ms - 1000), (now_ms + 60_000, now_ms + 70_000), (now_ms + 60_000, 0)):
        reply = await desk.admit(desk.refs(desk.concurrent(9), desk.window(100, "w", start_ms, end_ms)), 1, 0, 1, 0)
        assert (reply.status, reply.states) == ("stale_window", ())
        assert abs(reply.now_ms - now_ms) < 5000
    assert await desk.holds() == {}
    assert (await desk.admit(desk.refs(desk.window(100, "w", now_ms - 1000, now_ms + 60_000)), 1, 0)).status == "granted"


async def test_a_request_is_charged_to_the_window_that_admitted_it(desk: Desk, backend: Backend) -> None:
    """Admitted just before a window ends, settled after it: the next window knows nothing of it."""
    now_ms = (await desk.ledger.peek(desk.refs(desk.window(1)))).now_ms
    end_ms = now_ms + 300
    old, new = desk.refs(desk.window(100, "old", now_ms - 1000, end_ms)), desk.refs(desk.window(100, "new", end_ms, end_ms + 60_000))
    assert (await desk.admit(old, 90, 1000, output=(1, 5, 5))).status == "granted"
    await backend.wait(310)
    assert (await desk.admit(old, 1, 0, hold_id="late")).status == "stale_window"
    assert (await desk.extend(old, 6, 10)).g == 10
    assert await desk.settle(old, 97) == "settled"
    assert await desk.states(old) == [(97, 0)]
    assert await desk.states(new) == [(0, 0)]
    assert (await desk.admit(new, 100, 0, hold_id="next")).status == "granted"


# -- replacing ----------------------------------------------------------------------------------------------------------------------------


async def test_the_next_attempt_takes_the_place_of_an_unbilled_one(desk: Desk) -> None:
    """In one step; where the next one does not fit, the old hold stands."""
    refs = desk.refs(desk.window(100), desk.bucket(100), desk.sliding(100), desk.concurrent(1))
    await desk.admit(refs, 80, 0, 80, 0, 80, 0, 1, 0, hold_id="r.0")
    refused = await desk.admit(refs, 101, 0, 80, 0, 80, 0, 1, 0, hold_id="r.1", replacing="r.0")
    assert (refused.status, refused.states[:2], refused.states[3]) == ("refused", ((0, 0), (0, 0)), (0, 0))
    assert set(await desk.holds()) == {"r.0"}
    granted = await desk.admit(refs, 90, 0, 91, 0, 92, 0, 1, 0, hold_id="r.1", replacing="r.0")
    assert granted.status == "granted"
    assert set(await desk.holds()) == {"r.1"}
    assert [granted.states[0], granted.states[1], granted.states[2][0], granted.states[3]] == [(0, 90), (91, 0), 92, (0, 1)]


async def test_replacing_gives_back_what_the_next_attempt_does_not_claim(desk: Desk) -> None:
    """The next deployment falls under fewer limits."""
    refs = desk.refs(desk.window(100), desk.window(100, "w2"), desk.bucket(100), desk.sliding(100), desk.concurrent(4))
    await desk.admit(refs, 10, 0, 20, 0, 30, 0, 40, 0, 1, 0, hold_id="r.0")
    await desk.admit(desk.refs(desk.window(100)), 15, 0, hold_id="r.1", replacing="r.0")
    assert await desk.states(refs) == [(0, 15), (0, 0), (0, 0), (0, 0), (0, 0)]


# -- extend -------------------------------------------------------------------------------------------------------------------------------


async def test_a_grant_grows_as_far_as_there_is_room(desk: Desk) -> None:
    """Whole, partial, refused; a repeat changes nothing."""
    refs = desk.refs(desk.window(1000), desk.window(300_000, "usd"), desk.bucket(100))
    await desk.admit(refs, 100, 1000, 0, 1_000_000, 10, 0, output=(1, 50, 100))
    assert (await desk.states(refs))[0] == (0, 150)
    for _ in range(2):
        reply = await desk.extend(refs, 60, 90)
        assert (reply.status, reply.g, reply.states) == ("granted", 90, ((0, 190), (0, 90_000), (10, 0)))
    for _ in range(2):
        reply = await desk.extend(refs, 100, 500)
        assert (reply.status, reply.g, reply.room) == ("granted", 300, 300)
    for _ in range(2):
        reply = await desk.extend(refs, 301, 500)
        assert (reply.status, reply.g, reply.room) == ("refused", 300, 300)
    assert await desk.states(refs) == [(0, 400), (0, 300_000), (10, 0)]


async def test_a_lowered_limit_cuts_nothing_that_is_granted(desk: Desk) -> None:
    """It binds new admissions and extensions; a removed one stops refusing; the count does not depend on the amount."""
    before, after = desk.refs(desk.window(1000)), desk.refs(desk.window(100))
    await desk.admit(before, 100, 1000, output=(1, 200, 200))
    reply = await desk.extend(after, 210, 300)
    assert (reply.status, reply.g) == ("refused", 200)
    assert (await desk.admit(after, 1, 0, hold_id="new")).status == "refused"
    assert (await desk.extend(desk.refs(), 210, 300)).g == 300
    assert await desk.states(before) == [(0, 400)]
    assert await desk.settle(after, 390) == "settled"
    assert await desk.states(before) == [(390, 0)]


async def test_extend_of_a_settled_hold_is_gone(desk: Desk) -> None:
    """So is that of an id that was never admitted."""
    refs = desk.refs(desk.window(1000))
    await desk.admit(refs, 10, 1000, output=(1, 5, 5))
    await desk.settle(refs, 12)
    assert (await desk.extend(refs, 6, 9)).status == "gone"
    assert (await desk.extend(refs, 6, 9, hold_id="never")).status == "gone"


# -- settle -------------------------------------------------------------------------------------------------------------------------------


async def test_settle_replaces_the_hold_and_is_idempotent(desk: Desk) -> None:
    """Below the hold, at most once, whatever the kind of the counter."""
    refs = desk.refs(desk.window(1000), desk.bucket(1000), desk.sliding(1000), desk.concurrent(8))
    await desk.admit(refs, 100, 1000, 150, 0, 150, 0, 1, 0, output=(1, 50, 50))
    assert [await desk.settle(refs, 70, 70, 70, 1) for _ in range(3)] == ["settled", "already", "already"]
    states = await desk.states(refs)
    assert [states[0], states[1], states[2][0], states[3]] == [(70, 0), (70, 0), 70, (0, 0)]
    assert await desk.holds() == {}


async def test_settle_may_exceed_the_hold(desk: Desk) -> None:
    """An overrun on a budget, debt on a bucket: both stand before the next request."""
    refs = desk.refs(desk.window(100), desk.bucket(100), desk.sliding(100))
    await desk.admit(refs, 90, 0, 90, 0, 90, 0)
    assert await desk.settle(refs, 150, 250, 160) == "settled"
    states = await desk.states(refs)
    assert [states[0], states[1], states[2][0]] == [(150, 0), (250, 0), 160]
    for ref in refs.refs:
        assert (await desk.admit(desk.refs(ref), 1, 0, hold_id="next")).status == "refused"


async def test_failed_requests_leave_nothing_held(desk: Desk) -> None:
    """Thirty requests that fail before the upstream is called."""
    refs = desk.refs(desk.window(1000), desk.bucket(1000), desk.sliding(1000), desk.concurrent(30))
    for i in range(30):
        await desk.admit(refs, 10, 0, 10, 0, 10, 0, 1, 0, hold_id=f"h{i}")
    assert (await desk.states(refs))[0] == (0, 300)
    for i in range(30):
        assert await desk.settle(refs, 0, 0, 0, 0, hold_id=f"h{i}", mode="cancel") == "cancelled"
    assert [state[0] for state in await desk.states(refs)] == [0, 0, 0, 0]
    assert [state[1] for state in await desk.states(refs)] == [0, 0, 0, 0]


async def test_receipts_are_matched_by_key(desk: Desk) -> None:
    """Not by index: three scopes, settled in another order."""
    scopes = [desk.window(100, name) for name in ("key", "team", "organization")]
    await desk.admit(desk.refs(*scopes), 10, 0, 20, 0, 30, 0)
    await desk.settle(desk.refs(*scopes[::-1]), 3, 2, 1)
    assert await desk.states(desk.refs(*scopes)) == [(1, 0), (2, 0), (3, 0)]


async def test_a_sequential_client_never_meets_its_own_hold(desk: Desk) -> None:
    """Calls for one worker take effect in the order in which they were made: room for one call is enough, without waiting for the settle."""
    refs = desk.refs(desk.window(10_000), desk.concurrent(1))
    pending = []
    for i in range(20):
        admitted = desk.admit(refs, 90, 0, 1, 0, hold_id=f"h{i}")
        pending.append(desk.ledger.settle(Settlement(f"h{i}", refs, (50, 1))))
        assert (await admitted).status == "granted"
    assert {settled.status for settled in await asyncio.gather(*pending)} == {"settled"}
    assert await desk.states(refs) == [(1000, 0), (0, 0)]


async def test_force_charges_work_that_had_no_hold_once(desk: Desk) -> None:
    """And refuses an admit of the same id that comes late."""
    refs = desk.refs(desk.window(100), desk.bucket(100), desk.sliding(100), desk.concurrent(1))
    assert [await desk.settle(refs, 30, 40, 50, 1, mode="force") for _ in range(2)] == ["forced", "already"]
    assert (await desk.admit(refs, 1, 0, 1, 0, 1, 0, 1, 0)).status == "cancelled"
    states = await desk.states(refs)
    assert [states[0], states[1], states[2][0], states[3]] == [(30, 0), (40, 0), 50, (0, 0)]
    assert (await desk.holds())["h"].state == "forced"


async def test_force_of_an_open_hold_settles_it(desk: Desk) -> None:
    """A replayed journal may know less than the ledger. Sent again, or followed by a late cancel of the admission, it charges nothing more."""
    refs = desk.refs(desk.window(100))
    await desk.admit(refs, 10, 0)
    assert await desk.settle(refs, 7, mode="force") == "settled"
    assert await desk.settle(refs, 7, mode="force") == "already"
    assert await desk.settle(refs, 0, mode="cancel") == "already"
    assert await desk.settle(refs, 7, mode="force") == "already"
    assert (await desk.admit(refs, 10, 0)).status == "cancelled"
    assert await desk.states(refs) == [(7, 0)]


async def test_cancel_refuses_a_late_admit(desk: Desk) -> None:
    """An admit whose outcome was unknown is cancelled, whether it arrives before or after; work that was done all the same is charged once."""
    refs = desk.refs(desk.window(100), desk.concurrent(1))
    await desk.admit(refs, 10, 0, 1, 0, hold_id="before")
    assert await desk.settle(refs, 9, 1, hold_id="before", mode="cancel") == "cancelled"
    assert await desk.settle(refs, 0, 0, hold_id="after", mode="cancel") == "cancelled"
    assert (await desk.admit(refs, 10, 0, 1, 0, hold_id="after")).status == "cancelled"
    assert await desk.states(refs) == [(0, 0), (0, 0)]
    assert [await desk.settle(refs, 8, 1, hold_id="after", mode="force") for _ in range(2)] == ["forced", "already"]
    assert await desk.states(refs) == [(8, 0), (0, 0)]


# -- expiry -------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("expired_hold", "charged"), [("charge_held", 60), ("charge_seen", 30)])
async def test_a_hold_that_nobody_settled_is_charged_and_corrected(backend: Backend, expired_hold: str, charged: int) -> None:
    """Once, as held or as seen; a late settle puts it right; concurrency is released, refilling limits keep what they took."""
    async with backend.running(expired_hold) as ledger:  # type: ignore[arg-type]
        desk = Desk(ledger)
        refs = desk.refs(desk.window(1000), desk.bucket(1000), desk.sliding(1000), desk.concurrent(8))
        await desk.admit(refs, 10, 1000, 60, 0, 60, 0, 1, 0, output=(1, 50, 50), ttl_ms=TTL_MS)
        await desk.extend(refs, 1, 50, seen=20, ttl_ms=TTL_MS)
        assert await ledger.sweep(64) == []
        await backend.wait(TTL_MS + 10)
        (swept,) = await ledger.sweep(64)
        assert (swept.hold_id, swept.tag, swept.g, swept.seen) == ("h", "tag-h", 50, 20)
        assert dict(swept.charged) == dict(zip([ref.key for ref in refs.refs], (charged, 60, 60, 0), strict=True))
        assert await ledger.sweep(64) == []
        states = await desk.states(refs)
        assert [states[0], states[1], states[2][0], states[3]] == [(charged, 0), (60, 0), 60, (0, 0)]
        assert dict((await desk.holds())["h"].amounts) == dict(swept.charged)
        late = await ledger.settle(Settlement("h", refs, (25, 25, 25, 1)))
        assert (late.status, late.expired) == ("late", swept)
        assert await desk.settle(refs, 25, 25, 25, 1) == "already"
        states = await desk.states(refs)
        assert [states[0], states[1], states[2][0], states[3]] == [(25, 0), (25, 0), 25, (0, 0)]


async def test_concurrency_comes_back_after_a_crash(desk: Desk, backend: Backend) -> None:
    """Eight streams of a worker that died: after the ttl eight new ones are admitted, and their admissions return the old ones."""
    refs = desk.refs(desk.concurrent(8))
    for i in range(8):
        await desk.admit(refs, 1, 0, hold_id=f"old{i}", ttl_ms=TTL_MS)
    assert (await desk.admit(refs, 1, 0, hold_id="new0")).status == "refused"
    await backend.wait(TTL_MS + 10)
    replies = [await desk.admit(refs, 1, 0, hold_id=f"new{i}") for i in range(8)]
    assert {reply.status for reply in replies} == {"granted"}
    assert sorted(swept.hold_id for reply in replies for swept in reply.swept) == [f"old{i}" for i in range(8)]
    assert await desk.states(refs) == [(0, 8)]
    assert (await desk.admit(refs, 1, 0, hold_id="one more")).status == "refused"


async def test_an_admit_sweeps_four_of_those_that_are_due(desk: Desk, backend: Backend) -> None:
    """Oldest first, and of equal age by id; a refused admit returns them too."""
    refs = desk.refs(desk.window(60))
    for i, age in enumerate((2, 1, 2, 1, 3, 2)):
        await desk.admit(refs, 10, 0, hold_id=f"h{i}", ttl_ms=2 * TTL_MS - 10 * age)
    order = [hold.hold_id for hold in await desk.ledger.holds(desk.tree, (0, ""), 10)]  # in real time none is of equal age
    assert backend.clock is None or order == ["h4", "h0", "h2", "h5", "h1", "h3"]
    await backend.wait(2 * TTL_MS + 10)
    first = await desk.admit(refs, 1, 0, hold_id="new")
    assert (first.status, first.states) == ("refused", ((40, 20),))
    second = await desk.admit(refs, 1, 0, hold_id="new")
    assert (second.status, second.states) == ("refused", ((60, 0),))
    assert [[swept.hold_id for swept in reply.swept] for reply in (first, second)] == [order[:4], order[4:]]


async def test_renewed_holds_do_not_expire(desk: Desk, backend: Backend) -> None:
    """Those that had expired are open again; unknown ids do not matter."""
    refs = desk.refs(desk.window(100), desk.concurrent(8))
    for hold_id in ("kept", "reopened"):
        await desk.admit(refs, 10, 0, 1, 0, hold_id=hold_id, ttl_ms=TTL_MS)
    await desk.ledger.renew("t", ["kept", "unknown"], 60_000)
    await backend.wait(TTL_MS + 10)
    assert [swept.hold_id for swept in await desk.ledger.sweep(64)] == ["reopened"]
    assert await desk.states(refs) == [(10, 10), (0, 1)]
    await desk.ledger.renew("t", ["kept", "reopened"], 60_000)
    assert await desk.ledger.sweep(64) == []
    assert await desk.states(refs) == [(0, 20), (0, 2)]
    assert [await desk.settle(refs, 5, 1, hold_id=hold_id) for hold_id in ("kept", "reopened")] == ["settled", "settled"]
    assert await desk.states(refs) == [(10, 0), (0, 0)]


async def test_a_sweep_takes_at_most_so_many(desk: Desk, backend: Backend) -> None:
    """Of each tree, oldest first."""
    other = Desk(desk.ledger, "other")
    await use(desk.ledger, "other")
    for i in range(5):
        await desk.admit(desk.refs(desk.window(100)), 10, 0, hold_id=f"h{i}", ttl_ms=TTL_MS + i)
    await other.admit(other.refs(other.window(100)), 10, 0, hold_id="other", ttl_ms=TTL_MS)
    await backend.wait(TTL_MS + 20)
    assert sorted(swept.hold_id for swept in await desk.ledger.sweep(3)) == ["h0", "h1", "h2", "other"]
    assert sorted(swept.hold_id for swept in await desk.ledger.sweep(3)) == ["h3", "h4"]


# -- counters -----------------------------------------------------------------------------------------------------------------------------


async def test_a_bucket_refills_and_a_denied_request_takes_nothing(desk: Desk, backend: Backend) -> None:
    """Capacity 100: 1000 is refused and 10 passes; what was taken comes back with time, debt first."""
    ref = desk.bucket(100, gain=1, per_ms=1)
    assert (await desk.admit(desk.refs(ref), 1000, 0, hold_id="big")).status == "refused"
    assert (await desk.admit(desk.refs(ref), 10, 0, hold_id="small")).status == "granted"
    await desk.settle(desk.refs(ref), 400, hold_id="small")
    assert (await desk.admit(desk.refs(ref), 1, 0, hold_id="debt")).status == "refused"
    await backend.wait(310)
    assert (await desk.admit(desk.refs(ref), 1, 0, hold_id="repaid")).status == "granted"
    await backend.wait(410)
    assert await desk.states(desk.refs(ref)) == [(0, 0)]
    assert "b" not in await desk.counters()


async def test_a_sliding_window_lets_go_slice_by_slice(desk: Desk, backend: Backend) -> None:
    """Used up until the last part of the slice has left, however it was reached."""
    ref = desk.sliding(10, slice_ms=5)
    assert (await desk.admit(desk.refs(ref), 10, 0, hold_id="a")).status == "granted"
    assert (await desk.admit(desk.refs(ref), 1, 0, hold_id="b")).status == "refused"
    ((total, leaves_ms),) = await desk.states(desk.refs(ref))
    assert total == 10
    assert leaves_ms <= 305
    await backend.wait(320)
    assert await desk.states(desk.refs(ref)) == [(0, 0)]
    assert (await desk.admit(desk.refs(ref), 10, 0, hold_id="c")).status == "granted"


async def test_large_numbers_are_exact(desk: Desk) -> None:
    """Up to the largest limit, 2^52 - 1, and with rates whose products come near 2^53."""
    refs = desk.refs(desk.window(HUGE), desk.window(10**14 + 1, "usd"))
    want = 9_000_000
    reply = await desk.admit(refs, HUGE - 9, 0, 12_345_678_901_234, 1_000_000_007, output=(1, want, want))
    taken = 12_345_678_901_234 + -(-1_000_000_007 * want // 1000)
    assert (reply.g, reply.states) == (want, ((0, HUGE - 9), (0, taken)))
    assert (await desk.admit(refs, 10, 0, 0, 0, hold_id="ten")).status == "refused"
    assert (await desk.admit(refs, 9, 0, 0, 0, hold_id="nine")).states == ((0, HUGE), (0, taken))
    assert await desk.settle(refs, HUGE - 10, 10**14) == "settled"
    assert await desk.states(refs) == [(HUGE - 10, 9), (10**14, 0)]
    bucket = desk.refs(desk.bucket(2**48 - 1, gain=10**9, per_ms=3))
    await desk.admit(bucket, 2**48 - 1, 0, hold_id="bucket")
    await desk.settle(bucket, HUGE, hold_id="bucket")
    assert 0 <= HUGE - (await desk.states(bucket))[0][0] < 10**14
    counters = await desk.counters()
    assert (counters["w"].used, counters["w"].held, counters["usd"].used) == (HUGE - 10, 9, 10**14)


async def test_a_grant_is_exact_near_the_largest_numbers(desk: Desk) -> None:
    """The division that finds the grant keeps every digit: one token more would not fit."""
    rate, room = 999_999_937, 4_503_599_627_370
    refs = desk.refs(desk.window(HUGE))
    reply = await desk.admit(refs, HUGE - room, rate, output=(1, 9_000_000, 9_000_000))
    fits = room * 1000 // rate
    assert (reply.g, reply.room) == (fits, fits)
    assert reply.states == ((0, HUGE - room + -(-rate * fits // 1000)),)


# -- beside the verbs ---------------------------------------------------------------------------------------------------------------------


async def test_peek_changes_nothing(desk: Desk, backend: Backend) -> None:
    """Not even what has expired is swept."""
    refs = desk.refs(desk.window(100), desk.bucket(100), desk.concurrent(4))
    await desk.admit(refs, 10, 0, 20, 0, 1, 0, ttl_ms=TTL_MS)
    await backend.wait(TTL_MS + 10)
    for _ in range(2):
        reply = await desk.ledger.peek(refs)
        assert (reply.status, reply.states) == ("granted", ((0, 10), (20, 0), (0, 1)))
    assert (await desk.holds())["h"].state == "open"


async def test_show_prints_counters_and_holds(desk: Desk) -> None:
    """Every counter with what is used and held, every hold with what it holds, markers too."""
    refs = desk.refs(desk.window(1000), desk.bucket(1000), desk.sliding(1000), desk.concurrent(8))
    await desk.admit(refs, 10, 1000, 20, 0, 30, 0, 1, 0, output=(1, 50, 50))
    await desk.settle(desk.refs(desk.window(1000)), 5, hold_id="marker", mode="force")
    counters, holds = await desk.counters(), await desk.holds()
    assert {name: (view.kind, view.used, view.held) for name, view in counters.items()} == {
        "w": ("w", 5, 60),
        "b": ("b", 20, 0),
        "s": ("s", 30, 0),
        "o": ("o", 0, 1),
    }
    hold = holds["h"]
    assert (hold.tag, hold.state, hold.g, hold.seen) == ("tag-h", "open", 50, 0)
    assert dict(hold.amounts) == dict(zip([ref.key for ref in refs.refs], (60, 20, 30, 1), strict=True))
    assert hold.expires_ms > desk.ledger.now_ms()
    assert (holds["marker"].state, holds["marker"].amounts) == ("forced", ())


async def test_learned_tables_are_sums(desk: Desk) -> None:
    """An empty increment reads only; tables do not mix."""
    assert await desk.ledger.learned({}) == {}
    assert await desk.ledger.learned({"p95:chat": {}}) == {"p95:chat": {}}
    assert await desk.ledger.learned({"p95:chat": {"12": 3, "13": 1}, "ratio": {"sum": 10**12}}) == {
        "p95:chat": {"12": 3, "13": 1},
        "ratio": {"sum": 10**12},
    }
    assert await desk.ledger.learned({"p95:chat": {"13": 2, "20": 1}}) == {"p95:chat": {"12": 3, "13": 3, "20": 1}}
    assert await desk.ledger.learned({"p95:chat": {}, "ratio": {}}) == {"p95:chat": {"12": 3, "13": 3, "20": 1}, "ratio": {"sum": 10**12}}


async def test_ping_answers(desk: Desk) -> None:
    """A ledger that is there says nothing."""
    await desk.ledger.ping()


# -- looking at holds ---------------------------------------------------------------------------------------------------------------------


async def test_holds_are_read_in_pages(desk: Desk) -> None:
    """By expiry and id, each once, whatever the size of a page; with what they hold, and what makes it up."""
    refs = desk.refs(desk.window(10**6), desk.concurrent(99))
    for i in range(7):
        await desk.admit(refs, 100, 1500, 1, 0, hold_id=f"h{i}", output=(1, 4, 4))
    for limit in (1, 3, 100):
        seen: list[str] = []
        after = (0, "")
        while page := await desk.ledger.holds("t", after, limit):
            assert len(page) <= limit
            seen += [hold.hold_id for hold in page]
            after = page[-1].expires_ms, page[-1].hold_id
        assert sorted(seen) == [f"h{i}" for i in range(7)]
    one = await desk.ledger.hold("t", "h3")
    assert one is not None and one == (await desk.holds())["h3"]
    assert (one.state, one.g, one.tag) == ("open", 4, "tag-h3")
    assert [(kind, fixed, rate) for _, kind, fixed, rate in one.claims] == [("w", 100, 1500), ("o", 1, 0)]
    assert [amount for _, amount in one.amounts] == [106, 1]
    assert await desk.ledger.holds("other", (0, ""), 10) == [] and await desk.ledger.hold("t", "none") is None
    await desk.settle(refs, 5, 0, hold_id="h3")
    assert await desk.ledger.hold("t", "h3") is None


async def test_a_hold_that_is_put_to_its_end_is_charged_by_the_next_sweep(desk: Desk) -> None:
    """A renewal for no time ends it: it shows as expired, a settle that comes after all corrects the charge, and what it reserved is free."""
    refs = desk.refs(desk.window(1000), desk.concurrent(9))
    await desk.admit(refs, 100, 1000, 1, 0, output=(1, 50, 50))
    await desk.ledger.renew("t", ["h"], 0)
    swept = await desk.ledger.sweep(64)
    assert [one.hold_id for one in swept] == ["h"]
    assert await desk.states(refs) == [(150, 0), (0, 0)]
    found = await desk.ledger.hold("t", "h")
    assert found is not None and found.state == "expired_held"
    assert await desk.settle(refs, 110, 0) == "late"
    assert await desk.states(refs) == [(110, 0), (0, 0)]


async def test_what_is_taken_from_a_window_takes_it_no_lower_than_nothing(desk: Desk) -> None:
    """Told by force, once for each id, it is less used; what is held stays held."""
    refs = desk.refs(desk.window(1000))
    await desk.settle(refs, 300, mode="force", hold_id="a")
    await desk.admit(refs, 50, 0)
    for _ in range(2):
        await desk.settle(refs, -100, mode="force", hold_id="b")
    assert await desk.states(refs) == [(200, 50)]
    await desk.settle(refs, -500, mode="force", hold_id="c")
    assert await desk.states(refs) == [(0, 50)]
