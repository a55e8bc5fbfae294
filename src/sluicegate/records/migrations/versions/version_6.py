"""Rows of requests have what is their own, in the order of time; what many have in common is told once, and a view joins both.
Sums have what answers from the cache have saved.

Old rows are put aside under another name, and brought in bit by bit afterwards (aside.py): there may be many millions.
"""

from typing import Any

from alembic import op
from sqlalchemy import BigInteger, Column, Integer, Text, text
from sqlalchemy.types import TypeEngine

revision = "6"
down_revision = "5"

WORDS = {
    *("request_id", "client_user", "tags", "client_id", "trace_id", "attempts", "tree", "tenant", "key_id", "model", "deployment", "provider"),
    *("dialect", "finish", "refusal", "truncated", "error", "outcome", "billed", "failure", "source", "cost_source", "cache", "shadow", "rules"),
}
ROW = (
    *("time_ms", "request_id", "shape", "input_tokens", "output_tokens", "cost_nano_usd", "held", "latency_us", "first_byte_us", "overhead_us"),
    *("called_us", "cached_tokens", "cache_write_tokens", "reasoning_tokens", "saved_nano_usd", "waited_us", "client_user", "tags", "client_id"),
    *("trace_id", "attempts"),
)
NOTHING = {name: "" if name in WORDS else "0" for name in ROW[11:]}
SHAPE = (
    *("shape", "day_s", "tree", "tenant", "key_id", "model", "deployment", "provider", "dialect", "stream", "status", "finish", "refusal"),
    *("truncated", "error", "tries", "fell_back", "outcome", "billed", "failure", "source", "cost_source", "cache", "client_gone", "shadow"),
    *("rules", "ended"),
)


def upgrade() -> None:
    """Names of columns are those of the old table, and some more."""
    for table in ("usage_quarters", "usage_days"):
        op.add_column(table, Column("saved_nano_usd", BigInteger(), nullable=False, server_default="0"))
    if op.get_bind().execute(text("SELECT 1 FROM requests LIMIT 1")).first() is None:
        op.drop_table("requests")
    else:
        op.rename_table("requests", "requests_of_5")
    number = BigInteger().with_variant(Integer(), "sqlite")
    row = [_column(name, BigInteger(), name in ROW[:2], NOTHING.get(name)) for name in ROW]
    shape = [_column(name, number if name == "shape" else BigInteger(), name == "shape") for name in SHAPE]
    op.create_table("request_rows", *row, sqlite_with_rowid=False)
    op.create_table("request_shapes", *shape)
    told = ", ".join(name for name in (*ROW, *SHAPE) if name not in ("shape", "day_s"))
    op.execute(f"CREATE VIEW requests AS SELECT {told} FROM request_rows CROSS JOIN request_shapes WHERE request_shapes.shape = request_rows.shape")


def _column(name: str, number: TypeEngine[int], key: bool, nothing: str | None = None) -> Column[Any]:
    kind: TypeEngine[Any] = Text() if name in WORDS else number
    return Column(name, kind, nullable=False, primary_key=key, autoincrement=False, server_default=nothing)
