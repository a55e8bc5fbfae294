"""Heads of requests: what is wrong with those that httptools lets pass, and those that come again.

A client that stays on its connection sends the same head with every request, but for the length of the body. `Head` recognises it byte for byte, so
that it says what it said when it was parsed. Pure; fails with `Refused`.
"""

from collections.abc import Mapping

import httptools

_VERSIONS = {"1.1": True, "1.0": False}
_LENGTH_DIGITS_MAX = 15


class Refused(Exception):
    """Raised through the parser to stop it. What the client is told."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


def malformed(why: str) -> Refused:
    return Refused(400, "malformed_http", f"Malformed HTTP: {why}.")


def too_long(bytes_max: int) -> Refused:
    return Refused(431, "headers_too_large", f"Request line and headers may take {bytes_max} bytes.")


class Head:
    """A head as it was parsed."""

    __slots__ = ("_after", "_before", "_fields", "method", "modern", "path", "query")

    def __init__(self, before: bytes, after: bytes, method: str, path: str, query: bytes, fields: dict[bytes, bytes], modern: bool) -> None:
        """before, after: the digits that say how long the body is."""
        self._before = before
        self._after = after
        self._fields = fields
        self.method = method
        self.path = path
        self.query = query
        self.modern = modern

    @classmethod
    def of(cls, data: bytes, method: str, path: str, query: bytes, fields: dict[bytes, bytes], modern: bool) -> "Head | None":
        """The head that these bytes begin with. None: it is not all there, or does not say at the end of a line how long the body is."""
        end = data.find(b"\r\n\r\n") + 4
        line = data[:end].lower().find(b"\r\ncontent-length:")
        if line < 0:
            return None
        digits = fields[b"content-length"]
        at = data.index(digits, line + 17)
        before, after = data[:at], data[at + len(digits) : end]
        return cls(before, after, method, path, query, fields, modern) if after.startswith(b"\r\n") else None

    def begins(self, data: bytes) -> tuple[dict[bytes, bytes], int] | None:
        """If this head begins these bytes, of whatever length the body is: its headers, and where the body begins."""
        if not data.startswith(self._before):
            return None
        start = len(self._before)
        at = data.find(b"\r", start, start + _LENGTH_DIGITS_MAX + 1)
        digits = data[start:at]
        if not digits.isdigit() or not data.startswith(self._after, at):
            return None
        return {**self._fields, b"content-length": digits}, at + len(self._after)


def check(fields: Mapping[bytes, bytes], version: str, count: int, count_max: int) -> bool:
    """Whether it is HTTP/1.1 rather than 1.0. count: of headers, repeated ones too."""
    modern = _VERSIONS.get(version)
    if modern is None:
        raise Refused(400, "malformed_http", "Only HTTP/1.0 and HTTP/1.1 are understood.")
    if count > count_max:
        raise Refused(431, "headers_too_large", f"A request may have {count_max} headers.")
    if modern and b"host" not in fields:
        raise malformed("no host header")
    coding = fields.get(b"transfer-encoding")
    if coding is not None and (not modern or coding.lower() != b"chunked"):
        raise malformed("a transfer encoding other than chunked")
    return modern


def check_size(url: bytes, fields: Mapping[bytes, bytes], bytes_max: int) -> None:
    if len(url) + sum(map(len, fields)) + sum(map(len, fields.values())) + 4 * len(fields) > bytes_max:
        raise too_long(bytes_max)


def target(url: bytes) -> tuple[str, bytes]:
    """Path, as it was sent, and query. A full URL, as proxies are sent, is taken for its path."""
    if not url.startswith(b"/"):
        try:
            parsed = httptools.parse_url(url)
        except httptools.HttpParserInvalidURLError:
            raise malformed("the request target") from None
        url = (parsed.path or b"/") + (b"?" + parsed.query if parsed.query else b"")
    raw, _, query = url.partition(b"?")
    return raw.decode("ascii"), query
