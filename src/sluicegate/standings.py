"""The deployments as one worker has found them: which may be called now, what an outcome changes about that, when to ask the same one again.

The rules are pure (core/standing.py, core/waits.py); here is the worker's state, one log line for each change of it, and the figures of
`resilience:`. Breakers are the worker's own; cooldowns are told to the others (`on_cooled`) and taken from them (`cool`); how healthy a deployment is
comes from probes (`rate`), and never alone keeps a request from it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

import structlog

from sluicegate import reject
from sluicegate.core.classify import Outcome
from sluicegate.core.standing import OnChange, Permit, Standing
from sluicegate.core.tenants import Deployment, Policy
from sluicegate.reject import Reject

Health = Literal["unknown", "healthy", "degraded", "down"]
RANKS: dict[Health, int] = {"degraded": 1, "down": 2}  # tried after those of a lower one; others have 0
BROKEN = frozenset(("server_error", "timeout", "connection", "malformed", "account"))  # kinds of failure for which one is left alone, but for limits
LIMITED = frozenset(("rate_limit",))
TOLD_FROM = 0.1  # of a cooldown: others are not told that it is longer by less

log = structlog.get_logger("standings")


class Standings:
    """The standing of every deployment of a policy."""

    def __init__(self, policy: Policy, clock: Callable[[], float], random: Callable[[], float]) -> None:
        self._clock = clock
        self._random = random
        self.on_change: OnChange = lambda deployment, what, before, after, reason: None  # told of what is logged
        self.on_cooled: Callable[[str, float, str, bool], None] = _unheard  # (deployment, for_s, reason, limited): found here, for the other workers
        self.unwell: dict[str, Health] = {}  # the deployments that are degraded or down
        self._of: dict[str, Standing] = {}
        self.apply(policy)

    def apply(self, policy: Policy) -> None:
        """Follows a policy. What is known of a deployment stays known, also of one that is gone: requests under way may still be there."""
        self._resilience = resilience = policy.resilience
        failures, pause_s = resilience.breaker_failures, resilience.breaker_pause_ms / 1000
        for standing in self._of.values():
            standing.configure(failures, pause_s)
        self._listed = {one.id for model in policy.models.values() for one in model.deployments}
        for deployment in self._listed - self._of.keys():
            self._of[deployment] = Standing(deployment, failures, pause_s, self._changed)

    def of(self, deployment: str) -> Standing:
        """The standing of a deployment, by its id."""
        return self._of[deployment]

    def pause_s(self, outcome: Outcome, tries: int) -> float | None:
        """How long to wait before the same deployment is asked once more, after so many retries; None: it is not."""
        resilience = self._resilience
        if not outcome.retry or tries >= resilience.retries:
            return None
        if outcome.wait_ms:
            return outcome.wait_ms / 1000 if outcome.wait_ms <= resilience.max_wait_ms else None
        jitter = (1 + self._random()) / 2  # those who were refused together must not come back together
        return resilience.backoff_ms / 1000 * float(2**tries) * jitter

    def all(self) -> Iterable[Standing]:
        """Those of the policy's deployments."""
        return [standing for standing in self._of.values() if standing.deployment in self._listed]

    def troubles(self) -> Iterator[tuple[str, str]]:
        """What may keep requests from the policy's deployments, each by its id: cooling, open, probing; degraded, down."""
        now = self._clock()
        for standing in self.all():
            if standing.cool_until_s > now:
                yield standing.deployment, "cooling"
            if standing.state != "closed":
                yield standing.deployment, standing.state
        yield from self.unwell.items()

    def in_flight(self, deployment: str) -> int:
        """Requests that this worker has at a deployment."""
        return self._of[deployment].in_flight

    def healthy_first(self, order: Sequence[Deployment]) -> tuple[Deployment, ...]:
        """An order in which those come last that probes have found degraded, and after them those that are down."""
        return tuple(sorted(order, key=lambda one: RANKS.get(self.unwell.get(one.id, "healthy"), 0)))

    def left_alone_for(self, standing: Standing) -> frozenset[str]:
        """The kinds of failure for one of which a deployment is not called now."""
        return LIMITED if standing.limited and standing.cool_until_s > self._clock() else BROKEN

    def cool(self, deployment: str, for_s: float, reason: str, limited: bool) -> None:
        """Another worker has found that a deployment, which may be unknown here, will not serve for so long."""
        standing = self._of.get(deployment)
        if standing is not None:
            standing.cool(for_s, self._clock(), reason, limited)

    def knows(self, deployment: str) -> bool:
        """Whether there is one of that id, or was."""
        return deployment in self._of

    def reset(self, deployment: str, reason: str) -> None:
        """An operator says that it can be called."""
        self._of[deployment].reset(reason)

    def rate(self, deployment: str, health: Health, reason: str) -> None:
        """What a probe says of a deployment."""
        before = self.unwell.get(deployment, "healthy")
        if health in RANKS:
            self.unwell[deployment] = health
        else:
            self.unwell.pop(deployment, None)
        if before != (now := self.unwell.get(deployment, "healthy")):
            self._changed(deployment, "health", before, now, reason)

    def _changed(self, deployment: str, what: str, before: str, after: str, reason: str) -> None:
        log.warning(f"{what} state", deployment=deployment, **{"from": before, "to": after, "reason": reason})
        self.on_change(deployment, what, before, after, reason)

    def note(self, standing: Standing, permit: Permit, outcome: Outcome) -> None:
        """What a deployment that has not answered, after its retries, is known by from now on."""
        standing.report(permit, "failed" if outcome.fails else "void", self._clock())
        if outcome.cools:
            self.found(standing, outcome.wait_ms or self._resilience.cooldown_ms, outcome.name, outcome.code == "upstream_rate_limited")

    def found(self, standing: Standing, wait_ms: int, reason: str, limited: bool) -> None:
        """A deployment has said that it will not serve for so long."""
        for_s = wait_ms / 1000
        if standing.cool(for_s, self._clock(), reason, limited) > for_s * TOLD_FROM:
            self.on_cooled(standing.deployment, for_s, reason, limited)

    def nowhere(self, order: Sequence[Deployment], rejected: Reject | None) -> Reject:
        """What the client is told where none of these deployments has answered: what one has said, unless that is a limit, or none was asked; then
        when the first of them may serve again, as a limit only if one of them is limited."""
        if rejected is not None and rejected.code != "upstream_rate_limited":
            return rejected
        now = self._clock()
        left_alone = [standing for one in order if (standing := self._of[one.id]).ready_in_s(now) > 0]
        waits = [standing.ready_in_s(now) for standing in left_alone]
        if rejected is not None:
            if rejected.retry_after_s is not None:
                waits.append(rejected.retry_after_s)
            return reject.all_limited(rejected, min(waits)) if waits else rejected
        limited = any(standing.limited and standing.cool_until_s > now for standing in left_alone)
        return reject.all_limited(None, min(waits)) if limited else reject.all_broken(min(waits, default=0.0))


def _unheard(_deployment: str, _for_s: float, _reason: str, _limited: bool) -> None:
    """Nobody is told: this is the only worker."""
