"""Databases of older programs are brought up to the tables of schema.py, step by step, inside the transaction of whoever opens them first.

versions/ has one step for each version of the tables; its revision is the number of the version that it makes. Steps say in words of their own what
they change: schema.py goes on. A test compares what they make of an old database with a new one.

How it fails: as the database does; the transaction undoes all of it.
"""

import secrets
from pathlib import Path

from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

STEPS = Path(__file__).parent


def upgrade(connection: Connection, version: int) -> None:
    """From that version of `meta` to the newest."""
    script = ScriptDirectory(str(STEPS))
    newest = script.get_current_head()
    steps = [step for step in reversed(list(script.walk_revisions())) if int(step.revision) > version]
    with Operations.context(MigrationContext.configure(connection)):
        for step in steps:
            step.module.upgrade()
    connection.execute(text("DELETE FROM alembic_version"))
    connection.execute(text("INSERT INTO alembic_version VALUES (:version)"), {"version": newest})
    connection.execute(text("UPDATE meta SET version = :version"), {"version": int(newest or 0)})
    connection.execute(text("UPDATE meta SET identity = :identity WHERE identity = ''"), {"identity": secrets.token_hex(8)})
