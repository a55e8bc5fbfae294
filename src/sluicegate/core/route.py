"""In which order the deployments of a model are tried. Pure: draws, calls in flight and used shares come in.

As listed is the usual order, and costs nothing: such a model has no tiers. Otherwise deployments of one tier are as good as one another, and which of
them comes first is decided for each request:

    weighted     by chance, each as often as its weight says
    least_busy   the one with the fewest calls in flight at this worker for its weight; by chance among equals
    sticky       by what a request is known by (its key, or a header), always the same: providers' prompt caches hit. When a deployment comes or goes,
                 only what it serves moves (rendezvous hashing)

All three are one race: each deployment draws a number u, evenly from 0 to 1, and has run its course after -ln(u) / weight; the first is first in a
share of the races that is its share of the weights, and so on for the rest. By chance u is drawn, for sticky it is a hash. A weight of 0 never
arrives: such a deployment comes after all others of its tier.

A deployment that is preferred from some share of a budget on comes before all others while that share is used, the highest of such shares first.
"""

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from hashlib import blake2b
from math import inf, log
from typing import TYPE_CHECKING

from msgspec import Raw

from sluicegate.core.limits import WHOLE
from sluicegate.core.tenants import NO_CEILING, Deployment, Model, Tier
from sluicegate.dialects.form import BadRequest

if TYPE_CHECKING:  # plan.py has a part of the keys of the cache, which need a header's name from here
    from sluicegate.core.plan import Template

STAY_HEADER, STAY_FIELD = b"x-sluicegate-disable-fallbacks", "disable_fallbacks"
_LEAST = 2.0**-64  # a draw may be 0, which has no logarithm


def ordered(model: Model, who: bytes, used: int, in_flight: Callable[[str], int], random: Callable[[], float]) -> tuple[Deployment, ...]:
    """The deployments of a model that has tiers, in the order for one request.

    who: what it is known by, where that matters. used: `budget_used`. in_flight: by the id of a deployment. random: from 0 to 1.
    """
    order: list[Deployment] = []
    for tier in model.tiers:
        if len(tier.deployments) == 1:
            order += tier.deployments
        elif model.balance == "sticky":
            order += _raced(tier, [_hashed(who, one) for one in tier.deployments])
        elif model.balance == "least_busy":
            order += _raced(tier, [random() for _ in tier.deployments], [in_flight(one.id) for one in tier.deployments])
        else:
            order += _raced(tier, [random() for _ in tier.deployments])
    first = [one for above, one in model.preferred if used > above]
    if first:
        ids = {one.id for one in first}
        order = [*first, *(one for one in order if one.id not in ids)]
    return tuple(order)


def alike(model: Model, order: tuple[Deployment, ...]) -> tuple[Deployment, ...]:
    """Of an order its first deployment, and those of its tier."""
    tier = next((tier for tier in model.tiers if order[0] in tier.deployments), None)
    return order[:1] if tier is None else tuple([one for one in order if one in tier.deployments])


def told_to_stay(headers: Mapping[bytes, bytes], fields: MutableMapping[str, Raw]) -> bool:
    """Whether a request wants an answer of the first deployment or none. Takes what says so out of its body: it is nothing to an upstream.

    Raises BadRequest.
    """
    raw, said = bytes(fields.pop(STAY_FIELD, b"null")), headers.get(STAY_HEADER, b"false").strip().lower()
    if raw not in (b"true", b"false", b"null"):
        raise BadRequest(f"Invalid value for '{STAY_FIELD}'. Expected 'bool'.", STAY_FIELD)
    if said not in (b"true", b"false"):
        raise BadRequest(f"The header {STAY_HEADER.decode()} is 'true' or 'false'.", STAY_HEADER.decode())
    return b"true" in (raw, said)


def budget_used(template: "Template", now_ms: int) -> int:
    """The used share, in millionths, of the limit that is nearest to its end, of those that bind the caller and do not refill.

    As the ledger last told this worker of them, on the caller's request before this one: asking it now would cost each request a call more. 0 if it
    has told nothing of their present windows.
    """
    template.refset(now_ms)  # forgets what was told of windows that are over
    told, most = template.told, 0
    if told:
        for counter, (used, _) in zip(template.counters, told, strict=True):
            if counter.limits[0].spends and counter.ceiling < NO_CEILING:
                most = max(most, WHOLE * used // counter.ceiling if counter.ceiling else WHOLE)
    return most


def _raced(tier: Tier, draws: Sequence[float], busy: Sequence[int] = ()) -> list[Deployment]:
    """A tier in the order of arrival; the busy ones after those that are less so."""

    def place(i: int) -> tuple[float, float]:
        weight = tier.weights[i]
        if not weight:
            return inf, 0.0
        return (busy[i] / weight if busy else 0.0), -log(max(draws[i], _LEAST)) / weight

    return [tier.deployments[i] for i in sorted(range(len(draws)), key=place)]


def _hashed(who: bytes, deployment: Deployment) -> float:
    """A draw that is always the same for the two."""
    digest = blake2b(b"%d:%b%b" % (len(who), who, deployment.id.encode()), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64
