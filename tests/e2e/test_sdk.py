"""The official `openai` package against the gateway: only base_url and key are changed."""

import json
import time
from pathlib import Path

import openai
import pytest

from support_gateway import Gateway, Mock, config, running_gateway, running_mock

MESSAGES = [{"role": "user", "content": "Say something."}]


def client(gateway: Gateway, key: str, **options: object) -> openai.OpenAI:
    return openai.OpenAI(base_url=gateway.base_url, api_key=key, **options)


def async_client(gateway: Gateway, key: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=gateway.base_url, api_key=key)


def test_a_unary_answer(gateway: Gateway) -> None:
    """An answer with text, a finish reason and usage; the headers of the raw response name the request, the deployment and what is left."""
    with client(gateway, "sk-normal") as sdk:
        raw = sdk.chat.completions.with_raw_response.create(model="chat", messages=MESSAGES, max_tokens=16)
        answer = raw.parse()
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert raw.headers["x-sluicegate-request-id"].startswith("req_")
    assert raw.headers["x-sluicegate-deployment"] == "mock/mock-model"
    assert 0 < int(raw.headers["x-ratelimit-remaining-requests"]) < int(raw.headers["x-ratelimit-limit-requests"]) == 1000


def test_a_streamed_answer(gateway: Gateway) -> None:
    """Chunks with text, then a finish reason; no usage chunk for a client that did not ask, one for a client that did."""
    with client(gateway, "sk-normal") as sdk:
        chunks = list(sdk.chat.completions.create(model="chat", messages=MESSAGES, max_tokens=24, stream=True))
        asked = list(sdk.chat.completions.create(model="chat", messages=MESSAGES, max_tokens=24, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")
    assert all(chunk.usage is None for chunk in chunks)
    assert asked[-1].choices == []
    assert asked[-1].usage.completion_tokens > 0


async def test_the_async_client(gateway: Gateway) -> None:
    """The asynchronous client gets unary and streamed answers and the raw response's headers."""
    async with async_client(gateway, "sk-normal") as sdk:
        answer = await sdk.chat.completions.create(model="chat", messages=MESSAGES, max_tokens=16)
        text = ""
        async for chunk in await sdk.chat.completions.create(model="chat", messages=MESSAGES, max_tokens=16, stream=True):
            text += chunk.choices[0].delta.content or ""
        raw = await sdk.chat.completions.with_raw_response.create(model="chat", messages=MESSAGES, max_tokens=16, stream=True)
        async for _ in raw.parse():
            pass
    assert answer.choices[0].message.content
    assert text
    assert raw.headers["content-type"].startswith("text/event-stream")
    assert raw.headers["x-sluicegate-request-id"]


async def test_async_errors_are_the_sdks_own(gateway: Gateway) -> None:
    """The asynchronous client raises the same errors as the synchronous one."""
    async with async_client(gateway, "sk-nobody") as sdk:
        with pytest.raises(openai.AuthenticationError):
            await sdk.chat.completions.create(model="chat", messages=MESSAGES)
    async with async_client(gateway, "sk-normal") as sdk:
        with pytest.raises(openai.NotFoundError):
            await sdk.chat.completions.create(model="nothing", messages=MESSAGES, stream=True)


def test_a_bad_key_is_an_authentication_error(gateway: Gateway) -> None:
    """401 with the code that OpenAI uses; no retry."""
    with client(gateway, "sk-nobody") as sdk, pytest.raises(openai.AuthenticationError) as error:
        sdk.chat.completions.create(model="chat", messages=MESSAGES)
    assert error.value.code == "invalid_api_key"


@pytest.mark.parametrize(("key", "model"), [("sk-normal", "nothing"), ("sk-other", "chat")], ids=["unknown", "not allowed"])
def test_an_unknown_model_is_not_found(gateway: Gateway, key: str, model: str) -> None:
    """404 model_not_found for a model that does not exist, and for one that the key may not use."""
    with client(gateway, key) as sdk, pytest.raises(openai.NotFoundError) as error:
        sdk.chat.completions.create(model=model, messages=MESSAGES)
    assert error.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"max_tokens": -5}, "max_tokens"), ({"n": 0}, "n"), ({"messages": 5}, "messages"), ({"max_completion_tokens": "abc"}, "max_completion_tokens")],
)
def test_malformed_requests_are_bad_requests(gateway: Gateway, fields: dict[str, object], param: str) -> None:
    """400 that names the field."""
    with client(gateway, "sk-normal") as sdk, pytest.raises(openai.BadRequestError) as error:
        sdk.chat.completions.create(**{"model": "chat", "messages": MESSAGES, **fields})
    assert error.value.param == param


def test_a_request_that_can_never_fit_is_a_bad_request(gateway: Gateway) -> None:
    """400 request_too_large for a cap that the limit cannot hold even when empty."""
    with client(gateway, "sk-minute") as sdk, pytest.raises(openai.BadRequestError) as error:
        sdk.chat.completions.create(model="chat", messages=MESSAGES, max_tokens=400)
    assert error.value.code == "request_too_large"
    assert error.value.response.headers["x-should-retry"] == "false"


