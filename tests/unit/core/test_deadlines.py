"""What a client's `timeout` header says."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.core.deadlines import asked_s

SAID = {
    b"30": 30, b"2.5": 2.5, b"0.001": 0.001, b"30s": 30, b"30 s": 30, b" 30 ": 30, b"1500ms": 1.5, b"1500 MS": 1.5, b"2m": 120, b"0.5m": 30,
    b"999999999": 999_999_999,
}  # fmt: skip
NONSENSE = [
    b"",
    b"0",
    b"0.0",
    b"0ms",
    b"-5",
    b"+5",
    b"1e3",
    b"inf",
    b"nan",
    b"None",
    b"soon",
    b"5h",
    b"5 5",
    b"5, 5",
    b"1.",
    b".5",
    b"9" * 10,
    b"\xd9\xa3",
]


@pytest.mark.parametrize(("value", "seconds"), SAID.items())
def test_a_time_is_read(value: bytes, seconds: float) -> None:
    """Seconds, or a number with its unit."""
    assert asked_s(value) == pytest.approx(seconds)


@pytest.mark.parametrize("value", NONSENSE)
def test_nonsense_says_nothing(value: bytes) -> None:
    """So does nothing at all: some clients send 0 for no limit."""
    assert asked_s(value) == inf


@given(st.binary(max_size=30))
def test_any_header_can_be_read(value: bytes) -> None:
    """Whatever it is: a time above zero, or none."""
    assert asked_s(value) > 0
