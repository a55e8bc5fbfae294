"""Waiting lines: whose turn it is. Time is the test's."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.core.counters import group
from sluicegate.core.limits import parse
from sluicegate.core.tenants import Counter, Scope
from sluicegate.waiting import POLL_S, Place, Waiting, newcomer

STANDING = (90, 10), 1_000
TIGHT, DAY, MONTH = group("acme", Scope("acme", "organization", "acme"), [parse("300 tokens/minute"), parse("9 tokens/day"), parse("$5/month")])
CLAIMS = (1, 0) * 3


class Clock:
    """Seconds."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def waiting(clock: Clock) -> Waiting:
    return Waiting(clock)


def stand(waiting: Waiting, counter: Counter, *priorities: str | None) -> list[Place]:
    """Places of requests that come one after another and are refused by one counter."""
    places = [waiting.enter(priority, 5.0) for priority in priorities]
    for place in places:
        assert waiting.stand(place, counter, 1000, STANDING)
    return places


def served(waiting: Waiting, counter: Counter, places: Sequence[Place]) -> list[int]:
    """Places by number, in the order in which they come to the front."""
    order = []
    while counter.key_prefix in waiting.lines:
        first = waiting.lines[counter.key_prefix].places[0]
        order.append(places.index(first))
        waiting.leave(first)
    return order


def test_higher_priority_first_and_first_come_first_served_inside_one(waiting: Waiting) -> None:
    """No priority waits like normal."""
    places = stand(waiting, DAY, "low", "normal", "high", None, "low", "high", "normal")
    assert served(waiting, DAY, places) == [2, 5, 1, 3, 6, 0, 4]
    assert waiting.lines == {}


@pytest.mark.parametrize(
    ("waits", "comes", "behind"),
    [("normal", "normal", True), ("normal", None, True), ("normal", "low", True), ("normal", "high", False), ("low", "normal", False)],
)
def test_who_comes_stands_behind_the_same_and_higher_priorities(waiting: Waiting, waits: str, comes: str | None, behind: bool) -> None:
    """Without asking the ledger; a higher priority asks, and goes to the front if it is refused."""
    [first] = stand(waiting, DAY, waits)
    assert waiting.ahead((TIGHT, DAY), CLAIMS, newcomer(comes)) == (1 if behind else -1)
    [place] = stand(waiting, DAY, comes)
    assert served(waiting, DAY, [first, place]) == ([0, 1] if behind else [1, 0])


def test_only_counters_that_a_request_takes_from_bind_it(waiting: Waiting) -> None:
    """Who waits for dollars does not stand before a call that costs none (case 9), nor before one without that counter."""
    stand(waiting, MONTH, "normal")
    assert waiting.ahead((TIGHT, MONTH), (5, 0, 10, 1000), newcomer("normal")) == 1
    assert waiting.ahead((TIGHT, MONTH), (5, 0, 0, 0), newcomer("normal")) == -1
    assert waiting.ahead((TIGHT, DAY), (5, 0, 10, 1000), newcomer("normal")) == -1


def test_the_first_is_not_behind_itself(waiting: Waiting) -> None:
    """It may ask; who stands after it may not."""
    first, second = stand(waiting, DAY, "normal", "normal")
    assert waiting.ahead((DAY,), CLAIMS, first.order) == -1
    assert waiting.ahead((DAY,), CLAIMS, second.order) == 0


def test_a_full_line_takes_nobody(waiting: Waiting) -> None:
    """Whatever the priority; who stands there already stays, and who stands elsewhere keeps that place."""
    places = stand(waiting, DAY, "low", "low")
    [elsewhere] = stand(waiting, MONTH, "high")
    assert not waiting.stand(waiting.enter("high", 5.0), DAY, 2, STANDING)
    assert not waiting.stand(elsewhere, DAY, 2, STANDING)
    assert waiting.stand(places[1], DAY, 2, STANDING)
    assert (waiting.depth, waiting.lines[MONTH.key_prefix].places) == (3, [elsewhere])


def test_who_moves_keeps_its_order(waiting: Waiting) -> None:
    """Refused by another counter, it goes on in that line, where it came before others of its priority, until the same deadline."""
    early, late = waiting.enter("normal", 5.0), waiting.enter("normal", 5.0)
    waiting.stand(early, DAY, 9, STANDING)
    waiting.stand(late, MONTH, 9, STANDING)
    deadline = early.deadline
    waiting.stand(early, MONTH, 9, ((1, 2), 2_000))
    assert DAY.key_prefix not in waiting.lines
    assert waiting.lines[MONTH.key_prefix].places == [early, late]
    assert waiting.lines[MONTH.key_prefix].standing == ((1, 2), 2_000)
    assert early.deadline == deadline


