"""What a finished request becomes: spans, their names, times, attributes and what they say of errors."""

from typing import Any

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace.status import StatusCode

from sluicegate.core.record import Attempt, Record
from sluicegate.core.redact import rules_of
from sluicegate.observe import spans
from sluicegate.observe.tracing import PROMPT_MAX, PROMPT_READ, Called, Finished, Known, Step, Upstream

ZERO_NS = 1_800_000_000_000_000_000
UPSTREAMS = {"far": Upstream("azure.ai.openai", "far.example", 8443)}
ATTEMPT = Attempt("far/gpt", "200", 700_000, "yes", cost_nano_usd=1_500, input_tokens=10, output_tokens=20)


def called(attempt: Attempt = ATTEMPT, **fields: Any) -> Called:
    said: dict[str, Any] = {
        "span_id": 7,
        "since_s": 1.25,
        "answered_s": 1.75,
        "until_s": 2.0,
        "attempt": attempt,
        "provider": "far",
        "model": "gpt",
        "dialect": "openai_chat",
        "stream": False,
        "status": 200,
        "cap": 100,
        "granted": 100,
        "response_id": "r1",
        "response_model": "gpt-0613",
        "finishes": ["stop"],
        "cached_tokens": 3,
        "cache_write_tokens": 0,
        "reasoning_tokens": 4,
    }
    return Called(**(said | fields))


def finished(*calls: Called, parent_id: int = 0, state: str = "", steps: tuple[Step, ...] = (), **fields: Any) -> Finished:
    record = Record("req_1", 1, **{"key_id": "acme/@k", "model": "chat", "deployment": "far/gpt", "status": 200, "cost_nano_usd": 1_500, **fields})
    path = "/v1/chat/completions"
    return Finished(5, 6, parent_id, state, ZERO_NS, 1.0, 2.5, path, "acme", False, record, list(steps), list(calls))


def made(one: Finished) -> list[ReadableSpan]:
    return list(spans.spans(one, Resource({}), Known("1.2.3", UPSTREAMS, rules_of([("STAFF", "E-[0-9]{4}")]))))


def attributes(span: ReadableSpan) -> dict[str, Any]:
    assert span.attributes is not None
    return dict(span.attributes)


def test_a_request_is_a_tree_with_the_times_of_the_wall() -> None:
    """Its own span is below the client's, and above all others; the plan ends where the first step begins."""
    steps = (Step("admit", 1.125, 1.25, {"deployment": "far/gpt"}), Step("settle", 2.25, 2.375, {}))
    own, plan, admit, settle, call = made(finished(called(), parent_id=9, state="a=1", steps=steps))
    assert [span.name for span in (own, plan, admit, settle, call)] == ["POST /v1/chat/completions", "plan", "admit", "settle", "chat gpt"]
    assert own.parent is not None and (own.parent.span_id, own.parent.is_remote) == (9, True)
    assert [span.parent.span_id for span in (plan, admit, settle, call) if span.parent is not None] == [6] * 4
    assert own.context is not None and (own.context.trace_id, own.context.span_id, dict(own.context.trace_state)) == (5, 6, {"a": "1"})
    assert call.context is not None and call.context.span_id == 7
    times = [((span.start_time or 0) - ZERO_NS, (span.end_time or 0) - ZERO_NS) for span in (own, plan, admit, call)]
    expected = [(1.0, 2.5), (1.0, 1.125), (1.125, 1.25), (1.25, 2.0)]
    assert times == [(int(since * 1e9), int(until * 1e9)) for since, until in expected]


def test_a_trace_that_begins_here_has_no_parent() -> None:
    """None is said."""
    assert made(finished())[0].parent is None


def test_a_call_is_told_by_the_conventions() -> None:
    """Who was asked for what, by whom it was answered, with how many tokens; what is nought is left out."""
    assert attributes(made(finished(called()))[-1]) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "azure.ai.openai",
        "gen_ai.request.model": "gpt",
        "gen_ai.request.max_tokens": 100,
        "gen_ai.response.id": "r1",
        "gen_ai.response.model": "gpt-0613",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 20,
        "gen_ai.usage.cache_read.input_tokens": 3,
        "gen_ai.usage.reasoning.output_tokens": 4,
        "http.response.status_code": 200,
        "server.address": "far.example",
        "server.port": 8443,
        "sluicegate.deployment": "far/gpt",
        "sluicegate.cost_usd": 1.5e-06,
        "sluicegate.held_output_tokens": 100,
    }


