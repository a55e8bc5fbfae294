"""The records in PostgreSQL, for workers on several machines.

psycopg 3. The URL goes to libpq as it was written: several hosts, service names and TLS options work. Nothing depends on the session (settings are
the transaction's, no statement is prepared), so a pooler may be between.

Invariant: no credential of the URL is in `place` or in a text that went through `plain`.
"""

import contextlib
import os
import socket
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.pool import QueuePool

UNREADABLE = "the URL of the records cannot be read"
PASSING = {"40001", "40P01", "23505"}  # serialization failure, deadlock, a row that another has just made: once more from the beginning


class Postgresql:
    """A backend of database.py. A url that libpq cannot read raises ValueError."""

    def __init__(self, url: str, timeout_s: float) -> None:
        if not url.startswith(("postgresql://", "postgres://")):
            raise ValueError(UNREADABLE)
        try:
            parts: dict[str, Any] = conninfo_to_dict(url)
        except psycopg.Error:  # its text may quote the password
            raise ValueError(UNREADABLE) from None
        self.place = f"postgresql://{parts.get('host', '')}/{parts.get('dbname', '')}"
        self._url = url
        self._name = parts.get("application_name", "sluicegate")
        self._secrets = [str(parts[name]) for name in ("password", "sslpassword") if parts.get(name)]
        self._timeout_s = timeout_s
        self._connection: psycopg.Connection[Any] | None = None

    def engine(self) -> Engine:
        return create_engine("postgresql+psycopg://", creator=self._connect, poolclass=QueuePool, pool_size=1, max_overflow=0, pool_pre_ping=True)

    def _connect(self) -> psycopg.Connection[Any]:
        self._connection = psycopg.connect(
            self._url,
            connect_timeout=max(2, round(self._timeout_s / 2)),  # per host; libpq knows no less
            application_name=self._name,
            keepalives_idle=5,
            keepalives_interval=2,
            keepalives_count=3,
            prepare_threshold=None,
        )
        return self._connection

    def replaced(self) -> bool:
        """A server that has another database now has ended the connection."""
        return False

    def options(self, snapshot: bool, reading: bool) -> dict[str, object]:
        return {"isolation_level": "REPEATABLE READ" if snapshot else "READ COMMITTED", "postgresql_readonly": reading}

    def begun(self, connection: Connection) -> None:
        """The server itself ends what takes too long, also when we are gone."""
        timeout_ms = int(self._timeout_s * 1000)
        settings = {
            "statement_timeout": timeout_ms * 4 // 5,
            "lock_timeout": timeout_ms // 2,
            "idle_in_transaction_session_timeout": timeout_ms,
            "jit": "off",  # it takes seconds to compile a sum of many columns
        }
        connection.execute(text("; ".join(f"SET LOCAL {name} = {value}" for name, value in settings.items())))

    def cut(self) -> None:
        """Whoever waits for the socket sees its end."""
        if self._connection is not None:
            with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(self._connection.fileno())) as wire:  # or it is closed
                wire.shutdown(socket.SHUT_RDWR)

    def is_passing(self, error: BaseException) -> bool:
        return isinstance(error, psycopg.Error) and error.sqlstate in PASSING

    def plain(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text
