"""A database is told from others by an identity."""

from alembic import op
from sqlalchemy import Column, Text

revision = "2"
down_revision = None


def upgrade() -> None:
    """The identity itself is made afterwards."""
    op.add_column("meta", Column("identity", Text, nullable=False, server_default=""))
