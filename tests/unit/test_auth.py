"""Who is asking."""

import hashlib

import pytest

from sluicegate import auth
from sluicegate.auth import Credentials
from sluicegate.core.tenants import Key
from sluicegate.reject import Reject

KEY = Key("acme/@k", "k", "acme", (), None, ())
KNOWN = {hashlib.sha256(b"sk-1").digest(): KEY}


@pytest.mark.parametrize("presented", [b"Bearer sk-1", b"bearer sk-1", b"BEARER   sk-1 "])
def test_a_known_secret_is_found(presented: bytes) -> None:
    """The scheme's case and blanks around the secret do not matter, the first time and again."""
    credentials = Credentials(KNOWN)
    assert credentials.identify({b"authorization": presented}) is KEY
    assert credentials.identify({b"authorization": presented}) is KEY


@pytest.mark.parametrize("presented", [b"", b"sk-1", b"Bearer", b"Bearer ", b"Basic sk-1", b"Bearer sk-2", b"Bearer sk-1x", b"Bearer \xff"])
def test_anything_else_is_401(presented: bytes) -> None:
    """What is no known secret under the bearer scheme is refused, whatever was presented before."""
    credentials = Credentials(KNOWN)
    credentials.identify({b"authorization": b"Bearer sk-1"})
    with pytest.raises(Reject) as refused:
        credentials.identify({b"authorization": presented} if presented else {})
    assert (refused.value.status, refused.value.code) == (401, "invalid_api_key")


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many ways to present one secret do not fill the memory."""
    monkeypatch.setattr(auth, "PRESENTED_MAX", 4)
    credentials = Credentials(KNOWN)
    for blanks in range(20):
        assert credentials.identify({b"authorization": b"Bearer" + b" " * (blanks + 1) + b"sk-1"}) is KEY
    assert len(credentials._presented) <= 4
