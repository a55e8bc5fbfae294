"""What an upstream's answer means: for the route (is there an answer, does another deployment help), for the bill, and for the client.

Pure functions of a status, headers and what a dialect read. The client is told the upstream's error unchanged in meaning, with three
exceptions: what concerns the gateway's own credential or account never looks like the caller's (502), an upstream's rate limit and its overload have
codes of their own (`upstream_rate_limited`, `upstream_overloaded`: some clients know the latter by another status), and what cannot be read as an
error is described, never passed on. No text that holds a provider's key leaves here.

Was an attempt billed? (ledger.md 8)

    no       nothing was written; or a complete error without usage, except those below
    unknown  written, then a timeout, a reset, an answer cut short or not readable; 408, 499, 502, 504, 520 to 524
    yes      an answer, or any usage
"""

import re
from collections.abc import Mapping
from typing import Literal

import msgspec

from sluicegate.core.masks import Headers, mask
from sluicegate.core.waits import wait_ms
from sluicegate.dialects.form import Failure

Billed = Literal["no", "yes", "unknown"]
# Kinds of failure, as `fallback_on` names them; context: too long for the model; "": the caller's own fault, or nothing that anybody did wrong.
Kind = Literal["rate_limit", "server_error", "timeout", "connection", "malformed", "account", "context", ""]

MESSAGE_MAX = 2000
LOOKED_AT_MAX = 8 * MESSAGE_MAX  # of a message, before it is masked: a secret that begins in what is shown ends there, however it is written
SNIPPET_MAX = 200

_IN_DOUBT = frozenset({408, 499, 502, 504, *range(520, 525)})  # a proxy in front of the upstream gave up; the upstream may not have
_OURS = frozenset({401, 402, 403, 405, 407})  # wrong key, no money, wrong URL, a proxy's: the operator's to mend, not the caller's
_ACCOUNT = frozenset({401, 402, 403})
_ELSEWHERE = _OURS | {408, 409, 425, 429, 499}  # another deployment may do better; 5xx too
_REFUSED = frozenset({400, 413, 422})
_AS_IT_IS = frozenset({500, 501, 502, 503, 504})
_LATE = frozenset({408, 499, 504, 522, 524})
_OVERLOADED = 529
_POOR = (
    *("credit balance", "insufficient_quota", "insufficient credit", "insufficient balance"),
    *("billing hard limit", "billing_hard_limit", "billing_not_active"),
)

# How upstreams say that a prompt, or it with the answer that is asked for, is longer than the model can read: in the code, else in these words.
_CONTEXT_CODES = ("context_length", "exceed_context_size", "context_window")
_TOO_LONG = re.compile(
    "|".join(
        (
            r"maximum context length",  # OpenAI, DeepSeek, Mistral, OpenRouter, vLLM
            r"exceeds? the (?:model'?s )?context (?:window|length)",  # OpenAI's responses, Ollama
            r"prompt (?:is )?too long",  # Anthropic, Ollama
            r"exceed context limit",  # Anthropic, of the prompt with `max_tokens`
            r"exceeds the available context size|context size has been exceeded",  # llama.cpp
            r"exceed context window of",  # llama-cpp-python
            r"longer than the maximum model length",  # vLLM
            r"input token count .{0,40}exceeds",  # Gemini
            r"maximum prompt length is",  # xAI
            r"longer than the model'?s context length",  # Together
            r"`?max_new_tokens`? must be <=",  # text-generation-inference
            r"greater than the context length",  # LM Studio
            r"input is too long for requested model",  # Bedrock, behind others
        )
    ),
    re.IGNORECASE,
)


class Outcome(msgspec.Struct, frozen=True):
    """An attempt that gave no answer. name: for records, a status or a reason. elsewhere: another deployment may do better."""

    name: str
    billed: Billed
    elsewhere: bool
    status: int  # for the client, if no other deployment answers
    type: str
    code: str
    message: str
    param: str | None = None
    retry_after: str = ""  # for the client
    retry: bool = False  # the same deployment may be asked once more, for nothing: it has said that it did not do it, or was never reached
    wait_ms: int | None = None  # what the upstream says must pass before
    cools: bool = False  # it will not serve for a while: it said so, or our account there is no good
    fails: bool = False  # counts for its breaker
    kind: Kind = ""


def billed(reason: str, written: bool, status: int, has_usage: bool) -> Billed:
    """The table above. reason: "" for a complete answer of `status`, else why there is none."""
    if not written:
        return "no"
    if has_usage:
        return "yes"
    if reason:
        return "unknown"
    return "yes" if status < 300 else "unknown" if status in _IN_DOUBT else "no"


