"""Holds that nobody settled: the tag that a hold carries, and what whoever charges it at its expiry can tell from it.

A tag is words between spaces; no name has any: request id, key id, deployment, model, input tokens at most, when the request came (not in tags of
earlier versions). The hold of a deployment's own limits beside one of the key's has request id and deployment only: its request is told by the other.
"""

import msgspec

from sluicegate.core.claims import Swept
from sluicegate.core.record import Spent


class Expired(msgspec.Struct):
    """One hold that was charged at its expiry. spent: None if another hold of the same attempt tells it."""

    request_id: str
    key_id: str
    deployment: str
    spent: Spent | None


def correction(swept: Swept, actual: Spent, charge_seen: bool) -> Spent | None:
    """What to add when a late settle has told the actual usage of a hold that was charged at its expiry: of each figure the higher one stands.

    None if the expiry told no usage of this hold. Should what it told have been lost, no more is taken back than this request itself has used.
    """
    told = read(swept, charge_seen, actual.admitted_ms).spent
    if told is None:
        return None
    return Spent(
        actual.key_id,
        actual.model,
        actual.deployment,
        actual.admitted_ms,
        -min(actual.requests, told.requests),
        -min(actual.attempts, told.attempts),
        -min(actual.input_tokens, told.input_tokens),
        -min(actual.output_tokens, told.output_tokens),
        -min(actual.cost_nano_usd, told.cost_nano_usd),
    )


def tag(request_id: str, key_id: str, deployment: str, model: str, input_tokens: int, time_ms: int) -> str:
    """Of the hold that tells what its attempt may have used."""
    return f"{request_id} {key_id} {deployment} {model} {input_tokens} {time_ms}"


def tag_beside(request_id: str, deployment: str) -> str:
    """Of the other one."""
    return f"{request_id} {deployment}"


def read(swept: Swept, charge_seen: bool, now_ms: int) -> Expired:
    """What a charged hold stands for. It counts as used now: a window that runs now and had begun when it was admitted has it in either case.

    charge_seen: expired holds are charged at what was seen, not at all that was held.
    """
    words = swept.tag.split(" ")
    if len(words) < 5:
        return Expired(words[0], "", words[-1], None)
    request_id, key_id, deployment, model, input_tokens = words[:5]
    charged: dict[str, int] = {}  # by unit
    for key, amount in swept.charged:
        unit = key.split(":")[4]
        charged[unit] = max(amount, charged.get(unit, 0))
    output = swept.seen if charge_seen else swept.g
    spent = Spent(key_id, model, deployment, now_ms, charged.get("requests", 1), 1, int(input_tokens), output, charged.get("usd", 0))
    return Expired(request_id, key_id, deployment, spent)
