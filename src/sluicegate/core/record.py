"""The record: one frozen value per logical request, with its attempts. Journal, metrics and logs read it; none changes it.

And what one settlement adds to the usage that the records keep: `Spent`.
"""

import msgspec


class Attempt(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One physical call to a deployment, and what it was charged."""

    deployment: str
    outcome: str  # HTTP status as text, or connect, timeout, reset, ...; aborted: by us
    duration_us: int = 0  # until there was an answer to deliver, or it was clear that there would be none
    billed: str = "no"  # no, yes, unknown
    wait_us: int = 0  # before it: slept because an upstream said so, or in line for a limit
    error: str = ""  # error.code of an attempt that failed; why a stream that had begun broke off
    cost_nano_usd: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


class Record(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What one logical request was and did. Times: integer milliseconds (epoch) and microseconds (durations); money: nano-USD."""

    request_id: str
    time_ms: int
    key_id: str = ""
    model: str = ""
    deployment: str = ""  # that answered, or was tried last
    attempts: tuple[Attempt, ...] = ()
    dialect: str = ""
    stream: bool = False
    status: int = 0  # what the client was told
    finish: str = ""  # finish reason of the first choice
    refusal: str = ""  # reason of a refusal by a limit
    truncated: str = ""  # budget, ledger
    error: str = ""  # error.code told to the client
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cost_nano_usd: int = 0
    source: str = ""  # reported, counted, partly, held
    cost_source: str = ""
    held: int = 0  # output tokens granted at the end
    latency_us: int = 0
    first_byte_us: int = 0
    overhead_us: int = 0
    client_gone: bool = False
    client_id: str = ""  # x-request-id of the client, if valid
    client_user: str = ""  # as the request names its end user
    trace_id: str = ""  # 32 hex digits, where requests are traced
    shadow: str = ""  # names of limits in mode shadow that would have refused it
    waited_us: int = 0  # in line for a limit
    cache_write_tokens: int = 0
    cache: str = ""  # hit, miss; replay: of the answer that was kept for an idempotency key
    tags: str = ""  # as the client gave them, `name=value` between commas; client_user and they are labels, which decide nothing
    saved_nano_usd: int = 0  # what an answer from the cache would have cost
    rules: str = ""  # names of the content rules that acted


class Spent(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What was used, and when and by whom it was asked for. Adds up: amounts may be negative in a correction."""

    key_id: str
    model: str
    deployment: str
    admitted_ms: int  # ledger time: it counts in the windows of this moment
    requests: int  # logical requests
    attempts: int  # physical calls that were written
    input_tokens: int
    output_tokens: int
    cost_nano_usd: int
