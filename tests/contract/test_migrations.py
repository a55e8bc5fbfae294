"""Databases of older programs are taken over without loss, and have the same tables afterwards as new ones."""

import asyncio
import subprocess
import sys

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, inspect, text

from sluicegate.core.record import Record, Spent
from sluicegate.records import aside
from sluicegate.records.database import Database
from sluicegate.records.migrations.versions import version_3
from sluicegate.records.queries import Question
from sluicegate.records.rows import RecordsUnavailable
from sluicegate.records.schema import SCHEMA_VERSION, metadata
from support_records import SECOND, asked, opened, used

AMOUNTS = ", ".join(f"{name} BIGINT NOT NULL" for name in ("requests", "attempts", "input_tokens", "output_tokens", "cost_nano_usd"))


def old_tables(version: int, dialect: str) -> list[str]:
    """As programs of that version made them."""
    identity, whole = (", identity TEXT NOT NULL", ", 'whole'") if version >= 2 else ("", "")
    made = [
        "CREATE TABLE meta (one INTEGER NOT NULL PRIMARY KEY, version BIGINT NOT NULL, round BIGINT NOT NULL,"
        f" seconds_from_s BIGINT NOT NULL{identity})",
        f"INSERT INTO meta VALUES (1, {version}, 7, 0{whole})",
        "CREATE TABLE writers (writer TEXT NOT NULL PRIMARY KEY, upto BIGINT NOT NULL)",
        "INSERT INTO writers VALUES ('w', 5)",
        "CREATE TABLE seeded (tree TEXT NOT NULL, writer TEXT NOT NULL, upto BIGINT NOT NULL, PRIMARY KEY (tree, writer))",
        "CREATE INDEX seeded_of_writer ON seeded (writer)",
        "CREATE TABLE trees (tree TEXT NOT NULL PRIMARY KEY, epoch TEXT NOT NULL, seq BIGINT NOT NULL, status TEXT NOT NULL, round BIGINT NOT NULL,"
        " incarnation TEXT NOT NULL, leader TEXT NOT NULL, lease_ms BIGINT NOT NULL)",
        "CREATE INDEX trees_of_status ON trees (status)",
        "CREATE TABLE workers (worker TEXT NOT NULL PRIMARY KEY, beat_ms BIGINT NOT NULL, round BIGINT NOT NULL, incarnation TEXT NOT NULL)",
    ]
    rowid = " WITHOUT ROWID" if dialect == "sqlite" else ""
    for name, time_s in {"usage": SECOND, "usage_quarters": SECOND, "usage_days": SECOND // 86_400 * 86_400}.items():
        place = "time_s BIGINT NOT NULL, tree TEXT NOT NULL, key_id TEXT NOT NULL, model TEXT NOT NULL, deployment TEXT NOT NULL"
        made += [
            f"CREATE TABLE {name} ({place}, {AMOUNTS}, PRIMARY KEY (time_s, tree, key_id, model, deployment)){rowid}",
            f"CREATE INDEX {name}_of_tree ON {name} (tree, time_s)",
            f"CREATE INDEX {name}_of_deployment ON {name} (deployment, time_s)",
            f"INSERT INTO {name} VALUES ({time_s}, 'acme', 'acme/team/@lab', 'chat', 'up/small', 3, 4, 10, 20, 5)",
        ]
    return made


async def make_old(url: str, version: int, *more: str) -> None:
    """In place of whatever is there."""
    database = Database(url, 20.0)
    database._prepared = database.session  # it is not looked at

    def work(connection: Connection) -> None:
        metadata.drop_all(connection)
        for statement in (*old_tables(version, connection.dialect.name), *more):
            connection.execute(text(statement))

    try:
        await database.call(work)
    finally:
        await database.close()


async def look(url: str, work: object) -> object:
    database = Database(url, 20.0)
    try:
        return await database.call(work)  # type: ignore[arg-type]
    finally:
        await database.close()


async def forget(url: str, *what: str) -> None:
    """Drops it."""
    database = Database(url, 20.0)
    database._prepared = database.session

    def work(connection: Connection) -> None:
        for one in what:
            connection.execute(text(f"DROP {one}"))

    try:
        await database.call(work)
    finally:
        await database.close()


@pytest.mark.parametrize("version", [1, 2])
async def test_an_older_database_is_taken_over(records_url: str, version: int) -> None:
    """Several workers open it at once: what was used is there, how far writers were too, and an identity; then it is as a new one is."""
    await make_old(records_url, version)
    async with opened(records_url) as one, opened(records_url) as two:
        assert await asyncio.gather(one.sums([asked()]), two.sums([asked()])) == [[3], [3]]
        assert await one.written("w") == 5
        assert one.identity == two.identity == (one.identity if version == 1 else "whole") != ""
        await one.add("w", 6, [used()], 5)
        assert await two.sums([asked(), asked(start_s=SECOND - 86_400 * 40)]) == [4, 4]

    def differences(connection: Connection) -> object:
        versions = [connection.execute(text(f"SELECT {name}")).scalar() for name in ("version FROM meta", "version_num FROM alembic_version")]
        indexes = {index["name"] for table in metadata.tables for index in inspect(connection).get_indexes(table)}
        wanted = {index.name for table in metadata.tables.values() for index in table.indexes}
        return versions, compare_metadata(MigrationContext.configure(connection), metadata), wanted - indexes

    versions, found, missing = await look(records_url, differences)  # type: ignore[misc]
    assert versions == [SCHEMA_VERSION, str(SCHEMA_VERSION)]
    assert [change for change in found if "alembic_version" not in str(change)] == []
    assert missing == set()


async def test_a_migration_that_fails_changes_nothing(records_url: str) -> None:
    """A table of the same name is in the way: that is told each time, and the old tables are as they were."""
    await make_old(records_url, 2, "CREATE TABLE requests (x BIGINT)")
    for _ in range(2):
        with pytest.raises(RecordsUnavailable, match="requests"):
            await look(records_url, lambda connection: None)
    await forget(records_url, "TABLE requests")
    await make_old(records_url, 2)
    assert await look(records_url, lambda connection: connection.execute(text("SELECT version FROM meta")).scalar()) == SCHEMA_VERSION


def old_row(number: int) -> dict[str, object]:
    """As a program of version 5 wrote it."""
    said = {"tree": "acme", "tenant": "acme/team", "key_id": "acme/team/@lab", "model": "chat", "deployment": "up/small", "provider": "up"}
    amounts = {"input_tokens": number, "output_tokens": 2, "cost_nano_usd": 3, "latency_us": 9_000}
    told = {"attempts": '[{"deployment":"up/small","outcome":"200"}]', "tries": 1, "status": 200, "ended": 1, "client_user": f"user{number % 2}"}
    nothing = {name: "" if name in version_3.WORDS else 0 for name in version_3.ROW}
    return {"request_id": f"req_0123456789ab{number:08x}", **nothing, "time_ms": SECOND * 1000 + number, **said, **amounts, **told}


async def make_version_5(url: str, rows: int) -> None:
    """A database of that version, with requests."""
    async with opened(url) as records:
        await records.add("w", 1, [used(requests=rows)])
    await forget(url, "VIEW requests", "TABLE request_rows", "TABLE request_shapes")
    database = Database(url, 20.0)
    database._prepared = database.session

    def work(connection: Connection) -> None:
        fields = ", ".join(f"{name} {'TEXT' if name in version_3.WORDS else 'BIGINT'} NOT NULL" for name in version_3.ROW)
        connection.execute(text(f"CREATE TABLE requests (request_id TEXT NOT NULL PRIMARY KEY, {fields})"))
        names = ", ".join(old_row(0))
        values = ", ".join(f":{name}" for name in old_row(0))
        connection.execute(text(f"INSERT INTO requests ({names}) VALUES ({values})"), [old_row(number) for number in range(rows)])
        for table in ("usage_quarters", "usage_days"):
            connection.execute(text(f"ALTER TABLE {table} DROP COLUMN saved_nano_usd"))
        connection.execute(text("UPDATE meta SET version = 5"))

    try:
        await database.call(work)
    finally:
        await database.close()


async def test_rows_of_version_5_are_brought_in_bit_by_bit(records_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest first, as somebody writes; when the last has come, each is found by its id, by whose it is and by its label."""
    monkeypatch.setattr(aside, "ROWS_AT_ONCE", 4)
    await make_version_5(records_url, 10)
    async with opened(records_url) as records:
        await records.add("w", 2, [used()], 1)
        assert sorted(row["input_tokens"] for row in (await records.requests(Question())).rows) == [6, 7, 8, 9]
        for number in (3, 4, 5):
            await records.add("w", number, [used()], number - 1)
        found = (await records.requests(Question((), {"key": ["acme/team/@lab"], "label": ["user1"]}))).rows
        assert [row["input_tokens"] for row in found] == [9, 7, 5, 3, 1]
        one = await records.request(f"req_0123456789ab{7:08x}")
        assert one is not None
        assert {name: one[name] for name in old_row(7)} == old_row(7)
        assert await look(records_url, lambda connection: inspect(connection).has_table("requests_of_5")) is False


async def test_a_row_of_version_5_that_has_gone_on_meanwhile(records_url: str) -> None:
    """A line about its request came before it was brought in: the row has what both say that it was charged, and so it ended."""
    await make_version_5(records_url, 3)
    there = old_row(1)
    request_id, time_ms = str(there["request_id"]), int(str(there["time_ms"]))
    ended = Record(request_id, time_ms, "acme/team/@lab", "chat", "up/small", status=502)
    async with opened(records_url) as records:
        lines = [("acme", f"{request_id}.2", ended, Spent("acme/team/@lab", "chat", "up/small", time_ms, 1, 1, 10, 20, 30))]
        await records.add("w", 2, [used()], 1, lines)
        one = await records.request(request_id)
        assert one is not None and [one[name] for name in ("input_tokens", "output_tokens", "cost_nano_usd", "status")] == [11, 22, 33, 502]
        assert len((await records.requests(Question())).rows) == 3


def test_alembic_is_imported_only_when_it_is_needed(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A new database, and one that is up to date, are opened without it."""
    url = f"sqlite:///{tmp_path_factory.mktemp('fresh')}/records.db"
    script = (
        "import asyncio, sys\nfrom sluicegate.records.store import Records\n"
        "async def run():\n    for _ in range(2):\n"
        "        records = Records(sys.argv[1])\n        await records.open()\n        await records.close()\n"
        "asyncio.run(run())\nassert 'alembic' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script, url], check=True)
