"""Idempotency keys and kept answers in the records' database, where the ledger is no Redis (core/once.py says what a store does).

A table of its own, made by whoever needs it first; a thread and a connection of their own, so that no answer of a megabyte is before the usage.
Times are those of the workers' clocks: replicas that share a database have clocks that agree within a few seconds, as their leases are a minute.
"""

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import BigInteger, Column, Connection, Index, LargeBinary, MetaData, Table, Text, delete, or_, select, text, update

from sluicegate.core.once import OTHER, RUNNING, TAKEN, Found, Kept, StoreUnavailable, pack, unpack
from sluicegate.records.database import Database
from sluicegate.records.rows import RecordsUnavailable
from sluicegate.records.schema import CREATION_LOCK, insert

TIMEOUT_S = 2.0
TIDY_MS = 60_000  # between two looks for what is over
TIDIED_AT_ONCE = 1_000

T = TypeVar("T")

metadata = MetaData()
# until_ms: end of the lease, or of the time for which the answer is kept.
keys = Table(
    "idempotency_keys",
    metadata,
    Column("name", Text, primary_key=True),
    *(Column(name, Text, nullable=False) for name in ("print", "owner")),
    Column("until_ms", BigInteger, nullable=False),
    Column("answer", LargeBinary),
    Index("idempotency_keys_until", "until_ms"),
)


class RecordsStore:
    """A Store in the records' database."""

    def __init__(self, url: str, time_ms: Callable[[], int], timeout_s: float = TIMEOUT_S) -> None:
        self._database = Database(url, timeout_s)
        self._time_ms = time_ms
        self._made = -1  # in which session the table was looked at
        self._tidied_ms = 0

    async def take(self, name: str, print: str, owner: str, lease_ms: int) -> Found:
        now_ms = self._time_ms()
        if now_ms - self._tidied_ms >= TIDY_MS:
            self._tidied_ms = now_ms
            await self._call(lambda connection: _tidy(connection, now_ms))
        return await self._call(lambda connection: _take(connection, name, print, owner, now_ms, now_ms + lease_ms))

    async def renew(self, name: str, print: str, owner: str, lease_ms: int) -> None:
        await self.take(name, print, owner, lease_ms)

    async def keep(self, name: str, print: str, owner: str, answer: Kept, kept_ms: int) -> None:
        now_ms = self._time_ms()
        row = {"print": print, "owner": owner, "until_ms": now_ms + kept_ms, "answer": pack(answer)}
        await self._call(lambda connection: _put(connection, name, row, now_ms))

    async def give_up(self, name: str, owner: str) -> None:
        mine = delete(keys).where(keys.c.name == name, keys.c.owner == owner, keys.c.answer.is_(None))
        await self._call(lambda connection: connection.execute(mine) and None)

    async def close(self) -> None:
        await self._database.close()

    async def _call(self, work: Callable[[Connection], T]) -> T:
        database = self._database
        try:
            if self._made != database.session:
                await database.call(_make)
                self._made = database.session
            return await database.call(work)
        except RecordsUnavailable as error:
            raise StoreUnavailable(str(error)) from None


def _make(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": CREATION_LOCK})
    metadata.create_all(connection)


def _put(connection: Connection, name: str, row: dict[str, object], now_ms: int) -> bool:
    """Writes a key that is free, or its owner's. False: it is another's."""
    mine = or_(keys.c.owner == row["owner"], keys.c.until_ms <= now_ms)
    put = insert(connection, keys).values(name=name, **row)
    put = put.on_conflict_do_update(index_elements=[keys.c.name], set_=row, where=mine)
    return connection.execute(put.returning(keys.c.name)).first() is not None


def _take(connection: Connection, name: str, print: str, owner: str, now_ms: int, until_ms: int) -> Found:
    """What is kept is found first: an owner that asks again after its answer has come does not take it back."""
    while True:
        row = connection.execute(select(keys.c.print, keys.c.owner, keys.c.answer).where(keys.c.name == name, keys.c.until_ms > now_ms)).first()
        if row is not None and row.owner == owner and row.answer is None:
            connection.execute(update(keys).where(keys.c.name == name, keys.c.owner == owner).values(until_ms=until_ms))
            return TAKEN
        if row is not None:
            return OTHER if row.print != print else RUNNING if row.answer is None else Found("finished", unpack(row.answer))
        if _put(connection, name, {"print": print, "owner": owner, "until_ms": until_ms, "answer": None}, now_ms):
            return TAKEN


def _tidy(connection: Connection, now_ms: int) -> None:
    over = select(keys.c.name).where(keys.c.until_ms <= now_ms).limit(TIDIED_AT_ONCE)
    connection.execute(delete(keys).where(keys.c.name.in_(over), keys.c.until_ms <= now_ms))
