"""What an upstream's answer means for the route, the bill and the client."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.core.classify import Outcome, billed, broken, failed, mask, snippet
from sluicegate.dialects.form import Failure

KEY = "sk-proj-9f+8/x=Q"
PLAIN = "pRovider+key/42="  # of no known shape
HEADERS = ((b"authorization", b"Bearer " + KEY.encode()), (b"content-type", b"application/json"))


def error(message: str = "why", code: str = "", type_: str = "", status: int | None = None, param: str | None = None) -> Failure:
    return Failure(status, code, type_, message, param)


# -- the bill -----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["connect", "tls", "timeout", "reset", "closed"])
def test_nothing_written_is_not_billed(reason: str) -> None:
    """What never reached the upstream costs nothing."""
    assert billed(reason, False, 0, False) == "no"


@pytest.mark.parametrize("reason", ["timeout", "reset", "incomplete", "protocol", "closed"])
def test_written_and_no_answer_is_unknown(reason: str) -> None:
    """After the request was written nobody knows (case 110)."""
    assert billed(reason, True, 0, False) == "unknown"
    assert broken(reason, True).billed == "unknown"


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422, 429, 500, 501, 503, 529])
def test_error_statuses_are_not_billed(status: int) -> None:
    """A complete error without usage costs nothing; with usage it does."""
    assert failed(status, {}, error(), False).billed == "no"
    assert failed(status, {}, error(), True).billed == "yes"


@pytest.mark.parametrize("status", [408, 499, 502, 504, 520, 521, 522, 523, 524])
def test_statuses_of_proxies_are_unknown(status: int) -> None:
    """A proxy that gave up says nothing about the upstream behind it."""
    assert failed(status, {}, None, False).billed == "unknown"


def test_answers_are_billed() -> None:
    """An answer is billed, a redirect is not, and a 200 that cannot be read is unknown."""
    assert billed("", True, 200, False) == "yes"
    assert failed(302, {}, None, False).billed == "no"
    assert failed(200, {}, None, False).billed == "unknown"


def test_error_inside_a_200_is_not_billed() -> None:
    """It counts as the status that it names (case 37)."""
    assert failed(200, {}, error(status=429, code="429"), False).billed == "no"
    assert failed(200, {}, error(), False).billed == "no"
    assert failed(200, {}, error(status=504), False).billed == "unknown"


# -- the route and the client -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "elsewhere", "shown", "code"),
    [
        (400, False, 400, "invalid_request"),
        (413, False, 413, "invalid_request"),
        (422, False, 422, "invalid_request"),
        (451, False, 451, "invalid_request"),
        (409, True, 409, "invalid_request"),
        (401, True, 502, "upstream_error"),
        (402, True, 502, "upstream_error"),
        (403, True, 502, "upstream_error"),
        (404, True, 502, "upstream_error"),
        (405, True, 502, "upstream_error"),
        (407, True, 502, "upstream_error"),
        (408, True, 504, "upstream_timeout"),
        (429, True, 429, "upstream_rate_limited"),
        (499, True, 504, "upstream_timeout"),
        (500, True, 500, "upstream_error"),
        (502, True, 502, "upstream_error"),
        (503, True, 503, "upstream_error"),
        (504, True, 504, "upstream_timeout"),
        (520, True, 502, "upstream_error"),
        (522, True, 504, "upstream_timeout"),
        (524, True, 504, "upstream_timeout"),
        (529, True, 503, "upstream_overloaded"),
        (302, True, 502, "upstream_error"),
        (200, True, 502, "upstream_error"),
    ],
)
def test_statuses(status: int, elsewhere: bool, shown: int, code: str) -> None:
    """An error keeps its meaning; what is the operator's to mend never looks like the caller's (cases 35, 36, 84)."""
    outcome = failed(status, {}, None, False)
    assert (outcome.elsewhere, outcome.status, outcome.code) == (elsewhere, shown, code)
    assert outcome.message


def test_error_of_the_caller_is_passed_on() -> None:
    """Message, type, code and field of a 4xx are the upstream's own."""
    outcome = failed(400, {}, error("Too long.", "context_length_exceeded", "invalid_request_error", None, "messages"), False)
    assert (outcome.status, outcome.message, outcome.code, outcome.type) == (400, "Too long.", "context_length_exceeded", "invalid_request_error")
    assert (outcome.param, outcome.elsewhere) == ("messages", False)


@pytest.mark.parametrize("status", [401, 403])
def test_our_credential_is_not_the_callers(status: int) -> None:
    """The text of a refused credential, which names ours, is not passed on at all."""
    outcome = failed(status, {}, error(f"Incorrect API key provided: {KEY[:4]}***"), False)
    assert outcome.status == 502
    assert "API key" not in outcome.message


