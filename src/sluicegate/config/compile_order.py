"""In which order the deployments of a model are tried, and when the next is, from the configuration: tiers, weights, `when`, `fallback_on`,
`context_fallback`. What has no effect where it stands is a mistake."""

from typing import Any

from sluicegate.config import schema
from sluicegate.config.compiling import NAME, Compiling, did_you_mean
from sluicegate.config.fields import Path
from sluicegate.core.tenants import Deployment, Tier

Written = tuple[schema.Deployment, Deployment]


class Order(Compiling):
    """Reads what `models:` says of order. A route comes as its deployments, each as it is written and as it is compiled."""

    def of(self, name: str, written: schema.Model, route: list[Written]) -> dict[str, Any]:
        """The fields of a `Model` that this is about."""
        path: Path = ("models", name)
        tiers = _tiers(route)
        grouped = [one for tier in tiers for one in tier.deployments]
        some = any(len(tier.deployments) > 1 for tier in tiers)
        preferred = [(one.when.budget_used, deployment) for one, deployment in route if one.when is not None]
        self.check(name, written, tiers)
        if not some and "balance" in written.model_fields_set:
            self.problem((*path, "balance"), "decides inside a tier, and no tier of this model has two deployments")
        if written.balance != "sticky" and "sticky" in written.model_fields_set:
            self.problem((*path, "sticky"), "goes with balance: sticky")
        self.check_context_fallback(name, written)
        return {
            "deployments": tuple(grouped),
            "tiers": tuple(tiers) if some or preferred else (),
            "balance": written.balance,
            "sticky_header": written.sticky.encode(),
            "preferred": tuple(sorted(preferred, key=lambda one: -one[0])),
            "leaves_for": None if written.fallback_on is None else frozenset((*written.fallback_on, "")),
            "context_fallback": written.context_fallback or "",
        }

    def check(self, name: str, written: schema.Model, tiers: list[Tier]) -> None:
        for i, one in enumerate(written.deployments):
            path: Path = ("models", name, "deployments", i)
            if one.tier is not None:
                self.check_name(one.tier, NAME, (*path, "tier"))
            elif "weight" in one.model_fields_set:
                self.problem((*path, "weight"), "decides inside a tier; say in which one: tier: NAME")
            fellows = [other for other in written.deployments if one.tier is not None and other.tier == one.tier]
            if fellows and fellows[0] is one and not any(other.weight for other in fellows):
                self.problem((*path, "weight"), f"is 0 for all of tier {one.tier!r}; 0 is a last resort beside others")
            if i == 0 and one.when is not None and len(fellows) < 2:
                self.problem((*path, "when"), "has no effect: this deployment is the first in any case")

    def check_context_fallback(self, name: str, written: schema.Model) -> None:
        models, path = self.config.models, ("models", name, "context_fallback")
        following, passed = written.context_fallback, [name]
        if following is not None and following not in models:
            self.problem(path, f"there is no model {following!r}; {did_you_mean(following, models)}")
        while following in models:
            passed.append(following)
            if following in passed[:-1]:
                if following == name:  # else it is told where the circle begins
                    self.problem(path, f"leads back to where it came from: {' > '.join(passed)}")
                return
            following = models[following].context_fallback


def _tiers(route: list[Written]) -> list[Tier]:
    """In the order in which they first appear; a deployment that names none is one by itself."""
    groups: dict[str | int, list[Written]] = {}
    for i, (written, deployment) in enumerate(route):
        groups.setdefault(i if written.tier is None else written.tier, []).append((written, deployment))
    return [Tier(tuple(one for _, one in group), tuple(written.weight for written, _ in group)) for group in groups.values()]
