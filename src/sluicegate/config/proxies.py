"""HTTP proxies: what a `proxy:` field says, and which one the environment names for a provider.

HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY, as curl reads them (https://curl.se/docs/manpage.html#ENVIRONMENT): the lower-case name goes first,
an empty variable is none, and in NO_PROXY a name stands for itself and for all names below it. Beyond curl, HTTP_PROXY counts in capitals too, since
this is no CGI program, and an entry of NO_PROXY may have a port. Loopback is nothing special: it goes through the proxy unless it is listed. Errors
never quote a value: it may have a password in it.
"""

import base64
import ipaddress
import re
from collections.abc import Mapping
from typing import Literal
from urllib.parse import unquote_to_bytes, urlsplit

from sluicegate.core.tenants import Proxy

_PORTS = {"http": 80, "https": 443}
_BLANK = re.compile(r"[\s,]+")
_FORM = "must be a proxy such as http://user:password@host:3128 or https://host, or off"


class ProxyError(ValueError):
    """What is no proxy; the message begins with "must" or names the variable."""


def read_proxy(value: object) -> Proxy | Literal["off"] | None:
    """The value of a `proxy:` field. None: nothing is said. Raises ProxyError."""
    if value is None or value == "":
        return None
    if value is False or value == "off":
        return "off"
    if not isinstance(value, str):
        raise ProxyError(_FORM)
    return parse_proxy(value)


def parse_proxy(text: str) -> Proxy:
    """A proxy's URL; http where it has no scheme. Raises ProxyError."""
    url = text.strip()
    if "://" not in url:
        url = f"http://{url}"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ProxyError(_FORM) from None
    if parts.scheme not in _PORTS:
        raise ProxyError(f"{_FORM}; {parts.scheme[:20]} proxies are not supported")
    host = parts.hostname or ""
    odd = not host or port == 0 or parts.path not in ("", "/") or parts.query or parts.fragment
    if odd or not url.isprintable() or " " in url or not _sendable(host):
        raise ProxyError(_FORM)
    authorization = b""
    if parts.username is not None:
        credentials = unquote_to_bytes(parts.username) + b":" + unquote_to_bytes(parts.password or "")
        authorization = b"Basic " + base64.b64encode(credentials)
    return Proxy(parts.scheme == "https", host, port or _PORTS[parts.scheme], authorization)


def proxy_from(environ: Mapping[str, str], base_url: str) -> Proxy | None:
    """The environment's proxy for a URL. Raises ProxyError."""
    try:
        parts = urlsplit(base_url)
        host, port = parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError:
        return None  # told elsewhere
    for name in (f"{parts.scheme}_proxy", "all_proxy"):
        for spelled in (name, name.upper()):
            if text := environ.get(spelled, "").strip():
                if _is_exempt(host, port, environ.get("no_proxy") or environ.get("NO_PROXY") or ""):
                    return None
                try:
                    return parse_proxy(text)
                except ProxyError as error:
                    raise ProxyError(f"comes from the variable {spelled}, which {error}") from None
    return None


def _is_exempt(host: str, port: int, no_proxy: str) -> bool:
    return any(entry == "*" or _covers(entry.lower(), host.lower().rstrip("."), port) for entry in _BLANK.split(no_proxy) if entry)


def _covers(entry: str, host: str, port: int) -> bool:
    """Whether one entry of NO_PROXY is meant for a host. What cannot be read covers nothing."""
    found = re.fullmatch(r"\[([^\]]+)\](?::([0-9]{1,5}))?|([^:]+)(?::([0-9]{1,5}))?|([^\[\]]+)", entry)
    if found is None:
        return False
    name = found[1] or found[3] or found[5]  # the last is an IPv6 address without brackets
    wanted_port = found[2] or found[4]
    if wanted_port is not None and int(wanted_port) != port:
        return False
    address = _address(host)
    if address is None:
        name = name.removeprefix("*").strip(".")
        return bool(name) and (host == name or host.endswith(f".{name}"))
    try:
        return address in ipaddress.ip_network(name, strict=False)
    except ValueError:
        return False


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _sendable(host: str) -> bool:
    try:
        host.encode("idna" if not host.isascii() else "ascii")
    except UnicodeError:
        return False
    return True
