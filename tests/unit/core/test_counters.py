"""Counters: what shares one, where it is kept, until when."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.core.claims import Ref
from sluicegate.core.counters import (
    NEVER_MS,
    deployment_tree,
    group,
    label,
    marks,
    name,
    of_key,
    quote,
    ref,
    refs,
    room,
    scope_name,
    shadow_room,
    valid_until_ms,
)
from sluicegate.core.limits import Limit, Unit, parse
from sluicegate.core.tenants import NO_CEILING, Counter, Scope
from sluicegate.core.windows import Bucket, Calendar, Fixed, Lifetime, Open, Sliding

KEY = Scope("acme/team-a/@lab", "key", "lab")
NOW_MS = round(datetime(2026, 11, 30, 14, 59, 50, tzinfo=UTC).timestamp() * 1000)


def counters(*written: Any, scope: Scope = KEY) -> tuple[Counter, ...]:
    return group("acme", scope, [parse(one) for one in written])


# -- identity -----------------------------------------------------------------------------------------------------------------------------


def test_limits_of_equal_identity_share_a_counter() -> None:
    """Case 124: a large and a small amount in the same window are one counter that counts once, with the smaller ceiling."""
    (counter,) = counters("$5/day", "$4/day")
    assert counter.ceiling == 4 * 10**9
    assert [limit.text for limit in counter.limits] == ["$5/day", "$4/day"]


def test_a_limit_on_one_model_has_its_own_counter() -> None:
    """Case 124: a small limit on one model does not bind the others, and both count."""
    everything, chat = counters("100k tokens/day", {"amount": "10k", "unit": "tokens", "per": "day", "models": ["chat"]})
    assert (everything.models, everything.ceiling) == (None, 100_000)
    assert (chat.models, chat.ceiling) == (frozenset({"chat"}), 10_000)
    assert everything.key_prefix != chat.key_prefix


def test_the_amount_is_no_part_of_the_identity() -> None:
    """Changing an amount or a burst keeps the count."""
    assert (
        counters("5 tokens/minute")[0].key_prefix
        == counters({"amount": 7, "unit": "tokens", "per": "60s", "window": "bucket", "burst": 9})[0].key_prefix
    )


def test_buckets_on_one_counter_take_the_smallest_capacity_and_the_smallest_refill() -> None:
    """Two buckets of one length bind together: neither admits more than it would alone."""
    (counter,) = counters("300 tokens/minute", {"amount": 200, "unit": "tokens", "per": "minute", "burst": 1000})
    assert (counter.ceiling, counter.amount) == (300, 200)


def test_counters_keep_the_order_of_the_limits() -> None:
    """Claims are matched by position: the order is that of the limits as written."""
    assert [c.unit for c in counters("$5/day", "4 concurrent", "5 tokens/day", "$4/day")] == [Unit.USD, Unit.CONCURRENT, Unit.TOKENS]


@pytest.mark.parametrize(
    ("written", "key"),
    [
        ("20 tokens/minute", "sg1:{acme}:c:acme/team-a/@lab:tokens:bucket-1m"),
        ({"amount": 2, "unit": "requests", "per": "minute", "window": "sliding"}, "sg1:{acme}:c:acme/team-a/@lab:requests:sliding-1m"),
        ("20 tokens/30s", "sg1:{acme}:c:acme/team-a/@lab:tokens:fixed-30s:2026-11-30T14.59.30"),
        ("20 input tokens/hour", "sg1:{acme}:c:acme/team-a/@lab:input_tokens:hour:2026-11-30T14"),
        ("$5/day", "sg1:{acme}:c:acme/team-a/@lab:usd:day:2026-11-30"),
        ("$5/week", "sg1:{acme}:c:acme/team-a/@lab:usd:week:2026-W49"),
        ("$5/month", "sg1:{acme}:c:acme/team-a/@lab:usd:month:2026-11"),
        ("$5/lifetime", "sg1:{acme}:c:acme/team-a/@lab:usd:lifetime"),
        ("4 concurrent", "sg1:{acme}:c:acme/team-a/@lab:concurrent:open"),
        (
            {"amount": 5, "unit": "usd", "per": "week", "tz": "Europe/Berlin", "at": "mon 09:00", "models": ["b:1", "a"]},
            "sg1:{acme}:c:acme/team-a/@lab:usd:week@Europe/Berlin,mon_09.00:a,b%3A1:2026-W49",
        ),
    ],
)
def test_storage_keys(written: Any, key: str) -> None:
    """A key says tree, scope, unit, window, models and the window's label. Its text is the identity: changing it would reset every counter."""
    assert ref(counters(written)[0], NOW_MS).key == key


