"""From configuration to policy: scopes, trees, counters, routes, and what does not fit together."""

import hashlib
from typing import Any

import pytest

from sluicegate.config import ConfigError, load_text
from sluicegate.config.compile import compile_policy
from sluicegate.config.schema import Config
from sluicegate.core.tenants import Deployment, Key, Policy

UP = {"up": {"dialect": "openai", "base_url": "http://127.0.0.1:1/v1"}}
CHAT = {"chat": {"deployments": [{"provider": "up", "model": "small"}]}}
ACME = {"acme": {"keys": [{"name": "lab", "key": "sk-lab"}]}}


def compiled(
    providers: dict[str, Any] = UP, models: dict[str, Any] = CHAT, tenants: dict[str, Any] = ACME, environ: dict[str, str] | None = None, **more: Any
) -> Policy:
    config = {"providers": providers, "models": models, "tenants": tenants, **more}
    return compile_policy(Config.model_validate(config, context={"environ": environ or {}}))


def problems(**config: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        compiled(**config)
    return [str(problem) for problem in caught.value.problems]


def key_of(policy: Policy, secret: str) -> Key:
    return policy.keys[hashlib.sha256(secret.encode()).digest()]


# -- priorities, shadows, marks, the queue ------------------------------------------------------------------------------------------------


def test_priorities_are_inherited() -> None:
    """A key has its own, else that of the nearest tenant above; where nobody says one, there is none."""
    keys = [{"name": "own", "key": "sk-own", "priority": "high"}, {"name": "lab", "key": "sk-lab"}]
    team = {"priority": "low", "keys": keys, "children": {"app": {"keys": [{"name": "deep", "key": "sk-deep"}]}}}
    tenants = {"acme": {"keys": [{"name": "root", "key": "sk-root"}], "children": {"team": team}}}
    policy = compiled(tenants=tenants)
    assert {name: key_of(policy, f"sk-{name}").priority for name in ("root", "lab", "own", "deep")} == {
        "root": None,
        "lab": "low",
        "own": "high",
        "deep": "low",
    }


def test_windows_that_do_not_refill_take_the_marks_of_the_budget() -> None:
    """80, 95 and 100 % by default; what a limit says itself stands; others have none. Deployments' and global limits too."""
    written = ["5 tokens/day", {"amount": 7, "unit": "tokens", "per": "lifetime", "warn_at": [0.5]}, "5 tokens/minute", "5 concurrent"]
    tenants = {"limits": written[:1], "acme": {"keys": [{"name": "lab", "key": "sk-lab", "limits": written}]}}
    models = {"chat": {"deployments": [{"provider": "up", "model": "small", "limits": ["9 tokens/day"]}]}}

    def marked(**more: Any) -> list[tuple[int, ...] | None]:
        policy = compiled(models=models, tenants=tenants, **more)
        counters = (*key_of(policy, "sk-lab").counters, *policy.models["chat"].deployments[0].counters)
        return [limit.warn_at for counter in counters for limit in counter.limits]

    usual = (800_000, 950_000, 1_000_000)
    assert marked() == [usual, usual, (500_000,), None, None, usual]
    assert marked(budget={"warn_at": []}) == [(), (), (500_000,), None, None, ()]


def test_many_marks_on_one_counter_are_told() -> None:
    """A ledger keeps a bit for each."""
    eight = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]
    marks = [{"amount": 10**k, "unit": "tokens", "per": "day", "warn_at": eight} for k in range(3, 10)]
    told = problems(tenants={"acme": {"keys": [{"name": "lab", "key": "sk-lab", "limits": marks}]}})
    assert told == ["tenants: key lab tokens/day has 56 warning marks; 48 can be told apart"]


def test_the_queue() -> None:
    """Off, if nothing is said."""
    assert compiled().budget.queue_max_wait_ms == 0
    budget = compiled(budget={"queue": {"max_wait": "30s", "max_depth": 7}}).budget
    assert (budget.queue_max_wait_ms, budget.queue_max_depth) == (30_000, 7)


# -- tenants ------------------------------------------------------------------------------------------------------------------------------

