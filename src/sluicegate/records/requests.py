"""Rows of the table `requests`, made of the journal's lines, and what they count in quarters and days.

A line tells what an attempt was charged (`spent`), how its request ended (`record`), or both, as most do. A row has the sum of what its request's
lines were charged, so that the rows agree with the usage whatever happened in between: retries that were billed, a crash, a hold that was charged
at its expiry and settled late. Whoever calls makes sure that each line comes once.

Most rows are new, and go in at once: by COPY in PostgreSQL. Only if one of them is there already are they looked at one by one.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain
from typing import Any

import msgspec
from sqlalchemy import Connection, select, update
from sqlalchemy.exc import DBAPIError, IntegrityError

from sluicegate.core.labels import plain
from sluicegate.core.record import Record, Spent
from sluicegate.records.figures import COUNTS, EXPIRED, LATENCIES, count, counts, fell_back
from sluicegate.records.schema import QUARTER_S, requests

# What each row has of its own, and what is the same in most of those that are written together.
OWN = (
    *("request_id", "time_ms", "attempts", "input_tokens", "cached_tokens", "cache_write_tokens", "output_tokens", "reasoning_tokens"),
    *("cost_nano_usd", "held", "latency_us", "first_byte_us", "overhead_us", "waited_us", "client_user", "client_id"),
)
SHARED = (
    *("tree", "tenant", "key_id", "model", "deployment", "provider", "dialect", "stream", "status", "finish", "refusal", "truncated", "error"),
    *("tries", "fell_back", "source", "cost_source", "cache", "client_gone", "tags", "shadow", "ended"),
)
COLUMNS = (*OWN, *SHARED)
ADDED = ("input_tokens", "output_tokens", "cost_nano_usd")  # what every line adds to
WORD_MAX = 200  # characters of what upstreams and clients may have made up
IDS_AT_ONCE = 500
ROWS_AT_ONCE = (200, 20, 1)  # in one statement of SQLite: the event loop's thread is held up once for each
QUARTER_MS = QUARTER_S * 1000
UNKNOWN_MODEL = "model_not_found"  # error of a request whose model is only a client's word: it is not counted under that

_encode = msgspec.json.Encoder().encode

Line = tuple[str, str, Record | None, Spent | None]  # tree, id of a hold or a request, how it ended, what it was charged
Place = tuple[int, str, str, str, str]  # time_s of a quarter, tree, key_id, model, deployment
Row = tuple[Any, ...]  # the values of OWN, and which shape it has
Shape = tuple[Any, ...]  # its place among those of a batch, and the values of SHARED


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
        model = plain(record.model, WORD_MAX) if record.error != UNKNOWN_MODEL else ""
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
    shapes: dict[tuple[Any, ...], Shape] = {}
    rows = [_row(request_id, request, shapes) for request_id, request in new.items()]
    known: dict[str, Any] = {}
    if not _insert(connection, rows, list(shapes.values())):
        known = _known(connection, list(new))
        _write(
            connection, [row for row in rows if row[0] not in known], list(shapes.values())
        )  # one that has come meanwhile: the transaction is tried again
    for request_id, request in new.items():
        if request.record is not None and request_id not in known:
            counted.add(request.tree, request.record)
    for request_id in sorted(known):
        _change(connection, known[request_id], request_id, new[request_id], counted)
    return counted


def _row(request_id: str, request: Request, shapes: dict[tuple[Any, ...], Shape]) -> Row:
    """shapes: those that the batch has so far, by what they are made of."""
    record = request.record or _so_far(request_id, request)
    attempts = record.attempts
    facts = (
        request.tree,
        record.key_id,
        record.model,
        record.deployment,
        record.dialect,
        record.stream,
        record.status,
        record.finish,
        record.refusal,
        record.truncated,
        record.error,
        len(attempts),
        len(attempts) > 1 and fell_back(record),
        record.source,
        record.cost_source,
        record.cache,
        record.client_gone,
        record.tags,
        record.shadow,
        request.record is not None,
    )
    shape = shapes.get(facts)
    if shape is None:
        shape = shapes[facts] = (len(shapes), *_shared(*facts))
    return (
        request_id,
        record.time_ms,
        _encode(attempts).decode() if attempts else "[]",
        request.input_tokens,
        record.cached_tokens,
        record.cache_write_tokens,
        request.output_tokens,
        record.reasoning_tokens,
        request.cost_nano_usd,
        record.held,
        record.latency_us,
        record.first_byte_us,
        record.overhead_us,
        record.waited_us,
        record.client_user,
        record.client_id,
        shape[0],
    )


def _so_far(request_id: str, request: Request) -> Record:
    """What is known of a request that has not ended."""
    spent = request.spent
    assert spent is not None
    return Record(request_id, spent.admitted_ms, spent.key_id, spent.model, spent.deployment)


def _shared(
    tree: str, key_id: str, model: str, deployment: str, dialect: str, stream: bool, status: int, finish: str, refusal: str, truncated: str,
    error: str, tries: int, fell_back: bool, source: str, cost_source: str, cache: str, client_gone: bool, tags: str, shadow: str, ended: bool,
) -> tuple[Any, ...]:  # fmt: skip
    """The values of SHARED."""
    tenant, provider, model = key_id.partition("/@")[0], deployment.partition("/")[0], plain(model, WORD_MAX)
    finish, error = plain(finish, WORD_MAX), plain(error, WORD_MAX)
    who = (tree, tenant, key_id, model, deployment, provider, dialect, int(stream), status, finish, refusal, truncated, error)
    return (*who, tries, int(fell_back), source, cost_source, cache, int(client_gone), tags, shadow, int(ended))


def _insert(connection: Connection, rows: Sequence[Row], shapes: Sequence[Shape]) -> bool:
    """All of them; or none, as one is there already (False)."""
    savepoint = connection.begin_nested()
    try:
        _write(connection, rows, shapes)
    except IntegrityError:
        savepoint.rollback()
        return False
    savepoint.commit()
    return True


def _write(connection: Connection, rows: Sequence[Row], shapes: Sequence[Shape]) -> None:
    if connection.dialect.name == "postgresql":
        _copy(connection, rows, shapes)
        return
    connection.exec_driver_sql(f"CREATE TEMP TABLE IF NOT EXISTS shapes (shape INTEGER PRIMARY KEY, {', '.join(SHARED)})")
    connection.exec_driver_sql("DELETE FROM temp.shapes")
    connection.exec_driver_sql(f"INSERT INTO temp.shapes VALUES ({', '.join('?' * (1 + len(SHARED)))})", list(shapes))
    start = 0
    for size in ROWS_AT_ONCE:
        while len(rows) - start >= size:
            connection.exec_driver_sql(_joined(size), tuple(chain.from_iterable(rows[start : start + size])))
            start += size


@cache
def _joined(rows: int) -> str:
    """Writes so many rows, each with the number of its shape behind it. Of a value that is bound SQLite makes a copy, which is what costs most."""
    values = ", ".join([f"({', '.join('?' * (len(OWN) + 1))})"] * rows)
    own = ", ".join(f"column{n}" for n in range(1, len(OWN) + 1))
    joined = f"(VALUES {values}) CROSS JOIN temp.shapes ON shape = column{len(OWN) + 1}"
    return f"INSERT INTO requests ({', '.join(COLUMNS)}) SELECT {own}, {', '.join(SHARED)} FROM {joined}"


def _copy(connection: Connection, rows: Sequence[Row], shapes: Sequence[Shape]) -> None:
    """Errors become SQLAlchemy's, which knows nothing of COPY."""
    import psycopg  # noqa: PLC0415  (takes a while to import)

    driver: Any = connection.connection.driver_connection
    try:
        with driver.cursor() as cursor, cursor.copy(f"COPY requests ({', '.join(COLUMNS)}) FROM STDIN") as copy:
            for *own, shape in rows:
                copy.write_row((*own, *shapes[shape][1:]))
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
    shapes: dict[tuple[Any, ...], Shape] = {}
    own = _row(request_id, request, shapes)[:-1]
    row = dict(zip(COLUMNS, (*own, *next(iter(shapes.values()))[1:]), strict=True))
    values: dict[str, Any] = {name: requests.c[name] + row.pop(name) for name in ADDED}
    if record is not None and (not known.ended or (known.error == EXPIRED and record.error != EXPIRED)):
        values |= row
        counted.add(request.tree, record)
        if known.ended:
            was = Record(request_id, known.time_ms, known.key_id, known.model, known.deployment, error=EXPIRED)
            counted.take_back(known.tree, was)
    connection.execute(update(requests).where(requests.c.request_id == request_id).values(values))
