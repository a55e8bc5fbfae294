"""Everything that a client can be told instead of an answer, in one closed set (design.md 8, ledger.md 5).

A `Reject` is a value that travels as an exception up to `gateway.serve`, which turns it into the client's dialect.
"""

from math import ceil
from typing import Any, Literal

from sluicegate.core.classify import Kind, Outcome
from sluicegate.core.hosted import Hosted
from sluicegate.core.refusals import Refusal, iso
from sluicegate.dialects.form import BadRequest
from sluicegate.dialects.tariffs import dearer

Headers = tuple[tuple[bytes, bytes], ...]


class Reject(Exception):
    """status, error.type, error.code, a message for the client, the field it is about, extra headers, the `sluicegate` block of the body."""

    def __init__(
        self,
        status: int,
        type_: str,
        code: str,
        message: str,
        param: str | None = None,
        headers: Headers = (),
        detail: dict[str, Any] | None = None,
        reason: str = "",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.type = type_
        self.code = code
        self.message = message
        self.param = param
        self.headers = headers
        self.detail = detail
        self.reason = reason  # of a refusal by a limit
        self.refusal: Refusal | None = None  # that refusal
        self.here_only = False  # another deployment of the route may do better
        self.unasked = False  # this one was not asked: what one said that was says more
        self.kind: Kind = ""  # of an upstream's failure

    @property
    def retry_after_s(self) -> int | None:
        """As the client is told it. None: it is told nothing of the kind."""
        return next((int(value) for name, value in self.headers if name == b"retry-after"), None)


def bad_request(error: BadRequest) -> Reject:
    """400: malformed or impossible; names the field."""
    return Reject(400, "invalid_request_error", error.code or "invalid_request", error.message, error.param)


def inexpressible(error: BadRequest) -> Reject:
    """400, if no deployment's dialect can say the request."""
    rejected = bad_request(error)
    rejected.here_only = rejected.unasked = True
    return rejected


def body_too_large(max_bytes: int) -> Reject:
    """413."""
    return Reject(413, "invalid_request_error", "request_body_too_large", f"The request body is larger than {max_bytes} bytes.")


def unauthenticated(presented: bool) -> Reject:
    """401: no key, or one that is not known."""
    text = "Incorrect API key provided." if presented else "No API key was provided: send it as 'Authorization: Bearer KEY'."
    return Reject(401, "invalid_request_error", "invalid_api_key", text)


def key_blocked() -> Reject:
    """401: whoever blocked it knows why."""
    return Reject(401, "invalid_request_error", "key_blocked", "This API key has been blocked.")


def key_expired() -> Reject:
    """401: its time, or the grace period of a secret that was replaced, is over."""
    return Reject(401, "invalid_request_error", "key_expired", "This API key has expired.")


def address_not_allowed() -> Reject:
    """403: the key is bound to networks, and the request comes from elsewhere."""
    return Reject(403, "invalid_request_error", "address_not_allowed", "This API key may not be used from this address.")


def keys_unavailable() -> Reject:
    """503: whether the key is known cannot be found out now."""
    text = "Keys cannot be looked up at the moment. Please try again."
    return Reject(503, "server_error", "keys_unavailable", text, headers=((b"retry-after", b"1"),))


def model_not_found(model: str) -> Reject:
    """404: the model does not exist or this key may not use it; the two look the same."""
    shown = model if len(model) <= 100 else model[:100] + "..."
    return Reject(404, "invalid_request_error", "model_not_found", f"The model {shown!r} does not exist or this key may not use it.", "model")


def price_unknown(model: str) -> Reject:
    """402: a dollar limit applies and no deployment of the model has a price."""
    rejected = Reject(402, "budget_error", "price_unknown", f"A dollar limit applies and model {model!r} has no price.", "model", no_retry())
    rejected.here_only = rejected.unasked = True
    return rejected


def tariff_unknown(tariff: str) -> Reject:
    """400: a client asks for what may cost more than the price of a deployment, and it has no price for that."""
    rejected = bad_request(dearer(tariff.partition("=")[0]))
    rejected.here_only = True
    return rejected


def tool_unpriced(tool: Hosted) -> Reject:
    """400: the provider charges for calls of its own tools, and nobody has said how much."""
    what = f"any tool that {tool.name[:64]!r} may bring" if tool.any else f"{tool.name[:64]!r}"
    why = f"A dollar limit applies, and the price of this model's deployment does not say what a call of {what} costs."
    return _hosted(why, tool, "tool_price_unknown")


def calls_unbounded(tool: Hosted) -> Reject:
    """400: each call of a provider's own tools is paid for, as is what the model reads again after it."""
    bound = "'max_tool_calls'" if tool.together else "its 'max_uses'"
    what = f"tools that {tool.name[:64]!r} may bring" if tool.any else f"{tool.name[:64]!r}"
    why = f"A dollar limit applies, and nothing bounds how often the provider calls {what}. Say {bound}, if it has that."
    return _hosted(why, tool, "unbounded_tool_calls")


def _hosted(why: str, tool: Hosted, code: str) -> Reject:
    rejected = bad_request(BadRequest(why, tool.by, code))
    rejected.here_only = True
    return rejected


def ledger_unavailable() -> Reject:
    """503 under `on_ledger_failure: refuse`."""
    return Reject(
        503, "server_error", "ledger_unavailable", "The budget ledger does not answer; try again shortly.", headers=((b"retry-after", b"1"),)
    )


def idempotency_key_invalid() -> Reject:
    """400."""
    text = "An Idempotency-Key is 1 to 255 visible ASCII characters."
    return Reject(400, "invalid_request_error", "invalid_idempotency_key", text, "idempotency-key")


def idempotency_key_reused() -> Reject:
    """422: it came with another request, which may still run or be answered."""
    text = "This Idempotency-Key came with another request: another body, or another path."
    return Reject(422, "invalid_request_error", "idempotency_key_reused", text, "idempotency-key", no_retry())


def idempotency_in_progress() -> Reject:
    """409: the first request with the key runs."""
    text = "The request with this Idempotency-Key is being answered; ask again for the answer."
    return Reject(409, "invalid_request_error", "idempotency_in_progress", text, headers=((b"retry-after", b"2"),))


def idempotency_answer_too_large() -> Reject:
    """409: it was answered, and the answer was not kept."""
    text = "The request with this Idempotency-Key was answered, and its answer is too large to be kept."
    return Reject(409, "invalid_request_error", "idempotency_answer_too_large", text, headers=no_retry())


def idempotency_unavailable() -> Reject:
    """503: nobody knows whether the key has been used."""
    text = "Idempotency keys cannot be looked up now; try again shortly."
    return Reject(503, "server_error", "idempotency_unavailable", text, headers=((b"retry-after", b"1"),))


def ledger_recovering() -> Reject:
    """503: what the ledger knows of this caller's limits was lost or is in doubt, and is made good just now."""
    text = "The budget ledger is recovering what was used; try again shortly."
    return Reject(503, "server_error", "ledger_recovering", text, headers=((b"retry-after", b"1"),))


def content_policy(rule: str, on: Literal["input", "output"]) -> Reject:
    """400: a content rule of the operator's; what was found is not quoted."""
    what = "request" if on == "input" else "answer"
    text = f"The {what} is refused by the content rule {rule!r}."
    return Reject(400, "invalid_request_error", "content_policy", text, None, no_retry(), {"rule": rule, "on": on})


def tokens_unsearchable() -> Reject:
    """400: what is given as tokens cannot be searched for what is banned."""
    text = "A prompt of tokens is not served here: content rules read texts alone."
    return Reject(400, "invalid_request_error", "content_policy", text, "prompt", no_retry())


def input_too_large(what: str, size: int, most: int) -> Reject:
    """413 for bytes, 400 for tokens: more than the operator allows. what: the rule."""
    unit, status = ("bytes", 413) if what == "max_input" else ("input tokens", 400)
    text = f"The request has {size} {unit}; {most} are the most that may be sent here ({what})."
    return Reject(status, "invalid_request_error", "input_too_large", text, None, no_retry(), {"rule": what, "most": most})


def internal() -> Reject:
    """500: a fault of ours; the log has it under the request id."""
    return Reject(500, "server_error", "internal_error", "The gateway failed on this request.")


def refused(refusal: Refusal, show_figures: bool) -> Reject:
    """A limit refused."""
    headers: list[tuple[bytes, bytes]] = [(b"x-sluicegate-limited-by", refusal.name.encode())]
    if refusal.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % refusal.retry_after_s))
    else:
        headers += no_retry()
    detail: dict[str, Any] = {
        "reason": refusal.reason,
        "scope": refusal.counter.scope.id,
        "unit": str(refusal.counter.unit),
        "window": type(refusal.counter.window).__name__.lower(),
        "resets_at": iso(refusal.resets_at_ms) if refusal.resets_at_ms else None,
    }
    if show_figures:
        detail |= {
            "limit": refusal.limit,
            **({"used": refusal.used, "held": refusal.held} if refusal.asked else {}),
            "requested": refusal.requested,
            "affordable_output_tokens": refusal.affordable_output_tokens,
        } | ({"reserved": refusal.reserved} if refusal.reserved else {})
    rejected = Reject(refusal.status, refusal.type, refusal.code, refusal.message, None, tuple(headers), detail, refusal.reason)
    rejected.refusal = refusal
    return rejected


