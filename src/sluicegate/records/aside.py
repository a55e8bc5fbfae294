"""Rows of requests that programs of version 5 wrote, which the migration has put aside: they are brought into the new tables, the newest first.

There may be many millions, more than a transaction may take, so a call brings some. Until the last has come, questions about single requests and
labels do not see those that are left; sums have them all. The table is dropped when it is empty, and new databases never have one.
"""

from sqlalchemy import Column, Connection, MetaData, Table, delete, inspect, select

from sluicegate.records.requests import bring
from sluicegate.records.schema import requests

ROWS_AT_ONCE = 5_000
NEW = {
    "saved_nano_usd": 0,
    "called_us": 0,
    "trace_id": "",
    "outcome": "",
    "billed": "",
    "failure": "",
    "rules": "",
}  # and none of the old rows has it

_old = Table("requests_of_5", MetaData(), *(Column(column.name, column.type) for column in requests.c if column.name not in NEW))


def fetch(connection: Connection) -> bool:
    """Brings some rows in. False: there are more."""
    if not inspect(connection).has_table(_old.name):
        return True
    rows = connection.execute(select(_old).order_by(_old.c.time_ms.desc()).limit(ROWS_AT_ONCE)).all()
    bring(connection, [{**NEW, **row._mapping} for row in rows])
    connection.execute(delete(_old).where(_old.c.request_id.in_([row.request_id for row in rows])))
    if len(rows) < ROWS_AT_ONCE:
        _old.drop(connection)
    return len(rows) < ROWS_AT_ONCE
