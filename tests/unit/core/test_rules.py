"""The ledger's rules as tables: what admit, extend, settle, renew and sweep answer, and what they leave on the counters."""

import pytest

from sluicegate.core import rules
from sluicegate.core.book import COUNTER_GRACE_MS, Lost, amount
from sluicegate.core.claims import Admission, Extension, Ref, RefSet, Reply, Seed, Settlement
from sluicegate.ledger.memory_book import MemoryBook

NOW = 1_000_000_000
TTL = 30_000
HUGE = 2**52 - 1
WEEK_MS = 7 * 86_400_000


class Desk:
    """A book at a moment, and short ways to write the verbs."""

    def __init__(self, expired_state="expired_held"):
        self.book = MemoryBook(expired_state)
        self.book.now_ms = NOW

    def set(self, ref, state):
        self.book.put_counter(ref.key, ref.kind, state, 0)

    def at(self, key):
        return self.book.counter(key)

    def wait(self, ms):
        self.book.now_ms += ms

    def admit(self, refs, amounts, output=(0, 0, 0), hold_id="h", ttl_ms=TTL, replacing=""):
        return rules.admit(self.book, Admission(hold_id, RefSet("t", refs), tuple(amounts), *output, ttl_ms, f"tag-{hold_id}", replacing))

    def extend(self, refs, need, want, seen=0, hold_id="h"):
        return rules.extend(self.book, Extension(hold_id, RefSet("t", refs), need, want, seen, TTL))

    def settle(self, refs, actual, hold_id="h", mode="settle"):
        return rules.settle(self.book, Settlement(hold_id, RefSet("t", refs), tuple(actual), mode)).status

    def sweep(self, limit=64):
        return rules.sweep(self.book, "t", limit)

    def hold(self, hold_id="h"):
        return self.book.hold("t", hold_id)


@pytest.fixture
def desk():
    return Desk()


def window(ceiling, key="w", start_ms=0, end_ms=0):
    return Ref(key, "w", ceiling, start_ms, end_ms)


def bucket(ceiling, gain=1, per_ms=1000, key="b"):
    return Ref(key, "b", ceiling, gain=gain, per_ms=per_ms)


def sliding(ceiling, slice_ms=1000, key="s"):
    return Ref(key, "s", ceiling, per_ms=slice_ms)


def concurrent(ceiling, key="o"):
    return Ref(key, "o", ceiling)


