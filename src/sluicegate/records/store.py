"""The records: what was used, durably, and what all workers agree on about the trees' state in the ledger (ledger.md 7).

Usage arrives as sums from each worker's journal. A writer (one run of a worker) counts its lines; `add` moves its mark `upto` in the same
transaction that adds the rows, so that a batch counts once however often it is sent. With the sums come the lines themselves, for the table
`requests` (requests.py).

Lost state. A tree's row is `open` (epoch is good), `lost` (being given up) or `seeding` (a new epoch is being announced). Changes are compare-and-set
on the row; each change to lost or seeding takes a new round, one more than any tree has had.

Why a seeding is exact. An `add` is one transaction: rows and mark. `seed` reads usage and marks from one snapshot (PostgreSQL: REPEATABLE READ;
SQLite: the write lock), so for each writer it sees the rows of exactly the lines up to the mark that it copies into `seeded`: a batch that commits
later is in neither. `included` then tells, for each line, whether the sums have it. No lock between `add` and `seed` is needed.
Round and lead are protected by row locks: a snapshot that has grown old by the time the row is free is refused by the server and taken again.

How it fails: RecordsUnavailable after some seconds at most (database.py). The outcome is then unknown: see `add` on how to go on.
"""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from operator import add
from typing import Any

from sqlalchemy import Connection, Table, case, delete, literal, or_, select, text, update

from sluicegate.core.limits import Unit
from sluicegate.records import aside, listing, queries, requests, retention, rollups
from sluicegate.records import sums as totals
from sluicegate.records.database import Database
from sluicegate.records.listing import RequestPage
from sluicegate.records.queries import PAGE, Question, Usage
from sluicegate.records.requests import Counted, Line
from sluicegate.records.retention import KEPT, Kept
from sluicegate.records.rows import NotLeading, RecordsBehind, RecordsUnavailable, Sum, TreeRow, UsageRow, WorkerRow
from sluicegate.records.schema import AMOUNTS, QUARTER_S, SPANS_S, Insert, insert, merge, meta, seeded, trees, workers, writers

TIMEOUT_S = 5.0
WORKER_KEPT_MS = 3_600_000  # a worker that died without leaving is forgotten
NAMES_AT_ONCE = 5_000  # in one query

Place = tuple[int, str, str, str, str]  # time_s, tree, key_id, model, deployment


