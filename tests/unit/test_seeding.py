"""What counters begin with: the right questions to the records, and no counter below what was used."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.config.load import load_text
from sluicegate.core.claims import Ref, Reply
from sluicegate.core.limits import Unit
from sluicegate.core.tenants import Policy
from sluicegate.records.rows import Sum
from sluicegate.seeding import REFILLS_LOOKED_BACK, Question, counters_by_tree, deficit, questions, refset, seeds, windows
from support_inloop import config_text

NOW_MS = 1_800_000_123_456
DAY_MS = 86_400_000

TENANTS = """
  acme:
    limits: [$500/month, 8 concurrent]
    keys:
      - {name: a, key: sk-a, limits: ["1000 tokens/day", "120 requests/minute"]}
      - {name: b, key: sk-b, limits: [{amount: 90, unit: output tokens, per: lifetime, models: [chat]}]}
  free:
    keys: [{name: c, key: sk-c}]
"""


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    limited = ", limits: [500 requests/day, {amount: 6000, unit: tokens, per: 90s, window: sliding}]"
    return load_text(config_text(tmp_path, "http://127.0.0.1:9/v1", tenants=TENANTS, deployment=limited), {}).policy


def test_every_tree_with_limits_has_all_of_its_counters(policy: Policy) -> None:
    """Those of all keys, each once, and a deployment's own; a tree without limits needs no state."""
    found = {tree: [counter.key_prefix.split(":c:")[1] for counter in counters] for tree, counters in counters_by_tree(policy).items()}
    assert found == {
        "acme": [
            "acme:usd:month",
            "acme:concurrent:open",
            "acme/@a:tokens:day",
            "acme/@a:requests:bucket-1m",
            "acme/@b:output_tokens:lifetime:chat",
        ],
        "d/mock/mock-chat": ["mock/mock-chat:requests:day", "mock/mock-chat:tokens:sliding-90s"],
    }


def test_the_records_are_asked_about_the_running_windows(policy: Policy) -> None:
    """A window from its start, a bucket some refills back, a sliding window by slices; concurrency is not in the records."""
    trees = counters_by_tree(policy)
    month_ms, day_ms = 1_798_761_600_000, NOW_MS - NOW_MS % DAY_MS
    refill_ms = 60_000
    assert [question.sum for question in questions(trees["acme"], NOW_MS)] == [
        Sum("acme", False, None, Unit.USD, month_ms, month_ms + 31 * DAY_MS, 0, "acme:usd:month"),
        Sum("acme/@a", False, None, Unit.TOKENS, day_ms, day_ms + DAY_MS, 0, "acme/@a:tokens:day"),
        Sum("acme/@a", False, None, Unit.REQUESTS, NOW_MS - REFILLS_LOOKED_BACK * refill_ms, 0, 1000),
        Sum("acme/@b", False, frozenset({"chat"}), Unit.OUTPUT_TOKENS, 0, 0, 0, "acme/@b:output_tokens:lifetime:chat"),
    ]
    assert [question.sum for question in questions(trees["d/mock/mock-chat"], NOW_MS)] == [
        Sum("mock/mock-chat", True, None, Unit.REQUESTS, day_ms, day_ms + DAY_MS, 0, "deployment:mock/mock-chat:requests:day"),
        Sum("mock/mock-chat", True, None, Unit.TOKENS, NOW_MS - 61 * 1500, 0, 1000),
    ]
    assert [question.ref.kind for question in windows(questions(trees["acme"], NOW_MS))] == ["w", "w", "w"]


def test_a_bucket_that_refills_slowly_is_looked_at_in_coarse_slices(tmp_path: Path) -> None:
    """However long its refill takes, the answer stays small."""
    limits = "[{amount: 1000, unit: tokens, per: day, window: bucket, burst: 30000}]"
    loaded = load_text(config_text(tmp_path, "http://127.0.0.1:9/v1", limits=limits), {})
    (question,) = questions(counters_by_tree(loaded.policy)["acme"], NOW_MS)
    assert question.sum.slice_ms == 30 * DAY_MS // 3600
    assert question.sum.start_ms == NOW_MS - 300 * DAY_MS


def present(*states: tuple[int, int]) -> Reply:
    return Reply("granted", NOW_MS, states=states)


WINDOW = Question(Ref("w", "w", 100), Sum("a", False, None, Unit.TOKENS, 0, 0))


@pytest.mark.parametrize(
    ("answer", "state", "held_too", "used"), [(70, (0, 0), False, 70), (70, (90, 5), False, 90), (70, (60, 20), False, 70), (70, (60, 20), True, 80)]
)
def test_the_higher_count_stands(answer: int, state: tuple[int, int], held_too: bool, used: int) -> None:
    """Records that were lost themselves do not take back what the ledger has; what is held counts where nobody will announce it."""
    (seed,) = seeds([WINDOW], [answer], present(state), held_too)
    assert (seed.ref, seed.used) == (WINDOW.ref, used)


def test_slices_go_where_usage_can_have_been_last() -> None:
    """Seconds into slices of another length: never earlier than it was."""
    question = Question(Ref("s", "s", 100, per_ms=1500), Sum("a", False, None, Unit.TOKENS, 0, 0, 1000))
    (seed,) = seeds([question], [{0: 1, 1: 2, 2: 4, 3: 8}], present((0, 0)), False)
    assert seed.slices == {0: 1, 1: 6, 2: 8}


def test_a_bucket_begins_with_what_was_not_refilled() -> None:
    """Through its own refill, debts included."""
    question = Question(Ref("b", "b", 60, gain=1, per_ms=1000), Sum("a", False, None, Unit.TOKENS, 0, 0, 1000))
    now_s = NOW_MS // 1000
    (seed,) = seeds([question], [{now_s - 31: 200, now_s - 11: 5}], present((0, 0)), False)
    assert seed.used == 200 - 30 + 5
    assert deficit(question.ref, {now_s - 300: 100, now_s - 3: 7}, 1000, NOW_MS) == 5
    assert deficit(question.ref, {}, 1000, NOW_MS) == 0


@settings(max_examples=60, deadline=None)
@given(
    used=st.lists(st.tuples(st.integers(0, 599_999), st.integers(1, 50)), max_size=30),
    gain=st.integers(1, 7),
    per_ms=st.sampled_from([100, 499, 1000, 7001]),
)
def test_a_bucket_never_begins_with_less_than_it_lacked(used: list[tuple[int, int]], gain: int, per_ms: int) -> None:
    """Against a bucket that was taken from at the moment itself."""
    ref = Ref("b", "b", 100, gain=gain, per_ms=per_ms)
    start_ms = 1_700_000_000_000
    lacked, rest, at_ms = 0, 0, start_ms
    slices: dict[int, int] = {}
    for offset_ms, amount in [*sorted(used), (600_000, 0)]:
        x = (start_ms + offset_ms - at_ms) * gain + rest
        lacked, rest, at_ms = max(0, lacked - x // per_ms), x % per_ms, start_ms + offset_ms
        rest = rest if lacked else 0
        lacked += amount
        if amount:
            slices[at_ms // 1000] = slices.get(at_ms // 1000, 0) + amount
    assert deficit(ref, slices, 1000, start_ms + 600_000) >= lacked


def test_the_counters_are_looked_at_in_the_order_of_the_questions(policy: Policy) -> None:
    """Answers and states are matched by place."""
    asked = questions(counters_by_tree(policy)["acme"], NOW_MS)
    assert [ref.key for ref in refset("acme", asked).refs] == [question.ref.key for question in asked]