TREE = {
    "acme": {
        "limits": ["$500/month"],
        "keys": [{"name": "root", "key": "sk-root"}],
        "children": {
            "team-a": {
                "limits": ["20k tokens/minute", "$5/day"],
                "children": {"app": {"children": {"ann": {"keys": [{"name": "lab", "key": "sk-lab", "limits": ["4 concurrent"]}]}}}},
            }
        },
    },
    "beta": {"keys": [{"name": "lab", "key": "sk-beta"}]},
}


def test_a_key_is_bound_by_every_scope_above_it() -> None:
    """Counters run from the top of the tree down to the key; scopes are named by depth; ids outlive secrets."""
    key = key_of(compiled(tenants=TREE), "sk-lab")
    assert key.id == "acme/team-a/app/ann/@lab"
    assert [(scope.id, scope.kind) for scope in key.path] == [
        ("acme", "organization"),
        ("acme/team-a", "team"),
        ("acme/team-a/app", "project"),
        ("acme/team-a/app/ann", "user"),
        ("acme/team-a/app/ann/@lab", "key"),
    ]
    assert [counter.key_prefix for counter in key.counters] == [
        "sg1:{acme}:c:acme:usd:month",
        "sg1:{acme}:c:acme/team-a:tokens:bucket-1m",
        "sg1:{acme}:c:acme/team-a:usd:day",
        "sg1:{acme}:c:acme/team-a/app/ann/@lab:concurrent:open",
    ]


def test_each_organization_is_a_tree_of_its_own() -> None:
    """Keys of different organizations share nothing, even if they are named alike."""
    policy = compiled(tenants=TREE)
    assert (key_of(policy, "sk-root").tree, key_of(policy, "sk-beta").tree) == ("acme", "beta")
    assert key_of(policy, "sk-beta").counters == ()


def test_global_limits_put_everyone_in_one_tree() -> None:
    """`limits` directly under `tenants` binds all organizations together, in one atomic step."""
    policy = compiled(tenants=TREE | {"limits": ["1M tokens/day"]})
    for secret in ("sk-root", "sk-lab", "sk-beta"):
        key = key_of(policy, secret)
        assert key.tree == "*"
        assert key.path[0].kind == "global"
        assert key.counters[0].key_prefix == "sg1:{*}:c:*:tokens:day"
        assert all(counter.key_prefix.startswith("sg1:{*}:") for counter in key.counters)


def test_keys_are_found_by_the_hash_of_their_secret() -> None:
    """Given plain or hashed, with hex digits of any case."""
    digest = hashlib.sha256(b"sk-hashed").hexdigest()
    policy = compiled(tenants={"acme": {"keys": [{"name": "a", "key": "sk-plain"}, {"name": "b", "sha256": digest.upper()}]}})
    assert key_of(policy, "sk-plain").name == "a"
    assert key_of(policy, "sk-hashed").name == "b"


def test_models_narrow_down_the_tree() -> None:
    """A tenant may use what is written there, else what the tenant above may; an empty list allows nothing."""
    models = {name: CHAT["chat"] for name in ("a", "b", "c")}
    keys = [{"name": "k", "key": "sk-k"}, {"name": "one", "key": "sk-one", "models": ["a"]}, {"name": "none", "key": "sk-none", "models": []}]
    policy = compiled(
        models=models,
        tenants={"acme": {"models": ["a", "b"], "children": {"t": {"keys": keys}}}, **{"beta": {"keys": [{"name": "all", "key": "sk-all"}]}}},
    )
    allowed = {secret: key_of(policy, secret).models for secret in ("sk-k", "sk-one", "sk-none", "sk-all")}
    assert allowed == {"sk-k": frozenset("ab"), "sk-one": frozenset("a"), "sk-none": frozenset(), "sk-all": None}


def nested(depth: int) -> dict[str, Any]:
    return {"children": {"x": nested(depth - 1)}} if depth else {}


