"""Sums of days of which there are rows of requests only: rows that were imported or restored, rather than written by a worker.

Rows that workers write are summed up with them (store.py). A day that has any sums is left as it is: they may come from more than the rows that are
still there, and they are what counters are seeded from.
"""

from sqlalchemy import Connection, exists, func, insert, select

from sluicegate.records.queries import SUMMED, counted_model, ends, sum_rows
from sluicegate.records.schema import DAY_S, QUARTER_S, requests, usage_days, usage_quarters

PLACE = ("tree", "key_id", "model", "deployment")


def days(connection: Connection) -> list[int]:
    """Days, by their first second, of which there may be rows and are no sums."""
    first_ms, last_ms = ends(connection, requests)
    if first_ms is None or last_ms is None:
        return []
    known = set(connection.execute(select(usage_days.c.time_s).distinct()).scalars())
    return [day_s for day_s in range(first_ms // 1000 // DAY_S * DAY_S, last_ms // 1000 + 1, DAY_S) if day_s not in known]


def build(connection: Connection, day_s: int) -> int:
    """Sums up one day; nothing if it has sums by now. Returns how many requests there were."""
    if connection.execute(select(exists().where(usage_days.c.time_s == day_s))).scalar():
        return 0
    c, q = requests.c, usage_quarters.c
    quarter = c.time_ms // (1000 * QUARTER_S) * QUARTER_S
    parts = {"quarter_s": quarter, "of_tree": c.tree, "of_key_id": c.key_id, "of_model": counted_model(), "of_deployment": c.deployment}
    rows = sum_rows(parts, c.time_ms >= day_s * 1000, c.time_ms < (day_s + DAY_S) * 1000)
    names = ["time_s", *PLACE, *SUMMED]
    connection.execute(insert(usage_quarters).from_select(names, rows))
    day = (q.time_s // DAY_S * DAY_S).label("day_s")
    places = day, *(q[name] for name in PLACE)
    summed = select(*places, *(func.sum(q[name]) for name in SUMMED)).where(q.time_s >= day_s, q.time_s < day_s + DAY_S).group_by(*places)
    connection.execute(insert(usage_days).from_select(names, summed))
    return int(connection.execute(select(func.sum(usage_days.c.records)).where(usage_days.c.time_s == day_s)).scalar() or 0)
