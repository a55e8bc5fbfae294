"""Holds of attempts: asked for before a call, ended after it. Admit may refuse; settle may not.

The claims of one attempt at one deployment are held together, the deployment's own limits apart from the key's. Every hold that is granted ends
once, in `settle` or `cancel`, whatever happened: the journal's line first, then the ledger. With `budget.queue` a request that a limit of the key
refuses for a time waits before it is told (waiting.py); meanwhile it holds nothing.
"""

from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any

from sluicegate import reject
from sluicegate.core import refusals
from sluicegate.core.claims import Admission, Reply, Settlement, Swept
from sluicegate.core.estimate import Figures, Learned
from sluicegate.core.limits import Unit
from sluicegate.core.meter import offers_tools
from sluicegate.core.plan import Plan, Plans, fit, held_price
from sluicegate.core.prices import Price, cost_nano_usd
from sluicegate.core.record import Record, Spent
from sluicegate.core.refusals import Refusal
from sluicegate.core.rules import PLENTY
from sluicegate.core.tenants import Deployment, Key
from sluicegate.core.usage import NOTHING, Charge
from sluicegate.dialects.form import Request
from sluicegate.http.exchange import ClientGone
from sluicegate.ledger.contract import Ledger, LedgerRecovering, LedgerUnavailable
from sluicegate.observe.notices import Notices
from sluicegate.outbox import Outbox
from sluicegate.pricing import price_of
from sluicegate.reject import Reject
from sluicegate.trip import Attempt, Held, Trip
from sluicegate.waiting import POLL_S, Place, Waiting, newcomer

STALE_RETRIES = 3
PASSING = ("rate", "busy", "concurrency")  # refusals that time alone may end
MODEST = 60  # percent of its estimate that a capped request takes where a limit is nearly used up


