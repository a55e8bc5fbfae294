"""`health:` of providers and deployments: what is asked, and what is refused."""

import pytest

from sluicegate.config import ConfigError, load_text
from sluicegate.core.tenants import Probe


def probe(provider: str, health: str = "{}", deployment: str = "") -> Probe | None:
    text = f"""
providers: {{p: {{{provider}, health: {health}}}}}
models: {{m: {{deployments: [{{provider: p, model: a{deployment}}}]}}}}
tenants: {{acme: {{keys: [{{name: k, key: sk-1}}]}}}}"""
    return load_text(text, {}).policy.models["m"].deployments[0].probe


@pytest.mark.parametrize(
    ("provider", "path"),
    [
        ("dialect: openai, api_key: k", b"/models"),
        ("dialect: anthropic, api_key: k", b"/v1/models"),
        ("dialect: anthropic, api_key: k, base_url: 'https://a.example/v1'", b"/models"),
        ("dialect: ollama", b"/api/tags"),
        ("provider: vllm", b"/models"),
    ],
)
def test_the_list_of_models_is_asked_for(provider: str, path: bytes) -> None:
    """Where each kind of provider has it; every 30 s, for 5 s, slow beyond 2 s, down after 3 failures."""
    assert probe(provider) == Probe(path, 30_000, 5_000, 2_000, 3)


def test_without_it_nothing_is_asked() -> None:
    """Also where it is null."""
    assert probe("provider: mock", "null") is None


def test_all_of_it_can_be_said() -> None:
    """A page of one's own, or a completion, which has no page; a deployment's own goes before its provider's."""
    said = "{interval: 2s, timeout: 1s, path: '/health?deep=1', slow: 100ms, failures: 7}"
    assert probe("provider: mock", said) == Probe(b"/health?deep=1", 2_000, 1_000, 100, 7)
    assert probe("provider: mock", "{request: completion}") == Probe(b"", 30_000, 5_000, 2_000, 3)
    assert probe("provider: mock", said, ", health: {request: completion, interval: 5m}") == Probe(b"", 300_000, 5_000, 2_000, 3)


AZURE = "provider: azure, base_url: 'https://a.example', api_version: 2024-10-21, api_key: k"


@pytest.mark.parametrize(
    ("provider", "health", "problem"),
    [
        ("provider: mock", "{interval: 999ms}", "providers.p.health.interval: must be at least 1s"),
        ("provider: mock", "{timeout: 0s}", "providers.p.health.timeout"),
        ("provider: mock", "{path: health}", "providers.p.health.path"),
        ("provider: mock", "{path: '/a b'}", "providers.p.health.path"),
        ("provider: mock", "{path: '/a#b'}", "providers.p.health.path"),
        ("provider: mock", "{path: /health, request: completion}", "providers.p.health.path: is of a probe that gets a page"),
        ("provider: mock", "{failures: 0}", "providers.p.health.failures"),
        ("provider: mock", "{request: post}", "providers.p.health.request"),
        ("provider: mock", "{evry: 1s}", "providers.p.health.evry"),
        ("provider: mock, speaks: [openai_embeddings]", "{request: completion}", "providers.p.health.request: completion needs"),
        (AZURE, "{}", "providers.p.health.path: is required"),
    ],
)
def test_what_cannot_be_asked_is_a_mistake(provider: str, health: str, problem: str) -> None:
    """Told with the field's path."""
    with pytest.raises(ConfigError) as told:
        probe(provider, health)
    assert problem in str(told.value)


def test_a_mistake_at_a_deployment_is_told_there() -> None:
    """By the deployment's path."""
    with pytest.raises(ConfigError, match=r"models.m.deployments\[0\].health.interval"):
        probe("provider: mock", "null", ", health: {interval: 1ms}")
