"""The cache in a worker's memory: what it keeps, for how long, and what makes room."""

from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.cache_memory import MemoryCache
from sluicegate.core.cache import ENTRY_BYTES, Entry


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def entry(size: int = 0, mark: str = "") -> Entry:
    return Entry(b"x" * size, "p/m", mark, 7, 5)


def cache(entries: int, clock: Clock | None = None) -> MemoryCache:
    """With room for so many entries without a body."""
    return MemoryCache(entries * ENTRY_BYTES, clock or Clock())


async def test_an_answer_is_kept_until_it_is_too_old() -> None:
    """To the millisecond; then its room is free. A later one under the same key stands instead, with a time of its own."""
    clock = Clock()
    kept = cache(2, clock)
    kept.put(b"a", entry(), 1000)
    assert (await kept.get(b"a"), await kept.get(b"b"), kept.size_bytes, kept.entries) == (entry(), None, ENTRY_BYTES, 1)
    clock.now += 0.9
    kept.put(b"a", entry(mark="later"), 1000)
    clock.now += 0.9
    assert await kept.get(b"a") == entry(mark="later") and kept.size_bytes == ENTRY_BYTES
    clock.now += 0.1
    assert await kept.get(b"a") is None and (kept.size_bytes, kept.entries, kept.evicted) == (0, 0, 0)
    await kept.close()


async def test_what_was_asked_for_least_lately_makes_room() -> None:
    """As many as it takes; what can never fit throws out nothing."""
    kept = cache(3)
    for key in (b"a", b"b", b"c"):
        kept.put(key, entry(), 1000)
    await kept.get(b"a")
    kept.put(b"d", entry(ENTRY_BYTES), 1000)  # as large as two
    assert [await kept.get(key) is not None for key in (b"a", b"b", b"c", b"d")] == [True, False, False, True]
    assert (kept.size_bytes, kept.entries, kept.evicted) == (3 * ENTRY_BYTES, 2, 2)
    kept.put(b"e", entry(3 * ENTRY_BYTES), 1000)
    assert kept.entries == 2 and await kept.get(b"e") is None
    kept.put(b"d", entry(3 * ENTRY_BYTES), 1000)
    assert await kept.get(b"d") is None, "an answer that is too large does not leave the one before it"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("pgt"), st.integers(0, 4), st.integers(0, 3 * ENTRY_BYTES), st.integers(1, 3000)), max_size=30))
async def test_never_more_than_it_may_keep(steps: list[tuple[str, int, int, int]]) -> None:
    """Whatever is put, asked for and forgotten: the bytes are those of what is there, and what is found is what was put last and is not too old."""
    clock, model = Clock(), dict[bytes, tuple[Entry, float]]()
    kept = cache(4, clock)
    for step, n, size, ms in steps:
        key = b"%d" % n
        if step == "p":
            model[key] = entry(size, str(ms)), clock.now + ms / 1000
            kept.put(key, model[key][0], ms)
        elif step == "t":
            clock.now += ms / 1000
        elif (found := await kept.get(key)) is not None:
            assert (found, True) == (model[key][0], model[key][1] > clock.now)
        assert 0 <= kept.size_bytes <= 4 * ENTRY_BYTES and kept.size_bytes == sum(len(one.body) + ENTRY_BYTES for one, _ in kept._kept.values())