@pytest.mark.parametrize(
    ("tenants", "problem"),
    [
        ({"a b": ACME["acme"]}, "tenants.a b: 'a b' is no name"),
        ({"a:b": ACME["acme"]}, "tenants.a:b: 'a:b' is no name"),
        ({"*": ACME["acme"]}, "tenants.*: '*' is no name"),
        ({"{x}": ACME["acme"]}, "tenants.{x}: '{x}' is no name"),
        ({"acme": {"children": {"@x": ACME["acme"]}}}, "tenants.acme.children.@x: '@x' is no name"),
        ({"acme": {"children": {"x/y": ACME["acme"]}}}, "tenants.acme.children.x/y: 'x/y' is no name"),
        ({"acme": {"keys": [{"name": "", "key": "sk"}]}}, "tenants.acme.keys[0].name: '' is no name"),
        ({"acme": {"keys": [{"name": "k"}]}}, "tenants.acme.keys[0]: needs key or sha256"),
        ({"acme": {"keys": [{"name": "k", "key": "sk", "sha256": "0" * 64}]}}, "tenants.acme.keys[0].sha256: and key are two secrets"),
        (
            {"acme": {"keys": [{"name": "k", "key": "a"}, {"name": "k", "key": "b"}]}},
            "tenants.acme.keys[1].name: 'k' is already the name of another key",
        ),
        (
            {"acme": ACME["acme"], "b": {"keys": [{"name": "k", "sha256": hashlib.sha256(b"sk-lab").hexdigest()}]}},
            "tenants.b.keys[0]: has the same secret as tenants.acme.keys[0]",
        ),
        ({"acme": {**ACME["acme"], "models": ["caht"]}}, "tenants.acme.models[0]: there is no model 'caht'; did you mean 'chat'?"),
        (
            {"acme": {"models": [], "keys": [{"name": "k", "key": "a", "models": ["chat"]}]}},
            "tenants.acme.keys[0].models[0]: 'chat' is not among the models",
        ),
        (
            {"acme": {**ACME["acme"], "limits": [{"amount": 5, "unit": "usd", "per": "day", "models": ["nope"]}]}},
            "tenants.acme.limits[0].models: there is no model 'nope'; there are chat",
        ),
        ({**ACME, "limits": [{"amount": 5, "unit": "usd", "per": "day", "models": ["nope"]}]}, "tenants.limits[0].models: there is no model 'nope'"),
        ({"acme": {**ACME["acme"], **nested(4)}}, "tenants.acme.children.x.children.x.children.x.children.x: is too deep"),
        ({}, "tenants: have no key at all"),
        ({"acme": {}}, "tenants: have no key at all"),
    ],
)
def test_tenants_that_do_not_fit(tenants: dict[str, Any], problem: str) -> None:
    """Names that would make storage keys ambiguous, secrets given twice, models that do not exist: each is refused at its path."""
    assert any(one.startswith(problem) for one in problems(tenants=tenants)), problems(tenants=tenants)


# -- providers and models -----------------------------------------------------------------------------------------------------------------


def test_a_row_fills_in_what_is_not_written() -> None:
    """What the table of providers knows, and what the operator says instead."""
    models = {
        "m": {"deployments": [{"provider": "oa", "model": "gpt-5-mini"}, {"provider": "oa", "model": "gpt-4"}, {"provider": "v", "model": "x"}]}
    }
    providers = {
        "oa": {"dialect": "openai", "api_key_env": "K", "headers": {"OpenAI-Organization": "o"}},
        "v": {"provider": "vllm", "base_url": "http://h:8000/v1/", "extend": False, "cap_field": "max_completion_tokens", "tokenizer": "cl100k_base"},
    }
    five, four, local = compiled(providers, models, environ={"K": "sk-up"}).models["m"].deployments
    assert five.provider.base_url == "https://api.openai.com/v1"
    sent = {b"content-type": b"application/json", b"authorization": b"Bearer sk-up", b"openai-organization": b"o"}
    assert dict(five.provider.headers) == sent
    assert (five.id, five.cap_field, five.tokenizer, five.extend) == ("oa/gpt-5-mini", "max_completion_tokens", "o200k_base", False)
    assert (four.cap_field, four.tokenizer) == ("max_tokens", "cl100k_base")
    assert (local.provider.base_url, local.cap_field, local.tokenizer, local.extend) == (
        "http://h:8000/v1",
        "max_completion_tokens",
        "cl100k_base",
        False,
    )
    assert local.provider.stops_on_close


