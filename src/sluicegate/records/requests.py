"""Rows of the table `requests`, made of the journal's lines, and what they count in quarters and days.

A line tells what an attempt was charged (`spent`), how its request ended (`record`), or both, as most do. A row has the sum of what its request's
lines were charged, so that the rows agree with the usage whatever happened in between: retries that were billed, a crash, a hold that was charged
at its expiry and settled late. Whoever calls makes sure that each line comes once.

A request is known by when it came and its id; the id tells when (core/request_ids.py). So rows need one b-tree, which grows at its end. What many
rows share is written once a batch, under a number that is a digest of it: whoever writes the same gives it the same number, and nobody need ask.

Most rows are new, and go in at once: by COPY in PostgreSQL. Only if one of them is there already are they looked at one by one.
"""

import operator
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from hashlib import blake2b
from itertools import chain
from typing import Any

import msgspec
from sqlalchemy import Connection, select, tuple_, update
from sqlalchemy.exc import DBAPIError, IntegrityError

from sluicegate.core.labels import plain
from sluicegate.core.record import Attempt, Record, Spent
from sluicegate.core.request_ids import time_ms_of
from sluicegate.records.figures import COUNTS, EXPIRED, LATENCIES, count, counts, fell_back
from sluicegate.records.schema import DAY_S, QUARTER_S, Insert, merge, request_rows, request_shapes

OWN = tuple(request_rows.c.keys())
USUAL = tuple(column.name for column in request_rows.c if column.server_default is None)  # the beginning of OWN; most rows have nothing more
SHAPE = tuple(request_shapes.c.keys())
SHARED = SHAPE[2:]  # all but its number and its day
ADDED = ("input_tokens", "output_tokens", "cost_nano_usd")  # what every line adds to
WORD_MAX = 200  # characters of what upstreams and clients may have made up
IDS_AT_ONCE = 500
ROWS_AT_ONCE = (200, 20, 1)  # in one statement of SQLite: the event loop's thread is held up once for each
QUARTER_MS, DAY_MS = QUARTER_S * 1000, DAY_S * 1000
UNKNOWN_MODEL = "model_not_found"  # error of a request whose model is only a client's word: it is not counted under that
NOTHING = Spent("", "", "", 0, 0, 0, 0, 0, 0)
UNTOLD = Attempt("", "", billed="")  # where there is not one attempt

_encode = msgspec.json.Encoder().encode

Line = tuple[str, str, Record | None, Spent | None]  # tree, id of a hold or a request, how it ended, what it was charged
Request = tuple[str, Record | None, Spent | None]  # what lines say of one: its tree, how it ended, what it was charged in all
Place = tuple[int, str, str, str, str]  # time_s of a quarter, tree, key_id, model, deployment
Row = tuple[Any, ...]  # by OWN, or by USUAL where the rest is nothing


class RowsThere(Exception):
    """Of some requests there are rows already. Nothing was changed."""


class Group(msgspec.Struct, gc=False):
    """Requests of a batch that have one shape and came in the same quarter of an hour."""

    shape: int
    shared: tuple[Any, ...]  # by SHARED
    like: Record  # one of theirs
    latencies_us: list[int]
    amounts: list[int]  # by the last of COUNTS

    @property
    def place(self) -> Place:
        """What they count under."""
        tree, _, key_id, model, deployment = self.shared[:5]
        return self.like.time_ms // QUARTER_MS * QUARTER_S, tree, key_id, model if self.like.error != UNKNOWN_MODEL else "", deployment


class Batch:
    """What is to be written of requests."""

    def __init__(self) -> None:
        self.rows: list[Row] = []  # by USUAL
        self.whole: list[Row] = []  # by OWN
        self.groups: dict[tuple[Any, ...], Group] = {}

    def group(self, facts: tuple[Any, ...], like: Record) -> Group:
        """A new one."""
        shared = _shared(*facts)
        group = self.groups[facts] = Group(_digest(shared), shared, like, [], [0, 0, 0, 0])
        return group


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
            count(group.like, group.latencies_us, into)
            for i, amount in enumerate(group.amounts, 7):
                into[i] += amount

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
        request_id = record.request_id if record is not None else hold_id.partition(".")[0]
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


def add(connection: Connection, lines: Iterable[Line], looking: bool) -> Counted:
    """Writes what lines say, and answers what became of the requests that have ended.

    looking: whether there are rows of them already; it takes a while, and there seldom are. Raises RowsThere if there are, and it did not look.
    """
    new, counted, known = by_request(lines), Counted(), dict[tuple[int, str], Any]()
    found = batch(new)
    if looking:
        known = _known(connection, [row[:2] for row in chain(found.rows, found.whole)])
        there = {request_id for _, request_id in known}
        found = batch({request_id: request for request_id, request in new.items() if request_id not in there})
    try:
        write(connection, found)
    except IntegrityError:
        if looking:  # one that has come meanwhile
            raise
        raise RowsThere from None
    for group in found.groups.values():
        counted.add(group)
    for key in sorted(known):
        _change(connection, known[key], new[key[1]], counted)
    return counted


