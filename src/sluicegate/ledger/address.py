"""The address of a Redis ledger: one server, a Redis Cluster, or a service that Sentinels watch over.

    redis://[[user]:password@]host[:port][/db]                      unix://[[user]:password@]/path[?db=n]
    redis+cluster://[[user]:password@]host[:port][,host[:port]...]
    redis+sentinel://[[user]:password@]host[:port][,host[:port]...]/service[/db]

`rediss` instead of `redis` is TLS, with `?ca_file=` for an authority of one's own. User and password are those of the servers that keep data;
Sentinels have `?sentinel_user=` and `?sentinel_password=`. ValueError says what is wrong, and never shows a credential; neither does `str()`.
"""

import re
from typing import Literal
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import msgspec

PORT, SENTINEL_PORT = 6379, 26379


class Address(msgspec.Struct, frozen=True):
    """Where a Redis is and how to enter it."""

    host: str = ""
    port: int = PORT
    path: str = ""  # of a unix socket, instead of host and port
    db: int = 0
    username: str = ""
    password: str = ""
    tls: bool = False
    ca_file: str = ""  # "": the system's

    @classmethod
    def parse(cls, url: str) -> "Address":
        """Of one server."""
        parts = _split(url)
        try:
            port = parts.port or PORT
        except ValueError:  # its own message may show a piece of a password that is not percent-encoded
            raise ValueError("the port of a Redis is a number below 65536; a password in its address is percent-encoded") from None
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        username, password = unquote(parts.username or ""), unquote(parts.password or "")
        known = {"redis": set[str](), "rediss": {"ca_file"}, "unix": {"db"}}.get(parts.scheme)
        if known is None:
            raise ValueError("the address of a Redis begins with redis://, rediss:// or unix://")
        if query.keys() - known:
            raise ValueError(f"unknown in a {parts.scheme}:// address: {', '.join(sorted(query.keys() - known))}")
        db = query.get("db", "") if parts.scheme == "unix" else parts.path.strip("/")
        if not (db or "0").isdecimal():  # not shown, it may be a piece of a password
            raise ValueError("the database of a Redis is a number; a password in its address is percent-encoded")
        if parts.scheme == "unix":
            if not parts.path:
                raise ValueError("a unix:// address needs a path")
            return cls(path=unquote(parts.path), db=int(db or 0), username=username, password=password)
        return cls(
            host=parts.hostname or "127.0.0.1",
            port=port,
            db=int(db or 0),
            username=username,
            password=password,
            tls=parts.scheme == "rediss",
            ca_file=query.get("ca_file", ""),
        )

    def at(self, host: str, port: int) -> "Address":
        """Another server, entered in the same way."""
        return msgspec.structs.replace(self, host=host, port=port)

    def __str__(self) -> str:
        if self.path:
            return f"unix://{self.path}?db={self.db}"
        return f"{'rediss' if self.tls else 'redis'}://{self.host}:{self.port}/{self.db}"


class Place(msgspec.Struct, frozen=True):
    """What a ledger's URL names."""

    kind: Literal["server", "cluster", "sentinel"]
    asked: tuple[Address, ...]  # the server; some servers of the cluster; the Sentinels
    entry: Address  # how every server that keeps data is entered
    service: str = ""  # what the Sentinels call it

    @classmethod
    def parse(cls, url: str) -> "Place":
        """Any of the forms above."""
        scheme, _, kind = url.partition("://")[0].partition("+")
        if not kind:
            address = Address.parse(url)
            return cls("server", (address,), address)
        if kind not in ("cluster", "sentinel") or scheme not in ("redis", "rediss"):
            raise ValueError("the address of several Redis servers begins with redis+cluster://, redis+sentinel:// or the same with rediss")
        authority = re.split(r"[/?#]", url.partition("://")[2], maxsplit=1)[0]
        credentials, at, hosts = authority.rpartition("@")
        parts = _split(url.replace(authority, f"{credentials}{at}one", 1))  # urlsplit takes one host, and looks at its brackets
        if not all(hosts.split(",")):
            raise ValueError(f"redis+{kind}:// needs hosts, as in redis+{kind}://one:{PORT if kind == 'cluster' else SENTINEL_PORT},two")
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        user, password = query.pop("sentinel_user", ""), query.pop("sentinel_password", "")
        service, _, db = parts.path.strip("/").partition("/")
        if kind == "cluster" and (service or user or password):
            raise ValueError("a Redis Cluster has no database number, no service and no Sentinels")
        if kind == "sentinel" and not service:
            raise ValueError("redis+sentinel:// needs the name of the service behind the hosts, as in redis+sentinel://host:26379/mymaster")
        entry = Address.parse(f"{scheme}://{credentials}{at}{hosts.partition(',')[0]}/{db}")
        known = {"ca_file"} if entry.tls else set[str]()
        if query.keys() - known:
            raise ValueError(f"unknown in a {scheme}+{kind}:// address: {', '.join(sorted(query.keys() - known))}")
        entry = msgspec.structs.replace(entry, ca_file=query.get("ca_file", ""))
        one = entry if kind == "cluster" else msgspec.structs.replace(entry, username=user, password=password, db=0)
        asked = tuple(_host(one, host, PORT if kind == "cluster" else SENTINEL_PORT) for host in hosts.split(","))
        return cls("cluster" if kind == "cluster" else "sentinel", asked, entry, unquote(service))

    def __str__(self) -> str:
        if self.kind == "server":
            return str(self.entry)
        hosts = ",".join(f"{address.host}:{address.port}" for address in self.asked)
        tail = f"/{self.service}/{self.entry.db}" if self.kind == "sentinel" else ""
        return f"{'rediss' if self.entry.tls else 'redis'}+{self.kind}://{hosts}{tail}"


def _split(url: str) -> SplitResult:
    parts = urlsplit(url)
    if "@" in parts.query + parts.fragment + ("" if parts.scheme == "unix" else parts.path):  # what is before it must not be shown
        raise ValueError("a password in the address of a Redis is percent-encoded")
    return parts


def _host(like: Address, host: str, port: int) -> Address:
    """One of the hosts of a list, with the port that it has or the usual one."""
    given = Address.parse(f"redis://{host}")
    return like.at(given.host, given.port if urlsplit(f"//{host}").port else port)
