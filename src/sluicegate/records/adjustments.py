"""What operators have added to, or taken from, what was used of one limit: a record of its own, which every sum of that limit's window has.

    before = standing(connection, counter, epoch, start_ms)
    ... the ledger is asked what was used of the counter ...
    made, new = make(connection, Adjustment(...), before)      # in a transaction; new: False if there was one with that id
    ... the ledger is told, in the epoch that the adjustment names and in no other ...
    done(connection, id)

An adjustment is of one counter in the window of its time, and of nothing above or below it: usage by key, model and deployment stays what it was.

Invariant: it is made only while its tree is open, in the epoch that it then keeps. A ledger that is seeded later begins another epoch, with sums that
have it; so a ledger of the same epoch lacks it until it is told, and one of any other does not.
What is taken away was used, whoever else takes at the same time: what others were about to take when the ledger was asked counts as taken, and
`make` fails where one of them has come in between.

How it fails: NotOpen where the tree is lost, being seeded or of another epoch than the caller knows; Moved. Nothing is made then.
"""

from collections.abc import Iterable, Sequence

import msgspec
from sqlalchemy import Connection, func, literal, select, update

from sluicegate.records.rows import RecordsUnavailable, Sum
from sluicegate.records.schema import adjustments, insert, trees

COUNTERS_AT_ONCE = 500


class NotOpen(RecordsUnavailable):
    """The tree's state is in doubt. Nothing was changed."""


class Moved(Exception):
    """Somebody else has adjusted the counter since it was looked at, or something with that id: look again. Nothing was changed."""


class Standing(msgspec.Struct, frozen=True):
    """How a counter is adjusted. made: how often, ever. taking: what the ledger may still have to take away of it in this window; not above 0."""

    made: int
    taking: int


class Adjustment(msgspec.Struct, frozen=True):
    """An amount, in the unit of the limit, that counts as used in the window of its time; negative: it does not count any more."""

    id: str
    counter: str  # its identity: core/counters.py
    amount: int
    at_ms: int  # ledger time
    tree: str
    epoch: str
    actor: str = ""
    reason: str = ""
    applied: int = 0  # 1: the ledger has it


def standing(connection: Connection, counter: str, epoch: str, start_ms: int) -> Standing:
    """As it is now. start_ms: of its window, in ledger time."""
    c = adjustments.c
    made = connection.execute(select(func.count()).select_from(adjustments).where(c.counter == counter)).scalar_one()
    pending = select(c.amount).where(c.counter == counter, c.epoch == epoch, c.applied == 0, c.at_ms >= start_ms, c.amount < 0)
    return Standing(made, sum(connection.execute(pending).scalars()))


def make(connection: Connection, row: Adjustment, before: Standing) -> tuple[Adjustment, bool]:
    """The adjustment with that id, and whether it is this one. before: how the counter stood when it was looked at. Raises NotOpen, Moved."""
    there = one(connection, row.id)
    if there is not None:
        return there, False
    open_ = select(trees.c.epoch).where(trees.c.tree == row.tree, trees.c.status == "open").with_for_update()
    if connection.execute(open_).scalar() != row.epoch:
        raise NotOpen(f"the state of tree {row.tree} is not what it was")
    if standing(connection, row.counter, row.epoch, row.at_ms).made != before.made:
        raise Moved
    adding = insert(connection, adjustments).values(msgspec.structs.asdict(row)).on_conflict_do_nothing(index_elements=[adjustments.c.id])
    if connection.execute(adding.returning(adjustments.c.id)).first() is None:
        raise Moved
    return row, True


def done(connection: Connection, id: str) -> None:
    """The ledger has it."""
    connection.execute(update(adjustments).where(adjustments.c.id == id).values(applied=1))


def one(connection: Connection, id: str) -> Adjustment | None:
    """By its id."""
    found = connection.execute(select(adjustments).where(adjustments.c.id == id)).first()
    return Adjustment(**found._mapping) if found is not None else None


def of_counter(connection: Connection, counter: str, after: str, limit: int) -> list[Adjustment]:
    """Of one limit, the newest first, behind the one with that id."""
    c = adjustments.c
    some = select(adjustments).where(c.counter == counter).order_by(c.at_ms.desc(), c.id.desc()).limit(limit)
    behind = one(connection, after) if after else None
    if behind is not None:
        some = some.where((c.at_ms < behind.at_ms) | ((c.at_ms == behind.at_ms) & (c.id < behind.id)))
    return [Adjustment(**row._mapping) for row in connection.execute(some)]


def amounts(connection: Connection, sums: Sequence[Sum]) -> Iterable[int]:
    """What they come to in each of these sums, in the same order."""
    if connection.execute(select(literal(1)).select_from(adjustments).limit(1)).first() is None:
        return [0] * len(sums)
    c, found = adjustments.c, dict[str, list[tuple[int, int]]]()
    names = sorted({asked.counter for asked in sums if asked.counter})
    for start in range(0, len(names), COUNTERS_AT_ONCE):
        some = select(c.counter, c.at_ms, c.amount).where(c.counter.in_(names[start : start + COUNTERS_AT_ONCE]))
        for counter, at_ms, amount in connection.execute(some):
            found.setdefault(counter, []).append((at_ms, amount))
    return [
        sum(amount for at_ms, amount in found.get(asked.counter, ()) if asked.start_ms <= at_ms and (at_ms < asked.end_ms or not asked.end_ms))
        for asked in sums
    ]
