"""What a request costs at a deployment whose price is not the same for all, or whose tools the provider runs.

How it fails: Reject, naming the field, where that has no price, or nothing bounds it, and a dollar limit applies. The next deployment may have one.
"""

import msgspec

from sluicegate import reject
from sluicegate.core.hosted import calls_of, named_as_told
from sluicegate.core.limits import Unit
from sluicegate.core.meter import may_have_audio
from sluicegate.core.plan import Plan
from sluicegate.core.prices import Price
from sluicegate.core.tenants import Deployment, Policy
from sluicegate.dialects.form import Request


def price_of(policy: Policy, deployment: Deployment, plan: Plan, request: Request) -> Price | None:
    """The price of this request there; None where it has none, and nobody minds."""
    own = [counter for counter in deployment.counters if counter.unit is Unit.USD]
    needs_price = plan.template.needs_price or any(counter.enforced for counter in own)
    if request.hosted and needs_price and deployment.context:
        _check_hosted(deployment, request)
    if deployment.price is None:
        if policy.unpriced == "refuse" and needs_price:
            raise reject.price_unknown(plan.model.name)
        if request.tariff and (plan.template.has_usd or own):
            raise reject.tariff_unknown(request.tariff)
        return None
    price = deployment.price.for_request(request.tariff, may_have_audio(request))
    if price is None:
        raise reject.tariff_unknown(request.tariff)
    if request.hosted:
        fees = dict(price.tools)
        calls = calls_of(request.hosted, deployment.tool_calls, fees)
        tools = named_as_told(request.hosted, fees)
        return msgspec.structs.replace(price, tools=tools, request_fee=price.request_fee + calls.untold_nano_usd)
    return price


def _check_hosted(deployment: Deployment, request: Request) -> None:
    """Whether what the provider's own tools cost is known and bounded. Where the context is not known, the input is what cannot be bounded."""
    price = deployment.price
    calls = calls_of(request.hosted, deployment.tool_calls, dict(price.tools) if price is not None else {})
    if price is not None and calls.unpriced is not None:
        raise reject.tool_unpriced(calls.unpriced)
    if calls.endless is not None:
        raise reject.calls_unbounded(calls.endless)
