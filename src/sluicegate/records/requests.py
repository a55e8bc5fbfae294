"""Rows of the table `requests`, made of the journal's lines, and what they count in quarters and days.

A line tells what an attempt was charged (`spent`), how its request ended (`record`), or both, as most do. A row has the sum of what its request's
lines were charged, so that the rows agree with the usage whatever happened in between: retries that were billed, a crash, a hold that was charged
at its expiry and settled late. Whoever calls makes sure that each line comes once.

A request is known by when it came and its id; the id tells when (core/request_ids.py). So rows need one b-tree, which grows at its end. What many
rows share is written once a batch, under a number that is a digest of it: whoever writes the same gives it the same number, and nobody need ask.

Most rows are new, and go in at once: by COPY in PostgreSQL. Only if one of them is there already are they looked at one by one.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from hashlib import blake2b
from itertools import chain
from typing import Any

import msgspec
from sqlalchemy import Connection, select, tuple_, update
from sqlalchemy.exc import DBAPIError, IntegrityError

from sluicegate.core.labels import plain
from sluicegate.core.record import Record, Spent
from sluicegate.core.request_ids import time_ms_of
from sluicegate.records.figures import COUNTS, EXPIRED, LATENCIES, count, counts, fell_back
from sluicegate.records.schema import DAY_S, QUARTER_S, Insert, merge, request_rows, request_shapes

OWN = tuple(request_rows.c.keys())
SHAPE = tuple(request_shapes.c.keys())
SHARED = SHAPE[2:]  # all but its number and its day
ADDED = ("input_tokens", "output_tokens", "cost_nano_usd")  # what every line adds to
WORD_MAX = 200  # characters of what upstreams and clients may have made up
IDS_AT_ONCE = 500
ROWS_AT_ONCE = (200, 20, 1)  # in one statement of SQLite: the event loop's thread is held up once for each
QUARTER_MS, DAY_MS = QUARTER_S * 1000, DAY_S * 1000
UNKNOWN_MODEL = "model_not_found"  # error of a request whose model is only a client's word: it is not counted under that
NOTHING = Spent("", "", "", 0, 0, 0, 0, 0, 0)

_encode = msgspec.json.Encoder().encode

Line = tuple[str, str, Record | None, Spent | None]  # tree, id of a hold or a request, how it ended, what it was charged
Request = tuple[str, Record | None, Spent | None]  # what lines say of one: its tree, how it ended, what it was charged in all
Place = tuple[int, str, str, str, str]  # time_s of a quarter, tree, key_id, model, deployment
Row = tuple[Any, ...]  # by OWN


class Group(msgspec.Struct, gc=False):
    """Rows of a batch that have one shape and came in the same quarter of an hour."""

    shape: int
    shared: tuple[str | int, ...]  # by SHARED
    like: Record  # one of theirs
    rows: list[Row]

    @property
    def place(self) -> Place:
        """What they count under."""
        tree, _, key_id, model, deployment = self.shared[:5]
        model = model if self.like.error != UNKNOWN_MODEL else ""
        return self.rows[0][0] // QUARTER_MS * QUARTER_S, tree, key_id, model, deployment  # type: ignore[return-value]


class Counted:
    """Sums of what became of requests, by COUNTS and LATENCIES: by the quarter of an hour in which they came, and whose they were.

    There is a sum for each row, if only of nothing: so whoever looks for rows knows where there are none.
    """

    def __init__(self) -> None:
        self.sums: dict[Place, list[int]] = {}

    def add(self, group: Group) -> None:
        """Requests, if they have ended."""
        into = self._of(group.place)
        if group.shared[-1]:
            columns = dict(zip(OWN, zip(*group.rows, strict=True), strict=True))
            count(group.like, columns["latency_us"], into)
            for i, name in enumerate(COUNTS[7:], 7):
                into[i] += sum(columns[name])

    def take_back(self, place: Place, record: Record) -> None:
        """One that has been counted as it did not end after all."""
        into = self._of(place)
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
        have = found.get(request_id)
        if have is None:
            found[request_id] = tree, record, spent
            continue
        first, had, charged = have
        still = record is None or (had is not None and had.error == EXPIRED)
        found[request_id] = first, had if still else record, _together(charged, spent)
    return found


def _together(one: Spent | None, other: Spent | None) -> Spent | None:
    if one is None or other is None:
        return one or other
    tokens = one.input_tokens + other.input_tokens, one.output_tokens + other.output_tokens
    return Spent(other.key_id, other.model, other.deployment, other.admitted_ms, 0, 0, *tokens, one.cost_nano_usd + other.cost_nano_usd)


def add(connection: Connection, lines: Iterable[Line]) -> Counted:
    """Writes what lines say, and answers what became of the requests that have ended."""
    new, counted = by_request(lines), Counted()
    groups, known = grouped(new), dict[tuple[int, str], Any]()
    if not _insert(connection, groups):
        known = _known(connection, [row[:2] for group in groups for row in group.rows])
        there = {request_id for _, request_id in known}
        groups = grouped({request_id: request for request_id, request in new.items() if request_id not in there})
        write(connection, groups)  # one that has come meanwhile: the transaction is tried again
    for group in groups:
        counted.add(group)
    for key in sorted(known):
        _change(connection, known[key], new[key[1]], counted)
    return counted


def bring(connection: Connection, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes rows that are there with all their values. What there is a row of by now has been charged what both say."""
    groups: dict[tuple[int, int], Group] = {}
    for named in rows:
        shared = tuple([named[name] for name in SHARED])
        shape = _digest(shared)
        group = groups.setdefault((shape, named["time_ms"] // DAY_MS), Group(shape, shared, Record(named["request_id"], named["time_ms"]), []))
        group.rows.append(tuple([named[name] if name != "shape" else shape for name in OWN]))
    if _insert(connection, list(groups.values())):
        return
    known = _known(connection, [row[:2] for group in groups.values() for row in group.rows])
    for group in groups.values():
        for row in group.rows:
            if row[:2] in known:
                _raise(connection, row[:2], dict(zip(OWN, row, strict=True)))
        group.rows = [row for row in group.rows if row[:2] not in known]
    write(connection, [group for group in groups.values() if group.rows])


def grouped(new: Mapping[str, Request]) -> list[Group]:
    """Their rows."""
    groups: dict[tuple[Any, ...], Group] = {}
    for request_id, (tree, end, charged) in new.items():
        record = end if end is not None and end.error != EXPIRED else _timed(request_id, end, charged)
        spent = charged if charged is not None else NOTHING
        attempts, outcome, billed, failure, called_us, told = record.attempts, "", "", "", 0, ""
        if len(attempts) == 1 and not attempts[0].wait_us:
            [one] = attempts
            outcome, billed, failure, called_us = one.outcome, one.billed, one.error, one.duration_us
        else:
            told = _encode(attempts).decode()
        facts = (
            record.time_ms // QUARTER_MS,
            tree,
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
            outcome,
            billed,
            failure,
            record.source,
            record.cost_source,
            record.cache,
            record.client_gone,
            record.shadow,
            record.rules,
            end is not None,
        )
        group = groups.get(facts)
        if group is None:
            shared = _shared(*facts)
            group = groups[facts] = Group(_digest(shared), shared, record, [])
        group.rows.append(_row(request_id, record, spent, group.shape, called_us, told))
    return list(groups.values())


def _row(request_id: str, record: Record, spent: Spent, shape: int, called_us: int, attempts: str) -> Row:
    return (
        record.time_ms,
        request_id,
        shape,
        spent.input_tokens,
        spent.output_tokens,
        spent.cost_nano_usd,
        record.cached_tokens,
        record.cache_write_tokens,
        record.reasoning_tokens,
        record.saved_nano_usd,
        record.held,
        record.latency_us,
        record.first_byte_us,
        record.overhead_us,
        record.waited_us,
        called_us,
        record.client_user,
        record.tags,
        record.client_id,
        record.trace_id,
        attempts,
    )


def _timed(request_id: str, record: Record | None, spent: Spent | None) -> Record:
    """Of a request that has not ended, what is known; of one that was given up for dead, when it came, as its id tells: another worker wrote it."""
    if record is None:
        assert spent is not None
        record = Record(request_id, spent.admitted_ms, spent.key_id, spent.model, spent.deployment)
    time_ms = time_ms_of(request_id)
    return record if time_ms is None else msgspec.structs.replace(record, time_ms=time_ms)


def _shared(
    _: int, tree: str, key_id: str, model: str, deployment: str, dialect: str, stream: bool, status: int, finish: str, refusal: str, truncated: str,
    error: str, tries: int, fell_back: bool, outcome: str, billed: str, failure: str, source: str, cost_source: str, cache: str, client_gone: bool,
    shadow: str, rules: str, ended: bool,
) -> tuple[str | int, ...]:  # fmt: skip
    """The values of SHARED."""
    tenant, provider, model = key_id.partition("/@")[0], deployment.partition("/")[0], plain(model, WORD_MAX)
    finish, error, failure = plain(finish, WORD_MAX), plain(error, WORD_MAX), plain(failure, WORD_MAX)
    who = (tree, tenant, key_id, model, deployment, provider, dialect, int(stream), status, finish, refusal, truncated, error)
    tried = (tries, int(fell_back), outcome, billed, failure)
    return (*who, *tried, source, cost_source, cache, int(client_gone), shadow, rules, int(ended))


def _digest(shared: Sequence[str | int]) -> int:
    """The number of a shape: 63 bits, so that a million shapes have one chance in ten million that two of them share theirs."""
    return int.from_bytes(blake2b(_encode(shared), digest_size=8).digest(), "big") >> 1


def _insert(connection: Connection, groups: Sequence[Group]) -> bool:
    """All of them; or none, as one is there already (False)."""
    savepoint = connection.begin_nested()
    try:
        write(connection, groups)
    except IntegrityError:
        savepoint.rollback()
        return False
    savepoint.commit()
    return True


def write(connection: Connection, groups: Sequence[Group]) -> None:
    """Raises IntegrityError if one of the rows is there."""
    if not groups:
        return
    _keep(connection, groups)
    rows = list(chain.from_iterable([group.rows for group in groups]))
    if connection.dialect.name == "postgresql":
        _copy(connection, rows)
        return
    start = 0
    for size in ROWS_AT_ONCE:
        while len(rows) - start >= size:
            connection.exec_driver_sql(_values(size), tuple(chain.from_iterable(rows[start : start + size])))
            start += size


def _keep(connection: Connection, groups: Sequence[Group]) -> None:
    """Their shapes, always in the same order, so that two workers never wait for each other."""
    shapes: dict[int, Row] = {}
    for group in groups:
        day_s = group.rows[0][0] // DAY_MS * DAY_S
        shapes[group.shape] = (group.shape, max(day_s, shapes.get(group.shape, (0, 0))[1]), *group.shared)
    merge(connection, request_shapes, _again, [dict(zip(SHAPE, shapes[shape], strict=True)) for shape in sorted(shapes)])


def _again(shape: Insert) -> Insert:
    """One that is there is used until the later day."""
    later = request_shapes.c.day_s < shape.excluded.day_s
    return shape.on_conflict_do_update(index_elements=[request_shapes.c.shape], set_={"day_s": shape.excluded.day_s}, where=later)


@cache
def _values(rows: int) -> str:
    """Writes so many rows."""
    row = f"({', '.join('?' * len(OWN))})"
    return f"INSERT INTO request_rows ({', '.join(OWN)}) VALUES {', '.join([row] * rows)}"


def _copy(connection: Connection, rows: Iterable[Row]) -> None:
    """Errors become SQLAlchemy's, which knows nothing of COPY."""
    import psycopg  # noqa: PLC0415  (takes a while to import)

    driver: Any = connection.connection.driver_connection
    try:
        with driver.cursor() as cursor, cursor.copy(f"COPY request_rows ({', '.join(OWN)}) FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
    except psycopg.Error as error:
        kind = IntegrityError if isinstance(error, psycopg.errors.UniqueViolation) else DBAPIError
        raise kind(None, None, error) from None


def _known(connection: Connection, keys: Sequence[Row]) -> dict[tuple[int, str], Any]:
    """Of requests, by when they came and their ids, those that have rows."""
    c, shape = request_rows.c, request_shapes.c
    found: dict[tuple[int, str], Any] = {}
    for start in range(0, len(keys), IDS_AT_ONCE):
        some = select(c.time_ms, c.request_id, shape.ended, shape.error, shape.tree, shape.key_id, shape.model, shape.deployment)
        some = some.join_from(request_rows, request_shapes, c.shape == shape.shape)
        some = some.where(tuple_(c.time_ms, c.request_id).in_(sorted(keys[start : start + IDS_AT_ONCE])))
        found |= {(row.time_ms, row.request_id): row for row in connection.execute(some.with_for_update(of=request_rows))}
    return found


def _change(connection: Connection, known: Any, request: Request, counted: Counted) -> None:
    """Adds to a row; says how it ended if that is news. A request that was given up for dead and ends after all is counted as it ended."""
    record, news = request[1], dict[str, Any]()
    [group] = grouped({known.request_id: request})
    row = dict(zip(OWN, group.rows[0], strict=True))
    if record is not None and (not known.ended or (known.error == EXPIRED and record.error != EXPIRED)):
        _keep(connection, [group])
        news = row
        counted.add(group)
        if known.ended:
            was = Record(known.request_id, known.time_ms, known.key_id, known.model, known.deployment, error=EXPIRED)
            counted.take_back((known.time_ms // QUARTER_MS * QUARTER_S, known.tree, known.key_id, known.model, known.deployment), was)
    _raise(connection, (known.time_ms, known.request_id), row, news)


def _raise(connection: Connection, key: Row, by: Mapping[str, Any], news: Mapping[str, Any] = {}) -> None:
    """Adds to what a row was charged; the rest of it becomes what is news."""
    c = request_rows.c
    values = {**news, **{name: c[name] + by[name] for name in ADDED}}
    connection.execute(update(request_rows).where(c.time_ms == key[0], c.request_id == key[1]).values(values))
