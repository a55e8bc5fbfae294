"""The tables of the records, the same in SQLite and PostgreSQL, and how they come into being.

Usage is kept three times: by the second, for as long as a day's window may need it (SECONDS_KEPT_S), by the quarter of an hour and by the day. All
are written in one transaction, so each may answer for what it covers; `meta.seconds_from_s` and `meta.quarters_from_s` say since when those are
whole. Quarters and days also count what became of requests (figures.py); `requests` has a row for each.

New databases are made from the tables below at once; those of an older program are brought up to them by Alembic (migrations/), which is not
imported otherwise. `alembic_version` says the same as `meta.version`, which programs from before Alembic look at.

A database is told from others by an identity of its own. The rounds of a new one begin above those of any that was made before: workers keep what
they have confirmed when the records are lost under them.

How it fails: tables of a newer program are refused (RecordsTooNew) and not touched. Several workers may open an empty database at once.
"""

import secrets
import time

from sqlalchemy import DDL, BigInteger, Column, Connection, Index, Integer, MetaData, String, Table, Text, event, inspect, select, text
from sqlalchemy.dialects import postgresql, sqlite

from sluicegate.records.figures import COUNTS, LATENCIES
from sluicegate.records.rows import RecordsTooNew

SCHEMA_VERSION = 5
QUARTER_S = 900  # no zone in use is off UTC by a fraction of it
DAY_S = 86_400
SECONDS_KEPT_S = 26 * 3_600  # a day may last 25 hours
CREATION_LOCK = 0x51_75_1C_E6  # of PostgreSQL, held by whoever makes the tables

AMOUNTS = ("requests", "attempts", "input_tokens", "output_tokens", "cost_nano_usd")

_ONLY_ADDED = {  # by the kind of database: how it keeps a table as it is written
    "sqlite": [
        f"CREATE TRIGGER audit_log_{what} BEFORE {what} ON audit_log BEGIN SELECT RAISE(ABORT, 'the audit log is only added to'); END"
        for what in ("UPDATE", "DELETE")
    ],
    "postgresql": [
        "CREATE OR REPLACE FUNCTION audit_log_only_added() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'the audit log is only added to'; END $$",
        "CREATE TRIGGER audit_log_only_added BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_log"
        " FOR EACH STATEMENT EXECUTE FUNCTION audit_log_only_added()",
    ],
}

metadata = MetaData()


def _number(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False)


def _word(name: str) -> Column[str]:
    return Column(name, Text, nullable=False)


def _name(name: str) -> Column[str]:
    return Column(name, Text, primary_key=True)


def _count(name: str) -> Column[int]:
    """As of version 3."""
    return Column(name, BigInteger, nullable=False, server_default="0")


def _usage(name: str, *more: str) -> Table:
    """time_s: start of the span that a row sums up."""
    return Table(
        name,
        metadata,
        Column("time_s", BigInteger, primary_key=True, autoincrement=False),
        *(_name(part) for part in ("tree", "key_id", "model", "deployment")),
        *(_number(amount) for amount in AMOUNTS),
        *(_count(count) for count in more),
        Index(f"{name}_of_tree", "tree", "time_s"),
        Index(f"{name}_of_deployment", "deployment", "time_s"),
        sqlite_with_rowid=False,
    )


usage = _usage("usage")
usage_quarters = _usage("usage_quarters", *COUNTS, *LATENCIES)
usage_days = _usage("usage_days", *COUNTS, *LATENCIES)
SPANS_S = {usage_days: DAY_S, usage_quarters: QUARTER_S, usage: 1}  # coarsest first

