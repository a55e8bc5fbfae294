"""Every error that the data plane gives, made by the very functions that give it, for the OpenAPI document.

A status of which all codes are known names them. 400 and the other statuses below 500 may also come from an upstream that refused what was asked of
it, and then have a code of its.
"""

from sluicegate import reject
from sluicegate.core import classify
from sluicegate.core.hosted import Hosted
from sluicegate.core.refusals import ANSWERS
from sluicegate.dialects.form import BadRequest, Failure
from sluicegate.reject import Reject

OPEN = frozenset((400,))  # statuses whose codes may be an upstream's
THEIRS = "4XX"

_MESSAGES = {
    "too_large": "The request is larger than a limit can ever hold.",
    "exhausted": "A limit is used up until its window ends.",
    "rate": "A limit that refills needs time: `retry-after` says how long.",
    "busy": "There would be room if requests in flight were settled.",
    "concurrency": "Too many requests are in flight.",
}
_UPSTREAM = (429, 500, 502, 503, 504, 529, 401)


def common() -> list[Reject]:
    """Of a request with a key, before a body is read."""
    return [*_of_keys(), reject.ledger_unavailable()]


def _of_keys() -> list[Reject]:
    return [reject.unauthenticated(False), reject.key_blocked(), reject.key_expired(), reject.address_not_allowed(), reject.keys_unavailable()]


def reading() -> list[Reject]:
    """Of a request with a body, before anything is held."""
    malformed = BadRequest("Invalid value for 'max_tokens'. Expected 'int' >= 1.", "max_tokens")
    unbounded = BadRequest("The input cannot be bounded by this request.", "messages", "unbounded_input")
    return [
        reject.bad_request(malformed),
        reject.bad_request(unbounded),
        *_of_keys(),
        reject.model_not_found("model"),
        reject.body_too_large(33_554_432),
        reject.internal(),
    ]


def calling() -> list[Reject]:
    """Of a request that an upstream is to answer."""
    away = reject.ledger_unavailable(), reject.ledger_recovering()
    return [*reading(), *_refusals(), *_unpriced(), *away, *_ruled(), *_once(), *_upstream()]


def _unpriced() -> list[Reject]:
    """Under a dollar limit."""
    search = Hosted("web_search", "tools[0].type")
    return [reject.price_unknown("model"), reject.tool_unpriced(search), reject.calls_unbounded(search)]


def _ruled() -> list[Reject]:
    """By content rules."""
    too_large = [reject.input_too_large(rule, 9_000, 8_000) for rule in ("max_input_tokens", "max_input")]
    return [reject.content_policy("project-x", "input"), reject.content_policy("project-x", "output"), *too_large]


def _once() -> list[Reject]:
    """Of a request with an `Idempotency-Key`."""
    return [
        reject.idempotency_key_invalid(),
        reject.idempotency_key_reused(),
        reject.idempotency_in_progress(),
        reject.idempotency_answer_too_large(),
        reject.idempotency_unavailable(),
    ]


def theirs() -> Reject:
    """What an upstream says that refuses the request."""
    return reject.upstream(classify.failed(422, {}, Failure(None, "unsupported_value", "invalid_request_error", "Unsupported value.", "seed"), False))


def _refusals() -> list[Reject]:
    dollars = Reject(402, ANSWERS["exhausted"][2], ANSWERS["exhausted"][1], "A dollar limit is used up until its window ends.", reason="exhausted")
    return [dollars, *(Reject(status, kind, code, _MESSAGES[name], reason=name) for name, (status, code, kind) in ANSWERS.items())]


def _upstream() -> list[Reject]:
    outcomes = [classify.failed(status, {}, Failure(None, "", "", ""), False) for status in _UPSTREAM]
    outcomes += [classify.broken("timeout", True), classify.broken("reset", True)]
    return [*(reject.upstream(outcome) for outcome in outcomes), reject.all_limited(None, 1.0), reject.all_broken(1.0)]