def deployed(provider: dict[str, Any], model: str = "small", **more: Any) -> Deployment:
    """The one deployment of a provider."""
    [found] = compiled({"up": provider}, {"chat": {"deployments": [{"provider": "up", "model": model, **more}]}}).models["chat"].deployments
    return found


@pytest.mark.parametrize(
    ("provider", "dialect", "path"),
    [
        ({"dialect": "openai"}, "openai_chat", b"/chat/completions"),
        ({"dialect": "anthropic"}, "anthropic_messages", b"/v1/messages"),
        ({"dialect": "anthropic", "base_url": "https://api.anthropic.com/v1"}, "anthropic_messages", b"/messages"),
        ({"dialect": "anthropic", "base_url": "https://api.anthropic.com/v1/"}, "anthropic_messages", b"/messages"),
        ({"provider": "vllm"}, "anthropic_messages", b"/messages"),
        ({"provider": "deepseek"}, "openai_chat", b"/chat/completions"),
        ({"provider": "deepseek"}, "anthropic_messages", b"/anthropic/v1/messages"),
        (
            {"provider": "azure", "base_url": "https://x.openai.azure.com/", "api_version": "2024-10-21"},
            "openai_chat",
            b"/openai/deployments/my%2Bsmall/chat/completions?api-version=2024-10-21",
        ),
        ({"provider": "azure_v1", "base_url": "https://x.openai.azure.com/openai/v1/"}, "openai_embeddings", b"/embeddings"),
    ],
)
def test_where_a_deployment_is_called(provider: dict[str, Any], dialect: str, path: bytes) -> None:
    """Below the base URL, in each dialect where the vendor has it; a version in the base URL is not said twice."""
    assert deployed(provider, "my+small").path(dialect) == path


def test_a_compatible_server_is_not_openai() -> None:
    """At another address `dialect: openai` is what compatible servers speak, and what concerns OpenAI stays here; models are taken for what they are
    named. `provider: openai` is OpenAI wherever it is reached."""
    at = {"base_url": "https://llm.example.com/v1"}
    own, elsewhere, proxied = (
        deployed({"dialect": "openai"}, "gpt-5"),
        deployed({"dialect": "openai", **at}, "gpt-5"),
        deployed({"provider": "openai", **at}),
    )
    assert [one.path("openai_responses") for one in (own, elsewhere, proxied)] == [b"/responses", None, b"/responses"]
    assert [b"openai-organization" in one.provider.forwards for one in (own, elsewhere, proxied)] == [True, False, True]
    assert [bool(one.provider.rejects) for one in (own, elsewhere, proxied)] == [True, False, True]
    assert (elsewhere.cap_field, elsewhere.tokenizer) == (own.cap_field, own.tokenizer) == ("max_completion_tokens", "o200k_base")
    assert deployed({"dialect": "openai", "base_url": "https://api.openai.com/v1/"}).path("openai_responses")


def test_what_an_operator_says_that_a_provider_speaks() -> None:
    """It replaces what the row says; the first is what everything else is translated to."""
    found = deployed({"provider": "openai_compatible", "base_url": "http://x/v1", "speaks": ["anthropic_messages", "openai_embeddings"]})
    assert found.provider.dialect == "anthropic_messages"
    assert [name for name, _ in found.paths] == ["anthropic_messages", "openai_embeddings"]


def test_what_others_are_translated_to_can_be() -> None:
    """The first of what a provider speaks to which anything is translated, wherever it stands."""
    found = deployed(
        {"provider": "openai_compatible", "base_url": "http://x/v1", "speaks": ["openai_responses", "openai_chat", "anthropic_messages"]}
    )
    assert found.provider.dialect == "openai_chat"
    assert [name for name, _ in found.paths] == ["openai_chat", "openai_responses", "anthropic_messages"]