@pytest.mark.parametrize(
    ("status", "failure"),
    [
        (400, error("Your credit balance is too low to access the API.")),
        (429, error("You exceeded your current quota.", "insufficient_quota")),
        (402, error("Insufficient Balance")),
    ],
)
def test_poor_account(status: int, failure: Failure) -> None:
    """An account of ours that cannot pay: the next deployment is tried, and the client is not told to pay or to wait (case 46)."""
    outcome = failed(status, {b"retry-after": b"5"}, failure, False)
    assert (outcome.elsewhere, outcome.status, outcome.retry_after) == (True, 502, "")


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_passed_bare(status: int) -> None:
    """What the upstream says about waiting reaches the client (case 33)."""
    assert failed(status, {b"retry-after": b"12"}, None, False).retry_after == "12"
    assert failed(status, {}, None, False).retry_after == ""
    assert failed(status, {b"retry-after": b"1.5"}, None, False).retry_after == "2"
    for odd in (b"1" * 500, b"-5", b"99999999999", b"soon", b"\xb2"):
        assert failed(status, {b"retry-after": odd}, None, False).retry_after == ""
    at = failed(status, {b"retry-after": b"Thu, 01 Jan 1970 00:01:40 GMT"}, None, False, now_ms=60_000)
    assert (at.retry_after, at.wait_ms) == ("40", 40_000)


def test_overload_inside_a_200() -> None:
    """An upstream that says it is overloaded is tried elsewhere, and has a code by which a dialect finds its own status for that."""
    outcome = failed(200, {}, error("busy", "", "overloaded_error"), False)
    assert (outcome.name, outcome.elsewhere, outcome.status, outcome.code) == ("200:529", True, 503, "upstream_overloaded")


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (error("slow down", "429", status=429), 429),
        (error("slow down", "rate_limit_exceeded"), 429),
        (error("too long", "context_length_exceeded"), 400),
        (error("bad", "", "invalid_request_error"), 400),
        (error("something"), 502),
    ],
)
def test_error_inside_a_200(failure: Failure, status: int) -> None:
    """An error inside a 200 means what the same error status would (case 37)."""
    outcome = failed(200, {b"retry-after": b"7"}, failure, False)
    assert outcome.status == status
    assert outcome.retry_after == ("7" if status == 429 or status >= 500 else "")
    assert outcome.name == f"200:{status}"


def test_no_answer() -> None:
    """Timeouts are 504, everything else without an answer 502, and another deployment is tried."""
    late, gone, away = broken("timeout", True), broken("reset", True), broken("connect", False)
    assert (late.status, late.code, late.elsewhere) == (504, "upstream_timeout", True)
    assert (gone.status, gone.code, gone.elsewhere, gone.billed) == (502, "upstream_error", True, "unknown")
    assert (away.status, away.billed, away.name) == (502, "no", "connect")


# -- secrets ------------------------------------------------------------------------------------------------------------------------------


def encoded(text: str) -> str:
    """Percent-encoded as in a URL, in lower case."""
    return "".join(c if c.isalnum() or c in "-_." else f"%{ord(c):02x}" for c in text)


@pytest.mark.parametrize("form", [PLAIN, encoded(PLAIN), encoded(PLAIN).replace("%2b", "%2B"), encoded(encoded(PLAIN))])
def test_own_credential_is_masked(form: str) -> None:
    """The provider's key is masked however it is written (case 102)."""
    assert mask(f"call to https://x/?k={form} failed", ((b"x-api-key", PLAIN.encode()),)) == "call to https://x/?k=[API_KEY] failed"


@pytest.mark.parametrize(
    "secret",
    [
        "sk-proj-abcdefghijklmnop",
        "sk-ant-api03-abcdefghijk",
        "AIzaSyA1234567890abcdefg",
        "gsk_abcdefghijklmnop",
        "xai-abcdefghijklmnop",
        "hf_abcdefghijklmnopqr",
        "Bearer eyJhbGciOiJIUzI1NiJ9.e30.abc",
        "key=0123456789abcdef",
        "access_token=0123456789abcdef",
        "key=AIza%2BSyA1234567890",
    ],
)
def test_shapes_of_keys_are_masked(secret: str) -> None:
    """Anything that looks like some provider's key is masked, whoever's it is."""
    text = mask(f"Error for {secret}, see the docs.")
    assert secret[-8:] not in text
    assert text.endswith(", see the docs.") and text.startswith("Error for ")


