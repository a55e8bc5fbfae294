"""What the parts of assembling.py share: how a field that comes more than once is put together."""

from typing import Any

_ABSENT = object()


class Unfaithful(Exception):
    """This stream cannot be told in one piece, as far as is known here."""


def stay(known: dict[str, Any], name: str, value: Any) -> None:
    """A field that has one value, whenever it comes; null says nothing."""
    before = known.get(name, _ABSENT)
    if before is _ABSENT or before is None:
        known[name] = value
    elif value is not None and before != value:
        raise Unfaithful


def lists(known: Any, more: Any) -> Any:
    """Lists one after the other, also those inside an object."""
    if more is None:
        return known
    if known is None:
        if isinstance(more, dict):
            return {name: lists(None, value) for name, value in more.items()}
        return list(more) if isinstance(more, list) else more
    if isinstance(known, list) and isinstance(more, list):
        known.extend(more)
        return known
    if isinstance(known, dict) and isinstance(more, dict):
        for name, value in more.items():
            known[name] = lists(known.get(name), value)
        return known
    if known != more:
        raise Unfaithful
    return known