@pytest.mark.parametrize(
    ("provider", "model", "said", "most"),
    [
        ("openai", "gpt-4o-mini-2024-07-18", 0, 48_169),
        ("openai", "gpt-4o", 0, 1_445),
        ("openai", "gpt-4o", 85, 85),
        ("openai", "something-else", 0, 0),
        ("openrouter", "openai/gpt-4o-mini", 0, 48_169),
        ("openrouter", "qwen/qwen2.5-vl", 0, 16_384),
        ("anthropic", "claude-sonnet-4-5", 0, 1_600),
        ("anthropic", "claude-opus-4-7", 0, 4_784),
    ],
)
def test_images_count_what_the_row_knows_of_the_model(provider: str, model: str, said: int, most: int) -> None:
    """Unless the operator says it; 0 is for models that nothing is known of."""
    assert deployed({"provider": provider}, model, image_tokens=said).image_tokens == most


def test_which_headers_of_clients_go_to_a_provider() -> None:
    """Tracing to each, what concerns the vendor to that one, what the operator adds."""
    assert deployed({"dialect": "anthropic", "forward_headers": ["X-Session"]}).provider.forwards == {
        b"traceparent", b"tracestate", b"anthropic-beta", b"x-session",
    }  # fmt: skip
    assert b"anthropic-beta" not in deployed({"dialect": "openai"}).provider.forwards


@pytest.mark.parametrize(("row", "each"), [("llama_cpp", True), ("vllm", False), ("openai", False)])
def test_what_is_visible_follows_from_the_row(row: str, each: bool) -> None:
    """A row that sends each token in an event of its own shows all of them, also where the operator wants its streams capped."""
    deployment = {"provider": "p", "model": "x", "extend": False}
    found = compiled({"p": {"provider": row}}, {"m": {"deployments": [deployment]}}).models["m"].deployments[0]
    assert (found.provider.token_per_event, found.visible, found.extend) == (each, each, False)


@pytest.mark.parametrize(
    ("provider", "deployment", "extend", "stops_on_close"),
    [
        ({"dialect": "openai"}, {}, False, False),
        ({"dialect": "openai", "extend": "on"}, {}, True, True),
        ({"dialect": "openai", "stops_on_close": "on"}, {}, False, True),
        ({"dialect": "openai", "stops_on_close": "on"}, {"extend": "on"}, True, True),
        ({"provider": "mock"}, {}, True, True),
        ({"provider": "mock"}, {"extend": "off"}, False, True),
        ({"provider": "mock", "stops_on_close": "off"}, {}, False, False),
    ],
)
def test_extended_only_where_generation_stops_on_close(
    provider: dict[str, Any], deployment: dict[str, Any], extend: bool, stops_on_close: bool
) -> None:
    """A deployment is only ever extended if closing its connection stops what can be billed."""
    policy = compiled({"up": provider}, {"chat": {"deployments": [{"provider": "up", "model": "small", **deployment}]}})
    [found] = policy.models["chat"].deployments
    assert (found.extend, found.provider.stops_on_close) == (extend, stops_on_close)