@pytest.mark.parametrize(
    "text",
    ["max_tokens must be at least 1", "the model sk does not exist", "content-type application/json", "risk-free, task-based", "key is missing"],
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    """Words are no keys, and headers that hold no secret mask nothing."""
    assert mask(text, HEADERS) == text


def test_short_credentials_mask_nothing() -> None:
    """A key of a few letters, as local servers take, would mask ordinary words."""
    assert mask("none of it", ((b"authorization", b"Bearer none"),)) == "none of it"


@pytest.mark.parametrize("status", [400, 422, 429, 500, 503])
def test_messages_are_masked_and_bounded(status: int) -> None:
    """No status lets a key through, nor a megabyte of text."""
    outcome = failed(status, {}, error(f"bad key {KEY} " + "x" * 100_000, f"code-{KEY}", f"type-{KEY}", None, f"param-{KEY}"), False, HEADERS)
    assert KEY not in f"{outcome}"
    assert len(outcome.message) < 2100


def test_snippet_of_html() -> None:
    """What is logged of a body that is no JSON is one short printable line without keys."""
    text = snippet(b"<html>\r\n<h1>504\x00\x1b[31m</h1> \xff " + KEY.encode() + b" " + b"x" * 10_000, HEADERS)
    assert text.startswith("<html> <h1>504 [31m</h1>")
    assert len(text) == 200 and text.isprintable() and KEY not in text


@given(
    st.integers(200, 599),
    st.none() | st.builds(Failure, st.none() | st.integers(400, 599), st.text(max_size=9), st.text(max_size=9), st.text(max_size=99)),
    st.booleans(),
)
def test_any_answer_has_an_outcome(status: int, failure: Failure | None, has_usage: bool) -> None:
    """Every answer is told to the client as an error of a known kind."""
    outcome = failed(status, {}, failure, has_usage, HEADERS)
    assert 400 <= outcome.status <= 599
    assert outcome.status not in (401, 402, 403) and (outcome.status != 404 or failure is not None)
    assert outcome.message and outcome.type and outcome.code


# -- kinds of failure ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        (broken("timeout", True), "timeout"),
        (broken("deadline", True), "timeout"),
        (broken("connect", False), "connection"),
        (broken("reset", True), "connection"),
        (broken("incomplete", True), "connection"),
        (broken("protocol", True), "malformed"),
        (failed(429, {}, error(), False), "rate_limit"),
        (failed(200, {}, error(status=429), False), "rate_limit"),
        (failed(429, {}, error(code="insufficient_quota"), False), "account"),
        (failed(401, {}, error(), False), "account"),
        (failed(404, {}, None, False), "account"),
        (failed(500, {}, error(), False), "server_error"),
        (failed(529, {}, error(), False), "server_error"),
        (failed(409, {}, error(), False), "server_error"),
        (failed(504, {}, None, False), "timeout"),
        (failed(503, {}, None, False), "server_error"),
        (failed(200, {}, None, False), "malformed"),
        (failed(302, {}, None, False), "malformed"),
        (failed(400, {}, error(), False), ""),
        (failed(404, {}, error(), False), ""),
    ],
)
def test_every_failure_has_a_kind(outcome: Outcome, kind: str) -> None:
    """As `fallback_on` names them; the caller's own faults have none."""
    assert outcome.kind == kind


@pytest.mark.parametrize(
    "failure",
    [
        error("Please reduce the length of the messages or completion.", "context_length_exceeded"),
        error("This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.", "invalid_request_error"),
        error("This endpoint's maximum context length is 32768 tokens. However, you requested about 40000 tokens.", "400"),
        error("Your input exceeds the context window of this model. Please adjust your input and try again."),
        error("prompt is too long: 208310 tokens > 200000 maximum", type_="invalid_request_error"),
        error("input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease input length or `max_tokens` and try again"),
        error("request (4390 tokens) exceeds the available context size (4096 tokens), try increasing it", "400", "exceed_context_size_error"),
        error("Requested tokens (2285) exceed context window of 2048"),
        error("The decoder prompt (length 5000) is longer than the maximum model length of 4096."),
        error("prompt too long; exceeded max context length by 12 tokens"),
        error("the input length exceeds the context length"),
        error("The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).", "400", "INVALID_ARGUMENT"),
        error("Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length", "3051"),
        error("This model's maximum prompt length is 131072 but the request contains 537812 tokens."),
        error("Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097. Given: 5000 `inputs` tokens", "422"),
        error("The number of tokens to keep from the initial prompt is greater than the context length."),
        error("Input is too long for requested model."),
    ],
    ids=lambda failure: failure.message[:30],
)
@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_prompt_that_is_too_long_is_known_by_its_words(failure: Failure, status: int) -> None:
    """Of whatever vendor; the client is told what it said, and the breaker counts nothing."""
    outcome = failed(status, {}, failure, False)
    assert (outcome.kind, outcome.elsewhere, outcome.fails, outcome.cools, outcome.status) == ("context", False, False, False, status)
    assert outcome.message == failure.message


@pytest.mark.parametrize(
    "failure",
    [
        error("max_tokens is too large: 100000. This model supports at most 16384 completion tokens.", "invalid_value"),
        error("Invalid value: the context must be an object"),
        error("Request exceeds the maximum size", type_="request_too_large"),
        error("Request too large for model `m` on tokens per minute (TPM): Limit 6000, Requested 8000", "rate_limit_exceeded"),
        error("string too long. Expected a string with maximum length 64"),
    ],
    ids=lambda failure: failure.message[:30],
)
def test_other_lengths_are_no_matter_of_the_context(failure: Failure) -> None:
    """A larger model would refuse them too."""
    assert failed(400, {}, failure, False).kind == ""


def test_an_upstream_that_fails_with_such_words_has_failed() -> None:
    """Only what is told as the caller's fault goes to a larger model."""
    assert failed(500, {}, error("Context size has been exceeded."), False).kind == "server_error"


def test_a_first_event_may_say_that_a_prompt_is_too_long() -> None:
    """As an error inside a 200."""
    assert failed(200, {}, error("too long", "context_length_exceeded"), False).kind == "context"