def deployment_full(refusal: Refusal) -> Reject:
    """A deployment's own limits have no room, and no other deployment answered: the caller's limits are not meant."""
    headers = ((b"retry-after", b"%d" % refusal.retry_after_s),) if refusal.retry_after_s is not None else no_retry()
    text = "Every deployment of this model is at its limit; try again later."
    rejected = Reject(429, "rate_limit_error", "upstream_rate_limited", text, headers=headers)
    rejected.here_only = True
    return rejected


def upstream(outcome: Outcome) -> Reject:
    """What the upstream said, if no other deployment answered."""
    headers: Headers = ((b"retry-after", outcome.retry_after.encode()),) if outcome.retry_after else ()
    rejected = Reject(outcome.status, outcome.type, outcome.code, outcome.message, outcome.param, headers)
    rejected.here_only, rejected.kind = outcome.elsewhere, outcome.kind
    return rejected


def all_limited(last: Reject | None, ready_in_s: float) -> Reject:
    """429: every deployment of a model is limited or left alone, at least one for a limit; `retry-after` is the soonest that one may serve again."""
    text = last.message if last is not None else "Every deployment of this model is rate limited or cooling down; try again later."
    return Reject(429, "rate_limit_error", "upstream_rate_limited", text, headers=((b"retry-after", b"%d" % max(1, ceil(ready_in_s))),))


def all_broken(ready_in_s: float) -> Reject:
    """503: every deployment of a model is left alone for a while: it has failed too often, has said so, or our account there is no good."""
    text = "No deployment of this model can serve now; try again shortly."
    return Reject(503, "upstream_error", "upstream_unavailable", text, headers=((b"retry-after", b"%d" % max(1, ceil(ready_in_s))),))


def no_retry() -> Headers:
    """Tells the official SDKs not to try again."""
    return ((b"x-should-retry", b"false"),)
