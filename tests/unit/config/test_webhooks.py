"""Webhooks in a configuration: where they go, what is wrong with one, and that nobody sees what may be a secret."""

from typing import Any

import pytest

from sluicegate.config import load_text
from sluicegate.config.fields import ConfigError
from sluicegate.core.tenants import Webhook

REST = """
providers: {mock: {provider: mock}}
models: {a: {deployments: [{provider: mock, model: a}]}}
tenants: {acme: {keys: [{name: k, key: sk-1}]}}
"""


def webhooks(written: str, **environ: str) -> tuple[Webhook, ...]:
    return load_text(f"webhooks: [{written}]{REST}", environ).policy.webhooks


def test_a_webhook_goes_where_its_url_says() -> None:
    """With its query, characters that cannot be sent encoded; budgets alone, if nothing is said; one URL has one id in each format."""
    [one, two] = webhooks('{url: "https://hooks.example:8443/a b?x=ü&y=%20"}'.replace(" b", "%20b") + ', {url: "http://h.example", format: slack}')
    assert (one.origin, one.target, one.types, one.format) == ("https://hooks.example:8443", b"/a%20b?x=%C3%BC&y=%20", ("budget.*",), "json")
    assert (two.origin, two.target, two.format) == ("http://h.example", b"/", "slack")
    assert webhooks('{url: "http://h.example", types: [key.*]}, {url: "http://h.example", format: slack}')[1].id == two.id


def test_a_proxy_is_found_as_for_providers() -> None:
    """In the environment, unless the host is left out there."""
    environ = {"HTTPS_PROXY": "http://proxy.example:3128", "NO_PROXY": "inside.example"}
    outside, inside = webhooks('{url: "https://hooks.example/"}, {url: "https://inside.example/"}', **environ)
    assert outside.proxy is not None
    assert (outside.proxy.name, inside.proxy) == ("proxy.example:3128", None)


def test_secrets_are_not_shown() -> None:
    """Neither of the policy nor of the configuration: path and query of a URL, headers, the key of signatures."""
    written = '{url: "https://hooks.example/s3cret?t=s3cret", secret_env: HOOK, headers: {authorization: s3cret}}'
    loaded = load_text(f"webhooks: [{written}]{REST}", {"HOOK": "s3cret"})
    assert loaded.policy.webhooks[0].secret == b"s3cret"
    assert "s3cret" not in repr(loaded.policy.webhooks) + repr(loaded.config)


@pytest.mark.parametrize(
    ("written", "path", "says"),
    [
        ("{url: ftp://h/x}", "webhooks[0].url", "must be a URL"),
        ("{url: 'http://user:pw@h/x'}", "webhooks[0].url", "without user"),
        ("{url: 'http://h/x y'}", "webhooks[0].url", "must be a URL"),
        ("{url: 'http://h:99999/'}", "webhooks[0].url", "must be a URL"),
        ("{url: 'http://h/', types: [budget.warnings]}", "webhooks[0].types[0]", "did you mean 'budget.warning'?"),
        ("{url: 'http://h/', types: []}", "webhooks[0].types", "must not be empty"),
        ("{url: 'http://h/', format: xml}", "webhooks[0].format", ""),
        ("{url: 'http://h/', headers: {'x y': a}}", "webhooks[0].headers.x y", "not a valid HTTP header"),
        ("{url: 'http://h/', headers: {x-a: \"a\\r\\nb\"}}", "webhooks[0].headers.x-a", "not a valid HTTP header"),
        ("{url: 'http://h/', headers: {Host: a}}", "webhooks[0].headers.Host", "set by the gateway"),
        ("{url: 'http://h/', headers: {x-sluicegate-signature: a}}", "webhooks[0].headers.x-sluicegate-signature", "set by the gateway"),
        ("{url: 'http://h/', secret_env: NOT_THERE}", "webhooks[0].secret_env", "is not set"),
        ("{url: 'http://h/'}, {url: 'http://h/'}", "webhooks[1]", "earlier one"),
        ("{url: 'http://h/', secret: abc}", "webhooks[0].secret", "unknown field"),
    ],
)
def test_what_is_wrong_is_named(written: str, path: str, says: str) -> None:
    """By its path; no URL is quoted."""
    with pytest.raises(ConfigError) as wrong:
        webhooks(written)
    problem: Any = wrong.value.problems[0]
    assert str(problem).startswith(f"{path}:")
    assert says in str(problem)
    assert "pw@" not in str(problem)