def broken(reason: str, written: bool) -> Outcome:
    """No answer, or not all of it. reason: `UpstreamError.reason`."""
    bill = billed(reason, written, 0, False)
    if reason in ("timeout", "deadline"):
        late = reason == "timeout"
        text = "The upstream did not answer in time." if late else "The time of the request is over."
        return Outcome(reason, bill, late, 504, "upstream_error", "upstream_timeout", text, fails=True, kind="timeout")
    text = f"The upstream {'ended its answer early' if written else 'could not be reached'} ({reason})."
    kind: Kind = "malformed" if reason == "protocol" else "connection"
    return Outcome(reason, bill, True, 502, "upstream_error", "upstream_error", text, retry=bill == "no", fails=True, kind=kind)


def failed(
    status: int, headers: Mapping[bytes, bytes], failure: Failure | None, has_usage: bool, credentials: Headers = (), now_ms: int = 0
) -> Outcome:
    """A complete answer that is no success: an error status, an error inside a 200, or a 2xx or 3xx that cannot be read (`failure` is None).

    headers: of the answer, lower-case names. now_ms: Unix time. credentials: the request's headers to the provider, whose secrets are masked in
    what is passed on.
    """
    if status >= 400:
        meaning, bill = status, billed("", True, status, has_usage)
    elif failure is None:
        meaning, bill = 502, billed("unreadable", True, status, has_usage) if status < 300 else "no"
    else:
        meaning, bill = _meaning(failure), billed("", True, failure.status or 400, has_usage)
    name = str(status) if meaning == status else f"{status}:{meaning}"
    said = failure or Failure(None, "", "", "")
    message = readable(said.message, credentials)
    if meaning in (400, 429) and any(sign in f"{said.code} {said.message}".lower() for sign in _POOR):
        meaning = 402
    elsewhere = meaning in _ELSEWHERE or meaning >= 500
    wait = wait_ms(headers, now_ms) if meaning == 429 or meaning >= 500 else None
    retry_after = str(-(-wait // 1000)) if wait is not None else ""
    if meaning in _OURS or (meaning == 404 and failure is None):  # a page, not an error of the API: the URL is wrong
        text = f"The upstream did not accept the gateway's call ({status})."
        return Outcome(name, bill, True, 502, "upstream_error", "upstream_error", text, cools=meaning in _ACCOUNT, kind="account")
    if meaning == 429:
        text = f"The upstream is rate limited. {message}".strip()
        type_, code = "rate_limit_error", "upstream_rate_limited"
        return Outcome(name, bill, True, 429, type_, code, text, None, retry_after, bill == "no", wait, True, kind="rate_limit")
    if meaning >= 500 or meaning in _LATE:
        shown = 504 if meaning in _LATE else meaning if meaning in _AS_IT_IS else 503 if meaning == _OVERLOADED else 502
        code = "upstream_timeout" if shown == 504 else "upstream_overloaded" if meaning == _OVERLOADED else "upstream_error"
        text = message or _described(status, failure is None)
        kind: Kind = "timeout" if meaning in _LATE else "malformed" if failure is None and status < 400 else "server_error"
        return Outcome(name, bill, True, shown, "upstream_error", code, text, None, retry_after, bill == "no", wait, bool(wait), meaning >= 500, kind)
    code = said.code if said.code and not said.code.isdigit() else "invalid_request"
    text = message or _described(status, failure is None)
    type_ = mask(said.type, credentials) or "invalid_request_error"
    param = mask(said.param, credentials) if said.param is not None else None
    kind = "server_error" if elsewhere else "context" if meaning in _REFUSED and _too_long(said) else ""
    return Outcome(name, bill, elsewhere, meaning, type_, mask(code, credentials), text, param, kind=kind)


def readable(message: str, credentials: Headers = ()) -> str:
    """What a client may read of an upstream's message: as much as is of use, masked."""
    return mask(message[:LOOKED_AT_MAX], credentials)[:MESSAGE_MAX]


def snippet(body: bytes, credentials: Headers = ()) -> str:
    """The beginning of a body that is no JSON, for a log line: one line, printable, masked."""
    text = body[: 16 * SNIPPET_MAX].decode("utf-8", "replace")
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return mask(text, credentials)[:SNIPPET_MAX]


def _meaning(failure: Failure) -> int:
    """The status of an error that came inside a 200."""
    if failure.status is not None:
        return failure.status
    words = f"{failure.code} {failure.type}".lower()
    if "rate_limit" in words or "quota" in words:
        return 429
    if "overloaded" in words:
        return _OVERLOADED
    return 400 if "invalid_request" in words or "context_length" in words else 502


def _too_long(failure: Failure) -> bool:
    """Whether an error says that a request is longer than the model can read."""
    named = f"{failure.code} {failure.type}".lower()
    return any(code in named for code in _CONTEXT_CODES) or _TOO_LONG.search(failure.message[:MESSAGE_MAX]) is not None


def _described(status: int, unreadable: bool) -> str:
    return f"The upstream answered {status} " + ("with a body that is no answer." if unreadable else "and gave no reason.")
