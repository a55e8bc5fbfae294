"""Rows of the table `requests`, made of the journal's lines, and what they count in quarters and days.

A line tells what an attempt was charged (`spent`), how its request ended (`record`), or both, as most do. A row has the sum of what its request's
lines were charged, so that the rows agree with the usage whatever happened in between: retries that were billed, a crash, a hold that was charged
at its expiry and settled late. Whoever calls makes sure that each line comes once.

Most rows are new, and go in at once: by COPY in PostgreSQL. Only if one of them is there already are they looked at one by one.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

import msgspec
from sqlalchemy import Connection, select, update
from sqlalchemy.exc import DBAPIError, IntegrityError

from sluicegate.core.labels import plain
from sluicegate.core.record import Record, Spent
from sluicegate.records.figures import COUNTS, EXPIRED, LATENCIES, count, counts, fell_back
from sluicegate.records.schema import QUARTER_S, requests

COLUMNS = [column.name for column in requests.c]
ADDED = ("input_tokens", "output_tokens", "cost_nano_usd")  # what every line adds to
WORD_MAX = 200  # characters of what upstreams and clients may have made up
IDS_AT_ONCE = 500
ROWS_AT_ONCE = (200, 20, 1)  # in one statement of SQLite: the event loop's thread is held up once for each
ONE_ROW = f"({', '.join('?' * len(COLUMNS))})"
QUARTER_MS = QUARTER_S * 1000
UNKNOWN_MODEL = "model_not_found"  # error of a request whose model is only a client's word: it is not counted under that

_encode = msgspec.json.Encoder().encode

Line = tuple[str, str, Record | None, Spent | None]  # tree, id of a hold or a request, how it ended, what it was charged
Place = tuple[int, str, str, str, str]  # time_s of a quarter, tree, key_id, model, deployment


class Request(msgspec.Struct, gc=False):
    """What lines say of one request."""

    tree: str
    record: Record | None
    spent: Spent | None  # the last
    input_tokens: int = 0
    output_tokens: int = 0
    cost_nano_usd: int = 0


class Counted:
    """Sums of what became of requests, by COUNTS and LATENCIES: by the quarter of an hour in which they came, and whose they were."""

    def __init__(self) -> None:
        self.sums: dict[Place, list[int]] = {}

    def add(self, tree: str, record: Record) -> None:
        """A request that has ended."""
        model = _word(record.model[:WORD_MAX]) if record.error != UNKNOWN_MODEL else ""
        count(record, self._of((record.time_ms // QUARTER_MS * QUARTER_S, tree, record.key_id, model, record.deployment)))

    def take_back(self, tree: str, record: Record) -> None:
        """One that has been counted as it did not end after all."""
        model = record.model
        into = self._of((record.time_ms // QUARTER_MS * QUARTER_S, tree, record.key_id, model, record.deployment))
        into[:] = [have - was for have, was in zip(into, counts(record), strict=True)]

    def _of(self, place: Place) -> list[int]:
        into = self.sums.get(place)
        if into is None:
            into = self.sums[place] = [0] * (len(COUNTS) + len(LATENCIES))
        return into


def by_request(lines: Iterable[Line]) -> dict[str, Request]:
    """What lines come to, by request."""
    found: dict[str, Request] = {}
    for tree, hold_id, record, spent in lines:
        request_id = hold_id.partition(".")[0]
        request = found.get(request_id)
        if request is None:
            request = found[request_id] = Request(tree, record, spent)
        elif record is not None and (request.record is None or record.error != EXPIRED):
            request.record = record
        if spent is not None:
            request.spent = spent
            request.input_tokens += spent.input_tokens
            request.output_tokens += spent.output_tokens
            request.cost_nano_usd += spent.cost_nano_usd
    return found


def add(connection: Connection, lines: Iterable[Line]) -> Counted:
    """Writes what lines say, and answers what became of the requests that have ended."""
    new, counted = by_request(lines), Counted()
    if not new:
        return counted
    rows = [_row(request_id, request) for request_id, request in new.items()]
    known: dict[str, Any] = {}
    if not _insert(connection, rows):
        known = _known(connection, list(new))
        _write(connection, [row for row in rows if row[0] not in known])  # one that has come meanwhile: the transaction is tried again
    for request_id, request in new.items():
        if request.record is not None and request_id not in known:
            counted.add(request.tree, request.record)
    for request_id in sorted(known):
        _change(connection, known[request_id], request_id, new[request_id], counted)
    return counted


@lru_cache(1024)
def _word(text: str) -> str:
    """What upstreams and clients may have made up, mostly the same few words."""
    return plain(text, WORD_MAX)


def _row(request_id: str, request: Request) -> tuple[Any, ...]:
    """In the order of the table's columns."""
    record, spent = request.record, request.spent
    if record is None:
        assert spent is not None
        record = Record(request_id, spent.admitted_ms, spent.key_id, spent.model, spent.deployment)
    key_id, deployment = record.key_id, record.deployment
    return (
        request_id,
        record.time_ms,
        request.tree,
        key_id.partition("/@")[0],
        key_id,
        _word(record.model[:WORD_MAX]),
        deployment,
        deployment.partition("/")[0],
        record.dialect,
        int(record.stream),
        record.status,
        _word(record.finish[:WORD_MAX]),
        record.refusal,
        record.truncated,
        _word(record.error[:WORD_MAX]),
        _encode(record.attempts).decode() if record.attempts else "[]",
        len(record.attempts),
        int(fell_back(record)),
        request.input_tokens,
        record.cached_tokens,
        record.cache_write_tokens,
        request.output_tokens,
        record.reasoning_tokens,
        record.source,
        request.cost_nano_usd,
        record.cost_source,
        record.cache,
        record.held,
        record.latency_us,
        record.first_byte_us,
        record.overhead_us,
        record.waited_us,
        int(record.client_gone),
        record.client_user,
        record.tags,
        record.client_id,
        record.shadow,
        int(request.record is not None),
    )