class Records:
    """One per process. Every call may raise RecordsUnavailable, also before `open` has succeeded; each tries anew."""

    def __init__(self, url: str, timeout_s: float = TIMEOUT_S, kept: Kept = KEPT) -> None:
        """url: `sqlite:///relative/path`, `sqlite:////absolute/path` or `postgresql://...`. Raises ValueError if it cannot be read."""
        self._database = Database(url, timeout_s)
        self._kept = kept
        self._tidied_quarter = -1

    async def open(self) -> None:
        """Makes the tables that are missing. Raises RecordsTooNew if a newer program has made them."""
        await self._database.call(lambda connection: None)

    async def close(self) -> None:
        await self._database.close()

    # -- usage ----------------------------------------------------------------------------------------------------------------------------

    @property
    def identity(self) -> str:
        """Which database this is; "" before it has first answered."""
        return self._database.identity

    @property
    def session(self) -> int:
        """Raised whenever it may have become another database, or an older copy: what was brought in before must be looked for."""
        return self._database.session

    async def add(self, writer: str, upto: int, rows: Sequence[UsageRow], after: int = 0, lines: Sequence[Line] = ()) -> None:
        """Adds what a writer's lines up to `upto` tell: their usage, in sums, and the lines themselves. Nothing if they are in already.

        after: the line up to which they must be in before; raises RecordsBehind if they are not.
        A batch whose outcome is unknown must be sent again as it was, before a longer one: what it had may be in, or may yet get in.
        """
        try:
            await self._database.call(lambda connection: _add(connection, writer, upto, rows, after, lines))
        except requests.RowsThere:
            await self._database.call(lambda connection: _add(connection, writer, upto, rows, after, lines, looking=True))
        newest_s = max((row.time_s for row in rows), default=0)
        if newest_s // QUARTER_S > self._tidied_quarter:
            with contextlib.suppress(RecordsUnavailable):  # what was asked for is done
                if await self._database.call(lambda connection: retention.tidy(connection, newest_s, self._kept)):
                    self._tidied_quarter = newest_s // QUARTER_S

    async def written(self, writer: str) -> int:
        """Up to which line a writer's usage is in; 0 if nothing is. Waits for an `add` that a worker which is gone has left half done."""
        return await self._database.call(lambda connection: _written(connection, writer))

    async def forget(self, writer: str) -> None:
        """Its journal is gone: nobody will ask for its lines any more."""

        def work(connection: Connection) -> None:
            connection.execute(delete(writers).where(writers.c.writer == writer))
            connection.execute(delete(seeded).where(seeded.c.writer == writer))

        await self._database.call(work)

    async def sums(self, sums: Sequence[Sum]) -> list[int | dict[int, int]]:
        """The answers as of one moment, in the order of the questions."""
        return await self._database.call(lambda connection: totals.answer(connection, sums), snapshot=True, reading=True)

    # -- questions ------------------------------------------------------------------------------------------------------------------------

    async def usage(self, question: Question, limit: int = PAGE, after: str = "") -> Usage:
        """What was used, by groups: a page of them. Raises ValueError for a question that cannot be."""
        found = await self._database.call(lambda connection: queries.usage(connection, question), snapshot=True, reading=True)
        return found.usage(limit, after)

    async def daily(self, filters: Mapping[str, Sequence[str]], unit: Unit, days: int, now_ms: int) -> list[tuple[str, int]]:
        """What was used of a unit on each of the last days, in UTC; the present one is the last. Raises ValueError."""
        return await self._database.call(lambda connection: queries.daily(connection, filters, unit, days, now_ms), snapshot=True, reading=True)

    async def requests(self, question: Question, limit: int = PAGE, after: str = "") -> RequestPage:
        """Requests that fit, the newest first. Raises ValueError for a question that cannot be."""
        return await self._database.call(lambda connection: listing.request_page(connection, question, limit, after), reading=True)

    async def request(self, request_id: str) -> dict[str, Any] | None:
        """One request, by its id."""
        return await self._database.call(lambda connection: listing.request(connection, request_id), reading=True)

    async def build_sums(self) -> int:
        """Sums up days of which there are rows only; returns how many requests they had. Each is a transaction."""
        while not await self._database.call(aside.fetch):
            continue
        found = 0
        for day_s in await self._database.call(rollups.days, reading=True):
            found += await self._database.call(partial(rollups.build, day_s=day_s))
        return found

    # -- workers --------------------------------------------------------------------------------------------------------------------------

    async def beat(self, worker: str, beat_ms: int, round: int, incarnation: str, seqs: Mapping[str, tuple[str, int]]) -> list[TreeRow]:
        """The worker lives, has confirmed all rounds up to `round`, and has seen these (epoch, sequence) of trees that are open to it.

        Raises the trees' sequences where the epoch agrees; a tree without a row (the database is a new one) gets it.
        Returns the rows of trees that are not open, and of those whose epoch is another one.
        """
        return await self._database.call(lambda connection: _beat(connection, WorkerRow(worker, beat_ms, round, incarnation), seqs))

    async def leave(self, worker: str) -> None:
        """The worker ends: nobody waits for it any more."""
        await self._database.call(lambda connection: _nothing(connection.execute(delete(workers).where(workers.c.worker == worker))))

    async def workers(self) -> list[WorkerRow]:
        """All that have beaten and not left, dead ones too."""
        return await self._database.call(lambda connection: [WorkerRow(*row) for row in connection.execute(select(workers))], reading=True)

    # -- trees ----------------------------------------------------------------------------------------------------------------------------

    async def trees(self, names: Iterable[str]) -> dict[str, TreeRow]:
        """The rows of these trees, as far as there are any."""
        wanted = sorted(names)
        return await self._database.call(lambda connection: _trees(connection, wanted), reading=True)

    async def declare_lost(self, tree: str, epoch_seen: str) -> TreeRow:
        """An open tree of that epoch, or one that has no row yet, becomes lost in a new round. Returns the row as it then is."""
        return await self._database.call(lambda connection: _declare_lost(connection, tree, epoch_seen))

    async def lead(self, tree: str, worker: str, now_ms: int, lease_ms: int) -> bool:
        """Takes the lead of a tree that is not open, or keeps it, until now + lease. False: another worker has it."""
        free = or_(trees.c.leader.in_(["", worker]), trees.c.lease_ms <= now_ms)
        taken = update(trees).where(trees.c.tree == tree, trees.c.status != "open", free).values(leader=worker, lease_ms=now_ms + lease_ms)
        return await self._database.call(lambda connection: connection.execute(taken.returning(trees.c.tree)).first() is not None)

    async def seed(self, tree: str, worker: str, epoch: str, sums: Sequence[Sum]) -> list[int | dict[int, int]]:
        """The sums for a new epoch, which becomes the tree's, `seeding` in a new round. Raises NotLeading."""
        return await self._database.call(lambda connection: _seed(connection, tree, worker, epoch, sums), snapshot=True)

    async def opened(self, tree: str, epoch: str, seq: int, incarnation: str) -> None:
        """The seeding of that epoch is complete. Nothing happens if the tree has gone on since."""
        highest = case((trees.c.seq < seq, seq), else_=trees.c.seq)
        done = update(trees).where(trees.c.tree == tree, trees.c.epoch == epoch, trees.c.status == "seeding")
        done = done.values(status="open", seq=highest, incarnation=incarnation, leader="", lease_ms=0)
        await self._database.call(lambda connection: _nothing(connection.execute(done)))

    async def verified(self, tree: str, epoch: str, incarnation: str) -> None:
        """That epoch was seen whole in this incarnation of the ledger."""
        seen = update(trees).where(trees.c.tree == tree, trees.c.epoch == epoch, trees.c.status == "open").values(incarnation=incarnation)
        await self._database.call(lambda connection: _nothing(connection.execute(seen)))

    async def included(self, tree: str, writer: str, seq: int) -> bool:
        """Whether a writer's line was in the sums of the tree's last seeding."""
        found = select(literal(True)).where(seeded.c.tree == tree, seeded.c.writer == writer, seeded.c.upto >= seq)
        return await self._database.call(lambda connection: connection.execute(found).first() is not None, reading=True)