limits = st.builds(
    Limit,
    st.sampled_from(Unit),
    st.just(5),
    st.sampled_from(
        [
            *(Bucket(60_000), Bucket(3_600_000), Sliding(60_000), Fixed(3_600_000), Lifetime(), Open()),
            *(Calendar("hour"), Calendar("day"), Calendar("day", "Asia/Tokyo"), Calendar("day", at="09:00")),
            *(Calendar("week", at="tue"), Calendar("week", at="tue 09:00")),
        ]
    ),
    models=st.none() | st.frozensets(st.sampled_from(["a", "b", "a,b", "a:b", "day", "2026-11-30", "{a}", "é"]), min_size=1),
)


@given(
    st.lists(limits, min_size=2, max_size=6),
    st.lists(st.sampled_from(["acme", "acme/a", "acme/@a", "acme:tokens", "acme/{x}"]), min_size=2, max_size=2),
)
def test_two_counters_never_share_a_key(written: list[Limit], scopes: list[str]) -> None:
    """Whatever names are made of, keys are equal only if scope, unit, window and models are; and only the tree is in braces."""
    found: dict[str, tuple[object, ...]] = {}
    for scope_id in scopes:
        for counter in group("acme", Scope(scope_id, "team", scope_id), written):
            key = ref(counter, NOW_MS).key
            identity = (scope_id, counter.unit, counter.window, counter.models)
            assert found.setdefault(key, identity) == identity
            assert key.count("{") == key.count("}") == 1


def test_names_in_keys_are_quoted() -> None:
    """Separators of keys are percent-encoded in names; a deployment's tree cannot be an organization's."""
    assert quote("ft:gpt-4o:org::{x},é") == "ft%3Agpt-4o%3Aorg%3A%3A%7Bx%7D%2C%C3%A9"
    assert quote("openai/gpt-4o-mini") == "openai/gpt-4o-mini"
    assert deployment_tree("openai/ft:gpt-4o") == "d/openai/ft%3Agpt-4o"


# -- shadows, reserves, marks -------------------------------------------------------------------------------------------------------------

DAY = {"amount": 100, "unit": "tokens", "per": "day"}
SHADOW = {"mode": "shadow"}


def test_a_shadow_limit_shares_the_counter_of_an_enforced_one() -> None:
    """Case 124: `$5/day` enforced and `$4/day` shadow count once; the ceiling is the enforced amount, whichever is written first."""
    shadow = {"amount": 4, "unit": "usd", "per": "day"} | SHADOW
    for written in (("$5/day", shadow), (shadow, "$5/day")):
        (counter,) = counters(*written)
        assert (counter.ceiling, counter.amount, counter.enforced) == (5 * 10**9, 5 * 10**9, True)
        assert shadow_room(counter, None) == 4 * 10**9
        assert ref(counter, NOW_MS).ceiling == 5 * 10**9


@pytest.mark.parametrize("window", [{"per": "day"}, {"per": "30s"}, {"per": "lifetime"}, {"per": "minute", "window": "sliding"}])
def test_shadow_limits_alone_have_no_ceiling(window: dict[str, str]) -> None:
    """Nothing is ever refused by them, and the count is kept when one is enforced."""
    (counter,) = counters({"amount": 100, "unit": "tokens"} | window | SHADOW)
    assert (counter.ceiling, counter.enforced) == (NO_CEILING, False)
    assert ref(counter, NOW_MS).ceiling == NO_CEILING
    assert (room(counter, "low"), shadow_room(counter, "low")) == (NO_CEILING, 100)
    assert counter.key_prefix == counters({"amount": 7, "unit": "tokens"} | window)[0].key_prefix


