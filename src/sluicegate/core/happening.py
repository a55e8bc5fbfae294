"""What happens that somebody may want to be told of: the types of events, and how some of them are asked for. Pure."""

from typing import Literal, get_args

# What the gateway finds.
Found = Literal[
    "budget.warning",
    "budget.exceeded",
    "budget.reset",
    "request.refused",
    "content.matched",
    "breaker.changed",
    "cooldown.changed",
    "health.changed",
    "config.reloaded",
    "config.refused",
]
# What administrators do.
Action = Literal[
    "key.created",
    "key.updated",
    "key.blocked",
    "key.unblocked",
    "key.rotated",
    "key.deleted",
    "tenant.created",
    "tenant.updated",
    "tenant.deleted",
    "override.set",
    "override.removed",
    "price.set",
    "price.removed",
    "limit.increased",
    "limit.increase_ended",
    "limit.adjusted",
    "hold.settled",
    "breaker.reset",
    "chaos.set",
    "chaos.cleared",
    "config.reload_asked",
]
TYPES: tuple[str, ...] = (*get_args(Found), *get_args(Action))
PATTERNS: tuple[str, ...] = (*TYPES, *sorted({f"{type_.partition('.')[0]}.*" for type_ in TYPES}))


def wanted(type_: str, patterns: tuple[str, ...]) -> bool:
    """Whether one of these means a type: its name, or a group: `budget.*`. None at all: every type is meant."""
    return not patterns or type_ in patterns or f"{type_.partition('.')[0]}.*" in patterns
