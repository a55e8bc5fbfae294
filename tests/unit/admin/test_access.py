"""Who gets in, who does not, and what becomes of those who go on trying."""

import asyncio
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.admin import access
from sluicegate.admin.access import ADDRESSES_MAX, FAILURES_MAX, FAILURES_S, Access, Caller, Credential
from sluicegate.core.tenants import Key
from sluicegate.reject import Reject, key_blocked, unauthenticated

KEY = "an-admin-key-of-the-operators"
ORDINARY = "sk-an-ordinary-key"


def credential(secret: str, role: str = "admin", name: str = "admin key") -> Credential:
    return name, role, hashlib.sha256(secret.encode()).digest()


class Door:
    def __init__(self) -> None:
        self.now = 100.0
        self.credentials = [credential(KEY)]
        self.access = Access(lambda: self.credentials, lambda: self.find, lambda: self.now)

    async def find(self, secret: str, address: str) -> Key:
        if secret == "sk-blocked":
            raise key_blocked()
        if secret != ORDINARY:
            raise unauthenticated(True)
        return Key("acme/@k", "k", "acme", (), None, ())

    async def answers(self, secret: str = "wrong", address: str = "192.0.2.1", itself: bool = False) -> str:
        try:
            found = await (self.access.identify_key if itself else self.access.identify)(secret, address)
            return found.id if isinstance(found, Key) else found.role
        except Reject as rejected:
            assert len(secret) < 8 or secret not in rejected.message
            wait = dict(rejected.headers).get(b"retry-after", b"").decode()
            return f"{rejected.status} {rejected.code} {wait}".strip()


async def test_the_admin_key() -> None:
    """Whoever has it is admin, from where it comes is known; nobody else is anything."""
    door = Door()
    assert await door.access.identify(KEY, "192.0.2.1") == Caller("admin key", "admin", "192.0.2.1")
    for secret in ("", "wrong", KEY + " ", KEY[:-1], KEY.upper(), "ä"):
        assert await door.answers(secret) == "401 invalid_admin_key"


async def test_another_key_is_taken_at_once() -> None:
    """After a reload the old one is worth nothing; without any nobody gets in, not even with an empty one."""
    door = Door()
    door.credentials = [credential("another-key-of-the-operators")]
    assert (await door.answers(KEY), await door.answers("another-key-of-the-operators")) == ("401 invalid_admin_key", "admin")
    door.credentials = []
    assert {await door.answers(secret) for secret in ("", KEY, "another-key-of-the-operators")} == {"401 invalid_admin_key"}


async def test_too_many_failures_from_an_address() -> None:
    """After ten within a minute even the right key is not looked at, until that minute is over; other addresses are not concerned."""
    door = Door()
    for _ in range(FAILURES_MAX):
        assert await door.answers() == "401 invalid_admin_key"
        door.now += 1
    assert (await door.answers(), await door.answers(KEY)) == ("429 too_many_failures 50", "429 too_many_failures 50")
    assert await door.answers(KEY, "192.0.2.2") == "admin"
    door.now += FAILURES_S - FAILURES_MAX
    assert (await door.answers(KEY), await door.answers()) == ("admin", "401 invalid_admin_key")


async def test_failures_that_are_spread_do_not_add_up() -> None:
    """Nine a minute, for an hour."""
    door = Door()
    for _ in range(60):
        assert {await door.answers() for _ in range(FAILURES_MAX - 1)} == {"401 invalid_admin_key"}
        door.now += FAILURES_S


async def test_presenting_nothing_is_no_guess() -> None:
    """A browser that asks without a key is told so, however often."""
    door = Door()
    assert {await door.answers("") for _ in range(50)} == {"401 invalid_admin_key"}
    assert await door.answers(KEY) == "admin"


async def test_an_ipv6_network_is_one_address() -> None:
    """Whoever has one address there has 2^64."""
    door = Door()
    for i in range(FAILURES_MAX):
        await door.answers(address=f"2001:db8::{i}%eth0")
    assert (await door.answers(KEY, "2001:db8::ffff")).startswith("429")
    assert await door.answers(KEY, "2001:db8:0:1::1") == "admin"


async def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """From however many addresses somebody tries; the oldest are forgotten."""
    monkeypatch.setattr(access, "ADDRESSES_MAX", 50)
    door = Door()
    for i in range(200):
        await door.answers(address=f"10.0.0.{i}")
    assert len(door.access._failures) == 50 < ADDRESSES_MAX


@given(st.text(), st.text())
async def test_whatever_is_presented(secret: str, address: str) -> None:
    """No text is an error of the gateway's."""
    assert await Door().answers(secret, address) == "401 invalid_admin_key"


async def test_further_keys_have_their_roles() -> None:
    """Each by its own name; nobody else's secret is any of them."""
    door = Door()
    door.credentials += [credential("an-operator-on-call", "operator", "on-call"), credential("a-viewer-of-figures", "viewer", "figures")]
    assert [await door.answers(secret) for secret in (KEY, "an-operator-on-call", "a-viewer-of-figures", "x")] == [
        *("admin", "operator", "viewer"),
        "401 invalid_admin_key",
    ]
    assert (await door.access.identify("an-operator-on-call", "192.0.2.1")).name == "on-call"


async def test_case_101_an_ordinary_key_is_itself_alone() -> None:
    """It is told so, and has not guessed, however often it asks; an administrator has no self."""
    door = Door()
    assert {await door.answers(ORDINARY) for _ in range(20)} == {"403 not_allowed"}
    assert (await door.answers(ORDINARY, itself=True), await door.answers(KEY, itself=True)) == ("acme/@k", "403 not_allowed")
    assert (await door.answers("", itself=True), await door.answers("wrong", itself=True)) == ("401 invalid_api_key",) * 2


async def test_a_blocked_key_has_not_guessed() -> None:
    """Where it is asked for itself; an unknown one has."""
    door = Door()
    assert {await door.answers("sk-blocked", itself=True) for _ in range(20)} == {"401 key_blocked"}
    assert [(await door.answers("x", itself=True)).split()[0] for _ in range(11)] == ["401"] * 10 + ["429"]


async def test_guesses_at_once_are_counted_at_once() -> None:
    """Of many that are looked up together no more are looked at than one after another."""
    door = Door()
    looked_up: list[str] = []

    async def slow(secret: str, address: str) -> Key:
        looked_up.append(secret)
        await asyncio.sleep(0)
        raise unauthenticated(True)

    door.access._find_key = lambda: slow
    answers = await asyncio.gather(*(door.answers(f"guess{n}") for n in range(50)))
    assert len(looked_up) == FAILURES_MAX and sorted(answer.split()[0] for answer in answers) == ["401"] * 10 + ["429"] * 40
