"""Requests one by one, as their rows tell them: one by its id, or those that fit, the newest first.

Rows are in the order of time and have no other. Whose they are is known from the sums: a key's requests are looked for only in those quarters of an
hour in which it has had any.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, and_, or_, select

from sluicegate.core.record import Attempt
from sluicegate.core.request_ids import time_ms_of
from sluicegate.records.queries import PAGE, Question, conditions, ends
from sluicegate.records.schema import DAY_S, QUARTER_S, meta, requests, usage_quarters
from sluicegate.records.sums import NEVER_S

_encode = msgspec.json.Encoder().encode


class RequestPage(msgspec.Struct, frozen=True):
    """Rows of requests, the newest first."""

    rows: list[dict[str, Any]]
    next: str


def request_page(connection: Connection, question: Question, limit: int = PAGE, after: str = "") -> RequestPage:
    """Requests that fit, the newest first. group_by has no effect. after: `next` of the page before. Raises ValueError if that cannot be."""
    c = requests.c
    fitting = select(requests).where(*conditions(requests, question.filters)).order_by(c.time_ms.desc(), c.request_id.desc())
    before_ms = question.end_ms or NEVER_S * 1000
    if after:
        time_ms, _, request_id = after.partition(":")
        if not time_ms.isdecimal() or not request_id:
            raise ValueError("after: is no place in these pages")
        fitting = fitting.where(or_(c.time_ms < int(time_ms), and_(c.time_ms == int(time_ms), c.request_id < request_id)))
        before_ms = min(before_ms, int(time_ms) + 1)
    rows: list[dict[str, Any]] = []
    for from_ms, to_ms in _where_rows_are(connection, question, before_ms):
        found = fitting.where(c.time_ms >= from_ms, c.time_ms < to_ms).limit(limit + 1 - len(rows))
        rows += [_told(row) for row in connection.execute(found)]
        if len(rows) > limit:
            return RequestPage(rows[:limit], f"{rows[limit - 1]['time_ms']}:{rows[limit - 1]['request_id']}")
    return RequestPage(rows, "")


def _where_rows_are(connection: Connection, question: Question, before_ms: int) -> Iterator[tuple[int, int]]:
    """Where requests of a question can be, in milliseconds, the newest first: rows are in the order of time, and sums know who asked when."""
    first_ms, last_ms = ends(connection, requests)
    if first_ms is None or last_ms is None:
        return
    from_ms, to_ms = max(question.start_ms, first_ms), min(before_ms, last_ms + 1)
    whose = {name: question.filters[name] for name in ("tenant", "key", "scope") if name in question.filters}
    quarters_from_s: int = connection.execute(select(meta.c.quarters_from_s)).scalar_one()
    c = usage_quarters.c
    some = select(c.time_s).where(*conditions(usage_quarters, whose)).distinct().order_by(c.time_s.desc())
    while whose and from_ms < to_ms and quarters_from_s * 1000 < to_ms:
        start_s = (to_ms - 1) // 1000 // DAY_S * DAY_S
        for time_s in connection.execute(some.where(c.time_s.in_(range(start_s, start_s + DAY_S, QUARTER_S)))).scalars().all():
            yield max(from_ms, time_s * 1000), min(to_ms, (time_s + QUARTER_S) * 1000)
        to_ms = start_s * 1000
    if from_ms < to_ms:
        yield from_ms, to_ms


def request(connection: Connection, request_id: str) -> dict[str, Any] | None:
    """One row, by its id. An id that does not tell when it came, of a version before this, is looked for in all of them."""
    time_ms = time_ms_of(request_id)
    found = select(requests).where(requests.c.request_id == request_id)
    row = connection.execute(found if time_ms is None else found.where(requests.c.time_ms == time_ms)).first()
    return _told(row) if row is not None else None


def _told(row: Row[Any]) -> dict[str, Any]:
    """With its attempts in JSON: of a single one the row says all."""
    told = dict(row._mapping)
    outcome, billed, failure, called_us = (told.pop(name) for name in ("outcome", "billed", "failure", "called_us"))
    if not told["attempts"]:
        amounts = told["cost_nano_usd"], told["input_tokens"], told["output_tokens"]
        told["attempts"] = _encode([Attempt(told["deployment"], outcome, called_us, billed, 0, failure, *amounts)]).decode()
    return told
