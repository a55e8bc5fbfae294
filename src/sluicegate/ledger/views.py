"""Counters and holds as `ledger show` prints them, from the states that core/rules.py keeps."""

from sluicegate.core import book
from sluicegate.core.claims import CounterView, HoldView, Kind


def counter_view(key: str, kind: Kind, counter: book.Counter) -> CounterView:
    """A bucket's deficit is that of its last change: only a claim knows how it refills."""
    if isinstance(counter, dict):
        return CounterView(key, kind, sum(counter.values()), 0)
    return CounterView(key, kind, counter[0], counter[1] if kind in ("w", "o") else 0)


def hold_view(hold_id: str, hold: book.Hold, expires_ms: int) -> HoldView:
    """What a hold holds, or was charged when it expired."""
    taken = book.charged if hold.state.startswith("expired") else book.held
    amounts = tuple((claim.key, taken(hold, claim)) for claim in hold.claims)
    claims = tuple((claim.key, claim.kind, claim.fixed, claim.rate) for claim in hold.claims)
    return HoldView(hold_id, hold.tag, hold.state, hold.g, hold.seen, expires_ms, amounts, claims)
