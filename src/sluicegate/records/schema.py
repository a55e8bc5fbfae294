"""The tables of the records, the same in SQLite and PostgreSQL, and how they come into being.

Usage is kept three times: by the second, for as long as a day's window may need it (SECONDS_KEPT_S), by the quarter of an hour and by the day. All
are written in one transaction, so each may answer for what it covers; `meta.seconds_from_s` says since when the seconds are whole.

A database is told from others by an identity of its own. The rounds of a new one begin above those of any that was made before: workers keep what
they have confirmed when the records are lost under them.

How it fails: tables of a newer program are refused (RecordsTooNew) and not touched. Several workers may open an empty database at once.
"""

import secrets
import time

from sqlalchemy import BigInteger, Column, Connection, Index, Integer, MetaData, Table, Text, inspect, select, text
from sqlalchemy.dialects import postgresql, sqlite

from sluicegate.records.rows import RecordsTooNew

SCHEMA_VERSION = 2
QUARTER_S = 900  # no zone in use is off UTC by a fraction of it
DAY_S = 86_400
SECONDS_KEPT_S = 26 * 3_600  # a day may last 25 hours
CREATION_LOCK = 0x51_75_1C_E6  # of PostgreSQL, held by whoever makes the tables

AMOUNTS = ("requests", "attempts", "input_tokens", "output_tokens", "cost_nano_usd")

metadata = MetaData()


def _number(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False)


def _word(name: str) -> Column[str]:
    return Column(name, Text, nullable=False)


def _name(name: str) -> Column[str]:
    return Column(name, Text, primary_key=True)


def _usage(name: str) -> Table:
    """time_s: start of the span that a row sums up."""
    return Table(
        name,
        metadata,
        Column("time_s", BigInteger, primary_key=True, autoincrement=False),
        *(_name(part) for part in ("tree", "key_id", "model", "deployment")),
        *(_number(amount) for amount in AMOUNTS),
        Index(f"{name}_of_tree", "tree", "time_s"),
        Index(f"{name}_of_deployment", "deployment", "time_s"),
        sqlite_with_rowid=False,
    )


usage = _usage("usage")
usage_quarters = _usage("usage_quarters")
usage_days = _usage("usage_days")
SPANS_S = {usage_days: DAY_S, usage_quarters: QUARTER_S, usage: 1}  # coarsest first

# How far each writer's journal is in `usage`, and how far it was when a tree was last seeded.
writers = Table("writers", metadata, _name("writer"), _number("upto"))
seeded = Table("seeded", metadata, _name("tree"), _name("writer"), _number("upto"), Index("seeded_of_writer", "writer"))

trees = Table(
    "trees",
    metadata,
    _name("tree"),
    _word("epoch"),
    _number("seq"),
    _word("status"),
    _number("round"),
    _word("incarnation"),
    _word("leader"),
    _number("lease_ms"),
    Index("trees_of_status", "status"),
)

workers = Table("workers", metadata, _name("worker"), _number("beat_ms"), _number("round"), _word("incarnation"))

# One row. round: the highest of all trees; whoever raises it holds the row to the end of its transaction, so rounds become visible in order.
meta = Table(
    "meta",
    metadata,
    Column("one", Integer, primary_key=True, autoincrement=False),
    _number("version"),
    _number("round"),
    _number("seconds_from_s"),
    _word("identity"),  # as of version 2
)


def insert(connection: Connection, table: Table) -> "postgresql.Insert | sqlite.Insert":
    """An INSERT that can say ON CONFLICT."""
    return postgresql.insert(table) if connection.dialect.name == "postgresql" else sqlite.insert(table)


def prepare(connection: Connection) -> str:
    """Makes what is missing, inside the caller's transaction (in SQLite one that holds the write lock). Returns the identity.

    Raises RecordsTooNew.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": CREATION_LOCK})
    if not inspect(connection).has_table(meta.name):
        metadata.create_all(connection)
        first_round = time.time_ns() // 1_000_000
        connection.execute(meta.insert().values(one=1, version=SCHEMA_VERSION, round=first_round, seconds_from_s=0, identity=secrets.token_hex(8)))
    version = connection.execute(select(meta.c.version)).scalar_one()
    if version > SCHEMA_VERSION:
        raise RecordsTooNew(f"its tables have version {version}, this program knows versions up to {SCHEMA_VERSION}")
    if version < SCHEMA_VERSION:
        connection.execute(text("ALTER TABLE meta ADD COLUMN identity TEXT NOT NULL DEFAULT ''"))
        connection.execute(meta.update().values(version=SCHEMA_VERSION, identity=secrets.token_hex(8)))
    return str(connection.execute(select(meta.c.identity)).scalar_one())