def _nothing(_: object) -> None:
    """Of a statement whose result does not matter."""


# -- usage ----------------------------------------------------------------------------------------------------------------------------------


def _add(
    connection: Connection, writer: str, upto: int, rows: Sequence[UsageRow], after: int = 0, lines: Sequence[Line] = (), looking: bool = False
) -> None:
    if not connection.execute(_MOVE, {"writer": writer, "upto": upto, "after": after}).rowcount:
        known = connection.execute(select(writers.c.upto).where(writers.c.writer == writer)).scalar() or 0
        if known < after:
            raise RecordsBehind(f"they have the lines of {writer} up to {known}, and had them up to {after}")
        mark = insert(connection, writers).values(writer=writer, upto=upto).on_conflict_do_nothing()
        if connection.execute(mark.returning(writers.c.upto)).first() is None:
            return  # another worker has replayed them
    counted = requests.add(connection, lines, looking)
    for table in SPANS_S:
        _increase(connection, table, rows, counted)


# A writer's mark moves on, if it is where it should be.
_MOVE = text("UPDATE writers SET upto = :upto WHERE writer = :writer AND upto < :upto AND upto >= :after")


def _written(connection: Connection, writer: str) -> int:
    """By writing: whoever has the row, or is about to make it, is waited for."""
    mark = insert(connection, writers).values(writer=writer, upto=0)
    mark = mark.on_conflict_do_update(index_elements=[writers.c.writer], set_={"upto": writers.c.upto})
    return int(connection.execute(mark.returning(writers.c.upto)).scalar_one())