@pytest.mark.parametrize(
    ("provider", "problem"),
    [
        ({}, "providers.up: needs dialect: openai, anthropic or ollama, or provider: one of openai, "),
        ({"provider": "opnai"}, "providers.up.provider: 'opnai' is not known; did you mean 'openai'?"),
        ({"provider": "openai_compatible"}, "providers.up.base_url: is required"),
        ({"dialect": "openai", "base_url": "api.openai.com/v1"}, "providers.up.base_url: must be a URL"),
        ({"dialect": "openai", "base_url": "ftp://x/v1"}, "providers.up.base_url: must be a URL"),
        ({"dialect": "openai", "base_url": "http://x:99999/v1"}, "providers.up.base_url: must be a URL"),
        ({"dialect": "openai", "base_url": "http://x/\r\nv1"}, "providers.up.base_url: must be a URL"),
        ({"dialect": "openai", "base_url": "http://user:pass@x/v1"}, "providers.up.base_url: must have no credentials"),
        ({"dialect": "openai", "base_url": "http://x/v1?key=1"}, "providers.up.base_url: must have no credentials"),
        ({"dialect": "openai", "api_key": "a", "api_key_env": "K"}, "providers.up.api_key: and api_key_env are two credentials"),
        ({"dialect": "openai", "api_key": "a\r\nb"}, "providers.up.api_key: is not usable as a credential"),
        ({"dialect": "openai", "api_key": ""}, "providers.up.api_key: is not usable as a credential"),
        ({"dialect": "openai", "api_key": "a", "headers": {"Authorization": "b"}}, "providers.up.headers.authorization: is set from the credential"),
        ({"dialect": "openai", "headers": {"Host": "b"}}, "providers.up.headers.Host: is set by the gateway itself"),
        ({"dialect": "openai", "headers": {"x y": "b"}}, "providers.up.headers.x y: is not a valid HTTP header"),
        ({"dialect": "openai", "headers": {"x": "a\r\nb: c"}}, "providers.up.headers.x: is not a valid HTTP header"),
        ({"dialect": "openai", "extend": "on", "stops_on_close": "off"}, "providers.up.extend: states that generation stops"),
        ({"dialect": "anthropic", "provider": "groq"}, "providers.up.dialect: is not what groq speaks"),
        ({"provider": "azure", "base_url": "https://x.openai.azure.com"}, "providers.up.api_version: is required"),
        (
            {"provider": "azure", "base_url": "https://x.openai.azure.com/openai/v1", "api_version": "2024-10-21"},
            "providers.up.base_url: must end before /openai, which the gateway adds",
        ),
        ({"provider": "deepseek", "base_url": "https://api.deepseek.com/v1"}, "providers.up.base_url: must end before /v1"),
        ({"provider": "azure_v1", "base_url": "https://x.openai.azure.com"}, "providers.up.base_url: must end with /openai/v1"),
        ({"dialect": "openai", "api_version": "2024-10-21"}, "providers.up.api_version: is not part of this provider's paths"),
        ({"dialect": "openai", "speaks": ["openai_chat", "openai_response"]}, "providers.up.speaks[1]: 'openai_response' is not known; did you mean"),
        ({"dialect": "openai", "forward_headers": ["x y"]}, "providers.up.forward_headers[0]: is not the name of an HTTP header"),
        *(
            ({"dialect": "anthropic", "forward_headers": ["x-fine", name]}, "providers.up.forward_headers[1]: never leaves the gateway")
            for name in (
                "Authorization",
                "X-Api-Key",
                "api-key",
                "Cookie",
                "X-Forwarded-For",
                "Forwarded",
                "Host",
                "Content-Length",
                "X-Sluicegate-Include",
            )
        ),
    ],
)
def test_providers_that_do_not_fit(provider: dict[str, Any], problem: str) -> None:
    """What cannot be called, or contradicts itself, is refused at its path."""
    assert any(one.startswith(problem) for one in problems(providers={"up": provider}, environ={"K": "k"}))


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ({"provider": "upp", "model": "small"}, "models.chat.deployments[0].provider: there is no provider 'upp'; did you mean 'up'?"),
        ({"provider": "up", "model": "a b"}, "models.chat.deployments[0].model: must be the name that the provider knows"),
        ({"provider": "up", "model": "a}b"}, "models.chat.deployments[0].model: must be the name that the provider knows"),
        ({"provider": "up", "model": "small", "extend": "on"}, "models.chat.deployments[0].extend: needs a provider that stops"),
        (
            {"provider": "up", "model": "small", "limits": [{"amount": 1, "unit": "usd", "per": "day", "models": ["chat"]}]},
            "models.chat.deployments[0].limits[0]: a deployment is one model",
        ),
    ],
)
def test_deployments_that_do_not_fit(model: dict[str, Any], problem: str) -> None:
    """A route that leads nowhere, and what the cap could not rely on, is refused at its path."""
    assert any(one.startswith(problem) for one in problems(models={"chat": {"deployments": [model]}}))