def test_a_shadow_bucket_is_a_counter_of_its_own() -> None:
    """Its refill is not that of an enforced bucket of the same length."""
    enforced, shadow = counters("300 tokens/minute", {"amount": 60, "unit": "tokens", "per": "minute"} | SHADOW)
    assert enforced.key_prefix.endswith(":tokens:bucket-1m")
    assert shadow.key_prefix.endswith(":tokens:shadow-bucket-1m")
    assert (ref(enforced, NOW_MS).gain, ref(enforced, NOW_MS).per_ms) == (1, 200)
    assert (ref(shadow, NOW_MS).gain, ref(shadow, NOW_MS).per_ms, ref(shadow, NOW_MS).ceiling) == (1, 1000, NO_CEILING)


@pytest.mark.parametrize("window", [{"per": "minute"}, {"per": "minute", "window": "sliding"}, {"per": "day"}, {}])
def test_a_reserve_is_kept_from_lower_priorities(window: dict[str, str]) -> None:
    """Of every kind of window; nothing is kept from the highest priority, nor from whoever has none."""
    unit = "tokens" if window else "concurrent"
    (counter,) = counters({"amount": 1000, "unit": unit, "reserve": {"normal": "10%", "low": "30%"}} | window)
    found = {priority: ref(counter, NOW_MS, priority) for priority in (None, "high", "normal", "low")}
    assert {one.ceiling for one in found.values()} == {1000}
    assert {priority: one.reserved for priority, one in found.items()} == {None: 0, "high": 0, "normal": 100, "low": 300}


def test_the_tightest_room_binds() -> None:
    """Of limits that share a counter each has its reserve: the least that one of them leaves is what a claimant may use."""
    (counter,) = counters(DAY | {"amount": 1000, "reserve": {"low": "60%"}}, DAY | {"amount": 500, "reserve": {"low": "10%"}})
    assert (ref(counter, NOW_MS, "low").ceiling, ref(counter, NOW_MS, "low").reserved) == (500, 100)
    assert ref(counter, NOW_MS, "normal").reserved == 0


def test_marks_are_amounts_of_what_is_used() -> None:
    """Rounded up, of all limits of a counter, in one ascending list; windows that refill have none."""
    (counter,) = counters(DAY | {"amount": 15, "warn_at": [0.8, 1]}, DAY | {"amount": 12, "warn_at": [1]} | SHADOW)
    assert ref(counter, NOW_MS).marks == (12, 15)
    assert [(mark.amount, mark.share, mark.limit.shadow) for mark in marks(counter)] == [
        (12, 800_000, False),
        (15, 1_000_000, False),
        (12, 1_000_000, True),
    ]
    assert ref(counters("5 tokens/minute")[0], NOW_MS).marks == ref(counters("5 tokens/day")[0], NOW_MS).marks == ()


def test_marks_that_fall_together_are_one() -> None:
    """Of a small limit the highest stands; a limit of 0 is never used."""
    (counter,) = counters(DAY | {"amount": 1, "warn_at": [0.8, 0.95, 1]})
    assert [(mark.amount, mark.share) for mark in marks(counter)] == [(1, 1_000_000)]
    assert ref(counters(DAY | {"amount": 0, "warn_at": [0.8]})[0], NOW_MS).marks == ()


@pytest.mark.parametrize("written", ["5 tokens/day", "5 tokens/minute", "5 tokens/lifetime", "5 concurrent"])
def test_a_storage_key_leads_back_to_its_counter(written: str) -> None:
    """With and without the label of a window; of another configuration's counter nothing is known."""
    (counter,) = counters(written)
    key = ref(counter, NOW_MS).key
    assert of_key(key, {counter.key_prefix: counter}) is counter
    assert of_key(key + "x:y", {counter.key_prefix: counter}) is None


# -- at a time ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "gain", "per_ms"),
    [
        ("300 tokens/minute", 1, 200),
        ("7 tokens/minute", 7, 60_000),
        ("120k tokens/minute", 2, 1),
        ("$1/second", 1_000_000, 1),
        ("0 tokens/minute", 1, 1),
    ],
)
def test_bucket_refill_is_in_lowest_terms(written: str, gain: int, per_ms: int) -> None:
    """A bucket refills `gain` every `per_ms`; one of 0 admits nothing and keeps a refill that can be divided by."""
    found = ref(counters(written)[0], NOW_MS)
    assert (found.kind, found.gain, found.per_ms) == ("b", gain, per_ms)
    assert found.ceiling == counters(written)[0].ceiling