def _increase(connection: Connection, table: Table, rows: Sequence[UsageRow], counted: Counted) -> None:
    """Adds to the rows of a table. Always in the same order, so that two workers never wait for each other."""
    span_s, names = SPANS_S[table], [column.name for column in table.c][len(table.primary_key) :]
    sums: dict[Place, list[int]] = {}
    for row in rows:
        place = (row.time_s // span_s * span_s, row.tree, row.key_id, row.model, row.deployment)
        into = sums.setdefault(place, [0] * len(names))
        for i, name in enumerate(AMOUNTS):
            into[i] += getattr(row, name)
    if len(names) > len(AMOUNTS):
        for (time_s, *scope), numbers in counted.sums.items():
            into = sums.setdefault((time_s // span_s * span_s, *scope), [0] * len(names))  # type: ignore[arg-type]
            into[len(AMOUNTS) :] = map(add, into[len(AMOUNTS) :], numbers)
    if sums:
        merge(connection, table, _more, [dict(zip(table.c.keys(), (*place, *sums[place]), strict=True)) for place in sorted(sums)])


def _more(row: Insert) -> Insert:
    """Adds to the amounts and counts of a row, or makes it."""
    added = {column.name: column + row.excluded[column.name] for column in row.table.c if not column.primary_key}
    return row.on_conflict_do_update(index_elements=list(row.table.primary_key), set_=added)


# -- workers and trees ----------------------------------------------------------------------------------------------------------------------


def _beat(connection: Connection, worker: WorkerRow, seqs: Mapping[str, tuple[str, int]]) -> list[TreeRow]:
    beat = insert(connection, workers).values(worker=worker.worker, beat_ms=worker.beat_ms, round=worker.round, incarnation=worker.incarnation)
    news = {name: beat.excluded[name] for name in ("beat_ms", "round", "incarnation")}
    connection.execute(beat.on_conflict_do_update(index_elements=[workers.c.worker], set_=news))
    connection.execute(delete(workers).where(workers.c.beat_ms < worker.beat_ms - WORKER_KEPT_MS))
    known = _trees(connection, sorted(seqs))
    for tree in sorted(seqs):
        epoch, seq = seqs[tree]
        row = known.get(tree)
        if row is None:
            new = insert(connection, trees).values(_row(TreeRow(tree, epoch, seq, "open", 0, "", "", 0)))
            connection.execute(new.on_conflict_do_nothing())
        elif row.epoch == epoch and row.seq < seq and row.status != "lost":
            raised = update(trees).where(trees.c.tree == tree, trees.c.epoch == epoch, trees.c.seq < seq, trees.c.status != "lost")
            connection.execute(raised.values(seq=seq))
    not_open = [TreeRow(*row) for row in connection.execute(select(trees).where(trees.c.status.in_(["lost", "seeding"])))]
    moved = [row for tree, row in known.items() if row.status == "open" and row.epoch != seqs[tree][0]]
    return not_open + moved


def _trees(connection: Connection, names: Sequence[str]) -> dict[str, TreeRow]:
    found: dict[str, TreeRow] = {}
    for start in range(0, len(names), NAMES_AT_ONCE):
        some = select(trees).where(trees.c.tree.in_(names[start : start + NAMES_AT_ONCE]))
        found |= {row.tree: TreeRow(*row) for row in connection.execute(some)}
    return found


def _row(tree: TreeRow) -> dict[str, object]:
    return {name: getattr(tree, name) for name in tree.__struct_fields__}


def _next_round(connection: Connection) -> int:
    """Held until the transaction ends."""
    round: int = connection.execute(select(meta.c.round).with_for_update()).scalar_one() + 1
    connection.execute(update(meta).values(round=round))
    return round


def _declare_lost(connection: Connection, tree: str, epoch_seen: str) -> TreeRow:
    connection.execute(select(meta.c.round).with_for_update())  # two who find no row: the second finds the first's
    found = connection.execute(select(trees).where(trees.c.tree == tree).with_for_update()).first()
    if found is None:
        lost = TreeRow(tree, "", 0, "lost", _next_round(connection), "", "", 0)
        connection.execute(trees.insert().values(_row(lost)))
        return lost
    row = TreeRow(*found)
    if row.status != "open" or row.epoch != epoch_seen:
        return row
    changes = {"status": "lost", "round": _next_round(connection), "leader": "", "lease_ms": 0}
    connection.execute(update(trees).where(trees.c.tree == tree).values(changes))
    return TreeRow(**(_row(row) | changes))  # type: ignore[arg-type]


def _seed(connection: Connection, tree: str, worker: str, epoch: str, sums: Sequence[Sum]) -> list[int | dict[int, int]]:
    round = _next_round(connection)
    row = connection.execute(select(trees).where(trees.c.tree == tree).with_for_update()).first()
    if row is None or row.status == "open" or row.leader != worker:
        raise NotLeading(f"{worker} does not lead tree {tree}")
    answers = totals.answer(connection, sums)
    changes = {"epoch": epoch, "seq": 0, "status": "seeding", "round": round, "incarnation": ""}
    connection.execute(update(trees).where(trees.c.tree == tree).values(changes))
    connection.execute(delete(seeded).where(seeded.c.tree == tree))
    marks = select(literal(tree), writers.c.writer, writers.c.upto)
    connection.execute(seeded.insert().from_select(["tree", "writer", "upto"], marks))
    return answers
