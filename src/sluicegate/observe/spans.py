"""Spans of requests, as OpenTelemetry has them, and how they are sent (the extra `otel`). Loaded only where traces are sent, in the thread that does.

    {POST /v1/chat/completions}                       SERVER    from the request's headers to the last byte of its answer
      plan  cache  queue  admit  extend  settle       INTERNAL  parts of the way
      chat gpt-4o-mini                                CLIENT    each call of an upstream, to the last byte of its answer

Names and attributes: https://opentelemetry.io/docs/specs/semconv/http/http-spans/ and https://github.com/open-telemetry/semantic-conventions-genai
(docs/gen-ai/gen-ai-spans.md); what is our own begins with `sluicegate.`. Tokens are on the spans of calls alone, so that nobody adds them up twice.
What is nought, or as it mostly is, is left out: an attribute is 4 microseconds of the library's.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import environ
from random import getrandbits

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags, TraceState
from opentelemetry.trace.status import Status, StatusCode

from sluicegate.core.matching import REACH
from sluicegate.core.redact import logged_prompt
from sluicegate.observe.sending import Export
from sluicegate.observe.tracing import PROMPT_READ, Called, Finished, Known, Upstream, Value

TEXT_MAX = 256  # characters of an attribute; of a prompt more
SERVICE = "sluicegate"
OPERATIONS = {"openai_completions": "text_completion", "openai_embeddings": "embeddings"}  # by the client's dialect; any other is a chat

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_ERROR = StatusCode.ERROR

Attributes = dict[str, Value | Sequence[str]]


class _Words(logging.Handler):
    """What the exporter says first of a failure: kept for our own log, which has a line only when something changes."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = self.text or record.getMessage()


def exporter(endpoint: str | None, headers: Mapping[str, str], service: str | None, known: Callable[[], Known]) -> tuple[Export, Callable[[], None]]:
    """What sends spans, and what ends that early. What is None the environment says (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SERVICE_NAME, ...)."""
    words, logger = _Words(), logging.getLogger("opentelemetry")
    logger.handlers, logger.propagate = [words], False
    sends = OTLPSpanExporter(endpoint=endpoint, headers=dict(headers) or None)
    resource = _resource(service, known().version)

    def export(batch: Sequence[Finished]) -> str:
        words.text = ""
        now = known()
        result = sends.export([span for finished in batch for span in spans(finished, resource, now)])
        return "" if result is SpanExportResult.SUCCESS else f"{endpoint or 'the receiver'}: {words.text or 'did not take them'}"

    return export, sends.shutdown


def _resource(service: str | None, version: str) -> Resource:
    said = service or environ.get("OTEL_SERVICE_NAME") or ""
    resource = Resource.create({SERVICE_VERSION: version, **({SERVICE_NAME: said} if said else {})})
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: SERVICE}))
    return resource


# -- from a request to its spans ----------------------------------------------------------------------------------------------------------


def spans(finished: Finished, resource: Resource, known: Known) -> Iterator[ReadableSpan]:
    """All of one request, its own first."""
    state = TraceState.from_header([finished.state]) if finished.state else TraceState()
    trace_id, zero_ns, scope = finished.trace_id, finished.zero_ns, InstrumentationScope("sluicegate", known.version)
    own = SpanContext(trace_id, finished.span_id, False, _SAMPLED, state)
    above = SpanContext(trace_id, finished.parent_id, True, _SAMPLED, state) if finished.parent_id else None

    def span(name: str, kind: SpanKind, since_s: float, until_s: float, attributes: Attributes, status: Status, span_id: int = 0) -> ReadableSpan:
        inner = SpanContext(trace_id, span_id or getrandbits(64) or 1, False, _SAMPLED, state)
        start_ns = zero_ns + int(since_s * 1e9)
        return ReadableSpan(
            name,
            inner if kind is not SpanKind.SERVER else own,
            own if kind is not SpanKind.SERVER else above,
            resource,
            attributes,
            kind=kind,
            status=status,
            start_time=start_ns,
            end_time=max(start_ns, zero_ns + int(until_s * 1e9)),
            instrumentation_scope=scope,
        )

    unset = Status()
    yield span(f"POST {finished.path}", SpanKind.SERVER, finished.arrived_s, finished.until_s, _of_request(finished, known), _status(finished))
    planned_s = min((step.since_s for step in finished.steps), default=finished.until_s)
    yield span("plan", SpanKind.INTERNAL, finished.arrived_s, planned_s, {}, unset)
    for step in finished.steps:
        notes: Attributes = {f"sluicegate.{name}": _text(value) if isinstance(value, str) else value for name, value in step.notes.items()}
        yield span(step.name, SpanKind.INTERNAL, step.since_s, step.until_s, notes, unset)
    for call in finished.calls:
        operation, error = OPERATIONS.get(call.dialect, "chat"), _error(call)
        attributes = _of_call(call, operation, known.upstreams.get(call.provider))
        if error:
            attributes["error.type"] = error
        status = Status(_ERROR, error) if error else unset
        yield span(f"{operation} {_text(call.model)}", SpanKind.CLIENT, call.since_s, call.until_s, attributes, status, call.span_id)