def test_slices_cover_the_period() -> None:
    """60 slices are never shorter than the period, so nothing leaves too early."""
    found = ref(counters({"amount": 5, "unit": "requests", "per": "second", "window": "sliding"})[0], NOW_MS)
    assert (found.kind, found.per_ms) == ("s", 17)


def test_refs_in_order_with_their_spans() -> None:
    """Refs stand in the order of the counters, with the span outside which the ledger must answer `stale_window`."""
    found = refs("acme", counters("$5/day", "4 concurrent", "$9/lifetime"), NOW_MS)
    midnight_ms = NOW_MS // 86_400_000 * 86_400_000
    assert found.tree == "acme"
    assert [one.kind for one in found.refs] == ["w", "o", "w"]
    assert (found.refs[0].start_ms, found.refs[0].end_ms) == (midnight_ms, midnight_ms + 86_400_000)
    assert found.refs[2] == Ref("sg1:{acme}:c:acme/team-a/@lab:usd:lifetime", "w", 9 * 10**9)


def test_valid_until_the_first_window_ends() -> None:
    """Refs are good until the first of their windows ends; without any such window for ever."""
    assert valid_until_ms(counters("$5/day", "20 tokens/30s", "$5/month"), NOW_MS) == NOW_MS // 30_000 * 30_000 + 30_000
    assert valid_until_ms(counters("20 tokens/minute", "$5/lifetime", "4 concurrent"), NOW_MS) == NEVER_MS


@pytest.mark.parametrize("kind", ["global", "organization", "team", "key", "deployment"])
def test_every_kind_of_scope_resets(kind: Any) -> None:
    """Case 20: a 30 s window of any scope is another counter 31 s later, and is the same one until then."""
    (counter,) = counters("5 tokens/30s", scope=Scope("x", kind, "x"))
    now_ms = NOW_MS // 30_000 * 30_000
    assert ref(counter, now_ms).key == ref(counter, now_ms + 29_999).key != ref(counter, now_ms + 31_000).key


def test_a_global_window_ends_when_its_own_length_says() -> None:
    """Case 21: a global limit per hour resets hourly."""
    (counter,) = counters("5 tokens/hour", scope=Scope("*", "global", "*"))
    assert valid_until_ms([counter], NOW_MS) - NOW_MS == 10_000


def test_a_new_window_is_a_new_key() -> None:
    """Case 24: nothing is ever cleared; the next window counts under another key."""
    (counter,) = counters("5 tokens/day")
    assert ref(counter, NOW_MS).key != ref(counter, NOW_MS + 86_400_000).key


# -- in words -----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "scope", "words"),
    [
        ("300 tokens/minute", Scope("acme/@tight", "key", "tight"), "key tight tokens/minute"),
        ("$5/month", Scope("acme", "organization", "acme"), "organization acme usd/month"),
        ("4 concurrent", Scope("acme/a", "team", "a"), "team a concurrent"),
        ("5 tokens/day", Scope("*", "global", "*"), "global tokens/day"),
        (
            {"amount": 5, "unit": "tokens", "per": "day", "models": ["b", "a"]},
            Scope("acme", "organization", "acme"),
            "organization acme tokens/day [a, b]",
        ),
    ],
)
def test_names_of_counters(written: Any, scope: Scope, words: str) -> None:
    """A counter's name says whose it is and what it counts."""
    (counter,) = counters(written, scope=scope)
    assert name(counter) == words
    assert words.startswith(scope_name(scope))


def test_labels_for_metrics_name_nobody() -> None:
    """As many as there are kinds of scope, units and windows, however many tenants there are."""
    assert [label(counter) for counter in counters("5 tokens/minute", "4 concurrent", "$5/day")] == [
        "key tokens/minute",
        "key concurrent",
        "key usd/day",
    ]