def test_a_deployment_twice_in_a_route_is_refused() -> None:
    """Trying the same again is what retries are for."""
    one = {"provider": "up", "model": "small"}
    assert problems(models={"chat": {"deployments": [one, one]}}) == ["models.chat.deployments[1]: up/small is in this route twice"]


def test_a_model_name_may_be_a_path() -> None:
    """Names such as clients send: with slashes, colons and dots; not with spaces or commas."""
    policy = compiled(models={"meta/llama3.1:8b": CHAT["chat"]})
    assert list(policy.models) == ["meta/llama3.1:8b"]
    assert any("'a,b' is no name" in one for one in problems(models={"a,b": CHAT["chat"]}))


def test_deployment_limits_are_a_tree_of_their_own() -> None:
    """A deployment in two routes is one deployment: its limits count together, whatever route is taken."""
    limited = {"provider": "up", "model": "ft:small", "limits": ["200k tokens/minute", "10 concurrent"]}
    plain = {"provider": "up", "model": "ft:small"}
    policy = compiled(models={"a": {"deployments": [limited]}, "b": {"deployments": [plain]}}, tenants=ACME | {"limits": ["1M tokens/day"]})
    for name in ("a", "b"):
        assert [counter.key_prefix for counter in policy.models[name].deployments[0].counters] == [
            "sg1:{d/up/ft%3Asmall}:c:up/ft%3Asmall:tokens:bucket-1m",
            "sg1:{d/up/ft%3Asmall}:c:up/ft%3Asmall:concurrent:open",
        ]


def test_prices_are_exact() -> None:
    """USD per 1M tokens become pico-USD per token."""
    price = "{input: 0.15, output: 60, cached_input: 0.000001}"
    models = f"{{m: {{deployments: [{{provider: up, model: x, price: {price}}}]}}}}"
    text = f"providers: {{up: {{provider: mock}}}}\nmodels: {models}\ntenants: {{a: {{keys: [{{name: k, key: s}}]}}}}"
    [deployment] = load_text(text, {}).policy.models["m"].deployments
    assert deployment.price is not None
    assert (deployment.price.input, deployment.price.output, deployment.price.cached_input, deployment.price.reasoning) == (
        150_000,
        60_000_000,
        1,
        None,
    )


def test_the_other_sections() -> None:
    """Budget, timeouts and policies on failure arrive in the policy under its names."""
    policy = compiled(
        budget={"estimator": "fixed", "figures": False, "hold_ttl": "10s", "stop_lag": "250ms", "on_exhausted": "allow"},
        resilience={"timeouts": {"connect": "1s", "total": "2m"}},
        prices={"unpriced": "free"},
        on_ledger_failure="allow",
    )
    assert (policy.budget.estimator, policy.budget.show_figures, policy.budget.hold_ttl_ms, policy.budget.stop_lag_ms) == (
        "fixed",
        False,
        10_000,
        250,
    )
    timeouts = policy.models["chat"].timeouts
    assert (timeouts.connect_ms, timeouts.total_ms, timeouts.idle_ms) == (1_000, 120_000, 60_000)
    assert (policy.unpriced, policy.on_ledger_failure, policy.budget.on_exhausted) == ("free", "allow", "allow")


def test_a_model_may_have_timeouts_of_its_own() -> None:
    """Those that it names; the rest is what binds everywhere."""
    deployments = [{"provider": "up", "model": "small"}]
    models = {"chat": {"deployments": deployments}, "slow": {"deployments": deployments, "timeouts": {"total": "50s", "first_token": "40s"}}}
    policy = compiled(models=models, resilience={"timeouts": {"total": "5s", "idle": "3s"}})
    slow, chat = policy.models["slow"].timeouts, policy.models["chat"].timeouts
    assert (slow.total_ms, slow.first_token_ms, slow.idle_ms, slow.connect_ms) == (50_000, 40_000, 3_000, 2_000)
    assert (chat.total_ms, chat.first_token_ms, chat.idle_ms, chat.connect_ms) == (5_000, 120_000, 3_000, 2_000)
