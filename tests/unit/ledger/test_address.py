"""What the URL of a Redis ledger says, and what about it is wrong; neither ever shows a credential."""

import pytest

from sluicegate.ledger.address import Address, Place


@pytest.mark.parametrize(
    ("url", "address", "shown"),
    [
        ("redis://localhost", Address(host="localhost"), "redis://localhost:6379/0"),
        ("redis://", Address(host="127.0.0.1"), "redis://127.0.0.1:6379/0"),
        ("redis://[::1]:7000/3", Address(host="::1", port=7000, db=3), "redis://::1:7000/3"),
        ("redis://:p%40%2Fss@h", Address(host="h", password="p@/ss"), "redis://h:6379/0"),
        ("redis://user:pw@h:1/2", Address(host="h", port=1, db=2, username="user", password="pw"), "redis://h:1/2"),
        ("rediss://h?ca_file=/ca.pem", Address(host="h", tls=True, ca_file="/ca.pem"), "rediss://h:6379/0"),
        ("unix:///run/redis.sock", Address(path="/run/redis.sock"), "unix:///run/redis.sock?db=0"),
        ("unix://:pw@/run/r.sock?db=4", Address(path="/run/r.sock", db=4, password="pw"), "unix:///run/r.sock?db=4"),
    ],
)
def test_addresses(url: str, address: Address, shown: str) -> None:
    """What a URL says, and that no credential is shown."""
    assert Address.parse(url) == address
    assert str(address) == shown


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://h", "begins with"),
        ("redis://h/nine", "a number"),
        ("redis://h?ca_file=x", "ca_file"),
        ("rediss://h?timeout=1", "timeout"),
        ("unix://?db=1", "path"),
        ("redis://:se/cret@h", "percent-encoded"),
        ("redis://:12/cret@h", "percent-encoded"),
        ("redis://:12?cret@h", "percent-encoded"),
        ("redis://:12#cret@h", "percent-encoded"),
        ("redis://h:99999", "65536"),
    ],
)
def test_wrong_addresses(url: str, message: str) -> None:
    """Named, and without a piece of a password."""
    for parse in (Address.parse, Place.parse):
        with pytest.raises(ValueError, match=message) as error:
            parse(url)
        assert "cret" not in str(error.value)


def test_one_server() -> None:
    """Is asked nothing about others."""
    place = Place.parse("rediss://user:pw@h:1/2")
    assert (place.kind, place.asked, place.entry, str(place)) == ("server", (place.entry,), Address.parse("rediss://user:pw@h:1/2"), "rediss://h:1/2")


def test_a_cluster() -> None:
    """Some of its servers; all are entered alike."""
    place = Place.parse("rediss+cluster://user:p%40%2C@one:7000,two,[::1]:7001?ca_file=/ca.pem")
    entry = Address("one", 7000, username="user", password="p@,", tls=True, ca_file="/ca.pem")
    assert (place.kind, place.service) == ("cluster", "")
    assert place.asked == (entry, entry.at("two", 6379), entry.at("::1", 7001))
    assert place.entry == entry
    assert str(place) == "rediss+cluster://one:7000,two:6379,::1:7001"


def test_sentinels() -> None:
    """Have credentials of their own, and a database of nothing: user, password and database are those of the servers."""
    place = Place.parse("redis+sentinel://user:pw@one,two:5/my%20master/3?sentinel_user=s&sentinel_password=other")
    assert (place.kind, place.service) == ("sentinel", "my master")
    assert place.asked == (Address("one", 26379, username="s", password="other"), Address("two", 5, username="s", password="other"))
    assert (place.entry.username, place.entry.password, place.entry.db) == ("user", "pw", 3)
    assert str(place) == "redis+sentinel://one:26379,two:5/my master/3"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis+ring://h", "begins with"),
        ("unix+cluster://h", "begins with"),
        ("redis+cluster://h/3", "no database number"),
        ("redis+cluster://h?sentinel_password=cret", "no Sentinels"),
        ("redis+cluster://", "needs hosts, as in .*://one:6379,two"),
        ("redis+cluster://a,,b", "needs hosts"),
        ("redis+cluster://a,b:x", "65536"),
        ("redis+cluster://u:se/cret@a,b", "percent-encoded"),
        ("redis+cluster://a?ca_file=x", "ca_file"),
        ("redis+sentinel://h", "needs the name of the service"),
        ("redis+sentinel://h/service/nine", "a number"),
        ("redis+sentinel://u:12/cret@h/service", "percent-encoded"),
    ],
)
def test_wrong_addresses_of_several(url: str, message: str) -> None:
    """Named, and without a piece of a password."""
    with pytest.raises(ValueError, match=message) as error:
        Place.parse(url)
    assert "cret" not in str(error.value)
