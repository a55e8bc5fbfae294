"""W3C trace context: what is taken of a client's, and what goes on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.core.trace_context import Parent, lines, read, sampled

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
VALID = f"00-{TRACE}-{SPAN}-01"
PARENT = Parent(int(TRACE, 16), int(SPAN, 16), True)


def said(parent: str, state: str | None = None) -> Parent | None:
    headers = {b"traceparent": parent.encode("latin-1")}
    return read(headers if state is None else headers | {b"tracestate": state.encode("latin-1")})


def test_a_valid_parent_is_taken() -> None:
    """Trace, span and whether it is kept."""
    assert said(VALID) == PARENT
    assert said(VALID[:-2] + "00") == Parent(PARENT.trace_id, PARENT.span_id, False)


@pytest.mark.parametrize("flags", ["03", "ff", "81"])
def test_flags_that_are_not_known_say_nothing(flags: str) -> None:
    """Only the first bit counts."""
    assert said(VALID[:-2] + flags) == PARENT


def test_a_later_version_may_say_more() -> None:
    """What comes behind the fields that are known is left aside; in this version nothing may."""
    for more in ("", "-", "-what-ever, it=is"):
        assert said(f"cc-{TRACE}-{SPAN}-01{more}") == PARENT
    assert said(f"cc-{TRACE}-{SPAN}-01.x") is None
    assert said(VALID + "-01") is None


@pytest.mark.parametrize(
    "hostile",
    [
        *("", "00", VALID[:-1], VALID + "0", VALID.upper(), " " + VALID, VALID + "\r\nx: y", f"{VALID},{VALID}", f"ff-{TRACE}-{SPAN}-01"),
        *(f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE}-{SPAN}-0g", f"0-{TRACE}-{SPAN}-01", f"00_{TRACE}-{SPAN}-01"),
        *(f"00-{TRACE[:-1]}é-{SPAN}-01", f"00-{TRACE}-{SPAN}-01\0", "00-" * 20_000, f"cc-{TRACE}-{SPAN}-01-" + "x" * 100_000, "x" * 100_000),
    ],
)
def test_what_is_not_valid_is_as_if_it_had_not_been_sent(hostile: str) -> None:
    """Wrong lengths, letters, zeros, a version that is none, more than one: and its state goes with it."""
    assert said(hostile, "a=1") is None


@given(st.binary(max_size=80))
def test_any_bytes_can_be_said(data: bytes) -> None:
    """Nothing raises; what is taken is what goes on."""
    found = read({b"traceparent": data, b"tracestate": data})
    if found is not None:
        again = dict(line.split(b": ", 1) for line in lines(found.trace_id, found.span_id, found.sampled, found.state).split(b"\r\n")[1:])
        assert read(again) == found


@pytest.mark.parametrize("state", ["a=1", "a=1,b=2", "a=1, b=2 ,", "tenant@system=x y!", "0a@b=~", ",a=1", "a=" + "x" * 256])
def test_a_valid_state_goes_on_as_it_came(state: str) -> None:
    """Members, empty ones too, and blanks around them."""
    found = said(VALID, state)
    assert found is not None
    assert found.state == state.encode()
    assert lines(1, 2, True, found.state).endswith(b"\r\ntracestate: " + state.encode())


@pytest.mark.parametrize(
    "state",
    [
        "a",
        "=1",
        "A=1",
        "a=1,a=2",
        "a=",
        "a=1\t2",
        "a=1;",
        "a=é",
        "a=1=2",
        "a=" + "x" * 257,
        ",".join(f"k{i}=1" for i in range(33)),
        "a=" + "x," * 600,
    ],
)
def test_a_state_that_is_not_valid_is_left_out(state: str) -> None:
    """The parent counts all the same. (`a=1;` is valid: a semicolon may be in a value.)"""
    found = said(VALID, state)
    assert found is not None
    assert found.state == (state.encode() if state == "a=1;" else b"")


def test_what_goes_on_is_padded() -> None:
    """Ids have all their digits; without a state there is no second line."""
    assert lines(1, 2, True, b"") == b"\r\ntraceparent: 00-00000000000000000000000000000001-0000000000000002-01"
    assert lines(1, 2, False, b"").endswith(b"-00")


def test_a_share_is_decided_by_the_trace_alone() -> None:
    """None at 0, all at 1, and whoever is kept at a share is kept at every larger one."""
    ids = [n * 0x9E37_79B9_7F4A_7C15 % 2**128 for n in range(1, 2001)]
    assert not any(sampled(n, 0.0) for n in ids)
    assert all(sampled(n, 1.0) for n in ids)
    tenth = {n for n in ids if sampled(n, 0.1)}
    assert 150 < len(tenth) < 250
    assert tenth <= {n for n in ids if sampled(n, 0.3)}