def _insert(connection: Connection, rows: Sequence[tuple[Any, ...]]) -> bool:
    """All of them; or none, as one is there already (False)."""
    savepoint = connection.begin_nested()
    try:
        _write(connection, rows)
    except IntegrityError:
        savepoint.rollback()
        return False
    savepoint.commit()
    return True


def _write(connection: Connection, rows: Sequence[tuple[Any, ...]]) -> None:
    if connection.dialect.name == "postgresql":
        _copy(connection, rows)
        return
    start = 0
    for size in ROWS_AT_ONCE:
        statement = f"INSERT INTO requests VALUES {', '.join([ONE_ROW] * size)}"
        while len(rows) - start >= size:
            connection.exec_driver_sql(statement, tuple(chain.from_iterable(rows[start : start + size])))
            start += size


def _copy(connection: Connection, rows: Sequence[tuple[Any, ...]]) -> None:
    """Errors become SQLAlchemy's, which knows nothing of COPY."""
    import psycopg  # noqa: PLC0415  (takes a while to import)

    driver: Any = connection.connection.driver_connection
    try:
        with driver.cursor() as cursor, cursor.copy(f"COPY requests ({', '.join(COLUMNS)}) FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
    except psycopg.Error as error:
        kind = IntegrityError if isinstance(error, psycopg.errors.UniqueViolation) else DBAPIError
        raise kind(None, None, error) from None


def _known(connection: Connection, ids: Sequence[str]) -> dict[str, Any]:
    c = requests.c
    found: dict[str, Any] = {}
    for start in range(0, len(ids), IDS_AT_ONCE):
        some = select(c.request_id, c.ended, c.error, c.time_ms, c.tree, c.key_id, c.model, c.deployment)
        some = some.where(c.request_id.in_(sorted(ids[start : start + IDS_AT_ONCE])))
        found |= {row.request_id: row for row in connection.execute(some.with_for_update())}
    return found


def _change(connection: Connection, known: Any, request_id: str, request: Request, counted: Counted) -> None:
    """Adds to a row; says how it ended if that is news. A request that was given up for dead and ends after all is counted as it ended."""
    record = request.record
    row = dict(zip(COLUMNS, _row(request_id, request), strict=True))
    values: dict[str, Any] = {name: requests.c[name] + row.pop(name) for name in ADDED}
    if record is not None and (not known.ended or (known.error == EXPIRED and record.error != EXPIRED)):
        values |= row
        counted.add(request.tree, record)
        if known.ended:
            was = Record(request_id, known.time_ms, known.key_id, known.model, known.deployment, error=EXPIRED)
            counted.take_back(known.tree, was)
    connection.execute(update(requests).where(requests.c.request_id == request_id).values(values))
