"""Ids in paths: those of keys, tenants and limits have slashes in them, and stand in a path as they are: `{id:entry}`.

A path whose last part asks for something of an entry (`acme/status`) is never the entry itself, whatever the method. An entry whose own last part is
called so is named with a slash behind it: `acme/status/`.
"""

from starlette.convertors import Convertor, register_url_convertor

from sluicegate.records.directory_rows import Missing

ID_MAX = 400
_ASKED = "status|limits|override|block|unblock|rotate|adjust|adjustments|settle|increases(?:/[^/]+)?|usage/forecast"


class Entry(Convertor[str]):
    """What `{id:entry}` means."""

    regex = rf"(?!.*/(?:{_ASKED})$).+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("entry", Entry())


def checked(id: str) -> str:
    """An id as it came in a path or a query. Raises Missing."""
    id = id.removesuffix("/")
    if not id.isprintable() or len(id) > ID_MAX:
        raise Missing(id if id.isprintable() else "?")
    return id
