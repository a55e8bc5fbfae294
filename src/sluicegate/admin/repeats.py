"""Names that are given twice in one object of a body: refused, since only one of the two would count, and nobody would know which."""

import json
from typing import Any

from starlette.requests import HTTPConnection, Request

from sluicegate.admin.errors import invalid


async def once(connection: HTTPConnection) -> None:
    """Raises Reject that names the field. What is no JSON is refused elsewhere."""
    body = await connection.body() if isinstance(connection, Request) else b""
    if body:
        try:
            json.loads(body, object_pairs_hook=_pairs)
        except (ValueError, RecursionError):
            return


def _pairs(pairs: list[tuple[str, Any]]) -> None:
    names = set()
    for name, _ in pairs:
        if name in names:
            raise invalid("A name is given twice in one object of the body.", name[:100], "invalid_body")
        names.add(name)