class Holding:
    """Takes and ends holds for one worker."""

    def __init__(
        self,
        ledger: Ledger,
        outbox: Outbox,
        plans: Plans,
        learned: Learned,
        on_swept: Callable[[Swept], None],
        notices: Notices,
        clock: Callable[[], float],
    ) -> None:
        self.waiting = Waiting(clock)
        self._notices = notices
        self._plans = plans
        self._ledger = ledger
        self._outbox = outbox
        self._learned = learned
        self._on_swept = on_swept
        self._clock = clock

    async def take(self, trip: Trip, number: int, deployment: Deployment, plan: Plan, request: Request) -> Attempt:
        """A hold for one attempt at one deployment. Raises Reject, ClientGone; what was held before then stands, unless it had to wait."""
        attempt = self._attempt(trip, number, deployment, plan, request)
        waiting, place = self.waiting, None
        try:
            while True:
                refusal, behind = None, self._behind(trip, attempt, plan.key, place) if waiting.lines else -1
                if behind < 0:
                    if deployment.counters and attempt.at_deployment is None:
                        await self._hold_at_deployment(trip, attempt, plan.key)
                    if not plan.template.counters:
                        break
                    admission = self._admission(trip, attempt)
                    refusal = self._admitted(trip, attempt, admission, place, await self._admit(trip, attempt.held, admission))
                    if refusal is None:
                        break
                    if attempt.need > attempt.figures.need and self._takes_less(attempt, refusal, place):
                        continue
                place = self._stand(trip, attempt, plan, place, refusal, behind)
                await waiting.turn(place)
                if trip.exchange.gone:
                    raise ClientGone
                self._measure(trip, attempt, plan, request)
        except BaseException as error:
            self.cancel(attempt)
            if place is not None:
                self._end_wait(trip, attempt, place, error)
            raise
        if place is not None:
            self._end_wait(trip, attempt, place, None)
        earlier, trip.standing = trip.standing, attempt
        if earlier is not None:
            self._leave(trip, earlier, attempt)
        if trip.exchange.gone:
            raise ClientGone
        return attempt

    def _attempt(self, trip: Trip, number: int, deployment: Deployment, plan: Plan, request: Request) -> Attempt:
        """An attempt that holds nothing yet. Raises Reject where no ledger need be asked."""
        policy, template = trip.policy, plan.template
        price = deployment.price
        if price is None or request.tariff or request.hosted or not price.plain:
            price = price_of(policy, deployment, plan, request)
        figures, held = self._figures(trip, deployment, price, plan, request)
        attempt = Attempt(f"{trip.request_id}.{number}", plan.model.name, deployment, figures, template)
        attempt.price, attempt.held_price = price, held
        attempt.visible = deployment.visible and request.shown and not self._learned.exceeded(deployment)
        if attempt.visible and not deployment.provider.streams_calls and offers_tools(request):
            attempt.visible = False
        attempt.extends = request.stream and deployment.extend and attempt.visible
        if policy.budget.queue_max_wait_ms > 1000 * trip.waited_s:
            _ask_all(attempt)
        return attempt

    def _figures(self, trip: Trip, deployment: Deployment, price: Price | None, plan: Plan, request: Request) -> tuple[Figures, Price | None]:
        """A request's figures by what is known now, and the price that is held. Raises Reject where it can never fit."""
        budget = trip.policy.budget
        figures = self._learned.figures(request, plan.model, deployment, plan.key, budget)
        held = held_price(price, figures)
        misfit = fit(plan.template, figures, held, request.cap is not None)
        if misfit is not None:
            shown = budget.show_figures
            refusal = refusals.too_large(misfit.counter, misfit.requested, misfit.fits_output_tokens, misfit.reserved, shown)
            raise self._rejected(trip, refusal)
        return figures, held

    def _measure(self, trip: Trip, attempt: Attempt, plan: Plan, request: Request) -> None:
        """Takes the figures anew of a request that has waited and holds nothing: more may be known by now."""
        attempt.figures, attempt.held_price = self._figures(trip, attempt.deployment, attempt.price, plan, request)
        attempt.granted = attempt.figures.want
        _ask_all(attempt)

    def _admission(self, trip: Trip, attempt: Attempt) -> Admission:
        """What an attempt asks of the key's limits."""
        figures, held = attempt.figures, attempt.held
        template = held.template
        return Admission(
            held.hold_id,
            template.refset(self._ledger.now_ms()),
            template.amounts(figures, attempt.held_price, 0 if trip.counted else 1),
            attempt.need,
            figures.aim if attempt.extends else figures.want,
            figures.want,
            trip.policy.budget.hold_ttl_ms,
            trip.tag(attempt, False),
            trip.standing.held.hold_id if trip.standing is not None else "",
        )

    def _admitted(self, trip: Trip, attempt: Attempt, admission: Admission, place: Place | None, reply: Reply | None) -> Refusal | None:
        """Takes the ledger's answer for the key's limits: why they refuse, if they do. Raises Reject where room has come too late to be of use."""
        if reply is None:
            return None
        figures, template = attempt.figures, attempt.held.template
        trip.reply, trip.refset, template.told = reply, admission.refs, reply.states
        if reply.status == "granted":
            if place is not None and place.refusal is not None and self._clock() >= trip.ends_at:
                raise self._rejected(trip, place.refusal)
            attempt.granted = reply.g
            attempt.extends = attempt.extends and reply.room >= figures.want  # a limit that is nearly used up is held as a cap
            if template.shadows:
                self._look_at_shadows(trip, attempt.held, admission, figures.need, reply)
            return None
        return refusals.explain(template.counters, admission.refs, admission.amounts, attempt.need, figures.want, reply, **self._told(trip, attempt))

    def _rejected(self, trip: Trip, refusal: Refusal) -> Reject:
        rejected = reject.refused(refusal, trip.policy.budget.show_figures)
        rejected.here_only = _here_only(refusal)
        return rejected

    def _amounts(self, trip: Trip, attempt: Attempt) -> tuple[int, ...]:
        """What an attempt claims of the key's limits."""
        return attempt.held.template.amounts(attempt.figures, attempt.held_price, 0 if trip.counted else 1)

    def _told(self, trip: Trip, attempt: Attempt) -> Any:
        """What a refusal is explained with, beside the claims."""
        usd_rate = attempt.held.template.usd_rate(attempt.held_price)
        return {"aim": attempt.figures.aim, "usd_rate": usd_rate, "show_figures": trip.policy.budget.show_figures}

    def _look_at_shadows(self, trip: Trip, held: Held, admission: Admission, need: int, reply: Reply) -> None:
        """Reports each counter whose shadow limits would have refused this request, once."""
        template = held.template
        for i in refusals.shadowed(template.shadows, admission.refs, admission.amounts, need, reply):
            counter = template.counters[i]
            if counter not in trip.shadowed:
                trip.shadowed += (counter,)
                self._notices.shadow(counter)
            if admission.refs.refs[i].kind == "b":
                held.spared += (i,)

    # -- waiting --------------------------------------------------------------------------------------------------------------------------

    def _behind(self, trip: Trip, attempt: Attempt, key: Key, place: Place | None) -> int:
        """The counter at which somebody else must be served before this request may ask; -1: none."""
        order = newcomer(key.priority) if place is None else place.order
        return self.waiting.ahead(attempt.held.template.counters, self._amounts(trip, attempt), order)

    def _stand(self, trip: Trip, attempt: Attempt, plan: Plan, place: Place | None, refusal: Refusal | None, behind: int) -> Place:
        """A place in the line of the counter that refused, or at which others must be served first. Raises Reject where it is no use, ClientGone."""
        if trip.exchange.gone:
            raise ClientGone
        waiting, budget, counters, reply = self.waiting, trip.policy.budget, attempt.held.template.counters, trip.reply
        left_s = waiting.left_s(place) if place is not None else self._may_wait_s(trip)
        room_in_s, standing = 0.0, None
        if refusal is not None:
            assert reply is not None
            behind = counters.index(refusal.counter)
            standing = reply.states[behind], reply.now_ms
            elsewhere = _here_only(refusal) and attempt.deployment is not (trip.order or plan.model.deployments)[-1]
            room_in_s = inf if elsewhere else _room_in_s(refusal, reply.now_ms)
        if left_s <= 0 or room_in_s > left_s:
            raise self._rejected(trip, refusal or self._still_waiting(trip, attempt, behind))
        if place is None:
            place = waiting.enter(plan.key.priority, left_s)
            trip.exchange.on_gone = partial(waiting.gone, place)
        place.poll_s = min(room_in_s, POLL_S) or POLL_S
        place.refusal = refusal or place.refusal or self._still_waiting(trip, attempt, behind)
        self._give_back(trip, attempt)
        if not waiting.stand(place, counters[behind], budget.queue_max_depth, standing):
            self._notices.waited("full", 0)
            raise self._rejected(trip, refusal or self._still_waiting(trip, attempt, behind))
        return place

    def _may_wait_s(self, trip: Trip) -> float:
        """How long it may wait for limits, in what is left of the request's time."""
        return min(trip.policy.budget.queue_max_wait_ms / 1000 - trip.waited_s, trip.ends_at - self._clock())

    def _takes_less(self, attempt: Attempt, refusal: Refusal, place: Place | None) -> bool:
        """Whether it asks for less: waiting for so much is no use, or the limit is nearly used up and others wait for their share (decision 13)."""
        figures, over = attempt.figures, place is not None and self.waiting.left_s(place) <= 0
        in_vain = refusal.reason not in PASSING  # so much will not come free
        modest = (figures.need if over else figures.aim) if attempt.extends else max(figures.need, figures.aim * MODEST // 100)
        scarce = not attempt.extends and figures.aim < figures.want and _nearly_used_up(refusal)
        step = attempt.need > modest and (over or in_vain or scarce)
        if step or in_vain:
            attempt.need = modest if step else figures.need
        return step or in_vain

    def _still_waiting(self, trip: Trip, attempt: Attempt, behind: int) -> Refusal:
        """What a request is told that others are ahead of: the counter refuses it for the time being."""
        template, figures = attempt.held.template, attempt.figures
        standing = self.waiting.lines[template.counters[behind].key_prefix].standing
        refset, amounts = template.refset(self._ledger.now_ms()), self._amounts(trip, attempt)
        told = self._told(trip, attempt)
        return refusals.still_waiting(behind, template.counters, refset, amounts, figures.need, figures.want, standing, **told)

    def _give_back(self, trip: Trip, attempt: Attempt) -> None:
        """A place costs no hold: neither at the deployment nor of an earlier attempt."""
        if attempt.at_deployment is not None:
            self._end(attempt.at_deployment, NOTHING, 0)
            attempt.at_deployment = None
        if trip.standing is not None:
            self.settle(trip, trip.standing)

    def _end_wait(self, trip: Trip, attempt: Attempt, place: Place, error: BaseException | None) -> None:
        """The wait is over: served (no error), refused, left, or the ledger went away."""
        if isinstance(error, LedgerUnavailable) or attempt.held.mode == "force":
            self.waiting.dissolve(place)
        self.waiting.leave(place)
        trip.exchange.on_gone = None
        now = self._clock()
        waited_s = now - place.since
        if trip.trace is not None:
            trip.trace.step("queue", place.since, now, outcome=_ended(error))
        trip.waited_s += waited_s
        trip.waited(waited_s)
        self._notices.waited(_ended(error), int(waited_s * 1e6))

    # -- asking ---------------------------------------------------------------------------------------------------------------------------

    async def _hold_at_deployment(self, trip: Trip, attempt: Attempt, key: Key) -> None:
        """The deployment's own limits: all or nothing, never extended. No room there means: try elsewhere."""
        template = self._plans.of_deployment(attempt.deployment, key.priority)
        attempt.asked += 1  # an id that was given back is not asked for again
        held = attempt.at_deployment = Held(f"{attempt.held.hold_id}.d{attempt.asked}", template)
        figures, want = attempt.figures, attempt.figures.want
        amounts = template.amounts(figures, attempt.held_price, 1)
        refset, ttl_ms = template.refset(self._ledger.now_ms()), trip.policy.budget.hold_ttl_ms
        admission = Admission(held.hold_id, refset, amounts, want, want, want, ttl_ms, trip.tag(attempt, True))
        reply = await self._admit(trip, held, admission)
        if reply is not None and reply.status != "granted":
            raise reject.deployment_full(refusals.explain(template.counters, admission.refs, amounts, want, want, reply))
        if reply is not None and template.shadows:
            self._look_at_shadows(trip, held, admission, want, reply)

    async def _admit(self, trip: Trip, held: Held, admission: Admission) -> Reply | None:
        """Asks the ledger. None: the ledger is away and the policy is to serve without a hold and charge afterwards."""
        for _ in range(STALE_RETRIES):
            held.refset = admission.refs
            held.epoch = self._epoch(admission.refs.tree)
            try:
                reply = await self._ledger.admit(admission)
            except LedgerUnavailable as error:
                if trip.policy.on_ledger_failure == "refuse":
                    if isinstance(error, LedgerRecovering):
                        held.refset = None  # it has done nothing
                    raise
                held.mode, held.admitted_ms = "force", self._ledger.now_ms()
                return None
            for swept in reply.swept:
                self._on_swept(swept)
            if reply.status == "granted":
                held.admitted_ms = reply.now_ms
                return reply
            held.refset = None  # nothing is held
            if reply.status != "stale_window":
                return reply
            held.template.recompute()  # the reply has told the ledger's time
            admission.refs = held.template.refset(self._ledger.now_ms())
        raise LedgerUnavailable("the windows of a request stay stale")

    def settle(self, trip: Trip, attempt: Attempt, *, last: bool = False) -> Record | None:
        """Ends the holds of one attempt at what it used, or at all that it may have used. Never refused; journal first, then the ledger.

        last: the request has ended; its record goes along.
        """
        trace = trip.trace
        since_s = self._clock() if trace is not None else 0.0
        charge = attempt.charge = attempt.settled_at(trip.policy)
        if charge.cost_source == "provider":
            self._compare(attempt, charge)
        trip.charged(charge)
        requests = 1 if trip.written and not trip.counted else 0
        trip.counted = trip.counted or bool(requests)
        record = trip.record(self._clock()) if last else None
        self._end(attempt.held, charge, requests, record, self._spent(trip, attempt, charge, requests))
        if attempt.at_deployment is not None:
            self._end(attempt.at_deployment, charge, int(attempt.written()))
        trip.standing = None
        if trace is not None:
            trace.step("settle", since_s, self._clock(), cost_usd=charge.cost_nano_usd / 1e9, source=charge.source)
        return record

    def _compare(self, attempt: Attempt, charge: Charge) -> None:
        """Reports a provider that charges far more than its price: then too little is held."""
        calculated = cost_nano_usd(attempt.price, attempt.usage) if attempt.price is not None and attempt.usage is not None else 0
        if charge.cost_nano_usd > 2 * calculated:
            self._notices.dear(attempt.deployment.id, charge.cost_nano_usd, calculated)

    def note(self, trip: Trip, record: Record) -> None:
        """How a request ended that holds nothing any more, for the records. Who has no key has none there: anybody could fill them."""
        if trip.key is not None:
            self._outbox.spend(trip.key.tree, trip.request_id, None, record)

    def cancel(self, attempt: Attempt) -> None:
        """Gives back what an attempt holds that was never sent; an admission in doubt is marked, so that it is not granted late."""
        self._end(attempt.held, NOTHING, 0)
        if attempt.at_deployment is not None:
            self._end(attempt.at_deployment, NOTHING, 0)

    def _leave(self, trip: Trip, earlier: Attempt, attempt: Attempt) -> None:
        """Ends what an attempt that was not billed holds, but for what `attempt` took over in the step that admitted it."""
        if attempt.held.mode == "force" or attempt.held.refset is None:  # nothing was admitted, or nothing binds it (at another model)
            self._end(earlier.held, NOTHING, 0)
        self.leave_deployment(trip, earlier)

    def leave_deployment(self, trip: Trip, attempt: Attempt) -> None:
        """Ends what an attempt that was not billed holds of the deployment's own limits: before another one, also of the same deployment."""
        own = attempt.at_deployment
        if own is not None:
            spent = self._spent(trip, attempt, NOTHING, 0)
            attempt.at_deployment = None
            self._end(own, NOTHING, int(attempt.written()), None, spent)

    def _end(self, held: Held, charge: Charge, requests: int, record: Record | None = None, spent: Spent | None = None) -> None:
        if held.refset is not None:
            used = held.template.used(charge, requests)
            if held.spared:
                used = tuple(0 if i in held.spared else n for i, n in enumerate(used))
            epoch = held.epoch if held.mode == "settle" else self._epoch(held.refset.tree)
            self._outbox.settle(Settlement(held.hold_id, held.refset, used, held.mode if any(used) else "cancel", epoch), record, spent)
            if self.waiting.lines:
                self.waiting.stir(held.template.counters)
        elif spent is not None or record is not None:
            self._outbox.spend(held.template.tree, held.hold_id, spent, record)

    def _spent(self, trip: Trip, attempt: Attempt, charge: Charge, requests: int) -> Spent | None:
        """What one attempt adds to the usage."""
        plan, written, own = trip.plan, attempt.written(), attempt.at_deployment
        if plan is None or not (requests or written):
            return None
        admitted_ms = attempt.held.admitted_ms or (own.admitted_ms if own is not None else 0) or self._ledger.now_ms()
        return Spent(
            plan.key.id,
            attempt.model,
            attempt.deployment.id,
            admitted_ms,
            requests,
            int(written),
            charge.input_tokens,
            charge.output_tokens,
            charge.cost_nano_usd,
        )

    def _epoch(self, tree: str) -> str:
        state = self._ledger.trees.get(tree)
        return state.epoch if state is not None else ""


def _ask_all(attempt: Attempt) -> None:
    """Who may wait asks for all that its answer may need, so that it does not end early. A stream that is held bit by bit is given little at first:
    room for all of it says that those before it find room to grow, too."""
    attempt.need = attempt.figures.want


def _nearly_used_up(refusal: Refusal) -> bool:
    """Whether what is not used of the limit, held or not, is less than a few times what was asked."""
    return refusal.reason == "busy" and refusal.limit - refusal.reserved - refusal.used < PLENTY * refusal.requested


def _here_only(refusal: Refusal) -> bool:
    """Whether another deployment, or another model's, may have room."""
    return refusal.counter.unit is Unit.USD or refusal.counter.models is not None


def _room_in_s(refusal: Refusal, now_ms: int) -> float:
    """How long it takes until there is room, at the least; 0: any moment; inf: waiting does not help."""
    if refusal.reason == "rate":
        return (refusal.resets_at_ms - now_ms) / 1000
    return 0.0 if refusal.reason in ("busy", "concurrency") else inf


def _ended(error: BaseException | None) -> str:
    """How a wait ended, for the metrics."""
    if error is None:
        return "served"
    return "refused" if isinstance(error, Reject) else "left" if isinstance(error, ClientGone) else "failed"