def test_the_sdk_retries_a_rate_limit_after_the_stated_time(gateway: Gateway) -> None:
    """The third of three quick calls with 2 requests/s is refused, retried by the SDK after its retry-after, and answered."""
    with client(gateway, "sk-rate", max_retries=0) as impatient:
        for _ in range(2):
            impatient.chat.completions.create(model="chat", messages=MESSAGES, max_tokens=16)
        with pytest.raises(openai.RateLimitError) as error:
            impatient.chat.completions.create(model="chat", messages=MESSAGES, max_tokens=16)
    assert error.value.code == "rate_limit_exceeded"
    assert error.value.response.headers["retry-after"] == "1"
    started = time.monotonic()
    with client(gateway, "sk-rate", max_retries=1) as patient:
        raw = [patient.chat.completions.with_raw_response.create(model="chat", messages=MESSAGES, max_tokens=16) for _ in range(2)]
    assert [answer.retries_taken for answer in raw] in ([0, 1], [1, 0])
    assert time.monotonic() - started >= 0.9


def counting(attempts: list[str]) -> openai.DefaultHttpxClient:
    """An HTTP client that notes each request as it goes out, so that retries are seen from outside."""
    return openai.DefaultHttpxClient(event_hooks={"request": [lambda request: attempts.append(request.url.path)]})


def test_an_exhausted_dollar_budget_is_tried_once(gateway: Gateway) -> None:
    """402 arrives as a plain APIStatusError, after exactly one attempt, with the figures in the body."""
    attempts: list[str] = []
    with client(gateway, "sk-poor", http_client=counting(attempts)) as sdk, pytest.raises(openai.APIStatusError) as error:
        while True:
            attempts.clear()
            sdk.chat.completions.create(model="chat", messages=MESSAGES, max_tokens=16)
    assert error.value.status_code == 402
    assert error.value.code == "budget_exceeded"
    assert error.value.body["sluicegate"]["unit"] == "usd"
    assert len(attempts) == 1


def test_an_exhausted_token_budget_is_tried_once(gateway: Gateway) -> None:
    """429 with x-should-retry: false is a RateLimitError after exactly one attempt, and has no retry-after."""
    attempts: list[str] = []
    with client(gateway, "sk-short", http_client=counting(attempts)) as sdk, pytest.raises(openai.RateLimitError) as error:
        while True:
            attempts.clear()
            sdk.chat.completions.create(model="chat", messages=MESSAGES, max_tokens=64)
    headers = error.value.response.headers
    assert error.value.code == "budget_exceeded"
    assert headers["x-should-retry"] == "false"
    assert "retry-after" not in headers
    assert "output" in headers["x-sluicegate-limited-by"]
    assert len(attempts) == 1


def test_models_are_those_that_the_key_may_use(gateway: Gateway) -> None:
    """The list of models leaves out what the key may not call."""
    with client(gateway, "sk-normal") as sdk:
        assert [model.id for model in sdk.models.list()] == ["chat", "other"]
    with client(gateway, "sk-other") as sdk:
        assert [model.id for model in sdk.models.list()] == ["other"]


def test_usage_shows_what_was_used(directory: Path, mock: Mock) -> None:
    """GET /v1/usage has the caller's own limits: used is what the answer's usage said, nothing is held afterwards, remaining is the rest."""
    tenants = "  acme:\n    keys: [{name: k, key: sk-k, limits: [10k tokens/day, $1/day]}]\n"
    (directory / "usage").mkdir()
    with running_gateway(directory / "usage", config(directory / "usage", mock.url, tenants)) as gateway:
        with client(gateway, "sk-k") as sdk:
            used = sdk.chat.completions.create(model="chat", messages=MESSAGES, max_tokens=16).usage
        limits = {limit["unit"]: limit for limit in gateway.usage("sk-k")["limits"]}
    assert limits["tokens"]["used"] == used.total_tokens
    assert limits["tokens"]["held"] == 0
    assert limits["tokens"]["remaining"] == 10_000 - used.total_tokens
    assert limits["usd"]["used"] == pytest.approx((0.5 * used.prompt_tokens + used.completion_tokens) / 1e6)


def test_three_calls_of_a_key_with_300_tokens_a_minute(tmp_path: Path) -> None:
    """Each held at 148 and using 117: 200, 200, then 429 with the wait and the figures in words; a cap of 400 is too large."""
    prompt = " ".join(["word"] * 100) + " "
    assert len(prompt) == 500
    tenants = "  acme:\n    keys: [{name: tight, key: sk-tight, limits: [300 tokens/minute]}]\n"
    with (
        running_mock(tmp_path, "--prompt", "101", "--completion", "16") as mock,
        running_gateway(tmp_path, config(tmp_path, mock.url, tenants)) as gateway,
    ):
        answers = [gateway.chat("sk-tight", prompt, max_tokens=16) for _ in range(3)]
        too_large = gateway.chat("sk-tight", prompt, max_tokens=400)
    assert [status for status, _, _ in answers] == [200, 200, 429]
    assert [body["usage"]["total_tokens"] for _, _, body in answers[:2]] == [117, 117]
    _, headers, body = answers[2]
    error = body["error"]
    assert headers["retry-after"] == "17"
    assert error["message"] == (
        "Rate limit reached for key tight on tokens per min (TPM): Limit 300, Remaining 66, Requested 148. Please try again in 17s."
    )
    assert (error["type"], error["code"], error["sluicegate"]["reason"]) == ("rate_limit_error", "rate_limit_exceeded", "rate")
    assert (too_large[0], too_large[2]["error"]["code"]) == (400, "request_too_large")
    assert json.dumps(body).count("sk-tight") == 0
