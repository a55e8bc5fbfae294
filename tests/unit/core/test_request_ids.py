"""Ids of requests tell when they came."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.core.request_ids import request_id, time_ms_of


@given(st.integers(0, 2**43), st.text("0123456789abcdef", min_size=1), st.integers(0, 2**40))
def test_an_id_tells_the_time(time_ms: int, worker: str, number: int) -> None:
    """Whoever made it."""
    assert time_ms_of(request_id(time_ms, worker, number)) == time_ms


def test_ids_of_one_worker_differ() -> None:
    """Also in one millisecond."""
    assert len({request_id(7, "ab", number) for number in range(300)}) == 300


@pytest.mark.parametrize(
    "text", ["", "req_", "r1", "req_0123456789ab00000001", "req_1a19467e87b_", "req_1a19467e8x!_ab1", "x_1a19467e87b_ab1", "req_1_ab1"]
)
def test_texts_that_tell_no_time(text: str) -> None:
    """Ids of older versions, and what is none."""
    assert time_ms_of(text) is None