def _of_request(finished: Finished, known: Known) -> Attributes:
    record = finished.record
    attributes: Attributes = {
        "http.request.method": "POST",
        "url.path": finished.path,
        "url.scheme": "http",
        "http.route": finished.path,
        "http.response.status_code": record.status,
        "sluicegate.request_id": record.request_id,
        "sluicegate.key_id": record.key_id,
        "sluicegate.tenant": finished.tenant,
        "sluicegate.model": _text(record.model),
        "sluicegate.cost_usd": record.cost_nano_usd / 1e9,
        "sluicegate.held_output_tokens": record.held,
    }
    for name in ("deployment", "refusal", "truncated", "shadow", "cache", "rules", "source", "client_id"):
        if value := getattr(record, name):
            attributes[f"sluicegate.{name}"] = _text(value)
    for name, so in (("stream", record.stream), ("fallback", finished.fallback), ("client_gone", record.client_gone)):
        if so:
            attributes[f"sluicegate.{name}"] = True
    if len(record.attempts) > 1:
        attributes["sluicegate.attempts"] = len(record.attempts)
    if record.saved_nano_usd:
        attributes["sluicegate.saved_usd"] = record.saved_nano_usd / 1e9
    if record.error:
        attributes["error.type"] = _text(record.error)
    if finished.prompt:
        attributes["sluicegate.prompt"] = _prompt(finished.prompt, known)
    return attributes


def _prompt(beginning: str, known: Known) -> str:
    """Masked. Of one that was cut the end is left out, where half of something may stand."""
    told = str(logged_prompt([beginning], "redacted", known.rules)["text"])
    return told if len(beginning) < PROMPT_READ else told[:-REACH]


def _status(finished: Finished) -> Status:
    """Of a server's span: what a client did wrong, or may not, is no error of ours."""
    record = finished.record
    broken = record.status == 200 and bool(record.error)
    return Status(_ERROR, _text(record.error)) if broken or record.status >= 500 else Status()


def _of_call(call: Called, operation: str, upstream: Upstream | None) -> Attributes:
    attempt = call.attempt
    attributes: Attributes = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": upstream.name if upstream is not None else call.provider,
        "gen_ai.request.model": _text(call.model),
        "sluicegate.deployment": attempt.deployment,
        "sluicegate.cost_usd": attempt.cost_nano_usd / 1e9,
        "sluicegate.held_output_tokens": call.granted,
    }
    if upstream is not None:
        attributes["server.address"], attributes["server.port"] = upstream.address, upstream.port
    if call.stream:
        attributes["gen_ai.request.stream"] = True
        if attempt.outcome == "200":
            attributes["gen_ai.response.time_to_first_chunk"] = call.answered_s - call.since_s
    if attempt.billed != "yes":
        attributes["sluicegate.billed"] = attempt.billed
    if attempt.outcome == "aborted":
        attributes["sluicegate.client_gone"] = True
    if call.status:
        attributes["http.response.status_code"] = call.status
    if attempt.input_tokens or attempt.output_tokens:
        attributes["gen_ai.usage.input_tokens"], attributes["gen_ai.usage.output_tokens"] = attempt.input_tokens, attempt.output_tokens
    for name, value in (
        ("gen_ai.request.max_tokens", call.cap),
        ("gen_ai.response.id", _text(call.response_id)),
        ("gen_ai.response.model", _text(call.response_model)),
        ("gen_ai.response.finish_reasons", [_text(reason) for reason in call.finishes]),
        ("gen_ai.usage.cache_read.input_tokens", call.cached_tokens),
        ("gen_ai.usage.cache_creation.input_tokens", call.cache_write_tokens),
        ("gen_ai.usage.reasoning.output_tokens", call.reasoning_tokens),
    ):
        if value:
            attributes[name] = value
    return attributes


def _error(call: Called) -> str:
    """What an upstream's failure is called; "": it did not fail. A call that we ended, since the client had left, did not."""
    attempt = call.attempt
    if attempt.outcome == "200":
        return _text(attempt.error)
    return "" if attempt.outcome == "aborted" else _text(attempt.outcome)


def _text(value: str) -> str:
    """As it can be sent: half of a surrogate pair cannot."""
    return value[:TEXT_MAX].encode("utf-8", "replace").decode()
