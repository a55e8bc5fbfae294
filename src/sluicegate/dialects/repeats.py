"""Names that are given twice in one object inside a body: refused, wherever they stand.

What is counted is the last of two, as msgspec reads it; what is sent is the bytes, with both, and some upstreams take the first, or charge for both.
(At the top of a body only one is sent.) Names may be written with escapes, so that bytes do not tell. Length does: what is read, encoded again, is as
long as the bytes were without their white space only if nothing was left out. Where it is shorter (escapes, fractions, fields that are null), all
names are looked at.
"""

import json
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from sluicegate.dialects.form import BadRequest

# Encoded again nothing is longer than it was: whatever fraction it is, it is written as one digit.
_decode = msgspec.json.Decoder(float_hook=lambda _written: 0).decode
_encode = msgspec.json.Encoder().encode


class _Repeated(Exception):
    pass


def refuse_repeats(fields: Mapping[str, Raw], but: frozenset[str] = frozenset()) -> None:
    """Raises BadRequest if an object in one of a body's fields has a name twice. but: fields that are not looked at."""
    for name, raw in fields.items():
        if name not in but:
            data = bytes(raw)
            if data[:1] in (b"{", b"["):
                refuse_repeats_in(data, name)


def refuse_repeats_in(data: bytes, name: str, encoded: bytes | None = None) -> None:
    """Raises BadRequest if an object in this field has a name twice. encoded: what was read of it, encoded again."""
    shortest = len(encoded) if encoded is not None else _again(data)
    if len(data) == shortest:
        return
    if encoded is not None and len(data) - data.count(b" ") == len(encoded) - encoded.count(b" "):
        return  # spaces in texts are in both, and between them in the one, and all else is as long
    compact = msgspec.json.format(data, indent=-1)
    if len(compact) == shortest or len(compact) == _again(compact):
        return
    try:
        json.loads(data, object_pairs_hook=_once, parse_int=str, parse_float=str)  # numbers of any length
    except _Repeated as error:
        raise BadRequest(f"The name {str(error)[:100]!r} is given twice in an object inside {name!r}.", name) from None


def _again(data: bytes) -> int:
    """The length of what is read, encoded again; -1 where it cannot be read."""
    try:
        return len(_encode(_decode(data)))
    except (msgspec.ValidationError, OverflowError):  # an integer that is too large
        return -1


def _once(pairs: list[tuple[str, Any]]) -> None:
    names = {name for name, _ in pairs}
    if len(names) < len(pairs):
        raise _Repeated(next(name for i, (name, _) in enumerate(pairs) if any(name == later for later, _ in pairs[i + 1 :])))
