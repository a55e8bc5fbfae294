"""What headers say about waiting."""

import pytest

from sluicegate.core.waits import WAIT_MAX_MS, spent_ms, wait_ms

NOW_MS = 1_796_000_000_000
IN_12_S = b"2026-11-30T00:53:32Z"  # 12 s after the above


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({b"retry-after": b"7"}, 7_000),
        ({b"retry-after": b" 1.5 "}, 1_500),
        ({b"retry-after": b"0"}, 0),
        ({b"retry-after-ms": b"250", b"retry-after": b"7"}, 250),
        ({b"retry-after-ms": b"soon", b"retry-after": b"7"}, 7_000),
        ({b"retry-after": b"Mon, 30 Nov 2026 00:53:50 GMT"}, 30_000),
        ({b"retry-after": b"Mon, 30 Nov 2020 00:00:00 GMT"}, 0),
        ({b"retry-after": b"99999999"}, WAIT_MAX_MS),
        ({b"retry-after": b"-5"}, None),
        ({b"retry-after": b"soon"}, None),
        ({b"retry-after": b"\xff" * 40}, None),
        ({b"x-ratelimit-remaining-requests": b"0", b"x-ratelimit-reset-requests": b"6m0s"}, 360_000),
        ({b"x-ratelimit-remaining-requests": b"0", b"x-ratelimit-reset-requests": b"20ms"}, 20),
        ({b"x-ratelimit-remaining-tokens": b"0", b"x-ratelimit-reset-tokens": b"1.25s"}, 1_250),
        ({b"x-ratelimit-remaining-tokens": b"0", b"x-ratelimit-reset-tokens": b"1h2m3.5s"}, WAIT_MAX_MS),
        ({b"x-ratelimit-remaining-tokens": b"0", b"x-ratelimit-reset-tokens": b"12"}, 12_000),
        ({b"x-ratelimit-remaining-tokens": b"1", b"x-ratelimit-reset-tokens": b"6m0s"}, None),
        ({b"x-ratelimit-reset-tokens": b"6m0s"}, None),
        ({b"x-ratelimit-remaining-tokens": b"0", b"x-ratelimit-reset-tokens": b"later"}, None),
        (
            {
                b"x-ratelimit-remaining-requests": b"0",
                b"x-ratelimit-reset-requests": b"1s",
                b"x-ratelimit-remaining-tokens": b"0",
                b"x-ratelimit-reset-tokens": b"3s",
            },
            3_000,
        ),
        ({b"anthropic-ratelimit-input-tokens-remaining": b"0", b"anthropic-ratelimit-input-tokens-reset": IN_12_S}, 12_000),
        ({b"anthropic-ratelimit-tokens-remaining": b"7", b"anthropic-ratelimit-tokens-reset": IN_12_S}, None),
        ({b"anthropic-ratelimit-requests-remaining": b"0", b"anthropic-ratelimit-requests-reset": b"2026-11-30T00:53:32"}, 12_000),
        ({b"anthropic-ratelimit-requests-remaining": b"0", b"anthropic-ratelimit-requests-reset": b"whenever"}, None),
        (
            {b"retry-after": b"3", b"anthropic-ratelimit-tokens-remaining": b"0", b"anthropic-ratelimit-tokens-reset": IN_12_S},
            3_000,
        ),
    ],
)
def test_the_first_that_is_there_counts(headers: dict[bytes, bytes], expected: int | None) -> None:
    """In the documented order; limits that have something left, and what is no time, are as if they were not there."""
    assert wait_ms(headers, NOW_MS) == expected


def test_a_good_answer_may_say_that_a_limit_is_spent() -> None:
    """Only limits without anything left count; `retry-after` is not looked at."""
    spent = {b"x-ratelimit-remaining-requests": b"0", b"x-ratelimit-reset-requests": b"2s"}
    assert spent_ms(spent | {b"retry-after": b"9"}, NOW_MS) == 2_000
    assert spent_ms({b"x-ratelimit-remaining-requests": b"1", b"x-ratelimit-reset-requests": b"2s"}, NOW_MS) is None
