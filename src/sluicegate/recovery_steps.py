"""What to do next about a tree whose state may be lost, from what one worker knows of it. Pure; recovery.py does it."""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec

from sluicegate.records.rows import TreeRow, WorkerRow

PATIENCE_MS = 5_000  # with workers that do not confirm a seeding

Step = Literal["none", "wait", "declare_lost", "adopt", "seed", "complete", "open"]


class View(msgspec.Struct, frozen=True):
    """What one worker knows of one tree."""

    row: TreeRow | None  # in the records
    open: bool  # this worker uses the tree
    told: bool  # the row's epoch has been told what this worker holds and owes
    seq: int  # of the row's epoch in the ledger; 0: it is not there
    incarnation: str  # of the server; "": not known
    live: Sequence[WorkerRow]  # this worker too
    may_lead: bool  # no other worker has the lead
    waited_ms: int  # since this worker first saw the row as it is


def next_step(view: View) -> tuple[Step, str]:
    """What to do about a tree, and why."""
    row = view.row
    if row is None:
        return "declare_lost", "the records do not know it"
    if row.status == "open":
        return _of_open(view, row)
    return _of_lost(view, row) if row.status == "lost" else _of_seeding(view, row)


def _of_lost(view: View, row: TreeRow) -> tuple[Step, str]:
    if view.may_lead and _confirmed(view, row):
        return "seed", "every worker has brought in what was used"
    return "wait", "for what every worker has used"


def _of_seeding(view: View, row: TreeRow) -> tuple[Step, str]:
    if view.seq < max(1, row.seq):  # the ledger has lost it again, or never had it
        return ("seed", "it is not there as it was seeded") if view.may_lead else ("wait", "to be seeded")
    if not view.told:
        known = _seen_by_all(view) or view.waited_ms >= PATIENCE_MS
        return ("adopt", "it was seeded anew") if known else ("wait", "for every worker to have seen the server")
    confirmed = _confirmed(view, row)
    if view.may_lead and (confirmed or view.waited_ms >= PATIENCE_MS):
        return "complete", "every worker has announced its holds" if confirmed else "some workers did not confirm in time"
    return "wait", "for the holds of every worker"


def _of_open(view: View, row: TreeRow) -> tuple[Step, str]:
    if view.told:
        return ("none", "") if view.open else ("open", "all holds are announced")
    if not view.seq:
        return "declare_lost", "its epoch is not in the ledger"
    if view.seq < row.seq:
        return "declare_lost", f"it was rolled back to {view.seq}, {row.seq} was seen"
    known = view.incarnation == row.incarnation != "" or _seen_by_all(view)
    return ("adopt", "verified") if known else ("wait", "for every worker to have seen the new server")


def _seen_by_all(view: View) -> bool:
    """Every worker has published what it had seen before this server began."""
    return view.incarnation != "" and all(view.incarnation in worker.incarnation.split() for worker in view.live)


def _confirmed(view: View, row: TreeRow) -> bool:
    return all(worker.round >= row.round for worker in view.live)


def confirmable(rows: Iterable[TreeRow], done: Callable[[TreeRow], bool]) -> int:
    """Up to which round a worker has done its part, of trees that are not open; 0 if of none."""
    upto = 0
    for row in sorted(rows, key=lambda row: row.round):
        if not done(row):
            break
        upto = row.round
    return upto