def bring(connection: Connection, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes rows that are there with all their values. What there is a row of by now has been charged what both say."""
    found, by_key = Batch(), {(row["time_ms"], row["request_id"]): row for row in rows}
    for key in (known := _known(connection, list(by_key))):
        _raise(connection, key, by_key[key])
    for key, row in by_key.items():
        if key not in known:
            facts = tuple([row[name] for name in SHARED])
            group = found.groups.get(facts) or Group(_digest(facts), facts, Record(key[1], key[0]), [], [])
            found.groups[facts] = group
            found.whole.append(tuple([row[name] if name != "shape" else group.shape for name in OWN]))
    write(connection, found)


def batch(new: Mapping[str, Request]) -> Batch:
    """What there is to write of requests that have no rows."""
    found = Batch()
    known = found.groups.get
    for request_id, (tree, end, charged) in new.items():
        record = end if end is not None and end.error != EXPIRED else _timed(request_id, end, charged)
        spent = charged if charged is not None else NOTHING
        attempts, told = record.attempts, ""
        tries = len(attempts)
        if tries == 1 and not attempts[0].wait_us:
            one = attempts[0]
        else:
            one, told = UNTOLD, _encode(attempts).decode()
        facts = (
            record.time_ms // QUARTER_MS, tree, record.key_id, record.model, record.deployment, record.dialect, record.stream, record.status,
            record.finish, record.refusal, record.truncated, record.error, tries, tries > 1 and fell_back(record), one.outcome, one.billed,
            one.error, record.source, record.cost_source, record.cache, record.client_gone, record.shadow, record.rules, end is not None,
        )  # fmt: skip
        group = known(facts) or found.group(facts, record)
        group.latencies_us.append(record.latency_us)
        row = (
            record.time_ms, request_id, group.shape, spent.input_tokens, spent.output_tokens, spent.cost_nano_usd, record.held, record.latency_us,
            record.first_byte_us, record.overhead_us, one.duration_us,
        )  # fmt: skip
        if (
            told or record.cached_tokens or record.client_user or record.tags or record.client_id or record.trace_id or record.reasoning_tokens
            or record.cache_write_tokens or record.saved_nano_usd or record.waited_us
        ):  # fmt: skip
            found.whole.append((*row, *_rest(record, group.amounts), told))
        else:
            found.rows.append(row)
    return found


def _rest(record: Record, amounts: list[int]) -> Row:
    """What few rows have; adds up its amounts."""
    few = record.cached_tokens, record.cache_write_tokens, record.reasoning_tokens, record.saved_nano_usd
    amounts[:] = map(operator.add, amounts, few)
    return (*few, record.waited_us, record.client_user, record.tags, record.client_id, record.trace_id)


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


def write(connection: Connection, found: Batch) -> None:
    """Raises IntegrityError if one of the rows is there."""
    _keep(connection, found.groups.values())
    for names, rows in ((USUAL, found.rows), (OWN, found.whole)):
        if connection.dialect.name == "postgresql":
            _copy(connection, names, rows)
            continue
        start = 0
        for size in ROWS_AT_ONCE:
            while len(rows) - start >= size:
                connection.exec_driver_sql(_values(names, size), tuple(chain.from_iterable(rows[start : start + size])))
                start += size


def _keep(connection: Connection, groups: Iterable[Group]) -> None:
    """Their shapes, always in the same order, so that two workers never wait for each other."""
    shapes: dict[int, Row] = {}
    for group in groups:
        day_s = group.like.time_ms // DAY_MS * DAY_S
        shapes[group.shape] = (group.shape, max(day_s, shapes.get(group.shape, (0, 0))[1]), *group.shared)
    if shapes:
        merge(connection, request_shapes, _again, [dict(zip(SHAPE, shapes[shape], strict=True)) for shape in sorted(shapes)])


def _again(shape: Insert) -> Insert:
    """One that is there is used until the later day."""
    later = request_shapes.c.day_s < shape.excluded.day_s
    return shape.on_conflict_do_update(index_elements=[request_shapes.c.shape], set_={"day_s": shape.excluded.day_s}, where=later)


@cache
def _values(names: Sequence[str], rows: int) -> str:
    """Writes so many rows. Of a value that is bound SQLite makes a copy, which is what costs most."""
    row = f"({', '.join('?' * len(names))})"
    return f"INSERT INTO request_rows ({', '.join(names)}) VALUES {', '.join([row] * rows)}"


def _copy(connection: Connection, names: Sequence[str], rows: Iterable[Row]) -> None:
    """Errors become SQLAlchemy's, which knows nothing of COPY."""
    import psycopg  # noqa: PLC0415  (takes a while to import)

    driver: Any = connection.connection.driver_connection
    try:
        with driver.cursor() as cursor, cursor.copy(f"COPY request_rows ({', '.join(names)}) FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
    except psycopg.Error as error:
        kind = IntegrityError if isinstance(error, psycopg.errors.UniqueViolation) else DBAPIError
        raise kind(None, None, error) from None


def _known(connection: Connection, keys: Sequence[tuple[Any, ...]]) -> dict[tuple[int, str], Any]:
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
    record, found, news = request[1], batch({known.request_id: request}), dict[str, Any]()
    row = dict(zip(OWN, (found.rows or found.whole)[0], strict=False))
    if record is not None and (not known.ended or (known.error == EXPIRED and record.error != EXPIRED)):
        [group] = found.groups.values()
        _keep(connection, [group])
        news = row
        counted.add(group)
        if known.ended:
            was = Record(known.request_id, known.time_ms, known.key_id, known.model, known.deployment, error=EXPIRED)
            counted.take_back((known.time_ms // QUARTER_MS * QUARTER_S, known.tree, known.key_id, known.model, known.deployment), was)
    _raise(connection, (known.time_ms, known.request_id), row, news)


def _raise(connection: Connection, key: tuple[int, str], by: Mapping[str, Any], news: Mapping[str, Any] = {}) -> None:
    """Adds to what a row was charged; the rest of it becomes what is news."""
    c = request_rows.c
    values = {**news, **{name: c[name] + by[name] for name in ADDED}}
    connection.execute(update(request_rows).where(c.time_ms == key[0], c.request_id == key[1]).values(values))
