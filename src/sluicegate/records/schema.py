"""The tables of the records, the same in SQLite and PostgreSQL, and how they come into being.

Usage is kept three times: by the second, for as long as a day's window may need it (SECONDS_KEPT_S), by the quarter of an hour and by the day. All
are written in one transaction, so each may answer for what it covers; `meta.seconds_from_s` and `meta.quarters_from_s` say since when those are
whole. Quarters and days also count what became of requests (figures.py).

Of each request there is a row, in three parts: what is its own is in `request_rows`, one b-tree in the order of time; what it shares with many others
(its shape: whose it is, what it asked, how it ended) is once in `request_shapes`; the view `requests` is both together, and what one asks.

New databases are made from the tables below at once; those of an older program are brought up to them by Alembic (migrations/), which is not
imported otherwise. `alembic_version` says the same as `meta.version`, which programs from before Alembic look at.

A database is told from others by an identity of its own. The rounds of a new one begin above those of any that was made before: workers keep what
they have confirmed when the records are lost under them.

How it fails: tables of a newer program are refused (RecordsTooNew) and not touched. Several workers may open an empty database at once.
"""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache

from sqlalchemy import DDL, BigInteger, Column, Connection, Dialect, Index, Integer, MetaData, String, Table, Text, event, inspect, select, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import psycopg

from sluicegate.records.figures import COUNTS, LATENCIES
from sluicegate.records.rows import RecordsTooNew

SCHEMA_VERSION = 6
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

_NUMBERED = BigInteger().with_variant(Integer(), "sqlite")  # SQLite's own number of a row


def _number(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False)


def _word(name: str) -> Column[str]:
    return Column(name, Text, nullable=False)


def _name(name: str) -> Column[str]:
    return Column(name, Text, primary_key=True)


def _count(name: str) -> Column[int]:
    """Nothing where it is not written."""
    return Column(name, BigInteger, nullable=False, server_default="0")


def _text(name: str) -> Column[str]:
    """Likewise."""
    return Column(name, Text, nullable=False, server_default="")


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

# One row per logical request, in the order in which they came. Amounts are sums of what its attempts were charged, also while it is not known how it
# ended (`ended` 0). Order of the columns: as rows and shapes are written (requests.py).
request_rows = Table(
    "request_rows",
    metadata,
    Column("time_ms", BigInteger, primary_key=True, autoincrement=False),
    _name("request_id"),
    *(_number(name) for name in ("shape", "input_tokens", "output_tokens", "cost_nano_usd", "held")),
    *(_number(name) for name in ("latency_us", "first_byte_us", "overhead_us", "called_us")),
    # The rest is nothing in most rows, and not written there.
    *(_count(name) for name in ("cached_tokens", "cache_write_tokens", "reasoning_tokens", "saved_nano_usd", "waited_us")),
    *(_text(name) for name in ("client_user", "tags", "client_id", "trace_id")),
    _text("attempts"),  # JSON, in order; "" of a single one: it is as the row says
    sqlite_with_rowid=False,
)

# What many rows have in common.
request_shapes = Table(
    "request_shapes",
    metadata,
    Column("shape", _NUMBERED, primary_key=True, autoincrement=False),  # a digest of the rest
    _number("day_s"),  # of the newest row that has it
    *(_word(name) for name in ("tree", "tenant", "key_id", "model", "deployment", "provider", "dialect")),
    *(_number(name) for name in ("stream", "status")),
    *(_word(name) for name in ("finish", "refusal", "truncated", "error")),
    *(_number(name) for name in ("tries", "fell_back")),
    *(_word(name) for name in ("outcome", "billed", "failure")),  # of a single attempt; `failure` is its error
    *(_word(name) for name in ("source", "cost_source", "cache")),  # source: of the tokens: reported, counted, partly, held
    _number("client_gone"),
    *(_word(name) for name in ("shadow", "rules")),
    _number("ended"),
)

# Both: a view, so it is none of the tables that are made. SQLite takes what is on the left of CROSS JOIN first: the rows, in their order.
requests = Table(
    "requests",
    MetaData(),
    *(Column(column.name, column.type) for column in request_rows.c if column.name != "shape"),
    *(Column(column.name, column.type) for column in request_shapes.c if column.name not in ("shape", "day_s")),
)
_VIEW = "CREATE VIEW requests AS SELECT {} FROM request_rows CROSS JOIN request_shapes WHERE request_shapes.shape = request_rows.shape"
event.listen(metadata, "after_create", DDL(_VIEW.format(", ".join(requests.c.keys()))))  # type: ignore[no-untyped-call]
event.listen(metadata, "before_drop", DDL("DROP VIEW IF EXISTS requests"))  # type: ignore[no-untyped-call]

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


Insert = postgresql.Insert | sqlite.Insert
INSERTS: dict[str, Callable[[Table], Insert]] = {"postgresql": postgresql.insert, "sqlite": sqlite.insert}
_DIALECTS: dict[str, Dialect] = {"postgresql": psycopg.dialect(), "sqlite": sqlite.dialect(paramstyle="named")}  # type: ignore[no-untyped-call]


def insert(connection: Connection, table: Table) -> Insert:
    """An INSERT that can say ON CONFLICT."""
    return INSERTS[connection.dialect.name](table)


def merge(connection: Connection, table: Table, merged: Callable[[Insert], Insert], rows: Sequence[Mapping[str, object]]) -> None:
    """Inserts rows as `merged` says, a function of a module: its statement is built once, as that takes longer than the database does."""
    connection.exec_driver_sql(_merging(connection.dialect.name, table, merged), list(rows))


@cache
def _merging(dialect: str, table: Table, merged: Callable[[Insert], Insert]) -> str:
    return str(merged(INSERTS[dialect](table)).compile(dialect=_DIALECTS[dialect]))


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
