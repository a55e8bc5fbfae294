"""What both sides of HTTP/1.1 share: bounds, head blocks, and the JSON of an error that no dialect has read yet.

Invariant: no control character of a header's name or value ever reaches the wire, so nothing that a client or an upstream wrote can end a line of
ours. It costs one pass over the whole block: all control characters in it must be the CR LF pairs that joined it.
"""

import http
from collections.abc import Iterable
from email.utils import formatdate

import msgspec

Headers = Iterable[tuple[bytes, bytes]]

HEAD_BYTES_MAX = 65_536  # request or status line and headers
HEAD_COUNT_MAX = 100
BODY_BYTES_MAX = 64 * 1024 * 1024

_CONTROLS = bytes([*range(9), *range(10, 32), 127])
_SPACED = bytes.maketrans(_CONTROLS, b" " * len(_CONTROLS))


def status_line(status: int) -> bytes:
    try:
        phrase = http.HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return f"HTTP/1.1 {status} {phrase}".encode()


STATUS_LINES = {status: status_line(status) for status in range(200, 600)}


def date_line() -> bytes:
    return f"date: {formatdate(usegmt=True)}".encode()


def block(lines: list[bytes], headers: Headers, ours: frozenset[bytes]) -> tuple[bytes, bool]:
    """A message's first lines and headers, without the blank line that ends them, and whether no control character is in it that ends a line.

    Headers named in `ours` are left out: who sends the message decides about its framing. Names are lower-case.
    """
    for header in headers:
        if header[0] not in ours:
            lines.append(b": ".join(header))
    text = b"\r\n".join(lines)
    return text, len(text) - len(text.translate(None, _CONTROLS)) == 2 * (len(lines) - 1)


def cleaned(headers: Headers) -> list[tuple[bytes, bytes]]:
    """Headers with a space for each control character."""
    return [(name.translate(_SPACED), value.translate(_SPACED)) for name, value in headers]


def error_body(message: str, kind: str, code: str) -> bytes:
    """The error envelope that every dialect's client can read."""
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": code}})
