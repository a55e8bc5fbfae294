"""What operators have added to, or taken from, what was used of a limit."""

from alembic import op
from sqlalchemy import BigInteger, Column, Text

revision = "5"
down_revision = "4"


def upgrade() -> None:
    """All of it is new."""
    op.create_table(
        "adjustments",
        Column("id", Text, primary_key=True),
        *(Column(name, Text, nullable=False) for name in ("counter", "tree", "epoch", "actor", "reason")),
        *(Column(name, BigInteger, nullable=False) for name in ("amount", "at_ms", "applied")),
    )
    op.create_index("adjustments_of_counter", "adjustments", ["counter", "at_ms"])
