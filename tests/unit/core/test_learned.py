"""Summaries of what was seen: the largest of the last, a fading mean, a shared histogram."""

from hypothesis import given
from hypothesis import strategies as st

from sluicegate.core.learned import Histogram, Largest, Mean, bucket_of


@given(st.lists(st.integers(0, 20)), st.integers(1, 5))
def test_largest_of_the_last(values: list[int], last: int) -> None:
    """The largest of the last values, exactly, and how many there have been."""
    largest = Largest(last)
    assert largest.value == 0
    for n, value in enumerate(values, 1):
        largest.add(value)
        assert (largest.value, largest.count) == (max(values[max(0, n - last) : n]), n)


def test_mean_is_weighted() -> None:
    """Long texts weigh more than short ones, and the mean rounds up."""
    mean = Mean(100)
    assert mean.milli == 0
    mean.add(90, 100)
    mean.add(3, 1)
    assert mean.milli == -(-93 * 1000 // 101)


def test_mean_fades() -> None:
    """A change of the tokenizer behind a model is followed."""
    mean = Mean(100)
    for _ in range(1000):
        mean.add(100, 100)
    for _ in range(1000):
        mean.add(200, 100)
    assert 1900 <= mean.milli <= 2000
    assert mean.count == 2000


def test_p95() -> None:
    """A value that one in twenty exceeds, at most a bucket too high, never too low."""
    histogram = Histogram()
    for value in range(1, 1001):
        histogram.add(bucket_of(value))
    assert 950 <= histogram.p95() <= 950 * 2 ** (1 / 8) + 1


def test_p95_of_equal_values() -> None:
    """Equal values give that value or the end of its bucket; a single token is a single token."""
    for value in (1, 2, 3, 16, 100, 4096, 10**9):
        histogram = Histogram()
        for _ in range(60):
            histogram.add(bucket_of(value))
        assert value <= histogram.p95() <= value * 1.1


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=200))
def test_at_most_one_in_twenty_exceeds(values: list[int]) -> None:
    """The p95 of any samples, worked out as they come, is one when it is asked for."""
    histogram = Histogram()
    for value in values:
        histogram.add(bucket_of(value))
    assert sum(value > histogram.p95() for value in values) <= len(values) // 20 + len(values) // 20 + 1


def test_two_workers_share() -> None:
    """What two workers sent is summed by the ledger; each then sees both, and what it has not sent yet."""
    one, two = Histogram(), Histogram()
    one.add(bucket_of(10))
    two.add(bucket_of(1000))
    sums: dict[str, int] = {}
    for histogram in (one, two):
        for bucket, n in histogram.take().items():
            sums[bucket] = sums.get(bucket, 0) + n
    one.add(bucket_of(10))
    one.absorb(sums)
    two.absorb(sums)
    assert (one.samples, two.samples) == (3, 2)
    assert one.take() == {next(iter(sums)): 1}
    assert one.p95() >= 1000


def test_nothing_is_lost_or_doubled_on_the_way() -> None:
    """While an exchange is under way its samples still count; one that failed is sent again."""
    histogram = Histogram()
    histogram.add(10)
    first = histogram.take()
    assert histogram.samples == 1
    assert not histogram.wanted
    histogram.keep()
    histogram.add(10)
    second = histogram.take()
    assert sum(second.values()) == 2 and second.keys() == first.keys()
    histogram.absorb(second)
    assert histogram.samples == 2


def test_forgotten_tables_are_forgotten() -> None:
    """When the ledger has let a table go, its samples are gone here too."""
    histogram = Histogram()
    histogram.add(10)
    histogram.take()
    histogram.absorb({})
    assert histogram.samples == 0


@given(st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=4)), st.integers(1, 5))
def test_largest_of_several_at_once(groups: list[list[int]], last: int) -> None:
    """Values taken together count each, and are forgotten with the last of them: never sooner than they would be alone."""
    largest, values = Largest(last), []
    for group in groups:
        largest.add(max(group), len(group))
        values += group
        assert largest.count == len(values)
        assert max(values[-last:]) <= largest.value <= max(values)


def test_several_at_once() -> None:
    """Sums of pairs make the mean that they make one by one; samples of a bucket count each."""
    one, together = Mean(10), Mean(10)
    for part, whole in ((90, 100), (3, 1), (7, 20)):
        one.add(part, whole)
    together.add(100, 121, 3)
    assert (one.milli, one.count) == (together.milli, together.count)
    histogram = Histogram()
    histogram.add(5, 3)
    assert (histogram.samples, histogram.take()) == (3, {"5": 3})
