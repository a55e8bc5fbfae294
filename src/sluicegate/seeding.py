"""What a tree's counters begin with when its state in the ledger is made anew: which sums of the records are asked for, and what they come to.

Pure. A window that does not refill begins with what was used in it; a bucket with its usage of the last times, replayed through its own refill; a
sliding window with its slices. Concurrency begins at nothing: open holds are announced.

Invariant: no counter begins with less than what the records have. Where the ledger still has a higher count of a window than the records (they
were lost themselves, or restored from an older copy), the higher one stands.
"""

from collections.abc import Iterable, Sequence

import msgspec

from sluicegate.core import counters as counting
from sluicegate.core.book import refilled
from sluicegate.core.claims import Ref, RefSet, Reply, Seed
from sluicegate.core.tenants import Counter, Policy
from sluicegate.records.rows import Sum

REFILLS_LOOKED_BACK = 10  # a bucket's debt from before this many times of its refill is forgotten
SECOND_MS = 1_000
SLICES_MAX = 3_600  # a bucket's past is looked at in no more slices than this for each time of its refill

Answer = int | dict[int, int]


class Question(msgspec.Struct, frozen=True):
    """One counter in its present window, and the sum that tells what was used of it."""

    ref: Ref
    sum: Sum


def counters_by_tree(policy: Policy) -> dict[str, tuple[Counter, ...]]:
    """Every tree that has limits, with all of its counters."""
    found: dict[str, dict[str, Counter]] = {}
    for key in policy.keys.values():
        found.setdefault(key.tree, {}).update({counter.key_prefix: counter for counter in key.counters})
    for model in policy.models.values():
        for deployment in model.deployments:
            own = {counter.key_prefix: counter for counter in deployment.counters}
            found.setdefault(counting.deployment_tree(deployment.id), {}).update(own)
    return {tree: tuple(counters.values()) for tree, counters in found.items() if counters}


def questions(counters: Iterable[Counter], now_ms: int) -> list[Question]:
    """What to ask the records of at `now_ms` (ledger time)."""
    found = []
    for counter in counters:
        ref = counting.ref(counter, now_ms)
        if ref.kind == "w":
            found.append(Question(ref, _sum(counter, ref.start_ms, ref.end_ms)))
        elif ref.kind == "s":
            slice_ms = ref.per_ms if ref.per_ms % SECOND_MS == 0 else SECOND_MS
            found.append(Question(ref, _sum(counter, now_ms - 61 * ref.per_ms, 0, slice_ms)))
        elif ref.kind == "b":
            refill_ms = -(-max(limit.size for limit in counter.limits) * ref.per_ms // ref.gain)
            slice_ms = max(SECOND_MS, refill_ms // SLICES_MAX)
            found.append(Question(ref, _sum(counter, max(0, now_ms - REFILLS_LOOKED_BACK * refill_ms), 0, slice_ms)))
    return found


def new_windows(counters: Iterable[Counter], known: Iterable[Counter]) -> list[Counter]:
    """Those that do not refill, are no concurrency, and are not known by their identity."""
    before = {counter.key_prefix for counter in known}
    return [counter for counter in counters if counter.limits[0].spends and counter.key_prefix not in before]


def windows(asked: Sequence[Question]) -> list[Question]:
    """Those whose counters do not refill: a missing one is not the same as a full one."""
    return [question for question in asked if question.ref.kind == "w"]


def refset(tree: str, asked: Sequence[Question]) -> RefSet:
    """To look at the counters themselves."""
    return RefSet(tree, [question.ref for question in asked])


def seeds(asked: Sequence[Question], answers: Sequence[Answer], present: Reply, held_too: bool) -> list[Seed]:
    """What the counters begin with. present: their states now, where there still are any. held_too: nobody will announce what is held."""
    found = []
    for question, answer, (used, held) in zip(asked, answers, present.states, strict=True):
        if isinstance(answer, int):
            found.append(Seed(question.ref, max(answer, used + held if held_too else used)))
        elif question.ref.kind == "s":
            found.append(Seed(question.ref, slices=_slices(question, answer)))
        else:
            found.append(Seed(question.ref, deficit(question.ref, answer, question.sum.slice_ms, present.now_ms)))
    return found


def deficit(ref: Ref, slices: dict[int, int], slice_ms: int, now_ms: int) -> int:
    """What a bucket lacks now. Usage counts at the end of its slice: later than it was, so that less has been refilled since."""
    lacking = rest = 0
    time_ms = 0
    for number in sorted(slices):
        at_ms = min((number + 1) * slice_ms, now_ms)
        lacking, rest = refilled(ref, lacking, rest, at_ms - time_ms)
        lacking += slices[number]
        time_ms = at_ms
    return refilled(ref, lacking, rest, now_ms - time_ms)[0]


def _slices(question: Question, answer: dict[int, int]) -> dict[int, int]:
    """By the slices of the window: usage counts in the last one that it can have been in."""
    per_ms, slice_ms = question.ref.per_ms, question.sum.slice_ms
    found: dict[int, int] = {}
    for number, amount in answer.items():
        slot = ((number + 1) * slice_ms - 1) // per_ms
        found[slot] = found.get(slot, 0) + amount
    return found


def _sum(counter: Counter, start_ms: int, end_ms: int, slice_ms: int = 0) -> Sum:
    of_deployment, adjusted = counter.scope.kind == "deployment", counting.identity(counter) if counter.limits[0].spends else ""
    return Sum(counter.scope.id, of_deployment, counter.models, counter.unit, start_ms, end_ms, slice_ms, adjusted)
