"""What is dropped when nobody needs it any more: rows of requests with their shapes, and sums of spans that coarser ones have as well.

Time is that of the newest usage, not this machine's: a clock that is wrong here deletes nothing. A call drops a bounded number of rows, so that
nobody waits long for the database; what is left is dropped with the next.

Invariant: what a sum of a window needs is there, or `meta` says since when it is: then the next coarser span is taken whole, and more is counted
than was used, never less. Days stay.
"""

import msgspec
from sqlalchemy import Connection, Table, delete, func, select, update

from sluicegate.records import aside
from sluicegate.records.schema import DAY_S, QUARTER_S, SECONDS_KEPT_S, meta, request_rows, request_shapes, usage, usage_quarters

ROWS_AT_ONCE = 5_000


class Kept(msgspec.Struct, frozen=True):
    """How long. Quarters feed every window that does not begin with a day in UTC."""

    requests_s: int = 30 * DAY_S
    quarters_s: int = 93 * DAY_S


KEPT = Kept()


def tidy(connection: Connection, newest_s: int, kept: Kept) -> bool:
    """Drops what is too old when usage of that second has come in. False: there is more."""
    done = _forget(connection, usage, "seconds_from_s", (newest_s - SECONDS_KEPT_S) // QUARTER_S * QUARTER_S, QUARTER_S)
    done &= _forget(connection, usage_quarters, "quarters_from_s", (newest_s - kept.quarters_s) // DAY_S * DAY_S, DAY_S)
    done &= aside.fetch(connection)
    return _forget_rows(connection, newest_s - kept.requests_s) and done


def _forget_rows(connection: Connection, from_s: int) -> bool:
    """Drops requests of before a second, some thousand, and shapes that none has any more."""
    time = request_rows.c.time_ms
    connection.execute(delete(request_shapes).where(request_shapes.c.day_s <= from_s - DAY_S))
    old = select(time).where(time < from_s * 1000).order_by(time)
    until_ms = connection.execute(old.offset(ROWS_AT_ONCE).limit(1)).scalar()
    connection.execute(delete(request_rows).where(time < (from_s * 1000 if until_ms is None else until_ms + 1)))
    return until_ms is None


def _forget(connection: Connection, table: Table, since: str, from_s: int, at_once_s: int) -> bool:
    """Drops sums of before a second, `at_once_s` at most, and notes since when they are whole."""
    noted = meta.c[since]
    connection.execute(update(meta).where(noted < from_s).values({since: from_s}))
    from_s = int(connection.execute(select(noted)).scalar_one())
    oldest_s = connection.execute(select(func.min(table.c.time_s))).scalar()
    if oldest_s is None or oldest_s >= from_s:
        return True
    until_s: int = min(from_s, oldest_s + at_once_s)
    connection.execute(delete(table).where(table.c.time_s < until_s))
    return until_s == from_s