# One row per logical request. Amounts are sums of what its attempts were charged, also while it is not known how it ended (`ended` 0). Order: as a
# row of it is written (requests.py).
requests = Table(
    "requests",
    metadata,
    _name("request_id"),
    _number("time_ms"),
    *(_word(name) for name in ("tree", "tenant", "key_id", "model", "deployment", "provider", "dialect")),
    *(_number(name) for name in ("stream", "status")),
    *(_word(name) for name in ("finish", "refusal", "truncated", "error")),
    _word("attempts"),  # JSON, in order
    *(_number(name) for name in ("tries", "fell_back", "input_tokens", "cached_tokens", "cache_write_tokens", "output_tokens", "reasoning_tokens")),
    _word("source"),  # of the tokens: reported, counted, partly, held
    _number("cost_nano_usd"),
    _word("cost_source"),
    _word("cache"),
    *(_number(name) for name in ("held", "latency_us", "first_byte_us", "overhead_us", "waited_us", "client_gone")),
    *(_word(name) for name in ("client_user", "tags", "client_id", "shadow")),
    _number("ended"),
    Index("requests_of_time", "time_ms"),
    Index("requests_of_key", "key_id", "time_ms"),
)

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
    _count("quarters_from_s"),
)

_NUMBERED = BigInteger().with_variant(Integer(), "sqlite")  # that counts up by itself

# Who changed what, and which budgets were warned about or used up (audit.py). It is only added to: the database refuses anything else.
audit_log = Table(
    "audit_log",
    metadata,
    Column("id", _NUMBERED, primary_key=True, autoincrement=True),
    _number("time_ms"),
    *(_word(name) for name in ("event_id", "action", "actor", "address", "subject", "before", "after", "tenant", "key_id")),
    *(_word(name) for name in ("limit_name", "unit", "window_name", "reason", "request_id", "path")),
    *(_number(name) for name in ("amount", "percent", "used", "held", "requested", "resets_ms")),
    _word("once"),  # of what is told once, what and in which window; else the event's id
    Index("audit_log_once", "once", unique=True),
    Index("audit_log_of_time", "time_ms"),
    Index("audit_log_of_action", "action", "id"),
    Index("audit_log_of_subject", "subject", "id"),
    Index("audit_log_of_reset", "resets_ms"),
)
for _dialect, _statements in _ONLY_ADDED.items():
    for _statement in _statements:
        event.listen(audit_log, "after_create", DDL(_statement).execute_if(dialect=_dialect))  # type: ignore[no-untyped-call]

# How often what is told once has happened.
audit_counts = Table("audit_counts", metadata, _name("once"), _number("count"))

# What is still to be sent to webhooks: whoever takes a row puts it off, and deletes it when it was delivered.
webhook_queue = Table(
    "webhook_queue",
    metadata,
    Column("id", _NUMBERED, primary_key=True, autoincrement=True),
    *(_word(name) for name in ("webhook", "event_id", "event")),
    *(_number(name) for name in ("made_ms", "tries", "due_ms")),
    Index("webhook_queue_of_due", "webhook", "due_ms"),
)

# What operators have added to what was used of a limit, or taken from it (adjustments.py).
adjustments = Table(
    "adjustments",
    metadata,
    _name("id"),
    *(_word(name) for name in ("counter", "tree", "epoch", "actor", "reason")),
    *(_number(name) for name in ("amount", "at_ms", "applied")),
    Index("adjustments_of_counter", "counter", "at_ms"),
)

# Alembic's own. One row: the version that the tables have.
alembic_version = Table("alembic_version", metadata, Column("version_num", String(32), primary_key=True))


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
        first = {"one": 1, "version": SCHEMA_VERSION, "round": first_round, "seconds_from_s": 0, "identity": secrets.token_hex(8)}
        connection.execute(meta.insert().values(first))
        connection.execute(alembic_version.insert().values(version_num=str(SCHEMA_VERSION)))
    version = connection.execute(select(meta.c.version)).scalar_one()
    if version > SCHEMA_VERSION:
        raise RecordsTooNew(f"its tables have version {version}, this program knows versions up to {SCHEMA_VERSION}")
    if version < SCHEMA_VERSION:
        from sluicegate.records.migrations import upgrade  # noqa: PLC0415  (Alembic takes a while to import, and is seldom needed)

        upgrade(connection, version)
    return str(connection.execute(select(meta.c.identity)).scalar_one())
