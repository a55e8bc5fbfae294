"""Who gets in, who does not, and what becomes of those who go on trying."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from sluicegate.admin import access
from sluicegate.admin.access import ADDRESSES_MAX, FAILURES_MAX, FAILURES_S, Access, Caller
from sluicegate.reject import Reject

KEY = "an-admin-key-of-the-operators"


class Door:
    def __init__(self) -> None:
        self.now = 100.0
        self.key: SecretStr | None = SecretStr(KEY)
        self.access = Access(lambda: self.key, lambda: self.now)

    def answers(self, secret: str = "wrong", address: str = "192.0.2.1") -> str:
        try:
            return self.access.identify(secret, address).role
        except Reject as rejected:
            assert len(secret) < 8 or secret not in rejected.message
            wait = dict(rejected.headers).get(b"retry-after", b"").decode()
            return f"{rejected.status} {rejected.code} {wait}".strip()


def test_the_admin_key() -> None:
    """Whoever has it is admin, from where it comes is known; nobody else is anything."""
    door = Door()
    assert door.access.identify(KEY, "192.0.2.1") == Caller("admin key", "admin", "192.0.2.1")
    for secret in ("", "wrong", KEY + " ", KEY[:-1], KEY.upper(), "ä"):
        assert door.answers(secret) == "401 invalid_admin_key"


def test_another_key_is_taken_at_once() -> None:
    """After a reload the old one is worth nothing; without any nobody gets in, not even with an empty one."""
    door = Door()
    door.key = SecretStr("another-key-of-the-operators")
    assert (door.answers(KEY), door.answers("another-key-of-the-operators")) == ("401 invalid_admin_key", "admin")
    door.key = None
    assert {door.answers(secret) for secret in ("", KEY, "another-key-of-the-operators")} == {"401 invalid_admin_key"}


def test_too_many_failures_from_an_address() -> None:
    """After ten within a minute even the right key is not looked at, until that minute is over; other addresses are not concerned."""
    door = Door()
    for _ in range(FAILURES_MAX):
        assert door.answers() == "401 invalid_admin_key"
        door.now += 1
    assert (door.answers(), door.answers(KEY)) == ("429 too_many_failures 50", "429 too_many_failures 50")
    assert door.answers(KEY, "192.0.2.2") == "admin"
    door.now += FAILURES_S - FAILURES_MAX
    assert (door.answers(KEY), door.answers()) == ("admin", "401 invalid_admin_key")


def test_failures_that_are_spread_do_not_add_up() -> None:
    """Nine a minute, for an hour."""
    door = Door()
    for _ in range(60):
        assert {door.answers() for _ in range(FAILURES_MAX - 1)} == {"401 invalid_admin_key"}
        door.now += FAILURES_S


def test_presenting_nothing_is_no_guess() -> None:
    """A browser that asks without a key is told so, however often."""
    door = Door()
    assert {door.answers("") for _ in range(50)} == {"401 invalid_admin_key"}
    assert door.answers(KEY) == "admin"


def test_an_ipv6_network_is_one_address() -> None:
    """Whoever has one address there has 2^64."""
    door = Door()
    for i in range(FAILURES_MAX):
        door.answers(address=f"2001:db8::{i}%eth0")
    assert door.answers(KEY, "2001:db8::ffff").startswith("429")
    assert door.answers(KEY, "2001:db8:0:1::1") == "admin"


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """From however many addresses somebody tries; the oldest are forgotten."""
    monkeypatch.setattr(access, "ADDRESSES_MAX", 50)
    door = Door()
    for i in range(200):
        door.answers(address=f"10.0.0.{i}")
    assert len(door.access._failures) == 50 < ADDRESSES_MAX


@given(st.text(), st.text())
def test_whatever_is_presented(secret: str, address: str) -> None:
    """No text is an error of the gateway's."""
    assert Door().answers(secret, address) == "401 invalid_admin_key"
