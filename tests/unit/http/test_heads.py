"""Heads that come again."""

import pytest

from sluicegate.http.heads import Head

BEFORE, AFTER = b"POST /x HTTP/1.1\r\nHost: x\r\ncontent-Length: \t ", b"\r\nX-A: content-length: 7\r\n\r\n"
FIELDS = {b"host": b"x", b"content-length": b"12", b"x-a": b"content-length: 7"}


def head() -> Head:
    found = Head.of(BEFORE + b"12" + AFTER + b"{}", "POST", "/x", b"q", FIELDS, True)
    assert found is not None
    return found


@pytest.mark.parametrize("digits", [b"12", b"0", b"007", b"1" * 15])
def test_a_head_is_known_with_any_length_of_its_body(digits: bytes) -> None:
    """What it says is what it said, but for the length; the body is what comes behind it, all of it or not."""
    data = BEFORE + digits + AFTER
    for body in (b"", b"{", b"\r\n\r\n"):
        assert head().begins(data + body) == ({**FIELDS, b"content-length": digits}, len(data))
    assert FIELDS[b"content-length"] == b"12"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        BEFORE,
        BEFORE + b"12",
        BEFORE + b"12" + AFTER[:-1],
        BEFORE + AFTER,
        BEFORE + b"1" * 16 + AFTER,
        BEFORE + b"+1" + AFTER,
        BEFORE + b"1 2" + AFTER,
        BEFORE + "\u0661".encode() + AFTER,
        BEFORE + b"12" + AFTER.replace(b"X-A", b"X-B"),
        BEFORE + b"12\r\nX-B: 1" + AFTER,
        (BEFORE + b"12" + AFTER).lower(),
        b"\r\n" + BEFORE + b"12" + AFTER,
    ],
)
def test_any_other_head_is_not(data: bytes) -> None:
    """Not even one that says the same in other bytes: what it says is the parser's to find out."""
    assert head().begins(data) is None


@pytest.mark.parametrize(
    "data",
    [b"", BEFORE + b"12", BEFORE + b"12 " + AFTER, b"POST /x HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /x HTTP/1.1\r\n\r\ncontent-length: 12\r\n\r\n"],
)
def test_what_is_not_whole_or_has_no_length_is_not_kept(data: bytes) -> None:
    """Only a head whose body has a length that is said in it can be told from the next one."""
    assert Head.of(data, "POST", "/x", b"", FIELDS, True) is None
