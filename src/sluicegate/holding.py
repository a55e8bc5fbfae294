"""Holds of attempts: asked for before a call, ended after it. Admit may refuse; settle may not.

The claims of one attempt at one deployment are held together, the deployment's own limits apart from the key's. Every hold that is granted ends
once, in `settle` or `cancel`, whatever happened: the journal's line first, then the ledger.
"""

from collections.abc import Callable

from sluicegate import reject
from sluicegate.core import refusals
from sluicegate.core.claims import Admission, Reply, Settlement, Swept
from sluicegate.core.estimate import Learned
from sluicegate.core.limits import Unit
from sluicegate.core.plan import Plan, Plans, fit
from sluicegate.core.record import Record
from sluicegate.core.tenants import Deployment
from sluicegate.core.usage import NOTHING, Charge
from sluicegate.dialects.form import Request
from sluicegate.http.exchange import ClientGone
from sluicegate.ledger.contract import Ledger, LedgerUnavailable
from sluicegate.outbox import Outbox
from sluicegate.reject import Reject
from sluicegate.trip import Attempt, Held, Trip

STALE_RETRIES = 3


class Holding:
    """Takes and ends holds for one worker."""

    def __init__(
        self,
        ledger: Ledger,
        outbox: Outbox,
        plans: Plans,
        learned: Learned,
        on_swept: Callable[[Swept], None],
        clock: Callable[[], float],
    ) -> None:
        self._plans = plans
        self._ledger = ledger
        self._outbox = outbox
        self._learned = learned
        self._on_swept = on_swept
        self._clock = clock

    async def take(self, trip: Trip, number: int, deployment: Deployment, plan: Plan, request: Request) -> Attempt:
        """A hold for one attempt at one deployment. Raises Reject; what was held before then stands."""
        policy, template = trip.policy, plan.template
        if template.has_usd and deployment.price is None and policy.unpriced == "refuse":
            raise reject.price_unknown(plan.model.name)
        figures = self._learned.figures(request, plan.model, deployment, plan.key, policy.budget)
        misfit = fit(template, figures, deployment.price, request.cap is not None)
        if misfit is not None:
            shown = policy.budget.show_figures
            raise reject.refused(refusals.too_large(misfit.counter, misfit.requested, misfit.fits_output_tokens, shown), shown)
        attempt = Attempt(f"{trip.request_id}.{number}", deployment, figures, template)
        attempt.visible = deployment.visible and not self._learned.exceeded(deployment)
        attempt.extends = request.stream and deployment.extend and attempt.visible
        try:
            if deployment.counters:
                await self._hold_at_deployment(trip, attempt)
            if template.counters:
                admission = self._admission(trip, attempt, plan)
                self._admitted(trip, attempt, admission, await self._admit(trip, attempt.held, admission))
        except (Reject, LedgerUnavailable):
            self.cancel(attempt)
            raise
        earlier, trip.standing = trip.standing, attempt
        if earlier is not None:
            self._leave(earlier, attempt)
        if trip.exchange.gone:
            raise ClientGone
        return attempt

    def _admission(self, trip: Trip, attempt: Attempt, plan: Plan) -> Admission:
        """What an attempt asks of the key's limits."""
        figures, held = attempt.figures, attempt.held
        return Admission(
            held.hold_id,
            held.template.refset(self._ledger.now_ms()),
            held.template.amounts(figures, attempt.deployment.price, 0 if trip.counted else 1),
            figures.need,
            figures.aim if attempt.extends else figures.want,
            figures.want,
            trip.policy.budget.hold_ttl_ms,
            f"{trip.request_id} {plan.key.id} {attempt.deployment.id}",
            trip.standing.held.hold_id if trip.standing is not None else "",
        )

    def _admitted(self, trip: Trip, attempt: Attempt, admission: Admission, reply: Reply | None) -> None:
        """Takes the ledger's answer for the key's limits. Raises Reject where they refuse."""
        if reply is None:
            return
        figures, held, budget = attempt.figures, attempt.held, trip.policy.budget
        trip.reply, trip.refset = reply, admission.refs
        if reply.status != "granted":
            refusal = refusals.explain(
                held.template.counters,
                admission.refs,
                admission.amounts,
                figures.need,
                figures.want,
                reply,
                aim=figures.aim,
                usd_rate=held.template.usd_rate(attempt.deployment.price),
                show_figures=budget.show_figures,
            )
            rejected = reject.refused(refusal, budget.show_figures)
            rejected.here_only = refusal.counter.unit is Unit.USD or refusal.counter.models is not None
            raise rejected
        attempt.granted = reply.g
        attempt.extends = attempt.extends and reply.room >= figures.want  # a limit that is nearly used up is held as a cap

    async def _hold_at_deployment(self, trip: Trip, attempt: Attempt) -> None:
        """The deployment's own limits: all or nothing, never extended. No room there means: try elsewhere."""
        template = self._plans.of_deployment(attempt.deployment)
        held = attempt.at_deployment = Held(attempt.held.hold_id + ".d", template)
        figures, want = attempt.figures, attempt.figures.want
        amounts = template.amounts(figures, attempt.deployment.price, 1)
        refset, ttl_ms = template.refset(self._ledger.now_ms()), trip.policy.budget.hold_ttl_ms
        admission = Admission(held.hold_id, refset, amounts, want, want, want, ttl_ms, f"{trip.request_id} {attempt.deployment.id}")
        reply = await self._admit(trip, held, admission)
        if reply is not None and reply.status != "granted":
            raise reject.deployment_full(refusals.explain(template.counters, admission.refs, amounts, want, want, reply))

    async def _admit(self, trip: Trip, held: Held, admission: Admission) -> Reply | None:
        """Asks the ledger. None: the ledger is away and the policy is to serve without a hold and charge afterwards."""
        for _ in range(STALE_RETRIES):
            held.refset = admission.refs
            try:
                reply = await self._ledger.admit(admission)
            except LedgerUnavailable:
                if trip.policy.on_ledger_failure == "refuse":
                    raise
                held.mode = "force"
                return None
            for swept in reply.swept:
                self._on_swept(swept)
            if reply.status == "granted":
                return reply
            held.refset = None  # nothing is held
            if reply.status != "stale_window":
                return reply
            held.template.recompute()  # the reply has told the ledger's time
            admission.refs = held.template.refset(self._ledger.now_ms())
        raise LedgerUnavailable("the windows of a request stay stale")

    def settle(self, trip: Trip, attempt: Attempt) -> Record:
        """Ends the holds of one attempt at what it used, or at all that it may have used. Never refused; journal first, then the ledger."""
        charge = attempt.charge = attempt.settled_at(trip.policy.budget.unknown_outcome)
        trip.charged(charge)
        requests = 1 if trip.written and not trip.counted else 0
        trip.counted = trip.counted or bool(requests)
        record = trip.record(self._clock())
        self._end(attempt.held, charge, requests, record)
        if attempt.at_deployment is not None:
            self._end(attempt.at_deployment, charge, int(attempt.written), None)
        trip.standing = None
        return record

    def cancel(self, attempt: Attempt) -> None:
        """Gives back what an attempt holds that was never sent; an admission in doubt is marked, so that it is not granted late."""
        self._end(attempt.held, NOTHING, 0, None)
        if attempt.at_deployment is not None:
            self._end(attempt.at_deployment, NOTHING, 0, None)

    def _leave(self, earlier: Attempt, attempt: Attempt) -> None:
        """Ends what an attempt that was not billed holds, but for what `attempt` took over in the step that admitted it."""
        if attempt.held.mode == "force":  # nothing was admitted
            self._end(earlier.held, NOTHING, 0, None)
        if earlier.at_deployment is not None:
            self._end(earlier.at_deployment, NOTHING, int(earlier.written), None)

    def _end(self, held: Held, charge: Charge, requests: int, record: Record | None) -> None:
        if held.refset is not None:
            used = held.template.used(charge, requests)
            self._outbox.settle(Settlement(held.hold_id, held.refset, used, held.mode if any(used) else "cancel"), record)