def test_a_stream_tells_when_it_began() -> None:
    """Seconds from the call to its first output."""
    found = attributes(made(finished(called(stream=True)))[-1])
    assert (found["gen_ai.request.stream"], found["gen_ai.response.time_to_first_chunk"]) == (True, 0.5)


@pytest.mark.parametrize(
    ("dialect", "name"), [("openai_completions", "text_completion gpt"), ("openai_embeddings", "embeddings gpt"), ("anthropic_messages", "chat gpt")]
)
def test_a_call_is_called_after_what_it_does(dialect: str, name: str) -> None:
    """The operation and the model that the provider knows."""
    span = made(finished(called(dialect=dialect)))[-1]
    assert (span.name, attributes(span)["gen_ai.operation.name"]) == (name, name.partition(" ")[0])


@pytest.mark.parametrize(
    ("outcome", "error", "told"), [("503", "overloaded", "503"), ("timeout", "", "timeout"), ("200", "incomplete", "incomplete"), ("aborted", "", "")]
)
def test_what_failed_is_an_error(outcome: str, error: str, told: str) -> None:
    """By its status or by what happened. A call that was ended since its client had left did not fail."""
    span = made(finished(called(Attempt("far/gpt", outcome, error=error))))[-1]
    assert attributes(span).get("error.type", "") == told
    assert span.status.status_code is (StatusCode.ERROR if told else StatusCode.UNSET)


@pytest.mark.parametrize(
    ("status", "error", "failed"),
    [
        (200, "", False),
        (429, "budget_exhausted", False),
        (400, "invalid_request", False),
        (503, "ledger_unavailable", True),
        (200, "upstream_error", True),
    ],
)
def test_a_server_errs_where_it_is_its_fault(status: int, error: str, failed: bool) -> None:
    """A refusal is none; an answer that broke off in its middle is one."""
    own = made(finished(status=status, error=error, refusal="budget" if status == 429 else ""))[0]
    assert own.status.status_code is (StatusCode.ERROR if failed else StatusCode.UNSET)
    found = attributes(own)
    assert (found.get("error.type", ""), found["http.response.status_code"]) == (error, status)
    assert found.get("sluicegate.refusal", "") == ("budget" if status == 429 else "")


def test_what_a_client_wrote_is_cut_and_can_be_sent() -> None:
    """A model's name may be anything: its beginning is told, and half of a surrogate pair is a question mark."""
    found = attributes(made(finished(model="\ud800" + "x" * 10_000))[0])
    assert found["sluicegate.model"] == "?" + "x" * (spans.TEXT_MAX - 1)
    found["sluicegate.model"].encode()


@pytest.mark.parametrize("at", [0, PROMPT_MAX - 5, PROMPT_READ - 10])
def test_a_prompt_is_masked_before_it_is_cut(at: int) -> None:
    """Wherever it is cut: a key, and what the operator has a pattern for. Half of one is not told."""
    one = finished()
    one.prompt = ("x " * PROMPT_READ)[:at] + " sk-abcdefghijklmnopqrstuvwxyz0123456789 E-1234 " + "y " * PROMPT_READ
    one.prompt = one.prompt[:PROMPT_READ]
    told = attributes(made(one)[0])["sluicegate.prompt"]
    assert "sk-a" not in told and "E-1234" not in told
    assert len(told) <= PROMPT_MAX + 64
    assert ("[API_KEY] [STAFF]" in told) == (at == 0)


def test_a_prompt_is_told_only_if_it_is_there() -> None:
    """A short one whole; none where none is to be told."""
    one = finished()
    assert "sluicegate.prompt" not in attributes(made(one)[0])
    one.prompt = "my card is 4111 1111 1111 1111"
    assert attributes(made(one)[0])["sluicegate.prompt"] == "my card is [CARD]"


def test_an_end_before_its_beginning_is_none() -> None:
    """However clocks stand, no span has a negative length."""
    span = made(finished(called(since_s=3.0)))[-1]
    assert span.start_time == span.end_time
