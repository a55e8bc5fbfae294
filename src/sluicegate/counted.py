"""What is counted in limits, as the ledger has it now, in the figures that people and programs are shown."""

from typing import Any

from sluicegate.core.counters import name
from sluicegate.core.limits import Unit
from sluicegate.core.plan import Template
from sluicegate.core.refusals import iso
from sluicegate.ledger.contract import Ledger


async def counted(ledger: Ledger, template: Template) -> list[dict[str, Any]]:
    """Each limit of a template with used, held, remaining and its reset. Raises LedgerUnavailable."""
    refs = template.refset(ledger.now_ms())
    reply = await ledger.peek(refs)
    shown: list[dict[str, Any]] = []
    rooms = dict(template.shadows)
    for i, (counter, ref, (used, held)) in enumerate(zip(template.counters, refs.refs, reply.states, strict=True)):
        held_now = held if ref.kind in ("w", "o") else 0
        limit = ref.ceiling - ref.reserved if counter.enforced else rooms[i]
        remaining = _figure(counter.unit, max(0, limit - used - held_now)) if counter.enforced else None
        shown.append(
            {
                "name": name(counter),
                "scope": counter.scope.id,
                "unit": counter.unit,
                "window": type(counter.window).__name__.lower(),
                "models": sorted(counter.models) if counter.models is not None else None,
                "mode": "enforce" if counter.enforced else "shadow",
                "limit": _figure(counter.unit, limit),
                "used": _figure(counter.unit, used),
                "held": _figure(counter.unit, held_now),
                "remaining": remaining,
                "resets_at": iso(ref.end_ms) if ref.end_ms else None,
            }
        )
    return shown


def _figure(unit: Unit, amount: int) -> int | float:
    """Dollars as dollars, everything else as it counts."""
    return amount / 1e9 if unit is Unit.USD else amount
