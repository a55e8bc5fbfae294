"""Sums of usage for many questions at once: one query per distinct span of time, whatever the number of counters.

A query groups by key and model (or by deployment and model); what it found is then added up in Python from each key to every scope above it.
The middle of a span comes from the days, what is left of it from the quarters of an hour, and its ends from the seconds. Where seconds are no longer
kept, a span has the whole quarters in which it begins and ends, and where those are not, whole days: more is counted than was used, never less.
Likewise a row counts in the last slice that it can belong to.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import BigInteger, Connection, Select, Table, func, select

from sluicegate.core.limits import Unit
from sluicegate.records import adjustments
from sluicegate.records.rows import Sum
from sluicegate.records.schema import AMOUNTS, DAY_S, QUARTER_S, SPANS_S, meta, usage, usage_quarters

EVERYTHING = "*"
COARSE_SLICE_MS = QUARTER_S * 1000 // 4  # a row of a quarter then counts at most four slices too long; the seconds of hours would be too many
NEVER_S = DAY_S * 2**36

# Of a scope and slice, by model.
Totals = dict[tuple[str, int], dict[str, list[int]]]


def answer(connection: Connection, sums: Sequence[Sum]) -> list[int | dict[int, int]]:
    """The answers, in the order of the questions. The connection sees all of it as of one moment."""
    kept = connection.execute(select(meta.c.seconds_from_s, meta.c.quarters_from_s)).one()
    groups: dict[tuple[int, int, int, bool], list[int]] = {}
    for index, one in enumerate(sums):
        groups.setdefault((one.start_ms, one.end_ms, one.slice_ms, one.deployment), []).append(index)
    answers: list[int | dict[int, int]] = [0] * len(sums)
    for indices in groups.values():
        first = sums[indices[0]]
        scopes = {sums[index].scope_id for index in indices}
        totals = _totals(connection, first, scopes, *kept)
        numbers = sorted({number for _, number in totals})
        for index in indices:
            amounts = {number: _amount(sums[index], totals.get((sums[index].scope_id, number), {})) for number in numbers}
            answers[index] = {number: amount for number, amount in amounts.items() if amount} if first.slice_ms else amounts.get(0, 0)
    for index, more in enumerate(adjustments.amounts(connection, sums)):
        used = answers[index]
        if more and isinstance(used, int):
            answers[index] = max(0, used + more)
    return answers


def _totals(connection: Connection, first: Sum, scopes: set[str], kept_from_s: int, quarters_from_s: int) -> Totals:
    totals: Totals = defaultdict(lambda: defaultdict(lambda: [0] * len(AMOUNTS)))
    for table, from_s, to_s in spans(first, kept_from_s, quarters_from_s):
        for name, model, number, *amounts in connection.execute(query(table, first, scopes, from_s, to_s)):
            for scope in [name] if first.deployment else above(name):
                if scope in scopes:
                    into = totals[scope, number][model]
                    for i, amount in enumerate(amounts):
                        into[i] += amount
    return totals


Span = tuple[Table, int, int]  # a table's rows from a second up to, not including, another


def spans(one: Sum, kept_from_s: int, quarters_from_s: int = 0) -> list[Span]:
    """What covers a question's time, each moment once. Since when seconds are kept, a full quarter, and since when quarters are, a full day."""
    start_s = one.start_ms // 1000
    end_s = -(-one.end_ms // 1000) if one.end_ms else NEVER_S
    for from_s, span_s in ((kept_from_s, QUARTER_S), (quarters_from_s, DAY_S)):
        if start_s < from_s:
            start_s = start_s // span_s * span_s
        if end_s < from_s:
            end_s = -(-end_s // span_s) * span_s
    if not one.slice_ms:
        return cover(start_s, end_s, list(SPANS_S))
    if one.slice_ms >= COARSE_SLICE_MS:
        return cover(start_s, end_s, [usage_quarters, usage])
    past = cover(start_s, min(end_s, kept_from_s), [usage_quarters])  # too coarse, but there is nothing else
    return past + cover(max(start_s, kept_from_s), end_s, [usage])


def cover(from_s: int, to_s: int, tables: list[Table]) -> list[Span]:
    """From the coarsest table what it has whole, the rest from the others."""
    if from_s >= to_s:
        return []
    table, *finer = tables
    if not finer:
        return [(table, from_s, to_s)]
    first_s, last_s = -(-from_s // SPANS_S[table]) * SPANS_S[table], to_s // SPANS_S[table] * SPANS_S[table]
    if first_s >= last_s:
        return cover(from_s, to_s, finer)
    return [*cover(from_s, first_s, finer), (table, first_s, last_s), *cover(last_s, to_s, finer)]


def query(table: Table, one: Sum, scopes: set[str], from_s: int, to_s: int) -> Select[Any]:
    """Rows of (key or deployment, model, slice number, amounts...)."""
    c = table.c
    name = c.deployment if one.deployment else c.key_id
    found = select(name, c.model)
    if one.slice_ms:
        found = found.add_columns(((c.time_s * 1000 + SPANS_S[table] * 1000 - 1) // one.slice_ms).label("slice"))
    else:
        found = found.add_columns(func.min(0).label("slice"))
    found = found.add_columns(*(func.sum(c[amount]).cast(BigInteger) for amount in AMOUNTS)).where(c.time_s >= from_s, c.time_s < to_s)
    if one.deployment:
        found = found.where(c.deployment.in_(sorted(scopes)))
    elif EVERYTHING not in scopes:  # a key's rows are in its organization's tree or, as long as there are global limits, in that of all
        found = found.where(c.tree.in_(sorted({EVERYTHING, *(scope.partition("/")[0] for scope in scopes)})))
    return found.group_by(name, c.model, *(["slice"] if one.slice_ms else []))


def above(key_id: str) -> Iterator[str]:
    """The scopes that a key's usage counts in: `*`, `acme`, `acme/team-a`, `acme/team-a/@laptop`."""
    yield EVERYTHING
    end = key_id.find("/")
    while end >= 0:
        yield key_id[:end]
        end = key_id.find("/", end + 1)
    yield key_id


def _amount(one: Sum, by_model: dict[str, list[int]]) -> int:
    return sum(_of_unit(one, amounts) for model, amounts in by_model.items() if one.models is None or model in one.models)


def _of_unit(one: Sum, amounts: list[int]) -> int:
    requests, attempts, input_tokens, output_tokens, cost_nano_usd = amounts
    match one.unit:
        case Unit.REQUESTS:
            return attempts if one.deployment else requests
        case Unit.INPUT_TOKENS:
            return input_tokens
        case Unit.OUTPUT_TOKENS:
            return output_tokens
        case Unit.TOKENS:
            return input_tokens + output_tokens
        case Unit.USD:
            return cost_nano_usd
        case Unit.CONCURRENT:
            raise ValueError("what is in flight is not in the records")