def test_who_comes_to_the_front_is_woken(waiting: Waiting) -> None:
    """And nobody else."""
    first, second, third = stand(waiting, DAY, "normal", "normal", "normal")
    waiting.leave(second)
    assert not third.awake.is_set()
    waiting.leave(first)
    assert third.awake.is_set()
    assert not second.awake.is_set()


def test_a_settle_wakes_the_first_of_each_line_of_its_counters(waiting: Waiting) -> None:
    """Lines of other counters sleep on."""
    of_day, of_month = stand(waiting, DAY, "normal", "normal"), stand(waiting, MONTH, "normal")
    waiting.stir((TIGHT, DAY))
    assert [place.awake.is_set() for place in (*of_day, *of_month)] == [True, False, False]


def test_a_client_that_leaves_frees_its_place_at_once(waiting: Waiting) -> None:
    """It is woken to notice, and so is who comes to the front."""
    first, second = stand(waiting, DAY, "normal", "normal")
    waiting.gone(first)
    assert waiting.lines[DAY.key_prefix].places == [second]
    assert first.awake.is_set()
    assert second.awake.is_set()
    waiting.leave(first)  # as every wait ends
    assert waiting.depth == 1


def test_a_ledger_that_is_away_dissolves_the_line(waiting: Waiting) -> None:
    """All who stand in it ask for themselves; other lines stay."""
    places, other = stand(waiting, DAY, "normal", "low", "high"), stand(waiting, MONTH, "normal")
    waiting.dissolve(places[1])
    assert all(place.awake.is_set() and place.line is None for place in places)
    assert list(waiting.lines) == [MONTH.key_prefix]
    assert not other[0].awake.is_set()
    assert waiting.ahead((DAY,), CLAIMS, places[0].order) == -1


def test_a_place_is_good_for_as_long_as_it_was_given(waiting: Waiting, clock: Clock) -> None:
    """By the clock, from when it was taken."""
    place = waiting.enter("normal", 5.0)
    clock.now += 4.5
    assert waiting.left_s(place) == 0.5
    clock.now += 1.0
    assert waiting.left_s(place) < 0


@given(st.lists(st.tuples(st.sampled_from(["high", "normal", "low", None]), st.sampled_from([0, 1, 2]), st.sampled_from([0, 1, 2])), max_size=30))
@settings(max_examples=100)
def test_lines_never_block_each_other(requests: list[tuple[str | None, int, int]]) -> None:
    """However requests are spread over lines and moved between them, the first of all is at the front of its line and behind nobody."""

    async def run() -> None:
        waiting, counters = Waiting(Clock()), (TIGHT, DAY, MONTH)
        places = []
        for priority, at, then in requests:
            place = waiting.enter(priority, 5.0)
            waiting.stand(place, counters[at], 1000, STANDING)
            waiting.stand(place, counters[then], 1000, STANDING)
            places.append(place)
        for first in sorted(places, key=lambda place: place.order):
            assert waiting.ahead(counters, CLAIMS, first.order) == -1
            assert first.line is not None
            assert first.line.places[0] is first
            waiting.leave(first)
        assert waiting.lines == {}

    asyncio.run(run())


async def test_a_turn_comes_when_woken_and_is_not_missed(waiting: Waiting) -> None:
    """Also when the wake-up came before the wait; each wakes once."""
    _, second = stand(waiting, DAY, "normal", "normal")
    waiting.gone(second)
    await waiting.turn(second)
    assert not second.awake.is_set()


async def test_the_first_looks_again_by_itself(waiting: Waiting) -> None:
    """Every 50 ms, or when the refusal said; the others wait until they are first, or their time is over."""
    first, second = stand(waiting, DAY, "normal", "normal")
    assert first.poll_s == POLL_S
    first.poll_s = 0.0
    await waiting.turn(first)
    turn = asyncio.ensure_future(waiting.turn(second))
    await asyncio.sleep(0)
    assert not turn.done()
    waiting.leave(first)
    await turn


async def test_a_wait_that_is_over_ends_by_itself(waiting: Waiting, clock: Clock) -> None:
    """Wherever it stands."""
    _, second = stand(waiting, DAY, "normal", "normal")
    clock.now += 5.0
    await waiting.turn(second)
