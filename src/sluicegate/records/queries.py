"""What was used, by whom and at what: questions of the admin API and of `sluicegate report`, answered from the coarsest sums that are exact.

A question's time is made of whole days and, at its ends, of quarters of an hour: it is widened to those. Hours, and days of another zone than UTC,
come from quarters; where these are no longer kept there are no hours, and days are those of UTC. Labels and outcomes (ROWS_ALONE) are in the rows of
requests alone: such a question is answered from them, to the millisecond, as far back as they are kept.
Sums count what attempts were charged when they were admitted, at the deployment that was called, and requests when they came, at the one that
answered: totals are those of the ledger.

Everything is added up by key in the database and by tenant or provider here, since those are parts of the names of keys and deployments.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
from sqlalchemy import BigInteger, ColumnElement, Connection, Select, Table, and_, case, func, or_, select

from sluicegate.core.labels import read_tags
from sluicegate.core.limits import Unit
from sluicegate.core.record import Record
from sluicegate.records.figures import BOUNDS_US, COUNTS, LATENCIES, TOO_MANY, counts, quantile_us
from sluicegate.records.requests import UNKNOWN_MODEL
from sluicegate.records.schema import AMOUNTS, DAY_S, QUARTER_S, SPANS_S, meta, request_rows, requests, usage_days, usage_quarters
from sluicegate.records.sums import EVERYTHING, NEVER_S, cover

GROUPS = ("tenant", "key", "model", "deployment", "provider", "day", "hour", "label")
ROWS_ALONE = ("label", "status", "refusal", "error")
FILTERS = ("tenant", "key", "scope", "model", "deployment", "provider", *ROWS_ALONE)  # scope: a tenant or key, and all below it
TAG = "tag:"  # and a name: by the value of that tag
SUMMED = (*AMOUNTS, *COUNTS, *LATENCIES)
PAGE = 100
HOUR_S = 3_600
LOOKED_UP_MAX = 400  # spans of a key that are looked up one by one


class Question(msgspec.Struct, frozen=True):
    """What was used from a moment up to, not including, another (0: until now).

    group_by: of GROUPS, or `tag:NAME`. filters: values by FILTERS, or `tag:NAME`: all names must fit, of each any value. A tenant means all below it.
    zone: whose days and hours; when clocks are put back, two hours are one.
    """

    group_by: tuple[str, ...] = ()
    filters: Mapping[str, Sequence[str]] = {}
    start_ms: int = 0
    end_ms: int = 0
    zone: str = "UTC"


class Figures(msgspec.Struct, frozen=True):
    """Requests and what became of them, tokens by class, money. `requests` are all that came with a key, `counted` those that limits count."""

    requests: int = 0
    counted: int = 0
    attempts: int = 0
    refused: int = 0  # by a limit
    throttled: int = 0  # answered 429, whoever's limit it was
    errors: int = 0
    fallbacks: int = 0
    cache_hits: int = 0
    answers: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cost_nano_usd: int = 0
    saved_nano_usd: int = 0  # by answers from the cache
    p50_us: int | None = None  # of answers
    p95_us: int | None = None


class Group(msgspec.Struct, frozen=True):
    """The figures of one combination of what was grouped by."""

    group: dict[str, str]
    figures: Figures


class Usage(msgspec.Struct, frozen=True):
    """A page of groups, in the order of their names, and the total of all pages."""

    groups: list[Group]
    total: Figures
    next: str  # for the page after this one; "" if there is none


class Key(msgspec.Struct, frozen=True):
    """What a sum is of, before it is put into its group. Empty where it was not asked for."""

    key_id: str = ""
    model: str = ""
    deployment: str = ""
    time_s: int = 0  # in the question's zone: what a clock there shows
    user: str = ""
    tags: str = ""


class Sums:
    """Adds up figures by group."""

    def __init__(self, group_by: Sequence[str], zone: str = "UTC") -> None:
        """zone: whose days and hours records are put into. Raises ValueError for a name that is none."""
        unknown = [name for name in group_by if name not in GROUPS and not name.startswith(TAG)]
        if unknown:
            raise ValueError(f"group_by: {unknown[0]!r} is none of {', '.join(GROUPS)}, {TAG}NAME")
        self._names = tuple(group_by)
        self._zone = ZoneInfo(zone)
        self._sums: dict[tuple[str, ...], list[int]] = {}

    def add(self, key: Key, amounts: Iterable[int]) -> None:
        """amounts: by SUMMED."""
        place = tuple([_part(name, key) for name in self._names])
        into = self._sums.get(place)
        if into is None:
            self._sums[place] = list(amounts)
        else:
            self._sums[place] = [have + more for have, more in zip(into, amounts, strict=True)]

    def add_record(self, record: Record) -> None:
        """A request as its record tells it."""
        model = "" if record.error == UNKNOWN_MODEL else record.model
        time_s = record.time_ms // 1000
        key = Key(record.key_id, model, record.deployment, time_s + _offset_s(self._zone, time_s), record.client_user, record.tags)
        amounts = record.input_tokens, record.output_tokens, record.cost_nano_usd
        self.add(key, (int(bool(record.attempts)), len(record.attempts), *amounts, *counts(record)))

    def usage(self, limit: int = PAGE, after: str = "") -> Usage:
        """A page of them. after: `next` of the page before. Raises ValueError if that cannot be."""
        if after and not after.isdecimal():
            raise ValueError("after: is no place in these pages")
        start, places = int(after or 0), sorted(self._sums)
        total = [sum(column) for column in zip(*self._sums.values(), strict=True)] or [0] * len(SUMMED)
        groups = [Group(dict(zip(self._names, place, strict=True)), figures(self._sums[place])) for place in places[start : start + limit]]
        return Usage(groups, figures(total), str(start + limit) if start + limit < len(places) else "")


def figures(amounts: Sequence[int]) -> Figures:
    """From sums by SUMMED."""
    named = dict(zip(SUMMED, amounts, strict=False))
    latencies = amounts[len(AMOUNTS) + len(COUNTS) :]
    named["counted"], named["requests"] = named["requests"], named["records"]
    told = {name: named[name] for name in Figures.__struct_fields__ if name in named}
    return Figures(**told, p50_us=quantile_us(latencies, 0.5), p95_us=quantile_us(latencies, 0.95))


def _part(name: str, key: Key) -> str:
    parts = {"key": key.key_id, "model": key.model, "deployment": key.deployment, "label": key.user}
    match name:
        case "tenant":
            return key.key_id.partition("/@")[0]
        case "provider":
            return key.deployment.partition("/")[0]
        case "day":
            return _moment(key.time_s, "%Y-%m-%d")
        case "hour":
            return _moment(key.time_s, "%Y-%m-%dT%H")
    return parts[name] if name in parts else read_tags(key.tags).get(name.removeprefix(TAG), "")


def _moment(time_s: int, form: str) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime(form)


# -- questions ------------------------------------------------------------------------------------------------------------------------------


def usage(connection: Connection, question: Question) -> Sums:
    """Raises ValueError for names that are none."""
    sums = Sums(question.group_by)
    names = {*question.group_by, *question.filters}
    rows = any(name in ROWS_ALONE or name.startswith(TAG) for name in names)
    for table, from_s, to_s, offset_s in _of_rows(connection, question) if rows else _of_sums(connection, question):
        ask = _from_rows if table is requests else _from_sums
        for key, amounts in ask(connection, question, table, from_s, to_s, offset_s):
            sums.add(key, amounts)
    return sums


Span = tuple[Table, int, int, int]  # a table's rows from a second up to, not including, another; by how many seconds clocks are ahead of UTC then


def _of_sums(connection: Connection, question: Question) -> Iterator[Span]:
    """What covers a question's time, each moment once, where sums suffice."""
    quarters_from_s: int = connection.execute(select(meta.c.quarters_from_s)).scalar_one()
    start_s = question.start_ms // 1000 // QUARTER_S * QUARTER_S
    end_s = -(-question.end_ms // (1000 * QUARTER_S)) * QUARTER_S if question.end_ms else NEVER_S
    if "hour" in question.group_by:
        yield from _zoned(connection, question, usage_quarters, max(start_s, quarters_from_s), end_s)
        return
    if start_s < quarters_from_s:
        start_s = start_s // DAY_S * DAY_S
    if end_s < quarters_from_s:
        end_s = -(-end_s // DAY_S) * DAY_S
    local_from_s = max(start_s, quarters_from_s) if "day" in question.group_by and question.zone != "UTC" else end_s
    yield from ((*span, 0) for span in cover(start_s, min(end_s, local_from_s), [usage_days, usage_quarters]))
    yield from _zoned(connection, question, usage_quarters, local_from_s, end_s)


def _of_rows(connection: Connection, question: Question) -> Iterator[Span]:
    """The ends are the question's own, which has milliseconds."""
    start_s, end_s = question.start_ms // 1000, -(-question.end_ms // 1000) if question.end_ms else NEVER_S
    return _zoned(connection, question, requests, start_s, end_s)


def _zoned(connection: Connection, question: Question, table: Table, from_s: int, to_s: int) -> Iterator[Span]:
    """Split where clocks are changed, which they are at full quarters of an hour, UTC."""
    if from_s >= to_s or question.zone == "UTC":
        yield from [(table, from_s, to_s, 0)] if from_s < to_s else []
        return
    unit = 1000 if table is requests else 1
    first, last = ends(connection, table)
    if first is None or last is None:
        return
    from_s, to_s = max(from_s, first // unit), min(to_s, last // unit + QUARTER_S)
    zone = ZoneInfo(question.zone)
    offset_s = _offset_s(zone, from_s)
    for time_s in range(from_s // QUARTER_S * QUARTER_S + QUARTER_S, to_s, QUARTER_S):
        if (now_s := _offset_s(zone, time_s)) != offset_s:
            yield table, from_s, time_s, offset_s
            from_s, offset_s = time_s, now_s
    yield table, from_s, to_s, offset_s


def _offset_s(zone: ZoneInfo, time_s: int) -> int:
    """Of the past with its odd minutes, that zone's own: rounded to the quarter."""
    offset = datetime.fromtimestamp(time_s, zone).utcoffset()
    assert offset is not None
    return round(offset.total_seconds() / QUARTER_S) * QUARTER_S


def daily(connection: Connection, filters: Mapping[str, Sequence[str]], unit: Unit, days: int, now_ms: int) -> list[tuple[str, int]]:
    """What was used of a unit on each of the last days (in UTC), the present one last. Raises ValueError."""
    if unit is Unit.CONCURRENT:
        raise ValueError("what is in flight is not in the records")
    first_s = (now_ms // 1000 // DAY_S - days + 1) * DAY_S
    found = usage(connection, Question(("day",), filters, first_s * 1000, (first_s + days * DAY_S) * 1000)).usage(days)
    by_day = {group.group["day"]: _of_unit(unit, group.figures) for group in found.groups}
    named = [_part("day", Key(time_s=first_s + i * DAY_S)) for i in range(days)]
    return [(day, by_day.get(day, 0)) for day in named]


def _of_unit(unit: Unit, used: Figures) -> int:
    match unit:
        case Unit.REQUESTS:
            return used.counted
        case Unit.INPUT_TOKENS:
            return used.input_tokens
        case Unit.OUTPUT_TOKENS:
            return used.output_tokens
        case Unit.TOKENS:
            return used.input_tokens + used.output_tokens
    return used.cost_nano_usd


def ends(connection: Connection, table: Table) -> tuple[int | None, int | None]:
    """The first and the last time in a table, each by its own look at the index."""
    time = request_rows.c.time_ms if table is requests else table.c.time_s
    first, last = connection.execute(select(select(func.min(time)).scalar_subquery(), select(func.max(time)).scalar_subquery())).one()
    return first, last


Found = Iterator[tuple[Key, Sequence[int]]]


def _from_sums(connection: Connection, question: Question, table: Table, from_s: int, to_s: int, offset_s: int) -> Found:
    c = table.c
    time_s = _local(c.time_s, question, offset_s)
    names = _parts(question.group_by, {"time_s": time_s, "key_id": c.key_id, "model": c.model, "deployment": c.deployment})
    found = _select(names, [func.sum(c[name]).cast(BigInteger) for name in SUMMED])
    span_s = SPANS_S[table]
    if "key" in question.filters and (to_s - from_s) // span_s <= LOOKED_UP_MAX:  # they have few rows among all of their organization
        found = found.where(c.time_s.in_(range(from_s, to_s, span_s)))
    else:
        found = found.where(c.time_s >= from_s, c.time_s < to_s)
    yield from _read(connection, found.where(*conditions(table, question.filters)), list(names))


def _from_rows(connection: Connection, question: Question, table: Table, from_s: int, to_s: int, offset_s: int) -> Found:
    c = table.c
    time_s = _local(c.time_ms // 1000, question, offset_s)
    parts = {"time_s": time_s, "key_id": c.key_id, "model": counted_model(), "deployment": c.deployment}
    names = _parts(question.group_by, parts | {"user": c.client_user, "tags": c.tags})
    within = c.time_ms >= from_s * 1000, c.time_ms < to_s * 1000, *_within(question)
    found = sum_rows({f"of_{name}": part for name, part in names.items()}, *within, *conditions(table, question.filters))
    yield from _read(connection, found, list(names))


def _local(time_s: ColumnElement[int], question: Question, offset_s: int) -> ColumnElement[int]:
    span_s = HOUR_S if "hour" in question.group_by else DAY_S
    return (time_s + offset_s) // span_s * span_s


def _select(names: Mapping[str, ColumnElement[Any]], amounts: Sequence[ColumnElement[int]]) -> Select[Any]:
    """Labels are no names of columns: PostgreSQL would group by those."""
    labels = [part.label(f"of_{name}") for name, part in names.items()]
    return select(*labels, *amounts).group_by(*[label.name for label in labels])


def _read(connection: Connection, found: Select[Any], names: list[str]) -> Found:
    for row in connection.execute(found):
        amounts = row[len(names) :]
        if amounts[0] is not None:  # of nothing
            yield Key(**dict(zip(names, row, strict=False))), amounts


def _parts(group_by: Sequence[str], parts: dict[str, ColumnElement[Any]]) -> dict[str, ColumnElement[Any]]:
    """Those that are needed to tell the groups apart."""
    of = {"tenant": "key_id", "key": "key_id", "provider": "deployment", "day": "time_s", "hour": "time_s", "label": "user"}
    wanted = {"tags" if name.startswith(TAG) else of.get(name, name) for name in group_by}
    return {name: part for name, part in parts.items() if name in wanted}


def _within(question: Question) -> list[ColumnElement[bool]]:
    c = requests.c
    return [c.time_ms >= question.start_ms, *([c.time_ms < question.end_ms] if question.end_ms else [])]


def conditions(table: Table, filters: Mapping[str, Sequence[str]]) -> Iterator[ColumnElement[bool]]:
    """Each must hold. Raises ValueError for a name that is none."""
    c = table.c
    for name, values in filters.items():
        match name:
            case "tenant":
                yield or_(*[func.substr(c.key_id, 1, len(value) + 1) == value + "/" for value in values])
                yield c.tree.in_(sorted({EVERYTHING, *(value.partition("/")[0] for value in values)}))
            case "key":
                yield c.key_id.in_(values)
                yield c.tree.in_(sorted({EVERYTHING, *(value.partition("/")[0] for value in values)}))
            case "scope":
                yield or_(c.key_id.in_(values), *[func.substr(c.key_id, 1, len(value) + 1) == value + "/" for value in values])
                yield c.tree.in_(sorted({EVERYTHING, *(value.partition("/")[0] for value in values)}))
            case "model" | "deployment" | "refusal" | "error":
                yield c[name].in_(values)
            case "status":
                yield c.status.in_([int(value) for value in values])
            case "provider":
                yield or_(*[func.substr(c.deployment, 1, len(value) + 1) == value + "/" for value in values])
            case "label":
                yield c.client_user.in_(values)
            case _ if name.startswith(TAG):
                tags = "," + c.tags + ","
                yield or_(*[func.replace(tags, f",{name.removeprefix(TAG)}={value},", "") != tags for value in values])
            case _:
                raise ValueError(f"filters: {name!r} is none of {', '.join(FILTERS)}, {TAG}NAME")


# -- sums of rows ---------------------------------------------------------------------------------------------------------------------------


def counted_model() -> ColumnElement[str]:
    """The model that a row counts under."""
    return case((requests.c.error == UNKNOWN_MODEL, ""), else_=requests.c.model)


def sum_rows(parts: Mapping[str, ColumnElement[Any]], *conditions: ColumnElement[bool]) -> Select[Any]:
    """SUMMED, of rows of requests, by parts that get names: as figures.counts says it of one.

    Within each of its latencies first: to look at one row for each of them would take several times as long.
    """
    c = requests.c
    ended, answered = c.ended == 1, and_(c.ended == 1, c.status == 200)
    numbers: dict[str, ColumnElement[int]] = {
        "requests": _number(c.tries > 0),
        "attempts": c.tries,
        "records": c.ended,
        "refused": _number(and_(ended, c.refusal != "")),
        "throttled": _number(and_(ended, c.status == TOO_MANY)),
        "errors": _number(and_(ended, c.refusal == "", c.error != "")),
        "fallbacks": c.fell_back,
        "cache_hits": _number(and_(answered, c.cache == "hit")),
        "answers": _number(answered),
    }
    bucket = case(*[(c.latency_us <= high, i) for i, high in enumerate(BOUNDS_US)], else_=len(BOUNDS_US)).label("bucket")
    labels = [part.label(name) for name, part in parts.items()]
    sums = [func.sum(numbers[name] if name in numbers else c[name]).label(f"sum_{name}") for name in (*AMOUNTS, *COUNTS)]
    inner = select(*labels, bucket, *sums).where(*conditions).group_by(*[label.name for label in labels], "bucket").subquery()
    latencies = [func.sum(case((inner.c.bucket == i, inner.c.sum_answers), else_=0)) for i in range(len(LATENCIES))]
    outer = [func.sum(inner.c[f"sum_{name}"]) for name in (*AMOUNTS, *COUNTS)] + latencies
    names = [inner.c[name] for name in parts]
    return select(*names, *[one.cast(BigInteger) for one in outer]).group_by(*names)


def _number(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return case((condition, 1), else_=0)