# -- admit --------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ref", "before", "claim", "output", "expected"),
    [
        # ref, state before, (fixed, rate), (need, aim, want), (status, g, room)
        (window(1000), None, (100, 1000), (16, 50, 50), ("granted", 50, 50)),
        (window(1000), None, (100, 1000), (16, 50, 100), ("granted", 100, 100)),  # room is 8 times the output wanted: all of it at once
        (window(899), None, (100, 1000), (16, 50, 100), ("granted", 50, 100)),  # one less: what is aimed at
        (window(899), None, (100, 1000), (100, 50, 100), ("granted", 50, 100)),  # also to who asks that there be room for more
        (window(1000), [500, 450], (10, 1000), (16, 50, 100), ("granted", 40, 40)),  # room below want: all the room, whatever the aim
        (window(1000), [500, 474], (10, 1000), (16, 50, 100), ("granted", 16, 16)),  # exactly need
        (window(1000), [500, 475], (10, 1000), (16, 50, 100), ("refused", 0, 15)),  # one below need
        (window(1000), [500, 391], (10, 1000), (100, 50, 100), ("refused", 0, 99)),  # the same where need is above the aim
        (window(1000), [500, 490], (10, 1000), (1, 1, 1), ("refused", 0, 0)),  # the input takes the rest
        (window(1000), [1000, 0], (10, 1000), (1, 1, 1), ("refused", 0, 0)),  # exhausted
        (window(1000), [1500, 0], (10, 1000), (1, 1, 1), ("refused", 0, 0)),  # overrun
        (window(0), None, (1, 0), (1, 1, 1), ("refused", 0, 0)),  # a limit of 0 allows nothing
        (window(0), None, (0, 0), (1, 1, 9), ("granted", 9, 9)),  # a free model on an empty money limit
        (window(100), [150, 0], (0, 0), (1, 1, 9), ("granted", 9, 9)),  # and on an overrun one
        (window(100), [150, 0], (0, 1000), (1, 1, 9), ("refused", 0, 0)),  # free input, priced output
        (window(100), [150, 0], (0, 1000), (0, 0, 0), ("granted", 0, 0)),  # free input, no output: an embedding
        (window(100), [95, 0], (5, 1000), (0, 0, 0), ("granted", 0, 0)),  # an embedding that fits exactly
        (window(100), [96, 0], (5, 1000), (0, 0, 0), ("refused", 0, 0)),
        (window(100), [90, 0], (5, 1), (1, 9000, 9000), ("granted", 5000, 5000)),  # a thousandth of a unit per token, rounded up
        (window(100), [90, 0], (5, 3), (1, 9000, 9000), ("granted", 1666, 1666)),  # ceil(4.998) = 5 fits, 1667 would take 6
        (window(HUGE), [HUGE - 10**14, 0], (10**13, 10**9), (1, 10**8, 10**8), ("granted", 90_000_000, 90_000_000)),
        (window(HUGE), [HUGE - 10, 0], (10, 0), (1, 1, 1), ("granted", 1, 1)),
        (window(HUGE), [HUGE - 9, 0], (10, 0), (1, 1, 1), ("refused", 0, 0)),
        (window(HUGE), [0, 0], (HUGE, 0), (1, 1, 1), ("granted", 1, 1)),
        (bucket(300), [0, 0, NOW, NOW], (148, 0), (16, 16, 16), ("granted", 16, 16)),
        (bucket(300), [152, 0, NOW, NOW], (148, 0), (16, 16, 16), ("granted", 16, 16)),
        (bucket(300), [153, 0, NOW, NOW], (148, 0), (16, 16, 16), ("refused", 0, 0)),
        (bucket(300), [153, 0, NOW - 1000, NOW - 1000], (148, 0), (16, 16, 16), ("granted", 16, 16)),  # a second later
        (bucket(300), [153, 0, NOW + 5000, NOW + 5000], (148, 0), (16, 16, 16), ("refused", 0, 0)),  # time that runs backwards refills nothing
        (bucket(300), [900, 0, NOW - 600_000, NOW - 600_000], (1, 0), (1, 1, 1), ("refused", 0, 0)),  # debt is repaid before anything is admitted
        (sliding(100), {NOW // 1000 - 61: 100}, (100, 0), (1, 1, 1), ("granted", 1, 1)),
        (sliding(100), {NOW // 1000 - 60: 1}, (100, 0), (1, 1, 1), ("refused", 0, 0)),  # a slice counts while any part of it is inside
        (concurrent(2), [0, 1], (1, 0), (1, 1, 1), ("granted", 1, 1)),
        (concurrent(2), [0, 2], (1, 0), (1, 1, 1), ("refused", 0, 0)),
        (concurrent(0), None, (1, 0), (1, 1, 1), ("refused", 0, 0)),
    ],
)
def test_admit_grants_the_largest_that_fits(desk, ref, before, claim, output, expected):
    """A grant is all that fits between need and want; plenty of room grants all of want, some room the aim; less than need is refused."""
    if before is not None:
        desk.set(ref, before)
    reply = desk.admit([ref], claim, output)
    assert (reply.status, reply.g, reply.room) == expected
    if reply.status == "refused":
        assert desk.at(ref.key) == before
        assert desk.hold() is None


def test_the_tightest_of_several_limits_decides(desk):
    """One number solves every limit at once, tokens and dollars together."""
    refs = [window(1000, "tokens"), window(10**6, "usd"), concurrent(4)]
    reply = desk.admit(refs, (100, 1000, 50_000, 2_000_000, 1, 0), (16, 600, 600))
    assert (reply.g, reply.room) == (475, 475)
    assert reply.states == ((0, 575), (0, 1_000_000), (0, 1))
    assert [desk.at(ref.key) for ref in refs] == [[0, 575], [0, 1_000_000], [0, 1]]


def test_a_refusal_by_one_limit_leaves_the_others_alone(desk):
    """All or nothing: the key's limit has room, the organization's has not; the states tell what stood in the way."""
    key, organization = window(1000, "key"), window(100, "organization")
    desk.set(organization, [90, 5])
    reply = desk.admit([key, organization], (10, 1000, 10, 1000), (1, 50, 50))
    assert (reply.status, reply.states) == ("refused", ((0, 0), (90, 5)))
    assert desk.at("key") is None
    assert desk.at("organization") == [90, 5]


def test_a_repeated_admit_changes_nothing(desk):
    """An admit is idempotent by its id."""
    ref = window(1000)
    first = desk.admit([ref], (10, 1000), (1, 50, 50))
    again = desk.admit([ref], (10, 1000), (1, 50, 50))
    assert (again.status, again.g, again.states) == (first.status, first.g, first.states)
    assert desk.at("w") == [0, 60]


@pytest.mark.parametrize(
    ("start_ms", "end_ms", "status"),
    [
        (NOW, NOW + 1, "granted"),
        (NOW + 1, NOW + 2, "stale_window"),
        (NOW - 1, NOW, "stale_window"),
        (NOW - 1, 0, "granted"),
        (0, 0, "granted"),
        (NOW + 1, 0, "stale_window"),
    ],
)
def test_a_window_that_is_not_running_is_stale(desk, start_ms, end_ms, status):
    """Ledger time must be inside [start, end); an end of 0 is never."""
    ref = window(100, start_ms=start_ms, end_ms=end_ms)
    assert desk.admit([ref], (1, 0), (1, 1, 1)).status == status
    assert (desk.at("w") is None) == (status != "granted")


# -- replacing ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ref", [window(100), bucket(100), sliding(100), concurrent(100)], ids=lambda ref: ref.kind)
def test_a_replaced_hold_makes_room_in_the_same_step(desk, ref):
    """An unbilled attempt's hold is given back to the next one, which would not fit beside it."""
    desk.admit([ref], (80, 0), (1, 1, 1), "a")
    assert desk.admit([ref], (90, 0), (1, 1, 1), "b").status == "refused"
    assert desk.hold("a").state == "open"
    reply = desk.admit([ref], (90, 0), (1, 1, 1), "b", replacing="a")
    assert reply.status == "granted"
    assert desk.hold("a") is None
    assert desk.settle([ref], [0], "b") == "settled"
    assert sum(_taken(desk, ref)) == 0


@pytest.mark.parametrize("ref", [window(100), bucket(100), sliding(100), concurrent(100)], ids=lambda ref: ref.kind)
def test_a_refused_replacement_leaves_the_old_hold(desk, ref):
    """The old hold stands, and the states tell what stood in the way without it."""
    desk.admit([ref], (80, 0), (1, 1, 1), "a")
    desk.admit([ref], (15, 0), (1, 1, 1), "other")
    reply = desk.admit([ref], (90, 0), (1, 1, 1), "b", replacing="a")
    assert reply.status == "refused"
    assert reply.states[0][1 if ref.kind in "wo" else 0] == 15
    assert desk.hold("a").state == "open"
    assert sum(_taken(desk, ref)) == 95


def test_replacing_gives_back_to_counters_that_the_next_attempt_does_not_name(desk):
    """A deployment that is only filtered by one of the limits still gives the other one back."""
    refs = [window(100), window(100, "w2"), bucket(100), sliding(100), concurrent(5)]
    desk.admit(refs, (10, 0, 20, 0, 30, 0, 40, 0, 1, 0), (1, 1, 1), "a")
    desk.admit(refs[:1], (10, 0), (1, 1, 1), "b", replacing="a")
    assert [desk.at(key) for key in ("w", "w2", "b", "s", "o")] == [[0, 10], [0, 0], [0, 0, NOW, NOW], {NOW // 1000: 0}, None]


def test_replacing_an_expired_hold_gives_back_its_charge(desk):
    """A hold that expired unbilled is corrected like by a late settle at nothing."""
    ref = window(100)
    desk.admit([ref], (80, 0), (1, 1, 1), "a", ttl_ms=10)
    desk.wait(10)
    assert desk.admit([ref], (90, 0), (1, 1, 1), "b", replacing="a").status == "granted"
    assert desk.at("w") == [0, 90]


@pytest.mark.parametrize("mode", ["force", "cancel"])
def test_replacing_a_marker_leaves_it(desk, mode):
    """A marker holds nothing and goes on refusing what it was left for."""
    ref = window(100)
    desk.settle([ref], [7], "a", mode)
    assert desk.admit([ref], (10, 0), (1, 1, 1), "b", replacing="a").status == "granted"
    assert desk.admit([ref], (10, 0), (1, 1, 1), "a").status == "cancelled"


def test_replacing_a_settled_hold_is_an_ordinary_admit(desk):
    """Missing means settled: nothing is given back."""
    ref = window(100)
    desk.set(ref, [50, 0])
    assert desk.admit([ref], (60, 0), (1, 1, 1), "b", replacing="a").status == "refused"


# -- extend -------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("others", "need", "want", "expected", "held"),
    [
        # held by others, (need, want) -> (status, g, room), held by this one after it (fixed 10, 50 granted before it)
        (0, 60, 80, ("granted", 80, 80), 90),
        (0, 50, 990, ("granted", 990, 990), 1000),
        (0, 60, 991, ("granted", 990, 990), 1000),  # partial
        (900, 60, 200, ("granted", 90, 90), 100),
        (900, 90, 200, ("granted", 90, 90), 100),
        (900, 91, 200, ("refused", 50, 90), 60),  # below need: the grant stays as it is
        (940, 51, 200, ("refused", 50, 50), 60),
        (995, 51, 200, ("refused", 50, 50), 60),  # beyond the ceiling already: cuts nothing that is granted
        (995, 40, 45, ("granted", 50, 50), 60),  # less than it has
    ],
)
def test_extend_raises_a_grant_within_the_room(desk, others, need, want, expected, held):
    """Totals, partial grants allowed, a refusal leaves the grant as it is."""
    ref = window(1000)
    desk.admit([ref], (10, 1000), (1, 50, 50))
    desk.set(ref, [others, desk.at("w")[1]])
    reply = desk.extend([ref], need, want)
    assert (reply.status, reply.g, reply.room) == expected
    assert desk.at("w") == [others, held]
    assert desk.extend([ref], need, want).g == expected[1]  # a repeat changes nothing
    assert desk.at("w") == [others, held]


def test_extend_leaves_refilling_and_open_counters_alone(desk):
    """Claims on limits that refill are constants, and concurrency is one; the output aimed at was in them from the start."""
    refs = [window(1000), bucket(100), sliding(100), concurrent(1)]
    desk.admit(refs, (10, 1000, 100, 0, 100, 0, 1, 0), (1, 50, 50))
    assert desk.extend(refs, 60, 100).g == 100
    assert [desk.at(key) for key in ("w", "b", "s", "o")] == [[0, 110], [100, 0, NOW, NOW], {NOW // 1000: 100}, [0, 1]]


def test_a_limit_that_is_no_longer_named_stops_refusing_but_goes_on_counting(desk):
    """A reload removed a limit while a stream was in flight."""
    refs = [window(1000), window(60, "removed")]
    desk.admit(refs, (10, 1000, 10, 1000), (1, 50, 50))
    assert desk.extend(refs, 60, 100).status == "refused"
    assert desk.extend(refs[:1], 60, 100).g == 100
    assert desk.at("removed") == [0, 110]


def test_extend_checks_in_the_windows_that_admitted(desk):
    """A window shorter than a stream: the stream goes on in its own window."""
    ref = window(1000, start_ms=NOW, end_ms=NOW + 60_000)
    desk.admit([ref], (10, 1000), (1, 50, 50))
    desk.wait(360_000)
    assert desk.extend([ref], 60, 500).g == 500
    assert desk.at("w") == [0, 510]
    assert desk.settle([ref], [300]) == "settled"
    assert desk.at("w") == [300, 0]


def test_extend_of_what_is_not_there_is_gone(desk):
    """Settled, forced, cancelled: no more is granted."""
    ref = window(100)
    assert desk.extend([ref], 1, 5).status == "gone"
    desk.settle([ref], [0], "forced", "force")
    desk.settle([ref], [0], "cancelled", "cancel")
    assert {desk.extend([ref], 1, 5, hold_id=hold_id).status for hold_id in ("forced", "cancelled")} == {"gone"}


def test_extend_renews_and_remembers_what_was_seen(desk):
    """Also when it is refused; what was seen never goes back."""
    ref = window(60)
    desk.admit([ref], (10, 1000), (1, 50, 50))
    desk.wait(TTL - 1)
    assert desk.extend([ref], 51, 60, seen=40).status == "refused"
    desk.extend([ref], 51, 60, seen=30)
    desk.wait(TTL - 1)
    assert desk.sweep() == ()
    desk.wait(1)
    assert [(swept.hold_id, swept.seen) for swept in desk.sweep()] == [("h", 40)]


# -- settle -------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ref", "claim", "actual", "after"),
    [
        (window(1000), (10, 1000), 40, [40, 0]),
        (window(1000), (10, 1000), 60, [60, 0]),
        (window(1000), (10, 1000), 75, [75, 0]),  # an overrun
        (window(1000), (10, 1000), 0, [0, 0]),
        (window(HUGE), (10**14, 10**9), HUGE, [HUGE, 0]),
        (bucket(1000), (60, 0), 40, [40, 0, NOW, NOW]),
        (bucket(1000), (60, 0), 60, [60, 0, NOW, NOW]),
        (bucket(1000), (60, 0), 1700, [1700, 0, NOW, NOW]),  # debt beyond the capacity
        (bucket(1000), (60, 0), 0, None),  # full again: forgotten
        (sliding(1000), (60, 0), 40, {NOW // 1000: 40}),
        (sliding(1000), (60, 0), 75, {NOW // 1000: 75}),
        (concurrent(8), (1, 0), 1, None),  # concurrency settles to nothing, whatever is said
    ],
)
def test_settle_replaces_a_hold_by_what_was_used(desk, ref, claim, actual, after):
    """The whole hold is given back and what was used is added, even beyond the hold; a second settle changes nothing."""
    desk.admit([ref], claim, (1, 50, 50))
    assert desk.settle([ref], [actual]) == "settled"
    assert desk.at(ref.key) == after
    assert desk.settle([ref], [actual]) == "already"
    assert desk.at(ref.key) == after
    assert desk.hold() is None


def test_settle_of_a_bucket_after_it_refilled(desk):
    """What is given back never makes more room than the capacity; what was used beyond the claim becomes debt from now on."""
    ref = bucket(100, gain=1, per_ms=1000)
    desk.admit([ref], (80, 0), (1, 1, 1))
    desk.wait(60_500)
    desk.settle([ref], [50])
    assert desk.at("b") is None
    desk.admit([ref], (80, 0), (1, 1, 1), "h2")
    desk.settle([ref], [300], "h2")
    assert desk.at("b") == [300, 0, NOW + 60_500, NOW + 60_500]


def test_settle_of_a_sliding_window_gives_back_to_the_slice_that_admitted(desk):
    """And an overrun counts from now, so that it is repaid in full; a slice that is outside gets nothing back."""
    ref, slot = sliding(1000), NOW // 1000
    for hold_id in "abc":
        desk.admit([ref], (60, 0), (1, 1, 1), hold_id)
    desk.wait(5_000)
    desk.settle([ref], [50], "a")
    desk.settle([ref], [75], "b")
    assert desk.at("s") == {slot: 170, slot + 5: 15}
    desk.wait(60_000)
    desk.settle([ref], [10], "c")
    assert desk.at("s")[slot + 5] == 15
    assert slot not in desk.at("s") or rules.peek(desk.book, RefSet("t", [ref])).states[0][0] == 15


def test_receipts_are_matched_by_key_not_by_index(desk):
    """The counters of a settlement in another order: each gets its own amount."""
    refs = [window(100, key) for key in ("key", "team", "organization")]
    desk.admit(refs, (10, 0, 20, 0, 30, 0), (1, 1, 1))
    desk.settle(refs[::-1], [3, 2, 1])
    assert [desk.at(ref.key) for ref in refs] == [[1, 0], [2, 0], [3, 0]]


def test_a_settlement_that_leaves_a_counter_out_gives_its_hold_back(desk):
    """And one that names a counter which the hold did not claim charges it."""
    refs = [window(100), window(100, "w2"), bucket(100), sliding(100), concurrent(4)]
    desk.admit(refs, (10, 0, 20, 0, 30, 0, 40, 0, 1, 0), (1, 1, 1))
    desk.settle([refs[0], window(100, "new")], [7, 9])
    assert [desk.at(key) for key in ("w", "w2", "b", "s", "o", "new")] == [[7, 0], [0, 0], [0, 0, NOW, NOW], {NOW // 1000: 0}, None, [9, 0]]


def test_settle_of_a_window_that_is_forgotten_charges_nothing_anew(desk):
    """An hour after its window a counter is gone for ever: a late settle does not bring back one that would never expire."""
    ref = window(100, start_ms=NOW, end_ms=NOW + 1000)
    desk.admit([ref], (10, 0), (1, 1, 1))
    desk.admit([ref], (10, 0), (1, 1, 1), "h2")
    desk.wait(1000 + COUNTER_GRACE_MS - 1)
    desk.settle([ref], [7])
    assert desk.at("w") == [7, 10]
    desk.wait(1)
    desk.settle([ref], [7], "h2")
    assert desk.at("w") is None


# -- force and cancel ---------------------------------------------------------------------------------------------------------------------


def test_force_charges_an_unknown_id_once(desk):
    """Work served without a hold; its marker lasts seven days and refuses a late admit."""
    refs = [window(100), bucket(100), sliding(100), concurrent(4)]
    assert desk.settle(refs, [30, 40, 50, 1], mode="force") == "forced"
    assert desk.settle(refs, [30, 40, 50, 1], mode="force") == "already"
    assert desk.settle(refs, [30, 40, 50, 1], mode="cancel") == "already"
    assert desk.admit(refs, (1, 0, 1, 0, 1, 0, 1, 0), (1, 1, 1)).status == "cancelled"
    assert [desk.at(key) for key in ("w", "b", "s", "o")] == [[30, 0], [40, 0, NOW, NOW], {NOW // 1000: 50}, None]
    desk.wait(WEEK_MS - 1)
    desk.sweep()
    assert desk.hold().state == "forced"
    desk.wait(1)
    assert desk.sweep() == ()
    assert desk.hold() is None


def test_force_of_a_known_id_is_an_ordinary_settle(desk):
    """The journal is replayed with force after an epoch changed; where the hold is still there it is ended."""
    ref = window(100)
    desk.admit([ref], (10, 0), (1, 1, 1))
    assert desk.settle([ref], [7], mode="force") == "settled"
    assert desk.at("w") == [7, 0]


def test_force_of_a_known_id_is_done_once(desk):
    """An admission that timed out was granted all the same, and a settlement that timed out was done: what is sent again finds a marker."""
    ref = window(100)
    desk.admit([ref], (10, 0), (1, 1, 1))
    desk.settle([ref], [7], mode="force")
    assert [desk.settle([ref], [7], mode=mode) for mode in ("force", "cancel", "force")] == ["already"] * 3
    assert (desk.at("w"), desk.hold().state) == ([7, 0], "forced")


def test_cancel_gives_a_hold_back_whatever_was_said_to_be_used(desk):
    """Cancel means that nothing was used."""
    ref = window(100)
    desk.admit([ref], (10, 0), (1, 1, 1))
    assert desk.settle([ref], [7], mode="cancel") == "cancelled"
    assert desk.at("w") == [0, 0]


def test_cancel_of_an_unknown_id_refuses_a_late_admit_for_a_minute(desk):
    """An admit whose outcome was unknown may still arrive after its cancel."""
    ref = window(100)
    assert desk.settle([ref], [0], mode="cancel") == "cancelled"
    desk.wait(rules.CANCELLED_KEPT_MS - 1)
    assert desk.admit([ref], (10, 0), (1, 1, 1)).status == "cancelled"
    assert desk.at("w") is None
    desk.wait(1)
    assert desk.admit([ref], (10, 0), (1, 1, 1)).status == "granted"


def test_force_after_cancel_charges(desk):
    """The admit timed out and was cancelled, then the request was served all the same: it is charged, once."""
    ref = window(100)
    desk.settle([ref], [0], mode="cancel")
    assert desk.settle([ref], [7], mode="settle") == "already"
    assert desk.settle([ref], [7], mode="force") == "forced"
    assert desk.settle([ref], [7], mode="force") == "already"
    assert desk.at("w") == [7, 0]


# -- expiry -------------------------------------------------------------------------------------------------------------------------------


ALL = (window(1000), bucket(1000), sliding(1000), concurrent(4))
CLAIMS = (10, 1000, 60, 0, 60, 0, 1, 0)


@pytest.mark.parametrize(
    ("expired_state", "charged", "after_late"),
    [("expired_held", [60, 60, 60, 0], [25, 25, 25]), ("expired_seen", [30, 60, 60, 0], [25, 25, 25])],
)
def test_a_hold_that_nobody_settled_is_charged(expired_state, charged, after_late):
    """What it held, or what was last seen; concurrency is released, refilling limits keep what they took; a late settle corrects it all."""
    desk = Desk(expired_state)
    desk.admit(ALL, CLAIMS, (1, 50, 50))
    desk.extend(ALL, 1, 50, seen=20)
    desk.wait(TTL - 1)
    assert desk.sweep() == ()
    desk.wait(1)
    (swept,) = desk.sweep()
    assert (swept.hold_id, swept.tag, swept.g, swept.seen) == ("h", "tag-h", 50, 20)
    assert swept.charged == tuple(zip("wbso", charged, strict=True))
    assert desk.at("w") == [charged[0], 0]
    assert desk.at("o") is None
    assert desk.sweep() == ()
    desk.book.now_ms = NOW  # so that nothing has refilled
    assert desk.settle(ALL, [25, 25, 25, 1]) == "late"
    assert [sum(_taken(desk, ref)) for ref in ALL] == [*after_late, 0]
    assert desk.settle(ALL, [25, 25, 25, 1]) == "already"


@pytest.mark.parametrize("expired_state", ["expired_held", "expired_seen"])
@pytest.mark.parametrize("verb", ["renew", "extend"])
def test_an_expired_hold_is_reopened(expired_state, verb):
    """Its worker lives after all: what was charged is held again, and it ends once."""
    desk = Desk(expired_state)
    desk.admit(ALL, CLAIMS, (1, 50, 50))
    desk.extend(ALL, 1, 50, seen=20)
    desk.wait(TTL)
    desk.sweep()
    if verb == "renew":
        rules.renew(desk.book, "t", ["h", "unknown"], TTL)
    else:
        assert desk.extend(ALL, 1, 50, seen=45).g == 50
    assert desk.at("w") == [0, 60]
    assert desk.at("o") == [0, 1]
    assert desk.hold().state == "open"
    desk.wait(TTL - 1)
    assert desk.sweep() == ()
    assert desk.settle(ALL, [33, 33, 33, 1]) == "settled"
    assert desk.at("w") == [33, 0]
    assert desk.at("o") is None


def test_renew_puts_off_open_holds_and_leaves_markers_alone(desk):
    """Nothing expires under a live worker."""
    ref = window(100)
    desk.admit([ref], (10, 0), (1, 1, 1))
    desk.settle([ref], [1], "forced", "force")
    desk.wait(TTL - 1)
    rules.renew(desk.book, "t", ["h", "forced"], TTL)
    desk.wait(TTL - 1)
    assert desk.sweep() == ()
    desk.wait(WEEK_MS)
    desk.sweep()
    assert desk.hold("forced") is None


def test_admit_sweeps_four_holds_that_are_due(desk):
    """Expired holds are charged by whoever comes next, oldest first, at most four in an admit."""
    ref = concurrent(6)
    for i in range(6):
        desk.admit([ref], (1, 0), (1, 1, 1), f"h{i}", ttl_ms=10 + i)
    desk.wait(100)
    reply = desk.admit([ref], (1, 0), (1, 1, 1), "new")
    assert reply.status == "granted"
    assert [swept.hold_id for swept in reply.swept] == ["h0", "h1", "h2", "h3"]
    assert [swept.hold_id for swept in desk.sweep()] == ["h4", "h5"]
    assert desk.at("o") == [0, 1]


def test_a_refused_admit_returns_what_it_swept(desk):
    """The sweeping worker writes the records of what it found, refused or not."""
    ref = window(100)
    desk.admit([ref], (100, 0), (1, 1, 1), ttl_ms=10)
    desk.wait(10)
    reply = desk.admit([ref], (1, 0), (1, 1, 1), "new")
    assert (reply.status, reply.states) == ("refused", ((100, 0),))
    assert [swept.charged for swept in reply.swept] == [(("w", 100),)]


def test_an_admit_of_an_expired_id_is_refused(desk):
    """What was charged is not granted again under the same id."""
    ref = window(100)
    desk.admit([ref], (10, 0), (1, 1, 1), ttl_ms=10)
    desk.wait(10)
    assert desk.admit([ref], (10, 0), (1, 1, 1)).status == "cancelled"
    assert desk.at("w") == [10, 0]


def test_an_expired_record_is_kept_for_a_week(desk):
    """Until then a late settle corrects it; after that missing means settled."""
    ref = window(100)
    desk.admit([ref], (10, 0), (1, 1, 1))
    desk.wait(TTL)
    desk.sweep()
    desk.wait(WEEK_MS - 1)
    desk.sweep()
    assert desk.hold().state == "expired_held"
    desk.wait(1)
    assert desk.sweep() == ()
    assert desk.settle([ref], [5]) == "already"
    assert desk.at("w") == [10, 0]


@pytest.mark.parametrize("verb", ["sweep", "extend", "renew"])
def test_a_counter_that_is_forgotten_is_not_made_anew(desk, verb):
    """Without its window's end it would never expire."""
    ref = window(100, start_ms=NOW, end_ms=NOW + 1000)
    desk.admit([ref], (10, 1000), (1, 5, 5), ttl_ms=10)
    if verb == "renew":
        desk.wait(10)
        desk.sweep()
    desk.wait(1000 + COUNTER_GRACE_MS)
    if verb == "sweep":
        assert len(desk.sweep()) == 1
    elif verb == "extend":
        assert desk.extend([ref], 6, 10).g == 10
    else:
        rules.renew(desk.book, "t", ["h"], TTL)
    assert desk.at("w") is None


# -- counters -----------------------------------------------------------------------------------------------------------------------------


def test_a_bucket_loses_no_fraction(desk):
    """300 tokens per minute, asked for at odd moments: after a minute exactly 300 have come back."""
    ref = bucket(10_000, gain=1, per_ms=200)
    desk.set(ref, [5000, 0, NOW, NOW])
    taken = 0
    for i, step_ms in enumerate([1, 198, 3, 777, 19_021, 7, 39_993]):
        desk.wait(step_ms)
        desk.admit([ref], (1, 0), (1, 1, 1), f"h{i}")
        taken += 1
    assert desk.book.now_ms == NOW + 60_000
    assert desk.at("b")[0] == 5000 - 300 + taken


def test_a_full_bucket_keeps_no_remainder(desk):
    """What would have overflowed is not saved up."""
    ref = bucket(10, gain=3, per_ms=1000)
    desk.set(ref, [2, 0, NOW, NOW])
    desk.wait(999)  # 2.997 units: deficit 0, not a third of the next unit
    desk.admit([ref], (5, 0), (1, 1, 1))
    assert desk.at("b") == [5, 0, NOW + 999, NOW + 999]


def test_a_bucket_is_forgotten_when_it_would_be_full(desk):
    """Forgetting it changes nothing."""
    ref = bucket(10, gain=3, per_ms=1000)
    desk.admit([ref], (10, 0), (1, 1, 1))
    desk.wait(3333)
    assert rules.peek(desk.book, RefSet("t", [ref])).states == ((1, 0),)
    desk.wait(2)
    assert desk.at("b") is None
    assert rules.peek(desk.book, RefSet("t", [ref])).states == ((0, 0),)


@pytest.mark.parametrize("named", [True, False], ids=["named by the settlement", "not named"])
@pytest.mark.parametrize(
    ("full_ms", "left"),
    [
        (NOW - 1, 30),  # last full before the claim: all of it is given back
        (NOW, 30),  # the claim itself was the first since then
        (NOW + 1, 80),  # full again after it
    ],
)
def test_a_bucket_gives_back_what_was_taken_since_it_was_full(desk, named, full_ms, left):
    """A claim from before has refilled; given back, it would make room for what others have taken since."""
    ref = bucket(1000)
    desk.admit([ref], (50, 0), (1, 1, 1))
    desk.set(ref, [80, 7, NOW, full_ms])
    assert desk.settle([ref] if named else [], [0] if named else []) == "settled"
    assert desk.at("b") == [left, 7, NOW, full_ms]


def test_what_was_used_beyond_a_claim_is_taken_whenever_the_bucket_was_full(desk):
    """And a bucket that is not there begins with it."""
    ref = bucket(1000)
    desk.admit([ref], (50, 0), (1, 1, 1), "a")
    desk.admit([ref], (50, 0), (1, 1, 1), "b")
    desk.wait(200_000)
    desk.settle([ref], [60], "a")
    assert desk.at("b") == [10, 0, NOW + 200_000, NOW + 200_000]
    desk.settle([ref], [51], "b")
    assert desk.at("b") == [11, 0, NOW + 200_000, NOW + 200_000]


def test_a_bucket_remembers_when_it_was_last_full(desk):
    """From the first claim on a full one until it is full again: by refilling, by what is given back, or both."""
    ref = bucket(1000, gain=1, per_ms=1)
    desk.admit([ref], (100, 0), (1, 1, 1), "a")
    desk.wait(60)
    desk.admit([ref], (100, 0), (1, 1, 1), "b")
    assert desk.at("b") == [140, 0, NOW + 60, NOW]
    desk.wait(140)
    desk.admit([ref], (100, 0), (1, 1, 1), "c")
    assert desk.at("b") == [100, 0, NOW + 200, NOW + 200]
    desk.settle([ref], [0], "c")
    assert desk.at("b") is None
    desk.wait(1)
    desk.admit([ref], (7, 0), (1, 1, 1), "d")
    desk.settle([ref], [0], "b")
    assert desk.at("b") == [7, 0, NOW + 201, NOW + 201]


def test_a_denied_big_request_does_not_empty_the_bucket(desk):
    """Capacity 100: 1000 is refused, 10 passes."""
    ref = bucket(100)
    assert desk.admit([ref], (1000, 0), (1, 1, 1)).status == "refused"
    assert desk.admit([ref], (10, 0), (1, 1, 1)).status == "granted"


def test_a_changed_amount_keeps_the_count(desk):
    """The amount is no part of a counter's identity: a lowered one binds new claims and cuts nothing that is granted."""
    desk.admit([window(1000), bucket(1000)], (600, 0, 600, 0), (1, 1, 1))
    assert desk.admit([window(500)], (1, 0), (1, 1, 1), "h2").status == "refused"
    assert desk.admit([bucket(500, gain=9)], (1, 0), (1, 1, 1), "h3").status == "refused"
    assert desk.admit([window(700), bucket(700)], (100, 0, 100, 0), (1, 1, 1), "h4").status == "granted"
    assert desk.at("w") == [0, 700]


def test_the_issue_example_of_a_tight_key(desk):
    """300 tokens/minute, each held at 148 and using 117: the third is refused with 234 used, 82 short, 16.4 s of refill."""
    ref = bucket(300, gain=1, per_ms=200)
    for hold_id in ("1", "2"):
        assert desk.admit([ref], (148, 0), (16, 16, 16), hold_id).status == "granted"
        desk.settle([ref], [117], hold_id)
    reply = desk.admit([ref], (148, 0), (16, 16, 16), "3")
    assert (reply.status, reply.states) == ("refused", ((234, 0),))


def test_no_span_of_a_sliding_window_admits_more_than_the_amount(desk):
    """The state tells when the oldest slice leaves; until that moment the amount is used up."""
    ref = sliding(10, slice_ms=1000)
    desk.wait(1000 - desk.book.now_ms % 1000 + 999)  # the last millisecond of a slice
    desk.admit([ref], (10, 0), (1, 1, 1))
    total, leaves_ms = rules.peek(desk.book, RefSet("t", [ref])).states[0]
    assert (total, leaves_ms) == (10, 60_001)
    desk.wait(60_000)
    assert desk.admit([ref], (1, 0), (1, 1, 1), "h2").status == "refused"
    desk.wait(1)
    assert desk.admit([ref], (10, 0), (1, 1, 1), "h3").status == "granted"


def test_a_budget_does_not_refill_inside_its_window(desk):
    """$1 per day, 0.9 spent: half a day later 0.9 more is refused."""
    ref = window(10**9, start_ms=NOW, end_ms=NOW + 86_400_000)
    desk.admit([ref], (9 * 10**8, 0), (1, 1, 1))
    desk.settle([ref], [9 * 10**8])
    desk.wait(43_200_000)
    assert desk.admit([ref], (9 * 10**8, 0), (1, 1, 1), "h2").status == "refused"


def test_peek_changes_nothing(desk):
    """Not even what is due is swept."""
    desk.admit(ALL, CLAIMS, (1, 50, 50), ttl_ms=10)
    desk.wait(10)
    reply = rules.peek(desk.book, RefSet("t", ALL))
    assert reply.states == ((0, 60), (60, 0), (60, (NOW // 1000 + 61) * 1000 - NOW - 10), (0, 1))
    assert desk.hold().state == "open"


def test_amounts_round_up():
    """ceil(rate * g / 1000), exact up to the largest numbers a limit can have."""
    cases = {(5, 1, 0): 5, (5, 1, 1): 6, (5, 1, 1000): 6, (5, 1, 1001): 7, (0, 1000, 7): 7, (0, 10**9, 4_503_599_627): 4_503_599_627 * 10**6}
    assert {case: amount(*case) for case in cases} == cases


# -- epochs -------------------------------------------------------------------------------------------------------------------------------


def guarded(desk, epoch, known, verb, argument):
    seq, answer = rules.guarded(desk.book, "t", epoch, known, verb, argument)
    return seq, str(answer) if isinstance(answer, Lost) else answer


@pytest.mark.parametrize(
    ("stored", "known", "seq"),
    [
        (5, 5, 6),
        (5, 4, 6),  # another worker has gone on
        (5, 0, 6),
        (1, 1, 2),  # just seeded
        (5, 6, 0),  # behind what was seen
        (4, 5, 0),  # one call was lost
        (0, 0, 0),  # there is no such epoch
        (0, 9, 0),
    ],
)
def test_the_sequence_of_an_epoch_only_rises(desk, stored, known, seq):
    """A worker that has seen more than the next number would say finds the state rolled back, and ends the epoch for everybody."""
    rules.seed(desk.book, "t", "e", ())
    desk.book.put_sequence("t", "e", stored)
    assert rules.advance(desk.book, "t", "e", known) == seq
    assert desk.book.sequence("t", "e") == seq


def test_a_verb_runs_within_an_epoch_or_not_at_all(desk):
    """Where the state is lost, it does nothing, and says why."""
    assert guarded(desk, "e", 0, rules.peek, RefSet("t", [])) == (0, "the epoch is gone, or behind what was seen of it")
    rules.seed(desk.book, "t", "e", [Seed(window(100), 40)])
    assert guarded(desk, "e", 1, rules.peek, RefSet("t", [window(100)])) == (2, Reply("granted", NOW, states=((40, 0),)))
    assert guarded(desk, "other", 1, rules.peek, RefSet("t", []))[0] == 0
    assert desk.book.sequence("t", "e") == 2


def test_a_window_is_expected_as_long_as_it_is_kept(desk):
    """An hour after its end the index forgets it with its counter, so that nothing is taken for lost that has merely expired."""
    ending, lifetime = window(1000, "ending", NOW, NOW + 1000), window(1000, "lifetime")
    rules.seed(desk.book, "t", "e", ())
    desk.admit([ending, lifetime, bucket(100)], (1, 0, 1, 0, 1, 0), (1, 1, 1))
    assert [desk.book.expected("t", key) for key in ("ending", "lifetime", "b", "never")] == [True, True, False, False]
    desk.wait(1000 + COUNTER_GRACE_MS - 1)
    assert desk.book.expected("t", "ending")
    desk.wait(1)
    assert desk.at("ending") is None
    assert not desk.book.expected("t", "ending")
    assert desk.settle([ending, lifetime], [5, 5]) == "settled"
    desk.sweep()
    assert set(desk.book.indexes["t"]) == {"", "lifetime"}


def test_an_admission_that_finds_a_loss_changes_nothing_but_what_it_swept(desk):
    """The counters before the one that is missing are not touched; what was swept comes with the loss."""
    rules.seed(desk.book, "t", "e", ())
    desk.admit([concurrent(9)], (1, 0), (1, 1, 1), "swept", ttl_ms=10)
    desk.admit([window(100, "lost")], (1, 0), (1, 1, 1), "other")
    desk.wait(10)
    del desk.book.counters["lost"]
    with pytest.raises(Lost) as caught:
        desk.admit([window(100), window(100, "lost")], (1, 0, 1, 0), (1, 1, 1))
    assert [swept.hold_id for swept in caught.value.swept] == ["swept"]
    assert (desk.at("w"), desk.hold()) == (None, None)


def test_a_stale_window_is_told_before_a_lost_one(desk):
    """The caller recomputes its windows first: a counter of one that is over need not be there."""
    rules.seed(desk.book, "t", "e", ())
    lost, over = window(100, "lost"), window(100, "over", NOW - 1000, NOW)
    desk.book.index("t", "lost", 0)
    assert desk.admit([lost, over], (1, 0, 1, 0), (1, 1, 1)).status == "stale_window"


# -- reserves and marks -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "claim", "output", "expected"),
    [
        # used and held, (fixed, rate), (need, aim, want), (status, g, room); ceiling 1000, 300 reserved
        ([0, 0], (100, 1000), (1, 600, 600), ("granted", 600, 600)),
        ([0, 0], (100, 1000), (1, 601, 601), ("granted", 600, 600)),  # all that is not reserved
        ([650, 49], (0, 1000), (1, 50, 50), ("granted", 1, 1)),
        ([650, 50], (0, 1000), (1, 50, 50), ("refused", 0, 0)),
        ([900, 0], (0, 1000), (1, 50, 50), ("refused", 0, 0)),  # others are in the reserve already
        ([900, 0], (0, 0), (1, 5, 9), ("granted", 9, 9)),  # what is free takes nothing from it
        ([0, 0], (0, 1000), (1, 80, 90), ("granted", 80, 90)),  # what is reserved is not plenty of room
    ],
)
def test_an_admission_leaves_what_is_reserved(desk, before, claim, output, expected):
    """As if the ceiling were lower by it."""
    ref = Ref("w", "w", 1000, reserved=300)
    desk.set(ref, before)
    reply = desk.admit([ref], claim, output)
    assert (reply.status, reply.g, reply.room) == expected


@pytest.mark.parametrize(
    ("told", "used", "new", "after"),
    [
        ([], 79, (), [79, 3]),
        ([], 80, ((1, 0),), [80, 3, 0b001]),
        ([], 97, ((1, 0), (1, 1)), [97, 3, 0b011]),
        ([0b001], 97, ((1, 1),), [97, 3, 0b011]),
        ([0b001], 300, ((1, 1), (1, 2)), [300, 3, 0b111]),
        ([0b111], 300, (), [300, 3, 0b111]),
        ([0b111], 10, (), [10, 3, 0b111]),
        ([0b101], 97, ((1, 1),), [97, 3, 0b111]),
    ],
)
def test_marks_are_told_once(desk, told, used, new, after):
    """Those that `used` has reached and whose bit is not set."""
    ref = Ref("w", "w", 100, marks=(80, 95, 100))
    desk.set(ref, [used, 3, *told])
    assert rules.warn(desk.book, RefSet("t", [window(9, "other"), ref])) == new
    assert desk.at("w") == after


def _taken(desk, ref):
    """What is taken of a counter, whatever its kind."""
    state = desk.at(ref.key) or [0, 0]
    if isinstance(state, dict):
        return state.values()
    return state[:1] if ref.kind == "b" else state
