"""Webhooks from the configuration. Checks here what their fields say of each other."""

import hashlib
import re
from urllib.parse import quote, urlsplit

from sluicegate.config import schema
from sluicegate.config.compiling import Compiling, did_you_mean
from sluicegate.config.fields import Path
from sluicegate.config.proxies import ProxyError, proxy_from
from sluicegate.core.happening import PATTERNS
from sluicegate.core.tenants import Webhook

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")
_OWN_HEADERS = {"host", "content-length", "content-type", "transfer-encoding", "connection", "accept-encoding", "expect", "te", "trailer", "upgrade"}
_SAFE = "%/:?#[]@!$&'()*+,;=~-._"  # as they may stand in a URL; others are encoded


class Webhooks(Compiling):
    """Reads `webhooks:`."""

    def webhooks(self) -> tuple[Webhook, ...]:
        """Those that can be used."""
        found: dict[str, Webhook] = {}
        for i, written in enumerate(self.config.webhooks):
            webhook = self.webhook(written, ("webhooks", i))
            if webhook is not None and webhook.id in found:
                self.problem(("webhooks", i), "has the url and format of an earlier one; give that one all types")
            elif webhook is not None:
                found[webhook.id] = webhook
        return tuple(found.values())

    def webhook(self, written: schema.Webhook, path: Path) -> Webhook | None:
        """None: its URL is none."""
        for j, pattern in enumerate(written.types):
            if pattern not in PATTERNS:
                self.problem((*path, "types", j), f"there is no event {pattern[:100]!r}; {did_you_mean(pattern, PATTERNS)}")
        headers = self.headers(written, path)
        url = written.url.get_secret_value()
        try:
            parts = urlsplit(url)
            fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and url.isprintable() and " " not in url
        except ValueError:
            fits = False
        if not fits or parts.username is not None or parts.fragment:
            self.problem((*path, "url"), "must be a URL such as https://hooks.example.com/path, without user, password or fragment")
            return None
        origin = f"{parts.scheme}://{parts.netloc}"
        target = quote(parts.path or "/", safe=_SAFE) + (f"?{quote(parts.query, safe=_SAFE)}" if parts.query else "")
        try:
            proxy = proxy_from(self.environ, origin)
        except ProxyError as error:
            self.problem((*path, "url"), str(error))
            return None
        secret = written.secret.get_secret_value().encode() if written.secret is not None else b""
        id_ = hashlib.sha256(f"{written.format} {url}".encode()).hexdigest()[:16]
        return Webhook(id_, origin, target.encode(), written.format, tuple(written.types), secret, headers, proxy)

    def headers(self, written: schema.Webhook, path: Path) -> tuple[tuple[bytes, bytes], ...]:
        found: dict[bytes, bytes] = {}
        for name, value in written.headers.items():
            if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
                self.problem((*path, "headers", name), "is not a valid HTTP header")
            elif name.lower() in _OWN_HEADERS or name.lower().startswith("x-sluicegate-"):
                self.problem((*path, "headers", name), "is set by the gateway itself")
            else:
                found[name.lower().encode()] = value.encode()
        return tuple(found.items())
