"""What a hold's tag tells of it once nobody has settled it."""

import pytest

from sluicegate.core.claims import Swept
from sluicegate.core.expired import correction, read, tag, tag_beside
from sluicegate.core.record import Spent

TAG = tag("req_7", "acme/team/@k", "up/small:1", "chat", 120, 1_800_000_000_000)


def swept(*charged: tuple[str, int], of: str = TAG) -> Swept:
    return Swept("req_7.1", of, 50, 20, tuple((f"sg1:{{acme}}:c:acme/team:{unit}", amount) for unit, amount in charged))


@pytest.mark.parametrize(("charge_seen", "output"), [(False, 50), (True, 20)])
def test_an_expired_hold_tells_its_usage(charge_seen: bool, output: int) -> None:
    """Input at its bound, output as it was charged, cost and requests from their counters; all of it now, in windows that run."""
    found = read(swept(("usd:month:2026-11", 900), ("usd:day:x", 800), ("requests:bucket-1m", 0)), charge_seen, 5_000)
    assert (found.request_id, found.key_id, found.deployment) == ("req_7", "acme/team/@k", "up/small:1")
    assert found.spent == Spent("acme/team/@k", "chat", "up/small:1", 5_000, 0, 1, 120, output, 900)


def test_without_counters_of_them_a_request_and_no_cost_are_told() -> None:
    """The least that is known."""
    assert read(swept(("tokens:day:x", 170)), False, 1).spent == Spent("acme/team/@k", "chat", "up/small:1", 1, 1, 1, 120, 50, 0)


def test_a_tag_of_an_earlier_version_tells_the_same() -> None:
    """It does not have when the request came."""
    assert read(swept(("tokens:day:x", 170), of=TAG.rpartition(" ")[0]), False, 1) == read(swept(("tokens:day:x", 170)), False, 1)


def test_the_hold_beside_another_tells_no_usage() -> None:
    """That of the deployment's own limits: the key's tells it."""
    found = read(swept(("tokens:day:x", 9), of=tag_beside("req_7", "up/small:1")), False, 1)
    assert (found.request_id, found.key_id, found.deployment, found.spent) == ("req_7", "", "up/small:1", None)
    assert correction(swept(of="req_7 up/small:1"), Spent("k", "m", "d", 1, 1, 1, 1, 1, 1), False) is None


@pytest.mark.parametrize(("output", "taken_back"), [(30, 30), (70, 50)])
def test_a_late_settle_does_not_count_twice(output: int, taken_back: int) -> None:
    """Of each figure the higher one stands: what the expiry told, or what was used beyond."""
    actual = Spent("acme/team/@k", "chat", "up/small:1", 3_000, 1, 1, 100, output, 700)
    found = correction(swept(("usd:day:x", 900)), actual, False)
    assert found == Spent("acme/team/@k", "chat", "up/small:1", 3_000, -1, -1, -100, -taken_back, -700)
