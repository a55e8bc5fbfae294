"""Who is asking."""

import hashlib
from ipaddress import ip_network

import pytest

from sluicegate import auth
from sluicegate.auth import Credentials, Entry
from sluicegate.core.tenants import Key
from sluicegate.reject import Reject

KEY = Key("acme/@k", "k", "acme", (), None, ())
OTHER = Key("acme/@other", "other", "acme", (), None, ())
KNOWN = {hashlib.sha256(b"sk-1").digest(): KEY}
BEARER = {b"authorization": b"Bearer sk-2"}


class Asked:
    """A directory with one key."""

    def __init__(self, entry: Entry | None) -> None:
        self.entry = entry
        self.count = 0

    async def find(self, digest: bytes) -> Entry | None:
        self.count += 1
        return self.entry if digest == hashlib.sha256(b"sk-2").digest() else None


@pytest.mark.parametrize("presented", [b"Bearer sk-1", b"bearer sk-1", b"BEARER   sk-1 "])
async def test_a_known_secret_is_found(presented: bytes) -> None:
    """The scheme's case and blanks around the secret do not matter, the first time and again; then it is known at once."""
    credentials = Credentials(KNOWN)
    assert credentials.known({b"authorization": presented}) is None
    assert await credentials.find({b"authorization": presented}, "") is KEY
    assert credentials.known({b"authorization": presented}) is KEY


async def test_the_header_of_anthropic_s_clients() -> None:
    """`x-api-key` has the secret alone; a bearer token goes before it."""
    credentials = Credentials(KNOWN)
    assert await credentials.find({b"x-api-key": b"sk-1"}, "") is KEY
    assert credentials.known({b"x-api-key": b"sk-1"}) is KEY
    assert credentials.known({b"x-api-key": b"sk-1", b"authorization": b"Bearer sk-2"}) is None


@pytest.mark.parametrize("presented", [b"", b"sk-1", b"Bearer", b"Bearer ", b"Basic sk-1", b"Bearer sk-2", b"Bearer sk-1x", b"Bearer \xff"])
async def test_anything_else_is_401(presented: bytes) -> None:
    """What is no known secret under the bearer scheme is refused, whatever was presented before."""
    credentials = Credentials(KNOWN)
    await credentials.find({b"authorization": b"Bearer sk-1"}, "")
    with pytest.raises(Reject) as refused:
        await credentials.find({b"authorization": presented} if presented else {}, "")
    assert (refused.value.status, refused.value.code) == (401, "invalid_api_key")


async def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many ways a secret is presented in."""
    monkeypatch.setattr(auth, "PRESENTED_MAX", 4)
    credentials = Credentials(KNOWN)
    for blanks in range(20):
        assert await credentials.find({b"authorization": b"Bearer" + b" " * (blanks + 1) + b"sk-1"}, "") is KEY
    assert len(credentials._presented) <= 4


async def test_a_key_of_the_directory() -> None:
    """It is asked for once, until something changes; keys of the file are not."""
    asked = Asked(Entry(OTHER))
    credentials = Credentials(KNOWN, find=asked.find)
    await credentials.find({b"authorization": b"Bearer sk-1"}, "")
    assert asked.count == 0
    assert await credentials.find(BEARER, "") is OTHER
    assert credentials.known(BEARER) is OTHER
    credentials.forget()
    assert credentials.known(BEARER) is None
    with pytest.raises(Reject):
        await credentials.find({b"authorization": b"Bearer sk-3"}, "")
    assert asked.count == 2


@pytest.mark.parametrize(
    ("entry", "peer", "status", "code"),
    [
        (Entry(OTHER, blocked=True), "10.0.0.1", 401, "key_blocked"),
        (Entry(OTHER, expires_ms=1000), "10.0.0.1", 401, "key_expired"),
        (Entry(OTHER, networks=((ip_network("10.0.0.0/8"),), (ip_network("10.1.0.0/16"),))), "10.0.0.1", 403, "address_not_allowed"),
        (Entry(OTHER, networks=((ip_network("10.0.0.0/8"),),)), "", 403, "address_not_allowed"),
        (Entry(OTHER, expires_ms=1001), "10.0.0.1", 200, ""),
        (Entry(OTHER, networks=((ip_network("192.0.2.0/24"), ip_network("10.0.0.0/8")),)), "::ffff:10.0.0.1", 200, ""),
        (Entry(OTHER, networks=((ip_network("2001:db8::/32"),),)), "2001:db8::1", 200, ""),
    ],
)
async def test_what_binds_a_key_is_looked_at_with_each_request(entry: Entry, peer: str, status: int, code: str) -> None:
    """Its time and its networks; nothing of that is remembered by the header."""
    credentials = Credentials({}, find=Asked(entry).find, time_ms=lambda: 1000)
    try:
        assert await credentials.find(BEARER, peer) is OTHER
        assert status == 200
    except Reject as refused:
        assert (refused.status, refused.code) == (status, code)
    assert credentials.known(BEARER) is None


async def test_a_blocked_key_of_the_file() -> None:
    """The holder of the secret is told."""
    with pytest.raises(Reject) as refused:
        await Credentials({}, KNOWN).find({b"authorization": b"Bearer sk-1"}, "")
    assert refused.value.code == "key_blocked"
