"""Counters, holds and learned tables as rows of an SQLite file: the book on which ledger/sqlite.py runs the rules.

States and records are compact JSON, so that an operator can read them with any SQLite tool. Writes are kept back until `flush`, which is one
statement per kind of change; what was read or written stays cached while no other connection has committed (`PRAGMA data_version`).
A `Rows` neither begins nor ends a transaction.
"""

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from sluicegate import sqlite_file
from sluicegate.core import book
from sluicegate.core.claims import CounterView, HoldView, Kind
from sluicegate.ledger.trees import prefix
from sluicegate.ledger.views import counter_view, hold_view

SCHEMA_VERSION = 2
SCHEMA = (
    "CREATE TABLE counters (key TEXT PRIMARY KEY, kind TEXT NOT NULL, state TEXT NOT NULL, expires_ms INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE holds (tree TEXT, hold_id TEXT, record TEXT NOT NULL, expires_ms INTEGER NOT NULL, PRIMARY KEY (tree, hold_id)) WITHOUT ROWID",
    "CREATE INDEX holds_due ON holds (tree, expires_ms, hold_id)",
    "CREATE TABLE learned (name TEXT, generation INTEGER, sums TEXT NOT NULL, PRIMARY KEY (name, generation)) WITHOUT ROWID",
    # As of version 2. Sentinels: a row of `windows` without a key, and one of `holds` without an id, say that the others are whole.
    "CREATE TABLE epochs (tree TEXT, epoch TEXT, seq INTEGER NOT NULL, PRIMARY KEY (tree, epoch)) WITHOUT ROWID",
    "CREATE TABLE windows (tree TEXT, key TEXT, expires_ms INTEGER NOT NULL, PRIMARY KEY (tree, key)) WITHOUT ROWID",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)
AS_OF_VERSION_2 = 4  # statements before those
PUT_COUNTER = (
    "INSERT INTO counters VALUES (?, ?, CAST(? AS TEXT), ?) ON CONFLICT DO UPDATE SET state = excluded.state, expires_ms = excluded.expires_ms"
)
PUT_HOLD = "INSERT INTO holds VALUES (?, ?, CAST(? AS TEXT), ?) ON CONFLICT DO UPDATE SET record = excluded.record, expires_ms = excluded.expires_ms"
CACHED_ROWS = 20_000
NEVER_MS = 2**62
DUE_AT_ONCE = 256  # due holds that one transaction looks up per tree
FORGET_AT_ONCE = 200  # rows that one transaction of `forget` deletes

_encode = msgspec.json.Encoder().encode
_decode_list = msgspec.json.Decoder(list[int]).decode
_decode_slices = msgspec.json.Decoder(dict[int, int]).decode
_decode_hold = msgspec.json.Decoder(book.Hold).decode
_decode_sums = msgspec.json.Decoder(dict[str, int]).decode


