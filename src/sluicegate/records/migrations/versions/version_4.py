"""The audit log, how often what it has of a window has happened, and what is still to be sent to webhooks."""

from alembic import op
from sqlalchemy import BigInteger, Column, Integer, Text

revision = "4"
down_revision = "3"

_NUMBERED = BigInteger().with_variant(Integer(), "sqlite")  # that counts up by itself
_WORDS = (
    *("event_id", "action", "actor", "address", "subject", "before", "after", "tenant", "key_id", "limit_name", "unit", "window_name", "reason"),
    *("request_id", "path", "once"),
)
_NUMBERS = ("amount", "percent", "used", "held", "requested", "resets_ms")

_ONLY_ADDED = {
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


def upgrade() -> None:
    """All of it is new."""
    op.create_table(
        "audit_log",
        Column("id", _NUMBERED, primary_key=True, autoincrement=True),
        Column("time_ms", BigInteger, nullable=False),
        *(Column(name, Text, nullable=False) for name in _WORDS),
        *(Column(name, BigInteger, nullable=False) for name in _NUMBERS),
    )
    op.create_index("audit_log_once", "audit_log", ["once"], unique=True)
    op.create_index("audit_log_of_time", "audit_log", ["time_ms"])
    op.create_index("audit_log_of_action", "audit_log", ["action", "id"])
    op.create_index("audit_log_of_subject", "audit_log", ["subject", "id"])
    op.create_index("audit_log_of_reset", "audit_log", ["resets_ms"])
    op.create_table("audit_counts", Column("once", Text, primary_key=True), Column("count", BigInteger, nullable=False))
    op.create_table(
        "webhook_queue",
        Column("id", _NUMBERED, primary_key=True, autoincrement=True),
        *(Column(name, Text, nullable=False) for name in ("webhook", "event_id", "event")),
        *(Column(name, BigInteger, nullable=False) for name in ("made_ms", "tries", "due_ms")),
    )
    op.create_index("webhook_queue_of_due", "webhook_queue", ["webhook", "due_ms"])
    for statement in _ONLY_ADDED[op.get_context().dialect.name]:
        op.execute(statement)
