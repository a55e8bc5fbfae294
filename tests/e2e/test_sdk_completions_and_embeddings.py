"""The official `openai` package against the gateway: legacy completions and embeddings."""

import openai
import pytest

from support_gateway import Gateway


@pytest.fixture
def sdk(gateway: Gateway) -> openai.OpenAI:
    with openai.OpenAI(base_url=gateway.base_url, api_key="sk-normal", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("prompt", ["Once", ["Once", "upon"], [1, 2, 3], [[1], [2, 3]]])
def test_a_completion(sdk: openai.OpenAI, prompt: object) -> None:
    """Text, a finish and usage for each prompt and each of its answers."""
    answer = sdk.completions.create(model="chat", prompt=prompt, max_tokens=8, n=2, best_of=3)
    prompts = 1 if isinstance(prompt, str) or isinstance(prompt[0], int) else len(prompt)
    assert [choice.index for choice in answer.choices] == list(range(2 * prompts))
    assert all(choice.text and choice.finish_reason == "length" for choice in answer.choices)
    assert answer.object == "text_completion" and answer.usage.completion_tokens == 8 * 3 * prompts


def test_a_streamed_completion(sdk: openai.OpenAI) -> None:
    """The echoed prompt, then text; usage for a client that asked, none for one that did not."""
    plain = list(sdk.completions.create(model="chat", prompt="Once upon", max_tokens=8, echo=True, stream=True))
    assert "".join(chunk.choices[0].text for chunk in plain).startswith("Once upon")
    assert plain[-1].choices[0].finish_reason == "length" and all(chunk.usage is None for chunk in plain)
    asked = list(sdk.completions.create(model="chat", prompt="Once", max_tokens=8, stream=True, stream_options={"include_usage": True}))
    assert asked[-1].choices == [] and asked[-1].usage.completion_tokens == 8


async def test_the_async_client(gateway: Gateway) -> None:
    """Likewise."""
    async with openai.AsyncOpenAI(base_url=gateway.base_url, api_key="sk-normal") as client:
        text = ""
        async for chunk in await client.completions.create(model="chat", prompt="Once", max_tokens=8, stream=True):
            text += chunk.choices[0].text
        vectors = await client.embeddings.create(model="chat", input="Once")
    assert text and len(vectors.data) == 1


def test_embeddings(sdk: openai.OpenAI) -> None:
    """The package asks for base64 by itself and makes floats of it, the same as where it is asked for floats."""
    decoded = sdk.embeddings.create(model="chat", input=["a", "b"], dimensions=16)
    plain = sdk.embeddings.create(model="chat", input=["a", "b"], dimensions=16, encoding_format="float")
    assert [one.index for one in decoded.data] == [0, 1] and len(decoded.data[0].embedding) == 16
    assert decoded.data[1].embedding == pytest.approx(plain.data[1].embedding)
    assert decoded.usage.prompt_tokens == decoded.usage.total_tokens > 0
    assert sdk.embeddings.create(model="chat", input=[[5, 6], [7]]).usage.total_tokens > 0


def test_limits_and_errors_are_told(sdk: openai.OpenAI) -> None:
    """Less room is left after each request; what is refused names the field."""
    raw = [sdk.embeddings.with_raw_response.create(model="chat", input="a " * 100) for _ in range(2)]
    left = [int(one.headers["x-ratelimit-remaining-requests"]) for one in raw]
    assert max(left) < 1000  # room comes back meanwhile
    with pytest.raises(openai.BadRequestError) as error:
        sdk.embeddings.create(model="chat", input=[])
    assert error.value.param == "input"
    with pytest.raises(openai.BadRequestError) as error:
        sdk.completions.create(model="chat", prompt="x", best_of=2, stream=True)
    assert error.value.param == "best_of"


def test_an_exhausted_budget_is_the_packages_own_error(gateway: Gateway) -> None:
    """After exactly one attempt, on both."""
    with openai.OpenAI(base_url=gateway.base_url, api_key="sk-short") as client:
        with pytest.raises(openai.RateLimitError) as error:
            while True:
                client.completions.create(model="chat", prompt="Once", max_tokens=64)
        assert error.value.code == "budget_exceeded"
        client.embeddings.create(model="chat", input="needs no output")