def connect(path: Path, synchronous: str, busy_timeout_ms: int) -> sqlite3.Connection:
    """Opens the file; makes it, its folder and its tables if they are missing. Raises sqlite3.Error or OSError."""
    sqlite_file.make(path)
    # Used from one thread after another, never from two at once.
    connection = sqlite3.connect(path, timeout=busy_timeout_ms / 1000, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        connection.execute("PRAGMA wal_autocheckpoint = 0")  # checkpoints are made in a thread
        if _version(connection) != SCHEMA_VERSION:
            with transaction(connection):
                _create(connection)
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """An immediate one. Raises sqlite3.OperationalError when the file is locked; whatever is raised inside undoes it."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


def _create(connection: sqlite3.Connection) -> None:
    version = _version(connection)
    if version > SCHEMA_VERSION:
        raise sqlite3.DatabaseError(f"the file has version {version}, this program knows versions up to {SCHEMA_VERSION}")
    if version < SCHEMA_VERSION:  # else another process has just made them
        for statement in SCHEMA[AS_OF_VERSION_2 if version else 0 :]:
            connection.execute(statement)


class Rows:
    """A book.Book within one transaction after another of one connection."""

    def __init__(self, connection: sqlite3.Connection, expired_state: Literal["expired_held", "expired_seen"]) -> None:
        self.now_ms = 0
        self.expired_state = expired_state
        self._cursor = connection.cursor()
        self._data_version = -1
        self._counters: dict[str, tuple[Kind, book.Counter, int]] = {}  # kind, state, expiry (0: never)
        self._holds: dict[tuple[str, str], tuple[book.Hold, int] | None] = {}  # record, expiry; None: not there
        self._epochs: dict[str, dict[str, int]] = {}  # by tree, then epoch: sequence; 0: not there
        self._changed_counters: set[str] = set()
        self._changed_holds: set[tuple[str, str]] = set()
        self._changed_epochs: set[str] = set()  # trees
        self._due: dict[str, Iterator[str]] = {}

    def begin(self, now_ms: int) -> None:
        """At the start of a transaction: forgets what another connection may have changed since the last one."""
        self.now_ms = now_ms
        self._due.clear()
        data_version = self._cursor.execute("PRAGMA data_version").fetchone()[0]
        if data_version != self._data_version or len(self._counters) + len(self._holds) > CACHED_ROWS:
            self.reset()
        self._data_version = data_version

    def reset(self) -> None:
        """After a rollback: what is cached is not what the file holds."""
        for cached in (self._counters, self._holds, self._epochs, self._changed_counters, self._changed_holds, self._changed_epochs, self._due):
            cached.clear()

    def close(self) -> None:
        self._cursor.close()

    # -- book.Book ------------------------------------------------------------------------------------------------------------------------

    def counter(self, key: str) -> book.Counter | None:
        entry = self._counters.get(key)
        if entry is None:
            row = self._cursor.execute("SELECT kind, state, expires_ms FROM counters WHERE key = ?", (key,)).fetchone()
            if row is None:
                return None
            entry = self._counters[key] = (row[0], _decode_slices(row[1]) if row[0] == "s" else _decode_list(row[1]), row[2])
        return None if 0 < entry[2] <= self.now_ms else entry[1]

    def put_counter(self, key: str, kind: Kind, counter: book.Counter, expires_ms: int | None) -> None:
        self._counters[key] = (kind, counter, self._counters[key][2] if expires_ms is None else expires_ms)
        self._changed_counters.add(key)

    def hold(self, tree: str, hold_id: str) -> book.Hold | None:
        key = (tree, hold_id)
        if key in self._holds:
            entry = self._holds[key]
        else:
            row = self._cursor.execute("SELECT record, expires_ms FROM holds WHERE tree = ? AND hold_id = ?", key).fetchone()
            entry = self._holds[key] = (_decode_hold(row[0]), row[1]) if row else None
        return entry[0] if entry else None

    def put_hold(self, tree: str, hold_id: str, hold: book.Hold, expires_ms: int) -> None:
        self._holds[tree, hold_id] = (hold, expires_ms)
        self._changed_holds.add((tree, hold_id))

    def drop_hold(self, tree: str, hold_id: str) -> None:
        self._holds[tree, hold_id] = None
        self._changed_holds.add((tree, hold_id))

    def due(self, tree: str, limit: int) -> list[str]:
        """Each id once per transaction, which is enough: a sweep puts or drops every one it is given."""
        ids = self._due.get(tree)
        if ids is None:
            sql = "SELECT hold_id FROM holds WHERE tree = ? AND expires_ms <= ? ORDER BY expires_ms, hold_id LIMIT ?"
            rows = self._cursor.execute(sql, (tree, self.now_ms, DUE_AT_ONCE)).fetchall()
            ids = self._due[tree] = iter([row[0] for row in rows])
        found: list[str] = []
        for hold_id in ids:
            self.hold(tree, hold_id)
            entry = self._holds[tree, hold_id]
            if entry and entry[1] <= self.now_ms:
                found.append(hold_id)
                if len(found) == limit:
                    break
        return found

    def sequence(self, tree: str, epoch: str) -> int:
        epochs = self._epochs.get(tree)
        if epochs is None:
            found = self._cursor.execute("SELECT epoch, seq FROM epochs WHERE tree = ?", (tree,))
            epochs = self._epochs[tree] = dict(found.fetchall())
        return epochs.get(epoch, 0)

    def put_sequence(self, tree: str, epoch: str, seq: int) -> None:
        """After `sequence`, or `clear`."""
        self._epochs[tree][epoch] = seq
        self._changed_epochs.add(tree)

    def index(self, tree: str, key: str, expires_ms: int) -> None:
        self._cursor.execute("REPLACE INTO windows VALUES (?, ?, ?)", (tree, key, expires_ms))

    def expected(self, tree: str, key: str) -> bool:
        sql = "SELECT key, expires_ms FROM windows WHERE tree = ? AND key IN ('', ?)"
        index = dict(self._cursor.execute(sql, (tree, key)).fetchall())
        return "" not in index or (key in index and not 0 < index[key] <= self.now_ms)

    def trim(self, tree: str) -> None:
        self._cursor.execute("DELETE FROM windows WHERE tree = ? AND expires_ms BETWEEN 1 AND ?", (tree, self.now_ms))

    def holds_lost(self, tree: str) -> bool:
        return self._cursor.execute("SELECT 1 FROM holds WHERE tree = ? AND hold_id = ''", (tree,)).fetchone() is None

    def clear(self, tree: str) -> None:
        self.flush()
        self.reset()
        first, cursor = prefix(tree), self._cursor
        cursor.execute("DELETE FROM counters WHERE key >= ? AND key < ?", (first, first[:-1] + chr(ord(first[-1]) + 1)))
        for table in ("holds", "windows", "epochs"):
            cursor.execute(f"DELETE FROM {table} WHERE tree = ?", (tree,))
        cursor.execute("INSERT INTO holds VALUES (?, '', '', ?)", (tree, NEVER_MS))
        cursor.execute("INSERT INTO windows VALUES (?, '', 0)", (tree,))
        self._epochs[tree] = {}

    # -- beyond the rules -----------------------------------------------------------------------------------------------------------------

    def due_trees(self, argument: None) -> set[str]:
        """Trees that have something to sweep: there may be many that have not."""
        self.flush()
        return {tree for (tree,) in self._cursor.execute("SELECT DISTINCT tree FROM holds WHERE expires_ms <= ?", (self.now_ms,))}

    def learned(self, increments: dict[str, dict[str, int]], generation: int) -> dict[str, dict[str, int]]:
        """Adds to the tables of this generation; returns the sums of it and the one before."""
        cursor = self._cursor
        cursor.execute("DELETE FROM learned WHERE generation < ?", (generation - 1,))
        sums: dict[str, dict[str, int]] = {}
        for name, increment in increments.items():
            rows = cursor.execute("SELECT generation, sums FROM learned WHERE name = ?", (name,)).fetchall()
            stored = {row[0]: _decode_sums(row[1]) for row in rows}
            table = Counter(stored.get(generation, {}))
            table.update(increment)
            if increment:
                cursor.execute("REPLACE INTO learned VALUES (?, ?, CAST(? AS TEXT))", (name, generation, _encode(table)))
            table.update(stored.get(generation - 1, {}))
            sums[name] = dict(table)
        return sums

    def flush(self) -> None:
        """Writes what has changed."""
        if self._changed_epochs:
            changed = [(tree, epoch, seq) for tree in self._changed_epochs for epoch, seq in self._epochs[tree].items()]
            self._cursor.executemany("REPLACE INTO epochs VALUES (?, ?, ?)", changed)
            if not all(seq for *_, seq in changed):
                self._cursor.execute("DELETE FROM epochs WHERE seq = 0")
            self._changed_epochs.clear()
        if self._changed_counters:
            self._cursor.executemany(
                PUT_COUNTER,
                [(key, kind, _encode(state), expires_ms) for key in self._changed_counters for kind, state, expires_ms in (self._counters[key],)],
            )
            self._changed_counters.clear()
        if self._changed_holds:
            put, dropped = [], []
            for key in self._changed_holds:
                entry = self._holds[key]
                if entry is None:
                    dropped.append(key)
                else:
                    put.append((*key, _encode(entry[0]), entry[1]))
            if put:
                self._cursor.executemany(PUT_HOLD, put)
            if dropped:
                self._cursor.executemany("DELETE FROM holds WHERE tree = ? AND hold_id = ?", dropped)
                for key in dropped:
                    del self._holds[key]
            self._changed_holds.clear()


def show(connection: sqlite3.Connection, now_ms: int) -> tuple[list[CounterView], list[HoldView]]:
    """Every counter that has not expired, and every hold."""
    counters = [
        counter_view(key, kind, _decode_slices(state) if kind == "s" else _decode_list(state))
        for key, kind, state in connection.execute(
            "SELECT key, kind, state FROM counters WHERE expires_ms = 0 OR expires_ms > ? ORDER BY key", (now_ms,)
        )
    ]
    holds = connection.execute("SELECT hold_id, record, expires_ms FROM holds WHERE hold_id != '' ORDER BY tree, hold_id")
    return counters, [hold_view(hold_id, _decode_hold(record), expires_ms) for hold_id, record, expires_ms in holds]


def holds(connection: sqlite3.Connection, tree: str, after: tuple[int, str], limit: int) -> list[HoldView]:
    """Holds of a tree by expiry and id, behind one."""
    behind = "tree = ? AND (expires_ms, hold_id) > (?, ?) AND hold_id != ''"
    sql = f"SELECT hold_id, record, expires_ms FROM holds WHERE {behind} ORDER BY expires_ms, hold_id LIMIT ?"
    found = connection.execute(sql, (tree, *after, limit))
    return [hold_view(hold_id, _decode_hold(record), expires_ms) for hold_id, record, expires_ms in found]


def hold(connection: sqlite3.Connection, tree: str, hold_id: str) -> HoldView | None:
    """One of them, if it is there."""
    sql = "SELECT record, expires_ms FROM holds WHERE tree = ? AND hold_id = ?"
    found = connection.execute(sql, (tree, hold_id)).fetchone() if hold_id else None
    return hold_view(hold_id, _decode_hold(found[0]), found[1]) if found else None


def forget(connection: sqlite3.Connection, now_ms: int) -> None:
    """Deletes counters that have expired, in short transactions; from the index first, which a clock that is put back must not find ahead of them."""
    with transaction(connection):
        connection.execute("DELETE FROM windows WHERE expires_ms BETWEEN 1 AND ?", (now_ms,))
    expired = connection.execute("SELECT key, ?1 FROM counters WHERE expires_ms BETWEEN 1 AND ?1", (now_ms,)).fetchall()
    for i in range(0, len(expired), FORGET_AT_ONCE):
        with transaction(connection):
            connection.executemany("DELETE FROM counters WHERE key = ? AND expires_ms BETWEEN 1 AND ?", expired[i : i + FORGET_AT_ONCE])


def checkpoint(connection: sqlite3.Connection) -> None:
    """Copies the write-ahead log into the file, beside the writers: what they add meanwhile stays in the log."""
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()


def cut_log(connection: sqlite3.Connection) -> None:
    """Copies the rest, with the writers kept out, and empties the log. Does nothing if it does not get the lock in time."""
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
