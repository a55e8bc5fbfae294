"""A row for each request; quarters and days count what became of requests; Alembic keeps the version."""

from alembic import op
from sqlalchemy import BigInteger, Column, String, Text

revision = "3"
down_revision = "2"

COUNTS = (
    *("records", "refused", "throttled", "errors", "fallbacks", "cache_hits", "answers"),
    *("cached_tokens", "cache_write_tokens", "reasoning_tokens"),
)
LATENCIES = (*(f"latency_{i}" for i in range(32)), "latency_more")
WORDS = {
    *("tree", "tenant", "key_id", "model", "deployment", "provider", "dialect", "finish", "refusal", "truncated", "error", "attempts", "source"),
    *("cost_source", "cache", "client_user", "tags", "client_id", "shadow"),
}
ROW = (
    *("time_ms", "tree", "tenant", "key_id", "model", "deployment", "provider", "dialect", "stream", "status", "finish", "refusal", "truncated"),
    *(
        "error",
        "attempts",
        "tries",
        "fell_back",
        "input_tokens",
        "cached_tokens",
        "cache_write_tokens",
        "output_tokens",
        "reasoning_tokens",
        "source",
    ),
    *("cost_nano_usd", "cost_source", "cache", "held", "latency_us", "first_byte_us", "overhead_us", "waited_us", "client_gone", "client_user"),
    *("tags", "client_id", "shadow", "ended"),
)


def upgrade() -> None:
    """What was used before has no rows and no counts."""
    op.create_table("alembic_version", Column("version_num", String(32), primary_key=True))
    op.add_column("meta", Column("quarters_from_s", BigInteger, nullable=False, server_default="0"))
    for table in ("usage_quarters", "usage_days"):
        for name in (*COUNTS, *LATENCIES):
            op.add_column(table, Column(name, BigInteger, nullable=False, server_default="0"))
    fields = [Column(name, Text if name in WORDS else BigInteger, nullable=False) for name in ROW]
    op.create_table("requests", Column("request_id", Text, primary_key=True), *fields)
    op.create_index("requests_of_time", "requests", ["time_ms"])
    op.create_index("requests_of_key", "requests", ["key_id", "time_ms"])
