#!/usr/bin/env python3
"""How fast the records answer at ten million requests: rows made inside PostgreSQL, summed up by the product's own job, then asked for a month.

    python bench/records.py [--rows 10000000] [--url postgresql://...] [--json FILE]

Without --url a PostgreSQL of its own is started (the programs must be there) and removed. Needs some 6 GB of disk for ten million rows.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, text

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from sluicegate.records.database import Database
from sluicegate.records.queries import Question
from sluicegate.records.schema import request_rows, request_shapes
from sluicegate.records.store import Records

START_S = 1_793_491_200  # 2026-11-01, in UTC
MONTH_S = 30 * 86_400
TEAMS, KEYS, MODELS = 40, 5, 6
PATIENCE_S = 3_600.0

# By column; what is left out is nothing. `i` counts the rows, which are spread over the month.
VALUES = {
    "time_ms": f"{START_S}000::bigint + (i * {MONTH_S}000.0 / :rows)::bigint",
    "tree": "'org' || i % 4",
    "tenant": f"'org' || i % 4 || '/team' || i % {TEAMS}",
    "key_id": f"'org' || i % 4 || '/team' || i % {TEAMS} || '/@key' || i / {TEAMS} % {KEYS}",
    "model": f"'model' || i / 7 % {MODELS}",
    "deployment": f"'provider' || i / 7 % {MODELS} % 3 || '/model' || i / 7 % {MODELS}",
    "provider": f"'provider' || i / 7 % {MODELS} % 3",
    "dialect": "'openai_chat'",
    "status": "CASE WHEN i % 50 = 0 THEN 429 ELSE 200 END",
    "refusal": "CASE WHEN i % 50 = 0 THEN 'rate' ELSE '' END",
    "error": "CASE WHEN i % 50 = 0 THEN 'rate_limit_exceeded' ELSE '' END",
    "attempts": "CASE WHEN i % 50 = 0 THEN '[]' ELSE '' END",
    "tries": "CASE WHEN i % 50 = 0 THEN 0 ELSE 1 END",
    "input_tokens": "CASE WHEN i % 50 = 0 THEN 0 ELSE 100 + i % 400 END",
    "output_tokens": "CASE WHEN i % 50 = 0 THEN 0 ELSE 50 + i % 250 END",
    "cost_nano_usd": "CASE WHEN i % 50 = 0 THEN 0 ELSE 10000 + i % 90000 END",
    "latency_us": "200000 + i * 7919 % 4000000",
    "client_user": "'user' || i % 1000",
    "day_s": f"{START_S + MONTH_S}",
    "ended": "1",
}
VALUES["request_id"] = f"'req_' || lpad(to_hex({VALUES['time_ms']}), 11, '0') || '_b' || to_hex(i)"
VALUES["shape"] = f"hashtextextended({VALUES['key_id']} || ' ' || {VALUES['model']} || ' ' || {VALUES['status']}, 0)"


def make_rows(connection: Connection, rows: int, from_row: int, to_row: int) -> None:
    """Rows of a month, made by the server. From a row up to, not including, another of them."""
    some = "generate_series(CAST(:from_row AS bigint), CAST(:to_row AS bigint)) AS i"
    for table, once, again in ((request_shapes, "DISTINCT", "ON CONFLICT DO NOTHING"), (request_rows, "", "")):
        empty = {column.name: "''" if column.type.python_type is str else "0" for column in table.c}
        values = ", ".join(VALUES.get(name, nothing) for name, nothing in empty.items())
        statement = f"INSERT INTO {table.name} SELECT {once} {values} FROM {some} {again}"
        connection.execute(text(statement), {"rows": rows, "from_row": from_row, "to_row": to_row - 1})


async def fill(url: str, rows: int, at_once: int = 250_000) -> None:
    """Makes the tables and the rows."""
    database = Database(url, PATIENCE_S)
    try:
        for start in range(0, rows, at_once):
            await database.call(lambda connection, start=start: make_rows(connection, rows, start, min(rows, start + at_once)))
        await database.call(lambda connection: connection.execute(text("ANALYZE request_rows, request_shapes")) and None)
    finally:
        await database.close()


async def measure(url: str, rows: int) -> dict[str, Any]:
    """Seconds of each step, and what came out."""
    records, took = Records(url, PATIENCE_S), {}

    async def timed(name: str, work: Any) -> Any:
        started = time.perf_counter()
        found = await work
        took[name] = round(time.perf_counter() - started, 3)
        return found

    month = {"start_ms": START_S * 1000, "end_ms": (START_S + MONTH_S) * 1000}
    try:
        await timed("rows made", fill(url, rows))
        built = await timed("summed up", records.build_sums())
        by_team = await timed("month by team and model", records.usage(Question(("tenant", "model"), {}, **month), 10_000))
        await timed("month by day of a team", records.usage(Question(("day",), {"tenant": ["org1/team1"]}, **month), 10_000))
        await timed("a day by hour", records.usage(Question(("hour",), {}, START_S * 1000, (START_S + 86_400) * 1000), 10_000))
        await timed("a page of a key's requests", records.requests(Question((), {"key": ["org1/team1/@key0"]}, **month)))
        await timed("a day by label, from the rows", records.usage(Question(("label",), {}, START_S * 1000, (START_S + 86_400) * 1000), 10_000))
    finally:
        await records.close()
    return {"rows": rows, "built": built, "groups": len(by_team.groups), "requests": by_team.total.requests, "seconds": took}


@contextlib.contextmanager
def server(url: str) -> Iterator[str]:
    if url:
        yield url
        return
    from support_postgres import fresh, running_postgres  # noqa: PLC0415  (needs what the tests need)

    with running_postgres() as own:
        yield fresh(own)


def main() -> None:
    """Prints seconds by step."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--url", default="", help="an empty database")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with server(options.url) as url:
        found = asyncio.run(measure(url, options.rows))
    for name, took_s in found["seconds"].items():
        print(f"{took_s:10.3f} s  {name}")
    assert found["built"] == found["requests"] == options.rows, found
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
